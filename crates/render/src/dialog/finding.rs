//! The conditions of dialogs that this program does not evaluate, for the check of a site.

use std::collections::BTreeMap;

use tympan_content::{Node, Property, Result, Subtree};

use super::component_definition::ComponentPart;
use super::render_condition::{HIDE_EXPRESSION, condition_kind, condition_of, is_evaluated};

/// A condition of a dialog that is not evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialogFinding {
    /// The path of the first part of a dialog that has the condition.
    pub path: String,
    /// The condition: a resource type or an expression.
    pub condition: String,
    /// The problem.
    pub message: String,
}

/// Returns the conditions in the dialogs of all components below a node that are not evaluated, each once.
///
/// # Errors
/// If content cannot be read.
pub fn check_dialogs(root: &Node) -> Result<Vec<DialogFinding>> {
    let mut paths = BTreeMap::new();
    collect_components(root, &mut paths)?;
    Ok(paths
        .into_iter()
        .map(|(condition, path)| DialogFinding {
            message: format!(
                "`{path}` depends on `{condition}`, which is not evaluated: it is always shown"
            ),
            path,
            condition,
        })
        .collect())
}

fn collect_components(node: &Node, paths: &mut BTreeMap<String, String>) -> Result<()> {
    for child in node.children()? {
        let is_dialog = [ComponentPart::Dialog, ComponentPart::DesignDialog]
            .iter()
            .any(|part| child.name() == part.node_name());
        match is_dialog {
            true => collect_conditions(&child.read_subtree()?, child.path().as_str(), paths),
            false => collect_components(&child, paths)?,
        }
    }
    Ok(())
}

fn collect_conditions(part: &Subtree, path: &str, paths: &mut BTreeMap<String, String>) {
    let mut unknown = Vec::new();
    unknown.extend(part.properties.get(HIDE_EXPRESSION).and_then(unknown_expression));
    if let Some(condition) = condition_of(part) {
        collect_unknown(condition, &mut unknown);
    }
    for condition in unknown {
        paths.entry(condition).or_insert_with(|| path.to_owned());
    }
    for child in &part.children {
        collect_conditions(child, &format!("{path}/{}", child.name), paths);
    }
}

/// Collects what is not evaluated in a condition.
fn collect_unknown(condition: &Subtree, unknown: &mut Vec<String>) {
    match condition_kind(condition) {
        Some("and" | "or" | "not") => {
            condition.children.iter().for_each(|operand| collect_unknown(operand, unknown));
        }
        Some("privilege") => {
            unknown.extend(condition.properties.get("path").and_then(unknown_expression));
        }
        Some(_) => {
            unknown.extend(condition.properties.get("expression").and_then(unknown_expression));
        }
        None => unknown.extend(condition.text("sling:resourceType").map(str::to_owned)),
    }
}

fn unknown_expression(property: &Property) -> Option<String> {
    let text = property.first()?.to_text();
    (!is_evaluated(property)).then(|| text.into_owned())
}
