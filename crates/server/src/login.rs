//! Who asks: passwords, session cookies, tokens, and the CSRF token that a cookie needs.
//!
//! Users are nodes below `/home/users` (`rep:User`) with an Argon2id hash in `rep:password`. Tokens are random; the
//! state database holds their SHA-256 only. Basic and Bearer credentials are taken over TLS or loopback alone.
//! Who guesses passwords is slowed down (`throttle`).
//!
//! Invariants
//! * A token that is stored cannot be read back; a one-time link works once.
//! * Checking passwords uses at most two threads at a time, whatever arrives.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use argon2::password_hash::phc::PasswordHash;
use argon2::{Argon2, PasswordHasher, PasswordVerifier};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest, Sha256};
use sqlx::{AnyPool, Row};
use subtle::ConstantTimeEq;
use tokio::sync::Semaphore;
use tympan_content::{NodePath, Property, Repository, Session};
use tympan_web::listen::Peer;

use crate::failure::{Failure, Result};
use crate::throttle::Throttle;

/// The cookie that holds a session's token.
pub(crate) const COOKIE: &str = "tympan-login";
/// The header that repeats the CSRF token.
pub(crate) const CSRF_HEADER: &str = "x-csrf-token";
/// How long a session lives after its login.
const SESSION_LIFE: Duration = Duration::from_secs(12 * 3600);
/// How long a one-time link works.
const LINK_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long a verified Basic password is remembered, by its hash.
const BASIC_LIFE: Duration = Duration::from_secs(60);
/// How many letters of a token's hash name it.
const TOKEN_ID_LETTERS: usize = 12;
/// How many verified Basic passwords are remembered.
const BASIC_MAX: usize = 1000;

/// Who asks, and how they proved it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) user: String,
    /// The CSRF token that a write must repeat; nothing where the proof is not a cookie.
    pub(crate) csrf: Option<String>,
    /// Whether a browser may have sent the proof by itself, as it does with Basic credentials that it remembers.
    pub(crate) is_remembered: bool,
}

/// Whether a token is a session's, a program's or a one-time link's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Session,
    Token,
    Link,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Token => "token",
            Self::Link => "link",
        }
    }
}

/// Basic credentials that were verified, by the hash of what was stored and sent, and until when they count.
type Verified = HashMap<[u8; 32], SystemTime>;

/// The logins of one instance.
#[derive(Debug, Clone)]
pub struct Logins {
    pool: AnyPool,
    repository: Repository,
    checks: Arc<Semaphore>,
    basic: Arc<Mutex<Verified>>,
    throttle: Arc<Throttle>,
}

/// What is known of a token without knowing it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenInfo {
    /// What names it: the start of its hash.
    pub id: String,
    /// Whose it is.
    pub user: String,
    /// `session`, `token` or `link`.
    pub kind: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// When it ends, in seconds since 1970.
    pub expires: Option<i64>,
}

impl Logins {
    /// Uses a database that has this room's table ([`crate::MIGRATIONS`]) and the users of a repository.
    #[must_use]
    pub fn new(pool: AnyPool, repository: Repository) -> Self {
        Self {
            pool,
            repository,
            checks: Arc::new(Semaphore::new(2)),
            basic: Arc::default(),
            throttle: Arc::default(),
        }
    }

    /// Makes a token for a program and returns it; it is shown this once. Without `life` it works until it is revoked.
    ///
    /// # Errors
    /// If the database or the system's random source fails.
    pub async fn issue_token(
        pool: &AnyPool,
        user: &str,
        now: SystemTime,
        life: Option<Duration>,
    ) -> std::io::Result<String> {
        issue(pool, Kind::Token, user, now, life).await
    }

    /// Lists the tokens that work, those of programs and sessions alike, of one user or of all.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn tokens(
        pool: &AnyPool,
        user: Option<&str>,
        now: SystemTime,
    ) -> std::io::Result<Vec<TokenInfo>> {
        let rows = sqlx::query(
            "SELECT token_hash, user_name, kind, created, expires FROM login \
             WHERE (expires IS NULL OR expires > $1) ORDER BY created, token_hash",
        )
        .bind(seconds(now))
        .fetch_all(pool)
        .await
        .map_err(std::io::Error::other)?;
        let read = |row: &sqlx::any::AnyRow| -> sqlx::Result<TokenInfo> {
            let hash: String = row.try_get(0)?;
            Ok(TokenInfo {
                id: hash.get(..TOKEN_ID_LETTERS).unwrap_or(&hash).to_owned(),
                user: row.try_get(1)?,
                kind: row.try_get(2)?,
                created: row.try_get(3)?,
                expires: row.try_get(4)?,
            })
        };
        let tokens = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>();
        let mut tokens = tokens.map_err(std::io::Error::other)?;
        tokens.retain(|token| user.is_none_or(|user| token.user == user));
        Ok(tokens)
    }

    /// Takes back one token by the name that [`Logins::tokens`] gives. Tells whether there was one.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn revoke_token(pool: &AnyPool, id: &str) -> std::io::Result<bool> {
        if id.len() != TOKEN_ID_LETTERS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(false);
        }
        let done = sqlx::query("DELETE FROM login WHERE token_hash LIKE $1")
            .bind(format!("{id}%"))
            .execute(pool)
            .await;
        done.map(|done| done.rows_affected() > 0).map_err(std::io::Error::other)
    }

    /// Ends every session and takes back every token of a user, as after a change of the password.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn revoke(pool: &AnyPool, user: &str) -> std::io::Result<u64> {
        let done =
            sqlx::query("DELETE FROM login WHERE user_name = $1").bind(user).execute(pool).await;
        done.map(|done| done.rows_affected()).map_err(std::io::Error::other)
    }

    /// Ends the sessions and takes back the tokens of a user, but for the session that a request came with.
    pub(crate) async fn revoke_others(&self, user: &str, headers: &HeaderMap) -> Result<u64> {
        let own = cookie(headers).map(|token| hash_of(&token)).unwrap_or_default();
        let done = sqlx::query("DELETE FROM login WHERE user_name = $1 AND token_hash <> $2")
            .bind(user)
            .bind(own)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected())
    }

    /// Makes the token of a link that logs in once.
    ///
    /// # Errors
    /// If the database or the system's random source fails.
    pub async fn create_link(&self, user: &str, now: SystemTime) -> std::io::Result<String> {
        issue(&self.pool, Kind::Link, user, now, Some(LINK_LIFE)).await
    }

    /// Begins a session for whoever knows the password.
    pub(crate) async fn log_in(
        &self,
        user: &str,
        password: &str,
        peer: Option<Peer>,
        now: SystemTime,
    ) -> Result<(String, Identity)> {
        if !self.check_password(user, password, peer, now).await? {
            return Err(Failure::new(
                StatusCode::UNAUTHORIZED,
                "user name and password do not match",
            ));
        }
        self.begin_session(user, now).await
    }

    /// Begins a session for whoever holds a one-time link's token, which is used up.
    pub(crate) async fn log_in_by_link(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(String, Identity)> {
        let row = sqlx::query(
            "DELETE FROM login WHERE token_hash = $1 AND kind = 'link' AND expires > $2 RETURNING user_name",
        )
        .bind(hash_of(token))
        .bind(seconds(now))
        .fetch_optional(&self.pool)
        .await?;
        let spent =
            || Failure::new(StatusCode::UNAUTHORIZED, "this login link was used or is too old");
        let user: String = row.ok_or_else(spent)?.try_get(0)?;
        self.begin_session(&user, now).await
    }

    async fn begin_session(&self, user: &str, now: SystemTime) -> Result<(String, Identity)> {
        sqlx::query("DELETE FROM login WHERE expires <= $1")
            .bind(seconds(now))
            .execute(&self.pool)
            .await?;
        let token = issue(&self.pool, Kind::Session, user, now, Some(SESSION_LIFE)).await?;
        let csrf = Some(csrf_of(&token));
        Ok((token, Identity { user: user.to_owned(), csrf, is_remembered: false }))
    }

    /// Ends the session whose token a cookie holds.
    pub(crate) async fn log_out(&self, headers: &HeaderMap) -> Result<()> {
        if let Some(token) = cookie(headers) {
            sqlx::query("DELETE FROM login WHERE token_hash = $1")
                .bind(hash_of(&token))
                .execute(&self.pool)
                .await?;
        }
        Ok(())
    }

    /// Tells who asks; nobody if the request proves nothing.
    ///
    /// Credentials that are wrong are an error, so that nobody takes a typing mistake for an empty site.
    pub(crate) async fn identify(
        &self,
        headers: &HeaderMap,
        peer: Option<Peer>,
        now: SystemTime,
    ) -> Result<Option<Identity>> {
        if let Some(credentials) = headers.get(header::AUTHORIZATION) {
            if !peer.is_some_and(|peer| peer.is_tls || peer.is_loopback) {
                let message = "credentials are taken over TLS or from this machine only";
                return Err(Failure::new(StatusCode::FORBIDDEN, message));
            }
            let wrong = || Failure::new(StatusCode::UNAUTHORIZED, "the credentials are not valid");
            let credentials = credentials.to_str().map_err(|_| wrong())?;
            let user = match credentials.split_once(' ') {
                Some((scheme, rest)) if scheme.eq_ignore_ascii_case("basic") => {
                    self.basic(rest, peer, now).await?
                }
                Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => {
                    self.holder(rest.trim(), Kind::Token, now).await?
                }
                _ => None,
            };
            let user = user.ok_or_else(wrong)?;
            let is_remembered = scheme_is_basic(credentials);
            return Ok(Some(Identity { user, csrf: None, is_remembered }));
        }
        let Some(token) = cookie(headers) else { return Ok(None) };
        let user = self.holder(&token, Kind::Session, now).await?;
        Ok(user.map(|user| Identity { user, csrf: Some(csrf_of(&token)), is_remembered: false }))
    }

    /// Returns the user who holds a token.
    async fn holder(&self, token: &str, kind: Kind, now: SystemTime) -> Result<Option<String>> {
        let row = sqlx::query(
            "SELECT user_name FROM login WHERE token_hash = $1 AND kind = $2 AND (expires IS NULL OR expires > $3)",
        )
        .bind(hash_of(token))
        .bind(kind.name())
        .bind(seconds(now))
        .fetch_optional(&self.pool)
        .await?;
        let Some(user) = row.map(|row| row.try_get::<String, _>(0)).transpose()? else {
            return Ok(None);
        };
        // A token lives no longer than its user.
        let is_known = self.stored_hash(&user).await?.is_some();
        Ok(is_known.then_some(user))
    }

    async fn basic(
        &self,
        encoded: &str,
        peer: Option<Peer>,
        now: SystemTime,
    ) -> Result<Option<String>> {
        let Some(decoded) =
            STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok())
        else {
            return Ok(None);
        };
        let Some((user, password)) = decoded.split_once(':') else { return Ok(None) };
        // The stored hash is part of the key, so that a changed password counts at once.
        let Some(stored) = self.stored_hash(user).await? else {
            self.check_password(user, password, peer, now).await?;
            return Ok(None);
        };
        let key: [u8; 32] = Sha256::digest(format!("{stored}\n{decoded}")).into();
        if self.basic.lock().get(&key).is_some_and(|until| *until > now) {
            return Ok(Some(user.to_owned()));
        }
        if !self.check_password(user, password, peer, now).await? {
            return Ok(None);
        }
        let mut known = self.basic.lock();
        known.retain(|_, until| *until > now);
        if known.len() < BASIC_MAX {
            known.insert(key, now + BASIC_LIFE);
        }
        Ok(Some(user.to_owned()))
    }

    /// Returns the hash of a user's password; nothing for whoever may not log in.
    async fn stored_hash(&self, user: &str) -> Result<Option<String>> {
        let (repository, user) = (self.repository.clone(), user.to_owned());
        tokio::task::spawn_blocking(move || {
            if !repository.may_log_in(&user)? {
                return Ok(None);
            }
            let Some(path) = repository.account_path(&user)? else { return Ok(None) };
            Ok(repository.snapshot()?.node(&path)?.and_then(|node| node.text("rep:password")))
        })
        .await?
    }

    /// Tells whether a password is right, unless too many were wrong before.
    ///
    /// # Errors
    /// If it has to wait; if the store fails.
    pub(crate) async fn check_password(
        &self,
        user: &str,
        password: &str,
        peer: Option<Peer>,
        now: SystemTime,
    ) -> Result<bool> {
        let address = peer.map(|peer| peer.addr.ip());
        // Asked only with the permit, so that no more attempts run at once than there are permits.
        let permit = self.checks.acquire().await;
        if let Some(wait) = self.throttle.wait(user, address, now) {
            return Err(Failure::too_soon(wait));
        }
        let stored = self.stored_hash(user).await?;
        let password = password.to_owned();
        let is_right = tokio::task::spawn_blocking(move || {
            // An unknown user costs as much as a known one, so that names cannot be told apart by time.
            let hash = stored.as_deref().unwrap_or(NOBODY);
            let matches = PasswordHash::new(hash).is_ok_and(|hash| {
                Argon2::default().verify_password(password.as_bytes(), &hash).is_ok()
            });
            matches && stored.is_some()
        })
        .await?;
        if is_right {
            self.throttle.succeeded(user, address, now);
        } else {
            self.throttle.failed(user, address, now);
        }
        drop(permit);
        Ok(is_right)
    }
}

/// Stores a new token and returns it.
async fn issue(
    pool: &AnyPool,
    kind: Kind,
    user: &str,
    now: SystemTime,
    life: Option<Duration>,
) -> std::io::Result<String> {
    let token = random_token()?;
    sqlx::query("INSERT INTO login (token_hash, kind, user_name, created, expires) VALUES ($1, $2, $3, $4, $5)")
        .bind(hash_of(&token))
        .bind(kind.name())
        .bind(user)
        .bind(seconds(now))
        .bind(life.map(|life| seconds(now + life)))
        .execute(pool)
        .await
        .map_err(std::io::Error::other)?;
    Ok(token)
}

/// The hash of a password that nobody knows.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$dHltcGFuLW5vYm9keS0x$mHk8hq1Xwz7s1xgCqv9D0ZQ0pQm9m1n2b3v4c5x6z7A";

/// Adds a user whom a password identifies.
///
/// # Errors
/// If the name is not valid, the user exists, or hashing fails. The session is not committed.
pub fn create_user(
    session: &mut Session,
    user: &str,
    password: &str,
) -> tympan_content::Result<()> {
    let path = NodePath::new("/home/users")?.child(user)?;
    session.add_user(user, &hash_password(&path, password)?)
}

/// Gives a user another password.
///
/// # Errors
/// If there is no such user or hashing fails. The session is not committed.
pub fn set_password(
    session: &mut Session,
    user: &str,
    password: &str,
) -> tympan_content::Result<()> {
    let path = session.account(user)?;
    let hash = hash_password(&path, password)?;
    session.set_property(&path, "rep:password", Property::text(hash))
}

fn hash_password(path: &NodePath, password: &str) -> tympan_content::Result<String> {
    let failed = |reason| tympan_content::Error::Refused {
        action: "set the password of",
        path: path.clone(),
        reason,
    };
    let mut salt = [0; 16];
    getrandom::fill(&mut salt).map_err(|_| failed("the system gives no random bytes"))?;
    let hash = Argon2::default().hash_password_with_salt(password.as_bytes(), &salt);
    Ok(hash.map_err(|_| failed("it cannot be hashed"))?.to_string())
}

/// Checks that a write which a browser could be tricked into repeats the CSRF token.
pub(crate) fn check_csrf(identity: &Identity, given: Option<&str>) -> Result<()> {
    let Some(expected) = &identity.csrf else { return Ok(()) };
    let is_right =
        given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(expected.as_bytes())));
    if is_right {
        Ok(())
    } else {
        let message = "the CSRF token is missing or wrong; send the one of `/api/v1/me` in the header X-CSRF-Token";
        Err(Failure::new(StatusCode::FORBIDDEN, message))
    }
}

/// Refuses a write that another site made a browser send with credentials which it remembers.
pub(crate) fn check_origin(identity: &Identity, headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let is_foreign_fetch =
        text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let host = text("host").unwrap_or_default();
    let is_foreign_origin = text("origin")
        .is_some_and(|origin| origin.split_once("://").map(|(_, rest)| rest) != Some(host));
    if identity.is_remembered && (is_foreign_fetch || is_foreign_origin) {
        return Err(Failure::new(StatusCode::FORBIDDEN, "this write comes from another site"));
    }
    Ok(())
}

fn scheme_is_basic(credentials: &str) -> bool {
    credentials.split_once(' ').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
}

/// Returns the session token in the request's cookies.
fn cookie(headers: &HeaderMap) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('=').map(str::to_owned))
}

/// Returns the `Set-Cookie` value that begins a session, or ends it without a token.
pub(crate) fn set_cookie(token: Option<&str>, is_tls: bool) -> String {
    let secure = if is_tls { "; Secure" } else { "" };
    match token {
        Some(token) => format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"),
        None => format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0{secure}"),
    }
}

fn csrf_of(token: &str) -> String {
    hash_of(&format!("csrf {token}"))
}

fn hash_of(text: &str) -> String {
    hex(&Sha256::digest(text))
}

fn random_token() -> std::io::Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
