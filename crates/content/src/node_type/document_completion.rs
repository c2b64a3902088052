//! Completion of documents: auto-created properties, the modification stamp of a node, and values converted to the
//! required type of their property.
//!
//! In: a document before and after, the user and the time of the commit. Out: the document as it is stored.
//!
//! Rules
//! * A new node gets the auto-created items of its types unless it already has them; so does a node whose types change.
//! * A removed auto-created item is restored.
//! * `jcr:lastModified` and `jcr:lastModifiedBy` follow every change of a node's own properties, unless they are
//!   changed themselves.
//! * Content of a package is stored as the package defines it. Its nodes get missing mandatory items at their next
//!   change.
//! * A value of another type than the property requires is converted if its text allows, as JCR's sessions do.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::effective_type::EffectiveNodeType;
use super::node_type_rules::NodeTypeRules;
use super::node_type_validator::{ChildLookup, DeclaredNodeTypes};
use super::type_definition::PropertyDefinition;
use crate::document::boundary::is_container;
use crate::model::subtree::{PRIMARY_TYPE, UUID_PROPERTY};
use crate::{BorrowedNode, JcrDate, Property, Subtree, Value, ValueType};

const LAST_MODIFIED: &str = "jcr:lastModified";
const LAST_MODIFIED_BY: &str = "jcr:lastModifiedBy";

/// A property or child to set in one node of a document.
#[derive(Debug)]
pub(super) struct NodeCompletion {
    /// The index of the node, counted from the document's own node, parents before their children.
    node_index: usize,
    item: CompletedItem,
}

#[derive(Debug)]
enum CompletedItem {
    Property(String, Property),
    Child(String, String),
}

/// The origin of a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct DocumentOrigin<'a> {
    /// The user who commits it.
    pub(super) user: &'a str,
    /// The time of the commit.
    pub(super) commit_time: SystemTime,
    /// True if it comes from a package, which defines its content.
    pub(super) is_from_package: bool,
}

/// Collects the completions of a document.
pub(super) struct DocumentCompleter<'a> {
    rules: &'a NodeTypeRules,
    origin: DocumentOrigin<'a>,
    node_count: usize,
    completions: Vec<NodeCompletion>,
}

impl<'a> DocumentCompleter<'a> {
    pub(super) fn new(rules: &'a NodeTypeRules, source: DocumentOrigin<'a>) -> Self {
        Self { rules, origin: source, node_count: 0, completions: Vec::new() }
    }

    /// Scans a document that is called `name` and lies below a node of this type.
    pub(super) fn complete_document(
        mut self,
        name: &str,
        parent: Option<&EffectiveNodeType>,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Vec<NodeCompletion> {
        self.complete_node(name, parent, old, new);
        self.completions
    }

    fn complete_node(
        &mut self,
        name: &str,
        parent: Option<&EffectiveNodeType>,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        let at = self.node_count;
        self.node_count += 1;
        let mut types = DeclaredNodeTypes::from_node(new);
        // Such a node would change the record boundaries; it is too late for that in a commit.
        let default = parent
            .and_then(|parent| parent.default_child_type(name))
            .filter(|default| old.is_none() && !is_container(name, default));
        if let (None, Some(default)) = (types.primary_type, default) {
            types.primary_type = Some(default);
            self.set_property(at, PRIMARY_TYPE, Property::name(default));
        }
        let settled = old.filter(|old| DeclaredNodeTypes::from_node(*old) == types);
        let effective = types.effective_type(self.rules);
        let is_touched = settled.is_none_or(|old| !has_same_properties(old, new));
        if is_touched {
            self.convert_values(at, &effective, settled, new);
        }
        let is_made_here = !self.origin.is_from_package;
        if is_touched && is_made_here {
            self.create_properties(at, &effective, old, settled.is_some(), new);
        }
        if settled.is_some() && is_touched && is_made_here {
            self.stamp_modification(at, &effective, settled, new);
        }
        let is_document = at > 0 || !is_container(name, types.primary_type.unwrap_or_default());
        if settled.is_none() && is_document && is_made_here {
            self.create_children(at, &effective, new);
        }
        let before = ChildLookup::from_node(old);
        for child in new.children() {
            self.complete_node(child.name(), Some(&effective), before.find(child.name()), child);
        }
    }

    fn set_property(&mut self, node: usize, name: &str, property: Property) {
        self.completions.push(NodeCompletion {
            node_index: node,
            item: CompletedItem::Property(name.to_owned(), property),
        });
    }

    fn create_properties(
        &mut self,
        at: usize,
        effective: &EffectiveNodeType,
        old: Option<BorrowedNode<'_>>,
        is_settled: bool,
        new: BorrowedNode<'_>,
    ) {
        for definition in
            effective.property_definitions().filter(|candidate| candidate.flags.is_autocreated)
        {
            let name = definition.name.as_str();
            if new.property(name).is_some() {
                continue;
            }
            let existing_value =
                old.and_then(|old| old.property(name)).map(|old| old.to_property());
            // A node that already had these types came without the item, from a package or from before the rule; it
            // gets only mandatory items.
            let is_wanted = !is_settled || definition.flags.is_mandatory;
            let first = || if is_wanted { self.default_value(definition) } else { None };
            if let Some(value) = existing_value.or_else(first) {
                self.set_property(at, name, value);
            }
        }
    }

    /// Returns the default value of a property.
    fn default_value(&self, definition: &PropertyDefinition) -> Option<Property> {
        let value_type = definition.value_type.unwrap_or(ValueType::String);
        if !definition.default_values.is_empty() {
            let texts = definition.default_values.iter();
            // The values were parsed when the type was registered.
            let values: Vec<Value> =
                texts.filter_map(|text| Value::parse(value_type, text).ok()).collect();
            return match definition.is_multiple {
                true => Some(Property::List(value_type, values)),
                false => values.into_iter().next().map(Property::Single),
            };
        }
        match definition.name.as_str() {
            UUID_PROPERTY => Some(Property::text(uuid::Uuid::new_v4().to_string())),
            "jcr:created" | LAST_MODIFIED => {
                Some(Value::Date(JcrDate::from_system_time(self.origin.commit_time)).into())
            }
            "jcr:createdBy" | LAST_MODIFIED_BY => Some(Property::text(self.origin.user)),
            _ => None,
        }
    }

    /// Sets the user and time of a node's modification.
    fn stamp_modification(
        &mut self,
        at: usize,
        effective: &EffectiveNodeType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        let is_stamped = effective.is_of_type("mix:lastModified");
        let Some(old) = settled.filter(|_| is_stamped) else { return };
        let is_kept = |name: &str| match (old.property(name), new.property(name)) {
            (Some(old), Some(new)) => old.has_equal_values(new),
            (_, None) => true,
            (None, Some(_)) => false,
        };
        let has_other_changes = has_other_changes(old, new);
        if has_other_changes && is_kept(LAST_MODIFIED) && is_kept(LAST_MODIFIED_BY) {
            self.set_property(
                at,
                LAST_MODIFIED,
                Value::Date(JcrDate::from_system_time(self.origin.commit_time)).into(),
            );
            self.set_property(at, LAST_MODIFIED_BY, Property::text(self.origin.user));
        }
    }

    /// Converts values to the types that named definitions require.
    fn convert_values(
        &mut self,
        at: usize,
        effective: &EffectiveNodeType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        for (name, property) in new.properties() {
            let (value_type, is_list) = (property.value_type(), property.is_list());
            let is_old = settled
                .and_then(|old| old.property(name))
                .is_some_and(|old| old.has_equal_values(property));
            let rule = effective.property_rule(name, value_type, is_list);
            let fits = rule.is_some_and(|rule| {
                rule.definition.value_type.is_none_or(|required_type| required_type == value_type)
            });
            // The text form of a binary would be its blob's id.
            if is_old || fits || value_type == ValueType::Binary {
                continue;
            }
            let rule = effective.named_property_rule(name, is_list);
            let Some(required_type) = rule.and_then(|rule| rule.definition.value_type) else {
                continue;
            };
            let values = property.values().map(|value| {
                let value = value.to_value();
                let text = value.to_text();
                // JCR would convert any text other than `true` to `false`.
                let is_truth = matches!(&*text, "true" | "false");
                (required_type != ValueType::Boolean || is_truth)
                    .then(|| Value::parse(required_type, &text).ok())
                    .flatten()
            });
            let Some(values) = values.collect::<Option<Vec<Value>>>() else { continue };
            match (is_list, values.as_slice()) {
                (true, _) => self.set_property(at, name, Property::List(required_type, values)),
                (false, [value]) => self.set_property(at, name, Property::Single(value.clone())),
                (false, _) => {}
            }
        }
    }

    fn create_children(&mut self, at: usize, effective: &EffectiveNodeType, new: BorrowedNode<'_>) {
        let missing = effective
            .child_definitions()
            .filter(|child| child.flags.is_autocreated && new.child(&child.name).is_none());
        let missing: BTreeMap<&str, &str> = missing
            .filter_map(|child| Some((child.name.as_str(), child.default_type.as_deref()?)))
            .collect();
        for (name, default) in missing {
            let item = CompletedItem::Child(name.to_owned(), default.to_owned());
            self.completions.push(NodeCompletion { node_index: at, item });
        }
    }
}

/// Applies the collected completions.
pub(super) fn apply_completions(tree: &mut Subtree, fills: Vec<NodeCompletion>) {
    let mut fills = fills.into_iter().peekable();
    apply_completions_from(tree, &mut 0, &mut fills);
}

fn apply_completions_from(
    node: &mut Subtree,
    count: &mut usize,
    fills: &mut std::iter::Peekable<std::vec::IntoIter<NodeCompletion>>,
) {
    let at = *count;
    *count += 1;
    let mut children = Vec::new();
    while let Some(fill) = fills.next_if(|fill| fill.node_index == at) {
        match fill.item {
            CompletedItem::Property(name, property) => {
                node.properties.insert(name, property);
            }
            CompletedItem::Child(name, primary_type) => {
                children.push(Subtree::new(name, &primary_type))
            }
        }
    }
    for child in &mut node.children {
        apply_completions_from(child, count, fills);
    }
    // Appended after the existing children, whose indexes are in use.
    children.into_iter().for_each(|child| node.put_child(child));
}

/// Unifies auto-created items of nodes that both sides of a merge created: base, ours, theirs.
///
/// Otherwise two sessions that create the same folder would conflict over creation dates and generated identifiers.
pub(crate) fn adopt_created_items(sides: &mut [Option<Subtree>; 3]) {
    let [base, ours, theirs] = sides;
    if let (Some(ours), Some(theirs)) = (ours, theirs) {
        adopt_created_items_from(base.as_ref(), ours, theirs);
    }
}

fn adopt_created_items_from(base: Option<&Subtree>, ours: &mut Subtree, theirs: &Subtree) {
    const CREATED: [&str; 5] =
        [UUID_PROPERTY, "jcr:created", "jcr:createdBy", LAST_MODIFIED, LAST_MODIFIED_BY];
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
            adopt_created_items_from(before, child, theirs);
        }
    }
}

fn has_same_properties(old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    let mut before = old.properties();
    new.properties().all(|(name, property)| {
        before
            .next()
            .is_some_and(|(old_name, old)| old_name == name && old.has_equal_values(property))
    }) && before.next().is_none()
}

/// Returns true if anything other than the modification stamp differs.
fn has_other_changes(old: BorrowedNode<'_>, new: BorrowedNode<'_>) -> bool {
    fn others<'a>(
        node: BorrowedNode<'a>,
    ) -> impl Iterator<Item = (&'a str, crate::BorrowedProperty<'a>)> {
        node.properties().filter(|(name, _)| *name != LAST_MODIFIED && *name != LAST_MODIFIED_BY)
    }
    let mut before = others(old);
    let is_same = others(new).all(|(name, property)| {
        before
            .next()
            .is_some_and(|(old_name, old)| old_name == name && old.has_equal_values(property))
    });
    !is_same || before.next().is_some()
}
