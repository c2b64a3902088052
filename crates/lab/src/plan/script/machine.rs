//! Runs a script over a thread's variables and the sample that it stands at.

use hashbrown::HashMap;

use super::super::answer::Answer;
use super::super::pattern::{compile, compile_whole};
use super::super::scope::Scope;
use super::Dialect;
use super::ast::{Block, Expression, Operator, Statement};
use super::library;
use super::value::Value;

/// The sample that a script stands at, and what it says of it.
#[derive(Debug, Default)]
pub(in super::super) struct Stand {
    /// The answer; what a script sets is set in it.
    pub(in super::super) answer: Answer,
    pub(in super::super) is_ok: bool,
    /// What an assertion says went wrong.
    pub(in super::super) failure: Option<String>,
    /// The sample's name, if the script gives it another.
    pub(in super::super) label: Option<String>,
    says_failed: bool,
    /// There is no sample yet.
    is_absent: bool,
    /// The script is the sample itself; `prev` is the one before it, if there was one.
    of_sampler: Option<Option<Box<Stand>>>,
}

impl Stand {
    /// Returns what stands for a sample.
    pub(in super::super) fn new(answer: Answer, is_ok: bool) -> Self {
        Self { answer, is_ok, ..Self::default() }
    }

    /// Returns what stands for the sample that a script is itself, after the one before it.
    pub(in super::super) fn of_sampler(answer: Answer, previous: Option<Self>) -> Self {
        Self { of_sampler: Some(previous.map(Box::new)), ..Self::new(answer, true) }
    }

    /// Returns what stands for a sample before there is one: whatever asks for it fails.
    pub(in super::super) fn absent() -> Self {
        Self { is_absent: true, ..Self::default() }
    }
}

/// What a script may touch.
pub(in super::super) struct Host<'a> {
    pub(in super::super) scope: &'a mut Scope,
    pub(in super::super) stand: &'a mut Stand,
}

/// Steps after which a script is ended: it would hold up all users of its thread.
const MOST_STEPS: u64 = 2_000_000;
/// Longest text that a script may make.
const MOST_TEXT: usize = 16 << 20;

enum Flow {
    On,
    Break,
    Continue,
    Return(Value),
}

type Outcome<T> = Result<T, String>;

pub(super) fn run(
    block: &Block,
    dialect: Dialect,
    parameters: &str,
    host: Host<'_>,
) -> Outcome<Value> {
    let (returned, last) = run_block(block, dialect, parameters, host)?;
    // The value of the last statement is that of a Groovy script.
    Ok(returned.unwrap_or(if dialect == Dialect::Groovy { last } else { Value::Null }))
}

/// Runs a script whose value is that of its last statement, whatever its language.
pub(super) fn run_to_value(block: &Block, dialect: Dialect, host: Host<'_>) -> Outcome<Value> {
    run_block(block, dialect, "", host).map(|(returned, last)| returned.unwrap_or(last))
}

/// Returns what a script returned, and the value of its last statement.
fn run_block(
    block: &Block,
    dialect: Dialect,
    parameters: &str,
    host: Host<'_>,
) -> Outcome<(Option<Value>, Value)> {
    let mut machine = Machine {
        host,
        dialect,
        parameters: parameters.to_owned(),
        names: HashMap::new(),
        steps: 0,
        last: Value::Null,
    };
    let flow = machine.block(block)?;
    machine.settle();
    Ok(match flow {
        Flow::Return(value) => (Some(value), Value::Null),
        Flow::On | Flow::Break | Flow::Continue => (None, machine.last),
    })
}

struct Machine<'a> {
    host: Host<'a>,
    dialect: Dialect,
    parameters: String,
    names: HashMap<String, Value>,
    steps: u64,
    last: Value,
}

impl Machine<'_> {
    /// Takes what a BeanShell script said through names.
    fn settle(&mut self) {
        let stand = &mut *self.host.stand;
        if let Some(failed) = self.names.get("Failure") {
            stand.says_failed |= failed.is_true();
        }
        let text = |name: &str| self.names.get(name).map(Value::to_string);
        if let Some(code) = text("ResponseCode") {
            stand.answer.code = code;
        }
        if let Some(message) = text("ResponseMessage") {
            stand.answer.message = message;
        }
        if let Some(is_ok) = self.names.get("IsSuccess") {
            stand.is_ok = is_ok.is_true();
        }
        if stand.says_failed {
            let told = stand.failure.take().or_else(|| text("FailureMessage"));
            stand.failure = Some(told.unwrap_or_default());
        } else {
            stand.failure = None;
        }
    }

    fn step(&mut self) -> Outcome<()> {
        self.steps += 1;
        if self.steps > MOST_STEPS {
            return Err(format!("the script was ended after {MOST_STEPS} steps"));
        }
        Ok(())
    }

    fn block(&mut self, block: &Block) -> Outcome<Flow> {
        for statement in &block.0 {
            match self.statement(statement)? {
                Flow::On => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, statement: &Statement) -> Outcome<Flow> {
        self.step()?;
        match statement {
            Statement::Evaluate(expression) => self.last = self.value(expression)?,
            Statement::Declare(name, value) => {
                let value = match value {
                    Some(value) => self.value(value)?,
                    None => Value::Null,
                };
                self.names.insert(name.clone(), value);
            }
            Statement::If(condition, yes, no) => {
                let holds = self.value(condition)?.is_true();
                return self.block(if holds { yes } else { no });
            }
            Statement::While(condition, body) => {
                while self.value(condition)?.is_true() {
                    self.step()?;
                    match self.block(body)? {
                        Flow::On | Flow::Continue => {}
                        Flow::Break => break,
                        Flow::Return(value) => return Ok(Flow::Return(value)),
                    }
                }
            }
            Statement::For { first, condition, after, body } => {
                return self.repeat(first, condition.as_ref(), after, body);
            }
            Statement::ForEach(name, list, body) => return self.each(name, list, body),
            Statement::Return(value) => {
                return Ok(Flow::Return(match value {
                    Some(value) => self.value(value)?,
                    None => Value::Null,
                }));
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::Nested(block) => return self.block(block),
            Statement::Try(tried, rescue, last) => {
                let outcome = match (self.block(tried), rescue) {
                    (Err(fault), Some((name, rescue))) if self.steps <= MOST_STEPS => {
                        self.names.insert(name.clone(), Value::text(fault));
                        self.block(rescue)
                    }
                    (outcome, _) => outcome,
                };
                return match self.block(last)? {
                    Flow::On => outcome,
                    other => Ok(other),
                };
            }
            Statement::Throw(value) => return Err(self.value(value)?.to_string()),
        }
        Ok(Flow::On)
    }

    fn repeat(
        &mut self,
        first: &Block,
        condition: Option<&Expression>,
        after: &[Expression],
        body: &Block,
    ) -> Outcome<Flow> {
        self.block(first)?;
        loop {
            self.step()?;
            if let Some(condition) = condition
                && !self.value(condition)?.is_true()
            {
                return Ok(Flow::On);
            }
            match self.block(body)? {
                Flow::On | Flow::Continue => {}
                Flow::Break => return Ok(Flow::On),
                Flow::Return(value) => return Ok(Flow::Return(value)),
            }
            for expression in after {
                self.value(expression)?;
            }
        }
    }

    fn each(&mut self, name: &str, list: &Expression, body: &Block) -> Outcome<Flow> {
        let all = match self.value(list)? {
            Value::List(values) => values.borrow().clone(),
            Value::Null => Vec::new(),
            other => vec![other],
        };
        for value in all {
            self.step()?;
            self.names.insert(name.to_owned(), value);
            match self.block(body)? {
                Flow::On | Flow::Continue => {}
                Flow::Break => break,
                Flow::Return(value) => return Ok(Flow::Return(value)),
            }
        }
        Ok(Flow::On)
    }

    fn values(&mut self, all: &[Expression]) -> Outcome<Vec<Value>> {
        all.iter().map(|expression| self.value(expression)).collect()
    }

    fn value(&mut self, expression: &Expression) -> Outcome<Value> {
        self.step()?;
        Ok(match expression {
            Expression::Null => Value::Null,
            Expression::Bool(value) => Value::Bool(*value),
            Expression::Int(value) => Value::Int(*value),
            Expression::Double(value) => Value::Double(*value),
            Expression::Text(text) => Value::text(text.as_str()),
            Expression::Filled(parts) => {
                let mut text = String::new();
                for value in self.values(parts)? {
                    text.push_str(&value.to_string());
                }
                bounded(Value::text(text))?
            }
            Expression::Name(name) => self.name(name)?,
            Expression::List(all) => Value::list(self.values(all)?),
            Expression::Assign(target, operator, value) => self.assign(target, *operator, value)?,
            Expression::Step(target, by, is_after) => {
                let before = self.value(target)?;
                let next = self.operate(Operator::Add, &before, &Value::Int(*by))?;
                self.put(target, next.clone())?;
                if *is_after { before } else { next }
            }
            Expression::Binary(operator, left, right) => self.binary(*operator, left, right)?,
            Expression::Not(value) => Value::Bool(!self.value(value)?.is_true()),
            Expression::Negate(value) => match self.value(value)? {
                Value::Int(value) => Value::Int(value.wrapping_neg()),
                other => Value::Double(-other.double().unwrap_or(f64::NAN)),
            },
            Expression::Choice(condition, yes, no) => {
                let holds = self.value(condition)?.is_true();
                self.value(if holds { yes } else { no })?
            }
            Expression::Elvis(value, other) => {
                let value = self.value(value)?;
                if value.is_true() { value } else { self.value(other)? }
            }
            Expression::Index(on, place) => self.index(on, place)?,
            Expression::Property(on, name) => self.property(on, name)?,
            Expression::Safe(inner) => self.safe(inner)?,
            Expression::Call(on, name, arguments) => self.call(on, name, arguments)?,
            Expression::Static(class, name, arguments) => {
                let arguments = self.values(arguments)?;
                library::call_static(class, name, &arguments, self.host.scope)?
            }
            Expression::New(class, arguments) => library::make(class, &self.values(arguments)?)?,
            Expression::Cast(class, value) => {
                let value = self.value(value)?;
                match (class.as_str(), &value) {
                    ("int" | "long" | "short", Value::Double(number)) => Value::Int(*number as i64),
                    ("double" | "float", Value::Int(number)) => Value::Double(*number as f64),
                    ("String", Value::Null) => Value::Null,
                    ("String", _) => Value::text(value.to_string()),
                    _ => value,
                }
            }
        })
    }

    fn name(&mut self, name: &str) -> Outcome<Value> {
        if let Some(value) = self.names.get(name) {
            return Ok(value.clone());
        }
        let answer = &self.host.stand.answer;
        Ok(match name {
            "Parameters" => Value::text(self.parameters.as_str()),
            "args" => self.arguments(),
            "Label" | "SampleLabel" => Value::text(&*self.host.scope.sampler),
            "threadName" => Value::text(&*self.host.scope.thread_name),
            "ResponseCode" => Value::text(answer.code.as_str()),
            "ResponseMessage" => Value::text(answer.message.as_str()),
            "ResponseData" | "data" => Value::text(answer.body.as_str()),
            "Failure" => Value::Bool(self.host.stand.says_failed),
            "IsSuccess" => Value::Bool(self.host.stand.is_ok),
            "FailureMessage" => Value::text(""),
            _ if library::is_global(name) => Value::Null,
            _ => {
                return Err(format!(
                    "groovy.lang.MissingPropertyException: No such property: {name}"
                ));
            }
        })
    }

    fn arguments(&self) -> Value {
        Value::list(self.parameters.split_whitespace().map(Value::text).collect())
    }

    fn index(&mut self, on: &Expression, place: &Expression) -> Outcome<Value> {
        let place = self.value(place)?;
        if library::root_of(on) == Some("vars") {
            return Ok(self.variable(&place.to_string()));
        }
        let on = self.value(on)?;
        if let Value::Map(_) = on {
            return library::call(&on, "get", &[place], self.host.scope);
        }
        let place = match place {
            Value::Int(place) => place,
            other => other.to_string().parse().unwrap_or(-1),
        };
        let from_end = |length: usize| {
            let length = i64::try_from(length).unwrap_or(i64::MAX);
            let place =
                if place < 0 && self.dialect == Dialect::Groovy { length + place } else { place };
            usize::try_from(place).ok()
        };
        let outside = || "java.lang.IndexOutOfBoundsException".to_owned();
        match &on {
            Value::List(values) => {
                let values = values.borrow();
                let at = from_end(values.len()).ok_or_else(outside)?;
                match values.get(at) {
                    Some(value) => Ok(value.clone()),
                    None if self.dialect == Dialect::Groovy => Ok(Value::Null),
                    None => Err(outside()),
                }
            }
            Value::Text(text) => {
                let at = from_end(text.chars().count()).ok_or_else(outside)?;
                let found = text.chars().nth(at).ok_or_else(outside)?;
                Ok(Value::text(found.to_string()))
            }
            _ => Err("only lists and texts have places".to_owned()),
        }
    }

    fn property(&mut self, on: &Expression, name: &str) -> Outcome<Value> {
        match library::root_of(on) {
            Some("vars") => Ok(self.variable(name)),
            Some("props") => {
                let found = self.host.scope.world.property(name);
                Ok(found.map_or(Value::Null, Value::text))
            }
            Some("bsh") => Ok(self.arguments()),
            _ => library::property_of(&self.value(on)?, name),
        }
    }

    /// Reads a property or calls a method unless the receiver is nothing.
    fn safe(&mut self, inner: &Expression) -> Outcome<Value> {
        let (Expression::Property(on, _) | Expression::Call(on, ..)) = inner else {
            return self.value(inner);
        };
        let on = self.value(on)?;
        match (on, inner) {
            (Value::Null, _) => Ok(Value::Null),
            (on, Expression::Property(_, name)) => library::property_of(&on, name),
            (on, Expression::Call(_, name, arguments)) => {
                let given = self.values(arguments)?;
                bounded(library::call(&on, name, &given, self.host.scope)?)
            }
            (on, _) => Ok(on),
        }
    }

    fn variable(&self, name: &str) -> Value {
        self.host.scope.variable(name).map_or(Value::Null, Value::text)
    }

    fn assign(
        &mut self,
        target: &Expression,
        operator: Operator,
        value: &Expression,
    ) -> Outcome<Value> {
        let mut value = self.value(value)?;
        if operator != Operator::Set {
            let before = self.value(target)?;
            value = self.operate(operator, &before, &value)?;
        }
        self.put(target, value.clone())?;
        Ok(value)
    }

    fn put(&mut self, target: &Expression, value: Value) -> Outcome<()> {
        match target {
            Expression::Name(name) => {
                self.names.insert(name.clone(), value);
                Ok(())
            }
            Expression::Property(_, name) => {
                self.host.scope.set(name, &value.to_string());
                Ok(())
            }
            Expression::Index(on, place) => {
                let place = self.value(place)?;
                if library::root_of(on) == Some("vars") {
                    self.host.scope.set(&place.to_string(), &value.to_string());
                    return Ok(());
                }
                let on = self.value(on)?;
                library::call(&on, "set", &[place, value], self.host.scope).map(drop)
            }
            _ => Err("nothing can be assigned there".to_owned()),
        }
    }

    fn binary(
        &mut self,
        operator: Operator,
        left: &Expression,
        right: &Expression,
    ) -> Outcome<Value> {
        let left = self.value(left)?;
        match operator {
            Operator::And if !left.is_true() => return Ok(Value::Bool(false)),
            Operator::Or if left.is_true() => return Ok(Value::Bool(true)),
            Operator::And | Operator::Or => return Ok(Value::Bool(self.value(right)?.is_true())),
            _ => {}
        }
        let right = self.value(right)?;
        self.operate(operator, &left, &right)
    }

    fn operate(&self, operator: Operator, left: &Value, right: &Value) -> Outcome<Value> {
        let is_text = |value: &Value| !matches!(value, Value::Int(_) | Value::Double(_));
        Ok(match operator {
            Operator::Equal => Value::Bool(left.equals(right)),
            Operator::NotEqual => Value::Bool(!left.equals(right)),
            Operator::Less
            | Operator::LessOrEqual
            | Operator::Greater
            | Operator::GreaterOrEqual => {
                let order = match (left.double(), right.double()) {
                    (Some(one), Some(two)) => one.partial_cmp(&two),
                    _ => Some(left.to_string().cmp(&right.to_string())),
                };
                Value::Bool(order.is_some_and(|order| match operator {
                    Operator::Less => order.is_lt(),
                    Operator::LessOrEqual => order.is_le(),
                    Operator::Greater => order.is_gt(),
                    _ => order.is_ge(),
                }))
            }
            Operator::Find | Operator::Matches => {
                let (text, pattern) = (left.to_string(), right.to_string());
                let is_whole = operator == Operator::Matches;
                let compiled = if is_whole { compile_whole(&pattern) } else { compile(&pattern) };
                let compiled = compiled
                    .map_err(|_| format!("java.util.regex.PatternSyntaxException: {right}"))?;
                Value::Bool(compiled.is_match(&text))
            }
            Operator::Add | Operator::Subtract
                if matches!((left, right), (Value::Time(_), Value::Int(_))) =>
            {
                let (Value::Time(time), Value::Int(days)) = (left, right) else {
                    return Ok(Value::Null);
                };
                let days = if operator == Operator::Add { Some(*days) } else { days.checked_neg() };
                let moved = days.and_then(|days| time.plus_days(days));
                moved.map(Value::Time).ok_or("java.time.DateTimeException")?
            }
            Operator::Add if is_text(left) || is_text(right) => {
                bounded(Value::text(format!("{left}{right}")))?
            }
            _ => self.calculate(operator, left, right)?,
        })
    }

    fn calculate(&self, operator: Operator, left: &Value, right: &Value) -> Outcome<Value> {
        if let (Value::Int(one), Value::Int(two)) = (left, right) {
            let is_exact = *two != 0 && one.checked_rem(*two) == Some(0);
            let divides = matches!(operator, Operator::Divide | Operator::Remainder);
            if divides && *two == 0 {
                return Err("java.lang.ArithmeticException: / by zero".to_owned());
            }
            // Groovy divides whole numbers to decimal ones.
            if operator != Operator::Divide || is_exact || self.dialect == Dialect::Java {
                return Ok(Value::Int(match operator {
                    Operator::Add => one.wrapping_add(*two),
                    Operator::Subtract => one.wrapping_sub(*two),
                    Operator::Multiply => one.wrapping_mul(*two),
                    Operator::Divide => one.wrapping_div(*two),
                    _ => one.wrapping_rem(*two),
                }));
            }
        }
        let (Some(one), Some(two)) = (left.double(), right.double()) else {
            return Err(format!("`{left}` and `{right}` are no numbers"));
        };
        Ok(Value::Double(match operator {
            Operator::Add => one + two,
            Operator::Subtract => one - two,
            Operator::Multiply => one * two,
            Operator::Divide => one / two,
            _ => one % two,
        }))
    }

    fn call(&mut self, on: &Expression, name: &str, arguments: &[Expression]) -> Outcome<Value> {
        let given = self.values(arguments)?;
        if let Some(root) = library::root_of(on)
            && !self.names.contains_key(root)
        {
            match root {
                "vars" | "props" => return self.call_names(root == "props", name, &given),
                "prev" | "SampleResult" | "sampleResult" => {
                    return self.call_sample(root == "prev", name, &given);
                }
                "sampler" if name == "getName" => {
                    return Ok(Value::text(&*self.host.scope.draw_name()));
                }
                "threadGroup" => return Ok(Value::text(&*self.host.scope.group)),
                "AssertionResult" => return Ok(self.call_verdict(name, &given)),
                "log" | "OUT" => {
                    let text = given.first().unwrap_or(&Value::Null).to_string();
                    tracing::debug!(reason = %text, "a script of the plan says");
                    return Ok(Value::Null);
                }
                "ctx" | "thread" | "sampler" => {
                    let scope = &self.host.scope;
                    return Ok(if name == "getThreadNum" {
                        // Counted from 0 here, from 1 in `__threadNum`.
                        Value::Int(i64::try_from(scope.thread).unwrap_or(1) - 1)
                    } else {
                        Value::text(&*scope.thread_name)
                    });
                }
                _ => {}
            }
        }
        let on = self.value(on)?;
        bounded(library::call(&on, name, &given, self.host.scope)?)
    }

    fn call_names(&mut self, is_property: bool, name: &str, given: &[Value]) -> Outcome<Value> {
        // Variables hold texts: Java has no method that takes anything else.
        if name == "put"
            && !is_property
            && let Some(value) = given.get(1)
            && !matches!(value, Value::Text(_) | Value::Null)
        {
            return Err(
                "groovy.lang.MissingMethodException: No signature of method: org.apache.jmeter.threads.JMeterVariables.put() is applicable"
                    .to_owned(),
            );
        }
        let key = given.first().map(Value::to_string).unwrap_or_default();
        let value = given.get(1).cloned().unwrap_or_default();
        let scope = &mut *self.host.scope;
        let known = if is_property {
            scope.world.property(&key)
        } else {
            scope.variable(&key).map(str::to_owned)
        };
        Ok(match name {
            "put" | "setProperty" if is_property => {
                scope.world.set_property(&key, &value.to_string());
                Value::Null
            }
            "put" if matches!(value, Value::Null) => {
                scope.remove(&key);
                Value::Null
            }
            "put" => {
                scope.set(&key, &value.to_string());
                Value::Null
            }
            "remove" => {
                if is_property {
                    scope.world.remove_property(&key);
                } else {
                    scope.remove(&key);
                }
                known.map_or(Value::Null, Value::text)
            }
            "containsKey" => Value::Bool(known.is_some()),
            _ => known.map_or(value, Value::text),
        })
    }

    fn call_sample(&mut self, is_previous: bool, name: &str, given: &[Value]) -> Outcome<Value> {
        let scope = &mut *self.host.scope;
        let mut stand = Some(&mut *self.host.stand);
        if is_previous && let Some(Stand { of_sampler: Some(previous), .. }) = stand {
            stand = previous.as_deref_mut();
        }
        let Some(stand) = stand.filter(|stand| !stand.is_absent) else {
            return Err(format!(
                "java.lang.NullPointerException: Cannot invoke method {name}() on null object"
            ));
        };
        let text = || given.first().map(Value::to_string).unwrap_or_default();
        let answer = &mut stand.answer;
        Ok(match name {
            "getResponseCode" => Value::text(answer.code.as_str()),
            "getResponseMessage" => Value::text(answer.message.as_str()),
            "getResponseDataAsString" => Value::text(answer.body.as_str()),
            "getResponseData" => Value::Bytes(answer.body.as_bytes().into()),
            // What names a type or an encoding changes nothing that is sent or told here.
            "setDataType" | "setDataEncoding" | "setContentType" | "setSamplerData" => Value::Null,
            "getResponseHeaders" => Value::text(answer.headers.as_str()),
            "getRequestHeaders" => Value::text(&*answer.request_headers()),
            "getUrlAsString" => Value::text(answer.url.as_str()),
            "getSampleLabel" => {
                Value::text(stand.label.clone().unwrap_or_else(|| scope.sampler.to_string()))
            }
            "getTime" => Value::Int(i64::try_from(answer.elapsed_ms).unwrap_or(i64::MAX)),
            "getThreadName" => Value::text(&*scope.thread_name),
            "isSuccessful" => Value::Bool(stand.is_ok),
            "setSuccessful" => {
                stand.is_ok = given.first().is_some_and(Value::is_true);
                Value::Null
            }
            "setResponseCode" => {
                answer.code = text();
                Value::Null
            }
            "setResponseMessage" => {
                answer.message = text();
                Value::Null
            }
            "setResponseCodeOK" | "setResponseMessageOK" | "setResponseOK" => {
                if name != "setResponseMessageOK" {
                    "200".clone_into(&mut answer.code);
                }
                if name != "setResponseCodeOK" {
                    "OK".clone_into(&mut answer.message);
                }
                stand.is_ok |= name == "setResponseOK";
                Value::Null
            }
            "setResponseData" => {
                answer.body = text();
                Value::Null
            }
            "setSampleLabel" => {
                stand.label = Some(text());
                Value::Null
            }
            "getSamplerData" => Value::text(answer.request_data()),
            "getURL" => Value::text(answer.url.as_str()),
            "getBytesAsLong" => Value::Int(i64::try_from(answer.bytes).unwrap_or(i64::MAX)),
            "getBodySizeAsLong" => Value::Int(i64::try_from(answer.body_bytes).unwrap_or(i64::MAX)),
            "setIgnore" => {
                answer.said.is_ignored = true;
                Value::Null
            }
            "isIgnore" => Value::Bool(answer.said.is_ignored),
            "isStopThread" => Value::Bool(answer.said.stops_thread),
            "isStopTest" | "isStopTestNow" => Value::Bool(answer.said.stops_test),
            "isStartNextThreadLoop" => Value::Bool(answer.said.starts_next_loop),
            "setStopThread" | "setStopTest" | "setStopTestNow" | "setStartNextThreadLoop" => {
                let flag = match name {
                    "setStopThread" => &mut answer.said.stops_thread,
                    "setStartNextThreadLoop" => &mut answer.said.starts_next_loop,
                    _ => &mut answer.said.stops_test,
                };
                *flag = given.first().is_some_and(Value::is_true);
                Value::Null
            }
            _ => return Err(format!("script calls `prev.{name}()` (not supported)")),
        })
    }

    fn call_verdict(&mut self, name: &str, given: &[Value]) -> Value {
        let stand = &mut *self.host.stand;
        match name {
            "setFailure" => stand.says_failed = given.first().is_some_and(Value::is_true),
            "setFailureMessage" => stand.failure = given.first().map(Value::to_string),
            "getFailureMessage" => {
                return stand.failure.as_deref().map_or(Value::Null, Value::text);
            }
            _ => return Value::Bool(stand.says_failed),
        }
        Value::Null
    }
}

fn bounded(value: Value) -> Outcome<Value> {
    let length = match &value {
        Value::Text(text) => text.len(),
        Value::Builder(text) => text.borrow().len(),
        _ => 0,
    };
    if length > MOST_TEXT {
        return Err("java.lang.OutOfMemoryError: the text is too long".to_owned());
    }
    Ok(value)
}
