//! Two sessions that add, move and remove siblings with an order: what each did stays, and nobody is lost.

use std::collections::BTreeSet;
use std::time::SystemTime;

use proptest::prelude::*;
use tympan_content::{NodePath, Repository, Session, SiblingPosition};

const OLD: u8 = 6;
const ALL: u8 = 12;

/// What becomes of one sibling: it goes before another (or last), added first if it is new; or it is removed.
#[derive(Debug, Clone, Copy)]
enum Edit {
    Move(u8, Option<u8>),
    Remove(u8),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        5 => (0..ALL, prop::option::weighted(0.8, 0..ALL)).prop_map(|(which, to)| Edit::Move(which, to)),
        1 => (0..ALL).prop_map(Edit::Remove),
    ];
    prop::collection::vec(edit, 0..6)
}

fn child(parent: &NodePath, number: u8) -> NodePath {
    parent.child(&format!("n{number}")).unwrap()
}

/// Applies edits to a session and to a plain list; returns which siblings were moved or added.
fn apply(
    edits: &[Edit],
    parent: &NodePath,
    model: &mut Vec<u8>,
    session: &mut Session,
) -> BTreeSet<u8> {
    let mut touched = BTreeSet::new();
    for edit in edits {
        match *edit {
            Edit::Move(which, to) => {
                if !model.contains(&which) {
                    session.add_node(&child(parent, which), "nt:unstructured").unwrap();
                    model.push(which);
                }
                touched.insert(which);
                let to = to.filter(|to| *to != which && model.contains(to));
                let place = to
                    .map_or(SiblingPosition::Last, |to| SiblingPosition::Before(format!("n{to}")));
                session.reorder_node(&child(parent, which), &place).unwrap();
                model.retain(|one| *one != which);
                let at = to.and_then(|to| model.iter().position(|one| *one == to));
                model.insert(at.unwrap_or(model.len()), which);
            }
            Edit::Remove(which) if model.contains(&which) => {
                session.remove_node(&child(parent, which)).unwrap();
                model.retain(|one| *one != which);
                touched.insert(which);
            }
            Edit::Remove(_) => {}
        }
    }
    touched
}

/// What each side has and touched, and what became of both.
type Merged = ([(Vec<u8>, BTreeSet<u8>); 2], Vec<u8>);

/// Merges the edits of two sessions below a node of this type; nothing if they are in conflict.
fn merge(kind: &str, first: &[Edit], second: &[Edit]) -> Option<Merged> {
    let repository = Repository::in_memory().unwrap();
    let parent = NodePath::new("/parent").unwrap();
    let mut session = repository.session("setup").unwrap();
    session.add_node(&parent, kind).unwrap();
    for number in 0..OLD {
        session.add_node(&child(&parent, number), "nt:unstructured").unwrap();
    }
    session.commit("setup", SystemTime::UNIX_EPOCH).unwrap();
    let mut sessions = [first, second].map(|edits| (repository.session("ann").unwrap(), edits));
    let sides = sessions.each_mut().map(|(session, edits)| {
        let mut model: Vec<u8> = (0..OLD).collect();
        let touched = apply(edits, &parent, &mut model, session);
        (model, touched)
    });
    for (session, _) in &mut sessions {
        session.commit("edit", SystemTime::UNIX_EPOCH).ok()?;
    }
    let node = repository.snapshot().unwrap().node(&parent).unwrap().unwrap();
    let children = node.children().unwrap();
    let merged = children.iter().map(|child| child.name()[1..].parse().unwrap()).collect();
    Some((sides, merged))
}

proptest! {
    #[test]
    fn siblings_of_two_sessions_keep_what_each_did(
        first in edits(), second in edits(),
        kind in prop::sample::select(vec!["sling:OrderedFolder", "nt:unstructured"]),
    ) {
        let Some((sides, merged)) = merge(kind, &first, &second) else { return Ok(()) };
        let everyone: BTreeSet<u8> = merged.iter().copied().collect();
        prop_assert_eq!(everyone.len(), merged.len(), "nobody twice: {:?}", merged);
        let place = |names: &[u8], one: u8| names.iter().position(|name| *name == one);
        for ((own, _), (other, touched_there)) in [(&sides[0], &sides[1]), (&sides[1], &sides[0])] {
            for one in 0..ALL {
                // What only this side added, kept or removed is as it has it.
                if !touched_there.contains(&one) {
                    prop_assert_eq!(everyone.contains(&one), own.contains(&one), "n{}: {:?}", one, merged);
                }
                for next in 0..ALL {
                    // Inside a document nobody notes which of two was moved past the other.
                    let is_alone = kind == "sling:OrderedFolder"
                        && !touched_there.contains(&one)
                        && !touched_there.contains(&next);
                    if is_alone && own.contains(&one) && own.contains(&next) {
                        let here = place(own, one) < place(own, next);
                        let there = place(&merged, one) < place(&merged, next);
                        prop_assert_eq!(here, there, "n{} n{}: {:?} and {:?} became {:?}", one, next, own, other, merged);
                    }
                }
            }
        }
    }
}
