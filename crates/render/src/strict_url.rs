//! Sites whose URLs are exact: selectors and suffixes that nothing names are no page.
//!
//! Sling draws a page for whatever selectors and suffixes somebody makes up, so that each of them is another page for caches.
//! A site that sets `strictUrls` on its root (the node itself, or its `jcr:content`) answers them with 404.
//!
//! In: a URL, the resource that it resolved to, and the script that draws it. Out: whether the URL names what is drawn.
//!
//! A selector is named by the file name of the script (`print.html.j2`, `nav/active.png.j2`), or in `requestSelectors` of a
//! component; a suffix in `requestSuffixes` of a component. Those of the resource's own type count, of its super types, and
//! where the resource is a page, those of all components in it. The default output for JSON reads the selectors that it knows.

use tympan_content::{Node, NodePath};

use crate::json::Form;
use crate::page;
use crate::reads::Reader;
use crate::resource::Resource;
use crate::script::{Scripts, Wanted};
use crate::url::Url;

/// The property by which a site asks for exact URLs; the nearest one at or above a resource counts.
const STRICT_URLS: &str = "strictUrls";

/// Tells whether selectors and suffix of a URL are named, or its site takes any.
pub(crate) fn is_named(reader: &Reader, scripts: &Scripts, url: &Url, node: &Node) -> bool {
    if url.selectors.is_empty() && url.suffix.is_none() {
        return true;
    }
    if !is_strict(reader, node.path()) {
        return true;
    }
    let content = if node.is_page() { page::content(reader, node) } else { None };
    let by_script = named_by_script(reader, scripts, url, node).or_else(|| {
        content.as_ref().and_then(|content| named_by_script(reader, scripts, url, content))
    });
    let is_data = by_script.is_none() && url.extension.as_deref() == Some("json");
    let by_file = match by_script {
        Some(count) => count,
        None if is_data && Form::of(&url.selectors).is_some() => url.selectors.len(),
        None => 0,
    };
    let extension = url.extension.as_deref();
    let mut selectors: Vec<&str> = url.selectors.iter().skip(by_file).map(String::as_str).collect();
    let mut suffix = url.suffix.as_deref();
    if selectors.is_empty() && suffix.is_none() {
        return true;
    }
    let mut strike_out = |node: &Node| {
        let resource = Resource::of(node.clone());
        for parts in scripts.url_parts(resource.resource_type(), resource.super_type()) {
            selectors.retain(|selector| !parts.names_selector(selector, extension));
            suffix = suffix.filter(|suffix| !parts.names_suffix(suffix));
        }
        selectors.is_empty() && suffix.is_none()
    };
    if strike_out(node) {
        return true;
    }
    let mut nodes: Vec<Node> = content.into_iter().collect();
    while let Some(node) = nodes.pop() {
        reader.note_type(&node);
        if strike_out(&node) {
            return true;
        }
        nodes.extend(reader.glance_children(&node));
    }
    false
}

/// Tells whether the site of a path has exact URLs.
fn is_strict(reader: &Reader, path: &NodePath) -> bool {
    let mut next = Some(path.clone());
    while let Some(path) = next {
        if let Some(node) = reader.node(&path) {
            let content = reader.glance_child(&node, "jcr:content");
            let texts = [Some(&node), content.as_ref()];
            let value = texts.into_iter().flatten().find_map(|node| {
                Some(reader.property(node, STRICT_URLS)?.first()?.to_text() == "true")
            });
            if let Some(is_strict) = value {
                return is_strict;
            }
        }
        next = path.parent();
    }
    false
}

/// Returns how many selectors the script names that draws a node; nothing without a script.
fn named_by_script(reader: &Reader, scripts: &Scripts, url: &Url, node: &Node) -> Option<usize> {
    let wanted =
        Wanted { method: "GET", selectors: &url.selectors, extension: url.extension.as_deref() };
    reader.note_type(node);
    let resource = Resource::of(node.clone());
    let types = (resource.resource_type(), resource.super_type());
    let resolution = scripts.resolve(types, &wanted);
    reader.note_scripts(resolution.places);
    resolution.script.map(|_| resolution.named_selectors)
}
