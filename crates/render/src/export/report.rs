//! What a run did, and what it found.

use std::fmt;

use super::place::{Address, Unexported};

/// Findings that are kept of one run; further ones are counted.
const MOST_FINDINGS: usize = 10_000;

/// Something that people should look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Finding {
    /// A file could not be made; one that was there stays.
    Failed {
        /// The address.
        address: String,
        /// Why.
        reason: String,
    },
    /// A page links to what is not there.
    Broken {
        /// The page.
        address: String,
        /// What it links to.
        link: String,
    },
    /// A page shows what changes without a change of content: data of other systems, or the time.
    Changing {
        /// The address.
        address: String,
    },
    /// A page shows who asks, and is no file therefore.
    Personal {
        /// The address.
        address: String,
    },
    /// A resource has so many addresses that no further ones become files.
    Endless {
        /// The resource.
        source: String,
        /// How many of them do.
        most: usize,
    },
    /// A file that an author uploaded runs code where the web server does not keep it from that.
    Active {
        /// The address.
        address: String,
        /// The file.
        file: String,
    },
    /// Two files are one where names differ by more than the case of letters only.
    SameButForCase {
        /// The file.
        file: String,
        /// The other one.
        other: String,
    },
}

impl Finding {
    /// Tells whether the export lacks something because of it.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { address, reason } => write!(f, "{address}: {reason}"),
            Self::Broken { address, link } => {
                write!(f, "{address}: it links to `{link}`, and nothing is there")
            }
            Self::Changing { address } => write!(
                f,
                "{address}: it shows data of other systems or the time, which a file cannot follow; set `export` to \
                 false there"
            ),
            Self::Personal { address } => write!(
                f,
                "{address}: it shows who asks, so that it is no file for everybody; set `export` to false there, so that \
                 links lead to the dynamic page"
            ),
            Self::Endless { source, most } => write!(
                f,
                "{source}: links name more than {most} addresses of it, and no further ones become files; set `export` to \
                 false there if they never end, as those of a calendar"
            ),
            Self::Active { address, file } => write!(
                f,
                "{address}: the file `{file}` may run code; let the web server send `Content-Security-Policy: sandbox` \
                 with it"
            ),
            Self::SameButForCase { file, other } => write!(
                f,
                "`{file}` and `{other}` are one file where the case of letters does not count"
            ),
        }
    }
}

/// What a run did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Addresses that were drawn.
    pub drawn: usize,
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
    pub left_out: usize,
    /// What people should look at, in order.
    pub findings: Vec<Finding>,
    /// Findings that there was no room for.
    pub more_findings: usize,
}

impl Report {
    /// Returns how many files could not be made.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_failure()).count()
    }

    pub(super) fn find(&mut self, finding: Finding) {
        match self.findings.len() < MOST_FINDINGS {
            true => self.findings.push(finding),
            false => self.more_findings += 1,
        }
    }

    /// Notes a finding that may be made again and again.
    pub(super) fn find_once(&mut self, finding: Finding) {
        if !self.findings.contains(&finding) {
            self.find(finding);
        }
    }

    /// Brings the findings into an order that does not depend on which thread was faster.
    pub(super) fn sort(&mut self) {
        self.findings.sort();
        self.findings.dedup();
    }
}

/// An address that would be exported, or would not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The address.
    pub address: Address,
    /// The file, or why there is none.
    pub file: Result<String, Unexported>,
}
