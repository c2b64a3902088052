//! Sends a list of requests to two sites and compares their responses.

use std::time::Duration;

use tympan_lab_engine::Error as EngineError;
use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest, ProbeResponse};
use tympan_lab_plan::{AbsoluteUrl, FileFinding};

use super::comparison_rule::ComparisonRules;
use super::difference::{ComparedResponse, ResponseDifference, response_differences};
use crate::{Error, Result};

/// One request of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRequest {
    /// The HTTP method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
}

/// Configuration of a comparison.
#[derive(Debug, Clone)]
pub struct SiteComparison {
    /// The site before the change, such as `http://127.0.0.1:4503`; its path precedes every request's path.
    pub before_url: String,
    /// The site after the change.
    pub after_url: String,
    /// Headers sent with every request.
    pub headers: Vec<(String, String)>,
    /// Rules for ignored differences.
    pub rules: ComparisonRules,
    /// Maximum wait.
    pub timeout: Duration,
}

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SiteComparisonResult {
    /// Number of requests that both sites answered.
    pub compared_count: usize,
    /// The changes.
    pub changes: Vec<ResponseDifference>,
    /// Differences between two responses of the same site, which allow no conclusion.
    pub unstable_differences: Vec<ResponseDifference>,
    /// Errors of a plan outside its requests, such as a data file that cannot be read.
    pub plan_faults: Vec<String>,
    /// Requests that a site did not answer, with the reason.
    pub unanswered_requests: Vec<String>,
}

impl SiteComparisonResult {
    /// Returns true if both sites answered everything alike.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let is_judged = self.unanswered_requests.is_empty() && self.plan_faults.is_empty();
        self.changes.is_empty() && self.unstable_differences.is_empty() && is_judged
    }

    /// Adds the differences of one request; `varying` contains those between two responses of the same site.
    pub(super) fn classify_differences(
        &mut self,
        differences: Vec<ResponseDifference>,
        varying: &[ResponseDifference],
    ) {
        for difference in differences {
            if varying.iter().any(|variation| variation.aspect == difference.aspect) {
                self.unstable_differences.push(difference);
            } else {
                self.changes.push(difference);
            }
        }
    }
}

/// Parses a list of requests: a path or a URL per line, optionally after a method; `#` begins a comment.
///
/// Only path and query of a URL are used, because the sites are given separately.
///
/// # Errors
/// `Error::InvalidFile` with every invalid line.
pub fn parse_request_list(text: &str, file: &str) -> Result<Vec<ListedRequest>> {
    let mut asks = Vec::new();
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (method, target) = match line.split_once(char::is_whitespace) {
            Some((method, rest)) if method.chars().all(|letter| letter.is_ascii_uppercase()) => {
                (method, rest.trim())
            }
            _ => ("GET", line),
        };
        let target = if target.contains("://") {
            AbsoluteUrl::parse(target)
                .map(|url| url.path_and_query)
                .map_err(|error| error.to_string())
        } else if target.starts_with('/') && !target.contains(char::is_whitespace) {
            Ok(target.to_owned())
        } else {
            Err(format!("`{line}` is neither a path nor a URL; expected `[METHOD] /path`"))
        };
        match target {
            Ok(target) => asks.push(ListedRequest { method: method.to_owned(), target }),
            Err(message) => findings.push(FileFinding {
                file: file.to_owned(),
                line: u32::try_from(number + 1).unwrap_or(u32::MAX),
                column: 1,
                message,
            }),
        }
    }
    if !findings.is_empty() {
        return Err(tympan_lab_plan::Error::InvalidFile(findings).into());
    }
    if asks.is_empty() {
        return Err(Error::UnusableInput(format!("`{file}` contains no requests")));
    }
    Ok(asks)
}

impl SiteComparison {
    /// Sends all requests to both sites and compares the responses.
    ///
    /// # Errors
    /// `Error::InvalidUrl`, `Error::Resolve`, [`Error::Engine`]; a site that does not respond is part of the
    /// result.
    pub fn compare_requests(&self, asks: &[ListedRequest]) -> Result<SiteComparisonResult> {
        let (before, after) =
            (ComparedSite::new(self, &self.before_url)?, ComparedSite::new(self, &self.after_url)?);
        let mut sites = (before, after);
        let mut verdict = SiteComparisonResult::default();
        for ask in asks {
            let request = format!("{} {}", ask.method, ask.target);
            let pair = sites
                .0
                .send_request(ask)
                .and_then(|before_response| Ok((before_response, sites.1.send_request(ask)?)));
            let (before_response, after_response) = match pair {
                Ok(pair) => pair,
                Err(error @ Error::Run(EngineError::NoResponse { .. })) => {
                    verdict.unanswered_requests.push(format!("{request}: {error}"));
                    continue;
                }
                Err(error) => return Err(error),
            };
            verdict.compared_count += 1;
            let differences =
                response_differences(&request, &before_response, &after_response, &self.rules);
            if differences.is_empty() {
                continue;
            }
            let mut varying = Vec::new();
            if is_repeatable(&ask.method) {
                for (site, first) in
                    [(&mut sites.0, &before_response), (&mut sites.1, &after_response)]
                {
                    if let Ok(again) = site.send_request(ask) {
                        varying.extend(response_differences(&request, first, &again, &self.rules));
                    }
                }
            }
            verdict.classify_differences(differences, &varying);
        }
        Ok(verdict)
    }
}

/// Returns true if a request can be repeated without changing the next response.
pub(super) fn is_repeatable(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

/// One of the two sites.
struct ComparedSite<'a> {
    comparison: &'a SiteComparison,
    base_url: AbsoluteUrl,
    client: ProbeClient,
}

impl<'a> ComparedSite<'a> {
    fn new(verify: &'a SiteComparison, base: &str) -> Result<Self> {
        Ok(Self {
            comparison: verify,
            base_url: AbsoluteUrl::parse(base)?,
            client: ProbeClient::new(verify.timeout),
        })
    }

    fn send_request(&mut self, ask: &ListedRequest) -> Result<ComparedResponse> {
        let prefix = self
            .base_url
            .path_and_query
            .split('?')
            .next()
            .unwrap_or_default()
            .trim_end_matches('/');
        let url = AbsoluteUrl {
            path_and_query: format!("{prefix}{}", ask.target),
            ..self.base_url.clone()
        };
        let question = ProbeRequest {
            method: &ask.method,
            url: &url,
            headers: &self.comparison.headers,
            body: b"",
        };
        let response = self.client.send(&question)?;
        Ok(compared_response(response, format!("{}:{}", self.base_url.host, self.base_url.port)))
    }
}

pub(super) fn compared_response(response: ProbeResponse, site: String) -> ComparedResponse {
    ComparedResponse {
        is_text: response.is_text(),
        status: response.status,
        headers: response.headers,
        body: response.body,
        site_authority: site,
    }
}
