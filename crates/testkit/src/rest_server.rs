//! A server of restic's REST protocol, version 2 or 1: keeps the files of one repository in memory, wants a password, and
//! fails as it is told to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::origin::{Answer, Delivery, Origin, Seen};

/// The head that the user `ann` with the password `secret` sends.
const LOGIN: &str = "Basic YW5uOnNlY3JldA==";
const KINDS: [&str; 5] = ["data", "index", "keys", "locks", "snapshots"];

/// How a server behaves.
#[derive(Debug, Clone, Copy, Default)]
pub struct RestRules {
    /// Lists have names alone, as in version 1.
    pub is_old: bool,
    /// Whoever is not `ann` with the password `secret` is refused.
    pub wants_login: bool,
    /// Only locks are ever removed.
    pub is_append_only: bool,
    /// A repository can be removed whole, as few servers let it be.
    pub removes_repositories: bool,
    /// Each so-many-th request is answered with 503, and each so-many-th and one has its answer cut off after the work is
    /// done; 0 for never.
    pub fails_every: u64,
}

/// A running server.
#[derive(Debug)]
pub struct RestServer {
    origin: Origin,
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    removals: Arc<AtomicU64>,
}

impl RestServer {
    /// Starts one with an empty repository at any path.
    #[must_use]
    pub fn start(rules: RestRules) -> Self {
        let files: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
        let removals: Arc<AtomicU64> = Arc::default();
        let (kept, count, removed) = (files.clone(), AtomicU64::new(0), removals.clone());
        let origin = Origin::start(move |seen| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            if rules.wants_login && seen.header("authorization") != Some(LOGIN) {
                return Answer::status(401);
            }
            if rules.fails_every > 0 && number.is_multiple_of(rules.fails_every) {
                return Answer::status(503);
            }
            let mut files = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = if is_removal(seen) {
                remove_all(&mut files, (rules, &removed))
            } else {
                answer(seen, &mut files, rules)
            };
            if rules.fails_every > 0 && number % rules.fails_every == 1 && number > 1 {
                return answer.deliver(Delivery::CutAfter(0));
            }
            answer
        });
        Self { origin, files, removals }
    }

    /// Returns where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.origin.addr()
    }

    /// Returns how many requests it was sent.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.origin.requests()
    }

    /// Returns how often the repository was removed whole.
    #[must_use]
    pub fn removals(&self) -> u64 {
        self.removals.load(Ordering::SeqCst)
    }

    /// Returns the paths of all files.
    #[must_use]
    pub fn files(&self) -> Vec<String> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

/// Tells whether a repository is to be removed: its path is that of none of its files.
fn is_removal(seen: &Seen) -> bool {
    seen.method == "DELETE" && seen.target.ends_with('/')
}

fn remove_all(
    files: &mut BTreeMap<String, Vec<u8>>,
    (rules, removed): (RestRules, &AtomicU64),
) -> Answer {
    if rules.is_append_only {
        return Answer::status(403);
    }
    if !rules.removes_repositories {
        return Answer::status(501);
    }
    files.clear();
    removed.fetch_add(1, Ordering::SeqCst);
    Answer::status(200)
}

fn answer(seen: &Seen, files: &mut BTreeMap<String, Vec<u8>>, rules: RestRules) -> Answer {
    let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
    let is_list = path.ends_with('/');
    let parts: Vec<&str> = path.trim_matches('/').rsplitn(3, '/').collect();
    let name = match (parts.first(), parts.get(1)) {
        (Some(&"config"), _) => "config".to_owned(),
        (Some(kind), _) if is_list && KINDS.contains(kind) => format!("{kind}/"),
        (Some(name), Some(kind)) if KINDS.contains(kind) => format!("{kind}/{name}"),
        _ if seen.method == "POST" && query == "create=true" => return Answer::status(200),
        _ => return Answer::status(404),
    };
    match (seen.method.as_str(), files.get(&name)) {
        ("GET", _) if name.ends_with('/') => list(seen, files, (&name, rules)),
        ("HEAD", Some(bytes)) => Answer::status(200).body(bytes.clone()),
        ("GET", Some(bytes)) => read(seen, bytes),
        ("HEAD" | "GET" | "DELETE", None) => Answer::status(404),
        ("POST", Some(_)) => Answer::status(403),
        ("POST", None) => {
            files.insert(name, seen.body.clone());
            Answer::status(200)
        }
        ("DELETE", Some(_)) if rules.is_append_only && !name.starts_with("locks/") => {
            Answer::status(403)
        }
        ("DELETE", Some(_)) => {
            files.remove(&name);
            Answer::status(200)
        }
        _ => Answer::status(405),
    }
}

fn list(
    seen: &Seen,
    files: &BTreeMap<String, Vec<u8>>,
    (kind, rules): (&str, RestRules),
) -> Answer {
    let of_kind = files.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(kind)?, bytes)));
    let version = "application/vnd.x.restic.rest.v2";
    if rules.is_old || seen.header("accept") != Some(version) {
        let names: Vec<String> = of_kind.map(|(name, _)| format!("\"{name}\"")).collect();
        let version = "application/vnd.x.restic.rest.v1";
        return Answer::status(200)
            .header("Content-Type", version)
            .body(format!("[{}]", names.join(",")));
    }
    let entry = |(name, bytes): (&str, &Vec<u8>)| {
        format!("{{\"name\":\"{name}\",\"size\":{}}}", bytes.len())
    };
    let entries: Vec<String> = of_kind.map(entry).collect();
    Answer::status(200).header("Content-Type", version).body(format!("[{}]", entries.join(",")))
}

fn read(seen: &Seen, bytes: &[u8]) -> Answer {
    let range = seen.header("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return Answer::status(200).body(bytes);
    };
    // Without a last byte up to the end, as restic asks for whole files.
    let last = if last.is_empty() { Ok(bytes.len()) } else { last.parse::<usize>() };
    let (Ok(first), Ok(last)) = (first.parse::<usize>(), last) else {
        return Answer::status(400);
    };
    match bytes.get(first..last.saturating_add(1).min(bytes.len())) {
        Some(part) if !part.is_empty() => Answer::status(206).body(part),
        _ => Answer::status(416),
    }
}
