//! XPath 1.0: parses a text to an expression, which [`super::xpath_evaluation`] evaluates.
//!
//! Names are compared with the prefix used in the document. Unsupported: variables, `id()`, `lang()`, `namespace-uri()`
//! and the namespace axis; they are reported when the plan is read.

use std::collections::VecDeque;

/// An XPath expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct XPath(pub(super) XPathExpression);

#[derive(Debug, Clone, PartialEq)]
pub(super) enum XPathExpression {
    Binary(XPathOperator, Box<XPathExpression>, Box<XPathExpression>),
    Negative(Box<XPathExpression>),
    Text(String),
    Number(f64),
    Call(Function, Vec<XPathExpression>),
    Path { start: XPathStart, steps: Vec<XPathLocationStep> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum XPathOperator {
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

/// The start of a path.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum XPathStart {
    Root,
    ContextNode,
    /// The nodes of an expression, filtered by predicates.
    Expression(Box<XPathExpression>, Vec<XPathExpression>),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct XPathLocationStep {
    pub(super) axis: XPathAxis,
    pub(super) test: XPathNodeTest,
    pub(super) predicates: Vec<XPathExpression>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum XPathAxis {
    Child,
    Descendant,
    DescendantOrSelf,
    SelfNode,
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
pub(super) enum XPathNodeTest {
    /// `*`.
    AnyName,
    Name(String),
    /// `prefix:*`.
    AnyNameWithPrefix(String),
    Node,
    Text,
    Comment,
    Instruction(Option<String>),
}

macro_rules! functions {
    ($($name:literal $variant:ident $least:literal $most:literal $first:literal,)*) => {
        /// The supported functions.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Function { $($variant,)* }

        impl Function {
            /// Returns the function, its minimum and maximum number of arguments, and whether XPath 1.0 has it.
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

/// Maximum nesting depth of an expression.
const MAX_EXPRESSION_DEPTH: usize = 60;

impl XPath {
    /// Parses an XPath 1.0 expression; with `is_second`, some functions of XPath 2.0 as well.
    ///
    /// # Errors
    /// The invalid or unsupported part.
    pub(crate) fn parse(text: &str, is_second: bool) -> Result<Self, String> {
        let read = || {
            let tokens = tokenize(text)?;
            let mut parser = XPathExpressionParser { tokens, is_xpath2: is_second, depth: 0 };
            let expression = parser.parse_expression()?;
            match parser.tokens.front() {
                None => Ok(Self(expression)),
                Some(token) => Err(format!("unexpected `{}`", token.display_text())),
            }
        };
        read().map_err(|fault: String| format!("XPath `{text}`: {fault}"))
    }
}

#[derive(Debug, Clone, PartialEq)]
enum XPathToken {
    Text(String),
    Number(f64),
    /// A name, with its prefix if it has one; `*` is literal.
    Name(String),
    Symbol(&'static str),
}

impl XPathToken {
    fn display_text(&self) -> String {
        match self {
            Self::Text(text) => format!("'{text}'"),
            Self::Number(number) => number.to_string(),
            Self::Name(name) => name.clone(),
            Self::Symbol(sign) => (*sign).to_owned(),
        }
    }
}

const SYMBOLS: [&str; 20] = [
    "::", "//", "..", "!=", "<=", ">=", "(", ")", "[", "]", ".", "@", ",", "/", "|", "+", "-", "=",
    "<", ">",
];

fn tokenize(text: &str) -> Result<VecDeque<XPathToken>, String> {
    let mut tokens = VecDeque::new();
    let mut rest = text.trim_start();
    while let Some(letter) = rest.chars().next() {
        let after = rest.get(1..).unwrap_or_default();
        let starts_number = letter.is_ascii_digit()
            || (letter == '.' && after.starts_with(|next: char| next.is_ascii_digit()));
        if letter == '"' || letter == '\'' {
            let end = after.find(letter).ok_or("unterminated string")?;
            tokens.push_back(XPathToken::Text(after.get(..end).unwrap_or_default().to_owned()));
            rest = after.get(end + 1..).unwrap_or_default();
        } else if starts_number {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let digits = rest.get(..end).unwrap_or_default();
            tokens.push_back(XPathToken::Number(
                digits.parse().map_err(|_| format!("`{digits}` is not a number"))?,
            ));
            rest = rest.get(end..).unwrap_or_default();
        } else if letter == '$' {
            return Err("XPath variables are not supported".to_owned());
        } else if letter == '*' {
            tokens.push_back(XPathToken::Name("*".to_owned()));
            rest = after;
        } else if let Some(sign) = SYMBOLS.iter().find(|sign| rest.starts_with(**sign)) {
            tokens.push_back(XPathToken::Symbol(sign));
            rest = rest.get(sign.len()..).unwrap_or_default();
        } else if letter.is_alphabetic() || letter == '_' {
            let length = qualified_name_length(rest);
            tokens.push_back(XPathToken::Name(rest.get(..length).unwrap_or_default().to_owned()));
            rest = rest.get(length..).unwrap_or_default();
        } else {
            return Err(format!("cannot parse `{rest}`"));
        }
        rest = rest.trim_start();
    }
    Ok(tokens)
}

/// Returns the length of a name, including `prefix:name` and `prefix:*`, but not `axis::`.
fn qualified_name_length(text: &str) -> usize {
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

struct XPathExpressionParser {
    tokens: VecDeque<XPathToken>,
    is_xpath2: bool,
    depth: usize,
}

impl XPathExpressionParser {
    fn accept_symbol(&mut self, sign: &str) -> bool {
        let is_match =
            matches!(self.tokens.front(), Some(XPathToken::Symbol(known)) if *known == sign);
        if is_match {
            self.tokens.pop_front();
        }
        is_match
    }

    fn expect_symbol(&mut self, sign: &str) -> Result<(), String> {
        if self.accept_symbol(sign) { Ok(()) } else { Err(format!("`{sign}` is missing")) }
    }

    fn parse_expression(&mut self) -> Result<XPathExpression, String> {
        self.depth += 1;
        if self.depth > MAX_EXPRESSION_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        let expression = self.parse_binary(0);
        self.depth -= 1;
        expression
    }

    /// Parses operators of a precedence level and of all higher ones.
    fn parse_binary(&mut self, level: usize) -> Result<XPathExpression, String> {
        const LEVELS: [&[(&str, XPathOperator)]; 6] = [
            &[("or", XPathOperator::Or)],
            &[("and", XPathOperator::And)],
            &[("=", XPathOperator::Equal), ("!=", XPathOperator::NotEqual)],
            &[
                ("<=", XPathOperator::LessOrEqual),
                (">=", XPathOperator::GreaterOrEqual),
                ("<", XPathOperator::Less),
                (">", XPathOperator::Greater),
            ],
            &[("+", XPathOperator::Add), ("-", XPathOperator::Subtract)],
            &[
                ("*", XPathOperator::Multiply),
                ("div", XPathOperator::Divide),
                ("mod", XPathOperator::Remainder),
            ],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.parse_unary() };
        let mut left = self.parse_binary(level + 1)?;
        loop {
            let entry = operators.iter().find(|(symbol, _)| match self.tokens.front() {
                Some(XPathToken::Symbol(sign)) => sign == symbol,
                Some(XPathToken::Name(name)) => name == symbol,
                _ => false,
            });
            let Some((_, operator)) = entry else { return Ok(left) };
            self.tokens.pop_front();
            let right = self.parse_binary(level + 1)?;
            left = XPathExpression::Binary(*operator, Box::new(left), Box::new(right));
        }
    }

    fn parse_unary(&mut self) -> Result<XPathExpression, String> {
        let mut is_negative = false;
        while self.accept_symbol("-") {
            is_negative = !is_negative;
        }
        let mut expression = self.parse_path()?;
        while self.accept_symbol("|") {
            expression = XPathExpression::Binary(
                XPathOperator::Union,
                Box::new(expression),
                Box::new(self.parse_path()?),
            );
        }
        Ok(if is_negative { XPathExpression::Negative(Box::new(expression)) } else { expression })
    }

    fn parse_path(&mut self) -> Result<XPathExpression, String> {
        let mut steps = Vec::new();
        let from = if self.accept_symbol("//") {
            steps.push(descendant_or_self_step());
            XPathStart::Root
        } else if self.accept_symbol("/") {
            if !self.starts_step() {
                return Ok(XPathExpression::Path { start: XPathStart::Root, steps });
            }
            XPathStart::Root
        } else if self.starts_primary() {
            let primary = self.parse_primary()?;
            let predicates = self.parse_predicates()?;
            let goes_on = match self.tokens.front() {
                Some(XPathToken::Symbol(sign)) => *sign == "/" || *sign == "//",
                _ => false,
            };
            if predicates.is_empty() && !goes_on {
                return Ok(primary);
            }
            let from = XPathStart::Expression(Box::new(primary), predicates);
            if self.accept_symbol("//") {
                steps.push(descendant_or_self_step());
            } else if !self.accept_symbol("/") {
                return Ok(XPathExpression::Path { start: from, steps });
            }
            from
        } else {
            XPathStart::ContextNode
        };
        loop {
            steps.push(self.parse_step()?);
            if self.accept_symbol("//") {
                steps.push(descendant_or_self_step());
            } else if !self.accept_symbol("/") {
                return Ok(XPathExpression::Path {
                    start: from,
                    steps: merge_descendant_steps(steps),
                });
            }
        }
    }

    fn starts_step(&self) -> bool {
        match self.tokens.front() {
            Some(XPathToken::Name(_)) => true,
            Some(XPathToken::Symbol(sign)) => matches!(*sign, "." | ".." | "@"),
            _ => false,
        }
    }

    fn starts_primary(&self) -> bool {
        match self.tokens.front() {
            Some(XPathToken::Text(_) | XPathToken::Number(_) | XPathToken::Symbol("(")) => true,
            Some(XPathToken::Name(name)) => {
                matches!(self.tokens.get(1), Some(XPathToken::Symbol("("))) && !is_node_type(name)
            }
            _ => false,
        }
    }

    fn parse_primary(&mut self) -> Result<XPathExpression, String> {
        match self.tokens.pop_front() {
            Some(XPathToken::Text(text)) => Ok(XPathExpression::Text(text)),
            Some(XPathToken::Number(number)) => Ok(XPathExpression::Number(number)),
            Some(XPathToken::Symbol("(")) => {
                let inner = self.parse_expression()?;
                self.expect_symbol(")")?;
                Ok(inner)
            }
            Some(XPathToken::Name(name)) => self.parse_call(&name),
            _ => Err("an expression is missing".to_owned()),
        }
    }

    fn parse_call(&mut self, name: &str) -> Result<XPathExpression, String> {
        let bare = name.strip_prefix("fn:").unwrap_or(name);
        let (function, least, most, _) = Function::find(bare)
            .filter(|(.., is_first)| *is_first || self.is_xpath2)
            .ok_or_else(|| format!("function `{name}` is not supported"))?;
        self.expect_symbol("(")?;
        let mut arguments = Vec::new();
        if !self.accept_symbol(")") {
            loop {
                arguments.push(self.parse_expression()?);
                if !self.accept_symbol(",") {
                    break;
                }
            }
            self.expect_symbol(")")?;
        }
        if !(least..=most).contains(&arguments.len()) {
            return Err(format!("`{name}` does not take {} arguments", arguments.len()));
        }
        Ok(XPathExpression::Call(function, arguments))
    }

    fn parse_predicates(&mut self) -> Result<Vec<XPathExpression>, String> {
        let mut predicates = Vec::new();
        while self.accept_symbol("[") {
            predicates.push(self.parse_expression()?);
            self.expect_symbol("]")?;
        }
        Ok(predicates)
    }

    fn parse_step(&mut self) -> Result<XPathLocationStep, String> {
        if self.accept_symbol(".") {
            return Ok(XPathLocationStep {
                axis: XPathAxis::SelfNode,
                test: XPathNodeTest::Node,
                predicates: Vec::new(),
            });
        }
        if self.accept_symbol("..") {
            return Ok(XPathLocationStep {
                axis: XPathAxis::Parent,
                test: XPathNodeTest::Node,
                predicates: Vec::new(),
            });
        }
        let mut axis = XPathAxis::Child;
        if self.accept_symbol("@") {
            axis = XPathAxis::Attribute;
        } else if let (Some(XPathToken::Name(name)), Some(XPathToken::Symbol("::"))) =
            (self.tokens.front(), self.tokens.get(1))
        {
            axis = find_axis(name).ok_or_else(|| format!("axis `{name}` is not supported"))?;
            self.tokens.drain(..2);
        }
        let test = self.parse_node_test()?;
        Ok(XPathLocationStep { axis, test, predicates: self.parse_predicates()? })
    }

    fn parse_node_test(&mut self) -> Result<XPathNodeTest, String> {
        let Some(XPathToken::Name(name)) = self.tokens.pop_front() else {
            return Err("a name is missing".to_owned());
        };
        if is_node_type(&name) && self.accept_symbol("(") {
            let target = match self.tokens.front() {
                Some(XPathToken::Text(text)) if name == "processing-instruction" => {
                    Some(text.clone())
                }
                _ => None,
            };
            if target.is_some() {
                self.tokens.pop_front();
            }
            self.expect_symbol(")")?;
            return Ok(match name.as_str() {
                "text" => XPathNodeTest::Text,
                "comment" => XPathNodeTest::Comment,
                "node" => XPathNodeTest::Node,
                _ => XPathNodeTest::Instruction(target),
            });
        }
        Ok(match name.strip_suffix(":*") {
            Some(prefix) => XPathNodeTest::AnyNameWithPrefix(prefix.to_owned()),
            None if name == "*" => XPathNodeTest::AnyName,
            None => XPathNodeTest::Name(name),
        })
    }
}

fn is_node_type(name: &str) -> bool {
    matches!(name, "text" | "node" | "comment" | "processing-instruction")
}

/// Returns the step that `//` abbreviates.
fn descendant_or_self_step() -> XPathLocationStep {
    XPathLocationStep {
        axis: XPathAxis::DescendantOrSelf,
        test: XPathNodeTest::Node,
        predicates: Vec::new(),
    }
}

/// Merges `//name` into one step, unless a predicate depends on the position among siblings.
fn merge_descendant_steps(steps: Vec<XPathLocationStep>) -> Vec<XPathLocationStep> {
    let mut short: Vec<XPathLocationStep> = Vec::new();
    for step in steps {
        let is_plain = step.axis == XPathAxis::Child && step.predicates.is_empty();
        match short.last_mut() {
            Some(last) if is_plain && *last == descendant_or_self_step() => {
                *last = XPathLocationStep { axis: XPathAxis::Descendant, ..step };
            }
            _ => short.push(step),
        }
    }
    short
}

fn find_axis(name: &str) -> Option<XPathAxis> {
    Some(match name {
        "child" => XPathAxis::Child,
        "descendant" => XPathAxis::Descendant,
        "descendant-or-self" => XPathAxis::DescendantOrSelf,
        "self" => XPathAxis::SelfNode,
        "parent" => XPathAxis::Parent,
        "ancestor" => XPathAxis::Ancestor,
        "ancestor-or-self" => XPathAxis::AncestorOrSelf,
        "attribute" => XPathAxis::Attribute,
        "following-sibling" => XPathAxis::FollowingSibling,
        "preceding-sibling" => XPathAxis::PrecedingSibling,
        "following" => XPathAxis::Following,
        "preceding" => XPathAxis::Preceding,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_path_is_reported() {
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
        check("a b", "unexpected `b`");
        check("'x", "unterminated string");
        check(&"(".repeat(100), "too deeply");
        assert!(XPath::parse("lower-case('X')", true).is_ok());
    }
}
