//! Static export of a running publisher: files that visitors request, and files affected by changes.
//!
//! A web server that does not find a file requests `/handle404?exporturi=<URL of the file>`, as in OpenCms, also below
//! any prefix. The response is the file, which is then exported; a redirect to the page, if the page is not exported as
//! a file; or 404.
//!
//! Not here: which files are exported and their names (`tympan_render_export`).

pub(crate) mod static_export;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect, Response};
use http::{HeaderValue, Method, StatusCode, header};
use tokio::sync::watch;
use tympan_jobs::FollowerLoop;
use tympan_render::FileDelivery;
use tympan_render_export::{ExportError, OnDemandResponse, StaticExporter};

use self::static_export::StaticExport;
use crate::failure::{RequestFailure, Result};
use crate::page::image_render::ExportImageRenderer;
use crate::{Instance, page};

/// Poll interval for the latest state; longer if polling costs a round trip.
const ROOT_POLL_INTERVAL: Duration = Duration::from_millis(100);
const COSTLY_ROOT_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval after which failed pages are retried although nothing changed.
const FAILED_PAGE_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Delay after a failure of the disk or the store.
const STORE_FAILURE_BACKOFF: Duration = Duration::from_secs(5);

impl Instance {
    /// Lets a publisher export pages as files.
    pub fn set_exporter(&self, exporter: Arc<StaticExporter>, pictures: ExportImageRenderer) {
        // Set once, when the instance starts; later calls are ignored.
        self.static_export.set(StaticExport::new(exporter, pictures)).ok();
    }

    /// Follows content changes and keeps the exported files up to date, until `stop` becomes true.
    pub async fn follow_exports(self: Arc<Self>, stop: watch::Receiver<bool>) {
        let costly = self.repository.chunks().has_costly_round_trips();
        let look = if costly { COSTLY_ROOT_POLL_INTERVAL } else { ROOT_POLL_INTERVAL };
        let (mut last_head, mut again) = (None, None);
        let mut follower_loop = FollowerLoop::new("exported pages", stop, STORE_FAILURE_BACKOFF);
        while !follower_loop.is_stopped() {
            let head = self.repository.head_root().ok();
            let is_new = head.is_none() || head != last_head;
            let mut result = Ok(look);
            if is_new || again.is_some_and(|again| Instant::now() >= again) {
                result = self.clone().update_export(is_new).await.map(|failures| {
                    last_head = head;
                    // The failure of a page may be temporary.
                    again = (failures > 0).then(|| Instant::now() + FAILED_PAGE_RETRY_INTERVAL);
                    look
                });
            }
            follower_loop.finish_round(result).await;
        }
    }

    /// Updates the exported files to the latest state. Returns the number of files that could not be created; logs each
    /// of them if `is_new` is set.
    async fn update_export(self: Arc<Self>, is_new: bool) -> Result<usize, String> {
        let work = tokio::task::spawn_blocking(move || {
            let Some(export) = self.static_export.get() else { return Ok(0) };
            let environment = export.export_environment(&self.repository, &self.renderer);
            let report = match export.exporter().export_pending_changes(environment, &|_, _| {}) {
                // Nothing has been exported yet, or the settings have changed.
                Err(ExportError::NoUnfinishedRun { .. }) => {
                    export.exporter().export_all(environment, Default::default(), &|_, _| {})
                }
                done => done,
            };
            let report = report.map_err(|error| tympan_notation::error_chain_text(&error))?;
            let failed = report.findings.iter().filter(|finding| finding.is_failure() && is_new);
            failed.for_each(|finding| tracing::warn!(reason = %finding, "export failed"));
            if report.written + report.removed > 0 {
                tracing::debug!(
                    files = report.written,
                    removed = report.removed,
                    "exported files updated"
                );
            }
            Ok(report.failure_count())
        });
        work.await.map_err(|error| error.to_string())?
    }
}

/// Returns true if a web server requests a file below a prefix, as with OpenCms, whose address is below that of its
/// servlet: `/portal/handle404?exporturi=…`.
pub(crate) fn is_export_request(instance: &Instance, uri: &http::Uri) -> bool {
    let asks = |query: &str| query.split('&').any(|pair| pair.starts_with("exporturi="));
    uri.path().ends_with("/handle404")
        && uri.query().is_some_and(asks)
        && instance.static_export.get().is_some()
}

/// Handles the request of a web server that did not find a file.
pub(crate) async fn handle_missing_file(
    State(instance): State<Arc<Instance>>,
    request: Request,
) -> Result<Response> {
    let (parts, _) = request.into_parts();
    if instance.static_export.get().is_none() {
        return Err(RequestFailure::not_found("/handle404"));
    }
    let query = parts.uri.query().unwrap_or_default();
    let Some((uri, file_query)) = missing_file_of(query) else {
        return Err(RequestFailure::bad_request(
            "`exporturi` is missing: the URL of the missing file",
        ));
    };
    let uri = match uri.starts_with("%2F") || uri.starts_with("%2f") {
        // A query parameter has to be percent-encoded, but most web servers send it unencoded.
        true => percent_encoding::percent_decode_str(&uri).decode_utf8_lossy().into_owned(),
        false => uri,
    };
    let is_head = parts.method == Method::HEAD;
    instance
        .run_work(move |instance| {
            export_missing_file(instance, &parts.headers, &uri, &file_query, is_head)
        })
        .await
}

/// Returns the URL of a missing file, and the query of the original request, which is part of the URL or follows it:
/// `exporturi=/a.html?b=c&d=e`, `exporturi=/a.html&b=c&d=e`. A file ignores the query; a page that is not exported
/// needs it.
fn missing_file_of(query: &str) -> Option<(String, String)> {
    let mut pairs = query.split('&').skip_while(|pair| !pair.starts_with("exporturi="));
    let uri = pairs.next()?.strip_prefix("exporturi=")?;
    let own = uri.split_once('?').map(|(_, own)| own);
    let parts: Vec<&str> = own.into_iter().chain(pairs).filter(|part| !part.is_empty()).collect();
    Some((uri.to_owned(), parts.join("&")))
}

fn export_missing_file(
    instance: &Instance,
    headers: &http::HeaderMap,
    uri: &str,
    file_query: &str,
    is_head: bool,
) -> Result<Response> {
    let Some(export) = instance.static_export.get() else {
        return Err(RequestFailure::not_found(uri));
    };
    let environment = export.export_environment(&instance.repository, &instance.renderer);
    let on_demand_response = export.exporter().export_on_demand(environment, uri);
    let on_demand_response = on_demand_response.map_err(|error| {
        tracing::warn!(
            file = uri,
            reason = tympan_notation::error_chain_text(&error),
            "export failed"
        );
        let message = "cannot export the page now; see the error log of the server";
        RequestFailure {
            retry_after_seconds: Some(5),
            ..RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    })?;
    let is_stored = matches!(on_demand_response, OnDemandResponse::Blob { .. });
    let (mut response, content_type) = match on_demand_response {
        OnDemandResponse::Bytes { bytes, content_type } => (bytes.into_response(), content_type),
        OnDemandResponse::Blob { blob, content_type } => {
            (page::send_blob(&instance.repository, &blob, headers, is_head)?, content_type)
        }
        OnDemandResponse::Redirect(path) if file_query.is_empty() => {
            return Ok(Redirect::to(&path).into_response());
        }
        OnDemandResponse::Redirect(path) => {
            let mark = if path.contains('?') { '&' } else { '?' };
            return Ok(Redirect::to(&format!("{path}{mark}{file_query}")).into_response());
        }
        OnDemandResponse::Missing => return Err(RequestFailure::not_found(uri)),
        OnDemandResponse::Failed(reason) => {
            tracing::warn!(file = uri, reason, "export failed");
            let message = "cannot render the page; see the error log of the server";
            return Err(RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message));
        }
    };
    if is_stored {
        let name = uri.split('?').next().unwrap_or_default();
        let delivery =
            FileDelivery::new(&content_type, name.rsplit('/').next().unwrap_or_default());
        page::add_delivery_headers(response.headers_mut(), &delivery);
    } else if let Ok(content_type) = HeaderValue::from_str(&content_type) {
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_of_a_file_is_distinguished() {
        for (query, expected) in [
            ("exporturi=/a.html", Some(("/a.html", ""))),
            ("exporturi=/a.html&", Some(("/a.html", ""))),
            ("exporturi=/a.html&b=c&d=e", Some(("/a.html", "b=c&d=e"))),
            ("exporturi=/a.html?b=c&d=e", Some(("/a.html?b=c", "b=c&d=e"))),
            ("x=y&exporturi=/a.html&b=c", Some(("/a.html", "b=c"))),
            ("x=y", None),
            ("", None),
        ] {
            let missing_file = missing_file_of(query);
            let missing_file =
                missing_file.as_ref().map(|(uri, query)| (uri.as_str(), query.as_str()));
            assert_eq!(missing_file, expected, "{query}");
        }
    }
}
