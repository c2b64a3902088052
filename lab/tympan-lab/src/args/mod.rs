//! Arguments of `tympan lab`. Commands, options and exit codes are stable: scripts depend on them.

pub(crate) mod analysis;
pub(crate) mod author;
pub(crate) mod fleet;
pub(crate) mod pages;
pub(crate) mod phases;

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use fleet::{LabAgentArgs, LabAgentsArgs, LabEmitArgs};

/// Puts a site under load and evaluates its responses: URLs, JMeter plans, logs, reports.
// Help and errors name the program as it was started: `tympan lab` passes that name.
#[derive(Debug, Parser)]
#[command(name = "tympan-lab", version, max_term_width = 100)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    pub(crate) command: LabCommand,
}

/// Returns the definition of all commands and options, for tests of texts that print commands.
#[must_use]
pub fn command_definition() -> clap::Command {
    LabArgs::command()
}

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Puts one or more URLs under load: with users who wait for responses, or at a fixed rate.
    #[command(
        after_help = "Example: tympan lab get http://127.0.0.1:8080/content/site/en.html -c 20 -z 30s\n         \
                      tympan lab get http://127.0.0.1:8080/content/site/en.html --rate 500 -z 30s --goals goals.toml"
    )]
    Get(LabGetArgs),
    /// Runs a load like ApacheBench, with its options and its output.
    #[command(after_help = "Example: tympan lab ab -c 60 -n 1000 http://127.0.0.1:8080/index.html")]
    Ab(LabAbArgs),
    /// Runs a JMeter plan with JMeter's options.
    #[command(
        after_help = "Example: tympan lab jmeter -n -t plan.jmx -Jthreads=100 -l results.jtl"
    )]
    Jmeter(LabJmeterArgs),
    /// Runs a plan.
    #[command(after_help = "Example: tympan lab run plan.jmx -Jthreads=100 --report report.html")]
    Run(LabRunArgs),
    /// Sends a share of the load that `run` or `get` divides with `--agents`.
    #[command(
        after_help = "Example: TYMPAN_LAB_TOKEN=... tympan lab agent controller.example.com:7410"
    )]
    Agent(LabAgentArgs),
    /// Lists the parts of plans that cannot be run, as `file:line:column: message`, without sending a request.
    #[command(after_help = "Example: tympan lab check plans/*.jmx")]
    Check(LabCheckArgs),
    /// Makes a report from a result file (.jtl), including JMeter's own, or one report of several runs.
    #[command(after_help = "Example: tympan lab report results.jtl -o report.html\n         \
                      tympan lab report runs/ -o all.html\n         \
                      tympan lab report runs/run-1700000000 runs/run-1700000600 -o both.html\n         \
                      tympan lab report results.jtl --request-log publish/logs/request.log -o report.html")]
    Report(LabReportArgs),
    /// Checks the latency of pages, one request at a time: 70, 95, 99 and 100 % under 100, 300, 500 and 1000 ms.
    #[command(
        after_help = "Example: tympan lab slo http://127.0.0.1:4503/content/site/en.html --samples 200"
    )]
    Slo(pages::LabSloArgs),
    /// Analyzes a request.log: the slowest requests, times per type, concurrent requests.
    #[command(alias = "rlog", after_help = "Example: tympan lab log -n 20 logs/request.log")]
    Log(LabLogArgs),
    /// Computes the cache hit ratio from logs.
    #[command(
        name = "cache-ratio",
        after_help = "Example: tympan lab cache-ratio --access a.log --request publish/request.log"
    )]
    CacheRatio(LabCacheRatioArgs),
    /// Converts users and their pace into arrivals per second and concurrent requests.
    #[command(after_help = "Example: tympan lab users --users 1000 --every 2s --resp 150ms")]
    Users(LabUsersArgs),
    /// Converts a day's assets into megabytes per second, on average and at the peak.
    #[command(
        name = "upload-goal",
        after_help = "Example: tympan lab upload-goal --assets 500 --size 12 --renditions 4 --window 8h --skew 80/20"
    )]
    UploadGoal(LabUploadGoalArgs),
    #[command(flatten)]
    Proof(analysis::LabAnalysisCommand),
    /// Increases the load in steps until a target breaks, and reports what breaks first.
    #[command(
        after_help = "Example: tympan lab breakpoint plan.toml --from 10 --step x1.5 --dwell 30s"
    )]
    Breakpoint(phases::LabBreakpointArgs),
    /// Keeps up a load for a long time, and reports whether the target degrades.
    #[command(after_help = "Example: tympan lab endure plan.toml --rate 20/s --for 8h --pid 4711")]
    Endure(phases::LabEndureArgs),
    /// Tests the average, the peak and the launch load, side by side against the same goals.
    #[command(
        after_help = "Example: tympan lab golive plan.toml --peak-from access.log --factor 3 --hold 30m --soft 10%"
    )]
    Golive(phases::LabGoliveArgs),
    /// Sends healthy traffic alone, and then the same traffic with errors added.
    #[command(
        after_help = "Example: tympan lab errors plan.toml --errors errors.toml --rate 50/s --for 5m\n         \
                      tympan lab errors http://127.0.0.1:8080/content/site/en.html --rate 50/s --for 1m --outage 'crm down=systemctl stop crm' --restore 'systemctl start crm'"
    )]
    Errors(phases::LabErrorsArgs),
    /// Tests single components, each alone, at their average and their peak load.
    #[command(
        after_help = "Example: tympan lab component http://127.0.0.1:4503/content/site/en/_jcr_content/nav.html --avg 20/s --peak 80/s"
    )]
    Component(phases::LabComponentArgs),
    /// Fetches pages with everything that they make a browser fetch, and reports the time of each request.
    #[command(
        after_help = "Example: tympan lab page http://127.0.0.1:8080/content/site/en.html --visits 5"
    )]
    Page(pages::LabPageArgs),
    /// Reports the time of each component of a page, as measured by the server.
    #[command(
        after_help = "Example: tympan lab components http://127.0.0.1:4503/content/site/en.html --login admin:..."
    )]
    Components(pages::LabComponentsArgs),
    /// Uploads pictures at the peak rate of a working day, and reports whether an author keeps up.
    #[command(
        after_help = "Example: tympan lab upload http://127.0.0.1:4502/content/dam/lab --assets 500/day --size 12 --renditions 4 --for 5m"
    )]
    Upload(phases::LabUploadArgs),
    /// Loads an author with the tests, weights and modes of Tough Day.
    #[command(
        after_help = "Example: tympan lab tough toughday --author http://127.0.0.1:4502 --publish http://127.0.0.1:4503 --concurrency 20 --duration 10m\n         \
                      tympan lab tough toughday.yaml --author http://127.0.0.1:4502 --dry-run"
    )]
    Tough(author::LabToughArgs),
    /// Measures how backups slow down work on an author, and the reverse: transactions lost, megabytes per second.
    #[command(
        name = "backup-impact",
        after_help = "Example: tympan lab backup-impact --author http://127.0.0.1:4502 --delay 0,1,10 --bytes '\"data_added\":([0-9]+)' -- tympan backup save repo:author -r vault --delay-ms {delay} --json"
    )]
    BackupImpact(author::LabBackupImpactArgs),
    /// Any other subcommand.
    #[command(external_subcommand)]
    Other(Vec<String>),
}

#[derive(Debug, Args)]
pub(crate) struct LabOutputArgs {
    /// Goals that the run must meet.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) goals: Option<PathBuf>,
    /// Writes the report as one HTML file.
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Writes the goals as JUnit XML.
    #[arg(long, value_name = "FILE.xml")]
    pub(crate) junit: Option<PathBuf>,
    /// Writes a summary in Markdown.
    #[arg(long, value_name = "FILE.md")]
    pub(crate) markdown: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The elements of a plan that may be left out.
#[derive(Debug, Default, Args)]
pub(crate) struct IgnoredElementArgs {
    /// Leaves out elements of this class that cannot be run, with everything below them, as if they were disabled; for
    /// JMeter plans, such as `JDBCSampler`. May be repeated.
    #[arg(long = "allow-ignore", value_name = "CLASS", value_delimiter = ',')]
    pub(crate) allow_ignore: Vec<String>,
}

/// The logs in which a target reports errors.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchedLogArgs {
    /// Fails if new error lines appear in this log; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) watch_log: Vec<PathBuf>,
    /// The regular expression that identifies an error line, instead of the built-in one.
    #[arg(long, value_name = "PATTERN", requires = "watch_log")]
    pub(crate) log_pattern: Option<String>,
}

/// The output of a command that takes no plan.
#[derive(Debug, Args)]
pub(crate) struct PlanlessRunArgs {
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// Stores arguments, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// The distribution of assets over a working day.
#[derive(Debug, Args)]
pub(crate) struct WorkingDayArgs {
    /// Size of an asset's renditions in megabytes.
    #[arg(long, default_value = "0")]
    pub(crate) renditions: String,
    /// The window, such as `8h`.
    #[arg(long, default_value = "8h")]
    pub(crate) window: String,
    /// Share of the work and share of the time in which it falls, in percent.
    #[arg(long, default_value = "80/20")]
    pub(crate) skew: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ArrivalDistribution {
    /// At equal intervals.
    Uniform,
    /// As a Poisson process: independent arrivals, as visitors come.
    Poisson,
}

#[derive(Debug, Args)]
pub(crate) struct LabGetArgs {
    /// The URLs to request, in turn: addresses, or files with one address per line.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Number of concurrent users, each of whom waits for the response.
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(crate) users: usize,
    /// Total number of requests.
    #[arg(short = 'n', long)]
    pub(crate) requests: Option<u64>,
    /// The duration of the load, such as `30s`.
    #[arg(short = 'z', long)]
    pub(crate) duration: Option<String>,
    /// Arrivals per second, independent of whether earlier requests have completed.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// The distribution of the intervals between arrivals.
    #[arg(long, value_enum, default_value = "uniform")]
    pub(crate) arrivals: ArrivalDistribution,
    /// The maximum number of concurrent users with a rate.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) max_users: usize,
    /// Pause between a response and the next request, such as `2s`.
    #[arg(long)]
    pub(crate) think: Option<String>,
    /// A header, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// The method; GET by default, or POST with a body.
    #[arg(short = 'X', long)]
    pub(crate) method: Option<String>,
    /// A file to send as the body.
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,
    /// Opens a new connection for each request.
    #[arg(long)]
    pub(crate) no_keep_alive: bool,
    /// Makes a full TLS handshake for each connection, instead of resuming an earlier session.
    #[arg(long)]
    pub(crate) no_tls_resume: bool,
    /// Uses HTTP/2, with one request at a time on each connection; without TLS with prior knowledge.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) http2: bool,
    /// Follows redirects.
    #[arg(short = 'L', long)]
    pub(crate) follow: bool,
    /// Timeout for connecting and for the next byte.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Number of threads; one per processor by default.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    /// Writes one row per request, in JMeter's format.
    #[arg(long, value_name = "FILE.jtl")]
    pub(crate) jtl: Option<PathBuf>,
    /// Adds a column to the rows: the duration of the sample in microseconds.
    #[arg(long, requires = "jtl")]
    pub(crate) jtl_us: bool,
    /// Sends a header that identifies the run and the sample (`X-Tympan-Lab`) with each request, so that the request
    /// can be found in the server's request.log; adds a column with that mark to the rows of --jtl.
    #[arg(long)]
    pub(crate) mark: bool,
    /// The seed of random arrivals.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Stores N complete exchanges of each label, and N that failed, and shows them in the report.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) trace: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) kept: RunFolderArgs,
    #[command(flatten)]
    pub(crate) agents: LabAgentsArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

impl LabGetArgs {
    /// Returns the HTTP method to use.
    pub(crate) fn http_method(&self) -> String {
        let usual = if self.body.is_some() { "POST" } else { "GET" };
        self.method.as_deref().unwrap_or(usual).to_uppercase()
    }
}

/// What is monitored during a load.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchedProcessArgs {
    /// A process of this machine to monitor during the load: processors, memory, files, threads.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// The URL of the target's Prometheus metrics, such as `http://127.0.0.1:4523/metrics`, read once a second instead
    /// of a process of this machine.
    #[arg(long, value_name = "URL", conflicts_with = "pid")]
    pub(crate) metrics: Option<String>,
}

/// The folder that stores the results of a run.
#[derive(Debug, Args)]
pub(crate) struct RunFolderArgs {
    /// Stores arguments, plan, histograms, seconds, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabAbArgs {
    /// Total number of requests.
    #[arg(short = 'n')]
    pub(crate) requests: Option<u64>,
    /// Number of concurrent connections.
    #[arg(short = 'c', default_value_t = 1)]
    pub(crate) concurrency: usize,
    /// Maximum duration in seconds; implies -n 50000.
    #[arg(short = 't')]
    pub(crate) seconds: Option<u64>,
    /// Seconds to wait for a response.
    #[arg(short = 's', default_value_t = 30)]
    pub(crate) timeout: u64,
    /// File to POST.
    #[arg(short = 'p', conflicts_with = "put")]
    pub(crate) post: Option<PathBuf>,
    /// File to PUT.
    #[arg(short = 'u')]
    pub(crate) put: Option<PathBuf>,
    /// Content type of the body.
    #[arg(short = 'T', default_value = "text/plain")]
    pub(crate) content_type: String,
    /// Verbosity: 2 and above prints the request and warnings, 3 and above statuses, 4 and above response headers.
    #[arg(short = 'v')]
    pub(crate) verbosity: Option<u32>,
    /// Uses HEAD instead of GET.
    #[arg(short = 'i', conflicts_with_all = ["post", "put"])]
    pub(crate) head: bool,
    /// A cookie, `name=value`; may be repeated.
    #[arg(short = 'C')]
    pub(crate) cookies: Vec<String>,
    /// A header, `Name: value`; may be repeated.
    #[arg(short = 'H')]
    pub(crate) headers: Vec<String>,
    /// Basic credentials, `user:password`.
    #[arg(short = 'A')]
    pub(crate) login: Option<String>,
    /// Basic credentials for a proxy, `user:password`.
    #[arg(short = 'P')]
    pub(crate) proxy_login: Option<String>,
    /// A proxy, `host:port`.
    #[arg(short = 'X')]
    pub(crate) proxy: Option<String>,
    /// The local address that connections are made from.
    #[arg(short = 'B', value_name = "ADDRESS")]
    pub(crate) source: Option<std::net::IpAddr>,
    /// Uses persistent connections.
    #[arg(short = 'k')]
    pub(crate) keep_alive: bool,
    /// Leaves out the percentiles.
    #[arg(short = 'd')]
    pub(crate) without_percentiles: bool,
    /// Leaves out deviations and warnings.
    #[arg(short = 'S')]
    pub(crate) without_deviation: bool,
    /// Prints no progress for a run of more than 150 requests.
    #[arg(short = 'q')]
    pub(crate) quiet: bool,
    /// Prints the results as an HTML table.
    #[arg(short = 'w')]
    pub(crate) is_markup: bool,
    /// Attributes of the table; implies -w.
    #[arg(short = 'x', value_name = "ATTRIBUTES", allow_hyphen_values = true)]
    pub(crate) table: Option<String>,
    /// Attributes of its rows; implies -w.
    #[arg(short = 'y', value_name = "ATTRIBUTES", allow_hyphen_values = true)]
    pub(crate) row: Option<String>,
    /// Attributes of its cells; implies -w.
    #[arg(short = 'z', value_name = "ATTRIBUTES", allow_hyphen_values = true)]
    pub(crate) cell: Option<String>,
    /// Size of the kernel's send and receive buffers in bytes.
    #[arg(short = 'b', value_name = "BYTES")]
    pub(crate) window: Option<usize>,
    /// TLS1.2, TLS1.3 or ALL; older protocols are refused.
    #[arg(short = 'f', value_name = "PROTOCOL")]
    pub(crate) protocol: Option<String>,
    /// Cipher suites of TLS 1.2 by OpenSSL's names, separated by colons.
    #[arg(short = 'Z', value_name = "SUITES")]
    pub(crate) ciphers: Option<String>,
    /// A PEM file with the certificate and key of the client.
    #[arg(short = 'E', value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// Sends no server name to the server (no SNI).
    #[arg(short = 'I')]
    pub(crate) hides_name: bool,
    /// Prints the version and exits.
    #[arg(short = 'V')]
    pub(crate) is_version: bool,
    /// Accepts responses of any length.
    #[arg(short = 'l')]
    pub(crate) any_length: bool,
    /// Continues after socket errors; accepted for compatibility with ab, socket errors never end a run.
    #[arg(short = 'r')]
    pub(crate) go_on: bool,
    /// The method.
    #[arg(short = 'm')]
    pub(crate) method: Option<String>,
    /// File for milliseconds per percentage.
    #[arg(short = 'e')]
    pub(crate) csv: Option<PathBuf>,
    /// File for all requests, for gnuplot.
    #[arg(short = 'g')]
    pub(crate) gnuplot: Option<PathBuf>,
    /// Counts responses of another length as failed, as ab does.
    #[arg(long)]
    pub(crate) strict_ab: bool,
    /// Number of threads; one per processor by default.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// The URL to request.
    #[arg(required_unless_present = "is_version")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabJmeterArgs {
    /// Runs without a window; accepted for compatibility with JMeter.
    #[arg(short = 'n', long = "nongui")]
    pub(crate) without_window: bool,
    /// The plan.
    #[arg(short = 't', long = "testfile", required_unless_present = "report_only")]
    pub(crate) plan: Option<PathBuf>,
    /// Result file.
    #[arg(short = 'l', long = "logfile")]
    pub(crate) rows: Option<PathBuf>,
    /// Log file; accepted for compatibility with JMeter, logs go to standard error.
    #[arg(short = 'j', long = "jmeterlogfile")]
    pub(crate) log: Option<PathBuf>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "jmeterproperty")]
    pub(crate) properties: Vec<String>,
    /// A property for all machines, `name=value`; the same as -J here. May be repeated.
    #[arg(short = 'G', long = "globalproperty")]
    pub(crate) global_properties: Vec<String>,
    /// A file of properties; may be repeated. -J and -G take precedence.
    #[arg(short = 'q', long = "addprop", value_name = "FILE")]
    pub(crate) property_files: Vec<PathBuf>,
    /// A file of properties that is read before those of -q.
    #[arg(short = 'p', long = "propfile", value_name = "FILE")]
    pub(crate) property_file: Option<PathBuf>,
    /// A Java system property; accepted for compatibility with JMeter, there is no Java.
    #[arg(short = 'D', long = "systemproperty")]
    pub(crate) system_properties: Vec<String>,
    /// The log level; accepted for compatibility with JMeter, `RUST_LOG` sets it.
    #[arg(short = 'L', long = "loglevel")]
    pub(crate) log_level: Vec<String>,
    /// Deletes the result file and an old report first.
    #[arg(short = 'f', long = "forceDeleteResultFile")]
    pub(crate) deletes: bool,
    /// Hosts that also run the plan, each with all of its threads; they are reached with `ssh`.
    #[arg(short = 'R', long = "remotestart", value_name = "HOSTS")]
    pub(crate) remote: Option<String>,
    /// Like -R, with the hosts of the property `remote_hosts`.
    #[arg(short = 'r', long = "runremote")]
    pub(crate) is_remote: bool,
    /// Divides the threads of the plan, and the rows of its data, among remote hosts.
    #[arg(long = "divide")]
    pub(crate) divides: bool,
    /// The path of the program on remote hosts.
    #[arg(long, default_value = "tympan")]
    pub(crate) agent_program: String,
    /// The program to use instead of `ssh`.
    #[arg(long, default_value = "ssh")]
    pub(crate) ssh: PathBuf,
    /// The address of a host name for this run, `name=address`, which overrides the system's resolver; may be repeated.
    #[arg(long, value_name = "NAME=ADDRESS")]
    pub(crate) resolve: Vec<String>,
    /// Makes a report after the run.
    #[arg(short = 'e', long = "reportatendofloadtests")]
    pub(crate) report: bool,
    /// Makes a report from this result file and runs nothing.
    #[arg(short = 'g', long = "reportonly")]
    pub(crate) report_only: Option<PathBuf>,
    /// The folder or file of the report.
    #[arg(short = 'o', long = "reportoutputfolder")]
    pub(crate) output: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabRunArgs {
    /// The plan: .toml or .jmx.
    pub(crate) plan: PathBuf,
    /// Another target than the plan's own, `http://host:port`; for TOML plans.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Visits per second instead of the plan's own load, such as `50/s`, independent of whether earlier visits have
    /// ended.
    #[arg(long, conflicts_with = "users")]
    pub(crate) rate: Option<String>,
    /// Number of concurrent users, who wait for responses, instead of the plan's own load.
    #[arg(long)]
    pub(crate) users: Option<u64>,
    /// The duration of a load of --rate or --users; one minute by default.
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) lasts: Option<String>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    /// The address of a host name for this run, `name=address`, which overrides the system's resolver; may be repeated.
    #[arg(long, value_name = "NAME=ADDRESS")]
    pub(crate) resolve: Vec<String>,
    /// Uses HTTP/2, with one request at a time on each connection; without TLS with prior knowledge.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) http2: bool,
    /// Result file.
    #[arg(long, value_name = "FILE.jtl")]
    pub(crate) jtl: Option<PathBuf>,
    /// Adds a column to the rows: the duration of the sample in microseconds.
    #[arg(long, requires = "jtl")]
    pub(crate) jtl_us: bool,
    /// Sends a header that identifies the run and the sample (`X-Tympan-Lab`) with each request, so that the request
    /// can be found in the server's request.log; adds a column with that mark to the rows of --jtl.
    #[arg(long)]
    pub(crate) mark: bool,
    /// Does not write the result files that listeners of the plan name.
    #[arg(long)]
    pub(crate) without_listeners: bool,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    /// Number of threads; one per processor by default.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    /// The seed of random numbers, so that a run can be repeated with the same values; random by default.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Stores N complete exchanges of each label, and N that failed, and shows them in the report.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) trace: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    #[command(flatten)]
    pub(crate) kept: RunFolderArgs,
    #[command(flatten)]
    pub(crate) agents: LabAgentsArgs,
    #[command(flatten)]
    pub(crate) emit: LabEmitArgs,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabCheckArgs {
    /// The plans.
    #[arg(required = true)]
    pub(crate) plans: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    /// Also prints the structure of the plans.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabReportArgs {
    /// A result file; or runs to overlay: folders that `--keep` made, folders of such folders, summaries of `--json`,
    /// result files.
    #[arg(
        required_unless_present = "project",
        conflicts_with = "project",
        value_name = "FILE|RUN"
    )]
    pub(crate) runs: Vec<PathBuf>,
    /// Makes the report of a project instead.
    #[arg(long, value_name = "project.toml")]
    pub(crate) project: Option<PathBuf>,
    /// The path of the HTML file.
    #[arg(short = 'o', long = "out", value_name = "FILE.html")]
    pub(crate) out: Option<PathBuf>,
    /// The server's request.log of a run with --mark: shows the server's share of the samples' time. May be repeated,
    /// or list several separated by commas.
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with = "project")]
    pub(crate) request_log: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabLogArgs {
    /// Maximum number of lines.
    #[arg(short = 'n', value_name = "RESULTS")]
    pub(crate) most_results: Option<usize>,
    /// Maximum number of requests.
    #[arg(short = 'm', value_name = "REQUESTS")]
    pub(crate) most_requests: Option<u64>,
    /// `-xdev` leaves out POST requests to CRXDE.
    #[arg(short = 'x', value_name = "dev", value_parser = ["dev"])]
    pub(crate) exclude: Option<String>,
    /// Also prints the paths with the highest total time, times per type, and the latency goal.
    #[arg(long)]
    pub(crate) summary: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The request.log.
    pub(crate) file: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LabCacheRatioArgs {
    /// access.log of a dispatcher; may be repeated, or list several separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) access: Vec<PathBuf>,
    /// request.log of a publisher; may be repeated, or list several separated by commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) request: Vec<PathBuf>,
    /// Total number of requests, instead of logs.
    #[arg(long, requires = "reached", conflicts_with = "access")]
    pub(crate) total: Option<u64>,
    /// Number of requests that reached the publisher, instead of logs.
    #[arg(long, requires = "total")]
    pub(crate) reached: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct LabUsersArgs {
    /// Number of users.
    #[arg(long)]
    pub(crate) users: u64,
    /// Interval between requests of one user, such as `2s`.
    #[arg(long)]
    pub(crate) every: String,
    /// Response time.
    #[arg(long, default_value = "0s")]
    pub(crate) resp: String,
}

#[derive(Debug, Args)]
pub(crate) struct LabUploadGoalArgs {
    /// Assets per window; `500/day` is read as 500.
    #[arg(long)]
    pub(crate) assets: String,
    /// Size of an original in megabytes.
    #[arg(long)]
    pub(crate) size: String,
    #[command(flatten)]
    pub(crate) spread: WorkingDayArgs,
}
