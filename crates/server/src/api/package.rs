//! API endpoints for content packages.
//!
//! All operations run with the permissions of the requesting user, as `crate::package` defines.

use serde_json::{Map, Value as Json, json};
use tympan_content_package::{
    DependencyRule, IdentifierRule, IfPackageExists, InstallOptions, PackageId, StoredPackages,
};

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, PendingApiResponse, RequestBodySpec, ResponseContent, ResponseSpec,
};
use crate::api::node_type::read_text_body;
use crate::api::schema::{
    array_schema, count_schema, object_schema, reference_schema, schemas_by_name,
    text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::package::{
    build_package_response, find_package, install_stored_package, receive_package,
    remove_stored_package, send_package, uninstall_stored_package,
};

const PACKAGE_ID_PARAMETER: EndpointParameter =
    EndpointParameter::required("id", ParameterKind::Text, "The package: `group:name:version`.");
const IDENTIFIERS_PARAMETER: EndpointParameter = EndpointParameter::new(
    "identifiers",
    ParameterKind::Keyword(&["refuse", "new", "replace"]),
    "How nodes whose identifier is already in use are handled. Default `refuse`.",
);
const DEPENDENCIES_PARAMETER: EndpointParameter = EndpointParameter::new(
    "dependencies",
    ParameterKind::Keyword(&["best_effort", "required", "strict", "ignore"]),
    "How packages that it depends on are handled. Default `required`.",
);

/// The API endpoints that this module defines.
pub(crate) const PACKAGE_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/packages",
        id: "listPackages",
        description: "Lists the stored packages that the caller may read.",
        parameters: &[],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Packages", "The packages, by group, name and version.")],
        handler: EndpointHandler::Blocking(list_packages),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/packages",
        id: "storePackage",
        description: "Stores the package in the body, or in the first file of a form; with `install` installs it in the same \
                commit.",
        parameters: &[
            EndpointParameter::new(
                "install",
                ParameterKind::Flag,
                "Whether to install it too. Default false.",
            ),
            EndpointParameter::new(
                "replace",
                ParameterKind::Flag,
                "Whether it replaces a stored package with the same id. Default false.",
            ),
            IDENTIFIERS_PARAMETER,
            DEPENDENCIES_PARAMETER,
        ],
        body: RequestBodySpec::Bytes,
        responses: &[ResponseSpec::created_json("StoredPackage", "The package was stored.")],
        handler: EndpointHandler::Async(upload_package),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/packages",
        id: "removePackage",
        description: "Removes the file of a stored package; the installed content is kept.",
        parameters: &[PACKAGE_ID_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("RemovedPackage", "The package was removed.")],
        handler: EndpointHandler::Blocking(remove_package),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/packages/zip",
        id: "readPackage",
        description: "Returns the file of a stored package.",
        parameters: &[PACKAGE_ID_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec {
            status: 200,
            description: "The file.",
            content: ResponseContent::Bytes,
        }],
        handler: EndpointHandler::Blocking(download_package),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/packages/diff",
        id: "comparePackage",
        description: "Returns what installing the package in the body would change, limited to what the \
            caller may read.",
        parameters: &[],
        body: RequestBodySpec::Bytes,
        responses: &[ResponseSpec::json("PackageReport", "The changes.")],
        handler: EndpointHandler::Async(diff_package),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/packages/install",
        id: "installPackage",
        description: "Installs a stored package in one commit, which requires every privilege that its \
            changes require.",
        parameters: &[PACKAGE_ID_PARAMETER, IDENTIFIERS_PARAMETER, DEPENDENCIES_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("PackageReport", "The executed changes.")],
        handler: EndpointHandler::Blocking(install_package),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/packages/uninstall",
        id: "uninstallPackage",
        description: "Reverts the installation of a package.",
        parameters: &[
            PACKAGE_ID_PARAMETER,
            EndpointParameter::new(
                "force",
                ParameterKind::Flag,
                "Whether to uninstall it even if other packages depend on it. Default false.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("PackageReport", "The executed changes.")],
        handler: EndpointHandler::Blocking(uninstall_package),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/packages/build",
        id: "buildPackage",
        description: "Builds and returns a package of the content that the filter in the body (a \
            `filter.xml`) selects, limited to what the caller may read.",
        parameters: &[PACKAGE_ID_PARAMETER],
        body: RequestBodySpec::Text,
        responses: &[ResponseSpec {
            status: 200,
            description: "The package.",
            content: ResponseContent::Bytes,
        }],
        handler: EndpointHandler::Async(build_package),
    },
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn package_schemas() -> Map<String, Json> {
    let any = || json!({ "type": "object" });
    let id = object_schema(&[
        ("group", text_schema()),
        ("name", text_schema()),
        ("version", text_schema()),
    ]);
    let package = object_schema(&[
        ("path", text_schema()),
        ("id", id),
        ("size", count_schema()),
        ("data", text_schema()),
        ("dependencies", array_schema(text_schema())),
        ("created", text_or_null_schema()),
        ("created_by", text_or_null_schema()),
        ("last_unpacked", text_or_null_schema()),
        ("last_unpacked_by", text_or_null_schema()),
    ]);
    schemas_by_name([
        ("Package", package),
        ("Packages", object_schema(&[("packages", array_schema(reference_schema("Package")))])),
        (
            "StoredPackage",
            object_schema(&[
                ("package", reference_schema("Package")),
                ("report", json!({ "type": ["object", "null"] })),
                ("text", text_or_null_schema()),
            ]),
        ),
        ("RemovedPackage", object_schema(&[("package", reference_schema("Package"))])),
        ("PackageReport", object_schema(&[("report", any()), ("text", text_schema())])),
    ])
}

fn package_id_of(call: &ApiRequest) -> Result<PackageId> {
    let id = PackageId::parse(call.parameter("id").unwrap_or_default());
    if id.name.is_empty() {
        let message = "specify the package with `id=group:name:version`";
        return Err(RequestFailure::new(http::StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    Ok(id)
}

fn install_options_of(call: &ApiRequest) -> InstallOptions {
    let mut options = InstallOptions::default();
    if let Some(rule) = call.parameter("identifiers").and_then(IdentifierRule::from_name) {
        options.identifier_rule = rule;
    }
    if let Some(rule) = call.parameter("dependencies").and_then(DependencyRule::from_name) {
        options.dependency_rule = rule;
    }
    options
}

fn list_packages(_: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    Ok(ApiResponse::json(json!({ "packages": StoredPackages::new(&snapshot).list()? })))
}

fn upload_package(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let received = receive_upload(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            if call.flag_parameter("install") {
                let report =
                    received.install(instance, &call.viewer, &install_options_of(&call))?;
                let stored = find_package(instance, &call.viewer, &report.package)?;
                let text = report.to_string();
                return Ok(ApiResponse::created(
                    json!({ "package": stored, "report": report, "text": text }),
                ));
            }
            let if_exists = if call.flag_parameter("replace") {
                IfPackageExists::Replace
            } else {
                IfPackageExists::Refuse
            };
            let stored = received.store(instance, &call.viewer, if_exists)?;
            Ok(ApiResponse::created(json!({ "package": stored, "report": null, "text": null })))
        };
        instance.run_work(work).await
    })
}

async fn receive_upload(call: &ApiRequest) -> Result<crate::package::ReceivedPackage> {
    let body = call.body_stream.lock().take();
    let body = body.ok_or_else(|| RequestFailure::bad_request("the body is missing"))?;
    receive_package(&call.instance, &call.headers, body).await
}

fn diff_package(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let received = receive_upload(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            let difference = received.difference(instance, &call.viewer)?;
            let text = difference.to_string();
            Ok(ApiResponse::json(json!({ "report": difference, "text": text })))
        };
        instance.run_work(work).await
    })
}

fn install_package(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let stored = find_package(instance, &call.viewer, &package_id_of(call)?)?;
    let report =
        install_stored_package(instance, &call.viewer, &stored, &install_options_of(call))?;
    let text = report.to_string();
    Ok(ApiResponse::json(json!({ "report": report, "text": text })))
}

fn uninstall_package(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let stored = find_package(instance, &call.viewer, &package_id_of(call)?)?;
    let done =
        uninstall_stored_package(instance, &call.viewer, &stored, call.flag_parameter("force"))?;
    let text = done.to_string();
    Ok(ApiResponse::json(json!({ "report": done, "text": text })))
}

fn remove_package(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let stored = find_package(instance, &call.viewer, &package_id_of(call)?)?;
    remove_stored_package(instance, &call.viewer, &stored)?;
    Ok(ApiResponse::json(json!({ "package": stored })))
}

fn download_package(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let stored = find_package(instance, &call.viewer, &package_id_of(call)?)?;
    Ok(ApiResponse::Http(send_package(instance, &stored, false)?))
}

fn build_package(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let id = package_id_of(&call)?;
        let filter = read_text_body(&call).await?;
        let instance = call.instance.clone();
        let viewer = call.viewer.clone();
        let work = move |instance: &Instance| {
            build_package_response(instance, &viewer, id, filter.as_bytes()).map(ApiResponse::Http)
        };
        instance.run_work(work).await
    })
}
