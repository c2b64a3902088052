//! HTTP/2 without a runtime (RFC 9113 and RFC 7541): what the lane for kept answers speaks with clients that can.
//!
//! In: bytes of a client, and kept answers. Out: bytes for the client, and what is not answered from the memory, which goes
//! to the service behind ([`service_connection`]) stream by stream.
//!
//! Invariants
//! * No call waits, and nothing here touches a socket.
//! * A client that takes nothing costs what [`connection`] says; what it sends without asking for anything is counted, and
//!   ends its connection with `ENHANCE_YOUR_CALM`.
//! * What a request means is decided elsewhere: only a request that is plainly one of a kept answer is looked up, and hyper
//!   judges all others, malformed ones too.
//!
//! Not here: the rules (`memory`, `plan`), sockets and time (`fast_path`).

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
