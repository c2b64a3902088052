//! What the resolvers of one answer share: the content, the models, and the budget.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_graphql::dynamic::{FieldFuture, FieldValue, ResolverContext};
use async_graphql::{Error, Result, Value};

use super::query_limits::GraphqlLimits;
use crate::fragment_content::FragmentContent;
use crate::fragment_model::SiteModels;

/// The context of one answer.
pub(super) struct AnswerContext {
    pub content: Arc<dyn FragmentContent>,
    pub models: Arc<SiteModels>,
    limits: GraphqlLimits,
    reference_count: AtomicUsize,
    text_bytes: AtomicUsize,
    is_exceeded: AtomicBool,
}

impl fmt::Debug for AnswerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerContext").finish_non_exhaustive()
    }
}

impl AnswerContext {
    pub(super) fn new(
        content: Arc<dyn FragmentContent>,
        models: Arc<SiteModels>,
        limits: GraphqlLimits,
    ) -> Self {
        Self {
            content,
            models,
            limits,
            reference_count: AtomicUsize::new(0),
            text_bytes: AtomicUsize::new(0),
            is_exceeded: AtomicBool::new(false),
        }
    }

    /// Takes a fragment or a reference from the budget.
    pub(super) fn take_reference(&self) -> Result<()> {
        let count = self.reference_count.fetch_add(1, Ordering::Relaxed);
        self.check(count < self.limits.max_references, "references")
    }

    /// Takes the bytes of a text from the budget.
    pub(super) fn take_text(&self, text: &str) -> Result<()> {
        let bytes = self.text_bytes.fetch_add(text.len(), Ordering::Relaxed);
        let is_within = bytes.saturating_add(text.len()) <= self.limits.max_text_bytes;
        self.check(is_within, "bytes of text")
    }

    fn check(&self, is_within: bool, subject: &str) -> Result<()> {
        if is_within {
            return Ok(());
        }
        self.is_exceeded.store(true, Ordering::Relaxed);
        Err(Error::new(format!(
            "the answer has too many {subject}; request fewer rows with `limit` or `first`"
        )))
    }

    /// Returns true if the answer exceeded its budget, and is no answer therefore.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }
}

/// Runs a resolver that does not wait.
pub(super) fn resolve_now<'a>(
    context: &ResolverContext<'a>,
    resolve: impl FnOnce(&AnswerContext, &ResolverContext<'a>) -> Result<Option<FieldValue<'a>>>,
) -> FieldFuture<'a> {
    let answer = context.data::<Arc<AnswerContext>>();
    match answer.and_then(|answer| resolve(answer, context)) {
        Ok(value) => FieldFuture::Value(value),
        Err(error) => FieldFuture::new(std::future::ready(Err::<Option<FieldValue<'a>>, _>(error))),
    }
}

/// Returns a text as a value, within the budget.
pub(super) fn text_value<'a>(
    answer: &AnswerContext,
    text: impl Into<String>,
) -> Result<Option<FieldValue<'a>>> {
    let text = text.into();
    answer.take_text(&text)?;
    Ok(Some(FieldValue::value(Value::String(text))))
}
