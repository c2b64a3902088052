//! The sections `[timing]` and `[publish]` of `tympan.toml`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::instance::{TimingAudience, TimingDisclosure};
use crate::page::headers::PageHeaders;

/// The audience of response timings.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timing {
    /// The audience of the header `Server-Timing`: `"nobody"`, `"users"` who are logged in, `"everybody"`; default
    /// `"users"`. Use `"everybody"` for load tests.
    pub header: Option<TimingAudienceName>,
    /// The audience of a comment with the times of all components at the end of each page; default `"nobody"`. It
    /// discloses scripts and paths, so that `"everybody"` is for test systems only.
    pub comment: Option<TimingAudienceName>,
}

/// An audience of response timings.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimingAudienceName {
    /// No one.
    Nobody,
    /// Users who are logged in.
    Users,
    /// Everyone, visitors too.
    Everybody,
}

impl TimingAudienceName {
    fn to_server_audience(self) -> TimingAudience {
        match self {
            Self::Nobody => TimingAudience::Nobody,
            Self::Users => TimingAudience::Users,
            Self::Everybody => TimingAudience::Everybody,
        }
    }
}

impl Timing {
    /// Returns the audience of timings.
    pub fn to_timing_disclosure(&self) -> TimingDisclosure {
        let default = TimingDisclosure::default();
        TimingDisclosure {
            header_audience: self
                .header
                .map_or(default.header_audience, TimingAudienceName::to_server_audience),
            comment_audience: self
                .comment
                .map_or(default.comment_audience, TimingAudienceName::to_server_audience),
        }
    }
}

/// The headers of the pages that a publisher renders.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PublishSection {
    /// Headers of every HTML page, such as `Content-Security-Policy = "default-src 'self'; frame-ancestors 'self'"`;
    /// default none. A header that a response sets itself takes precedence, such as the policy of an uploaded file. An
    /// author sends `frame-ancestors 'self'`, regardless of this setting. Loosen the policy if pages use scripts,
    /// styles or pictures of other sites.
    pub headers: BTreeMap<String, String>,
}

impl PublishSection {
    /// Returns the headers of pages.
    ///
    /// # Errors
    /// With the invalid header.
    pub fn page_headers(&self) -> Result<PageHeaders, String> {
        let entries = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        PageHeaders::parse(entries)
            .map_err(|error| format!("tympan.toml: `[publish.headers]`: {error}"))
    }
}
