//! Compiled text with `${variables}` and `${__functions(...)}`.

use std::sync::Arc;

use super::function_name::JMeterFunction;

/// A compiled text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextTemplate {
    pub(super) parts: Vec<TextTemplatePart>,
    pub(super) source: Arc<str>,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum TextTemplatePart {
    Text(Arc<str>),
    Variable(Arc<str>),
    Call(Arc<FunctionCall>),
}

/// A function and its arguments.
#[derive(Debug, PartialEq)]
pub(crate) struct FunctionCall {
    pub(crate) function: JMeterFunction,
    pub(crate) arguments: Vec<TextTemplate>,
    /// The source text of the call and what follows it.
    pub(crate) source: Arc<str>,
    /// Identifies the position in a plan, for functions with a counter.
    pub(crate) call_site: Arc<str>,
}

impl TextTemplate {
    /// Returns a text without references.
    pub(crate) fn literal(text: &str) -> Self {
        let source: Arc<str> = text.into();
        let parts = if text.is_empty() {
            Vec::new()
        } else {
            vec![TextTemplatePart::Text(Arc::clone(&source))]
        };
        Self { parts, source }
    }

    /// Returns the source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the text if it has no references.
    pub fn as_literal(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [TextTemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Returns true if the text is empty and refers to nothing.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the text with `stand_in` in place of every reference, to check its form.
    pub(crate) fn with_placeholder(&self, stand_in: &str) -> String {
        let text = |part: &TextTemplatePart| match part {
            TextTemplatePart::Text(text) => text.to_string(),
            TextTemplatePart::Variable(_) | TextTemplatePart::Call(_) => stand_in.to_owned(),
        };
        self.parts.iter().map(text).collect()
    }

    /// Calls `each` with every variable in the text, including those in function arguments.
    pub(crate) fn for_each_variable(&self, each: &mut dyn FnMut(&str)) {
        for part in &self.parts {
            match part {
                TextTemplatePart::Text(_) => {}
                TextTemplatePart::Variable(name) => each(name),
                TextTemplatePart::Call(call) => {
                    call.arguments.iter().for_each(|argument| argument.for_each_variable(each));
                }
            }
        }
    }

    /// Calls `each` with every function in the text, including nested ones.
    pub(crate) fn for_each_call(&self, each: &mut dyn FnMut(&FunctionCall)) {
        for part in &self.parts {
            if let TextTemplatePart::Call(call) = part {
                each(call);
                for argument in &call.arguments {
                    argument.for_each_call(each);
                }
            }
        }
    }
}
