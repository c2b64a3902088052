//! The view of replication agents: their settings, the state of their queues, and the change of settings.
//!
//! An author stores the agents of both roles. It knows the queues of its own; those of a publisher's agents are at the
//! publisher.

use serde_json::{Map, Value as Json, json};
use tympan_content::{NodePath, Property, Session, Value, ValueType};
use tympan_replicate::{ReplicationAgent, ReplicationAgentKind, agent_topic, read_agents};

use crate::Instance;
use crate::api::agent_queue::queued_job_json;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseSpec,
};
use crate::api::schema::{
    array_schema, count_schema, object_schema, schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// Completes "only administrators may".
const AGENT_ADMINISTRATION: &str = "manage agents";
/// The roles that have agents, as in the names of their folders.
const AGENT_ROLES: &[&str] = &["author", "publish"];
/// Maximum number of agents of a role in a response.
const MAX_LISTED_AGENTS: usize = 200;
/// Maximum number of jobs listed for an agent.
const MAX_LISTED_JOBS: u32 = 50;
/// Maximum number of paths of an agent.
const MAX_AGENT_PATHS: usize = 100;
/// Parts of the names of headers whose values may be secrets.
const SECRET_HEADER_PARTS: &[&str] = &["auth", "cookie", "key", "pass", "secret", "token"];

/// The API endpoints that this module defines.
pub(crate) const REPLICATION_VIEW_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/operations/replication",
        id: "viewReplication",
        description: "Lists the replication agents of authors and publishers with their settings; those of \
            this instance with the state of their queues and at most 50 jobs each. For administrators.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("ReplicationView", "The agents.")],
        handler: EndpointHandler::Async(view_replication),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/operations/replication",
        id: "changeAgent",
        description: "Changes the settings of an agent; omitted ones are unchanged, and empty paths and an \
            empty user remove these settings. For administrators.",
        parameters: &[],
        body: RequestBodySpec::Form(&[
            EndpointParameter::required(
                "role",
                ParameterKind::Keyword(AGENT_ROLES),
                "The role whose agent it is.",
            ),
            EndpointParameter::required("name", ParameterKind::Name, "The agent's name."),
            EndpointParameter::new("title", ParameterKind::NonEmptyText, "The display name."),
            EndpointParameter::new(
                "target",
                ParameterKind::NonEmptyText,
                "The URI of the target: `http://` or `https://`.",
            ),
            EndpointParameter::new("enabled", ParameterKind::Flag, "Whether the agent works."),
            EndpointParameter::new(
                "type",
                ParameterKind::NonEmptyText,
                "The kind of the target, as in `serializationType`.",
            ),
            EndpointParameter::new(
                "paths",
                ParameterKind::Texts,
                "A path at and below which changes go this way. May be repeated.",
            ),
            EndpointParameter::new(
                "user",
                ParameterKind::Text,
                "The user whose rights limit what goes this way.",
            ),
        ]),
        responses: &[ResponseSpec::json("AgentChanged", "The agent was changed.")],
        handler: EndpointHandler::Async(change_agent),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn replication_view_schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let agent = object_schema(&[
        ("role", text_schema()),
        ("name", text_schema()),
        ("path", text_schema()),
        ("title", text_schema()),
        ("type", text_schema()),
        ("target", text_schema()),
        ("enabled", flag()),
        ("paths", array_schema(text_schema())),
        ("user", text_or_null_schema()),
        ("headers", array_schema(text_schema())),
        ("fault", text_or_null_schema()),
        ("isHere", flag()),
        ("paused", flag()),
        ("blocked", text_or_null_schema()),
        ("queued", count_schema()),
        ("items", array_schema(json!({ "type": "object" }))),
    ]);
    schemas_by_name([
        ("ReplicationView", object_schema(&[("agents", array_schema(agent))])),
        ("AgentChanged", object_schema(&[("path", text_schema())])),
    ])
}

fn view_replication(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(AGENT_ADMINISTRATION)?;
        let instance = &call.instance;
        let paused = instance.queues.paused_queues().await?;
        let mut agents = Vec::new();
        for role in AGENT_ROLES {
            let listed = instance
                .run_work(move |instance| {
                    let snapshot = instance.repository.snapshot()?;
                    let agents = read_agents(&snapshot, role)?.into_iter().take(MAX_LISTED_AGENTS);
                    let with_type = agents.map(|agent| {
                        let node = snapshot.node(&agent_content_path(role, &agent.name)?)?;
                        let kind = node.and_then(|node| node.text("serializationType"));
                        Ok((agent, kind.unwrap_or_default()))
                    });
                    with_type.collect::<Result<Vec<_>>>()
                })
                .await?;
            for (agent, kind) in listed {
                let mut described = settings_json(role, &agent, &kind)?;
                described.extend(match *role == instance.role.name() {
                    true => queue_json(instance, &agent, &paused).await?,
                    false => absent_queue_json(),
                });
                agents.push(Json::Object(described));
            }
        }
        Ok(ApiResponse::json(json!({ "agents": agents })))
    })
}

/// Returns the path of the node with an agent's settings.
fn agent_content_path(role: &str, name: &str) -> Result<NodePath> {
    Ok(NodePath::new(&format!("/etc/replication/agents.{role}/{name}/jcr:content"))?)
}

fn settings_json(role: &str, agent: &ReplicationAgent, kind: &str) -> Result<Map<String, Json>> {
    let path = agent_content_path(role, &agent.name)?;
    let headers: Vec<String> = agent
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", shown_header_value(name, value)))
        .collect();
    Ok(members_of(json!({
        "role": role,
        "name": agent.name,
        "path": path.parent().as_ref().map(NodePath::as_str),
        "title": agent.title,
        "type": kind,
        "target": shown_target(&agent.target),
        "enabled": agent.is_enabled,
        "paths": agent.paths.iter().map(NodePath::as_str).collect::<Vec<_>>(),
        "user": agent.user,
        "headers": headers,
        "fault": agent.config_error,
    })))
}

/// Returns the value of a header, or `***` if it may be a secret.
fn shown_header_value<'a>(name: &str, value: &'a str) -> &'a str {
    let name = name.to_ascii_lowercase();
    if SECRET_HEADER_PARTS.iter().any(|part| name.contains(part)) { "***" } else { value }
}

/// Replaces the password in a URI.
fn shown_target(uri: &str) -> String {
    let hidden = || {
        let (scheme, rest) = uri.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (user, host) = authority.rsplit_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}:***@{host}{path}"))
    };
    hidden().unwrap_or_else(|| uri.to_owned())
}

async fn queue_json(
    instance: &Instance,
    agent: &ReplicationAgent,
    paused: &[String],
) -> Result<Map<String, Json>> {
    let topic = agent_topic(instance.role.name(), &agent.name);
    let jobs = instance.queues.list_topic(&topic, MAX_LISTED_JOBS).await?;
    let items: Vec<Json> = jobs.iter().map(|job| queued_job_json(job, true)).collect();
    Ok(members_of(json!({
        "isHere": true,
        "paused": paused.contains(&instance.replicator.queue_name_of(&agent.name)),
        "blocked": instance.replicator.blocked_reason(&agent.name),
        "queued": instance.queues.statistics().count_jobs(&topic).await?,
        "items": items,
    })))
}

fn absent_queue_json() -> Map<String, Json> {
    members_of(
        json!({ "isHere": false, "paused": false, "blocked": null, "queued": 0, "items": [] }),
    )
}

fn members_of(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(members) => members,
        _ => Map::new(),
    }
}

fn change_agent(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        call.require_administrator(AGENT_ADMINISTRATION)?;
        let instance = call.instance.clone();
        let path = instance.run_work(move |instance| store_agent(instance, &call)).await;
        instance.replicator.wake_agent_workers();
        Ok(ApiResponse::json(json!({ "path": path?.as_str() })))
    })
}

fn store_agent(instance: &Instance, call: &ApiRequest) -> Result<NodePath> {
    let role = call.parameter("role").unwrap_or_default();
    let name = call.parameter("name").unwrap_or_default();
    let path = agent_content_path(role, name)?;
    let mut session = instance.repository.session_as(&call.viewer)?;
    if session.node(&path)?.is_none() {
        return Err(RequestFailure::not_found(path.as_str()));
    }
    if let Some(target) = call.parameter("target") {
        // A form that was filled with what the view shows must not replace the password by asterisks.
        if !target.contains(":***@") {
            require_http_uri(target)?;
            session.set_property(&path, "transportUri", Property::text(target))?;
        }
    }
    if let Some(kind) = call.parameter("type") {
        if ReplicationAgentKind::from_serialization_type(kind).is_none() {
            let message = format!("`{kind}` is not the type of an agent; see `serializationType`");
            return Err(RequestFailure::unprocessable(message));
        }
        session.set_property(&path, "serializationType", Property::text(kind))?;
    }
    if let Some(title) = call.parameter("title") {
        session.set_property(&path, "jcr:title", Property::text(title))?;
    }
    if let Some(enabled) = call.parameter("enabled") {
        let enabled = Property::Single(Value::Boolean(enabled == "true"));
        session.set_property(&path, "enabled", enabled)?;
    }
    if let Some(user) = call.parameter("user") {
        match user.trim() {
            "" => drop(session.remove_property(&path, "userId")?),
            user => session.set_property(&path, "userId", Property::text(user))?,
        }
    }
    store_paths(&mut session, &path, call)?;
    session.commit("change a replication agent", call.now)?;
    Ok(path)
}

fn require_http_uri(target: &str) -> Result<()> {
    let uri: Option<http::Uri> = target.parse().ok();
    let is_http = uri.is_some_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https"))
            && uri.host().is_some_and(|host| !host.is_empty())
    });
    if is_http {
        return Ok(());
    }
    let message = format!("`{target}` is not the address of an agent: write `http://HOST:PORT/…`");
    Err(RequestFailure::unprocessable(message))
}

fn store_paths(session: &mut Session, agent: &NodePath, call: &ApiRequest) -> Result<()> {
    let given: Vec<&str> = call.parameter_values("paths").map(str::trim).collect();
    if given.is_empty() {
        return Ok(());
    }
    let mut paths = Vec::new();
    for path in given.into_iter().filter(|path| !path.is_empty()) {
        paths.push(Value::String(NodePath::new(path)?.as_str().to_owned()));
    }
    if paths.len() > MAX_AGENT_PATHS {
        let message = format!("an agent may have at most {MAX_AGENT_PATHS} paths");
        return Err(RequestFailure::unprocessable(message));
    }
    match paths.is_empty() {
        true => drop(session.remove_property(agent, "paths")?),
        false => session.set_property(agent, "paths", Property::List(ValueType::String, paths))?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_agents_are_hidden() {
        for (name, value, shown) in [
            ("Authorization", "Basic eA==", "***"),
            ("X-Api-Key", "k", "***"),
            ("CQ-Action", "{action}", "{action}"),
        ] {
            assert_eq!(shown_header_value(name, value), shown);
        }
        assert_eq!(shown_target("http://a:b@h:1/x?y"), "http://a:***@h:1/x?y");
        assert_eq!(shown_target("http://h:1/x@y:z"), "http://h:1/x@y:z");
    }
}
