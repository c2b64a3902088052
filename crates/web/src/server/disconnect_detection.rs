//! Detection of clients that disconnect while a request waits for its response, or for the rest of it.
//!
//! In HTTP/1.1 a client that has sent its request may close its sending side and still read the response, so the end of
//! its data does not end the request. For a request that waits for events the response may never come, and a client
//! that has closed its connection looks the same. A handler that waits therefore enables the detection.
//!
//! On HTTP/2 a client that disconnects always ends its requests, and there is no such extension.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The detection of one connection; an extension of every HTTP/1.1 request. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct DisconnectDetection(Arc<AtomicBool>);

impl DisconnectDetection {
    /// Ends the current request, and drops its response, when the client closes its sending side.
    pub fn enable(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Restores the default for the next request of the connection.
    pub(crate) fn disable(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
