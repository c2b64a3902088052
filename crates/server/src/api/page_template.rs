//! Templates for new pages.

use serde_json::{Value, json};
use tympan_render::PageTemplate;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler, EndpointMethod,
    EndpointParameter, ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::api::node;
use crate::failure::Result;

/// The API endpoints that this module defines.
pub(crate) const PAGE_TEMPLATE_ENDPOINTS: &[Endpoint] = &[Endpoint {
    method: EndpointMethod::Get,
    path: "/api/v1/templates",
    id: "listTemplates",
    description: "Lists the templates that may be used for new pages directly below a page or folder: by \
        `cq:allowedTemplates`, `allowedPaths`, `allowedParents` and `allowedChildren`.",
    parameters: &[
        EndpointParameter::required("path", ParameterKind::Path, "The page or folder."),
        BRANCH_PARAMETER,
    ],
    body: RequestBodySpec::None,
    responses: &[ResponseSpec::json("TemplateList", "The templates, by title.")],
    handler: EndpointHandler::Blocking(list_templates),
}];

fn list_templates(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let parent = node::find_node(&snapshot, &call.path_parameter("path")?)?;
    let templates = PageTemplate::allowed_below(&parent)?;
    let templates = templates.iter().map(template_json).collect::<Vec<_>>();
    Ok(ApiResponse::json(json!({ "path": parent.path().as_str(), "templates": templates })))
}

fn template_json(template: &PageTemplate) -> Value {
    json!({
        "path": template.path,
        "title": template.title,
        "description": template.description,
        "resourceType": template.resource_type,
    })
}
