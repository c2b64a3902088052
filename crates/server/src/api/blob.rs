//! The bytes of a binary property: read as a stream with ranges, written as a stream in one commit.

use http::{StatusCode, header};
use tempfile::NamedTempFile;
use tympan_content::{JcrDate, NodePath, Property, Value};
use tympan_render::{BlobBody, FileDelivery};

use crate::Instance;
use crate::api::endpoint::{
    AT_PARAMETER, ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler,
    EndpointMethod, EndpointParameter, ParameterKind, PendingApiResponse, RequestBodySpec,
    ResponseContent, ResponseSpec,
};
use crate::api::entity_tag::{self, WriteCondition};
use crate::api::node::find_node;
use crate::api::node_write::written_node_response;
use crate::failure::{RequestFailure, Result};
use crate::page::{add_delivery_headers, send_blob};
use crate::write::incoming_blob::{require_write_access, spool_body};
use crate::write::page_modification::record_page_modification;
use crate::write::property_protection::RequestedProperties;

const PATH_PARAMETER: EndpointParameter =
    EndpointParameter::required("path", ParameterKind::Path, "The node.");
const PROPERTY_PARAMETER: EndpointParameter =
    EndpointParameter::new("property", ParameterKind::Name, "The property. Default `jcr:data`.");

/// The API endpoints that this module defines.
pub(crate) const BLOB_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/blob",
        id: "readBlob",
        description: "Returns the bytes of a property, or a range of them.",
        parameters: &[
            PATH_PARAMETER,
            PROPERTY_PARAMETER,
            EndpointParameter::new(
                "index",
                ParameterKind::Integer(0, 1_000_000),
                "Which value of a list. Default 0.",
            ),
            BRANCH_PARAMETER,
            AT_PARAMETER,
            EndpointParameter::new(
                "Range",
                ParameterKind::Header,
                "The requested byte range, such as `bytes=0-99`.",
            ),
        ],
        body: RequestBodySpec::None,
        responses: &[
            ResponseSpec {
                status: 200,
                description: "The bytes.",
                content: ResponseContent::Bytes,
            },
            ResponseSpec {
                status: 206,
                description: "The requested bytes.",
                content: ResponseContent::Bytes,
            },
            ResponseSpec::empty(416, "The requested range is not satisfiable."),
        ],
        handler: EndpointHandler::Blocking(read_blob),
    },
    Endpoint {
        method: EndpointMethod::Put,
        path: "/api/v1/blob",
        id: "writeBlob",
        description: "Stores the body as the bytes of a property; for `jcr:data`, also its media type and \
            modification time.",
        parameters: &[
            PATH_PARAMETER,
            PROPERTY_PARAMETER,
            EndpointParameter::new(
                "If-Match",
                ParameterKind::Header,
                "The `ETag` of the document as it was read.",
            ),
        ],
        body: RequestBodySpec::Bytes,
        responses: &[ResponseSpec::json("Written", "The bytes were stored.")],
        handler: EndpointHandler::Async(write_blob),
    },
];

/// Returns the bytes of a property.
fn read_blob(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let node = find_node(&call.pin_snapshot()?, &call.path_parameter("path")?)?;
    let name = call.parameter("property").unwrap_or("jcr:data");
    let absent = || RequestFailure::not_found(&format!("{}/{name}", node.path()));
    let property = node.property(name).ok_or_else(absent)?;
    let Some(Value::Binary(id)) = property.values().get(call.number_parameter("index", 0)) else {
        return Err(absent());
    };
    let modified = match node.property("jcr:lastModified").as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(date.to_system_time()),
        _ => None,
    };
    let etag = format!("\"{}\"", hex::encode(id.digest()));
    let blob = BlobBody { id: *id, etag, last_modified: modified };
    let mut response = send_blob(&instance.repository, &blob, &call.headers, false)?;
    let headers = response.headers_mut();
    let declared = node.text("jcr:mimeType").unwrap_or_default();
    let delivery = FileDelivery::new(&declared, "");
    add_delivery_headers(headers, &delivery);
    // The content must never run as part of this site, whatever it is.
    let sandbox = http::HeaderValue::from_static("sandbox");
    headers.insert(header::CONTENT_SECURITY_POLICY, sandbox);
    Ok(ApiResponse::Http(response))
}

/// Stores the request body in a property.
fn write_blob(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let body = call.body_stream.lock().take();
        let body = body.ok_or_else(|| RequestFailure::bad_request("the body is missing"))?;
        let file = spool_body(&call.instance.spool_folder, body).await?;
        let instance = call.instance.clone();
        instance.run_work(move |instance| store_blob(instance, &call, &file)).await
    })
}

fn store_blob(instance: &Instance, call: &ApiRequest, file: &NamedTempFile) -> Result<ApiResponse> {
    let (path, name) =
        (call.path_parameter("path")?, call.parameter("property").unwrap_or("jcr:data"));
    let mut session = instance.repository.session_as(&call.viewer)?;
    let base = session.snapshot()?;
    let node = session.node(&path)?.ok_or_else(|| RequestFailure::not_found(path.as_str()))?;
    let condition = WriteCondition::of_headers(&call.headers);
    condition.check_document(instance, Some(&node))?;
    drop(node);
    if condition != WriteCondition::None {
        session.expect_unchanged(&path)?;
    }
    require_write_access(&base, &path)?;
    let blob = session.put_blob(&mut std::io::BufReader::new(file.reopen()?))?;
    let bytes = Property::Single(Value::Binary(blob));
    session.set_property(&path, name, bytes.clone())?;
    if name == "jcr:data" {
        let date = Property::Single(Value::Date(JcrDate::from_system_time(call.now)));
        session.set_property(&path, "jcr:lastModified", date)?;
        if let Some(media_type) = call.header(&header::CONTENT_TYPE) {
            session.set_property(&path, "jcr:mimeType", Property::text(media_type))?;
        }
    }
    let mut set = RequestedProperties::default();
    set.add(&path, name, Some(bytes), 0);
    set.check_all(&base, &mut session)?;
    record_page_modification(&mut session, [path.to_string()], call.user_name(), call.now)?;
    let root = session.commit(&format!("write bytes of {path}"), call.now)?;
    let tag = document_tag_at_root(instance, root, call, &path)?;
    Ok(written_node_response(&path, tag, StatusCode::OK))
}

fn document_tag_at_root(
    instance: &Instance,
    root: tympan_content::ChunkId,
    call: &ApiRequest,
    path: &NodePath,
) -> Result<Option<String>> {
    let snapshot = instance.repository.snapshot_at(root)?.as_viewer(&call.viewer);
    Ok(snapshot.node(path)?.as_ref().and_then(|node| entity_tag::document_tag(instance, node)))
}
