//! XPath as JCR 1.0 has it, read into the same algebra as JCR-SQL2.
//!
//! `/jcr:root/content//element(*, cq:Page)[@a = 'b' and jcr:contains(., 'x')] order by @jcr:created descending`
//!
//! In: a statement. Out: a [`Query`], or the first fault with its column. A step behind one with a predicate becomes a
//! join. Names are decoded by ISO 9075 (`_x0020_`).
//!
//! Not here: `jcr:deref`, positions, and axes but child and descendant.

use super::algebra::{
    Column, ColumnContent, Constraint, Join, JoinCondition, JoinKind, Literal, Operand, Operator,
    Options, Ordering, Query, Select, Selector,
};
use super::sql2::{MAX_BYTES, MAX_DEPTH, Parsed, column_content};
use super::sql2_constraint::{absolute_path, number};
use super::syntax_error::SyntaxError;
use super::xpath_scan::Scanner;
use crate::{NodePath, Value, ValueType};

/// Reads an XPath statement.
///
/// # Errors
/// The first fault.
pub fn parse_xpath(text: &str) -> Result<Query, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err(SyntaxError::new(1, "the statement is longer than 64 KiB"));
    }
    let characters: Vec<char> = text.chars().collect();
    let mut parser = XPath { scan: Scanner::new(&characters), depth: 0, selector: String::new() };
    parser.query()
}

/// Makes an operand of another.
type Wrap = fn(Box<Operand>) -> Operand;
/// Makes an operand of a selector's name.
type OfNode = fn(String) -> Operand;

struct XPath<'a> {
    scan: Scanner<'a>,
    depth: usize,
    /// The selector that predicates are about.
    selector: String,
}

/// What the steps of a path have led to.
struct Steps {
    /// The path so far, while all steps are plain names.
    path: Option<NodePath>,
    selectors: Vec<Selector>,
    joins: Vec<JoinCondition>,
    constraints: Vec<Constraint>,
    columns: Vec<ColumnContent>,
}

/// One step: what it says about name, type and distance.
struct Step {
    is_deep: bool,
    name: Option<String>,
    node_type: Option<String>,
    has_predicate: bool,
    at: usize,
}

impl XPath<'_> {
    fn query(&mut self) -> Parsed<Query> {
        let is_grouped = self.scan.take("(");
        let mut parts = vec![self.select()?];
        while self.scan.take("|") {
            parts.push(self.select()?);
        }
        if is_grouped {
            self.scan.need(")")?;
        }
        let selector = parts.last().map(result_selector).unwrap_or_default();
        self.selector = selector;
        let orderings = self.orderings()?;
        if !self.scan.is_at_end() {
            return self.scan.expected("`order by`, `|` or the end");
        }
        Ok(Query { parts, union_all: false, orderings, options: Options::default() })
    }

    fn select(&mut self) -> Parsed<Select> {
        let mut steps = Steps {
            path: Some(NodePath::root()),
            selectors: Vec::new(),
            joins: Vec::new(),
            constraints: Vec::new(),
            columns: Vec::new(),
        };
        if self.scan.take("/jcr:root") {
            if !self.scan.is_separator() {
                return self.scan.expected("`/` behind `/jcr:root`");
            }
        } else if !self.scan.looks_at("//") && !self.scan.is_name_start() {
            return self.scan.expected("`/jcr:root` or `//`");
        }
        let mut is_first = true;
        while self.scan.looks_at("/") || (is_first && self.scan.is_name_start()) {
            is_first = false;
            let is_deep = self.scan.take("//");
            if !is_deep {
                self.scan.take("/");
            }
            if self.columns(&mut steps)? {
                break;
            }
            self.step(is_deep, &mut steps)?;
        }
        if steps.selectors.is_empty() {
            // Only plain names: the node at this path.
            let path = steps.path.take().unwrap_or_else(NodePath::root);
            let selector = new_selector(&mut steps, None);
            steps.constraints.push(Constraint::Same { selector, path });
        }
        Ok(finished(steps))
    }

    /// Reads `@a`, `(@a | @b)` or `rep:excerpt(.)` where a step could stand.
    fn columns(&mut self, steps: &mut Steps) -> Parsed<bool> {
        let is_list = self.scan.take("(");
        let functions = ["@", "rep:excerpt", "rep:facet", "rep:suggest", "rep:spellcheck"];
        let is_column = is_list || functions.iter().any(|start| self.scan.looks_at(start));
        if !is_column {
            return Ok(false);
        }
        loop {
            let name = if self.scan.take("@") {
                self.scan.name()?
            } else {
                let name = self.scan.name()?;
                self.scan.need("(")?;
                let inner = self.scan.until(')')?;
                format!("{name}({inner})")
            };
            steps.columns.push(column_content(&name));
            if !(is_list && self.scan.take("|")) {
                break;
            }
        }
        if is_list {
            self.scan.need(")")?;
        }
        Ok(true)
    }

    fn step(&mut self, is_deep: bool, steps: &mut Steps) -> Parsed<()> {
        let at = self.scan.column();
        let (name, node_type) = if self.scan.take_call("element") {
            self.element()?
        } else if self.scan.take("*") {
            (None, None)
        } else {
            (Some(self.scan.name()?), None)
        };
        let has_predicate = self.scan.looks_at("[");
        add_step(Step { is_deep, name, node_type, has_predicate, at }, steps)?;
        while self.scan.take("[") {
            self.selector =
                steps.selectors.last().map(|last| last.name.clone()).unwrap_or_default();
            let constraint = self.predicate()?;
            steps.constraints.push(constraint);
            self.scan.need("]")?;
        }
        Ok(())
    }

    /// Reads `name, type)` of an `element(`.
    fn element(&mut self) -> Parsed<(Option<String>, Option<String>)> {
        let (mut name, mut node_type) = (None, None);
        if !self.scan.take("*") && !self.scan.looks_at(")") {
            name = Some(self.scan.name()?);
        }
        if self.scan.take(",") {
            node_type = Some(self.scan.name()?);
        }
        self.scan.need(")")?;
        Ok((name, node_type))
    }

    fn orderings(&mut self) -> Parsed<Vec<Ordering>> {
        let mut orderings = Vec::new();
        if !self.scan.take_word("order") {
            return Ok(orderings);
        }
        if !self.scan.take_word("by") {
            return self.scan.expected("`by`");
        }
        loop {
            let operand = self.operand()?;
            let descending = self.scan.take_word("descending");
            if !descending {
                self.scan.take_word("ascending");
            }
            orderings.push(Ordering { operand, descending });
            if !self.scan.take(",") {
                return Ok(orderings);
            }
        }
    }

    fn predicate(&mut self) -> Parsed<Constraint> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.scan.expected("at most 60 levels of nesting");
        }
        let mut alternatives = Vec::new();
        loop {
            let mut parts = vec![self.condition()?];
            while self.scan.take_word("and") {
                parts.push(self.condition()?);
            }
            alternatives.extend(Constraint::all(parts));
            if !self.scan.take_word("or") {
                break;
            }
        }
        self.depth -= 1;
        Ok(match alternatives.len() {
            1 => alternatives.remove(0),
            _ => Constraint::Or(alternatives),
        })
    }

    fn condition(&mut self) -> Parsed<Constraint> {
        if self.scan.take_call("not") {
            let inner = self.predicate()?;
            self.scan.need(")")?;
            return Ok(Constraint::Not(Box::new(inner)));
        }
        if self.scan.take("(") {
            let inner = self.predicate()?;
            self.scan.need(")")?;
            return Ok(inner);
        }
        let selector = self.selector.clone();
        if self.scan.take_call("jcr:contains") {
            let property = self.scope()?;
            self.scan.need(",")?;
            let text = self.literal()?;
            self.scan.need(")")?;
            return Ok(Constraint::Contains { selector, property, text });
        }
        if self.scan.take_call("jcr:like") {
            let operand = self.operand()?;
            self.scan.need(",")?;
            let value = self.literal()?;
            self.scan.need(")")?;
            return Ok(Constraint::Compare { operand, operator: Operator::Like, value });
        }
        if self.scan.take_call("rep:similar") {
            self.scope()?;
            self.scan.need(",")?;
            let path = self.literal()?;
            self.scan.need(")")?;
            return Ok(Constraint::Similar { selector, path });
        }
        for (function, is_spellcheck) in [("rep:spellcheck", true), ("rep:suggest", false)] {
            if self.scan.take_call(function) {
                let text = self.literal()?;
                self.scan.need(")")?;
                return Ok(if is_spellcheck {
                    Constraint::Spellcheck { selector, text }
                } else {
                    Constraint::Suggest { selector, text }
                });
            }
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Parsed<Constraint> {
        let operand = self.operand()?;
        let operators = [
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("!=", Operator::NotEqual),
            ("<>", Operator::NotEqual),
            ("=", Operator::Equal),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        for (symbol, operator) in operators {
            if self.scan.take(symbol) {
                let value = self.literal()?;
                return Ok(Constraint::Compare { operand, operator, value });
            }
        }
        match operand {
            Operand::Property { selector, name: property } => {
                Ok(Constraint::Exists { selector, property })
            }
            _ => self.scan.expected("a comparison behind the function"),
        }
    }

    /// Reads what `jcr:contains` looks into: `.`, `@p`, `a/b/@p` or `a/b`.
    fn scope(&mut self) -> Parsed<Option<String>> {
        if self.scan.take_alone(".") {
            return Ok(None);
        }
        let (path, _) = self.relative()?;
        Ok(Some(path))
    }

    /// Reads `a/b/@p` or `a/b`; tells whether it ends with a property.
    fn relative(&mut self) -> Parsed<(String, bool)> {
        self.scan.take("./");
        let mut names = Vec::new();
        loop {
            if self.scan.take("@") {
                names.push(self.scan.name()?);
                return Ok((names.join("/"), true));
            }
            if self.scan.take("*") {
                names.push("*".to_owned());
            } else {
                names.push(self.scan.name()?);
            }
            if !self.scan.take("/") {
                return Ok((names.join("/"), false));
            }
        }
    }

    fn operand(&mut self) -> Parsed<Operand> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.scan.expected("at most 60 levels of nesting");
        }
        let operand = self.plain_operand();
        self.depth -= 1;
        operand
    }

    fn plain_operand(&mut self) -> Parsed<Operand> {
        let selector = self.selector.clone();
        let wrapped: [(&str, Wrap); 3] = [
            ("fn:lower-case", Operand::Lower),
            ("fn:upper-case", Operand::Upper),
            ("fn:string-length", Operand::Length),
        ];
        for (function, wrap) in wrapped {
            if self.scan.take_call(function) {
                let inner = self.operand()?;
                self.scan.need(")")?;
                return Ok(wrap(Box::new(inner)));
            }
        }
        if self.scan.take_call("fn:coalesce") {
            let first = self.operand()?;
            self.scan.need(",")?;
            let second = self.operand()?;
            self.scan.need(")")?;
            return Ok(Operand::Coalesce(Box::new(first), Box::new(second)));
        }
        let of_node: [(&str, OfNode); 4] = [
            ("fn:name", Operand::Name),
            ("fn:local-name", Operand::LocalName),
            ("fn:path", Operand::Path),
            ("jcr:score", Operand::Score),
        ];
        for (function, make) in of_node {
            if self.scan.take_call(function) {
                self.scan.take_alone(".");
                self.scan.need(")")?;
                return Ok(make(selector));
            }
        }
        let at = self.scan.column();
        let (name, is_property) = self.relative()?;
        if !is_property {
            let message = format!("expected `@` before the property; did you mean `@{name}`?");
            return Err(SyntaxError::new(at, message));
        }
        Ok(super::sql2_constraint::operand_of(selector, name))
    }

    fn literal(&mut self) -> Parsed<Literal> {
        let column = self.scan.column();
        if let Some(text) = self.scan.text()? {
            return Ok(Literal::text(text));
        }
        for (word, truth) in [("true", true), ("false", false)] {
            if self.scan.take_call(word) {
                self.scan.need(")")?;
                return Ok(Literal::Value(Value::Boolean(truth)));
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
            if self.scan.take_call(function) {
                let column = self.scan.column();
                let Some(text) = self.scan.text()? else {
                    return self.scan.expected("a text in quotes");
                };
                self.scan.need(")")?;
                let value = Value::parse(kind, &text)
                    .map_err(|error| SyntaxError::new(column, error.to_string()))?;
                return Ok(Literal::Value(value));
            }
        }
        if self.scan.take("$") {
            return Ok(Literal::Variable(self.scan.name()?));
        }
        match self.scan.number() {
            Some(digits) => number(&digits, column),
            None => {
                self.scan.expected("a value: `'text'`, a number, `true()` or `xs:dateTime('…')`")
            }
        }
    }
}

fn result_selector(select: &Select) -> String {
    let last = select.joins.last().map_or(&select.selector, |join| &join.selector);
    last.name.clone()
}

/// Adds a selector, named `a`, `b`, and so on.
fn new_selector(steps: &mut Steps, node_type: Option<String>) -> String {
    let number = u8::try_from(steps.selectors.len()).unwrap_or(25).min(25);
    let name = char::from(b'a' + number).to_string();
    let node_type = node_type.unwrap_or_else(|| "nt:base".to_owned());
    steps.selectors.push(Selector { node_type, name: name.clone() });
    name
}

fn add_step(step: Step, steps: &mut Steps) -> Parsed<()> {
    let is_plain = !step.is_deep && step.node_type.is_none() && !step.has_predicate;
    if let (true, Some(name), Some(path)) = (is_plain, &step.name, &steps.path) {
        let text = format!("{}/{name}", path.as_str().trim_end_matches('/'));
        steps.path = Some(absolute_path(&text, step.at)?);
        return Ok(());
    }
    if steps.selectors.len() >= 25 {
        return Err(SyntaxError::new(step.at, "there are more than 25 steps with conditions"));
    }
    let before = steps.selectors.last().map(|last| last.name.clone());
    let selector = new_selector(steps, step.node_type);
    match (steps.path.take(), before) {
        (Some(path), _) => {
            let is_exact = !step.is_deep && step.name.is_some();
            if let (true, Some(name)) = (is_exact, &step.name) {
                let text = format!("{}/{name}", path.as_str().trim_end_matches('/'));
                let path = absolute_path(&text, step.at)?;
                steps.constraints.push(Constraint::Same { selector, path });
                return Ok(());
            }
            let selector = selector.clone();
            if !step.is_deep {
                steps.constraints.push(Constraint::Child { selector, path });
            } else if !path.is_root() {
                steps.constraints.push(Constraint::Descendant { selector, path });
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
        let operand = Operand::Name(selector);
        let value = Literal::text(name);
        let operator = Operator::Equal;
        steps.constraints.push(Constraint::Compare { operand, operator, value });
    }
    Ok(())
}

fn finished(steps: Steps) -> Select {
    let mut selectors = steps.selectors.into_iter();
    let first = selectors
        .next()
        .unwrap_or_else(|| Selector { node_type: "nt:base".to_owned(), name: "a".to_owned() });
    let joins: Vec<Join> = selectors
        .zip(steps.joins)
        .map(|(selector, on)| Join { kind: JoinKind::Inner, selector, on })
        .collect();
    let selector = joins.last().map_or(&first, |join| &join.selector).name.clone();
    let mut contents = steps.columns;
    if contents.is_empty() {
        contents.push(ColumnContent::All);
    }
    let column = |content| Column { selector: selector.clone(), content, alias: None };
    let columns = contents.into_iter().map(column).collect();
    Select { columns, selector: first, joins, constraint: Constraint::all(steps.constraints) }
}
