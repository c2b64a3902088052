//! The numbers by which the kernel calls what it has been told of.
//!
//! Invariants
//! * A number stands for one thing until the kernel has forgotten it, and for nothing else ever after.
//! * Names of one file of a snapshot share a number, as they did where it was saved.

use std::collections::HashMap;

use super::roots::{Above, Thing};
use crate::id::Id;
use crate::vault::node::NodeKind;

/// The number of the folder that was mounted at.
pub(super) const TOP: u64 = 1;

type Name = (u64, Vec<u8>);
/// A snapshot's topmost folder, and a file system and an inode in it.
type Twin = (Id, u64, u64);

#[derive(Debug)]
pub(super) struct Inodes {
    last: u64,
    things: HashMap<u64, Known>,
    names: HashMap<Name, u64>,
    twins: HashMap<Twin, u64>,
}

#[derive(Debug)]
struct Known {
    thing: Thing,
    /// How often the kernel was told of it.
    lookups: u64,
    names: Vec<Name>,
}

impl Inodes {
    pub(super) fn new() -> Self {
        let top = Known { thing: Thing::Above(Above::Top), lookups: 1, names: Vec::new() };
        let things = HashMap::from([(TOP, top)]);
        Self { last: TOP, things, names: HashMap::new(), twins: HashMap::new() }
    }

    pub(super) fn find(&self, number: u64) -> Option<&Thing> {
        self.things.get(&number).map(|known| &known.thing)
    }

    /// Returns the number of what stands under a name, and counts that the kernel was told.
    pub(super) fn tell(&mut self, name: Name, thing: Thing) -> u64 {
        let twin = twin_of(&thing);
        let told = self.names.get(&name).copied();
        let told = told.or_else(|| twin.and_then(|twin| self.twins.get(&twin).copied()));
        if let Some(number) = told
            && let Some(known) = self.things.get_mut(&number)
            && (known.thing == thing || is_same_file(&known.thing, &thing))
        {
            known.lookups += 1;
            if self.names.insert(name.clone(), number) != Some(number) {
                known.names.push(name);
            }
            return number;
        }
        self.last += 1;
        self.names.insert(name.clone(), self.last);
        if let Some(twin) = twin {
            self.twins.insert(twin, self.last);
        }
        self.things.insert(self.last, Known { thing, lookups: 1, names: vec![name] });
        self.last
    }

    /// The kernel has forgotten what it was told so many times.
    pub(super) fn forget(&mut self, number: u64, times: u64) {
        let Some(known) = self.things.get_mut(&number).filter(|_| number != TOP) else { return };
        known.lookups = known.lookups.saturating_sub(times);
        if known.lookups > 0 {
            return;
        }
        let Some(Known { thing, names, .. }) = self.things.remove(&number) else { return };
        for name in names {
            if self.names.get(&name) == Some(&number) {
                self.names.remove(&name);
            }
        }
        if let Some(twin) = twin_of(&thing)
            && self.twins.get(&twin) == Some(&number)
        {
            self.twins.remove(&twin);
        }
    }
}

/// Tells whether two names are of one file. The source's system may have given its number to another one later.
fn is_same_file(one: &Thing, other: &Thing) -> bool {
    match (one, other) {
        (Thing::Stored(_, node), Thing::Stored(_, twin)) => {
            twin_of(one).is_some() && twin_of(one) == twin_of(other) && node.content == twin.content
        }
        _ => false,
    }
}

fn twin_of(thing: &Thing) -> Option<Twin> {
    match thing {
        Thing::Stored(top, node) if node.kind == NodeKind::File && node.links > 1 => {
            Some((*top, node.device_id, node.inode))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::vault::node::Node;

    fn file(inode: u64, links: u64) -> Thing {
        let mut node = Node::new("f", NodeKind::File, 0o644);
        (node.inode, node.links) = (inode, links);
        Thing::Stored(Id::default(), Arc::new(node))
    }

    #[test]
    fn numbers_last_as_long_as_the_kernel_remembers() {
        let mut inodes = Inodes::new();
        let name = |text: &str| (TOP, text.as_bytes().to_vec());
        let one = inodes.tell(name("a"), file(1, 1));
        assert_eq!(inodes.tell(name("a"), file(1, 1)), one);
        inodes.forget(one, 1);
        assert!(inodes.find(one).is_some());
        inodes.forget(one, 1);
        assert!(inodes.find(one).is_none());
        let again = inodes.tell(name("a"), file(1, 1));
        assert_ne!(again, one);
        // Another thing under the same name is another number; the old one goes on for whoever has it open.
        let link = inodes.tell(name("a"), Thing::Link(b"x".to_vec()));
        assert_ne!(link, again);
        inodes.forget(again, 1);
        assert_eq!(inodes.tell(name("a"), Thing::Link(b"x".to_vec())), link);
        inodes.forget(TOP, u64::MAX);
        assert!(inodes.find(TOP).is_some());
    }

    #[test]
    fn names_of_one_file_share_a_number() {
        let mut inodes = Inodes::new();
        let name = |text: &str| (7, text.as_bytes().to_vec());
        let first = inodes.tell(name("a"), file(5, 2));
        assert_eq!(inodes.tell(name("b"), file(5, 2)), first);
        assert_ne!(inodes.tell(name("c"), file(6, 2)), first);
        // A number that the system has given to another file meanwhile.
        let mut other = Node::new("f", NodeKind::File, 0o644);
        (other.inode, other.links, other.content) = (5, 2, Some(vec![Id::of(b"other")]));
        let other = inodes.tell(name("d"), Thing::Stored(Id::default(), Arc::new(other)));
        assert_ne!(other, first);
        inodes.forget(other, 1);
        inodes.forget(first, 2);
        assert!(inodes.find(first).is_none());
        assert!(inodes.names.len() == 1 && inodes.twins.len() == 1, "{inodes:?}");
    }
}
