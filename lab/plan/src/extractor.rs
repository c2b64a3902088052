//! Extractors: set variables from a response.

use std::borrow::Cow;

use serde_json::Value;

use super::json_path;
use super::markup::{self, CssSelector, MarkupTree, XPath};
use super::regex_pattern::{RegexPatternCache, fill_group_template};
use super::sample_response::SampleResponse;
use super::template::TextTemplate;
use super::variable_scope::VariableScope;

/// The part of a response that a regular expression searches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseField {
    Body,
    UnescapedBody,
    Headers,
    RequestHeaders,
    Url,
    Code,
    Message,
}

impl ResponseField {
    /// Parses JMeter's keyword.
    pub(super) fn from_keyword(keyword: &str) -> Option<Self> {
        Some(match keyword {
            "" | "false" => Self::Body,
            "unescaped" => Self::UnescapedBody,
            "true" => Self::Headers,
            "request_headers" => Self::RequestHeaders,
            "URL" => Self::Url,
            "code" => Self::Code,
            "message" => Self::Message,
            "as_document" => Self::Body,
            _ => return None,
        })
    }

    fn read_from(self, response: &SampleResponse) -> Cow<'_, str> {
        match self {
            Self::Body => response.body.as_str().into(),
            Self::UnescapedBody => unescape_html(&response.body).into(),
            Self::Headers => response.headers.as_str().into(),
            Self::RequestHeaders => response.request_headers_text(),
            Self::Url => response.url.as_str().into(),
            Self::Code => response.code.as_str().into(),
            Self::Message => response.message.as_str().into(),
        }
    }
}

fn unescape_html(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&#39;", "'")
        .replace("&amp;", "&")
}

/// Options of an XPath extractor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XPathOptions {
    /// Parses any input as HTML; otherwise it must be XML.
    pub(super) is_html: bool,
    /// Returns matches as markup instead of text.
    pub(super) returns_markup: bool,
    /// Enables the functions of XPath 2.0; the value of an element is all of its text, not that of its first child.
    pub(super) is_xpath2: bool,
}

/// Extracts values from a response.
#[derive(Debug, Clone)]
pub enum ResponseExtractor {
    Regex {
        name: TextTemplate,
        pattern: TextTemplate,
        /// `$1$`.
        template: TextTemplate,
        match_number: TextTemplate,
        default: TextTemplate,
        clears_on_missing: bool,
        response_field: ResponseField,
        /// The variable to search instead of the response.
        variable: Option<TextTemplate>,
    },
    Json {
        names: TextTemplate,
        paths: TextTemplate,
        match_numbers: TextTemplate,
        defaults: TextTemplate,
        joins_all: bool,
        variable: Option<TextTemplate>,
    },
    /// XPath in XML, or in parsed HTML.
    XPath {
        name: TextTemplate,
        path: TextTemplate,
        match_number: TextTemplate,
        default: TextTemplate,
        options: XPathOptions,
        variable: Option<TextTemplate>,
    },
    /// A CSS selector in HTML.
    CssSelector {
        name: TextTemplate,
        selector: TextTemplate,
        /// The attribute to extract; if empty, the text of the match.
        attribute: TextTemplate,
        match_number: TextTemplate,
        default: TextTemplate,
        clears_on_missing: bool,
        variable: Option<TextTemplate>,
    },
    Boundary {
        name: TextTemplate,
        left: TextTemplate,
        right: TextTemplate,
        match_number: TextTemplate,
        default: TextTemplate,
        clears_on_missing: bool,
        response_field: ResponseField,
    },
}

impl ResponseExtractor {
    /// Sets the variables.
    pub fn set_variables(
        &self,
        response: &SampleResponse,
        scope: &mut VariableScope,
        patterns: &mut RegexPatternCache,
    ) {
        match self {
            Self::Regex {
                name,
                pattern,
                template,
                match_number: number,
                default,
                clears_on_missing,
                response_field,
                variable,
            } => {
                let text: Cow<'_, str> = match variable {
                    Some(variable) => {
                        let variable = variable.evaluate(scope).into_owned();
                        scope.variable(&variable).unwrap_or_default().to_owned().into()
                    }
                    None => response_field.read_from(response),
                };
                let pattern = pattern.evaluate(scope).into_owned();
                let template = template.evaluate(scope).into_owned();
                let matches = match patterns.search_pattern(&pattern) {
                    Some(pattern) => pattern.match_groups(&text),
                    None => Vec::new(),
                };
                let values: Vec<ExtractedMatch> = matches
                    .into_iter()
                    .map(|groups| ExtractedMatch {
                        value: fill_group_template(&template, &groups),
                        groups,
                    })
                    .collect();
                set_match_variables(
                    scope,
                    &values,
                    &MatchSelection::new(name, number, default, *clears_on_missing),
                );
            }
            Self::Boundary {
                name,
                left,
                right,
                match_number: number,
                default,
                clears_on_missing,
                response_field,
            } => {
                let text = response_field.read_from(response);
                let (left, right) =
                    (left.evaluate(scope).into_owned(), right.evaluate(scope).into_owned());
                let values = find_between(&text, &left, &right)
                    .into_iter()
                    .map(|value| ExtractedMatch { value, groups: Vec::new() })
                    .collect::<Vec<_>>();
                set_match_variables(
                    scope,
                    &values,
                    &MatchSelection::new(name, number, default, *clears_on_missing),
                );
            }
            Self::XPath { name, path, match_number: number, default, options, variable } => {
                let text = variable_or_body(variable.as_ref(), response, scope);
                let path = path.evaluate(scope).into_owned();
                let number = number.evaluate(scope).trim().parse().unwrap_or(-1);
                let values = find_xpath_values(&text, &path, number, *options, scope);
                let name = name.evaluate(scope).trim().to_owned();
                let default = default.evaluate(scope).into_owned();
                set_xpath_variables(scope, &name, &default, &values);
            }
            Self::CssSelector {
                name,
                selector,
                attribute,
                match_number: number,
                default,
                clears_on_missing,
                variable,
            } => {
                let text = variable_or_body(variable.as_ref(), response, scope);
                let (selector, attribute) = (
                    selector.evaluate(scope).into_owned(),
                    attribute.evaluate(scope).trim().to_owned(),
                );
                let values = select_html(&text, &selector, &attribute);
                set_match_variables(
                    scope,
                    &values,
                    &MatchSelection::new(name, number, default, *clears_on_missing),
                );
            }
            Self::Json { names, paths, match_numbers, defaults, joins_all, variable } => {
                let text = variable_or_body(variable.as_ref(), response, scope);
                let lists = [names, paths, match_numbers, defaults]
                    .map(|list| split_semicolon_list(&list.evaluate(scope)));
                set_json_variables(&text, &lists, *joins_all, scope);
            }
        }
    }
}

/// Returns the value of the variable, or the body.
fn variable_or_body(
    variable: Option<&TextTemplate>,
    response: &SampleResponse,
    scope: &mut VariableScope,
) -> String {
    match variable {
        Some(variable) => {
            let variable = variable.evaluate(scope).into_owned();
            scope.variable(&variable).unwrap_or_default().to_owned()
        }
        None => response.body.clone(),
    }
}

fn select_html(text: &str, selector: &str, attribute: &str) -> Vec<ExtractedMatch> {
    let Ok(selector) = CssSelector::parse(selector) else { return Vec::new() };
    let tree = MarkupTree::parse_html(text);
    let nodes = selector.select(&tree).into_iter();
    let value = |node| match attribute {
        "" => tree.display_text(node),
        name => tree.attribute(node, &name.to_lowercase()).unwrap_or_default().to_owned(),
    };
    nodes.map(|node| ExtractedMatch { value: value(node), groups: Vec::new() }).collect()
}

/// Returns the matches of a path: all for a negative number, a random one for 0, otherwise the one with that number.
/// Matches without a value count and are `None`.
fn find_xpath_values(
    text: &str,
    path: &str,
    number: i64,
    options: XPathOptions,
    scope: &mut VariableScope,
) -> Vec<Option<String>> {
    let tree = if options.is_html {
        Ok(MarkupTree::parse_html(text))
    } else {
        MarkupTree::parse_xml(text)
    };
    let (Ok(tree), Ok(path)) = (tree, XPath::parse(path, options.is_xpath2)) else {
        return Vec::new();
    };
    let nodes = match path.evaluate(&tree) {
        markup::XPathResult::Nodes(nodes) => nodes,
        markup::XPathResult::Value(value) => return vec![Some(value)],
        markup::XPathResult::Boolean(flag) => return vec![Some(flag.to_string())],
    };
    let values = nodes.iter().map(|node| match options {
        XPathOptions { returns_markup: true, .. } => Some(node.to_markup(&tree)),
        XPathOptions { is_xpath2: true, .. } => Some(node.text.clone()),
        _ => node.value.clone(),
    });
    let values: Vec<Option<String>> = values.collect();
    if number < 0 || values.is_empty() {
        return values;
    }
    let last = i64::try_from(values.len()).unwrap_or(i64::MAX);
    let match_number = if number == 0 { scope.random_between(1, last) } else { number };
    let match_index =
        usize::try_from(match_number).ok().and_then(|match_number| match_number.checked_sub(1));
    match_index.and_then(|match_index| values.into_iter().nth(match_index)).into_iter().collect()
}

/// Sets the variables of an XPath extractor: the first value, all values by number, and their count.
fn set_xpath_variables(
    scope: &mut VariableScope,
    name: &str,
    default: &str,
    values: &[Option<String>],
) {
    let count = format!("{name}_matchNr");
    let before: usize = scope.variable(&count).and_then(|count| count.parse().ok()).unwrap_or(0);
    scope.set_variable(name, default);
    scope.set_variable(&count, &values.len().to_string());
    scope.remove_variable(&format!("{name}_1"));
    if let Some(Some(first)) = values.first() {
        scope.set_variable(name, first);
    }
    for (index, value) in values.iter().enumerate() {
        if let Some(value) = value {
            scope.set_variable(&format!("{name}_{}", index + 1), value);
        }
    }
    for index in values.len()..before.max(values.len() + 1).min(values.len() + 10_000) {
        scope.remove_variable(&format!("{name}_{}", index + 1));
    }
}

struct ExtractedMatch {
    value: String,
    groups: Vec<String>,
}

/// The requested matches.
struct MatchSelection<'a> {
    name: &'a TextTemplate,
    match_number: &'a TextTemplate,
    default: &'a TextTemplate,
    clears_on_missing: bool,
}

impl<'a> MatchSelection<'a> {
    fn new(
        name: &'a TextTemplate,
        number: &'a TextTemplate,
        default: &'a TextTemplate,
        clears: bool,
    ) -> Self {
        Self { name, match_number: number, default, clears_on_missing: clears }
    }
}

fn set_match_variables(
    scope: &mut VariableScope,
    matches: &[ExtractedMatch],
    selection: &MatchSelection<'_>,
) {
    let name = selection.name.evaluate(scope).trim().to_owned();
    let default = selection.default.evaluate(scope).into_owned();
    let number: i64 = selection.match_number.evaluate(scope).trim().parse().unwrap_or(0);
    let has_default = !default.is_empty() || selection.clears_on_missing;
    if number < 0 {
        if has_default {
            scope.set_variable(&name, &default);
        }
        let before: usize = scope
            .variable(&format!("{name}_matchNr"))
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        scope.set_variable(&format!("{name}_matchNr"), &matches.len().to_string());
        for (index, extracted) in matches.iter().enumerate() {
            scope.set_variable(&format!("{name}_{}", index + 1), &extracted.value);
            set_group_variables(scope, &format!("{name}_{}", index + 1), &extracted.groups);
        }
        for index in matches.len()..before.min(matches.len() + 10_000) {
            scope.remove_variable(&format!("{name}_{}", index + 1));
        }
        return;
    }
    let match_index = match usize::try_from(number) {
        Ok(0) if matches.is_empty() => None,
        Ok(0) => {
            let last = i64::try_from(matches.len()).unwrap_or(1) - 1;
            usize::try_from(scope.random_between(0, last)).ok()
        }
        Ok(number) => Some(number - 1),
        Err(_) => None,
    };
    match match_index.and_then(|match_index| matches.get(match_index)) {
        Some(extracted) => {
            scope.set_variable(&name, &extracted.value);
            set_group_variables(scope, &name, &extracted.groups);
        }
        None => {
            if has_default {
                scope.set_variable(&name, &default);
            }
            for suffix in ["_g", "_g0", "_g1"] {
                scope.remove_variable(&format!("{name}{suffix}"));
            }
        }
    }
}

fn set_group_variables(scope: &mut VariableScope, name: &str, groups: &[String]) {
    if groups.is_empty() {
        return;
    }
    for (index, group) in groups.iter().enumerate() {
        scope.set_variable(&format!("{name}_g{index}"), group);
    }
    scope.set_variable(&format!("{name}_g"), &(groups.len() - 1).to_string());
}

fn find_between(text: &str, left: &str, right: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut rest = text;
    loop {
        let start =
            if left.is_empty() { Some(0) } else { rest.find(left).map(|at| at + left.len()) };
        let Some(inside) = start.and_then(|start| rest.get(start..)) else { return texts };
        if right.is_empty() {
            texts.push(inside.to_owned());
            return texts;
        }
        let Some(end) = inside.find(right) else { return texts };
        texts.push(inside.get(..end).unwrap_or_default().to_owned());
        rest = inside.get(end + right.len()..).unwrap_or_default();
        if left.is_empty() {
            return texts;
        }
    }
}

fn split_semicolon_list(text: &str) -> Vec<String> {
    text.split(';').map(|part| part.trim().to_owned()).collect()
}

fn set_json_variables(
    text: &str,
    lists: &[Vec<String>; 4],
    joins: bool,
    scope: &mut VariableScope,
) {
    let [names, paths, numbers, defaults] = lists;
    let document: Option<Value> = serde_json::from_str(text).ok();
    for (index, name) in names.iter().enumerate() {
        let path = paths.get(index).map_or("", String::as_str);
        let default = defaults.get(index).map_or("", String::as_str);
        let number: i64 = numbers.get(index).and_then(|number| number.parse().ok()).unwrap_or(0);
        let count = format!("{name}_matchNr");
        remove_previous_matches(scope, name, &count);
        let values: Vec<String> = document
            .as_ref()
            .and_then(|document| json_path::find_values(document, path).ok())
            .unwrap_or_default()
            .iter()
            .map(|value| {
                if value.is_null() { default.to_owned() } else { json_path::json_value_text(value) }
            })
            .collect();
        if values.is_empty() {
            scope.set_variable(name, default);
            scope.set_variable(&count, "0");
            continue;
        }
        match usize::try_from(number) {
            Err(_) => {
                for (value_index, value) in values.iter().enumerate() {
                    scope.set_variable(&format!("{name}_{}", value_index + 1), value);
                }
                if joins {
                    scope.set_variable(&format!("{name}_ALL"), &values.join(","));
                }
            }
            Ok(0) => {
                let last = i64::try_from(values.len()).unwrap_or(1) - 1;
                let chosen = usize::try_from(scope.random_between(0, last)).unwrap_or(0);
                scope.set_variable(name, values.get(chosen).map_or(default, String::as_str));
            }
            Ok(number) => {
                // If there is only one match, it is used regardless of the requested number.
                let chosen = if values.len() == 1 { 0 } else { number - 1 };
                scope.set_variable(name, values.get(chosen).map_or(default, String::as_str));
            }
        }
        if number != 0 {
            scope.set_variable(&count, &values.len().to_string());
        }
    }
}

/// Removes the variables of an earlier response: the number of matches, and each match.
fn remove_previous_matches(scope: &mut VariableScope, name: &str, count: &str) {
    scope.remove_variable(count);
    for number in 1.. {
        let variable = format!("{name}_{number}");
        if scope.variable(&variable).is_none() {
            return;
        }
        scope.remove_variable(&variable);
    }
}
