//! HTTP/1.1 and HTTP/2 for a load generator: non-blocking, with exact times, tolerant of responses.
//!
//! In: [`TargetRequest`]s, whose bytes are ready to be written. Out: an [`ExchangeOutcome`] each, with four time
//! stamps.
//!
//! Invariants
//! * One exchange at a time on a connection; a connection is reused only after a response that ended by its own framing
//!   and left no bytes over.
//! * A request that a server may have received is sent again only if it is repeatable, once, and that is counted.
//! * The size of a body is counted; its content is stored only as far as the request specifies.
//!
//! Not here: when to send (`load`), what to send and what the response means (`plan`).

mod connection;
mod exchange;
mod http2;
mod response;
mod response_head;
mod target;
mod tls;

pub use tls::{
    NegotiatedTls, TlsClientOptions, client_tls_config as tls_client, openssl_cipher_name,
    supported_cipher_suites,
};

pub(crate) use connection::{ExchangeProgress, TargetConnection};
pub use exchange::{
    ExchangeFailure, ExchangeOutcome, ResponseRetention, SendAttempt, TargetRequest, TargetResponse,
};
pub use response::cache_hit_from_header;
pub use response_head::TargetResponseHead;
pub use target::{LoadTarget, TargetRegistry};

use tympan_lab_plan::redaction::is_secret_name;

/// Maximum number of redirects followed for one request, as in JMeter.
pub const MAX_REDIRECTS: usize = 20;

/// Returns true if a header is valid only for the server that it was given for: credentials, and the server's name.
pub fn is_server_specific(header: &str) -> bool {
    header.eq_ignore_ascii_case("Host") || is_secret_name(header)
}
