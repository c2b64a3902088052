//! Pages: what navigation, lists and searches ask of `cq:Page` nodes.
//!
//! Titles, dates and visibility come from the headers of records, so a navigation of a hundred pages reads no body.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tympan_content::{Date, JCR_CONTENT, Node, NodePath, Property, Summary, Value};

use crate::link::{BLOCKED, Target, encode_path, read};
use crate::listing::Question;
use crate::reads::Reader;

/// The folder in which tags are described.
const TAGS: &str = "/content/cq:tags";
/// A longer chain of moves of a tag is a mistake.
const MAX_TAG_MOVES: usize = 16;

/// How [`list`] orders pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Last modified first.
    Modified,
    /// The property `date` of the content, else the last modification; latest first.
    Date,
    /// By title, ignoring case.
    Title,
}

/// Returns the title, or the name where there is none.
pub(crate) fn title(page: &Node) -> String {
    let title = page.summary().and_then(|summary| summary.title());
    title.filter(|title| !title.is_empty()).unwrap_or_else(|| page.name()).to_owned()
}

/// Returns the language of a page: what it says itself, or the nearest page above; empty if none does.
pub(crate) fn language(reader: &Reader, page: &Node) -> String {
    let mut next = Some(page.clone());
    while let Some(page) = next {
        let content = content(reader, &page);
        let language = content.and_then(|content| reader.text(&content, "jcr:language"));
        if let Some(language) = language.filter(|language| !language.is_empty()) {
            return language;
        }
        next = page.path().parent().and_then(|above| containing(reader, &above));
    }
    String::new()
}

/// Tells whether navigations leave the page out.
pub(crate) fn is_hidden(page: &Node) -> bool {
    page.summary().is_some_and(Summary::hide_in_nav)
}

/// Returns the last modification.
pub(crate) fn modified(reader: &Reader, page: &Node) -> Option<Date> {
    reader.modified(page)
}

/// Returns the page that a path belongs to: the nearest page at or above it, whether or not the node itself exists.
pub(crate) fn containing(reader: &Reader, path: &NodePath) -> Option<Node> {
    // Nothing below a page's content is a page, so its nodes need not be looked up.
    let text = path.as_str();
    let start = text.find("/jcr:content").map_or(text, |at| text.get(..at).unwrap_or(text));
    let mut next = NodePath::new(start).ok();
    while let Some(path) = next {
        if let Some(page) = reader.glance(&path).filter(Node::is_page) {
            return Some(page);
        }
        next = path.parent();
    }
    None
}

/// Returns the sub-pages that navigations show, in order.
pub(crate) fn visible_children(reader: &Reader, page: &Node) -> Vec<Node> {
    reader.shown_children(page)
}

/// Returns the page's content node.
pub(crate) fn content(reader: &Reader, page: &Node) -> Option<Node> {
    reader.glance_child(page, JCR_CONTENT)
}

/// Returns the pages above a page that are at least `min_depth` names deep, and the page itself, topmost first.
pub(crate) fn trail(reader: &Reader, page: &Node, min_depth: usize) -> Vec<Node> {
    let mut trail = Vec::new();
    let mut next = Some(page.clone());
    while let Some(page) = next.filter(|page| page.path().depth() >= min_depth) {
        let parent = page.path().parent().filter(|parent| parent.depth() >= min_depth);
        next = parent.and_then(|parent| reader.glance(&parent));
        if page.is_page() {
            trail.push(page);
        }
    }
    trail.reverse();
    trail
}

/// Returns the pages below a page, at any depth.
pub(crate) fn below(reader: &Reader, root: &Node) -> Vec<Node> {
    reader.pages_below(root)
}

/// Returns the first pages below a root in an order, perhaps only those with a tag.
pub(crate) fn list(
    reader: &Reader,
    root: &Node,
    order: Order,
    tag: Option<&str>,
    limit: usize,
) -> Vec<Node> {
    let (path, tagged) = (root.path().clone(), tag.map(str::to_owned));
    let question = Question::Pages { root: path, order, tag: tagged, limit };
    reader.listed(question, || select(reader, root, order, tag, limit))
}

/// Reads what [`list`] returns.
fn select(
    reader: &Reader,
    root: &Node,
    order: Order,
    tag: Option<&str>,
    limit: usize,
) -> Vec<Node> {
    let mut pages = below(reader, root);
    if let Some(tag) = tag {
        pages.retain(|page| tag_ids(reader, page).iter().any(|id| id == tag));
    }
    match order {
        Order::Modified => {
            reader.note_dates_below(root);
            let modified = |page: &Node| page.summary().and_then(Summary::modified);
            pages.sort_by_cached_key(|page| Reverse(millis(modified(page))));
        }
        Order::Date => pages.sort_by_cached_key(|page| Reverse(millis(date(reader, page)))),
        Order::Title => {
            reader.note_titles_below(root);
            pages.sort_by_cached_key(|page| title(page).to_lowercase());
        }
    }
    pages.truncate(limit);
    pages
}

/// Returns the date that the page gives itself, else its last modification.
fn date(reader: &Reader, page: &Node) -> Option<Date> {
    let property = reader.property(&content(reader, page)?, "date");
    match property.as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(*date),
        Some(value) => Date::parse(&value.to_text()).ok().or_else(|| modified(reader, page)),
        None => modified(reader, page),
    }
}

/// Orders pages without a date before all others.
fn millis(date: Option<Date>) -> i64 {
    date.map_or(i64::MIN, |date| date.millis)
}

/// Returns the pages below a root whose titles hold every word of a term, those that begin with the term first.
pub(crate) fn search_titles(reader: &Reader, root: &Node, term: &str, limit: usize) -> Vec<Node> {
    let term = term.trim().to_lowercase();
    let words: Vec<&str> = term.split_whitespace().collect();
    if words.is_empty() {
        return Vec::new();
    }
    reader.note_titles_below(root);
    let mut found: Vec<(bool, Node)> = below(reader, root)
        .into_iter()
        .filter_map(|page| {
            let title = title(&page).to_lowercase();
            let holds_all = words.iter().all(|word| title.contains(word));
            holds_all.then(|| (!title.starts_with(&term), page))
        })
        .collect();
    found.sort_by_key(|(is_inner, _)| *is_inner);
    found.into_iter().take(limit).map(|(_, page)| page).collect()
}

/// A tag and how many pages carry it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tag {
    /// The identifier as pages store it, such as `wayfare:season/winter`.
    pub id: String,
    /// The title of the tag's node, else the last part of the identifier, made readable.
    pub title: String,
    /// How many pages of the counted subtree carry it.
    pub count: usize,
}

/// Returns the identifiers of a page's tags.
pub(crate) fn tag_ids(reader: &Reader, page: &Node) -> Vec<String> {
    let content = content(reader, page);
    let property = content.and_then(|content| reader.property(&content, "cq:tags"));
    property
        .map(|tags| tags.values().iter().map(|tag| tag.to_text().into_owned()).collect())
        .unwrap_or_default()
}

/// Returns the tags of the pages at and below a root, by title.
pub(crate) fn tags(reader: &Reader, root: &Node) -> Vec<Tag> {
    let counts = tag_counts(reader, root);
    let mut tags: Vec<Tag> =
        counts.into_iter().map(|(id, count)| Tag { count, ..describe_tag(reader, id) }).collect();
    tags.sort_by(|left, right| {
        (left.title.to_lowercase(), &left.id).cmp(&(right.title.to_lowercase(), &right.id))
    });
    tags
}

/// Returns the tags of the pages at and below a root, and how many of these carry each.
pub(crate) fn tag_counts(reader: &Reader, root: &Node) -> BTreeMap<String, usize> {
    reader.listed(Question::Tags { root: root.path().clone() }, || {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let pages = std::iter::once(root.clone()).filter(Node::is_page).chain(below(reader, root));
        for page in pages {
            for id in tag_ids(reader, &page) {
                *counts.entry(id).or_default() += 1;
            }
        }
        counts
    })
}

/// Looks up the title of a tag.
pub(crate) fn describe_tag(reader: &Reader, id: String) -> Tag {
    let path = format!("{TAGS}/{}", id.replacen(':', "/", 1));
    let mut node = reader.glance_at(&path);
    // What is left of a moved tag leads to the one that it has become.
    for _ in 0..MAX_TAG_MOVES {
        let moved_to = node.as_ref().and_then(|node| reader.text(node, "cq:movedTo"));
        let Some(path) = moved_to.filter(|path| !path.is_empty()) else { break };
        node = reader.glance_at(&path);
    }
    let described = node.and_then(|node| reader.text(&node, "jcr:title"));
    let title = described.filter(|title| !title.is_empty()).unwrap_or_else(|| readable(&id));
    Tag { id, title, count: 0 }
}

/// Makes a title of a tag's identifier: `season/late-summer` becomes `Late summer`.
fn readable(id: &str) -> String {
    let name = id.rsplit([':', '/']).next().unwrap_or(id).replace(['-', '_'], " ");
    let mut letters = name.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().collect::<String>() + letters.as_str())
        .unwrap_or_default()
}

/// Writes what an author gave as a link: page paths get `.html`, what could run code becomes `#`.
pub(crate) fn href(reader: &Reader, href: &str) -> String {
    match read(href) {
        Target::Blocked => BLOCKED.to_owned(),
        Target::Other(text) => text.to_owned(),
        Target::Path { path, rest } => {
            let is_page = !path.ends_with(".html")
                && reader.glance_at(path).is_some_and(|node| node.is_page());
            let path = encode_path(path);
            if is_page { format!("{path}.html{rest}") } else { format!("{path}{rest}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn makes_titles_of_identifiers() {
        assert_eq!(readable("wayfare:season/late-summer"), "Late summer");
        assert_eq!(readable("wayfare:x_y"), "X y");
        assert_eq!(readable("ärger"), "Ärger");
        assert_eq!(readable(""), "");
    }
}
