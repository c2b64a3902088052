//! Queue configurations: accepted topics, concurrency, retries.
//!
//! Names, properties and defaults are Sling's (`org.apache.sling.event.jobs.QueueConfiguration`).
//!
//! Invariants
//! * Each topic has one queue at any time: of the queues whose patterns match it the one with the highest ranking, then
//!   the one with the most specific pattern, then the first by PID; otherwise the main queue.

use std::time::Duration;

use crate::job::JobPriority;
use crate::queue::topic::{TopicPattern, aem_topic_names};

/// Factory PID of queue configurations.
pub const QUEUE_FACTORY: &str = "org.apache.sling.event.jobs.QueueConfiguration";
/// The queue of all topics that no other queue accepts.
pub const MAIN_QUEUE: &str = "<main queue>";
/// The PID of the main queue's configuration.
pub const MAIN_QUEUE_PID: &str = "org.apache.sling.event.impl.jobs.jcr.MainQueue";
/// The topic below which each workflow model has its own topic.
pub const WORKFLOW_TOPIC: &str = "com/adobe/granite/workflow/job";
/// The same for steps that start and monitor work in another system.
pub const EXTERNAL_TOPIC: &str = "com/adobe/granite/workflow/external/job";
/// The same for timeouts of steps.
pub const TIMEOUT_TOPIC: &str = "com/adobe/granite/workflow/timeout/job";
/// The same for transient workflows, which leave no traces in content.
pub const TRANSIENT_TOPIC: &str = "com/adobe/granite/workflow/transient/job";
/// The topics of asset jobs.
const ASSET_TOPICS: &str = "dam/*";

/// The topic below which each maintenance task has its own topic.
pub const MAINTENANCE_TOPIC: &str = "com/adobe/granite/maintenance/job";

/// The order in which a queue runs its jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum QueueKind {
    /// Any order, several at once.
    #[default]
    Unordered,
    /// One after the other by age, over all processes: a job that waits for its next attempt blocks all later ones.
    Ordered,
    /// Topics take turns, several at once.
    TopicRoundRobin,
}

impl QueueKind {
    /// Returns Sling's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unordered => "UNORDERED",
            Self::Ordered => "ORDERED",
            Self::TopicRoundRobin => "TOPIC_ROUND_ROBIN",
        }
    }

    /// Returns the kind with Sling's name, ignoring case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.trim();
        let kinds = [Self::Unordered, Self::Ordered, Self::TopicRoundRobin];
        kinds.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name))
    }
}

/// Maximum number of concurrent jobs of a queue in one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MaxParallel {
    /// The number of processors.
    Cores,
    /// A share of the processors, rounded, at least one.
    Share(f64),
    /// A fixed number.
    Count(u32),
}

impl MaxParallel {
    /// Converts Sling's number: -1 and below means all processors, 0 < x < 1 a share of them, 1 and above a count. Zero
    /// means one job.
    #[must_use]
    pub fn from_number(number: f64) -> Self {
        if number < 0.0 {
            Self::Cores
        } else if number > 0.0 && number < 1.0 {
            Self::Share(number)
        } else {
            // The cast maps out-of-range values and NaN to the nearest count.
            Self::Count((number.round() as u32).max(1))
        }
    }

    /// Returns Sling's number.
    #[must_use]
    pub fn to_number(self) -> f64 {
        match self {
            Self::Cores => -1.0,
            Self::Share(share) => share,
            Self::Count(count) => f64::from(count),
        }
    }

    /// Returns the maximum number of concurrent jobs for the given number of processors.
    #[must_use]
    pub fn job_limit(self, cores: usize) -> usize {
        let cores = cores.max(1);
        match self {
            Self::Cores => cores,
            Self::Share(share) => ((cores as f64 * share).round() as usize).max(1),
            Self::Count(count) => count.max(1) as usize,
        }
    }
}

/// The configuration of a queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueConfig {
    /// The name. `{0}` in it stands for the part of the topic that the wildcard matches, so each such part has a queue
    /// of its own.
    pub name: String,
    /// The topics that it accepts.
    pub topics: Vec<TopicPattern>,
    /// The order of its jobs.
    pub kind: QueueKind,
    /// Maximum number of concurrent jobs in each process.
    pub max_parallel: MaxParallel,
    /// Maximum number of retries of a failed job; `None` for no limit.
    pub retries: Option<u32>,
    /// Delay before a retry.
    pub retry_delay: Duration,
    /// Priority of the queue if threads are short.
    pub priority: JobPriority,
    /// True if completed jobs are retained for a while.
    pub keeps_finished_jobs: bool,
    /// Ranking among several queues that match a topic; the highest applies.
    pub ranking: i64,
    /// The PID of the configuration.
    pub pid: String,
    /// Path in content; `None` for built-in queues.
    pub path: Option<String>,
}

impl QueueConfig {
    /// Creates a queue with Sling's defaults.
    #[must_use]
    pub fn new(name: &str, topics: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            topics: topics.iter().map(|topic| TopicPattern::parse_queue_pattern(topic)).collect(),
            kind: QueueKind::Unordered,
            max_parallel: MaxParallel::Count(15),
            retries: Some(10),
            retry_delay: Duration::from_secs(2),
            priority: JobPriority::Normal,
            keeps_finished_jobs: false,
            ranking: 0,
            pid: String::new(),
            path: None,
        }
    }

    /// Returns the queue's name for a topic, and the specificity of the match. A pattern may also match the topic's
    /// name in AEM.
    fn match_topic(&self, topic: &str) -> Option<(String, (u8, usize))> {
        let names = || std::iter::once(topic).chain(aem_topic_names(topic).iter().copied());
        let covering = self.topics.iter().flat_map(|pattern| {
            let matched = names().filter_map(move |name| pattern.wildcard_match(name));
            matched.map(move |matched| (pattern.specificity(), matched))
        });
        let (closeness, matched) = covering.max_by_key(|(closeness, _)| *closeness)?;
        Some((self.name.replace("{0}", matched), closeness))
    }
}

/// A queue resolved for a topic: the configuration, and the name for this topic.
#[derive(Debug, Clone, PartialEq)]
pub struct ResolvedQueue<'a> {
    /// The queue's name.
    pub name: String,
    /// Its configuration.
    pub config: &'a QueueConfig,
}

/// All queues of an instance.
#[derive(Debug, Clone, PartialEq)]
pub struct QueueSet {
    /// Sorted by descending ranking, then by PID.
    queues: Vec<QueueConfig>,
    main_queue: QueueConfig,
}

impl QueueSet {
    /// Combines queues; a configuration with the PID of a built-in queue replaces it.
    #[must_use]
    pub fn new(configured: Vec<QueueConfig>) -> Self {
        let mut all = configured;
        for default in default_queues() {
            if !all.iter().any(|queue| queue.pid == default.pid) {
                all.push(default);
            }
        }
        all.sort_by(|left, right| {
            right.ranking.cmp(&left.ranking).then_with(|| left.pid.cmp(&right.pid))
        });
        let at = all.iter().position(|queue| queue.name == MAIN_QUEUE);
        let main = at.map_or_else(main_queue_config, |at| all.remove(at));
        Self { queues: all, main_queue: main }
    }

    /// Returns the queue of a topic.
    #[must_use]
    pub fn queue_for_topic(&self, topic: &str) -> ResolvedQueue<'_> {
        let mut best: Option<(ResolvedQueue<'_>, (u8, usize))> = None;
        for config in &self.queues {
            let Some((name, closeness)) = config.match_topic(topic) else { continue };
            let is_better = best.as_ref().is_none_or(|(best_queue, closest)| {
                config.ranking == best_queue.config.ranking && closeness > *closest
            });
            if is_better {
                best = Some((ResolvedQueue { name, config }, closeness));
            }
        }
        best.map_or_else(
            || ResolvedQueue { name: MAIN_QUEUE.to_owned(), config: &self.main_queue },
            |(queue, _)| queue,
        )
    }

    /// Returns all configurations, the main queue last.
    pub fn iter_configs(&self) -> impl Iterator<Item = &QueueConfig> {
        self.queues.iter().chain(std::iter::once(&self.main_queue))
    }

    /// Returns the configuration of a queue by its name; the queue exists, or a topic may create it.
    #[must_use]
    pub fn config_for_queue(&self, name: &str) -> Option<&QueueConfig> {
        self.iter_configs()
            .find(|queue| queue.name == name || matches_name_pattern(&queue.name, name))
    }

    /// Returns the configuration with the given queue name or PID.
    #[must_use]
    pub fn find_config(&self, name: &str) -> Option<&QueueConfig> {
        self.iter_configs().find(|queue| queue.name == name || queue.pid == name)
    }
}

/// Returns true if a name matches a pattern with `{0}`.
fn matches_name_pattern(pattern: &str, name: &str) -> bool {
    pattern.split_once("{0}").is_some_and(|(before, after)| {
        name.len() > before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
    })
}

impl Default for QueueSet {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

fn main_queue_config() -> QueueConfig {
    QueueConfig { pid: MAIN_QUEUE_PID.to_owned(), ..QueueConfig::new(MAIN_QUEUE, &[]) }
}

/// Returns the built-in queues, with the names and topics that AEM ships.
#[must_use]
pub fn default_queues() -> Vec<QueueConfig> {
    let named = |pid: &str, name: &str, topic: &str| QueueConfig {
        pid: format!("{QUEUE_FACTORY}{pid}"),
        ..QueueConfig::new(name, &[&format!("{topic}*")])
    };
    vec![
        QueueConfig {
            max_parallel: MaxParallel::Share(0.5),
            // In AEM, asset processing is a workflow, and so uses this queue.
            topics: [&*format!("{WORKFLOW_TOPIC}*"), ASSET_TOPICS]
                .map(TopicPattern::parse_queue_pattern)
                .into(),
            ..named(
                ".370aad73-d01b-4a0b-abe4-20198d85f705",
                "Granite Workflow Queue",
                WORKFLOW_TOPIC,
            )
        },
        QueueConfig {
            max_parallel: MaxParallel::Share(0.5),
            ..named("-granite.transient", "Granite Transient Workflow Queue", TRANSIENT_TOPIC)
        },
        QueueConfig {
            max_parallel: MaxParallel::Cores,
            ..named(
                "-granite.external",
                "Granite Workflow External Process Job Queue",
                EXTERNAL_TOPIC,
            )
        },
        QueueConfig {
            max_parallel: MaxParallel::Count(1),
            ..named("-granite.maintenance", "Granite Maintenance Queue", MAINTENANCE_TOPIC)
        },
        named("-granite.timeout", "Granite Workflow Timeout Queue", TIMEOUT_TOPIC),
        QueueConfig {
            kind: QueueKind::Ordered,
            retries: None,
            pid: format!("{QUEUE_FACTORY}-replication"),
            ..QueueConfig::new("com_day_cq_replication_job_{0}", &["com/day/cq/replication/job/*"])
        },
        main_queue_config(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_jobs_follow_slings_number() {
        let check = |number: f64, cores: usize, expected: usize| {
            assert_eq!(
                MaxParallel::from_number(number).job_limit(cores),
                expected,
                "{number} of {cores}"
            );
        };
        check(-1.0, 4, 4);
        check(-7.0, 4, 4);
        check(0.5, 4, 2);
        check(0.5, 1, 1);
        check(0.1, 4, 1);
        check(0.5, 3, 2);
        check(0.99, 8, 8);
        check(1.0, 8, 1);
        check(15.0, 2, 15);
        check(0.0, 4, 1);
        check(f64::NAN, 4, 1);
    }

    fn queue(name: &str, topics: &[&str], ranking: i64) -> QueueConfig {
        QueueConfig {
            ranking,
            pid: format!("{QUEUE_FACTORY}-{name}"),
            ..QueueConfig::new(name, topics)
        }
    }

    fn check(set: &QueueSet, topic: &str, expected: &str) {
        assert_eq!(set.queue_for_topic(topic).name, expected, "{topic}");
    }

    #[test]
    fn the_shipped_queues_take_workflows() {
        let set = QueueSet::default();
        let model = "etc/workflow/models/dam/update_asset/jcr_content/model";
        check(&set, &format!("{WORKFLOW_TOPIC}/{model}"), "Granite Workflow Queue");
        check(
            &set,
            &format!("{EXTERNAL_TOPIC}/{model}"),
            "Granite Workflow External Process Job Queue",
        );
        check(&set, "dam/update_asset", "Granite Workflow Queue");
        check(&set, "anything", MAIN_QUEUE);
        check(&set, WORKFLOW_TOPIC, MAIN_QUEUE);
        check(&set, "com/day/cq/replication/job/author/a", "com_day_cq_replication_job_author/a");
        let main = set.find_config(MAIN_QUEUE).unwrap();
        assert_eq!((main.max_parallel.job_limit(2), main.retries), (15, Some(10)));
    }

    #[test]
    fn a_queue_for_one_model_takes_it_from_the_general_one() {
        let model =
            format!("{WORKFLOW_TOPIC}/etc/workflow/models/dam/update_asset/jcr_content/model");
        let other_topic =
            format!("{WORKFLOW_TOPIC}/etc/workflow/models/dam-xmp-writeback/jcr_content/model");
        let set = QueueSet::new(vec![queue("assets", &[&model], 0)]);
        check(&set, &model, "assets");
        check(&set, &other_topic, "Granite Workflow Queue");
    }

    /// The recipe of AEM's guide: a queue for the topic of the workflow model that uploads start in AEM.
    #[test]
    fn uploads_are_taken_by_a_queue_that_calls_them_as_aem_does() {
        let names =
            ["etc/workflow/models/dam/update_asset/jcr_content/model", "var/workflow/models/dam/*"];
        for name in names {
            let pattern = format!("{WORKFLOW_TOPIC}/{name}");
            let queue = QueueConfig {
                pid: format!("{QUEUE_FACTORY}-assets"),
                ..QueueConfig::new("DAM Update Asset", &[&pattern])
            };
            let set = QueueSet::new(vec![queue]);
            assert_eq!(
                set.queue_for_topic("dam/update_asset").name,
                "DAM Update Asset",
                "{pattern}"
            );
            assert_eq!(
                set.queue_for_topic("dam/other").name,
                "Granite Workflow Queue",
                "{pattern}"
            );
        }
    }

    #[test]
    fn ranking_goes_before_closeness() {
        let set = QueueSet::new(vec![
            queue("close", &["a/b/c"], 0),
            queue("high", &["a/*"], 10),
            queue("low", &["a/b/c"], -1),
        ]);
        check(&set, "a/b/c", "high");
        let set = QueueSet::new(vec![queue("z", &["a/*"], 5), queue("y", &["a/*"], 5)]);
        check(&set, "a/b", "y");
    }

    #[test]
    fn a_configuration_replaces_the_shipped_one_of_its_pid() {
        let shipped = default_queues().remove(0);
        let changed = QueueConfig { max_parallel: MaxParallel::Count(3), ..shipped.clone() };
        let set = QueueSet::new(vec![changed]);
        let config = set.find_config("Granite Workflow Queue").unwrap();
        assert_eq!(config.max_parallel, MaxParallel::Count(3));
        assert_eq!(set.iter_configs().filter(|queue| queue.pid == shipped.pid).count(), 1);
    }

    #[test]
    fn a_name_with_a_place_gives_each_topic_a_queue() {
        let set = QueueSet::new(vec![queue("mine-{0}", &["a/*"], 0)]);
        check(&set, "a/b", "mine-b");
        check(&set, "a/c/d", "mine-c/d");
    }
}
