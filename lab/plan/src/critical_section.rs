//! Critical sections: among all threads, only one at a time is inside sections of the same name.
//!
//! Invariants
//! * A thread may reenter a section that it is in already.
//! * A thread that ends, abandons its iteration or is dropped leaves all its sections.
//!
//! Not here: threads of other processes; each process has sections of its own, as JMeter's servers do.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// True if a thread is inside.
type CriticalSectionFlag = Arc<AtomicBool>;

/// The sections of a run, by name.
#[derive(Debug, Default)]
pub struct CriticalSections(Mutex<HashMap<String, CriticalSectionFlag>>);

/// The sections that a thread is in, the innermost last.
#[derive(Debug, Default)]
pub struct EnteredSections(Vec<CriticalSectionFlag>);

impl EnteredSections {
    /// Enters a section; returns false if another thread is inside.
    pub fn enter(&mut self, sections: &CriticalSections, name: &str) -> bool {
        let gate = {
            let mut gates = sections.0.lock().unwrap_or_else(PoisonError::into_inner);
            match gates.get(name) {
                Some(gate) => Arc::clone(gate),
                None => Arc::clone(gates.entry(name.to_owned()).or_default()),
            }
        };
        let is_inside = self.0.iter().any(|entered| Arc::ptr_eq(entered, &gate));
        let may = is_inside
            || gate.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if may {
            self.0.push(gate);
        }
        may
    }

    /// Leaves the innermost section.
    pub fn leave(&mut self) {
        let Some(gate) = self.0.pop() else { return };
        if !self.0.iter().any(|entered| Arc::ptr_eq(entered, &gate)) {
            gate.store(false, Ordering::Release);
        }
    }

    /// Leaves all sections.
    pub fn leave_all(&mut self) {
        while !self.0.is_empty() {
            self.leave();
        }
    }
}

impl Drop for EnteredSections {
    fn drop(&mut self) {
        self.leave_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_is_inside() {
        let sections = CriticalSections::default();
        let (mut first, mut second) = (EnteredSections::default(), EnteredSections::default());
        assert!(first.enter(&sections, "a") && first.enter(&sections, "a"));
        assert!(!second.enter(&sections, "a") && second.enter(&sections, "b"));
        first.leave();
        assert!(!second.enter(&sections, "a"));
        first.leave();
        assert!(second.enter(&sections, "a"));
        drop(second);
        assert!(first.enter(&sections, "a") && first.enter(&sections, "b"));
    }
}
