//! The HTTP foundation shared by author, publish, dispatcher, backup and lab.
//!
//! A module belongs here only if it handles a byte format or a socket; this crate is not a collection of helpers.
//!
//! * Sockets: [`listen`] (bind, limits, TLS, drain), [`fast_path`] and [`connection_socket`] (handlers in front of it),
//!   [`socket_handover`] (to the successor process), [`body_limit`] (bounded bodies), [`slow_client_timeout`] (slow
//!   readers), [`disconnect_detection`] (clients that are gone), [`rate_limit`] (requests per client),
//!   [`proxy_protocol`] and [`forwarded_client`] (the client behind a proxy), [`client`] (pooled HTTP/1.1).
//! * Formats: [`request_log`] and [`access_log`] lines, written by [`log_file`] without [`secret_parameter`]; the
//!   [`flush_message`] from publish to dispatcher; the [`sample_mark`] from lab to servers; [`cache_path`], the mapping
//!   from a URL to a file below the document root; [`sling_url`], the parts of a URL path; [`decimal_digits`] for
//!   numbers in them; [`html_charset`], the declared charset of a page; the [`request_histogram`] of `/metrics`;
//!   [`request_head`], the host and the framing of a request.
//!
//! Not here: content, caching rules, templates, routes.

pub mod access_log;
pub mod body_limit;
mod body_timeout;
pub mod cache_path;
pub mod client;
mod connection_limit;
pub mod connection_socket;
pub mod decimal_digits;
pub mod disconnect_detection;
mod error;
pub mod fast_path;
pub mod flush_message;
pub mod forwarded_client;
pub mod html_charset;
mod http2_monitor;
pub mod ip_network;
mod keep_alive;
mod linger;
pub mod listen;
mod log_escape;
pub mod log_file;
pub mod log_time;
pub mod outgoing_policy;
mod page_cache;
pub mod proxy_protocol;
pub mod rate_limit;
pub mod reader_body;
pub mod request_head;
pub mod request_histogram;
pub mod request_log;
pub mod sample_mark;
pub mod secret_parameter;
pub mod shortcut;
pub mod sling_url;
pub mod slow_client_timeout;
pub mod socket_handover;
pub mod tls;
mod write_timeout;

pub use error::Error;

/// The result of binding, serving and opening logs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
