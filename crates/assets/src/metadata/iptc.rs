//! Reads IPTC-IIM: captions and keywords, the format of news agencies before XMP.

use super::metadata_properties::{MetadataProperties, parse_date_value};
use crate::processing_request::MetadataValue;

/// ID of the Photoshop resource that contains the records.
const IPTC_RESOURCE_ID: u16 = 0x0404;

/// Data sets of the application record, and their property names.
const IPTC_TEXT_SETS: &[(u8, &str)] = &[
    (5, "dc:title"),
    (40, "photoshop:Instructions"),
    (85, "photoshop:AuthorsPosition"),
    (90, "photoshop:City"),
    (92, "Iptc4xmpCore:Location"),
    (95, "photoshop:State"),
    (100, "Iptc4xmpCore:CountryCode"),
    (101, "photoshop:Country"),
    (103, "photoshop:TransmissionReference"),
    (105, "photoshop:Headline"),
    (110, "photoshop:Credit"),
    (115, "photoshop:Source"),
    (116, "dc:rights"),
    (120, "dc:description"),
    (122, "photoshop:CaptionWriter"),
];
const IPTC_LIST_SETS: &[(u8, &str)] = &[(25, "dc:subject"), (80, "dc:creator")];

/// Returns the records among Photoshop's resources.
pub(super) fn find_iptc_records(mut rest: &[u8]) -> Option<&[u8]> {
    while let Some(after) = rest.strip_prefix(b"8BIM") {
        let (id, after) = after.split_first_chunk::<2>()?;
        // A name has one length byte and its text, padded to an even number of bytes.
        let name = usize::from(*after.first()?) + 1;
        let after = after.get(name + name % 2..)?;
        let (length, after) = after.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let data = after.get(..length)?;
        if u16::from_be_bytes(*id) == IPTC_RESOURCE_ID {
            return Some(data);
        }
        rest = after.get(length + length % 2..)?;
    }
    None
}

/// Adds the properties of the records.
pub(super) fn read_iptc(records: &[u8], properties: &mut MetadataProperties) {
    let sets = split_data_sets(records);
    // 1:90 selects the character set: ESC % G is UTF-8. Many writers use UTF-8 without declaring it.
    let is_utf8 =
        sets.iter().any(|(record, set, data)| (*record, *set) == (1, 90) && *data == b"\x1b%G");
    let decode = |data: &[u8]| match std::str::from_utf8(data) {
        Ok(text) => text.to_owned(),
        Err(_) if is_utf8 => String::from_utf8_lossy(data).into_owned(),
        Err(_) => data.iter().copied().map(char::from).collect(),
    };
    let all = |set_number: u8| {
        let matching_sets =
            sets.iter().filter(move |(record, set, _)| (*record, *set) == (2, set_number));
        matching_sets.map(|(_, _, data)| decode(data))
    };
    for (set, name) in IPTC_TEXT_SETS {
        if let Some(text) = all(*set).next() {
            properties.add_text_if_absent(*name, &text);
        }
    }
    for (set, name) in IPTC_LIST_SETS {
        properties.add_if_absent(*name, MetadataValue::Texts(all(*set).collect()));
    }
    if let Some(created) =
        join_date_and_time(&all(55).next().unwrap_or_default(), &all(60).next().unwrap_or_default())
    {
        properties.add_if_absent("photoshop:DateCreated", created);
    }
}

/// Splits records into (record, data set, data).
fn split_data_sets(mut rest: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut sets = Vec::new();
    while let [0x1c, record, set, high, low, after @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        // The highest bit marks an extended length, which is not needed here.
        let Some((data, after)) = after.split_at_checked(length).filter(|_| high & 0x80 == 0)
        else {
            break;
        };
        sets.push((*record, *set, data));
        rest = after;
    }
    sets
}

/// Combines `20190301` and `102030+0100` to a date.
fn join_date_and_time(day: &str, time: &str) -> Option<MetadataValue> {
    let (year, month, day) = (day.get(..4)?, day.get(4..6)?, day.get(6..8)?);
    let part = |from: usize| time.get(from..from + 2).unwrap_or("00");
    let offset = match (time.get(6..9), time.get(9..11)) {
        (Some(hours), Some(minutes)) => format!("{hours}:{minutes}"),
        _ => "Z".to_owned(),
    };
    parse_date_value(&format!("{year}-{month}-{day}T{}:{}:{}{offset}", part(0), part(2), part(4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(record: u8, number: u8, data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u16).to_be_bytes();
        [&[0x1c, record, number][..], &length, data].concat()
    }

    #[test]
    fn reads_records_out_of_photoshop_resources() {
        let records = [
            set(2, 5, "Grüße".as_bytes()),
            set(2, 25, b"one"),
            set(2, 25, b"two"),
            set(2, 55, b"20190301"),
            set(2, 60, b"102030+0100"),
            set(2, 116, b"\xa9 me"),
        ]
        .concat();
        let mut resources = b"8BIM\x03\xed\0\0\0\0\0\x03abc\0".to_vec();
        resources.extend_from_slice(b"8BIM\x04\x04\0\0");
        resources.extend_from_slice(&(records.len() as u32).to_be_bytes());
        resources.extend_from_slice(&records);
        let mut properties = MetadataProperties::default();
        read_iptc(find_iptc_records(&resources).unwrap(), &mut properties);
        let text = |text: &str| MetadataValue::Text(text.to_owned());
        assert_eq!(
            properties.into_sorted_list(),
            [
                ("dc:rights".to_owned(), text("\u{a9} me")),
                (
                    "dc:subject".to_owned(),
                    MetadataValue::Texts(vec!["one".to_owned(), "two".to_owned()])
                ),
                ("dc:title".to_owned(), text("Grüße")),
                (
                    "photoshop:DateCreated".to_owned(),
                    MetadataValue::Date("2019-03-01T10:20:30.000+01:00".to_owned())
                ),
            ]
        );
    }

    #[test]
    fn noise_says_nothing() {
        for noise in [&b"8BIM"[..], b"8BIM\x04\x04\xff\0", b"8BIM\x04\x04\0\0\xff\xff\xff\xff", b""]
        {
            assert!(find_iptc_records(noise).is_none());
        }
        assert!(split_data_sets(b"\x1c\x02\x05\xff\xff").is_empty());
    }
}
