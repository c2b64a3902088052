//! Tags: identifiers such as `properties:style/color`, their nodes, and pages that have them.

use std::sync::Arc;

use crate::component_context::ComponentContext;

/// Folders that hold tags: the current one, then the one of older content.
const TAG_FOLDERS: [&str; 2] = ["/content/cq:tags", "/etc/tags"];

/// The namespace of tags without one.
const DEFAULT_NAMESPACE: &str = "default";

/// A search for pages with tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaggedPageSearch {
    /// The page at or below which to search.
    pub root: String,
    /// Identifiers of tags; a tag below one of them counts as it.
    pub tags: Vec<String>,
    /// Whether a page must have all tags, not one of them.
    pub is_conjunction: bool,
}

/// Returns the path of the node of a tag.
pub(crate) fn tag_path(context: &dyn ComponentContext, tag: &str) -> Option<String> {
    if tag.starts_with('/') {
        return context.node_exists(tag).then(|| tag.to_owned());
    }
    let (namespace, name) = tag.split_once(':').unwrap_or((DEFAULT_NAMESPACE, tag));
    TAG_FOLDERS
        .into_iter()
        .map(|folder| format!("{folder}/{namespace}/{name}"))
        .map(|path| path.trim_end_matches('/').to_owned())
        .find(|path| context.node_exists(path))
}

/// Returns the title of a tag, or its identifier if it has no node.
pub(crate) fn tag_title(context: &dyn ComponentContext, tag: &str) -> Arc<str> {
    tag_path(context, tag)
        .and_then(|path| context.property(&path, "jcr:title"))
        .and_then(|value| value.to_text())
        .unwrap_or_else(|| tag.into())
}

/// Finds pages with tags by reading all pages below the root.
pub(crate) fn find_tagged_pages<C: ComponentContext + ?Sized>(
    context: &C,
    search: &TaggedPageSearch,
) -> Vec<String> {
    let mut found = Vec::new();
    if !search.tags.is_empty() {
        collect(context, search, &search.root, &mut found, 0);
    }
    found
}

/// The largest depth of pages.
const DEPTH_LIMIT: usize = 64;

fn collect<C: ComponentContext + ?Sized>(
    context: &C,
    search: &TaggedPageSearch,
    page: &str,
    found: &mut Vec<String>,
    depth: usize,
) {
    let tags = context.property(&format!("{page}/jcr:content"), "cq:tags");
    let tags = tags.map(|value| value.to_texts()).unwrap_or_default();
    let has = |searched: &String| {
        tags.iter().any(|tag| {
            tag.strip_prefix(searched.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    };
    let is_match = match search.is_conjunction {
        true => search.tags.iter().all(has),
        false => search.tags.iter().any(has),
    };
    if is_match {
        found.push(page.to_owned());
    }
    if depth == DEPTH_LIMIT {
        return;
    }
    for name in context.child_names(page) {
        let child = format!("{page}/{name}");
        let primary_type = context.property(&child, "jcr:primaryType");
        if primary_type.and_then(|value| value.to_text()).is_some_and(|name| &*name == "cq:Page") {
            collect(context, search, &child, found, depth + 1);
        }
    }
}
