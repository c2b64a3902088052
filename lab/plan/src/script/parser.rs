//! Parses tokens to statements; code that is not in the fixed list is reported here, before anything runs.

use std::collections::HashSet;

use super::ast::{ScriptBlock, ScriptExpression, ScriptOperator, ScriptStatement};
use super::dialect::ScriptDialect;
use super::lexer::{ScriptToken, tokenize};
use super::library;

type ScriptParseResult<T> = std::result::Result<T, String>;

/// Maximum nesting depth of statements and expressions.
const MAX_SCRIPT_DEPTH: usize = 100;

/// Parses a script.
///
/// # Errors
/// The unsupported code, with its line if that helps.
pub(super) fn parse_script(text: &str, dialect: ScriptDialect) -> ScriptParseResult<ScriptBlock> {
    parse_nested_script(text, dialect, HashSet::new(), 0)
}

fn parse_nested_script(
    text: &str,
    dialect: ScriptDialect,
    declared_names: HashSet<String>,
    depth: usize,
) -> ScriptParseResult<ScriptBlock> {
    let is_groovy = dialect == ScriptDialect::Groovy;
    let mut tokens = tokenize(text, is_groovy)?;
    if !is_groovy {
        tokens.retain(|(token, _)| *token != ScriptToken::LineBreak);
    }
    let mut parser = ScriptParser {
        tokens,
        position: 0,
        dialect,
        depth,
        declared_names,
        json_names: HashSet::new(),
        read_names: Vec::new(),
        parentheses_depth: 0,
    };
    let block = parser.parse_statements(None)?;
    for (name, line) in std::mem::take(&mut parser.read_names) {
        if !parser.declared_names.contains(&name) && !library::is_global(&name) {
            return Err(format!("line {line}: script uses `{name}` (not supported)"));
        }
    }
    Ok(block)
}

/// Returns the call that an assignment to a property of a JMeter object makes: the object, and the method.
fn setter_of_target(target: &ScriptExpression) -> Option<(ScriptExpression, String)> {
    let ScriptExpression::Call(on, reader, arguments) = target else { return None };
    let root = library::root_object_of(on).filter(|_| arguments.is_empty())?;
    Some(((**on).clone(), library::setter_of(root, reader)?))
}

struct ScriptParser {
    tokens: Vec<(ScriptToken, usize)>,
    position: usize,
    dialect: ScriptDialect,
    depth: usize,
    /// Names that the script assigns.
    declared_names: HashSet<String>,
    /// Names that hold parsed JSON, whose properties may have any name.
    json_names: HashSet<String>,
    /// Names that the script reads, with their lines.
    read_names: Vec<(String, usize)>,
    /// Nesting depth of parentheses, in which line breaks end no statement.
    parentheses_depth: usize,
}

impl ScriptParser {
    fn peek(&mut self) -> Option<&ScriptToken> {
        if self.parentheses_depth > 0 {
            self.skip_line_breaks();
        }
        self.tokens.get(self.position).map(|(token, _)| token)
    }

    fn skip_line_breaks(&mut self) {
        while matches!(self.tokens.get(self.position), Some((ScriptToken::LineBreak, _))) {
            self.position += 1;
        }
    }

    fn current_line(&self) -> usize {
        let at = self.position.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn next_token(&mut self) -> Option<ScriptToken> {
        let token = self.peek().cloned();
        self.position += usize::from(token.is_some());
        token
    }

    fn accept_sign(&mut self, sign: &'static str) -> bool {
        let is_match = self.peek() == Some(&ScriptToken::Sign(sign));
        self.position += usize::from(is_match);
        is_match
    }

    fn accept_keyword(&mut self, keyword: &str) -> bool {
        let is_match = matches!(self.peek(), Some(ScriptToken::Name(name)) if name == keyword);
        self.position += usize::from(is_match);
        is_match
    }

    fn expect_sign(&mut self, sign: &'static str) -> ScriptParseResult<()> {
        if self.accept_sign(sign) {
            Ok(())
        } else {
            Err(self.syntax_error(&format!("expected `{sign}`")))
        }
    }

    fn syntax_error(&self, problem: &str) -> String {
        let token_text = match self.tokens.get(self.position) {
            None => "the end".to_owned(),
            Some((ScriptToken::LineBreak, _)) => "the end of the line".to_owned(),
            Some((ScriptToken::Name(name), _)) => format!("`{name}`"),
            Some((ScriptToken::Sign(sign), _)) => format!("`{sign}`"),
            Some((token, _)) => format!("{token:?}"),
        };
        format!("line {}: {problem}, not {token_text}", self.current_line())
    }

    fn parse_name(&mut self) -> ScriptParseResult<String> {
        match self.peek() {
            Some(ScriptToken::Name(name)) => {
                let name = name.clone();
                self.position += 1;
                Ok(name)
            }
            _ => Err(self.syntax_error("expected a name")),
        }
    }

    fn with_nesting<T>(
        &mut self,
        inside: impl FnOnce(&mut Self) -> ScriptParseResult<T>,
    ) -> ScriptParseResult<T> {
        self.depth += 1;
        if self.depth > MAX_SCRIPT_DEPTH {
            return Err("it is nested too deeply".to_owned());
        }
        let value = inside(self);
        self.depth -= 1;
        value
    }

    fn parse_statements(&mut self, end: Option<&'static str>) -> ScriptParseResult<ScriptBlock> {
        let mut all = Vec::new();
        loop {
            while self.accept_sign(";") || matches!(self.peek(), Some(ScriptToken::LineBreak)) {
                self.skip_line_breaks();
            }
            match (self.peek(), end) {
                (None, None) => return Ok(ScriptBlock(all)),
                (None, Some(end)) => return Err(format!("`{end}` is missing at the end")),
                (Some(ScriptToken::Sign(sign)), Some(end)) if *sign == end => {
                    self.position += 1;
                    return Ok(ScriptBlock(all));
                }
                _ => all.extend(self.with_nesting(Self::parse_statement)?),
            }
        }
    }

    /// Parses a block in braces, or a single statement.
    fn parse_body(&mut self) -> ScriptParseResult<ScriptBlock> {
        self.skip_line_breaks();
        if self.accept_sign("{") {
            let outside = std::mem::take(&mut self.parentheses_depth);
            let block = self.parse_statements(Some("}"));
            self.parentheses_depth = outside;
            return block;
        }
        if self.accept_sign(";") {
            return Ok(ScriptBlock::default());
        }
        self.with_nesting(Self::parse_statement).map(ScriptBlock)
    }

    fn parse_statement(&mut self) -> ScriptParseResult<Vec<ScriptStatement>> {
        let keyword = match self.peek() {
            Some(ScriptToken::Name(name)) => name.clone(),
            Some(ScriptToken::Sign("{")) => {
                return Ok(vec![ScriptStatement::Nested(self.parse_body()?)]);
            }
            _ => String::new(),
        };
        let statement = match keyword.as_str() {
            "import" | "package" => {
                while !matches!(
                    self.peek(),
                    None | Some(ScriptToken::LineBreak | ScriptToken::Sign(";"))
                ) {
                    self.position += 1;
                }
                return Ok(Vec::new());
            }
            "if" => self.parse_if()?,
            "while" => {
                self.position += 1;
                let condition = self.parse_parenthesized()?;
                ScriptStatement::While(condition, self.parse_body()?)
            }
            "for" => self.parse_loop()?,
            "try" => self.parse_try()?,
            "return" => {
                self.position += 1;
                let is_bare = matches!(
                    self.peek(),
                    None | Some(
                        ScriptToken::LineBreak | ScriptToken::Sign(";") | ScriptToken::Sign("}")
                    )
                );
                ScriptStatement::Return(if is_bare { None } else { Some(self.parse_expression()?) })
            }
            "break" => {
                self.position += 1;
                ScriptStatement::Break
            }
            "continue" => {
                self.position += 1;
                ScriptStatement::Continue
            }
            "throw" => {
                self.position += 1;
                ScriptStatement::Throw(self.parse_expression()?)
            }
            "class" | "interface" | "enum" | "switch" | "do" | "synchronized" | "void"
            | "public" | "static" => {
                return Err(self.syntax_error("expected a supported statement"));
            }
            _ => return self.parse_simple_statement(),
        };
        Ok(vec![statement])
    }

    /// Parses declarations, or an expression, up to their end.
    fn parse_simple_statement(&mut self) -> ScriptParseResult<Vec<ScriptStatement>> {
        let mut all = Vec::new();
        if self.accept_declared_type() {
            loop {
                let name = self.parse_name()?;
                self.declared_names.insert(name.clone());
                let value =
                    if self.accept_sign("=") { Some(self.parse_expression()?) } else { None };
                if value.as_ref().is_some_and(|value| self.is_json(value)) {
                    self.json_names.insert(name.clone());
                }
                all.push(ScriptStatement::Declare(name, value));
                if !self.accept_sign(",") {
                    break;
                }
            }
        } else {
            all.push(ScriptStatement::Evaluate(self.parse_expression()?));
        }
        match self.peek() {
            None
            | Some(ScriptToken::LineBreak | ScriptToken::Sign(";") | ScriptToken::Sign("}")) => {
                Ok(all)
            }
            _ => Err(self.syntax_error("expected the end of the statement")),
        }
    }

    /// Accepts the type of a declaration; returns false if no declaration begins here.
    fn accept_declared_type(&mut self) -> bool {
        let start = self.position;
        let is_final = self.accept_keyword("final");
        if self.accept_keyword("def") || self.accept_keyword("var") {
            if matches!(self.peek(), Some(ScriptToken::Name(_))) {
                return true;
            }
            self.position = start;
            return false;
        }
        if self.skip_type() && matches!(self.peek(), Some(ScriptToken::Name(_))) {
            let after = self.tokens.get(self.position + 1).map(|(token, _)| token);
            let ends = match after {
                None
                | Some(ScriptToken::LineBreak | ScriptToken::Sign("=" | ";" | "," | ":" | "}")) => {
                    true
                }
                Some(ScriptToken::Name(keyword)) => keyword == "in",
                _ => false,
            };
            if ends {
                return true;
            }
        }
        self.position = start;
        // Groovy's `final x = 1` has no type.
        is_final
            && self.accept_keyword("final")
            && matches!(self.peek(), Some(ScriptToken::Name(_)))
    }

    /// Skips a type name; returns false if there is none.
    fn skip_type(&mut self) -> bool {
        if self.parse_name().is_err() {
            return false;
        }
        while self.accept_sign(".") {
            if self.parse_name().is_err() {
                return false;
            }
        }
        if self.accept_sign("<") {
            let mut open = 1;
            while open > 0 {
                match self.next_token() {
                    Some(ScriptToken::Sign("<")) => open += 1,
                    Some(ScriptToken::Sign(">")) => open -= 1,
                    Some(ScriptToken::Name(_) | ScriptToken::Sign("," | "?" | "." | "[" | "]")) => {
                    }
                    _ => return false,
                }
            }
        }
        while self.accept_sign("[") {
            if !self.accept_sign("]") {
                return false;
            }
        }
        true
    }

    fn parse_parenthesized(&mut self) -> ScriptParseResult<ScriptExpression> {
        self.expect_sign("(")?;
        self.parentheses_depth += 1;
        let value = self.parse_expression();
        let end = value.and_then(|value| self.expect_sign(")").map(|()| value));
        self.parentheses_depth -= 1;
        end
    }

    fn parse_if(&mut self) -> ScriptParseResult<ScriptStatement> {
        self.position += 1;
        let condition = self.parse_parenthesized()?;
        let then = self.parse_body()?;
        let before = self.position;
        while self.accept_sign(";") || matches!(self.peek(), Some(ScriptToken::LineBreak)) {
            self.skip_line_breaks();
        }
        if self.accept_keyword("else") {
            return Ok(ScriptStatement::If(condition, then, self.parse_body()?));
        }
        self.position = before;
        Ok(ScriptStatement::If(condition, then, ScriptBlock::default()))
    }

    fn parse_loop(&mut self) -> ScriptParseResult<ScriptStatement> {
        self.position += 1;
        self.expect_sign("(")?;
        self.parentheses_depth += 1;
        let start = self.position;
        let has_type = self.accept_declared_type();
        if let Ok(name) = self.parse_name()
            && (self.accept_sign(":") || self.accept_keyword("in"))
        {
            self.declared_names.insert(name.clone());
            let list = self.parse_expression()?;
            if self.is_json(&list) {
                self.json_names.insert(name.clone());
            }
            self.expect_sign(")")?;
            self.parentheses_depth -= 1;
            return Ok(ScriptStatement::ForEach(name, list, self.parse_body()?));
        }
        self.position = start;
        let first = if self.accept_sign(";") {
            Vec::new()
        } else {
            let first = self.parse_simple_statement()?;
            self.expect_sign(";")?;
            first
        };
        let _ = has_type;
        let condition = if self.peek() == Some(&ScriptToken::Sign(";")) {
            None
        } else {
            Some(self.parse_expression()?)
        };
        self.expect_sign(";")?;
        let mut after = Vec::new();
        while self.peek() != Some(&ScriptToken::Sign(")")) {
            after.push(self.parse_expression()?);
            if !self.accept_sign(",") {
                break;
            }
        }
        self.expect_sign(")")?;
        self.parentheses_depth -= 1;
        Ok(ScriptStatement::For {
            init: ScriptBlock(first),
            condition,
            update: after,
            body: self.parse_body()?,
        })
    }

    fn parse_try(&mut self) -> ScriptParseResult<ScriptStatement> {
        self.position += 1;
        let tried = self.parse_body()?;
        let mut rescue = None;
        self.skip_line_breaks();
        if self.accept_keyword("catch") {
            self.expect_sign("(")?;
            self.skip_type();
            let name = match self.peek() {
                Some(ScriptToken::Name(_)) => self.parse_name()?,
                // Groovy's `catch (e)` has no type.
                _ => match self.tokens.get(self.position.saturating_sub(1)) {
                    Some((ScriptToken::Name(name), _)) => name.clone(),
                    _ => return Err(self.syntax_error("expected a name")),
                },
            };
            self.expect_sign(")")?;
            self.declared_names.insert(name.clone());
            rescue = Some((name, self.parse_body()?));
            self.skip_line_breaks();
        }
        let last = if self.accept_keyword("finally") {
            self.parse_body()?
        } else {
            ScriptBlock::default()
        };
        Ok(ScriptStatement::Try(tried, rescue, last))
    }

    fn parse_expression(&mut self) -> ScriptParseResult<ScriptExpression> {
        self.with_nesting(Self::parse_assignment)
    }

    fn parse_assignment(&mut self) -> ScriptParseResult<ScriptExpression> {
        let target = self.parse_conditional()?;
        let operators = [
            ("=", ScriptOperator::Assign),
            ("+=", ScriptOperator::Add),
            ("-=", ScriptOperator::Subtract),
            ("*=", ScriptOperator::Multiply),
            ("/=", ScriptOperator::Divide),
            ("%=", ScriptOperator::Remainder),
        ];
        for (sign, operator) in operators {
            if self.accept_sign(sign) {
                if operator == ScriptOperator::Assign
                    && let Some((on, writer)) = setter_of_target(&target)
                {
                    self.skip_line_breaks();
                    let value = self.parse_expression()?;
                    return Ok(ScriptExpression::Call(Box::new(on), writer, vec![value]));
                }
                self.record_target(&target)?;
                self.skip_line_breaks();
                let value = self.parse_expression()?;
                if let ScriptExpression::Name(name) = &target
                    && self.is_json(&value)
                {
                    self.json_names.insert(name.clone());
                }
                return Ok(ScriptExpression::Assign(Box::new(target), operator, Box::new(value)));
            }
        }
        Ok(target)
    }

    /// Returns true if a value comes from JSON.
    fn is_json(&self, value: &ScriptExpression) -> bool {
        match value {
            ScriptExpression::Name(name) => self.json_names.contains(name),
            ScriptExpression::Call(_, method, _)
                if matches!(method.as_str(), "parseText" | "parse") =>
            {
                true
            }
            ScriptExpression::Call(on, method, _) => {
                matches!(method.as_str(), "get" | "first" | "last" | "values") && self.is_json(on)
            }
            ScriptExpression::Index(on, _)
            | ScriptExpression::Property(on, _)
            | ScriptExpression::Cast(_, on) => self.is_json(on),
            ScriptExpression::SafeNavigation(inner) => self.is_json(inner),
            ScriptExpression::Elvis(first, second)
            | ScriptExpression::Conditional(_, first, second) => {
                self.is_json(first) || self.is_json(second)
            }
            _ => false,
        }
    }

    fn record_target(&mut self, target: &ScriptExpression) -> ScriptParseResult<()> {
        match target {
            ScriptExpression::Name(name) => {
                self.declared_names.insert(name.clone());
                Ok(())
            }
            ScriptExpression::Index(..) => Ok(()),
            ScriptExpression::Property(on, _) if library::root_object_of(on) == Some("vars") => {
                Ok(())
            }
            _ => Err(self.syntax_error("expected a name before the assignment")),
        }
    }

    fn parse_conditional(&mut self) -> ScriptParseResult<ScriptExpression> {
        let condition = self.parse_binary(0)?;
        if self.accept_sign("?:") {
            self.skip_line_breaks();
            let alternative = self.parse_expression()?;
            return Ok(ScriptExpression::Elvis(Box::new(condition), Box::new(alternative)));
        }
        if self.accept_sign("?") {
            self.skip_line_breaks();
            let yes = self.parse_expression()?;
            self.skip_line_breaks();
            self.expect_sign(":")?;
            self.skip_line_breaks();
            let no = self.parse_expression()?;
            return Ok(ScriptExpression::Conditional(
                Box::new(condition),
                Box::new(yes),
                Box::new(no),
            ));
        }
        Ok(condition)
    }

    fn parse_binary(&mut self, level: usize) -> ScriptParseResult<ScriptExpression> {
        const LEVELS: [&[(&str, ScriptOperator)]; 6] = [
            &[("||", ScriptOperator::Or)],
            &[("&&", ScriptOperator::And)],
            &[
                ("==~", ScriptOperator::RegexMatch),
                ("=~", ScriptOperator::RegexFind),
                ("==", ScriptOperator::Equal),
                ("!=", ScriptOperator::NotEqual),
            ],
            &[
                ("<=", ScriptOperator::LessOrEqual),
                (">=", ScriptOperator::GreaterOrEqual),
                ("<", ScriptOperator::Less),
                (">", ScriptOperator::Greater),
            ],
            &[("+", ScriptOperator::Add), ("-", ScriptOperator::Subtract)],
            &[
                ("*", ScriptOperator::Multiply),
                ("/", ScriptOperator::Divide),
                ("%", ScriptOperator::Remainder),
            ],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.parse_unary() };
        let mut left = self.parse_binary(level + 1)?;
        'again: loop {
            for &(sign, operator) in *operators {
                if self.accept_sign(sign) {
                    self.skip_line_breaks();
                    let right = self.parse_binary(level + 1)?;
                    left = ScriptExpression::Binary(operator, Box::new(left), Box::new(right));
                    continue 'again;
                }
            }
            return Ok(left);
        }
    }

    fn parse_unary(&mut self) -> ScriptParseResult<ScriptExpression> {
        self.with_nesting(Self::parse_unary_operand)
    }

    fn parse_unary_operand(&mut self) -> ScriptParseResult<ScriptExpression> {
        if self.accept_sign("!") {
            return Ok(ScriptExpression::Not(Box::new(self.parse_unary()?)));
        }
        if self.accept_sign("-") {
            return Ok(ScriptExpression::Negate(Box::new(self.parse_unary()?)));
        }
        if self.accept_sign("+") {
            return self.parse_unary();
        }
        for (sign, by) in [("++", 1), ("--", -1)] {
            if self.accept_sign(sign) {
                let target = self.parse_unary()?;
                self.record_target(&target)?;
                return Ok(ScriptExpression::Increment(Box::new(target), by, false));
            }
        }
        if let Some(class) = self.accept_cast() {
            return Ok(ScriptExpression::Cast(class, Box::new(self.parse_unary()?)));
        }
        let mut value = self.parse_primary()?;
        loop {
            value = match self.parse_postfix(value)? {
                (value, true) => value,
                (value, false) => break Ok(value),
            };
        }
    }

    /// Accepts a cast `(Type)` before a value.
    fn accept_cast(&mut self) -> Option<String> {
        let start = self.position;
        if self.accept_sign("(")
            && let Some(ScriptToken::Name(name)) = self.peek().cloned()
            && self.skip_type()
            && self.accept_sign(")")
            && (library::is_cast(&name) || name.starts_with(|c: char| c.is_uppercase()))
            && matches!(
                self.peek(),
                Some(
                    ScriptToken::Name(_)
                        | ScriptToken::Int(_)
                        | ScriptToken::Double(_)
                        | ScriptToken::Text(_)
                        | ScriptToken::Interpolated(..)
                        | ScriptToken::Sign("(" | "-")
                )
            )
        {
            return Some(name);
        }
        self.position = start;
        None
    }

    /// Parses what may follow a value: a call, an index, an increment; returns false if nothing does.
    fn parse_postfix(
        &mut self,
        value: ScriptExpression,
    ) -> ScriptParseResult<(ScriptExpression, bool)> {
        // A line that begins with a dot continues the previous one.
        let before = self.position;
        self.skip_line_breaks();
        if !matches!(self.peek(), Some(ScriptToken::Sign("." | "?."))) {
            self.position = before;
        }
        let is_safe = self.peek() == Some(&ScriptToken::Sign("?."));
        if self.accept_sign(".") || self.accept_sign("?.") {
            let line = self.current_line();
            let name = self.parse_name()?;
            if self.peek() == Some(&ScriptToken::Sign("(")) {
                let arguments = self.parse_arguments()?;
                library::check_call(&value, &name, arguments.len())
                    .map_err(|fault| format!("line {line}: {fault}"))?;
                let has_root = library::root_object_of(&value).is_some();
                let call = ScriptExpression::Call(Box::new(value), name, arguments);
                // JMeter's objects are never null.
                let is_safe = is_safe && !has_root;
                return Ok((
                    if is_safe { ScriptExpression::SafeNavigation(Box::new(call)) } else { call },
                    true,
                ));
            }
            if library::root_object_of(&value).is_some() && self.is_bare_argument_next() {
                let arguments = self.parse_bare_arguments()?;
                library::check_call(&value, &name, arguments.len())
                    .map_err(|fault| format!("line {line}: {fault}"))?;
                return Ok((ScriptExpression::Call(Box::new(value), name, arguments), true));
            }
            // A property of a JMeter object is read by its getter.
            if let Some(reader) =
                library::root_object_of(&value).and_then(|root| library::getter_of(root, &name))
            {
                return Ok((ScriptExpression::Call(Box::new(value), reader, Vec::new()), true));
            }
            library::check_property(&value, &name, self.is_json(&value))
                .map_err(|fault| format!("line {line}: {fault}"))?;
            let property = ScriptExpression::Property(Box::new(value), name);
            return Ok((
                if is_safe {
                    ScriptExpression::SafeNavigation(Box::new(property))
                } else {
                    property
                },
                true,
            ));
        }
        if self.accept_sign("[") {
            self.parentheses_depth += 1;
            let index = self.parse_expression()?;
            self.expect_sign("]")?;
            self.parentheses_depth -= 1;
            return Ok((ScriptExpression::Index(Box::new(value), Box::new(index)), true));
        }
        for (sign, by) in [("++", 1), ("--", -1)] {
            if self.accept_sign(sign) {
                self.record_target(&value)?;
                return Ok((ScriptExpression::Increment(Box::new(value), by, true), true));
            }
        }
        Ok((value, false))
    }

    fn parse_arguments(&mut self) -> ScriptParseResult<Vec<ScriptExpression>> {
        self.expect_sign("(")?;
        self.parentheses_depth += 1;
        let list = self.parse_list(")");
        self.parentheses_depth -= 1;
        list
    }

    /// Returns true if arguments without parentheses follow, as Groovy allows; supported only if a string is first.
    fn is_bare_argument_next(&mut self) -> bool {
        self.dialect == ScriptDialect::Groovy
            && matches!(self.peek(), Some(ScriptToken::Text(_) | ScriptToken::Interpolated(..)))
    }

    fn parse_bare_arguments(&mut self) -> ScriptParseResult<Vec<ScriptExpression>> {
        let mut all = vec![self.parse_expression()?];
        while self.accept_sign(",") {
            all.push(self.parse_expression()?);
        }
        Ok(all)
    }

    fn parse_list(&mut self, end: &'static str) -> ScriptParseResult<Vec<ScriptExpression>> {
        let mut all = Vec::new();
        if self.accept_sign(end) {
            return Ok(all);
        }
        loop {
            all.push(self.parse_expression()?);
            if self.accept_sign(end) {
                return Ok(all);
            }
            self.expect_sign(",")?;
        }
    }

    fn parse_primary(&mut self) -> ScriptParseResult<ScriptExpression> {
        let line = self.current_line();
        match self.next_token() {
            Some(ScriptToken::Int(number)) => Ok(ScriptExpression::Int(number)),
            Some(ScriptToken::Double(number)) => Ok(ScriptExpression::Double(number)),
            Some(ScriptToken::Text(text)) => Ok(ScriptExpression::Text(text)),
            Some(ScriptToken::Interpolated(pieces, last)) => {
                self.parse_interpolated(pieces, last, line)
            }
            Some(ScriptToken::Sign("(")) => {
                self.position -= 1;
                self.parse_parenthesized()
            }
            Some(ScriptToken::Sign("[")) => {
                self.parentheses_depth += 1;
                let list = self.parse_list("]");
                self.parentheses_depth -= 1;
                list.map(ScriptExpression::List)
            }
            Some(ScriptToken::Name(name)) => self.parse_word(name, line),
            _ => {
                self.position = self.position.saturating_sub(1);
                Err(self.syntax_error("expected a value"))
            }
        }
    }

    fn parse_interpolated(
        &mut self,
        pieces: Vec<(String, String)>,
        last: String,
        line: usize,
    ) -> ScriptParseResult<ScriptExpression> {
        let mut parts = Vec::new();
        for (before, inside) in pieces {
            parts.push(ScriptExpression::Text(before));
            let tokens = tokenize(&inside, true)?;
            let mut parser = Self {
                tokens,
                position: 0,
                dialect: self.dialect,
                depth: self.depth + 1,
                declared_names: HashSet::new(),
                json_names: self.json_names.clone(),
                read_names: Vec::new(),
                parentheses_depth: 1,
            };
            parts.push(
                parser
                    .parse_expression()
                    .map_err(|fault| format!("line {line}: in `{inside}`: {fault}"))?,
            );
            if parser.peek().is_some() {
                return Err(format!("line {line}: `{inside}` is not supported"));
            }
            self.read_names.extend(parser.read_names.into_iter().map(|(name, _)| (name, line)));
        }
        parts.push(ScriptExpression::Text(last));
        Ok(ScriptExpression::Interpolated(parts))
    }

    fn parse_word(&mut self, name: String, line: usize) -> ScriptParseResult<ScriptExpression> {
        match name.as_str() {
            "true" => return Ok(ScriptExpression::Bool(true)),
            "false" => return Ok(ScriptExpression::Bool(false)),
            "null" => return Ok(ScriptExpression::Null),
            "new" => {
                let class = self.parse_class_name()?;
                let arguments = self.parse_arguments()?;
                library::check_new(&class, arguments.len())
                    .map_err(|fault| format!("line {line}: {fault}"))?;
                return Ok(ScriptExpression::New(class, arguments));
            }
            "println" | "print" if self.peek() == Some(&ScriptToken::Sign("(")) => {
                let arguments = self.parse_arguments()?;
                return Ok(ScriptExpression::StaticCall(
                    "System".to_owned(),
                    "print".to_owned(),
                    arguments,
                ));
            }
            "println" | "print" if self.is_bare_argument_next() => {
                let arguments = self.parse_bare_arguments()?;
                return Ok(ScriptExpression::StaticCall(
                    "System".to_owned(),
                    "print".to_owned(),
                    arguments,
                ));
            }
            _ => {}
        }
        let is_package = matches!(name.as_str(), "java" | "javax" | "org" | "com" | "groovy");
        let class = if is_package {
            self.expect_sign(".")?;
            self.parse_class_name()?
        } else {
            name.clone()
        };
        if library::is_class(&class) && self.peek() == Some(&ScriptToken::Sign(".")) {
            self.position += 1;
            let method = self.parse_name()?;
            let arguments = if self.peek() == Some(&ScriptToken::Sign("(")) {
                Some(self.parse_arguments()?)
            } else {
                None
            };
            library::check_static(&class, &method, arguments.as_ref().map(Vec::len))
                .map_err(|fault| format!("line {line}: {fault}"))?;
            return Ok(ScriptExpression::StaticCall(class, method, arguments.unwrap_or_default()));
        }
        if is_package {
            return Err(format!("line {line}: script uses `{class}` (not supported)"));
        }
        if self.peek() == Some(&ScriptToken::Sign("(")) {
            return Err(format!("line {line}: script calls `{name}` (not supported)"));
        }
        self.read_names.push((name.clone(), line));
        Ok(ScriptExpression::Name(name))
    }

    /// Parses a class name and drops its package and type parameters.
    fn parse_class_name(&mut self) -> ScriptParseResult<String> {
        let mut name = self.parse_name()?;
        while name.starts_with(|c: char| c.is_lowercase()) && self.accept_sign(".") {
            name = self.parse_name()?;
        }
        if self.accept_sign("<") {
            while !self.accept_sign(">") {
                if self.next_token().is_none() {
                    return Err("`>` is missing".to_owned());
                }
            }
        }
        Ok(name)
    }
}
