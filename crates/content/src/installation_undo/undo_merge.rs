//! Three-way merge that never fails: undoes one side's changes where nothing else has changed them since.
//!
//! In: a node after the change (base), before it (wanted), and now (there). Out: the node, undone as far as possible;
//! the parts that stay because something else changed them, as [`MergeConflict`]s.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{ConflictKind, MergeConflict, NodePath, Property, Subtree, SubtreeChildren};

/// Undoes the change of a node as far as possible; `None` if the node is removed.
pub(super) fn undo_node_change(
    path: &NodePath,
    [base, target, there]: [Option<&Subtree>; 3],
    conflicts: &mut Vec<MergeConflict>,
) -> Option<Subtree> {
    if there == base || there == target {
        return target.cloned();
    }
    if target == base {
        return there.cloned();
    }
    let Some(there) = there else {
        conflicts.push(MergeConflict::for_node(path, ConflictKind::ChangeRemovedNode));
        return None;
    };
    let Some(base) = base else {
        conflicts.push(MergeConflict::for_node(path, ConflictKind::AddExistingNode));
        return Some(there.clone());
    };
    let Some(target_node) = target else {
        return remove_unless_changed(path, base, there, conflicts);
    };
    let properties = undo_property_changes(path, [base, target_node, there], conflicts);
    let mut out =
        Subtree { name: there.name.clone(), properties, children: SubtreeChildren::default() };
    for name in undo_child_order(base, target_node, there) {
        let sides = [base.child(name), target_node.child(name), there.child(name)];
        out.children.extend(undo_node_change(&path.child_unchecked(name), sides, conflicts));
    }
    Some(out)
}

/// Returns the parts that stay of a node to be removed.
fn remove_unless_changed(
    path: &NodePath,
    base: &Subtree,
    there: &Subtree,
    conflicts: &mut Vec<MergeConflict>,
) -> Option<Subtree> {
    let children: SubtreeChildren = there
        .children
        .iter()
        .filter_map(|child| {
            let path = path.child_unchecked(&child.name);
            undo_node_change(&path, [base.child(&child.name), None, Some(child)], conflicts)
        })
        .collect();
    if children.is_empty() && there.properties == base.properties {
        return None;
    }
    conflicts.push(MergeConflict::for_node(path, ConflictKind::RemoveChangedNode));
    let Subtree { name, properties, .. } = there;
    Some(Subtree { name: name.clone(), properties: properties.clone(), children })
}

fn undo_property_changes(
    path: &NodePath,
    [base, target, there]: [&Subtree; 3],
    conflicts: &mut Vec<MergeConflict>,
) -> BTreeMap<String, Property> {
    let sides = [&base.properties, &target.properties, &there.properties];
    let names: BTreeSet<&String> = sides.iter().flat_map(|side| side.keys()).collect();
    let mut out = BTreeMap::new();
    for name in names {
        let [base, target_value, there] = sides.map(|side| side.get(name));
        let value = if there == base || there == target_value {
            target_value
        } else if target_value == base {
            there
        } else {
            let kind = match (base, target_value, there) {
                (None, ..) => ConflictKind::AddExistingProperty,
                (Some(_), None, _) => ConflictKind::RemoveChangedProperty,
                (Some(_), Some(_), None) => ConflictKind::ChangeRemovedProperty,
                (Some(_), Some(_), Some(_)) => ConflictKind::ChangeChangedProperty,
            };
            conflicts.push(MergeConflict {
                path: path.clone(),
                kind,
                property: Some(name.clone()),
                base: base.cloned(),
                ours: target_value.cloned(),
                theirs: there.cloned(),
                last_change: None,
            });
            there
        };
        out.extend(value.map(|value| (name.clone(), value.clone())));
    }
    out
}

/// Returns the names of all children that may stay: in the wanted order if it has not changed since, with the others
/// after the sibling that they follow on their side.
fn undo_child_order<'a>(base: &Subtree, target: &'a Subtree, there: &'a Subtree) -> Vec<&'a str> {
    fn names(node: &Subtree) -> Vec<&str> {
        node.children.iter().map(|child| child.name.as_str()).collect()
    }
    let common = |first: &Subtree, second: &Subtree| -> Vec<String> {
        let names = names(first).into_iter().filter(|name| second.child(name).is_some());
        names.map(str::to_owned).collect()
    };
    let is_as_left = common(there, base) == common(base, there);
    let (staying, others) =
        if is_as_left { (names(target), names(there)) } else { (names(there), names(target)) };
    let known: HashSet<&str> = staying.iter().copied().collect();
    // The names to insert after each staying name, in order.
    let mut behind: HashMap<Option<&str>, Vec<&'a str>> = HashMap::new();
    let mut anchor = None;
    for name in others {
        match known.contains(name) {
            true => anchor = Some(name),
            false => behind.entry(anchor).or_default().push(name),
        }
    }
    let mut order = behind.remove(&None).unwrap_or_default();
    for name in staying {
        order.push(name);
        order.extend(behind.remove(&Some(name)).unwrap_or_default());
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `a=1 b=2 [x y(c=1)]`: properties, then children by name with their properties.
    fn node(text: &str) -> Option<Subtree> {
        if text == "-" {
            return None;
        }
        let mut node = Subtree::new("n", "nt:unstructured");
        let (properties, children) = text.split_once('[').unwrap_or((text, "]"));
        for pair in properties.split_whitespace() {
            let (name, value) = pair.split_once('=').unwrap();
            node = node.with_property(name, value);
        }
        for child in children.trim_end_matches(']').split_whitespace() {
            let (name, value) = child.split_once('=').unwrap_or((child, ""));
            let mut child = Subtree::new(name, "nt:unstructured");
            if !value.is_empty() {
                child = child.with_property("p", value);
            }
            node = node.with_child(child);
        }
        Some(node)
    }

    fn check(base: &str, target: &str, there: &str, expected: &str, conflicts: &[&str]) {
        let path = NodePath::new("/n").unwrap();
        let mut recorded_conflicts = Vec::new();
        let sides = [node(base), node(target), node(there)];
        let settled =
            undo_node_change(&path, sides.each_ref().map(Option::as_ref), &mut recorded_conflicts);
        assert_eq!(settled, node(expected), "{base}|{target}|{there}");
        let conflict_texts: Vec<String> = recorded_conflicts
            .iter()
            .map(|conflict| {
                format!(
                    "{}{} {}",
                    conflict.path,
                    conflict.property.as_deref().unwrap_or(""),
                    conflict.kind.name()
                )
            })
            .collect();
        assert_eq!(conflict_texts, conflicts, "{base}|{target}|{there}");
    }

    #[test]
    fn what_nobody_touched_goes_back() {
        check("a=2", "a=1", "a=2", "a=1", &[]);
        check("a=2", "a=1", "a=2 b=3", "a=1 b=3", &[]);
        check("a=2 b=1", "a=1", "a=2 b=1", "a=1", &[]);
        check("a=1", "-", "a=1", "-", &[]);
        check("-", "a=1", "-", "a=1", &[]);
        check("a=1", "-", "-", "-", &[]);
        check("[x y]", "[y]", "[x new y]", "[new y]", &[]);
        check("[y x]", "[x y]", "[y x new]", "[x new y]", &[]);
    }

    #[test]
    fn what_others_changed_stays_and_is_reported() {
        check("a=2", "a=1", "a=3", "a=3", &["/na changeChangedProperty"]);
        check("a=2", "", "a=3", "a=3", &["/na removeChangedProperty"]);
        check("a=2", "a=1", "", "", &["/na changeRemovedProperty"]);
        check("", "a=1", "a=3", "a=3", &["/na addExistingProperty"]);
        check("a=2", "-", "a=3", "a=3", &["/n removeChangedNode"]);
        check("a=2", "a=1", "-", "-", &["/n changeRemovedNode"]);
        check("-", "a=1", "a=3", "a=3", &["/n addExistingNode"]);
        // Of a new node, only content that others added below it stays.
        check("a=1 [x y]", "-", "a=1 [x y new]", "a=1 [new]", &["/n removeChangedNode"]);
        check(
            "[x y=1]",
            "-",
            "[x y=2]",
            "[y=2]",
            &["/n/y removeChangedNode", "/n removeChangedNode"],
        );
    }
}
