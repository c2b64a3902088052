//! Crawls a site and lists, with reasons and examples, what prevents its responses from being cached.
//!
//! In: a URL, and limits. Out: a [`CacheabilitySurvey`].
//!
//! Invariants
//! * Requests go only to the host and port of the start URL, to at most `max_addresses` addresses, with GET only, one
//!   at a time. Addresses that look like a logout (`logout`) are skipped.
//! * Differences between two responses count only after dates, nonces and hashes are removed
//!   ([`crate::comparison::verification::ComparisonRules`]).
//!
//! Not here: the hit ratio of a cache ([`crate::server_log::request_log`]), and the rules of a particular cache's configuration.

mod link;
mod obstacle;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

pub use obstacle::CacheObstacle;

use tympan_lab_engine::Error as EngineError;
use tympan_lab_engine::load::probe_client::{ProbeClient, ProbeRequest, ProbeResponse};
use tympan_lab_plan::AbsoluteUrl;

use crate::comparison::verification::ComparisonRules;
use crate::{Error, Result};

/// Maximum number of query strings requested per path; further ones are only counted.
const MAX_QUERIES_PER_PATH: usize = 2;

/// Options of a crawl.
#[derive(Debug, Clone)]
pub struct CrawlOptions {
    /// The URL to start from.
    pub start_url: String,
    /// Maximum number of addresses to request.
    pub max_addresses: usize,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// Additional headers of a known visitor, such as a session cookie; responses are compared with and without them.
    pub visitor_headers: Vec<(String, String)>,
    /// Maximum time to wait.
    pub timeout: Duration,
}

/// One obstacle at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObstacleExample {
    /// Path and query string.
    pub target: String,
    /// The observed behavior.
    pub observation: String,
    /// The page that links to it; empty for the start.
    pub referrer: String,
}

/// The result of a crawl.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheabilitySurvey {
    /// Number of requested addresses.
    pub requested_count: usize,
    /// Number of known addresses that were not requested because the limit was reached.
    pub skipped_count: usize,
    /// Number of addresses with at least one obstacle.
    pub hindered_count: usize,
    /// Each obstacle with its examples, in crawl order.
    pub examples: BTreeMap<CacheObstacle, Vec<ObstacleExample>>,
    /// Addresses that returned no response, each with the reason.
    pub failures: Vec<String>,
}

/// Crawls the site.
///
/// # Errors
/// `Error::InvalidUrl`, `Error::Resolve`, [`Error::Engine`]; [`Error::NoResponse`] if the start URL does not
/// respond.
pub fn survey_cacheability(crawl: &CrawlOptions) -> Result<CacheabilitySurvey> {
    let start = AbsoluteUrl::parse(&crawl.start_url)?;
    let mut walk = CacheabilityCrawler {
        options: crawl,
        client: ProbeClient::new(crawl.timeout),
        difference_rules: ComparisonRules::default(),
        survey: CacheabilitySurvey::default(),
        seen_targets: HashSet::from([start.path_and_query.clone()]),
        queue: VecDeque::from([(start.clone(), String::new())]),
        query_counts: BTreeMap::new(),
        cookies: BTreeMap::new(),
    };
    while let Some((url, from)) = walk.queue.pop_front() {
        if walk.survey.requested_count >= crawl.max_addresses {
            walk.survey.skipped_count = walk.queue.len() + 1;
            break;
        }
        match walk.visit_address(&url, &from) {
            Ok(()) => {}
            Err(error @ Error::Run(EngineError::NoResponse { .. })) if url != start => {
                walk.survey.failures.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(walk.survey)
}

struct CacheabilityCrawler<'a> {
    options: &'a CrawlOptions,
    client: ProbeClient,
    difference_rules: ComparisonRules,
    survey: CacheabilitySurvey,
    seen_targets: HashSet<String>,
    queue: VecDeque<(AbsoluteUrl, String)>,
    /// Number of requested query strings per path.
    query_counts: BTreeMap<String, usize>,
    /// The cookies that the site has set so far.
    cookies: BTreeMap<String, String>,
}

impl CacheabilityCrawler<'_> {
    fn visit_address(&mut self, url: &AbsoluteUrl, from: &str) -> Result<()> {
        self.survey.requested_count += 1;
        let response = self.send_request(url, &[])?;
        let mut obstacles = obstacle::address_obstacles(&url.path_and_query);
        let is_page = response.status == 200;
        if is_page {
            obstacles.extend(obstacle::response_obstacles(&url.path_and_query, &response));
            obstacles.extend(self.compare_responses(url, &response)?);
        }
        self.store_cookies(&response);
        self.survey.hindered_count += usize::from(!obstacles.is_empty());
        for (obstacle, detail) in obstacles {
            self.survey.examples.entry(obstacle).or_default().push(ObstacleExample {
                target: url.path_and_query.clone(),
                observation: detail,
                referrer: from.to_owned(),
            });
        }
        let mut references = Vec::new();
        if is_page && response.media_type() == "text/html" {
            references = link::extract_references(&String::from_utf8_lossy(&response.body));
        } else if let Some(location) = response.header("Location") {
            references.push(location.to_owned());
        }
        for reference in references {
            self.enqueue_reference(url, &reference);
        }
        Ok(())
    }

    fn send_request(
        &mut self,
        url: &AbsoluteUrl,
        more: &[(String, String)],
    ) -> Result<ProbeResponse> {
        let mut headers = self.options.headers.clone();
        headers.extend(more.iter().cloned());
        Ok(self.client.send(&ProbeRequest { method: "GET", url, headers: &headers, body: b"" })?)
    }

    /// Repeats the request unchanged, with the site's cookies, and as a known visitor, and compares the responses.
    fn compare_responses(
        &mut self,
        url: &AbsoluteUrl,
        response: &ProbeResponse,
    ) -> Result<Vec<(CacheObstacle, String)>> {
        let mut obstacles = Vec::new();
        let site = format!("{}:{}", url.host, url.port);
        let again = self.send_request(url, &[])?;
        if let Some(difference) = self.describe_difference(response, &again, &site) {
            // Nothing more can be distinguished.
            return Ok(vec![(CacheObstacle::VaryingBytes, difference)]);
        }
        self.store_cookies(&again);
        if !self.cookies.is_empty() {
            let all: Vec<String> =
                self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let cookie_response =
                self.send_request(url, &[("Cookie".to_owned(), all.join("; "))])?;
            if let Some(difference) = self.describe_difference(response, &cookie_response, &site) {
                let names: Vec<&str> = self.cookies.keys().map(String::as_str).collect();
                obstacles.push((
                    CacheObstacle::CookieDependentBytes,
                    format!("with the cookies {}: {difference}", names.join(", ")),
                ));
            }
        }
        if !self.options.visitor_headers.is_empty() {
            let visitor = self.options.visitor_headers.clone();
            let visitor_response = self.send_request(url, &visitor)?;
            if let Some(difference) = self.describe_difference(response, &visitor_response, &site) {
                obstacles.push((
                    CacheObstacle::PersonalizedBytes,
                    format!("with the visitor's headers: {difference}"),
                ));
            }
        }
        Ok(obstacles)
    }

    /// Returns the difference between two responses after applying the rules; `None` if there is none.
    fn describe_difference(
        &self,
        first: &ProbeResponse,
        second: &ProbeResponse,
        site: &str,
    ) -> Option<String> {
        if first.status != second.status {
            return Some(format!("status {} instead of {}", second.status, first.status));
        }
        if !first.is_text() {
            return (first.body != second.body).then(|| "different bytes".to_owned());
        }
        let text = |response: &ProbeResponse| {
            self.difference_rules.normalize_text(&String::from_utf8_lossy(&response.body), site)
        };
        let (first, second) = (text(first), text(second));
        if first == second {
            return None;
        }
        let at =
            first.chars().zip(second.chars()).take_while(|(left, right)| left == right).count();
        let excerpt = |text: &str| -> String {
            let part: String = text.chars().skip(at.saturating_sub(12)).take(40).collect();
            part.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        Some(format!("`{}` instead of `{}`", excerpt(&second), excerpt(&first)))
    }

    fn store_cookies(&mut self, response: &ProbeResponse) {
        for cookie in response.header_values("Set-Cookie") {
            let pair = cookie.split(';').next().unwrap_or_default();
            if let Some((name, value)) = pair.split_once('=') {
                self.cookies.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
    }

    /// Queues the target of a reference if it is on this site and new.
    fn enqueue_reference(&mut self, at: &AbsoluteUrl, reference: &str) {
        if !link::is_followable(reference) {
            return;
        }
        let Ok(url) = at.join(reference) else { return };
        let is_here = url.is_tls == at.is_tls
            && url.port == at.port
            && url.host.eq_ignore_ascii_case(&at.host);
        if !is_here || !self.seen_targets.insert(url.path_and_query.clone()) {
            return;
        }
        if let Some((path, _)) = url.path_and_query.split_once('?') {
            let count = self.query_counts.entry(path.to_owned()).or_default();
            *count += 1;
            if *count > MAX_QUERIES_PER_PATH {
                return;
            }
        }
        self.queue.push_back((url, at.path_and_query.clone()));
    }
}
