//! Changes of nodes: single or as a batch, always in one commit.
//!
//! Invariants
//! * A batch is applied completely or not at all.
//! * A condition (`If-Match`, `ifMatch`) holds when the commit is made, not only when the request begins.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::SystemTime;

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value as Json, json};
use tympan_content::{
    NodeFields, NodePath, PRIMARY_TYPE, Property, ReferenceRewriteReport, Session, SiblingPosition,
    Snapshot, Subtree, is_policy_name,
};
use tympan_jobs::workflow::process::is_reserved_message;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler, EndpointMethod,
    EndpointParameter, JsonApiResponse, ParameterKind, PendingApiResponse, RequestBodySpec,
    ResponseContent, ResponseSpec,
};
use crate::api::entity_tag::{self, WriteCondition};
use crate::api::node::{NodePatch, SubmittedNode, deserialize_present};
use crate::api::reference::{referrer_json, skipped_reference_json};
use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;
use crate::write::bulk_edit_limits::viewer_bulk_edit_budget;
use crate::write::page_modification::record_page_modification;
use crate::write::property_protection::{RelocationKind, RequestedProperties};

/// Maximum number of operations in a batch.
pub(crate) const MAX_OPERATIONS: usize = 1000;

const PATH_PARAMETER: EndpointParameter =
    EndpointParameter::required("path", ParameterKind::Path, "The node.");
const STRICT_PARAMETER: EndpointParameter = EndpointParameter::new(
    "strict",
    ParameterKind::Flag,
    "Whether the write is refused (428) if it has no condition. Default false.",
);
const IF_MATCH_PARAMETER: EndpointParameter = EndpointParameter::new(
    "If-Match",
    ParameterKind::Header,
    "The `ETag` of the document as it was read; the write is refused (412) if the document has changed since. \
     `*`: it must exist.",
);
const IF_NONE_MATCH_PARAMETER: EndpointParameter = EndpointParameter::new(
    "If-None-Match",
    ParameterKind::HeaderKeyword("*"),
    "`*`: the node must not exist yet.",
);

/// The API endpoints that this module defines.
pub(crate) const WRITE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Put,
        path: "/api/v1/nodes",
        id: "putNode",
        description: "Replaces a node by the submitted one: its properties and, if there is a member \
            `children`, its children, at each level. Without that member, the children are kept. Policies \
            that are not listed are always kept, and so is everything that the user cannot read.",
        parameters: &[
            PATH_PARAMETER,
            BRANCH_PARAMETER,
            STRICT_PARAMETER,
            IF_MATCH_PARAMETER,
            IF_NONE_MATCH_PARAMETER,
        ],
        body: RequestBodySpec::Json("NewNode"),
        responses: &[
            ResponseSpec::json("Written", "The node was replaced."),
            ResponseSpec {
                status: 201,
                description: "The node was created.",
                content: ResponseContent::Json("Written"),
            },
        ],
        handler: EndpointHandler::Async(put_node),
    },
    Endpoint {
        method: EndpointMethod::Patch,
        path: "/api/v1/nodes",
        id: "patchNode",
        description: "Changes a node with a JSON merge patch: members that are not named are kept, null \
            removes one.",
        parameters: &[PATH_PARAMETER, BRANCH_PARAMETER, STRICT_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Patch("NodePatch"),
        responses: &[ResponseSpec::json("Written", "The node was changed.")],
        handler: EndpointHandler::Async(patch_node),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/nodes",
        id: "deleteNode",
        description: "Removes a node with everything below it; if it is published, it is also removed from \
            the publish instances.",
        parameters: &[PATH_PARAMETER, BRANCH_PARAMETER, STRICT_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The node was removed.")],
        handler: EndpointHandler::Async(delete_node),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/nodes/move",
        id: "moveNode",
        description: "Moves a node with everything below it. With `rewrite`, references to it elsewhere \
            (paths, links in texts, names of tags and policies) are changed to the new path; those that the \
            user may not change are kept and reported.",
        parameters: &[BRANCH_PARAMETER, STRICT_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("Move"),
        responses: &[ResponseSpec {
            status: 201,
            description: "The node was moved.",
            content: ResponseContent::Json("Moved"),
        }],
        handler: EndpointHandler::Async(move_node),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/nodes/copy",
        id: "copyNode",
        description: "Copies a node with everything below it.",
        parameters: &[BRANCH_PARAMETER, STRICT_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("Transfer"),
        responses: CREATED_RESPONSES,
        handler: EndpointHandler::Async(copy_node),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/nodes/order",
        id: "orderNode",
        description: "Changes the position of a node among its siblings.",
        parameters: &[BRANCH_PARAMETER, STRICT_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("Order"),
        responses: &[ResponseSpec::json("Written", "The node has the new position.")],
        handler: EndpointHandler::Async(order_node),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/batch",
        id: "batch",
        description: "Executes several operations in one commit: all or none. If one fails, the problem \
            contains its index as `operation`, counted from 0.",
        parameters: &[BRANCH_PARAMETER],
        body: RequestBodySpec::Json("Batch"),
        responses: &[ResponseSpec::json("BatchResults", "All operations were executed.")],
        handler: EndpointHandler::Async(run_batch),
    },
];

const CREATED_RESPONSES: &[ResponseSpec] = &[ResponseSpec {
    status: 201,
    description: "The node was created.",
    content: ResponseContent::Json("Written"),
}];

/// A change of a node.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "op", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub(crate) enum WriteOperation {
    /// Replaces a node, or creates it.
    Put {
        path: String,
        node: SubmittedNode,
        #[serde(default, deserialize_with = "deserialize_present")]
        if_match: Option<String>,
        /// `*`: the node must not exist yet.
        #[serde(default, deserialize_with = "deserialize_present")]
        if_none_match: Option<AnyNodeKeyword>,
    },
    /// Changes properties and children.
    Patch {
        path: String,
        patch: NodePatch,
        #[serde(default, deserialize_with = "deserialize_present")]
        if_match: Option<String>,
    },
    /// Removes a node.
    Delete {
        path: String,
        #[serde(default, deserialize_with = "deserialize_present")]
        if_match: Option<String>,
    },
    /// Moves a node.
    Move {
        from: String,
        to: String,
        #[serde(default)]
        replace: bool,
        /// True if references in other nodes are rewritten.
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
    /// Changes the position of a node among its siblings.
    Order {
        path: String,
        place: SiblingOrderKeyword,
        #[serde(default, deserialize_with = "deserialize_present")]
        sibling: Option<String>,
    },
}

/// Stands for a node in any state.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) enum AnyNodeKeyword {
    #[serde(rename = "*")]
    Any,
}

/// The position of a node among its siblings.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SiblingOrderKeyword {
    First,
    Last,
    Before,
    After,
}

/// A batch of changes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodeWriteBatch {
    operations: Vec<WriteOperation>,
    #[serde(default, deserialize_with = "deserialize_present")]
    message: Option<String>,
}

/// An operation with its precondition.
#[derive(Debug)]
struct WriteStep {
    operation: WriteOperation,
    condition: WriteCondition,
}

/// The result of an operation.
#[derive(Debug)]
struct WriteOutcome {
    path: NodePath,
    status: StatusCode,
    /// For a move, the references to the old path that were rewritten or skipped.
    references: Option<ReferenceRewriteReport>,
}

impl WriteOutcome {
    fn new(path: NodePath, status: StatusCode) -> Self {
        Self { path, status, references: None }
    }

    /// Adds the results for references to the description of an operation.
    fn describe_references(&self, value: &mut Json) {
        let (Some(references), Some(members)) = (&self.references, value.as_object_mut()) else {
            return;
        };
        let rewritten: Vec<Json> =
            references.rewritten_referrers.iter().map(referrer_json).collect();
        let skipped: Vec<Json> =
            references.skipped_references.iter().map(skipped_reference_json).collect();
        members.insert("rewritten".to_owned(), rewritten.into());
        members.insert("kept".to_owned(), skipped.into());
    }
}

impl WriteOperation {
    fn keyword(&self) -> &'static str {
        match self {
            Self::Put { .. } => "put",
            Self::Patch { .. } => "patch",
            Self::Delete { .. } => "delete",
            Self::Move { .. } => "move",
            Self::Copy { .. } => "copy",
            Self::Order { .. } => "order",
        }
    }

    /// Returns the path of the document to which the condition applies.
    fn condition_path(&self) -> &str {
        match self {
            Self::Put { path, .. }
            | Self::Patch { path, .. }
            | Self::Delete { path, .. }
            | Self::Order { path, .. } => path,
            Self::Move { from, .. } | Self::Copy { from, .. } => from,
        }
    }

    /// Takes the condition out of the operation.
    fn take_condition(&self) -> WriteCondition {
        let tags = match self {
            Self::Put { if_none_match: Some(AnyNodeKeyword::Any), .. } => {
                return WriteCondition::Absent;
            }
            Self::Put { if_match, .. }
            | Self::Patch { if_match, .. }
            | Self::Delete { if_match, .. } => if_match,
            _ => &None,
        };
        tags.as_deref().map_or(WriteCondition::None, WriteCondition::parse_tags)
    }
}

/// Puts a node.
fn put_node(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let node = call.parse_body()?;
        let path = call.path_parameter("path")?.to_string();
        let operation = WriteOperation::Put { path, node, if_match: None, if_none_match: None };
        run_single_operation(call, operation).await
    })
}

/// Patches a node.
fn patch_node(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let patch = call.parse_body()?;
        let path = call.path_parameter("path")?.to_string();
        run_single_operation(call, WriteOperation::Patch { path, patch, if_match: None }).await
    })
}

/// Deletes a node.
fn delete_node(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let path = call.path_parameter("path")?.to_string();
        run_single_operation(call, WriteOperation::Delete { path, if_match: None }).await
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeCopyRequest {
    from: String,
    to: String,
    #[serde(default)]
    replace: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeMoveRequest {
    from: String,
    to: String,
    #[serde(default)]
    replace: bool,
    #[serde(default)]
    rewrite: bool,
}

/// Moves a node.
fn move_node(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let NodeMoveRequest { from, to, replace, rewrite } = call.parse_body()?;
        run_single_operation(call, WriteOperation::Move { from, to, replace, rewrite }).await
    })
}

/// Copies a node.
fn copy_node(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let NodeCopyRequest { from, to, replace } = call.parse_body()?;
        run_single_operation(call, WriteOperation::Copy { from, to, replace }).await
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeOrderRequest {
    path: String,
    place: SiblingOrderKeyword,
    #[serde(default, deserialize_with = "deserialize_present")]
    sibling: Option<String>,
}

/// Changes the order of a node among its siblings.
fn order_node(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let NodeOrderRequest { path, place, sibling } = call.parse_body()?;
        run_single_operation(call, WriteOperation::Order { path, place, sibling }).await
    })
}

/// Runs a single operation under the precondition in the request headers.
async fn run_single_operation(call: ApiRequest, operation: WriteOperation) -> Result<ApiResponse> {
    let condition = WriteCondition::of_headers(&call.headers);
    if call.flag_parameter("strict") && condition == WriteCondition::None {
        let message = "`strict` requires a condition: send `If-Match` with the `ETag` of the document as it was read";
        return Err(RequestFailure::new(StatusCode::PRECONDITION_REQUIRED, message));
    }
    let keyword = operation.keyword();
    let message = format!("{keyword} {}", operation.condition_path());
    let is_delete = matches!(operation, WriteOperation::Delete { .. });
    let mut results = commit_steps(call, vec![WriteStep { operation, condition }], message).await?;
    let (done, tag) =
        results.pop().ok_or_else(|| RequestFailure::bad_request("there is nothing to do"))?;
    if is_delete {
        let response = axum::response::IntoResponse::into_response(StatusCode::NO_CONTENT);
        return Ok(ApiResponse::Http(response));
    }
    let location = (done.status == StatusCode::CREATED).then(|| node_location(&done.path));
    let mut value = json!({ "path": done.path.as_str(), "etag": quote_tag(tag.as_deref()) });
    done.describe_references(&mut value);
    Ok(ApiResponse::Json(JsonApiResponse { status: done.status, value, tag, location }))
}

/// Runs several operations in one commit.
fn run_batch(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let NodeWriteBatch { operations, message } = call.parse_body()?;
        if operations.len() > MAX_OPERATIONS {
            let message = format!("a batch can have at most {MAX_OPERATIONS} operations");
            return Err(RequestFailure::bad_request(message));
        }
        if message.as_deref().is_some_and(is_reserved_message) {
            let reason = "this message is reserved for workflow steps; choose another";
            return Err(RequestFailure::unprocessable(reason));
        }
        let words: Vec<&str> = operations.iter().map(WriteOperation::keyword).collect();
        let message = message.unwrap_or_else(|| format!("batch of {}", words.len()));
        let steps = operations.into_iter().map(|operation| {
            let condition = operation.take_condition();
            WriteStep { operation, condition }
        });
        let results = commit_steps(call, steps.collect(), message).await?;
        let results = words.into_iter().zip(results).map(|(keyword, (done, tag))| {
            let mut value = json!({
                "op": keyword,
                "path": done.path.as_str(),
                "status": done.status.as_u16(),
                "etag": quote_tag(tag.as_deref()),
            });
            done.describe_references(&mut value);
            value
        });
        Ok(ApiResponse::json(json!({ "results": results.collect::<Vec<_>>() })))
    })
}

/// Returns the URL of a node.
fn node_location(path: &NodePath) -> String {
    let encoded =
        percent_encoding::utf8_percent_encode(path.as_str(), percent_encoding::NON_ALPHANUMERIC);
    format!("/api/v1/nodes?path={encoded}")
}

fn quote_tag(tag: Option<&str>) -> Option<String> {
    tag.map(|tag| format!("\"{tag}.-\""))
}

/// Runs operations in one commit.
async fn commit_steps(
    call: ApiRequest,
    steps: Vec<WriteStep>,
    message: String,
) -> Result<Vec<(WriteOutcome, Option<String>)>> {
    let instance = call.instance.clone();
    let metrics = call.instance.clone();
    let work = move |instance: &Instance| {
        apply_steps(instance, &call, &steps, (&message, SystemTime::now()))
    };
    let done = instance.run_work(work).await?;
    increment(&metrics.metrics.commits);
    Ok(done)
}

fn apply_steps(
    instance: &Instance,
    call: &ApiRequest,
    steps: &[WriteStep],
    (message, now): (&str, SystemTime),
) -> Result<Vec<(WriteOutcome, Option<String>)>> {
    let mut session = call.begin_session()?;
    session.limit_bulk_edits(viewer_bulk_edit_budget(instance, &call.viewer)?);
    let base = session.snapshot()?;
    let mut done = Vec::new();
    let mut touched = Vec::new();
    let mut set = RequestedProperties::default();
    for (number, step) in steps.iter().enumerate() {
        let mut changing = NodeWriter { requested_properties: &mut set, operation_index: number };
        let at = |failure: RequestFailure| match steps.len() {
            1 => failure,
            _ => failure.with_detail("operation", number),
        };
        let outcome = guard_step(instance, &mut session, &base, step)
            .and_then(|()| changing.apply_operation(&mut session, &step.operation));
        let outcome = outcome.map_err(at)?;
        if !matches!(step.operation, WriteOperation::Move { .. } | WriteOperation::Copy { .. }) {
            touched.push(outcome.path.to_string());
        }
        let rewritten =
            outcome.references.iter().flat_map(|references| &references.rewritten_referrers);
        touched.extend(rewritten.map(|referrer| referrer.path.to_string()));
        done.push(outcome);
    }
    set.check_all(&base, &mut session).map_err(|refused| match steps.len() {
        1 => RequestFailure::from(refused),
        _ => {
            let operation = refused.operation;
            RequestFailure::from(refused).with_detail("operation", operation)
        }
    })?;
    record_page_modification(&mut session, touched, call.user_name(), now)?;
    let root = session.commit(message, now)?;
    let snapshot = call.open_branch()?.snapshot_at(root)?.as_viewer(&call.viewer);
    let tagged = done.into_iter().map(|done| {
        let tag = snapshot
            .node(&done.path)?
            .as_ref()
            .and_then(|node| entity_tag::document_tag(instance, node));
        Ok((done, tag))
    });
    tagged.collect()
}

/// Checks a condition now, and ensures that it still holds at the commit.
fn guard_step(
    instance: &Instance,
    session: &mut Session,
    base: &Snapshot,
    step: &WriteStep,
) -> Result<()> {
    if step.condition == WriteCondition::None {
        return Ok(());
    }
    let path = NodePath::new(step.operation.condition_path())?;
    step.condition.check_document(instance, base.node(&path)?.as_ref())?;
    Ok(session.expect_unchanged(&path)?)
}

/// Runs one operation and records the properties that it names.
struct NodeWriter<'a> {
    requested_properties: &'a mut RequestedProperties,
    operation_index: usize,
}

impl NodeWriter<'_> {
    fn apply_operation(
        &mut self,
        session: &mut Session,
        operation: &WriteOperation,
    ) -> Result<WriteOutcome> {
        match operation {
            WriteOperation::Put { path, node, .. } => {
                let path = NodePath::new(path)?;
                let is_there = session.has_node(&path)?;
                let status = if is_there { StatusCode::OK } else { StatusCode::CREATED };
                check_parent(session, &path)?;
                self.put_subtree(session, &path, node, 0)?;
                Ok(WriteOutcome::new(path, status))
            }
            WriteOperation::Patch { path, patch, .. } => {
                let path = NodePath::new(path)?;
                if !session.has_node(&path)? {
                    return Err(RequestFailure::not_found(path.as_str()));
                }
                self.patch_subtree(session, &path, patch, 0)?;
                Ok(WriteOutcome::new(path, StatusCode::OK))
            }
            WriteOperation::Delete { path, .. } => {
                let path = NodePath::new(path)?;
                session.remove_node(&path)?;
                Ok(WriteOutcome::new(path, StatusCode::NO_CONTENT))
            }
            WriteOperation::Move { from, to, replace, rewrite } => {
                let to = clear_target(session, from, to, *replace)?;
                let from = NodePath::new(from)?;
                session.move_node(&from, &to)?;
                self.requested_properties.relocate(
                    &from,
                    &to,
                    RelocationKind::Move,
                    self.operation_index,
                );
                let references = match rewrite {
                    true => session.rewrite_references(&from, &to)?,
                    false => ReferenceRewriteReport::default(),
                };
                let references = Some(references);
                Ok(WriteOutcome { path: to, status: StatusCode::CREATED, references })
            }
            WriteOperation::Copy { from, to, replace } => {
                let to = clear_target(session, from, to, *replace)?;
                let from = NodePath::new(from)?;
                session.copy_node(&from, &to)?;
                self.requested_properties.relocate(
                    &from,
                    &to,
                    RelocationKind::Copy,
                    self.operation_index,
                );
                Ok(WriteOutcome::new(to, StatusCode::CREATED))
            }
            WriteOperation::Order { path, place, sibling } => {
                let path = NodePath::new(path)?;
                let position = match (place, sibling) {
                    (SiblingOrderKeyword::First, None) => SiblingPosition::First,
                    (SiblingOrderKeyword::Last, None) => SiblingPosition::Last,
                    (SiblingOrderKeyword::Before, Some(sibling)) => {
                        SiblingPosition::Before(sibling.clone())
                    }
                    (SiblingOrderKeyword::After, Some(sibling)) => {
                        SiblingPosition::After(sibling.clone())
                    }
                    _ => {
                        let message = "`sibling` is required with `before` and `after`, and not allowed otherwise";
                        return Err(RequestFailure::bad_request(message));
                    }
                };
                if !session.has_node(&path)? {
                    return Err(RequestFailure::not_found(path.as_str()));
                }
                session.reorder_node(&path, &position)?;
                Ok(WriteOutcome::new(path, StatusCode::OK))
            }
        }
    }

    /// Replaces a node with the submitted one. Children stay if the request does not mention children. Children and
    /// properties that the viewer cannot see also stay, because clients send back what they read, and so do policies
    /// that the request does not list.
    fn put_subtree(
        &mut self,
        session: &mut Session,
        path: &NodePath,
        sent: &SubmittedNode,
        depth: usize,
    ) -> Result<()> {
        if depth > crate::api::node::MAX_READ_DEPTH {
            return Err(RequestFailure::bad_request("the node is nested too deeply"));
        }
        let Some(stored) = session.read_node_fields(path)? else {
            let tree = sent.to_subtree(path.name())?;
            self.requested_properties.add_tree(path, &tree, self.operation_index);
            return Ok(session.put_node(path, tree)?);
        };
        let NodeFields { properties: before, child_names: listed } = stored;
        let properties = sent.submitted_properties(&before)?;
        let dropped = sent.omitted_properties(session, path, &before)?;
        for (name, property) in properties {
            self.requested_properties.add(
                path,
                &name,
                Some(property.clone()),
                self.operation_index,
            );
            if before.get(&name) != Some(&property) {
                session.set_property(path, &name, property)?;
            }
        }
        for name in dropped {
            session.remove_property(path, &name)?;
        }
        let Some(children) = sent.children() else { return Ok(()) };
        let names: HashSet<&str> = children.iter().map(|(name, _)| &**name).collect();
        // Clients that know of content alone do not list policies.
        let is_dropped = |name: &&str| !is_policy_name(name) && !names.contains(name);
        let dropped = listed.iter().map(|name| &**name).filter(is_dropped).collect();
        session.remove_children(path, &dropped)?;
        for (name, child) in children {
            self.put_subtree(session, &path.child(name)?, child, depth + 1)?;
        }
        let common_names = listed.iter().filter(|name| names.contains(&***name));
        if !common_names.eq(children.iter().map(|(name, _)| name)) {
            let order: Vec<String> = children.iter().map(|(name, _)| name.clone()).collect();
            session.order_children(path, &order)?;
        }
        Ok(())
    }

    /// Applies a patch to a node.
    fn patch_subtree(
        &mut self,
        session: &mut Session,
        path: &NodePath,
        patch: &NodePatch,
        depth: usize,
    ) -> Result<()> {
        if depth > crate::api::node::MAX_READ_DEPTH {
            return Err(RequestFailure::bad_request("the patch is nested too deeply"));
        }
        let stored = session.read_node_fields(path)?;
        let stored: BTreeMap<String, Property> =
            stored.map(|stored| stored.properties).unwrap_or_default();
        for (name, sent) in &patch.properties.0 {
            let Some(sent) = sent else {
                if name == PRIMARY_TYPE {
                    return Err(RequestFailure::bad_request(
                        "every node must have a `jcr:primaryType`",
                    ));
                }
                session.remove_property(path, name)?;
                continue;
            };
            let stored = stored.get(name);
            let property = sent.to_property(name, stored)?;
            self.requested_properties.add(path, name, Some(property.clone()), self.operation_index);
            if stored != Some(&property) {
                session.set_property(path, name, property)?;
            }
        }
        if let Some(kind) = &patch.r#type {
            self.requested_properties.add(
                path,
                PRIMARY_TYPE,
                Some(Property::name(kind)),
                self.operation_index,
            );
            session.set_property(path, PRIMARY_TYPE, Property::name(kind))?;
        }
        let mut removed = BTreeSet::new();
        for (name, child) in &patch.children.0 {
            let at = path.child(name)?;
            let is_there = session.has_node(&at)?;
            match child {
                None if is_there => drop(removed.insert(&**name)),
                None => {}
                Some(child) => {
                    if !is_there {
                        let kind = child.r#type.as_deref().unwrap_or("nt:unstructured");
                        session.put_node(&at, Subtree::new(name, kind))?;
                    }
                    self.patch_subtree(session, &at, child, depth + 1)?;
                }
            }
        }
        Ok(session.remove_children(path, &removed)?)
    }
}

/// Returns a clear error if the parent of a new node is missing.
fn check_parent(session: &mut Session, path: &NodePath) -> Result<()> {
    match path.parent() {
        Some(parent) if !session.has_node(&parent)? => Err(RequestFailure::new(
            StatusCode::CONFLICT,
            format!("the parent node `{parent}` does not exist"),
        )),
        _ => Ok(()),
    }
}

/// Returns the target path, after removing the node at the target if `replace` allows it.
fn clear_target(session: &mut Session, from: &str, to: &str, replace: bool) -> Result<NodePath> {
    let (from, to) = (NodePath::new(from)?, NodePath::new(to)?);
    if !session.has_node(&from)? {
        return Err(RequestFailure::not_found(from.as_str()));
    }
    check_parent(session, &to)?;
    if replace && to != from && !from.is_within(&to) && session.has_node(&to)? {
        session.remove_node(&to)?;
    }
    Ok(to)
}

/// Returns the current state of a document as the response to a write.
pub(crate) fn written_node_response(
    path: &NodePath,
    tag: Option<String>,
    status: StatusCode,
) -> ApiResponse {
    let value: Json = json!({ "path": path.as_str(), "etag": quote_tag(tag.as_deref()) });
    ApiResponse::Json(JsonApiResponse { status, value, tag, location: None })
}
