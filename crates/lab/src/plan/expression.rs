//! The small language of conditions: what If controllers and `__jexl3`, `__groovy` and `__javaScript` hold in practice.
//!
//! Literals, comparisons, arithmetic, `&&`, `||`, `!`, `? :`, regular expressions (`=~`), `vars.get("x")`,
//! `props.get("x")`, and a fixed list of methods of texts. Whatever else a script says is told when the plan is read.

use std::fmt;

use super::pattern::{compile, compile_whole};
use super::scope::Scope;
use super::template::Template;

/// What an expression is worth.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Value {
    #[default]
    Null,
    Bool(bool),
    /// A number of a language that has one kind of them.
    Number(f64),
    /// A whole number of JEXL.
    Integer(i128),
    /// A number with a fraction of JEXL.
    Double(f64),
    Text(String),
}

/// How a language counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// All numbers are alike, and a quotient has a fraction: Groovy as far as it is understood here.
    Decimal,
    /// The same with what JavaScript has besides: `Math`, `Date`, `String`.
    JavaScript,
    /// Whole numbers stay whole, as in Java; what is no number is an error.
    Jexl,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Double(value) => f.write_str(&java_double(*value)),
            Self::Text(value) => f.write_str(value),
        }
    }
}

impl Value {
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Number(value) | Self::Double(value) => *value != 0.0,
            Self::Integer(value) => *value != 0,
            Self::Text(value) => !value.is_empty() && value != "false",
        }
    }

    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(value) | Self::Double(value) => Some(*value),
            Self::Integer(value) => Some(*value as f64),
            Self::Text(value) => value.trim().parse().ok(),
            Self::Bool(_) | Self::Null => None,
        }
    }

    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Number(_) | Self::Integer(_) | Self::Double(_),
                Self::Text(_) | Self::Number(_) | Self::Integer(_) | Self::Double(_),
            )
            | (Self::Text(_), Self::Number(_) | Self::Integer(_) | Self::Double(_)) => {
                self.number().is_some_and(|number| Some(number) == other.number())
            }
            (Self::Bool(value), Self::Text(text)) | (Self::Text(text), Self::Bool(value)) => {
                text == &value.to_string()
            }
            _ => self == other,
        }
    }
}

/// Checks that a script can be read once its variables are known.
///
/// # Errors
/// What the script says that is not supported.
pub(crate) fn check(script: &Template) -> Result<(), String> {
    check_as(script, Numbers::Decimal)
}

/// Checks that a script of JavaScript can be read once its variables are known.
///
/// # Errors
/// What the script says that is not supported.
pub(crate) fn check_javascript(script: &Template) -> Result<(), String> {
    check_as(script, Numbers::JavaScript)
}

fn check_as(script: &Template, numbers: Numbers) -> Result<(), String> {
    let text = script.with_stand_in("1");
    let mut reader = Reader { rest: text.trim(), scope: None, numbers, depth: 0 };
    reader
        .whole()
        .map(drop)
        .map_err(|fault| format!("script `{}`: {fault}", script.source().trim()))
}

/// Evaluates a script whose variables have been replaced.
///
/// # Errors
/// What it says that is not supported.
pub(crate) fn evaluate(text: &str, numbers: Numbers, scope: &mut Scope) -> Result<Value, String> {
    Reader { rest: text.trim(), scope: Some(scope), numbers, depth: 0 }.whole()
}

/// Returns a number as Java writes a `double`.
fn java_double(value: f64) -> String {
    if value == 0.0 || (1e-3..1e7).contains(&value.abs()) || !value.is_finite() {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, power)) if digits.contains('.') => format!("{digits}E{power}"),
        Some((digits, power)) => format!("{digits}.0E{power}"),
        None => text,
    }
}

struct Reader<'a, 'b> {
    rest: &'a str,
    /// Absent while checking.
    scope: Option<&'b mut Scope>,
    numbers: Numbers,
    depth: u32,
}

/// Deepest nesting of parentheses, signs and calls.
const DEEPEST: u32 = 100;

type Outcome = Result<Value, String>;

impl<'a> Reader<'a, '_> {
    fn whole(&mut self) -> Outcome {
        self.eat("return ");
        let value = self.choice()?;
        self.eat(";");
        self.skip();
        if self.rest.is_empty() {
            Ok(value)
        } else {
            Err(format!("`{}` is not supported", self.start()))
        }
    }

    fn start(&self) -> String {
        self.rest.chars().take(40).collect()
    }

    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    /// Takes a word that ends here.
    fn eat_word(&mut self, word: &str) -> bool {
        self.skip();
        match self.rest.strip_prefix(word) {
            Some(rest) if !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn choice(&mut self) -> Outcome {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
        let value = self.choice_inside();
        self.depth -= 1;
        value
    }

    fn choice_inside(&mut self) -> Outcome {
        let condition = self.either()?;
        if self.eat("?:") {
            let other = self.choice()?;
            return Ok(if condition.is_true() { condition } else { other });
        }
        if self.eat("?") {
            let yes = self.choice()?;
            if !self.eat(":") {
                return Err("`?` without `:`".to_owned());
            }
            let no = self.choice()?;
            return Ok(if condition.is_true() { yes } else { no });
        }
        Ok(condition)
    }

    fn either(&mut self) -> Outcome {
        let mut left = self.both()?;
        while self.eat("||") || self.eat_word("or") {
            let right = self.both()?;
            left = Value::Bool(left.is_true() || right.is_true());
        }
        Ok(left)
    }

    fn both(&mut self) -> Outcome {
        let mut left = self.comparison()?;
        while self.eat("&&") || self.eat_word("and") {
            let right = self.comparison()?;
            left = Value::Bool(left.is_true() && right.is_true());
        }
        Ok(left)
    }

    fn comparison(&mut self) -> Outcome {
        let left = self.sum()?;
        let operators =
            ["===", "!==", "==~", "==", "!=", "=~", "!~", "=^", "=$", "<=", ">=", "<", ">"];
        for operator in operators {
            if self.eat(operator) {
                let right = self.sum()?;
                return compare(operator, &left, &right, self.numbers);
            }
        }
        for (word, operator) in
            [("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")]
        {
            if self.eat_word(word) {
                let right = self.sum()?;
                return compare(operator, &left, &right, self.numbers);
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Outcome {
        let mut left = self.product()?;
        loop {
            if self.eat("+") {
                let right = self.product()?;
                left = match (&left, &right) {
                    _ if self.numbers == Numbers::Jexl => add_jexl(&left, &right)?,
                    (Value::Number(one), Value::Number(two)) => Value::Number(one + two),
                    _ => Value::Text(format!("{left}{right}")),
                };
            } else if self.eat("-") {
                let right = self.product()?;
                left = self.calculate('-', &left, &right)?;
            } else {
                return Ok(left);
            }
        }
    }

    fn product(&mut self) -> Outcome {
        let mut left = self.sign()?;
        loop {
            let operator = if self.eat("*") {
                '*'
            } else if self.eat("/") || self.eat_word("div") {
                '/'
            } else if self.eat("%") || self.eat_word("mod") {
                '%'
            } else {
                return Ok(left);
            };
            let right = self.sign()?;
            left = self.calculate(operator, &left, &right)?;
        }
    }

    /// Returns a number, as a whole one where the language has such and it is one.
    fn whole_number(&self, number: f64) -> Value {
        match self.numbers {
            Numbers::Decimal | Numbers::JavaScript => Value::Number(number),
            Numbers::Jexl if number.fract() == 0.0 => Value::Integer(number as i128),
            Numbers::Jexl => Value::Double(number),
        }
    }

    fn calculate(&self, operator: char, left: &Value, right: &Value) -> Outcome {
        if self.numbers == Numbers::Jexl {
            return calculate_jexl(operator, left, right);
        }
        Ok(arithmetic(left, right, |one, two| operate(operator, one, two)))
    }

    fn sign(&mut self) -> Outcome {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
        let value = self.sign_inside();
        self.depth -= 1;
        value
    }

    fn sign_inside(&mut self) -> Outcome {
        self.skip();
        if self.eat_word("not") || (!self.rest.starts_with("!=") && self.eat("!")) {
            return Ok(Value::Bool(!self.sign()?.is_true()));
        }
        if self.eat("-") {
            let value = self.sign()?;
            return match value {
                _ if self.numbers == Numbers::Jexl => {
                    calculate_jexl('-', &Value::Integer(0), &value)
                }
                _ => Ok(value.number().map_or(Value::Null, |number| Value::Number(-number))),
            };
        }
        let mut value = self.primary()?;
        while self.rest.starts_with('.') {
            self.rest = self.rest.get(1..).unwrap_or_default();
            value = self.method(&value)?;
        }
        Ok(value)
    }

    fn primary(&mut self) -> Outcome {
        self.skip();
        if self.eat("(") {
            let value = self.choice()?;
            return if self.eat(")") { Ok(value) } else { Err("`(` without `)`".to_owned()) };
        }
        let first = self.rest.chars().next().ok_or("it ends too early")?;
        if first == '"' || first == '\'' {
            return self.quoted(first);
        }
        if first == '/' {
            return self.quoted('/');
        }
        if first.is_ascii_digit() {
            let end = self
                .rest
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(self.rest.len());
            let (digits, rest) = self.rest.split_at(end);
            self.rest = rest.strip_prefix(['L', 'l', 'd', 'f']).unwrap_or(rest);
            let value = self.number_of(digits, rest)?;
            return Ok(match self.numbers {
                Numbers::Jexl => value,
                Numbers::Decimal | Numbers::JavaScript => {
                    value.number().map_or(Value::Null, Value::Number)
                }
            });
        }
        self.word()
    }

    /// Reads the rest of a number: its power of ten.
    fn number_of(&mut self, digits: &str, rest: &'a str) -> Outcome {
        let is_power = |text: &&str| {
            let digits = text.trim_start_matches(['+', '-']);
            digits.starts_with(|c: char| c.is_ascii_digit())
        };
        let mut text = digits.to_owned();
        if let Some(power) = rest.strip_prefix(['e', 'E']).filter(is_power) {
            let digits = power.trim_start_matches(['+', '-']);
            let sign = power.len() - digits.len();
            let count = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            text = format!("{text}e{}", power.get(..sign + count).unwrap_or_default());
            self.rest = power.get(sign + count..).unwrap_or_default();
        }
        jexl_number(&text).ok_or_else(|| format!("`{text}` is no number"))
    }

    fn quoted(&mut self, quote: char) -> Outcome {
        let mut out = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.rest = self.rest.get(at + c.len_utf8()..).unwrap_or_default();
                return Ok(Value::Text(out));
            }
            if c == '\\' && quote != '/' {
                match chars.next().map(|(_, next)| next) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(other) => out.push(other),
                    None => break,
                }
            } else {
                out.push(c);
            }
        }
        Err(format!("`{quote}` without its end"))
    }

    fn name(&mut self) -> &'a str {
        self.skip();
        let end =
            self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        name
    }

    fn word(&mut self) -> Outcome {
        let before = self.start();
        match self.name() {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::Null),
            "vars" => self.look_up(false),
            "props" => self.look_up(true),
            "parseInt" | "Number" | "parseFloat" => {
                let arguments = self.arguments()?;
                let number = arguments.first().and_then(Value::number);
                Ok(number.map_or(Value::Null, |number| self.whole_number(number)))
            }
            "empty" => {
                self.skip();
                let arguments = match self.rest.starts_with('(') {
                    true => self.arguments()?,
                    false => vec![self.sign()?],
                };
                let is_empty = arguments.first().is_none_or(|value| {
                    matches!(value, Value::Null)
                        || matches!(value, Value::Text(text) if text.is_empty())
                });
                Ok(Value::Bool(is_empty))
            }
            "Math" if self.numbers == Numbers::JavaScript => self.math(),
            "String" if self.numbers == Numbers::JavaScript => {
                let text = self.arguments()?.first().map(Value::to_string);
                Ok(Value::Text(text.unwrap_or_default()))
            }
            "new" if self.numbers == Numbers::JavaScript && self.eat_word("Date") => {
                // What is asked of a date is its milliseconds.
                if self.eat("(") && self.eat(")") && self.eat(".getTime") {
                    self.arguments()?;
                    return Ok(Value::Number(Scope::now_ms() as f64));
                }
                Err(format!("`{before}` is not supported"))
            }
            "Date" if self.numbers == Numbers::JavaScript && self.eat(".now") => {
                self.arguments()?;
                Ok(Value::Number(Scope::now_ms() as f64))
            }
            "size" => {
                let arguments = self.arguments()?;
                let size = arguments.first().map_or(0, |value| value.to_string().chars().count());
                Ok(self.whole_number(size as f64))
            }
            _ => Err(format!("`{before}` is not supported")),
        }
    }

    /// Reads a function of JavaScript's `Math`.
    fn math(&mut self) -> Outcome {
        if !self.eat(".") {
            return Err(format!("`{}` is not supported", self.start()));
        }
        let name = self.name();
        let arguments = self.arguments()?;
        let number = |place: usize| arguments.get(place).and_then(Value::number);
        let one = number(0).unwrap_or(f64::NAN);
        Ok(Value::Number(match name {
            "random" => self.scope.as_mut().map_or(0.5, |scope| 1.0 - scope.random_unit()),
            "floor" => one.floor(),
            "ceil" => one.ceil(),
            "round" => (one + 0.5).floor(),
            "abs" => one.abs(),
            "sqrt" => one.sqrt(),
            "pow" => one.powf(number(1).unwrap_or(f64::NAN)),
            "min" => arguments.iter().filter_map(Value::number).fold(f64::INFINITY, f64::min),
            "max" => arguments.iter().filter_map(Value::number).fold(f64::NEG_INFINITY, f64::max),
            _ => return Err(format!("script calls `Math.{name}` (not supported)")),
        }))
    }

    /// Reads `.get("name")`, `["name"]` or `.name` after `vars` or `props`.
    fn look_up(&mut self, is_property: bool) -> Outcome {
        let name = if self.eat("[") {
            let name = self.choice()?.to_string();
            if !self.eat("]") {
                return Err("`[` without `]`".to_owned());
            }
            name
        } else if self.eat(".get") || self.eat(".getProperty") {
            self.arguments()?.first().map(Value::to_string).unwrap_or_default()
        } else if self.eat(".") {
            let name = self.name();
            if self.rest.starts_with('(') {
                return Err(format!("script calls `{name}` (not supported)"));
            }
            name.to_owned()
        } else {
            return Err(format!("`{}` is not supported", self.start()));
        };
        let Some(scope) = &self.scope else { return Ok(Value::Text("1".to_owned())) };
        let found = if is_property {
            scope.world.property(&name)
        } else {
            scope.variable(&name).map(str::to_owned)
        };
        Ok(found.map_or(Value::Null, Value::Text))
    }

    fn arguments(&mut self) -> Result<Vec<Value>, String> {
        if !self.eat("(") {
            return Err(format!("`(` is expected at `{}`", self.start()));
        }
        let mut arguments = Vec::new();
        if self.eat(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.choice()?);
            if self.eat(")") {
                return Ok(arguments);
            }
            if !self.eat(",") {
                return Err(format!("`,` or `)` is expected at `{}`", self.start()));
            }
        }
    }

    fn method(&mut self, on: &Value) -> Outcome {
        let name = self.name();
        if name == "length" && !self.rest.trim_start().starts_with('(') {
            return Ok(self.whole_number(on.to_string().chars().count() as f64));
        }
        let arguments = self.arguments()?;
        let text = on.to_string();
        let given = arguments.first().map(Value::to_string).unwrap_or_default();
        Ok(match name {
            "equals" => Value::Bool(on.equals(arguments.first().unwrap_or(&Value::Null))),
            "equalsIgnoreCase" => Value::Bool(text.to_lowercase() == given.to_lowercase()),
            "contains" | "includes" => Value::Bool(text.contains(&given)),
            "startsWith" => Value::Bool(text.starts_with(&given)),
            "endsWith" => Value::Bool(text.ends_with(&given)),
            "matches" => Value::Bool(matches(&text, &given, true)?),
            "isEmpty" => Value::Bool(text.is_empty()),
            "length" | "size" => self.whole_number(text.chars().count() as f64),
            "indexOf" => {
                let place = text.find(&given).and_then(|at| text.get(..at));
                self.whole_number(place.map_or(-1.0, |before| before.chars().count() as f64))
            }
            "substring" => {
                let place = |at: usize| arguments.get(at).and_then(Value::number);
                let letters: Vec<char> = text.chars().collect();
                let from = place(0).unwrap_or(0.0) as usize;
                let to = place(1).map_or(letters.len(), |to| to as usize);
                let part = letters.get(from..to).ok_or("`substring` goes beyond the text")?;
                Value::Text(part.iter().collect())
            }
            "charAt" => {
                let place = arguments.first().and_then(Value::number).unwrap_or(0.0);
                Value::Text(text.chars().skip(place as usize).take(1).collect())
            }
            // The parts of a text have no name here: one of them is taken at once.
            "split" if self.eat("[") => {
                let place = self.choice()?.number().unwrap_or(0.0) as usize;
                if !self.eat("]") {
                    return Err("`[` without `]`".to_owned());
                }
                let part = match given.as_str() {
                    "" => text.get(place..=place),
                    mark => text.split(mark).nth(place),
                };
                part.map_or(Value::Null, |part| Value::Text(part.to_owned()))
            }
            "toFixed" => {
                let digits = arguments.first().and_then(Value::number).unwrap_or(0.0) as usize;
                let number = on.number().unwrap_or(f64::NAN);
                Value::Text(format!("{number:.*}", digits.min(20)))
            }
            "trim" => Value::Text(text.trim().to_owned()),
            "toUpperCase" => Value::Text(text.to_uppercase()),
            "toLowerCase" => Value::Text(text.to_lowercase()),
            "toString" => Value::Text(text),
            "toInteger" | "toLong" | "toDouble" | "intValue" => {
                on.number().map_or(Value::Null, |number| self.whole_number(number))
            }
            _ => return Err(format!("script calls `{name}` (not supported)")),
        })
    }
}

fn arithmetic(left: &Value, right: &Value, operation: impl Fn(f64, f64) -> f64) -> Value {
    match (left.number(), right.number()) {
        (Some(one), Some(two)) => Value::Number(operation(one, two)),
        _ => Value::Null,
    }
}

fn operate(operator: char, one: f64, two: f64) -> f64 {
    match operator {
        '-' => one - two,
        '*' => one * two,
        '/' => one / two,
        _ => one % two,
    }
}

/// Returns the number that a text is to JEXL.
fn jexl_number(text: &str) -> Option<Value> {
    let text = text.trim();
    match text.parse() {
        Ok(whole) => Some(Value::Integer(whole)),
        Err(_) => text.parse().ok().map(Value::Double),
    }
}

/// Adds as JEXL does: texts are put together, and what is not there is an error.
fn add_jexl(left: &Value, right: &Value) -> Outcome {
    match (left, right) {
        (Value::Null, _) | (_, Value::Null) => Err("`null` is no number".to_owned()),
        (Value::Integer(one), Value::Integer(two)) => {
            one.checked_add(*two).map(Value::Integer).ok_or_else(|| "it is too large".to_owned())
        }
        (Value::Integer(_) | Value::Double(_), Value::Integer(_) | Value::Double(_)) => {
            let sum = left.number().unwrap_or_default() + right.number().unwrap_or_default();
            Ok(Value::Double(sum))
        }
        _ => Ok(Value::Text(format!("{left}{right}"))),
    }
}

/// Subtracts, multiplies and divides as JEXL does.
fn calculate_jexl(operator: char, left: &Value, right: &Value) -> Outcome {
    let number = |value: &Value| match value {
        Value::Text(text) => jexl_number(text),
        Value::Integer(_) | Value::Double(_) => Some(value.clone()),
        Value::Number(number) => Some(Value::Double(*number)),
        Value::Null | Value::Bool(_) => None,
    };
    let (Some(one), Some(two)) = (number(left), number(right)) else {
        return Err(format!("`{left} {operator} {right}` is no number"));
    };
    if matches!(operator, '/' | '%') && two.number() == Some(0.0) {
        return Err("it divides by zero".to_owned());
    }
    if let (Value::Integer(one), Value::Integer(two)) = (&one, &two) {
        let result = match operator {
            '-' => one.checked_sub(*two),
            '*' => one.checked_mul(*two),
            '/' => one.checked_div(*two),
            _ => one.checked_rem(*two),
        };
        return result.map(Value::Integer).ok_or_else(|| "it is too large".to_owned());
    }
    let (one, two) = (one.number().unwrap_or_default(), two.number().unwrap_or_default());
    Ok(Value::Double(operate(operator, one, two)))
}

fn matches(text: &str, pattern: &str, is_whole: bool) -> Result<bool, String> {
    let compiled = if is_whole { compile_whole(pattern) } else { compile(pattern) };
    Ok(compiled?.is_match(text))
}

fn compare(operator: &str, left: &Value, right: &Value, numbers: Numbers) -> Outcome {
    let are_texts = matches!((left, right), (Value::Text(_), Value::Text(_)));
    let order = || match (left.number(), right.number()) {
        _ if numbers == Numbers::Jexl && are_texts => {
            Some(left.to_string().cmp(&right.to_string()))
        }
        (Some(one), Some(two)) => one.partial_cmp(&two),
        _ => Some(left.to_string().cmp(&right.to_string())),
    };
    let result = match operator {
        "==" | "===" => left.equals(right),
        "!=" | "!==" => !left.equals(right),
        "<" => order().is_some_and(std::cmp::Ordering::is_lt),
        "<=" => order().is_some_and(std::cmp::Ordering::is_le),
        ">" => order().is_some_and(std::cmp::Ordering::is_gt),
        ">=" => order().is_some_and(std::cmp::Ordering::is_ge),
        "==~" => matches(&left.to_string(), &right.to_string(), true)?,
        "=~" => matches(&left.to_string(), &right.to_string(), false)?,
        "!~" => !matches(&left.to_string(), &right.to_string(), false)?,
        "=^" => left.to_string().starts_with(&right.to_string()),
        _ => left.to_string().ends_with(&right.to_string()),
    };
    Ok(Value::Bool(result))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::plan::scope::World;

    #[track_caller]
    fn expect(text: &str, expected: &str) {
        let mut scope = Scope::new(Arc::new(World::default()));
        scope.set("x", "5");
        scope.set("name", "page");
        let template = Template::parse(text).unwrap();
        check(&template).unwrap();
        let drawn = template.draw(&mut scope).into_owned();
        for numbers in [Numbers::Decimal, Numbers::Jexl] {
            let value = evaluate(&drawn, numbers, &mut scope).unwrap();
            assert_eq!(value.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn conditions_of_real_plans_are_worth_what_they_say() {
        expect("${x} < 10", "true");
        expect("\"${name}\" == \"page\" && ${x} > 3", "true");
        expect("vars.get('x') == '5'", "true");
        expect("vars.get(\"missing\") == null || false", "true");
        expect("!(\"${name}\".equals(\"page\"))", "false");
        expect("${x} % 2 == 1 ? 'odd' : 'even'", "odd");
        expect("1 + 2 * 3 - 4 / 2", "5");
        expect("vars['name'].startsWith(\"pa\") and not (${x} eq 4)", "true");
        expect("\"${name}\" =~ \"p.*e\"", "true");
        expect("parseInt(\"${x}\") >= 5;", "true");
    }

    #[test]
    fn javascript_has_functions_of_its_own() {
        let mut scope = Scope::new(Arc::new(World::default()));
        for (text, expected) in [
            ("Math.floor(7.9) + Math.max(1, 2)", "9"),
            ("Math.round(2.5) * Math.abs(-3)", "9"),
            ("Math.floor(Math.random() * 1)", "0"),
            ("'a,b,c'.split(',')[1] + 'xyz'.charAt(2)", "bz"),
            ("(10 / 4).toFixed(2)", "2.50"),
            ("new Date().getTime() > 1600000000000", "true"),
            ("String(5).length", "1"),
        ] {
            check_javascript(&Template::literal(text)).unwrap();
            let value = evaluate(text, Numbers::JavaScript, &mut scope).unwrap();
            assert_eq!(value.to_string(), expected, "{text}");
        }
        // Groovy's have other types.
        assert!(check(&Template::literal("Math.floor(7.9)")).is_err());
        assert!(check_javascript(&Template::literal("new Date().getDay()")).is_err());
    }

    #[test]
    fn what_is_not_understood_is_told_before_it_runs() {
        for text in [
            "ctx.getCurrentSampler()",
            "vars.put('a','b')",
            "import java.util.Random;",
            "1 +",
            "x = 3",
        ] {
            assert!(check(&Template::literal(text)).is_err(), "{text}");
        }
    }
}
