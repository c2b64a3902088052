//! Limits on what the copies and the moves with rewriting of one request add up to.

use tympan_content::{SubtreeBudget, Viewer};

use crate::Instance;
use crate::failure::Result;

/// Maximum number of bytes that a user who is not an administrator copies, or goes through to rewrite references, in one
/// request.
const MAX_USER_COPY_BYTES: u64 = 256 << 20;
/// Maximum number of bytes that an administrator copies in one request.
const MAX_COPY_BYTES: u64 = 4 << 30;
/// Maximum number of nodes that an administrator copies in one request.
const MAX_COPY_NODES: u64 = 10_000_000;

/// Returns the limits for a viewer: for users as many nodes as a query may hold in memory, more for administrators. Copies
/// of copies double their number with each step of a batch; each move goes through all references to the node.
pub(crate) fn viewer_bulk_edit_budget(
    instance: &Instance,
    viewer: &Viewer,
) -> Result<SubtreeBudget> {
    let limits = instance.query_engine_for(viewer)?.limits();
    Ok(match instance.is_administrator(viewer)? {
        true => {
            let nodes = limits.max_rows_read.min(MAX_COPY_NODES);
            SubtreeBudget::new(usize::try_from(nodes).unwrap_or(usize::MAX), MAX_COPY_BYTES)
        }
        false => SubtreeBudget::new(limits.max_rows_in_memory, MAX_USER_COPY_BYTES),
    })
}
