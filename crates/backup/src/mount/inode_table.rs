//! The inode numbers that the kernel knows.
//!
//! Invariants
//! * A number refers to one item until the kernel has forgotten it, and is never reused.
//! * Hard links of a file in a snapshot share a number, as they did on the source.

use std::collections::HashMap;

use super::mounted_snapshots::{MountItem, VirtualFolder};
use crate::object_id::VaultObjectId;
use crate::vault::node::SnapshotNodeKind;

/// The inode number of the mount point.
pub(super) const ROOT_INODE: u64 = 1;

type InodeName = (u64, Vec<u8>);
/// A snapshot's topmost folder, and a device and an inode in it.
type HardLinkKey = (VaultObjectId, u64, u64);

#[derive(Debug)]
pub(super) struct InodeTable {
    last_number: u64,
    records: HashMap<u64, InodeRecord>,
    numbers_by_name: HashMap<InodeName, u64>,
    numbers_by_hard_link: HashMap<HardLinkKey, u64>,
}

#[derive(Debug)]
struct InodeRecord {
    item: MountItem,
    /// The number of times the kernel has looked it up.
    lookup_count: u64,
    names: Vec<InodeName>,
}

impl InodeTable {
    pub(super) fn new() -> Self {
        let top = InodeRecord {
            item: MountItem::Virtual(VirtualFolder::Top),
            lookup_count: 1,
            names: Vec::new(),
        };
        let items = HashMap::from([(ROOT_INODE, top)]);
        Self {
            last_number: ROOT_INODE,
            records: items,
            numbers_by_name: HashMap::new(),
            numbers_by_hard_link: HashMap::new(),
        }
    }

    pub(super) fn find(&self, number: u64) -> Option<&MountItem> {
        self.records.get(&number).map(|record| &record.item)
    }

    /// Returns the inode number of a named item and increments its lookup count.
    pub(super) fn record_lookup(&mut self, name: InodeName, item: MountItem) -> u64 {
        let link_key = hard_link_key(&item);
        let known_number = self.numbers_by_name.get(&name).copied();
        let known_number = known_number.or_else(|| {
            link_key.and_then(|link_key| self.numbers_by_hard_link.get(&link_key).copied())
        });
        if let Some(number) = known_number
            && let Some(record) = self.records.get_mut(&number)
            && (record.item == item || is_same_file(&record.item, &item))
        {
            record.lookup_count += 1;
            if self.numbers_by_name.insert(name.clone(), number) != Some(number) {
                record.names.push(name);
            }
            return number;
        }
        self.last_number += 1;
        self.numbers_by_name.insert(name.clone(), self.last_number);
        if let Some(link_key) = link_key {
            self.numbers_by_hard_link.insert(link_key, self.last_number);
        }
        self.records
            .insert(self.last_number, InodeRecord { item, lookup_count: 1, names: vec![name] });
        self.last_number
    }

    /// Decreases the lookup count of an inode by `times`, on a forget request of the kernel.
    pub(super) fn forget(&mut self, number: u64, times: u64) {
        let Some(record) = self.records.get_mut(&number).filter(|_| number != ROOT_INODE) else {
            return;
        };
        record.lookup_count = record.lookup_count.saturating_sub(times);
        if record.lookup_count > 0 {
            return;
        }
        let Some(InodeRecord { item, names, .. }) = self.records.remove(&number) else {
            return;
        };
        for name in names {
            if self.numbers_by_name.get(&name) == Some(&number) {
                self.numbers_by_name.remove(&name);
            }
        }
        if let Some(link_key) = hard_link_key(&item)
            && self.numbers_by_hard_link.get(&link_key) == Some(&number)
        {
            self.numbers_by_hard_link.remove(&link_key);
        }
    }
}

/// Returns true if two names refer to one file. The source's system may have reused the inode number for another file.
fn is_same_file(left: &MountItem, right: &MountItem) -> bool {
    match (left, right) {
        (MountItem::Stored(_, node), MountItem::Stored(_, other_node)) => {
            hard_link_key(left).is_some()
                && hard_link_key(left) == hard_link_key(right)
                && node.content == other_node.content
        }
        _ => false,
    }
}

fn hard_link_key(item: &MountItem) -> Option<HardLinkKey> {
    match item {
        MountItem::Stored(top, node) if node.kind == SnapshotNodeKind::File && node.links > 1 => {
            Some((*top, node.device_id, node.inode))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::vault::node::SnapshotNode;

    fn file(inode: u64, links: u64) -> MountItem {
        let mut node = SnapshotNode::new("f", SnapshotNodeKind::File, 0o644);
        (node.inode, node.links) = (inode, links);
        MountItem::Stored(VaultObjectId::default(), Arc::new(node))
    }

    #[test]
    fn numbers_last_as_long_as_the_kernel_remembers() {
        let mut inodes = InodeTable::new();
        let name = |text: &str| (ROOT_INODE, text.as_bytes().to_vec());
        let inode = inodes.record_lookup(name("a"), file(1, 1));
        assert_eq!(inodes.record_lookup(name("a"), file(1, 1)), inode);
        inodes.forget(inode, 1);
        assert!(inodes.find(inode).is_some());
        inodes.forget(inode, 1);
        assert!(inodes.find(inode).is_none());
        let again = inodes.record_lookup(name("a"), file(1, 1));
        assert_ne!(again, inode);
        // Another item under the same name gets a new number; the old one stays valid for those who have it open.
        let link = inodes.record_lookup(name("a"), MountItem::Link(b"x".to_vec()));
        assert_ne!(link, again);
        inodes.forget(again, 1);
        assert_eq!(inodes.record_lookup(name("a"), MountItem::Link(b"x".to_vec())), link);
        inodes.forget(ROOT_INODE, u64::MAX);
        assert!(inodes.find(ROOT_INODE).is_some());
    }

    #[test]
    fn names_of_one_file_share_a_number() {
        let mut inodes = InodeTable::new();
        let name = |text: &str| (7, text.as_bytes().to_vec());
        let first = inodes.record_lookup(name("a"), file(5, 2));
        assert_eq!(inodes.record_lookup(name("b"), file(5, 2)), first);
        assert_ne!(inodes.record_lookup(name("c"), file(6, 2)), first);
        // An inode number that the system has reused for another file.
        let mut reused_node = SnapshotNode::new("f", SnapshotNodeKind::File, 0o644);
        (reused_node.inode, reused_node.links, reused_node.content) =
            (5, 2, Some(vec![VaultObjectId::of(b"other")]));
        let reused_inode = inodes.record_lookup(
            name("d"),
            MountItem::Stored(VaultObjectId::default(), Arc::new(reused_node)),
        );
        assert_ne!(reused_inode, first);
        inodes.forget(reused_inode, 1);
        inodes.forget(first, 2);
        assert!(inodes.find(first).is_none());
        assert!(
            inodes.numbers_by_name.len() == 1 && inodes.numbers_by_hard_link.len() == 1,
            "{inodes:?}"
        );
    }
}
