//! The URLs of AEM's package manager, as Maven plugins and `curl` use them.
//!
//! `/crx/packmgr/service/.json<path>?cmd=…` returns JSON with `success` and `msg`, `/crx/packmgr/service.jsp` the old
//! XML format, `/crx/packmgr/list.jsp` the list for the user interface. As in AEM, a refused package results in status
//! 200 and `success: false`; an unauthorized user receives 401 or 403.

use std::fmt::Write as _;
use std::io::{Seek, SeekFrom};
use std::sync::Arc;

use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tympan_content::{JcrDate, NodePath, Viewer};
use tympan_content_package::{
    IfPackageExists, InstallOptions, NestedPackageRule, PackageFilter, PackageId, PackageSession,
    StoredPackage, StoredPackages,
};
use tympan_notation::escape_xml;
use tympan_web::http_date::format_http_date;

use super::{
    PackageParameters, ReceivedPackage, audit_stamp, install_stored_package, is_parameter_true,
    package_difference, package_from_form, preview_limits, remove_stored_package, require_user,
    send_package, uninstall_stored_package,
};
use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::login::{check_csrf_token, sent_csrf_token};
use crate::observe::metrics::increment;
use crate::write::form::{self, FormFieldValue};
use crate::write::package_limits::viewer_package_limits;

/// URL prefixes before the path of a package.
const PACKAGE_PATH_PREFIXES: [&str; 3] = [
    "/crx/packmgr/service/.json",
    "/crx/packmgr/service/exec.json",
    "/crx/packmgr/service/script.html",
];

pub(super) fn crx_routes() -> Router<Arc<Instance>> {
    let mut router = Router::new()
        .route("/crx/packmgr/service.jsp", any(serve_xml))
        .route("/crx/packmgr/list.jsp", get(list_packages))
        .route("/crx/packmgr/installstatus.jsp", get(serve_install_status))
        .route("/crx/packmgr/download.jsp", get(download_package));
    for prefix in PACKAGE_PATH_PREFIXES {
        router = router
            .route(prefix, any(serve_command))
            .route(&format!("{prefix}/"), any(serve_command))
            .route(&format!("{prefix}/{{*path}}"), any(serve_command));
    }
    router
}

/// The query and form parameters of a request.
struct PackageManagerRequest {
    viewer: Viewer,
    parameters: PackageParameters,
    received_package: Option<ReceivedPackage>,
    path: Option<NodePath>,
}

impl PackageManagerRequest {
    async fn read(instance: &Instance, request: Request) -> Result<Self> {
        let (parts, body) = request.into_parts();
        let identity = require_user(instance, &parts).await?;
        let viewer = identity.viewer();
        let mut parameters: PackageParameters = query_parameters(&parts);
        let mut received = None;
        if parts.method == Method::POST {
            let header = sent_csrf_token(&parts.headers).map(str::to_owned);
            // A wrong token in the header is refused before the body is read; a plain form contains the token as a
            // field.
            if header.is_some() {
                check_csrf_token(&identity, header.as_deref())?;
            }
            let form = form::read_form(&parts.headers, body, &instance.spool_folder).await?;
            for field in &form {
                if let FormFieldValue::Text(text) = &field.value {
                    parameters.insert(field.name.clone(), text.clone());
                }
            }
            received = package_from_form(form);
            if header.is_none() {
                check_csrf_token(&identity, parameters.get(":cq_csrf_token").map(String::as_str))?;
            }
        }
        let path = package_path_of(parts.uri.path())?;
        Ok(Self { viewer, parameters, received_package: received, path })
    }

    fn command(&self) -> &str {
        self.parameters.get("cmd").map(String::as_str).unwrap_or_default()
    }

    fn is_forced(&self) -> bool {
        is_parameter_true(&self.parameters, "force")
    }

    fn options(&self) -> InstallOptions {
        let stays = self.parameters.get("recursive").is_some_and(|value| value == "false");
        let nested = if stays { NestedPackageRule::Store } else { NestedPackageRule::AsDeclared };
        InstallOptions { nested_rule: nested, ..InstallOptions::default() }
    }

    /// Finds the package by the path in the URL, or by `name` and `group`.
    fn find_package(&self, instance: &Instance) -> Result<StoredPackage> {
        let snapshot = instance.repository.snapshot()?.as_viewer(&self.viewer);
        let text = |name: &str| self.parameters.get(name).cloned().unwrap_or_default();
        let stored_package = match &self.path {
            Some(path) => StoredPackages::new(&snapshot).find_at(path)?,
            None => {
                let (group, name) = (text("group"), text("name"));
                let version = text("version");
                let packages = StoredPackages::new(&snapshot).list()?;
                packages.into_iter().rfind(|candidate| {
                    (candidate.id.name == name || candidate.id.file_name() == name)
                        && (group.is_empty() || candidate.id.group == group)
                        && (version.is_empty() || candidate.id.version == version)
                })
            }
        };
        stored_package.ok_or_else(|| RequestFailure::new(StatusCode::NOT_FOUND, "no package"))
    }
}

fn query_parameters(parts: &Parts) -> PackageParameters {
    Query::<PackageParameters>::try_from_uri(&parts.uri).map(|query| query.0).unwrap_or_default()
}

/// Returns the path of the package in a URL.
fn package_path_of(address: &str) -> Result<Option<NodePath>> {
    let rest = PACKAGE_PATH_PREFIXES.iter().find_map(|prefix| address.strip_prefix(prefix));
    let rest = rest.map(|rest| rest.trim_end_matches('/')).unwrap_or_default();
    if rest.is_empty() {
        return Ok(None);
    }
    let decoded = percent_encoding::percent_decode_str(rest)
        .decode_utf8()
        .map_err(|_| RequestFailure::bad_request("the path is not UTF-8"))?;
    Ok(Some(NodePath::new(&decoded)?))
}

/// `service/.json`: runs a command.
async fn serve_command(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    let is_write = request.method() == Method::POST;
    let package_request = PackageManagerRequest::read(&instance, request).await?;
    if !is_write {
        let message = "package commands must be sent with POST";
        return Err(RequestFailure::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let done =
        instance.run_work(move |instance| Ok(run_command(instance, package_request))).await?;
    match done {
        Ok(PackageCommandOutcome { message, path, details }) => {
            let mut response_body = json!({ "success": true, "msg": message });
            if let Some(response_body) = response_body.as_object_mut() {
                response_body.extend(path.map(|path| ("path".to_owned(), path.as_str().into())));
                response_body.extend(details.map(|details| ("details".to_owned(), details)));
            }
            Ok(Json(response_body).into_response())
        }
        Err(failure) if is_package_refusal(&failure) => {
            Ok(Json(json!({ "success": false, "msg": failure.message })).into_response())
        }
        Err(failure) => Err(failure),
    }
}

/// Returns true if a failure concerns the package rather than the server or the user.
fn is_package_refusal(failure: &RequestFailure) -> bool {
    matches!(
        failure.status,
        StatusCode::BAD_REQUEST
            | StatusCode::NOT_FOUND
            | StatusCode::CONFLICT
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// The result of a command.
struct PackageCommandOutcome {
    message: &'static str,
    path: Option<NodePath>,
    details: Option<Value>,
}

impl PackageCommandOutcome {
    fn without_details(message: &'static str) -> Self {
        Self { message, path: None, details: None }
    }
}

fn run_command(
    instance: &Instance,
    package_request: PackageManagerRequest,
) -> Result<PackageCommandOutcome> {
    let viewer = package_request.viewer.clone();
    match package_request.command() {
        "upload" => {
            let is_installed = is_parameter_true(&package_request.parameters, "install");
            let stored = upload_package(instance, package_request, is_installed)?;
            Ok(PackageCommandOutcome {
                path: Some(stored.path),
                ..PackageCommandOutcome::without_details("Package uploaded")
            })
        }
        "install" | "inst" => {
            let stored = package_request.find_package(instance)?;
            let report =
                install_stored_package(instance, &viewer, &stored, &package_request.options())?;
            let details = json!({ "warnings": report.warnings });
            Ok(PackageCommandOutcome {
                details: Some(details),
                ..PackageCommandOutcome::without_details("Package installed")
            })
        }
        "uninstall" | "uninst" => {
            let stored = package_request.find_package(instance)?;
            let done = uninstall_stored_package(instance, &viewer, &stored, true)?;
            let details = serde_json::to_value(done).ok();
            Ok(PackageCommandOutcome {
                details,
                ..PackageCommandOutcome::without_details("Package uninstalled")
            })
        }
        "delete" | "rm" => {
            let stored = package_request.find_package(instance)?;
            remove_stored_package(instance, &viewer, &stored)?;
            Ok(PackageCommandOutcome::without_details("Package deleted"))
        }
        "create" => create_package(instance, &package_request),
        "build" => {
            let stored = package_request.find_package(instance)?;
            rebuild_stored_package(instance, &viewer, &stored)?;
            Ok(PackageCommandOutcome::without_details("Package built"))
        }
        "preview" | "dryrun" => {
            let stored = package_request.find_package(instance)?;
            let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
            let limits = preview_limits(instance, &viewer)?;
            let mut package = StoredPackages::new(&snapshot).open(&stored, &limits)?;
            let difference =
                package_difference(instance, &viewer, &mut package, &package_request.options())?;
            let details = serde_json::to_value(difference).ok();
            Ok(PackageCommandOutcome {
                details,
                ..PackageCommandOutcome::without_details("Package preview built")
            })
        }
        command => Err(RequestFailure::bad_request(format!("Unsupported command: {command}"))),
    }
}

fn upload_package(
    instance: &Instance,
    mut package_request: PackageManagerRequest,
    is_installed: bool,
) -> Result<StoredPackage> {
    let if_exists = if package_request.is_forced() {
        IfPackageExists::Replace
    } else {
        IfPackageExists::Refuse
    };
    let options = package_request.options();
    let received = package_request.received_package.take();
    let received =
        received.ok_or_else(|| RequestFailure::bad_request("no package in the request"))?;
    let viewer = &package_request.viewer;
    let stored = match received.store(instance, viewer, if_exists) {
        Err(failure) if failure.status == StatusCode::PRECONDITION_FAILED => {
            return Err(RequestFailure { message: "Package already exists".into(), ..failure });
        }
        stored => stored?,
    };
    if is_installed {
        install_stored_package(instance, viewer, &stored, &options)?;
    }
    Ok(stored)
}

fn create_package(
    instance: &Instance,
    package_request: &PackageManagerRequest,
) -> Result<PackageCommandOutcome> {
    let text = |name: &str| package_request.parameters.get(name).cloned().unwrap_or_default();
    let id = PackageId {
        group: text("groupName"),
        name: text("packageName"),
        version: text("packageVersion"),
    };
    if id.name.is_empty() {
        return Err(RequestFailure::bad_request("the name of the package is missing"));
    }
    let stamp = audit_stamp(&package_request.viewer);
    let mut session = instance.repository.session_as(&package_request.viewer)?;
    let stored =
        PackageSession::new(&mut session).create(&id, &PackageFilter::default(), &stamp)?;
    session.commit(&format!("create package {id}"), stamp.time)?;
    increment(&instance.metrics.commits);
    Ok(PackageCommandOutcome {
        path: Some(stored.path),
        ..PackageCommandOutcome::without_details("Package created")
    })
}

fn rebuild_stored_package(
    instance: &Instance,
    viewer: &Viewer,
    stored: &StoredPackage,
) -> Result<()> {
    let stamp = audit_stamp(viewer);
    let mut session = instance.repository.session_as(viewer)?;
    let mut file = tempfile::tempfile_in(&instance.spool_folder)?;
    let limits = viewer_package_limits(instance, viewer)?;
    PackageSession::new(&mut session).build(&stored.path, &mut file, &stamp, &limits)?;
    file.seek(SeekFrom::Start(0))?;
    session.commit(&format!("build package {}", stored.id), stamp.time)?;
    increment(&instance.metrics.commits);
    Ok(())
}

/// `service.jsp`: the old XML service.
async fn serve_xml(State(instance): State<Arc<Instance>>, request: Request) -> Result<Response> {
    let is_write = request.method() == Method::POST;
    let package_request = PackageManagerRequest::read(&instance, request).await?;
    let command = package_request.command().to_owned();
    let user = package_request.viewer.name().to_owned();
    let viewer = package_request.viewer.clone();
    if command == "get" {
        return instance
            .run_work(move |instance| {
                send_package(instance, &package_request.find_package(instance)?, false)
            })
            .await;
    }
    let is_list =
        matches!(command.as_str(), "ls" | "") && package_request.received_package.is_none();
    let echoed = package_request.parameters.clone();
    let done = instance
        .run_work(move |instance| {
            if is_list {
                let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
                return Ok(Ok(packages_xml(&StoredPackages::new(&snapshot).list()?)));
            }
            if !is_write {
                let message = "package commands must be sent with POST";
                return Err(RequestFailure::new(StatusCode::METHOD_NOT_ALLOWED, message));
            }
            let package_request = if package_request.received_package.is_some() {
                into_xml_upload(package_request)
            } else {
                package_request
            };
            Ok(run_command(instance, package_request)
                .map(|done| format!("<log>{}</log>", escape_xml(done.message))))
        })
        .await?;
    let (data, code, status) = match done {
        Ok(data) => (data, 200, "ok".to_owned()),
        Err(failure) if is_package_refusal(&failure) => (String::new(), 500, failure.message),
        Err(failure) => return Err(failure),
    };
    let mut request = String::new();
    let mut names: Vec<_> = echoed.iter().filter(|(name, _)| !name.starts_with(':')).collect();
    names.sort();
    for (name, value) in names {
        // Writing to a string cannot fail.
        let _ = write!(
            request,
            "<param name=\"{}\" value=\"{}\"/>",
            escape_xml(name),
            escape_xml(value)
        );
    }
    let text = format!(
        "<crx version=\"1.4.1\" user=\"{}\" workspace=\"crx.default\"><request>{request}</request>\
         <response><data>{data}</data><status code=\"{code}\">{}</status></response></crx>\n",
        escape_xml(&user),
        escape_xml(&status)
    );
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("text/xml;charset=utf-8"));
    Ok((headers, text).into_response())
}

/// Converts an upload to the XML service: the file is stored and replaces an existing one.
fn into_xml_upload(mut package_request: PackageManagerRequest) -> PackageManagerRequest {
    package_request.parameters.insert("cmd".into(), "upload".into());
    if !package_request.parameters.contains_key("force") {
        package_request.parameters.insert("force".into(), "true".into());
    }
    package_request
}

fn packages_xml(packages: &[StoredPackage]) -> String {
    let mut out = String::from("<packages>");
    for package in packages {
        let date = |date: Option<JcrDate>| date.map(to_mail_date).unwrap_or_default();
        let user = |user: &Option<String>| user.clone().unwrap_or_default();
        let fields = [
            ("group", package.id.group.clone()),
            ("name", package.id.name.clone()),
            ("version", package.id.version.clone()),
            ("downloadName", package.id.file_name()),
            ("size", package.size.to_string()),
            ("created", date(package.created)),
            ("createdBy", user(&package.created_by)),
            ("lastModified", String::new()),
            ("lastModifiedBy", String::new()),
            ("lastUnpacked", date(package.last_unpacked)),
            ("lastUnpackedBy", user(&package.last_unpacked_by)),
        ];
        out.push_str("<package>");
        for (name, value) in fields {
            let _ = write!(out, "<{name}>{}</{name}>", escape_xml(&value));
        }
        out.push_str("</package>");
    }
    out.push_str("</packages>");
    out
}

/// Formats a date as in mail headers: `Tue, 04 Aug 2015 11:40:21 +0000`.
fn to_mail_date(date: JcrDate) -> String {
    let date = format_http_date(date.to_system_time()).unwrap_or_default();
    date.replace(" GMT", " +0000")
}

/// `list.jsp`: all packages, or the one at `path`.
async fn list_packages(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Json<Value>> {
    let package_request = PackageManagerRequest::read(&instance, request).await?;
    let path = package_request.parameters.get("path").cloned();
    let viewer = package_request.viewer.clone();
    let packages = instance
        .run_work(move |instance| {
            let snapshot = instance.repository.snapshot()?.as_viewer(&viewer);
            Ok(StoredPackages::new(&snapshot).list()?)
        })
        .await?;
    let millis = |date: Option<JcrDate>| {
        let since = date?.to_system_time().duration_since(std::time::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_millis()).ok()
    };
    let results: Vec<Value> = packages
        .iter()
        .filter(|package| path.as_deref().is_none_or(|path| path == package.path.as_str()))
        .map(|package| {
            let needs: Vec<_> = package.dependencies.iter().map(ToString::to_string).collect();
            json!({
                "pid": package.id.to_string(),
                "path": package.path.as_str(),
                "name": package.id.name,
                "downloadName": package.id.file_name(),
                "group": package.id.group,
                "groupTitle": package.id.group,
                "version": package.id.version,
                "created": millis(package.created),
                "createdBy": package.created_by,
                "lastUnpacked": millis(package.last_unpacked),
                "lastUnpackedBy": package.last_unpacked_by,
                "size": package.size,
                "resolved": true,
                "dependencies": needs,
            })
        })
        .collect();
    let total = results.len();
    Ok(Json(json!({ "results": results, "total": total })))
}

/// `installstatus.jsp`: reports no installation, because none runs in the background.
async fn serve_install_status(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Json<Value>> {
    PackageManagerRequest::read(&instance, request).await?;
    Ok(Json(json!({ "status": { "finished": true, "itemCount": 0 } })))
}

/// `download.jsp?path=…`: returns the file of a package.
async fn download_package(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    let is_head = request.method() == Method::HEAD;
    let mut package_request = PackageManagerRequest::read(&instance, request).await?;
    let path = package_request.parameters.get("path").cloned().unwrap_or_default();
    package_request.path = Some(NodePath::new(&path)?);
    instance
        .run_work(move |instance| {
            send_package(instance, &package_request.find_package(instance)?, is_head)
        })
        .await
}
