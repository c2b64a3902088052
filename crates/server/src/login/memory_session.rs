//! Sessions created while the state database accepts no writes, for example on a full disk, so that an administrator
//! can log in and free space.
//!
//! In: an account whose password was verified. Out: a session token, as created by `token`.
//!
//! Invariants
//! * A session here ends with the process, after [`MEMORY_SESSION_LIFETIME`], when its user logs out, and when the
//!   account's password changes or its right to log in is revoked.
//! * There are at most [`MAX_MEMORY_SESSIONS`]; a new session replaces the one that expires first.
//!
//! Not here: sessions in the database, which outlive the process.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use super::token::random_token;
use super::{LoginAccount, Logins, hash_text};
use crate::failure::{Result, is_write_refused};

/// Lifetime of a session in memory: long enough to free space.
const MEMORY_SESSION_LIFETIME: Duration = Duration::from_hours(1);
/// Maximum number of sessions in memory.
const MAX_MEMORY_SESSIONS: usize = 64;

/// A session in memory.
#[derive(Debug, Clone)]
struct MemorySession {
    user: String,
    /// The password hash at the start of the session.
    password_hash: String,
    /// Distinguishes the account from others of the same name.
    account_id: Option<String>,
    expires_at: SystemTime,
}

/// The sessions in memory, by the hash of their token.
#[derive(Debug, Default)]
pub(super) struct MemorySessions(Mutex<HashMap<String, MemorySession>>);

impl MemorySessions {
    /// Creates a session and returns its token.
    fn begin(
        &self,
        user: &str,
        account: &LoginAccount,
        now: SystemTime,
    ) -> std::io::Result<String> {
        let token = random_token()?;
        let spare = MemorySession {
            user: user.to_owned(),
            password_hash: account.password_hash.clone(),
            account_id: account.identifier.clone(),
            expires_at: now + MEMORY_SESSION_LIFETIME,
        };
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| session.expires_at > now);
        while sessions.len() >= MAX_MEMORY_SESSIONS {
            let first = sessions.iter().min_by_key(|(_, session)| session.expires_at);
            let Some(first) = first.map(|(hash, _)| hash.clone()) else { break };
            sessions.remove(&first);
        }
        sessions.insert(hash_text(&token), spare);
        Ok(token)
    }

    fn find(&self, token: &str, now: SystemTime) -> Option<MemorySession> {
        let sessions = self.0.lock();
        if sessions.is_empty() {
            return None;
        }
        sessions.get(&hash_text(token)).filter(|session| session.expires_at > now).cloned()
    }

    /// Ends the session with this token.
    pub(super) fn end(&self, token: &str) {
        self.0.lock().remove(&hash_text(token));
    }

    /// Ends all sessions of a user except the one with `own_token`.
    pub(super) fn end_others(&self, user: &str, own_token: Option<&str>) {
        let own = own_token.map(hash_text);
        self.0.lock().retain(|hash, session| session.user != user || own.as_ref() == Some(hash));
    }
}

impl Logins {
    /// Returns the token of a new session: the stored one, or one in memory if the database refused the write.
    pub(super) fn stored_or_memory_token(
        &self,
        stored: std::io::Result<String>,
        (user, account): (&str, &LoginAccount),
        now: SystemTime,
    ) -> std::io::Result<String> {
        match stored {
            Err(error) if is_write_refused(&error) => {
                tracing::warn!(
                    user,
                    reason = %error,
                    "cannot write the state database; keeping the session in memory"
                );
                self.memory_sessions.begin(user, account, now)
            }
            stored => stored,
        }
    }

    /// Returns the user of the session in memory with this token, if the account is unchanged.
    pub(super) async fn memory_session_user(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<Option<String>> {
        let Some(session) = self.memory_sessions.find(token, now) else { return Ok(None) };
        let account = self.read_login_account(&session.user).await?;
        let is_same = account.is_some_and(|account| {
            account.password_hash == session.password_hash
                && account.identifier == session.account_id
        });
        Ok(is_same.then_some(session.user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(hash: &str) -> LoginAccount {
        LoginAccount {
            password_hash: hash.to_owned(),
            identifier: Some("id".to_owned()),
            created: None,
        }
    }

    #[test]
    fn sessions_end_in_time_and_are_bounded() {
        let now = SystemTime::UNIX_EPOCH;
        let sessions = MemorySessions::default();
        let token = sessions.begin("ann", &account("h"), now).unwrap();
        assert_eq!(sessions.find(&token, now).unwrap().user, "ann");
        assert!(sessions.find("other", now).is_none());
        assert!(sessions.find(&token, now + MEMORY_SESSION_LIFETIME).is_none());
        for second in 1..=MAX_MEMORY_SESSIONS as u64 {
            sessions.begin("bob", &account("h"), now + Duration::from_secs(second)).unwrap();
        }
        assert_eq!(sessions.0.lock().len(), MAX_MEMORY_SESSIONS);
        assert!(sessions.find(&token, now).is_none(), "the oldest has made room");
        let own = sessions.begin("bob", &account("h"), now).unwrap();
        sessions.end_others("bob", Some(&own));
        assert_eq!(sessions.0.lock().len(), 1);
        sessions.end(&own);
        assert!(sessions.find(&own, now).is_none());
    }
}
