//! `/bin/wcmcommand`: creates, copies, moves and deletes pages.
//!
//! In: `cmd` and its parameters. Out: Sling's status with the path. Each command is one batch of the JSON API, so one
//! commit.

use std::sync::Arc;

use http::StatusCode;
use serde_json::{Value, json};
use tympan_content::{JCR_CONTENT, NodePath, Snapshot};

use super::aem_request::{AemRequest, PendingAemResponse, missing_node};
use super::refusal::not_implemented;
use crate::failure::{RequestFailure, Result};
use crate::write::page_creation::TEMPLATE_PROPERTY;
use crate::write::sling_post::PostOutcome;

/// Maximum number of pages of a command.
const MAX_COMMAND_PAGES: usize = 200;
/// Maximum number of attempts to create a page, if concurrent requests take the same names.
const MAX_NAME_ATTEMPTS: usize = 50;
/// Maximum number of referrers that a refusal to delete names.
const MAX_NAMED_REFERRERS: usize = 5;

/// Runs a command.
pub(super) fn run_page_command(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        request.require_post()?;
        let outcome = match request.required("cmd") {
            Ok("createPage") => create_page(&request).await,
            Ok("copyPage") => copy_pages(&request).await,
            Ok("movePage") => move_pages(&request).await,
            Ok("deletePage") => delete_pages(&request).await,
            Ok(other) => {
                let other: String = other.chars().take(40).collect();
                not_implemented(format!(
                    "`cmd={other}` is not supported; use createPage, copyPage, movePage or deletePage"
                ))
            }
            Err(failure) => Err(failure),
        };
        Ok(request.status_response(outcome))
    })
}

/// Changes for a response: Sling's keyword and its arguments.
type PostChanges = Vec<(&'static str, Vec<String>)>;

fn outcome(message: &str, changes: PostChanges) -> PostOutcome {
    let path = changes.first().and_then(|(_, paths)| paths.last()).cloned();
    let path = path.unwrap_or_default();
    PostOutcome { path, message: Some(message.to_owned()), changes, ..PostOutcome::default() }
}

async fn run_batch(request: &AemRequest, operations: Vec<Value>) -> Result<Value> {
    request.call("batch", &[], &json!({ "operations": operations })).await
}

/// Returns the paths of a repeated parameter.
fn pages_of(request: &AemRequest, name: &str) -> Result<Vec<NodePath>> {
    let paths = request.values(name).map(NodePath::new);
    let paths = paths.collect::<tympan_content::Result<Vec<_>>>()?;
    if paths.is_empty() || paths.len() > MAX_COMMAND_PAGES {
        let message = format!("send 1 to {MAX_COMMAND_PAGES} parameters `{name}`");
        return Err(RequestFailure::bad_request(message));
    }
    Ok(paths)
}

/// Creates a page from a template, with the template's content.
async fn create_page(request: &AemRequest) -> Result<PostOutcome> {
    let parent = NodePath::new(request.required("parentPath")?)?;
    let (title, label) = (request.value("title"), request.value("label"));
    let name = match (label, title) {
        (Some(label), _) => label.to_owned(),
        (None, Some(title)) => page_name(title),
        (None, None) => {
            return Err(RequestFailure::bad_request("send `label` or `title` for the new page"));
        }
    };
    let template = request.value("template").map(NodePath::new).transpose()?;
    let title = title.unwrap_or(&name).to_owned();
    let plan = Arc::new(move |snapshot: &Snapshot| {
        if snapshot.node(&parent)?.is_none() {
            return Err(missing_node(&parent));
        }
        let path = AemRequest::free_path(snapshot, &parent, &name)?;
        let operation = creation_operation(snapshot, &path, &title, template.as_ref())?;
        Ok((path, operation))
    });
    let mut attempts = 0;
    let path = loop {
        let plan = Arc::clone(&plan);
        let (path, operation) = request.read_content(move |snapshot| plan(snapshot)).await?;
        attempts += 1;
        match run_batch(request, vec![operation]).await {
            // Another request took the name.
            Err(failure)
                if failure.status == StatusCode::PRECONDITION_FAILED
                    && attempts < MAX_NAME_ATTEMPTS => {}
            done => break done.map(|_| path)?,
        }
    };
    Ok(outcome("Page created", vec![("created", vec![path.to_string()])]))
}

/// Returns the operation that creates a page, unless there is something at its path. What its template begins with is
/// added as for every new page.
///
/// # Errors
/// 404 if there is no such template.
fn creation_operation(
    snapshot: &Snapshot,
    path: &NodePath,
    title: &str,
    template: Option<&NodePath>,
) -> Result<Value> {
    let properties = match template {
        None => json!({ "jcr:title": title }),
        Some(template) => {
            let node = snapshot.node(template)?;
            if node.is_none_or(|node| node.primary_type() != "cq:Template") {
                let message = format!("there is no template at `{template}`");
                return Err(RequestFailure::new(StatusCode::NOT_FOUND, message));
            }
            json!({ "jcr:title": title, TEMPLATE_PROPERTY: template.as_str() })
        }
    };
    let content = json!({ "type": "cq:PageContent", "properties": properties });
    let page = json!({ "type": "cq:Page", "children": { JCR_CONTENT: content } });
    Ok(json!({ "op": "put", "path": path.as_str(), "node": page, "ifNoneMatch": "*" }))
}

/// Returns the operation that creates a page without content, unless there is something at its path.
fn new_page(path: &NodePath) -> Value {
    let node = json!({ "type": "cq:Page" });
    json!({ "op": "put", "path": path.as_str(), "node": node, "ifNoneMatch": "*" })
}

/// Converts a title to the name of a page: letters, digits and `_` in lower case, `-` for anything else.
fn page_name(title: &str) -> String {
    let mut name = String::new();
    for letter in title.trim().chars().flat_map(char::to_lowercase) {
        let is_plain = letter.is_ascii_alphanumeric() || letter == '_';
        match is_plain {
            true => name.push(letter),
            false if !name.ends_with('-') => name.push('-'),
            false => {}
        }
    }
    let name = name.trim_matches('-');
    if name.is_empty() { "page".to_owned() } else { name.to_owned() }
}

/// The sources and targets of a copy or a move.
struct RelocationCommand {
    /// Each node with its new path.
    relocations: Vec<(NodePath, NodePath)>,
    /// The name of the sibling before which the nodes are put.
    before: Option<String>,
}

impl RelocationCommand {
    /// Reads `srcPath`, and `destParentPath` with `destName`, or `destPath`.
    fn read(request: &AemRequest) -> Result<Self> {
        let sources = pages_of(request, "srcPath")?;
        let name = request.value("destName");
        let target = request.value("destPath").map(NodePath::new).transpose()?;
        if sources.len() > 1 && (name.is_some() || target.is_some()) {
            let message =
                "several pages keep their names; send `destParentPath` without `destName`";
            return Err(RequestFailure::bad_request(message));
        }
        let mut relocations = Vec::new();
        for source in sources {
            let target = match &target {
                Some(target) => target.clone(),
                None => {
                    let parent = NodePath::new(request.required("destParentPath")?)?;
                    parent.child(name.unwrap_or_else(|| source.name()))?
                }
            };
            relocations.push((source, target));
        }
        let before = request.value("before").map(str::to_owned);
        Ok(Self { relocations, before })
    }

    /// Returns the operation that puts a node before its sibling.
    fn order_operation(&self, path: &NodePath) -> Option<Value> {
        let sibling = self.before.as_deref()?;
        Some(json!({ "op": "order", "path": path.as_str(), "place": "before", "sibling": sibling }))
    }
}

/// Copies pages; a taken name gets a number.
async fn copy_pages(request: &AemRequest) -> Result<PostOutcome> {
    let command = RelocationCommand::read(request)?;
    let is_shallow = request.is_set("shallow");
    let plan = move |snapshot: &Snapshot| copy_operations(snapshot, &command, is_shallow);
    let (operations, changes) = request.read_content(plan).await?;
    run_batch(request, operations).await?;
    Ok(outcome("Page copied", changes))
}

/// Returns the operations that copy pages, and the changes to report.
fn copy_operations(
    snapshot: &Snapshot,
    command: &RelocationCommand,
    is_shallow: bool,
) -> Result<(Vec<Value>, PostChanges)> {
    let (mut operations, mut changes) = (Vec::new(), Vec::new());
    for (from, to) in &command.relocations {
        let parent = to.parent().unwrap_or_else(NodePath::root);
        let to = AemRequest::free_path(snapshot, &parent, to.name())?;
        let source = snapshot.node(from)?.ok_or_else(|| missing_node(from))?;
        match source.child(JCR_CONTENT)?.filter(|_| is_shallow && source.is_page()) {
            Some(content) => operations.extend([
                new_page(&to),
                json!({
                    "op": "copy",
                    "from": content.path().as_str(),
                    "to": to.child(JCR_CONTENT)?.as_str(),
                }),
            ]),
            None => {
                operations.push(json!({ "op": "copy", "from": from.as_str(), "to": to.as_str() }));
            }
        }
        operations.extend(command.order_operation(&to));
        changes.push(("copied", vec![from.to_string(), to.to_string()]));
    }
    Ok((operations, changes))
}

/// Moves pages and adjusts the references to them; with `integrity` only if `adjust` names pages.
async fn move_pages(request: &AemRequest) -> Result<PostOutcome> {
    let command = RelocationCommand::read(request)?;
    if request.is_set("shallow") {
        return not_implemented("`shallow` is not supported for moves; child pages go along");
    }
    let is_adjusting = !request.is_set("integrity") || !listed_paths(request, "adjust").is_empty();
    let (mut operations, mut changes) = (Vec::new(), Vec::new());
    for (from, to) in &command.relocations {
        if from != to {
            operations.push(json!({
                "op": "move", "from": from.as_str(), "to": to.as_str(), "rewrite": is_adjusting,
            }));
        }
        operations.extend(command.order_operation(to));
        changes.push(("moved", vec![from.to_string(), to.to_string()]));
    }
    let done = &run_batch(request, operations).await?;
    let results = done["results"].as_array().into_iter().flatten();
    for result in results {
        for (list, keyword) in [("rewritten", "modified"), ("kept", "kept")] {
            let referrers = result[list].as_array().into_iter().flatten();
            changes.extend(referrers.map(|referrer| (keyword, vec![referrer_text(referrer)])));
        }
    }
    let publishes = listed_paths(request, "publish");
    if !publishes.is_empty() {
        let body = json!({ "action": "activate", "paths": publishes });
        request.call("replicate", &[], &body).await?;
    }
    Ok(outcome("Page moved", changes))
}

/// Returns the paths in a parameter, which is repeated or a JSON list.
fn listed_paths(request: &AemRequest, name: &str) -> Vec<String> {
    let lists = request.values(name).map(|value| {
        serde_json::from_str::<Vec<String>>(value).unwrap_or_else(|_| vec![value.to_owned()])
    });
    lists.flatten().filter(|path| !path.is_empty()).collect()
}

fn referrer_text(referrer: &Value) -> String {
    let text = |name: &str| referrer[name].as_str().unwrap_or_default();
    format!("{}/{}", text("path"), text("property"))
}

/// Deletes pages. Without `force`, pages to which others refer are refused, and with `checkChildren` pages with child
/// pages; with `shallow`, only the content of a page is deleted.
async fn delete_pages(request: &AemRequest) -> Result<PostOutcome> {
    let pages = pages_of(request, "path")?;
    let checked_pages = pages.clone();
    let refuses_children = request.is_set("checkChildren") && !request.is_set("force");
    let check = move |snapshot: &Snapshot| {
        for page in &checked_pages {
            let node = snapshot.node(page)?.ok_or_else(|| missing_node(page))?;
            if refuses_children && node.count_listed_children()? > 0 {
                let message =
                    format!("`{page}` has child pages; send `force=true` to delete them too");
                return Err(RequestFailure::new(StatusCode::PRECONDITION_FAILED, message));
            }
        }
        Ok(())
    };
    request.read_content(check).await?;
    if !request.is_set("force") {
        for page in &pages {
            refuse_referenced(request, &pages, page).await?;
        }
    }
    let is_shallow = request.is_set("shallow");
    let mut operations = Vec::new();
    for page in &pages {
        let path = if is_shallow { page.child(JCR_CONTENT)? } else { page.clone() };
        operations.push(json!({ "op": "delete", "path": path.as_str() }));
    }
    run_batch(request, operations).await?;
    let changes = pages.iter().map(|page| ("deleted", vec![page.to_string()]));
    Ok(outcome("Page deleted", changes.collect()))
}

/// Refuses to delete a page to which nodes outside the deleted pages refer.
async fn refuse_referenced(
    request: &AemRequest,
    pages: &[NodePath],
    page: &NodePath,
) -> Result<()> {
    let parameters = [("path", page.as_str()), ("deep", "true")];
    let references = &request.call("listReferences", &parameters, &Value::Null).await?;
    let is_outside = |referrer: &&Value| {
        let path = referrer["path"].as_str().and_then(|path| NodePath::new(path).ok());
        path.is_some_and(|path| !pages.iter().any(|page| path.is_within(page)))
    };
    let referrers = references["usedBy"].as_array().into_iter().flatten().filter(is_outside);
    let referrers: Vec<String> = referrers.map(referrer_text).collect();
    if referrers.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = referrers.iter().take(MAX_NAMED_REFERRERS).map(String::as_str).collect();
    let message = format!(
        "`{page}` is referenced by {} properties, such as {}; send `force=true` to delete it anyway",
        referrers.len(),
        named.join(", ")
    );
    Err(RequestFailure::new(StatusCode::PRECONDITION_FAILED, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pages_come_from_their_titles() {
        for (title, expected) in
            [("About Us", "about-us"), ("  A & B_c!  ", "a-b_c"), ("ÄÖ", "page"), ("2026", "2026")]
        {
            assert_eq!(page_name(title), expected, "{title}");
        }
    }
}
