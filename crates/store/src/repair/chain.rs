//! The states of one ref: where it is, and where it was.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::history::Revision;
use crate::id::ChunkId;

/// One state of a ref.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) root: ChunkId,
    /// The newest revision that moved the ref there, with its time; `None` if the list of revisions lacks it.
    pub(super) revision: Option<(u64, SystemTime)>,
    /// The ref is there now.
    pub(super) is_current: bool,
}

/// Returns the states of each ref, also of refs that were removed, newest first.
pub(super) fn chains(
    refs: &[(String, ChunkId)],
    revisions: &[Revision],
) -> BTreeMap<String, Vec<State>> {
    let current = refs
        .iter()
        .map(|(name, root)| State { root: *root, revision: None, is_current: true }.of(name));
    let mut chains: BTreeMap<String, Vec<State>> = current.collect();
    for one in revisions {
        let Some(root) = one.update.new else { continue };
        let chain = chains.entry(one.update.name.clone()).or_default();
        let revision = Some((one.sequence, one.update.at));
        match chain.last_mut() {
            // States that follow each other are one; the newest revision of them tells its time.
            Some(last) if last.root == root => last.revision = last.revision.or(revision),
            _ => chain.push(State { root, revision, is_current: false }),
        }
    }
    chains
}

impl State {
    fn of(self, name: &str) -> (String, Vec<Self>) {
        (name.to_owned(), vec![self])
    }
}
