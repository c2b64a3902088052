//! The interface of the full-text index for queries.
//!
//! In: a [`FullTextRequest`], whose expression [`FullTextExpression::parse`] parses from the syntax of `CONTAINS`. Out:
//! pages of hits, best first, continued by position and not by number.
//!
//! Not here: the index itself (crate `search`), and the visibility of hits, which the query engine checks afterwards.

use std::sync::Arc;

use tympan_content::{ChunkId, NodePath};

use crate::Result;

/// The interface of the full-text index for queries; the `search` crate implements it.
pub trait FullTextIndex: Send + Sync + std::fmt::Debug {
    /// Returns one page of the matching documents, best first.
    ///
    /// # Errors
    /// If the index fails.
    fn search(&self, request: &FullTextRequest) -> Result<FullTextPage>;

    /// Returns completions of a prefix, most frequent first. With a `reader`, both the presence and the absence of a
    /// completion depend only on what it may read.
    ///
    /// # Errors
    /// If the index fails.
    fn suggest(
        &self,
        prefix: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> Result<Vec<String>>;

    /// Returns corrections of misspelled words. With a `reader`, a word is known only if it occurs in a text that the
    /// reader may read.
    ///
    /// # Errors
    /// If the index fails.
    fn spellcheck(
        &self,
        text: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> Result<Vec<String>>;

    /// Returns the root that the index reflects.
    fn indexed_root(&self) -> Option<ChunkId>;

    /// Returns the index pinned to its current state, which does not follow later content; `None` while the index has
    /// no state yet.
    fn pinned_state(&self) -> Option<Arc<dyn FullTextIndex>>;

    /// Returns true if documents at and below a path are indexed.
    fn covers(&self, path: &NodePath) -> bool;

    /// Returns true if any document has words in a property of this name, which may be a path as in
    /// [`FullTextRequest`].
    ///
    /// # Errors
    /// If the index fails.
    fn has_property(&self, property: &str) -> Result<bool>;

    /// Returns a document as a hit; `None` if it does not match. The start position of the request is ignored.
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

/// A function that returns the text of an indexed document that a viewer may read.
pub type ReadableTextFn<'a> = &'a dyn Fn(&NodePath) -> Result<ReadableText>;

/// The text of a document that a viewer may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadableText {
    /// Nothing; or the index has the document in another state than the requested one.
    Nothing,
    /// Only these texts.
    Partial(Vec<String>),
    /// The whole text.
    Whole,
}

/// A full-text search request.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextRequest {
    /// The search expression.
    pub expression: FullTextExpression,
    /// The property to search, relative to the node, such as `jcr:content/jcr:title`; `None` for any.
    pub property: Option<String>,
    /// Node types of which a hit must have one; empty for all types.
    pub node_types: Vec<String>,
    /// The ancestor of all hits.
    pub ancestor: Option<NodePath>,
    /// The end of the previous page.
    pub after: Option<FullTextPosition>,
    /// Maximum number of hits.
    pub limit: usize,
    /// The properties whose values are counted.
    pub facets: Vec<String>,
    /// True if hits include an excerpt.
    pub wants_excerpt: bool,
}

/// A condition on the words of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum FullTextExpression {
    /// A single word.
    Term(String),
    /// A sequence of words.
    Phrase(String),
    /// The beginning of a word.
    Prefix(String),
    /// A word with `*` for any characters and `?` for any one.
    Wildcard(String),
    /// All of these expressions match.
    And(Vec<Self>),
    /// At least one of these expressions matches.
    Or(Vec<Self>),
    /// The expression does not match.
    Not(Box<Self>),
    /// An expression with a factor for its score.
    Boost(Box<Self>, f32),
    /// Text similar to that of another node.
    Similar(NodePath),
}

/// A position in the order of hits: by descending score, then by path.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextPosition {
    /// The score of the last hit.
    pub score: f32,
    /// The path of the last hit.
    pub path: NodePath,
}

/// A matching document.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextHit {
    /// The node.
    pub path: NodePath,
    /// The score of the match.
    pub score: f32,
    /// An excerpt of the text with the matching words marked.
    pub excerpt: Option<String>,
}

/// One page of hits.
#[derive(Debug, Clone, PartialEq)]
pub struct FullTextPage {
    /// The hits, best first.
    pub hits: Vec<FullTextHit>,
    /// For each requested property, its values with the number of hits that have them.
    pub facets: Vec<(String, Vec<(String, u64)>)>,
    /// The estimated total number of hits.
    pub estimated_total: u64,
    /// The root that the index reflected.
    pub indexed_root: ChunkId,
}
