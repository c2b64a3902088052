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
pub struct FarLink {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    one_way: Duration,
    /// Bytes a second each way, over all connections; none for no limit. With the time at which the line is free again.
    rate: Option<u64>,
    free: [Mutex<Instant>; 2],
    connections: AtomicU64,
    /// The most round trips of which each side, the near one first, has heard the result.
    heard: [AtomicU64; 2],
    bytes: AtomicU64,
    is_over: AtomicBool,
}

impl FarLink {
    /// Begins to pass connections on to `target`.
    ///
    /// # Panics
    /// Without a free port.
    #[must_use]
    pub fn start(target: SocketAddr, round_trip: Duration) -> Self {
        Self::begin(target, round_trip, None)
    }

    /// As [`FarLink::start`], over a line that carries so many bytes a second each way.
    ///
    /// # Panics
    /// Without a free port.
    #[must_use]
    pub fn narrow(target: SocketAddr, round_trip: Duration, rate: u64) -> Self {
        Self::begin(target, round_trip, Some(rate.max(1)))
    }

    #[expect(clippy::expect_used, reason = "a test without a port cannot go on")]
    fn begin(target: SocketAddr, round_trip: Duration, rate: Option<u64>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            target,
            one_way: round_trip / 2,
            rate,
            free: [Mutex::new(Instant::now()), Mutex::new(Instant::now())],
            connections: AtomicU64::new(0),
            heard: [AtomicU64::new(0), AtomicU64::new(0)],
            bytes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&accepting);
                // A side that is gone ends the connection.
                std::thread::spawn(move || pass(stream, &shared).ok());
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
    pub fn round_trips(&self) -> u64 {
        let [near, _] = &self.shared.heard;
        near.load(Ordering::SeqCst)
    }

    /// Returns how many connections were made, each of which costs one round trip more.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Returns how many bytes the near side has sent.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for FarLink {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

impl Shared {
    /// Returns when bytes that are sent now arrive at the other side.
    fn due(&self, side: Side, bytes: usize) -> Instant {
        let now = Instant::now();
        let Some(rate) = self.rate else { return now + self.one_way };
        let [near, far] = &self.free;
        let free = if side == Side::Near { near } else { far };
        let mut free = free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = now.max(*free) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        *free + self.one_way
    }
}

/// Who speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Near,
    Far,
}

fn pass(near: TcpStream, shared: &Arc<Shared>) -> std::io::Result<()> {
    let far = TcpStream::connect(shared.target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let there = carry(near.try_clone()?, far.try_clone()?, Side::Near, shared);
    let back = carry(far, near, Side::Far, shared);
    there.join().ok();
    back.join().ok();
    Ok(())
}

/// Carries bytes in one direction: one thread reads and notes when they are due, another one delivers them.
fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    side: Side,
    shared: &Arc<Shared>,
) -> std::thread::JoinHandle<()> {
    let shared = Arc::clone(shared);
    let arriving = Arc::clone(&shared);
    // A narrow line holds little: whoever sends more waits.
    let (held, size) = if shared.rate.is_some() { (8, 16 * 1024) } else { (1_024, 64 * 1024) };
    let (sender, receiver) = mpsc::sync_channel::<(Instant, u64, Vec<u8>)>(held);
    std::thread::spawn(move || {
        for (due, trips, bytes) in receiver {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let [near, far] = &arriving.heard;
            let hears = if side == Side::Near { far } else { near };
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
            let [near, far] = &shared.heard;
            let trips = if side == Side::Near {
                shared.bytes.fetch_add(bytes.len() as u64, Ordering::SeqCst);
                near.load(Ordering::SeqCst) + 1
            } else {
                far.load(Ordering::SeqCst)
            };
            if sender.send((shared.due(side, bytes.len()), trips, bytes.to_vec())).is_err() {
                break;
            }
        }
    })
}
