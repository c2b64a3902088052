//! Content packages over HTTP: shared code of the JSON API (`api::package`) and the URLs of AEM's package manager
//! (`crx`).
//!
//! In: package files, streamed to the spool folder, and ids of stored packages. Out: reports.
//!
//! Invariants
//! * Everything runs with the permissions of the requesting user: packages that the user may not read are reported as
//!   missing, a built package contains what the user may read, and an installation needs every privilege that its
//!   changes need.

mod crx;

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use tempfile::NamedTempFile;
use tympan_content::{BlobContent, Error as ContentError, NodePath, Privileges, Snapshot, Viewer};
use tympan_content_package::build::{PackageManifest, write_package};
use tympan_content_package::{
    AuditStamp, ChangedNode, ContentDifference, ContentPackage, DependencyRule,
    Error as PackageError, IfPackageExists, InstallOptions, InstallReport, PackageFilter,
    PackageId, PackageInstallation, PackageLimits, PackageSession, StoredPackage, StoredPackages,
    UninstallReport,
};
use tympan_web::reader_body::body_from_reader;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_request_origin};
use crate::observe::metrics::increment;
use crate::write::form::{self, FormFieldValue};
use crate::write::package_limits::viewer_package_limits;

/// Maximum number of installation attempts under concurrent commits.
const MAX_INSTALL_ATTEMPTS: usize = 3;

type PackageParameters = HashMap<String, String>;

/// Returns the routes of AEM's package manager.
pub(crate) fn package_routes() -> Router<Arc<Instance>> {
    crx::crx_routes()
}

/// Returns the authenticated user, and refuses a write that another site made a browser send.
async fn require_user(instance: &Instance, parts: &Parts) -> Result<RequestIdentity> {
    let identity = instance.require_user(parts).await?;
    if !matches!(parts.method, Method::GET | Method::HEAD) {
        check_request_origin(&identity, &parts.headers)?;
    }
    Ok(identity)
}

fn audit_stamp(viewer: &Viewer) -> AuditStamp {
    AuditStamp { user: viewer.name().to_owned(), time: SystemTime::now() }
}

fn is_parameter_true(parameters: &PackageParameters, name: &str) -> bool {
    parameters.get(name).is_some_and(|value| value == "true" || value == "1" || value == "on")
}

/// Finds a stored package that a viewer may read.
pub(crate) fn find_package(
    instance: &Instance,
    viewer: &Viewer,
    id: &PackageId,
) -> Result<StoredPackage> {
    let missing =
        || RequestFailure::new(StatusCode::NOT_FOUND, format!("there is no package `{id}`"));
    let snapshot = instance.repository.snapshot()?.as_viewer(viewer);
    StoredPackages::new(&snapshot).find(id)?.ok_or_else(missing)
}

/// Builds a package of the content that a filter selects and the viewer may read, and returns it as the response. It is
/// not stored.
pub(crate) fn build_package_response(
    instance: &Instance,
    viewer: &Viewer,
    id: PackageId,
    filter: &[u8],
) -> Result<Response> {
    let filter = PackageFilter::parse("filter.xml", filter)?;
    let mut file = tempfile::tempfile_in(&instance.spool_folder)?;
    let name = id.file_name();
    let snapshot = instance.repository.snapshot()?.as_viewer(viewer);
    let limits = viewer_package_limits(instance, viewer)?;
    let manifest = PackageManifest::from_snapshot(&snapshot, id, filter)?;
    write_package(&mut file, &manifest, &snapshot, &limits)?;
    crate::page::check_snapshot_failure(&snapshot)?;
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(0))?;
    Ok(zip_response(Body::new(body_from_reader(file, length)), length, &name))
}

/// Maximum number of nodes of each state that a preview compares for users who are not administrators.
const MAX_USER_PREVIEW_NODES: usize = 10_000;

/// Returns the maximum number of nodes of each state that a preview compares: as many as a query of the viewer may hold in
/// memory, and fewer for users. A preview needs no right to write, and a filter of one line can name a whole site.
fn max_preview_nodes(instance: &Instance, viewer: &Viewer) -> Result<usize> {
    let max_nodes = instance.query_engine_for(viewer)?.limits().max_rows_in_memory;
    let is_administrator = instance.is_administrator(viewer)?;
    Ok(if is_administrator { max_nodes } else { max_nodes.min(MAX_USER_PREVIEW_NODES) })
}

/// Returns the limits of a package whose changes a viewer previews.
fn preview_limits(instance: &Instance, viewer: &Viewer) -> Result<PackageLimits> {
    let mut limits = PackageLimits::default();
    if !instance.is_administrator(viewer)? {
        let max_nodes = max_preview_nodes(instance, viewer)?;
        limits.max_entries = limits.max_entries.min(max_nodes);
        limits.max_nodes = limits.max_nodes.min(max_nodes);
    }
    Ok(limits)
}

/// Returns the changes that installing a package would make, as far as the viewer may read them.
fn package_difference<R: std::io::Read + Seek>(
    instance: &Instance,
    viewer: &Viewer,
    package: &mut ContentPackage<R>,
    options: &InstallOptions,
) -> Result<ContentDifference> {
    let mut session = instance.repository.session_as(viewer)?;
    let before = session.snapshot()?;
    let max_nodes = max_preview_nodes(instance, viewer)?;
    let (mut difference, _) =
        PackageSession::new(&mut session).preview(package, options, max_nodes)?;
    if !instance.is_administrator(viewer)? {
        let after = session.snapshot()?;
        let mut visible_changes = Vec::new();
        for node in difference.nodes {
            visible_changes.extend(visible_change(&before, &after, node)?);
        }
        difference = ContentDifference { nodes: visible_changes };
    }
    Ok(difference)
}

/// Restricts a change to the parts that are visible before or after it.
fn visible_change(
    before: &Snapshot,
    after: &Snapshot,
    mut change: ChangedNode,
) -> Result<Option<ChangedNode>> {
    let (old, new) = (before.node(&change.path)?, after.node(&change.path)?);
    if old.is_none() && new.is_none() {
        return Ok(None);
    }
    let has = |node: &Option<tympan_content::Node>, name: &str| {
        node.as_ref().is_some_and(|node| node.property(name).is_some())
    };
    change.properties.retain(|property| {
        (property.before.is_none() || has(&old, &property.name))
            && (property.after.is_none() || has(&new, &property.name))
    });
    Ok(Some(change))
}

/// Returns the file of a stored package.
pub(crate) fn send_package(
    instance: &Instance,
    stored: &StoredPackage,
    is_head: bool,
) -> Result<Response> {
    let name = stored.id.file_name();
    if is_head {
        return Ok(zip_response(Body::empty(), stored.size, &name));
    }
    let content = instance.repository.blobs().open(&stored.data).map_err(ContentError::from)?;
    let content = content.ok_or(ContentError::BlobMissing(stored.data))?;
    let body = match content {
        BlobContent::Bytes(bytes) => Body::from(bytes),
        BlobContent::File { file, length } => Body::new(body_from_reader(file, length)),
    };
    Ok(zip_response(body, stored.size, &name))
}

fn zip_response(body: Body, length: u64, name: &str) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zip"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let plain: String =
        name.chars().filter(|letter| letter.is_ascii_graphic() && *letter != '"').collect();
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{plain}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    response
}

/// Runs an operation in a session of its own, and retries it on conflicts with concurrent commits.
fn retry_commit<T>(
    instance: &Instance,
    viewer: &Viewer,
    mut work: impl FnMut(&mut PackageSession<'_>) -> tympan_content_package::Result<T>,
) -> Result<T> {
    for _ in 1..MAX_INSTALL_ATTEMPTS {
        let mut session = instance.repository.session_as(viewer)?;
        match work(&mut PackageSession::new(&mut session)) {
            Err(PackageError::Content(ContentError::Conflicts(_))) => {}
            Err(error) => return Err(error.into()),
            Ok(done) => return Ok(done),
        }
    }
    let mut session = instance.repository.session_as(viewer)?;
    Ok(work(&mut PackageSession::new(&mut session))?)
}

pub(crate) fn install_stored_package(
    instance: &Instance,
    viewer: &Viewer,
    stored: &StoredPackage,
    options: &InstallOptions,
) -> Result<InstallReport> {
    let stamp = audit_stamp(viewer);
    let report = retry_commit(instance, viewer, |packages| {
        let how = PackageInstallation { options, stamp: &stamp, on_progress: &mut |_| {} };
        packages.install(&stored.path, how)
    })?;
    increment(&instance.metrics.commits);
    Ok(report)
}

pub(crate) fn uninstall_stored_package(
    instance: &Instance,
    viewer: &Viewer,
    stored: &StoredPackage,
    is_forced: bool,
) -> Result<UninstallReport> {
    let rule = if is_forced { DependencyRule::Ignore } else { DependencyRule::Required };
    let stamp = audit_stamp(viewer);
    let done =
        retry_commit(instance, viewer, |packages| packages.uninstall(&stored.path, rule, &stamp))?;
    increment(&instance.metrics.commits);
    Ok(done)
}

/// Removes the file of a stored package; its installed content stays.
pub(crate) fn remove_stored_package(
    instance: &Instance,
    viewer: &Viewer,
    stored: &StoredPackage,
) -> Result<()> {
    let mut session = instance.repository.session_as(viewer)?;
    PackageSession::new(&mut session).remove(&stored.path, &audit_stamp(viewer))?;
    increment(&instance.metrics.commits);
    Ok(())
}

/// An uploaded package file in the spool folder.
pub(crate) struct ReceivedPackage {
    file: NamedTempFile,
    /// The name used in messages.
    name: String,
}

impl ReceivedPackage {
    fn open(&mut self) -> Result<ContentPackage<BufReader<File>>> {
        self.open_within(&PackageLimits::default())
    }

    fn open_within(&mut self, limits: &PackageLimits) -> Result<ContentPackage<BufReader<File>>> {
        let file = BufReader::new(self.file.reopen()?);
        Ok(ContentPackage::read(file, &self.name, limits)?)
    }

    /// Refuses users who may not store packages at the target path, before its content is read.
    fn require_storable(&self, instance: &Instance, viewer: &Viewer) -> Result<()> {
        let file = BufReader::new(self.file.reopen()?);
        let path = PackageId::read(file, &self.name, &PackageLimits::default())?.path()?;
        let snapshot = instance.repository.snapshot()?.as_viewer(viewer);
        let folder = path.parent().unwrap_or_else(NodePath::root);
        for (path, privileges, privilege) in [
            (folder, Privileges::ADD_CHILD_NODES, "jcr:addChildNodes"),
            (path, Privileges::READ, "jcr:read"),
        ] {
            if !snapshot.has_privileges(&path, privileges)? {
                return Err(ContentError::AccessDenied { path, privilege }.into());
            }
        }
        Ok(())
    }

    /// Returns the changes that installing it would make.
    pub(crate) fn difference(
        mut self,
        instance: &Instance,
        viewer: &Viewer,
    ) -> Result<ContentDifference> {
        let mut package = self.open_within(&preview_limits(instance, viewer)?)?;
        package_difference(instance, viewer, &mut package, &InstallOptions::default())
    }

    /// Stores the package.
    pub(crate) fn store(
        mut self,
        instance: &Instance,
        viewer: &Viewer,
        if_exists: IfPackageExists,
    ) -> Result<StoredPackage> {
        self.require_storable(instance, viewer)?;
        let stamp = audit_stamp(viewer);
        let mut session = instance.repository.session_as(viewer)?;
        let file = self.file.as_file_mut();
        file.seek(SeekFrom::Start(0))?;
        let stored =
            PackageSession::new(&mut session).store(file, &self.name, if_exists, &stamp)?;
        session.commit(&format!("store package {}", stored.id), stamp.time)?;
        increment(&instance.metrics.commits);
        Ok(stored)
    }

    /// Stores and installs the package in one commit.
    pub(crate) fn install(
        mut self,
        instance: &Instance,
        viewer: &Viewer,
        options: &InstallOptions,
    ) -> Result<InstallReport> {
        let stamp = audit_stamp(viewer);
        self.require_storable(instance, viewer)?;
        let mut package = self.open()?;
        let mut bytes = self.file.reopen()?;
        let report = retry_commit(instance, viewer, |packages| {
            let rewound = bytes.seek(SeekFrom::Start(0));
            rewound.map_err(|source| PackageError::Read {
                input_name: "the package".into(),
                source,
            })?;
            let how = PackageInstallation { options, stamp: &stamp, on_progress: &mut |_| {} };
            packages.install_file(&mut package, &mut bytes, how)
        })?;
        increment(&instance.metrics.commits);
        Ok(report)
    }
}

/// Receives a package file from a request: the body itself, or a file in a form.
pub(crate) async fn receive_package(
    instance: &Instance,
    headers: &HeaderMap,
    body: Body,
) -> Result<ReceivedPackage> {
    let media_type = headers.get(header::CONTENT_TYPE);
    let media_type = media_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !media_type.starts_with("multipart/") {
        let file = spool_body(instance, body).await?;
        return Ok(ReceivedPackage { file, name: "the package".into() });
    }
    package_from_form(form::read_form(headers, body, &instance.spool_folder).await?)
        .ok_or_else(|| RequestFailure::bad_request("the form contains no package file"))
}

/// Returns the package in a form: its first file.
fn package_from_form(form: Vec<form::FormField>) -> Option<ReceivedPackage> {
    form.into_iter().find_map(|field| match field.value {
        FormFieldValue::File(upload) => {
            Some(ReceivedPackage { file: upload.file, name: upload.name })
        }
        FormFieldValue::Text(_) => None,
    })
}

/// Writes a body to a file as it arrives.
async fn spool_body(instance: &Instance, mut body: Body) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new_in(&instance.spool_folder)?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| RequestFailure::unreadable_body(&error))?;
        if let Ok(data) = frame.into_data() {
            file =
                tokio::task::spawn_blocking(move || file.write_all(&data).map(|()| file)).await??;
        }
    }
    Ok(file)
}
