//! Scripts of plans: the subset of Java and Groovy that JSR223 and BeanShell elements use.
//!
//! In: a script and the language that its element names. Out: variables and properties that it sets, its changes to a
//! sample, and its return value.
//!
//! Invariants
//! * A script is parsed completely when the plan is read. A call, class or statement that is not in the fixed list is
//!   reported by name, and nothing is sent.
//! * A script accesses only its thread's variables, the properties of the run, and its current sample: no files, no
//!   sockets, no processes.
//! * A script terminates: steps and the length of strings are bounded.
//!
//! Not here: conditions of If controllers and functions such as `__groovy` (`expression`).

mod ast;
mod codec;
mod date_time;
mod interpreter;
mod json;
mod lexer;
mod library;
mod parser;
mod value;

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

pub(super) use interpreter::{ScriptHost, ScriptSampleContext};
pub(super) use value::ScriptValue;

use super::template::TextTemplate;
use super::variable_scope::VariableScope;

/// The differences between languages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptDialect {
    /// BeanShell and Java: division of integers gives an integer.
    Java,
    /// Groovy: line breaks end statements, `==` compares strings by value, `"$x"` interpolates.
    Groovy,
}

impl ScriptDialect {
    /// Parses the language name of a JSR223 element.
    pub(super) fn find(language: &str) -> Option<Self> {
        match language.trim().to_ascii_lowercase().as_str() {
            "" | "groovy" => Some(Self::Groovy),
            "beanshell" | "bsh" | "java" => Some(Self::Java),
            _ => None,
        }
    }
}

/// The script of an element.
#[derive(Debug)]
pub(super) struct PlanScript {
    dialect: ScriptDialect,
    text: TextTemplate,
    parameters: TextTemplate,
    /// Parsed scripts by text; there is one, unless the text contains variables of the plan.
    parsed_blocks: Mutex<HashMap<String, Arc<ast::ScriptBlock>>>,
}

/// Maximum number of cached scripts; a script that differs each time is parsed each time.
const MAX_PARSED_BLOCKS: usize = 64;

impl PlanScript {
    /// Parses a script.
    ///
    /// # Errors
    /// The unsupported code.
    pub(super) fn new(
        dialect: ScriptDialect,
        text: TextTemplate,
        parameters: TextTemplate,
    ) -> Result<Self, String> {
        parser::parse_script(&text.with_placeholder("1"), dialect)?;
        Ok(Self { dialect, text, parameters, parsed_blocks: Mutex::default() })
    }

    /// Runs the script at a sample, or before there is one.
    ///
    /// # Errors
    /// The error, in the form of a Java exception.
    pub(super) fn run(
        &self,
        scope: &mut VariableScope,
        stand: &mut ScriptSampleContext,
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
            ScriptHost { scope, sample_context: stand },
        )
    }
}

/// Checks the script in a function call.
///
/// # Errors
/// The unsupported code.
pub(super) fn check_function_script(
    text: &TextTemplate,
    dialect: ScriptDialect,
) -> Result<(), String> {
    parser::parse_script(&text.with_placeholder("1"), dialect).map(drop)
}

/// Runs the script in a function call, after substitution of its variables.
///
/// # Errors
/// The unsupported code, or the error.
pub(super) fn run_function_script(
    text: &str,
    dialect: ScriptDialect,
    scope: &mut VariableScope,
) -> Result<ScriptValue, String> {
    let block = parser::parse_script(text, dialect)?;
    interpreter::run_script_block(
        &block,
        dialect,
        "",
        ScriptHost { scope, sample_context: &mut ScriptSampleContext::default() },
    )
}

/// Runs a script as [`run_function_script`] does; its value is that of its last statement in every language.
///
/// # Errors
/// As [`run_function_script`].
pub(super) fn run_function_script_to_value(
    text: &str,
    dialect: ScriptDialect,
    scope: &mut VariableScope,
) -> Result<ScriptValue, String> {
    let block = parser::parse_script(text, dialect)?;
    interpreter::run_block_to_value(
        &block,
        dialect,
        ScriptHost { scope, sample_context: &mut ScriptSampleContext::default() },
    )
}

#[cfg(test)]
mod tests;
