//! The load engine: one thread per core, each with its own epoll, users, timers and histograms.
//!
//! In: [`VirtualUser`]s, which say what to send next, and when they start: all at given times (closed model), or one per
//! arrival of a [`ArrivalSchedule`] (open model). Out: [`crate::measurement::RunResults`].
//!
//! Invariants
//! * Nothing is shared between workers while they send, except what a plan itself shares.
//! * A response time counts from when the request was due, so that a stalled server is not measured less often.
//! * What the generator did too late is recorded beside what the server did too late.
//!
//! Not here: what a request means (`plan`, [`crate::get_load`]) and whether the run may be believed ([`crate::result_validity`]).

mod portion;
mod run;
mod schedule;
mod timer;
mod virtual_user;
mod worker;

pub(crate) use portion::LoadPortion;
pub(crate) use run::{
    LoadObserver, LoadRun, RowConsumer, SampleRowWriter, WorkerLoad, processor_count, run_load,
};
pub(crate) use schedule::{ArrivalProcess, ArrivalSchedule, RateInterval, random_number};
pub(crate) use virtual_user::{LoadRunState, UserStep, UserTurn, VirtualUser};
