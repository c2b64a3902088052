//! The lab's tools: everything that consists of several runs, or evaluates what others measured.
//!
//! In: plans, URLs, log files, result files of other programs. Out: sheets and reports of `tympan-lab-engine`, and plans.
//!
//! * Sending: [`ab`] (ApacheBench's load), [`phase`] (tests of several phases), [`visit`] (pages with all their parts),
//!   [`component_profile`], [`isolated_component`], [`slo`], [`tough_day`] (Tough Day).
//! * Sending from several processes or machines as from one: [`fleet`].
//! * Evaluation: [`request_log`] and [`log_watch`] (server logs), [`calculator`], [`metric_comparison`], [`cacheability`].
//! * Verification and tuning: [`verification`], [`sweep`], [`tuning`], [`paired_run`], [`journal`], which stores no secrets.
//! * Projects: [`content_generator`], [`experiment`], [`project`].
//! * Recording: [`recording_proxy`], [`har`], [`recording`], [`replay`], [`traffic_profile`].
//!
//! Not here: sending and measuring (`tympan-lab-engine`), arguments and exit codes (the program `tympan-lab`).

pub mod ab;
pub mod calculator;
mod comparison;
pub mod content_generator;
mod error;
pub mod fleet;
mod page;
pub mod phase;
pub mod project;
pub mod recording;
mod server_log;
pub mod tough_day;

pub use comparison::experiment;
pub use comparison::journal;
pub use comparison::metric_comparison;
pub use comparison::paired_run;
pub use comparison::program;
pub use comparison::sweep;
pub use comparison::tuning;
pub use comparison::verification;
pub use error::Error;
pub use page::cacheability;
pub use page::component_profile;
pub use page::isolated_component;
pub use page::slo;
pub use page::visit;
pub use recording::har;
pub use recording::recording_proxy;
pub use recording::replay;
pub use recording::traffic_profile;
pub use server_log::log_watch;
pub use server_log::request_log;

/// The result of runs and analyses.
pub type Result<T, E = Error> = std::result::Result<T, E>;
