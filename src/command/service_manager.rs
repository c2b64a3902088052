//! What a serving process tells the service manager that started it, by the protocol `sd_notify` of systemd.
//!
//! Invariants
//! * A process that no service manager started tells nobody anything.
//! * "Ready" is told when the program prints `ready`: all listeners are bound and serve.
//!
//! On failure: a message that cannot be sent is logged; serving does not depend on it.

use std::time::Duration;

use sd_notify::NotifyState;

/// Tells that the process serves, and from now on that its runtime is alive, if the service manager watches that.
pub(crate) fn report_ready(status: &str) {
    tympan_web::passed_socket::warn_of_unused_sockets();
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
    if let Some(limit) = sd_notify::watchdog_enabled() {
        tokio::spawn(send_signs_of_life(limit / 2));
    }
}

/// Tells that the process stops: it completes open requests.
pub(crate) fn report_stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("completing open requests")]);
}

/// Tells that the process reloads its files, and that it has done so when the result is dropped.
pub(crate) fn report_reloading() -> ReloadReport {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        // Newer service managers fail a reload without the time; then none is announced.
        Err(error) => tracing::warn!(reason = %error, "cannot read the monotonic clock"),
    }
    ReloadReport(())
}

/// A reload that the service manager was told of.
#[must_use = "the reload is over when this is dropped"]
pub(crate) struct ReloadReport(());

impl Drop for ReloadReport {
    fn drop(&mut self) {
        send(&[NotifyState::Ready]);
    }
}

/// A task of the runtime, so that a runtime that makes no progress sends none.
async fn send_signs_of_life(interval: Duration) {
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    loop {
        ticks.tick().await;
        send(&[NotifyState::Watchdog]);
    }
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(reason = %error, "cannot notify the service manager");
    }
}
