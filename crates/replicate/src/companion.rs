//! What goes along with an activation: assets, tags, templates and designs that the activated pages refer to.
//!
//! A page whose picture visitors do not have is broken for them. So the list names all that is referred to, says what
//! visitors have of it, and ticks what they lack or have in an older state; pages that are linked to are left to the user.

use std::collections::BTreeMap;

use tympan_content::{Depth, Node, NodePath, Snapshot};

use crate::Result;
use crate::status::{Live, Status, described, status_of};

/// What something is that is referred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CompanionKind {
    /// An asset.
    Asset,
    /// A tag.
    Tag,
    /// A template, or what belongs to one.
    Template,
    /// Another page.
    Page,
    /// Anything else, such as an experience fragment's folder or a design.
    Other,
}

impl CompanionKind {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Asset => "asset",
            Self::Tag => "tag",
            Self::Template => "template",
            Self::Page => "page",
            Self::Other => "other",
        }
    }

    fn of(node: &Node) -> Self {
        let path = node.path().as_str();
        match node.primary_type() {
            "dam:Asset" => Self::Asset,
            "cq:Tag" => Self::Tag,
            "cq:Template" => Self::Template,
            _ if path.starts_with("/conf/") && path.contains("/templates/") => Self::Template,
            "cq:Page" => Self::Page,
            _ => Self::Other,
        }
    }
}

/// Something that activated pages refer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Companion {
    /// The document, with what visitors have of it.
    pub document: Live,
    /// What it is.
    pub kind: CompanionKind,
    /// Whether it is to go along unless the user says otherwise.
    pub is_ticked: bool,
    /// One of the documents that refer to it.
    pub referrer: NodePath,
}

/// Where tags are looked for that are named by `namespace:path`.
const TAG_ROOTS: [&str; 2] = ["/content/cq:tags", "/etc/tags"];

/// Lists what the documents at a path, or in its subtree, refer to and does not lie among them; at most `limit`.
///
/// # Errors
/// If content fails.
pub fn companions(
    snapshot: &Snapshot,
    top: &NodePath,
    depth: Depth,
    limit: usize,
) -> Result<Vec<Companion>> {
    let Some(node) = snapshot.node(top)? else { return Ok(Vec::new()) };
    let mut nodes = vec![node.clone()];
    if depth == Depth::Subtree {
        nodes.extend(node.listed_descendants()?);
    }
    let mut found: BTreeMap<NodePath, Companion> = BTreeMap::new();
    for node in nodes {
        let Some(content) = node.content()? else { continue };
        for target in targets(snapshot, &content)? {
            let path = target.path();
            let is_among = path == top || (depth == Depth::Subtree && path.is_within(top));
            if is_among || found.contains_key(path) {
                continue;
            }
            let (status, kind) = (status_of(&target), CompanionKind::of(&target));
            let is_ticked = matches!(status, Status::Never | Status::Outdated | Status::TakenAway)
                && kind != CompanionKind::Page;
            let (document, referrer) = (described(&target, status)?, node.path().clone());
            found.insert(path.clone(), Companion { document, kind, is_ticked, referrer });
            if found.len() >= limit {
                return Ok(found.into_values().collect());
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Returns the documents that a page's content refers to: by path, by identifier, by tag.
fn targets(snapshot: &Snapshot, content: &Node) -> Result<Vec<Node>> {
    let mut targets = Vec::new();
    for reference in snapshot.references_of(content.path())? {
        let named = match reference.target {
            Some(path) => snapshot.node(&path)?,
            None => tag(snapshot, &reference.text)?,
        };
        targets.extend(named.map(document_of).transpose()?.flatten());
    }
    let tags = content.property("cq:tags");
    for value in tags.iter().flat_map(tympan_content::Property::values) {
        targets.extend(tag(snapshot, &value.to_text())?);
    }
    let template = content.text("cq:template").and_then(|path| NodePath::new(&path).ok());
    if let Some(path) = template {
        targets.extend(snapshot.node(&path)?);
    }
    Ok(targets)
}

/// Finds a tag by `namespace:path`.
fn tag(snapshot: &Snapshot, text: &str) -> Result<Option<Node>> {
    let Some((space, rest)) = text.split_once(':') else { return Ok(None) };
    for root in TAG_ROOTS {
        let Ok(path) = NodePath::new(&format!("{root}/{space}/{rest}")) else { continue };
        if let Some(node) = snapshot.node(&path)? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Returns the page, asset, tag or template that a node is or belongs to; folders and what lies in `/apps` do not travel.
fn document_of(node: Node) -> Result<Option<Node>> {
    let mut at = Some(node);
    while let Some(node) = at {
        if matches!(node.primary_type(), "cq:Page" | "dam:Asset" | "cq:Tag" | "cq:Template") {
            return Ok(Some(node));
        }
        at = node.parent()?;
    }
    Ok(None)
}
