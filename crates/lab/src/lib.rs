//! The performance lab: plans, load engine, recording, goals, analysis, reports.
//!
//! It sees a system only as HTTP and log files and imports no room that it may be asked to judge, so that the same
//! plan measures Tympan, AEM or OpenCms.
//!
//! * Sending: [`get`] and [`ab`] (URLs), [`plan`] (plans of JMeter and our own), [`phase`] (tests of several phases),
//!   [`page`] (pages with all their parts), [`components`], [`slo`],
//!   all on one load engine.
//! * Sending from several processes or machines as from one: [`fleet`].
//! * Numbers: [`record`] (histograms, result files, summary lines), [`honesty`] (may they be believed), [`goal`].
//! * Reading what others measured: [`ab::parse`], [`record::jtl`], [`requests`] (logs), [`calculate`], [`compare`].
//! * Telling: [`live`] (while it runs), [`report`].
//! * Keeping: [`kept`] (copies of plans without secrets).
//! * Proof: [`verify`], [`watch_log`], [`sweep`], [`tune`], [`paired`], [`journal`], which keeps no secrets ([`redact`]).
//! * Projects: [`content`], [`experiment`], [`project`], [`tough`] (Tough Day).
//! * Sites: [`cacheability`], [`profile`], [`replay`], [`proxy`], [`har`], [`recording`].
//!
//! Not here: arguments and exit codes (the binary).

pub mod ab;
pub mod alone;
mod asset;
mod browse;
pub mod cacheability;
pub mod calculate;
mod client;
pub mod compare;
pub mod components;
pub mod content;
pub mod draft;
mod error;
pub mod experiment;
mod finding;
pub mod fleet;
pub mod get;
pub mod goal;
pub mod har;
pub mod honesty;
mod html_parts;
pub mod journal;
pub mod kept;
pub mod live;
mod load;
mod masked;
mod net;
pub mod page;
pub mod paired;
pub mod phase;
pub mod plan;
pub mod profile;
pub mod program;
pub mod project;
pub mod properties;
pub mod proxy;
pub mod record;
pub mod recording;
pub mod redact;
pub mod replay;
pub mod report;
pub mod requests;
mod server_counters;
pub mod slo;
pub mod sweep;
pub mod tough;
pub mod tune;
pub mod verify;
pub mod watch_log;

pub use error::Error;
pub use finding::Finding;

/// The result of runs and analyses.
pub type Result<T, E = Error> = std::result::Result<T, E>;
