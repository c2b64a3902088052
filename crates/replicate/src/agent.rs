//! Agents: configured replication targets, as nodes below `/etc/replication`.
//!
//! An author's agents are below `agents.author`, a publisher's below `agents.publish`. Property names are those of AEM
//! where it has one:
//!
//! | property | means |
//! |---|---|
//! | `enabled` | whether it works; the queue of a disabled agent waits |
//! | `transportUri` | where to: an `http` URI |
//! | `serializationType` | what is sent: `durbo` or `tympan` to publishers; `flush`, `flush_refetch`, `flush_precise`, `purge`, `purge_keys`, `purge_template` to caches |
//! | `protocolHTTPHeaders` | more headers for caches, as `Name: value`; `{action}` and `{path}` stand for those of the change |
//! | `protocolHTTPMethod` | another method than `PURGE` for `purge` and `purge_keys`, and than `POST` for `purge_template` |
//! | `requestBody`, `requestBodyForAll`, `publicUrl`, `batchSize`, `requestsPerMinute` | the template of `purge_template` ([`PurgeTemplate`]) |
//! | `paths` | only what is at or below these goes this way; everything if there are none |
//! | `userId` | only what this user may read goes this way |
//!
//! Agents are read again for each job, so that a change also applies to waiting jobs.

use std::num::NonZeroU32;
use std::time::Duration;

use tympan_content::{Node, NodePath, Property, Snapshot, Value};
use tympan_jobs::escape_topic_part;

use crate::Result;

/// The kind of an agent's target and its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationAgentKind {
    /// A publisher, which receives documents.
    Publish,
    /// A dispatcher, which deletes the path's files and invalidates everything under the same `.stat` files.
    Flush,
    /// A dispatcher, which is also requested to re-fetch the page.
    FlushRefetch,
    /// A dispatcher, which receives all URLs that depend on the change, and changes nothing else.
    FlushPrecise,
    /// A cache that accepts `PURGE` requests with a URL, as Varnish does.
    Purge,
    /// A cache that drops all entries with a key, as content delivery networks do.
    PurgeKeys,
    /// A content delivery network, whose request is a template.
    PurgeTemplate,
}

impl ReplicationAgentKind {
    const AGENT_KIND_NAMES: [(&'static str, Self); 10] = [
        ("tympan", Self::Publish),
        ("durbo", Self::Publish),
        ("flush", Self::Flush),
        ("standard", Self::Flush),
        ("flush_refetch", Self::FlushRefetch),
        ("re-fetch", Self::FlushRefetch),
        ("flush_precise", Self::FlushPrecise),
        ("purge", Self::Purge),
        ("purge_keys", Self::PurgeKeys),
        ("purge_template", Self::PurgeTemplate),
    ];

    /// Returns the kind for a `serializationType`; `precise` is the short form of `flush_precise`.
    #[must_use]
    pub fn from_serialization_type(name: &str) -> Option<Self> {
        let name = if name == "precise" { "flush_precise" } else { name };
        Self::AGENT_KIND_NAMES
            .iter()
            .find(|(kind_name, _)| *kind_name == name)
            .map(|(_, kind)| *kind)
    }
}

/// The default number of keys or addresses in one request: what the most restrictive networks accept.
const DEFAULT_BATCH_SIZE: usize = 30;
/// The maximum number of keys or addresses in one request.
const MAX_BATCH_SIZE: u32 = 1_000;

/// What an agent's purge requests hold besides address, method and headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurgeTemplate {
    /// The body.
    pub body: String,
    /// The body of the request that drops everything; `None` if the key `all` does.
    pub all_body: Option<String>,
    /// The address before the path of a visitor's URL, such as `https://www.example.com`.
    pub public_url: String,
    /// The maximum number of keys or addresses in one request.
    pub batch_size: usize,
    /// The maximum number of requests per minute; `None` for no limit.
    pub requests_per_minute: Option<NonZeroU32>,
}

impl Default for PurgeTemplate {
    fn default() -> Self {
        Self {
            body: String::new(),
            all_body: None,
            public_url: String::new(),
            batch_size: DEFAULT_BATCH_SIZE,
            requests_per_minute: None,
        }
    }
}

impl PurgeTemplate {
    /// Returns the pause after each request.
    pub(crate) fn pause(&self) -> Duration {
        self.requests_per_minute
            .map_or(Duration::ZERO, |per_minute| Duration::from_secs(60) / per_minute.get())
    }
}

/// One configured destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationAgent {
    /// The agent's node name, which also names its queue.
    pub name: String,
    /// The display name.
    pub title: String,
    /// The kind of the target.
    pub kind: ReplicationAgentKind,
    /// The URI of the target; an `http` URI.
    pub target: String,
    /// True if the agent is enabled; the queue of a disabled agent waits.
    pub is_enabled: bool,
    /// The paths that the agent replicates, with everything below them; empty for everything.
    pub paths: Vec<NodePath>,
    /// If set, the agent replicates only what this user may read.
    pub user: Option<String>,
    /// Additional headers for caches.
    pub headers: Vec<(String, String)>,
    /// The HTTP method to use instead of `PURGE`.
    pub method: Option<String>,
    /// The rest of the request, for [`ReplicationAgentKind::PurgeTemplate`].
    pub template: PurgeTemplate,
    /// The error in the agent's configuration. Nothing is sent until it is corrected, and nothing is lost.
    pub config_error: Option<String>,
}

impl ReplicationAgent {
    /// Returns true if the agent replicates a node.
    #[must_use]
    pub fn accepts_path(&self, path: &NodePath) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|top| path.is_within(top))
    }

    /// Returns true if the agent replicates a node or anything below it.
    #[must_use]
    pub fn accepts_any_below(&self, path: &NodePath) -> bool {
        self.accepts_path(path) || self.paths.iter().any(|top| top.is_within(path))
    }
}

/// Reads the agents of a role: `author` or `publish`.
///
/// # Errors
/// If content cannot be read.
pub fn read_agents(snapshot: &Snapshot, role: &str) -> Result<Vec<ReplicationAgent>> {
    let folder = NodePath::new(&format!("/etc/replication/agents.{role}"))?;
    let Some(folder) = snapshot.node(&folder)? else {
        return Ok(Vec::new());
    };
    // The role gives a default kind for an agent whose kind cannot be read.
    let otherwise =
        if role == "author" { ReplicationAgentKind::Publish } else { ReplicationAgentKind::Flush };
    let mut agents = Vec::new();
    for node in folder.listed_children()? {
        if let Some(content) = node.content_node()? {
            agents.extend(parse_agent(node.name(), &content, otherwise));
        }
    }
    Ok(agents)
}

/// Reads one agent; `None` if it has no target URI.
fn parse_agent(
    name: &str,
    content: &Node,
    otherwise: ReplicationAgentKind,
) -> Option<ReplicationAgent> {
    let is_enabled = match content.property("enabled").as_ref().and_then(Property::first) {
        Some(Value::Boolean(truth)) => *truth,
        Some(value) => value.to_text() == "true",
        None => false,
    };
    let mut fault = None;
    let kind = match content.text("serializationType").as_deref() {
        None | Some("") => ReplicationAgentKind::Publish,
        Some(named) => ReplicationAgentKind::from_serialization_type(named).unwrap_or_else(|| {
            let kind_names: Vec<&str> =
                ReplicationAgentKind::AGENT_KIND_NAMES.iter().map(|(name, _)| *name).collect();
            fault = Some(format!(
                "`{named}` is not a `serializationType`; use one of {}",
                kind_names.join(", ")
            ));
            otherwise
        }),
    };
    let mut paths = Vec::new();
    for text in string_values(content, "paths") {
        match NodePath::new(text.trim_end_matches('/')) {
            Ok(path) => paths.push(path),
            Err(_) => fault = Some(format!("`{text}` in `paths` is not a path")),
        }
    }
    let mut headers = Vec::new();
    for line in string_values(content, "protocolHTTPHeaders") {
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.trim().to_owned(), value.trim().to_owned())),
            None => {
                fault = Some(format!(
                    "`{line}` in `protocolHTTPHeaders` is not of the form `Name: value`"
                ))
            }
        }
    }
    let text = |name: &str| content.text(name).filter(|text| !text.is_empty());
    let template = parse_template(content, &mut fault);
    Some(ReplicationAgent {
        name: name.to_owned(),
        title: content.text("jcr:title").unwrap_or_else(|| name.to_owned()),
        kind,
        target: content.text("transportUri")?,
        is_enabled,
        paths,
        user: text("userId"),
        headers,
        method: text("protocolHTTPMethod"),
        template,
        config_error: fault,
    })
}

/// Reads the template of an agent's requests; an invalid number is a fault.
fn parse_template(content: &Node, fault: &mut Option<String>) -> PurgeTemplate {
    let text = |name: &str| content.text(name).filter(|text| !text.is_empty());
    let mut number = |name: &str, max: u32| {
        let text = text(name)?;
        let number = text.trim().parse().ok().filter(|number| (1..=max).contains(number));
        if number.is_none() {
            *fault = Some(format!("`{text}` in `{name}` is not a number from 1 to {max}"));
        }
        number
    };
    let batch_size = number("batchSize", MAX_BATCH_SIZE);
    let requests_per_minute = number("requestsPerMinute", 60_000);
    PurgeTemplate {
        body: text("requestBody").unwrap_or_default(),
        all_body: text("requestBodyForAll"),
        public_url: text("publicUrl").unwrap_or_default(),
        batch_size: batch_size
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(DEFAULT_BATCH_SIZE),
        requests_per_minute: requests_per_minute.and_then(NonZeroU32::new),
    }
}

/// Returns the topic of an agent's jobs, which are in an ordered queue of their own.
#[must_use]
pub fn agent_topic(role: &str, agent: &str) -> String {
    format!("com/day/cq/replication/job/{role}/{}", escape_topic_part(agent))
}

fn string_values(content: &Node, name: &str) -> Vec<String> {
    let property = content.property(name);
    let values = property.iter().flat_map(Property::values);
    let texts = values.map(|value| value.to_text().trim().to_owned());
    texts.filter(|text| !text.is_empty()).collect()
}
