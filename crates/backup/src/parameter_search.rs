//! The search for the best value of a setting of saves: multiply by four while that pays, then try twice and half once.
//!
//! Pure, except for the trials that it requests. The rule and its constants are those of the tuning guide for Obnam: a
//! setting that fits the working set pays at once, and a larger one pays nothing.

use std::collections::BTreeMap;

/// A smaller relative gain does not count.
const MIN_GAIN: f64 = 0.05;
/// Values that are slower by less than this count as equally fast, and the smaller one is taken.
const EQUALITY_TOLERANCE: f64 = 0.03;
/// A first run that is slower by more than this is not repeated.
const HOPELESS_SLOWDOWN: f64 = 0.10;
const BYTES_PER_MIB: u64 = 1 << 20;

/// The measurements of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SaveTrial {
    /// The duration, in seconds.
    pub seconds: f64,
    /// The peak memory, in bytes.
    pub peak_bytes: u64,
}

/// All runs with one value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SaveTrialSeries(pub Vec<SaveTrial>);

impl SaveTrialSeries {
    /// Returns the mean time.
    #[must_use]
    pub fn mean_seconds(&self) -> f64 {
        self.0.iter().map(|run| run.seconds).sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Returns the shortest and the longest time.
    #[must_use]
    pub fn seconds_range(&self) -> (f64, f64) {
        let times = self.0.iter().map(|run| run.seconds);
        times.fold((f64::INFINITY, 0.0), |(least, most), time| (least.min(time), most.max(time)))
    }

    /// Returns the minimum and the maximum of the peak memory.
    #[must_use]
    pub fn peak_memory_range(&self) -> (u64, u64) {
        let peaks = self.0.iter().map(|run| run.peak_bytes);
        peaks.fold((u64::MAX, 0), |(least, most), peak| (least.min(peak), most.max(peak)))
    }
}

/// The start value and the bounds of a searched setting.
#[derive(Clone, Copy, Debug)]
pub struct TunedSettingRange {
    /// The first value that is tried.
    pub start: u64,
    /// The minimum.
    pub min: u64,
    /// The maximum.
    pub max: u64,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct SettingSearch {
    /// The best value.
    pub best: u64,
    /// All trials, by value.
    pub tried: BTreeMap<u64, SaveTrialSeries>,
}

impl SettingSearch {
    /// Returns the cost and the gain of the best value compared with the smallest one tried, as text.
    #[must_use]
    pub fn tradeoff(&self) -> Option<String> {
        let (least, small) = self.tried.first_key_value()?;
        let chosen = self.tried.get(&self.best).filter(|_| *least != self.best)?;
        let memory = (chosen.peak_memory_range().1 as f64 - small.peak_memory_range().1 as f64)
            / BYTES_PER_MIB as f64;
        let time = (chosen.mean_seconds() / small.mean_seconds() - 1.0) * 100.0;
        Some(format!("compared with {least}: {memory:+.0} MiB of memory, {time:+.0} % time"))
    }
}

/// Searches for the best value of a setting. `trial` performs a save with a value.
///
/// # Errors
/// If a trial fails.
pub fn search_best_setting<E>(
    range: TunedSettingRange,
    trial: &mut dyn FnMut(u64) -> Result<SaveTrial, E>,
) -> Result<SettingSearch, E> {
    let mut tried: BTreeMap<u64, SaveTrialSeries> = BTreeMap::new();
    for _ in 0..2 {
        tried.entry(range.start).or_default().0.push(trial(range.start)?);
    }
    let mut best = range.start;
    while let Some(next) = best.checked_mul(4).filter(|next| *next <= range.max) {
        if !is_better(best, next, &mut tried, trial)? {
            break;
        }
        best = next;
    }
    for next in [best.checked_mul(2), Some(best / 2)].into_iter().flatten() {
        if (range.min..=range.max).contains(&next)
            && !tried.contains_key(&next)
            && is_better(best, next, &mut tried, trial)?
        {
            best = next;
            break;
        }
    }
    // Take the value that needs less memory and is not slower.
    let fastest = mean_seconds_of(&tried, best);
    let alike =
        |value: &u64| mean_seconds_of(&tried, *value) <= fastest * (1.0 + EQUALITY_TOLERANCE);
    let best = tried.keys().copied().find(|value| *value <= best && alike(value)).unwrap_or(best);
    Ok(SettingSearch { best, tried })
}

fn mean_seconds_of(tried: &BTreeMap<u64, SaveTrialSeries>, value: u64) -> f64 {
    tried.get(&value).map_or(f64::INFINITY, SaveTrialSeries::mean_seconds)
}

/// Tries a value twice, with a run of the best one in between so that a machine that gets slower does not distort the
/// result; once if the first run is hopeless.
fn is_better<E>(
    best: u64,
    next: u64,
    tried: &mut BTreeMap<u64, SaveTrialSeries>,
    trial: &mut dyn FnMut(u64) -> Result<SaveTrial, E>,
) -> Result<bool, E> {
    let first = trial(next)?;
    tried.entry(next).or_default().0.push(first);
    if first.seconds > mean_seconds_of(tried, best) * (1.0 + HOPELESS_SLOWDOWN) {
        return Ok(false);
    }
    for value in [best, next] {
        tried.entry(value).or_default().0.push(trial(value)?);
    }
    Ok(mean_seconds_of(tried, next) <= mean_seconds_of(tried, best) * (1.0 - MIN_GAIN))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn best(range: TunedSettingRange, time: fn(u64) -> f64) -> (u64, Vec<(u64, usize)>) {
        let mut trial = |value: u64| {
            Ok::<_, Infallible>(SaveTrial { seconds: time(value), peak_bytes: value << 20 })
        };
        let Ok(search) = search_best_setting(range, &mut trial);
        (search.best, search.tried.into_iter().map(|(value, runs)| (value, runs.0.len())).collect())
    }

    /// The table of the guide: 128 took 22 minutes, 512 took 2.2, and 2048 was not faster.
    #[test]
    fn the_knee_is_found_in_few_trials() {
        let range = TunedSettingRange { start: 128, min: 1, max: 1 << 20 };
        let obnam = |value| match value {
            ..256 => 1320.0,
            256..512 => 700.0,
            _ => 132.0,
        };
        let (best_value, tried) = best(range, obnam);
        assert_eq!(best_value, 512);
        assert_eq!(tried, [(128, 3), (256, 1), (512, 4), (1024, 2), (2048, 2)]);
    }

    #[test]
    fn what_pays_nothing_stays_as_small_as_it_may() {
        let range = TunedSettingRange { start: 32, min: 1, max: 1024 };
        let (best_value, _) = best(range, |_| 10.0);
        assert_eq!(best_value, 16, "half of it is as fast");
        let (best_value, tried) = best(TunedSettingRange { start: 4, min: 4, max: 8 }, |_| 1.0);
        assert_eq!((best_value, tried), (4, vec![(4, 3), (8, 2)]));
        // Four times the start value is too much, twice is right.
        let (best_value, _) = best(range, |value| if value == 64 { 5.0 } else { 10.0 });
        assert_eq!(best_value, 64);
    }
}
