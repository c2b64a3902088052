//! Entity tags: of a document, for the preconditions of writes, and of a response, for conditional reads.
//!
//! A tag is `"<document>.<answer>"`: a hash of the document's stored body, and a hash of the response body. A write
//! with `If-Match` compares the first part, so the tag of any response about a document guards a change of it. A read
//! with `If-None-Match` compares both parts, so no visible difference is missed.
//!
//! The first part is keyed with a key of the farm. For a document that the reader sees only in part, it covers that
//! part only, so that it does not reveal changes of the rest.

use http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};
use tympan_content::Node;

use crate::Instance;
use crate::api::document_tree::read_document_tree;
use crate::failure::{RequestFailure, Result};

/// Number of digits of each part.
const TAG_PART_DIGITS: usize = 32;

/// Returns the tag of the document that holds a node.
pub(crate) fn document_tag(instance: &Instance, node: &Node) -> Option<String> {
    let text = match node.body_id() {
        Some(body) => body.to_string(),
        None => format!("{:?}", read_document_tree(&top_visible_node(node).ok()?).ok()?),
    };
    let hash = Sha256::new().chain_update(instance.tag_key).chain_update(text);
    Some(format!("{:.TAG_PART_DIGITS$}", hex::encode(hash.finalize())))
}

/// Returns the highest visible node of a node's document.
fn top_visible_node(node: &Node) -> tympan_content::Result<Node> {
    let mut top = node.clone();
    while top.summary().is_none() {
        let Some(parent) = top.parent()? else { break };
        top = parent;
    }
    Ok(top)
}

/// Returns the entity tag of a response, including the quotes.
pub(crate) fn response_tag(document: Option<&str>, body: &[u8]) -> String {
    let body = hex::encode(Sha256::digest(body));
    format!("\"{}.{body:.TAG_PART_DIGITS$}\"", document.unwrap_or("-"))
}

/// Returns true if the tags of an `If-None-Match` header match a response.
pub(crate) fn matches_response_tag(condition: &str, tag: &str) -> bool {
    let mut tags = condition.split(',').map(str::trim);
    tags.any(|candidate| {
        candidate == "*" || candidate.strip_prefix("W/").unwrap_or(candidate) == tag
    })
}

/// The precondition of a write on its document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteCondition {
    /// No precondition.
    None,
    /// The document is in one of these states.
    Match(Vec<String>),
    /// The document exists.
    Exists,
    /// The document does not exist.
    Absent,
}

impl WriteCondition {
    /// Reads the precondition from the headers of a write.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        if let Some(tags) = headers.get(header::IF_MATCH) {
            // A header that is not text matches no tag.
            return Self::parse_tags(&String::from_utf8_lossy(tags.as_bytes()));
        }
        let is_absent = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value == "*");
        if is_absent { Self::Absent } else { Self::None }
    }

    /// Parses the tags of an `If-Match` header.
    pub(crate) fn parse_tags(tags: &str) -> Self {
        if tags.trim() == "*" {
            return Self::Exists;
        }
        let document = |tag: &str| {
            let tag = tag.trim().trim_matches('"');
            tag.split_once('.').map_or(tag, |(document, _)| document).to_owned()
        };
        Self::Match(tags.split(',').map(document).collect())
    }

    /// Checks the precondition against the state of a document.
    pub(crate) fn check_document(&self, instance: &Instance, node: Option<&Node>) -> Result<()> {
        let tag = node.and_then(|node| document_tag(instance, node));
        let is_met = match self {
            Self::None => true,
            Self::Exists => node.is_some(),
            Self::Absent => node.is_none(),
            Self::Match(tags) => tag.as_ref().is_some_and(|tag| tags.contains(tag)),
        };
        if is_met {
            return Ok(());
        }
        let message = match self {
            Self::Absent => "the node already exists",
            _ if node.is_none() => "the node does not exist",
            _ => "the document has changed since it was read; read it again",
        };
        let failure = RequestFailure::new(StatusCode::PRECONDITION_FAILED, message);
        Err(match tag {
            Some(tag) => failure.with_detail("currentTag", format!("\"{tag}.-\"")),
            None => failure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_by_their_part() {
        let tag = response_tag(Some("abc"), b"{}");
        assert!(
            matches_response_tag(&tag, &tag)
                && matches_response_tag(&format!("\"x\", W/{tag}"), &tag)
        );
        assert!(!matches_response_tag("\"abc\"", &tag));
        assert_eq!(WriteCondition::parse_tags(&tag), WriteCondition::Match(vec!["abc".to_owned()]));
        assert_eq!(
            WriteCondition::parse_tags("\"abc.-\", \"d\""),
            WriteCondition::Match(vec!["abc".to_owned(), "d".to_owned()])
        );
        assert_eq!(WriteCondition::parse_tags("*"), WriteCondition::Exists);
    }
}
