//! The fields of a POST, sorted into commands, properties with their hints, and files.

use std::collections::BTreeMap;

use crate::failure::{RequestFailure, Result};
use crate::write::form::{FormField, FormFieldValue, FormUpload};
use crate::write::incoming_blob::{Sha256Digest, parse_hex_digest};

/// The values and hints of one property in a form.
#[derive(Debug, Default)]
pub(crate) struct FormPropertySpec {
    /// The values, in order.
    pub(crate) values: Vec<String>,
    /// True if the form contains the property itself, not only its hints.
    has_field: bool,
    /// The hints: `TypeHint`, `Delete`, `DefaultValue`, `MoveFrom`, … with their values.
    pub(crate) hints: BTreeMap<String, Vec<String>>,
}

/// The requested state of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PropertySubmission {
    /// Not submitted: the property stays unchanged.
    Absent,
    /// These values, including blank ones.
    Values(Vec<String>),
    /// Submitted without a value: the property is emptied.
    Cleared,
    /// The property is removed.
    Removal,
}

/// Default value for a blank field: the property is not created.
const IGNORE_DEFAULT_VALUE: &str = ":ignore";
/// Default value for a blank field: the property is removed.
const NULL_DEFAULT_VALUE: &str = ":null";

impl FormPropertySpec {
    /// Resolves the field and its hints, like Sling's `RequestProperty`. `source` contains the values of the field that
    /// `@ValueFrom` names.
    pub(crate) fn resolve(&self, source: Option<&[String]>) -> PropertySubmission {
        let own = self.has_field.then_some(&*self.values);
        let Some(values) = source.or(own) else {
            let default =
                self.hint_value("DefaultValue").filter(|_| self.has_hint("UseDefaultWhenMissing"));
            return match default {
                None | Some(IGNORE_DEFAULT_VALUE) => PropertySubmission::Absent,
                Some(NULL_DEFAULT_VALUE) => PropertySubmission::Removal,
                Some(default) => PropertySubmission::Values(vec![default.to_owned()]),
            };
        };
        let is_blank = matches!(values, [value] if value.is_empty());
        if self.has_hint("IgnoreBlanks") {
            let non_empty_values: Vec<_> =
                values.iter().filter(|value| !value.is_empty()).cloned().collect();
            return if non_empty_values.is_empty() {
                PropertySubmission::Absent
            } else {
                PropertySubmission::Values(non_empty_values)
            };
        }
        match self.hints.get("DefaultValue").map(Vec::as_slice) {
            Some([default]) if is_blank => match default.as_str() {
                IGNORE_DEFAULT_VALUE => PropertySubmission::Cleared,
                NULL_DEFAULT_VALUE => PropertySubmission::Removal,
                default => PropertySubmission::Values(vec![default.to_owned()]),
            },
            _ => PropertySubmission::Values(values.to_vec()),
        }
    }

    /// Returns true if a hint was sent, with any value: in Sling, the presence of a switch is sufficient.
    pub(crate) fn has_hint(&self, name: &str) -> bool {
        self.hints.contains_key(name)
    }

    /// Returns the first value of a hint.
    pub(crate) fn hint_value(&self, name: &str) -> Option<&str> {
        self.hints.get(name)?.first().map(String::as_str)
    }
}

/// A chunk of a file that is uploaded in several requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UploadChunk {
    /// Offset of the chunk in the file, in bytes.
    pub(crate) offset: u64,
    /// Length of the complete file in bytes, if known.
    pub(crate) length: Option<u64>,
    /// True if this is the last chunk, whatever the length.
    pub(crate) is_last: bool,
}

/// The fields of a POST.
#[derive(Debug, Default)]
pub(crate) struct PostFields {
    commands: Vec<(String, String)>,
    /// The index of each property in `properties`.
    property_index: BTreeMap<String, usize>,
    /// Properties by relative or absolute path, in order of appearance.
    pub(crate) properties: Vec<(String, FormPropertySpec)>,
    /// Files by field name.
    pub(crate) files: Vec<(String, FormUpload)>,
    /// The values of fields that others reference by `@ValueFrom`, whether or not they are content themselves.
    source_values: BTreeMap<String, Vec<String>>,
}

impl PostFields {
    /// Classifies the fields of a form.
    pub(crate) fn from_form_fields(fields: Vec<FormField>) -> Self {
        // If any name is a path, only names that are paths are content (Sling's rule).
        let is_path =
            |name: &str| name.starts_with("./") || name.starts_with("../") || name.starts_with('/');
        let only_paths = fields.iter().any(|field| is_path(&field.name));
        let sources = fields.iter().filter_map(|field| match &field.value {
            FormFieldValue::Text(source) if field.name.ends_with("@ValueFrom") => {
                Some(source.clone())
            }
            _ => None,
        });
        let mut values_of: BTreeMap<String, Vec<String>> =
            sources.map(|source| (source, Vec::new())).collect();
        let mut sorted = Self::default();
        for FormField { name, value } in fields {
            if let (Some(values), FormFieldValue::Text(text)) = (values_of.get_mut(&name), &value) {
                values.push(text.clone());
            }
            if name.starts_with(':') {
                match value {
                    FormFieldValue::Text(text) => sorted.commands.push((name, text)),
                    FormFieldValue::File(upload) => sorted.files.push((name, upload)),
                }
                continue;
            }
            let is_content = !name.is_empty() && name != "_charset_" && !name.starts_with("j_");
            let is_content = is_content
                && (!only_paths || is_path(&name) || matches!(value, FormFieldValue::File(_)));
            if is_content {
                sorted.add_field(&name, value);
            }
        }
        values_of.retain(|_, values| !values.is_empty());
        sorted.source_values = values_of;
        sorted
    }

    /// Returns the values of the field that `@ValueFrom` of a property names; `None` if there is no such hint or no
    /// such field.
    pub(crate) fn source_values_of(&self, spec: &FormPropertySpec) -> Option<&[String]> {
        // Several names are ignored, as in Sling.
        let [source] = spec.hints.get("ValueFrom")?.as_slice() else { return None };
        self.source_values.get(source).map(Vec::as_slice)
    }

    fn add_field(&mut self, name: &str, value: FormFieldValue) {
        match value {
            FormFieldValue::File(upload) => {
                self.files.push((strip_dot_slash(name).to_owned(), upload))
            }
            FormFieldValue::Text(text) => match name.rsplit_once('@') {
                Some((name, hint)) if is_property_hint(hint) => {
                    self.property_spec_mut(name)
                        .hints
                        .entry(hint.to_owned())
                        .or_default()
                        .push(text);
                }
                _ => {
                    let spec = self.property_spec_mut(name);
                    spec.has_field = true;
                    spec.values.push(text);
                }
            },
        }
    }

    /// Returns the entry of a property; creates it if it does not exist.
    fn property_spec_mut(&mut self, name: &str) -> &mut FormPropertySpec {
        let name = strip_dot_slash(name);
        let at = self.property_index.entry(name.to_owned()).or_insert_with(|| {
            self.properties.push((name.to_owned(), FormPropertySpec::default()));
            self.properties.len() - 1
        });
        #[expect(
            clippy::indexing_slicing,
            reason = "the index holds positions of entries, which are never removed"
        )]
        let (_, spec) = &mut self.properties[*at];
        spec
    }

    /// Returns true if a command was sent.
    pub(crate) fn has_command(&self, name: &str) -> bool {
        self.commands.iter().any(|(key, _)| key == name)
    }

    /// Returns a hint for a field.
    pub(crate) fn field_hint(&self, field: &str, hint: &str) -> Option<&str> {
        self.properties.iter().find(|(name, _)| name == field)?.1.hint_value(hint)
    }

    /// Returns the chunk of a file that a field contains; `None` if it is the whole file.
    pub(crate) fn upload_chunk(&self, field: &str) -> Result<Option<UploadChunk>> {
        let number = |hint: &str| match self.field_hint(field, hint) {
            None => Ok(None),
            Some(text) => {
                let wrong = || {
                    RequestFailure::bad_request(format!(
                        "`{field}@{hint}` must be a number of bytes"
                    ))
                };
                text.trim().parse::<u64>().map(Some).map_err(|_| wrong())
            }
        };
        let (offset, length) = (number("Offset")?, number("Length")?);
        let is_completed = self.field_hint(field, "Completed") == Some("true");
        let is_part = offset.is_some() || length.is_some() || is_completed;
        Ok(is_part.then(|| UploadChunk {
            offset: offset.unwrap_or(0),
            length,
            is_last: is_completed,
        }))
    }

    /// Returns the SHA-256 digest of the complete file as declared by the client; `None` if it declares none.
    pub(crate) fn upload_digest(&self, field: &str) -> Result<Option<Sha256Digest>> {
        let wrong = || {
            RequestFailure::bad_request(format!(
                "`{field}@Digest` must be a SHA-256 of 64 hexadecimal digits"
            ))
        };
        let digest = self.field_hint(field, "Digest");
        digest.map(|digest| parse_hex_digest(digest).ok_or_else(wrong)).transpose()
    }

    /// Returns the first value of a command such as `:operation`.
    pub(crate) fn command_value(&self, name: &str) -> Option<&str> {
        self.commands.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all values of a command.
    pub(crate) fn command_values(&self, name: &str) -> Vec<&str> {
        self.commands
            .iter()
            .filter(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Returns the first non-empty value of a property.
    pub(crate) fn property_value(&self, name: &str) -> Option<&str> {
        let (_, spec) = self.properties.iter().find(|(key, _)| key == name)?;
        spec.values.iter().map(String::as_str).find(|value| !value.is_empty())
    }
}

/// Removes the leading `./` of a relative path.
fn strip_dot_slash(name: &str) -> &str {
    name.strip_prefix("./").unwrap_or(name)
}

fn is_property_hint(hint: &str) -> bool {
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

    fn fields(pairs: &[(&str, &str)]) -> PostFields {
        let field = |(name, value): &(&str, &str)| FormField {
            name: (*name).to_owned(),
            value: FormFieldValue::Text((*value).to_owned()),
        };
        PostFields::from_form_fields(pairs.iter().map(field).collect())
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
        assert_eq!(fields.command_value(":operation"), Some("nop"));
        let names: Vec<_> = fields.properties.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "old", "mail"]);
        assert_eq!(fields.properties[0].1.values, ["1", "2"]);
        assert_eq!(fields.properties[0].1.hint_value("TypeHint"), Some("Long[]"));
        assert!(!fields.properties[1].1.has_field);
    }

    #[test]
    fn values_are_read_as_sling_reads_them() {
        let check = |form: &str, expected: &str| {
            let pairs: Vec<_> = form.split(' ').filter_map(|pair| pair.split_once('=')).collect();
            let fields = fields(&pairs);
            let (_, spec) = &fields.properties[0];
            let description = match spec.resolve(fields.source_values_of(spec)) {
                PropertySubmission::Values(values) => format!("[{}]", values.join(",")),
                submission => format!("{submission:?}"),
            };
            assert_eq!(description, expected, "{form}");
        };
        check("./m=a ./m= ./m=b", "[a,,b]");
        check("./m= ./m=", "[,]");
        check("./m=", "[]");
        check("./m= ./m@DefaultValue=d", "[d]");
        check("./m=a ./m@DefaultValue=d", "[a]");
        check("./m= ./m= ./m@DefaultValue=d", "[,]");
        check("./m= ./m@DefaultValue=d ./m@DefaultValue=e", "[]");
        check("./m= ./m@DefaultValue=:ignore", "Cleared");
        check("./m= ./m@DefaultValue=:null", "Removal");
        check("./m@DefaultValue=d", "Absent");
        check("./m@DefaultValue=d ./m@UseDefaultWhenMissing=true", "[d]");
        check("./m@DefaultValue=:null ./m@UseDefaultWhenMissing=yes", "Removal");
        check("./m@DefaultValue=:ignore ./m@UseDefaultWhenMissing=yes", "Absent");
        check("./m=a ./m= ./m@IgnoreBlanks=true", "[a]");
        check("./m= ./m= ./m@IgnoreBlanks=yes", "Absent");
        check("./m= ./m@IgnoreBlanks=true ./m@DefaultValue=d", "Absent");
        check("./m@ValueFrom=other other=v other=w", "[v,w]");
        check("./m@ValueFrom=./o ./o=v", "[v]");
        check("./m@ValueFrom=none other=v", "Absent");
        check("./m=a ./m@ValueFrom=none", "[a]");
        check("./m@TypeHint=String", "Absent");
    }

    #[test]
    fn plain_names_are_content_where_no_name_is_a_path() {
        let fields =
            fields(&[("title", "x"), ("j_username", "no"), ("who@there", "a hint that is none")]);
        let names: Vec<_> = fields.properties.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["title", "who@there"]);
    }
}
