//! Typed access to items, with a diagnostic for every item that does not fit.

use std::time::Duration;

use crate::config::any_syntax::{
    ConfigBlock, ConfigDiagnostic, ConfigKey, ConfigText, ConfigValue, SourcePosition, nearest_key,
};
use crate::config::any_syntax::{ConfigItem, DiagnosticCollector};
use crate::config::pattern::RulePattern;

/// A labelled item.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConfigEntry<'a> {
    pub(super) key: &'a ConfigKey,
    pub(super) value: &'a ConfigValue,
}

impl<'a> ConfigEntry<'a> {
    pub(super) fn name(&self) -> &'a str {
        &self.key.name
    }

    pub(super) fn position(&self) -> &'a SourcePosition {
        &self.key.position
    }
}

/// Collects diagnostics while items are converted to values.
pub(super) struct ConfigReader {
    diagnostics: DiagnosticCollector,
}

impl ConfigReader {
    pub(super) fn new(diagnostics: Vec<ConfigDiagnostic>) -> Self {
        Self { diagnostics: DiagnosticCollector(diagnostics) }
    }

    pub(super) fn finish(self) -> Vec<ConfigDiagnostic> {
        self.diagnostics.0
    }

    pub(super) fn add_error(&mut self, at: &SourcePosition, message: impl Into<String>) {
        self.diagnostics.add_error(at, message);
    }

    pub(super) fn add_warning(&mut self, at: &SourcePosition, message: impl Into<String>) {
        self.diagnostics.add_warning(at, message);
    }

    /// Returns the labelled items of a section; values without a label are reported and skipped.
    pub(super) fn labelled_entries<'a>(&mut self, block: &'a ConfigBlock) -> Vec<ConfigEntry<'a>> {
        let mut entries = Vec::new();
        for item in &block.items {
            match (&item.key, item.position()) {
                (Some(key), _) => entries.push(ConfigEntry { key, value: &item.value }),
                (None, Some(at)) => {
                    self.add_warning(
                        at,
                        "a value without a key is skipped; put a `/key` before it",
                    );
                }
                (None, None) => {}
            }
        }
        entries
    }

    /// Returns the blocks of a list, whose labels are arbitrary or absent; other items are reported and skipped.
    pub(super) fn rule_blocks<'a>(
        &mut self,
        block: &'a ConfigBlock,
    ) -> Vec<(&'a ConfigItem, &'a ConfigBlock)> {
        let mut rules: Vec<(&ConfigItem, &ConfigBlock)> = Vec::new();
        for item in &block.items {
            let Some(at) = item.position() else { continue };
            let ConfigValue::Block(inner) = &item.value else {
                self.add_warning(at, "expected a rule in braces; this is skipped");
                continue;
            };
            let name = item.name();
            if name.is_some() && rules.iter().any(|(rule, _)| rule.name() == name) {
                let name = name.unwrap_or_default();
                self.add_warning(
                    at,
                    format!("the label `/{name}` occurs twice in this list; both rules apply"),
                );
            }
            rules.push((item, inner));
        }
        rules
    }

    /// Returns the plain values of a list.
    pub(super) fn plain_values<'a>(&mut self, entry: &ConfigEntry<'a>) -> Vec<&'a ConfigText> {
        let block = match entry.value {
            ConfigValue::Block(block) => block,
            ConfigValue::Text(text) => return vec![text],
            ConfigValue::Absent => return Vec::new(),
        };
        let mut strings = Vec::new();
        for item in &block.items {
            match (&item.value, item.position()) {
                (ConfigValue::Text(text), _) => strings.push(text),
                (ConfigValue::Absent | ConfigValue::Block(_), Some(at)) => {
                    self.add_warning(at, "expected a value in quotes; this is skipped");
                }
                (ConfigValue::Absent | ConfigValue::Block(_), None) => {}
            }
        }
        strings
    }

    pub(super) fn warn_of_unknown_key(&mut self, entry: &ConfigEntry<'_>, candidates: &[&str]) {
        let name = entry.name();
        let hint = match nearest_key(name, candidates) {
            Some(near) => format!("; did you mean `/{near}`?"),
            None => String::new(),
        };
        self.add_warning(
            entry.position(),
            format!("entry not recognized: '/{name}'; it is skipped{hint}"),
        );
    }

    pub(super) fn read_value<'a>(&mut self, entry: &ConfigEntry<'a>) -> Option<&'a ConfigText> {
        match entry.value {
            ConfigValue::Text(text) => Some(text),
            ConfigValue::Absent => {
                self.add_warning(entry.position(), format!("`/{}` has no value", entry.name()));
                None
            }
            ConfigValue::Block(_) => {
                self.add_warning(
                    entry.position(),
                    format!("`/{}` must be one value, not a block", entry.name()),
                );
                None
            }
        }
    }

    pub(super) fn read_text(&mut self, entry: &ConfigEntry<'_>) -> Option<String> {
        self.read_value(entry).map(|text| text.text.clone())
    }

    pub(super) fn read_block<'a>(&mut self, entry: &ConfigEntry<'a>) -> Option<&'a ConfigBlock> {
        match entry.value {
            ConfigValue::Block(block) => Some(block),
            ConfigValue::Text(_) | ConfigValue::Absent => {
                self.add_warning(
                    entry.position(),
                    format!("`/{}` must be a block in braces; it is skipped", entry.name()),
                );
                None
            }
        }
    }

    pub(super) fn read_boolean(&mut self, entry: &ConfigEntry<'_>) -> Option<bool> {
        let text = self.read_value(entry)?;
        match text.text.as_str() {
            "1" => Some(true),
            "0" => Some(false),
            keyword if keyword.eq_ignore_ascii_case("true") => Some(true),
            keyword if keyword.eq_ignore_ascii_case("false") => Some(false),
            other => {
                self.add_warning(
                    &text.position,
                    format!("`/{}` must be `1` or `0`, not `{other}`", entry.name()),
                );
                None
            }
        }
    }

    pub(super) fn read_number(&mut self, entry: &ConfigEntry<'_>) -> Option<u32> {
        let text = self.read_value(entry)?;
        let number = text.text.trim().parse().ok();
        if number.is_none() {
            self.add_warning(
                &text.position,
                format!("`/{}` must be a number, not `{}`", entry.name(), text.text),
            );
        }
        number
    }

    pub(super) fn read_port(&mut self, entry: &ConfigEntry<'_>) -> Option<u16> {
        let number = self.read_number(entry)?;
        let port = u16::try_from(number).ok().filter(|port| *port > 0);
        if port.is_none() {
            let name = entry.name();
            self.add_warning(
                entry.position(),
                format!("`/{name}` must be a number from 1 to 65535, not `{number}`"),
            );
        }
        port
    }

    pub(super) fn read_octal(&mut self, entry: &ConfigEntry<'_>) -> Option<u32> {
        let text = self.read_value(entry)?;
        let number = u32::from_str_radix(text.text.trim(), 8).ok().filter(|mode| *mode <= 0o7777);
        if number.is_none() {
            self.add_warning(
                &text.position,
                format!("`/{}` must be octal such as `0755`, not `{}`", entry.name(), text.text),
            );
        }
        number
    }

    pub(super) fn read_seconds(&mut self, entry: &ConfigEntry<'_>) -> Option<Duration> {
        let seconds = self.read_number(entry)?;
        Some(Duration::from_secs(seconds.into()))
    }

    pub(super) fn read_milliseconds(&mut self, entry: &ConfigEntry<'_>) -> Option<Duration> {
        let milliseconds = self.read_number(entry)?;
        Some(Duration::from_millis(milliseconds.into()))
    }

    /// Compiles a pattern; a broken pattern is reported as an error and acts on the safe side.
    pub(super) fn compile_pattern(&mut self, text: &ConfigText) -> RulePattern {
        RulePattern::parse(text).unwrap_or_else(|reason| {
            self.add_error(
                &text.position,
                format!("cannot read the regular expression '{}': {reason}", text.text),
            );
            RulePattern::Invalid
        })
    }
}
