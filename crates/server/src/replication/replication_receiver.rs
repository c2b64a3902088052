//! Receives replication messages, chunks and blobs from other instances.
//!
//! A publisher accepts everything from senders that know the key. An author shares the key with its publishers, which
//! are exposed to the public, so it accepts only content below the configured paths, and nothing by default.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use serde_json::json;
use subtle::ConstantTimeEq;
use tympan_content::NodePath;
use tympan_replicate::{
    Error, PairKeyPurpose, REPLICATION_KEY_HEADER, ReceiverRole, ReplicationMessage,
    apply_replication, store_blob, store_bundle, store_framed_chunks,
};
use tympan_web::body_limit::BodyLimit;

use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;
use crate::{Instance, InstanceRole};

/// Returns true if a request contains a key, valid or not.
pub(crate) fn has_replication_key(headers: &HeaderMap) -> bool {
    headers.contains_key(REPLICATION_KEY_HEADER)
}

/// Refuses requests without the key of a pair for this purpose. Incoming content may also use the key of the whole
/// farm, as long as no pair exists to receive with.
pub(crate) fn check_replication_key(
    instance: &Instance,
    headers: &HeaderMap,
    purpose: PairKeyPurpose,
) -> Result<()> {
    let key =
        headers.get(REPLICATION_KEY_HEADER).map(http::HeaderValue::as_bytes).unwrap_or_default();
    // The error names files of this machine, and the sender is unknown.
    let unreadable = |error: std::io::Error| RequestFailure::internal(&error);
    let is_admitted = match instance.home_pairs.check_key_for(key, purpose).map_err(unreadable)? {
        Some(is_admitted) => is_admitted,
        None => {
            purpose == PairKeyPurpose::Receive
                && bool::from(key.ct_eq(instance.replication_key.as_bytes()))
        }
    };
    if is_admitted {
        return Ok(());
    }
    let message = match purpose {
        PairKeyPurpose::Clone => {
            "this key does not grant access to the store; send a token of an administrator, or the key of a \
             pair created by `tympan pair --purpose clone` in the home of this instance"
        }
        _ => {
            "the replication key is missing or wrong; author and publish must share `replication.key`, or a \
             pair created by `tympan pair`"
        }
    };
    Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
}

/// Returns the role in which the instance receives content.
fn receiver_role(instance: &Instance) -> ReceiverRole {
    match instance.role {
        InstanceRole::Publish => ReceiverRole::Publisher,
        InstanceRole::Author => ReceiverRole::Author,
    }
}

/// Refuses senders that do not know the key, and all senders if the instance receives nothing.
fn authorize_sender(instance: &Instance, headers: &HeaderMap) -> Result<()> {
    check_replication_key(instance, headers, PairKeyPurpose::Receive)?;
    if instance.role == InstanceRole::Publish || !instance.received_paths.read().is_empty() {
        return Ok(());
    }
    let message = "this author instance does not accept replicated content; set `paths` in the section \
        `[receive]` of its `tympan.toml` to the paths that others may send";
    Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
}

/// Refuses a message about paths that this instance does not receive from others.
fn check_message_paths(instance: &Instance, message: &ReplicationMessage) -> Result<()> {
    if instance.role == InstanceRole::Publish {
        return Ok(());
    }
    let receives = instance.received_paths.read().clone();
    let path = NodePath::new(&message.path)?;
    let is_taken = |path: &NodePath| receives.iter().any(|top| path.is_within(top));
    let mut refused = (!is_taken(&path)).then(|| path.clone());
    for document in &message.documents {
        let document = NodePath::new(&document.path)?;
        if !is_taken(&document) {
            refused = Some(document);
        }
    }
    for (ancestor, _) in &message.ancestors {
        let ancestor = NodePath::new(ancestor)?;
        // For a partial tree, the message includes the nodes between the root of the tree and its documents.
        if !path.is_within(&ancestor) && !is_taken(&ancestor) {
            refused = Some(ancestor);
        }
    }
    for removed_path in &message.taken_away {
        let removed_path = NodePath::new(removed_path)?;
        if !is_taken(&removed_path) {
            refused = Some(removed_path);
        }
    }
    let Some(refused) = refused else { return Ok(()) };
    let message = format!(
        "this author instance does not accept replicated content at `{refused}`; see `[receive]` in its \
         `tympan.toml`"
    );
    Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
}

impl Instance {
    /// Lets an author receive content at or below these paths from other instances.
    pub fn set_received_paths(&self, paths: Vec<NodePath>) {
        *self.received_paths.write() = paths;
    }
}

/// Reads a body, whose size the router limits.
async fn read_body(request: Request) -> Result<Bytes> {
    let body = request.into_body().collect().await;
    Ok(body.map_err(|error| RequestFailure::unreadable_body(&error))?.to_bytes())
}

/// Applies a message, or returns the data that must be sent first. Processing completes even if the author disconnects.
pub(crate) async fn receive_message(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    authorize_sender(&instance, request.headers())?;
    let body = read_body(request).await?;
    let message: ReplicationMessage = serde_json::from_slice(&body).map_err(|error| {
        RequestFailure::bad_request(format!("invalid replication message: {error}"))
    })?;
    check_message_paths(&instance, &message)?;
    tokio::spawn(apply_received_message(instance, message)).await?
}

async fn apply_received_message(
    instance: Arc<Instance>,
    message: ReplicationMessage,
) -> Result<Response> {
    let now = SystemTime::now();
    let applied = instance
        .run_work(move |instance| {
            match apply_replication(&instance.repository, &message, receiver_role(instance), now) {
                Ok(applied) => Ok(Ok(applied)),
                Err(Error::Missing { chunks, blobs }) => {
                    let chunks: Vec<String> = chunks.iter().map(ToString::to_string).collect();
                    let blobs: Vec<String> = blobs.iter().map(ToString::to_string).collect();
                    Ok(Err(json!({ "chunks": chunks, "blobs": blobs })))
                }
                Err(error) => Err(RequestFailure::from(error)),
            }
        })
        .await?;
    match applied {
        Ok(applied) => {
            // The flushes are stored before the response to the author; if the process ends now, the next start stores
            // them.
            if instance.role == InstanceRole::Publish {
                instance.replicator.store_flushes(now).await?;
            }
            increment(&instance.metrics.replication_messages);
            let body =
                json!({ "root": applied.root.to_string(), "changed": applied.changed_paths.len() });
            Ok(axum::Json(body).into_response())
        }
        Err(missing) => Ok((StatusCode::CONFLICT, axum::Json(missing)).into_response()),
    }
}

/// Stores chunks.
pub(crate) async fn receive_chunks(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    authorize_sender(&instance, request.headers())?;
    let body = read_body(request).await?;
    let count = instance
        .run_work(move |instance| Ok(store_framed_chunks(&instance.repository, &body)?))
        .await?;
    Ok(axum::Json(json!({ "kept": count })).into_response())
}

/// Stores several blobs, which are written to a temporary file as they arrive.
pub(crate) async fn receive_blobs(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    authorize_sender(&instance, request.headers())?;
    let BodyLimit(max) = BodyLimit::of_request(request.extensions());
    let mut file = spool_limited_body(&instance, request.into_body(), max).await?;
    let count = instance
        .run_work(move |instance| {
            file.seek(SeekFrom::Start(0))?;
            Ok(store_bundle(&instance.repository, &mut std::io::BufReader::new(file))?)
        })
        .await?;
    Ok(axum::Json(json!({ "kept": count })).into_response())
}

/// Stores a blob, which is written to a temporary file as it arrives.
pub(crate) async fn receive_blob(
    State(instance): State<Arc<Instance>>,
    Path((digest, length)): Path<(String, String)>,
    request: Request,
) -> Result<Response> {
    authorize_sender(&instance, request.headers())?;
    let announced: u64 = length
        .parse()
        .map_err(|_| RequestFailure::bad_request(format!("`{length}` is not a valid length")))?;
    let mut file = spool_limited_body(&instance, request.into_body(), announced).await?;
    let id = format!("{digest}#{length}");
    instance
        .run_work(move |instance| {
            file.seek(SeekFrom::Start(0))?;
            Ok(store_blob(&instance.repository, &id, &mut file)?)
        })
        .await?;
    Ok(StatusCode::CREATED.into_response())
}

/// Writes a body to a temporary file.
async fn spool_limited_body(instance: &Instance, mut body: Body, max: u64) -> Result<File> {
    let mut file = tempfile::tempfile_in(&instance.spool_folder)?;
    let mut arrived = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| RequestFailure::unreadable_body(&error))?;
        if let Ok(data) = frame.into_data() {
            arrived += data.len() as u64;
            if arrived > max {
                return Err(RequestFailure::bad_request("the body is longer than allowed"));
            }
            file =
                tokio::task::spawn_blocking(move || file.write_all(&data).map(|()| file)).await??;
        }
    }
    Ok(file)
}
