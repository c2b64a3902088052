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

    /// Returns the same for somebody else who was waiting for it.
    fn again(&self) -> Self {
        let same = |error: &io::Error| io::Error::new(error.kind(), error.to_string());
        match self {
            Self::Broken(error) => Self::Broken(same(error)),
            Self::Said(error) => Self::Said(same(error)),
        }
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

/// What a host can do beyond what all can.
#[derive(Clone, Copy, Debug)]
pub(super) struct Abilities {
    /// Whether files can be synced.
    pub(super) can_sync: bool,
    /// Whether a rename can replace what is there.
    pub(super) can_replace: bool,
}

/// A channel that speaks SFTP.
pub(super) struct Channel {
    pub(super) sftp: Arc<RawSftpSession>,
    /// What the host has said that it can do; requests are sent before it has.
    abilities: watch::Receiver<Option<Abilities>>,
    connection: Arc<Connection>,
}

impl Channel {
    /// Returns what the host can do, once it has said so.
    pub(super) async fn abilities(&self) -> Result<Abilities, Failure> {
        let mut told = self.abilities.clone();
        let told = told.wait_for(Option::is_some).await.ok().and_then(|told| *told);
        let silent = || "the host does not speak SFTP".to_owned();
        told.ok_or_else(|| Failure::broken(ErrorKind::ConnectionReset, silent()))
    }
}

/// How long a call keeps a channel busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// A few requests and a few bytes.
    Short,
    /// Many bytes.
    Long,
}

/// A channel, and the calls that use it.
struct Slot {
    channel: Arc<Channel>,
    short: usize,
    long: usize,
}

impl Slot {
    const fn count(&mut self, load: Load) -> &mut usize {
        match load {
            Load::Short => &mut self.short,
            Load::Long => &mut self.long,
        }
    }
}

#[derive(Default)]
struct State {
    connection: Option<Arc<Connection>>,
    slots: Vec<Slot>,
    /// Why the last channel could not be opened.
    failure: Option<Failure>,
}

impl State {
    /// Finds an open channel for a call; nothing if one more is to be opened.
    fn fitting(&mut self, load: Load, most: usize) -> Option<&mut Slot> {
        self.slots.retain(|slot| !slot.channel.connection.is_closed());
        let is_full = self.slots.len() >= most;
        let fits = |slot: &Slot| match load {
            Load::Short => slot.long == 0,
            Load::Long => slot.long + slot.short == 0,
        };
        let fitting = self.slots.iter_mut().filter(|slot| is_full || fits(slot));
        fitting.min_by_key(|slot| (slot.long, slot.short))
    }

    /// Forgets a connection that broke.
    fn forget(&mut self, connection: &Arc<Connection>) {
        self.slots.retain(|slot| !Arc::ptr_eq(&slot.channel.connection, connection));
        if self.connection.as_ref().is_some_and(|one| Arc::ptr_eq(one, connection)) {
            self.connection = None;
        }
    }
}

/// The way to a host.
pub(super) struct Link {
    address: SftpAddress,
    options: Arc<SftpOptions>,
    /// Taken when the link goes.
    runtime: Option<Runtime>,
    /// For long calls.
    permits: Semaphore,
    state: Mutex<State>,
    was_connected: Arc<AtomicBool>,
    reconnects: AtomicU64,
    /// How often no channel could be opened.
    failures: AtomicU64,
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
        let was_connected = Arc::new(AtomicBool::new(false));
        let (reconnects, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self {
            address,
            options,
            runtime: Some(runtime),
            permits,
            state,
            was_connected,
            reconnects,
            failures,
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
    pub(super) fn run<T, W, F>(&self, load: Load, work: W) -> io::Result<T>
    where
        W: Fn(Arc<Channel>) -> F,
        F: Future<Output = Result<T, Failure>>,
    {
        let gone = || io::Error::other("the link is closed");
        let runtime = self.runtime.as_ref().ok_or_else(gone)?;
        runtime.block_on(async {
            let _permit = match load {
                Load::Short => None,
                Load::Long => Some(self.permits.acquire().await.map_err(|_| gone())?),
            };
            let mut since = Instant::now();
            let mut wait = FIRST_WAIT;
            loop {
                let tried = Instant::now();
                let error = match self.try_once(load, &work).await {
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

    /// Does some work that nobody waits for yet.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        Some(self.runtime.as_ref()?.spawn(work))
    }

    /// Waits for some work that does without a channel, or has its own.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        Some(self.runtime.as_ref()?.block_on(work))
    }

    /// As [`Link::run`], once.
    pub(super) async fn try_once<T, F>(
        &self,
        load: Load,
        work: impl FnOnce(Arc<Channel>) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let channel = self.channel(load).await?;
        // A request that is sent while its connection ends may be forgotten: nobody would answer it.
        let done = tokio::select! {
            done = work(channel.clone()) => done,
            () = gone(&channel.connection) => {
                Err(Failure::broken(ErrorKind::ConnectionReset, "the connection is gone".to_owned()))
            }
        };
        let mut state = self.state.lock().await;
        if matches!(done, Err(Failure::Broken(_))) {
            state.forget(&channel.connection);
        } else if let Some(slot) =
            state.slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.channel, &channel))
        {
            let count = slot.count(load);
            *count = count.saturating_sub(1);
        }
        done
    }

    /// Returns a channel that has room for a call, or opens one.
    async fn channel(&self, load: Load) -> Result<Arc<Channel>, Failure> {
        let failures = self.failures.load(Ordering::Relaxed);
        let mut state = self.state.lock().await;
        // Who waited while somebody else could not reach the host does not try it once more.
        if self.failures.load(Ordering::Relaxed) != failures
            && let Some(failure) = &state.failure
        {
            return Err(failure.again());
        }
        if let Some(slot) = state.fitting(load, self.options.connections.max(1)) {
            *slot.count(load) += 1;
            return Ok(slot.channel.clone());
        }
        let channel = match self.open_channel(&mut state).await {
            Ok(channel) => Arc::new(channel),
            Err(failure) => {
                state.failure = Some(failure.again());
                self.failures.fetch_add(1, Ordering::Relaxed);
                return Err(failure);
            }
        };
        let mut slot = Slot { channel: channel.clone(), short: 0, long: 0 };
        *slot.count(load) += 1;
        state.slots.push(slot);
        Ok(channel)
    }

    async fn open_channel(&self, state: &mut State) -> Result<Channel, Failure> {
        let known = state.connection.take().filter(|known| !known.is_closed());
        if let Some(connection) = known {
            match self.open(&connection).await {
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
        let connection = Arc::new(connect(&self.address, &self.options).await?);
        let channel = self.open(&connection).await?;
        if self.was_connected.load(Ordering::Relaxed) {
            self.reconnects.fetch_add(1, Ordering::Relaxed);
        }
        state.connection = Some(connection);
        Ok(channel)
    }

    /// Opens a channel, unless the connection ends meanwhile.
    async fn open(&self, connection: &Arc<Connection>) -> Result<Channel, Failure> {
        tokio::select! {
            opened = self.open_over(connection) => opened,
            () = gone(connection) => {
                Err(Failure::broken(ErrorKind::ConnectionReset, "the connection is gone".to_owned()))
            }
        }
    }

    async fn open_over(&self, connection: &Arc<Connection>) -> Result<Channel, Failure> {
        let broken = |error| of_ssh(&self.address.host, &error);
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
            tell.send_replace(Some(Abilities {
                can_sync: has("fsync@openssh.com"),
                can_replace: has("posix-rename@openssh.com"),
            }));
        });
        Ok(Channel { sftp, abilities, connection: connection.clone() })
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
