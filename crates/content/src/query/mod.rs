//! Queries: JCR-SQL2, XPath and QueryBuilder maps, one algebra, one planner, streaming execution.
//!
//! In: the text of a query, or a map of predicates, and a [`Snapshot`](crate::Snapshot). Out: rows, read as they are
//! asked for.
//!
//! Invariants
//! * Which index serves a query never changes which rows it gives.
//! * A query reads as many records as its caller takes rows for; only sorting without an index gathers rows first.
//!
//! Not here: the full-text index (room `search`), and the property indexes themselves (`property_index`).

mod access;
mod algebra;
mod builder;
mod builder_tree;
mod condition;
mod cursor;
mod engine;
mod explain;
mod filter;
mod full_text;
mod hash_join;
mod hits;
mod join;
mod plan;
mod print;
mod rows;
mod scan;
mod slow;
mod sort;
mod sql2;
mod sql2_constraint;
mod sql2_token;
mod syntax_error;
mod text_match;
mod text_syntax;
mod xpath;
mod xpath_scan;

pub use algebra::{
    Column, ColumnContent, Constraint, Join, JoinCondition, JoinKind, Literal, Operand, Operator,
    Options, Ordering, Query, Select, Selector, Traversal,
};
pub use builder::BuilderQuery;
pub use engine::{Limits, Page, QueryEngine, Request, Row, WordsBy};
pub use explain::{Explanation, Measured, Step};
pub use full_text::{
    FullText, Readable, Reader, TextExpression, TextHit, TextPage, TextPosition, TextRequest,
};
pub use slow::SlowStatement;
pub use sql2::parse_sql2;
pub use syntax_error::SyntaxError;
pub use text_match::{is_alone, is_link, is_searched, is_word, word_form};
pub use xpath::parse_xpath;
