//! The components below a container: their resources in order, and their JSON.

use std::sync::Arc;

use crate::component_context::ComponentResource;
use crate::component_core::ComponentCore;
use crate::export_scope::ExportScope;
use crate::exporter::export_nested;
use crate::model_value::{ModelMap, ModelValue};
use crate::template_structure::structure_children;

/// Children that configure their parent.
const CONFIGURATION_NODES: [&str; 3] = ["cq:responsive", "cq:LiveSyncConfig", "cq:annotations"];

/// The type of a component that a live copy removed.
const GHOST_TYPE: &str = "wcm/msm/components/ghost";

/// Returns the components below a component, in their order.
pub(crate) fn child_components(core: &ComponentCore) -> Vec<ComponentResource> {
    components_below(core, core.path())
}

/// Returns the components below a path, in their order. Where the caller merges templates, those of the template's
/// structure are among them.
pub(crate) fn components_below(core: &ComponentCore, path: &str) -> Vec<ComponentResource> {
    let context = core.context();
    let merged =
        if context.merges_template_structure() { structure_children(context, path) } else { None };
    let children = merged.unwrap_or_else(|| {
        let names = context.child_names(path).into_iter();
        names.map(|name| ComponentResource::new(format!("{path}/{name}"))).collect()
    });
    children.into_iter().filter(|child| is_component(core, child)).collect()
}

/// Returns whether a child is a component: not a setting of its parent, not removed by a live copy, and with a type.
fn is_component(core: &ComponentCore, child: &ComponentResource) -> bool {
    let resource_type = child.own_type().map(Into::into).or_else(|| {
        child.property(core.context(), "sling:resourceType").and_then(|value| value.to_text())
    });
    !CONFIGURATION_NODES.contains(&child.name())
        && resource_type.is_some_and(|name| !name.is_empty() && &*name != GHOST_TYPE)
}

/// How much nearer to the limit of nesting an experience fragment is than another container.
const FRAGMENT_NESTING: usize = 8;

/// Appends `:items` and `:itemsOrder`: the JSON of each child that a model exports.
pub(crate) fn export_children(
    core: &ComponentCore,
    children: &[ComponentResource],
    adorn: &dyn Fn(&ComponentResource, &mut ModelMap),
    map: &mut ModelMap,
) {
    let scope = core.export_scope().inside_container(1);
    export_nested_children(core, children, &scope, adorn, map);
}

/// Appends the JSON of the components of an experience fragment: none if the fragment contains the component.
pub(crate) fn export_fragment(core: &ComponentCore, content: Option<&str>, map: &mut ModelMap) {
    let outer = core.export_scope();
    let opened = content.and_then(|content| {
        let scope = outer.inside_fragment(core.path(), content, FRAGMENT_NESTING)?;
        Some((components_below(core, content), scope))
    });
    let (children, scope) = opened.unwrap_or_default();
    export_nested_children(core, &children, &scope, &|_, _| {}, map);
}

fn export_nested_children(
    core: &ComponentCore,
    children: &[ComponentResource],
    scope: &ExportScope,
    adorn: &dyn Fn(&ComponentResource, &mut ModelMap),
    map: &mut ModelMap,
) {
    let (mut items, mut order) = (ModelMap::new(), Vec::new());
    for child in children {
        if scope.check().is_err() {
            break;
        }
        let Some(ModelValue::Map(exported)) = export_nested(core.shared_context(), child, scope)
        else {
            continue;
        };
        let mut exported = Arc::unwrap_or_clone(exported);
        adorn(child, &mut exported);
        order.push(ModelValue::from(child.name()));
        items.insert(child.name(), scope.count_output(exported));
    }
    map.insert(":items", items);
    map.insert(":itemsOrder", order);
}
