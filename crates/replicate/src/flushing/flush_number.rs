//! Numbering of the flushes of each agent, so that a dispatcher detects a missing one.
//!
//! Numbers are consecutive within a run of the process, and are sent with an identifier of the run. A flush has the
//! same number in every attempt. An abandoned flush keeps its number, which leaves a gap. A run begins with a gap if
//! flushes of an earlier run were abandoned.

use std::collections::BTreeMap;
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_jobs::JobId;
use tympan_web::flush_message::FlushNumbering;

/// The identity and counters under which a process sends flushes.
#[derive(Debug)]
pub(crate) struct FlushNumberAllocator {
    run_id: String,
    state: Mutex<FlushNumberState>,
}

#[derive(Debug, Default)]
struct FlushNumberState {
    /// The publisher's name, which is stable across restarts.
    publisher: String,
    agents: BTreeMap<String, LastFlushNumber>,
}

/// The last flush of an agent.
#[derive(Debug, Clone, Copy, Default)]
struct LastFlushNumber {
    last_job: Option<JobId>,
    last_number: u64,
}

impl FlushNumberAllocator {
    /// Begins a run.
    pub(crate) fn new() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let run = format!("{:x}-{:x}", since.as_nanos(), std::process::id());
        let publisher = "publish".to_owned();
        Self {
            run_id: run,
            state: Mutex::new(FlushNumberState { publisher, agents: BTreeMap::new() }),
        }
    }

    /// Sets the name of the publisher.
    pub(crate) fn set_publisher(&self, name: &str) {
        self.state.lock().publisher = ascii_token(name);
    }

    /// Returns the name of the publisher.
    pub(crate) fn publisher(&self) -> String {
        self.state.lock().publisher.clone()
    }

    /// Returns the number of an agent's job: the next one, or the same as before if the job is sent again.
    pub(crate) fn number_for(&self, agent: &str, job: JobId) -> FlushNumbering {
        let mut state = self.state.lock();
        let last = state.agents.entry(agent.to_owned()).or_default();
        if last.last_job != Some(job) {
            *last = LastFlushNumber { last_job: Some(job), last_number: last.last_number + 1 };
        }
        let count = last.last_number;
        let source = format!("{}/{}", state.publisher, ascii_token(agent));
        FlushNumbering { source, run: self.run_id.clone(), count }
    }

    /// Returns true if no flush of an agent was numbered in this run.
    pub(crate) fn is_unnumbered(&self, agent: &str) -> bool {
        !self.state.lock().agents.contains_key(agent)
    }

    /// Records that a flush of an agent will never be sent, which leaves a gap.
    pub(crate) fn skip_number(&self, agent: &str) {
        let mut state = self.state.lock();
        let last = state.agents.entry(agent.to_owned()).or_default();
        *last = LastFlushNumber { last_job: None, last_number: last.last_number + 1 };
    }
}

/// Converts a name to a short token of visible ASCII characters.
fn ascii_token(name: &str) -> String {
    let visible = |char: char| if char.is_ascii_graphic() { char } else { '_' };
    name.chars().take(80).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::FlushNumberAllocator;
    use tympan_jobs::JobId;

    #[test]
    fn a_job_keeps_its_number_and_a_lost_one_leaves_a_gap() {
        let numbers = FlushNumberAllocator::new();
        assert!(numbers.is_unnumbered("a"));
        let count = |agent, job| numbers.number_for(agent, JobId(job)).count;
        assert_eq!([count("a", 5), count("a", 5), count("a", 9), count("b", 7)], [1, 1, 2, 1]);
        assert!(!numbers.is_unnumbered("a"));
        numbers.skip_number("a");
        assert_eq!(count("a", 9), 4);
        numbers.set_publisher("p 1\u{e4}");
        let sent = numbers.number_for("flush agent", JobId(1));
        assert_eq!(sent.source, "p_1_/flush_agent");
        assert_ne!(sent.run, FlushNumberAllocator::new().run_id);
    }
}
