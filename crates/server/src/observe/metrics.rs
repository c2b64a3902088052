//! The counters of an instance, in one table: name, kind, unit, and the meaning of a rise.

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
            /// Returns all counters as Prometheus text.
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
    /// Pages and other resources rendered or streamed; on publish a rise without visitors means a cold dispatcher.
    renders,
    /// Pictures and files answered from memory without rendering, as content had not changed.
    response_cache_hits,
    /// Those of them that were written directly to the socket, bypassing the general HTTP stack.
    fast_path_hits,
    /// Pages and data rendered on the thread that read the request, bypassing the general HTTP stack, as they are known
    /// to be cheap.
    fast_path_renders,
    /// Components that failed and left a placeholder; a rise means a broken template or content.
    failed_components,
    /// Responses with a status of 500 or above; these need investigation.
    server_errors,
    /// Responses with a status of 503, as all permits or all connections to the database were in use; a rise means
    /// overload.
    overload_rejections,
    /// Requests refused for lack of a login or of rights; a rise may be an attack.
    access_denied,
    /// Logins that failed; a rise may be guessing.
    failed_logins,
    /// Logins refused without a password check, as too many had failed before; a rise is guessing.
    throttled_logins,
    /// Commits by Sling's POST protocol.
    commits,
    /// Activations and deactivations requested by users.
    activations,
    /// Replication messages applied.
    replication_messages,
    /// Sized pictures answered from memory.
    image_cache_hits,
    /// Sized pictures rendered; a rise without new content means a cold dispatcher.
    images_rendered,
    /// Sized pictures that could not be rendered from their original.
    images_failed,
    /// Sizes refused for lack of a signature; a rise may be an attack, or a template that writes its own sizes.
    images_refused,
    /// Sized pictures refused with a status of 503, as too many were being rendered; a rise means overload.
    image_overload_rejections,
}

/// Adds one.
pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    /// Counts a refused login by its reason.
    pub(crate) fn count_failed_login(&self, failure: &RequestFailure) {
        match failure.status {
            StatusCode::TOO_MANY_REQUESTS => increment(&self.throttled_logins),
            StatusCode::UNAUTHORIZED => increment(&self.failed_logins),
            _ => {}
        }
    }
}
