//! A proxy that cuts each connection after the client has sent a given number of bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A proxy that cuts connections.
#[derive(Debug)]
pub struct CuttingProxy {
    address: SocketAddr,
    shared: Arc<CuttingProxyState>,
}

#[derive(Debug)]
struct CuttingProxyState {
    target: SocketAddr,
    /// The byte counts after which the next connections are cut, in reverse order; later connections are not cut.
    pending_cuts: Mutex<Vec<u64>>,
    connection_count: AtomicU64,
    cut_count: AtomicU64,
    sent_bytes: AtomicU64,
    is_stopped: AtomicBool,
}

impl CuttingProxy {
    /// Starts forwarding connections to `target`: the first one is cut after `cuts[0]` bytes, and so on; connections
    /// without an entry are not cut.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a test without a port cannot go on")]
    pub fn start(target: SocketAddr, cuts: &[u64]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(CuttingProxyState {
            target,
            pending_cuts: Mutex::new(cuts.iter().rev().copied().collect()),
            connection_count: AtomicU64::new(0),
            cut_count: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connection_count.fetch_add(1, Ordering::SeqCst);
                let limit =
                    accepting.pending_cuts.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let shared = accepting.clone();
                // If one side is closed, the connection ends.
                std::thread::spawn(move || {
                    forward_until_cut(near, limit.unwrap_or(u64::MAX), &shared).ok()
                });
            }
        });
        Self { address, shared }
    }

    /// Returns the address on which the proxy listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn connection_count(&self) -> u64 {
        self.shared.connection_count.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that were cut.
    #[must_use]
    pub fn cut_count(&self) -> u64 {
        self.shared.cut_count.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes that clients have sent over all connections.
    #[must_use]
    pub fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for CuttingProxy {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread.
        TcpStream::connect(self.address).ok();
    }
}

fn forward_until_cut(
    mut near: TcpStream,
    limit: u64,
    shared: &CuttingProxyState,
) -> std::io::Result<()> {
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
        shared.sent_bytes.fetch_add(passed, Ordering::SeqCst);
        let bytes = buffer.get(..usize::try_from(passed).unwrap_or(0)).unwrap_or_default();
        if count == 0 || far.write_all(bytes).is_err() {
            break;
        }
        if left == 0 {
            shared.cut_count.fetch_add(1, Ordering::SeqCst);
            break;
        }
    }
    near.shutdown(Shutdown::Both).ok();
    far.shutdown(Shutdown::Both).ok();
    back.join().ok();
    Ok(())
}
