//! Runs a program under many settings, and says which setting is worth its price.
//!
//! In: [`Knob`]s with values, and a way to measure a [`Setting`]. Out: a [`Table`] with one row per setting: least and
//! most time, memory, number of runs; the best row; the factor that its worst pair of runs still shows.
//!
//! Invariants
//! * Runs go in rounds over all settings, so that a machine that grows slower does so for all of them.
//! * The chosen setting is the smallest whose runs overlap the noise of the best one: more is chosen only where it is
//!   more than noise. The earlier a value stands in its knob's list, the smaller it is.
//!
//! Not here: starting programs ([`crate::program`]); trying one knob after the other ([`crate::tune`]).

use std::fmt::Write as _;
use std::time::Duration;

use crate::calculate::AtLeast;
use crate::compare::Better;
use crate::program::Measure;
use crate::{Error, Result};

/// The word for "leave this knob as it is".
pub const DEFAULT: &str = "default";
/// More settings than that are a mistake in the lists.
const MOST_SETTINGS: usize = 10_000;

/// Something that can be set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knob {
    /// Its name, which stands as `{name}` in the words of the program.
    pub name: String,
    /// What it may be set to, from small to large.
    pub values: Vec<String>,
    /// Whether the values are steps of a range.
    pub is_range: bool,
}

impl Knob {
    /// Reads `name=a,b,c`, `name=128..10000:x2`, `name=1..8:+1`, and lists that hold ranges.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            Error::Input(format!(
                "`{text}` {what}; expected name=a,b,c or name=128..10000:x2 or name=1..8:+1"
            ))
        };
        let (name, list) = text.split_once('=').ok_or_else(|| wrong("has no `=`"))?;
        let name = name.trim();
        if name.is_empty() || name.contains(['{', '}', ' ']) {
            return Err(wrong("names nothing"));
        }
        let mut knob = Self { name: name.to_owned(), values: Vec::new(), is_range: false };
        for part in list.split(',').map(str::trim) {
            if part.is_empty() {
                return Err(wrong("has an empty value"));
            }
            if part.contains("..") {
                knob.is_range = true;
                let steps = range(part).ok_or_else(|| wrong("holds a range that does not read"))?;
                knob.values.extend(steps);
            } else {
                knob.values.push(part.to_owned());
            }
        }
        let mut known = knob.values.clone();
        known.sort_unstable();
        known.dedup();
        if known.len() != knob.values.len() {
            return Err(wrong("names a value twice"));
        }
        Ok(knob)
    }
}

/// Returns the steps of `128..10000:x2`; both ends may have the same unit, such as `4MiB..64MiB:x2`.
fn range(text: &str) -> Option<Vec<String>> {
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
    while at <= high * (1.0 + 1e-9) && steps.len() < MOST_SETTINGS {
        steps.push(format!("{at}{unit}"));
        at = if kind == "x" { at * step } else { at + step };
    }
    Some(steps)
}

/// A value for every knob, with its place in the knob's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting(Vec<(String, String, usize)>);

impl Setting {
    /// Returns the setting in which every knob has the value at its place in `places`; the first where there is none.
    #[must_use]
    pub fn at(knobs: &[Knob], places: &[usize]) -> Self {
        Self(
            knobs
                .iter()
                .enumerate()
                .filter_map(|(number, knob)| {
                    let place = places.get(number).copied().unwrap_or(0);
                    Some((knob.name.clone(), knob.values.get(place)?.clone(), place))
                })
                .collect(),
        )
    }

    /// Returns names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value, _)| (name.as_str(), value.as_str()))
    }

    /// Returns all settings of `knobs`: every value with every other.
    ///
    /// # Errors
    /// [`Error::Input`] if they are too many, or no knob is given.
    pub fn all(knobs: &[Knob]) -> Result<Vec<Self>> {
        let count = knobs.iter().try_fold(1usize, |count, knob| {
            count.checked_mul(knob.values.len()).filter(|count| *count <= MOST_SETTINGS)
        });
        let count = count.ok_or_else(|| {
            Error::Input(format!("the values make more than {MOST_SETTINGS} settings"))
        })?;
        if knobs.is_empty() {
            return Err(Error::Input("nothing is set; give --set name=a,b".to_owned()));
        }
        Ok((0..count)
            .map(|mut number| {
                let places: Vec<usize> = knobs
                    .iter()
                    .map(|knob| {
                        let place = number % knob.values.len();
                        number /= knob.values.len();
                        place
                    })
                    .collect();
                Self::at(knobs, &places)
            })
            .collect())
    }

    /// Puts the values into the words of a program.
    ///
    /// A value `default` leaves its word out, and with it the option before it where the word is nothing but the place.
    ///
    /// # Errors
    /// [`Error::Input`] if a knob has no place.
    pub fn fill(&self, words: &[String]) -> Result<Vec<String>> {
        for (name, _) in self.pairs() {
            let place = format!("{{{name}}}");
            if !words.iter().any(|word| word.contains(&place)) {
                return Err(Error::Input(format!(
                    "the program has no place for `{name}`; write `{place}` where its value goes"
                )));
            }
        }
        let mut out: Vec<String> = Vec::new();
        'words: for word in words {
            let mut filled = word.clone();
            for (name, value) in self.pairs() {
                let place = format!("{{{name}}}");
                if !filled.contains(&place) {
                    continue;
                }
                if value == DEFAULT {
                    if *word == place && out.last().is_some_and(|before| before.starts_with('-')) {
                        out.pop();
                    }
                    continue 'words;
                }
                filled = filled.replace(&place, value);
            }
            out.push(filled);
        }
        Ok(out)
    }

    fn size(&self) -> usize {
        self.0.iter().map(|(_, _, place)| place).sum()
    }
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.pairs().all(|(_, value)| value == DEFAULT) {
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
pub struct Row {
    /// What was set.
    pub setting: Setting,
    /// Its runs.
    pub runs: Vec<Measure>,
}

/// What counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aim {
    /// Which direction is good.
    pub better: Better,
    /// The number that the program prints counts, not its time.
    pub by_metric: bool,
}

impl Row {
    fn costs(&self, aim: Aim) -> Vec<f64> {
        self.values(aim)
            .into_iter()
            .map(|value| match aim.better {
                Better::Less => value,
                Better::More => 1.0 / value.max(f64::MIN_POSITIVE),
            })
            .collect()
    }

    /// Returns what counts of each run: seconds, or the metric.
    #[must_use]
    pub fn values(&self, aim: Aim) -> Vec<f64> {
        self.runs
            .iter()
            .map(|run| match run.metric {
                Some(metric) if aim.by_metric => metric,
                _ => run.elapsed.as_secs_f64(),
            })
            .collect()
    }

    /// Returns the least and the most cost.
    pub(crate) fn range(&self, aim: Aim) -> (f64, f64) {
        let costs = self.costs(aim);
        (
            costs.iter().copied().fold(f64::INFINITY, f64::min),
            costs.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        )
    }

    fn mean(&self, aim: Aim) -> f64 {
        let costs = self.costs(aim);
        costs.iter().sum::<f64>() / costs.len().max(1) as f64
    }

    /// Returns least and most time, as source tables of tuning print them: `22m21s - 24m51s`, `~01m58s`.
    #[must_use]
    pub fn times(&self) -> String {
        let least = self.runs.iter().map(|run| run.elapsed).min().unwrap_or_default();
        let most = self.runs.iter().map(|run| run.elapsed).max().unwrap_or_default();
        let (one, two) = (clock(least), clock(most));
        if one == two { format!("~{one}") } else { format!("{one} - {two}") }
    }

    /// Returns least and most peak memory, in MiB: `272-276M`, `~260M`.
    #[must_use]
    pub fn memory(&self) -> String {
        const MIB: u64 = 1024 * 1024;
        let peaks =
            || self.runs.iter().filter_map(|run| run.peak).map(|peak| (peak + MIB / 2) / MIB);
        match (peaks().min(), peaks().max()) {
            (Some(least), Some(most)) if least == most => format!("~{least}M"),
            (Some(least), Some(most)) => format!("{least}-{most}M"),
            _ => "-".to_owned(),
        }
    }

    fn metrics(&self) -> String {
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

/// Shows a time as a stop watch does; below a minute with hundredths, below a second in milliseconds.
#[must_use]
pub fn clock(time: Duration) -> String {
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
pub struct Table {
    /// In the order of the settings; the first is what the others are compared with.
    pub rows: Vec<Row>,
    /// What counts.
    pub aim: Aim,
}

/// What a table amounts to.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// The row with the best mean.
    pub best: usize,
    /// The smallest setting inside the noise of the best.
    pub chosen: usize,
    /// How far the runs of one setting lie apart, as a share: the median over all settings.
    pub noise: f64,
    /// How much better the chosen setting is than the first, by its worst pair of runs.
    pub factor: Option<AtLeast>,
}

/// Measures every setting `runs` times, in rounds.
///
/// # Errors
/// What `measure` returns.
pub fn sweep(
    settings: Vec<Setting>,
    runs: usize,
    aim: Aim,
    measure: &mut dyn FnMut(&Setting, usize) -> Result<Measure>,
) -> Result<Table> {
    let mut rows: Vec<Row> =
        settings.into_iter().map(|setting| Row { setting, runs: Vec::new() }).collect();
    for round in 0..runs.max(1) {
        for row in &mut rows {
            let measured = measure(&row.setting, round)?;
            row.runs.push(measured);
        }
    }
    Ok(Table { rows, aim })
}

/// Returns how far runs of one setting lie apart, as a share of the least; 0 if nothing was run twice.
pub(crate) fn noise(rows: &[Row], aim: Aim) -> f64 {
    let mut spreads: Vec<f64> = rows
        .iter()
        .filter(|row| row.runs.len() > 1)
        .map(|row| {
            let (least, most) = row.range(aim);
            if least > 0.0 { most / least - 1.0 } else { 0.0 }
        })
        .collect();
    spreads.sort_by(f64::total_cmp);
    spreads.get(spreads.len() / 2).copied().unwrap_or(0.0)
}

impl Table {
    /// Returns what the table amounts to; `None` without rows.
    #[must_use]
    pub fn choice(&self) -> Option<Choice> {
        let aim = self.aim;
        let noise = noise(&self.rows, aim);
        let numbered = || self.rows.iter().enumerate().filter(|(_, row)| !row.runs.is_empty());
        let (best, row) =
            numbered().min_by(|one, two| one.1.mean(aim).total_cmp(&two.1.mean(aim)))?;
        let (least, most) = row.range(aim);
        let edge = most.max(least * (1.0 + noise));
        let (chosen, _) =
            numbered().filter(|(_, row)| row.range(aim).0 <= edge).min_by(|one, two| {
                let by_size = one.1.setting.size().cmp(&two.1.setting.size());
                by_size.then(one.1.mean(aim).total_cmp(&two.1.mean(aim)))
            })?;
        let factor = self.factor_of(chosen);
        Some(Choice { best, chosen, noise, factor })
    }

    /// Returns how much better a row is than the first, by its worst pair of runs; `None` for the first itself.
    #[must_use]
    pub fn factor_of(&self, row: usize) -> Option<AtLeast> {
        if row == 0 {
            return None;
        }
        let costs = |row: &Row| -> Vec<Duration> {
            // Costs only meet as ratios; scaled so that inverted metrics keep their digits.
            let scale = match self.aim.better {
                Better::Less => 1.0,
                Better::More => 1e6,
            };
            row.costs(self.aim)
                .into_iter()
                .map(|cost| Duration::try_from_secs_f64(cost * scale).unwrap_or(Duration::MAX))
                .collect()
        };
        AtLeast::of(&costs(self.rows.first()?), &costs(self.rows.get(row)?))
    }
}

impl Table {
    /// Returns the rows as text.
    #[must_use]
    pub fn rows_text(&self) -> String {
        let mut out = String::new();
        let mut lines: Vec<[String; 5]> =
            vec![["Conditions", "Time", "Memory", "Metric", "Runs"].map(str::to_owned)];
        for row in &self.rows {
            lines.push([
                row.setting.to_string(),
                row.times(),
                row.memory(),
                row.metrics(),
                row.runs.len().to_string(),
            ]);
        }
        let shown: &[usize] = if self.aim.by_metric { &[0, 1, 2, 3, 4] } else { &[0, 1, 2, 4] };
        let width = |column: usize| {
            lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0)
        };
        for (number, line) in lines.iter().enumerate() {
            let mut text = String::from("|");
            for &column in shown {
                let cell = line.get(column).map_or("", String::as_str);
                // Writing to a string cannot fail.
                write!(text, " {cell:<width$} |", width = width(column)).ok();
            }
            writeln!(out, "{text}").ok();
            if number == 0 {
                let rule: Vec<String> =
                    shown.iter().map(|&column| "-".repeat(width(column) + 2)).collect();
                writeln!(out, "+{}+", rule.join("+")).ok();
            }
        }
        out
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.rows_text())?;
        let Some(choice) = self.choice() else { return Ok(()) };
        let name = |place: usize| {
            self.rows.get(place).map(|row| row.setting.to_string()).unwrap_or_default()
        };
        writeln!(f, "best     {}", name(choice.best))?;
        write!(
            f,
            "chosen   {}: the smallest inside the noise of the best (runs of one setting differ by {:.1} %)",
            name(choice.chosen),
            choice.noise * 100.0
        )?;
        match &choice.factor {
            Some(factor) if factor.worst > 1.0 => {
                write!(f, "\ngain     {factor} better than {}", name(0))
            }
            _ => write!(f, "\ngain     none beyond noise over {}", name(0)),
        }
    }
}
