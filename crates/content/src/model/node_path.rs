//! Names and absolute paths of nodes.
//!
//! A [`NodePath`] is always absolute and normalized: it begins with `/`, has no empty, `.` or `..` segment and does not
//! end with `/` (except the root). Cloning is cheap.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::{Error, Result};

/// The absolute path of a node.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodePath(Arc<str>);

/// Returns true if an absolute path is `ancestor` or lies below it.
#[must_use]
pub fn is_path_within(path: &str, ancestor: &str) -> bool {
    let rest = path.strip_prefix(ancestor);
    ancestor == "/" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl NodePath {
    /// Returns the path of the root, `/`.
    #[must_use]
    pub fn root() -> Self {
        Self(Arc::from("/"))
    }

    /// Parses an absolute path and checks each of its names.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if the text is not an absolute, normalized path of valid names.
    pub fn new(text: &str) -> Result<Self> {
        if text == "/" {
            return Ok(Self::root());
        }
        let invalid =
            |reason| Error::InvalidName { text: text.to_owned(), subject: "path", reason };
        let names = text.strip_prefix('/').ok_or_else(|| invalid("it must begin with `/`"))?;
        if text.len() > Self::MAX_PATH_BYTES {
            return Err(invalid("it is longer than 1,000 bytes"));
        }
        if !is_plain_path(names) {
            names.split('/').try_for_each(check_item_name)?;
        }
        Ok(Self(Arc::from(text)))
    }

    /// The maximum length of a path, in bytes: together with a name and a value it fits in a key of the tree, which
    /// holds at most 2 KiB.
    pub const MAX_PATH_BYTES: usize = 1000;

    /// Resolves a path that may be relative to `self` and may contain `.` and `..`.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if it climbs above the root or contains an invalid name.
    pub fn resolve(&self, text: &str) -> Result<Self> {
        // Fast path: nearly all texts are a name or a normalized path.
        if text.starts_with('/') {
            if text.strip_prefix('/').is_some_and(is_plain_path) {
                return Self::new(text);
            }
        } else if self.0.len() + 1 + text.len() <= Self::MAX_PATH_BYTES && is_plain_path(text) {
            return Ok(self.child_unchecked(text));
        }
        let mut names: Vec<&str> =
            if text.starts_with('/') { Vec::new() } else { self.names().collect() };
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => {
                    names.pop().ok_or_else(|| Error::InvalidName {
                        text: text.to_owned(),
                        subject: "path",
                        reason: "it leads above the root",
                    })?;
                }
                name => names.push(name),
            }
        }
        Self::new(&format!("/{}", names.join("/")))
    }

    /// Returns the path of the child `name`.
    ///
    /// # Errors
    /// [`Error::InvalidName`] if `name` is not a valid name.
    pub fn child(&self, name: &str) -> Result<Self> {
        check_item_name(name)?;
        Ok(self.child_unchecked(name))
    }

    /// Returns the path of a child whose name is known to be valid.
    #[must_use]
    pub fn child_unchecked(&self, name: &str) -> Self {
        let parent = if self.is_root() { "" } else { &*self.0 };
        let mut path = String::with_capacity(parent.len() + 1 + name.len());
        path.push_str(parent);
        path.push('/');
        path.push_str(name);
        Self(path.into())
    }

    /// Returns the parent's path; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        if self.is_root() {
            return None;
        }
        match self.last_slash().and_then(|at| self.0.get(..at)) {
            Some("") | None => Some(Self::root()),
            Some(parent) => Some(Self(parent.into())),
        }
    }

    /// Returns the last name; it is empty for the root.
    #[must_use]
    pub fn name(&self) -> &str {
        self.last_slash().and_then(|at| self.0.get(at + 1..)).unwrap_or_default()
    }

    /// Returns the offset of the last slash. Names are short, so a word-wise search would be slower.
    fn last_slash(&self) -> Option<usize> {
        self.0.bytes().rposition(|byte| byte == b'/')
    }

    /// Returns the names from the root downwards.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// Returns the number of names in the path: 0 for the root.
    #[must_use]
    pub fn depth(&self) -> usize {
        if self.is_root() { 0 } else { self.0.bytes().filter(|byte| *byte == b'/').count() }
    }

    /// Returns true if this is `/`.
    #[must_use]
    pub fn is_root(&self) -> bool {
        &*self.0 == "/"
    }

    /// Returns true if `self` is `ancestor` or lies below it.
    #[must_use]
    pub fn is_within(&self, ancestor: &Self) -> bool {
        is_path_within(&self.0, &ancestor.0)
    }

    /// Returns the part below `ancestor` without a leading slash; `None` if `self` is not within it.
    #[must_use]
    pub fn relative_to(&self, ancestor: &Self) -> Option<&str> {
        if !self.is_within(ancestor) {
            return None;
        }
        let from = if ancestor.is_root() { 0 } else { ancestor.0.len() };
        self.0.get(from..).map(|rest| rest.trim_start_matches('/'))
    }

    /// Returns the path of `self` after the subtree at `from` moves to `to`; `None` if `self` is not within `from`.
    #[must_use]
    pub fn rebase(&self, from: &Self, to: &Self) -> Option<Self> {
        match self.relative_to(from)? {
            "" => Some(to.clone()),
            rest if to.is_root() => Some(Self(format!("/{rest}").into())),
            rest => Some(Self(format!("{to}/{rest}").into())),
        }
    }

    /// Returns the path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path as a shared text, which can be stored without copying.
    #[must_use]
    pub fn as_arc(&self) -> &Arc<str> {
        &self.0
    }
}

/// Returns true if all names of a path consist of letters, digits and a few safe characters, so that no rule needs
/// checking.
fn is_plain_path(names: &str) -> bool {
    let is_name = |(length, dots, colons, last): (u32, u32, u32, u8)| {
        length > dots && length <= 256 && colons <= 1 && last != b':'
    };
    let (mut length, mut dots, mut colons, mut last) = (0, 0, 0, b'/');
    for byte in names.bytes() {
        if !IS_PLAIN_BYTE.get(usize::from(byte)).is_some_and(|is_plain| *is_plain) {
            match byte {
                b'.' => dots += 1,
                b':' if length > 0 => colons += 1,
                b'/' if is_name((length, dots, colons, last)) => {
                    (length, dots, colons, last) = (0, 0, 0, byte);
                    continue;
                }
                _ => return false,
            }
        }
        (length, last) = (length + 1, byte);
    }
    is_name((length, dots, colons, last))
}

/// The bytes that are valid anywhere in a name. Every path is scanned for other bytes.
const IS_PLAIN_BYTE: [bool; 256] = plain_byte_table();

#[expect(clippy::indexing_slicing, reason = "a byte is below 256")]
const fn plain_byte_table() -> [bool; 256] {
    let mut plain = [false; 256];
    let mut byte = 0_u8;
    while byte < u8::MAX {
        plain[byte as usize] = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        byte += 1;
    }
    plain
}

/// Checks a node or property name against JCR's rules and the limits of the tree.
///
/// # Errors
/// [`Error::InvalidName`] with the violated rule.
pub fn check_item_name(name: &str) -> Result<()> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name == "." || name == ".." {
        "`.` and `..` are not names"
    } else if name.len() > 256 {
        "it is longer than 256 bytes"
    } else if name.contains(['/', '[', ']', '|', '*']) {
        "it contains one of / [ ] | *"
    } else if name.starts_with(char::is_whitespace) || name.ends_with(char::is_whitespace) {
        "it begins or ends with whitespace"
    } else if name.chars().any(|character| !is_xml_name_character(character)) {
        "it contains a control character"
    } else if !has_valid_prefix(name) {
        "it contains a colon that does not end a prefix"
    } else {
        return Ok(());
    };
    Err(Error::InvalidName { text: name.to_owned(), subject: "name", reason })
}

/// Returns true if the name has no colon, or exactly one between a prefix and a local name.
fn has_valid_prefix(name: &str) -> bool {
    match name.split_once(':') {
        None => true,
        Some((prefix, local)) => {
            !prefix.is_empty()
                && !local.is_empty()
                && !local.contains(':')
                && !prefix.contains(char::is_whitespace)
        }
    }
}

/// Returns true if XML 1.0 allows the character, other than as line white space.
fn is_xml_name_character(character: char) -> bool {
    character >= ' ' && !matches!(character, '\u{7f}'..='\u{9f}' | '\u{fffe}' | '\u{ffff}')
}

/// Returns a name without its namespace prefix.
#[must_use]
pub fn local_name(name: &str) -> &str {
    name.split_once(':').map_or(name, |(_, local)| local)
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for NodePath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::new(text)
    }
}

impl AsRef<str> for NodePath {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for NodePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_jcr_refuses() {
        for bad in [
            "", ".", "..", "a/b", "a[1]", "a|b", "a*", " a", "a ", "a\tb", "a\nb", "a\u{1}", ":a",
            "a:", "a:b:c",
        ] {
            assert!(check_item_name(bad).is_err(), "{bad:?}");
            assert!(!is_plain_path(bad) || bad == "a/b", "{bad:?}");
        }
        for good in ["a", "jcr:content", "a.b", "a b", "ü", "..a", "a-b_c~1", "%41", "rep:policy"]
        {
            assert!(check_item_name(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn plain_paths_have_valid_names() {
        let long = "x".repeat(256);
        let too_long = "x".repeat(257);
        for plain in ["a", "content/site/jcr:content/par_1", "a.b/..a/x-1.html", &long] {
            assert!(
                is_plain_path(plain) && plain.split('/').all(|name| check_item_name(name).is_ok())
            );
        }
        for invalid_path in [
            "", "a/", "a//b", "/a", "a/.", "../b", "...", "a:/b", "a/:b", "a:b:c", "a b", &too_long,
        ] {
            assert!(!is_plain_path(invalid_path), "{invalid_path:?}");
        }
        let path = |text: &str| NodePath::new(text).unwrap();
        assert_eq!((NodePath::root().depth(), NodePath::root().name()), (0, ""));
        assert_eq!((path("/a/b c/d").depth(), path("/a/b c/d").name()), (3, "d"));
    }

    #[test]
    fn resolves_and_relates() {
        let page = NodePath::new("/content/site/page").unwrap();
        assert_eq!(page.resolve("../other/./x").unwrap().as_str(), "/content/site/other/x");
        assert_eq!(page.resolve("/etc//a").unwrap().as_str(), "/etc/a");
        for (text, expected) in [
            ("", "/content/site/page"),
            (".", "/content/site/page"),
            ("par", "/content/site/page/par"),
            ("jcr:content/par_1", "/content/site/page/jcr:content/par_1"),
            ("a b/", "/content/site/page/a b"),
            ("/", "/"),
            ("/etc/a", "/etc/a"),
            ("/etc/../a", "/a"),
        ] {
            assert_eq!(page.resolve(text).unwrap().as_str(), expected, "{text:?}");
        }
        assert_eq!(NodePath::root().resolve("a/b").unwrap().as_str(), "/a/b");
        for wrong in ["a:b:c", "/a[1]", &"x/".repeat(501), &"/x".repeat(501)] {
            assert!(page.resolve(wrong).is_err(), "{wrong:?}");
        }
        assert!(page.resolve("../../../..").is_err());
        assert_eq!(page.parent().unwrap().as_str(), "/content/site");
        assert_eq!(NodePath::new("/a").unwrap().parent().unwrap(), NodePath::root());
        assert_eq!(NodePath::root().parent(), None);
        assert!(page.is_within(&NodePath::new("/content/site").unwrap()));
        assert!(!page.is_within(&NodePath::new("/content/sit").unwrap()));
        assert_eq!(page.relative_to(&NodePath::root()), Some("content/site/page"));
        let moved = page
            .rebase(&NodePath::new("/content").unwrap(), &NodePath::new("/etc/x").unwrap())
            .unwrap();
        assert_eq!(moved.as_str(), "/etc/x/site/page");
        assert!(
            NodePath::new("a/b").is_err()
                && NodePath::new("/a/").is_err()
                && NodePath::new("/a//b").is_err()
        );
    }
}
