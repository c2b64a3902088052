//! What faces the network: the fast path, HTTP/2, the admin listener, and the sessions of visitors.

pub(crate) mod admin;
pub(crate) mod fast_path;
pub(crate) mod http2;
pub(crate) mod own_response;
pub(crate) mod response_body;
pub(crate) mod response_plan;
pub(crate) mod visitor_session;
