//! Channels to one host: as few as do, over as few connections as the host allows, opened when they are needed, and again
//! when they break.
//!
//! A channel carries any number of short calls at once, or one long one, as each further channel costs two round trips.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use russh_sftp::client::error::Error as SftpError;
use russh_sftp::client::{Config, RawSftpSession};
use russh_sftp::protocol::StatusCode;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::connection::{SshConnection, connect_ssh, failure_from_ssh_error};
use super::{SftpAddress, SftpOptions};

/// A request that is not answered for so long has broken the channel; a slow link has much on its way.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(3);
/// How often it is looked whether a connection is still there that work waits for.
const CONNECTION_POLL_INTERVAL: Duration = Duration::from_millis(200);
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Why something did not work.
#[derive(Debug)]
pub(super) enum SftpFailure {
    /// The connection is gone: on another one it may work.
    ConnectionLost(io::Error),
    /// The host, or this side, says no.
    Rejected(io::Error),
}

impl SftpFailure {
    pub(super) fn connection_lost(kind: ErrorKind, text: String) -> Self {
        Self::ConnectionLost(io::Error::new(kind, text))
    }

    /// Returns the same for somebody else who was waiting for it.
    fn duplicate(&self) -> Self {
        let same = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        match self {
            Self::ConnectionLost(error) => Self::ConnectionLost(same(error)),
            Self::Rejected(error) => Self::Rejected(same(error)),
        }
    }

    pub(super) fn kind(&self) -> ErrorKind {
        let (Self::ConnectionLost(error) | Self::Rejected(error)) = self;
        error.kind()
    }
}

impl From<SftpError> for SftpFailure {
    fn from(error: SftpError) -> Self {
        let SftpError::Status(status) = &error else {
            let kind = match error {
                SftpError::Timeout => ErrorKind::TimedOut,
                _ => ErrorKind::ConnectionReset,
            };
            return Self::connection_lost(kind, format!("the connection is gone: {error}"));
        };
        let kind = match status.status_code {
            StatusCode::NoSuchFile => ErrorKind::NotFound,
            StatusCode::PermissionDenied => ErrorKind::PermissionDenied,
            StatusCode::Eof => ErrorKind::UnexpectedEof,
            StatusCode::OpUnsupported => ErrorKind::Unsupported,
            StatusCode::NoConnection | StatusCode::ConnectionLost => {
                return Self::connection_lost(ErrorKind::ConnectionReset, error.to_string());
            }
            StatusCode::Ok | StatusCode::Failure | StatusCode::BadMessage => ErrorKind::Other,
        };
        Self::Rejected(io::Error::new(kind, format!("the host says: {}", status.error_message)))
    }
}

/// What a host can do beyond what all can.
#[derive(Clone, Copy, Debug)]
pub(super) struct SftpCapabilities {
    /// Whether files can be synced.
    pub(super) can_sync: bool,
    /// Whether a rename can replace what is there.
    pub(super) can_replace: bool,
}

/// A channel that speaks SFTP.
pub(super) struct SftpChannel {
    pub(super) sftp: Arc<RawSftpSession>,
    /// What the host has said that it can do; requests are sent before it has.
    capabilities: watch::Receiver<Option<SftpCapabilities>>,
    connection: Arc<SshConnection>,
}

impl SftpChannel {
    /// Returns what the host can do, once it has said so.
    pub(super) async fn capabilities(&self) -> Result<SftpCapabilities, SftpFailure> {
        let mut told = self.capabilities.clone();
        let told = told.wait_for(Option::is_some).await.ok().and_then(|told| *told);
        let silent = || "the host does not speak SFTP".to_owned();
        told.ok_or_else(|| SftpFailure::connection_lost(ErrorKind::ConnectionReset, silent()))
    }
}

/// How long a call keeps a channel busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SftpCallLoad {
    /// A few requests and a few bytes.
    Short,
    /// Many bytes.
    Long,
}

/// A channel, and the calls that use it.
struct SftpChannelSlot {
    channel: Arc<SftpChannel>,
    short_calls: usize,
    long_calls: usize,
}

impl SftpChannelSlot {
    const fn calls_of_load(&mut self, load: SftpCallLoad) -> &mut usize {
        match load {
            SftpCallLoad::Short => &mut self.short_calls,
            SftpCallLoad::Long => &mut self.long_calls,
        }
    }
}

#[derive(Default)]
struct SftpLinkState {
    connection: Option<Arc<SshConnection>>,
    slots: Vec<SftpChannelSlot>,
    /// Why the last channel could not be opened.
    last_failure: Option<SftpFailure>,
}

impl SftpLinkState {
    /// Finds an open channel for a call; nothing if one more is to be opened.
    fn find_available_slot(
        &mut self,
        load: SftpCallLoad,
        most: usize,
    ) -> Option<&mut SftpChannelSlot> {
        self.slots.retain(|slot| !slot.channel.connection.is_closed());
        let is_full = self.slots.len() >= most;
        let fits = |slot: &SftpChannelSlot| match load {
            SftpCallLoad::Short => slot.long_calls == 0,
            SftpCallLoad::Long => slot.long_calls + slot.short_calls == 0,
        };
        let fitting = self.slots.iter_mut().filter(|slot| is_full || fits(slot));
        fitting.min_by_key(|slot| (slot.long_calls, slot.short_calls))
    }

    /// Forgets a connection that broke.
    fn remove_connection(&mut self, connection: &Arc<SshConnection>) {
        self.slots.retain(|slot| !Arc::ptr_eq(&slot.channel.connection, connection));
        if self.connection.as_ref().is_some_and(|one| Arc::ptr_eq(one, connection)) {
            self.connection = None;
        }
    }
}

/// The way to a host.
pub(super) struct SftpLink {
    address: SftpAddress,
    options: Arc<SftpOptions>,
    /// Taken when the link goes.
    runtime: Option<Runtime>,
    /// For long calls.
    long_call_permits: Semaphore,
    state: Mutex<SftpLinkState>,
    was_connected: Arc<AtomicBool>,
    reconnects: AtomicU64,
    /// How often no channel could be opened.
    failed_opens: AtomicU64,
}

impl std::fmt::Debug for SftpLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SftpLink").field("address", &self.address).finish_non_exhaustive()
    }
}

impl SftpLink {
    pub(super) fn new(address: SftpAddress, options: SftpOptions) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("sftp")
            .enable_all()
            .build()?;
        let permits = Semaphore::new(options.connections.max(1));
        let (state, options) = (Mutex::default(), Arc::new(options));
        let was_connected = Arc::new(AtomicBool::new(false));
        let (reconnects, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self {
            address,
            options,
            runtime: Some(runtime),
            long_call_permits: permits,
            state,
            was_connected,
            reconnects,
            failed_opens: failures,
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
    pub(super) fn run_with_retries<T, W, F>(&self, load: SftpCallLoad, work: W) -> io::Result<T>
    where
        W: Fn(Arc<SftpChannel>) -> F,
        F: Future<Output = Result<T, SftpFailure>>,
    {
        let gone = || io::Error::other("the link is closed");
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        runtime.block_on(async {
            let _permit = match load {
                SftpCallLoad::Short => None,
                SftpCallLoad::Long => Some(self.long_call_permits.acquire().await.map_err(|_| gone())?),
            };
            let mut since = Instant::now();
            let mut wait = INITIAL_BACKOFF;
            loop {
                let tried = Instant::now();
                let error = match self.try_once(load, &work).await {
                    Ok(value) => return Ok(value),
                    Err(SftpFailure::Rejected(error)) => return Err(error),
                    Err(SftpFailure::ConnectionLost(error)) => error,
                };
                // A host that was never reached is more likely named wrongly than gone for a moment.
                let was_connected = self.was_connected.load(Ordering::Relaxed);
                // Patience begins when the connection breaks, however long it worked before.
                if tried.elapsed() > MAX_BACKOFF {
                    (since, wait) = (Instant::now(), INITIAL_BACKOFF);
                }
                if !was_connected || since.elapsed() + wait > self.options.retry_timeout {
                    return Err(error);
                }
                warn!(%error, host = %self.address.host, wait_ms = wait.as_millis(), "a connection broke; connecting again");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(MAX_BACKOFF);
            }
        })
    }

    /// Does some work that nobody waits for yet.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        Some(self.runtime.as_ref()?.spawn(work))
    }

    /// Waits for some work that does without a channel, or has its own.
    pub(super) fn block_on_runtime<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        Some(self.runtime.as_ref()?.block_on(work))
    }

    /// As [`SftpLink::run_with_retries`], once.
    pub(super) async fn try_once<T, F>(
        &self,
        load: SftpCallLoad,
        work: impl FnOnce(Arc<SftpChannel>) -> F,
    ) -> Result<T, SftpFailure>
    where
        F: Future<Output = Result<T, SftpFailure>>,
    {
        let channel = self.acquire_channel(load).await?;
        // A request that is sent while its connection ends may be forgotten: nobody would answer it.
        let done = tokio::select! {
            done = work(channel.clone()) => done,
            () = wait_until_closed(&channel.connection) => {
                Err(SftpFailure::connection_lost(ErrorKind::ConnectionReset, "the connection is gone".to_owned()))
            }
        };
        let mut state = self.state.lock().await;
        if matches!(done, Err(SftpFailure::ConnectionLost(_))) {
            state.remove_connection(&channel.connection);
        } else if let Some(slot) =
            state.slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.channel, &channel))
        {
            let count = slot.calls_of_load(load);
            *count = count.saturating_sub(1);
        }
        done
    }

    /// Returns a channel that has room for a call, or opens one.
    async fn acquire_channel(&self, load: SftpCallLoad) -> Result<Arc<SftpChannel>, SftpFailure> {
        let failures = self.failed_opens.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        // Who waited while somebody else could not reach the host does not try it once more.
        if self.failed_opens.load(Ordering::Relaxed) != failures
            && let Some(failure) = &state.last_failure
        {
            return Err(failure.duplicate());
        }
        if let Some(slot) = state.find_available_slot(load, self.options.connections.max(1)) {
            *slot.calls_of_load(load) += 1;
            return Ok(slot.channel.clone());
        }
        let channel = match self.open_channel(&mut state).await {
            Ok(channel) => Arc::new(channel),
            Err(failure) => {
                state.last_failure = Some(failure.duplicate());
                self.failed_opens.fetch_add(1, Ordering::Relaxed);
                return Err(failure);
            }
        };
        let mut slot = SftpChannelSlot { channel: channel.clone(), short_calls: 0, long_calls: 0 };
        *slot.calls_of_load(load) += 1;
        state.slots.push(slot);
        Ok(channel)
    }

    async fn open_channel(&self, state: &mut SftpLinkState) -> Result<SftpChannel, SftpFailure> {
        let known = state.connection.take().filter(|known| !known.is_closed());
        if let Some(connection) = known {
            match self.open_channel_over(&connection).await {
                Ok(channel) => {
                    state.connection = Some(connection);
                    return Ok(channel);
                }
                // A host may bound the channels of a connection; then a further connection carries more.
                Err(error) => {
                    let reason = format!("{error:?}");
                    debug!(reason, "a connection takes no further channel");
                }
            }
        }
        let connection = Arc::new(connect_ssh(&self.address, &self.options).await?);
        let channel = self.open_channel_over(&connection).await?;
        if self.was_connected.load(Ordering::Relaxed) {
            self.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        state.connection = Some(connection);
        Ok(channel)
    }

    /// Opens a channel, unless the connection ends meanwhile.
    async fn open_channel_over(
        &self,
        connection: &Arc<SshConnection>,
    ) -> Result<SftpChannel, SftpFailure> {
        tokio::select! {
            opened = self.start_sftp_session(connection) => opened,
            () = wait_until_closed(connection) => {
                Err(SftpFailure::connection_lost(ErrorKind::ConnectionReset, "the connection is gone".to_owned()))
            }
        }
    }

    async fn start_sftp_session(
        &self,
        connection: &Arc<SshConnection>,
    ) -> Result<SftpChannel, SftpFailure> {
        let broken = |error| failure_from_ssh_error(&self.address.host, &error);
        let channel = connection.channel_open_session().await.map_err(broken)?;
        channel.request_subsystem(true, "sftp").await.map_err(broken)?;
        let config =
            Config { request_timeout_secs: REQUEST_TIMEOUT.as_secs(), ..Config::default() };
        let sftp = Arc::new(RawSftpSession::new_with_config(channel.into_stream(), config));
        let greeter = sftp.clone();
        let mut greeting = Box::pin(async move { greeter.init().await });
        // The greeting is sent before anything else; the host answers in that order, too.
        let first = std::future::poll_fn(|context| Poll::Ready(greeting.as_mut().poll(context)));
        let first = first.await;
        let (tell, abilities) = watch::channel(None);
        let was_connected = self.was_connected.clone();
        tokio::spawn(async move {
            let version = match first {
                Poll::Ready(version) => version,
                Poll::Pending => greeting.await,
            };
            let Ok(version) = version else { return };
            was_connected.store(true, Ordering::Relaxed);
            let has = |name: &str| version.extensions.contains_key(name);
            tell.send_replace(Some(SftpCapabilities {
                can_sync: has("fsync@openssh.com"),
                can_replace: has("posix-rename@openssh.com"),
            }));
        });
        Ok(SftpChannel { sftp, capabilities: abilities, connection: connection.clone() })
    }
}

impl Drop for SftpLink {
    fn drop(&mut self) {
        // Not waiting for anything, so that a link may be dropped anywhere.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits until a connection is closed.
async fn wait_until_closed(connection: &SshConnection) {
    while !connection.is_closed() {
        tokio::time::sleep(CONNECTION_POLL_INTERVAL).await;
    }
}
