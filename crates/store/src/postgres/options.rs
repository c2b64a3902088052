//! The options for opening a store on PostgreSQL.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tympan_notation::ByteSize;

use crate::error::{Error, Result};
use crate::layered::chunk_disk_cache::ChunkDiskCacheOptions;

/// The options for opening a store on PostgreSQL.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// The URL of the database, `postgres://user:password@host:port/database?sslmode=…`.
    pub url: String,
    /// The schema that holds the tables: one for each repository. Default `tympan`.
    pub schema: String,
    /// Connections for reads and commits. Default 16; in addition, the process uses
    /// [`PostgresOptions::EXTRA_CONNECTIONS`].
    ///
    /// More connections let more commits and cold reads run at once; the sum over all processes must fit the server.
    pub max_connections: u32,
    /// The maximum time that a caller waits for a connection, for another commit on the same ref, and for the outcome
    /// of an interrupted commit. Default 5 s.
    pub wait_timeout: Duration,
    /// The time after which an unused connection is closed. Default 10 min.
    pub idle_timeout: Duration,
    /// The time after which the server cancels a statement. Default 30 s.
    pub statement_timeout: Duration,
    /// CA certificates in PEM. If set, the server's certificate must be issued by one of them and match the host name.
    pub tls_ca: Option<PathBuf>,
    /// Memory for chunks that were read or written recently. Default 64 MiB.
    pub cache_size: ByteSize,
    /// A folder that caches chunks that were read. Default none.
    pub disk_cache: Option<ChunkDiskCacheOptions>,
    /// The interval at which the process reports that it is alive, and which states its readers have pinned. Default 10
    /// s.
    pub heartbeat_interval: Duration,
    /// The time for which a replaced state is retained for readers whose pins are not known yet; several times
    /// `heartbeat_interval`. Default 1 min.
    pub grace_period: Duration,
    /// The time without a heartbeat after which a process counts as dead, so that the data it retains may be collected.
    /// Default 10 min.
    pub process_timeout: Duration,
}

impl PostgresOptions {
    /// The number of connections that a process uses beside the pool: one for the listener, one for the heartbeat, one
    /// for a collection.
    pub const EXTRA_CONNECTIONS: u32 = 3;

    /// Returns the default options for a database.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            schema: "tympan".to_owned(),
            max_connections: 16,
            wait_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_mins(10),
            statement_timeout: Duration::from_secs(30),
            tls_ca: None,
            cache_size: ByteSize::from_mib(64),
            disk_cache: None,
            heartbeat_interval: Duration::from_secs(10),
            grace_period: Duration::from_mins(1),
            process_timeout: Duration::from_mins(10),
        }
    }

    /// Parses the URL and the other connection options.
    ///
    /// # Errors
    /// [`Error::DatabaseSettings`], which does not contain the password.
    pub(super) fn connect_options(&self) -> Result<PgConnectOptions> {
        self.check_options()?;
        let is_ours =
            ["postgres://", "postgresql://"].iter().any(|head| self.url.starts_with(head));
        let parsed = PgConnectOptions::from_str(&self.url).ok().filter(|_| is_ours);
        let mut options = parsed.ok_or_else(|| {
            settings_error("`url` is not of the form postgres://user:password@host:port/database")
        })?;
        if let Some(file) = &self.tls_ca {
            let pem = std::fs::read(file);
            let pem = pem.map_err(|error| {
                settings_error(format!("`tls_ca` cannot be read: `{}`: {error}", file.display()))
            })?;
            if !matches!(options.get_ssl_mode(), PgSslMode::VerifyCa) {
                options = options.ssl_mode(PgSslMode::VerifyFull);
            }
            options = options.ssl_root_cert_from_pem(pem);
        }
        Ok(options)
    }

    fn check_options(&self) -> Result<()> {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        let starts = self.schema.starts_with(|first: char| first.is_ascii_lowercase());
        if !starts || self.schema.len() > 40 || !self.schema.bytes().all(is_word) {
            return Err(settings_error(format!(
                "`schema` is `{}`; it must be a lower-case letter, then lower-case letters, digits and `_`, \
                 at most 40",
                self.schema.escape_debug()
            )));
        }
        if self.max_connections == 0 {
            return Err(settings_error("`max_connections` is 0; it must be at least 1"));
        }
        if self.heartbeat_interval.is_zero() || self.process_timeout < self.heartbeat_interval * 3 {
            return Err(settings_error(
                "`lapse` must be at least three times `heartbeat`, and `heartbeat` must be above 0",
            ));
        }
        Ok(())
    }
}

fn settings_error(fault: impl Into<String>) -> Error {
    Error::DatabaseSettings { fault: fault.into() }
}

/// Omits the URL, which may contain a password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("max_connections", &self.max_connections)
            .field("wait", &self.wait_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_without_telling_the_password() {
        let check = |change: &dyn Fn(&mut PostgresOptions), expected: &str| {
            let mut options = PostgresOptions::new("postgres://ann:geheim@localhost/site");
            change(&mut options);
            let error = options.connect_options().map(drop).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("geheim"), "{error}");
            assert!(!format!("{options:?}").contains("geheim"));
        };
        check(&|options| options.url = "http:/ann:geheim@x".to_owned(), "`url`");
        check(&|options| options.schema = "a\"; drop".to_owned(), "`schema`");
        check(&|options| options.schema = String::new(), "`schema`");
        check(&|options| options.max_connections = 0, "`max_connections`");
        check(&|options| options.process_timeout = Duration::from_secs(1), "`lapse`");
        check(&|options| options.tls_ca = Some("/absent/ca.pem".into()), "/absent/ca.pem");
    }
}
