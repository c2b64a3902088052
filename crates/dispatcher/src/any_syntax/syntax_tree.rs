//! What a `dispatcher.any` file consists of.

use super::SourcePosition;

/// How a value was quoted, which decides how a pattern is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuoteStyle {
    /// `"…"`: a glob or plain text.
    Double,
    /// `'…'`: a regular expression where patterns are allowed.
    Single,
    /// No quotes: a number or a plain word.
    Bare,
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigText {
    /// The text, escapes resolved and variables replaced.
    pub text: String,
    /// How it was quoted.
    pub quote: QuoteStyle,
    /// Where it begins.
    pub position: SourcePosition,
}

/// A key with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigKey {
    /// The name without its slash.
    pub name: String,
    /// Where its slash is.
    pub position: SourcePosition,
}

/// Items between braces, or of a whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigBlock {
    /// The items in textual order, those of included files in the place of the include.
    pub items: Vec<ConfigItem>,
    /// Where the brace opened.
    pub position: SourcePosition,
}

/// What follows a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigValue {
    /// Nothing.
    Absent,
    /// One text.
    Text(ConfigText),
    /// Braces.
    Block(ConfigBlock),
}

/// A key with its value, or a value alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigItem {
    /// The label, if there is one.
    pub key: Option<ConfigKey>,
    /// The value.
    pub value: ConfigValue,
}

impl ConfigItem {
    /// Returns where the item begins.
    #[must_use]
    pub fn position(&self) -> Option<&SourcePosition> {
        match (&self.key, &self.value) {
            (Some(key), _) => Some(&key.position),
            (None, ConfigValue::Text(text)) => Some(&text.position),
            (None, ConfigValue::Block(block)) => Some(&block.position),
            (None, ConfigValue::Absent) => None,
        }
    }

    /// Returns the label, or nothing for a value alone.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.name.as_str())
    }
}
