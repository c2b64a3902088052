//! Whether a cache file is out of date, as a pure function of times.

use std::time::{Duration, SystemTime};

/// What is known about a cache file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The time now.
    pub(crate) now: SystemTime,
    /// When the request that filled the file was sent.
    pub(crate) fetched: SystemTime,
    /// Whether a flush marked the file as stale.
    pub(crate) is_marked: bool,
    /// The time of the nearest `.stat` file, if the path obeys it and there is one.
    pub(crate) flushed: Option<SystemTime>,
    /// When the render's own limit ends, if one is kept.
    pub(crate) expires: Option<SystemTime>,
}

/// How fresh a cache file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// It may be served.
    Valid,
    /// Its time has run out.
    Expired,
    /// Something below its `.stat` file changed since.
    Stale,
    /// A flush named it; it may be served while it is replaced.
    Marked,
}

/// Judges a file; `grace` is how long it is served after the last touch of its `.stat` file.
#[must_use]
pub(crate) fn judge(facts: Facts, grace: Duration) -> Freshness {
    if facts.expires.is_some_and(|expires| facts.now > expires) {
        return Freshness::Expired;
    }
    if facts.is_marked {
        return Freshness::Marked;
    }
    // Without grace the time now does not count, since a clock that was set back would hide the flush.
    let is_over = |flushed: SystemTime| grace.is_zero() || facts.now > flushed + grace;
    let is_stale = facts.flushed.is_some_and(|flushed| flushed > facts.fetched && is_over(flushed));
    if is_stale { Freshness::Stale } else { Freshness::Valid }
}

#[cfg(test)]
mod tests {
    use super::{Facts, Freshness, judge};
    use std::time::{Duration, SystemTime};

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1000 + second)
    }

    fn facts(now: u64, fetched: u64) -> Facts {
        Facts { now: at(now), fetched: at(fetched), is_marked: false, flushed: None, expires: None }
    }

    #[test]
    fn the_stat_file_decides_unless_grace_holds() {
        let check = |now, fetched, flushed: Option<u64>, grace, expected| {
            let flushed = flushed.map(at);
            let facts = Facts { flushed, ..facts(now, fetched) };
            assert_eq!(judge(facts, Duration::from_secs(grace)), expected, "{facts:?}");
        };
        check(10, 5, None, 0, Freshness::Valid);
        check(10, 5, Some(4), 0, Freshness::Valid);
        check(10, 5, Some(5), 0, Freshness::Valid);
        check(10, 5, Some(6), 0, Freshness::Stale);
        check(10, 5, Some(9), 2, Freshness::Valid);
        check(11, 5, Some(9), 2, Freshness::Valid);
        check(12, 5, Some(9), 2, Freshness::Stale);
    }

    #[test]
    fn a_life_that_ended_goes_before_everything() {
        let expired = Facts { expires: Some(at(9)), ..facts(10, 5) };
        assert_eq!(judge(expired, Duration::from_secs(60)), Freshness::Expired);
        let living = Facts { expires: Some(at(10)), ..facts(10, 5) };
        assert_eq!(judge(living, Duration::ZERO), Freshness::Valid);
        let flushed = Facts { flushed: Some(at(7)), ..living };
        assert_eq!(judge(flushed, Duration::ZERO), Freshness::Stale);
    }

    #[test]
    fn a_mark_holds_without_a_stat_file_and_during_grace() {
        let marked = Facts { is_marked: true, ..facts(10, 5) };
        assert_eq!(judge(marked, Duration::from_secs(60)), Freshness::Marked);
    }
}
