//! The agents of a publisher that administrators may edit at the publisher itself, as in AEM: its flush agents.
//!
//! In: a POST to an agent below `/etc/replication/agents.publish`. Out: whether it is allowed.
//!
//! Invariants
//! * Only nodes below that folder can be changed, and only by administrators. All other content of a publisher comes
//!   from replication.

use http::StatusCode;
use tympan_content::{NodePath, Viewer};

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::write::sling_post::PostFields;

/// The folder of a publisher's agents.
const PUBLISH_AGENTS_FOLDER: &str = "/etc/replication/agents.publish";

/// Returns true if the path of a request is that of a publisher's agent or of a descendant of one.
pub(crate) fn is_agent_address(path: &str) -> bool {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
    decoded.is_ok_and(|path| is_within_agents(&path))
}

fn is_within_agents(path: &str) -> bool {
    let name = path.strip_prefix(PUBLISH_AGENTS_FOLDER).and_then(|rest| rest.strip_prefix('/'));
    // Accept only node paths, which cannot lead out of the folder.
    name.is_some_and(|name| !name.trim_end_matches('/').is_empty())
        && NodePath::new(path.trim_end_matches(['/', '*'])).is_ok()
}

/// Refuses changes of other nodes than agents, and users who are not administrators.
///
/// # Errors
/// [`RequestFailure`] with 403 for users who are not administrators, with 405 for content that only replication may
/// change.
pub(crate) fn check_agent_change(
    instance: &Instance,
    viewer: &Viewer,
    (path, operation): (&str, &str),
    fields: &PostFields,
) -> Result<()> {
    let refused = || {
        let message = "publish instances accept content from replication only; administrators may change only \
            the properties of agents below `/etc/replication/agents.publish` here";
        Err(RequestFailure::new(StatusCode::METHOD_NOT_ALLOWED, message))
    };
    let leads_out = |name: &str| name.starts_with('/') || name.split('/').any(|part| part == "..");
    let is_taken_from_elsewhere = fields.properties.iter().any(|(name, spec)| {
        leads_out(name) || spec.has_hint("MoveFrom") || spec.has_hint("CopyFrom")
    });
    let is_named_elsewhere = [":name", ":nameHint"]
        .into_iter()
        .filter_map(|name| fields.command_value(name))
        .any(|name| name.contains('/'));
    if !is_within_agents(path)
        || !matches!(operation, "" | "modify")
        || is_taken_from_elsewhere
        || is_named_elsewhere
        || !fields.files.is_empty()
    {
        return refused();
    }
    instance.require_administrator(viewer, "change the agents of a publish instance")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_agents_are_meant() {
        for (path, expected) in [
            ("/etc/replication/agents.publish/flush", true),
            ("/etc/replication/agents.publish/flush/jcr:content", true),
            ("/etc/replication/agents.publish/flush/jcr%3acontent", true),
            ("/etc/replication/agents.publish", false),
            ("/etc/replication/agents.publish/", false),
            ("/etc/replication/agents.publish/../agents.author/x", false),
            ("/etc/replication/agents.publish/%2e%2e/x", false),
            ("/etc/replication/agents.publish/a/../../../../content", false),
            ("/etc/replication/agents.publisher/flush", false),
            ("/etc/replication/agents.author/publish", false),
            ("/content", false),
        ] {
            assert_eq!(is_agent_address(path), expected, "{path}");
        }
    }
}
