//! What a dispatcher is doing, for people and programs that watch it.

use std::time::Duration;

use serde::Serialize;

use crate::dispatcher::{FarmState, Inner};
use crate::metrics::{Counter, OUTCOMES};
use crate::room::{DiskStatus, disk_status};

/// What a dispatcher is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// Seconds since the start.
    pub uptime: u64,
    /// Requests that are being answered.
    pub in_flight: u64,
    /// Requests that no render was asked for, in percent.
    pub hit_ratio: f64,
    /// Requests refused by a filter or for their path.
    pub refused: u64,
    /// Requests refused as their client asked too much.
    pub rate_limited: u64,
    /// Pages that are being fetched.
    pub fetches: u64,
    /// Whether each farm has a render to ask.
    pub is_well: bool,
    /// The farms in textual order.
    pub farms: Vec<FarmStatus>,
}

/// What one farm is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FarmStatus {
    /// Its label.
    pub name: String,
    /// For how many of a hundred visitors it is, if not for all.
    pub share: Option<f64>,
    /// Requests that no render was asked for, in percent.
    pub hit_ratio: f64,
    /// Requests by what the cache did.
    pub requests: Vec<(&'static str, u64)>,
    /// Why answers were not stored: name, text, how often.
    pub not_cached: Vec<(String, String, u64)>,
    /// Folders: path, requests, how many in percent came from the cache.
    pub prefixes: Vec<(String, u64, f64)>,
    /// The URLs that are asked for most, and about how often.
    pub top: Vec<(String, u64)>,
    /// Flushed pages that wait to be fetched again.
    pub refetch_queue: u64,
    /// What its document root takes of the disk, if it has one.
    pub disk: Option<DiskStatus>,
    /// Its renders.
    pub renders: Vec<RenderLine>,
}

/// How a render is doing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RenderLine {
    /// Its label.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// `in`, `slow start`, `trial`, `out`, `failing` if it did not answer lately, or `ill` by its health page.
    pub standing: &'static str,
    /// Requests that it works on.
    pub in_flight: u32,
    /// Requests that wait for it.
    pub waiting: usize,
    /// Answers since the configuration was loaded.
    pub answered: u64,
    /// Failures since the configuration was loaded.
    pub failed: u64,
    /// Its score in milliseconds; the lower one is asked first.
    pub score: f64,
}

impl RenderLine {
    /// Tells whether the render is likely to answer the next request.
    pub(crate) fn answers(&self) -> bool {
        !matches!(self.standing, "out" | "ill" | "failing")
    }
}

/// So many URLs, folders and reasons are told.
const MOST: usize = 20;

impl Inner {
    pub(crate) fn status(&self, uptime: Duration) -> Status {
        let farms: Vec<FarmStatus> = self.farms.iter().map(|farm| self.farm_status(farm)).collect();
        let is_well = |farm: &FarmStatus| {
            farm.renders.is_empty() || farm.renders.iter().any(RenderLine::answers)
        };
        Status {
            uptime: uptime.as_secs(),
            in_flight: self.metrics.present(),
            hit_ratio: self.metrics.hit_ratio(),
            refused: self.metrics.value(Counter::Refused),
            rate_limited: self.metrics.value(Counter::RateLimited),
            fetches: self.flights.count() as u64,
            is_well: farms.iter().all(is_well),
            farms,
        }
    }

    fn farm_status(&self, state: &FarmState) -> FarmStatus {
        let (farm, tally) = (&state.farm, &state.tally);
        let counts = tally.outcomes();
        let [hits, stale, ..] = counts;
        let reasons = tally.reasons().into_iter().take(MOST);
        let prefixes = tally.prefixes().into_iter().take(MOST);
        let renders = state.upstream.renders().into_iter().map(|render| RenderLine {
            name: render.name,
            address: render.address,
            standing: render.standing,
            in_flight: render.in_flight,
            waiting: render.waiting,
            answered: render.answered,
            failed: render.failed,
            score: render.score,
        });
        FarmStatus {
            name: farm.name.clone(),
            share: farm.share.as_ref().map(|_| self.shares.percent(farm)),
            hit_ratio: percent(hits + stale, counts.iter().sum()),
            requests: OUTCOMES.into_iter().zip(counts).collect(),
            not_cached: reasons
                .map(|(reason, count)| (format!("{reason:?}"), reason.to_string(), count))
                .collect(),
            prefixes: prefixes
                .map(|prefix| {
                    let ratio = percent(prefix.from_cache, prefix.requests);
                    (prefix.prefix, prefix.requests, ratio)
                })
                .collect(),
            top: tally.top.first(MOST),
            refetch_queue: state.refetch.len(),
            disk: state.docroot.as_deref().map(disk_status),
            renders: renders.collect(),
        }
    }
}

fn percent(part: u64, all: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
    let percent = part as f64 * 100.0 / all.max(1) as f64;
    percent
}
