//! Sources of scripts: the repository, or a folder on disk that is edited while the server runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use tympan_content::{Node, NodePath, Property, Repository, Snapshot};

use super::declared_url_parts::DeclaredUrlParts;
use super::index::SCRIPT_SEARCH_PATHS;
use crate::client_library::ClientLibrarySource;
use crate::i18n;
use crate::response::stored_file::StoredFile;
use crate::script_language::{ScriptLanguage, is_javascript_name};
use crate::{Error, Result};

/// The texts of all scripts, and the settings of their types' nodes.
#[derive(Debug, Clone, Default)]
pub struct ScriptSet {
    /// The text of each script, by its absolute path.
    pub scripts: BTreeMap<String, String>,
    /// The text of each JavaScript outside client libraries, by its absolute path: HTL scripts use them.
    pub use_scripts: BTreeMap<String, String>,
    /// The `sling:resourceSuperType` of each type that has one, by the absolute path of the type.
    pub super_types: BTreeMap<String, String>,
    /// The cache directives in `cache` of type folders, by absolute path.
    pub cache_directives: BTreeMap<String, String>,
    /// The inclusions in `dynamic` of type folders, by absolute path.
    pub dynamic_settings: BTreeMap<String, String>,
    /// The inclusions for children in `dynamicChildren` of type folders, by absolute path.
    pub dynamic_children: BTreeMap<String, Vec<String>>,
    /// The URL parts that types declare for sites with strict URLs, in `requestSelectors` and `requestSuffixes`, by the
    /// absolute path of the type.
    pub declared_url_parts: BTreeMap<String, DeclaredUrlParts>,
    /// The folders of client libraries, by their absolute paths.
    pub client_libraries: BTreeMap<String, ClientLibrarySource>,
    /// Translations of component texts: by language, by key.
    pub messages: BTreeMap<String, BTreeMap<String, String>>,
}

/// The type of the folders of client libraries.
const CLIENT_LIBRARY_TYPE: &str = "cq:ClientLibraryFolder";

/// A source of scripts.
pub trait ScriptSource: fmt::Debug + Send + Sync {
    /// Returns a number that changes when any script or super type may have changed.
    ///
    /// # Errors
    /// If the source cannot be read.
    fn state_hash(&self, snapshot: &Snapshot) -> Result<u64>;

    /// Loads everything.
    ///
    /// # Errors
    /// If the source cannot be read.
    fn load_scripts(&self, snapshot: &Snapshot) -> Result<ScriptSet>;

    /// Returns true if scripts can change while the content stays the same.
    fn is_live(&self) -> bool;

    /// Returns the bytes of a file that overrides the repository, such as a style sheet being edited.
    fn live_file(&self, path: &str) -> Option<Bytes>;
}

/// Scripts as files below `/apps` and `/libs` in the repository.
#[derive(Debug, Clone)]
pub struct RepositoryScriptSource {
    repository: Repository,
}

impl RepositoryScriptSource {
    /// Reads blobs from this repository; the nodes come from each request's own snapshot.
    #[must_use]
    pub fn new(repository: Repository) -> Self {
        Self { repository }
    }

    /// Adds a node and its descendants.
    fn collect_scripts(&self, node: &Node, set: &mut ScriptSet) -> Result<()> {
        let path = node.path().as_str();
        if let Some(super_type) = node.text("sling:resourceSuperType") {
            set.super_types.insert(path.to_owned(), super_type);
        }
        if let Some(cache) = node.text("cache") {
            set.cache_directives.insert(path.to_owned(), cache);
        }
        if let Some(dynamic) = node.text("dynamic") {
            set.dynamic_settings.insert(path.to_owned(), dynamic);
        }
        if node.property("dynamicChildren").is_some() {
            set.dynamic_children.insert(path.to_owned(), text_values(node, "dynamicChildren"));
        }
        let url_parts = DeclaredUrlParts {
            selectors: text_values(node, "requestSelectors"),
            suffixes: text_values(node, "requestSuffixes"),
        };
        if !url_parts.is_empty() {
            set.declared_url_parts.insert(path.to_owned(), url_parts);
        }
        match node.primary_type() {
            "nt:file" if is_script_name(node.name()) => {
                set.scripts.insert(path.to_owned(), self.read_script_text(node)?);
            }
            "nt:file" if is_dictionary_path(path) => {
                i18n::add_dictionary_file(&mut set.messages, path, &self.read_script_text(node)?);
            }
            "nt:file" if is_javascript_name(path) && !is_in_client_library(set, path) => {
                set.use_scripts.insert(path.to_owned(), self.read_script_text(node)?);
            }
            "sling:MessageEntry" => i18n::add_dictionary_node(&mut set.messages, node)?,
            CLIENT_LIBRARY_TYPE => {
                let source = self.read_client_library(node)?;
                set.client_libraries.insert(path.to_owned(), source);
            }
            _ => {}
        }
        if node.primary_type() == "nt:file" {
            return Ok(());
        }
        node.children()?.iter().try_for_each(|child| self.collect_scripts(child, set))
    }

    /// Reads a client library.
    fn read_client_library(&self, node: &Node) -> Result<ClientLibrarySource> {
        let texts = |name: &str| text_values(node, name);
        let mut source = ClientLibrarySource {
            categories: texts("categories"),
            dependencies: texts("dependencies"),
            embeds: texts("embed"),
            is_proxied: texts("allowProxy").iter().any(|text| text == "true"),
            files: BTreeMap::new(),
        };
        self.collect_library_files(node, node, &mut source)?;
        Ok(source)
    }

    fn collect_library_files(
        &self,
        top: &Node,
        node: &Node,
        source: &mut ClientLibrarySource,
    ) -> Result<()> {
        for child in node.children()? {
            let relative = child.path().as_str().strip_prefix(top.path().as_str());
            let relative = relative.unwrap_or_default().trim_start_matches('/').to_owned();
            match child.primary_type() {
                "nt:file" if is_client_library_text(&relative) => {
                    source.files.insert(relative, self.read_script_text(&child)?);
                }
                "nt:file" => {}
                _ => self.collect_library_files(top, &child, source)?,
            }
        }
        Ok(())
    }

    /// Reads the text of a script.
    fn read_script_text(&self, node: &Node) -> Result<String> {
        let Some(file) = StoredFile::from_node(node)? else {
            return Ok(String::new());
        };
        let path = || node.path().to_string();
        let missing = || Error::BlobMissing { path: path(), blob: file.blob.to_string() };
        let content = self
            .repository
            .blobs()
            .open(&file.blob)
            .map_err(tympan_content::Error::from)?
            .ok_or_else(missing)?;
        let mut bytes = Vec::new();
        let read = content.into_reader().read_to_end(&mut bytes);
        read.map_err(|source| Error::Blob { path: path(), source })?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl ScriptSource for RepositoryScriptSource {
    /// Hashes the headers of all records below the search paths; no body is read.
    fn state_hash(&self, snapshot: &Snapshot) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        for root in search_path_nodes(snapshot)? {
            root.body_id().hash(&mut hasher);
            for node in root.listed_descendants()? {
                node.path().as_str().hash(&mut hasher);
                node.body_id().hash(&mut hasher);
            }
        }
        Ok(hasher.finish())
    }

    fn load_scripts(&self, snapshot: &Snapshot) -> Result<ScriptSet> {
        let mut set = ScriptSet::default();
        search_path_nodes(snapshot)?
            .iter()
            .try_for_each(|root| self.collect_scripts(root, &mut set))?;
        Ok(set)
    }

    fn is_live(&self) -> bool {
        false
    }

    fn live_file(&self, _: &str) -> Option<Bytes> {
        None
    }
}

/// Returns the values of a property as texts; empty if it is missing.
fn text_values(node: &Node, name: &str) -> Vec<String> {
    let property = node.property(name);
    let values = property.iter().flat_map(Property::values);
    values.map(|value| value.to_text().into_owned()).collect()
}

/// Returns the nodes at the search paths.
fn search_path_nodes(snapshot: &Snapshot) -> Result<Vec<Node>> {
    let mut roots = Vec::new();
    for path in SCRIPT_SEARCH_PATHS {
        roots.extend(snapshot.node(&NodePath::new(path.trim_end_matches('/'))?)?);
    }
    Ok(roots)
}

/// Returns true if a file is a text that client libraries join, or a list of such files.
fn is_client_library_text(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, suffix)| matches!(suffix, "css" | "js" | "less" | "txt"))
}

/// Returns true if a path is that of a dictionary: `i18n/de.json`.
fn is_dictionary_path(path: &str) -> bool {
    path.rsplit_once('/')
        .is_some_and(|(folder, name)| folder.ends_with("/i18n") && name.ends_with(".json"))
}

/// Returns true if a file name has a script suffix.
fn is_script_name(name: &str) -> bool {
    ScriptLanguage::from_file_name(name).is_some()
}

/// Returns true if a file lies in the folder of a client library.
fn is_in_client_library(set: &ScriptSet, path: &str) -> bool {
    let parent = |path| str::rsplit_once(path, '/').map(|(parent, _)| parent);
    std::iter::successors(parent(path), |path| parent(path))
        .any(|folder| set.client_libraries.contains_key(folder))
}

/// Returns true if a file is read together with the scripts.
fn is_source_file(path: &str) -> bool {
    is_script_name(path) || is_client_library_text(path) || is_dictionary_path(path)
}

/// A site's folder on disk, read live: `apps/…` and `etc.clientlibs/…` in it represent `/apps/…` and so on.
///
/// A folder that contains scripts replaces the scripts of the repository's folder at the same path, so that a file
/// deleted on disk disappears. Super types still come from the repository.
#[derive(Debug)]
pub struct DirScriptSource {
    root: PathBuf,
    fallback: RepositoryScriptSource,
}

/// The folders of a site that are read live.
const LIVE_FOLDERS: [&str; 3] = ["apps", "libs", "etc.clientlibs"];

/// Maximum folder depth; a loop of links ends here.
const MAX_FOLDER_DEPTH: usize = 16;

impl DirScriptSource {
    /// Reads the folder `root` (which contains `apps`) on top of the repository.
    #[must_use]
    pub fn new(root: PathBuf, below: RepositoryScriptSource) -> Self {
        Self { root, fallback: below }
    }

    /// Lists the files with their node paths.
    fn live_files(&self) -> Result<Vec<LiveSiteFile>> {
        live_files_in(&self.root)
    }

    /// Returns a number that changes with any live file of a site's folder `root`.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn dir_state_hash(root: &Path) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        hash_live_files(live_files_in(root)?, &mut hasher);
        Ok(hasher.finish())
    }
}

/// Lists the files of a site's folder that are read live.
fn live_files_in(root: &Path) -> Result<Vec<LiveSiteFile>> {
    let mut files = Vec::new();
    for folder in LIVE_FOLDERS {
        list_live_files(&root.join(folder), &format!("/{folder}"), 0, &mut files)?;
    }
    Ok(files)
}

fn hash_live_files(mut files: Vec<LiveSiteFile>, hasher: &mut DefaultHasher) {
    files.sort_by(|left, right| left.node_path.cmp(&right.node_path));
    for file in files {
        (file.node_path, file.modified, file.length).hash(hasher);
    }
}

/// A script, a style sheet or another file on disk.
#[derive(Debug)]
struct LiveSiteFile {
    node_path: String,
    file_path: PathBuf,
    modified: Option<SystemTime>,
    length: u64,
}

/// Lists the files below a folder; a folder that does not exist has none.
fn list_live_files(
    folder: &Path,
    node_path: &str,
    depth: usize,
    files: &mut Vec<LiveSiteFile>,
) -> Result<()> {
    let failed = |source| Error::Scripts { folder: folder.display().to_string(), source };
    if depth > MAX_FOLDER_DEPTH || !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
            continue;
        };
        let node_path = format!("{node_path}/{name}");
        // A file that an editor replaced may not exist any more; the next request sees the new one.
        let Ok(metadata) = std::fs::metadata(entry.path()) else {
            continue;
        };
        if metadata.is_dir() {
            list_live_files(&entry.path(), &node_path, depth + 1, files)?;
        } else {
            let (modified, length) = (metadata.modified().ok(), metadata.len());
            files.push(LiveSiteFile { node_path, file_path: entry.path(), modified, length });
        }
    }
    Ok(())
}

impl ScriptSource for DirScriptSource {
    /// Hashes names, times and lengths of all files: pages contain addresses of style sheets, which change with their
    /// content.
    fn state_hash(&self, snapshot: &Snapshot) -> Result<u64> {
        let mut hasher = DefaultHasher::new();
        self.fallback.state_hash(snapshot)?.hash(&mut hasher);
        hash_live_files(self.live_files()?, &mut hasher);
        Ok(hasher.finish())
    }

    fn load_scripts(&self, snapshot: &Snapshot) -> Result<ScriptSet> {
        let mut set = self.fallback.load_scripts(snapshot)?;
        let mut files = self.live_files()?;
        files.retain(|file| is_source_file(&file.node_path));
        let parent = |path: &str| path.rsplit_once('/').map(|(parent, _)| parent.to_owned());
        let scripts = files.iter().filter(|file| is_script_name(&file.node_path));
        let live: BTreeSet<_> = scripts.filter_map(|file| parent(&file.node_path)).collect();
        set.scripts.retain(|path, _| parent(path).is_none_or(|parent| !live.contains(&parent)));
        let javascripts = files.iter().filter(|file| is_javascript_name(&file.node_path));
        let live: BTreeSet<_> = live
            .into_iter()
            .chain(javascripts.filter_map(|file| parent(&file.node_path)))
            .collect();
        set.use_scripts.retain(|path, _| parent(path).is_none_or(|parent| !live.contains(&parent)));
        for file in files {
            let Ok(bytes) = std::fs::read(&file.file_path) else {
                continue;
            };
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if is_script_name(&file.node_path) {
                set.scripts.insert(file.node_path, text);
            } else if is_dictionary_path(&file.node_path) {
                i18n::add_dictionary_file(&mut set.messages, &file.node_path, &text);
            } else {
                let path = file.node_path.as_str();
                let library = set.client_libraries.iter_mut().find_map(|(folder, source)| {
                    let relative = path.strip_prefix(folder.as_str())?.strip_prefix('/')?;
                    Some((source, relative))
                });
                if let Some((source, relative)) = library {
                    source.files.insert(relative.to_owned(), text);
                } else if is_javascript_name(path) {
                    set.use_scripts.insert(file.node_path, text);
                }
            }
        }
        Ok(set)
    }

    fn is_live(&self) -> bool {
        true
    }

    fn live_file(&self, path: &str) -> Option<Bytes> {
        // Node paths have no `.` or `..` segments, so this cannot leave the folder.
        let path = NodePath::new(path).ok()?;
        let first = path.names().next()?;
        if !LIVE_FOLDERS.contains(&first) {
            return None;
        }
        std::fs::read(self.root.join(path.as_str().trim_start_matches('/'))).ok().map(Bytes::from)
    }
}
