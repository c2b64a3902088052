//! Whether a site still answers as before: an optimization must not change what visitors get.
//!
//! In: requests, or a plan, and two sites. Out: a [`Verdict`] with every difference in status, headers and bodies.
//!
//! Invariants
//! * The same request goes to both sites, once each; before anything is called a change, both sites are asked again, and
//!   what differs between the two answers of one site is told as unstable, not as changed.
//! * What writes is not judged by asking again: its second answer comes from another state.
//! * Only what the [`Rules`] name is left out; they are the same for both sides.
//!
//! Not here: load, and whether anything got faster ([`crate::compare`]).

mod difference;
mod play;
mod rules;

use std::time::Duration;

pub use difference::{Aspect, Difference};
use difference::{Side, differences};
pub use play::plan as verify_plan;
pub use rules::Rules;

use crate::client::{Answer, Client, Question};
use crate::net::Url;
use crate::{Error, Finding, Result};

/// One request of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
}

/// What is compared.
#[derive(Debug, Clone)]
pub struct Verify {
    /// The site as it was, such as `http://127.0.0.1:4503`; a path is put before every request's.
    pub before: String,
    /// The site as it is.
    pub after: String,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// What may differ.
    pub rules: Rules,
    /// Longest wait.
    pub timeout: Duration,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// Requests that both sites answered.
    pub compared: usize,
    /// What changed.
    pub changes: Vec<Difference>,
    /// What differs between two answers of the same site: nothing can be said about it.
    pub unstable: Vec<Difference>,
    /// What of a plan went wrong outside of its requests, such as a data file that cannot be read.
    pub faults: Vec<String>,
    /// Requests that a site did not answer, and why.
    pub unanswered: Vec<String>,
}

impl Verdict {
    /// Reports whether both sites answered everything alike.
    #[must_use]
    pub fn is_same(&self) -> bool {
        let is_judged = self.unanswered.is_empty() && self.faults.is_empty();
        self.changes.is_empty() && self.unstable.is_empty() && is_judged
    }

    /// Adds differences of one request; `varying` are those between two answers of the same site.
    fn judge(&mut self, found: Vec<Difference>, varying: &[Difference]) {
        for difference in found {
            if varying.iter().any(|other| other.aspect == difference.aspect) {
                self.unstable.push(difference);
            } else {
                self.changes.push(difference);
            }
        }
    }
}

/// Reads a list of requests: a path or a URL per line, commonly after a method; `#` begins a comment.
///
/// Of a URL only path and query count, as the sites are given apart.
///
/// # Errors
/// [`Error::Refused`] with every line that does not read.
pub fn parse_list(text: &str, file: &str) -> Result<Vec<Ask>> {
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
            Url::parse(target).map(|url| url.target).map_err(|error| error.to_string())
        } else if target.starts_with('/') && !target.contains(char::is_whitespace) {
            Ok(target.to_owned())
        } else {
            Err(format!("`{line}` is neither a path nor a URL; expected `[METHOD] /path`"))
        };
        match target {
            Ok(target) => asks.push(Ask { method: method.to_owned(), target }),
            Err(message) => findings.push(Finding {
                file: file.to_owned(),
                line: u32::try_from(number + 1).unwrap_or(u32::MAX),
                column: 1,
                message,
            }),
        }
    }
    if !findings.is_empty() {
        return Err(Error::Refused(findings));
    }
    if asks.is_empty() {
        return Err(Error::Input(format!("`{file}` names nothing to ask for")));
    }
    Ok(asks)
}

impl Verify {
    /// Asks both sites for everything and compares.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Resolve`], [`Error::Engine`]; a site that does not answer is part of the verdict.
    pub fn run(&self, asks: &[Ask]) -> Result<Verdict> {
        let (before, after) = (Site::new(self, &self.before)?, Site::new(self, &self.after)?);
        let mut sites = (before, after);
        let mut verdict = Verdict::default();
        for ask in asks {
            let request = format!("{} {}", ask.method, ask.target);
            let pair = sites.0.ask(ask).and_then(|one| Ok((one, sites.1.ask(ask)?)));
            let (one, two) = match pair {
                Ok(pair) => pair,
                Err(error @ Error::Unanswered { .. }) => {
                    verdict.unanswered.push(format!("{request}: {error}"));
                    continue;
                }
                Err(error) => return Err(error),
            };
            verdict.compared += 1;
            let found = differences(&request, &one, &two, &self.rules);
            if found.is_empty() {
                continue;
            }
            let mut varying = Vec::new();
            if is_repeatable(&ask.method) {
                for (site, first) in [(&mut sites.0, &one), (&mut sites.1, &two)] {
                    if let Ok(again) = site.ask(ask) {
                        varying.extend(differences(&request, first, &again, &self.rules));
                    }
                }
            }
            verdict.judge(found, &varying);
        }
        Ok(verdict)
    }
}

/// Reports whether a request can be sent again without changing what the next one is answered.
fn is_repeatable(method: &str) -> bool {
    matches!(method, "GET" | "HEAD")
}

/// One of the two sites.
struct Site<'a> {
    verify: &'a Verify,
    base: Url,
    client: Client,
}

impl<'a> Site<'a> {
    fn new(verify: &'a Verify, base: &str) -> Result<Self> {
        Ok(Self { verify, base: Url::parse(base)?, client: Client::new(verify.timeout) })
    }

    fn ask(&mut self, ask: &Ask) -> Result<Side> {
        let prefix = self.base.target.split('?').next().unwrap_or_default().trim_end_matches('/');
        let url = Url { target: format!("{prefix}{}", ask.target), ..self.base.clone() };
        let question =
            Question { method: &ask.method, url: &url, headers: &self.verify.headers, body: b"" };
        let answer = self.client.ask(&question)?;
        Ok(side(answer, format!("{}:{}", self.base.host, self.base.port)))
    }
}

fn side(answer: Answer, site: String) -> Side {
    Side {
        is_text: answer.is_text(),
        status: answer.status,
        headers: answer.headers,
        body: answer.body,
        site,
    }
}
