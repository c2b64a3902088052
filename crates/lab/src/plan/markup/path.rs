//! XPath 1.0: from a text to an expression, which [`super::evaluate`] gives a value.
//!
//! Names are compared with the prefix that they have in the document. Not there: variables, `id()`, `lang()`,
//! `namespace-uri()` and the namespace axis; what is not there is told when the plan is read.

use std::collections::VecDeque;

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct XPath(pub(super) Expression);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expression {
    Binary(Operator, Box<Expression>, Box<Expression>),
    Negative(Box<Expression>),
    Text(String),
    Number(f64),
    Call(Function, Vec<Expression>),
    Path { from: From, steps: Vec<Step> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Union,
}

/// Where a path begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum From {
    Root,
    Here,
    /// At the nodes of an expression that predicates leave.
    Expression(Box<Expression>, Vec<Expression>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) axis: Axis,
    pub(super) test: Test,
    pub(super) predicates: Vec<Expression>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    Child,
    Descendant,
    DescendantOrSelf,
    Own,
    Parent,
    Ancestor,
    AncestorOrSelf,
    Attribute,
    FollowingSibling,
    PrecedingSibling,
    Following,
    Preceding,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Test {
    /// `*`.
    Any,
    Name(String),
    /// `prefix:*`.
    Prefix(String),
    Node,
    Text,
    Comment,
    Instruction(Option<String>),
}

macro_rules! functions {
    ($($name:literal $variant:ident $least:literal $most:literal $first:literal,)*) => {
        /// What can be called.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($variant,)* }

        impl Function {
            /// Returns the function, how many arguments it takes, and whether XPath 1.0 has it.
            fn find(name: &str) -> Option<(Self, usize, usize, bool)> {
                match name { $($name => Some((Self::$variant, $least, $most, $first)),)* _ => None }
            }
        }
    };
}

functions! {
    "last" Last 0 0 true,
    "position" Position 0 0 true,
    "count" Count 1 1 true,
    "name" Name 0 1 true,
    "local-name" LocalName 0 1 true,
    "string" Text 0 1 true,
    "concat" Concat 2 64 true,
    "starts-with" StartsWith 2 2 true,
    "contains" Contains 2 2 true,
    "substring-before" Before 2 2 true,
    "substring-after" After 2 2 true,
    "substring" Substring 2 3 true,
    "string-length" Length 0 1 true,
    "normalize-space" Normalize 0 1 true,
    "translate" Translate 3 3 true,
    "boolean" Boolean 1 1 true,
    "not" Not 1 1 true,
    "true" True 0 0 true,
    "false" False 0 0 true,
    "number" Number 0 1 true,
    "sum" Sum 1 1 true,
    "floor" Floor 1 1 true,
    "ceiling" Ceiling 1 1 true,
    "round" Round 1 1 true,
    "ends-with" EndsWith 2 2 false,
    "lower-case" Lower 1 1 false,
    "upper-case" Upper 1 1 false,
    "string-join" Join 2 2 false,
    "matches" Matches 2 2 false,
}

/// Deepest nesting of an expression.
const DEEPEST: usize = 60;

impl XPath {
    /// Reads an expression of XPath 1.0; with `is_second`, some functions of XPath 2.0 as well.
    ///
    /// # Errors
    /// What is not understood, or not supported.
    pub(in super::super) fn parse(text: &str, is_second: bool) -> Result<Self, String> {
        let read = || {
            let tokens = tokens(text)?;
            let mut parser = Parser { tokens, is_second, depth: 0 };
            let expression = parser.expression()?;
            match parser.tokens.front() {
                None => Ok(Self(expression)),
                Some(token) => Err(format!("`{}` is not expected", token.shown())),
            }
        };
        read().map_err(|fault: String| format!("XPath `{text}`: {fault}"))
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Text(String),
    Number(f64),
    /// A name, with its prefix if it has one; `*` as such.
    Name(String),
    Sign(&'static str),
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Text(text) => format!("'{text}'"),
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name.clone(),
            Self::Sign(sign) => (*sign).to_owned(),
        }
    }
}

const SIGNS: [&str; 20] = [
    "::", "//", "..", "!=", "<=", ">=", "(", ")", "[", "]", ".", "@", ",", "/", "|", "+", "-", "=",
    "<", ">",
];

fn tokens(text: &str) -> Result<VecDeque<Token>, String> {
    let mut tokens = VecDeque::new();
    let mut rest = text.trim_start();
    while let Some(letter) = rest.chars().next() {
        let after = rest.get(1..).unwrap_or_default();
        let starts_number = letter.is_ascii_digit()
            || (letter == '.' && after.starts_with(|next: char| next.is_ascii_digit()));
        if letter == '"' || letter == '\'' {
            let end = after.find(letter).ok_or("a quote is not closed")?;
            tokens.push_back(Token::Text(after.get(..end).unwrap_or_default().to_owned()));
            rest = after.get(end + 1..).unwrap_or_default();
        } else if starts_number {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let digits = rest.get(..end).unwrap_or_default();
            tokens.push_back(Token::Number(
                digits.parse().map_err(|_| format!("`{digits}` is no number"))?,
            ));
            rest = rest.get(end..).unwrap_or_default();
        } else if letter == '$' {
            return Err("variables of XPath are not supported".to_owned());
        } else if letter == '*' {
            tokens.push_back(Token::Name("*".to_owned()));
            rest = after;
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push_back(Token::Sign(sign));
            rest = rest.get(sign.len()..).unwrap_or_default();
        } else if letter.is_alphabetic() || letter == '_' {
            let length = name_length(rest);
            tokens.push_back(Token::Name(rest.get(..length).unwrap_or_default().to_owned()));
            rest = rest.get(length..).unwrap_or_default();
        } else {
            return Err(format!("`{rest}` is not understood"));
        }
        rest = rest.trim_start();
    }
    Ok(tokens)
}

/// Returns the length of a name, `prefix:name` and `prefix:*` included, but not of `axis::`.
fn name_length(text: &str) -> usize {
    let part = |text: &str| {
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        text.find(|c| !is_part(c)).unwrap_or(text.len())
    };
    let first = part(text);
    let rest = text.get(first..).unwrap_or_default();
    let Some(local) = rest.strip_prefix(':').filter(|local| !local.starts_with(':')) else {
        return first;
    };
    if local.starts_with('*') { first + 2 } else { first + 1 + part(local) }
}

struct Parser {
    tokens: VecDeque<Token>,
    is_second: bool,
    depth: usize,
}

impl Parser {
    fn take(&mut self, sign: &str) -> bool {
        let found = matches!(self.tokens.front(), Some(Token::Sign(known)) if *known == sign);
        if found {
            self.tokens.pop_front();
        }
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) { Ok(()) } else { Err(format!("`{sign}` is missing")) }
    }

    fn expression(&mut self) -> Result<Expression, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
        let found = self.binary(0);
        self.depth -= 1;
        found
    }

    /// Reads operators of a level and of all that bind tighter.
    fn binary(&mut self, level: usize) -> Result<Expression, String> {
        const LEVELS: [&[(&str, Operator)]; 6] = [
            &[("or", Operator::Or)],
            &[("and", Operator::And)],
            &[("=", Operator::Equal), ("!=", Operator::NotEqual)],
            &[
                ("<=", Operator::LessOrEqual),
                (">=", Operator::GreaterOrEqual),
                ("<", Operator::Less),
                (">", Operator::Greater),
            ],
            &[("+", Operator::Add), ("-", Operator::Subtract)],
            &[("*", Operator::Multiply), ("div", Operator::Divide), ("mod", Operator::Remainder)],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        loop {
            let found = operators.iter().find(|(word, _)| match self.tokens.front() {
                Some(Token::Sign(sign)) => sign == word,
                Some(Token::Name(name)) => name == word,
                _ => false,
            });
            let Some((_, operator)) = found else { return Ok(left) };
            self.tokens.pop_front();
            let right = self.binary(level + 1)?;
            left = Expression::Binary(*operator, Box::new(left), Box::new(right));
        }
    }

    fn unary(&mut self) -> Result<Expression, String> {
        let mut is_negative = false;
        while self.take("-") {
            is_negative = !is_negative;
        }
        let mut found = self.path()?;
        while self.take("|") {
            found = Expression::Binary(Operator::Union, Box::new(found), Box::new(self.path()?));
        }
        Ok(if is_negative { Expression::Negative(Box::new(found)) } else { found })
    }

    fn path(&mut self) -> Result<Expression, String> {
        let mut steps = Vec::new();
        let from = if self.take("//") {
            steps.push(anywhere());
            From::Root
        } else if self.take("/") {
            if !self.starts_step() {
                return Ok(Expression::Path { from: From::Root, steps });
            }
            From::Root
        } else if self.starts_primary() {
            let primary = self.primary()?;
            let predicates = self.predicates()?;
            let goes_on = match self.tokens.front() {
                Some(Token::Sign(sign)) => *sign == "/" || *sign == "//",
                _ => false,
            };
            if predicates.is_empty() && !goes_on {
                return Ok(primary);
            }
            let from = From::Expression(Box::new(primary), predicates);
            if self.take("//") {
                steps.push(anywhere());
            } else if !self.take("/") {
                return Ok(Expression::Path { from, steps });
            }
            from
        } else {
            From::Here
        };
        loop {
            steps.push(self.step()?);
            if self.take("//") {
                steps.push(anywhere());
            } else if !self.take("/") {
                return Ok(Expression::Path { from, steps: shorten(steps) });
            }
        }
    }

    fn starts_step(&self) -> bool {
        match self.tokens.front() {
            Some(Token::Name(_)) => true,
            Some(Token::Sign(sign)) => matches!(*sign, "." | ".." | "@"),
            _ => false,
        }
    }

    fn starts_primary(&self) -> bool {
        match self.tokens.front() {
            Some(Token::Text(_) | Token::Number(_) | Token::Sign("(")) => true,
            Some(Token::Name(name)) => {
                matches!(self.tokens.get(1), Some(Token::Sign("("))) && !is_node_type(name)
            }
            _ => false,
        }
    }

    fn primary(&mut self) -> Result<Expression, String> {
        match self.tokens.pop_front() {
            Some(Token::Text(text)) => Ok(Expression::Text(text)),
            Some(Token::Number(number)) => Ok(Expression::Number(number)),
            Some(Token::Sign("(")) => {
                let inner = self.expression()?;
                self.expect(")")?;
                Ok(inner)
            }
            Some(Token::Name(name)) => self.call(&name),
            _ => Err("an expression is missing".to_owned()),
        }
    }

    fn call(&mut self, name: &str) -> Result<Expression, String> {
        let bare = name.strip_prefix("fn:").unwrap_or(name);
        let (function, least, most, _) = Function::find(bare)
            .filter(|(.., is_first)| *is_first || self.is_second)
            .ok_or_else(|| format!("function `{name}` is not supported"))?;
        self.expect("(")?;
        let mut arguments = Vec::new();
        if !self.take(")") {
            loop {
                arguments.push(self.expression()?);
                if !self.take(",") {
                    break;
                }
            }
            self.expect(")")?;
        }
        if !(least..=most).contains(&arguments.len()) {
            return Err(format!("`{name}` does not take {} arguments", arguments.len()));
        }
        Ok(Expression::Call(function, arguments))
    }

    fn predicates(&mut self) -> Result<Vec<Expression>, String> {
        let mut predicates = Vec::new();
        while self.take("[") {
            predicates.push(self.expression()?);
            self.expect("]")?;
        }
        Ok(predicates)
    }

    fn step(&mut self) -> Result<Step, String> {
        if self.take(".") {
            return Ok(Step { axis: Axis::Own, test: Test::Node, predicates: Vec::new() });
        }
        if self.take("..") {
            return Ok(Step { axis: Axis::Parent, test: Test::Node, predicates: Vec::new() });
        }
        let mut axis = Axis::Child;
        if self.take("@") {
            axis = Axis::Attribute;
        } else if let (Some(Token::Name(name)), Some(Token::Sign("::"))) =
            (self.tokens.front(), self.tokens.get(1))
        {
            axis = find_axis(name).ok_or_else(|| format!("axis `{name}` is not supported"))?;
            self.tokens.drain(..2);
        }
        let test = self.test()?;
        Ok(Step { axis, test, predicates: self.predicates()? })
    }

    fn test(&mut self) -> Result<Test, String> {
        let Some(Token::Name(name)) = self.tokens.pop_front() else {
            return Err("a name is missing".to_owned());
        };
        if is_node_type(&name) && self.take("(") {
            let target = match self.tokens.front() {
                Some(Token::Text(text)) if name == "processing-instruction" => Some(text.clone()),
                _ => None,
            };
            if target.is_some() {
                self.tokens.pop_front();
            }
            self.expect(")")?;
            return Ok(match name.as_str() {
                "text" => Test::Text,
                "comment" => Test::Comment,
                "node" => Test::Node,
                _ => Test::Instruction(target),
            });
        }
        Ok(match name.strip_suffix(":*") {
            Some(prefix) => Test::Prefix(prefix.to_owned()),
            None if name == "*" => Test::Any,
            None => Test::Name(name),
        })
    }
}

fn is_node_type(name: &str) -> bool {
    matches!(name, "text" | "node" | "comment" | "processing-instruction")
}

/// Returns the step that `//` stands for.
fn anywhere() -> Step {
    Step { axis: Axis::DescendantOrSelf, test: Test::Node, predicates: Vec::new() }
}

/// Makes one step of `//name`, where no predicate counts places among siblings.
fn shorten(steps: Vec<Step>) -> Vec<Step> {
    let mut short: Vec<Step> = Vec::new();
    for step in steps {
        let is_plain = step.axis == Axis::Child && step.predicates.is_empty();
        match short.last_mut() {
            Some(last) if is_plain && *last == anywhere() => {
                *last = Step { axis: Axis::Descendant, ..step };
            }
            _ => short.push(step),
        }
    }
    short
}

fn find_axis(name: &str) -> Option<Axis> {
    Some(match name {
        "child" => Axis::Child,
        "descendant" => Axis::Descendant,
        "descendant-or-self" => Axis::DescendantOrSelf,
        "self" => Axis::Own,
        "parent" => Axis::Parent,
        "ancestor" => Axis::Ancestor,
        "ancestor-or-self" => Axis::AncestorOrSelf,
        "attribute" => Axis::Attribute,
        "following-sibling" => Axis::FollowingSibling,
        "preceding-sibling" => Axis::PrecedingSibling,
        "following" => Axis::Following,
        "preceding" => Axis::Preceding,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_path_is_told() {
        let check = |text: &str, expected: &str| {
            let fault = XPath::parse(text, false).unwrap_err();
            assert!(fault.contains(expected), "{text}: {fault}");
        };
        check("", "a name is missing");
        check("//", "a name is missing");
        check("/a[", "a name is missing");
        check("/a[1", "`]` is missing");
        check("$x", "variables");
        check("id('x')", "function `id` is not supported");
        check("lower-case('X')", "is not supported");
        check("concat('x')", "does not take 1 arguments");
        check("namespace::x", "axis");
        check("a b", "`b` is not expected");
        check("'x", "quote");
        check(&"(".repeat(100), "too deeply");
        assert!(XPath::parse("lower-case('X')", true).is_ok());
    }
}
