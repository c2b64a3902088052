//! PUT: stores a file as sent, for example by `curl -T`.
//!
//! Below a folder the body becomes a file; if the path is a file or resource, its bytes are replaced. One request is
//! one commit.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use tempfile::NamedTempFile;
use tympan_content::{JCR_CONTENT, JcrDate, Node, NodePath, Property, Session, Subtree, Value};

use crate::api::WriteCondition;
use crate::failure::{RequestFailure, Result};
use crate::login::{RequestIdentity, check_csrf_token, check_request_origin, sent_csrf_token};
use crate::observe::metrics::increment;
use crate::write::incoming_blob::{
    detect_media_type, parse_digest_header, require_write_access, spool_body, store_file,
};
use crate::write::page_modification::record_page_modification;
use crate::write::sling_post::refuse_service_address;
use crate::{Instance, InstanceRole};

/// Handles a PUT to a resource.
pub(crate) async fn serve_put(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    match handle_put(&instance, request).await {
        Ok((status, path, identity)) => {
            let location_header = [(header::LOCATION, path)];
            let mut response = match status {
                StatusCode::CREATED => (status, location_header).into_response(),
                status => status.into_response(),
            };
            response.extensions_mut().insert(identity);
            response
        }
        Err(failure) => failure.into_response(),
    }
}

async fn handle_put(
    instance: &Arc<Instance>,
    request: Request,
) -> Result<(StatusCode, String, RequestIdentity)> {
    if instance.role == InstanceRole::Publish {
        let message = "publish instances accept content from replication only";
        return Err(RequestFailure::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let (parts, body) = request.into_parts();
    let identity = instance.require_user(&parts).await?;
    check_request_origin(&identity, &parts.headers)?;
    check_csrf_token(&identity, sent_csrf_token(&parts.headers))?;
    if parts.headers.contains_key(header::CONTENT_RANGE) {
        return Err(RequestFailure::bad_request(
            "partial PUT is not supported; upload the file in chunks with POST",
        ));
    }
    let path = percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8();
    let path = path.map_err(|_| RequestFailure::bad_request("the path is not UTF-8"))?;
    let path = NodePath::new(&path)?;
    let file = spool_body(&instance.spool_folder, body).await?;
    let (headers, user, at) = (parts.headers, identity.clone(), path.clone());
    let status = instance
        .run_work(move |instance| store_put_file(instance, &at, &headers, (&user, &file)))
        .await?;
    increment(&instance.metrics.commits);
    Ok((status, path.to_string(), identity))
}

/// Stores a spooled body as the bytes of the file or resource at a path; creates a file in an existing folder. Returns
/// whether it was created, as a status.
pub(crate) fn store_put_file(
    instance: &Instance,
    path: &NodePath,
    headers: &HeaderMap,
    (identity, file): (&RequestIdentity, &NamedTempFile),
) -> Result<StatusCode> {
    let now = SystemTime::now();
    let viewer = identity.viewer();
    let mut session = instance.repository.session_as(&viewer)?;
    let node = session.node(path)?;
    let condition = WriteCondition::of_headers(headers);
    condition.check_document(instance, node.as_ref())?;
    if condition != WriteCondition::None {
        session.expect_unchanged(path)?;
    }
    require_write_access(&session.snapshot()?, path)?;
    let blob = store_file(&mut session, file.reopen()?, parse_digest_header(headers)?)?;
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = detect_media_type(sent, path.name(), file.as_file())?;
    let described = [
        ("jcr:data", Property::Single(Value::Binary(blob))),
        ("jcr:mimeType", Property::text(media_type)),
        ("jcr:lastModified", Property::Single(Value::Date(JcrDate::from_system_time(now)))),
        ("jcr:lastModifiedBy", Property::text(&*identity.user)),
    ];
    let status = match node.as_ref().map(find_resource_node).transpose()? {
        Some(Some(resource)) => {
            for (name, property) in described {
                session.set_property(&resource, name, property)?;
            }
            StatusCode::NO_CONTENT
        }
        Some(None) => {
            let message = format!("`{path}` is not a file, so its content cannot be replaced");
            return Err(RequestFailure::new(StatusCode::CONFLICT, message));
        }
        None => {
            let resource = Subtree::new(JCR_CONTENT, "nt:resource");
            let resource = described
                .into_iter()
                .fold(resource, |node, (name, value)| node.with_property(name, value));
            create_file(&mut session, path, resource)?;
            StatusCode::CREATED
        }
    };
    drop(node);
    record_page_modification(&mut session, [path.to_string()], &identity.user, now)?;
    session.commit(&format!("put {path}"), now)?;
    Ok(status)
}

/// Returns the node that contains the bytes of a file or resource.
fn find_resource_node(node: &Node) -> Result<Option<NodePath>> {
    let has_bytes = |node: &Node| node.property("jcr:data").is_some();
    if has_bytes(node) {
        return Ok(Some(node.path().clone()));
    }
    let content = node.child(JCR_CONTENT)?;
    Ok(content
        .filter(|content| node.primary_type() == "nt:file" || has_bytes(content))
        .map(|node| node.path().clone()))
}

/// Creates a file in an existing folder.
fn create_file(session: &mut Session, path: &NodePath, resource: Subtree) -> Result<()> {
    refuse_service_address(path)?;
    let parent = path.parent().unwrap_or_else(NodePath::root);
    if session.node(&parent)?.is_none() {
        let message = format!("there is no folder at `{parent}`");
        return Err(RequestFailure::new(StatusCode::CONFLICT, message));
    }
    Ok(session.put_node(path, Subtree::new(path.name(), "nt:file").with_child(resource))?)
}
