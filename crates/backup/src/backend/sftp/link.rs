//! Channels to one host: as few as needed, over as few connections as the host allows. They are opened on demand and
//! reopened when they break.
//!
//! A channel carries any number of short calls at once, or one long one, as each further channel costs two round trips.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use russh_sftp::client::{Config, RawSftpSession};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tracing::{debug, warn};

use super::address::SftpAddress;
use super::connection::{SshConnection, connect_ssh, failure_from_ssh_error};
use super::failure::SftpFailure;
use super::options::SftpOptions;

/// Timeout of a request, after which its channel is treated as broken. It is long because a slow link may have much
/// data in flight.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(3);
/// Interval for checking that a connection is still open while work waits for it.
const CONNECTION_POLL_INTERVAL: Duration = Duration::from_millis(200);
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Optional capabilities of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct SftpCapabilities {
    /// True if files can be synced.
    pub(super) can_sync: bool,
    /// True if a rename can replace an existing file.
    pub(super) can_replace: bool,
}

/// An SFTP channel.
pub(super) struct SftpChannel {
    pub(super) sftp: Arc<RawSftpSession>,
    /// The capabilities that the host announced; requests are sent before they arrive.
    capabilities: watch::Receiver<Option<SftpCapabilities>>,
    connection: Arc<SshConnection>,
}

impl SftpChannel {
    /// Returns the capabilities of the host, waiting until it has announced them.
    pub(super) async fn capabilities(&self) -> Result<SftpCapabilities, SftpFailure> {
        let mut capabilities = self.capabilities.clone();
        let capabilities =
            capabilities.wait_for(Option::is_some).await.ok().and_then(|value| *value);
        let silent = || "the host does not speak SFTP".to_owned();
        capabilities
            .ok_or_else(|| SftpFailure::connection_lost(ErrorKind::ConnectionReset, silent()))
    }
}

/// How long a call occupies a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SftpCallLoad {
    /// A few requests and a few bytes.
    Short,
    /// Many bytes.
    Long,
}

/// A channel and the number of calls that use it.
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
    /// The reason the last channel could not be opened.
    last_failure: Option<SftpFailure>,
}

impl SftpLinkState {
    /// Finds an open channel for a call; `None` if a new one has to be opened.
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

    /// Removes a broken connection.
    fn remove_connection(&mut self, connection: &Arc<SshConnection>) {
        self.slots.retain(|slot| !Arc::ptr_eq(&slot.channel.connection, connection));
        if self.connection.as_ref().is_some_and(|existing| Arc::ptr_eq(existing, connection)) {
            self.connection = None;
        }
    }
}

/// The connections and channels to one host.
pub(super) struct SftpLink {
    address: SftpAddress,
    options: Arc<SftpOptions>,
    /// Taken when the link is dropped.
    runtime: Option<Runtime>,
    /// Permits for long calls.
    long_call_permits: Semaphore,
    state: Mutex<SftpLinkState>,
    was_connected: Arc<AtomicBool>,
    reconnects: AtomicU64,
    /// The number of failed attempts to open a channel.
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

    /// Runs an operation over a channel. If the channel breaks, the operation is run again from the start over another
    /// one, so it must be safe to repeat.
    pub(super) fn run_with_retries<T, W, F>(&self, load: SftpCallLoad, work: W) -> io::Result<T>
    where
        W: Fn(Arc<SftpChannel>) -> F,
        F: Future<Output = Result<T, SftpFailure>>,
    {
        let closed_error = || io::Error::other("the connection is closed");
        let runtime = self.runtime.as_ref().ok_or_else(closed_error)?;
        runtime.block_on(async {
            let _permit = match load {
                SftpCallLoad::Short => None,
                SftpCallLoad::Long => Some(self.long_call_permits.acquire().await.map_err(|_| closed_error())?),
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
                // A host that was never reached more likely has a wrong name than a temporary failure.
                let was_connected = self.was_connected.load(Ordering::Relaxed);
                // The retry timeout starts when the connection breaks, however long it worked before.
                if tried.elapsed() > MAX_BACKOFF {
                    (since, wait) = (Instant::now(), INITIAL_BACKOFF);
                }
                if !was_connected || since.elapsed() + wait > self.options.retry_timeout {
                    return Err(error);
                }
                warn!(%error, host = %self.address.host, wait_ms = wait.as_millis(), "connection lost; \
                    reconnecting");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(MAX_BACKOFF);
            }
        })
    }

    /// Spawns an operation whose result is not awaited yet.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        Some(self.runtime.as_ref()?.spawn(work))
    }

    /// Blocks on a future that needs no channel or has its own.
    pub(super) fn block_on_runtime<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        Some(self.runtime.as_ref()?.block_on(work))
    }

    /// Like [`SftpLink::run_with_retries`], without retries.
    pub(super) async fn try_once<T, F>(
        &self,
        load: SftpCallLoad,
        work: impl FnOnce(Arc<SftpChannel>) -> F,
    ) -> Result<T, SftpFailure>
    where
        F: Future<Output = Result<T, SftpFailure>>,
    {
        let channel = self.acquire_channel(load).await?;
        // A request that is sent while its connection closes may be lost and would never get a response.
        let done = tokio::select! {
            done = work(channel.clone()) => done,
            () = wait_until_closed(&channel.connection) => {
                Err(SftpFailure::connection_lost(ErrorKind::ConnectionReset, "the connection was lost".to_owned()))
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

    /// Returns a channel with capacity for a call, or opens one.
    async fn acquire_channel(&self, load: SftpCallLoad) -> Result<Arc<SftpChannel>, SftpFailure> {
        let failures = self.failed_opens.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        // If another caller failed to reach the host while this one waited, do not try again.
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
        let existing = state.connection.take().filter(|existing| !existing.is_closed());
        if let Some(connection) = existing {
            match self.open_channel_over(&connection).await {
                Ok(channel) => {
                    state.connection = Some(connection);
                    return Ok(channel);
                }
                // A host may limit the channels of a connection; then open a further connection.
                Err(error) => {
                    let reason = format!("{error:?}");
                    debug!(reason, "cannot open another channel on the connection");
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

    /// Opens a channel; fails if the connection closes first.
    async fn open_channel_over(
        &self,
        connection: &Arc<SshConnection>,
    ) -> Result<SftpChannel, SftpFailure> {
        tokio::select! {
            opened = self.start_sftp_session(connection) => opened,
            () = wait_until_closed(connection) => {
                Err(SftpFailure::connection_lost(ErrorKind::ConnectionReset, "the connection was lost".to_owned()))
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
        // The greeting is sent before anything else; the host responds in the same order.
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
        // Shut down without blocking, so that a link may be dropped in any context.
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
