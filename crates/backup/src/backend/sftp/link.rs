//! Channels to one host: as many as may be in use at once, over as few connections as the host allows, opened when they
//! are needed, and again when they break.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use russh_sftp::client::error::Error as SftpError;
use russh_sftp::client::{Config, RawSftpSession};
use russh_sftp::protocol::StatusCode;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Semaphore};
use tracing::{debug, warn};

use super::connect::{Connection, connect, of_ssh};
use super::{SftpAddress, SftpOptions};

/// A request that is not answered for so long has broken the channel; a slow link has much on its way.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(3);
/// How often it is looked whether a connection is still there that work waits for.
const LOOK: Duration = Duration::from_millis(200);
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Why something did not work.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is gone: on another one it may work.
    Broken(io::Error),
    /// The host, or this side, says no.
    Said(io::Error),
}

impl Failure {
    pub(super) fn broken(kind: ErrorKind, text: String) -> Self {
        Self::Broken(io::Error::new(kind, text))
    }

    pub(super) fn kind(&self) -> ErrorKind {
        let (Self::Broken(error) | Self::Said(error)) = self;
        error.kind()
    }
}

impl From<SftpError> for Failure {
    fn from(error: SftpError) -> Self {
        let SftpError::Status(status) = &error else {
            let kind = match error {
                SftpError::Timeout => ErrorKind::TimedOut,
                _ => ErrorKind::ConnectionReset,
            };
            return Self::broken(kind, format!("the connection is gone: {error}"));
        };
        let kind = match status.status_code {
            StatusCode::NoSuchFile => ErrorKind::NotFound,
            StatusCode::PermissionDenied => ErrorKind::PermissionDenied,
            StatusCode::Eof => ErrorKind::UnexpectedEof,
            StatusCode::OpUnsupported => ErrorKind::Unsupported,
            StatusCode::NoConnection | StatusCode::ConnectionLost => {
                return Self::broken(ErrorKind::ConnectionReset, error.to_string());
            }
            StatusCode::Ok | StatusCode::Failure | StatusCode::BadMessage => ErrorKind::Other,
        };
        Self::Said(io::Error::new(kind, format!("the host says: {}", status.error_message)))
    }
}

/// A channel that speaks SFTP.
pub(super) struct Channel {
    pub(super) sftp: RawSftpSession,
    /// Whether files can be synced.
    pub(super) can_sync: bool,
    /// Whether a rename can replace what is there.
    pub(super) can_replace: bool,
    connection: Arc<Connection>,
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    idle: Vec<Arc<Channel>>,
}

/// The way to a host.
pub(super) struct Link {
    address: SftpAddress,
    options: Arc<SftpOptions>,
    /// Taken when the link goes.
    runtime: Option<Runtime>,
    permits: Semaphore,
    state: Mutex<State>,
    was_connected: AtomicBool,
    reconnects: AtomicU64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(address: SftpAddress, options: SftpOptions) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sftp")
            .enable_all()
            .build()?;
        let permits = Semaphore::new(options.connections.max(1));
        let (state, options) = (Mutex::default(), Arc::new(options));
        let was_connected = AtomicBool::new(false);
        let reconnects = AtomicU64::new(0);
        Ok(Self {
            address,
            options,
            runtime: Some(runtime),
            permits,
            state,
            was_connected,
            reconnects,
        })
    }

    pub(super) fn options(&self) -> &SftpOptions {
        &self.options
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects.load(Ordering::Relaxed)
    }

    /// Does some work over a channel; from the start over another one, if the channel breaks. So the work must bear being
    /// done twice.
    pub(super) fn run<T, W, F>(&self, work: W) -> io::Result<T>
    where
        W: Fn(Arc<Channel>) -> F,
        F: Future<Output = Result<T, Failure>>,
    {
        let gone = || io::Error::other("the link is closed");
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        runtime.block_on(async {
            let _permit = self.permits.acquire().await.map_err(|_| gone())?;
            let mut since = Instant::now();
            let mut wait = FIRST_WAIT;
            loop {
                let tried = Instant::now();
                let error = match self.try_once(&work).await {
                    Ok(value) => return Ok(value),
                    Err(Failure::Said(error)) => return Err(error),
                    Err(Failure::Broken(error)) => error,
                };
                // A host that was never reached is more likely named wrongly than gone for a moment.
                let was_connected = self.was_connected.load(Ordering::Relaxed);
                // Patience begins when the connection breaks, however long it worked before.
                if tried.elapsed() > LONGEST_WAIT {
                    (since, wait) = (Instant::now(), FIRST_WAIT);
                }
                if !was_connected || since.elapsed() + wait > self.options.patience {
                    return Err(error);
                }
                warn!(%error, host = %self.address.host, wait_ms = wait.as_millis(), "a connection broke; connecting again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        })
    }

    async fn try_once<T, F>(&self, work: impl Fn(Arc<Channel>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let channel = self.channel().await?;
        // A request that is sent while its connection ends may be forgotten: nobody would answer it.
        let done = tokio::select! {
            done = work(channel.clone()) => done,
            () = gone(&channel.connection) => {
                Err(Failure::broken(ErrorKind::ConnectionReset, "the connection is gone".to_owned()))
            }
        };
        let mut state = self.state.lock().await;
        if matches!(done, Err(Failure::Broken(_))) {
            let is_that = |one: &Arc<Connection>| Arc::ptr_eq(one, &channel.connection);
            if state.connection.as_ref().is_some_and(is_that) {
                state.connection = None;
            }
        } else {
            state.idle.push(channel);
        }
        done
    }

    /// Returns a channel that nobody uses, or opens one.
    async fn channel(&self) -> Result<Arc<Channel>, Failure> {
        let mut state = self.state.lock().await;
        while let Some(channel) = state.idle.pop() {
            if !channel.connection.is_closed() {
                return Ok(channel);
            }
        }
        let known = state.connection.take().filter(|known| !known.is_closed());
        if let Some(connection) = known {
            match open(&self.address.host, &connection).await {
                Ok(channel) => {
                    state.connection = Some(connection);
                    return Ok(Arc::new(channel));
                }
                // A host may bound the channels of a connection; then a further connection carries more.
                Err(error) => {
                    let reason = format!("{error:?}");
                    debug!(reason, "a connection takes no further channel");
                }
            }
        }
        let connection = Arc::new(connect(&self.address, &self.options).await?);
        let channel = open(&self.address.host, &connection).await?;
        if self.was_connected.swap(true, Ordering::Relaxed) {
            self.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        state.connection = Some(connection);
        Ok(Arc::new(channel))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Not waiting for anything, so that a link may be dropped anywhere.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits until a connection is closed.
async fn gone(connection: &Connection) {
    while !connection.is_closed() {
        tokio::time::sleep(LOOK).await;
    }
}

/// Opens a channel, unless the connection ends meanwhile.
async fn open(host: &str, connection: &Arc<Connection>) -> Result<Channel, Failure> {
    tokio::select! {
        opened = open_over(host, connection) => opened,
        () = gone(connection) => {
            Err(Failure::broken(ErrorKind::ConnectionReset, "the connection is gone".to_owned()))
        }
    }
}

async fn open_over(host: &str, connection: &Arc<Connection>) -> Result<Channel, Failure> {
    let broken = |error| of_ssh(host, &error);
    let channel = connection.channel_open_session().await.map_err(broken)?;
    channel.request_subsystem(true, "sftp").await.map_err(broken)?;
    let config = Config { request_timeout_secs: REQUEST_TIMEOUT.as_secs(), ..Config::default() };
    let sftp = RawSftpSession::new_with_config(channel.into_stream(), config);
    let version = sftp.init().await?;
    let has = |name: &str| version.extensions.contains_key(name);
    Ok(Channel {
        can_sync: has("fsync@openssh.com"),
        can_replace: has("posix-rename@openssh.com"),
        sftp,
        connection: connection.clone(),
    })
}
