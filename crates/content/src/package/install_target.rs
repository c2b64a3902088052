//! What packages are installed into: the few operations that an installation needs.

use std::collections::BTreeMap;
use std::io::Read;

use crate::{BlobId, NodePath, Property, Result, Subtree};

/// What a package is installed into.
///
/// Four methods are enough; the others have bodies that use these or do without, and are to be replaced where the
/// target can do better.
pub trait InstallTarget {
    /// Returns a node with everything below it, or nothing if there is none.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn read_subtree(&mut self, path: &NodePath) -> Result<Option<Subtree>>;

    /// Creates a node as the last child of its parent, which exists, or replaces one with everything below it.
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

    /// Returns a node without what is below it, or nothing if there is none.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn read_node(&mut self, path: &NodePath) -> Result<Option<ExistingNode>> {
        Ok(self.read_subtree(path)?.map(|subtree| ExistingNode {
            children: subtree.children.into_iter().map(|child| child.name).collect(),
            properties: subtree.properties,
        }))
    }

    /// Returns the paths of the nodes with an identifier (`jcr:uuid`). A target that does not know gives none; one that
    /// has edits pending may leave these out.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn find_by_identifier(&mut self, identifier: &str) -> Result<Vec<NodePath>> {
        let _ = identifier;
        Ok(Vec::new())
    }

    /// Returns where users and groups are, by their ids. A target that does not know gives none.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn accounts(&mut self) -> Result<BTreeMap<String, NodePath>> {
        Ok(BTreeMap::new())
    }

    /// Makes the node types of a CND text known that are not known yet. A target without node types ignores it.
    ///
    /// # Errors
    /// [`crate::Error::InvalidNodeTypes`] if the text makes no sense; errors of the target.
    fn register_node_types(&mut self, cnd: &str) -> Result<()> {
        let _ = cnd;
        Ok(())
    }

    /// Tells whether there is a node type of this name. A target without node types knows all.
    ///
    /// # Errors
    /// If the target cannot be read.
    fn has_node_type(&mut self, name: &str) -> Result<bool> {
        let _ = name;
        Ok(true)
    }

    /// Makes the namespace that a prefix stands for known. A target without namespaces ignores it.
    ///
    /// # Errors
    /// [`crate::Error::InvalidNamespace`] if the two stand for others already; errors of the target.
    fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        let _ = (prefix, uri);
        Ok(())
    }

    /// Replaces the properties of a node that exists, and leaves its children.
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

    /// Brings the children of a node into the order of `names`, which names each of them once. Does nothing where
    /// children have no order.
    ///
    /// # Errors
    /// If the target refuses.
    fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        let Some(mut subtree) = self.read_subtree(path)? else {
            return Ok(());
        };
        let place = |child: &Subtree| names.iter().position(|name| *name == child.name);
        subtree.children.sort_by_key(place);
        self.put(path, subtree)
    }
}

/// A node of the target without what is below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExistingNode {
    /// The properties by name.
    pub properties: BTreeMap<String, Property>,
    /// The names of the children, in order.
    pub children: Vec<String>,
}

/// How far an installation is.
#[derive(Debug, Clone, Copy)]
pub struct InstallProgress<'a> {
    /// The node that was just treated.
    pub node_path: &'a NodePath,
    /// Nodes of the package that were treated.
    pub done_nodes: usize,
    /// Nodes of the package.
    pub total_nodes: usize,
}
