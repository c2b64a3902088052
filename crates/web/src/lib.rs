//! The HTTP foundation shared by author, publish, dispatcher, backup and lab.
//!
//! A module belongs here only if it handles a byte format or a socket; this crate is not a collection of helpers.
//!
//! * Sockets: [`listen`] (bind, limits, TLS, drain), [`listener_certificate`] (reloaded with its files, by a
//!   [`file_watch`]), [`fast_path`] and [`connection_socket`] (handlers in front of it),
//!   [`passed_socket`] (from a service manager), [`socket_handover`] (to the successor process), [`body_limit`] (bounded bodies), [`slow_client_timeout`] (slow
//!   readers), [`disconnect_detection`] (clients that are gone), [`connection_tunnel`] (other protocols after HTTP),
//!   [`rate_limit`] (requests per client),
//!   [`proxy_protocol`] and [`forwarded_client`] (the client behind a proxy), [`client`] (pooled HTTP/1.1).
//! * Formats: [`request_log`] and [`access_log`] lines, written by [`log_file`] without [`secret_parameter`]; the
//!   [`flush_message`] from publish to dispatcher; the [`sample_mark`] from lab to servers; [`cache_path`], the mapping
//!   from a URL to a file below the document root; [`sling_url`], the parts of a URL path; [`decimal_digits`] for
//!   numbers in them; [`html_charset`], the declared charset of a page; the [`request_histogram`] of `/metrics`;
//!   [`request_head`], the host and the framing of a request; [`http_date`], times in headers; [`certificate_validity`],
//!   the dates of a certificate.
//! * Configuration: [`config`], the sections about listeners, logs and outgoing requests.
//!
//! Not here: content, caching rules, templates, routes.

pub mod certificate_validity;
pub mod config;
mod error;
pub mod flush_message;
pub mod html_charset;
pub mod http1_response_head;
pub mod http_date;
pub mod ip_network;
mod log;
mod outgoing;
pub mod request_head;
mod server;
pub mod tls;
mod url;

pub use error::Error;
pub use log::{
    access_log, log_file, log_time, request_histogram, request_log, sample_mark, secret_parameter,
};
pub use outgoing::{client, outgoing_policy, reader_body};
pub use server::{
    body_limit, connection_socket, connection_tunnel, disconnect_detection, fast_path, file_watch,
    forwarded_client, listen, listener_certificate, passed_socket, proxy_protocol, rate_limit,
    shortcut, slow_client_timeout, socket_handover,
};
pub use url::{cache_path, decimal_digits, sling_url};

/// The result of binding, serving and opening logs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
