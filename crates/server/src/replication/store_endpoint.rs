//! Store endpoints of this instance for clones and standbys on other machines. `docs/formats/remote-store.md` describes
//! the protocol.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::request::Parts;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use tympan_content::BlobId;
use tympan_replicate::{
    GuestNotes, MAX_GUEST_NOTE_BYTES, MAX_STORE_REQUEST_BYTES, PairKeyPurpose, WireLeaseRequest,
    find_missing_chunks, grant_store_lease, list_guest_notes, list_store_refs,
    list_store_revisions, read_guest_note, read_store_blobs, read_store_chunks, read_store_lease,
    release_store_lease, remove_guest_note, write_guest_note,
};
use tympan_web::body_limit::limit_body;
use tympan_web::reader_body::body_from_reader;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::replication::replication_receiver::{check_replication_key, has_replication_key};

/// Returns the routes below `/bin/store`.
pub(crate) fn store_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/bin/store/refs", get(read_refs))
        .route("/bin/store/history", get(read_history))
        .route("/bin/store/chunks/lacking", post(find_missing))
        .route("/bin/store/chunks/read", post(read_chunks))
        .route("/bin/store/blobs/read", post(read_blobs))
        .route("/bin/store/blob/{digest}/{length}", get(read_blob))
        .route("/bin/store/lease", get(take_lease).put(grant_lease).delete(release_lease))
        .route("/bin/store/notes", get(serve_guest_note_list))
        .route(
            "/bin/store/note/{name}",
            get(serve_guest_note).put(accept_guest_note).delete(delete_guest_note),
        )
}

/// Refuses requests that come neither from another instance of the farm nor from an administrator. A cookie is not
/// accepted, because a browser sends it automatically.
async fn authorize_store_access(instance: &Instance, parts: &Parts) -> Result<()> {
    if has_replication_key(&parts.headers) {
        return check_replication_key(instance, &parts.headers, PairKeyPurpose::Clone);
    }
    if !parts.headers.contains_key(header::AUTHORIZATION) {
        let message = "send the key of a pair for cloning, or the credentials of an administrator";
        return Err(RequestFailure::new(StatusCode::UNAUTHORIZED, message));
    }
    let identity = instance.require_user(parts).await?;
    // Access control does not apply to individual chunks.
    instance.require_administrator(&identity.viewer(), "read the whole store")
}

/// Authorizes a request and reads its body.
async fn read_authorized_body(instance: &Instance, request: Request) -> Result<Bytes> {
    read_authorized_body_up_to(MAX_STORE_REQUEST_BYTES, instance, request).await
}

/// Same as `read_authorized_body`, with a given maximum length.
async fn read_authorized_body_up_to(
    max: u64,
    instance: &Instance,
    request: Request,
) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    authorize_store_access(instance, &parts).await?;
    let body = Body::new(limit_body(body, max)).collect().await;
    let too_large =
        |error: axum::Error| RequestFailure::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string());
    Ok(body.map_err(too_large)?.to_bytes())
}

async fn read_refs(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    let refs = instance.run_work(|instance| Ok(list_store_refs(&instance.repository)?)).await?;
    Ok(Json(refs).into_response())
}

#[derive(Deserialize)]
struct HistoryQuery {
    r#ref: String,
    before: Option<u64>,
    limit: usize,
}

async fn read_history(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<HistoryQuery>,
    request: Request,
) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    let revisions = instance
        .run_work(move |instance| {
            let HistoryQuery { r#ref, before, limit } = query;
            Ok(list_store_revisions(&instance.repository, &r#ref, before, limit)?)
        })
        .await?;
    Ok(Json(revisions).into_response())
}

async fn find_missing(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = read_authorized_body(&instance, request).await?;
    let response = instance
        .run_work(move |instance| Ok(find_missing_chunks(&instance.repository, &body)?))
        .await?;
    Ok(response.into_response())
}

async fn read_chunks(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = read_authorized_body(&instance, request).await?;
    let response = instance
        .run_work(move |instance| Ok(read_store_chunks(&instance.repository, &body)?))
        .await?;
    Ok(response.into_response())
}

async fn read_blobs(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = read_authorized_body(&instance, request).await?;
    let response = instance
        .run_work(move |instance| Ok(read_store_blobs(&instance.repository, &body)?))
        .await?;
    Ok(response.into_response())
}

async fn read_blob(
    State(instance): State<Arc<Instance>>,
    Path((digest, length)): Path<(String, String)>,
    request: Request,
) -> Result<Response> {
    // A client that may send blobs first queries which ones exist.
    let is_question = request.method() == http::Method::HEAD
        && check_replication_key(&instance, request.headers(), PairKeyPurpose::Receive).is_ok();
    if !is_question {
        read_authorized_body(&instance, request).await?;
    }
    let id: BlobId = format!("{digest}#{length}").parse().map_err(|_| {
        RequestFailure::bad_request(format!("`{digest}/{length}` is not a valid blob id"))
    })?;
    let content = instance
        .run_work(move |instance| {
            let opened = instance.repository.blobs().open(&id);
            opened.map_err(|error| RequestFailure::from(tympan_replicate::Error::from(error)))
        })
        .await?;
    let content = content.ok_or_else(|| RequestFailure::not_found(&id.to_string()))?;
    Ok(Body::new(body_from_reader(content.into_reader(), id.length())).into_response())
}

#[derive(Deserialize)]
struct LeaseHolderQuery {
    holder: String,
}

async fn take_lease(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<LeaseHolderQuery>,
    request: Request,
) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    let lease = instance
        .run_work(move |instance| Ok(read_store_lease(&instance.repository, &query.holder)?))
        .await?;
    Ok(Json(lease).into_response())
}

async fn grant_lease(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = read_authorized_body(&instance, request).await?;
    let grant: WireLeaseRequest = serde_json::from_slice(&body)
        .map_err(|error| RequestFailure::bad_request(format!("invalid lease: {error}")))?;
    let now = SystemTime::now();
    instance
        .run_work(move |instance| Ok(grant_store_lease(&instance.repository, &grant, now)?))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn release_lease(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<LeaseHolderQuery>,
    request: Request,
) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    instance
        .run_work(move |instance| Ok(release_store_lease(&instance.repository, &query.holder)?))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl Instance {
    /// Records repositories on other machines that read these blobs, so that a garbage collection retains the blobs
    /// they need.
    pub fn set_guest_notes(&self, notes: GuestNotes) {
        self.guest_notes.get_or_init(|| notes);
    }

    fn guest_notes(&self) -> Result<&GuestNotes> {
        self.guest_notes.get().ok_or_else(|| {
            let message = "this instance does not accept notes about blobs";
            RequestFailure::new(StatusCode::CONFLICT, message)
        })
    }
}

#[derive(Deserialize)]
struct GuestNotesQuery {
    prefix: String,
}

async fn serve_guest_note_list(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<GuestNotesQuery>,
    request: Request,
) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    let listed = instance
        .run_work(move |instance| Ok(list_guest_notes(instance.guest_notes()?, &query.prefix)?))
        .await?;
    Ok(Json(listed).into_response())
}

async fn serve_guest_note(
    State(instance): State<Arc<Instance>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    let note = instance
        .run_work(move |instance| Ok(read_guest_note(instance.guest_notes()?, &name)?))
        .await?;
    Ok(note.into_response())
}

async fn accept_guest_note(
    State(instance): State<Arc<Instance>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response> {
    let body = read_authorized_body_up_to(MAX_GUEST_NOTE_BYTES, &instance, request).await?;
    instance
        .run_work(move |instance| Ok(write_guest_note(instance.guest_notes()?, &name, &body)?))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn delete_guest_note(
    State(instance): State<Arc<Instance>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response> {
    read_authorized_body(&instance, request).await?;
    instance
        .run_work(move |instance| Ok(remove_guest_note(instance.guest_notes()?, &name)?))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
