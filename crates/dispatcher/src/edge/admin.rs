//! The admin listener: metrics, health, the status page, and the settings that can be changed at run time.
//!
//! | | |
//! |---|---|
//! | `GET /` | the status page |
//! | `GET /status.json` | the same facts |
//! | `GET /metrics` | Prometheus' text |
//! | `GET /health` | 200, or 503 when a farm has no render that answers |
//! | `GET /explain?url=URL` | the explanation of a request, as JSON |
//! | `POST /flush` | flushes paths: `{"paths": ["/content/site/en"], "refetch": ["/content/site/en.html"], "tree": false}` |
//! | `PUT /shares/FARM` | the share of a farm with `/x-share`: the body is a number from 0 to 100 |
//!
//! Invariants
//! * Reading requires a connection from this machine, or the token. Changes always require the token, because a page in
//!   a browser on this machine can send requests too.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use subtle::ConstantTimeEq;
use tympan_notation::error_chain_text;
use tympan_web::flush_message::{FlushAction, FlushMessage, FlushScope};
use tympan_web::listen::ConnectionPeer;
use tympan_web::request_head::is_addressed_by_ip;

use crate::config::explanation::{ExplainedRequest, explain_with_settings};
use crate::dispatcher::Dispatcher;
use crate::edge::response_body::{ResponseBody, full_body};
use crate::observe::status_page;

/// The maximum size of the body in bytes; a longer body is not a number.
const MAX_SHARE_BODY_BYTES: usize = 64;
/// The maximum size of the body of a flush in bytes.
const MAX_FLUSH_BODY_BYTES: usize = 64 * 1024;
/// The maximum number of paths, and of addresses to fetch again, of a flush.
const MAX_FLUSHED_PATHS: usize = 100;

/// A flush that an administrator requests.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdministratorFlush {
    /// The paths to flush.
    paths: Vec<String>,
    /// The addresses to fetch again; visitors get their old files until then.
    #[serde(default)]
    refetch: Vec<String>,
    /// Whether other files below the same `.stat` files become stale too, as at an activation.
    #[serde(default)]
    tree: bool,
}

impl Dispatcher {
    pub(crate) async fn answer_admin(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let inner = self.current_state();
        let token = inner.parts.settings.admin_token.as_deref();
        let has_token = token.is_some_and(|token| has_admin_token(request.headers(), token));
        let path = request.uri().path().to_owned();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read {
            let peer = request.extensions().get::<ConnectionPeer>();
            let is_local =
                peer.is_some_and(|peer| peer.is_loopback) && is_addressed_by_ip(request.headers());
            if !has_token && !is_local {
                return plain_text_response(
                    StatusCode::FORBIDDEN,
                    "the token of `[dispatcher.admin]` is required\n",
                );
            }
            if path == "/explain" {
                let query = request.uri().query().unwrap_or_default().to_owned();
                return self.answer_explain(&query).await;
            }
            return self.answer_admin_get(&path);
        }
        if !has_token {
            let text = "changes require the token of `[dispatcher.admin]`\n";
            return plain_text_response(StatusCode::FORBIDDEN, text);
        }
        if request.method() == Method::POST && path == "/flush" {
            return self.flush_paths(request.into_body()).await;
        }
        match (request.method(), path.strip_prefix("/shares/")) {
            (&Method::PUT, Some(farm)) => self.change_share(farm, request.into_body()).await,
            _ => plain_text_response(
                StatusCode::METHOD_NOT_ALLOWED,
                "changes are POST /flush and PUT /shares/FARM\n",
            ),
        }
    }

    fn answer_admin_get(&self, path: &str) -> Response<ResponseBody> {
        match path {
            "/" | "/status" => {
                let page = status_page::render_status_page(&self.status());
                let mut response =
                    response_with_type(StatusCode::OK, "text/html; charset=utf-8", page);
                let policy =
                    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
                let policy = HeaderValue::from_static(policy);
                response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
                response
            }
            "/status.json" => match serde_json::to_string(&self.status()) {
                Ok(text) => response_with_type(StatusCode::OK, "application/json", text),
                Err(_not_a_number) => plain_text_response(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "cannot serialize the status\n",
                ),
            },
            "/metrics" => response_with_type(
                StatusCode::OK,
                "text/plain; version=0.0.4; charset=utf-8",
                self.prometheus_metrics(),
            ),
            "/health" => {
                let status = self.status();
                if status.is_well {
                    return plain_text_response(StatusCode::OK, "ok\n");
                }
                let bad: Vec<String> = status
                    .farms
                    .iter()
                    .flat_map(|farm| farm.renders.iter().map(move |render| (farm, render)))
                    .filter(|(_, render)| !render.is_answering())
                    .map(|(farm, render)| {
                        format!(
                            "farm {}: render {} is {}\n",
                            farm.name, render.name, render.standing
                        )
                    })
                    .collect();
                plain_text_response(StatusCode::SERVICE_UNAVAILABLE, &bad.concat())
            }
            _ => plain_text_response(
                StatusCode::NOT_FOUND,
                "not found; available are /, /status.json, /metrics, /health and /explain\n",
            ),
        }
    }

    /// Explains how the request of a visitor without cookies and credentials would be answered now.
    async fn answer_explain(&self, query: &str) -> Response<ResponseBody> {
        let url = query.split('&').find_map(|pair| pair.strip_prefix("url="));
        let url = url.map(|url| percent_decode_str(url).decode_utf8().map(Cow::into_owned));
        let Some(Ok(url)) = url else {
            let text =
                "name the address in UTF-8: /explain?url=http%3A%2F%2Fexample.com%2Fa.html\n";
            return plain_text_response(StatusCode::BAD_REQUEST, text);
        };
        let state = self.current_state();
        // Looks at files of the cache.
        let explanation = tokio::task::spawn_blocking(move || {
            let question = ExplainedRequest {
                method: &Method::GET,
                url: &url,
                headers: &HeaderMap::new(),
                now: state.parts.runtime.clock.now(),
            };
            explain_with_settings(&state.config, &state.parts.settings, &question)
        });
        let text = match explanation.await {
            Ok(Ok(explanation)) => serde_json::to_string(&explanation).ok(),
            Ok(Err(error)) => {
                let text = format!("{}\n", error_chain_text(&error));
                return plain_text_response(StatusCode::BAD_REQUEST, &text);
            }
            Err(_panicked) => None,
        };
        match text {
            Some(text) => response_with_type(StatusCode::OK, "application/json", text),
            None => {
                let text = "cannot explain the request\n";
                plain_text_response(StatusCode::INTERNAL_SERVER_ERROR, text)
            }
        }
    }

    /// Flushes paths in all farms with a cache.
    async fn flush_paths(&self, body: Incoming) -> Response<ResponseBody> {
        let bytes =
            Limited::new(body, MAX_FLUSH_BODY_BYTES).collect().await.map(|body| body.to_bytes());
        let wish: Option<AdministratorFlush> =
            bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let is_sound = |wish: &AdministratorFlush| {
            let all = || wish.paths.iter().chain(&wish.refetch);
            !wish.paths.is_empty()
                && wish.paths.len().max(wish.refetch.len()) <= MAX_FLUSHED_PATHS
                && all().all(|path| path.starts_with('/') && !path.contains(char::is_control))
        };
        let Some(wish) = wish.filter(is_sound) else {
            let text = format!(
                "the body must be JSON with `paths`, 1 to {MAX_FLUSHED_PATHS} paths that begin with `/`\n"
            );
            return plain_text_response(StatusCode::BAD_REQUEST, &text);
        };
        let state = self.current_state();
        let farms: Vec<_> =
            state.parts.farms.iter().filter(|farm| farm.docroot.is_some()).cloned().collect();
        for farm in &farms {
            for (number, path) in wish.paths.iter().enumerate() {
                let message = FlushMessage {
                    action: FlushAction::Activate,
                    handle: path.clone(),
                    scope: (!wish.tree).then_some(FlushScope::ResourceOnly),
                    // Once for each farm.
                    refetch: if number == 0 { wish.refetch.clone() } else { Vec::new() },
                    sequence: None,
                    numbering: None,
                };
                if !state.flushes.flush_for_administrator(farm, message).await {
                    let text =
                        format!("the flush of {path} failed in the farm {}\n", farm.config.name);
                    return plain_text_response(StatusCode::INTERNAL_SERVER_ERROR, &text);
                }
            }
        }
        tracing::info!(
            paths = wish.paths.len(),
            farms = farms.len(),
            "flushed by an administrator"
        );
        let text = serde_json::json!({ "paths": wish.paths.len(), "farms": farms.len() });
        response_with_type(StatusCode::OK, "application/json", text.to_string())
    }

    async fn change_share(&self, farm: &str, body: Incoming) -> Response<ResponseBody> {
        let bytes =
            Limited::new(body, MAX_SHARE_BODY_BYTES).collect().await.map(|body| body.to_bytes());
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
        let percent = text.and_then(|text| text.trim().parse::<f64>().ok());
        match percent.filter(|percent| (0.0..=100.0).contains(percent)) {
            None => plain_text_response(
                StatusCode::BAD_REQUEST,
                "the body must be a number from 0 to 100\n",
            ),
            Some(percent) if self.set_share(farm, percent) => {
                tracing::info!(%farm, percent, "share of a farm changed");
                plain_text_response(StatusCode::OK, &format!("{percent}\n"))
            }
            Some(_) => plain_text_response(
                StatusCode::NOT_FOUND,
                "there is no farm of this name with `/x-share`\n",
            ),
        }
    }
}

fn has_admin_token(headers: &HeaderMap, token: &str) -> bool {
    let shown_token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown_token = shown_token.and_then(|value| value.strip_prefix("Bearer "));
    shown_token
        .is_some_and(|shown_token| shown_token.trim().as_bytes().ct_eq(token.as_bytes()).into())
}

fn plain_text_response(status: StatusCode, text: &str) -> Response<ResponseBody> {
    response_with_type(status, "text/plain; charset=utf-8", text.to_owned())
}

fn response_with_type(
    status: StatusCode,
    kind: &'static str,
    text: String,
) -> Response<ResponseBody> {
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
