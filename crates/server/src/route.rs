//! Routing of requests.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Extension, Query, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get, post, put};
use axum::{Form, Json, Router, middleware};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use tympan_web::body_limit::{BodyLimit, limit_body};
use tympan_web::listen::ConnectionPeer;
use tympan_web::request_head::{self, is_addressed_by_ip};

use crate::failure::{RequestFailure, Result};
use crate::login::{
    NewSession, PasswordAttempt, browser_set_cookie, replace_browser_challenge, session_set_cookie,
};
use crate::observe::metrics::increment;
use crate::observe::request_recorder::record_requests;
use crate::resource_request::serve_resource;
use crate::{
    Instance, InstanceRole, aem, api, observe::health, observe::manager_status, observe::timing,
    package, page::author_headers, page::author_interface, page::visitor_form, query,
    replication::replication_receiver, replication::store_endpoint,
};

/// Returns the routes of an instance's main listener.
pub fn main_router(instance: Arc<Instance>) -> Router {
    let role_routes = match instance.role {
        InstanceRole::Author => author_router(),
        InstanceRole::Publish => publish_router(),
    };
    let role = instance.role;
    let router = Router::new()
        .route("/health", get(health::serve_main_health))
        .route("/health/ready", get(health::serve_main_readiness))
        .route("/login", post(handle_log_in))
        .route("/login/link", get(handle_log_in_by_link))
        .route("/logout", post(handle_log_out))
        .merge(role_routes)
        .merge(store_endpoint::store_routes())
        .merge(query::query_routes())
        .merge(timing::timing_routes())
        .fallback(any(serve_resource));
    let router = match role {
        InstanceRole::Author => {
            router.layer(middleware::map_response(author_headers::add_author_headers))
        }
        InstanceRole::Publish => router,
    };
    // The last layer runs first: a refused head is recorded too, and a body is read only within the timeout.
    router
        .layer(middleware::map_request_with_state(instance.clone(), limit_request_body))
        .layer(middleware::from_fn(replace_browser_challenge))
        .layer(middleware::from_fn(refuse_ambiguous_head))
        .layer(middleware::from_fn_with_state(instance.clone(), record_requests))
        .with_state(instance)
}

/// Returns the routes of the admin listener, which responds even if the main one is saturated.
pub fn admin_router(instance: Arc<Instance>) -> Router {
    Router::new()
        .route("/health", get(health::serve_health))
        .route("/health/ready", get(health::serve_readiness))
        .route("/metrics", get(health::serve_metrics))
        .route("/manager/status", get(manager_status::serve_status))
        .route("/login", post(handle_log_in))
        .layer(middleware::from_fn(refuse_redirected_browser))
        .layer(middleware::from_fn(refuse_ambiguous_head))
        .with_state(instance)
}

/// Refuses a browser on this machine that another site directed to the admin listener by a name of its own. The listener
/// requires no login, and the browser would let that site read the response.
async fn refuse_redirected_browser(request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<ConnectionPeer>();
    if peer.is_some_and(|peer| peer.is_loopback) && !is_addressed_by_ip(request.headers()) {
        let message = "from this machine, use `localhost` or an IP address in the URL";
        return RequestFailure::new(StatusCode::FORBIDDEN, message).into_response();
    }
    next.run(request).await
}

fn author_router() -> Router<Arc<Instance>> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/sites.html/content") }))
        .route("/login.html", get(author_interface::serve_shell))
        .route("/sites.html", get(author_interface::serve_shell))
        .route("/sites.html/{*path}", get(author_interface::serve_shell))
        .route("/editor.html/{*path}", get(author_interface::serve_shell))
        .route("/queue.html", get(author_interface::serve_shell))
        .route("/launches.html", get(author_interface::serve_shell))
        .route("/launches.html/{*name}", get(author_interface::serve_shell))
        .route("/packages.html", get(author_interface::serve_shell))
        .route("/assets.html", get(author_interface::serve_shell))
        .route("/assets.html/{*path}", get(author_interface::serve_shell))
        .route("/mounts.html", get(author_interface::serve_shell))
        .route("/workflows.html", get(author_interface::serve_shell))
        .route("/operations.html", get(author_interface::serve_shell))
        .route("/operations.html/{*page}", get(author_interface::serve_shell))
        .route("/permissions.html/{*path}", get(author_interface::serve_shell))
        .route("/search.html", get(author_interface::serve_shell))
        .route("/users.html", get(author_interface::serve_shell))
        .route("/users.html/{*id}", get(author_interface::serve_shell))
        .route("/versions.html/{*path}", get(author_interface::serve_shell))
        .route("/ui/{*file}", get(author_interface::serve_interface_file))
        .route("/metrics", get(serve_metrics_for_monitoring))
        .route("/manager/status", get(manager_status::serve_status_for_monitoring))
        .merge(package::package_routes())
        .merge(receive_routes())
        .merge(aem::author_routes())
        .merge(api::author_routes())
}

fn publish_router() -> Router<Arc<Instance>> {
    Router::new()
        .merge(api::publish_routes())
        .merge(aem::user_routes())
        .route("/handle404", get(crate::export::handle_missing_file))
        .merge(receive_routes())
}

/// Returns the routes that receive content from other instances: all content at a publisher, the configured paths at an
/// author.
fn receive_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/bin/receive", post(replication_receiver::receive_message))
        .route("/bin/receive/chunks", post(replication_receiver::receive_chunks))
        .route("/bin/receive/blobs", post(replication_receiver::receive_blobs))
        .route("/bin/receive/blob/{digest}/{length}", put(replication_receiver::receive_blob))
}

/// Refuses a request whose host or body length an intermediary may have read differently. The connection is closed, as
/// the sender may have meant more than one request.
async fn refuse_ambiguous_head(request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    let refusal = if !request_head::has_supported_transfer_coding(&head.headers) {
        RequestFailure::new(
            StatusCode::NOT_IMPLEMENTED,
            "the only supported transfer coding is `chunked`",
        )
    } else if let Err(error) = request_head::normalize_authority(&mut head) {
        RequestFailure::new(StatusCode::BAD_REQUEST, error.to_string())
    } else {
        return next.run(Request::from_parts(head, body)).await;
    };
    let mut response = refusal.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Limits the size of a body, and applies a timeout to one that stops arriving, so that no client holds a connection by
/// sending nothing.
async fn limit_request_body(State(instance): State<Arc<Instance>>, request: Request) -> Request {
    let timeout = instance.body_timeout;
    let BodyLimit(max) = BodyLimit::of_request(request.extensions());
    request.map(|body| Body::new(limit_body(body, max).with_idle_timeout(timeout)))
}

/// Serves metrics on the main listener to users with monitoring permission.
async fn serve_metrics_for_monitoring(
    State(instance): State<Arc<Instance>>,
    _: api::MonitoringIdentity,
) -> Response {
    health::serve_metrics(State(instance)).await
}

#[derive(Deserialize)]
struct LoginForm {
    user: String,
    password: String,
}

/// Redirect targets of a login form; without them the response is JSON.
#[derive(Deserialize)]
struct LoginRedirects {
    /// Path of the page after a successful login.
    resource: Option<String>,
    /// Path of the page after a failed login.
    failed: Option<String>,
}

/// Returns a redirect to a page of this site; `None` for any other target.
fn local_redirect(path: &str) -> Option<Response> {
    let is_own = path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(|letter: char| letter == '\\' || letter.is_control());
    is_own.then(|| Redirect::to(path).into_response())
}

async fn handle_log_in(
    State(instance): State<Arc<Instance>>,
    peer: Option<Extension<ConnectionPeer>>,
    onward: Query<LoginRedirects>,
    headers: HeaderMap,
    form: Form<LoginForm>,
) -> Result<Response> {
    // Prevents login CSRF: another site could log the user in to its own account and read what is typed there.
    visitor_form::check_same_site(&headers)?;
    let LoginForm { user, password } = form.0;
    let peer = peer.map(|peer| peer.0);
    let attempt = PasswordAttempt { user: &user, password: &password, headers: &headers, peer };
    let login = instance.logins.log_in(attempt, SystemTime::now()).await;
    let failed = onward.failed.as_deref().and_then(local_redirect);
    match login {
        Ok(NewSession { token, identity, browser_proof }) => {
            let page = onward.resource.as_deref().and_then(local_redirect);
            let mut response = page.unwrap_or_else(|| {
                Json(json!({ "user": identity.user, "csrf": identity.csrf_token })).into_response()
            });
            set_session_cookie(&mut response, Some(&token), peer);
            let is_tls = peer.is_some_and(|peer| peer.is_tls);
            if let Ok(cookie) = HeaderValue::from_str(&browser_set_cookie(&browser_proof, is_tls)) {
                response.headers_mut().append(header::SET_COOKIE, cookie);
            }
            Ok(response)
        }
        Err(failure) => {
            instance.metrics.count_failed_login(&failure);
            failed.ok_or(failure)
        }
    }
}

fn set_session_cookie(response: &mut Response, token: Option<&str>, peer: Option<ConnectionPeer>) {
    let cookie = session_set_cookie(token, peer.is_some_and(|peer| peer.is_tls));
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

#[derive(Deserialize)]
struct LoginLinkQuery {
    token: String,
}

async fn handle_log_in_by_link(
    State(instance): State<Arc<Instance>>,
    peer: Option<Extension<ConnectionPeer>>,
    link: Query<LoginLinkQuery>,
) -> Response {
    match instance.logins.log_in_by_link(&link.token, SystemTime::now()).await {
        Ok((token, _)) => {
            let mut response = Redirect::to("/sites.html/content").into_response();
            set_session_cookie(&mut response, Some(&token), peer.map(|peer| peer.0));
            response
        }
        Err(_) => {
            increment(&instance.metrics.failed_logins);
            Redirect::to("/login.html?reason=link").into_response()
        }
    }
}

async fn handle_log_out(
    State(instance): State<Arc<Instance>>,
    peer: Option<Extension<ConnectionPeer>>,
    onward: Query<LoginRedirects>,
    headers: HeaderMap,
) -> Result<Response> {
    visitor_form::check_same_site(&headers)?;
    instance.logins.log_out(&headers).await?;
    let page = onward.resource.as_deref().and_then(local_redirect);
    let mut response = page.unwrap_or_else(|| Json(json!({})).into_response());
    set_session_cookie(&mut response, None, peer.map(|peer| peer.0));
    Ok(response)
}
