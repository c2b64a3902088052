//! A plan as it is run: groups, and a tree of controllers and samplers with everything that is in their scope.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::data::{DataSet, Share};
use super::extract::Extractor;
use super::files::Files;
use super::http::HttpSpec;
use super::judge::Judge;
use super::pace::Pacer;
use super::script::Script;
use super::template::Template;
use crate::load::{Process, Stretch};

/// A node's place in [`Model::nodes`].
pub(super) type NodeId = usize;

/// A whole plan.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) name: String,
    /// The name of the file of a plan of JMeter, which JMeter calls the plan's name.
    pub(super) file_name: Option<String>,
    pub(super) nodes: Vec<Node>,
    pub(super) groups: Vec<Group>,
    /// Names and values, drawn once at the start, in order.
    pub(super) variables: Vec<(Template, Template)>,
    /// One group after the other.
    pub(super) is_serial: bool,
    /// Tear-down groups run although the test was stopped.
    pub(super) tears_down: bool,
    /// Result files that listeners ask for.
    pub(super) outputs: Vec<Template>,
    pub(super) data: Vec<DataSet>,
    pub(super) counters: Vec<Counter>,
    pub(super) randoms: Vec<RandomVariable>,
    pub(super) parameters: Vec<Parameters>,
    pub(super) cookies: Vec<CookieManager>,
    pub(super) caches: Vec<CacheManager>,
    /// Names with the addresses that they have, comma-separated, per manager.
    pub(super) hosts: Vec<Vec<(Template, Template)>>,
    /// Shared counts of throughput controllers and timers.
    pub(super) meters: Vec<Meter>,
    pub(super) files: Files,
    /// Scripts that run before a sample look at the one before it.
    pub(super) keeps_previous: bool,
    /// Something in the plan refers to the passes of controllers (`__jm__NAME__idx`).
    pub(super) has_loop_indexes: bool,
    /// Properties that stand in the place of secrets: without them the plan does not run.
    pub(super) needs: BTreeSet<String>,
    /// Names of the files that the plan was put together from.
    pub(super) included: Vec<Template>,
}

impl Model {
    /// Returns the data sets whose rows are drawn below a node and shared by several threads.
    pub(super) fn shared_data_below(&self, node: NodeId) -> Vec<&DataSet> {
        let mut open = vec![node];
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        while let Some(node) = open.pop() {
            let Some(entry) = self.nodes.get(node).filter(|_| seen.insert(node)) else { continue };
            for event in &entry.events {
                let Event::Data(place) = event else { continue };
                found.extend(self.data.get(*place).filter(|data| data.share != Share::Thread));
            }
            open.extend(&entry.children);
        }
        found
    }

    /// Forgets what earlier runs drew and counted.
    pub(super) fn rewind(&self) {
        self.data.iter().for_each(DataSet::rewind);
        for counter in &self.counters {
            *counter.shared.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        for meter in &self.meters {
            meter.count.store(0, Ordering::Relaxed);
            meter.executed.store(0, Ordering::Relaxed);
            meter.last.lock().unwrap_or_else(PoisonError::into_inner).clear();
            meter.pacers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Returns the names of the files that are read when the plan is compiled and while it runs.
    pub(super) fn file_names(&self) -> Vec<&Template> {
        let mut names: Vec<&Template> =
            self.included.iter().chain(self.data.iter().map(|data| &data.file)).collect();
        for node in &self.nodes {
            let Kind::Sampler(sampler) = &node.kind else { continue };
            let Action::Http(spec) = &sampler.action else { continue };
            names.extend(spec.files.iter().map(|file| &file.path));
        }
        names
    }
}

/// When a group runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Setup,
    Main,
    Teardown,
}

/// What follows a failed sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnError {
    Continue,
    NextLoop,
    StopThread,
    StopTest,
}

/// Threads that do the same.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) stage: Stage,
    pub(super) name: Template,
    pub(super) shape: Shape,
    pub(super) loops: Template,
    pub(super) is_endless: bool,
    pub(super) on_error: OnError,
    pub(super) is_same_user: bool,
    pub(super) root: NodeId,
    pub(super) line: u32,
}

/// When the threads of a group start and end.
#[derive(Debug)]
pub(super) enum Shape {
    /// Evenly over a ramp.
    Ramp { threads: Template, ramp: Template, delay: Template, duration: Option<Template> },
    /// Per row: threads, initial delay, ramp, hold, shutdown, in seconds.
    Rows(Vec<[Template; 5]>),
    /// Steps: first delay, first burst, threads, how many per step, every, ramp, hold, stop how many, every.
    Steps(Box<[Template; 9]>),
    /// Target, ramp, steps, hold; in minutes if so.
    Concurrency {
        target: Template,
        ramp: Template,
        steps: Template,
        hold: Template,
        in_minutes: bool,
    },
    /// Known when the plan is read.
    Spans(Vec<super::shape::Span>),
    /// Visitors who come whether or not earlier ones have been answered.
    Arrivals(Arrivals),
    /// The same at a rate that is known when the plan starts: rows of start, end and time.
    Paced { rows: Vec<[Template; 3]>, in_minutes: bool, most: Template },
    /// The same, growing to a target: target, ramp, steps, hold.
    Grown { values: Box<[Template; 4]>, in_minutes: bool, most: Template },
}

/// Visitors of the open model.
#[derive(Debug, Clone)]
pub(super) struct Arrivals {
    pub(super) process: Process,
    pub(super) stretches: Vec<Stretch>,
    /// Most visitors at a time.
    pub(super) most: usize,
}

/// A controller or a sampler.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) name: Template,
    pub(super) children: Vec<NodeId>,
    pub(super) events: Vec<Event>,
}

/// What happens when an iteration of a controller begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Data(usize),
    Count(usize),
    Random(usize),
    Parameters(usize),
}

#[derive(Debug)]
pub(super) enum Kind {
    Simple,
    Loop {
        count: Template,
        only_once: bool,
    },
    Once,
    If {
        condition: Template,
        is_script: bool,
        every: bool,
    },
    While(Template),
    ForEach {
        input: Template,
        output: Template,
        from: Template,
        to: Template,
        separator: bool,
    },
    Transaction {
        is_parent: bool,
        with_timers: bool,
        /// What is in its scope, if it stands for its samples.
        judges: Vec<Judge>,
    },
    Throughput {
        is_percent: bool,
        value: Template,
        per_user: bool,
        meter: usize,
    },
    RandomOrder,
    Interleave(Interleave),
    Switch(Template),
    Runtime(Template),
    /// One child per iteration of the plan: over all users in exactly this order, again and again.
    Mix {
        order: Vec<usize>,
        meter: usize,
    },
    Sampler(Box<Sampler>),
}

/// How a controller chooses one child for each of its iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Interleave {
    /// At random instead of in turn.
    pub(super) is_random: bool,
    /// A child that is a controller runs as a whole; else each of its samplers is an iteration.
    pub(super) by_controller: bool,
    /// Threads begin at different children, each at that of its number.
    pub(super) across_threads: bool,
}

#[derive(Debug)]
pub(super) struct Sampler {
    pub(super) action: Action,
    pub(super) timers: Vec<Timer>,
    /// User parameters that change per sample.
    pub(super) before: Vec<usize>,
    /// Scripts that run before the sample.
    pub(super) scripts: Vec<Arc<Script>>,
    pub(super) after: Vec<After>,
    pub(super) judges: Vec<Judge>,
    /// Scripts that are told of the sample when it has been judged.
    pub(super) listeners: Vec<Arc<Script>>,
}

impl Sampler {
    /// Returns a sampler that nothing stands beside.
    pub(super) fn of(action: Action) -> Self {
        Self {
            action,
            timers: Vec::new(),
            before: Vec::new(),
            scripts: Vec::new(),
            after: Vec::new(),
            judges: Vec::new(),
            listeners: Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(super) enum Action {
    Http(Box<HttpSpec>),
    /// Pause, or an end.
    Flow(Flow),
    /// A sample without a request, which shows variables.
    Debug,
    /// JMeter's own Java sample: sleeps and says what its arguments say.
    Java(Box<JavaTest>),
    /// A script that is a sample itself.
    Script(Arc<Script>),
}

#[derive(Debug, Default)]
pub(super) struct JavaTest {
    pub(super) sleep: Template,
    pub(super) mask: Template,
    pub(super) label: Template,
    pub(super) code: Template,
    pub(super) message: Template,
    pub(super) status: Template,
    pub(super) result: Template,
}

#[derive(Debug)]
pub(super) enum Flow {
    Pause(Template),
    StopThread,
    StopTest,
    NextLoop,
    /// Gives up the pass of the innermost loop.
    NextPass,
    /// Leaves the innermost loop.
    BreakLoop,
    /// Does nothing itself; its timers do.
    Nothing,
    /// Enters the critical section of this name.
    Enter(Template),
    /// Leaves the innermost critical section.
    Leave,
}

#[derive(Debug)]
pub(super) enum After {
    Extract(Box<Extractor>),
    Script(Arc<Script>),
    OnError(OnError),
}

#[derive(Debug)]
pub(super) enum Timer {
    Constant(Template),
    Uniform {
        delay: Template,
        range: Template,
    },
    Gaussian {
        delay: Template,
        range: Template,
    },
    Poisson {
        delay: Template,
        range: Template,
    },
    Throughput {
        per_minute: Template,
        mode: Pace,
        meter: usize,
    },
    Synchronize {
        size: Template,
        /// Milliseconds after which those who wait go on without the others; none for 0.
        timeout: Template,
        meter: usize,
    },
    /// A script says how many milliseconds.
    Script(Arc<Script>),
    /// Samples of the group's threads begin at random moments, exactly so many of them in each duration.
    Precise {
        values: Box<Precise>,
        meter: usize,
    },
    /// Samples of all threads begin at a rate that follows rows of start, end and seconds.
    Shaped {
        rows: Vec<[Template; 3]>,
        meter: usize,
    },
}

/// What a precise throughput timer says.
#[derive(Debug)]
pub(super) struct Precise {
    pub(super) throughput: Template,
    /// Seconds that the throughput counts for.
    pub(super) period: Template,
    /// Seconds in which the number is exact.
    pub(super) duration: Template,
    /// Samples that begin together.
    pub(super) batch: Template,
    /// Milliseconds between them.
    pub(super) batch_delay: Template,
}

/// Whose samples a constant throughput timer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    ThisThread,
    /// Divided by the threads that run.
    AllThreads,
    /// Divided by those of the group.
    GroupThreads,
    /// All threads take turns.
    Shared,
    /// The threads of each group take turns.
    SharedByGroup,
}

/// What several threads share.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub(super) count: AtomicI64,
    pub(super) executed: AtomicI64,
    /// When the last sample was due, per group that has turns of its own.
    pub(super) last: Mutex<HashMap<NodeId, Instant>>,
    /// Moments of timers, per group that has its own.
    pub(super) pacers: Mutex<HashMap<NodeId, Pacer>>,
}

#[derive(Debug)]
pub(super) struct Counter {
    pub(super) start: Template,
    pub(super) step: Template,
    pub(super) end: Template,
    pub(super) name: Template,
    pub(super) format: Template,
    pub(super) per_user: bool,
    pub(super) resets: bool,
    pub(super) shared: Mutex<Option<i64>>,
}

#[derive(Debug)]
pub(super) struct RandomVariable {
    pub(super) name: Template,
    pub(super) low: Template,
    pub(super) high: Template,
    pub(super) format: Template,
}

#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) names: Vec<Template>,
    /// Per user, the values of all names.
    pub(super) users: Vec<Vec<Template>>,
    pub(super) per_iteration: bool,
}

#[derive(Debug)]
pub(super) struct CookieManager {
    /// Name, value, domain, path, secure.
    pub(super) cookies: Vec<([Template; 4], bool)>,
    /// Takes no cookies and sends none.
    pub(super) ignores: bool,
    pub(super) clears: bool,
    pub(super) by_group: bool,
}

#[derive(Debug)]
pub(super) struct CacheManager {
    pub(super) clears: bool,
    pub(super) uses_expires: bool,
}
