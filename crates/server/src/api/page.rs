//! What the authoring interface shows of pages: listings with their state, a page with its components, dialogs, and who
//! is logged in.

use std::collections::HashMap;

use serde_json::{Value, json};
use tympan_content::{Date, Index, JCR_CONTENT, Node, Snapshot, Summary};
use tympan_jobs::JobState;
use tympan_render::Policy;
use tympan_replicate::{agents, topic_of};

use crate::Instance;
use crate::api::children::{AFTER, SORT, select};
use crate::api::endpoint::{
    Answer, BRANCH, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::queue::MAX_JOBS;
use crate::api::{node, tag};
use crate::dialog::{component, describe, is_container, is_group, title_of};
use crate::failure::{Failure, Result};

/// The most entries one listing returns.
const MAX_LIMIT: u64 = 1000;
/// The farthest that a listing is asked for by position.
const MAX_OFFSET: u64 = 100_000_000;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/me",
        id: "whoAmI",
        about: "Tells who asks, with the CSRF token that writes with a session cookie repeat in `X-CSRF-Token`.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Me", "Who asks.")],
        handler: Handler::Work(me),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/pages",
        id: "listPages",
        about: "Lists what is below a folder or page, with the state of each between its author and the visitors: by \
                position, or with `sort` page by page.",
        parameters: &[
            Parameter::required("path", Kind::Path, "The folder or page."),
            BRANCH,
            SORT,
            AFTER,
            Parameter::new(
                "offset",
                Kind::Integer(0, MAX_OFFSET),
                "How many entries come before the page, in the parent's own order. Default 0.",
            ),
            Parameter::new(
                "limit",
                Kind::Integer(1, MAX_LIMIT),
                "The length of the page. Default 100.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("PageList", "A part of the listing.")],
        handler: Handler::Task(pages),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/page",
        id: "readPage",
        about: "Describes a page for its editor: its state, its components, and those that may be inserted.",
        parameters: &[Parameter::required("path", Kind::Path, "The page."), BRANCH],
        body: Body::None,
        answers: &[Answer::json("Page", "The page.")],
        handler: Handler::Task(page),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/dialog",
        id: "readDialog",
        about: "Describes the dialog of a component on a page: its fields, and what they hold.",
        parameters: &[Parameter::required("path", Kind::Path, "The component's node."), BRANCH],
        body: Body::None,
        answers: &[Answer::json("Dialog", "The dialog.")],
        handler: Handler::Work(dialog),
    },
];

/// Tells the interface who is logged in.
fn me(instance: &Instance, call: &Call) -> Result<Reply> {
    let csrf = call.identity.as_ref().and_then(|identity| identity.csrf.clone());
    Ok(Reply::json(json!({
        "user": call.user(),
        "csrf": csrf,
        "version": env!("CARGO_PKG_VERSION"),
        "role": instance.role.name(),
    })))
}

/// Lists what is below a folder or page.
fn pages(call: Call) -> Pending {
    Box::pin(async move {
        let waiting = waiting_paths(&call.instance).await?;
        let instance = call.instance.clone();
        instance.work(move |_| list(&call, &waiting)).await
    })
}

fn list(call: &Call, waiting: &HashMap<String, JobState>) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let folder = node::find(&snapshot, &call.path("path")?)?;
    let is_sorted = call.text("sort").is_some() || call.text("after").is_some();
    let (children, next) = match (is_sorted, call.text("offset")) {
        (true, Some(_)) => {
            let message = "a sorted listing goes on by `after`, not by `offset`";
            return Err(Failure::bad_request(message));
        }
        (true, None) => select(&folder, call)?,
        (false, _) => {
            let (offset, limit) = (call.number("offset", 0), call.number("limit", 100));
            (folder.listed_page(offset, limit)?, None)
        }
    };
    let items = children.iter().map(|node| item(node, waiting)).collect::<Result<Vec<_>>>()?;
    Ok(Reply::json(json!({
        "path": folder.path().as_str(),
        "title": title(&folder),
        "type": kind_of(&folder),
        "crumbs": crumbs(&folder)?,
        "total": folder.count_listed_children()?,
        "items": items,
        "next": next,
    })))
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
        Some(JobState::GivenUp | JobState::Error) => return "failed",
        Some(JobState::Held | JobState::Delayed | JobState::Queued | JobState::Active) => {
            return "queued";
        }
        Some(JobState::Succeeded | JobState::Stopped) | None => {}
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
        for job in instance.queues.list_topic(&topic_of(role, &agent.name), MAX_JOBS).await? {
            if let Some(path) = job.properties.get("path").and_then(Value::as_str) {
                waiting.insert(path.to_owned(), job.state);
            }
        }
    }
    Ok(waiting)
}

/// Describes a page for its editor.
fn page(call: Call) -> Pending {
    Box::pin(async move {
        let waiting = waiting_paths(&call.instance).await?;
        let instance = call.instance.clone();
        instance.work(move |_| describe_page(&call, &waiting)).await
    })
}

fn describe_page(call: &Call, waiting: &HashMap<String, JobState>) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let page = node::find(&snapshot, &call.path("path")?)?;
    let summary = page.summary().cloned().unwrap_or_default();
    let absent = || Failure::not_found(&format!("{}/{JCR_CONTENT}", page.path()));
    let content = page.content()?.ok_or_else(absent)?;
    let resource_type = content.resource_type().unwrap_or_default();
    let body = json!({
        "path": page.path().as_str(),
        "title": title(&page),
        "url": format!("{}.html", page.path()),
        "status": status(page.path().as_str(), &summary, waiting),
        "activated": iso(summary.activated()),
        "modified": iso(summary.modified()),
        "modifiedBy": summary.modified_by(),
        "content": {
            "path": content.path().as_str(),
            "resourceType": resource_type,
            "title": title_of(component(&snapshot, &resource_type)?.as_ref(), &resource_type),
            "allowed": allowed_in(&content)?,
        },
        "components": components(&content, 0)?,
        "insertable": insertable(&snapshot)?,
    });
    Ok(Reply::tagged(body, tag::of_document(&call.instance, &page)))
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
                    "allowed": allowed_in(&child)?,
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
            "allowed": allowed_in(&child)?,
            "resourceType": resource_type,
            "children": children,
        }));
    }
    Ok(described)
}

/// Lists the components that may lie in one; nothing if all may.
fn allowed_in(container: &Node) -> Result<Option<Vec<String>>> {
    let Some(policy) = Policy::of(container)? else { return Ok(None) };
    let snapshot = container.snapshot();
    let mut allowed = Vec::new();
    for path in snapshot.look_up(Index::Type, "cq:Component")? {
        let path = path.as_str();
        let resource_type = path.strip_prefix("/apps/").or_else(|| path.strip_prefix("/libs/"));
        if let Some(resource_type) = resource_type
            && policy.allows(snapshot, resource_type)?
        {
            allowed.push(resource_type.to_owned());
        }
    }
    Ok(Some(allowed))
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
            let thumbnail = node.child("thumbnail.png")?.map(|file| file.path().to_string());
            list.push(json!({
                "resourceType": resource_type, "title": title, "group": group, "thumbnail": thumbnail,
            }));
        }
    }
    list.sort_by_key(|entry| (entry["group"].to_string(), entry["title"].to_string()));
    Ok(list)
}

/// Describes the dialog of a resource.
fn dialog(_: &Instance, call: &Call) -> Result<Reply> {
    let node = node::find(&call.snapshot()?, &call.path("path")?)?;
    Ok(Reply::tagged(describe(&node)?, tag::of_document(&call.instance, &node)))
}
