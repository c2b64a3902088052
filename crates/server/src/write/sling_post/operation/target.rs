//! The target nodes of a POST, and the names of new nodes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use http::StatusCode;
use tympan_content::{JCR_CONTENT, NodePath, Snapshot};

use super::PostOperation;
use crate::failure::{RequestFailure, Result};
use crate::query::budget::ReadBudget;
use crate::write::sling_post::form_field::PostFields;

/// Maximum number of numeric suffixes tried for a name that is in use.
const MAX_NAME_SUFFIXES: usize = 1_000;

/// Returns the target paths of an operation like [`operation_targets`]; includes paths without a node where that is
/// allowed.
pub(crate) fn operation_targets_or_missing(
    snapshot: &Snapshot,
    path: &str,
    fields: &PostFields,
    budget: ReadBudget,
    may_be_missing: bool,
) -> Result<Vec<String>> {
    match operation_targets(snapshot, path, fields, budget) {
        Err(failure) if may_be_missing && failure.status == StatusCode::NOT_FOUND => {
            Ok(vec![NodePath::new(cut_selectors(path))?.to_string()])
        }
        targets => targets,
    }
}

/// Returns the target paths of an operation: those of `:applyTo`, each once, or the path of the request. The
/// children of folders are taken from the budget.
pub(crate) fn operation_targets(
    snapshot: &Snapshot,
    path: &str,
    fields: &PostFields,
    mut budget: ReadBudget,
) -> Result<Vec<String>> {
    let patterns = fields.command_values(":applyTo");
    if patterns.is_empty() {
        return Ok(vec![find_url_node(snapshot, path)?.to_string()]);
    }
    let base = match find_url_node(snapshot, path) {
        Ok(path) => path,
        Err(_) => NodePath::new(cut_selectors(path)).unwrap_or_else(|_| NodePath::root()),
    };
    let mut targets = ApplyTargets::default();
    for pattern in patterns {
        let folder = match pattern {
            "*" | "/*" => Some(base.clone()),
            pattern => pattern.strip_suffix("/*").map(|folder| base.resolve(folder)).transpose()?,
        };
        match folder {
            Some(folder) if targets.add_folder(&folder) => {
                if let Some(node) = snapshot.node(&folder)? {
                    let children = node.children()?;
                    budget.count_nodes(children.len(), "apply it to fewer nodes")?;
                    children.iter().for_each(|child| targets.add(child.path()));
                }
            }
            Some(_) => {}
            // Missing nodes are skipped, as in Sling.
            None => {
                let path = base.resolve(pattern)?;
                if snapshot.node(&path)?.is_some() {
                    targets.add(&path);
                }
            }
        }
    }
    Ok(targets.paths)
}

/// The targets of `:applyTo`, in order and without duplicates.
#[derive(Debug, Default)]
struct ApplyTargets {
    paths: Vec<String>,
    known_paths: HashSet<NodePath>,
    known_folders: HashSet<NodePath>,
}

impl ApplyTargets {
    /// Returns true if the children of a folder were not added before.
    fn add_folder(&mut self, folder: &NodePath) -> bool {
        self.known_folders.insert(folder.clone())
    }

    fn add(&mut self, path: &NodePath) {
        if self.known_paths.insert(path.clone()) {
            self.paths.push(path.to_string());
        }
    }
}

/// Finds the node of a URL: the path itself, or the path without selectors and extension.
pub(super) fn find_url_node(snapshot: &Snapshot, path: &str) -> Result<NodePath> {
    for candidate in [path, cut_selectors(path)] {
        if let Ok(candidate) = NodePath::new(candidate)
            && snapshot.node(&candidate)?.is_some()
        {
            return Ok(candidate);
        }
    }
    Err(RequestFailure::not_found(path))
}

/// Removes selectors and extension from the last name.
pub(super) fn cut_selectors(path: &str) -> &str {
    let from = path.rfind('/').map_or(0, |at| at + 1);
    match path.get(from..).and_then(|name| name.find('.')) {
        Some(0) | None => path,
        Some(dot) => path.get(..from + dot).unwrap_or(path),
    }
}

impl PostOperation<'_> {
    /// Finds the node to change, or the path of the node to create.
    pub(super) fn resolve_target(
        &mut self,
        path: &str,
        fields: &PostFields,
    ) -> Result<(NodePath, bool)> {
        if let Some(folder) = path.strip_suffix("/*").or_else(|| path.strip_suffix('/')) {
            let folder = if folder.is_empty() { NodePath::root() } else { NodePath::new(folder)? };
            return Ok((self.choose_new_path(&folder, fields)?, true));
        }
        let snapshot = self.session.snapshot()?;
        match find_url_node(&snapshot, path) {
            Ok(path) => Ok((path, false)),
            Err(_) => Ok((NodePath::new(cut_selectors(path))?, true)),
        }
    }

    /// Returns the path of a new node in a folder, with the requested name or a generated one.
    fn choose_new_path(&mut self, folder: &NodePath, fields: &PostFields) -> Result<NodePath> {
        if let Some(name) = fields.command_value(":name") {
            return Ok(folder.child(name)?);
        }
        let path = folder.child(&self.choose_free_name(folder, fields)?)?;
        self.chosen_path = Some(path.clone());
        Ok(path)
    }

    /// Generates the name of a new node by Sling's rules.
    fn choose_free_name(&mut self, folder: &NodePath, fields: &PostFields) -> Result<String> {
        const SOURCES: [&str; 6] =
            ["title", "jcr:title", "name", "description", "jcr:description", "abstract"];
        let from_content = || {
            let content = SOURCES.iter().map(|name| format!("{JCR_CONTENT}/{name}"));
            let own = SOURCES.iter().map(|name| (*name).to_owned());
            own.chain(content).find_map(|name| fields.property_value(&name).map(str::to_owned))
        };
        let hint = fields.command_value(":nameHint").map(str::to_owned).or_else(from_content);
        let base = hint.map(|hint| to_node_name(&hint)).filter(|name| !name.is_empty());
        let snapshot = self.session.snapshot()?;
        let rejected_paths = self.rejected_paths;
        let is_taken = |name: &str| -> Result<bool> {
            let path = folder.child(name)?;
            Ok(rejected_paths.contains(&path) || snapshot.node(&path)?.is_some())
        };
        let Some(base) = base else { return Ok(default_node_name(self.now)) };
        if !is_taken(&base)? {
            return Ok(base);
        }
        for number in 0..MAX_NAME_SUFFIXES {
            let name = format!("{base}_{number}");
            if !is_taken(&name)? {
                return Ok(name);
            }
        }
        Ok(format!("{base}_{}", default_node_name(self.now)))
    }

    /// Returns the path for imported content: below the node of the request, under the name from `:name`, `:nameHint`
    /// or the content itself, or at the node.
    pub(super) fn import_path(
        &mut self,
        path: &str,
        fields: &PostFields,
        own: &str,
    ) -> Result<NodePath> {
        let folder = path.strip_suffix("/*").or_else(|| path.strip_suffix('/'));
        let at = match folder {
            Some("") => NodePath::root(),
            Some(folder) => NodePath::new(folder)?,
            None => {
                let snapshot = self.session.snapshot()?;
                find_url_node(&snapshot, path)
                    .or_else(|_| Ok::<_, RequestFailure>(NodePath::new(cut_selectors(path))?))?
            }
        };
        match (fields.command_value(":name"), fields.command_value(":nameHint")) {
            (Some(name), _) => Ok(at.child(name)?),
            (None, Some(_)) => self.choose_new_path(&at, fields),
            (None, None) if !own.is_empty() => Ok(at.child(own)?),
            (None, None) if folder.is_some() => self.choose_new_path(&at, fields),
            (None, None) => Ok(at),
        }
    }
}

/// Returns a name for a node whose request does not suggest one: a counter since the start, and the time in
/// milliseconds. Searching for a free name would check each existing one.
fn default_node_name(now: SystemTime) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let millis = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    format!("{count}_{millis}")
}

/// Converts a text to a node name with Sling's filter: lower case, `_` for all but letters and digits, at most 20
/// characters.
fn to_node_name(hint: &str) -> String {
    let mut name = String::new();
    for character in hint.trim().to_lowercase().chars() {
        let character = if character.is_ascii_lowercase() || character.is_ascii_digit() {
            character
        } else {
            '_'
        };
        if name.is_empty() && character.is_ascii_digit() {
            name.push('_');
        }
        if character != '_' || !name.ends_with('_') {
            name.push(character);
        }
        if name.len() >= 20 {
            break;
        }
    }
    name.truncate(20);
    if name == "_" { String::new() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_slings_filter() {
        for (hint, expected) in [
            ("Hello World", "hello_world"),
            ("  A -- B  ", "a_b"),
            ("2026 plans", "_2026_plans"),
            ("ÄÖÜ", ""),
            ("a very long title that goes on", "a_very_long_title_th"),
        ] {
            assert_eq!(to_node_name(hint), expected, "{hint}");
        }
    }

    #[test]
    fn selectors_and_extension_are_cut() {
        for (path, expected) in [
            ("/a/b.html", "/a/b"),
            ("/a/b.x.y.html", "/a/b"),
            ("/a.b/c", "/a.b/c"),
            ("/a/.hidden", "/a/.hidden"),
        ] {
            assert_eq!(cut_selectors(path), expected);
        }
    }
}
