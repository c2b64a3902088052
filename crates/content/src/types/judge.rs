//! Judging nodes: what a changed document holds against the types of its nodes.
//!
//! In: a document before and after. Out: [`Violation`]s.
//!
//! A node whose types stay is judged by the properties and children that changed; a new one, and one of other types,
//! by all it has.

use std::collections::HashMap;

use super::effective::EffectiveType;
use super::stored::Rules;
use super::violation::{Violation, ViolationKind};
use crate::reference::UUID;
use crate::snapshot::{Overlay, View};
use crate::subtree::{MIXIN_TYPES, PRIMARY_TYPE};
use crate::{BorrowedNode, NodePath, Result, ValueType, check_name, keys};

/// More are not reported: a tree that is wrong throughout would make an answer that nobody reads.
const MAX_VIOLATIONS: usize = 1_000;

/// The types that a node names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeTypesOf<'a> {
    pub(super) primary: Option<&'a str>,
    pub(super) mixins: Vec<&'a str>,
}

impl<'a> NodeTypesOf<'a> {
    pub(super) fn of(node: BorrowedNode<'a>) -> Self {
        let mixins = node.property(MIXIN_TYPES).map_or_else(Vec::new, |mixins| {
            let mut mixins: Vec<&str> =
                mixins.values().filter_map(|value| value.as_str()).collect();
            mixins.sort_unstable();
            mixins.dedup();
            mixins
        });
        Self { primary: node.text(PRIMARY_TYPE), mixins }
    }

    pub(super) fn effective(&self, rules: &Rules) -> EffectiveType {
        let primary = self.primary.unwrap_or("nt:unstructured");
        rules.types.effective(primary, self.mixins.iter().copied())
    }
}

/// Finds the children of a node by name, whatever their number.
pub(super) struct Children<'a> {
    few: Option<BorrowedNode<'a>>,
    many: HashMap<&'a str, BorrowedNode<'a>>,
}

impl<'a> Children<'a> {
    pub(super) fn of(node: Option<BorrowedNode<'a>>) -> Self {
        const FEW: usize = 8;
        let is_few = node.is_none_or(|node| node.children().nth(FEW).is_none());
        if is_few {
            return Self { few: node, many: HashMap::new() };
        }
        let children = node.into_iter().flat_map(BorrowedNode::children);
        Self { few: None, many: children.map(|child| (child.name(), child)).collect() }
    }

    pub(super) fn find(&self, name: &str) -> Option<BorrowedNode<'a>> {
        match self.few {
            Some(node) => node.child(name),
            None => self.many.get(name).copied(),
        }
    }
}

pub(super) struct Judge<'a> {
    pub(super) head: &'a View,
    pub(super) edits: &'a Overlay,
    pub(super) rules: &'a Rules,
    /// The types of folders and pages whose children were judged.
    parents: HashMap<NodePath, EffectiveType>,
    violations: Vec<Violation>,
    /// Nodes may lack what the repository creates: they get it at their next change.
    is_patient: bool,
}

/// A node, its parent's type, and whether that changes.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) path: &'a NodePath,
    pub(super) parent: Option<&'a EffectiveType>,
    pub(super) is_parent_changed: bool,
}

impl<'a> Judge<'a> {
    pub(super) fn new(head: &'a View, edits: &'a Overlay, rules: &'a Rules) -> Self {
        let (parents, violations) = (HashMap::new(), Vec::new());
        Self { head, edits, rules, parents, violations, is_patient: false }
    }

    /// Lets nodes lack what the repository creates, which they get at their next change.
    pub(super) fn be_patient(&mut self) {
        self.is_patient = true;
    }

    /// Returns what was found, sorted.
    pub(super) fn into_violations(self) -> Vec<Violation> {
        let mut violations = self.violations;
        violations.sort();
        violations.dedup();
        violations
    }

    pub(super) fn add(&mut self, violation: Violation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }

    fn refuse(&mut self, path: &NodePath, kind: ViolationKind, item: &str, detail: String) {
        self.add(Violation::new(path, kind, item).saying(detail));
    }

    /// Judges a document that is put.
    pub(super) fn document(
        &mut self,
        path: &NodePath,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        let parent = self.parent_type(path)?;
        let place = Place { path, parent: parent.as_ref(), is_parent_changed: false };
        self.node(place, old, new)
    }

    /// Judges a document that is removed.
    pub(super) fn removal(&mut self, path: &NodePath) -> Result<()> {
        let Some(above) = path.parent() else { return Ok(()) };
        if let Some(parent) = self.parent_type(path)?
            && parent.is_mandatory_child(path.name())
        {
            let kind = ViolationKind::MandatoryChildRemoved;
            self.refuse(&above, kind, path.name(), String::new());
        }
        Ok(())
    }

    /// Returns the type of the folder or page that a document lies in, as it is after the commit.
    pub(super) fn parent_type(&mut self, path: &NodePath) -> Result<Option<EffectiveType>> {
        let Some(parent) = path.parent() else { return Ok(None) };
        if let Some(known) = self.parents.get(&parent) {
            return Ok(Some(known.clone()));
        }
        let key = keys::key_of(&parent)?;
        let record = match self.edits.get(&key) {
            Some(edit) => edit.clone(),
            None => self.head.record(&key, &parent)?,
        };
        let Some(record) = record else { return Ok(None) };
        let body = self.head.body(&record, &parent)?;
        let node = BorrowedNode::new(&body, body.root(), None);
        let effective = NodeTypesOf::of(node).effective(self.rules);
        self.parents.insert(parent, effective.clone());
        Ok(Some(effective))
    }

    fn node(
        &mut self,
        place: Place<'_>,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        let path = place.path;
        if old.is_none() {
            self.name(path, path.name());
        }
        let types = NodeTypesOf::of(new);
        let settled = old.filter(|old| NodeTypesOf::of(*old) == types);
        let effective = types.effective(self.rules);
        let is_known = settled.is_some() || self.types(place, &types);
        if is_known {
            self.own(place, &effective, settled, new)?;
        }
        let before = Children::of(old);
        let parent = is_known.then_some(&effective);
        for child in new.children() {
            let path = path.child_unchecked(child.name());
            let is_parent_changed = settled.is_none();
            let place = Place { path: &path, parent, is_parent_changed };
            self.node(place, before.find(child.name()), child)?;
        }
        Ok(())
    }

    /// Judges a node but not those below it.
    pub(super) fn own(
        &mut self,
        place: Place<'_>,
        effective: &EffectiveType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        let path = place.path;
        let is_changed = settled.is_none() || place.is_parent_changed;
        if let (true, Some(parent), Some(above)) = (is_changed, place.parent, path.parent()) {
            self.admit(&above, parent, path, effective);
        }
        self.properties(path, effective, settled, new);
        match settled {
            None => self.all_children(path, effective, new),
            Some(old) => {
                for child in old.children().filter(|child| new.child(child.name()).is_none()) {
                    if effective.is_mandatory_child(child.name()) {
                        let kind = ViolationKind::MandatoryChildRemoved;
                        self.refuse(path, kind, child.name(), String::new());
                    }
                }
                Ok(())
            }
        }
    }

    /// Judges the types that a node names; tells whether what it has can be judged by them.
    pub(super) fn types(&mut self, place: Place<'_>, types: &NodeTypesOf<'_>) -> bool {
        let path = place.path;
        let registry = self.rules.types.clone();
        let is_known = match types.primary {
            None => {
                let kind = ViolationKind::NoPrimaryType;
                let detail = format!("set `{PRIMARY_TYPE}`");
                self.refuse(
                    &path.parent().unwrap_or_else(NodePath::root),
                    kind,
                    path.name(),
                    detail,
                );
                true
            }
            Some(primary) => match registry.find(primary) {
                None => {
                    let detail = format!("register it, or use another `{PRIMARY_TYPE}`");
                    self.refuse(path, ViolationKind::UnknownPrimaryType, primary, detail);
                    false
                }
                Some(known) => {
                    let flags = known.definition.flags;
                    let default = place.parent.and_then(|parent| parent.default_type(path.name()));
                    if flags.is_mixin {
                        let kind = ViolationKind::MixinAsPrimaryType;
                        self.refuse(path, kind, primary, String::new());
                    } else if flags.is_abstract && default != Some(primary) {
                        let kind = ViolationKind::AbstractPrimaryType;
                        self.refuse(path, kind, primary, String::new());
                    }
                    !flags.is_mixin
                }
            },
        };
        for mixin in &types.mixins {
            let kind = match registry.find(mixin) {
                None => ViolationKind::UnknownMixin,
                Some(known) if !known.definition.flags.is_mixin => {
                    ViolationKind::PrimaryTypeAsMixin
                }
                Some(known) if known.definition.flags.is_abstract => ViolationKind::AbstractMixin,
                Some(_) => continue,
            };
            self.refuse(path, kind, mixin, String::new());
        }
        is_known
    }

    fn properties(
        &mut self,
        path: &NodePath,
        effective: &EffectiveType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        let mut before = settled.into_iter().flat_map(BorrowedNode::properties).peekable();
        for (name, property) in new.properties() {
            // Both sides are sorted by name: what the old one has before this name is gone.
            while let Some((gone, _)) = before.next_if(|(old, _)| *old < name) {
                self.property_removed(path, effective, gone);
            }
            let old = before.next_if(|(old, _)| *old == name);
            if old.is_some_and(|(_, old)| old.is_same(property)) {
                continue;
            }
            self.property(path, effective, (name, property));
        }
        for (gone, _) in before {
            self.property_removed(path, effective, gone);
        }
        if settled.is_some() {
            return;
        }
        for definition in effective.properties().filter(|one| one.flags.is_mandatory) {
            let name = definition.name.as_str();
            let is_to_come = self.is_patient && definition.flags.is_autocreated;
            if name != PRIMARY_TYPE && !is_to_come && new.property(name).is_none() {
                let detail = format!("the types are {effective}");
                self.refuse(path, ViolationKind::MandatoryProperty, name, detail);
            }
        }
    }

    fn property_removed(&mut self, path: &NodePath, effective: &EffectiveType, name: &str) {
        if name != PRIMARY_TYPE && effective.is_mandatory_property(name) {
            self.refuse(path, ViolationKind::MandatoryPropertyRemoved, name, String::new());
        }
    }

    fn property(
        &mut self,
        path: &NodePath,
        effective: &EffectiveType,
        (name, property): (&str, crate::BorrowedProperty<'_>),
    ) {
        self.name(path, name);
        let (value_type, is_list) = (property.value_type(), property.is_list());
        if value_type == ValueType::Name {
            for value in property.values().filter_map(|value| value.as_str()) {
                self.name_value(path, name, value);
            }
        }
        if name == PRIMARY_TYPE || name == MIXIN_TYPES {
            return;
        }
        let Some(rule) = effective.rule(name, value_type, is_list) else {
            let form = if is_list { "a list of" } else { "a single" };
            let detail = format!("it is {form} {}; the types are {effective}", value_type.name());
            self.refuse(path, ViolationKind::UnknownProperty, name, detail);
            return;
        };
        // Users and groups are found by their ids, whatever these are.
        let is_account = effective.is("rep:Authorizable");
        if name == UUID && effective.is("mix:referenceable") && !is_account {
            let text = property.first().filter(|_| !is_list).and_then(|value| value.as_str());
            if !text.is_some_and(is_uuid) {
                self.refuse(path, ViolationKind::InvalidIdentifier, name, String::new());
            }
            return;
        }
        let wanted = rule.definition.value_type;
        if wanted.is_some_and(|wanted| wanted != value_type)
            || rule.definition.is_multiple != is_list
        {
            let form = if rule.definition.is_multiple { "a list of" } else { "a single" };
            let detail = format!("it must be {form} {}", wanted.map_or("value", ValueType::name));
            self.refuse(path, ViolationKind::RequiredType, name, detail);
            return;
        }
        if rule.constraints.is_empty() {
            return;
        }
        for value in property.values().map(crate::BorrowedValue::to_value) {
            if !rule.constraints.iter().any(|constraint| constraint.admits(&value)) {
                let allowed = rule.definition.constraints.join(", ");
                let detail = format!("`{}` is none of {allowed}", value.to_text());
                self.refuse(path, ViolationKind::ValueConstraint, name, detail);
            }
        }
    }

    /// Judges which children a new node has, or one whose types change.
    fn all_children(
        &mut self,
        path: &NodePath,
        effective: &EffectiveType,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        for definition in effective.children().filter(|one| one.flags.is_mandatory) {
            let name = definition.name.as_str();
            if new.child(name).is_none() && !self.has_record(&path.child_unchecked(name))? {
                let detail = format!("the types are {effective}");
                self.refuse(path, ViolationKind::MandatoryChild, name, detail);
            }
        }
        self.listed_children(path, effective)
    }

    /// Judges the children with records of their own, of a folder or page that gets other types.
    fn listed_children(&mut self, path: &NodePath, effective: &EffectiveType) -> Result<()> {
        let key = keys::key_of(path)?;
        if effective.admits_all_children() || self.head.record(&key, path)?.is_none() {
            return Ok(());
        }
        let range = keys::children_of(path)?;
        let mut view = self.head.clone();
        let edits = self.edits.range::<[u8], _>(range.bounds());
        view.overlay = edits.map(|(key, edit)| (key.clone(), edit.clone())).collect();
        for (key, record) in view.records(&range)? {
            let child = path.child_unchecked(keys::name_of(&key)?);
            let body = view.body(&record, &child)?;
            let node = BorrowedNode::new(&body, body.root(), None);
            let types = NodeTypesOf::of(node).effective(self.rules);
            self.admit(path, effective, &child, &types);
        }
        Ok(())
    }

    fn admit(
        &mut self,
        path: &NodePath,
        parent: &EffectiveType,
        child: &NodePath,
        types: &EffectiveType,
    ) {
        if !parent.admits_child(child.name(), types) {
            let detail = format!("its types are {types}; the parent's are {parent}");
            self.refuse(path, ViolationKind::UnknownChild, child.name(), detail);
        }
    }

    fn has_record(&self, path: &NodePath) -> Result<bool> {
        let key = keys::key_of(path)?;
        match self.edits.get(&key) {
            Some(edit) => Ok(edit.is_some()),
            None => Ok(self.head.record(&key, path)?.is_some()),
        }
    }

    fn name(&mut self, path: &NodePath, name: &str) {
        if let Some(prefix) = self.rules.namespaces.unknown_prefix(name) {
            let detail = format!("it is in the name `{name}`; register a namespace for it");
            self.refuse(path, ViolationKind::UnknownPrefix, prefix, detail);
        }
    }

    fn name_value(&mut self, path: &NodePath, property: &str, value: &str) {
        // The empty name is a value that JCR knows; restrictions have `*` for all names.
        if !matches!(value, "" | "*")
            && let Err(error) = check_name(value)
        {
            let detail = format!("it is the value of `{property}`: {error}");
            self.refuse(path, ViolationKind::InvalidName, value, detail);
        } else {
            self.name(path, value);
        }
    }
}

/// Tells whether a text is a UUID as Oak writes it.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok()
}
