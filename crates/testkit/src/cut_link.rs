//! A link that breaks: each connection is cut when the near side has sent so many bytes over it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A proxy that cuts connections.
#[derive(Debug)]
pub struct CutLink {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    /// After how many bytes the next connections are cut, the first one last; those beyond are whole.
    cuts: Mutex<Vec<u64>>,
    made: AtomicU64,
    cut: AtomicU64,
    sent: AtomicU64,
    is_over: AtomicBool,
}

impl CutLink {
    /// Begins to pass connections on to `target`: the first one is cut after `cuts[0]` bytes, and so on; those for which
    /// none is given stay whole.
    ///
    /// # Panics
    /// Without a free port.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test without a port cannot go on")]
    pub fn start(target: SocketAddr, cuts: &[u64]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            target,
            cuts: Mutex::new(cuts.iter().rev().copied().collect()),
            made: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                accepting.made.fetch_add(1, Ordering::SeqCst);
                let limit = accepting.cuts.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let shared = accepting.clone();
                // A side that is gone ends the connection.
                std::thread::spawn(move || pass(near, limit.unwrap_or(u64::MAX), &shared).ok());
            }
        });
        Self { address, shared }
    }

    /// Returns where the link begins.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns how many connections were made.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.shared.made.load(Ordering::SeqCst)
    }

    /// Returns how many were cut.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.shared.cut.load(Ordering::SeqCst)
    }

    /// Returns how many bytes the near side has sent over all of them.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::SeqCst)
    }
}

impl Drop for CutLink {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        TcpStream::connect(self.address).ok();
    }
}

fn pass(mut near: TcpStream, limit: u64, shared: &Shared) -> std::io::Result<()> {
    let mut far = TcpStream::connect(shared.target)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (mut from, mut to) = (far.try_clone()?, near.try_clone()?);
    let back = std::thread::spawn(move || {
        std::io::copy(&mut from, &mut to).ok();
        to.shutdown(Shutdown::Both).ok();
    });
    let mut left = limit;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = near.read(&mut buffer).unwrap_or(0) as u64;
        let passed = count.min(left);
        left -= passed;
        shared.sent.fetch_add(passed, Ordering::SeqCst);
        let bytes = buffer.get(..usize::try_from(passed).unwrap_or(0)).unwrap_or_default();
        if count == 0 || far.write_all(bytes).is_err() {
            break;
        }
        if left == 0 {
            shared.cut.fetch_add(1, Ordering::SeqCst);
            break;
        }
    }
    near.shutdown(Shutdown::Both).ok();
    far.shutdown(Shutdown::Both).ok();
    back.join().ok();
    Ok(())
}
