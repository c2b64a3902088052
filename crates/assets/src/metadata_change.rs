//! The difference between the metadata in a file and the properties of its asset.

use crate::metadata::{MetadataProperties, xmp};
use crate::processing_request::MetadataValue;

/// A property and its new value.
pub(crate) type MetadataChange = (String, Option<MetadataValue>);

/// Returns the properties that are missing from a packet or differ in it.
pub(crate) fn diff_packet(
    packet: Option<&[u8]>,
    properties: Vec<(String, MetadataValue)>,
) -> Vec<MetadataChange> {
    let mut statements = MetadataProperties::default();
    if let Some(packet) = packet {
        xmp::read_xmp(packet, &mut statements);
    }
    let statements = statements.into_sorted_list();
    properties
        .into_iter()
        .filter(|(name, value)| {
            !statements
                .iter()
                .any(|(stated_name, present)| stated_name == name && is_same_value(present, value))
        })
        .map(|(name, value)| (name, Some(value)))
        .collect()
}

/// Returns the names of the changed properties.
pub(crate) fn changed_names(changes: &[MetadataChange]) -> Vec<String> {
    changes.iter().map(|(name, _)| name.clone()).collect()
}

fn is_same_value(left: &MetadataValue, right: &MetadataValue) -> bool {
    use MetadataValue::{Date, Text, Texts};
    match (left, right) {
        // A text and a list of that one text are equal in a file.
        (Text(text), Texts(texts)) | (Texts(texts), Text(text)) => texts.iter().eq([text]),
        (Date(left_date), Date(right_date)) => {
            let instant =
                |text: &str| tympan_content::JcrDate::parse(text).map(|date| date.millis).ok();
            instant(left_date) == instant(right_date)
        }
        _ => left == right,
    }
}
