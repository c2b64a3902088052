//! Agents: configured destinations, as nodes below `/etc/replication`.
//!
//! An author's agents lie below `agents.author`, a publisher's below `agents.publish`. Property names are AEM's where it
//! has one:
//!
//! | property | means |
//! |---|---|
//! | `enabled` | whether it works; the queue of a disabled agent waits |
//! | `transportUri` | where to: an `http` URI |
//! | `serializationType` | what is sent: `durbo` or `tympan` to publishers; `flush`, `flush_refetch`, `flush_precise`, `purge`, `purge_keys` to caches |
//! | `protocolHTTPHeaders` | more headers for caches, as `Name: value`; `{action}` and `{path}` stand for those of the change |
//! | `protocolHTTPMethod` | another method than `PURGE` for `purge` and `purge_keys` |
//! | `paths` | only what is at or below these goes this way; everything if there are none |
//! | `userId` | only what this user may read goes this way |
//!
//! They are read anew for each job, so that a change counts for what waits already.

use tympan_content::{Node, NodePath, Property, Snapshot, Value};

use crate::Result;

/// What an agent talks to, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicationAgentKind {
    /// A publisher, which receives documents.
    Publish,
    /// A dispatcher, which deletes the path's files and makes stale what lies under the same `.stat` files.
    Flush,
    /// A dispatcher, which is also told to fetch the page anew.
    FlushRefetch,
    /// A dispatcher, which is told all URLs that were drawn from what changed, and touches nothing else.
    FlushPrecise,
    /// A cache that takes `PURGE` and a URL, as Varnish does.
    Purge,
    /// A cache that drops what carries a key, as content delivery networks do.
    PurgeKeys,
}

impl ReplicationAgentKind {
    const AGENT_KIND_NAMES: [(&'static str, Self); 9] = [
        ("tympan", Self::Publish),
        ("durbo", Self::Publish),
        ("flush", Self::Flush),
        ("standard", Self::Flush),
        ("flush_refetch", Self::FlushRefetch),
        ("re-fetch", Self::FlushRefetch),
        ("flush_precise", Self::FlushPrecise),
        ("purge", Self::Purge),
        ("purge_keys", Self::PurgeKeys),
    ];

    /// Finds what a `serializationType` means; `precise` is the short form of `flush_precise`.
    #[must_use]
    pub fn from_serialization_type(name: &str) -> Option<Self> {
        let name = if name == "precise" { "flush_precise" } else { name };
        Self::AGENT_KIND_NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }
}

/// One configured destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationAgent {
    /// The agent's node name, which names its queue too.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// What it talks to.
    pub kind: ReplicationAgentKind,
    /// Where: an `http` URI.
    pub target: String,
    /// Whether it works; the queue of a disabled agent waits.
    pub is_enabled: bool,
    /// What goes this way: all at and below these, or everything if there are none.
    pub paths: Vec<NodePath>,
    /// Only what this user may read goes this way.
    pub user: Option<String>,
    /// More headers for caches.
    pub headers: Vec<(String, String)>,
    /// Another method than `PURGE`.
    pub method: Option<String>,
    /// What is wrong with its configuration: nothing is sent before it is mended, and nothing is lost.
    pub config_error: Option<String>,
}

impl ReplicationAgent {
    /// Tells whether a node goes this way.
    #[must_use]
    pub fn accepts_path(&self, path: &NodePath) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|top| path.is_within(top))
    }

    /// Tells whether a node or anything below it goes this way.
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
    // Of an agent whose kind cannot be read it is known that far what it is for.
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

/// Reads one agent; nothing if it has no address.
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
            let known: Vec<&str> =
                ReplicationAgentKind::AGENT_KIND_NAMES.iter().map(|(name, _)| *name).collect();
            fault = Some(format!(
                "`{named}` is no `serializationType`: use one of {}",
                known.join(", ")
            ));
            otherwise
        }),
    };
    let mut paths = Vec::new();
    for text in string_values(content, "paths") {
        match NodePath::new(text.trim_end_matches('/')) {
            Ok(path) => paths.push(path),
            Err(_) => fault = Some(format!("`{text}` of `paths` is no path")),
        }
    }
    let mut headers = Vec::new();
    for line in string_values(content, "protocolHTTPHeaders") {
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.trim().to_owned(), value.trim().to_owned())),
            None => fault = Some(format!("`{line}` of `protocolHTTPHeaders` is no `Name: value`")),
        }
    }
    let text = |name: &str| content.text(name).filter(|text| !text.is_empty());
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
        config_error: fault,
    })
}

fn string_values(content: &Node, name: &str) -> Vec<String> {
    let property = content.property(name);
    let values = property.iter().flat_map(Property::values);
    let texts = values.map(|value| value.to_text().trim().to_owned());
    texts.filter(|text| !text.is_empty()).collect()
}
