//! JSONPath in Jayway's dialect, which JMeter uses: the subset that plans use.
//!
//! Names, indexes, slices, lists of both, `..`, `*`, filters with `&&`, `||`, `!`, comparisons, `=~`, `in`, `nin`,
//! `size`, `empty`, and the functions `length()`, `size()`, `min()`, `max()`, `avg()`, `sum()`, `keys()`, `first()`,
//! `last()`.

use std::borrow::Cow;

use serde_json::Value;

use super::regex_pattern::{self, RegexPattern};

/// One step of a path.
#[derive(Debug, Clone)]
enum JsonPathStep {
    Child(String),
    Children(Vec<String>),
    Index(i64),
    Indexes(Vec<i64>),
    Slice(Option<i64>, Option<i64>),
    All,
    Descendants,
    Filter(Box<JsonPathFilter>),
    Call(JsonPathFunction),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonPathFunction {
    Length,
    Min,
    Max,
    Average,
    Sum,
    Keys,
    First,
    Last,
}

/// A filter.
#[derive(Debug, Clone)]
enum JsonPathFilter {
    And(Box<JsonPathFilter>, Box<JsonPathFilter>),
    Or(Box<JsonPathFilter>, Box<JsonPathFilter>),
    Not(Box<JsonPathFilter>),
    Exists(JsonPathOperand),
    Compare(JsonPathOperand, JsonPathOperator, JsonPathOperand),
    Matches(JsonPathOperand, RegexPattern),
}

#[derive(Debug, Clone)]
enum JsonPathOperand {
    /// Relative to the current element.
    Current(Vec<JsonPathStep>),
    /// Relative to the whole document.
    Root(Vec<JsonPathStep>),
    Value(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonPathOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
    Size,
    Empty,
    Contains,
}

/// Operator tokens, longer ones before their prefixes.
const OPERATORS: [(&str, JsonPathOperator); 13] = [
    ("===", JsonPathOperator::Equal),
    ("!==", JsonPathOperator::NotEqual),
    ("==", JsonPathOperator::Equal),
    ("!=", JsonPathOperator::NotEqual),
    ("<=", JsonPathOperator::LessOrEqual),
    (">=", JsonPathOperator::GreaterOrEqual),
    ("<", JsonPathOperator::Less),
    (">", JsonPathOperator::Greater),
    ("in ", JsonPathOperator::In),
    ("nin ", JsonPathOperator::NotIn),
    ("size ", JsonPathOperator::Size),
    ("empty ", JsonPathOperator::Empty),
    ("contains ", JsonPathOperator::Contains),
];

/// Maximum length of a path.
const MAX_PATH_LENGTH: usize = 1000;
/// Maximum document depth for `..`.
const MAX_DOCUMENT_DEPTH: usize = 128;

/// Returns the values that match a path.
///
/// # Errors
/// An invalid path.
pub(super) fn find_values<'a>(
    document: &'a Value,
    path: &str,
) -> Result<Vec<Cow<'a, Value>>, String> {
    Ok(apply_steps(document, document, &parse_path(path)?))
}

/// Validates a path.
///
/// # Errors
/// The invalid part.
pub(super) fn check_path(path: &str) -> Result<(), String> {
    parse_path(path).map(drop)
}

fn apply_steps<'a>(
    root: &'a Value,
    from: &'a Value,
    steps: &[JsonPathStep],
) -> Vec<Cow<'a, Value>> {
    let mut current: Vec<&'a Value> = vec![from];
    for (index, step) in steps.iter().enumerate() {
        if let JsonPathStep::Call(function) = step {
            let called: Vec<Value> =
                current.iter().filter_map(|value| function.apply(value)).collect();
            let rest = steps.get(index + 1..).unwrap_or_default();
            // The result of a function is not part of the document; the rest of the path is evaluated on the result.
            return called
                .into_iter()
                .flat_map(|value| match rest {
                    [] => vec![Cow::Owned(value)],
                    _ => {
                        let matches = apply_steps(&value, &value, rest);
                        matches.into_iter().map(|value| Cow::Owned(value.into_owned())).collect()
                    }
                })
                .collect();
        }
        let mut next = Vec::new();
        for value in current {
            apply_step(root, value, step, &mut next);
        }
        current = next;
    }
    current.into_iter().map(Cow::Borrowed).collect()
}

fn apply_step<'a>(
    root: &'a Value,
    value: &'a Value,
    step: &JsonPathStep,
    out: &mut Vec<&'a Value>,
) {
    let at = |list: &'a [Value], index: i64| {
        let position = if index < 0 { list.len() as i64 + index } else { index };
        usize::try_from(position).ok().and_then(|position| list.get(position))
    };
    match (step, value) {
        (JsonPathStep::Child(name), Value::Object(map)) => out.extend(map.get(name)),
        (JsonPathStep::Children(names), Value::Object(map)) => {
            out.extend(names.iter().filter_map(|name| map.get(name)));
        }
        (JsonPathStep::All, Value::Object(map)) => out.extend(map.values()),
        (JsonPathStep::All, Value::Array(list)) => out.extend(list),
        (JsonPathStep::Index(index), Value::Array(list)) => out.extend(at(list, *index)),
        (JsonPathStep::Indexes(indexes), Value::Array(list)) => {
            out.extend(indexes.iter().filter_map(|index| at(list, *index)));
        }
        (JsonPathStep::Slice(from, to), Value::Array(list)) => {
            let length = list.len() as i64;
            let bound = |at: i64| if at < 0 { (length + at).max(0) } else { at.min(length) };
            let (from, to) = (bound(from.unwrap_or(0)), bound(to.unwrap_or(length)));
            let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
            out.extend(list.get(from..to.max(from)).unwrap_or_default());
        }
        (JsonPathStep::Descendants, _) => collect_descendants(value, out, 0),
        (JsonPathStep::Filter(test), Value::Array(list)) => {
            out.extend(list.iter().filter(|item| test.matches(root, item)));
        }
        (JsonPathStep::Filter(test), Value::Object(map)) => {
            out.extend(map.values().filter(|item| test.matches(root, item)));
        }
        _ => {}
    }
}

fn collect_descendants<'a>(value: &'a Value, out: &mut Vec<&'a Value>, depth: usize) {
    out.push(value);
    if depth > MAX_DOCUMENT_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            map.values().for_each(|inner| collect_descendants(inner, out, depth + 1))
        }
        Value::Array(list) => {
            list.iter().for_each(|inner| collect_descendants(inner, out, depth + 1))
        }
        _ => {}
    }
}

impl JsonPathFunction {
    fn apply(self, value: &Value) -> Option<Value> {
        let numbers = || -> Vec<f64> {
            value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let number = |result: Option<f64>| {
            // Integral results are shown as integers.
            let result = result?;
            let whole = result as i64;
            if whole as f64 == result {
                Some(Value::from(whole))
            } else {
                Some(Value::from(result))
            }
        };
        match (self, value) {
            (Self::Length, Value::Array(list)) => Some(Value::from(list.len())),
            (Self::Length, Value::Object(map)) => Some(Value::from(map.len())),
            (Self::Length, Value::String(text)) => Some(Value::from(text.chars().count())),
            (Self::Length, _) => None,
            (Self::Keys, Value::Object(map)) => {
                Some(Value::Array(map.keys().map(|key| Value::from(key.as_str())).collect()))
            }
            (Self::Keys, _) => None,
            (Self::First, Value::Array(list)) => list.first().cloned(),
            (Self::Last, Value::Array(list)) => list.last().cloned(),
            (Self::First | Self::Last, _) => None,
            (Self::Min, _) => number(numbers().into_iter().reduce(f64::min)),
            (Self::Max, _) => number(numbers().into_iter().reduce(f64::max)),
            (Self::Sum, _) => number(numbers().into_iter().reduce(|left, right| left + right)),
            (Self::Average, _) => {
                let numbers = numbers();
                let count = numbers.len() as f64;
                number(
                    numbers.into_iter().reduce(|left, right| left + right).map(|sum| sum / count),
                )
            }
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "length()" | "size()" => Self::Length,
            "min()" => Self::Min,
            "max()" => Self::Max,
            "avg()" => Self::Average,
            "sum()" => Self::Sum,
            "keys()" => Self::Keys,
            "first()" => Self::First,
            "last()" => Self::Last,
            _ => return None,
        })
    }
}

impl JsonPathFilter {
    fn matches(&self, root: &Value, item: &Value) -> bool {
        match self {
            Self::And(left_filter, right_filter) => {
                left_filter.matches(root, item) && right_filter.matches(root, item)
            }
            Self::Or(left_filter, right_filter) => {
                left_filter.matches(root, item) || right_filter.matches(root, item)
            }
            Self::Not(inner) => !inner.matches(root, item),
            Self::Exists(operand) => operand.resolve(root, item).is_some(),
            Self::Matches(operand, pattern) => operand
                .resolve(root, item)
                .is_some_and(|value| pattern.is_match(&json_value_text(&value))),
            Self::Compare(left, operator, right) => {
                let (left, right) = (left.resolve(root, item), right.resolve(root, item));
                operator.compare(left.as_deref(), right.as_deref())
            }
        }
    }
}

impl JsonPathOperand {
    fn resolve<'a>(&'a self, root: &'a Value, item: &'a Value) -> Option<Cow<'a, Value>> {
        match self {
            Self::Current(steps) => apply_steps(root, item, steps).into_iter().next(),
            Self::Root(steps) => apply_steps(root, root, steps).into_iter().next(),
            Self::Value(value) => Some(Cow::Borrowed(value)),
        }
    }
}

impl JsonPathOperator {
    fn compare(self, left: Option<&Value>, right: Option<&Value>) -> bool {
        let (Some(left), Some(right)) = (left, right) else {
            // A missing value differs from every existing value.
            return matches!(self, Self::NotEqual | Self::NotIn)
                && (left.is_some() || right.is_some());
        };
        let order = || match (left.as_f64(), right.as_f64()) {
            (Some(left_number), Some(right_number)) => left_number.partial_cmp(&right_number),
            _ => json_value_text(left).partial_cmp(&json_value_text(right)),
        };
        let equals = |first: &Value, second: &Value| match (first.as_f64(), second.as_f64()) {
            (Some(first_number), Some(second_number)) => first_number == second_number,
            _ => json_value_text(first) == json_value_text(second),
        };
        let size = |value: &Value| match value {
            Value::Array(list) => Some(list.len()),
            Value::String(text) => Some(text.chars().count()),
            _ => None,
        };
        match self {
            Self::Equal => equals(left, right),
            Self::NotEqual => !equals(left, right),
            Self::Less => order().is_some_and(std::cmp::Ordering::is_lt),
            Self::LessOrEqual => order().is_some_and(std::cmp::Ordering::is_le),
            Self::Greater => order().is_some_and(std::cmp::Ordering::is_gt),
            Self::GreaterOrEqual => order().is_some_and(std::cmp::Ordering::is_ge),
            Self::In => {
                right.as_array().is_some_and(|all| all.iter().any(|element| equals(element, left)))
            }
            Self::NotIn => {
                !right.as_array().is_some_and(|all| all.iter().any(|element| equals(element, left)))
            }
            Self::Contains => match left {
                Value::Array(list) => list.iter().any(|element| equals(element, right)),
                Value::String(text) => text.contains(&json_value_text(right)),
                _ => false,
            },
            Self::Size => size(left).is_some_and(|size| right.as_u64() == Some(size as u64)),
            Self::Empty => size(left).is_some_and(|size| right.as_bool() == Some(size == 0)),
        }
    }
}

fn parse_path(path: &str) -> Result<Vec<JsonPathStep>, String> {
    let wrong = || format!("JSONPath `{path}`: not supported");
    // Limits recursion: filters contain paths, which contain filters.
    if path.len() > MAX_PATH_LENGTH {
        return Err(format!("JSONPath: longer than {MAX_PATH_LENGTH} bytes"));
    }
    let path_text = path.trim();
    if path_text.is_empty() {
        return Err(wrong());
    }
    // A path without a root starts at the root.
    let rooted = match path_text.strip_prefix(['$', '@']) {
        Some(rest) => rest.to_owned(),
        None => format!(".{path_text}"),
    };
    match parse_steps(
        rooted.strip_prefix(".[").map_or(rooted.clone(), |rest| format!("[{rest}")).as_str(),
    ) {
        Some((steps, "")) => Ok(steps),
        _ => Err(wrong()),
    }
}

/// Parses as many steps as possible; returns the remaining text.
fn parse_steps(text: &str) -> Option<(Vec<JsonPathStep>, &str)> {
    let mut rest = text;
    let mut steps = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix("..") {
            steps.push(JsonPathStep::Descendants);
            rest = if after.starts_with('[') { after } else { parse_child(after, &mut steps)? };
        } else if let Some(after) = rest.strip_prefix('.') {
            rest = parse_child(after, &mut steps)?;
        } else if let Some(after) = rest.strip_prefix('[') {
            let (inside, tail) = after.split_at(find_closing_bracket(after)?);
            steps.push(parse_bracket(inside.trim())?);
            rest = tail.get(1..).unwrap_or_default();
        } else {
            return Some((steps, rest));
        }
    }
}

fn parse_child<'a>(text: &'a str, steps: &mut Vec<JsonPathStep>) -> Option<&'a str> {
    let ends = |c: char| {
        matches!(c, '.' | '[' | ')' | ']' | '=' | '!' | '<' | '>' | '&' | '|' | ',')
            || c.is_whitespace()
    };
    let mut end = text.find(ends).unwrap_or(text.len());
    // The parentheses of a function belong to its name.
    if text.get(..end).is_some_and(|name| name.ends_with('(')) {
        end += usize::from(text.get(end..).is_some_and(|rest| rest.starts_with(')')));
    }
    let (name, rest) = text.split_at(end);
    match name {
        "" => return None,
        "*" => steps.push(JsonPathStep::All),
        _ if name.contains('(') => {
            steps.push(JsonPathStep::Call(JsonPathFunction::from_name(name)?))
        }
        _ => steps.push(JsonPathStep::Child(name.to_owned())),
    }
    Some(rest)
}

/// Finds the closing bracket, skipping quotes and nested brackets.
fn find_closing_bracket(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if is_escaped => is_escaped = false,
            (_, '\\') => is_escaped = true,
            (Some(open), _) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return Some(at),
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    None
}

fn parse_bracket(inside: &str) -> Option<JsonPathStep> {
    if inside == "*" {
        return Some(JsonPathStep::All);
    }
    if inside.starts_with(['\'', '"']) {
        let mut names = Vec::new();
        let mut rest = inside;
        loop {
            let (name, after) = parse_quoted(rest)?;
            names.push(name);
            match after.trim_start().strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if after.trim().is_empty() => break,
                None => return None,
            }
        }
        return Some(match names.len() {
            1 => JsonPathStep::Child(names.pop()?),
            _ => JsonPathStep::Children(names),
        });
    }
    if let Some(filter) = inside.strip_prefix('?') {
        let filter = filter.trim_start().strip_prefix('(')?;
        let (test, rest) = parse_or(filter)?;
        return (rest.trim() == ")").then(|| JsonPathStep::Filter(Box::new(test)));
    }
    if let Some((from, to)) = inside.split_once(':') {
        let bound = |text: &str| match text.trim() {
            "" => Some(None),
            text => text.parse().ok().map(Some),
        };
        return Some(JsonPathStep::Slice(bound(from)?, bound(to)?));
    }
    if inside.contains(',') {
        let all: Option<Vec<i64>> =
            inside.split(',').map(|index| index.trim().parse().ok()).collect();
        return all.map(JsonPathStep::Indexes);
    }
    inside.parse().ok().map(JsonPathStep::Index)
}

/// Parses a quoted string; returns the remaining text.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|mark| matches!(mark, '\'' | '"'))?;
    let mut out = String::new();
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => out.push(letters.next()?.1),
            _ if letter == quote => return Some((out, text.get(at + 1..)?)),
            _ => out.push(letter),
        }
    }
    None
}

fn parse_or(text: &str) -> Option<(JsonPathFilter, &str)> {
    let (mut test, mut rest) = parse_and(text)?;
    while let Some(after) = rest.trim_start().strip_prefix("||") {
        let (right, after) = parse_and(after)?;
        test = JsonPathFilter::Or(Box::new(test), Box::new(right));
        rest = after;
    }
    Some((test, rest))
}

fn parse_and(text: &str) -> Option<(JsonPathFilter, &str)> {
    let (mut test, mut rest) = parse_condition(text)?;
    while let Some(after) = rest.trim_start().strip_prefix("&&") {
        let (right, after) = parse_condition(after)?;
        test = JsonPathFilter::And(Box::new(test), Box::new(right));
        rest = after;
    }
    Some((test, rest))
}

fn parse_condition(text: &str) -> Option<(JsonPathFilter, &str)> {
    let text = text.trim_start();
    if let Some(after) = text.strip_prefix('!') {
        let (test, rest) = parse_condition(after)?;
        return Some((JsonPathFilter::Not(Box::new(test)), rest));
    }
    if let Some(after) = text.strip_prefix('(') {
        let (test, rest) = parse_or(after)?;
        return Some((test, rest.trim_start().strip_prefix(')')?));
    }
    let (left, rest) = parse_operand(text)?;
    let rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix("=~") {
        let (pattern, rest) = parse_regex_literal(after.trim_start())?;
        return Some((JsonPathFilter::Matches(left, pattern), rest));
    }
    for (symbol, operator) in OPERATORS {
        if let Some(after) = rest.strip_prefix(symbol) {
            let (right, rest) = parse_operand(after.trim_start())?;
            return Some((JsonPathFilter::Compare(left, operator, right), rest));
        }
    }
    Some((JsonPathFilter::Exists(left), rest))
}

fn parse_operand(text: &str) -> Option<(JsonPathOperand, &str)> {
    if let Some(after) = text.strip_prefix('@') {
        let (steps, rest) = parse_steps(after)?;
        return Some((JsonPathOperand::Current(steps), rest));
    }
    if let Some(after) = text.strip_prefix('$') {
        let (steps, rest) = parse_steps(after)?;
        return Some((JsonPathOperand::Root(steps), rest));
    }
    if text.starts_with(['\'', '"']) {
        let (value, rest) = parse_quoted(text)?;
        return Some((JsonPathOperand::Value(Value::from(value)), rest));
    }
    if let Some(after) = text.strip_prefix('[') {
        let (inside, tail) = after.split_at(find_closing_bracket(after)?);
        let mut values = Vec::new();
        let mut rest = inside.trim();
        while !rest.is_empty() {
            let (JsonPathOperand::Value(value), after) = parse_operand(rest)? else { return None };
            values.push(value);
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if after.is_empty() => "",
                None => return None,
            };
        }
        return Some((JsonPathOperand::Value(Value::Array(values)), tail.get(1..)?));
    }
    let ends =
        |c: char| matches!(c, ')' | ',' | ']' | '&' | '|' | '=' | '<' | '>') || c.is_whitespace();
    let (token, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
    let value: Value = serde_json::from_str(token).ok()?;
    Some((JsonPathOperand::Value(value), rest))
}

/// Parses a regular expression between slashes, followed by flags.
fn parse_regex_literal(text: &str) -> Option<(RegexPattern, &str)> {
    let inside = text.strip_prefix('/')?;
    let mut is_escaped = false;
    let end = inside.char_indices().find_map(|(at, letter)| {
        let is_end = letter == '/' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        is_end.then_some(at)
    })?;
    let rest = inside.get(end + 1..)?;
    let flags = rest.len() - rest.trim_start_matches(['i', 's', 'm', 'x', 'u', 'd', 'U']).len();
    let (flags, rest) = rest.split_at(flags);
    let flags: String =
        flags.chars().filter(|flag| matches!(flag, 'i' | 's' | 'm' | 'x')).collect();
    let flags = if flags.is_empty() { flags } else { format!("(?{flags})") };
    let pattern =
        regex_pattern::compile_full_match(&format!("{flags}{}", inside.get(..end)?)).ok()?;
    Some((pattern, rest))
}

/// Returns a JSON value as variables hold it: strings without quotes.
pub(super) fn json_value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &[&str]) {
        let document = serde_json::json!({
            "store": { "book": [
                { "title": "A", "price": 8, "tags": ["x"] },
                { "title": "B", "price": 12 },
                { "title": "C", "price": 22, "isbn": "1" },
            ], "na.me": "n" },
            "id": 7,
        });
        let values: Vec<String> = find_values(&document, path)
            .unwrap()
            .iter()
            .map(|value| json_value_text(value))
            .collect();
        assert_eq!(values, expected, "{path}");
    }

    #[test]
    fn paths_of_real_plans_lead_where_they_say() {
        check("$.id", &["7"]);
        check("id", &["7"]);
        check("store.book[0].title", &["A"]);
        check("['id']", &["7"]);
        check("@.id", &["7"]);
        check(".id", &["7"]);
        check("$.store.book[0].title", &["A"]);
        check("$.store.book[-1:].title", &["C"]);
        check("$['store']['na.me']", &["n"]);
        check("$..title", &["A", "B", "C"]);
        check("$.store.book[*].price", &["8", "12", "22"]);
        check("$.store.book[?(@.price < 13)].title", &["A", "B"]);
        check("$.store.book[?(@.isbn)].title", &["C"]);
        check("$.store.book[?(@.title == 'B')].price", &["12"]);
        check("$.store.book.length()", &["3"]);
        check("$.missing", &[]);
        check("$.store.book[0,2].title", &["A", "C"]);
        check("$['id','none']", &["7"]);
        check("$.store.book[?(@.price > 10 && @.price < 20)].title", &["B"]);
        check("$.store.book[?(@.price < 10 || (@.isbn && @.price == 22))].title", &["A", "C"]);
        check("$.store.book[?(!(@.isbn))].title", &["A", "B"]);
        check("$.store.book[?(@.title =~ /[ab]/i)].title", &["A", "B"]);
        check("$.store.book[?(@.title in ['A', 'C'])].price", &["8", "22"]);
        check("$.store.book[?(@.price > $.id)].price", &["8", "12", "22"]);
        check("$.store.book[?(@.tags.length() == 1)].title", &["A"]);
        check("$.store.book[?(@.tags contains 'x')].title", &["A"]);
        check("$.store.book[?(@.title != 'A')].title", &["B", "C"]);
        check("$..book[?(@['title']=='B')].price", &["12"]);
        check("$.store.keys()", &["[\"book\",\"na.me\"]"]);
    }

    #[test]
    fn functions_count_and_sum() {
        let document = serde_json::json!({ "n": [3, 1.5, 2], "none": [] });
        for (path, expected) in [
            ("$.n.min()", "1.5"),
            ("$.n.max()", "3"),
            ("$.n.sum()", "6.5"),
            ("$.n.length()", "3"),
            ("$.n.first()", "3"),
            ("$.n.last()", "2"),
        ] {
            let values = find_values(&document, path).unwrap();
            assert_eq!(json_value_text(&values[0]), expected, "{path}");
        }
        assert!(find_values(&document, "$.none.avg()").unwrap().is_empty());
    }

    #[test]
    fn paths_that_are_not_understood_are_reported() {
        for path in [
            "",
            "$.",
            "..id",
            "$[",
            "$.a[?(foo())]",
            "$.sum(x)",
            "$.a[?(@.b == )]",
            "$.a[?(@.b = 1)]",
            "$.a[?(@.b]",
        ] {
            assert!(super::check_path(path).is_err(), "{path}");
        }
    }
}
