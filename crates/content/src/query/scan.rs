//! Reading all nodes, or those below one, in place: document by document in the order of keys, without an index.
//!
//! Invariants
//! * Nothing is copied of a node that the filter does not admit.
//! * Memory holds one document and those of its nodes that were admitted.

use std::collections::VecDeque;

use super::access::{Candidate, Candidates, Ground, Mark};
use super::filter::{Filter, Subject};
use super::plan::Access;
use crate::body::BodyNode;
use crate::borrowed::BorrowedNode;
use crate::boundary::is_container;
use crate::record::Record;
use crate::subtree::{MIXIN_TYPES, PRIMARY_TYPE};
use crate::{Error, NodePath, Result, Snapshot, keys};

/// What a scan looks for.
struct Sieve<'a> {
    ground: &'a Ground<'a>,
    access: &'a Access,
    /// Whether constraints are decided here; where reading is restricted, they are decided on what the viewer may read.
    decides: bool,
}

/// The nodes of a document that were admitted: path, and place in the body.
type Admitted = Vec<(NodePath, BodyNode)>;

/// Reads the nodes below `above` that an access admits.
pub(crate) fn scan<'a>(
    ground: &'a Ground<'a>,
    access: &'a Access,
    above: &NodePath,
    is_flat: bool,
    after: Option<&Mark>,
) -> Candidates<'a> {
    // What a viewer does not see may make a denied condition hold.
    let decides = ground.snapshot.1.is_none() || access.filter.is_monotone();
    let sieve = Sieve { ground, access, decides };
    match begin(sieve, above, is_flat, after) {
        Ok(candidates) => candidates,
        Err(error) => Box::new(std::iter::once(Err(error))),
    }
}

fn begin<'a>(
    sieve: Sieve<'a>,
    above: &NodePath,
    is_flat: bool,
    after: Option<&Mark>,
) -> Result<Candidates<'a>> {
    let ground = sieve.ground;
    let after = match after {
        Some(Mark::Scan { document, path }) => Some((document.clone(), path.clone())),
        _ => None,
    };
    // The part of the document that holds `above` comes first.
    let whole = Snapshot(ground.snapshot.0.clone(), None);
    let Some(start) = whole.node(above)? else {
        return Ok(Box::new(std::iter::empty()));
    };
    let owner = start.owner().clone();
    let is_past_owner = after.as_ref().is_some_and(|(document, _)| *document != owner);
    let (mut admitted, mut found) = (Vec::new(), VecDeque::new());
    if let (false, Some(node)) = (is_past_owner, start.borrowed()) {
        let mut path = above.as_str().to_owned();
        // The root of the content is below nothing, but a scan of everything gives it too.
        if above.is_root() && !is_flat {
            sieve.node(&mut path, node, true, &mut admitted)?;
        }
        let depth = if is_flat { 1 } else { usize::MAX };
        sieve.children(&mut path, node, depth, &mut admitted)?;
        found.extend(
            admitted.into_iter().map(|(path, _)| Candidate::new(path.clone(), Mark::Path(path))),
        );
        finish(&mut found, &owner, after.as_ref());
    }
    let content = ground.maps.get("content").copied().unwrap_or_default();
    let mut range = if is_flat { keys::children_of(above)? } else { keys::below(above)? };
    let resumes = match &after {
        Some((document, _)) if *document != owner => {
            range.start = keys::key_of(document)?;
            true
        }
        _ => false,
    };
    // Of a node inside a document there are no records below.
    let mut records = start.is_folder().then(|| content.range(&ground.reads, range.bounds()));
    let after = after.filter(|_| resumes);
    Ok(Box::new(std::iter::from_fn(move || {
        loop {
            if let Some(candidate) = found.pop_front() {
                return Some(Ok(candidate));
            }
            let entry = records.as_mut()?.next()?;
            let read = entry.map_err(Error::from).and_then(|(key, stored)| {
                sieve.document((&key, &stored), is_flat, after.as_ref(), &mut found)
            });
            if let Err(error) = read {
                records = None;
                return Some(Err(error));
            }
        }
    })))
}

/// Sorts what a document gave, and drops what was given before.
fn finish(
    found: &mut VecDeque<Candidate>,
    document: &NodePath,
    after: Option<&(NodePath, NodePath)>,
) {
    let last = after.filter(|(before, _)| before == document).map(|(_, path)| path);
    found.retain(|candidate| last.is_none_or(|last| candidate.path > *last));
    found.make_contiguous().sort_by(|left, right| left.path.cmp(&right.path));
    for candidate in found {
        let path = candidate.path.clone();
        candidate.mark = Mark::Scan { document: document.clone(), path };
    }
}

impl Sieve<'_> {
    /// Reads one record.
    fn document(
        &self,
        (key, stored): (&[u8], &tympan_store::Value),
        is_flat: bool,
        after: Option<&(NodePath, NodePath)>,
        found: &mut VecDeque<Candidate>,
    ) -> Result<()> {
        let damaged =
            |reason| -> Result<Error> { Ok(Error::Damaged { path: keys::path_of(key)?, reason }) };
        let Some(record) = Record::decode(stored) else {
            return Err(damaged("its record does not decode")?);
        };
        let Some(body) = record.read_body(&self.ground.reads)? else {
            return Err(damaged("its body does not decode")?);
        };
        let mut path = path_text(key);
        let name = path.rsplit_once('/').map_or("", |(_, name)| name);
        let is_container = is_container(name, record.summary.primary_type());
        let root = BorrowedNode::new(&body, body.root(), None);
        let mut admitted = Vec::new();
        self.node(&mut path, root, is_container, &mut admitted)?;
        if !is_flat {
            self.children(&mut path, root, usize::MAX, &mut admitted)?;
        }
        if admitted.is_empty() {
            return Ok(());
        }
        let opened = self.ground.snapshot.opened(keys::path_of(key)?, record, body.clone());
        found.extend(admitted.into_iter().map(|(path, at)| {
            let node = Some(opened.node(path.clone(), at));
            Candidate { node, ..Candidate::new(path.clone(), Mark::Path(path)) }
        }));
        finish(found, opened.path(), after);
        Ok(())
    }

    /// Looks at the nodes below one in the same document.
    fn children(
        &self,
        path: &mut String,
        node: BorrowedNode<'_>,
        depth: usize,
        admitted: &mut Admitted,
    ) -> Result<()> {
        let length = path.len();
        for child in node.children() {
            if length > 1 {
                path.push('/');
            }
            path.push_str(child.name());
            self.node(path, child, false, admitted)?;
            if depth > 1 {
                self.children(path, child, depth - 1, admitted)?;
            }
            path.truncate(length);
        }
        Ok(())
    }

    /// Looks at one node.
    fn node(
        &self,
        path: &mut String,
        node: BorrowedNode<'_>,
        is_container: bool,
        admitted: &mut Admitted,
    ) -> Result<()> {
        self.ground.count_row()?;
        let snapshot = self.ground.snapshot;
        let subject = Subject { path, node, is_container, score: 1.0, snapshot };
        if self.decides && !admits(self.access, subject)? {
            return Ok(());
        }
        admitted.push((NodePath::new(path)?, node.place()));
        Ok(())
    }
}

/// Tells whether a node meets an access's types and constraints.
pub(crate) fn admits(access: &Access, subject: Subject<'_>) -> Result<bool> {
    if let Some(types) = &access.types {
        let own =
            [PRIMARY_TYPE, MIXIN_TYPES].into_iter().filter_map(|name| subject.node.property(name));
        let mut own = own.flat_map(|property| property.values().filter_map(|value| value.as_str()));
        if !own.any(|name| types.contains(name)) {
            return Ok(false);
        }
    }
    Ok(is_admitted(&access.path_filter, subject.path) && access.filter.holds(&[Some(subject)])?)
}

fn is_admitted(filter: &Filter, path: &str) -> bool {
    filter.admits_path(path)
}

/// Returns the path of a record without checking its names again.
fn path_text(key: &[u8]) -> String {
    let mut path = String::with_capacity(key.len() + 1);
    path.push('/');
    let text = String::from_utf8_lossy(key);
    let text = text.strip_prefix('\0').unwrap_or(&text);
    path.extend(text.chars().map(|one| if one < '\u{2}' { '/' } else { one }));
    path
}
