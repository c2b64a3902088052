//! The values of a component, as the form of its dialog opens with them.

use serde_json::{Value as Json, json};
use tympan_content::{Node, Property, Value, ValueType};

use crate::failure::Result;

/// The property that no dialog shows, whatever its fields are called.
const PASSWORD_PROPERTY: &str = "rep:password";

/// Collects the types of the stored properties by their relative path, so that a form that shows a value as text can
/// store it with its original type.
pub(super) fn collect_value_types(
    node: &Node,
    fields: &[&Json],
    above: &str,
    types: &mut serde_json::Map<String, Json>,
) -> Result<()> {
    for (name, property) in node.properties() {
        if name != PASSWORD_PROPERTY {
            types.insert(format!("{above}{name}"), property.value_type().name().into());
        }
    }
    for (name, property) in nested_field_properties(node, fields)? {
        types.insert(format!("{above}{name}"), property.value_type().name().into());
    }
    for (name, inner) in composite_fields(fields) {
        let Some(list) = node.find_descendant(name)? else { continue };
        for entry in list.children()? {
            collect_value_types(
                &entry,
                &inner,
                &format!("{above}{name}/{}/", entry.name()),
                types,
            )?;
        }
    }
    Ok(())
}

/// Returns the composite fields: the name of each, and the fields of its entries.
fn composite_fields<'a>(fields: &[&'a Json]) -> Vec<(&'a str, Vec<&'a Json>)> {
    let is_group =
        |field: &&&Json| field.pointer("/field/kind").is_some_and(|kind| kind == "group");
    let inner = |field: &'a Json| {
        field.pointer("/field/fields").and_then(Json::as_array).into_iter().flatten().collect()
    };
    let named = |field: &&'a Json| Some((field.get("name")?.as_str()?, inner(field)));
    fields.iter().filter(is_group).filter_map(named).collect()
}

/// Returns the stored properties of descendants that fields address by path, such as `image/fileReference`.
fn nested_field_properties(node: &Node, fields: &[&Json]) -> Result<Vec<(String, Property)>> {
    let mut properties = Vec::new();
    for name in fields.iter().filter_map(|field| field.get("name")?.as_str()) {
        let Some((path, property)) = name.rsplit_once('/') else { continue };
        let holder = node.find_descendant(path)?.filter(|_| property != PASSWORD_PROPERTY);
        if let Some(stored) = holder.and_then(|holder| holder.property(property)) {
            properties.push((name.to_owned(), stored));
        }
    }
    Ok(properties)
}

/// Returns the current values of a form: the properties of the resource, and the entries of composite fields, which are
/// child nodes.
pub(super) fn form_values(
    resource: &Node,
    fields: &[&Json],
) -> Result<serde_json::Map<String, Json>> {
    let visible = resource.properties().into_iter().filter(|(name, _)| name != PASSWORD_PROPERTY);
    let mut values: serde_json::Map<String, Json> =
        visible.map(|(name, property)| (name, form_value_json(&property))).collect();
    values.extend(
        nested_field_properties(resource, fields)?
            .into_iter()
            .map(|(name, field_property)| (name, form_value_json(&field_property))),
    );
    for (name, inner) in composite_fields(fields) {
        let entries = match resource.find_descendant(name)? {
            Some(list) => list.children()?,
            None => Vec::new(),
        };
        let entry = |node: &Node| -> Result<Json> {
            let mut values = form_values(node, &inner)?;
            values.insert("@name".to_owned(), node.name().into());
            Ok(Json::Object(values))
        };
        values
            .insert(name.to_owned(), entries.iter().map(entry).collect::<Result<Vec<_>>>()?.into());
    }
    Ok(values)
}

/// Converts a property for a form: numbers and booleans as such, all other types as text.
pub(super) fn form_value_json(property: &Property) -> Json {
    let to_json = |value: &Value| match value {
        Value::Long(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        value => json!(value.to_text()),
    };
    match property {
        Property::Single(value) if value.value_type() == ValueType::Binary => json!("(binary)"),
        Property::Single(value) => to_json(value),
        Property::List(_, values) => values.iter().map(to_json).collect(),
    }
}
