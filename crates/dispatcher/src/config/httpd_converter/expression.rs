//! Conversion of `RewriteCond expr`: an httpd expression to conditions of a rule.
//!
//! Input: the text of an expression. Output: a list of clauses, of each of which one alternative must hold; conditions
//! are written in this form, with `or` between alternatives. Comparisons of two values that both depend on the request
//! have no counterpart, nor have numeric comparisons other than equality, networks, and subrequests.

use regex::Regex;

use super::quote_toml;
use crate::request::host_routing::is_supported_variable;

/// The maximum number of conditions; expressions grow when they are converted to alternatives.
const MAX_EXPRESSION_CONDITIONS: usize = 64;

/// The maximum depth of an expression; deeper ones are mistakes.
const MAX_EXPRESSION_DEPTH: usize = 64;

/// A test of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpressionTest {
    /// The template of the tested value.
    subject: String,
    check: ExpressionCheck,
    is_negated: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum ExpressionCheck {
    Matches { pattern: String, ignores_case: bool },
    IsFile,
    IsDirectory,
}

/// An expression.
#[derive(Debug, Clone)]
enum HttpdExpression {
    Test(ExpressionTest),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

/// Converts an expression to conditions, with alternatives grouped together. The caller must check that the environment
/// variables in it are set somewhere.
///
/// # Errors
/// Returns the part that has no counterpart.
pub(super) fn expression_to_conditions(text: &str) -> Result<Vec<Vec<String>>, String> {
    let tokens = tokenize_expression(text)?;
    let mut parser = HttpdExpressionParser { tokens: &tokens, next_index: 0, depth: 0 };
    let expression = parser.parse_or()?;
    if let Some(token) = parser.peek() {
        return Err(format!("unexpected `{}`", token.source_text()));
    }
    let clauses = conjunctive_clauses(&expression, false)?;
    Ok(clauses
        .iter()
        .map(|clause| clause.iter().map(ExpressionTest::to_condition).collect())
        .collect())
}

impl ExpressionTest {
    fn new_match(subject: String, pattern: String, ignores_case: bool) -> Self {
        Self {
            subject,
            check: ExpressionCheck::Matches { pattern, ignores_case },
            is_negated: false,
        }
    }

    fn to_condition(&self) -> String {
        let subject = quote_toml(&self.subject);
        let mut text = match &self.check {
            ExpressionCheck::Matches { pattern, ignores_case } => {
                let case = if *ignores_case { ", ignore_case = true" } else { "" };
                format!("{{ test = {subject}, match = {}{case}", quote_toml(pattern))
            }
            ExpressionCheck::IsFile => format!("{{ test = {subject}, is = \"file\""),
            ExpressionCheck::IsDirectory => format!("{{ test = {subject}, is = \"directory\""),
        };
        text.push_str(if self.is_negated { ", negate = true }" } else { " }" });
        text
    }
}

/// Returns the clauses that must all hold for the expression or its negation.
fn conjunctive_clauses(
    expression: &HttpdExpression,
    is_negated: bool,
) -> Result<Vec<Vec<ExpressionTest>>, String> {
    let (parts, is_all) = match expression {
        HttpdExpression::Test(test) => {
            let test = ExpressionTest { is_negated: test.is_negated != is_negated, ..test.clone() };
            return Ok(vec![vec![test]]);
        }
        HttpdExpression::Not(inner) => return conjunctive_clauses(inner, !is_negated),
        HttpdExpression::All(parts) => (parts, !is_negated),
        HttpdExpression::Any(parts) => (parts, is_negated),
    };
    let mut clauses: Vec<Vec<ExpressionTest>> = if is_all { Vec::new() } else { vec![Vec::new()] };
    for part in parts {
        let own = conjunctive_clauses(part, is_negated)?;
        if is_all {
            clauses.extend(own);
        } else {
            // A disjunction holds if one alternative of each pair of clauses does.
            let pairs = clauses.iter().flat_map(|left| own.iter().map(move |right| (left, right)));
            clauses = pairs.map(|(left, right)| [&**left, &**right].concat()).collect();
        }
        if clauses.iter().map(Vec::len).sum::<usize>() > MAX_EXPRESSION_CONDITIONS {
            return Err("the expression is too large".to_owned());
        }
    }
    Ok(clauses)
}

/// A token of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HttpdExpressionToken {
    /// A text as a template, and its literal value if it has no variables.
    Text { template: String, literal: Option<String> },
    /// A regular expression with its flags.
    Pattern { pattern: String, ignores_case: bool },
    /// An operator, a bracket or a bare word.
    Word(String),
}

impl HttpdExpressionToken {
    fn source_text(&self) -> &str {
        match self {
            Self::Text { template, .. } => template,
            Self::Pattern { pattern, .. } => pattern,
            Self::Word(token) => token,
        }
    }
}

const OPERATOR_SYMBOLS: [&str; 16] =
    ["&&", "||", "==", "!=", "=~", "!~", "<=", ">=", "(", ")", "{", "}", ",", "!", "<", ">"];

/// Splits an expression into tokens.
fn tokenize_expression(text: &str) -> Result<Vec<HttpdExpressionToken>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let after_match = matches!(tokens.last(), Some(HttpdExpressionToken::Word(word)) if word == "=~" || word == "!~");
        let (token, tail) = if after_match {
            read_pattern(rest)?
        } else if first == '\'' || first == '"' {
            read_quoted(rest, first)?
        } else if rest.starts_with("%{") {
            let end = rest.find('}').ok_or("a variable is not closed")?;
            let (name, tail) = rest.split_at(end + 1);
            (variable_token(name.trim_start_matches("%{").trim_end_matches('}'))?, tail)
        } else if let Some(symbol) =
            OPERATOR_SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol))
        {
            (
                HttpdExpressionToken::Word((*symbol).to_owned()),
                rest.get(symbol.len()..).unwrap_or_default(),
            )
        } else {
            let is_word = |char: char| char.is_alphanumeric() || matches!(char, '-' | '_' | '.');
            let end = rest.find(|char| !is_word(char)).unwrap_or(rest.len());
            if end == 0 {
                return Err(format!("unexpected `{first}`"));
            }
            let (token_text, tail) = rest.split_at(end);
            let token = match token_text.bytes().all(|byte| byte.is_ascii_digit()) {
                true => literal_token(token_text),
                false => HttpdExpressionToken::Word(token_text.to_owned()),
            };
            (token, tail)
        };
        tokens.push(token);
        rest = tail.trim_start();
    }
    Ok(tokens)
}

/// Returns the token for a text without variables.
fn literal_token(text: &str) -> HttpdExpressionToken {
    let mut template = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '$' | '%' | '\\') {
            template.push('\\');
        }
        template.push(char);
    }
    HttpdExpressionToken::Text { template, literal: Some(text.to_owned()) }
}

/// Returns the text token for a variable or a look-up.
fn variable_token(name: &str) -> Result<HttpdExpressionToken, String> {
    let name = match name.split_once(':') {
        Some((function, argument)) => function_variable(function, argument)?,
        None => name.to_owned(),
    };
    if !is_supported_variable(&name) && !name.starts_with("ENV:") {
        return Err(format!("the variable `%{{{name}}}` is not known, so it would be empty"));
    }
    Ok(HttpdExpressionToken::Text { template: format!("%{{{name}}}"), literal: None })
}

/// Returns the variable for a function of one argument.
fn function_variable(function: &str, argument: &str) -> Result<String, String> {
    match function.to_ascii_lowercase().as_str() {
        "http" | "req" | "req_novary" => Ok(format!("HTTP:{argument}")),
        "env" | "reqenv" => Ok(format!("ENV:{argument}")),
        _ => Err(format!("the function `{function}` is not known")),
    }
}

/// Reads a quoted text, which may contain variables.
fn read_quoted(text: &str, quote: char) -> Result<(HttpdExpressionToken, &str), String> {
    let unclosed = || "a string is not closed".to_owned();
    let (mut template, mut value, mut is_plain) = (String::new(), String::new(), true);
    let mut rest = text.get(1..).unwrap_or_default();
    loop {
        let mut chars = rest.chars();
        let char = chars.next().ok_or_else(unclosed)?;
        let mut literal = None;
        match char {
            char if char == quote => {
                let plain = is_plain.then_some(value);
                return Ok((
                    HttpdExpressionToken::Text { template, literal: plain },
                    chars.as_str(),
                ));
            }
            '\\' => {
                literal = chars.next();
                rest = chars.as_str();
            }
            '%' if rest.starts_with("%{") => {
                let end = rest.find('}').ok_or("a variable is not closed")?;
                let (name, tail) = rest.split_at(end + 1);
                let name = name.trim_start_matches("%{").trim_end_matches('}');
                template.push_str(variable_token(name)?.source_text());
                is_plain = false;
                rest = tail;
            }
            char => {
                literal = Some(char);
                rest = chars.as_str();
            }
        }
        if let Some(char) = literal {
            if matches!(char, '$' | '%' | '\\') {
                template.push('\\');
            }
            template.push(char);
            value.push(char);
        }
    }
}

/// Reads `/pattern/flags` or `m#pattern#flags`.
fn read_pattern(text: &str) -> Result<(HttpdExpressionToken, &str), String> {
    let inner = text.strip_prefix('m').unwrap_or(text);
    let mut chars = inner.chars();
    let mark = chars.next().filter(|mark| !mark.is_alphanumeric() && !mark.is_whitespace());
    let mark = mark.filter(|mark| *mark == '/' || inner.len() < text.len());
    let mark = mark.ok_or("a regular expression must be written `/…/` or `m#…#`")?;
    let body = chars.as_str();
    let mut is_escaped = false;
    let end = body.char_indices().find(|(_, char)| {
        let ends = *char == mark && !is_escaped;
        is_escaped = *char == '\\' && !is_escaped;
        ends
    });
    let (end, _) = end.ok_or("a regular expression is not closed")?;
    let (pattern, tail) = body.split_at(end);
    let tail = tail.get(mark.len_utf8()..).unwrap_or_default();
    let flags = tail.chars().take_while(char::is_ascii_alphabetic).count();
    let (flags, tail) = tail.split_at(flags);
    if let Some(unknown_flag) = flags.chars().find(|flag| *flag != 'i') {
        return Err(format!("the flag `{unknown_flag}` of a regular expression is not known"));
    }
    let pattern = pattern.replace(&format!("\\{mark}"), &mark.to_string());
    if Regex::new(&pattern).is_err() {
        return Err(format!(
            "the pattern `{pattern}` is malformed, or uses lookaround or backreferences, which are not \
             supported"
        ));
    }
    Ok((HttpdExpressionToken::Pattern { pattern, ignores_case: flags.contains('i') }, tail))
}

struct HttpdExpressionParser<'a> {
    tokens: &'a [HttpdExpressionToken],
    next_index: usize,
    depth: usize,
}

impl<'a> HttpdExpressionParser<'a> {
    fn peek(&self) -> Option<&'a HttpdExpressionToken> {
        self.tokens.get(self.next_index)
    }

    fn next(&mut self) -> Option<&'a HttpdExpressionToken> {
        let token = self.peek();
        self.next_index += 1;
        token
    }

    /// Consumes a symbol or word if it is next.
    fn take_word(&mut self, keyword: &str) -> bool {
        let is_next =
            matches!(self.peek(), Some(HttpdExpressionToken::Word(own)) if own == keyword);
        self.next_index += usize::from(is_next);
        is_next
    }

    fn expect_word(&mut self, keyword: &str) -> Result<(), String> {
        match self.take_word(keyword) {
            true => Ok(()),
            false => Err(format!("a `{keyword}` is missing")),
        }
    }

    fn parse_or(&mut self) -> Result<HttpdExpression, String> {
        let mut parts = vec![self.parse_and()?];
        while self.take_word("||") {
            parts.push(self.parse_and()?);
        }
        Ok(HttpdExpression::Any(parts))
    }

    fn parse_and(&mut self) -> Result<HttpdExpression, String> {
        let mut parts = vec![self.parse_unary()?];
        while self.take_word("&&") {
            parts.push(self.parse_unary()?);
        }
        Ok(HttpdExpression::All(parts))
    }

    fn parse_unary(&mut self) -> Result<HttpdExpression, String> {
        self.depth += 1;
        if self.depth > MAX_EXPRESSION_DEPTH {
            return Err("the expression is nested too deeply".to_owned());
        }
        let operand = if self.take_word("!") {
            HttpdExpression::Not(Box::new(self.parse_unary()?))
        } else if self.take_word("(") {
            let inner = self.parse_or()?;
            self.expect_word(")")?;
            inner
        } else {
            self.parse_test()?
        };
        self.depth -= 1;
        Ok(operand)
    }

    fn parse_test(&mut self) -> Result<HttpdExpression, String> {
        if let Some(HttpdExpressionToken::Word(keyword)) = self.peek() {
            match keyword.as_str() {
                "true" | "false" => {
                    let is_true = keyword == "true";
                    self.next_index += 1;
                    return Ok(if is_true {
                        HttpdExpression::All(Vec::new())
                    } else {
                        HttpdExpression::Any(Vec::new())
                    });
                }
                "-n" | "-z" | "-f" | "-d" => {
                    self.next_index += 1;
                    let (subject, _) = self.parse_text()?;
                    let check = match keyword.as_str() {
                        "-f" => ExpressionCheck::IsFile,
                        "-d" => ExpressionCheck::IsDirectory,
                        _ => ExpressionCheck::Matches {
                            pattern: "^$".to_owned(),
                            ignores_case: false,
                        },
                    };
                    let is_negated = keyword == "-n";
                    return Ok(HttpdExpression::Test(ExpressionTest {
                        subject,
                        check,
                        is_negated,
                    }));
                }
                keyword if keyword.starts_with('-') => {
                    return Err(format!("the test `{keyword}` is not known"));
                }
                _ => {}
            }
        }
        let left = self.parse_text()?;
        let Some(HttpdExpressionToken::Word(operator)) = self.next() else {
            return Err("a comparison is missing".to_owned());
        };
        self.parse_comparison(left, operator)
    }

    /// Parses the right side of a comparison.
    fn parse_comparison(
        &mut self,
        left: (String, Option<String>),
        operator: &str,
    ) -> Result<HttpdExpression, String> {
        let is_opposite = matches!(operator, "!=" | "!~" | "-ne");
        let test = match operator {
            "=~" | "!~" => match self.next() {
                Some(HttpdExpressionToken::Pattern { pattern, ignores_case }) => {
                    ExpressionTest::new_match(left.0, pattern.clone(), *ignores_case)
                }
                _ => return Err("a regular expression is missing".to_owned()),
            },
            "==" | "!=" | "-eq" | "-ne" => {
                let right = self.parse_text()?;
                let (((subject, _), (_, Some(value))) | ((_, Some(value)), (subject, _))) =
                    (left, right)
                else {
                    return Err("it compares two variables".to_owned());
                };
                let escaped = regex::escape(&value);
                let pattern = match operator {
                    "-eq" | "-ne" => format!("^0*{escaped}$"),
                    _ => format!("^{escaped}$"),
                };
                ExpressionTest::new_match(subject, pattern, false)
            }
            "-strmatch" | "-strcmatch" | "-fnmatch" => {
                let (_, Some(wildcards)) = self.parse_text()? else {
                    return Err("it compares with a pattern that contains variables".to_owned());
                };
                let is_path = operator == "-fnmatch";
                let ignores_case = operator == "-strcmatch";
                ExpressionTest::new_match(
                    left.0,
                    wildcards_to_regex(&wildcards, is_path)?,
                    ignores_case,
                )
            }
            "in" | "-in" => {
                self.expect_word("{")?;
                let mut values = Vec::new();
                loop {
                    let (_, Some(value)) = self.parse_text()? else {
                        return Err("it compares with a list that contains variables".to_owned());
                    };
                    values.push(regex::escape(&value));
                    if !self.take_word(",") {
                        break;
                    }
                }
                self.expect_word("}")?;
                ExpressionTest::new_match(left.0, format!("^(?:{})$", values.join("|")), false)
            }
            other => return Err(format!("the comparison `{other}` is not known")),
        };
        Ok(HttpdExpression::Test(ExpressionTest { is_negated: is_opposite, ..test }))
    }

    /// Parses a text: its template, and its value if it has no variables. A function of one argument is also a text.
    fn parse_text(&mut self) -> Result<(String, Option<String>), String> {
        match self.next() {
            Some(HttpdExpressionToken::Text { template, literal }) => {
                Ok((template.clone(), literal.clone()))
            }
            Some(HttpdExpressionToken::Word(function)) if self.take_word("(") => {
                let Some(HttpdExpressionToken::Text { literal: Some(argument), .. }) = self.next()
                else {
                    return Err(format!("the argument of `{function}` is not a constant"));
                };
                let name = function_variable(function, argument)?;
                self.expect_word(")")?;
                Ok((format!("%{{{name}}}"), None))
            }
            Some(token) => Err(format!("unexpected `{}`", token.source_text())),
            None => Err("the expression ends unexpectedly".to_owned()),
        }
    }
}

/// Converts wildcards to a regular expression; those of a path do not match slashes.
fn wildcards_to_regex(wildcards: &str, is_path: bool) -> Result<String, String> {
    let (any, single) = if is_path { ("[^/]*", "[^/]") } else { (".*", ".") };
    let mut pattern = "^".to_owned();
    for char in wildcards.chars() {
        match char {
            '*' => pattern.push_str(any),
            '?' => pattern.push_str(single),
            '[' | '\\' => return Err(format!("`{char}` in wildcards is not supported")),
            char => pattern.push_str(&regex::escape(char.encode_utf8(&mut [0; 4]))),
        }
    }
    pattern.push('$');
    Ok(pattern)
}

#[cfg(test)]
mod tests {
    use super::expression_to_conditions;

    /// Formats conditions compactly: alternatives with `|`, groups of them with `&`.
    fn told(text: &str) -> String {
        match expression_to_conditions(text) {
            Err(why) => format!("error: {why}"),
            Ok(clauses) => {
                let clauses = clauses.iter().map(|clause| clause.join(" | "));
                clauses.collect::<Vec<_>>().join(" & ")
            }
        }
    }

    #[test]
    fn comparisons_are_conditions() {
        for (text, expected) in [
            (
                "%{HTTP_HOST} == 'www.a.com'",
                r#"{ test = "%{HTTP_HOST}", match = '^www\.a\.com$' }"#,
            ),
            ("%{HTTP_HOST}=='x'", r#"{ test = "%{HTTP_HOST}", match = "^x$" }"#),
            ("'x' != %{HTTP_HOST}", r#"{ test = "%{HTTP_HOST}", match = "^x$", negate = true }"#),
            (
                "%{REQUEST_URI} =~ m#^/(a|b)/#i",
                r##"{ test = "%{REQUEST_URI}", match = "^/(a|b)/", ignore_case = true }"##,
            ),
            (
                r"%{REQUEST_URI} !~ /^\/a/",
                r#"{ test = "%{REQUEST_URI}", match = "^/a", negate = true }"#,
            ),
            ("-n req('X-A')", r#"{ test = "%{HTTP:X-A}", match = "^$", negate = true }"#),
            ("-z %{QUERY_STRING}", r#"{ test = "%{QUERY_STRING}", match = "^$" }"#),
            ("%{SERVER_PORT} -eq 80", r#"{ test = "%{SERVER_PORT}", match = "^0*80$" }"#),
            (
                "%{HTTP_REFERER} -strcmatch '*://%{HTTP_HOST}/*'",
                "error: it compares with a pattern that contains variables",
            ),
            (
                "%{HTTP_REFERER} -strmatch 'http*.a.com?'",
                r#"{ test = "%{HTTP_REFERER}", match = '^http.*\.a\.com.$' }"#,
            ),
            (
                "%{REQUEST_METHOD} in {'GET', 'HEAD'}",
                r#"{ test = "%{REQUEST_METHOD}", match = "^(?:GET|HEAD)$" }"#,
            ),
            (
                "-f '%{DOCUMENT_ROOT}%{REQUEST_URI}'",
                r#"{ test = "%{DOCUMENT_ROOT}%{REQUEST_URI}", is = "file" }"#,
            ),
        ] {
            assert_eq!(told(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_joined_becomes_alternatives() {
        let name = |letter: &str| format!(r#"{{ test = "%{{HTTP_HOST}}", match = "^{letter}$" }}"#);
        let not = |letter: &str| name(letter).replace(" }", ", negate = true }");
        let (a, b, c) = (name("a"), name("b"), name("c"));
        let is = |letter: &str| format!("%{{HTTP_HOST}} == '{letter}'");
        let text =
            |form: &str| form.replace('A', &is("a")).replace('B', &is("b")).replace('C', &is("c"));
        for (form, expected) in [
            ("A && B", format!("{a} & {b}")),
            ("A || B", format!("{a} | {b}")),
            ("A || B && C", format!("{a} | {b} & {a} | {c}")),
            ("(A || B) && C", format!("{a} | {b} & {c}")),
            ("!(A || B)", format!("{} & {}", not("a"), not("b"))),
            ("! A && !(B && C)", format!("{} & {} | {}", not("a"), not("b"), not("c"))),
            ("true && A", a.clone()),
            ("false || A", a.clone()),
            ("true", String::new()),
        ] {
            assert_eq!(told(&text(form)), expected, "{form}");
        }
    }

    #[test]
    fn what_has_no_counterpart_is_reported() {
        for (text, expected) in [
            ("%{HTTP_HOST} == %{SERVER_NAME}", "it compares two variables"),
            ("%{TIME_HOUR} -eq 3", "the variable `%{TIME_HOUR}` is not known"),
            ("%{SERVER_PORT} -gt 80", "the comparison `-gt` is not known"),
            ("-R '10.0.0.0/8'", "the test `-R` is not known"),
            ("%{REQUEST_URI} =~ /(?=x)/", "the pattern `(?=x)` is malformed, or uses lookaround"),
            ("tolower('x') == 'x'", "the function `tolower` is not known"),
            ("%{HTTP_HOST} == 'x", "a string is not closed"),
            ("(%{HTTP_HOST} == 'x'", "a `)` is missing"),
            ("%{HTTP_HOST}", "a comparison is missing"),
            ("%{HTTP_HOST} == 'x' 'y'", "unexpected `y`"),
            ("", "the expression ends unexpectedly"),
        ] {
            let message = told(text);
            assert!(message.starts_with(&format!("error: {expected}")), "{text}: {message}");
        }
        let deep = format!("{}true{}", "(".repeat(100), ")".repeat(100));
        assert_eq!(told(&deep), "error: the expression is nested too deeply");
        let wide = "(%{HTTP_HOST} == 'a' && %{HTTP_HOST} == 'b')".to_owned();
        let wide = vec![wide; 20].join(" || ");
        assert_eq!(told(&wide), "error: the expression is too large");
    }
}
