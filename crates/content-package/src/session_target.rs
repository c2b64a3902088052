//! Installation of packages into a session, and building packages from a snapshot.

use std::collections::BTreeMap;
use std::io::Read;

use tympan_content::{
    BlobId, LookupIndex, Node, NodePath, Property, Session, Snapshot, Subtree, SubtreeBudget,
};

use crate::Result;
use crate::account::ACCOUNT_NODE_TYPES;
use crate::build::ExportSource;
use crate::install_target::{ExistingNode, InstallTarget};

impl InstallTarget for Session {
    fn read_subtree(&mut self, path: &NodePath) -> Result<Option<Subtree>> {
        Ok(self.snapshot()?.read_subtree(path)?)
    }

    fn put(&mut self, path: &NodePath, subtree: Subtree) -> Result<()> {
        self.mark_as_installation();
        Ok(Self::put_node(self, path, subtree)?)
    }

    fn remove(&mut self, path: &NodePath) -> Result<()> {
        Ok(Self::remove_node(self, path)?)
    }

    fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        Ok(Self::put_blob(self, source)?)
    }

    fn read_node(&mut self, path: &NodePath) -> Result<Option<ExistingNode>> {
        let fields = self.read_node_fields(path)?;
        Ok(fields.map(|fields| ExistingNode {
            properties: fields.properties,
            children: fields.child_names,
        }))
    }

    fn register_node_types(&mut self, cnd: &str) -> Result<()> {
        Ok(self.types().install_types(cnd)?)
    }

    fn has_node_type(&mut self, name: &str) -> Result<bool> {
        Ok(self.snapshot()?.node_types()?.find(name).is_some())
    }

    fn register_namespace(&mut self, prefix: &str, uri: &str) -> Result<()> {
        Ok(self.types().install_namespace(prefix, uri)?)
    }

    fn find_by_identifier(&mut self, identifier: &str) -> Result<Vec<NodePath>> {
        Ok(self.snapshot()?.look_up_paths(LookupIndex::Uuid, identifier)?)
    }

    fn accounts(&mut self) -> Result<BTreeMap<String, NodePath>> {
        let snapshot = self.snapshot()?;
        let mut accounts = BTreeMap::new();
        for primary_type in ACCOUNT_NODE_TYPES {
            for path in snapshot.look_up_paths(LookupIndex::Type, primary_type)? {
                let id = snapshot.node(&path)?.map(|node| account_id_of(&node));
                accounts.extend(id.map(|id| (id, path)));
            }
        }
        Ok(accounts)
    }

    fn set_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        self.mark_as_installation();
        Ok(self.replace_properties(path, properties)?)
    }

    fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        Ok(Self::order_children(self, path, names)?)
    }
}

impl ExportSource for Snapshot {
    fn read_subtree(&self, path: &NodePath, budget: &mut SubtreeBudget) -> Result<Option<Subtree>> {
        let Some(node) = Self::node(self, path)? else { return Ok(None) };
        Ok(node.read_subtree_within(budget)?)
    }

    fn read_node(&self, path: &NodePath) -> Result<Option<ExistingNode>> {
        Self::node(self, path)?.map(|node| existing_node(&node)).transpose()
    }

    fn open_blob(&self, blob: &BlobId) -> Result<Box<dyn Read>> {
        Ok(Self::open_blob(self, blob)?.into_reader())
    }
}

/// Returns the id of a user or group, which identifies it at any path.
fn account_id_of(node: &Node) -> String {
    node.text("rep:authorizableId").unwrap_or_else(|| node.name().to_owned())
}

fn existing_node(node: &Node) -> Result<ExistingNode> {
    Ok(ExistingNode {
        properties: node.properties().into_iter().collect(),
        children: node.children()?.iter().map(|child| child.name().to_owned()).collect(),
    })
}
