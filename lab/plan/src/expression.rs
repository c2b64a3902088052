//! The expression language of conditions: the subset that If controllers and `__jexl3`, `__groovy` and `__javaScript`
//! use in practice.
//!
//! Literals, comparisons, arithmetic, `&&`, `||`, `!`, `? :`, regular expressions (`=~`), `vars.get("x")`,
//! `props.get("x")`, and a fixed list of string methods. Anything else in a script is reported when the plan is read.

use std::fmt;

use super::regex_pattern::{compile_full_match, compile_pattern};
use super::template::TextTemplate;
use super::variable_scope::VariableScope;

/// The value of an expression.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ExpressionValue {
    #[default]
    Null,
    Bool(bool),
    /// A number in a language with one number type.
    Number(f64),
    /// A JEXL integer.
    Integer(i128),
    /// A JEXL floating-point number.
    Double(f64),
    Text(String),
}

/// The number semantics of a language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NumberSemantics {
    /// One number type, and a quotient has a fraction: Groovy as far as it is supported here.
    Decimal,
    /// The same with JavaScript's additions: `Math`, `Date`, `String`.
    JavaScript,
    /// Integers stay integers, as in Java; a value that is not a number is an error.
    Jexl,
}

impl fmt::Display for ExpressionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Double(value) => f.write_str(&format_java_double(*value)),
            Self::Text(value) => f.write_str(value),
        }
    }
}

impl ExpressionValue {
    pub fn is_true(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Number(value) | Self::Double(value) => *value != 0.0,
            Self::Integer(value) => *value != 0,
            Self::Text(value) => !value.is_empty() && value != "false",
        }
    }

    fn as_number(&self) -> Option<f64> {
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
                self.as_number().is_some_and(|number| Some(number) == other.as_number())
            }
            (Self::Bool(value), Self::Text(text)) | (Self::Text(text), Self::Bool(value)) => {
                text == &value.to_string()
            }
            _ => self == other,
        }
    }
}

/// Checks that a script can be parsed once its variables are known.
///
/// # Errors
/// A description of the unsupported code.
pub(crate) fn check_script(script: &TextTemplate) -> Result<(), String> {
    check_script_as(script, NumberSemantics::Decimal)
}

/// Checks that a JavaScript script can be parsed once its variables are known.
///
/// # Errors
/// A description of the unsupported code.
pub(crate) fn check_javascript(script: &TextTemplate) -> Result<(), String> {
    check_script_as(script, NumberSemantics::JavaScript)
}

fn check_script_as(script: &TextTemplate, numbers: NumberSemantics) -> Result<(), String> {
    let text = script.with_placeholder("1");
    let mut reader =
        ExpressionParser { remaining: text.trim(), scope: None, semantics: numbers, depth: 0 };
    reader
        .parse_whole()
        .map(drop)
        .map_err(|fault| format!("script `{}`: {fault}", script.source().trim()))
}

/// Evaluates a script whose variables have been substituted.
///
/// # Errors
/// A description of the unsupported code.
pub fn evaluate_expression(
    text: &str,
    numbers: NumberSemantics,
    scope: &mut VariableScope,
) -> Result<ExpressionValue, String> {
    ExpressionParser { remaining: text.trim(), scope: Some(scope), semantics: numbers, depth: 0 }
        .parse_whole()
}

/// Formats a number as Java formats a `double`.
fn format_java_double(value: f64) -> String {
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

struct ExpressionParser<'a, 'b> {
    remaining: &'a str,
    /// Absent while checking.
    scope: Option<&'b mut VariableScope>,
    semantics: NumberSemantics,
    depth: u32,
}

/// Maximum nesting depth of parentheses, signs and calls.
const MAX_NESTING_DEPTH: u32 = 100;

type ExpressionResult = Result<ExpressionValue, String>;

impl<'a> ExpressionParser<'a, '_> {
    fn parse_whole(&mut self) -> ExpressionResult {
        self.accept_token("return ");
        let value = self.parse_conditional()?;
        self.accept_token(";");
        self.skip_whitespace();
        if self.remaining.is_empty() {
            Ok(value)
        } else {
            Err(format!("`{}` is not supported", self.remaining_excerpt()))
        }
    }

    fn remaining_excerpt(&self) -> String {
        self.remaining.chars().take(40).collect()
    }

    fn skip_whitespace(&mut self) {
        self.remaining = self.remaining.trim_start();
    }

    fn accept_token(&mut self, token: &str) -> bool {
        self.skip_whitespace();
        match self.remaining.strip_prefix(token) {
            Some(rest) => {
                self.remaining = rest;
                true
            }
            None => false,
        }
    }

    /// Accepts a word that ends at a word boundary.
    fn accept_word(&mut self, keyword: &str) -> bool {
        self.skip_whitespace();
        match self.remaining.strip_prefix(keyword) {
            Some(rest) if !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_') => {
                self.remaining = rest;
                true
            }
            _ => false,
        }
    }

    fn parse_conditional(&mut self) -> ExpressionResult {
        self.depth += 1;
        if self.depth > MAX_NESTING_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        let value = self.parse_conditional_nested();
        self.depth -= 1;
        value
    }

    fn parse_conditional_nested(&mut self) -> ExpressionResult {
        let condition = self.parse_or()?;
        if self.accept_token("?:") {
            let alternative = self.parse_conditional()?;
            return Ok(if condition.is_true() { condition } else { alternative });
        }
        if self.accept_token("?") {
            let yes = self.parse_conditional()?;
            if !self.accept_token(":") {
                return Err("`?` without `:`".to_owned());
            }
            let no = self.parse_conditional()?;
            return Ok(if condition.is_true() { yes } else { no });
        }
        Ok(condition)
    }

    fn parse_or(&mut self) -> ExpressionResult {
        let mut left = self.parse_and()?;
        while self.accept_token("||") || self.accept_word("or") {
            let right = self.parse_and()?;
            left = ExpressionValue::Bool(left.is_true() || right.is_true());
        }
        Ok(left)
    }

    fn parse_and(&mut self) -> ExpressionResult {
        let mut left = self.parse_comparison()?;
        while self.accept_token("&&") || self.accept_word("and") {
            let right = self.parse_comparison()?;
            left = ExpressionValue::Bool(left.is_true() && right.is_true());
        }
        Ok(left)
    }

    fn parse_comparison(&mut self) -> ExpressionResult {
        let left = self.parse_sum()?;
        let operators =
            ["===", "!==", "==~", "==", "!=", "=~", "!~", "=^", "=$", "<=", ">=", "<", ">"];
        for operator in operators {
            if self.accept_token(operator) {
                let right = self.parse_sum()?;
                return compare_values(operator, &left, &right, self.semantics);
            }
        }
        for (symbol, operator) in
            [("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")]
        {
            if self.accept_word(symbol) {
                let right = self.parse_sum()?;
                return compare_values(operator, &left, &right, self.semantics);
            }
        }
        Ok(left)
    }

    fn parse_sum(&mut self) -> ExpressionResult {
        let mut left = self.parse_product()?;
        loop {
            if self.accept_token("+") {
                let right = self.parse_product()?;
                left = match (&left, &right) {
                    _ if self.semantics == NumberSemantics::Jexl => add_jexl(&left, &right)?,
                    (
                        ExpressionValue::Number(left_number),
                        ExpressionValue::Number(right_number),
                    ) => ExpressionValue::Number(left_number + right_number),
                    _ => ExpressionValue::Text(format!("{left}{right}")),
                };
            } else if self.accept_token("-") {
                let right = self.parse_product()?;
                left = self.apply_arithmetic('-', &left, &right)?;
            } else {
                return Ok(left);
            }
        }
    }

    fn parse_product(&mut self) -> ExpressionResult {
        let mut left = self.parse_unary()?;
        loop {
            let operator = if self.accept_token("*") {
                '*'
            } else if self.accept_token("/") || self.accept_word("div") {
                '/'
            } else if self.accept_token("%") || self.accept_word("mod") {
                '%'
            } else {
                return Ok(left);
            };
            let right = self.parse_unary()?;
            left = self.apply_arithmetic(operator, &left, &right)?;
        }
    }

    /// Returns a number, as an integer if the language has integers and it is one.
    fn number_value(&self, number: f64) -> ExpressionValue {
        match self.semantics {
            NumberSemantics::Decimal | NumberSemantics::JavaScript => {
                ExpressionValue::Number(number)
            }
            NumberSemantics::Jexl if number.fract() == 0.0 => {
                ExpressionValue::Integer(number as i128)
            }
            NumberSemantics::Jexl => ExpressionValue::Double(number),
        }
    }

    fn apply_arithmetic(
        &self,
        operator: char,
        left: &ExpressionValue,
        right: &ExpressionValue,
    ) -> ExpressionResult {
        if self.semantics == NumberSemantics::Jexl {
            return calculate_jexl(operator, left, right);
        }
        Ok(number_arithmetic(left, right, |left_number, right_number| {
            apply_operator(operator, left_number, right_number)
        }))
    }

    fn parse_unary(&mut self) -> ExpressionResult {
        self.depth += 1;
        if self.depth > MAX_NESTING_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        let value = self.parse_unary_nested();
        self.depth -= 1;
        value
    }

    fn parse_unary_nested(&mut self) -> ExpressionResult {
        self.skip_whitespace();
        if self.accept_word("not") || (!self.remaining.starts_with("!=") && self.accept_token("!"))
        {
            return Ok(ExpressionValue::Bool(!self.parse_unary()?.is_true()));
        }
        if self.accept_token("-") {
            let value = self.parse_unary()?;
            return match value {
                _ if self.semantics == NumberSemantics::Jexl => {
                    calculate_jexl('-', &ExpressionValue::Integer(0), &value)
                }
                _ => Ok(value
                    .as_number()
                    .map_or(ExpressionValue::Null, |number| ExpressionValue::Number(-number))),
            };
        }
        let mut value = self.parse_primary()?;
        while self.remaining.starts_with('.') {
            self.remaining = self.remaining.get(1..).unwrap_or_default();
            value = self.parse_method_call(&value)?;
        }
        Ok(value)
    }

    fn parse_primary(&mut self) -> ExpressionResult {
        self.skip_whitespace();
        if self.accept_token("(") {
            let value = self.parse_conditional()?;
            return if self.accept_token(")") {
                Ok(value)
            } else {
                Err("`(` without `)`".to_owned())
            };
        }
        let first = self.remaining.chars().next().ok_or("unexpected end")?;
        if first == '"' || first == '\'' {
            return self.parse_quoted(first);
        }
        if first == '/' {
            return self.parse_quoted('/');
        }
        if first.is_ascii_digit() {
            let end = self
                .remaining
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(self.remaining.len());
            let (digits, rest) = self.remaining.split_at(end);
            self.remaining = rest.strip_prefix(['L', 'l', 'd', 'f']).unwrap_or(rest);
            let value = self.parse_number(digits, rest)?;
            return Ok(match self.semantics {
                NumberSemantics::Jexl => value,
                NumberSemantics::Decimal | NumberSemantics::JavaScript => {
                    value.as_number().map_or(ExpressionValue::Null, ExpressionValue::Number)
                }
            });
        }
        self.parse_word()
    }

    /// Parses the rest of a number: its exponent.
    fn parse_number(&mut self, digits: &str, rest: &'a str) -> ExpressionResult {
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
            self.remaining = power.get(sign + count..).unwrap_or_default();
        }
        parse_jexl_number(&text).ok_or_else(|| format!("`{text}` is not a number"))
    }

    fn parse_quoted(&mut self, quote: char) -> ExpressionResult {
        let mut out = String::new();
        let mut chars = self.remaining.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.remaining = self.remaining.get(at + c.len_utf8()..).unwrap_or_default();
                return Ok(ExpressionValue::Text(out));
            }
            if c == '\\' && quote != '/' {
                match chars.next().map(|(_, next)| next) {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(letter) => out.push(letter),
                    None => break,
                }
            } else {
                out.push(c);
            }
        }
        Err(format!("unterminated `{quote}`"))
    }

    fn read_name(&mut self) -> &'a str {
        self.skip_whitespace();
        let end = self
            .remaining
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(self.remaining.len());
        let (name, rest) = self.remaining.split_at(end);
        self.remaining = rest;
        name
    }

    fn parse_word(&mut self) -> ExpressionResult {
        let before = self.remaining_excerpt();
        match self.read_name() {
            "true" => Ok(ExpressionValue::Bool(true)),
            "false" => Ok(ExpressionValue::Bool(false)),
            "null" => Ok(ExpressionValue::Null),
            "vars" => self.parse_variable_lookup(false),
            "props" => self.parse_variable_lookup(true),
            "parseInt" | "Number" | "parseFloat" => {
                let arguments = self.parse_arguments()?;
                let number = arguments.first().and_then(ExpressionValue::as_number);
                Ok(number.map_or(ExpressionValue::Null, |number| self.number_value(number)))
            }
            "empty" => {
                self.skip_whitespace();
                let arguments = match self.remaining.starts_with('(') {
                    true => self.parse_arguments()?,
                    false => vec![self.parse_unary()?],
                };
                let is_empty = arguments.first().is_none_or(|value| {
                    matches!(value, ExpressionValue::Null)
                        || matches!(value, ExpressionValue::Text(text) if text.is_empty())
                });
                Ok(ExpressionValue::Bool(is_empty))
            }
            "Math" if self.semantics == NumberSemantics::JavaScript => self.parse_math_call(),
            "String" if self.semantics == NumberSemantics::JavaScript => {
                let text = self.parse_arguments()?.first().map(ExpressionValue::to_string);
                Ok(ExpressionValue::Text(text.unwrap_or_default()))
            }
            "new" if self.semantics == NumberSemantics::JavaScript && self.accept_word("Date") => {
                // A date is only used for its milliseconds.
                if self.accept_token("(") && self.accept_token(")") && self.accept_token(".getTime")
                {
                    self.parse_arguments()?;
                    return Ok(ExpressionValue::Number(VariableScope::now_ms() as f64));
                }
                Err(format!("`{before}` is not supported"))
            }
            "Date"
                if self.semantics == NumberSemantics::JavaScript && self.accept_token(".now") =>
            {
                self.parse_arguments()?;
                Ok(ExpressionValue::Number(VariableScope::now_ms() as f64))
            }
            "size" => {
                let arguments = self.parse_arguments()?;
                let size = arguments.first().map_or(0, |value| value.to_string().chars().count());
                Ok(self.number_value(size as f64))
            }
            _ => Err(format!("`{before}` is not supported")),
        }
    }

    /// Parses a function of JavaScript's `Math`.
    fn parse_math_call(&mut self) -> ExpressionResult {
        if !self.accept_token(".") {
            return Err(format!("`{}` is not supported", self.remaining_excerpt()));
        }
        let name = self.read_name();
        let arguments = self.parse_arguments()?;
        let number = |index: usize| arguments.get(index).and_then(ExpressionValue::as_number);
        let argument = number(0).unwrap_or(f64::NAN);
        Ok(ExpressionValue::Number(match name {
            "random" => self.scope.as_mut().map_or(0.5, |scope| 1.0 - scope.random_unit()),
            "floor" => argument.floor(),
            "ceil" => argument.ceil(),
            "round" => (argument + 0.5).floor(),
            "abs" => argument.abs(),
            "sqrt" => argument.sqrt(),
            "pow" => argument.powf(number(1).unwrap_or(f64::NAN)),
            "min" => arguments
                .iter()
                .filter_map(ExpressionValue::as_number)
                .fold(f64::INFINITY, f64::min),
            "max" => arguments
                .iter()
                .filter_map(ExpressionValue::as_number)
                .fold(f64::NEG_INFINITY, f64::max),
            _ => return Err(format!("script calls `Math.{name}` (not supported)")),
        }))
    }

    /// Parses `.get("name")`, `["name"]` or `.name` after `vars` or `props`.
    fn parse_variable_lookup(&mut self, is_property: bool) -> ExpressionResult {
        let name = if self.accept_token("[") {
            let name = self.parse_conditional()?.to_string();
            if !self.accept_token("]") {
                return Err("`[` without `]`".to_owned());
            }
            name
        } else if self.accept_token(".get") || self.accept_token(".getProperty") {
            self.parse_arguments()?.first().map(ExpressionValue::to_string).unwrap_or_default()
        } else if self.accept_token(".") {
            let name = self.read_name();
            if self.remaining.starts_with('(') {
                return Err(format!("script calls `{name}` (not supported)"));
            }
            name.to_owned()
        } else {
            return Err(format!("`{}` is not supported", self.remaining_excerpt()));
        };
        let Some(scope) = &self.scope else { return Ok(ExpressionValue::Text("1".to_owned())) };
        let variable_value = if is_property {
            scope.run_context.property(&name)
        } else {
            scope.variable(&name).map(str::to_owned)
        };
        Ok(variable_value.map_or(ExpressionValue::Null, ExpressionValue::Text))
    }

    fn parse_arguments(&mut self) -> Result<Vec<ExpressionValue>, String> {
        if !self.accept_token("(") {
            return Err(format!("expected `(` at `{}`", self.remaining_excerpt()));
        }
        let mut arguments = Vec::new();
        if self.accept_token(")") {
            return Ok(arguments);
        }
        loop {
            arguments.push(self.parse_conditional()?);
            if self.accept_token(")") {
                return Ok(arguments);
            }
            if !self.accept_token(",") {
                return Err(format!("expected `,` or `)` at `{}`", self.remaining_excerpt()));
            }
        }
    }

    fn parse_method_call(&mut self, on: &ExpressionValue) -> ExpressionResult {
        let name = self.read_name();
        if name == "length" && !self.remaining.trim_start().starts_with('(') {
            return Ok(self.number_value(on.to_string().chars().count() as f64));
        }
        let arguments = self.parse_arguments()?;
        let text = on.to_string();
        let argument = arguments.first().map(ExpressionValue::to_string).unwrap_or_default();
        Ok(match name {
            "equals" => ExpressionValue::Bool(
                on.equals(arguments.first().unwrap_or(&ExpressionValue::Null)),
            ),
            "equalsIgnoreCase" => {
                ExpressionValue::Bool(text.to_lowercase() == argument.to_lowercase())
            }
            "contains" | "includes" => ExpressionValue::Bool(text.contains(&argument)),
            "startsWith" => ExpressionValue::Bool(text.starts_with(&argument)),
            "endsWith" => ExpressionValue::Bool(text.ends_with(&argument)),
            "matches" => ExpressionValue::Bool(matches_regex(&text, &argument, true)?),
            "isEmpty" => ExpressionValue::Bool(text.is_empty()),
            "length" | "size" => self.number_value(text.chars().count() as f64),
            "indexOf" => {
                let prefix = text.find(&argument).and_then(|at| text.get(..at));
                self.number_value(prefix.map_or(-1.0, |before| before.chars().count() as f64))
            }
            "substring" => {
                let index_argument =
                    |at: usize| arguments.get(at).and_then(ExpressionValue::as_number);
                let letters: Vec<char> = text.chars().collect();
                let from = index_argument(0).unwrap_or(0.0) as usize;
                let to = index_argument(1).map_or(letters.len(), |to| to as usize);
                let part = letters.get(from..to).ok_or("`substring` is out of range")?;
                ExpressionValue::Text(part.iter().collect())
            }
            "charAt" => {
                let position =
                    arguments.first().and_then(ExpressionValue::as_number).unwrap_or(0.0);
                ExpressionValue::Text(text.chars().skip(position as usize).take(1).collect())
            }
            // Arrays are not a value type here: an element is selected immediately.
            "split" if self.accept_token("[") => {
                let position = self.parse_conditional()?.as_number().unwrap_or(0.0) as usize;
                if !self.accept_token("]") {
                    return Err("`[` without `]`".to_owned());
                }
                let part = match argument.as_str() {
                    "" => text.get(position..=position),
                    mark => text.split(mark).nth(position),
                };
                part.map_or(ExpressionValue::Null, |part| ExpressionValue::Text(part.to_owned()))
            }
            "toFixed" => {
                let digits =
                    arguments.first().and_then(ExpressionValue::as_number).unwrap_or(0.0) as usize;
                let number = on.as_number().unwrap_or(f64::NAN);
                ExpressionValue::Text(format!("{number:.*}", digits.min(20)))
            }
            "trim" => ExpressionValue::Text(text.trim().to_owned()),
            "toUpperCase" => ExpressionValue::Text(text.to_uppercase()),
            "toLowerCase" => ExpressionValue::Text(text.to_lowercase()),
            "toString" => ExpressionValue::Text(text),
            "toInteger" | "toLong" | "toDouble" | "intValue" => {
                on.as_number().map_or(ExpressionValue::Null, |number| self.number_value(number))
            }
            _ => return Err(format!("script calls `{name}` (not supported)")),
        })
    }
}

fn number_arithmetic(
    left: &ExpressionValue,
    right: &ExpressionValue,
    operation: impl Fn(f64, f64) -> f64,
) -> ExpressionValue {
    match (left.as_number(), right.as_number()) {
        (Some(left_number), Some(right_number)) => {
            ExpressionValue::Number(operation(left_number, right_number))
        }
        _ => ExpressionValue::Null,
    }
}

fn apply_operator(operator: char, left: f64, right: f64) -> f64 {
    match operator {
        '-' => left - right,
        '*' => left * right,
        '/' => left / right,
        _ => left % right,
    }
}

/// Returns the number that JEXL parses from a text.
fn parse_jexl_number(text: &str) -> Option<ExpressionValue> {
    let text = text.trim();
    match text.parse() {
        Ok(whole) => Some(ExpressionValue::Integer(whole)),
        Err(_) => text.parse().ok().map(ExpressionValue::Double),
    }
}

/// Adds as JEXL does: strings are concatenated, and a missing value is an error.
fn add_jexl(left: &ExpressionValue, right: &ExpressionValue) -> ExpressionResult {
    match (left, right) {
        (ExpressionValue::Null, _) | (_, ExpressionValue::Null) => {
            Err("`null` is not a number".to_owned())
        }
        (ExpressionValue::Integer(left_integer), ExpressionValue::Integer(right_integer)) => {
            left_integer
                .checked_add(*right_integer)
                .map(ExpressionValue::Integer)
                .ok_or_else(|| "the result is too large".to_owned())
        }
        (
            ExpressionValue::Integer(_) | ExpressionValue::Double(_),
            ExpressionValue::Integer(_) | ExpressionValue::Double(_),
        ) => {
            let sum = left.as_number().unwrap_or_default() + right.as_number().unwrap_or_default();
            Ok(ExpressionValue::Double(sum))
        }
        _ => Ok(ExpressionValue::Text(format!("{left}{right}"))),
    }
}

/// Subtracts, multiplies and divides as JEXL does.
fn calculate_jexl(
    operator: char,
    left: &ExpressionValue,
    right: &ExpressionValue,
) -> ExpressionResult {
    let number = |value: &ExpressionValue| match value {
        ExpressionValue::Text(text) => parse_jexl_number(text),
        ExpressionValue::Integer(_) | ExpressionValue::Double(_) => Some(value.clone()),
        ExpressionValue::Number(number) => Some(ExpressionValue::Double(*number)),
        ExpressionValue::Null | ExpressionValue::Bool(_) => None,
    };
    let (Some(left_number), Some(right_number)) = (number(left), number(right)) else {
        return Err(format!("`{left} {operator} {right}` is not a number"));
    };
    if matches!(operator, '/' | '%') && right_number.as_number() == Some(0.0) {
        return Err("division by zero".to_owned());
    }
    if let (ExpressionValue::Integer(left_integer), ExpressionValue::Integer(right_integer)) =
        (&left_number, &right_number)
    {
        let result = match operator {
            '-' => left_integer.checked_sub(*right_integer),
            '*' => left_integer.checked_mul(*right_integer),
            '/' => left_integer.checked_div(*right_integer),
            _ => left_integer.checked_rem(*right_integer),
        };
        return result
            .map(ExpressionValue::Integer)
            .ok_or_else(|| "the result is too large".to_owned());
    }
    let (left_number, right_number) =
        (left_number.as_number().unwrap_or_default(), right_number.as_number().unwrap_or_default());
    Ok(ExpressionValue::Double(apply_operator(operator, left_number, right_number)))
}

fn matches_regex(text: &str, pattern: &str, is_whole: bool) -> Result<bool, String> {
    let compiled = if is_whole { compile_full_match(pattern) } else { compile_pattern(pattern) };
    Ok(compiled?.is_match(text))
}

fn compare_values(
    operator: &str,
    left: &ExpressionValue,
    right: &ExpressionValue,
    numbers: NumberSemantics,
) -> ExpressionResult {
    let are_texts = matches!((left, right), (ExpressionValue::Text(_), ExpressionValue::Text(_)));
    let order = || match (left.as_number(), right.as_number()) {
        _ if numbers == NumberSemantics::Jexl && are_texts => {
            Some(left.to_string().cmp(&right.to_string()))
        }
        (Some(left_number), Some(right_number)) => left_number.partial_cmp(&right_number),
        _ => Some(left.to_string().cmp(&right.to_string())),
    };
    let result = match operator {
        "==" | "===" => left.equals(right),
        "!=" | "!==" => !left.equals(right),
        "<" => order().is_some_and(std::cmp::Ordering::is_lt),
        "<=" => order().is_some_and(std::cmp::Ordering::is_le),
        ">" => order().is_some_and(std::cmp::Ordering::is_gt),
        ">=" => order().is_some_and(std::cmp::Ordering::is_ge),
        "==~" => matches_regex(&left.to_string(), &right.to_string(), true)?,
        "=~" => matches_regex(&left.to_string(), &right.to_string(), false)?,
        "!~" => !matches_regex(&left.to_string(), &right.to_string(), false)?,
        "=^" => left.to_string().starts_with(&right.to_string()),
        _ => left.to_string().ends_with(&right.to_string()),
    };
    Ok(ExpressionValue::Bool(result))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::variable_scope::RunContext;

    #[track_caller]
    fn expect(text: &str, expected: &str) {
        let mut scope = VariableScope::new(Arc::new(RunContext::default()));
        scope.set_variable("x", "5");
        scope.set_variable("name", "page");
        let template = TextTemplate::parse(text).unwrap();
        check_script(&template).unwrap();
        let output = template.evaluate(&mut scope).into_owned();
        for numbers in [NumberSemantics::Decimal, NumberSemantics::Jexl] {
            let value = evaluate_expression(&output, numbers, &mut scope).unwrap();
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
        let mut scope = VariableScope::new(Arc::new(RunContext::default()));
        for (text, expected) in [
            ("Math.floor(7.9) + Math.max(1, 2)", "9"),
            ("Math.round(2.5) * Math.abs(-3)", "9"),
            ("Math.floor(Math.random() * 1)", "0"),
            ("'a,b,c'.split(',')[1] + 'xyz'.charAt(2)", "bz"),
            ("(10 / 4).toFixed(2)", "2.50"),
            ("new Date().getTime() > 1600000000000", "true"),
            ("String(5).length", "1"),
        ] {
            check_javascript(&TextTemplate::literal(text)).unwrap();
            let value = evaluate_expression(text, NumberSemantics::JavaScript, &mut scope).unwrap();
            assert_eq!(value.to_string(), expected, "{text}");
        }
        // Number types differ in Groovy.
        assert!(check_script(&TextTemplate::literal("Math.floor(7.9)")).is_err());
        assert!(check_javascript(&TextTemplate::literal("new Date().getDay()")).is_err());
    }

    #[test]
    fn what_is_not_understood_is_reported_before_it_runs() {
        for text in [
            "ctx.getCurrentSampler()",
            "vars.put('a','b')",
            "import java.util.Random;",
            "1 +",
            "x = 3",
        ] {
            assert!(check_script(&TextTemplate::literal(text)).is_err(), "{text}");
        }
    }
}
