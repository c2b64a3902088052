//! Dialogs: converts a component's `cq:dialog`, in Granite's vocabulary, to a schema from which forms are rendered.
//!
//! Fields are found at any depth below tabs and containers. The dialog is merged with those of the super types, and what
//! is hidden is not in it (`render::dialog`).

use serde_json::{Value as Json, json};
use tympan_content::{Node, Property, Snapshot, Value, ValueType};
use tympan_render::dialog::{DialogPart, find_component_node, read_dialog};

use crate::failure::Result;

/// Maximum depth of super types and containers; deeper nesting is treated as a loop.
const MAX_NESTING_DEPTH: usize = 20;
/// The property that no dialog shows, whatever its fields are called.
const PASSWORD_PROPERTY: &str = "rep:password";

/// Returns the display title of a component.
pub(crate) fn component_title(component: Option<&Node>, resource_type: &str) -> String {
    let title = component.and_then(|component| component.text("jcr:title"));
    title.unwrap_or_else(|| resource_type.rsplit('/').next().unwrap_or_default().to_owned())
}

/// Returns true if a component or one of its super types declares itself a container.
pub(crate) fn is_container(snapshot: &Snapshot, resource_type: &str) -> Result<bool> {
    let mut next = Some(resource_type.to_owned());
    for _ in 0..MAX_NESTING_DEPTH {
        let Some(resource_type) = next else { return Ok(false) };
        if resource_type.ends_with("/parsys") || resource_type.ends_with("/responsivegrid") {
            return Ok(true);
        }
        let Some(component) = find_component_node(snapshot, &resource_type)? else {
            return Ok(false);
        };
        if let Some(value) = component.property("cq:isContainer").as_ref().and_then(Property::first)
        {
            return Ok(value.to_text() == "true");
        }
        next = component.text("sling:resourceSuperType");
    }
    Ok(false)
}

/// Returns true if a node without a component can contain components, even if it is empty.
pub(crate) fn is_component_group(node: &Node) -> bool {
    matches!(node.name(), "root" | "par" | "parsys" | "main" | "content")
}

/// Describes the dialog of a resource and its current values.
pub(crate) fn dialog_json(resource: &Node) -> Result<Json> {
    let snapshot = resource.snapshot();
    let resource_type =
        resource.resource_type().unwrap_or_else(|| resource.primary_type().to_owned());
    let component = find_component_node(snapshot, &resource_type)?;
    let dialog = read_dialog(resource, DialogPart::Edit)?;
    let mut tabs = Vec::new();
    if let Some(dialog) = &dialog {
        find_tabs(dialog, &mut tabs, 0)?;
        if tabs.is_empty() {
            let mut fields = Vec::new();
            find_fields(dialog, &mut fields, 0)?;
            tabs.push(json!({ "title": "Properties", "fields": fields }));
        }
    }
    let fields: Vec<&Json> =
        tabs.iter().filter_map(|tab| tab.get("fields")?.as_array()).flatten().collect();
    let values = form_values(resource, &fields)?;
    let mut types = serde_json::Map::new();
    collect_value_types(resource, &fields, "", &mut types)?;
    Ok(json!({
        "path": resource.path().as_str(),
        "resourceType": resource_type,
        "title": component_title(component.as_ref(), &resource_type),
        "hasDialog": dialog.is_some(),
        "tabs": tabs,
        "values": values,
        "types": types,
    }))
}

/// Collects the types of the stored properties by their relative path, so that a form that shows a value as text can
/// store it with its original type.
fn collect_value_types(
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
fn form_values(resource: &Node, fields: &[&Json]) -> Result<serde_json::Map<String, Json>> {
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

/// Collects the tabs of a dialog at any depth.
fn find_tabs(node: &Node, tabs: &mut Vec<Json>, depth: usize) -> Result<()> {
    let is_tabs = node.resource_type().is_some_and(|name| name.ends_with("/tabs"));
    for child in dialog_items(node, depth)? {
        if is_tabs {
            let mut fields = Vec::new();
            find_fields(&child, &mut fields, depth + 1)?;
            if !fields.is_empty() {
                tabs.push(json!({ "title": field_label(&child), "fields": fields }));
            }
        } else {
            find_tabs(&child, tabs, depth + 1)?;
        }
    }
    Ok(())
}

/// Collects the fields below a node, in order.
fn find_fields(node: &Node, fields: &mut Vec<Json>, depth: usize) -> Result<()> {
    for child in dialog_items(node, depth)? {
        match form_field_kind(&child) {
            Some(kind) => fields.extend(form_field_json(&child, kind)?),
            None => find_fields(&child, fields, depth + 1)?,
        }
    }
    Ok(())
}

/// Returns the items of a dialog node: the children of its `items`, or its own children without data nodes.
fn dialog_items(node: &Node, depth: usize) -> Result<Vec<Node>> {
    if depth > MAX_NESTING_DEPTH {
        return Ok(Vec::new());
    }
    match node.child("items")? {
        Some(items) => Ok(items.children()?),
        None => {
            let is_structure = |child: &Node| !child.name().starts_with("granite:");
            Ok(node.children()?.into_iter().filter(is_structure).collect())
        }
    }
}

/// Returns the kind of form field for a Granite resource type; `None` for containers.
fn form_field_kind(node: &Node) -> Option<&'static str> {
    let resource_type = node.resource_type()?;
    let (folder, name) = resource_type.rsplit_once('/')?;
    let is_field =
        folder.contains("form") || folder.contains("dialog") || folder.contains("widgets");
    Some(match name {
        "textfield" | "autocomplete" | "password" if is_field => "text",
        "textarea" => "textarea",
        "richtext" => "richtext",
        "numberfield" => "number",
        "checkbox" | "switch" => "checkbox",
        "select" => "select",
        "radiogroup" => "radio",
        "pathfield" | "pathbrowser" | "fileupload" | "pagefield" | "assetfield" | "tagfield" => {
            "path"
        }
        "datepicker" => "date",
        "colorfield" => "color",
        "multifield" => "multi",
        "hidden" if is_field => "hidden",
        _ => return None,
    })
}

/// Describes a field; `None` if it stores no property of the resource itself.
fn form_field_json(node: &Node, kind: &str) -> Result<Option<Json>> {
    let inner = if kind == "multi" { node.child("field")? } else { None };
    let name =
        match node.text("name").or_else(|| inner.as_ref().and_then(|inner| inner.text("name"))) {
            Some(name) => name.trim_start_matches("./").to_owned(),
            None => return Ok(None),
        };
    let number = |name: &str| {
        node.property(name)
            .as_ref()
            .and_then(Property::first)
            .map(|value| value.to_text().into_owned())
    };
    // The value of a checkbox is the value stored when it is checked, not its initial state.
    let default = node.property(if kind == "checkbox" { "checked" } else { "value" });
    let mut described = json!({
        "name": name,
        "kind": kind,
        "label": field_label(node),
        "description": node.text("fieldDescription"),
        "required": bool_property(node, "required"),
        "value": default.map(|property| form_value_json(&property)),
        "min": number("min"),
        "max": number("max"),
        "step": number("step"),
        "typeHint": field_type_hint(node, kind),
    });
    let Some(object) = described.as_object_mut() else { return Ok(None) };
    if matches!(kind, "select" | "radio") {
        let options = dialog_items(node, 0)?;
        let option = |node: &Node| {
            let value = node.property("value").map(|property| form_value_json(&property));
            json!({ "value": value.unwrap_or_default(), "text": node.text("text").or_else(|| node.text("jcr:title")) })
        };
        object.insert("options".to_owned(), options.iter().map(option).collect());
    }
    if let Some(inner) = inner {
        let described = if bool_property(node, "composite") {
            let mut fields = Vec::new();
            find_fields(&inner, &mut fields, 1)?;
            json!({ "kind": "group", "name": name, "fields": fields })
        } else {
            let kind = form_field_kind(&inner).unwrap_or("text");
            form_field_json(&inner, kind)?.unwrap_or_else(|| json!({ "kind": kind }))
        };
        object.insert("field".to_owned(), described);
    }
    Ok(Some(described))
}

/// Returns the type with which the values of a field are stored.
fn field_type_hint(node: &Node, kind: &str) -> String {
    if let Some(hint) = node.text("typeHint") {
        return hint;
    }
    let is_multiple = kind == "multi" || (kind == "select" && bool_property(node, "multiple"));
    let base = match kind {
        "number" => match node
            .property("step")
            .as_ref()
            .and_then(Property::first)
            .map(|step| step.to_text().contains('.'))
        {
            Some(true) => "Double",
            _ => "Long",
        },
        "checkbox" => "Boolean",
        "date" => "Date",
        _ => "String",
    };
    if is_multiple { format!("{base}[]") } else { base.to_owned() }
}

fn field_label(node: &Node) -> String {
    ["fieldLabel", "jcr:title", "text"]
        .iter()
        .find_map(|name| node.text(name))
        .unwrap_or_else(|| node.name().to_owned())
}

fn bool_property(node: &Node, name: &str) -> bool {
    node.property(name)
        .as_ref()
        .and_then(Property::first)
        .is_some_and(|value| value.to_text() == "true")
}

/// Converts a property for a form: numbers and booleans as such, all other types as text.
fn form_value_json(property: &Property) -> Json {
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

#[cfg(test)]
mod tests {
    use tympan_content::{NodePath, Repository, Subtree};

    use super::*;

    fn field_node(name: &str, resource_type: &str) -> Subtree {
        let resource_type = format!("granite/ui/components/coral/foundation/form/{resource_type}");
        Subtree::new(name, "nt:unstructured")
            .with_property("name", format!("./{name}").as_str())
            .with_property("sling:resourceType", resource_type.as_str())
    }

    /// Describes a resource whose component has these fields.
    fn described(fields: Vec<Subtree>, resource: Subtree) -> Json {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("admin").unwrap();
        let mut items = Subtree::new("items", "nt:unstructured");
        for field in fields {
            items.put_child(field);
        }
        let dialog = Subtree::new("cq:dialog", "nt:unstructured").with_child(items);
        let component = Subtree::new("box", "cq:Component").with_child(dialog);
        for (path, child) in [("/apps", component), ("/content", resource)] {
            let folder = Subtree::new("", "nt:unstructured").with_child(child);
            session.put_node(&NodePath::new(path).unwrap(), folder).unwrap();
        }
        session.commit("begin", std::time::SystemTime::UNIX_EPOCH).unwrap();
        let snapshot = repository.snapshot().unwrap();
        let node = snapshot.node(&NodePath::new("/content/it").unwrap()).unwrap().unwrap();
        dialog_json(&node).unwrap()
    }

    fn resource() -> Subtree {
        Subtree::new("it", "nt:unstructured").with_property("sling:resourceType", "box")
    }

    #[test]
    fn a_box_is_not_ticked_because_of_the_value_that_it_stands_for() {
        let hide = field_node("hide", "checkbox").with_property("value", Value::Boolean(true));
        let show = field_node("show", "checkbox").with_property("checked", Value::Boolean(true));
        let described = described(vec![hide, show], resource());
        let fields = &described["tabs"][0]["fields"];
        assert_eq!((&fields[0]["name"], &fields[0]["value"]), (&json!("hide"), &Json::Null));
        assert_eq!((&fields[1]["name"], &fields[1]["value"]), (&json!("show"), &json!(true)));
    }

    #[test]
    fn a_field_of_a_node_below_shows_what_is_stored_there() {
        let name = "./steps/one/jcr:title";
        let title = field_node("title", "textfield").with_property("name", name);
        let absent = field_node("absent", "textfield").with_property("name", "./none/text");
        let step = Subtree::new("one", "nt:unstructured").with_property("jcr:title", "First");
        let steps = Subtree::new("steps", "nt:unstructured").with_child(step);
        let described = described(vec![title, absent], resource().with_child(steps));
        assert_eq!(described["values"]["steps/one/jcr:title"], "First");
        assert_eq!(described["types"]["steps/one/jcr:title"], "String");
        assert_eq!(described["values"].get("none/text"), None);
    }

    #[test]
    fn types_are_given_by_path_of_the_resource_and_of_the_entries_of_its_lists() {
        let inner = Subtree::new("field", "nt:unstructured").with_child(
            Subtree::new("items", "nt:unstructured").with_child(field_node("when", "datepicker")),
        );
        let list = field_node("dates", "multifield")
            .with_property("composite", Value::Boolean(true))
            .with_child(inner);
        let date = Value::parse(ValueType::Date, "2026-03-01T08:30:00.000Z").unwrap();
        let entry = Subtree::new("item0", "nt:unstructured").with_property("when", date);
        let stored = resource()
            .with_property("link", Value::parse(ValueType::Path, "/content").unwrap())
            .with_child(Subtree::new("dates", "nt:unstructured").with_child(entry));
        let described = described(vec![field_node("link", "pathfield"), list], stored);
        let types = &described["types"];
        assert_eq!((&types["link"], &types["dates/item0/when"]), (&json!("Path"), &json!("Date")));
        assert_eq!(types["sling:resourceType"], "String");
    }
}
