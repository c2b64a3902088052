//! Which request goes where.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Extension, Query, Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{any, get, post, put};
use axum::{Form, Json, Router, middleware};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::json;
use tympan_web::limit::limited;
use tympan_web::listen::Peer;

use crate::failure::{Failure, Result};
use crate::login::{NewSession, PasswordAttempt, set_browser_cookie, set_cookie};
use crate::metrics::count;
use crate::observe::observe;
use crate::{
    Instance, Role, api, author_headers, health, interface, manager_status, own_agent, package,
    page, post as sling_post, put as sling_put, query, receive, store, timing, visitor,
};

/// Returns the routes of an instance's main listener.
pub fn router(instance: Arc<Instance>) -> Router {
    let role_routes = match instance.role {
        Role::Author => author_routes(),
        Role::Publish => publish_routes(),
    };
    let role = instance.role;
    let router = Router::new()
        .route("/health", get(health::main_health))
        .route("/health/ready", get(health::main_ready))
        .route("/login", post(log_in))
        .route("/login/link", get(log_in_by_link))
        .route("/logout", post(log_out))
        .merge(role_routes)
        .merge(store::routes())
        .merge(query::routes())
        .merge(timing::routes())
        .fallback(any(resource));
    let router = match role {
        Role::Author => router.layer(middleware::map_response(author_headers::protect)),
        Role::Publish => router,
    };
    router
        .layer(middleware::map_request_with_state(instance.clone(), patiently))
        .layer(middleware::from_fn_with_state(instance.clone(), observe))
        .with_state(instance)
}

/// Returns the routes of the admin listener, which answers while the main one is saturated.
pub fn admin_router(instance: Arc<Instance>) -> Router {
    Router::new()
        .route("/health", get(health::health))
        .route("/health/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/manager/status", get(manager_status::status))
        .route("/login", post(log_in))
        .with_state(instance)
}

fn author_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/", get(|| async { Redirect::to("/sites.html/content") }))
        .route("/login.html", get(interface::shell))
        .route("/sites.html", get(interface::shell))
        .route("/sites.html/{*path}", get(interface::shell))
        .route("/editor.html/{*path}", get(interface::shell))
        .route("/queue.html", get(interface::shell))
        .route("/launches.html", get(interface::shell))
        .route("/launches.html/{*name}", get(interface::shell))
        .route("/packages.html", get(interface::shell))
        .route("/mounts.html", get(interface::shell))
        .route("/workflows.html", get(interface::shell))
        .route("/permissions.html/{*path}", get(interface::shell))
        .route("/search.html", get(interface::shell))
        .route("/users.html", get(interface::shell))
        .route("/users.html/{*id}", get(interface::shell))
        .route("/versions.html/{*path}", get(interface::shell))
        .route("/ui/{*file}", get(interface::file))
        .route("/metrics", get(metrics_for_watchers))
        .route("/manager/status", get(manager_status::status_for_watchers))
        .merge(package::routes())
        .merge(receive_routes())
        .merge(api::routes())
}

fn publish_routes() -> Router<Arc<Instance>> {
    Router::new()
        .merge(api::publish_routes())
        .route("/handle404", get(crate::export::handle))
        .merge(receive_routes())
}

/// Where content of other instances arrives: all of it at a publisher, and at an author what it is told to take.
fn receive_routes() -> Router<Arc<Instance>> {
    Router::new()
        .route("/bin/receive", post(receive::message))
        .route("/bin/receive/chunks", post(receive::chunks))
        .route("/bin/receive/blobs", post(receive::blobs))
        .route("/bin/receive/blob/{digest}/{length}", put(receive::blob))
}

/// Lets a body that stops arriving fail, so that no client holds a connection by sending nothing.
async fn patiently(State(instance): State<Arc<Instance>>, request: Request) -> Request {
    let patience = instance.body_timeout;
    request.map(|body| Body::new(limited(body, u64::MAX).stalling_at_most(patience)))
}

/// Answers for everything that is content.
async fn resource(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    match *request.method() {
        Method::GET | Method::HEAD => match tympan_render::ImageAddress::of(request.uri().path()) {
            Some(address) => crate::image::get(instance, request, address).await,
            None if crate::export::is_asked_for(&instance, request.uri()) => {
                crate::export::handle(State(instance), request).await.into_response()
            }
            None => page::get(State(instance), request).await,
        },
        Method::POST
            if instance.role == Role::Publish && !own_agent::is_address(request.uri().path()) =>
        {
            visitor::post(&instance, request).await
        }
        Method::POST => sling_post::post(State(instance), request).await.into_response(),
        Method::PUT => sling_put::put(State(instance), request).await,
        _ => Failure::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this server answers GET, HEAD, POST and PUT",
        )
        .into_response(),
    }
}

/// On the main listener, counters are for those who look after the instance.
async fn metrics_for_watchers(State(instance): State<Arc<Instance>>, _: api::Watcher) -> Response {
    health::metrics(State(instance)).await
}

#[derive(Deserialize)]
struct Credentials {
    user: String,
    password: String,
}

/// Where a form of a page goes on; without, programs get JSON.
#[derive(Deserialize)]
struct Onward {
    /// The path of the page after a success.
    resource: Option<String>,
    /// The path of the page after a failure.
    failed: Option<String>,
}

/// Returns a redirect to a page of this site, whatever somebody wrote into a link.
fn see(path: &str) -> Option<Response> {
    let is_own = path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(|one: char| one == '\\' || one.is_control());
    is_own.then(|| Redirect::to(path).into_response())
}

async fn log_in(
    State(instance): State<Arc<Instance>>,
    peer: Option<Extension<Peer>>,
    onward: Query<Onward>,
    headers: HeaderMap,
    form: Form<Credentials>,
) -> Result<Response> {
    // Who is logged in by another site as somebody else would send that site's owner what is typed next.
    visitor::check_site(&headers)?;
    let Credentials { user, password } = form.0;
    let peer = peer.map(|peer| peer.0);
    let attempt = PasswordAttempt { user: &user, password: &password, headers: &headers, peer };
    let begun = instance.logins.log_in(attempt, SystemTime::now()).await;
    let failed = onward.failed.as_deref().and_then(see);
    match begun {
        Ok(NewSession { token, identity, browser }) => {
            let page = onward.resource.as_deref().and_then(see);
            let mut response = page.unwrap_or_else(|| {
                Json(json!({ "user": identity.user, "csrf": identity.csrf })).into_response()
            });
            put_cookie(&mut response, Some(&token), peer);
            let is_tls = peer.is_some_and(|peer| peer.is_tls);
            if let Ok(cookie) = HeaderValue::from_str(&set_browser_cookie(&browser, is_tls)) {
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

fn put_cookie(response: &mut Response, token: Option<&str>, peer: Option<Peer>) {
    let cookie = set_cookie(token, peer.is_some_and(|peer| peer.is_tls));
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}

#[derive(Deserialize)]
struct Link {
    token: String,
}

async fn log_in_by_link(
    State(instance): State<Arc<Instance>>,
    peer: Option<Extension<Peer>>,
    link: Query<Link>,
) -> Response {
    match instance.logins.log_in_by_link(&link.token, SystemTime::now()).await {
        Ok((token, _)) => {
            let mut response = Redirect::to("/sites.html/content").into_response();
            put_cookie(&mut response, Some(&token), peer.map(|peer| peer.0));
            response
        }
        Err(_) => {
            count(&instance.metrics.failed_logins);
            Redirect::to("/login.html?reason=link").into_response()
        }
    }
}

async fn log_out(
    State(instance): State<Arc<Instance>>,
    peer: Option<Extension<Peer>>,
    onward: Query<Onward>,
    headers: HeaderMap,
) -> Result<Response> {
    visitor::check_site(&headers)?;
    instance.logins.log_out(&headers).await?;
    let page = onward.resource.as_deref().and_then(see);
    let mut response = page.unwrap_or_else(|| Json(json!({})).into_response());
    put_cookie(&mut response, None, peer.map(|peer| peer.0));
    Ok(response)
}
