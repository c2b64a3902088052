//! Application of the messages of siblings.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use tokio::task::JoinHandle;
use tympan_web::body_limit::{is_body_timeout, limit_body};

use super::message::{
    EventMessage, EventQuery, FLUSH_EVENTS_HEADER, FlushEvent, LogPosition, MAX_MESSAGE_BYTES,
    MESSAGE_VERSION, PositionMismatch, SiblingMessage, page_request,
};
use super::received_position::{
    AttemptedMessage, MAX_RECEIVED_FILE_BYTES, RECEIVED_POSITIONS_FILE, ReceivedPositions,
};
use crate::cache::Docroot;
use crate::cache::response_memory::{DispatcherResponse, ResponseMemory};
use crate::config::front_settings::RequestGate;
use crate::dispatcher_parts::DispatcherParts;
use crate::dispatcher_runtime::DispatcherRuntime;
use crate::edge::own_response::own_response;
use crate::edge::response_body::full_body;
use crate::farm_state::FarmState;
use crate::flush::authorization::is_flush_allowed;
use crate::flush::batch::FlushBatcher;
use crate::flush::invalidate_handler;
use crate::flush::{FlushService, PurgeCause};
use crate::observe::log::LogLevel;
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::request::rate_limit::check_rate_limit;
use crate::request::view::RequestView;
use crate::upstream::BODY_TIMEOUT;
use crate::upstream::request_coalescing::FetchCoalescer;

/// The maximum time for which the handler program delays the response to events: well below the timeout of the sibling,
/// which would send all of them again.
const HANDLER_WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// The reason why a message was rejected.
#[derive(Debug)]
pub(super) enum MessageRejection {
    /// This dispatcher is at another position.
    PositionMismatch(Option<LogPosition>),
    /// The files could not be changed.
    Failed,
}

/// Receives the flushes that siblings pass on, and answers their queries.
#[derive(Debug)]
pub(crate) struct SiblingFlushReceiver {
    flushes: Arc<FlushService>,
    batcher: Arc<FlushBatcher>,
    pub(super) farms: Arc<[Arc<FarmState>]>,
    request_gate: Arc<RequestGate>,
    runtime: Arc<DispatcherRuntime>,
    fetch_coalescer: Arc<FetchCoalescer>,
    response_memory: Arc<ResponseMemory>,
    metrics: Arc<DispatcherMetrics>,
    pub(super) instance_id: Arc<str>,
}

impl SiblingFlushReceiver {
    pub(crate) fn new(
        parts: &DispatcherParts,
        flushes: Arc<FlushService>,
        batcher: Arc<FlushBatcher>,
    ) -> Self {
        Self {
            flushes,
            batcher,
            farms: Arc::clone(&parts.farms),
            request_gate: Arc::clone(&parts.request_gate),
            runtime: Arc::clone(&parts.runtime),
            fetch_coalescer: Arc::clone(&parts.fetch_coalescer),
            response_memory: Arc::clone(&parts.response_memory),
            metrics: Arc::clone(&parts.metrics),
            instance_id: Arc::clone(&parts.instance_id),
        }
    }

    /// Responds to a sibling's request.
    pub(crate) async fn handle_sibling_request(
        self: &Arc<Self>,
        view: &RequestView,
        body: Incoming,
    ) -> DispatcherResponse {
        let mut response = self.handle_sibling_message(view, body).await;
        // Distinguishes this response from those of other servers.
        response
            .headers_mut()
            .insert(FLUSH_EVENTS_HEADER, HeaderValue::from_static(MESSAGE_VERSION));
        response
    }

    async fn handle_sibling_message(
        self: &Arc<Self>,
        view: &RequestView,
        body: Incoming,
    ) -> DispatcherResponse {
        let farm = message_farm(&view.headers);
        let farm = farm.and_then(|name| self.farms.iter().find(|farm| farm.config.name == name));
        // A client that may not flush must learn nothing about the farms.
        let keys = &self.runtime.flush_keys;
        let Some(farm) = farm.filter(|farm| is_flush_allowed(keys, &farm.config, view)) else {
            if let Some(response) = check_rate_limit(&self.request_gate, &self.metrics, view.client)
            {
                return response;
            }
            self.metrics.increment(DispatcherCounter::FlushesRefused);
            self.runtime
                .write_log(LogLevel::Warn, || format!("Flushing rejected from {}", view.client));
            return own_response(StatusCode::FORBIDDEN);
        };
        let Some(root) = &farm.docroot else { return own_response(StatusCode::NOT_FOUND) };
        // Another process handles the flushes now.
        if self.fetch_coalescer.has_stopped_storing() {
            return own_response(StatusCode::SERVICE_UNAVAILABLE);
        }
        let body = limit_body(body, MAX_MESSAGE_BYTES).with_idle_timeout(BODY_TIMEOUT);
        let body = match body.with_min_read_rate(self.request_gate.min_body_rate).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if is_body_timeout(&*error) => {
                return own_response(StatusCode::REQUEST_TIMEOUT);
            }
            Err(_) => return own_response(StatusCode::PAYLOAD_TOO_LARGE),
        };
        let Some(sibling_message) = SiblingMessage::parse(&body) else {
            self.runtime.write_log(LogLevel::Warn, || {
                format!("Message of {} refused: malformed", view.client)
            });
            return own_response(StatusCode::BAD_REQUEST);
        };
        let (SiblingMessage::Pass(EventMessage { instance, .. })
        | SiblingMessage::Ask(EventQuery { instance, .. })) = &sibling_message;
        if **instance == *self.instance_id {
            return own_response(StatusCode::LOOP_DETECTED);
        }
        if let Some(peers) = &farm.flush_siblings {
            peers.notify_contact();
        }
        match sibling_message {
            SiblingMessage::Ask(ask) => self.answer_event_query(farm, ask).await,
            SiblingMessage::Pass(message) => {
                // The sibling may disconnect; an operation that has begun is completed.
                let (receiver, farm, root) = (Arc::clone(self), Arc::clone(farm), Arc::clone(root));
                let application = tokio::spawn(async move {
                    let (log, origin) =
                        (root.event_log_of(&farm.config.name), message.origin.clone());
                    if farm.flush_siblings.is_some() {
                        let fetches = Arc::clone(&receiver.fetch_coalescer);
                        let is_ours = move || !fetches.has_stopped_storing();
                        let avoid = move || log.avoid_origin_conflict(&root, &origin, is_ours);
                        tokio::task::spawn_blocking(avoid).await.ok();
                    }
                    receiver.apply_sibling_message(&farm, message).await
                });
                match application.await {
                    Ok(Ok(())) => json_response(StatusCode::OK, "{}".to_owned()),
                    Ok(Err(MessageRejection::PositionMismatch(position))) => {
                        let text = serde_json::to_string(&PositionMismatch { position });
                        json_response(StatusCode::CONFLICT, text.unwrap_or_default())
                    }
                    Ok(Err(MessageRejection::Failed)) | Err(_) => {
                        own_response(StatusCode::INTERNAL_SERVER_ERROR)
                    }
                }
            }
        }
    }

    /// Responds to a sibling's query with the events since its last message.
    async fn answer_event_query(
        &self,
        farm: &Arc<FarmState>,
        ask: EventQuery,
    ) -> DispatcherResponse {
        let Some(root) = farm.docroot.clone().filter(|_| farm.flush_siblings.is_some()) else {
            return own_response(StatusCode::NOT_FOUND);
        };
        let (log, instance) = (root.event_log_of(&farm.config.name), self.instance_id.to_string());
        let find = move || {
            let (question, _) = log.message_after(&root, None, &instance);
            let received = ask.heard.into_iter().find(|(origin, _)| *origin == question.origin);
            log.message_after(&root, Some(received.map(|(_, position)| position)), &instance).0
        };
        let message = tokio::task::spawn_blocking(find).await;
        match message.ok().and_then(|message| serde_json::to_string(&message).ok()) {
            Some(text) => json_response(StatusCode::OK, text),
            None => own_response(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Applies a sibling's message if it follows the received position.
    ///
    /// # Errors
    /// On failure nothing is recorded as received, and the whole message is sent again.
    pub(super) async fn apply_sibling_message(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        message: EventMessage,
    ) -> Result<(), MessageRejection> {
        let root = farm.docroot.as_ref().ok_or(MessageRejection::Failed)?;
        // Apply one message at a time.
        let mut failed = root.failed_messages.lock().await;
        let docroot = {
            let root = Arc::clone(root);
            tokio::task::spawn_blocking(move || {
                let docroot = root.docroot_for_writing()?;
                load_received_positions(&docroot);
                Ok::<_, std::io::Error>(docroot)
            })
        };
        let Ok(Ok(docroot)) = docroot.await else { return Err(MessageRejection::Failed) };
        let position = received_position(&docroot, &message.origin);
        if position != message.prev {
            return Err(MessageRejection::PositionMismatch(position));
        }
        let EventMessage { origin, next, events, .. } = message;
        let (count, now) = (events.len() as u64, self.runtime.clock.tick());
        let tried = AttemptedMessage {
            next_position: next.clone(),
            invalidates_all: events.contains(&FlushEvent::All),
        };
        let since = failed.first_attempt(&origin, &tried);
        if let Err(error) = self.apply_events(farm, &events, since).await {
            failed.record_failure(&origin, tried, since.unwrap_or(now));
            if since.is_none() {
                tracing::warn!(farm = %farm.config.name, reason = %error,
                    "cannot apply flushes of a sibling; it sends them again");
            }
            return Err(MessageRejection::Failed);
        }
        failed.forget(&origin);
        self.metrics.add(DispatcherCounter::SiblingFlushes, count);
        if position.as_ref() == Some(&next) {
            return Ok(());
        }
        let note = move || {
            let text = {
                let mut positions = docroot.received_positions.lock();
                let positions = positions.get_or_insert_with(ReceivedPositions::default);
                positions.record_position(&origin, next);
                positions.to_text()
            };
            docroot.write_own_file(RECEIVED_POSITIONS_FILE, &text, 0o600)
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(note).await {
            // It is remembered for the lifetime of this process; after a restart the same events arrive again, which is
            // safe.
            tracing::warn!(farm = %farm.config.name, reason = %error, "cannot record the received flushes of \
                siblings");
        }
        Ok(())
    }

    /// Applies events; `since` is the time of the first attempt, if it failed.
    async fn apply_events(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        events: &[FlushEvent],
        since: Option<SystemTime>,
    ) -> std::io::Result<()> {
        let events = events.iter().map(|event| self.apply_event(farm, event, since));
        let done = futures_util::future::join_all(events).await;
        let (mut handling, mut failure) = (Vec::new(), None);
        for outcome in done {
            match outcome {
                Ok(call) => handling.extend(call),
                Err(error) => failure = Some(error),
            }
        }
        invalidate_handler::wait_for_calls(handling, &farm.config.name, HANDLER_WAIT_TIMEOUT).await;
        failure.map_or(Ok(()), Err)
    }

    /// Applies an event; returns the call of the handler program, which continues independently.
    async fn apply_event(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        event: &FlushEvent,
        since: Option<SystemTime>,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        let unsound = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        match event {
            FlushEvent::Flush(flush) => {
                let message = flush.to_flush_message().ok_or_else(unsound)?;
                self.runtime.write_log(LogLevel::Info, || {
                    let (action, handle) = (message.action.as_str(), &message.handle);
                    format!("Activation passed on by a sibling: action={action} [{handle}]")
                });
                self.flushes.apply_flush(farm, message).await
            }
            FlushEvent::Page(target) => {
                let view = page_request(target).ok_or_else(unsound)?;
                // A page that is not cached here has no file.
                self.flushes
                    .purge_page(farm, &view, PurgeCause::Request)
                    .await
                    .map_or(Ok(None), |purged| purged.map(|_| None))
            }
            FlushEvent::Keys(keys) => {
                let purged = self.flushes.purge_by_keys(farm, keys.clone()).await;
                purged.map_or(Ok(None), |purged| purged.map(|_| None))
            }
            FlushEvent::Stats => self
                .invalidate_scope(farm, InvalidationScope::StatFiles, since)
                .await
                .map(|()| None),
            FlushEvent::All => {
                if since.is_none() {
                    self.metrics.increment(DispatcherCounter::SiblingResets);
                    tracing::warn!(farm = %farm.config.name,
                        "flushes of a sibling may have been missed; invalidating all files");
                }
                self.invalidate_scope(farm, InvalidationScope::AllFiles, since).await.map(|()| None)
            }
        }
    }

    /// Invalidates files. After a failed attempt only the rest is completed: files requested after `since` are as new
    /// as the invalidation can make them.
    async fn invalidate_scope(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        scope: InvalidationScope,
        since: Option<SystemTime>,
    ) -> std::io::Result<()> {
        let (receiver, farm) = (Arc::clone(self), Arc::clone(farm));
        let work = move || {
            let Some(root) = &farm.docroot else { return Ok(()) };
            let now = receiver.runtime.clock.tick();
            if since.is_none() {
                root.record_flush(now);
                if scope == InvalidationScope::AllFiles {
                    receiver.fetch_coalescer.mark_flushed(|file| file.starts_with(root.path()));
                }
            }
            let docroot = root.docroot_for_writing()?;
            let mut result = receiver.batcher.touch_all_stat_files(&docroot, since);
            if scope == InvalidationScope::AllFiles {
                // A time in the future does not show when a file was requested.
                let is_meant = |at: SystemTime| since.is_none_or(|since| at <= since || at > now);
                let mut mark =
                    |file: &Path| result.merge(docroot.mark_file_stale_if(file, &is_meant));
                // Files stored from now on were requested after the missed flushes.
                let listed = docroot.list_servable_files(&mut mark);
                result.record_outcome(listed);
            }
            receiver.response_memory.record_change();
            receiver.metrics.add(DispatcherCounter::FilesMarked, result.marked_count as u64);
            result.first_error.map_or(Ok(()), Err)
        };
        let worked = tokio::task::spawn_blocking(work).await;
        worked.unwrap_or_else(|_panicked| Err(std::io::ErrorKind::Other.into()))
    }

    /// Returns the received positions of siblings.
    pub(super) async fn received_positions(
        &self,
        farm: &FarmState,
    ) -> Option<Vec<(String, LogPosition)>> {
        let root = Arc::clone(farm.docroot.as_ref()?);
        let read = move || {
            let docroot = root.docroot_for_writing().ok()?;
            load_received_positions(&docroot);
            let positions = docroot.received_positions.lock();
            positions.as_ref().map(|positions| positions.positions().to_vec())
        };
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

/// The files to invalidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InvalidationScope {
    /// Files that obey `.stat` files.
    StatFiles,
    /// Every file.
    AllFiles,
}

/// Loads the received positions, if necessary; does file I/O.
fn load_received_positions(docroot: &Docroot) {
    let mut positions = docroot.received_positions.lock();
    if positions.is_some() {
        return;
    }
    let text = docroot.read_own_file(RECEIVED_POSITIONS_FILE, MAX_RECEIVED_FILE_BYTES);
    let read = match &text {
        Ok(None) => Some(ReceivedPositions::default()),
        Ok(Some(text)) => ReceivedPositions::parse(text),
        Err(_) => None,
    };
    *positions = Some(read.unwrap_or_else(|| {
        let file = docroot.path().join(RECEIVED_POSITIONS_FILE);
        tracing::warn!(file = %file.display(), "cannot read the record of received flushes; starting over");
        ReceivedPositions::default()
    }));
}

fn received_position(docroot: &Docroot, origin: &str) -> Option<LogPosition> {
    docroot.received_positions.lock().as_ref()?.position(origin).cloned()
}

/// Returns the farm that a message is for; `None` for an unknown version.
fn message_farm(headers: &HeaderMap) -> Option<String> {
    let (version, name) = headers.get(FLUSH_EVENTS_HEADER)?.to_str().ok()?.split_once(' ')?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    (version == MESSAGE_VERSION).then(|| name.into_owned())
}

fn json_response(status: StatusCode, text: String) -> DispatcherResponse {
    let mut response = Response::new(full_body(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response.into()
}

#[cfg(test)]
mod tests {
    use super::super::sender::MESSAGE_RESPONSE_TIMEOUT;
    use crate::config::DispatcherConfig;
    use crate::config::any_syntax::ConfigSources;
    use crate::flush::propagation::message::{EventMessage, LogPosition};
    use crate::{Dispatcher, DispatcherRuntime};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_hangs_holds_no_sibling_up_for_as_long_as_it_waits() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("handler");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"h\" }} }}
                /cache {{ /docroot \"{}\" /invalidateHandler \"{}\" }} }} }}",
            folder.path().join("root").display(),
            program.display()
        );
        let loaded = DispatcherConfig::parse(
            text.as_bytes(),
            Path::new("test.any"),
            &ConfigSources::default(),
        );
        let inner =
            Dispatcher::new(loaded.config, DispatcherRuntime::default()).unwrap().current_state();
        let event = serde_json::from_str(r#"{"flush":{"action":"Activate","handle":"/a"}}"#);
        let message = EventMessage {
            origin: "o".to_owned(),
            instance: "i".to_owned(),
            prev: None,
            next: LogPosition { run: "r".to_owned(), count: 40 },
            events: vec![event.unwrap(); 40],
        };
        let began = Instant::now();
        inner
            .sibling_receiver
            .apply_sibling_message(&inner.parts.farms[0], message.clone())
            .await
            .unwrap();
        assert!(began.elapsed() < MESSAGE_RESPONSE_TIMEOUT / 2, "{:?}", began.elapsed());
        assert_eq!(
            inner.sibling_receiver.received_positions(&inner.parts.farms[0]).await,
            Some(vec![("o".to_owned(), message.next)])
        );
    }
}
