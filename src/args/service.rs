//! Arguments that set up the program on a machine.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum ServiceCommand {
    /// Prints a unit file with which systemd runs a role: sandboxed, restarted after a failure, stopped gracefully.
    #[command(after_help = "Examples:\n  tympan service print author > tympan-author@.service\n  \
            tympan service print dispatcher --socket > tympan-dispatcher@.socket\n\nPut the files into \
            /etc/systemd/system. The Debian package has them already.")]
    Print(ServiceArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// The role.
    #[arg(value_enum)]
    pub(crate) role: ServiceRole,
    /// Prints the socket unit instead, whose sockets stay open while the service restarts.
    #[arg(long)]
    pub(crate) socket: bool,
    /// The home; default a folder below /var/lib/tympan for each instance of the unit. `%i` stands for its name.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The user that the service runs as.
    #[arg(long, value_name = "NAME", default_value = "tympan")]
    pub(crate) user: String,
    /// The program; default the one that prints.
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// The listen address, instead of `[listen] address` in the home's tympan.toml; of a socket unit, may be repeated.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Vec<SocketAddr>,
}

/// The role that a service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceRole {
    /// The instance where people edit.
    Author,
    /// The instance that renders the pages.
    Publish,
    /// The cache for visitors.
    Dispatcher,
}

impl ServiceRole {
    /// Returns the name of the role in commands and unit names.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Author => "author",
            Self::Publish => "publish",
            Self::Dispatcher => "dispatcher",
        }
    }

    /// Returns the address of the role unless another is configured.
    pub(crate) fn default_address(self) -> SocketAddr {
        let port = match self {
            Self::Author => 4502,
            Self::Publish => 4503,
            Self::Dispatcher => 8080,
        };
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
    }

    /// Returns the addresses of a socket unit unless others are given.
    pub(crate) fn default_socket_addresses(self) -> Vec<SocketAddr> {
        let open = |port| SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
        match self {
            Self::Author | Self::Publish => vec![self.default_address()],
            Self::Dispatcher => vec![open(80), open(443)],
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  tympan doctor\n  tympan doctor --home /srv/author --role author\n\nIt changes nothing. \
        The command fails (1) if an instance would not start or would fail; warnings do not fail it."
)]
pub(crate) struct DoctorArgs {
    /// The home to examine; without one only the machine is examined.
    #[arg(long, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// The role of the home, whose usual address is examined unless another is configured.
    #[arg(long, value_enum, value_name = "ROLE")]
    pub(crate) role: Option<ServiceRole>,
    /// As of the roles: the listen address.
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// As of the roles: the database.
    #[arg(long, value_name = "URL", env = "TYMPAN_DATABASE", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
