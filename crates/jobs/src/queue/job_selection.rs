//! Selects the waiting jobs that run first: tenants, and in some queues topics, take turns.

use std::collections::BTreeMap;

use crate::JobId;
use crate::queue::job_claim::{JobLane, WaitingJob};
use crate::queue::queue_config::QueueKind;

/// Returns the key by which the jobs of a queue take turns.
fn fairness_key(lane: &JobLane, kind: QueueKind) -> String {
    match kind {
        QueueKind::Unordered | QueueKind::Ordered => lane.tenant.clone(),
        QueueKind::TopicRoundRobin => format!("{}\n{}", lane.topic, lane.tenant),
    }
}

/// Selects at most `want` jobs, by priority and age within each turn, beginning after the key that was served last.
/// Returns the jobs, and the key that is now the last.
pub(crate) fn select_jobs(
    lanes: &[(JobLane, Vec<WaitingJob>)],
    want: usize,
    kind: QueueKind,
    last: Option<&str>,
) -> (Vec<JobId>, Option<String>) {
    let mut turns: BTreeMap<String, Vec<WaitingJob>> = BTreeMap::new();
    for (lane, waiting) in lanes {
        turns.entry(fairness_key(lane, kind)).or_default().extend(waiting);
    }
    for waiting in turns.values_mut() {
        // The last element is taken first.
        waiting.sort_unstable_by_key(|job| (job.priority, std::cmp::Reverse(job.id)));
    }
    let mut chosen = Vec::new();
    let mut served = last.map(str::to_owned);
    while chosen.len() < want {
        let after = |served: &Option<String>| {
            let is_after = |turn: &&String| served.as_ref().is_none_or(|served| *turn > served);
            turns.keys().find(is_after).or_else(|| turns.keys().next()).cloned()
        };
        let Some(turn) = after(&served) else { break };
        match turns.get_mut(&turn).and_then(Vec::pop) {
            Some(job) => {
                chosen.push(job.id);
                served = Some(turn);
            }
            None => {
                turns.remove(&turn);
            }
        }
    }
    (chosen, served)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(topic: &str, tenant: &str, jobs: &[(i64, i64)]) -> (JobLane, Vec<WaitingJob>) {
        let lane = JobLane { topic: topic.to_owned(), tenant: tenant.to_owned() };
        let waiting =
            jobs.iter().map(|(id, priority)| WaitingJob { id: JobId(*id), priority: *priority });
        (lane, waiting.collect())
    }

    fn check(
        lanes: &[(JobLane, Vec<WaitingJob>)],
        (want, kind, last): (usize, QueueKind, Option<&str>),
        expected: &[i64],
    ) {
        let (chosen, _) = select_jobs(lanes, want, kind, last);
        assert_eq!(chosen.iter().map(|id| id.0).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_oldest_and_the_high_go_first() {
        let lanes = [lane("a", "", &[(1, 0), (4, 0)]), lane("b", "", &[(3, 1), (2, 0)])];
        check(&lanes, (10, QueueKind::Unordered, None), &[3, 1, 2, 4]);
        check(&lanes, (2, QueueKind::Unordered, None), &[3, 1]);
    }

    #[test]
    fn tenants_take_turns_whatever_waits() {
        let lanes =
            [lane("a", "big", &[(1, 0), (2, 0), (3, 0), (4, 1)]), lane("b", "small", &[(9, -1)])];
        check(&lanes, (3, QueueKind::Unordered, None), &[4, 9, 1]);
        check(&lanes, (2, QueueKind::Unordered, Some("big")), &[9, 4]);
        check(&lanes, (9, QueueKind::Unordered, Some("small")), &[4, 9, 1, 2, 3]);
    }

    #[test]
    fn topics_take_turns_where_the_queue_says_so() {
        let lanes = [lane("a", "", &[(1, 0), (2, 0), (3, 0)]), lane("b", "", &[(4, 0), (5, 0)])];
        check(&lanes, (9, QueueKind::TopicRoundRobin, None), &[1, 4, 2, 5, 3]);
        check(&lanes, (9, QueueKind::Unordered, None), &[1, 2, 3, 4, 5]);
    }

    #[test]
    fn nothing_waits() {
        check(&[], (9, QueueKind::Unordered, None), &[]);
        check(&[lane("a", "", &[])], (9, QueueKind::Unordered, None), &[]);
    }
}
