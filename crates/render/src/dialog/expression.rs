//! The expressions of Granite: `${…}` in texts, in the syntax of Java's Unified Expression Language.
//!
//! Input: a text, and the values of names. Output: the value, or `None` if the text cannot be parsed or uses a name or
//! function without a value here; the caller then shows what it would have hidden.
//!
//! Supported: literals, `.name` and `['name']`, `empty`, `not` and `!`, `and`, `or`, `eq`, `ne`, `lt`, `gt`, `le`, `ge`
//! and their symbols, `? :`, parentheses, and the functions of Granite that compare texts and paths.

use tympan_content::{Property, Value, ValueType};

/// A value of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum GraniteValue {
    Null,
    Boolean(bool),
    Number(f64),
    Text(String),
    List(Vec<String>),
}

impl GraniteValue {
    /// Returns the truth of the value: `true`, or the text `true`.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Boolean(truth) => *truth,
            Self::Text(text) => text.eq_ignore_ascii_case("true"),
            Self::List(texts) => texts.first().is_some_and(|text| text == "true"),
            Self::Null | Self::Number(_) => false,
        }
    }

    /// Returns the value as text; empty for no value.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Null => String::new(),
            Self::Boolean(truth) => truth.to_string(),
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text.clone(),
            Self::List(texts) => texts.join(","),
        }
    }

    /// Returns the value as a property: whole numbers and others as texts; `None` for no value.
    pub(super) fn into_property(self) -> Option<Property> {
        Some(match self {
            Self::Null => return None,
            Self::Boolean(truth) => Property::Single(Value::Boolean(truth)),
            Self::Number(_) | Self::Text(_) => Property::text(self.to_text()),
            Self::List(texts) => {
                Property::List(ValueType::String, texts.into_iter().map(Value::String).collect())
            }
        })
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Text(text) => text.is_empty(),
            Self::List(texts) => texts.is_empty(),
            Self::Boolean(_) | Self::Number(_) => false,
        }
    }

    fn to_number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            other => other.to_text().parse().ok(),
        }
    }

    /// Compares as the language does: numbers and truths with texts by their meaning.
    fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Null, _) | (_, Self::Null) => false,
            (Self::Boolean(_), _) | (_, Self::Boolean(_)) => self.is_true() == other.is_true(),
            (Self::Number(_), _) | (_, Self::Number(_)) => self.to_number() == other.to_number(),
            _ => self.to_text() == other.to_text(),
        }
    }
}

/// Returns the value of a name, whose parts are joined by dots, such as `cqDesign.titleHidden`; `None` if it has none
/// here.
pub(super) type NameLookup<'a> = dyn Fn(&[String]) -> Option<GraniteValue> + 'a;

/// Maximum length of an expression in bytes.
const MAX_EXPRESSION_BYTES: usize = 4096;
/// Maximum depth of nested operators and parentheses.
const MAX_DEPTH: usize = 64;

/// Evaluates a text. A text that is one expression has its value; in others, the values of expressions are texts.
pub(super) fn evaluate_text(text: &str, names: &NameLookup<'_>) -> Option<GraniteValue> {
    if text.len() > MAX_EXPRESSION_BYTES {
        return None;
    }
    let mut parts: Vec<GraniteValue> = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if !before.is_empty() {
            parts.push(GraniteValue::Text(before.to_owned()));
        }
        let mut parser =
            GraniteExpressionParser { tokens: GraniteTokens::new(after), names, depth: 0 };
        let value = parser.parse_ternary()?;
        rest = parser.tokens.rest_after("}")?;
        parts.push(value);
    }
    if !rest.is_empty() {
        parts.push(GraniteValue::Text(rest.to_owned()));
    }
    match parts.len() {
        1 => parts.pop(),
        _ => {
            let texts: Vec<String> = parts.iter().map(GraniteValue::to_text).collect();
            Some(GraniteValue::Text(texts.concat()))
        }
    }
}

/// A token: a symbol, a name, a number, or a quoted text.
#[derive(Debug, Clone, PartialEq)]
enum GraniteToken<'a> {
    Symbol(&'a str),
    Name(&'a str),
    Number(f64),
    Text(String),
}

/// The tokens of a text, read one at a time.
struct GraniteTokens<'a> {
    rest: &'a str,
}

impl<'a> GraniteTokens<'a> {
    const SYMBOLS: [&'static str; 20] = [
        "&&", "||", "==", "!=", "<=", ">=", "!", "<", ">", "?", ":", "(", ")", "[", "]", ".", ",",
        "}", "+", "-",
    ];

    fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    /// Returns the next token and the text after it.
    fn peek(&self) -> Option<(GraniteToken<'a>, &'a str)> {
        let text = self.rest.trim_start();
        let first = text.chars().next()?;
        if first == '\'' || first == '"' {
            return read_quoted(text, first);
        }
        let end_of = |is_part: fn(char) -> bool| {
            text.find(|character| !is_part(character)).unwrap_or(text.len())
        };
        if first.is_ascii_digit() {
            let (number, rest) = text.split_at(end_of(|part| part.is_ascii_digit() || part == '.'));
            return Some((GraniteToken::Number(number.parse().ok()?), rest));
        }
        if first.is_alphabetic() || first == '_' {
            let (name, rest) = text.split_at(end_of(|part| part.is_alphanumeric() || part == '_'));
            return Some((GraniteToken::Name(name), rest));
        }
        let symbol = Self::SYMBOLS.into_iter().find(|symbol| text.starts_with(symbol))?;
        let (symbol, rest) = text.split_at(symbol.len());
        Some((GraniteToken::Symbol(symbol), rest))
    }

    /// Takes the next token if it is one of these symbols or names.
    fn take(&mut self, words: &[&str]) -> Option<&'a str> {
        match self.peek()? {
            (GraniteToken::Symbol(word) | GraniteToken::Name(word), rest)
                if words.contains(&word) =>
            {
                self.rest = rest;
                Some(word)
            }
            _ => None,
        }
    }

    /// Returns the text after a symbol that comes next.
    fn rest_after(mut self, symbol: &str) -> Option<&'a str> {
        self.take(&[symbol])?;
        Some(self.rest)
    }
}

/// Reads a quoted text, in which a backslash escapes the next character.
fn read_quoted(text: &str, quote: char) -> Option<(GraniteToken<'_>, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => value.push(characters.next()?.1),
            character if character == quote => {
                return Some((GraniteToken::Text(value), text.get(at + quote.len_utf8()..)?));
            }
            character => value.push(character),
        }
    }
    None
}

/// Evaluates an expression while it is parsed.
///
/// An operand without a value here makes the whole expression unknown, unless the other operand of `and` or `or`
/// decides.
struct GraniteExpressionParser<'a> {
    tokens: GraniteTokens<'a>,
    names: &'a NameLookup<'a>,
    depth: usize,
}

/// A value, or `None` if it is unknown here; the outer option is `None` for a syntax error.
type ParsedValue = Option<Option<GraniteValue>>;

impl GraniteExpressionParser<'_> {
    fn parse_ternary(&mut self) -> Option<GraniteValue> {
        self.ternary()?
    }

    fn ternary(&mut self) -> ParsedValue {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let condition = self.either()?;
        let value = if self.tokens.take(&["?"]).is_some() {
            let positive = self.ternary()?;
            self.tokens.take(&[":"])?;
            let negative = self.ternary()?;
            condition.and_then(|condition| if condition.is_true() { positive } else { negative })
        } else {
            condition
        };
        self.depth -= 1;
        Some(value)
    }

    fn either(&mut self) -> ParsedValue {
        let mut value = self.both()?;
        while self.tokens.take(&["||", "or"]).is_some() {
            value = decide(value, self.both()?, true);
        }
        Some(value)
    }

    fn both(&mut self) -> ParsedValue {
        let mut value = self.comparison()?;
        while self.tokens.take(&["&&", "and"]).is_some() {
            value = decide(value, self.comparison()?, false);
        }
        Some(value)
    }

    fn comparison(&mut self) -> ParsedValue {
        const OPERATORS: [&str; 12] =
            ["==", "eq", "!=", "ne", "<=", "le", ">=", "ge", "<", "lt", ">", "gt"];
        let mut value = self.unary()?;
        while let Some(operator) = self.tokens.take(&OPERATORS) {
            let other = self.unary()?;
            value = value.zip(other).and_then(|(left, right)| compare(operator, &left, &right));
        }
        Some(value)
    }

    fn unary(&mut self) -> ParsedValue {
        let Some(operator) = self.tokens.take(&["!", "not", "empty"]) else {
            return self.operand();
        };
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = self.unary()?;
        self.depth -= 1;
        Some(value.map(|value| {
            GraniteValue::Boolean(match operator {
                "empty" => value.is_empty(),
                _ => !value.is_true(),
            })
        }))
    }

    fn operand(&mut self) -> ParsedValue {
        let (token, rest) = self.tokens.peek()?;
        self.tokens.rest = rest;
        match token {
            GraniteToken::Number(number) => Some(Some(GraniteValue::Number(number))),
            GraniteToken::Text(text) => Some(Some(GraniteValue::Text(text))),
            GraniteToken::Name("true") => Some(Some(GraniteValue::Boolean(true))),
            GraniteToken::Name("false") => Some(Some(GraniteValue::Boolean(false))),
            GraniteToken::Name("null") => Some(Some(GraniteValue::Null)),
            GraniteToken::Name(name) => self.name_or_call(name.to_owned()),
            GraniteToken::Symbol("(") => {
                let value = self.ternary()?;
                self.tokens.take(&[")"])?;
                Some(value)
            }
            GraniteToken::Symbol("-") => {
                let value = self.operand()?.and_then(|value| value.to_number());
                Some(value.map(|number| GraniteValue::Number(-number)))
            }
            GraniteToken::Symbol(_) => None,
        }
    }

    fn name_or_call(&mut self, name: String) -> ParsedValue {
        // A name and a colon are the prefix of a function only before a name and a parenthesis; otherwise the colon
        // belongs to a condition.
        let before_colon = self.tokens.rest;
        if self.tokens.take(&[":"]).is_some()
            && let Some((GraniteToken::Name(function), rest)) = self.tokens.peek()
            && rest.trim_start().starts_with('(')
        {
            self.tokens.rest = rest;
            return self.call(&format!("{name}:{function}"));
        }
        self.tokens.rest = before_colon;
        let mut parts = vec![name];
        let mut is_known = true;
        loop {
            if self.tokens.take(&["."]).is_some() {
                let (GraniteToken::Name(part), rest) = self.tokens.peek()? else { return None };
                self.tokens.rest = rest;
                parts.push(part.to_owned());
            } else if self.tokens.take(&["["]).is_some() {
                match self.ternary()? {
                    Some(part) => parts.push(part.to_text()),
                    None => is_known = false,
                }
                self.tokens.take(&["]"])?;
            } else if self.tokens.take(&["("]).is_some() {
                // A method of an object: not known here, but its arguments are parsed.
                self.arguments()?;
                is_known = false;
            } else {
                break;
            }
        }
        Some(if is_known { (self.names)(&parts) } else { None })
    }

    fn call(&mut self, function: &str) -> ParsedValue {
        self.tokens.take(&["("])?;
        let arguments = self.arguments()?;
        let Some(arguments) = arguments.into_iter().collect::<Option<Vec<_>>>() else {
            return Some(None);
        };
        Some(call_function(function, &arguments))
    }

    /// Parses arguments up to the closing parenthesis.
    fn arguments(&mut self) -> Option<Vec<Option<GraniteValue>>> {
        let mut arguments = Vec::new();
        if self.tokens.take(&[")"]).is_some() {
            return Some(arguments);
        }
        loop {
            arguments.push(self.ternary()?);
            if self.tokens.take(&[")"]).is_some() {
                return Some(arguments);
            }
            self.tokens.take(&[","])?;
        }
    }
}

/// Joins the operands of `or` (`deciding` is true) or `and`.
fn decide(
    left: Option<GraniteValue>,
    right: Option<GraniteValue>,
    deciding: bool,
) -> Option<GraniteValue> {
    let (left, right) = (left.map(|left| left.is_true()), right.map(|right| right.is_true()));
    if left == Some(deciding) || right == Some(deciding) {
        return Some(GraniteValue::Boolean(deciding));
    }
    left.zip(right).map(|_| GraniteValue::Boolean(!deciding))
}

fn compare(operator: &str, left: &GraniteValue, right: &GraniteValue) -> Option<GraniteValue> {
    let truth = match operator {
        "==" | "eq" => left.equals(right),
        "!=" | "ne" => !left.equals(right),
        operator => {
            let ordering = match left.to_number().zip(right.to_number()) {
                Some((left, right)) => left.partial_cmp(&right)?,
                None => left.to_text().cmp(&right.to_text()),
            };
            match operator {
                "<" | "lt" => ordering.is_lt(),
                ">" | "gt" => ordering.is_gt(),
                "<=" | "le" => ordering.is_le(),
                _ => ordering.is_ge(),
            }
        }
    };
    Some(GraniteValue::Boolean(truth))
}

/// Calls a function of Granite; `None` if there is none of this name.
fn call_function(name: &str, arguments: &[GraniteValue]) -> Option<GraniteValue> {
    let texts: Vec<String> = arguments.iter().map(GraniteValue::to_text).collect();
    Some(match (name, texts.as_slice()) {
        ("granite:contains" | "fn:contains", [text, part]) => {
            GraniteValue::Boolean(text.contains(part.as_str()))
        }
        ("granite:containsIgnoreCase" | "fn:containsIgnoreCase", [text, part]) => {
            GraniteValue::Boolean(text.to_lowercase().contains(&part.to_lowercase()))
        }
        ("fn:startsWith", [text, part]) => GraniteValue::Boolean(text.starts_with(part.as_str())),
        ("fn:endsWith", [text, part]) => GraniteValue::Boolean(text.ends_with(part.as_str())),
        ("granite:concat", _) => GraniteValue::Text(texts.concat()),
        ("granite:relativeParent", [path, levels]) => {
            let mut path = path.as_str();
            for _ in 0..levels.parse::<u16>().ok()? {
                path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            }
            GraniteValue::Text(path.to_owned())
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluate(text: &str) -> Option<GraniteValue> {
        evaluate_text(text, &|parts: &[String]| {
            Some(match parts.join(".").as_str() {
                "cqDesign.hidden" => GraniteValue::Boolean(true),
                "cqDesign.types" => GraniteValue::List(vec!["h1".into(), "h2".into()]),
                "cqDesign.none" | "param.item" => GraniteValue::Null,
                "requestPathInfo.suffix" => GraniteValue::Text("/content/a/b".into()),
                "count" => GraniteValue::Number(3.0),
                _ => return None,
            })
        })
    }

    #[test]
    fn conditions_are_evaluated() {
        for (text, expected) in [
            ("${cqDesign.hidden}", Some(true)),
            ("${!cqDesign.hidden}", Some(false)),
            ("${cqDesign['hidden']}", Some(true)),
            ("${not empty cqDesign.types}", Some(true)),
            ("${empty cqDesign.none and empty param.item}", Some(true)),
            ("${!cqDesign.hidden or (empty cqDesign.none && empty cqDesign.types)}", Some(false)),
            ("${cqDesign.none == 'x' || count eq 3}", Some(true)),
            ("${count gt 3}", Some(false)),
            ("${count >= -3}", Some(true)),
            ("${cqDesign.hidden ? false : true}", Some(false)),
            ("${granite:contains(requestPathInfo.suffix, '/a')}", Some(true)),
            ("${granite:relativeParent(requestPathInfo.suffix, 1) == '/content/a'}", Some(true)),
            ("true", Some(true)),
            ("false", Some(false)),
            ("", Some(false)),
            // A name without a value here leaves the condition undecided, unless the other side decides.
            ("${header['User-Agent']}", None),
            ("${header.x and cqDesign.hidden}", None),
            ("${header.x or cqDesign.hidden}", Some(true)),
            ("${header.x && !cqDesign.hidden}", Some(false)),
            ("${unknown:call(1)}", None),
            ("${requestPathInfo.suffix.length()}", None),
            ("${", None),
            ("${cqDesign.}", None),
            ("${'open}", None),
        ] {
            assert_eq!(evaluate(text).map(|value| value.is_true()), expected, "{text}");
        }
    }

    #[test]
    fn expressions_in_texts_become_texts() {
        for (text, expected) in [
            ("${empty param.item ? requestPathInfo.suffix : param.item}", "/content/a/b"),
            ("${requestPathInfo.suffix}/c${count}", "/content/a/b/c3"),
            ("/apps/x", "/apps/x"),
            ("${granite:concat('a', \"b\\\"\")}", "ab\""),
        ] {
            assert_eq!(evaluate(text).map(|value| value.to_text()).as_deref(), Some(expected));
        }
    }

    #[test]
    fn long_and_deep_expressions_are_refused() {
        assert_eq!(evaluate(&format!("${{{}true{}}}", "(".repeat(500), ")".repeat(500))), None);
        assert_eq!(evaluate(&format!("${{{}true}}", "!".repeat(3000))), None);
        assert_eq!(evaluate(&"x".repeat(5000)), None);
    }
}
