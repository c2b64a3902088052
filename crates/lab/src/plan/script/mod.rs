//! Scripts of plans: the small part of Java and Groovy that JSR223 and BeanShell elements are written in.
//!
//! In: a script and the language that its element names. Out: variables and properties that it sets, what it says of a
//! sample, and the value that it returns.
//!
//! Invariants
//! * A script is understood as a whole when the plan is read; a call, class or statement that is not in the fixed list
//!   is told with its name, and nothing is sent.
//! * A script touches nothing but its thread's variables, the properties of the run, and the sample that it stands at:
//!   no files, no sockets, no processes.
//! * A script ends: steps and the length of texts are bounded.
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

/// Where languages differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScriptDialect {
    /// BeanShell and Java: whole numbers divide to whole numbers.
    Java,
    /// Groovy: line breaks end statements, `==` compares texts, `"$x"` fills in.
    Groovy,
}

impl ScriptDialect {
    /// Reads the word of a JSR223 element.
    pub(super) fn find(language: &str) -> Option<Self> {
        match language.trim().to_ascii_lowercase().as_str() {
            "" | "groovy" => Some(Self::Groovy),
            "beanshell" | "bsh" | "java" => Some(Self::Java),
            _ => None,
        }
    }
}

/// A script of an element.
#[derive(Debug)]
pub(super) struct PlanScript {
    dialect: ScriptDialect,
    text: TextTemplate,
    parameters: TextTemplate,
    /// What texts amount to; one, unless the text has variables of the plan in it.
    parsed_blocks: Mutex<HashMap<String, Arc<ast::ScriptBlock>>>,
}

/// Texts that are remembered; a script that is another one each time is read each time.
const MAX_PARSED_BLOCKS: usize = 64;

impl PlanScript {
    /// Reads a script.
    ///
    /// # Errors
    /// What in it is not supported.
    pub(super) fn new(
        dialect: ScriptDialect,
        text: TextTemplate,
        parameters: TextTemplate,
    ) -> Result<Self, String> {
        parser::parse_script(&text.with_placeholder("1"), dialect)?;
        Ok(Self { dialect, text, parameters, parsed_blocks: Mutex::default() })
    }

    /// Runs it at a sample, or before there is one.
    ///
    /// # Errors
    /// What went wrong, as a Java exception would tell it.
    pub(super) fn run(
        &self,
        scope: &mut VariableScope,
        stand: &mut ScriptSampleContext,
    ) -> Result<ScriptValue, String> {
        let text = self.text.evaluate(scope).into_owned();
        let parameters = self.parameters.evaluate(scope).into_owned();
        let known =
            self.parsed_blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&text).cloned();
        let block = match known {
            Some(block) => block,
            None => {
                let block = Arc::new(parser::parse_script(&text, self.dialect)?);
                let mut known = self.parsed_blocks.lock().unwrap_or_else(PoisonError::into_inner);
                if known.len() < MAX_PARSED_BLOCKS {
                    known.insert(text, Arc::clone(&block));
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

/// Reads a script that a function holds.
///
/// # Errors
/// What in it is not supported.
pub(super) fn check_function_script(
    text: &TextTemplate,
    dialect: ScriptDialect,
) -> Result<(), String> {
    parser::parse_script(&text.with_placeholder("1"), dialect).map(drop)
}

/// Runs a script that a function holds, whose variables have been replaced.
///
/// # Errors
/// What is not supported, or what went wrong.
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

/// Runs a script as [`run_function_script`] does; the value of its last statement is its own in every language.
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
