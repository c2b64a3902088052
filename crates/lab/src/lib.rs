//! The performance lab: plans, load engine, recording, goals, analysis, reports.
//!
//! It accesses a system only through HTTP and log files and imports none of the crates that it may be used to evaluate,
//! so that the same plan measures Tympan, AEM or OpenCms.
//!
//! * Sending: [`get_load`] and [`ab`] (URLs), [`plan`] (JMeter plans and our own), [`phase`] (tests of several phases),
//!   [`page_visit`] (pages with all their parts), [`component_profile`], [`slo`], all on one load engine.
//! * Sending from several processes or machines as from one: [`fleet`].
//! * Numbers: [`measurement`] (histograms, result files, summary lines), [`result_validity`] (validity of results),
//!   [`goal`].
//! * Parsing measurements of other tools: [`ab::parse_ab_report`], [`measurement::jtl`], [`request_log`] (logs),
//!   [`calculator`], [`metric_comparison`].
//! * Output: [`live_display`] (during a run), [`report`].
//! * Archiving: [`plan_redaction`] (copies of plans without secrets).
//! * Verification: [`verification`], [`log_watch`], [`sweep`], [`tuning`], [`paired_run`], [`journal`], which stores no
//!   secrets ([`redaction`]).
//! * Projects: [`content_generator`], [`experiment`], [`project`], [`tough_day`] (Tough Day).
//! * Sites: [`cacheability`], [`traffic_profile`], [`replay`], [`recording_proxy`], [`har`], [`recording`].
//!
//! Not here: arguments and exit codes (the binary).

pub mod ab;
mod asset_request;
pub mod cacheability;
pub mod calculator;
pub mod component_profile;
pub mod content_generator;
mod error;
pub mod experiment;
mod finding;
pub mod fleet;
pub mod get_load;
pub mod goal;
pub mod har;
pub mod isolated_component;
pub mod journal;
pub mod live_display;
mod load;
pub mod log_watch;
pub mod measurement;
pub mod metric_comparison;
mod net;
mod page_reference;
pub mod page_visit;
pub mod paired_run;
pub mod phase;
pub mod plan;
pub mod plan_draft;
pub mod plan_redaction;
mod probe_client;
pub mod program;
pub mod project;
pub mod property_file;
pub mod recording;
pub mod recording_proxy;
pub mod redaction;
pub mod replay;
pub mod report;
pub mod request_log;
pub mod result_validity;
mod scripted_fetch;
mod secret_mask;
mod server_counters;
pub mod slo;
pub mod sweep;
pub mod tough_day;
pub mod traffic_profile;
pub mod tuning;
pub mod verification;

pub use error::Error;
pub use finding::FileFinding;

/// The result of runs and analyses.
pub type Result<T, E = Error> = std::result::Result<T, E>;
