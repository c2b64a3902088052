//! Context-aware configurations: the configuration folder that a node, or one above it, refers to.

use crate::component_context::ComponentContext;

/// Returns the path of the node with a configuration, by the references `sling:configRef` above a resource, then by the
/// defaults in `/conf/global`, `/apps/conf` and `/libs/conf`.
pub(crate) fn find_configuration<C: ComponentContext + ?Sized>(
    context: &C,
    resource_path: &str,
    name: &str,
) -> Option<String> {
    let mut path = resource_path;
    while !path.is_empty() {
        if let Some(reference) = configuration_reference(context, path)
            && let Some(node) = configuration_in(context, &reference, name)
        {
            return Some(node);
        }
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    ["/conf/global", "/apps/conf", "/libs/conf"]
        .into_iter()
        .find_map(|base| existing_configuration(context, base, name))
}

/// Returns the reference at a node or at its page content.
fn configuration_reference<C: ComponentContext + ?Sized>(
    context: &C,
    path: &str,
) -> Option<String> {
    ["sling:configRef", "cq:conf"].into_iter().find_map(|name| {
        let value = context
            .property(path, name)
            .or_else(|| context.property(&format!("{path}/jcr:content"), name))?;
        value.to_text().map(|text| text.to_string()).filter(|text| text.starts_with('/'))
    })
}

/// Looks in a configuration folder and in those above it.
fn configuration_in<C: ComponentContext + ?Sized>(
    context: &C,
    reference: &str,
    name: &str,
) -> Option<String> {
    let mut folder = reference.trim_end_matches('/');
    while folder.matches('/').count() > 1 {
        if let Some(node) = existing_configuration(context, folder, name) {
            return Some(node);
        }
        folder = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    None
}

/// Returns the node of a configuration in a folder; of a page, its content node.
fn existing_configuration<C: ComponentContext + ?Sized>(
    context: &C,
    folder: &str,
    name: &str,
) -> Option<String> {
    let node = format!("{folder}/sling:configs/{name}");
    if !context.node_exists(&node) {
        return None;
    }
    let content = format!("{node}/jcr:content");
    Some(if context.node_exists(&content) { content } else { node })
}
