//! Presence: who has a page open in an editor.
//!
//! In: a report of each open editor, repeated while it is open. Out: the other editors of the page.
//!
//! Invariant: only users who may read a page report their presence on it, or see that of others.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::{JcrDate, NodePath};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::api::node::find_node;
use crate::api::schema::{
    array_schema, object_schema, partial_object_schema, path_schema, schemas_by_name, text_schema,
};
use crate::failure::{RequestFailure, Result};

/// Maximum length of the identity that an editor gives itself.
const MAX_TAB_LENGTH: usize = 64;

/// The API endpoints that this module defines.
pub(crate) const PRESENCE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Post,
    path: "/api/v1/presence",
    id: "reportPresence",
    description: "Reports that the user has a page open in an editor, or with `leaving` no longer, and lists the \
        other editors of the page. An editor that does not report for a minute is forgotten. Presence is known \
        in one process only.",
    parameters: &[],
    body: RequestBodySpec::Json("PresenceReport"),
    responses: &[ResponseSpec::json("Presence", "The other editors, the longest open first.")],
    handler: EndpointHandler::Async(report_presence),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn presence_schemas() -> Map<String, Json> {
    let tab = json!({ "type": "string", "minLength": 1, "maxLength": MAX_TAB_LENGTH });
    let report = [("path", path_schema()), ("tab", tab), ("leaving", json!({ "type": "boolean" }))];
    let editor = [("user", text_schema()), ("since", text_schema())];
    schemas_by_name([
        ("PresenceReport", partial_object_schema(&["path", "tab"], &report)),
        ("Presence", object_schema(&[("editors", array_schema(object_schema(&editor)))])),
    ])
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PresenceReport {
    path: String,
    tab: String,
    #[serde(default)]
    leaving: bool,
}

fn report_presence(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let PresenceReport { path, tab, leaving } = call.parse_body()?;
        let path = NodePath::new(&path)?;
        if tab.is_empty() || tab.len() > MAX_TAB_LENGTH {
            let message = format!("`tab` must have 1 to {MAX_TAB_LENGTH} characters");
            return Err(RequestFailure::bad_request(message));
        }
        let instance = call.instance.clone();
        instance
            .run_work(move |instance: &Instance| respond(instance, &call, &path, (&tab, leaving)))
            .await
    })
}

fn respond(
    instance: &Instance,
    call: &ApiRequest,
    path: &NodePath,
    (tab, is_leaving): (&str, bool),
) -> Result<ApiResponse> {
    find_node(&call.pin_snapshot()?, path)?;
    let editors = if is_leaving {
        instance.presence.leave(path, call.user_name(), tab);
        Vec::new()
    } else {
        instance.presence.report(path, call.user_name(), tab, call.now)
    };
    let editors: Vec<Json> = editors
        .iter()
        .map(|editor| {
            let since = JcrDate::from_system_time(editor.since).to_string();
            json!({ "user": editor.user, "since": since })
        })
        .collect();
    Ok(ApiResponse::json(json!({ "editors": editors })))
}
