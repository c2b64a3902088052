//! A server of restic's REST protocol, version 2 or 1: stores the files of one repository in memory, requires a
//! password, and injects failures.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::origin_server::{OriginRequest, OriginResponse, OriginServer, ResponseDelivery};

/// The `Authorization` header of the user `ann` with the password `secret`.
const AUTHORIZATION_HEADER: &str = "Basic YW5uOnNlY3JldA==";
const FILE_KINDS: [&str; 5] = ["data", "index", "keys", "locks", "snapshots"];

/// The behavior of a server.
#[derive(Debug, Clone, Copy, Default)]
pub struct RestRules {
    /// Lists contain only names, as in version 1.
    pub is_version_1: bool,
    /// Only the user `ann` with the password `secret` is accepted.
    pub requires_login: bool,
    /// Only locks can be removed.
    pub is_append_only: bool,
    /// A whole repository can be removed, which few servers allow.
    pub allows_repository_removal: bool,
    /// Every n-th request fails with 503, and the one after it has its response truncated after the work is done; 0 for
    /// never.
    pub failure_interval: u64,
}

/// A running server.
#[derive(Debug)]
pub struct RestServer {
    origin: OriginServer,
    files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    removal_count: Arc<AtomicU64>,
}

impl RestServer {
    /// Starts a server with an empty repository at any path.
    #[must_use]
    pub fn start(rules: RestRules) -> Self {
        let files: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
        let removals: Arc<AtomicU64> = Arc::default();
        let (shared_files, count, removed) = (files.clone(), AtomicU64::new(0), removals.clone());
        let origin = OriginServer::start(move |request| {
            let number = count.fetch_add(1, Ordering::SeqCst) + 1;
            if rules.requires_login && request.header("authorization") != Some(AUTHORIZATION_HEADER)
            {
                return OriginResponse::with_status(401);
            }
            if rules.failure_interval > 0 && number.is_multiple_of(rules.failure_interval) {
                return OriginResponse::with_status(503);
            }
            let mut files = shared_files.lock().unwrap_or_else(PoisonError::into_inner);
            let response = if is_repository_removal(request) {
                remove_repository(&mut files, (rules, &removed))
            } else {
                answer_request(request, &mut files, rules)
            };
            if rules.failure_interval > 0 && number % rules.failure_interval == 1 && number > 1 {
                return response.with_delivery(ResponseDelivery::CutAfter(0));
            }
            response
        });
        Self { origin, files, removal_count: removals }
    }

    /// Returns the address on which it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.origin.addr()
    }

    /// Returns the number of requests received.
    #[must_use]
    pub fn request_count(&self) -> usize {
        self.origin.request_count()
    }

    /// Returns the number of times that the whole repository was removed.
    #[must_use]
    pub fn removal_count(&self) -> u64 {
        self.removal_count.load(Ordering::SeqCst)
    }

    /// Returns the paths of all files.
    #[must_use]
    pub fn file_paths(&self) -> Vec<String> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }
}

/// Returns true if a request removes the repository: its path is not that of a file.
fn is_repository_removal(request: &OriginRequest) -> bool {
    request.method == "DELETE" && request.target.ends_with('/')
}

fn remove_repository(
    files: &mut BTreeMap<String, Vec<u8>>,
    (rules, removed): (RestRules, &AtomicU64),
) -> OriginResponse {
    if rules.is_append_only {
        return OriginResponse::with_status(403);
    }
    if !rules.allows_repository_removal {
        return OriginResponse::with_status(501);
    }
    files.clear();
    removed.fetch_add(1, Ordering::SeqCst);
    OriginResponse::with_status(200)
}

fn answer_request(
    request: &OriginRequest,
    files: &mut BTreeMap<String, Vec<u8>>,
    rules: RestRules,
) -> OriginResponse {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let is_list = path.ends_with('/');
    let parts: Vec<&str> = path.trim_matches('/').rsplitn(3, '/').collect();
    let name = match (parts.first(), parts.get(1)) {
        (Some(&"config"), _) => "config".to_owned(),
        (Some(kind), _) if is_list && FILE_KINDS.contains(kind) => format!("{kind}/"),
        (Some(name), Some(kind)) if FILE_KINDS.contains(kind) => format!("{kind}/{name}"),
        _ if request.method == "POST" && query == "create=true" => {
            return OriginResponse::with_status(200);
        }
        _ => return OriginResponse::with_status(404),
    };
    match (request.method.as_str(), files.get(&name)) {
        ("GET", _) if name.ends_with('/') => list_files(request, files, (&name, rules)),
        ("HEAD", Some(bytes)) => OriginResponse::with_status(200).with_body(bytes.clone()),
        ("GET", Some(bytes)) => read_range(request, bytes),
        ("HEAD" | "GET" | "DELETE", None) => OriginResponse::with_status(404),
        ("POST", Some(_)) => OriginResponse::with_status(403),
        ("POST", None) => {
            files.insert(name, request.body.clone());
            OriginResponse::with_status(200)
        }
        ("DELETE", Some(_)) if rules.is_append_only && !name.starts_with("locks/") => {
            OriginResponse::with_status(403)
        }
        ("DELETE", Some(_)) => {
            files.remove(&name);
            OriginResponse::with_status(200)
        }
        _ => OriginResponse::with_status(405),
    }
}

fn list_files(
    request: &OriginRequest,
    files: &BTreeMap<String, Vec<u8>>,
    (kind, rules): (&str, RestRules),
) -> OriginResponse {
    let of_kind = files.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(kind)?, bytes)));
    let version = "application/vnd.x.restic.rest.v2";
    if rules.is_version_1 || request.header("accept") != Some(version) {
        let names: Vec<String> = of_kind.map(|(name, _)| format!("\"{name}\"")).collect();
        let version = "application/vnd.x.restic.rest.v1";
        return OriginResponse::with_status(200)
            .with_header("Content-Type", version)
            .with_body(format!("[{}]", names.join(",")));
    }
    let entry = |(name, bytes): (&str, &Vec<u8>)| {
        format!("{{\"name\":\"{name}\",\"size\":{}}}", bytes.len())
    };
    let entries: Vec<String> = of_kind.map(entry).collect();
    OriginResponse::with_status(200)
        .with_header("Content-Type", version)
        .with_body(format!("[{}]", entries.join(",")))
}

fn read_range(request: &OriginRequest, bytes: &[u8]) -> OriginResponse {
    let range = request.header("range").and_then(|range| range.strip_prefix("bytes="));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return OriginResponse::with_status(200).with_body(bytes);
    };
    // A range without a last byte extends to the end, as restic requests for whole files.
    let last = if last.is_empty() { Ok(bytes.len()) } else { last.parse::<usize>() };
    let (Ok(first), Ok(last)) = (first.parse::<usize>(), last) else {
        return OriginResponse::with_status(400);
    };
    match bytes.get(first..last.saturating_add(1).min(bytes.len())) {
        Some(part) if !part.is_empty() => OriginResponse::with_status(206).with_body(part),
        _ => OriginResponse::with_status(416),
    }
}
