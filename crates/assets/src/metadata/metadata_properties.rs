//! The properties that are read from a file.

use std::collections::BTreeMap;

use crate::processing_request::MetadataValue;

/// Maximum number of properties of one file, and maximum length of a text.
const MAX_PROPERTIES: usize = 1000;
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Properties by name; an existing property is not replaced.
#[derive(Debug, Default)]
pub(crate) struct MetadataProperties(BTreeMap<String, MetadataValue>);

impl MetadataProperties {
    /// Adds a property unless the name exists.
    pub(crate) fn add_if_absent(&mut self, name: impl Into<String>, value: MetadataValue) {
        let name = name.into();
        if self.0.len() >= MAX_PROPERTIES || self.0.contains_key(&name) {
            return;
        }
        if let Some(value) = clean_value(value) {
            self.0.insert(name, value);
        }
    }

    /// Adds a text unless it is blank or the name exists.
    pub(crate) fn add_text_if_absent(&mut self, name: impl Into<String>, text: &str) {
        self.add_if_absent(name, MetadataValue::Text(text.to_owned()));
    }

    /// Returns all properties sorted by name.
    pub(crate) fn into_sorted_list(self) -> Vec<(String, MetadataValue)> {
        self.0.into_iter().collect()
    }
}

/// Truncates and trims texts; `None` if a text is blank.
fn clean_value(value: MetadataValue) -> Option<MetadataValue> {
    let clean = |text: String| {
        let clean_text: String =
            text.chars().filter(|c| !c.is_control() || *c == '\n' || *c == '\t').collect();
        let mut clean_text = clean_text.trim().to_owned();
        if clean_text.len() > MAX_TEXT_BYTES {
            let end =
                (0..=MAX_TEXT_BYTES).rev().find(|at| clean_text.is_char_boundary(*at)).unwrap_or(0);
            clean_text.truncate(end);
        }
        Some(clean_text).filter(|clean_text| !clean_text.is_empty())
    };
    match value {
        MetadataValue::Text(text) => clean(text).map(MetadataValue::Text),
        MetadataValue::Texts(texts) => {
            let texts: Vec<String> =
                texts.into_iter().filter_map(clean).take(MAX_PROPERTIES).collect();
            (!texts.is_empty()).then_some(MetadataValue::Texts(texts))
        }
        other => Some(other),
    }
}

/// Parses a text as a date with an offset; a time without an offset counts as UTC. Returns `None` if it is not a date.
pub(crate) fn parse_date_value(text: &str) -> Option<MetadataValue> {
    let text = text.trim();
    let (day, time) = text.split_once(['T', ' '])?;
    let mut day = day.splitn(3, ['-', ':']);
    let mut number = |digits: usize| {
        day.next()
            .filter(|part| part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    let (clock, offset) = match time.find(['Z', '+', '-']) {
        Some(at) => time.split_at(at),
        None => (time, "Z"),
    };
    let mut parts = clock.splitn(3, ':');
    let (hour, minute, second) = (parts.next()?, parts.next()?, parts.next().unwrap_or("00"));
    let (second, fraction) = second.split_once('.').unwrap_or((second, "000"));
    let millis: String = fraction.chars().chain("000".chars()).take(3).collect();
    let offset = if offset == "Z" { "+00:00".to_owned() } else { offset.to_owned() };
    let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}.{millis}{offset}");
    tympan_content::JcrDate::parse(&text).ok().map(|_| MetadataValue::Date(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(
                parse_date_value(text),
                expected.map(|date| MetadataValue::Date(date.to_owned())),
                "{text}"
            );
        };
        check("2019:03:01 10:20:30", Some("2019-03-01T10:20:30.000+00:00"));
        check("2019-03-01T10:20:30.4+01:00", Some("2019-03-01T10:20:30.400+01:00"));
        check("2019-03-01T10:20Z", Some("2019-03-01T10:20:00.000+00:00"));
        check("2019-03-01", None);
        check("0000:00:00 00:00:00", None);
        check("    :  :     :  :  ", None);
    }

    #[test]
    fn first_value_stays_and_blank_ones_are_none() {
        let mut properties = MetadataProperties::default();
        properties.add_text_if_absent("dc:title", " \0 ");
        properties.add_text_if_absent("dc:title", " a\u{7} ");
        properties.add_text_if_absent("dc:title", "b");
        assert_eq!(
            properties.into_sorted_list(),
            [("dc:title".to_owned(), MetadataValue::Text("a".to_owned()))]
        );
    }
}
