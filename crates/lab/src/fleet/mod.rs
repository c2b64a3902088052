//! One load over several processes or machines: a controller, and agents that each send a portion of it.
//!
//! In: a plan or a load of URLs, and where agents are: processes that the controller starts here, hosts that the
//! system's `ssh` reaches, or agents that dial in over TLS with a token. Out: one [`Outcome`], as of one process.
//!
//! Invariants
//! * The load is given once and divided: thread `i` and arrival `i` go to agent `i mod N`, and each agent has as many
//!   of the rows as its threads make visits.
//! * Histograms are added, so that the sum holds what one process would have counted.
//! * An agent that is lost makes the run incomplete; its portion is told, and never made up for by others.
//! * An agent reads no file but those that the controller sent, and writes none outside a folder of its own.
//!
//! On failure: before the load begins, nothing is sent to the target. Later, what was measured is kept, and the
//! verdict says what is missing.

mod agent;
mod carrier;
mod controller;
mod frame;
mod job;
mod kubernetes;
mod merge;
mod pipe;
mod token;
mod wire;

pub use agent::{Carrier, serve};
pub use controller::{Fleet, Outcome, Place};
pub use kubernetes::{Manifest, manifest};
pub use token::Token;
