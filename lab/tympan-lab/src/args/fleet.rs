//! Arguments of loads that several processes or machines generate together.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::heading;

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
    /// Divides the load among agents: a number of processes on this machine, or hosts reached with `ssh`; with
    /// --listen, the number of agents that connect.
    #[arg(long, value_name = "N|HOST,HOST", help_heading = heading::AGENTS)]
    pub(crate) agents: Option<String>,
    /// The address that agents connect to (`tympan lab load agent HOST:PORT`).
    #[arg(long, value_name = "ADDR", requires = "agents", help_heading = heading::AGENTS)]
    pub(crate) listen: Option<SocketAddr>,
    /// A file with the token of controller and agents; by default generated and printed.
    #[arg(long, value_name = "FILE", requires = "agents", help_heading = heading::AGENTS)]
    pub(crate) token_file: Option<PathBuf>,
    /// How agents divide the rows of data files.
    #[arg(long, value_enum, default_value = "share", help_heading = heading::AGENTS)]
    pub(crate) data: AgentDataDivision,
    /// The maximum time until all agents are ready: one minute by default, and 10 minutes in a manifest, since a node
    /// may have to be added and an image to be pulled first.
    #[arg(long, value_name = "TIME", requires = "agents", help_heading = heading::AGENTS)]
    pub(crate) agent_wait: Option<String>,
    /// The path of the program on hosts reached with `ssh`.
    #[arg(long, default_value = "tympan", requires = "agents", help_heading = heading::AGENTS)]
    pub(crate) agent_program: String,
    /// The program to use instead of `ssh`.
    #[arg(long, default_value = "ssh", requires = "agents", help_heading = heading::AGENTS)]
    pub(crate) ssh: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct LabEmitArgs {
    /// Prints a manifest that runs the load with `--agents N`, instead of running it.
    #[arg(long, value_enum, requires = "agents", help_heading = heading::AGENTS)]
    pub(crate) emit: Option<ManifestEngine>,
    /// The image of the manifest, with the program as its entry point.
    #[arg(long, default_value = "tympan:latest", requires = "emit", help_heading = heading::AGENTS)]
    pub(crate) image: String,
}

/// Sends a share of the load that `run` or `get` divides with `--agents`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: TYMPAN_LAB_TOKEN=... tympan lab load agent controller.example.com:7410"
)]
pub(crate) struct LabAgentArgs {
    /// The controller's address, `host:port`.
    #[arg(env = "TYMPAN_LAB_CONTROLLER", required_unless_present = "stdio")]
    pub(crate) controller: Option<String>,
    /// Communicates with the controller over standard input and output, as through `ssh`.
    #[arg(long)]
    pub(crate) stdio: bool,
    /// A file with the token of controller and agents; otherwise TYMPAN_LAB_TOKEN has it.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The share to request, counted from 0.
    #[arg(long, env = "TYMPAN_LAB_INDEX")]
    pub(crate) index: Option<usize>,
    /// The time to retry while the controller does not respond.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) wait: String,
}
