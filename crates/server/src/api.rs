//! The JSON API of the authoring interface.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use serde_json::{Value, json};
use tympan_content::{Date, Index, JCR_CONTENT, Node, NodePath, Privileges, Snapshot, Summary};
use tympan_jobs::{Job, JobId, JobState};
use tympan_replicate::{agents, queue_of};

use crate::dialog::{component, describe, is_container, title_of};
use crate::failure::{Failure, Result};
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};
use crate::{Instance, form};

/// The most entries one listing returns.
const MAX_LIMIT: usize = 1000;
/// The most jobs that the queue screen shows for an agent.
const MAX_JOBS: u32 = 500;

/// Tells who asks, or refuses.
pub(crate) async fn require_user(instance: &Instance, parts: &Parts) -> Result<Identity> {
    instance
        .identify(parts)
        .await?
        .ok_or_else(|| Failure::new(StatusCode::UNAUTHORIZED, "log in first"))
}

/// Whoever asks, logged in.
#[derive(Debug)]
pub(crate) struct User(pub(crate) Identity);

impl FromRequestParts<Arc<Instance>> for User {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, instance: &Arc<Instance>) -> Result<Self> {
        Ok(Self(require_user(instance, parts).await?))
    }
}

/// Whoever asks for a write, logged in, with the CSRF token in the header where one is needed.
#[derive(Debug)]
pub(crate) struct Writer(pub(crate) Identity);

impl FromRequestParts<Arc<Instance>> for Writer {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, instance: &Arc<Instance>) -> Result<Self> {
        let identity = require_user(instance, parts).await?;
        let token = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
        check_csrf(&identity, token)?;
        check_origin(&identity, &parts.headers)?;
        Ok(Self(identity))
    }
}

/// Tells the interface who is logged in.
pub(crate) async fn me(State(instance): State<Arc<Instance>>, user: User) -> Json<Value> {
    Json(json!({
        "user": user.0.user,
        "csrf": user.0.csrf,
        "version": env!("CARGO_PKG_VERSION"),
        "role": instance.role.name(),
    }))
}

#[derive(Debug, Deserialize)]
pub(crate) struct PagesQuery {
    path: String,
    #[serde(default)]
    offset: usize,
    limit: Option<usize>,
}

/// Lists what is below a folder or page.
pub(crate) async fn pages(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<PagesQuery>,
    user: User,
) -> Result<Response> {
    let waiting = waiting_paths(&instance).await?;
    let viewer = instance.viewer_of(Some(&user.0))?;
    let body = instance
        .work(move |instance| {
            let snapshot = instance.repository.snapshot()?.seen_by(&viewer);
            let folder = find(&snapshot, &query.path)?;
            let limit = query.limit.unwrap_or(100).min(MAX_LIMIT);
            let children = folder.listed_page(query.offset, limit)?;
            let items = children.iter().map(|node| item(node, &waiting));
            let items = items.collect::<Result<Vec<_>>>()?;
            Ok(json!({
                "path": folder.path().as_str(),
                "title": title(&folder),
                "type": kind_of(&folder),
                "crumbs": crumbs(&folder)?,
                "total": folder.count_listed_children()?,
                "items": items,
            }))
        })
        .await?;
    Ok(Json(body).into_response())
}

fn find(snapshot: &Snapshot, path: &str) -> Result<Node> {
    let path = NodePath::new(path)?;
    snapshot.node(&path)?.ok_or_else(|| Failure::not_found(path.as_str()))
}

fn title(node: &Node) -> String {
    let title = match node.summary() {
        Some(summary) => summary.title().map(str::to_owned),
        None => node.text("jcr:title"),
    };
    title.unwrap_or_else(|| {
        if node.path().is_root() { "/".to_owned() } else { node.name().to_owned() }
    })
}

/// Returns the folders and pages from `/content` down to the node.
fn crumbs(node: &Node) -> Result<Vec<Value>> {
    let mut crumbs = Vec::new();
    let mut next = Some(node.clone());
    while let Some(node) = next.filter(|node| !node.path().is_root()) {
        crumbs.push(json!({ "path": node.path().as_str(), "title": title(&node) }));
        next = node.parent()?;
    }
    crumbs.reverse();
    Ok(crumbs)
}

/// Returns what the interface takes a node for.
fn kind_of(node: &Node) -> &'static str {
    match node.primary_type() {
        "cq:Page" => "page",
        "rep:root"
        | "nt:folder"
        | "sling:Folder"
        | "sling:OrderedFolder"
        | "rep:AuthorizableFolder" => "folder",
        "dam:Asset" => "asset",
        _ => "node",
    }
}

fn item(node: &Node, waiting: &HashMap<String, JobState>) -> Result<Value> {
    let summary = node.summary().cloned().unwrap_or_default();
    Ok(json!({
        "path": node.path().as_str(),
        "name": node.name(),
        "title": title(node),
        "type": kind_of(node),
        "resourceType": summary.resource_type(),
        "template": summary.template(),
        "modified": iso(summary.modified()),
        "modifiedBy": summary.modified_by(),
        "hasChildren": node.has_listed_children()?,
        "status": status(node.path().as_str(), &summary, waiting),
        "activated": iso(summary.activated()),
    }))
}

fn iso(date: Option<Date>) -> Option<String> {
    date.map(|date| date.to_string())
}

/// Tells where a page stands between its author and the visitors.
fn status(path: &str, summary: &Summary, waiting: &HashMap<String, JobState>) -> &'static str {
    match waiting.get(path) {
        Some(JobState::GivenUp) => return "failed",
        Some(JobState::Held | JobState::Queued | JobState::Active) => return "queued",
        None => {}
    }
    match (summary.activation(), summary.activated(), summary.modified()) {
        (Some("Deactivate"), ..) => "deactivated",
        (_, Some(activated), Some(modified)) if modified.millis > activated.millis => "modified",
        (_, Some(_), _) => "live",
        (_, None, _) => "draft",
    }
}

/// Returns the paths that wait in the agents' queues, with the state of their job.
async fn waiting_paths(instance: &Instance) -> Result<HashMap<String, JobState>> {
    let role = instance.role.name();
    let mut waiting = HashMap::new();
    for agent in agents(&instance.repository.snapshot()?, role)? {
        for job in instance.queues.list(&queue_of(role, &agent.name), MAX_JOBS).await? {
            if let Some(path) = job.payload.get("path").and_then(Value::as_str) {
                waiting.insert(path.to_owned(), job.state);
            }
        }
    }
    Ok(waiting)
}

#[derive(Debug, Deserialize)]
pub(crate) struct PathQuery {
    path: String,
}

/// Describes a page for its editor.
pub(crate) async fn page(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<PathQuery>,
    user: User,
) -> Result<Response> {
    let waiting = waiting_paths(&instance).await?;
    let viewer = instance.viewer_of(Some(&user.0))?;
    let body = instance
        .work(move |instance| {
            let snapshot = instance.repository.snapshot()?.seen_by(&viewer);
            let page = find(&snapshot, &query.path)?;
            let summary = page.summary().cloned().unwrap_or_default();
            let content = page.content()?.ok_or_else(|| Failure::not_found(&format!("{}/{JCR_CONTENT}", query.path)))?;
            let resource_type = content.resource_type().unwrap_or_default();
            Ok(json!({
                "path": page.path().as_str(),
                "title": title(&page),
                "url": format!("{}.html", page.path()),
                "status": status(page.path().as_str(), &summary, &waiting),
                "activated": iso(summary.activated()),
                "modified": iso(summary.modified()),
                "modifiedBy": summary.modified_by(),
                "content": {
                    "path": content.path().as_str(),
                    "resourceType": resource_type,
                    "title": title_of(component(&snapshot, &resource_type)?.as_ref(), &resource_type),
                },
                "components": components(&content, 0)?,
                "insertable": insertable(&snapshot)?,
            }))
        })
        .await?;
    Ok(Json(body).into_response())
}

/// Describes the components below a node, with the nodes that group them.
fn components(node: &Node, depth: usize) -> Result<Vec<Value>> {
    let snapshot = node.snapshot();
    let mut described = Vec::new();
    if depth > 30 {
        return Ok(described);
    }
    for child in node.children()? {
        let children = components(&child, depth + 1)?;
        let Some(resource_type) = child.resource_type() else {
            // A node without a component is shown where it groups components.
            if !children.is_empty() || child.primary_type() == "nt:unstructured" && is_group(&child)
            {
                described.push(json!({
                    "path": child.path().as_str(),
                    "name": child.name(),
                    "resourceType": null,
                    "title": child.name(),
                    "label": child.name(),
                    "container": true,
                    "children": children,
                }));
            }
            continue;
        };
        let component_title =
            title_of(component(snapshot, &resource_type)?.as_ref(), &resource_type);
        let label =
            ["jcr:title", "title", "text", "alt", "name"].iter().find_map(|name| child.text(name));
        described.push(json!({
            "path": child.path().as_str(),
            "name": child.name(),
            "title": component_title,
            "label": label.map(|label| plain(&label)),
            "container": is_container(snapshot, &resource_type)?,
            "resourceType": resource_type,
            "children": children,
        }));
    }
    Ok(described)
}

/// Tells whether a node without a component is a place for components, empty as it may be.
fn is_group(node: &Node) -> bool {
    matches!(node.name(), "root" | "par" | "parsys" | "main" | "content")
}

/// Returns the first words of a text, without markup.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut is_tag = false;
    for character in text.chars() {
        match character {
            '<' => is_tag = true,
            '>' => is_tag = false,
            character if !is_tag => plain.push(character),
            _ => {}
        }
        if plain.len() > 80 {
            break;
        }
    }
    plain.trim().to_owned()
}

/// Lists the components that authors may insert.
fn insertable(snapshot: &Snapshot) -> Result<Vec<Value>> {
    let mut list = Vec::new();
    for path in snapshot.look_up(Index::Type, "cq:Component")? {
        let Some(node) = snapshot.node(&path)? else { continue };
        let group = node.text("componentGroup").unwrap_or_else(|| "General".to_owned());
        let resource_type =
            path.as_str().strip_prefix("/apps/").or_else(|| path.as_str().strip_prefix("/libs/"));
        if let (Some(resource_type), false) = (resource_type, group.starts_with('.')) {
            let title = title_of(Some(&node), resource_type);
            list.push(json!({ "resourceType": resource_type, "title": title, "group": group }));
        }
    }
    list.sort_by_key(|entry| (entry["group"].to_string(), entry["title"].to_string()));
    Ok(list)
}

/// Describes the dialog of a resource.
pub(crate) async fn dialog(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<PathQuery>,
    user: User,
) -> Result<Response> {
    let viewer = instance.viewer_of(Some(&user.0))?;
    let body = instance
        .work(move |instance| {
            describe(&find(&instance.repository.snapshot()?.seen_by(&viewer), &query.path)?)
        })
        .await?;
    Ok(Json(body).into_response())
}

/// Lists the agents with what waits for them, as far as the asker may see it.
pub(crate) async fn queue(
    State(instance): State<Arc<Instance>>,
    user: User,
) -> Result<Json<Value>> {
    let seen = instance.repository.snapshot()?.seen_by(&instance.viewer_of(Some(&user.0))?);
    let role = instance.role.name();
    let mut described = Vec::new();
    for agent in agents(&instance.repository.snapshot()?, role)? {
        let queue = queue_of(role, &agent.name);
        let jobs = instance.queues.list(&queue, MAX_JOBS).await?;
        described.push(json!({
            "name": agent.name,
            "title": agent.title,
            "target": agent.target,
            "enabled": agent.is_enabled,
            "blocked": instance.replicator.blocked(&agent.name),
            "queued": instance.queues.count(&queue).await?,
            "items": jobs.iter().filter(|job| is_seen(job, &seen)).map(job_item).collect::<Vec<_>>(),
        }));
    }
    Ok(Json(json!({ "agents": described })))
}

/// Tells whether the asker may see the node that a job is about, whether or not it is still there.
fn is_seen(job: &Job, seen: &Snapshot) -> bool {
    path_of(job).is_some_and(|path| seen.would_see(&path, "cq:Page"))
}

fn path_of(job: &Job) -> Option<NodePath> {
    NodePath::new(job.payload.get("path")?.as_str()?).ok()
}

fn job_item(job: &Job) -> Value {
    json!({
        "id": job.id.0,
        "action": job.payload.get("action"),
        "path": job.payload.get("path"),
        "user": job.user,
        "created": Date::from_system_time(job.created).to_string(),
        "attempt": job.attempt,
        "lastError": job.last_error,
        "state": job.state.name(),
    })
}

/// Lets a job run again now.
pub(crate) async fn retry(
    State(instance): State<Arc<Instance>>,
    writer: Writer,
    request: Request,
) -> Result<Json<Value>> {
    let id = job_of(&instance, request).await?;
    check_replicate(&instance, &writer.0, id).await?;
    let is_done = instance.queues.retry(id, SystemTime::now()).await?;
    instance.replicator.ring();
    Ok(Json(json!({ "changed": is_done })))
}

/// Removes a job that does not run.
pub(crate) async fn cancel(
    State(instance): State<Arc<Instance>>,
    writer: Writer,
    request: Request,
) -> Result<Json<Value>> {
    let id = job_of(&instance, request).await?;
    check_replicate(&instance, &writer.0, id).await?;
    let is_done = instance.queues.cancel(id).await?;
    instance.replicator.ring();
    Ok(Json(json!({ "changed": is_done })))
}

/// Refuses to touch a job for whoever may not replicate what it is about.
async fn check_replicate(instance: &Instance, identity: &Identity, id: JobId) -> Result<()> {
    let seen = instance.repository.snapshot()?.seen_by(&instance.viewer_of(Some(identity))?);
    let role = instance.role.name();
    for agent in agents(&instance.repository.snapshot()?, role)? {
        let jobs = instance.queues.list(&queue_of(role, &agent.name), MAX_JOBS).await?;
        if let Some(job) = jobs.iter().find(|job| job.id == id) {
            let path = path_of(job).unwrap_or_else(NodePath::root);
            return require_replicate(&seen, &path);
        }
    }
    Ok(())
}

/// Refuses whoever may not activate or deactivate a node.
pub(crate) fn require_replicate(seen: &Snapshot, path: &NodePath) -> Result<()> {
    if seen.allows(path, Privileges::REPLICATE)? {
        return Ok(());
    }
    let privilege = "crx:replicate";
    Err(tympan_content::Error::AccessDenied { path: path.clone(), privilege }.into())
}

/// Reads the job's number from a form or JSON body.
async fn job_of(instance: &Instance, request: Request) -> Result<JobId> {
    let (parts, body) = request.into_parts();
    let is_json = parts
        .headers
        .get(http::header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/json"));
    let id = if is_json {
        let bytes = axum::body::to_bytes(body, 4096)
            .await
            .map_err(|error| Failure::bad_request(error.to_string()))?;
        let body: Value = serde_json::from_slice(&bytes)
            .map_err(|error| Failure::bad_request(error.to_string()))?;
        body.get("id").and_then(Value::as_i64)
    } else {
        let fields = form::read(&parts.headers, body, None, &instance.spool).await?;
        fields.iter().find(|field| field.name == "id").and_then(|field| field.text()?.parse().ok())
    };
    id.map(JobId).ok_or_else(|| Failure::bad_request("say which job: `id`"))
}
