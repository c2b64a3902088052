//! Changes of nodes: one by one or as a batch, always in one commit.
//!
//! Invariants
//! * A batch is done whole or not at all.
//! * A condition (`If-Match`, `ifMatch`) holds when the commit is made, not only when it was begun.

use std::time::SystemTime;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tympan_content::{
    NodePath, PRIMARY_TYPE, Place, Property, RewrittenReferences, Session, Snapshot, Subtree,
};
use tympan_jobs::workflow::process::is_kept_message;

use crate::Instance;
use crate::api::endpoint::{
    Answer, BRANCH, Body, Call, Content, Endpoint, Handler, JsonReply, Kind, Parameter, Pending,
    Reply, Verb,
};
use crate::api::node::{NodePatch, SentNode, given};
use crate::api::reference::{kept_json, referrer_json};
use crate::api::tag::{self, Condition};
use crate::failure::{Failure, Result};
use crate::metrics::count;
use crate::settable::{SetProperties, Way};
use crate::touch::touch_pages;

/// The most operations of a batch.
pub(crate) const MAX_OPERATIONS: usize = 1000;

const PATH: Parameter = Parameter::required("path", Kind::Path, "The node.");
const STRICT: Parameter = Parameter::new(
    "strict",
    Kind::Flag,
    "Whether the write is refused (428) unless it comes with a condition. Default false.",
);
const IF_MATCH: Parameter = Parameter::new(
    "If-Match",
    Kind::Header,
    "The tag of what was read; the write is refused (412) if the document was changed since. `*`: it must exist.",
);
const IF_NONE_MATCH: Parameter =
    Parameter::new("If-None-Match", Kind::HeaderWord("*"), "`*`: the node must not be there yet.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Put,
        path: "/api/v1/nodes",
        id: "putNode",
        about: "Makes a node what is sent: its properties are replaced, and, if there is a member `children`, its children, at each \
                level. Without that member children stay, and so does whatever the user cannot read.",
        parameters: &[PATH, BRANCH, STRICT, IF_MATCH, IF_NONE_MATCH],
        body: Body::Json("NewNode"),
        answers: &[
            Answer::json("Written", "It was replaced."),
            Answer { status: 201, about: "It was created.", content: Content::Json("Written") },
        ],
        handler: Handler::Task(put),
    },
    Endpoint {
        verb: Verb::Patch,
        path: "/api/v1/nodes",
        id: "patchNode",
        about: "Changes a node in the manner of JSON merge patch: what is not named stays, null removes.",
        parameters: &[PATH, BRANCH, STRICT, IF_MATCH],
        body: Body::Patch("NodePatch"),
        answers: &[Answer::json("Written", "It was changed.")],
        handler: Handler::Task(patch),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/nodes",
        id: "deleteNode",
        about: "Removes a node with everything below it; what visitors can see of it is taken away from them, too.",
        parameters: &[PATH, BRANCH, STRICT, IF_MATCH],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is gone.")],
        handler: Handler::Task(delete),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/nodes/move",
        id: "moveNode",
        about: "Moves a node with everything below it. With `rewrite`, paths, links in texts, names of tags and of policies elsewhere \
                refer to the new path; those that the user may not change are told and stay.",
        parameters: &[BRANCH, STRICT, IF_MATCH],
        body: Body::Json("Move"),
        answers: &[Answer {
            status: 201,
            about: "It is there now.",
            content: Content::Json("Moved"),
        }],
        handler: Handler::Task(move_node),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/nodes/copy",
        id: "copyNode",
        about: "Copies a node with everything below it.",
        parameters: &[BRANCH, STRICT, IF_MATCH],
        body: Body::Json("Transfer"),
        answers: MADE,
        handler: Handler::Task(copy_node),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/nodes/order",
        id: "orderNode",
        about: "Gives a node another place among its siblings.",
        parameters: &[BRANCH, STRICT, IF_MATCH],
        body: Body::Json("Order"),
        answers: &[Answer::json("Written", "It stands there now.")],
        handler: Handler::Task(order),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/batch",
        id: "batch",
        about: "Does several operations in one commit: all or nothing. The problem of one that fails names its `operation`, \
                counted from 0.",
        parameters: &[BRANCH],
        body: Body::Json("Batch"),
        answers: &[Answer::json("BatchResults", "All were done.")],
        handler: Handler::Task(batch),
    },
];

const MADE: &[Answer] =
    &[Answer { status: 201, about: "It is there now.", content: Content::Json("Written") }];

/// One change.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum Operation {
    /// Puts a node in the place of whatever is there.
    Put {
        path: String,
        node: SentNode,
        #[serde(default, deserialize_with = "given")]
        if_match: Option<String>,
    },
    /// Changes properties and children.
    Patch {
        path: String,
        patch: NodePatch,
        #[serde(default, deserialize_with = "given")]
        if_match: Option<String>,
    },
    /// Removes a node.
    Delete {
        path: String,
        #[serde(default, deserialize_with = "given")]
        if_match: Option<String>,
    },
    /// Moves a node.
    Move {
        from: String,
        to: String,
        #[serde(default)]
        replace: bool,
        /// Whether references elsewhere are rewritten.
        #[serde(default)]
        rewrite: bool,
    },
    /// Copies a node.
    Copy {
        from: String,
        to: String,
        #[serde(default)]
        replace: bool,
    },
    /// Gives a node another place among its siblings.
    Order {
        path: String,
        place: PlaceWord,
        #[serde(default, deserialize_with = "given")]
        sibling: Option<String>,
    },
}

/// Where a node goes among its siblings.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum PlaceWord {
    First,
    Last,
    Before,
    After,
}

/// Several changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Batch {
    operations: Vec<Operation>,
    #[serde(default, deserialize_with = "given")]
    message: Option<String>,
}

/// An operation with the condition under which it is done.
#[derive(Debug)]
struct Step {
    operation: Operation,
    condition: Condition,
}

/// What an operation did.
#[derive(Debug)]
struct Done {
    path: NodePath,
    status: StatusCode,
    /// Of a move, what became of the references to the old path.
    references: Option<RewrittenReferences>,
}

impl Done {
    fn new(path: NodePath, status: StatusCode) -> Self {
        Self { path, status, references: None }
    }

    /// Adds what became of references to a description of the operation.
    fn describe_references(&self, value: &mut Json) {
        let (Some(references), Some(members)) = (&self.references, value.as_object_mut()) else {
            return;
        };
        let rewritten: Vec<Json> = references.rewritten.iter().map(referrer_json).collect();
        let kept: Vec<Json> = references.kept.iter().map(kept_json).collect();
        members.insert("rewritten".to_owned(), rewritten.into());
        members.insert("kept".to_owned(), kept.into());
    }
}

impl Operation {
    fn word(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Patch { .. } => "patch",
            Self::Delete { .. } => "delete",
            Self::Move { .. } => "move",
            Self::Copy { .. } => "copy",
            Self::Order { .. } => "order",
        }
    }

    /// Returns the path of the document that a condition is about.
    fn subject(&self) -> &str {
        match self {
            Self::Put { path, .. }
            | Self::Patch { path, .. }
            | Self::Delete { path, .. }
            | Self::Order { path, .. } => path,
            Self::Move { from, .. } | Self::Copy { from, .. } => from,
        }
    }

    /// Takes the condition out of the operation.
    fn condition(&self) -> Condition {
        let given = match self {
            Self::Put { if_match, .. }
            | Self::Patch { if_match, .. }
            | Self::Delete { if_match, .. } => if_match,
            _ => &None,
        };
        given.as_deref().map_or(Condition::None, Condition::parse)
    }
}

/// Puts a node.
fn put(call: Call) -> Pending {
    Box::pin(async move {
        let node = call.body()?;
        let path = call.path("path")?.to_string();
        one(call, Operation::Put { path, node, if_match: None }).await
    })
}

/// Patches a node.
fn patch(call: Call) -> Pending {
    Box::pin(async move {
        let patch = call.body()?;
        let path = call.path("path")?.to_string();
        one(call, Operation::Patch { path, patch, if_match: None }).await
    })
}

/// Deletes a node.
fn delete(call: Call) -> Pending {
    Box::pin(async move {
        let path = call.path("path")?.to_string();
        one(call, Operation::Delete { path, if_match: None }).await
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Transfer {
    from: String,
    to: String,
    #[serde(default)]
    replace: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Move {
    from: String,
    to: String,
    #[serde(default)]
    replace: bool,
    #[serde(default)]
    rewrite: bool,
}

/// Moves a node.
fn move_node(call: Call) -> Pending {
    Box::pin(async move {
        let Move { from, to, replace, rewrite } = call.body()?;
        one(call, Operation::Move { from, to, replace, rewrite }).await
    })
}

/// Copies a node.
fn copy_node(call: Call) -> Pending {
    Box::pin(async move {
        let Transfer { from, to, replace } = call.body()?;
        one(call, Operation::Copy { from, to, replace }).await
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    path: String,
    place: PlaceWord,
    #[serde(default, deserialize_with = "given")]
    sibling: Option<String>,
}

/// Orders a node.
fn order(call: Call) -> Pending {
    Box::pin(async move {
        let Order { path, place, sibling } = call.body()?;
        one(call, Operation::Order { path, place, sibling }).await
    })
}

/// Does one operation under the condition of the request's head.
async fn one(call: Call, operation: Operation) -> Result<Reply> {
    let condition = Condition::of(&call.headers);
    if call.flag("strict") && condition == Condition::None {
        let message =
            "`strict` asks for a condition: send `If-Match` with the tag of what was read";
        return Err(Failure::new(StatusCode::PRECONDITION_REQUIRED, message));
    }
    let word = operation.word();
    let message = format!("{word} {}", operation.subject());
    let is_delete = matches!(operation, Operation::Delete { .. });
    let mut results = commit(call, vec![Step { operation, condition }], message).await?;
    let (done, tag) =
        results.pop().ok_or_else(|| Failure::bad_request("there is nothing to do"))?;
    if is_delete {
        let response = axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT);
        return Ok(Reply::Http(response));
    }
    let location = (done.status == StatusCode::CREATED).then(|| location(&done.path));
    let mut value = json!({ "path": done.path.as_str(), "etag": tag_json(tag.as_deref()) });
    done.describe_references(&mut value);
    Ok(Reply::Json(JsonReply { status: done.status, value, tag, location }))
}

/// Does several operations in one commit.
fn batch(call: Call) -> Pending {
    Box::pin(async move {
        let Batch { operations, message } = call.body()?;
        if operations.len() > MAX_OPERATIONS {
            let message = format!("a batch has at most {MAX_OPERATIONS} operations");
            return Err(Failure::bad_request(message));
        }
        if message.as_deref().is_some_and(is_kept_message) {
            let reason =
                "messages of this kind are kept for the steps of workflows; choose another";
            return Err(Failure::unfit(reason));
        }
        let words: Vec<&str> = operations.iter().map(Operation::word).collect();
        let message = message.unwrap_or_else(|| format!("batch of {}", words.len()));
        let steps = operations.into_iter().map(|operation| {
            let condition = operation.condition();
            Step { operation, condition }
        });
        let results = commit(call, steps.collect(), message).await?;
        let results = words.into_iter().zip(results).map(|(word, (done, tag))| {
            let mut value = json!({
                "op": word,
                "path": done.path.as_str(),
                "status": done.status.as_u16(),
                "etag": tag_json(tag.as_deref()),
            });
            done.describe_references(&mut value);
            value
        });
        Ok(Reply::json(json!({ "results": results.collect::<Vec<_>>() })))
    })
}

/// Returns where a node can be read.
fn location(path: &NodePath) -> String {
    let encoded =
        percent_encoding::utf8_percent_encode(path.as_str(), percent_encoding::NON_ALPHANUMERIC);
    format!("/api/v1/nodes?path={encoded}")
}

fn tag_json(tag: Option<&str>) -> Option<String> {
    tag.map(|tag| format!("\"{tag}.-\""))
}

/// Carries out operations in one commit.
async fn commit(
    call: Call,
    steps: Vec<Step>,
    message: String,
) -> Result<Vec<(Done, Option<String>)>> {
    let instance = call.instance.clone();
    let metrics = call.instance.clone();
    let work = move |instance: &Instance| {
        carry_out(instance, &call, &steps, (&message, SystemTime::now()))
    };
    let done = instance.work(work).await?;
    count(&metrics.metrics.commits);
    Ok(done)
}

fn carry_out(
    instance: &Instance,
    call: &Call,
    steps: &[Step],
    (message, now): (&str, SystemTime),
) -> Result<Vec<(Done, Option<String>)>> {
    let mut session = call.session()?;
    let begun = session.snapshot()?;
    let mut done = Vec::new();
    let mut touched = Vec::new();
    let mut set = SetProperties::default();
    for (number, step) in steps.iter().enumerate() {
        let mut changing = Changing { set: &mut set, number };
        let at = |failure: Failure| match steps.len() {
            1 => failure,
            _ => failure.with("operation", number),
        };
        let one = guard(instance, &mut session, &begun, step)
            .and_then(|()| changing.apply(&mut session, &step.operation));
        let one = one.map_err(at)?;
        if !matches!(step.operation, Operation::Move { .. } | Operation::Copy { .. }) {
            touched.push(one.path.to_string());
        }
        let rewritten = one.references.iter().flat_map(|references| &references.rewritten);
        touched.extend(rewritten.map(|referrer| referrer.path.to_string()));
        done.push(one);
    }
    set.check(&begun, &mut session).map_err(|refused| match steps.len() {
        1 => Failure::from(refused),
        _ => {
            let operation = refused.operation;
            Failure::from(refused).with("operation", operation)
        }
    })?;
    touch_pages(&mut session, touched, call.user(), now)?;
    let root = session.commit(message, now)?;
    let snapshot = call.repository()?.snapshot_at(root)?.seen_by(&call.viewer);
    let tagged = done.into_iter().map(|done| {
        let tag =
            snapshot.node(&done.path)?.as_ref().and_then(|node| tag::of_document(instance, node));
        Ok((done, tag))
    });
    tagged.collect()
}

/// Checks a condition, and makes sure that it still holds at the commit.
fn guard(instance: &Instance, session: &mut Session, begun: &Snapshot, step: &Step) -> Result<()> {
    if step.condition == Condition::None {
        return Ok(());
    }
    let path = NodePath::new(step.operation.subject())?;
    step.condition.check(instance, begun.node(&path)?.as_ref())?;
    Ok(session.expect_unchanged(&path)?)
}

/// Carries out one operation and notes the properties that it names.
struct Changing<'a> {
    set: &'a mut SetProperties,
    number: usize,
}

impl Changing<'_> {
    fn apply(&mut self, session: &mut Session, operation: &Operation) -> Result<Done> {
        match operation {
            Operation::Put { path, node, .. } => {
                let path = NodePath::new(path)?;
                let is_there = session.node(&path)?.is_some();
                let status = if is_there { StatusCode::OK } else { StatusCode::CREATED };
                check_parent(session, &path)?;
                self.put(session, &path, node, 0)?;
                Ok(Done::new(path, status))
            }
            Operation::Patch { path, patch, .. } => {
                let path = NodePath::new(path)?;
                if session.node(&path)?.is_none() {
                    return Err(Failure::not_found(path.as_str()));
                }
                self.patch(session, &path, patch, 0)?;
                Ok(Done::new(path, StatusCode::OK))
            }
            Operation::Delete { path, .. } => {
                let path = NodePath::new(path)?;
                session.remove(&path)?;
                Ok(Done::new(path, StatusCode::NO_CONTENT))
            }
            Operation::Move { from, to, replace, rewrite } => {
                let to = make_way(session, from, to, *replace)?;
                let from = NodePath::new(from)?;
                session.move_node(&from, &to)?;
                self.set.relocated(&from, &to, Way::Move, self.number);
                let references = match rewrite {
                    true => session.rewrite_references(&from, &to)?,
                    false => RewrittenReferences::default(),
                };
                let references = Some(references);
                Ok(Done { path: to, status: StatusCode::CREATED, references })
            }
            Operation::Copy { from, to, replace } => {
                let to = make_way(session, from, to, *replace)?;
                let from = NodePath::new(from)?;
                session.copy_node(&from, &to)?;
                self.set.relocated(&from, &to, Way::Copy, self.number);
                Ok(Done::new(to, StatusCode::CREATED))
            }
            Operation::Order { path, place, sibling } => {
                let path = NodePath::new(path)?;
                let place = match (place, sibling) {
                    (PlaceWord::First, None) => Place::First,
                    (PlaceWord::Last, None) => Place::Last,
                    (PlaceWord::Before, Some(sibling)) => Place::Before(sibling.clone()),
                    (PlaceWord::After, Some(sibling)) => Place::After(sibling.clone()),
                    _ => {
                        let message =
                            "`sibling` goes with the places before and after, and only with them";
                        return Err(Failure::bad_request(message));
                    }
                };
                if session.node(&path)?.is_none() {
                    return Err(Failure::not_found(path.as_str()));
                }
                session.order(&path, &place)?;
                Ok(Done::new(path, StatusCode::OK))
            }
        }
    }

    /// Makes a node what was sent. Children stay if nothing is said of children, and so do children and properties that
    /// the viewer does not see: neither was shown to whoever sends back what was read.
    fn put(
        &mut self,
        session: &mut Session,
        path: &NodePath,
        sent: &SentNode,
        depth: usize,
    ) -> Result<()> {
        if depth > crate::api::node::MAX_DEPTH {
            return Err(Failure::bad_request("the node is nested too deeply"));
        }
        let Some(stored) = session.node(path)? else {
            let tree = sent.to_tree(path.name())?;
            self.set.add_tree(path, &tree, self.number);
            return Ok(session.put(path, tree)?);
        };
        let (properties, dropped) =
            (sent.sent_properties(&stored)?, sent.dropped_properties(&stored)?);
        let before: Vec<_> = properties.iter().map(|(name, _)| stored.property(name)).collect();
        let listed: Option<Vec<String>> = match sent.children() {
            Some(_) => {
                let children = stored.children()?;
                Some(children.iter().map(|child| child.name().to_owned()).collect())
            }
            None => None,
        };
        drop(stored);
        for ((name, property), before) in properties.into_iter().zip(before) {
            self.set.add(path, &name, Some(property.clone()), self.number);
            if before.as_ref() != Some(&property) {
                session.set_property(path, &name, property)?;
            }
        }
        for name in dropped {
            session.remove_property(path, &name)?;
        }
        let (Some(children), Some(listed)) = (sent.children(), listed) else { return Ok(()) };
        for name in &listed {
            if !children.iter().any(|(sent, _)| sent == name) {
                session.remove(&path.child(name)?)?;
            }
        }
        for (name, child) in children {
            self.put(session, &path.child(name)?, child, depth + 1)?;
        }
        let names: Vec<String> = children.iter().map(|(name, _)| name.clone()).collect();
        let is_in_order = listed.iter().filter(|name| names.contains(name)).eq(&names);
        if !is_in_order {
            session.order_children(path, &names)?;
        }
        Ok(())
    }

    /// Changes a node as a patch says.
    fn patch(
        &mut self,
        session: &mut Session,
        path: &NodePath,
        patch: &NodePatch,
        depth: usize,
    ) -> Result<()> {
        if depth > crate::api::node::MAX_DEPTH {
            return Err(Failure::bad_request("the patch is nested too deeply"));
        }
        for (name, sent) in &patch.properties.0 {
            let Some(sent) = sent else {
                if name == PRIMARY_TYPE {
                    return Err(Failure::bad_request("every node has a `jcr:primaryType`"));
                }
                session.remove_property(path, name)?;
                continue;
            };
            let stored = session.node(path)?.and_then(|node| node.property(name));
            let property = sent.read(name, stored.as_ref())?;
            self.set.add(path, name, Some(property.clone()), self.number);
            if stored.as_ref() != Some(&property) {
                session.set_property(path, name, property)?;
            }
        }
        if let Some(kind) = &patch.r#type {
            self.set.add(path, PRIMARY_TYPE, Some(Property::name(kind)), self.number);
            session.set_property(path, PRIMARY_TYPE, Property::name(kind))?;
        }
        for (name, child) in &patch.children.0 {
            let at = path.child(name)?;
            let is_there = session.node(&at)?.is_some();
            match child {
                None if is_there => session.remove(&at)?,
                None => {}
                Some(child) => {
                    if !is_there {
                        let kind = child.r#type.as_deref().unwrap_or("nt:unstructured");
                        session.put(&at, Subtree::new(name, kind))?;
                    }
                    self.patch(session, &at, child, depth + 1)?;
                }
            }
        }
        Ok(())
    }
}

/// Says clearly that the parent of something new is missing.
fn check_parent(session: &mut Session, path: &NodePath) -> Result<()> {
    match path.parent() {
        Some(parent) if session.node(&parent)?.is_none() => Err(Failure::new(
            StatusCode::CONFLICT,
            format!("there is no node at `{parent}` to hold it"),
        )),
        _ => Ok(()),
    }
}

/// Returns where something goes, after what is there was removed if it may be.
fn make_way(session: &mut Session, from: &str, to: &str, replace: bool) -> Result<NodePath> {
    let (from, to) = (NodePath::new(from)?, NodePath::new(to)?);
    if session.node(&from)?.is_none() {
        return Err(Failure::not_found(from.as_str()));
    }
    check_parent(session, &to)?;
    if replace && to != from && !from.is_within(&to) && session.node(&to)?.is_some() {
        session.remove(&to)?;
    }
    Ok(to)
}

/// Describes what a document is like now, for whoever has written to it.
pub(crate) fn written(path: &NodePath, tag: Option<String>, status: StatusCode) -> Reply {
    let value: Json = json!({ "path": path.as_str(), "etag": tag_json(tag.as_deref()) });
    Reply::Json(JsonReply { status, value, tag, location: None })
}
