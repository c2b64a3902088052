//! Builds a package: content as a ZIP file.
//!
//! In: a filter, and the content that it selects. Out: a package that installs as the same content.
//!
//! Each folder, page and asset has a folder with a `.content.xml`. A file is a file with a `.content.xml` in a folder
//! `name.dir` beside it. Everything else is part of the document of the nearest of these above it.
//!
//! Invariant: the same content gives the same bytes. Entries are sorted by name and dated 1980-01-01.
//!
//! Not here: reading packages.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{Read, Seek, Write};

use serde::Serialize;
use tympan_content::{
    BlobId, JCR_CONTENT, NodePath, PRIMARY_TYPE, Property, Snapshot, Subtree, SubtreeBudget, Value,
    is_policy_name, node_type::NodeTypeDefinition, node_type::write_cnd,
};
use zip::ZipWriter;
use zip::result::ZipError;
use zip::write::SimpleFileOptions;

use crate::archive::PackageLimits;
use crate::content_package::{DATA_PROPERTY, RESOURCE_NODE_TYPES};
use crate::docview::{ChildPlacement, DocviewNamespaces, write_docview_split};
use crate::entry_role;
use crate::filter::{FilterCoverage, PackageFilter};
use crate::install_target::ExistingNode;
use crate::package_id::PackageId;
use crate::package_properties;
use crate::{Error, Result};

/// The source of the content for a package.
pub trait ExportSource {
    /// Returns a node with everything below it, and takes it from the budget; `None` if the node does not exist or the
    /// budget is exceeded.
    ///
    /// # Errors
    /// If the source cannot be read.
    fn read_subtree(&self, path: &NodePath, budget: &mut SubtreeBudget) -> Result<Option<Subtree>>;

    /// Returns a node without its descendants; `None` if it does not exist.
    ///
    /// # Errors
    /// If the source cannot be read.
    fn read_node(&self, path: &NodePath) -> Result<Option<ExistingNode>>;

    /// Opens the bytes of a blob.
    ///
    /// # Errors
    /// If the blob is missing or cannot be read.
    fn open_blob(&self, blob: &BlobId) -> Result<Box<dyn Read>>;
}

/// The metadata of a new package.
#[derive(Debug, Clone, Default)]
pub struct PackageManifest {
    /// Its name.
    pub id: PackageId,
    /// The content of the package, and the import mode on installation.
    pub filter: PackageFilter,
    /// The namespaces of prefixes in the content.
    pub namespaces: DocviewNamespaces,
    /// Further entries of its `properties.xml`, such as `acHandling`.
    pub properties: BTreeMap<String, String>,
    /// The node type definitions in the package, in CND notation; empty for none.
    pub node_types: String,
}

impl PackageManifest {
    /// Creates the metadata of a package with this content: the registered namespaces, and the node types beyond the
    /// standard set.
    ///
    /// # Errors
    /// If the store fails.
    pub fn from_snapshot(
        snapshot: &Snapshot,
        id: PackageId,
        filter: PackageFilter,
    ) -> Result<Self> {
        let registry = snapshot.namespaces()?;
        let registry_entries: BTreeMap<String, String> =
            registry.iter().map(|(prefix, uri)| (prefix.to_owned(), uri.to_owned())).collect();
        let mut namespaces = DocviewNamespaces::default();
        namespaces.extend(registry_entries.clone());
        let types = snapshot.node_types()?;
        let own: Vec<NodeTypeDefinition> = types.custom_definitions().cloned().collect();
        let node_types =
            if own.is_empty() { String::new() } else { write_cnd(&own, &registry_entries) };
        Ok(Self { id, filter, namespaces, node_types, ..Self::default() })
    }
}

/// The counts of a written package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PackageBuildReport {
    /// Number of nodes that the filter contains, and of their ancestors.
    pub nodes: usize,
    /// Number of entries of the ZIP file.
    pub entries: usize,
    /// Number of entries that hold the bytes of blobs.
    pub blobs: usize,
}

impl fmt::Display for PackageBuildReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} nodes in {} entries, {} blobs", self.nodes, self.entries, self.blobs)
    }
}

/// Writes a package within limits to `out`.
///
/// # Errors
/// Errors of the source; [`Error::InvalidPackage`] for a name that no package can contain, and if the filter selects more
/// than the limits allow; [`Error::Read`] if `out` fails.
pub fn write_package<W: Write + Seek>(
    out: W,
    manifest: &PackageManifest,
    source: &dyn ExportSource,
    limits: &PackageLimits,
) -> Result<PackageBuildReport> {
    let root = build_filtered_tree(manifest, source, limits)?;
    let mut plan = PackageBuildPlan::default();
    plan.add_folder_node(&root, &NodePath::root())?;
    plan.add_text("META-INF/MANIFEST.MF", render_manifest(manifest));
    plan.add_text("META-INF/vault/properties.xml", render_properties(manifest, &root));
    plan.add_text("META-INF/vault/filter.xml", manifest.filter.to_xml());
    if !manifest.node_types.is_empty() {
        plan.add_text("META-INF/vault/nodetypes.cnd", manifest.node_types.clone());
    }
    plan.check_limits(manifest, limits)?;
    plan.entries.sort_by(|left, right| left.0.cmp(&right.0));
    let report = PackageBuildReport {
        nodes: root.node_count(),
        entries: plan.entries.len(),
        blobs: plan
            .entries
            .iter()
            .filter(|(_, entry_payload)| matches!(entry_payload, PackageEntryPayload::Blob(_)))
            .count(),
    };
    let mut zip = ZipWriter::new(out).set_auto_large_file();
    let options = SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
    for (name, payload) in plan.entries {
        zip.start_file(name.as_str(), options).map_err(|error| entry_write_error(&name, error))?;
        let written = payload.write_entry(&mut zip, manifest, source)?;
        written.map_err(|error| entry_write_error(&name, error.into()))?;
    }
    zip.finish().map_err(|error| entry_write_error("the package", error))?;
    Ok(report)
}

fn entry_write_error(name: &str, error: ZipError) -> Error {
    let source = match error {
        ZipError::Io(source) => source,
        source_error => std::io::Error::other(source_error),
    };
    Error::Read { input_name: format!("or write `{name}`"), source }
}

/// The error for a filter that selects more than a limit.
fn too_large_error(manifest: &PackageManifest, limit: &str) -> Error {
    Error::InvalidPackage {
        file: manifest.id.to_string(),
        line: 0,
        message: format!(
            "the filter selects more than {limit}, too much for one package; build several packages"
        ),
    }
}

/// Returns the tree of the nodes that the filter contains, with their ancestors.
fn build_filtered_tree(
    manifest: &PackageManifest,
    source: &dyn ExportSource,
    limits: &PackageLimits,
) -> Result<Subtree> {
    let filter = &manifest.filter;
    let mut budget = SubtreeBudget::new(limits.max_nodes, limits.max_all_documents_bytes);
    let mut root = read_childless(source, &NodePath::root())?.unwrap_or_default();
    // Roots of the kind `cleanup` only name content to remove on installation.
    let brought = filter.roots().iter().filter(|set| !set.is_cleanup);
    let mut paths: Vec<&NodePath> = brought.map(|set| &set.root).collect();
    // Outer roots first: they include the roots inside them.
    paths.sort_by_key(|path| path.depth());
    for path in paths {
        if root.find_descendant(path.as_str()).is_some_and(|_| !path.is_root()) {
            continue;
        }
        let subtree = source.read_subtree(path, &mut budget)?;
        if budget.is_exceeded() {
            let (nodes, bytes) = (limits.max_nodes, limits.max_all_documents_bytes);
            let limit = format!("{nodes} nodes, or {bytes} bytes of properties");
            return Err(too_large_error(manifest, &limit));
        }
        let Some(subtree) = subtree else {
            continue;
        };
        let Some(subtree) = prune_by_filter(filter, subtree, path) else {
            continue;
        };
        let Some(parent) = path.parent() else {
            root = subtree;
            continue;
        };
        let names: Vec<&str> = parent.names().collect();
        add_subtree_at(&mut root, &NodePath::root(), &names, subtree, source)?;
    }
    restore_child_order(&mut root, &NodePath::root(), filter, source)?;
    Ok(root)
}

/// Adds `subtree` below the node at `names`, after adding its missing ancestors.
fn add_subtree_at(
    node: &mut Subtree,
    path: &NodePath,
    names: &[&str],
    subtree: Subtree,
    source: &dyn ExportSource,
) -> Result<()> {
    let Some((name, rest)) = names.split_first() else {
        node.put_child(subtree);
        return Ok(());
    };
    let path = path.child_unchecked(name);
    if node.child(name).is_none() {
        node.put_child(
            read_childless(source, &path)?.unwrap_or_else(|| Subtree::new(*name, "nt:folder")),
        );
    }
    node.child_mut(name).map_or(Ok(()), |child| add_subtree_at(child, &path, rest, subtree, source))
}

/// Sorts the children of nodes above the roots of the filter in the order of the source.
fn restore_child_order(
    node: &mut Subtree,
    path: &NodePath,
    filter: &PackageFilter,
    source: &dyn ExportSource,
) -> Result<()> {
    if !filter.is_above_roots(path) {
        return Ok(());
    }
    let names = source.read_node(path)?.map(|node| node.children).unwrap_or_default();
    let positions: HashMap<&str, usize> =
        names.iter().enumerate().map(|(position, name)| (name.as_str(), position)).collect();
    node.children.sort_by_key(|child| positions.get(child.name.as_str()).copied());
    node.children.iter_mut().try_for_each(|child| {
        let path = path.child_unchecked(&child.name);
        restore_child_order(child, &path, filter, source)
    })
}

/// Returns a node without children.
fn read_childless(source: &dyn ExportSource, path: &NodePath) -> Result<Option<Subtree>> {
    Ok(source.read_node(path)?.map(|node| Subtree {
        name: path.name().to_owned(),
        properties: node.properties,
        ..Subtree::default()
    }))
}

/// Removes the nodes and properties that the filter excludes.
fn prune_by_filter(filter: &PackageFilter, mut node: Subtree, path: &NodePath) -> Option<Subtree> {
    let children = std::mem::take(&mut node.children);
    node.children = children
        .into_iter()
        .filter_map(|child| {
            let path = path.child_unchecked(&child.name);
            prune_by_filter(filter, child, &path)
        })
        .collect();
    let is_contained = matches!(filter.coverage(path), FilterCoverage::Contained(_));
    if is_contained {
        let is_admitted =
            |name: &String| name == PRIMARY_TYPE || filter.includes_property(path, name);
        node.properties.retain(|name, _| is_admitted(name));
    }
    (is_contained || !node.children.is_empty()).then_some(node)
}

enum PackageEntryPayload<'a> {
    Text(String),
    /// The document of a node that has a folder.
    Document(&'a Subtree),
    /// The document of a file, beside the file's bytes.
    FileDocument(&'a Subtree),
    Blob(BlobId),
}

impl PackageEntryPayload<'_> {
    fn write_entry(
        &self,
        out: &mut dyn Write,
        manifest: &PackageManifest,
        source: &dyn ExportSource,
    ) -> Result<std::io::Result<()>> {
        Ok(match self {
            Self::Text(text) => out.write_all(text.as_bytes()),
            Self::Document(node) => {
                let text =
                    write_docview_split(node, &manifest.namespaces, &mut |relative, child| {
                        let is_direct = !relative.contains('/');
                        match node_form(child) {
                            PackageNodeForm::File(_) => ChildPlacement::OrderOnly,
                            PackageNodeForm::Folder if is_direct => ChildPlacement::OrderOnly,
                            PackageNodeForm::Folder | PackageNodeForm::Inline => {
                                ChildPlacement::Inline
                            }
                        }
                    });
                out.write_all(text.as_bytes())
            }
            Self::FileDocument(node) => {
                let mut node = Subtree::clone(node);
                if let Some(content) = node.child_mut(JCR_CONTENT) {
                    content.properties.remove(DATA_PROPERTY);
                }
                let text =
                    write_docview_split(
                        &node,
                        &manifest.namespaces,
                        &mut |_, child| match node_form(child) {
                            PackageNodeForm::File(_) => ChildPlacement::OrderOnly,
                            PackageNodeForm::Folder | PackageNodeForm::Inline => {
                                ChildPlacement::Inline
                            }
                        },
                    );
                out.write_all(text.as_bytes())
            }
            Self::Blob(blob) => std::io::copy(&mut source.open_blob(blob)?, out).map(|_| ()),
        })
    }
}

#[derive(Default)]
struct PackageBuildPlan<'a> {
    entries: Vec<(String, PackageEntryPayload<'a>)>,
}

impl<'a> PackageBuildPlan<'a> {
    fn check_limits(&self, manifest: &PackageManifest, limits: &PackageLimits) -> Result<()> {
        let file_bytes = self.entries.iter().map(|(_, payload)| match payload {
            PackageEntryPayload::Blob(blob) => blob.length(),
            _ => 0,
        });
        if file_bytes.fold(0, u64::saturating_add) > limits.max_total_bytes {
            let limit = format!("{} bytes of files", limits.max_total_bytes);
            return Err(too_large_error(manifest, &limit));
        }
        if self.entries.len() > limits.max_entries {
            let limit = format!("{} files and folders", limits.max_entries);
            return Err(too_large_error(manifest, &limit));
        }
        Ok(())
    }

    fn add_text(&mut self, name: &str, text: String) {
        self.entries.push((name.to_owned(), PackageEntryPayload::Text(text)));
    }

    /// Adds a node that has a folder, and its descendants.
    fn add_folder_node(&mut self, node: &'a Subtree, path: &NodePath) -> Result<()> {
        let folder = packable_folder_name(path)?;
        self.entries.push((format!("{folder}/.content.xml"), PackageEntryPayload::Document(node)));
        self.add_all_binaries(node, path)?;
        for child in &node.children {
            let path = path.child_unchecked(&child.name);
            match node_form(child) {
                PackageNodeForm::Folder => self.add_folder_node(child, &path)?,
                PackageNodeForm::File(_) | PackageNodeForm::Inline => {
                    self.add_inline_children(child, &path)?
                }
            }
        }
        Ok(())
    }

    /// Adds the descendants that cannot be part of the node's document.
    fn add_inline_children(&mut self, node: &'a Subtree, path: &NodePath) -> Result<()> {
        if let PackageNodeForm::File(blob) = node_form(node) {
            return self.add_file_node(node, path, blob);
        }
        self.add_all_binaries(node, path)?;
        node.children.iter().try_for_each(|child| {
            self.add_inline_children(child, &path.child_unchecked(&child.name))
        })
    }

    fn add_file_node(&mut self, node: &'a Subtree, path: &NodePath, blob: BlobId) -> Result<()> {
        let name = packable_folder_name(path)?;
        self.entries
            .push((format!("{name}.dir/.content.xml"), PackageEntryPayload::FileDocument(node)));
        self.entries.push((name, PackageEntryPayload::Blob(blob)));
        self.add_all_binaries(node, path)?;
        for child in &node.children {
            let path = path.child_unchecked(&child.name);
            if child.name != JCR_CONTENT {
                self.add_inline_children(child, &path)?;
                continue;
            }
            for (name, property) in
                child.properties.iter().filter(|(name, _)| *name != DATA_PROPERTY)
            {
                self.add_binary(&path, name, property)?;
            }
            for below in &child.children {
                self.add_inline_children(below, &path.child_unchecked(&below.name))?;
            }
        }
        Ok(())
    }

    fn add_all_binaries(&mut self, node: &Subtree, path: &NodePath) -> Result<()> {
        node.properties
            .iter()
            .try_for_each(|(name, property)| self.add_binary(path, name, property))
    }

    fn add_binary(&mut self, path: &NodePath, name: &str, property: &Property) -> Result<()> {
        for (position, value) in property.values().iter().enumerate() {
            let Value::Binary(blob) = value else {
                return Ok(());
            };
            let index = if property.is_list() { format!("[{position}]") } else { String::new() };
            let entry = format!(
                "{}/{}{index}.binary",
                packable_folder_name(path)?,
                entry_role::encode_file_name(name)
            );
            self.entries.push((entry, PackageEntryPayload::Blob(*blob)));
        }
        Ok(())
    }
}

/// Returns the folder name for a path; fails unless decoding it yields the path again.
fn packable_folder_name(path: &NodePath) -> Result<String> {
    if path.names().all(entry_role::is_packable_name) {
        return Ok(entry_role::folder_entry_name(path));
    }
    Err(Error::InvalidPackage {
        file: path.to_string(),
        line: 0,
        message: "the name of this node or of an ancestor cannot be used in a package; rename it"
            .into(),
    })
}

/// The form of a node in a package.
enum PackageNodeForm {
    /// A folder with a document of its own.
    Folder,
    /// A file with these bytes.
    File(BlobId),
    /// Part of the document of an ancestor.
    Inline,
}

const FOLDER_NODE_TYPES: [&str; 6] = [
    "nt:folder",
    "sling:Folder",
    "sling:OrderedFolder",
    "cq:Page",
    "dam:Asset",
    "rep:AuthorizableFolder",
];

fn node_form(node: &Subtree) -> PackageNodeForm {
    if let Some(blob) = plain_file_blob(node) {
        return PackageNodeForm::File(blob);
    }
    if FOLDER_NODE_TYPES.contains(&node.primary_type()) && entry_role::is_packable_name(&node.name)
    {
        PackageNodeForm::Folder
    } else {
        PackageNodeForm::Inline
    }
}

/// Returns the bytes of a node that a plain file can represent. Reading a package adds a media type and a date to files
/// that have none, so a node without them needs another form to be restored unchanged.
fn plain_file_blob(node: &Subtree) -> Option<BlobId> {
    let content = node.child(JCR_CONTENT)?;
    let is_file = node.primary_type() == "nt:file"
        && RESOURCE_NODE_TYPES.contains(&content.primary_type())
        && content.properties.contains_key("jcr:mimeType")
        && content.properties.contains_key("jcr:lastModified")
        && entry_role::is_plain_file_name(&node.name);
    match content.properties.get(DATA_PROPERTY) {
        Some(Property::Single(Value::Binary(blob))) if is_file => Some(*blob),
        _ => None,
    }
}

fn render_manifest(manifest: &PackageManifest) -> String {
    let roots: Vec<&str> = manifest.filter.roots().iter().map(|set| set.root.as_str()).collect();
    let mut out = String::from("Manifest-Version: 1.0\r\n");
    push_manifest_header(&mut out, "Content-Package-Id", &manifest.id.to_string());
    push_manifest_header(&mut out, "Content-Package-Roots", &roots.join(","));
    out
}

/// Writes a header; a line of a manifest holds at most 72 bytes, and continues after a space.
fn push_manifest_header(out: &mut String, name: &str, value: &str) {
    let line = format!("{name}: {value}");
    let mut used = 0;
    for character in line.chars() {
        if used + character.len_utf8() > 70 {
            out.push_str("\r\n ");
            used = 1;
        }
        out.push(character);
        used += character.len_utf8();
    }
    out.push_str("\r\n");
}

fn render_properties(manifest: &PackageManifest, root: &Subtree) -> String {
    let mut entries = manifest.properties.clone();
    if contains_policy(root) {
        // Without it, an installer would leave the policies out.
        entries.entry("acHandling".to_owned()).or_insert_with(|| "merge_preserve".to_owned());
    }
    for (key, value) in [
        ("group", &manifest.id.group),
        ("name", &manifest.id.name),
        ("version", &manifest.id.version),
    ] {
        entries.insert(key.to_owned(), value.clone());
    }
    entries.insert("packageFormatVersion".to_owned(), "2".to_owned());
    package_properties::properties_to_xml(&entries)
}

/// Returns true if a tree contains access control content.
fn contains_policy(node: &Subtree) -> bool {
    node.children.iter().any(|child| is_policy_name(&child.name) || contains_policy(child))
}
