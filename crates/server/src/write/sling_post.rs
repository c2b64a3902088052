//! Sling's POST protocol: forms that create, change, move, copy, delete, upload and activate.
//!
//! The order of operations is Sling's: node, `@Delete`, `@MoveFrom`, `@CopyFrom`, properties, files, order. One request
//! is one commit. `docs/compat/sling.md` lists differences.

mod duplicate_upload;
mod form_field;
mod import;
mod operation;
mod response;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use tympan_content::{NodePath, SubtreeScope, Viewer};
use tympan_replicate::{ReplicationAction, ReplicationRequest, require_replicate_permission};

use crate::api::WriteCondition;
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_csrf_token, check_request_origin, sent_csrf_token};
use crate::observe::metrics::increment;
use crate::query::budget::ReadBudget;
use crate::write::companion_request::{AccompaniedRequests, with_companions};
use crate::write::form;
pub(crate) use crate::write::sling_post::duplicate_upload::CREATE_ASSET_SERVLET_PID;
pub(crate) use crate::write::sling_post::form_field::PostFields;
pub(crate) use crate::write::sling_post::operation::{refuse_service_address, run_post_operation};
pub(crate) use crate::write::sling_post::response::{
    PostResponseOptions, failure_response, success_response,
};
use crate::{Instance, InstanceRole, api, replication::publish_agent};

/// The result of a request, for its response.
#[derive(Debug, Default)]
pub(crate) struct PostOutcome {
    /// The target node of the request.
    pub(crate) path: String,
    /// True if the node was created.
    pub(crate) is_created: bool,
    /// The message of the response; the reason phrase of the status if there is none.
    pub(crate) message: Option<String>,
    /// The response status, if the request specifies it.
    pub(crate) status: Option<StatusCode>,
    /// The changes: Sling's keyword and its arguments.
    pub(crate) changes: Vec<(&'static str, Vec<String>)>,
}

/// Handles a POST to a resource.
pub(crate) async fn serve_post(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let referer = request
        .headers()
        .get(http::header::REFERER)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let accept = request
        .headers()
        .get(http::header::ACCEPT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let mut options = PostResponseOptions::from_headers(accept, referer);
    let path = request.uri().path().to_owned();
    match handle_post(&instance, request, &path, &mut options).await {
        Ok((done, identity)) => {
            let mut response = response::success_response(&options, &done);
            response.extensions_mut().insert(identity);
            response
        }
        Err(failure) => response::failure_response(&options, &path, failure),
    }
}

async fn handle_post(
    instance: &Arc<Instance>,
    request: Request,
    path: &str,
    options: &mut PostResponseOptions,
) -> Result<(PostOutcome, RequestIdentity)> {
    let (parts, body) = request.into_parts();
    let identity = instance.require_user(&parts).await?;
    check_request_origin(&identity, &parts.headers)?;
    let header = sent_csrf_token(&parts.headers).map(str::to_owned);
    // A wrong token in the header is refused before the body is read; a plain form contains the token as a field.
    if header.is_some() {
        check_csrf_token(&identity, header.as_deref())?;
    }
    let fields = PostFields::from_form_fields(
        form::read_form(&parts.headers, body, &instance.spool_folder).await?,
    );
    if header.is_none() {
        check_csrf_token(&identity, fields.command_value(":cq_csrf_token"))?;
    }
    options.read_commands(&fields);
    let path = percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .map_err(|_| RequestFailure::bad_request("the path is not UTF-8"))?
        .into_owned();
    let operation = fields.command_value(":operation").unwrap_or_default().to_owned();
    let condition = WriteCondition::of_headers(&parts.headers);
    if condition != WriteCondition::None && ReplicationAction::from_name(&operation).is_some() {
        return Err(RequestFailure::bad_request(
            "activation does not support conditions; do not send `If-Match`",
        ));
    }
    let viewer = identity.viewer();
    if instance.role == InstanceRole::Publish {
        publish_agent::check_agent_change(instance, &viewer, (&path, &operation), &fields)?;
    }
    let outcome = match ReplicationAction::from_name(&operation) {
        Some(action) => replicate_targets(instance, action, (path, fields), viewer).await?,
        None => {
            let work = move |instance: &Instance| {
                operation::run_post_operation(
                    instance, &operation, &path, &fields, &viewer, &condition,
                )
            };
            let outcome = instance.run_work(work).await?;
            increment(&instance.metrics.commits);
            outcome
        }
    };
    Ok((outcome, identity))
}

/// Activates or deactivates the nodes that a form posted to a path names.
///
/// # Errors
/// If the viewer lacks `crx:replicate` for one of the nodes, or for a companion.
async fn replicate_targets(
    instance: &Arc<Instance>,
    action: ReplicationAction,
    (path, fields): (String, PostFields),
    viewer: Viewer,
) -> Result<PostOutcome> {
    let requester = viewer.clone();
    let accompanied_requests = instance
        .run_work(move |instance| {
            replication_requests_of(instance, action, (&path, &fields), &requester)
        })
        .await?;
    let outcome = replication_outcome(action, &accompanied_requests);
    instance.replicate(viewer, accompanied_requests.requests).await?;
    Ok(outcome)
}

/// Returns the requests for the nodes that a form posted to a path names.
fn replication_requests_of(
    instance: &Instance,
    action: ReplicationAction,
    (path, fields): (&str, &PostFields),
    viewer: &Viewer,
) -> Result<AccompaniedRequests> {
    let snapshot = instance.repository.snapshot()?.as_viewer(viewer);
    let is_deep = fields.command_value(":deep") == Some("true");
    let depth = if is_deep { SubtreeScope::Subtree } else { SubtreeScope::Document };
    let targets = operation::operation_targets_or_missing(
        &snapshot,
        path,
        fields,
        ReadBudget::for_memory(instance.query_engine_for(viewer)?.limits()),
        action == ReplicationAction::Deactivate,
    )?;
    // All of them are recorded in one commit.
    if targets.len() > api::MAX_REQUEST_PATHS {
        return Err(RequestFailure::bad_request(format!(
            "`:applyTo` names {} nodes: at most {} are replicated at once; use `:deep` on their folder",
            targets.len(),
            api::MAX_REQUEST_PATHS
        )));
    }
    let mut requests = Vec::new();
    for path in targets {
        let (path, user) = (NodePath::new(&path)?, viewer.name().to_owned());
        let request = ReplicationRequest { action, path, depth, user };
        require_replicate_permission(&snapshot, &request)?;
        requests.push(request);
    }
    match fields.command_value(":companions") == Some("true") {
        true => with_companions(&snapshot, requests),
        false => Ok(AccompaniedRequests::without_companions(requests)),
    }
}

/// Describes activations or deactivations for the response.
fn replication_outcome(
    action: ReplicationAction,
    accompanied: &AccompaniedRequests,
) -> PostOutcome {
    let AccompaniedRequests { requests, companion_count, skipped_companions } = accompanied;
    let keyword = if action == ReplicationAction::Activate { "activated" } else { "deactivated" };
    let replicated = requests.iter().map(|request| (keyword, vec![request.path.to_string()]));
    let skipped = skipped_companions.iter().map(|path| ("left", vec![path.to_string()]));
    let first_target = requests.get(*companion_count);
    PostOutcome {
        path: first_target.map(|request| request.path.to_string()).unwrap_or_default(),
        changes: replicated.chain(skipped).collect(),
        ..PostOutcome::default()
    }
}
