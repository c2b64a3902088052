//! GraphQL over content fragments, with AEM's names of types, queries and arguments.
//!
//! In: the models of a site, and a request. Out: the answer, and which of its parts a cache may hold.
//!
//! Invariants
//! * A query is measured before it runs: nested too deeply, or with more fields than the limit, it is refused.
//! * While it runs, references and bytes are counted, as no estimate knows the content.
//! * Resolvers never wait, so a query runs on the thread of its request.
//!
//! Not here: HTTP, rights, and storage of queries ([`crate::persisted_query`]).

mod answer_context;
mod filter_input;
mod fragment_type;
mod query_limits;
mod reference_type;
mod site_schema;

pub(crate) use query_limits::parse_bounded;
pub use query_limits::{GraphqlLimits, MAX_QUERY_BYTES};
pub use site_schema::{GraphqlAnswer, GraphqlRequest, SiteSchema, SiteSchemaCache};
