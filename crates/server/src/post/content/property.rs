//! Properties, as their fields and the hints beside them say.

use tympan_content::{Date, MIXIN_TYPES, NodePath, PRIMARY_TYPE, Property, Value, ValueType};

use super::Work;
use crate::failure::Result;
use crate::post::fields::{Spec, Submission};
use crate::settable::is_protected;

impl Work<'_> {
    /// Writes one property as its field and hints say. `source` has the values of the field that `@ValueFrom` names.
    pub(super) fn write_property(
        &mut self,
        base: &NodePath,
        name: &str,
        spec: &Spec,
        source: Option<&[String]>,
    ) -> Result<()> {
        let values = match spec.submission(source) {
            Submission::Absent => return Ok(()),
            submission => submission,
        };
        let (path, name) = self.property_place(base, name)?;
        let before = self.session.node(&path)?.and_then(|node| node.property(&name));
        let (change, is_filled_in) = match values {
            Submission::Absent => return Ok(()),
            Submission::Removal => (None, false),
            // Sling leaves a single value alone, and removes a list.
            Submission::Clearing if before.as_ref().is_some_and(Property::is_list) => (None, false),
            Submission::Clearing => return Ok(()),
            Submission::Values(values) => match self.filled_in(&path, &name, &values)? {
                Some(FilledIn::Kept) => return Ok(()),
                Some(FilledIn::Value(filled_in)) => (Some(filled_in), true),
                None => match typed(&name, spec, &values, before.as_ref())? {
                    Change::Nothing => return Ok(()),
                    Change::Removal => (None, false),
                    Change::Value(property) => (Some(property), false),
                },
            },
        };
        let value = change.clone();
        match change {
            Some(property) if Some(&property) == before.as_ref() => return Ok(()),
            // The repository fills these in itself.
            Some(property) if is_filled_in && self.is_protected(&path, &name, &property)? => {
                return Ok(());
            }
            Some(property) => self.session.set_property(&path, &name, property)?,
            None if before.is_none() => return Ok(()),
            None => drop(self.session.remove_property(&path, &name)?),
        }
        self.set.add(&path, &name, value, 0);
        self.done.changes.push(("modified", vec![format!("{path}/{name}")]));
        Ok(())
    }

    /// Returns the value of the properties that Sling fills in when they are sent empty; nothing for all others.
    fn filled_in(
        &mut self,
        path: &NodePath,
        name: &str,
        values: &[String],
    ) -> Result<Option<FilledIn>> {
        if !values.iter().all(String::is_empty) {
            return Ok(None);
        }
        let now = || Property::Single(Value::Date(Date::from_system_time(self.now)));
        let user = || Property::text(self.user);
        let short = name.strip_prefix("jcr:").or_else(|| name.strip_prefix("cq:")).unwrap_or(name);
        let (value, is_of_creation) = match short {
            "created" => (now(), true),
            "createdBy" => (user(), true),
            "lastModified" => (now(), false),
            "lastModifiedBy" => (user(), false),
            _ => return Ok(None),
        };
        // Who made a node, and when, is not for later requests to say.
        let is_kept = is_of_creation && self.begun.node(path)?.is_some();
        Ok(Some(if is_kept { FilledIn::Kept } else { FilledIn::Value(value) }))
    }

    fn is_protected(&mut self, path: &NodePath, name: &str, property: &Property) -> Result<bool> {
        match self.session.node(path)? {
            Some(node) => is_protected(&node, name, property),
            None => Ok(false),
        }
    }

    /// Splits a property's path and makes the nodes on the way.
    fn property_place(&mut self, base: &NodePath, name: &str) -> Result<(NodePath, String)> {
        let full = if name.starts_with('/') { name.to_owned() } else { format!("{base}/{name}") };
        let (node, name) = full.rsplit_once('/').unwrap_or(("", &full));
        let node = NodePath::root().resolve(node)?;
        if self.session.node(&node)?.is_none() {
            self.create(&node, None)?;
        }
        Ok((node, name.to_owned()))
    }
}

/// What the repository fills in for a property that is sent empty.
enum FilledIn {
    Value(Property),
    /// The node is there already, and keeps what it has.
    Kept,
}

/// What becomes of a property.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Value(Property),
    Removal,
    Nothing,
}

/// Reads the values as the type that the hint, the stored property or nobody names.
///
/// Several values are a list whatever the hint says, and blanks among them are values, as in Sling.
fn typed(name: &str, spec: &Spec, values: &[String], stored: Option<&Property>) -> Result<Change> {
    let hint = spec.hint("TypeHint").unwrap_or_default();
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
        return patched(stored, value_type, values);
    }
    // No type has a blank name.
    let values: Vec<&String> =
        values.iter().filter(|value| !is_name || !value.is_empty()).collect();
    let read = |text: &&String| read_value(value_type, text);
    if is_list {
        let list = values.iter().map(read).collect::<Result<Vec<_>>>()?;
        return Ok(Change::Value(Property::List(value_type, list)));
    }
    match values.first() {
        None if name == PRIMARY_TYPE => Ok(Change::Nothing),
        None => Ok(Change::Removal),
        Some(text) if text.is_empty() => Ok(Change::Removal),
        Some(text) => Ok(Change::Value(Property::Single(read(text)?))),
    }
}

/// Adds and removes values of a list: `+v` adds `v` unless it is there, `-v` removes every `v`. Without any such step, and
/// where a single value is, nothing changes.
fn patched(stored: Option<&Property>, value_type: ValueType, steps: &[String]) -> Result<Change> {
    let mut values = match stored {
        Some(Property::Single(_)) => return Ok(Change::Nothing),
        Some(Property::List(_, values)) => values.clone(),
        None => Vec::new(),
    };
    let mut is_changed = false;
    for step in steps {
        if let Some(text) = step.strip_prefix('+') {
            let value = read_value(value_type, text)?;
            if !values.contains(&value) {
                values.push(value);
                is_changed = true;
            }
        } else if let Some(text) = step.strip_prefix('-') {
            let value = read_value(value_type, text)?;
            let before = values.len();
            values.retain(|one| *one != value);
            is_changed |= values.len() != before;
        }
    }
    match is_changed {
        true => Ok(Change::Value(Property::List(value_type, values))),
        false => Ok(Change::Nothing),
    }
}

/// Reads a value; dates in all the forms that Sling takes.
fn read_value(value_type: ValueType, text: &str) -> Result<Value> {
    if value_type != ValueType::Date {
        return Ok(Value::parse(value_type, text)?);
    }
    Ok(Value::Date(Date::parse_lenient(text)?))
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
        let check = |stored: Option<&Property>, texts: &[&str], expected: Change| {
            let change = patched(stored, ValueType::String, &steps(texts)).unwrap();
            assert_eq!(change, expected, "{texts:?}");
        };
        let stored = list(&["a", "b", "b"]);
        let expected = Change::Value(list(&["a", "c"]));
        check(Some(&stored), &["+c", "+a", "-b", "ignored"], expected);
        check(Some(&stored), &["+a", "-c", "", "ignored"], Change::Nothing);
        check(Some(&Property::text("a")), &["+c"], Change::Nothing);
        check(None, &["+c"], Change::Value(list(&["c"])));
    }
}
