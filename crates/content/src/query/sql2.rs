//! JCR-SQL2, read by recursive descent.
//!
//! In: a statement. Out: a [`Query`], or the first fault with its column and what was expected there.
//!
//! Invariants
//! * No input panics; nesting and length are bounded.
//!
//! Not here: `PROPERTY(…)`, `NATIVE(…)` and right outer joins, which `docs/compat/queries.md` lists.

use super::algebra::{
    Column, ColumnContent, Join, JoinCondition, JoinKind, Options, Ordering, Query, Select,
    Selector, Traversal,
};
use super::sql2_token::{Token, TokenKind, tokens};
use super::syntax_error::SyntaxError;

/// The longest statement, in bytes.
pub(crate) const MAX_BYTES: usize = 64 * 1024;
/// The deepest nesting of parentheses and functions.
pub(crate) const MAX_DEPTH: usize = 60;

pub(crate) type Parsed<T> = Result<T, SyntaxError>;

/// Reads a JCR-SQL2 statement.
///
/// # Errors
/// The first fault.
pub fn parse_sql2(text: &str) -> Result<Query, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err(SyntaxError::new(1, "the statement is longer than 64 KiB"));
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, depth: 0, selectors: Vec::new() };
    parser.query()
}

pub(crate) struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    pub(crate) depth: usize,
    /// The selectors of the part that is being read.
    selectors: Vec<String>,
}

/// A column before the selectors are known.
struct RawColumn {
    at: usize,
    selector: Option<String>,
    name: Option<String>,
    alias: Option<String>,
}

impl Parser<'_> {
    pub(crate) fn kind(&self) -> &TokenKind {
        self.ahead(0)
    }

    pub(crate) fn ahead(&self, count: usize) -> &TokenKind {
        self.tokens.get(self.at + count).map_or(&TokenKind::End, |token| &token.kind)
    }

    pub(crate) fn advance(&mut self) {
        self.at += 1;
    }

    pub(crate) fn column(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.column)
    }

    pub(crate) fn expected<T>(&self, what: &str) -> Parsed<T> {
        let found = match self.kind() {
            TokenKind::End => "the end".to_owned(),
            TokenKind::Word(text) | TokenKind::Number(text) => format!("`{text}`"),
            TokenKind::Name(text) => format!("`[{text}]`"),
            TokenKind::Text(text) => format!("`'{text}'`"),
            TokenKind::Variable(text) => format!("`${text}`"),
            TokenKind::Symbol(text) => format!("`{text}`"),
        };
        Err(SyntaxError::new(self.column(), format!("expected {what}, not {found}")))
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self.kind(), TokenKind::Word(text) if text.eq_ignore_ascii_case(word))
    }

    pub(crate) fn take_word(&mut self, word: &str) -> bool {
        let is_there = self.is_word(word);
        self.at += usize::from(is_there);
        is_there
    }

    pub(crate) fn take_symbol(&mut self, symbol: &str) -> bool {
        let is_there = matches!(self.kind(), TokenKind::Symbol(text) if *text == symbol);
        self.at += usize::from(is_there);
        is_there
    }

    pub(crate) fn need_word(&mut self, word: &str) -> Parsed<()> {
        if self.take_word(word) { Ok(()) } else { self.expected(&format!("`{word}`")) }
    }

    pub(crate) fn need_symbol(&mut self, symbol: &str) -> Parsed<()> {
        if self.take_symbol(symbol) { Ok(()) } else { self.expected(&format!("`{symbol}`")) }
    }

    /// Reads a name: plain, in brackets or in double quotes.
    pub(crate) fn name(&mut self, what: &str) -> Parsed<String> {
        match self.kind().clone() {
            TokenKind::Word(name) | TokenKind::Name(name) if !name.is_empty() => {
                self.advance();
                Ok(name)
            }
            _ => self.expected(what),
        }
    }

    pub(crate) fn enter(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.expected("at most 60 levels of nesting");
        }
        Ok(())
    }

    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    fn query(&mut self) -> Parsed<Query> {
        let mut parts = vec![self.select()?];
        let mut union_all = None;
        while self.is_word("UNION") {
            let column = self.column();
            self.advance();
            let all = self.take_word("ALL");
            if union_all.is_some_and(|before| before != all) {
                let message = "`UNION` and `UNION ALL` cannot be mixed; use one of them";
                return Err(SyntaxError::new(column, message));
            }
            union_all = Some(all);
            parts.push(self.select()?);
        }
        let orderings = self.orderings()?;
        let options = self.options()?;
        if *self.kind() != TokenKind::End {
            return self.expected("`ORDER BY`, `UNION`, `OPTION` or the end");
        }
        Ok(Query { parts, union_all: union_all.unwrap_or(false), orderings, options })
    }

    fn select(&mut self) -> Parsed<Select> {
        // A part of a union may stand in parentheses.
        if self.take_symbol("(") {
            self.enter()?;
            let select = self.select()?;
            self.leave();
            self.need_symbol(")")?;
            return Ok(select);
        }
        self.need_word("SELECT")?;
        // Rows are nodes, so that they are distinct already.
        self.take_word("DISTINCT");
        let columns = self.raw_columns()?;
        self.need_word("FROM")?;
        self.selectors.clear();
        let selector = self.selector()?;
        let mut joins = Vec::new();
        while let Some(kind) = self.join_kind()? {
            let selector = self.selector()?;
            self.need_word("ON")?;
            let on = self.join_condition()?;
            joins.push(Join { kind, selector, on });
        }
        let columns = columns.into_iter().map(|column| self.resolve_column(column));
        let columns = columns.collect::<Parsed<Vec<Vec<Column>>>>()?.concat();
        let constraint = if self.take_word("WHERE") { Some(self.constraint()?) } else { None };
        Ok(Select { columns, selector, joins, constraint })
    }

    fn selector(&mut self) -> Parsed<Selector> {
        let node_type = self.name("the name of a node type, such as `[nt:base]`")?;
        let column = self.column();
        let is_keyword =
            ["INNER", "LEFT", "RIGHT", "JOIN", "ON", "WHERE", "ORDER", "UNION", "OPTION"]
                .iter()
                .any(|word| self.is_word(word));
        let has_name = self.take_word("AS")
            || (!is_keyword && matches!(self.kind(), TokenKind::Word(_) | TokenKind::Name(_)));
        let name =
            if has_name { self.name("the name of the selector")? } else { node_type.clone() };
        if self.selectors.contains(&name) {
            let message = format!("there are two selectors `{name}`; give one another name");
            return Err(SyntaxError::new(column, message));
        }
        self.selectors.push(name.clone());
        Ok(Selector { node_type, name })
    }

    fn join_kind(&mut self) -> Parsed<Option<JoinKind>> {
        if self.take_word("JOIN") {
            return Ok(Some(JoinKind::Inner));
        }
        if self.take_word("INNER") {
            self.need_word("JOIN")?;
            return Ok(Some(JoinKind::Inner));
        }
        if self.take_word("LEFT") {
            self.take_word("OUTER");
            self.need_word("JOIN")?;
            return Ok(Some(JoinKind::LeftOuter));
        }
        if self.is_word("RIGHT") {
            return self.expected("`INNER` or `LEFT OUTER`: write a right join as a left one");
        }
        Ok(None)
    }

    fn join_condition(&mut self) -> Parsed<JoinCondition> {
        let function = match self.kind() {
            TokenKind::Word(word) if *self.ahead(1) == TokenKind::Symbol("(") => {
                word.to_ascii_uppercase()
            }
            _ => return self.equal_join(),
        };
        let is_known = matches!(&*function, "ISCHILDNODE" | "ISDESCENDANTNODE" | "ISSAMENODE");
        if !is_known {
            return self
                .expected("`ISCHILDNODE`, `ISDESCENDANTNODE`, `ISSAMENODE` or `a.[x] = b.[y]`");
        }
        self.advance();
        self.need_symbol("(")?;
        let left = self.known_selector()?;
        self.need_symbol(",")?;
        let right = self.known_selector()?;
        let path = if function == "ISSAMENODE" && self.take_symbol(",") {
            match self.kind().clone() {
                TokenKind::Text(path) | TokenKind::Name(path) | TokenKind::Word(path) => {
                    self.advance();
                    Some(path)
                }
                _ => return self.expected("a relative path in quotes"),
            }
        } else {
            None
        };
        self.need_symbol(")")?;
        Ok(match &*function {
            "ISCHILDNODE" => JoinCondition::Child { child: left, parent: right },
            "ISDESCENDANTNODE" => JoinCondition::Descendant { descendant: left, ancestor: right },
            _ => JoinCondition::Same { left, right, path },
        })
    }

    fn equal_join(&mut self) -> Parsed<JoinCondition> {
        let left = self.qualified_property()?;
        self.need_symbol("=")?;
        let right = self.qualified_property()?;
        Ok(JoinCondition::Equal { left, right })
    }

    fn qualified_property(&mut self) -> Parsed<(String, String)> {
        let selector = self.known_selector()?;
        self.need_symbol(".")?;
        Ok((selector, self.name("the name of a property, such as `[jcr:title]`")?))
    }

    pub(crate) fn known_selector(&mut self) -> Parsed<String> {
        let column = self.column();
        let name = self.name("the name of a selector")?;
        self.check_selector(name, column)
    }

    pub(crate) fn is_selector(&self, name: &str) -> bool {
        self.selectors.iter().any(|known| known == name)
    }

    fn check_selector(&self, name: String, column: usize) -> Parsed<String> {
        if self.is_selector(&name) {
            return Ok(name);
        }
        let known = self.selectors.join("`, `");
        let message = format!("there is no selector `{name}`; there is `{known}`");
        Err(SyntaxError::new(column, message))
    }

    /// Returns the only selector, for names that go without one.
    pub(crate) fn only_selector(&self) -> Parsed<String> {
        match self.selectors.as_slice() {
            [only] => Ok(only.clone()),
            _ => self.expected("the name of a selector, as there are several"),
        }
    }

    fn raw_columns(&mut self) -> Parsed<Vec<RawColumn>> {
        let mut columns = Vec::new();
        loop {
            let at = self.column();
            let (mut selector, mut name) = (None, None);
            if !self.take_symbol("*") {
                name = Some(self.column_name()?);
                if self.take_symbol(".") {
                    selector = name.take();
                    if !self.take_symbol("*") {
                        name = Some(self.column_name()?);
                    }
                }
            }
            let alias = if self.take_word("AS") { Some(self.name("an alias")?) } else { None };
            columns.push(RawColumn { at, selector, name, alias });
            if !self.take_symbol(",") {
                return Ok(columns);
            }
        }
    }

    /// Reads a column's name; functions such as `rep:excerpt(.)` may go without brackets.
    fn column_name(&mut self) -> Parsed<String> {
        let is_function = matches!(self.kind(), TokenKind::Word(word) if word.contains(':'))
            && *self.ahead(1) == TokenKind::Symbol("(");
        let mut name = self.name("a column: `*`, `[property]` or `[rep:excerpt()]`")?;
        if is_function {
            self.advance();
            name.push('(');
            if let TokenKind::Name(inner) | TokenKind::Word(inner) | TokenKind::Text(inner) =
                self.kind().clone()
            {
                self.advance();
                name.push_str(&inner);
            } else if self.take_symbol(".") {
                name.push('.');
            }
            self.need_symbol(")")?;
            name.push(')');
        }
        Ok(name)
    }

    fn resolve_column(&self, raw: RawColumn) -> Parsed<Vec<Column>> {
        let RawColumn { at, selector, name, alias } = raw;
        let Some(name) = name else {
            let selectors = match selector {
                Some(selector) => vec![self.check_selector(selector, at)?],
                None => self.selectors.clone(),
            };
            let column = |selector| Column { selector, content: ColumnContent::All, alias: None };
            return Ok(selectors.into_iter().map(column).collect());
        };
        let selector = match selector {
            Some(selector) => self.check_selector(selector, at)?,
            None => self.only_selector().map_err(|error| SyntaxError { column: at, ..error })?,
        };
        Ok(vec![Column { selector, content: column_content(&name), alias }])
    }

    fn orderings(&mut self) -> Parsed<Vec<Ordering>> {
        let mut orderings = Vec::new();
        if !self.take_word("ORDER") {
            return Ok(orderings);
        }
        self.need_word("BY")?;
        loop {
            let operand = self.operand()?;
            let descending = self.take_word("DESC");
            if !descending {
                self.take_word("ASC");
            }
            orderings.push(Ordering { operand, descending });
            if !self.take_symbol(",") {
                return Ok(orderings);
            }
        }
    }

    fn options(&mut self) -> Parsed<Options> {
        let mut options = Options::default();
        if !self.take_word("OPTION") {
            return Ok(options);
        }
        self.need_symbol("(")?;
        loop {
            self.one_option(&mut options)?;
            if !self.take_symbol(",") {
                break;
            }
        }
        self.need_symbol(")")?;
        Ok(options)
    }

    fn one_option(&mut self, options: &mut Options) -> Parsed<()> {
        if self.take_word("TRAVERSAL") {
            let kinds = [
                ("OK", Some(Traversal::Ok)),
                ("DEFAULT", None),
                ("WARN", Some(Traversal::Warn)),
                ("FAIL", Some(Traversal::Fail)),
            ];
            for (word, kind) in kinds {
                if self.take_word(word) {
                    options.traversal = kind;
                    return Ok(());
                }
            }
            return self.expected("`OK`, `WARN`, `FAIL` or `DEFAULT`");
        }
        if self.take_word("INDEX") {
            if self.take_word("NAME") {
                options.index_name = Some(self.name("the name of an index")?);
            } else if self.take_word("TAG") {
                options.index_tag = Some(self.name("the tag of an index")?);
            } else {
                return self.expected("`NAME` or `TAG`");
            }
            return Ok(());
        }
        if self.take_word("LIMIT") {
            options.limit = Some(self.count()?);
        } else if self.take_word("OFFSET") {
            options.offset = Some(self.count()?);
        } else {
            return self.expected("`TRAVERSAL`, `INDEX NAME`, `INDEX TAG`, `LIMIT` or `OFFSET`");
        }
        Ok(())
    }

    fn count(&mut self) -> Parsed<u64> {
        match self.kind() {
            TokenKind::Number(digits) => match digits.parse() {
                Ok(count) => {
                    self.advance();
                    Ok(count)
                }
                Err(_) => self.expected("a whole number"),
            },
            _ => self.expected("a whole number"),
        }
    }
}

/// Tells what a column of this name shows.
pub(crate) fn column_content(name: &str) -> ColumnContent {
    let inner = |function: &str| {
        name.strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')').map(str::trim)
    };
    if let Some(of) = inner("rep:excerpt") {
        let property = (!of.is_empty() && of != ".").then(|| of.to_owned());
        return ColumnContent::Excerpt(property);
    }
    if let Some(of) = inner("rep:facet").filter(|of| !of.is_empty()) {
        return ColumnContent::Facet(of.to_owned());
    }
    match name {
        "rep:excerpt" => ColumnContent::Excerpt(None),
        "rep:suggest()" => ColumnContent::Suggest,
        "rep:spellcheck()" => ColumnContent::Spellcheck,
        _ => ColumnContent::Property(name.to_owned()),
    }
}
