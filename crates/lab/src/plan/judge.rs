//! Assertions: whether an answer is right.

use std::borrow::Cow;
use std::sync::Arc;

use md5::Digest as _;
use serde_json::Value;

use super::answer::Answer;
use super::json_path;
use super::markup::{Found, Tree, XPath};
use super::pattern::Patterns;
use super::scope::Scope;
use super::script::Script;
use super::template::Template;

/// What of an answer a response assertion looks at.
#[derive(Debug, Clone)]
pub(super) enum Subject {
    Body,
    Code,
    Message,
    Headers,
    RequestHeaders,
    /// The request as JMeter tells it.
    Request,
    Url,
    Variable(Template),
}

/// How a response assertion compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Contains,
    Matches,
    Equals,
    Substring,
}

/// How a size is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
}

/// Whose size is asserted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Everything that came over the network.
    All,
    Body,
    Headers,
    Code,
    Message,
}

/// One assertion.
#[derive(Debug, Clone)]
pub(super) enum Judge {
    Response {
        subject: Subject,
        way: Way,
        is_not: bool,
        is_or: bool,
        texts: Vec<Template>,
        message: Template,
        assumes_success: bool,
    },
    Duration(Template),
    Size {
        size: Template,
        order: Order,
        part: Part,
    },
    /// The digest of the body in hexadecimal digits.
    Md5(Template),
    Json {
        path: Template,
        expected: Option<Template>,
        is_regex: bool,
        expects_null: bool,
        inverts: bool,
        /// What is expected is the text of a value, as in plans in TOML; else it is JSON itself.
        by_text: bool,
    },
    Path {
        path: Template,
        inverts: bool,
        /// Anything is HTML; else the answer must be XML.
        is_html: bool,
        /// With functions of XPath 2.0.
        is_second: bool,
        variable: Option<Template>,
    },
    /// The answer is well-formed XML.
    Xml,
    /// Run by the thread itself, because it may say more than right or wrong.
    Script(Arc<Script>),
}

/// What an assertion says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Right,
    /// Right, and earlier doubts about the status do not count.
    RightAtLast,
    Wrong(String),
}

impl Judge {
    /// Judges an answer.
    pub(super) fn judge(
        &self,
        answer: &Answer,
        scope: &mut Scope,
        patterns: &mut Patterns,
    ) -> Verdict {
        match self {
            Self::Response { .. } => self.judge_response(answer, scope, patterns),
            Self::Script(_) => Verdict::Right,
            Self::Xml if answer.body.is_empty() => Verdict::Wrong("Response was null".to_owned()),
            Self::Xml => {
                Tree::well_formed(&answer.body).map_or_else(Verdict::Wrong, |()| Verdict::Right)
            }
            Self::Duration(most) => {
                let most: u64 = most.draw(scope).trim().parse().unwrap_or(0);
                if most == 0 || answer.elapsed_ms <= most {
                    return Verdict::Right;
                }
                Verdict::Wrong(format!(
                    "The operation lasted too long: It took {} milliseconds, but should not have lasted longer than {most} milliseconds.",
                    answer.elapsed_ms
                ))
            }
            Self::Md5(_) if answer.body.is_empty() => {
                Verdict::Wrong("Response was null".to_owned())
            }
            Self::Md5(wanted) => {
                let wanted = wanted.draw(scope).trim().to_owned();
                let found: String = md5::Md5::digest(answer.body.as_bytes())
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect();
                if found.eq_ignore_ascii_case(&wanted) {
                    return Verdict::Right;
                }
                Verdict::Wrong(format!(
                    "Error asserting MD5 sum : got {found} but should have been {wanted}"
                ))
            }
            Self::Size { size, order, part } => {
                let wanted: u64 = size.draw(scope).trim().parse().unwrap_or(0);
                let found = match part {
                    Part::All => answer.bytes,
                    Part::Body => answer.body_bytes,
                    Part::Headers => answer.headers.len() as u64,
                    Part::Code => answer.code.len() as u64,
                    Part::Message => answer.message.len() as u64,
                };
                let (holds, words) = match order {
                    Order::Equal => (found == wanted, "equal to"),
                    Order::NotEqual => (found != wanted, "not equal to"),
                    Order::Greater => (found > wanted, "greater than"),
                    Order::Less => (found < wanted, "less than"),
                    Order::GreaterOrEqual => (found >= wanted, "greater than or equal to"),
                    Order::LessOrEqual => (found <= wanted, "less than or equal to"),
                };
                if holds {
                    return Verdict::Right;
                }
                Verdict::Wrong(format!(
                    "The result was the wrong size: It was {found} bytes, but should have been {words} {wanted} bytes."
                ))
            }
            Self::Path { path, inverts, is_html, is_second, variable } => {
                let path = path.draw(scope).into_owned();
                let text = match variable {
                    Some(variable) => {
                        let variable = variable.draw(scope).into_owned();
                        scope.variable(&variable).unwrap_or_default().to_owned()
                    }
                    None => answer.body.clone(),
                };
                match judge_path(&text, &path, *inverts, (*is_html, *is_second)) {
                    None => Verdict::Right,
                    Some(fault) => Verdict::Wrong(fault),
                }
            }
            Self::Json { path, expected, is_regex, expects_null, inverts, by_text } => {
                let path = path.draw(scope).into_owned();
                let expected = expected.as_ref().map(|expected| expected.draw(scope).into_owned());
                let expected = expected.as_deref();
                let fault = judge_json(
                    answer,
                    &path,
                    expected,
                    (*is_regex, *expects_null, *by_text),
                    patterns,
                );
                match (fault, inverts) {
                    (None, false) | (Some(_), true) => Verdict::Right,
                    (Some(fault), false) => Verdict::Wrong(fault),
                    (None, true) => Verdict::Wrong(format!("JSONPath `{path}` was found")),
                }
            }
        }
    }

    fn judge_response(
        &self,
        answer: &Answer,
        scope: &mut Scope,
        patterns: &mut Patterns,
    ) -> Verdict {
        let Self::Response { subject, way, is_not, is_or, texts, message, assumes_success } = self
        else {
            return Verdict::Right;
        };
        let (word, found) = match subject {
            Subject::Body => ("text", Cow::Borrowed(answer.body.as_str())),
            Subject::Code => ("code", answer.code.as_str().into()),
            Subject::Message => ("message", answer.message.as_str().into()),
            Subject::Headers => ("headers", answer.headers.as_str().into()),
            Subject::RequestHeaders => ("request headers", answer.request_headers()),
            Subject::Request => ("request data", answer.request_data().into()),
            Subject::Url => ("URL", answer.url.as_str().into()),
            Subject::Variable(name) => {
                let name = name.draw(scope).into_owned();
                ("variable", scope.variable(&name).unwrap_or_default().to_owned().into())
            }
        };
        let mut faults = Vec::new();
        for text in texts {
            let text = text.draw(scope);
            let holds = match way {
                Way::Substring => found.contains(&*text),
                Way::Equals => found == text,
                Way::Contains => {
                    patterns.find(&text).is_some_and(|pattern| pattern.is_match(&found))
                }
                Way::Matches => {
                    patterns.find_whole(&text).is_some_and(|pattern| pattern.is_match(&found))
                }
            };
            if holds != *is_not {
                if *is_or {
                    faults.clear();
                    break;
                }
                continue;
            }
            let not = if *is_not { "not " } else { "" };
            let verb = match way {
                Way::Contains | Way::Substring => "contain",
                Way::Matches => "match",
                Way::Equals => "equal",
            };
            faults.push(format!("Test failed: {word} expected {not}to {verb} /{text}/"));
            if !is_or {
                break;
            }
        }
        match faults.first() {
            None if *assumes_success => Verdict::RightAtLast,
            None => Verdict::Right,
            Some(fault) => {
                let own = message.draw(scope);
                Verdict::Wrong(if own.is_empty() { fault.clone() } else { own.into_owned() })
            }
        }
    }

    /// Reports whether the judge resets a failed status before it looks.
    pub(super) fn assumes_success(&self) -> bool {
        matches!(self, Self::Response { assumes_success: true, .. })
    }
}

/// Judges by a path as JMeter does: nodes must be there, and what is true or false must be true.
fn judge_path(
    text: &str,
    path: &str,
    inverts: bool,
    (is_html, is_second): (bool, bool),
) -> Option<String> {
    if text.is_empty() {
        return Some("Response was null".to_owned());
    }
    let tree = if is_html { Ok(Tree::of_html(text)) } else { Tree::of_xml(text) };
    let tree = match tree {
        Ok(tree) => tree,
        Err(fault) => return Some(format!("the response is no XML: {fault}")),
    };
    let none = || format!("No Nodes Matched {path}");
    match XPath::parse(path, is_second).map(|path| path.find(&tree)) {
        Err(fault) => Some(fault),
        Ok(Found::Nodes(nodes)) if nodes.is_empty() => (!inverts).then(none),
        Ok(Found::Nodes(_)) => inverts.then(|| {
            "Specified XPath was found... Turn off negate if this is not desired".to_owned()
        }),
        Ok(Found::Flag(false)) => (!inverts).then(none),
        Ok(Found::Flag(true)) => None,
        Ok(Found::Value(_)) => Some(format!("Cannot understand: {path}")),
    }
}

/// Reports whether a value is what a text says: by its worth, so that 1.5 is 1.50, but the whole number 1 is not 1.0. A text
/// that is no JSON stands for itself.
fn is_json(value: &Value, expected: &str) -> bool {
    match serde_json::from_str::<Value>(expected) {
        Ok(expected) => *value == expected,
        Err(_) => matches!(value, Value::String(text) if text == expected.trim()),
    }
}

fn judge_json(
    answer: &Answer,
    path: &str,
    expected: Option<&str>,
    (is_regex, expects_null, by_text): (bool, bool, bool),
    patterns: &mut Patterns,
) -> Option<String> {
    let document: serde_json::Value = match serde_json::from_str(&answer.body) {
        Ok(document) => document,
        Err(_) => return Some("the response is no JSON".to_owned()),
    };
    let found = json_path::find(&document, path).unwrap_or_default();
    if found.is_empty() {
        return Some(format!("No results for path: {path}"));
    }
    if expects_null {
        let is_null = found.iter().all(|value| value.is_null());
        return (!is_null).then(|| format!("Value at `{path}` is not null"));
    }
    let expected = expected?;
    let mut candidates: Vec<Value> = found.iter().map(|value| (**value).clone()).collect();
    // Of a list, one that fits is enough, or the whole of it.
    if let [Value::Array(items)] = candidates.as_slice() {
        let items = items.clone();
        candidates.extend(items);
    }
    if path.contains(['*', '?', ',']) || path.contains("..") {
        let all = candidates.clone();
        candidates.push(Value::Array(all));
    }
    let holds = candidates.iter().any(|value| {
        if is_regex {
            let shown = super::extract::shown(value);
            patterns.find_whole(expected).is_some_and(|pattern| pattern.is_match(&shown))
        } else {
            is_json(value, expected) || (by_text && super::extract::shown(value) == expected)
        }
    });
    let first = found.first().map(|value| super::extract::shown(value)).unwrap_or_default();
    (!holds).then(|| format!("Value expected to be '{expected}', but found '{first}'"))
}
