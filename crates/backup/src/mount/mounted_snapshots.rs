//! The virtual folders above the snapshots: by client, by time, by id and by tag.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Result;
use crate::object_id::VaultObjectId;
use crate::vault::Vault;
use crate::vault::index::VaultIndex;
use crate::vault::node::{NodeTime, SnapshotNode, SnapshotNodeKind, SnapshotTree, go_mode};
use crate::vault::pack_blob::PackBlobKind;
use crate::vault::snapshot::{ClientFilter, VaultSnapshot, is_internal_tag};

/// Minimum interval between two checks for new snapshots.
const SNAPSHOT_REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// Limit of the folder cache, as the total number of nodes in the cached folders.
const MAX_CACHED_NODES: usize = 200_000;

/// A folder that is not part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VirtualFolder {
    /// The mount point.
    Top,
    /// All snapshots, by time.
    Times,
    /// All snapshots, by the first digits of their ids.
    Ids,
    /// The clients.
    Hosts,
    /// Snapshots of one client, by time.
    Host(String),
    /// The tags given by users.
    Tags,
    /// Snapshots with one tag, by time.
    Tag(String),
}

/// An item of the mounted file system.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum MountItem {
    /// A folder above the snapshots.
    Virtual(VirtualFolder),
    /// A symbolic link to a folder in the same folder.
    Link(Vec<u8>),
    /// A node of a snapshot, with the snapshot's topmost folder, which is the scope of its inode numbers.
    Stored(VaultObjectId, Arc<SnapshotNode>),
}

/// The vault and the cache of what was read from it.
pub(super) struct MountedSnapshots {
    vault: Arc<Vault>,
    clients: ClientFilter,
    state: Mutex<MountedSnapshotsState>,
    /// The most recently read folders, newest at the end.
    cached_trees: Mutex<Vec<(VaultObjectId, Arc<SnapshotTree>)>>,
}

struct MountedSnapshotsState {
    refreshed_at: Instant,
    index: Arc<VaultIndex>,
    snapshots: Arc<Vec<VaultSnapshot>>,
}

impl MountedSnapshots {
    pub(super) fn open(vault: Arc<Vault>, clients: ClientFilter) -> Result<Self> {
        // List snapshots before loading the index: everything that a snapshot needs is in the index before the snapshot
        // appears.
        let snapshots = Arc::new(list_client_snapshots(&vault, &clients)?);
        let index = Arc::new(VaultIndex::load(&vault)?);
        let state =
            Mutex::new(MountedSnapshotsState { refreshed_at: Instant::now(), index, snapshots });
        Ok(Self { vault, clients, state, cached_trees: Mutex::default() })
    }

    /// Returns the current snapshots.
    fn current_snapshots(&self) -> Arc<Vec<VaultSnapshot>> {
        let mut state = self.state.lock();
        if state.refreshed_at.elapsed() > SNAPSHOT_REFRESH_INTERVAL {
            state.refreshed_at = Instant::now();
            let looked = list_client_snapshots(&self.vault, &self.clients).and_then(|snapshots| {
                VaultIndex::catch_up(&mut state.index, &self.vault)?;
                Ok(snapshots)
            });
            match looked {
                Ok(snapshots) => state.snapshots = Arc::new(snapshots),
                Err(error) => {
                    tracing::warn!(%error, "cannot refresh the mounted snapshots; showing the earlier ones");
                }
            }
        }
        state.snapshots.clone()
    }

    fn current_index(&self) -> Arc<VaultIndex> {
        self.state.lock().index.clone()
    }

    /// Lists a virtual folder.
    pub(super) fn list_virtual_folder(&self, above: &VirtualFolder) -> Vec<(Vec<u8>, MountItem)> {
        let folder = |name: &str, above| (name.as_bytes().to_vec(), MountItem::Virtual(above));
        let snapshots = self.current_snapshots();
        match above {
            VirtualFolder::Top => vec![
                folder("hosts", VirtualFolder::Hosts),
                folder("ids", VirtualFolder::Ids),
                folder("snapshots", VirtualFolder::Times),
                folder("tags", VirtualFolder::Tags),
            ],
            VirtualFolder::Times => snapshots_by_time(snapshots.iter()),
            VirtualFolder::Host(name) => {
                snapshots_by_time(snapshots.iter().filter(|snapshot| snapshot.hostname == *name))
            }
            VirtualFolder::Tag(tag) => {
                snapshots_by_time(snapshots.iter().filter(|snapshot| snapshot.tags().contains(tag)))
            }
            VirtualFolder::Ids => {
                let named = |snapshot: &VaultSnapshot| {
                    (snapshot.id.short().into_bytes(), snapshot_root(snapshot))
                };
                snapshots.iter().map(named).collect()
            }
            VirtualFolder::Hosts => virtual_folders(
                snapshots.iter().map(|snapshot| &snapshot.hostname),
                VirtualFolder::Host,
            ),
            VirtualFolder::Tags => {
                let words = snapshots.iter().flat_map(VaultSnapshot::tags);
                virtual_folders(words.filter(|tag| !is_internal_tag(tag)), VirtualFolder::Tag)
            }
        }
    }

    /// Reads a folder of a snapshot.
    pub(super) fn read_tree(&self, id: &VaultObjectId) -> Result<Arc<SnapshotTree>> {
        {
            let mut trees = self.cached_trees.lock();
            if let Some(at) = trees.iter().rposition(|(tree_id, _)| tree_id == id) {
                let entry = trees.remove(at);
                let tree = entry.1.clone();
                trees.push(entry);
                return Ok(tree);
            }
        }
        let tree = Arc::new(self.vault.read_tree(&self.current_index(), id)?);
        let mut trees = self.cached_trees.lock();
        trees.push((*id, tree.clone()));
        let mut node_count: usize = trees.iter().map(|(_, tree)| tree.nodes.len() + 1).sum();
        while node_count > MAX_CACHED_NODES && trees.len() > 1 {
            node_count -= trees.remove(0).1.nodes.len() + 1;
        }
        Ok(tree)
    }

    /// Reads a piece of a file.
    pub(super) fn read_piece(&self, id: &VaultObjectId) -> Result<Vec<u8>> {
        self.vault.read_blob(&self.current_index(), PackBlobKind::Data, id)
    }

    /// Returns the offset of each piece of a file, and the end of the last; `None` if the vault lacks one.
    pub(super) fn piece_offsets(&self, node: &SnapshotNode) -> Option<Vec<u64>> {
        let index = self.current_index();
        let mut starts = vec![0];
        let mut at = 0;
        for id in node.content.iter().flatten() {
            at += index.plain_length(PackBlobKind::Data, id)?;
            starts.push(at);
        }
        Some(starts)
    }
}

fn list_client_snapshots(vault: &Vault, clients: &ClientFilter) -> Result<Vec<VaultSnapshot>> {
    let mut snapshots = vault.read_usable_snapshots()?;
    snapshots.retain(|snapshot| clients.includes(snapshot));
    Ok(snapshots)
}

/// Returns a snapshot as a folder.
fn snapshot_root(snapshot: &VaultSnapshot) -> MountItem {
    let mut node = SnapshotNode::new("", SnapshotNodeKind::Dir, go_mode::DIR | 0o755);
    let time = snapshot.timestamp();
    let nanos = u32::try_from(time.subsec_nanosecond()).unwrap_or(0);
    let time = NodeTime { seconds: time.as_second(), nanos };
    (node.mtime, node.atime, node.ctime) = (time, time, time);
    node.subtree = Some(snapshot.tree);
    MountItem::Stored(snapshot.tree, Arc::new(node))
}

/// Names snapshots by their time, to the second, and the newest also `latest`.
fn snapshots_by_time<'a>(
    snapshots: impl Iterator<Item = &'a VaultSnapshot>,
) -> Vec<(Vec<u8>, MountItem)> {
    let mut named: Vec<(Vec<u8>, MountItem)> = Vec::new();
    let mut before = (String::new(), 0);
    for snapshot in snapshots {
        let time = snapshot.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        before.1 = if before.0 == time { before.1 + 1 } else { 0 };
        let name = if before.1 == 0 { time.clone() } else { format!("{time}-{}", before.1) };
        before.0 = time;
        named.push((name.into_bytes(), snapshot_root(snapshot)));
    }
    if let Some((name, _)) = named.last() {
        let link = MountItem::Link(name.clone());
        named.push((b"latest".to_vec(), link));
    }
    named
}

/// Creates folders named by tags or clients. An invalid name is converted to a valid one, with a number appended where
/// two become equal.
fn virtual_folders<'a>(
    words: impl Iterator<Item = &'a String>,
    above: fn(String) -> VirtualFolder,
) -> Vec<(Vec<u8>, MountItem)> {
    let mut named: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    for tag in words {
        let plain: String = tag
            .chars()
            .map(|letter| if matches!(letter, '/' | '\0') { '_' } else { letter })
            .collect();
        let plain = match plain.as_str() {
            "" | "." | ".." => format!("_{plain}"),
            _ => plain,
        };
        let tries = std::iter::once(plain.clone()).chain((1..).map(|n| format!("{plain}-{n}")));
        for name in tries {
            let owner = named.entry(name.into_bytes()).or_insert_with(|| tag.clone());
            if owner == tag {
                break;
            }
        }
    }
    named.into_iter().map(|(name, tag)| (name, MountItem::Virtual(above(tag)))).collect()
}
