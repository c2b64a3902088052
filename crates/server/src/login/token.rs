//! Tokens of sessions, programs and one-time links: their owners and lifetimes.
//!
//! In: the table `login` of the state database. Out: the holder of a token.
//!
//! Invariants
//! * Only the SHA-256 of a token is stored.
//! * A token belongs to an account, identified by its `jcr:uuid`: however the account is removed, the token does not
//!   give access to a later account of the same name.
//! * A token belongs to the password that the account had when the token was created: any change of the password (by
//!   the form, a package, a write to the node, a command, a restored state) ends it. Disabling an account ends its
//!   tokens permanently.
//! * A token created where the content could not be read (`tympan user token` while the instance runs) is bound to an
//!   account at its first use or cleanup, and only to an account that is at least as old as the token.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use sqlx::any::AnyRow;
use sqlx::{AnyPool, Row};
use tympan_content::Repository;
use tympan_notation::parse_duration;

use super::{
    LoginAccount, Logins, SessionUse, hash_text, read_account, session_cookie, to_unix_seconds,
};
use crate::failure::{RequestFailure, Result, is_write_refused};

/// Maximum lifetime of a session.
const SESSION_LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Default time without requests after which a session ends.
pub(super) const DEFAULT_SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(2 * 3600);
/// Minimum interval between two updates of a session's last use.
const SESSION_USE_RECORD_INTERVAL: Duration = Duration::from_secs(60);
/// Lifetime of a one-time link.
const LINK_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Number of digits of a token's hash that form its ID.
const TOKEN_ID_LETTERS: usize = 12;

/// The kind of a token: session, program or one-time link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginTokenKind {
    Session,
    Token,
    Link,
}

impl LoginTokenKind {
    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Token => "token",
            Self::Link => "link",
        }
    }

    /// Returns the default lifetime of a token of this kind.
    fn default_lifetime(self) -> Option<Duration> {
        match self {
            Self::Session => Some(SESSION_LIFETIME),
            Self::Link => Some(LINK_LIFETIME),
            Self::Token => None,
        }
    }
}

/// The operations that a program's token permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoginTokenScope {
    /// Everything that its user may do.
    #[default]
    All,
    /// Reading what its user may read.
    Read,
    /// Reading the metrics and the state of the instance, but no content, whoever its user is.
    Monitor,
}

impl LoginTokenScope {
    /// Returns the name of the scope in the database and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Read => "read",
            Self::Monitor => "monitor",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "all" => Self::All,
            "monitor" => Self::Monitor,
            // Treat an unknown scope, stored by a later version, as restricted.
            _ => Self::Read,
        }
    }
}

/// Scope and lifetime of a program's new token. The default is unlimited in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenTerms {
    /// Lifetime; if `None`, the token is valid until it is revoked.
    pub lifetime: Option<Duration>,
    /// The permitted operations.
    pub scope: LoginTokenScope,
}

impl TokenTerms {
    /// Parses the lifetime of a token: from a second to a century, which is effectively unlimited and avoids overflows
    /// later, or `never` for one that is valid until it is revoked.
    ///
    /// # Errors
    /// If the text is no such lifetime; the message says why.
    pub fn parse(expires: &str, scope: LoginTokenScope) -> Result<Self, String> {
        const MAX_TOKEN_LIFETIME: Duration = Duration::from_hours(100 * 365 * 24);
        if expires == "never" {
            return Ok(Self { lifetime: None, scope });
        }
        let lifetime = parse_duration(expires).map_err(|error| error.to_string())?;
        if !(Duration::from_secs(1)..=MAX_TOKEN_LIFETIME).contains(&lifetime) {
            return Err(format!("`{expires}` is not between `1s` and `36500d`, or `never`"));
        }
        Ok(Self { lifetime: Some(lifetime), scope })
    }
}

/// The holder of a token, and the permitted operations.
pub(super) struct TokenHolder {
    pub(super) user: String,
    pub(super) scope: LoginTokenScope,
}

/// Public information about a token, without the token itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenInfo {
    /// ID of the token: the beginning of its hash.
    pub id: String,
    /// Name of the user.
    pub user: String,
    /// `session`, `token` or `link`.
    pub kind: String,
    /// Creation time, in seconds since 1970.
    pub created: i64,
    /// Expiry time, in seconds since 1970.
    pub expires: Option<i64>,
    /// Permitted operations: `all`, `read` or `monitor`.
    pub scope: String,
}

/// The owner of a new token.
#[derive(Debug, Clone, Copy)]
pub struct TokenOwner<'a> {
    /// The name of the user.
    pub user: &'a str,
    /// Identifies the account; `None` if unknown, until the token is first used.
    pub account: Option<&'a AccountMark>,
}

/// Distinguishes an account and its password from earlier and later accounts of the same name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountMark {
    /// The account's `jcr:uuid`.
    account_id: String,
    /// The hash of the stored password hash.
    password_mark: String,
}

impl AccountMark {
    /// Reads the mark of a user who may log in. An account without an identifier is given one.
    ///
    /// # Errors
    /// If the store fails.
    pub fn of_user(
        repository: &Repository,
        user: &str,
        now: SystemTime,
    ) -> tympan_content::Result<Option<Self>> {
        let Some(account) = read_account(repository, user)? else { return Ok(None) };
        let identifier = match &account.identifier {
            Some(account_id) => Some(account_id.clone()),
            None => {
                repository.assign_account_identifiers(now)?;
                repository.account_identifier(user)?
            }
        };
        let password = account.password_mark();
        Ok(identifier.map(|identifier| Self { account_id: identifier, password_mark: password }))
    }
}

impl LoginAccount {
    /// Returns a value that distinguishes the password from earlier and later ones and does not help to guess it.
    fn password_mark(&self) -> String {
        hash_text(&format!("password {}", self.password_hash))
    }
}

/// A stored token.
struct StoredToken {
    user: String,
    account_id: Option<String>,
    /// Identifies the password of the account at that time.
    password_mark: Option<String>,
    created_ms: i64,
    scope: LoginTokenScope,
    /// Time of the last use, or of the creation, in seconds since 1970.
    last_used_seconds: i64,
}

/// The columns of [`StoredToken`].
const STORED_TOKEN_COLUMNS: &str = "user_name, account, COALESCE(created_ms, created * 1000), COALESCE(scope, 'all'), COALESCE(seen, created), password_mark";

impl StoredToken {
    fn from_row(row: &AnyRow) -> sqlx::Result<Self> {
        let scope: String = row.try_get(3)?;
        let scope = LoginTokenScope::from_name(&scope);
        Ok(Self {
            user: row.try_get(0)?,
            account_id: row.try_get(1)?,
            created_ms: row.try_get(2)?,
            scope,
            last_used_seconds: row.try_get(4)?,
            password_mark: row.try_get(5)?,
        })
    }

    /// Returns true if the token belongs to this account and its current password.
    fn is_of_account(&self, account: &LoginAccount) -> bool {
        let is_same_account = match &self.account_id {
            Some(bound) => account.identifier.as_ref() == Some(bound),
            None => account.created.is_some_and(|created| to_millis(created) <= self.created_ms),
        };
        let is_same_password =
            self.password_mark.as_ref().is_none_or(|mark| *mark == account.password_mark());
        is_same_account && is_same_password
    }

    fn is_bound(&self) -> bool {
        self.account_id.is_some() && self.password_mark.is_some()
    }
}

impl Logins {
    /// Creates and returns a token for a program; it cannot be read again later. It ends according to its terms, or
    /// when it is revoked.
    ///
    /// # Errors
    /// If the database or the system's random source fails.
    pub async fn issue_token(
        pool: &AnyPool,
        owner: TokenOwner<'_>,
        now: SystemTime,
        terms: TokenTerms,
    ) -> std::io::Result<String> {
        store_new_token(pool, LoginTokenKind::Token, owner, now, terms).await
    }

    /// Lists the valid tokens of programs and sessions, of one user or of all users.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list_tokens(
        pool: &AnyPool,
        user: Option<&str>,
        now: SystemTime,
    ) -> std::io::Result<Vec<TokenInfo>> {
        let rows = sqlx::query(
            "SELECT token_hash, user_name, kind, created, expires, COALESCE(scope, 'all') FROM login \
             WHERE (expires IS NULL OR expires > $1) ORDER BY created, token_hash",
        )
        .bind(to_unix_seconds(now))
        .fetch_all(pool)
        .await
        .map_err(std::io::Error::other)?;
        let read = |row: &AnyRow| -> sqlx::Result<TokenInfo> {
            let hash: String = row.try_get(0)?;
            Ok(TokenInfo {
                id: hash.get(..TOKEN_ID_LETTERS).unwrap_or(&hash).to_owned(),
                user: row.try_get(1)?,
                kind: row.try_get(2)?,
                created: row.try_get(3)?,
                expires: row.try_get(4)?,
                scope: row.try_get(5)?,
            })
        };
        let tokens = rows.iter().map(read).collect::<sqlx::Result<Vec<_>>>();
        let mut tokens = tokens.map_err(std::io::Error::other)?;
        tokens.retain(|token| user.is_none_or(|user| token.user == user));
        Ok(tokens)
    }

    /// Revokes the token with an ID from [`Logins::list_tokens`]. Returns true if it existed.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn revoke_token(pool: &AnyPool, id: &str) -> std::io::Result<bool> {
        delete_token(pool, id, None).await
    }

    /// Lists the valid tokens and sessions, as [`Logins::list_tokens`].
    pub(crate) async fn tokens(
        &self,
        user: Option<&str>,
        now: SystemTime,
    ) -> std::io::Result<Vec<TokenInfo>> {
        Self::list_tokens(&self.pool, user, now).await
    }

    /// Creates a token for a program of a user; `None` if there is no such user who may log in.
    pub(crate) async fn issue_user_token(
        &self,
        user: &str,
        terms: TokenTerms,
        now: SystemTime,
    ) -> Result<Option<String>> {
        let Some(account) = self.read_login_account(user).await? else { return Ok(None) };
        let mark = self.ensure_account_mark(user, &account, now).await?;
        let owner = TokenOwner { user, account: Some(&mark) };
        Ok(Some(Self::issue_token(&self.pool, owner, now, terms).await?))
    }

    /// Revokes the token or ends the session with an ID, if it is the owner's or no owner is given. Returns true if it
    /// existed.
    pub(crate) async fn revoke(&self, id: &str, owner: Option<&str>) -> std::io::Result<bool> {
        delete_token(&self.pool, id, owner).await
    }

    /// Ends all sessions and revokes all tokens of a user, as after a password change.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn revoke_user_tokens(pool: &AnyPool, user: &str) -> std::io::Result<u64> {
        let done =
            sqlx::query("DELETE FROM login WHERE user_name = $1").bind(user).execute(pool).await;
        done.map(|done| done.rows_affected()).map_err(std::io::Error::other)
    }

    /// Ends all sessions and revokes all tokens of a user, except the session of the current request, which continues
    /// with the current password.
    pub(crate) async fn revoke_other_tokens(&self, user: &str, headers: &HeaderMap) -> Result<u64> {
        let own = session_cookie(headers);
        self.memory_sessions.end_others(user, own.as_deref());
        let own = own.map(|token| hash_text(&token)).unwrap_or_default();
        if let Some(account) = self.read_login_account(user).await? {
            sqlx::query(
                "UPDATE login SET password_mark = $1 WHERE user_name = $2 AND token_hash = $3",
            )
            .bind(account.password_mark())
            .bind(user)
            .bind(&own)
            .execute(&self.pool)
            .await?;
        }
        let done = sqlx::query("DELETE FROM login WHERE user_name = $1 AND token_hash <> $2")
            .bind(user)
            .bind(own)
            .execute(&self.pool)
            .await?;
        Ok(done.rows_affected())
    }

    /// Creates the token of a one-time login link.
    ///
    /// # Errors
    /// If there is no such user, or the database or the system's random source fails.
    pub async fn create_login_link(&self, user: &str, now: SystemTime) -> std::io::Result<String> {
        let account = self.read_login_account(user).await;
        let account = account.map_err(|failure| std::io::Error::other(failure.message))?;
        let missing = || std::io::Error::other(format!("there is no user `{user}`"));
        self.issue_account_token(LoginTokenKind::Link, user, &account.ok_or_else(missing)?, now)
            .await
    }

    /// Creates a token for an account, which is given an identifier if it has none.
    pub(super) async fn issue_account_token(
        &self,
        kind: LoginTokenKind,
        user: &str,
        account: &LoginAccount,
        now: SystemTime,
    ) -> std::io::Result<String> {
        let mark = self.ensure_account_mark(user, account, now).await?;
        let owner = TokenOwner { user, account: Some(&mark) };
        let terms = TokenTerms { lifetime: kind.default_lifetime(), scope: LoginTokenScope::All };
        store_new_token(&self.pool, kind, owner, now, terms).await
    }

    /// Returns the mark of an account, which is given an identifier if it has none.
    async fn ensure_account_mark(
        &self,
        user: &str,
        account: &LoginAccount,
        now: SystemTime,
    ) -> std::io::Result<AccountMark> {
        let identifier = match &account.identifier {
            Some(account_id) => account_id.clone(),
            None => self.ensure_account_id(user, now).await?,
        };
        Ok(AccountMark { account_id: identifier, password_mark: account.password_mark() })
    }

    async fn ensure_account_id(&self, user: &str, now: SystemTime) -> std::io::Result<String> {
        let (repository, user) = (self.repository.clone(), user.to_owned());
        let identify = move || {
            repository.assign_account_identifiers(now)?;
            repository.account_identifier(&user)
        };
        let account_id =
            tokio::task::spawn_blocking(identify).await.map_err(std::io::Error::other)?;
        let missing = || std::io::Error::other("the account has no identifier");
        account_id.map_err(std::io::Error::other)?.ok_or_else(missing)
    }

    /// Consumes the token of a one-time link. Returns its user and account.
    pub(super) async fn consume_login_link(
        &self,
        token: &str,
        now: SystemTime,
    ) -> Result<(String, LoginAccount)> {
        let statement = format!(
            "DELETE FROM login WHERE token_hash = $1 AND kind = 'link' AND expires > $2 RETURNING {STORED_TOKEN_COLUMNS}"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind(hash_text(token))
            .bind(to_unix_seconds(now))
            .fetch_optional(&self.pool)
            .await?;
        let spent = || {
            RequestFailure::new(
                StatusCode::UNAUTHORIZED,
                "this login link was already used or has expired",
            )
        };
        let stored = StoredToken::from_row(&row.ok_or_else(spent)?)?;
        let account = self
            .read_login_account(&stored.user)
            .await?
            .filter(|account| stored.is_of_account(account));
        Ok((stored.user, account.ok_or_else(spent)?))
    }

    /// Removes the tokens that have expired according to a trusted time, and those of removed accounts and changed
    /// passwords. A clock that jumped ahead must not end sessions permanently; the validity of a token is checked when
    /// it is used.
    ///
    /// # Errors
    /// If the database or the content fails.
    pub async fn remove_stale_tokens(&self, now: SystemTime) -> std::io::Result<()> {
        self.remove_expired_tokens(now).await.map_err(std::io::Error::other)?;
        let statement =
            format!("SELECT {STORED_TOKEN_COLUMNS}, token_hash FROM login ORDER BY user_name");
        let rows = sqlx::query(sqlx::AssertSqlSafe(statement))
            .fetch_all(&self.pool)
            .await
            .map_err(std::io::Error::other)?;
        let mut last: Option<(String, Option<LoginAccount>)> = None;
        for row in rows {
            let stored = StoredToken::from_row(&row).map_err(std::io::Error::other)?;
            let hash: String = row.try_get(6).map_err(std::io::Error::other)?;
            let account = match last.take().filter(|(user, _)| *user == stored.user) {
                Some((_, account)) => account,
                None => {
                    let account = self.read_login_account(&stored.user).await;
                    account.map_err(|failure| std::io::Error::other(failure.message))?
                }
            };
            match account.as_ref().filter(|account| stored.is_of_account(account)) {
                Some(account) if !stored.is_bound() => {
                    let bound = self.bind_token(&hash, &stored.user, account, now).await;
                    bound.or_else(
                        |error| {
                            if is_write_refused(&error) { Ok(()) } else { Err(error) }
                        },
                    )?;
                }
                Some(_) => {}
                // An unbound token may be older than its account.
                None if stored.account_id.is_none() => {}
                None => self
                    .remove_orphaned_token(&hash, &stored)
                    .await
                    .map_err(std::io::Error::other)?,
            }
            last = Some((stored.user, account));
        }
        Ok(())
    }

    /// Removes a token that no longer belongs to an account, unless its session has been renewed with another password
    /// in the meantime.
    async fn remove_orphaned_token(&self, hash: &str, stored: &StoredToken) -> sqlx::Result<()> {
        sqlx::query("DELETE FROM login WHERE token_hash = $1 AND COALESCE(password_mark, '') = $2")
            .bind(hash)
            .bind(stored.password_mark.as_deref().unwrap_or_default())
            .execute(&self.pool)
            .await
            .map(drop)
    }

    /// Removes the tokens of a user who may not log in, except those that were never bound to an account.
    async fn remove_account_tokens(&self, user: &str) -> sqlx::Result<()> {
        sqlx::query("DELETE FROM login WHERE user_name = $1 AND account IS NOT NULL")
            .bind(user)
            .execute(&self.pool)
            .await
            .map(drop)
    }

    async fn remove_expired_tokens(&self, now: SystemTime) -> sqlx::Result<()> {
        let ended = sqlx::query("DELETE FROM login WHERE expires <= $1").bind(to_unix_seconds(now));
        ended.execute(&self.pool).await.map(drop)
    }

    /// Ends the session with this token.
    pub(super) async fn end_session(&self, token: &str) -> Result<()> {
        self.memory_sessions.end(token);
        sqlx::query("DELETE FROM login WHERE token_hash = $1")
            .bind(hash_text(token))
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Returns the holder of a token, if its account is unchanged.
    pub(super) async fn find_token_holder(
        &self,
        token: &str,
        kind: LoginTokenKind,
        session_use: SessionUse,
        now: SystemTime,
    ) -> Result<Option<TokenHolder>> {
        let hash = hash_text(token);
        let statement = format!(
            "SELECT {STORED_TOKEN_COLUMNS} FROM login \
             WHERE token_hash = $1 AND kind = $2 AND (expires IS NULL OR expires > $3)"
        );
        let row = sqlx::query(sqlx::AssertSqlSafe(statement))
            .bind(&hash)
            .bind(kind.name())
            .bind(to_unix_seconds(now))
            .fetch_optional(&self.pool)
            .await?;
        let Some(stored) = row.as_ref().map(StoredToken::from_row).transpose()? else {
            return Ok(None);
        };
        let idle = u64::try_from(to_unix_seconds(now).saturating_sub(stored.last_used_seconds))
            .unwrap_or(0);
        // Do not remove the token here: a clock that jumped ahead must not end sessions permanently.
        if kind == LoginTokenKind::Session && idle >= self.session_idle_timeout.as_secs() {
            return Ok(None);
        }
        let Some(account) = self.read_login_account(&stored.user).await? else {
            // An account that is enabled again starts without logins, as after `tympan user disable`.
            let forgotten = self.remove_account_tokens(&stored.user).await;
            forgotten
                .or_else(|error| if is_write_refused(&error) { Ok(()) } else { Err(error) })?;
            return Ok(None);
        };
        if !stored.is_of_account(&account) {
            return Ok(None);
        }
        if !stored.is_bound() {
            let bound = self.bind_token(&hash, &stored.user, &account, now).await;
            // Until the database accepts writes again, the token is checked the same way each time.
            bound.or_else(|error| if is_write_refused(&error) { Ok(()) } else { Err(error) })?;
        }
        if kind == LoginTokenKind::Session
            && session_use == SessionUse::Request
            && idle >= self.use_interval_seconds()
        {
            let outcome = self.record_session_use(&hash, now).await;
            // The session stays valid even if a full disk prevents recording its use.
            outcome.or_else(|error| if is_write_refused(&error) { Ok(()) } else { Err(error) })?;
        }
        Ok(Some(TokenHolder { user: stored.user, scope: stored.scope }))
    }

    /// Returns the age in seconds after which the recorded last use of a session is updated.
    fn use_interval_seconds(&self) -> u64 {
        SESSION_USE_RECORD_INTERVAL.min(self.session_idle_timeout / 4).as_secs().max(1)
    }

    /// Records the use of a session.
    async fn record_session_use(&self, hash: &str, now: SystemTime) -> Result<(), sqlx::Error> {
        sqlx::query("UPDATE login SET seen = $1 WHERE token_hash = $2")
            .bind(to_unix_seconds(now))
            .bind(hash)
            .execute(&self.pool)
            .await
            .map(drop)
    }

    /// Binds a token to an account that was unknown when the token was created.
    async fn bind_token(
        &self,
        hash: &str,
        user: &str,
        account: &LoginAccount,
        now: SystemTime,
    ) -> std::io::Result<()> {
        let mark = self.ensure_account_mark(user, account, now).await?;
        sqlx::query(
            "UPDATE login SET account = COALESCE(account, $1), password_mark = COALESCE(password_mark, $2) \
             WHERE token_hash = $3",
        )
        .bind(mark.account_id)
        .bind(mark.password_mark)
        .bind(hash)
        .execute(&self.pool)
        .await
        .map_err(std::io::Error::other)?;
        Ok(())
    }
}

/// Deletes the token with an ID, if it is the owner's or no owner is given. Returns true if it existed.
async fn delete_token(pool: &AnyPool, id: &str, owner: Option<&str>) -> std::io::Result<bool> {
    if id.len() != TOKEN_ID_LETTERS || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(false);
    }
    let done = sqlx::query(
        "DELETE FROM login WHERE token_hash LIKE $1 AND user_name = COALESCE($2, user_name)",
    )
    .bind(format!("{id}%"))
    .bind(owner)
    .execute(pool)
    .await;
    done.map(|done| done.rows_affected() > 0).map_err(std::io::Error::other)
}

/// Stores a new token and returns it.
async fn store_new_token(
    pool: &AnyPool,
    kind: LoginTokenKind,
    owner: TokenOwner<'_>,
    now: SystemTime,
    terms: TokenTerms,
) -> std::io::Result<String> {
    let token = random_token()?;
    sqlx::query(
        "INSERT INTO login (token_hash, kind, user_name, account, created, expires, created_ms, scope, password_mark) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(hash_text(&token))
    .bind(kind.name())
    .bind(owner.user)
    .bind(owner.account.map(|account| &account.account_id))
    .bind(to_unix_seconds(now))
    .bind(terms.lifetime.map(|life| to_unix_seconds(now).saturating_add_unsigned(life.as_secs())))
    .bind(to_millis(now))
    .bind(terms.scope.name())
    .bind(owner.account.map(|account| &account.password_mark))
    .execute(pool)
    .await
    .map_err(std::io::Error::other)?;
    Ok(token)
}

fn to_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Returns 48 random hexadecimal digits.
pub(super) fn random_token() -> std::io::Result<String> {
    let mut bytes = [0; 24];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(hex::encode(bytes))
}
