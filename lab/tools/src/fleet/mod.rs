//! Distributes one load over several processes or machines: a controller, and agents that each send a portion of it.
//!
//! In: a plan or a load of URLs, and the locations of agents: processes that the controller starts locally, hosts that
//! the system's `ssh` reaches, or agents that dial in over TLS with a token. Out: one [`FleetOutcome`], as from one
//! process.
//!
//! Invariants
//! * The load is specified once and divided: thread `i` and arrival `i` go to agent `i mod N`, and each agent has as
//!   many of the rows as its threads make visits.
//! * Histograms are added, so that the sum holds what one process would have counted.
//! * A lost agent makes the run incomplete. Its portion is reported, and other agents never compensate for it.
//! * An agent reads only files that the controller sent, and writes none outside a folder of its own.
//!
//! On failure: before the load begins, nothing is sent to the target. Later, the measurements are kept, and the verdict
//! states what is missing.

mod agent;
mod controller;
mod frame;
mod job;
mod kubernetes;
mod results_merger;
mod tls_stream;
mod token;
mod transport;

pub use agent::{AgentTransport, serve_agent};
pub use controller::{AgentFleet, FleetOutcome};
pub use kubernetes::{KubernetesManifest, render_manifest};
pub use token::FleetToken;
pub use transport::AgentPlacement;
