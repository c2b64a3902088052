//! Signals that interrupt a command: it stops its work, releases its locks, and reports that it was interrupted.
//!
//! Input: SIGINT, SIGTERM and SIGHUP. Output: stopped runs, and a flag that callers can check.
//!
//! Invariants
//! * A signal that this process was started to ignore, as by `nohup`, has no effect.
//! * A second SIGINT, at least one second later, ends the process immediately.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tympan_backup::BackupProgress;
use tympan_terminal::CommandFault;

/// The exit code of a command that was interrupted.
pub(super) const INTERRUPTED_EXIT_CODE: u8 = 130;
/// Two signals within this time count as one: a terminal, a shell and a supervisor may all forward it.
const SIGNAL_DEBOUNCE: Duration = Duration::from_secs(1);

static INTERRUPT_STATE: Mutex<InterruptState> = Mutex::new(InterruptState {
    is_listening: false,
    is_interrupted: false,
    stop_callbacks: Vec::new(),
});

/// A callback that runs on an interrupt.
type StopCallback = Box<dyn Fn() + Send>;

struct InterruptState {
    is_listening: bool,
    is_interrupted: bool,
    stop_callbacks: Vec<StopCallback>,
}

/// Handles signals from now on: they no longer end the process by themselves.
///
/// # Errors
/// If the system refuses.
pub(super) fn listen_for_interrupts() -> Result<(), CommandFault> {
    let mut state = INTERRUPT_STATE.lock();
    if state.is_listening {
        return Ok(());
    }
    let runtime = crate::command::runtime::create_runtime(1)?;
    let ignored = ignored_signals();
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        if (ignored >> (kind.as_raw_value() - 1)) & 1 == 1 {
            continue;
        }
        let _entered = runtime.enter();
        let cannot =
            |error| CommandFault::cannot_run(format!("cannot listen for signals: {error}"));
        signals.push((kind, signal(kind).map_err(cannot)?));
    }
    std::thread::spawn(move || runtime.block_on(receive_signals(signals)));
    state.is_listening = true;
    Ok(())
}

/// Returns true if the process was interrupted.
pub(super) fn is_interrupted() -> bool {
    INTERRUPT_STATE.lock().is_interrupted
}

/// Stops a run on an interrupt, or at once if there was one already.
///
/// # Errors
/// As [`listen_for_interrupts`].
pub(super) fn stop_on_interrupt(progress: &Arc<BackupProgress>) -> Result<(), CommandFault> {
    let progress: Weak<BackupProgress> = Arc::downgrade(progress);
    call_on_interrupt(Box::new(move || {
        if let Some(progress) = progress.upgrade() {
            progress.request_stop();
        }
    }))
}

/// Calls a function at each interrupt, and at once if there was one already.
///
/// # Errors
/// As [`listen_for_interrupts`].
pub(super) fn call_on_interrupt(stop: StopCallback) -> Result<(), CommandFault> {
    listen_for_interrupts()?;
    let mut state = INTERRUPT_STATE.lock();
    if state.is_interrupted {
        stop();
    }
    state.stop_callbacks.push(stop);
    Ok(())
}

/// Returns the fault of a command that was interrupted.
pub(super) fn interrupted_fault() -> CommandFault {
    CommandFault::with_code("interrupted".to_owned(), INTERRUPTED_EXIT_CODE)
}

/// Returns a bit set of the signals that this process has ignored since its start; empty if the system does not report
/// them.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

async fn receive_signals(mut signals: Vec<(SignalKind, Signal)>) {
    let mut first: Option<Instant> = None;
    loop {
        let kind = poll_fn(|context| {
            let received_kind = signals
                .iter_mut()
                .find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            received_kind.map_or(Poll::Pending, Poll::Ready)
        });
        let kind = kind.await;
        if kind == SignalKind::interrupt()
            && first.is_some_and(|first| first.elapsed() > SIGNAL_DEBOUNCE)
        {
            exit_immediately();
        }
        first.get_or_insert_with(Instant::now);
        let mut state = INTERRUPT_STATE.lock();
        state.is_interrupted = true;
        state.stop_callbacks.iter().for_each(|stop| stop());
    }
}

#[expect(clippy::exit, reason = "a second interrupt does not wait for operations that may hang")]
fn exit_immediately() -> ! {
    std::process::exit(INTERRUPTED_EXIT_CODE.into())
}
