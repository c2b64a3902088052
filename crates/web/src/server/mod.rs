//! The server side of connections: accepting, limits, timeouts, and the paths of a response to the socket.

pub mod body_limit;
pub(crate) mod body_timeout;
pub(crate) mod connection_limit;
pub mod connection_socket;
pub mod connection_tunnel;
pub mod disconnect_detection;
pub mod fast_path;
pub mod file_watch;
pub mod forwarded_client;
pub(crate) mod http2_monitor;
pub(crate) mod keep_alive;
pub(crate) mod linger;
pub mod listen;
pub mod listener_certificate;
pub(crate) mod page_cache;
pub mod passed_socket;
pub(crate) mod permit_supply;
pub mod proxy_protocol;
pub mod rate_limit;
pub mod shortcut;
pub mod slow_client_timeout;
pub mod socket_handover;
pub(crate) mod write_timeout;
