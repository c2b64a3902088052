//! The nodes of a package, before they are merged into existing content.
//!
//! A [`tympan_content::Subtree`] cannot hold everything that a package states about a node: that an element only fixes
//! the order, that a folder is only implied, that a property's bytes are still in the package or stay unchanged, and the
//! file and line of each node.
//!
//! Invariant: no two children of a node have the same name.

use std::collections::{BTreeMap, HashMap};

use tympan_content::{NodePath, PRIMARY_TYPE, Property, Value};

use crate::archive::PackageFileName;
use crate::install_report::SkipReason;

/// The information that the package has about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportNodeKind {
    /// Only its position among its siblings; it is not created.
    OrderOnly,
    /// Only its existence, implied by something below it; a missing node is created as a folder.
    Folder,
    /// Its properties.
    Content,
}

/// The information that the package has about a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportProperty {
    /// The value or values.
    Value(Property),
    /// The existing value stays.
    Preserved,
    /// The entry of the package that holds its bytes.
    Binary(usize),
    /// The entries that hold the bytes of a list of values, by position in the list.
    BinaryList(BTreeMap<usize, usize>),
    /// The bytes of one value or a list of values, from a document.
    InlineBinary {
        /// The bytes.
        values: Vec<Vec<u8>>,
        /// True if the property is a list.
        is_list: bool,
    },
}

/// A position in the package.
#[derive(Debug, Clone)]
pub struct PackageLocation {
    file_name: PackageFileName,
    line: u32,
}

impl PackageLocation {
    pub(crate) fn new(file: PackageFileName, line: u32) -> Self {
        Self { file_name: file, line }
    }

    /// Returns the entry's name.
    #[must_use]
    pub fn file_name(&self) -> String {
        self.file_name.to_string()
    }

    /// Returns the line, counted from 1; 0 if the node does not come from an XML file.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line
    }
}

/// An element that is ignored because of another one.
#[derive(Debug, Clone)]
pub(crate) struct SupersededElement {
    /// Its path, relative to the node that the document describes.
    pub(crate) relative_path: String,
    pub(crate) location: PackageLocation,
    pub(crate) reason: SkipReason,
}

/// A node of a package with its descendants.
#[derive(Debug, Clone)]
pub struct ImportNode {
    name: String,
    kind: ImportNodeKind,
    is_element: bool,
    properties: BTreeMap<String, ImportProperty>,
    children: Vec<Self>,
    child_positions: HashMap<String, usize>,
    location: PackageLocation,
}

impl ImportNode {
    pub(crate) fn new(
        name: String,
        kind: ImportNodeKind,
        properties: BTreeMap<String, ImportProperty>,
        source: PackageLocation,
    ) -> Self {
        let is_element = kind == ImportNodeKind::Content;
        Self {
            name,
            kind,
            is_element,
            properties,
            children: Vec::new(),
            child_positions: HashMap::new(),
            location: source,
        }
    }

    /// Returns the node's name; it is empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kind of the node.
    #[must_use]
    pub fn kind(&self) -> ImportNodeKind {
        self.kind
    }

    /// Returns true if an element of a docview describes the node.
    #[must_use]
    pub fn is_element(&self) -> bool {
        self.is_element
    }

    /// Returns the properties by name.
    #[must_use]
    pub fn properties(&self) -> &BTreeMap<String, ImportProperty> {
        &self.properties
    }

    /// Returns the children in order.
    #[must_use]
    pub fn children(&self) -> &[Self] {
        &self.children
    }

    /// Returns the position of the node in the package.
    #[must_use]
    pub fn location(&self) -> &PackageLocation {
        &self.location
    }

    /// Finds a child.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.get(*self.child_positions.get(name)?)
    }

    /// Finds a descendant.
    #[must_use]
    pub fn find_descendant(&self, path: &NodePath) -> Option<&Self> {
        path.names().try_fold(self, |node, name| node.child(name))
    }

    /// Returns the primary type, if the package names one.
    #[must_use]
    pub fn primary_type(&self) -> Option<&str> {
        match self.properties.get(PRIMARY_TYPE)? {
            ImportProperty::Value(property) => property.first()?.as_str(),
            _ => None,
        }
    }

    pub(crate) fn into_children(self) -> Vec<Self> {
        self.children
    }

    /// Adds a child whose name must not be in use.
    fn push_child(&mut self, child: Self) {
        self.child_positions.insert(child.name.clone(), self.children.len());
        self.children.push(child);
    }

    /// Returns the node at a path, and creates missing nodes on the way: ancestors as folders, the last one as `kind`.
    pub(crate) fn ensure_node(
        &mut self,
        path: &NodePath,
        kind: ImportNodeKind,
        source: &PackageLocation,
    ) -> &mut Self {
        let last = path.depth();
        let mut node = self;
        node.upgrade_kind(if last == 0 { kind } else { ImportNodeKind::Folder });
        for (at, name) in path.names().enumerate() {
            let node_kind = if at + 1 == last { kind } else { ImportNodeKind::Folder };
            node = node.ensure_child(name, node_kind, source);
            node.upgrade_kind(node_kind);
        }
        node
    }

    pub(crate) fn ensure_child(
        &mut self,
        name: &str,
        kind: ImportNodeKind,
        source: &PackageLocation,
    ) -> &mut Self {
        let next = self.children.len();
        let position = *self.child_positions.entry(name.to_owned()).or_insert(next);
        if position == next {
            let mut child = Self::new(name.to_owned(), kind, BTreeMap::new(), source.clone());
            child.is_element = false;
            self.children.push(child);
        }
        #[expect(
            clippy::indexing_slicing,
            reason = "every place in the map is below the number of children"
        )]
        &mut self.children[position]
    }

    fn upgrade_kind(&mut self, kind: ImportNodeKind) {
        if self.kind == ImportNodeKind::OrderOnly || kind == ImportNodeKind::Content {
            self.kind = kind;
        }
    }

    /// Sets a property; the node is then more than a folder.
    pub(crate) fn set_property(&mut self, name: &str, property: ImportProperty) {
        self.kind = ImportNodeKind::Content;
        self.properties.insert(name.to_owned(), property);
    }

    /// Sets a property if it is missing.
    pub(crate) fn set_default_property(&mut self, name: &str, value: impl FnOnce() -> Value) {
        if !self.properties.contains_key(name) {
            self.set_property(name, ImportProperty::Value(Property::Single(value())));
        }
    }

    /// Merges another document about this node. Its properties replace those known so far, because FileVault applies
    /// the document nearer to the node last. Elements that lose their properties are added to `superseded`.
    pub(crate) fn merge_document(
        &mut self,
        document: Self,
        path: &str,
        superseded: &mut Vec<SupersededElement>,
    ) {
        if document.kind == ImportNodeKind::Content {
            if self.is_element {
                superseded.push(self.to_superseded(path, SkipReason::Superseded));
            }
            self.kind = ImportNodeKind::Content;
            self.is_element = true;
            self.properties = document.properties;
            self.location = document.location;
        }
        for child in document.children {
            match self
                .child_positions
                .get(&child.name)
                .and_then(|position| self.children.get_mut(*position))
            {
                Some(existing_child) => {
                    let path = format!("{path}/{}", child.name);
                    existing_child.merge_document(child, &path, superseded);
                }
                None => self.push_child(child),
            }
        }
    }

    /// Adds a child, or replaces the one with the same name; elements removed that way are added to `superseded`. A
    /// child that only fixes the order replaces nothing.
    pub(crate) fn put_child(
        &mut self,
        child: Self,
        path: &str,
        superseded: &mut Vec<SupersededElement>,
    ) {
        match self
            .child_positions
            .get(&child.name)
            .and_then(|position| self.children.get_mut(*position))
        {
            Some(existing_child) if child.kind != ImportNodeKind::OrderOnly => {
                let path = format!("{path}/{}", existing_child.name);
                existing_child.collect_elements(&path, SkipReason::Superseded, superseded);
                *existing_child = child;
            }
            Some(_) => {}
            None => self.push_child(child),
        }
    }

    /// Collects the elements of a subtree that is left out.
    pub(crate) fn collect_elements(
        &self,
        path: &str,
        reason: SkipReason,
        out: &mut Vec<SupersededElement>,
    ) {
        if self.is_element {
            out.push(self.to_superseded(path, reason));
        }
        for child in &self.children {
            child.collect_elements(&format!("{path}/{}", child.name), reason, out);
        }
    }

    fn to_superseded(&self, path: &str, reason: SkipReason) -> SupersededElement {
        SupersededElement {
            relative_path: path.to_owned(),
            location: self.location.clone(),
            reason,
        }
    }

    /// Returns the number of nodes, including this one.
    #[must_use]
    pub fn count_nodes(&self) -> usize {
        1 + self.children.iter().map(Self::count_nodes).sum::<usize>()
    }
}
