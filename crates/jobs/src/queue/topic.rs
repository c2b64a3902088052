//! Topics, which identify the kind of a job, and patterns over them.
//!
//! In: a topic such as `com/adobe/granite/workflow/job/var/workflow/models/scale`, and patterns of queues and handlers.
//! Out: whether a pattern matches the topic, the part that the wildcard matches, and the specificity of the pattern.
//!
//! Queues and handlers interpret a trailing `*` differently, as in Sling: a queue's `a/*` is everything below, a
//! handler's is one level, and `a/**` everything below.

use crate::{Error, Result};

/// Maximum length of a topic, in bytes.
pub const MAX_TOPIC_BYTES: usize = 512;

/// Built-in topics, with their names in AEM, where workflow models do the work.
const AEM_TOPIC_NAMES: [(&str, &[&str]); 1] = [(
    "dam/update_asset",
    &[
        "com/adobe/granite/workflow/job/etc/workflow/models/dam/update_asset/jcr_content/model",
        "com/adobe/granite/workflow/job/var/workflow/models/dam/update_asset",
    ],
)];

/// Returns the AEM names of a topic. A queue that accepts one of these accepts the topic.
#[must_use]
pub fn aem_topic_names(topic: &str) -> &'static [&'static str] {
    let entry = AEM_TOPIC_NAMES.iter().find(|(own, _)| *own == topic);
    entry.map_or(&[], |(_, names)| names)
}

/// Returns the topic of jobs for a name used in AEM.
#[must_use]
pub fn topic_of_aem_name(named: &str) -> &str {
    let entry = AEM_TOPIC_NAMES.iter().find(|(_, names)| names.contains(&named));
    entry.map_or(named, |(own, _)| own)
}

/// Validates a topic: parts of letters, digits, `_`, `-`, `.`, `:`, `{`, `}` and `~`, joined by `/`.
///
/// # Errors
/// [`Error::InvalidTopic`].
pub fn check_topic(topic: &str) -> Result<()> {
    let is_fine = |character: char| character.is_alphanumeric() || "_-.:{}~".contains(character);
    let is_part = |part: &str| !part.is_empty() && part.chars().all(is_fine);
    if topic.len() <= MAX_TOPIC_BYTES && topic.split('/').all(is_part) {
        return Ok(());
    }
    Err(Error::InvalidTopic(topic.chars().take(MAX_TOPIC_BYTES).collect()))
}

/// Converts any text, such as a node path, to a part of a topic: invalid characters become `_`.
#[must_use]
pub fn escape_topic_part(text: &str) -> String {
    let escape_character = |character: char| {
        if character.is_alphanumeric() || "_-./".contains(character) { character } else { '_' }
    };
    let text: String = text.trim_matches('/').chars().map(escape_character).collect();
    text.split('/').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
}

/// The topics that a queue or a handler accepts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TopicPattern {
    text: String,
    rule: TopicRule,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum TopicRule {
    /// Exactly this topic.
    Exact(String),
    /// Topics one level below; the text ends in `/`.
    Children(String),
    /// Topics any number of levels below; the text ends in `/` unless it is empty.
    Descendants(String),
}

impl TopicPattern {
    /// Parses a pattern of a queue, as Sling does: `a/b` is exact, `a/b/.` and `a/b.` are the topics directly below,
    /// `a/b/*` and `a/b*` all below, `*` all topics.
    #[must_use]
    pub fn parse_queue_pattern(text: &str) -> Self {
        let text = text.trim();
        let rule = if let Some(parent) = text.strip_suffix('.') {
            TopicRule::Children(with_trailing_slash(parent))
        } else if let Some(parent) = text.strip_suffix('*') {
            TopicRule::Descendants(with_trailing_slash(parent))
        } else {
            TopicRule::Exact(text.to_owned())
        };
        Self { text: text.to_owned(), rule }
    }

    /// Parses a pattern of a handler: `a/b` is exact, `a/b/*` are the topics directly below, `a/b/**` all below.
    #[must_use]
    pub fn parse_handler_pattern(text: &str) -> Self {
        let text = text.trim();
        let rule = if let Some(parent) = text.strip_suffix("**") {
            TopicRule::Descendants(with_trailing_slash(parent))
        } else if let Some(parent) = text.strip_suffix('*') {
            if parent.is_empty() {
                TopicRule::Descendants(String::new())
            } else {
                TopicRule::Children(with_trailing_slash(parent))
            }
        } else {
            TopicRule::Exact(text.to_owned())
        };
        Self { text: text.to_owned(), rule }
    }

    /// Returns the pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the part of the topic that the wildcard matches, if the pattern matches the topic; empty for an exact
    /// pattern.
    #[must_use]
    pub fn wildcard_match<'t>(&self, topic: &'t str) -> Option<&'t str> {
        match &self.rule {
            TopicRule::Exact(exact) => (exact == topic).then_some(""),
            TopicRule::Descendants(folder) => {
                topic.strip_prefix(folder.as_str()).filter(|rest| !rest.is_empty())
            }
            TopicRule::Children(folder) => topic
                .strip_prefix(folder.as_str())
                .filter(|rest| !rest.is_empty() && !rest.contains('/')),
        }
    }

    /// Returns true if the pattern matches a topic.
    #[must_use]
    pub fn covers(&self, topic: &str) -> bool {
        self.wildcard_match(topic).is_some()
    }

    /// Returns the specificity of the pattern; exact patterns are most specific, then longer ones.
    #[must_use]
    pub fn specificity(&self) -> (u8, usize) {
        match &self.rule {
            TopicRule::Exact(exact) => (2, exact.len()),
            TopicRule::Children(folder) => (1, folder.len() * 2 + 1),
            TopicRule::Descendants(folder) => (1, folder.len() * 2),
        }
    }
}

/// Appends a slash to a wildcard's parent, except for the pattern of all topics.
fn with_trailing_slash(parent: &str) -> String {
    if parent.is_empty() || parent.ends_with('/') {
        parent.to_owned()
    } else {
        format!("{parent}/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(pattern: &str, topic: &str, matched: Option<&str>) {
        assert_eq!(
            TopicPattern::parse_queue_pattern(pattern).wildcard_match(topic),
            matched,
            "{pattern} {topic}"
        );
    }

    #[test]
    fn queues_cover_topics_as_in_sling() {
        queue("a/b", "a/b", Some(""));
        queue("a/b", "a/b/c", None);
        queue("a/b/*", "a/b/c", Some("c"));
        queue("a/b/*", "a/b/c/d", Some("c/d"));
        queue("a/b/*", "a/b", None);
        queue("a/b/*", "a/bc/d", None);
        queue("a/b*", "a/b/c/d", Some("c/d"));
        queue("a/b*", "a/bc", None);
        queue("a/b*", "a/b", None);
        queue("a/b/.", "a/b/c", Some("c"));
        queue("a/b/.", "a/b/c/d", None);
        queue("a/b.", "a/b/c", Some("c"));
        queue("a/b.", "a/b", None);
        queue("*", "a", Some("a"));
        queue("*", "a/b/c", Some("a/b/c"));
        queue(" a/b ", "a/b", Some(""));
        let model =
            "com/adobe/granite/workflow/job/etc/workflow/models/dam/update_asset/jcr_content/model";
        queue(
            "com/adobe/granite/workflow/job*",
            model,
            Some("etc/workflow/models/dam/update_asset/jcr_content/model"),
        );
        queue("com/adobe/granite/workflow/external/job*", model, None);
        queue(model, model, Some(""));
    }

    #[test]
    fn handlers_cover_topics_as_in_sling() {
        let check = |pattern: &str, topic: &str, expected: bool| {
            assert_eq!(
                TopicPattern::parse_handler_pattern(pattern).covers(topic),
                expected,
                "{pattern} {topic}"
            );
        };
        check("dam/*", "dam/ingest", true);
        check("dam/*", "dam/ingest/deep", false);
        check("dam/**", "dam/ingest/deep", true);
        check("dam/**", "dam", false);
        check("dam/ingest", "dam/ingest", true);
        check("*", "dam/ingest", true);
        check("**", "dam/ingest", true);
    }

    #[test]
    fn closer_patterns_are_known() {
        let closer = |left: &str, right: &str| {
            let closeness = |text: &str| TopicPattern::parse_queue_pattern(text).specificity();
            assert!(closeness(left) > closeness(right), "{left} {right}");
        };
        closer("a/b/c", "a/b/c/d/*");
        closer("a/b/*", "a/*");
        closer("a/b/.", "a/b/*");
        closer("a/b/*", "a/.");
        closer("a/*", "*");
    }

    #[test]
    fn uploads_are_known_by_the_names_of_aem() {
        let names = aem_topic_names("dam/update_asset");
        assert_eq!(names.len(), 2);
        assert!(names.iter().all(|name| topic_of_aem_name(name) == "dam/update_asset"));
        assert_eq!(topic_of_aem_name("dam/update_asset"), "dam/update_asset");
        assert_eq!(topic_of_aem_name("a/b"), "a/b");
        assert!(aem_topic_names("a/b").is_empty());
    }

    #[test]
    fn topics_are_parts_joined_by_slashes() {
        for fine in ["a", "dam/ingest", "com/day/cq/replication/job/author/publish"] {
            check_topic(fine).unwrap();
        }
        for bad in ["", "/a", "a/", "a//b", "a b", "a/*", &"x".repeat(MAX_TOPIC_BYTES + 1)] {
            check_topic(bad).unwrap_err();
        }
        assert_eq!(
            escape_topic_part("/etc/models/x/jcr:content/model"),
            "etc/models/x/jcr_content/model"
        );
    }
}
