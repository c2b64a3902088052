//! Lists as dependencies: queries of content whose results are shown.
//!
//! Input: a list that a rendering requested. Output: a [`ListQuery`] with the scope that a change has to touch to
//! change the result, for callers that cannot repeat the query, and with the result in any state, for callers that can.
//!
//! Invariants
//! * The result is a function of the query and the state, as a viewer sees it.
//! * A change that does not touch the scope does not change the result.
//! * Reads of the selected nodes are recorded separately.
//!
//! Not here: when a query is repeated ([`crate::ledger`]).

use sha2::{Digest, Sha256};
use tympan_content::NodePath;
use tympan_content_fragments::FragmentListQuery;

use crate::dependency::path_dependency::{PathAspects, PathDependency, hash_path};

/// Maximum length of a query text, in bytes; longer queries are not repeated.
const MAX_QUERY_TEXT_BYTES: usize = 1024;

/// The order of pages in [`list_pages`](crate::page::list_pages).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageOrder {
    /// Last modified first.
    Modified,
    /// The property `date` of the content, else the last modification; latest first.
    Date,
    /// By title, ignoring case.
    Title,
}

/// The kind of a list query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListQueryKind {
    /// The first pages below a root in an order, optionally only those with a tag.
    Pages { root: NodePath, order: PageOrder, tag: Option<String>, limit: usize },
    /// The tags of the pages at and below a root, and the number of pages with each.
    Tags { root: NodePath },
    /// Content fragments of a model; the root is the folder of all fragments.
    Fragments { root: NodePath, query: Box<FragmentListQuery> },
}

/// A repeatable list query.
#[derive(Debug, Clone)]
pub(crate) struct ListQuery {
    id: u64,
    text: Box<str>,
    pub(super) kind: ListQueryKind,
    scope_dependency: PathDependency,
}

/// Returns the identifier of a query. Visitors choose parts of some queries, and a colliding query would replace
/// another one, so this is a cryptographic hash.
fn query_id(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes)).max(1)
}

impl ListQuery {
    /// Creates a list query; `None` if it cannot be written as text.
    pub(crate) fn new(question: ListQueryKind) -> Option<Self> {
        let text = question.to_text().into_boxed_str();
        let is_plain = text.len() <= MAX_QUERY_TEXT_BYTES
            && ListQueryKind::parse(&text).as_ref() == Some(&question);
        let scope = question.scope_dependency();
        is_plain.then(|| Self {
            id: query_id(&text),
            text,
            kind: question,
            scope_dependency: scope,
        })
    }

    /// Parses the text form of a query.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::new(ListQueryKind::parse(text)?)
    }

    /// Returns the identifier of the query.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the text form of the query.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the root node of the list.
    pub(crate) fn root(&self) -> &NodePath {
        self.kind.root()
    }

    /// Returns the dependency that a change has to touch to change the result.
    pub(crate) fn scope_dependency(&self) -> PathDependency {
        self.scope_dependency
    }
}

impl PartialEq for ListQuery {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ListQuery {}

impl ListQueryKind {
    /// Returns the root node of the list.
    pub(crate) fn root(&self) -> &NodePath {
        match self {
            Self::Pages { root, .. } | Self::Tags { root } | Self::Fragments { root, .. } => root,
        }
    }

    /// Returns the dependency that a change has to touch to change the result.
    pub(crate) fn scope_dependency(&self) -> PathDependency {
        let aspects = match self {
            Self::Pages { order, tag, .. } => {
                let order = match order {
                    PageOrder::Modified => PathAspects::DATES_BELOW,
                    // Pages without a date of their own use that of their last modification.
                    PageOrder::Date => {
                        PathAspects::DATES_BELOW.combine(PathAspects::LIST_KEYS_BELOW)
                    }
                    PageOrder::Title => PathAspects::TITLES_BELOW,
                };
                let tag = if tag.is_some() {
                    PathAspects::LIST_KEYS_BELOW
                } else {
                    PathAspects::default()
                };
                PathAspects::HEADS_BELOW.combine(order).combine(tag)
            }
            Self::Tags { .. } => PathAspects::HEADS_BELOW.combine(PathAspects::LIST_KEYS_BELOW),
            // Any field may be a part of the filter or of the order.
            Self::Fragments { .. } => PathAspects::SUBTREE,
        };
        (hash_path(self.root()), aspects)
    }

    /// Writes the query as text, its parts separated by zeros.
    fn to_text(&self) -> String {
        match self {
            Self::Pages { root, order, tag, limit } => {
                let order = match order {
                    PageOrder::Modified => "modified",
                    PageOrder::Date => "date",
                    PageOrder::Title => "title",
                };
                let tag = tag.as_ref().map(|tag| format!("\0{tag}")).unwrap_or_default();
                format!("pages\0{root}\0{order}\0{limit}{tag}")
            }
            Self::Tags { root } => format!("tags\0{root}"),
            Self::Fragments { root, query } => format!("fragments\0{root}\0{}", query.to_text()),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('\0')?;
        if kind == "tags" {
            return Some(Self::Tags { root: NodePath::new(rest).ok()? });
        }
        if kind == "fragments" {
            let (root, query) = rest.split_once('\0')?;
            let query = Box::new(FragmentListQuery::parse(query)?);
            return Some(Self::Fragments { root: NodePath::new(root).ok()?, query });
        }
        let mut parts = rest.splitn(4, '\0');
        let root = NodePath::new(parts.next()?).ok()?;
        let order = match parts.next()? {
            "modified" => PageOrder::Modified,
            "date" => PageOrder::Date,
            "title" => PageOrder::Title,
            _ => return None,
        };
        let limit = parts.next()?.parse().ok()?;
        let tag = parts.next().map(str::to_owned);
        (kind == "pages").then_some(Self::Pages { root, order, tag, limit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(root: &str, tag: Option<&str>, limit: usize) -> ListQueryKind {
        let (root, tag) = (NodePath::new(root).unwrap(), tag.map(str::to_owned));
        ListQueryKind::Pages { root, order: PageOrder::Date, tag, limit }
    }

    #[test]
    fn questions_are_read_back() {
        for question in [
            pages("/content/a b", None, 3),
            pages("/", Some(""), usize::MAX),
            pages("/content/ä", Some("a:b/c\0d"), 0),
            ListQueryKind::Tags { root: NodePath::new("/content").unwrap() },
        ] {
            let listing = ListQuery::new(question.clone()).unwrap();
            let again = ListQuery::parse(listing.text()).unwrap();
            assert_eq!((again.id(), again.kind), (listing.id(), question));
        }
        for text in
            ["", "pages", "pages\0/a", "pages\x00/a\x00none\x001", "pages\0/a\0date\0-1", "x\0/a"]
        {
            assert_eq!(ListQuery::parse(text), None, "{text:?}");
        }
        assert_eq!(ListQuery::new(pages("/a", Some(&"x".repeat(MAX_QUERY_TEXT_BYTES)), 1)), None);
    }
}
