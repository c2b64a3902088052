//! Component failures and their placeholders.

use std::ops::Range;
use std::sync::Arc;

use minijinja::{Error, ErrorKind};
use tympan_htl::{HtlCompileError, ScriptPlace};
use tympan_notation::escape_html;

use super::autoescape::{RewrittenTemplate, TemplateRefusal};
use crate::render_options::RenderMode;

/// Reason why a component was not rendered.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ComponentFailure {
    #[error("the template names nothing to include")]
    NoTarget,
    #[error("there is nothing at `{0}` to include")]
    NoResource(String),
    #[error("no script renders the type `{0}`")]
    NoScript(String),
    #[error("{}", error_headline(.0))]
    TemplateError(Arc<Error>, Option<Arc<RewrittenTemplate>>),
    #[error("{0}")]
    TemplateRefused(Arc<TemplateRefusal>, Arc<str>),
    #[error("there is no script `{0}`")]
    NoNamedScript(String),
    #[error("{0}")]
    HtlRefused(Arc<HtlCompileError>, Arc<str>),
    #[error("{place}: {message}")]
    HtlError { place: ScriptPlace, message: String, source_text: Option<Arc<str>> },
    #[error("components include each other more than {0} levels deep")]
    IncludesTooDeep(usize),
    #[error("components, loops and macros nest deeper than {0} bytes of stack allow")]
    StackTooDeep(usize),
    #[error("the page has more than {0} components")]
    TooManyComponents(usize),
    #[error("the page takes more than {0} template steps")]
    TooManySteps(u64),
    #[error("the component takes more than {0} steps")]
    TooManyOwnSteps(u64),
    #[error("the page is larger than {0} bytes")]
    OutputTooLarge(usize),
    #[error(transparent)]
    ModelExport(#[from] tympan_core_components::Error),
}

impl ComponentFailure {
    /// Returns the name for logs and counters.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoTarget => "no-target",
            Self::NoResource(_) => "no-resource",
            Self::NoScript(_) => "no-script",
            Self::TemplateError(..) => "template",
            Self::TemplateRefused(..) => "refused",
            Self::NoNamedScript(_) => "no-named-script",
            Self::HtlRefused(..) => "refused",
            Self::HtlError { .. } => "template",
            Self::IncludesTooDeep(_) => "depth",
            Self::StackTooDeep(_) => "stack",
            Self::TooManyComponents(_) => "components",
            Self::TooManySteps(_) => "steps",
            Self::TooManyOwnSteps(_) => "component-steps",
            Self::OutputTooLarge(_) => "bytes",
            Self::ModelExport(_) => "model-export",
        }
    }

    /// Returns line and column of the fault, both counted from 1; `None` if it has no position.
    pub(crate) fn line_and_column(&self) -> Option<(usize, usize)> {
        let (error, origin) = match self {
            Self::TemplateError(error, origin) => (error, origin),
            Self::HtlRefused(error, _) => {
                let place = &error.faults().first()?.place;
                return Some((place.line as usize, place.column as usize));
            }
            Self::HtlError { place, .. } => {
                return Some((place.line as usize, place.column as usize));
            }
            _ => return None,
        };
        let inner = innermost_error(error);
        let start = match origin {
            Some(origin) => inner.range().map(|range| origin.original_range(&range).start),
            None => inner.range().map(|range| range.start),
        };
        let text = origin.as_ref().map(|origin| &*origin.original_text).or(inner.template_source());
        let column = text.zip(start).and_then(|(text, start)| {
            Some(text.get(..start)?.rsplit('\n').next()?.chars().count() + 1)
        });
        Some((inner.line()?, column.unwrap_or(1)))
    }

    /// Returns a description of the fault, without its position.
    pub(crate) fn describe(&self) -> String {
        let Self::TemplateError(error, _) = self else {
            return self.to_string();
        };
        let inner = innermost_error(error);
        match inner.detail() {
            Some(detail) => format!("{}: {detail}", inner.kind()),
            None => inner.kind().to_string(),
        }
    }

    /// Returns the placeholder of the component: the cause for authors, empty for visitors.
    pub(crate) fn placeholder(&self, mode: RenderMode, path: &str) -> String {
        if mode == RenderMode::Publish {
            return String::new();
        }
        let excerpt = match self {
            Self::TemplateError(error, origin) => {
                error_excerpt(innermost_error(error), origin.as_deref()).unwrap_or_default()
            }
            Self::TemplateRefused(refusal, text) => {
                source_excerpt(text, refusal.line, Some(&refusal.range))
            }
            Self::HtlRefused(error, text) => error
                .faults()
                .first()
                .map(|fault| source_excerpt(text, fault.place.line as usize, None))
                .unwrap_or_default(),
            Self::HtlError { place, source_text: Some(text), .. } => {
                source_excerpt(text, place.line as usize, None)
            }
            _ => String::new(),
        };
        let (title, path, excerpt) =
            (escape_html(&self.to_string()), escape_html(path), escape_html(&excerpt));
        format!(
            "<div class=\"tympan-error\" role=\"alert\"><strong>{path}</strong><pre>{title}{excerpt}</pre></div>"
        )
    }
}

/// Returns the message of the innermost cause, with its position.
fn error_headline(error: &Error) -> String {
    let inner = innermost_error(error);
    let message = match inner.detail() {
        Some(detail) => format!("{}: {detail}", inner.kind()),
        None => inner.kind().to_string(),
    };
    // A template that is included inside a tag has a number after its name.
    match (inner.name(), inner.line()) {
        (Some(name), Some(line)) => {
            let name = name.split('#').next().unwrap_or(name);
            format!("{name}:{line}: {message}")
        }
        _ => message,
    }
}

/// Follows the causes of an error as long as they are template errors.
pub(super) fn innermost_error(error: &Error) -> &Error {
    let mut inner = error;
    while let Some(cause) = std::error::Error::source(inner).and_then(|cause| cause.downcast_ref())
    {
        inner = cause;
    }
    inner
}

/// Number of lines shown before and after the faulty one.
const CONTEXT_LINES: usize = 2;

/// Returns the lines around a template error.
fn error_excerpt(error: &Error, origin: Option<&RewrittenTemplate>) -> Option<String> {
    let line = error.line()?;
    match origin {
        Some(origin) => {
            let range = error.range().map(|range| origin.original_range(&range));
            Some(source_excerpt(&origin.original_text, line, range.as_ref()))
        }
        None => Some(source_excerpt(error.template_source()?, line, error.range().as_ref())),
    }
}

/// Returns the lines around a fault, with carets below the faulty expression.
fn source_excerpt(source: &str, line: usize, range: Option<&Range<usize>>) -> String {
    let first = line.saturating_sub(CONTEXT_LINES).max(1);
    let mut text = String::new();
    for (number, content) in source.lines().enumerate().map(|(at, content)| (at + 1, content)) {
        if number < first || number > line + CONTEXT_LINES {
            continue;
        }
        text += &format!("\n{number:>4} | {content}");
        if number == line {
            text +=
                &range.and_then(|range| caret_marker(range, source, content)).unwrap_or_default();
        }
    }
    text
}

/// Returns carets below a range, as far as it lies on its first line.
fn caret_marker(range: &Range<usize>, source: &str, content: &str) -> Option<String> {
    let before = source.get(..range.start)?;
    let column = before.rsplit('\n').next()?.chars().count();
    let rest = content.chars().count().saturating_sub(column);
    let marked = source.get(range.clone())?.lines().next().map_or(1, |line| line.chars().count());
    Some(format!("\n     | {}{}", " ".repeat(column), "^".repeat(marked.clamp(1, rest.max(1)))))
}

/// Creates the error of a function that was called incorrectly.
pub(super) fn invalid_call(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
