//! Restrictions, which limit an entry of a policy to some nodes and properties.
//!
//! In: the properties of `rep:restrictions`, and a node or property. Out: true if the entry applies to it; or, for a
//! whole section of the tree at once, whether the entry applies always, never, or depends on the node.
//!
//! Invariants
//! * An entry applies only if all of its restrictions match.
//! * With a restriction of an unknown kind, an allow entry never applies; a deny entry applies as if without it.

use tympan_notation::{WildcardToken, matches_wildcards};

use crate::{NodePath, Property, Subtree, Value};

/// A node or property whose access is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccessedItem<'a> {
    /// The path of the node.
    pub(crate) path: &'a str,
    /// The name of the property; `None` for the node itself.
    pub(crate) property: Option<&'a str>,
    /// The primary type of the node.
    pub(crate) primary_type: &'a str,
}

/// The part of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScopePart {
    /// The node at which the scope begins.
    ScopeRoot,
    /// Descendants that belong to no scope of their own.
    Descendants,
}

/// The static result of matching an entry, before a node is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestrictionMatch {
    Always,
    Conditional,
    Never,
}

/// The restrictions of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Restrictions {
    /// The node that the policy controls.
    policy_node: NodePath,
    restrictions: Vec<Restriction>,
    /// The restrictions as stored, for display.
    stored_texts: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Restriction {
    Glob(RestrictionGlob),
    Globs(Vec<RestrictionGlob>),
    NodeTypes(Vec<String>),
    ItemNames(Vec<String>),
    Prefixes(Vec<String>),
    /// The names of the properties that are included with the node; `*` means all.
    CurrentNode(Vec<String>),
    Subtrees(Vec<String>),
    Unknown,
}

/// A pattern of `rep:glob`, joined with the path of the controlled node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RestrictionGlob {
    /// The empty pattern: the node, without its properties.
    NodeOnly,
    /// A pattern without wildcards: the item at a path and everything below it; with a trailing slash, only what is
    /// below.
    Within(String),
    /// A pattern with wildcards, which match any characters including slashes.
    Wildcard(String),
}

/// Limits the work of matching a pattern, as in Oak. With more wildcards, an allow entry never applies, and a deny
/// entry applies to everything that matches the text before the first wildcard.
const MAX_WILDCARDS: usize = 20;

impl Restrictions {
    /// Reads the restrictions of an entry for the node `base`; `None` if there are none.
    ///
    /// They are the properties of the child `rep:restrictions`, or in old content of the entry itself.
    pub(crate) fn from_entry(entry: &Subtree, base: &NodePath) -> Option<Self> {
        let describe = |(name, property): (&String, &Property)| {
            let values: Vec<_> = property.values().iter().map(Value::to_text).collect();
            format!("{name}={}", values.join(","))
        };
        let own = entry.properties.iter().filter(|(name, _)| is_restriction_property(name));
        let child = entry.child("rep:restrictions").into_iter().flat_map(|node| &node.properties);
        let stored: Vec<_> =
            own.chain(child.filter(|(name, _)| *name != crate::PRIMARY_TYPE)).collect();
        let read = |(name, property): &(&String, &Property)| {
            Restriction::from_property(name, property, base)
        };
        (!stored.is_empty()).then(|| Self {
            policy_node: base.clone(),
            restrictions: stored.iter().map(read).collect(),
            stored_texts: stored.iter().copied().map(describe).collect(),
        })
    }

    /// Returns the restrictions as stored.
    pub(crate) fn stored_texts(&self) -> &[String] {
        &self.stored_texts
    }

    /// Returns true if an entry with these restrictions applies to an item.
    pub(crate) fn matches(&self, item: &AccessedItem<'_>, is_grant: bool) -> bool {
        self.restrictions
            .iter()
            .all(|restriction| restriction.matches(item, self.policy_node.as_str(), is_grant))
    }

    /// Returns the static match result of an entry for a whole scope that begins at a path.
    pub(crate) fn match_scope(
        &self,
        scope: &str,
        part: ScopePart,
        is_grant: bool,
    ) -> RestrictionMatch {
        let mut all = RestrictionMatch::Always;
        for restriction in &self.restrictions {
            match restriction.match_scope(scope, part, self.policy_node.as_str(), is_grant) {
                RestrictionMatch::Never => return RestrictionMatch::Never,
                RestrictionMatch::Conditional => all = RestrictionMatch::Conditional,
                RestrictionMatch::Always => {}
            }
        }
        all
    }

    /// Adds the paths at which the result of [`Restrictions::match_scope`] changes.
    pub(crate) fn add_boundary_paths(&self, points: &mut Vec<String>) {
        for restriction in &self.restrictions {
            match restriction {
                Restriction::Glob(glob) => glob.add_boundary_paths(points),
                Restriction::Globs(globs) => {
                    globs.iter().for_each(|glob| glob.add_boundary_paths(points))
                }
                _ => {}
            }
        }
    }
}

/// Returns true if a property of an entry is a restriction.
#[must_use]
pub fn is_restriction_property(name: &str) -> bool {
    matches!(
        name,
        "rep:glob"
            | "rep:globs"
            | "rep:ntNames"
            | "rep:itemNames"
            | "rep:prefixes"
            | "rep:current"
            | "rep:subtrees"
    )
}

impl Restriction {
    fn from_property(name: &str, property: &Property, base: &NodePath) -> Self {
        let texts = || property.values().iter().map(|value: &Value| value.to_text().into_owned());
        match name {
            "rep:glob" => {
                Self::Glob(RestrictionGlob::new(base, &texts().next().unwrap_or_default()))
            }
            "rep:globs" => {
                Self::Globs(texts().map(|text| RestrictionGlob::new(base, &text)).collect())
            }
            "rep:ntNames" => Self::NodeTypes(texts().collect()),
            "rep:itemNames" => Self::ItemNames(texts().collect()),
            "rep:prefixes" => Self::Prefixes(texts().collect()),
            "rep:current" => Self::CurrentNode(texts().collect()),
            "rep:subtrees" => Self::Subtrees(texts().filter(|text| !text.is_empty()).collect()),
            _ => Self::Unknown,
        }
    }

    fn matches(&self, item: &AccessedItem<'_>, base: &str, is_grant: bool) -> bool {
        let name = || item.property.unwrap_or_else(|| item_name(item.path));
        match self {
            Self::Glob(glob) => glob.matches(item, base, is_grant),
            Self::Globs(globs) => globs.iter().any(|glob| glob.matches(item, base, is_grant)),
            Self::NodeTypes(types) => types.iter().any(|type_name| type_name == item.primary_type),
            Self::ItemNames(names) => {
                names.iter().any(|item_name_pattern| item_name_pattern == name())
            }
            Self::Prefixes(prefixes) => {
                let prefix = name().split_once(':').map_or("", |(prefix, _)| prefix);
                prefixes.iter().any(|candidate| candidate == prefix)
            }
            Self::CurrentNode(properties) => {
                item.path == base
                    && item.property.is_none_or(|property| {
                        properties.iter().any(|pattern| pattern == "*" || pattern == property)
                    })
            }
            Self::Subtrees(subtrees) => {
                let path = item.full_path();
                let below = if base == "/" { Some(&*path) } else { path.strip_prefix(base) };
                below.is_some_and(|below| {
                    subtrees.iter().any(|subtree| is_in_subtree(below, subtree))
                })
            }
            Self::Unknown => !is_grant,
        }
    }

    fn match_scope(
        &self,
        scope: &str,
        part: ScopePart,
        base: &str,
        is_grant: bool,
    ) -> RestrictionMatch {
        match self {
            Self::Glob(glob) => glob.match_scope(scope, part, base),
            Self::Globs(globs) => {
                let fits: Vec<_> =
                    globs.iter().map(|glob| glob.match_scope(scope, part, base)).collect();
                if fits.contains(&RestrictionMatch::Always) {
                    RestrictionMatch::Always
                } else if fits.contains(&RestrictionMatch::Conditional) {
                    RestrictionMatch::Conditional
                } else {
                    RestrictionMatch::Never
                }
            }
            Self::CurrentNode(properties) => match part {
                ScopePart::ScopeRoot if scope == base => {
                    let is_whole = properties.iter().any(|pattern| pattern == "*");
                    if is_whole { RestrictionMatch::Always } else { RestrictionMatch::Conditional }
                }
                _ => RestrictionMatch::Never,
            },
            Self::Unknown if is_grant => RestrictionMatch::Never,
            Self::Unknown => RestrictionMatch::Always,
            _ => RestrictionMatch::Conditional,
        }
    }
}

impl RestrictionGlob {
    fn new(base: &NodePath, pattern: &str) -> Self {
        if pattern.is_empty() {
            return Self::NodeOnly;
        }
        let whole = match (base.is_root(), pattern.starts_with('/')) {
            (true, true) => pattern.to_owned(),
            (true, false) => format!("/{pattern}"),
            (false, _) => format!("{base}{pattern}"),
        };
        if whole.contains('*') { Self::Wildcard(whole) } else { Self::Within(whole) }
    }

    fn matches(&self, item: &AccessedItem<'_>, base: &str, is_grant: bool) -> bool {
        match self {
            Self::NodeOnly => item.property.is_none() && item.path == base,
            Self::Within(top) => is_in_glob_subtree(&item.full_path(), top),
            Self::Wildcard(pattern) => match pattern.bytes().filter(|byte| *byte == b'*').count() {
                0..=MAX_WILDCARDS => {
                    matches_wildcards(restriction_tokens(pattern), &item.full_path())
                }
                _ => !is_grant,
            },
        }
    }

    fn match_scope(&self, scope: &str, part: ScopePart, base: &str) -> RestrictionMatch {
        match self {
            Self::NodeOnly if part == ScopePart::ScopeRoot && scope == base => {
                RestrictionMatch::Conditional
            }
            Self::NodeOnly => RestrictionMatch::Never,
            Self::Within(top) => {
                let node = top.trim_end_matches('/');
                let is_strict = node.len() < top.len();
                if scope == node {
                    // The properties of a node lie below its path, so a trailing slash excludes only the node itself.
                    if is_strict && part == ScopePart::ScopeRoot {
                        RestrictionMatch::Conditional
                    } else {
                        RestrictionMatch::Always
                    }
                } else if is_in_glob_subtree(scope, top) {
                    RestrictionMatch::Always
                } else if part == ScopePart::ScopeRoot && !is_strict && parent_path(node) == scope {
                    // The last name may be that of a property.
                    RestrictionMatch::Conditional
                } else {
                    RestrictionMatch::Never
                }
            }
            Self::Wildcard(_) => {
                let is_near =
                    self.literal_prefix_node().is_none_or(|node| is_in_glob_subtree(scope, node));
                if is_near { RestrictionMatch::Conditional } else { RestrictionMatch::Never }
            }
        }
    }

    /// Returns the deepest node that contains everything a pattern with wildcards can match; `None` for the root.
    fn literal_prefix_node(&self) -> Option<&str> {
        let Self::Wildcard(pattern) = self else { return None };
        let literal = pattern.split('*').next().unwrap_or_default();
        literal.rsplit_once('/').map(|(node, _)| node).filter(|node| !node.is_empty())
    }

    fn add_boundary_paths(&self, points: &mut Vec<String>) {
        match self {
            Self::NodeOnly => {}
            Self::Within(top) => {
                let node = top.trim_end_matches('/');
                points.push(node.to_owned());
                points.push(parent_path(node).to_owned());
            }
            Self::Wildcard(_) => points.extend(self.literal_prefix_node().map(str::to_owned)),
        }
    }
}

impl<'a> AccessedItem<'a> {
    /// Returns the path of the node or property.
    fn full_path(&self) -> std::borrow::Cow<'a, str> {
        match self.property {
            None => self.path.into(),
            Some(name) if self.path == "/" => format!("/{name}").into(),
            Some(name) => format!("{}/{name}", self.path).into(),
        }
    }
}

/// Returns true if a path is `top` or lies below it; with a trailing slash in `top`, as in Oak's globs, the node itself
/// is excluded.
fn is_in_glob_subtree(path: &str, top: &str) -> bool {
    match path.strip_prefix(top) {
        Some(rest) => {
            rest.is_empty() && !top.ends_with('/')
                || rest.starts_with('/')
                || top.ends_with('/') && !rest.is_empty()
        }
        None => false,
    }
}

/// Returns true if the part of a path below the controlled node passes through a subtree or ends with its root.
fn is_in_subtree(below: &str, subtree: &str) -> bool {
    if subtree.ends_with('/') {
        return below.contains(subtree);
    }
    let passes = below
        .match_indices(subtree)
        .any(|(at, _)| below.get(at + subtree.len()..).is_some_and(|rest| rest.starts_with('/')));
    passes || below.ends_with(subtree)
}

/// Returns the tokens of a pattern in which only `*` has a meaning.
fn restriction_tokens(pattern: &str) -> impl Iterator<Item = WildcardToken> + Clone {
    pattern.chars().map(|character| match character {
        '*' => WildcardToken::AnyText,
        literal => WildcardToken::Literal(literal),
    })
}

fn item_name(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

fn parent_path(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(restriction: &str, values: &[&str], matching: &[&str], others: &[&str]) {
        let list = Property::parse_list(crate::ValueType::String, values.iter().copied()).unwrap();
        let single = Property::text(values.first().copied().unwrap_or_default());
        let value = if restriction == "rep:glob" { single } else { list };
        let node =
            Subtree::new("rep:restrictions", "rep:Restrictions").with_property(restriction, value);
        let entry = Subtree::new("allow", "rep:GrantACE").with_child(node);
        let restrictions =
            Restrictions::from_entry(&entry, &NodePath::new("/foo").unwrap()).unwrap();
        for (paths, expected) in [(matching, true), (others, false)] {
            for path in paths {
                let (path, property) = match path.split_once('@') {
                    Some((path, property)) => (path, Some(property)),
                    None => (*path, None),
                };
                let primary_type = if path.ends_with("page") { "cq:Page" } else { "nt:folder" };
                let item = AccessedItem { path, property, primary_type };
                assert_eq!(
                    restrictions.matches(&item, true),
                    expected,
                    "{restriction} {values:?} {item:?}"
                );
            }
        }
    }

    /// The table of Oak's documentation, for a policy at `/foo`.
    #[test]
    fn globs_match_as_in_oak() {
        check("rep:glob", &[""], &["/foo"], &["/foo/a", "/foo@title", "/foo2"]);
        check(
            "rep:glob",
            &["/cat"],
            &["/foo/cat", "/foo/cat/a", "/foo/cat@x", "/foo@cat"],
            &["/foo", "/foo/cats"],
        );
        check("rep:glob", &["/cat/"], &["/foo/cat/a", "/foo/cat@x"], &["/foo/cat", "/foo/cats/a"]);
        check("rep:glob", &["cat"], &["/foocat", "/foocat/a"], &["/foo", "/foo/cat"]);
        check("rep:glob", &["cat/"], &["/foocat/a"], &["/foocat", "/foo/cat/a"]);
        check("rep:glob", &["*"], &["/foo", "/foo/a", "/foobar/a", "/foo@x"], &["/other"]);
        check(
            "rep:glob",
            &["/*cat"],
            &["/foo/cat", "/foo/a/tomcat"],
            &["/foo", "/foocat", "/foo/cat/a"],
        );
        check(
            "rep:glob",
            &["/*/cat"],
            &["/foo/a/cat", "/foo/a/b/cat"],
            &["/foo/cat", "/foo/a/cats"],
        );
        check(
            "rep:glob",
            &["/cat*"],
            &["/foo/cat", "/foo/cats/a", "/foo/cat/a"],
            &["/foo/a/cat", "/foo"],
        );
        check(
            "rep:glob",
            &["*cat"],
            &["/foocat", "/foo/tomcat", "/foo/a/cat"],
            &["/foo", "/foo/cat/a"],
        );
        check(
            "rep:glob",
            &["*/cat"],
            &["/foo/cat", "/foo/a/cat", "/foobar/cat"],
            &["/foocat", "/foo/tomcat"],
        );
        check("rep:glob", &["cat/*"], &["/foocat/a"], &["/foocat", "/foo/cat/a"]);
        check(
            "rep:glob",
            &["/cat/*"],
            &["/foo/cat/a", "/foo/cat/a/b"],
            &["/foo/cat", "/foo/a/cat/b"],
        );
        check(
            "rep:glob",
            &["*cat/*"],
            &["/foo/cat/a", "/foo/a/tomcat/b", "/foocat/a"],
            &["/foo/cat", "/foo/a"],
        );
        check("rep:glob", &[&"*a".repeat(21)], &[], &[&format!("/foo{}", "a".repeat(30))]);
        let too_many = RestrictionGlob::new(&NodePath::new("/foo").unwrap(), &"*a".repeat(21));
        let item = AccessedItem { path: "/foo/secret", property: None, primary_type: "nt:folder" };
        assert!(too_many.matches(&item, "/foo", false), "a refusal stays");
        check(
            "rep:globs",
            &["/cat", "/*dog"],
            &["/foo/cat/a", "/foo/hotdog"],
            &["/foo", "/foo/hotdog/a"],
        );
        check("rep:globs", &[], &[], &["/foo", "/foo/a"]);
    }

    #[test]
    fn names_types_and_subtrees_match_as_in_oak() {
        check("rep:ntNames", &["cq:Page"], &["/foo/page", "/foo/page@x"], &["/foo/x", "/foo"]);
        check("rep:itemNames", &["a", "x"], &["/foo/a", "/foo/b@x"], &["/foo/b", "/foo/a@y"]);
        check("rep:prefixes", &["cq"], &["/foo/cq:a", "/foo@cq:x"], &["/foo/a", "/foo/cq:a@jcr:x"]);
        check("rep:prefixes", &[""], &["/foo", "/foo/a@x"], &["/foo/cq:a"]);
        check("rep:current", &[], &["/foo"], &["/foo@x", "/foo/a"]);
        check("rep:current", &["*"], &["/foo", "/foo@x"], &["/foo/a", "/foo/a@x"]);
        check("rep:current", &["x"], &["/foo", "/foo@x"], &["/foo@y", "/foo/a"]);
        check(
            "rep:subtrees",
            &["/a"],
            &["/foo/a", "/foo/a/b", "/foo/c/a", "/foo/c/a/d", "/foo@a"],
            &["/foo", "/foo/ab", "/foo/c"],
        );
        check("rep:subtrees", &["/a/"], &["/foo/a/b", "/foo/a@x"], &["/foo/a", "/foo/ab/c"]);
        check("rep:subtrees", &[".ext"], &["/foo/b.ext", "/foo/b.ext/c"], &["/foo/b.extra"]);
        check("rep:unheardOf", &["x"], &[], &["/foo", "/foo/a"]);
    }
}
