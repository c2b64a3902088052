//! The caching proxy: farms, filter, cache, balancing, flush.
//!
//! Reads a [`config::DispatcherConfig`] from the brace language of `dispatcher.any` ([`any_syntax`]), and serves as a
//! [`Dispatcher`]: responses are files below the document root, and flush messages mark or remove them.
//!
//! Invariants
//! * No response that the filter would have refused reaches a visitor, cached or not.
//! * A page is fetched once per change, however many visitors wait for it.
//! * A page flushed during its fetch is not stored.
//!
//! Not here: content. The dispatcher can front AEM or anything else.

pub use config::any_syntax;
mod cache;
mod cached_page_service;
mod clock;
pub mod config;
mod dispatcher;
mod dispatcher_parts;
mod dispatcher_runtime;
mod dispatcher_state;
mod edge;
mod error;
mod farm_state;
mod flush;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod listener_sockets;
mod observe;
mod request;
mod request_pipeline;
mod upstream;

pub use cache::export::{CacheExport, ExportSink, ExportSummary, export_cache};
pub use cache::export_target::{export_cache_to_file, export_cache_to_folder, find_cache_farm};
pub use cache::not_cacheable_reason::NotCacheableReason;
pub use clock::DispatcherClock;
pub use config::check::check_config;
pub use config::comparison::{
    ComparedConfig, ConfigComparison, ConfigKeyChange, ConfigKeyChangeKind, RequestDecisionChange,
    compare_configs,
};
pub use config::explanation::{ExplainedRequest, RequestExplanation, explain_request};
pub use config::front_settings::{CertificateSettings, FrontSettings};
pub use config::glob::DispatcherGlob;
pub use config::httpd_converter::{ConvertedConfig, convert_httpd_config};
pub use config::pattern::{BrokenPatternPolicy, RulePattern};
pub use config::settings::{
    AccessSettings, AdminSettings, ConditionSettings, DispatcherSettings, HostSettings,
    RenderTlsSettings, RuleSettings, WarmUpSettings,
};
pub use dispatcher::Dispatcher;
pub use dispatcher_runtime::DispatcherRuntime;
pub use edge::response_body::ResponseBody;
pub use error::Error;
pub use flush::authorization::FlushKeys;
pub use flush::warm_up::urls_of_line;
pub use listener_sockets::{
    ListenerAddresses, ListenerSocketError, ListenerSockets, OpenSocketOffer, SocketAcquisition,
};
pub use observe::log;
pub use observe::status::DispatcherStatus;
pub use request::decision::{RequestAction, RequestDecision, decide_request, is_flush};
pub use request::farm_selection::FarmMatch;
pub use request::https_redirect::HttpsRedirectSettings;
pub use request::view::{RequestView, VisitorSession};
