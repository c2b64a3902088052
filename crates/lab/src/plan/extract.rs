//! Extractors: from an answer into variables.

use std::borrow::Cow;

use serde_json::Value;

use super::answer::Answer;
use super::json_path;
use super::markup::{self, Selector, Tree, XPath};
use super::pattern::Patterns;
use super::scope::Scope;
use super::template::Template;

/// Where a regular expression looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Body,
    Unescaped,
    Headers,
    RequestHeaders,
    Url,
    Code,
    Message,
}

impl Field {
    /// Reads JMeter's word for it.
    pub(super) fn find(word: &str) -> Option<Self> {
        Some(match word {
            "" | "false" => Self::Body,
            "unescaped" => Self::Unescaped,
            "true" => Self::Headers,
            "request_headers" => Self::RequestHeaders,
            "URL" => Self::Url,
            "code" => Self::Code,
            "message" => Self::Message,
            "as_document" => Self::Body,
            _ => return None,
        })
    }

    fn of(self, answer: &Answer) -> Cow<'_, str> {
        match self {
            Self::Body => answer.body.as_str().into(),
            Self::Unescaped => unescape(&answer.body).into(),
            Self::Headers => answer.headers.as_str().into(),
            Self::RequestHeaders => answer.request_headers(),
            Self::Url => answer.url.as_str().into(),
            Self::Code => answer.code.as_str().into(),
            Self::Message => answer.message.as_str().into(),
        }
    }
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// How XPath looks at an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathWay {
    /// Anything is HTML; else it must be XML.
    pub(super) is_html: bool,
    /// Takes what is found as markup instead of its text.
    pub(super) as_markup: bool,
    /// With functions of XPath 2.0; the value of an element is all of its text, not that of its first child.
    pub(super) is_second: bool,
}

/// Reads something from the answer.
#[derive(Debug, Clone)]
pub(super) enum Extractor {
    Regex {
        name: Template,
        pattern: Template,
        /// `$1$`.
        template: Template,
        number: Template,
        default: Template,
        clears: bool,
        field: Field,
        /// The variable to look in instead of the answer.
        variable: Option<Template>,
    },
    Json {
        names: Template,
        paths: Template,
        numbers: Template,
        defaults: Template,
        joins: bool,
        variable: Option<Template>,
    },
    /// XPath in XML, or in HTML made a tree.
    Path {
        name: Template,
        path: Template,
        number: Template,
        default: Template,
        way: PathWay,
        variable: Option<Template>,
    },
    /// A selector in HTML.
    Select {
        name: Template,
        selector: Template,
        /// The text of what is found if it names none.
        attribute: Template,
        number: Template,
        default: Template,
        clears: bool,
        variable: Option<Template>,
    },
    Boundary {
        name: Template,
        left: Template,
        right: Template,
        number: Template,
        default: Template,
        clears: bool,
        field: Field,
    },
}

impl Extractor {
    /// Sets the variables.
    pub(super) fn run(&self, answer: &Answer, scope: &mut Scope, patterns: &mut Patterns) {
        match self {
            Self::Regex { name, pattern, template, number, default, clears, field, variable } => {
                let text: Cow<'_, str> = match variable {
                    Some(variable) => {
                        let variable = variable.draw(scope).into_owned();
                        scope.variable(&variable).unwrap_or_default().to_owned().into()
                    }
                    None => field.of(answer),
                };
                let pattern = pattern.draw(scope).into_owned();
                let template = template.draw(scope).into_owned();
                let matches = match patterns.find(&pattern) {
                    Some(pattern) => pattern.groups(&text),
                    None => Vec::new(),
                };
                let found: Vec<Found> = matches
                    .into_iter()
                    .map(|groups| Found { value: fill(&template, &groups), groups })
                    .collect();
                put(scope, &found, &Wish::draw(name, number, default, *clears));
            }
            Self::Boundary { name, left, right, number, default, clears, field } => {
                let text = field.of(answer);
                let (left, right) = (left.draw(scope).into_owned(), right.draw(scope).into_owned());
                let found = between(&text, &left, &right)
                    .into_iter()
                    .map(|value| Found { value, groups: Vec::new() })
                    .collect::<Vec<_>>();
                put(scope, &found, &Wish::draw(name, number, default, *clears));
            }
            Self::Path { name, path, number, default, way, variable } => {
                let text = body_or(variable.as_ref(), answer, scope);
                let path = path.draw(scope).into_owned();
                let number = number.draw(scope).trim().parse().unwrap_or(-1);
                let found = find_path(&text, &path, (number, *way), scope);
                let name = name.draw(scope).trim().to_owned();
                let default = default.draw(scope).into_owned();
                put_paths(scope, &name, &default, &found);
            }
            Self::Select { name, selector, attribute, number, default, clears, variable } => {
                let text = body_or(variable.as_ref(), answer, scope);
                let (selector, attribute) =
                    (selector.draw(scope).into_owned(), attribute.draw(scope).trim().to_owned());
                let found = select(&text, &selector, &attribute);
                put(scope, &found, &Wish::draw(name, number, default, *clears));
            }
            Self::Json { names, paths, numbers, defaults, joins, variable } => {
                let text = body_or(variable.as_ref(), answer, scope);
                let lists =
                    [names, paths, numbers, defaults].map(|list| split_list(&list.draw(scope)));
                extract_json(&text, &lists, *joins, scope);
            }
        }
    }
}

/// Returns the text of a variable, or the body.
fn body_or(variable: Option<&Template>, answer: &Answer, scope: &mut Scope) -> String {
    match variable {
        Some(variable) => {
            let variable = variable.draw(scope).into_owned();
            scope.variable(&variable).unwrap_or_default().to_owned()
        }
        None => answer.body.clone(),
    }
}

fn select(text: &str, selector: &str, attribute: &str) -> Vec<Found> {
    let Ok(selector) = Selector::parse(selector) else { return Vec::new() };
    let tree = Tree::of_html(text);
    let found = selector.select(&tree).into_iter();
    let value = |place| match attribute {
        "" => tree.shown(place),
        name => tree.attribute(place, &name.to_lowercase()).unwrap_or_default().to_owned(),
    };
    found.map(|place| Found { value: value(place), groups: Vec::new() }).collect()
}

/// Returns what a path finds: everything for a negative number, one of it at random for 0, else the one of that number.
/// What has no value of its own counts and is `None`.
fn find_path(
    text: &str,
    path: &str,
    (number, way): (i64, PathWay),
    scope: &mut Scope,
) -> Vec<Option<String>> {
    let tree = if way.is_html { Ok(Tree::of_html(text)) } else { Tree::of_xml(text) };
    let (Ok(tree), Ok(path)) = (tree, XPath::parse(path, way.is_second)) else { return Vec::new() };
    let nodes = match path.find(&tree) {
        markup::Found::Nodes(nodes) => nodes,
        markup::Found::Value(value) => return vec![Some(value)],
        markup::Found::Flag(flag) => return vec![Some(flag.to_string())],
    };
    let values = nodes.iter().map(|one| match way {
        PathWay { as_markup: true, .. } => Some(one.markup(&tree)),
        PathWay { is_second: true, .. } => Some(one.text.clone()),
        _ => one.value.clone(),
    });
    let values: Vec<Option<String>> = values.collect();
    if number < 0 || values.is_empty() {
        return values;
    }
    let last = i64::try_from(values.len()).unwrap_or(i64::MAX);
    let wanted = if number == 0 { scope.random_between(1, last) } else { number };
    let wanted = usize::try_from(wanted).ok().and_then(|wanted| wanted.checked_sub(1));
    wanted.and_then(|wanted| values.into_iter().nth(wanted)).into_iter().collect()
}

/// Sets the variables of an XPath extractor: the first value, all values by number, and how many.
fn put_paths(scope: &mut Scope, name: &str, default: &str, found: &[Option<String>]) {
    let count = format!("{name}_matchNr");
    let before: usize = scope.variable(&count).and_then(|count| count.parse().ok()).unwrap_or(0);
    scope.set(name, default);
    scope.set(&count, &found.len().to_string());
    scope.remove(&format!("{name}_1"));
    if let Some(Some(first)) = found.first() {
        scope.set(name, first);
    }
    for (place, value) in found.iter().enumerate() {
        if let Some(value) = value {
            scope.set(&format!("{name}_{}", place + 1), value);
        }
    }
    for place in found.len()..before.max(found.len() + 1).min(found.len() + 10_000) {
        scope.remove(&format!("{name}_{}", place + 1));
    }
}

struct Found {
    value: String,
    groups: Vec<String>,
}

/// What is wanted of the matches.
struct Wish<'a> {
    name: &'a Template,
    number: &'a Template,
    default: &'a Template,
    clears: bool,
}

impl<'a> Wish<'a> {
    fn draw(name: &'a Template, number: &'a Template, default: &'a Template, clears: bool) -> Self {
        Self { name, number, default, clears }
    }
}

fn put(scope: &mut Scope, found: &[Found], wish: &Wish<'_>) {
    let name = wish.name.draw(scope).trim().to_owned();
    let default = wish.default.draw(scope).into_owned();
    let number: i64 = wish.number.draw(scope).trim().parse().unwrap_or(0);
    let has_default = !default.is_empty() || wish.clears;
    if number < 0 {
        if has_default {
            scope.set(&name, &default);
        }
        let before: usize = scope
            .variable(&format!("{name}_matchNr"))
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        scope.set(&format!("{name}_matchNr"), &found.len().to_string());
        for (place, one) in found.iter().enumerate() {
            scope.set(&format!("{name}_{}", place + 1), &one.value);
            set_groups(scope, &format!("{name}_{}", place + 1), &one.groups);
        }
        for place in found.len()..before.min(found.len() + 10_000) {
            scope.remove(&format!("{name}_{}", place + 1));
        }
        return;
    }
    let place = match usize::try_from(number) {
        Ok(0) if found.is_empty() => None,
        Ok(0) => {
            let last = i64::try_from(found.len()).unwrap_or(1) - 1;
            usize::try_from(scope.random_between(0, last)).ok()
        }
        Ok(number) => Some(number - 1),
        Err(_) => None,
    };
    match place.and_then(|place| found.get(place)) {
        Some(one) => {
            scope.set(&name, &one.value);
            set_groups(scope, &name, &one.groups);
        }
        None => {
            if has_default {
                scope.set(&name, &default);
            }
            for suffix in ["_g", "_g0", "_g1"] {
                scope.remove(&format!("{name}{suffix}"));
            }
        }
    }
}

fn set_groups(scope: &mut Scope, name: &str, groups: &[String]) {
    if groups.is_empty() {
        return;
    }
    for (place, group) in groups.iter().enumerate() {
        scope.set(&format!("{name}_g{place}"), group);
    }
    scope.set(&format!("{name}_g"), &(groups.len() - 1).to_string());
}

/// Replaces `$1$` by group 1.
pub(super) fn fill(template: &str, groups: &[String]) -> String {
    let template = if template.is_empty() { "$1$" } else { template };
    let mut out = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        match after.split_once('$') {
            Some((digits, tail)) if digits.parse::<usize>().is_ok() => {
                let group = digits.parse::<usize>().ok().and_then(|place| groups.get(place));
                out.push_str(group.map_or("", String::as_str));
                rest = tail;
            }
            _ => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn between(text: &str, left: &str, right: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        let start =
            if left.is_empty() { Some(0) } else { rest.find(left).map(|at| at + left.len()) };
        let Some(inside) = start.and_then(|start| rest.get(start..)) else { return found };
        if right.is_empty() {
            found.push(inside.to_owned());
            return found;
        }
        let Some(end) = inside.find(right) else { return found };
        found.push(inside.get(..end).unwrap_or_default().to_owned());
        rest = inside.get(end + right.len()..).unwrap_or_default();
        if left.is_empty() {
            return found;
        }
    }
}

fn split_list(text: &str) -> Vec<String> {
    text.split(';').map(|part| part.trim().to_owned()).collect()
}

fn extract_json(text: &str, lists: &[Vec<String>; 4], joins: bool, scope: &mut Scope) {
    let [names, paths, numbers, defaults] = lists;
    let document: Option<Value> = serde_json::from_str(text).ok();
    for (place, name) in names.iter().enumerate() {
        let path = paths.get(place).map_or("", String::as_str);
        let default = defaults.get(place).map_or("", String::as_str);
        let number: i64 = numbers.get(place).and_then(|number| number.parse().ok()).unwrap_or(0);
        let count = format!("{name}_matchNr");
        forget_matches(scope, name, &count);
        let found: Vec<String> = document
            .as_ref()
            .and_then(|document| json_path::find(document, path).ok())
            .unwrap_or_default()
            .iter()
            .map(|value| if value.is_null() { default.to_owned() } else { shown(value) })
            .collect();
        if found.is_empty() {
            scope.set(name, default);
            scope.set(&count, "0");
            continue;
        }
        match usize::try_from(number) {
            Err(_) => {
                for (place, value) in found.iter().enumerate() {
                    scope.set(&format!("{name}_{}", place + 1), value);
                }
                if joins {
                    scope.set(&format!("{name}_ALL"), &found.join(","));
                }
            }
            Ok(0) => {
                let last = i64::try_from(found.len()).unwrap_or(1) - 1;
                let chosen = usize::try_from(scope.random_between(0, last)).unwrap_or(0);
                scope.set(name, found.get(chosen).map_or(default, String::as_str));
            }
            Ok(number) => {
                // The only one is taken, whichever was wanted.
                let chosen = if found.len() == 1 { 0 } else { number - 1 };
                scope.set(name, found.get(chosen).map_or(default, String::as_str));
            }
        }
        if number != 0 {
            scope.set(&count, &found.len().to_string());
        }
    }
}

/// Removes what an earlier answer left: how many were found, and each of them.
fn forget_matches(scope: &mut Scope, name: &str, count: &str) {
    scope.remove(count);
    for place in 1.. {
        let one = format!("{name}_{place}");
        if scope.variable(&one).is_none() {
            return;
        }
        scope.remove(&one);
    }
}

/// Returns a JSON value as a variable holds it: texts without quotes.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "null".to_owned(),
        other => other.to_string(),
    }
}
