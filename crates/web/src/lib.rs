//! The HTTP ground under all fronts: what author, publish, dispatcher, backup and lab share.
//!
//! Entry to this room requires a byte format or a socket; it is no drawer for helpers.
//!
//! * Sockets: [`listen`] (bind, limits, TLS, drain), [`lane`] and [`wire`] (who answers before it), [`handover`] (to the process that takes this one's place),
//!   [`limit`] (bounded bodies), [`patience`] (with who takes them slowly), [`rate`] (what one client may ask), [`proxy_protocol`] and [`forwarded`] (who is behind a proxy),
//!   [`client`] (pooled HTTP/1.1).
//! * Formats: [`request_log`] and [`access_log`] lines, written by [`log_file`] without [`secret_parameters`]; the [`flush_message`] from
//!   publish to dispatcher; the [`sample_mark`] from lab to servers; [`cache_path`], the rule from a URL to a file below the document root;
//!   [`sling_url`], the parts of a URL path; [`digits`] of numbers in them; [`html_charset`], what a page's head declares; the
//!   [`request_histogram`] of `/metrics`.
//!
//! Not here: content, caching rules, templates, routes.

pub mod access_log;
pub mod cache_path;
pub mod client;
pub mod digits;
mod error;
mod escape;
pub mod flush_message;
pub mod forwarded;
pub mod handover;
pub mod html_charset;
pub mod lane;
pub mod limit;
mod linger;
pub mod listen;
pub mod log_file;
pub mod log_time;
mod meter;
pub mod network;
pub mod outgoing;
mod pace;
pub mod patience;
pub mod proxy_protocol;
mod quiet;
pub mod rate;
pub mod read_body;
pub mod request_histogram;
pub mod request_log;
mod resident;
pub mod sample_mark;
mod seats;
pub mod secret_parameters;
pub mod shortcut;
pub mod sling_url;
mod stall;
pub mod tls;
pub mod wire;

pub use error::Error;

/// The result of binding, serving and opening logs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
