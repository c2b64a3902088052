//! A recursive descent parser for JCR-SQL2.
//!
//! In: a statement. Out: a [`ContentQuery`], or the first error with its column and what was expected there.
//!
//! Invariants
//! * No input panics; nesting and length are bounded.
//!
//! Not here: `PROPERTY(…)`, `NATIVE(…)` and right outer joins, which `docs/compat/queries.md` lists.

use crate::algebra::{
    ContentQuery, JoinCondition, JoinKind, QueryColumn, QueryColumnContent, QueryJoin,
    QueryOptions, QueryOrdering, QuerySelector, SelectStatement, TraversalPolicy,
};
use crate::sql2_token::{Sql2Token, Sql2TokenKind, tokenize_sql2};
use crate::syntax_error::QuerySyntaxError;

/// The maximum length of a statement, in bytes.
pub(crate) const MAX_STATEMENT_BYTES: usize = 64 * 1024;
/// The maximum nesting depth of parentheses and functions.
pub(crate) const MAX_NESTING_DEPTH: usize = 60;

pub(crate) type QueryParseResult<T> = Result<T, QuerySyntaxError>;

/// Parses a JCR-SQL2 statement.
///
/// # Errors
/// The first syntax error.
pub fn parse_sql2(text: &str) -> Result<ContentQuery, QuerySyntaxError> {
    if text.len() > MAX_STATEMENT_BYTES {
        return Err(QuerySyntaxError::new(1, "the statement is longer than 64 KiB"));
    }
    let tokens = tokenize_sql2(text)?;
    let mut parser =
        Sql2Parser { tokens: &tokens, token_index: 0, depth: 0, selectors: Vec::new() };
    parser.parse_query()
}

pub(crate) struct Sql2Parser<'a> {
    tokens: &'a [Sql2Token],
    token_index: usize,
    pub(crate) depth: usize,
    /// The selectors of the part being parsed.
    selectors: Vec<String>,
}

/// A column whose selector is not resolved yet.
struct UnresolvedColumn {
    source_column: usize,
    selector: Option<String>,
    name: Option<String>,
    alias: Option<String>,
}

impl Sql2Parser<'_> {
    pub(crate) fn current_kind(&self) -> &Sql2TokenKind {
        self.peek_kind(0)
    }

    pub(crate) fn peek_kind(&self, count: usize) -> &Sql2TokenKind {
        self.tokens.get(self.token_index + count).map_or(&Sql2TokenKind::End, |token| &token.kind)
    }

    pub(crate) fn advance(&mut self) {
        self.token_index += 1;
    }

    pub(crate) fn current_column(&self) -> usize {
        self.tokens.get(self.token_index).or(self.tokens.last()).map_or(1, |token| token.column)
    }

    pub(crate) fn expected_error<T>(&self, expectation: &str) -> QueryParseResult<T> {
        let token = match self.current_kind() {
            Sql2TokenKind::End => "the end".to_owned(),
            Sql2TokenKind::Word(text) | Sql2TokenKind::Number(text) => format!("`{text}`"),
            Sql2TokenKind::Name(text) => format!("`[{text}]`"),
            Sql2TokenKind::Text(text) => format!("`'{text}'`"),
            Sql2TokenKind::Variable(text) => format!("`${text}`"),
            Sql2TokenKind::Symbol(text) => format!("`{text}`"),
        };
        Err(QuerySyntaxError::new(
            self.current_column(),
            format!("expected {expectation}, not {token}"),
        ))
    }

    fn is_keyword(&self, keyword: &str) -> bool {
        matches!(self.current_kind(), Sql2TokenKind::Word(text) if text.eq_ignore_ascii_case(keyword))
    }

    pub(crate) fn take_keyword(&mut self, keyword: &str) -> bool {
        let is_there = self.is_keyword(keyword);
        self.token_index += usize::from(is_there);
        is_there
    }

    pub(crate) fn take_symbol(&mut self, symbol: &str) -> bool {
        let is_there =
            matches!(self.current_kind(), Sql2TokenKind::Symbol(text) if *text == symbol);
        self.token_index += usize::from(is_there);
        is_there
    }

    pub(crate) fn expect_keyword(&mut self, keyword: &str) -> QueryParseResult<()> {
        if self.take_keyword(keyword) {
            Ok(())
        } else {
            self.expected_error(&format!("`{keyword}`"))
        }
    }

    pub(crate) fn expect_symbol(&mut self, symbol: &str) -> QueryParseResult<()> {
        if self.take_symbol(symbol) { Ok(()) } else { self.expected_error(&format!("`{symbol}`")) }
    }

    /// Reads a name: plain, in brackets or in double quotes.
    pub(crate) fn parse_name(&mut self, expectation: &str) -> QueryParseResult<String> {
        match self.current_kind().clone() {
            Sql2TokenKind::Word(name) | Sql2TokenKind::Name(name) if !name.is_empty() => {
                self.advance();
                Ok(name)
            }
            _ => self.expected_error(expectation),
        }
    }

    pub(crate) fn enter_nesting(&mut self) -> QueryParseResult<()> {
        self.depth += 1;
        if self.depth > MAX_NESTING_DEPTH {
            return self.expected_error("at most 60 levels of nesting");
        }
        Ok(())
    }

    pub(crate) fn leave_nesting(&mut self) {
        self.depth -= 1;
    }

    fn parse_query(&mut self) -> QueryParseResult<ContentQuery> {
        let mut parts = vec![self.parse_select()?];
        let mut union_all = None;
        while self.is_keyword("UNION") {
            let column = self.current_column();
            self.advance();
            let all = self.take_keyword("ALL");
            if union_all.is_some_and(|before| before != all) {
                let message = "`UNION` and `UNION ALL` cannot be mixed; use one of them";
                return Err(QuerySyntaxError::new(column, message));
            }
            union_all = Some(all);
            parts.push(self.parse_select()?);
        }
        let orderings = self.parse_orderings()?;
        let options = self.parse_options()?;
        if *self.current_kind() != Sql2TokenKind::End {
            return self.expected_error("`ORDER BY`, `UNION`, `OPTION` or the end");
        }
        Ok(ContentQuery {
            selects: parts,
            union_all: union_all.unwrap_or(false),
            orderings,
            options,
        })
    }

    fn parse_select(&mut self) -> QueryParseResult<SelectStatement> {
        // A part of a union may be enclosed in parentheses.
        if self.take_symbol("(") {
            self.enter_nesting()?;
            let select = self.parse_select()?;
            self.leave_nesting();
            self.expect_symbol(")")?;
            return Ok(select);
        }
        self.expect_keyword("SELECT")?;
        // Rows are nodes, so they are already distinct.
        self.take_keyword("DISTINCT");
        let columns = self.parse_columns()?;
        self.expect_keyword("FROM")?;
        self.selectors.clear();
        let selector = self.parse_selector()?;
        let mut joins = Vec::new();
        while let Some(kind) = self.parse_join_kind()? {
            let selector = self.parse_selector()?;
            self.expect_keyword("ON")?;
            let on = self.parse_join_condition()?;
            joins.push(QueryJoin { kind, selector, condition: on });
        }
        let columns = columns.into_iter().map(|column| self.resolve_column(column));
        let columns = columns.collect::<QueryParseResult<Vec<Vec<QueryColumn>>>>()?.concat();
        let constraint =
            if self.take_keyword("WHERE") { Some(self.parse_constraint()?) } else { None };
        Ok(SelectStatement { columns, selector, joins, constraint })
    }

    fn parse_selector(&mut self) -> QueryParseResult<QuerySelector> {
        let node_type = self.parse_name("the name of a node type, such as `[nt:base]`")?;
        let column = self.current_column();
        let is_keyword =
            ["INNER", "LEFT", "RIGHT", "JOIN", "ON", "WHERE", "ORDER", "UNION", "OPTION"]
                .iter()
                .any(|keyword| self.is_keyword(keyword));
        let has_name = self.take_keyword("AS")
            || (!is_keyword
                && matches!(self.current_kind(), Sql2TokenKind::Word(_) | Sql2TokenKind::Name(_)));
        let name =
            if has_name { self.parse_name("the name of the selector")? } else { node_type.clone() };
        if self.selectors.contains(&name) {
            let message = format!("there are two selectors `{name}`; give one another name");
            return Err(QuerySyntaxError::new(column, message));
        }
        self.selectors.push(name.clone());
        Ok(QuerySelector { node_type, name })
    }

    fn parse_join_kind(&mut self) -> QueryParseResult<Option<JoinKind>> {
        if self.take_keyword("JOIN") {
            return Ok(Some(JoinKind::Inner));
        }
        if self.take_keyword("INNER") {
            self.expect_keyword("JOIN")?;
            return Ok(Some(JoinKind::Inner));
        }
        if self.take_keyword("LEFT") {
            self.take_keyword("OUTER");
            self.expect_keyword("JOIN")?;
            return Ok(Some(JoinKind::LeftOuter));
        }
        if self.is_keyword("RIGHT") {
            return self
                .expected_error("`INNER` or `LEFT OUTER`: write a right join as a left one");
        }
        Ok(None)
    }

    fn parse_join_condition(&mut self) -> QueryParseResult<JoinCondition> {
        let function = match self.current_kind() {
            Sql2TokenKind::Word(name) if *self.peek_kind(1) == Sql2TokenKind::Symbol("(") => {
                name.to_ascii_uppercase()
            }
            _ => return self.parse_equal_join(),
        };
        let is_known = matches!(&*function, "ISCHILDNODE" | "ISDESCENDANTNODE" | "ISSAMENODE");
        if !is_known {
            return self.expected_error(
                "`ISCHILDNODE`, `ISDESCENDANTNODE`, `ISSAMENODE` or `a.[x] = b.[y]`",
            );
        }
        self.advance();
        self.expect_symbol("(")?;
        let left = self.parse_known_selector()?;
        self.expect_symbol(",")?;
        let right = self.parse_known_selector()?;
        let path = if function == "ISSAMENODE" && self.take_symbol(",") {
            match self.current_kind().clone() {
                Sql2TokenKind::Text(path)
                | Sql2TokenKind::Name(path)
                | Sql2TokenKind::Word(path) => {
                    self.advance();
                    Some(path)
                }
                _ => return self.expected_error("a relative path in quotes"),
            }
        } else {
            None
        };
        self.expect_symbol(")")?;
        Ok(match &*function {
            "ISCHILDNODE" => JoinCondition::Child { child: left, parent: right },
            "ISDESCENDANTNODE" => JoinCondition::Descendant { descendant: left, ancestor: right },
            _ => JoinCondition::Same { left, right, path },
        })
    }

    fn parse_equal_join(&mut self) -> QueryParseResult<JoinCondition> {
        let left = self.parse_qualified_property()?;
        self.expect_symbol("=")?;
        let right = self.parse_qualified_property()?;
        Ok(JoinCondition::Equal { left, right })
    }

    fn parse_qualified_property(&mut self) -> QueryParseResult<(String, String)> {
        let selector = self.parse_known_selector()?;
        self.expect_symbol(".")?;
        Ok((selector, self.parse_name("the name of a property, such as `[jcr:title]`")?))
    }

    pub(crate) fn parse_known_selector(&mut self) -> QueryParseResult<String> {
        let column = self.current_column();
        let name = self.parse_name("the name of a selector")?;
        self.check_selector(name, column)
    }

    pub(crate) fn is_selector(&self, name: &str) -> bool {
        self.selectors.iter().any(|selector| selector == name)
    }

    fn check_selector(&self, name: String, column: usize) -> QueryParseResult<String> {
        if self.is_selector(&name) {
            return Ok(name);
        }
        let selector_names = self.selectors.join("`, `");
        let message =
            format!("there is no selector `{name}`; the selectors are `{selector_names}`");
        Err(QuerySyntaxError::new(column, message))
    }

    /// Returns the only selector, for names without a selector.
    pub(crate) fn only_selector(&self) -> QueryParseResult<String> {
        match self.selectors.as_slice() {
            [only] => Ok(only.clone()),
            _ => self.expected_error("the name of a selector, as there are several"),
        }
    }

    fn parse_columns(&mut self) -> QueryParseResult<Vec<UnresolvedColumn>> {
        let mut columns = Vec::new();
        loop {
            let at = self.current_column();
            let (mut selector, mut name) = (None, None);
            if !self.take_symbol("*") {
                name = Some(self.parse_column_name()?);
                if self.take_symbol(".") {
                    selector = name.take();
                    if !self.take_symbol("*") {
                        name = Some(self.parse_column_name()?);
                    }
                }
            }
            let alias =
                if self.take_keyword("AS") { Some(self.parse_name("an alias")?) } else { None };
            columns.push(UnresolvedColumn { source_column: at, selector, name, alias });
            if !self.take_symbol(",") {
                return Ok(columns);
            }
        }
    }

    /// Reads the name of a column; functions such as `rep:excerpt(.)` may omit the brackets.
    fn parse_column_name(&mut self) -> QueryParseResult<String> {
        let is_function = matches!(self.current_kind(), Sql2TokenKind::Word(word) if word.contains(':'))
            && *self.peek_kind(1) == Sql2TokenKind::Symbol("(");
        let mut name = self.parse_name("a column: `*`, `[property]` or `[rep:excerpt()]`")?;
        if is_function {
            self.advance();
            name.push('(');
            if let Sql2TokenKind::Name(inner)
            | Sql2TokenKind::Word(inner)
            | Sql2TokenKind::Text(inner) = self.current_kind().clone()
            {
                self.advance();
                name.push_str(&inner);
            } else if self.take_symbol(".") {
                name.push('.');
            }
            self.expect_symbol(")")?;
            name.push(')');
        }
        Ok(name)
    }

    fn resolve_column(&self, raw: UnresolvedColumn) -> QueryParseResult<Vec<QueryColumn>> {
        let UnresolvedColumn { source_column, selector, name, alias } = raw;
        let Some(name) = name else {
            let selectors = match selector {
                Some(selector) => vec![self.check_selector(selector, source_column)?],
                None => self.selectors.clone(),
            };
            let column =
                |selector| QueryColumn { selector, content: QueryColumnContent::All, alias: None };
            return Ok(selectors.into_iter().map(column).collect());
        };
        let selector = match selector {
            Some(selector) => self.check_selector(selector, source_column)?,
            None => self
                .only_selector()
                .map_err(|error| QuerySyntaxError { column: source_column, ..error })?,
        };
        Ok(vec![QueryColumn { selector, content: column_content(&name), alias }])
    }

    fn parse_orderings(&mut self) -> QueryParseResult<Vec<QueryOrdering>> {
        let mut orderings = Vec::new();
        if !self.take_keyword("ORDER") {
            return Ok(orderings);
        }
        self.expect_keyword("BY")?;
        loop {
            let operand = self.parse_operand()?;
            let descending = self.take_keyword("DESC");
            if !descending {
                self.take_keyword("ASC");
            }
            orderings.push(QueryOrdering { operand, is_descending: descending });
            if !self.take_symbol(",") {
                return Ok(orderings);
            }
        }
    }

    fn parse_options(&mut self) -> QueryParseResult<QueryOptions> {
        let mut options = QueryOptions::default();
        if !self.take_keyword("OPTION") {
            return Ok(options);
        }
        self.expect_symbol("(")?;
        loop {
            self.parse_option(&mut options)?;
            if !self.take_symbol(",") {
                break;
            }
        }
        self.expect_symbol(")")?;
        Ok(options)
    }

    fn parse_option(&mut self, options: &mut QueryOptions) -> QueryParseResult<()> {
        if self.take_keyword("TRAVERSAL") {
            let kinds = [
                ("OK", Some(TraversalPolicy::Ok)),
                ("DEFAULT", None),
                ("WARN", Some(TraversalPolicy::Warn)),
                ("FAIL", Some(TraversalPolicy::Fail)),
            ];
            for (keyword, kind) in kinds {
                if self.take_keyword(keyword) {
                    options.traversal = kind;
                    return Ok(());
                }
            }
            return self.expected_error("`OK`, `WARN`, `FAIL` or `DEFAULT`");
        }
        if self.take_keyword("INDEX") {
            if self.take_keyword("NAME") {
                options.index_name = Some(self.parse_name("the name of an index")?);
            } else if self.take_keyword("TAG") {
                options.index_tag = Some(self.parse_name("the tag of an index")?);
            } else {
                return self.expected_error("`NAME` or `TAG`");
            }
            return Ok(());
        }
        if self.take_keyword("LIMIT") {
            options.limit = Some(self.parse_count()?);
        } else if self.take_keyword("OFFSET") {
            options.offset = Some(self.parse_count()?);
        } else {
            return self
                .expected_error("`TRAVERSAL`, `INDEX NAME`, `INDEX TAG`, `LIMIT` or `OFFSET`");
        }
        Ok(())
    }

    fn parse_count(&mut self) -> QueryParseResult<u64> {
        match self.current_kind() {
            Sql2TokenKind::Number(digits) => match digits.parse() {
                Ok(count) => {
                    self.advance();
                    Ok(count)
                }
                Err(_) => self.expected_error("a whole number"),
            },
            _ => self.expected_error("a whole number"),
        }
    }
}

/// Returns the content of the column with this name.
pub(crate) fn column_content(name: &str) -> QueryColumnContent {
    let inner = |function: &str| {
        name.strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')').map(str::trim)
    };
    if let Some(of) = inner("rep:excerpt") {
        let property = (!of.is_empty() && of != ".").then(|| of.to_owned());
        return QueryColumnContent::Excerpt(property);
    }
    if let Some(of) = inner("rep:facet").filter(|of| !of.is_empty()) {
        return QueryColumnContent::Facet(of.to_owned());
    }
    match name {
        "rep:excerpt" => QueryColumnContent::Excerpt(None),
        "rep:suggest()" => QueryColumnContent::Suggest,
        "rep:spellcheck()" => QueryColumnContent::Spellcheck,
        _ => QueryColumnContent::Property(name.to_owned()),
    }
}
