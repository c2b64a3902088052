//! Components that fail, and what stands in their place.

use std::ops::Range;
use std::sync::Arc;

use minijinja::{Error, ErrorKind};

use super::escape::escape;
use super::position::{Refusal, Rewritten};
use crate::engine::Mode;

/// Why a component was not drawn.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the template names nothing to include")]
    NoTarget,
    #[error("there is nothing at `{0}` to include")]
    NoResource(String),
    #[error("no script draws the type `{0}`")]
    NoScript(String),
    #[error("{}", headline(.0))]
    Template(Arc<Error>, Option<Arc<Rewritten>>),
    #[error("{0}")]
    Refused(Arc<Refusal>, Arc<str>),
    #[error("components include each other more than {0} deep")]
    TooDeep(usize),
    #[error("components, loops and macros nest deeper than {0} bytes of stack hold")]
    TooNested(usize),
    #[error("the page has more than {0} components")]
    TooMany(usize),
    #[error("the page takes more than {0} steps of templates")]
    TooLong(u64),
    #[error("the component takes more than {0} steps")]
    TooLongAlone(u64),
    #[error("the page is larger than {0} bytes")]
    TooLarge(usize),
}

impl Failure {
    /// Returns the word for logs and counters.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoTarget => "no-target",
            Self::NoResource(_) => "no-resource",
            Self::NoScript(_) => "no-script",
            Self::Template(..) => "template",
            Self::Refused(..) => "refused",
            Self::TooDeep(_) => "depth",
            Self::TooNested(_) => "stack",
            Self::TooMany(_) => "components",
            Self::TooLong(_) => "steps",
            Self::TooLongAlone(_) => "component-steps",
            Self::TooLarge(_) => "bytes",
        }
    }

    /// Returns line and column of the fault, both counted from 1, if it has a place.
    pub(crate) fn place(&self) -> Option<(usize, usize)> {
        let Self::Template(error, origin) = self else {
            return None;
        };
        let inner = innermost(error);
        let start = match origin {
            Some(origin) => inner.range().map(|range| origin.origin(&range).start),
            None => inner.range().map(|range| range.start),
        };
        let text = origin.as_ref().map(|origin| &*origin.original).or(inner.template_source());
        let column = text.zip(start).and_then(|(text, start)| {
            Some(text.get(..start)?.rsplit('\n').next()?.chars().count() + 1)
        });
        Some((inner.line()?, column.unwrap_or(1)))
    }

    /// Returns what is wrong, without its place.
    pub(crate) fn reason_in_words(&self) -> String {
        let Self::Template(error, _) = self else {
            return self.to_string();
        };
        let inner = innermost(error);
        match inner.detail() {
            Some(detail) => format!("{}: {detail}", inner.kind()),
            None => inner.kind().to_string(),
        }
    }

    /// Returns what a page shows instead of the component: for authors the cause, for visitors nothing.
    pub(crate) fn placeholder(&self, mode: Mode, path: &str) -> String {
        if mode == Mode::Publish {
            return String::new();
        }
        let excerpt = match self {
            Self::Template(error, origin) => {
                excerpt_of_error(innermost(error), origin.as_deref()).unwrap_or_default()
            }
            Self::Refused(refusal, text) => excerpt(text, refusal.line, Some(&refusal.range)),
            _ => String::new(),
        };
        let (title, path, excerpt) = (escape(&self.to_string()), escape(path), escape(&excerpt));
        format!(
            "<div class=\"tympan-error\" role=\"alert\"><strong>{path}</strong><pre>{title}{excerpt}</pre></div>"
        )
    }
}

/// Returns the message of the deepest cause, with its place.
fn headline(error: &Error) -> String {
    let inner = innermost(error);
    let message = match inner.detail() {
        Some(detail) => format!("{}: {detail}", inner.kind()),
        None => inner.kind().to_string(),
    };
    // A template included inside a tag has a number behind its name.
    match (inner.name(), inner.line()) {
        (Some(name), Some(line)) => {
            let name = name.split('#').next().unwrap_or(name);
            format!("{name}:{line}: {message}")
        }
        _ => message,
    }
}

/// Follows the causes of an error while they are errors of templates.
pub(super) fn innermost(error: &Error) -> &Error {
    let mut inner = error;
    while let Some(cause) = std::error::Error::source(inner).and_then(|cause| cause.downcast_ref())
    {
        inner = cause;
    }
    inner
}

/// How many lines around the faulty one are shown.
const CONTEXT_LINES: usize = 2;

/// Shows the lines around an error of a template.
fn excerpt_of_error(error: &Error, origin: Option<&Rewritten>) -> Option<String> {
    let line = error.line()?;
    match origin {
        Some(origin) => {
            let range = error.range().map(|range| origin.origin(&range));
            Some(excerpt(&origin.original, line, range.as_ref()))
        }
        None => Some(excerpt(error.template_source()?, line, error.range().as_ref())),
    }
}

/// Shows the lines around a fault, with a caret below the faulty expression.
pub(crate) fn excerpt(source: &str, line: usize, range: Option<&Range<usize>>) -> String {
    let first = line.saturating_sub(CONTEXT_LINES).max(1);
    let mut text = String::new();
    for (number, content) in source.lines().enumerate().map(|(at, content)| (at + 1, content)) {
        if number < first || number > line + CONTEXT_LINES {
            continue;
        }
        text += &format!("\n{number:>4} | {content}");
        if number == line {
            text += &range.and_then(|range| marker(range, source, content)).unwrap_or_default();
        }
    }
    text
}

/// Draws carets below a range, as far as it lies on its first line.
fn marker(range: &Range<usize>, source: &str, content: &str) -> Option<String> {
    let before = source.get(..range.start)?;
    let column = before.rsplit('\n').next()?.chars().count();
    let rest = content.chars().count().saturating_sub(column);
    let marked = source.get(range.clone())?.lines().next().map_or(1, |line| line.chars().count());
    Some(format!("\n     | {}{}", " ".repeat(column), "^".repeat(marked.clamp(1, rest.max(1)))))
}

/// Makes the error of a function that was called wrongly.
pub(super) fn wrong_call(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
