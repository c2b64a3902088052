//! Installing packages into a session.

use std::collections::BTreeMap;
use std::io::Read;

use tympan_blobs::BlobId;

use crate::package::{ExistingNode, InstallTarget};
use crate::{NodePath, Property, Result, Session, Subtree};

impl InstallTarget for Session {
    fn read(&mut self, path: &NodePath) -> Result<Option<Subtree>> {
        self.snapshot()?.read(path)
    }

    fn put(&mut self, path: &NodePath, subtree: Subtree) -> Result<()> {
        Self::put(self, path, subtree)
    }

    fn remove(&mut self, path: &NodePath) -> Result<()> {
        Self::remove(self, path)
    }

    fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        Ok(self.repository().blobs().put(source)?)
    }

    fn node(&mut self, path: &NodePath) -> Result<Option<ExistingNode>> {
        let Some(node) = Self::node(self, path)? else {
            return Ok(None);
        };
        Ok(Some(ExistingNode {
            properties: node.properties().into_iter().collect(),
            children: node.children()?.iter().map(|child| child.name().to_owned()).collect(),
        }))
    }

    fn set_properties(
        &mut self,
        path: &NodePath,
        properties: BTreeMap<String, Property>,
    ) -> Result<()> {
        self.replace_properties(path, properties)
    }

    fn order_children(&mut self, path: &NodePath, names: &[String]) -> Result<()> {
        Self::order_children(self, path, names)
    }
}
