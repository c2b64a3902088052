//! Flushing: a publisher notifies its dispatchers and other caches of changed paths.
//!
//! Each change is a stored job for each agent (`flush_follower` stores them), numbered by the publisher. The agent's
//! kind at the time of sending determines the request:
//!
//! | kind | request for a page that changed |
//! |---|---|
//! | `flush` | `CQ-Action: Activate`, `CQ-Handle` |
//! | `flush_refetch` | the same with the page's URL as body |
//! | `flush_precise` | the affected URLs as body and `CQ-Action-Scope: ResourceOnly`; nothing if there are none; `Delete` of a folder below which nobody knows them |
//! | `purge` | `PURGE` of each affected URL; of the page's where nobody knows them |
//! | `purge_template` | the request that the agent's template yields, for batches of the same keys or URLs |
//! | `purge_keys` | `PURGE` with `Surrogate-Key`: the path and the affected URLs; [`PURGE_ALL_KEY`] where nobody knows them all |
//!
//! If dependencies are not tracked at all ([`AffectedUrlSet::Unknown`](crate::AffectedUrlSet::Unknown)), `flush_precise` sends the same as
//! `flush_refetch`.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;
use serde_json::Value as Json;
use tympan_jobs::Job;
use tympan_web::client::HttpClient;
use tympan_web::flush_message::{FlushAction, FlushMessage, FlushScope};

use crate::agent::ReplicationAgentKind;
use crate::delivery::http_request::send_request;
use crate::flushing::flush_number::FlushNumberAllocator;
use crate::flushing::purge_template::{
    PURGE_ALL_KEY, batch_size, batches, build_template_request, surrogate_key_of, takes_urls,
};
use crate::flushing::url_path::{decode_url_path, encode_url_path, is_url_of_path};
use crate::home_pair::{HomePairs, PairKeyPurpose};
use crate::{Error, ReplicationAgent, Result};

/// The maximum length of the keys in one request. More keys are split into several requests, because caches and proxies
/// reject long headers.
const MAX_PURGE_KEY_BYTES: usize = 4 * 1024;
/// The maximum number of attempts for one purge before the whole list counts as failed, and the pause after the first
/// failure.
const MAX_PURGE_ATTEMPTS: u32 = 3;
const FIRST_PURGE_RETRY_DELAY: Duration = Duration::from_millis(50);

/// The subject of a flush job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FlushSubject {
    /// A path that changed.
    ChangedPath,
    /// Further URLs affected by the change of a path.
    MoreUrls,
    /// A folder below which dependencies are unknown.
    UntrackedFolder,
}

/// A change, as stored in a job.
struct FlushJobChange<'a> {
    action: FlushAction,
    path: &'a str,
    subject: FlushSubject,
    is_page: bool,
    /// The affected URLs, including those of removed paths; `None` if they were unknown.
    urls: Option<Vec<String>>,
}

impl<'a> FlushJobChange<'a> {
    fn from_job(job: &'a Job) -> Self {
        let member = |name: &str| job.properties.get(name);
        let text = |name: &str| member(name).and_then(Json::as_str).unwrap_or_default();
        let (path, is_gone) = (text("path"), text("action") == "Delete");
        let urls = member("urls")
            .and_then(Json::as_array)
            .map(|urls| urls.iter().filter_map(Json::as_str).map(str::to_owned).collect());
        Self {
            action: if is_gone { FlushAction::Delete } else { FlushAction::Activate },
            path,
            subject: match text("part") {
                "more" => FlushSubject::MoreUrls,
                "folder" => FlushSubject::UntrackedFolder,
                _ => FlushSubject::ChangedPath,
            },
            is_page: member("page").and_then(Json::as_bool).unwrap_or(false),
            urls,
        }
    }

    /// Returns the URLs that can be re-fetched; `None` if they were unknown. A removed path has none: its files are
    /// deleted with the handle.
    fn refetch_urls(&self) -> Option<Vec<String>> {
        let folder = format!("{}/", self.path);
        let is_left = |url: &&String| {
            let is_gone =
                || is_url_of_path(url, self.path) || decode_url_path(url).starts_with(&folder);
            self.action != FlushAction::Delete || !is_gone()
        };
        Some(self.urls.as_ref()?.iter().filter(is_left).cloned().collect())
    }

    /// Returns the URL of the changed page itself, if it can be fetched.
    fn own_page_url(&self) -> Vec<String> {
        if self.is_page && self.action == FlushAction::Activate {
            vec![format!("{}.html", encode_url_path(self.path))]
        } else {
            Vec::new()
        }
    }

    /// Returns the flush for a dispatcher; `None` if it has nothing to do.
    fn flush_message(&self, kind: ReplicationAgentKind, number: i64) -> Option<FlushMessage> {
        let message = |action, handle: &str, scope, refetch| FlushMessage {
            action,
            handle: handle.to_owned(),
            scope,
            refetch,
            sequence: u64::try_from(number).ok(),
            numbering: None,
        };
        match (kind, self.subject, self.refetch_urls()) {
            (ReplicationAgentKind::FlushPrecise, FlushSubject::UntrackedFolder, _) => {
                Some(message(FlushAction::Delete, self.path, None, Vec::new()))
            }
            (ReplicationAgentKind::FlushPrecise, part, Some(urls)) => {
                let only = Some(FlushScope::ResourceOnly);
                if part == FlushSubject::ChangedPath && self.action == FlushAction::Delete {
                    return Some(message(self.action, self.path, only, urls));
                }
                // A dispatcher deletes the files of the handle that are not listed. If the path's own page is
                // unaffected, the handle is an affected URL instead.
                let is_own = part == FlushSubject::ChangedPath
                    && urls.iter().any(|url| is_url_of_path(url, self.path));
                let handle = if is_own { self.path } else { urls.first()? }.to_owned();
                Some(message(FlushAction::Activate, &handle, only, urls))
            }
            // Kinds based on `.stat` files do not need resolved URLs.
            (_, FlushSubject::MoreUrls | FlushSubject::UntrackedFolder, _) => None,
            (
                ReplicationAgentKind::FlushRefetch | ReplicationAgentKind::FlushPrecise,
                FlushSubject::ChangedPath,
                _,
            ) => Some(message(self.action, self.path, None, self.own_page_url())),
            (_, FlushSubject::ChangedPath, _) => {
                Some(message(self.action, self.path, None, Vec::new()))
            }
        }
    }

    /// Returns the URLs that a cache without handles must drop, including those of removed paths.
    fn purge_urls(&self) -> Vec<String> {
        let mut all = self.urls.clone().unwrap_or_default();
        if self.subject == FlushSubject::ChangedPath {
            for own in [self.path.to_owned(), format!("{}.html", self.path)] {
                if !all.contains(&own) {
                    all.push(own);
                }
            }
        }
        all
    }

    /// Returns the keys that a cache must drop, encoded for a header.
    fn purge_keys(&self) -> Vec<String> {
        let mut headers: Vec<String> = Vec::new();
        for key in self.keys() {
            match headers.last_mut() {
                Some(header) if header.len() + key.len() < MAX_PURGE_KEY_BYTES => {
                    header.push(' ');
                    header.push_str(&key);
                }
                _ => headers.push(key),
            }
        }
        headers
    }

    /// Returns the keys that a cache must drop.
    fn keys(&self) -> Vec<String> {
        // Responses carry the path in its URL encoding.
        let own = match self.subject {
            FlushSubject::ChangedPath => Some(encode_url_path(self.path)),
            FlushSubject::MoreUrls => None,
            FlushSubject::UntrackedFolder => Some(PURGE_ALL_KEY.to_owned()),
        };
        let urls = self.urls.iter().flatten().map(String::as_str);
        own.as_deref().into_iter().chain(urls).map(surrogate_key_of).collect()
    }

    /// Returns the keys or URLs for the template of an agent. An unknown part of the cache is everything.
    fn template_items(&self, agent: &ReplicationAgent) -> Vec<String> {
        match self.subject {
            FlushSubject::UntrackedFolder => vec![PURGE_ALL_KEY.to_owned()],
            _ if takes_urls(agent) => self.purge_urls(),
            _ => self.keys(),
        }
    }
}

/// Returns the agent with the key of its pair, if the home has a pair for flushing through it.
fn with_pair_key(agent: &ReplicationAgent, pairs: &HomePairs) -> Result<ReplicationAgent> {
    let mut agent = agent.clone();
    let key = pairs.key_for(&agent.name, PairKeyPurpose::Flush);
    if let Some(key) = key.map_err(|fault| malformed_agent_error(&agent, &fault))? {
        // The key of the pair replaces a manually configured one.
        agent.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        agent.headers.push(("Authorization".to_owned(), format!("Bearer {key}")));
    }
    Ok(agent)
}

/// Sends one flush.
pub(crate) async fn send_flush(
    (client, pairs): (&HttpClient, &HomePairs),
    numbers: &FlushNumberAllocator,
    agent: &ReplicationAgent,
    job: &Job,
) -> Result<()> {
    let agent = &with_pair_key(agent, pairs)?;
    let change = FlushJobChange::from_job(job);
    match agent.kind {
        ReplicationAgentKind::Purge => {
            if change.subject == FlushSubject::UntrackedFolder {
                tracing::warn!(
                    agent = agent.name,
                    path = change.path,
                    "stale URLs below this path are unknown, and `PURGE` takes one URL at a time; empty the \
                     cache"
                );
            }
            for url in change.purge_urls() {
                send_purge(client, agent, &change, &PurgeTarget::Url(&url)).await?;
            }
            Ok(())
        }
        ReplicationAgentKind::PurgeKeys => {
            // If the agent's headers contain only the path, no other keys are sent.
            let knows_path_only = agent.headers.iter().any(|(_, value)| value.contains("{path}"))
                && !agent.headers.iter().any(|(_, value)| value.contains("{keys}"));
            let keys = change.purge_keys();
            for keys in keys.iter().take(if knows_path_only { 1 } else { keys.len() }) {
                send_purge(client, agent, &change, &PurgeTarget::Keys(keys)).await?;
            }
            Ok(())
        }
        ReplicationAgentKind::PurgeTemplate => send_template(client, agent, &change).await,
        kind => {
            let Some(mut message) = change.flush_message(kind, job.id.0) else { return Ok(()) };
            message.numbering = Some(numbers.number_for(&agent.name, job.id));
            let request = build_flush_request(agent, &message, &change)?;
            send_request(client, &agent.target, request).await.map(|_| ())
        }
    }
}

/// Sends the requests that an agent's template yields for a change.
async fn send_template(
    client: &HttpClient,
    agent: &ReplicationAgent,
    change: &FlushJobChange<'_>,
) -> Result<()> {
    let items = change.template_items(agent);
    let of_change = (change.action.as_str(), change.path);
    for batch in batches(&items, batch_size(agent), of_change) {
        if batch.is_all && takes_urls(agent) && agent.template.all_body.is_none() {
            tracing::warn!(
                agent = agent.name,
                path = change.path,
                "stale URLs below this path are unknown, and the template takes URLs; set `requestBodyForAll`, or \
                 empty the cache"
            );
            continue;
        }
        let build = || {
            build_template_request(agent, &batch)
                .map_err(|reason| malformed_agent_error(agent, &reason))
        };
        send_with_retries(client, agent, build).await?;
        // The job ends after the pause, so that the next one keeps the rate, too.
        tokio::time::sleep(agent.template.pause()).await;
    }
    Ok(())
}

/// Sends one purge, with retries. If it fails finally, the job starts again with its first purge.
async fn send_purge(
    client: &HttpClient,
    agent: &ReplicationAgent,
    change: &FlushJobChange<'_>,
    purge_target: &PurgeTarget<'_>,
) -> Result<()> {
    let build = || build_purge_request(agent, change, purge_target);
    send_with_retries(client, agent, build).await
}

async fn send_with_retries(
    client: &HttpClient,
    agent: &ReplicationAgent,
    build: impl Fn() -> Result<Request<Full<Bytes>>>,
) -> Result<()> {
    let mut sent = 0;
    loop {
        let request = build()?;
        let result = accept_missing(send_request(client, &agent.target, request).await);
        sent += 1;
        match result {
            Err(error) if error.is_transient() && sent < MAX_PURGE_ATTEMPTS => {}
            result => return result,
        }
        tokio::time::sleep((FIRST_PURGE_RETRY_DELAY * sent).max(agent.template.pause())).await;
    }
}

/// Checks the connection to a cache, without side effects.
pub(crate) async fn test_flush(
    client: &HttpClient,
    pairs: &HomePairs,
    agent: &ReplicationAgent,
) -> Result<()> {
    let agent = &with_pair_key(agent, pairs)?;
    // No purge request is without effect; one for a path that does not exist comes closest.
    let nothing = "/.tympan-connection-test";
    let path = match agent.kind {
        ReplicationAgentKind::Purge
        | ReplicationAgentKind::PurgeKeys
        | ReplicationAgentKind::PurgeTemplate => nothing,
        _ => "/",
    };
    let change = FlushJobChange {
        action: FlushAction::Test,
        path,
        subject: FlushSubject::ChangedPath,
        is_page: false,
        urls: None,
    };
    match agent.kind {
        ReplicationAgentKind::Purge | ReplicationAgentKind::PurgeKeys => {
            let purge_target = match agent.kind {
                ReplicationAgentKind::Purge => PurgeTarget::Url(nothing),
                _ => PurgeTarget::Keys(nothing),
            };
            let request = build_purge_request(agent, &change, &purge_target)?;
            accept_missing(send_request(client, &agent.target, request).await)
        }
        ReplicationAgentKind::PurgeTemplate => send_template(client, agent, &change).await,
        kind => {
            let Some(message) = change.flush_message(kind, 0) else { return Ok(()) };
            let request = build_flush_request(agent, &message, &change)?;
            send_request(client, &agent.target, request).await.map(|_| ())
        }
    }
}

/// A cache may respond with an error status if it has nothing to drop.
fn accept_missing(response: Result<Bytes>) -> Result<()> {
    match response {
        Ok(_) | Err(Error::Refused { status: 404 | 410, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn malformed_agent_error(agent: &ReplicationAgent, reason: &impl ToString) -> Error {
    Error::InvalidAgent { agent: agent.name.clone(), reason: reason.to_string() }
}

fn parse_target(agent: &ReplicationAgent) -> Result<(http::Uri, String)> {
    let wrong = || malformed_agent_error(agent, &format!("`{}` is not a URI", agent.target));
    let target: http::Uri = agent.target.parse().map_err(|_| wrong())?;
    let host = target.authority().ok_or_else(wrong)?.to_string();
    Ok((target, host))
}

fn build_flush_request(
    agent: &ReplicationAgent,
    message: &FlushMessage,
    change: &FlushJobChange<'_>,
) -> Result<Request<Full<Bytes>>> {
    let (target, host) = parse_target(agent)?;
    let mut request =
        message.to_request(&host).map_err(|fault| malformed_agent_error(agent, &fault))?;
    *request.uri_mut() = target;
    add_agent_headers(agent, change, "", &mut request)?;
    Ok(request)
}

/// The target of a purge.
enum PurgeTarget<'a> {
    Url(&'a str),
    /// Keys, separated by spaces.
    Keys(&'a str),
}

fn build_purge_request(
    agent: &ReplicationAgent,
    change: &FlushJobChange<'_>,
    purge_target: &PurgeTarget<'_>,
) -> Result<Request<Full<Bytes>>> {
    let (target, host) = parse_target(agent)?;
    let scheme = target.scheme_str().unwrap_or("http");
    let method = agent.method.as_deref().unwrap_or("PURGE");
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|fault| malformed_agent_error(agent, &fault))?;
    let uri = match purge_target {
        PurgeTarget::Url(url) => format!("{scheme}://{host}{}", encode_url_path(url)),
        PurgeTarget::Keys(_) => agent.target.clone(),
    };
    let request = Request::builder().method(method).uri(uri).header(header::HOST, &host);
    let mut request =
        request.body(Full::default()).map_err(|fault| malformed_agent_error(agent, &fault))?;
    let PurgeTarget::Keys(keys) = purge_target else {
        add_agent_headers(agent, change, "", &mut request)?;
        return Ok(request);
    };
    let has_own = |(_, value): &(_, String)| value.contains("{path}") || value.contains("{keys}");
    if !agent.headers.iter().any(has_own) {
        let keys = parse_header_value(agent, keys)?;
        request.headers_mut().insert(HeaderName::from_static("surrogate-key"), keys);
    }
    add_agent_headers(agent, change, keys, &mut request)?;
    Ok(request)
}

fn add_agent_headers(
    agent: &ReplicationAgent,
    change: &FlushJobChange<'_>,
    keys: &str,
    request: &mut Request<Full<Bytes>>,
) -> Result<()> {
    for (name, value) in &agent.headers {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|fault| malformed_agent_error(agent, &fault))?;
        let value = value
            .replace("{action}", change.action.as_str())
            .replace("{keys}", keys)
            .replace("{path}", change.path);
        let value = parse_header_value(agent, &value)?;
        request.headers_mut().insert(name, value);
    }
    Ok(())
}

fn parse_header_value(agent: &ReplicationAgent, text: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|fault| malformed_agent_error(agent, &fault))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PurgeTemplate;

    #[test]
    fn an_agent_with_a_pair_for_flushing_shows_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let pairs = HomePairs::in_dir(folder.path().to_owned());
        let agent = ReplicationAgent {
            name: "cache".to_owned(),
            title: String::new(),
            kind: ReplicationAgentKind::FlushPrecise,
            target: "http://127.0.0.1:1/".to_owned(),
            is_enabled: true,
            paths: Vec::new(),
            user: None,
            headers: vec![("authorization".to_owned(), "Bearer of the agent".to_owned())],
            method: None,
            template: PurgeTemplate::default(),
            config_error: None,
        };
        let authorization = || {
            let agent = with_pair_key(&agent, &pairs).unwrap();
            let (action, urls) = (FlushAction::Activate, Some(vec!["/a.html".to_owned()]));
            let change = FlushJobChange {
                action,
                path: "/a",
                subject: FlushSubject::ChangedPath,
                is_page: true,
                urls,
            };
            let message = change.flush_message(agent.kind, 1).unwrap();
            let request = build_flush_request(&agent, &message, &change).unwrap();
            let header_values: Vec<_> =
                request.headers().get_all(header::AUTHORIZATION).iter().collect();
            assert_eq!(header_values.len(), 1);
            header_values[0].to_str().unwrap().to_owned()
        };
        assert_eq!(authorization(), "Bearer of the agent");
        let mut pair = crate::HomePair {
            name: "cache".to_owned(),
            purposes: [PairKeyPurpose::Send].into(),
            key: "the key of this pair".to_owned(),
        };
        pairs.store(&pair).unwrap();
        assert_eq!(authorization(), "Bearer of the agent", "that key is for something else");
        pair.purposes = [PairKeyPurpose::Flush].into();
        pairs.store(&pair).unwrap();
        assert_eq!(authorization(), "Bearer the key of this pair");
    }

    /// Formats the requests of an agent of one kind for a change of `/content/a`, in one line.
    fn sent(
        kind: ReplicationAgentKind,
        action: FlushAction,
        part: FlushSubject,
        urls: Option<&[&str]>,
    ) -> String {
        let urls = urls.map(|urls| urls.iter().map(|url| (*url).to_owned()).collect());
        let change =
            FlushJobChange { action, path: "/content/a", subject: part, is_page: true, urls };
        change.flush_message(kind, 1).map_or_else(String::new, |message| {
            let FlushMessage { action, handle, scope, refetch, .. } = message;
            let scope = if scope.is_some() { " only" } else { "" };
            format!("{} {handle}{scope} {}", action.as_str(), refetch.join(" "))
        })
    }

    #[test]
    fn a_precise_flush_touches_what_shows_the_change_and_nothing_else() {
        let (own, other) = ("/content/a.html", "/content/z.html");
        let precise = |action, part, urls: Option<&[&str]>| {
            sent(ReplicationAgentKind::FlushPrecise, action, part, urls)
        };
        for (action, part, urls, expected) in [
            (FlushAction::Activate, FlushSubject::ChangedPath, Some(&[][..]), ""),
            (
                FlushAction::Activate,
                FlushSubject::ChangedPath,
                Some(&[own, other]),
                "Activate /content/a only /content/a.html /content/z.html",
            ),
            (
                FlushAction::Activate,
                FlushSubject::ChangedPath,
                Some(&[other]),
                "Activate /content/z.html only /content/z.html",
            ),
            (
                FlushAction::Activate,
                FlushSubject::MoreUrls,
                Some(&[own]),
                "Activate /content/a.html only /content/a.html",
            ),
            (
                FlushAction::Activate,
                FlushSubject::ChangedPath,
                None,
                "Activate /content/a /content/a.html",
            ),
            (
                FlushAction::Delete,
                FlushSubject::ChangedPath,
                Some(&[other]),
                "Delete /content/a only /content/z.html",
            ),
            (FlushAction::Delete, FlushSubject::ChangedPath, Some(&[]), "Delete /content/a only "),
            // Removed paths are deleted with the handle and not re-fetched.
            (
                FlushAction::Delete,
                FlushSubject::ChangedPath,
                Some(&[own, "/content/%61.print.html", "/content/a/jcr:content/b.png", other]),
                "Delete /content/a only /content/z.html",
            ),
            (FlushAction::Delete, FlushSubject::MoreUrls, Some(&[own]), ""),
            (FlushAction::Delete, FlushSubject::UntrackedFolder, None, "Delete /content/a "),
        ] {
            assert_eq!(precise(action, part, urls), expected);
        }
        for kind in [ReplicationAgentKind::Flush, ReplicationAgentKind::FlushRefetch] {
            assert_eq!(sent(kind, FlushAction::Activate, FlushSubject::MoreUrls, Some(&[own])), "");
            assert_eq!(sent(kind, FlushAction::Delete, FlushSubject::UntrackedFolder, None), "");
        }
        let refetch = sent(
            ReplicationAgentKind::FlushRefetch,
            FlushAction::Activate,
            FlushSubject::ChangedPath,
            Some(&[]),
        );
        assert_eq!(refetch, "Activate /content/a /content/a.html");
    }

    #[test]
    fn keys_fit_into_headers() {
        let urls: Vec<String> = (0..500).map(|number| format!("/content/{number}.html")).collect();
        let mut change = FlushJobChange {
            action: FlushAction::Activate,
            path: "/content/a",
            subject: FlushSubject::ChangedPath,
            is_page: true,
            urls: Some(urls.clone()),
        };
        let headers = change.purge_keys();
        assert!(headers.len() > 1 && headers.iter().all(|one| one.len() <= MAX_PURGE_KEY_BYTES));
        let all: Vec<&str> = headers.iter().flat_map(|header| header.split(' ')).collect();
        assert_eq!(all[0], "/content/a");
        assert_eq!(all[1..], urls);
        change.subject = FlushSubject::UntrackedFolder;
        change.urls = None;
        assert_eq!(change.purge_keys(), [PURGE_ALL_KEY]);
        // The key is encoded as in responses, because a space would split it into two keys.
        (change.subject, change.path) = (FlushSubject::ChangedPath, "/content/ä b");
        assert_eq!(change.purge_keys(), ["/content/%C3%A4%20b"]);
        assert_eq!(change.own_page_url(), ["/content/%C3%A4%20b.html"]);
    }

    #[test]
    fn all_urls_of_a_page_that_is_gone_are_purged() {
        let urls = ["/content/a.print.html", "/content/a/jcr:content/b.png", "/content/z.html"];
        let change = FlushJobChange {
            action: FlushAction::Delete,
            path: "/content/a",
            subject: FlushSubject::ChangedPath,
            is_page: false,
            urls: Some(urls.map(str::to_owned).to_vec()),
        };
        assert_eq!(change.purge_urls()[..3], urls);
        assert_eq!(change.purge_urls()[3..], ["/content/a", "/content/a.html"]);
        assert_eq!(change.purge_keys(), [format!("/content/a {}", urls.join(" "))]);
    }
}
