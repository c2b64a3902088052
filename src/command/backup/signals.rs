//! Signals that ask a command to end: it stops what it is at, gives back what it holds, and says that it was interrupted.
//!
//! In: SIGINT, SIGTERM and SIGHUP. Out: runs that are told to stop, and whoever asks hears of it.
//!
//! Invariants
//! * A signal that this process was told to ignore when it began, as by `nohup`, asks for nothing.
//! * Whoever is impatient is heard: another SIGINT, a second later, ends the process where it is.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tympan_backup::Progress;

use crate::command::Fault;

/// The exit code of a command that was interrupted.
pub(super) const INTERRUPTED: u8 = 130;
/// Two signals within this time are one wish: a terminal, a shell and a supervisor may all pass it on.
const ONE_WISH: Duration = Duration::from_secs(1);

static STATE: Mutex<State> =
    Mutex::new(State { is_listening: false, is_asked: false, stops: Vec::new() });

/// What is stopped when somebody asks.
type Stop = Box<dyn Fn() + Send>;

struct State {
    is_listening: bool,
    is_asked: bool,
    stops: Vec<Stop>,
}

/// Listens from now on: a signal ends nothing by itself any more.
///
/// # Errors
/// What the system says.
pub(super) fn listen() -> Result<(), Fault> {
    let mut state = STATE.lock();
    if state.is_listening {
        return Ok(());
    }
    let runtime = crate::command::runtime(1)?;
    let ignored = ignored();
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        if (ignored >> (kind.as_raw_value() - 1)) & 1 == 1 {
            continue;
        }
        let _entered = runtime.enter();
        let cannot = |error| Fault::cannot_run(format!("cannot listen for signals: {error}"));
        signals.push((kind, signal(kind).map_err(cannot)?));
    }
    std::thread::spawn(move || runtime.block_on(hear(signals)));
    state.is_listening = true;
    Ok(())
}

/// Tells whether somebody has asked for an end.
pub(super) fn is_asked() -> bool {
    STATE.lock().is_asked
}

/// Stops a run when somebody asks, or now if somebody has.
///
/// # Errors
/// As [`listen`].
pub(super) fn stop_when_asked(progress: &Arc<Progress>) -> Result<(), Fault> {
    let progress: Weak<Progress> = Arc::downgrade(progress);
    when_asked(Box::new(move || {
        if let Some(progress) = progress.upgrade() {
            progress.stop();
        }
    }))
}

/// Calls something at each signal, and now if somebody has asked already.
///
/// # Errors
/// As [`listen`].
pub(super) fn when_asked(stop: Stop) -> Result<(), Fault> {
    listen()?;
    let mut state = STATE.lock();
    if state.is_asked {
        stop();
    }
    state.stops.push(stop);
    Ok(())
}

/// Returns the fault of a command that was interrupted.
pub(super) fn interrupted() -> Fault {
    Fault::with_code("interrupted".to_owned(), INTERRUPTED)
}

/// Returns the signals that this process ignores since it began, as bits; none where the system does not say.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

async fn hear(mut signals: Vec<(SignalKind, Signal)>) {
    let mut first: Option<Instant> = None;
    loop {
        let kind = poll_fn(|context| {
            let heard = signals
                .iter_mut()
                .find_map(|(kind, signal)| signal.poll_recv(context).is_ready().then_some(*kind));
            heard.map_or(Poll::Pending, Poll::Ready)
        });
        let kind = kind.await;
        if kind == SignalKind::interrupt() && first.is_some_and(|first| first.elapsed() > ONE_WISH)
        {
            end_now();
        }
        first.get_or_insert_with(Instant::now);
        let mut state = STATE.lock();
        state.is_asked = true;
        state.stops.iter().for_each(|stop| stop());
    }
}

#[expect(clippy::exit, reason = "whoever asks twice does not wait for what may hang")]
fn end_now() -> ! {
    std::process::exit(INTERRUPTED.into())
}
