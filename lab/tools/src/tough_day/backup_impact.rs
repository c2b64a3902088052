//! Measures the cost of a backup to concurrent work, and of the work to the backup.
//!
//! The peak is calibrated first: transactions per second of the given number of threads without a pause and without a
//! backup. Then a share of the peak arrives by a schedule, handled by the same number of threads, alone and beside each
//! backup. Backups run with every delay, idle and under load, in turn.
//!
//! Lost transactions are the drop in rate against the load without a backup, multiplied by the duration of the backup:
//! a gentle backup that takes long may cost more than a fast one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tympan_lab_engine::Error as EngineError;
use tympan_lab_engine::goal::format_response_time;
use tympan_lab_engine::load::{
    LoadRun, LoadRunState, VirtualUser, WorkerLoad, processor_count, run_load,
};
use tympan_lab_engine::measurement::{RunResults, SampleStats};
use tympan_lab_engine::report::report_sheet::{
    ReportChart, ReportPart, ReportSheet, ReportTable, ReportTone,
};
use tympan_lab_engine::result_validity;
use tympan_lab_plan::{ArrivalProcess, ArrivalSchedule};

use super::shared_state::{CreatedContent, ToughSharedState};
use super::tester::ToughTester;
use super::{
    DRAIN_TIMEOUT, LoadRamp, ToughAuthor, ToughDayRun, ToughPhase, ToughTest, ToughTestKind,
    test_order,
};
use crate::comparison::program::MeasuredProgram;
use crate::{Error, Result};

/// Configuration of the test.
#[derive(Debug)]
pub struct BackupImpactTest {
    /// Shares of traversals, queries and creations.
    pub work_mix: [u64; 3],
    /// Number of worker threads.
    pub thread_count: usize,
    /// The share of the peak that arrives while backups run.
    pub load_share: f64,
    /// Duration of the peak calibration, and of the load without a backup.
    pub measure_duration: Duration,
    /// Values that replace `{delay}` in the program's words.
    pub delays: Vec<String>,
    /// Number of runs of each backup.
    pub runs_per_backup: usize,
    /// The program that makes a backup. Its metric, if any, is the number of bytes saved.
    pub backup_program: MeasuredProgram,
    /// A program that runs before each backup, such as one that empties the vault or adds content; not measured.
    pub before_program: Option<MeasuredProgram>,
    /// Paths that traversals request, in turn.
    pub traversal_paths: Vec<String>,
}

/// Maximum duration of the load beside one backup; a longer backup is measured over this time.
const MAX_LOAD_DURATION: Duration = Duration::from_secs(3600);

/// One backup.
#[derive(Debug)]
struct BackupImpactRow {
    delay: String,
    is_under_load: bool,
    elapsed: Duration,
    /// Processor time of the backup.
    cpu_time: Duration,
    saved_bytes: Option<f64>,
    /// Measurement of the concurrent work.
    load: Option<LoadMeasurement>,
}

/// Measurement of work over a period.
#[derive(Debug)]
struct LoadMeasurement {
    rate: f64,
    stats: SampleStats,
}

impl BackupImpactTest {
    /// Checks that the configuration can be measured.
    ///
    /// # Errors
    /// [`Error::UnusableInput`].
    pub fn validate(&self) -> Result<()> {
        let fault = |text: &str| Err(Error::UnusableInput(text.to_owned()));
        if self.thread_count == 0 || self.thread_count > 1000 {
            return fault("the number of threads must be 1 to 1000");
        }
        if !(self.load_share.is_finite() && self.load_share > 0.0 && self.load_share <= 1.0) {
            return fault("the load must be a share of the peak, above 0 % and up to 100 %");
        }
        if self.work_mix.iter().all(|share| *share == 0)
            || self.measure_duration.is_zero()
            || self.runs_per_backup == 0
        {
            return fault("the work, the time and the runs must be above 0");
        }
        let has_place = self.backup_program.words.iter().any(|word| word.contains("{delay}"));
        if self.delays.len() > 1 && !has_place {
            return fault("with several delays, the program needs `{delay}` in its arguments");
        }
        Ok(())
    }

    fn work_tests(&self) -> Vec<ToughTest> {
        let [traversals, queries, creations] = self.work_mix;
        let mut get = ToughTest::new(ToughTestKind::Get, traversals);
        "traversal".clone_into(&mut get.name);
        get.queries.clone_from(&self.traversal_paths);
        let mut query = ToughTest::new(ToughTestKind::QueryBuilder, queries);
        "query".clone_into(&mut query.name);
        // A tree of at most one level: no nesting, and no more children below one parent than a repository handles
        // well.
        let mut create = ToughTest::new(ToughTestKind::CreatePageTree, creations);
        "creation".clone_into(&mut create.name);
        create.tree_fanout = 800;
        vec![get, query, create]
    }

    /// Runs all measurements.
    ///
    /// # Errors
    /// As [`BackupImpactTest::validate`] and [`ToughDayRun::run`]; [`Error::ProgramFailed`] if a backup fails.
    pub fn run(&self, tough: &ToughDayRun<'_>, tell: &mut dyn FnMut(&str)) -> Result<ReportSheet> {
        self.validate()?;
        let mut author = ToughAuthor::new(&tough.author_url, &tough.authorization)?;
        author.create_roots(&tough.run_name)?;
        let outcome = self.measure_backups(tough, &mut author, tell);
        let cleaned =
            if tough.keeps_content { Ok(()) } else { author.clean_up(&tough.run_name, false) };
        let mut sheet = outcome?;
        if let Err(error) = cleaned {
            sheet.add_verdict(
                ReportTone::Doubtful,
                format!("cannot delete the content created below `{}`: {error}", tough.run_name),
            );
        }
        Ok(sheet)
    }

    fn measure_backups(
        &self,
        tough: &ToughDayRun<'_>,
        author: &mut ToughAuthor,
        tell: &mut dyn FnMut(&str),
    ) -> Result<ReportSheet> {
        let tests = self.work_tests();
        let phase = ToughPhase {
            name: "work".to_owned(),
            duration: self.measure_duration,
            load_mode: super::ToughLoadMode::ConstantLoad { rate: LoadRamp::constant(1.0) },
            tests: tests.clone(),
            is_measured: true,
        };
        let order = test_order(&phase)?;
        let setting = tough.detect_environment(author)?;
        let shared = Arc::new(ToughSharedState::new(
            setting,
            tests,
            order,
            Duration::ZERO,
            CreatedContent::default(),
        ));
        tell(&format!(
            "measuring the peak of {} threads for {}",
            self.thread_count,
            format_response_time(self.measure_duration)
        ));
        let peak = self.run_load(&shared, None, self.measure_duration, || Ok(()))?;
        let peak_rate = peak.0.rate_of(completed_transactions(&peak.0));
        if peak_rate <= 0.0 {
            return Err(Error::UnusableInput(
                "the author completed no transactions, so there is no peak".to_owned(),
            ));
        }
        let offered = peak_rate * self.load_share;
        tell(&format!(
            "peak {peak_rate:.1}/s; {offered:.1}/s alone for {}",
            format_response_time(self.measure_duration)
        ));
        let alone = self.run_load(&shared, Some(offered), self.measure_duration, || Ok(()))?;
        let alone = (alone.0.rate_of(completed_transactions(&alone.0)), alone.0);
        let mut rows = Vec::new();
        for run in 1..=self.runs_per_backup {
            for delay in &self.delays {
                for is_loaded in [false, true] {
                    if let Some(before) = &self.before_program {
                        before.measure()?;
                    }
                    let program = self.program_with_delay(delay);
                    let backup = || program.measure();
                    let row = if is_loaded {
                        let (results, measure) =
                            self.run_load(&shared, Some(offered), MAX_LOAD_DURATION, backup)?;
                        let span = measure.elapsed.min(results.elapsed).as_secs_f64().max(1e-9);
                        let rate = completed_transactions(&results) as f64 / span;
                        let work = Some(LoadMeasurement { rate, stats: results.total_stats() });
                        BackupImpactRow {
                            delay: delay.clone(),
                            is_under_load: is_loaded,
                            elapsed: measure.elapsed,
                            cpu_time: measure.cpu_time,
                            saved_bytes: measure.metric,
                            load: work,
                        }
                    } else {
                        let measure = backup()?;
                        BackupImpactRow {
                            delay: delay.clone(),
                            is_under_load: is_loaded,
                            elapsed: measure.elapsed,
                            cpu_time: measure.cpu_time,
                            saved_bytes: measure.metric,
                            load: None,
                        }
                    };
                    let state = if is_loaded { "under load" } else { "idle" };
                    tell(&format!(
                        "run {run}, delay {delay}, {state}: {}",
                        format_response_time(row.elapsed)
                    ));
                    rows.push(row);
                }
            }
        }
        Ok(self.build_impact_sheet(&rows, peak_rate, &alone))
    }

    fn program_with_delay(&self, delay: &str) -> MeasuredProgram {
        let words =
            self.backup_program.words.iter().map(|word| word.replace("{delay}", delay)).collect();
        MeasuredProgram { words, metric: self.backup_program.metric.clone() }
    }

    /// Generates load until `beside` is done, or for `duration` if that is done at once; at a rate, or as fast as the
    /// threads can.
    fn run_load<T: Send>(
        &self,
        shared: &Arc<ToughSharedState>,
        rate: Option<f64>,
        duration: Duration,
        beside: impl FnOnce() -> Result<T> + Send,
    ) -> Result<(RunResults, T)> {
        let crowd = Arc::new(LoadRunState::default());
        let workers = processor_count().min(self.thread_count);
        let mut crews: Vec<WorkerLoad> = Vec::new();
        match rate {
            None => {
                crews
                    .extend((0..workers).map(|_| WorkerLoad { users: Vec::new(), arrivals: None }));
                for number in 0..self.thread_count {
                    let user = ToughTester::new(Arc::clone(shared), None, false);
                    if let Some(crew) = crews.get_mut(number % workers) {
                        crew.users.push((Duration::ZERO, Box::new(user) as Box<dyn VirtualUser>));
                    }
                }
            }
            Some(rate) => {
                let schedule = ArrivalSchedule::new(ArrivalProcess::Uniform, rate, duration, 0);
                for worker in 0..workers {
                    let shared = Arc::clone(shared);
                    let mut left = self.thread_count / workers
                        + usize::from(worker < self.thread_count % workers);
                    let hire = move || {
                        left = left.checked_sub(1)?;
                        Some(Box::new(ToughTester::new(Arc::clone(&shared), None, true))
                            as Box<dyn VirtualUser>)
                    };
                    let arrivals = Some((schedule.for_share(worker, workers), Box::new(hire) as _));
                    crews.push(WorkerLoad { users: Vec::new(), arrivals });
                }
            }
        }
        let load = LoadRun {
            worker_loads: crews,
            stop_after: Some(duration),
            drain_timeout: DRAIN_TIMEOUT,
            run_state: Arc::clone(&crowd),
            row_sink: None,
        };
        let is_backup = duration == MAX_LOAD_DURATION;
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || run_load(load, &mut ()));
            let done = beside();
            if is_backup {
                crowd.request_stop();
            }
            let results = worker.join().unwrap_or_else(|_| {
                Err(EngineError::UnusableInput("the load thread panicked".to_owned()))
            })?;
            Ok((results, done?))
        })
    }

    /// Builds the report.
    fn build_impact_sheet(
        &self,
        rows: &[BackupImpactRow],
        peak: f64,
        (alone, results): &(f64, RunResults),
    ) -> ReportSheet {
        let alone = *alone;
        let mut sheet = ReportSheet::new("Backup impact");
        let idle_stats = results.total_stats();
        for doubt in result_validity::validity_doubts(results)
            .into_iter()
            .filter(|doubt| !doubt.contains("never sent"))
        {
            sheet.add_verdict(ReportTone::Doubtful, format!("GENERATOR SATURATED: {doubt}"));
        }
        if idle_stats.error_rate() > 0.01 {
            let share = idle_stats.error_rate() * 100.0;
            sheet.add_verdict(
                ReportTone::Doubtful,
                format!("{share:.1} % of the work fails without any backup"),
            );
        }
        let (grid, json_rows, fewest) = backup_table(rows, alone);
        sheet.add_verdict(
            ReportTone::Plain,
            format!(
                "peak {peak:.1}/s with {} threads; alone at {:.0} % of it {alone:.1}/s, p95 {}",
                self.thread_count,
                self.load_share * 100.0,
                format_response_time(idle_stats.response_times.quantile(0.95))
            ),
        );
        if let Some((lost, delay)) = fewest {
            sheet.add_verdict(
                ReportTone::Plain,
                format!("fewest transactions are lost with delay {delay}: {lost:.0}"),
            );
        }
        sheet.parts.push(ReportPart::Table(grid));
        sheet.parts.push(ReportPart::Text(
            "Lost throughput is relative to the same load without a backup; multiplied by the duration of the \
             backup, it is the number of lost transactions."
                .to_owned(),
        ));
        sheet.parts.extend(size_time_chart(rows).map(ReportPart::Chart));
        sheet.json_result = json!({
            "peak_per_second": peak, "alone_per_second": alone, "threads": self.thread_count, "load": self.load_share,
            "alone_p95_ms": idle_stats.response_times.quantile(0.95).as_secs_f64() * 1e3, "backups": json_rows,
        });
        sheet
    }
}

/// Returns the number of completed transactions. A transaction that the author rejects is lost, however fast the
/// rejection is.
fn completed_transactions(results: &RunResults) -> u64 {
    let total = results.total_stats();
    total.count().saturating_sub(total.error_count)
}

/// The delay of a backup, and the fewest lost transactions.
type FewestLostTransactions<'r> = Option<(f64, &'r str)>;

/// Returns the table of backups as a report table and as JSON, and the delay that costs the fewest transactions.
fn backup_table(
    rows: &[BackupImpactRow],
    alone: f64,
) -> (ReportTable, Vec<serde_json::Value>, FewestLostTransactions<'_>) {
    let mut grid = ReportTable::new(
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
    let mut json_rows = Vec::new();
    let mut fewest: Option<(f64, &str)> = None;
    for row in rows {
        let megabytes = row.saved_bytes.map(|bytes| bytes / 1e6);
        let speed = megabytes.map(|megabytes| megabytes / row.elapsed.as_secs_f64().max(1e-9));
        let share = row.load.as_ref().map(|work| (1.0 - work.rate / alone.max(1e-9)).max(0.0));
        let lost = share.map(|share| share * alone * row.elapsed.as_secs_f64());
        if let Some(lost) = lost
            && fewest.is_none_or(|(fewest_lost, _)| lost < fewest_lost)
        {
            fewest = Some((lost, row.delay.as_str()));
        }
        let number = |number: Option<f64>, digits: usize| {
            number.map_or_else(|| "-".to_owned(), |number| format!("{number:.digits$}"))
        };
        let p95 = row.load.as_ref().map(|work| work.stats.response_times.quantile(0.95));
        grid.add_row(
            ReportTone::Plain,
            vec![
                row.delay.clone(),
                if row.is_under_load { "under load" } else { "idle" }.to_owned(),
                format_response_time(row.elapsed),
                format_response_time(row.cpu_time),
                number(megabytes, 2),
                number(speed, 3),
                number(row.load.as_ref().map(|work| work.rate), 1),
                share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", share * 100.0)),
                number(lost, 0),
                p95.map_or_else(|| "-".to_owned(), format_response_time),
            ],
        );
        json_rows.push(json!({
            "delay": row.delay, "under_load": row.is_under_load, "seconds": row.elapsed.as_secs_f64(), "cpu_seconds": row.cpu_time.as_secs_f64(),
            "megabytes": megabytes,
            "megabytes_per_second": speed, "transactions_per_second": row.load.as_ref().map(|work| work.rate),
            "lost_share": share, "lost_transactions": lost, "p95_ms": p95.map(|p95| p95.as_secs_f64() * 1e3),
        }));
    }
    (grid, json_rows, fewest)
}

/// Returns a chart of backup duration against bytes saved, if several backups report the size.
fn size_time_chart(rows: &[BackupImpactRow]) -> Option<ReportChart> {
    let sized = |is_loaded: bool| {
        let rows = rows.iter().filter(move |row| row.is_under_load == is_loaded);
        let mut points: Vec<(f64, f64)> = rows
            .filter_map(|row| Some((row.saved_bytes? / 1e6, row.elapsed.as_secs_f64())))
            .collect();
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
        points
    };
    let lines = vec![("idle".to_owned(), sized(false)), ("under load".to_owned(), sized(true))];
    if lines.iter().any(|(_, points)| points.len() > 1) {
        return Some(ReportChart {
            title: "Time against size".to_owned(),
            vertical_unit: "seconds".to_owned(),
            horizontal_unit: "MB".to_owned(),
            lines,
        });
    }
    None
}
