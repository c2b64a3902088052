//! Arguments of `tympan lab plan`: commands that check, convert and create plans.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::IgnoredElementArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum LabPlanCommand {
    Check(LabCheckArgs),
    Convert(LabConvertArgs),
    Export(LabExportArgs),
    Record(LabRecordArgs),
    Profile(LabProfileArgs),
}

/// Lists the parts of plans that cannot be run, as `file:line:column: message`, without sending a request.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab plan check plans/*.jmx")]
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

/// Converts a JMeter plan (.jmx) to TOML; if the TOML format cannot express an element, names it and writes
/// nothing.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab plan convert plan.jmx -o plan.toml")]
pub(crate) struct LabConvertArgs {
    /// The plan, .jmx.
    pub(crate) plan: PathBuf,
    /// The TOML plan; by default next to the JMeter plan, with its name.
    #[arg(short = 'o', long = "out", value_name = "FILE.toml")]
    pub(crate) out: Option<PathBuf>,
    /// A property, `name=value`, for numbers of threads and times; may be repeated.
    #[arg(short = 'J', long = "property", value_name = "NAME=VALUE")]
    pub(crate) properties: Vec<String>,
    /// Replaces an existing file.
    #[arg(long)]
    pub(crate) force: bool,
}

/// Converts a TOML plan to the format of another engine.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab plan export --jmx plan.toml -o plan.jmx")]
pub(crate) struct LabExportArgs {
    /// The TOML plan to convert for JMeter.
    #[arg(long, value_name = "PLAN.toml")]
    pub(crate) jmx: PathBuf,
    /// The JMeter plan; by default next to the TOML plan, with its name.
    #[arg(short = 'o', long = "out", value_name = "FILE.jmx")]
    pub(crate) out: Option<PathBuf>,
    /// Replaces an existing file.
    #[arg(long)]
    pub(crate) force: bool,
}

/// Runs a proxy between a browser and a site, and writes a plan of the recorded requests.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab plan record --target http://127.0.0.1:4503 --listen 127.0.0.1:8888 -o plan.toml\n         \
                  tympan lab plan record --from-har visit.har -o plan.toml"
)]
pub(crate) struct LabRecordArgs {
    /// Reads the requests from a HAR file saved by a browser, instead of listening.
    #[arg(long, value_name = "FILE.har", conflicts_with_all = ["listen", "duration", "requests"])]
    pub(crate) from_har: Option<PathBuf>,
    /// The site to forward requests to if they do not name one, as proxy requests do; with a HAR file, the site whose
    /// requests are used instead of the first one's.
    #[arg(long, value_name = "URL")]
    pub(crate) target: Option<String>,
    /// The address to listen on.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8888")]
    pub(crate) listen: SocketAddr,
    /// The plan; it is rewritten after every request, so that it is complete whenever recording ends.
    #[arg(short = 'o', long = "out", value_name = "FILE.toml")]
    pub(crate) out: PathBuf,
    /// Stops after this time, such as `10m`.
    #[arg(long, alias = "for", value_name = "TIME")]
    pub(crate) duration: Option<String>,
    /// Stops after this number of requests.
    #[arg(long, value_name = "COUNT")]
    pub(crate) requests: Option<usize>,
    /// Records images, styles and scripts as separate requests.
    #[arg(long)]
    pub(crate) with_parts: bool,
}

/// Derives figures, a plan with the same mix, and goals from an access.log.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: tympan lab plan profile access.log --target http://127.0.0.1:8080 --plan plan.toml --goals goals.toml"
)]
pub(crate) struct LabProfileArgs {
    /// The log, in the format of Sling, or in Apache's combined or common format.
    pub(crate) log: PathBuf,
    /// The target of the plan.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) target: String,
    /// Writes a plan with the same mix.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) plan: Option<PathBuf>,
    /// Writes goals.
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) goals: Option<PathBuf>,
    /// Maximum number of URLs in the plan.
    #[arg(long, alias = "most", value_name = "COUNT", default_value_t = 100)]
    pub(crate) limit: usize,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
