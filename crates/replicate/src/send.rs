//! Sending: the message first, then what the publisher says it lacks, then the message again.

use std::collections::BTreeSet;
use std::time::SystemTime;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use serde_json::Value as Json;
use tympan_content::{BlobId, ChunkId, Depth, NodePath, Repository, Snapshot};
use tympan_jobs::Job;
use tympan_web::client::Client;
use tympan_web::read_body::from_reader;

use crate::activation::{Action, is_policy, is_stamped};
use crate::bundle::{BundleReader, divide, length_of};
use crate::message::{frame_chunks, parse_chunk_id};
use crate::overtaken::Later;
use crate::pair::{Pairs, Purpose};
use crate::times::is_due;
use crate::tree::{TreePart, part_of_tree};
use crate::withdraw::{WITHDRAWAL, is_still_wished, kept_at, live_at};
use crate::{Agent, Error, Message, RECEIVE_PATH, Result, WireDocument};

/// The header that proves knowledge of the key that author and publisher share.
pub(crate) const KEY_HEADER: &str = "x-tympan-replication-key";
/// Chunks go in requests of about this size.
const BUNDLE_BYTES: usize = 4 * 1024 * 1024;
/// How often the publisher may ask for more before the attempt counts as failed.
const MAX_ROUNDS: usize = 4;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Tells whether a job takes away what a commit removed, not what a user named.
pub(crate) fn is_withdrawal(job: &Job) -> bool {
    job.properties.get(WITHDRAWAL).and_then(Json::as_bool).unwrap_or(false)
}

/// What a sender works with.
#[derive(Debug, Clone)]
pub(crate) struct Sender {
    pub(crate) repository: Repository,
    pub(crate) client: Client,
    /// The key of the whole farm, for agents that have no pair.
    pub(crate) key: String,
    /// The keys of pairs.
    pub(crate) pairs: Pairs,
}

impl Sender {
    /// Carries out one job: the publisher has applied it when this returns.
    pub(crate) async fn deliver(&self, agent: &Agent, job: &Job) -> Result<()> {
        let (sender, to, job) = (self.clone(), agent.clone(), job.clone());
        let Some(message) = blocking(move || sender.compose(&to, &job)).await?? else {
            return Ok(());
        };
        for _ in 0..MAX_ROUNDS {
            match self.offer(agent, &message).await? {
                None => return Ok(()),
                Some((chunks, blobs)) => {
                    self.send_chunks(agent, chunks).await?;
                    for blobs in divide(blobs) {
                        self.send_bundle(agent, blobs).await?;
                    }
                }
            }
        }
        Err(Error::Refused {
            target: agent.target.clone(),
            status: 409,
            message: "it asks again for parts that were sent".to_owned(),
        })
    }

    /// Asks a publisher whether it hears and knows the key, without any effect.
    pub(crate) async fn test(&self, agent: &Agent) -> Result<()> {
        let nothing = frame_chunks(std::iter::empty());
        let request = self.request(agent, Method::POST, "/chunks", Full::from(nothing))?;
        answer_of(&self.client, &agent.target, request).await.map(|_| ())
    }

    /// Reads what a job means from the root that was pinned with the wish, but for what later wishes decided meanwhile;
    /// nothing where that is nothing to this agent.
    fn compose(&self, agent: &Agent, job: &Job) -> Result<Option<Message>> {
        let text = |name: &str| {
            let malformed = || Error::Malformed(format!("job {} has no `{name}`", job.id));
            job.properties.get(name).and_then(Json::as_str).ok_or_else(malformed)
        };
        let path = NodePath::new(text("path")?)?;
        let action = Action::find(text("action")?)
            .ok_or_else(|| Error::Malformed("no action".to_owned()))?;
        let is_deep = job.properties.get("deep").and_then(Json::as_bool).unwrap_or(false);
        let mut message = Message {
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
            let kept = kept_at(&self.repository.snapshot()?, &path)?;
            message.kept = kept.iter().map(ToString::to_string).collect();
            return Ok(Some(message));
        }
        let later = Later::of(job)?;
        let part = part_of_tree(job)?;
        if action == Action::Deactivate {
            if let Some(part) = &part {
                return self.compose_taken_away(agent, part, (&later, message));
            }
            return Ok(later.leave_deactivation(&path)?.then_some(message));
        }
        // A job without a root was stored just before a crash: what it announced is in the newest state, if anywhere.
        let snapshot = match text("root") {
            Ok(root) => self.repository.snapshot_at(parse_chunk_id(root)?)?,
            Err(_) => self.repository.snapshot()?,
        };
        message.ancestors = match &part {
            Some(part) => ancestors_of_part(&snapshot, part)?,
            None => ancestors(&snapshot, &path)?,
        };
        let depth = if is_deep { Depth::Subtree } else { Depth::Document };
        let (mut chunks, mut blobs) = (BTreeSet::new(), BTreeSet::new());
        let now = SystemTime::now();
        let viewer = agent.user.as_deref().map(|user| self.repository.viewer(Some(user)));
        let readable = viewer.transpose()?.map(|viewer| snapshot.seen_by(&viewer));
        let mut documents = match &part {
            Some(part) => part.documents(&self.repository, &snapshot)?,
            None => snapshot.documents(&path, depth)?,
        };
        later.retain_left(&snapshot, &mut documents)?;
        let newest = self.repository.snapshot()?;
        for document in documents {
            let place = &document.path;
            let is_readable = match &readable {
                Some(readable) => readable.node(place)?.is_some(),
                None => true,
            };
            if !is_readable || !agent.takes(place) {
                continue;
            }
            if let Some(node) = snapshot.node(place)? {
                // What closes a document goes wherever that goes.
                let is_withdrawable = is_stamped(&node) || !is_policy(place);
                if !is_due(&node, now)? || (is_withdrawable && !is_still_wished(&newest, place)?) {
                    continue;
                }
            }
            let needs = snapshot.needs_of(&document)?;
            chunks.extend(needs.chunks);
            blobs.extend(needs.blobs);
            message.documents.push(WireDocument::of(&document));
        }
        message.chunks = chunks.iter().map(ToString::to_string).collect();
        message.blobs = blobs.iter().map(ToString::to_string).collect();
        Ok(Some(message).filter(|message| !message.documents.is_empty()))
    }

    /// Reads what a part of a deactivation takes away, and what of that stays as it was activated since.
    fn compose_taken_away(
        &self,
        agent: &Agent,
        part: &TreePart,
        (later, mut message): (&Later, Message),
    ) -> Result<Option<Message>> {
        let newest = self.repository.snapshot()?;
        let mut kept = BTreeSet::new();
        let is_left = |path: &&NodePath| agent.takes(path) && later.leaves_document(path);
        for path in part.paths().iter().filter(is_left) {
            if part.is_activated_since(path) || later.has_activated_below(path) {
                kept.extend(live_at(&newest, path)?);
            }
            message.taken_away.push(path.to_string());
        }
        message.kept = kept.iter().map(ToString::to_string).collect();
        Ok(Some(message).filter(|message| !message.taken_away.is_empty()))
    }

    /// Posts the message; gives what the publisher lacks, or nothing if it applied the message.
    async fn offer(
        &self,
        agent: &Agent,
        message: &Message,
    ) -> Result<Option<(Vec<ChunkId>, Vec<BlobId>)>> {
        let body =
            serde_json::to_vec(message).map_err(|error| Error::Malformed(error.to_string()))?;
        let request = self.request(agent, Method::POST, "", Full::from(body))?;
        match answer_of(&self.client, &agent.target, request).await {
            Ok(_) => Ok(None),
            Err(Error::Refused { target, status: 409, message }) => match parse_missing(&message) {
                Ok(missing) => Ok(Some(missing)),
                // A conflict with another delivery, which trying again resolves.
                Err(_) => Err(Error::Refused { target, status: 409, message }),
            },
            Err(error) => Err(error),
        }
    }

    async fn send_chunks(&self, agent: &Agent, mut wanted: Vec<ChunkId>) -> Result<()> {
        while !wanted.is_empty() {
            let repository = self.repository.clone();
            let (framed, rest) = blocking(move || -> Result<_> {
                let mut bundle: Vec<tympan_store::Chunk> = Vec::new();
                let mut bytes = 0;
                while let Some(id) = wanted.pop() {
                    let chunk = repository.chunks().read(&id)?;
                    bytes += chunk.bytes().len();
                    bundle.push(chunk);
                    if bytes >= BUNDLE_BYTES {
                        break;
                    }
                }
                Ok((frame_chunks(bundle.iter().map(|chunk| &chunk.bytes()[..])), wanted))
            })
            .await??;
            wanted = rest;
            let request = self.request(agent, Method::POST, "/chunks", Full::from(framed))?;
            answer_of(&self.client, &agent.target, request).await?;
        }
        Ok(())
    }

    /// Sends blobs in one request; a publisher that knows no bundles gets them one by one.
    async fn send_bundle(&self, agent: &Agent, blobs: Vec<BlobId>) -> Result<()> {
        if let [blob] = blobs.as_slice() {
            return self.send_blob(agent, *blob).await;
        }
        let (repository, wanted) = (self.repository.clone(), blobs.clone());
        blocking(move || -> Result<()> {
            for blob in wanted {
                if !repository.blobs().contains(&blob)? {
                    return Err(Error::BlobLost(blob));
                }
            }
            Ok(())
        })
        .await??;
        let reader = BundleReader::new(self.repository.clone(), blobs.clone());
        let body = from_reader(reader, length_of(&blobs));
        let request = self.request(agent, Method::POST, "/blobs", body)?;
        match answer_of(&self.client, &agent.target, request).await {
            Err(Error::Refused { status: 404 | 405, .. }) => {}
            answer => return answer.map(|_| ()),
        }
        for blob in blobs {
            self.send_blob(agent, blob).await?;
        }
        Ok(())
    }

    async fn send_blob(&self, agent: &Agent, id: BlobId) -> Result<()> {
        let repository = self.repository.clone();
        let content =
            blocking(move || repository.blobs().open(&id)).await??.ok_or(Error::BlobLost(id))?;
        let place = format!("/blob/{}", id.to_string().replace('#', "/"));
        let request = self.request(
            agent,
            Method::PUT,
            &place,
            from_reader(content.into_reader(), id.length()),
        )?;
        answer_of(&self.client, &agent.target, request).await.map(|_| ())
    }

    fn request<B>(
        &self,
        agent: &Agent,
        method: Method,
        place: &str,
        body: B,
    ) -> Result<Request<B>> {
        let malformed = |reason: String| Error::Agent { agent: agent.name.clone(), reason };
        let target: http::Uri =
            agent.target.parse().map_err(|_| malformed(format!("`{}` is no URI", agent.target)))?;
        let (Some(scheme), Some(authority)) = (target.scheme_str(), target.authority()) else {
            return Err(malformed(format!("`{}` names no host", agent.target)));
        };
        let base = match target.path() {
            "" | "/" => RECEIVE_PATH,
            path => path,
        };
        let own = self
            .pairs
            .key_for(&agent.name, Purpose::Send)
            .map_err(|error| malformed(error.to_string()))?;
        Request::builder()
            .method(method)
            .uri(format!("{scheme}://{authority}{base}{place}"))
            .header(header::HOST, authority.as_str())
            .header(KEY_HEADER, own.as_ref().unwrap_or(&self.key))
            .body(body)
            .map_err(|error| malformed(error.to_string()))
    }
}

/// Returns the folders and pages above a node with their types, outermost first.
fn ancestors(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<(String, String)>> {
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
fn ancestors_of_part(snapshot: &Snapshot, part: &TreePart) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    let mut parents = BTreeSet::new();
    for path in part.paths() {
        // Most documents of a part have the same parent.
        if !parents.insert(path.parent()) {
            continue;
        }
        for ancestor in ancestors(snapshot, path)? {
            if !all.contains(&ancestor) {
                all.push(ancestor);
            }
        }
    }
    all.sort_by_key(|(path, _)| path.matches('/').count());
    Ok(all)
}

/// Sends a request and returns the answer's body; statuses other than 2xx are errors.
pub(crate) async fn answer_of<B>(
    client: &Client,
    target: &str,
    request: Request<B>,
) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let unreachable = |source| Error::Unreachable { target: target.to_owned(), source };
    let response = client.send(request).await.map_err(unreachable)?;
    let status = response.status();
    let body = http_body_util::Limited::new(response.into_body(), 64 * 1024 * 1024).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if status.is_success() {
        return Ok(body);
    }
    let message = String::from_utf8_lossy(&body).into_owned();
    Err(Error::Refused { target: target.to_owned(), status: status.as_u16(), message })
}

/// Reads the lists of a 409 answer.
fn parse_missing(text: &str) -> Result<(Vec<ChunkId>, Vec<BlobId>)> {
    let malformed = || Error::Malformed(format!("`{text}` does not say what is missing"));
    let answer: Json = serde_json::from_str(text).map_err(|_| malformed())?;
    let list = |name: &str| -> Result<Vec<String>> {
        let list = answer.get(name).and_then(Json::as_array).ok_or_else(malformed)?;
        Ok(list.iter().filter_map(Json::as_str).map(str::to_owned).collect())
    };
    let chunks = list("chunks")?.iter().map(|id| parse_chunk_id(id)).collect::<Result<_>>()?;
    let blobs = list("blobs")?
        .iter()
        .map(|id| id.parse().map_err(|_| malformed()))
        .collect::<Result<_>>()?;
    Ok((chunks, blobs))
}

/// Runs reading and writing of content where it may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.map_err(|error| Error::Malformed(format!("the work was ended: {error}")))
}
