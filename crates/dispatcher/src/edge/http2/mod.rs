//! HTTP/2 without a runtime (RFC 9113 and RFC 7541), for clients of the fast path.
//!
//! Input: bytes of a client, and cached responses. Output: bytes for the client, and the requests not answered from
//! memory, which go to the service behind ([`service_connection`]) stream by stream.
//!
//! Invariants
//! * No call blocks, and nothing here uses a socket.
//! * The cost of a client that accepts no output is bounded by [`connection`]; frames that request nothing are counted,
//!   and too many end its connection with `ENHANCE_YOUR_CALM`.
//! * The meaning of a request is decided elsewhere: only a request that plainly may match a cached response is looked
//!   up, and hyper handles all others, including malformed ones.
//!
//! Not here: the rules (`cache::response_memory`, `edge::response_plan`), sockets and time (`fast_path`).

mod abuse_limit;
pub(crate) mod connection;
mod frame;
pub(crate) mod hpack;
mod huffman;
mod output_buffer;
pub(crate) mod service_connection;
mod stream;

pub(crate) use frame::Http2ErrorCode;
pub(crate) use output_buffer::OutputBuffer;
