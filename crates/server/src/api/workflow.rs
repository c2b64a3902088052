//! Workflows: starting them, what is in an inbox, completing steps, history.
//!
//! Who started an instance and the administrator see it whole; who is asked to do a step sees the step. A workflow is
//! started about what the asker may read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Query, Request, State};
use axum::routing::{get, post};
use axum::{Form, Json, Router};
use http::StatusCode;
use http::request::Parts;
use serde_json::{Map, Value, json};
use tympan_content::{Date, NodePath};
use tympan_jobs::workflow::{
    Model, StartWorkflow, WorkItem, Workflow, WorkflowFilter, WorkflowState, Workflows, find_models,
};

use crate::Instance;
use crate::api::require_user;
use crate::failure::{Failure, Result};
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};

const ADMIN: &str = "admin";
/// The most instances or steps of one answer.
const MAX_LISTED: u32 = 500;

pub(crate) fn routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/api/v1/workflows", get(list).post(start))
        .route("/api/v1/workflows/models", get(models))
        .route("/api/v1/workflows/instance", get(instance_of))
        .route("/api/v1/workflows/inbox", get(inbox))
        .route("/api/v1/workflows/complete", post(complete))
        .route("/api/v1/workflows/delegate", post(delegate))
        .route("/api/v1/workflows/terminate", post(terminate))
        .route("/api/v1/workflows/suspend", post(suspend))
        .route("/api/v1/workflows/resume", post(resume))
        .route("/api/v1/workflows/purge", post(purge))
}

type Parameters = BTreeMap<String, String>;
type Pairs = Vec<(String, String)>;

async fn reader(instance: &Instance, request: Request) -> Result<Identity> {
    require_user(instance, &request.into_parts().0).await
}

async fn writer(instance: &Instance, parts: &Parts) -> Result<Identity> {
    let identity = require_user(instance, parts).await?;
    let token = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    check_csrf(&identity, token)?;
    check_origin(&identity, &parts.headers)?;
    Ok(identity)
}

fn workflows(instance: &Instance) -> Workflows {
    Workflows::new(instance.queues.clone())
}

fn iso(time: SystemTime) -> String {
    Date::from_system_time(time).to_string()
}

fn one<'a>(pairs: &'a Pairs, name: &str) -> Option<&'a str> {
    let found = pairs.iter().find(|(known, value)| known == name && !value.is_empty());
    found.map(|(_, value)| value.as_str())
}

fn required<'a>(pairs: &'a Pairs, name: &str) -> Result<&'a str> {
    one(pairs, name).ok_or_else(|| Failure::bad_request(format!("say `{name}`")))
}

fn number(pairs: &Pairs, name: &str) -> Result<i64> {
    let parsed = required(pairs, name)?.parse();
    parsed.map_err(|_| Failure::bad_request(format!("`{name}` is a number")))
}

/// Returns what is to be added to the data of an instance: fields `data` as `name=value`.
fn data_of(pairs: &Pairs) -> Map<String, Value> {
    let data = pairs.iter().filter(|(name, _)| name == "data");
    let data = data.filter_map(|(_, text)| text.split_once('='));
    data.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
}

/// Returns the names under which somebody is asked to do a step; none for the administrator, who may do all.
fn names_of(instance: &Instance, identity: &Identity) -> Result<Vec<String>> {
    if identity.user == ADMIN {
        return Ok(Vec::new());
    }
    let viewer = instance.viewer_of(Some(identity))?;
    let mut names = instance.repository.groups_of(&viewer)?;
    names.push(identity.user.clone());
    Ok(names)
}

fn workflow_json(workflow: &Workflow) -> Value {
    json!({
        "id": workflow.id,
        "model": workflow.model,
        "title": workflow.title,
        "payload": workflow.payload,
        "state": workflow.state.name(),
        "data": workflow.data,
        "initiator": workflow.initiator,
        "started": iso(workflow.started),
        "ended": workflow.ended.map(iso),
    })
}

fn item_json(item: &WorkItem) -> Value {
    json!({
        "id": item.id,
        "workflow": item.workflow,
        "step": item.step,
        "title": item.title,
        "type": item.kind,
        "assignee": item.assignee,
        "started": iso(item.started),
        "payload": item.payload,
        "routes": item.routes,
    })
}

fn listed(limit: Option<&String>) -> u32 {
    limit.and_then(|limit| limit.parse().ok()).unwrap_or(100).clamp(1, MAX_LISTED)
}

/// Lists instances, newest first; of others only for the administrator.
async fn list(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Json<Value>> {
    let identity = reader(&instance, request).await?;
    let mut filter = WorkflowFilter {
        model: parameters.get("model").cloned(),
        payload: parameters.get("payload").cloned(),
        before: parameters.get("before").and_then(|id| id.parse().ok()),
        initiator: (identity.user != ADMIN).then(|| identity.user.clone()),
        state: None,
    };
    if let Some(state) = parameters.get("state") {
        let names = WorkflowState::ALL.map(WorkflowState::name).join(", ");
        let unknown = || Failure::bad_request(format!("`state` is one of {names}"));
        filter.state = Some(WorkflowState::find(state).ok_or_else(unknown)?);
    }
    let found = workflows(&instance).list(&filter, listed(parameters.get("limit"))).await?;
    Ok(Json(json!({ "workflows": found.iter().map(workflow_json).collect::<Vec<_>>() })))
}

/// Lists the models that the asker may read, with what is wrong with those that cannot be used.
async fn models(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    let identity = reader(&instance, request).await?;
    instance
        .work(move |instance| {
            let viewer = instance.viewer_of(Some(&identity))?;
            let found = find_models(&instance.repository.snapshot()?.seen_by(&viewer))?;
            let listed = found.iter().map(|(path, model)| match model {
                Ok(model) => json!({
                    "path": model.path, "title": model.title, "transient": model.is_transient,
                    "topic": format!("{}/{}", tympan_jobs::WORKFLOW_TOPIC, model.suffix),
                }),
                Err(error) => json!({ "path": path, "fault": error.to_string() }),
            });
            Ok(Json(json!({ "models": listed.collect::<Vec<_>>() })))
        })
        .await
}

/// Starts an instance about a node.
async fn start(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<(StatusCode, Json<Value>)> {
    let identity = writer(&instance, &parts).await?;
    let (model, payload) =
        (required(&form, "model")?.to_owned(), required(&form, "payload")?.to_owned());
    let data = data_of(&form);
    let start = instance
        .work(move |instance| {
            let viewer = instance.viewer_of(Some(&identity))?;
            let seen = instance.repository.snapshot()?.seen_by(&viewer);
            if seen.node(&NodePath::new(&payload)?)?.is_none() {
                return Err(Failure::not_found(&payload));
            }
            let model = Model::read(&seen, &model)?;
            Ok(StartWorkflow { model, payload, initiator: identity.user, data })
        })
        .await?;
    let id = workflows(&instance).start(&start, SystemTime::now()).await?;
    Ok((StatusCode::CREATED, Json(json!({ "id": id }))))
}

/// Refuses to speak of an instance to whoever neither started it nor is the administrator.
async fn seen(instance: &Instance, identity: &Identity, id: i64) -> Result<Workflow> {
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("there is no instance {id}"));
    let found = workflows(instance).find(id).await?.ok_or_else(missing)?;
    if identity.user == ADMIN || identity.user == found.initiator {
        Ok(found)
    } else {
        Err(missing())
    }
}

/// Shows an instance with its open steps and its history.
async fn instance_of(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<Parameters>,
    request: Request,
) -> Result<Json<Value>> {
    let identity = reader(&instance, request).await?;
    let id = parameters.get("id").and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| Failure::bad_request("say which instance: `id`"))?;
    let mut shown = workflow_json(&seen(&instance, &identity, id).await?);
    let workflows = workflows(&instance);
    let steps = workflows.open_steps(id).await?;
    let history = workflows.history(id).await?;
    let history = history.iter().map(|entry| {
        json!({
            "step": entry.step, "title": entry.title, "action": entry.action, "user": entry.user,
            "at": iso(entry.at), "comment": entry.comment,
        })
    });
    if let Some(members) = shown.as_object_mut() {
        members.insert("steps".to_owned(), steps.iter().map(item_json).collect());
        members.insert("history".to_owned(), history.collect());
    }
    Ok(Json(shown))
}

/// Lists the steps that the asker, or a group of theirs, is to do.
async fn inbox(State(instance): State<Arc<Instance>>, request: Request) -> Result<Json<Value>> {
    let identity = reader(&instance, request).await?;
    let names = names_of(&instance, &identity)?;
    let items = workflows(&instance).inbox(&names, MAX_LISTED).await?;
    Ok(Json(json!({ "items": items.iter().map(item_json).collect::<Vec<_>>() })))
}

async fn complete(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<Json<Value>> {
    let identity = writer(&instance, &parts).await?;
    let names = names_of(&instance, &identity)?;
    let item = number(&form, "item")?;
    let who = (identity.user.as_str(), one(&form, "comment"));
    let what = (one(&form, "route"), data_of(&form));
    workflows(&instance).complete(item, &names, who, what, SystemTime::now()).await?;
    Ok(Json(json!({ "completed": item })))
}

/// Gives a step to somebody else, who must be known.
async fn delegate(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<Json<Value>> {
    let identity = writer(&instance, &parts).await?;
    let (item, to) = (number(&form, "item")?, required(&form, "to")?);
    let names = names_of(&instance, &identity)?;
    let workflows = workflows(&instance);
    let is_theirs = workflows.inbox(&names, u32::MAX).await?.iter().any(|open| open.id == item);
    let is_known = instance.repository.account_path(to)?.is_some();
    if !is_known {
        return Err(Failure::bad_request(format!("there is no user or group `{to}`")));
    }
    if !is_theirs || !workflows.delegate(item, to).await? {
        return Err(Failure::new(StatusCode::NOT_FOUND, format!("the step {item} is not open")));
    }
    Ok(Json(json!({ "delegated": item, "to": to })))
}

async fn terminate(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<Json<Value>> {
    let identity = writer(&instance, &parts).await?;
    let id = number(&form, "id")?;
    seen(&instance, &identity, id).await?;
    let comment = one(&form, "comment");
    workflows(&instance).terminate(id, &identity.user, comment, SystemTime::now()).await?;
    Ok(Json(json!({ "terminated": id })))
}

async fn suspend(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<Json<Value>> {
    switch(&instance, &parts, &form, WorkflowState::Suspended).await
}

async fn resume(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<Json<Value>> {
    switch(&instance, &parts, &form, WorkflowState::Running).await
}

async fn switch(
    instance: &Arc<Instance>,
    parts: &Parts,
    form: &Pairs,
    to: WorkflowState,
) -> Result<Json<Value>> {
    let identity = writer(instance, parts).await?;
    let id = number(form, "id")?;
    seen(instance, &identity, id).await?;
    let is_changed = workflows(instance).suspend(id, to, &identity.user, SystemTime::now()).await?;
    Ok(Json(json!({ "changed": is_changed })))
}

/// Removes instances that ended long ago.
async fn purge(
    State(instance): State<Arc<Instance>>,
    parts: Parts,
    Form(form): Form<Pairs>,
) -> Result<Json<Value>> {
    let identity = writer(&instance, &parts).await?;
    if identity.user != ADMIN {
        let message = "only the administrator may purge workflows";
        return Err(Failure::new(StatusCode::FORBIDDEN, message));
    }
    let days = u64::try_from(number(&form, "days")?);
    let days = days.map_err(|_| Failure::bad_request("`days` is a number of days"))?;
    let age = Duration::from_secs(days.saturating_mul(24 * 3600));
    let before = SystemTime::now().checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
    let removed = workflows(&instance).purge(before, one(&form, "model")).await?;
    Ok(Json(json!({ "removed": removed })))
}
