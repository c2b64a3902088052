//! The status of a dispatcher, for people and programs that monitor it.

use std::time::Duration;

use serde::Serialize;

use crate::cache::quota_enforcement::{DiskStatus, disk_status};
use crate::dispatcher_state::DispatcherState;
use crate::farm_state::FarmState;
use crate::observe::metrics::{DispatcherCounter, OUTCOME_NAMES};

/// The status of a dispatcher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DispatcherStatus {
    /// The uptime in seconds.
    pub uptime: u64,
    /// The number of requests in flight.
    pub in_flight: u64,
    /// The percentage of requests served without a request to a render.
    pub hit_ratio: f64,
    /// Requests refused by a filter or for their path.
    pub refused: u64,
    /// Requests refused because their client exceeded its rate.
    pub rate_limited: u64,
    /// The number of pages being fetched.
    pub fetches: u64,
    /// True if each farm has an available render.
    pub is_well: bool,
    /// The farms in textual order.
    pub farms: Vec<FarmStatus>,
}

/// The status of one farm.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FarmStatus {
    /// Its label.
    pub name: String,
    /// The percentage of visitors that it serves; `None` for all.
    pub share: Option<f64>,
    /// The percentage of requests served without a request to a render.
    pub hit_ratio: f64,
    /// The counts of requests by cache outcome.
    pub requests: Vec<(&'static str, u64)>,
    /// The reasons why responses were not stored: name, text, count.
    pub not_cached: Vec<(String, String, u64)>,
    /// The folders: path, number of requests, percentage served from the cache.
    pub prefixes: Vec<(String, u64, f64)>,
    /// The most requested URLs with their approximate counts.
    pub top: Vec<(String, u64)>,
    /// The number of flushed pages that wait to be fetched again.
    pub refetch_queue: u64,
    /// The disk usage of its document root, if it has one.
    pub disk: Option<DiskStatus>,
    /// Its renders.
    pub renders: Vec<RenderReport>,
}

/// The status of a render.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RenderReport {
    /// Its label.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// The state: `in`, `slow start`, `trial`, `out`, `failing` if it recently failed to respond, or `ill` by its
    /// health page.
    pub standing: &'static str,
    /// The number of requests in flight.
    pub in_flight: u32,
    /// The number of requests that wait for it.
    pub waiting: usize,
    /// The number of responses since the configuration was loaded.
    pub answered: u64,
    /// The number of failures since the configuration was loaded.
    pub failed: u64,
    /// Its score in milliseconds; the render with the lowest score is tried first.
    pub score: f64,
}

impl RenderReport {
    /// Returns true if the render is likely to respond to the next request.
    pub(crate) fn is_answering(&self) -> bool {
        !matches!(self.standing, "out" | "ill" | "failing")
    }
}

/// The maximum number of URLs, folders and reasons listed.
const MAX_LISTED_ITEMS: usize = 20;

impl DispatcherState {
    pub(crate) fn collect_status(&self, uptime: Duration) -> DispatcherStatus {
        let farms: Vec<FarmStatus> =
            self.parts.farms.iter().map(|farm| self.collect_farm_status(farm)).collect();
        let is_well = |farm: &FarmStatus| {
            farm.renders.is_empty() || farm.renders.iter().any(RenderReport::is_answering)
        };
        DispatcherStatus {
            uptime: uptime.as_secs(),
            in_flight: self.parts.metrics.in_flight(),
            hit_ratio: self.parts.metrics.hit_ratio(),
            refused: self.parts.metrics.value(DispatcherCounter::Refused),
            rate_limited: self.parts.metrics.value(DispatcherCounter::RateLimited),
            fetches: self.parts.fetch_coalescer.pending_count() as u64,
            is_well: farms.iter().all(is_well),
            farms,
        }
    }

    fn collect_farm_status(&self, state: &FarmState) -> FarmStatus {
        let (farm, farm_metrics) = (&state.config, &state.farm_metrics);
        let counts = farm_metrics.outcome_counts();
        let [hits, stale, ..] = counts;
        let reasons = farm_metrics.pass_reason_counts().into_iter().take(MAX_LISTED_ITEMS);
        let prefixes = farm_metrics.prefix_ratios().into_iter().take(MAX_LISTED_ITEMS);
        let renders = state.upstream.render_statuses().into_iter().map(|render| RenderReport {
            name: render.name,
            address: render.address,
            standing: render.availability,
            in_flight: render.in_flight,
            waiting: render.waiting_count,
            answered: render.answered_count,
            failed: render.failed_count,
            score: render.score,
        });
        FarmStatus {
            name: farm.name.clone(),
            share: farm.visitor_share.as_ref().map(|_| self.shares.share_percent(farm)),
            hit_ratio: percent_of(hits + stale, counts.iter().sum()),
            requests: OUTCOME_NAMES.into_iter().zip(counts).collect(),
            not_cached: reasons
                .map(|(reason, count)| (format!("{reason:?}"), reason.to_string(), count))
                .collect(),
            prefixes: prefixes
                .map(|prefix| {
                    let ratio = percent_of(prefix.from_cache, prefix.requests);
                    (prefix.prefix, prefix.requests, ratio)
                })
                .collect(),
            top: farm_metrics.heavy_hitters.most_requested(MAX_LISTED_ITEMS),
            refetch_queue: state.refetch_queue.len(),
            disk: state.docroot.as_deref().map(disk_status),
            renders: renders.collect(),
        }
    }
}

fn percent_of(part: u64, all: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more than 52 bits")]
    let percent = part as f64 * 100.0 / all.max(1) as f64;
    percent
}
