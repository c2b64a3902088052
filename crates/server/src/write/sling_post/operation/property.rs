//! Properties, as specified by form fields and their hints.

use std::collections::HashSet;

use tympan_content::{JcrDate, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Value, ValueType};

use super::PostOperation;
use crate::failure::Result;
use crate::write::property_protection::is_property_protected;
use crate::write::sling_post::form_field::{FormPropertySpec, PropertySubmission};

impl PostOperation<'_> {
    /// Writes one property as specified by its field and hints. `source` contains the values of the field that
    /// `@ValueFrom` names.
    pub(super) fn write_property(
        &mut self,
        base: &NodePath,
        name: &str,
        spec: &FormPropertySpec,
        source: Option<&[String]>,
    ) -> Result<()> {
        let values = match spec.resolve(source) {
            PropertySubmission::Absent => return Ok(()),
            submission => submission,
        };
        let (path, name) = self.resolve_property_path(base, name)?;
        let before = self.session.read_property(&path, &name)?;
        let (change, is_filled_in) = match values {
            PropertySubmission::Absent => return Ok(()),
            PropertySubmission::Removal => (None, false),
            // Sling leaves a single value unchanged, and removes a list.
            PropertySubmission::Cleared if before.as_ref().is_some_and(Property::is_list) => {
                (None, false)
            }
            PropertySubmission::Cleared => return Ok(()),
            PropertySubmission::Values(values) => {
                match self.autofill_value(&path, &name, &values)? {
                    Some(AutofillValue::Unchanged) => return Ok(()),
                    Some(AutofillValue::Value(filled_in)) => (Some(filled_in), true),
                    None => match typed_change(&name, spec, &values, before.as_ref())? {
                        FormPropertyChange::Nothing => return Ok(()),
                        FormPropertyChange::Removal => (None, false),
                        FormPropertyChange::Value(property) => (Some(property), false),
                    },
                }
            }
        };
        let value = change.clone();
        match change {
            Some(property) if Some(&property) == before.as_ref() => return Ok(()),
            // The repository sets these itself.
            Some(property)
                if is_filled_in && self.is_property_protected(&path, &name, &property)? =>
            {
                return Ok(());
            }
            Some(property) => self.session.set_property(&path, &name, property)?,
            None if before.is_none() => return Ok(()),
            None => drop(self.session.remove_property(&path, &name)?),
        }
        self.requested_properties.add(&path, &name, value, 0);
        self.outcome.changes.push(("modified", vec![format!("{path}/{name}")]));
        Ok(())
    }

    /// Returns the value of a property that Sling fills in when it is sent empty; `None` for all others.
    fn autofill_value(
        &mut self,
        path: &NodePath,
        name: &str,
        values: &[String],
    ) -> Result<Option<AutofillValue>> {
        if !values.iter().all(String::is_empty) {
            return Ok(None);
        }
        let now = || Property::Single(Value::Date(JcrDate::from_system_time(self.now)));
        let user = || Property::text(self.user);
        let short = name.strip_prefix("jcr:").or_else(|| name.strip_prefix("cq:")).unwrap_or(name);
        let (value, is_of_creation) = match short {
            "created" => (now(), true),
            "createdBy" => (user(), true),
            "lastModified" => (now(), false),
            "lastModifiedBy" => (user(), false),
            _ => return Ok(None),
        };
        // Later requests must not change the creator and creation time of a node.
        let is_kept = is_of_creation && self.initial_snapshot.node(path)?.is_some();
        Ok(Some(if is_kept { AutofillValue::Unchanged } else { AutofillValue::Value(value) }))
    }

    fn is_property_protected(
        &mut self,
        path: &NodePath,
        name: &str,
        property: &Property,
    ) -> Result<bool> {
        Ok(self.session.has_node(path)?
            && is_property_protected(&self.session.property_protection(path)?, name, property)?)
    }

    /// Splits a property's path and creates the missing nodes along it.
    fn resolve_property_path(&mut self, base: &NodePath, name: &str) -> Result<(NodePath, String)> {
        let full = if name.starts_with('/') { name.to_owned() } else { format!("{base}/{name}") };
        let (node, name) = full.rsplit_once('/').unwrap_or(("", &full));
        let node = NodePath::root().resolve(node)?;
        if !self.session.has_node(&node)? {
            self.create_with_parents(&node, None)?;
        }
        Ok((node, name.to_owned()))
    }
}

/// The value that the repository fills in for a property that is sent empty.
enum AutofillValue {
    Value(Property),
    /// The node already exists and keeps its value.
    Unchanged,
}

/// The change of a property.
#[derive(Debug, PartialEq, Eq)]
enum FormPropertyChange {
    Value(Property),
    Removal,
    Nothing,
}

/// Parses the values as the type given by the hint or the stored property, or as the default type.
///
/// Several values are always a list, whatever the hint, and blank ones among them are values, as in Sling.
fn typed_change(
    name: &str,
    spec: &FormPropertySpec,
    values: &[String],
    stored: Option<&Property>,
) -> Result<FormPropertyChange> {
    let hint = spec.hint_value("TypeHint").unwrap_or_default();
    let is_name = name == PRIMARY_TYPE || name == MIXIN_TYPES;
    let value_type = match ValueType::find(hint.trim_end_matches("[]")) {
        Some(value_type) => value_type,
        None if is_name => ValueType::Name,
        None => stored.map_or(ValueType::String, Property::value_type),
    };
    let is_list = name == MIXIN_TYPES
        || hint.ends_with("[]")
        || values.len() > 1
        || stored.is_some_and(Property::is_list);
    if spec.has_hint("Patch") {
        return patched_change(stored, value_type, values);
    }
    // A blank name is no type.
    let values: Vec<&String> =
        values.iter().filter(|value| !is_name || !value.is_empty()).collect();
    let read = |text: &&String| parse_property_value(value_type, text);
    if is_list {
        let list = values.iter().map(read).collect::<Result<Vec<_>>>()?;
        return Ok(FormPropertyChange::Value(Property::List(value_type, list)));
    }
    match values.first() {
        None if name == PRIMARY_TYPE => Ok(FormPropertyChange::Nothing),
        None => Ok(FormPropertyChange::Removal),
        Some(text) if text.is_empty() => Ok(FormPropertyChange::Removal),
        Some(text) => Ok(FormPropertyChange::Value(Property::Single(read(text)?))),
    }
}

/// Adds and removes values of a list: `+v` adds `v` unless it is present, `-v` removes every `v`. Without any such
/// step, or if the property is a single value, nothing changes.
fn patched_change(
    stored: Option<&Property>,
    value_type: ValueType,
    steps: &[String],
) -> Result<FormPropertyChange> {
    let stored = match stored {
        Some(Property::Single(_)) => return Ok(FormPropertyChange::Nothing),
        Some(Property::List(_, values)) => values.as_slice(),
        None => &[],
    };
    let key = |value: &Value| (value.value_type() as u8, value.to_text().into_owned());
    let mut present: HashSet<_> = stored.iter().map(key).collect();
    let (mut removed, mut added) = (HashSet::new(), Vec::new());
    let mut is_changed = false;
    for step in steps {
        if let Some(text) = step.strip_prefix('+') {
            let value = parse_property_value(value_type, text)?;
            if present.insert(key(&value)) {
                added.push(value);
                is_changed = true;
            }
        } else if let Some(text) = step.strip_prefix('-') {
            let value = parse_property_value(value_type, text)?;
            if present.remove(&key(&value)) {
                added.retain(|candidate| *candidate != value);
                removed.insert(key(&value));
                is_changed = true;
            }
        }
    }
    if !is_changed {
        return Ok(FormPropertyChange::Nothing);
    }
    let kept = stored.iter().filter(|value| !removed.contains(&key(value))).cloned();
    Ok(FormPropertyChange::Value(Property::List(value_type, kept.chain(added).collect())))
}

/// Parses a value; accepts all date formats of Sling.
fn parse_property_value(value_type: ValueType, text: &str) -> Result<Value> {
    if value_type != ValueType::Date {
        return Ok(Value::parse(value_type, text)?);
    }
    Ok(Value::Date(JcrDate::parse_lenient(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_add_and_remove() {
        let list =
            |texts: &[&str]| Property::parse_list(ValueType::String, texts.to_vec()).unwrap();
        let steps =
            |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let check = |stored: Option<&Property>, texts: &[&str], expected: FormPropertyChange| {
            let change = patched_change(stored, ValueType::String, &steps(texts)).unwrap();
            assert_eq!(change, expected, "{texts:?}");
        };
        let stored = list(&["a", "b", "b"]);
        let expected = FormPropertyChange::Value(list(&["a", "c"]));
        check(Some(&stored), &["+c", "+a", "-b", "ignored"], expected);
        check(Some(&stored), &["+a", "-c", "", "ignored"], FormPropertyChange::Nothing);
        check(Some(&Property::text("a")), &["+c"], FormPropertyChange::Nothing);
        check(None, &["+c"], FormPropertyChange::Value(list(&["c"])));
        check(Some(&stored), &["-b", "+b"], FormPropertyChange::Value(list(&["a", "b"])));
        check(
            Some(&stored),
            &["+c", "-c", "+d"],
            FormPropertyChange::Value(list(&["a", "b", "b", "d"])),
        );
    }
}
