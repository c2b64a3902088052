//! Compares two series of runs: trimmed means, their difference, and its statistical significance.
//!
//! The verdict comes from the ratio of the medians: a bootstrap interval of 95 %, and the Mann-Whitney test. If the
//! first median is 0, as that of errors commonly is, the interval is of the medians' difference, since nothing is a
//! multiple of 0.

use std::fmt;

use tympan_lab_plan::random_number;

/// The direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BetterDirection {
    /// Such as requests per second.
    Higher,
    /// Such as response times.
    Lower,
}

/// The comparison of one metric.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricComparison {
    /// The name of the metric.
    pub metric: String,
    /// Trimmed mean of the first series.
    pub mean_before: f64,
    /// Trimmed mean of the second series.
    pub mean_after: f64,
    /// `after - before`.
    pub difference: f64,
    /// The difference as a share of `before`; `None` if that is 0.
    pub difference_share: Option<f64>,
    /// Bounds of the difference of the medians, at 95 % confidence.
    pub confidence_interval: (f64, f64),
    /// The basis of the bounds.
    pub interval_basis: DifferenceBasis,
    /// Probability of a difference at least this large by chance.
    pub p_value: f64,
    /// True if this number of runs suffices to distinguish any difference from chance.
    pub has_enough_runs: bool,
    /// The direction in which the metric improves.
    pub better_direction: BetterDirection,
}

/// The basis of the bounds of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DifferenceBasis {
    /// Shares of the first median.
    ShareOfMedian,
    /// The difference itself, because the first median is 0.
    AbsoluteDifference,
}

/// The verdict of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComparisonVerdict {
    /// Better beyond noise.
    Better,
    /// Worse beyond noise.
    Worse,
    /// No significant difference.
    NoDifference,
    /// Too few runs to detect a difference of any size.
    TooFewRuns,
}

/// Returns the mean without the `trim` smallest and the `trim` largest values; 0 if nothing is left.
#[must_use]
pub fn trimmed_mean(values: &[f64], trim: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.get(trim..sorted.len().saturating_sub(trim)).unwrap_or_default();
    if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
}

/// A difference whose probability by chance reaches this value is noise.
const SIGNIFICANCE_LEVEL: f64 = 0.05;

/// Compares a metric of two series; `trim` values are dropped at each end for the means, if any remain.
#[must_use]
pub fn compare_series(
    metric: &str,
    before: &[f64],
    after: &[f64],
    trim: usize,
    better: BetterDirection,
) -> MetricComparison {
    let trim = if before.len().min(after.len()) > 2 * trim { trim } else { 0 };
    let (mean_before, mean_after) = (trimmed_mean(before, trim), trimmed_mean(after, trim));
    let difference = mean_after - mean_before;
    let (basis, interval) = bootstrap_interval(before, after);
    MetricComparison {
        metric: metric.to_owned(),
        mean_before,
        mean_after,
        difference,
        difference_share: (mean_before != 0.0).then(|| difference / mean_before),
        confidence_interval: interval,
        interval_basis: basis,
        p_value: mann_whitney_p_value(before, after),
        has_enough_runs: can_be_significant(before.len(), after.len()),
        better_direction: better,
    }
}

/// Returns true if series of these lengths can differ significantly at all.
fn can_be_significant(before: usize, after: usize) -> bool {
    let apart = |from: usize, count: usize| -> Vec<f64> {
        (from..from + count).map(|value| value as f64).collect()
    };
    mann_whitney_p_value(&apart(0, before), &apart(before, after)) < SIGNIFICANCE_LEVEL
}

impl MetricComparison {
    /// Returns the verdict of the comparison.
    #[must_use]
    pub fn verdict(&self) -> ComparisonVerdict {
        let (low, high) = self.confidence_interval;
        if !self.has_enough_runs {
            return ComparisonVerdict::TooFewRuns;
        }
        if self.p_value >= SIGNIFICANCE_LEVEL || (low <= 0.0 && high >= 0.0) {
            return ComparisonVerdict::NoDifference;
        }
        match (self.better_direction, self.difference > 0.0) {
            (BetterDirection::Higher, true) | (BetterDirection::Lower, false) => {
                ComparisonVerdict::Better
            }
            _ => ComparisonVerdict::Worse,
        }
    }

    /// Returns true if the difference is in the good direction, significant or not; tables use it for colors.
    #[must_use]
    pub fn is_improvement(&self) -> bool {
        match self.better_direction {
            BetterDirection::Higher => self.difference >= 0.0,
            BetterDirection::Lower => self.difference <= 0.0,
        }
    }

    /// Formats the difference for a table, `-1.01 (-0.4 %)`: the difference of the displayed means, which are rounded.
    #[must_use]
    pub fn format_difference(&self) -> String {
        let hundredths = |value: f64| (value * 100.0).round();
        let difference = (hundredths(self.mean_after) - hundredths(self.mean_before)) / 100.0;
        match self.difference_share {
            Some(share) => format!("{difference:+.2} ({})", format_percent(share)),
            None => format!("{difference:+.2}"),
        }
    }
}

/// Formats a share as a percentage: one decimal below 10 %, none above.
#[must_use]
pub fn format_percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent.abs() < 9.95 { format!("{percent:+.1} %") } else { format!("{percent:+.0} %") }
}

impl fmt::Display for MetricComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:.2} -> {:.2}, {}",
            self.metric,
            self.mean_before,
            self.mean_after,
            self.format_difference()
        )?;
        let (low, high) = self.confidence_interval;
        match self.interval_basis {
            DifferenceBasis::ShareOfMedian => {
                write!(f, " (interval {:+.1}..{:+.1} %): ", low * 100.0, high * 100.0)?
            }
            DifferenceBasis::AbsoluteDifference => {
                write!(f, " (interval {low:+.2}..{high:+.2}): ")?
            }
        }
        match self.verdict() {
            ComparisonVerdict::NoDifference => f.write_str("within noise"),
            ComparisonVerdict::TooFewRuns => f.write_str("too few runs to tell"),
            ComparisonVerdict::Better => f.write_str("better"),
            ComparisonVerdict::Worse => f.write_str("worse"),
        }
    }
}

fn median_of_sorted(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
    if sorted.len() % 2 == 1 {
        at(half)
    } else {
        f64::midpoint(at(half.saturating_sub(1)), at(half))
    }
}

/// Returns the bounds of the difference of the medians, and their basis; resampling uses a fixed seed.
fn bootstrap_interval(before: &[f64], after: &[f64]) -> (DifferenceBasis, (f64, f64)) {
    const ROUNDS: u64 = 2000;
    let mut sorted = before.to_vec();
    sorted.sort_by(f64::total_cmp);
    let base = median_of_sorted(&sorted);
    let basis = if base == 0.0 {
        DifferenceBasis::AbsoluteDifference
    } else {
        DifferenceBasis::ShareOfMedian
    };
    if before.is_empty() || after.is_empty() {
        return (basis, (0.0, 0.0));
    }
    let mut index = 0;
    let mut draw = |values: &[f64]| {
        let mut sample: Vec<f64> = values
            .iter()
            .map(|_| {
                index += 1;
                let sample_index = random_number(2, index) % values.len() as u64;
                usize::try_from(sample_index)
                    .ok()
                    .and_then(|sample_index| values.get(sample_index))
                    .copied()
                    .unwrap_or(0.0)
            })
            .collect();
        sample.sort_by(f64::total_cmp);
        median_of_sorted(&sample)
    };
    let mut shares: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (mean_before, mean_after) = (draw(before), draw(after));
            match basis {
                DifferenceBasis::AbsoluteDifference => mean_after - mean_before,
                // A resample may have a median of 0 even if the series does not.
                DifferenceBasis::ShareOfMedian if mean_before == 0.0 => {
                    (mean_after - mean_before) / base
                }
                DifferenceBasis::ShareOfMedian => mean_after / mean_before - 1.0,
            }
        })
        .collect();
    shares.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let quantile_index = (share * (shares.len() - 1) as f64).round() as usize;
        shares.get(quantile_index).copied().unwrap_or(0.0)
    };
    (basis, (at(0.025), at(0.975)))
}

/// Returns the two-sided p-value of the Mann-Whitney test, by the normal approximation with ties.
fn mann_whitney_p_value(first: &[f64], second: &[f64]) -> f64 {
    let (n, m) = (first.len() as f64, second.len() as f64);
    if n == 0.0 || m == 0.0 {
        return 1.0;
    }
    let mut all: Vec<(f64, bool)> = first
        .iter()
        .map(|&value| (value, true))
        .chain(second.iter().map(|&value| (value, false)))
        .collect();
    all.sort_by(|left, right| left.0.total_cmp(&right.0));
    let (mut ranks, mut ties, mut from) = (0.0, 0.0, 0);
    while let Some(&(value, _)) = all.get(from) {
        let same = all.iter().skip(from).take_while(|(other, _)| *other == value).count();
        let rank = from as f64 + (same as f64 + 1.0) / 2.0;
        ranks +=
            rank * all.iter().skip(from).take(same).filter(|(_, is_one)| *is_one).count() as f64;
        ties += (same as f64).powi(3) - same as f64;
        from += same;
    }
    let u = ranks - n * (n + 1.0) / 2.0;
    let whole = n + m;
    let spread = (n * m / 12.0 * (whole + 1.0 - ties / (whole * (whole - 1.0)).max(1.0))).sqrt();
    if spread == 0.0 {
        return 1.0;
    }
    let z = ((u - n * m / 2.0).abs() - 0.5).max(0.0) / spread;
    // The upper tail of the normal distribution (Abramowitz and Stegun 26.2.17), twice.
    let t = 1.0 / (1.0 + 0.231_641_9 * z);
    let polynomial = t
        * (0.319_381_530
            + t * (-0.356_563_782
                + t * (1.781_477_937 + t * (-1.821_255_978 + t * 1.330_274_429))));
    let density = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
    (2.0 * density * polynomial).clamp(0.0, 1.0)
}
