//! The sources of the nodes of one selector, and reading them one by one.
//!
//! Invariants
//! * A source returns every node that its selector's constraints admit, each once. It may return more; these are
//!   filtered later.
//! * A source resumes after a [`NodeSourcePosition`] without reading what precedes it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_content::{
    IndexMap, KeySpan, Node, NodePath, NodeTypes, Snapshot, StateReader, split_entry,
};

use crate::full_text::FullTextIndex;
use crate::full_text_hit::{DEFAULT_SCORE, FullTextLag, FullTextSearch, read_hits};
use crate::query_limits::QueryLimits;
use crate::{Error, Result};

/// A property, and the number of occurrences of each of its values.
pub(crate) type FacetCounts = (String, Vec<(String, u64)>);

/// The context in which a query runs.
pub(crate) struct QueryContext<'a> {
    pub(crate) snapshot: &'a Snapshot,
    /// The maps of the snapshot's state.
    pub(crate) state: StateReader<'a>,
    pub(crate) node_types: Arc<NodeTypes>,
    pub(crate) full_text: Option<&'a dyn FullTextIndex>,
    /// The difference between the full-text index and the snapshot, once it was computed.
    pub(crate) full_text_lag: std::cell::OnceCell<FullTextLag>,
    pub(crate) limits: &'a QueryLimits,
    pub(crate) start_time: Instant,
    /// Number of index entries and nodes read.
    pub(crate) rows_read: Cell<u64>,
    /// Value counts from the full-text index.
    pub(crate) facet_counts: std::cell::RefCell<Vec<FacetCounts>>,
}

impl QueryContext<'_> {
    /// Counts one entry or node that was read, and fails if the limits are exceeded.
    pub(crate) fn count_row(&self) -> Result<()> {
        let rows = self.rows_read.get() + 1;
        self.rows_read.set(rows);
        if rows > self.limits.max_rows_read {
            let limit = self.limits.max_rows_read;
            return Err(Error::QueryLimit {
                limit: format!(
                    "it has read {limit} nodes and index entries (`query.max_rows_read`); add an index or a \
                     limit"
                ),
            });
        }
        // Read the clock only at intervals.
        let is_late = rows.is_multiple_of(1024) && self.elapsed() > self.limits.max_time;
        if is_late {
            let limit = self.limits.max_time.as_secs_f64();
            return Err(Error::QueryLimit {
                limit: format!(
                    "it has run for {limit} s (`query.max_time`); add an index or a limit"
                ),
            });
        }
        Ok(())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        (self.limits.clock)().saturating_duration_since(self.start_time)
    }
}

/// A source of nodes.
#[derive(Debug, Clone)]
pub(crate) enum NodeSource {
    /// Known paths, sorted, each once.
    Nodes(Vec<NodePath>),
    /// The nodes below a node, read by a scan; for `/`, all nodes including the root.
    Scan {
        /// The node below which the scan reads.
        root_path: NodePath,
        /// True if only the children of the node are read.
        is_children_only: bool,
    },
    /// Ranges of entries of an index.
    Spans(IndexSpans),
    /// Several sources in path order, merged.
    Union(Vec<NodeSource>),
    /// Hits of the full-text index.
    FullText(Box<FullTextSearch>),
}

/// Ranges of entries of an index.
#[derive(Debug, Clone)]
pub(crate) struct IndexSpans {
    /// The name of the map.
    pub(crate) map_name: String,
    pub(crate) map: IndexMap,
    pub(crate) spans: Vec<KeySpan>,
    /// True if each span holds only one value, so that all spans are merged in path order. Otherwise they are read one
    /// after the other, in key order.
    pub(crate) is_merged: bool,
    pub(crate) is_descending: bool,
    /// True if a node may have several entries in spans that are not merged. The entries must then be collected first.
    pub(crate) has_multiple_entries: bool,
    pub(crate) key_layout: IndexKeyLayout,
    /// The suffix removed from the paths of entries: the wanted node is that many names above the one that has the
    /// property.
    pub(crate) path_suffix: String,
}

impl IndexSpans {
    /// Returns true if nodes come in path order.
    fn is_path_ordered(&self) -> bool {
        self.has_multiple_entries || (self.is_merged && self.path_suffix.is_empty())
    }
}

/// The position of the path in the keys of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexKeyLayout {
    /// After the entry of the value.
    Property,
    /// After a text that ends with 0x00, up to the next 0x00.
    Text,
}

/// A node that may be part of the result.
#[derive(Debug, Clone)]
pub(crate) struct CandidateNode {
    pub(crate) path: NodePath,
    pub(crate) score: f32,
    pub(crate) excerpt: Option<String>,
    pub(crate) position: NodeSourcePosition,
    /// The node, visible or not, if reading the source has already loaded it.
    pub(crate) node: Option<Node>,
}

impl CandidateNode {
    /// Creates the candidate for a source without scores.
    pub(crate) fn new(path: NodePath, mark: NodeSourcePosition) -> Self {
        Self { path, score: DEFAULT_SCORE, excerpt: None, position: mark, node: None }
    }
}

/// A position in the order in which a source returns nodes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NodeSourcePosition {
    /// In path order.
    Path(NodePath),
    /// In key order of a map, with the path, because one key stands for one node.
    Key { map_name: String, key: Vec<u8> },
    /// In scan order.
    Scan { document: NodePath, path: NodePath },
    /// By descending score of documents; the nodes of a document by path.
    Score { score: f32, document: NodePath, path: NodePath },
}

pub(crate) type CandidateIterator<'a> = Box<dyn Iterator<Item = Result<CandidateNode>> + 'a>;

impl NodeSource {
    /// Returns true if the source can resume after a position.
    pub(crate) fn can_resume_at(&self, mark: &NodeSourcePosition) -> bool {
        match (self, mark) {
            (Self::Nodes(_) | Self::Union(_), NodeSourcePosition::Path(_))
            | (Self::Scan { .. }, NodeSourcePosition::Scan { .. })
            | (Self::FullText(_), NodeSourcePosition::Score { .. }) => true,
            (Self::Spans(spans), NodeSourcePosition::Path(_)) => spans.is_path_ordered(),
            (Self::Spans(spans), NodeSourcePosition::Key { map_name, .. }) => {
                !spans.is_path_ordered() && spans.map_name == *map_name
            }
            _ => false,
        }
    }
}

/// Reads the nodes of a source that is not a scan.
pub(crate) fn read_candidates<'a>(
    context: &'a QueryContext<'a>,
    source: &NodeSource,
    after: Option<&NodeSourcePosition>,
) -> CandidateIterator<'a> {
    match source {
        NodeSource::Nodes(paths) => path_candidates(paths, after),
        NodeSource::Spans(spans) if spans.is_merged => read_merged_spans(context, spans, after),
        NodeSource::Spans(spans) => read_sequential_spans(context, spans, after),
        NodeSource::Union(parts) => {
            let parts = parts.iter().map(|part| read_candidates(context, part, after).peekable());
            union_candidates(parts.collect())
        }
        NodeSource::FullText(search) => read_hits(context, search, after),
        // The caller that has the filter reads scans directly.
        NodeSource::Scan { .. } => Box::new(std::iter::empty()),
    }
}

/// Merges sources in path order, each node once.
fn union_candidates(mut parts: Vec<Peekable<CandidateIterator<'_>>>) -> CandidateIterator<'_> {
    let mut last: Option<NodePath> = None;
    Box::new(std::iter::from_fn(move || {
        loop {
            let mut least: Option<(usize, NodePath)> = None;
            for (at, part) in parts.iter_mut().enumerate() {
                match part.peek() {
                    Some(Err(_)) => return part.next(),
                    Some(Ok(candidate))
                        if least.as_ref().is_none_or(|(_, least)| candidate.path < *least) =>
                    {
                        least = Some((at, candidate.path.clone()));
                    }
                    Some(Ok(_)) | None => {}
                }
            }
            let (at, path) = least?;
            let next = parts.get_mut(at)?.next();
            if last.as_ref() != Some(&path) {
                last = Some(path);
                return next;
            }
        }
    }))
}

fn path_candidates<'a>(
    paths: &[NodePath],
    after: Option<&NodeSourcePosition>,
) -> CandidateIterator<'a> {
    let after = match after {
        Some(NodeSourcePosition::Path(path)) => Some(path.clone()),
        _ => None,
    };
    let paths: Vec<NodePath> = paths
        .iter()
        .filter(|path| after.as_ref().is_none_or(|after| *path > after))
        .cloned()
        .collect();
    Box::new(paths.into_iter().map(|path| {
        let mark = NodeSourcePosition::Path(path.clone());
        Ok(CandidateNode::new(path, mark))
    }))
}

/// Returns the node path in a key of an index.
fn path_in_key(key: &[u8], shape: IndexKeyLayout) -> Option<&str> {
    match shape {
        IndexKeyLayout::Property => split_entry(key).map(|(_, path)| path),
        IndexKeyLayout::Text => {
            let mut parts = key.split(|byte| *byte == 0);
            parts.next()?;
            std::str::from_utf8(parts.next()?).ok()
        }
    }
}

/// Returns the path of the selector's node to which a key leads.
fn selector_path_in_key<'k>(key: &'k [u8], spans: &IndexSpans) -> Option<&'k str> {
    let path = path_in_key(key, spans.key_layout)?;
    if spans.path_suffix.is_empty() {
        return Some(path);
    }
    let above = path.strip_suffix(&*spans.path_suffix)?.strip_suffix('/')?;
    Some(if above.is_empty() { "/" } else { above })
}

type SpanEntryIterator<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, NodePath)>> + 'a>;

/// Reads the entries of one span.
fn read_span_entries<'a>(
    context: &'a QueryContext<'a>,
    spans: &IndexSpans,
    start: Bound<&[u8]>,
    end: &[u8],
) -> SpanEntryIterator<'a> {
    let range = (start, Bound::Excluded(end));
    let scan = if spans.is_descending {
        context.state.entry_keys_reversed(spans.map, range)
    } else {
        context.state.entry_keys(spans.map, range)
    };
    let spans = IndexSpans { spans: Vec::new(), ..spans.clone() };
    Box::new(scan.filter_map(move |entry| {
        let key = match entry {
            Ok(key) => key,
            Err(error) => return Some(Err(error.into())),
        };
        if let Err(error) = context.count_row() {
            return Some(Err(error));
        }
        let path = selector_path_in_key(&key, &spans)?;
        Some(NodePath::new(path).map(|path| (key.to_vec(), path)).map_err(Error::from))
    }))
}

/// Reads the spans merged, in path order.
fn read_merged_spans<'a>(
    context: &'a QueryContext<'a>,
    spans: &IndexSpans,
    mark: Option<&NodeSourcePosition>,
) -> CandidateIterator<'a> {
    let after = match mark {
        Some(NodeSourcePosition::Path(path)) => Some(path.as_str().to_owned()),
        Some(NodeSourcePosition::Key { key, .. }) => {
            path_in_key(key, spans.key_layout).map(str::to_owned)
        }
        _ => None,
    };
    let by_key = !spans.path_suffix.is_empty();
    let mut parts: Vec<Peekable<SpanEntryIterator<'a>>> = Vec::new();
    for (start, end) in &spans.spans {
        // The path follows the common prefix of all keys of the span.
        let prefix = span_value_prefix(start, spans.key_layout);
        let from = after.as_ref().map(|after| [prefix, after.as_bytes(), &[0]].concat());
        let bound = match &from {
            Some(from) if *from > *start => Bound::Included(&**from),
            _ => Bound::Included(&**start),
        };
        parts.push(read_span_entries(context, spans, bound, end).peekable());
    }
    let map_name = spans.map_name.clone();
    let shape = spans.key_layout;
    let mut last = match mark {
        Some(NodeSourcePosition::Path(path)) => Some(path.clone()),
        _ => None,
    };
    Box::new(std::iter::from_fn(move || {
        loop {
            let mut least: Option<(usize, Vec<u8>)> = None;
            for (at, part) in parts.iter_mut().enumerate() {
                match part.peek() {
                    Some(Err(_)) => match part.next() {
                        Some(Err(error)) => return Some(Err(error)),
                        _ => return None,
                    },
                    Some(Ok((key, _))) => {
                        let path = path_in_key(key, shape).unwrap_or_default().as_bytes().to_vec();
                        if least.as_ref().is_none_or(|(_, least)| path < *least) {
                            least = Some((at, path));
                        }
                    }
                    None => {}
                }
            }
            let (at, _) = least?;
            let (key, path) = match parts.get_mut(at)?.next()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error)),
            };
            // A node that has several of the values has an entry for each.
            if last.as_ref() == Some(&path) {
                continue;
            }
            last = Some(path.clone());
            let mark = if by_key {
                NodeSourcePosition::Key { map_name: map_name.clone(), key }
            } else {
                NodeSourcePosition::Path(path.clone())
            };
            return Some(Ok(CandidateNode::new(path, mark)));
        }
    }))
}

/// Returns the part of a span's first key that precedes the path.
fn span_value_prefix(start: &[u8], shape: IndexKeyLayout) -> &[u8] {
    let length = match shape {
        IndexKeyLayout::Property => {
            split_entry(start).map_or(start.len(), |(value, _)| value.len())
        }
        IndexKeyLayout::Text => {
            start.iter().position(|byte| *byte == 0).map_or(start.len(), |at| at + 1)
        }
    };
    start.get(..length).unwrap_or(start)
}

/// Reads the spans one after the other, in key order.
fn read_sequential_spans<'a>(
    context: &'a QueryContext<'a>,
    spans: &IndexSpans,
    after: Option<&NodeSourcePosition>,
) -> CandidateIterator<'a> {
    let after = match after {
        Some(NodeSourcePosition::Key { key, .. }) => Some(key.clone()),
        _ => None,
    };
    let is_backward = spans.is_descending;
    let mut order = spans.spans.clone();
    order.sort();
    if is_backward {
        order.reverse();
    }
    let whole = spans.clone();
    let parts = order.into_iter().flat_map(move |(start, end)| -> SpanEntryIterator<'a> {
        match &after {
            Some(after) if is_backward => {
                if *after <= start {
                    return Box::new(std::iter::empty());
                }
                let end = end.min(after.clone());
                read_span_entries(context, &whole, Bound::Included(&start), &end)
            }
            Some(after) => {
                if *after >= end {
                    return Box::new(std::iter::empty());
                }
                let bound = if *after >= start {
                    Bound::Excluded(&**after)
                } else {
                    Bound::Included(&*start)
                };
                read_span_entries(context, &whole, bound, &end)
            }
            None => read_span_entries(context, &whole, Bound::Included(&start), &end),
        }
    });
    let map = spans.map_name.clone();
    Box::new(parts.map(move |entry| {
        let (key, path) = entry?;
        let mark = NodeSourcePosition::Key { map_name: map.clone(), key };
        Ok(CandidateNode::new(path, mark))
    }))
}

/// Sorts paths and removes duplicates.
pub(crate) fn sorted_unique_paths(paths: impl IntoIterator<Item = NodePath>) -> Vec<NodePath> {
    paths.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
