//! Paged listing of children. The cost depends on the size of the page, not on the size of the folder.

use serde_json::{Value as Json, json};
use tympan_content::{ListingSort, Node, SortPosition};

use crate::Instance;
use crate::api::endpoint::{
    AT_PARAMETER, ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler,
    EndpointMethod, EndpointParameter, ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::node::find_node;
use crate::failure::{RequestFailure, Result};

/// Maximum number of entries in a page.
const MAX_PAGE_SIZE: u64 = 1000;

/// Sort order of a listing.
pub(crate) const SORT_PARAMETER: EndpointParameter = EndpointParameter::new(
    "sort",
    ParameterKind::Keyword(&["order", "name", "title", "-title", "modified", "-modified"]),
    "The sort order; a leading minus reverses it. Default `order`: the parent's own.",
);
/// The position at which a page of a listing begins.
pub(crate) const AFTER_PARAMETER: EndpointParameter = EndpointParameter::new(
    "after",
    ParameterKind::ListPosition,
    "Where the page begins: `next` of the previous page.",
);

/// The API endpoints that this module defines.
pub(crate) const CHILDREN_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/children",
    id: "listChildren",
    description: "Lists the children of a node, page by page. Sorted by order or name, the cost depends only \
        on the page size; sorted by title or modified, the headers of all children are read.",
    parameters: &[
        EndpointParameter::required("path", ParameterKind::Path, "The parent."),
        SORT_PARAMETER,
        AFTER_PARAMETER,
        EndpointParameter::new(
            "limit",
            ParameterKind::Integer(1, MAX_PAGE_SIZE),
            "Page size. Default 100.",
        ),
        BRANCH_PARAMETER,
        AT_PARAMETER,
    ],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("Children", "A page of the children.")],
    handler: EndpointHandler::Blocking(list_children),
}];

/// Returns a page of children.
fn list_children(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let parent = find_node(&snapshot, &call.path_parameter("path")?)?;
    let (nodes, next) = select_children(&parent, call)?;
    let items = nodes.iter().map(child_json).collect::<Result<Vec<Json>>>()?;
    crate::page::check_snapshot_failure(&snapshot)?;
    Ok(ApiResponse::json(json!({
        "path": parent.path().as_str(),
        "total": parent.count_listed_children()?.max(if parent.summary().is_none() { items.len() } else { 0 }),
        "items": items,
        "next": next,
    })))
}

/// Returns the page of children selected by the parameters `sort`, `after` and `limit`, and the position of the next
/// page.
pub(crate) fn select_children(
    parent: &Node,
    call: &ApiRequest,
) -> Result<(Vec<Node>, Option<String>)> {
    let limit = call.number_parameter("limit", 100);
    let after = call.parameter("after").map(parse_sort_position).transpose()?;
    let sort = call.parameter("sort").unwrap_or("order");
    let (sorting, is_reversed) = match sort {
        "title" => (Some(ListingSort::Title), false),
        "-title" => (Some(ListingSort::Title), true),
        "modified" => (Some(ListingSort::Modified), false),
        "-modified" => (Some(ListingSort::Modified), true),
        _ => (None, false),
    };
    // One extra child shows whether there is another page.
    let fetch_limit = limit + 1;
    let mut nodes = match sorting {
        Some(sorting) => {
            parent.children_sorted(sorting, is_reversed, after.as_ref(), fetch_limit)?
        }
        None if sort == "name" => {
            parent.children_by_name(after.as_ref().map(|after| after.name.as_str()), fetch_limit)?
        }
        None => parent.children_after(after.as_ref(), fetch_limit)?,
    };
    // A node inside a document has few children and no sort keys to list them by.
    if nodes.is_empty() && parent.summary().is_none() {
        nodes = list_inner_children(parent, after.as_ref(), sort, fetch_limit)?;
    }
    let has_more = nodes.len() > limit;
    nodes.truncate(limit);
    let position_of = |node: &Node| match sorting {
        Some(sorting) => node.sort_position(sorting),
        None => node.order_position(),
    };
    let next =
        nodes.last().filter(|_| has_more).map(|last| encode_sort_position(&position_of(last)));
    Ok((nodes, next))
}

/// Lists the children of a node inside a document.
fn list_inner_children(
    parent: &Node,
    after: Option<&SortPosition>,
    sort: &str,
    fetch_limit: usize,
) -> Result<Vec<Node>> {
    let mut nodes = parent.children()?;
    if sort != "order" {
        nodes.sort_by(|left, right| left.name().cmp(right.name()));
    }
    let begin = match after {
        Some(after) => {
            nodes.iter().position(|node| node.name() == after.name).map_or(0, |at| at + 1)
        }
        None => 0,
    };
    Ok(nodes.into_iter().skip(begin).take(fetch_limit).collect())
}

fn child_json(node: &Node) -> Result<Json> {
    let summary = node.summary();
    let text = |text: Option<&str>| text.map(str::to_owned);
    Ok(json!({
        "path": node.path().as_str(),
        "name": node.name(),
        "type": node.primary_type(),
        "title": summary.and_then(|summary| text(summary.title())),
        "resourceType": summary.and_then(|summary| text(summary.resource_type())),
        "modified": summary.and_then(|summary| summary.last_modified()).map(|date| date.to_string()),
        "modifiedBy": summary.and_then(|summary| text(summary.last_modified_by())),
        "hasChildren": node.has_listed_children()?,
    }))
}

/// Encodes a position as text: name and sort value in hexadecimal digits.
fn encode_sort_position(position: &SortPosition) -> String {
    format!("{}.{}", hex::encode(&position.name), hex::encode(&position.sort_value))
}

/// Decodes a position. Any bytes are valid: a position is followed by a first child, or by none.
fn parse_sort_position(text: &str) -> Result<SortPosition> {
    let malformed =
        || RequestFailure::bad_request("`after` must be the `next` of the previous page");
    let (name, value) = text.split_once('.').ok_or_else(malformed)?;
    let name = hex::decode(name).map_err(|_| malformed())?;
    let value = hex::decode(value).map_err(|_| malformed())?;
    Ok(SortPosition { sort_value: value, name: String::from_utf8_lossy(&name).into_owned() })
}
