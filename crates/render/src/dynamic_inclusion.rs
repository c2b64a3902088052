//! Components that are rendered for each visitor: the page around them is the same for everyone and is stored once.
//!
//! A component's folder declares it in its property `dynamic`:
//! * `include`: the page has an include in its place, which the cache in front fills for each visitor. If no cache does
//!   that for a request, the component is rendered into the page; a page that becomes a file gets a placeholder for the
//!   script.
//! * `ajax`: the page has an empty element in its place, which a script fills in the browser.
//!
//! The property `dynamicChildren` of a component declares it for the components that it includes, and overrides their
//! own property: resource types, each with an optional `=ajax` or `=include`; the default is `include`.
//!
//! Both request the address of the component's own node, with the visitor's cookies.
//!
//! Invariant: a page lists each address that it includes in a response header, so that text entered by users is never
//! taken for an include.
//!
//! Not here: filling the includes (`tympan_dispatcher`).

use std::collections::HashMap;

use tympan_notation::escape_html;

use crate::page::container_policy::relative_resource_type;
use crate::page::link::encode_path;

/// The header that lists the addresses which a page includes, separated by blanks.
pub(crate) const INCLUDE_HEADER: &str = "x-tympan-include";

/// The attribute with the address of the content that a script puts into an element.
pub const INCLUDE_ATTRIBUTE: &str = "data-tympan-include";

/// The name of the script that fills placeholders, as a file of a client library.
pub(crate) const INCLUDE_SCRIPT_NAME: &str = "tympan/include.js";

/// The script that fills placeholders. If a part cannot be fetched, its placeholder stays empty.
pub(crate) const INCLUDE_SCRIPT: &str = include_str!("include.js");

/// The way a component is put into pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DynamicInclusion {
    /// By the cache in front.
    Include,
    /// By a script in the browser.
    Ajax,
}

impl DynamicInclusion {
    /// Parses the property of a component.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(match text.trim() {
            "include" => Self::Include,
            "ajax" => Self::Ajax,
            _ => return None,
        })
    }
}

/// The inclusions that a component declares for the components that it includes, by resource type.
pub(crate) type DynamicChildInclusions = HashMap<String, DynamicInclusion>;

/// Parses the property of a component about others; also returns the invalid entries unchanged.
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

/// Returns an include in the syntax of caches and web servers.
pub(crate) fn ssi_include_tag(address: &str) -> String {
    format!("<!--#include virtual=\"{address}\" -->")
}

/// Returns the address of a component's node. It has no quote and no `--`, which would end a comment.
pub(crate) fn component_address(path: &str) -> String {
    format!("{}.html", encode_path(path).replace("--", "%2D%2D"))
}

/// Returns an element that a script fills, followed by the script if the page does not have it yet.
pub(crate) fn placeholder_element(address: &str, script: Option<&str>) -> String {
    let element = format!("<div {INCLUDE_ATTRIBUTE}=\"{}\"></div>", escape_html(address));
    match script {
        Some(url) => format!("{element}<script src=\"{}\" defer></script>", escape_html(url)),
        None => element,
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
