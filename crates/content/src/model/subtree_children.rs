//! The children of a node as plain values: a list that finds a child by name without searching all of them.
//!
//! Invariants
//! * Two lists are equal if their nodes are equal, whether or not they have been searched.
//! * The positions by name are built when a long list has been searched a few times, and kept by additions at the end.
//!   Every change through [`DerefMut`] drops them, because it may move or rename any child.

use std::collections::HashMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::subtree::Subtree;

/// The number of children from which on the positions by name are built; fewer are searched one after the other.
const MIN_INDEXED_CHILDREN: usize = 32;
/// Number of searches through the whole list before the positions are built. Between changes that drop them, a list is
/// often searched only once or twice, which costs less than building them.
const SEARCHES_BEFORE_INDEXING: usize = 4;

/// The children of a [`Subtree`], in order.
#[derive(Default)]
pub struct SubtreeChildren {
    nodes: Vec<Subtree>,
    positions: OnceLock<Box<ChildPositions>>,
    /// Number of names that were compared since the positions were dropped.
    compared_names: AtomicUsize,
}

/// The positions of the children of one node, by name.
struct ChildPositions {
    by_name: HashMap<String, usize>,
    /// The child that was lent for modification last, and may have another name since.
    lent_position: Option<usize>,
}

impl SubtreeChildren {
    /// Adds a child at the end, whether or not there is one of the same name.
    pub fn push(&mut self, child: Subtree) {
        count_searched_names(1);
        if let Some(positions) = self.positions.get_mut() {
            positions.by_name.entry(child.name.clone()).or_insert(self.nodes.len());
        }
        self.nodes.push(child);
    }

    /// Adds a child at the end, or replaces the first one with the same name.
    pub(super) fn put(&mut self, child: Subtree) {
        match self.find_mut(&child.name) {
            Some(old) => *old = child,
            None => self.push(child),
        }
    }

    /// Finds the first child of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Subtree> {
        self.nodes.get(self.position(name)?)
    }

    /// Finds the first child of this name for modification.
    pub(super) fn find_mut(&mut self, name: &str) -> Option<&mut Subtree> {
        self.drop_outdated_positions();
        let position = self.position(name)?;
        if let Some(positions) = self.positions.get_mut() {
            positions.lent_position = Some(position);
        }
        self.nodes.get_mut(position)
    }

    /// Finds the first child of this name for modification, or adds a new one at the end.
    pub(super) fn find_mut_or_push(
        &mut self,
        name: &str,
        create: impl FnOnce() -> Subtree,
    ) -> &mut Subtree {
        self.drop_outdated_positions();
        let position = self.position(name).unwrap_or_else(|| {
            self.push(create());
            self.nodes.len() - 1
        });
        if let Some(positions) = self.positions.get_mut() {
            positions.lent_position = Some(position);
        }
        #[expect(clippy::indexing_slicing, reason = "the position was found or pushed just now")]
        &mut self.nodes[position]
    }

    /// Returns the position of the first child of this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        if self.nodes.len() < MIN_INDEXED_CHILDREN {
            return self.search_position(name);
        }
        let is_searched_often = self.compared_names.load(Ordering::Relaxed)
            > SEARCHES_BEFORE_INDEXING * self.nodes.len();
        let positions = match is_searched_often {
            true => Some(self.positions.get_or_init(|| Box::new(self.build_positions()))),
            false => self.positions.get(),
        };
        match positions.filter(|positions| !positions.is_outdated(&self.nodes)) {
            Some(positions) => {
                count_searched_names(1);
                positions.by_name.get(name).copied()
            }
            None => self.search_position(name),
        }
    }

    /// Removes the first child of this name and returns it.
    pub(super) fn take(&mut self, name: &str) -> Option<Subtree> {
        let position = self.position(name)?;
        Some(self.remove(position))
    }

    fn search_position(&self, name: &str) -> Option<usize> {
        let position = self.nodes.iter().position(|child| child.name == name);
        let compared = position.map_or(self.nodes.len(), |position| position + 1);
        count_searched_names(compared);
        if self.nodes.len() >= MIN_INDEXED_CHILDREN {
            self.compared_names.fetch_add(compared, Ordering::Relaxed);
        }
        position
    }

    fn build_positions(&self) -> ChildPositions {
        count_searched_names(self.nodes.len());
        let mut by_name = HashMap::with_capacity(self.nodes.len());
        for (position, child) in self.nodes.iter().enumerate() {
            by_name.entry(child.name.clone()).or_insert(position);
        }
        ChildPositions { by_name, lent_position: None }
    }

    fn drop_outdated_positions(&mut self) {
        if self.positions.get().is_some_and(|positions| positions.is_outdated(&self.nodes)) {
            self.drop_positions();
        }
    }

    fn drop_positions(&mut self) {
        self.positions.take();
        *self.compared_names.get_mut() = 0;
    }
}

impl ChildPositions {
    /// Returns true if the child that was lent last has another name now.
    fn is_outdated(&self, nodes: &[Subtree]) -> bool {
        self.lent_position.is_some_and(|position| {
            let name = nodes.get(position).map(|child| &child.name);
            name.and_then(|name| self.by_name.get(name)) != Some(&position)
        })
    }
}

impl Deref for SubtreeChildren {
    type Target = Vec<Subtree>;

    fn deref(&self) -> &Vec<Subtree> {
        &self.nodes
    }
}

impl DerefMut for SubtreeChildren {
    fn deref_mut(&mut self) -> &mut Vec<Subtree> {
        self.drop_positions();
        &mut self.nodes
    }
}

impl From<Vec<Subtree>> for SubtreeChildren {
    fn from(nodes: Vec<Subtree>) -> Self {
        Self { nodes, ..Self::default() }
    }
}

impl FromIterator<Subtree> for SubtreeChildren {
    fn from_iter<I: IntoIterator<Item = Subtree>>(nodes: I) -> Self {
        Vec::from_iter(nodes).into()
    }
}

impl Extend<Subtree> for SubtreeChildren {
    fn extend<I: IntoIterator<Item = Subtree>>(&mut self, nodes: I) {
        nodes.into_iter().for_each(|node| self.push(node));
    }
}

impl IntoIterator for SubtreeChildren {
    type Item = Subtree;
    type IntoIter = std::vec::IntoIter<Subtree>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.into_iter()
    }
}

impl<'a> IntoIterator for &'a SubtreeChildren {
    type Item = &'a Subtree;
    type IntoIter = std::slice::Iter<'a, Subtree>;

    fn into_iter(self) -> Self::IntoIter {
        self.nodes.iter()
    }
}

impl<'a> IntoIterator for &'a mut SubtreeChildren {
    type Item = &'a mut Subtree;
    type IntoIter = std::slice::IterMut<'a, Subtree>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl Clone for SubtreeChildren {
    fn clone(&self) -> Self {
        self.nodes.clone().into()
    }
}

impl PartialEq for SubtreeChildren {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes
    }
}

impl Eq for SubtreeChildren {}

impl fmt::Debug for SubtreeChildren {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.nodes.fmt(f)
    }
}

#[cfg(not(test))]
fn count_searched_names(_count: usize) {}

#[cfg(test)]
fn count_searched_names(count: usize) {
    tests::SEARCHED_NAMES.set(tests::SEARCHED_NAMES.get() + count);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use proptest::prelude::*;

    thread_local! {
        /// The names that this thread compared, hashed or added.
        pub(super) static SEARCHED_NAMES: Cell<usize> = const { Cell::new(0) };
    }

    fn searched_names(work: impl FnOnce()) -> usize {
        let before = SEARCHED_NAMES.get();
        work();
        SEARCHED_NAMES.get() - before
    }

    fn named(number: usize) -> Subtree {
        Subtree::new(format!("n{number}"), "nt:unstructured")
    }

    #[test]
    fn work_on_many_children_grows_with_their_number() {
        let work = |count: usize| {
            searched_names(|| {
                let mut tree = Subtree::new("", "nt:unstructured");
                for number in 0..count {
                    tree.put_child(named(number));
                }
                for number in (0..count).rev() {
                    assert!(tree.child(&format!("n{number}")).is_some());
                    assert!(tree.child(&format!("x{number}")).is_none());
                    let child = tree.child_mut(&format!("n{number}")).unwrap();
                    child.properties.clear();
                }
                tree.remove_children(|name| name.ends_with('3'));
                assert_eq!(tree.children.len(), count - count / 10);
            })
        };
        let [few, more, many] = [1_000, 2_000, 4_000].map(work);
        assert!(more <= few * 21 / 10 && many <= more * 21 / 10, "{few} {more} {many}");
    }

    #[test]
    fn renamed_children_are_found_by_their_new_names() {
        let mut tree = Subtree::new("", "nt:unstructured");
        (0..100).for_each(|number| tree.put_child(named(number)));
        tree.child_mut("n40").unwrap().name = "other".to_owned();
        assert!(tree.child("n40").is_none());
        assert!(tree.child_mut("n40").is_none());
        assert_eq!(tree.children.position("other"), Some(40));
        tree.children[7].name = "seventh".to_owned();
        assert_eq!(tree.children.position("seventh"), Some(7));
        assert!(tree.child("n7").is_none());
    }

    proptest! {
        /// A list behaves as a plain one that is searched from its beginning.
        #[test]
        fn children_are_found_as_in_a_plain_list(
            steps in prop::collection::vec((0_u8..7, 0_usize..60, 0_usize..60), 0..200),
            begin in 0_usize..60,
        ) {
            let mut plain: Vec<Subtree> = (0..begin).map(named).collect();
            let mut children = SubtreeChildren::from(plain.clone());
            for (step, first, second) in steps {
                let name = format!("n{first}");
                let at = plain.iter().position(|child| child.name == name);
                prop_assert_eq!(children.position(&name), at);
                match step {
                    0 => {
                        plain.push(named(first));
                        children.push(named(first));
                    }
                    1 => {
                        let child = named(first).with_property("p", "v");
                        match at {
                            Some(at) => plain[at] = child.clone(),
                            None => plain.push(child.clone()),
                        }
                        children.put(child);
                    }
                    2 => {
                        if let Some(at) = at {
                            plain.remove(at);
                            children.remove(at);
                        }
                    }
                    3 => {
                        if let (Some(at), Some(child)) = (at, children.find_mut(&name)) {
                            child.name = format!("n{second}");
                            plain[at].name = format!("n{second}");
                        }
                    }
                    4 if first.max(second) < plain.len() => {
                        plain.swap(first, second);
                        children.swap(first, second);
                    }
                    5 => {
                        plain.retain(|child| child.name != name);
                        children.retain(|child| child.name != name);
                    }
                    _ => {
                        if let Some(child) = children.get_mut(second) {
                            child.name.clone_from(&name);
                            plain[second].name.clone_from(&name);
                        }
                    }
                }
                prop_assert_eq!(&*children, &plain);
                prop_assert_eq!(children.find(&name), plain.iter().find(|child| child.name == name));
            }
        }
    }
}
