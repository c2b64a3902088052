//! The load engine: one thread per core, each with its own epoll instance, users, timers and histograms.
//!
//! In: [`VirtualUser`]s, which determine the next request, and their start times: all at given times (closed model), or
//! one per arrival of a `ArrivalSchedule` (open model). Out: [`crate::measurement::RunResults`].
//!
//! Invariants
//! * Workers share nothing while they send, except what a plan itself shares.
//! * A response time counts from when the request was due, so that a stalled server is not measured less often.
//! * Delays of the generator are recorded separately from delays of the server.
//!
//! Not here: the meaning of a request (`plan`, [`crate::load::get_load`]) and the validity of the run
//! ([`crate::report::result_validity`]).

pub mod asset_request;
pub mod get_load;
pub mod probe_client;
pub mod request_authorization;
pub mod scripted_fetch;

mod run;
mod user_due_times;
mod virtual_user;
mod worker;

pub use run::{
    LoadObserver, LoadRun, RowConsumer, SampleRowWriter, WorkerLoad, processor_count, run_load,
};
pub use virtual_user::{LoadRunState, UserStep, UserTurn, VirtualUser};
