//! Serving content: the renderer's answer becomes HTTP.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body as HttpBody;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect as HttpRedirect, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tympan_content::{BlobContent, JCR_CONTENT, NodePath, Repository, Snapshot, Viewer};
use tympan_render::binary::{self, Conditions, Plan};
use tympan_render::ledger::{Look, Recorded};
use tympan_render::url::Url;
use tympan_render::{
    Blob, Body, Facts, Flex, Outcome, Recording, Redirect, RenderRequest, RenderResponse, Visitor,
};
use tympan_web::listen::Peer;
use tympan_web::read_body::from_reader;

use crate::api::endpoint::on_branch;
use crate::failure::{Failure, Result};
use crate::login::Identity;
use crate::metrics::count;
use crate::surrogate::add_keys;
use crate::{Instance, Role, timing};

/// Answers GET and HEAD for everything that is content.
pub(crate) async fn get(State(instance): State<Arc<Instance>>, request: Request) -> Response {
    // The body of a GET is of no interest, and dropping it here keeps it out of what crosses threads.
    let (parts, _) = request.into_parts();
    match serve(&instance, &parts).await {
        Ok(response) => response,
        Err(failure)
            if failure.status == StatusCode::UNAUTHORIZED && wants_page(&parts.headers) =>
        {
            let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
            let target =
                percent_encoding::utf8_percent_encode(target, percent_encoding::NON_ALPHANUMERIC);
            HttpRedirect::to(&format!("/login.html?resource={target}")).into_response()
        }
        Err(failure) => show_failure(&instance, &parts, failure).await,
    }
}

/// Answers a failure: visitors of a publisher get the page that the site has for a refusal.
pub(crate) async fn show_failure(
    instance: &Arc<Instance>,
    parts: &Parts,
    failure: Failure,
) -> Response {
    let is_refusal = failure.status == StatusCode::FORBIDDEN && instance.role == Role::Publish;
    if !is_refusal || !wants_page(&parts.headers) {
        return failure.into_response();
    }
    let asked = Asked::by_nobody(parts, instance);
    let drawn = instance
        .work(move |instance| {
            let asked = asked?;
            let snapshot = instance.repository.snapshot()?.seen_by(&asked.viewer);
            let request = RenderRequest { method: "GET", ..RenderRequest::get(&asked.path) };
            let message = "This is not for you to see or do.";
            let drawn = instance.renderer.render_fault(&snapshot, &request, "403", message);
            to_http(instance, drawn, (&asked, Wishes::default()))
        })
        .await;
    match drawn {
        Ok(mut response) => {
            *response.status_mut() = StatusCode::FORBIDDEN;
            unkept(response)
        }
        Err(_) => failure.into_response(),
    }
}

fn wants_page(headers: &HeaderMap) -> bool {
    let accepts =
        headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepts.contains("text/html") && !headers.contains_key(header::AUTHORIZATION)
}

async fn serve(instance: &Arc<Instance>, parts: &Parts) -> Result<Response> {
    let identity = instance.identify(parts).await?;
    if instance.role == Role::Author && identity.is_none() {
        return Err(Failure::new(StatusCode::UNAUTHORIZED, "log in first"));
    }
    let asked = Asked {
        is_edit: instance.role == Role::Author
            && query_value(parts.uri.query(), "wcmmode") == Some("edit"),
        branch: branch_of(instance, parts)?,
        ..Asked::by(identity.as_ref(), parts, instance)?
    };
    let mut response = instance.work(move |instance| answer(instance, &asked)).await?;
    if let Some(identity) = identity {
        response.extensions_mut().insert(identity);
    }
    Ok(response)
}

fn query_value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Returns the branch that an editor looks at; visitors always get `main`.
fn branch_of(instance: &Instance, parts: &Parts) -> Result<Option<String>> {
    let name = query_value(parts.uri.query(), "tympan-branch");
    let Some(name) = name.filter(|_| instance.role == Role::Author) else { return Ok(None) };
    let name = percent_encoding::percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| Failure::bad_request("the name of the branch is not UTF-8"))?;
    Ok(Some(name.into_owned()))
}

/// What a request asks for, detached from its connection.
#[derive(Clone)]
pub(crate) struct Asked {
    viewer: Viewer,
    path: String,
    branch: Option<String>,
    query: String,
    headers: HeaderMap,
    is_edit: bool,
    method: &'static str,
    /// The fields of a form, urlencoded.
    form: String,
    peer: Option<Peer>,
    user: Option<String>,
}

/// By which caches in front say that they fill in includes (ESI 1.0, section 6).
const CAPABILITY: &str = "surrogate-capability";

impl Asked {
    /// Takes a request of somebody, as it is for visitors.
    pub(crate) fn by(
        identity: Option<&Identity>,
        parts: &Parts,
        instance: &Instance,
    ) -> Result<Self> {
        Ok(Self {
            viewer: instance.viewer_of(identity)?,
            is_edit: false,
            branch: None,
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers.clone(),
            method: if parts.method == Method::HEAD { "HEAD" } else { "GET" },
            form: String::new(),
            peer: parts.extensions.get::<Peer>().copied(),
            user: identity.map(|identity| identity.user.clone()),
            path: parts.uri.path().to_owned(),
        })
    }

    fn by_nobody(parts: &Parts, instance: &Instance) -> Result<Self> {
        Self::by(None, parts, instance)
    }

    /// Returns the same request as one that sends a form.
    pub(crate) fn posting(self, form: String) -> Self {
        Self { method: "POST", form, ..self }
    }

    /// Returns the same request by somebody without a login.
    fn as_nobody(&self, instance: &Instance) -> Result<Self> {
        Ok(Self { viewer: instance.viewer_of(None)?, user: None, ..self.clone() })
    }

    /// Tells whether who asks fills in includes.
    fn fills_includes(&self) -> bool {
        self.header(CAPABILITY).split([',', '"', ' ']).any(|one| one == "SSI/1.0")
    }

    /// Returns a header's value.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the scheme that was asked by.
    fn scheme(&self) -> &'static str {
        if self.peer.is_some_and(|peer| peer.is_tls) { "https" } else { "http" }
    }

    /// Returns what may tell visitors apart.
    fn visitor<'a>(&'a self, ip: &'a str) -> Visitor<'a> {
        let default = if self.scheme() == "https" { 443 } else { 80 };
        let host = self.header("host");
        let port = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let languages = self.header("accept-language");
        Visitor {
            user: self.user.as_deref().unwrap_or_default(),
            ip,
            port: port.unwrap_or(default),
            locale: languages.split([',', ';']).next().unwrap_or_default().trim(),
            user_agent: self.header("user-agent"),
        }
    }

    /// Tells what is asked of the fragment cache and of the times; nothing for anybody but administrators.
    fn wishes(&self, instance: &Instance) -> Result<Wishes> {
        let query = Some(self.query.as_str());
        let flex = query_value(query, "_flex").unwrap_or_default();
        let is_profiled = query_value(query, "tympan-profile") == Some("1");
        if (flex.is_empty() && !is_profiled) || self.user.is_none() {
            return Ok(Wishes::default());
        }
        if !instance.is_administrator(&self.viewer)? {
            return Ok(Wishes::default());
        }
        let word = flex.split([',', '+', ' ']).next().unwrap_or_default();
        Ok(Wishes {
            is_trusted: true,
            is_profiled,
            flex: match word {
                "nocache" => Flex::Nocache,
                "recompile" => Flex::Recompile,
                _ => Flex::None,
            },
            clears: matches!(word, "purge" | "clearcache" | "clearvariations"),
        })
    }
}

/// What an administrator asks for besides a page.
#[derive(Debug, Clone, Copy, Default)]
struct Wishes {
    is_trusted: bool,
    is_profiled: bool,
    flex: Flex,
    clears: bool,
}

/// Draws the answer from one pinned root.
fn answer(instance: &Instance, asked: &Asked) -> Result<Response> {
    let repository = match &asked.branch {
        Some(name) => on_branch(&instance.repository, name)?,
        None => instance.repository.clone(),
    };
    let wishes = asked.wishes(instance)?;
    if let Some(fragments) = instance.renderer.fragments().filter(|_| wishes.clears) {
        fragments.clear();
    }
    // What everybody gets tells nobody's times, whoever asks for it.
    let answer = |of: &Asked, drawn| {
        let mut response = to_http(instance, drawn, (of, wishes))?;
        add_keys(instance, &asked.path, &mut response);
        Ok(response)
    };
    let own = match asked.user.is_some() && instance.role == Role::Publish {
        true => Some(draw(instance, &repository, (asked, wishes), Recording::Paths)?.0),
        false => None,
    };
    // What uses the visitor says so itself, and nobody keeps it.
    if own.as_ref().is_some_and(|own| own.reads.facts.has(Facts::USER)) {
        return own.map_or_else(|| Err(Failure::not_found(&asked.path)), |own| answer(asked, own));
    }
    let nobody = own.as_ref().map(|_| asked.as_nobody(instance)).transpose()?;
    let everyones = nobody.as_ref().unwrap_or(asked);
    let (drawn, is_kept) = draw_noted(instance, &repository, (everyones, wishes))?;
    match own {
        // What this visitor alone may see must not come to others.
        Some(own) if !is_same(&own, &drawn) => Ok(unshared(answer(asked, own)?)),
        _ if is_kept => answer(everyones, drawn),
        _ => Ok(unkept(answer(everyones, drawn)?)),
    }
}

/// Draws what everybody may get, and notes in the ledger what it was drawn from; tells whether that was possible.
fn draw_noted(
    instance: &Instance,
    repository: &Repository,
    (asked, wishes): (&Asked, Wishes),
) -> Result<(RenderResponse, bool)> {
    let Some(ledger) = &instance.ledger else {
        return Ok((draw(instance, repository, (asked, wishes), Recording::Count)?.0, true));
    };
    for _ in 0..MAX_DRAWINGS {
        let ticket = ledger.ticket();
        let (drawn, look) = draw(instance, repository, (asked, wishes), Recording::Paths)?;
        match ledger.record_answer(ticket, &asked.path, &drawn, look) {
            Recorded::Kept => return Ok((drawn, true)),
            Recorded::Outdated => {}
            Recorded::Lost | Recorded::Crowded => return Ok((drawn, false)),
        }
    }
    Ok((draw(instance, repository, (asked, wishes), Recording::Count)?.0, false))
}

/// Tells whether two drawings are the same for whoever gets them.
fn is_same(one: &RenderResponse, other: &RenderResponse) -> bool {
    let is_same_body = match (&one.body, &other.body) {
        (Body::Bytes(one), Body::Bytes(other)) => one == other,
        (Body::Blob(one), Body::Blob(other)) => one == other,
        (Body::Empty, Body::Empty) => true,
        _ => false,
    };
    is_same_body
        && one.outcome == other.outcome
        && one.content_type == other.content_type
        && one.headers == other.headers
}

/// Answers a form that a visitor sent to a page; nothing if no script of the page takes it.
pub(crate) fn take_form(instance: &Instance, asked: &Asked) -> Result<Option<Response>> {
    let wishes = Wishes::default();
    let (drawn, _) = draw(instance, &instance.repository, (asked, wishes), Recording::Count)?;
    if matches!(drawn.outcome, Outcome::MethodNotAllowed) {
        return Ok(None);
    }
    Ok(Some(unkept(to_http(instance, drawn, (asked, wishes))?)))
}

/// Drawings of one request that changes may overtake, before one is sent that nobody may keep.
const MAX_DRAWINGS: usize = 3;

/// Draws from the newest state; tells how it looks if the same can be drawn again.
fn draw(
    instance: &Instance,
    repository: &Repository,
    (asked, wishes): (&Asked, Wishes),
    recording: Recording,
) -> Result<(RenderResponse, Option<Look>)> {
    let snapshot = repository.snapshot()?.seen_by(&asked.viewer);
    let ip = asked.peer.map(|peer| peer.addr.ip().to_string()).unwrap_or_default();
    let request = RenderRequest {
        method: asked.method,
        path: &asked.path,
        query: &asked.query,
        scheme: asked.scheme(),
        host: asked.header("host"),
        edit: asked.is_edit,
        recording,
        visitor: asked.visitor(&ip),
        flex: wishes.flex,
        form: &asked.form,
        fills_includes: asked.fills_includes(),
        is_offline: false,
    };
    let snapshot = match asked.path.contains(";v=") {
        true => at_version(&snapshot, &asked.path)?,
        false => snapshot,
    };
    let drawn = instance.renderer.render(&snapshot, &request);
    instance.profile.note(&asked.path, &drawn.timing, SystemTime::now());
    check_failure(&snapshot)?;
    count(&instance.metrics.renders);
    instance
        .metrics
        .failed_components
        .fetch_add(u64::from(drawn.failed_components), std::sync::atomic::Ordering::Relaxed);
    let look = match recording {
        Recording::Paths => Look::of(&drawn, &request),
        Recording::Count => None,
    };
    Ok((drawn, look))
}

impl Instance {
    /// Draws a request from a state as visitors without a login get it, to see what a change makes of it; nothing if
    /// content cannot be read.
    #[must_use]
    pub fn draw_for_visitors(
        &self,
        state: &Snapshot,
        request: &RenderRequest<'_>,
    ) -> Option<RenderResponse> {
        let snapshot = state.seen_by(&self.viewer_of(None).ok()?);
        let drawn = self.renderer.render(&snapshot, request);
        snapshot.failure().is_none().then_some(drawn)
    }
}

/// Keeps everybody from storing an answer of which no change would be told.
pub(crate) fn unkept(mut response: Response) -> Response {
    let headers = response.headers_mut();
    set(headers, header::CACHE_CONTROL, "no-store");
    set(headers, HeaderName::from_static("dispatcher"), "no-cache");
    response
}

/// Keeps everybody but the visitor from storing an answer.
pub(crate) fn unshared(mut response: Response) -> Response {
    let headers = response.headers_mut();
    set(headers, header::CACHE_CONTROL, "private, no-cache");
    set(headers, HeaderName::from_static("dispatcher"), "no-cache");
    response
}

/// Returns the state in which the resource of a URL is as the version in its path parameter `v` holds it.
fn at_version(snapshot: &Snapshot, path: &str) -> Result<Snapshot> {
    let exists = |path: &str| {
        let path = NodePath::new(path).ok();
        path.is_some_and(|path| snapshot.node(&path).is_ok_and(|node| node.is_some()))
    };
    let url = Url::split(path, exists).map_err(|error| Failure::bad_request(error.to_string()))?;
    let Some(version) = url.parameter("v").filter(|_| url.exists) else {
        return Ok(snapshot.clone());
    };
    let path = NodePath::new(&url.path)?;
    match snapshot.at_version(&path, version) {
        // A page's versions can be those of its content.
        Err(tympan_content::Error::VersionMissing { .. }) => {
            Ok(snapshot.at_version(&path.child(JCR_CONTENT)?, version)?)
        }
        found => Ok(found?),
    }
}

/// Refuses to answer from content that could not be read.
pub(crate) fn check_failure(snapshot: &Snapshot) -> Result<()> {
    match snapshot.failure() {
        Some(error) if error.is_transient() || error.is_of_base() => {
            Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
        }
        Some(error) => Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        None => Ok(()),
    }
}

fn to_http(
    instance: &Instance,
    drawn: RenderResponse,
    (asked, wishes): (&Asked, Wishes),
) -> Result<Response> {
    let (repository, telling) = (&instance.repository, instance.telling);
    let user = asked.user.as_deref();
    let is_commented = wishes.is_profiled || telling.comment.includes(user);
    let RenderResponse { outcome, content_type, headers, body, timing, fragments, .. } = drawn;
    let status = match &outcome {
        Outcome::Ok => StatusCode::OK,
        Outcome::Redirect { kind, .. } => match kind {
            Redirect::Moved => StatusCode::MOVED_PERMANENTLY,
            Redirect::Found => StatusCode::FOUND,
            Redirect::SeeOther => StatusCode::SEE_OTHER,
            Redirect::Temporary => StatusCode::TEMPORARY_REDIRECT,
            Redirect::Permanent => StatusCode::PERMANENT_REDIRECT,
        },
        Outcome::MultipleChoices => StatusCode::MULTIPLE_CHOICES,
        Outcome::BadRequest => StatusCode::BAD_REQUEST,
        Outcome::NotFound => StatusCode::NOT_FOUND,
        Outcome::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Outcome::Error => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let mut response = match body {
        Body::Blob(blob) if status == StatusCode::OK => {
            send_blob(repository, &blob, &asked.headers, asked.method == "HEAD")?
        }
        Body::Blob(_) | Body::Empty => status.into_response(),
        Body::Bytes(bytes) if is_commented && content_type.starts_with("text/html") => {
            let mut text = bytes.to_vec();
            text.extend_from_slice(timing::to_comment(&timing, fragments).as_bytes());
            (status, text).into_response()
        }
        Body::Bytes(bytes) => (status, bytes).into_response(),
    };
    let target = response.headers_mut();
    if !content_type.is_empty() {
        set(target, header::CONTENT_TYPE, &content_type);
    }
    for (name, value) in headers {
        set(target, HeaderName::from_static(name), &value);
    }
    if let Outcome::Redirect { location, .. } = &outcome {
        set(target, header::LOCATION, location);
    }
    let times = match (wishes.is_profiled, telling.header.includes(user)) {
        (true, _) => Some(timing::to_header(&timing)),
        (false, true) => Some(timing::to_short_header(&timing)),
        (false, false) => None,
    };
    if let Some(times) = times {
        set(target, HeaderName::from_static("server-timing"), &times);
    }
    set(target, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    if wishes.is_trusted {
        let counts = timing::to_counts(fragments);
        set(target, HeaderName::from_static("x-tympan-fragments"), &counts);
        return Ok(unkept(response));
    }
    Ok(response)
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    // A value that no header can carry is left out: content must not break the answer.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Sends a blob, or the part of it that was asked for.
pub(crate) fn send_blob(
    repository: &Repository,
    blob: &Blob,
    asked: &HeaderMap,
    is_head: bool,
) -> Result<Response> {
    let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let conditions = Conditions {
        if_none_match: text(header::IF_NONE_MATCH),
        if_modified_since: text(header::IF_MODIFIED_SINCE),
        range: text(header::RANGE),
        if_range: text(header::IF_RANGE),
    };
    let length = blob.id.length();
    let plan = binary::plan(&conditions, length, &blob.etag, blob.last_modified);
    let (status, start, count) = match plan {
        Plan::Full => (StatusCode::OK, 0, length),
        Plan::NotModified => (StatusCode::NOT_MODIFIED, 0, 0),
        Plan::Partial { start, len } => (StatusCode::PARTIAL_CONTENT, start, len),
        Plan::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
    };
    let mut response = if is_head || count == 0 {
        status.into_response()
    } else {
        let missing = || {
            Failure::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the blob {} is missing", blob.id),
            )
        };
        let content = repository
            .blobs()
            .open(&blob.id)
            .map_err(tympan_content::Error::from)?
            .ok_or_else(missing)?;
        (status, part_of(content, start, count)?).into_response()
    };
    let headers = response.headers_mut();
    if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
        set(headers, header::CONTENT_LENGTH, &count.to_string());
    }
    match status {
        StatusCode::PARTIAL_CONTENT => {
            let range = format!("bytes {start}-{}/{length}", start + count - 1);
            set(headers, header::CONTENT_RANGE, &range);
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            set(headers, header::CONTENT_RANGE, &format!("bytes */{length}"))
        }
        _ => {}
    }
    set(headers, header::ACCEPT_RANGES, "bytes");
    set(headers, header::ETAG, &blob.etag);
    if let Some(modified) = blob.last_modified {
        set(headers, header::LAST_MODIFIED, &httpdate::fmt_http_date(modified));
    }
    Ok(response)
}

/// Returns a body of some bytes of a blob.
fn part_of(content: BlobContent, start: u64, count: u64) -> Result<HttpBody> {
    match content {
        BlobContent::Bytes(bytes) => {
            let (from, to) = (start as usize, (start + count) as usize);
            Ok(HttpBody::from(bytes.slice(from.min(bytes.len())..to.min(bytes.len()))))
        }
        BlobContent::File { mut file, .. } => {
            std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start))?;
            Ok(HttpBody::new(from_reader(file, count)))
        }
    }
}

#[cfg(test)]
mod tests {
    use tympan_content::BlobId;

    use super::*;

    /// A blob that no store holds: whoever looks for it fails.
    #[test]
    fn conditional_requests_are_answered_without_the_blob() {
        let repository = Repository::memory().unwrap();
        let id = BlobId::of(b"no store holds this");
        let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000);
        let blob = Blob { id, etag: "\"abc\"".to_owned(), last_modified: Some(modified) };
        let check = |name: HeaderName, value: &str, is_head: bool| {
            let asked = HeaderMap::from_iter([(name, value.parse().unwrap())]);
            send_blob(&repository, &blob, &asked, is_head).map(|sent| sent.status()).ok()
        };
        let date = httpdate::fmt_http_date(modified);
        assert_eq!(check(header::IF_NONE_MATCH, "\"abc\"", false), Some(StatusCode::NOT_MODIFIED));
        assert_eq!(check(header::IF_MODIFIED_SINCE, &date, false), Some(StatusCode::NOT_MODIFIED));
        assert_eq!(
            check(header::RANGE, "bytes=99-", false),
            Some(StatusCode::RANGE_NOT_SATISFIABLE)
        );
        assert_eq!(check(header::RANGE, "bytes=0-3", true), Some(StatusCode::PARTIAL_CONTENT));
        assert_eq!(check(header::IF_NONE_MATCH, "\"other\"", true), Some(StatusCode::OK));
        assert_eq!(check(header::IF_NONE_MATCH, "\"other\"", false), None);
        assert_eq!(check(header::RANGE, "bytes=0-3", false), None);
    }
}
