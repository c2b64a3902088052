//! Answers queries: planning, hits, excerpts, facets and suggestions.

pub(crate) mod excerpt;
pub(crate) mod facet;
pub(crate) mod index_view;
pub(crate) mod query_planner;
pub(crate) mod reader_vocabulary;
pub(crate) mod similar_query;
pub(crate) mod suggestion;
pub(crate) mod top_hit;
pub(crate) mod word_expansion;
