//! Counting the flushes of each agent, so that a dispatcher misses the one that did not arrive.
//!
//! Numbers are consecutive within a run of the process; which run it is goes with them. A flush keeps its number however
//! often it is tried. One that is given up keeps it too, which leaves a gap; and a run begins with a gap where flushes of
//! an earlier one were given up.

use std::collections::BTreeMap;
use std::time::SystemTime;

use parking_lot::Mutex;
use tympan_jobs::JobId;
use tympan_web::flush_message::Numbering;

/// What a process sends under.
#[derive(Debug)]
pub(crate) struct Numbers {
    run: String,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The publisher's name, the same over restarts.
    publisher: String,
    agents: BTreeMap<String, Last>,
}

/// What an agent sent last.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    job: Option<JobId>,
    count: u64,
}

impl Numbers {
    /// Begins a run.
    pub(crate) fn new() -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let run = format!("{:x}-{:x}", since.as_nanos(), std::process::id());
        let publisher = "publish".to_owned();
        Self { run, state: Mutex::new(State { publisher, agents: BTreeMap::new() }) }
    }

    /// Says who sends.
    pub(crate) fn set_publisher(&self, name: &str) {
        self.state.lock().publisher = word(name);
    }

    /// Returns who sends.
    pub(crate) fn publisher(&self) -> String {
        self.state.lock().publisher.clone()
    }

    /// Returns the number of a job of an agent: the next one, or the same as before if it is sent again.
    pub(crate) fn of(&self, agent: &str, job: JobId) -> Numbering {
        let mut state = self.state.lock();
        let last = state.agents.entry(agent.to_owned()).or_default();
        if last.job != Some(job) {
            *last = Last { job: Some(job), count: last.count + 1 };
        }
        let count = last.count;
        let source = format!("{}/{}", state.publisher, word(agent));
        Numbering { source, run: self.run.clone(), count }
    }

    /// Tells whether nothing of an agent was numbered in this run.
    pub(crate) fn is_new(&self, agent: &str) -> bool {
        !self.state.lock().agents.contains_key(agent)
    }

    /// Notes that a flush of an agent will never be sent.
    pub(crate) fn skip(&self, agent: &str) {
        let mut state = self.state.lock();
        let last = state.agents.entry(agent.to_owned()).or_default();
        *last = Last { job: None, count: last.count + 1 };
    }
}

/// Writes a name as one short word of visible ASCII.
fn word(name: &str) -> String {
    let visible = |char: char| if char.is_ascii_graphic() { char } else { '_' };
    name.chars().take(80).map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::Numbers;
    use tympan_jobs::JobId;

    #[test]
    fn a_job_keeps_its_number_and_a_lost_one_leaves_a_gap() {
        let numbers = Numbers::new();
        assert!(numbers.is_new("a"));
        let count = |agent, job| numbers.of(agent, JobId(job)).count;
        assert_eq!([count("a", 5), count("a", 5), count("a", 9), count("b", 7)], [1, 1, 2, 1]);
        assert!(!numbers.is_new("a"));
        numbers.skip("a");
        assert_eq!(count("a", 9), 4);
        numbers.set_publisher("p 1\u{e4}");
        let sent = numbers.of("flush agent", JobId(1));
        assert_eq!(sent.source, "p_1_/flush_agent");
        assert_ne!(sent.run, Numbers::new().run);
    }
}
