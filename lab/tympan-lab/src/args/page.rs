//! Arguments of `tympan lab page`: commands that examine single pages.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{IgnoredElementArgs, LabLoginArgs, PlanlessRunArgs, WatchedLogArgs, heading};

#[derive(Debug, Subcommand)]
pub(crate) enum LabPageCommand {
    Page(LabPageArgs),
    Components(LabComponentsArgs),
    Slo(LabSloArgs),
    Cacheability(LabCacheabilityArgs),
    Verify(LabVerifyArgs),
}

/// The identity that requests are sent with.
#[derive(Debug, Args)]
pub(crate) struct RequestIdentityArgs {
    /// A header, `Name: value`; may be repeated.
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = heading::REQUESTS
    )]
    pub(crate) headers: Vec<String>,
    #[command(flatten)]
    pub(crate) credentials: LabLoginArgs,
}

/// Fetches pages with everything that they make a browser fetch, and reports the time of each request.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab page page http://127.0.0.1:8080/content/site/en.html --visits 5"
)]
pub(crate) struct LabPageArgs {
    /// The pages.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Number of visits of each page.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    pub(crate) visits: usize,
    /// Uses the browser's cache for visits after the first one; the first one is not judged.
    #[arg(long)]
    pub(crate) warm: bool,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) run_options: PlanlessRunArgs,
}

/// Reports the time of each component of a page, as measured by the server.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab page components http://127.0.0.1:4503/content/site/en.html --login admin:..."
)]
pub(crate) struct LabComponentsArgs {
    /// The page.
    pub(crate) url: String,
    /// Number of requests; the median of the times counts.
    #[arg(long, alias = "samples", value_name = "COUNT", default_value_t = 5)]
    pub(crate) requests: usize,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    #[command(flatten)]
    pub(crate) run_options: PlanlessRunArgs,
}

/// Checks the latency of pages, one request at a time: 70, 95, 99 and 100 % under 100, 300, 500 and 1000 ms.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab page slo http://127.0.0.1:4503/content/site/en.html --requests 200"
)]
pub(crate) struct LabSloArgs {
    /// The pages, requested in turn.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Total number of requests.
    #[arg(short = 'n', long, alias = "samples", value_name = "COUNT", default_value_t = 100)]
    pub(crate) requests: u64,
    #[command(flatten)]
    pub(crate) asker: RequestIdentityArgs,
    /// Appended to every URL so that the server renders the page; `_flex=nocache` with a login.
    #[arg(long, value_name = "QUERY")]
    pub(crate) bypass: Option<String>,
    /// The server's admin listener, `http://host:port`, which reports its role and its counters.
    #[arg(long, value_name = "URL")]
    pub(crate) admin: Option<String>,
    /// Exits with 3 unless all five conditions of the goal are known to hold.
    #[arg(long)]
    pub(crate) strict: bool,
    /// Measures again whenever a file below --watch-dir changes, or else every 5 seconds, and prints a line each time.
    #[arg(long, help_heading = heading::WATCHING)]
    pub(crate) watch: bool,
    /// The folder to watch for changes, such as a site's `apps`.
    #[arg(long, value_name = "DIR", requires = "watch", help_heading = heading::WATCHING)]
    pub(crate) watch_dir: Option<PathBuf>,
    /// Stops after this number of measurements.
    #[arg(long, value_name = "COUNT", requires = "watch", help_heading = heading::WATCHING)]
    pub(crate) rounds: Option<u64>,
    #[command(flatten)]
    pub(crate) run_options: PlanlessRunArgs,
}

/// Crawls a site and lists, with reasons, what prevents its responses from being cached.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab page cacheability http://127.0.0.1:8080/content/site/en.html"
)]
pub(crate) struct LabCacheabilityArgs {
    /// The start URL; only its host and port are crawled.
    pub(crate) url: String,
    /// Maximum number of URLs to request.
    #[arg(long, alias = "most", value_name = "COUNT", default_value_t = 200)]
    pub(crate) limit: usize,
    /// Number of examples shown per obstacle.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    pub(crate) examples: usize,
    /// A header sent with every request, `Name: value`; may be repeated.
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = heading::REQUESTS
    )]
    pub(crate) headers: Vec<String>,
    /// An additional header of a known visitor, such as `Cookie: login=...`; may be repeated.
    #[arg(long = "visitor", value_name = "HEADER", help_heading = heading::REQUESTS)]
    pub(crate) visitor: Vec<String>,
    /// Timeout of a response.
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = heading::REQUESTS)]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) json: bool,
}

/// Compares the responses of two sites to the same requests: status, headers, bodies without dates, nonces and
/// hashes.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab page verify pages.txt --before http://127.0.0.1:4503 --after http://127.0.0.1:4504"
)]
pub(crate) struct LabVerifyArgs {
    /// A list of requests (`[METHOD] /path` or a URL per line), or a plan (.jmx, .toml).
    pub(crate) what: PathBuf,
    /// The site before the change.
    #[arg(long, value_name = "URL")]
    pub(crate) before: String,
    /// The site after the change.
    #[arg(long, value_name = "URL")]
    pub(crate) after: String,
    /// A header sent with every request of a list, `Name: value`; may be repeated.
    #[arg(
        short = 'H',
        long = "header",
        value_name = "NAME: VALUE",
        help_heading = heading::REQUESTS
    )]
    pub(crate) headers: Vec<String>,
    /// An additional difference to ignore: a regular expression, or `PATTERN=>REPLACEMENT`; may be repeated.
    #[arg(long = "rule", value_name = "PATTERN")]
    pub(crate) rules: Vec<String>,
    /// A header to ignore; may be repeated.
    #[arg(long = "ignore-header", value_name = "NAME")]
    pub(crate) ignored_headers: Vec<String>,
    /// Compares dates, nonces, hashes and all headers too.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// A property of the plan, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property", value_name = "NAME=VALUE", help_heading = heading::PLAN)]
    pub(crate) properties: Vec<String>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    /// The seed of the plan's random numbers: both sites get the same values.
    #[arg(long, value_name = "NUMBER", default_value_t = 1, help_heading = heading::PLAN)]
    pub(crate) seed: u64,
    /// Timeout of a response.
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = heading::REQUESTS)]
    pub(crate) timeout: String,
    /// Prints JSON.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) json: bool,
}
