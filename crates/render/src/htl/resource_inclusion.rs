//! Inclusion of resources in HTL scripts (`data-sly-resource`).

use std::sync::Arc;

use tympan_content::{JCR_CONTENT, NodePath};
use tympan_core_components::{AuthoringMode, ComponentResource};
use tympan_htl::ResourceInclusion;
use tympan_notation::escape_html;

use super::component_host::HtlComponentHost;
use super::decoration::{DecorationTag, decoration_tag};
use super::page_object::PageView;
use super::site_object::ResourceView;
use crate::fragment::FragmentHole;
use crate::page;
use crate::resource::{ContentResource, InclusionContext};
use crate::template::ComponentFailure;

/// Returns the markup of an included resource; a failure leaves its placeholder.
pub(super) fn include_resource(
    host: &mut HtlComponentHost,
    inclusion: &ResourceInclusion<'_>,
) -> String {
    // AEM's editor draws its placeholders for new components so; the editor of this program has its own.
    if inclusion.path.is_some_and(|path| path.ends_with("/*")) {
        return String::new();
    }
    let current: Vec<&str> = host.frame.selectors.iter().map(String::as_str).collect();
    let selectors: Arc<[String]> = inclusion.selectors(&current).into();
    match find_target(host, inclusion) {
        Ok(target) => draw_target(host, inclusion, target, &selectors),
        // Sling includes nothing for a path that does not exist; authors see why.
        Err(failure) => {
            let target = inclusion.path.unwrap_or_default();
            if target.is_empty() {
                String::new()
            } else {
                host.frame.render_failure(&failure, target)
            }
        }
    }
}

/// A resource to include.
struct InclusionTarget {
    resource: ContentResource,
    /// The resource as models take it.
    model_resource: ComponentResource,
}

/// Finds the resource that an inclusion names.
fn find_target(
    host: &HtlComponentHost,
    inclusion: &ResourceInclusion<'_>,
) -> Result<InclusionTarget, ComponentFailure> {
    let context = &host.access.context;
    let option_type = inclusion.options.text("resourceType").filter(|text| !text.is_empty());
    let (mut path, own) = match inclusion.target.downcast_ref::<ResourceView>() {
        Some(view) => {
            let resource = view.model_resource();
            (NodePath::new(resource.path()).ok(), Some(resource.clone()))
        }
        None => match inclusion.target.downcast_ref::<PageView>() {
            Some(page) => (NodePath::new(page.path()).ok(), None),
            None => {
                let path = inclusion.path.unwrap_or_default();
                if path.is_empty() {
                    return Err(ComponentFailure::NoTarget);
                }
                (host.frame.resource.path().resolve(path).ok(), None)
            }
        },
    };
    let reader = &host.access.scope.reader;
    let unknown = || ComponentFailure::NoResource(inclusion.target.to_text());
    if let Some(structure) = context.structure()
        && let Some(structure_path) = &path
        && let Some(editable) = structure.editable_path(reader, structure_path)
    {
        path = Some(editable);
    }
    let path = path.ok_or_else(unknown)?;
    let forced = option_type.or_else(|| {
        let wrapper = own.as_ref().filter(|own| own.is_wrapper())?;
        Some(wrapper.resource_type(&**context)?.to_string())
    });
    let node = reader.node_existence(&path);
    let resource = match (node, &forced) {
        (Some(node), _) if node.is_page() && forced.is_none() => {
            page::page_content(reader, &node).map(ContentResource::from_node).ok_or_else(unknown)?
        }
        (Some(node), _) => ContentResource::from_node(node),
        (None, Some(_)) => ContentResource::missing(path.clone()),
        (None, None) => return Err(unknown()),
    };
    let model_resource = match own.filter(|own| own.is_wrapper()) {
        Some(own) => own,
        None => ComponentResource::new(resource.path().as_str()),
    };
    let (resource, model_resource) = match forced {
        Some(forced) => (resource.with_type(forced.clone()), model_resource.with_type(forced)),
        None => (resource, model_resource),
    };
    Ok(InclusionTarget { resource, model_resource })
}

/// Draws a resource with its decoration.
fn draw_target(
    host: &mut HtlComponentHost,
    inclusion: &ResourceInclusion<'_>,
    target: InclusionTarget,
    selectors: &Arc<[String]>,
) -> String {
    let InclusionTarget { resource, model_resource } = target;
    let scope = Arc::clone(&host.access.scope);
    let context = Arc::clone(&host.access.context);
    let disables_editing =
        inclusion.options.text("wcmmode").is_some_and(|mode| mode.eq_ignore_ascii_case("disabled"));
    let is_editing_disabled = disables_editing || host.mode != AuthoringMode::Edit;
    let is_same = resource.path() == host.frame.resource.path();
    let is_wrapper = inclusion
        .target
        .downcast_ref::<ResourceView>()
        .is_some_and(|view| view.model_resource().is_wrapper());
    // The content of another page has the structure of that page's template.
    let structure = context.structure().filter(|_| resource.path().name() != JCR_CONTENT);
    let is_in_structure = structure.is_some_and(|structure| structure.contains(resource.path()));
    let inclusion_context = InclusionContext {
        is_editing_disabled,
        structure: structure.cloned(),
        model_resource: is_wrapper.then(|| model_resource.clone()),
    };
    let resource = resource.with_inclusion(inclusion_context);
    let resource_type = resource.resource_type().to_owned();
    let decoration = decoration_tag(&context, &model_resource, &resource_type, inclusion.options);

    let hole = FragmentHole {
        path: resource.path().clone(),
        forced_type: resource.forced_type().map(str::to_owned),
        selectors: Arc::clone(selectors),
        renders_node_itself: true,
        child_inclusions: host.frame.dynamic_children(),
    };
    let frame = &host.frame;
    let draw = |resource: &ContentResource| {
        let types = resource.types();
        let resolution = scope.resolve_script(types, selectors);
        let around = hole.child_inclusions.as_deref();
        if resource.forced_type().is_none()
            && let Some(part) = frame.dynamic_include(resource, types, around, resolution.dynamic)
        {
            return Ok(part);
        }
        let script = scope.record_resolution(resource, resolution);
        let script = script
            .ok_or_else(|| ComponentFailure::NoScript(resource.resource_type().to_owned()))?;
        let text = scope
            .render_resource(resource, &script, Arc::clone(selectors))
            .unwrap_or_else(|failure| frame.render_failure(&failure, resource.path().as_str()));
        Ok(text)
    };
    // A fragment is found by path, type and selectors; what a model or a template's structure adds is not among them.
    let result = if is_wrapper || is_in_structure {
        draw(&resource)
    } else {
        scope.render_cached(&hole, || Ok(resource.clone()), draw)
    };
    let path = resource.path().as_str();
    let text = result.unwrap_or_else(|failure| frame.render_failure(&failure, path));
    let text = scope.mark_include(hole.clone(), text);
    let is_editable = host.mode == AuthoringMode::Edit
        && !disables_editing
        && !is_same
        && !is_in_structure
        && resource.path().name() != JCR_CONTENT
        && resource.node().is_some()
        && !frame.is_hidden_component(&resource_type);
    wrap(decoration, is_editable.then_some((path, resource_type.as_str())), &text)
}

/// Puts the decoration tag around a component, with the attributes by which the editor finds it.
fn wrap(decoration: Option<DecorationTag>, editable: Option<(&str, &str)>, text: &str) -> String {
    let attributes = editable.map_or_else(String::new, |(path, resource_type)| {
        format!(
            " data-tympan-path=\"{}\" data-tympan-type=\"{}\"",
            escape_html(path),
            escape_html(resource_type)
        )
    });
    match decoration {
        Some(DecorationTag { tag_name, classes }) => {
            let classes = classes.join(" ");
            format!(
                "<{tag_name} class=\"{}\"{attributes}>{text}</{tag_name}>",
                escape_html(&classes)
            )
        }
        None if attributes.is_empty() => text.to_owned(),
        None => format!("<div{attributes}>{text}</div>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_editor_finds_decorated_and_plain_components() {
        let tag = || DecorationTag {
            tag_name: "section".to_owned(),
            classes: vec!["text".to_owned(), "a&b".to_owned()],
        };
        assert_eq!(wrap(Some(tag()), None, "x"), "<section class=\"text a&amp;b\">x</section>");
        assert_eq!(
            wrap(Some(tag()), Some(("/a\"", "t")), "x"),
            "<section class=\"text a&amp;b\" data-tympan-path=\"/a&quot;\" data-tympan-type=\"t\">x</section>"
        );
        assert_eq!(
            wrap(None, Some(("/a", "t")), "x"),
            "<div data-tympan-path=\"/a\" data-tympan-type=\"t\">x</div>"
        );
        assert_eq!(wrap(None, None, "x"), "x");
    }
}
