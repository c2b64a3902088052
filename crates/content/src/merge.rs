//! Three-way merge of documents, node by node and property by property.
//!
//! In: a node as it was when a session began (base), as the session wants it (ours), as it is stored now (theirs); any
//! may be absent. Out: the merged node, and what could not be merged as [`Conflict`]s.
//!
//! Rules (Oak's relaxed first-committer-wins): equal changes succeed; changes of different properties and different
//! children merge; clashing modification dates take the later, creation dates the earlier; the order of children takes
//! both sides' insertions.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Conflict, ConflictKind, NodePath, Property, Subtree, Value};

/// Merges one node; the result is absent where the merged state has no such node.
pub(crate) fn merge(
    path: &NodePath,
    base: Option<&Subtree>,
    ours: Option<&Subtree>,
    theirs: Option<&Subtree>,
    conflicts: &mut Vec<Conflict>,
) -> Option<Subtree> {
    if ours == theirs || theirs == base {
        return ours.cloned();
    }
    if ours == base {
        return theirs.cloned();
    }
    let (Some(ours), Some(theirs), Some(base)) = (ours, theirs, base) else {
        let kind = match (base, ours) {
            (None, _) => ConflictKind::AddExistingNode,
            (Some(_), None) => ConflictKind::RemoveChangedNode,
            (Some(_), Some(_)) => ConflictKind::ChangeRemovedNode,
        };
        conflicts.push(Conflict::of_node(path, kind));
        return ours.cloned();
    };
    let mut merged = Subtree {
        name: ours.name.clone(),
        properties: merge_properties(
            path,
            [&base.properties, &ours.properties, &theirs.properties],
            conflicts,
        ),
        children: Vec::new(),
    };
    for name in merged_order(base, ours, theirs) {
        let child_path = path.child_unchecked(name);
        let sides = [base.child(name), ours.child(name), theirs.child(name)];
        merged.children.extend(merge(&child_path, sides[0], sides[1], sides[2], conflicts));
    }
    Some(merged)
}

type Properties = BTreeMap<String, Property>;

fn merge_properties(
    path: &NodePath,
    sides: [&Properties; 3],
    conflicts: &mut Vec<Conflict>,
) -> Properties {
    let names: BTreeSet<&String> = sides.iter().flat_map(|side| side.keys()).collect();
    let mut merged = Properties::new();
    for name in names {
        let [base, ours, theirs] = sides.map(|side| side.get(name));
        let value = if ours == theirs || theirs == base {
            ours.cloned()
        } else if ours == base {
            theirs.cloned()
        } else if let Some(resolved) = resolve_known(name, ours, theirs) {
            Some(resolved)
        } else {
            let kind = match (base, ours, theirs) {
                (None, ..) => ConflictKind::AddExistingProperty,
                (Some(_), None, _) => ConflictKind::RemoveChangedProperty,
                (Some(_), Some(_), None) => ConflictKind::ChangeRemovedProperty,
                (Some(_), Some(_), Some(_)) => ConflictKind::ChangeChangedProperty,
            };
            conflicts.push(Conflict {
                path: path.clone(),
                kind,
                property: Some(name.clone()),
                base: base.cloned(),
                ours: ours.cloned(),
                theirs: theirs.cloned(),
            });
            ours.cloned()
        };
        if let Some(value) = value {
            merged.insert(name.clone(), value);
        }
    }
    merged
}

/// Resolves the clashes that have one right answer: who changed last, and when a node came to be.
fn resolve_known(
    name: &str,
    ours: Option<&Property>,
    theirs: Option<&Property>,
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
            Some(ours.clone())
        }
        _ => None,
    }
}

/// Returns the names of all children in the merged order: the order of the side that changed it (ours if both did),
/// with the other side's new children behind the sibling they stand behind there.
fn merged_order<'a>(base: &'a Subtree, ours: &'a Subtree, theirs: &'a Subtree) -> Vec<&'a str> {
    let names = |tree: &'a Subtree| {
        tree.children.iter().map(|child| child.name.as_str()).collect::<Vec<_>>()
    };
    let (base, ours, theirs) = (names(base), names(ours), names(theirs));
    let common = |side: &[&'a str]| {
        side.iter().copied().filter(|name| base.contains(name)).collect::<Vec<_>>()
    };
    let kept_by_ours = common(&ours);
    let base_as_kept: Vec<&str> =
        base.iter().copied().filter(|name| kept_by_ours.contains(name)).collect();
    let (mut order, others) =
        if kept_by_ours == base_as_kept { (theirs, ours) } else { (ours, theirs) };
    let mut previous = None;
    for name in others {
        if !order.contains(&name) {
            let at = previous
                .and_then(|before| order.iter().position(|one| *one == before))
                .map_or(0, |at| at + 1);
            order.insert(at, name);
        }
        previous = Some(name);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> Subtree {
        // `a=1 b=2 [x y]`: properties, then children.
        let mut node = Subtree::new("n", "nt:unstructured");
        let (properties, children) = text.split_once('[').unwrap_or((text, "]"));
        for pair in properties.split_whitespace() {
            let (name, value) = pair.split_once('=').unwrap();
            node = node.with(name, value);
        }
        for name in children.trim_end_matches(']').split_whitespace() {
            node = node.with_child(Subtree::new(name, "nt:unstructured"));
        }
        node
    }

    fn check(base: &str, ours: &str, theirs: &str, expected: &str) {
        let mut conflicts = Vec::new();
        let path = NodePath::new("/n").unwrap();
        let merged =
            merge(&path, Some(&node(base)), Some(&node(ours)), Some(&node(theirs)), &mut conflicts);
        if let Some(kind) = expected.strip_prefix('!') {
            assert_eq!(
                conflicts.iter().map(|one| one.kind.name()).collect::<Vec<_>>(),
                [kind],
                "{base}|{ours}|{theirs}"
            );
        } else {
            assert_eq!(conflicts, []);
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
    }

    #[test]
    fn names_conflicts_of_nodes() {
        let path = NodePath::new("/n").unwrap();
        let (base, changed) = (node("a=1"), node("a=2"));
        let kind = |base: Option<&Subtree>, ours: Option<&Subtree>, theirs: Option<&Subtree>| {
            let mut conflicts = Vec::new();
            merge(&path, base, ours, theirs, &mut conflicts);
            conflicts.first().map(|one: &Conflict| one.kind.name())
        };
        assert_eq!(kind(None, Some(&base), Some(&changed)), Some("addExistingNode"));
        assert_eq!(kind(None, Some(&base), Some(&base)), None);
        assert_eq!(kind(Some(&base), None, Some(&changed)), Some("removeChangedNode"));
        assert_eq!(kind(Some(&base), Some(&changed), None), Some("changeRemovedNode"));
        assert_eq!(kind(Some(&base), None, None), None);
    }

    #[test]
    fn dates_of_change_take_the_later() {
        let date = |text: &str| Property::Single(Value::Date(crate::Date::parse(text).unwrap()));
        let stamp = |text: &str| node("").with("jcr:lastModified", date(text));
        let mut conflicts = Vec::new();
        let path = NodePath::new("/n").unwrap();
        let (base, early, late) = (
            stamp("2020-01-01T00:00:00Z"),
            stamp("2021-01-01T00:00:00Z"),
            stamp("2022-01-01T00:00:00Z"),
        );
        let merged = merge(&path, Some(&base), Some(&early), Some(&late), &mut conflicts);
        assert_eq!((merged, conflicts.len()), (Some(late), 0));
    }
}
