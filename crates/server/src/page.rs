//! Serving content: the renderer's answer becomes HTTP.

mod answer;
mod asked;
mod blob;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Redirect as HttpRedirect, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, StatusCode, header};
use tympan_content::{ChunkId, JCR_CONTENT, NodePath, Repository, Snapshot};
use tympan_render::ledger::{Look, Recorded};
use tympan_render::url::{REFUSED_READINGS, Url};
use tympan_render::{Body, Facts, Outcome, Recording, RenderRequest, RenderResponse};

use self::answer::{add_common, add_headers, to_http};
use self::asked::{Clears, Wishes};
use crate::api::endpoint::on_branch;
use crate::failure::{Failure, Result};
use crate::hot::{Headers, Remembered, note_drawing};
use crate::metrics::count;
use crate::surrogate::add_keys;
use crate::{Instance, Role};

pub(crate) use self::answer::{COMMON, add_delivery, unkept, unshared};
pub(crate) use self::asked::{Asked, CAPABILITY, Visit};
pub(crate) use self::blob::{send_blob, send_known, send_plainly};

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
    let is_any_reading_refused = parts.headers.contains_key(&REFUSED_READINGS);
    let known = match is_any_reading_refused {
        true => None,
        false => instance.answer_at_once(parts, identity.as_ref()),
    };
    if let Some(mut response) = known {
        if let Some(identity) = identity {
            response.extensions_mut().insert(identity);
        }
        return Ok(response);
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

/// Refuses a path that a dispatcher's filter would have refused, had it known which resources exist.
fn check_reading(instance: &Instance, repository: &Repository, asked: &Asked) -> Result<()> {
    if !asked.headers.contains_key(&REFUSED_READINGS) {
        return Ok(());
    }
    let snapshot = repository.snapshot()?.seen_by(&asked.viewer);
    let request = RenderRequest {
        scheme: asked.scheme(),
        host: asked.header("host"),
        ..RenderRequest::get(&asked.path)
    };
    let url = instance.renderer.read_url(&snapshot, &request);
    check_failure(&snapshot)?;
    match url.is_some_and(|url| url.is_refused_by(&asked.headers)) {
        true => Err(Failure::new(StatusCode::NOT_FOUND, "there is nothing here")),
        false => Ok(()),
    }
}

/// Draws the answer from one pinned root.
fn answer(instance: &Instance, asked: &Asked) -> Result<Response> {
    let repository = match &asked.branch {
        Some(name) => on_branch(&instance.repository, name)?,
        None => instance.repository.clone(),
    };
    check_reading(instance, &repository, asked)?;
    let wishes = asked.wishes(instance)?;
    match (instance.renderer.fragments(), wishes.clears) {
        (Some(fragments), Clears::Everything) => fragments.clear(),
        (Some(fragments), Clears::Drawings) => fragments.clear_drawings(),
        _ => {}
    }
    let answer = |of: &Asked, drawn| {
        let mut response = to_http(instance, drawn, (of, wishes))?;
        add_keys(instance, &asked.path, response.headers_mut());
        Ok(response)
    };
    let (mut drawn, mut is_kept) = draw_noted(instance, &repository, (asked, wishes))?;
    // What uses the visitor says so itself, and nobody keeps it.
    if asked.is_member(instance) && drawn.answer.reads.facts.has(Facts::USER) {
        return answer(asked, drawn.answer);
    }
    // What everybody gets tells nobody's times, whoever asks for it.
    let nobody = asked.is_member(instance).then(|| asked.as_nobody(instance)).transpose()?;
    let everyones = nobody.as_ref().unwrap_or(asked);
    if !drawn.is_everyones {
        let own = drawn.answer;
        (drawn, is_kept) = draw_noted(instance, &repository, (everyones, wishes))?;
        if !is_same(&own, &drawn.answer) {
            // What this visitor alone may see must not come to others.
            return Ok(unshared(answer(asked, own)?));
        }
    }
    if !is_kept {
        return Ok(unkept(answer(everyones, drawn.answer)?));
    }
    let Drawn { answer: drawn, look, root, spent, .. } = drawn;
    if let Some(spent) = spent {
        note_drawing(instance, (&everyones.path, root), (&drawn, look.as_ref()), spent);
    }
    let remembered = Remembered::of(instance, &drawn, root, look.as_ref());
    let response = answer(everyones, drawn)?;
    if let Some(remembered) = remembered.filter(|_| everyones.is_plain()) {
        remembered.keep(instance, &everyones.path, &response);
    }
    Ok(response)
}

/// A drawing, how it looks if the same can be drawn again, and of which state it is, if it follows from one alone.
struct Drawn {
    answer: RenderResponse,
    look: Option<Look>,
    root: Option<ChunkId>,
    /// Whether it is what everybody gets: nothing that was read is decided otherwise for somebody without a login.
    is_everyones: bool,
    /// How long it took, if the same may be asked of a listener's shortcut.
    spent: Option<Duration>,
}

/// Draws what visitors get, and returns the answer's headers and its body, if the ledger knows a drawing that read the same
/// and looks the same. Waits for nothing but the processor. Nobody may be told times.
pub(crate) fn draw_known(instance: &Instance, visit: &Visit<'_>) -> Option<(Headers, Bytes)> {
    let ledger = instance.ledger.as_ref()?;
    let ticket = ledger.ticket();
    let viewer = instance.viewer_of(None).ok()?;
    let snapshot = instance.repository.snapshot().ok()?.seen_by(&viewer);
    let request = visit.request();
    let drawn = render(instance, &snapshot, &request).ok()?;
    let (look, root) = (Look::of(&drawn, &request), snapshot.seen_root());
    let read = ledger.digest_of(&drawn);
    if drawn.outcome != Outcome::Ok
        || drawn.content_type.is_empty()
        || !matches!(drawn.body, Body::Bytes(_))
        || !ledger.is_known_now((ticket, root?), visit.path, read, &look?)
    {
        return None;
    }
    let RenderResponse { content_type, headers: own, body: Body::Bytes(body), .. } = drawn else {
        return None;
    };
    if let Cow::Borrowed(media_type) = content_type
        && own.is_empty()
        && instance.surrogate_key.is_none()
        && !instance.page_headers.concern(media_type)
    {
        return Some((Headers::Plain(media_type), body));
    }
    let mut headers = HeaderMap::with_capacity(8);
    add_headers(&mut headers, content_type, own);
    instance.page_headers.add_to(&mut headers);
    add_common(&mut headers);
    add_keys(instance, visit.path, &mut headers);
    Some((Headers::Map(headers), body))
}

/// Draws, and notes in the ledger what it was drawn from if it is what everybody gets; tells whether that was possible.
fn draw_noted(
    instance: &Instance,
    repository: &Repository,
    (asked, wishes): (&Asked, Wishes),
) -> Result<(Drawn, bool)> {
    let Some(ledger) = &instance.ledger else {
        // What is read is noted for members, too: it says whether others may get the same.
        let recording = if asked.is_member(instance) { Recording::Paths } else { Recording::Count };
        return Ok((draw(instance, repository, (asked, wishes), recording)?, true));
    };
    let may_repeat = instance.hot.get().is_some() && asked.is_plain() && asked.method == "GET";
    let begun = Instant::now();
    for _ in 0..MAX_DRAWINGS {
        let ticket = ledger.ticket();
        let begin = may_repeat.then(Instant::now);
        let mut drawn = draw(instance, repository, (asked, wishes), Recording::Paths)?;
        drawn.spent = begin.as_ref().map(Instant::elapsed);
        if !drawn.is_everyones {
            return Ok((drawn, true));
        }
        let (when, look) = ((ticket, drawn.root), drawn.look.clone());
        match ledger.record_answer(when, &asked.path, &drawn.answer, look) {
            Recorded::Kept => return Ok((drawn, true)),
            Recorded::Outdated if begun.elapsed() < DRAWN_AGAIN_WITHIN => {}
            Recorded::Outdated | Recorded::Lost | Recorded::Crowded => return Ok((drawn, false)),
        }
    }
    Ok((draw(instance, repository, (asked, wishes), Recording::Count)?, false))
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
    check_reading(instance, &instance.repository, asked)?;
    let wishes = Wishes::default();
    let drawn = draw(instance, &instance.repository, (asked, wishes), Recording::Count)?.answer;
    if matches!(drawn.outcome, Outcome::MethodNotAllowed) {
        return Ok(None);
    }
    Ok(Some(unkept(to_http(instance, drawn, (asked, wishes))?)))
}

/// Drawings of one request that changes may overtake, before one is sent that nobody may keep.
const MAX_DRAWINGS: usize = 3;
/// What was overtaken after so long is not drawn again: the visitor has waited long enough, and gets what was true when the
/// drawing began.
const DRAWN_AGAIN_WITHIN: Duration = Duration::from_secs(1);

/// Draws from the newest state.
fn draw(
    instance: &Instance,
    repository: &Repository,
    (asked, wishes): (&Asked, Wishes),
    recording: Recording,
) -> Result<Drawn> {
    let snapshot = repository.snapshot()?;
    let snapshot = match asked.is_member(instance) {
        true => snapshot.seen_beside(&asked.viewer, &instance.viewer_of(None)?),
        false => snapshot.seen_by(&asked.viewer),
    };
    let request = RenderRequest {
        method: asked.method,
        path: &asked.path,
        query: &asked.query,
        scheme: asked.scheme(),
        host: asked.header("host"),
        edit: asked.is_edit,
        recording,
        visitor: asked.visitor(),
        flex: wishes.flex,
        form: &asked.form,
        fills_includes: asked.fills_includes(),
        becomes_file: false,
        is_offline: false,
    };
    let snapshot = match asked.path.contains(";v=") {
        true => at_version(&snapshot, &asked.path)?,
        false => snapshot,
    };
    let drawn = render(instance, &snapshot, &request)?;
    let look = match recording {
        Recording::Paths => Look::of(&drawn, &request),
        Recording::Count => None,
    };
    // A member gets what everybody gets if all that was looked at, for this answer or for what was kept of it, is there
    // or not there for everybody.
    let is_alike = snapshot.saw_alike() == Some(true) && !drawn.reads.facts.has(Facts::SIGHT);
    let is_everyones = !asked.is_member(instance) || is_alike;
    Ok(Drawn { answer: drawn, look, root: snapshot.seen_root(), is_everyones, spent: None })
}

/// Draws a request, and counts it.
fn render(
    instance: &Instance,
    snapshot: &Snapshot,
    request: &RenderRequest<'_>,
) -> Result<RenderResponse> {
    let drawn = instance.renderer.render(snapshot, request);
    if !drawn.timing.rows.is_empty() {
        instance.profile.note(request.path, &drawn.timing, SystemTime::now());
    }
    check_failure(snapshot)?;
    count(&instance.metrics.renders);
    let failed = u64::from(drawn.failed_components);
    instance.metrics.failed_components.fetch_add(failed, Ordering::Relaxed);
    Ok(drawn)
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
        Some(error) => Err(match error.repair_hint() {
            Some(hint) => Failure::damaged(hint),
            None => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }),
        None => Ok(()),
    }
}
