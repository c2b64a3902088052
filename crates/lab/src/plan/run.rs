//! Runs a plan: set-up groups, main groups, tear-down groups, and JMeter's lines meanwhile.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::actor::{Actor, Squad, Stage as Shared};
use super::model::{Arrivals, Group, Model, Stage};
use super::scope::{Scope, World};
use super::shape::{self, Span};
use super::turns::Turns;
use crate::goal::{self, Goal};
use crate::live::Live;
use crate::load::{
    Crew, Crowd, Load, Observer, Portion, Process, Rows, Schedule, Stretch, User, processors,
    run as run_load,
};
use crate::net::Targets;
use crate::record::jtl::Added;
use crate::record::summariser::{Tally, Threads, line};
use crate::record::{Interval, Marks, Results, RowSink};
use crate::{Error, Finding, Result};

/// How to run a plan.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// `-J`: properties.
    pub properties: HashMap<String, String>,
    /// Sends everything to this address instead of where the plan says, in plain HTTP: to a proxy that watches.
    pub detour: Option<std::net::SocketAddr>,
    /// Whether connections speak HTTP/2, each with one exchange at a time.
    pub is_http2: bool,
    /// `-l`: the result file.
    pub rows: Option<PathBuf>,
    /// Threads that send; 0 for one per processor.
    pub workers: usize,
    /// What random numbers derive from.
    pub seed: u64,
    /// Leaves out the result files that listeners of the plan name.
    pub without_listeners: bool,
    /// How many exchanges of each label are kept whole.
    pub trace: usize,
    /// Load that is put on the plan instead of its own.
    pub offer: Option<Offer>,
    /// Goals, of which those with [`Goal::abort_after`] end the run that misses them.
    pub goals: Vec<Goal>,
    /// Names that have other addresses for this run than the system says; several stand with commas between them.
    pub hosts: HashMap<String, String>,
    /// Classes of elements that whoever reads the plan leaves out where they cannot be run.
    pub left_out: Vec<String>,
    /// Columns that rows of result files have besides JMeter's.
    pub added: Added,
    /// The run's name, if each request says which sample of it it belongs to.
    pub mark: Option<String>,
}

/// A load for any plan: its groups share it by their own numbers of users.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Whether visitors come, or users stay.
    pub amount: Amount,
    /// How long.
    pub lasts: Duration,
    /// Over how long it grows from nothing, within that time.
    pub ramp: Duration,
    /// Visitors come independently of each other instead of at equal distances.
    pub is_random: bool,
}

/// How much load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// Visits that begin per second, whether or not earlier ones are over (open model).
    Rate(f64),
    /// Users at a time, who wait for answers (closed model).
    Users(u64),
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was measured.
    pub results: Results,
    /// The totals of the last summary line.
    pub tally: Tally,
    /// What went wrong outside of samples, such as a data file that cannot be read.
    pub faults: Vec<String>,
    /// Visits of the open model that came to their end.
    pub visits: u64,
}

/// How long what is under way at the end of a run may still take.
const DRAIN: Duration = Duration::from_secs(5);
/// How often a `+` line appears.
const INTERVAL: u64 = 30;

/// What of a run falls to this process when several share it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Membership {
    pub(crate) portion: Portion,
    /// Whether each process uses all rows of the data sets.
    pub(crate) copies_rows: bool,
}

/// Who hears of a run while it goes on.
pub(crate) enum Audience<'a> {
    /// A person: JMeter's lines, and what is shown while it runs.
    Person { say: &'a mut dyn FnMut(&str), live: Option<&'a mut Live> },
    /// Another process: the numbers themselves.
    Process(&'a mut dyn Observer),
}

/// Reports whether rows tell what samples consist of: by the property that JMeter has for it, and else for plans of JMeter.
fn tells_subs(file: &str, options: &Run) -> bool {
    match options.properties.get("jmeter.save.saveservice.subresults") {
        Some(word) => word.trim().eq_ignore_ascii_case("true"),
        None => !file.ends_with(".toml"),
    }
}

/// Returns what the users of a run share, and the scope that they start with.
pub(super) fn begin(model: &Model, options: &Run, member: &Membership) -> (Arc<World>, Scope) {
    let mut properties = options.properties.clone();
    properties
        .entry("tympan.plan".to_owned())
        .or_insert_with(|| model.file_name.clone().unwrap_or_else(|| model.name.clone()));
    let mut world = World::new(properties, options.seed, model.files.clone());
    world.portion = member.portion;
    let world = Arc::new(world);
    let mut first = Scope::new(Arc::clone(&world));
    for (name, value) in &model.variables {
        let name = name.draw(&mut first).trim().to_owned();
        let value = value.draw(&mut first).into_owned();
        first.set(&name, &value);
    }
    (world, first)
}

pub(super) fn run(
    model: &Arc<Model>,
    file: &str,
    options: &Run,
    member: &Membership,
    audience: Audience<'_>,
) -> Result<Outcome> {
    check_needs(model, file, options)?;
    let (world, mut first) = begin(model, options, member);
    let groups = prepare_all(model, file, options, &mut first)?;
    let turns = divide_rows(model, &groups, member.portion, &mut first);
    if !member.copies_rows {
        world.turns.set(turns).ok();
    }
    let outputs = outputs(model, options, &mut first);
    let taker = match &audience {
        Audience::Person { .. } => None,
        Audience::Process(process) => process.row_taker(),
    };
    let rows = match taker {
        Some(taker) => Some(Rows::hand_over(taker)?),
        None if outputs.is_empty() => None,
        None => Some(Rows::append(&outputs, options.added)?),
    };
    let shared = Arc::new(Shared {
        targets: Targets::toward(options.detour, &options.hosts).by_http2(options.is_http2),
        crowd: Arc::new(Crowd::default()),
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        visits: AtomicU64::new(0),
        tally: Mutex::default(),
        epoch: (Instant::now(), Scope::now_ms()),
        faults: Mutex::default(),
        tells_subs: tells_subs(file, options),
        marks: options.mark.as_deref().map(Marks::of),
    });
    shared.crowd.trace(options.trace);
    let mut director = Director {
        casting: Casting {
            model: Arc::clone(model),
            world: Arc::clone(&world),
            first: Arc::new(first),
            shared: Arc::clone(&shared),
        },
        seed: options.seed,
        offer: options.offer.as_ref(),
        workers: if options.workers == 0 { processors() } else { options.workers },
        sink: rows.as_ref().map(Rows::sink),
        number: 0,
        results: Results::new(SystemTime::now()),
    };
    let mut reporter = Reporter::new(&shared, audience, &options.goals);
    reporter.say("Creating summariser <summary>");
    reporter.say(&format!("Starting standalone test @ {}", moment()));
    for stage in [Stage::Setup, Stage::Main, Stage::Teardown] {
        if shared.crowd.is_stopping() {
            // What was set up is torn down although the test was stopped, if the plan says so.
            if stage != Stage::Teardown || !model.tears_down {
                continue;
            }
            shared.crowd.go_on();
        }
        let members: Vec<_> =
            groups.iter().filter(|prepared| prepared.group.stage == stage).collect();
        // A load for the whole plan is one load, also where groups would follow each other.
        let is_serial = model.is_serial && options.offer.is_none();
        let parts: Vec<&[&Prepared<'_>]> =
            if is_serial { members.chunks(1).collect() } else { vec![members.as_slice()] };
        for part in parts {
            // Groups that follow one which ended the test do not begin.
            if !part.is_empty() && !shared.crowd.is_stopping() {
                director.play(part, &mut reporter)?;
            }
        }
    }
    reporter.finish();
    let mut results = director.results;
    results.thin_traces(options.trace);
    drop(director.sink);
    if let Some(rows) = rows {
        rows.finish()?;
    }
    reporter.say(&format!("Tidying up ...    @ {}", moment()));
    reporter.say("... end of run");
    let tally = shared.tally.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
    let faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let visits = shared.visits.load(Ordering::Relaxed);
    Ok(Outcome { results, tally, faults, visits })
}

/// Refuses a kept copy whose secrets are not given.
fn check_needs(model: &Model, file: &str, options: &Run) -> Result<()> {
    let lacks: Vec<String> = model
        .needs
        .iter()
        .filter(|name| !options.properties.contains_key(*name))
        .map(|name| format!("-J{name}=..."))
        .collect();
    if lacks.is_empty() {
        return Ok(());
    }
    Err(Error::Input(format!(
        "`{file}` is a copy that was kept without its secrets; give them: {}",
        lacks.join(" ")
    )))
}

/// Returns the time of day as JMeter tells it.
pub(crate) fn moment() -> String {
    let now = jiff::Zoned::now();
    let ms = now.timestamp().as_millisecond();
    format!("{} ({ms})", now.strftime("%Y %b %-d %H:%M:%S %Z"))
}

fn outputs(model: &Model, options: &Run, scope: &mut Scope) -> Vec<PathBuf> {
    let mut outputs: Vec<PathBuf> = options.rows.iter().cloned().collect();
    if !options.without_listeners {
        for output in &model.outputs {
            let path = PathBuf::from(output.draw(scope).trim());
            if !outputs.contains(&path) {
                outputs.push(path);
            }
        }
    }
    outputs
}

/// Says whose turn it is to take a row of each data set: as often as visits begin that draw one.
fn divide_rows(
    model: &Model,
    groups: &[Prepared<'_>],
    portion: Portion,
    first: &mut Scope,
) -> HashMap<String, Turns> {
    let mut drawing: HashMap<String, Vec<&Prepared<'_>>> = HashMap::new();
    for prepared in groups {
        first.group = prepared.group.name.draw(first).into_owned().into();
        first.group_root = prepared.group.root;
        for data in model.shared_data_below(prepared.group.root) {
            let (_, cursor) = data.key(first);
            drawing.entry(cursor).or_default().push(prepared);
        }
    }
    first.group = "".into();
    let turns = |groups: &Vec<&Prepared<'_>>| {
        // Where some never end, users are all that can be counted.
        let is_counted = groups.iter().all(|it| it.loops.is_some() || it.arrivals.is_some());
        let visits: Vec<u64> = (0..portion.count)
            .map(|index| {
                let process = Portion { index, ..portion };
                groups.iter().map(|prepared| prepared.visits(process, is_counted)).sum()
            })
            .collect();
        Turns::of(&visits, portion)
    };
    drawing.iter().map(|(cursor, groups)| (cursor.clone(), turns(groups))).collect()
}

/// A group with its threads and loops.
struct Prepared<'a> {
    group: &'a Group,
    spans: Vec<Span>,
    loops: Option<u64>,
    arrivals: Option<Arrivals>,
}

impl Prepared<'_> {
    /// Returns how many visits fall to a process, or users unless visits are counted.
    fn visits(&self, process: Portion, is_counted: bool) -> u64 {
        if let Some(arrivals) = &self.arrivals {
            // Visitors go round as rows do, so all processes count the same.
            let schedule = Schedule::of(arrivals.process, &arrivals.stretches, 0);
            let count = schedule.rate() * schedule.lasts().as_secs_f64();
            return if is_counted { (count / process.count as f64).round() as u64 } else { 1 };
        }
        let users = process.of(self.spans.len() as u64);
        let loops = self.loops.filter(|_| is_counted).unwrap_or(1);
        users.saturating_mul(loops)
    }
}

fn prepare_all<'a>(
    model: &'a Model,
    file: &str,
    options: &Run,
    first: &mut Scope,
) -> Result<Vec<Prepared<'a>>> {
    let mut findings = Vec::new();
    let mut groups = Vec::new();
    for group in &model.groups {
        match prepare(group, first) {
            Ok(prepared) => groups.push(prepared),
            Err(message) => {
                let message = format!("thread group `{}`: {message}", group.name.source());
                findings.push(Finding {
                    file: file.to_owned(),
                    line: group.line,
                    column: 1,
                    message,
                });
            }
        }
    }
    if !findings.is_empty() {
        return Err(Error::Refused(findings));
    }
    if let Some(offer) = &options.offer {
        put_offer(offer, &mut groups);
    }
    Ok(groups)
}

fn prepare<'a>(group: &'a Group, scope: &mut Scope) -> Result<Prepared<'a>, String> {
    let spans = shape::spans(group, scope)?;
    if let Some(arrivals) = shape::arrivals(group, scope)? {
        return Ok(Prepared { group, spans, loops: None, arrivals: Some(arrivals) });
    }
    let text = group.loops.draw(scope).trim().to_owned();
    let loops = match text.parse::<i64>() {
        _ if group.is_endless => None,
        Ok(-1) => None,
        Ok(loops) => Some(u64::try_from(loops).unwrap_or(0)),
        Err(_) => {
            return Err(format!(
                "the number of loops is `{text}` by `{}`, which is no number",
                group.loops.source()
            ));
        }
    };
    Ok(Prepared { group, spans, loops, arrivals: None })
}

/// Replaces the load of the main groups.
fn put_offer(offer: &Offer, groups: &mut [Prepared<'_>]) {
    let weight = |prepared: &Prepared<'_>| match &prepared.arrivals {
        // Of visitors, the rate tells how much a group counts.
        Some(arrivals) => Schedule::of(arrivals.process, &arrivals.stretches, 0).rate(),
        None => prepared.spans.len() as f64,
    };
    let mut main: Vec<&mut Prepared<'_>> =
        groups.iter_mut().filter(|prepared| prepared.group.stage == Stage::Main).collect();
    let all: f64 = main.iter().map(|prepared| weight(prepared)).sum();
    let (mut seen, mut given) = (0.0, 0);
    for prepared in &mut main {
        let own = weight(prepared);
        seen += own;
        prepared.loops = None;
        let share = if all > 0.0 { own / all } else { 0.0 };
        match offer.amount {
            Amount::Rate(rate) => {
                prepared.spans.clear();
                prepared.arrivals = Some(arrivals_of(offer, rate * share));
            }
            Amount::Users(users) => {
                // What rounding takes from one group, the next one gets.
                let until = if all > 0.0 { (users as f64 * seen / all).round() as u64 } else { 0 };
                let count = until.saturating_sub(given);
                given = until;
                prepared.arrivals = None;
                prepared.spans = (0..count)
                    .map(|thread| {
                        let start = offer.ramp.mul_f64(thread as f64 / count as f64);
                        Span { start, lives: Some(offer.lasts.saturating_sub(start)) }
                    })
                    .collect();
            }
        }
    }
}

fn arrivals_of(offer: &Offer, rate: f64) -> Arrivals {
    let ramp = offer.ramp.min(offer.lasts);
    let mut stretches = Vec::new();
    if !ramp.is_zero() {
        stretches.push(Stretch { from: 0.0, to: rate, lasts: ramp });
    }
    stretches.push(Stretch::steady(rate, offer.lasts.saturating_sub(ramp)));
    let process = if offer.is_random { Process::Poisson } else { Process::Uniform };
    Arrivals { process, stretches, most: MOST_VISITORS }
}

/// Visitors at a time that an offer makes at most: beyond that, arrivals wait for one who is done.
const MOST_VISITORS: usize = 10_000;

/// Who plays: everything that a thread needs to begin.
#[derive(Clone)]
struct Casting {
    model: Arc<Model>,
    world: Arc<World>,
    first: Arc<Scope>,
    shared: Arc<Shared>,
}

impl Casting {
    /// Returns a thread of a group; `place` is the group's number and the thread's, both from 1.
    fn actor(&self, group: usize, squad: &Arc<Squad>, place: (usize, usize)) -> Actor {
        let mut scope = Scope::new(Arc::clone(&self.world));
        scope.copy_variables(&self.first);
        scope.thread = place.1;
        let name = match self.model.groups.get(group) {
            Some(group) => group.name.draw(&mut scope).into_owned(),
            None => String::new(),
        };
        scope.thread_name = format!("{name} {}-{}", place.0, place.1).into();
        scope.group = name.into();
        scope.group_root = self.model.groups.get(group).map_or(0, |group| group.root);
        Actor::new(Arc::clone(&self.model), Arc::clone(&self.shared), Arc::clone(squad), scope)
    }
}

struct Director<'a> {
    casting: Casting,
    seed: u64,
    offer: Option<&'a Offer>,
    workers: usize,
    sink: Option<RowSink>,
    /// Groups begun.
    number: usize,
    results: Results,
}

impl Director<'_> {
    fn play(&mut self, groups: &[&Prepared<'_>], reporter: &mut Reporter<'_>) -> Result<()> {
        let portion = self.casting.world.portion;
        // Counted anew in each group, so that a group's threads are divided as the rows that they use are.
        let threads: u64 = groups.iter().map(|it| portion.of(it.spans.len() as u64)).sum();
        let workers = self.workers.min(usize::try_from(threads).unwrap_or(usize::MAX));
        let mut crews: Vec<Crew> =
            (0..workers).map(|_| Crew { users: Vec::new(), arrivals: None }).collect();
        let (mut next, mut rate) = (0, 0.0);
        for prepared in groups {
            self.number += 1;
            let squad = Arc::new(self.squad(prepared));
            let group = self.place_of(prepared.group);
            for (thread, span) in prepared.spans.iter().enumerate() {
                if !portion.has(thread as u64) {
                    // Another process runs it, with the random numbers that it has here.
                    self.casting.world.pass_over();
                    continue;
                }
                let mut actor = self.casting.actor(group, &squad, (self.number, thread + 1));
                actor.lives = span.lives;
                if let Some(crew) = crews.get_mut(next % workers) {
                    crew.users.push((span.start, Box::new(actor) as Box<dyn User>));
                }
                next += 1;
            }
            if let Some(arrivals) = &prepared.arrivals {
                let seed = self.seed.wrapping_add(self.number as u64);
                let schedule = Schedule::of(arrivals.process, &arrivals.stretches, seed);
                rate += schedule.rate();
                self.hire(&mut crews, (&schedule, arrivals.most), (group, &squad));
            }
        }
        // With others, who has nothing to do begins and ends with them.
        if crews.is_empty() && portion.count == 1 {
            return Ok(());
        }
        let is_main = groups.iter().any(|prepared| prepared.group.stage == Stage::Main);
        let load = Load {
            crews,
            // Visits that have begun may end: only a target that does not keep pace has some left then.
            stop_after: self.offer.filter(|_| is_main).map(|offer| offer.lasts + DRAIN),
            drain: DRAIN,
            crowd: Arc::clone(&self.casting.shared.crowd),
            rows: self.sink.clone(),
        };
        let mut part = run_load(load, reporter)?;
        part.generator.offered = (rate > 0.0).then_some(rate);
        self.results.append(part);
        Ok(())
    }

    fn squad(&self, prepared: &Prepared<'_>) -> Squad {
        Squad {
            active: AtomicU64::new(0),
            size: self.casting.world.portion.of(prepared.spans.len() as u64),
            on_error: prepared.group.on_error,
            is_same_user: prepared.group.is_same_user,
            loops: prepared.loops,
            root: prepared.group.root,
            first: prepared.arrivals.is_some().then(|| Arc::clone(&self.casting.first)),
        }
    }

    fn place_of(&self, group: &Group) -> usize {
        let groups = &self.casting.model.groups;
        groups.iter().position(|known| std::ptr::eq(known, group)).unwrap_or(0)
    }

    /// Adds crews that receive the visitors of a group, one per worker.
    fn hire(
        &self,
        crews: &mut Vec<Crew>,
        (schedule, most): (&Schedule, usize),
        (group, squad): (usize, &Arc<Squad>),
    ) {
        let hired = Arc::new(AtomicUsize::new(0));
        let portion = self.casting.world.portion;
        let most = usize::try_from(portion.of(most as u64).max(1)).unwrap_or(most);
        let shares = usize::try_from(portion.count).unwrap_or(1).saturating_mul(self.workers);
        for worker in 0..self.workers {
            let casting = self.casting.clone();
            let (squad, hired, number) = (Arc::clone(squad), Arc::clone(&hired), self.number);
            let hire = move || {
                let thread = hired.fetch_add(1, Ordering::Relaxed);
                if thread >= most {
                    return None;
                }
                let thread = usize::try_from(portion.place(thread as u64)).unwrap_or(thread) + 1;
                let actor = casting.actor(group, &squad, (number, thread));
                Some(Box::new(actor) as Box<dyn User>)
            };
            let share = usize::try_from(portion.place(worker as u64)).unwrap_or(worker);
            let arrivals = Some((schedule.share(share, shares), Box::new(hire) as _));
            crews.push(Crew { users: Vec::new(), arrivals });
        }
    }
}

/// Tells how a run goes on.
struct Reporter<'a> {
    shared: Arc<Shared>,
    audience: Audience<'a>,
    goals: Vec<Goal>,
    teller: Teller,
}

impl<'a> Reporter<'a> {
    fn new(shared: &Arc<Shared>, audience: Audience<'a>, goals: &[Goal]) -> Self {
        Self {
            shared: Arc::clone(shared),
            audience,
            goals: goals.to_vec(),
            teller: Teller::default(),
        }
    }

    fn say(&mut self, line: &str) {
        if let Audience::Person { say, live } = &mut self.audience {
            if let Some(live) = live {
                live.clear();
            }
            say(line);
        }
    }

    fn tell(&mut self, is_end: bool) {
        let threads = self.shared.threads();
        let delta = {
            let mut tally = self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut tally.0)
        };
        match &mut self.audience {
            Audience::Process(process) => process.tally(&delta, threads),
            Audience::Person { say, live } => {
                self.teller.add(&delta);
                self.teller.tell(is_end, threads, &mut |line| {
                    if let Some(live) = live {
                        live.clear();
                    }
                    say(line);
                });
            }
        }
    }

    fn finish(&mut self) {
        self.tell(true);
    }
}

impl Observer for Reporter<'_> {
    fn second(&mut self) {
        self.tell(false);
        match &mut self.audience {
            Audience::Process(process) => process.second(),
            Audience::Person { live, .. } => {
                if let Some(live) = live {
                    live.second();
                }
            }
        }
    }

    fn begin(&mut self) -> Result<Option<Instant>> {
        match &mut self.audience {
            Audience::Person { .. } => Ok(None),
            Audience::Process(process) => process.begin(),
        }
    }

    fn interval(&mut self, interval: &Interval) {
        match &mut self.audience {
            Audience::Process(process) => process.interval(interval),
            Audience::Person { live, .. } => {
                if let Some(live) = live {
                    live.interval(interval);
                }
            }
        }
    }

    fn end(&mut self, results: &Results, is_stopping: bool) {
        match &mut self.audience {
            Audience::Process(process) => process.end(results, is_stopping),
            Audience::Person { live, .. } => {
                if let Some(live) = live {
                    live.end(results, is_stopping);
                }
            }
        }
    }

    fn breach(&self, results: &Results) -> Option<String> {
        goal::breach(&self.goals, results)
    }

    fn wants_stop(&self) -> bool {
        match &self.audience {
            Audience::Person { .. } => false,
            Audience::Process(process) => process.wants_stop(),
        }
    }
}

/// Says the summariser's lines when it is time.
#[derive(Debug)]
pub(crate) struct Teller {
    delta: Tally,
    total: Tally,
    last: u64,
    has_told: bool,
}

impl Default for Teller {
    fn default() -> Self {
        let last = Scope::now_ms() / 1000 / INTERVAL;
        Self { delta: Tally::default(), total: Tally::default(), last, has_told: false }
    }
}

impl Teller {
    /// Adds samples that no line has told of.
    pub(crate) fn add(&mut self, delta: &Tally) {
        self.delta.merge(delta);
        self.total.merge(delta);
    }

    /// Says the lines that are due: at the end, and every half minute.
    pub(crate) fn tell(&mut self, is_end: bool, threads: Threads, say: &mut dyn FnMut(&str)) {
        let now = Scope::now_ms() / 1000 / INTERVAL;
        if !is_end && now <= self.last {
            return;
        }
        self.last = now;
        let delta = std::mem::take(&mut self.delta);
        if delta.count > 0 && (!is_end || self.has_told) {
            say(&line("summary", '+', &delta, delta.span_ms(), Some(threads)));
        }
        if is_end || (delta.count > 0 && self.has_told) {
            say(&line("summary", '=', &self.total, self.total.span_ms(), None));
        }
        self.has_told |= delta.count > 0;
    }

    /// Returns the totals.
    pub(crate) fn total(&self) -> &Tally {
        &self.total
    }
}
