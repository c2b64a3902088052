//! The signals that end a command that serves, or make it reopen its logs.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tympan_terminal::CommandFault;

/// Handlers of the signals to end and to reopen logs, active from creation: no process reports ready before.
pub(crate) struct ProcessSignals {
    interrupt_signal: Signal,
    terminate_signal: Signal,
    hangup_signal: Option<Signal>,
}

impl ProcessSignals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn listen() -> Result<Self, CommandFault> {
        let listen = |kind| {
            signal(kind).map_err(|error| {
                CommandFault::cannot_run(format!("cannot listen for signals: {error}"))
            })
        };
        Ok(Self {
            interrupt_signal: listen(SignalKind::interrupt())?,
            terminate_signal: listen(SignalKind::terminate())?,
            hangup_signal: None,
        })
    }

    /// Also handles SIGHUP, the request to reopen logs, which ends a process without a handler.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn with_hangup(self) -> Result<Self, CommandFault> {
        let hangup = signal(SignalKind::hangup()).map_err(|error| {
            CommandFault::cannot_run(format!("cannot listen for signals: {error}"))
        })?;
        Ok(Self { hangup_signal: Some(hangup), ..self })
    }

    /// Waits for a signal to end the process.
    pub(crate) async fn wait_for_end(&mut self) {
        self.wait_for_end_or_hangup(|| {}).await;
    }

    /// Waits for a signal to end the process; `reopen` reopens its logs on each SIGHUP.
    pub(crate) async fn wait_for_end_or_hangup(&mut self, reopen: impl Fn()) {
        let Self {
            interrupt_signal: interrupt,
            terminate_signal: terminate,
            hangup_signal: hangup,
        } = self;
        loop {
            let hung_up = async {
                match hangup {
                    Some(hangup) => hangup.recv().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = interrupt.recv() => return,
                _ = terminate.recv() => return,
                _ = hung_up => reopen(),
            }
        }
    }
}
