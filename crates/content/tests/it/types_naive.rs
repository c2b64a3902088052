//! Random types and trees: a commit finds what a plain reading of the definitions finds.

use std::collections::BTreeSet;
use std::time::SystemTime;

use proptest::prelude::*;
use tympan_content::node_type::{
    ChildDefinition, ItemFlags, NodeTypeDefinition, NodeTypeFlags, PropertyDefinition,
};
use tympan_content::{
    BlobId, ConstraintViolationKind, Error, MIXIN_TYPES, NodePath, Property, Repository, Subtree,
    Value, ValueType,
};

use crate::session::path;

const MIXINS: [&str; 2] = ["m0", "m1"];
const PRIMARY: [&str; 3] = ["t0", "t1", "t2"];

/// Types whose values none of the others is converted to.
const VALUES: [Option<ValueType>; 3] = [Some(ValueType::String), Some(ValueType::Binary), None];

fn property() -> impl Strategy<Value = PropertyDefinition> {
    (
        prop::sample::select(vec!["p", "q", "*"]),
        0..3_usize,
        any::<bool>(),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(name, value_type, is_multiple, is_mandatory)| PropertyDefinition {
            name: name.into(),
            value_type: VALUES[value_type],
            is_multiple,
            flags: ItemFlags { is_mandatory: is_mandatory && name != "*", ..ItemFlags::default() },
            ..PropertyDefinition::default()
        })
}

fn child() -> impl Strategy<Value = ChildDefinition> {
    let required = prop::sample::select(vec!["nt:base", "t0", "t1", "t2", "m0"]);
    (
        prop::sample::select(vec!["c", "d", "*"]),
        prop::collection::vec(required, 0..2),
        prop::bool::weighted(0.3),
    )
        .prop_map(|(name, required, is_mandatory)| ChildDefinition {
            name: name.into(),
            required_types: required.into_iter().map(str::to_owned).collect(),
            flags: ItemFlags { is_mandatory: is_mandatory && name != "*", ..ItemFlags::default() },
            ..ChildDefinition::default()
        })
}

/// A type that comes from some of those before it.
fn definition(
    name: &'static str,
    above: &'static [&'static str],
    is_mixin: bool,
) -> impl Strategy<Value = NodeTypeDefinition> {
    (
        prop::sample::subsequence(above.to_vec(), 0..=above.len()),
        prop::collection::vec(property(), 0..3),
        prop::collection::vec(child(), 0..3),
        prop::bool::weighted(0.1),
    )
        .prop_map(move |(supertypes, properties, children, is_abstract)| NodeTypeDefinition {
            name: name.into(),
            supertypes: supertypes.into_iter().map(str::to_owned).collect(),
            flags: NodeTypeFlags {
                is_mixin,
                is_abstract: is_abstract && !is_mixin,
                ..NodeTypeFlags::default()
            },
            properties,
            children,
            ..NodeTypeDefinition::default()
        })
}

fn types() -> impl Strategy<Value = Vec<NodeTypeDefinition>> {
    (
        definition("m0", &[], true),
        definition("m1", &["m0"], true),
        definition("t0", &["m0"], false),
        definition("t1", &["t0", "m1"], false),
        definition("t2", &["t1", "t0"], false),
    )
        .prop_map(|(a, b, c, d, e)| vec![a, b, c, d, e])
}

fn value() -> impl Strategy<Value = Property> {
    (0..2_usize, any::<bool>(), 0..3_u8).prop_map(|(value_type, is_list, seed)| {
        let value = match value_type {
            0 => Value::String(format!("x{seed}")),
            _ => Value::Binary(BlobId::new([seed; 32], 1)),
        };
        match is_list {
            true => Property::List(value.value_type(), vec![value]),
            false => Property::Single(value),
        }
    })
}

fn tree(depth: u32) -> BoxedStrategy<Subtree> {
    let node = (
        prop::sample::select(&PRIMARY[..]),
        prop::sample::subsequence(MIXINS.to_vec(), 0..=2),
        prop::collection::btree_map(prop::sample::select(vec!["p", "q", "r"]), value(), 0..3),
    )
        .prop_map(|(primary, mixins, properties)| {
            let mut node = Subtree::new("", primary);
            if !mixins.is_empty() {
                let mixins = mixins.into_iter().map(|name| Value::Name(name.into())).collect();
                node = node.with_property(MIXIN_TYPES, Property::List(ValueType::Name, mixins));
            }
            properties.into_iter().fold(node, |node, (name, value)| node.with_property(name, value))
        });
    if depth == 0 {
        return node.boxed();
    }
    let names = prop::sample::select(vec!["c", "d", "e"]);
    (node, prop::collection::btree_map(names, tree(depth - 1), 0..3))
        .prop_map(|(mut node, children)| {
            for (name, child) in children {
                node.put_child(Subtree { name: name.into(), ..child });
            }
            node
        })
        .boxed()
}

/// The plain reading: every question walks the definitions again.
struct Naive<'a> {
    types: &'a [NodeTypeDefinition],
    found: BTreeSet<(String, ConstraintViolationKind, String)>,
}

impl<'a> Naive<'a> {
    fn definition(&self, name: &str) -> Option<&'a NodeTypeDefinition> {
        self.types.iter().find(|one| one.name == name)
    }

    /// Returns a type and those it comes from, nearest first, each once.
    fn line(&self, name: &str, line: &mut Vec<&'a NodeTypeDefinition>) {
        let Some(definition) = self.definition(name) else { return };
        if !line.iter().any(|one| one.name == name) {
            line.push(definition);
            definition.supertypes.iter().for_each(|one| self.line(one, line));
        }
    }

    fn own(node: &Subtree) -> Vec<String> {
        let mut names = vec![node.primary_type().to_owned()];
        let mixins = node.properties.get(MIXIN_TYPES).map_or(&[][..], Property::values);
        names.extend(mixins.iter().map(|value| value.to_text().into_owned()));
        names
    }

    fn is(&self, node: &Subtree, name: &str) -> bool {
        let is_one = |own: &String| {
            let mut line = Vec::new();
            self.line(own, &mut line);
            line.iter().any(|one| one.name == name)
        };
        name == "nt:base" || Self::own(node).iter().any(is_one)
    }

    /// Returns the definitions of one type's properties: what it declares hides what it inherits of the same form.
    fn properties(&self, name: &str) -> Vec<&'a PropertyDefinition> {
        fn collect<'a>(naive: &Naive<'a>, name: &str, all: &mut Vec<&'a PropertyDefinition>) {
            let Some(definition) = naive.definition(name) else { return };
            for one in &definition.properties {
                let is_hidden = all.iter().any(|other| {
                    (&other.name, other.value_type, other.is_multiple)
                        == (&one.name, one.value_type, one.is_multiple)
                });
                if !is_hidden {
                    all.push(one);
                }
            }
            definition.supertypes.iter().for_each(|one| collect(naive, one, all));
        }
        let mut all = Vec::new();
        collect(self, name, &mut all);
        all
    }

    fn children(&self, name: &str) -> Vec<&'a ChildDefinition> {
        fn collect<'a>(naive: &Naive<'a>, name: &str, all: &mut Vec<&'a ChildDefinition>) {
            let Some(definition) = naive.definition(name) else { return };
            for one in &definition.children {
                let is_hidden = all.iter().any(|other| {
                    other.name == one.name
                        && other.effective_required_types().eq(one.effective_required_types())
                });
                if !is_hidden {
                    all.push(one);
                }
            }
            definition.supertypes.iter().for_each(|one| collect(naive, one, all));
        }
        let mut all = Vec::new();
        collect(self, name, &mut all);
        all
    }

    fn find(&self, node: &Subtree, name: &str, value: &Property) -> Option<&'a PropertyDefinition> {
        let form = |one: &PropertyDefinition| {
            if one.is_multiple != value.is_list() {
                3
            } else if one.value_type == Some(value.value_type()) {
                0
            } else if one.value_type.is_none() {
                1
            } else {
                3
            }
        };
        for own in Self::own(node) {
            let named: Vec<_> =
                self.properties(&own).into_iter().filter(|one| one.name == name).collect();
            let best = named.iter().min_by_key(|one| form(one)).filter(|one| form(one) < 3);
            let mandatory = named.iter().find(|one| one.flags.is_mandatory);
            if let Some(found) = best.or(mandatory) {
                return Some(found);
            }
        }
        for own in Self::own(node) {
            let residual = self.properties(&own).into_iter().filter(|one| one.name == "*");
            let best = residual.min_by_key(|one| form(one)).filter(|one| form(one) < 3);
            if best.is_some() {
                return best;
            }
        }
        None
    }

    fn admits(&self, parent: &Subtree, child: &Subtree) -> bool {
        let fits = |one: &&ChildDefinition| {
            one.effective_required_types().all(|name| self.is(child, name))
        };
        for own in Self::own(parent) {
            let children = self.children(&own);
            let named: Vec<_> = children.into_iter().filter(|one| one.name == child.name).collect();
            if named.iter().any(&fits) {
                return true;
            }
            if named.iter().any(|one| one.flags.is_mandatory) {
                return false;
            }
        }
        Self::own(parent)
            .iter()
            .any(|own| self.children(own).iter().any(|one| one.name == "*" && fits(one)))
    }

    fn add(&mut self, path: &NodePath, kind: ConstraintViolationKind, item: &str) {
        self.found.insert((path.to_string(), kind, item.to_owned()));
    }

    fn node(&mut self, path: &NodePath, old: Option<&Subtree>, new: &Subtree) {
        let settled = old.filter(|old| Self::own(old) == Self::own(new));
        let own = Self::own(new);
        if settled.is_none() && self.definition(&own[0]).unwrap().flags.is_abstract {
            self.add(path, ConstraintViolationKind::AbstractPrimaryType, &own[0]);
        }
        let values = new.properties.iter().filter(|(name, _)| !name.starts_with("jcr:"));
        for (name, value) in values {
            if settled.is_some_and(|old| old.properties.get(name) == Some(value)) {
                continue;
            }
            match self.find(new, name, value) {
                None => self.add(path, ConstraintViolationKind::UnknownProperty, name),
                Some(one) => {
                    let has_type = one.value_type.is_none_or(|wanted| wanted == value.value_type());
                    if !has_type || one.is_multiple != value.is_list() {
                        self.add(path, ConstraintViolationKind::RequiredType, name);
                    }
                }
            }
        }
        let rules: Vec<_> = own.iter().flat_map(|own| self.properties(own)).collect();
        for one in rules {
            let is_gone = !new.properties.contains_key(&one.name);
            let was_there = settled.is_some_and(|old| old.properties.contains_key(&one.name));
            match settled {
                None if one.flags.is_mandatory && is_gone => {
                    self.add(path, ConstraintViolationKind::MandatoryProperty, &one.name);
                }
                Some(_) if one.flags.is_mandatory && is_gone && was_there => {
                    self.add(path, ConstraintViolationKind::MandatoryPropertyRemoved, &one.name);
                }
                _ => {}
            }
        }
        let rules: Vec<_> = own.iter().flat_map(|own| self.children(own)).collect();
        for one in rules {
            let is_gone = new.child(&one.name).is_none();
            let was_there = settled.is_some_and(|old| old.child(&one.name).is_some());
            match settled {
                None if one.flags.is_mandatory && is_gone => {
                    self.add(path, ConstraintViolationKind::MandatoryChild, &one.name);
                }
                Some(_) if one.flags.is_mandatory && is_gone && was_there => {
                    self.add(path, ConstraintViolationKind::MandatoryChildRemoved, &one.name);
                }
                _ => {}
            }
        }
        for child in &new.children {
            let before = old.and_then(|old| old.child(&child.name));
            let is_new = before.is_none_or(|before| Self::own(before) != Self::own(child));
            if (is_new || settled.is_none()) && !self.admits(new, child) {
                self.add(path, ConstraintViolationKind::UnknownChild, &child.name);
            }
            self.node(&path.child(&child.name).unwrap(), before, child);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    #[test]
    fn commits_find_what_a_plain_reading_finds(
        types in types(),
        before in prop::option::of(tree(2)),
        after in tree(2),
    ) {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        session.types().define_types(&types).unwrap();
        let at = path("/r");
        if let Some(before) = &before {
            session.put_node(&at, before.clone()).unwrap();
        }
        session.mark_as_received();
        session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
        session.put_node(&at, after.clone()).unwrap();
        let found = match session.commit("after", SystemTime::UNIX_EPOCH) {
            Ok(_) => BTreeSet::new(),
            Err(Error::ConstraintViolations(violations)) => violations
                .into_iter()
                .map(|one| (one.path.to_string(), one.kind, one.item))
                .collect(),
            Err(error) => panic!("{error}"),
        };
        let mut naive = Naive { types: &types, found: BTreeSet::new() };
        naive.node(&at, before.as_ref(), &after);
        prop_assert_eq!(found, naive.found);
    }
}
