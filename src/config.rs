//! `tympan.toml`: the configuration of a home.
//!
//! Every section configures one component. Unknown keys are refused with their position and the nearest known key;
//! durations and sizes are strings with units, never bare numbers.

mod config_value;
mod export;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tympan_terminal::{CommandFault, PROGRAM_FILE};

use tympan_content::VersionRetention;
use tympan_content_query::QueryLimits;
use tympan_render::{FragmentCacheOptions, FragmentInvalidationMode};
use tympan_replicate::ActivationVersioning;
use tympan_store::RevisionRetention;

pub(crate) use self::config_value::{ConfigByteSize, Span, parse_size, parse_span, parse_toml};
pub(crate) use self::export::ExportSection;

/// The whole file. A missing file counts as empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TympanConfig {
    pub(crate) listen: ListenSection,
    pub(crate) admin: AdminSection,
    pub(crate) login: LoginSection,
    pub(crate) work: WorkSection,
    pub(crate) store: StoreSection,
    pub(crate) database: DatabaseSection,
    pub(crate) blobs: crate::blob_storage::BlobsSection,
    pub(crate) history: HistorySection,
    pub(crate) collect: CollectSection,
    pub(crate) versions: VersionsSection,
    pub(crate) query: QuerySection,
    pub(crate) search: SearchSection,
    pub(crate) jobs: JobsSection,
    pub(crate) maintenance: MaintenanceSection,
    pub(crate) backup: crate::scheduled_backup::BackupSection,
    pub(crate) assets: AssetsSection,
    pub(crate) dispatcher: tympan_dispatcher::DispatcherSettings,
    pub(crate) back_ends: BTreeMap<String, BackendSection>,
    pub(crate) mounts: crate::mount_config::MountsSection,
    pub(crate) publish: PublishSection,
    pub(crate) ledger: LedgerSection,
    pub(crate) fragments: FragmentsSection,
    pub(crate) timing: Timing,
    pub(crate) logs: LogsSection,
    pub(crate) export: ExportSection,
    pub(crate) receive: ReceiveSection,
    pub(crate) outgoing: OutgoingSection,
    pub(crate) workflows: WorkflowsSection,
}

/// The location of workflow models.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkflowsSection {
    /// The paths below which workflow models are read; default `["/conf/global/settings/workflow/models",
    /// "/var/workflow/models", "/etc/workflow/models"]`. Users who may write there decide what is done in the names of
    /// others.
    pub(crate) models: Option<Vec<String>>,
}

impl WorkflowsSection {
    /// Returns the paths of workflow models.
    ///
    /// # Errors
    /// [`CommandFault::usage`] with the path that cannot contain any.
    pub(crate) fn model_roots(
        &self,
    ) -> Result<tympan_jobs::workflow::WorkflowModelRoots, CommandFault> {
        let Some(models) = &self.models else { return Ok(Default::default()) };
        tympan_jobs::workflow::WorkflowModelRoots::new(models).map_err(|error| {
            CommandFault::usage(format!("tympan.toml: `models` of `[workflows]`: {error}"))
        })
    }
}

/// The hosts that workflow steps may send requests to. Mounts and back ends have separate lists, `[[mounts.place]]` and
/// `[back_ends]`, whose hosts are allowed with the addresses that their names first resolve to; other addresses behind
/// them must be listed here as well.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OutgoingSection {
    /// Hosts, such as `["api.example.com", "*.example.org", "hooks.example.net:8443"]`; default none. A host that is
    /// listed by its address, such as `"10.0.0.7:8080"`, is allowed even if the address is not public.
    pub(crate) hosts: Vec<String>,
    /// Non-public networks that the names of these hosts may resolve to, such as `["10.20.0.0/16"]`; default none, so
    /// that no name gives access to the machine itself or to its local network.
    pub(crate) networks: Vec<String>,
}

impl OutgoingSection {
    /// Returns the outgoing policy.
    ///
    /// # Errors
    /// With the invalid entry.
    pub(crate) fn to_outgoing(
        &self,
    ) -> Result<tympan_web::outgoing_policy::OutgoingPolicy, String> {
        let networks = self.networks.iter().map(|text| text.parse());
        let networks = networks
            .collect::<Result<_, _>>()
            .map_err(|error| format!("tympan.toml: `networks` of `[outgoing]`: {error}"))?;
        tympan_web::outgoing_policy::OutgoingPolicy::new(&self.hosts, networks)
            .map_err(|error| format!("tympan.toml: `hosts` of `[outgoing]`: {error}"))
    }
}

/// The content that an author accepts from other instances.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReceiveSection {
    /// The paths at and below which holders of the replication key may write, such as `["/content/dam/photos"]`;
    /// default none. Name the subtree that another author owns and replicates to this one. A publisher accepts
    /// everything.
    pub(crate) paths: Vec<String>,
}

/// A system whose JSON data components read with `data`; the section is `[back_ends.NAME]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackendSection {
    /// The prefix of all its URLs, such as `"http://10.0.0.5:8080/api"`. No request is sent outside of it.
    pub(crate) url: String,
    /// The number of concurrent requests; default 16. Raise it if renders wait and the system has capacity.
    pub(crate) connections: Option<usize>,
    /// The timeout of a request, including the wait in the queue; default 2 s. A page waits at most this long.
    pub(crate) timeout: Option<Span>,
    /// The time for which a response is used without a new request; default 10 s.
    pub(crate) max_age: Option<Span>,
    /// The time for which an old response is used while the system does not respond; default 1 h.
    pub(crate) max_stale: Option<Span>,
    /// The time without requests to the system after five failures in a row; default 10 s.
    pub(crate) retry_after: Option<Span>,
    /// The maximum size of a response; default 1 MiB.
    pub(crate) max_answer: Option<ConfigByteSize>,
    /// A PEM file of certificates, one of which must have signed that of an `https` address; default those of the
    /// system.
    pub(crate) tls_ca: Option<PathBuf>,
}

impl BackendSection {
    /// Returns a back end with default limits.
    pub(crate) fn with_url(url: String) -> Self {
        Self {
            url,
            connections: None,
            timeout: None,
            max_age: None,
            max_stale: None,
            retry_after: None,
            max_answer: None,
            tls_ca: None,
        }
    }

    /// Returns the back end with its limits.
    pub(crate) fn to_backend_config(&self) -> tympan_render::BackendConfig {
        let usual = tympan_render::BackendConfig::new(&*self.url);
        tympan_render::BackendConfig {
            max_connections: self.connections.unwrap_or(usual.max_connections),
            timeout: self.timeout.map_or(usual.timeout, |span| span.0),
            max_age: self.max_age.map_or(usual.max_age, |span| span.0),
            max_stale: self.max_stale.map_or(usual.max_stale, |span| span.0),
            retry_after: self.retry_after.map_or(usual.retry_after, |span| span.0),
            max_response_bytes: self.max_answer.map_or(usual.max_response_bytes, |size| {
                usize::try_from(size.0).unwrap_or(usize::MAX)
            }),
            base_url: usual.base_url,
        }
    }
}

/// The main listener.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ListenSection {
    /// The listen address; `--listen` takes precedence. Default 127.0.0.1:4502 for author, :4503 for publish.
    pub(crate) address: Option<SocketAddr>,
    /// The maximum number of open connections; default 10,000. While fewer than one in 16 is free, connections are
    /// closed after their response, and idle ones are closed in favor of new ones. Further connections wait; on authors
    /// and publishers for 5 s, and at most a quarter as many, beyond which they are answered with 503 and
    /// `Retry-After`. Raise it if more clients keep connections open, together with the process's limit of open files.
    pub(crate) max_connections: Option<usize>,
    /// The maximum size of a request's head; default 64 KiB.
    pub(crate) max_header: Option<ConfigByteSize>,
    /// The maximum size of a request's body; default 4 GiB on author, for uploads, and on publish, for replication.
    pub(crate) max_body: Option<ConfigByteSize>,
    /// The maximum time until the next request's head is complete on an open connection; default 60 s.
    pub(crate) header_timeout: Option<Span>,
    /// The maximum time without data in a request's body; default 30 s. Raise it if uploads come over links that pause.
    pub(crate) body_timeout: Option<Span>,
    /// The certificate chain in PEM; enables TLS on the listener.
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The private key of the certificate in PEM.
    pub(crate) tls_key: Option<PathBuf>,
}

/// Logins: the lifetime of sessions, and the proxies whose client addresses are trusted.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LoginSection {
    /// The time after which a session without requests ends; default 2 h. No session lasts longer than 12 h. Lower it
    /// if people share computers.
    pub(crate) idle: Option<Span>,
    /// The addresses of dispatchers and load balancers, as `10.0.0.7` or `10.0.0.0/28`, whose statements about client
    /// addresses (`X-Forwarded-For`) are trusted; failed logins are counted by client address. Those on this machine
    /// are always trusted. Default none. Name all proxies on other machines between visitors and this instance: all
    /// users behind a proxy that is not named count as one client. Name no network that contains visitors, or they can
    /// forge their address.
    pub(crate) trusted_proxies: Vec<String>,
}

/// The second listener, which serves health, metrics and login while the main one is saturated.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminSection {
    /// The listen address; `--admin-listen` takes precedence. Default: no second listener.
    pub(crate) address: Option<SocketAddr>,
    /// The maximum number of open connections; default 16.
    pub(crate) max_connections: Option<usize>,
}

/// The concurrency of an instance.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkSection {
    /// The maximum number of requests that render or edit concurrently; default 128. Raise it if templates wait for
    /// slow back ends.
    pub(crate) permits: Option<usize>,
    /// The maximum number of requests that wait for their turn, in order of arrival; default 4,096. Further ones are
    /// answered with 503 and `Retry-After`. Lower it if visitors should be asked to retry instead of waiting.
    pub(crate) max_waiting: Option<usize>,
}

/// The audience of response timings.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Timing {
    /// The audience of the header `Server-Timing`: `"nobody"`, `"users"` who are logged in, `"everybody"`; default
    /// `"users"`. Use `"everybody"` for load tests.
    pub(crate) header: Option<TimingAudienceName>,
    /// The audience of a comment with the times of all components at the end of each page; default `"nobody"`. It
    /// discloses scripts and paths, so that `"everybody"` is for test systems only.
    pub(crate) comment: Option<TimingAudienceName>,
}

/// An audience of response timings.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TimingAudienceName {
    Nobody,
    Users,
    Everybody,
}

impl TimingAudienceName {
    fn to_server_audience(self) -> tympan_server::TimingAudience {
        match self {
            Self::Nobody => tympan_server::TimingAudience::Nobody,
            Self::Users => tympan_server::TimingAudience::Users,
            Self::Everybody => tympan_server::TimingAudience::Everybody,
        }
    }
}

impl Timing {
    /// Returns the audience of timings.
    pub(crate) fn to_timing_disclosure(&self) -> tympan_server::TimingDisclosure {
        let default = tympan_server::TimingDisclosure::default();
        tympan_server::TimingDisclosure {
            header_audience: self
                .header
                .map_or(default.header_audience, TimingAudienceName::to_server_audience),
            comment_audience: self
                .comment
                .map_or(default.comment_audience, TimingAudienceName::to_server_audience),
        }
    }
}

/// `request.log` and `access.log`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogsSection {
    /// The number of old files of each log that are kept, one for each day; default 14. Raise it to look further back.
    pub(crate) keep: Option<usize>,
    /// The size at which a log continues in a new file on the same day; default unlimited. Set it if disks are small.
    pub(crate) max_size: Option<ConfigByteSize>,
}

impl LogsSection {
    /// Returns the rotation policy.
    pub(crate) fn rotation(&self) -> tympan_web::log_file::LogRotation {
        let default = tympan_web::log_file::LogRotation::default();
        tympan_web::log_file::LogRotation {
            max_rotated_files: self.keep.unwrap_or(default.max_rotated_files),
            max_bytes: self.max_size.map(|size| size.0),
            ..default
        }
    }
}

/// The chunk store.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StoreSection {
    /// Memory for cached chunks; default 64 MiB.
    pub(crate) cache: Option<ConfigByteSize>,
    /// Memory for frequently requested blobs of up to 256 KiB, such as the pictures of popular pages; default 64 MiB.
    /// Raise it on publishers without a dispatcher; 0 disables it.
    pub(crate) hot_blobs: Option<ConfigByteSize>,
}

/// The PostgreSQL database that instances share instead of using packs of their own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DatabaseSection {
    /// `postgres://user:password@host:port/database?sslmode=…`; `--database` and `TYMPAN_DATABASE` take precedence.
    /// Default: none, and the repository is stored in packs below the home.
    pub(crate) url: Option<String>,
    /// The schema of the repository's tables; default `tympan`. Each repository in one database needs its own.
    pub(crate) schema: Option<String>,
    /// Connections for reads and commits; default 16, and three more are used in addition. The sum of all instances
    /// must fit the server's `max_connections`. Raise it if requests fail because all connections are in use.
    pub(crate) max_connections: Option<u32>,
    /// The maximum time that a request waits for a connection, for another commit on the same ref, and for the outcome
    /// of an interrupted commit; default 5 s. After that it is answered with 503.
    pub(crate) wait: Option<Span>,
    /// The time after which an idle connection is closed; default 10 min. Lower it if a firewall drops idle
    /// connections.
    pub(crate) idle: Option<Span>,
    /// The time after which the server cancels a statement; default 30 s.
    pub(crate) statement_timeout: Option<Span>,
    /// A PEM file of certificates, one of which must have signed that of the server; with it the host name is verified
    /// as well. Default: the mode of `sslmode` in the URL, with the certificates of the system.
    pub(crate) tls_ca: Option<PathBuf>,
    /// The size of the local disk cache of chunks; default 1 GiB, `"0 B"` for none.
    pub(crate) cache_size: Option<ConfigByteSize>,
    /// The folder of this cache; default `chunks` below the home.
    pub(crate) cache_dir: Option<PathBuf>,
}

/// The headers of the pages that a publisher renders.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PublishSection {
    /// Headers of every HTML page, such as `Content-Security-Policy = "default-src 'self'; frame-ancestors 'self'"`;
    /// default none. A header that a response sets itself takes precedence, such as the policy of an uploaded file. An
    /// author sends `frame-ancestors 'self'`, regardless of this setting. Loosen the policy if pages use scripts,
    /// styles or pictures of other sites.
    pub(crate) headers: BTreeMap<String, String>,
}

impl PublishSection {
    /// Returns the headers of pages.
    ///
    /// # Errors
    /// With the invalid header.
    pub(crate) fn page_headers(&self) -> Result<tympan_server::PageHeaders, String> {
        let entries = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        tympan_server::PageHeaders::parse(entries)
            .map_err(|error| format!("tympan.toml: `[publish.headers]`: {error}"))
    }
}

/// The ledger of the URLs that a publisher has rendered.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerSection {
    /// The maximum number of URLs that are recorded individually; default 100,000, of about 1 KiB each. Raise it if
    /// `tympan_ledger_given_up_total` rises: URLs beyond the limit are flushed by folder.
    pub(crate) max_urls: Option<usize>,
    /// The header with the keys by which caches purge a response, such as `"Surrogate-Key"` (Fastly) or `"xkey"`
    /// (Varnish); default none. Set it if an agent of the kind `purge_keys` flushes a cache.
    pub(crate) surrogate_key: Option<String>,
}

/// The rendered component output that a publisher caches, if the components request it in `cache`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FragmentsSection {
    /// True if fragments are cached; default true.
    pub(crate) enabled: Option<bool>,
    /// The maximum total size; default 64 MiB. Health suggests a larger one if it is too small.
    pub(crate) max_bytes: Option<ConfigByteSize>,
    /// The total size that remains after an eviction; default three quarters of `max_bytes`.
    pub(crate) avg_bytes: Option<ConfigByteSize>,
    /// The maximum size of a fragment, beyond which it is not cached; default 4 MiB.
    pub(crate) max_entry_bytes: Option<ConfigByteSize>,
    /// The maximum number of cache keys, one per component location; default 50,000.
    pub(crate) max_keys: Option<usize>,
    /// The fragments that a change removes: `tags` those that were rendered from it, `full` all, `buckets` those in the
    /// same bucket. Default `tags`; the others are for comparison with OpenCms.
    pub(crate) invalidation: FragmentInvalidation,
    /// The buckets: lists of paths.
    pub(crate) buckets: Vec<Vec<String>>,
    /// Paths below which a change removes all fragments even if there are buckets; default `/apps`.
    pub(crate) clear_all: Option<Vec<String>>,
}

/// The fragments that a change removes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FragmentInvalidation {
    #[default]
    Tags,
    Full,
    Buckets,
}

impl FragmentsSection {
    /// Returns the cache options; `None` if the cache is disabled.
    pub(crate) fn fragment_options(&self) -> Option<FragmentCacheOptions> {
        let default = FragmentCacheOptions::default();
        let bytes = |size: Option<ConfigByteSize>, default: usize| {
            size.map_or(default, |size| usize::try_from(size.0).unwrap_or(usize::MAX))
        };
        let max_bytes = bytes(self.max_bytes, default.max_bytes);
        let clear_all = self.clear_all.clone().unwrap_or_else(|| vec!["/apps".to_owned()]);
        self.enabled.unwrap_or(true).then(|| FragmentCacheOptions {
            max_bytes,
            avg_bytes: bytes(self.avg_bytes, max_bytes / 4 * 3),
            max_entry_bytes: bytes(self.max_entry_bytes, default.max_entry_bytes),
            max_components: self.max_keys.unwrap_or(default.max_components),
            invalidation: match self.invalidation {
                FragmentInvalidation::Tags => FragmentInvalidationMode::Tags,
                FragmentInvalidation::Full => FragmentInvalidationMode::Full,
                FragmentInvalidation::Buckets => {
                    FragmentInvalidationMode::Buckets(clear_all, self.buckets.clone())
                }
            },
        })
    }
}

/// The limits of queries, and the threshold of slow ones.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QuerySection {
    /// The minimum duration of a statement that `tympan index slow` lists; default 100 ms. Statements that no index
    /// served are always listed.
    pub(crate) slow: Option<Span>,
    /// The maximum duration of a query; default 60 s. Raise it for reports that walk a large repository.
    pub(crate) max_time: Option<Span>,
    /// The maximum number of rows that a query without an index for its order holds in memory to sort them; default
    /// 500,000, of about 1 KiB each.
    pub(crate) max_rows_in_memory: Option<usize>,
    /// The maximum number of nodes and index entries that a query reads; default unlimited.
    pub(crate) max_rows_read: Option<u64>,
    /// Lower limits for queries of non-administrators over HTTP.
    pub(crate) users: UserQuerySection,
    /// Lower limits for queries of visitors without a login over HTTP, and whether they are allowed.
    pub(crate) visitors: VisitorQuerySection,
}

/// The limits of queries of non-administrators over HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UserQuerySection {
    /// The maximum duration of a query; default 30 s. Lower it if many users are allowed to query.
    pub(crate) max_time: Option<Span>,
    /// The maximum number of rows that a query holds in memory; default that of `[query]`.
    pub(crate) max_rows_in_memory: Option<usize>,
    /// The maximum number of nodes and index entries that a query reads; default 10,000,000.
    pub(crate) max_rows_read: Option<u64>,
}

/// The limits of queries of visitors without a login over HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct VisitorQuerySection {
    /// True if a publisher executes them at all; default `false`. Enable it if scripts of a site's pages request
    /// `/bin/querybuilder.json` or `/api/v1/search`; pages that use queries while rendering do not need it.
    pub(crate) open: bool,
    /// The maximum duration of a query; default 2 s.
    pub(crate) max_time: Option<Span>,
    /// The maximum number of rows that a query holds in memory; default 10,000.
    pub(crate) max_rows_in_memory: Option<usize>,
    /// The maximum number of nodes and index entries that a query reads; default 100,000. Raise it for sites with more
    /// pages.
    pub(crate) max_rows_read: Option<u64>,
}

impl QuerySection {
    /// Returns the limits of queries over HTTP, by kind of user.
    pub(crate) fn budgets(&self) -> tympan_server::QueryBudgets {
        let (default, own) = (tympan_server::QueryBudgets::default(), self.query_limits());
        let (users, visitors) = (&self.users, &self.visitors);
        let limits = |default: QueryLimits,
                      time: Option<Span>,
                      rows_in_memory: Option<usize>,
                      read: Option<u64>| QueryLimits {
            max_time: time.map_or(default.max_time, |span| span.0),
            max_rows_in_memory: rows_in_memory.unwrap_or(default.max_rows_in_memory),
            max_rows_read: read.unwrap_or(default.max_rows_read),
            ..own.clone()
        };
        tympan_server::QueryBudgets {
            users: limits(
                QueryLimits { max_rows_in_memory: usize::MAX, ..default.users },
                users.max_time,
                users.max_rows_in_memory,
                users.max_rows_read,
            ),
            visitors: limits(
                default.visitors,
                visitors.max_time,
                visitors.max_rows_in_memory,
                visitors.max_rows_read,
            ),
            allows_visitors: visitors.open,
            administrators: own.clone(),
        }
    }

    /// Returns the limits.
    pub(crate) fn query_limits(&self) -> QueryLimits {
        let default = QueryLimits::default();
        QueryLimits {
            slow_threshold: self.slow.map_or(default.slow_threshold, |span| span.0),
            max_time: self.max_time.map_or(default.max_time, |span| span.0),
            max_rows_in_memory: self.max_rows_in_memory.unwrap_or(default.max_rows_in_memory),
            max_rows_read: self.max_rows_read.unwrap_or(default.max_rows_read),
            clock: default.clock,
        }
    }
}

/// The retention of revisions.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HistorySection {
    /// The time for which every revision is kept; default 24 h.
    pub(crate) all: Option<Span>,
    /// The number of hours for which the last revision of each hour is kept; default 48.
    pub(crate) hourly: Option<u32>,
    /// The number of days for which the last revision of each day is kept; default 30.
    pub(crate) daily: Option<u32>,
    /// The number of weeks for which the last revision of each week is kept; default 52.
    pub(crate) weekly: Option<u32>,
    /// Folders in which clones of this home store their leases (`tympan repo clone --leases`); default none. Name one
    /// if a staging machine must not write anything into this home.
    pub(crate) leases: Vec<PathBuf>,
}

impl HistorySection {
    /// Returns the retention policy.
    pub(crate) fn retention(&self) -> RevisionRetention {
        let default = RevisionRetention::default();
        RevisionRetention {
            full_period: self.all.map_or(default.full_period, |span| span.0),
            hourly_count: self.hourly.unwrap_or(default.hourly_count),
            daily_count: self.daily.unwrap_or(default.daily_count),
            weekly_count: self.weekly.unwrap_or(default.weekly_count),
        }
    }
}

/// The retention of versions of nodes. Labeled versions, the newest of each node and the one that it is based on are
/// always kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct VersionsSection {
    /// The maximum number of versions of one node; default 50, 0 for unlimited. Raise it if editors look back further.
    pub(crate) max_count: Option<usize>,
    /// The maximum age of a version; default unlimited. Set it if states must not be kept for long. It then also
    /// applies to the newest version of a deleted node.
    pub(crate) max_age: Option<Span>,
    /// True if an author creates a version of activated content; default true. Set it to false if editors do not look
    /// back at published states, or if another system stores them.
    pub(crate) on_activation: Option<bool>,
}

impl VersionsSection {
    /// Returns whether activated content is versioned.
    pub(crate) fn version_keeping(&self) -> ActivationVersioning {
        match self.on_activation {
            Some(false) => ActivationVersioning::NoVersion,
            _ => ActivationVersioning::CreateVersion,
        }
    }

    /// Returns the retention policy.
    pub(crate) fn retention(&self) -> VersionRetention {
        let default = VersionRetention::default();
        VersionRetention {
            max_count: self
                .max_count
                .map_or(default.max_count, |max| Some(max).filter(|max| *max > 0)),
            max_age: self.max_age.map(|span| span.0).or(default.max_age),
        }
    }
}

/// The schedule and the speed of garbage collection.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CollectSection {
    /// The interval between collections of a running instance, in whole seconds or milliseconds; default 6 h, `"0s"`
    /// for none.
    pub(crate) every: Option<Span>,
    /// The maximum number of bytes per second that a collection reads and writes; default 32 MiB. Lower it if
    /// collections slow down commits.
    pub(crate) rate: Option<ConfigByteSize>,
}

/// The schedules of cleanup tasks other than garbage collection.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MaintenanceSection {
    /// The schedule for removing outdated versions, as a Quartz expression in UTC; default `"0 0 2 * * ?"`, at two
    /// every night. Choose a time of low activity.
    pub(crate) daily: Option<String>,
    /// The schedule for marking the blobs that this home needs and sweeping unused ones, in the same notation; default
    /// `"0 30 3 * * ?"`. All members that share a blob store must run it: blobs stored since a member's last run are
    /// kept until its next one.
    pub(crate) blobs: Option<String>,
    /// The schedule for removing ended workflows, in the same notation; default `"0 0 1 ? * SAT"`.
    pub(crate) weekly: Option<String>,
    /// The time for which ended workflows are kept with their history; default unlimited. Set it if thousands end per
    /// day.
    pub(crate) workflows: Option<Span>,
}

/// The full-text index.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SearchSection {
    /// Threads that read documents while the index is built or many documents change; default 2, at least 2. Raise it
    /// if building takes long and processors are idle.
    pub(crate) threads: Option<usize>,
    /// True if text is extracted from PDF files, in a separate process for each; default true. Disable it if the
    /// contents of PDF files need not be searched.
    pub(crate) pdf: Option<bool>,
}

impl SearchSection {
    /// Returns the options of the index.
    pub(crate) fn search_options(&self) -> tympan_search::SearchIndexOptions {
        let default = tympan_search::SearchIndexOptions::default();
        let reader = || tympan_search::PdfReader {
            program: PROGRAM_FILE.into(),
            arguments: vec![crate::args::READ_PDF_COMMAND.into()],
        };
        tympan_search::SearchIndexOptions {
            threads: self.threads.unwrap_or(default.threads).clamp(2, 8),
            pdf_reader: self.pdf.unwrap_or(true).then(reader),
        }
    }
}

/// Job processing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JobsSection {
    /// The maximum number of concurrent jobs of all queues together; default 64. Lower it if memory is short.
    pub(crate) threads: Option<usize>,
    /// The time that running jobs get to complete when the instance stops; default 20 s. Raise it if jobs are expensive
    /// to restart.
    pub(crate) drain: Option<Span>,
    /// The time after which other processes on the same database take over the jobs of a process that does not respond;
    /// default 60 s. Clocks must differ by less than that. Lower it if jobs must not wait after a crash.
    pub(crate) lease: Option<Span>,
    /// Run modes in addition to the role, which select configuration folders such as `config.author.prod`; default
    /// none.
    pub(crate) run_modes: Vec<String>,
}

/// Asset processing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AssetsSection {
    /// Memory for pictures of all concurrent processes, separately for assets and for image URLs with sizes; default 1
    /// GiB, which is also the limit of a single picture. Raise it for progressive JPEG of more than 150 million pixels,
    /// or if pictures of many megapixels wait for each other.
    pub(crate) memory: Option<ConfigByteSize>,
    /// The maximum number of pixels of a picture, according to its header; default 200 million.
    pub(crate) max_pixels: Option<u64>,
    /// The maximum processing time of one file; default 120 s.
    pub(crate) timeout: Option<Span>,
    /// Quality of the web JPEG rendition, 1 to 100; default 90, as in AEM.
    pub(crate) quality: Option<u8>,
    /// Widths in pixels of additional WebP renditions; default none. Set it if pages refer to renditions instead of
    /// URLs with widths, which are rendered on request.
    pub(crate) widths: Vec<u32>,
    /// True if renditions of those widths are also created as AVIF; default false. It takes seconds per picture and
    /// requires the program `avifenc`.
    pub(crate) avif: bool,
    /// Widths in pixels that URLs may request without a signature; default 160, 320, 480, 640, 768, 1024, 1280, 1600,
    /// 1920 and 2048.
    pub(crate) url_widths: Option<Vec<u32>>,
}

impl AssetsSection {
    /// Returns the processing limits of one file.
    pub(crate) fn processing_limits(&self) -> tympan_assets::ProcessingLimits {
        let default = tympan_assets::ProcessingLimits::default();
        tympan_assets::ProcessingLimits {
            pixels: self.max_pixels.unwrap_or(default.pixels),
            memory: self.memory.map_or(default.memory, |memory| memory.0),
            seconds: self.timeout.map_or(default.seconds, |timeout| timeout.0.as_secs().max(1)),
            file: default.file,
        }
    }

    /// Returns the renditions that are created for an asset.
    pub(crate) fn rendition_profile(&self) -> tympan_assets::RenditionProfile {
        let default = tympan_assets::RenditionProfile::default();
        tympan_assets::RenditionProfile {
            web_quality: self.quality.unwrap_or(default.web_quality).clamp(1, 100),
            responsive_widths: self.widths.clone(),
            makes_avif: self.avif,
            ..default
        }
    }
}

/// Reads `tympan.toml` of a home.
///
/// # Errors
/// [`CommandFault::usage`] with `file:line:column` and, for an unknown key, the nearest known one.
pub(crate) fn read_home_config(home: &Path) -> Result<TympanConfig, CommandFault> {
    let file = home.join("tympan.toml");
    match std::fs::exists(&file) {
        Ok(false) => Ok(TympanConfig::default()),
        _ => read_config_file(&file),
    }
}

/// Reads a file with the sections of `tympan.toml`.
///
/// # Errors
/// As [`read_home_config`], and if there is no such file.
pub(crate) fn read_config_file(file: &Path) -> Result<TympanConfig, CommandFault> {
    match std::fs::read_to_string(file) {
        Ok(text) => {
            parse_config_text(&file.display().to_string(), &text).map_err(CommandFault::usage)
        }
        Err(error) => {
            Err(CommandFault::cannot_run(format!("cannot read `{}`: {error}", file.display())))
        }
    }
}

/// Parses the text of a `tympan.toml`.
///
/// # Errors
/// If the text is invalid, with the position.
pub(crate) fn parse_config_text(file: &str, text: &str) -> Result<TympanConfig, String> {
    parse_toml(file, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        parse_config_text("tympan.toml", text).unwrap_err()
    }

    #[test]
    fn faults_say_where_and_what_else() {
        assert!(
            fault("[listen]\nmax_headers = \"1 KiB\"\n")
                .starts_with("tympan.toml:2:1: unknown field `max_headers`")
        );
        assert!(
            fault("[listen]\nmax_headers = \"1 KiB\"\n").ends_with("did you mean `max_header`?")
        );
        assert!(fault("[lisen]\n").ends_with("did you mean `listen`?"));
        assert!(fault("[listen]\nmax_body = 7\n").starts_with("tympan.toml:2:12: "));
        assert!(fault("[listen]\nmax_body = \"7\"\n").contains("is not a size"));
        assert!(fault("[listen\n").starts_with("tympan.toml:1:"));
    }

    #[test]
    fn versions_of_activated_content_can_be_turned_off() {
        for (text, expected) in [
            ("", ActivationVersioning::CreateVersion),
            ("[versions]\non_activation = true\n", ActivationVersioning::CreateVersion),
            ("[versions]\non_activation = false\n", ActivationVersioning::NoVersion),
        ] {
            let config = parse_config_text("tympan.toml", text).unwrap();
            assert_eq!(config.versions.version_keeping(), expected, "{text}");
        }
    }
}
