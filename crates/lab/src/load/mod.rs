//! The load engine: one thread per core, each with its own epoll, users, timers and histograms.
//!
//! In: [`User`]s, which say what to send next, and when they start: all at given times (closed model), or one per
//! arrival of a [`Schedule`] (open model). Out: [`crate::record::Results`].
//!
//! Invariants
//! * Nothing is shared between workers while they send, except what a plan itself shares.
//! * A response time counts from when the request was due, so that a stalled server is not measured less often.
//! * What the generator did too late is recorded beside what the server did too late.
//!
//! Not here: what a request means (`plan`, [`crate::get`]) and whether the run may be believed ([`crate::honesty`]).

mod portion;
mod run;
mod schedule;
mod timer;
mod user;
mod worker;

pub(crate) use portion::Portion;
pub(crate) use run::{Crew, Load, Observer, RowTaker, Rows, processors, run};
pub(crate) use schedule::{Process, Schedule, Stretch, random};
pub(crate) use user::{Crowd, Step, Turn, User};
