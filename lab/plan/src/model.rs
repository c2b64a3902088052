//! The executable model of a plan: groups, and a tree of controllers and samplers with everything in their scope.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::assertion::SampleAssertion;
use super::data_set::{DataSet, RowSharing};
use super::extractor::ResponseExtractor;
use super::http_spec::HttpSamplerSpec;
use super::pacer::SamplePacer;
use super::plan_file::PlanFiles;
use super::plan_node_id::PlanNodeId;
use super::script::PlanScript;
use super::template::TextTemplate;
use super::variable_scope::{RunContext, VariableScope};
use crate::arrival_schedule::{ArrivalProcess, RateInterval};
use crate::load_portion::LoadPortion;

/// A whole plan.
#[derive(Debug, Default)]
pub struct PlanModel {
    pub(super) name: String,
    /// The file name of a JMeter plan, which JMeter calls the plan's name.
    pub(super) file_name: Option<String>,
    /// Controllers and samplers; a [`PlanNodeId`] is an index in this list.
    pub nodes: Vec<PlanNode>,
    /// The thread groups, in the order of the plan.
    pub groups: Vec<ThreadGroup>,
    /// Names and values, evaluated once at the start, in order.
    pub(super) variables: Vec<(TextTemplate, TextTemplate)>,
    /// True if groups run one after the other.
    pub is_serial: bool,
    /// True if tear-down groups run even if the test was stopped.
    pub runs_teardown_on_stop: bool,
    /// Result files that listeners specify.
    pub result_files: Vec<TextTemplate>,
    /// Data sets, by the index in [`IterationEvent::DataSet`].
    pub data_sets: Vec<DataSet>,
    /// Counters, by the index in [`IterationEvent::Counter`].
    pub counters: Vec<PlanCounter>,
    /// Random variables, by the index in [`IterationEvent::RandomVariable`].
    pub random_variables: Vec<RandomVariable>,
    /// User parameters, by the index in [`IterationEvent::UserParameters`].
    pub user_parameters: Vec<UserParameters>,
    /// Cookie managers, by the index that a sampler names.
    pub cookie_managers: Vec<CookieManager>,
    /// Cache managers, by the index that a sampler names.
    pub cache_managers: Vec<CacheManager>,
    /// Per manager, host names with their comma-separated addresses.
    pub host_addresses: Vec<Vec<(TextTemplate, TextTemplate)>>,
    /// The shared states of throughput controllers, scenario mixes and timers, by the index that each of them has.
    pub meters: Vec<SharedTimerState>,
    pub(super) files: PlanFiles,
    /// True if scripts that run before a sample access the previous one.
    pub retains_previous_sample: bool,
    /// True if the plan refers to the pass counts of controllers (`__jm__NAME__idx`).
    pub has_loop_indexes: bool,
    /// Properties that replace secrets: the plan does not run without them.
    pub required_properties: BTreeSet<String>,
    /// Names of the files that the plan includes.
    pub(super) included_files: Vec<TextTemplate>,
}

impl PlanModel {
    /// Returns the state that the users of a run share, and their initial scope.
    pub fn begin_run(
        &self,
        properties: &HashMap<String, String>,
        seed: u64,
        portion: LoadPortion,
    ) -> (Arc<RunContext>, VariableScope) {
        let mut properties = properties.clone();
        properties
            .entry("tympan.plan".to_owned())
            .or_insert_with(|| self.file_name.clone().unwrap_or_else(|| self.name.clone()));
        let mut world = RunContext::new(properties, seed, self.files.clone());
        world.portion = portion;
        let world = Arc::new(world);
        let mut first = VariableScope::new(Arc::clone(&world));
        for (name, value) in &self.variables {
            let name = name.evaluate(&mut first).trim().to_owned();
            let value = value.evaluate(&mut first).into_owned();
            first.set_variable(&name, &value);
        }
        (world, first)
    }

    /// Returns the data sets below a node whose rows are shared by several threads.
    pub fn shared_data_below(&self, node: PlanNodeId) -> Vec<&DataSet> {
        let mut open = vec![node];
        let mut visited_nodes = HashSet::new();
        let mut data_sets = Vec::new();
        while let Some(node) = open.pop() {
            let Some(entry) = self.nodes.get(node).filter(|_| visited_nodes.insert(node)) else {
                continue;
            };
            for event in &entry.events {
                let IterationEvent::DataSet(index) = event else { continue };
                data_sets.extend(
                    self.data_sets.get(*index).filter(|data| data.sharing != RowSharing::Thread),
                );
            }
            open.extend(&entry.children);
        }
        data_sets
    }

    /// Discards the state of earlier runs.
    pub(super) fn rewind(&self) {
        self.data_sets.iter().for_each(DataSet::rewind);
        for counter in &self.counters {
            *counter.shared_value.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        for meter in &self.meters {
            meter.count.store(0, Ordering::Relaxed);
            meter.executed.store(0, Ordering::Relaxed);
            meter.last_due.lock().unwrap_or_else(PoisonError::into_inner).clear();
            meter.pacers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Returns the names of the files that are read when the plan is compiled and while it runs.
    pub(super) fn file_names(&self) -> Vec<&TextTemplate> {
        let mut names: Vec<&TextTemplate> = self
            .included_files
            .iter()
            .chain(self.data_sets.iter().map(|data| &data.file_name))
            .collect();
        for node in &self.nodes {
            let PlanNodeKind::Sampler(sampler) = &node.kind else { continue };
            let SamplerAction::Http(spec) = &sampler.action else { continue };
            names.extend(spec.file_uploads.iter().map(|file| &file.path));
        }
        names
    }
}

/// The stage in which a group runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadGroupStage {
    /// Before the main groups.
    Setup,
    /// The test itself.
    Main,
    /// After the main groups.
    Teardown,
}

/// The action after a failed sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleErrorAction {
    /// The thread continues.
    Continue,
    /// The thread begins its next iteration.
    NextLoop,
    /// The thread ends.
    StopThread,
    /// All threads end.
    StopTest,
}

/// A group of threads with the same behavior.
#[derive(Debug)]
pub struct ThreadGroup {
    /// The stage in which the group runs.
    pub stage: ThreadGroupStage,
    /// The group's name.
    pub name: TextTemplate,
    pub(super) load_shape: LoadShape,
    /// Number of iterations of each thread.
    pub loops: TextTemplate,
    /// True if threads iterate until their lifetime or the run ends.
    pub is_endless: bool,
    /// The action after a failed sample.
    pub on_error: SampleErrorAction,
    /// True if a thread stays the same visitor in all iterations: it keeps cookies, cache and connections.
    pub is_same_user: bool,
    /// The node whose children the threads run.
    pub root: PlanNodeId,
    /// The line of the group in the plan's file.
    pub line: u32,
}

/// One thread's start and lifetime, relative to the start of its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadLifetime {
    /// The time at which the thread starts.
    pub start: Duration,
    /// The time after which it begins no further sample; `None` if there is no limit.
    pub lifetime: Option<Duration>,
}

/// The start and end times of a group's threads.
#[derive(Debug)]
pub(super) enum LoadShape {
    /// Evenly over a ramp.
    Ramp {
        threads: TextTemplate,
        ramp: TextTemplate,
        delay: TextTemplate,
        duration: Option<TextTemplate>,
    },
    /// Per row: threads, initial delay, ramp, hold, shutdown, in seconds.
    ThreadRows(Vec<[TextTemplate; 5]>),
    /// Steps: first delay, first burst, threads, threads per step, step interval, ramp, hold, threads stopped per step,
    /// stop interval.
    ThreadSteps(Box<[TextTemplate; 9]>),
    /// Target, ramp, steps, hold; in minutes if the flag is set.
    Concurrency {
        target: TextTemplate,
        ramp: TextTemplate,
        steps: TextTemplate,
        hold: TextTemplate,
        in_minutes: bool,
    },
    /// Known when the plan is read.
    Lifetimes(Vec<ThreadLifetime>),
    /// Visitors that arrive whether or not earlier ones have received responses.
    Arrivals(OpenModelArrivals),
    /// The same at a rate that is known when the plan starts: rows of start, end and time.
    ArrivalRates { rows: Vec<[TextTemplate; 3]>, in_minutes: bool, max_visitors: TextTemplate },
    /// The same, increasing to a target: target, ramp, steps, hold.
    ArrivalRamp { settings: Box<[TextTemplate; 4]>, in_minutes: bool, max_visitors: TextTemplate },
}

/// Visitors of the open model.
#[derive(Debug, Clone)]
pub struct OpenModelArrivals {
    /// The distribution of arrivals.
    pub process: ArrivalProcess,
    /// The rate over time.
    pub rate_intervals: Vec<RateInterval>,
    /// Maximum number of concurrent visitors.
    pub max_visitors: usize,
}

/// A controller or a sampler.
#[derive(Debug)]
pub struct PlanNode {
    /// What the node is.
    pub kind: PlanNodeKind,
    /// The name, which is the label of samples and transactions.
    pub name: TextTemplate,
    /// The nodes below it, in order.
    pub children: Vec<PlanNodeId>,
    /// Events at the start of each iteration of the controller.
    pub events: Vec<IterationEvent>,
}

/// An event at the start of a controller's iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IterationEvent {
    /// Takes the next row of a data set.
    DataSet(usize),
    /// Takes the next value of a counter.
    Counter(usize),
    /// Takes the next value of a random variable.
    RandomVariable(usize),
    /// Sets the parameters of the user.
    UserParameters(usize),
}

/// A controller with its settings, or a sampler.
#[derive(Debug)]
pub enum PlanNodeKind {
    /// Runs its children once per iteration.
    Simple,
    /// Repeats its children.
    Loop {
        /// Number of passes; a negative number repeats without end.
        count: TextTemplate,
        /// True if the controller is done after its passes, also in later iterations of the thread.
        only_once: bool,
    },
    /// Runs its children in the first iteration of the thread only.
    OnceOnly,
    /// Runs its children if a condition holds.
    If {
        /// The condition.
        condition: TextTemplate,
        /// True if the condition is an expression in JavaScript; otherwise it must be the text `true`.
        is_script: bool,
        /// True if the condition is evaluated before each child, otherwise before the first one.
        evaluates_for_all: bool,
    },
    /// Repeats its children while the condition is not `false`, or for `LAST` until a sample fails.
    While(TextTemplate),
    /// Runs its children for each variable of a numbered series.
    ForEach {
        /// The name of the variables without their number.
        input_prefix: TextTemplate,
        /// The name of the variable that receives each value.
        output_variable: TextTemplate,
        /// The number before the first variable.
        start_index: TextTemplate,
        /// The number of the last variable.
        end_index: TextTemplate,
        /// True if `_` stands between name and number.
        has_separator: bool,
    },
    /// Adds up its samples to one.
    Transaction {
        /// True if the transaction replaces its samples in the results.
        is_parent: bool,
        /// True if delays of timers count.
        includes_timers: bool,
        /// Assertions in its scope, if the transaction replaces its samples.
        assertions: Vec<SampleAssertion>,
    },
    /// Runs its children in a part of the iterations.
    Throughput {
        /// True if the value is a percentage of the iterations, otherwise it is a number of them.
        is_percent: bool,
        /// The percentage or the number.
        value: TextTemplate,
        /// True if each user counts separately.
        per_user: bool,
        /// The index of the shared counters in [`PlanModel::meters`].
        meter_index: usize,
    },
    /// Runs its children in random order.
    RandomOrder,
    /// Runs one child per iteration.
    Interleave(InterleaveMode),
    /// Runs the child with this name or number.
    Switch(TextTemplate),
    /// Repeats its children for this number of seconds.
    Runtime(TextTemplate),
    /// One child per iteration of the plan: over all users in exactly this order, repeatedly.
    ScenarioMix {
        /// The order of children.
        order: Vec<usize>,
        /// The index of the shared position in [`PlanModel::meters`].
        meter_index: usize,
    },
    /// A sampler.
    Sampler(Box<PlanSampler>),
}

/// The way in which a controller selects one child for each of its iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterleaveMode {
    /// At random instead of in rotation.
    pub is_random: bool,
    /// A child controller runs as a whole; otherwise each of its samplers is an iteration.
    pub by_controller: bool,
    /// Threads begin at different children, each at the index of its number.
    pub across_threads: bool,
}

/// A sampler and the elements in its scope.
#[derive(Debug)]
pub struct PlanSampler {
    /// What the sampler does.
    pub action: SamplerAction,
    /// Timers that delay the sample.
    pub timers: Vec<SamplerTimer>,
    /// User parameters that change per sample.
    pub user_parameters: Vec<usize>,
    /// Scripts that run before the sample.
    pub pre_processors: Vec<Arc<PlanScript>>,
    /// Elements that run after the sample, in order.
    pub post_processors: Vec<SamplePostProcessor>,
    /// Assertions that evaluate the sample.
    pub assertions: Vec<SampleAssertion>,
    /// Scripts that are notified of the evaluated sample.
    pub listeners: Vec<Arc<PlanScript>>,
}

impl PlanSampler {
    /// Returns a sampler without accompanying elements.
    pub(super) fn from_action(action: SamplerAction) -> Self {
        Self {
            action,
            timers: Vec::new(),
            user_parameters: Vec::new(),
            pre_processors: Vec::new(),
            post_processors: Vec::new(),
            assertions: Vec::new(),
            listeners: Vec::new(),
        }
    }
}

/// What a sampler does.
#[derive(Debug)]
pub enum SamplerAction {
    /// An HTTP request.
    Http(Box<HttpSamplerSpec>),
    /// Pause, or end of thread or test.
    FlowControl(FlowControlAction),
    /// A sample without a request, which shows variables.
    Debug,
    /// JMeter's own Java sampler: sleeps and returns the result that its arguments specify.
    Java(Box<JavaSamplerSpec>),
    /// A script sampler.
    Script(Arc<PlanScript>),
}

/// The settings of JMeter's own Java sampler.
#[derive(Debug, Default)]
pub struct JavaSamplerSpec {
    /// Minimum duration in milliseconds.
    pub sleep: TextTemplate,
    /// A mask for random milliseconds that are added.
    pub sleep_mask: TextTemplate,
    /// The label of the sample; the sampler's name if it is empty.
    pub label: TextTemplate,
    /// The response code.
    pub code: TextTemplate,
    /// The response message.
    pub message: TextTemplate,
    /// `OK` if the sample succeeds.
    pub status: TextTemplate,
    /// The response data.
    pub result: TextTemplate,
}

/// What a flow control element does.
#[derive(Debug)]
pub enum FlowControlAction {
    /// Pauses for this number of milliseconds.
    Pause(TextTemplate),
    /// Ends the thread.
    StopThread,
    /// Ends all threads.
    StopTest,
    /// Begins the next iteration of the thread.
    NextLoop,
    /// Ends the current pass of the innermost loop.
    ContinueLoop,
    /// Leaves the innermost loop.
    BreakLoop,
    /// Does nothing itself; its timers apply.
    NoOp,
    /// Enters the critical section of this name.
    EnterSection(TextTemplate),
    /// Leaves the innermost critical section.
    LeaveSection,
}

/// An element that runs after a sample.
#[derive(Debug)]
pub enum SamplePostProcessor {
    /// Takes values from the response.
    Extractor(Box<ResponseExtractor>),
    /// Runs a script.
    Script(Arc<PlanScript>),
    /// Acts after a failed sample.
    OnError(SampleErrorAction),
}

/// An element that delays a sample.
#[derive(Debug)]
pub enum SamplerTimer {
    /// A delay in milliseconds.
    Constant(TextTemplate),
    /// A delay with a uniformly distributed part, in milliseconds.
    Uniform {
        /// The constant part.
        delay: TextTemplate,
        /// The maximum of the random part.
        range: TextTemplate,
    },
    /// A normally distributed delay in milliseconds.
    Gaussian {
        /// The mean.
        delay: TextTemplate,
        /// The standard deviation.
        range: TextTemplate,
    },
    /// A delay with a Poisson-distributed part, in milliseconds.
    Poisson {
        /// The constant part.
        delay: TextTemplate,
        /// The mean of the random part.
        range: TextTemplate,
    },
    /// Delays so that samples begin at a constant rate.
    Throughput {
        /// Samples per minute.
        per_minute: TextTemplate,
        /// The threads whose samples count.
        mode: ThroughputMode,
        /// The index of the shared state in [`PlanModel::meters`].
        meter_index: usize,
    },
    /// Waits until a number of threads wait here.
    Synchronize {
        /// The number of threads; 0 for all of the group.
        size: TextTemplate,
        /// Time in milliseconds after which waiting threads continue without the others; 0 for none.
        timeout: TextTemplate,
        /// The index of the shared state in [`PlanModel::meters`].
        meter_index: usize,
    },
    /// A script returns the delay in milliseconds.
    Script(Arc<PlanScript>),
    /// Samples of the group's threads begin at random times, an exact number of them in each duration.
    Precise {
        /// The settings.
        settings: Box<PreciseThroughput>,
        /// The index of the shared state in [`PlanModel::meters`].
        meter_index: usize,
    },
    /// Samples of all threads begin at a rate that follows rows of start, end and seconds.
    ShapedThroughput {
        /// Rate at the start, rate at the end, and seconds of each interval.
        rows: Vec<[TextTemplate; 3]>,
        /// The index of the shared state in [`PlanModel::meters`].
        meter_index: usize,
    },
}

/// The settings of a precise throughput timer.
#[derive(Debug)]
pub struct PreciseThroughput {
    /// Number of samples per period.
    pub throughput: TextTemplate,
    /// The period of the throughput in seconds.
    pub period: TextTemplate,
    /// The duration in seconds in which the number of samples is exact.
    pub duration: TextTemplate,
    /// Number of samples that begin together.
    pub batch: TextTemplate,
    /// Delay between the samples of a batch, in milliseconds.
    pub batch_delay: TextTemplate,
}

/// The set of threads whose samples a constant throughput timer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThroughputMode {
    /// Each thread has the whole rate.
    ThisThread,
    /// The rate is divided by the number of running threads.
    AllThreads,
    /// The rate is divided by the number of running threads of the group.
    GroupThreads,
    /// All threads share the rate.
    Shared,
    /// The threads of each group share the rate.
    SharedByGroup,
}

/// The state of a throughput controller, a scenario mix or a timer that all threads share. Each uses some of the fields:
/// controllers and mixes the numbers, a synchronizing timer `count`, a constant throughput timer `last_due`, and the other
/// throughput timers `pacers`.
#[derive(Debug, Default)]
pub struct SharedTimerState {
    /// Number of iterations, or of turns taken.
    pub count: AtomicI64,
    /// Number of iterations that ran.
    pub executed: AtomicI64,
    /// The due time of the last sample, per group with a separate rate.
    pub last_due: Mutex<HashMap<PlanNodeId, Instant>>,
    /// Schedules of timers, per group with its own.
    pub pacers: Mutex<HashMap<PlanNodeId, SamplePacer>>,
}

/// An element that counts.
#[derive(Debug)]
pub struct PlanCounter {
    /// The first value.
    pub start: TextTemplate,
    /// The increment.
    pub step: TextTemplate,
    /// The value after which the counter starts again; empty for none.
    pub end: TextTemplate,
    /// The variable that receives the value.
    pub name: TextTemplate,
    /// The pattern of the value; empty for plain digits.
    pub format: TextTemplate,
    /// True if each user counts separately.
    pub per_user: bool,
    /// True if the counter of a user starts again in each iteration.
    pub resets: bool,
    /// The last value, if all users share the counter.
    pub shared_value: Mutex<Option<i64>>,
}

/// An element that draws a random number.
#[derive(Debug)]
pub struct RandomVariable {
    /// The variable that receives the value.
    pub name: TextTemplate,
    /// The minimum.
    pub low: TextTemplate,
    /// The maximum.
    pub high: TextTemplate,
    /// The pattern of the value; empty for plain digits.
    pub format: TextTemplate,
}

/// An element that gives each user its own values.
#[derive(Debug)]
pub struct UserParameters {
    /// The names of the variables.
    pub names: Vec<TextTemplate>,
    /// Per user, the values of all names.
    pub user_values: Vec<Vec<TextTemplate>>,
    pub(super) per_iteration: bool,
}

/// The settings of a cookie manager.
#[derive(Debug)]
pub struct CookieManager {
    /// Name, value, domain, path, secure.
    pub cookies: Vec<([TextTemplate; 4], bool)>,
    /// Ignores received cookies and sends none.
    pub ignores_cookies: bool,
    /// True if cookies are removed before each iteration.
    pub clears_each_iteration: bool,
    /// True if the thread group decides whether cookies are removed.
    pub is_controlled_by_group: bool,
}

/// The settings of a cache manager.
#[derive(Debug)]
pub struct CacheManager {
    /// True if the cache is emptied before each iteration.
    pub clears_each_iteration: bool,
    /// True if the headers `Cache-Control` and `Expires` are obeyed.
    pub uses_expires: bool,
}
