//! The target of a package installation: the operations that an installation needs.

use std::collections::BTreeMap;
use std::io::Read;

use tympan_content::{BlobId, NodePath, Property, Subtree};

use crate::Result;

/// The target of a package installation.
///
/// Four methods are required. The others have default implementations that use these or do nothing; a target should
/// override them where it can do better.
pub trait InstallTarget {
    /// Returns a node with everything below it; `None` if it does not exist.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn read_subtree(&mut self, path: &NodePath) -> Result<Option<Subtree>>;

    /// Creates a node as the last child of its existing parent, or replaces one with everything below it.
    ///
    /// # Errors
    /// If the target refuses the node.
    fn put(&mut self, path: &NodePath, subtree: Subtree) -> Result<()>;

    /// Removes a node with everything below it.
    ///
    /// # Errors
    /// If the target refuses.
    fn remove(&mut self, path: &NodePath) -> Result<()>;

    /// Stores the bytes of `source` as a blob.
    ///
    /// # Errors
    /// If the source or the blob store fails.
    fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId>;

    /// Returns a node without its descendants; `None` if it does not exist.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn read_node(&mut self, path: &NodePath) -> Result<Option<ExistingNode>> {
        Ok(self.read_subtree(path)?.map(|subtree| ExistingNode {
            children: subtree.children.into_iter().map(|child| child.name).collect(),
            properties: subtree.properties,
        }))
    }

    /// Returns the paths of the nodes with an identifier (`jcr:uuid`). A target without this information returns none;
    /// one with pending edits may leave these out.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn find_by_identifier(&mut self, identifier: &str) -> Result<Vec<NodePath>> {
        let _ = identifier;
        Ok(Vec::new())
    }

    /// Returns the paths of users and groups, by their ids. A target without this information returns none.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn accounts(&mut self) -> Result<BTreeMap<String, NodePath>> {
        Ok(BTreeMap::new())
    }

    /// Registers the node types of a CND text that are not known yet. A target without node types ignores it.
    ///
    /// # Errors
    /// [`tympan_content::Error::InvalidNodeTypes`] if the text is invalid; errors of the target.
    fn register_node_types(&mut self, cnd: &str) -> Result<()> {
        let _ = cnd;
        Ok(())
    }

    /// Returns true if there is a node type of this name. A target without node types returns true for all.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn has_node_type(&mut self, name: &str) -> Result<bool> {
        let _ = name;
        Ok(true)
    }

    /// Registers a namespace prefix. A target without namespaces ignores it.
    ///
    /// # Errors
    /// [`tympan_content::Error::InvalidNamespace`] if the prefix or the namespace is already mapped differently; errors of
    /// the target.
    fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let _ = (prefix, uri);
        Ok(())
    }

    /// Replaces the properties of an existing node, and leaves its children unchanged.
    ///
    /// # Errors
    /// If the target refuses the properties.
    fn set_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        let Some(mut subtree) = self.read_subtree(path)? else {
            return Ok(());
        };
        subtree.properties = properties;
        self.put(path, subtree)
    }

    /// Sorts the children of a node in the order of `names`, which contains each of them once. Does nothing if the
    /// children are unordered.
    ///
    /// # Errors
    /// If the target refuses.
    fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        let Some(mut subtree) = self.read_subtree(path)? else {
            return Ok(());
        };
        let position = |child: &Subtree| names.iter().position(|name| *name == child.name);
        subtree.children.sort_by_key(position);
        self.put(path, subtree)
    }
}

/// A node of the target without its descendants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExistingNode {
    /// The properties by name.
    pub properties: BTreeMap<String, Property>,
    /// The names of the children, in order.
    pub children: Vec<String>,
}

/// The progress of an installation.
#[derive(Debug, Clone, Copy)]
pub struct InstallProgress<'a> {
    /// The node that was processed last.
    pub node_path: &'a NodePath,
    /// Number of processed nodes of the package.
    pub done_nodes: usize,
    /// Total number of nodes of the package.
    pub total_nodes: usize,
}
