//! Sending: the message first, then the parts that the publisher reports as missing, then the message again.

use std::collections::BTreeSet;
use std::time::SystemTime;

use http::{Method, Request, header};
use http_body_util::Full;
use serde_json::Value as Json;
use tympan_content::{BlobId, ChunkId, NodePath, Repository, Snapshot, SubtreeScope, Viewer};
use tympan_jobs::Job;
use tympan_web::client::HttpClient;
use tympan_web::reader_body::body_from_reader;

use crate::blocking::run_blocking;
use crate::delivery::blob_bundle::{BlobBundleReader, bundle_length, split_into_bundles};
use crate::delivery::http_request::send_request;
use crate::delivery::message::{REPLICATION_KEY_HEADER, encode_framed_chunks, parse_chunk_id};
use crate::home_pair::{HomePairs, PairKeyPurpose};
use crate::request::on_off_time::is_due;
use crate::request::replication_request::{
    ReplicationAction, carries_replication_stamp, is_policy,
};
use crate::request::superseded_job::SupersedingRequests;
use crate::request::tree_part::{TreePart, parse_tree_part};
use crate::request::withdrawal_job::{
    is_still_requested, is_withdrawal, live_documents_below, retained_documents_below,
};
use crate::{Error, RECEIVE_PATH, ReplicationAgent, ReplicationMessage, Result, WireDocument};

/// The approximate size of a request with chunks, in bytes.
const CHUNK_REQUEST_BYTES: usize = 4 * 1024 * 1024;
/// The maximum number of times that the publisher may report missing parts before the attempt fails.
const MAX_OFFER_ROUNDS: usize = 4;

/// The dependencies of a sender.
#[derive(Debug, Clone)]
pub(crate) struct MessageSender {
    pub(crate) repository: Repository,
    pub(crate) client: HttpClient,
    /// The key of the whole farm, for agents without a pair.
    pub(crate) farm_key: String,
    /// The keys of pairs.
    pub(crate) pairs: HomePairs,
}

impl MessageSender {
    /// Sends one job, which activates or withdraws. When this returns, the publisher has applied it.
    pub(crate) async fn send_job(&self, agent: &ReplicationAgent, job: &Job) -> Result<()> {
        let (sender, to, job) = (self.clone(), agent.clone(), job.clone());
        let Some(message) = run_blocking(move || sender.compose_message(&to, &job)).await?? else {
            return Ok(());
        };
        for _ in 0..MAX_OFFER_ROUNDS {
            match self.offer_message(agent, &message).await? {
                None => return Ok(()),
                Some((chunks, blobs)) => {
                    self.send_chunks(agent, chunks).await?;
                    for blobs in split_into_bundles(blobs) {
                        self.send_bundle(agent, blobs).await?;
                    }
                }
            }
        }
        Err(Error::Refused {
            target: agent.target.clone(),
            status: 409,
            message: "it requests again parts that were sent".to_owned(),
        })
    }

    /// Checks that a publisher is reachable and accepts the key, without side effects.
    pub(crate) async fn test_publisher(&self, agent: &ReplicationAgent) -> Result<()> {
        let nothing = encode_framed_chunks(std::iter::empty());
        let request = self.build_request(agent, Method::POST, "/chunks", Full::from(nothing))?;
        send_request(&self.client, &agent.target, request).await.map(|_| ())
    }

    /// Builds the message of a job from the root pinned with the request, except for what later requests have decided
    /// since; `None` if nothing is left for this agent.
    fn compose_message(
        &self,
        agent: &ReplicationAgent,
        job: &Job,
    ) -> Result<Option<ReplicationMessage>> {
        let text = |name: &str| {
            let malformed = || Error::Malformed(format!("job {} has no `{name}`", job.id));
            job.properties.get(name).and_then(Json::as_str).ok_or_else(malformed)
        };
        let path = NodePath::new(text("path")?)?;
        let action = ReplicationAction::from_name(text("action")?)
            .ok_or_else(|| Error::Malformed("no valid action".to_owned()))?;
        let is_deep = job.properties.get("deep").and_then(Json::as_bool).unwrap_or(false);
        let mut message = ReplicationMessage {
            agent: agent.name.clone(),
            sequence: job.id.0,
            action: action.name().to_owned(),
            path: path.to_string(),
            user: job.user.clone(),
            ancestors: Vec::new(),
            documents: Vec::new(),
            chunks: Vec::new(),
            blobs: Vec::new(),
            kept: Vec::new(),
            taken_away: Vec::new(),
        };
        if is_withdrawal(job) {
            let retained_documents = retained_documents_below(&self.repository.snapshot()?, &path)?;
            message.kept = retained_documents.iter().map(ToString::to_string).collect();
            return Ok(Some(message));
        }
        let later = SupersedingRequests::from_job(job)?;
        let part = parse_tree_part(job)?;
        if action == ReplicationAction::Deactivate {
            if let Some(part) = &part {
                return self.compose_deactivation_part(agent, part, &later, message);
            }
            return Ok(later.is_deactivation_needed(&path)?.then_some(message));
        }
        // A job without a root was stored right before a crash. If its request was recorded at all, it is in the newest
        // state.
        let snapshot = match text("root") {
            Ok(root) => self.repository.snapshot_at(parse_chunk_id(root)?)?,
            Err(_) => self.repository.snapshot()?,
        };
        message.ancestors = match &part {
            Some(part) => part_ancestor_types(&snapshot, part)?,
            None => ancestor_types(&snapshot, &path)?,
        };
        let depth = if is_deep { SubtreeScope::Subtree } else { SubtreeScope::Document };
        let (mut chunks, mut blobs) = (BTreeSet::new(), BTreeSet::new());
        let now = SystemTime::now();
        let viewer = agent.user.as_deref().map(|user| Viewer::of_user(Some(user)));
        let readable = viewer.map(|viewer| snapshot.as_viewer(&viewer));
        let mut documents = match &part {
            Some(part) => part.read_documents(&self.repository, &snapshot)?,
            None => snapshot.stored_documents(&path, depth)?,
        };
        later.retain_undecided(&snapshot, &mut documents)?;
        let newest = self.repository.snapshot()?;
        for document in documents {
            let document_path = &document.path;
            let is_readable = match &readable {
                Some(readable) => match readable.node(document_path)? {
                    // A document is sent as it is stored, so one that is partly closed to the user is not sent at all.
                    Some(node) => node.is_document_fully_visible()?,
                    None => false,
                },
                None => true,
            };
            if !is_readable || !agent.accepts_path(document_path) {
                continue;
            }
            if let Some(node) = snapshot.node(document_path)? {
                // The policies that protect a document are always sent with it.
                let is_withdrawable = carries_replication_stamp(&node) || !is_policy(document_path);
                if !is_due(&node, now)?
                    || (is_withdrawable && !is_still_requested(&newest, document_path)?)
                {
                    continue;
                }
            }
            let needs = snapshot.document_requirements(&document)?;
            chunks.extend(needs.chunks);
            blobs.extend(needs.blobs);
            message.documents.push(WireDocument::from_stored(&document));
        }
        message.chunks = chunks.iter().map(ToString::to_string).collect();
        message.blobs = blobs.iter().map(ToString::to_string).collect();
        Ok(Some(message).filter(|message| !message.documents.is_empty()))
    }

    /// Reads what a part of a deactivation removes, and which documents of it stay because they were activated since.
    fn compose_deactivation_part(
        &self,
        agent: &ReplicationAgent,
        part: &TreePart,
        later: &SupersedingRequests,
        mut message: ReplicationMessage,
    ) -> Result<Option<ReplicationMessage>> {
        let newest = self.repository.snapshot()?;
        let mut retained_paths = BTreeSet::new();
        let is_left = |path: &&NodePath| agent.accepts_path(path) && later.is_removal_needed(path);
        for path in part.document_paths().iter().filter(is_left) {
            if part.is_activated_since(path) || later.has_activated_below(path) {
                retained_paths.extend(live_documents_below(&newest, path)?);
            }
            message.taken_away.push(path.to_string());
        }
        message.kept = retained_paths.iter().map(ToString::to_string).collect();
        Ok(Some(message).filter(|message| !message.taken_away.is_empty()))
    }

    /// Posts the message; returns the parts that the publisher lacks, or `None` if it applied the message.
    async fn offer_message(
        &self,
        agent: &ReplicationAgent,
        message: &ReplicationMessage,
    ) -> Result<Option<(Vec<ChunkId>, Vec<BlobId>)>> {
        let body =
            serde_json::to_vec(message).map_err(|error| Error::Malformed(error.to_string()))?;
        let request = self.build_request(agent, Method::POST, "", Full::from(body))?;
        match send_request(&self.client, &agent.target, request).await {
            Ok(_) => Ok(None),
            Err(Error::Refused { target, status: 409, message }) => {
                match parse_missing_parts(&message) {
                    Ok(missing) => Ok(Some(missing)),
                    // A conflict with another delivery, which a retry resolves.
                    Err(_) => Err(Error::Refused { target, status: 409, message }),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn send_chunks(
        &self,
        agent: &ReplicationAgent,
        mut chunk_ids: Vec<ChunkId>,
    ) -> Result<()> {
        while !chunk_ids.is_empty() {
            let repository = self.repository.clone();
            let (framed, rest) = run_blocking(move || -> Result<_> {
                let mut bundle: Vec<tympan_store::Chunk> = Vec::new();
                let mut bytes = 0;
                while let Some(id) = chunk_ids.pop() {
                    let chunk = repository.chunks().read_chunk(&id)?;
                    bytes += chunk.bytes().len();
                    bundle.push(chunk);
                    if bytes >= CHUNK_REQUEST_BYTES {
                        break;
                    }
                }
                Ok((encode_framed_chunks(bundle.iter().map(|chunk| &chunk.bytes()[..])), chunk_ids))
            })
            .await??;
            chunk_ids = rest;
            let request = self.build_request(agent, Method::POST, "/chunks", Full::from(framed))?;
            send_request(&self.client, &agent.target, request).await?;
        }
        Ok(())
    }

    /// Sends blobs in one request; if a publisher does not support bundles, they are sent one by one.
    async fn send_bundle(&self, agent: &ReplicationAgent, blobs: Vec<BlobId>) -> Result<()> {
        if let [blob] = blobs.as_slice() {
            return self.send_blob(agent, *blob).await;
        }
        let (repository, blob_ids) = (self.repository.clone(), blobs.clone());
        run_blocking(move || -> Result<()> {
            for blob in blob_ids {
                if !repository.blobs().contains(&blob)? {
                    return Err(Error::LostBlob(blob));
                }
            }
            Ok(())
        })
        .await??;
        let reader = BlobBundleReader::new(self.repository.clone(), blobs.clone());
        let body = body_from_reader(reader, bundle_length(&blobs));
        let request = self.build_request(agent, Method::POST, "/blobs", body)?;
        match send_request(&self.client, &agent.target, request).await {
            Err(Error::Refused { status: 404 | 405, .. }) => {}
            result => return result.map(|_| ()),
        }
        for blob in blobs {
            self.send_blob(agent, blob).await?;
        }
        Ok(())
    }

    async fn send_blob(&self, agent: &ReplicationAgent, id: BlobId) -> Result<()> {
        let repository = self.repository.clone();
        let content = run_blocking(move || repository.blobs().open(&id))
            .await??
            .ok_or(Error::LostBlob(id))?;
        let endpoint = format!("/blob/{}", id.to_string().replace('#', "/"));
        let request = self.build_request(
            agent,
            Method::PUT,
            &endpoint,
            body_from_reader(content.into_reader(), id.length()),
        )?;
        send_request(&self.client, &agent.target, request).await.map(|_| ())
    }

    fn build_request<B>(
        &self,
        agent: &ReplicationAgent,
        method: Method,
        endpoint: &str,
        body: B,
    ) -> Result<Request<B>> {
        let malformed = |reason: String| Error::InvalidAgent { agent: agent.name.clone(), reason };
        let target: http::Uri = agent
            .target
            .parse()
            .map_err(|_| malformed(format!("`{}` is not a URI", agent.target)))?;
        let (Some(scheme), Some(authority)) = (target.scheme_str(), target.authority()) else {
            return Err(malformed(format!("`{}` names no host", agent.target)));
        };
        let base = match target.path() {
            "" | "/" => RECEIVE_PATH,
            path => path,
        };
        let own = self
            .pairs
            .key_for(&agent.name, PairKeyPurpose::Send)
            .map_err(|error| malformed(error.to_string()))?;
        Request::builder()
            .method(method)
            .uri(format!("{scheme}://{authority}{base}{endpoint}"))
            .header(header::HOST, authority.as_str())
            .header(REPLICATION_KEY_HEADER, own.as_ref().unwrap_or(&self.farm_key))
            .body(body)
            .map_err(|error| malformed(error.to_string()))
    }
}

/// Returns the folders and pages above a node with their types, outermost first.
fn ancestor_types(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<(String, String)>> {
    let mut ancestors = Vec::new();
    let mut next = path.parent();
    while let Some(path) = next.filter(|path| !path.is_root()) {
        if let Some(node) = snapshot.node(&path)? {
            ancestors.push((path.to_string(), node.primary_type().to_owned()));
        }
        next = path.parent();
    }
    ancestors.reverse();
    Ok(ancestors)
}

/// Returns the folders and pages above the documents of a part of a tree with their types, outermost first.
fn part_ancestor_types(snapshot: &Snapshot, part: &TreePart) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut parents = BTreeSet::new();
    for path in part.document_paths() {
        // Most documents of a part have the same parent.
        if !parents.insert(path.parent()) {
            continue;
        }
        for ancestor in ancestor_types(snapshot, path)? {
            if !all.contains(&ancestor) {
                all.push(ancestor);
            }
        }
    }
    all.sort_by_key(|(path, _)| path.matches('/').count());
    Ok(all)
}

/// Parses the lists in a 409 response.
fn parse_missing_parts(text: &str) -> Result<(Vec<ChunkId>, Vec<BlobId>)> {
    let malformed = || Error::Malformed(format!("`{text}` does not list what is missing"));
    let response: Json = serde_json::from_str(text).map_err(|_| malformed())?;
    let list = |name: &str| -> Result<Vec<String>> {
        let list = response.get(name).and_then(Json::as_array).ok_or_else(malformed)?;
        Ok(list.iter().filter_map(Json::as_str).map(str::to_owned).collect())
    };
    let chunks = list("chunks")?.iter().map(|id| parse_chunk_id(id)).collect::<Result<_>>()?;
    let blobs = list("blobs")?
        .iter()
        .map(|id| id.parse().map_err(|_| malformed()))
        .collect::<Result<_>>()?;
    Ok((chunks, blobs))
}
