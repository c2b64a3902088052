//! What instances ask of each other: messages of replication, agents, and the store of clones and standbys.

pub(crate) mod ledger_url_resolver;
pub(crate) mod publish_agent;
pub(crate) mod replication_receiver;
pub(crate) mod store_endpoint;
