//! Three-way merge of documents, node by node and property by property.
//!
//! In: a node in the base state of a session (base), with the session's edits (ours), and as it is stored now (theirs);
//! any may be absent. Out: the merged node, and the [`MergeConflict`]s.
//!
//! Rules (Oak's relaxed first-committer-wins): equal changes succeed; changes of different properties and different
//! children merge; conflicting modification dates take the later, creation dates the earlier; the order of children
//! includes both sides' insertions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::commit::merge_conflicts::MergeConflicts;
use crate::{
    ConflictKind, JcrDate, MergeConflict, MergeSide, NodePath, Property, Subtree, SubtreeChildren,
    Value, commit::counter,
};

/// Merges one node: base, ours, theirs. The result is `None` if the merged state has no such node.
pub(crate) fn merge_node(
    path: &NodePath,
    sides: [Option<&Subtree>; 3],
    conflicts: &mut MergeConflicts<'_>,
) -> Option<Subtree> {
    let [base, ours, theirs] = sides;
    if theirs == base || (base.is_none() && ours == theirs) {
        return ours.cloned();
    }
    if ours == base {
        return theirs.cloned();
    }
    let (Some(ours), Some(theirs), Some(base)) = (ours, theirs, base) else {
        let kind = match (base, ours, theirs) {
            (None, ..) => ConflictKind::AddExistingNode,
            (Some(_), None, None) => return None,
            (Some(_), None, _) => ConflictKind::RemoveChangedNode,
            (Some(_), Some(_), _) => ConflictKind::ChangeRemovedNode,
        };
        return match conflicts.resolve(MergeConflict::for_node(path, kind)) {
            MergeSide::Ours => ours.cloned(),
            MergeSide::Theirs => theirs.cloned(),
        };
    };
    let mut merged = Subtree {
        name: ours.name.clone(),
        properties: merge_properties(path, [base, ours, theirs], conflicts),
        children: SubtreeChildren::default(),
    };
    let [of_base, of_ours, of_theirs] = [base, ours, theirs].map(children_by_name);
    for name in merge_child_order(&child_names(base), &child_names(ours), &child_names(theirs)) {
        let child_path = path.child_unchecked(name);
        let sides = [of_base.get(name), of_ours.get(name), of_theirs.get(name)];
        merged.children.extend(merge_node(
            &child_path,
            sides.map(Option::<&&_>::copied),
            conflicts,
        ));
    }
    Some(merged)
}

fn children_by_name(tree: &Subtree) -> HashMap<&str, &Subtree> {
    tree.children.iter().map(|child| (child.name.as_str(), child)).collect()
}

fn child_names(tree: &Subtree) -> Vec<&str> {
    tree.children.iter().map(|child| child.name.as_str()).collect()
}

fn merge_properties(
    path: &NodePath,
    sides: [&Subtree; 3],
    conflicts: &mut MergeConflicts<'_>,
) -> BTreeMap<String, Property> {
    let names: BTreeSet<&String> = sides.iter().flat_map(|side| side.properties.keys()).collect();
    let is_counter = counter::is_counter(sides[1]);
    let mut merged = BTreeMap::new();
    for name in names {
        let [base, ours, theirs] = sides.map(|side| side.properties.get(name));
        let value = if theirs == base {
            ours.cloned()
        } else if ours == base {
            theirs.cloned()
        } else if let Some(sum) =
            counter::merge_counter(name, [base, ours, theirs]).filter(|_| is_counter)
        {
            Some(sum)
        } else if ours == theirs {
            ours.cloned()
        } else if let Some(resolved) = resolve_system_property(name, ours, theirs, sides) {
            Some(resolved)
        } else {
            let kind = match (base, ours, theirs) {
                (None, ..) => ConflictKind::AddExistingProperty,
                (Some(_), None, _) => ConflictKind::RemoveChangedProperty,
                (Some(_), Some(_), None) => ConflictKind::ChangeRemovedProperty,
                (Some(_), Some(_), Some(_)) => ConflictKind::ChangeChangedProperty,
            };
            let conflict = MergeConflict {
                property: Some(name.clone()),
                base: base.cloned(),
                ours: ours.cloned(),
                theirs: theirs.cloned(),
                ..MergeConflict::for_node(path, kind)
            };
            match conflicts.resolve(conflict) {
                MergeSide::Ours => ours.cloned(),
                MergeSide::Theirs => theirs.cloned(),
            }
        };
        if let Some(value) = value {
            merged.insert(name.clone(), value);
        }
    }
    merged
}

/// Resolves the conflicts with a unique solution: the last modification, and the creation of a node.
fn resolve_system_property(
    name: &str,
    ours: Option<&Property>,
    theirs: Option<&Property>,
    nodes: [&Subtree; 3],
) -> Option<Property> {
    let (ours, theirs) = (ours?, theirs?);
    let (Property::Single(left), Property::Single(right)) = (ours, theirs) else {
        return None;
    };
    match (name, left, right) {
        (
            "jcr:lastModified" | "cq:lastModified" | "cq:lastReplicated",
            Value::Date(left),
            Value::Date(right),
        ) => Some(Property::Single(Value::Date(*left.max(right)))),
        ("jcr:created", Value::Date(left), Value::Date(right)) => {
            Some(Property::Single(Value::Date(*left.min(right))))
        }
        ("jcr:lastModifiedBy" | "cq:lastModifiedBy" | "cq:lastReplicatedBy", ..) => {
            // The side whose date is used.
            let [_, here, there] =
                nodes.map(|node| date_property(node, name.trim_end_matches("By")));
            Some(if there > here { theirs.clone() } else { ours.clone() })
        }
        _ => None,
    }
}

fn date_property(node: &Subtree, name: &str) -> Option<JcrDate> {
    match node.properties.get(name)?.first()? {
        Value::Date(date) => Some(*date),
        _ => None,
    }
}

/// Returns the names of all children in the merged order: ours, with the children that only the other side added or
/// moved placed after their predecessor on that side. If both sides moved a child, ours wins.
fn merge_child_order<'a>(base: &[&'a str], ours: &[&'a str], theirs: &[&'a str]) -> Vec<&'a str> {
    let (moved_here, moved_there) = (moved_names(base, ours), moved_names(base, theirs));
    let old: HashSet<&str> = base.iter().copied().collect();
    let here: HashSet<&str> = ours.iter().copied().collect();
    // The children from the other side: those it added, those it moved, and those that only it still has.
    let goes = |name: &&str| {
        !here.contains(name) || (moved_there.contains(name) && !moved_here.contains(name))
    };
    let coming: HashSet<&str> = theirs.iter().copied().filter(goes).collect();
    let staying: Vec<&'a str> =
        ours.iter().copied().filter(|name| !coming.contains(name)).collect();
    // The children to insert after each child that neither side moved, in order.
    let mut behind: HashMap<Option<&str>, Vec<&'a str>> = HashMap::new();
    let stays: HashSet<&str> = staying.iter().copied().collect();
    let mut anchor = None;
    for name in theirs {
        if coming.contains(name) {
            behind.entry(anchor).or_default().push(name);
        } else if stays.contains(name) && old.contains(name) && !moved_here.contains(name) {
            anchor = Some(*name);
        }
    }
    let mut order = behind.remove(&None).unwrap_or_default();
    for name in staying {
        order.push(name);
        order.extend(behind.remove(&Some(name)).unwrap_or_default());
    }
    order
}

/// Returns the names that a side moved: those outside of a longest run of names in unchanged order.
fn moved_names<'a>(base: &[&'a str], side: &[&'a str]) -> HashSet<&'a str> {
    let positions: HashMap<&str, usize> =
        base.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let common: Vec<(&'a str, usize)> =
        side.iter().filter_map(|name| Some((*name, *positions.get(name)?))).collect();
    // The ends of the longest increasing runs of each length, as positions in `common`, and the predecessor of each.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(common.len());
    let base_position = |at: &usize| common.get(*at).map_or(0, |(_, index)| *index);
    for (at, (_, own)) in common.iter().enumerate() {
        let length = ends.partition_point(|end| base_position(end) < *own);
        before.push(length.checked_sub(1).and_then(|last| ends.get(last).copied()));
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut unmoved_names = HashSet::new();
    let mut at = ends.last().copied();
    while let Some(position) = at {
        unmoved_names.extend(common.get(position).map(|(name, _)| *name));
        at = before.get(position).copied().flatten();
    }
    common.into_iter().map(|(name, _)| name).filter(|name| !unmoved_names.contains(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MergeOptions;

    fn node(text: &str) -> Subtree {
        // `a=1 b=2 [x y]`: properties, then children.
        let mut node = Subtree::new("n", "nt:unstructured");
        let (properties, children) = text.split_once('[').unwrap_or((text, "]"));
        for pair in properties.split_whitespace() {
            let (name, value) = pair.split_once('=').unwrap();
            node = node.with_property(name, value);
        }
        for name in children.trim_end_matches(']').split_whitespace() {
            node = node.with_child(Subtree::new(name, "nt:unstructured"));
        }
        node
    }

    fn check(base: &str, ours: &str, theirs: &str, expected: &str) {
        let (path, choice) = (NodePath::new("/n").unwrap(), MergeOptions::default());
        let mut conflicts = MergeConflicts::new(&choice);
        let sides = [&node(base), &node(ours), &node(theirs)];
        let merged = merge_node(&path, sides.map(Some), &mut conflicts);
        let unresolved = conflicts.unresolved;
        if let Some(kind) = expected.strip_prefix('!') {
            assert_eq!(
                unresolved.iter().map(|one| one.kind.name()).collect::<Vec<_>>(),
                [kind],
                "{base}|{ours}|{theirs}"
            );
        } else {
            assert_eq!(unresolved, []);
            assert_eq!(merged.unwrap(), node(expected), "{base}|{ours}|{theirs}");
        }
    }

    #[test]
    fn merges_what_fits_and_names_what_does_not() {
        check("a=1", "a=2", "a=1 b=1", "a=2 b=1");
        check("a=1", "a=2", "a=2", "a=2");
        check("a=1 b=1", "b=1", "a=1", "");
        check("a=1", "", "", "");
        check("a=1", "a=2", "a=3", "!changeChangedProperty");
        check("a=1", "", "a=3", "!removeChangedProperty");
        check("a=1", "a=3", "", "!changeRemovedProperty");
        check("", "a=1", "a=2", "!addExistingProperty");
        check("", "a=1", "a=1", "a=1");
        check("[x y]", "[x new y]", "[x y their]", "[x new y their]");
        check("[x y z]", "[z x y]", "[x y q z]", "[z x y q]");
        check("[x y]", "[x]", "[y x]", "[x]");
        check("[a b c d]", "[b a c d]", "[a b d c]", "[b a d c]");
        check("[a b c d]", "[d a b c]", "[a x b c d]", "[d a x b c]");
        check("[a b c]", "[a n1 b c]", "[a m1 b c]", "[a m1 n1 b c]");
        check("[a b c]", "[c b a]", "[b a c]", "[c b a]");
        check("[a b c]", "[h a b c]", "[b c h a]", "[h b c a]");
    }

    #[test]
    fn names_conflicts_of_nodes() {
        let (path, choice) = (NodePath::new("/n").unwrap(), MergeOptions::default());
        let (base, changed) = (node("a=1"), node("a=2"));
        let kind = |base: Option<&Subtree>, ours: Option<&Subtree>, theirs: Option<&Subtree>| {
            let mut conflicts = MergeConflicts::new(&choice);
            merge_node(&path, [base, ours, theirs], &mut conflicts);
            conflicts.unresolved.first().map(|conflict: &MergeConflict| conflict.kind.name())
        };
        assert_eq!(kind(None, Some(&base), Some(&changed)), Some("addExistingNode"));
        assert_eq!(kind(None, Some(&base), Some(&base)), None);
        assert_eq!(kind(Some(&base), None, Some(&changed)), Some("removeChangedNode"));
        assert_eq!(kind(Some(&base), Some(&changed), None), Some("changeRemovedNode"));
        assert_eq!(kind(Some(&base), None, None), None);
    }

    #[test]
    fn dates_of_change_take_the_later() {
        let date = |text: &str| Property::Single(Value::Date(crate::JcrDate::parse(text).unwrap()));
        let stamp = |text: &str| node("").with_property("jcr:lastModified", date(text));
        let (path, choice) = (NodePath::new("/n").unwrap(), MergeOptions::default());
        let mut conflicts = MergeConflicts::new(&choice);
        let (base, early, late) = (
            stamp("2020-01-01T00:00:00Z"),
            stamp("2021-01-01T00:00:00Z"),
            stamp("2022-01-01T00:00:00Z"),
        );
        let merged = merge_node(&path, [&base, &early, &late].map(Some), &mut conflicts);
        assert_eq!((merged, conflicts.unresolved.len()), (Some(late), 0));
    }

    #[test]
    fn who_changed_last_is_who_changed_at_that_date() {
        let date = |text: &str| Property::Single(Value::Date(crate::JcrDate::parse(text).unwrap()));
        let stamp = |user: &str, text: &str| {
            node("")
                .with_property("jcr:lastModified", date(text))
                .with_property("jcr:lastModifiedBy", user)
        };
        let (path, choice) = (NodePath::new("/n").unwrap(), MergeOptions::default());
        let base = stamp("old", "2020-01-01T00:00:00Z");
        let (ann, bob) =
            (stamp("ann", "2021-01-01T00:00:00Z"), stamp("bob", "2022-01-01T00:00:00Z"));
        for (ours, theirs) in [(&ann, &bob), (&bob, &ann)] {
            let mut conflicts = MergeConflicts::new(&choice);
            let merged = merge_node(&path, [&base, ours, theirs].map(Some), &mut conflicts);
            assert_eq!((merged.as_ref(), conflicts.unresolved.len()), (Some(&bob), 0));
        }
    }

    #[test]
    fn counters_of_branches_add_up() {
        let counter = |value: i64| {
            let mixins = Property::List(
                crate::ValueType::Name,
                vec![Value::Name("mix:atomicCounter".to_owned())],
            );
            node("")
                .with_property("jcr:mixinTypes", mixins)
                .with_property("oak:counter", Value::Long(value))
        };
        let (path, choice) = (NodePath::new("/n").unwrap(), MergeOptions::default());
        let merge_of = |base: i64, ours: i64, theirs: i64| {
            let mut conflicts = MergeConflicts::new(&choice);
            let sides = [&counter(base), &counter(ours), &counter(theirs)];
            let merged = merge_node(&path, sides.map(Some), &mut conflicts).unwrap();
            assert_eq!(conflicts.unresolved, []);
            merged.properties["oak:counter"].first().unwrap().to_text().into_owned()
        };
        assert_eq!(merge_of(5, 6, 6), "7", "equal changes of a counter are two changes");
        assert_eq!(merge_of(5, 9, 2), "6");
    }

    proptest::proptest! {
        #[test]
        fn an_order_loses_nobody_and_keeps_what_one_side_did(
            ours in proptest::collection::vec((0_usize..12, 0_usize..12), 0..6),
            theirs in proptest::collection::vec((0_usize..12, 0_usize..12), 0..6),
        ) {
            const NAMES: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
            let base = NAMES[..6].to_vec();
            // The last six names are added when they are first moved.
            let edited = |moves: &[(usize, usize)]| {
                let mut names = base.clone();
                for (which, to) in moves {
                    names.retain(|name| *name != NAMES[*which]);
                    names.insert((*to).min(names.len()), NAMES[*which]);
                }
                names
            };
            let (ours, theirs) = (edited(&ours), edited(&theirs));
            let merged = merge_child_order(&base, &ours, &theirs);
            let set = |names: &[&'static str]| names.iter().copied().collect::<BTreeSet<_>>();
            proptest::prop_assert_eq!(set(&merged), &set(&ours) | &set(&theirs));
            proptest::prop_assert_eq!(merged.len(), set(&merged).len(), "nobody twice");
            if theirs == base {
                proptest::prop_assert_eq!(&merged, &ours);
            }
            if ours == base {
                proptest::prop_assert_eq!(&merged, &theirs);
            }
            // Children that theirs left alone follow ours; children that ours left alone follow theirs.
            let place = |names: &[&str], name: &str| names.iter().position(|one| *one == name);
            for (side, other) in [(&ours, &theirs), (&theirs, &ours)] {
                let moved = moved_names(&base, other);
                let alone: Vec<&str> =
                    base.iter().copied().filter(|name| !moved.contains(name)).collect();
                for (at, left) in alone.iter().enumerate() {
                    for right in &alone[at + 1..] {
                        let here = place(side, left) < place(side, right);
                        let merged = place(&merged, left) < place(&merged, right);
                        proptest::prop_assert_eq!(merged, here, "{} {}", left, right);
                    }
                }
            }
        }
    }
}
