//! References between nodes: by identifier (strong or weak), by path, by links in texts, and by names of tags and
//! policies. They are looked up in both directions, and rewritten when a node is moved.
//!
//! In: a node's path. Out: the properties that refer to it, and the nodes to which it refers.
//!
//! The indexes `reference` and `link` list candidates. The properties themselves decide, because the indexes truncate
//! long values.

use std::collections::BTreeSet;

use crate::access::is_policy_path;
use crate::document::borrowed_property::{BorrowedProperty, BorrowedValue};
use crate::document::property_reference::{property_targets, referring_properties};
use crate::index::{IndexPathScope, LINK_MAP};
use crate::model::referrer::{ReferenceKind, Referrer};
use crate::model::subtree::{JCR_CONTENT, UUID_PROPERTY};
use crate::model::text_link::{
    LinkRewrite, TextLink, apply_replacements, find_links, is_plain_reference,
};
use crate::version::checked_in::is_read_only;
use crate::{
    BorrowedNode, Error, LookupIndex, Node, NodePath, Property, Result, Session, Snapshot,
    SubtreeScope, Value,
};

/// A reference held by a property.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeReference {
    /// The node that has the property.
    pub path: NodePath,
    /// The property's name.
    pub property: String,
    /// The kind of the reference.
    pub kind: ReferenceKind,
    /// The identifier or path in the property.
    pub text: String,
    /// The target node, if it exists.
    pub target: Option<NodePath>,
}

impl Snapshot {
    /// Finds the node with an identifier.
    ///
    /// # Errors
    /// If the store fails.
    pub fn find_by_identifier(&self, identifier: &str) -> Result<Option<Node>> {
        for path in self.look_up_paths(LookupIndex::Uuid, identifier)? {
            let node = self.node(&path)?;
            // The index truncates long values and does not contain pending edits.
            let node = node.filter(|node| node.text(UUID_PROPERTY).as_deref() == Some(identifier));
            if node.is_some() {
                return Ok(node);
            }
        }
        Ok(None)
    }

    /// Returns the properties that refer to a node, sorted: by its path or identifier, by links in texts, and by the
    /// names of tags and policies. The content of a page, file or asset, with everything in it, counts as the node
    /// itself.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn referrers(&self, path: &NodePath) -> Result<Vec<Referrer>> {
        self.find_referrers(path, SubtreeScope::Document)
    }

    /// Returns the properties outside the subtree of a node that refer to any node in it, sorted.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn referrers_within(&self, path: &NodePath) -> Result<Vec<Referrer>> {
        let mut referrers = self.find_referrers(path, SubtreeScope::Subtree)?;
        referrers.retain(|referrer| !referrer.path.is_within(path));
        Ok(referrers)
    }

    fn find_referrers(&self, path: &NodePath, depth: SubtreeScope) -> Result<Vec<Referrer>> {
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut referrers = BTreeSet::new();
        let mut nodes = vec![node.clone()];
        if depth == SubtreeScope::Subtree {
            nodes.extend(node.listed_descendants()?);
        }
        for node in nodes {
            for node in [node.child(JCR_CONTENT)?, Some(node)].into_iter().flatten() {
                if let Some(identifier) = node.text(UUID_PROPERTY) {
                    self.add_referrers_by_identifier(&identifier, &mut referrers)?;
                }
            }
        }
        let targets = ReferenceTargets {
            root_path: path,
            content_path: path.child(JCR_CONTENT)?,
            scope: depth,
        };
        self.add_referrers_by_path(&targets, &mut referrers)?;
        Ok(referrers.into_iter().collect())
    }

    fn add_referrers_by_identifier(
        &self,
        identifier: &str,
        referrers: &mut BTreeSet<Referrer>,
    ) -> Result<()> {
        for path in self.look_up_paths(LookupIndex::Reference, identifier)? {
            let Some(node) = self.node(&path)? else { continue };
            let Some(node) = node.as_borrowed() else { continue };
            for (property, kind) in referring_properties(node, identifier) {
                referrers.insert(Referrer { path: path.clone(), property, kind });
            }
        }
        Ok(())
    }

    fn add_referrers_by_path(
        &self,
        targets: &ReferenceTargets<'_>,
        referrers: &mut BTreeSet<Referrer>,
    ) -> Result<()> {
        let mut candidates = BTreeSet::new();
        for map in [LookupIndex::Reference.map_name(), LINK_MAP] {
            for (target, scope) in targets.index_path_scopes() {
                candidates.extend(self.indexed_referrers(map, target.as_str(), scope)?);
            }
        }
        for path in candidates {
            let Some(node) = self.node(&path)? else { continue };
            let Some(node) = node.as_borrowed() else { continue };
            for (name, property) in node.properties() {
                for kind in self.reference_kinds(&path, name, property, targets)? {
                    let property = name.to_owned();
                    referrers.insert(Referrer { path: path.clone(), property, kind });
                }
            }
        }
        Ok(())
    }

    /// Returns the ways in which a property refers to one of these paths.
    fn reference_kinds(
        &self,
        node: &NodePath,
        name: &str,
        property: BorrowedProperty<'_>,
        targets: &ReferenceTargets<'_>,
    ) -> Result<BTreeSet<ReferenceKind>> {
        let mut kinds = BTreeSet::new();
        for value in property.values() {
            let BorrowedValue::Text(value_type, text) = value else { continue };
            if is_plain_reference(value_type, text)
                && NodePath::new(text).is_ok_and(|path| targets.contains(&path))
            {
                kinds.insert(ReferenceKind::Path);
                continue;
            }
            for link in find_links(node, name, value_type, text) {
                if !link.candidate_paths.iter().any(|path| targets.can_contain(path)) {
                    continue;
                }
                if self.link_target(&link)?.is_some_and(|target| targets.contains(&target)) {
                    kinds.insert(link.kind);
                }
            }
        }
        Ok(kinds)
    }

    /// Returns the node to which a link refers: the first of its candidates that exists.
    fn link_target(&self, link: &TextLink) -> Result<Option<NodePath>> {
        for path in &link.candidate_paths {
            let path = NodePath::new(path)?;
            if self.node(&path)?.is_some() {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Returns the references held by a node and everything below it in its document, sorted by path and property.
    ///
    /// # Errors
    /// [`Error::NodeMissing`]; errors of the store.
    pub fn references_in_document(&self, path: &NodePath) -> Result<Vec<NodeReference>> {
        let node = self.node(path)?.ok_or_else(|| Error::NodeMissing(path.clone()))?;
        let mut references = Vec::new();
        if let Some(node) = node.as_borrowed() {
            self.collect_references(path, node, &mut references)?;
        }
        references.sort();
        references.dedup();
        Ok(references)
    }

    fn collect_references(
        &self,
        path: &NodePath,
        node: BorrowedNode<'_>,
        references: &mut Vec<NodeReference>,
    ) -> Result<()> {
        for (name, property) in node.properties() {
            for (kind, text) in property_targets(property) {
                let target = match kind {
                    ReferenceKind::Path => {
                        NodePath::new(text).ok().map(|path| self.node(&path)).transpose()?.flatten()
                    }
                    _ => self.find_by_identifier(text)?,
                };
                references.push(NodeReference {
                    path: path.clone(),
                    property: name.to_owned(),
                    kind,
                    text: text.to_owned(),
                    target: target.map(|node| node.path().clone()),
                });
            }
        }
        for (name, property) in node.properties() {
            self.collect_links(path, name, property, references)?;
        }
        for child in node.children() {
            self.collect_references(&path.child_unchecked(child.name()), child, references)?;
        }
        Ok(())
    }

    /// Adds the links of a property. For a link without an existing target, adds the first candidate path.
    fn collect_links(
        &self,
        path: &NodePath,
        name: &str,
        property: BorrowedProperty<'_>,
        references: &mut Vec<NodeReference>,
    ) -> Result<()> {
        for value in property.values() {
            let BorrowedValue::Text(value_type, text) = value else { continue };
            for link in find_links(path, name, value_type, text) {
                let target = self.link_target(&link)?;
                let target_path = target.as_ref().map(NodePath::as_str);
                // Such a path is already a reference by path, whether or not its node exists.
                let is_known = is_plain_reference(value_type, text)
                    && target_path.is_none_or(|path| path == text);
                let Some(link_target) =
                    target_path.or(link.candidate_paths.first().map(String::as_str))
                else {
                    continue;
                };
                // Other properties that may hold tags also hold other names.
                let is_other_name =
                    link.kind == ReferenceKind::Tag && target.is_none() && name != "cq:tags";
                let is_prose = target.is_none() && link.can_be_prose(text);
                if !is_known && !is_other_name && !is_prose {
                    let text = link_target.to_owned();
                    let (path, property) = (path.clone(), name.to_owned());
                    references.push(NodeReference {
                        path,
                        property,
                        kind: link.kind,
                        text,
                        target,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The target paths of a search for references.
struct ReferenceTargets<'a> {
    root_path: &'a NodePath,
    /// The path of the content of the top node.
    content_path: NodePath,
    scope: SubtreeScope,
}

impl ReferenceTargets<'_> {
    /// Returns the ranges of a path index that cover these targets.
    fn index_path_scopes(&self) -> Vec<(&NodePath, IndexPathScope)> {
        match self.scope {
            SubtreeScope::Subtree => {
                vec![
                    (self.root_path, IndexPathScope::Exact),
                    (self.root_path, IndexPathScope::Descendants),
                ]
            }
            SubtreeScope::Document => vec![
                (self.root_path, IndexPathScope::Exact),
                (&self.content_path, IndexPathScope::Exact),
                (&self.content_path, IndexPathScope::Descendants),
            ],
        }
    }

    fn contains(&self, path: &NodePath) -> bool {
        match self.scope {
            SubtreeScope::Subtree => path.is_within(self.root_path),
            SubtreeScope::Document => path == self.root_path || path.is_within(&self.content_path),
        }
    }

    fn can_contain(&self, path: &str) -> bool {
        path.starts_with(self.root_path.as_str())
    }
}

/// The references that a move rewrote, and those that it left unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReferenceRewriteReport {
    /// The properties that now refer to the new path, sorted.
    pub rewritten_referrers: Vec<Referrer>,
    /// The properties that still refer to the old path, sorted.
    pub skipped_references: Vec<SkippedReference>,
}

/// A reference that a move left unchanged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SkippedReference {
    /// The property that holds the reference.
    pub referrer: Referrer,
    /// The reason why it was not rewritten.
    pub reason: &'static str,
}

impl Session {
    /// Rewrites the references by path, link, tag and policy to a node that the session moved, and to its descendants,
    /// so that they refer to the new location. The rest of each text stays unchanged byte for byte. Identifiers remain
    /// valid wherever a node is.
    ///
    /// A reference that the viewer may not write is reported and left unchanged. A reference that the viewer does not
    /// see is left unchanged and not reported.
    ///
    /// # Errors
    /// [`Error::NodeMissing`] for the node in the state that the session began with; [`Error::InvalidEdit`] for more
    /// references than [`Session::limit_bulk_edits`] allows; errors of the store.
    pub fn rewrite_references(
        &mut self,
        from: &NodePath,
        to: &NodePath,
    ) -> Result<ReferenceRewriteReport> {
        let base = self.base_snapshot();
        let referrers = base.find_referrers(from, SubtreeScope::Subtree)?;
        let mut done = ReferenceRewriteReport::default();
        for referrer in referrers {
            if matches!(referrer.kind, ReferenceKind::Strong | ReferenceKind::Weak) {
                continue;
            }
            let path = referrer.path.rebase(from, to).unwrap_or_else(|| referrer.path.clone());
            let Some(node) = self.node(&path)? else { continue };
            let Some(property) = node.property(&referrer.property) else { continue };
            if !self.take_bulk_edit(1, property.text_bytes()) {
                let reason = "together, the references to what was moved exceed the limit of a request; \
                              move less at once, or without rewriting";
                return Err(Error::InvalidEdit { action: "rewrite", path, reason });
            }
            let rewriting =
                ReferenceRewriter { base_snapshot: &base, node_path: &referrer.path, from, to };
            let changed = rewriting.rewrite_property(&referrer.property, &property)?;
            let skip = |reason| SkippedReference {
                referrer: Referrer { path: path.clone(), ..referrer.clone() },
                reason,
            };
            match changed {
                // The property was already rewritten because of another reference in it.
                Some(changed) if changed == property => {}
                Some(_) if is_policy_path(path.as_str()) => {
                    done.skipped_references.push(skip("the reference is part of a policy"));
                }
                None => done
                    .skipped_references
                    .push(skip("the form of the reference is not recognized")),
                Some(_) if is_read_only(&node)? => {
                    done.skipped_references.push(skip("the node is checked in"));
                }
                Some(_)
                    if !self.can_alter_property(&path, node.primary_type(), &referrer.property) =>
                {
                    done.skipped_references.push(skip("the user may not change the property"));
                }
                Some(changed) => {
                    drop(node);
                    self.set_property(&path, &referrer.property, changed)?;
                    done.rewritten_referrers.push(Referrer { path, ..referrer });
                }
            }
        }
        done.rewritten_referrers.sort();
        done.skipped_references.sort();
        Ok(done)
    }
}

/// The parameters for rewriting the references to a node.
struct ReferenceRewriter<'a> {
    /// The state in which links are resolved: the one before the move.
    base_snapshot: &'a Snapshot,
    /// The path of the node in that state.
    node_path: &'a NodePath,
    from: &'a NodePath,
    to: &'a NodePath,
}

impl ReferenceRewriter<'_> {
    /// Returns the property with its references rewritten; `None` if a reference could not be rewritten.
    fn rewrite_property(&self, name: &str, property: &Property) -> Result<Option<Property>> {
        match property {
            Property::Single(value) => Ok(self.rewrite_value(name, value)?.map(Property::Single)),
            Property::List(value_type, values) => {
                let mut rewritten = Vec::new();
                for value in values {
                    let Some(value) = self.rewrite_value(name, value)? else { return Ok(None) };
                    rewritten.push(value);
                }
                Ok(Some(Property::List(*value_type, rewritten)))
            }
        }
    }

    fn rewrite_value(&self, name: &str, value: &Value) -> Result<Option<Value>> {
        let (text, wrap): (&str, fn(String) -> Value) = match value {
            Value::String(text) => (text, Value::String),
            Value::Path(text) => (text, Value::Path),
            Value::Uri(text) => (text, Value::Uri),
            _ => return Ok(Some(value.clone())),
        };
        if is_plain_reference(value.value_type(), text)
            && let Ok(path) = NodePath::new(text)
            && self.base_snapshot.node(&path)?.is_some()
        {
            let moved = path.rebase(self.from, self.to);
            return Ok(Some(moved.map_or_else(|| value.clone(), |to| wrap(to.to_string()))));
        }
        let rewrite = LinkRewrite { text, source: self.from, destination: self.to };
        let mut replacements = Vec::new();
        for link in find_links(self.node_path, name, value.value_type(), text) {
            let Some(target) = self.base_snapshot.link_target(&link)? else { continue };
            if !target.is_within(self.from) {
                continue;
            }
            let Some(replacement) = rewrite.replacement_for(&link, &target) else {
                return Ok(None);
            };
            replacements.push(replacement);
        }
        Ok(Some(wrap(apply_replacements(text, replacements))))
    }
}
