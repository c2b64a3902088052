//! The threads on which handlers run: as many as are needed, never more than allowed, none while nothing runs.
//!
//! They are threads of their own rather than those of the async runtime, so that a handler that does not stop cannot keep
//! the process from ending.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

type Task = Box<dyn FnOnce() + Send>;

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);

/// A bounded pool of threads.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    max: usize,
}

struct Shared {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    threads: usize,
    idle: usize,
}

impl Pool {
    pub(crate) fn new(max: usize) -> Self {
        let shared = Shared { state: Mutex::default(), bell: Condvar::new() };
        Self { shared: Arc::new(shared), max: max.max(1) }
    }

    /// Runs a task on a thread; it waits for one if all are busy.
    pub(crate) fn run(&self, task: Task) -> std::io::Result<()> {
        let mut state = self.shared.state.lock();
        state.tasks.push_back(task);
        if state.idle >= state.tasks.len() || state.threads >= self.max {
            drop(state);
            self.shared.bell.notify_one();
            return Ok(());
        }
        state.threads += 1;
        drop(state);
        let shared = self.shared.clone();
        let spawned =
            std::thread::Builder::new().name("job".to_owned()).spawn(move || shared.work());
        if let Err(error) = spawned {
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                state.tasks.clear();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.bell.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if waited.timed_out() && state.tasks.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
