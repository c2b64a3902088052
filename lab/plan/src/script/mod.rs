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
mod date_time_method;
mod dialect;
mod function_script;
mod interpreter;
mod json;
mod lexer;
mod library;
mod parser;
mod plan_script;
mod value;

pub(super) use dialect::ScriptDialect;
pub(super) use function_script::{
    check_function_script, run_function_script, run_function_script_to_value,
};
pub use interpreter::ScriptSampleContext;
pub use plan_script::PlanScript;
pub(super) use value::ScriptValue;

#[cfg(test)]
mod tests;
