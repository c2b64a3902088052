//! Adds up the measurements of agents by part and second, and keeps the limits of each agent separate.

use std::time::{Duration, Instant, SystemTime};

use tympan_lab_engine::measurement::{GeneratorStats, LoadProcess, RunResults, WorkerInterval};

use super::job::FinishedPart;

/// Maximum time by which an agent's run clock may be ahead of the controller's.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// The state of one agent.
#[derive(Debug)]
struct AgentContribution {
    member: LoadProcess,
    /// Number of parts that it has prepared.
    prepared_parts: usize,
    /// CPU time of its threads in this part.
    thread_cpu_times: Vec<Duration>,
}

impl AgentContribution {
    fn close_part(&mut self) {
        self.member.generator.cpu_time += self.thread_cpu_times.drain(..).sum::<Duration>();
    }
}

/// The sum of all agents.
#[derive(Debug)]
pub(super) struct ResultsMerger {
    contributions: Vec<AgentContribution>,
    part_results: Vec<RunResults>,
    part_started_at: Option<Instant>,
}

impl ResultsMerger {
    pub(super) fn new(names: Vec<String>) -> Self {
        let shares = names.into_iter().map(|name| AgentContribution {
            member: LoadProcess {
                name,
                generator: GeneratorStats::default(),
                elapsed: Duration::ZERO,
                sample_count: 0,
                loss_reason: None,
            },
            prepared_parts: 0,
            thread_cpu_times: Vec::new(),
        });
        Self { contributions: shares.collect(), part_results: Vec::new(), part_started_at: None }
    }

    /// Records that an agent prepared its next part.
    pub(super) fn record_part_prepared(&mut self, index: usize) {
        let Some(share) = self.contributions.get_mut(index) else { return };
        share.close_part();
        share.prepared_parts += 1;
        while self.part_results.len() < share.prepared_parts {
            self.part_results.push(RunResults::new(SystemTime::now()));
        }
    }

    /// Records the start of a part.
    pub(super) fn record_part_start(&mut self, at: Instant) {
        self.part_started_at.get_or_insert(at);
    }

    /// Returns true if the second of the interval can have elapsed; reports extend to the last second that any agent
    /// reported.
    pub(super) fn is_plausible(&self, interval: &WorkerInterval) -> bool {
        let since = self.part_started_at.map_or(Duration::ZERO, |started| started.elapsed());
        Duration::from_secs(interval.second.into()) <= since + MAX_CLOCK_SKEW
    }

    pub(super) fn add_interval(&mut self, index: usize, interval: &WorkerInterval) {
        let Some(share) = self.contributions.get_mut(index) else { return };
        let Some(part) =
            share.prepared_parts.checked_sub(1).and_then(|part| self.part_results.get_mut(part))
        else {
            return;
        };
        part.add_interval(interval);
        let generator = &mut share.member.generator;
        generator.lag.merge(&interval.lag);
        generator.late_arrivals += interval.late_arrivals;
        generator.unsent_arrivals += interval.unsent_arrivals;
        generator.repeated_requests += interval.repeated_requests;
        generator.max_active_users = generator.max_active_users.max(interval.active_users);
        share.member.sample_count += interval
            .labels
            .iter()
            .filter(|(.., is_transaction)| !is_transaction)
            .map(|(_, stats, _)| stats.count())
            .sum::<u64>();
        // Until an agent reports how long its part took, this is the known minimum.
        part.elapsed = part.elapsed.max(Duration::from_secs(interval.second.into()));
        if share.thread_cpu_times.len() <= interval.worker && interval.worker < 4096 {
            share.thread_cpu_times.resize(interval.worker + 1, Duration::ZERO);
        }
        if let Some(cpu) = share.thread_cpu_times.get_mut(interval.worker) {
            *cpu = interval.cpu_time;
        }
    }

    /// Records that an agent ended its part.
    pub(super) fn record_part_end(&mut self, index: usize, over: &FinishedPart) {
        let Some(share) = self.contributions.get_mut(index) else { return };
        share.close_part();
        share.member.elapsed += over.elapsed;
        let generator = &mut share.member.generator;
        generator.worker_count = generator.worker_count.max(over.workers);
        generator.processor_count = over.processors;
        generator.is_open_model |= over.is_open;
        generator.offered_rate = generator.offered_rate.or(over.offered);
        if let Some(part) =
            share.prepared_parts.checked_sub(1).and_then(|part| self.part_results.get_mut(part))
        {
            part.elapsed = part.elapsed.max(over.elapsed);
        }
    }

    /// Records that an agent is lost.
    pub(super) fn record_agent_lost(&mut self, index: usize, reason: &str) {
        let started = self.part_started_at;
        let Some(share) = self.contributions.get_mut(index) else { return };
        share.close_part();
        if let Some(started) = started {
            share.member.elapsed = started.elapsed();
        }
        share.member.loss_reason.get_or_insert_with(|| reason.to_owned());
    }

    /// Returns the combined results.
    pub(super) fn into_results(self) -> RunResults {
        let mut parts = self.part_results.into_iter();
        let mut whole = parts.next().unwrap_or_else(|| RunResults::new(SystemTime::now()));
        parts.for_each(|part| whole.append_part(part));
        for share in self.contributions {
            let (own, other) = (&mut whole.generator, &share.member.generator);
            own.worker_count += other.worker_count;
            own.processor_count += other.processor_count;
            own.cpu_time += other.cpu_time;
            own.max_active_users += other.max_active_users;
            own.is_open_model |= other.is_open_model;
            // Each agent knows the rate of the whole schedule.
            own.offered_rate = own.offered_rate.or(other.offered_rate);
            whole.processes.push(share.member);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tympan_lab_engine::measurement::TimingHistogram;

    #[test]
    fn seconds_that_have_not_come_are_no_measurement() {
        let mut merger = ResultsMerger::new(vec!["one".to_owned()]);
        merger.record_part_start(Instant::now());
        merger.record_part_prepared(0);
        let interval = |second: u32| WorkerInterval {
            worker: 0,
            second,
            labels: Vec::new(),
            lag: TimingHistogram::new(),
            late_arrivals: 0,
            unsent_arrivals: 0,
            repeated_requests: 0,
            active_users: 0,
            cpu_time: Duration::ZERO,
            traces: Vec::new(),
            slow_samples: Vec::new(),
        };
        assert!(merger.is_plausible(&interval(0)) && merger.is_plausible(&interval(9)));
        assert!(
            !merger.is_plausible(&interval(3_600)) && !merger.is_plausible(&interval(u32::MAX))
        );
    }
}
