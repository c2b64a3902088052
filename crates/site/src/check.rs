//! Checks a site: its description, its templates, its style sheets, and its content.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use tympan_notation::error_chain_text;

use tympan_content::{Node, NodePath, Repository, Snapshot};
use tympan_render::dialog::check_dialogs;
use tympan_render::{
    ContainerPolicy, RepositoryScriptSource, ScriptSet, ScriptSource, check_scripts,
};

use crate::description::{HeaderCheck, home_page_path, publisher_config};
use crate::error::{Error, Result};
use crate::site_import::read_site_package;

/// The folders of a site that hold templates.
const SCRIPT_FOLDERS: [&str; 2] = ["apps", "libs"];

/// Types that render no page of their own: dialogs and resources of the editor.
const NON_PAGE_TYPES: [&str; 5] = ["cq/", "granite/", "dam/", "wcm/", "sling/"];

/// A problem in a site.
#[derive(Debug, serde::Serialize)]
pub struct SiteFinding {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1.
    pub column: usize,
    /// The problem.
    pub message: String,
    /// True if the site works nevertheless.
    pub warning: bool,
}

/// Finds the problems of a site; `check_headers` checks the headers of its pages.
///
/// # Errors
/// [`Error::Refused`] if there is no such folder; otherwise if a template cannot be read.
pub fn check_site(dir: &Path, check_headers: HeaderCheck<'_>) -> Result<Vec<SiteFinding>> {
    if !dir.is_dir() {
        return Err(Error::Refused(format!("`{}` is not a folder", dir.display())));
    }
    let mut findings = Vec::new();
    let described =
        home_page_path(Some(dir)).and_then(|_| publisher_config(Some(dir), check_headers));
    if let Err(error) = described {
        findings.push(parse_located_message(&error.to_string(), &dir.join("site.toml")));
    }
    let mut set = ScriptSet::default();
    for folder in SCRIPT_FOLDERS {
        collect_scripts(&dir.join(folder), &format!("/{folder}"), &mut set)?;
    }
    let installed = install_in_memory(dir);
    if let Ok(site) = &installed {
        set.client_libraries.clone_from(&site.scripts.client_libraries);
        set.use_scripts.clone_from(&site.scripts.use_scripts);
        let htl_scripts = site.scripts.scripts.iter().filter(|(path, _)| path.ends_with(".html"));
        set.scripts.extend(htl_scripts.map(|(path, text)| (path.clone(), text.clone())));
    }
    for script_fault in check_scripts(&set) {
        let file = tympan_render::url::mangle_namespaces(&script_fault.script);
        let file = dir.join(file.trim_start_matches('/'));
        findings.push(SiteFinding {
            file: file.display().to_string(),
            line: script_fault.line,
            column: script_fault.column,
            message: script_fault.message,
            warning: script_fault.is_warning,
        });
    }
    match installed {
        Ok(site) => {
            findings.extend(missing_components(dir, &site.snapshot, &set));
            findings.extend(disallowed_children(dir, &site.snapshot));
            findings.extend(unknown_dialog_conditions(dir, &site.snapshot));
        }
        Err(error) => findings.push(parse_located_message(&error_chain_text(&error), dir)),
    }
    Ok(findings)
}

/// Splits a leading `file:line:column` from a message.
fn parse_located_message(message: &str, file: &Path) -> SiteFinding {
    let mut parts = message.splitn(4, ':');
    let location = (|| {
        let file = parts.next()?.to_owned();
        let line = parts.next()?.parse().ok()?;
        let column = parts.next()?.parse().ok()?;
        Some((file, line, column, parts.next()?.trim().to_owned()))
    })();
    let (file, line, column, message) =
        location.unwrap_or_else(|| (file.display().to_string(), 1, 1, message.to_owned()));
    SiteFinding { file, line, column, message, warning: false }
}

/// Reads the templates below a folder.
fn collect_scripts(folder: &Path, node_path: &str, set: &mut ScriptSet) -> Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let (file, name) = (entry.path(), entry.file_name());
        let node_path = format!("{node_path}/{}", name.to_string_lossy());
        if file.is_dir() {
            collect_scripts(&file, &node_path, set)?;
        } else if file.extension().is_some_and(|extension| extension == "j2") {
            let bytes = fs::read(&file).map_err(|source| {
                let action = format!("cannot read `{}`", file.display());
                Error::File { action, source }
            })?;
            set.scripts.insert(node_path, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

/// A site that is installed in memory.
struct InstalledSite {
    snapshot: Snapshot,
    /// The scripts and client libraries.
    scripts: ScriptSet,
}

/// Installs the site into a repository in memory, as an instance would.
fn install_in_memory(dir: &Path) -> Result<InstalledSite> {
    let failed = |error: tympan_content::Error| Error::Refused(error_chain_text(&error));
    let repository = Repository::in_memory().map_err(failed)?;
    let mut package = read_site_package(Some(dir))?;
    let mut session = repository.session("system").map_err(failed)?;
    package.install(&mut session, &mut |_| {})?;
    session.commit("check the site", std::time::SystemTime::now()).map_err(failed)?;
    let snapshot = repository.snapshot().map_err(failed)?;
    let scripts = RepositoryScriptSource::new(repository)
        .load_scripts(&snapshot)
        .map_err(|error| Error::Refused(error_chain_text(&error)))?;
    Ok(InstalledSite { snapshot, scripts })
}

/// Finds content nodes that no component renders.
fn missing_components(dir: &Path, snapshot: &Snapshot, set: &ScriptSet) -> Vec<SiteFinding> {
    let mut paths_by_type: BTreeMap<String, NodePath> = BTreeMap::new();
    let root = NodePath::new("/content").ok().and_then(|path| snapshot.node(&path).ok()?);
    if let Some(root) = root {
        collect_types(&root, &mut paths_by_type);
    }
    let rendered_types: BTreeSet<&str> =
        set.scripts.keys().filter_map(|path| Some(path.rsplit_once('/')?.0)).collect();
    let exists = |kind: &str| {
        SCRIPT_FOLDERS.iter().any(|folder| {
            let path = format!("/{folder}/{kind}");
            let node = NodePath::new(&path).ok().and_then(|path| snapshot.node(&path).ok()?);
            node.is_some() || rendered_types.contains(path.as_str())
        })
    };
    let is_own = |kind: &str| !NON_PAGE_TYPES.iter().any(|foreign| kind.starts_with(foreign));
    paths_by_type
        .into_iter()
        .filter(|(kind, _)| !kind.contains(':') && is_own(kind) && !exists(kind))
        .map(|(kind, path)| {
            let (file, line) = type_location(dir, &path, &kind);
            let message =
                format!("`{path}` has the type `{kind}`, which no component below `apps` renders");
            SiteFinding {
                file: file.display().to_string(),
                line,
                column: 1,
                message,
                warning: false,
            }
        })
        .collect()
}

/// Finds components that their parents do not allow.
fn disallowed_children(dir: &Path, snapshot: &Snapshot) -> Vec<SiteFinding> {
    let root = NodePath::new("/content").ok().and_then(|path| snapshot.node(&path).ok()?);
    let mut findings = Vec::new();
    if let Some(root) = root {
        check_children(dir, &root, &mut findings);
    }
    findings
}

/// Finds the conditions of dialogs that are not evaluated, each once.
fn unknown_dialog_conditions(dir: &Path, snapshot: &Snapshot) -> Vec<SiteFinding> {
    let root = NodePath::new("/apps").ok().and_then(|path| snapshot.node(&path).ok()?);
    let unknown = root.and_then(|root| check_dialogs(&root).ok()).unwrap_or_default();
    unknown
        .into_iter()
        .filter_map(|finding| {
            let path = NodePath::new(&finding.path).ok()?;
            let (file, line) = type_location(dir, &path, &finding.condition);
            let (file, message) = (file.display().to_string(), finding.message);
            Some(SiteFinding { file, line, column: 1, message, warning: true })
        })
        .collect()
}

fn check_children(dir: &Path, node: &Node, findings: &mut Vec<SiteFinding>) {
    // If an editable template lists no components, none can be added, and existing ones are no mistake.
    let policy =
        ContainerPolicy::of_container(node).ok().flatten().filter(ContainerPolicy::is_explicit);
    for child in node.children().unwrap_or_default() {
        if let (Some(policy), Some(kind)) = (&policy, child.resource_type())
            && !policy.allows(node.snapshot(), &kind).unwrap_or(true)
        {
            let (file, line) = type_location(dir, child.path(), &kind);
            let entries: Vec<&str> = policy.entries().collect();
            let message = format!(
                "`{}` has the type `{kind}`, which is not allowed here: `{}` allows {}",
                child.path(),
                policy.source(),
                entries.join(", ")
            );
            let file = file.display().to_string();
            findings.push(SiteFinding { file, line, column: 1, message, warning: false });
        }
        check_children(dir, &child, findings);
    }
}

/// Records the first node of each resource type.
fn collect_types(node: &Node, paths_by_type: &mut BTreeMap<String, NodePath>) {
    if let Some(kind) = node.resource_type() {
        let kind = kind.trim_start_matches("/apps/").to_owned();
        paths_by_type.entry(kind).or_insert_with(|| node.path().clone());
    }
    for child in node.children().unwrap_or_default() {
        collect_types(&child, paths_by_type);
    }
}

/// Finds the file and line of a node's type.
fn type_location(dir: &Path, path: &NodePath, kind: &str) -> (PathBuf, usize) {
    let mut next = Some(path.clone());
    while let Some(path) = next {
        let folder =
            dir.join(tympan_render::url::mangle_namespaces(path.as_str()).trim_start_matches('/'));
        let file = folder.join(".content.xml");
        if let Ok(text) = fs::read_to_string(&file) {
            let line = text.lines().position(|line| line.contains(kind)).map_or(1, |at| at + 1);
            return (file, line);
        }
        next = path.parent();
    }
    (dir.to_owned(), 1)
}
