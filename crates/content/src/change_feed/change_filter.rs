//! The filter of a follower: selects the changes to report.

use regex::Regex;

use crate::change_feed::node_change::{FeedChangeKind, NodeChange};
use crate::{NodePath, Result};

/// Selects changes to report; without any rule, all.
#[derive(Debug, Clone, Default)]
pub struct ChangeFilter {
    path_patterns: Vec<ChangePathPattern>,
    kinds: Vec<FeedChangeKind>,
    node_types: Vec<String>,
}

/// A set of paths.
#[derive(Debug, Clone)]
enum ChangePathPattern {
    /// A node and everything below it.
    Subtree(NodePath),
    /// The paths that a pattern matches; each begins with the literal prefix.
    Glob { literal_prefix: String, pattern: Regex },
}

impl ChangeFilter {
    /// Also accepts changes at or below a path, or at paths that match a pattern: `*` stands for any part of a name,
    /// `**` for any number of names.
    ///
    /// # Errors
    /// [`crate::Error::InvalidName`] if the text is neither.
    pub fn add_path(&mut self, text: &str) -> Result<()> {
        let paths = match text.find('*') {
            None => ChangePathPattern::Subtree(NodePath::new(text)?),
            Some(star) => parse_glob(text, star)?,
        };
        self.path_patterns.push(paths);
        Ok(())
    }

    /// Also accepts changes of a kind.
    pub fn add_kind(&mut self, kind: FeedChangeKind) {
        self.kinds.push(kind);
    }

    /// Also accepts changes of nodes with a primary type.
    pub fn add_node_type(&mut self, name: impl Into<String>) {
        self.node_types.push(name.into());
    }

    /// Returns true if the filter accepts a change.
    pub(crate) fn accepts(&self, change: &NodeChange) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&change.kind))
            && (self.node_types.is_empty() || self.node_types.contains(&change.node_type))
            && (self.matches_path(&change.path)
                || change.from.as_ref().is_some_and(|from| self.matches_path(from)))
    }

    /// Returns true if the filter may accept a change in the document at a path.
    pub(crate) fn may_accept_below(&self, document: &NodePath) -> bool {
        let may = |paths: &ChangePathPattern| match paths {
            ChangePathPattern::Subtree(path) => {
                document.is_within(path) || path.is_within(document)
            }
            ChangePathPattern::Glob { literal_prefix, .. } => {
                let (literal_prefix, document) = (literal_prefix.as_str(), document.as_str());
                document.starts_with(literal_prefix) || literal_prefix.starts_with(document)
            }
        };
        self.path_patterns.is_empty() || self.path_patterns.iter().any(may)
    }

    fn matches_path(&self, path: &NodePath) -> bool {
        let has = |paths: &ChangePathPattern| match paths {
            ChangePathPattern::Subtree(above) => path.is_within(above),
            ChangePathPattern::Glob { pattern, .. } => pattern.is_match(path.as_str()),
        };
        self.path_patterns.is_empty() || self.path_patterns.iter().any(has)
    }
}

/// Parses a pattern whose first star is at `star`.
fn parse_glob(text: &str, star: usize) -> Result<ChangePathPattern> {
    let invalid = |reason| crate::Error::InvalidName {
        text: text.chars().take(200).collect(),
        subject: "path pattern",
        reason,
    };
    if !text.starts_with('/') || text.chars().count() > 1000 {
        return Err(invalid("it must begin with `/` and have at most 1,000 characters"));
    }
    let mut pattern = String::from("^");
    let mut rest = text;
    while let Some(at) = rest.find('*') {
        let (plain, stars) = rest.split_at(at);
        pattern.push_str(&regex::escape(plain));
        let count = stars.bytes().take_while(|byte| *byte == b'*').count();
        pattern.push_str(if count > 1 { ".*" } else { "[^/]*" });
        rest = stars.get(count..).unwrap_or_default();
    }
    pattern.push_str(&regex::escape(rest));
    pattern.push('$');
    let pattern = Regex::new(&pattern).map_err(|_| invalid("it is too long"))?;
    Ok(ChangePathPattern::Glob {
        literal_prefix: text.get(..star).unwrap_or_default().to_owned(),
        pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_patterns_choose() {
        let check = |filter: &str, path: &str, expected: bool| {
            let mut chosen = ChangeFilter::default();
            chosen.add_path(filter).unwrap();
            let path = NodePath::new(path).unwrap();
            assert_eq!(chosen.matches_path(&path), expected, "{filter} {path}");
            assert!(!expected || chosen.may_accept_below(&path), "{filter} {path}");
        };
        check("/content", "/content", true);
        check("/content", "/content/a/b", true);
        check("/content", "/contents", false);
        check("/content/*", "/content/a", true);
        check("/content/*", "/content/a/b", false);
        check("/content/**", "/content/a/b", true);
        check("/content/**/jcr:content", "/content/a/jcr:content", true);
        check("/content/*/a.b", "/content/x/axb", false);
        check("/**", "/", true);
        let mut filter = ChangeFilter::default();
        assert!(filter.add_path("content").is_err() && filter.add_path("*").is_err());
    }
}
