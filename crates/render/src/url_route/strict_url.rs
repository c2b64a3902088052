//! Strict URLs: undeclared selectors and suffixes are not found.
//!
//! Sling renders a page for any invented selectors and suffixes, so that each of them is another page for caches. A
//! site that sets `strictUrls` on its root (the node itself, or its `jcr:content`) responds to them with 404.
//!
//! Input: a URL, its resolved resource, and the script that renders it. Output: true if the URL is declared.
//!
//! Dots without a selector between them (`a..html`) are never declared. A selector is declared by the file name of the
//! script (`print.html.j2`, `nav/active.png.j2`), or in `requestSelectors` of a component; a suffix in
//! `requestSuffixes` of a component. The declarations of the resource's own type count, those of its super types, and
//! if the resource is a page, those of all components in it. The default JSON output accepts the selectors that it
//! supports.

use tympan_content::{Node, NodePath};

use crate::dependency::content_reader::ContentReader;
use crate::page;
use crate::resource::ContentResource;
use crate::response::json_dump::JsonDumpOptions;
use crate::script::{CompiledScripts, ScriptCriteria};
use crate::url::SlingUrl;

/// The property that enables strict URLs for a site; the nearest one at or above a resource applies.
const STRICT_URLS_PROPERTY: &str = "strictUrls";

/// Returns true if the selectors and suffix of a URL are declared, or its site accepts any.
pub(crate) fn is_url_allowed(
    reader: &ContentReader,
    scripts: &CompiledScripts,
    url: &SlingUrl,
    node: &Node,
) -> bool {
    if url.selectors.is_empty() && url.suffix.is_none() && !url.has_empty_parts {
        return true;
    }
    if !has_strict_urls(reader, node.path()) {
        return true;
    }
    if url.has_empty_parts {
        return false;
    }
    let content = if node.is_page() { page::page_content(reader, node) } else { None };
    let by_script = script_selector_count(reader, scripts, url, node).or_else(|| {
        content.as_ref().and_then(|content| script_selector_count(reader, scripts, url, content))
    });
    let is_data = by_script.is_none() && url.extension.as_deref() == Some("json");
    let by_file = match by_script {
        Some(count) => count,
        None if is_data && JsonDumpOptions::from_selectors(&url.selectors).is_some() => {
            url.selectors.len()
        }
        None => 0,
    };
    let extension = url.extension.as_deref();
    let mut selectors: Vec<&str> = url.selectors.iter().skip(by_file).map(String::as_str).collect();
    let mut suffix = url.suffix.as_deref();
    if selectors.is_empty() && suffix.is_none() {
        return true;
    }
    let mut strike_out = |node: &Node| {
        let resource = ContentResource::from_node(node.clone());
        for parts in scripts.declared_url_parts(resource.resource_type(), resource.super_type()) {
            selectors.retain(|selector| !parts.allows_selector(selector, extension));
            suffix = suffix.filter(|suffix| !parts.allows_suffix(suffix));
        }
        selectors.is_empty() && suffix.is_none()
    };
    if strike_out(node) {
        return true;
    }
    let mut nodes: Vec<Node> = content.into_iter().collect();
    while let Some(node) = nodes.pop() {
        reader.record_type(&node);
        if strike_out(&node) {
            return true;
        }
        nodes.extend(reader.children_existence(&node));
    }
    false
}

/// Returns true if the site of a path has strict URLs.
fn has_strict_urls(reader: &ContentReader, path: &NodePath) -> bool {
    let mut next = Some(path.clone());
    while let Some(path) = next {
        if let Some(node) = reader.node(&path) {
            let content = reader.child_existence(&node, "jcr:content");
            let texts = [Some(&node), content.as_ref()];
            let value = texts.into_iter().flatten().find_map(|node| {
                Some(reader.property(node, STRICT_URLS_PROPERTY)?.first()?.to_text() == "true")
            });
            if let Some(is_strict) = value {
                return is_strict;
            }
        }
        next = path.parent();
    }
    false
}

/// Returns the number of selectors that a node's script names; `None` if it has no script.
fn script_selector_count(
    reader: &ContentReader,
    scripts: &CompiledScripts,
    url: &SlingUrl,
    node: &Node,
) -> Option<usize> {
    let criteria = ScriptCriteria {
        method: "GET",
        selectors: &url.selectors,
        extension: url.extension.as_deref(),
    };
    reader.record_type(node);
    let resource = ContentResource::from_node(node.clone());
    let types = (resource.resource_type(), resource.super_type());
    let resolution = scripts.resolve_script(types, &criteria);
    reader.record_script_folders(resolution.searched_folders);
    resolution.script.map(|_| resolution.named_selector_count)
}
