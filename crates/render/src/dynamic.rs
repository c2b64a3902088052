//! Components that are drawn for each visitor: the page around them is the same for everyone and is stored once.
//!
//! A component's folder says so in its property `dynamic`:
//! * `include`: an include stands in its place, which the cache in front fills in for each visitor. A page for whom nobody
//!   does that has the component drawn in it, and one that becomes a file a place for the script.
//! * `ajax`: an empty element stands in its place, which a script fills in the browser.
//!
//! A component says in its property `dynamicChildren` which of the components that it includes are drawn so, whatever these
//! say themselves: resource types, each with `=ajax` or `=include` behind it; `include` is meant where nothing is said.
//!
//! Either asks for the address of the component's own node, with the visitor's cookies.
//!
//! Invariant: a page names each address that it includes in a header of its own answer, so that nothing which somebody
//! typed is taken for an include.
//!
//! Not here: filling in (`tympan_dispatcher`).

use std::collections::HashMap;

use crate::link::encode_path;
use crate::policy::relative;
use crate::template::escape;

/// The header that names the addresses which a page includes, with blanks between them.
pub(crate) const INCLUDE_HEADER: &str = "x-tympan-include";

/// The attribute with the address of what a script puts into an element's place.
pub(crate) const PLACE: &str = "data-tympan-include";

/// The name of the script that fills in places, as a file of a client library.
pub(crate) const FETCHER_NAME: &str = "tympan/include.js";

/// The script that fills in places. A part that cannot be had leaves its place empty.
pub(crate) const FETCHER: &str = include_str!("include.js");

/// How a component is put into pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dynamic {
    /// By the cache in front.
    Include,
    /// By a script in the browser.
    Ajax,
}

impl Dynamic {
    /// Reads the property of a component.
    pub(crate) fn find(text: &str) -> Option<Self> {
        Some(match text.trim() {
            "include" => Self::Include,
            "ajax" => Self::Ajax,
            _ => return None,
        })
    }
}

/// What a component says of those that it includes: how a type is put into pages.
pub(crate) type DynamicChildren = HashMap<String, Dynamic>;

/// Reads the property of a component about others; entries that make no sense come back as they are.
pub(crate) fn read_children(entries: &[String]) -> (DynamicChildren, Vec<&str>) {
    let (mut children, mut odd) = (DynamicChildren::new(), Vec::new());
    for entry in entries {
        let (kind, how) = entry.split_once('=').unwrap_or((entry, "include"));
        let kind = relative(kind.trim());
        match Dynamic::find(how) {
            Some(how) if !kind.is_empty() => {
                children.insert(kind.to_owned(), how);
            }
            _ => odd.push(entry.as_str()),
        }
    }
    (children, odd)
}

/// Returns an include in the form that caches and web servers know.
pub(crate) fn include_tag(address: &str) -> String {
    format!("<!--#include virtual=\"{address}\" -->")
}

/// Returns the address of a component's node; it has no quote and no `--`, which would end a comment.
pub(crate) fn address_of(path: &str) -> String {
    format!("{}.html", encode_path(path).replace("--", "%2D%2D"))
}

/// Returns an element that a script fills, and the script itself where it is not on the page yet.
pub(crate) fn place(address: &str, script: Option<&str>) -> String {
    let place = format!("<div {PLACE}=\"{}\"></div>", escape(address));
    match script {
        Some(url) => format!("{place}<script src=\"{}\" defer></script>", escape(url)),
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_places() {
        assert_eq!(
            place("/a'b.html", Some("/x.js")),
            "<div data-tympan-include=\"/a&#39;b.html\"></div><script src=\"/x.js\" defer></script>"
        );
        assert_eq!(Dynamic::find(" include "), Some(Dynamic::Include));
        assert_eq!(Dynamic::find("esi"), None);
    }

    #[test]
    fn reads_what_is_said_of_others() {
        let entries = ["a/b", "/apps/c/d = ajax", "e=esi", " =ajax"].map(str::to_owned);
        let (children, odd) = read_children(&entries);
        assert_eq!(children.get("a/b"), Some(&Dynamic::Include));
        assert_eq!(children.get("c/d"), Some(&Dynamic::Ajax));
        assert_eq!((children.len(), odd), (2, vec!["e=esi", " =ajax"]));
    }
}
