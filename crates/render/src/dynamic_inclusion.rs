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

use crate::container_policy::relative_resource_type;
use crate::link::encode_path;
use crate::template::escape_html;

/// The header that names the addresses which a page includes, with blanks between them.
pub(crate) const INCLUDE_HEADER: &str = "x-tympan-include";

/// The attribute with the address of what a script puts into an element's place.
pub(crate) const INCLUDE_ATTRIBUTE: &str = "data-tympan-include";

/// The name of the script that fills in places, as a file of a client library.
pub(crate) const INCLUDE_SCRIPT_NAME: &str = "tympan/include.js";

/// The script that fills in places. A part that cannot be had leaves its place empty.
pub(crate) const INCLUDE_SCRIPT: &str = include_str!("include.js");

/// How a component is put into pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DynamicInclusion {
    /// By the cache in front.
    Include,
    /// By a script in the browser.
    Ajax,
}

impl DynamicInclusion {
    /// Reads the property of a component.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text.trim() {
            "include" => Self::Include,
            "ajax" => Self::Ajax,
            _ => return None,
        })
    }
}

/// What a component says of those that it includes: how a type is put into pages.
pub(crate) type DynamicChildInclusions = HashMap<String, DynamicInclusion>;

/// Reads the property of a component about others; entries that make no sense come back as they are.
pub(crate) fn parse_child_inclusions(entries: &[String]) -> (DynamicChildInclusions, Vec<&str>) {
    let (mut children, mut odd) = (DynamicChildInclusions::new(), Vec::new());
    for entry in entries {
        let (kind, how) = entry.split_once('=').unwrap_or((entry, "include"));
        let kind = relative_resource_type(kind.trim());
        match DynamicInclusion::parse(how) {
            Some(how) if !kind.is_empty() => {
                children.insert(kind.to_owned(), how);
            }
            _ => odd.push(entry.as_str()),
        }
    }
    (children, odd)
}

/// Returns an include in the form that caches and web servers know.
pub(crate) fn ssi_include_tag(address: &str) -> String {
    format!("<!--#include virtual=\"{address}\" -->")
}

/// Returns the address of a component's node; it has no quote and no `--`, which would end a comment.
pub(crate) fn component_address(path: &str) -> String {
    format!("{}.html", encode_path(path).replace("--", "%2D%2D"))
}

/// Returns an element that a script fills, and the script itself where it is not on the page yet.
pub(crate) fn placeholder_element(address: &str, script: Option<&str>) -> String {
    let place = format!("<div {INCLUDE_ATTRIBUTE}=\"{}\"></div>", escape_html(address));
    match script {
        Some(url) => format!("{place}<script src=\"{}\" defer></script>", escape_html(url)),
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_places() {
        assert_eq!(
            placeholder_element("/a'b.html", Some("/x.js")),
            "<div data-tympan-include=\"/a&#39;b.html\"></div><script src=\"/x.js\" defer></script>"
        );
        assert_eq!(DynamicInclusion::parse(" include "), Some(DynamicInclusion::Include));
        assert_eq!(DynamicInclusion::parse("esi"), None);
    }

    #[test]
    fn reads_what_is_said_of_others() {
        let entries = ["a/b", "/apps/c/d = ajax", "e=esi", " =ajax"].map(str::to_owned);
        let (children, odd) = parse_child_inclusions(&entries);
        assert_eq!(children.get("a/b"), Some(&DynamicInclusion::Include));
        assert_eq!(children.get("c/d"), Some(&DynamicInclusion::Ajax));
        assert_eq!((children.len(), odd), (2, vec!["e=esi", " =ajax"]));
    }
}
