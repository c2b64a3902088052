//! Authentication: passwords, session cookies, tokens, and the CSRF token that a cookie requires.
//!
//! Users are nodes below `/home/users` (`rep:User`) with an Argon2id hash in `rep:password`. Basic and Bearer
//! credentials are accepted only over TLS or loopback. Password guessing is throttled (`login::throttle`).
//!
//! Invariants
//! * A stored token cannot be read back, and does not give access to a later user of the same name (`token`); a
//!   one-time link works once.
//! * Password checks use at most two threads at a time under any load, and a bounded queue (`password_check`).

pub(crate) mod password_policy;
pub(crate) mod secret;
pub(crate) mod throttle;

mod browser_challenge;
mod memory_session;
mod password_check;
mod token;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use argon2::{Argon2, PasswordHasher};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use sqlx::AnyPool;
use subtle::ConstantTimeEq;
use tympan_content::{NodePath, Property, Repository, Session, Value, Viewer};
use tympan_web::ip_network::IpNetwork;
use tympan_web::listen::ConnectionPeer;

pub(crate) use self::browser_challenge::replace_browser_challenge;
use self::memory_session::MemorySessions;
pub(crate) use self::password_check::PasswordAttempt;
use self::password_check::{PasswordCheckQueue, TrustedProxies, create_browser_proof};
pub use self::token::{AccountMark, LoginTokenScope, TokenInfo, TokenOwner, TokenTerms};
use self::token::{LoginTokenKind, TokenHolder, random_token};
use crate::failure::{RequestFailure, Result};
use crate::login::throttle::LoginThrottle;

/// The cookie with the session token.
pub(crate) const SESSION_COOKIE: &str = "tympan-login";
/// The headers with the CSRF token: that of this program, and AEM's.
const CSRF_HEADERS: [&str; 2] = ["x-csrf-token", "csrf-token"];
/// How long a verified Basic password is cached, by its hash.
const BASIC_LOGIN_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of cached Basic passwords.
const MAX_BASIC_LOGINS: usize = 1000;

/// The cookie that identifies a browser with which a user has logged in. It is sent to the login URL only.
const BROWSER_COOKIE: &str = "tympan-known";
/// Lifetime of the browser cookie.
const BROWSER_COOKIE_LIFETIME: Duration = Duration::from_secs(180 * 24 * 3600);

/// The error of creating a user with a password, or of setting one.
#[derive(Debug, thiserror::Error)]
pub enum AccountPasswordError {
    /// The account cannot be changed.
    #[error(transparent)]
    Content(#[from] tympan_content::Error),
    /// The password was not hashed; the account is not at fault.
    #[error("cannot hash the password")]
    Hash(#[from] PasswordHashError),
}

/// The reason why a password was not hashed.
#[derive(Debug, thiserror::Error)]
pub enum PasswordHashError {
    /// The system has no random bytes for the salt.
    #[error("cannot get random bytes from the system")]
    Salt(#[from] getrandom::Error),
    /// The hash function failed.
    #[error("the hash function failed")]
    Function(#[from] argon2::password_hash::Error),
}

impl From<AccountPasswordError> for RequestFailure {
    fn from(error: AccountPasswordError) -> Self {
        match error {
            AccountPasswordError::Content(error) => error.into(),
            error @ AccountPasswordError::Hash(_) => Self::internal(&error),
        }
    }
}

/// A session created with a password.
#[derive(Debug)]
pub(crate) struct NewSession {
    pub(crate) token: String,
    pub(crate) identity: RequestIdentity,
    /// The token by which the browser later proves that the user has logged in with it.
    pub(crate) browser_proof: String,
}

/// The authenticated user of a request, and the kind of credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestIdentity {
    pub(crate) user: String,
    /// The CSRF token that a write must repeat; `None` if the credentials are not a cookie.
    pub(crate) csrf_token: Option<String>,
    /// True if a browser may have sent the credentials automatically, as it does with stored Basic credentials.
    is_sent_by_browser: bool,
    /// The operations that the credentials permit.
    pub(crate) scope: LoginTokenScope,
}

impl RequestIdentity {
    /// Returns the viewer as which the request reads and changes content.
    pub(crate) fn viewer(&self) -> Viewer {
        Viewer::of_user(Some(&self.user))
    }

    /// Refuses a read-only token.
    pub(crate) fn require_write_scope(&self) -> Result<()> {
        match self.scope {
            LoginTokenScope::All => Ok(()),
            LoginTokenScope::Read => {
                let message = "this token is read-only; create another one with `tympan user token` without \
                    `--scope read`";
                Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
            }
            LoginTokenScope::Monitor => self.require_content_scope(),
        }
    }

    /// Refuses a monitoring token.
    pub(crate) fn require_content_scope(&self) -> Result<()> {
        match self.scope {
            LoginTokenScope::All | LoginTokenScope::Read => Ok(()),
            LoginTokenScope::Monitor => {
                let message = "this token is valid for `/health`, `/metrics` and `/manager/status` only; \
                    create one with another `--scope` with `tympan user token`";
                Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
            }
        }
    }
}

/// Determines whether a check of a session counts as its use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SessionUse {
    /// The check belongs to a request of the client.
    Request,
    /// A running stream checks whether the session is still valid.
    Stream,
}

/// The data of an account that logins use.
#[derive(Debug, Clone)]
struct LoginAccount {
    /// The hash of the password.
    password_hash: String,
    /// Distinguishes the account from others of the same name (`jcr:uuid`).
    identifier: Option<String>,
    created: Option<SystemTime>,
}

/// Verified Basic credentials with their expiry times, by the hash of the stored and the sent data.
type VerifiedBasicLogins = HashMap<[u8; 32], SystemTime>;

/// The logins of one instance.
#[derive(Debug, Clone)]
pub struct Logins {
    pool: AnyPool,
    repository: Repository,
    password_queue: PasswordCheckQueue,
    session_idle_timeout: Duration,
    trusted_proxies: TrustedProxies,
    verified_basic_logins: Arc<Mutex<VerifiedBasicLogins>>,
    throttle: Arc<LoginThrottle>,
    memory_sessions: Arc<MemorySessions>,
}

impl Logins {
    /// Creates the logins from a database that has this crate's table ([`crate::SERVER_MIGRATIONS`]) and the users of a
    /// repository.
    #[must_use]
    pub fn new(pool: AnyPool, repository: Repository) -> Self {
        Self {
            pool,
            repository,
            password_queue: PasswordCheckQueue::default(),
            session_idle_timeout: token::DEFAULT_SESSION_IDLE_TIMEOUT,
            trusted_proxies: TrustedProxies::new(&[]),
            verified_basic_logins: Arc::default(),
            throttle: Arc::default(),
            memory_sessions: Arc::default(),
        }
    }

    /// Sets the time without use after which sessions end.
    #[must_use]
    pub fn with_session_idle_timeout(self, session_idle: Duration) -> Self {
        Self { session_idle_timeout: session_idle, ..self }
    }

    /// Trusts proxies in these networks, besides those on this machine, to report client addresses (`X-Forwarded-For`).
    #[must_use]
    pub fn with_trusted_proxies(self, networks: &[IpNetwork]) -> Self {
        Self { trusted_proxies: TrustedProxies::new(networks), ..self }
    }

    /// Begins a session for a user with a correct password.
    pub(crate) async fn log_in(
        &self,
        attempt: PasswordAttempt<'_>,
        now: SystemTime,
    ) -> Result<NewSession> {
        let wrong = || RequestFailure::new(StatusCode::UNAUTHORIZED, "wrong user name or password");
        let account = self.verify_password(attempt, now).await?.ok_or_else(wrong)?;
        let (token, identity) = self.begin_session(attempt.user, &account, now).await?;
        let browser = create_browser_proof(attempt.user, &account)?;
        Ok(NewSession { token, identity, browser_proof: browser })
    }

    /// Begins a session for the holder of a one-time link's token, which is consumed.
    pub(crate) async fn log_in_by_link(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(String, RequestIdentity)> {
        let (user, account) = self.consume_login_link(token, now).await?;
        self.begin_session(&user, &account, now).await
    }

    async fn begin_session(
        &self,
        user: &str,
        account: &LoginAccount,
        now: SystemTime,
    ) -> Result<(String, RequestIdentity)> {
        let stored = self.issue_account_token(LoginTokenKind::Session, user, account, now).await;
        let token = self.stored_or_memory_token(stored, (user, account), now)?;
        let csrf = Some(csrf_token_of(&token));
        Ok((
            token,
            RequestIdentity {
                user: user.to_owned(),
                csrf_token: csrf,
                is_sent_by_browser: false,
                scope: LoginTokenScope::All,
            },
        ))
    }

    /// Ends the session of the cookie.
    pub(crate) async fn log_out(&self, headers: &HeaderMap) -> Result<()> {
        match session_cookie(headers) {
            Some(token) => self.end_session(&token).await,
            None => Ok(()),
        }
    }

    /// Authenticates a request; `None` if it has no credentials.
    ///
    /// Wrong credentials are an error, so that a typing mistake is not mistaken for an empty site.
    pub(crate) async fn identify(
        &self,
        (headers, peer): (&HeaderMap, Option<ConnectionPeer>),
        session_use: SessionUse,
        now: SystemTime,
    ) -> Result<Option<RequestIdentity>> {
        if let Some(credentials) = headers.get(header::AUTHORIZATION) {
            if !peer.is_some_and(|peer| peer.is_tls || peer.is_loopback) {
                let message = "credentials are accepted only over TLS or from this machine";
                return Err(RequestFailure::new(StatusCode::FORBIDDEN, message));
            }
            let wrong =
                || RequestFailure::new(StatusCode::UNAUTHORIZED, "the credentials are not valid");
            let credentials = credentials.to_str().map_err(|_| wrong())?;
            let holder = match credentials.split_once(' ') {
                Some((scheme, rest)) if scheme.eq_ignore_ascii_case("basic") => {
                    let user = self.identify_basic(rest, (headers, peer), now).await?;
                    user.map(|user| TokenHolder { user, scope: LoginTokenScope::All })
                }
                Some((scheme, rest)) if scheme.eq_ignore_ascii_case("bearer") => {
                    self.find_token_holder(rest.trim(), LoginTokenKind::Token, session_use, now)
                        .await?
                }
                _ => None,
            };
            let TokenHolder { user, scope } = holder.ok_or_else(wrong)?;
            let is_remembered = is_basic_scheme(credentials);
            return Ok(Some(RequestIdentity {
                user,
                csrf_token: None,
                is_sent_by_browser: is_remembered,
                scope,
            }));
        }
        let Some(token) = session_cookie(headers) else { return Ok(None) };
        let holder = match self.memory_session_user(&token, now).await? {
            Some(user) => Some(TokenHolder { user, scope: LoginTokenScope::All }),
            None => {
                self.find_token_holder(&token, LoginTokenKind::Session, session_use, now).await?
            }
        };
        let csrf = Some(csrf_token_of(&token));
        Ok(holder.map(|TokenHolder { user, scope }| RequestIdentity {
            user,
            csrf_token: csrf,
            is_sent_by_browser: false,
            scope,
        }))
    }

    async fn identify_basic(
        &self,
        encoded: &str,
        (headers, peer): (&HeaderMap, Option<ConnectionPeer>),
        now: SystemTime,
    ) -> Result<Option<String>> {
        let Some(decoded) =
            STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok())
        else {
            return Ok(None);
        };
        let Some((user, password)) = decoded.split_once(':') else { return Ok(None) };
        let attempt = PasswordAttempt { user, password, headers, peer };
        // The stored hash is part of the key, so that a password change takes effect immediately.
        let Some(account) = self.read_login_account(user).await? else {
            self.check_password(attempt, now).await?;
            return Ok(None);
        };
        let key: [u8; 32] = Sha256::digest(format!("{}\n{decoded}", account.password_hash)).into();
        if self.verified_basic_logins.lock().get(&key).is_some_and(|until| *until > now) {
            return Ok(Some(user.to_owned()));
        }
        if !self.check_password(attempt, now).await? {
            return Ok(None);
        }
        let mut verified_logins = self.verified_basic_logins.lock();
        verified_logins.retain(|_, until| *until > now);
        if verified_logins.len() < MAX_BASIC_LOGINS {
            verified_logins.insert(key, now + BASIC_LOGIN_LIFETIME);
        }
        Ok(Some(user.to_owned()))
    }

    /// Returns a user's account data; `None` if the user may not log in.
    async fn read_login_account(&self, user: &str) -> Result<Option<LoginAccount>> {
        let (repository, user) = (self.repository.clone(), user.to_owned());
        Ok(tokio::task::spawn_blocking(move || read_account(&repository, &user)).await??)
    }

    /// Returns true if a password is correct and there were not too many failures before.
    ///
    /// # Errors
    /// As [`Logins::verify_password`].
    pub(crate) async fn check_password(
        &self,
        attempt: PasswordAttempt<'_>,
        now: SystemTime,
    ) -> Result<bool> {
        Ok(self.verify_password(attempt, now).await?.is_some())
    }
}

/// Reads a user's account data; `None` if the user may not log in.
fn read_account(
    repository: &Repository,
    user: &str,
) -> tympan_content::Result<Option<LoginAccount>> {
    if !repository.can_log_in(user)? {
        return Ok(None);
    }
    let Some(path) = repository.account_path(user)? else { return Ok(None) };
    let Some(node) = repository.snapshot()?.node(&path)? else { return Ok(None) };
    let created = node.property("jcr:created");
    let created = match created.as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(date.to_system_time()),
        _ => None,
    };
    let identifier = node.text("jcr:uuid").filter(|identifier| !identifier.is_empty());
    let hash = node.text("rep:password");
    Ok(hash.map(|hash| LoginAccount { password_hash: hash, identifier, created }))
}

/// Creates a user with a password.
///
/// # Errors
/// If the name is not valid, the user exists, or hashing fails. The session is not committed.
pub fn create_user(
    session: &mut Session,
    user: &str,
    password: &str,
) -> Result<(), AccountPasswordError> {
    create_user_in(session, "", user, password).map(drop)
}

/// Creates a user with a password as [`create_user`] does, in a folder below `/home/users`. Returns the path of the
/// user.
///
/// # Errors
/// As [`create_user`], and if a node on the path is not a folder.
pub(crate) fn create_user_in(
    session: &mut Session,
    folder: &str,
    user: &str,
    password: &str,
) -> Result<NodePath, AccountPasswordError> {
    Ok(session.accounts().add_user_in(folder, user, &hash_password(password)?)?)
}

/// Sets the password of a user.
///
/// # Errors
/// If there is no such user or hashing fails. The session is not committed.
pub fn set_password(
    session: &mut Session,
    user: &str,
    password: &str,
) -> Result<(), AccountPasswordError> {
    let path = session.accounts().account_path(user)?;
    let hash = hash_password(password)?;
    Ok(session.set_property(&path, "rep:password", Property::text(hash))?)
}

fn hash_password(password: &str) -> Result<String, PasswordHashError> {
    let mut salt = [0; 16];
    getrandom::fill(&mut salt)?;
    Ok(Argon2::default().hash_password_with_salt(password.as_bytes(), &salt)?.to_string())
}

/// Returns the CSRF token in the headers of a request.
pub(crate) fn sent_csrf_token(headers: &HeaderMap) -> Option<&str> {
    CSRF_HEADERS.iter().find_map(|name| headers.get(*name)).and_then(|value| value.to_str().ok())
}

/// Checks that a write that a browser could be tricked into sending repeats the CSRF token.
pub(crate) fn check_csrf_token(identity: &RequestIdentity, token: Option<&str>) -> Result<()> {
    let Some(expected) = &identity.csrf_token else { return Ok(()) };
    let is_right =
        token.is_some_and(|token| bool::from(token.as_bytes().ct_eq(expected.as_bytes())));
    if is_right {
        Ok(())
    } else {
        let message = "the CSRF token is missing or wrong; send the token of `/api/v1/me` in the header \
            X-CSRF-Token";
        Err(RequestFailure::new(StatusCode::FORBIDDEN, message))
    }
}

/// Refuses a write that another site made a browser send with stored credentials.
pub(crate) fn check_request_origin(identity: &RequestIdentity, headers: &HeaderMap) -> Result<()> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let is_foreign_fetch =
        text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"));
    let host = text("host").unwrap_or_default();
    let is_foreign_origin = text("origin")
        .is_some_and(|origin| origin.split_once("://").map(|(_, rest)| rest) != Some(host));
    if identity.is_sent_by_browser && (is_foreign_fetch || is_foreign_origin) {
        return Err(RequestFailure::new(
            StatusCode::FORBIDDEN,
            "cross-site writes are not allowed",
        ));
    }
    Ok(())
}

fn is_basic_scheme(credentials: &str) -> bool {
    credentials.split_once(' ').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
}

/// Returns true if a request has credentials of any kind.
pub(crate) fn has_credentials(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION) || session_cookie(headers).is_some()
}

/// Returns the session token in the request's cookies.
fn session_cookie(headers: &HeaderMap) -> Option<String> {
    find_cookie(headers, SESSION_COOKIE)
}

fn find_cookie(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    cookies
        .flat_map(|cookies| cookies.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

/// Returns the `Set-Cookie` value that begins a session, or ends it if there is no token.
pub(crate) fn session_set_cookie(token: Option<&str>, is_tls: bool) -> String {
    let secure = if is_tls { "; Secure" } else { "" };
    match token {
        Some(token) => format!("{SESSION_COOKIE}={token}; Path=/; HttpOnly; SameSite=Lax{secure}"),
        None => format!("{SESSION_COOKIE}=; Path=/; HttpOnly; SameSite=Lax; Max-Age=0{secure}"),
    }
}

/// Returns the `Set-Cookie` value by which a browser later proves that its user has logged in with it.
pub(crate) fn browser_set_cookie(proof: &str, is_tls: bool) -> String {
    let secure = if is_tls { "; Secure" } else { "" };
    let lifetime_seconds = BROWSER_COOKIE_LIFETIME.as_secs();
    format!(
        "{BROWSER_COOKIE}={proof}; Path=/login; HttpOnly; SameSite=Lax; Max-Age={lifetime_seconds}{secure}"
    )
}

fn csrf_token_of(token: &str) -> String {
    hash_text(&format!("csrf {token}"))
}

fn hash_text(text: &str) -> String {
    hex::encode(Sha256::digest(text))
}

fn to_unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
