//! Reading a package: from the entries of its ZIP file to one tree.
//!
//! In: an archive. Out: a [`Package`], checked throughout.
//!
//! Documents are read first, those of parents before those of children, so that the order that they give holds. Then
//! come folders, files and bytes of properties.
//!
//! On failure: every fault of its documents, each with file and line ([`crate::Error::PackageFaults`]); of a file that is no
//! XML the first.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek};

use super::archive::{Archive, File, Limits};
use super::dependency::Dependency;
use super::docview::sysview;
use super::docview::{Document, Serialization};
use super::entry::{self, Role};
use super::filter::{self, Coverage, Filter};
use super::held::Held;
use super::properties::{self, NestedHandling, PackageId, Properties};
use super::report::Skipped;
use super::tree::{ImportNode, ImportProperty, Kind, Source, Superseded};
use super::{
    Counts, JCR_DATA, MAX_FAULTS, Nested, Package, RESOURCE_TYPES, docview, is_nested_package,
};
use crate::{Date, Error, JCR_CONTENT, NodePath, PRIMARY_TYPE, Result, Value};

/// Reads a package; `nested_in` is its own name if it is a file of another package.
pub(super) fn read<R: Read + Seek>(
    reader: R,
    file: File,
    nested_in: Option<&File>,
    limits: &Limits,
) -> Result<Package<R>> {
    let archive = Archive::open(reader, file.clone(), nested_in.map(|_| file.clone()), limits)?;
    let mut loader = Loader::new(archive, file, limits);
    loader.check_layout()?;
    let (id, properties) = loader.load_properties()?;
    let filter = loader.load_filter()?;
    loader.load_node_types()?;
    loader.load_content()?;
    loader.note_what_is_ignored(&properties);
    let nested = loader.load_nested(&filter, &properties)?;
    let Loader { archive, root, has_content, counts, namespaces, node_types, held, .. } = loader;
    let Loader { superseded, junk, warnings, .. } = loader;
    Ok(Package {
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
        held,
        superseded,
        junk,
        warnings,
    })
}

/// A package while it is read.
struct Loader<'a, R> {
    archive: Archive<R>,
    file: File,
    limits: &'a Limits,
    root: ImportNode,
    has_content: bool,
    counts: Counts,
    held: Held,
    namespaces: BTreeMap<String, String>,
    node_types: Vec<(String, String)>,
    /// Files that are packages themselves, with their entries.
    inner: Vec<(NodePath, usize)>,
    superseded: Vec<Skipped>,
    junk: Vec<String>,
    warnings: Vec<String>,
}

const META: &str = "META-INF/vault/";
/// The root element of most documents, its attributes included, ends within so many bytes.
const BEGINNING: u64 = 64 << 10;

/// How a document is read: its file, its bytes, the names in its path, the limits.
type Parse = fn(&File, &[u8], usize, &Limits) -> Result<Document>;

impl<'a, R: Read + Seek> Loader<'a, R> {
    fn new(archive: Archive<R>, file: File, limits: &'a Limits) -> Self {
        let source = Source::new(file.clone(), 0);
        Self {
            archive,
            file,
            limits,
            root: ImportNode::new(String::new(), Kind::Folder, BTreeMap::new(), source),
            has_content: false,
            counts: Counts::default(),
            held: Held::default(),
            namespaces: BTreeMap::new(),
            node_types: Vec::new(),
            inner: Vec::new(),
            superseded: Vec::new(),
            junk: Vec::new(),
            warnings: Vec::new(),
        }
    }

    fn check_layout(&mut self) -> Result<()> {
        let names = || self.archive.entries.iter().map(|entry| entry.name.as_str());
        self.has_content = names().any(|name| name == "jcr_root" || name.starts_with("jcr_root/"));
        if self.has_content || names().any(|name| name.starts_with(META)) {
            return Ok(());
        }
        let message = "is not a content package: it has neither `jcr_root` nor `META-INF/vault`";
        Err(self.file.error(0, message))
    }

    /// Reads a file of the package's own data, if it is there.
    fn read_meta(&mut self, name: &str) -> Result<Option<(File, Vec<u8>)>> {
        let Some(index) = self.archive.find(name) else {
            return Ok(None);
        };
        let bytes = self.archive.read_entry(index, self.limits.document_bytes)?;
        Ok(Some((self.archive.file_of(index), bytes)))
    }

    fn load_properties(&mut self) -> Result<(PackageId, Properties)> {
        let mut properties = match self.read_meta("META-INF/vault/properties.xml")? {
            Some((file, bytes)) => properties::parse(&file, &bytes)?,
            None => Properties::default(),
        };
        let manifest = self.read_meta("META-INF/MANIFEST.MF")?;
        let header = |name: &str| {
            let (_, bytes) = manifest.as_ref()?;
            properties::manifest_header(bytes, name)
        };
        // What `properties.xml` says goes before the manifest.
        if properties.find("dependencies").is_none()
            && let (Some(list), Some((file, _))) =
                (header("Content-Package-Dependencies"), &manifest)
        {
            properties.dependencies =
                Dependency::parse_list(&list).map_err(|message| file.error(0, message))?;
        }
        let text = |key: &str| properties.find(key).unwrap_or_default().trim().to_owned();
        let id = PackageId { group: text("group"), name: text("name"), version: text("version") };
        if !id.name.is_empty() {
            let path = text("path");
            // Packages of old have no group, but a path that tells it.
            let is_old = id.group.is_empty() && properties.find("group").is_none();
            let old = PackageId::of_path(&path, &id.version);
            return Ok((if is_old && old.name == id.name { old } else { id }, properties));
        }
        let id =
            header("Content-Package-Id").map(|id| PackageId::parse(&id)).unwrap_or_else(|| {
                let name = self.file.to_string();
                let base = name.rsplit('/').next().unwrap_or_default();
                PackageId {
                    name: base.strip_suffix(".zip").unwrap_or(base).to_owned(),
                    ..PackageId::default()
                }
            });
        Ok((id, properties))
    }

    fn load_filter(&mut self) -> Result<Filter> {
        let filter = match self.read_meta("META-INF/vault/filter.xml")? {
            Some((file, bytes)) => filter::parse(&file, &bytes)?,
            None => Filter::default(),
        };
        if filter.roots().is_empty() && self.has_content {
            self.warnings.push(
                "the package has no filter: missing nodes are created, existing ones stay as they are".into(),
            );
        }
        Ok(filter)
    }

    fn load_node_types(&mut self) -> Result<()> {
        let is_definition = |name: &str| {
            name.ends_with(".cnd") && (name.starts_with(META) || is_application_cnd(name))
        };
        for index in 0..self.archive.entries.len() {
            let Some(entry) = self.archive.entries.get(index) else {
                break;
            };
            if !is_definition(&entry.name) {
                continue;
            }
            let name = entry.name.clone();
            let bytes = self.archive.read_entry(index, self.limits.document_bytes)?;
            let text = String::from_utf8(bytes).map_err(|_| {
                self.archive.file_of(index).error(0, "the file is not UTF-8; save it as UTF-8")
            })?;
            self.node_types.push((name, text));
        }
        Ok(())
    }

    /// Builds the tree: first the documents, parents before children so that their order counts, then the rest.
    fn load_content(&mut self) -> Result<()> {
        let mut documents = Vec::new();
        let mut others = Vec::new();
        for index in 0..self.archive.entries.len() {
            let Some(entry) = self.archive.entries.get(index) else {
                break;
            };
            let file = self.archive.file_of(index);
            let role = entry::role_of(&file, &entry.name, entry.is_directory)?;
            match role {
                Role::Meta => {}
                Role::Junk => self.junk.push(entry.name.clone()),
                Role::Docview(path) => documents.push((path, index, None)),
                Role::Xml { document, file } => documents.push((document, index, Some(file))),
                Role::Folder(_) | Role::File(_) | Role::Binary { .. } => others.push((role, index)),
            }
        }
        documents.sort_by_key(|(path, index, _)| (path.depth(), *index));
        let mut faults = Vec::new();
        for (path, index, alternative) in documents {
            let (serialization, bytes) = self.read_xml(index)?;
            let added = match (serialization, alternative) {
                (Serialization::Other, Some(plain)) => {
                    others.push((Role::File(plain), index));
                    Ok(())
                }
                (Serialization::Sysview, _) => {
                    self.add_document(&path, index, bytes, sysview::parse)
                }
                // A `.content.xml` that is neither is refused with its line.
                (_, _) => self.add_document(&path, index, bytes, docview::parse),
            };
            note_fault(added, &mut faults)?;
        }
        for (role, index) in others {
            note_fault(self.add_other(&role, index), &mut faults)?;
        }
        Error::of_package(faults).map_or(Ok(()), Err)
    }

    /// Finds out what an XML file describes, by its beginning: other files may be longer than documents may. Gives the
    /// bytes, too, if all of them were read for that.
    fn read_xml(&mut self, index: usize) -> Result<(Serialization, Option<Vec<u8>>)> {
        let file = self.archive.file_of(index);
        let size = self.archive.entries.get(index).map_or(0, |entry| entry.size);
        if size <= BEGINNING {
            let bytes = self.archive.read_entry(index, self.limits.document_bytes)?;
            return Ok((docview::serialization_of(&file, &bytes), Some(bytes)));
        }
        let beginning = self.archive.read_beginning(index, BEGINNING)?;
        let serialization = docview::serialization_of(&file, &beginning);
        if serialization != Serialization::Other {
            return Ok((serialization, None));
        }
        // The attributes of the root element may be longer.
        let beginning = self.archive.read_beginning(index, self.limits.document_bytes)?;
        Ok((docview::serialization_of(&file, &beginning), None))
    }

    fn add_document(
        &mut self,
        path: &NodePath,
        index: usize,
        bytes: Option<Vec<u8>>,
        parse: Parse,
    ) -> Result<()> {
        let file = &self.archive.file_of(index);
        let size = self.archive.entries.get(index).map_or(0, |entry| entry.size);
        self.held.add_document(size, file, self.limits)?;
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => self.archive.read_entry(index, self.limits.document_bytes)?,
        };
        let document = parse(file, &bytes, path.depth(), &self.held.left_of(self.limits))?;
        self.held.add_counts(document.counts);
        self.counts.nodes += document.counts.nodes;
        self.counts.elements += document.counts.elements;
        self.counts.attributes += document.counts.attributes;
        self.counts.pages += document.counts.pages;
        self.counts.assets += document.counts.assets;
        for (prefix, uri) in document.namespaces {
            let known = self.namespaces.entry(prefix.clone()).or_insert_with(|| uri.clone());
            if *known != uri {
                self.warnings.push(format!(
                    "{file}: the prefix `{prefix}` stands for `{uri}` here and for `{known}` elsewhere"
                ));
            }
        }
        check_paths(file, path, &document.root)?;
        let mut superseded = document.superseded;
        self.root.grow(path, Kind::Folder, &Source::new(file.clone(), 0)).join(
            document.root,
            "",
            &mut superseded,
        );
        for Superseded { path: relative, source, reason } in superseded {
            let full = if path.is_root() { relative } else { format!("{path}{relative}") };
            let path = if full.is_empty() { NodePath::root() } else { NodePath::new(&full)? };
            let (file, line) = (source.file(), source.line());
            self.superseded.push(Skipped { path, file, line, is_element: true, reason });
        }
        Ok(())
    }

    fn add_other(&mut self, role: &Role, index: usize) -> Result<()> {
        let file = self.archive.file_of(index);
        let source = Source::new(file.clone(), 0);
        match role {
            Role::Folder(path) => {
                check_depth(&file, path, self.limits)?;
                self.root.grow(path, Kind::Folder, &source);
            }
            Role::File(path) => {
                check_depth(&file, path, self.limits)?;
                self.counts.files += 1;
                if is_nested_package(path) {
                    self.inner.push((path.clone(), index));
                }
                let modified = self.archive.entries.get(index).map(|entry| entry.modified);
                let node = self.root.grow(path, Kind::Folder, &source);
                add_file(node, index, modified, &source)
                    .map_err(|message| file.error(0, message))?;
            }
            Role::Binary { node, property, index: place } => {
                check_depth(&file, node, self.limits)?;
                crate::check_name(property).map_err(|error| file.error(0, error.to_string()))?;
                let node = self.root.grow(node, Kind::Folder, &source);
                add_bytes(node, property, *place, index);
            }
            Role::Meta | Role::Junk | Role::Docview(_) | Role::Xml { .. } => {}
        }
        Ok(())
    }

    fn note_what_is_ignored(&mut self, properties: &Properties) {
        let hooks =
            self.archive.entries.iter().filter(|entry| {
                !entry.is_directory && entry.name.starts_with("META-INF/vault/hooks/")
            });
        let named = properties.entries.keys().filter(|key| key.starts_with("installhook."));
        let count = hooks.count() + named.count();
        if count > 0 {
            self.warnings.push(format!("{count} install hooks are Java programs and are not run"));
        }
        if self.archive.find("META-INF/vault/privileges.xml").is_some() {
            self.warnings
                .push("`privileges.xml` is not read: custom privileges are not supported".into());
        }
    }

    fn load_nested(&mut self, filter: &Filter, properties: &Properties) -> Result<Vec<Nested>> {
        let mut nested = Vec::new();
        for (path, index) in std::mem::take(&mut self.inner) {
            let is_brought =
                matches!(filter.coverage(&path), Coverage::Contained(_) | Coverage::Unfiltered);
            if !is_brought {
                continue;
            }
            let package = self.read_nested(index)?;
            let handling = properties.nested_handling(package.id());
            if handling == NestedHandling::Store {
                self.warnings
                    .push(format!("`{path}` is stored and not installed, as the package says"));
            }
            nested.push(Nested { path, package, handling });
        }
        Ok(nested)
    }

    /// Reads a package within this one.
    fn read_nested(&mut self, index: usize) -> Result<Package<Cursor<Vec<u8>>>> {
        let file = self.archive.file_of(index);
        let size = self.archive.entries.get(index).map_or(0, |entry| entry.size);
        let Some(nesting) = self.limits.nesting.checked_sub(1) else {
            return Err(file.error(0, "packages lie deeper in packages than the limit"));
        };
        self.held.add_nested(size, &file, self.limits)?;
        let limits = Limits { nesting, ..self.held.left_of(self.limits) };
        let bytes = self.archive.read_entry(index, size)?;
        let package = read(Cursor::new(bytes), file.clone(), Some(&file), &limits)?;
        self.held.add(package.held);
        Ok(package)
    }
}

/// Tells whether FileVault's default pattern for node type files below `/apps` and `/libs` matches.
fn is_application_cnd(name: &str) -> bool {
    let Some(inner) = name.strip_prefix("jcr_root/") else {
        return false;
    };
    let segments: Vec<&str> = inner.split('/').collect();
    let is_application = matches!(segments.first(), Some(&("apps" | "libs")));
    is_application && [2, 3].into_iter().any(|at| segments.get(at) == Some(&"nodetypes"))
}

fn check_depth(file: &File, path: &NodePath, limits: &Limits) -> Result<()> {
    if path.depth() > limits.depth {
        let message = format!("lies deeper than the limit of {} nodes", limits.depth);
        return Err(file.error(0, message));
    }
    Ok(())
}

/// Keeps what is wrong with a part of a package, so that all is told at once; gives back what is no fault of it, and
/// everything once there is more than anybody reads.
fn note_fault(added: Result<()>, faults: &mut Vec<Error>) -> Result<()> {
    match added {
        Err(fault @ (Error::Package { .. } | Error::PackageFaults(_))) => {
            faults.push(fault);
            if faults.len() < MAX_FAULTS {
                return Ok(());
            }
            Error::of_package(std::mem::take(faults)).map_or(Ok(()), Err)
        }
        other => other,
    }
}

/// Checks that the paths of all nodes of a document can be stored.
fn check_paths(file: &File, path: &NodePath, node: &ImportNode) -> Result<()> {
    for child in node.children() {
        let path = path
            .child(child.name())
            .and_then(|path| NodePath::new(path.as_str()))
            .map_err(|error| file.error(child.source().line(), error.to_string()))?;
        check_paths(file, &path, child)?;
    }
    Ok(())
}

/// Gives a node the bytes of a file.
fn add_file(
    node: &mut ImportNode,
    entry: usize,
    modified: Option<Date>,
    source: &Source,
) -> Result<(), String> {
    let media_type = mime_guess::from_path(node.name()).first_or_octet_stream();
    let is_resource = node.primary_type().is_some_and(|name| RESOURCE_TYPES.contains(&name));
    let resource = if is_resource {
        node
    } else {
        node.set_default(PRIMARY_TYPE, || Value::Name("nt:file".into()));
        let resource = node.child_or_new(JCR_CONTENT, Kind::Content, source);
        resource.set_default(PRIMARY_TYPE, || Value::Name("nt:resource".into()));
        resource
    };
    if let Some(ImportProperty::Bytes(_)) = resource.properties().get(JCR_DATA) {
        return Err("two entries hold the bytes of this file".into());
    }
    resource.set(JCR_DATA, ImportProperty::Bytes(entry));
    resource.set_default("jcr:mimeType", || Value::String(media_type.to_string()));
    if let Some(modified) = modified {
        resource.set_default("jcr:lastModified", || Value::Date(modified));
    }
    Ok(())
}

/// Gives a node one value of a binary property.
fn add_bytes(node: &mut ImportNode, property: &str, place: Option<usize>, entry: usize) {
    let joined = match (place, node.properties().get(property)) {
        (None, _) => ImportProperty::Bytes(entry),
        (Some(place), Some(ImportProperty::ByteList(known))) => {
            let mut known = known.clone();
            known.insert(place, entry);
            ImportProperty::ByteList(known)
        }
        (Some(place), _) => ImportProperty::ByteList(BTreeMap::from([(place, entry)])),
    };
    node.set(property, joined);
}
