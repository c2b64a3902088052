//! Registering node types and namespaces in a session: they are content, and count from its commit on.

use std::sync::Arc;

use super::cnd_parser::parse_cnd;
use super::namespace::NamespaceRegistry;
use super::stored_type::{NAMESPACES_PATH, NODE_TYPES_PATH, SYSTEM_PATH, types_node};
use super::type_definition::NodeTypeDefinition;
use super::type_registry::NodeTypes;
use crate::{Error, NodePath, Property, Result, Session, Snapshot};

impl Snapshot {
    /// Returns the node types that this state knows, whoever reads it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn node_types(&self) -> Result<Arc<NodeTypes>> {
        Ok(self.0.node_type_rules(None)?.node_types)
    }

    /// Returns the namespaces that this state knows, whoever reads it.
    ///
    /// # Errors
    /// If the store fails.
    pub fn namespaces(&self) -> Result<Arc<NamespaceRegistry>> {
        Ok(self.0.node_type_rules(None)?.namespaces)
    }
}

impl Session {
    /// Registers the node types and namespaces of a CND text; types that exist are changed.
    ///
    /// Whether the content obeys them is found out when the session commits.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`] with everything that is wrong with the text; [`Error::InvalidNamespace`].
    pub fn register_types(&mut self, cnd: &str) -> Result<()> {
        let cnd = parse_cnd(cnd);
        if !cnd.diagnostics.is_empty() {
            return Err(Error::InvalidNodeTypes(cnd.diagnostics));
        }
        for (prefix, uri) in &cnd.namespaces {
            self.register_namespace(prefix, uri)?;
        }
        self.define_types(&cnd.types)
    }

    /// Registers definitions; types that exist are changed.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`] with everything that is wrong with them.
    pub fn define_types(&mut self, definitions: &[NodeTypeDefinition]) -> Result<()> {
        let types = self.snapshot()?.node_types()?;
        let changed = types.with_definitions(definitions).map_err(Error::InvalidNodeTypes)?;
        self.store_types(&types, &changed)
    }

    /// Removes node types. Those of the standard set go back to what they are there.
    ///
    /// Whether nodes are of these types is found out when the session commits.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`] if other types need one of them.
    pub fn remove_types(&mut self, names: &[&str]) -> Result<()> {
        let types = self.snapshot()?.node_types()?;
        let changed = types.without_types(names).map_err(Error::InvalidNodeTypes)?;
        self.store_types(&types, &changed)
    }

    /// Registers the namespace that a prefix stands for, from now on.
    ///
    /// # Errors
    /// [`Error::InvalidNamespace`] if the prefix stands for another one, or the namespace has another prefix.
    pub fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let is_new =
            self.snapshot()?.namespaces()?.check_mapping(prefix, uri).map_err(|reason| {
                Error::InvalidNamespace { prefix: prefix.to_owned(), uri: uri.to_owned(), reason }
            })?;
        if is_new { self.store_namespace(prefix, uri) } else { Ok(()) }
    }

    /// Registers the node types that a package brings: those of the standard set stay as they are, as packages carry
    /// copies of many ages of them.
    pub(crate) fn install_types(&mut self, cnd: &str) -> Result<()> {
        let cnd = parse_cnd(cnd);
        if !cnd.diagnostics.is_empty() {
            return Err(Error::InvalidNodeTypes(cnd.diagnostics));
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
    /// [`Error::InvalidNamespace`] if the prefix stands for another namespace.
    pub(crate) fn install_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        match self.snapshot()?.namespaces()?.uri(prefix) {
            Some(_) => self.register_namespace(prefix, uri),
            None => self.store_namespace(prefix, uri),
        }
    }

    fn store_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let path = NodePath::new(NAMESPACES_PATH)?;
        self.ensure_system_node()?;
        if self.node(&path)?.is_none() {
            self.add_node(&path, "rep:Unstructured")?;
        }
        self.set_property(&path, prefix, Property::text(uri))
    }

    fn store_types(&mut self, old: &NodeTypes, new: &NodeTypes) -> Result<()> {
        if old.custom_definitions().eq(new.custom_definitions()) {
            return Ok(());
        }
        self.ensure_system_node()?;
        self.put_node(&NodePath::new(NODE_TYPES_PATH)?, types_node(new))
    }

    fn ensure_system_node(&mut self) -> Result<()> {
        let path = NodePath::new(SYSTEM_PATH)?;
        match self.node(&path)? {
            Some(_) => Ok(()),
            None => self.add_node(&path, "rep:system"),
        }
    }
}
