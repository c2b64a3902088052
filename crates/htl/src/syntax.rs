//! Expressions as they are written: from the text between `${` and `}` to a tree, without meaning.

use std::sync::Arc;

/// Parentheses, brackets and conditions within each other. Evaluating a tree takes stack for each.
const MAX_NESTING: u32 = 100;

/// An expression with its options.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SyntaxExpression {
    /// The value; `None` for `${}` and `${@ option}`.
    pub(crate) root: Option<SyntaxNode>,
    /// The options in the order of the source.
    pub(crate) options: Vec<SyntaxOption>,
}

/// An option after `@`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SyntaxOption {
    pub(crate) name: Arc<str>,
    pub(crate) value: Option<SyntaxNode>,
    /// The byte of the source at which the name begins.
    pub(crate) offset: usize,
}

/// A part of an expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SyntaxNode {
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
    /// A variable, in lower case.
    Name(Arc<str>),
    List(Vec<SyntaxNode>),
    /// A value and the keys that lead into it.
    Path(Box<SyntaxNode>, Vec<SyntaxNode>),
    Not(Box<SyntaxNode>),
    /// Two and more operands.
    And(Vec<SyntaxNode>),
    /// Two and more operands.
    Or(Vec<SyntaxNode>),
    Contains {
        item: Box<SyntaxNode>,
        container: Box<SyntaxNode>,
    },
    Compare(CompareOperator, Box<SyntaxNode>, Box<SyntaxNode>),
    Choice(Box<[SyntaxNode; 3]>),
}

/// An operator that compares two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CompareOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A fault in an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SyntaxFault {
    /// The byte of the source.
    pub(crate) offset: usize,
    pub(crate) message: String,
}

/// Parses the expression that begins with `${` at `start`; returns it and the byte behind its `}`.
pub(crate) fn parse_expression(
    source: &str,
    start: usize,
    end: usize,
) -> Result<(SyntaxExpression, usize), SyntaxFault> {
    let mut parser = HtlExpressionParser {
        source: source.get(..end).unwrap_or(source),
        at: start + 2,
        token: SyntaxToken::End,
        token_start: start,
        nesting: 0,
    };
    parser.advance()?;
    let expression = parser.expression()?;
    // The end is the token in hand, and nothing behind it was read.
    Ok((expression, parser.at))
}

/// Finds the byte behind the `}` of an expression that begins with `${` at `start`, without parsing it. Braces in texts
/// do not count.
pub(crate) fn find_expression_end(source: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 2;
    let mut quote = None;
    while let Some(&byte) = source.get(at) {
        match (quote, byte) {
            (None, b'}') => return Some(at + 1),
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(_), b'\\') => at += 1,
            (Some(open), close) if open == close => quote = None,
            _ => {}
        }
        at += 1;
    }
    None
}

#[derive(Debug, Clone, PartialEq)]
enum SyntaxToken {
    Identifier(Arc<str>),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
    Symbol(&'static str),
    /// `}`.
    Close,
    /// The source ends inside the expression.
    End,
}

/// Longer symbols stand before their beginnings.
const SYMBOLS: [&str; 19] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ",", "=", "@", "?", ":",
    ".",
];

struct HtlExpressionParser<'a> {
    source: &'a str,
    /// The byte behind the token.
    at: usize,
    /// The token in hand.
    token: SyntaxToken,
    token_start: usize,
    nesting: u32,
}

impl HtlExpressionParser<'_> {
    fn rest(&self) -> &str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn fault<T>(&self, message: impl Into<String>) -> Result<T, SyntaxFault> {
        Err(SyntaxFault { offset: self.token_start, message: message.into() })
    }

    fn unexpected<T>(&self, awaited: &str) -> Result<T, SyntaxFault> {
        let token = match &self.token {
            SyntaxToken::Identifier(name) => format!("`{name}`"),
            SyntaxToken::Integer(_) | SyntaxToken::Float(_) => "a number".to_owned(),
            SyntaxToken::Text(_) => "a text".to_owned(),
            SyntaxToken::Symbol(symbol) => format!("`{symbol}`"),
            SyntaxToken::Close => "`}`".to_owned(),
            SyntaxToken::End => return self.fault("the expression has no closing `}`"),
        };
        self.fault(format!("expected {awaited}, found {token}"))
    }

    /// Reads the next token.
    fn advance(&mut self) -> Result<(), SyntaxFault> {
        self.skip_space();
        self.token_start = self.at;
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            self.token = SyntaxToken::End;
            return Ok(());
        };
        match first {
            '}' => {
                self.at += 1;
                self.token = SyntaxToken::Close;
            }
            '"' | '\'' => self.text(first)?,
            'a'..='z' | 'A'..='Z' | '_' => {
                let end = rest
                    .find(|next: char| !(next.is_ascii_alphanumeric() || matches!(next, '_' | ':')))
                    .unwrap_or(rest.len());
                self.token = SyntaxToken::Identifier(rest.get(..end).unwrap_or_default().into());
                self.at += end;
            }
            '0'..='9' => self.number()?,
            '-' if rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => self.number()?,
            _ => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) => {
                    self.token = SyntaxToken::Symbol(symbol);
                    self.at += symbol.len();
                }
                None => return self.fault(format!("`{first}` has no meaning in an expression")),
            },
        }
        Ok(())
    }

    /// Skips white space, and comments of HTL, which may stand in expressions, too.
    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed =
                rest.trim_start_matches([' ', '\t', '\r', '\n', '\x0c', '\x0b', '\u{a0}']);
            let mut skipped = rest.len() - trimmed.len();
            if trimmed.starts_with("<!--/*")
                && let Some(end) = trimmed.find("*/-->")
            {
                skipped += end + 5;
            }
            if skipped == 0 {
                return;
            }
            self.at += skipped;
        }
    }

    fn number(&mut self) -> Result<(), SyntaxFault> {
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| {
            let rest = bytes.get(from..).unwrap_or_default();
            from + rest.iter().take_while(|byte| byte.is_ascii_digit()).count()
        };
        let mut end = digits(usize::from(bytes.first() == Some(&b'-')));
        let mut is_float = false;
        if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            is_float = true;
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
                is_float = true;
                end = digits(end + 1 + sign);
            }
        }
        let text = self.rest().get(..end).unwrap_or_default();
        let token = if is_float {
            text.parse().ok().map(SyntaxToken::Float)
        } else {
            text.parse().ok().map(SyntaxToken::Integer)
        };
        let Some(token) = token else {
            return self.fault("the number is too large");
        };
        self.token = token;
        self.at += end;
        Ok(())
    }

    fn text(&mut self, quote: char) -> Result<(), SyntaxFault> {
        let mut value = String::new();
        let rest = self.rest();
        let mut units: Vec<u16> = Vec::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((at, next)) = chars.next() {
            let escaped = match next {
                '\\' => match chars.next() {
                    Some((_, 'u')) => {
                        let digits = rest.get(at + 2..at + 6).unwrap_or_default();
                        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
                        let unit = u16::from_str_radix(digits, 16).ok().filter(|_| is_hex);
                        let Some(unit) = unit else {
                            self.token_start = self.at + at;
                            return self.fault("`\\u` takes four hexadecimal digits");
                        };
                        units.push(unit);
                        chars.nth(3);
                        continue;
                    }
                    Some((_, 'b')) => '\u{8}',
                    Some((_, 't')) => '\t',
                    Some((_, 'n')) => '\n',
                    Some((_, 'f')) => '\u{c}',
                    Some((_, 'r')) => '\r',
                    Some((_, same @ ('"' | '\'' | '\\'))) => same,
                    _ => {
                        self.token_start = self.at + at;
                        return self.fault(
                            "unknown escape; there are `\\b \\t \\n \\f \\r \\\" \\' \\\\` and `\\uXXXX`",
                        );
                    }
                },
                _ => next,
            };
            push_units(&mut value, &mut units);
            if next == quote {
                self.at += at + quote.len_utf8();
                self.token = SyntaxToken::Text(value.into());
                return Ok(());
            }
            value.push(escaped);
        }
        self.fault(format!("the text has no closing `{quote}`"))
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.token, SyntaxToken::Symbol(token) if token == symbol)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.token, SyntaxToken::Identifier(name) if &**name == word)
    }

    /// Skips a symbol if it is the token in hand.
    fn accept(&mut self, symbol: &str) -> Result<bool, SyntaxFault> {
        let is_next = self.is_symbol(symbol);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, symbol: &str) -> Result<(), SyntaxFault> {
        if self.accept(symbol)? { Ok(()) } else { self.unexpected(&format!("`{symbol}`")) }
    }

    fn expression(&mut self) -> Result<SyntaxExpression, SyntaxFault> {
        let is_empty = self.is_symbol("@") || self.token == SyntaxToken::Close;
        let root = if is_empty { None } else { Some(self.choice()?) };
        let mut options = Vec::new();
        if self.accept("@")? {
            loop {
                options.push(self.option()?);
                if !self.accept(",")? {
                    break;
                }
            }
        }
        if self.token == SyntaxToken::Close {
            return Ok(SyntaxExpression { root, options });
        }
        self.unexpected("an operator, `@` or `}`")
    }

    fn option(&mut self) -> Result<SyntaxOption, SyntaxFault> {
        let offset = self.token_start;
        let SyntaxToken::Identifier(name) = &self.token else {
            return self.unexpected("the name of an option");
        };
        let name = Arc::clone(name);
        self.advance()?;
        let value = if self.accept("=")? { Some(self.choice()?) } else { None };
        Ok(SyntaxOption { name, value, offset })
    }

    fn enter(&mut self) -> Result<(), SyntaxFault> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.fault(format!("more than {MAX_NESTING} parts within each other"));
        }
        Ok(())
    }

    fn choice(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        self.enter()?;
        let condition = self.or()?;
        let node = if self.accept("?")? {
            let first = self.or()?;
            if !self.is_symbol(":") {
                return self.unexpected("`:` with white space around it");
            }
            self.advance()?;
            SyntaxNode::Choice(Box::new([condition, first, self.or()?]))
        } else {
            condition
        };
        self.nesting -= 1;
        Ok(node)
    }

    fn or(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let first = self.and()?;
        if !self.is_symbol("||") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.accept("||")? {
            operands.push(self.and()?);
        }
        Ok(SyntaxNode::Or(operands))
    }

    fn and(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let first = self.contains()?;
        if !self.is_symbol("&&") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.accept("&&")? {
            operands.push(self.contains()?);
        }
        Ok(SyntaxNode::And(operands))
    }

    fn contains(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let mut node = self.comparison()?;
        let outer = self.nesting;
        while self.is_word("in") {
            self.enter()?;
            self.advance()?;
            let container = Box::new(self.comparison()?);
            node = SyntaxNode::Contains { item: Box::new(node), container };
        }
        self.nesting = outer;
        Ok(node)
    }

    fn comparison(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let left = self.factor()?;
        let operator = match self.token {
            SyntaxToken::Symbol("==") => CompareOperator::Equal,
            SyntaxToken::Symbol("!=") => CompareOperator::NotEqual,
            SyntaxToken::Symbol("<") => CompareOperator::Less,
            SyntaxToken::Symbol("<=") => CompareOperator::LessOrEqual,
            SyntaxToken::Symbol(">") => CompareOperator::Greater,
            SyntaxToken::Symbol(">=") => CompareOperator::GreaterOrEqual,
            _ => return Ok(left),
        };
        self.advance()?;
        let right = self.factor()?;
        Ok(SyntaxNode::Compare(operator, Box::new(left), Box::new(right)))
    }

    fn factor(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        if !self.accept("!")? {
            return self.path();
        }
        self.enter()?;
        let node = SyntaxNode::Not(Box::new(self.factor()?));
        self.nesting -= 1;
        Ok(node)
    }

    fn path(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let base = self.atom()?;
        let mut keys = Vec::new();
        loop {
            if self.accept("[")? {
                keys.push(self.choice()?);
                self.expect("]")?;
            } else if self.accept(".")? {
                let SyntaxToken::Identifier(name) = &self.token else {
                    return self.unexpected("the name of a property");
                };
                keys.push(SyntaxNode::Text(Arc::clone(name)));
                self.advance()?;
            } else if keys.is_empty() {
                return Ok(base);
            } else {
                return Ok(SyntaxNode::Path(Box::new(base), keys));
            }
        }
    }

    fn atom(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let node = match &self.token {
            SyntaxToken::Identifier(name) => match &**name {
                "true" => SyntaxNode::Boolean(true),
                "false" => SyntaxNode::Boolean(false),
                name => SyntaxNode::Name(name.to_ascii_lowercase().into()),
            },
            SyntaxToken::Integer(number) => SyntaxNode::Integer(*number),
            SyntaxToken::Float(number) => SyntaxNode::Float(*number),
            SyntaxToken::Text(text) => SyntaxNode::Text(Arc::clone(text)),
            SyntaxToken::Symbol("(") => {
                self.advance()?;
                let node = self.choice()?;
                self.expect(")")?;
                return Ok(node);
            }
            SyntaxToken::Symbol("[") => {
                self.advance()?;
                return self.list();
            }
            SyntaxToken::Symbol(_) | SyntaxToken::Close | SyntaxToken::End => {
                return self.unexpected("a value");
            }
        };
        self.advance()?;
        Ok(node)
    }

    fn list(&mut self) -> Result<SyntaxNode, SyntaxFault> {
        let mut items = Vec::new();
        if self.accept("]")? {
            return Ok(SyntaxNode::List(items));
        }
        loop {
            items.push(self.choice()?);
            if !self.accept(",")? {
                break;
            }
        }
        self.expect("]")?;
        Ok(SyntaxNode::List(items))
    }
}

/// Appends the text of escaped UTF-16 units, which may be pairs of surrogates.
fn push_units(text: &mut String, units: &mut Vec<u16>) {
    if !units.is_empty() {
        text.push_str(&String::from_utf16_lossy(units));
        units.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a tree with all its parentheses.
    fn written(node: &SyntaxNode) -> String {
        let all = |nodes: &[SyntaxNode], between: &str| {
            nodes.iter().map(written).collect::<Vec<_>>().join(between)
        };
        match node {
            SyntaxNode::Boolean(value) => value.to_string(),
            SyntaxNode::Integer(number) => number.to_string(),
            SyntaxNode::Float(number) => format!("{number:?}"),
            SyntaxNode::Text(text) => format!("'{text}'"),
            SyntaxNode::Name(name) => name.to_string(),
            SyntaxNode::List(items) => format!("[{}]", all(items, ",")),
            SyntaxNode::Path(base, keys) => format!("{}[{}]", written(base), all(keys, "][")),
            SyntaxNode::Not(node) => format!("!{}", written(node)),
            SyntaxNode::And(nodes) => format!("({})", all(nodes, " && ")),
            SyntaxNode::Or(nodes) => format!("({})", all(nodes, " || ")),
            SyntaxNode::Contains { item, container } => {
                format!("({} in {})", written(item), written(container))
            }
            SyntaxNode::Compare(operator, left, right) => {
                format!("({} {operator:?} {})", written(left), written(right))
            }
            SyntaxNode::Choice(parts) => {
                let [condition, first, second] = &**parts;
                format!("({} ? {} : {})", written(condition), written(first), written(second))
            }
        }
    }

    fn check(source: &str, expected: &str) {
        let result = match parse_expression(source, 0, source.len()) {
            Ok((expression, end)) => {
                assert_eq!(end, source.len(), "{source}");
                let mut text = expression.root.as_ref().map(written).unwrap_or_default();
                for option in &expression.options {
                    text.push_str(&format!(" @{}", option.name));
                    if let Some(value) = &option.value {
                        text.push_str(&format!("={}", written(value)));
                    }
                }
                text
            }
            Err(fault) => format!("{}: {}", fault.offset, fault.message),
        };
        assert_eq!(result, expected, "{source}");
    }

    #[test]
    fn parses_operators_by_precedence() {
        check("${a || b && c}", "(a || (b && c))");
        check("${a && b || c}", "((a && b) || c)");
        check("${!a && b}", "(!a && b)");
        check("${a == 1 && b != 'x'}", "((a Equal 1) && (b NotEqual 'x'))");
        check("${a in b && c}", "((a in b) && c)");
        check("${'a' in b in c}", "(('a' in b) in c)");
        check("${a < 1 ? b : c || d}", "((a Less 1) ? b : (c || d))");
        check("${(a ? b : c) ? d : e}", "((a ? b : c) ? d : e)");
        check("${a >= -1.5e3}", "(a GreaterOrEqual -1500.0)");
    }

    #[test]
    fn parses_properties_lists_and_options() {
        check("${properties.jcr:title}", "properties['jcr:title']");
        check("${currentPage['a'][b.c][0].in}", "currentpage['a'][b['c']][0]['in']");
        check("${[1, 2.5, 'x', true, []]}", "[1,2.5,'x',true,[]]");
        check("${[1][0]}", "[1][0]");
        check("${}", "");
        check("${@ a, b=[1, c], d = e || 'f'}", " @a @b=[1,c] @d=(e || 'f')");
        check("${x@i18n,locale='de'}", "x @i18n @locale='de'");
        check("${x <!--/* y } */--> }", "x");
    }

    #[test]
    fn parses_texts() {
        check(r#"${'a\'b\\\n"'}"#, "'a'b\\\n\"'");
        check(r#"${"\u00c3\u003c\ud83d\ude00}"}"#, "'Ã<😀}'");
        check(
            r"${'\x'}",
            "3: unknown escape; there are `\\b \\t \\n \\f \\r \\\" \\' \\\\` and `\\uXXXX`",
        );
        check(r"${'\u12'}", "3: `\\u` takes four hexadecimal digits");
        check("${'a}", "2: the text has no closing `'`");
    }

    #[test]
    fn reports_faults_with_their_place() {
        check("${a b}", "4: expected an operator, `@` or `}`, found `b`");
        check("${a < b < c}", "8: expected an operator, `@` or `}`, found `<`");
        check("${a &&}", "6: expected a value, found `}`");
        check("${a ? b}", "7: expected `:` with white space around it, found `}`");
        check("${a @ 1}", "6: expected the name of an option, found a number");
        check("${a.}", "4: expected the name of a property, found `}`");
        check("${a + b}", "4: `+` has no meaning in an expression");
        check("${a", "3: the expression has no closing `}`");
        check("${99999999999999999999}", "2: the number is too large");
        let deep = format!("${{{}a{}}}", "(".repeat(200), ")".repeat(200));
        check(&deep, "102: more than 100 parts within each other");
        let long = format!("${{a{}}}", " || a".repeat(5_000));
        assert!(parse_expression(&long, 0, long.len()).is_ok());
    }

    #[test]
    fn finds_the_end_without_parsing() {
        let check = |source: &str, end| {
            assert_eq!(find_expression_end(source.as_bytes(), 0), end, "{source}");
        };
        check("${a}b}", Some(4));
        check("${'}'}", Some(6));
        check(r"${'\'}'}", Some(8));
        check("${'}", None);
    }
}
