//! Flush authorization: by address, by the token or certificate of a farm, or by the key of a pair. Each publisher can
//! have its own key, which can be added and revoked while the dispatcher runs.

use std::fmt;
use std::io;
use std::sync::Arc;

use http::header;

use crate::config::FarmConfig;
use crate::request::view::RequestView;

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
    fn is_admitted(&self, key: &[u8]) -> Option<bool> {
        let admit = self.0.as_ref()?;
        admit(key).unwrap_or_else(|error| {
            tracing::error!(reason = %error, "cannot read the pairs that may flush; refusing flushes by key");
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

/// Returns true if a client may flush: by address, by the token, or by the key of a pair.
pub(crate) fn is_flush_allowed(keys: &FlushKeys, farm: &FarmConfig, view: &RequestView) -> bool {
    let token = farm.cache.as_ref().and_then(|cache| cache.flush_token.as_deref());
    let shown_token = view.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown_token = shown_token.and_then(|value| value.strip_prefix("Bearer "));
    if let Some(shown_token) = shown_token.map(|shown_token| shown_token.trim().as_bytes()) {
        let is_token = token.map(|token| is_equal_constant_time(token.as_bytes(), shown_token));
        // Where keys are configured, a wrong one is refused, regardless of the address.
        match (is_token, keys.is_admitted(shown_token)) {
            (Some(true), _) | (_, Some(true)) => return true,
            (Some(false), _) | (_, Some(false)) => return false,
            (None, None) => {}
        }
    }
    let name = farm.cache.as_ref().and_then(|cache| cache.flush_certificate.as_deref());
    if let (Some(name), Some(certificate)) = (name, &view.certificate)
        && certificate.is_valid_for(name)
    {
        return true;
    }
    let client = view.client.to_string();
    let client = client.as_str();
    match farm.cache.as_ref().and_then(|cache| cache.allowed_clients.as_ref()) {
        Some(list) if !list.rules.is_empty() => list.allows(client),
        // A farm with a token, with a certificate name, or with pairs is not open to everyone.
        _ => token.is_none() && name.is_none() && !keys.has_any(),
    }
}

/// Compares two byte strings in constant time.
pub(crate) fn is_equal_constant_time(left: &[u8], right: &[u8]) -> bool {
    let differing = left.iter().zip(right).fold(0, |all, (left, right)| all | (left ^ right));
    left.len() == right.len() && std::hint::black_box(differing) == 0
}
