//! The validation of a commit: its changes are completed, then validated.
//!
//! In: the newest state, the edits to it, the user and the time. Out: the edits as they are stored.
//!
//! Invariants
//! * Only documents that the edits change are read, and the nodes of types whose rules become stricter.
//! * The result depends only on the edits, the types above a document, and identifiers and references.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::document_completion::{DocumentCompleter, DocumentOrigin, apply_completions};
use super::node_type_rules::NodeTypeRules;
use super::node_type_validator::{DeclaredNodeTypes, NodeTypeValidator, ValidatedNode};
use super::reference_integrity::ReferenceIntegrity;
use super::stored_type::{NODE_TYPES_PATH, SYSTEM_PATH};
use super::type_definition::{ChildDefinition, NodeTypeDefinition, PropertyDefinition};
use crate::commit::commit_details::{CommitChecks, CommitDetails};
use crate::document::body::DocumentBody;
use crate::document::record::ContentRecord;
use crate::snapshot::{RecordEdits, SnapshotView};
use crate::{BorrowedNode, Error, LookupIndex, NodePath, Result, Snapshot, document::record_key};

/// Completes and validates the edits of a commit.
///
/// # Errors
/// [`Error::ConstraintViolations`] with all violations; errors of the store.
pub(crate) fn validate_edits<'a>(
    head: &SnapshotView,
    edits: &'a RecordEdits,
    change: &CommitDetails<'_>,
    checks: CommitChecks,
) -> Result<Cow<'a, RecordEdits>> {
    let rules = head.node_type_rules(Some(edits))?;
    let source = DocumentOrigin {
        user: change.user,
        commit_time: change.time,
        is_from_package: checks == CommitChecks::Package,
    };
    let edits = complete_documents(head, edits, &rules, source)?;
    let mut validator = NodeTypeValidator::new(head, &edits, &rules);
    if source.is_from_package {
        validator.set_lenient();
    }
    let mut integrity = ReferenceIntegrity::default();
    for (key, edit) in &*edits {
        let path = record_key::record_path(key)?;
        let old = record_body(head, head.read_record(key, &path)?.as_deref(), &path)?;
        let new = record_body(head, edit.as_deref(), &path)?;
        match (&old, &new) {
            (Some(old), Some(new)) if old.bytes() == new.bytes() && old.blobs() == new.blobs() => {
                continue;
            }
            (old, Some(new)) => {
                validator.validate_document(&path, old.as_deref().map(body_root), body_root(new))?
            }
            (Some(_), None) if !is_below_removed(&path, &edits)? => {
                validator.validate_removal(&path)?
            }
            (_, None) => {}
        }
        integrity.record_document(
            &path,
            old.as_deref().map(body_root),
            new.as_deref().map(body_root),
            &rules,
        );
    }
    // A type may change even though nodes from packages still lack the items that it creates.
    validator.set_lenient();
    validate_changed_types(head, &mut validator)?;
    integrity.validate(&mut validator)?;
    let violations = validator.into_violations();
    if violations.is_empty() { Ok(edits) } else { Err(Error::ConstraintViolations(violations)) }
}

fn body_root(body: &DocumentBody) -> BorrowedNode<'_> {
    BorrowedNode::new(body, body.root(), None)
}

fn record_body(
    head: &SnapshotView,
    record: Option<&ContentRecord>,
    path: &NodePath,
) -> Result<Option<Arc<DocumentBody>>> {
    record.map(|record| head.load_body(record, path)).transpose()
}

/// Returns true if the parent of a document is removed in the same commit.
fn is_below_removed(path: &NodePath, edits: &RecordEdits) -> Result<bool> {
    let Some(parent) = path.parent() else { return Ok(false) };
    Ok(matches!(edits.get(&record_key::record_key(&parent)?), Some(None)))
}

/// Sets the properties that the repository manages in the changed documents.
fn complete_documents<'a>(
    head: &SnapshotView,
    edits: &'a RecordEdits,
    rules: &NodeTypeRules,
    source: DocumentOrigin<'_>,
) -> Result<Cow<'a, RecordEdits>> {
    let mut filled = Cow::Borrowed(edits);
    let mut parents = NodeTypeValidator::new(head, edits, rules);
    for (key, edit) in edits {
        let Some(record) = edit else { continue };
        let path = record_key::record_path(key)?;
        let old = record_body(head, head.read_record(key, &path)?.as_deref(), &path)?;
        let new = head.load_body(record, &path)?;
        let parent = parents.stored_parent_type(&path)?;
        let filler = DocumentCompleter::new(rules, source);
        let old = old.as_deref().map(body_root);
        let fills = filler.complete_document(path.name(), parent.as_ref(), old, body_root(&new));
        if fills.is_empty() {
            continue;
        }
        let mut tree = new.subtree(new.root());
        apply_completions(&mut tree, fills);
        let complete =
            ContentRecord::from_subtree(&tree, record.order_key.clone()).ok_or_else(|| {
                Error::InvalidEdit {
                    action: "complete",
                    path: path.clone(),
                    reason: "it is nested too deeply",
                }
            })?;
        filled.to_mut().insert(key.clone(), Some(Arc::new(complete)));
    }
    Ok(filled)
}

/// Validates the nodes of types that the commit changes, removes or makes stricter.
fn validate_changed_types(
    head: &SnapshotView,
    validator: &mut NodeTypeValidator<'_>,
) -> Result<()> {
    let is_touched = [NODE_TYPES_PATH, SYSTEM_PATH]
        .iter()
        .any(|path| validator.edits.contains_key(&record_key::record_key_at(path)));
    if !is_touched {
        return Ok(());
    }
    let (before, after) =
        (head.node_type_rules(None)?.node_types, validator.rules.node_types.clone());
    let mut affected = BTreeSet::new();
    for old in before.iter() {
        let name = &old.definition.name;
        let new = after.find(name);
        if new.is_some_and(|new| is_wider_type(&old.definition, &new.definition)) {
            continue;
        }
        affected.extend(before.subtypes(name));
        affected.extend(after.subtypes(name));
    }
    if affected.is_empty() {
        return Ok(());
    }
    let stored = Snapshot::from_view(head.clone());
    let mut view = head.clone();
    view.record_edits = validator.edits.clone();
    let edited = Snapshot::from_view(view);
    let mut paths = BTreeSet::new();
    for name in affected {
        paths.extend(stored.look_up_paths(LookupIndex::Type, name)?);
    }
    for path in paths {
        revalidate_node(&edited, &path, validator)?;
    }
    Ok(())
}

/// Validates a node as if it were new.
fn revalidate_node(
    edited: &Snapshot,
    path: &NodePath,
    validator: &mut NodeTypeValidator<'_>,
) -> Result<()> {
    let Some(node) = edited.node(path)? else { return Ok(()) };
    let parent = edited.node(&path.parent().unwrap_or_else(NodePath::root))?;
    let parent = parent.as_ref().filter(|_| !path.is_root()).and_then(crate::Node::as_borrowed);
    let parent =
        parent.map(|parent| DeclaredNodeTypes::from_node(parent).effective_type(validator.rules));
    let Some(node) = node.as_borrowed() else { return Ok(()) };
    let types = DeclaredNodeTypes::from_node(node);
    let node_context =
        ValidatedNode { path, parent_type: parent.as_ref(), is_parent_changed: true };
    if validator.validate_types(node_context, &types) {
        let effective = types.effective_type(validator.rules);
        validator.validate_own_items(node_context, &effective, None, node)?;
    }
    Ok(())
}

/// Returns true if every node that conforms to the old definition conforms to the new one.
fn is_wider_type(old: &NodeTypeDefinition, new: &NodeTypeDefinition) -> bool {
    let has_same_kind = old.flags.is_mixin == new.flags.is_mixin
        && (old.flags.is_abstract || !new.flags.is_abstract)
        && old.supertypes == new.supertypes;
    let keeps_properties = old.properties.iter().all(|old| {
        new.properties.iter().any(|new| old.name == new.name && is_wider_property(old, new))
    });
    let keeps_children = old
        .children
        .iter()
        .all(|old| new.children.iter().any(|new| old.name == new.name && is_wider_child(old, new)));
    let adds_no_property = new.properties.iter().all(|new| {
        !new.flags.is_mandatory || old.properties.iter().any(|old| old.name == new.name)
    });
    let adds_no_child = new
        .children
        .iter()
        .all(|new| !new.flags.is_mandatory || old.children.iter().any(|old| old.name == new.name));
    // A named definition overrides the residual one, which may have been wider.
    let adds_no_rule = new.properties.iter().all(|new| {
        new.constraints.is_empty() || old.properties.iter().any(|old| old.name == new.name)
    });
    has_same_kind
        && keeps_properties
        && keeps_children
        && adds_no_property
        && adds_no_child
        && adds_no_rule
}

fn is_wider_property(old: &PropertyDefinition, new: &PropertyDefinition) -> bool {
    (new.value_type.is_none() || new.value_type == old.value_type)
        && new.is_multiple == old.is_multiple
        && (old.flags.is_mandatory || !new.flags.is_mandatory)
        && (new.constraints.is_empty() || new.constraints == old.constraints)
}

fn is_wider_child(old: &ChildDefinition, new: &ChildDefinition) -> bool {
    (new.required_types.is_empty() || new.required_types == old.required_types)
        && (old.flags.is_mandatory || !new.flags.is_mandatory)
}
