//! Requests to other servers: the client, the hosts that it may reach, and bodies that are read from files.

pub mod client;
pub mod outgoing_policy;
pub mod reader_body;
