//! Connects a controller to its agents: processes that it starts, locally or through `ssh`, and agents that dial in.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tls_stream::ControllerTlsEndpoint;
use super::token::FleetToken;
use crate::{Error, Result};

/// The location where the controller starts an agent.
#[derive(Debug, Clone)]
pub enum AgentPlacement {
    /// On this machine.
    Local {
        /// The program to run with `lab agent --stdio`.
        program: PathBuf,
    },
    /// On a host, through the system's `ssh`.
    Ssh {
        /// The `ssh` program or a substitute.
        ssh_program: OsString,
        /// `[user@]host`, as `ssh` takes it.
        host: String,
        /// The path of the program on that host.
        program: String,
    },
}

/// A connection to one agent.
pub(super) struct AgentConnection {
    /// The display name.
    pub(super) name: String,
    pub(super) reader: Box<dyn Read + Send>,
    pub(super) writer: Box<dyn Write + Send>,
    /// The portion intended for this agent; if `None`, the agent may request one.
    pub(super) portion_index: Option<usize>,
    pub(super) process: Option<AgentProcess>,
}

/// A child process that is terminated when this value is dropped.
#[derive(Debug)]
pub(super) struct AgentProcess(Child);

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // An agent exits when its input ends; one that does not is killed.
        for _ in 0..100 {
            if !matches!(self.0.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts an agent at the given placement.
///
/// # Errors
/// [`Error::FleetConnection`] if the process does not start.
pub(super) fn start_agent(placement: &AgentPlacement, index: usize) -> Result<AgentConnection> {
    let (name, mut command) = match placement {
        AgentPlacement::Local { program } => {
            let mut command = Command::new(program);
            command.args(["agent", "--stdio"]);
            ("this machine".to_owned(), command)
        }
        AgentPlacement::Ssh { ssh_program, host, program } => {
            // Otherwise the name could be parsed as an option of ssh.
            if host.starts_with('-') || host.is_empty() {
                return Err(Error::UnusableInput(format!("invalid host `{host}`")));
            }
            let mut command = Command::new(ssh_program);
            command.args(["-o", "BatchMode=yes", host, program, "lab", "agent", "--stdio"]);
            (host.clone(), command)
        }
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| {
            let program = command.get_program().to_string_lossy().into_owned();
            Error::FleetConnection(format!(
                "cannot start agent {} with `{program}`: {error}",
                index + 1
            ))
        })?;
    let (input, output) = (child.stdout.take(), child.stdin.take());
    let (Some(input), Some(output)) = (input, output) else {
        return Err(Error::FleetConnection(format!("agent {} has no input or output", index + 1)));
    };
    Ok(AgentConnection {
        name: format!("agent {} ({name})", index + 1),
        reader: Box::new(input),
        writer: Box::new(output),
        portion_index: Some(index),
        process: Some(AgentProcess(child)),
    })
}

/// Maximum number of concurrent handshakes.
const MAX_PENDING_HANDSHAKES: usize = 64;

/// Accepts agents until the receiver of their connections is dropped.
///
/// # Errors
/// [`Error::Tls`].
pub(super) fn accept_agents(
    listener: TcpListener,
    token: FleetToken,
    take: impl Fn(AgentConnection) -> bool + Send + Sync + 'static,
) -> Result<()> {
    let host = ControllerTlsEndpoint::with_new_certificate()?;
    let take = Arc::new(take);
    let guests = Arc::new(AtomicUsize::new(0));
    let door = move || {
        for socket in listener.incoming() {
            let Ok(socket) = socket else { continue };
            if guests.load(Ordering::SeqCst) >= MAX_PENDING_HANDSHAKES {
                continue;
            }
            guests.fetch_add(1, Ordering::SeqCst);
            let (host, token, take, present) =
                (host.clone(), token.clone(), Arc::clone(&take), Arc::clone(&guests));
            let greet = move || {
                let from = socket.peer_addr().map_or_else(|_| "?".to_owned(), |at| at.to_string());
                // A peer that does not know the token is disconnected without a message.
                if let Ok((input, output)) = host.accept_agent(socket, &token) {
                    take(AgentConnection {
                        name: format!("agent at {from}"),
                        reader: Box::new(input),
                        writer: Box::new(output),
                        portion_index: None,
                        process: None,
                    });
                }
                present.fetch_sub(1, Ordering::SeqCst);
            };
            std::thread::Builder::new().name("guest".to_owned()).spawn(greet).ok();
        }
    };
    std::thread::Builder::new().name("door".to_owned()).spawn(door).map_err(Error::Engine)?;
    Ok(())
}
