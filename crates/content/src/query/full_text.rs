//! The full-text index as queries see it.
//!
//! In: a [`FullTextRequest`], whose expression [`FullTextExpression::parse`] reads from the syntax of `CONTAINS`.
//! Out: pages of hits, best first, continued by position and not by number.
//!
//! Not here: the index itself (room `search`); and who may see a hit, which the query engine checks afterwards.

use std::sync::Arc;

use tympan_store::ChunkId;

use crate::{NodePath, Result};

/// The full-text index as queries see it; the search room implements it.
pub trait FullTextIndex: Send + Sync + std::fmt::Debug {
    /// Returns one page of the documents that match, best first.
    ///
    /// # Errors
    /// If the index fails.
    fn search(&self, request: &FullTextRequest) -> Result<FullTextPage>;

    /// Returns completions of a prefix, most frequent first. With a `reader` what is said, and what is not, follows from
    /// what that one may read.
    ///
    /// # Errors
    /// If the index fails.
    fn suggest(
        &self,
        prefix: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> Result<Vec<String>>;

    /// Returns nearby words for misspelled ones. With a `reader` a word is known if that one may read it somewhere.
    ///
    /// # Errors
    /// If the index fails.
    fn spellcheck(
        &self,
        text: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> Result<Vec<String>>;

    /// Returns the root that the index answers for.
    fn indexed_root(&self) -> Option<ChunkId>;

    /// Returns the index as it is now, which does not go on with the content; nothing while it cannot answer yet.
    fn pinned_state(&self) -> Option<Arc<dyn FullTextIndex>>;

    /// Tells whether documents at and below a path are in the index.
    fn covers(&self, path: &NodePath) -> bool;

    /// Tells whether any document has words in a property of this name, which may be a path as in [`FullTextRequest`].
    ///
    /// # Errors
    /// If the index fails.
    fn has_property(&self, property: &str) -> Result<bool>;

    /// Returns the hit that a document is, or nothing; where the request's page begins does not matter.
    ///
    /// # Errors
    /// If the index fails.
    fn find_hit(
        &self,
        request: &FullTextRequest,
        document: &NodePath,
    ) -> Result<Option<FullTextHit>> {
        let mut request = FullTextRequest {
            ancestor: Some(document.clone()),
            after: None,
            facets: Vec::new(),
            ..request.clone()
        };
        loop {
            let mut hits = self.search(&request)?.hits;
            let is_last = hits.len() < request.limit;
            if let Some(at) = hits.iter().position(|hit| hit.path == *document) {
                return Ok(Some(hits.swap_remove(at)));
            }
            let Some(last) = hits.pop().filter(|_| !is_last) else { return Ok(None) };
            request.after = Some(FullTextPosition { score: last.score, path: last.path });
        }
    }
}

/// Tells what somebody may read of a document that the index has.
pub type ReadableTextFn<'a> = &'a dyn Fn(&NodePath) -> Result<ReadableText>;

/// What somebody may read of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadableText {
    /// Nothing; or the index has another state of the document than the one that is asked about.
    Nothing,
    /// These texts.
    Partial(Vec<String>),
    /// All of it.
    Whole,
}

/// What to look for.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextRequest {
    /// The words.
    pub expression: FullTextExpression,
    /// The property that must hold them, relative to the node, such as `jcr:content/jcr:title`; none for any.
    pub property: Option<String>,
    /// Node types of which a hit must have one; empty for all.
    pub node_types: Vec<String>,
    /// The node that hits lie below.
    pub ancestor: Option<NodePath>,
    /// Where the page before this one ended.
    pub after: Option<FullTextPosition>,
    /// The most hits to return.
    pub limit: usize,
    /// The properties whose values are to be counted.
    pub facets: Vec<String>,
    /// Whether hits carry an excerpt.
    pub wants_excerpt: bool,
}

/// A condition on the words of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum FullTextExpression {
    /// A word.
    Term(String),
    /// Words that follow each other.
    Phrase(String),
    /// The beginning of a word.
    Prefix(String),
    /// A word with `*` for any characters and `?` for any one.
    Wildcard(String),
    /// All of these.
    And(Vec<Self>),
    /// At least one of these.
    Or(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// This, counting more or less than the rest.
    Boost(Box<Self>, f32),
    /// The words of another node.
    Similar(NodePath),
}

/// A place in the order of hits: by falling score, then by path.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextPosition {
    /// The score of the last hit.
    pub score: f32,
    /// Its path.
    pub path: NodePath,
}

/// A document that matches.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextHit {
    /// The node.
    pub path: NodePath,
    /// How well it matches.
    pub score: f32,
    /// A part of its text with the words marked.
    pub excerpt: Option<String>,
}

/// One page of hits.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextPage {
    /// The hits, best first.
    pub hits: Vec<FullTextHit>,
    /// For each property asked for, its values with the number of hits that have them.
    pub facets: Vec<(String, Vec<(String, u64)>)>,
    /// About how many hits there are in all.
    pub estimated_total: u64,
    /// The root that the index answered for.
    pub indexed_root: ChunkId,
}
