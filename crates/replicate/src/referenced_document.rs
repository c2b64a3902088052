//! What goes along with an activation: assets, fragments, tags, templates with their policies that the activated pages refer to.
//!
//! A page whose picture visitors do not have is broken for them. So the list names all that is referred to, says what
//! visitors have of it, and ticks what they lack or have in an older state; pages that are linked to are left to the user.

use std::collections::BTreeMap;

use tympan_content::{Node, NodePath, ReferenceKind, Snapshot, SubtreeScope};

use crate::Result;
use crate::replication_status::{
    ReplicatedDocument, ReplicationStatus, describe_document, document_status,
};

/// Where experience fragments lie, which are pages that others show parts of.
const EXPERIENCE_FRAGMENTS_ROOT: &str = "/content/experience-fragments/";
/// Where policies lie in a place for settings.
const POLICIES_PATH_SEGMENT: &str = "/settings/wcm/policies/";

/// What something is that is referred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferencedDocumentKind {
    /// An asset.
    Asset,
    /// A tag.
    Tag,
    /// A template, or what belongs to one.
    Template,
    /// An experience fragment, or a variation of one.
    Fragment,
    /// Another page.
    Page,
    /// Anything else, such as an experience fragment's folder or a design.
    Other,
}

impl ReferencedDocumentKind {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Asset => "asset",
            Self::Tag => "tag",
            Self::Template => "template",
            Self::Fragment => "fragment",
            Self::Page => "page",
            Self::Other => "other",
        }
    }

    fn of_node(node: &Node) -> Self {
        let path = node.path().as_str();
        match node.primary_type() {
            "dam:Asset" => Self::Asset,
            "cq:Tag" => Self::Tag,
            "cq:Template" => Self::Template,
            _ if path.starts_with("/conf/") && path.contains("/templates/") => Self::Template,
            _ if path.starts_with("/conf/") && path.contains(POLICIES_PATH_SEGMENT) => {
                Self::Template
            }
            "cq:Page" if path.starts_with(EXPERIENCE_FRAGMENTS_ROOT) => Self::Fragment,
            "cq:Page" => Self::Page,
            _ => Self::Other,
        }
    }
}

/// Something that activated pages refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferencedDocument {
    /// The document, with what visitors have of it.
    pub document: ReplicatedDocument,
    /// What it is.
    pub kind: ReferencedDocumentKind,
    /// Whether it is to go along unless the user says otherwise.
    pub is_preselected: bool,
    /// One of the documents that refer to it.
    pub referrer: NodePath,
}

/// Lists what the documents at a path, or in its subtree, refer to and does not lie among them; at most `limit`. What
/// fragments, assets and templates among it refer to belongs to it, as the documents are not whole without.
///
/// # Errors
/// If content fails.
pub fn list_referenced_documents(
    snapshot: &Snapshot,
    top: &NodePath,
    depth: SubtreeScope,
    limit: usize,
) -> Result<Vec<ReferencedDocument>> {
    let Some(node) = snapshot.node(top)? else { return Ok(Vec::new()) };
    let mut found: BTreeMap<NodePath, ReferencedDocument> = BTreeMap::new();
    let mut referrers = vec![node.clone()];
    if depth == SubtreeScope::Subtree {
        referrers.extend(node.listed_descendants()?);
    }
    referrers.reverse();
    while let Some(referrer) = referrers.pop() {
        for target in find_reference_targets(snapshot, &referrer)? {
            let path = target.path();
            let is_among = path == top || (depth == SubtreeScope::Subtree && path.is_within(top));
            if is_among || found.contains_key(path) {
                continue;
            }
            let (status, kind) =
                (document_status(&target)?, ReferencedDocumentKind::of_node(&target));
            let is_ticked = matches!(
                status,
                ReplicationStatus::Never
                    | ReplicationStatus::Outdated
                    | ReplicationStatus::Deactivated
            ) && kind != ReferencedDocumentKind::Page;
            let document = describe_document(&target, status)?;
            let path = path.clone();
            let (document_path, by) = (path.clone(), referrer.path().clone());
            found.insert(
                document_path,
                ReferencedDocument { document, kind, is_preselected: is_ticked, referrer: by },
            );
            if found.len() >= limit {
                return Ok(found.into_values().collect());
            }
            let has_parts = matches!(
                kind,
                ReferencedDocumentKind::Asset
                    | ReferencedDocumentKind::Fragment
                    | ReferencedDocumentKind::Template
            );
            if has_parts {
                referrers.push(target);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the documents that a document refers to: by path, identifier, link in a text, name of a tag or of a policy.
fn find_reference_targets(snapshot: &Snapshot, referrer: &Node) -> Result<Vec<Node>> {
    let mut targets = Vec::new();
    for reference in snapshot.references_in_document(referrer.path())? {
        let Some(target) = reference.target else { continue };
        let Some(node) = snapshot.node(&target)? else { continue };
        if reference.kind == ReferenceKind::Tag {
            // Of a moved tag, what is left leads visitors to the one that it has become.
            let moved = snapshot.find_tag(target.as_str())?;
            for tag in moved.into_iter().filter(|tag| *tag.path() != target) {
                targets.extend(document_owner(&tag)?);
            }
        }
        targets.extend(enclosing_document(node)?);
    }
    Ok(targets)
}

/// Returns the page, asset, tag, template or policy that a node is or belongs to; folders and what lies in `/apps` do not
/// travel.
fn enclosing_document(node: Node) -> Result<Option<Node>> {
    let is_policy = node.path().as_str().contains(POLICIES_PATH_SEGMENT);
    if is_policy && node.path().as_str().starts_with("/conf/") {
        return document_owner(&node);
    }
    let mut at = Some(node);
    while let Some(node) = at {
        match node.primary_type() {
            "cq:Page" | "dam:Asset" | "cq:Template" => return Ok(Some(node)),
            // A tag is sent with the whole document that holds it.
            "cq:Tag" => return document_owner(&node),
            _ => at = node.parent()?,
        }
    }
    Ok(None)
}

/// Returns the node whose document holds a node.
fn document_owner(node: &Node) -> Result<Option<Node>> {
    Ok(node.snapshot().node(node.record_path())?)
}
