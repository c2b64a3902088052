//! What a backup costs the work that goes on meanwhile, and what the work costs the backup.
//!
//! The peak is calibrated first: transactions per second of so many threads without a pause and without a backup. Then a
//! share of it arrives by a schedule, received by the same number of threads, alone and beside each backup. Backups run
//! with every delay, idle and under load, in turn.
//!
//! Lost are the transactions that came less than without a backup, times how long the backup took: a gentle backup that
//! takes long may cost more than a quick one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::play::Tester;
use super::shared::{Left, Shared};
use super::{Author, DRAIN, Kind, Phase, Ramp, Test, Tough, order};
use crate::goal::show;
use crate::load::{Crew, Crowd, Load, Process, Schedule, User, processors, run as run_load};
use crate::program::Program;
use crate::record::{Results, Stats};
use crate::report::sheet::{Curves, Grid, Part, Sheet, Tone};
use crate::{Error, Result, honesty};

/// What to measure.
#[derive(Debug)]
pub struct Impact {
    /// Shares of traversals, queries and creations.
    pub mix: [u64; 3],
    /// Threads that work.
    pub threads: usize,
    /// The share of their peak that arrives while backups run.
    pub share: f64,
    /// How long the peak is looked for, and how long the load runs alone.
    pub span: Duration,
    /// Values that stand for `{delay}` in the program's words.
    pub delays: Vec<String>,
    /// Runs of each backup.
    pub runs: usize,
    /// The program that makes a backup; its metric, if it has one, is the bytes that it saved.
    pub program: Program,
    /// A program that runs before each backup, such as one that empties the vault or adds content; not measured.
    pub before: Option<Program>,
    /// Paths that traversals ask for, in turn.
    pub traversals: Vec<String>,
}

/// Longest time of load beside one backup; one that takes longer is measured over this time.
const LONGEST: Duration = Duration::from_secs(3600);

/// One backup.
#[derive(Debug)]
struct Row {
    delay: String,
    is_loaded: bool,
    took: Duration,
    /// Processor time of the backup.
    cpu: Duration,
    bytes: Option<f64>,
    /// Of the work beside it.
    work: Option<Work>,
}

/// Work over some time.
#[derive(Debug)]
struct Work {
    rate: f64,
    stats: Stats,
}

impl Impact {
    /// Reports what cannot be measured.
    ///
    /// # Errors
    /// [`Error::Input`].
    pub fn check(&self) -> Result<()> {
        let fault = |text: &str| Err(Error::Input(text.to_owned()));
        if self.threads == 0 || self.threads > 1000 {
            return fault("the threads are 1 to 1000");
        }
        if !(self.share.is_finite() && self.share > 0.0 && self.share <= 1.0) {
            return fault("the load is a share of the peak, above 0 % and up to 100 %");
        }
        if self.mix.iter().all(|share| *share == 0) || self.span.is_zero() || self.runs == 0 {
            return fault("without work, time or runs nothing is measured");
        }
        let has_place = self.program.words.iter().any(|word| word.contains("{delay}"));
        if self.delays.len() > 1 && !has_place {
            return fault("with several delays the program needs `{delay}` in its words");
        }
        Ok(())
    }

    fn tests(&self) -> Vec<Test> {
        let [traversals, queries, creations] = self.mix;
        let mut get = Test::new(Kind::Get, traversals);
        "traversal".clone_into(&mut get.name);
        get.queries.clone_from(&self.traversals);
        let mut query = Test::new(Kind::QueryBuilder, queries);
        "query".clone_into(&mut query.name);
        // One level, no nesting, and not more below one parent than a repository likes: a tree of one level at most.
        let mut create = Test::new(Kind::CreatePageTree, creations);
        "creation".clone_into(&mut create.name);
        create.base = 800;
        vec![get, query, create]
    }

    /// Measures everything.
    ///
    /// # Errors
    /// As [`Impact::check`] and [`Tough::run`]; [`Error::Program`] if a backup fails.
    pub fn run(&self, tough: &Tough<'_>, tell: &mut dyn FnMut(&str)) -> Result<Sheet> {
        self.check()?;
        let mut author = Author::new(&tough.author, &tough.login)?;
        author.set_up(&tough.name)?;
        let outcome = self.measure(tough, &mut author, tell);
        let cleaned =
            if tough.keeps_content { Ok(()) } else { author.clean_up(&tough.name, false) };
        let mut sheet = outcome?;
        if let Err(error) = cleaned {
            sheet.say(
                Tone::Doubt,
                format!("what was made below `{}` could not be deleted: {error}", tough.name),
            );
        }
        Ok(sheet)
    }

    fn measure(
        &self,
        tough: &Tough<'_>,
        author: &mut Author,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Sheet> {
        let tests = self.tests();
        let phase = Phase {
            name: "work".to_owned(),
            lasts: self.span,
            mode: super::Mode::ConstantLoad { rate: Ramp::steady(1.0) },
            tests: tests.clone(),
            is_measured: true,
        };
        let order = order(&phase)?;
        let setting = tough.setting(author)?;
        let shared = Arc::new(Shared::new(setting, tests, order, Duration::ZERO, Left::default()));
        tell(&format!("looking for the peak of {} threads for {}", self.threads, show(self.span)));
        let peak = self.work(&shared, None, self.span, || Ok(()))?;
        let peak_rate = peak.0.rate(done(&peak.0));
        if peak_rate <= 0.0 {
            return Err(Error::Input(
                "the author did nothing of what it was asked for, so there is no peak".to_owned(),
            ));
        }
        let offered = peak_rate * self.share;
        tell(&format!("peak {peak_rate:.1}/s; {offered:.1}/s alone for {}", show(self.span)));
        let alone = self.work(&shared, Some(offered), self.span, || Ok(()))?;
        let alone = (alone.0.rate(done(&alone.0)), alone.0);
        let mut rows = Vec::new();
        for run in 1..=self.runs {
            for delay in &self.delays {
                for is_loaded in [false, true] {
                    if let Some(before) = &self.before {
                        before.measure()?;
                    }
                    let program = self.program_with(delay);
                    let backup = || program.measure();
                    let row = if is_loaded {
                        let (results, measure) =
                            self.work(&shared, Some(offered), LONGEST, backup)?;
                        let span = measure.elapsed.min(results.elapsed).as_secs_f64().max(1e-9);
                        let rate = done(&results) as f64 / span;
                        let work = Some(Work { rate, stats: results.total() });
                        Row {
                            delay: delay.clone(),
                            is_loaded,
                            took: measure.elapsed,
                            cpu: measure.cpu,
                            bytes: measure.metric,
                            work,
                        }
                    } else {
                        let measure = backup()?;
                        Row {
                            delay: delay.clone(),
                            is_loaded,
                            took: measure.elapsed,
                            cpu: measure.cpu,
                            bytes: measure.metric,
                            work: None,
                        }
                    };
                    let state = if is_loaded { "under load" } else { "idle" };
                    tell(&format!("run {run}, delay {delay}, {state}: {}", show(row.took)));
                    rows.push(row);
                }
            }
        }
        Ok(self.tell(&rows, peak_rate, &alone))
    }

    fn program_with(&self, delay: &str) -> Program {
        let words = self.program.words.iter().map(|word| word.replace("{delay}", delay)).collect();
        Program { words, metric: self.program.metric.clone() }
    }

    /// Works until `beside` is done, or for `lasts` if that is done at once; at a rate, or as fast as the threads can.
    fn work<T: Send>(
        &self,
        shared: &Arc<Shared>,
        rate: Option<f64>,
        lasts: Duration,
        beside: impl FnOnce() -> Result<T> + Send,
    ) -> Result<(Results, T)> {
        let crowd = Arc::new(Crowd::default());
        let workers = processors().min(self.threads);
        let mut crews: Vec<Crew> = Vec::new();
        match rate {
            None => {
                crews.extend((0..workers).map(|_| Crew { users: Vec::new(), arrivals: None }));
                for number in 0..self.threads {
                    let user = Tester::new(Arc::clone(shared), None, false);
                    if let Some(crew) = crews.get_mut(number % workers) {
                        crew.users.push((Duration::ZERO, Box::new(user) as Box<dyn User>));
                    }
                }
            }
            Some(rate) => {
                let schedule = Schedule::new(Process::Uniform, rate, lasts, 0);
                for worker in 0..workers {
                    let shared = Arc::clone(shared);
                    let mut left =
                        self.threads / workers + usize::from(worker < self.threads % workers);
                    let hire = move || {
                        left = left.checked_sub(1)?;
                        Some(Box::new(Tester::new(Arc::clone(&shared), None, true)) as Box<dyn User>)
                    };
                    let arrivals = Some((schedule.share(worker, workers), Box::new(hire) as _));
                    crews.push(Crew { users: Vec::new(), arrivals });
                }
            }
        }
        let load = Load {
            crews,
            stop_after: Some(lasts),
            drain: DRAIN,
            crowd: Arc::clone(&crowd),
            rows: None,
        };
        let is_backup = lasts == LONGEST;
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || run_load(load, &mut ()));
            let done = beside();
            if is_backup {
                crowd.stop();
            }
            let results = worker
                .join()
                .unwrap_or_else(|_| Err(Error::Input("the load ended early".to_owned())))?;
            Ok((results, done?))
        })
    }

    /// Tells what came out.
    fn tell(&self, rows: &[Row], peak: f64, (alone, results): &(f64, Results)) -> Sheet {
        let alone = *alone;
        let mut sheet = Sheet::new("Backup impact");
        let idle_stats = results.total();
        for doubt in
            honesty::doubts(results).into_iter().filter(|doubt| !doubt.contains("never sent"))
        {
            sheet.say(Tone::Doubt, format!("GENERATOR SATURATED: {doubt}"));
        }
        if idle_stats.error_rate() > 0.01 {
            let share = idle_stats.error_rate() * 100.0;
            sheet.say(Tone::Doubt, format!("{share:.1} % of the work fails without any backup"));
        }
        let (grid, found, fewest) = table(rows, alone);
        sheet.say(
            Tone::Plain,
            format!(
                "peak {peak:.1}/s with {} threads; alone at {:.0} % of it {alone:.1}/s, p95 {}",
                self.threads,
                self.share * 100.0,
                show(idle_stats.response.quantile(0.95))
            ),
        );
        if let Some((lost, delay)) = fewest {
            sheet.say(
                Tone::Plain,
                format!("fewest transactions are lost with delay {delay}: {lost:.0}"),
            );
        }
        sheet.parts.push(Part::Grid(grid));
        sheet.parts.push(Part::Text(
            "Lost is the throughput below that of the same load without a backup; times the backup's time, the transactions \
             that it cost."
                .to_owned(),
        ));
        sheet.parts.extend(size_and_time(rows).map(Part::Curves));
        sheet.json = json!({
            "peak_per_second": peak, "alone_per_second": alone, "threads": self.threads, "load": self.share,
            "alone_p95_ms": idle_stats.response.quantile(0.95).as_secs_f64() * 1e3, "backups": found,
        });
        sheet
    }
}

/// Returns the transactions that were done: one that the author refuses is lost, however quickly it refuses.
fn done(results: &Results) -> u64 {
    let total = results.total();
    total.count().saturating_sub(total.errors)
}

/// A backup's delay, and the fewest transactions that were lost.
type Fewest<'r> = Option<(f64, &'r str)>;

/// Returns the table of backups for people and for machines, and the delay that costs the fewest transactions.
fn table(rows: &[Row], alone: f64) -> (Grid, Vec<serde_json::Value>, Fewest<'_>) {
    let mut grid = Grid::new(
        "Backups",
        &[
            "delay",
            "state",
            "time",
            "processor",
            "MB",
            "MB/s",
            "transactions/s",
            "lost",
            "transactions lost",
            "p95 of the work",
        ],
    );
    let mut found = Vec::new();
    let mut fewest: Option<(f64, &str)> = None;
    for row in rows {
        let megabytes = row.bytes.map(|bytes| bytes / 1e6);
        let speed = megabytes.map(|megabytes| megabytes / row.took.as_secs_f64().max(1e-9));
        let share = row.work.as_ref().map(|work| (1.0 - work.rate / alone.max(1e-9)).max(0.0));
        let lost = share.map(|share| share * alone * row.took.as_secs_f64());
        if let Some(lost) = lost
            && fewest.is_none_or(|(known, _)| lost < known)
        {
            fewest = Some((lost, row.delay.as_str()));
        }
        let number = |number: Option<f64>, digits: usize| {
            number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
        };
        let p95 = row.work.as_ref().map(|work| work.stats.response.quantile(0.95));
        grid.add(
            Tone::Plain,
            vec![
                row.delay.clone(),
                if row.is_loaded { "under load" } else { "idle" }.to_owned(),
                show(row.took),
                show(row.cpu),
                number(megabytes, 2),
                number(speed, 3),
                number(row.work.as_ref().map(|work| work.rate), 1),
                share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
                number(lost, 0),
                p95.map_or_else(|| "-".to_owned(), show),
            ],
        );
        found.push(json!({
            "delay": row.delay, "under_load": row.is_loaded, "seconds": row.took.as_secs_f64(), "cpu_seconds": row.cpu.as_secs_f64(),
            "megabytes": megabytes,
            "megabytes_per_second": speed, "transactions_per_second": row.work.as_ref().map(|work| work.rate),
            "lost_share": share, "lost_transactions": lost, "p95_ms": p95.map(|p95| p95.as_secs_f64() * 1e3),
        }));
    }
    (grid, found, fewest)
}

/// Returns how long backups took against how much they saved, if that is known of several.
fn size_and_time(rows: &[Row]) -> Option<Curves> {
    let sized = |is_loaded: bool| {
        let rows = rows.iter().filter(move |row| row.is_loaded == is_loaded);
        let mut points: Vec<(f64, f64)> =
            rows.filter_map(|row| Some((row.bytes? / 1e6, row.took.as_secs_f64()))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let lines = vec![("idle".to_owned(), sized(false)), ("under load".to_owned(), sized(true))];
    if lines.iter().any(|(_, points)| points.len() > 1) {
        return Some(Curves {
            title: "Time against size".to_owned(),
            unit: "seconds".to_owned(),
            axis: "MB".to_owned(),
            lines,
        });
    }
    None
}
