//! Content delivery: converts the renderer's output to HTTP.

pub(crate) mod author_headers;
pub(crate) mod author_interface;
pub(crate) mod dialog;
pub(crate) mod headers;
pub(crate) mod hot_response;
pub(crate) mod hot_response_cache;
pub(crate) mod image;
pub(crate) mod image_render;
pub(crate) mod image_service;
pub(crate) mod shortcut;
pub(crate) mod surrogate_key;
pub(crate) mod visitor_form;

mod blob_response;
mod request;
mod response;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect as HttpRedirect, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use tympan_content::{ChunkId, JCR_CONTENT, NodePath, Repository, Snapshot, Viewer};
use tympan_render::ledger::{RecordOutcome, ResponseFingerprint};
use tympan_render::url::{REFUSED_READINGS, SlingUrl};
use tympan_render::{
    ReadRecording, RenderOutcome, RenderRequest, RenderResponse, RenderResponseBody, RequestFacts,
};

use self::request::{AdminPageOptions, FragmentCacheClearing, query_value};
use self::response::{PendingImage, add_common_headers, add_render_headers, to_http_response};
use crate::api::endpoint::open_branch_of;
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;
use crate::observe::metrics::increment;
use crate::page::hot_response::{HotResponseCandidate, ShortcutHeaders, record_render_cost};
use crate::page::surrogate_key::add_surrogate_keys;
use crate::{Instance, InstanceRole};

pub(crate) use self::blob_response::{send_available_blob, send_blob, send_blob_to_socket};
pub(crate) use self::request::{AnonymousPageRequest, PageRequest, SURROGATE_CAPABILITY};
pub(crate) use self::response::{
    NOSNIFF_HEADER, add_delivery_headers, with_no_store, with_private_cache,
};

/// Handles GET and HEAD for all content.
pub(crate) async fn get_page(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    // The body of a GET is not needed; dropping it here avoids sending it across threads.
    let (parts, _) = request.into_parts();
    match serve_page(&instance, &parts).await {
        Ok(response) => response,
        Err(failure)
            if failure.status == StatusCode::UNAUTHORIZED && accepts_html(&parts.headers) =>
        {
            let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
            let target =
                percent_encoding::utf8_percent_encode(target, percent_encoding::NON_ALPHANUMERIC);
            HttpRedirect::to(&format!("/login.html?resource={target}")).into_response()
        }
        Err(failure) => failure_response(&instance, &parts, failure).await,
    }
}

/// Returns the response to a failure; visitors of a publisher receive the error page of the site.
pub(crate) async fn failure_response(
    instance: &Arc<Instance>,
    parts: &Parts,
    failure: RequestFailure,
) -> Response {
    let is_refusal =
        failure.status == StatusCode::FORBIDDEN && instance.role == InstanceRole::Publish;
    if !is_refusal || !accepts_html(&parts.headers) {
        return failure.into_response();
    }
    let page_request = PageRequest::from_identity(None, parts);
    let render_response = instance
        .run_work(move |instance| {
            let snapshot = instance.repository.snapshot()?.as_viewer(&page_request.viewer);
            let request = RenderRequest { method: "GET", ..RenderRequest::get(&page_request.path) };
            let message = "You are not allowed to view this page or do this.";
            let render_response =
                instance.renderer.render_fault(&snapshot, &request, "403", message);
            to_http_response(
                instance,
                render_response,
                (&page_request, AdminPageOptions::default()),
            )
        })
        .await;
    match render_response {
        Ok(mut response) => {
            *response.status_mut() = StatusCode::FORBIDDEN;
            with_no_store(response)
        }
        Err(_) => failure.into_response(),
    }
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accepts =
        headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.contains("text/html") && !headers.contains_key(header::AUTHORIZATION)
}

async fn serve_page(instance: &Arc<Instance>, parts: &Parts) -> Result<Response> {
    let identity = instance.identify(parts).await?;
    if instance.role == InstanceRole::Author && identity.is_none() {
        return Err(RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"));
    }
    let is_any_reading_refused = parts.headers.contains_key(&REFUSED_READINGS);
    let hot_response = match is_any_reading_refused {
        true => None,
        false => instance.serve_hot_response(parts, identity.as_ref()),
    };
    if let Some(mut response) = hot_response {
        if let Some(identity) = identity {
            response.extensions_mut().insert(identity);
        }
        return Ok(response);
    }
    let page_request = PageRequest {
        is_edit: instance.role == InstanceRole::Author
            && query_value(parts.uri.query(), "wcmmode") == Some("edit"),
        branch: viewed_branch(instance, parts)?,
        ..PageRequest::from_identity(identity.as_ref(), parts)
    };
    let mut response =
        instance.run_work(move |instance| page_response(instance, &page_request)).await?;
    if let Some(PendingImage(address)) = response.extensions_mut().remove() {
        let viewer = identity.as_ref().map_or_else(Viewer::anonymous, RequestIdentity::viewer);
        response = image::with_image(instance, parts, viewer, (address, response)).await?;
    }
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    Ok(response)
}

/// Returns the branch that an editor views; visitors always receive `main`.
fn viewed_branch(instance: &Instance, parts: &Parts) -> Result<Option<String>> {
    let name = query_value(parts.uri.query(), "tympan-branch");
    let Some(name) = name.filter(|_| instance.role == InstanceRole::Author) else {
        return Ok(None);
    };
    let name = percent_encoding::percent_decode_str(name).decode_utf8();
    let name =
        name.map_err(|_| RequestFailure::bad_request("the name of the branch is not UTF-8"))?;
    Ok(Some(name.into_owned()))
}

/// Refuses a path that a dispatcher's filter would have refused if it knew which resources exist.
fn check_read_path(
    instance: &Instance,
    repository: &Repository,
    page_request: &PageRequest,
) -> Result<()> {
    if !page_request.headers.contains_key(&REFUSED_READINGS) {
        return Ok(());
    }
    let snapshot = repository.snapshot()?.as_viewer(&page_request.viewer);
    let request = RenderRequest {
        scheme: page_request.scheme(),
        host: page_request.header("host"),
        ..RenderRequest::get(&page_request.path)
    };
    let url = instance.renderer.resolve_url(&snapshot, &request);
    check_snapshot_failure(&snapshot)?;
    match url.is_some_and(|url| url.is_refused_by(&page_request.headers)) {
        true => Err(RequestFailure::new(StatusCode::NOT_FOUND, "there is nothing here")),
        false => Ok(()),
    }
}

/// Renders the response from one pinned root.
fn page_response(instance: &Instance, page_request: &PageRequest) -> Result<Response> {
    let repository = match &page_request.branch {
        Some(name) => open_branch_of(&instance.repository, name)?,
        None => instance.repository.clone(),
    };
    check_read_path(instance, &repository, page_request)?;
    let options = page_request.admin_options(instance)?;
    match (instance.renderer.fragments(), options.clearing) {
        (Some(fragments), FragmentCacheClearing::Everything) => fragments.clear(),
        (Some(fragments), FragmentCacheClearing::RenderedFragments) => fragments.clear_fragments(),
        _ => {}
    }
    let to_response = |of: &PageRequest, render_response| {
        let mut response = to_http_response(instance, render_response, (of, options))?;
        add_surrogate_keys(instance, &page_request.path, response.headers_mut());
        Ok(response)
    };
    let (mut rendered_page, mut is_kept) =
        render_recorded(instance, &repository, (page_request, options))?;
    // A response that depends on the user declares that itself, and is not cached.
    if page_request.is_member(instance)
        && rendered_page.response.reads.facts.intersects(RequestFacts::USER)
    {
        return to_response(page_request, rendered_page.response);
    }
    // A response shared by all visitors must not disclose the timing of a user.
    let nobody = page_request.is_member(instance).then(|| page_request.as_anonymous());
    let everyones = nobody.as_ref().unwrap_or(page_request);
    if !rendered_page.is_same_for_everyone {
        let own = rendered_page.response;
        (rendered_page, is_kept) = render_recorded(instance, &repository, (everyones, options))?;
        if !is_same_response(&own, &rendered_page.response) {
            // Content that only this user may see must not reach others.
            return Ok(with_private_cache(to_response(page_request, own)?));
        }
    }
    if !is_kept {
        return Ok(with_no_store(to_response(everyones, rendered_page.response)?));
    }
    let RenderedPage { response: render_response, fingerprint, root, render_time, .. } =
        rendered_page;
    if let Some(render_time) = render_time {
        record_render_cost(
            instance,
            (&everyones.path, root),
            (&render_response, fingerprint.as_ref()),
            render_time,
        );
    }
    let remembered =
        HotResponseCandidate::from_rendered(instance, &render_response, root, fingerprint.as_ref());
    let response = to_response(everyones, render_response)?;
    if let Some(remembered) = remembered.filter(|_| everyones.is_path_only()) {
        remembered.store(instance, &everyones.path, &response);
    }
    Ok(response)
}

/// A rendering, its fingerprint if it is reproducible, and the root it belongs to if it depends on a single one.
struct RenderedPage {
    response: RenderResponse,
    fingerprint: Option<ResponseFingerprint>,
    root: Option<ChunkId>,
    /// True if the response is the same for all visitors: access decisions for everything that was read are the same
    /// without a login.
    is_same_for_everyone: bool,
    /// Render time, if a listener's shortcut may serve the same response.
    render_time: Option<Duration>,
}

/// Renders the response to visitors and returns its headers and body, if the ledger knows a rendering with the same
/// dependencies and the same fingerprint. Does not block; uses only the processor. Must not be used if timing is
/// disclosed.
fn render_inline(
    instance: &Instance,
    visit: &AnonymousPageRequest<'_>,
) -> Option<(ShortcutHeaders, Bytes)> {
    let ledger = instance.dependency_ledger.as_ref()?;
    let ticket = ledger.begin_rendering();
    let snapshot = instance.repository.snapshot().ok()?.as_viewer(&Viewer::anonymous());
    let request = visit.render_request();
    let render_response = render_and_count(instance, &snapshot, &request).ok()?;
    let (look, root) = (
        ResponseFingerprint::from_response(&render_response, &request),
        snapshot.visible_root_id(),
    );
    let read = ledger.digest_dependencies(&render_response);
    if render_response.outcome != RenderOutcome::Ok
        || render_response.content_type.is_empty()
        || !matches!(render_response.body, RenderResponseBody::Bytes(_))
        || !ledger.record_if_known((ticket, root?), visit.path, read, &look?)
    {
        return None;
    }
    let RenderResponse {
        content_type, headers: own, body: RenderResponseBody::Bytes(body), ..
    } = render_response
    else {
        return None;
    };
    if let Cow::Borrowed(media_type) = content_type
        && own.is_empty()
        && instance.surrogate_key.is_none()
        && !instance.page_headers.applies_to(media_type)
    {
        return Some((ShortcutHeaders::Rendered(media_type), body));
    }
    let mut headers = HeaderMap::with_capacity(8);
    add_render_headers(&mut headers, content_type, own);
    instance.page_headers.add_to(&mut headers);
    add_common_headers(&mut headers);
    add_surrogate_keys(instance, visit.path, &mut headers);
    Some((ShortcutHeaders::Other(headers), body))
}

/// Renders and, if the response is the same for all visitors, records its dependencies in the ledger. Returns whether
/// recording was possible.
fn render_recorded(
    instance: &Instance,
    repository: &Repository,
    (page_request, options): (&PageRequest, AdminPageOptions),
) -> Result<(RenderedPage, bool)> {
    let Some(ledger) = &instance.dependency_ledger else {
        // Record reads for members as well, because they show whether other visitors may receive the same response.
        let recording = if page_request.is_member(instance) {
            ReadRecording::Paths
        } else {
            ReadRecording::Count
        };
        return Ok((
            render_newest_state(instance, repository, (page_request, options), recording)?,
            true,
        ));
    };
    let may_repeat = instance.hot_responses.get().is_some()
        && page_request.is_path_only()
        && page_request.method == "GET";
    let start = Instant::now();
    for _ in 0..MAX_RENDER_ATTEMPTS {
        let ticket = ledger.begin_rendering();
        let begin = may_repeat.then(Instant::now);
        let mut rendered_page = render_newest_state(
            instance,
            repository,
            (page_request, options),
            ReadRecording::Paths,
        )?;
        rendered_page.render_time = begin.as_ref().map(Instant::elapsed);
        if !rendered_page.is_same_for_everyone {
            return Ok((rendered_page, true));
        }
        let (when, look) = ((ticket, rendered_page.root), rendered_page.fingerprint.clone());
        match ledger.record_answer(when, &page_request.path, &rendered_page.response, look) {
            RecordOutcome::Recorded => return Ok((rendered_page, true)),
            RecordOutcome::Outdated if start.elapsed() < RENDER_RETRY_WINDOW => {}
            RecordOutcome::Outdated | RecordOutcome::NotRecorded | RecordOutcome::TooManyFaults => {
                return Ok((rendered_page, false));
            }
        }
    }
    Ok((
        render_newest_state(instance, repository, (page_request, options), ReadRecording::Count)?,
        false,
    ))
}

/// Returns true if two renderings produce the same response.
fn is_same_response(left: &RenderResponse, right: &RenderResponse) -> bool {
    let is_same_body = match (&left.body, &right.body) {
        (RenderResponseBody::Bytes(left), RenderResponseBody::Bytes(right)) => left == right,
        (RenderResponseBody::Blob(left), RenderResponseBody::Blob(right)) => left == right,
        (RenderResponseBody::Image(left), RenderResponseBody::Image(right)) => left == right,
        (RenderResponseBody::Empty, RenderResponseBody::Empty) => true,
        _ => false,
    };
    is_same_body
        && left.outcome == right.outcome
        && left.content_type == right.content_type
        && left.headers == right.headers
}

/// Handles a form that a visitor sent to a page; `None` if no script of the page accepts it.
fn handle_page_form(instance: &Instance, page_request: &PageRequest) -> Result<Option<Response>> {
    check_read_path(instance, &instance.repository, page_request)?;
    let options = AdminPageOptions::default();
    let render_response = render_newest_state(
        instance,
        &instance.repository,
        (page_request, options),
        ReadRecording::Count,
    )?
    .response;
    if matches!(render_response.outcome, RenderOutcome::MethodNotAllowed) {
        return Ok(None);
    }
    Ok(Some(with_no_store(to_http_response(instance, render_response, (page_request, options))?)))
}

/// Maximum number of renderings of a request that concurrent changes may invalidate, before an uncacheable response is
/// sent.
const MAX_RENDER_ATTEMPTS: usize = 3;
/// A rendering that took longer than this is not repeated after a concurrent change: the visitor has waited long
/// enough, and receives the state at the start of the rendering.
const RENDER_RETRY_WINDOW: Duration = Duration::from_secs(1);

/// Renders from the latest state.
fn render_newest_state(
    instance: &Instance,
    repository: &Repository,
    (page_request, options): (&PageRequest, AdminPageOptions),
    recording: ReadRecording,
) -> Result<RenderedPage> {
    let snapshot = repository.snapshot()?;
    let snapshot = match page_request.is_member(instance) {
        true => snapshot.as_viewer_compared(&page_request.viewer, &Viewer::anonymous()),
        false => snapshot.as_viewer(&page_request.viewer),
    };
    let request = RenderRequest {
        method: page_request.method,
        path: &page_request.path,
        query: &page_request.query,
        scheme: page_request.scheme(),
        host: page_request.header("host"),
        is_edit_mode: page_request.is_edit,
        recording,
        visitor: page_request.visitor(),
        cache_override: options.flex,
        form: &page_request.form,
        supports_includes: page_request.supports_esi(),
        is_static_export: false,
        is_offline: false,
    };
    let snapshot = match page_request.path.contains(";v=") {
        true => snapshot_at_version(&snapshot, &page_request.path)?,
        false => snapshot,
    };
    let response = render_and_count(instance, &snapshot, &request)?;
    let look = match recording {
        ReadRecording::Paths => ResponseFingerprint::from_response(&response, &request),
        ReadRecording::Count => None,
    };
    // A member receives the shared response if everything that was accessed, for this response or for cached parts of
    // it, is either visible to all or visible to none.
    let is_alike = snapshot.is_seen_alike() == Some(true)
        && !response.reads.facts.intersects(RequestFacts::ACCESS_RIGHTS);
    let is_everyones = !page_request.is_member(instance) || is_alike;
    Ok(RenderedPage {
        response,
        fingerprint: look,
        root: snapshot.visible_root_id(),
        is_same_for_everyone: is_everyones,
        render_time: None,
    })
}

/// Renders a request and updates the counters.
fn render_and_count(
    instance: &Instance,
    snapshot: &Snapshot,
    request: &RenderRequest<'_>,
) -> Result<RenderResponse> {
    let response = instance.renderer.render(snapshot, request);
    if !response.timing.rows.is_empty() {
        instance.profile.record(request.path, &response.timing, SystemTime::now());
    }
    check_snapshot_failure(snapshot)?;
    increment(&instance.metrics.renders);
    let failed = u64::from(response.failed_component_count);
    instance.metrics.failed_components.fetch_add(failed, Ordering::Relaxed);
    Ok(response)
}

impl Instance {
    /// Renders a request from a given state as for anonymous visitors, to compare the effect of a change; `None` if
    /// content cannot be read.
    #[must_use]
    pub fn render_for_visitors(
        &self,
        state: &Snapshot,
        request: &RenderRequest<'_>,
    ) -> Option<RenderResponse> {
        let snapshot = state.as_viewer(&Viewer::anonymous());
        let response = self.renderer.render(&snapshot, request);
        snapshot.failure().is_none().then_some(response)
    }
}

/// Returns a snapshot in which the resource of a URL has the content of the version in its path parameter `v`.
fn snapshot_at_version(snapshot: &Snapshot, path: &str) -> Result<Snapshot> {
    let exists = |path: &str| {
        let path = NodePath::new(path).ok();
        path.is_some_and(|path| snapshot.node(&path).is_ok_and(|node| node.is_some()))
    };
    let url = SlingUrl::split(path, exists)
        .map_err(|error| RequestFailure::bad_request(error.to_string()))?;
    let Some(version) = url.parameter("v").filter(|_| url.exists) else {
        return Ok(snapshot.clone());
    };
    let path = NodePath::new(&url.path)?;
    match snapshot.with_version(&path, version) {
        // The versions of a page can be those of its content node.
        Err(tympan_content::Error::VersionMissing { .. }) => {
            Ok(snapshot.with_version(&path.child(JCR_CONTENT)?, version)?)
        }
        version_result => Ok(version_result?),
    }
}

/// Returns an error if content could not be read during rendering.
pub(crate) fn check_snapshot_failure(snapshot: &Snapshot) -> Result<()> {
    match snapshot.failure() {
        Some(error) if error.is_transient() || error.is_base_store_error() => {
            Err(RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
        }
        Some(error) => Err(match error.repair_hint() {
            Some(hint) => RequestFailure::damaged_data(hint),
            None => RequestFailure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }),
        None => Ok(()),
    }
}
