//! Runs plans: the threads of a compiled plan walk its controllers and send its samples on the load engine.
//!
//! In: a [`TestPlan`](tympan_lab_plan::TestPlan) and [`RunOptions`]. Out: [`PlanRunOutcome`], and JMeter's summary lines
//! and rows.
//!
//! Invariant: one thread of a plan is one user of the load engine; it makes the same requests in the same order as in
//! JMeter.
//!
//! Not here: parsing and evaluating plans (`tympan-lab-plan`), sending ([`crate::load`]), counting
//! ([`crate::measurement`]).

pub mod client_cache;
mod controller_walk;
mod cookie_jar;
mod digest_auth;
mod http_client;
mod http_sample;
mod interleave;
mod iteration_event;
mod plan_thread;
mod run;
mod sample;
mod sample_evaluation;
mod sample_timer;
mod sample_totals;
mod sub_sample;
mod thread_context;
mod transaction;

pub use run::{
    LoadAmount, LoadOffer, PlanRunOutcome, RunMembership, RunOptions, SummaryLinePrinter, run_plan,
    run_plan_as_member, run_plan_with_display, time_of_day_text,
};
