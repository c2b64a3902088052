//! XPath as in JCR 1.0, parsed into the same algebra as JCR-SQL2.
//!
//! `/jcr:root/content//element(*, cq:Page)[@a = 'b' and jcr:contains(., 'x')] order by @jcr:created descending`
//!
//! In: a statement. Out: a [`ContentQuery`], or the first error with its column. A step after one with a predicate
//! becomes a join. Names are decoded by ISO 9075 (`_x0020_`).
//!
//! Not here: `jcr:deref`, positions, and axes other than child and descendant.

use tympan_content::{NodePath, Value, ValueType};

use crate::algebra::{
    ComparisonOperator, ContentQuery, JoinCondition, JoinKind, QueryColumn, QueryColumnContent,
    QueryConstraint, QueryJoin, QueryLiteral, QueryOperand, QueryOptions, QueryOrdering,
    QuerySelector, SelectStatement,
};
use crate::sql2_constraint::{parse_absolute_path, parse_number_literal};
use crate::sql2_parser::{
    MAX_NESTING_DEPTH, MAX_STATEMENT_BYTES, QueryParseResult, column_content,
};
use crate::syntax_error::QuerySyntaxError;
use crate::xpath_scanner::XPathScanner;

/// Parses an XPath statement.
///
/// # Errors
/// The first syntax error.
pub fn parse_xpath(text: &str) -> Result<ContentQuery, QuerySyntaxError> {
    if text.len() > MAX_STATEMENT_BYTES {
        return Err(QuerySyntaxError::new(1, "the statement is longer than 64 KiB"));
    }
    let characters: Vec<char> = text.chars().collect();
    let mut parser =
        XPathParser { scanner: XPathScanner::new(&characters), depth: 0, selector: String::new() };
    parser.parse_query()
}

/// Creates an operand from another.
type OperandWrapper = fn(Box<QueryOperand>) -> QueryOperand;
/// Creates an operand from the name of a selector.
type SelectorOperandFn = fn(String) -> QueryOperand;

struct XPathParser<'a> {
    scanner: XPathScanner<'a>,
    depth: usize,
    /// The selector to which predicates apply.
    selector: String,
}

/// The result of the steps parsed so far.
struct XPathSteps {
    /// The path so far, while all steps are plain names.
    path: Option<NodePath>,
    selectors: Vec<QuerySelector>,
    joins: Vec<JoinCondition>,
    constraints: Vec<QueryConstraint>,
    columns: Vec<QueryColumnContent>,
}

/// One step: its constraints on name, type and depth.
struct XPathStep {
    is_deep: bool,
    name: Option<String>,
    node_type: Option<String>,
    has_predicate: bool,
    source_column: usize,
}

impl XPathParser<'_> {
    fn parse_query(&mut self) -> QueryParseResult<ContentQuery> {
        let is_grouped = self.scanner.take_text("(");
        let mut parts = vec![self.parse_select()?];
        while self.scanner.take_text("|") {
            parts.push(self.parse_select()?);
        }
        if is_grouped {
            self.scanner.expect(")")?;
        }
        let selector = parts.last().map(result_selector).unwrap_or_default();
        self.selector = selector;
        let orderings = self.parse_orderings()?;
        if !self.scanner.is_at_end() {
            return self.scanner.expected_error("`order by`, `|` or the end");
        }
        Ok(ContentQuery {
            selects: parts,
            union_all: false,
            orderings,
            options: QueryOptions::default(),
        })
    }

    fn parse_select(&mut self) -> QueryParseResult<SelectStatement> {
        let mut steps = XPathSteps {
            path: Some(NodePath::root()),
            selectors: Vec::new(),
            joins: Vec::new(),
            constraints: Vec::new(),
            columns: Vec::new(),
        };
        if self.scanner.take_text("/jcr:root") {
            if !self.scanner.is_separator() {
                return self.scanner.expected_error("`/` after `/jcr:root`");
            }
        } else if !self.scanner.is_at("//") && !self.scanner.is_name_start() {
            return self.scanner.expected_error("`/jcr:root` or `//`");
        }
        let mut is_first = true;
        while self.scanner.is_at("/") || (is_first && self.scanner.is_name_start()) {
            is_first = false;
            let is_deep = self.scanner.take_text("//");
            if !is_deep {
                self.scanner.take_text("/");
            }
            if self.parse_columns(&mut steps)? {
                break;
            }
            self.parse_step(is_deep, &mut steps)?;
        }
        if steps.selectors.is_empty() {
            // Only plain names: the path identifies a single node.
            let path = steps.path.take().unwrap_or_else(NodePath::root);
            let selector = add_selector(&mut steps, None);
            steps.constraints.push(QueryConstraint::Same { selector, path });
        }
        Ok(select_from_steps(steps))
    }

    /// Reads `@a`, `(@a | @b)` or `rep:excerpt(.)` in the position of a step.
    fn parse_columns(&mut self, steps: &mut XPathSteps) -> QueryParseResult<bool> {
        let is_list = self.scanner.take_text("(");
        let functions = ["@", "rep:excerpt", "rep:facet", "rep:suggest", "rep:spellcheck"];
        let is_column = is_list || functions.iter().any(|start| self.scanner.is_at(start));
        if !is_column {
            return Ok(false);
        }
        loop {
            let name = if self.scanner.take_text("@") {
                self.scanner.scan_name()?
            } else {
                let name = self.scanner.scan_name()?;
                self.scanner.expect("(")?;
                let inner = self.scanner.scan_until(')')?;
                format!("{name}({inner})")
            };
            steps.columns.push(column_content(&name));
            if !(is_list && self.scanner.take_text("|")) {
                break;
            }
        }
        if is_list {
            self.scanner.expect(")")?;
        }
        Ok(true)
    }

    fn parse_step(&mut self, is_deep: bool, steps: &mut XPathSteps) -> QueryParseResult<()> {
        let at = self.scanner.current_column();
        let (name, node_type) = if self.scanner.take_call("element") {
            self.parse_element()?
        } else if self.scanner.take_text("*") {
            (None, None)
        } else {
            (Some(self.scanner.scan_name()?), None)
        };
        let has_predicate = self.scanner.is_at("[");
        add_step(XPathStep { is_deep, name, node_type, has_predicate, source_column: at }, steps)?;
        while self.scanner.take_text("[") {
            self.selector =
                steps.selectors.last().map(|last| last.name.clone()).unwrap_or_default();
            let constraint = self.parse_predicate()?;
            steps.constraints.push(constraint);
            self.scanner.expect("]")?;
        }
        Ok(())
    }

    /// Reads `name, type)` after `element(`.
    fn parse_element(&mut self) -> QueryParseResult<(Option<String>, Option<String>)> {
        let (mut name, mut node_type) = (None, None);
        if !self.scanner.take_text("*") && !self.scanner.is_at(")") {
            name = Some(self.scanner.scan_name()?);
        }
        if self.scanner.take_text(",") {
            node_type = Some(self.scanner.scan_name()?);
        }
        self.scanner.expect(")")?;
        Ok((name, node_type))
    }

    fn parse_orderings(&mut self) -> QueryParseResult<Vec<QueryOrdering>> {
        let mut orderings = Vec::new();
        if !self.scanner.take_word("order") {
            return Ok(orderings);
        }
        if !self.scanner.take_word("by") {
            return self.scanner.expected_error("`by`");
        }
        loop {
            let operand = self.parse_operand()?;
            let descending = self.scanner.take_word("descending");
            if !descending {
                self.scanner.take_word("ascending");
            }
            orderings.push(QueryOrdering { operand, is_descending: descending });
            if !self.scanner.take_text(",") {
                return Ok(orderings);
            }
        }
    }

    fn parse_predicate(&mut self) -> QueryParseResult<QueryConstraint> {
        self.depth += 1;
        if self.depth > MAX_NESTING_DEPTH {
            return self.scanner.expected_error("at most 60 levels of nesting");
        }
        let mut alternatives = Vec::new();
        loop {
            let mut parts = vec![self.parse_condition()?];
            while self.scanner.take_word("and") {
                parts.push(self.parse_condition()?);
            }
            alternatives.extend(QueryConstraint::conjunction(parts));
            if !self.scanner.take_word("or") {
                break;
            }
        }
        self.depth -= 1;
        Ok(match alternatives.len() {
            1 => alternatives.remove(0),
            _ => QueryConstraint::Or(alternatives),
        })
    }

    fn parse_condition(&mut self) -> QueryParseResult<QueryConstraint> {
        if self.scanner.take_call("not") {
            let inner = self.parse_predicate()?;
            self.scanner.expect(")")?;
            return Ok(QueryConstraint::Not(Box::new(inner)));
        }
        if self.scanner.take_text("(") {
            let inner = self.parse_predicate()?;
            self.scanner.expect(")")?;
            return Ok(inner);
        }
        let selector = self.selector.clone();
        if self.scanner.take_call("jcr:contains") {
            let property = self.parse_text_scope()?;
            self.scanner.expect(",")?;
            let text = self.parse_literal()?;
            self.scanner.expect(")")?;
            return Ok(QueryConstraint::Contains { selector, property, text });
        }
        if self.scanner.take_call("jcr:like") {
            let operand = self.parse_operand()?;
            self.scanner.expect(",")?;
            let value = self.parse_literal()?;
            self.scanner.expect(")")?;
            return Ok(QueryConstraint::Compare {
                operand,
                operator: ComparisonOperator::Like,
                value,
            });
        }
        if self.scanner.take_call("rep:similar") {
            self.parse_text_scope()?;
            self.scanner.expect(",")?;
            let path = self.parse_literal()?;
            self.scanner.expect(")")?;
            return Ok(QueryConstraint::Similar { selector, path });
        }
        for (function, is_spellcheck) in [("rep:spellcheck", true), ("rep:suggest", false)] {
            if self.scanner.take_call(function) {
                let text = self.parse_literal()?;
                self.scanner.expect(")")?;
                return Ok(if is_spellcheck {
                    QueryConstraint::Spellcheck { selector, text }
                } else {
                    QueryConstraint::Suggest { selector, text }
                });
            }
        }
        self.parse_comparison()
    }

    fn parse_comparison(&mut self) -> QueryParseResult<QueryConstraint> {
        let operand = self.parse_operand()?;
        let operators = [
            ("<=", ComparisonOperator::LessOrEqual),
            (">=", ComparisonOperator::GreaterOrEqual),
            ("!=", ComparisonOperator::NotEqual),
            ("<>", ComparisonOperator::NotEqual),
            ("=", ComparisonOperator::Equal),
            ("<", ComparisonOperator::Less),
            (">", ComparisonOperator::Greater),
        ];
        for (symbol, operator) in operators {
            if self.scanner.take_text(symbol) {
                let value = self.parse_literal()?;
                return Ok(QueryConstraint::Compare { operand, operator, value });
            }
        }
        match operand {
            QueryOperand::Property { selector, name } => {
                Ok(QueryConstraint::Exists { selector, property: name })
            }
            _ => self.scanner.expected_error("a comparison after the function"),
        }
    }

    /// Reads the scope of `jcr:contains`: `.`, `@p`, `a/b/@p` or `a/b`.
    fn parse_text_scope(&mut self) -> QueryParseResult<Option<String>> {
        if self.scanner.take_symbol(".") {
            return Ok(None);
        }
        let (path, _) = self.parse_relative_path()?;
        Ok(Some(path))
    }

    /// Reads `a/b/@p` or `a/b`; also returns true if it ends with a property.
    fn parse_relative_path(&mut self) -> QueryParseResult<(String, bool)> {
        self.scanner.take_text("./");
        let mut names = Vec::new();
        loop {
            if self.scanner.take_text("@") {
                names.push(self.scanner.scan_name()?);
                return Ok((names.join("/"), true));
            }
            if self.scanner.take_text("*") {
                names.push("*".to_owned());
            } else {
                names.push(self.scanner.scan_name()?);
            }
            if !self.scanner.take_text("/") {
                return Ok((names.join("/"), false));
            }
        }
    }

    fn parse_operand(&mut self) -> QueryParseResult<QueryOperand> {
        self.depth += 1;
        if self.depth > MAX_NESTING_DEPTH {
            return self.scanner.expected_error("at most 60 levels of nesting");
        }
        let operand = self.parse_plain_operand();
        self.depth -= 1;
        operand
    }

    fn parse_plain_operand(&mut self) -> QueryParseResult<QueryOperand> {
        let selector = self.selector.clone();
        let wrapped: [(&str, OperandWrapper); 3] = [
            ("fn:lower-case", QueryOperand::Lower),
            ("fn:upper-case", QueryOperand::Upper),
            ("fn:string-length", QueryOperand::Length),
        ];
        for (function, wrap) in wrapped {
            if self.scanner.take_call(function) {
                let inner = self.parse_operand()?;
                self.scanner.expect(")")?;
                return Ok(wrap(Box::new(inner)));
            }
        }
        if self.scanner.take_call("fn:coalesce") {
            let first = self.parse_operand()?;
            self.scanner.expect(",")?;
            let second = self.parse_operand()?;
            self.scanner.expect(")")?;
            return Ok(QueryOperand::Coalesce(Box::new(first), Box::new(second)));
        }
        let of_node: [(&str, SelectorOperandFn); 4] = [
            ("fn:name", QueryOperand::Name),
            ("fn:local-name", QueryOperand::LocalName),
            ("fn:path", QueryOperand::Path),
            ("jcr:score", QueryOperand::Score),
        ];
        for (function, make) in of_node {
            if self.scanner.take_call(function) {
                self.scanner.take_symbol(".");
                self.scanner.expect(")")?;
                return Ok(make(selector));
            }
        }
        let at = self.scanner.current_column();
        let (name, is_property) = self.parse_relative_path()?;
        if !is_property {
            let message = format!("expected `@` before the property; did you mean `@{name}`?");
            return Err(QuerySyntaxError::new(at, message));
        }
        Ok(crate::sql2_constraint::operand_for_name(selector, name))
    }

    fn parse_literal(&mut self) -> QueryParseResult<QueryLiteral> {
        let column = self.scanner.current_column();
        if let Some(text) = self.scanner.scan_text()? {
            return Ok(QueryLiteral::from_text(text));
        }
        for (name, truth) in [("true", true), ("false", false)] {
            if self.scanner.take_call(name) {
                self.scanner.expect(")")?;
                return Ok(QueryLiteral::Value(Value::Boolean(truth)));
            }
        }
        let casts = [
            ("xs:dateTime", ValueType::Date),
            ("xs:double", ValueType::Double),
            ("xs:integer", ValueType::Long),
            ("xs:long", ValueType::Long),
            ("xs:decimal", ValueType::Decimal),
            ("xs:boolean", ValueType::Boolean),
            ("xs:string", ValueType::String),
        ];
        for (function, kind) in casts {
            if self.scanner.take_call(function) {
                let column = self.scanner.current_column();
                let Some(text) = self.scanner.scan_text()? else {
                    return self.scanner.expected_error("a text in quotes");
                };
                self.scanner.expect(")")?;
                let value = Value::parse(kind, &text)
                    .map_err(|error| QuerySyntaxError::new(column, error.to_string()))?;
                return Ok(QueryLiteral::Value(value));
            }
        }
        if self.scanner.take_text("$") {
            return Ok(QueryLiteral::Variable(self.scanner.scan_name()?));
        }
        match self.scanner.scan_number() {
            Some(digits) => parse_number_literal(&digits, column),
            None => self
                .scanner
                .expected_error("a value: `'text'`, a number, `true()` or `xs:dateTime('…')`"),
        }
    }
}

fn result_selector(select: &SelectStatement) -> String {
    let last = select.joins.last().map_or(&select.selector, |join| &join.selector);
    last.name.clone()
}

/// Adds a selector, named `a`, `b`, and so on.
fn add_selector(steps: &mut XPathSteps, node_type: Option<String>) -> String {
    let number = u8::try_from(steps.selectors.len()).unwrap_or(25).min(25);
    let name = char::from(b'a' + number).to_string();
    let node_type = node_type.unwrap_or_else(|| "nt:base".to_owned());
    steps.selectors.push(QuerySelector { node_type, name: name.clone() });
    name
}

fn add_step(step: XPathStep, steps: &mut XPathSteps) -> QueryParseResult<()> {
    let is_plain = !step.is_deep && step.node_type.is_none() && !step.has_predicate;
    if let (true, Some(name), Some(path)) = (is_plain, &step.name, &steps.path) {
        let text = format!("{}/{name}", path.as_str().trim_end_matches('/'));
        steps.path = Some(parse_absolute_path(&text, step.source_column)?);
        return Ok(());
    }
    if steps.selectors.len() >= 25 {
        return Err(QuerySyntaxError::new(
            step.source_column,
            "there are more than 25 steps with conditions",
        ));
    }
    let before = steps.selectors.last().map(|last| last.name.clone());
    let selector = add_selector(steps, step.node_type);
    match (steps.path.take(), before) {
        (Some(path), _) => {
            let is_exact = !step.is_deep && step.name.is_some();
            if let (true, Some(name)) = (is_exact, &step.name) {
                let text = format!("{}/{name}", path.as_str().trim_end_matches('/'));
                let path = parse_absolute_path(&text, step.source_column)?;
                steps.constraints.push(QueryConstraint::Same { selector, path });
                return Ok(());
            }
            let selector = selector.clone();
            if !step.is_deep {
                steps.constraints.push(QueryConstraint::Child { selector, path });
            } else if !path.is_root() {
                steps.constraints.push(QueryConstraint::Descendant { selector, path });
            }
        }
        (None, Some(before)) => steps.joins.push(if step.is_deep {
            JoinCondition::Descendant { descendant: selector.clone(), ancestor: before }
        } else {
            JoinCondition::Child { child: selector.clone(), parent: before }
        }),
        (None, None) => {}
    }
    if let Some(name) = step.name {
        let operand = QueryOperand::Name(selector);
        let value = QueryLiteral::from_text(name);
        let operator = ComparisonOperator::Equal;
        steps.constraints.push(QueryConstraint::Compare { operand, operator, value });
    }
    Ok(())
}

fn select_from_steps(steps: XPathSteps) -> SelectStatement {
    let mut selectors = steps.selectors.into_iter();
    let first = selectors
        .next()
        .unwrap_or_else(|| QuerySelector { node_type: "nt:base".to_owned(), name: "a".to_owned() });
    let joins: Vec<QueryJoin> = selectors
        .zip(steps.joins)
        .map(|(selector, on)| QueryJoin { kind: JoinKind::Inner, selector, condition: on })
        .collect();
    let selector = joins.last().map_or(&first, |join| &join.selector).name.clone();
    let mut contents = steps.columns;
    if contents.is_empty() {
        contents.push(QueryColumnContent::All);
    }
    let column = |content| QueryColumn { selector: selector.clone(), content, alias: None };
    let columns = contents.into_iter().map(column).collect();
    SelectStatement {
        columns,
        selector: first,
        joins,
        constraint: QueryConstraint::conjunction(steps.constraints),
    }
}
