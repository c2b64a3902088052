//! What the package tests share: a target in memory, and where the fixtures are.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Write};

use tympan_content::{BlobId, NodePath, Subtree, SubtreeBudget};
use tympan_content_package::build::ExportSource;
use tympan_content_package::{
    ContentPackage, Error, ExistingNode, InstallReport, InstallTarget, PackageLimits, Result,
};

/// Content in memory; all edits go through the four methods that a target must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) root: Subtree,
    pub(crate) blobs: BTreeMap<String, Vec<u8>>,
    /// Calls that changed something, in order.
    pub(crate) edits: Vec<String>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self { root: Subtree::new("", "rep:root"), blobs: BTreeMap::new(), edits: Vec::new() }
    }

    pub(crate) fn with(root: Subtree) -> Self {
        Self { root, ..Self::new() }
    }

    pub(crate) fn find(&self, path: &str) -> Option<&Subtree> {
        self.root.find_descendant(path)
    }
}

impl InstallTarget for Memory {
    fn read_subtree(&mut self, path: &NodePath) -> Result<Option<Subtree>> {
        Ok(self.root.find_descendant(path.as_str()).cloned())
    }

    fn put(&mut self, path: &NodePath, mut subtree: Subtree) -> Result<()> {
        subtree.name = path.name().to_owned();
        subtree.check_names()?;
        self.edits.push(format!("put {path}"));
        let Some(parent) = path.parent() else {
            self.root = subtree;
            return Ok(());
        };
        let parent = self.root.find_descendant_mut(parent.as_str()).expect("the parent exists");
        parent.put_child(subtree);
        Ok(())
    }

    fn remove(&mut self, path: &NodePath) -> Result<()> {
        self.edits.push(format!("remove {path}"));
        let parent = path.parent().expect("the root stays");
        let parent = self.root.find_descendant_mut(parent.as_str()).expect("the parent exists");
        parent.remove_child(path.name()).expect("the node exists");
        Ok(())
    }

    fn put_blob(&mut self, source: &mut dyn Read) -> Result<BlobId> {
        let mut bytes = Vec::new();
        source
            .read_to_end(&mut bytes)
            .map_err(|source| Error::Read { input_name: "a blob".into(), source })?;
        let id = BlobId::hash_of(&bytes);
        self.blobs.insert(id.to_string(), bytes);
        Ok(id)
    }
}

impl ExportSource for Memory {
    fn read_subtree(&self, path: &NodePath, budget: &mut SubtreeBudget) -> Result<Option<Subtree>> {
        let subtree = self.root.find_descendant(path.as_str());
        Ok(subtree.filter(|subtree| budget.take(subtree.node_count(), 0)).cloned())
    }

    fn read_node(&self, path: &NodePath) -> Result<Option<ExistingNode>> {
        Ok(self.root.find_descendant(path.as_str()).map(|node| ExistingNode {
            properties: node.properties.clone(),
            children: node.children.iter().map(|child| child.name.clone()).collect(),
        }))
    }

    fn open_blob(&self, blob: &BlobId) -> Result<Box<dyn Read>> {
        Ok(Box::new(Cursor::new(self.blobs[&blob.to_string()].clone())))
    }
}

pub(crate) type FilePackage = ContentPackage<BufReader<File>>;
pub(crate) type BytePackage = ContentPackage<Cursor<Vec<u8>>>;

/// Installs a package and tells nobody about the progress.
pub(crate) fn install<R: Read + std::io::Seek>(
    package: &mut ContentPackage<R>,
    target: &mut Memory,
) -> Result<InstallReport> {
    package.install(target, &mut |_| {})
}

/// Makes a ZIP file of names and contents; a name that ends in `/` is a folder.
pub(crate) fn zipped(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, text) in entries {
        if name.ends_with('/') {
            zip.add_directory(*name, options).unwrap();
        } else {
            zip.start_file(*name, options).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
    }
    zip.finish().unwrap().into_inner()
}

/// Reads a package made of these entries.
pub(crate) fn package(entries: &[(&str, &str)]) -> Result<BytePackage> {
    ContentPackage::read(Cursor::new(zipped(entries)), "test.zip", &PackageLimits::default())
}
