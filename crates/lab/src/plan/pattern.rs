//! Regular expressions, compiled once per worker's user, and the part of JSONPath that plans use.

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

/// Compiled expressions of one user.
#[derive(Debug, Default)]
pub(super) struct Patterns(HashMap<String, Option<Regex>>);

/// Patterns with variables in them differ each time: more than this are forgotten.
const MOST: usize = 200;

impl Patterns {
    /// Returns the compiled expression; `None` if it cannot be compiled.
    pub(super) fn find(&mut self, pattern: &str) -> Option<Regex> {
        if let Some(known) = self.0.get(pattern) {
            return known.clone();
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let regex = compile(pattern).ok();
        self.0.insert(pattern.to_owned(), regex.clone());
        regex
    }
}

/// Compiles an expression in Perl's form; look-around and back-references are not supported.
///
/// # Errors
/// What cannot be compiled.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    regex::RegexBuilder::new(pattern).size_limit(4 << 20).build().map_err(|_| {
        format!(
            "regular expression `{pattern}`: not supported (look-around, back-reference or a fault)"
        )
    })
}

/// One step of a path.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    Child(String),
    Index(i64),
    Slice(Option<i64>, Option<i64>),
    All,
    Below,
    Where { path: Vec<Step>, operator: String, value: Option<Value> },
    Length,
}

/// Returns the values that a path leads to.
///
/// # Errors
/// A path that is not understood.
pub(super) fn json_path<'a>(
    document: &'a Value,
    path: &str,
) -> Result<Vec<std::borrow::Cow<'a, Value>>, String> {
    use std::borrow::Cow;
    let steps = parse(path)?;
    let mut current: Vec<Cow<'a, Value>> = vec![Cow::Borrowed(document)];
    for step in &steps {
        if *step == Step::Length {
            current = current
                .iter()
                .filter_map(|value| match value.as_ref() {
                    Value::Array(list) => Some(Cow::Owned(Value::from(list.len()))),
                    Value::Object(map) => Some(Cow::Owned(Value::from(map.len()))),
                    _ => None,
                })
                .collect();
            continue;
        }
        let mut next = Vec::new();
        for value in current {
            if let Cow::Borrowed(value) = value {
                walk(value, step, &mut next);
            }
        }
        current = next.into_iter().map(Cow::Borrowed).collect();
    }
    Ok(current)
}

/// Reports whether a path is understood.
///
/// # Errors
/// What is not.
pub(super) fn check_json_path(path: &str) -> Result<(), String> {
    parse(path).map(drop)
}

fn walk<'a>(value: &'a Value, step: &Step, out: &mut Vec<&'a Value>) {
    match (step, value) {
        (Step::Child(name), Value::Object(map)) => out.extend(map.get(name)),
        (Step::All, Value::Object(map)) => out.extend(map.values()),
        (Step::All, Value::Array(list)) => out.extend(list),
        (Step::Index(index), Value::Array(list)) => {
            let place = if *index < 0 { list.len() as i64 + index } else { *index };
            out.extend(usize::try_from(place).ok().and_then(|place| list.get(place)));
        }
        (Step::Slice(from, to), Value::Array(list)) => {
            let length = list.len() as i64;
            let bound = |at: i64| if at < 0 { (length + at).max(0) } else { at.min(length) };
            let (from, to) = (bound(from.unwrap_or(0)), bound(to.unwrap_or(length)));
            let (from, to) = (usize::try_from(from).unwrap_or(0), usize::try_from(to).unwrap_or(0));
            out.extend(list.get(from..to.max(from)).unwrap_or_default());
        }
        (Step::Below, _) => below(value, out, 0),
        (Step::Where { path, operator, value: wanted }, Value::Array(list)) => {
            out.extend(list.iter().filter(|item| holds(item, path, operator, wanted.as_ref())));
        }
        (Step::Where { path, operator, value: wanted }, Value::Object(map)) => {
            out.extend(map.values().filter(|item| holds(item, path, operator, wanted.as_ref())));
        }
        _ => {}
    }
}

fn below<'a>(value: &'a Value, out: &mut Vec<&'a Value>, depth: usize) {
    out.push(value);
    if depth > 128 {
        return;
    }
    match value {
        Value::Object(map) => map.values().for_each(|inner| below(inner, out, depth + 1)),
        Value::Array(list) => list.iter().for_each(|inner| below(inner, out, depth + 1)),
        _ => {}
    }
}

fn holds(item: &Value, path: &[Step], operator: &str, wanted: Option<&Value>) -> bool {
    let mut current = vec![item];
    for step in path {
        let mut next = Vec::new();
        for value in current {
            walk(value, step, &mut next);
        }
        current = next;
    }
    let Some(found) = current.first() else { return operator == "!=" };
    let Some(wanted) = wanted else { return true };
    let order = match (found.as_f64(), wanted.as_f64()) {
        (Some(one), Some(two)) => one.partial_cmp(&two),
        _ => super::extract::shown(found).partial_cmp(&super::extract::shown(wanted)),
    };
    match operator {
        "==" => order.is_some_and(std::cmp::Ordering::is_eq),
        "!=" => !order.is_some_and(std::cmp::Ordering::is_eq),
        "<" => order.is_some_and(std::cmp::Ordering::is_lt),
        "<=" => order.is_some_and(std::cmp::Ordering::is_le),
        ">" => order.is_some_and(std::cmp::Ordering::is_gt),
        _ => order.is_some_and(std::cmp::Ordering::is_ge),
    }
}

/// Longer paths are refused.
const LONGEST_PATH: usize = 1000;

fn parse(path: &str) -> Result<Vec<Step>, String> {
    let wrong = || format!("JSONPath `{path}`: not supported");
    // Filters hold paths, which hold filters.
    if path.len() > LONGEST_PATH {
        return Err(format!("JSONPath: longer than {LONGEST_PATH} bytes"));
    }
    let mut rest = path.trim().strip_prefix('$').ok_or_else(wrong)?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            steps.push(Step::Below);
            rest = if after.starts_with('[') {
                after
            } else {
                child(after, &mut steps).ok_or_else(wrong)?
            };
        } else if let Some(after) = rest.strip_prefix('.') {
            rest = child(after, &mut steps).ok_or_else(wrong)?;
        } else if let Some(after) = rest.strip_prefix('[') {
            let end = closing(after).ok_or_else(wrong)?;
            let (inside, tail) = after.split_at(end);
            steps.push(bracket(inside.trim()).ok_or_else(wrong)?);
            rest = tail.get(1..).unwrap_or_default();
        } else {
            return Err(wrong());
        }
    }
    Ok(steps)
}

fn child<'a>(text: &'a str, steps: &mut Vec<Step>) -> Option<&'a str> {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    match name {
        "" => return None,
        "*" => steps.push(Step::All),
        "length()" | "size()" => steps.push(Step::Length),
        _ if name.contains('(') => return None,
        _ => steps.push(Step::Child(name.to_owned())),
    }
    Some(rest)
}

/// Finds the bracket that closes, beside quotes and nested brackets.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match (quote, c) {
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
    for quote in ['\'', '"'] {
        if let Some(name) = inside.strip_prefix(quote) {
            return Some(Step::Child(name.strip_suffix(quote)?.to_owned()));
        }
    }
    if let Some(filter) = inside.strip_prefix("?(") {
        return filter_step(filter.strip_suffix(')')?);
    }
    if let Some((from, to)) = inside.split_once(':') {
        let bound = |text: &str| match text.trim() {
            "" => Some(None),
            text => text.parse().ok().map(Some),
        };
        return Some(Step::Slice(bound(from)?, bound(to)?));
    }
    inside.parse().ok().map(Step::Index)
}

fn filter_step(filter: &str) -> Option<Step> {
    let filter = filter.trim().strip_prefix('@')?;
    let operator =
        ["==", "!=", "<=", ">=", "<", ">"].into_iter().find(|operator| filter.contains(operator));
    let (path, value) = match operator {
        None => (filter, None),
        Some(operator) => {
            let (path, value) = filter.split_once(operator)?;
            let value = value.trim().replace('\'', "\"");
            (path, Some(serde_json::from_str(&value).ok()?))
        }
    };
    let path = parse(&format!("${}", path.trim())).ok()?;
    Some(Step::Where { path, operator: operator.unwrap_or_default().to_owned(), value })
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
        let found: Vec<String> = json_path(&document, path)
            .unwrap()
            .iter()
            .map(|value| super::super::extract::shown(value))
            .collect();
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn paths_of_real_plans_lead_where_they_say() {
        check("$.id", &["7"]);
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
    }

    #[test]
    fn paths_that_are_not_understood_are_told() {
        for path in ["", "id", "$.", "$[", "$.a[?(foo())]", "$.sum(x)"] {
            assert!(check_json_path(path).is_err(), "{path}");
        }
    }
}
