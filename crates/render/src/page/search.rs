//! Search for visitors: converts user input to a query for pages, and its rows to hits.
//!
//! Input: the text that a visitor typed. Output: pages that the request's viewer may read, best first, with an excerpt.
//!
//! Invariants
//! * No input is an error: parts without a meaning are ignored.
//! * Patterns that match very many words cannot be entered, and the number of result pages is limited: the cost per
//!   visitor is bounded.
//!
//! Not here: words, stems and scores (the full-text index behind the query engine), access control (content).

use tympan_content::{Error as ContentError, Node, NodePath, Value};
use tympan_content_query::{
    FullTextExpression, FullTextIndexStatus, QueryEngine, QueryPage, QueryRequest, Result,
    parse_sql2,
};

use crate::dependency::content_reader::ContentReader;
use crate::render_options::RenderMode;

/// Maximum number of words and phrases; more are ignored.
const MAX_TERMS: usize = 16;
/// Maximum number of input characters; more are ignored.
const MAX_INPUT_CHARACTERS: usize = 500;
/// Maximum number of hits per result page, and of result pages.
const MAX_HITS_PER_PAGE: usize = 100;
const MAX_PAGE_NUMBER: usize = 50;
/// Maximum number of nodes that a component's query returns.
const MAX_QUERY_NODES: usize = 1000;

/// A search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageSearch<'a> {
    /// The page that hits lie below.
    pub root: &'a Node,
    /// The text that the visitor typed.
    pub input: &'a str,
    /// Number of hits per result page.
    pub limit: usize,
    /// Number of the result page, starting at 1.
    pub page_number: usize,
    /// The resource type of the requesting component, for the log of slow queries.
    pub component: &'a str,
}

/// One page of search results.
#[derive(Debug, Default)]
pub(crate) struct PageSearchResults {
    pub hits: Vec<PageSearchHit>,
    /// True if another page follows.
    pub has_more: bool,
    /// True if the index is being built, so that pages may be missing.
    pub is_index_building: bool,
}

/// A page that was found.
#[derive(Debug)]
pub(crate) struct PageSearchHit {
    pub page: Node,
    /// A part of its text as HTML with marked words; `None` if it may expose content that the viewer does not see.
    pub excerpt: Option<String>,
}

/// Finds pages.
///
/// # Errors
/// Errors of the store and the index, and a query that takes too long.
pub(crate) fn search_pages(
    reader: &ContentReader,
    engine: &QueryEngine,
    search: PageSearch<'_>,
) -> Result<PageSearchResults> {
    let number = search.page_number.clamp(1, MAX_PAGE_NUMBER);
    let Some(expression) =
        parse_search_input(search.input).filter(|_| number == search.page_number)
    else {
        return Ok(PageSearchResults::default());
    };
    let limit = search.limit.clamp(1, MAX_HITS_PER_PAGE);
    let statement = format!(
        "SELECT [jcr:path], [rep:excerpt()] FROM [cq:Page] AS page \
         WHERE ISDESCENDANTNODE(page, '{}') AND CONTAINS(page.*, $words)",
        search.root.path().as_str().replace('\'', "''"),
    );
    let query = parse_sql2(&statement).map_err(|_| ContentError::Damaged {
        path: search.root.path().clone(),
        reason: "its path cannot be searched",
    })?;
    let mut request = QueryRequest::new(query);
    request.variables.insert("words".to_owned(), Value::String(expression.to_string()));
    request.offset = ((number - 1) * limit) as u64;
    // One more row shows whether a page follows.
    request.limit = Some(limit as u64 + 1);
    request.component = search.component;
    let QueryPage { mut rows, full_text_status, .. } =
        reader.run_query(engine, &request, search.root.path())?;
    let is_more = rows.len() > limit && number < MAX_PAGE_NUMBER;
    rows.truncate(limit);
    let hits = rows.into_iter().filter_map(|row| {
        let page = row.node()?.clone();
        Some(PageSearchHit { page, excerpt: row.excerpt })
    });
    let is_building = full_text_status == FullTextIndexStatus::Building;
    Ok(PageSearchResults {
        hits: hits.collect(),
        has_more: is_more,
        is_index_building: is_building,
    })
}

/// The result of a component's query.
#[derive(Debug, Default)]
pub(crate) struct ComponentQueryResult {
    pub nodes: Vec<Node>,
    /// A warning about scanned nodes, if no index serves the query; computed for authors only.
    pub warning: Option<String>,
}

/// Runs a query in SQL-2 with values for its variables.
///
/// # Errors
/// A message, if the query is malformed or takes too long.
pub(crate) fn run_component_query(
    reader: &ContentReader,
    engine: &QueryEngine,
    statement: &str,
    arguments: Vec<(String, String)>,
    limit: usize,
    component: &str,
    mode: RenderMode,
) -> std::result::Result<ComponentQueryResult, String> {
    let query = parse_sql2(statement).map_err(|error| error.to_string())?;
    let mut request = QueryRequest::new(query);
    request.variables =
        arguments.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    request.limit = Some(limit.clamp(1, MAX_QUERY_NODES) as u64);
    request.component = component;
    // The result may change with any node.
    let page =
        reader.run_query(engine, &request, &NodePath::root()).map_err(|error| error.to_string())?;
    let nodes = page.rows.iter().filter_map(|row| row.node().cloned()).collect();
    let warning = match mode {
        RenderMode::Author => reader.describe_unindexed(engine, &request),
        RenderMode::Publish => None,
    };
    Ok(ComponentQueryResult { nodes, warning })
}

/// Parses a visitor's input: words, "phrases", and `-` before excluded words. `None` if no word is required.
fn parse_search_input(typed: &str) -> Option<FullTextExpression> {
    let typed: String = typed.chars().take(MAX_INPUT_CHARACTERS).collect();
    let mut parts = Vec::new();
    let pieces: Vec<&str> = typed.split('"').collect();
    for (at, piece) in pieces.iter().enumerate() {
        // Text between two quotes; an unclosed last quote is ignored.
        if at % 2 == 1 && at + 1 < pieces.len() {
            let is_denied = pieces.get(at - 1).is_some_and(|before| before.ends_with('-'));
            parts.extend(search_term(FullTextExpression::Phrase, piece, is_denied));
            continue;
        }
        for word in piece.split_whitespace() {
            let is_denied = word.starts_with('-');
            parts.extend(search_term(FullTextExpression::Term, word, is_denied));
        }
    }
    parts.truncate(MAX_TERMS);
    let is_wanted = parts.iter().any(|part| !matches!(part, FullTextExpression::Not(_)));
    is_wanted.then_some(FullTextExpression::And(parts))
}

fn search_term(
    kind: fn(String) -> FullTextExpression,
    typed: &str,
    is_denied: bool,
) -> Option<FullTextExpression> {
    let words = typed
        .split(|character: char| !character.is_alphanumeric() && !is_word_character(character));
    let words: Vec<&str> = words.filter(|word| word.contains(char::is_alphanumeric)).collect();
    let part = (!words.is_empty()).then(|| kind(words.join(" ")))?;
    Some(if is_denied { FullTextExpression::Not(Box::new(part)) } else { part })
}

/// Returns true if a character may occur in a word without a meaning in the search syntax.
fn is_word_character(character: char) -> bool {
    !character.is_ascii() && !character.is_whitespace() && !character.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(typed: &str, expected: &str) {
        let expression =
            parse_search_input(typed).map(|expression| expression.to_string()).unwrap_or_default();
        assert_eq!(expression, expected, "{typed}");
        if !expression.is_empty() {
            assert!(FullTextExpression::parse(&expression).is_ok(), "{expression}");
        }
    }

    #[test]
    fn reads_what_visitors_type() {
        check("lisbon", "lisbon");
        check("night train", "night train");
        check("\"night train\" -berlin", "\"night train\" -berlin");
        check("-\"night train\" berlin", "-\"night train\" berlin");
        check("\"never closed", "never closed");
        check("a*b ??? (c OR d", "a\\ b c \\OR d");
        check("", "");
        check("-berlin", "");
        check("\"\" * -", "");
        check("'; DROP", "DROP");
        check("東京 café", "東京 café");
    }

    proptest::proptest! {
        #[test]
        fn no_input_is_an_error(typed in "[a\"\\-*?()^\\\\OR ']{0,40}|.{0,600}") {
            if let Some(found) = parse_search_input(&typed) {
                proptest::prop_assert!(FullTextExpression::parse(&found.to_string()).is_ok(), "{}", found);
            }
        }
    }
}
