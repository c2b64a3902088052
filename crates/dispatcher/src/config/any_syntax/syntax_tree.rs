//! The syntax tree of a `dispatcher.any` file.

use super::SourcePosition;

/// The quoting of a value, which decides how a pattern is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuoteStyle {
    /// `"…"`: a glob or plain text.
    Double,
    /// `'…'`: a regular expression where patterns are allowed.
    Single,
    /// No quotes: a number or a plain word.
    Bare,
}

/// A value with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigText {
    /// The text, with escapes resolved and variables replaced.
    pub text: String,
    /// The quoting of the value.
    pub quote: QuoteStyle,
    /// The position of its first character.
    pub position: SourcePosition,
}

/// A key with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigKey {
    /// The name without its leading slash.
    pub name: String,
    /// The position of its slash.
    pub position: SourcePosition,
}

/// The items between braces, or of a whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigBlock {
    /// The items in textual order; the items of included files stand at the position of the include.
    pub items: Vec<ConfigItem>,
    /// The position of the opening brace.
    pub position: SourcePosition,
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigValue {
    /// No value.
    Absent,
    /// A single text.
    Text(ConfigText),
    /// A block in braces.
    Block(ConfigBlock),
}

/// A key with its value, or a value without a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigItem {
    /// The key; `None` for a value without a key.
    pub key: Option<ConfigKey>,
    /// The value.
    pub value: ConfigValue,
}

impl ConfigItem {
    /// Returns the position at which the item begins.
    #[must_use]
    pub fn position(&self) -> Option<&SourcePosition> {
        match (&self.key, &self.value) {
            (Some(key), _) => Some(&key.position),
            (None, ConfigValue::Text(text)) => Some(&text.position),
            (None, ConfigValue::Block(block)) => Some(&block.position),
            (None, ConfigValue::Absent) => None,
        }
    }

    /// Returns the name of the key; `None` for a value without a key.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.name.as_str())
    }
}
