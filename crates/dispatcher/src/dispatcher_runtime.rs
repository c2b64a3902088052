//! The external dependencies of a dispatcher: clock, logs, trusted authorities, keys.

use tympan_web::access_log;
use tympan_web::log_file::LogFile;
use tympan_web::tls::TlsTrust;

use crate::clock::DispatcherClock;
use crate::flush::authorization::FlushKeys;
use crate::observe::log::{DispatcherLog, LogLevel};

/// The external dependencies of a dispatcher.
#[derive(Debug, Clone)]
pub struct DispatcherRuntime {
    /// The clock.
    pub clock: DispatcherClock,
    /// The dispatcher's own log.
    pub log: DispatcherLog,
    /// The access log with a line per response, if enabled.
    pub access_log: Option<LogFile<access_log::AccessLogLine>>,
    /// The trusted certificate authorities for renders with `/secure "1"`.
    pub trust: Option<TlsTrust>,
    /// The keys of pairs that may flush all farms.
    pub flush_keys: FlushKeys,
}

impl DispatcherRuntime {
    /// Writes to the dispatcher's own log.
    pub(crate) fn write_log(&self, level: LogLevel, text: impl FnOnce() -> String) {
        self.log.write(&self.clock, level, text);
    }
}

impl Default for DispatcherRuntime {
    fn default() -> Self {
        Self {
            clock: DispatcherClock::new(std::time::SystemTime::now),
            log: DispatcherLog::default(),
            access_log: None,
            trust: None,
            flush_keys: FlushKeys::default(),
        }
    }
}
