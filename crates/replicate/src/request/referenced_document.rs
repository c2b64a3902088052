//! Dependencies of an activation: assets, fragments, tags, and templates with their policies to which the activated
//! pages refer.
//!
//! A page is incomplete for visitors who lack one of its images. The list therefore contains every referenced document
//! with its replication status, and preselects those that visitors lack or have in an older state. Linked pages are
//! left to the user.

use std::collections::BTreeMap;

use tympan_content::{Node, NodePath, ReferenceKind, Snapshot, SubtreeScope};

use crate::Result;
use crate::request::replication_status::{
    ReplicatedDocument, ReplicationStatus, describe_document, document_status,
};

/// The root of experience fragments, which are pages of which others show parts.
const EXPERIENCE_FRAGMENTS_ROOT: &str = "/content/experience-fragments/";
/// The folder of policies below a settings path.
const POLICIES_PATH_SEGMENT: &str = "/settings/wcm/policies/";

/// The kind of a referenced document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferencedDocumentKind {
    /// An asset.
    Asset,
    /// A tag.
    Tag,
    /// A template, or a part of one.
    Template,
    /// An experience fragment, or a variation of one.
    Fragment,
    /// Another page.
    Page,
    /// Any other document, such as an experience fragment's folder or a design.
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

/// A document to which activated pages refer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferencedDocument {
    /// The document with its replication status.
    pub document: ReplicatedDocument,
    /// The kind of the document.
    pub kind: ReferencedDocumentKind,
    /// True if the document is included unless the user deselects it.
    pub is_preselected: bool,
    /// One of the documents that refer to it.
    pub referrer: NodePath,
}

/// Lists the documents to which the documents at a path, or in its subtree, refer and that are not among them; at most
/// `limit`. References of fragments, assets and templates in the list are included, because these are incomplete
/// without them.
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
    let mut documents: BTreeMap<NodePath, ReferencedDocument> = BTreeMap::new();
    let mut referrers = vec![node.clone()];
    if depth == SubtreeScope::Subtree {
        referrers.extend(node.listed_descendants()?);
    }
    referrers.reverse();
    while let Some(referrer) = referrers.pop() {
        for target in find_reference_targets(snapshot, &referrer)? {
            let path = target.path();
            let is_among = path == top || (depth == SubtreeScope::Subtree && path.is_within(top));
            if is_among || documents.contains_key(path) {
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
            documents.insert(
                document_path,
                ReferencedDocument { document, kind, is_preselected: is_ticked, referrer: by },
            );
            if documents.len() >= limit {
                return Ok(documents.into_values().collect());
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
    Ok(documents.into_values().collect())
}

/// Returns the documents to which a document refers: by path, identifier, link in a text, name of a tag or of a policy.
fn find_reference_targets(snapshot: &Snapshot, referrer: &Node) -> Result<Vec<Node>> {
    let mut targets = Vec::new();
    for reference in snapshot.references_in_document(referrer.path())? {
        let Some(target) = reference.target else { continue };
        let Some(node) = snapshot.node(&target)? else { continue };
        if reference.kind == ReferenceKind::Tag {
            // The redirect of a moved tag leads visitors to the tag at its new path.
            let moved = snapshot.find_tag(target.as_str())?;
            for tag in moved.into_iter().filter(|tag| *tag.path() != target) {
                targets.extend(document_owner(&tag)?);
            }
        }
        targets.extend(enclosing_document(node)?);
    }
    Ok(targets)
}

/// Returns the page, asset, tag, template or policy that a node is or belongs to; folders and nodes in `/apps` are not
/// replicated.
fn enclosing_document(node: Node) -> Result<Option<Node>> {
    let is_policy = node.path().as_str().contains(POLICIES_PATH_SEGMENT);
    if is_policy && node.path().as_str().starts_with("/conf/") {
        return document_owner(&node);
    }
    let mut at = Some(node);
    while let Some(node) = at {
        match node.primary_type() {
            "cq:Page" | "dam:Asset" | "cq:Template" => return Ok(Some(node)),
            // A tag is sent with the whole document that contains it.
            "cq:Tag" => return document_owner(&node),
            _ => at = node.parent()?,
        }
    }
    Ok(None)
}

/// Returns the top node of the document that contains a node.
fn document_owner(node: &Node) -> Result<Option<Node>> {
    Ok(node.snapshot().node(node.record_path())?)
}
