//! Carrying out what siblings tell.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;
use tokio::task::JoinHandle;
use tympan_web::limit::{is_stalled, limited};

use super::heard::{HEARD_FILE, Heard, MAX_HEARD_BYTES, Tried};
use super::message::{
    Ask, Elsewhere, Event, MAX_MESSAGE_BYTES, Message, PASSED, Position, Told, VERSION, page,
};
use crate::answer::refusal;
use crate::cache::Docroot;
use crate::dispatcher::{FarmState, Inner};
use crate::flush::may_flush;
use crate::handler;
use crate::log::Level;
use crate::metrics::Counter;
use crate::page::{Body, full};
use crate::request::RequestView;
use crate::upstream::BODY_PATIENCE;

/// How long events are not answered for the sake of the handler program: well below what the sibling waits, which would tell
/// all of them again.
const HANDLER_PATIENCE: Duration = Duration::from_secs(20);

/// Why a message was not taken.
#[derive(Debug)]
pub(super) enum Untaken {
    /// This dispatcher is at another position.
    Elsewhere(Option<Position>),
    /// The files could not be changed.
    Failed,
}

impl Inner {
    /// Answers a sibling.
    pub(crate) async fn hear(
        self: &Arc<Self>,
        view: &RequestView,
        body: Incoming,
    ) -> Response<Body> {
        let mut response = self.obey_sibling(view, body).await;
        // No other server's answer counts.
        response.headers_mut().insert(PASSED, HeaderValue::from_static(VERSION));
        response
    }

    async fn obey_sibling(self: &Arc<Self>, view: &RequestView, body: Incoming) -> Response<Body> {
        let farm = farm_of(&view.headers);
        let farm = farm.and_then(|name| self.farms.iter().find(|farm| farm.farm.name == name));
        // Who may not flush learns nothing of the farms.
        let keys = &self.runtime.flush_keys;
        let Some(farm) = farm.filter(|farm| may_flush(keys, farm, view)) else {
            if let Some(response) = self.limit_rate(view) {
                return response;
            }
            self.metrics.count(Counter::FlushesRefused);
            self.log(Level::Warn, || format!("Flushing rejected from {}", view.client));
            return refusal(StatusCode::FORBIDDEN);
        };
        let Some(root) = &farm.docroot else { return refusal(StatusCode::NOT_FOUND) };
        // Another process obeys the flushes by now.
        if self.flights.is_closed() {
            return refusal(StatusCode::SERVICE_UNAVAILABLE);
        }
        let body = limited(body, MAX_MESSAGE_BYTES).stalling_at_most(BODY_PATIENCE);
        let body = match body.keeping(self.gate.pace).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if is_stalled(&*error) => return refusal(StatusCode::REQUEST_TIMEOUT),
            Err(_) => return refusal(StatusCode::PAYLOAD_TOO_LARGE),
        };
        let Some(told) = Told::parse(&body) else {
            self.log(Level::Warn, || format!("Message of {} refused: no message", view.client));
            return refusal(StatusCode::BAD_REQUEST);
        };
        let (Told::Pass(Message { instance, .. }) | Told::Ask(Ask { instance, .. })) = &told;
        if **instance == *self.instance {
            return refusal(StatusCode::LOOP_DETECTED);
        }
        if let Some(peers) = &farm.peers {
            peers.ring();
        }
        match told {
            Told::Ask(ask) => self.tell_since(farm, ask).await,
            Told::Pass(message) => {
                // The sibling may leave; what has begun is carried out.
                let (inner, farm, root) = (Arc::clone(self), Arc::clone(farm), Arc::clone(root));
                let taken = tokio::spawn(async move {
                    let (log, origin) = (root.log_of(&farm.farm.name), message.origin.clone());
                    if farm.peers.is_some() {
                        let flights = Arc::clone(&inner.flights);
                        let is_ours = move || !flights.is_closed();
                        let avoid = move || log.avoid_name(&root, &origin, is_ours);
                        tokio::task::spawn_blocking(avoid).await.ok();
                    }
                    inner.take(&farm, message).await
                });
                match taken.await {
                    Ok(Ok(())) => json(StatusCode::OK, "{}".to_owned()),
                    Ok(Err(Untaken::Elsewhere(position))) => {
                        let text = serde_json::to_string(&Elsewhere { position });
                        json(StatusCode::CONFLICT, text.unwrap_or_default())
                    }
                    Ok(Err(Untaken::Failed)) | Err(_) => refusal(StatusCode::INTERNAL_SERVER_ERROR),
                }
            }
        }
    }

    /// Tells a sibling that asks what came since it was told last.
    async fn tell_since(&self, farm: &Arc<FarmState>, ask: Ask) -> Response<Body> {
        let Some(root) = farm.docroot.clone().filter(|_| farm.peers.is_some()) else {
            return refusal(StatusCode::NOT_FOUND);
        };
        let (log, instance) = (root.log_of(&farm.farm.name), self.instance.to_string());
        let find = move || {
            let (question, _) = log.after(&root, None, &instance);
            let known = ask.heard.into_iter().find(|(origin, _)| *origin == question.origin);
            log.after(&root, Some(known.map(|(_, position)| position)), &instance).0
        };
        let message = tokio::task::spawn_blocking(find).await;
        match message.ok().and_then(|message| serde_json::to_string(&message).ok()) {
            Some(text) => json(StatusCode::OK, text),
            None => refusal(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// Carries out what a sibling told, if it follows what was heard before.
    ///
    /// # Errors
    /// Then nothing is noted as heard, and all of it is told again.
    pub(super) async fn take(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        message: Message,
    ) -> Result<(), Untaken> {
        let root = farm.docroot.as_ref().ok_or(Untaken::Failed)?;
        // One message at a time.
        let mut failed = root.hearing.lock().await;
        let docroot = {
            let root = Arc::clone(root);
            tokio::task::spawn_blocking(move || {
                let docroot = root.current()?;
                read_heard(&docroot);
                Ok::<_, std::io::Error>(docroot)
            })
        };
        let Ok(Ok(docroot)) = docroot.await else { return Err(Untaken::Failed) };
        let position = position_in(&docroot, &message.origin);
        if position != message.prev {
            return Err(Untaken::Elsewhere(position));
        }
        let Message { origin, next, events, .. } = message;
        let (count, now) = (events.len() as u64, self.runtime.clock.tick());
        let tried = Tried { next: next.clone(), is_of_all: events.contains(&Event::All) };
        let since = failed.since(&origin, &tried);
        if let Err(error) = self.carry_out_all(farm, &events, since).await {
            failed.note(&origin, tried, since.unwrap_or(now));
            if since.is_none() {
                tracing::warn!(farm = %farm.farm.name, reason = %error,
                    "cannot carry out what a sibling told; it is told again");
            }
            return Err(Untaken::Failed);
        }
        failed.forget(&origin);
        self.metrics.add(Counter::FlushesHeard, count);
        if position.as_ref() == Some(&next) {
            return Ok(());
        }
        let note = move || {
            let text = {
                let mut heard = docroot.heard.lock();
                let heard = heard.get_or_insert_with(Heard::default);
                heard.note(&origin, next);
                heard.to_text()
            };
            docroot.write_own(HEARD_FILE, &text, 0o600)
        };
        if let Ok(Err(error)) = tokio::task::spawn_blocking(note).await {
            // It is remembered as long as this process lives; later the same is heard again, which is safe.
            tracing::warn!(farm = %farm.farm.name, reason = %error, "cannot write down what was heard of siblings");
        }
        Ok(())
    }

    /// Carries events out; `since` is when that was tried first, if it failed.
    async fn carry_out_all(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        events: &[Event],
        since: Option<SystemTime>,
    ) -> std::io::Result<()> {
        let events = events.iter().map(|event| self.carry_out(farm, event, since));
        let done = futures_util::future::join_all(events).await;
        let (mut handling, mut failure) = (Vec::new(), None);
        for outcome in done {
            match outcome {
                Ok(call) => handling.extend(call),
                Err(error) => failure = Some(error),
            }
        }
        handler::wait_for(handling, &farm.farm.name, HANDLER_PATIENCE).await;
        failure.map_or(Ok(()), Err)
    }

    /// Carries an event out; returns the call of the handler program, which goes on by itself.
    async fn carry_out(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        event: &Event,
        since: Option<SystemTime>,
    ) -> std::io::Result<Option<JoinHandle<()>>> {
        let unsound = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        match event {
            Event::Flush(flush) => {
                let message = flush.message().ok_or_else(unsound)?;
                self.log(Level::Info, || {
                    let (action, handle) = (message.action.as_str(), &message.handle);
                    format!("Activation passed on by a sibling: action={action} [{handle}]")
                });
                self.apply(farm, message).await
            }
            Event::Page(target) => {
                let view = page(target).ok_or_else(unsound)?;
                // A page that is not cached here has no file.
                self.purge_page(farm, &view).await.map_or(Ok(None), |purged| purged.map(|_| None))
            }
            Event::Keys(keys) => {
                let purged = self.purge_keyed(farm, keys.clone()).await;
                purged.map_or(Ok(None), |purged| purged.map(|_| None))
            }
            Event::Stats => self.doubt(farm, Doubt::OfStats, since).await.map(|()| None),
            Event::All => {
                if since.is_none() {
                    self.metrics.count(Counter::SiblingResets);
                    tracing::warn!(farm = %farm.farm.name,
                        "flushes of a sibling may have been missed: all files count as out of date");
                }
                self.doubt(farm, Doubt::OfAll, since).await.map(|()| None)
            }
        }
    }

    /// Makes files out of date, whatever they are. What was tried already and failed is only completed: files that were asked
    /// for after `since` are as new as that can make them.
    async fn doubt(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        doubt: Doubt,
        since: Option<SystemTime>,
    ) -> std::io::Result<()> {
        let (inner, farm) = (Arc::clone(self), Arc::clone(farm));
        let work = move || {
            let Some(root) = &farm.docroot else { return Ok(()) };
            let now = inner.runtime.clock.tick();
            if since.is_none() {
                root.note_flush(now);
                if doubt == Doubt::OfAll {
                    inner.flights.flush(|file| file.starts_with(root.path()));
                }
            }
            let docroot = root.current()?;
            let mut done = inner.touch_all(&docroot, since);
            if doubt == Doubt::OfAll {
                // A time to come says nothing of when a file was asked for.
                let is_meant = |at: SystemTime| since.is_none_or(|since| at <= since || at > now);
                let mut mark = |file: &Path| done.add(docroot.mark_file_if(file, &is_meant));
                // What is stored from now on was asked for after the flushes that were missed.
                let listed = docroot.list_servable(&mut mark);
                done.note(listed);
            }
            inner.memory.note_change();
            inner.metrics.add(Counter::FilesMarked, done.marked as u64);
            done.failure.map_or(Ok(()), Err)
        };
        let worked = tokio::task::spawn_blocking(work).await;
        worked.unwrap_or_else(|_panicked| Err(std::io::ErrorKind::Other.into()))
    }

    /// Returns how far siblings were heard.
    pub(super) async fn heard_of(&self, farm: &FarmState) -> Option<Vec<(String, Position)>> {
        let root = Arc::clone(farm.docroot.as_ref()?);
        let read = move || {
            let docroot = root.current().ok()?;
            read_heard(&docroot);
            let heard = docroot.heard.lock();
            heard.as_ref().map(|heard| heard.all().to_vec())
        };
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }
}

/// What is made out of date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// What obeys `.stat` files.
    OfStats,
    /// Every file.
    OfAll,
}

/// Reads how far siblings were heard, if that was not done yet; does file work.
fn read_heard(docroot: &Docroot) {
    let mut heard = docroot.heard.lock();
    if heard.is_some() {
        return;
    }
    let text = docroot.read_own(HEARD_FILE, MAX_HEARD_BYTES);
    let read = match &text {
        Ok(None) => Some(Heard::default()),
        Ok(Some(text)) => Heard::parse(text),
        Err(_) => None,
    };
    *heard = Some(read.unwrap_or_else(|| {
        let file = docroot.path().join(HEARD_FILE);
        tracing::warn!(file = %file.display(), "cannot read what was heard of siblings; they begin anew");
        Heard::default()
    }));
}

fn position_in(docroot: &Docroot, origin: &str) -> Option<Position> {
    docroot.heard.lock().as_ref()?.position(origin).cloned()
}

/// Returns the farm that a message is for; nothing for a version that is not known.
fn farm_of(headers: &HeaderMap) -> Option<String> {
    let (version, name) = headers.get(PASSED)?.to_str().ok()?.split_once(' ')?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    (version == VERSION).then(|| name.into_owned())
}

fn json(status: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::super::send::ANSWER_PATIENCE;
    use crate::any::Sources;
    use crate::config::Config;
    use crate::gossip::message::{Message, Position};
    use crate::{Dispatcher, Runtime};
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
        let loaded = Config::parse(text.as_bytes(), Path::new("test.any"), &Sources::default());
        let inner = Dispatcher::new(loaded.config, Runtime::default()).unwrap().current();
        let event = serde_json::from_str(r#"{"flush":{"action":"Activate","handle":"/a"}}"#);
        let message = Message {
            origin: "o".to_owned(),
            instance: "i".to_owned(),
            prev: None,
            next: Position { run: "r".to_owned(), count: 40 },
            events: vec![event.unwrap(); 40],
        };
        let began = Instant::now();
        inner.take(&inner.farms[0], message.clone()).await.unwrap();
        assert!(began.elapsed() < ANSWER_PATIENCE / 2, "{:?}", began.elapsed());
        assert_eq!(
            inner.heard_of(&inner.farms[0]).await,
            Some(vec![("o".to_owned(), message.next)])
        );
    }
}
