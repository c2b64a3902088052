//! Keys of pairs that may flush: each publisher can have one of its own, which is added and taken back while the dispatcher
//! runs.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Tells whether a key may flush; nothing if there is no pair for flushing.
type AdmitKeyFn = dyn Fn(&[u8]) -> io::Result<Option<bool>> + Send + Sync;

/// Whoever knows the keys of pairs. The default knows none.
#[derive(Clone, Default)]
pub struct FlushKeys(Option<Arc<AdmitKeyFn>>);

impl FlushKeys {
    /// Asks `admit` about each key that is shown. It tells whether a key may flush, and nothing as long as there is no pair
    /// for flushing.
    #[must_use]
    pub fn new(admit: impl Fn(&[u8]) -> io::Result<Option<bool>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(admit)))
    }

    /// Tells whether a key may flush; nothing if there is no pair for flushing. Pairs that cannot be read admit nobody.
    pub(crate) fn is_admitted(&self, key: &[u8]) -> Option<bool> {
        let admit = self.0.as_ref()?;
        admit(key).unwrap_or_else(|error| {
            tracing::error!(reason = %error, "the pairs that may flush cannot be read; nobody flushes by a key");
            Some(false)
        })
    }

    /// Tells whether there is a pair for flushing.
    pub(crate) fn has_any(&self) -> bool {
        self.is_admitted(b"").is_some()
    }
}

impl fmt::Debug for FlushKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlushKeys")
    }
}
