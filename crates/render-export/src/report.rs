//! The result of a run and its findings.

use std::fmt;

use crate::address_resolver::{ExportAddress, NotExportedReason};

/// Maximum number of stored findings per run; further ones are only counted.
const MAX_FINDINGS: usize = 10_000;

/// A finding that needs attention.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ExportFinding {
    /// A file could not be created; an existing one stays.
    Failed {
        /// The address.
        address: String,
        /// The cause.
        message: String,
    },
    /// A page links to a missing target.
    BrokenLink {
        /// The page.
        address: String,
        /// The target of the link.
        link: String,
    },
    /// A page shows data that changes without a change of content: data of other systems, or the time.
    Volatile {
        /// The address.
        address: String,
    },
    /// A page shows the user, and is therefore not exported as a file.
    Personalized {
        /// The address.
        address: String,
    },
    /// A resource has too many addresses; further ones do not become files.
    TooManyAddresses {
        /// The resource.
        source: String,
        /// The maximum number of addresses.
        limit: usize,
    },
    /// A file that an author uploaded may run code, and the web server does not prevent it.
    ActiveContent {
        /// The address.
        address: String,
        /// The file.
        file: String,
    },
    /// Two file names differ only in case, and collide on case-insensitive file systems.
    CaseConflict {
        /// The file.
        file: String,
        /// The other file.
        other_file: String,
    },
}

impl ExportFinding {
    /// Returns true if the export is incomplete because of this.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

impl fmt::Display for ExportFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { address, message } => write!(f, "{address}: {message}"),
            Self::BrokenLink { address, link } => {
                write!(f, "{address}: it links to `{link}`, which does not exist")
            }
            Self::Volatile { address } => write!(
                f,
                "{address}: it shows the time or data of other systems, which a static file cannot follow; \
                 set `export` to false there"
            ),
            Self::Personalized { address } => write!(
                f,
                "{address}: it depends on the visitor, so it cannot be a static file; set `export` to false \
                 there, so that links lead to the dynamic page"
            ),
            Self::TooManyAddresses { source, limit } => write!(
                f,
                "{source}: links use more than {limit} addresses of it, and further ones are not exported; set \
                 `export` to false there if their number is unlimited, as in a calendar"
            ),
            Self::ActiveContent { address, file } => write!(
                f,
                "{address}: the file `{file}` may run code; configure the web server to send \
                 `Content-Security-Policy: sandbox` with it"
            ),
            Self::CaseConflict { file, other_file } => write!(
                f,
                "`{file}` and `{other_file}` are the same file on a case-insensitive file system"
            ),
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Addresses rendered.
    pub rendered: usize,
    /// Files written, because they were new or changed.
    pub written: usize,
    /// Files that already had the rendered content.
    pub unchanged: usize,
    /// Files removed.
    pub removed: usize,
    /// Files of an unfinished run that were reused.
    pub resumed: usize,
    /// Bytes written.
    pub bytes: u64,
    /// Addresses that are not exported.
    pub not_exported: usize,
    /// Findings that need attention, in order.
    pub findings: Vec<ExportFinding>,
    /// Findings over the limit, which are not stored.
    pub dropped_findings: usize,
}

impl ExportReport {
    /// Returns the number of files that could not be created.
    #[must_use]
    pub fn failure_count(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_failure()).count()
    }

    pub(crate) fn add_finding(&mut self, finding: ExportFinding) {
        match self.findings.len() < MAX_FINDINGS {
            true => self.findings.push(finding),
            false => self.dropped_findings += 1,
        }
    }

    /// Adds a finding unless it was added before.
    pub(crate) fn add_finding_once(&mut self, finding: ExportFinding) {
        if !self.findings.contains(&finding) {
            self.add_finding(finding);
        }
    }

    /// Sorts the findings, so that the order does not depend on the timing of threads.
    pub(crate) fn sort_findings(&mut self) {
        self.findings.sort();
        self.findings.dedup();
    }
}

/// An address with its export decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportListEntry {
    /// The address.
    pub address: ExportAddress,
    /// The file, or the reason why there is none.
    pub file: Result<String, NotExportedReason>,
}
