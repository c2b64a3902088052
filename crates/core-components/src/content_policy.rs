//! Content policies: the configuration that an editable template gives to the components on its pages.
//!
//! A template has a node `policies/jcr:content` that mirrors the content of its pages. A node of this mapping names a
//! policy in its property `cq:policy`, relative to `settings/wcm/policies` of the configuration that holds the template.
//! For a component inside a container the mapping has a node per resource type below the container's node.

use crate::component_context::{ComponentContext, ComponentResource};

/// Returns the path of the policy node of a resource, by the mapping in the template of its page.
#[must_use]
pub fn find_content_policy<C: ComponentContext + ?Sized>(
    context: &C,
    resource: &ComponentResource,
) -> Option<String> {
    let path = resource.path();
    let (owner, relative) = match path.split_once("/jcr:content") {
        Some((owner, relative)) => (owner, relative.trim_start_matches('/')),
        None => return None,
    };
    let template = match owner.strip_suffix("/structure").or_else(|| owner.strip_suffix("/initial"))
    {
        Some(template) => template.to_owned(),
        None => text(context, &format!("{owner}/jcr:content"), "cq:template")?,
    };
    let mapping = format!("{template}/policies/jcr:content");
    let resource_type = wrapper_or_stored_type(context, resource);
    let policy = mapped_policy(context, &mapping, relative, resource_type.as_deref())?;
    absolute_policy_path(context, &template, &policy)
}

/// Returns the resource type of a resource.
fn wrapper_or_stored_type<C: ComponentContext + ?Sized>(
    context: &C,
    resource: &ComponentResource,
) -> Option<String> {
    resource
        .own_type()
        .map(str::to_owned)
        .or_else(|| text(context, resource.path(), "sling:resourceType"))
}

/// Returns the value `cq:policy` for a node: of its own mapping, else of its type in the mapping of its parent.
fn mapped_policy<C: ComponentContext + ?Sized>(
    context: &C,
    mapping: &str,
    relative: &str,
    resource_type: Option<&str>,
) -> Option<String> {
    let own =
        if relative.is_empty() { mapping.to_owned() } else { format!("{mapping}/{relative}") };
    if let Some(policy) = text(context, &own, "cq:policy") {
        return Some(policy);
    }
    let resource_type = resource_type?;
    // The nearest container with a mapping decides for its content, also for content in containers without one.
    let mut parent = own.as_str();
    while let Some((above, _)) = parent.rsplit_once('/') {
        parent = above;
        if !parent.starts_with(mapping) {
            break;
        }
        if let Some(policy) = text(context, &format!("{parent}/{resource_type}"), "cq:policy") {
            return Some(policy);
        }
    }
    None
}

/// Resolves a policy path, which is relative to the policies of the template's configuration.
fn absolute_policy_path<C: ComponentContext + ?Sized>(
    context: &C,
    template: &str,
    policy: &str,
) -> Option<String> {
    if policy.starts_with('/') {
        return context.node_exists(policy).then(|| policy.to_owned());
    }
    let settings = template.split("/templates/").next()?;
    let candidates = [
        format!("{settings}/policies/{policy}"),
        format!("/conf/global/settings/wcm/policies/{policy}"),
        format!("/apps/settings/wcm/policies/{policy}"),
        format!("/libs/settings/wcm/policies/{policy}"),
    ];
    candidates.into_iter().find(|candidate| context.node_exists(candidate))
}

/// Returns a property as text.
fn text<C: ComponentContext + ?Sized>(context: &C, path: &str, name: &str) -> Option<String> {
    let value = context.property(path, name)?.to_text()?;
    (!value.is_empty()).then(|| value.to_string())
}
