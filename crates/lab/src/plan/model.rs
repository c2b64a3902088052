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
use crate::load::{ArrivalProcess, RateInterval};

/// A whole plan.
#[derive(Debug, Default)]
pub(super) struct PlanModel {
    pub(super) name: String,
    /// The file name of a JMeter plan, which JMeter calls the plan's name.
    pub(super) file_name: Option<String>,
    pub(super) nodes: Vec<PlanNode>,
    pub(super) groups: Vec<ThreadGroup>,
    /// Names and values, evaluated once at the start, in order.
    pub(super) variables: Vec<(TextTemplate, TextTemplate)>,
    /// True if groups run one after the other.
    pub(super) is_serial: bool,
    /// True if tear-down groups run even if the test was stopped.
    pub(super) runs_teardown_on_stop: bool,
    /// Result files that listeners specify.
    pub(super) result_files: Vec<TextTemplate>,
    pub(super) data_sets: Vec<DataSet>,
    pub(super) counters: Vec<PlanCounter>,
    pub(super) random_variables: Vec<RandomVariable>,
    pub(super) user_parameters: Vec<UserParameters>,
    pub(super) cookie_managers: Vec<CookieManager>,
    pub(super) cache_managers: Vec<CacheManager>,
    /// Per manager, host names with their comma-separated addresses.
    pub(super) host_addresses: Vec<Vec<(TextTemplate, TextTemplate)>>,
    /// Shared counters of throughput controllers and timers.
    pub(super) meters: Vec<SharedTimerState>,
    pub(super) files: PlanFiles,
    /// True if scripts that run before a sample access the previous one.
    pub(super) retains_previous_sample: bool,
    /// True if the plan refers to the pass counts of controllers (`__jm__NAME__idx`).
    pub(super) has_loop_indexes: bool,
    /// Properties that replace secrets: the plan does not run without them.
    pub(super) required_properties: BTreeSet<String>,
    /// Names of the files that the plan includes.
    pub(super) included_files: Vec<TextTemplate>,
}

impl PlanModel {
    /// Returns the data sets below a node whose rows are shared by several threads.
    pub(super) fn shared_data_below(&self, node: PlanNodeId) -> Vec<&DataSet> {
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
pub(super) enum ThreadGroupStage {
    Setup,
    Main,
    Teardown,
}

/// The action after a failed sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleErrorAction {
    Continue,
    NextLoop,
    StopThread,
    StopTest,
}

/// A group of threads with the same behavior.
#[derive(Debug)]
pub(super) struct ThreadGroup {
    pub(super) stage: ThreadGroupStage,
    pub(super) name: TextTemplate,
    pub(super) load_shape: LoadShape,
    pub(super) loops: TextTemplate,
    pub(super) is_endless: bool,
    pub(super) on_error: SampleErrorAction,
    pub(super) is_same_user: bool,
    pub(super) root: PlanNodeId,
    pub(super) line: u32,
}

/// One thread's start and lifetime, relative to the start of its group.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ThreadLifetime {
    pub(super) start: Duration,
    pub(super) lifetime: Option<Duration>,
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
pub(super) struct OpenModelArrivals {
    pub(super) process: ArrivalProcess,
    pub(super) rate_intervals: Vec<RateInterval>,
    /// Maximum number of concurrent visitors.
    pub(super) max_visitors: usize,
}

/// A controller or a sampler.
#[derive(Debug)]
pub(super) struct PlanNode {
    pub(super) kind: PlanNodeKind,
    pub(super) name: TextTemplate,
    pub(super) children: Vec<PlanNodeId>,
    pub(super) events: Vec<IterationEvent>,
}

/// An event at the start of a controller's iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IterationEvent {
    DataSet(usize),
    Counter(usize),
    RandomVariable(usize),
    UserParameters(usize),
}

#[derive(Debug)]
pub(super) enum PlanNodeKind {
    Simple,
    Loop {
        count: TextTemplate,
        only_once: bool,
    },
    OnceOnly,
    If {
        condition: TextTemplate,
        is_script: bool,
        evaluates_for_all: bool,
    },
    While(TextTemplate),
    ForEach {
        input_prefix: TextTemplate,
        output_variable: TextTemplate,
        start_index: TextTemplate,
        end_index: TextTemplate,
        has_separator: bool,
    },
    Transaction {
        is_parent: bool,
        includes_timers: bool,
        /// Assertions in its scope, if the transaction replaces its samples.
        assertions: Vec<SampleAssertion>,
    },
    Throughput {
        is_percent: bool,
        value: TextTemplate,
        per_user: bool,
        meter_index: usize,
    },
    RandomOrder,
    Interleave(InterleaveMode),
    Switch(TextTemplate),
    Runtime(TextTemplate),
    /// One child per iteration of the plan: over all users in exactly this order, repeatedly.
    ScenarioMix {
        order: Vec<usize>,
        meter_index: usize,
    },
    Sampler(Box<PlanSampler>),
}

/// The way in which a controller selects one child for each of its iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InterleaveMode {
    /// At random instead of in rotation.
    pub(super) is_random: bool,
    /// A child controller runs as a whole; otherwise each of its samplers is an iteration.
    pub(super) by_controller: bool,
    /// Threads begin at different children, each at the index of its number.
    pub(super) across_threads: bool,
}

#[derive(Debug)]
pub(super) struct PlanSampler {
    pub(super) action: SamplerAction,
    pub(super) timers: Vec<SamplerTimer>,
    /// User parameters that change per sample.
    pub(super) user_parameters: Vec<usize>,
    /// Scripts that run before the sample.
    pub(super) pre_processors: Vec<Arc<PlanScript>>,
    pub(super) post_processors: Vec<SamplePostProcessor>,
    pub(super) assertions: Vec<SampleAssertion>,
    /// Scripts that are notified of the evaluated sample.
    pub(super) listeners: Vec<Arc<PlanScript>>,
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

#[derive(Debug)]
pub(super) enum SamplerAction {
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

#[derive(Debug, Default)]
pub(super) struct JavaSamplerSpec {
    pub(super) sleep: TextTemplate,
    pub(super) sleep_mask: TextTemplate,
    pub(super) label: TextTemplate,
    pub(super) code: TextTemplate,
    pub(super) message: TextTemplate,
    pub(super) status: TextTemplate,
    pub(super) result: TextTemplate,
}

#[derive(Debug)]
pub(super) enum FlowControlAction {
    Pause(TextTemplate),
    StopThread,
    StopTest,
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

#[derive(Debug)]
pub(super) enum SamplePostProcessor {
    Extractor(Box<ResponseExtractor>),
    Script(Arc<PlanScript>),
    OnError(SampleErrorAction),
}

#[derive(Debug)]
pub(super) enum SamplerTimer {
    Constant(TextTemplate),
    Uniform {
        delay: TextTemplate,
        range: TextTemplate,
    },
    Gaussian {
        delay: TextTemplate,
        range: TextTemplate,
    },
    Poisson {
        delay: TextTemplate,
        range: TextTemplate,
    },
    Throughput {
        per_minute: TextTemplate,
        mode: ThroughputMode,
        meter_index: usize,
    },
    Synchronize {
        size: TextTemplate,
        /// Time in milliseconds after which waiting threads continue without the others; 0 for none.
        timeout: TextTemplate,
        meter_index: usize,
    },
    /// A script returns the delay in milliseconds.
    Script(Arc<PlanScript>),
    /// Samples of the group's threads begin at random times, an exact number of them in each duration.
    Precise {
        settings: Box<PreciseThroughput>,
        meter_index: usize,
    },
    /// Samples of all threads begin at a rate that follows rows of start, end and seconds.
    ShapedThroughput {
        rows: Vec<[TextTemplate; 3]>,
        meter_index: usize,
    },
}

/// The settings of a precise throughput timer.
#[derive(Debug)]
pub(super) struct PreciseThroughput {
    pub(super) throughput: TextTemplate,
    /// The period of the throughput in seconds.
    pub(super) period: TextTemplate,
    /// The duration in seconds in which the number of samples is exact.
    pub(super) duration: TextTemplate,
    /// Number of samples that begin together.
    pub(super) batch: TextTemplate,
    /// Delay between the samples of a batch, in milliseconds.
    pub(super) batch_delay: TextTemplate,
}

/// The set of threads whose samples a constant throughput timer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThroughputMode {
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

/// Throughput state shared by several threads.
#[derive(Debug, Default)]
pub(super) struct SharedTimerState {
    pub(super) count: AtomicI64,
    pub(super) executed: AtomicI64,
    /// The due time of the last sample, per group with a separate rate.
    pub(super) last_due: Mutex<HashMap<PlanNodeId, Instant>>,
    /// Schedules of timers, per group with its own.
    pub(super) pacers: Mutex<HashMap<PlanNodeId, SamplePacer>>,
}

#[derive(Debug)]
pub(super) struct PlanCounter {
    pub(super) start: TextTemplate,
    pub(super) step: TextTemplate,
    pub(super) end: TextTemplate,
    pub(super) name: TextTemplate,
    pub(super) format: TextTemplate,
    pub(super) per_user: bool,
    pub(super) resets: bool,
    pub(super) shared_value: Mutex<Option<i64>>,
}

#[derive(Debug)]
pub(super) struct RandomVariable {
    pub(super) name: TextTemplate,
    pub(super) low: TextTemplate,
    pub(super) high: TextTemplate,
    pub(super) format: TextTemplate,
}

#[derive(Debug)]
pub(super) struct UserParameters {
    pub(super) names: Vec<TextTemplate>,
    /// Per user, the values of all names.
    pub(super) user_values: Vec<Vec<TextTemplate>>,
    pub(super) per_iteration: bool,
}

#[derive(Debug)]
pub(super) struct CookieManager {
    /// Name, value, domain, path, secure.
    pub(super) cookies: Vec<([TextTemplate; 4], bool)>,
    /// Ignores received cookies and sends none.
    pub(super) ignores_cookies: bool,
    pub(super) clears_each_iteration: bool,
    pub(super) is_controlled_by_group: bool,
}

#[derive(Debug)]
pub(super) struct CacheManager {
    pub(super) clears_each_iteration: bool,
    pub(super) uses_expires: bool,
}
