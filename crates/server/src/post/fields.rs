//! The fields of a POST, sorted into commands, properties with their hints, and files.

use std::collections::BTreeMap;

use crate::arrived::{Sha256, parse_hex};
use crate::failure::{Failure, Result};
use crate::form::{Field, FieldValue, Upload};

/// What a form says about one property.
#[derive(Debug, Default)]
pub(crate) struct Spec {
    /// The values, in order.
    pub(crate) values: Vec<String>,
    /// Whether the property itself was a field, and not only its hints.
    pub(crate) is_given: bool,
    /// The hints: `TypeHint`, `Delete`, `DefaultValue`, `MoveFrom`, … with their values.
    pub(crate) hints: BTreeMap<String, Vec<String>>,
}

impl Spec {
    /// Returns the first value of a hint.
    pub(crate) fn hint(&self, name: &str) -> Option<&str> {
        self.hints.get(name)?.first().map(String::as_str)
    }
}

/// A part of a file that comes in several requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// How many bytes come before it.
    pub(crate) offset: u64,
    /// How long the whole file is, if that is known.
    pub(crate) length: Option<u64>,
    /// Whether it is the last part, whatever the length.
    pub(crate) is_completed: bool,
}

/// The fields of a POST.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    commands: Vec<(String, String)>,
    /// Where each property stands in `properties`.
    index: BTreeMap<String, usize>,
    /// Properties by relative or absolute path, in order of appearance.
    pub(crate) properties: Vec<(String, Spec)>,
    /// Files with the names of their fields.
    pub(crate) files: Vec<(String, Upload)>,
}

impl Fields {
    /// Sorts the fields of a form.
    pub(crate) fn new(fields: Vec<Field>) -> Self {
        // As soon as one name is a path, only such names are content (Sling's rule).
        let is_path =
            |name: &str| name.starts_with("./") || name.starts_with("../") || name.starts_with('/');
        let only_paths = fields.iter().any(|field| is_path(&field.name));
        let mut sorted = Self::default();
        for Field { name, value } in fields {
            if name.starts_with(':') {
                match value {
                    FieldValue::Text(text) => sorted.commands.push((name, text)),
                    FieldValue::File(upload) => sorted.files.push((name, upload)),
                }
                continue;
            }
            let is_content = !name.is_empty() && name != "_charset_" && !name.starts_with("j_");
            let is_content = is_content
                && (!only_paths || is_path(&name) || matches!(value, FieldValue::File(_)));
            if is_content {
                sorted.add(&name, value);
            }
        }
        sorted
    }

    fn add(&mut self, name: &str, value: FieldValue) {
        match value {
            FieldValue::File(upload) => self.files.push((strip(name).to_owned(), upload)),
            FieldValue::Text(text) => match name.rsplit_once('@') {
                Some((name, hint)) if is_hint(hint) => {
                    self.spec(name).hints.entry(hint.to_owned()).or_default().push(text);
                }
                _ => {
                    let spec = self.spec(name);
                    spec.is_given = true;
                    spec.values.push(text);
                }
            },
        }
    }

    /// Returns what is known of a property, which is new if it was not met before.
    fn spec(&mut self, name: &str) -> &mut Spec {
        let name = strip(name);
        let at = self.index.entry(name.to_owned()).or_insert_with(|| {
            self.properties.push((name.to_owned(), Spec::default()));
            self.properties.len() - 1
        });
        #[expect(
            clippy::indexing_slicing,
            reason = "the index holds positions of entries, which are never removed"
        )]
        let (_, spec) = &mut self.properties[*at];
        spec
    }

    /// Tells whether a command was sent.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.commands.iter().any(|(known, _)| known == name)
    }

    /// Returns a hint for a field.
    pub(crate) fn hint(&self, field: &str, hint: &str) -> Option<&str> {
        self.properties.iter().find(|(name, _)| name == field)?.1.hint(hint)
    }

    /// Returns which part of a file a field brings; nothing if it is the whole file.
    pub(crate) fn chunk(&self, field: &str) -> Result<Option<Chunk>> {
        let number = |hint: &str| match self.hint(field, hint) {
            None => Ok(None),
            Some(text) => {
                let wrong =
                    || Failure::bad_request(format!("`{field}@{hint}` is a number of bytes"));
                text.trim().parse::<u64>().map(Some).map_err(|_| wrong())
            }
        };
        let (offset, length) = (number("Offset")?, number("Length")?);
        let is_completed = self.hint(field, "Completed") == Some("true");
        let is_part = offset.is_some() || length.is_some() || is_completed;
        Ok(is_part.then(|| Chunk { offset: offset.unwrap_or(0), length, is_completed }))
    }

    /// Returns the SHA-256 that the sender says a file has, whole; nothing if it says nothing.
    pub(crate) fn digest(&self, field: &str) -> Result<Option<Sha256>> {
        let wrong = || {
            Failure::bad_request(format!("`{field}@Digest` is a SHA-256 in 64 hexadecimal digits"))
        };
        let digest = self.hint(field, "Digest");
        digest.map(|digest| parse_hex(digest).ok_or_else(wrong)).transpose()
    }

    /// Returns the first value of a command such as `:operation`.
    pub(crate) fn command(&self, name: &str) -> Option<&str> {
        self.commands.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a command.
    pub(crate) fn commands(&self, name: &str) -> Vec<&str> {
        self.commands
            .iter()
            .filter(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Returns the first non-empty value of a property.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let (_, spec) = self.properties.iter().find(|(known, _)| known == name)?;
        spec.values.iter().map(String::as_str).find(|value| !value.is_empty())
    }
}

/// Cuts the `./` in front of a relative path.
fn strip(name: &str) -> &str {
    name.strip_prefix("./").unwrap_or(name)
}

fn is_hint(hint: &str) -> bool {
    matches!(
        hint,
        "TypeHint"
            | "Delete"
            | "DefaultValue"
            | "UseDefaultWhenMissing"
            | "IgnoreBlanks"
            | "ValueFrom"
            | "MoveFrom"
            | "CopyFrom"
            | "Patch"
            | "Length"
            | "Offset"
            | "Completed"
            | "Digest"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Fields {
        let field = |(name, value): &(&str, &str)| Field {
            name: (*name).to_owned(),
            value: FieldValue::Text((*value).to_owned()),
        };
        Fields::new(pairs.iter().map(field).collect())
    }

    #[test]
    fn sorts_commands_properties_and_hints() {
        let fields = fields(&[
            (":operation", "nop"),
            ("./a", "1"),
            ("./a", "2"),
            ("./a@TypeHint", "Long[]"),
            ("./old@Delete", "true"),
            ("plain", "is left out beside paths"),
            ("_charset_", "utf-8"),
            ("./mail", "ann@example.org"),
        ]);
        assert_eq!(fields.command(":operation"), Some("nop"));
        let names: Vec<_> = fields.properties.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "old", "mail"]);
        assert_eq!(fields.properties[0].1.values, ["1", "2"]);
        assert_eq!(fields.properties[0].1.hint("TypeHint"), Some("Long[]"));
        assert!(!fields.properties[1].1.is_given);
    }

    #[test]
    fn plain_names_are_content_where_no_name_is_a_path() {
        let fields =
            fields(&[("title", "x"), ("j_username", "no"), ("who@there", "a hint that is none")]);
        let names: Vec<_> = fields.properties.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["title", "who@there"]);
    }
}
