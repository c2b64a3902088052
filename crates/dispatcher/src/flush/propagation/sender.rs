//! Sending of flushes to siblings, each by its own task that continues from the sibling's position.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::flush_message::FLUSH_PATH;

use super::event_log::FarmEventLog;
use super::message::{
    EventMessage, FLUSH_EVENTS_HEADER, LogPosition, MAX_MESSAGE_BYTES, MESSAGE_VERSION,
    PositionMismatch, SiblingMessage,
};
use super::sibling_status::SiblingStatus;
use crate::cache::DocrootState;
use crate::config::{FarmConfig, RenderConfig};
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::upstream::request_coalescing::FetchCoalescer;

/// The timeout for connecting to a sibling.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The timeout for applying events: they may name many files.
pub(super) const MESSAGE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum time for which reachable siblings delay the response to a flush.
const FLUSH_WAIT_TIMEOUT: Duration = Duration::from_secs(2);
/// The interval at which an up-to-date sibling is queried for its position, because it may have been restored from a
/// backup.
const IDLE_QUERY_INTERVAL: Duration = Duration::from_secs(10);
/// The number of consecutive position mismatches after which a sibling is paused.
const MAX_POSITION_MISMATCHES: u32 = 3;
/// The initial pause after a failure; it doubles.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The siblings of a farm that receive its flushes.
#[derive(Debug)]
pub(crate) struct FarmSiblings {
    siblings: Vec<Arc<FlushSibling>>,
    /// Notified when a sibling shows that it is reachable.
    contact_notifier: Arc<Notify>,
}

/// The farm whose flushes are sent, and what the senders share with the dispatcher.
#[derive(Debug)]
pub(crate) struct SenderContext<'a> {
    pub(crate) farm: &'a str,
    pub(crate) root: &'a Arc<DocrootState>,
    pub(crate) fetches: &'a Arc<FetchCoalescer>,
    pub(crate) metrics: &'a Arc<DispatcherMetrics>,
    pub(crate) instance_id: &'a str,
}

/// A dispatcher that receives flushes.
#[derive(Debug)]
pub(super) struct FlushSibling {
    name: String,
    uri: String,
    host_header: Option<HeaderValue>,
    /// The version and the farm name.
    events_header: HeaderValue,
    token: Option<HeaderValue>,
    client: HttpClient,
    progress: watch::Sender<SiblingProgress>,
}

/// The progress of a sibling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SiblingProgress {
    contact: SiblingContact,
    /// The number of the last event that it applied.
    applied_event: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SiblingContact {
    /// Not tried yet.
    Unknown,
    Reached,
    Unreachable,
    /// The sibling is this dispatcher itself.
    Itself,
}

/// The result of sending a message.
pub(super) enum SiblingReply {
    /// The message was applied.
    Applied(Bytes),
    /// The sibling is at another position.
    PositionMismatch(Option<LogPosition>),
    Itself,
    /// The sibling refuses the message or fails.
    Refused(StatusCode),
    NoReply,
}

impl FarmSiblings {
    /// Returns the siblings of a farm that passes flushes on; `None` for other farms.
    pub(crate) fn for_farm(farm: &FarmConfig, runtime: &DispatcherRuntime) -> Option<Self> {
        let has_docroot = farm.cache.as_ref().is_some_and(|cache| cache.docroot.is_some());
        if !farm.passes_flushes_to_siblings || farm.siblings.is_empty() || !has_docroot {
            return None;
        }
        let siblings = farm.siblings.iter();
        let siblings =
            siblings.filter_map(|render| FlushSibling::new(farm, render, runtime)).map(Arc::new);
        Some(Self { siblings: siblings.collect(), contact_notifier: Arc::default() })
    }

    pub(super) fn siblings(&self) -> &[Arc<FlushSibling>] {
        &self.siblings
    }

    /// Makes unreachable siblings be retried at once.
    pub(super) fn notify_contact(&self) {
        self.contact_notifier.notify_waiters();
    }

    /// Starts the sender tasks.
    pub(crate) fn start_senders(
        &self,
        context: &SenderContext<'_>,
        runtime: &Handle,
    ) -> Vec<JoinHandle<()>> {
        let log = context.root.event_log_of(context.farm);
        let make = {
            let (log, root, fetches) =
                (Arc::clone(&log), Arc::clone(context.root), Arc::clone(context.fetches));
            runtime
                .spawn_blocking(move || log.ensure_file(&root, || !fetches.has_stopped_storing()))
        };
        let tell = |sibling: &Arc<FlushSibling>| {
            let teller = SiblingSender {
                sibling: Arc::clone(sibling),
                root: Arc::clone(context.root),
                log: Arc::clone(&log),
                farm: context.farm.to_owned(),
                fetches: Arc::clone(context.fetches),
                contact_notifier: Arc::clone(&self.contact_notifier),
                metrics: Arc::clone(context.metrics),
                instance_id: context.instance_id.to_owned(),
            };
            runtime.spawn(teller.run())
        };
        self.siblings.iter().map(tell).chain([make]).collect()
    }

    /// Waits until the reachable siblings have applied the event with this number, up to a short timeout.
    pub(super) async fn wait_until_applied(&self, count: u64) {
        let progress_waits = self.siblings.iter().map(|sibling| {
            let mut standing = sibling.progress.subscribe();
            async move {
                let is_done = |standing: &SiblingProgress| match standing.contact {
                    SiblingContact::Unknown | SiblingContact::Reached => {
                        standing.applied_event >= count
                    }
                    SiblingContact::Unreachable | SiblingContact::Itself => true,
                };
                standing.wait_for(is_done).await.ok();
            }
        });
        let all = futures_util::future::join_all(progress_waits);
        tokio::time::timeout(FLUSH_WAIT_TIMEOUT, all).await.ok();
    }

    /// Returns the status of the siblings relative to the last event of the log.
    pub(crate) fn sibling_statuses(&self, last: u64) -> Vec<SiblingStatus> {
        let others = self.siblings.iter().map(|sibling| (sibling, *sibling.progress.borrow()));
        let others = others.filter(|(_, standing)| standing.contact != SiblingContact::Itself);
        let status = |(sibling, standing): (&Arc<FlushSibling>, SiblingProgress)| SiblingStatus {
            name: sibling.name.clone(),
            is_reached: standing.contact == SiblingContact::Reached,
            pending_events: last.saturating_sub(standing.applied_event),
        };
        others.map(status).collect()
    }
}

impl FlushSibling {
    fn new(farm: &FarmConfig, render: &RenderConfig, runtime: &DispatcherRuntime) -> Option<Self> {
        let (hostname, port) = (&render.hostname, render.port);
        let scheme = if render.is_secure { "https" } else { "http" };
        let name = utf8_percent_encode(&farm.name, NON_ALPHANUMERIC);
        let token = farm.cache.as_ref().and_then(|cache| cache.flush_token.as_deref());
        let client = HttpClient::new(ClientOptions {
            connect_timeout: Some(
                render.connect_timeout.unwrap_or(CONNECT_TIMEOUT).min(CONNECT_TIMEOUT),
            ),
            response_timeout: Some(MESSAGE_RESPONSE_TIMEOUT),
            tls_trust: runtime.trust.clone(),
            ..ClientOptions::default()
        });
        let standing = SiblingProgress { contact: SiblingContact::Unknown, applied_event: 0 };
        Some(Self {
            name: render.name.clone(),
            uri: format!("{scheme}://{hostname}:{port}{FLUSH_PATH}"),
            host_header: HeaderValue::from_str(&format!("{hostname}:{port}")).ok(),
            events_header: HeaderValue::from_str(&format!("{MESSAGE_VERSION} {name}")).ok()?,
            token: token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok()),
            client,
            progress: watch::Sender::new(standing),
        })
    }

    pub(super) async fn send_message(&self, sibling_message: &SiblingMessage) -> SiblingReply {
        let Ok(body) = serde_json::to_vec(sibling_message) else { return SiblingReply::NoReply };
        let mut headers = HeaderMap::new();
        headers.insert(FLUSH_EVENTS_HEADER, self.events_header.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.host_header.clone().map(|host| (header::HOST, host)));
        headers.extend(self.token.clone().map(|token| (header::AUTHORIZATION, token)));
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        let Ok(uri) = self.uri.parse() else { return SiblingReply::NoReply };
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let Ok(response) = self.client.send(request).await else { return SiblingReply::NoReply };
        let status = response.status();
        let is_of_sibling = response
            .headers()
            .get(FLUSH_EVENTS_HEADER)
            .is_some_and(|version| version == MESSAGE_VERSION);
        let max = usize::try_from(MAX_MESSAGE_BYTES).unwrap_or(usize::MAX);
        let body = Limited::new(response.into_body(), max).collect();
        let Ok(Ok(body)) = tokio::time::timeout(MESSAGE_RESPONSE_TIMEOUT, body).await else {
            return SiblingReply::NoReply;
        };
        let body = body.to_bytes();
        match status {
            // Another server may give any response.
            _ if !is_of_sibling => SiblingReply::Refused(status),
            StatusCode::OK => SiblingReply::Applied(body),
            StatusCode::LOOP_DETECTED => SiblingReply::Itself,
            StatusCode::CONFLICT => match serde_json::from_slice::<PositionMismatch>(&body) {
                Ok(PositionMismatch { position }) => SiblingReply::PositionMismatch(position),
                Err(_) => SiblingReply::Refused(status),
            },
            _ => SiblingReply::Refused(status),
        }
    }

    fn set_progress(&self, contact: SiblingContact, applied_event: Option<u64>) -> bool {
        let mut was_other = false;
        self.progress.send_if_modified(|standing| {
            was_other = standing.contact != contact;
            let new = SiblingProgress {
                contact,
                applied_event: applied_event.unwrap_or(standing.applied_event),
            };
            let is_new = *standing != new;
            *standing = new;
            is_new
        });
        was_other
    }
}

/// The sender for one sibling.
struct SiblingSender {
    sibling: Arc<FlushSibling>,
    root: Arc<DocrootState>,
    log: Arc<FarmEventLog>,
    farm: String,
    fetches: Arc<FetchCoalescer>,
    contact_notifier: Arc<Notify>,
    metrics: Arc<DispatcherMetrics>,
    instance_id: String,
}

impl SiblingSender {
    async fn run(self) {
        let mut grown = self.log.subscribe();
        // The sibling's position is not known yet.
        let mut position: Option<Option<LogPosition>> = None;
        let mut pause = MIN_RETRY_DELAY;
        let (mut was_too_large, mut turns) = (false, 0);
        loop {
            grown.borrow_and_update();
            let is_instead = std::mem::take(&mut was_too_large);
            let Some((message, has_more)) = self.next_message(position.clone(), is_instead).await
            else {
                self.sibling.set_progress(SiblingContact::Unreachable, None);
                return;
            };
            let (next, events) = (message.next.clone(), message.events.len());
            let sibling_message = SiblingMessage::Pass(message);
            let contact_signal = self.contact_notifier.notified();
            let outcome = match self.sibling.send_message(&sibling_message).await {
                SiblingReply::Applied(_) => {
                    turns = 0;
                    self.metrics.add(DispatcherCounter::FlushesForwarded, events as u64);
                    self.mark_reached(Some(next.count));
                    position = Some(Some(next));
                    Ok(has_more)
                }
                // The sibling reports a position that differs from its previous one.
                SiblingReply::PositionMismatch(reported_position)
                    if position.as_ref() != Some(&reported_position)
                        && turns < MAX_POSITION_MISMATCHES =>
                {
                    turns += 1;
                    self.mark_reached(None);
                    position = Some(reported_position);
                    Ok(true)
                }
                SiblingReply::Itself => {
                    self.sibling.set_progress(SiblingContact::Itself, None);
                    return;
                }
                SiblingReply::PositionMismatch(_) => Err(Some(StatusCode::CONFLICT)),
                SiblingReply::Refused(status) => Err(Some(status)),
                SiblingReply::NoReply => Err(None),
            };
            match outcome {
                Ok(true) => pause = MIN_RETRY_DELAY,
                Ok(false) => {
                    pause = MIN_RETRY_DELAY;
                    if !wait_for_events(&mut grown, &self.fetches).await {
                        return;
                    }
                }
                // Its body size limit is below ours; it must not fall behind because of that.
                Err(Some(StatusCode::PAYLOAD_TOO_LARGE)) if !is_instead && events > 0 => {
                    was_too_large = true;
                }
                Err(status) => {
                    turns = 0;
                    self.mark_failed(status);
                    wait_for_retry(contact_signal, status, pause).await;
                    pause = (pause * 2).min(MAX_RETRY_DELAY);
                }
            }
        }
    }

    /// Returns the next message for the sibling, and true if there is more; `None` if another process sends to it.
    async fn next_message(
        &self,
        position: Option<Option<LogPosition>>,
        is_instead: bool,
    ) -> Option<(EventMessage, bool)> {
        let (log, root) = (Arc::clone(&self.log), Arc::clone(&self.root));
        let (fetches, instance) = (Arc::clone(&self.fetches), self.instance_id.clone());
        let message = move || match position {
            // It knows the process that continues the log.
            Some(at)
                if fetches.has_stopped_storing() && !log.knows_position(&root, at.as_ref()) =>
            {
                None
            }
            Some(at) if is_instead => {
                Some((log.invalidate_all_message(&root, at.as_ref(), &instance), false))
            }
            at => Some(log.message_after(&root, at, &instance)),
        };
        tokio::task::spawn_blocking(message).await.ok().flatten()
    }

    fn mark_reached(&self, applied_event: Option<u64>) {
        if self.sibling.set_progress(SiblingContact::Reached, applied_event) {
            let (farm, sibling) = (&self.farm, &self.sibling.name);
            tracing::info!(%farm, render = %sibling, "sibling accepts flushes");
        }
    }

    fn mark_failed(&self, status: Option<StatusCode>) {
        if !self.sibling.set_progress(SiblingContact::Unreachable, None) {
            return;
        }
        let (farm, sibling) = (&self.farm, &self.sibling.name);
        match status {
            Some(status) => tracing::warn!(%farm, render = %sibling, status = status.as_u16(),
                "sibling refuses flushes; check its address, that both have the farm, and that this \
                 dispatcher may flush there"),
            None => tracing::warn!(%farm, render = %sibling,
                "cannot reach a sibling; sending it the flushes later"),
        }
    }
}

/// Waits until there are more events, or until it is time for a query, which only the process that maintains the log
/// sends; returns false if neither will happen.
async fn wait_for_events(grown: &mut watch::Receiver<u64>, fetches: &FetchCoalescer) -> bool {
    loop {
        tokio::select! {
            changed = grown.changed() => return changed.is_ok(),
            () = tokio::time::sleep(IDLE_QUERY_INTERVAL) => if !fetches.has_stopped_storing() { return true },
        }
    }
}

/// Waits after a failure until the sibling shows that it is reachable, or until the delay ends.
async fn wait_for_retry(
    contact_signal: impl Future<Output = ()>,
    status: Option<StatusCode>,
    pause: Duration,
) {
    // A sibling that refuses is reachable, and may signal contact on each of its own failures: two siblings would drive
    // each other.
    if status.is_some() {
        tokio::time::sleep(MIN_RETRY_DELAY).await;
    }
    tokio::select! {
        () = contact_signal => {}
        () = tokio::time::sleep(pause) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{
        IDLE_QUERY_INTERVAL, MAX_RETRY_DELAY, MIN_RETRY_DELAY, wait_for_events, wait_for_retry,
    };
    use crate::upstream::request_coalescing::FetchCoalescer;
    use http::StatusCode;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    #[tokio::test(start_paused = true)]
    async fn who_left_asks_no_more_and_tells_what_comes() {
        let (fetches, grown) = (Arc::new(FetchCoalescer::default()), watch::Sender::new(0));
        let mut watched = grown.subscribe();
        assert!(wait_for_events(&mut watched, &fetches).await, "it asks");
        fetches.stop_storing();
        assert!(
            timeout(IDLE_QUERY_INTERVAL * 10, wait_for_events(&mut watched, &fetches))
                .await
                .is_err()
        );
        grown.send_replace(1);
        assert!(
            timeout(IDLE_QUERY_INTERVAL, wait_for_events(&mut watched, &fetches)).await.unwrap()
        );
        drop(grown);
        assert!(!wait_for_events(&mut watched, &fetches).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_refuses_and_rings_is_not_asked_at_once() {
        let rested = async |is_rung: bool, status: Option<u16>| {
            let (began, status) = (Instant::now(), status.map(StatusCode::from_u16));
            let contact_signal = async {
                if !is_rung {
                    std::future::pending::<()>().await;
                }
            };
            wait_for_retry(contact_signal, status.transpose().unwrap(), MAX_RETRY_DELAY).await;
            began.elapsed()
        };
        assert_eq!(rested(true, None).await, Duration::ZERO);
        assert!(rested(true, Some(500)).await >= MIN_RETRY_DELAY);
        assert!(rested(false, None).await >= MAX_RETRY_DELAY);
        assert!(rested(false, Some(500)).await >= MIN_RETRY_DELAY + MAX_RETRY_DELAY);
    }
}
