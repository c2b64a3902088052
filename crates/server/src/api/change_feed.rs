//! The change feed over HTTP: as pages of JSON, immediately or after waiting (long polling), or as server-sent events.
//!
//! Invariants
//! * The cursor is the only state of a client. With `since`, or with `Last-Event-ID` after a broken connection, the
//!   client resumes after the last change it received.
//! * A client that does not read is disconnected with the reason instead of filling memory. It resumes with its last
//!   id.
//!
//! `docs/guides/changes.md` is the guide for users.

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
    ChangeCursor, ChangeFilter, ChangePage, FeedChangeKind, JcrDate, Repository, RevisionChanges,
    Viewer,
};
use tympan_web::listen::ConnectionPeer;

use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, BRANCH_PARAMETER, Endpoint, EndpointHandler, EndpointMethod,
    EndpointParameter, ParameterKind, PendingApiResponse, RequestBodySpec, ResponseContent,
    ResponseSpec,
};
use crate::change_follower::{ChangeFollower, FollowerWakeup};
use crate::failure::{RequestFailure, Result};
use crate::login::SessionUse;

/// Maximum number of changes in a page.
const MAX_PAGE_SIZE: u64 = 10_000;
/// Maximum time that a request may wait, in seconds.
const MAX_WAIT_SECONDS: u64 = 60;
/// Maximum interval between two messages of a stream; a heartbeat is sent if there is nothing else.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of events buffered for a client.
const EVENT_BUFFER_SIZE: usize = 8;
/// How long a client may leave events unread before it is disconnected.
const CLIENT_READ_TIMEOUT: Duration = Duration::from_secs(30);

const FEED_PARAMETERS: &[EndpointParameter] = &[
    BRANCH_PARAMETER,
    EndpointParameter::new(
        "since",
        ParameterKind::Cursor,
        "A cursor: `next` of the previous page. `now` (the default) is after the newest change, `oldest` \
         after the oldest revision from which all later ones are kept.",
    ),
    EndpointParameter::new(
        "path",
        ParameterKind::Patterns,
        "Only nodes at or below this path, or matching this pattern: `*` is any part of a name, `**` any \
         number of names. May be repeated.",
    ),
    EndpointParameter::new(
        "type",
        ParameterKind::Texts,
        "Only nodes of this primary type. May be repeated.",
    ),
    EndpointParameter::new(
        "kind",
        ParameterKind::Keywords(&["added", "removed", "changed", "moved", "reordered"]),
        "Only changes of this kind. May be repeated.",
    ),
    EndpointParameter::new(
        "limit",
        ParameterKind::Integer(1, MAX_PAGE_SIZE),
        "Approximate number of changed nodes per page; a page ends after a complete document. Default 1000.",
    ),
    EndpointParameter::new(
        "wait",
        ParameterKind::Seconds(MAX_WAIT_SECONDS),
        "How long to wait for a change if there is none yet. Default `0s`.",
    ),
];

/// The API endpoints that this module defines.
pub(crate) const FEED_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/changes",
        id: "listChanges",
        description: "Returns the changes committed since a cursor, exactly once and in order; with `Accept: \
            text/event-stream`, as a stream that lasts as long as the connection.",
        parameters: FEED_PARAMETERS,
        body: RequestBodySpec::None,
        responses: FEED_RESPONSES,
        handler: EndpointHandler::Async(read_changes),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/changes",
        id: "followChanges",
        description: "The same as `/api/v1/changes`, for clients that expect this path.",
        parameters: FEED_PARAMETERS,
        body: RequestBodySpec::None,
        responses: FEED_RESPONSES,
        handler: EndpointHandler::Async(read_changes),
    },
];

const FEED_RESPONSES: &[ResponseSpec] = &[ResponseSpec {
    status: 200,
    description: "The changes, and the cursor after them.",
    content: ResponseContent::JsonOrEvents("Changes"),
}];

/// Final message of a stream when the server stops.
const SHUTDOWN_MESSAGE: &str =
    "the server is shutting down; resume with the last id when it is back";

/// The filter of a feed client and its credentials.
#[derive(Clone)]
struct FeedSubscription {
    repository: Repository,
    viewer: Viewer,
    user: String,
    headers: HeaderMap,
    peer: Option<ConnectionPeer>,
    filter: ChangeFilter,
    limit: usize,
}

fn read_changes(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let subscription = FeedSubscription {
            repository: call.open_branch()?,
            viewer: call.viewer.clone(),
            user: call.user_name().to_owned(),
            headers: call.headers.clone(),
            peer: call.peer,
            filter: change_filter_of(&call)?,
            limit: call.number_parameter("limit", 1000),
        };
        let accept = call.header(&header::ACCEPT).unwrap_or_default();
        if accept.contains("text/event-stream") {
            let resumed = call.header(&HeaderName::from_static("last-event-id"));
            let since = resumed.or(call.parameter("since")).unwrap_or("now").to_owned();
            let follower = follow_changes(&call)?;
            let cursor = resolve_cursor(&call.instance, &subscription, since).await?;
            // Refuse an invalid cursor before the stream begins.
            read_next_page(&call.instance, &subscription, &cursor).await?;
            return Ok(ApiResponse::Http(stream_events(
                call.instance,
                follower,
                subscription,
                cursor,
            )));
        }
        let since = call.parameter("since").unwrap_or("now").to_owned();
        let cursor = resolve_cursor(&call.instance, &subscription, since).await?;
        let page = wait_for_page(&call, &subscription, cursor).await?;
        let revisions: Vec<Json> = page.revisions.iter().map(revision_json).collect();
        Ok(ApiResponse::json(json!({
            "revisions": revisions,
            "next": page.next.to_string(),
            "root": page.next.root().to_string(),
            "isEnd": page.is_end,
        })))
    })
}

fn change_filter_of(call: &ApiRequest) -> Result<ChangeFilter> {
    let mut filter = ChangeFilter::default();
    for path in call.parameter_values("path") {
        filter.add_path(path)?;
    }
    for name in call.parameter_values("type") {
        filter.add_node_type(name);
    }
    for name in call.parameter_values("kind") {
        let unknown = || RequestFailure::bad_request(format!("`{name}` is not a kind of change"));
        filter.add_kind(FeedChangeKind::from_name(name).ok_or_else(unknown)?);
    }
    Ok(filter)
}

/// Registers the client as a follower for as long as it is connected.
fn follow_changes(call: &ApiRequest) -> Result<ChangeFollower> {
    let follower = call.instance.followers.follow(&call.instance.repository, call.user_name())?;
    if let Some(detection) = &call.disconnect_detection {
        detection.enable();
    }
    Ok(follower)
}

async fn resolve_cursor(
    instance: &Arc<Instance>,
    subscription: &FeedSubscription,
    since: String,
) -> Result<ChangeCursor> {
    let repository = subscription.repository.clone();
    instance
        .run_work(move |_| match since.as_str() {
            "now" => Ok(repository.newest_cursor()?),
            "oldest" => Ok(repository.oldest_cursor()?),
            text => Ok(text.parse()?),
        })
        .await
}

/// Refuses a client whose login has ended or whose account was removed; a stream may outlive both.
async fn check_login_valid(
    instance: &Arc<Instance>,
    subscription: &FeedSubscription,
) -> Result<()> {
    let FeedSubscription { user, headers, peer, .. } = subscription;
    let (client, now) = ((headers, *peer), SystemTime::now());
    let session_identity = instance.logins.identify(client, SessionUse::Stream, now).await?;
    if session_identity.is_some_and(|identity| identity.user == *user) {
        return Ok(());
    }
    Err(RequestFailure::new(StatusCode::UNAUTHORIZED, "the login is no longer valid"))
}

async fn read_next_page(
    instance: &Arc<Instance>,
    subscription: &FeedSubscription,
    since: &ChangeCursor,
) -> Result<ChangePage> {
    check_login_valid(instance, subscription).await?;
    let (subscription, since) = (subscription.clone(), since.clone());
    let page = move |_: &Instance| {
        let FeedSubscription { repository, viewer, filter, limit, .. } = &subscription;
        Ok(repository.changes(viewer, &since, filter, *limit)?)
    };
    instance.run_work(page).await
}

/// Returns the first page that is not empty, or the current page when the wait time is over.
async fn wait_for_page(
    call: &ApiRequest,
    subscription: &FeedSubscription,
    since: ChangeCursor,
) -> Result<ChangePage> {
    let end = Instant::now() + call.seconds_parameter("wait");
    let mut follower =
        if call.seconds_parameter("wait").is_zero() { None } else { Some(follow_changes(call)?) };
    let mut cursor = since;
    loop {
        let page = read_next_page(&call.instance, subscription, &cursor).await?;
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
        if timeout_at(end, follower.wait_for_change()).await != Ok(FollowerWakeup::Changed) {
            return Ok(page);
        }
    }
}

/// Describes a revision.
fn revision_json(revision: &RevisionChanges) -> Json {
    let changes = revision.changes.iter().map(|change| {
        let properties = change
            .properties
            .iter()
            .map(|property| json!({ "name": property.name, "kind": property.kind.name() }));
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
        "time": JcrDate::from_system_time(revision.time).to_string(),
        "user": revision.user,
        "message": revision.message,
        "root": revision.root.to_string(),
        "cursor": revision.cursor.to_string(),
        "changes": changes.collect::<Vec<_>>(),
    })
}

/// Streams events for as long as the client reads them.
fn stream_events(
    instance: Arc<Instance>,
    follower: ChangeFollower,
    subscription: FeedSubscription,
    cursor: ChangeCursor,
) -> Response {
    let (events, receiver) = mpsc::channel(EVENT_BUFFER_SIZE);
    // The stream must not end before its final message is queued.
    let open = events.clone();
    let last_words = Arc::new(Mutex::new(None));
    let feeding = FeedStream { instance, follower, subscription, cursor, event_sender: events };
    let words = Arc::clone(&last_words);
    tokio::spawn(async move {
        // A client that goes gives its permits back at once.
        let ended = tokio::select! {
            ended = feeding.run() => ended,
            () = open.closed() => Err(FeedStreamEnd("the client disconnected".to_owned())),
        };
        if let Err(FeedStreamEnd(reason)) = ended {
            tracing::debug!(reason, "change feed stream ended");
            *words.lock() =
                Some(Bytes::from(format!("event: end\ndata: {}\n\n", json!({ "reason": reason }))));
        }
        drop(open);
    });
    let mut response = Response::new(HttpBody::from_stream(FeedEventBody {
        event_receiver: receiver,
        final_event: last_words,
    }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Front-end proxies must pass on each event immediately.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The reason why a stream ended.
struct FeedStreamEnd(String);

/// The event stream of one client.
struct FeedStream {
    instance: Arc<Instance>,
    follower: ChangeFollower,
    subscription: FeedSubscription,
    cursor: ChangeCursor,
    event_sender: mpsc::Sender<Bytes>,
}

impl FeedStream {
    async fn run(mut self) -> std::result::Result<(), FeedStreamEnd> {
        // Report the cursor to the client before anything has happened.
        self.send_event(format!("id: {}\nevent: begin\ndata: {{}}\n\n", self.cursor)).await?;
        loop {
            if self.follower.is_stopping() {
                return Err(FeedStreamEnd(SHUTDOWN_MESSAGE.to_owned()));
            }
            let page = read_next_page(&self.instance, &self.subscription, &self.cursor).await;
            let page = page.map_err(|failure| FeedStreamEnd(failure.message))?;
            for revision in &page.revisions {
                let event = format!(
                    "id: {}\nevent: change\ndata: {}\n\n",
                    revision.cursor,
                    revision_json(revision)
                );
                self.send_event(event).await?;
            }
            let is_further = page.next != self.cursor && page.revisions.is_empty();
            self.cursor = page.next;
            if is_further {
                // Lets the client skip revisions that its filter already excluded.
                self.send_event(format!("id: {}\nevent: place\ndata: {{}}\n\n", self.cursor))
                    .await?;
            }
            if !page.is_end {
                continue;
            }
            loop {
                match timeout(HEARTBEAT_INTERVAL, self.follower.wait_for_change()).await {
                    Ok(FollowerWakeup::Changed) => break,
                    Ok(FollowerWakeup::Stopping) => {
                        return Err(FeedStreamEnd(SHUTDOWN_MESSAGE.to_owned()));
                    }
                    Err(_) => {
                        let now = JcrDate::from_system_time(SystemTime::now());
                        self.send_event(format!(": {now}\n\n")).await?;
                    }
                }
            }
        }
    }

    async fn send_event(&self, event: String) -> std::result::Result<(), FeedStreamEnd> {
        let sent = tokio::select! {
            biased;
            sent = timeout(CLIENT_READ_TIMEOUT, self.event_sender.send(Bytes::from(event))) => sent,
            () = self.follower.wait_for_stop() => return Err(FeedStreamEnd(SHUTDOWN_MESSAGE.to_owned())),
        };
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(FeedStreamEnd("the client disconnected".to_owned())),
            Err(_) => {
                let reason =
                    format!("the client read nothing for {} s", CLIENT_READ_TIMEOUT.as_secs());
                Err(FeedStreamEnd(reason))
            }
        }
    }
}

/// The body of a stream: the events sent, followed by the reason why it ended.
struct FeedEventBody {
    event_receiver: mpsc::Receiver<Bytes>,
    final_event: Arc<Mutex<Option<Bytes>>>,
}

impl Stream for FeedEventBody {
    type Item = std::result::Result<Bytes, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.event_receiver.poll_recv(context) {
            Poll::Ready(None) => Poll::Ready(self.final_event.lock().take().map(Ok)),
            Poll::Ready(event) => Poll::Ready(event.map(Ok)),
            Poll::Pending => Poll::Pending,
        }
    }
}
