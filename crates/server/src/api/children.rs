//! Listing children, page by page, at the price of the page whatever the size of the folder.

use serde_json::{Value as Json, json};
use tympan_content::{Node, SortPlace, Sorting};

use crate::Instance;
use crate::api::endpoint::{
    AT, Answer, BRANCH, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb,
};
use crate::api::node::find;
use crate::failure::{Failure, Result};

/// The longest page.
const MAX_LIMIT: u64 = 1000;

/// How a listing is sorted.
pub(crate) const SORT: Parameter = Parameter::new(
    "sort",
    Kind::Words(&["order", "name", "title", "-title", "modified", "-modified"]),
    "The order; a minus turns it round. Default `order`: the parent's own.",
);
/// Where a page of a listing begins.
pub(crate) const AFTER: Parameter =
    Parameter::new("after", Kind::Place, "Where the page begins: `next` of the page before.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    verb: Verb::Get,
    path: "/api/v1/children",
    id: "listChildren",
    about: "Lists the children of a node, page by page: those of a folder of any size cost what the page shows, sorted \
            by order or name; sorted by title or modified, the headers of all children are read.",
    parameters: &[
        Parameter::required("path", Kind::Path, "The parent."),
        SORT,
        AFTER,
        Parameter::new(
            "limit",
            Kind::Integer(1, MAX_LIMIT),
            "The length of the page. Default 100.",
        ),
        BRANCH,
        AT,
    ],
    body: Body::None,
    answers: &[Answer::json("Children", "A page of the children.")],
    handler: Handler::Work(list),
}];

/// Answers with a page of children.
fn list(_: &Instance, call: &Call) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let parent = find(&snapshot, &call.path("path")?)?;
    let (nodes, next) = select(&parent, call)?;
    let items = nodes.iter().map(item).collect::<Result<Vec<Json>>>()?;
    crate::page::check_failure(&snapshot)?;
    Ok(Reply::json(json!({
        "path": parent.path().as_str(),
        "total": parent.count_listed_children()?.max(if parent.summary().is_none() { items.len() } else { 0 }),
        "items": items,
        "next": next,
    })))
}

/// Returns the page of children that the parameters `sort`, `after` and `limit` ask for, and where the next one begins.
pub(crate) fn select(parent: &Node, call: &Call) -> Result<(Vec<Node>, Option<String>)> {
    let limit = call.number("limit", 100);
    let after = call.text("after").map(read_place).transpose()?;
    let sort = call.text("sort").unwrap_or("order");
    let (sorting, is_reversed) = match sort {
        "title" => (Some(Sorting::Title), false),
        "-title" => (Some(Sorting::Title), true),
        "modified" => (Some(Sorting::Modified), false),
        "-modified" => (Some(Sorting::Modified), true),
        _ => (None, false),
    };
    // One more than asked for tells whether there is another page.
    let wanted = limit + 1;
    let mut nodes = match sorting {
        Some(sorting) => parent.listed_sorted(sorting, is_reversed, after.as_ref(), wanted)?,
        None if sort == "name" => {
            parent.listed_by_name(after.as_ref().map(|after| after.name.as_str()), wanted)?
        }
        None => parent.listed_behind(after.as_ref(), wanted)?,
    };
    // A node inside a document has few children, and no keys to list them by.
    if nodes.is_empty() && parent.summary().is_none() {
        nodes = inner_children(parent, after.as_ref(), sort, wanted)?;
    }
    let has_more = nodes.len() > limit;
    nodes.truncate(limit);
    let place = |node: &Node| match sorting {
        Some(sorting) => node.sort_place(sorting),
        None => node.order_place(),
    };
    let next = nodes.last().filter(|_| has_more).map(|last| place_text(&place(last)));
    Ok((nodes, next))
}

/// Lists the children of a node inside a document.
fn inner_children(
    parent: &Node,
    after: Option<&SortPlace>,
    sort: &str,
    wanted: usize,
) -> Result<Vec<Node>> {
    let mut nodes = parent.children()?;
    if sort != "order" {
        nodes.sort_by(|one, other| one.name().cmp(other.name()));
    }
    let begin = match after {
        Some(after) => {
            nodes.iter().position(|node| node.name() == after.name).map_or(0, |at| at + 1)
        }
        None => 0,
    };
    Ok(nodes.into_iter().skip(begin).take(wanted).collect())
}

fn item(node: &Node) -> Result<Json> {
    let summary = node.summary();
    let text = |text: Option<&str>| text.map(str::to_owned);
    Ok(json!({
        "path": node.path().as_str(),
        "name": node.name(),
        "type": node.primary_type(),
        "title": summary.and_then(|summary| text(summary.title())),
        "resourceType": summary.and_then(|summary| text(summary.resource_type())),
        "modified": summary.and_then(|summary| summary.modified()).map(|date| date.to_string()),
        "modifiedBy": summary.and_then(|summary| text(summary.modified_by())),
        "hasChildren": node.has_listed_children()?,
    }))
}

/// Writes a place as one text: name and sort value in hexadecimal digits.
fn place_text(place: &SortPlace) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{}.{}", digits(place.name.as_bytes()), digits(&place.value))
}

/// Reads a place back. Whatever its bytes are, there is a first child behind it, or none.
fn read_place(text: &str) -> Result<SortPlace> {
    let malformed = || Failure::bad_request("`after` is `next` of the page before");
    let (name, value) = text.split_once('.').ok_or_else(malformed)?;
    let name = bytes(name).ok_or_else(malformed)?;
    let value = bytes(value).ok_or_else(malformed)?;
    Ok(SortPlace { value, name: String::from_utf8_lossy(&name).into_owned() })
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    if !digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let pairs = digits.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    pairs.collect()
}
