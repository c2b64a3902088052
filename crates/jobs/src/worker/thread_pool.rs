//! The threads on which handlers run: as many as needed, up to a limit, none while nothing runs.
//!
//! They are separate from the threads of the async runtime, so that a handler that does not stop cannot prevent the
//! process from exiting.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

type PoolTask = Box<dyn FnOnce() + Send>;

/// Time after which an idle thread ends.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A bounded pool of threads.
pub(crate) struct ThreadPool {
    shared: Arc<ThreadPoolShared>,
    max_threads: usize,
}

struct ThreadPoolShared {
    state: Mutex<ThreadPoolState>,
    task_ready: Condvar,
}

#[derive(Default)]
struct ThreadPoolState {
    tasks: VecDeque<PoolTask>,
    thread_count: usize,
    idle_count: usize,
}

impl ThreadPool {
    pub(crate) fn new(max: usize) -> Self {
        let shared = ThreadPoolShared { state: Mutex::default(), task_ready: Condvar::new() };
        Self { shared: Arc::new(shared), max_threads: max.max(1) }
    }

    /// Runs a task on a thread. If all threads are busy, the task waits.
    pub(crate) fn run_task(&self, task: PoolTask) -> std::io::Result<()> {
        let mut state = self.shared.state.lock();
        state.tasks.push_back(task);
        if state.idle_count >= state.tasks.len() || state.thread_count >= self.max_threads {
            drop(state);
            self.shared.task_ready.notify_one();
            return Ok(());
        }
        state.thread_count += 1;
        drop(state);
        let shared = self.shared.clone();
        let spawned = std::thread::Builder::new()
            .name("job".to_owned())
            .spawn(move || shared.run_worker_thread());
        if let Err(error) = spawned {
            let mut state = self.shared.state.lock();
            state.thread_count -= 1;
            if state.thread_count == 0 {
                state.tasks.clear();
                return Err(error);
            }
        }
        Ok(())
    }
}

impl ThreadPoolShared {
    fn run_worker_thread(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                task();
                state = self.state.lock();
                continue;
            }
            state.idle_count += 1;
            let waited = self.task_ready.wait_for(&mut state, IDLE_THREAD_TIMEOUT);
            state.idle_count -= 1;
            if waited.timed_out() && state.tasks.is_empty() {
                state.thread_count -= 1;
                return;
            }
        }
    }
}
