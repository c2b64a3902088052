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

mod admin;
mod admission;
pub mod any_syntax;
mod auth_check;
mod authority;
mod cache;
mod cache_export;
mod cache_file_response;
mod cache_serving;
mod cacheability;
mod clock;
pub mod config;
mod config_check;
mod config_comparison;
mod content_coding;
mod dispatcher;
mod error;
mod explanation;
mod farm_selection;
mod fast_path;
mod filter;
mod flush;
mod flush_authorization;
mod flush_batch;
mod flush_handle;
mod flush_numbering;
mod flush_propagation;
mod freshness;
mod front_settings;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod glob;
mod header_forwarding;
mod heavy_hitter;
mod host_routing;
mod hot_page;
mod http2;
mod httpd_converter;
mod https_redirect;
mod invalidate_handler;
mod load_balancer;
pub mod log;
mod metrics;
mod negative_cache;
mod page_fetch;
mod page_include;
mod page_variant;
mod pattern;
mod quota_enforcement;
mod refetch;
mod render_health;
mod request_coalescing;
mod request_decision;
mod request_pipeline;
mod request_view;
mod response_body;
mod response_memory;
mod response_plan;
mod revalidation;
mod settings;
mod shadow;
mod sibling_copy;
mod status;
mod status_page;
mod sticky_cookie;
mod suffix_folder;
mod surrogate_key;
mod tar_archive;
mod traffic_share;
mod ttl;
mod upstream;
mod vanity_list;
mod variant_limiter;
mod visit_address;
mod visitor_session;
mod warm_up;

pub use authority::{AuthorityError, normalize_authority};
pub use cache_export::{CacheExport, ExportSink, ExportSummary, export_cache};
pub use cacheability::NotCacheableReason;
pub use clock::DispatcherClock;
pub use config_check::check_config;
pub use config_comparison::{
    ComparedConfig, ConfigComparison, ConfigKeyChange, ConfigKeyChangeKind, RequestDecisionChange,
    compare_configs,
};
pub use dispatcher::{Dispatcher, DispatcherRuntime};
pub use error::Error;
pub use explanation::{ExplainedRequest, RequestExplanation, explain_request};
pub use farm_selection::FarmMatch;
pub use flush_authorization::FlushKeys;
pub use front_settings::{CertificateSettings, FrontSettings};
pub use glob::Glob;
pub use httpd_converter::{ConvertedConfig, convert_httpd_config};
pub use https_redirect::HttpsRedirectSettings;
pub use pattern::{BrokenPatternPolicy, RulePattern};
pub use request_decision::{RequestAction, RequestDecision, decide_request};
pub use request_view::RequestView;
pub use response_body::ResponseBody;
pub use settings::{
    AccessSettings, AdminSettings, ConditionSettings, DispatcherSettings, HostSettings,
    RenderTlsSettings, RuleSettings, WarmUpSettings,
};
pub use status::DispatcherStatus;
pub use visitor_session::VisitorSession;
pub use warm_up::urls_of_line;
