//! The stored resources that a merged one consists of: where they lie, and how they are read.

use std::collections::HashSet;

use tympan_content::{Error, Node, NodePath, Result, Snapshot, Subtree, SubtreeBudget};

use super::platform_content;
use super::tree_merge::{HIDE_CHILDREN, HIDE_RESOURCE, HiddenNames, is_hiding, merge_trees};

/// The search paths, the one that wins first.
const SEARCH_PATHS: [&str; 2] = ["/apps", "/libs"];
/// The property that names a super type.
const SUPER_TYPE: &str = "sling:resourceSuperType";
/// Maximum number of super types that are followed; a longer chain is a mistake.
const MAX_SUPER_TYPES: usize = 32;
/// Maximum number of nodes of one merge.
const MAX_MERGED_NODES: usize = 5_000;
/// Maximum size of the stored documents of one merge, in bytes.
const MAX_MERGED_BYTES: u64 = 8 << 20;

/// A stored resource that is merged with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MergeLayer {
    /// The resource, whether or not it exists.
    pub path: NodePath,
    /// The ancestor at which the merge begins. What it and the nodes between hide is hidden from lower layers.
    root: NodePath,
}

impl MergeLayer {
    /// Returns the layer of a resource that is merged with no other.
    pub(crate) fn of_path(path: &NodePath) -> Self {
        Self { path: path.clone(), root: path.clone() }
    }
}

/// Returns the resources at a relative path below the search paths, the underlying one first.
pub(crate) fn overlay_layers(relative: &str) -> Result<Vec<MergeLayer>> {
    let layer = |search_path: &&str| {
        let root = NodePath::new(search_path)?;
        Ok(MergeLayer { path: NodePath::new(&format!("{search_path}/{relative}"))?, root })
    };
    SEARCH_PATHS.iter().rev().map(layer).collect()
}

/// Returns a resource and those at the same place below the super types, the most general one first.
///
/// The super type is that of the resource itself or of its nearest ancestor that has one.
pub(crate) fn override_layers(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<MergeLayer>> {
    let mut layers = Vec::new();
    let mut roots = HashSet::new();
    let (mut path, mut root) = (path.clone(), path.clone());
    while layers.len() < MAX_SUPER_TYPES {
        let Some((heir, super_type)) = find_super_type(snapshot, &path)? else { break };
        if !roots.insert(heir.clone()) {
            break;
        }
        let relative = path.relative_to(&heir).unwrap_or_default().to_owned();
        let Some((next_path, next_root)) = resolve_super_type(snapshot, &super_type, &relative)?
        else {
            break;
        };
        layers.push(MergeLayer { path, root: heir });
        (path, root) = (next_path, next_root);
    }
    layers.push(MergeLayer { path, root });
    layers.reverse();
    Ok(layers)
}

/// Finds the nearest node at or above a path that has a super type.
fn find_super_type(snapshot: &Snapshot, path: &NodePath) -> Result<Option<(NodePath, String)>> {
    let mut next = Some(path.clone());
    while let Some(path) = next.filter(|path| !path.is_root()) {
        let super_type = match snapshot.node(&path)? {
            Some(node) => node.text(SUPER_TYPE),
            None => platform_content::super_type(path.as_str()),
        };
        if let Some(super_type) = super_type.filter(|name| !name.is_empty()) {
            return Ok(Some((path, super_type)));
        }
        next = path.parent();
    }
    Ok(None)
}

/// Returns the path of a resource below a super type, and that of the type; `None` if the type is no path.
fn resolve_super_type(
    snapshot: &Snapshot,
    super_type: &str,
    relative: &str,
) -> Result<Option<(NodePath, NodePath)>> {
    let below = |root: &str| {
        let root = NodePath::new(root).ok()?;
        let path = match relative.is_empty() {
            true => root.clone(),
            false => NodePath::new(&format!("{root}/{relative}")).ok()?,
        };
        Some((path, root))
    };
    if super_type.starts_with('/') {
        return Ok(below(super_type));
    }
    let candidates: Vec<_> = SEARCH_PATHS
        .iter()
        .filter_map(|search_path| below(&format!("{search_path}/{super_type}")))
        .collect();
    // What lies below the type decides, as in Sling: a search path may have only a part of a component.
    for (path, root) in &candidates {
        if snapshot.node(path)?.is_some() {
            return Ok(Some((path.clone(), root.clone())));
        }
    }
    for (path, root) in &candidates {
        if snapshot.node(root)?.is_some() {
            return Ok(Some((path.clone(), root.clone())));
        }
    }
    Ok(candidates.into_iter().next_back())
}

/// Reads and merges resources, the underlying one first; `None` if none exists or all is hidden.
///
/// # Errors
/// [`Error::InvalidEdit`] if they have too many nodes or bytes; if content cannot be read.
pub(crate) fn read_layers(snapshot: &Snapshot, layers: &[MergeLayer]) -> Result<Option<Subtree>> {
    let mut budget = SubtreeBudget::new(MAX_MERGED_NODES, MAX_MERGED_BYTES);
    let mut trees = Vec::new();
    for (position, layer) in layers.iter().enumerate() {
        let hidden = hidden_by_ancestors(snapshot, layer, position > 0)?;
        if hidden != HiddenExtent::Nothing {
            trees.clear();
        }
        if hidden != HiddenExtent::Everything {
            trees.extend(read_resource(snapshot, &layer.path, &mut budget)?);
        }
    }
    Ok(merge_trees(trees))
}

/// Reads a stored resource, or the one of this program if none is stored; `None` if there is none.
fn read_resource(
    snapshot: &Snapshot,
    path: &NodePath,
    budget: &mut SubtreeBudget,
) -> Result<Option<Subtree>> {
    let Some(node) = snapshot.node(path)? else {
        return Ok(platform_content::find_tree(path.as_str()));
    };
    match node.read_subtree_within(budget)? {
        Some(tree) => Ok(Some(tree)),
        None => Err(Error::InvalidEdit {
            action: "merge",
            path: path.clone(),
            reason: "it has more than 5,000 nodes or 8 MiB",
        }),
    }
}

/// The extent to which the ancestors of a resource hide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum HiddenExtent {
    Nothing,
    /// The resources of lower layers.
    Underlying,
    /// The resource, and those of lower layers.
    Everything,
}

/// Returns the extent to which the ancestors of a layer's resource hide it; those that the viewer may not read hide
/// nothing. `has_lower_layers` is false for the lowest layer, whose lists hide nothing.
fn hidden_by_ancestors(
    snapshot: &Snapshot,
    layer: &MergeLayer,
    has_lower_layers: bool,
) -> Result<HiddenExtent> {
    let mut hidden = HiddenExtent::Nothing;
    let mut path = layer.path.clone();
    while path != layer.root
        && let Some(parent) = path.parent()
    {
        if let Some(node) = snapshot.node(&parent)? {
            hidden = hidden.max(hidden_by_parent(&node, path.name(), has_lower_layers));
        }
        path = parent;
    }
    Ok(hidden)
}

fn hidden_by_parent(parent: &Node, child: &str, has_lower_layers: bool) -> HiddenExtent {
    if is_hiding(parent.property(HIDE_RESOURCE).as_ref()) {
        return HiddenExtent::Everything;
    }
    if !has_lower_layers {
        return HiddenExtent::Nothing;
    }
    let names = HiddenNames::from_property(parent.property(HIDE_CHILDREN).as_ref());
    match (names.hides_own(child), names.hides_underlying(child)) {
        (true, _) => HiddenExtent::Everything,
        (false, true) => HiddenExtent::Underlying,
        (false, false) => HiddenExtent::Nothing,
    }
}
