//! Registers node types and namespaces in a session. They are content, and take effect with its commit.

use std::sync::Arc;

use super::cnd_parser::parse_cnd;
use super::namespace::NamespaceRegistry;
use super::stored_type::{NAMESPACES_PATH, NODE_TYPES_PATH, SYSTEM_PATH, types_node};
use super::type_definition::NodeTypeDefinition;
use super::type_registry::NodeTypes;
use crate::{Error, NodePath, Property, Result, Session, Snapshot};

impl Snapshot {
    /// Returns the node types of this state, without access control.
    ///
    /// # Errors
    /// If the store fails.
    pub fn node_types(&self) -> Result<Arc<NodeTypes>> {
        Ok(self.view.node_type_rules(None)?.node_types)
    }

    /// Returns the namespaces of this state, without access control.
    ///
    /// # Errors
    /// If the store fails.
    pub fn namespaces(&self) -> Result<Arc<NamespaceRegistry>> {
        Ok(self.view.node_type_rules(None)?.namespaces)
    }
}

impl Session {
    /// Returns the editor of node types and namespaces.
    pub fn types(&mut self) -> NodeTypeEditor<'_> {
        NodeTypeEditor { session: self }
    }
}

/// Registers and removes node types and namespaces in a session.
#[derive(Debug)]
pub struct NodeTypeEditor<'a> {
    session: &'a mut Session,
}

impl NodeTypeEditor<'_> {
    /// Registers the node types and namespaces of a CND text; existing types are changed.
    ///
    /// The content is checked against them when the session commits.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`] with all faults of the text; [`Error::InvalidNamespace`].
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

    /// Registers definitions; existing types are changed.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`] with all faults of the definitions.
    pub fn define_types(&mut self, definitions: &[NodeTypeDefinition]) -> Result<()> {
        let types = self.session.snapshot()?.node_types()?;
        let changed = types.with_definitions(definitions).map_err(Error::InvalidNodeTypes)?;
        self.store_types(&types, &changed)
    }

    /// Removes node types. Those of the standard set are reset to their standard definition.
    ///
    /// The commit of the session checks whether nodes still have these types.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`] if other types depend on one of them.
    pub fn remove_types(&mut self, names: &[&str]) -> Result<()> {
        let types = self.session.snapshot()?.node_types()?;
        let changed = types.without_types(names).map_err(Error::InvalidNodeTypes)?;
        self.store_types(&types, &changed)
    }

    /// Registers a prefix for a namespace.
    ///
    /// # Errors
    /// [`Error::InvalidNamespace`] if the prefix stands for another one, or the namespace has another prefix.
    pub fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let is_new = self.session.snapshot()?.namespaces()?.check_mapping(prefix, uri).map_err(
            |reason| Error::InvalidNamespace {
                prefix: prefix.to_owned(),
                uri: uri.to_owned(),
                reason,
            },
        )?;
        if is_new { self.store_namespace(prefix, uri) } else { Ok(()) }
    }

    /// Registers the node types of a package. Types of the standard set are left unchanged, because packages contain
    /// copies of them of various ages.
    ///
    /// # Errors
    /// [`Error::InvalidNodeTypes`]; [`Error::InvalidNamespace`] for a prefix that stands for another namespace.
    pub fn install_types(&mut self, cnd: &str) -> Result<()> {
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

    /// Registers a prefix that names in a package use. If its namespace already has another prefix, both are
    /// registered, because names keep the prefix they were written with.
    ///
    /// # Errors
    /// [`Error::InvalidNamespace`] if the prefix stands for another namespace.
    pub fn install_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        match self.session.snapshot()?.namespaces()?.uri(prefix) {
            Some(_) => self.register_namespace(prefix, uri),
            None => self.store_namespace(prefix, uri),
        }
    }

    fn store_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let path = NodePath::new(NAMESPACES_PATH)?;
        self.ensure_system_node()?;
        if self.session.node(&path)?.is_none() {
            self.session.add_node(&path, "rep:Unstructured")?;
        }
        self.session.set_property(&path, prefix, Property::text(uri))
    }

    fn store_types(&mut self, old: &NodeTypes, new: &NodeTypes) -> Result<()> {
        if old.custom_definitions().eq(new.custom_definitions()) {
            return Ok(());
        }
        self.ensure_system_node()?;
        self.session.put_node(&NodePath::new(NODE_TYPES_PATH)?, types_node(new))
    }

    fn ensure_system_node(&mut self) -> Result<()> {
        let path = NodePath::new(SYSTEM_PATH)?;
        match self.session.node(&path)? {
            Some(_) => Ok(()),
            None => self.session.add_node(&path, "rep:system"),
        }
    }
}
