//! Runs a program under many settings and determines which setting is worth its cost.
//!
//! In: [`SweepParameter`]s with values, and a way to measure a [`SweepSetting`]. Out: a [`SweepTable`] with one row per
//! setting: minimum and maximum time, memory, number of runs; the best row; the improvement factor that its worst pair
//! of runs still shows.
//!
//! Invariants
//! * Runs go in rounds over all settings, so that a machine that slows down affects all of them.
//! * The chosen setting is the smallest whose runs overlap the noise of the best one: a larger one is chosen only if
//!   its gain exceeds noise. Values earlier in a parameter's list are smaller.
//!
//! Not here: starting programs ([`crate::comparison::program`]); tuning one parameter after the other ([`crate::comparison::tuning`]).

use std::fmt::Write as _;
use std::time::Duration;

use crate::calculator::SpeedupBounds;
use crate::comparison::metric_comparison::BetterDirection;
use crate::comparison::program::ProgramMeasurement;
use crate::{Error, Result};

/// The value that leaves a parameter unset.
pub const DEFAULT_VALUE: &str = "default";
/// Maximum number of settings; more indicate a mistake in the lists.
const MAX_SETTINGS: usize = 10_000;

/// A parameter of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepParameter {
    /// The name, which occurs as `{name}` in the words of the program.
    pub name: String,
    /// Possible values, from small to large.
    pub values: Vec<String>,
    /// True if the values are steps of a range.
    pub is_range: bool,
}

impl SweepParameter {
    /// Parses `name=a,b,c`, `name=128..10000:x2`, `name=1..8:+1`, and lists that contain ranges.
    ///
    /// # Errors
    /// [`Error::UnusableInput`].
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |problem: &str| {
            Error::UnusableInput(format!(
                "`{text}` {problem}; expected name=a,b,c or name=128..10000:x2 or name=1..8:+1"
            ))
        };
        let (name, list) = text.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
        let name = name.trim();
        if name.is_empty() || name.contains(['{', '}', ' ']) {
            return Err(wrong("has no valid name"));
        }
        let mut knob = Self { name: name.to_owned(), values: Vec::new(), is_range: false };
        for part in list.split(',').map(str::trim) {
            if part.is_empty() {
                return Err(wrong("has an empty value"));
            }
            if part.contains("..") {
                knob.is_range = true;
                let steps = parse_range(part).ok_or_else(|| wrong("contains an invalid range"))?;
                knob.values.extend(steps);
            } else {
                knob.values.push(part.to_owned());
            }
        }
        let mut distinct_values = knob.values.clone();
        distinct_values.sort_unstable();
        distinct_values.dedup();
        if distinct_values.len() != knob.values.len() {
            return Err(wrong("lists a value twice"));
        }
        Ok(knob)
    }
}

/// Returns the steps of `128..10000:x2`; both ends may have the same unit, such as `4MiB..64MiB:x2`.
fn parse_range(text: &str) -> Option<Vec<String>> {
    let (low, rest) = text.split_once("..")?;
    let (high, step) = rest.split_once(':').unwrap_or((rest, "x2"));
    let number = |text: &str| -> Option<(f64, String)> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        Some((text.get(..end)?.parse().ok()?, text.get(end..)?.to_owned()))
    };
    let ((low, unit), (high, same)) = (number(low)?, number(high)?);
    let (kind, step) = (step.get(..1)?, step.get(1..)?.parse::<f64>().ok()?);
    let grows = match kind {
        "x" => step > 1.0 && low > 0.0,
        "+" => step > 0.0,
        _ => false,
    };
    if !grows || unit != same || low > high {
        return None;
    }
    let mut steps = Vec::new();
    let mut at = low;
    while at <= high * (1.0 + 1e-9) && steps.len() < MAX_SETTINGS {
        steps.push(format!("{at}{unit}"));
        at = if kind == "x" { at * step } else { at + step };
    }
    Some(steps)
}

/// A value for every parameter, with its index in the parameter's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SweepSetting(Vec<(String, String, usize)>);

impl SweepSetting {
    /// Returns the setting in which every parameter has the value at its index in `indexes`; the first value if there is
    /// no index.
    #[must_use]
    pub fn at_indexes(knobs: &[SweepParameter], indexes: &[usize]) -> Self {
        Self(
            knobs
                .iter()
                .enumerate()
                .filter_map(|(number, knob)| {
                    let index = indexes.get(number).copied().unwrap_or(0);
                    Some((knob.name.clone(), knob.values.get(index)?.clone(), index))
                })
                .collect(),
        )
    }

    /// Returns names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value, _)| (name.as_str(), value.as_str()))
    }

    /// Returns all settings of `knobs`: the Cartesian product of their values.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] if there are too many, or no parameter is given.
    pub fn all_combinations(knobs: &[SweepParameter]) -> Result<Vec<Self>> {
        let count = knobs.iter().try_fold(1usize, |count, knob| {
            count.checked_mul(knob.values.len()).filter(|count| *count <= MAX_SETTINGS)
        });
        let count = count.ok_or_else(|| {
            Error::UnusableInput(format!("the values give more than {MAX_SETTINGS} combinations"))
        })?;
        if knobs.is_empty() {
            return Err(Error::UnusableInput("no parameter given; use --set name=a,b".to_owned()));
        }
        Ok((0..count)
            .map(|mut number| {
                let indexes: Vec<usize> = knobs
                    .iter()
                    .map(|knob| {
                        let index = number % knob.values.len();
                        number /= knob.values.len();
                        index
                    })
                    .collect();
                Self::at_indexes(knobs, &indexes)
            })
            .collect())
    }

    /// Inserts the values into the words of a program.
    ///
    /// A value `default` omits its word, and also the option before it if the word consists of only the placeholder.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] if a parameter has no placeholder.
    pub fn fill_placeholders(&self, words: &[String]) -> Result<Vec<String>> {
        for (name, _) in self.pairs() {
            let placeholder = format!("{{{name}}}");
            if !words.iter().any(|word| word.contains(&placeholder)) {
                return Err(Error::UnusableInput(format!(
                    "the program's arguments have no placeholder for `{name}`; write `{placeholder}` where \
                     its value goes"
                )));
            }
        }
        let mut out: Vec<String> = Vec::new();
        'words: for word in words {
            let mut filled = word.clone();
            for (name, value) in self.pairs() {
                let placeholder = format!("{{{name}}}");
                if !filled.contains(&placeholder) {
                    continue;
                }
                if value == DEFAULT_VALUE {
                    if *word == placeholder
                        && out.last().is_some_and(|before| before.starts_with('-'))
                    {
                        out.pop();
                    }
                    continue 'words;
                }
                filled = filled.replace(&placeholder, value);
            }
            out.push(filled);
        }
        Ok(out)
    }

    fn size_rank(&self) -> usize {
        self.0.iter().map(|(_, _, index)| index).sum()
    }
}

impl std::fmt::Display for SweepSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.pairs().all(|(_, value)| value == DEFAULT_VALUE) {
            return f.write_str("default values");
        }
        for (number, (name, value)) in self.pairs().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{name}={value}")?;
        }
        Ok(())
    }
}

/// The runs of one setting.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepRow {
    /// The setting.
    pub setting: SweepSetting,
    /// The runs of the setting.
    pub runs: Vec<ProgramMeasurement>,
}

/// The quantity to optimize.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepObjective {
    /// The direction of improvement.
    pub better_direction: BetterDirection,
    /// If true, the number that the program prints is optimized instead of the time.
    pub uses_metric: bool,
}

impl SweepRow {
    fn run_costs(&self, aim: SweepObjective) -> Vec<f64> {
        self.run_values(aim)
            .into_iter()
            .map(|value| match aim.better_direction {
                BetterDirection::Lower => value,
                BetterDirection::Higher => 1.0 / value.max(f64::MIN_POSITIVE),
            })
            .collect()
    }

    /// Returns the optimized value of each run: seconds, or the metric.
    #[must_use]
    pub fn run_values(&self, aim: SweepObjective) -> Vec<f64> {
        self.runs
            .iter()
            .map(|run| match run.metric {
                Some(metric) if aim.uses_metric => metric,
                _ => run.elapsed.as_secs_f64(),
            })
            .collect()
    }

    /// Returns the minimum and maximum cost.
    pub(crate) fn cost_range(&self, aim: SweepObjective) -> (f64, f64) {
        let costs = self.run_costs(aim);
        (
            costs.iter().copied().fold(f64::INFINITY, f64::min),
            costs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        )
    }

    fn mean_cost(&self, aim: SweepObjective) -> f64 {
        let costs = self.run_costs(aim);
        costs.iter().sum::<f64>() / costs.len().max(1) as f64
    }

    /// Returns minimum and maximum time, in the format of tuning tables: `22m21s - 24m51s`, `~01m58s`.
    #[must_use]
    pub fn format_time_range(&self) -> String {
        let least = self.runs.iter().map(|run| run.elapsed).min().unwrap_or_default();
        let most = self.runs.iter().map(|run| run.elapsed).max().unwrap_or_default();
        let (shortest, longest) = (format_stopwatch(least), format_stopwatch(most));
        if shortest == longest { format!("~{shortest}") } else { format!("{shortest} - {longest}") }
    }

    /// Returns minimum and maximum peak memory, in MiB: `272-276M`, `~260M`.
    #[must_use]
    pub fn format_memory_range(&self) -> String {
        const MIB: u64 = 1024 * 1024;
        let peaks = || {
            self.runs.iter().filter_map(|run| run.peak_memory).map(|peak| (peak + MIB / 2) / MIB)
        };
        match (peaks().min(), peaks().max()) {
            (Some(least), Some(most)) if least == most => format!("~{least}M"),
            (Some(least), Some(most)) => format!("{least}-{most}M"),
            _ => "-".to_owned(),
        }
    }

    fn format_metric_range(&self) -> String {
        let values = || self.runs.iter().filter_map(|run| run.metric);
        let least = values().fold(f64::INFINITY, f64::min);
        let most = values().fold(f64::NEG_INFINITY, f64::max);
        if least > most {
            "-".to_owned()
        } else if (least - most).abs() < f64::EPSILON {
            format!("~{least:.2}")
        } else {
            format!("{least:.2} - {most:.2}")
        }
    }
}

/// Formats a time as a stopwatch does; below a minute with hundredths, below a second in milliseconds.
#[must_use]
pub fn format_stopwatch(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{:.1}ms", time.as_secs_f64() * 1000.0),
        1..60 => format!("{:.2}s", time.as_secs_f64()),
        60..3600 => format!("{:02}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m{:02}s", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

/// The rows of a sweep.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepTable {
    /// Rows in the order of the settings; the others are compared with the first.
    pub rows: Vec<SweepRow>,
    /// The quantity to optimize.
    pub objective: SweepObjective,
}

/// The setting chosen from a table.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepChoice {
    /// The row with the best mean.
    pub best_row: usize,
    /// The smallest setting within the noise of the best.
    pub chosen_row: usize,
    /// Relative spread of the runs of one setting: the median over all settings.
    pub noise_share: f64,
    /// Improvement of the chosen setting over the first, by its worst pair of runs.
    pub improvement_factor: Option<SpeedupBounds>,
}

/// Measures every setting `runs` times, in rounds.
///
/// # Errors
/// The errors of `measure`.
pub fn run_sweep(
    settings: Vec<SweepSetting>,
    runs: usize,
    aim: SweepObjective,
    measure: &mut dyn FnMut(&SweepSetting, usize) -> Result<ProgramMeasurement>,
) -> Result<SweepTable> {
    let mut rows: Vec<SweepRow> =
        settings.into_iter().map(|setting| SweepRow { setting, runs: Vec::new() }).collect();
    for round in 0..runs.max(1) {
        for row in &mut rows {
            let measured = measure(&row.setting, round)?;
            row.runs.push(measured);
        }
    }
    Ok(SweepTable { rows, objective: aim })
}

/// Returns the spread of the runs of one setting, relative to the minimum; 0 if no setting was run twice.
pub(crate) fn run_noise(rows: &[SweepRow], aim: SweepObjective) -> f64 {
    let mut spreads: Vec<f64> = rows
        .iter()
        .filter(|row| row.runs.len() > 1)
        .map(|row| {
            let (least, most) = row.cost_range(aim);
            if least > 0.0 { most / least - 1.0 } else { 0.0 }
        })
        .collect();
    spreads.sort_by(f64::total_cmp);
    spreads.get(spreads.len() / 2).copied().unwrap_or(0.0)
}

impl SweepTable {
    /// Returns the chosen setting; `None` without rows.
    #[must_use]
    pub fn choose_setting(&self) -> Option<SweepChoice> {
        let aim = self.objective;
        let noise = run_noise(&self.rows, aim);
        let numbered = || self.rows.iter().enumerate().filter(|(_, row)| !row.runs.is_empty());
        let (best, row) = numbered()
            .min_by(|left, right| left.1.mean_cost(aim).total_cmp(&right.1.mean_cost(aim)))?;
        let (least, most) = row.cost_range(aim);
        let edge = most.max(least * (1.0 + noise));
        let (chosen, _) =
            numbered().filter(|(_, row)| row.cost_range(aim).0 <= edge).min_by(|left, right| {
                let by_size = left.1.setting.size_rank().cmp(&right.1.setting.size_rank());
                by_size.then(left.1.mean_cost(aim).total_cmp(&right.1.mean_cost(aim)))
            })?;
        let factor = self.improvement_of(chosen);
        Some(SweepChoice {
            best_row: best,
            chosen_row: chosen,
            noise_share: noise,
            improvement_factor: factor,
        })
    }

    /// Returns the improvement of a row over the first, by its worst pair of runs; `None` for the first row itself.
    #[must_use]
    pub fn improvement_of(&self, row: usize) -> Option<SpeedupBounds> {
        if row == 0 {
            return None;
        }
        let costs = |row: &SweepRow| -> Vec<Duration> {
            // Only ratios of costs are used; the scale preserves the digits of inverted metrics.
            let scale = match self.objective.better_direction {
                BetterDirection::Lower => 1.0,
                BetterDirection::Higher => 1e6,
            };
            row.run_costs(self.objective)
                .into_iter()
                .map(|cost| Duration::try_from_secs_f64(cost * scale).unwrap_or(Duration::MAX))
                .collect()
        };
        SpeedupBounds::from_runs(&costs(self.rows.first()?), &costs(self.rows.get(row)?))
    }
}

impl SweepTable {
    /// Returns the rows as text.
    #[must_use]
    pub fn format_rows(&self) -> String {
        let mut out = String::new();
        let mut lines: Vec<[String; 5]> =
            vec![["Conditions", "Time", "Memory", "Metric", "Runs"].map(str::to_owned)];
        for row in &self.rows {
            lines.push([
                row.setting.to_string(),
                row.format_time_range(),
                row.format_memory_range(),
                row.format_metric_range(),
                row.runs.len().to_string(),
            ]);
        }
        let columns: &[usize] =
            if self.objective.uses_metric { &[0, 1, 2, 3, 4] } else { &[0, 1, 2, 4] };
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0)
        };
        for (number, line) in lines.iter().enumerate() {
            let mut text = String::from("|");
            for &column in columns {
                let cell = line.get(column).map_or("", String::as_str);
                // Writing to a string cannot fail.
                write!(text, " {cell:<width$} |", width = width(column)).ok();
            }
            writeln!(out, "{text}").ok();
            if number == 0 {
                let rule: Vec<String> =
                    columns.iter().map(|&column| "-".repeat(width(column) + 2)).collect();
                writeln!(out, "+{}+", rule.join("+")).ok();
            }
        }
        out
    }
}

impl std::fmt::Display for SweepTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.format_rows())?;
        let Some(choice) = self.choose_setting() else { return Ok(()) };
        let name = |index: usize| {
            self.rows.get(index).map(|row| row.setting.to_string()).unwrap_or_default()
        };
        writeln!(f, "best     {}", name(choice.best_row))?;
        write!(
            f,
            "chosen   {}: the smallest within noise of the best (runs of one setting differ by {:.1} %)",
            name(choice.chosen_row),
            choice.noise_share * 100.0
        )?;
        match &choice.improvement_factor {
            Some(factor) if factor.min_speedup > 1.0 => {
                write!(f, "\ngain     {factor} better than {}", name(0))
            }
            _ => write!(f, "\ngain     none beyond noise over {}", name(0)),
        }
    }
}
