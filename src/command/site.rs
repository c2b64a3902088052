//! `tympan site`: creates a site's folder, and reports problems in one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tympan_content::{Node, NodePath, Repository, Snapshot};
use tympan_render::{ContainerPolicy, ScriptSet, check_scripts};
use tympan_terminal::{
    CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, error_chain_text, say,
};

use crate::args::SiteCommand;
use crate::site::{home_page_path, publisher_config, read_site_package};

/// The folders of a site that hold templates.
const SCRIPT_FOLDERS: [&str; 2] = ["apps", "libs"];

/// Types that render no page of their own: dialogs and resources of the editor.
const NON_PAGE_TYPES: [&str; 5] = ["cq/", "granite/", "dam/", "wcm/", "sling/"];

/// The files of a new site: path and text, in which `SITE` stands for its name and `TITLE` for its title.
const NEW_SITE_FILES: [(&str, &str); 15] = [
    ("site.toml", include_str!("../site_new/site.toml")),
    ("goals.toml", include_str!("../../site/goals.toml")),
    ("apps/SITE/.content.xml", FOLDER_XML),
    ("apps/SITE/components/.content.xml", FOLDER_XML),
    ("apps/SITE/components/page/.content.xml", include_str!("../site_new/page.xml")),
    ("apps/SITE/components/page/page.html.j2", include_str!("../site_new/page.html.j2")),
    (
        "apps/SITE/components/page/_cq_dialog/.content.xml",
        include_str!("../site_new/page_dialog.xml"),
    ),
    ("apps/SITE/components/container/.content.xml", include_str!("../site_new/container.xml")),
    (
        "apps/SITE/components/container/container.html.j2",
        include_str!("../site_new/container.html.j2"),
    ),
    ("apps/SITE/components/text/.content.xml", include_str!("../site_new/text.xml")),
    ("apps/SITE/components/text/text.html.j2", include_str!("../site_new/text.html.j2")),
    (
        "apps/SITE/components/text/_cq_dialog/.content.xml",
        include_str!("../site_new/text_dialog.xml"),
    ),
    ("content/SITE/.content.xml", include_str!("../site_new/home.xml")),
    ("content/SITE/about/.content.xml", include_str!("../site_new/about.xml")),
    ("etc.clientlibs/SITE/site.css", include_str!("../site_new/site.css")),
];

const FOLDER_XML: &str = include_str!("../site_new/folder.xml");

/// Runs the command.
///
/// # Errors
/// If the folder cannot be read or written.
pub(crate) fn run_site_command(site: &SiteCommand) -> CommandOutcome {
    match site {
        SiteCommand::New { dir } => create_site(dir),
        SiteCommand::Check { dir, json } => print_findings(&check_site(dir)?, *json),
    }
}

/// Writes a new site.
fn create_site(dir: &Path) -> CommandOutcome {
    let is_taken = fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if is_taken || dir.is_file() {
        return Err(CommandFault::usage(format!(
            "`{}` already exists and is not empty",
            dir.display()
        )));
    }
    let folder = dir.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_lowercase();
    let is_name = !folder.is_empty()
        && folder
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if !is_name {
        return Err(CommandFault::usage(format!(
            "the last component of `{}` becomes the name of the site; use letters, digits and `-` only",
            dir.display()
        )));
    }
    let mut letters = folder.chars();
    let title: String =
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
    for (path, text) in NEW_SITE_FILES {
        let file = dir.join(path.replace("SITE", &folder));
        let text = text.replace("SITE", &folder).replace("TITLE", &title);
        let written =
            file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&file, text));
        written.map_err(|error| {
            CommandFault::cannot_run(format!("cannot write `{}`: {error}", file.display()))
        })?;
    }
    say!(
        "{}: created a site of two pages; run it with `tympan demo --site {}`",
        dir.display(),
        dir.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// A problem in a site.
#[derive(Debug, serde::Serialize)]
struct SiteFinding {
    file: String,
    line: usize,
    column: usize,
    message: String,
    warning: bool,
}

/// Prints findings.
fn print_findings(findings: &[SiteFinding], is_json: bool) -> CommandOutcome {
    if is_json {
        let text = serde_json::to_string_pretty(findings)
            .map_err(|error| CommandFault::cannot_run(format!("cannot write JSON: {error}")))?;
        say!("{text}");
    } else {
        for finding in findings {
            let kind = if finding.warning { "warning: " } else { "" };
            say!("{}:{}:{}: {kind}{}", finding.file, finding.line, finding.column, finding.message);
        }
        let errors = findings.iter().filter(|finding| !finding.warning).count();
        say!("{errors} errors, {} warnings", findings.len() - errors);
    }
    let is_sound = findings.iter().all(|finding| finding.warning);
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// Finds all problems.
fn check_site(dir: &Path) -> Result<Vec<SiteFinding>, CommandFault> {
    if !dir.is_dir() {
        return Err(CommandFault::usage(format!("`{}` is not a folder", dir.display())));
    }
    let mut findings = Vec::new();
    let described = home_page_path(Some(dir)).and_then(|_| publisher_config(Some(dir)));
    if let Err(fault) = described {
        findings.push(parse_located_message(fault.message(), &dir.join("site.toml")));
    }
    let mut set = ScriptSet::default();
    for folder in SCRIPT_FOLDERS {
        collect_scripts(&dir.join(folder), &format!("/{folder}"), &mut set)?;
    }
    for script_fault in check_scripts(&set) {
        let file = dir.join(script_fault.script.trim_start_matches('/'));
        findings.push(SiteFinding {
            file: file.display().to_string(),
            line: script_fault.line,
            column: script_fault.column,
            message: script_fault.message,
            warning: script_fault.is_warning,
        });
    }
    match install_in_memory(dir) {
        Ok(snapshot) => {
            findings.extend(missing_components(dir, &snapshot, &set));
            findings.extend(disallowed_children(dir, &snapshot));
        }
        Err(fault) => findings.push(parse_located_message(fault.message(), dir)),
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
fn collect_scripts(
    folder: &Path,
    node_path: &str,
    set: &mut ScriptSet,
) -> Result<(), CommandFault> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    for entry in entries.flatten() {
        let (file, name) = (entry.path(), entry.file_name());
        let node_path = format!("{node_path}/{}", name.to_string_lossy());
        if file.is_dir() {
            collect_scripts(&file, &node_path, set)?;
        } else if file.extension().is_some_and(|extension| extension == "j2") {
            let bytes = fs::read(&file).map_err(|error| {
                CommandFault::cannot_run(format!("cannot read `{}`: {error}", file.display()))
            })?;
            set.scripts.insert(node_path, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

/// Installs the site into a repository in memory, as an instance would.
fn install_in_memory(dir: &Path) -> Result<Snapshot, CommandFault> {
    let failed = |error: tympan_content::Error| CommandFault::usage(error_chain_text(&error));
    let repository = Repository::in_memory().map_err(failed)?;
    let mut package = read_site_package(Some(dir))?;
    let mut session = repository.session("system").map_err(failed)?;
    package
        .install(&mut session, &mut |_| {})
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    session.commit("check the site", std::time::SystemTime::now()).map_err(failed)?;
    repository.snapshot().map_err(failed)
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
