//! Soft launch: a farm for a share of the visitors.
//!
//! A visitor gets a lot from 0 to 9999 at the first request and stores it in a cookie. The farm serves visitors whose
//! lot is below its share, so raising the share keeps everyone who is in, and lowering it keeps everyone who is out.
//!
//! Lots are assigned in sequence, not at random, so that shares are exact from the first hundred visitors on. A lot
//! reveals nothing about a visitor except its order of arrival.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use http::{HeaderMap, HeaderValue, header};
use parking_lot::RwLock;

use crate::config::{DispatcherConfig, FarmConfig};
use crate::request::view::RequestView;

/// The cookie that holds a lot.
const LOT_COOKIE: &str = "tympan-lot";

const LOT_COUNT: u32 = 10_000;

/// The step between consecutive lots. Coprime to [`LOT_COUNT`] and near its golden section, so that every run of lots
/// is spread evenly.
const LOT_STEP: u32 = 6181;

/// Thirty days, so that a visitor keeps the lot throughout a launch.
const LOT_COOKIE_MAX_AGE: u32 = 30 * 24 * 60 * 60;

/// Assigns lots, and stores the shares that were changed at run time.
#[derive(Debug, Default)]
pub(crate) struct FarmShares {
    next_lot: AtomicU32,
    overrides: RwLock<HashMap<String, f64>>,
}

impl FarmShares {
    /// Returns the visitor's lot, and true if it is a new one.
    pub(crate) fn visitor_lot(&self, view: &RequestView) -> (u32, bool) {
        let stored_lot =
            view.cookie(LOT_COOKIE).and_then(|lot| std::str::from_utf8(lot).ok()?.parse().ok());
        let stored_lot = stored_lot.filter(|lot| *lot < LOT_COUNT);
        match stored_lot {
            Some(lot) => (lot, false),
            None => {
                let turn = self.next_lot.fetch_add(1, Ordering::Relaxed) % LOT_COUNT;
                (turn * LOT_STEP % LOT_COUNT, true)
            }
        }
    }

    /// Returns the share of a farm in percent.
    pub(crate) fn share_percent(&self, farm: &FarmConfig) -> f64 {
        let share = farm.visitor_share.as_ref().map_or(100.0, |share| share.percent);
        self.overrides.read().get(&farm.name).copied().unwrap_or(share)
    }

    /// Sets the share of a farm until the next reload.
    pub(crate) fn set_share(&self, farm: &str, percent: f64) {
        self.overrides.write().insert(farm.to_owned(), percent.clamp(0.0, 100.0));
    }

    /// Drops changed shares, since a new configuration sets its own.
    pub(crate) fn clear_overrides(&self) {
        self.overrides.write().clear();
    }

    /// Returns true if the farm serves a visitor.
    pub(crate) fn admits_visitor(&self, farm: &FarmConfig, view: &RequestView, lot: u32) -> bool {
        let Some(share) = &farm.visitor_share else { return true };
        share.addresses.allows(&view.client.to_string())
            || f64::from(lot) < self.share_percent(farm) * f64::from(LOT_COUNT) / 100.0
    }
}

/// Returns true if any farm serves only a share of the visitors.
pub(crate) fn has_shares(config: &DispatcherConfig) -> bool {
    config.farms.iter().any(|farm| farm.visitor_share.is_some())
}

/// Adds the lot cookie to a response.
pub(crate) fn add_lot_cookie(headers: &mut HeaderMap, view: &RequestView, lot: u32) {
    let secure = if view.is_tls { "; Secure" } else { "" };
    let cookie = format!(
        "{LOT_COOKIE}={lot}; Path=/; Max-Age={LOT_COOKIE_MAX_AGE}; HttpOnly; SameSite=Lax{secure}"
    );
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::{LOT_COUNT, LOT_STEP};

    #[test]
    fn lots_are_all_different_and_every_run_of_them_is_spread() {
        let lots: Vec<u32> = (0..LOT_COUNT).map(|turn| turn * LOT_STEP % LOT_COUNT).collect();
        let distinct: std::collections::HashSet<u32> = lots.iter().copied().collect();
        assert_eq!(distinct.len(), 10_000);
        for run in [100, 1000, 10_000] {
            let below = lots.iter().take(run).filter(|lot| **lot < 1000).count();
            assert!(below.abs_diff(run / 10) * 100 <= run, "{below} of {run}");
        }
    }
}
