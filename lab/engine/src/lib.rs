//! The load engine: sends what plans and lists of URLs say, measures the responses, stores and reports the numbers.
//!
//! In: a compiled plan of `tympan-lab-plan` ([`plan_run`]), URLs ([`get_load`]), or [`load::VirtualUser`]s of the caller's
//! own. Out: [`measurement::RunResults`], result files, and reports ([`report`]) with evaluated goals ([`goal`]).
//!
//! * Connections: [`net`]. Users, schedules and threads: [`load`].
//! * Numbers: [`measurement`] (histograms, result files, summary lines), [`result_validity`] (validity of results).
//! * Output: [`live_display`] (during a run), [`report`].
//!
//! Invariants
//! * A target is accessed only through HTTP, so that the same plan measures Tympan, AEM or OpenCms.
//! * A response time counts from when the request was due.
//!
//! Not here: the format of plans (`tympan-lab-plan`), and tests that consist of several runs (`tympan-lab-tools`).

mod error;
pub mod load;
pub mod measurement;
pub mod net;
pub mod plan_run;
pub mod report;

pub use error::Error;
pub use load::get_load;
pub use report::goal;
pub use report::live_display;
pub use report::result_validity;

/// The result of runs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
