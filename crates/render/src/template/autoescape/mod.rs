//! Contextual escaping: determines the position of each output of a template in an HTML document, before the template
//! runs.
//!
//! Input: the texts of all templates. Output: for each the text to compile, in which every output outside of plain text
//! has the filter of its position, or a [`TemplateRefusal`] with line and caret.
//!
//! A pass over the syntax tree tracks the possible states of an HTML parser (`html`, with `code` for scripts and styles
//! and `address` for URLs) through branches, loops, captures, macros, blocks and includes. If branches leave several
//! states, all of them are tracked; they must agree at each output.
//!
//! Invariants
//! * An output is escaped for every state in which it can be reached, or the template is refused.
//! * Captures, macros and templates begin and end in plain text, so that their results are HTML wherever they are used;
//!   a template that is included inside a tag is compiled separately for that position.
//!
//! Not here: the escaping itself (`output_filter`).

mod analysis;
mod code_state;
mod context;
mod output_escape;
#[cfg(test)]
mod pass_comparison;
mod refusal;
mod rewrite;
mod url_state;

pub(crate) use analysis::analyze_templates;
pub(super) use output_escape::{OutputEscape, UrlExtent};
pub(crate) use refusal::TemplateRefusal;
pub(crate) use rewrite::RewrittenTemplate;
