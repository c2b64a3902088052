//! Differences of two trees, node by node and property by property, for comparing versions or branches.
//!
//! In: two [`Subtree`]s. Out: [`NodeDifference`]s in the order of the later tree, removed nodes first.
//!
//! Not here: merging (`node_merge`), and finding the documents that differ between two states (`branch::merge`).

use std::collections::{BTreeSet, HashSet};

use crate::{Property, Subtree};

/// The kind of change of a node, a document or a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Only the later state has it.
    Added,
    /// Only the earlier state has it.
    Removed,
    /// Both states have it, with differences.
    Changed,
}

impl ChangeKind {
    /// Returns the name of the kind: `added`, `removed` or `changed`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }

    /// Derives the kind of change from the presence in each state; `None` if neither state has the item.
    pub(crate) fn from_presence(is_before: bool, is_after: bool) -> Option<Self> {
        match (is_before, is_after) {
            (false, true) => Some(Self::Added),
            (true, false) => Some(Self::Removed),
            (true, true) => Some(Self::Changed),
            (false, false) => None,
        }
    }
}

/// A node that differs between two trees. An added or removed node stands for everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeDifference {
    /// The node's path relative to the compared node; empty for that node itself.
    pub path: String,
    /// The kind of change.
    pub kind: ChangeKind,
    /// The properties that differ, by name; all properties of an added or removed node.
    pub properties: Vec<PropertyDifference>,
    /// True if the order of the children that both trees have changed.
    pub is_reordered: bool,
}

/// A property that differs; at least one side has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyDifference {
    /// Its name.
    pub name: String,
    /// The earlier value.
    pub before: Option<Property>,
    /// The later value.
    pub after: Option<Property>,
}

impl Subtree {
    /// Returns the differences of `after` from this tree. The names of the two root nodes are not compared.
    #[must_use]
    pub fn differences(&self, after: &Self) -> Vec<NodeDifference> {
        let mut node_differences = Vec::new();
        collect_differences("", self, after, &mut node_differences);
        node_differences
    }
}

/// Returns the difference for a whole tree that was added or removed.
pub(crate) fn whole_tree_difference(
    tree: &Subtree,
    kind: ChangeKind,
    path: &str,
) -> NodeDifference {
    let side = |property: &Property, of: ChangeKind| (kind == of).then(|| property.clone());
    let properties = tree.properties.iter().map(|(name, property)| PropertyDifference {
        name: name.clone(),
        before: side(property, ChangeKind::Removed),
        after: side(property, ChangeKind::Added),
    });
    let properties = properties.collect();
    NodeDifference { path: path.to_owned(), kind, properties, is_reordered: false }
}

fn collect_differences(
    path: &str,
    before: &Subtree,
    after: &Subtree,
    differences: &mut Vec<NodeDifference>,
) {
    let properties = property_differences(before, after);
    let is_reordered = is_child_order_changed(before, after);
    if !properties.is_empty() || is_reordered {
        let (path, kind) = (path.to_owned(), ChangeKind::Changed);
        differences.push(NodeDifference { path, kind, properties, is_reordered });
    }
    let below = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}/{name}"),
    };
    for child in before.children.iter().filter(|child| after.child(&child.name).is_none()) {
        differences.push(whole_tree_difference(child, ChangeKind::Removed, &below(&child.name)));
    }
    for child in &after.children {
        match before.child(&child.name) {
            Some(old) => collect_differences(&below(&child.name), old, child, differences),
            None => differences.push(whole_tree_difference(
                child,
                ChangeKind::Added,
                &below(&child.name),
            )),
        }
    }
}

fn property_differences(before: &Subtree, after: &Subtree) -> Vec<PropertyDifference> {
    let names: BTreeSet<&String> =
        before.properties.keys().chain(after.properties.keys()).collect();
    let both = names.into_iter().map(|name| PropertyDifference {
        name: name.clone(),
        before: before.properties.get(name).cloned(),
        after: after.properties.get(name).cloned(),
    });
    both.filter(|difference| difference.before != difference.after).collect()
}

/// Returns true if the order of the children that both nodes have differs.
fn is_child_order_changed(before: &Subtree, after: &Subtree) -> bool {
    let names = |tree: &Subtree| -> HashSet<String> {
        tree.children.iter().map(|child| child.name.clone()).collect()
    };
    let (old, new) = (names(before), names(after));
    let common = |tree: &Subtree, counterpart_names: &HashSet<String>| -> Vec<String> {
        let names = tree.children.iter().map(|child| child.name.clone());
        names.filter(|name| counterpart_names.contains(name)).collect()
    };
    common(before, &new) != common(after, &old)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &Subtree, after: &Subtree, expected: &[&str]) {
        let lines: Vec<String> = before
            .differences(after)
            .iter()
            .map(|difference| {
                let names: Vec<&str> =
                    difference.properties.iter().map(|property| property.name.as_str()).collect();
                let order = if difference.is_reordered { " reordered" } else { "" };
                format!("{} {} {}{order}", difference.kind.name(), difference.path, names.join(","))
            })
            .collect();
        assert_eq!(lines, expected);
    }

    fn node(name: &str) -> Subtree {
        Subtree { name: name.to_owned(), ..Subtree::default() }
    }

    #[test]
    fn lists_what_was_added_removed_changed_and_reordered() {
        let before = node("n")
            .with_property("a", "1")
            .with_property("b", "1")
            .with_child(node("x"))
            .with_child(node("y").with_property("p", "1").with_child(node("deep")));
        check(&before, &before, &[]);
        let after = node("other").with_property("b", "2").with_property("c", "1").with_child(
            node("y").with_property("p", "2").with_child(node("deep").with_property("q", "1")),
        );
        check(
            &before,
            &after,
            &["changed  a,b,c", "removed x ", "changed y p", "changed y/deep q"],
        );
        let swapped = node("n").with_child(node("y").with_property("p", "1")).with_child(node("x"));
        let plain = node("n").with_child(node("x")).with_child(node("y").with_property("p", "1"));
        check(&plain, &swapped, &["changed   reordered"]);
        check(&node("n"), &plain, &["added x ", "added y p"]);
    }
}
