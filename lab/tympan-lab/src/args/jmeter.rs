//! Arguments of `tympan lab jmeter`, named as JMeter names them.

use std::path::PathBuf;

use clap::Args;

use super::{IgnoredElementArgs, WatchedLogArgs};

/// Runs a JMeter plan with JMeter's options.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab jmeter -n -t plan.jmx -Jthreads=100 -l results.jtl")]
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
