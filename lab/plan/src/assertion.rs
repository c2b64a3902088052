//! Assertions: checks of a response.

use std::borrow::Cow;
use std::sync::Arc;

use md5::Digest as _;
use serde_json::Value;

use super::json_path;
use super::markup::{MarkupTree, XPath, XPathResult};
use super::regex_pattern::RegexPatternCache;
use super::sample_response::SampleResponse;
use super::script::PlanScript;
use super::template::TextTemplate;
use super::variable_scope::VariableScope;

/// The part of a response that a response assertion checks.
#[derive(Debug, Clone)]
pub enum AssertionSubject {
    Body,
    Code,
    Message,
    Headers,
    RequestHeaders,
    /// The request as JMeter formats it.
    Request,
    Url,
    Variable(TextTemplate),
}

/// The comparison of a response assertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextComparison {
    Contains,
    Matches,
    Equals,
    Substring,
}

/// The comparison of a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeComparison {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
}

/// The subject of a size assertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeSubject {
    /// All bytes received over the network.
    All,
    Body,
    Headers,
    Code,
    Message,
}

/// One assertion.
#[derive(Debug, Clone)]
pub enum SampleAssertion {
    /// Compares a part of the response with patterns.
    Response {
        /// The compared part.
        subject: AssertionSubject,
        /// The kind of comparison.
        comparison: TextComparison,
        /// True if the patterns must not match.
        is_negated: bool,
        /// True if one matching pattern is enough.
        matches_any: bool,
        /// The patterns.
        patterns: Vec<TextTemplate>,
        /// The failure message; empty for the default one.
        message: TextTemplate,
        /// True if an error status does not fail the sample by itself.
        assumes_success: bool,
    },
    /// The sample must end within this number of milliseconds.
    Duration(TextTemplate),
    /// Compares a size.
    Size {
        /// The size in bytes.
        size: TextTemplate,
        /// The kind of comparison.
        comparison: SizeComparison,
        /// The part whose size counts.
        subject: SizeSubject,
    },
    /// The digest of the body in hexadecimal.
    Md5(TextTemplate),
    /// A JSON path must exist, and may have to have a value.
    Json {
        /// The path.
        path: TextTemplate,
        /// The expected value; `None` if any value passes.
        expected: Option<TextTemplate>,
        /// True if the expected value is a pattern.
        is_regex: bool,
        /// True if the value must be `null`.
        expects_null: bool,
        /// True if the assertion must not hold.
        inverts: bool,
        /// The expected value is the text of a value, as in plans in TOML; otherwise it is JSON.
        compares_text: bool,
    },
    /// An XPath expression must hold.
    XPath {
        /// The expression.
        path: TextTemplate,
        /// True if the expression must not hold.
        inverts: bool,
        /// Parses any input as HTML; otherwise the response must be XML.
        is_html: bool,
        /// Enables the functions of XPath 2.0.
        is_xpath2: bool,
        /// A variable with the document; `None` for the response.
        variable: Option<TextTemplate>,
    },
    /// The response must be well-formed XML.
    Xml,
    /// Run by the thread itself, because its outcome may be more than passed or failed.
    Script(Arc<PlanScript>),
}

/// The result of an assertion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssertionResult {
    /// The assertion holds.
    Passed,
    /// Passed, and an earlier failure because of the status is cleared.
    PassedOverridingStatus,
    /// The assertion does not hold, with the message.
    Failed(String),
}

impl SampleAssertion {
    /// Evaluates the assertion for a response.
    pub fn evaluate(
        &self,
        response: &SampleResponse,
        scope: &mut VariableScope,
        patterns: &mut RegexPatternCache,
    ) -> AssertionResult {
        match self {
            Self::Response { .. } => self.evaluate_response(response, scope, patterns),
            Self::Script(_) => AssertionResult::Passed,
            Self::Xml if response.body.is_empty() => {
                AssertionResult::Failed("Response was null".to_owned())
            }
            Self::Xml => MarkupTree::check_well_formed(&response.body)
                .map_or_else(AssertionResult::Failed, |()| AssertionResult::Passed),
            Self::Duration(most) => {
                let most: u64 = most.evaluate(scope).trim().parse().unwrap_or(0);
                if most == 0 || response.elapsed_ms <= most {
                    return AssertionResult::Passed;
                }
                AssertionResult::Failed(format!(
                    "The operation lasted too long: It took {} milliseconds, but should not have lasted longer than {most} milliseconds.",
                    response.elapsed_ms
                ))
            }
            Self::Md5(_) if response.body.is_empty() => {
                AssertionResult::Failed("Response was null".to_owned())
            }
            Self::Md5(expected_digest) => {
                let expected_digest = expected_digest.evaluate(scope).trim().to_owned();
                let digest = hex::encode(md5::Md5::digest(response.body.as_bytes()));
                if digest.eq_ignore_ascii_case(&expected_digest) {
                    return AssertionResult::Passed;
                }
                AssertionResult::Failed(format!(
                    "Error asserting MD5 sum : got {digest} but should have been {expected_digest}"
                ))
            }
            Self::Size { size, comparison, subject } => {
                let expected_size: u64 = size.evaluate(scope).trim().parse().unwrap_or(0);
                let measured_size = match subject {
                    SizeSubject::All => response.bytes,
                    SizeSubject::Body => response.body_bytes,
                    SizeSubject::Headers => response.headers.len() as u64,
                    SizeSubject::Code => response.code.len() as u64,
                    SizeSubject::Message => response.message.len() as u64,
                };
                let (holds, words) = match comparison {
                    SizeComparison::Equal => (measured_size == expected_size, "equal to"),
                    SizeComparison::NotEqual => (measured_size != expected_size, "not equal to"),
                    SizeComparison::Greater => (measured_size > expected_size, "greater than"),
                    SizeComparison::Less => (measured_size < expected_size, "less than"),
                    SizeComparison::GreaterOrEqual => {
                        (measured_size >= expected_size, "greater than or equal to")
                    }
                    SizeComparison::LessOrEqual => {
                        (measured_size <= expected_size, "less than or equal to")
                    }
                };
                if holds {
                    return AssertionResult::Passed;
                }
                AssertionResult::Failed(format!(
                    "The result was the wrong size: It was {measured_size} bytes, but should have been {words} {expected_size} bytes."
                ))
            }
            Self::XPath { path, inverts, is_html, is_xpath2, variable } => {
                let path = path.evaluate(scope).into_owned();
                let text = match variable {
                    Some(variable) => {
                        let variable = variable.evaluate(scope).into_owned();
                        scope.variable(&variable).unwrap_or_default().to_owned()
                    }
                    None => response.body.clone(),
                };
                match check_xpath(&text, &path, *inverts, *is_html, *is_xpath2) {
                    None => AssertionResult::Passed,
                    Some(fault) => AssertionResult::Failed(fault),
                }
            }
            Self::Json { path, expected, is_regex, expects_null, inverts, compares_text } => {
                let path = path.evaluate(scope).into_owned();
                let expected =
                    expected.as_ref().map(|expected| expected.evaluate(scope).into_owned());
                let expectation = match expected.as_deref() {
                    _ if *expects_null => JsonExpectation::Null,
                    None => JsonExpectation::Exists,
                    Some(expected) if *is_regex => JsonExpectation::Regex(expected),
                    Some(expected) if *compares_text => JsonExpectation::ValueOrText(expected),
                    Some(expected) => JsonExpectation::Value(expected),
                };
                let fault = check_json_path(response, &path, expectation, patterns);
                match (fault, inverts) {
                    (None, false) | (Some(_), true) => AssertionResult::Passed,
                    (Some(fault), false) => AssertionResult::Failed(fault),
                    (None, true) => AssertionResult::Failed(format!("JSONPath `{path}` was found")),
                }
            }
        }
    }

    fn evaluate_response(
        &self,
        response: &SampleResponse,
        scope: &mut VariableScope,
        patterns: &mut RegexPatternCache,
    ) -> AssertionResult {
        let Self::Response {
            subject,
            comparison,
            is_negated,
            matches_any,
            patterns: texts,
            message,
            assumes_success,
        } = self
        else {
            return AssertionResult::Passed;
        };
        let (subject_name, content) = match subject {
            AssertionSubject::Body => ("text", Cow::Borrowed(response.body.as_str())),
            AssertionSubject::Code => ("code", response.code.as_str().into()),
            AssertionSubject::Message => ("message", response.message.as_str().into()),
            AssertionSubject::Headers => ("headers", response.headers.as_str().into()),
            AssertionSubject::RequestHeaders => {
                ("request headers", response.request_headers_text())
            }
            AssertionSubject::Request => ("request data", response.request_text().into()),
            AssertionSubject::Url => ("URL", response.url.as_str().into()),
            AssertionSubject::Variable(name) => {
                let name = name.evaluate(scope).into_owned();
                ("variable", scope.variable(&name).unwrap_or_default().to_owned().into())
            }
        };
        let mut faults = Vec::new();
        for text in texts {
            let text = text.evaluate(scope);
            let holds = match comparison {
                TextComparison::Substring => content.contains(&*text),
                TextComparison::Equals => content == text,
                TextComparison::Contains => {
                    patterns.search_pattern(&text).is_some_and(|pattern| pattern.is_match(&content))
                }
                TextComparison::Matches => patterns
                    .full_match_pattern(&text)
                    .is_some_and(|pattern| pattern.is_match(&content)),
            };
            if holds != *is_negated {
                if *matches_any {
                    faults.clear();
                    break;
                }
                continue;
            }
            let not = if *is_negated { "not " } else { "" };
            let verb = match comparison {
                TextComparison::Contains | TextComparison::Substring => "contain",
                TextComparison::Matches => "match",
                TextComparison::Equals => "equal",
            };
            faults.push(format!("Test failed: {subject_name} expected {not}to {verb} /{text}/"));
            if !matches_any {
                break;
            }
        }
        match faults.first() {
            None if *assumes_success => AssertionResult::PassedOverridingStatus,
            None => AssertionResult::Passed,
            Some(fault) => {
                let own = message.evaluate(scope);
                AssertionResult::Failed(if own.is_empty() {
                    fault.clone()
                } else {
                    own.into_owned()
                })
            }
        }
    }

    /// Returns true if the assertion clears a failed status before it is evaluated.
    pub fn assumes_success(&self) -> bool {
        matches!(self, Self::Response { assumes_success: true, .. })
    }
}

/// Evaluates an XPath as JMeter does: node sets must not be empty, and booleans must be true.
fn check_xpath(
    text: &str,
    path: &str,
    inverts: bool,
    is_html: bool,
    is_second: bool,
) -> Option<String> {
    if text.is_empty() {
        return Some("Response was null".to_owned());
    }
    let tree = if is_html { Ok(MarkupTree::parse_html(text)) } else { MarkupTree::parse_xml(text) };
    let tree = match tree {
        Ok(tree) => tree,
        Err(fault) => return Some(format!("the response is not XML: {fault}")),
    };
    let none = || format!("No Nodes Matched {path}");
    match XPath::parse(path, is_second).map(|path| path.evaluate(&tree)) {
        Err(fault) => Some(fault),
        Ok(XPathResult::Nodes(nodes)) if nodes.is_empty() => (!inverts).then(none),
        Ok(XPathResult::Nodes(_)) => inverts.then(|| {
            "Specified XPath was found... Turn off negate if this is not desired".to_owned()
        }),
        Ok(XPathResult::Boolean(false)) => (!inverts).then(none),
        Ok(XPathResult::Boolean(true)) => None,
        Ok(XPathResult::Value(_)) => Some(format!("Cannot understand: {path}")),
    }
}

/// Returns true if a value equals the text by value, so that 1.5 equals 1.50, but the integer 1 does not equal 1.0. A
/// text that is not JSON is compared literally.
fn equals_json_text(value: &Value, expected: &str) -> bool {
    match serde_json::from_str::<Value>(expected) {
        Ok(expected) => *value == expected,
        Err(_) => matches!(value, Value::String(text) if text == expected.trim()),
    }
}

/// The expected result of a JSON path.
#[derive(Debug, Clone, Copy)]
enum JsonExpectation<'a> {
    /// Any value.
    Exists,
    Null,
    /// A value whose text matches this regular expression.
    Regex(&'a str),
    /// This JSON value.
    Value(&'a str),
    /// This JSON value, or a value with this text.
    ValueOrText(&'a str),
}

fn check_json_path(
    response: &SampleResponse,
    path: &str,
    expectation: JsonExpectation<'_>,
    patterns: &mut RegexPatternCache,
) -> Option<String> {
    let document: serde_json::Value = match serde_json::from_str(&response.body) {
        Ok(document) => document,
        Err(_) => return Some("the response is not JSON".to_owned()),
    };
    let values = json_path::find_values(&document, path).unwrap_or_default();
    if values.is_empty() {
        return Some(format!("No results for path: {path}"));
    }
    let expected = match expectation {
        JsonExpectation::Exists => return None,
        JsonExpectation::Null => {
            let is_null = values.iter().all(|value| value.is_null());
            return (!is_null).then(|| format!("Value at `{path}` is not null"));
        }
        JsonExpectation::Regex(expected)
        | JsonExpectation::Value(expected)
        | JsonExpectation::ValueOrText(expected) => expected,
    };
    let mut candidates: Vec<Value> = values.iter().map(|value| (**value).clone()).collect();
    // For a list, one matching element is sufficient, or the whole list.
    if let [Value::Array(items)] = candidates.as_slice() {
        let items = items.clone();
        candidates.extend(items);
    }
    if path.contains(['*', '?', ',']) || path.contains("..") {
        let all = candidates.clone();
        candidates.push(Value::Array(all));
    }
    let holds = candidates.iter().any(|value| match expectation {
        JsonExpectation::Regex(_) => {
            let value_text = json_path::json_value_text(value);
            patterns
                .full_match_pattern(expected)
                .is_some_and(|pattern| pattern.is_match(&value_text))
        }
        JsonExpectation::ValueOrText(_) => {
            equals_json_text(value, expected) || json_path::json_value_text(value) == expected
        }
        _ => equals_json_text(value, expected),
    });
    let first = values.first().map(|value| json_path::json_value_text(value)).unwrap_or_default();
    (!holds).then(|| format!("Value expected to be '{expected}', but found '{first}'"))
}
