//! The performance lab: plans, load engine, recording, goals, analysis, reports.
//!
//! It accesses a system only through HTTP and log files and imports none of the crates that it may be used to evaluate,
//! so that the same plan measures Tympan, AEM or OpenCms.
//!
//! * Sending: [`get_load`] and [`ab`] (URLs), [`plan`] (JMeter plans and our own), [`phase`] (tests of several phases),
//!   [`page::visit`] (pages with all their parts), [`component_profile`], [`slo`], all on one load engine.
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
mod comparison;
mod page;
mod secret;
mod server_log;
pub use page::cacheability;
pub use page::component_profile;
pub use report::calculator;
pub mod content_generator;
mod error;
pub use comparison::experiment;
pub mod fleet;
pub use comparison::journal;
pub use load::get_load;
pub use page::isolated_component;
pub use recording::har;
pub use report::goal;
pub use report::live_display;
mod load;
pub use server_log::log_watch;
pub mod measurement;
pub use comparison::metric_comparison;
mod net;
pub use comparison::paired_run;
pub use page::visit;
pub mod phase;
pub mod plan;
pub use comparison::program;
pub use recording::plan_draft;
pub use secret::plan_redaction;
pub mod project;
pub mod property_file;
pub mod recording;
pub use recording::recording_proxy;
pub use recording::replay;
pub use secret::redaction;
pub mod report;
pub use comparison::sweep;
pub use page::slo;
pub use report::result_validity;
pub use server_log::request_log;
pub mod tough_day;
pub use comparison::tuning;
pub use comparison::verification;
pub use recording::traffic_profile;

pub use error::Error;
pub use report::finding::FileFinding;

/// The result of runs and analyses.
pub type Result<T, E = Error> = std::result::Result<T, E>;
