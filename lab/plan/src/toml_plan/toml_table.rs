//! TOML tables with positions in the file: every value is read by name, an invalid value becomes a finding, and a key
//! that is never read is unknown.

use std::cell::RefCell;
use std::ops::Range;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tympan_notation::{ByteSize, parse_duration};

use super::super::template::TextTemplate;
use crate::finding::FileFinding;

/// The file and its findings.
#[derive(Debug)]
pub(super) struct TomlSource<'t> {
    file: String,
    text: &'t str,
    findings: RefCell<Vec<FileFinding>>,
}

impl<'t> TomlSource<'t> {
    pub(super) fn new(file: &str, text: &'t str) -> Self {
        Self { file: file.to_owned(), text, findings: RefCell::default() }
    }

    /// Records a finding at a byte offset of the file.
    pub(super) fn add_finding(&self, at: usize, message: impl Into<String>) {
        let (line, column) = self.line_and_column(at);
        let message = message.into();
        self.findings.borrow_mut().push(FileFinding {
            file: self.file.clone(),
            line,
            column,
            message,
        });
    }

    /// Returns line and column of a byte offset, counted from 1.
    pub(super) fn line_and_column(&self, at: usize) -> (u32, u32) {
        let before = self.text.get(..at).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
        (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
    }

    /// Returns all findings in file order.
    pub(super) fn into_findings(self) -> Vec<FileFinding> {
        let mut findings = self.findings.into_inner();
        findings.sort();
        findings.dedup();
        findings
    }
}

/// A text and its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TomlText {
    pub(super) text: String,
    pub(super) offset: usize,
}

/// A table that is being read.
pub(super) struct TomlTable<'s, 't> {
    source: &'s TomlSource<'t>,
    entries: &'s DeTable<'t>,
    /// The name used in findings, such as `scenario`.
    pub(super) name: String,
    /// Start offset in bytes.
    pub(super) offset: usize,
    requested_keys: RefCell<Vec<&'static str>>,
}

impl<'s, 't> TomlTable<'s, 't> {
    pub(super) fn new(
        source: &'s TomlSource<'t>,
        entries: &'s DeTable<'t>,
        name: &str,
        at: usize,
    ) -> Self {
        Self {
            source,
            entries,
            name: name.to_owned(),
            offset: at,
            requested_keys: RefCell::default(),
        }
    }

    pub(super) fn source(&self) -> &'s TomlSource<'t> {
        self.source
    }

    /// Records a finding at a byte offset of the file.
    pub(super) fn add_finding(&self, at: usize, message: impl Into<String>) {
        self.source.add_finding(at, message);
    }

    fn find_value(&self, key: &'static str) -> Option<&'s Spanned<DeValue<'t>>> {
        self.requested_keys.borrow_mut().push(key);
        self.entries.get(key)
    }

    pub(super) fn has_key(&self, key: &'static str) -> bool {
        self.find_value(key).is_some()
    }

    /// Returns the offset of a key's value; the table's own offset if there is none.
    pub(super) fn offset_of(&self, key: &'static str) -> usize {
        self.entries.get(key).map_or(self.offset, |value| value.span().start)
    }

    fn report_wrong_type(&self, key: &str, value: &Spanned<DeValue<'_>>, expected: &str) {
        let message = format!(
            "`{key}` in {} must be {expected}, not {}",
            self.name,
            value_kind_name(value.get_ref())
        );
        self.add_finding(value.span().start, message);
    }

    /// Returns a text; numbers are accepted as texts too.
    pub(super) fn text(&self, key: &'static str) -> Option<TomlText> {
        let value = self.find_value(key)?;
        let text = scalar_text(value);
        if text.is_none() {
            self.report_wrong_type(key, value, "a text");
        }
        text
    }

    /// Returns a compiled text with variables; empty if the key is missing.
    pub(super) fn template(&self, key: &'static str) -> TextTemplate {
        self.text(key).map_or_else(TextTemplate::default, |text| self.compile(&text))
    }

    pub(super) fn compile(&self, text: &TomlText) -> TextTemplate {
        match TextTemplate::parse(&text.text) {
            Ok(template) => template,
            Err(unknown) => {
                self.add_finding(text.offset, unknown.to_string());
                TextTemplate::literal(&text.text)
            }
        }
    }

    pub(super) fn flag(&self, key: &'static str) -> Option<bool> {
        let value = self.find_value(key)?;
        let flag = value.get_ref().as_bool();
        if flag.is_none() {
            self.report_wrong_type(key, value, "true or false");
        }
        flag
    }

    /// Returns an integer that is at least `least`.
    pub(super) fn count(&self, key: &'static str, least: u64) -> Option<u64> {
        let value = self.find_value(key)?;
        let number = match value.get_ref() {
            DeValue::Integer(digits) => {
                u64::from_str_radix(&digits.as_str().replace('_', ""), digits.radix()).ok()
            }
            _ => None,
        };
        let number = number.filter(|number| *number >= least);
        if number.is_none() {
            self.report_wrong_type(key, value, &format!("an integer of at least {least}"));
        }
        number
    }

    /// Returns a time such as `"30s"`.
    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        let value = self.find_value(key)?;
        let time = value.get_ref().as_str().and_then(|text| parse_duration(text).ok());
        if time.is_none() {
            self.report_wrong_type(key, value, "a time such as \"30s\"");
        }
        time
    }

    /// Returns a size in bytes, at most `most`.
    pub(super) fn size(&self, key: &'static str, most: u64) -> Option<u64> {
        let value = self.find_value(key)?;
        let size = value.get_ref().as_str().and_then(|text| text.parse().ok());
        let size = size.map(ByteSize::as_bytes).filter(|size| *size <= most);
        if size.is_none() {
            let mib = most >> 20;
            self.report_wrong_type(
                key,
                value,
                &format!("a size such as \"64 MiB\", at most {mib} MiB"),
            );
        }
        size
    }

    /// Returns a rate: `"500/s"`, `"30/min"`, `"1200/h"`, or a number per second.
    pub(super) fn rate(&self, key: &'static str) -> Option<f64> {
        let value = self.find_value(key)?;
        let rate = scalar_text(value).and_then(|text| parse_rate(&text.text));
        if rate.is_none() {
            self.report_wrong_type(key, value, "a rate above 0 such as \"50/s\" or \"30/min\"");
        }
        rate
    }

    /// Returns one text or a list of texts as a list.
    pub(super) fn texts(&self, key: &'static str) -> Vec<TomlText> {
        let Some(value) = self.find_value(key) else { return Vec::new() };
        let DeValue::Array(list) = value.get_ref() else {
            return match scalar_text(value) {
                Some(text) => vec![text],
                None => {
                    self.report_wrong_type(key, value, "a string or a list of strings");
                    Vec::new()
                }
            };
        };
        let mut texts = Vec::new();
        for item in list.iter() {
            match scalar_text(item) {
                Some(text) => texts.push(text),
                None => self.report_wrong_type(key, item, "a list of strings"),
            }
        }
        texts
    }

    /// Returns the names and values of a table of texts, with their positions.
    pub(super) fn pairs(&self, key: &'static str) -> Vec<(TomlText, TomlText)> {
        let Some(value) = self.find_value(key) else { return Vec::new() };
        let DeValue::Table(entries) = value.get_ref() else {
            self.report_wrong_type(key, value, "a table of strings");
            return Vec::new();
        };
        let mut pairs: Vec<(TomlText, TomlText)> = Vec::new();
        for (name, value) in entries.iter() {
            match scalar_text(value) {
                Some(text) => {
                    let name =
                        TomlText { text: name.get_ref().to_string(), offset: name.span().start };
                    pairs.push((name, text));
                }
                None => self.report_wrong_type(name.get_ref(), value, "a text"),
            }
        }
        // File order is the order of sending.
        pairs.sort_by_key(|(name, _)| name.offset);
        pairs
    }

    /// Returns a nested table.
    pub(super) fn table(&self, key: &'static str) -> Option<Self> {
        let value = self.find_value(key)?;
        match value.get_ref() {
            DeValue::Table(entries) => {
                Some(Self::new(self.source, entries, &format!("`{key}`"), value.span().start))
            }
            _ => {
                self.report_wrong_type(key, value, "a table");
                None
            }
        }
    }

    /// Returns a list of tables; one table is a list of one.
    pub(super) fn tables(&self, key: &'static str) -> Vec<Self> {
        let Some(value) = self.find_value(key) else { return Vec::new() };
        let name = format!("`{key}`");
        let table = |value: &'s Spanned<DeValue<'t>>| match value.get_ref() {
            DeValue::Table(entries) => {
                Some(Self::new(self.source, entries, &name, value.span().start))
            }
            _ => {
                self.report_wrong_type(key, value, "a table");
                None
            }
        };
        match value.get_ref() {
            DeValue::Array(list) => list.iter().filter_map(table).collect(),
            _ => table(value).into_iter().collect(),
        }
    }

    /// Returns every table nested in a table, with its name.
    pub(super) fn named_tables(&self, key: &'static str) -> Vec<(String, Self)> {
        let Some(value) = self.find_value(key) else { return Vec::new() };
        let DeValue::Table(entries) = value.get_ref() else {
            self.report_wrong_type(key, value, "a table of tables");
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (name, value) in entries.iter() {
            match value.get_ref() {
                DeValue::Table(entries) => {
                    let table =
                        Self::new(self.source, entries, &format!("`{key}`"), value.span().start);
                    tables.push((name.get_ref().to_string(), table));
                }
                _ => self.report_wrong_type(name.get_ref(), value, "a table"),
            }
        }
        tables
    }

    /// Returns all keys with their values as texts, for tables whose keys are checked elsewhere.
    pub(super) fn text_entries(&self) -> Vec<(TomlText, Option<String>)> {
        self.entries
            .iter()
            .map(|(key, value)| {
                let name = TomlText { text: key.get_ref().to_string(), offset: key.span().start };
                (name, scalar_text(value).map(|text| text.text))
            })
            .collect()
    }

    /// Reports every key that was never read.
    pub(super) fn report_unknown_keys(self) {
        let requested_keys = self.requested_keys.borrow();
        for (key, _) in self.entries.iter() {
            let name: &str = key.get_ref();
            if requested_keys.contains(&name) {
                continue;
            }
            let mut message = format!("unknown key `{name}` in {}", self.name);
            if let Some(near) = closest_word(name, &requested_keys) {
                message.push_str(&format!("; did you mean `{near}`?"));
            }
            self.add_finding(key.span().start, message);
        }
    }
}

/// Parses a whole file; a syntax error is then the only finding.
pub(super) fn parse_toml<'t>(source: &TomlSource<'t>) -> Option<Spanned<DeTable<'t>>> {
    match DeTable::parse(source.text) {
        Ok(table) => Some(table),
        Err(error) => {
            let at = error.span().map_or(0, |span: Range<usize>| span.start);
            source.add_finding(at, error.message().to_owned());
            None
        }
    }
}

/// Parses a rate; a number without a unit is per second.
#[must_use]
pub fn parse_rate(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
    let per = match unit.trim() {
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" | "day" => 86_400.0,
        _ => return None,
    };
    let rate = number.trim().parse::<f64>().ok()? / per;
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

fn scalar_text(value: &Spanned<DeValue<'_>>) -> Option<TomlText> {
    let text = match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => return None,
    };
    Some(TomlText { text, offset: value.span().start })
}

fn value_kind_name(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

/// Returns the known word that `word` is most likely a misspelling of.
pub fn closest_word<'k>(word: &str, candidates: &[&'k str]) -> Option<&'k str> {
    let most = (word.chars().count() / 3).max(1);
    let near =
        candidates.iter().map(|candidate| (strsim::levenshtein(word, candidate), *candidate));
    near.filter(|(distance, _)| *distance <= most).min().map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_their_words() {
        assert_eq!(closest_word("wieght", &["weight", "path"]), Some("weight"));
        assert_eq!(closest_word("heeders", &["headers", "header"]), Some("headers"));
        assert_eq!(closest_word("x", &["weight"]), None);
    }

    #[test]
    fn rates_are_read_per_second() {
        let check =
            |text: &str, expected: Option<f64>| assert_eq!(parse_rate(text), expected, "{text}");
        check("50/s", Some(50.0));
        check("30/min", Some(0.5));
        check("7200/h", Some(2.0));
        check("12", Some(12.0));
        for text in ["0/s", "-1/s", "x/s", "5/w", "", "inf/s"] {
            check(text, None);
        }
    }
}
