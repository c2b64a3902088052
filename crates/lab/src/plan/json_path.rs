//! JSONPath in the dialect of Jayway, which JMeter uses: the part that plans use.
//!
//! Names, places, slices, lists of both, `..`, `*`, filters with `&&`, `||`, `!`, comparisons, `=~`, `in`, `nin`, `size`,
//! `empty`, and the functions `length()`, `size()`, `min()`, `max()`, `avg()`, `sum()`, `keys()`, `first()`, `last()`.

use std::borrow::Cow;

use serde_json::Value;

use super::pattern::{self, Pattern};

/// One step of a path.
#[derive(Debug, Clone)]
enum Step {
    Child(String),
    Children(Vec<String>),
    Index(i64),
    Indexes(Vec<i64>),
    Slice(Option<i64>, Option<i64>),
    All,
    Below,
    Where(Box<Test>),
    Call(Function),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Function {
    Length,
    Least,
    Most,
    Average,
    Sum,
    Keys,
    First,
    Last,
}

/// A filter.
#[derive(Debug, Clone)]
enum Test {
    And(Box<Test>, Box<Test>),
    Or(Box<Test>, Box<Test>),
    Not(Box<Test>),
    There(Operand),
    Compare(Operand, Operator, Operand),
    Matches(Operand, Pattern),
}

#[derive(Debug, Clone)]
enum Operand {
    /// From the element that is looked at.
    Here(Vec<Step>),
    /// From the whole document.
    Root(Vec<Step>),
    Value(Value),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
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

/// The words of operators, longer ones before those that they begin with.
const OPERATORS: [(&str, Operator); 13] = [
    ("===", Operator::Equal),
    ("!==", Operator::NotEqual),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    (">=", Operator::GreaterOrEqual),
    ("<", Operator::Less),
    (">", Operator::Greater),
    ("in ", Operator::In),
    ("nin ", Operator::NotIn),
    ("size ", Operator::Size),
    ("empty ", Operator::Empty),
    ("contains ", Operator::Contains),
];

/// Longer paths are refused.
const LONGEST: usize = 1000;
/// Deepest document that `..` goes into.
const DEEPEST: usize = 128;

/// Returns the values that a path leads to.
///
/// # Errors
/// A path that is not understood.
pub(super) fn find<'a>(document: &'a Value, path: &str) -> Result<Vec<Cow<'a, Value>>, String> {
    Ok(follow(document, document, &parse(path)?))
}

/// Reports whether a path is understood.
///
/// # Errors
/// What is not.
pub(super) fn check(path: &str) -> Result<(), String> {
    parse(path).map(drop)
}

fn follow<'a>(root: &'a Value, from: &'a Value, steps: &[Step]) -> Vec<Cow<'a, Value>> {
    let mut current: Vec<&'a Value> = vec![from];
    for (place, step) in steps.iter().enumerate() {
        if let Step::Call(function) = step {
            let called: Vec<Value> =
                current.iter().filter_map(|value| function.call(value)).collect();
            let rest = steps.get(place + 1..).unwrap_or_default();
            // What a function makes is no part of the document; what follows it is looked for in its own value.
            return called
                .into_iter()
                .flat_map(|value| match rest {
                    [] => vec![Cow::Owned(value)],
                    _ => {
                        let found = follow(&value, &value, rest);
                        found.into_iter().map(|value| Cow::Owned(value.into_owned())).collect()
                    }
                })
                .collect();
        }
        let mut next = Vec::new();
        for value in current {
            walk(root, value, step, &mut next);
        }
        current = next;
    }
    current.into_iter().map(Cow::Borrowed).collect()
}

fn walk<'a>(root: &'a Value, value: &'a Value, step: &Step, out: &mut Vec<&'a Value>) {
    let at = |list: &'a [Value], index: i64| {
        let place = if index < 0 { list.len() as i64 + index } else { index };
        usize::try_from(place).ok().and_then(|place| list.get(place))
    };
    match (step, value) {
        (Step::Child(name), Value::Object(map)) => out.extend(map.get(name)),
        (Step::Children(names), Value::Object(map)) => {
            out.extend(names.iter().filter_map(|name| map.get(name)));
        }
        (Step::All, Value::Object(map)) => out.extend(map.values()),
        (Step::All, Value::Array(list)) => out.extend(list),
        (Step::Index(index), Value::Array(list)) => out.extend(at(list, *index)),
        (Step::Indexes(indexes), Value::Array(list)) => {
            out.extend(indexes.iter().filter_map(|index| at(list, *index)));
        }
        (Step::Slice(from, to), Value::Array(list)) => {
            let length = list.len() as i64;
            let bound = |at: i64| if at < 0 { (length + at).max(0) } else { at.min(length) };
            let (from, to) = (bound(from.unwrap_or(0)), bound(to.unwrap_or(length)));
            let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
            out.extend(list.get(from..to.max(from)).unwrap_or_default());
        }
        (Step::Below, _) => below(value, out, 0),
        (Step::Where(test), Value::Array(list)) => {
            out.extend(list.iter().filter(|item| test.holds(root, item)));
        }
        (Step::Where(test), Value::Object(map)) => {
            out.extend(map.values().filter(|item| test.holds(root, item)));
        }
        _ => {}
    }
}

fn below<'a>(value: &'a Value, out: &mut Vec<&'a Value>, depth: usize) {
    out.push(value);
    if depth > DEEPEST {
        return;
    }
    match value {
        Value::Object(map) => map.values().for_each(|inner| below(inner, out, depth + 1)),
        Value::Array(list) => list.iter().for_each(|inner| below(inner, out, depth + 1)),
        _ => {}
    }
}

impl Function {
    fn call(self, value: &Value) -> Option<Value> {
        let numbers = || -> Vec<f64> {
            value.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let number = |found: Option<f64>| {
            // A whole number is shown as one.
            let found = found?;
            let whole = found as i64;
            if whole as f64 == found { Some(Value::from(whole)) } else { Some(Value::from(found)) }
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
            (Self::Least, _) => number(numbers().into_iter().reduce(f64::min)),
            (Self::Most, _) => number(numbers().into_iter().reduce(f64::max)),
            (Self::Sum, _) => number(numbers().into_iter().reduce(|one, two| one + two)),
            (Self::Average, _) => {
                let numbers = numbers();
                let count = numbers.len() as f64;
                number(numbers.into_iter().reduce(|one, two| one + two).map(|sum| sum / count))
            }
        }
    }

    fn find(name: &str) -> Option<Self> {
        Some(match name {
            "length()" | "size()" => Self::Length,
            "min()" => Self::Least,
            "max()" => Self::Most,
            "avg()" => Self::Average,
            "sum()" => Self::Sum,
            "keys()" => Self::Keys,
            "first()" => Self::First,
            "last()" => Self::Last,
            _ => return None,
        })
    }
}

impl Test {
    fn holds(&self, root: &Value, item: &Value) -> bool {
        match self {
            Self::And(one, two) => one.holds(root, item) && two.holds(root, item),
            Self::Or(one, two) => one.holds(root, item) || two.holds(root, item),
            Self::Not(inner) => !inner.holds(root, item),
            Self::There(operand) => operand.value(root, item).is_some(),
            Self::Matches(operand, pattern) => operand
                .value(root, item)
                .is_some_and(|value| pattern.is_match(&super::extract::shown(&value))),
            Self::Compare(left, operator, right) => {
                let (left, right) = (left.value(root, item), right.value(root, item));
                operator.holds(left.as_deref(), right.as_deref())
            }
        }
    }
}

impl Operand {
    fn value<'a>(&'a self, root: &'a Value, item: &'a Value) -> Option<Cow<'a, Value>> {
        match self {
            Self::Here(steps) => follow(root, item, steps).into_iter().next(),
            Self::Root(steps) => follow(root, root, steps).into_iter().next(),
            Self::Value(value) => Some(Cow::Borrowed(value)),
        }
    }
}

impl Operator {
    fn holds(self, left: Option<&Value>, right: Option<&Value>) -> bool {
        let (Some(left), Some(right)) = (left, right) else {
            // What is not there differs from everything that is.
            return matches!(self, Self::NotEqual | Self::NotIn)
                && (left.is_some() || right.is_some());
        };
        let order = || match (left.as_f64(), right.as_f64()) {
            (Some(one), Some(two)) => one.partial_cmp(&two),
            _ => super::extract::shown(left).partial_cmp(&super::extract::shown(right)),
        };
        let equals = |one: &Value, two: &Value| match (one.as_f64(), two.as_f64()) {
            (Some(one), Some(two)) => one == two,
            _ => super::extract::shown(one) == super::extract::shown(two),
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
            Self::In => right.as_array().is_some_and(|all| all.iter().any(|one| equals(one, left))),
            Self::NotIn => {
                !right.as_array().is_some_and(|all| all.iter().any(|one| equals(one, left)))
            }
            Self::Contains => match left {
                Value::Array(list) => list.iter().any(|one| equals(one, right)),
                Value::String(text) => text.contains(&super::extract::shown(right)),
                _ => false,
            },
            Self::Size => size(left).is_some_and(|size| right.as_u64() == Some(size as u64)),
            Self::Empty => size(left).is_some_and(|size| right.as_bool() == Some(size == 0)),
        }
    }
}

fn parse(path: &str) -> Result<Vec<Step>, String> {
    let wrong = || format!("JSONPath `{path}`: not supported");
    // Filters hold paths, which hold filters.
    if path.len() > LONGEST {
        return Err(format!("JSONPath: longer than {LONGEST} bytes"));
    }
    let path_text = path.trim();
    if path_text.is_empty() {
        return Err(wrong());
    }
    // Without a root, a path begins at it.
    let rooted = match path_text.strip_prefix(['$', '@']) {
        Some(rest) => rest.to_owned(),
        None => format!(".{path_text}"),
    };
    match steps(
        rooted.strip_prefix(".[").map_or(rooted.clone(), |rest| format!("[{rest}")).as_str(),
    ) {
        Some((steps, "")) => Ok(steps),
        _ => Err(wrong()),
    }
}

/// Reads steps as far as they go; returns what follows them.
fn steps(text: &str) -> Option<(Vec<Step>, &str)> {
    let mut rest = text;
    let mut steps = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix("..") {
            steps.push(Step::Below);
            rest = if after.starts_with('[') { after } else { child(after, &mut steps)? };
        } else if let Some(after) = rest.strip_prefix('.') {
            rest = child(after, &mut steps)?;
        } else if let Some(after) = rest.strip_prefix('[') {
            let (inside, tail) = after.split_at(closing(after)?);
            steps.push(bracket(inside.trim())?);
            rest = tail.get(1..).unwrap_or_default();
        } else {
            return Some((steps, rest));
        }
    }
}

fn child<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
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
        "*" => steps.push(Step::All),
        _ if name.contains('(') => steps.push(Step::Call(Function::find(name)?)),
        _ => steps.push(Step::Child(name.to_owned())),
    }
    Some(rest)
}

/// Finds the bracket that closes, beside quotes and nested brackets.
fn closing(text: &str) -> Option<usize> {
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

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    if inside.starts_with(['\'', '"']) {
        let mut names = Vec::new();
        let mut rest = inside;
        loop {
            let (name, after) = quoted(rest)?;
            names.push(name);
            match after.trim_start().strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if after.trim().is_empty() => break,
                None => return None,
            }
        }
        return Some(match names.len() {
            1 => Step::Child(names.pop()?),
            _ => Step::Children(names),
        });
    }
    if let Some(filter) = inside.strip_prefix('?') {
        let filter = filter.trim_start().strip_prefix('(')?;
        let (test, rest) = either(filter)?;
        return (rest.trim() == ")").then(|| Step::Where(Box::new(test)));
    }
    if let Some((from, to)) = inside.split_once(':') {
        let bound = |text: &str| match text.trim() {
            "" => Some(None),
            text => text.parse().ok().map(Some),
        };
        return Some(Step::Slice(bound(from)?, bound(to)?));
    }
    if inside.contains(',') {
        let all: Option<Vec<i64>> = inside.split(',').map(|one| one.trim().parse().ok()).collect();
        return all.map(Step::Indexes);
    }
    inside.parse().ok().map(Step::Index)
}

/// Reads a text in quotes; returns what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
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

fn either(text: &str) -> Option<(Test, &str)> {
    let (mut test, mut rest) = both(text)?;
    while let Some(after) = rest.trim_start().strip_prefix("||") {
        let (other, after) = both(after)?;
        test = Test::Or(Box::new(test), Box::new(other));
        rest = after;
    }
    Some((test, rest))
}

fn both(text: &str) -> Option<(Test, &str)> {
    let (mut test, mut rest) = one(text)?;
    while let Some(after) = rest.trim_start().strip_prefix("&&") {
        let (other, after) = one(after)?;
        test = Test::And(Box::new(test), Box::new(other));
        rest = after;
    }
    Some((test, rest))
}

fn one(text: &str) -> Option<(Test, &str)> {
    let text = text.trim_start();
    if let Some(after) = text.strip_prefix('!') {
        let (test, rest) = one(after)?;
        return Some((Test::Not(Box::new(test)), rest));
    }
    if let Some(after) = text.strip_prefix('(') {
        let (test, rest) = either(after)?;
        return Some((test, rest.trim_start().strip_prefix(')')?));
    }
    let (left, rest) = operand(text)?;
    let rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix("=~") {
        let (pattern, rest) = slashed(after.trim_start())?;
        return Some((Test::Matches(left, pattern), rest));
    }
    for (word, operator) in OPERATORS {
        if let Some(after) = rest.strip_prefix(word) {
            let (right, rest) = operand(after.trim_start())?;
            return Some((Test::Compare(left, operator, right), rest));
        }
    }
    Some((Test::There(left), rest))
}

fn operand(text: &str) -> Option<(Operand, &str)> {
    if let Some(after) = text.strip_prefix('@') {
        let (steps, rest) = steps(after)?;
        return Some((Operand::Here(steps), rest));
    }
    if let Some(after) = text.strip_prefix('$') {
        let (steps, rest) = steps(after)?;
        return Some((Operand::Root(steps), rest));
    }
    if text.starts_with(['\'', '"']) {
        let (value, rest) = quoted(text)?;
        return Some((Operand::Value(Value::from(value)), rest));
    }
    if let Some(after) = text.strip_prefix('[') {
        let (inside, tail) = after.split_at(closing(after)?);
        let mut values = Vec::new();
        let mut rest = inside.trim();
        while !rest.is_empty() {
            let (Operand::Value(value), after) = operand(rest)? else { return None };
            values.push(value);
            let after = after.trim_start();
            rest = match after.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if after.is_empty() => "",
                None => return None,
            };
        }
        return Some((Operand::Value(Value::Array(values)), tail.get(1..)?));
    }
    let ends =
        |c: char| matches!(c, ')' | ',' | ']' | '&' | '|' | '=' | '<' | '>') || c.is_whitespace();
    let (word, rest) = text.split_at(text.find(ends).unwrap_or(text.len()));
    let value: Value = serde_json::from_str(word).ok()?;
    Some((Operand::Value(value), rest))
}

/// Reads an expression between slashes, with flags behind the second.
fn slashed(text: &str) -> Option<(Pattern, &str)> {
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
    let pattern = pattern::compile_whole(&format!("{flags}{}", inside.get(..end)?)).ok()?;
    Some((pattern, rest))
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
        let found: Vec<String> = find(&document, path)
            .unwrap()
            .iter()
            .map(|value| super::super::extract::shown(value))
            .collect();
        assert_eq!(found, expected, "{path}");
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
            let found = find(&document, path).unwrap();
            assert_eq!(super::super::extract::shown(&found[0]), expected, "{path}");
        }
        assert!(find(&document, "$.none.avg()").unwrap().is_empty());
    }

    #[test]
    fn paths_that_are_not_understood_are_told() {
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
            assert!(super::check(path).is_err(), "{path}");
        }
    }
}
