//! Data for the authoring interface: page listings with their status, a page with its components, dialogs, and the
//! current user.

use std::collections::HashMap;

use serde_json::{Value, json};
use tympan_content::{
    JCR_CONTENT, JcrDate, LookupIndex, Node, NodeSummary, Privileges, Snapshot,
    Value as ContentValue,
};
use tympan_jobs::JobState;
use tympan_render::ContainerPolicy;
use tympan_replicate::{agent_topic, read_agents};

use crate::Instance;
use crate::api::agent_queue::MAX_JOBS_PER_AGENT;
use crate::api::children::{AFTER_PARAMETER, SORT_PARAMETER, select_children};
use crate::api::endpoint::{
    ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler, EndpointMethod,
    EndpointParameter, ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::{entity_tag, node};
use crate::failure::{RequestFailure, Result};
use crate::page::dialog::{
    component_title, dialog_json, find_component, is_component_group, is_container,
};

/// Maximum number of entries in a listing.
const MAX_PAGE_SIZE: u64 = 1000;
/// Maximum offset of a listing.
const MAX_LIST_OFFSET: u64 = 100_000_000;

/// The API endpoints that this module defines.
pub(crate) const PAGE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/me",
        id: "whoAmI",
        description: "Returns the current user, with the CSRF token that writes with a session cookie must \
            send in `X-CSRF-Token`.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Me", "The authenticated user.")],
        handler: EndpointHandler::Blocking(read_current_user),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/pages",
        id: "listPages",
        description: "Lists the children of a folder or page with their publication state: by position, or \
            with `sort` page by page.",
        parameters: &[
            EndpointParameter::required("path", ParameterKind::Path, "The folder or page."),
            BRANCH_PARAMETER,
            SORT_PARAMETER,
            AFTER_PARAMETER,
            EndpointParameter::new(
                "offset",
                ParameterKind::Integer(0, MAX_LIST_OFFSET),
                "Number of entries to skip, in the parent's own order. Default 0.",
            ),
            EndpointParameter::new(
                "limit",
                ParameterKind::Integer(1, MAX_PAGE_SIZE),
                "Page size. Default 100.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("PageList", "A page of the listing.")],
        handler: EndpointHandler::Async(list_pages),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/page",
        id: "readPage",
        description: "Describes a page for its editor: its state, its components, and the components that may \
            be inserted.",
        parameters: &[
            EndpointParameter::required("path", ParameterKind::Path, "The page."),
            BRANCH_PARAMETER,
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Page", "The page.")],
        handler: EndpointHandler::Async(read_page),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/dialog",
        id: "readDialog",
        description: "Describes the dialog of a component on a page: its fields and their values.",
        parameters: &[
            EndpointParameter::required("path", ParameterKind::Path, "The component's node."),
            BRANCH_PARAMETER,
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Dialog", "The dialog.")],
        handler: EndpointHandler::Blocking(read_dialog),
    },
];

/// Returns the current user.
fn read_current_user(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let csrf = call.identity.as_ref().and_then(|identity| identity.csrf_token.clone());
    Ok(ApiResponse::json(json!({
        "user": call.user_name(),
        "csrf": csrf,
        "version": env!("CARGO_PKG_VERSION"),
        "role": instance.role.name(),
        "isAdministrator": instance.is_administrator(&call.viewer)?,
    })))
}

/// Lists the children of a folder or page.
fn list_pages(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let waiting = queued_paths(&call.instance).await?;
        let instance = call.instance.clone();
        instance.run_work(move |_| list_page_children(&call, &waiting)).await
    })
}

fn list_page_children(
    call: &ApiRequest,
    waiting: &HashMap<String, JobState>,
) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let folder = node::find_node(&snapshot, &call.path_parameter("path")?)?;
    let is_sorted = call.parameter("sort").is_some() || call.parameter("after").is_some();
    let (children, next) = match (is_sorted, call.parameter("offset")) {
        (true, Some(_)) => {
            let message = "a sorted listing is continued with `after`, not with `offset`";
            return Err(RequestFailure::bad_request(message));
        }
        (true, None) => select_children(&folder, call)?,
        (false, _) => {
            let (offset, limit) =
                (call.number_parameter("offset", 0), call.number_parameter("limit", 100));
            (folder.listed_page(offset, limit)?, None)
        }
    };
    let items =
        children.iter().map(|node| page_item_json(node, waiting)).collect::<Result<Vec<_>>>()?;
    Ok(ApiResponse::json(json!({
        "path": folder.path().as_str(),
        "title": page_title(&folder),
        "type": item_kind(&folder),
        "crumbs": breadcrumbs(&folder)?,
        "total": folder.count_listed_children()?,
        "items": items,
        "next": next,
    })))
}

fn page_title(node: &Node) -> String {
    let title = match node.summary() {
        Some(summary) => summary.title().map(str::to_owned),
        None => node.text("jcr:title"),
    };
    title.unwrap_or_else(|| {
        if node.path().is_root() { "/".to_owned() } else { node.name().to_owned() }
    })
}

/// Returns the folders and pages from `/content` down to the node.
fn breadcrumbs(node: &Node) -> Result<Vec<Value>> {
    let mut breadcrumbs = Vec::new();
    let mut next = Some(node.clone());
    while let Some(node) = next.filter(|node| !node.path().is_root()) {
        breadcrumbs.push(json!({ "path": node.path().as_str(), "title": page_title(&node) }));
        next = node.parent()?;
    }
    breadcrumbs.reverse();
    Ok(breadcrumbs)
}

/// Returns the kind of item that the interface shows a node as.
fn item_kind(node: &Node) -> &'static str {
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

fn page_item_json(node: &Node, waiting: &HashMap<String, JobState>) -> Result<Value> {
    let summary = node.summary().cloned().unwrap_or_default();
    Ok(json!({
        "path": node.path().as_str(),
        "name": node.name(),
        "title": page_title(node),
        "type": item_kind(node),
        "resourceType": summary.resource_type(),
        "template": summary.template(),
        "modified": to_iso_date(summary.last_modified()),
        "modifiedBy": summary.last_modified_by(),
        "hasChildren": node.has_listed_children()?,
        "status": publication_status(node.path().as_str(), &summary, waiting),
        "activated": to_iso_date(summary.activation_date()),
    }))
}

fn to_iso_date(date: Option<JcrDate>) -> Option<String> {
    date.map(|date| date.to_string())
}

/// Returns the publication status of a page.
fn publication_status(
    path: &str,
    summary: &NodeSummary,
    waiting: &HashMap<String, JobState>,
) -> &'static str {
    match waiting.get(path) {
        Some(JobState::GivenUp | JobState::Error) => return "failed",
        Some(JobState::Held | JobState::Delayed | JobState::Queued | JobState::Active) => {
            return "queued";
        }
        Some(JobState::Succeeded | JobState::Stopped) | None => {}
    }
    match (summary.activation_action(), summary.activation_date(), summary.last_modified()) {
        (Some("Deactivate"), ..) => "deactivated",
        (_, Some(activated), Some(modified)) if modified.millis > activated.millis => "modified",
        (_, Some(_), _) => "live",
        (_, None, _) => "draft",
    }
}

/// Returns the paths in the queues of the agents, with the state of their jobs.
async fn queued_paths(instance: &Instance) -> Result<HashMap<String, JobState>> {
    let role = instance.role.name();
    let mut waiting = HashMap::new();
    for agent in read_agents(&instance.repository.snapshot()?, role)? {
        for job in
            instance.queues.list_topic(&agent_topic(role, &agent.name), MAX_JOBS_PER_AGENT).await?
        {
            if let Some(path) = job.properties.get("path").and_then(Value::as_str) {
                waiting.insert(path.to_owned(), job.state);
            }
        }
    }
    Ok(waiting)
}

/// Returns the description of a page for the page editor.
fn read_page(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let waiting = queued_paths(&call.instance).await?;
        let instance = call.instance.clone();
        instance.run_work(move |_| page_json(&call, &waiting)).await
    })
}

fn page_json(call: &ApiRequest, waiting: &HashMap<String, JobState>) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let page = node::find_node(&snapshot, &call.path_parameter("path")?)?;
    let summary = page.summary().cloned().unwrap_or_default();
    let absent = || RequestFailure::not_found(&format!("{}/{JCR_CONTENT}", page.path()));
    let content = page.content_node()?.ok_or_else(absent)?;
    let resource_type = content.resource_type().unwrap_or_default();
    let body = json!({
        "path": page.path().as_str(),
        "title": page_title(&page),
        "url": format!("{}.html", page.path()),
        "status": publication_status(page.path().as_str(), &summary, waiting),
        "activated": to_iso_date(summary.activation_date()),
        "modified": to_iso_date(summary.last_modified()),
        "modifiedBy": summary.last_modified_by(),
        "onTime": publication_time(&content, "onTime"),
        "offTime": publication_time(&content, "offTime"),
        "denied": {
            "edit": !snapshot.has_privileges(content.path(), Privileges::MODIFY_PROPERTIES)?,
            "activate": !snapshot.has_privileges(page.path(), Privileges::REPLICATE)?,
        },
        "content": {
            "path": content.path().as_str(),
            "resourceType": resource_type,
            "title": component_title(find_component(&snapshot, &resource_type)?.as_ref(), &resource_type),
            "allowed": allowed_components(&content)?,
        },
        "components": component_list_json(&content, 0)?,
        "insertable": insertable_components(&snapshot)?,
    });
    Ok(ApiResponse::tagged(body, entity_tag::document_tag(&call.instance, &page)))
}

/// Returns the time at which a page appears or vanishes, if one is set.
fn publication_time(content: &Node, name: &str) -> Option<String> {
    match content.property(name)?.first()? {
        ContentValue::Date(date) => Some(date.to_string()),
        value => JcrDate::parse_lenient(&value.to_text()).ok().map(|date| date.to_string()),
    }
}

/// Describes the components below a node, including the nodes that group them.
fn component_list_json(node: &Node, depth: usize) -> Result<Vec<Value>> {
    let snapshot = node.snapshot();
    let mut described = Vec::new();
    if depth > 30 {
        return Ok(described);
    }
    for child in node.children()? {
        let children = component_list_json(&child, depth + 1)?;
        let Some(resource_type) = child.resource_type() else {
            // A node without a component is shown if it groups components.
            if !children.is_empty()
                || child.primary_type() == "nt:unstructured" && is_component_group(&child)
            {
                described.push(json!({
                    "path": child.path().as_str(),
                    "name": child.name(),
                    "resourceType": null,
                    "title": child.name(),
                    "label": child.name(),
                    "container": true,
                    "allowed": allowed_components(&child)?,
                    "children": children,
                }));
            }
            continue;
        };
        let component_title =
            component_title(find_component(snapshot, &resource_type)?.as_ref(), &resource_type);
        let label =
            ["jcr:title", "title", "text", "alt", "name"].iter().find_map(|name| child.text(name));
        described.push(json!({
            "path": child.path().as_str(),
            "name": child.name(),
            "title": component_title,
            "label": label.map(|label| plain_text_excerpt(&label)),
            "container": is_container(snapshot, &resource_type)?,
            "allowed": allowed_components(&child)?,
            "resourceType": resource_type,
            "children": children,
        }));
    }
    Ok(described)
}

/// Returns the components that a container allows; `None` if it allows all.
fn allowed_components(container: &Node) -> Result<Option<Vec<String>>> {
    let Some(policy) = ContainerPolicy::of_container(container)? else { return Ok(None) };
    let snapshot = container.snapshot();
    let mut allowed = Vec::new();
    for path in snapshot.look_up_paths(LookupIndex::Type, "cq:Component")? {
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
fn plain_text_excerpt(text: &str) -> String {
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
fn insertable_components(snapshot: &Snapshot) -> Result<Vec<Value>> {
    let mut list = Vec::new();
    for path in snapshot.look_up_paths(LookupIndex::Type, "cq:Component")? {
        let Some(node) = snapshot.node(&path)? else { continue };
        let group = node.text("componentGroup").unwrap_or_else(|| "General".to_owned());
        let resource_type =
            path.as_str().strip_prefix("/apps/").or_else(|| path.as_str().strip_prefix("/libs/"));
        if let (Some(resource_type), false) = (resource_type, group.starts_with('.')) {
            let title = component_title(Some(&node), resource_type);
            let thumbnail = node.child("thumbnail.png")?.map(|file| file.path().to_string());
            list.push(json!({
                "resourceType": resource_type, "title": title, "group": group, "thumbnail": thumbnail,
            }));
        }
    }
    list.sort_by_key(|entry| (entry["group"].to_string(), entry["title"].to_string()));
    Ok(list)
}

/// Returns the dialog of a resource.
fn read_dialog(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let node = node::find_node(&call.pin_snapshot()?, &call.path_parameter("path")?)?;
    Ok(ApiResponse::tagged(dialog_json(&node)?, entity_tag::document_tag(&call.instance, &node)))
}
