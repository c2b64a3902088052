//! The interface to whoever runs scripts: variables, other scripts, resources, the clock, the log.

use std::fmt;
use std::sync::Arc;

use tympan_htl::{HostError, HtlValue};

/// A script.
#[derive(Debug, Clone)]
pub struct UseScript {
    /// The path, for messages and for the resolution of its dependencies.
    pub path: Arc<str>,
    /// The text.
    pub source: Arc<str>,
}

/// The urgency of a message that a script logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScriptLogLevel {
    /// `log.trace`, `log.debug`, `console.debug`.
    Debug,
    /// `log.info`, `console.log`, `console.info`.
    Info,
    /// `log.warn`, `console.warn`.
    Warn,
    /// `log.error`, `console.error`.
    Error,
}

/// What scripts need from outside. One host serves one component of one request, in one thread.
pub trait UseScriptHost: fmt::Debug {
    /// Returns a variable by its name in lower case, or `None` if there is none.
    ///
    /// # Errors
    /// If the value cannot be made.
    fn global(&self, name: &str) -> Result<Option<HtlValue>, HostError>;

    /// Finds a script that `naming_script` depends on.
    ///
    /// # Errors
    /// If scripts cannot be read.
    fn find_script(&self, name: &str, naming_script: &str) -> Result<Option<UseScript>, HostError>;

    /// Returns the resource at an absolute path; null if there is none.
    ///
    /// # Errors
    /// If it cannot be read.
    fn resource(&self, path: &str) -> Result<HtlValue, HostError>;

    /// Returns the time in milliseconds since 1970-01-01T00:00Z; the same at each call.
    fn now_millis(&self) -> i64;

    /// Returns the number from which the random numbers of scripts follow.
    fn random_seed(&self) -> u32;

    /// Writes a message to the log.
    fn log(&self, level: ScriptLogLevel, script: &str, message: &str);
}
