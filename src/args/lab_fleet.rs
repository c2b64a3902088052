//! The words of loads that several processes or machines make together.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AgentDataDivision {
    /// Each row of the plan's data goes to one agent.
    Share,
    /// Every agent uses all rows, as JMeter's remote engines do.
    Copy,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ManifestEngine {
    /// Kubernetes.
    K8s,
}

#[derive(Debug, Args)]
pub(crate) struct LabAgentsArgs {
    /// Divides the load among agents: that many processes on this machine, or hosts that `ssh` reaches; with --listen,
    /// that many agents which dial in.
    #[arg(long, value_name = "N|HOST,HOST")]
    pub(crate) agents: Option<String>,
    /// Where agents dial in (`tympan lab agent HOST:PORT`).
    #[arg(long, value_name = "ADDR", requires = "agents")]
    pub(crate) listen: Option<SocketAddr>,
    /// The word that controller and agents share, in a file; made and printed unless given.
    #[arg(long, value_name = "FILE", requires = "agents")]
    pub(crate) token_file: Option<PathBuf>,
    /// What agents use of the rows of data files.
    #[arg(long, value_enum, default_value = "share")]
    pub(crate) data: AgentDataDivision,
    /// How long all agents together may take until they are ready: one minute unless given, and 10 minutes in a manifest,
    /// since a node may have to be added and an image to be pulled first.
    #[arg(long, value_name = "TIME", requires = "agents")]
    pub(crate) agent_wait: Option<String>,
    /// The program on hosts that `ssh` reaches.
    #[arg(long, default_value = "tympan", requires = "agents")]
    pub(crate) agent_program: String,
    /// What takes the place of `ssh`.
    #[arg(long, default_value = "ssh", requires = "agents")]
    pub(crate) ssh: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LabEmitArgs {
    /// Prints a manifest that runs the load with `--agents N`, instead of running it.
    #[arg(long, value_enum, requires = "agents")]
    pub(crate) emit: Option<ManifestEngine>,
    /// The image of the manifest, with the program as its entry point.
    #[arg(long, default_value = "tympan:latest", requires = "emit")]
    pub(crate) image: String,
}

/// Sends its portion of a load that `tympan lab run|get --agents` divides.
#[derive(Debug, Args)]
pub(crate) struct LabAgentArgs {
    /// The controller's address, `host:port`.
    #[arg(env = "TYMPAN_LAB_CONTROLLER", required_unless_present = "stdio")]
    pub(crate) controller: Option<String>,
    /// Speaks with the controller over standard input and output; `ssh` carries it.
    #[arg(long)]
    pub(crate) stdio: bool,
    /// The word that controller and agents share, in a file; or it is in TYMPAN_LAB_TOKEN.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The portion to ask for, counted from 0.
    #[arg(long, env = "TYMPAN_LAB_INDEX")]
    pub(crate) index: Option<usize>,
    /// How long to try while the controller does not answer.
    #[arg(long, default_value = "60s")]
    pub(crate) wait: String,
}
