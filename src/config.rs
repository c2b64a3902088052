//! `tympan.toml`: the configuration of a home.
//!
//! Every section configures one component. Unknown keys are refused with their position and the nearest known key;
//! durations and sizes are strings with units, never bare numbers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tympan_content_query::QueryLimits;
use tympan_home::{
    BlobsSection, CollectSection, DatabaseSection, HistorySection, HomeConfig, MaintenanceSection,
    StoreSection, VersionsSection,
};
use tympan_render::{FragmentCacheOptions, FragmentInvalidationMode};
use tympan_render_export::ExportSection;
use tympan_server::{PublishSection, Timing};
use tympan_terminal::{CommandFault, PROGRAM_FILE};

pub(crate) use tympan_home::parse_toml;
use tympan_notation::{ByteSize, DurationText};

use crate::home_fault::home_fault;

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
    pub(crate) blobs: BlobsSection,
    pub(crate) history: HistorySection,
    pub(crate) collect: CollectSection,
    pub(crate) versions: VersionsSection,
    pub(crate) query: QuerySection,
    pub(crate) search: SearchSection,
    pub(crate) jobs: JobsSection,
    pub(crate) maintenance: MaintenanceSection,
    pub(crate) backup: tympan_home_backup::BackupSection,
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

impl TympanConfig {
    /// Returns the sections about the stores of the home.
    pub(crate) fn home_config(&self) -> HomeConfig {
        HomeConfig {
            store: self.store.clone(),
            database: self.database.clone(),
            blobs: self.blobs.clone(),
            history: self.history.clone(),
            collect: self.collect.clone(),
            versions: self.versions.clone(),
            maintenance: self.maintenance.clone(),
        }
    }
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

/// The hosts that workflow steps may send requests to. Mounts and back ends have separate lists, `[[mounts.location]]` and
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
    pub(crate) timeout: Option<DurationText>,
    /// The time for which a response is used without a new request; default 10 s.
    pub(crate) max_age: Option<DurationText>,
    /// The time for which an old response is used while the system does not respond; default 1 h.
    pub(crate) max_stale: Option<DurationText>,
    /// The time without requests to the system after five failures in a row; default 10 s.
    pub(crate) retry_after: Option<DurationText>,
    /// The maximum size of a response; default 1 MiB.
    #[serde(alias = "max_answer")]
    pub(crate) max_response: Option<ByteSize>,
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
            max_response: None,
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
            max_response_bytes: self.max_response.map_or(usual.max_response_bytes, |size| {
                usize::try_from(size.as_bytes()).unwrap_or(usize::MAX)
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
    pub(crate) max_header: Option<ByteSize>,
    /// The maximum size of a request's body; default 4 GiB on author, for uploads, and on publish, for replication.
    pub(crate) max_body: Option<ByteSize>,
    /// The maximum time until the next request's head is complete on an open connection; default 60 s.
    pub(crate) header_timeout: Option<DurationText>,
    /// The maximum time without data in a request's body; default 30 s. Raise it if uploads come over links that pause.
    pub(crate) body_timeout: Option<DurationText>,
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
    #[serde(alias = "idle")]
    pub(crate) idle_timeout: Option<DurationText>,
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

/// `request.log` and `access.log`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LogsSection {
    /// The number of old files of each log that are kept, one for each day; default 14. Raise it to look further back.
    pub(crate) keep: Option<usize>,
    /// The size at which a log continues in a new file on the same day; default unlimited. Set it if disks are small.
    pub(crate) max_size: Option<ByteSize>,
}

impl LogsSection {
    /// Returns the rotation policy.
    pub(crate) fn rotation(&self) -> tympan_web::log_file::LogRotation {
        let default = tympan_web::log_file::LogRotation::default();
        tympan_web::log_file::LogRotation {
            max_rotated_files: self.keep.unwrap_or(default.max_rotated_files),
            max_bytes: self.max_size.map(ByteSize::as_bytes),
            ..default
        }
    }
}

/// The ledger of the URLs that a publisher has rendered.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LedgerSection {
    /// The maximum number of URLs that are recorded individually; default 100,000, of about 1 KiB each. Raise it if
    /// `tympan_ledger_evictions_total` rises: URLs beyond the limit are flushed by folder.
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
    pub(crate) max_bytes: Option<ByteSize>,
    /// The total size that remains after an eviction; default three quarters of `max_bytes`.
    pub(crate) avg_bytes: Option<ByteSize>,
    /// The maximum size of a fragment, beyond which it is not cached; default 4 MiB.
    pub(crate) max_entry_bytes: Option<ByteSize>,
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
        let bytes = |size: Option<ByteSize>, default: usize| {
            size.map_or(default, |size| usize::try_from(size.as_bytes()).unwrap_or(usize::MAX))
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
    #[serde(alias = "slow")]
    pub(crate) slow_threshold: Option<DurationText>,
    /// The maximum duration of a query; default 60 s. Raise it for reports that walk a large repository.
    pub(crate) max_time: Option<DurationText>,
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
    pub(crate) max_time: Option<DurationText>,
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
    pub(crate) max_time: Option<DurationText>,
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
                      time: Option<DurationText>,
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
            slow_threshold: self.slow_threshold.map_or(default.slow_threshold, |span| span.0),
            max_time: self.max_time.map_or(default.max_time, |span| span.0),
            max_rows_in_memory: self.max_rows_in_memory.unwrap_or(default.max_rows_in_memory),
            max_rows_read: self.max_rows_read.unwrap_or(default.max_rows_read),
            clock: default.clock,
        }
    }
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
    pub(crate) drain: Option<DurationText>,
    /// The time after which other processes on the same database take over the jobs of a process that does not respond;
    /// default 60 s. Clocks must differ by less than that. Lower it if jobs must not wait after a crash.
    pub(crate) lease: Option<DurationText>,
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
    pub(crate) memory: Option<ByteSize>,
    /// The maximum number of pixels of a picture, according to its header; default 200 million.
    pub(crate) max_pixels: Option<u64>,
    /// The maximum processing time of one file; default 120 s.
    pub(crate) timeout: Option<DurationText>,
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
            memory: self.memory.map_or(default.memory, ByteSize::as_bytes),
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
    let config = tympan_home::read_home_toml(home).map_err(home_fault)?;
    warn_of_renamed_keys(&home.join("tympan.toml"));
    Ok(config)
}

/// Reads a file with the sections of `tympan.toml`.
///
/// # Errors
/// As [`read_home_config`], and if there is no such file.
pub(crate) fn read_config_file(file: &Path) -> Result<TympanConfig, CommandFault> {
    let config = tympan_home::read_toml_file(file).map_err(home_fault)?;
    warn_of_renamed_keys(file);
    Ok(config)
}

/// Logs a warning for each key of a file that was accepted by its earlier name.
fn warn_of_renamed_keys(file: &Path) {
    // A home without the file has the default configuration.
    let text = std::fs::read_to_string(file).unwrap_or_default();
    for (line, key) in find_renamed_keys(&text) {
        tracing::warn!(
            file = %file.display(),
            line,
            earlier = key.earlier,
            current = key.current,
            "a key was renamed; the next release refuses the earlier name"
        );
    }
}

/// A key whose earlier name is accepted until the next release.
#[derive(Debug, PartialEq, Eq)]
struct RenamedKey {
    section: &'static str,
    earlier: &'static str,
    current: &'static str,
}

/// The keys whose earlier names are accepted, each by an alias of its field.
static RENAMED_KEYS: [RenamedKey; 8] = [
    RenamedKey { section: "back_ends", earlier: "max_answer", current: "max_response" },
    RenamedKey { section: "backup", earlier: "give_way", current: "throttle" },
    RenamedKey { section: "collect", earlier: "every", current: "interval" },
    RenamedKey { section: "database", earlier: "idle", current: "idle_timeout" },
    RenamedKey { section: "database", earlier: "wait", current: "wait_timeout" },
    RenamedKey { section: "login", earlier: "idle", current: "idle_timeout" },
    RenamedKey { section: "mounts", earlier: "place", current: "location" },
    RenamedKey { section: "query", earlier: "slow", current: "slow_threshold" },
];

/// Returns the lines that set keys by their earlier names, counted from 1.
fn find_renamed_keys(text: &str) -> Vec<(usize, &'static RenamedKey)> {
    let find = |section: &str, name: &str| {
        RENAMED_KEYS.iter().find(|key| key.section == section && key.earlier == name.trim())
    };
    let (mut lines, mut section) = (Vec::new(), "");
    for (number, line) in (1..).zip(text.lines()) {
        let name = match line.trim().strip_prefix('[') {
            Some(header) => {
                let header = header.trim_matches(['[', ']']);
                let (first, rest) = header.split_once('.').unwrap_or((header, ""));
                section = first;
                rest
            }
            None => line.split_once('=').map_or("", |(name, _)| name),
        };
        lines.extend(find(section, name).map(|key| (number, key)));
    }
    lines
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
    use std::time::Duration;

    use tympan_replicate::ActivationVersioning;

    use super::*;

    fn fault(text: &str) -> String {
        parse_config_text("tympan.toml", text).unwrap_err()
    }

    #[test]
    fn earlier_names_of_keys_are_accepted_and_found() {
        let text = "[back_ends.crm]\nurl = \"http://h/\"\nmax_answer = \"2 MiB\"\n";
        let config = parse_config_text("tympan.toml", text).unwrap();
        assert_eq!(config.back_ends["crm"].to_backend_config().max_response_bytes, 2 << 20);
        assert_eq!(find_renamed_keys(text), [(3, &RENAMED_KEYS[0])]);
        let all = "[backup]\ngive_way = false\n[collect]\nevery = \"1h\"\n[database]\nidle = \"1m\"\n\
                   wait = \"1s\"\n[login]\nidle = \"2h\"\n[mounts]\n[[mounts.place]]\nurl = \"/srv\"\n\
                   [query]\nslow = \"1s\"\n";
        assert!(parse_config_text("tympan.toml", all).is_ok());
        let earlier: Vec<_> = find_renamed_keys(all).iter().map(|(_, key)| key.earlier).collect();
        assert_eq!(earlier, ["give_way", "every", "idle", "wait", "idle", "place", "slow"]);
        let current = text.replace("max_answer", "max_response");
        assert!(parse_config_text("tympan.toml", &current).is_ok());
        assert!(find_renamed_keys(&current).is_empty());
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
    fn durations_and_sizes_are_those_of_all_options() {
        let text =
            "[listen]\nbody_timeout = \"1h30m\"\nmax_body = \"1.5 GB\"\nmax_header = \"64 MiB\"\n";
        let listen = parse_config_text("tympan.toml", text).unwrap().listen;
        assert_eq!(listen.body_timeout, Some(DurationText(Duration::from_secs(5400))));
        assert_eq!(listen.max_body, Some(ByteSize::from_bytes(1_500_000_000)));
        assert_eq!(listen.max_header, Some(ByteSize::from_mib(64)));
        assert!(
            fault("[listen]\nbody_timeout = \"30\"\n").contains("`30` is not a duration; write")
        );
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
