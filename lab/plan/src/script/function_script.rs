//! The script in a function call.

use super::super::template::TextTemplate;
use super::super::variable_scope::VariableScope;
use super::dialect::ScriptDialect;
use super::interpreter::{self, ScriptHost, ScriptSampleContext};
use super::parser;
use super::value::ScriptValue;

/// Checks the script in a function call.
///
/// # Errors
/// The unsupported code.
pub(crate) fn check_function_script(
    text: &TextTemplate,
    dialect: ScriptDialect,
) -> Result<(), String> {
    parser::parse_script(&text.with_placeholder("1"), dialect).map(drop)
}

/// Runs the script in a function call, after substitution of its variables.
///
/// # Errors
/// The unsupported code, or the error.
pub(crate) fn run_function_script(
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
pub(crate) fn run_function_script_to_value(
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
