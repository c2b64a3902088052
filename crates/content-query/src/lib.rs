//! Queries: JCR-SQL2, XPath and QueryBuilder maps, with one algebra, one planner and streaming execution.
//!
//! In: the text of a query, or a map of predicates, and a [`Snapshot`](tympan_content::Snapshot). Out: rows, read on
//! demand.
//!
//! Invariants
//! * The choice of index never changes which rows a query returns.
//! * A query reads only as many records as needed for the rows that its caller takes; only sorting without an index
//!   collects rows first.
//!
//! Not here: the full-text index (crate `search`), and the property indexes themselves (crate `content`).

mod access_plan;
mod algebra;
mod cursor;
mod engine;
mod error;
mod explanation;
mod full_text;
mod full_text_hit;
mod full_text_parser;
mod hash_join;
mod index_condition;
mod join_constraint;
mod node_scan;
mod node_source;
mod predicate_tree;
mod query_builder;
mod query_limits;
mod query_plan;
mod row_filter;
mod row_sort;
mod slow_statement;
mod sql2_constraint;
mod sql2_parser;
mod sql2_token;
mod sql2_writer;
mod syntax_error;
mod text_match;
mod xpath_parser;
mod xpath_scanner;

pub use algebra::{
    ComparisonOperator, ContentQuery, JoinCondition, JoinKind, QueryColumn, QueryColumnContent,
    QueryConstraint, QueryJoin, QueryLiteral, QueryOperand, QueryOptions, QueryOrdering,
    QuerySelector, SelectStatement, TraversalPolicy,
};
pub use engine::{FullTextIndexStatus, QueryEngine, QueryPage, QueryRequest, QueryRow};
pub use error::{Error, Result};
pub use explanation::{QueryExplanation, QueryMeasurement, SelectorExplanation};
pub use full_text::{
    FullTextExpression, FullTextHit, FullTextIndex, FullTextPage, FullTextPosition,
    FullTextRequest, ReadableText, ReadableTextFn,
};
pub use query_builder::BuilderQuery;
pub use query_limits::QueryLimits;
pub use slow_statement::SlowStatement;
pub use sql2_parser::parse_sql2;
pub use syntax_error::QuerySyntaxError;
pub use text_match::{
    is_link_text, is_searched_property, is_single_character_word, is_word_character, normalize_word,
};
pub use xpath_parser::parse_xpath;
