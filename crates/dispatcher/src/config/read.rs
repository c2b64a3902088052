//! Typed access to items, with a finding for everything that does not fit.

use std::time::Duration;

use crate::any::{Block, Diagnostic, Key, Position, Text, Value, nearest};
use crate::any::{Findings, Item};
use crate::pattern::Pattern;

/// A labelled item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a Key,
    pub(super) value: &'a Value,
}

impl<'a> Entry<'a> {
    pub(super) fn name(&self) -> &'a str {
        &self.key.name
    }

    pub(super) fn at(&self) -> &'a Position {
        &self.key.at
    }
}

/// Collects findings while items are turned into values.
pub(super) struct Reader {
    findings: Findings,
}

impl Reader {
    pub(super) fn new(diagnostics: Vec<Diagnostic>) -> Self {
        Self { findings: Findings(diagnostics) }
    }

    pub(super) fn finish(self) -> Vec<Diagnostic> {
        self.findings.0
    }

    pub(super) fn error(&mut self, at: &Position, message: impl Into<String>) {
        self.findings.error(at, message);
    }

    pub(super) fn warn(&mut self, at: &Position, message: impl Into<String>) {
        self.findings.warn(at, message);
    }

    /// Returns the labelled items of a section; values alone are reported and skipped.
    pub(super) fn entries<'a>(&mut self, block: &'a Block) -> Vec<Entry<'a>> {
        let mut entries = Vec::new();
        for item in &block.items {
            match (&item.key, item.at()) {
                (Some(key), _) => entries.push(Entry { key, value: &item.value }),
                (None, Some(at)) => {
                    self.warn(at, "a value without a key is skipped; put a `/key` before it");
                }
                (None, None) => {}
            }
        }
        entries
    }

    /// Returns the blocks of a list, whose labels are free or absent; anything else is reported and skipped.
    pub(super) fn rules<'a>(&mut self, block: &'a Block) -> Vec<(&'a Item, &'a Block)> {
        let mut rules: Vec<(&Item, &Block)> = Vec::new();
        for item in &block.items {
            let Some(at) = item.at() else { continue };
            let Value::Block(inner) = &item.value else {
                self.warn(at, "expected a rule in braces; this is skipped");
                continue;
            };
            let name = item.name();
            if name.is_some() && rules.iter().any(|(other, _)| other.name() == name) {
                let name = name.unwrap_or_default();
                self.warn(
                    at,
                    format!("the label `/{name}` occurs twice in this list; both rules count"),
                );
            }
            rules.push((item, inner));
        }
        rules
    }

    /// Returns the plain values of a list.
    pub(super) fn strings<'a>(&mut self, entry: &Entry<'a>) -> Vec<&'a Text> {
        let block = match entry.value {
            Value::Block(block) => block,
            Value::Text(text) => return vec![text],
            Value::Absent => return Vec::new(),
        };
        let mut strings = Vec::new();
        for item in &block.items {
            match (&item.value, item.at()) {
                (Value::Text(text), _) => strings.push(text),
                (Value::Absent | Value::Block(_), Some(at)) => {
                    self.warn(at, "expected a value in quotes; this is skipped");
                }
                (Value::Absent | Value::Block(_), None) => {}
            }
        }
        strings
    }

    pub(super) fn unknown(&mut self, entry: &Entry<'_>, known: &[&str]) {
        let name = entry.name();
        let hint = match nearest(name, known) {
            Some(near) => format!("; did you mean `/{near}`?"),
            None => String::new(),
        };
        self.warn(entry.at(), format!("entry not recognized: '/{name}'; it is skipped{hint}"));
    }

    pub(super) fn value<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a Text> {
        match entry.value {
            Value::Text(text) => Some(text),
            Value::Absent => {
                self.warn(entry.at(), format!("`/{}` has no value", entry.name()));
                None
            }
            Value::Block(_) => {
                self.warn(entry.at(), format!("`/{}` takes one value, not a block", entry.name()));
                None
            }
        }
    }

    pub(super) fn text(&mut self, entry: &Entry<'_>) -> Option<String> {
        self.value(entry).map(|text| text.text.clone())
    }

    pub(super) fn block<'a>(&mut self, entry: &Entry<'a>) -> Option<&'a Block> {
        match entry.value {
            Value::Block(block) => Some(block),
            Value::Text(_) | Value::Absent => {
                self.warn(
                    entry.at(),
                    format!("`/{}` takes a block in braces; it is skipped", entry.name()),
                );
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, entry: &Entry<'_>) -> Option<bool> {
        let text = self.value(entry)?;
        match text.text.as_str() {
            "1" => Some(true),
            "0" => Some(false),
            word if word.eq_ignore_ascii_case("true") => Some(true),
            word if word.eq_ignore_ascii_case("false") => Some(false),
            other => {
                self.warn(&text.at, format!("`/{}` is `1` or `0`, not `{other}`", entry.name()));
                None
            }
        }
    }

    pub(super) fn number(&mut self, entry: &Entry<'_>) -> Option<u32> {
        let text = self.value(entry)?;
        let number = text.text.trim().parse().ok();
        if number.is_none() {
            self.warn(&text.at, format!("`/{}` is a number, not `{}`", entry.name(), text.text));
        }
        number
    }

    pub(super) fn port(&mut self, entry: &Entry<'_>) -> Option<u16> {
        let number = self.number(entry)?;
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        if port.is_none() {
            let name = entry.name();
            self.warn(entry.at(), format!("`/{name}` is a number from 1 to 65535, not `{number}`"));
        }
        port
    }

    pub(super) fn octal(&mut self, entry: &Entry<'_>) -> Option<u32> {
        let text = self.value(entry)?;
        let number = u32::from_str_radix(text.text.trim(), 8).ok().filter(|mode| *mode <= 0o7777);
        if number.is_none() {
            self.warn(
                &text.at,
                format!("`/{}` is octal like `0755`, not `{}`", entry.name(), text.text),
            );
        }
        number
    }

    pub(super) fn seconds(&mut self, entry: &Entry<'_>) -> Option<Duration> {
        let seconds = self.number(entry)?;
        Some(Duration::from_secs(seconds.into()))
    }

    pub(super) fn milliseconds(&mut self, entry: &Entry<'_>) -> Option<Duration> {
        let milliseconds = self.number(entry)?;
        Some(Duration::from_millis(milliseconds.into()))
    }

    /// Compiles a pattern; a broken one is an error, and acts to the safe side until it is mended.
    pub(super) fn pattern(&mut self, text: &Text) -> Pattern {
        Pattern::parse(text).unwrap_or_else(|reason| {
            self.error(
                &text.at,
                format!("cannot read the regular expression '{}': {reason}", text.text),
            );
            Pattern::Broken
        })
    }
}
