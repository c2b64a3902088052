//! The search of a setting: four times as much while that pays, then twice or half as much once.
//!
//! Pure, but for the trials that it asks for. The rule and its figures are those of the tuning guide for Obnam: a setting
//! that holds what is at work at once pays at once, and more of it pays nothing.

use std::collections::BTreeMap;

/// Less is no gain.
const GAIN: f64 = 0.05;
/// What is slower by less is as fast, and the smaller setting is taken.
const ALIKE: f64 = 0.03;
/// A first run that is slower by more is not run again.
const HOPELESS: f64 = 0.10;

/// What one run took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    pub(super) seconds: f64,
    pub(super) peak_bytes: u64,
}

/// All runs with one setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Runs(pub(super) Vec<Trial>);

impl Runs {
    /// Returns the mean time.
    pub(super) fn seconds(&self) -> f64 {
        self.0.iter().map(|run| run.seconds).sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Returns the shortest and the longest time.
    pub(super) fn span(&self) -> (f64, f64) {
        let times = self.0.iter().map(|run| run.seconds);
        times.fold((f64::INFINITY, 0.0), |(least, most), time| (least.min(time), most.max(time)))
    }

    /// Returns the least and the most memory at its peak.
    pub(super) fn memory(&self) -> (u64, u64) {
        let peaks = self.0.iter().map(|run| run.peak_bytes);
        peaks.fold((u64::MAX, 0), |(least, most), peak| (least.min(peak), most.max(peak)))
    }
}

/// A setting that is searched, from where and between which bounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) least: u64,
    pub(super) most: u64,
}

/// Searches; returns the best setting, and all that was tried.
///
/// # Errors
/// What a trial says.
pub(super) fn sweep<E>(
    range: Range,
    trial: &mut dyn FnMut(u64) -> Result<Trial, E>,
) -> Result<(u64, BTreeMap<u64, Runs>), E> {
    let mut tried: BTreeMap<u64, Runs> = BTreeMap::new();
    for _ in 0..2 {
        tried.entry(range.start).or_default().0.push(trial(range.start)?);
    }
    let mut best = range.start;
    while let Some(next) = best.checked_mul(4).filter(|next| *next <= range.most) {
        if !is_better(best, next, &mut tried, trial)? {
            break;
        }
        best = next;
    }
    for next in [best.checked_mul(2), Some(best / 2)].into_iter().flatten() {
        if (range.least..=range.most).contains(&next)
            && !tried.contains_key(&next)
            && is_better(best, next, &mut tried, trial)?
        {
            best = next;
            break;
        }
    }
    // What costs less memory and takes no longer is taken.
    let fastest = mean(&tried, best);
    let alike = |value: &u64| mean(&tried, *value) <= fastest * (1.0 + ALIKE);
    let best = tried.keys().copied().find(|value| *value <= best && alike(value)).unwrap_or(best);
    Ok((best, tried))
}

fn mean(tried: &BTreeMap<u64, Runs>, value: u64) -> f64 {
    tried.get(&value).map_or(f64::INFINITY, Runs::seconds)
}

/// Tries a setting twice, with the best one in between so that a machine that gets slower is no verdict; once if the first
/// run is hopeless.
fn is_better<E>(
    best: u64,
    next: u64,
    tried: &mut BTreeMap<u64, Runs>,
    trial: &mut dyn FnMut(u64) -> Result<Trial, E>,
) -> Result<bool, E> {
    let first = trial(next)?;
    tried.entry(next).or_default().0.push(first);
    if first.seconds > mean(tried, best) * (1.0 + HOPELESS) {
        return Ok(false);
    }
    for value in [best, next] {
        tried.entry(value).or_default().0.push(trial(value)?);
    }
    Ok(mean(tried, next) <= mean(tried, best) * (1.0 - GAIN))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn best(range: Range, time: fn(u64) -> f64) -> (u64, Vec<(u64, usize)>) {
        let mut trial = |value: u64| {
            Ok::<_, Infallible>(Trial { seconds: time(value), peak_bytes: value << 20 })
        };
        let Ok((best, tried)) = sweep(range, &mut trial);
        (best, tried.into_iter().map(|(value, runs)| (value, runs.0.len())).collect())
    }

    /// The table of the guide: 128 took 22 minutes, 512 took 2.2, and 2048 no less.
    #[test]
    fn the_knee_is_found_in_few_trials() {
        let range = Range { start: 128, least: 1, most: 1 << 20 };
        let obnam = |value| match value {
            ..256 => 1320.0,
            256..512 => 700.0,
            _ => 132.0,
        };
        let (found, tried) = best(range, obnam);
        assert_eq!(found, 512);
        assert_eq!(tried, [(128, 3), (256, 1), (512, 4), (1024, 2), (2048, 2)]);
    }

    #[test]
    fn what_pays_nothing_stays_as_small_as_it_may() {
        let range = Range { start: 32, least: 1, most: 1024 };
        let (found, _) = best(range, |_| 10.0);
        assert_eq!(found, 16, "half of it is as fast");
        let (found, tried) = best(Range { start: 4, least: 4, most: 8 }, |_| 1.0);
        assert_eq!((found, tried), (4, vec![(4, 3), (8, 2)]));
        // Four times as much is too much, twice is right.
        let (found, _) = best(range, |value| if value == 64 { 5.0 } else { 10.0 });
        assert_eq!(found, 64);
    }
}
