//! Runs a plan: set-up groups, main groups, tear-down groups, and JMeter's lines meanwhile.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::actor::{Actor, Squad, Stage as Shared};
use super::model::{Group, Model, Stage};
use super::scope::{Scope, World};
use super::shape::{self, Span};
use crate::load::{Crew, Crowd, Load, Observer, Rows, User, processors, run as run_load};
use crate::net::Targets;
use crate::record::summariser::{Tally, line};
use crate::record::{Results, RowSink};
use crate::{Error, Finding, Result};

/// How to run a plan.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// `-J`: properties.
    pub properties: HashMap<String, String>,
    /// `-l`: the result file.
    pub rows: Option<PathBuf>,
    /// Threads that send; 0 for one per processor.
    pub workers: usize,
    /// What random numbers derive from.
    pub seed: u64,
    /// Leaves out the result files that listeners of the plan name.
    pub without_listeners: bool,
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
}

/// How often a `+` line appears.
const INTERVAL: u64 = 30;

pub(super) fn run(
    model: &Arc<Model>,
    file: &str,
    options: &Run,
    say: &mut dyn FnMut(&str),
) -> Result<Outcome> {
    let mut properties = options.properties.clone();
    properties.entry("tympan.plan".to_owned()).or_insert_with(|| model.name.clone());
    let world = Arc::new(World::new(properties, options.seed, model.folder.clone()));
    let mut first = Scope::new(Arc::clone(&world));
    for (name, value) in &model.variables {
        let name = name.draw(&mut first).trim().to_owned();
        let value = value.draw(&mut first).into_owned();
        first.set(&name, &value);
    }
    let mut findings = Vec::new();
    let mut groups = Vec::new();
    for group in &model.groups {
        match prepare(group, &mut first) {
            Ok((spans, loops)) => groups.push((group, spans, loops)),
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
    let outputs = outputs(model, options, &mut first);
    let rows = if outputs.is_empty() { None } else { Some(Rows::append(&outputs)?) };
    let shared = Arc::new(Shared {
        targets: Targets::default(),
        crowd: Arc::new(Crowd::default()),
        begun: AtomicU64::new(0),
        ended: AtomicU64::new(0),
        tally: Mutex::default(),
        faults: Mutex::default(),
    });
    let mut director = Director {
        model,
        world: &world,
        first: &first,
        shared: &shared,
        workers: if options.workers == 0 { processors() } else { options.workers },
        sink: rows.as_ref().map(Rows::sink),
        number: 0,
        results: Results::new(SystemTime::now()),
    };
    say("Creating summariser <summary>");
    say(&format!("Starting standalone test @ {}", moment()));
    let mut reporter = Reporter::new(&shared, say);
    for stage in [Stage::Setup, Stage::Main, Stage::Teardown] {
        if shared.crowd.is_stopping() {
            // What was set up is torn down although the test was stopped, if the plan says so.
            if stage != Stage::Teardown || !model.tears_down {
                continue;
            }
            shared.crowd.go_on();
        }
        let members: Vec<_> = groups.iter().filter(|(group, ..)| group.stage == stage).collect();
        let parts: Vec<&[&Prepared<'_>]> =
            if model.is_serial { members.chunks(1).collect() } else { vec![members.as_slice()] };
        for part in parts {
            if !part.is_empty() {
                director.play(part, &mut reporter)?;
            }
        }
    }
    reporter.finish();
    let results = director.results;
    drop(director.sink);
    if let Some(rows) = rows {
        rows.finish()?;
    }
    say(&format!("Tidying up ...    @ {}", moment()));
    say("... end of run");
    let tally = shared.tally.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
    let faults = shared.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(Outcome { results, tally, faults })
}

fn moment() -> String {
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

fn prepare(group: &Group, scope: &mut Scope) -> Result<(Vec<Span>, Option<u64>), String> {
    let spans = shape::spans(group, scope)?;
    if group.is_endless {
        return Ok((spans, None));
    }
    let text = group.loops.draw(scope).trim().to_owned();
    match text.parse::<i64>() {
        Ok(-1) => Ok((spans, None)),
        Ok(loops) => Ok((spans, Some(u64::try_from(loops).unwrap_or(0)))),
        Err(_) => Err(format!(
            "the number of loops is `{text}` by `{}`, which is no number",
            group.loops.source()
        )),
    }
}

/// A group with its threads and loops.
type Prepared<'a> = (&'a Group, Vec<Span>, Option<u64>);

struct Director<'a> {
    model: &'a Arc<Model>,
    world: &'a Arc<World>,
    first: &'a Scope,
    shared: &'a Arc<Shared>,
    workers: usize,
    sink: Option<RowSink>,
    /// Groups begun.
    number: usize,
    results: Results,
}

impl Director<'_> {
    fn play(&mut self, groups: &[&Prepared<'_>], reporter: &mut Reporter<'_>) -> Result<()> {
        let threads: usize = groups.iter().map(|(_, spans, _)| spans.len()).sum();
        let workers = self.workers.min(threads).max(1);
        let mut crews: Vec<Crew> =
            (0..workers).map(|_| Crew { users: Vec::new(), arrivals: None }).collect();
        let mut next = 0;
        for (group, spans, loops) in groups {
            self.number += 1;
            let squad = Arc::new(Squad {
                active: AtomicU64::new(0),
                size: spans.len() as u64,
                on_error: group.on_error,
                is_same_user: group.is_same_user,
                loops: *loops,
                root: group.root,
            });
            for (thread, span) in spans.iter().enumerate() {
                let actor = self.actor(group, &squad, thread, *span);
                if let Some(crew) = crews.get_mut(next % workers) {
                    crew.users.push((span.start, Box::new(actor) as Box<dyn User>));
                }
                next += 1;
            }
        }
        let load = Load {
            crews,
            stop_after: None,
            drain: Duration::from_secs(5),
            crowd: Arc::clone(&self.shared.crowd),
            rows: self.sink.clone(),
        };
        let part = run_load(load, reporter)?;
        self.results.append(part);
        Ok(())
    }

    fn actor(&self, group: &Group, squad: &Arc<Squad>, thread: usize, span: Span) -> Actor {
        let mut scope = Scope::new(Arc::clone(self.world));
        scope.copy_variables(self.first);
        scope.thread = thread + 1;
        let name = group.name.draw(&mut scope).into_owned();
        scope.thread_name = format!("{name} {}-{}", self.number, thread + 1).into();
        scope.group = name.into();
        let mut actor =
            Actor::new(Arc::clone(self.model), Arc::clone(self.shared), Arc::clone(squad), scope);
        actor.lives = span.lives;
        actor
    }
}

/// Prints the summariser's lines.
struct Reporter<'a> {
    shared: &'a Arc<Shared>,
    say: &'a mut dyn FnMut(&str),
    last: u64,
    has_told: bool,
}

impl<'a> Reporter<'a> {
    fn new(shared: &'a Arc<Shared>, say: &'a mut dyn FnMut(&str)) -> Self {
        Self { shared, say, last: Scope::now_ms() / 1000 / INTERVAL, has_told: false }
    }

    fn tell(&mut self, is_end: bool) {
        let (delta, total) = {
            let mut tally = self.shared.tally.lock().unwrap_or_else(PoisonError::into_inner);
            (std::mem::take(&mut tally.0), tally.1.clone())
        };
        let threads = self.shared.threads();
        if delta.count > 0 && (!is_end || self.has_told) {
            (self.say)(&line("summary", '+', &delta, delta.span_ms(), Some(threads)));
        }
        if is_end || (delta.count > 0 && self.has_told) {
            (self.say)(&line("summary", '=', &total, total.span_ms(), None));
        }
        self.has_told |= delta.count > 0;
    }

    fn finish(&mut self) {
        self.tell(true);
    }
}

impl Observer for Reporter<'_> {
    fn second(&mut self) {
        let now = Scope::now_ms() / 1000 / INTERVAL;
        if now > self.last {
            self.last = now;
            self.tell(false);
        }
    }
}
