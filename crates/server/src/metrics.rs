//! What an instance counts, in one table: name, kind, unit, and what a rise means.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use http::StatusCode;

use crate::failure::RequestFailure;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// The counters of an instance.
        #[derive(Debug, Default)]
        pub(crate) struct Metrics {
            $($(#[doc = $doc])+ pub(crate) $name: AtomicU64,)+
        }

        impl Metrics {
            /// Writes all counters as Prometheus text.
            pub(crate) fn to_prometheus(&self, role: &str) -> String {
                let mut text = String::new();
                $(
                    let help = concat!($($doc),+).trim();
                    let name = concat!("tympan_", stringify!($name), "_total");
                    let value = self.$name.load(Ordering::Relaxed);
                    // Writing to a string cannot fail.
                    write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{role=\"{role}\"}} {value}\n").ok();
                )+
                text
            }
        }
    };
}

counters! {
    /// Requests answered; the load.
    requests,
    /// Pages and other resources drawn or streamed; on publish a rise without visitors means a cold dispatcher.
    renders,
    /// Pictures and files answered from memory without drawing anything, as content had not changed.
    answered_at_once,
    /// Those of them that were written to the socket as they are, past the general HTTP stack.
    answered_by_shortcut,
    /// Pages and data drawn where their request was read, past the general HTTP stack, as they are known to be little work.
    drawn_by_shortcut,
    /// Components that failed and left a placeholder; a rise means a broken template or content.
    failed_components,
    /// Answers with a status of 500 or above; someone must look.
    server_errors,
    /// Answers with a status of 503, as all permits or all connections to the database were in use; a rise means overload.
    put_off,
    /// Requests refused for want of a login or of rights; a rise may be an attack.
    refused,
    /// Logins that failed; a rise may be guessing.
    failed_logins,
    /// Logins refused unseen, as too many had failed before; a rise is guessing.
    throttled_logins,
    /// Commits by Sling's POST protocol.
    commits,
    /// Activations and deactivations that users asked for.
    activations,
    /// Replication messages applied.
    received,
    /// Pictures in a size that were answered from memory.
    image_hits,
    /// Pictures in a size that were drawn; a rise without new content means a cold dispatcher.
    images_drawn,
    /// Pictures in a size that could not be drawn of their original.
    images_failed,
    /// Sizes refused for want of a signature; a rise may be an attack, or a template that writes sizes by itself.
    images_refused,
    /// Pictures in a size put off with a status of 503, as too many were being drawn; a rise means overload.
    images_put_off,
}

/// Adds one.
pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    /// Counts a login that was refused, by the reason.
    pub(crate) fn count_failed_login(&self, failure: &RequestFailure) {
        match failure.status {
            StatusCode::TOO_MANY_REQUESTS => increment(&self.throttled_logins),
            StatusCode::UNAUTHORIZED => increment(&self.failed_logins),
            _ => {}
        }
    }
}
