//! A link to a machine that is far away: everything takes its time, and how often one side waits for the other is counted.
//!
//! What waits for each other is told from what is on its way at once by what each side had heard when it spoke. That needs
//! a line whose delay is long beside what either side computes between two words.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A proxy that delays every byte, each way by half of the time that a round trip takes.
#[derive(Debug)]
pub struct DelayProxy {
    address: SocketAddr,
    shared: Arc<DelayProxyState>,
}

#[derive(Debug)]
struct DelayProxyState {
    target: SocketAddr,
    one_way_delay: Duration,
    /// Bytes a second each way, over all connections; none for no limit. With the time at which the line is free again.
    bytes_per_second: Option<u64>,
    line_free_at: [Mutex<Instant>; 2],
    connection_count: AtomicU64,
    /// The most round trips of which each side, the near one first, has heard the result.
    observed_round_trips: [AtomicU64; 2],
    sent_bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl DelayProxy {
    /// Begins to pass connections on to `target`.
    ///
    /// # Panics
    /// Without a free port.
    #[must_use]
    pub fn start(target: SocketAddr, round_trip: Duration) -> Self {
        Self::start_with(target, round_trip, None)
    }

    /// As [`DelayProxy::start`], over a line that carries so many bytes a second each way.
    ///
    /// # Panics
    /// Without a free port.
    #[must_use]
    pub fn start_with_bandwidth(target: SocketAddr, round_trip: Duration, rate: u64) -> Self {
        Self::start_with(target, round_trip, Some(rate.max(1)))
    }

    #[expect(clippy::expect_used, reason = "a test without a port cannot go on")]
    fn start_with(target: SocketAddr, round_trip: Duration, rate: Option<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(DelayProxyState {
            target,
            one_way_delay: round_trip / 2,
            bytes_per_second: rate,
            line_free_at: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
            connection_count: AtomicU64::new(0),
            observed_round_trips: [AtomicU64::new(0), AtomicU64::new(0)],
            sent_bytes: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connection_count.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepting);
                // A side that is gone ends the connection.
                std::thread::spawn(move || forward_delayed(stream, &shared).ok());
            }
        });
        Self { address, shared }
    }

    /// Returns where the link begins.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many round trips were made one after another: the length of the longest chain of words in which the near
    /// side said something after it had heard the far side's answer to the one before.
    #[must_use]
    pub fn sequential_round_trips(&self) -> u64 {
        let [near, _] = &self.shared.observed_round_trips;
        near.load(Ordering::SeqCst)
    }

    /// Returns how many connections were made, each of which costs one round trip more.
    #[must_use]
    pub fn connection_count(&self) -> u64 {
        self.shared.connection_count.load(Ordering::SeqCst)
    }

    /// Returns how many bytes the near side has sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

impl DelayProxyState {
    /// Returns when bytes that are sent now arrive at the other side.
    fn delivery_time(&self, side: ProxySide, bytes: usize) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.bytes_per_second else { return now + self.one_way_delay };
        let [near, far] = &self.line_free_at;
        let free = if side == ProxySide::Client { near } else { far };
        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = now.max(*free) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *free + self.one_way_delay
    }
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProxySide {
    Client,
    Target,
}

fn forward_delayed(near: TcpStream, shared: &Arc<DelayProxyState>) -> std::io::Result<()> {
    let far = TcpStream::connect(shared.target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let there = spawn_delayed_copy(near.try_clone()?, far.try_clone()?, ProxySide::Client, shared);
    let back = spawn_delayed_copy(far, near, ProxySide::Target, shared);
    there.join().ok();
    back.join().ok();
    Ok(())
}

/// Carries bytes in one direction: one thread reads and notes when they are due, another one delivers them.
fn spawn_delayed_copy(
    mut from: TcpStream,
    mut to: TcpStream,
    side: ProxySide,
    shared: &Arc<DelayProxyState>,
) -> std::thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    let arriving = Arc::clone(&shared);
    // A narrow line holds little: whoever sends more waits.
    let (held, size) =
        if shared.bytes_per_second.is_some() { (8, 16 * 1024) } else { (1_024, 64 * 1024) };
    let (sender, receiver) = mpsc::sync_channel::<(Instant, u64, Vec<u8>)>(held);
    std::thread::spawn(move || {
        for (due, trips, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let [near, far] = &arriving.observed_round_trips;
            let hears = if side == ProxySide::Client { far } else { near };
            hears.fetch_max(trips, Ordering::SeqCst);
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Write).ok();
    });
    std::thread::spawn(move || {
        let mut buffer = vec![0; size];
        while let Ok(count) = from.read(&mut buffer) {
            let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) else {
                break;
            };
            let [near, far] = &shared.observed_round_trips;
            let trips = if side == ProxySide::Client {
                shared.sent_bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                near.load(Ordering::SeqCst) + 1
            } else {
                far.load(Ordering::SeqCst)
            };
            if sender
                .send((shared.delivery_time(side, bytes.len()), trips, bytes.to_vec()))
                .is_err()
            {
                break;
            }
        }
    })
}
