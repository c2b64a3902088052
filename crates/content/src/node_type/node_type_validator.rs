//! Validation of nodes: compares the content of a changed document with the types of its nodes.
//!
//! In: a document before and after. Out: [`ConstraintViolation`]s.
//!
//! If the types of a node are unchanged, only its changed properties and children are validated; a new node, or one
//! whose types change, is validated completely.

use std::collections::HashMap;

use super::effective_type::EffectiveNodeType;
use super::node_type_rules::NodeTypeRules;
use super::violation::{ConstraintViolation, ConstraintViolationKind};
use crate::model::subtree::{MIXIN_TYPES, PRIMARY_TYPE, UUID_PROPERTY};
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{
    BorrowedNode, NodePath, Property, Result, Subtree, Value, ValueType, check_item_name,
    document::record_key,
};

/// Maximum number of violations reported; a longer report would not be read.
const MAX_VIOLATIONS: usize = 1_000;

/// The types that a node declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeclaredNodeTypes<'a> {
    pub(super) primary_type: Option<&'a str>,
    mixins: Vec<&'a str>,
}

impl<'a> DeclaredNodeTypes<'a> {
    pub(super) fn from_node(node: BorrowedNode<'a>) -> Self {
        let mixins = node.property(MIXIN_TYPES).map_or_else(Vec::new, |mixins| {
            mixins.values().filter_map(|value| value.as_str()).collect()
        });
        Self::new(node.text(PRIMARY_TYPE), mixins)
    }

    pub(super) fn from_tree(node: &'a Subtree) -> Self {
        let primary = node.properties.get(PRIMARY_TYPE).filter(|property| !property.is_list());
        let mixins = node.properties.get(MIXIN_TYPES).map(Property::values).unwrap_or_default();
        let mixins = mixins.iter().filter_map(Value::as_str).collect();
        Self::new(primary.and_then(|primary| primary.first()?.as_str()), mixins)
    }

    fn new(primary_type: Option<&'a str>, mut mixins: Vec<&'a str>) -> Self {
        mixins.sort_unstable();
        mixins.dedup();
        Self { primary_type, mixins }
    }

    pub(super) fn effective_type(&self, rules: &NodeTypeRules) -> EffectiveNodeType {
        let primary = self.primary_type.unwrap_or("nt:unstructured");
        rules.node_types.effective_type(primary, self.mixins.iter().copied())
    }
}

/// Finds the children of a node by name efficiently, whatever their number.
pub(super) struct ChildLookup<'a> {
    linear_parent: Option<BorrowedNode<'a>>,
    children_by_name: HashMap<&'a str, BorrowedNode<'a>>,
}

impl<'a> ChildLookup<'a> {
    pub(super) fn from_node(node: Option<BorrowedNode<'a>>) -> Self {
        const FEW: usize = 8;
        let is_few = node.is_none_or(|node| node.children().nth(FEW).is_none());
        if is_few {
            return Self { linear_parent: node, children_by_name: HashMap::new() };
        }
        let children = node.into_iter().flat_map(BorrowedNode::children);
        Self {
            linear_parent: None,
            children_by_name: children.map(|child| (child.name(), child)).collect(),
        }
    }

    pub(super) fn find(&self, name: &str) -> Option<BorrowedNode<'a>> {
        match self.linear_parent {
            Some(node) => node.child(name),
            None => self.children_by_name.get(name).copied(),
        }
    }
}

pub(super) struct NodeTypeValidator<'a> {
    pub(super) head: &'a SnapshotView,
    pub(super) edits: &'a RecordEdits,
    pub(super) rules: &'a NodeTypeRules,
    /// The types of folders and pages whose children were validated.
    parent_types: HashMap<NodePath, EffectiveNodeType>,
    violations: Vec<ConstraintViolation>,
    /// If true, nodes may lack auto-created items, which are added at their next change.
    is_lenient: bool,
}

/// A node, its parent's type, and whether that type changes.
#[derive(Clone, Copy)]
pub(super) struct ValidatedNode<'a> {
    pub(super) path: &'a NodePath,
    pub(super) parent_type: Option<&'a EffectiveNodeType>,
    pub(super) is_parent_changed: bool,
}

impl<'a> NodeTypeValidator<'a> {
    pub(super) fn new(
        head: &'a SnapshotView,
        edits: &'a RecordEdits,
        rules: &'a NodeTypeRules,
    ) -> Self {
        let (parents, violations) = (HashMap::new(), Vec::new());
        Self { head, edits, rules, parent_types: parents, violations, is_lenient: false }
    }

    /// Allows nodes to lack auto-created items, which are added at their next change.
    pub(super) fn set_lenient(&mut self) {
        self.is_lenient = true;
    }

    /// Returns the violations, sorted.
    pub(super) fn into_violations(self) -> Vec<ConstraintViolation> {
        let mut violations = self.violations;
        violations.sort();
        violations.dedup();
        violations
    }

    pub(super) fn add_violation(&mut self, violation: ConstraintViolation) {
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(violation);
        }
    }

    fn report_violation(
        &mut self,
        path: &NodePath,
        kind: ConstraintViolationKind,
        item: &str,
        detail: String,
    ) {
        self.add_violation(ConstraintViolation::new(path, kind, item).with_detail(detail));
    }

    /// Validates a document that is added or changed.
    pub(super) fn validate_document(
        &mut self,
        path: &NodePath,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        let parent = self.stored_parent_type(path)?;
        let node_context =
            ValidatedNode { path, parent_type: parent.as_ref(), is_parent_changed: false };
        self.validate_node(node_context, old, new)
    }

    /// Validates the removal of a document.
    pub(super) fn validate_removal(&mut self, path: &NodePath) -> Result<()> {
        let Some(above) = path.parent() else { return Ok(()) };
        if let Some(parent) = self.stored_parent_type(path)?
            && parent.is_mandatory_child(path.name())
        {
            let kind = ConstraintViolationKind::MandatoryChildRemoved;
            self.report_violation(&above, kind, path.name(), String::new());
        }
        Ok(())
    }

    /// Returns the type of the parent folder or page of a document, as it is after the commit.
    pub(super) fn stored_parent_type(
        &mut self,
        path: &NodePath,
    ) -> Result<Option<EffectiveNodeType>> {
        let Some(parent) = path.parent() else { return Ok(None) };
        if let Some(cached_type) = self.parent_types.get(&parent) {
            return Ok(Some(cached_type.clone()));
        }
        let key = record_key::record_key(&parent)?;
        let record = match self.edits.get(&key) {
            Some(edit) => edit.clone(),
            None => self.head.read_record(&key, &parent)?,
        };
        let Some(record) = record else { return Ok(None) };
        let body = self.head.load_body(&record, &parent)?;
        let node = BorrowedNode::new(&body, body.root(), None);
        let effective = DeclaredNodeTypes::from_node(node).effective_type(self.rules);
        self.parent_types.insert(parent, effective.clone());
        Ok(Some(effective))
    }

    fn validate_node(
        &mut self,
        context: ValidatedNode<'_>,
        old: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        let path = context.path;
        if old.is_none() {
            self.validate_name(path, path.name());
        }
        let types = DeclaredNodeTypes::from_node(new);
        let settled = old.filter(|old| DeclaredNodeTypes::from_node(*old) == types);
        let effective = types.effective_type(self.rules);
        let is_known = settled.is_some() || self.validate_types(context, &types);
        if is_known {
            self.validate_own_items(context, &effective, settled, new)?;
        }
        let before = ChildLookup::from_node(old);
        let parent = is_known.then_some(&effective);
        for child in new.children() {
            let path = path.child_unchecked(child.name());
            let is_parent_changed = settled.is_none();
            let child_context =
                ValidatedNode { path: &path, parent_type: parent, is_parent_changed };
            self.validate_node(child_context, before.find(child.name()), child)?;
        }
        Ok(())
    }

    /// Validates a node without its descendants.
    pub(super) fn validate_own_items(
        &mut self,
        context: ValidatedNode<'_>,
        effective: &EffectiveNodeType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        let path = context.path;
        let is_changed = settled.is_none() || context.is_parent_changed;
        if let (true, Some(parent), Some(above)) = (is_changed, context.parent_type, path.parent())
        {
            self.validate_child(&above, parent, path, effective);
        }
        self.validate_properties(path, effective, settled, new);
        match settled {
            None => self.validate_all_children(path, effective, new),
            Some(old) => {
                for child in old.children().filter(|child| new.child(child.name()).is_none()) {
                    if effective.is_mandatory_child(child.name()) {
                        let kind = ConstraintViolationKind::MandatoryChildRemoved;
                        self.report_violation(path, kind, child.name(), String::new());
                    }
                }
                Ok(())
            }
        }
    }

    /// Validates the types that a node declares; returns true if its content can be validated against them.
    pub(super) fn validate_types(
        &mut self,
        context: ValidatedNode<'_>,
        types: &DeclaredNodeTypes<'_>,
    ) -> bool {
        let path = context.path;
        let registry = self.rules.node_types.clone();
        let is_known = match types.primary_type {
            None => {
                let kind = ConstraintViolationKind::NoPrimaryType;
                let detail = format!("set `{PRIMARY_TYPE}`");
                self.report_violation(
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
                    self.report_violation(
                        path,
                        ConstraintViolationKind::UnknownPrimaryType,
                        primary,
                        detail,
                    );
                    false
                }
                Some(node_type) => {
                    let flags = node_type.definition.flags;
                    let default = context
                        .parent_type
                        .and_then(|parent| parent.default_child_type(path.name()));
                    if flags.is_mixin {
                        let kind = ConstraintViolationKind::MixinAsPrimaryType;
                        self.report_violation(path, kind, primary, String::new());
                    } else if flags.is_abstract && default != Some(primary) {
                        let kind = ConstraintViolationKind::AbstractPrimaryType;
                        self.report_violation(path, kind, primary, String::new());
                    }
                    !flags.is_mixin
                }
            },
        };
        for mixin in &types.mixins {
            let kind = match registry.find(mixin) {
                None => ConstraintViolationKind::UnknownMixin,
                Some(mixin_type) if !mixin_type.definition.flags.is_mixin => {
                    ConstraintViolationKind::PrimaryTypeAsMixin
                }
                Some(mixin_type) if mixin_type.definition.flags.is_abstract => {
                    ConstraintViolationKind::AbstractMixin
                }
                Some(_) => continue,
            };
            self.report_violation(path, kind, mixin, String::new());
        }
        is_known
    }

    fn validate_properties(
        &mut self,
        path: &NodePath,
        effective: &EffectiveNodeType,
        settled: Option<BorrowedNode<'_>>,
        new: BorrowedNode<'_>,
    ) {
        let mut before = settled.into_iter().flat_map(BorrowedNode::properties).peekable();
        for (name, property) in new.properties() {
            // Both sides are sorted by name: an old item before this name was removed.
            while let Some((removed_name, _)) = before.next_if(|(old, _)| *old < name) {
                self.validate_property_removal(path, effective, removed_name);
            }
            let old = before.next_if(|(old, _)| *old == name);
            if old.is_some_and(|(_, old)| old.has_equal_values(property)) {
                continue;
            }
            self.validate_property(path, effective, name, property);
        }
        for (removed_name, _) in before {
            self.validate_property_removal(path, effective, removed_name);
        }
        if settled.is_some() {
            return;
        }
        for definition in
            effective.property_definitions().filter(|candidate| candidate.flags.is_mandatory)
        {
            let name = definition.name.as_str();
            let is_to_come = self.is_lenient && definition.flags.is_autocreated;
            if name != PRIMARY_TYPE && !is_to_come && new.property(name).is_none() {
                let detail = format!("the types are {effective}");
                self.report_violation(
                    path,
                    ConstraintViolationKind::MandatoryProperty,
                    name,
                    detail,
                );
            }
        }
    }

    fn validate_property_removal(
        &mut self,
        path: &NodePath,
        effective: &EffectiveNodeType,
        name: &str,
    ) {
        if name != PRIMARY_TYPE && effective.is_mandatory_property(name) {
            self.report_violation(
                path,
                ConstraintViolationKind::MandatoryPropertyRemoved,
                name,
                String::new(),
            );
        }
    }

    fn validate_property(
        &mut self,
        path: &NodePath,
        effective: &EffectiveNodeType,
        name: &str,
        property: crate::BorrowedProperty<'_>,
    ) {
        self.validate_name(path, name);
        let (value_type, is_list) = (property.value_type(), property.is_list());
        if value_type == ValueType::Name {
            for value in property.values().filter_map(|value| value.as_str()) {
                self.validate_name_value(path, name, value);
            }
        }
        if name == PRIMARY_TYPE || name == MIXIN_TYPES {
            return;
        }
        let Some(rule) = effective.property_rule(name, value_type, is_list) else {
            let form = if is_list { "a list of" } else { "a single" };
            let detail = format!("it is {form} {}; the types are {effective}", value_type.name());
            self.report_violation(path, ConstraintViolationKind::UnknownProperty, name, detail);
            return;
        };
        // Users and groups are looked up by their ids, whatever these are.
        let is_account = effective.is_of_type("rep:Authorizable");
        if name == UUID_PROPERTY && effective.is_of_type("mix:referenceable") && !is_account {
            let text = property.first().filter(|_| !is_list).and_then(|value| value.as_str());
            if !text.is_some_and(is_uuid) {
                self.report_violation(
                    path,
                    ConstraintViolationKind::InvalidIdentifier,
                    name,
                    String::new(),
                );
            }
            return;
        }
        let required_type = rule.definition.value_type;
        if required_type.is_some_and(|required_type| required_type != value_type)
            || rule.definition.is_multiple != is_list
        {
            let form = if rule.definition.is_multiple { "a list of" } else { "a single" };
            let detail =
                format!("it must be {form} {}", required_type.map_or("value", ValueType::name));
            self.report_violation(path, ConstraintViolationKind::RequiredType, name, detail);
            return;
        }
        if rule.constraints.is_empty() {
            return;
        }
        for value in property.values().map(crate::BorrowedValue::to_value) {
            if !rule.constraints.iter().any(|constraint| constraint.matches(&value)) {
                let allowed = rule.definition.constraints.join(", ");
                let detail = format!("`{}` matches none of {allowed}", value.to_text());
                self.report_violation(path, ConstraintViolationKind::ValueConstraint, name, detail);
            }
        }
    }

    /// Validates all children of a new node, or of one whose types change.
    fn validate_all_children(
        &mut self,
        path: &NodePath,
        effective: &EffectiveNodeType,
        new: BorrowedNode<'_>,
    ) -> Result<()> {
        for definition in
            effective.child_definitions().filter(|candidate| candidate.flags.is_mandatory)
        {
            let name = definition.name.as_str();
            if new.child(name).is_none() && !self.has_record(&path.child_unchecked(name))? {
                let detail = format!("the types are {effective}");
                self.report_violation(path, ConstraintViolationKind::MandatoryChild, name, detail);
            }
        }
        self.validate_listed_children(path, effective)
    }

    /// Validates the children with records of their own of a folder or page whose types change.
    fn validate_listed_children(
        &mut self,
        path: &NodePath,
        effective: &EffectiveNodeType,
    ) -> Result<()> {
        let key = record_key::record_key(path)?;
        if effective.admits_all_children() || self.head.read_record(&key, path)?.is_none() {
            return Ok(());
        }
        let range = record_key::child_key_range(path)?;
        let mut view = self.head.clone();
        let edits = self.edits.range::<[u8], _>(range.bounds());
        view.record_edits = edits.map(|(key, edit)| (key.clone(), edit.clone())).collect();
        for (key, record) in view.records_in_range(&range)? {
            let child = path.child_unchecked(record_key::record_name(&key)?);
            let body = view.load_body(&record, &child)?;
            let node = BorrowedNode::new(&body, body.root(), None);
            let types = DeclaredNodeTypes::from_node(node).effective_type(self.rules);
            self.validate_child(path, effective, &child, &types);
        }
        Ok(())
    }

    fn validate_child(
        &mut self,
        path: &NodePath,
        parent: &EffectiveNodeType,
        child: &NodePath,
        types: &EffectiveNodeType,
    ) {
        if !parent.admits_child(child.name(), types) {
            let detail = format!("its types are {types}; the parent's are {parent}");
            self.report_violation(
                path,
                ConstraintViolationKind::UnknownChild,
                child.name(),
                detail,
            );
        }
    }

    fn has_record(&self, path: &NodePath) -> Result<bool> {
        let key = record_key::record_key(path)?;
        match self.edits.get(&key) {
            Some(edit) => Ok(edit.is_some()),
            None => Ok(self.head.read_record(&key, path)?.is_some()),
        }
    }

    fn validate_name(&mut self, path: &NodePath, name: &str) {
        if let Some(prefix) = self.rules.namespaces.unknown_prefix(name) {
            let detail = format!("it is in the name `{name}`; register a namespace for it");
            self.report_violation(path, ConstraintViolationKind::UnknownPrefix, prefix, detail);
        }
    }

    fn validate_name_value(&mut self, path: &NodePath, property: &str, value: &str) {
        // JCR allows the empty name as a value; restrictions use `*` for all names.
        if !matches!(value, "" | "*")
            && let Err(error) = check_item_name(value)
        {
            let detail = format!("it is the value of `{property}`: {error}");
            self.report_violation(path, ConstraintViolationKind::InvalidName, value, detail);
        } else {
            self.validate_name(path, value);
        }
    }
}

/// Returns true if a text is a UUID in Oak's form.
fn is_uuid(text: &str) -> bool {
    text.len() == 36 && uuid::Uuid::try_parse(text).is_ok()
}
