//! The words of `tympan lab`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::lab_fleet::{LabAgentArgs, LabAgentsArgs, LabEmitArgs};

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Puts one or more URLs under load: users who wait for answers, or a rate.
    #[command(
        after_help = "Example: tympan lab get http://127.0.0.1:8080/content/site/en.html -c 20 -z 30s\n         \
                      tympan lab get http://127.0.0.1:8080/content/site/en.html --rate 500 -z 30s --goals goals.toml"
    )]
    Get(LabGetArgs),
    /// Does what ApacheBench does, with its options and its text.
    #[command(after_help = "Example: tympan lab ab -c 60 -n 1000 http://127.0.0.1:8080/index.html")]
    Ab(LabAbArgs),
    /// Runs a plan of JMeter with JMeter's options.
    #[command(
        after_help = "Example: tympan lab jmeter -n -t plan.jmx -Jthreads=100 -l results.jtl"
    )]
    Jmeter(LabJmeterArgs),
    /// Runs a plan.
    #[command(after_help = "Example: tympan lab run plan.jmx -Jthreads=100 --report report.html")]
    Run(LabRunArgs),
    /// Sends its portion of a load that `run` or `get` divides with `--agents`.
    #[command(
        after_help = "Example: TYMPAN_LAB_TOKEN=... tympan lab agent controller.example.com:7410"
    )]
    Agent(LabAgentArgs),
    /// Says what of plans cannot be run, as `file:line:column: message`, without sending anything.
    #[command(after_help = "Example: tympan lab check plans/*.jmx")]
    Check(LabCheckArgs),
    /// Makes a report from a result file (.jtl), JMeter's own too, or one of several runs.
    #[command(after_help = "Example: tympan lab report results.jtl -o report.html\n         \
                      tympan lab report runs/ -o all.html\n         \
                      tympan lab report runs/run-1700000000 runs/run-1700000600 -o both.html\n         \
                      tympan lab report results.jtl --request-log publish/logs/request.log -o report.html")]
    Report(LabReportArgs),
    /// Judges the latency of pages, one request at a time: 70, 95, 99 and 100 % under 100, 300, 500 and 1000 ms.
    #[command(
        after_help = "Example: tympan lab slo http://127.0.0.1:4503/content/site/en.html --samples 200"
    )]
    Slo(super::lab_pages::LabSloArgs),
    /// Reads a request.log: the slowest requests, times per type, requests at a time.
    #[command(alias = "rlog", after_help = "Example: tympan lab log -n 20 logs/request.log")]
    Log(LabLogArgs),
    /// Tells what share of the requests a cache answered, from logs.
    #[command(
        name = "cache-ratio",
        after_help = "Example: tympan lab cache-ratio --access a.log --request publish/request.log"
    )]
    CacheRatio(LabCacheRatioArgs),
    /// Turns users and their pace into arrivals per second and requests at a time.
    #[command(after_help = "Example: tympan lab users --users 1000 --every 2s --resp 150ms")]
    Users(LabUsersArgs),
    /// Turns a day's assets into megabytes per second, on average and in the busy time.
    #[command(
        name = "upload-goal",
        after_help = "Example: tympan lab upload-goal --assets 500 --size 12 --renditions 4 --window 8h --skew 80/20"
    )]
    UploadGoal(LabUploadGoalArgs),
    #[command(flatten)]
    Proof(super::lab_analysis::LabAnalysisCommand),
    /// Looks for the load at which a target breaks, in steps, and what breaks first.
    #[command(
        after_help = "Example: tympan lab breakpoint plan.toml --from 10 --step x1.5 --dwell 30s"
    )]
    Breakpoint(super::lab_phases::LabBreakpointArgs),
    /// Keeps a load up for long, and tells whether the target gets worse meanwhile.
    #[command(after_help = "Example: tympan lab endure plan.toml --rate 20/s --for 8h --pid 4711")]
    Endure(super::lab_phases::LabEndureArgs),
    /// Tries the average, the peak and the launch, side by side against the same goals.
    #[command(
        after_help = "Example: tympan lab golive plan.toml --peak-from access.log --factor 3 --hold 30m --soft 10%"
    )]
    Golive(super::lab_phases::LabGoliveArgs),
    /// Sends healthy traffic alone, and then the same with errors beside it.
    #[command(
        after_help = "Example: tympan lab errors plan.toml --errors errors.toml --rate 50/s --for 5m\n         \
                      tympan lab errors http://127.0.0.1:8080/content/site/en.html --rate 50/s --for 1m --outage 'crm down=systemctl stop crm' --restore 'systemctl start crm'"
    )]
    Errors(super::lab_phases::LabErrorsArgs),
    /// Tries single components, each alone, at their average and their peak.
    #[command(
        after_help = "Example: tympan lab component http://127.0.0.1:4503/content/site/en/_jcr_content/nav.html --avg 20/s --peak 80/s"
    )]
    Component(super::lab_phases::LabComponentArgs),
    /// Fetches pages with everything that they make a browser fetch, and tells what each request takes.
    #[command(
        after_help = "Example: tympan lab page http://127.0.0.1:8080/content/site/en.html --visits 5"
    )]
    Page(super::lab_pages::LabPageArgs),
    /// Tells what each component of a page takes, as the server knows it.
    #[command(
        after_help = "Example: tympan lab components http://127.0.0.1:4503/content/site/en.html --login admin:..."
    )]
    Components(super::lab_pages::LabComponentsArgs),
    /// Uploads pictures at the rate of a working day's peak, and tells whether an author keeps up.
    #[command(
        after_help = "Example: tympan lab upload http://127.0.0.1:4502/content/dam/lab --assets 500/day --size 12 --renditions 4 --for 5m"
    )]
    Upload(super::lab_phases::LabUploadArgs),
    /// Loads an author with the tests, weights and modes of Tough Day.
    #[command(
        after_help = "Example: tympan lab tough toughday --author http://127.0.0.1:4502 --publish http://127.0.0.1:4503 --concurrency 20 --duration 10m\n         \
                      tympan lab tough toughday.yaml --author http://127.0.0.1:4502 --dry-run"
    )]
    Tough(super::lab_author::LabToughArgs),
    /// Tells what backups cost the work on an author, and the work the backups: transactions lost, megabytes per second.
    #[command(
        name = "backup-impact",
        after_help = "Example: tympan lab backup-impact --author http://127.0.0.1:4502 --delay 0,1,10 --bytes '\"data_added\":([0-9]+)' -- tympan backup save repo:author -r vault --delay-ms {delay} --json"
    )]
    BackupImpact(super::lab_author::LabBackupImpactArgs),
    /// Any other word.
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

/// What of a plan may be left out.
#[derive(Debug, Default, Args)]
pub(crate) struct IgnoredElementArgs {
    /// Leaves out elements of this class where they cannot be run, with what stands below them, as if they were disabled;
    /// for plans of JMeter, such as `JDBCSampler`. May be repeated.
    #[arg(long = "allow-ignore", value_name = "CLASS", value_delimiter = ',')]
    pub(crate) allow_ignore: Vec<String>,
}

/// Logs to which a target writes what goes wrong.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchedLogArgs {
    /// Fails on new lines of errors in this log; may be repeated.
    #[arg(long, value_name = "FILE")]
    pub(crate) watch_log: Vec<PathBuf>,
    /// What a line of an error is, as a regular expression, instead of the usual words.
    #[arg(long, value_name = "PATTERN", requires = "watch_log")]
    pub(crate) log_pattern: Option<String>,
}

/// What comes of a command that takes no plan.
#[derive(Debug, Args)]
pub(crate) struct PlanlessRunArgs {
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// Keeps arguments, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

/// How assets of a working day are spread over it.
#[derive(Debug, Args)]
pub(crate) struct WorkingDayArgs {
    /// Megabytes of an asset's renditions.
    #[arg(long, default_value = "0")]
    pub(crate) renditions: String,
    /// The window, such as `8h`.
    #[arg(long, default_value = "8h")]
    pub(crate) window: String,
    /// Share of the work and of the time in which it falls, in percent.
    #[arg(long, default_value = "80/20")]
    pub(crate) skew: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ArrivalDistribution {
    /// At equal distances.
    Uniform,
    /// Independently, as visitors come.
    Poisson,
}

#[derive(Debug, Args)]
pub(crate) struct LabGetArgs {
    /// What is asked, in turn: addresses, or files with one in each line.
    #[arg(required = true)]
    pub(crate) urls: Vec<String>,
    /// Users who each wait for their answer.
    #[arg(short = 'c', long, default_value_t = 1)]
    pub(crate) users: usize,
    /// Requests in all.
    #[arg(short = 'n', long)]
    pub(crate) requests: Option<u64>,
    /// When to stop, such as `30s`.
    #[arg(short = 'z', long)]
    pub(crate) duration: Option<String>,
    /// Arrivals per second, whether or not earlier requests have been answered.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// How arrivals follow each other.
    #[arg(long, value_enum, default_value = "uniform")]
    pub(crate) arrivals: ArrivalDistribution,
    /// Most users at a time with a rate.
    #[arg(long, default_value_t = 10_000)]
    pub(crate) max_users: usize,
    /// Pause between an answer and the next request, such as `2s`.
    #[arg(long)]
    pub(crate) think: Option<String>,
    /// A header, `Name: value`; may be repeated.
    #[arg(short = 'H', long = "header")]
    pub(crate) headers: Vec<String>,
    /// The method; GET unless given, or POST where a body is sent.
    #[arg(short = 'X', long)]
    pub(crate) method: Option<String>,
    /// A file that is sent as the body.
    #[arg(long, value_name = "FILE")]
    pub(crate) body: Option<PathBuf>,
    /// Opens a connection for each request.
    #[arg(long)]
    pub(crate) no_keep_alive: bool,
    /// Makes a full TLS handshake for each connection, instead of going on with an earlier session.
    #[arg(long)]
    pub(crate) no_tls_resume: bool,
    /// Speaks HTTP/2, with one request at a time on each connection; without TLS from the first byte.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) http2: bool,
    /// Follows redirects.
    #[arg(short = 'L', long)]
    pub(crate) follow: bool,
    /// Longest wait for a connection and for the next byte.
    #[arg(long, default_value = "30s")]
    pub(crate) timeout: String,
    /// Threads; one per processor unless given.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    /// Writes a row per request, as JMeter does.
    #[arg(long, value_name = "FILE.jtl")]
    pub(crate) jtl: Option<PathBuf>,
    /// Adds a column to its rows: how long the sample took, in microseconds.
    #[arg(long, requires = "jtl")]
    pub(crate) jtl_us: bool,
    /// Tells servers with each request which sample of which run it belongs to (`X-Tympan-Lab`), so that it is found in their
    /// request.log; adds a column with that mark to the rows of --jtl.
    #[arg(long)]
    pub(crate) mark: bool,
    /// What random arrivals derive from.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Keeps N exchanges of each label whole, and N that failed, and shows them in the report.
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
    /// Returns the method that is sent.
    pub(crate) fn http_method(&self) -> String {
        let usual = if self.body.is_some() { "POST" } else { "GET" };
        self.method.as_deref().unwrap_or(usual).to_uppercase()
    }
}

/// What is looked at beside a load.
#[derive(Debug, Default, Args)]
pub(crate) struct WatchedProcessArgs {
    /// A process of this machine to watch beside the load: processors, memory, files, threads.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// The target's metrics in Prometheus's form, such as `http://127.0.0.1:4523/metrics`, looked at once a second instead
    /// of a process of this machine.
    #[arg(long, value_name = "URL", conflicts_with = "pid")]
    pub(crate) metrics: Option<String>,
}

/// What is kept of a run.
#[derive(Debug, Args)]
pub(crate) struct RunFolderArgs {
    /// Keeps arguments, plan, histograms, seconds, summary and report in a new folder `run-...` below this one.
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) watched: WatchedProcessArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabAbArgs {
    /// Requests in all.
    #[arg(short = 'n')]
    pub(crate) requests: Option<u64>,
    /// Connections at a time.
    #[arg(short = 'c', default_value_t = 1)]
    pub(crate) concurrency: usize,
    /// Seconds at most; implies -n 50000.
    #[arg(short = 't')]
    pub(crate) seconds: Option<u64>,
    /// Seconds to wait for an answer.
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
    /// How much to tell: from 2 on the request and warnings, from 3 on statuses, from 4 on headers of answers.
    #[arg(short = 'v')]
    pub(crate) verbosity: Option<u32>,
    /// HEAD instead of GET.
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
    /// The address of this machine that connections begin at.
    #[arg(short = 'B', value_name = "ADDRESS")]
    pub(crate) source: Option<std::net::IpAddr>,
    /// Uses connections again.
    #[arg(short = 'k')]
    pub(crate) keep_alive: bool,
    /// Leaves out the percentiles.
    #[arg(short = 'd')]
    pub(crate) without_percentiles: bool,
    /// Leaves out deviations and warnings.
    #[arg(short = 'S')]
    pub(crate) without_deviation: bool,
    /// Does not tell how far a run of more than 150 requests has come.
    #[arg(short = 'q')]
    pub(crate) quiet: bool,
    /// Prints the results as a table in HTML.
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
    /// Bytes of the kernel's buffers for sending and receiving.
    #[arg(short = 'b', value_name = "BYTES")]
    pub(crate) window: Option<usize>,
    /// TLS1.2, TLS1.3 or ALL; older protocols are refused.
    #[arg(short = 'f', value_name = "PROTOCOL")]
    pub(crate) protocol: Option<String>,
    /// Cipher suites of TLS 1.2 by OpenSSL's names, with colons between them.
    #[arg(short = 'Z', value_name = "SUITES")]
    pub(crate) ciphers: Option<String>,
    /// A file in PEM with the certificate and key of the client.
    #[arg(short = 'E', value_name = "FILE")]
    pub(crate) certificate: Option<PathBuf>,
    /// Does not tell the server which of its names is meant (no SNI).
    #[arg(short = 'I')]
    pub(crate) hides_name: bool,
    /// Prints the version and ends.
    #[arg(short = 'V')]
    pub(crate) is_version: bool,
    /// Accepts answers of any length.
    #[arg(short = 'l')]
    pub(crate) any_length: bool,
    /// Goes on after socket errors; accepted for ab's sake, they never end a run.
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
    /// Counts answers of another length as failed, as ab does.
    #[arg(long)]
    pub(crate) strict_ab: bool,
    /// Threads; one per processor unless given.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// What is asked.
    #[arg(required_unless_present = "is_version")]
    pub(crate) url: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LabJmeterArgs {
    /// Without a window; accepted for JMeter's sake.
    #[arg(short = 'n', long = "nongui")]
    pub(crate) without_window: bool,
    /// The plan.
    #[arg(short = 't', long = "testfile", required_unless_present = "report_only")]
    pub(crate) plan: Option<PathBuf>,
    /// Result file.
    #[arg(short = 'l', long = "logfile")]
    pub(crate) rows: Option<PathBuf>,
    /// Log file; accepted for JMeter's sake, logs go to standard error.
    #[arg(short = 'j', long = "jmeterlogfile")]
    pub(crate) log: Option<PathBuf>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "jmeterproperty")]
    pub(crate) properties: Vec<String>,
    /// A property for all machines, `name=value`; the same as -J here. May be repeated.
    #[arg(short = 'G', long = "globalproperty")]
    pub(crate) global_properties: Vec<String>,
    /// A file of properties; may be repeated. What -J and -G say counts more.
    #[arg(short = 'q', long = "addprop", value_name = "FILE")]
    pub(crate) property_files: Vec<PathBuf>,
    /// A file of properties that is read before those of -q.
    #[arg(short = 'p', long = "propfile", value_name = "FILE")]
    pub(crate) property_file: Option<PathBuf>,
    /// A property of Java; accepted for JMeter's sake, there is no Java.
    #[arg(short = 'D', long = "systemproperty")]
    pub(crate) system_properties: Vec<String>,
    /// How much is logged; accepted for JMeter's sake, `RUST_LOG` says it.
    #[arg(short = 'L', long = "loglevel")]
    pub(crate) log_level: Vec<String>,
    /// Deletes the result file and an old report first.
    #[arg(short = 'f', long = "forceDeleteResultFile")]
    pub(crate) deletes: bool,
    /// Hosts that run the plan too, each with all of its threads; `ssh` reaches them.
    #[arg(short = 'R', long = "remotestart", value_name = "HOSTS")]
    pub(crate) remote: Option<String>,
    /// The same on the hosts of the property `remote_hosts`.
    #[arg(short = 'r', long = "runremote")]
    pub(crate) is_remote: bool,
    /// Divides the threads of the plan, and the rows of its data, among remote hosts.
    #[arg(long = "divide")]
    pub(crate) divides: bool,
    /// The program on remote hosts.
    #[arg(long, default_value = "tympan")]
    pub(crate) agent_program: String,
    /// What takes the place of `ssh`.
    #[arg(long, default_value = "ssh")]
    pub(crate) ssh: PathBuf,
    /// The address of a name for this run, `name=address`, whatever the system says; may be repeated.
    #[arg(long, value_name = "NAME=ADDRESS")]
    pub(crate) resolve: Vec<String>,
    /// Makes a report after the run.
    #[arg(short = 'e', long = "reportatendofloadtests")]
    pub(crate) report: bool,
    /// Makes a report from this result file only.
    #[arg(short = 'g', long = "reportonly")]
    pub(crate) report_only: Option<PathBuf>,
    /// Folder, or file, of the report.
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
    /// Another target than the plan's own, `http://host:port`; for plans in TOML.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// Visits per second instead of the plan's own load, such as `50/s`, whether or not earlier ones are over.
    #[arg(long, conflicts_with = "users")]
    pub(crate) rate: Option<String>,
    /// Users at a time, who wait for answers, instead of the plan's own load.
    #[arg(long)]
    pub(crate) users: Option<u64>,
    /// How long a load of --rate or --users lasts; a minute unless given.
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) lasts: Option<String>,
    /// A property, `name=value`; may be repeated.
    #[arg(short = 'J', long = "property")]
    pub(crate) properties: Vec<String>,
    /// The address of a name for this run, `name=address`, whatever the system says; may be repeated.
    #[arg(long, value_name = "NAME=ADDRESS")]
    pub(crate) resolve: Vec<String>,
    /// Speaks HTTP/2, with one request at a time on each connection; without TLS from the first byte.
    #[arg(long, conflicts_with = "agents")]
    pub(crate) http2: bool,
    /// Result file.
    #[arg(long, value_name = "FILE.jtl")]
    pub(crate) jtl: Option<PathBuf>,
    /// Adds a column to its rows: how long the sample took, in microseconds.
    #[arg(long, requires = "jtl")]
    pub(crate) jtl_us: bool,
    /// Tells servers with each request which sample of which run it belongs to (`X-Tympan-Lab`), so that it is found in their
    /// request.log; adds a column with that mark to the rows of --jtl.
    #[arg(long)]
    pub(crate) mark: bool,
    /// Leaves out the result files that listeners of the plan name.
    #[arg(long)]
    pub(crate) without_listeners: bool,
    #[command(flatten)]
    pub(crate) allowed: IgnoredElementArgs,
    /// Threads; one per processor unless given.
    #[arg(long, default_value_t = 0)]
    pub(crate) workers: usize,
    /// What random numbers derive from, so that a run draws what another one drew; they differ from run to run unless given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Keeps N exchanges of each label whole, and N that failed, and shows them in the report.
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
    /// Also tells what the plans are made of.
    #[arg(long)]
    pub(crate) explain: bool,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LabReportArgs {
    /// A result file; or runs, which are laid over each other: folders that `--keep` made, folders of such folders,
    /// summaries of `--json`, result files.
    #[arg(
        required_unless_present = "project",
        conflicts_with = "project",
        value_name = "FILE|RUN"
    )]
    pub(crate) runs: Vec<PathBuf>,
    /// Makes the report of a project instead.
    #[arg(long, value_name = "project.toml")]
    pub(crate) project: Option<PathBuf>,
    /// Where the HTML file goes.
    #[arg(short = 'o', long = "out", value_name = "FILE.html")]
    pub(crate) out: Option<PathBuf>,
    /// The server's request.log of a run with --mark: tells what of the samples' time was the server's. May be repeated, or
    /// hold several with commas.
    #[arg(long, value_name = "FILE", value_delimiter = ',', conflicts_with = "project")]
    pub(crate) request_log: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) output: LabOutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct LabLogArgs {
    /// Lines at most.
    #[arg(short = 'n', value_name = "RESULTS")]
    pub(crate) most_results: Option<usize>,
    /// Requests at most.
    #[arg(short = 'm', value_name = "REQUESTS")]
    pub(crate) most_requests: Option<u64>,
    /// `-xdev` leaves out POST requests to CRXDE.
    #[arg(short = 'x', value_name = "dev", value_parser = ["dev"])]
    pub(crate) exclude: Option<String>,
    /// Also tells which paths took the most time in all, times per type, and the latency goal.
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
    /// access.log of a dispatcher; may be repeated, or hold several with commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) access: Vec<PathBuf>,
    /// request.log of a publisher; may be repeated, or hold several with commas.
    #[arg(long, value_delimiter = ',')]
    pub(crate) request: Vec<PathBuf>,
    /// Requests in all, instead of logs.
    #[arg(long, requires = "reached", conflicts_with = "access")]
    pub(crate) total: Option<u64>,
    /// Requests that reached the publisher, instead of logs.
    #[arg(long, requires = "total")]
    pub(crate) reached: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct LabUsersArgs {
    /// How many.
    #[arg(long)]
    pub(crate) users: u64,
    /// How often each asks, such as `2s`.
    #[arg(long)]
    pub(crate) every: String,
    /// How long an answer takes.
    #[arg(long, default_value = "0s")]
    pub(crate) resp: String,
}

#[derive(Debug, Args)]
pub(crate) struct LabUploadGoalArgs {
    /// Assets per window; `500/day` reads as 500.
    #[arg(long)]
    pub(crate) assets: String,
    /// Megabytes of an original.
    #[arg(long)]
    pub(crate) size: String,
    #[command(flatten)]
    pub(crate) spread: WorkingDayArgs,
}
