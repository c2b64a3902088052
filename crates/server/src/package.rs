//! Content packages over HTTP: the JSON API here, the addresses of AEM's package manager in `crx`.
//!
//! In: package files, streamed to the spool folder, and ids of stored packages. Out: reports.
//!
//! Only the administrator may ask. Reading is refused, too: a package holds content of the whole repository.

mod crx;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tympan_content::package::build::{Manifest, write};
use tympan_content::package::{
    DependencyRule, Filter, IdentifierRule, IfExists, InstallOptions, InstallReport, Installation,
    Limits, Package, PackageId, Stamp, StoredPackage,
};
use tympan_content::{BlobContent, Session};
use tympan_web::limit::{BodyLimit, is_stalled, is_too_large, limited};
use tympan_web::read_body::from_reader;

use crate::failure::{Failure, Result};
use crate::form::{self, FieldValue};
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};
use crate::metrics::count;
use crate::{Instance, api};

/// The only user who may handle packages.
const ADMIN: &str = "admin";
/// How often an installation is tried while others commit.
const ATTEMPTS: usize = 3;

type Parameters = HashMap<String, String>;

/// Returns the routes of the package API.
pub(crate) fn routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/api/v1/packages", get(list).post(upload).delete(remove))
        .route("/api/v1/packages/zip", get(download))
        .route("/api/v1/packages/diff", post(diff))
        .route("/api/v1/packages/install", post(install))
        .route("/api/v1/packages/uninstall", post(uninstall))
        .route("/api/v1/packages/build", post(build))
        .merge(crx::routes())
}

/// Tells who asks, or refuses all but the administrator.
async fn require_admin(instance: &Instance, parts: &Parts) -> Result<Identity> {
    let identity = api::require_user(instance, parts).await?;
    if identity.user != ADMIN {
        let message = "only the administrator may handle packages";
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        check_origin(&identity, &parts.headers)?;
    }
    Ok(identity)
}

/// The same for a write whose CSRF token stands in the header, if it needs one.
async fn require_writer(instance: &Instance, parts: &Parts) -> Result<Identity> {
    let identity = require_admin(instance, parts).await?;
    let token = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    check_csrf(&identity, token)?;
    Ok(identity)
}

fn stamp(user: &str) -> Stamp {
    Stamp { user: user.to_owned(), at: SystemTime::now() }
}

fn is_true(parameters: &Parameters, name: &str) -> bool {
    parameters.get(name).is_some_and(|value| value == "true" || value == "1" || value == "on")
}

fn options_of(parameters: &Parameters) -> Result<InstallOptions> {
    let refused = |name: &str, value: &str, known: &str| {
        Failure::bad_request(format!("`{name}` is `{value}`; it must be {known}"))
    };
    let mut options = InstallOptions::default();
    if let Some(rule) = parameters.get("identifiers") {
        options.identifiers = IdentifierRule::find(rule)
            .ok_or_else(|| refused("identifiers", rule, "refuse, new or replace"))?;
    }
    if let Some(rule) = parameters.get("dependencies") {
        options.dependencies = DependencyRule::find(rule).ok_or_else(|| {
            refused("dependencies", rule, "best_effort, required, strict or ignore")
        })?;
    }
    Ok(options)
}

async fn list(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    let (parts, _) = request.into_parts();
    require_admin(&instance, &parts).await?;
    let packages =
        instance.work(|instance| Ok(instance.repository.snapshot()?.packages()?)).await?;
    Ok(Json(json!({ "packages": packages })))
}

/// Stores a package, and installs it if asked to; the body is the package, or a form that holds it.
async fn upload(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    let identity = require_writer(&instance, &parts).await?;
    let options = options_of(&parameters)?;
    let received = receive(&instance, &parts, body).await?;
    let is_installed = is_true(&parameters, "install");
    let if_exists =
        if is_true(&parameters, "replace") { IfExists::Replace } else { IfExists::Refuse };
    let (stored, report) = instance
        .work(move |instance| {
            if is_installed {
                let report = received.install(instance, &options, &stamp(&identity.user))?;
                let stored = find(instance, &report.package)?;
                return Ok((stored, Some(report)));
            }
            Ok((received.store(instance, if_exists, &stamp(&identity.user))?, None))
        })
        .await?;
    let text = report.as_ref().map(ToString::to_string);
    let answer = json!({ "package": stored, "report": report, "text": text });
    Ok((StatusCode::CREATED, Json(answer)).into_response())
}

/// Tells what installing the package in the body would change.
async fn diff(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    let (parts, body) = request.into_parts();
    require_writer(&instance, &parts).await?;
    let mut received = receive(&instance, &parts, body).await?;
    instance
        .work(move |instance| {
            let mut package = received.open()?;
            let mut session = instance.repository.session(ADMIN)?;
            let (difference, _) = session.try_package(&mut package, &InstallOptions::default())?;
            let text = difference.to_string();
            Ok(Json(json!({ "report": difference, "text": text })))
        })
        .await
}

async fn install(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Json<Value>> {
    let (parts, _) = request.into_parts();
    let identity = require_writer(&instance, &parts).await?;
    let (id, options) = (id_of(&parameters)?, options_of(&parameters)?);
    instance
        .work(move |instance| {
            let stored = find(instance, &id)?;
            let report = install_stored(instance, &stored, &options, &identity.user)?;
            let text = report.to_string();
            Ok(Json(json!({ "report": report, "text": text })))
        })
        .await
}

async fn uninstall(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Json<Value>> {
    let (parts, _) = request.into_parts();
    let identity = require_writer(&instance, &parts).await?;
    let id = id_of(&parameters)?;
    let is_forced = is_true(&parameters, "force");
    instance
        .work(move |instance| {
            let stored = find(instance, &id)?;
            let done = uninstall_stored(instance, &stored, is_forced, &identity.user)?;
            let text = done.to_string();
            Ok(Json(json!({ "report": done, "text": text })))
        })
        .await
}

async fn remove(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Json<Value>> {
    let (parts, _) = request.into_parts();
    let identity = require_writer(&instance, &parts).await?;
    let id = id_of(&parameters)?;
    instance
        .work(move |instance| {
            let stored = find(instance, &id)?;
            let mut session = instance.repository.session(&identity.user)?;
            session.remove_package(&stored.path, &stamp(&identity.user))?;
            count(&instance.metrics.commits);
            Ok(Json(json!({ "package": stored })))
        })
        .await
}

async fn download(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Response> {
    let (parts, _) = request.into_parts();
    require_admin(&instance, &parts).await?;
    let id = id_of(&parameters)?;
    let is_head = parts.method == Method::HEAD;
    instance.work(move |instance| send(instance, &find(instance, &id)?, is_head)).await
}

/// Builds a package of the content that the filter in the body names, and sends it. It is not stored.
async fn build(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Response> {
    let (parts, body) = request.into_parts();
    require_writer(&instance, &parts).await?;
    let id = id_of(&parameters)?;
    let limit = parts.extensions.get::<BodyLimit>().map_or(u64::MAX, |limit| limit.0);
    let text = limited(body, limit.min(Limits::default().document_bytes));
    let text = text.collect().await.map_err(|error| broken(&*error))?.to_bytes();
    instance
        .work(move |instance| {
            let filter = Filter::parse("filter.xml", &text)?;
            let mut file = tempfile::tempfile_in(&instance.spool)?;
            let name = id.file_name();
            let snapshot = instance.repository.snapshot()?;
            let manifest = Manifest::of(&snapshot, id, filter)?;
            write(&mut file, &manifest, &snapshot)?;
            let length = file.seek(SeekFrom::End(0))?;
            file.seek(SeekFrom::Start(0))?;
            Ok(zip_response(Body::new(from_reader(file, length)), length, &name))
        })
        .await
}

fn id_of(parameters: &Parameters) -> Result<PackageId> {
    let text = parameters.get("id").map(String::as_str).unwrap_or_default();
    let id = PackageId::parse(text);
    if id.name.is_empty() {
        return Err(Failure::bad_request("name the package with `id=group:name:version`"));
    }
    Ok(id)
}

fn find(instance: &Instance, id: &PackageId) -> Result<StoredPackage> {
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("there is no package `{id}`"));
    instance.repository.snapshot()?.find_package(id)?.ok_or_else(missing)
}

/// Sends the file of a stored package.
fn send(instance: &Instance, stored: &StoredPackage, is_head: bool) -> Result<Response> {
    let name = stored.id.file_name();
    if is_head {
        return Ok(zip_response(Body::empty(), stored.size, &name));
    }
    let content =
        instance.repository.blobs().open(&stored.data).map_err(tympan_content::Error::from)?;
    let content = content.ok_or_else(|| {
        let message = format!("the blob {} is missing", stored.data);
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    let body = match content {
        BlobContent::Bytes(bytes) => Body::from(bytes),
        BlobContent::File { file, length } => Body::new(from_reader(file, length)),
    };
    Ok(zip_response(body, stored.size, &name))
}

fn zip_response(body: Body, length: u64, name: &str) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zip"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let plain: String = name.chars().filter(|one| one.is_ascii_graphic() && *one != '"').collect();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{plain}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    response
}

/// Does something in a session of its own, again while others commit what it touches.
fn attempt<T>(
    instance: &Instance,
    user: &str,
    mut work: impl FnMut(&mut Session) -> tympan_content::Result<T>,
) -> Result<T> {
    for _ in 1..ATTEMPTS {
        match work(&mut instance.repository.session(user)?) {
            Err(tympan_content::Error::Conflicts(_)) => {}
            Err(error) => return Err(error.into()),
            Ok(done) => return Ok(done),
        }
    }
    Ok(work(&mut instance.repository.session(user)?)?)
}

fn install_stored(
    instance: &Instance,
    stored: &StoredPackage,
    options: &InstallOptions,
    user: &str,
) -> Result<InstallReport> {
    let stamp = stamp(user);
    let report = attempt(instance, user, |session| {
        let how = Installation { options, stamp: &stamp, progress: &mut |_| {} };
        session.install_package(&stored.path, how)
    })?;
    count(&instance.metrics.commits);
    Ok(report)
}

fn uninstall_stored(
    instance: &Instance,
    stored: &StoredPackage,
    is_forced: bool,
    user: &str,
) -> Result<tympan_content::package::Uninstalled> {
    let rule = if is_forced { DependencyRule::Ignore } else { DependencyRule::Required };
    let stamp = stamp(user);
    let done =
        attempt(instance, user, |session| session.uninstall_package(&stored.path, rule, &stamp))?;
    count(&instance.metrics.commits);
    Ok(done)
}

/// A package file that arrived, in the spool folder.
struct Received {
    file: NamedTempFile,
    /// What messages call it.
    name: String,
}

impl Received {
    fn open(&mut self) -> Result<Package<BufReader<File>>> {
        let file = BufReader::new(self.file.reopen()?);
        Ok(Package::read(file, &self.name, &Limits::default())?)
    }

    fn store(
        mut self,
        instance: &Instance,
        if_exists: IfExists,
        stamp: &Stamp,
    ) -> Result<StoredPackage> {
        let mut session = instance.repository.session(&stamp.user)?;
        let file = self.file.as_file_mut();
        file.seek(SeekFrom::Start(0))?;
        let stored = session.store_package(file, &self.name, if_exists, stamp)?;
        session.commit(&format!("store package {}", stored.id), stamp.at)?;
        count(&instance.metrics.commits);
        Ok(stored)
    }

    /// Stores and installs the package as one commit.
    fn install(
        mut self,
        instance: &Instance,
        options: &InstallOptions,
        stamp: &Stamp,
    ) -> Result<InstallReport> {
        let mut package = self.open()?;
        let mut bytes = self.file.reopen()?;
        let report = attempt(instance, &stamp.user, |session| {
            let rewound = bytes.seek(SeekFrom::Start(0));
            rewound.map_err(|source| tympan_content::Error::Read {
                what: "the package".into(),
                source,
            })?;
            let how = Installation { options, stamp, progress: &mut |_| {} };
            session.install_file(&mut package, &mut bytes, how)
        })?;
        count(&instance.metrics.commits);
        Ok(report)
    }
}

/// Takes a package file from a request: the body itself, or a file in a form.
async fn receive(instance: &Instance, parts: &Parts, body: Body) -> Result<Received> {
    let limit = parts.extensions.get::<BodyLimit>().copied();
    let media_type = parts.headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.starts_with("multipart/") {
        let file = spool(instance, body, limit).await?;
        return Ok(Received { file, name: "the package".into() });
    }
    received_form(form::read(&parts.headers, body, limit, &instance.spool).await?)
        .ok_or_else(|| Failure::bad_request("the form holds no package file"))
}

/// Finds the package in a form: its first file.
fn received_form(form: Vec<form::Field>) -> Option<Received> {
    form.into_iter().find_map(|field| match field.value {
        FieldValue::File(upload) => Some(Received { file: upload.file, name: upload.name }),
        FieldValue::Text(_) => None,
    })
}

/// Writes a body to a file as it arrives.
async fn spool(instance: &Instance, body: Body, limit: Option<BodyLimit>) -> Result<NamedTempFile> {
    let mut body = limited(body, limit.map_or(u64::MAX, |limit| limit.0));
    let mut file = NamedTempFile::new_in(&instance.spool)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&*error))?;
        if let Ok(data) = frame.into_data() {
            file =
                tokio::task::spawn_blocking(move || file.write_all(&data).map(|()| file)).await??;
        }
    }
    Ok(file)
}

/// Sorts what went wrong while a body was read.
fn broken(error: &(dyn std::error::Error + 'static)) -> Failure {
    if is_too_large(error) {
        Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "the package is larger than this server takes")
    } else if is_stalled(error) {
        Failure::new(StatusCode::REQUEST_TIMEOUT, "the package stopped arriving")
    } else {
        Failure::bad_request(format!("the package cannot be received: {error}"))
    }
}
