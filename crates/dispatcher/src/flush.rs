//! Obeying flush messages.
//!
//! Order: who may flush; fetches of named files are overtaken; `.stat` files are touched; files are removed, those on the
//! re-fetch list marked; the handler program (`handler`) and the render are told; the answer, once siblings in reach that
//! are told have done the same; the re-fetch in the background. The stat files come first since a re-fetched file must be
//! newer than they are.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tympan_web::flush_message::{Action, FlushMessage};
use tympan_web::limit::{is_stalled, limited};

use crate::answer::{Exchange, refusal};
use crate::cache::Named;
use crate::cacheable::check_request;
use crate::config::{Cache, FlushMode};
use crate::dispatcher::{FarmState, Inner};
use crate::flush_keys::FlushKeys;
use crate::gossip::{Event, Unlogged};
use crate::handle::readings;
use crate::handler;
use crate::log::Level;
use crate::metrics::Counter;
use crate::page::{Body, full};
use crate::request::RequestView;
use crate::storm::fate;
use crate::tags::{SURROGATE_KEY, flushed_keys};
use crate::upstream::{BODY_PATIENCE, Call, CallBody};
use crate::variant;

/// The longest body of a flush.
const MAX_BODY_BYTES: u64 = 1024 * 1024;

/// How long a flush is not answered for the sake of the handler program.
const HANDLER_PATIENCE: Duration = Duration::from_secs(60);

/// A flush for one document root, all paths below it.
#[derive(Debug, Clone)]
pub(crate) struct Flush {
    pub(crate) message: FlushMessage,
    /// Which paths the handle may mean; at least one.
    pub(crate) handles: Vec<PathBuf>,
    /// Files on the re-fetch list.
    pub(crate) listed: BTreeSet<PathBuf>,
    /// Handles of these files' variants: whoever lists a page knows nothing of its queries.
    pub(crate) variants: Vec<PathBuf>,
}

/// Returns the handles of the variants of listed files.
fn variants_of(cache: &Cache, listed: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    if cache.key_params.rules.is_empty() {
        return Vec::new();
    }
    let pages = listed.iter().filter(|file| !variant::is_variant(file));
    pages.map(|file| variant::handle_of(file)).collect()
}

impl Inner {
    /// Obeys a flush and answers it.
    pub(crate) async fn flush(
        self: &Arc<Self>,
        exchange: &mut Exchange<'_>,
        body: Incoming,
        limit: u64,
    ) -> Response<Body> {
        let (farm, view) = (exchange.farm, exchange.view);
        self.log(Level::Debug, || format!("Found farm {} for flush", farm.farm.name));
        if !may_flush(&self.runtime.flush_keys, farm, view) {
            // A header alone makes a flush, and whoever may not flush has the rate of all others.
            if let Some(response) = self.limit_rate(view) {
                return response;
            }
            self.metrics.count(Counter::FlushesRefused);
            self.log(Level::Warn, || format!("Flushing rejected from {}", view.client));
            return refusal(StatusCode::FORBIDDEN);
        }
        let body = limited(body, limit.min(MAX_BODY_BYTES)).stalling_at_most(BODY_PATIENCE);
        let body = match body.keeping(self.gate.pace).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => {
                let is_late = is_stalled(&*error);
                let status = if is_late {
                    StatusCode::REQUEST_TIMEOUT
                } else {
                    StatusCode::PAYLOAD_TOO_LARGE
                };
                return refusal(status);
            }
        };
        let message = match FlushMessage::parse(&view.headers, &body) {
            Ok(message) => message,
            Err(fault) => {
                self.log(Level::Warn, || format!("Flush refused: {fault}"));
                return refusal(StatusCode::BAD_REQUEST);
            }
        };
        self.log(Level::Info, || {
            let (action, handle) = (message.action.as_str(), &message.handle);
            format!("Activation detected: action={action} [{handle}]")
        });
        exchange.cache = "purge";
        if message.action == Action::Test {
            return accepted();
        }
        let call = Call {
            method: Method::POST,
            target: view.wire_target(),
            headers: view.headers.clone(),
            body: CallBody::empty(),
            sticky: None,
        };
        // The agent may leave; a flush that has begun is carried out.
        let (inner, farm) = (Arc::clone(self), Arc::clone(farm));
        let name = farm.farm.name.clone();
        let obey = async move {
            let passed = inner.pass_on(&farm, Event::of(&message)).await?;
            let obeyed = Arc::clone(&inner).obey(Arc::clone(&farm), message, Some(call)).await;
            inner.siblings_have(&farm, passed).await;
            Ok::<_, Unlogged>(obeyed)
        };
        match tokio::spawn(obey).await {
            Ok(Ok(Ok(()))) => {
                self.metrics.count(Counter::Flushes);
                accepted()
            }
            Ok(Err(unlogged)) => unlogged.answer(),
            Ok(Ok(Err(error))) => {
                tracing::error!(farm = %name, reason = %error, "flush failed");
                refusal(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Err(_panicked) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Forgets one page: deletes its file, or marks it where flushes are soft.
    pub(crate) async fn purge(self: &Arc<Self>, exchange: &mut Exchange<'_>) -> Response<Body> {
        let (farm, view) = (exchange.farm, exchange.view);
        if !may_flush(&self.runtime.flush_keys, farm, view) {
            self.metrics.count(Counter::FlushesRefused);
            self.log(Level::Warn, || format!("Flushing rejected from {}", view.client));
            return refusal(StatusCode::FORBIDDEN);
        }
        exchange.cache = "purge";
        let keys = view.headers.contains_key(SURROGATE_KEY).then(|| flushed_keys(&view.headers));
        let event = match &keys {
            Some(keys) => Event::Keys(keys.clone()),
            None => Event::Page(view.wire_target()),
        };
        // Who sent it may leave; what has begun is carried out.
        let (inner, farm, view) = (Arc::clone(self), Arc::clone(farm), view.clone());
        let purge = async move {
            let passed = inner.pass_on(&farm, event).await?;
            let purged = match keys {
                Some(keys) => inner.purge_keyed(&farm, keys).await,
                None => inner.purge_page(&farm, &view).await,
            };
            inner.siblings_have(&farm, passed).await;
            Ok::<_, Unlogged>(purged)
        };
        match tokio::spawn(purge).await {
            Ok(Err(unlogged)) => unlogged.answer(),
            Ok(Ok(None | Some(Ok(false)))) => refusal(StatusCode::NOT_FOUND),
            Ok(Ok(Some(Ok(true)))) => accepted(),
            Ok(Ok(Some(Err(error)))) => {
                tracing::error!(farm = %exchange.farm.farm.name, reason = %error, "purge failed");
                refusal(StatusCode::INTERNAL_SERVER_ERROR)
            }
            Err(_panicked) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Forgets one page and tells whether it was there; nothing if the farm does not cache it.
    pub(crate) async fn purge_page(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        view: &RequestView,
    ) -> Option<std::io::Result<bool>> {
        let mut page = view.clone();
        page.method = Method::GET;
        let file = check_request(&farm.farm, &page).ok()?;
        let (root, cache) = (farm.docroot.as_ref()?, farm.farm.cache.as_ref()?);
        let (root, mode) = (Arc::clone(root), cache.flush_mode);
        let (flights, clock) = (Arc::clone(&self.flights), self.runtime.clock.clone());
        let absolute = farm.absolute(&file);
        let variants = variants_of(cache, &BTreeSet::from([file.clone()]));
        let fate = fate(cache, Action::Activate);
        let work = move || -> std::io::Result<bool> {
            root.note_flush(clock.tick());
            flights.flush(|fetched| {
                let below = fetched.strip_prefix(root.path()).ok();
                let is_variant = |handle: &PathBuf| {
                    below.is_some_and(|below| names(Action::Activate, handle, below))
                };
                fetched == absolute || variants.iter().any(is_variant)
            });
            let docroot = root.current()?;
            let mut is_there = absolute.symlink_metadata().is_ok();
            let named: Vec<Named<'_>> =
                variants.iter().map(|handle| Named { handle, fate }).collect();
            flights.while_nothing_is_stored(|| {
                let done = docroot.flush(&named, &BTreeSet::new());
                is_there |= done.removed + done.marked > 0;
                done.failure.map_or(Ok(()), Err)?;
                match mode {
                    FlushMode::Soft => docroot.mark_file(&file).failure.map_or(Ok(()), Err),
                    FlushMode::Delete => docroot.remove_file(&file),
                }
            })?;
            Ok(is_there)
        };
        Some(self.purge_by(work).await)
    }

    /// Forgets all pages that carry one of these keys; nothing if the farm has no cache.
    pub(crate) async fn purge_keyed(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        keys: Vec<String>,
    ) -> Option<std::io::Result<bool>> {
        let (root, cache) = (farm.docroot.as_ref()?, farm.farm.cache.as_ref()?);
        let (root, mode) = (Arc::clone(root), cache.flush_mode);
        let inner = Arc::clone(self);
        let work = move || -> std::io::Result<bool> {
            let docroot = root.current()?;
            root.note_flush(inner.runtime.clock.tick());
            root.tags.complete(&docroot);
            let count = inner.flights.while_nothing_is_stored(|| {
                let files = root.tags.flush(&keys, inner.runtime.clock.tick(), &docroot);
                for file in &files {
                    match mode {
                        FlushMode::Soft => docroot.mark_file(file).failure.map_or(Ok(()), Err)?,
                        FlushMode::Delete => docroot.remove_file(file)?,
                    }
                }
                Ok::<_, std::io::Error>(files.len())
            })?;
            inner.log(Level::Info, || format!("Flushed {count} files by their keys"));
            Ok(true)
        };
        Some(self.purge_by(work).await)
    }

    async fn purge_by(
        &self,
        work: impl FnOnce() -> std::io::Result<bool> + Send + 'static,
    ) -> std::io::Result<bool> {
        let purged = tokio::task::spawn_blocking(work).await;
        self.memory.note_change();
        let purged = purged.unwrap_or_else(|_panicked| Err(std::io::ErrorKind::Other.into()));
        if purged.is_ok() {
            self.metrics.count(Counter::Flushes);
        }
        purged
    }

    /// Carries out a flush; `call` is what renders are told of it.
    pub(crate) async fn obey(
        self: Arc<Self>,
        farm: Arc<FarmState>,
        message: FlushMessage,
        call: Option<Call>,
    ) -> std::io::Result<()> {
        let handling = self.apply(&farm, message).await?;
        handler::wait_for(handling, &farm.farm.name, HANDLER_PATIENCE).await;
        if let Some(call) = call.filter(|_| farm.farm.propagates_flushes) {
            tokio::spawn(async move {
                if farm.upstream.send(&call).await.is_err() {
                    tracing::warn!(farm = %farm.farm.name, "cannot forward a flush to the render");
                }
            });
        }
        Ok(())
    }

    /// Changes the files of a flush and calls the handler program; returns the call, which goes on by itself.
    pub(crate) async fn apply(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        mut message: FlushMessage,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        if let (Some(root), Some(cache)) = (&farm.docroot, &farm.farm.cache) {
            let hot = self.hot_named(farm, cache, &message);
            message.refetch.extend(hot);
            let listed = self.listed_files(farm, &message);
            let handles = readings(&message.handle);
            let mut variants = variants_of(cache, &listed);
            if !cache.key_params.rules.is_empty() {
                // The handle of a file, such as an asset, is no beginning of its variants' names.
                let files = handles.iter().filter(|handle| handle.extension().is_some());
                variants.extend(files.map(|handle| variant::handle_of(handle)));
            }
            let flush = Flush { handles, variants, listed, message: message.clone() };
            // Visitors of a listed file must not find it marked before it waits to be fetched.
            let announced = farm.refetch.announce(flush.listed.clone());
            self.overtake(farm, &flush);
            let applied = self.apply_with_others(farm, Arc::clone(root), flush).await;
            message.refetch.extend(self.hot_stale(farm, cache, &message));
            self.refetch(farm, &message);
            drop(announced);
            applied?;
        }
        let cache = farm.farm.cache.as_ref();
        let program = cache.and_then(|cache| cache.invalidate_handler.as_ref());
        Ok(program.and_then(|program| farm.handlers.call(program, &message)))
    }

    fn listed_files(&self, farm: &FarmState, message: &FlushMessage) -> BTreeSet<PathBuf> {
        message
            .refetch
            .iter()
            .filter_map(|uri| crate::refetch::target(farm, uri, &self.doors))
            .map(|(_, file)| file)
            .collect()
    }

    /// Keeps fetches that began before the flush from storing what it names.
    fn overtake(&self, farm: &FarmState, flush: &Flush) {
        let Some(docroot) = &farm.docroot else { return };
        docroot.note_flush(self.runtime.clock.tick());
        self.flights.flush(|file| {
            let Ok(below) = file.strip_prefix(docroot.path()) else {
                return false;
            };
            let mut handles = flush.handles.iter().chain(&flush.variants);
            flush.listed.contains(below)
                || handles.any(|handle| names(flush.message.action, handle, below))
        });
    }
}

/// Tells whether a visitor may flush: by address, by the token, or by the key of a pair.
pub(crate) fn may_flush(keys: &FlushKeys, farm: &FarmState, view: &RequestView) -> bool {
    let token = farm.farm.cache.as_ref().and_then(|cache| cache.flush_token.as_deref());
    let shown = view.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.strip_prefix("Bearer "));
    if let Some(shown) = shown.map(|shown| shown.trim().as_bytes()) {
        let is_token = token.map(|token| is_same(token.as_bytes(), shown));
        // Where keys open anything, a wrong one is refused, whatever the address.
        match (is_token, keys.admit(shown)) {
            (Some(true), _) | (_, Some(true)) => return true,
            (Some(false), _) | (_, Some(false)) => return false,
            (None, None) => {}
        }
    }
    let name = farm.farm.cache.as_ref().and_then(|cache| cache.flush_certificate.as_deref());
    if let (Some(name), Some(certificate)) = (name, &view.certificate)
        && certificate.is_for(name)
    {
        return true;
    }
    let client = view.client.to_string();
    let client = client.as_str();
    match farm.farm.cache.as_ref().and_then(|cache| cache.allowed_clients.as_ref()) {
        Some(list) if !list.rules.is_empty() => list.allows(client),
        // A farm with a token, with a name for certificates, or with pairs is not open to everyone.
        _ => token.is_none() && name.is_none() && !keys.has_any(),
    }
}

/// Compares without telling by its time how much agrees.
pub(crate) fn is_same(left: &[u8], right: &[u8]) -> bool {
    let differing = left.iter().zip(right).fold(0, |all, (left, right)| all | (left ^ right));
    left.len() == right.len() && std::hint::black_box(differing) == 0
}

impl Unlogged {
    /// Answers a flush of which siblings would never hear, and which was not carried out therefore.
    fn answer(self) -> Response<Body> {
        match self {
            Self::Left => {
                let mut response = refusal(StatusCode::SERVICE_UNAVAILABLE);
                // A new connection leads to the process that obeys.
                let close = HeaderValue::from_static("close");
                response.headers_mut().insert(header::CONNECTION, close);
                response
            }
            Self::Failed => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn accepted() -> Response<Body> {
    let mut response = Response::new(full("<H1>OK</H1>\r\n"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
    response
}

/// Tells whether a flush of `handle` names `file`; mirrors what `cache::delete` removes.
pub(crate) fn names(action: Action, handle: &Path, file: &Path) -> bool {
    let is_gone = matches!(action, Action::Deactivate | Action::Delete);
    if is_gone && file.starts_with(handle) {
        return true;
    }
    let Some(last) = handle.file_name().and_then(|last| last.to_str()) else {
        return false;
    };
    let parent = handle.parent().unwrap_or(Path::new(""));
    let Ok(below) = file.strip_prefix(parent) else {
        return false;
    };
    if file == handle || file.starts_with(handle.join("_jcr_content")) {
        return true;
    }
    let first = below.components().next();
    first
        .and_then(|first| first.as_os_str().to_str())
        .and_then(|first| first.strip_prefix(last))
        .is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::names;
    use crate::any::Sources;
    use crate::cache::{Docroot, Fate, Named};
    use crate::config::Config;
    use crate::variant;
    use crate::{Dispatcher, Runtime};
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use tympan_web::cache_path::CanonicalPath;
    use tympan_web::flush_message::{Action, FlushMessage};

    #[test]
    fn a_flush_that_is_given_up_announces_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "/farms {{ /site {{ /virtualhosts {{ \"*\" }} /renders {{ /0 {{ /hostname \"h\" }} }}
                /cache {{ /docroot \"{}\" /rules {{ /0 {{ /type \"allow\" /glob \"*\" }} }} }} }} }}",
            folder.path().display()
        );
        let loaded = Config::parse(text.as_bytes(), Path::new("test.any"), &Sources::default());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _entered = runtime.enter();
        let inner = Dispatcher::new(loaded.config, Runtime::default()).unwrap().current();
        let farm = &inner.farms[0];
        let docroot = farm.docroot.as_ref().unwrap().current().unwrap();
        let message = FlushMessage {
            action: Action::Activate,
            handle: "/content/a".to_owned(),
            scope: None,
            refetch: vec!["/content/a.html".to_owned()],
            sequence: None,
            numbering: None,
        };
        // No file is changed before this is free.
        let held = docroot.numbers.lock();
        let mut obeying = Box::pin(Arc::clone(&inner).obey(Arc::clone(farm), message, None));
        assert!(obeying.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let is_awaited = || farm.refetch.holds(Path::new("content/a.html"));
        assert!(is_awaited());
        drop(obeying);
        assert!(!is_awaited());
        drop(held);
    }

    proptest! {
        /// Whatever anybody makes up behind a page, the flush of the page takes away, and nothing of its neighbors.
        #[test]
        fn a_flush_of_a_page_takes_all_its_selector_and_suffix_files(
            urls in prop::collection::vec(
                "/content/(a|ab|b)(\\.[ax2]{1,2}){0,2}\\.(html|jpg|x7)(/[ab](\\.(html|jpg|x7|2))?){0,2}(/s\\.(html|x7))?",
                1..12,
            ),
            is_gone: bool,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let docroot = Docroot::open(folder.path(), 0o755, Arc::default()).unwrap();
            let mut files = Vec::new();
            for url in &urls {
                let path = CanonicalPath::parse(url).unwrap();
                let Ok(file) = variant::file_of(&path, "", folder.path()) else { continue };
                let absolute = folder.path().join(&file);
                std::fs::create_dir_all(absolute.parent().unwrap()).ok();
                // Of `/a.x7` and `/a.x7/s.html` only one can be kept: `x7` is no page's extension.
                if std::fs::write(&absolute, "page").is_ok() {
                    files.push((url, file));
                }
            }
            let handle = Path::new("content/a");
            let action = if is_gone { Action::Delete } else { Action::Activate };
            let named = [Named { handle, fate: Fate::Delete }];
            let done = docroot.flush(&named, &BTreeSet::new());
            prop_assert!(done.failure.is_none());
            for (url, file) in files {
                let is_own = url.starts_with("/content/a.");
                prop_assert_eq!(folder.path().join(&file).exists(), !is_own, "{}", url);
                prop_assert_eq!(names(action, handle, &file), is_own, "{}", url);
            }
        }
    }

    #[test]
    fn a_flush_names_the_files_of_its_handle() {
        let check = |action, handle: &str, file: &str, expected: bool| {
            assert_eq!(
                names(action, Path::new(handle), Path::new(file)),
                expected,
                "{action:?} {handle} {file}"
            );
        };
        let site = "content/en";
        for action in [Action::Activate, Action::Delete] {
            check(action, site, "content/en", true);
            check(action, site, "content/en.html", true);
            check(action, site, "content/en.x.html", true);
            check(action, site, "content/en.html/suffix.html", true);
            check(action, site, "content/en.html.s~/suffix.html", true);
            check(action, site, "content/en/_jcr_content/image.png", true);
            check(action, site, "content/english.html", false);
            check(action, site, "content/de.html", false);
            check(action, site, "other/en.html", false);
        }
        check(Action::Activate, site, "content/en/sub.html", false);
        check(Action::Delete, site, "content/en/sub.html", true);
        check(Action::Delete, "", "content/en.html", true);
        check(Action::Activate, "", "content/en.html", false);
        check(Action::Activate, "a.jpg", "a.jpg.thumb.png", true);
    }
}
