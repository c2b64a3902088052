//! Components that are drawn for each visitor: the page around them is the same for everyone and is stored once.
//!
//! A component's folder says so in its property `dynamic`:
//! * `include`: an include stands in its place, which the cache in front fills in for each visitor. A page for whom nobody
//!   does that has the component drawn in it.
//! * `ajax`: an empty element stands in its place, which a script fills in the browser.
//!
//! Either asks for the address of the component's own node, with the visitor's cookies.
//!
//! Invariant: a page names each address that it includes in a header of its own answer, so that nothing which somebody
//! typed is taken for an include.
//!
//! Not here: filling in (`tympan_dispatcher`).

use crate::link::encode_path;
use crate::template::escape;

/// The header that names the addresses which a page includes, with blanks between them.
pub(crate) const INCLUDE_HEADER: &str = "x-tympan-include";

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
    let place = format!("<div data-tympan-include=\"{}\"></div>", escape(address));
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
}
