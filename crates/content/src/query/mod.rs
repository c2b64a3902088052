//! Queries: JCR-SQL2, XPath and QueryBuilder maps, one algebra, one planner, streaming execution.

mod full_text;
mod syntax_error;
mod text_syntax;

pub use full_text::{FullText, TextExpression, TextHit, TextPage, TextPosition, TextRequest};
pub use syntax_error::SyntaxError;
