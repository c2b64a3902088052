//! Lists as dependencies: a question to content whose answer decides what is shown, whatever else changes around it.
//!
//! In: a list that a drawing asked for. Out: a [`Listing`]: the scope that a change has to touch to change the answer,
//! for whoever cannot ask again, and the answer in any state, for whoever can.
//!
//! Invariants
//! * The answer is a function of the question and the state, as a viewer sees it.
//! * A change that does not touch the scope does not change the answer.
//! * What is read of the nodes that were selected is noted for itself.
//!
//! Not here: when it is asked again ([`crate::ledger`]).

use sha2::{Digest, Sha256};
use tympan_content::{NodePath, Snapshot};

use crate::dependency::{Aspects, Dependency, hash, hash_path, mix};
use crate::page::{self, Order};
use crate::reads::{Reader, Recording};

/// Longer questions are not asked again.
const MAX_BYTES: usize = 1024;

/// What was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// Which pages below a root come first in an order, perhaps only of those with a tag.
    Pages { root: NodePath, order: Order, tag: Option<String>, limit: usize },
    /// How many pages at and below a root carry which tags.
    Tags { root: NodePath },
}

/// A question that can be asked again.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    id: u64,
    text: Box<str>,
    question: Question,
    scope: Dependency,
}

/// Returns what tells a question from others. Visitors choose parts of some questions, and one that looks like another
/// would answer for it: so this is a hash that nobody can aim at.
fn id_of(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.first_chunk().map_or(1, |bytes| u64::from_le_bytes(*bytes)).max(1)
}

impl Listing {
    /// Makes what stands for a question; nothing if it cannot be written down.
    pub(crate) fn new(question: Question) -> Option<Self> {
        let text = question.to_text().into_boxed_str();
        let is_plain =
            text.len() <= MAX_BYTES && Question::parse(&text).as_ref() == Some(&question);
        let scope = question.scope();
        is_plain.then(|| Self { id: id_of(&text), text, question, scope })
    }

    /// Reads one that was written down.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::new(Question::parse(text)?)
    }

    /// Returns what tells questions apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the question as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the node below which is listed.
    pub(crate) fn root(&self) -> &NodePath {
        self.question.root()
    }

    /// Returns what a change has to touch to change the answer.
    pub(crate) fn scope(&self) -> Dependency {
        self.scope
    }

    /// Returns a digest of the answer in a state, as its viewer sees it, and how much was read for it; nothing if content
    /// cannot be read.
    pub(crate) fn answer(&self, state: &Snapshot) -> Option<(u64, u64)> {
        let reader = Reader::new(state.clone(), Recording::Count);
        let root = reader.glance(self.question.root());
        let digest = root.map_or(0, |root| match &self.question {
            Question::Pages { order, tag, limit, .. } => {
                let pages = page::list(&reader, &root, *order, tag.as_deref(), *limit);
                pages.iter().fold(1, |digest, page| mix(digest ^ hash_path(page.path())))
            }
            Question::Tags { .. } => {
                let counts = page::tag_counts(&reader, &root);
                counts
                    .iter()
                    .fold(1, |digest, (id, count)| mix(mix(digest ^ hash(id)) ^ *count as u64))
            }
        });
        reader.failure().is_none().then_some((digest, reader.count()))
    }
}

impl PartialEq for Listing {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Listing {}

impl Question {
    /// Returns the node below which is listed.
    pub(crate) fn root(&self) -> &NodePath {
        match self {
            Self::Pages { root, .. } | Self::Tags { root } => root,
        }
    }

    /// Returns what a change has to touch to change the answer.
    pub(crate) fn scope(&self) -> Dependency {
        let aspects = match self {
            Self::Pages { order, tag, .. } => {
                let order = match order {
                    Order::Modified => Aspects::DATES_BELOW,
                    // Pages that give no date themselves have that of their last modification.
                    Order::Date => Aspects::DATES_BELOW.and(Aspects::MARKS_BELOW),
                    Order::Title => Aspects::TITLES_BELOW,
                };
                let tag = if tag.is_some() { Aspects::MARKS_BELOW } else { Aspects::default() };
                Aspects::HEADS_BELOW.and(order).and(tag)
            }
            Self::Tags { .. } => Aspects::HEADS_BELOW.and(Aspects::MARKS_BELOW),
        };
        (hash_path(self.root()), aspects)
    }

    /// Writes the question down, its parts between zeros.
    fn to_text(&self) -> String {
        match self {
            Self::Pages { root, order, tag, limit } => {
                let order = match order {
                    Order::Modified => "modified",
                    Order::Date => "date",
                    Order::Title => "title",
                };
                let tag = tag.as_ref().map(|tag| format!("\0{tag}")).unwrap_or_default();
                format!("pages\0{root}\0{order}\0{limit}{tag}")
            }
            Self::Tags { root } => format!("tags\0{root}"),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once('\0')?;
        if kind == "tags" {
            return Some(Self::Tags { root: NodePath::new(rest).ok()? });
        }
        let mut parts = rest.splitn(4, '\0');
        let root = NodePath::new(parts.next()?).ok()?;
        let order = match parts.next()? {
            "modified" => Order::Modified,
            "date" => Order::Date,
            "title" => Order::Title,
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

    fn pages(root: &str, tag: Option<&str>, limit: usize) -> Question {
        let (root, tag) = (NodePath::new(root).unwrap(), tag.map(str::to_owned));
        Question::Pages { root, order: Order::Date, tag, limit }
    }

    #[test]
    fn questions_are_read_back() {
        for question in [
            pages("/content/a b", None, 3),
            pages("/", Some(""), usize::MAX),
            pages("/content/ä", Some("a:b/c\0d"), 0),
            Question::Tags { root: NodePath::new("/content").unwrap() },
        ] {
            let listing = Listing::new(question.clone()).unwrap();
            let again = Listing::parse(listing.text()).unwrap();
            assert_eq!((again.id(), again.question), (listing.id(), question));
        }
        for text in
            ["", "pages", "pages\0/a", "pages\x00/a\x00none\x001", "pages\0/a\0date\0-1", "x\0/a"]
        {
            assert_eq!(Listing::parse(text), None, "{text:?}");
        }
        assert_eq!(Listing::new(pages("/a", Some(&"x".repeat(MAX_BYTES)), 1)), None);
    }
}
