//! Responses as element trees: XML as written, HTML as browsers build it; and the two query languages of plans, XPath
//! 1.0 and jsoup's selectors.
//!
//! In: a body. Out: a [`MarkupTree`], whose node IDs are numbers in document order.
//!
//! Invariants
//! * The root has ID 0. A node comes before its descendants and after its earlier siblings.
//! * HTML names are in lower case. XML names have the prefix used in the document.

mod css_selector;
mod html_parser;
mod tree;
mod tree_walk;
mod xpath;
mod xpath_evaluation;

pub(super) use css_selector::CssSelector;
pub(super) use tree::MarkupTree;
pub(super) use xpath::XPath;
pub(super) use xpath_evaluation::XPathResult;
