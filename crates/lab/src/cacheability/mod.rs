//! Walks through a site and names, with reasons and examples, what keeps answers out of a cache.
//!
//! In: a URL, and limits. Out: a [`Survey`].
//!
//! Invariants
//! * Only the start's host and port are asked, at most `most` addresses, with GET only, one after the other; addresses
//!   that look like a way out (`logout`) are left out.
//! * What differs between two answers counts only after dates, nonces and hashes were taken out ([`crate::verify::Rules`]).
//!
//! Not here: how often a cache did answer ([`crate::requests`]), and rules of one cache's configuration.

mod link;
mod obstacle;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::time::Duration;

pub use obstacle::Obstacle;

use crate::client::{Answer, Client, Question};
use crate::net::Url;
use crate::verify::Rules;
use crate::{Error, Result};

/// Query strings of one path that are asked for; the rest is counted only.
const MOST_QUERIES: usize = 2;

/// What to look at.
#[derive(Debug, Clone)]
pub struct Crawl {
    /// Where to begin.
    pub url: String,
    /// Most addresses that are asked for.
    pub most: usize,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// What a known visitor sends besides, such as a session's cookie: answers are compared with and without it.
    pub visitor: Vec<(String, String)>,
    /// Longest wait.
    pub timeout: Duration,
}

/// One obstacle at one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// Path and query.
    pub target: String,
    /// What was seen there.
    pub seen: String,
    /// The page that leads there; empty for the start.
    pub from: String,
}

/// What a walk found.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Survey {
    /// Addresses that were asked for.
    pub asked: usize,
    /// Addresses that were known and not asked for, because the limit was reached.
    pub left: usize,
    /// Addresses with at least one obstacle.
    pub hindered: usize,
    /// Every obstacle with its examples, in the order of the walk.
    pub found: BTreeMap<Obstacle, Vec<Example>>,
    /// Addresses that gave no answer, and why.
    pub unanswered: Vec<String>,
}

/// Walks.
///
/// # Errors
/// [`Error::Url`], [`Error::Resolve`], [`Error::Engine`]; [`Error::Unanswered`] if the start does not answer.
pub fn survey(crawl: &Crawl) -> Result<Survey> {
    let start = Url::parse(&crawl.url)?;
    let mut walk = Walk {
        crawl,
        client: Client::new(crawl.timeout),
        rules: Rules::default(),
        survey: Survey::default(),
        known: HashSet::from([start.target.clone()]),
        queue: VecDeque::from([(start.clone(), String::new())]),
        queries: BTreeMap::new(),
        cookies: BTreeMap::new(),
    };
    while let Some((url, from)) = walk.queue.pop_front() {
        if walk.survey.asked >= crawl.most {
            walk.survey.left = walk.queue.len() + 1;
            break;
        }
        match walk.visit(&url, &from) {
            Ok(()) => {}
            Err(error @ Error::Unanswered { .. }) if url != start => {
                walk.survey.unanswered.push(error.to_string());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(walk.survey)
}

struct Walk<'a> {
    crawl: &'a Crawl,
    client: Client,
    rules: Rules,
    survey: Survey,
    known: HashSet<String>,
    queue: VecDeque<(Url, String)>,
    /// Query strings asked for, per path.
    queries: BTreeMap<String, usize>,
    /// What the site has set so far.
    cookies: BTreeMap<String, String>,
}

impl Walk<'_> {
    fn visit(&mut self, url: &Url, from: &str) -> Result<()> {
        self.survey.asked += 1;
        let answer = self.ask(url, &[])?;
        let mut obstacles = obstacle::at_address(&url.target);
        let is_page = answer.status == 200;
        if is_page {
            obstacles.extend(obstacle::of_answer(&url.target, &answer));
            obstacles.extend(self.compare(url, &answer)?);
        }
        self.take_cookies(&answer);
        self.survey.hindered += usize::from(!obstacles.is_empty());
        for (obstacle, seen) in obstacles {
            self.survey.found.entry(obstacle).or_default().push(Example {
                target: url.target.clone(),
                seen,
                from: from.to_owned(),
            });
        }
        let mut references = Vec::new();
        if is_page && answer.media_type() == "text/html" {
            references = link::references(&String::from_utf8_lossy(&answer.body));
        } else if let Some(location) = answer.header("Location") {
            references.push(location.to_owned());
        }
        for reference in references {
            self.note(url, &reference);
        }
        Ok(())
    }

    fn ask(&mut self, url: &Url, more: &[(String, String)]) -> Result<Answer> {
        let mut headers = self.crawl.headers.clone();
        headers.extend(more.iter().cloned());
        self.client.ask(&Question { method: "GET", url, headers: &headers, body: b"" })
    }

    /// Asks again as before, with the site's cookies, and as a known visitor.
    fn compare(&mut self, url: &Url, answer: &Answer) -> Result<Vec<(Obstacle, String)>> {
        let mut found = Vec::new();
        let site = format!("{}:{}", url.host, url.port);
        let again = self.ask(url, &[])?;
        if let Some(seen) = self.difference(answer, &again, &site) {
            // Nothing more can be told apart.
            return Ok(vec![(Obstacle::VaryingBytes, seen)]);
        }
        self.take_cookies(&again);
        if !self.cookies.is_empty() {
            let all: Vec<String> =
                self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let other = self.ask(url, &[("Cookie".to_owned(), all.join("; "))])?;
            if let Some(seen) = self.difference(answer, &other, &site) {
                let names: Vec<&str> = self.cookies.keys().map(String::as_str).collect();
                found.push((
                    Obstacle::CookieDependentBytes,
                    format!("with the cookies {}: {seen}", names.join(", ")),
                ));
            }
        }
        if !self.crawl.visitor.is_empty() {
            let visitor = self.crawl.visitor.clone();
            let other = self.ask(url, &visitor)?;
            if let Some(seen) = self.difference(answer, &other, &site) {
                found.push((Obstacle::PersonalizedBytes, format!("for the visitor: {seen}")));
            }
        }
        Ok(found)
    }

    /// Returns how two answers differ, after the rules; `None` if they do not.
    fn difference(&self, one: &Answer, two: &Answer, site: &str) -> Option<String> {
        if one.status != two.status {
            return Some(format!("status {} instead of {}", two.status, one.status));
        }
        if !one.is_text() {
            return (one.body != two.body).then(|| "other bytes".to_owned());
        }
        let text =
            |answer: &Answer| self.rules.normalize(&String::from_utf8_lossy(&answer.body), site);
        let (one, two) = (text(one), text(two));
        if one == two {
            return None;
        }
        let at = one.chars().zip(two.chars()).take_while(|(one, two)| one == two).count();
        let excerpt = |text: &str| -> String {
            let part: String = text.chars().skip(at.saturating_sub(12)).take(40).collect();
            part.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        Some(format!("`{}` instead of `{}`", excerpt(&two), excerpt(&one)))
    }

    fn take_cookies(&mut self, answer: &Answer) {
        for cookie in answer.all("Set-Cookie") {
            let pair = cookie.split(';').next().unwrap_or_default();
            if let Some((name, value)) = pair.split_once('=') {
                self.cookies.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
    }

    /// Remembers where a reference leads, if that is on this site and new.
    fn note(&mut self, at: &Url, reference: &str) {
        if !link::may_be_followed(reference) {
            return;
        }
        let Ok(url) = at.join(reference) else { return };
        let is_here = url.is_tls == at.is_tls
            && url.port == at.port
            && url.host.eq_ignore_ascii_case(&at.host);
        if !is_here || !self.known.insert(url.target.clone()) {
            return;
        }
        if let Some((path, _)) = url.target.split_once('?') {
            let count = self.queries.entry(path.to_owned()).or_default();
            *count += 1;
            if *count > MOST_QUERIES {
                return;
            }
        }
        self.queue.push_back((url, at.target.clone()));
    }
}
