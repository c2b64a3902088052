//! Registering node types and namespaces in a session: they are content, and count from its commit on.

use std::sync::Arc;

use super::cnd::parse_cnd;
use super::definition::TypeDefinition;
use super::namespace::Namespaces;
use super::registry::NodeTypes;
use super::stored::{NAMESPACES, SYSTEM, TYPES, types_node};
use crate::{Error, NodePath, Property, Result, Session, Snapshot};

impl Snapshot {
    /// Returns the node types that this state knows, whoever reads it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn node_types(&self) -> Result<Arc<NodeTypes>> {
        Ok(self.0.rules(None)?.types)
    }

    /// Returns the namespaces that this state knows, whoever reads it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn namespaces(&self) -> Result<Arc<Namespaces>> {
        Ok(self.0.rules(None)?.namespaces)
    }
}

impl Session {
    /// Registers the node types and namespaces of a CND text; types that exist are changed.
    ///
    /// Whether the content obeys them is found out when the session commits.
    ///
    /// # Errors
    /// [`Error::NodeTypes`] with everything that is wrong with the text; [`Error::Namespace`].
    pub fn register_types(&mut self, cnd: &str) -> Result<()> {
        let cnd = parse_cnd(cnd);
        if !cnd.diagnostics.is_empty() {
            return Err(Error::NodeTypes(cnd.diagnostics));
        }
        for (prefix, uri) in &cnd.namespaces {
            self.register_namespace(prefix, uri)?;
        }
        self.define_types(&cnd.types)
    }

    /// Registers definitions; types that exist are changed.
    ///
    /// # Errors
    /// [`Error::NodeTypes`] with everything that is wrong with them.
    pub fn define_types(&mut self, definitions: &[TypeDefinition]) -> Result<()> {
        let types = self.snapshot()?.node_types()?;
        let changed = types.with(definitions).map_err(Error::NodeTypes)?;
        self.put_types(&types, &changed)
    }

    /// Removes node types. Those of the standard set go back to what they are there.
    ///
    /// Whether nodes are of these types is found out when the session commits.
    ///
    /// # Errors
    /// [`Error::NodeTypes`] if other types need one of them.
    pub fn remove_types(&mut self, names: &[&str]) -> Result<()> {
        let types = self.snapshot()?.node_types()?;
        let changed = types.without(names).map_err(Error::NodeTypes)?;
        self.put_types(&types, &changed)
    }

    /// Registers the namespace that a prefix stands for, from now on.
    ///
    /// # Errors
    /// [`Error::Namespace`] if the prefix stands for another one, or the namespace has another prefix.
    pub fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let is_new = self.snapshot()?.namespaces()?.check(prefix, uri).map_err(|reason| {
            Error::Namespace { prefix: prefix.to_owned(), uri: uri.to_owned(), reason }
        })?;
        if is_new { self.put_namespace(prefix, uri) } else { Ok(()) }
    }

    /// Registers the node types that a package brings: those of the standard set stay as they are, as packages carry
    /// copies of many ages of them.
    pub(crate) fn install_types(&mut self, cnd: &str) -> Result<()> {
        let cnd = parse_cnd(cnd);
        if !cnd.diagnostics.is_empty() {
            return Err(Error::NodeTypes(cnd.diagnostics));
        }
        for (prefix, uri) in &cnd.namespaces {
            self.install_namespace(prefix, uri)?;
        }
        let standard = NodeTypes::standard();
        let mut definitions = cnd.types;
        definitions.retain(|definition| standard.find(&definition.name).is_none());
        self.define_types(&definitions)
    }

    /// Registers a prefix that names in a package have. One whose namespace has another prefix comes beside
    /// that, as names keep the prefix that they come with.
    ///
    /// # Errors
    /// [`Error::Namespace`] if the prefix stands for another namespace.
    pub(crate) fn install_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        match self.snapshot()?.namespaces()?.uri(prefix) {
            Some(_) => self.register_namespace(prefix, uri),
            None => self.put_namespace(prefix, uri),
        }
    }

    fn put_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let path = NodePath::new(NAMESPACES)?;
        self.begin_system()?;
        if self.node(&path)?.is_none() {
            self.add_node(&path, "rep:Unstructured")?;
        }
        self.set_property(&path, prefix, Property::text(uri))
    }

    fn put_types(&mut self, old: &NodeTypes, new: &NodeTypes) -> Result<()> {
        if old.own().eq(new.own()) {
            return Ok(());
        }
        self.begin_system()?;
        self.put(&NodePath::new(TYPES)?, types_node(new))
    }

    fn begin_system(&mut self) -> Result<()> {
        let path = NodePath::new(SYSTEM)?;
        match self.node(&path)? {
            Some(_) => Ok(()),
            None => self.add_node(&path, "rep:system"),
        }
    }
}
