//! The sections of `tympan.toml` about requests: `[login]`, `[work]`, `[query]`, `[timing]`, `[publish]`, `[receive]`,
//! `[operations]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_content::NodePath;
use tympan_content_query::QueryLimits;
use tympan_notation::{DurationText, error_chain_text};
use tympan_web::ip_network::{InvalidNetwork, IpNetwork};

use crate::instance::{TimingAudience, TimingDisclosure};
use crate::known_dispatcher::DispatcherAdmin;
use crate::page::headers::PageHeaders;
use crate::query::budget::QueryBudgets;

/// The audience of response timings.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// The audience of the header `Server-Timing`: `"nobody"`, `"users"` who are logged in, `"everybody"`; default
    /// `"users"`. Use `"everybody"` for load tests.
    pub header: Option<TimingAudienceName>,
    /// The audience of a comment with the times of all components at the end of each page; default `"nobody"`. It
    /// discloses scripts and paths, so that `"everybody"` is for test systems only.
    pub comment: Option<TimingAudienceName>,
}

/// An audience of response timings.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TimingAudienceName {
    /// No one.
    Nobody,
    /// Users who are logged in.
    Users,
    /// Everyone, visitors too.
    Everybody,
}

impl TimingAudienceName {
    fn to_server_audience(self) -> TimingAudience {
        match self {
            Self::Nobody => TimingAudience::Nobody,
            Self::Users => TimingAudience::Users,
            Self::Everybody => TimingAudience::Everybody,
        }
    }
}

impl Timing {
    /// Returns the audience of timings.
    pub fn to_timing_disclosure(&self) -> TimingDisclosure {
        let default = TimingDisclosure::default();
        TimingDisclosure {
            header_audience: self
                .header
                .map_or(default.header_audience, TimingAudienceName::to_server_audience),
            comment_audience: self
                .comment
                .map_or(default.comment_audience, TimingAudienceName::to_server_audience),
        }
    }
}

/// The headers of the pages that a publisher renders.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PublishSection {
    /// Headers of every HTML page, such as `Content-Security-Policy = "default-src 'self'; frame-ancestors 'self'"`;
    /// default none. A header that a response sets itself takes precedence, such as the policy of an uploaded file. An
    /// author sends `frame-ancestors 'self'`, regardless of this setting. Loosen the policy if pages use scripts,
    /// styles or pictures of other sites.
    pub headers: BTreeMap<String, String>,
}

impl PublishSection {
    /// Returns the headers of pages.
    ///
    /// # Errors
    /// With the invalid header.
    pub fn page_headers(&self) -> Result<PageHeaders, String> {
        let entries = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        PageHeaders::parse(entries)
            .map_err(|error| format!("tympan.toml: `[publish.headers]`: {error}"))
    }
}

/// Logins: the lifetime of sessions, and the proxies whose client addresses are trusted.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LoginSection {
    /// The time after which a session without requests ends; default 2 h. No session lasts longer than 12 h. Lower it
    /// if people share computers.
    #[serde(alias = "idle")]
    pub idle_timeout: Option<DurationText>,
    /// The addresses of dispatchers and load balancers, as `10.0.0.7` or `10.0.0.0/28`, whose statements about client
    /// addresses (`X-Forwarded-For`) are trusted; failed logins are counted by client address. Those on this machine
    /// are always trusted. Default none. Name all proxies on other machines between visitors and this instance: all
    /// users behind a proxy that is not named count as one client. Name no network that contains visitors, or they can
    /// forge their address.
    pub trusted_proxies: Vec<String>,
}

impl LoginSection {
    /// Returns the proxies whose client addresses are trusted.
    ///
    /// # Errors
    /// With the invalid entry.
    pub fn trusted_proxies(&self) -> Result<Vec<IpNetwork>, String> {
        let parse = |text: &String| {
            text.parse().map_err(|error: InvalidNetwork| {
                format!("tympan.toml: [login]: trusted_proxies: {error}")
            })
        };
        self.trusted_proxies.iter().map(parse).collect()
    }
}

/// The default number of requests that render or edit concurrently.
const DEFAULT_WORK_PERMITS: usize = 128;
/// The default number of waiting requests: at a few milliseconds per page, later ones would wait for seconds.
const DEFAULT_WORK_QUEUE_LENGTH: usize = 4096;

/// The concurrency of an instance.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WorkSection {
    /// The maximum number of requests that render or edit concurrently; default 128. Raise it if templates wait for
    /// slow back ends.
    pub permits: Option<usize>,
    /// The maximum number of requests that wait for their turn, in order of arrival; default 4,096. Further ones are
    /// answered with 503 and `Retry-After`. Lower it if visitors should be asked to retry instead of waiting.
    pub max_waiting: Option<usize>,
}

impl WorkSection {
    /// Returns the maximum number of requests that render or edit concurrently.
    pub fn permits(&self) -> usize {
        self.permits.unwrap_or(DEFAULT_WORK_PERMITS)
    }

    /// Returns the maximum number of requests that wait for their turn.
    pub fn max_waiting(&self) -> usize {
        self.max_waiting.unwrap_or(DEFAULT_WORK_QUEUE_LENGTH)
    }
}

/// The systems that the section *Operations* of the author's interface reaches.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct OperationsSection {
    /// The dispatchers whose caches administrators see, explain and flush, by name; default none.
    pub dispatchers: BTreeMap<String, DispatcherAdminSection>,
}

/// The admin listener of a dispatcher whose cache administrators of the author see, explain and flush.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DispatcherAdminSection {
    /// The URL of the listener at `address` of the dispatcher's `[dispatcher.admin]`, such as `"http://10.0.0.9:8081"`.
    /// Use `https` with a proxy of your own where the network in between is not trusted.
    pub url: String,
    /// The `token` of the dispatcher's `[dispatcher.admin]`. Default none: a dispatcher on this machine can be seen, and
    /// none can be flushed.
    #[schemars(extend("x-secret" = true))]
    pub token: Option<String>,
}

impl OperationsSection {
    /// Returns the admin listeners of the dispatchers.
    ///
    /// # Errors
    /// With the URL that is not one of HTTP.
    pub fn dispatcher_admins(&self) -> Result<Vec<DispatcherAdmin>, String> {
        let admin = |(name, section): (&String, &DispatcherAdminSection)| {
            let url = section.url.trim_end_matches('/');
            let is_http = url.parse::<http::Uri>().is_ok_and(|uri| {
                matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some()
            });
            if !is_http {
                return Err(format!(
                    "tympan.toml: [operations]: dispatchers.{name}: `{url}` is not a URL: write \
                     `http://HOST:PORT`"
                ));
            }
            let token = section.token.clone();
            Ok(DispatcherAdmin { name: name.clone(), url: url.to_owned(), token })
        };
        self.dispatchers.iter().map(admin).collect()
    }
}

/// The content that an author accepts from other instances.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveSection {
    /// The paths at and below which holders of the replication key may write, such as `["/content/dam/photos"]`;
    /// default none. Name the subtree that another author owns and replicates to this one. A publisher accepts
    /// everything.
    pub paths: Vec<String>,
}

impl ReceiveSection {
    /// Returns the paths that an author accepts from other instances.
    ///
    /// # Errors
    /// With the invalid path.
    pub fn received_paths(&self) -> Result<Vec<NodePath>, String> {
        let parse = |path: &String| {
            NodePath::new(path).map_err(|error| {
                format!("tympan.toml: [receive]: paths: {}", error_chain_text(&error))
            })
        };
        self.paths.iter().map(parse).collect()
    }
}

/// The limits of queries, and the threshold of slow ones.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuerySection {
    /// The minimum duration of a statement that `tympan index slow` lists; default 100 ms. Statements that no index
    /// served are always listed.
    #[serde(alias = "slow")]
    pub slow_threshold: Option<DurationText>,
    /// The maximum duration of a query; default 60 s. Raise it for reports that walk a large repository.
    pub max_time: Option<DurationText>,
    /// The maximum number of rows that a query without an index for its order holds in memory to sort them; default
    /// 500,000, of about 1 KiB each.
    pub max_rows_in_memory: Option<usize>,
    /// The maximum number of nodes and index entries that a query reads; default unlimited.
    pub max_rows_read: Option<u64>,
    /// Lower limits for queries of non-administrators over HTTP.
    pub users: UserQuerySection,
    /// Lower limits for queries of visitors without a login over HTTP, and whether they are allowed.
    pub visitors: VisitorQuerySection,
}

/// The limits of queries of non-administrators over HTTP.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UserQuerySection {
    /// The maximum duration of a query; default 30 s. Lower it if many users are allowed to query.
    pub max_time: Option<DurationText>,
    /// The maximum number of rows that a query holds in memory; default that of `[query]`.
    pub max_rows_in_memory: Option<usize>,
    /// The maximum number of nodes and index entries that a query reads; default 10,000,000.
    pub max_rows_read: Option<u64>,
}

/// The limits of queries of visitors without a login over HTTP.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VisitorQuerySection {
    /// True if a publisher executes them at all; default `false`. Enable it if scripts of a site's pages request
    /// `/bin/querybuilder.json` or `/api/v1/search`; pages that use queries while rendering do not need it.
    pub open: bool,
    /// The maximum duration of a query; default 2 s.
    pub max_time: Option<DurationText>,
    /// The maximum number of rows that a query holds in memory; default 10,000.
    pub max_rows_in_memory: Option<usize>,
    /// The maximum number of nodes and index entries that a query reads; default 100,000. Raise it for sites with more
    /// pages.
    pub max_rows_read: Option<u64>,
}

impl QuerySection {
    /// Returns the limits of queries over HTTP, by kind of user.
    pub fn budgets(&self) -> QueryBudgets {
        let (default, own) = (QueryBudgets::default(), self.query_limits());
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
        QueryBudgets {
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
    pub fn query_limits(&self) -> QueryLimits {
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
