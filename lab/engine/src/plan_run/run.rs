//! Runs a plan: set-up groups, main groups, tear-down groups, and prints JMeter's summary lines.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tympan_lab_plan::goal::LoadGoal;
use tympan_lab_plan::model::{
    OpenModelArrivals, PlanModel, ThreadGroup, ThreadGroupStage, ThreadLifetime,
};
use tympan_lab_plan::{
    ArrivalProcess, ArrivalSchedule, FileFinding, LoadPortion, ProcessRotation, RateInterval,
    RunContext, TestPlan, VariableScope,
};

use super::plan_thread::PlanThread;
use super::thread_context::{PlanRunState, ThreadContext, ThreadGroupState};
use crate::load::{
    LoadObserver, LoadRun, LoadRunState, SampleRowWriter, VirtualUser, WorkerLoad, processor_count,
    run_load,
};
use crate::measurement::jtl::JtlExtraColumns;
use crate::measurement::summariser::{SummaryTally, ThreadCounts, format_summary_line};
use crate::measurement::{JtlRowSink, RunResults, SampleMarkGenerator, WorkerInterval};
use crate::net::TargetRegistry;
use crate::report::goal;
use crate::report::live_display::LiveDisplay;
use crate::{Error, Result};

/// Options of a plan run.
#[derive(Debug, Clone, Default)]
pub struct RunOptions {
    /// `-J`: properties.
    pub properties: HashMap<String, String>,
    /// Sends everything to this address instead of the plan's targets, in plain HTTP: to a recording proxy.
    pub proxy_address: Option<std::net::SocketAddr>,
    /// True if connections use HTTP/2, each with one exchange at a time.
    pub is_http2: bool,
    /// `-l`: the result file.
    pub result_file: Option<PathBuf>,
    /// Number of sending threads; 0 for one per processor.
    pub worker_count: usize,
    /// The seed of random numbers.
    pub seed: u64,
    /// Ignores the result files that listeners of the plan specify.
    pub without_listeners: bool,
    /// Number of exchanges per label that are stored completely.
    pub traces_per_label: usize,
    /// A load that replaces the plan's own.
    pub load_offer: Option<LoadOffer>,
    /// Goals; those with [`LoadGoal::abort_after`] end a run that misses them.
    pub goals: Vec<LoadGoal>,
    /// Host names with overriding addresses for this run; several are separated by commas.
    pub host_addresses: HashMap<String, String>,
    /// Classes of elements that are omitted from the plan if they cannot be run.
    pub excluded_classes: Vec<String>,
    /// Columns of result file rows in addition to JMeter's.
    pub extra_columns: JtlExtraColumns,
    /// The name of the run, if each request is marked with the sample that it belongs to.
    pub run_mark: Option<String>,
}

/// A load for any plan: its groups share it in proportion to their own numbers of users.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOffer {
    /// The rate of visitors or the number of users.
    pub amount: LoadAmount,
    /// Total duration.
    pub duration: Duration,
    /// Time over which the load increases from zero, within the duration.
    pub ramp: Duration,
    /// Visitors arrive independently of each other instead of at equal intervals.
    pub is_random: bool,
}

/// The amount of load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LoadAmount {
    /// Visits begun per second, whether or not earlier ones are over (open model).
    Rate(f64),
    /// Number of concurrent users, who wait for responses (closed model).
    Users(u64),
}

/// The outcome of a run.
#[derive(Debug)]
pub struct PlanRunOutcome {
    /// The measurements.
    pub results: RunResults,
    /// The totals of the last summary line.
    pub tally: SummaryTally,
    /// Faults outside of samples, such as an unreadable data file.
    pub errors: Vec<String>,
    /// Number of completed visits of the open model.
    pub visits: u64,
}

/// Time limit for exchanges in progress at the end of a run.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between `+` lines in seconds.
const SUMMARY_INTERVAL_SECS: u64 = 30;

/// The portion of a run for this process if several share it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RunMembership {
    /// The portion of the threads and visitors.
    pub portion: LoadPortion,
    /// True if each process uses all rows of the data sets.
    pub copies_rows: bool,
}

/// The receiver of a run's progress.
enum RunListener<'a> {
    /// A console: JMeter's lines, and the live display.
    Console { print_line: &'a mut dyn FnMut(&str), display: Option<&'a mut LiveDisplay> },
    /// Another process: the numbers themselves.
    Observer(&'a mut dyn LoadObserver),
}

/// Returns true if rows include sub-samples: as JMeter's property specifies, otherwise for JMeter plans.
fn writes_sub_sample_rows(file: &str, options: &RunOptions) -> bool {
    match options.properties.get("jmeter.save.saveservice.subresults") {
        Some(value) => value.trim().eq_ignore_ascii_case("true"),
        None => !file.ends_with(".toml"),
    }
}

/// Runs a plan.
///
/// # Errors
/// `Error::InvalidFile` if numeric fields of the plan are invalid with these properties; [`Error::FileAccess`];
/// [`Error::Engine`].
pub fn run_plan(
    plan: &TestPlan,
    run: &RunOptions,
    say: &mut dyn FnMut(&str),
) -> Result<PlanRunOutcome> {
    let audience = RunListener::Console { print_line: say, display: None };
    run_for_listener(plan, run, &RunMembership::default(), audience)
}

/// Runs a plan and displays its progress.
///
/// # Errors
/// As [`run_plan`].
pub fn run_plan_with_display(
    plan: &TestPlan,
    run: &RunOptions,
    say: &mut dyn FnMut(&str),
    live: &mut LiveDisplay,
) -> Result<PlanRunOutcome> {
    let audience = RunListener::Console { print_line: say, display: Some(live) };
    run_for_listener(plan, run, &RunMembership::default(), audience)
}

/// Runs this process's portion of a plan that several processes run; `process` receives the numbers.
///
/// # Errors
/// As [`run_plan`].
pub fn run_plan_as_member(
    plan: &TestPlan,
    run: &RunOptions,
    member: &RunMembership,
    process: &mut dyn LoadObserver,
) -> Result<PlanRunOutcome> {
    run_for_listener(plan, run, member, RunListener::Observer(process))
}

fn run_for_listener(
    plan: &TestPlan,
    options: &RunOptions,
    member: &RunMembership,
    audience: RunListener<'_>,
) -> Result<PlanRunOutcome> {
    let (model, file) = (plan.model(), plan.file());
    check_required_properties(model, file, options)?;
    let (world, mut first) = model.begin_run(&options.properties, options.seed, member.portion);
    let groups = prepare_groups(model, file, options, &mut first)?;
    let turns = assign_row_rotations(model, &groups, member.portion, &mut first);
    if !member.copies_rows {
        world.row_rotations.set(turns).ok();
    }
    let outputs = result_file_paths(model, options, &mut first);
    let taker = match &audience {
        RunListener::Console { .. } => None,
        RunListener::Observer(process) => process.row_consumer(),
    };
    let rows = match taker {
        Some(taker) => Some(SampleRowWriter::forward_to(taker)?),
        None if outputs.is_empty() => None,
        None => Some(SampleRowWriter::append_to(&outputs, options.extra_columns)?),
    };
    let shared = Arc::new(PlanRunState {
        targets: TargetRegistry::with_detour(options.proxy_address, &options.host_addresses)
            .with_http2(options.is_http2),
        load_state: Arc::new(LoadRunState::default()),
        started_threads: AtomicU64::new(0),
        ended_threads: AtomicU64::new(0),
        completed_visits: AtomicU64::new(0),
        tallies: Mutex::default(),
        epoch: (Instant::now(), VariableScope::now_ms()),
        faults: Mutex::default(),
        writes_sub_samples: writes_sub_sample_rows(file, options),
        sample_marks: options.run_mark.as_deref().map(SampleMarkGenerator::for_run),
    });
    shared.load_state.set_trace_limit(options.traces_per_label);
    let mut director = GroupScheduler {
        thread_factory: PlanThreadFactory {
            model: Arc::clone(model),
            run_context: Arc::clone(&world),
            initial_scope: Arc::new(first),
            run_state: Arc::clone(&shared),
        },
        seed: options.seed,
        load_offer: options.load_offer.as_ref(),
        worker_count: if options.worker_count == 0 {
            processor_count()
        } else {
            options.worker_count
        },
        row_sink: rows.as_ref().map(SampleRowWriter::row_sink),
        group_count: 0,
        results: RunResults::new(SystemTime::now()),
    };
    let mut reporter = RunReporter::new(&shared, audience, &options.goals);
    reporter.print_line("Creating summariser <summary>");
    reporter.print_line(&format!("Starting standalone test @ {}", time_of_day_text()));
    for stage in [ThreadGroupStage::Setup, ThreadGroupStage::Main, ThreadGroupStage::Teardown] {
        if shared.load_state.is_stopping() {
            // Tear-down groups run even if the test was stopped, if the plan specifies it.
            if stage != ThreadGroupStage::Teardown || !model.runs_teardown_on_stop {
                continue;
            }
            shared.load_state.clear_stop();
        }
        let members: Vec<_> =
            groups.iter().filter(|prepared| prepared.group.stage == stage).collect();
        // A load for the whole plan is one load, even if groups would otherwise run in sequence.
        let is_serial = model.is_serial && options.load_offer.is_none();
        let parts: Vec<&[&PreparedGroup<'_>]> =
            if is_serial { members.chunks(1).collect() } else { vec![members.as_slice()] };
        for part in parts {
            // Groups after one that ended the test do not start.
            if !part.is_empty() && !shared.load_state.is_stopping() {
                director.run_groups(part, &mut reporter)?;
            }
        }
    }
    reporter.finish();
    let mut results = director.results;
    results.limit_traces(options.traces_per_label);
    drop(director.row_sink);
    if let Some(rows) = rows {
        rows.finish()?;
    }
    reporter.print_line(&format!("Tidying up ...    @ {}", time_of_day_text()));
    reporter.print_line("... end of run");
    let tally = shared.tallies.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
    let faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let visits = shared.completed_visits.load(Ordering::Relaxed);
    Ok(PlanRunOutcome { results, tally, errors: faults, visits })
}

/// Rejects a redacted copy of a plan whose secrets are not given.
fn check_required_properties(model: &PlanModel, file: &str, options: &RunOptions) -> Result<()> {
    let lacks: Vec<String> = model
        .required_properties
        .iter()
        .filter(|name| !options.properties.contains_key(*name))
        .map(|name| format!("-J{name}=..."))
        .collect();
    if lacks.is_empty() {
        return Ok(());
    }
    Err(Error::UnusableInput(format!(
        "`{file}` is a copy without its secrets; set them: {}",
        lacks.join(" ")
    )))
}

/// Returns the time of day in JMeter's format.
pub fn time_of_day_text() -> String {
    let now = jiff::Zoned::now();
    let ms = now.timestamp().as_millisecond();
    format!("{} ({ms})", now.strftime("%Y %b %-d %H:%M:%S %Z"))
}

fn result_file_paths(
    model: &PlanModel,
    options: &RunOptions,
    scope: &mut VariableScope,
) -> Vec<PathBuf> {
    let mut outputs: Vec<PathBuf> = options.result_file.iter().cloned().collect();
    if !options.without_listeners {
        for output in &model.result_files {
            let path = PathBuf::from(output.evaluate(scope).trim());
            if !outputs.contains(&path) {
                outputs.push(path);
            }
        }
    }
    outputs
}

/// Assigns the row rotation of each data set to the processes, in proportion to the visits that read a row.
fn assign_row_rotations(
    model: &PlanModel,
    groups: &[PreparedGroup<'_>],
    portion: LoadPortion,
    first: &mut VariableScope,
) -> HashMap<String, ProcessRotation> {
    let mut drawing: HashMap<String, Vec<&PreparedGroup<'_>>> = HashMap::new();
    for prepared in groups {
        first.group_name = prepared.group.name.evaluate(first).into_owned().into();
        first.group_root = prepared.group.root;
        for data in model.shared_data_below(prepared.group.root) {
            let (_, cursor) = data.cursor_key(first);
            drawing.entry(cursor).or_default().push(prepared);
        }
    }
    first.group_name = "".into();
    let turns = |groups: &Vec<&PreparedGroup<'_>>| {
        // If some groups are endless, only users can be counted.
        let is_counted = groups.iter().all(|it| it.loops.is_some() || it.arrivals.is_some());
        let visits: Vec<u64> = (0..portion.count)
            .map(|index| {
                let process = LoadPortion { index, ..portion };
                groups.iter().map(|prepared| prepared.visit_count(process, is_counted)).sum()
            })
            .collect();
        ProcessRotation::by_visits(&visits, portion)
    };
    drawing.iter().map(|(cursor, groups)| (cursor.clone(), turns(groups))).collect()
}

/// A group with its thread lifetimes and loops.
struct PreparedGroup<'a> {
    group: &'a ThreadGroup,
    thread_lifetimes: Vec<ThreadLifetime>,
    loops: Option<u64>,
    arrivals: Option<OpenModelArrivals>,
}

impl PreparedGroup<'_> {
    /// Returns the number of visits of a process, or of users if visits are not counted.
    fn visit_count(&self, process: LoadPortion, is_counted: bool) -> u64 {
        if let Some(arrivals) = &self.arrivals {
            // Visitors are assigned in rotation like rows, so all processes have the same count.
            let schedule =
                ArrivalSchedule::from_intervals(arrivals.process, &arrivals.rate_intervals, 0);
            let count = schedule.mean_rate() * schedule.duration().as_secs_f64();
            return if is_counted { (count / process.count as f64).round() as u64 } else { 1 };
        }
        let users = process.share_of(self.thread_lifetimes.len() as u64);
        let loops = self.loops.filter(|_| is_counted).unwrap_or(1);
        users.saturating_mul(loops)
    }
}

fn prepare_groups<'a>(
    model: &'a PlanModel,
    file: &str,
    options: &RunOptions,
    first: &mut VariableScope,
) -> Result<Vec<PreparedGroup<'a>>> {
    let mut findings = Vec::new();
    let mut groups = Vec::new();
    for group in &model.groups {
        match prepare_group(group, first) {
            Ok(prepared) => groups.push(prepared),
            Err(message) => {
                let message = format!("thread group `{}`: {message}", group.name.source());
                findings.push(FileFinding {
                    file: file.to_owned(),
                    line: group.line,
                    column: 1,
                    message,
                });
            }
        }
    }
    if !findings.is_empty() {
        return Err(tympan_lab_plan::Error::InvalidFile(findings).into());
    }
    if let Some(offer) = &options.load_offer {
        apply_load_offer(offer, &mut groups);
    }
    Ok(groups)
}

fn prepare_group<'a>(
    group: &'a ThreadGroup,
    scope: &mut VariableScope,
) -> Result<PreparedGroup<'a>, String> {
    let spans = group.thread_lifetimes(scope)?;
    if let Some(arrivals) = group.arrivals(scope)? {
        return Ok(PreparedGroup {
            group,
            thread_lifetimes: spans,
            loops: None,
            arrivals: Some(arrivals),
        });
    }
    let text = group.loops.evaluate(scope).trim().to_owned();
    let loops = match text.parse::<i64>() {
        _ if group.is_endless => None,
        Ok(-1) => None,
        Ok(loops) => Some(u64::try_from(loops).unwrap_or(0)),
        Err(_) => {
            return Err(format!(
                "the number of loops is `{text}` from `{}`, which is not a number",
                group.loops.source()
            ));
        }
    };
    Ok(PreparedGroup { group, thread_lifetimes: spans, loops, arrivals: None })
}

/// Replaces the load of the main groups.
fn apply_load_offer(offer: &LoadOffer, groups: &mut [PreparedGroup<'_>]) {
    let weight = |prepared: &PreparedGroup<'_>| match &prepared.arrivals {
        // For visitors, the rate determines the weight of a group.
        Some(arrivals) => {
            ArrivalSchedule::from_intervals(arrivals.process, &arrivals.rate_intervals, 0)
                .mean_rate()
        }
        None => prepared.thread_lifetimes.len() as f64,
    };
    let mut main: Vec<&mut PreparedGroup<'_>> = groups
        .iter_mut()
        .filter(|prepared| prepared.group.stage == ThreadGroupStage::Main)
        .collect();
    let all: f64 = main.iter().map(|prepared| weight(prepared)).sum();
    let (mut weight_sum, mut assigned_users) = (0.0, 0);
    for prepared in &mut main {
        let own = weight(prepared);
        weight_sum += own;
        prepared.loops = None;
        let share = if all > 0.0 { own / all } else { 0.0 };
        match offer.amount {
            LoadAmount::Rate(rate) => {
                prepared.thread_lifetimes.clear();
                prepared.arrivals = Some(offer_arrivals(offer, rate * share));
            }
            LoadAmount::Users(users) => {
                // Rounding remainders carry over to the next group.
                let until =
                    if all > 0.0 { (users as f64 * weight_sum / all).round() as u64 } else { 0 };
                let count = until.saturating_sub(assigned_users);
                assigned_users = until;
                prepared.arrivals = None;
                prepared.thread_lifetimes = (0..count)
                    .map(|thread| {
                        let start = offer.ramp.mul_f64(thread as f64 / count as f64);
                        ThreadLifetime {
                            start,
                            lifetime: Some(offer.duration.saturating_sub(start)),
                        }
                    })
                    .collect();
            }
        }
    }
}

fn offer_arrivals(offer: &LoadOffer, rate: f64) -> OpenModelArrivals {
    let ramp = offer.ramp.min(offer.duration);
    let mut stretches = Vec::new();
    if !ramp.is_zero() {
        stretches.push(RateInterval { start_rate: 0.0, end_rate: rate, duration: ramp });
    }
    stretches.push(RateInterval::constant(rate, offer.duration.saturating_sub(ramp)));
    let process = if offer.is_random { ArrivalProcess::Poisson } else { ArrivalProcess::Uniform };
    OpenModelArrivals { process, rate_intervals: stretches, max_visitors: MAX_OFFER_VISITORS }
}

/// Maximum number of concurrent visitors of an offer: beyond that, arrivals wait for a free one.
const MAX_OFFER_VISITORS: usize = 10_000;

/// Creates threads: holds everything that a thread needs to start.
#[derive(Clone)]
struct PlanThreadFactory {
    model: Arc<PlanModel>,
    run_context: Arc<RunContext>,
    initial_scope: Arc<VariableScope>,
    run_state: Arc<PlanRunState>,
}

impl PlanThreadFactory {
    /// Creates a thread of a group. Both numbers count from 1.
    fn create_thread(
        &self,
        group: usize,
        squad: &Arc<ThreadGroupState>,
        group_number: usize,
        thread_number: usize,
    ) -> PlanThread {
        let mut scope = VariableScope::new(Arc::clone(&self.run_context));
        scope.copy_variables(&self.initial_scope);
        scope.thread_number = thread_number;
        let name = match self.model.groups.get(group) {
            Some(group) => group.name.evaluate(&mut scope).into_owned(),
            None => String::new(),
        };
        scope.thread_name = format!("{name} {group_number}-{thread_number}").into();
        scope.group_name = name.into();
        scope.group_root = self.model.groups.get(group).map_or(0, |group| group.root);
        PlanThread::new(ThreadContext::new(
            Arc::clone(&self.model),
            Arc::clone(&self.run_state),
            Arc::clone(squad),
            scope,
        ))
    }
}

struct GroupScheduler<'a> {
    thread_factory: PlanThreadFactory,
    seed: u64,
    load_offer: Option<&'a LoadOffer>,
    worker_count: usize,
    row_sink: Option<JtlRowSink>,
    /// Number of groups begun.
    group_count: usize,
    results: RunResults,
}

impl GroupScheduler<'_> {
    fn run_groups(
        &mut self,
        groups: &[&PreparedGroup<'_>],
        reporter: &mut RunReporter<'_>,
    ) -> Result<()> {
        let portion = self.thread_factory.run_context.portion;
        // Counted separately in each group, so that a group's threads are divided as the rows that they use are.
        let threads: u64 =
            groups.iter().map(|it| portion.share_of(it.thread_lifetimes.len() as u64)).sum();
        let workers = self.worker_count.min(usize::try_from(threads).unwrap_or(usize::MAX));
        let mut crews: Vec<WorkerLoad> =
            (0..workers).map(|_| WorkerLoad { users: Vec::new(), arrivals: None }).collect();
        let (mut next, mut rate) = (0, 0.0);
        for prepared in groups {
            self.group_count += 1;
            let squad = Arc::new(self.group_state(prepared));
            let group = self.group_index(prepared.group);
            for (thread, span) in prepared.thread_lifetimes.iter().enumerate() {
                if !portion.contains(thread as u64) {
                    // Another process runs this thread, with the same random numbers.
                    self.thread_factory.run_context.skip_user_seed();
                    continue;
                }
                let actor = self
                    .thread_factory
                    .create_thread(group, &squad, self.group_count, thread + 1)
                    .with_lifetime(span.lifetime);
                if let Some(crew) = crews.get_mut(next % workers) {
                    crew.users.push((span.start, Box::new(actor) as Box<dyn VirtualUser>));
                }
                next += 1;
            }
            if let Some(arrivals) = &prepared.arrivals {
                let seed = self.seed.wrapping_add(self.group_count as u64);
                let schedule = ArrivalSchedule::from_intervals(
                    arrivals.process,
                    &arrivals.rate_intervals,
                    seed,
                );
                rate += schedule.mean_rate();
                self.add_arrival_loads(&mut crews, &schedule, arrivals.max_visitors, group, &squad);
            }
        }
        // With other processes, a process without work begins and ends with them.
        if crews.is_empty() && portion.count == 1 {
            return Ok(());
        }
        let is_main = groups.iter().any(|prepared| prepared.group.stage == ThreadGroupStage::Main);
        let load = LoadRun {
            worker_loads: crews,
            // Visits in progress may complete: some are left only if the target does not keep pace.
            stop_after: self
                .load_offer
                .filter(|_| is_main)
                .map(|offer| offer.duration + DRAIN_TIMEOUT),
            drain_timeout: DRAIN_TIMEOUT,
            run_state: Arc::clone(&self.thread_factory.run_state.load_state),
            row_sink: self.row_sink.clone(),
        };
        let mut part = run_load(load, reporter)?;
        part.generator.offered_rate = (rate > 0.0).then_some(rate);
        self.results.append_part(part);
        Ok(())
    }

    fn group_state(&self, prepared: &PreparedGroup<'_>) -> ThreadGroupState {
        ThreadGroupState {
            active_threads: AtomicU64::new(0),
            thread_count: self
                .thread_factory
                .run_context
                .portion
                .share_of(prepared.thread_lifetimes.len() as u64),
            on_error: prepared.group.on_error,
            is_same_user: prepared.group.is_same_user,
            loop_count: prepared.loops,
            root_node: prepared.group.root,
            initial_scope: prepared
                .arrivals
                .is_some()
                .then(|| Arc::clone(&self.thread_factory.initial_scope)),
        }
    }

    fn group_index(&self, group: &ThreadGroup) -> usize {
        let groups = &self.thread_factory.model.groups;
        groups.iter().position(|candidate| std::ptr::eq(candidate, group)).unwrap_or(0)
    }

    /// Adds the loads for the visitors of a group, one per worker.
    fn add_arrival_loads(
        &self,
        crews: &mut Vec<WorkerLoad>,
        schedule: &ArrivalSchedule,
        most: usize,
        group: usize,
        squad: &Arc<ThreadGroupState>,
    ) {
        let hired = Arc::new(AtomicUsize::new(0));
        let portion = self.thread_factory.run_context.portion;
        let most = usize::try_from(portion.share_of(most as u64).max(1)).unwrap_or(most);
        let shares = usize::try_from(portion.count).unwrap_or(1).saturating_mul(self.worker_count);
        for worker in 0..self.worker_count {
            let casting = self.thread_factory.clone();
            let (squad, hired, number) = (Arc::clone(squad), Arc::clone(&hired), self.group_count);
            let hire = move || {
                let thread = hired.fetch_add(1, Ordering::Relaxed);
                if thread >= most {
                    return None;
                }
                let thread =
                    usize::try_from(portion.global_index(thread as u64)).unwrap_or(thread) + 1;
                let actor = casting.create_thread(group, &squad, number, thread);
                Some(Box::new(actor) as Box<dyn VirtualUser>)
            };
            let share = usize::try_from(portion.global_index(worker as u64)).unwrap_or(worker);
            let arrivals = Some((schedule.for_share(share, shares), Box::new(hire) as _));
            crews.push(WorkerLoad { users: Vec::new(), arrivals });
        }
    }
}

/// Reports the progress of a run.
struct RunReporter<'a> {
    run_state: Arc<PlanRunState>,
    listener: RunListener<'a>,
    goals: Vec<LoadGoal>,
    summary_printer: SummaryLinePrinter,
}

impl<'a> RunReporter<'a> {
    fn new(shared: &Arc<PlanRunState>, audience: RunListener<'a>, goals: &[LoadGoal]) -> Self {
        Self {
            run_state: Arc::clone(shared),
            listener: audience,
            goals: goals.to_vec(),
            summary_printer: SummaryLinePrinter::default(),
        }
    }

    fn print_line(&mut self, line: &str) {
        if let RunListener::Console { print_line: say, display: live } = &mut self.listener {
            if let Some(live) = live {
                live.clear_board();
            }
            say(line);
        }
    }

    fn report_progress(&mut self, is_end: bool) {
        let threads = self.run_state.thread_counts();
        let delta = {
            let mut tally = self.run_state.tallies.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut tally.0)
        };
        match &mut self.listener {
            RunListener::Observer(process) => process.on_tally(&delta, threads),
            RunListener::Console { print_line: say, display: live } => {
                self.summary_printer.add(&delta);
                self.summary_printer.print_due_lines(is_end, threads, &mut |line| {
                    if let Some(live) = live {
                        live.clear_board();
                    }
                    say(line);
                });
            }
        }
    }

    fn finish(&mut self) {
        self.report_progress(true);
    }
}

impl LoadObserver for RunReporter<'_> {
    fn on_second(&mut self) {
        self.report_progress(false);
        match &mut self.listener {
            RunListener::Observer(process) => process.on_second(),
            RunListener::Console { display: live, .. } => {
                if let Some(live) = live {
                    live.on_second();
                }
            }
        }
    }

    fn wait_for_start(&mut self) -> Result<Option<Instant>> {
        match &mut self.listener {
            RunListener::Console { .. } => Ok(None),
            RunListener::Observer(process) => process.wait_for_start(),
        }
    }

    fn on_interval(&mut self, interval: &WorkerInterval) {
        match &mut self.listener {
            RunListener::Observer(process) => process.on_interval(interval),
            RunListener::Console { display: live, .. } => {
                if let Some(live) = live {
                    live.on_interval(interval);
                }
            }
        }
    }

    fn on_load_end(&mut self, results: &RunResults, is_stopping: bool) {
        match &mut self.listener {
            RunListener::Observer(process) => process.on_load_end(results, is_stopping),
            RunListener::Console { display: live, .. } => {
                if let Some(live) = live {
                    live.on_load_end(results, is_stopping);
                }
            }
        }
    }

    fn find_breach(&self, results: &RunResults) -> Option<String> {
        goal::aborting_breach(&self.goals, results)
    }

    fn is_stop_requested(&self) -> bool {
        match &self.listener {
            RunListener::Console { .. } => false,
            RunListener::Observer(process) => process.is_stop_requested(),
        }
    }
}

/// Prints the summariser's lines when they are due.
#[derive(Debug)]
pub struct SummaryLinePrinter {
    delta: SummaryTally,
    total: SummaryTally,
    last_printed: u64,
    has_printed: bool,
}

impl Default for SummaryLinePrinter {
    fn default() -> Self {
        let last = VariableScope::now_ms() / 1000 / SUMMARY_INTERVAL_SECS;
        Self {
            delta: SummaryTally::default(),
            total: SummaryTally::default(),
            last_printed: last,
            has_printed: false,
        }
    }
}

impl SummaryLinePrinter {
    /// Adds samples that are not yet printed.
    pub fn add(&mut self, delta: &SummaryTally) {
        self.delta.merge(delta);
        self.total.merge(delta);
    }

    /// Prints the due lines: at the end, and every half minute.
    pub fn print_due_lines(
        &mut self,
        is_end: bool,
        threads: ThreadCounts,
        say: &mut dyn FnMut(&str),
    ) {
        let now = VariableScope::now_ms() / 1000 / SUMMARY_INTERVAL_SECS;
        if !is_end && now <= self.last_printed {
            return;
        }
        self.last_printed = now;
        let delta = std::mem::take(&mut self.delta);
        if delta.count > 0 && (!is_end || self.has_printed) {
            say(&format_summary_line("summary", '+', &delta, delta.span_ms(), Some(threads)));
        }
        if is_end || (delta.count > 0 && self.has_printed) {
            say(&format_summary_line("summary", '=', &self.total, self.total.span_ms(), None));
        }
        self.has_printed |= delta.count > 0;
    }

    /// Returns the totals.
    pub fn total(&self) -> &SummaryTally {
        &self.total
    }
}
