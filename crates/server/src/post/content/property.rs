//! Properties, as their fields and the hints beside them say.

use tympan_content::{Date, NodePath, PRIMARY_TYPE, Property, Value, ValueType};

use super::Work;
use crate::failure::Result;
use crate::post::fields::Spec;
use crate::settable::is_protected;

impl Work<'_> {
    /// Writes one property as its field and hints say.
    pub(super) fn write_property(
        &mut self,
        base: &NodePath,
        name: &str,
        spec: &Spec,
        source: Option<Vec<String>>,
    ) -> Result<()> {
        let (path, name) = self.property_place(base, name)?;
        let mut values = source.unwrap_or_else(|| spec.values.clone());
        if spec.hint("IgnoreBlanks") == Some("true") {
            values.retain(|value| !value.is_empty());
        }
        let is_absent = !spec.is_given && spec.hint("ValueFrom").is_none();
        let is_blank = values.iter().all(String::is_empty);
        if let Some(default) = spec.hint("DefaultValue")
            && ((is_absent && spec.hint("UseDefaultWhenMissing") == Some("true"))
                || (!is_absent && is_blank))
        {
            values = vec![default.to_owned()];
        }
        if values.is_empty() && (is_absent || spec.hint("IgnoreBlanks") == Some("true")) {
            return Ok(());
        }
        let filled_in = self.filled_in(&name, &values);
        let is_filled_in = filled_in.is_some();
        let change = filled_in
            .map_or_else(|| self.typed(&path, &name, spec, &values), |auto| Ok(Some(auto)))?;
        let before = self.session.node(&path)?.and_then(|node| node.property(&name));
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

    /// Returns the value of the properties that Sling fills in when they are sent empty.
    fn filled_in(&self, name: &str, values: &[String]) -> Option<Property> {
        if values != [""] {
            return None;
        }
        match name.strip_prefix("jcr:").or_else(|| name.strip_prefix("cq:")).unwrap_or(name) {
            "created" | "lastModified" => {
                Some(Property::Single(Value::Date(Date::from_system_time(self.now))))
            }
            "createdBy" | "lastModifiedBy" => Some(Property::text(self.user)),
            _ => None,
        }
    }

    fn is_protected(&mut self, path: &NodePath, name: &str, property: &Property) -> Result<bool> {
        match self.session.node(path)? {
            Some(node) => is_protected(&node, name, property),
            None => Ok(false),
        }
    }

    /// Reads the values as the type that the hint, the stored property or nobody names; nothing removes the property.
    fn typed(
        &mut self,
        path: &NodePath,
        name: &str,
        spec: &Spec,
        values: &[String],
    ) -> Result<Option<Property>> {
        let stored = self.session.node(path)?.and_then(|node| node.property(name));
        let hint = spec.hint("TypeHint");
        let (type_name, is_list) = match hint {
            Some(hint) => (hint.trim_end_matches("[]"), hint.ends_with("[]")),
            None => ("", stored.as_ref().is_some_and(Property::is_list) || values.len() > 1),
        };
        let value_type = match ValueType::find(type_name) {
            Some(value_type) => value_type,
            None if name == PRIMARY_TYPE || name == "jcr:mixinTypes" => ValueType::Name,
            None => stored.as_ref().map_or(ValueType::String, Property::value_type),
        };
        let is_list = is_list || name == "jcr:mixinTypes";
        if spec.hint("Patch") == Some("true") {
            let stored = stored.map(|property| property.values().to_vec()).unwrap_or_default();
            return Ok(Some(patched(stored, value_type, values)?));
        }
        if is_list {
            let list = values
                .iter()
                .filter(|value| !value.is_empty())
                .map(|text| read_value(value_type, text));
            let list = list.collect::<Result<Vec<_>>>()?;
            return Ok(Some(Property::List(value_type, list)));
        }
        match values.first().map(String::as_str) {
            None | Some("") => Ok(None),
            Some(text) => Ok(Some(Property::Single(read_value(value_type, text)?))),
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

/// Adds and removes values: `+v` adds `v` unless it is there, `-v` removes every `v`.
fn patched(mut values: Vec<Value>, value_type: ValueType, steps: &[String]) -> Result<Property> {
    for step in steps {
        if let Some(text) = step.strip_prefix('+') {
            let value = read_value(value_type, text)?;
            if !values.contains(&value) {
                values.push(value);
            }
        } else if let Some(text) = step.strip_prefix('-') {
            let value = read_value(value_type, text)?;
            values.retain(|one| *one != value);
        }
    }
    Ok(Property::List(value_type, values))
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
        let start = vec![Value::String("a".into()), Value::String("b".into())];
        let steps = ["+c", "+a", "-b", "ignored"].map(str::to_owned);
        let expected = Property::parse_list(ValueType::String, ["a", "c"]).unwrap();
        assert_eq!(patched(start, ValueType::String, &steps).unwrap(), expected);
    }
}
