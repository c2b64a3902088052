//! Telling siblings what was flushed, each by a task of its own that goes on from where the sibling is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tympan_web::client::{Client, Options};
use tympan_web::flush_message::FLUSH_PATH;

use super::log::{FarmLog, Unlogged};
use super::message::{
    Ask, Elsewhere, Event, MAX_MESSAGE_BYTES, Message, PASSED, Position, Told, VERSION,
};
use super::receive::Untaken;
use crate::cache::Root;
use crate::config::{Farm, Render};
use crate::dispatcher::{FarmState, Inner, Runtime};
use crate::flight::Flights;
use crate::metrics::{Counter, Metrics};

/// How long a sibling may take to accept.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long it may take to carry events out: they may name many files.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// How long a flush is not answered for the sake of siblings that are in reach.
const FLUSH_PATIENCE: Duration = Duration::from_secs(2);
/// How long a start waits for what siblings tell.
const START_PATIENCE: Duration = Duration::from_secs(5);
/// How often a sibling that has heard everything is asked whether that is so: it may have been restored from a backup.
const CALM_PAUSE: Duration = Duration::from_secs(10);
/// How often in a row a sibling may say that it is elsewhere before it is left alone for a while.
const MAX_TURNS: u32 = 3;
/// The pause after a failure; it doubles.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The siblings of a farm that are told.
#[derive(Debug)]
pub(crate) struct Peers {
    siblings: Vec<Arc<Sibling>>,
    /// Rings when a sibling shows that it is there.
    bell: Arc<Notify>,
}

/// A dispatcher that is told.
#[derive(Debug)]
struct Sibling {
    name: String,
    uri: String,
    host: Option<HeaderValue>,
    /// The version and the farm.
    mark: HeaderValue,
    token: Option<HeaderValue>,
    client: Client,
    standing: watch::Sender<Standing>,
}

/// How a sibling stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    contact: Contact,
    /// The number of the last event that it has carried out.
    heard: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    /// Nobody has tried yet.
    Unknown,
    Reached,
    Away,
    /// It is this dispatcher.
    Oneself,
}

/// How a sibling stands, for those who watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SiblingStatus {
    pub(crate) name: String,
    pub(crate) is_reached: bool,
    /// Events that it has not carried out yet.
    pub(crate) behind: u64,
}

/// What came of telling something.
enum Reply {
    /// It was carried out.
    Taken(Bytes),
    /// The sibling is at another position.
    Elsewhere(Option<Position>),
    Oneself,
    /// It refuses, or cannot.
    Refused(StatusCode),
    Nothing,
}

impl Peers {
    /// Returns the siblings of a farm that passes flushes on.
    pub(crate) fn of(farm: &Farm, runtime: &Runtime) -> Option<Self> {
        let has_docroot = farm.cache.as_ref().is_some_and(|cache| cache.docroot.is_some());
        if !farm.passes_flushes || farm.siblings.is_empty() || !has_docroot {
            return None;
        }
        let siblings = farm.siblings.iter();
        let siblings = siblings.filter_map(|one| Sibling::new(farm, one, runtime)).map(Arc::new);
        Some(Self { siblings: siblings.collect(), bell: Arc::default() })
    }

    /// Lets siblings be tried again at once that were away.
    pub(super) fn ring(&self) {
        self.bell.notify_waiters();
    }

    /// Starts to tell them.
    pub(crate) fn start(
        &self,
        (farm, inner): (&Arc<FarmState>, &Inner),
        runtime: &Handle,
    ) -> Vec<JoinHandle<()>> {
        let Some(root) = &farm.docroot else { return Vec::new() };
        let log = root.log_of(&farm.farm.name);
        let make = {
            let (log, root, flights) =
                (Arc::clone(&log), Arc::clone(root), Arc::clone(&inner.flights));
            runtime.spawn_blocking(move || log.make(&root, || !flights.is_closed()))
        };
        let tell = |sibling: &Arc<Sibling>| {
            let teller = Teller {
                sibling: Arc::clone(sibling),
                root: Arc::clone(root),
                log: Arc::clone(&log),
                farm: farm.farm.name.clone(),
                flights: Arc::clone(&inner.flights),
                bell: Arc::clone(&self.bell),
                metrics: Arc::clone(&inner.metrics),
                instance: inner.instance.to_string(),
            };
            runtime.spawn(teller.run())
        };
        self.siblings.iter().map(tell).chain([make]).collect()
    }

    /// Waits until the siblings in reach have carried out the event with this number, but not for long.
    async fn have_heard(&self, count: u64) {
        let heard = self.siblings.iter().map(|sibling| {
            let mut standing = sibling.standing.subscribe();
            async move {
                let is_done = |standing: &Standing| match standing.contact {
                    Contact::Unknown | Contact::Reached => standing.heard >= count,
                    Contact::Away | Contact::Oneself => true,
                };
                standing.wait_for(is_done).await.ok();
            }
        });
        let all = futures_util::future::join_all(heard);
        tokio::time::timeout(FLUSH_PATIENCE, all).await.ok();
    }

    /// Returns how the siblings stand towards the last event of the log.
    pub(crate) fn status(&self, last: u64) -> Vec<SiblingStatus> {
        let others = self.siblings.iter().map(|sibling| (sibling, *sibling.standing.borrow()));
        let others = others.filter(|(_, standing)| standing.contact != Contact::Oneself);
        let status = |(sibling, standing): (&Arc<Sibling>, Standing)| SiblingStatus {
            name: sibling.name.clone(),
            is_reached: standing.contact == Contact::Reached,
            behind: last.saturating_sub(standing.heard),
        };
        others.map(status).collect()
    }
}

impl Sibling {
    fn new(farm: &Farm, render: &Render, runtime: &Runtime) -> Option<Self> {
        let (hostname, port) = (&render.hostname, render.port);
        let scheme = if render.is_secure { "https" } else { "http" };
        let name = utf8_percent_encode(&farm.name, NON_ALPHANUMERIC);
        let token = farm.cache.as_ref().and_then(|cache| cache.flush_token.as_deref());
        let client = Client::new(Options {
            connect_timeout: Some(render.timeout.unwrap_or(CONNECT_PATIENCE).min(CONNECT_PATIENCE)),
            response_timeout: Some(ANSWER_PATIENCE),
            trust: runtime.trust.clone(),
            ..Options::default()
        });
        let standing = Standing { contact: Contact::Unknown, heard: 0 };
        Some(Self {
            name: render.name.clone(),
            uri: format!("{scheme}://{hostname}:{port}{FLUSH_PATH}"),
            host: HeaderValue::from_str(&format!("{hostname}:{port}")).ok(),
            mark: HeaderValue::from_str(&format!("{VERSION} {name}")).ok()?,
            token: token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok()),
            client,
            standing: watch::Sender::new(standing),
        })
    }

    async fn tell(&self, told: &Told) -> Reply {
        let Ok(body) = serde_json::to_vec(told) else { return Reply::Nothing };
        let mut headers = HeaderMap::new();
        headers.insert(PASSED, self.mark.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.extend(self.host.clone().map(|host| (header::HOST, host)));
        headers.extend(self.token.clone().map(|token| (header::AUTHORIZATION, token)));
        let mut request = Request::new(Full::from(body));
        *request.method_mut() = Method::POST;
        let Ok(uri) = self.uri.parse() else { return Reply::Nothing };
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let Ok(answer) = self.client.send(request).await else { return Reply::Nothing };
        let status = answer.status();
        let is_of_sibling = answer.headers().get(PASSED).is_some_and(|version| version == VERSION);
        let max = usize::try_from(MAX_MESSAGE_BYTES).unwrap_or(usize::MAX);
        let body = Limited::new(answer.into_body(), max).collect();
        let Ok(Ok(body)) = tokio::time::timeout(ANSWER_PATIENCE, body).await else {
            return Reply::Nothing;
        };
        let body = body.to_bytes();
        match status {
            // Another server may answer anything with anything.
            _ if !is_of_sibling => Reply::Refused(status),
            StatusCode::OK => Reply::Taken(body),
            StatusCode::LOOP_DETECTED => Reply::Oneself,
            StatusCode::CONFLICT => match serde_json::from_slice::<Elsewhere>(&body) {
                Ok(Elsewhere { position }) => Reply::Elsewhere(position),
                Err(_) => Reply::Refused(status),
            },
            _ => Reply::Refused(status),
        }
    }

    fn stand(&self, contact: Contact, heard: Option<u64>) -> bool {
        let mut was_other = false;
        self.standing.send_if_modified(|standing| {
            was_other = standing.contact != contact;
            let new = Standing { contact, heard: heard.unwrap_or(standing.heard) };
            let is_new = *standing != new;
            *standing = new;
            is_new
        });
        was_other
    }
}

/// Who tells one sibling.
struct Teller {
    sibling: Arc<Sibling>,
    root: Arc<Root>,
    log: Arc<FarmLog>,
    farm: String,
    flights: Arc<Flights>,
    bell: Arc<Notify>,
    metrics: Arc<Metrics>,
    instance: String,
}

impl Teller {
    async fn run(self) {
        let mut grown = self.log.subscribe();
        // What the sibling has heard is not known yet.
        let mut position: Option<Option<Position>> = None;
        let mut pause = MIN_PAUSE;
        let (mut was_too_large, mut turns) = (false, 0);
        loop {
            grown.borrow_and_update();
            let is_instead = std::mem::take(&mut was_too_large);
            let Some((message, has_more)) = self.message(position.clone(), is_instead).await else {
                self.sibling.stand(Contact::Away, None);
                return;
            };
            let (next, events) = (message.next.clone(), message.events.len());
            let told = Told::Pass(message);
            let bell = self.bell.notified();
            let outcome = match self.sibling.tell(&told).await {
                Reply::Taken(_) => {
                    turns = 0;
                    self.metrics.add(Counter::FlushesPassed, events as u64);
                    self.reached(Some(next.count));
                    position = Some(Some(next));
                    Ok(has_more)
                }
                // It says where it is, and that is another place than a moment ago.
                Reply::Elsewhere(other)
                    if position.as_ref() != Some(&other) && turns < MAX_TURNS =>
                {
                    turns += 1;
                    self.reached(None);
                    position = Some(other);
                    Ok(true)
                }
                Reply::Oneself => {
                    self.sibling.stand(Contact::Oneself, None);
                    return;
                }
                Reply::Elsewhere(_) => Err(Some(StatusCode::CONFLICT)),
                Reply::Refused(status) => Err(Some(status)),
                Reply::Nothing => Err(None),
            };
            match outcome {
                Ok(true) => pause = MIN_PAUSE,
                Ok(false) => {
                    pause = MIN_PAUSE;
                    if !calm(&mut grown, &self.flights).await {
                        return;
                    }
                }
                // Its bound for bodies is below ours; it must not stay behind for that.
                Err(Some(StatusCode::PAYLOAD_TOO_LARGE)) if !is_instead && events > 0 => {
                    was_too_large = true;
                }
                Err(status) => {
                    turns = 0;
                    self.failed(status);
                    rest(bell, status, pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
            }
        }
    }

    /// Returns what the sibling is told next, and whether there is more; nothing if another process tells it.
    async fn message(
        &self,
        position: Option<Option<Position>>,
        is_instead: bool,
    ) -> Option<(Message, bool)> {
        let (log, root) = (Arc::clone(&self.log), Arc::clone(&self.root));
        let (flights, instance) = (Arc::clone(&self.flights), self.instance.clone());
        let message = move || match position {
            // It has heard of the process that goes on with the log.
            Some(at) if flights.is_closed() && !log.knows(&root, at.as_ref()) => None,
            Some(at) if is_instead => Some((log.instead(&root, at.as_ref(), &instance), false)),
            at => Some(log.after(&root, at, &instance)),
        };
        tokio::task::spawn_blocking(message).await.ok().flatten()
    }

    fn reached(&self, heard: Option<u64>) {
        if self.sibling.stand(Contact::Reached, heard) {
            let (farm, sibling) = (&self.farm, &self.sibling.name);
            tracing::info!(%farm, render = %sibling, "a sibling is told what is flushed");
        }
    }

    fn failed(&self, status: Option<StatusCode>) {
        if !self.sibling.stand(Contact::Away, None) {
            return;
        }
        let (farm, sibling) = (&self.farm, &self.sibling.name);
        match status {
            Some(status) => tracing::warn!(%farm, render = %sibling, status = status.as_u16(),
                "a sibling refuses what is flushed; check its address, that both have the farm, and that this one may flush there"),
            None => tracing::warn!(%farm, render = %sibling,
                "a sibling cannot be reached; it is told later what is flushed"),
        }
    }
}

/// Waits until there is more to tell, or until it is time to ask, which only the process that keeps the log does; false if
/// neither will come.
async fn calm(grown: &mut watch::Receiver<u64>, flights: &Flights) -> bool {
    loop {
        tokio::select! {
            changed = grown.changed() => return changed.is_ok(),
            () = tokio::time::sleep(CALM_PAUSE) => if !flights.is_closed() { return true },
        }
    }
}

/// Waits after a failure until the sibling shows that it is there, or for so long.
async fn rest(bell: impl Future<Output = ()>, status: Option<StatusCode>, pause: Duration) {
    // One that refuses is there, and may ring each time it fails to tell something itself: two would drive each other.
    if status.is_some() {
        tokio::time::sleep(MIN_PAUSE).await;
    }
    tokio::select! {
        () = bell => {}
        () = tokio::time::sleep(pause) => {}
    }
}

/// Holds visitors up until siblings have told what came while this dispatcher was away. Siblings themselves are answered
/// all the time, so that those that start together do not wait for each other.
#[derive(Debug)]
pub(crate) struct Ready {
    is_set: AtomicBool,
    bell: watch::Sender<bool>,
}

impl Ready {
    pub(crate) fn new(is_set: bool) -> Self {
        Self { is_set: AtomicBool::new(is_set), bell: watch::Sender::new(is_set) }
    }

    pub(crate) async fn wait(&self) {
        if !self.is_set.load(Ordering::Acquire) {
            // The sender lives as long as this.
            self.bell.subscribe().wait_for(|is_set| *is_set).await.ok();
        }
    }
}

/// Lets visitors in when it is dropped, whatever became of the question.
struct Opening<'a>(&'a Ready);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.is_set.store(true, Ordering::Release);
        self.0.bell.send_replace(true);
    }
}

impl Inner {
    /// Logs an event for the siblings of a farm; returns its number if there are any.
    ///
    /// # Errors
    /// Then it must not be answered as done.
    pub(crate) async fn pass_on(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        event: Event,
    ) -> Result<Option<u64>, Unlogged> {
        if farm.peers.is_none() {
            return Ok(None);
        }
        let (inner, farm) = (Arc::clone(self), Arc::clone(farm));
        let note = move || inner.note_event(&farm, event);
        tokio::task::spawn_blocking(note).await.unwrap_or(Err(Unlogged::Failed))
    }

    /// As [`Inner::pass_on`], for what is found while a flush is carried out; does file work.
    ///
    /// # Errors
    /// If siblings that are away might never hear of it.
    pub(crate) fn note_for_siblings(&self, farm: &FarmState, event: Event) -> std::io::Result<()> {
        match (self.note_event(farm, event.clone()), &farm.docroot) {
            // Its flush came before this process left; those in reach hear of it.
            (Err(Unlogged::Left), Some(root)) => root.log_of(&farm.farm.name).tell(root, event),
            (Err(_), _) => return Err(std::io::ErrorKind::Other.into()),
            (Ok(_), _) => {}
        }
        Ok(())
    }

    /// Logs an event for the siblings of a farm, if it has any; does file work.
    fn note_event(&self, farm: &FarmState, event: Event) -> Result<Option<u64>, Unlogged> {
        if farm.peers.is_none() {
            return Ok(None);
        }
        // A root that cannot be opened was reported at the start.
        let root = farm.docroot.as_ref().ok_or(Unlogged::Failed)?;
        let log = root.log_of(&farm.farm.name);
        log.append(root, event, || !self.flights.is_closed()).map(Some)
    }

    /// Waits until nothing is added to logs any more that another process goes on with; the cache is closed already.
    pub(crate) fn leave_logs(&self) {
        for farm in &self.farms {
            if let (Some(_), Some(root)) = (&farm.peers, &farm.docroot) {
                root.log_of(&farm.farm.name).leave();
            }
        }
    }

    /// Waits until siblings in reach have carried out an event.
    pub(crate) async fn siblings_have(&self, farm: &FarmState, event: Option<u64>) {
        if let (Some(peers), Some(count)) = (&farm.peers, event) {
            peers.have_heard(count).await;
        }
    }

    /// Asks siblings what came while this dispatcher was away, carries it out, and lets visitors in.
    pub(crate) async fn catch_up(self: Arc<Self>) {
        let _opening = Opening(&self.ready);
        let all = self.farms.iter().flat_map(|farm| {
            let siblings = farm.peers.iter().flat_map(|peers| &peers.siblings);
            siblings.map(|sibling| self.ask_sibling(Arc::clone(farm), Arc::clone(sibling)))
        });
        let all = futures_util::future::join_all(all);
        if tokio::time::timeout(START_PATIENCE, all).await.is_err() {
            tracing::warn!(
                "siblings take long to tell what was flushed; visitors are served meanwhile"
            );
        }
    }

    async fn ask_sibling(self: &Arc<Self>, farm: Arc<FarmState>, sibling: Arc<Sibling>) {
        loop {
            let Some(heard) = self.heard_of(&farm).await else { return };
            let ask = Ask { instance: self.instance.to_string(), heard: heard.clone() };
            let ask = Told::Ask(ask);
            let Reply::Taken(bytes) = sibling.tell(&ask).await else { return };
            let message = serde_json::from_slice::<Message>(&bytes).ok();
            let Some(message) = message.filter(Message::is_sound) else { return };
            let is_new = !message.events.is_empty();
            let Some(root) = farm.docroot.clone() else { return };
            let (log, origin) = (root.log_of(&farm.farm.name), message.origin.clone());
            let is_own = tokio::task::spawn_blocking(move || log.is_named(&root, &origin));
            // The process that this one takes the place of has nothing new to tell.
            if is_own.await.unwrap_or(true) {
                return;
            }
            let known = heard.into_iter().find(|(origin, _)| *origin == message.origin);
            let before = known.map(|(_, position)| position);
            // Visitors may be let in meanwhile; what has begun is carried out.
            let (inner, own) = (Arc::clone(self), Arc::clone(&farm));
            let taken = tokio::spawn(async move { inner.take(&own, message).await });
            match taken.await {
                Ok(Ok(())) if is_new => {}
                // The sibling tells by itself as well, and was faster; more may follow.
                Ok(Err(Untaken::Elsewhere(now))) if now != before => {}
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CALM_PAUSE, MAX_PAUSE, MIN_PAUSE, calm, rest};
    use crate::any::Sources;
    use crate::config::Config;
    use crate::flight::Flights;
    use crate::gossip::{Event, Unlogged};
    use crate::{Dispatcher, Runtime};
    use http::StatusCode;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::watch;
    use tokio::time::{Instant, timeout};

    /// A dispatcher that passes flushes on, with this document root.
    fn telling(docroot: &Path) -> Dispatcher {
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"h\" }} }}
                /x-passFlushes \"1\" /x-siblings {{ /o {{ /hostname \"o\" }} }}
                /cache {{ /docroot \"{}\" }} }} }}",
            docroot.display()
        );
        let loaded = Config::parse(text.as_bytes(), Path::new("test.any"), &Sources::default());
        Dispatcher::new(loaded.config, Runtime::default()).unwrap()
    }

    #[tokio::test]
    async fn a_farm_without_its_document_root_does_not_forget_flushes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::write(&root, "no folder").unwrap();
        let inner = telling(&root).current();
        let farm = &inner.farms[0];
        assert!(farm.docroot.is_none());
        assert_eq!(inner.pass_on(farm, Event::Stats).await, Err(Unlogged::Failed));
        std::fs::remove_file(&root).unwrap();
        let inner = telling(&root).current();
        assert_eq!(inner.pass_on(&inner.farms[0], Event::Stats).await, Ok(Some(1)));
    }

    #[tokio::test]
    async fn what_is_found_later_is_written_down_or_told_by_who_left() {
        let folder = tempfile::tempdir().unwrap();
        let dispatcher = telling(folder.path());
        let inner = dispatcher.current();
        let (farm, root) = (&inner.farms[0], inner.farms[0].docroot.clone().unwrap());
        let log = root.log_of("site");
        inner.note_for_siblings(farm, Event::Stats).unwrap();
        let mut files =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let file = files.find(|file| file.to_str().unwrap().contains(".tympan-passed-")).unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(inner.note_for_siblings(farm, Event::Stats).is_err());
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, &written).unwrap();
        dispatcher.leave_cache();
        let before = log.last();
        inner.note_for_siblings(farm, Event::Stats).unwrap();
        assert_eq!(log.last(), before + 1);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), written);
    }

    #[tokio::test(start_paused = true)]
    async fn who_left_asks_no_more_and_tells_what_comes() {
        let (flights, grown) = (Arc::new(Flights::default()), watch::Sender::new(0));
        let mut watched = grown.subscribe();
        assert!(calm(&mut watched, &flights).await, "it asks");
        flights.close();
        assert!(timeout(CALM_PAUSE * 10, calm(&mut watched, &flights)).await.is_err());
        grown.send_replace(1);
        assert!(timeout(CALM_PAUSE, calm(&mut watched, &flights)).await.unwrap());
        drop(grown);
        assert!(!calm(&mut watched, &flights).await);
    }

    #[tokio::test(start_paused = true)]
    async fn who_refuses_and_rings_is_not_asked_at_once() {
        let rested = async |is_rung: bool, status: Option<u16>| {
            let (began, status) = (Instant::now(), status.map(StatusCode::from_u16));
            let bell = async {
                if !is_rung {
                    std::future::pending::<()>().await;
                }
            };
            rest(bell, status.transpose().unwrap(), MAX_PAUSE).await;
            began.elapsed()
        };
        assert_eq!(rested(true, None).await, Duration::ZERO);
        assert!(rested(true, Some(500)).await >= MIN_PAUSE);
        assert!(rested(false, None).await >= MAX_PAUSE);
        assert!(rested(false, Some(500)).await >= MIN_PAUSE + MAX_PAUSE);
    }
}
