//! The nodes of a package, before they meet what is there.
//!
//! A [`crate::Subtree`] cannot hold all that a package says of a node: that it is named for its order only, that a
//! folder is merely implied, that a property's bytes are still in the package or stay as they are, and in which line
//! of which file all this stands.
//!
//! Invariant: no two children of a node have the same name.

use std::collections::{BTreeMap, HashMap};

use super::archive::File;
use super::report::SkipReason;
use crate::{NodePath, PRIMARY_TYPE, Property, Value};

/// What the package knows of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Its place among its siblings; it is not created.
    OrderOnly,
    /// That there is one, as something lies below it: a missing one is created as a folder.
    Folder,
    /// Its properties.
    Content,
}

/// What the package knows of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportProperty {
    /// The value or values.
    Value(Property),
    /// That what is there stays.
    Kept,
    /// The entry of the package with its bytes.
    Bytes(usize),
    /// The entries with the bytes of a list of values, by their place in the list.
    ByteList(BTreeMap<usize, usize>),
    /// The bytes of one value or a list of values, which stood in a document.
    Inline {
        /// The bytes.
        values: Vec<Vec<u8>>,
        /// Whether the property is a list.
        is_list: bool,
    },
}

/// Where in the package something stands.
#[derive(Debug, Clone)]
pub struct Source {
    file: File,
    line: u32,
}

impl Source {
    pub(super) fn new(file: File, line: u32) -> Self {
        Self { file, line }
    }

    /// Returns the entry's name.
    #[must_use]
    pub fn file(&self) -> String {
        self.file.to_string()
    }

    /// Returns the line, counted from 1; 0 where the node is not from an XML file.
    #[must_use]
    pub fn line(&self) -> u32 {
        self.line
    }
}

/// An element that is left out because of another one.
#[derive(Debug, Clone)]
pub(super) struct Superseded {
    /// Its path, relative to the node that the document describes.
    pub(super) path: String,
    pub(super) source: Source,
    pub(super) reason: SkipReason,
}

/// A node of a package with those below it.
#[derive(Debug, Clone)]
pub struct ImportNode {
    name: String,
    kind: Kind,
    is_element: bool,
    properties: BTreeMap<String, ImportProperty>,
    children: Vec<Self>,
    places: HashMap<String, usize>,
    source: Source,
}

impl ImportNode {
    pub(super) fn new(
        name: String,
        kind: Kind,
        properties: BTreeMap<String, ImportProperty>,
        source: Source,
    ) -> Self {
        let is_element = kind == Kind::Content;
        Self {
            name,
            kind,
            is_element,
            properties,
            children: Vec::new(),
            places: HashMap::new(),
            source,
        }
    }

    /// Returns the node's name; it is empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the package knows of the node.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Tells whether an element of a docview describes the node.
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

    /// Returns where the package describes the node.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Finds a child.
    #[must_use]
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.children.get(*self.places.get(name)?)
    }

    /// Finds a node below.
    #[must_use]
    pub fn find(&self, path: &NodePath) -> Option<&Self> {
        path.names().try_fold(self, |node, name| node.child(name))
    }

    /// Returns the primary type that the package names, if it does.
    #[must_use]
    pub fn primary_type(&self) -> Option<&str> {
        match self.properties.get(PRIMARY_TYPE)? {
            ImportProperty::Value(property) => property.first()?.as_str(),
            _ => None,
        }
    }

    pub(super) fn into_children(self) -> Vec<Self> {
        self.children
    }

    /// Adds a child whose name no other child has.
    pub(super) fn push(&mut self, child: Self) {
        self.places.insert(child.name.clone(), self.children.len());
        self.children.push(child);
    }

    /// Returns the node at a path, after creating what is missing on the way: by folders, and for the last by `kind`.
    pub(super) fn grow(&mut self, path: &NodePath, kind: Kind, source: &Source) -> &mut Self {
        let last = path.depth();
        let mut node = self;
        node.raise(if last == 0 { kind } else { Kind::Folder });
        for (at, name) in path.names().enumerate() {
            let wanted = if at + 1 == last { kind } else { Kind::Folder };
            node = node.child_or_new(name, wanted, source);
            node.raise(wanted);
        }
        node
    }

    pub(super) fn child_or_new(&mut self, name: &str, kind: Kind, source: &Source) -> &mut Self {
        let next = self.children.len();
        let place = *self.places.entry(name.to_owned()).or_insert(next);
        if place == next {
            let mut child = Self::new(name.to_owned(), kind, BTreeMap::new(), source.clone());
            child.is_element = false;
            self.children.push(child);
        }
        #[expect(
            clippy::indexing_slicing,
            reason = "every place in the map is below the number of children"
        )]
        &mut self.children[place]
    }

    fn raise(&mut self, kind: Kind) {
        if self.kind == Kind::OrderOnly || kind == Kind::Content {
            self.kind = kind;
        }
    }

    /// Sets a property of a node that is more than a folder from now on.
    pub(super) fn set(&mut self, name: &str, property: ImportProperty) {
        self.kind = Kind::Content;
        self.properties.insert(name.to_owned(), property);
    }

    /// Sets a property unless there is one.
    pub(super) fn set_default(&mut self, name: &str, value: impl FnOnce() -> Value) {
        if !self.properties.contains_key(name) {
            self.set(name, ImportProperty::Value(Property::Single(value())));
        }
    }

    /// Joins what another document says of this node. Its properties replace those known so far, since the document
    /// that lies nearer to the node is the one that FileVault applies last; `superseded` collects the elements that
    /// lose theirs.
    pub(super) fn join(&mut self, document: Self, path: &str, superseded: &mut Vec<Superseded>) {
        if document.kind == Kind::Content {
            if self.is_element {
                superseded.push(self.superseded(path, SkipReason::Superseded));
            }
            self.kind = Kind::Content;
            self.is_element = true;
            self.properties = document.properties;
            self.source = document.source;
        }
        for child in document.children {
            match self.places.get(&child.name).and_then(|place| self.children.get_mut(*place)) {
                Some(known) => {
                    let path = format!("{path}/{}", child.name);
                    known.join(child, &path, superseded);
                }
                None => self.push(child),
            }
        }
    }

    /// Adds a child, or puts it in the place of the one with the same name; `superseded` collects the elements that
    /// vanish so. A child that only tells the order takes no place.
    pub(super) fn push_last(&mut self, child: Self, path: &str, superseded: &mut Vec<Superseded>) {
        match self.places.get(&child.name).and_then(|place| self.children.get_mut(*place)) {
            Some(known) if child.kind != Kind::OrderOnly => {
                let path = format!("{path}/{}", known.name);
                known.list_elements(&path, SkipReason::Superseded, superseded);
                *known = child;
            }
            Some(_) => {}
            None => self.push(child),
        }
    }

    /// Lists the elements of a subtree that is left out.
    pub(super) fn list_elements(&self, path: &str, reason: SkipReason, out: &mut Vec<Superseded>) {
        if self.is_element {
            out.push(self.superseded(path, reason));
        }
        for child in &self.children {
            child.list_elements(&format!("{path}/{}", child.name), reason, out);
        }
    }

    fn superseded(&self, path: &str, reason: SkipReason) -> Superseded {
        Superseded { path: path.to_owned(), source: self.source.clone(), reason }
    }

    /// Counts the nodes, this one included.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.children.iter().map(Self::count).sum::<usize>()
    }
}
