//! Arguments of `tympan lab ab`, named as ApacheBench names them.

use std::path::PathBuf;

use clap::Args;

use super::WatchedLogArgs;

/// Runs a load like ApacheBench, with its options and its output.
#[derive(Debug, Args)]
#[command(after_help = "Example: tympan lab ab -c 60 -n 1000 http://127.0.0.1:8080/index.html")]
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
    /// Number of sending threads; one per processor by default.
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    pub(crate) workers: usize,
    #[command(flatten)]
    pub(crate) logs: WatchedLogArgs,
    /// The URL to request.
    #[arg(required_unless_present = "is_version")]
    pub(crate) url: Option<String>,
}
