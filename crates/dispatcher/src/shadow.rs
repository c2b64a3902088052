//! Asking other renders for a part of what is fetched, and comparing what they answer (`/x-shadow`), so that a new version or
//! another back end can be judged by real requests before a visitor sees it.
//!
//! In: a page that a render of the farm gave for the cache. Out: counters and log lines; nothing that a visitor gets.
//!
//! Invariants
//! * Nobody waits for a shadow: it is asked when the visitors have their page, and at most [`AT_ONCE`] at a time; what does
//!   not fit is left out.
//! * What a shadow answers is stored nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;

use crate::config::Farm;
use crate::dispatcher::{FarmState, Inner, Runtime};
use crate::hit::is_same_media_type;
use crate::log::Level;
use crate::metrics::Counter;
use crate::page::SMALL_BYTES;
use crate::upstream::{Call, CallBody, Upstream};

/// Questions at the same time.
const AT_ONCE: usize = 4;

/// The shadow of a farm.
#[derive(Debug)]
pub(crate) struct Shadow {
    upstream: Upstream,
    percent: f64,
    turn: AtomicU64,
    places: Arc<Semaphore>,
}

/// A page that was fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(crate) target: String,
    /// Of the request.
    pub(crate) headers: HeaderMap,
    /// Of the answer.
    pub(crate) kind: Option<HeaderValue>,
    pub(crate) body: Bytes,
}

impl Shadow {
    /// Returns the shadow of a farm, if it has one.
    pub(crate) fn of(farm: &Farm, runtime: &Runtime) -> Option<Self> {
        let (percent, renders) = farm.shadow.clone()?;
        let mut asked = farm.clone();
        asked.name = format!("{} (shadow)", farm.name);
        (asked.renders, asked.rounds, asked.has_failover) = (renders, 1, false);
        asked.health.has_breaker = true;
        let upstream = Upstream::new(&Arc::new(asked), runtime, None);
        let (turn, places) = (AtomicU64::new(0), Arc::new(Semaphore::new(AT_ONCE)));
        Some(Self { upstream, percent, turn, places })
    }

    /// Tells whether the next page is one of the share, which is spread evenly.
    fn is_next(&self) -> bool {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a count of pages needs no more than 52 bits"
        )]
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as f64;
        let taken = |turns: f64| (turns * self.percent / 100.0).floor();
        taken(turn + 1.0) > taken(turn)
    }
}

/// What a shadow says.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Different(String),
    Failed,
}

impl Inner {
    /// Has the shadow of a farm asked for a page, if it is one of its share.
    pub(crate) fn ask_shadow(
        self: &Arc<Self>,
        farm: &Arc<FarmState>,
        fetched: impl FnOnce() -> Fetched,
    ) {
        let Some(shadow) = farm.shadow.as_ref().filter(|shadow| shadow.is_next()) else { return };
        let Ok(place) = Arc::clone(&shadow.places).try_acquire_owned() else {
            return self.metrics.count(Counter::ShadowsSkipped);
        };
        let (inner, farm, fetched) = (Arc::clone(self), Arc::clone(farm), fetched());
        tokio::spawn(async move {
            let _place = place;
            let target = fetched.target.clone();
            let Some(shadow) = &farm.shadow else { return };
            inner.metrics.count(match shadow.judge(fetched).await {
                Verdict::Same => Counter::ShadowsSame,
                Verdict::Failed => Counter::ShadowFailures,
                Verdict::Different(how) => {
                    tracing::info!(farm = %farm.farm.name, path = target, reason = how, "a shadow answers otherwise");
                    inner.log(Level::Warn, || format!("Shadow differs for [{target}]: {how}"));
                    Counter::ShadowsDifferent
                }
            });
        });
    }
}

impl Shadow {
    async fn judge(&self, fetched: Fetched) -> Verdict {
        let Fetched { target, headers, kind, body } = fetched;
        let call =
            Call { method: Method::GET, target, headers, body: CallBody::empty(), sticky: None };
        let Ok(answer) = self.upstream.send(&call).await else { return Verdict::Failed };
        let (parts, mut theirs) = answer.response.into_parts();
        if parts.status != StatusCode::OK {
            return Verdict::Different(format!("status {} in place of 200", parts.status.as_u16()));
        }
        let their_kind = parts.headers.get(header::CONTENT_TYPE);
        let is_same_kind = match (&kind, their_kind) {
            (Some(own), Some(their)) => is_same_media_type(own, their),
            (None, None) => true,
            _ => false,
        };
        if !is_same_kind {
            let text = |kind: Option<&HeaderValue>| {
                kind.map_or("none".to_owned(), |kind| {
                    String::from_utf8_lossy(kind.as_bytes()).into()
                })
            };
            let (own, their): (String, String) = (text(kind.as_ref()), text(their_kind));
            return Verdict::Different(format!("type {their} in place of {own}"));
        }
        let mut at = 0;
        while let Some(frame) = theirs.frame().await {
            let Ok(frame) = frame else { return Verdict::Failed };
            let piece = frame.into_data().unwrap_or_default();
            let own = body.get(at..).unwrap_or_default();
            let alike = own.iter().zip(&piece).take_while(|(own, their)| own == their).count();
            if alike < piece.len() || at + piece.len() > SMALL_BYTES {
                return Verdict::Different(format!("body differs at byte {}", at + alike));
            }
            at += piece.len();
        }
        if at < body.len() {
            return Verdict::Different(format!("body ends at byte {at} of {}", body.len()));
        }
        Verdict::Same
    }
}
