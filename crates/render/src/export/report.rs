//! What a run did, and what it found.

use std::fmt;

use super::address_resolver::{ExportAddress, NotExportedReason};

/// Findings that are kept of one run; further ones are counted.
const MAX_FINDINGS: usize = 10_000;

/// Something that people should look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ExportFinding {
    /// A file could not be made; one that was there stays.
    Failed {
        /// The address.
        address: String,
        /// Why.
        message: String,
    },
    /// A page links to what is not there.
    BrokenLink {
        /// The page.
        address: String,
        /// What it links to.
        link: String,
    },
    /// A page shows what changes without a change of content: data of other systems, or the time.
    Volatile {
        /// The address.
        address: String,
    },
    /// A page shows who asks, and is no file therefore.
    Personalized {
        /// The address.
        address: String,
    },
    /// A resource has so many addresses that no further ones become files.
    TooManyAddresses {
        /// The resource.
        source: String,
        /// How many of them do.
        limit: usize,
    },
    /// A file that an author uploaded runs code where the web server does not keep it from that.
    ActiveContent {
        /// The address.
        address: String,
        /// The file.
        file: String,
    },
    /// Two files are one where names differ by more than the case of letters only.
    CaseConflict {
        /// The file.
        file: String,
        /// The other one.
        other_file: String,
    },
}

impl ExportFinding {
    /// Tells whether the export lacks something because of it.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

impl fmt::Display for ExportFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { address, message: reason } => write!(f, "{address}: {reason}"),
            Self::BrokenLink { address, link } => {
                write!(f, "{address}: it links to `{link}`, and nothing is there")
            }
            Self::Volatile { address } => write!(
                f,
                "{address}: it shows data of other systems or the time, which a file cannot follow; set `export` to \
                 false there"
            ),
            Self::Personalized { address } => write!(
                f,
                "{address}: it shows who asks, so that it is no file for everybody; set `export` to false there, so that \
                 links lead to the dynamic page"
            ),
            Self::TooManyAddresses { source, limit: most } => write!(
                f,
                "{source}: links name more than {most} addresses of it, and no further ones become files; set `export` to \
                 false there if they never end, as those of a calendar"
            ),
            Self::ActiveContent { address, file } => write!(
                f,
                "{address}: the file `{file}` may run code; let the web server send `Content-Security-Policy: sandbox` \
                 with it"
            ),
            Self::CaseConflict { file, other_file: other } => write!(
                f,
                "`{file}` and `{other}` are one file where the case of letters does not count"
            ),
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportReport {
    /// Addresses that were drawn.
    pub rendered: usize,
    /// Files that were written, as they were new or had other bytes.
    pub written: usize,
    /// Files that already held what was drawn.
    pub unchanged: usize,
    /// Files that were taken away.
    pub removed: usize,
    /// Files of an unfinished run that were kept.
    pub resumed: usize,
    /// Bytes that were written.
    pub bytes: u64,
    /// Addresses that are not exported.
    pub not_exported: usize,
    /// What people should look at, in order.
    pub findings: Vec<ExportFinding>,
    /// Findings that there was no room for.
    pub dropped_findings: usize,
}

impl ExportReport {
    /// Returns how many files could not be made.
    #[must_use]
    pub fn failure_count(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_failure()).count()
    }

    pub(super) fn add_finding(&mut self, finding: ExportFinding) {
        match self.findings.len() < MAX_FINDINGS {
            true => self.findings.push(finding),
            false => self.dropped_findings += 1,
        }
    }

    /// Notes a finding that may be made again and again.
    pub(super) fn add_finding_once(&mut self, finding: ExportFinding) {
        if !self.findings.contains(&finding) {
            self.add_finding(finding);
        }
    }

    /// Brings the findings into an order that does not depend on which thread was faster.
    pub(super) fn sort_findings(&mut self) {
        self.findings.sort();
        self.findings.dedup();
    }
}

/// An address that would be exported, or would not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportListEntry {
    /// The address.
    pub address: ExportAddress,
    /// The file, or why there is none.
    pub file: Result<String, NotExportedReason>,
}
