//! One load over several processes or machines: a controller, and agents that each send a portion of it.
//!
//! In: a plan or a load of URLs, and where agents are: processes that the controller starts here, hosts that the
//! system's `ssh` reaches, or agents that dial in over TLS with a token. Out: one [`FleetOutcome`], as of one process.
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
mod controller;
mod frame;
mod interval_codec;
mod job;
mod kubernetes;
mod results_merger;
mod tls_stream;
mod token;
mod transport;

pub use agent::{AgentTransport, serve_agent};
pub use controller::{AgentFleet, AgentPlacement, FleetOutcome};
pub use kubernetes::{KubernetesManifest, render_manifest};
pub use token::FleetToken;
