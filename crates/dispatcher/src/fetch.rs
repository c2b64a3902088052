//! Getting a page from a render into the cache, once for all who wait for it.
//!
//! Invariants
//! * What is stored carries the moment before the request was sent, so that every flush since then counts.
//! * Visitors who wait get what is stored and nothing of what was meant for the one who caused the fetch (cookies).
//! * An answer that is not complete is never stored.
//! * A copy is renewed by a 304 only if it is still the file that was asked about; otherwise the page is asked for as a
//!   whole.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{oneshot, watch};

use crate::cache::{CacheFile, Lookup, NewFile, Root, Stamp, Temporary};
use crate::cacheable::{Reason, check_response};
use crate::config::{Farm, Revalidate};
use crate::dispatcher::{FarmState, Inner};
use crate::flight::{Outcome, Ticket};
use crate::forward::clean_response;
use crate::hit::{is_same_media_type, media_type, remove_private, with_declared_charset};
use crate::include;
use crate::log::Level;
use crate::metrics::Counter;
use crate::negative::{self, Negative};
use crate::page::{Body, Growing, Page, PageBody, Progress, SMALL_BYTES, boxed, full, read_at};
use crate::revalidate::{Asked, keep_validators};
use crate::shadow::Fetched;
use crate::sibling;
use crate::tags::{KEPT_KEYS, SURROGATE_KEY, keys_of};
use crate::ttl::{KEPT_LENIENCE, Lenience, expiry};
use crate::upstream::{Answer, Call, Failure, ReceivedBody};
use crate::visits::Visit;

/// What is fetched and where it goes.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) call: Call,
    /// Below the document root.
    pub(crate) file: PathBuf,
    /// The page's path, as rules know it.
    pub(crate) path: String,
    /// The host that it is asked for at.
    pub(crate) host: Option<HeaderValue>,
    /// What visitors ask for it with, if that is one whom the farm is for.
    pub(crate) visit: Option<Visit>,
    /// The number that the render's content must have reached.
    pub(crate) sequence: Option<u64>,
    /// For the header `X-Cache-Info` if it is stored.
    pub(crate) info: &'static str,
}

/// What the one who caused the fetch gets.
pub(crate) enum First {
    /// A page that the others get too.
    Page(Arc<Page>),
    /// An answer that is not stored.
    Answer(Response<Body>, String, Reason),
    /// The render's content is older than what was flushed.
    Behind,
    /// Nothing.
    Failed(Failure),
}

/// The render's header with the number of its content.
const SEQUENCE: &str = "x-tympan-seq";

/// Tells whether a render's answer is older than what was flushed.
pub(crate) fn is_behind(wanted: Option<u64>, headers: &HeaderMap) -> bool {
    let reached =
        headers.get(SEQUENCE).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
    wanted.zip(reached).is_some_and(|(wanted, reached)| reached < wanted)
}

/// Headers that are the same in every request for a page to be stored.
const SAME: [&[u8]; 2] = [b"accept-encoding", b"surrogate-capability"];

/// Begins to fetch in a task of its own, which goes on when nobody waits any more.
pub(crate) fn start(
    inner: &Arc<Inner>,
    farm: &Arc<FarmState>,
    ticket: Ticket,
    fetch: Fetch,
) -> oneshot::Receiver<First> {
    let (first, wait) = oneshot::channel();
    let lead = Lead { inner: Arc::clone(inner), farm: Arc::clone(farm), fetch, first: Some(first) };
    tokio::spawn(lead.run(ticket));
    wait
}

struct Lead {
    inner: Arc<Inner>,
    farm: Arc<FarmState>,
    fetch: Fetch,
    first: Option<oneshot::Sender<First>>,
}

/// A storable answer's head.
struct Head {
    headers: HeaderMap,
    fetched: SystemTime,
    render: String,
    length: Option<u64>,
}

impl Lead {
    async fn run(mut self, ticket: Ticket) {
        let Some(asked) = self.asked() else {
            if let Some(ticket) = self.copy_of_sibling(ticket).await {
                self.ask(ticket).await;
            }
            return;
        };
        let plain = self.fetch.call.headers.clone();
        self.fetch.call.headers.extend(asked.conditions.clone());
        let epoch = self.epoch();
        let fetched = self.inner.runtime.clock.tick();
        let answer = self.farm.upstream.send(&self.fetch.call).await;
        self.fetch.call.headers = plain;
        let ticket = match answer {
            Ok(answer) if answer.response.status() == StatusCode::NOT_MODIFIED => {
                match self.renew(ticket, &asked, answer, fetched).await {
                    Some(ticket) => ticket,
                    None => return,
                }
            }
            answer => return self.take(ticket, answer, (fetched, epoch)).await,
        };
        // Nothing is known but that the copy is out of date.
        self.ask(ticket).await;
    }

    /// Asks for the whole page.
    async fn ask(self, ticket: Ticket) {
        let epoch = self.epoch();
        let fetched = self.inner.runtime.clock.tick();
        let answer = self.farm.upstream.send(&self.fetch.call).await;
        self.take(ticket, answer, (fetched, epoch)).await;
    }

    async fn take(
        mut self,
        ticket: Ticket,
        answer: Result<Answer, Failure>,
        sent: (SystemTime, u64),
    ) {
        match answer {
            Ok(answer) => self.receive(ticket, answer, sent).await,
            Err(failure) => {
                self.inner.metrics.count(Counter::RenderFailures);
                ticket.finish(Outcome::Failed(failure));
                self.tell(First::Failed(failure));
            }
        }
    }

    /// Takes the copy of a sibling for a page that is absent; returns the ticket if the render has to be asked.
    async fn copy_of_sibling(&mut self, ticket: Ticket) -> Option<Ticket> {
        let farm = Arc::clone(&self.farm);
        let is_private = farm.farm.auth_checker.is_some() || farm.farm.sessions.is_some();
        // Of a page that was flushed the render is asked: siblings may not have heard of it.
        if farm.siblings.is_none() || is_private || self.fetch.sequence.is_some() {
            return Some(ticket);
        }
        let Some(root) = &farm.docroot else { return Some(ticket) };
        if root.opened().has(&self.fetch.file) {
            return Some(ticket);
        }
        self.inner.metrics.count(Counter::SiblingsAsked);
        let sent = self.inner.runtime.clock.tick();
        let (target, host) = (&self.fetch.call.target, self.fetch.host.as_ref());
        let Some(copy) = sibling::ask(&farm, target, host, sent).await else { return Some(ticket) };
        if is_flushed_since(root, &farm.farm, (&self.fetch.file, copy.fetched)) {
            return Some(ticket);
        }
        let mut headers = copy.headers.clone();
        remove_private(&mut headers);
        headers.entry(header::CONTENT_TYPE).or_insert_with(|| media_type(&self.fetch.file));
        let (fetched, length) = (copy.fetched, Some(copy.body.len() as u64));
        let head = Head { headers, fetched, render: copy.sibling.clone(), length };
        let placement = Placement {
            file: self.fetch.file.clone(),
            fetched,
            headers: copy.headers,
            expires: copy.expires,
            mode: farm.farm.cache.as_ref().map_or(0o755, |cache| cache.mode),
        };
        let (body, storing) = (copy.body.clone(), Arc::clone(&farm));
        let work = move || {
            let stored = ticket.store_unless_flushed(|| {
                let root = storing.docroot.as_ref().ok_or(Reason::NoDocroot)?;
                if is_flushed_since(root, &storing.farm, (&placement.file, fetched)) {
                    return Err(Reason::Flushed);
                }
                let mut temporary = begin(&storing)?;
                temporary.write(&body).map_err(unwritable)?;
                placement.commit(&storing, temporary)
            });
            (ticket, stored)
        };
        let ticket = match tokio::task::spawn_blocking(work).await {
            Ok((ticket, Ok(()))) => ticket,
            Ok((ticket, Err(_))) => return Some(ticket),
            Err(_panicked) => {
                self.tell(First::Failed(Failure::Broken));
                return None;
            }
        };
        self.note_stored(Ok(()), copy.body.len() as u64);
        self.inner.metrics.count(Counter::SiblingFills);
        let page = self.page(&head, PageBody::Small(copy.body), None);
        ticket.finish(Outcome::Shared(Arc::clone(&page)));
        self.tell(First::Page(page));
        None
    }

    /// Returns which flushes had come when the request is about to be sent.
    fn epoch(&self) -> u64 {
        self.farm.docroot.as_ref().map_or(0, |root| root.negatives.epoch())
    }

    /// Returns what to ask about the copy that is to be replaced, if it can be confirmed.
    fn asked(&self) -> Option<Asked> {
        let farm = &self.farm.farm;
        let cache = farm.cache.as_ref()?;
        let is_private = farm.auth_checker.is_some() || farm.sessions.is_some();
        if cache.revalidate == Revalidate::Never || is_private {
            return None;
        }
        let docroot = self.farm.docroot.as_ref()?.opened();
        let Ok(Lookup::File(copy)) = docroot.look_up(&self.fetch.file, cache.enable_ttl) else {
            return None;
        };
        let now = self.inner.runtime.clock.now();
        let facts = docroot.facts(cache, (&self.fetch.file, &self.fetch.path), &copy, now);
        Asked::about(&copy, (facts, cache.patience()), cache.revalidate)
    }

    /// Renews the copy after a 304; returns the ticket if the page has to be asked for as a whole.
    async fn renew(
        &mut self,
        ticket: Ticket,
        asked: &Asked,
        answer: Answer,
        fetched: SystemTime,
    ) -> Option<Ticket> {
        if is_behind(self.fetch.sequence, answer.response.headers()) {
            ticket.finish(Outcome::Again);
            self.tell(First::Behind);
            return None;
        }
        let Some(mut headers) = asked.renewed(answer.response.headers()) else {
            return Some(ticket);
        };
        clean_response(&mut headers);
        let head = Head { headers, fetched, render: answer.render, length: None };
        let placement = self.placement(&head);
        if asked.lost_expiry(placement.expires) {
            return Some(ticket);
        }
        let (farm, stamp) = (Arc::clone(&self.farm), asked.stamp);
        let work = move || {
            let renewed =
                copy_again(&farm, &placement.file, stamp).and_then(|(temporary, body)| {
                    ticket.store_unless_flushed(|| {
                        // What removes files besides flushes counts as well.
                        find(&farm, &placement.file, stamp)?;
                        placement.commit(&farm, temporary)
                    })?;
                    Ok(body)
                });
            (ticket, renewed)
        };
        let (ticket, body) = match tokio::task::spawn_blocking(work).await {
            Ok((ticket, Ok(body))) => (ticket, body),
            Ok((ticket, Err(_))) => return Some(ticket),
            Err(_panicked) => {
                self.tell(First::Failed(Failure::Broken));
                return None;
            }
        };
        self.inner.memory.note_change();
        self.inner.metrics.count(Counter::Renewed);
        self.inner.log(Level::Debug, || {
            format!("Cache file renewed: {}", self.farm.absolute(&self.fetch.file).display())
        });
        let page = self.page(&head, body, None);
        ticket.finish(Outcome::Shared(Arc::clone(&page)));
        self.tell(First::Page(page));
        None
    }

    async fn receive(
        mut self,
        ticket: Ticket,
        mut answer: Answer,
        (fetched, epoch): (SystemTime, u64),
    ) {
        if is_behind(self.fetch.sequence, answer.response.headers()) {
            // It is an answer for visitors, who ask for it themselves.
            ticket.finish(Outcome::Again);
            return self.tell(First::Behind);
        }
        let (mut parts, mut body) = answer.response.into_parts();
        body.take_off_content_codings(&mut parts.headers);
        answer.response = Response::from_parts(parts, body);
        let status = answer.response.status();
        if let Err(reason) = check_response(status, answer.response.headers()) {
            if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
                self.forget_file(&ticket);
            }
            if let Some(time) = self.negative_time(status, answer.response.headers()) {
                return self.receive_negative(ticket, answer, (fetched, epoch, time)).await;
            }
            ticket.finish(Outcome::Alone(reason));
            clean_response(answer.response.headers_mut());
            let response = answer.response.map(boxed);
            return self.tell(First::Answer(response, answer.render, reason));
        }
        let length = answer.response.body().size_hint().exact();
        let (mut parts, mut body) = answer.response.into_parts();
        // Others wait for it, and a streamed page would never be complete.
        body.keep_pace(self.inner.switches.render_pace);
        clean_response(&mut parts.headers);
        let head = Head { headers: parts.headers, fetched, render: answer.render, length };
        self.collect(ticket, head, body).await;
    }

    /// Returns how long an error is remembered: as the farm says, and no longer than the render says.
    fn negative_time(&self, status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
        let time = negative::time_of(&self.farm.farm, status)?;
        let is_for_all = check_response(StatusCode::OK, headers)
            .map_or_else(|reason| reason == Reason::EmptyBody, |()| true);
        is_for_all.then_some(time)
    }

    /// Reads an error to its end and remembers it.
    async fn receive_negative(
        mut self,
        ticket: Ticket,
        answer: Answer,
        (fetched, epoch, time): (SystemTime, u64, Duration),
    ) {
        let render = answer.render;
        let (mut parts, mut body) = answer.response.into_parts();
        body.keep_pace(self.inner.switches.render_pace);
        clean_response(&mut parts.headers);
        let mut bytes = BytesMut::new();
        let is_whole = loop {
            match body.frame().await {
                None => break true,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        bytes.extend_from_slice(data);
                    }
                }
                Some(Err(_broken)) => {
                    self.inner.metrics.count(Counter::RenderFailures);
                    ticket.finish(Outcome::Failed(Failure::Broken));
                    return self.tell(First::Failed(Failure::Broken));
                }
            }
            if bytes.len() > negative::MAX_BODY_BYTES {
                break false;
            }
        };
        let bytes = bytes.freeze();
        let mut response = if is_whole {
            self.note_negative(&ticket, &parts, bytes.clone(), (fetched, epoch, time));
            let mut response = Response::new(full(bytes));
            *response.headers_mut() = parts.headers;
            response
        } else {
            let headers = parts.headers;
            let head = Head { headers, fetched, render: render.clone(), length: None };
            stream_on(&head, bytes, body)
        };
        *response.status_mut() = parts.status;
        ticket.finish(Outcome::Alone(Reason::Status));
        self.tell(First::Answer(response, render, Reason::Status));
    }

    fn note_negative(
        &self,
        ticket: &Ticket,
        parts: &http::response::Parts,
        body: Bytes,
        (fetched, epoch, time): (SystemTime, u64, Duration),
    ) {
        let Some(root) = &self.farm.docroot else { return };
        let mut headers = self.stored_headers(&parts.headers);
        remove_private(&mut headers);
        // The name tells the type of the page, and not that of what is said in its place.
        headers.remove(header::CONTENT_TYPE);
        if let Some(kind) = parts.headers.get(header::CONTENT_TYPE) {
            headers.insert(header::CONTENT_TYPE, kind.clone());
        }
        let limit = fetched + time;
        let until = expiry(&parts.headers, fetched).map_or(limit, |expires| expires.min(limit));
        let status = parts.status;
        let negative = Negative { status, headers, body, fetched, until, epoch };
        let note = || {
            root.negatives.note(&self.fetch.file, negative);
            Ok(())
        };
        // What was flushed meanwhile is not known any more.
        ticket.store_unless_flushed(note).ok();
    }

    /// Removes a file whose page is gone.
    fn forget_file(&self, ticket: &Ticket) {
        let Some(docroot) = self.farm.docroot.as_ref().map(|root| root.opened()) else {
            return;
        };
        let removal =
            || docroot.remove_file(&self.fetch.file).map_err(|_reported| Reason::Unwritable);
        // After a flush the file is that flush's business.
        ticket.store_unless_flushed(removal).ok();
        self.inner.memory.note_change();
    }

    /// Reads a body into memory, or from a certain size on into a file.
    async fn collect(mut self, ticket: Ticket, head: Head, mut body: ReceivedBody) {
        let mut bytes = BytesMut::new();
        loop {
            match body.frame().await {
                None => break,
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        bytes.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => {
                    self.inner.metrics.count(Counter::RenderFailures);
                    tracing::debug!(farm = %self.farm.farm.name, reason = %error, "render broke off");
                    // Nothing was sent to anyone yet, so an error is better than half a page.
                    ticket.finish(Outcome::Failed(Failure::Broken));
                    return self.tell(First::Failed(Failure::Broken));
                }
            }
            if bytes.len() > SMALL_BYTES {
                return self.spill(ticket, head, bytes.freeze(), body).await;
            }
        }
        let bytes = bytes.freeze();
        self.inner.ask_shadow(&self.farm, || Fetched {
            target: self.fetch.call.target.clone(),
            headers: self.fetch.call.headers.clone(),
            kind: head.headers.get(header::CONTENT_TYPE).cloned(),
            body: bytes.clone(),
        });
        let (ticket, stored) = self.store(ticket, &head, bytes.clone()).await;
        if stored.is_ok() {
            self.note_left_out(&head);
        }
        let page = self.page(&head, PageBody::Small(bytes), stored.err());
        if let Some(ticket) = ticket {
            ticket.finish(Outcome::Shared(Arc::clone(&page)));
        }
        self.tell(First::Page(page));
    }

    async fn store(
        &self,
        ticket: Ticket,
        head: &Head,
        bytes: Bytes,
    ) -> (Option<Ticket>, Result<(), Reason>) {
        if bytes.is_empty() {
            return (Some(ticket), Err(Reason::EmptyBody));
        }
        let placement = self.placement(head);
        let farm = Arc::clone(&self.farm);
        let size = bytes.len() as u64;
        let work = move || {
            let stored = ticket.store_unless_flushed(|| {
                let mut temporary = begin(&farm)?;
                temporary.write(&bytes).map_err(unwritable)?;
                placement.commit(&farm, temporary)
            });
            (ticket, stored)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok((ticket, stored)) => {
                self.note_stored(stored, size);
                (Some(ticket), stored)
            }
            Err(_panicked) => (None, Err(Reason::Unwritable)),
        }
    }

    fn note_stored(&self, stored: Result<(), Reason>, size: u64) {
        let path = self.farm.absolute(&self.fetch.file);
        match stored {
            Ok(()) => {
                self.inner.memory.note_change();
                if let (Some(root), Some(visit)) = (&self.farm.docroot, &self.fetch.visit) {
                    root.visits.note(&self.fetch.file, visit);
                }
                self.inner.metrics.count(Counter::Stored);
                self.inner.metrics.add(Counter::BytesStored, size);
                self.inner.log(Level::Debug, || {
                    format!("Cache file successfully created: {}", path.display())
                });
            }
            Err(Reason::Unwritable) => {
                self.inner.metrics.count(Counter::StoreFailures);
                self.inner.log(Level::Error, || {
                    format!("Unable to create cache file {}", path.display())
                });
            }
            Err(Reason::ParentIsFile) => self.inner.log(Level::Warn, || {
                let parent = path.parent().unwrap_or(&path).display();
                format!("Unable to create parent directory {parent}: Not a directory")
            }),
            Err(_) => {}
        }
    }

    /// Goes on in a file, from which all who wait read while it grows.
    async fn spill(mut self, ticket: Ticket, head: Head, bytes: Bytes, body: ReceivedBody) {
        let farm = Arc::clone(&self.farm);
        let prefix = bytes.clone();
        let length = head.length;
        let begun = tokio::task::spawn_blocking(move || {
            let mut temporary = begin(&farm)?;
            temporary.write(&prefix).map_err(unwritable)?;
            let reader = temporary.reader(length).map_err(unwritable)?;
            Ok::<_, Reason>((temporary, reader))
        });
        let Ok(Ok((temporary, reader))) = begun.await else {
            // No room on the disk: this visitor gets the rest as it comes, the others ask for themselves.
            self.inner.metrics.count(Counter::StoreFailures);
            ticket.finish(Outcome::Alone(Reason::Unwritable));
            let response = stream_on(&head, bytes, body);
            return self.tell(First::Answer(response, head.render, Reason::Unwritable));
        };
        let written = bytes.len() as u64;
        let (progress, watcher) = watch::channel(Progress::Written(written));
        let growing = Growing { file: Arc::new(reader), progress: watcher, length: head.length };
        let page = self.page(&head, PageBody::Growing(growing), None);
        ticket.announce(Outcome::Shared(Arc::clone(&page)));
        self.tell(First::Page(page));
        let growth = Growth { temporary, written, progress };
        self.grow(ticket, &head, growth, body).await;
    }

    async fn grow(&self, ticket: Ticket, head: &Head, growth: Growth, mut body: ReceivedBody) {
        let Growth { mut temporary, mut written, progress } = growth;
        while let Some(frame) = body.frame().await {
            let Some(data) = frame.ok().map(|frame| frame.into_data().unwrap_or_default()) else {
                progress.send_replace(Progress::Failed(written));
                return self.inner.metrics.count(Counter::RenderFailures);
            };
            let size = data.len() as u64;
            let appended =
                tokio::task::spawn_blocking(move || temporary.write(&data).map(|()| temporary));
            temporary = match appended.await {
                Ok(Ok(temporary)) => temporary,
                _ => {
                    progress.send_replace(Progress::Failed(written));
                    return self.note_stored(Err(Reason::Unwritable), written);
                }
            };
            written += size;
            progress.send_replace(Progress::Written(written));
        }
        progress.send_replace(Progress::Complete(written));
        let placement = self.placement(head);
        let farm = Arc::clone(&self.farm);
        let work = move || ticket.store_unless_flushed(|| placement.commit(&farm, temporary));
        let stored = tokio::task::spawn_blocking(work).await;
        let stored = stored.unwrap_or(Err(Reason::Unwritable));
        self.note_stored(stored, written);
        if stored.is_ok() {
            self.note_left_out(head);
        }
    }

    /// Warns, once for each pattern of URLs, of a page that its render does not mean for everyone who gets it.
    fn note_left_out(&self, head: &Head) {
        let lists = head.headers.get_all(header::VARY).into_iter();
        let names = lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
        let mut names = names.map(<[u8]>::trim_ascii).filter(|name| !name.is_empty());
        let is_same = |name: &[u8]| SAME.iter().any(|own| name.eq_ignore_ascii_case(own));
        let varies = names.any(|name| !is_same(name));
        for (is_there, counter, name) in [
            (head.headers.contains_key(header::SET_COOKIE), Counter::CookiesLeftOut, "Set-Cookie"),
            (varies, Counter::VariesLeftOut, "Vary"),
        ] {
            if !is_there {
                continue;
            }
            self.inner.metrics.count(counter);
            if let Some(pattern) = self.farm.tally.first_warning(name, &self.fetch.path) {
                tracing::warn!(farm = %self.farm.farm.name, path = %pattern, reason = name,
                    "pages are cached for everyone in spite of a header of their render");
                self.inner.log(Level::Warn, || {
                    format!("Stored in spite of its {name} header: {pattern}")
                });
            }
        }
    }

    fn placement(&self, head: &Head) -> Placement {
        let cache = self.farm.farm.cache.as_ref();
        let has_ttl = cache.is_some_and(|cache| cache.enable_ttl);
        Placement {
            file: self.fetch.file.clone(),
            fetched: head.fetched,
            headers: self.stored_headers(&head.headers),
            expires: if has_ttl { expiry(&head.headers, head.fetched) } else { None },
            mode: cache.map_or(0o755, |cache| cache.mode),
        }
    }

    /// Returns the headers that `/headers` names, those that protect visitors, and the media type where the file's name does not
    /// tell it.
    fn stored_headers(&self, all: &HeaderMap) -> HeaderMap {
        let mut stored = HeaderMap::new();
        let names = self.farm.farm.cache.as_ref().map(|cache| &cache.headers);
        for (name, value) in all {
            let is_named = PROTECTING.contains(&name.as_str())
                || names.is_some_and(|names| names.iter().any(|own| own == name.as_str()));
            // A cookie is one visitor's; a length or date would contradict the file's.
            let is_own = [header::SET_COOKIE, header::CONTENT_LENGTH, header::DATE].contains(name);
            // Whoever serves the file later has to know what it includes.
            if (is_named || *name == include::HEADER) && !is_own {
                stored.append(name, value.clone());
            }
        }
        for value in all.get_all(SURROGATE_KEY) {
            stored.append(KEPT_KEYS, value.clone());
        }
        let cache = self.farm.farm.cache.as_ref();
        if cache.is_some_and(|cache| cache.revalidate != Revalidate::Never) {
            keep_validators(&mut stored, all);
        }
        if cache.is_some_and(|cache| cache.obeys_stale_directives && cache.enable_ttl)
            && let Some(lenience) = Lenience::of(all).to_value()
        {
            stored.insert(KEPT_LENIENCE, lenience);
        }
        if let Some(kind) = all.get(header::CONTENT_TYPE)
            && !is_same_media_type(kind, &media_type(&self.fetch.file))
        {
            stored.insert(header::CONTENT_TYPE, kind.clone());
        }
        stored
    }

    fn page(&self, head: &Head, body: PageBody, refused: Option<Reason>) -> Arc<Page> {
        let mut stored = self.stored_headers(&head.headers);
        remove_private(&mut stored);
        stored.entry(header::CONTENT_TYPE).or_insert_with(|| {
            let kind = media_type(&self.fetch.file);
            let is_told = head.headers.contains_key(header::CONTENT_TYPE);
            match &body {
                PageBody::Small(page) if !is_told => with_declared_charset(kind, page),
                _ => kind,
            }
        });
        Arc::new(Page {
            headers: head.headers.clone(),
            stored,
            body,
            render: head.render.clone(),
            info: match refused {
                None => self.fetch.info.to_owned(),
                Some(reason) => format!("not cacheable: {reason}"),
            },
        })
    }

    fn tell(&mut self, first: First) {
        if let Some(sender) = self.first.take() {
            // The visitor may have left.
            sender.send(first).ok();
        }
    }
}

/// Headers by which a render restricts what browsers do with an answer. They belong to its body: a copy without them would be
/// more than the render gave out, such as an upload that runs as a page.
const PROTECTING: [&str; 14] = [
    "content-disposition",
    "content-security-policy",
    "content-security-policy-report-only",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "cross-origin-resource-policy",
    "document-policy",
    "origin-agent-cluster",
    "permissions-policy",
    "referrer-policy",
    "strict-transport-security",
    "x-content-type-options",
    "x-frame-options",
    "x-permitted-cross-domain-policies",
];

/// A file that others read while it is written.
struct Growth {
    temporary: Temporary,
    written: u64,
    progress: watch::Sender<Progress>,
}

/// What is needed to put a file into place.
struct Placement {
    file: PathBuf,
    fetched: SystemTime,
    headers: HeaderMap,
    expires: Option<SystemTime>,
    mode: u32,
}

impl Placement {
    fn commit(self, farm: &FarmState, temporary: Temporary) -> Result<(), Reason> {
        let keys = keys_of(&self.headers, &KEPT_KEYS);
        let tags = farm.docroot.as_ref().map(|root| &root.tags);
        if tags.is_some_and(|tags| tags.is_flushed(&keys, self.fetched)) {
            return Err(Reason::Flushed);
        }
        let new = NewFile {
            file: &self.file,
            fetched: self.fetched,
            headers: self.headers,
            expires: self.expires,
            mode: self.mode,
        };
        if let Some(root) = &farm.docroot
            && let Err(error) = root.opened().make_way(&self.file)
        {
            tracing::warn!(file = %farm.absolute(&self.file).display(), reason = %error,
                "cannot move a folder away that an earlier version left where a page belongs");
        }
        temporary.commit(&new).map_err(|error| match error.kind() {
            std::io::ErrorKind::IsADirectory => Reason::TargetIsDirectory,
            std::io::ErrorKind::NotADirectory => Reason::ParentIsFile,
            _ => unwritable(error),
        })?;
        if let Some(tags) = tags {
            tags.note(&self.file, &keys);
        }
        Ok(())
    }
}

/// Returns the copy at `file` if it is still the one that was asked about.
fn find(farm: &FarmState, file: &Path, stamp: Stamp) -> Result<CacheFile, Reason> {
    let docroot = farm.docroot.as_ref().ok_or(Reason::NoDocroot)?.opened();
    match docroot.look_up(file, false) {
        Ok(Lookup::File(copy)) if copy.stamp == stamp => Ok(copy),
        _ => Err(Reason::Incomplete),
    }
}

/// Writes the body of a copy anew, and returns it also for those who wait.
fn copy_again(
    farm: &FarmState,
    file: &Path,
    stamp: Stamp,
) -> Result<(Temporary, PageBody), Reason> {
    let copy = find(farm, file, stamp)?;
    let mut temporary = begin(farm)?;
    let length = copy.length;
    if usize::try_from(length).is_ok_and(|length| length <= SMALL_BYTES) {
        let bytes = read_at(&copy.body, 0, length).map_err(unwritable)?;
        temporary.write(&bytes).map_err(unwritable)?;
        return Ok((temporary, PageBody::Small(bytes)));
    }
    if temporary.append_file(&copy.body).map_err(unwritable)? != length {
        return Err(Reason::Incomplete);
    }
    let (_, progress) = watch::channel(Progress::Complete(length));
    let growing = Growing { file: Arc::new(copy.body), progress, length: Some(length) };
    Ok((temporary, PageBody::Growing(growing)))
}

/// Tells whether any flush came since a copy was fetched, or someone touched its `.stat` file.
fn is_flushed_since(root: &Root, farm: &Farm, (file, fetched): (&Path, SystemTime)) -> bool {
    let stat = farm.cache.as_ref().map(|cache| &cache.stat_files);
    let touched = stat.and_then(|stat| root.opened().flushed_at(file, stat));
    root.flushed_last().max(touched).is_some_and(|at| at >= fetched)
}

fn begin(farm: &FarmState) -> Result<Temporary, Reason> {
    let docroot = farm.docroot.as_ref().ok_or(Reason::NoDocroot)?;
    let mode = farm.farm.cache.as_ref().map_or(0o755, |cache| cache.mode);
    docroot.current().and_then(|docroot| docroot.begin(mode)).map_err(unwritable)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape of `map_err`")]
fn unwritable(error: std::io::Error) -> Reason {
    tracing::debug!(reason = %error, "cannot write a cache file");
    Reason::Unwritable
}

/// Returns an answer that begins with `prefix` and goes on with `body`.
fn stream_on(head: &Head, prefix: Bytes, body: ReceivedBody) -> Response<Body> {
    let begin = stream::iter([Ok(Frame::data(prefix))]);
    let rest =
        stream::unfold(
            body,
            |mut body| async move { body.frame().await.map(|frame| (frame, body)) },
        );
    let mut response = Response::new(boxed(StreamBody::new(begin.chain(rest))));
    *response.headers_mut() = head.headers.clone();
    response
}
