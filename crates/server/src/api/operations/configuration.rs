//! The view of the configuration in force: the settings that the process started with, and the configurations in
//! content.
//!
//! Not here: where settings come from. The program that runs the instance supplies them, without secrets.

use serde_json::{Map, Value as Json, json};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, RequestBodySpec,
    ResponseSpec,
};
use crate::api::job::queue::describe_configurations;
use crate::api::schema::{
    array_schema, object_schema, reference_schema, schemas_by_name, text_or_null_schema,
    text_schema,
};
use crate::effective_settings::EffectiveSetting;
use crate::failure::Result;

impl Instance {
    /// Lets administrators see the settings that the process uses.
    pub fn set_effective_settings(&self, settings: Vec<EffectiveSetting>) {
        // Set once, when the instance starts; later calls are ignored.
        self.effective_settings.set(settings);
    }
}

/// The API endpoints that this module defines.
pub(crate) const CONFIGURATION_VIEW_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/operations/configuration",
    id: "viewConfiguration",
    description: "Lists the settings that this process uses, each with its source and without secrets, and \
        the configurations in content with the faults in them. For administrators.",
    parameters: &[],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("ConfigurationView", "The configuration.")],
    handler: EndpointHandler::Blocking(view_configuration),
}];

/// Returns the JSON schemas that this module defines.
pub(crate) fn configuration_view_schemas() -> Map<String, Json> {
    let setting = object_schema(&[
        ("key", text_schema()),
        ("value", text_schema()),
        ("source", text_or_null_schema()),
        ("summary", text_schema()),
    ]);
    schemas_by_name([(
        "ConfigurationView",
        object_schema(&[
            ("settings", array_schema(setting)),
            ("content", reference_schema("Configurations")),
        ]),
    )])
}

fn view_configuration(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    call.require_administrator("view the configuration")?;
    let settings: Vec<Json> = instance
        .effective_settings
        .all()
        .iter()
        .map(|setting| {
            json!({
                "key": setting.key, "value": setting.value, "source": setting.source, "summary": setting.summary,
            })
        })
        .collect();
    Ok(ApiResponse::json(json!({
        "settings": settings, "content": describe_configurations(instance),
    })))
}
