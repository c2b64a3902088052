//! Follows content, and stores a flush for each change and agent (`flush` sends them).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use serde_json::{Value as Json, json};
use tokio::sync::watch;
use tracing::{info, warn};
use tympan_content::{ChunkId, NodePath, Repository, Snapshot, Viewer};
use tympan_jobs::{FollowerLoop, NewJob};
use tympan_notation::error_chain_text;

use super::{IDLE_POLL_INTERVAL, Replicator, root_poll_interval};
use crate::agent::{ReplicationAgentKind, agent_topic, read_agents};
use crate::blocking::run_blocking;
use crate::delivery::message::parse_chunk_id;
use crate::flushing::affected_url::{AffectedUrlResolver, AffectedUrlSet};
use crate::flushing::url_path::{decode_url_path, node_path_candidates, owner_path_candidates};
use crate::{ReplicationAgent, Result};

/// The name of the shared follower that turned changes on a publisher into flushes before each publisher had its own.
const SHARED_FLUSH_FOLLOWER: &str = "flush";
/// The maximum number of URLs in one flush; a change that affects more is split into several flushes. A dispatcher
/// accepts a body of 1 MiB.
const MAX_FLUSH_URLS: usize = 5_000;
const MAX_FLUSH_URL_BYTES: usize = 512 * 1024;

/// Returns the name under which the follower position of a publisher is stored.
fn flush_follower_name(publisher: &str) -> String {
    format!("{SHARED_FLUSH_FOLLOWER}/{publisher}")
}

impl Replicator {
    /// Stores a flush for each document that changed since this publisher's last call and for each enabled cache agent;
    /// returns the number of flushes. The publisher's position is stored together with the flushes, so that none is
    /// lost or duplicated, whenever the process ends. The very first call only stores the start position.
    ///
    /// # Errors
    /// If content or the queues fail, or the URLs cannot be resolved.
    pub async fn store_flushes(&self, now: SystemTime) -> Result<usize> {
        let url_resolver = Arc::clone(&self.state.url_resolver.lock());
        let followers = self.queues().followers();
        let follower = flush_follower_name(&self.state.flush_numbers.publisher());
        // Other processes may consider a long silent publisher gone and delete its stored position. The position of
        // this process remains.
        let mut last_root = self.state.last_flushed_root.lock().await;
        loop {
            let stored_root = followers.root_of(&follower).await?;
            let from = stored_root.clone().or(last_root.map(|root| root.to_string()));
            let (repository, resolver) = (self.repository().clone(), Arc::clone(&url_resolver));
            let compute = move || compute_flushes_since(&repository, from.as_deref(), &*resolver);
            let (root, flushes) = run_blocking(compute).await??;
            let (to, count) = (root.to_string(), flushes.len());
            let is_stored = stored_root.as_deref() == Some(&*to) && flushes.is_empty();
            let jobs = flushes
                .into_iter()
                .map(|(topic, payload)| NewJob::new(topic, payload).with_user("replication"));
            let roots = (stored_root.as_deref(), &*to);
            if !is_stored && !followers.advance(&follower, roots, jobs.collect(), now).await? {
                continue;
            }
            *last_root = Some(root);
            let gone_publishers = run_blocking(move || {
                url_resolver.mark_flushes_stored(root);
                url_resolver.take_gone_publishers()
            });
            for publisher in gone_publishers.await? {
                followers.remove(&flush_follower_name(&publisher)).await?;
            }
            drop(last_root);
            self.wake_agent_workers();
            return Ok(count);
        }
    }

    /// Lets each publisher on the database continue from the shared follower position, if there is one.
    ///
    /// # Errors
    /// If the queues fail.
    pub async fn split_shared_follower(&self, publishers: &[String]) -> Result<()> {
        let names: Vec<String> = publishers.iter().map(|name| flush_follower_name(name)).collect();
        if self.state.queues.followers().split(SHARED_FLUSH_FOLLOWER, &names).await? {
            info!(publishers = publishers.len(), "each publisher now keeps its own position");
        }
        Ok(())
    }

    /// Follows content until `stop` becomes true, so that changes by other processes and by means other than
    /// replication are also flushed.
    pub async fn run_flush_loop(self, stop: watch::Receiver<bool>) {
        let poll_interval = root_poll_interval(self.repository());
        let mut follower_loop = FollowerLoop::new("flushes", stop, IDLE_POLL_INTERVAL);
        let mut last_attempt: Option<Instant> = None;
        while !follower_loop.is_stopped() {
            // Pending URLs stay pending while there is no agent to flush.
            let is_recent =
                last_attempt.is_some_and(|attempt| attempt.elapsed() < IDLE_POLL_INTERVAL);
            let has_pending_urls = !is_recent && self.state.url_resolver.lock().has_pending_urls();
            if has_pending_urls {
                last_attempt = Some(Instant::now());
            }
            let result =
                self.store_flushes_if_needed(has_pending_urls).await.map(|()| poll_interval);
            follower_loop.finish_round(result.map_err(|error| error_chain_text(&error))).await;
        }
    }

    /// Stores flushes if content changed or URLs are pending.
    async fn store_flushes_if_needed(&self, has_pending_urls: bool) -> Result<()> {
        let repository = self.repository().clone();
        let head = match repository.chunks().has_costly_round_trips() {
            true => run_blocking(move || repository.head_root()).await??,
            false => repository.head_root()?,
        };
        let is_new = *self.state.last_flushed_root.lock().await != Some(head);
        if is_new || has_pending_urls {
            self.store_flushes(SystemTime::now()).await?;
        }
        Ok(())
    }
}

/// Returns the newest root, and the topic and properties of each flush for the changes since an older one. Even if both
/// roots are equal, there may be flushes for responses rendered while content was in another state.
fn compute_flushes_since(
    repository: &Repository,
    from: Option<&str>,
    url_resolver: &dyn AffectedUrlResolver,
) -> Result<(ChunkId, Vec<(String, Json)>)> {
    let after = repository.snapshot()?;
    let to = after.root_id();
    let Some(from) = from else { return Ok((to, Vec::new())) };
    let from = parse_chunk_id(from)?;
    let agents: Vec<ReplicationAgent> = read_agents(&after, "publish")?
        .into_iter()
        .filter(|agent| agent.is_enabled && agent.kind != ReplicationAgentKind::Publish)
        .collect();
    if agents.is_empty() {
        return Ok((to, Vec::new()));
    }
    let before = match repository.snapshot_at(from) {
        Ok(before) => before,
        Err(error) if error.is_transient() => return Err(error.into()),
        Err(error) => {
            warn!(root = %from, error = %error, "cannot read the state of the last flush; flushing \
                everything");
            let all = agents
                .iter()
                .map(|agent| (agent_topic("publish", &agent.name), flush_all_payload(agent)));
            return Ok((to, all.collect()));
        }
    };
    let mut changed = if from == to { Vec::new() } else { before.changed_paths(&after)? };
    let affected_urls = url_resolver.find_affected_urls(&before, &after, &changed)?;
    let is_unchanged = changed.is_empty();
    if is_unchanged {
        changed = owner_documents_of(&affected_urls, &after)?;
    }
    let mut flushes = Vec::new();
    for agent in &agents {
        let topic = agent_topic("publish", &agent.name);
        let agent_paths = changed_paths_for_agent(agent, &changed, &before, &after)?;
        let payloads = match (agent_paths.is_empty(), is_unchanged) {
            (true, false) => {
                let below = affected_below_agent_paths(agent, &affected_urls, &before, &after)?;
                unowned_flush_payloads(&below).collect()
            }
            (true, true) => unowned_flush_payloads(&affected_urls).collect(),
            (false, _) => flush_payloads_of(&agent_paths, &affected_urls, &after)?,
        };
        flushes.extend(payloads.into_iter().map(|payload| (topic.clone(), payload)));
    }
    Ok((to, flushes))
}

/// Returns the flush of everything in an agent's cache.
fn flush_all_payload(agent: &ReplicationAgent) -> Json {
    match agent.kind {
        ReplicationAgentKind::Purge
        | ReplicationAgentKind::PurgeKeys
        | ReplicationAgentKind::PurgeTemplate => {
            json!({ "action": "Delete", "path": "/", "part": "folder" })
        }
        // This includes the kinds that do not need resolved URLs.
        _ => json!({ "action": "Delete", "path": "/" }),
    }
}

/// Returns the flushes of changed paths, with the affected URLs.
fn flush_payloads_of(
    paths: &[NodePath],
    affected_urls: &AffectedUrlSet,
    after: &Snapshot,
) -> Result<Vec<Json>> {
    let mut flushes: Vec<Json> = folder_flush_payloads(affected_urls).collect();
    // The lists are computed per agent: a path that an agent does not accept must not hold a URL that the agent needs.
    let lists = assign_urls_to_paths(paths, affected_urls.clone());
    for (at, path) in paths.iter().enumerate() {
        let node = after.node(path)?;
        let action = if node.is_some() { "Activate" } else { "Delete" };
        let is_page = node.is_some_and(|node| node.is_page());
        let payload = json!({ "action": action, "path": path.as_str(), "page": is_page });
        let Some(list) = lists.as_ref().and_then(|lists| lists.get(at)) else {
            flushes.push(payload);
            continue;
        };
        for (part, urls) in split_url_list(list).into_iter().enumerate() {
            let mut payload = payload.clone();
            if let Some(members) = payload.as_object_mut() {
                members.insert("urls".to_owned(), urls.into());
                if part > 0 {
                    members.insert("part".to_owned(), "more".into());
                }
            }
            flushes.push(payload);
        }
    }
    Ok(flushes)
}

/// Returns the part of the affected URLs at or below the paths of an agent that accepts none of the changed paths. Its
/// cache may still show the change, or a copy rendered in between.
fn affected_below_agent_paths(
    agent: &ReplicationAgent,
    affected_urls: &AffectedUrlSet,
    before: &Snapshot,
    after: &Snapshot,
) -> Result<AffectedUrlSet> {
    let (all, below): (_, &[String]) = match affected_urls {
        AffectedUrlSet::Urls(urls) => (urls, &[]),
        AffectedUrlSet::UrlsAndFolders { urls, folders } => (urls, folders),
        AffectedUrlSet::Unknown => return Ok(AffectedUrlSet::Unknown),
    };
    let viewer = agent.user.as_deref().map(|user| Viewer::of_user(Some(user)));
    let mut urls = Vec::new();
    for url in all {
        let paths = node_path_candidates(url);
        let own: Vec<NodePath> =
            paths.iter().filter(|path| agent.accepts_path(path)).cloned().collect();
        let is_own = match &viewer {
            // A URL that matches no node, such as one from a mapping, an alias or a vanity path, does not reveal its
            // node.
            _ if own.is_empty() => !exists_in_any_snapshot(&paths, [before, after])?,
            None => true,
            Some(viewer) => is_visible_to_viewer(&own, viewer, [before, after])?,
        };
        if is_own {
            urls.push(url.clone());
        }
    }
    let mut folders = BTreeSet::new();
    for folder in below {
        let Ok(path) = NodePath::new(folder) else { continue };
        if agent.accepts_path(&path) {
            folders.insert(folder.clone());
        } else {
            let tops = agent.paths.iter().filter(|top| top.is_within(&path));
            folders.extend(tops.map(ToString::to_string));
        }
    }
    Ok(AffectedUrlSet::UrlsAndFolders { urls, folders: folders.into_iter().collect() })
}

/// Returns true if one of the paths exists in one of the snapshots.
fn exists_in_any_snapshot(paths: &[NodePath], states: [&Snapshot; 2]) -> Result<bool> {
    for path in paths {
        for state in states {
            if state.node(path)?.is_some() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns true if a viewer sees one of the candidate nodes of a URL. A path that no longer exists is hidden from no
/// viewer.
fn is_visible_to_viewer(
    paths: &[NodePath],
    viewer: &Viewer,
    states: [&Snapshot; 2],
) -> Result<bool> {
    for path in paths {
        let mut is_there = false;
        for state in states {
            if is_readable_by(state, viewer, path)? {
                return Ok(true);
            }
            is_there |= state.node(path)?.is_some();
        }
        if is_there {
            return Ok(false);
        }
    }
    Ok(!paths.is_empty())
}

/// Returns the flushes of folders below which dependencies are unknown.
fn folder_flush_payloads(affected_urls: &AffectedUrlSet) -> impl Iterator<Item = Json> {
    let folders: &[String] = match affected_urls {
        AffectedUrlSet::UrlsAndFolders { folders, .. } => folders,
        AffectedUrlSet::Urls(_) | AffectedUrlSet::Unknown => &[],
    };
    folders.iter().map(|path| json!({ "action": "Delete", "path": path, "part": "folder" }))
}

/// Returns the documents to which the URLs belong, for a change without changed documents.
fn owner_documents_of(affected_urls: &AffectedUrlSet, after: &Snapshot) -> Result<Vec<NodePath>> {
    let (AffectedUrlSet::Urls(urls) | AffectedUrlSet::UrlsAndFolders { urls, .. }) = affected_urls
    else {
        return Ok(Vec::new());
    };
    let mut documents = BTreeSet::new();
    for url in urls {
        for path in node_path_candidates(url) {
            if after.node(&path)?.is_some() {
                documents.insert(path);
                break;
            }
        }
    }
    Ok(documents.into_iter().collect())
}

/// Returns the flushes of folders, and of URLs that belong to no document accepted by an agent.
fn unowned_flush_payloads(affected_urls: &AffectedUrlSet) -> impl Iterator<Item = Json> {
    let urls: &[String] = match affected_urls {
        AffectedUrlSet::Urls(urls) | AffectedUrlSet::UrlsAndFolders { urls, .. } => urls,
        AffectedUrlSet::Unknown => &[],
    };
    let parts = split_url_list(urls).into_iter().filter(|part| !part.is_empty());
    let parts = parts.map(
        |urls| json!({ "action": "Activate", "path": urls.first(), "part": "more", "urls": urls }),
    );
    folder_flush_payloads(affected_urls).chain(parts)
}

/// Returns the changed paths that an agent accepts and that its user sees.
fn changed_paths_for_agent(
    agent: &ReplicationAgent,
    changed: &[NodePath],
    before: &Snapshot,
    after: &Snapshot,
) -> Result<Vec<NodePath>> {
    let viewer = agent.user.as_deref().map(|user| Viewer::of_user(Some(user)));
    let mut paths = Vec::new();
    for path in changed.iter().filter(|path| agent.accepts_path(path)) {
        let is_visible = match &viewer {
            // A removed path is readable by no user, but it may have been readable before.
            Some(viewer) => {
                is_readable_by(after, viewer, path)? || is_readable_by(before, viewer, path)?
            }
            None => true,
        };
        if is_visible {
            paths.push(path.clone());
        }
    }
    Ok(paths)
}

fn is_readable_by(snapshot: &Snapshot, viewer: &Viewer, path: &NodePath) -> Result<bool> {
    Ok(snapshot.as_viewer(viewer).node(path)?.is_some())
}

/// Assigns to each changed path the URLs of its own, and to the first path also all others, so that each URL is listed
/// once. A dispatcher deletes the files of a handle that are not in its list.
fn assign_urls_to_paths(
    changed: &[NodePath],
    affected_urls: AffectedUrlSet,
) -> Option<Vec<Vec<String>>> {
    let (AffectedUrlSet::Urls(mut urls) | AffectedUrlSet::UrlsAndFolders { mut urls, .. }) =
        affected_urls
    else {
        return None;
    };
    urls.sort_unstable();
    urls.dedup();
    let indexes: HashMap<&str, usize> =
        changed.iter().enumerate().map(|(at, path)| (path.as_str(), at)).collect();
    let mut lists = vec![Vec::new(); changed.len()];
    for url in urls {
        let own = owner_path_candidates(&decode_url_path(&url)).find_map(|path| indexes.get(path));
        if let Some(list) = lists.get_mut(own.copied().unwrap_or(0)) {
            list.push(url);
        }
    }
    Some(lists)
}

/// Splits a list into parts that fit one flush; returns at least one part.
fn split_url_list(urls: &[String]) -> Vec<&[String]> {
    let (mut parts, mut rest) = (Vec::new(), urls);
    loop {
        let mut bytes = 0;
        let fits = |url: &&String| {
            bytes += url.len() + 1;
            bytes <= MAX_FLUSH_URL_BYTES
        };
        let count =
            rest.iter().take(MAX_FLUSH_URLS).take_while(fits).count().max(1).min(rest.len());
        let (part, left) = rest.split_at(count);
        parts.push(part);
        if left.is_empty() {
            return parts;
        }
        rest = left;
    }
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
        let affected_urls =
            AffectedUrlSet::Urls(urls.iter().map(|url| (*url).to_owned()).collect());
        let lists = assign_urls_to_paths(&changed, affected_urls).unwrap();
        assert_eq!(lists[0], ["/content/a.html", "/content/z.html"]);
        assert_eq!(lists[1], ["/content/a/b.print.html"]);
        assert_eq!(assign_urls_to_paths(&changed, AffectedUrlSet::Unknown), None);
    }

    #[test]
    fn a_list_that_is_too_long_becomes_several() {
        let list = |count: usize, url: &str| -> Vec<String> {
            (0..count).map(|number| format!("{url}{number}.html")).collect()
        };
        let check = |urls: &[String], expected: &[usize]| {
            let parts = split_url_list(urls);
            assert_eq!(parts.concat(), urls);
            assert_eq!(parts.iter().map(|part| part.len()).collect::<Vec<_>>(), expected);
        };
        check(&[], &[0]);
        check(&list(1, "/"), &[1]);
        check(&list(MAX_FLUSH_URLS, "/"), &[MAX_FLUSH_URLS]);
        check(&list(2 * MAX_FLUSH_URLS + 1, "/content/"), &[MAX_FLUSH_URLS, MAX_FLUSH_URLS, 1]);
        check(&list(3, &"x".repeat(MAX_FLUSH_URL_BYTES / 2)), &[1, 1, 1]);
        check(&list(2, &"x".repeat(MAX_FLUSH_URL_BYTES)), &[1, 1]);
    }
}
