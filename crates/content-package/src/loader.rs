//! Reads a package: builds one tree from the entries of its ZIP file.
//!
//! In: an archive. Out: a [`ContentPackage`], completely checked.
//!
//! Documents are read first, those of parents before those of children, so that their order of children takes effect.
//! Folders, files and bytes of properties follow.
//!
//! On failure: all faults of its documents, each with file and line ([`crate::Error::PackageFaults`]); only the first
//! fault of a file that is not XML.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Cursor, Read, Seek};
use std::path::Path;

use tympan_content::{JCR_CONTENT, JcrDate, NodePath, PRIMARY_TYPE, Value, check_item_name};

use crate::archive::{PackageArchive, PackageFileName, PackageLimits};
use crate::content_package::{
    ContentPackage, DATA_PROPERTY, NestedPackage, RESOURCE_NODE_TYPES, is_nested_package,
};
use crate::dependency::PackageDependency;
use crate::docview::{self, PackageDocument, XmlSerialization, sysview};
use crate::entry_role::{self, PackageEntryRole};
use crate::filter::{self, FilterCoverage, PackageFilter};
use crate::import_node::{
    ImportNode, ImportNodeKind, ImportProperty, PackageLocation, SupersededElement,
};
use crate::install_report::SkippedPackageItem;
use crate::memory_usage::PackageMemoryUsage;
use crate::package_counts::{MAX_REPORTED_FAULTS, PackageCounts};
use crate::package_id::PackageId;
use crate::package_properties::{self, NestedPackageHandling, PackageProperties};
use crate::{Error, Result};

impl ContentPackage<BufReader<fs::File>> {
    /// Opens and reads a package file.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read; [`Error::InvalidPackage`] if it is not a valid package.
    pub fn open(path: &Path, limits: &PackageLimits) -> Result<Self> {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
        let file = fs::File::open(path).map_err(|source| Error::Read {
            input_name: format!("`{}`", path.display()),
            source,
        })?;
        Self::read(BufReader::new(file), &name, limits)
    }
}

impl<R: Read + Seek> ContentPackage<R> {
    /// Reads a package. `name` identifies the file in messages.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`] if it is not a valid package, with the position of the first fault.
    pub fn read(reader: R, name: &str, limits: &PackageLimits) -> Result<Self> {
        read_package(reader, PackageFileName::new(name), None, limits)
    }
}

impl PackageId {
    /// Reads the identifier of a package, and none of its content. `name` identifies the file in messages.
    ///
    /// # Errors
    /// [`Error::InvalidPackage`] if it is not a package, or its properties cannot be read.
    pub fn read(reader: impl Read + Seek, name: &str, limits: &PackageLimits) -> Result<Self> {
        let file = PackageFileName::new(name);
        let archive = PackageArchive::open(reader, file.clone(), None, limits)?;
        let mut loader = PackageLoader::new(archive, file, limits);
        loader.check_layout()?;
        Ok(loader.load_properties()?.0)
    }
}

/// Reads a package; `nested_in` is its own name if it is a file of another package.
fn read_package<R: Read + Seek>(
    reader: R,
    file: PackageFileName,
    nested_in: Option<&PackageFileName>,
    limits: &PackageLimits,
) -> Result<ContentPackage<R>> {
    let archive =
        PackageArchive::open(reader, file.clone(), nested_in.map(|_| file.clone()), limits)?;
    let mut loader = PackageLoader::new(archive, file, limits);
    loader.check_layout()?;
    let (id, properties) = loader.load_properties()?;
    let filter = loader.load_filter()?;
    loader.load_node_types()?;
    loader.load_content()?;
    loader.warn_about_ignored(&properties);
    let nested = loader.load_nested(&filter, &properties)?;
    let PackageLoader {
        archive,
        root,
        has_content,
        counts,
        namespaces,
        node_types,
        memory_usage,
        ..
    } = loader;
    let PackageLoader { superseded, junk_entries, warnings, .. } = loader;
    Ok(ContentPackage {
        archive,
        id,
        properties,
        filter,
        root,
        has_content,
        counts,
        namespaces,
        node_types,
        nested,
        memory_usage,
        superseded,
        junk_entries,
        warnings,
    })
}

/// The state of a package while it is read.
struct PackageLoader<'a, R> {
    archive: PackageArchive<R>,
    file_name: PackageFileName,
    limits: &'a PackageLimits,
    root: ImportNode,
    has_content: bool,
    counts: PackageCounts,
    memory_usage: PackageMemoryUsage,
    namespaces: BTreeMap<String, String>,
    node_types: Vec<(String, String)>,
    /// Files that are packages themselves, with their entry indexes.
    nested_packages: Vec<(NodePath, usize)>,
    superseded: Vec<SkippedPackageItem>,
    junk_entries: Vec<String>,
    warnings: Vec<String>,
}

const META_FOLDER: &str = "META-INF/vault/";
/// The root element of most documents, its attributes included, ends within this number of bytes.
const MAX_BEGINNING_BYTES: u64 = 64 << 10;

/// A document parser. Parameters: the file, its bytes, the number of names in its path, the limits.
type DocumentParser = fn(&PackageFileName, &[u8], usize, &PackageLimits) -> Result<PackageDocument>;

impl<'a, R: Read + Seek> PackageLoader<'a, R> {
    fn new(archive: PackageArchive<R>, file: PackageFileName, limits: &'a PackageLimits) -> Self {
        let source = PackageLocation::new(file.clone(), 0);
        Self {
            archive,
            file_name: file,
            limits,
            root: ImportNode::new(String::new(), ImportNodeKind::Folder, BTreeMap::new(), source),
            has_content: false,
            counts: PackageCounts::default(),
            memory_usage: PackageMemoryUsage::default(),
            namespaces: BTreeMap::new(),
            node_types: Vec::new(),
            nested_packages: Vec::new(),
            superseded: Vec::new(),
            junk_entries: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn check_layout(&mut self) -> Result<()> {
        let names = || self.archive.entries.iter().map(|entry| entry.name.as_str());
        self.has_content = names().any(|name| name == "jcr_root" || name.starts_with("jcr_root/"));
        if self.has_content || names().any(|name| name.starts_with(META_FOLDER)) {
            return Ok(());
        }
        let message = "is not a content package: it has neither `jcr_root` nor `META-INF/vault`";
        Err(self.file_name.to_error(0, message))
    }

    /// Reads a metadata file of the package, if it exists.
    fn read_metadata_file(&mut self, name: &str) -> Result<Option<(PackageFileName, Vec<u8>)>> {
        let Some(index) = self.archive.find_entry(name) else {
            return Ok(None);
        };
        let bytes = self.archive.read_entry(index, self.limits.max_document_bytes)?;
        Ok(Some((self.archive.entry_file_name(index), bytes)))
    }

    fn load_properties(&mut self) -> Result<(PackageId, PackageProperties)> {
        let mut properties = match self.read_metadata_file("META-INF/vault/properties.xml")? {
            Some((file, bytes)) => package_properties::parse_properties(&file, &bytes)?,
            None => PackageProperties::default(),
        };
        let manifest = self.read_metadata_file("META-INF/MANIFEST.MF")?;
        let header = |name: &str| {
            let (_, bytes) = manifest.as_ref()?;
            package_properties::read_manifest_header(bytes, name)
        };
        // `properties.xml` takes precedence over the manifest.
        if properties.get("dependencies").is_none()
            && let (Some(list), Some((file, _))) =
                (header("Content-Package-Dependencies"), &manifest)
        {
            properties.dependencies = PackageDependency::parse_list(&list)
                .map_err(|message| file.to_error(0, message))?;
        }
        let text = |key: &str| properties.get(key).unwrap_or_default().trim().to_owned();
        let id = PackageId { group: text("group"), name: text("name"), version: text("version") };
        if !id.name.is_empty() {
            let path = text("path");
            // Old packages have no group, but a path that contains it.
            let is_old = id.group.is_empty() && properties.get("group").is_none();
            let old = PackageId::from_path(&path, &id.version);
            return Ok((if is_old && old.name == id.name { old } else { id }, properties));
        }
        let id =
            header("Content-Package-Id").map(|id| PackageId::parse(&id)).unwrap_or_else(|| {
                let name = self.file_name.to_string();
                let base = name.rsplit('/').next().unwrap_or_default();
                PackageId {
                    name: base.strip_suffix(".zip").unwrap_or(base).to_owned(),
                    ..PackageId::default()
                }
            });
        Ok((id, properties))
    }

    fn load_filter(&mut self) -> Result<PackageFilter> {
        let filter = match self.read_metadata_file("META-INF/vault/filter.xml")? {
            Some((file, bytes)) => filter::parse_filter(&file, &bytes)?,
            None => PackageFilter::default(),
        };
        if filter.roots().is_empty() && self.has_content {
            self.warnings.push(
                "the package has no filter: missing nodes are created, existing ones are not changed".into(),
            );
        }
        Ok(filter)
    }

    fn load_node_types(&mut self) -> Result<()> {
        let is_definition = |name: &str| {
            name.ends_with(".cnd") && (name.starts_with(META_FOLDER) || is_application_cnd(name))
        };
        for index in 0..self.archive.entries.len() {
            let Some(entry) = self.archive.entries.get(index) else {
                break;
            };
            if !is_definition(&entry.name) {
                continue;
            }
            let name = entry.name.clone();
            let bytes = self.archive.read_entry(index, self.limits.max_document_bytes)?;
            let text = String::from_utf8(bytes).map_err(|_| {
                self.archive
                    .entry_file_name(index)
                    .to_error(0, "the file is not UTF-8; save it as UTF-8")
            })?;
            self.node_types.push((name, text));
        }
        Ok(())
    }

    /// Builds the tree: first the documents, parents before children so that their order takes effect, then the rest.
    fn load_content(&mut self) -> Result<()> {
        let mut documents = Vec::new();
        let mut others = Vec::new();
        for index in 0..self.archive.entries.len() {
            let Some(entry) = self.archive.entries.get(index) else {
                break;
            };
            let file = self.archive.entry_file_name(index);
            let role = entry_role::entry_role(&file, &entry.name, entry.is_directory)?;
            match role {
                PackageEntryRole::Metadata => {}
                PackageEntryRole::Junk => self.junk_entries.push(entry.name.clone()),
                PackageEntryRole::Docview(path) => documents.push((path, index, None)),
                PackageEntryRole::Xml { document_path, file_path: file } => {
                    documents.push((document_path, index, Some(file)))
                }
                PackageEntryRole::Folder(_)
                | PackageEntryRole::File(_)
                | PackageEntryRole::Binary { .. } => others.push((role, index)),
            }
        }
        documents.sort_by_key(|(path, index, _)| (path.depth(), *index));
        let mut faults = Vec::new();
        for (path, index, alternative) in documents {
            let (serialization, bytes) = self.read_xml_entry(index)?;
            let added = match (serialization, alternative) {
                (XmlSerialization::Other, Some(plain)) => {
                    others.push((PackageEntryRole::File(plain), index));
                    Ok(())
                }
                (XmlSerialization::Sysview, _) => {
                    self.add_document(&path, index, bytes, sysview::parse_sysview)
                }
                // A `.content.xml` that is neither is refused with its line.
                (_, _) => self.add_document(&path, index, bytes, docview::parse_docview),
            };
            collect_fault(added, &mut faults)?;
        }
        for (role, index) in others {
            collect_fault(self.add_entry(&role, index), &mut faults)?;
        }
        Error::from_package_faults(faults).map_or(Ok(()), Err)
    }

    /// Detects the kind of an XML file from its beginning, because other files may exceed the size limit of documents.
    /// Also returns the bytes if all of them were read.
    fn read_xml_entry(&mut self, index: usize) -> Result<(XmlSerialization, Option<Vec<u8>>)> {
        let file = self.archive.entry_file_name(index);
        let size = self.archive.entries.get(index).map_or(0, |entry| entry.size);
        if size <= MAX_BEGINNING_BYTES {
            let bytes = self.archive.read_entry(index, self.limits.max_document_bytes)?;
            return Ok((docview::detect_serialization(&file, &bytes), Some(bytes)));
        }
        let beginning = self.archive.read_entry_beginning(index, MAX_BEGINNING_BYTES)?;
        let serialization = docview::detect_serialization(&file, &beginning);
        if serialization != XmlSerialization::Other {
            return Ok((serialization, None));
        }
        // The attributes of the root element may be longer.
        let beginning = self.archive.read_entry_beginning(index, self.limits.max_document_bytes)?;
        Ok((docview::detect_serialization(&file, &beginning), None))
    }

    fn add_document(
        &mut self,
        path: &NodePath,
        index: usize,
        bytes: Option<Vec<u8>>,
        parse: DocumentParser,
    ) -> Result<()> {
        let file = &self.archive.entry_file_name(index);
        let size = self.archive.entries.get(index).map_or(0, |entry| entry.size);
        self.memory_usage.add_document(size, file, self.limits)?;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => self.archive.read_entry(index, self.limits.max_document_bytes)?,
        };
        let document =
            parse(file, &bytes, path.depth(), &self.memory_usage.remaining_limits(self.limits))?;
        self.memory_usage.add_counts(document.counts);
        self.counts.elements_with_order += document.counts.elements_with_order;
        self.counts.elements += document.counts.elements;
        self.counts.attributes += document.counts.attributes;
        self.counts.pages += document.counts.pages;
        self.counts.assets += document.counts.assets;
        for (prefix, uri) in document.namespaces {
            let declared_uri = self.namespaces.entry(prefix.clone()).or_insert_with(|| uri.clone());
            if *declared_uri != uri {
                self.warnings.push(format!(
                    "{file}: the prefix `{prefix}` is mapped to `{uri}` here and to `{declared_uri}` \
                     elsewhere"
                ));
            }
        }
        check_storable_paths(file, path, &document.root)?;
        let mut superseded = document.superseded;
        self.root
            .ensure_node(path, ImportNodeKind::Folder, &PackageLocation::new(file.clone(), 0))
            .merge_document(document.root, "", &mut superseded);
        for SupersededElement { relative_path: relative, location: source, reason } in superseded {
            let full = if path.is_root() { relative } else { format!("{path}{relative}") };
            let path = if full.is_empty() { NodePath::root() } else { NodePath::new(&full)? };
            let (file, line) = (source.file_name(), source.line());
            self.superseded.push(SkippedPackageItem { path, file, line, is_element: true, reason });
        }
        Ok(())
    }

    fn add_entry(&mut self, role: &PackageEntryRole, index: usize) -> Result<()> {
        let file = self.archive.entry_file_name(index);
        let source = PackageLocation::new(file.clone(), 0);
        match role {
            PackageEntryRole::Folder(path) => {
                check_path_depth(&file, path, self.limits)?;
                self.root.ensure_node(path, ImportNodeKind::Folder, &source);
            }
            PackageEntryRole::File(path) => {
                check_path_depth(&file, path, self.limits)?;
                self.counts.files += 1;
                if is_nested_package(path) {
                    self.nested_packages.push((path.clone(), index));
                }
                let modified = self.archive.entries.get(index).map(|entry| entry.modified);
                let node = self.root.ensure_node(path, ImportNodeKind::Folder, &source);
                add_file_entry(node, index, modified, &source)
                    .map_err(|message| file.to_error(0, message))?;
            }
            PackageEntryRole::Binary { node, property, index: position } => {
                check_path_depth(&file, node, self.limits)?;
                check_item_name(property).map_err(|error| file.to_error(0, error.to_string()))?;
                let node = self.root.ensure_node(node, ImportNodeKind::Folder, &source);
                add_binary_entry(node, property, *position, index);
            }
            PackageEntryRole::Metadata
            | PackageEntryRole::Junk
            | PackageEntryRole::Docview(_)
            | PackageEntryRole::Xml { .. } => {}
        }
        Ok(())
    }

    fn warn_about_ignored(&mut self, properties: &PackageProperties) {
        let hooks =
            self.archive.entries.iter().filter(|entry| {
                !entry.is_directory && entry.name.starts_with("META-INF/vault/hooks/")
            });
        let named = properties.entries.keys().filter(|key| key.starts_with("installhook."));
        let count = hooks.count() + named.count();
        if count > 0 {
            self.warnings.push(format!("{count} install hooks are Java programs and are not run"));
        }
        if self.archive.find_entry("META-INF/vault/privileges.xml").is_some() {
            self.warnings
                .push("`privileges.xml` is not read: custom privileges are not supported".into());
        }
    }

    fn load_nested(
        &mut self,
        filter: &PackageFilter,
        properties: &PackageProperties,
    ) -> Result<Vec<NestedPackage>> {
        let mut nested = Vec::new();
        for (path, index) in std::mem::take(&mut self.nested_packages) {
            let is_brought = matches!(
                filter.coverage(&path),
                FilterCoverage::Contained(_) | FilterCoverage::Unfiltered
            );
            if !is_brought {
                continue;
            }
            let package = self.read_nested(index)?;
            let handling = properties.nested_handling(package.id());
            if handling == NestedPackageHandling::Store {
                self.warnings.push(format!(
                    "`{path}` is stored but not installed, as the package specifies"
                ));
            }
            nested.push(NestedPackage { path, package, handling });
        }
        Ok(nested)
    }

    /// Reads a nested package.
    fn read_nested(&mut self, index: usize) -> Result<ContentPackage<Cursor<Vec<u8>>>> {
        let file = self.archive.entry_file_name(index);
        let size = self.archive.entries.get(index).map_or(0, |entry| entry.size);
        let Some(nesting) = self.limits.max_nesting.checked_sub(1) else {
            return Err(file.to_error(0, "packages are nested deeper than the limit"));
        };
        self.memory_usage.add_nested(size, &file, self.limits)?;
        let limits = PackageLimits {
            max_nesting: nesting,
            ..self.memory_usage.remaining_limits(self.limits)
        };
        let bytes = self.archive.read_entry(index, size)?;
        let package = read_package(Cursor::new(bytes), file.clone(), Some(&file), &limits)?;
        self.memory_usage.add_usage(package.memory_usage);
        Ok(package)
    }
}

/// Returns true if FileVault's default pattern for node type files below `/apps` and `/libs` matches.
fn is_application_cnd(name: &str) -> bool {
    let Some(inner) = name.strip_prefix("jcr_root/") else {
        return false;
    };
    let segments: Vec<&str> = inner.split('/').collect();
    let is_application = matches!(segments.first(), Some(&("apps" | "libs")));
    is_application && [2, 3].into_iter().any(|at| segments.get(at) == Some(&"nodetypes"))
}

fn check_path_depth(file: &PackageFileName, path: &NodePath, limits: &PackageLimits) -> Result<()> {
    if path.depth() > limits.max_depth {
        let message = format!("is nested deeper than the limit of {} nodes", limits.max_depth);
        return Err(file.to_error(0, message));
    }
    Ok(())
}

/// Collects a fault of the package, so that all are reported together. Returns an error that is no fault of the
/// package, and all collected faults once their number exceeds the limit.
fn collect_fault(added: Result<()>, faults: &mut Vec<Error>) -> Result<()> {
    match added {
        Err(fault @ (Error::InvalidPackage { .. } | Error::PackageFaults(_))) => {
            faults.push(fault);
            if faults.len() < MAX_REPORTED_FAULTS {
                return Ok(());
            }
            Error::from_package_faults(std::mem::take(faults)).map_or(Ok(()), Err)
        }
        error => error,
    }
}

/// Checks that the paths of all nodes of a document can be stored.
fn check_storable_paths(file: &PackageFileName, path: &NodePath, node: &ImportNode) -> Result<()> {
    for child in node.children() {
        let path = path
            .child(child.name())
            .and_then(|path| NodePath::new(path.as_str()))
            .map_err(|error| file.to_error(child.location().line(), error.to_string()))?;
        check_storable_paths(file, &path, child)?;
    }
    Ok(())
}

/// Stores the bytes of a file in a node.
fn add_file_entry(
    node: &mut ImportNode,
    entry: usize,
    modified: Option<JcrDate>,
    source: &PackageLocation,
) -> Result<(), String> {
    let media_type = mime_guess::from_path(node.name()).first_or_octet_stream();
    let is_resource = node.primary_type().is_some_and(|name| RESOURCE_NODE_TYPES.contains(&name));
    let resource = if is_resource {
        node
    } else {
        node.set_default_property(PRIMARY_TYPE, || Value::Name("nt:file".into()));
        let resource = node.ensure_child(JCR_CONTENT, ImportNodeKind::Content, source);
        resource.set_default_property(PRIMARY_TYPE, || Value::Name("nt:resource".into()));
        resource
    };
    if let Some(ImportProperty::Binary(_)) = resource.properties().get(DATA_PROPERTY) {
        return Err("two entries contain the data of this file".into());
    }
    resource.set_property(DATA_PROPERTY, ImportProperty::Binary(entry));
    resource.set_default_property("jcr:mimeType", || Value::String(media_type.to_string()));
    if let Some(modified) = modified {
        resource.set_default_property("jcr:lastModified", || Value::Date(modified));
    }
    Ok(())
}

/// Adds one value of a binary property to a node.
fn add_binary_entry(node: &mut ImportNode, property: &str, position: Option<usize>, entry: usize) {
    let joined = match (position, node.properties().get(property)) {
        (None, _) => ImportProperty::Binary(entry),
        (Some(position), Some(ImportProperty::BinaryList(entries))) => {
            let mut entries = entries.clone();
            entries.insert(position, entry);
            ImportProperty::BinaryList(entries)
        }
        (Some(position), _) => ImportProperty::BinaryList(BTreeMap::from([(position, entry)])),
    };
    node.set_property(property, joined);
}
