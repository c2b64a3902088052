//! The view of backups: the runs and the schedule, the pages in a backup, and restoring one of them.
//!
//! A restored page replaces the content of the present one, or is created again; pages below it stay as they are. It is
//! one commit of the administrator, which the history can undo.

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use serde_json::{Map, Value as Json, json};
use tympan_content::{
    JCR_CONTENT, JcrDate, NodePath, Property, Session, Subtree, Value as ContentValue,
};
use tympan_content_package::docview;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::iso_time::to_iso_time;
use crate::api::schema::{
    array_schema, object_schema, reference_schema, schemas_by_name, text_schema,
};
use crate::backup_log::BackupRun;
use crate::failure::{RequestFailure, Result};
use crate::saved_content::{SavedContent, SavedPage};
use crate::write::package_limits::viewer_package_limits;

/// Completes "only administrators may".
const BACKUP_ADMINISTRATION: &str = "view and restore backups";
/// Maximum number of runs in a response.
const MAX_LISTED_RUNS: usize = 50;
/// Maximum number of states in a response.
const MAX_LISTED_STATES: usize = 500;
/// The folder of the content that can be restored here.
const CONTENT_ROOT: &str = "/content";

const STATE_PARAMETER: EndpointParameter = EndpointParameter::required(
    "state",
    ParameterKind::NonEmptyText,
    "The id of a state, as `/api/v1/operations/backup/states` lists it.",
);

/// The API endpoints that this module defines.
pub(crate) const BACKUP_VIEW_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/operations/backup",
        id: "viewBackup",
        description: "Returns the latest backup runs, at most 50, and the schedule. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("BackupView", "The runs and the schedule.")],
        handler: EndpointHandler::Async(view_backup),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/operations/backup/states",
        id: "listSavedStates",
        description: "Lists the states of this instance in its vault, the newest first, at most 500. For \
            administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("SavedStates", "The states.")],
        handler: EndpointHandler::Async(list_states),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/operations/backup/pages",
        id: "listSavedPages",
        description: "Lists the names of the documents below a path in a state of the vault, at most 1,000. \
            For administrators.",
        parameters: &[
            STATE_PARAMETER,
            EndpointParameter::required(
                "path",
                ParameterKind::Path,
                "The parent, within `/content`.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("SavedPages", "The names.")],
        handler: EndpointHandler::Async(list_pages),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/operations/backup/restore",
        id: "restoreSavedPage",
        description: "Restores a page from a state of the vault: its content, or the page if it is missing; \
            pages below it are unchanged. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            STATE_PARAMETER,
            EndpointParameter::required(
                "path",
                ParameterKind::Path,
                "The page, within `/content`.",
            ),
        ]),
        responses: &[ResponseSpec::json("PageRestored", "The page was restored.")],
        handler: EndpointHandler::Async(restore_page),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn backup_view_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let state =
        object_schema(&[("id", text_schema()), ("time", text_schema()), ("isIncomplete", flag())]);
    schemas_by_name([
        (
            "BackupView",
            object_schema(&[
                ("runs", array_schema(reference_schema("BackupRun"))),
                ("schedule", json!({ "type": ["object", "null"] })),
                ("isRunning", flag()),
                ("canRestore", flag()),
            ]),
        ),
        ("SavedStates", object_schema(&[("states", array_schema(state))])),
        (
            "SavedPages",
            object_schema(&[("path", text_schema()), ("names", array_schema(text_schema()))]),
        ),
        (
            "PageRestored",
            object_schema(&[
                ("path", text_schema()),
                ("wasMissing", flag()),
                ("root", text_schema()),
            ]),
        ),
    ])
}

impl Instance {
    /// Lets administrators restore pages from backups.
    pub fn set_saved_content(&self, source: Arc<dyn SavedContent>) {
        // Set once, when the instance starts; later calls are ignored.
        self.saved_content.set(source);
    }
}

fn view_backup(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(BACKUP_ADMINISTRATION)?;
        let instance = &call.instance;
        let runs =
            instance.run_work(|instance| Ok(instance.backup_log.runs().transpose()?)).await?;
        let runs = runs.unwrap_or_default();
        let newest: Vec<Json> =
            runs.iter().rev().take(MAX_LISTED_RUNS).map(BackupRun::to_json).collect();
        let name = instance.backup_log.schedule();
        let schedules = instance.queues.schedules().list().await?;
        let schedule = schedules.iter().find(|schedule| Some(schedule.name.as_str()) == name);
        let topics = instance.queues.statistics().topic_statistics().await?;
        let jobs = schedule.and_then(|schedule| topics.get(&schedule.topic));
        let described = schedule.map(|schedule| {
            json!({
                "name": schedule.name,
                "rule": schedule.rule_text,
                "nextRun": schedule.next_run.map(to_iso_time),
            })
        });
        Ok(ApiResponse::json(json!({
            "runs": newest,
            "schedule": described,
            "isRunning": jobs.is_some_and(|jobs| jobs.active + jobs.queued > 0),
            "canRestore": instance.saved_content.get().is_some(),
        })))
    })
}

/// Reads from the backups on a thread of its own, because a vault can be far away.
async fn read_saved<T: Send + 'static>(
    call: &ApiRequest,
    read: impl FnOnce(&dyn SavedContent) -> Result<T, String> + Send + 'static,
) -> Result<T> {
    call.require_administrator(BACKUP_ADMINISTRATION)?;
    let source = call.instance.saved_content.get().ok_or_else(|| {
        let message = "this instance has no backups: set a vault in the section `[backup]` of its tympan.toml";
        RequestFailure::new(StatusCode::NOT_FOUND, message)
    })?;
    let done = tokio::task::spawn_blocking(move || read(&*source)).await;
    let done = done.map_err(|error| RequestFailure::internal(&error))?;
    done.map_err(RequestFailure::unprocessable)
}

/// Returns the path of a request, which must be within the content.
fn content_path(call: &ApiRequest) -> Result<NodePath> {
    let path = call.path_parameter("path")?;
    match path.is_within(&NodePath::new(CONTENT_ROOT)?) {
        true => Ok(path),
        false => Err(RequestFailure::not_found(path.as_str())),
    }
}

fn list_states(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let states = read_saved(&call, |saved| saved.list_states(MAX_LISTED_STATES)).await?;
        let states: Vec<Json> = states
            .iter()
            .map(|state| {
                json!({
                    "id": state.id,
                    "time": to_iso_time(state.time),
                    "isIncomplete": state.is_incomplete,
                })
            })
            .collect();
        Ok(ApiResponse::json(json!({ "states": states })))
    })
}

fn list_pages(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(BACKUP_ADMINISTRATION)?;
        let path = content_path(&call)?;
        let (state, parent) = (state_of(&call), path.clone());
        let names =
            read_saved(&call, move |saved| saved.list_names(&state, parent.as_str())).await?;
        Ok(ApiResponse::json(json!({ "path": path.as_str(), "names": names })))
    })
}

fn state_of(call: &ApiRequest) -> String {
    call.parameter("state").unwrap_or_default().to_owned()
}

fn restore_page(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(BACKUP_ADMINISTRATION)?;
        let path = content_path(&call)?;
        let (state, page_path) = (state_of(&call), path.clone());
        let page =
            read_saved(&call, move |saved| saved.read_page(&state, page_path.as_str())).await?;
        let instance = call.instance.clone();
        let done = instance.run_work(move |instance| store_page(instance, &call, &path, &page));
        done.await
    })
}

fn store_page(
    instance: &Instance,
    call: &ApiRequest,
    path: &NodePath,
    page: &SavedPage,
) -> Result<ApiResponse> {
    let tree = parse_page(instance, call, path, page)?;
    let mut session = instance.repository.session_as(&call.viewer)?;
    let was_missing = session.node(path)?.is_none();
    match was_missing {
        true => session.put_node(path, tree)?,
        false => replace_content(&mut session, path, &tree)?,
    }
    stamp_change(&mut session, path, call.user_name(), call.now)?;
    let state: String = state_of(call).chars().take(8).collect();
    let root = session.commit(&format!("restore {path} from the backup {state}"), call.now)?;
    Ok(ApiResponse::json(json!({
        "path": path.as_str(), "wasMissing": was_missing, "root": root.to_string(),
    })))
}

/// Parses a page that consists of text alone.
fn parse_page(
    instance: &Instance,
    call: &ApiRequest,
    path: &NodePath,
    page: &SavedPage,
) -> Result<Subtree> {
    let limits = viewer_package_limits(instance, &call.viewer)?;
    let tree = docview::read_docview(path.as_str(), &page.docview, &limits)?;
    let is_page = tree.primary_type() == "cq:Page" && tree.child(JCR_CONTENT).is_some();
    if is_page && !page.has_files {
        return Ok(tree);
    }
    let message = format!(
        "`{path}` is not a page whose values are all text; restore it with `tympan backup restore`"
    );
    Err(RequestFailure::unprocessable(message))
}

/// Replaces the content of a page, and nothing below the page.
fn replace_content(session: &mut Session, path: &NodePath, tree: &Subtree) -> Result<()> {
    let missing = || RequestFailure::not_found(path.as_str());
    let content = tree.child(JCR_CONTENT).cloned().ok_or_else(missing)?;
    session.put_node(&path.child(JCR_CONTENT)?, content)?;
    Ok(())
}

/// Records who changed the page when, so that it counts as modified since its activation.
fn stamp_change(session: &mut Session, path: &NodePath, user: &str, now: SystemTime) -> Result<()> {
    let content = path.child(JCR_CONTENT)?;
    let date = Property::Single(ContentValue::Date(JcrDate::from_system_time(now)));
    session.set_property(&content, "cq:lastModified", date)?;
    session.set_property(&content, "cq:lastModifiedBy", Property::text(user))?;
    Ok(())
}
