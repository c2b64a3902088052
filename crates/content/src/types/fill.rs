//! What the repository sets itself: properties that types create, who changed a node when, values converted to the
//! type that a property must have.
//!
//! In: a document before and after, who commits and when. Out: the document as it is stored.
//!
//! Rules
//! * A new node gets what its types create, unless it comes with it; so does one that gets other types.
//! * What types create stays when it is removed.
//! * `jcr:lastModified` and `jcr:lastModifiedBy` follow every change of a node's own properties, unless they are
//!   changed themselves.
//! * What comes in a package is what the package says. Its nodes get what they must have at their next change.
//! * A value of another type than a property must have is converted where its text allows, as JCR's sessions do.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::definition::PropertyDefinition;
use super::effective::EffectiveType;
use super::judge::{Children, NodeTypesOf};
use super::stored::Rules;
use crate::boundary::is_container;
use crate::reference::UUID;
use crate::subtree::PRIMARY_TYPE;
use crate::{BorrowedNode, Date, Property, Subtree, Value, ValueType};

const MODIFIED: &str = "jcr:lastModified";
const MODIFIED_BY: &str = "jcr:lastModifiedBy";

/// Something to set in one node of a document.
#[derive(Debug)]
pub(super) struct Fill {
    /// The node, counted from the document's own, parents before their children.
    node: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Property(String, Property),
    Child(String, String),
}

/// Where a document comes from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source<'a> {
    /// Who commits it.
    pub(super) user: &'a str,
    /// When.
    pub(super) at: SystemTime,
    /// It comes from a package, which says what it holds.
    pub(super) is_installed: bool,
}

/// Collects what is to be set in a document.
pub(super) struct Filler<'a> {
    rules: &'a Rules,
    source: Source<'a>,
    count: usize,
    fills: Vec<Fill>,
}

impl<'a> Filler<'a> {
    pub(super) fn new(rules: &'a Rules, source: Source<'a>) -> Self {
        Self { rules, source, count: 0, fills: Vec::new() }
    }

    /// Looks through a document that is called `name` and stands below a node of this type.
    pub(super) fn document(
        mut self,
        name: &str,
        parent: Option<&EffectiveType>,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Vec<Fill> {
        self.node(name, parent, old, new);
        self.fills
    }

    fn node(
        &mut self,
        name: &str,
        parent: Option<&EffectiveType>,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        let at = self.count;
        self.count += 1;
        let mut types = NodeTypesOf::of(new);
        // Such a node would have to be cut anew: the commit is too late for that.
        let default = parent
            .and_then(|parent| parent.default_type(name))
            .filter(|default| old.is_none() && !is_container(name, default));
        if let (None, Some(default)) = (types.primary, default) {
            types.primary = Some(default);
            self.set(at, PRIMARY_TYPE, Property::name(default));
        }
        let settled = old.filter(|old| NodeTypesOf::of(*old) == types);
        let effective = types.effective(self.rules);
        let is_touched = settled.is_none_or(|old| !has_same_properties(old, new));
        if is_touched {
            self.convert(at, &effective, settled, new);
        }
        let is_made_here = !self.source.is_installed;
        if is_touched && is_made_here {
            self.create(at, &effective, (old, settled.is_some()), new);
        }
        if settled.is_some() && is_touched && is_made_here {
            self.stamp(at, &effective, settled, new);
        }
        let is_document = at > 0 || !is_container(name, types.primary.unwrap_or_default());
        if settled.is_none() && is_document && is_made_here {
            self.create_children(at, &effective, new);
        }
        let before = Children::of(old);
        for child in new.children() {
            self.node(child.name(), Some(&effective), before.find(child.name()), child);
        }
    }

    fn set(&mut self, node: usize, name: &str, property: Property) {
        self.fills.push(Fill { node, what: What::Property(name.to_owned(), property) });
    }

    fn create(
        &mut self,
        at: usize,
        effective: &EffectiveType,
        (old, is_settled): (Option<BorrowedNode<'_>>, bool),
        new: BorrowedNode<'_>,
    ) {
        for definition in effective.properties().filter(|one| one.flags.is_autocreated) {
            let name = definition.name.as_str();
            if new.property(name).is_some() {
                continue;
            }
            let kept = old.and_then(|old| old.property(name)).map(|old| old.to_property());
            // A node that has these types already came without it, from a package or from before the rule: it gets
            // what it must have.
            let is_wanted = !is_settled || definition.flags.is_mandatory;
            let first = || if is_wanted { self.first_value(definition) } else { None };
            if let Some(value) = kept.or_else(first) {
                self.set(at, name, value);
            }
        }
    }

    /// Returns what a property is created with.
    fn first_value(&self, definition: &PropertyDefinition) -> Option<Property> {
        let value_type = definition.value_type.unwrap_or(ValueType::String);
        if !definition.default_values.is_empty() {
            let texts = definition.default_values.iter();
            // They were read when the type was registered.
            let values: Vec<Value> =
                texts.filter_map(|text| Value::parse(value_type, text).ok()).collect();
            return match definition.is_multiple {
                true => Some(Property::List(value_type, values)),
                false => values.into_iter().next().map(Property::Single),
            };
        }
        match definition.name.as_str() {
            UUID => Some(Property::text(uuid::Uuid::new_v4().to_string())),
            "jcr:created" | MODIFIED => {
                Some(Value::Date(Date::from_system_time(self.source.at)).into())
            }
            "jcr:createdBy" | MODIFIED_BY => Some(Property::text(self.source.user)),
            _ => None,
        }
    }

    /// Notes who changed a node when.
    fn stamp(
        &mut self,
        at: usize,
        effective: &EffectiveType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        let is_stamped = effective.is("mix:lastModified");
        let Some(old) = settled.filter(|_| is_stamped) else { return };
        let is_kept = |name: &str| match (old.property(name), new.property(name)) {
            (Some(old), Some(new)) => old.is_same(new),
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let has_other_changes = has_other_changes(old, new);
        if has_other_changes && is_kept(MODIFIED) && is_kept(MODIFIED_BY) {
            self.set(at, MODIFIED, Value::Date(Date::from_system_time(self.source.at)).into());
            self.set(at, MODIFIED_BY, Property::text(self.source.user));
        }
    }

    /// Converts values to the types that the named definitions want.
    fn convert(
        &mut self,
        at: usize,
        effective: &EffectiveType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        for (name, property) in new.properties() {
            let (value_type, is_list) = (property.value_type(), property.is_list());
            let is_old =
                settled.and_then(|old| old.property(name)).is_some_and(|old| old.is_same(property));
            let rule = effective.rule(name, value_type, is_list);
            let fits = rule.is_some_and(|rule| {
                rule.definition.value_type.is_none_or(|wanted| wanted == value_type)
            });
            // The text of a binary would be its blob's id.
            if is_old || fits || value_type == ValueType::Binary {
                continue;
            }
            let rule = effective.named_rule(name, is_list);
            let Some(wanted) = rule.and_then(|rule| rule.definition.value_type) else { continue };
            let values = property.values().map(|value| {
                let value = value.to_value();
                let text = value.to_text();
                // Anything that is not `true` reads as `false`.
                let is_truth = matches!(&*text, "true" | "false");
                (wanted != ValueType::Boolean || is_truth)
                    .then(|| Value::parse(wanted, &text).ok())
                    .flatten()
            });
            let Some(values) = values.collect::<Option<Vec<Value>>>() else { continue };
            match (is_list, values.as_slice()) {
                (true, _) => self.set(at, name, Property::List(wanted, values)),
                (false, [value]) => self.set(at, name, Property::Single(value.clone())),
                (false, _) => {}
            }
        }
    }

    fn create_children(&mut self, at: usize, effective: &EffectiveType, new: BorrowedNode<'_>) {
        let missing = effective
            .children()
            .filter(|child| child.flags.is_autocreated && new.child(&child.name).is_none());
        let missing: BTreeMap<&str, &str> = missing
            .filter_map(|child| Some((child.name.as_str(), child.default_type.as_deref()?)))
            .collect();
        for (name, default) in missing {
            let what = What::Child(name.to_owned(), default.to_owned());
            self.fills.push(Fill { node: at, what });
        }
    }
}

/// Sets what was collected.
pub(super) fn apply(tree: &mut Subtree, fills: Vec<Fill>) {
    let mut fills = fills.into_iter().peekable();
    apply_from(tree, &mut 0, &mut fills);
}

fn apply_from(
    node: &mut Subtree,
    count: &mut usize,
    fills: &mut std::iter::Peekable<std::vec::IntoIter<Fill>>,
) {
    let at = *count;
    *count += 1;
    let mut children = Vec::new();
    while let Some(fill) = fills.next_if(|fill| fill.node == at) {
        match fill.what {
            What::Property(name, property) => {
                node.properties.insert(name, property);
            }
            What::Child(name, primary_type) => children.push(Subtree::new(name, &primary_type)),
        }
    }
    for child in &mut node.children {
        apply_from(child, count, fills);
    }
    // Behind the others, which were counted.
    children.into_iter().for_each(|child| node.put_child(child));
}

/// Lets nodes that both sides of a merge made have what their types created in the other's commit: base, ours, theirs.
///
/// Two sessions that make the same folder would clash by when they did, and by the identifiers that the repository
/// dealt out.
pub(crate) fn adopt(sides: &mut [Option<Subtree>; 3]) {
    let [base, ours, theirs] = sides;
    if let (Some(ours), Some(theirs)) = (ours, theirs) {
        adopt_from(base.as_ref(), ours, theirs);
    }
}

fn adopt_from(base: Option<&Subtree>, ours: &mut Subtree, theirs: &Subtree) {
    const CREATED: [&str; 5] = [UUID, "jcr:created", "jcr:createdBy", MODIFIED, MODIFIED_BY];
    if base.is_none() && ours.primary_type() == theirs.primary_type() {
        for name in CREATED {
            if let (None, Some(theirs)) = (ours.properties.get(name), theirs.properties.get(name)) {
                ours.properties.insert(name.to_owned(), theirs.clone());
            }
        }
    }
    for child in &mut ours.children {
        let before = base.and_then(|base| base.child(&child.name));
        if let Some(theirs) = theirs.child(&child.name) {
            adopt_from(before, child, theirs);
        }
    }
}

fn has_same_properties(old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    let mut before = old.properties();
    new.properties().all(|(name, property)| {
        before.next().is_some_and(|(old_name, old)| old_name == name && old.is_same(property))
    }) && before.next().is_none()
}

/// Tells whether anything but the note of who changed a node when is another.
fn has_other_changes(old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    fn others<'a>(
        node: BorrowedNode<'a>,
    ) -> impl Iterator<Item = (&'a str, crate::BorrowedProperty<'a>)> {
        node.properties().filter(|(name, _)| *name != MODIFIED && *name != MODIFIED_BY)
    }
    let mut before = others(old);
    let is_same = others(new).all(|(name, property)| {
        before.next().is_some_and(|(old_name, old)| old_name == name && old.is_same(property))
    });
    !is_same || before.next().is_some()
}
