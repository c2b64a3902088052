//! Flush authorization by the keys of pairs: each publisher can have its own key, which can be added and revoked while
//! the dispatcher runs.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Returns true if a key may flush; `None` if there is no pair for flushing.
type AdmitKeyFn = dyn Fn(&[u8]) -> io::Result<Option<bool>> + Send + Sync;

/// The look-up of pair keys. The default knows no keys.
#[derive(Clone, Default)]
pub struct FlushKeys(Option<Arc<AdmitKeyFn>>);

impl FlushKeys {
    /// Creates a look-up that calls `admit` for each presented key. `admit` returns true if the key may flush, and
    /// `None` as long as there is no pair for flushing.
    #[must_use]
    pub fn new(admit: impl Fn(&[u8]) -> io::Result<Option<bool>> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(admit)))
    }

    /// Returns true if a key may flush; `None` if there is no pair for flushing. If the pairs cannot be read, no key is
    /// admitted.
    pub(crate) fn is_admitted(&self, key: &[u8]) -> Option<bool> {
        let admit = self.0.as_ref()?;
        admit(key).unwrap_or_else(|error| {
            tracing::error!(reason = %error, "the pairs that may flush cannot be read; nobody flushes by a key");
            Some(false)
        })
    }

    /// Returns true if there is a pair for flushing.
    pub(crate) fn has_any(&self) -> bool {
        self.is_admitted(b"").is_some()
    }
}

impl fmt::Debug for FlushKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlushKeys")
    }
}
