//! Granite's addresses about the user of a request: the CSRF token, and the account.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde_json::json;

use super::aem_request::complete_response;
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;
use crate::{Instance, InstanceRole};

/// `/libs/granite/csrf/token.json`: the token that a write with a session cookie must repeat; an empty object for all
/// other credentials, which need none, and for visitors.
pub(crate) async fn serve_csrf_token(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    match instance.identify_reader(&parts).await {
        Ok(identity) => {
            let token = identity.as_ref().and_then(|identity| identity.csrf_token.as_deref());
            let body = token.map_or_else(|| json!({}), |token| json!({ "token": token }));
            user_response(Ok(Json(body).into_response()), identity)
        }
        Err(failure) => failure.into_response(),
    }
}

/// `/libs/granite/security/currentuser.json`: the account of the user; `anonymous` for a visitor of a publisher.
pub(crate) async fn serve_current_user(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Response {
    let (parts, _) = request.into_parts();
    match instance.identify_reader(&parts).await {
        Ok(None) if instance.role == InstanceRole::Author => {
            RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first").into_response()
        }
        Ok(identity) => user_response(describe_user(&instance, identity.as_ref()), identity),
        Err(failure) => failure.into_response(),
    }
}

/// Completes a response that no cache may keep.
fn user_response(result: Result<Response>, identity: Option<RequestIdentity>) -> Response {
    let mut response = match identity {
        Some(identity) => complete_response(result, identity),
        None => result.unwrap_or_else(IntoResponse::into_response),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("private, no-store"));
    headers.insert("dispatcher", HeaderValue::from_static("no-cache"));
    response
}

fn describe_user(instance: &Instance, identity: Option<&RequestIdentity>) -> Result<Response> {
    let name = identity.map_or("anonymous", |identity| identity.user.as_str());
    let home = instance.repository.account_path(name)?;
    let home = home.map(|path| path.to_string());
    Ok(Json(json!({
        "authorizableId": name,
        "authorizableId_xss": name,
        "name": name,
        "name_xss": name,
        "type": "user",
        "home": home,
        "path": home,
    }))
    .into_response())
}
