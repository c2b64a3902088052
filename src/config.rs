//! `tympan.toml`: the configuration of a home.
//!
//! Every section belongs to one part. Unknown keys are refused with their place and the nearest known key; durations
//! and sizes are texts with units, never bare numbers.

mod config_value;
mod export;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use tympan_content::VersionRetention;
use tympan_content::query::QueryLimits;
use tympan_render::{FragmentCacheOptions, FragmentInvalidationMode};
use tympan_replicate::ActivationVersioning;
use tympan_store::RevisionRetention;

use crate::command::CommandFault;
use crate::program_file::PROGRAM_FILE;

pub(crate) use self::config_value::{ConfigByteSize, Span, parse_size, parse_span, parse_toml};
pub(crate) use self::export::ExportSection;

/// The whole file. A missing file is an empty one.
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

/// Where models of workflows are.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkflowsSection {
    /// Paths below which models are, and nowhere else; default `["/conf/global/settings/workflow/models",
    /// "/var/workflow/models", "/etc/workflow/models"]`. Whoever may write there decides what is done in the names of others.
    pub(crate) models: Option<Vec<String>>,
}

impl WorkflowsSection {
    /// Returns where models are.
    ///
    /// # Errors
    /// [`CommandFault::usage`] with the path that cannot hold any.
    pub(crate) fn model_roots(
        &self,
    ) -> Result<tympan_jobs::workflow::WorkflowModelRoots, CommandFault> {
        let Some(models) = &self.models else { return Ok(Default::default()) };
        tympan_jobs::workflow::WorkflowModelRoots::new(models).map_err(|error| {
            CommandFault::usage(format!("tympan.toml: `models` of `[workflows]`: {error}"))
        })
    }
}

/// Whom steps of workflows may ask. Mounts and back ends have lists of their own, `[[mounts.place]]` and `[back_ends]`,
/// whose hosts may be asked wherever their names led at first; what else may be behind them is listed here, too.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OutgoingSection {
    /// Hosts, such as `["api.example.com", "*.example.org", "hooks.example.net:8443"]`; default none. A host that is
    /// listed by its address, such as `"10.0.0.7:8080"`, may be asked although it is not public.
    pub(crate) hosts: Vec<String>,
    /// Networks that are not public to which names of these hosts may lead, such as `["10.20.0.0/16"]`; default none, so
    /// that nobody reaches the machine itself or its neighbors by a name that leads there.
    pub(crate) networks: Vec<String>,
}

impl OutgoingSection {
    /// Returns the list.
    ///
    /// # Errors
    /// With the entry that is none.
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

/// What an author takes from other instances.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReceiveSection {
    /// Who knows the replication key may write at and below these paths, such as `["/content/dam/photos"]`; default
    /// nowhere. Name the subtree that another author holds and replicates to this one. A publisher takes everything.
    pub(crate) paths: Vec<String>,
}

/// A system whose JSON components show with `data`; the section is `[back_ends.NAME]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BackendSection {
    /// The begin of all its addresses, such as `"http://10.0.0.5:8080/api"`. Nothing outside of it is asked.
    pub(crate) url: String,
    /// Requests that run at a time; default 16. Raise it if renders wait and the system can take more.
    pub(crate) connections: Option<usize>,
    /// What a request may take, with the wait for its turn; default 2 s. A page waits that long at most.
    pub(crate) timeout: Option<Span>,
    /// How long an answer is used without asking again; default 10 s.
    pub(crate) max_age: Option<Span>,
    /// How long an answer stands in while the system does not answer; default 1 h.
    pub(crate) max_stale: Option<Span>,
    /// How long the system is left alone after five failures in a row; default 10 s.
    pub(crate) retry_after: Option<Span>,
    /// The largest answer; default 1 MiB.
    pub(crate) max_answer: Option<ConfigByteSize>,
    /// Certificates in PEM, of which one must have signed that of an `https` address; default those of the system.
    pub(crate) tls_ca: Option<PathBuf>,
}

impl BackendSection {
    /// Makes a back end with the usual bounds.
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

    /// Returns the back end with its bounds.
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
    /// Where to listen; `--listen` goes first. Default 127.0.0.1:4502 for author, :4503 for publish.
    pub(crate) address: Option<SocketAddr>,
    /// Connections open at once; default 10,000. While fewer than one of 16 is free, answers close their connections, and
    /// those on which nothing is asked are closed for others that come. Further ones wait; at authors and publishers for 5 s
    /// and a quarter as many, beyond which they are answered 503 with `Retry-After`. Raise it where more clients keep
    /// connections, with the process's limit of open files.
    pub(crate) max_connections: Option<usize>,
    /// Bytes of a request's head; default 64 KiB.
    pub(crate) max_header: Option<ConfigByteSize>,
    /// Bytes of a request's body; default 4 GiB on author, for uploads, and on publish, for replication.
    pub(crate) max_body: Option<ConfigByteSize>,
    /// Time for the next request's head on an open connection; default 60 s.
    pub(crate) header_timeout: Option<Span>,
    /// How long a request's body may leave off arriving; default 30 s. Raise it where uploads come over links that pause.
    pub(crate) body_timeout: Option<Span>,
    /// The certificate chain in PEM; with it the listener speaks TLS.
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's key in PEM.
    pub(crate) tls_key: Option<PathBuf>,
}

/// Logins: how long sessions live, and which proxies are believed where visitors come from.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LoginSection {
    /// How long a session lives on without a request; default 2 h. No session lives longer than 12 h. Lower it where people
    /// share computers.
    pub(crate) idle: Option<Span>,
    /// The addresses of dispatchers and balancers, as `10.0.0.7` or `10.0.0.0/28`, that are believed what they say about the
    /// addresses of clients (`X-Forwarded-For`), by which wrong logins are counted; those on this machine always are. Default
    /// none. Name all that stand between visitors and this instance on other machines: all who log in through one that is not
    /// named count as one client. Name no network that visitors are in, or they can say that they are somebody else.
    pub(crate) trusted_proxies: Vec<String>,
}

/// The second listener, for health, metrics and login while the main one is saturated.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdminSection {
    /// Where to listen; `--admin-listen` goes first. Default: no second listener.
    pub(crate) address: Option<SocketAddr>,
    /// Connections open at once; default 16.
    pub(crate) max_connections: Option<usize>,
}

/// How much an instance does at once.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct WorkSection {
    /// Requests that render or edit at once; default 128. Raise it where templates wait for slow back ends.
    pub(crate) permits: Option<usize>,
    /// Requests that wait for their turn, first come, first served; default 4,096. Further ones are answered 503 with
    /// `Retry-After`. Lower it where visitors should rather be told to come again than wait.
    pub(crate) max_waiting: Option<usize>,
}

/// Who is told what answers took.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Timing {
    /// Who gets the header `Server-Timing`: `"nobody"`, `"users"` who are logged in, `"everybody"`; default `"users"`. Let
    /// everybody have it where load is measured.
    pub(crate) header: Option<TimingAudienceName>,
    /// Who gets a comment with the times of all components at the end of each page; default `"nobody"`. It names scripts
    /// and paths, so that everybody should have it on test systems only.
    pub(crate) comment: Option<TimingAudienceName>,
}

/// Some of those who ask.
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
    /// Returns who is told.
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
    /// Files of earlier days that are kept of each log; default 14. Raise it where more has to be looked at later.
    pub(crate) keep: Option<usize>,
    /// The size at which a log goes on in a new file on the same day; default: any. Set it where disks are small.
    pub(crate) max_size: Option<ConfigByteSize>,
}

impl LogsSection {
    /// Returns when a new file is begun.
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
    /// Memory for chunks; default 64 MiB.
    pub(crate) cache: Option<ConfigByteSize>,
    /// Memory for blobs of up to 256 KiB that are asked for again and again, such as the pictures of much visited pages;
    /// default 64 MiB. Raise it on publishers without a dispatcher, 0 turns it off.
    pub(crate) hot_blobs: Option<ConfigByteSize>,
}

/// The PostgreSQL database that instances share in place of packs of their own.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DatabaseSection {
    /// `postgres://user:password@host:port/database?sslmode=…`; `--database` and `TYMPAN_DATABASE` go first. Default:
    /// none, and the repository lies in packs below the home.
    pub(crate) url: Option<String>,
    /// The schema of the repository's tables; default `tympan`. Repositories in one database need one each.
    pub(crate) schema: Option<String>,
    /// Connections for reads and commits; default 16, and three more are used beside them. The sum of all instances must
    /// fit the server's `max_connections`. Raise it where requests are told that all connections are in use.
    pub(crate) max_connections: Option<u32>,
    /// How long a request waits for a connection, for another commit on the same ref, and for the outcome of a commit that
    /// was cut off; default 5 s. Then it is answered with 503.
    pub(crate) wait: Option<Span>,
    /// After what time an unused connection is closed; default 10 min. Lower it where a firewall forgets connections.
    pub(crate) idle: Option<Span>,
    /// After what time the server breaks a statement off; default 30 s.
    pub(crate) statement_timeout: Option<Span>,
    /// Certificates in PEM that the server's must derive from; with them it is also checked against the host's name.
    /// Default: what `sslmode` in the URL says, with the certificates of the system.
    pub(crate) tls_ca: Option<PathBuf>,
    /// How many bytes of chunks are kept at hand in a folder of this machine; default 1 GiB, `"0 B"` for none.
    pub(crate) cache_size: Option<ConfigByteSize>,
    /// The folder for them; default `chunks` below the home.
    pub(crate) cache_dir: Option<PathBuf>,
}

/// What a publisher sends with the pages that it draws.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PublishSection {
    /// Headers of every HTML page, such as `Content-Security-Policy = "default-src 'self'; frame-ancestors 'self'"`; default
    /// none. Those that an answer has itself stay, such as the policy of an uploaded file. An author sends
    /// `frame-ancestors 'self'`, whatever stands here. Loosen the policy where pages use scripts, styles or pictures of
    /// other sites.
    pub(crate) headers: BTreeMap<String, String>,
}

impl PublishSection {
    /// Returns the headers of pages.
    ///
    /// # Errors
    /// With the header that cannot be sent.
    pub(crate) fn page_headers(&self) -> Result<tympan_server::PageHeaders, String> {
        let entries = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        tympan_server::PageHeaders::parse(entries)
            .map_err(|error| format!("tympan.toml: `[publish.headers]`: {error}"))
    }
}

/// What a publisher knows of the URLs that it drew.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerSection {
    /// URLs that are kept one by one; default 100,000, of about 1 KiB each. Raise it where
    /// `tympan_ledger_given_up_total` rises: what is given up is flushed by its folder.
    pub(crate) max_urls: Option<usize>,
    /// The header that names the keys by which caches drop an answer, such as `"Surrogate-Key"` (Fastly) or `"xkey"`
    /// (Varnish); default none. Set it where an agent of the kind `purge_keys` flushes a cache.
    pub(crate) surrogate_key: Option<String>,
}

/// The drawings of components that a publisher keeps, as far as the components say so in `cache`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FragmentsSection {
    /// Whether any are kept; default true.
    pub(crate) enabled: Option<bool>,
    /// What they may take together; default 64 MiB. Health names a larger one where it is too small.
    pub(crate) max_bytes: Option<ConfigByteSize>,
    /// What is left of them when some had to go; default three quarters of `max_bytes`.
    pub(crate) avg_bytes: Option<ConfigByteSize>,
    /// Larger ones are not kept; default 4 MiB.
    pub(crate) max_entry_bytes: Option<ConfigByteSize>,
    /// Places of components that are known at once; default 50,000.
    pub(crate) max_keys: Option<usize>,
    /// What a change removes: `tags` what was drawn from it, `full` everything, `buckets` what lies in the same bucket.
    /// Default `tags`; the others are for comparison with OpenCms.
    pub(crate) invalidation: FragmentInvalidation,
    /// The buckets: lists of paths.
    pub(crate) buckets: Vec<Vec<String>>,
    /// Paths below which a change removes everything although there are buckets; default `/apps`.
    pub(crate) clear_all: Option<Vec<String>>,
}

/// What a change removes.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FragmentInvalidation {
    #[default]
    Tags,
    Full,
    Buckets,
}

impl FragmentsSection {
    /// Returns the bounds, unless nothing is to be kept.
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

/// What queries may use, and which are listed as slow.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct QuerySection {
    /// What a statement has to take to be listed by `tympan index slow`; default 100 ms. Those that no index served are
    /// listed always.
    pub(crate) slow: Option<Span>,
    /// What a query may take; default 60 s. Raise it for reports that walk a large repository.
    pub(crate) max_time: Option<Span>,
    /// Rows that a query without an index for its order may hold to sort them; default 500,000, of about 1 KiB each.
    pub(crate) max_rows_in_memory: Option<usize>,
    /// Nodes and index entries that a query may look at; default: any number.
    pub(crate) max_rows_read: Option<u64>,
    /// What queries of users who are no administrators may use over HTTP, if that is less.
    pub(crate) users: UserQuerySection,
    /// What queries of visitors without a login may use over HTTP, if that is less, and whether they are answered.
    pub(crate) visitors: VisitorQuerySection,
}

/// What queries of users who are no administrators may use over HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct UserQuerySection {
    /// What a query may take; default 30 s. Lower it where many users have the right to ask.
    pub(crate) max_time: Option<Span>,
    /// Rows that a query may hold; default that of `[query]`.
    pub(crate) max_rows_in_memory: Option<usize>,
    /// Nodes and index entries that a query may look at; default 10,000,000.
    pub(crate) max_rows_read: Option<u64>,
}

/// What queries of visitors without a login may use over HTTP.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct VisitorQuerySection {
    /// Whether a publisher answers them at all; default `false`. Switch it on where scripts of a site's pages ask
    /// `/bin/querybuilder.json` or `/api/v1/search`; pages that are drawn with queries need it not.
    pub(crate) open: bool,
    /// What a query may take; default 2 s.
    pub(crate) max_time: Option<Span>,
    /// Rows that a query may hold; default 10,000.
    pub(crate) max_rows_in_memory: Option<usize>,
    /// Nodes and index entries that a query may look at; default 100,000. Raise it for sites with more pages than that.
    pub(crate) max_rows_read: Option<u64>,
}

impl QuerySection {
    /// Returns what queries over HTTP may use, by who asks.
    pub(crate) fn budgets(&self) -> tympan_server::QueryBudgets {
        let (default, own) = (tympan_server::QueryBudgets::default(), self.query_limits());
        let (users, visitors) = (&self.users, &self.visitors);
        let limits = |default: QueryLimits,
                      time: Option<Span>,
                      held: Option<usize>,
                      read: Option<u64>| QueryLimits {
            max_time: time.map_or(default.max_time, |span| span.0),
            max_rows_in_memory: held.unwrap_or(default.max_rows_in_memory),
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

/// How long revisions are kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct HistorySection {
    /// How long every revision is kept; default 24 h.
    pub(crate) all: Option<Span>,
    /// For how many hours the last revision of each is kept; default 48.
    pub(crate) hourly: Option<u32>,
    /// For how many days the last revision of each is kept; default 30.
    pub(crate) daily: Option<u32>,
    /// For how many weeks the last revision of each is kept; default 52.
    pub(crate) weekly: Option<u32>,
    /// Folders in which clones of this home keep their leases (`tympan repo clone --leases`); default none. Name one where
    /// a staging machine must not write a single byte into this home.
    pub(crate) leases: Vec<PathBuf>,
}

impl HistorySection {
    /// Returns the policy.
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

/// How long versions of nodes are kept. Labeled ones, the newest of each node and the one that it is based on are always
/// kept.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct VersionsSection {
    /// Versions of one node; default 50, 0 for any number. Raise it where editors look back further.
    pub(crate) max_count: Option<usize>,
    /// The age at which a version goes; default none. Set it where states must not be kept for long. The newest version
    /// of a deleted node goes then too.
    pub(crate) max_age: Option<Span>,
    /// Whether an author keeps what is activated as a version; default true. Set it to false where editors do not look
    /// back to what was published, or another system keeps it.
    pub(crate) on_activation: Option<bool>,
}

impl VersionsSection {
    /// Returns whether what is activated is kept.
    pub(crate) fn version_keeping(&self) -> ActivationVersioning {
        match self.on_activation {
            Some(false) => ActivationVersioning::NoVersion,
            _ => ActivationVersioning::CreateVersion,
        }
    }

    /// Returns the policy.
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

/// When and how fast garbage is collected.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CollectSection {
    /// Time between collections of a running instance, whole seconds or milliseconds; default 6 h, `"0s"` for none.
    pub(crate) every: Option<Span>,
    /// Bytes read and written by a collection in a second; default 32 MiB. Lower it where commits feel collections.
    pub(crate) rate: Option<ConfigByteSize>,
}

/// When what is outdated is taken away, beside garbage.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct MaintenanceSection {
    /// When outdated versions are taken away, as a Quartz expression in UTC; default `"0 0 2 * * ?"`, at two every night.
    /// Move it to when the fewest people work.
    pub(crate) daily: Option<String>,
    /// When this home says which blobs it needs, and those that nobody needs are swept, likewise; default
    /// `"0 30 3 * * ?"`. All who share a store of blobs should do it: what one has stored since waits for it.
    pub(crate) blobs: Option<String>,
    /// When ended workflows are taken away, likewise; default `"0 0 1 ? * SAT"`.
    pub(crate) weekly: Option<String>,
    /// How long workflows that ended are kept with their history; default: without end. Set it where thousands end a day.
    pub(crate) workflows: Option<Span>,
}

/// The full-text index.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SearchSection {
    /// Threads that read documents while the index is built or many documents change; default 2, at least 2. Raise it
    /// where building takes long and processors idle.
    pub(crate) threads: Option<usize>,
    /// Whether text is taken out of PDF, in a process of its own for each; default true. Turn it off where nobody
    /// searches for what PDF says.
    pub(crate) pdf: Option<bool>,
}

impl SearchSection {
    /// Returns how the index works.
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

/// Stored work.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct JobsSection {
    /// Jobs that run at once, of all queues together; default 64. Lower it where memory is short.
    pub(crate) threads: Option<usize>,
    /// How long running jobs may go on when the instance stops; default 20 s. Raise it where jobs cannot be begun again
    /// cheaply.
    pub(crate) drain: Option<Span>,
    /// How long other processes on the same database wait for this one before they take over its jobs; default 60 s. Clocks
    /// must agree better than that. Lower it where jobs must not wait after a crash.
    pub(crate) lease: Option<Span>,
    /// Run modes beside the role, which choose configuration folders such as `config.author.prod`; default none.
    pub(crate) run_modes: Vec<String>,
}

/// Asset processing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AssetsSection {
    /// Memory for pictures of all processes at once, once for assets and once for URLs with sizes; default 1 GiB, which is
    /// also the most that one picture may take. Raise it for progressive JPEG of more than 150 million pixels, or where
    /// pictures of many megapixels wait for each other.
    pub(crate) memory: Option<ConfigByteSize>,
    /// The most pixels of a picture, by its header; default 200 million.
    pub(crate) max_pixels: Option<u64>,
    /// How long one file may take; default 120 s.
    pub(crate) timeout: Option<Span>,
    /// Quality of the JPEG for the web, 1 to 100; default 90, as AEM has it.
    pub(crate) quality: Option<u8>,
    /// Widths in pixels of additional WebP renditions; default none. Set it where pages name renditions, not URLs with
    /// widths, which are drawn when they are asked for.
    pub(crate) widths: Vec<u32>,
    /// Whether those widths are made as AVIF, too; default false. It takes seconds a picture and the program `avifenc`.
    pub(crate) avif: bool,
    /// Widths in pixels that URLs may ask for without a signature; default 160, 320, 480, 640, 768, 1024, 1280, 1600, 1920
    /// and 2048.
    pub(crate) url_widths: Option<Vec<u32>>,
}

impl AssetsSection {
    /// Returns what one file may cost.
    pub(crate) fn processing_limits(&self) -> tympan_jobs::asset::ProcessingLimits {
        let default = tympan_jobs::asset::ProcessingLimits::default();
        tympan_jobs::asset::ProcessingLimits {
            pixels: self.max_pixels.unwrap_or(default.pixels),
            memory: self.memory.map_or(default.memory, |memory| memory.0),
            seconds: self.timeout.map_or(default.seconds, |timeout| timeout.0.as_secs().max(1)),
            file: default.file,
        }
    }

    /// Returns which renditions an asset gets.
    pub(crate) fn rendition_profile(&self) -> tympan_jobs::asset::RenditionProfile {
        let default = tympan_jobs::asset::RenditionProfile::default();
        tympan_jobs::asset::RenditionProfile {
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

/// Reads the text of a `tympan.toml`.
///
/// # Errors
/// What is wrong, with the place in the text.
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
        assert!(fault("[listen]\nmax_body = \"7\"\n").contains("is no size"));
        assert!(fault("[listen\n").starts_with("tympan.toml:1:"));
    }
}
