//! The structure of an editable template: components that all its pages show, merged with the content of a page.
//!
//! A template has a page `structure`. What it holds, a page made from it shows too: a component marked `editable` with
//! the page's own content below it, any other one as the template has it. A page has nodes only for what it changes.

use crate::component_context::{ComponentContext, ComponentResource};
use crate::page_reader::PageReader;

/// The two places of a component: in the page, and in the structure of the page's template.
struct StructurePlace {
    page: String,
    structure: String,
}

/// Returns the places of a path that is in the content of a page or in the structure of its template.
fn place_of(context: &dyn ComponentContext, path: &str) -> Option<StructurePlace> {
    let page = context.current_page()?;
    let template = PageReader::new(context).text(&page, "cq:template")?;
    let (content, structure) =
        (format!("{page}/jcr:content"), format!("{template}/structure/jcr:content"));
    let rest =
        path.strip_prefix(content.as_str()).or_else(|| path.strip_prefix(structure.as_str()))?;
    if !(rest.is_empty() || rest.starts_with('/')) {
        return None;
    }
    let place = StructurePlace {
        page: format!("{content}{rest}"),
        structure: format!("{structure}{rest}"),
    };
    context.node_exists(&place.structure).then_some(place)
}

/// Returns the children of a component, those of the template's structure first; nothing if the structure has no say: it
/// does not have the component, or leaves its content to the page.
pub(crate) fn structure_children(
    context: &dyn ComponentContext,
    path: &str,
) -> Option<Vec<ComponentResource>> {
    let place = place_of(context, path)?;
    let is_editable = context
        .property(&place.structure, "editable")
        .and_then(|value| value.to_boolean())
        .unwrap_or(false);
    if is_editable && context.node_exists(&place.page) {
        return None;
    }
    let names = context.child_names(&place.structure);
    let mut children: Vec<ComponentResource> =
        names.iter().map(|name| merged_child(context, &place, name)).collect();
    let own = context.child_names(&place.page).into_iter().filter(|name| !names.contains(name));
    children.extend(own.map(|name| ComponentResource::new(format!("{}/{name}", place.page))));
    Some(children)
}

/// Returns the page's node of a child, with the structure's type if it has none, else the structure's node.
fn merged_child(
    context: &dyn ComponentContext,
    place: &StructurePlace,
    name: &str,
) -> ComponentResource {
    let (own, shared) = (format!("{}/{name}", place.page), format!("{}/{name}", place.structure));
    if !context.node_exists(&own) {
        return ComponentResource::new(shared);
    }
    let resource = ComponentResource::new(own);
    if resource.property(context, "sling:resourceType").is_some() {
        return resource;
    }
    let shared_type =
        context.property(&shared, "sling:resourceType").and_then(|value| value.to_text());
    match shared_type {
        Some(shared_type) => resource.with_type(shared_type),
        None => resource,
    }
}
