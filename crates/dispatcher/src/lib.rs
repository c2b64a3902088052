//! The caching proxy: farms, filter, cache, balancing, flush.
//!
//! Reads a [`config::Config`] from the brace language of `dispatcher.any` ([`any`]), and serves as a [`Dispatcher`]:
//! responses are files below the document root, and flush messages mark or remove them.
//!
//! Invariants
//! * No answer reaches a visitor that the filter would have refused, cached or not.
//! * A page is fetched once per change, however many visitors wait for it.
//! * What was flushed while it was fetched is not stored.
//!
//! Not here: content. The dispatcher can front AEM or anything else.

mod admin;
mod admission;
mod answer;
pub mod any;
mod auth;
mod authority;
mod balance;
mod cache;
mod cacheable;
mod check;
mod clock;
mod coding;
mod compare;
pub mod config;
mod convert;
mod decision;
mod dispatcher;
mod error;
mod explain;
mod export;
mod farm;
mod fast;
mod fetch;
mod filter;
mod flight;
mod flush;
mod flush_keys;
mod forward;
mod freshness;
mod front;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod gossip;
mod handle;
mod handler;
mod health;
mod hit;
mod hot;
mod http2;
mod https_redirect;
mod include;
pub mod log;
mod memory;
mod metrics;
mod negative;
mod numbering;
mod page;
mod pattern;
mod plan;
mod refetch;
mod request;
mod revalidate;
mod room;
mod route;
mod serve;
mod sessions;
mod settings;
mod shadow;
mod share;
mod sibling;
mod status;
mod status_page;
mod sticky;
mod storm;
mod suffix_folder;
mod tags;
mod tar;
mod top;
mod ttl;
mod upstream;
mod vanity;
mod variant;
mod variant_limit;
mod visits;
mod warm_up;

pub use authority::{Fault as HostFault, settle as settle_host};
pub use cacheable::Reason;
pub use check::check;
pub use clock::Clock;
pub use compare::{Change, Comparison, KeyChange, RequestChange, Side, compare};
pub use convert::{Converted, convert};
pub use decision::{Action, Decision, decide};
pub use dispatcher::{Dispatcher, Runtime};
pub use error::Error;
pub use explain::{Explanation, Question, explain};
pub use export::{Export, Exported, Sink, export};
pub use farm::Found;
pub use flush_keys::FlushKeys;
pub use front::{CertificateSettings, FrontSettings};
pub use glob::Glob;
pub use https_redirect::HttpsRedirectSettings;
pub use page::Body;
pub use pattern::{IfBroken, Pattern};
pub use request::RequestView;
pub use sessions::Session;
pub use settings::{
    AccessSettings, AdminSettings, ConditionSettings, HostSettings, RenderSettings, RuleSettings,
    Settings, WarmUpSettings,
};
pub use status::Status;
pub use warm_up::urls_of_line;
