//! PUT: a file as it is, such as `curl -T` sends it.
//!
//! Below a folder the body becomes a file; where a file or resource is, its bytes are replaced. One request is one
//! commit.

use std::io::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use http_body_util::BodyExt;
use tempfile::NamedTempFile;
use tympan_content::{Date, JCR_CONTENT, Node, NodePath, Property, Session, Subtree, Value};
use tympan_web::limit::{BodyLimit, limited};

use crate::api::{Condition, broken, require_user};
use crate::arrived::{header_digest, media_type, require_write, store_file};
use crate::failure::{Failure, Result};
use crate::login::{CSRF_HEADER, Identity, check_csrf, check_origin};
use crate::metrics::count;
use crate::post::refuse_service_address;
use crate::touch::touch_pages;
use crate::{Instance, Role};

/// The longest body where the listener sets no limit.
const MAX_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Answers a PUT to a resource.
pub(crate) async fn put(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    match handle(&instance, request).await {
        Ok((status, path, identity)) => {
            let place = [(header::LOCATION, path)];
            let mut response = match status {
                StatusCode::CREATED => (status, place).into_response(),
                status => status.into_response(),
            };
            response.extensions_mut().insert(identity);
            response
        }
        Err(failure) => failure.into_response(),
    }
}

async fn handle(
    instance: &Arc<Instance>,
    request: Request,
) -> Result<(StatusCode, String, Identity)> {
    if instance.role == Role::Publish {
        let message = "publish instances take content from replication only";
        return Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    let (parts, body) = request.into_parts();
    let identity = require_user(instance, &parts).await?;
    check_origin(&identity, &parts.headers)?;
    let token = parts.headers.get(CSRF_HEADER).and_then(|value| value.to_str().ok());
    check_csrf(&identity, token)?;
    if parts.headers.contains_key(header::CONTENT_RANGE) {
        return Err(Failure::bad_request("a part of a file cannot be put; post it in chunks"));
    }
    let path = percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8();
    let path = path.map_err(|_| Failure::bad_request("the path is not UTF-8"))?;
    let path = NodePath::new(&path)?;
    let limit = parts.extensions.get::<BodyLimit>().map_or(MAX_BYTES, |limit| limit.0);
    let mut body = Body::new(limited(body, limit));
    let mut file = NamedTempFile::new_in(&instance.spool)?;
    while let Some(frame) = body.frame().await {
        if let Ok(piece) = frame.map_err(|error| broken(&error))?.into_data() {
            let written = move || file.write_all(&piece).map(|()| file);
            file = tokio::task::spawn_blocking(written).await??;
        }
    }
    let (headers, user, at) = (parts.headers, identity.clone(), path.clone());
    let status =
        instance.work(move |instance| store(instance, &at, &headers, (&user, &file))).await?;
    count(&instance.metrics.commits);
    Ok((status, path.to_string(), identity))
}

fn store(
    instance: &Instance,
    path: &NodePath,
    headers: &HeaderMap,
    (identity, file): (&Identity, &NamedTempFile),
) -> Result<StatusCode> {
    let now = SystemTime::now();
    let viewer = instance.viewer_of(Some(identity))?;
    let mut session = instance.repository.session_of(&viewer)?;
    let node = session.node(path)?;
    let condition = Condition::of(headers);
    condition.check(instance, node.as_ref())?;
    if condition != Condition::None {
        session.expect_unchanged(path)?;
    }
    require_write(&session.snapshot()?, path)?;
    let blob = store_file(&mut session, file.reopen()?, header_digest(headers)?)?;
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type(sent, path.name(), file.as_file())?;
    let described = [
        ("jcr:data", Property::Single(Value::Binary(blob))),
        ("jcr:mimeType", Property::text(media_type)),
        ("jcr:lastModified", Property::Single(Value::Date(Date::from_system_time(now)))),
        ("jcr:lastModifiedBy", Property::text(&*identity.user)),
    ];
    let status = match node.as_ref().map(resource_of).transpose()? {
        Some(Some(resource)) => {
            for (name, property) in described {
                session.set_property(&resource, name, property)?;
            }
            StatusCode::NO_CONTENT
        }
        Some(None) => {
            let message = format!("`{path}` is no file, whose bytes could be replaced");
            return Err(Failure::new(StatusCode::CONFLICT, message));
        }
        None => {
            let resource = Subtree::new(JCR_CONTENT, "nt:resource");
            let resource =
                described.into_iter().fold(resource, |node, (name, value)| node.with(name, value));
            create(&mut session, path, resource)?;
            StatusCode::CREATED
        }
    };
    drop(node);
    touch_pages(&mut session, [path.to_string()], &identity.user, now)?;
    session.commit(&format!("put {path}"), now)?;
    Ok(status)
}

/// Returns the node that holds the bytes of a file or resource.
fn resource_of(node: &Node) -> Result<Option<NodePath>> {
    let has_bytes = |node: &Node| node.property("jcr:data").is_some();
    if has_bytes(node) {
        return Ok(Some(node.path().clone()));
    }
    let content = node.child(JCR_CONTENT)?;
    Ok(content
        .filter(|content| node.primary_type() == "nt:file" || has_bytes(content))
        .map(|node| node.path().clone()))
}

/// Puts a new file into a folder, which must be there.
fn create(session: &mut Session, path: &NodePath, resource: Subtree) -> Result<()> {
    refuse_service_address(path)?;
    let parent = path.parent().unwrap_or_else(NodePath::root);
    if session.node(&parent)?.is_none() {
        let message = format!("there is no folder at `{parent}`");
        return Err(Failure::new(StatusCode::CONFLICT, message));
    }
    Ok(session.put(path, Subtree::new(path.name(), "nt:file").with_child(resource))?)
}
