//! What the packages of a project contain: scripts, configurations, bundles, packages within them, and resource types.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek};

use serde_json::{Map, Value as Json};
use tympan_content::NodePath;
use tympan_content_package::{ContentPackage, ImportNode, ImportNodeKind, ImportProperty};
use tympan_jobs::{
    OSGI_CONFIG_NODE_TYPE, OsgiConfig, config_file_parser, config_folder_run_modes,
    property_to_json,
};
use tympan_render::{ClientLibrarySource, ScriptSet};

use super::bundle::Bundle;
use super::left_out_file::LeftOutFile;
use crate::error::Result;

/// The maximum size of a script, style sheet or configuration.
const MAX_TEXT_BYTES: u64 = 4 << 20;
/// The maximum size of a bundle or an embedded package.
const MAX_EMBEDDED_BYTES: u64 = 1 << 30;

/// The contents of all packages of a project.
#[derive(Debug, Default)]
pub(super) struct PackageContents {
    /// Scripts, JavaScripts and client libraries.
    pub(super) scripts: ScriptSet,
    /// The paths of scripts in JSP and ESP.
    pub(super) foreign_scripts: BTreeSet<String>,
    pub(super) bundles: Vec<Bundle>,
    pub(super) configs: Vec<ProjectConfig>,
    /// The number of nodes, by what they are.
    pub(super) counts: BTreeMap<&'static str, usize>,
    /// The paths of components and of folders with scripts.
    pub(super) component_paths: BTreeSet<String>,
    /// The resource types and super types that nodes name, each with the first node.
    pub(super) used_types: BTreeMap<String, String>,
    pub(super) left_out: Vec<LeftOutFile>,
}

/// A configuration of a package.
#[derive(Debug)]
pub(super) struct ProjectConfig {
    pub(super) run_modes: Vec<String>,
    pub(super) config: std::result::Result<OsgiConfig, LeftOutFile>,
}

/// What a package contains besides its own content.
#[derive(Debug)]
pub(super) struct EmbeddedFiles {
    /// The packages that are to be installed, with their paths.
    pub(super) embedded: Vec<(String, Vec<u8>)>,
    /// True if the package has no other content.
    pub(super) is_container: bool,
}

/// The kinds of files of packages that a report needs.
enum PackageFileKind {
    Script,
    JavaScript,
    ForeignScript,
    Config,
    Bundle,
    Package,
}

/// The plain types of nodes that only hold files.
const FOLDER_TYPES: [&str; 3] = ["nt:folder", "sling:Folder", "sling:OrderedFolder"];

impl PackageContents {
    pub(super) fn leave_out(&mut self, file: &str, reason: impl Into<String>) {
        self.left_out.push(LeftOutFile::new(file, reason));
    }

    /// Reads a package; `origin` names it.
    pub(super) fn read_package<R: Read + Seek>(
        &mut self,
        package: &mut ContentPackage<R>,
        origin: &str,
        run_modes: &[String],
    ) -> Result<EmbeddedFiles> {
        let mut walk = PackageWalk::default();
        walk.visit(package.root(), "", self);
        for warning in package.warnings() {
            self.leave_out(origin, warning.as_str());
        }
        let mut embedded = Vec::new();
        let files = std::mem::take(&mut walk.files);
        let has_other_files = files
            .iter()
            .any(|(_, kind)| !matches!(kind, PackageFileKind::Package | PackageFileKind::Bundle));
        let has_embedded = files.iter().any(|(_, kind)| matches!(kind, PackageFileKind::Package));
        for (path, kind) in files {
            let limit = match kind {
                PackageFileKind::Bundle | PackageFileKind::Package => MAX_EMBEDDED_BYTES,
                _ => MAX_TEXT_BYTES,
            };
            if let PackageFileKind::Package | PackageFileKind::Bundle = kind
                && let Some(mode) = missing_run_mode(&path, run_modes)
            {
                self.leave_out(
                    &format!("{origin}!{path}"),
                    format!("it is for the run mode `{mode}`"),
                );
                continue;
            }
            if let PackageFileKind::ForeignScript = kind {
                self.foreign_scripts.insert(path);
                continue;
            }
            let Some(bytes) =
                package.read_file(&NodePath::new(&path).map_err(content_error)?, limit)?
            else {
                continue;
            };
            let text = || String::from_utf8_lossy(&bytes).into_owned();
            match kind {
                PackageFileKind::Script => {
                    self.scripts.scripts.insert(path, text());
                }
                PackageFileKind::JavaScript => {
                    self.scripts.use_scripts.insert(path, text());
                }
                PackageFileKind::Config => self.add_config_file(&path, &text()),
                PackageFileKind::Bundle => self.add_bundle(&format!("{origin}!{path}"), bytes),
                PackageFileKind::Package => embedded.push((path, bytes)),
                PackageFileKind::ForeignScript => {}
            }
        }
        for (folder, mut library) in std::mem::take(&mut walk.client_libraries) {
            for (name, path) in library.files {
                let path = NodePath::new(&path).map_err(content_error)?;
                if let Some(bytes) = package.read_file(&path, MAX_TEXT_BYTES)? {
                    library.source.files.insert(name, String::from_utf8_lossy(&bytes).into_owned());
                }
            }
            self.scripts.client_libraries.insert(folder, library.source);
        }
        let is_container = has_embedded && !has_other_files && !walk.has_other_content;
        let mut waiting: Vec<(String, EmbeddedFiles)> = Vec::new();
        for nested in package.nested_packages() {
            let nested_origin = format!("{origin}!{}", nested.id());
            let found = self.read_package(nested, &nested_origin, run_modes)?;
            waiting.push((nested_origin, found));
        }
        for (nested_origin, found) in waiting {
            for (path, bytes) in found.embedded {
                embedded.push((format!("{nested_origin}!{path}"), bytes));
            }
        }
        Ok(EmbeddedFiles { embedded, is_container })
    }

    /// Reads a bundle, unless the same one was read already.
    pub(super) fn add_bundle(&mut self, origin: &str, bytes: Vec<u8>) {
        match Bundle::read(origin, bytes) {
            Ok(bundle) if bundle.is_native() => {
                self.leave_out(origin, "this program has its models itself");
            }
            Ok(bundle) => {
                let is_known = self
                    .bundles
                    .iter()
                    .any(|known| known.name == bundle.name && known.version == bundle.version);
                if !is_known {
                    self.bundles.push(bundle);
                }
            }
            Err(fault) => self.leave_out(origin, format!("the jar cannot be read: {fault}")),
        }
    }

    fn add_config_file(&mut self, path: &str, text: &str) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let Some((pid, parse)) = config_file_parser(name) else { return };
        match parse(text) {
            Ok(properties) => self.add_config(pid, path, properties),
            Err(fault) => {
                let config = Err(LeftOutFile::new(path, format!("it cannot be read: {fault}")));
                self.configs.push(ProjectConfig { run_modes: config_run_modes(path), config });
            }
        }
    }

    fn add_config(&mut self, pid: &str, path: &str, properties: Map<String, Json>) {
        let run_modes = config_run_modes(path);
        let config = Ok(OsgiConfig::new(pid, path, properties, run_modes.len()));
        self.configs.push(ProjectConfig { run_modes, config });
    }

    fn count(&mut self, name: &'static str) {
        *self.counts.entry(name).or_default() += 1;
    }
}

/// A client library whose files are not read yet.
#[derive(Debug)]
struct FoundClientLibrary {
    source: ClientLibrarySource,
    /// The files by their relative paths.
    files: Vec<(String, String)>,
}

/// Collects the files of a package.
#[derive(Default)]
struct PackageWalk {
    files: Vec<(String, PackageFileKind)>,
    client_libraries: BTreeMap<String, FoundClientLibrary>,
    /// True if there is content besides folders and embedded files.
    has_other_content: bool,
}

impl PackageWalk {
    fn visit(&mut self, node: &ImportNode, path: &str, contents: &mut PackageContents) {
        let kind = node.primary_type().unwrap_or_default();
        match kind {
            "nt:file" => {
                self.visit_file(node, path, contents);
                return;
            }
            OSGI_CONFIG_NODE_TYPE if is_in_config_folder(path) => {
                self.has_other_content = true;
                contents.add_config(node.name(), path, config_properties(node));
                return;
            }
            "cq:ClientLibraryFolder" => {
                self.has_other_content = true;
                contents.count("client libraries");
                let mut files = Vec::new();
                collect_library_files(node, path, "", &mut files);
                let source = client_library(node);
                self.client_libraries.insert(path.to_owned(), FoundClientLibrary { source, files });
                return;
            }
            "cq:Component" => {
                contents.count("components");
                contents.component_paths.insert(path.to_owned());
            }
            "cq:Template" => contents.count("templates"),
            "cq:Page" => contents.count("pages"),
            "dam:Asset" => contents.count("assets"),
            "cq:Tag" => contents.count("tags"),
            "rep:User" | "rep:SystemUser" => contents.count("users"),
            "rep:Group" => contents.count("groups"),
            _ => {}
        }
        let is_plain = node.kind() != ImportNodeKind::Content || FOLDER_TYPES.contains(&kind);
        self.has_other_content |= !is_plain && !path.is_empty();
        for name in ["sling:resourceType", "sling:resourceSuperType"] {
            if let Some(resource_type) = text_property(node, name)
                && is_site_path(path)
            {
                contents.used_types.entry(resource_type).or_insert_with(|| path.to_owned());
            }
        }
        for child in node.children() {
            self.visit(child, &format!("{path}/{}", child.name()), contents);
        }
    }

    fn visit_file(&mut self, node: &ImportNode, path: &str, contents: &mut PackageContents) {
        let is_code = path.starts_with("/apps/") || path.starts_with("/libs/");
        let extension = node.name().rsplit_once('.').map_or("", |(_, extension)| extension);
        let kind = match extension {
            "html" if is_code => PackageFileKind::Script,
            "js" if is_code => PackageFileKind::JavaScript,
            "jsp" | "esp" | "ecma" if is_code => PackageFileKind::ForeignScript,
            "jar" if is_code => PackageFileKind::Bundle,
            "zip" if is_code && install_folder(path).is_some() => PackageFileKind::Package,
            "config" | "json"
                if is_in_config_folder(path) && config_file_parser(node.name()).is_some() =>
            {
                PackageFileKind::Config
            }
            _ => {
                self.has_other_content = true;
                return;
            }
        };
        if let PackageFileKind::Script = kind {
            contents.count("HTL scripts");
        }
        if let (PackageFileKind::Script | PackageFileKind::ForeignScript, Some((folder, _))) =
            (&kind, path.rsplit_once('/'))
        {
            contents.component_paths.insert(folder.to_owned());
        }
        self.files.push((path.to_owned(), kind));
    }
}

/// Returns true if the types of a node's resources are drawn on pages: not dialogs and the policies of the editor.
fn is_site_path(path: &str) -> bool {
    const EDITOR_NODES: [&str; 6] = [
        "cq:dialog",
        "cq:design_dialog",
        "cq:editConfig",
        "cq:childEditConfig",
        "cq:inplaceEditing",
        "policies",
    ];
    !path.split('/').any(|name| EDITOR_NODES.contains(&name))
        && ["/apps/", "/content/", "/conf/"].iter().any(|root| path.starts_with(root))
}

fn collect_library_files(
    node: &ImportNode,
    path: &str,
    relative: &str,
    files: &mut Vec<(String, String)>,
) {
    for child in node.children() {
        let name = format!("{relative}{}", child.name());
        let path = format!("{path}/{}", child.name());
        if child.primary_type() != Some("nt:file") {
            collect_library_files(child, &path, &format!("{name}/"), files);
        } else if matches!(
            name.rsplit_once('.').map(|(_, extension)| extension),
            Some("css" | "less" | "js" | "txt")
        ) {
            files.push((name, path));
        }
    }
}

fn client_library(node: &ImportNode) -> ClientLibrarySource {
    let texts = |name: &str| match node.properties().get(name) {
        Some(ImportProperty::Value(property)) => {
            property.values().iter().map(|value| value.to_text().into_owned()).collect()
        }
        _ => Vec::new(),
    };
    ClientLibrarySource {
        categories: texts("categories"),
        dependencies: texts("dependencies"),
        embeds: texts("embed"),
        is_proxied: texts("allowProxy").iter().any(|text| text == "true"),
        files: BTreeMap::new(),
    }
}

fn text_property(node: &ImportNode, name: &str) -> Option<String> {
    match node.properties().get(name)? {
        ImportProperty::Value(property) => Some(property.first()?.to_text().into_owned()),
        _ => None,
    }
}

fn config_properties(node: &ImportNode) -> Map<String, Json> {
    let own = node
        .properties()
        .iter()
        .filter(|(name, _)| !name.starts_with("jcr:") && !name.starts_with("sling:"));
    let values = own.filter_map(|(name, property)| match property {
        ImportProperty::Value(property) => Some((name.clone(), property_to_json(property))),
        _ => None,
    });
    values.collect()
}

/// Returns the run modes of the folder `config…` that contains a configuration.
fn config_run_modes(path: &str) -> Vec<String> {
    let modes = path.split('/').find_map(config_folder_run_modes).unwrap_or_default();
    modes.into_iter().map(str::to_owned).collect()
}

fn is_in_config_folder(path: &str) -> bool {
    let is_code = path.starts_with("/apps/") || path.starts_with("/libs/");
    is_code && path.split('/').any(|name| config_folder_run_modes(name).is_some())
}

/// Returns the name of the folder `install…` from which AEM installs a file, behind `install`.
fn install_folder(path: &str) -> Option<&str> {
    path.split('/').find_map(|name| {
        let modes = name.strip_prefix("install")?;
        (modes.is_empty() || modes.starts_with('.')).then_some(modes)
    })
}

/// Returns a run mode that an embedded file needs and the instance does not have.
fn missing_run_mode(path: &str, run_modes: &[String]) -> Option<String> {
    let modes = install_folder(path)?.split('.').filter(|mode| !mode.is_empty());
    let mut missing = modes.filter(|mode| !run_modes.iter().any(|active| active == mode));
    missing.next().map(str::to_owned)
}

fn content_error(error: tympan_content::Error) -> tympan_content_package::Error {
    error.into()
}
