//! Runs a script on a thread's variables and its current sample.

use hashbrown::HashMap;

use super::super::regex_pattern::{compile_full_match, compile_pattern};
use super::super::sample_response::SampleResponse;
use super::super::variable_scope::VariableScope;
use super::ast::{ScriptBlock, ScriptExpression, ScriptOperator, ScriptStatement};
use super::dialect::ScriptDialect;
use super::library;
use super::value::ScriptValue;

/// The current sample of a script, and what the script sets on it.
#[derive(Debug, Default)]
pub struct ScriptSampleContext {
    /// The response; a script's changes apply to it.
    pub response: SampleResponse,
    /// True if the sample succeeded.
    pub is_ok: bool,
    /// The failure message set by an assertion.
    pub failure: Option<String>,
    /// The sample's name, if the script changes it.
    pub label: Option<String>,
    is_marked_failed: bool,
    /// Set if there is no sample yet.
    is_absent: bool,
    /// Set if the script is the sampler itself; `prev` is the previous sample, if there was one.
    previous_of_sampler: Option<Option<Box<ScriptSampleContext>>>,
}

impl ScriptSampleContext {
    /// Returns the context of a sample.
    pub fn new(response: SampleResponse, is_ok: bool) -> Self {
        Self { response, is_ok, ..Self::default() }
    }

    /// Returns the context of a script sampler, with the previous sample.
    pub fn for_sampler(response: SampleResponse, previous: Option<Self>) -> Self {
        Self { previous_of_sampler: Some(previous.map(Box::new)), ..Self::new(response, true) }
    }

    /// Returns the context before the first sample: every access to it fails.
    pub fn absent() -> Self {
        Self { is_absent: true, ..Self::default() }
    }
}

/// Everything that a script can access.
pub(crate) struct ScriptHost<'a> {
    pub(crate) scope: &'a mut VariableScope,
    pub(crate) sample_context: &'a mut ScriptSampleContext,
}

/// Maximum number of steps of a script: longer ones would block all users of the worker thread.
const MAX_SCRIPT_STEPS: u64 = 2_000_000;
/// Maximum length of a string that a script creates.
const MAX_SCRIPT_TEXT_LEN: usize = 16 << 20;

enum ScriptControlFlow {
    Next,
    Break,
    Continue,
    Return(ScriptValue),
}

type InterpreterResult<T> = Result<T, String>;

pub(super) fn run_script_block(
    block: &ScriptBlock,
    dialect: ScriptDialect,
    parameters: &str,
    host: ScriptHost<'_>,
) -> InterpreterResult<ScriptValue> {
    let (returned, last) = run_block_with_last(block, dialect, parameters, host)?;
    // The value of a Groovy script is that of its last statement.
    Ok(returned.unwrap_or(if dialect == ScriptDialect::Groovy { last } else { ScriptValue::Null }))
}

/// Runs a script and returns the value of its last statement in every language.
pub(super) fn run_block_to_value(
    block: &ScriptBlock,
    dialect: ScriptDialect,
    host: ScriptHost<'_>,
) -> InterpreterResult<ScriptValue> {
    run_block_with_last(block, dialect, "", host).map(|(returned, last)| returned.unwrap_or(last))
}

/// Returns the value that a script returned, and the value of its last statement.
fn run_block_with_last(
    block: &ScriptBlock,
    dialect: ScriptDialect,
    parameters: &str,
    host: ScriptHost<'_>,
) -> InterpreterResult<(Option<ScriptValue>, ScriptValue)> {
    let mut machine = ScriptInterpreter {
        host,
        dialect,
        parameters: parameters.to_owned(),
        variables: HashMap::new(),
        step_count: 0,
        last_value: ScriptValue::Null,
    };
    let flow = machine.run_block(block)?;
    machine.apply_script_variables();
    Ok(match flow {
        ScriptControlFlow::Return(value) => (Some(value), ScriptValue::Null),
        ScriptControlFlow::Next | ScriptControlFlow::Break | ScriptControlFlow::Continue => {
            (None, machine.last_value)
        }
    })
}

struct ScriptInterpreter<'a> {
    host: ScriptHost<'a>,
    dialect: ScriptDialect,
    parameters: String,
    variables: HashMap<String, ScriptValue>,
    step_count: u64,
    last_value: ScriptValue,
}

impl ScriptInterpreter<'_> {
    /// Applies the results that a BeanShell script sets through variables.
    fn apply_script_variables(&mut self) {
        let sample_context = &mut *self.host.sample_context;
        if let Some(failed) = self.variables.get("Failure") {
            sample_context.is_marked_failed |= failed.is_true();
        }
        let text = |name: &str| self.variables.get(name).map(ScriptValue::to_string);
        if let Some(code) = text("ResponseCode") {
            sample_context.response.code = code;
        }
        if let Some(message) = text("ResponseMessage") {
            sample_context.response.message = message;
        }
        if let Some(is_ok) = self.variables.get("IsSuccess") {
            sample_context.is_ok = is_ok.is_true();
        }
        if sample_context.is_marked_failed {
            let failure_message = sample_context.failure.take().or_else(|| text("FailureMessage"));
            sample_context.failure = Some(failure_message.unwrap_or_default());
        } else {
            sample_context.failure = None;
        }
    }

    fn count_step(&mut self) -> InterpreterResult<()> {
        self.step_count += 1;
        if self.step_count > MAX_SCRIPT_STEPS {
            return Err(format!("the script was stopped after {MAX_SCRIPT_STEPS} steps"));
        }
        Ok(())
    }

    fn run_block(&mut self, block: &ScriptBlock) -> InterpreterResult<ScriptControlFlow> {
        for statement in &block.0 {
            match self.run_statement(statement)? {
                ScriptControlFlow::Next => {}
                flow => return Ok(flow),
            }
        }
        Ok(ScriptControlFlow::Next)
    }

    fn run_statement(
        &mut self,
        statement: &ScriptStatement,
    ) -> InterpreterResult<ScriptControlFlow> {
        self.count_step()?;
        match statement {
            ScriptStatement::Evaluate(expression) => self.last_value = self.evaluate(expression)?,
            ScriptStatement::Declare(name, value) => {
                let value = match value {
                    Some(value) => self.evaluate(value)?,
                    None => ScriptValue::Null,
                };
                self.variables.insert(name.clone(), value);
            }
            ScriptStatement::If(condition, yes, no) => {
                let holds = self.evaluate(condition)?.is_true();
                return self.run_block(if holds { yes } else { no });
            }
            ScriptStatement::While(condition, body) => {
                while self.evaluate(condition)?.is_true() {
                    self.count_step()?;
                    match self.run_block(body)? {
                        ScriptControlFlow::Next | ScriptControlFlow::Continue => {}
                        ScriptControlFlow::Break => break,
                        ScriptControlFlow::Return(value) => {
                            return Ok(ScriptControlFlow::Return(value));
                        }
                    }
                }
            }
            ScriptStatement::For { init, condition, update, body } => {
                return self.run_loop(init, condition.as_ref(), update, body);
            }
            ScriptStatement::ForEach(name, list, body) => {
                return self.run_for_each(name, list, body);
            }
            ScriptStatement::Return(value) => {
                return Ok(ScriptControlFlow::Return(match value {
                    Some(value) => self.evaluate(value)?,
                    None => ScriptValue::Null,
                }));
            }
            ScriptStatement::Break => return Ok(ScriptControlFlow::Break),
            ScriptStatement::Continue => return Ok(ScriptControlFlow::Continue),
            ScriptStatement::Nested(block) => return self.run_block(block),
            ScriptStatement::Try(tried, rescue, last) => {
                let outcome = match (self.run_block(tried), rescue) {
                    (Err(fault), Some((name, rescue))) if self.step_count <= MAX_SCRIPT_STEPS => {
                        self.variables.insert(name.clone(), ScriptValue::from_text(fault));
                        self.run_block(rescue)
                    }
                    (outcome, _) => outcome,
                };
                return match self.run_block(last)? {
                    ScriptControlFlow::Next => outcome,
                    flow => Ok(flow),
                };
            }
            ScriptStatement::Throw(value) => return Err(self.evaluate(value)?.to_string()),
        }
        Ok(ScriptControlFlow::Next)
    }

    fn run_loop(
        &mut self,
        first: &ScriptBlock,
        condition: Option<&ScriptExpression>,
        after: &[ScriptExpression],
        body: &ScriptBlock,
    ) -> InterpreterResult<ScriptControlFlow> {
        self.run_block(first)?;
        loop {
            self.count_step()?;
            if let Some(condition) = condition
                && !self.evaluate(condition)?.is_true()
            {
                return Ok(ScriptControlFlow::Next);
            }
            match self.run_block(body)? {
                ScriptControlFlow::Next | ScriptControlFlow::Continue => {}
                ScriptControlFlow::Break => return Ok(ScriptControlFlow::Next),
                ScriptControlFlow::Return(value) => return Ok(ScriptControlFlow::Return(value)),
            }
            for expression in after {
                self.evaluate(expression)?;
            }
        }
    }

    fn run_for_each(
        &mut self,
        name: &str,
        list: &ScriptExpression,
        body: &ScriptBlock,
    ) -> InterpreterResult<ScriptControlFlow> {
        let all = match self.evaluate(list)? {
            ScriptValue::List(values) => values.borrow().clone(),
            ScriptValue::Null => Vec::new(),
            item => vec![item],
        };
        for value in all {
            self.count_step()?;
            self.variables.insert(name.to_owned(), value);
            match self.run_block(body)? {
                ScriptControlFlow::Next | ScriptControlFlow::Continue => {}
                ScriptControlFlow::Break => break,
                ScriptControlFlow::Return(value) => return Ok(ScriptControlFlow::Return(value)),
            }
        }
        Ok(ScriptControlFlow::Next)
    }

    fn evaluate_all(&mut self, all: &[ScriptExpression]) -> InterpreterResult<Vec<ScriptValue>> {
        all.iter().map(|expression| self.evaluate(expression)).collect()
    }

    fn evaluate(&mut self, expression: &ScriptExpression) -> InterpreterResult<ScriptValue> {
        self.count_step()?;
        Ok(match expression {
            ScriptExpression::Null => ScriptValue::Null,
            ScriptExpression::Bool(value) => ScriptValue::Bool(*value),
            ScriptExpression::Int(value) => ScriptValue::Int(*value),
            ScriptExpression::Double(value) => ScriptValue::Double(*value),
            ScriptExpression::Text(text) => ScriptValue::from_text(text.as_str()),
            ScriptExpression::Interpolated(parts) => {
                let mut text = String::new();
                for value in self.evaluate_all(parts)? {
                    text.push_str(&value.to_string());
                }
                check_text_length(ScriptValue::from_text(text))?
            }
            ScriptExpression::Name(name) => self.read_name(name)?,
            ScriptExpression::List(all) => ScriptValue::from_list(self.evaluate_all(all)?),
            ScriptExpression::Assign(target, operator, value) => {
                self.assign(target, *operator, value)?
            }
            ScriptExpression::Increment(target, by, is_after) => {
                let before = self.evaluate(target)?;
                let next =
                    self.apply_operator(ScriptOperator::Add, &before, &ScriptValue::Int(*by))?;
                self.assign_value(target, next.clone())?;
                if *is_after { before } else { next }
            }
            ScriptExpression::Binary(operator, left, right) => {
                self.evaluate_binary(*operator, left, right)?
            }
            ScriptExpression::Not(value) => ScriptValue::Bool(!self.evaluate(value)?.is_true()),
            ScriptExpression::Negate(value) => match self.evaluate(value)? {
                ScriptValue::Int(value) => ScriptValue::Int(value.wrapping_neg()),
                operand => ScriptValue::Double(-operand.to_double().unwrap_or(f64::NAN)),
            },
            ScriptExpression::Conditional(condition, yes, no) => {
                let holds = self.evaluate(condition)?.is_true();
                self.evaluate(if holds { yes } else { no })?
            }
            ScriptExpression::Elvis(value, alternative) => {
                let value = self.evaluate(value)?;
                if value.is_true() { value } else { self.evaluate(alternative)? }
            }
            ScriptExpression::Index(on, index) => self.evaluate_index(on, index)?,
            ScriptExpression::Property(on, name) => self.evaluate_property(on, name)?,
            ScriptExpression::SafeNavigation(inner) => self.evaluate_null_safe(inner)?,
            ScriptExpression::Call(on, name, arguments) => {
                self.evaluate_call(on, name, arguments)?
            }
            ScriptExpression::StaticCall(class, name, arguments) => {
                let arguments = self.evaluate_all(arguments)?;
                library::call_static(class, name, &arguments, self.host.scope)?
            }
            ScriptExpression::New(class, arguments) => {
                library::construct_object(class, &self.evaluate_all(arguments)?)?
            }
            ScriptExpression::Cast(class, value) => {
                let value = self.evaluate(value)?;
                match (class.as_str(), &value) {
                    ("int" | "long" | "short", ScriptValue::Double(number)) => {
                        ScriptValue::Int(*number as i64)
                    }
                    ("double" | "float", ScriptValue::Int(number)) => {
                        ScriptValue::Double(*number as f64)
                    }
                    ("String", ScriptValue::Null) => ScriptValue::Null,
                    ("String", _) => ScriptValue::from_text(value.to_string()),
                    _ => value,
                }
            }
        })
    }

    fn read_name(&mut self, name: &str) -> InterpreterResult<ScriptValue> {
        if let Some(value) = self.variables.get(name) {
            return Ok(value.clone());
        }
        let response = &self.host.sample_context.response;
        Ok(match name {
            "Parameters" => ScriptValue::from_text(self.parameters.as_str()),
            "args" => self.script_arguments(),
            "Label" | "SampleLabel" => ScriptValue::from_text(&*self.host.scope.sample_label),
            "threadName" => ScriptValue::from_text(&*self.host.scope.thread_name),
            "ResponseCode" => ScriptValue::from_text(response.code.as_str()),
            "ResponseMessage" => ScriptValue::from_text(response.message.as_str()),
            "ResponseData" | "data" => ScriptValue::from_text(response.body.as_str()),
            "Failure" => ScriptValue::Bool(self.host.sample_context.is_marked_failed),
            "IsSuccess" => ScriptValue::Bool(self.host.sample_context.is_ok),
            "FailureMessage" => ScriptValue::from_text(""),
            _ if library::is_global(name) => ScriptValue::Null,
            _ => {
                return Err(format!(
                    "groovy.lang.MissingPropertyException: No such property: {name}"
                ));
            }
        })
    }

    fn script_arguments(&self) -> ScriptValue {
        ScriptValue::from_list(
            self.parameters.split_whitespace().map(ScriptValue::from_text).collect(),
        )
    }

    fn evaluate_index(
        &mut self,
        on: &ScriptExpression,
        index: &ScriptExpression,
    ) -> InterpreterResult<ScriptValue> {
        let index = self.evaluate(index)?;
        if library::root_object_of(on) == Some("vars") {
            return Ok(self.read_plan_variable(&index.to_string()));
        }
        let on = self.evaluate(on)?;
        if let ScriptValue::Map(_) = on {
            return library::call_method(&on, "get", &[index], self.host.scope);
        }
        let index = match index {
            ScriptValue::Int(index) => index,
            index_value => index_value.to_string().parse().unwrap_or(-1),
        };
        let from_end = |length: usize| {
            let length = i64::try_from(length).unwrap_or(i64::MAX);
            let index = if index < 0 && self.dialect == ScriptDialect::Groovy {
                length + index
            } else {
                index
            };
            usize::try_from(index).ok()
        };
        let outside = || "java.lang.IndexOutOfBoundsException".to_owned();
        match &on {
            ScriptValue::List(values) => {
                let values = values.borrow();
                let at = from_end(values.len()).ok_or_else(outside)?;
                match values.get(at) {
                    Some(value) => Ok(value.clone()),
                    None if self.dialect == ScriptDialect::Groovy => Ok(ScriptValue::Null),
                    None => Err(outside()),
                }
            }
            ScriptValue::Text(text) => {
                let at = from_end(text.chars().count()).ok_or_else(outside)?;
                let letter = text.chars().nth(at).ok_or_else(outside)?;
                Ok(ScriptValue::from_text(letter.to_string()))
            }
            _ => Err("only lists and strings can be indexed".to_owned()),
        }
    }

    fn evaluate_property(
        &mut self,
        on: &ScriptExpression,
        name: &str,
    ) -> InterpreterResult<ScriptValue> {
        match library::root_object_of(on) {
            Some("vars") => Ok(self.read_plan_variable(name)),
            Some("props") => {
                let value = self.host.scope.run_context.property(name);
                Ok(value.map_or(ScriptValue::Null, ScriptValue::from_text))
            }
            Some("bsh") => Ok(self.script_arguments()),
            _ => library::property_of(&self.evaluate(on)?, name),
        }
    }

    /// Reads a property or calls a method unless the receiver is null.
    fn evaluate_null_safe(&mut self, inner: &ScriptExpression) -> InterpreterResult<ScriptValue> {
        let (ScriptExpression::Property(on, _) | ScriptExpression::Call(on, ..)) = inner else {
            return self.evaluate(inner);
        };
        let on = self.evaluate(on)?;
        match (on, inner) {
            (ScriptValue::Null, _) => Ok(ScriptValue::Null),
            (on, ScriptExpression::Property(_, name)) => library::property_of(&on, name),
            (on, ScriptExpression::Call(_, name, arguments)) => {
                let argument_values = self.evaluate_all(arguments)?;
                check_text_length(library::call_method(
                    &on,
                    name,
                    &argument_values,
                    self.host.scope,
                )?)
            }
            (on, _) => Ok(on),
        }
    }

    fn read_plan_variable(&self, name: &str) -> ScriptValue {
        self.host.scope.variable(name).map_or(ScriptValue::Null, ScriptValue::from_text)
    }

    fn assign(
        &mut self,
        target: &ScriptExpression,
        operator: ScriptOperator,
        value: &ScriptExpression,
    ) -> InterpreterResult<ScriptValue> {
        let mut value = self.evaluate(value)?;
        if operator != ScriptOperator::Assign {
            let before = self.evaluate(target)?;
            value = self.apply_operator(operator, &before, &value)?;
        }
        self.assign_value(target, value.clone())?;
        Ok(value)
    }

    fn assign_value(
        &mut self,
        target: &ScriptExpression,
        value: ScriptValue,
    ) -> InterpreterResult<()> {
        match target {
            ScriptExpression::Name(name) => {
                self.variables.insert(name.clone(), value);
                Ok(())
            }
            ScriptExpression::Property(_, name) => {
                self.host.scope.set_variable(name, &value.to_string());
                Ok(())
            }
            ScriptExpression::Index(on, index) => {
                let index = self.evaluate(index)?;
                if library::root_object_of(on) == Some("vars") {
                    self.host.scope.set_variable(&index.to_string(), &value.to_string());
                    return Ok(());
                }
                let on = self.evaluate(on)?;
                library::call_method(&on, "set", &[index, value], self.host.scope).map(drop)
            }
            _ => Err("invalid assignment target".to_owned()),
        }
    }

    fn evaluate_binary(
        &mut self,
        operator: ScriptOperator,
        left: &ScriptExpression,
        right: &ScriptExpression,
    ) -> InterpreterResult<ScriptValue> {
        let left = self.evaluate(left)?;
        match operator {
            ScriptOperator::And if !left.is_true() => return Ok(ScriptValue::Bool(false)),
            ScriptOperator::Or if left.is_true() => return Ok(ScriptValue::Bool(true)),
            ScriptOperator::And | ScriptOperator::Or => {
                return Ok(ScriptValue::Bool(self.evaluate(right)?.is_true()));
            }
            _ => {}
        }
        let right = self.evaluate(right)?;
        self.apply_operator(operator, &left, &right)
    }

    fn apply_operator(
        &self,
        operator: ScriptOperator,
        left: &ScriptValue,
        right: &ScriptValue,
    ) -> InterpreterResult<ScriptValue> {
        let is_text =
            |value: &ScriptValue| !matches!(value, ScriptValue::Int(_) | ScriptValue::Double(_));
        Ok(match operator {
            ScriptOperator::Equal => ScriptValue::Bool(left.equals(right)),
            ScriptOperator::NotEqual => ScriptValue::Bool(!left.equals(right)),
            ScriptOperator::Less
            | ScriptOperator::LessOrEqual
            | ScriptOperator::Greater
            | ScriptOperator::GreaterOrEqual => {
                let order = match (left.to_double(), right.to_double()) {
                    (Some(left_number), Some(right_number)) => {
                        left_number.partial_cmp(&right_number)
                    }
                    _ => Some(left.to_string().cmp(&right.to_string())),
                };
                ScriptValue::Bool(order.is_some_and(|order| match operator {
                    ScriptOperator::Less => order.is_lt(),
                    ScriptOperator::LessOrEqual => order.is_le(),
                    ScriptOperator::Greater => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
            ScriptOperator::RegexFind | ScriptOperator::RegexMatch => {
                let (text, pattern) = (left.to_string(), right.to_string());
                let is_whole = operator == ScriptOperator::RegexMatch;
                let compiled =
                    if is_whole { compile_full_match(&pattern) } else { compile_pattern(&pattern) };
                let compiled = compiled
                    .map_err(|_| format!("java.util.regex.PatternSyntaxException: {right}"))?;
                ScriptValue::Bool(compiled.is_match(&text))
            }
            ScriptOperator::Add | ScriptOperator::Subtract
                if matches!((left, right), (ScriptValue::DateTime(_), ScriptValue::Int(_))) =>
            {
                let (ScriptValue::DateTime(time), ScriptValue::Int(days)) = (left, right) else {
                    return Ok(ScriptValue::Null);
                };
                let days =
                    if operator == ScriptOperator::Add { Some(*days) } else { days.checked_neg() };
                let moved = days.and_then(|days| time.plus_days(days));
                moved.map(ScriptValue::DateTime).ok_or("java.time.DateTimeException")?
            }
            ScriptOperator::Add if is_text(left) || is_text(right) => {
                check_text_length(ScriptValue::from_text(format!("{left}{right}")))?
            }
            _ => self.apply_arithmetic(operator, left, right)?,
        })
    }

    fn apply_arithmetic(
        &self,
        operator: ScriptOperator,
        left: &ScriptValue,
        right: &ScriptValue,
    ) -> InterpreterResult<ScriptValue> {
        if let (ScriptValue::Int(left_integer), ScriptValue::Int(right_integer)) = (left, right) {
            let is_exact =
                *right_integer != 0 && left_integer.checked_rem(*right_integer) == Some(0);
            let divides = matches!(operator, ScriptOperator::Divide | ScriptOperator::Remainder);
            if divides && *right_integer == 0 {
                return Err("java.lang.ArithmeticException: / by zero".to_owned());
            }
            // Groovy's division of integers gives a decimal.
            if operator != ScriptOperator::Divide || is_exact || self.dialect == ScriptDialect::Java
            {
                return Ok(ScriptValue::Int(match operator {
                    ScriptOperator::Add => left_integer.wrapping_add(*right_integer),
                    ScriptOperator::Subtract => left_integer.wrapping_sub(*right_integer),
                    ScriptOperator::Multiply => left_integer.wrapping_mul(*right_integer),
                    ScriptOperator::Divide => left_integer.wrapping_div(*right_integer),
                    _ => left_integer.wrapping_rem(*right_integer),
                }));
            }
        }
        let (Some(left_number), Some(right_number)) = (left.to_double(), right.to_double()) else {
            return Err(format!("`{left}` or `{right}` is not a number"));
        };
        Ok(ScriptValue::Double(match operator {
            ScriptOperator::Add => left_number + right_number,
            ScriptOperator::Subtract => left_number - right_number,
            ScriptOperator::Multiply => left_number * right_number,
            ScriptOperator::Divide => left_number / right_number,
            _ => left_number % right_number,
        }))
    }

    fn evaluate_call(
        &mut self,
        on: &ScriptExpression,
        name: &str,
        arguments: &[ScriptExpression],
    ) -> InterpreterResult<ScriptValue> {
        let values = self.evaluate_all(arguments)?;
        if let Some(root) = library::root_object_of(on)
            && !self.variables.contains_key(root)
        {
            match root {
                "vars" | "props" => return self.call_variables(root == "props", name, &values),
                "prev" | "SampleResult" | "sampleResult" => {
                    return self.call_sample(root == "prev", name, &values);
                }
                "sampler" if name == "getName" => {
                    return Ok(ScriptValue::from_text(&*self.host.scope.evaluate_sampler_name()));
                }
                "threadGroup" => return Ok(ScriptValue::from_text(&*self.host.scope.group_name)),
                "AssertionResult" => return Ok(self.call_assertion_result(name, &values)),
                "log" | "OUT" => {
                    let text = values.first().unwrap_or(&ScriptValue::Null).to_string();
                    tracing::debug!(reason = %text, "plan script output");
                    return Ok(ScriptValue::Null);
                }
                "ctx" | "thread" | "sampler" => {
                    let scope = &self.host.scope;
                    return Ok(if name == "getThreadNum" {
                        // Counted from 0 here, from 1 in `__threadNum`.
                        ScriptValue::Int(i64::try_from(scope.thread_number).unwrap_or(1) - 1)
                    } else {
                        ScriptValue::from_text(&*scope.thread_name)
                    });
                }
                _ => {}
            }
        }
        let on = self.evaluate(on)?;
        check_text_length(library::call_method(&on, name, &values, self.host.scope)?)
    }

    fn call_variables(
        &mut self,
        is_property: bool,
        name: &str,
        arguments: &[ScriptValue],
    ) -> InterpreterResult<ScriptValue> {
        // Variables hold strings: Java has no method that accepts anything else.
        if name == "put"
            && !is_property
            && let Some(value) = arguments.get(1)
            && !matches!(value, ScriptValue::Text(_) | ScriptValue::Null)
        {
            return Err(
                "groovy.lang.MissingMethodException: No signature of method: org.apache.jmeter.threads.JMeterVariables.put() is applicable"
                    .to_owned(),
            );
        }
        let key = arguments.first().map(ScriptValue::to_string).unwrap_or_default();
        let value = arguments.get(1).cloned().unwrap_or_default();
        let scope = &mut *self.host.scope;
        let current_value = if is_property {
            scope.run_context.property(&key)
        } else {
            scope.variable(&key).map(str::to_owned)
        };
        Ok(match name {
            "put" | "setProperty" if is_property => {
                scope.run_context.set_property(&key, &value.to_string());
                ScriptValue::Null
            }
            "put" if matches!(value, ScriptValue::Null) => {
                scope.remove_variable(&key);
                ScriptValue::Null
            }
            "put" => {
                scope.set_variable(&key, &value.to_string());
                ScriptValue::Null
            }
            "remove" => {
                if is_property {
                    scope.run_context.remove_property(&key);
                } else {
                    scope.remove_variable(&key);
                }
                current_value.map_or(ScriptValue::Null, ScriptValue::from_text)
            }
            "containsKey" => ScriptValue::Bool(current_value.is_some()),
            _ => current_value.map_or(value, ScriptValue::from_text),
        })
    }

    fn call_sample(
        &mut self,
        is_previous: bool,
        name: &str,
        arguments: &[ScriptValue],
    ) -> InterpreterResult<ScriptValue> {
        let scope = &mut *self.host.scope;
        let mut sample_context = Some(&mut *self.host.sample_context);
        if is_previous
            && let Some(ScriptSampleContext { previous_of_sampler: Some(previous), .. }) =
                sample_context
        {
            sample_context = previous.as_deref_mut();
        }
        let Some(sample_context) =
            sample_context.filter(|sample_context| !sample_context.is_absent)
        else {
            return Err(format!(
                "java.lang.NullPointerException: Cannot invoke method {name}() on null object"
            ));
        };
        let text = || arguments.first().map(ScriptValue::to_string).unwrap_or_default();
        let response = &mut sample_context.response;
        Ok(match name {
            "getResponseCode" => ScriptValue::from_text(response.code.as_str()),
            "getResponseMessage" => ScriptValue::from_text(response.message.as_str()),
            "getResponseDataAsString" => ScriptValue::from_text(response.body.as_str()),
            "getResponseData" => ScriptValue::Bytes(response.body.as_bytes().into()),
            // Type and encoding names affect neither requests nor reports here.
            "setDataType" | "setDataEncoding" | "setContentType" | "setSamplerData" => {
                ScriptValue::Null
            }
            "getResponseHeaders" => ScriptValue::from_text(response.headers.as_str()),
            "getRequestHeaders" => ScriptValue::from_text(&*response.request_headers_text()),
            "getUrlAsString" => ScriptValue::from_text(response.url.as_str()),
            "getSampleLabel" => ScriptValue::from_text(
                sample_context.label.clone().unwrap_or_else(|| scope.sample_label.to_string()),
            ),
            "getTime" => ScriptValue::Int(i64::try_from(response.elapsed_ms).unwrap_or(i64::MAX)),
            "getThreadName" => ScriptValue::from_text(&*scope.thread_name),
            "isSuccessful" => ScriptValue::Bool(sample_context.is_ok),
            "setSuccessful" => {
                sample_context.is_ok = arguments.first().is_some_and(ScriptValue::is_true);
                ScriptValue::Null
            }
            "setResponseCode" => {
                response.code = text();
                ScriptValue::Null
            }
            "setResponseMessage" => {
                response.message = text();
                ScriptValue::Null
            }
            "setResponseCodeOK" | "setResponseMessageOK" | "setResponseOK" => {
                if name != "setResponseMessageOK" {
                    "200".clone_into(&mut response.code);
                }
                if name != "setResponseCodeOK" {
                    "OK".clone_into(&mut response.message);
                }
                sample_context.is_ok |= name == "setResponseOK";
                ScriptValue::Null
            }
            "setResponseData" => {
                response.body = text();
                ScriptValue::Null
            }
            "setSampleLabel" => {
                sample_context.label = Some(text());
                ScriptValue::Null
            }
            "getSamplerData" => ScriptValue::from_text(response.request_text()),
            "getURL" => ScriptValue::from_text(response.url.as_str()),
            "getBytesAsLong" => ScriptValue::Int(i64::try_from(response.bytes).unwrap_or(i64::MAX)),
            "getBodySizeAsLong" => {
                ScriptValue::Int(i64::try_from(response.body_bytes).unwrap_or(i64::MAX))
            }
            "setIgnore" => {
                response.script_directives.is_ignored = true;
                ScriptValue::Null
            }
            "isIgnore" => ScriptValue::Bool(response.script_directives.is_ignored),
            "isStopThread" => ScriptValue::Bool(response.script_directives.stops_thread),
            "isStopTest" | "isStopTestNow" => {
                ScriptValue::Bool(response.script_directives.stops_test)
            }
            "isStartNextThreadLoop" => {
                ScriptValue::Bool(response.script_directives.starts_next_loop)
            }
            "setStopThread" | "setStopTest" | "setStopTestNow" | "setStartNextThreadLoop" => {
                let flag = match name {
                    "setStopThread" => &mut response.script_directives.stops_thread,
                    "setStartNextThreadLoop" => &mut response.script_directives.starts_next_loop,
                    _ => &mut response.script_directives.stops_test,
                };
                *flag = arguments.first().is_some_and(ScriptValue::is_true);
                ScriptValue::Null
            }
            _ => return Err(format!("script calls `prev.{name}()` (not supported)")),
        })
    }

    fn call_assertion_result(&mut self, name: &str, arguments: &[ScriptValue]) -> ScriptValue {
        let sample_context = &mut *self.host.sample_context;
        match name {
            "setFailure" => {
                sample_context.is_marked_failed =
                    arguments.first().is_some_and(ScriptValue::is_true)
            }
            "setFailureMessage" => {
                sample_context.failure = arguments.first().map(ScriptValue::to_string)
            }
            "getFailureMessage" => {
                return sample_context
                    .failure
                    .as_deref()
                    .map_or(ScriptValue::Null, ScriptValue::from_text);
            }
            _ => return ScriptValue::Bool(sample_context.is_marked_failed),
        }
        ScriptValue::Null
    }
}

fn check_text_length(value: ScriptValue) -> InterpreterResult<ScriptValue> {
    let length = match &value {
        ScriptValue::Text(text) => text.len(),
        ScriptValue::StringBuilder(text) => text.borrow().len(),
        _ => 0,
    };
    if length > MAX_SCRIPT_TEXT_LEN {
        return Err("java.lang.OutOfMemoryError: the text is too long".to_owned());
    }
    Ok(value)
}
