//! The store of this instance for clones and standbys on other machines. `docs/formats/remote-store.md` describes the
//! exchange.

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
    GuestNotes, MAX_NOTE, MAX_STORE_REQUEST, Purpose, WireGrant, store_blobs, store_chunks,
    store_grant, store_history, store_lacks, store_lease, store_note, store_notes, store_refs,
    store_release, store_remove_note, store_write_note,
};
use tympan_web::limit::limited;
use tympan_web::read_body::from_reader;

use crate::Instance;
use crate::api::require_user;
use crate::failure::{Failure, Result};
use crate::receive::{check_key, gives_key};

/// Returns the routes below `/bin/store`.
pub(crate) fn routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/bin/store/refs", get(refs))
        .route("/bin/store/history", get(history))
        .route("/bin/store/chunks/lacking", post(lacking))
        .route("/bin/store/chunks/read", post(chunks))
        .route("/bin/store/blobs/read", post(blobs))
        .route("/bin/store/blob/{digest}/{length}", get(blob))
        .route("/bin/store/lease", get(lease).put(grant).delete(release))
        .route("/bin/store/notes", get(notes))
        .route("/bin/store/note/{name}", get(note).put(write_note).delete(remove_note))
}

/// Refuses whoever is neither another instance of the farm nor an administrator. A cookie does not do, as a browser
/// sends it by itself.
async fn authorize(instance: &Instance, parts: &Parts) -> Result<()> {
    if gives_key(&parts.headers) {
        return check_key(instance, &parts.headers, Purpose::Clone);
    }
    if !parts.headers.contains_key(header::AUTHORIZATION) {
        let message = "send the key of a pair for cloning, or the credentials of an administrator";
        return Err(Failure::new(StatusCode::UNAUTHORIZED, message));
    }
    let identity = require_user(instance, parts).await?;
    // Chunks are not told apart by who may read what is in them.
    let viewer = instance.viewer_of(Some(&identity))?;
    instance.require_administrator(&viewer, "read the whole store")
}

/// Checks who asks and reads the body.
async fn accept(instance: &Instance, request: Request) -> Result<Bytes> {
    accept_up_to(MAX_STORE_REQUEST, instance, request).await
}

/// Does the same with a longer body.
async fn accept_up_to(max: u64, instance: &Instance, request: Request) -> Result<Bytes> {
    let (parts, body) = request.into_parts();
    authorize(instance, &parts).await?;
    let body = Body::new(limited(body, max)).collect().await;
    let too_large =
        |error: axum::Error| Failure::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string());
    Ok(body.map_err(too_large)?.to_bytes())
}

async fn refs(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    accept(&instance, request).await?;
    let refs = instance.work(|instance| Ok(store_refs(&instance.repository)?)).await?;
    Ok(Json(refs).into_response())
}

#[derive(Deserialize)]
struct HistoryQuery {
    r#ref: String,
    before: Option<u64>,
    limit: usize,
}

async fn history(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<HistoryQuery>,
    request: Request,
) -> Result<Response> {
    accept(&instance, request).await?;
    let revisions = instance
        .work(move |instance| {
            let HistoryQuery { r#ref, before, limit } = query;
            Ok(store_history(&instance.repository, &r#ref, before, limit)?)
        })
        .await?;
    Ok(Json(revisions).into_response())
}

async fn lacking(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = accept(&instance, request).await?;
    let answer =
        instance.work(move |instance| Ok(store_lacks(&instance.repository, &body)?)).await?;
    Ok(answer.into_response())
}

async fn chunks(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = accept(&instance, request).await?;
    let answer =
        instance.work(move |instance| Ok(store_chunks(&instance.repository, &body)?)).await?;
    Ok(answer.into_response())
}

async fn blobs(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = accept(&instance, request).await?;
    let answer =
        instance.work(move |instance| Ok(store_blobs(&instance.repository, &body)?)).await?;
    Ok(answer.into_response())
}

async fn blob(
    State(instance): State<Arc<Instance>>,
    Path((digest, length)): Path<(String, String)>,
    request: Request,
) -> Result<Response> {
    // Who may send blobs asks first which are there already.
    let is_question = request.method() == http::Method::HEAD
        && check_key(&instance, request.headers(), Purpose::Receive).is_ok();
    if !is_question {
        accept(&instance, request).await?;
    }
    let id: BlobId = format!("{digest}#{length}")
        .parse()
        .map_err(|_| Failure::bad_request(format!("`{digest}/{length}` is no blob")))?;
    let content = instance
        .work(move |instance| {
            let opened = instance.repository.blobs().open(&id);
            opened.map_err(|error| Failure::from(tympan_replicate::Error::from(error)))
        })
        .await?;
    let content = content.ok_or_else(|| Failure::not_found(&id.to_string()))?;
    Ok(Body::new(from_reader(content.into_reader(), id.length())).into_response())
}

#[derive(Deserialize)]
struct Holder {
    holder: String,
}

async fn lease(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<Holder>,
    request: Request,
) -> Result<Response> {
    accept(&instance, request).await?;
    let lease = instance
        .work(move |instance| Ok(store_lease(&instance.repository, &query.holder)?))
        .await?;
    Ok(Json(lease).into_response())
}

async fn grant(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let body = accept(&instance, request).await?;
    let grant: WireGrant = serde_json::from_slice(&body)
        .map_err(|error| Failure::bad_request(format!("not a lease: {error}")))?;
    let now = SystemTime::now();
    instance.work(move |instance| Ok(store_grant(&instance.repository, &grant, now)?)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn release(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<Holder>,
    request: Request,
) -> Result<Response> {
    accept(&instance, request).await?;
    instance.work(move |instance| Ok(store_release(&instance.repository, &query.holder)?)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl Instance {
    /// Takes notes of repositories on other machines that read these blobs, so that a collection keeps what they need.
    pub fn keep_guest_notes(&self, notes: GuestNotes) {
        self.guest_notes.get_or_init(|| notes);
    }

    fn guest_notes(&self) -> Result<&GuestNotes> {
        self.guest_notes.get().ok_or_else(|| {
            let message = "this instance takes no notes about blobs";
            Failure::new(StatusCode::CONFLICT, message)
        })
    }
}

#[derive(Deserialize)]
struct NotesQuery {
    prefix: String,
}

async fn notes(
    State(instance): State<Arc<Instance>>,
    Query(query): Query<NotesQuery>,
    request: Request,
) -> Result<Response> {
    accept(&instance, request).await?;
    let listed = instance
        .work(move |instance| Ok(store_notes(instance.guest_notes()?, &query.prefix)?))
        .await?;
    Ok(Json(listed).into_response())
}

async fn note(
    State(instance): State<Arc<Instance>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response> {
    accept(&instance, request).await?;
    let note =
        instance.work(move |instance| Ok(store_note(instance.guest_notes()?, &name)?)).await?;
    Ok(note.into_response())
}

async fn write_note(
    State(instance): State<Arc<Instance>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response> {
    let body = accept_up_to(MAX_NOTE, &instance, request).await?;
    instance
        .work(move |instance| Ok(store_write_note(instance.guest_notes()?, &name, &body)?))
        .await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove_note(
    State(instance): State<Arc<Instance>>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response> {
    accept(&instance, request).await?;
    instance.work(move |instance| Ok(store_remove_note(instance.guest_notes()?, &name)?)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
