//! A proxy that simulates a link to a distant machine: it delays all data, and counts the sequential round trips.
//!
//! Sequential messages are distinguished from pipelined ones by what each side had received when it sent. That needs a
//! delay that is long compared to the computation of either side between two messages.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A proxy that delays every byte, in each direction by half of the round-trip time.
#[derive(Debug)]
pub struct DelayProxy {
    address: SocketAddr,
    shared: Arc<DelayProxyState>,
}

#[derive(Debug)]
struct DelayProxyState {
    target: SocketAddr,
    one_way_delay: Duration,
    /// Bytes per second in each direction, over all connections; `None` for no limit. With the time at which the line
    /// is free again.
    bytes_per_second: Option<u64>,
    line_free_at: [Mutex<Instant>; 2],
    connection_count: AtomicU64,
    /// The maximum number of round trips whose result each side has received, the client first.
    observed_round_trips: [AtomicU64; 2],
    sent_bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl DelayProxy {
    /// Starts forwarding connections to `target`.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn start(target: SocketAddr, round_trip: Duration) -> Self {
        Self::start_with(target, round_trip, None)
    }

    /// As [`DelayProxy::start`], with a bandwidth limit in bytes per second in each direction.
    ///
    /// # Panics
    /// If no port is free.
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
                // If one side is closed, the connection ends.
                std::thread::spawn(move || forward_delayed(stream, &shared).ok());
            }
        });
        Self { address, shared }
    }

    /// Returns the address on which the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of sequential round trips: the length of the longest chain of messages that the client sent
    /// after it had received the server's response to the previous one.
    #[must_use]
    pub fn sequential_round_trips(&self) -> u64 {
        let [near, _] = &self.shared.observed_round_trips;
        near.load(Ordering::SeqCst)
    }

    /// Returns the number of connections, each of which costs one more round trip.
    #[must_use]
    pub fn connection_count(&self) -> u64 {
        self.shared.connection_count.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that clients have sent.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        TcpStream::connect(self.address).ok();
    }
}

impl DelayProxyState {
    /// Returns the time at which bytes sent now arrive at the other side.
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

/// The sending side.
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

/// Forwards bytes in one direction: one thread reads and records their due time, another one delivers them.
fn spawn_delayed_copy(
    mut from: TcpStream,
    mut to: TcpStream,
    side: ProxySide,
    shared: &Arc<DelayProxyState>,
) -> std::thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    let arriving = Arc::clone(&shared);
    // A slow line buffers little: a sender of more data waits.
    let (queue_length, size) =
        if shared.bytes_per_second.is_some() { (8, 16 * 1024) } else { (1_024, 64 * 1024) };
    let (sender, receiver) = mpsc::sync_channel::<(Instant, u64, Vec<u8>)>(queue_length);
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
