//! The word that controller and agents share, and the proof of it.
//!
//! Invariant: the word itself never travels. Each side shows a code over keys of this very TLS connection, so that
//! somebody between the two, whose connections have other keys, can show neither side anything.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::{Error, Result};

/// A word that only the controller of a run and its agents know.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Shorter words could be guessed.
const SHORTEST: usize = 32;

/// Who shows that it knows the word.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Controller,
    Agent,
}

impl Token {
    /// Makes one of random bytes.
    #[must_use]
    pub fn new(random: [u8; 32]) -> Self {
        Self(random.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Reads one that was made elsewhere.
    ///
    /// # Errors
    /// [`Error::Input`] if it is short enough to be guessed.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if text.len() < SHORTEST {
            return Err(Error::Input(format!(
                "the token has {} characters; it needs at least {SHORTEST}",
                text.len()
            )));
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the word, for whoever has to give it to agents.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns the proof of `side` over the keys of a connection.
    pub(super) fn proof(&self, side: Side, keys: &[u8]) -> Vec<u8> {
        self.mac(side, keys).map(|mac| mac.finalize().into_bytes().to_vec()).unwrap_or_default()
    }

    /// Reports whether `proof` is the one of `side`; takes the same time for every wrong one.
    pub(super) fn accepts(&self, side: Side, keys: &[u8], proof: &[u8]) -> bool {
        self.mac(side, keys).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }

    fn mac(&self, side: Side, keys: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes()).ok()?;
        mac.update(match side {
            Side::Controller => b"controller",
            Side::Agent => b"agent",
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
        let token = Token::new([7; 32]);
        let proof = token.proof(Side::Agent, b"keys");
        assert!(token.accepts(Side::Agent, b"keys", &proof));
        assert!(!token.accepts(Side::Controller, b"keys", &proof));
        assert!(!token.accepts(Side::Agent, b"other keys", &proof));
        assert!(!Token::new([8; 32]).accepts(Side::Agent, b"keys", &proof));
        assert!(!token.accepts(Side::Agent, b"keys", b""));
    }

    #[test]
    fn short_words_are_refused_and_words_are_not_shown() {
        assert!(Token::parse("secret").is_err());
        let token = Token::parse(&"s".repeat(32)).unwrap();
        assert!(!format!("{token:?}").contains('s'));
    }
}
