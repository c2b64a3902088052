//! The change feed over HTTP: as JSON, page by page, at once or after waiting; or as server-sent events.
//!
//! Invariants
//! * The cursor is all that a client keeps: with `since`, or `Last-Event-ID` after a broken connection, it goes on
//!   behind what it has seen.
//! * A client that does not read is let go with the reason, instead of filling memory; it goes on with its last id.
//!
//! `docs/guides/changes.md` describes it for those who use it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use axum::body::Body as HttpBody;
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tympan_content::{
    ChangeFilter, ChangePage, Cursor, Date, FeedKind, Repository, RevisionChanges, Viewer,
};
use tympan_web::listen::Peer;

use crate::Instance;
use crate::api::endpoint::{
    Answer, BRANCH, Body, Call, Content, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::failure::{Failure, Result};
use crate::follow::{Follower, Woken};
use crate::login::SessionUse;

/// The most changes of one page.
const MAX_LIMIT: u64 = 10_000;
/// The longest wait of a request.
const MAX_WAIT: u64 = 60;
/// A sign of life at least this often.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events that wait for a client to read them.
const BUFFER: usize = 8;
/// How long a client may leave them unread.
const PATIENCE: Duration = Duration::from_secs(30);

const PARAMETERS: &[Parameter] = &[
    BRANCH,
    Parameter::new(
        "since",
        Kind::Cursor,
        "A cursor: `next` of the page before. `now` (the default) is behind the newest change, `oldest` behind the oldest revision from which all later ones are kept.",
    ),
    Parameter::new(
        "path",
        Kind::Patterns,
        "Only nodes at or below this path, or of this pattern: `*` is any part of a name, `**` any number of names. May be repeated.",
    ),
    Parameter::new("type", Kind::Texts, "Only nodes of this primary type. May be repeated."),
    Parameter::new(
        "kind",
        Kind::SomeWords(&["added", "removed", "changed", "moved", "reordered"]),
        "Only changes of this kind. May be repeated.",
    ),
    Parameter::new(
        "limit",
        Kind::Integer(1, MAX_LIMIT),
        "About how many changed nodes a page holds; it ends behind a whole document. Default 1000.",
    ),
    Parameter::new(
        "wait",
        Kind::Seconds(MAX_WAIT),
        "How long to wait for a change if there is none yet. Default `0s`.",
    ),
];

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/changes",
        id: "listChanges",
        about: "Tells what commits have changed since a cursor, exactly once and in order; with `Accept: \
                text/event-stream` goes on as long as the connection lasts.",
        parameters: PARAMETERS,
        body: Body::None,
        answers: ANSWERS,
        handler: Handler::Task(changes),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/changes",
        id: "followChanges",
        about: "The same as `/api/v1/changes`, where followers of content look for it.",
        parameters: PARAMETERS,
        body: Body::None,
        answers: ANSWERS,
        handler: Handler::Task(changes),
    },
];

const ANSWERS: &[Answer] = &[Answer {
    status: 200,
    about: "The changes, and the cursor behind them.",
    content: Content::JsonOrEvents("Changes"),
}];

/// What a stream ends with when the server stops.
const STOPPING: &str = "the server stops; go on with the last id when it is back";

/// What a client wants to hear of, and how it proved who it is.
#[derive(Clone)]
struct Wanted {
    repository: Repository,
    viewer: Viewer,
    user: String,
    headers: HeaderMap,
    peer: Option<Peer>,
    filter: ChangeFilter,
    limit: usize,
}

fn changes(call: Call) -> Pending {
    Box::pin(async move {
        let wanted = Wanted {
            repository: call.repository()?,
            viewer: call.viewer.clone(),
            user: call.user().to_owned(),
            headers: call.headers.clone(),
            peer: call.peer,
            filter: filter_of(&call)?,
            limit: call.number("limit", 1000),
        };
        let accept = call.header(&header::ACCEPT).unwrap_or_default();
        if accept.contains("text/event-stream") {
            let resumed = call.header(&HeaderName::from_static("last-event-id"));
            let since = resumed.or(call.text("since")).unwrap_or("now").to_owned();
            let follower = call.instance.follow(call.user())?;
            let cursor = cursor_of(&call.instance, &wanted, since).await?;
            // A cursor that leads nowhere is refused before the stream begins.
            next_page(&call.instance, &wanted, &cursor).await?;
            return Ok(Reply::Http(stream(call.instance, follower, wanted, cursor)));
        }
        let since = call.text("since").unwrap_or("now").to_owned();
        let cursor = cursor_of(&call.instance, &wanted, since).await?;
        let page = page_or_wait(&call, &wanted, cursor).await?;
        let revisions: Vec<Json> = page.revisions.iter().map(describe).collect();
        Ok(Reply::json(json!({
            "revisions": revisions,
            "next": page.next.to_string(),
            "root": page.next.root().to_string(),
            "isEnd": page.is_end,
        })))
    })
}

fn filter_of(call: &Call) -> Result<ChangeFilter> {
    let mut filter = ChangeFilter::default();
    for path in call.texts("path") {
        filter.add_path(path)?;
    }
    for name in call.texts("type") {
        filter.add_node_type(name);
    }
    for name in call.texts("kind") {
        let unknown = || Failure::bad_request(format!("`{name}` is no kind of change"));
        filter.add_kind(FeedKind::find(name).ok_or_else(unknown)?);
    }
    Ok(filter)
}

async fn cursor_of(instance: &Arc<Instance>, wanted: &Wanted, since: String) -> Result<Cursor> {
    let repository = wanted.repository.clone();
    instance
        .work(move |_| match since.as_str() {
            "now" => Ok(repository.newest_cursor()?),
            "oldest" => Ok(repository.oldest_cursor()?),
            text => Ok(text.parse()?),
        })
        .await
}

/// Refuses whoever has logged out meanwhile, or whose account is gone: a stream may outlive both.
async fn check_login(instance: &Arc<Instance>, wanted: &Wanted) -> Result<()> {
    let Wanted { user, headers, peer, .. } = wanted;
    let (client, now) = ((headers, *peer), SystemTime::now());
    let found = instance.logins.identify(client, SessionUse::Watch, now).await?;
    if found.is_some_and(|identity| identity.user == *user) {
        return Ok(());
    }
    Err(Failure::new(StatusCode::UNAUTHORIZED, "the login has ended"))
}

async fn next_page(
    instance: &Arc<Instance>,
    wanted: &Wanted,
    since: &Cursor,
) -> Result<ChangePage> {
    check_login(instance, wanted).await?;
    let (wanted, since) = (wanted.clone(), since.clone());
    let page = move |_: &Instance| {
        let Wanted { repository, viewer, filter, limit, .. } = &wanted;
        Ok(repository.changes(viewer, &since, filter, *limit)?)
    };
    instance.work(page).await
}

/// Returns the first page with something in it, or what there is when the time is over.
async fn page_or_wait(call: &Call, wanted: &Wanted, since: Cursor) -> Result<ChangePage> {
    let end = Instant::now() + call.seconds("wait");
    let mut follower = if call.seconds("wait").is_zero() {
        None
    } else {
        Some(call.instance.follow(call.user())?)
    };
    let mut cursor = since;
    loop {
        let page = next_page(&call.instance, wanted, &cursor).await?;
        if !page.revisions.is_empty() {
            return Ok(page);
        }
        cursor = page.next.clone();
        let Some(follower) = follower.as_mut().filter(|_| page.is_end) else {
            if page.is_end {
                return Ok(page);
            } else {
                continue;
            };
        };
        if timeout_at(end, follower.changed()).await != Ok(Woken::Changed) {
            return Ok(page);
        }
    }
}

/// Describes a revision.
fn describe(revision: &RevisionChanges) -> Json {
    let changes = revision.changes.iter().map(|change| {
        let properties = change
            .properties
            .iter()
            .map(|one| json!({ "name": one.name, "kind": one.kind.name() }));
        json!({
            "kind": change.kind.name(),
            "path": change.path.as_str(),
            "from": change.from.as_ref().map(|from| from.as_str()),
            "type": change.node_type,
            "properties": properties.collect::<Vec<_>>(),
        })
    });
    json!({
        "sequence": revision.sequence,
        "time": Date::from_system_time(revision.at).to_string(),
        "user": revision.user,
        "message": revision.message,
        "root": revision.root.to_string(),
        "cursor": revision.cursor.to_string(),
        "changes": changes.collect::<Vec<_>>(),
    })
}

/// Answers with events as long as the client reads them.
fn stream(instance: Arc<Instance>, follower: Follower, wanted: Wanted, cursor: Cursor) -> Response {
    let (events, receiver) = mpsc::channel(BUFFER);
    // The stream does not end before its last words are there.
    let open = events.clone();
    let last_words = Arc::new(Mutex::new(None));
    let feeding = Feeding { instance, follower, wanted, cursor, events };
    let words = Arc::clone(&last_words);
    tokio::spawn(async move {
        if let Err(Ended(reason)) = feeding.run().await {
            tracing::debug!(reason, "a follower of the changes was let go");
            *words.lock() =
                Some(Bytes::from(format!("event: end\ndata: {}\n\n", json!({ "reason": reason }))));
        }
        drop(open);
    });
    let mut response = Response::new(HttpBody::from_stream(Events { receiver, last_words }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Front ends must pass each event on as it comes.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Why a stream ended.
struct Ended(String);

/// One client's stream.
struct Feeding {
    instance: Arc<Instance>,
    follower: Follower,
    wanted: Wanted,
    cursor: Cursor,
    events: mpsc::Sender<Bytes>,
}

impl Feeding {
    async fn run(mut self) -> std::result::Result<(), Ended> {
        // Tells the client its place before anything has happened.
        self.send(format!("id: {}\nevent: begin\ndata: {{}}\n\n", self.cursor)).await?;
        loop {
            if self.follower.is_stopping() {
                return Err(Ended(STOPPING.to_owned()));
            }
            let page = next_page(&self.instance, &self.wanted, &self.cursor).await;
            let page = page.map_err(|failure| Ended(failure.message))?;
            for revision in &page.revisions {
                let event = format!(
                    "id: {}\nevent: change\ndata: {}\n\n",
                    revision.cursor,
                    describe(revision)
                );
                self.send(event).await?;
            }
            let is_further = page.next != self.cursor && page.revisions.is_empty();
            self.cursor = page.next;
            if is_further {
                // What was passed over need not be looked at again.
                self.send(format!("id: {}\nevent: place\ndata: {{}}\n\n", self.cursor)).await?;
            }
            if !page.is_end {
                continue;
            }
            loop {
                match timeout(HEARTBEAT, self.follower.changed()).await {
                    Ok(Woken::Changed) => break,
                    Ok(Woken::Stopping) => return Err(Ended(STOPPING.to_owned())),
                    Err(_) => {
                        let now = Date::from_system_time(SystemTime::now());
                        self.send(format!(": {now}\n\n")).await?;
                    }
                }
            }
        }
    }

    async fn send(&self, event: String) -> std::result::Result<(), Ended> {
        let sent = tokio::select! {
            biased;
            sent = timeout(PATIENCE, self.events.send(Bytes::from(event))) => sent,
            () = self.follower.stopping() => return Err(Ended(STOPPING.to_owned())),
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Ended("the client has gone".to_owned())),
            Err(_) => {
                let reason = format!("the client read nothing for {} s", PATIENCE.as_secs());
                Err(Ended(reason))
            }
        }
    }
}

/// The body of a stream: what was sent, then why it ended.
struct Events {
    receiver: mpsc::Receiver<Bytes>,
    last_words: Arc<Mutex<Option<Bytes>>>,
}

impl Stream for Events {
    type Item = std::result::Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.receiver.poll_recv(context) {
            Poll::Ready(None) => Poll::Ready(self.last_words.lock().take().map(Ok)),
            Poll::Ready(event) => Poll::Ready(event.map(Ok)),
            Poll::Pending => Poll::Pending,
        }
    }
}
