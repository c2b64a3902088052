//! Agents: configured destinations, as nodes below `/etc/replication`.
//!
//! An author's agents lie below `agents.author`, a publisher's below `agents.publish`. Property names are AEM's:
//! `enabled`, `transportUri`, `serializationType` (`tympan`, or `flush` and `flush_refetch` for dispatchers).

use tympan_content::{Node, NodePath, Property, Snapshot, Value};

use crate::Result;

/// What an agent talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentKind {
    /// A publisher, which receives documents.
    Publish,
    /// A dispatcher, which receives flush messages.
    Flush,
    /// A dispatcher, which is also told what to fetch anew.
    FlushRefetch,
}

/// One configured destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// The agent's node name, which names its queue too.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// What it talks to.
    pub kind: AgentKind,
    /// Where: an `http` URI.
    pub target: String,
    /// Whether it works; the queue of a disabled agent waits.
    pub is_enabled: bool,
}

/// Reads the agents of a role: `author` or `publish`.
///
/// # Errors
/// If content cannot be read.
pub fn agents(snapshot: &Snapshot, role: &str) -> Result<Vec<Agent>> {
    let folder = NodePath::new(&format!("/etc/replication/agents.{role}"))?;
    let Some(folder) = snapshot.node(&folder)? else {
        return Ok(Vec::new());
    };
    let mut agents = Vec::new();
    for node in folder.listed_children()? {
        if let Some(content) = node.content()? {
            agents.extend(agent_of(node.name(), &content));
        }
    }
    Ok(agents)
}

/// Reads one agent; nothing if it has no address.
fn agent_of(name: &str, content: &Node) -> Option<Agent> {
    let kind = match content.text("serializationType").as_deref() {
        Some("flush") => AgentKind::Flush,
        Some("flush_refetch") => AgentKind::FlushRefetch,
        _ => AgentKind::Publish,
    };
    let is_enabled = match content.property("enabled").as_ref().and_then(Property::first) {
        Some(Value::Boolean(truth)) => *truth,
        Some(value) => value.to_text() == "true",
        None => false,
    };
    Some(Agent {
        name: name.to_owned(),
        title: content.text("jcr:title").unwrap_or_else(|| name.to_owned()),
        kind,
        target: content.text("transportUri")?,
        is_enabled,
    })
}
