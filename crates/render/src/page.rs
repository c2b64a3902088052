//! Properties of `cq:Page` nodes for navigation, lists and searches.
//!
//! Titles, dates and visibility come from the headers of records, so a navigation of a hundred pages reads no body.

pub(crate) mod container_policy;
pub(crate) mod link;
pub(crate) mod list_query;
mod list_result;
pub(crate) mod page_template_list;
pub(crate) mod search;
pub(crate) mod template_structure;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tympan_content::{JCR_CONTENT, JcrDate, Node, NodePath, NodeSummary, Property, Value};

use crate::dependency::content_reader::ContentReader;
use crate::page::link::{AuthorLink, BLOCKED_LINK, encode_path, parse_author_link};
use crate::page::list_query::{ListQueryKind, PageOrder};

/// The folder of tag nodes.
const TAGS_FOLDER: &str = "/content/cq:tags";
/// Maximum length of a chain of tag moves; a longer one is a mistake.
const MAX_TAG_MOVES: usize = 16;

/// Returns the title, or the name if there is no title.
pub(crate) fn page_title(page: &Node) -> String {
    let title = page.summary().and_then(|summary| summary.title());
    title.filter(|title| !title.is_empty()).unwrap_or_else(|| page.name()).to_owned()
}

/// Returns the language of a page, from its own property or that of the nearest ancestor page; empty if there is none.
pub(crate) fn page_language(reader: &ContentReader, page: &Node) -> String {
    let mut next = Some(page.clone());
    while let Some(page) = next {
        let content = page_content(reader, &page);
        let language = content.and_then(|content| reader.text_property(&content, "jcr:language"));
        if let Some(language) = language.filter(|language| !language.is_empty()) {
            return language;
        }
        next = page.path().parent().and_then(|above| containing_page(reader, &above));
    }
    String::new()
}

/// Returns true if navigations omit the page.
pub(crate) fn is_hidden_in_navigation(page: &Node) -> bool {
    page.summary().is_some_and(NodeSummary::is_hidden_in_nav)
}

/// Returns the last modification.
pub(crate) fn page_modified(reader: &ContentReader, page: &Node) -> Option<JcrDate> {
    reader.last_modified(page)
}

/// Returns the page that contains a path: the nearest page at or above it, whether or not the node itself exists.
pub(crate) fn containing_page(reader: &ContentReader, path: &NodePath) -> Option<Node> {
    // Nothing below a page's content is a page, so its nodes need no lookup.
    let text = path.as_str();
    let start = text.find("/jcr:content").map_or(text, |at| text.get(..at).unwrap_or(text));
    let mut next = NodePath::new(start).ok();
    while let Some(path) = next {
        if let Some(page) = reader.node_existence(&path).filter(Node::is_page) {
            return Some(page);
        }
        next = path.parent();
    }
    None
}

/// Returns the sub-pages that navigations show, in order.
pub(crate) fn visible_children(reader: &ContentReader, page: &Node) -> Vec<Node> {
    reader.visible_child_pages(page)
}

/// Returns the page's content node.
pub(crate) fn page_content(reader: &ContentReader, page: &Node) -> Option<Node> {
    reader.child_existence(page, JCR_CONTENT)
}

/// Returns the ancestor pages of a page that are at least `min_depth` names deep, and the page itself, topmost first.
pub(crate) fn page_ancestors(reader: &ContentReader, page: &Node, min_depth: usize) -> Vec<Node> {
    let mut trail = Vec::new();
    let mut next = Some(page.clone());
    while let Some(page) = next.filter(|page| page.path().depth() >= min_depth) {
        let parent = page.path().parent().filter(|parent| parent.depth() >= min_depth);
        next = parent.and_then(|parent| reader.node_existence(&parent));
        if page.is_page() {
            trail.push(page);
        }
    }
    trail.reverse();
    trail
}

/// Returns the pages below a page, at any depth.
pub(crate) fn pages_below(reader: &ContentReader, root: &Node) -> Vec<Node> {
    reader.pages_below(root)
}

/// Returns the first pages below a root in an order, optionally only those with a tag.
pub(crate) fn list_pages(
    reader: &ContentReader,
    root: &Node,
    order: PageOrder,
    tag: Option<&str>,
    limit: usize,
) -> Vec<Node> {
    let (path, tagged) = (root.path().clone(), tag.map(str::to_owned));
    let question = ListQueryKind::Pages { root: path, order, tag: tagged, limit };
    reader.read_list(question, || select_pages(reader, root, order, tag, limit))
}

/// Computes the result of [`list_pages`].
fn select_pages(
    reader: &ContentReader,
    root: &Node,
    order: PageOrder,
    tag: Option<&str>,
    limit: usize,
) -> Vec<Node> {
    let mut pages = pages_below(reader, root);
    if let Some(tag) = tag {
        pages.retain(|page| page_tag_ids(reader, page).iter().any(|id| id == tag));
    }
    match order {
        PageOrder::Modified => {
            reader.record_dates_below(root);
            let modified = |page: &Node| page.summary().and_then(NodeSummary::last_modified);
            pages.sort_by_cached_key(|page| Reverse(date_sort_millis(modified(page))));
        }
        PageOrder::Date => {
            pages.sort_by_cached_key(|page| Reverse(date_sort_millis(page_date(reader, page))))
        }
        PageOrder::Title => {
            reader.record_titles_below(root);
            pages.sort_by_cached_key(|page| page_title(page).to_lowercase());
        }
    }
    pages.truncate(limit);
    pages
}

/// Returns the date that the page sets itself, or else its last modification.
fn page_date(reader: &ContentReader, page: &Node) -> Option<JcrDate> {
    let property = reader.property(&page_content(reader, page)?, "date");
    match property.as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(*date),
        Some(value) => {
            JcrDate::parse(&value.to_text()).ok().or_else(|| page_modified(reader, page))
        }
        None => page_modified(reader, page),
    }
}

/// Returns the sort key of a date; pages without one sort first.
fn date_sort_millis(date: Option<JcrDate>) -> i64 {
    date.map_or(i64::MIN, |date| date.millis)
}

/// Returns the pages below a root whose titles contain every word of a term; titles that begin with the term come
/// first.
pub(crate) fn search_titles(
    reader: &ContentReader,
    root: &Node,
    term: &str,
    limit: usize,
) -> Vec<Node> {
    let term = term.trim().to_lowercase();
    let words: Vec<&str> = term.split_whitespace().collect();
    if words.is_empty() {
        return Vec::new();
    }
    reader.record_titles_below(root);
    let mut pages: Vec<(bool, Node)> = pages_below(reader, root)
        .into_iter()
        .filter_map(|page| {
            let title = page_title(&page).to_lowercase();
            let holds_all = words.iter().all(|word| title.contains(word));
            holds_all.then(|| (!title.starts_with(&term), page))
        })
        .collect();
    pages.sort_by_key(|(is_inner, _)| *is_inner);
    pages.into_iter().take(limit).map(|(_, page)| page).collect()
}

/// A tag and the number of pages that have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageTag {
    /// The identifier as pages store it, such as `wayfare:season/winter`.
    pub id: String,
    /// The title of the tag's node, or else the last part of the identifier in readable form.
    pub title: String,
    /// Number of pages of the subtree that have it.
    pub count: usize,
}

/// Returns the identifiers of a page's tags.
pub(crate) fn page_tag_ids(reader: &ContentReader, page: &Node) -> Vec<String> {
    let content = page_content(reader, page);
    let property = content.and_then(|content| reader.property(&content, "cq:tags"));
    property
        .map(|tags| tags.values().iter().map(|tag| tag.to_text().into_owned()).collect())
        .unwrap_or_default()
}

/// Returns the tags of the pages at and below a root, sorted by title.
pub(crate) fn tags_below(reader: &ContentReader, root: &Node) -> Vec<PageTag> {
    let counts = tag_counts_below(reader, root);
    let mut tags: Vec<PageTag> = counts
        .into_iter()
        .map(|(id, count)| PageTag { count, ..describe_tag(reader, id) })
        .collect();
    tags.sort_by(|left, right| {
        (left.title.to_lowercase(), &left.id).cmp(&(right.title.to_lowercase(), &right.id))
    });
    tags
}

/// Returns the tags of the pages at and below a root, with the number of pages that have each.
fn tag_counts_below(reader: &ContentReader, root: &Node) -> BTreeMap<String, usize> {
    reader.read_list(ListQueryKind::Tags { root: root.path().clone() }, || {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let pages =
            std::iter::once(root.clone()).filter(Node::is_page).chain(pages_below(reader, root));
        for page in pages {
            for id in page_tag_ids(reader, &page) {
                *counts.entry(id).or_default() += 1;
            }
        }
        counts
    })
}

/// Looks up the title of a tag.
pub(crate) fn describe_tag(reader: &ContentReader, id: String) -> PageTag {
    let path = format!("{TAGS_FOLDER}/{}", id.replacen(':', "/", 1));
    let mut node = reader.node_existence_at(&path);
    // The remaining node of a moved tag names its new location.
    for _ in 0..MAX_TAG_MOVES {
        let moved_to = node.as_ref().and_then(|node| reader.text_property(node, "cq:movedTo"));
        let Some(path) = moved_to.filter(|path| !path.is_empty()) else { break };
        node = reader.node_existence_at(&path);
    }
    let described = node.and_then(|node| reader.text_property(&node, "jcr:title"));
    let title =
        described.filter(|title| !title.is_empty()).unwrap_or_else(|| readable_tag_title(&id));
    PageTag { id, title, count: 0 }
}

/// Derives a title from a tag's identifier: `season/late-summer` becomes `Late summer`.
fn readable_tag_title(id: &str) -> String {
    let name = id.rsplit([':', '/']).next().unwrap_or(id).replace(['-', '_'], " ");
    let mut letters = name.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

/// Converts an author's input to a link: page paths get `.html`, addresses that could run code become `#`.
pub(crate) fn sanitize_href(reader: &ContentReader, href: &str) -> String {
    match parse_author_link(href) {
        AuthorLink::Blocked => BLOCKED_LINK.to_owned(),
        AuthorLink::External(text) => text.to_owned(),
        AuthorLink::Path { path, query_and_fragment } => {
            let is_page = !path.ends_with(".html")
                && reader.node_existence_at(path).is_some_and(|node| node.is_page());
            let path = encode_path(path);
            if is_page {
                format!("{path}.html{query_and_fragment}")
            } else {
                format!("{path}{query_and_fragment}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_titles_of_identifiers() {
        assert_eq!(readable_tag_title("wayfare:season/late-summer"), "Late summer");
        assert_eq!(readable_tag_title("wayfare:x_y"), "X y");
        assert_eq!(readable_tag_title("ärger"), "Ärger");
        assert_eq!(readable_tag_title(""), "");
    }
}
