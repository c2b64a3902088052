//! Dialogs: converts a component's `cq:dialog`, in Granite's vocabulary, to a schema from which forms are rendered.
//!
//! In: a component of a page, or a content policy, whose dialog is the component's `cq:design_dialog`. Out: tabs with
//! fields, the conditions under which fields are shown, and the values of the component.
//!
//! The dialog is merged with those of the super types, and what is hidden is not in it (`render::dialog`).
//!
//! Not here: the fields (`field`), and options from data sources (`data_source`).

mod data_source;
mod dialog_context;
mod dialog_node;
mod dialog_tree;
mod field;
mod stored_value;
mod visibility;

use serde_json::{Value as Json, json};
use tympan_content::{Node, Property, Snapshot};
use tympan_render::dialog::{DialogPart, find_component_node, read_dialog};
use tympan_render::find_content_policy;

pub(crate) use self::dialog_context::component_title;
use self::dialog_context::{DialogContext, MAX_NESTING_DEPTH};
use self::dialog_tree::read_dialog_tree;
use self::field::FormBuilder;
use self::stored_value::{collect_value_types, form_values};
use crate::failure::Result;

/// The resource type of content policies.
const POLICY_TYPE: &str = "wcm/core/components/policy/policy";
/// The folder of content policies; below it lie the resource types of the components.
const POLICY_FOLDER: &str = "/settings/wcm/policies/";

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
    let stored_type =
        resource.resource_type().unwrap_or_else(|| resource.primary_type().to_owned());
    let (resource_type, part) = match policy_component(resource, &stored_type) {
        Some(component) => (component, DialogPart::Design),
        None => (stored_type, DialogPart::Edit),
    };
    let component = find_component_node(snapshot, &resource_type)?;
    let dialog = read_dialog(resource, &resource_type, part)?;
    let policy = find_content_policy(resource)?;
    let context = DialogContext { snapshot, resource, policy, is_fresh: is_fresh(resource) };
    let (tabs, unknown) = match &dialog {
        Some(dialog) => {
            let tree = read_dialog_tree(&context, dialog)?;
            FormBuilder::new(&context, &tree).build(&tree)?
        }
        None => (Vec::new(), Vec::new()),
    };
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
        "unknown": unknown,
    }))
}

/// Returns the component that a content policy is for; `None` for other resources.
fn policy_component(resource: &Node, resource_type: &str) -> Option<String> {
    let (_, below) = resource.path().as_str().split_once(POLICY_FOLDER)?;
    let (component, _) = below.rsplit_once('/')?;
    (resource_type == POLICY_TYPE).then(|| component.to_owned())
}

/// Returns true if no dialog has saved a component: the marks of its options are then its values.
fn is_fresh(resource: &Node) -> bool {
    let time =
        |name: &str| resource.property(name)?.first().map(|value| value.to_text().into_owned());
    match time("jcr:lastModified") {
        Some(modified) => Some(modified) == time("jcr:created"),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use tympan_content::{NodePath, Repository, Subtree, Value, ValueType};

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
        // The value that an HTML box has without one of its own.
        assert_eq!((&fields[1]["name"], &fields[1]["value"]), (&json!("show"), &json!("on")));
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
