//! The current and former states of one ref.

use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::id::ChunkId;
use crate::interface::history::Revision;

/// One state of a ref.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefState {
    pub(super) root: ChunkId,
    /// The newest revision that moved the ref to this state, with its time; `None` if the list of revisions lacks it.
    pub(super) revision: Option<(u64, SystemTime)>,
    /// True if the ref points to this state now.
    pub(super) is_current: bool,
}

/// Returns the states of each ref, also of refs that were removed, newest first.
pub(super) fn ref_states(
    refs: &[(String, ChunkId)],
    revisions: &[Revision],
) -> BTreeMap<String, Vec<RefState>> {
    let current = refs.iter().map(|(name, root)| {
        RefState { root: *root, revision: None, is_current: true }.with_ref_name(name)
    });
    let mut chains: BTreeMap<String, Vec<RefState>> = current.collect();
    for entry in revisions {
        let Some(root) = entry.update.new_root else { continue };
        let chain = chains.entry(entry.update.name.clone()).or_default();
        let revision = Some((entry.sequence, entry.update.updated_at));
        match chain.last_mut() {
            // Consecutive equal states count as one; the newest revision of them determines its time.
            Some(last) if last.root == root => last.revision = last.revision.or(revision),
            _ => chain.push(RefState { root, revision, is_current: false }),
        }
    }
    chains
}

impl RefState {
    fn with_ref_name(self, name: &str) -> (String, Vec<Self>) {
        (name.to_owned(), vec![self])
    }
}
