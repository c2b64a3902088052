//! The folders above the snapshots: who made them, when, and what they are called.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Result;
use crate::id::Id;
use crate::vault::Vault;
use crate::vault::index::{BlobKind, Index};
use crate::vault::node::{Node, NodeKind, Time, Tree, go_mode};
use crate::vault::snapshot::{Clients, Snapshot, is_for_programs};

/// New snapshots are looked for when the last look is so long ago.
const FRESH: Duration = Duration::from_secs(5);
/// Folders of the vault that are kept at hand, by all that is in them.
const NODES_KEPT: usize = 200_000;

/// A folder that is in no snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Above {
    /// The folder that was mounted at.
    Top,
    /// All snapshots, by time.
    Times,
    /// All snapshots, by the first digits of their ids.
    Ids,
    /// The clients.
    Hosts,
    /// Snapshots of one client, by time.
    Host(String),
    /// The words that people gave.
    Tags,
    /// Snapshots with one word, by time.
    Tag(String),
}

/// What stands at a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Thing {
    /// A folder above the snapshots.
    Above(Above),
    /// A link to a folder beside it.
    Link(Vec<u8>),
    /// What a snapshot holds; with the snapshot's topmost folder, in which inodes mean something.
    Stored(Id, Arc<Node>),
}

/// The vault, and what was read of it.
pub(super) struct Roots {
    vault: Arc<Vault>,
    clients: Clients,
    state: Mutex<State>,
    /// The folders that were read last, the latest at the end.
    trees: Mutex<Vec<(Id, Arc<Tree>)>>,
}

struct State {
    checked: Instant,
    index: Arc<Index>,
    snapshots: Arc<Vec<Snapshot>>,
}

impl Roots {
    pub(super) fn open(vault: Arc<Vault>, clients: Clients) -> Result<Self> {
        // What a snapshot needs is in the index before the snapshot is there, hence this order.
        let snapshots = Arc::new(own(&vault, &clients)?);
        let index = Arc::new(Index::load(&vault)?);
        let state = Mutex::new(State { checked: Instant::now(), index, snapshots });
        Ok(Self { vault, clients, state, trees: Mutex::default() })
    }

    /// Returns the snapshots there are now.
    fn snapshots(&self) -> Arc<Vec<Snapshot>> {
        let mut state = self.state.lock();
        if state.checked.elapsed() > FRESH {
            state.checked = Instant::now();
            let looked = own(&self.vault, &self.clients).and_then(|snapshots| {
                Index::catch_up(&mut state.index, &self.vault)?;
                Ok(snapshots)
            });
            match looked {
                Ok(snapshots) => state.snapshots = Arc::new(snapshots),
                Err(error) => {
                    tracing::warn!(%error, "the vault cannot be looked at; what was seen before is shown");
                }
            }
        }
        state.snapshots.clone()
    }

    fn index(&self) -> Arc<Index> {
        self.state.lock().index.clone()
    }

    /// Lists a folder above the snapshots.
    pub(super) fn list(&self, above: &Above) -> Vec<(Vec<u8>, Thing)> {
        let folder = |name: &str, above| (name.as_bytes().to_vec(), Thing::Above(above));
        let snapshots = self.snapshots();
        match above {
            Above::Top => vec![
                folder("hosts", Above::Hosts),
                folder("ids", Above::Ids),
                folder("snapshots", Above::Times),
                folder("tags", Above::Tags),
            ],
            Above::Times => by_time(snapshots.iter()),
            Above::Host(name) => by_time(snapshots.iter().filter(|one| one.hostname == *name)),
            Above::Tag(word) => by_time(snapshots.iter().filter(|one| one.tags().contains(word))),
            Above::Ids => {
                let named = |one: &Snapshot| (one.id.short().into_bytes(), topmost(one));
                snapshots.iter().map(named).collect()
            }
            Above::Hosts => folders(snapshots.iter().map(|one| &one.hostname), Above::Host),
            Above::Tags => {
                let words = snapshots.iter().flat_map(Snapshot::tags);
                folders(words.filter(|word| !is_for_programs(word)), Above::Tag)
            }
        }
    }

    /// Reads a folder of a snapshot.
    pub(super) fn tree(&self, id: &Id) -> Result<Arc<Tree>> {
        {
            let mut trees = self.trees.lock();
            if let Some(at) = trees.iter().rposition(|(kept, _)| kept == id) {
                let found = trees.remove(at);
                let tree = found.1.clone();
                trees.push(found);
                return Ok(tree);
            }
        }
        let tree = Arc::new(self.vault.read_tree(&self.index(), id)?);
        let mut trees = self.trees.lock();
        trees.push((*id, tree.clone()));
        let mut kept: usize = trees.iter().map(|(_, tree)| tree.nodes.len() + 1).sum();
        while kept > NODES_KEPT && trees.len() > 1 {
            kept -= trees.remove(0).1.nodes.len() + 1;
        }
        Ok(tree)
    }

    /// Reads a piece of a file.
    pub(super) fn piece(&self, id: &Id) -> Result<Vec<u8>> {
        self.vault.read_blob(&self.index(), BlobKind::Data, id)
    }

    /// Tells where each piece of a file begins, and where the last ends; nothing if the vault lacks one.
    pub(super) fn starts(&self, node: &Node) -> Option<Vec<u64>> {
        let index = self.index();
        let mut starts = vec![0];
        let mut at = 0;
        for id in node.content.iter().flatten() {
            at += index.plain_length(BlobKind::Data, id)?;
            starts.push(at);
        }
        Some(starts)
    }
}

fn own(vault: &Vault, clients: &Clients) -> Result<Vec<Snapshot>> {
    let mut snapshots = vault.usable_snapshots()?;
    snapshots.retain(|snapshot| clients.include(snapshot));
    Ok(snapshots)
}

/// Returns a snapshot as a folder.
fn topmost(snapshot: &Snapshot) -> Thing {
    let mut node = Node::new("", NodeKind::Dir, go_mode::DIR | 0o755);
    let time = snapshot.timestamp();
    let nanos = u32::try_from(time.subsec_nanosecond()).unwrap_or(0);
    let time = Time { seconds: time.as_second(), nanos };
    (node.mtime, node.atime, node.ctime) = (time, time, time);
    node.subtree = Some(snapshot.tree);
    Thing::Stored(snapshot.tree, Arc::new(node))
}

/// Names snapshots by their time, to the second, and the newest also `latest`.
fn by_time<'a>(snapshots: impl Iterator<Item = &'a Snapshot>) -> Vec<(Vec<u8>, Thing)> {
    let mut named: Vec<(Vec<u8>, Thing)> = Vec::new();
    let mut before = (String::new(), 0);
    for snapshot in snapshots {
        let time = snapshot.timestamp().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        before.1 = if before.0 == time { before.1 + 1 } else { 0 };
        let name = if before.1 == 0 { time.clone() } else { format!("{time}-{}", before.1) };
        before.0 = time;
        named.push((name.into_bytes(), topmost(snapshot)));
    }
    if let Some((name, _)) = named.last() {
        let link = Thing::Link(name.clone());
        named.push((b"latest".to_vec(), link));
    }
    named
}

/// Makes folders of words. What cannot be a name becomes one, with a number where two become the same.
fn folders<'a>(
    words: impl Iterator<Item = &'a String>,
    above: fn(String) -> Above,
) -> Vec<(Vec<u8>, Thing)> {
    let mut named: BTreeMap<Vec<u8>, String> = BTreeMap::new();
    for word in words {
        let plain: String = word
            .chars()
            .map(|letter| if matches!(letter, '/' | '\0') { '_' } else { letter })
            .collect();
        let plain = match plain.as_str() {
            "" | "." | ".." => format!("_{plain}"),
            _ => plain,
        };
        let tries = std::iter::once(plain.clone()).chain((1..).map(|n| format!("{plain}-{n}")));
        for name in tries {
            let taken = named.entry(name.into_bytes()).or_insert_with(|| word.clone());
            if taken == word {
                break;
            }
        }
    }
    named.into_iter().map(|(name, word)| (name, Thing::Above(above(word)))).collect()
}
