//! Entity tags: of a document, for conditions of writes, and of an answer, for conditions of reads.
//!
//! A tag is `"<document>.<answer>"`: a hash of the document's stored body, and the hash of what was answered. A write
//! with `If-Match` compares the first part, so that the tag of any answer about a document guards a change of it; a
//! read with `If-None-Match` compares all of it, so that nothing that shows in the answer is missed.
//!
//! The first part is made with a key of the farm. Of a document that its reader sees in part only, it is made of that
//! part, so that nothing tells when the rest changes.

use http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};
use tympan_content::Node;

use crate::Instance;
use crate::api::node::read_document_tree;
use crate::failure::{RequestFailure, Result};

/// Digits of either part.
const TAG_PART_DIGITS: usize = 32;

/// Returns the tag of the document that holds a node.
pub(crate) fn document_tag(instance: &Instance, node: &Node) -> Option<String> {
    let text = match node.body_id() {
        Some(body) => body.to_string(),
        None => format!("{:?}", read_document_tree(&top_visible_node(node).ok()?).ok()?),
    };
    let hash = Sha256::new().chain_update(instance.tag_key).chain_update(text);
    Some(to_hex(&hash.finalize()))
}

/// Returns the highest node of a node's document that is seen.
fn top_visible_node(node: &Node) -> tympan_content::Result<Node> {
    let mut top = node.clone();
    while top.summary().is_none() {
        let Some(parent) = top.parent()? else { break };
        top = parent;
    }
    Ok(top)
}

fn to_hex(hash: &[u8]) -> String {
    hash.iter().take(TAG_PART_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the tag of an answer, in its quotes.
pub(crate) fn response_tag(document: Option<&str>, body: &[u8]) -> String {
    format!("\"{}.{}\"", document.unwrap_or("-"), to_hex(&Sha256::digest(body)))
}

/// Tells whether the tags of an `If-None-Match` name an answer.
pub(crate) fn matches_response_tag(known: &str, tag: &str) -> bool {
    let mut tags = known.split(',').map(str::trim);
    tags.any(|one| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag)
}

/// What a write asks to be true of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteCondition {
    /// Nothing.
    None,
    /// It is one of these states.
    Match(Vec<String>),
    /// It is there.
    Exists,
    /// It is not there.
    Absent,
}

impl WriteCondition {
    /// Reads the headers of a write.
    pub(crate) fn of_headers(headers: &HeaderMap) -> Self {
        if let Some(tags) = headers.get(header::IF_MATCH) {
            // What is no text is the tag of nothing.
            return Self::parse_tags(&String::from_utf8_lossy(tags.as_bytes()));
        }
        let is_absent = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value == "*");
        if is_absent { Self::Absent } else { Self::None }
    }

    /// Reads the tags of an `If-Match`.
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

    /// Checks the state of a document.
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
            Self::Absent => "it is there already",
            _ if node.is_none() => "it is not there any more",
            _ => "it was changed since it was read; read it again",
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
