//! The script of an element of a plan.

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

use super::super::template::TextTemplate;
use super::super::variable_scope::VariableScope;
use super::ast::ScriptBlock;
use super::dialect::ScriptDialect;
use super::interpreter::{self, ScriptHost, ScriptSampleContext};
use super::parser;
use super::value::ScriptValue;

/// The script of an element.
#[derive(Debug)]
pub struct PlanScript {
    dialect: ScriptDialect,
    text: TextTemplate,
    parameters: TextTemplate,
    /// Parsed scripts by text; there is one, unless the text contains variables of the plan.
    parsed_blocks: Mutex<HashMap<String, Arc<ScriptBlock>>>,
}

/// Maximum number of cached scripts; a script that differs each time is parsed each time.
const MAX_PARSED_BLOCKS: usize = 64;

impl PlanScript {
    /// Parses a script.
    ///
    /// # Errors
    /// The unsupported code.
    pub(crate) fn new(
        dialect: ScriptDialect,
        text: TextTemplate,
        parameters: TextTemplate,
    ) -> Result<Self, String> {
        parser::parse_script(&text.with_placeholder("1"), dialect)?;
        Ok(Self { dialect, text, parameters, parsed_blocks: Mutex::default() })
    }

    /// Runs the script at a sample, or before there is one; returns the text of its value, or `None` for `null`.
    ///
    /// # Errors
    /// The error, in the form of a Java exception.
    pub fn run(
        &self,
        scope: &mut VariableScope,
        sample_context: &mut ScriptSampleContext,
    ) -> Result<Option<String>, String> {
        match self.run_to_value(scope, sample_context)? {
            ScriptValue::Null => Ok(None),
            value => Ok(Some(value.to_string())),
        }
    }

    /// Runs the script; returns its value.
    pub(super) fn run_to_value(
        &self,
        scope: &mut VariableScope,
        sample_context: &mut ScriptSampleContext,
    ) -> Result<ScriptValue, String> {
        let text = self.text.evaluate(scope).into_owned();
        let parameters = self.parameters.evaluate(scope).into_owned();
        let cached_block =
            self.parsed_blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&text).cloned();
        let block = match cached_block {
            Some(block) => block,
            None => {
                let block = Arc::new(parser::parse_script(&text, self.dialect)?);
                let mut cache = self.parsed_blocks.lock().unwrap_or_else(PoisonError::into_inner);
                if cache.len() < MAX_PARSED_BLOCKS {
                    cache.insert(text, Arc::clone(&block));
                }
                block
            }
        };
        interpreter::run_script_block(
            &block,
            self.dialect,
            &parameters,
            ScriptHost { scope, sample_context },
        )
    }
}
