//! The token that controller and agents share, and the proof of knowing it.
//!
//! Invariant: the token itself is never transmitted. Each side sends a MAC over keys of this TLS connection, so that a
//! man in the middle, whose connections have other keys, can authenticate to neither side.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{Error, Result};

/// A secret that only the controller of a run and its agents know.
#[derive(Clone, PartialEq, Eq)]
pub struct FleetToken(String);

impl fmt::Debug for FleetToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Minimum length; shorter tokens could be guessed.
const MIN_TOKEN_LEN: usize = 32;

/// The side that proves knowledge of the token.
#[derive(Debug, Clone, Copy)]
pub(super) enum FleetRole {
    Controller,
    Agent,
}

impl FleetToken {
    /// Creates a token from random bytes.
    #[must_use]
    pub fn new(random: [u8; 32]) -> Self {
        Self(hex::encode(random))
    }

    /// Parses a token from text.
    ///
    /// # Errors
    /// [`Error::UnusableInput`] if it is short enough to be guessed.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() < MIN_TOKEN_LEN {
            return Err(Error::UnusableInput(format!(
                "the token has {} characters; it needs at least {MIN_TOKEN_LEN}",
                text.len()
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the secret text, for passing it to agents.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the proof of `side` over the keys of a connection.
    pub(super) fn proof_for(&self, side: FleetRole, keys: &[u8]) -> Vec<u8> {
        self.proof_mac(side, keys)
            .map(|mac| mac.finalize().into_bytes().to_vec())
            .unwrap_or_default()
    }

    /// Returns true if `proof` is the proof of `side`; takes the same time for every wrong proof.
    pub(super) fn accepts_proof(&self, side: FleetRole, keys: &[u8], proof: &[u8]) -> bool {
        self.proof_mac(side, keys).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }

    fn proof_mac(&self, side: FleetRole, keys: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).ok()?;
        mac.update(match side {
            FleetRole::Controller => b"controller",
            FleetRole::Agent => b"agent",
        });
        mac.update(keys);
        Some(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_of_one_side_one_connection_and_one_word() {
        let token = FleetToken::new([7; 32]);
        let proof = token.proof_for(FleetRole::Agent, b"keys");
        assert!(token.accepts_proof(FleetRole::Agent, b"keys", &proof));
        assert!(!token.accepts_proof(FleetRole::Controller, b"keys", &proof));
        assert!(!token.accepts_proof(FleetRole::Agent, b"other keys", &proof));
        assert!(!FleetToken::new([8; 32]).accepts_proof(FleetRole::Agent, b"keys", &proof));
        assert!(!token.accepts_proof(FleetRole::Agent, b"keys", b""));
    }

    #[test]
    fn short_words_are_refused_and_words_are_not_shown() {
        assert!(FleetToken::parse("secret").is_err());
        let token = FleetToken::parse(&"s".repeat(32)).unwrap();
        assert!(!format!("{token:?}").contains('s'));
    }
}
