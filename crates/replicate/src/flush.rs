//! Flushing: a publisher tells its dispatchers and other caches which paths changed.
//!
//! Each change is a stored job for each agent, numbered by the publisher; what is sent follows from the agent's kind at the
//! time of sending:
//!
//! | kind | request for a page that changed |
//! |---|---|
//! | `flush` | `CQ-Action: Activate`, `CQ-Handle` |
//! | `flush_refetch` | the same with the page's URL as body |
//! | `precise` | the same with all affected URLs as body and `CQ-Action-Scope: ResourceOnly`; as `flush_refetch` where nobody knows them |
//! | `purge` | `PURGE` of each affected URL; of the page's where nobody knows them |
//! | `purge_keys` | one `PURGE` with `Surrogate-Key` and the path |

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, header};
use http_body_util::Full;
use serde_json::{Value as Json, json};
use tympan_content::{NodePath, Repository, Snapshot, Viewer};
use tympan_jobs::{Job, NewJob, Queues};
use tympan_web::client::Client;
use tympan_web::flush_message::{Action, FlushMessage, Scope};

use crate::affected::{Affected, OwnPages, Reach};
use crate::agent::{AgentKind, agents};
use crate::message::parse_chunk_id;
use crate::replicator::topic_of;
use crate::send::{answer_of, blocking};
use crate::{Agent, Error, Result};

/// The follower that turns what changed on a publisher into flushes.
const FOLLOWER: &str = "flush";
/// The most URLs of one change that are listed; one that reaches more is flushed as if nobody knew them. A dispatcher takes
/// a body of 1 MiB.
const MAX_URLS: usize = 5_000;
const MAX_URL_BYTES: usize = 512 * 1024;

/// Stores a flush for each document that changed since the last call and for each enabled dispatcher of this publisher;
/// returns how many. The root that was followed so far is stored with the flushes, so that none is lost or doubled,
/// whenever the process ends. The first call only notes where to begin.
///
/// # Errors
/// If content or the queues fail.
pub async fn follow(repository: &Repository, queues: &Queues, now: SystemTime) -> Result<usize> {
    let nobody: Arc<dyn Affected> = Arc::new(OwnPages);
    follow_with(repository, queues, &nobody, now).await
}

/// Does the same as [`follow`] with somebody who knows which URLs show what.
///
/// # Errors
/// If content or the queues fail, or the URLs cannot be found out.
pub async fn follow_with(
    repository: &Repository,
    queues: &Queues,
    affected: &Arc<dyn Affected>,
    now: SystemTime,
) -> Result<usize> {
    loop {
        let from = queues.digested(FOLLOWER).await?;
        let (reading, begin, asked) = (repository.clone(), from.clone(), Arc::clone(affected));
        let read = move || flushes_since(&reading, begin.as_deref(), &*asked);
        let (to, flushes) = blocking(read).await??;
        if from.as_deref() == Some(&*to) {
            return Ok(0);
        }
        let count = flushes.len();
        let jobs = flushes
            .into_iter()
            .map(|(topic, payload)| NewJob::new(topic, payload).user("replication"));
        if queues.digest(FOLLOWER, (from.as_deref(), &to), jobs.collect(), now).await? {
            return Ok(count);
        }
    }
}

/// Returns the newest root, and the topic and properties of each flush that leads there from an older one.
fn flushes_since(
    repository: &Repository,
    from: Option<&str>,
    affected: &dyn Affected,
) -> Result<(String, Vec<(String, Json)>)> {
    let now = repository.snapshot()?;
    let to = now.root_id().to_string();
    let Some(from) = from.filter(|from| *from != to) else { return Ok((to, Vec::new())) };
    let before = repository.snapshot_at(parse_chunk_id(from)?)?;
    let agents: Vec<Agent> = agents(&now, "publish")?
        .into_iter()
        .filter(|agent| agent.is_enabled && agent.kind != AgentKind::Publish)
        .collect();
    let changed: Vec<NodePath> = before.changed_paths(&now)?.into_iter().collect();
    if agents.is_empty() || changed.is_empty() {
        return Ok((to, Vec::new()));
    }
    let reach = affected.affected(&before, &now, &changed)?;
    let mut flushes = Vec::new();
    for agent in &agents {
        let taken = taken_by(agent, &changed, (repository, &before, &now))?;
        // Listed for each agent by itself: a path that one does not take must not hold a URL that it has to hear of.
        let mut lists = lists_of(&taken, reach.clone());
        for (at, path) in taken.iter().enumerate() {
            let node = now.node(path)?;
            let action = if node.is_some() { "Activate" } else { "Delete" };
            let is_page = node.is_some_and(|node| node.is_page());
            let mut payload = json!({ "action": action, "path": path.as_str(), "page": is_page });
            let list = lists.as_mut().and_then(|lists| lists.get_mut(at)).map(std::mem::take);
            if let (Some(list), Some(members)) = (list, payload.as_object_mut()) {
                members.insert("urls".to_owned(), list.into());
            }
            flushes.push((topic_of("publish", &agent.name), payload));
        }
    }
    Ok((to, flushes))
}

/// Returns the changed paths that an agent takes and its user sees.
fn taken_by(
    agent: &Agent,
    changed: &[NodePath],
    (repository, before, now): (&Repository, &Snapshot, &Snapshot),
) -> Result<Vec<NodePath>> {
    let viewer = agent.user.as_deref().map(|user| repository.viewer(Some(user))).transpose()?;
    let mut taken = Vec::new();
    for path in changed.iter().filter(|path| agent.takes(path)) {
        let seen = match &viewer {
            // What is gone can be read by nobody; before, it may have been.
            Some(viewer) => is_seen(now, viewer, path)? || is_seen(before, viewer, path)?,
            None => true,
        };
        if seen {
            taken.push(path.clone());
        }
    }
    Ok(taken)
}

fn is_seen(snapshot: &Snapshot, viewer: &Viewer, path: &NodePath) -> Result<bool> {
    Ok(snapshot.seen_by(viewer).node(path)?.is_some())
}

/// Gives each changed path the URLs that are its own, and the first also all others, so that each URL is listed once. A
/// dispatcher deletes the files of a handle that its list leaves out.
fn lists_of(changed: &[NodePath], reach: Reach) -> Option<Vec<Vec<String>>> {
    let Reach::Urls(mut urls) = reach else { return None };
    urls.sort_unstable();
    urls.dedup();
    let bytes: usize = urls.iter().map(|url| url.len() + 1).sum();
    if urls.len() > MAX_URLS || bytes > MAX_URL_BYTES {
        return None;
    }
    let places: HashMap<&str, usize> =
        changed.iter().enumerate().map(|(at, path)| (path.as_str(), at)).collect();
    let mut lists = vec![Vec::new(); changed.len()];
    for url in urls {
        let own = owners(&url).find_map(|path| places.get(path));
        if let Some(list) = lists.get_mut(own.copied().unwrap_or(0)) {
            list.push(url);
        }
    }
    Some(lists)
}

/// Returns the paths that a URL may be one of, the longest first: up to its end, or to a dot.
fn owners(url: &str) -> impl Iterator<Item = &str> {
    let dots = url.rmatch_indices('.').map(|(at, _)| at);
    std::iter::once(url.len()).chain(dots).filter_map(|end| url.get(..end))
}

/// Tells whether a URL is one of a path: the path, and a dot behind it.
fn is_own(url: &str, path: &str) -> bool {
    url.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// A change as a job tells it.
struct Change<'a> {
    action: Action,
    path: &'a str,
    is_page: bool,
    /// The URLs that it reaches; nothing where nobody knew.
    urls: Option<Vec<String>>,
}

impl<'a> Change<'a> {
    fn of(job: &'a Job) -> Self {
        let member = |name: &str| job.properties.get(name);
        let text = |name: &str| member(name).and_then(Json::as_str).unwrap_or_default();
        let (path, is_gone) = (text("path"), text("action") == "Delete");
        let urls = member("urls").and_then(Json::as_array).map(|urls| {
            let urls = urls.iter().filter_map(Json::as_str);
            // What is gone is not fetched again.
            let urls = urls.filter(|url| {
                !(is_gone && (is_own(url, path) || url.starts_with(&format!("{path}/"))))
            });
            urls.map(str::to_owned).collect()
        });
        Self {
            action: if is_gone { Action::Delete } else { Action::Activate },
            path,
            is_page: member("page").and_then(Json::as_bool).unwrap_or(false),
            urls,
        }
    }

    /// Returns the URL of the page itself, if it is one that can be fetched.
    fn own_page(&self) -> Vec<String> {
        if self.is_page && self.action == Action::Activate {
            vec![format!("{}.html", self.path)]
        } else {
            Vec::new()
        }
    }

    fn message(&self, kind: AgentKind, number: i64) -> FlushMessage {
        let (scope, refetch) = match (kind, &self.urls) {
            (AgentKind::FlushPrecise, Some(urls)) => (Some(Scope::ResourceOnly), urls.clone()),
            (AgentKind::FlushRefetch | AgentKind::FlushPrecise, _) => (None, self.own_page()),
            _ => (None, Vec::new()),
        };
        FlushMessage {
            action: self.action,
            handle: self.path.to_owned(),
            scope,
            refetch,
            sequence: u64::try_from(number).ok(),
        }
    }

    /// Returns the URLs that a cache without a notion of handles drops.
    fn purged(&self) -> Vec<String> {
        let mut all = self.urls.clone().unwrap_or_default();
        for own in [self.path.to_owned(), format!("{}.html", self.path)] {
            if !all.contains(&own) {
                all.push(own);
            }
        }
        all
    }
}

/// Sends one flush.
pub(crate) async fn send_flush(client: &Client, agent: &Agent, job: &Job) -> Result<()> {
    let change = Change::of(job);
    match agent.kind {
        AgentKind::Purge => {
            for url in change.purged() {
                let request = purge_request(agent, &change, Some(&url))?;
                purged(answer_of(client, &agent.target, request).await)?;
            }
            Ok(())
        }
        AgentKind::PurgeKeys => {
            let request = purge_request(agent, &change, None)?;
            purged(answer_of(client, &agent.target, request).await)
        }
        kind => {
            let request = flush_request(agent, &change.message(kind, job.id.0), &change)?;
            answer_of(client, &agent.target, request).await.map(|_| ())
        }
    }
}

/// Asks a cache whether it hears, without any effect.
pub(crate) async fn test_flush(client: &Client, agent: &Agent) -> Result<()> {
    let change = Change { action: Action::Test, path: "/", is_page: false, urls: None };
    let request = match agent.kind {
        // There is no purge that purges nothing; a path that nothing is at comes closest.
        AgentKind::Purge | AgentKind::PurgeKeys => {
            let nothing = Change { path: "/.tympan-connection-test", ..change };
            purge_request(
                agent,
                &nothing,
                (agent.kind == AgentKind::Purge).then_some(nothing.path),
            )?
        }
        kind => flush_request(agent, &change.message(kind, 0), &change)?,
    };
    match agent.kind {
        AgentKind::Purge | AgentKind::PurgeKeys => {
            purged(answer_of(client, &agent.target, request).await)
        }
        _ => answer_of(client, &agent.target, request).await.map(|_| ()),
    }
}

/// A cache that has nothing to drop may say so.
fn purged(answer: Result<Bytes>) -> Result<()> {
    match answer {
        Ok(_) | Err(Error::Refused { status: 404 | 410, .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn malformed(agent: &Agent, reason: &impl ToString) -> Error {
    Error::Agent { agent: agent.name.clone(), reason: reason.to_string() }
}

fn target_of(agent: &Agent) -> Result<(http::Uri, String)> {
    let wrong = || malformed(agent, &format!("`{}` is no URI", agent.target));
    let target: http::Uri = agent.target.parse().map_err(|_| wrong())?;
    let host = target.authority().ok_or_else(wrong)?.to_string();
    Ok((target, host))
}

fn flush_request(
    agent: &Agent,
    message: &FlushMessage,
    change: &Change<'_>,
) -> Result<Request<Full<Bytes>>> {
    let (target, host) = target_of(agent)?;
    let mut request = message.to_request(&host).map_err(|fault| malformed(agent, &fault))?;
    *request.uri_mut() = target;
    add_headers(agent, change, &mut request)?;
    Ok(request)
}

fn purge_request(
    agent: &Agent,
    change: &Change<'_>,
    url: Option<&str>,
) -> Result<Request<Full<Bytes>>> {
    let (target, host) = target_of(agent)?;
    let scheme = target.scheme_str().unwrap_or("http");
    let method = agent.method.as_deref().unwrap_or("PURGE");
    let method = Method::from_bytes(method.as_bytes()).map_err(|fault| malformed(agent, &fault))?;
    let uri = match url {
        Some(url) => format!("{scheme}://{host}{}", url_path(url)),
        None => agent.target.clone(),
    };
    let request = Request::builder().method(method).uri(uri).header(header::HOST, &host);
    let mut request = request.body(Full::default()).map_err(|fault| malformed(agent, &fault))?;
    if url.is_none() && !agent.headers.iter().any(|(_, value)| value.contains("{path}")) {
        let key = header_value(agent, change.path)?;
        request.headers_mut().insert(HeaderName::from_static("surrogate-key"), key);
    }
    add_headers(agent, change, &mut request)?;
    Ok(request)
}

/// Writes a path as a URL has it.
fn url_path(path: &str) -> String {
    use std::fmt::Write;
    let mut url = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_graphic()
            && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
        {
            url.push(char::from(byte));
        } else {
            // Writing to a text does not fail.
            write!(url, "%{byte:02X}").ok();
        }
    }
    url
}

fn add_headers(
    agent: &Agent,
    change: &Change<'_>,
    request: &mut Request<Full<Bytes>>,
) -> Result<()> {
    for (name, value) in &agent.headers {
        let name =
            HeaderName::from_bytes(name.as_bytes()).map_err(|fault| malformed(agent, &fault))?;
        let value =
            value.replace("{action}", change.action.as_str()).replace("{path}", change.path);
        let value = header_value(agent, &value)?;
        request.headers_mut().insert(name, value);
    }
    Ok(())
}

fn header_value(agent: &Agent, text: &str) -> Result<HeaderValue> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|fault| malformed(agent, &fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    #[test]
    fn each_url_is_listed_once_with_its_own_page() {
        let changed = [path("/content/a"), path("/content/a/b")];
        let urls =
            ["/content/a.html", "/content/z.html", "/content/a/b.print.html", "/content/a.html"];
        let reach = Reach::Urls(urls.iter().map(|url| (*url).to_owned()).collect());
        let lists = lists_of(&changed, reach).unwrap();
        assert_eq!(lists[0], ["/content/a.html", "/content/z.html"]);
        assert_eq!(lists[1], ["/content/a/b.print.html"]);
        assert_eq!(lists_of(&changed, Reach::Unknown), None);
        let many = (0..=MAX_URLS).map(|number| format!("/content/{number}.html"));
        assert_eq!(lists_of(&changed, Reach::Urls(many.collect())), None);
    }

    #[test]
    fn urls_belong_to_paths_up_to_a_dot() {
        let owned: Vec<&str> = owners("/content/a.b/c.html").collect();
        assert_eq!(owned, ["/content/a.b/c.html", "/content/a.b/c", "/content/a"]);
        for (url, expected) in [
            ("/content/en.html", true),
            ("/content/en", true),
            ("/content/en.print.html", true),
            ("/content/english.html", false),
            ("/content/en/a.html", false),
        ] {
            assert_eq!(is_own(url, "/content/en"), expected, "{url}");
        }
    }

    #[test]
    fn paths_are_written_as_urls() {
        assert_eq!(url_path("/a/b c.html"), "/a/b%20c.html");
        assert_eq!(url_path("/ä"), "/%C3%A4");
    }
}
