//! From words to statements; whatever is not in the fixed list is told here, before anything runs.

use std::collections::HashSet;

use super::Dialect;
use super::ast::{Block, Expression, Operator, Statement};
use super::lex::{Token, lex};
use super::library;

type Result<T> = std::result::Result<T, String>;

/// Deepest nesting of statements and expressions.
const DEEPEST: usize = 100;

/// Reads a script.
///
/// # Errors
/// What in it is not supported, with its line where that helps.
pub(super) fn parse(text: &str, dialect: Dialect) -> Result<Block> {
    parse_inside(text, dialect, HashSet::new(), 0)
}

fn parse_inside(
    text: &str,
    dialect: Dialect,
    known: HashSet<String>,
    depth: usize,
) -> Result<Block> {
    let is_groovy = dialect == Dialect::Groovy;
    let mut tokens = lex(text, is_groovy)?;
    if !is_groovy {
        tokens.retain(|(token, _)| *token != Token::Break);
    }
    let mut parser = Parser {
        tokens,
        at: 0,
        dialect,
        depth,
        known,
        json: HashSet::new(),
        wanted: Vec::new(),
        skips_breaks: 0,
    };
    let block = parser.statements(None)?;
    for (name, line) in std::mem::take(&mut parser.wanted) {
        if !parser.known.contains(&name) && !library::is_global(&name) {
            return Err(format!("line {line}: script uses `{name}` (not supported)"));
        }
    }
    Ok(block)
}

/// Returns what an assignment to a property of a thing of JMeter's calls: the thing, and the method.
fn writer_of(target: &Expression) -> Option<(Expression, String)> {
    let Expression::Call(on, reader, arguments) = target else { return None };
    let root = library::root_of(on).filter(|_| arguments.is_empty())?;
    Some(((**on).clone(), library::writer_of(root, reader)?))
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    dialect: Dialect,
    depth: usize,
    /// Names that the script gives values to.
    known: HashSet<String>,
    /// Those of them that hold what was read from JSON, whose properties have any name.
    json: HashSet<String>,
    /// Names that it reads, with their lines.
    wanted: Vec<(String, usize)>,
    /// Inside parentheses, line breaks end nothing.
    skips_breaks: usize,
}

impl Parser {
    fn peek(&mut self) -> Option<&Token> {
        if self.skips_breaks > 0 {
            self.skip_breaks();
        }
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn skip_breaks(&mut self) {
        while matches!(self.tokens.get(self.at), Some((Token::Break, _))) {
            self.at += 1;
        }
    }

    fn line(&self) -> usize {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |(_, line)| *line)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += usize::from(token.is_some());
        token
    }

    fn eat(&mut self, sign: &'static str) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(name)) if name == word);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &'static str) -> Result<()> {
        if self.eat(sign) { Ok(()) } else { Err(self.wrong(&format!("`{sign}` is expected"))) }
    }

    fn wrong(&self, what: &str) -> String {
        let found = match self.tokens.get(self.at) {
            None => "the end".to_owned(),
            Some((Token::Break, _)) => "the end of the line".to_owned(),
            Some((Token::Name(name), _)) => format!("`{name}`"),
            Some((Token::Sign(sign), _)) => format!("`{sign}`"),
            Some((token, _)) => format!("{token:?}"),
        };
        format!("line {}: {what}, not {found}", self.line())
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.wrong("a name is expected")),
        }
    }

    fn deeper<T>(&mut self, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("it is nested too deeply".to_owned());
        }
        let value = inside(self);
        self.depth -= 1;
        value
    }

    fn statements(&mut self, end: Option<&'static str>) -> Result<Block> {
        let mut all = Vec::new();
        loop {
            while self.eat(";") || matches!(self.peek(), Some(Token::Break)) {
                self.skip_breaks();
            }
            match (self.peek(), end) {
                (None, None) => return Ok(Block(all)),
                (None, Some(end)) => return Err(format!("`{end}` is missing at the end")),
                (Some(Token::Sign(sign)), Some(end)) if *sign == end => {
                    self.at += 1;
                    return Ok(Block(all));
                }
                _ => all.extend(self.deeper(Self::statement)?),
            }
        }
    }

    /// Reads a block in braces, or a single statement.
    fn body(&mut self) -> Result<Block> {
        self.skip_breaks();
        if self.eat("{") {
            let outside = std::mem::take(&mut self.skips_breaks);
            let block = self.statements(Some("}"));
            self.skips_breaks = outside;
            return block;
        }
        if self.eat(";") {
            return Ok(Block::default());
        }
        self.deeper(Self::statement).map(Block)
    }

    fn statement(&mut self) -> Result<Vec<Statement>> {
        let word = match self.peek() {
            Some(Token::Name(name)) => name.clone(),
            Some(Token::Sign("{")) => return Ok(vec![Statement::Nested(self.body()?)]),
            _ => String::new(),
        };
        let statement = match word.as_str() {
            "import" | "package" => {
                while !matches!(self.peek(), None | Some(Token::Break | Token::Sign(";"))) {
                    self.at += 1;
                }
                return Ok(Vec::new());
            }
            "if" => self.condition()?,
            "while" => {
                self.at += 1;
                let condition = self.in_parentheses()?;
                Statement::While(condition, self.body()?)
            }
            "for" => self.repetition()?,
            "try" => self.attempt()?,
            "return" => {
                self.at += 1;
                let is_bare = matches!(
                    self.peek(),
                    None | Some(Token::Break | Token::Sign(";") | Token::Sign("}"))
                );
                Statement::Return(if is_bare { None } else { Some(self.expression()?) })
            }
            "break" => {
                self.at += 1;
                Statement::Break
            }
            "continue" => {
                self.at += 1;
                Statement::Continue
            }
            "throw" => {
                self.at += 1;
                Statement::Throw(self.expression()?)
            }
            "class" | "interface" | "enum" | "switch" | "do" | "synchronized" | "void"
            | "public" | "static" => {
                return Err(self.wrong("a statement that is supported is expected"));
            }
            _ => return self.simple(),
        };
        Ok(vec![statement])
    }

    /// Reads declarations, or an expression, up to their end.
    fn simple(&mut self) -> Result<Vec<Statement>> {
        let mut all = Vec::new();
        if self.eat_type() {
            loop {
                let name = self.name()?;
                self.known.insert(name.clone());
                let value = if self.eat("=") { Some(self.expression()?) } else { None };
                if value.as_ref().is_some_and(|value| self.is_json(value)) {
                    self.json.insert(name.clone());
                }
                all.push(Statement::Declare(name, value));
                if !self.eat(",") {
                    break;
                }
            }
        } else {
            all.push(Statement::Evaluate(self.expression()?));
        }
        match self.peek() {
            None | Some(Token::Break | Token::Sign(";") | Token::Sign("}")) => Ok(all),
            _ => Err(self.wrong("the end of the statement is expected")),
        }
    }

    /// Takes the type in front of a new name; nothing if no declaration begins here.
    fn eat_type(&mut self) -> bool {
        let start = self.at;
        let is_final = self.eat_word("final");
        if self.eat_word("def") || self.eat_word("var") {
            if matches!(self.peek(), Some(Token::Name(_))) {
                return true;
            }
            self.at = start;
            return false;
        }
        if self.skip_type() && matches!(self.peek(), Some(Token::Name(_))) {
            let after = self.tokens.get(self.at + 1).map(|(token, _)| token);
            let ends = match after {
                None | Some(Token::Break | Token::Sign("=" | ";" | "," | ":" | "}")) => true,
                Some(Token::Name(word)) => word == "in",
                _ => false,
            };
            if ends {
                return true;
            }
        }
        self.at = start;
        // `final x = 1` of Groovy has no type.
        is_final && self.eat_word("final") && matches!(self.peek(), Some(Token::Name(_)))
    }

    /// Passes over the name of a type; false if there is none.
    fn skip_type(&mut self) -> bool {
        if self.name().is_err() {
            return false;
        }
        while self.eat(".") {
            if self.name().is_err() {
                return false;
            }
        }
        if self.eat("<") {
            let mut open = 1;
            while open > 0 {
                match self.take() {
                    Some(Token::Sign("<")) => open += 1,
                    Some(Token::Sign(">")) => open -= 1,
                    Some(Token::Name(_) | Token::Sign("," | "?" | "." | "[" | "]")) => {}
                    _ => return false,
                }
            }
        }
        while self.eat("[") {
            if !self.eat("]") {
                return false;
            }
        }
        true
    }

    fn in_parentheses(&mut self) -> Result<Expression> {
        self.expect("(")?;
        self.skips_breaks += 1;
        let value = self.expression();
        let end = value.and_then(|value| self.expect(")").map(|()| value));
        self.skips_breaks -= 1;
        end
    }

    fn condition(&mut self) -> Result<Statement> {
        self.at += 1;
        let condition = self.in_parentheses()?;
        let then = self.body()?;
        let before = self.at;
        while self.eat(";") || matches!(self.peek(), Some(Token::Break)) {
            self.skip_breaks();
        }
        if self.eat_word("else") {
            return Ok(Statement::If(condition, then, self.body()?));
        }
        self.at = before;
        Ok(Statement::If(condition, then, Block::default()))
    }

    fn repetition(&mut self) -> Result<Statement> {
        self.at += 1;
        self.expect("(")?;
        self.skips_breaks += 1;
        let start = self.at;
        let has_type = self.eat_type();
        if let Ok(name) = self.name()
            && (self.eat(":") || self.eat_word("in"))
        {
            self.known.insert(name.clone());
            let list = self.expression()?;
            if self.is_json(&list) {
                self.json.insert(name.clone());
            }
            self.expect(")")?;
            self.skips_breaks -= 1;
            return Ok(Statement::ForEach(name, list, self.body()?));
        }
        self.at = start;
        let first = if self.eat(";") {
            Vec::new()
        } else {
            let first = self.simple()?;
            self.expect(";")?;
            first
        };
        let _ = has_type;
        let condition =
            if self.peek() == Some(&Token::Sign(";")) { None } else { Some(self.expression()?) };
        self.expect(";")?;
        let mut after = Vec::new();
        while self.peek() != Some(&Token::Sign(")")) {
            after.push(self.expression()?);
            if !self.eat(",") {
                break;
            }
        }
        self.expect(")")?;
        self.skips_breaks -= 1;
        Ok(Statement::For { first: Block(first), condition, after, body: self.body()? })
    }

    fn attempt(&mut self) -> Result<Statement> {
        self.at += 1;
        let tried = self.body()?;
        let mut rescue = None;
        self.skip_breaks();
        if self.eat_word("catch") {
            self.expect("(")?;
            self.skip_type();
            let name = match self.peek() {
                Some(Token::Name(_)) => self.name()?,
                // Groovy's `catch (e)` has no type.
                _ => match self.tokens.get(self.at.saturating_sub(1)) {
                    Some((Token::Name(name), _)) => name.clone(),
                    _ => return Err(self.wrong("a name is expected")),
                },
            };
            self.expect(")")?;
            self.known.insert(name.clone());
            rescue = Some((name, self.body()?));
            self.skip_breaks();
        }
        let last = if self.eat_word("finally") { self.body()? } else { Block::default() };
        Ok(Statement::Try(tried, rescue, last))
    }

    fn expression(&mut self) -> Result<Expression> {
        self.deeper(Self::assignment)
    }

    fn assignment(&mut self) -> Result<Expression> {
        let target = self.choice()?;
        let operators = [
            ("=", Operator::Set),
            ("+=", Operator::Add),
            ("-=", Operator::Subtract),
            ("*=", Operator::Multiply),
            ("/=", Operator::Divide),
            ("%=", Operator::Remainder),
        ];
        for (sign, operator) in operators {
            if self.eat(sign) {
                if operator == Operator::Set
                    && let Some((on, writer)) = writer_of(&target)
                {
                    self.skip_breaks();
                    let value = self.expression()?;
                    return Ok(Expression::Call(Box::new(on), writer, vec![value]));
                }
                self.note_target(&target)?;
                self.skip_breaks();
                let value = self.expression()?;
                if let Expression::Name(name) = &target
                    && self.is_json(&value)
                {
                    self.json.insert(name.clone());
                }
                return Ok(Expression::Assign(Box::new(target), operator, Box::new(value)));
            }
        }
        Ok(target)
    }

    /// Reports whether a value comes from JSON.
    fn is_json(&self, value: &Expression) -> bool {
        match value {
            Expression::Name(name) => self.json.contains(name),
            Expression::Call(_, method, _) if matches!(method.as_str(), "parseText" | "parse") => {
                true
            }
            Expression::Call(on, method, _) => {
                matches!(method.as_str(), "get" | "first" | "last" | "values") && self.is_json(on)
            }
            Expression::Index(on, _) | Expression::Property(on, _) | Expression::Cast(_, on) => {
                self.is_json(on)
            }
            Expression::Safe(inner) => self.is_json(inner),
            Expression::Elvis(one, two) | Expression::Choice(_, one, two) => {
                self.is_json(one) || self.is_json(two)
            }
            _ => false,
        }
    }

    fn note_target(&mut self, target: &Expression) -> Result<()> {
        match target {
            Expression::Name(name) => {
                self.known.insert(name.clone());
                Ok(())
            }
            Expression::Index(..) => Ok(()),
            Expression::Property(on, _) if library::root_of(on) == Some("vars") => Ok(()),
            _ => Err(self.wrong("a name is expected before the assignment")),
        }
    }

    fn choice(&mut self) -> Result<Expression> {
        let condition = self.binary(0)?;
        if self.eat("?:") {
            self.skip_breaks();
            let other = self.expression()?;
            return Ok(Expression::Elvis(Box::new(condition), Box::new(other)));
        }
        if self.eat("?") {
            self.skip_breaks();
            let yes = self.expression()?;
            self.skip_breaks();
            self.expect(":")?;
            self.skip_breaks();
            let no = self.expression()?;
            return Ok(Expression::Choice(Box::new(condition), Box::new(yes), Box::new(no)));
        }
        Ok(condition)
    }

    fn binary(&mut self, level: usize) -> Result<Expression> {
        const LEVELS: [&[(&str, Operator)]; 6] = [
            &[("||", Operator::Or)],
            &[("&&", Operator::And)],
            &[
                ("==~", Operator::Matches),
                ("=~", Operator::Find),
                ("==", Operator::Equal),
                ("!=", Operator::NotEqual),
            ],
            &[
                ("<=", Operator::LessOrEqual),
                (">=", Operator::GreaterOrEqual),
                ("<", Operator::Less),
                (">", Operator::Greater),
            ],
            &[("+", Operator::Add), ("-", Operator::Subtract)],
            &[("*", Operator::Multiply), ("/", Operator::Divide), ("%", Operator::Remainder)],
        ];
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        'again: loop {
            for &(sign, operator) in *operators {
                if self.eat(sign) {
                    self.skip_breaks();
                    let right = self.binary(level + 1)?;
                    left = Expression::Binary(operator, Box::new(left), Box::new(right));
                    continue 'again;
                }
            }
            return Ok(left);
        }
    }

    fn unary(&mut self) -> Result<Expression> {
        self.deeper(Self::unary_inside)
    }

    fn unary_inside(&mut self) -> Result<Expression> {
        if self.eat("!") {
            return Ok(Expression::Not(Box::new(self.unary()?)));
        }
        if self.eat("-") {
            return Ok(Expression::Negate(Box::new(self.unary()?)));
        }
        if self.eat("+") {
            return self.unary();
        }
        for (sign, by) in [("++", 1), ("--", -1)] {
            if self.eat(sign) {
                let target = self.unary()?;
                self.note_target(&target)?;
                return Ok(Expression::Step(Box::new(target), by, false));
            }
        }
        if let Some(class) = self.eat_cast() {
            return Ok(Expression::Cast(class, Box::new(self.unary()?)));
        }
        let mut value = self.primary()?;
        loop {
            value = match self.follow(value)? {
                (value, true) => value,
                (value, false) => break Ok(value),
            };
        }
    }

    /// Takes `(Type)` in front of a value.
    fn eat_cast(&mut self) -> Option<String> {
        let start = self.at;
        if self.eat("(")
            && let Some(Token::Name(name)) = self.peek().cloned()
            && self.skip_type()
            && self.eat(")")
            && (library::is_cast(&name) || name.starts_with(|c: char| c.is_uppercase()))
            && matches!(
                self.peek(),
                Some(
                    Token::Name(_)
                        | Token::Int(_)
                        | Token::Double(_)
                        | Token::Text(_)
                        | Token::Filled(..)
                        | Token::Sign("(" | "-")
                )
            )
        {
            return Some(name);
        }
        self.at = start;
        None
    }

    /// Reads what may follow a value: a call, a place, a step; false if nothing does.
    fn follow(&mut self, value: Expression) -> Result<(Expression, bool)> {
        // A line that begins with a point goes on with the one before.
        let before = self.at;
        self.skip_breaks();
        if !matches!(self.peek(), Some(Token::Sign("." | "?."))) {
            self.at = before;
        }
        let is_safe = self.peek() == Some(&Token::Sign("?."));
        if self.eat(".") || self.eat("?.") {
            let line = self.line();
            let name = self.name()?;
            if self.peek() == Some(&Token::Sign("(")) {
                let arguments = self.arguments()?;
                library::check_call(&value, &name, arguments.len())
                    .map_err(|fault| format!("line {line}: {fault}"))?;
                let has_root = library::root_of(&value).is_some();
                let call = Expression::Call(Box::new(value), name, arguments);
                // What JMeter gives is always there.
                let is_safe = is_safe && !has_root;
                return Ok((if is_safe { Expression::Safe(Box::new(call)) } else { call }, true));
            }
            if library::root_of(&value).is_some() && self.begins_argument() {
                let arguments = self.bare_arguments()?;
                library::check_call(&value, &name, arguments.len())
                    .map_err(|fault| format!("line {line}: {fault}"))?;
                return Ok((Expression::Call(Box::new(value), name, arguments), true));
            }
            // A property of a thing of JMeter's is read by its method.
            if let Some(reader) =
                library::root_of(&value).and_then(|root| library::reader_of(root, &name))
            {
                return Ok((Expression::Call(Box::new(value), reader, Vec::new()), true));
            }
            library::check_property(&value, &name, self.is_json(&value))
                .map_err(|fault| format!("line {line}: {fault}"))?;
            let property = Expression::Property(Box::new(value), name);
            return Ok((
                if is_safe { Expression::Safe(Box::new(property)) } else { property },
                true,
            ));
        }
        if self.eat("[") {
            self.skips_breaks += 1;
            let place = self.expression()?;
            self.expect("]")?;
            self.skips_breaks -= 1;
            return Ok((Expression::Index(Box::new(value), Box::new(place)), true));
        }
        for (sign, by) in [("++", 1), ("--", -1)] {
            if self.eat(sign) {
                self.note_target(&value)?;
                return Ok((Expression::Step(Box::new(value), by, true), true));
            }
        }
        Ok((value, false))
    }

    fn arguments(&mut self) -> Result<Vec<Expression>> {
        self.expect("(")?;
        self.skips_breaks += 1;
        let list = self.list(")");
        self.skips_breaks -= 1;
        list
    }

    /// Reports whether arguments follow that stand in no parentheses, as Groovy allows: here only where a text begins them.
    fn begins_argument(&mut self) -> bool {
        self.dialect == Dialect::Groovy
            && matches!(self.peek(), Some(Token::Text(_) | Token::Filled(..)))
    }

    fn bare_arguments(&mut self) -> Result<Vec<Expression>> {
        let mut all = vec![self.expression()?];
        while self.eat(",") {
            all.push(self.expression()?);
        }
        Ok(all)
    }

    fn list(&mut self, end: &'static str) -> Result<Vec<Expression>> {
        let mut all = Vec::new();
        if self.eat(end) {
            return Ok(all);
        }
        loop {
            all.push(self.expression()?);
            if self.eat(end) {
                return Ok(all);
            }
            self.expect(",")?;
        }
    }

    fn primary(&mut self) -> Result<Expression> {
        let line = self.line();
        match self.take() {
            Some(Token::Int(number)) => Ok(Expression::Int(number)),
            Some(Token::Double(number)) => Ok(Expression::Double(number)),
            Some(Token::Text(text)) => Ok(Expression::Text(text)),
            Some(Token::Filled(pieces, last)) => self.filled(pieces, last, line),
            Some(Token::Sign("(")) => {
                self.at -= 1;
                self.in_parentheses()
            }
            Some(Token::Sign("[")) => {
                self.skips_breaks += 1;
                let list = self.list("]");
                self.skips_breaks -= 1;
                list.map(Expression::List)
            }
            Some(Token::Name(name)) => self.word(name, line),
            _ => {
                self.at = self.at.saturating_sub(1);
                Err(self.wrong("a value is expected"))
            }
        }
    }

    fn filled(
        &mut self,
        pieces: Vec<(String, String)>,
        last: String,
        line: usize,
    ) -> Result<Expression> {
        let mut parts = Vec::new();
        for (before, inside) in pieces {
            parts.push(Expression::Text(before));
            let tokens = lex(&inside, true)?;
            let mut parser = Self {
                tokens,
                at: 0,
                dialect: self.dialect,
                depth: self.depth + 1,
                known: HashSet::new(),
                json: self.json.clone(),
                wanted: Vec::new(),
                skips_breaks: 1,
            };
            parts.push(
                parser
                    .expression()
                    .map_err(|fault| format!("line {line}: in `{inside}`: {fault}"))?,
            );
            if parser.peek().is_some() {
                return Err(format!("line {line}: `{inside}` is not supported"));
            }
            self.wanted.extend(parser.wanted.into_iter().map(|(name, _)| (name, line)));
        }
        parts.push(Expression::Text(last));
        Ok(Expression::Filled(parts))
    }

    fn word(&mut self, name: String, line: usize) -> Result<Expression> {
        match name.as_str() {
            "true" => return Ok(Expression::Bool(true)),
            "false" => return Ok(Expression::Bool(false)),
            "null" => return Ok(Expression::Null),
            "new" => {
                let class = self.class_name()?;
                let arguments = self.arguments()?;
                library::check_new(&class, arguments.len())
                    .map_err(|fault| format!("line {line}: {fault}"))?;
                return Ok(Expression::New(class, arguments));
            }
            "println" | "print" if self.peek() == Some(&Token::Sign("(")) => {
                let arguments = self.arguments()?;
                return Ok(Expression::Static("System".to_owned(), "print".to_owned(), arguments));
            }
            "println" | "print" if self.begins_argument() => {
                let arguments = self.bare_arguments()?;
                return Ok(Expression::Static("System".to_owned(), "print".to_owned(), arguments));
            }
            _ => {}
        }
        let is_package = matches!(name.as_str(), "java" | "javax" | "org" | "com" | "groovy");
        let class = if is_package {
            self.expect(".")?;
            self.class_name()?
        } else {
            name.clone()
        };
        if library::is_class(&class) && self.peek() == Some(&Token::Sign(".")) {
            self.at += 1;
            let method = self.name()?;
            let arguments =
                if self.peek() == Some(&Token::Sign("(")) { Some(self.arguments()?) } else { None };
            library::check_static(&class, &method, arguments.as_ref().map(Vec::len))
                .map_err(|fault| format!("line {line}: {fault}"))?;
            return Ok(Expression::Static(class, method, arguments.unwrap_or_default()));
        }
        if is_package {
            return Err(format!("line {line}: script uses `{class}` (not supported)"));
        }
        if self.peek() == Some(&Token::Sign("(")) {
            return Err(format!("line {line}: script calls `{name}` (not supported)"));
        }
        self.wanted.push((name.clone(), line));
        Ok(Expression::Name(name))
    }

    /// Reads a class's name and drops its package and parameters.
    fn class_name(&mut self) -> Result<String> {
        let mut name = self.name()?;
        while name.starts_with(|c: char| c.is_lowercase()) && self.eat(".") {
            name = self.name()?;
        }
        if self.eat("<") {
            while !self.eat(">") {
                if self.take().is_none() {
                    return Err("`>` is missing".to_owned());
                }
            }
        }
        Ok(name)
    }
}
