//! Where the nodes of one selector come from, and reading them one by one.
//!
//! Invariants
//! * A source gives every node that its selector's constraints admit, each once; more than these are filtered behind it.
//! * A source goes on behind a [`Mark`] without reading what came before it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_store::{Chunk, ChunkId, Map, ReadChunks};

use super::engine::Limits;
use super::full_text::FullText;
use super::hits::{Lag, TextSearch, UNSCORED, hits};
use crate::property_index::Definitions;
use crate::types::NodeTypes;
use crate::value_key::{Span, split_entry};
use crate::{Error, Node, NodePath, Result, Snapshot};

/// A property and how often each of its values occurs.
pub(crate) type Facet = (String, Vec<(String, u64)>);

/// What a query runs over.
pub(crate) struct Ground<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) reads: Counted<'a>,
    pub(crate) maps: BTreeMap<String, Map>,
    pub(crate) definitions: Arc<Definitions>,
    pub(crate) types: Arc<NodeTypes>,
    pub(crate) full_text: Option<&'a dyn FullText>,
    /// How far the full-text index is from the snapshot, once that was asked for.
    pub(crate) lag: std::cell::OnceCell<Lag>,
    pub(crate) limits: &'a Limits,
    pub(crate) started: Instant,
    /// Entries and nodes that were looked at.
    pub(crate) rows_read: Cell<u64>,
    /// Values counted by the full-text index.
    pub(crate) facets: std::cell::RefCell<Vec<Facet>>,
}

/// A store that counts what is read from it.
pub(crate) struct Counted<'a> {
    pub(crate) reads: &'a dyn ReadChunks,
    pub(crate) chunks: std::sync::atomic::AtomicU64,
}

impl ReadChunks for Counted<'_> {
    fn read(&self, id: &ChunkId) -> tympan_store::Result<Chunk> {
        self.chunks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.reads.read(id)
    }

    fn read_many(&self, ids: &[ChunkId]) -> tympan_store::Result<Vec<Chunk>> {
        self.chunks.fetch_add(ids.len() as u64, std::sync::atomic::Ordering::Relaxed);
        self.reads.read_many(ids)
    }

    fn has_costly_round_trips(&self) -> bool {
        self.reads.has_costly_round_trips()
    }
}

impl Ground<'_> {
    /// Counts something that was looked at, and refuses to go on beyond the limits.
    pub(crate) fn count_row(&self) -> Result<()> {
        let rows = self.rows_read.get() + 1;
        self.rows_read.set(rows);
        if rows > self.limits.max_rows_read {
            let limit = self.limits.max_rows_read;
            return Err(Error::QueryLimit {
                what: format!(
                    "it has looked at {limit} nodes and index entries (`query.max_rows_read`); give it an index or a limit"
                ),
            });
        }
        // The clock is read now and then.
        let is_late = rows.is_multiple_of(1024) && self.elapsed() > self.limits.max_time;
        if is_late {
            let limit = self.limits.max_time.as_secs_f64();
            return Err(Error::QueryLimit {
                what: format!(
                    "it has run for {limit} s (`query.max_time`); give it an index or a limit"
                ),
            });
        }
        Ok(())
    }

    pub(crate) fn elapsed(&self) -> Duration {
        (self.limits.clock)().saturating_duration_since(self.started)
    }
}

/// Where nodes come from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Known paths, sorted, each once.
    Nodes(Vec<NodePath>),
    /// The nodes below one, read in place; `/` itself with all nodes.
    Scan {
        /// The node.
        above: NodePath,
        /// Whether only its children are read.
        is_flat: bool,
    },
    /// Entries of an index.
    Spans(Spans),
    /// Several sources in the order of paths, read together.
    Union(Vec<Source>),
    /// Hits of the full-text index.
    FullText(Box<TextSearch>),
}

/// Entries of an index.
#[derive(Debug, Clone)]
pub(crate) struct Spans {
    /// The name of the map.
    pub(crate) map_name: String,
    pub(crate) map: Map,
    pub(crate) spans: Vec<Span>,
    /// Whether each span holds one value only, so that all are read together in the order of paths; otherwise they are
    /// read one after the other, in the order of keys.
    pub(crate) is_merged: bool,
    pub(crate) is_backward: bool,
    /// Whether a node may have several entries in spans that are not merged; they have to be gathered then.
    pub(crate) has_several: bool,
    pub(crate) shape: Shape,
    /// What is cut from the end of paths: the node is that many names above the one that has the property.
    pub(crate) suffix: String,
}

impl Spans {
    /// Tells whether nodes come in the order of their paths.
    fn gives_paths(&self) -> bool {
        self.has_several || (self.is_merged && self.suffix.is_empty())
    }
}

/// Where the path is in the keys of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Behind the value's entry.
    Property,
    /// Behind a text that ends with 0x00, up to the next 0x00.
    Text,
}

/// A node that may belong to the result.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) path: NodePath,
    pub(crate) score: f32,
    pub(crate) excerpt: Option<String>,
    pub(crate) mark: Mark,
    /// The node, seen or not, where reading the source gave it already.
    pub(crate) node: Option<Node>,
}

impl Candidate {
    /// Makes the candidate that a source without scores gives.
    pub(crate) fn new(path: NodePath, mark: Mark) -> Self {
        Self { path, score: UNSCORED, excerpt: None, mark, node: None }
    }
}

/// A place in the order in which a source gives nodes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Mark {
    /// In the order of paths.
    Path(NodePath),
    /// In the order of keys of a map; and the path, as one key stands for one node.
    Key { map: String, key: Vec<u8> },
    /// In the order of a scan.
    Scan { document: NodePath, path: NodePath },
    /// By falling score of documents; the nodes of a document by path.
    Score { score: f32, document: NodePath, path: NodePath },
}

pub(crate) type Candidates<'a> = Box<dyn Iterator<Item = Result<Candidate>> + 'a>;

impl Source {
    /// Tells whether the source can go on behind a mark.
    pub(crate) fn takes(&self, mark: &Mark) -> bool {
        match (self, mark) {
            (Self::Nodes(_) | Self::Union(_), Mark::Path(_))
            | (Self::Scan { .. }, Mark::Scan { .. })
            | (Self::FullText(_), Mark::Score { .. }) => true,
            (Self::Spans(spans), Mark::Path(_)) => spans.gives_paths(),
            (Self::Spans(spans), Mark::Key { map, .. }) => {
                !spans.gives_paths() && spans.map_name == *map
            }
            _ => false,
        }
    }
}

/// Reads the nodes of a source that is no scan.
pub(crate) fn candidates<'a>(
    ground: &'a Ground<'a>,
    source: &Source,
    after: Option<&Mark>,
) -> Candidates<'a> {
    match source {
        Source::Nodes(paths) => nodes(paths, after),
        Source::Spans(spans) if spans.is_merged => merged(ground, spans, after),
        Source::Spans(spans) => in_turn(ground, spans, after),
        Source::Union(parts) => {
            let parts = parts.iter().map(|part| candidates(ground, part, after).peekable());
            union(parts.collect())
        }
        Source::FullText(search) => hits(ground, search, after),
        // Scans are read by whoever has the filter, in place.
        Source::Scan { .. } => Box::new(std::iter::empty()),
    }
}

/// Reads sources in the order of paths together, each node once.
fn union(mut parts: Vec<Peekable<Candidates<'_>>>) -> Candidates<'_> {
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

fn nodes<'a>(paths: &[NodePath], after: Option<&Mark>) -> Candidates<'a> {
    let after = match after {
        Some(Mark::Path(path)) => Some(path.clone()),
        _ => None,
    };
    let paths: Vec<NodePath> = paths
        .iter()
        .filter(|path| after.as_ref().is_none_or(|after| *path > after))
        .cloned()
        .collect();
    Box::new(paths.into_iter().map(|path| {
        let mark = Mark::Path(path.clone());
        Ok(Candidate::new(path, mark))
    }))
}

/// Returns the node path in a key of an index.
fn path_in(key: &[u8], shape: Shape) -> Option<&str> {
    match shape {
        Shape::Property => split_entry(key).map(|(_, path)| path),
        Shape::Text => {
            let mut parts = key.split(|byte| *byte == 0);
            parts.next()?;
            std::str::from_utf8(parts.next()?).ok()
        }
    }
}

/// Returns the path of the node that a key leads to.
fn subject<'k>(key: &'k [u8], spans: &Spans) -> Option<&'k str> {
    let path = path_in(key, spans.shape)?;
    if spans.suffix.is_empty() {
        return Some(path);
    }
    let above = path.strip_suffix(&*spans.suffix)?.strip_suffix('/')?;
    Some(if above.is_empty() { "/" } else { above })
}

type Entries<'a> = Box<dyn Iterator<Item = Result<(Vec<u8>, NodePath)>> + 'a>;

/// Reads the entries of one span.
fn entries<'a>(
    ground: &'a Ground<'a>,
    spans: &Spans,
    start: Bound<&[u8]>,
    end: &[u8],
) -> Entries<'a> {
    let range = (start, Bound::Excluded(end));
    let scan = if spans.is_backward {
        spans.map.range_back(&ground.reads, range)
    } else {
        spans.map.range(&ground.reads, range)
    };
    let spans = Spans { spans: Vec::new(), ..spans.clone() };
    Box::new(scan.filter_map(move |entry| {
        let (key, _) = match entry {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error.into())),
        };
        if let Err(error) = ground.count_row() {
            return Some(Err(error));
        }
        let path = subject(&key, &spans)?;
        Some(NodePath::new(path).map(|path| (key.to_vec(), path)))
    }))
}

/// Reads the spans together, in the order of paths.
fn merged<'a>(ground: &'a Ground<'a>, spans: &Spans, mark: Option<&Mark>) -> Candidates<'a> {
    let after = match mark {
        Some(Mark::Path(path)) => Some(path.as_str().to_owned()),
        Some(Mark::Key { key, .. }) => path_in(key, spans.shape).map(str::to_owned),
        _ => None,
    };
    let by_key = !spans.suffix.is_empty();
    let mut parts: Vec<Peekable<Entries<'a>>> = Vec::new();
    for (start, end) in &spans.spans {
        // The path follows what all keys of the span have in common.
        let prefix = value_prefix(start, spans.shape);
        let from = after.as_ref().map(|after| [prefix, after.as_bytes(), &[0]].concat());
        let bound = match &from {
            Some(from) if *from > *start => Bound::Included(&**from),
            _ => Bound::Included(&**start),
        };
        parts.push(entries(ground, spans, bound, end).peekable());
    }
    let map_name = spans.map_name.clone();
    let shape = spans.shape;
    let mut last = match mark {
        Some(Mark::Path(path)) => Some(path.clone()),
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
                        let path = path_in(key, shape).unwrap_or_default().as_bytes().to_vec();
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
            // A node with several of the values has an entry for each.
            if last.as_ref() == Some(&path) {
                continue;
            }
            last = Some(path.clone());
            let mark = if by_key {
                Mark::Key { map: map_name.clone(), key }
            } else {
                Mark::Path(path.clone())
            };
            return Some(Ok(Candidate::new(path, mark)));
        }
    }))
}

/// Returns the part of a span's first key that is before the path.
fn value_prefix(start: &[u8], shape: Shape) -> &[u8] {
    let length = match shape {
        Shape::Property => split_entry(start).map_or(start.len(), |(value, _)| value.len()),
        Shape::Text => start.iter().position(|byte| *byte == 0).map_or(start.len(), |at| at + 1),
    };
    start.get(..length).unwrap_or(start)
}

/// Reads the spans one after the other, in the order of keys.
fn in_turn<'a>(ground: &'a Ground<'a>, spans: &Spans, after: Option<&Mark>) -> Candidates<'a> {
    let after = match after {
        Some(Mark::Key { key, .. }) => Some(key.clone()),
        _ => None,
    };
    let is_backward = spans.is_backward;
    let mut order = spans.spans.clone();
    order.sort();
    if is_backward {
        order.reverse();
    }
    let whole = spans.clone();
    let parts = order.into_iter().flat_map(move |(start, end)| -> Entries<'a> {
        match &after {
            Some(after) if is_backward => {
                if *after <= start {
                    return Box::new(std::iter::empty());
                }
                let end = end.min(after.clone());
                entries(ground, &whole, Bound::Included(&start), &end)
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
                entries(ground, &whole, bound, &end)
            }
            None => entries(ground, &whole, Bound::Included(&start), &end),
        }
    });
    let map = spans.map_name.clone();
    Box::new(parts.map(move |entry| {
        let (key, path) = entry?;
        let mark = Mark::Key { map: map.clone(), key };
        Ok(Candidate::new(path, mark))
    }))
}

/// Sorts paths and leaves each once.
pub(crate) fn sorted(paths: impl IntoIterator<Item = NodePath>) -> Vec<NodePath> {
    paths.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}
