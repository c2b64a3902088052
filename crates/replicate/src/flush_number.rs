//! Counting the flushes of each agent, so that a dispatcher misses the one that did not arrive.
//!
//! Numbers are consecutive within a run of the process; which run it is goes with them. A flush keeps its number however
//! often it is tried. One that is given up keeps it too, which leaves a gap; and a run begins with a gap where flushes of
//! an earlier one were given up.

use std::collections::BTreeMap;
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_jobs::JobId;
use tympan_web::flush_message::FlushNumbering;

/// What a process sends under.
#[derive(Debug)]
pub(crate) struct FlushNumberAllocator {
    run_id: String,
    state: Mutex<FlushNumberState>,
}

#[derive(Debug, Default)]
struct FlushNumberState {
    /// The publisher's name, the same over restarts.
    publisher: String,
    agents: BTreeMap<String, LastFlushNumber>,
}

/// What an agent sent last.
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

    /// Says who sends.
    pub(crate) fn set_publisher(&self, name: &str) {
        self.state.lock().publisher = ascii_token(name);
    }

    /// Returns who sends.
    pub(crate) fn publisher(&self) -> String {
        self.state.lock().publisher.clone()
    }

    /// Returns the number of a job of an agent: the next one, or the same as before if it is sent again.
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

    /// Tells whether nothing of an agent was numbered in this run.
    pub(crate) fn is_unnumbered(&self, agent: &str) -> bool {
        !self.state.lock().agents.contains_key(agent)
    }

    /// Notes that a flush of an agent will never be sent.
    pub(crate) fn skip_number(&self, agent: &str) {
        let mut state = self.state.lock();
        let last = state.agents.entry(agent.to_owned()).or_default();
        *last = LastFlushNumber { last_job: None, last_number: last.last_number + 1 };
    }
}

/// Writes a name as one short word of visible ASCII.
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
