//! Adds up what agents measure: part by part, second by second, and each agent's own limits apart.

use std::time::{Duration, Instant, SystemTime};

use super::job::PartOver;
use crate::record::{Generator, Interval, Member, Results};

/// How far an agent's clock of a run may be before the controller's.
const LEEWAY: Duration = Duration::from_secs(60);

/// What is known of one agent.
#[derive(Debug)]
struct Share {
    member: Member,
    /// Parts that it prepared.
    parts: usize,
    /// Processor time of its threads in this part.
    cpu: Vec<Duration>,
}

impl Share {
    fn close_part(&mut self) {
        self.member.generator.cpu += self.cpu.drain(..).sum::<Duration>();
    }
}

/// The sum of all agents.
#[derive(Debug)]
pub(super) struct Merger {
    shares: Vec<Share>,
    parts: Vec<Results>,
    started: Option<Instant>,
}

impl Merger {
    pub(super) fn new(names: Vec<String>) -> Self {
        let shares = names.into_iter().map(|name| Share {
            member: Member {
                name,
                generator: Generator::default(),
                elapsed: Duration::ZERO,
                samples: 0,
                lost: None,
            },
            parts: 0,
            cpu: Vec::new(),
        });
        Self { shares: shares.collect(), parts: Vec::new(), started: None }
    }

    /// Notes that an agent prepared its next part.
    pub(super) fn arrive(&mut self, index: usize) {
        let Some(share) = self.shares.get_mut(index) else { return };
        share.close_part();
        share.parts += 1;
        while self.parts.len() < share.parts {
            self.parts.push(Results::new(SystemTime::now()));
        }
    }

    /// Notes when a part begins.
    pub(super) fn start(&mut self, at: Instant) {
        self.started.get_or_insert(at);
    }

    /// Reports whether a second can be over: reports are as long as the last second that somebody told of.
    pub(super) fn is_plausible(&self, interval: &Interval) -> bool {
        let since = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        Duration::from_secs(interval.second.into()) <= since + LEEWAY
    }

    pub(super) fn add(&mut self, index: usize, interval: &Interval) {
        let Some(share) = self.shares.get_mut(index) else { return };
        let Some(part) = share.parts.checked_sub(1).and_then(|part| self.parts.get_mut(part))
        else {
            return;
        };
        part.add(interval);
        let generator = &mut share.member.generator;
        generator.lag.add(&interval.lag);
        generator.late += interval.late;
        generator.unsent += interval.unsent;
        generator.repeated += interval.repeated;
        generator.most_active = generator.most_active.max(interval.active);
        share.member.samples += interval
            .labels
            .iter()
            .filter(|(.., is_transaction)| !is_transaction)
            .map(|(_, stats, _)| stats.count())
            .sum::<u64>();
        // Until an agent says how long its part took, it is known to have lasted this long.
        part.elapsed = part.elapsed.max(Duration::from_secs(interval.second.into()));
        if share.cpu.len() <= interval.worker && interval.worker < 4096 {
            share.cpu.resize(interval.worker + 1, Duration::ZERO);
        }
        if let Some(cpu) = share.cpu.get_mut(interval.worker) {
            *cpu = interval.cpu;
        }
    }

    /// Notes that an agent ended its part.
    pub(super) fn end_part(&mut self, index: usize, over: &PartOver) {
        let Some(share) = self.shares.get_mut(index) else { return };
        share.close_part();
        share.member.elapsed += over.elapsed;
        let generator = &mut share.member.generator;
        generator.workers = generator.workers.max(over.workers);
        generator.processors = over.processors;
        generator.is_open |= over.is_open;
        generator.offered = generator.offered.or(over.offered);
        if let Some(part) = share.parts.checked_sub(1).and_then(|part| self.parts.get_mut(part)) {
            part.elapsed = part.elapsed.max(over.elapsed);
        }
    }

    /// Notes that an agent is lost.
    pub(super) fn lose(&mut self, index: usize, reason: &str) {
        let started = self.started;
        let Some(share) = self.shares.get_mut(index) else { return };
        share.close_part();
        if let Some(started) = started {
            share.member.elapsed = started.elapsed();
        }
        share.member.lost.get_or_insert_with(|| reason.to_owned());
    }

    /// Returns the results of all.
    pub(super) fn finish(self) -> Results {
        let mut parts = self.parts.into_iter();
        let mut whole = parts.next().unwrap_or_else(|| Results::new(SystemTime::now()));
        parts.for_each(|part| whole.append(part));
        for share in self.shares {
            let (own, other) = (&mut whole.generator, &share.member.generator);
            own.workers += other.workers;
            own.processors += other.processors;
            own.cpu += other.cpu;
            own.most_active += other.most_active;
            own.is_open |= other.is_open;
            // Each agent knows the rate of the whole schedule.
            own.offered = own.offered.or(other.offered);
            whole.members.push(share.member);
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Timing;

    #[test]
    fn seconds_that_have_not_come_are_no_measurement() {
        let mut merger = Merger::new(vec!["one".to_owned()]);
        merger.start(Instant::now());
        merger.arrive(0);
        let told = |second: u32| Interval {
            worker: 0,
            second,
            labels: Vec::new(),
            lag: Timing::new(),
            late: 0,
            unsent: 0,
            repeated: 0,
            active: 0,
            cpu: Duration::ZERO,
            traces: Vec::new(),
            slowest: Vec::new(),
        };
        assert!(merger.is_plausible(&told(0)) && merger.is_plausible(&told(9)));
        assert!(!merger.is_plausible(&told(3_600)) && !merger.is_plausible(&told(u32::MAX)));
    }
}
