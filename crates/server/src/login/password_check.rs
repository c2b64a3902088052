//! Password checks: verification, the queue, and the limits against guessing.
//!
//! In: a name, a password, and the client. Out: the account, if the password is correct.
//!
//! Invariants
//! * At most [`MAX_PARALLEL_HASHES`] passwords are hashed at once, and a bounded number waits. A permit is released
//!   when the hashing ends, not when the request ends: closing the connection frees nothing early, and the failure is
//!   counted all the same.
//! * Known clients (by address or browser) wait in a separate queue, which unknown clients cannot fill.
//! * A name that is unknown, disabled or without a usable hash takes as long as a wrong password, and counts as one.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordVerifier};
use http::{HeaderMap, StatusCode};
use subtle::ConstantTimeEq;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tympan_web::forwarded_client::forwarded_client_address;
use tympan_web::ip_network::{IpNetwork, any_network_contains};
use tympan_web::listen::ConnectionPeer;

use super::{BROWSER_COOKIE, LoginAccount, Logins, find_cookie, hash_text, random_token};
use crate::failure::{RequestFailure, Result};
use crate::login::throttle::{LoginClient, LoginThrottle};

/// Maximum number of passwords hashed at once.
const MAX_PARALLEL_HASHES: usize = 2;
/// Maximum number of running and waiting attempts of unknown clients, about two seconds of work; further ones are told
/// to retry later.
const MAX_UNKNOWN_ATTEMPTS: usize = 256;
/// The same limit for clients from whose address or with whose browser the user has logged in before.
const MAX_KNOWN_ATTEMPTS: usize = 256;
/// A hash that matches no password.
const UNUSABLE_PASSWORD_HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$dHltcGFuLW5vYm9keS0x$mHk8hq1Xwz7s1xgCqv9D0ZQ0pQm9m1n2b3v4c5x6z7A";

/// A name and a password, with the client that sent them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PasswordAttempt<'a> {
    pub(crate) user: &'a str,
    pub(crate) password: &'a str,
    /// The headers of the request.
    pub(crate) headers: &'a HeaderMap,
    /// The peer of the connection.
    pub(crate) peer: Option<ConnectionPeer>,
}

/// The queues of password checks.
#[derive(Debug, Clone)]
pub(super) struct PasswordCheckQueue {
    running_permits: Arc<Semaphore>,
    unknown_client_permits: Arc<Semaphore>,
    known_client_permits: Arc<Semaphore>,
    /// Number of passwords that were hashed.
    hashed_passwords: Arc<AtomicU64>,
}

/// The permit for one password check; released on drop.
#[derive(Debug)]
struct PasswordCheckPermit {
    _running_permit: OwnedSemaphorePermit,
    _queue_permit: OwnedSemaphorePermit,
}

impl Default for PasswordCheckQueue {
    fn default() -> Self {
        Self {
            running_permits: Arc::new(Semaphore::new(MAX_PARALLEL_HASHES)),
            unknown_client_permits: Arc::new(Semaphore::new(MAX_UNKNOWN_ATTEMPTS)),
            known_client_permits: Arc::new(Semaphore::new(MAX_KNOWN_ATTEMPTS)),
            hashed_passwords: Arc::default(),
        }
    }
}

impl PasswordCheckQueue {
    /// Waits for a permit.
    ///
    /// # Errors
    /// If too many attempts are waiting.
    async fn acquire(&self, is_known: bool) -> Result<PasswordCheckPermit> {
        let busy = || {
            let message = "too many logins are waiting; try again in a moment";
            let failure = RequestFailure::new(StatusCode::SERVICE_UNAVAILABLE, message);
            RequestFailure { retry_after_seconds: Some(1), ..failure }
        };
        let queue_permits =
            if is_known { &self.known_client_permits } else { &self.unknown_client_permits };
        let queue_permit = Arc::clone(queue_permits).try_acquire_owned().map_err(|_| busy())?;
        let running =
            Arc::clone(&self.running_permits).acquire_owned().await.map_err(|_| busy())?;
        Ok(PasswordCheckPermit { _running_permit: running, _queue_permit: queue_permit })
    }
}

/// The proxies whose statements about client addresses are trusted.
#[derive(Debug, Clone)]
pub(super) struct TrustedProxies {
    networks: Arc<[IpNetwork]>,
    has_warned: Arc<AtomicBool>,
}

impl TrustedProxies {
    /// Trusts the given networks and this machine.
    pub(super) fn new(networks: &[IpNetwork]) -> Self {
        let own = ["127.0.0.0/8", "::1"].iter().filter_map(|text| text.parse().ok());
        let networks = own.chain(networks.iter().copied()).collect();
        Self { networks, has_warned: Arc::default() }
    }

    /// Returns the address of the client behind trusted proxies.
    fn client_address(&self, headers: &HeaderMap, peer: Option<ConnectionPeer>) -> Option<IpAddr> {
        let sender = peer?.addr.ip().to_canonical();
        let is_passed_on = headers.contains_key("x-forwarded-for");
        if is_passed_on
            && !any_network_contains(&self.networks, sender)
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                address = %sender,
                "a login came through a proxy that is not listed in `trusted_proxies` of `[login]`; if it is \
                 yours, add it: until then, all its clients are counted as one"
            );
        }
        Some(forwarded_client_address(headers, sender, &self.networks))
    }
}

impl Logins {
    /// Returns the number of passwords that were hashed for checks, by which a test compares the work of attempts.
    #[must_use]
    pub fn hashed_password_count(&self) -> u64 {
        self.password_queue.hashed_passwords.load(Ordering::Relaxed)
    }

    /// Returns the account if the password is correct and there were not too many failures before.
    ///
    /// # Errors
    /// If the client has to wait; if the store fails.
    pub(super) async fn verify_password(
        &self,
        attempt: PasswordAttempt<'_>,
        now: SystemTime,
    ) -> Result<Option<LoginAccount>> {
        let account = self.read_login_account(attempt.user).await?;
        let client = LoginClient {
            user: attempt.user,
            address: self.trusted_proxies.client_address(attempt.headers, attempt.peer),
            browser: account.as_ref().and_then(|account| proven_browser_id(&attempt, account)),
        };
        let check_wait = || match self.throttle.login_backoff(client, now) {
            Some(wait) => Err(RequestFailure::too_many_attempts(wait)),
            None => Ok(()),
        };
        check_wait()?;
        let turn = self.password_queue.acquire(self.throttle.is_known_client(client, now)).await?;
        // Check again, because other attempts may have failed in the meantime; the permits limit how many run at once.
        check_wait()?;
        let (user, password) = (attempt.user.to_owned(), attempt.password.to_owned());
        let (address, browser) = (client.address, client.browser);
        let throttle: Arc<LoginThrottle> = Arc::clone(&self.throttle);
        let hashed_passwords = Arc::clone(&self.password_queue.hashed_passwords);
        let check = move || {
            let hash = account.as_ref().map(|account| account.password_hash.as_str());
            let is_right = matches_password_hash(hash, &password, &hashed_passwords);
            let client = LoginClient { user: &user, address, browser };
            match is_right {
                true => throttle.record_success(client, now),
                false => throttle.record_failure(client, now),
            }
            drop(turn);
            account.filter(|_| is_right)
        };
        Ok(tokio::task::spawn_blocking(check).await?)
    }
}

/// Returns true if the hash matches the password. Takes as long if there is no usable hash. Counts the hashing.
fn matches_password_hash(hash: Option<&str>, password: &str, count: &AtomicU64) -> bool {
    let verify = |hash: &PasswordHash| {
        count.fetch_add(1, Ordering::Relaxed);
        Argon2::default().verify_password(password.as_bytes(), hash).is_ok()
    };
    match hash.and_then(|hash| PasswordHash::new(hash).ok()) {
        Some(hash) => verify(&hash),
        None => {
            std::hint::black_box(
                PasswordHash::new(UNUSABLE_PASSWORD_HASH).is_ok_and(|nobody| verify(&nobody)),
            );
            false
        }
    }
}

/// Creates the token by which a browser later proves that the user has logged in with it. The token is valid until the
/// password changes.
///
/// # Errors
/// If the system's random source fails.
pub(super) fn create_browser_proof(user: &str, account: &LoginAccount) -> std::io::Result<String> {
    let number = random_token()?.get(..BROWSER_ID_DIGITS).unwrap_or_default().to_owned();
    let proof = compute_browser_proof(&number, user, account);
    Ok(format!("{number}.{proof}"))
}

/// Number of digits of a browser ID.
const BROWSER_ID_DIGITS: usize = 32;

/// Computes the proof of a browser. Only the server can do so, because the stored password hash is secret.
fn compute_browser_proof(number: &str, user: &str, account: &LoginAccount) -> String {
    hash_text(&format!("known browser\n{number}\n{user}\n{}", account.password_hash))
}

/// Returns the browser ID of an attempt, if the browser proves that this user has logged in with it.
fn proven_browser_id(attempt: &PasswordAttempt<'_>, account: &LoginAccount) -> Option<u128> {
    let cookie = find_cookie(attempt.headers, BROWSER_COOKIE)?;
    let (number, proof) = cookie.split_once('.')?;
    let is_number =
        number.len() == BROWSER_ID_DIGITS && number.bytes().all(|digit| digit.is_ascii_hexdigit());
    let expected = compute_browser_proof(number, attempt.user, account);
    let is_proof = bool::from(proof.as_bytes().ct_eq(expected.as_bytes()));
    if is_number && is_proof { u128::from_str_radix(number, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::{AccountPasswordError, PasswordHashError};

    fn account(hash: &str) -> LoginAccount {
        LoginAccount { password_hash: hash.to_owned(), identifier: None, created: None }
    }

    #[test]
    fn a_password_that_the_server_cannot_hash_is_no_fault_of_the_request() {
        let reason = PasswordHashError::Salt(getrandom::Error::UNSUPPORTED);
        let failure = RequestFailure::from(AccountPasswordError::from(reason));
        assert_eq!(failure.status, http::StatusCode::INTERNAL_SERVER_ERROR);
        assert!(!failure.message.contains("random"), "{failure:?}");
    }

    #[test]
    fn the_hash_of_nobody_costs_what_others_cost() {
        let hash = super::super::hash_password("violet-harbor-lantern").unwrap();
        let parameters = |hash: &str| hash.rsplitn(3, '$').nth(2).unwrap().to_owned();
        assert_eq!(parameters(UNUSABLE_PASSWORD_HASH), parameters(&hash));
        assert!(PasswordHash::new(UNUSABLE_PASSWORD_HASH).is_ok());
        let count = AtomicU64::new(0);
        assert!(matches_password_hash(Some(&hash), "violet-harbor-lantern", &count));
        for (hash, password) in
            [(Some(hash.as_str()), "violet"), (Some("{SHA-256}abc"), "abc"), (None, "")]
        {
            assert!(!matches_password_hash(hash, password, &count), "{hash:?}");
        }
        assert_eq!(count.into_inner(), 4);
    }

    #[test]
    fn a_browser_is_proven_for_its_user_until_the_password_changes() {
        let cookie = create_browser_proof("ann", &account("one")).unwrap();
        let check = |user: &str, hash: &str, cookie: &str| {
            let mut headers = HeaderMap::new();
            let header = format!("a=b; {BROWSER_COOKIE}={cookie}");
            headers.insert(http::header::COOKIE, header.parse().unwrap());
            let attempt = PasswordAttempt { user, password: "", headers: &headers, peer: None };
            proven_browser_id(&attempt, &account(hash)).is_some()
        };
        assert!(check("ann", "one", &cookie));
        assert!(!check("ann", "two", &cookie));
        assert!(!check("bob", "one", &cookie));
        let (number, proof) = cookie.split_once('.').unwrap();
        for forged in [
            number.to_owned(),
            format!("{number}."),
            format!("{:032x}.{proof}", 7),
            format!("+{}.{proof}", &number[1..]),
            proof.to_owned(),
        ] {
            assert!(!check("ann", "one", &forged), "{forged}");
        }
        assert_ne!(cookie, create_browser_proof("ann", &account("one")).unwrap());
    }

    #[tokio::test]
    async fn strangers_who_wait_keep_out_no_one_who_is_known() {
        let queue = PasswordCheckQueue::default();
        let mut turns = Vec::new();
        for _ in 0..MAX_PARALLEL_HASHES {
            turns.push(queue.acquire(false).await.unwrap());
        }
        let mut waiting = Vec::new();
        for _ in MAX_PARALLEL_HASHES..MAX_UNKNOWN_ATTEMPTS {
            let mut entering = Box::pin({
                let queue = queue.clone();
                async move { queue.acquire(false).await }
            });
            let is_waiting = std::future::poll_fn(|context| {
                std::task::Poll::Ready(entering.as_mut().poll(context).is_pending())
            });
            assert!(is_waiting.await);
            waiting.push(entering);
        }
        let refused = queue.acquire(false).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        let mut known_client = Box::pin(queue.acquire(true));
        let is_waiting = std::future::poll_fn(|context| {
            std::task::Poll::Ready(known_client.as_mut().poll(context).is_pending())
        });
        assert!(is_waiting.await, "it waits, and is not refused");
        drop(waiting);
        turns.pop();
        known_client.await.unwrap();
    }
}
