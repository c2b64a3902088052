//! What a `dispatcher.any` file consists of.

use super::Position;

/// How a value was quoted, which decides how a pattern is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quote {
    /// `"…"`: a glob or plain text.
    Double,
    /// `'…'`: a regular expression where patterns are allowed.
    Single,
    /// No quotes: a number or a plain word.
    Bare,
}

/// A value with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The text, escapes resolved and variables replaced.
    pub text: String,
    /// How it was quoted.
    pub quote: Quote,
    /// Where it begins.
    pub at: Position,
}

/// A key with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The name without its slash.
    pub name: String,
    /// Where its slash is.
    pub at: Position,
}

/// Items between braces, or of a whole file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The items in textual order, those of included files in the place of the include.
    pub items: Vec<Item>,
    /// Where the brace opened.
    pub at: Position,
}

/// What follows a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Absent,
    /// One text.
    Text(Text),
    /// Braces.
    Block(Block),
}

/// A key with its value, or a value alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// The label, if there is one.
    pub key: Option<Key>,
    /// The value.
    pub value: Value,
}

impl Item {
    /// Returns where the item begins.
    #[must_use]
    pub fn at(&self) -> Option<&Position> {
        match (&self.key, &self.value) {
            (Some(key), _) => Some(&key.at),
            (None, Value::Text(text)) => Some(&text.at),
            (None, Value::Block(block)) => Some(&block.at),
            (None, Value::Absent) => None,
        }
    }

    /// Returns the label, or nothing for a value alone.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.key.as_ref().map(|key| key.name.as_str())
    }
}
