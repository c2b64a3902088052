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
mod json;
mod lex;
mod library;
mod machine;
mod parse;
mod value;

use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;

pub(super) use machine::{Host, Stand};
pub(super) use value::Value;

use super::scope::Scope;
use super::template::Template;

/// Where languages differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// BeanShell and Java: whole numbers divide to whole numbers.
    Java,
    /// Groovy: line breaks end statements, `==` compares texts, `"$x"` fills in.
    Groovy,
}

impl Dialect {
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
pub(super) struct Script {
    dialect: Dialect,
    text: Template,
    parameters: Template,
    /// What texts amount to; one, unless the text has variables of the plan in it.
    known: Mutex<HashMap<String, Arc<ast::Block>>>,
}

/// Texts that are remembered; a script that is another one each time is read each time.
const MOST_KNOWN: usize = 64;

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// What in it is not supported.
    pub(super) fn new(
        dialect: Dialect,
        text: Template,
        parameters: Template,
    ) -> Result<Self, String> {
        parse::parse(&text.with_stand_in("1"), dialect)?;
        Ok(Self { dialect, text, parameters, known: Mutex::default() })
    }

    /// Runs it at a sample, or before there is one.
    ///
    /// # Errors
    /// What went wrong, as a Java exception would tell it.
    pub(super) fn run(&self, scope: &mut Scope, stand: &mut Stand) -> Result<Value, String> {
        let text = self.text.draw(scope).into_owned();
        let parameters = self.parameters.draw(scope).into_owned();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&text).cloned();
        let block = match known {
            Some(block) => block,
            None => {
                let block = Arc::new(parse::parse(&text, self.dialect)?);
                let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                if known.len() < MOST_KNOWN {
                    known.insert(text, Arc::clone(&block));
                }
                block
            }
        };
        machine::run(&block, self.dialect, &parameters, Host { scope, stand })
    }
}

/// Reads a script that a function holds.
///
/// # Errors
/// What in it is not supported.
pub(super) fn check(text: &Template, dialect: Dialect) -> Result<(), String> {
    parse::parse(&text.with_stand_in("1"), dialect).map(drop)
}

/// Runs a script that a function holds, whose variables have been replaced.
///
/// # Errors
/// What is not supported, or what went wrong.
pub(super) fn run(text: &str, dialect: Dialect, scope: &mut Scope) -> Result<Value, String> {
    let block = parse::parse(text, dialect)?;
    machine::run(&block, dialect, "", Host { scope, stand: &mut Stand::default() })
}

/// Runs a script as [`run`] does; the value of its last statement is its own in every language.
///
/// # Errors
/// As [`run`].
pub(super) fn run_to_value(
    text: &str,
    dialect: Dialect,
    scope: &mut Scope,
) -> Result<Value, String> {
    let block = parse::parse(text, dialect)?;
    machine::run_to_value(&block, dialect, Host { scope, stand: &mut Stand::default() })
}

#[cfg(test)]
mod tests;
