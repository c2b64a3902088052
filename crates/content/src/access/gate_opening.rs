//! Opens the access gate of a state for a viewer.

use std::sync::Arc;

use tympan_store::ChunkId;

use super::access_gate::AccessGate;
use super::viewer::Viewer;
use crate::branch::branch_ref::MAIN_BRANCH;
use crate::snapshot::SnapshotView;
use crate::{Result, Snapshot};

/// The policies and accounts that a gate was opened with; equal values lead to equal decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessPolicyIds {
    own_id: u64,
    main_id: u64,
    former_id: Option<u64>,
}

impl AccessGate {
    /// Opens the access gate of a state for a viewer; `None` for the program itself. If the policies cannot be read, the
    /// gate denies everything, and [`Snapshot::failure`] returns the reason.
    pub(crate) fn open(snapshot: &Snapshot, viewer: &Viewer) -> Option<Arc<Self>> {
        if viewer.is_system() {
            return None;
        }
        Some(Self::open_or_reuse(snapshot, viewer).unwrap_or_else(|error| {
            tracing::error!(error = %error, "cannot read the access control policies");
            snapshot.record_failure(error);
            Arc::new(Self::deny_all())
        }))
    }

    /// Opens the access gate of a state for a viewer. Reuses the gate that was opened last if it fits.
    fn open_or_reuse(snapshot: &Snapshot, viewer: &Viewer) -> Result<Arc<Self>> {
        let view = &snapshot.view;
        let cache = &view.repository_state.cache.access_policies;
        if !is_commit_base(view)
            && let Some(main) = view.repository_state.chunks.read_ref(MAIN_BRANCH)?
            && let Some(gate) = cache.cached_gate(view.root_id, main, viewer)
        {
            return Ok(gate);
        }
        let (gate, _, main) = Self::open_at_newest(view, viewer)?;
        let gate = Arc::new(gate);
        if let Some(main) = main {
            cache.cache_gate(view.root_id, main, viewer, &gate);
        }
        Ok(gate)
    }

    /// Opens the access gate of a state for a viewer, and returns the policies and accounts that were used.
    pub(crate) fn open_with_policy_ids(
        view: &SnapshotView,
        viewer: &Viewer,
    ) -> Result<(Self, AccessPolicyIds)> {
        let (gate, rulings, _) = Self::open_at_newest(view, viewer)?;
        Ok((gate, rulings))
    }

    /// Opens the access gate of a state for a viewer, and returns the newest state of `main`. If the state is one of
    /// `main` that a commit is based on, it counts as the newest, durable or not, and has no name.
    fn open_at_newest(
        view: &SnapshotView,
        viewer: &Viewer,
    ) -> Result<(Self, AccessPolicyIds, Option<ChunkId>)> {
        let cache = &view.repository_state.cache.access_policies;
        let own = cache.policies_of(view)?;
        let (main, root) = match is_commit_base(view) {
            true => (own.clone(), None),
            false => {
                let (main, root) = cache.policies_of_newest(&view.repository_state)?;
                (main, Some(root))
            }
        };
        let former = match root {
            Some(root) => cache.former_policies_for(view, &main, root)?,
            None => None,
        };
        let rulings = AccessPolicyIds {
            own_id: own.id,
            main_id: main.id,
            former_id: former.as_ref().map(|policies| policies.id),
        };
        let others = [(own.id != main.id).then(|| main.clone()), former];
        let others = others.map(|policies| Some(policies?.permissions_for(&viewer.0, &main)));
        let gate = Self::new(own.permissions_for(&viewer.0, &main), others);
        Ok((gate, rulings, root))
    }
}

/// Returns true if the state is the base of a commit to `main`.
fn is_commit_base(view: &SnapshotView) -> bool {
    view.repository_state.branch == MAIN_BRANCH && view.repository_state.session_committer.is_none()
}
