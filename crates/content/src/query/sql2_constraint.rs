//! The conditions and values of JCR-SQL2.

use super::algebra::{Constraint, Literal, Operand, Operator};
use super::sql2::{Parsed, Parser};
use super::sql2_token::TokenKind;
use super::syntax_error::SyntaxError;
use crate::{NodePath, Value, ValueType};

impl Parser<'_> {
    pub(crate) fn constraint(&mut self) -> Parsed<Constraint> {
        self.enter()?;
        let mut parts = vec![self.conjunction()?];
        while self.take_word("OR") {
            parts.push(self.conjunction()?);
        }
        self.leave();
        Ok(joined(parts, Constraint::Or))
    }

    fn conjunction(&mut self) -> Parsed<Constraint> {
        let mut parts = vec![self.negation()?];
        while self.take_word("AND") {
            parts.push(self.negation()?);
        }
        Ok(joined(parts, Constraint::And))
    }

    fn negation(&mut self) -> Parsed<Constraint> {
        if self.take_word("NOT") {
            self.enter()?;
            let inner = self.negation()?;
            self.leave();
            return Ok(Constraint::Not(Box::new(inner)));
        }
        if self.take_symbol("(") {
            let inner = self.constraint()?;
            self.need_symbol(")")?;
            return Ok(inner);
        }
        self.condition()
    }

    /// Tells which function is called here, in capitals.
    fn function(&self) -> Option<String> {
        match self.kind() {
            TokenKind::Word(word) if *self.ahead(1) == TokenKind::Symbol("(") => {
                Some(word.to_ascii_uppercase())
            }
            _ => None,
        }
    }

    fn condition(&mut self) -> Parsed<Constraint> {
        match self.function().as_deref() {
            Some("ISDESCENDANTNODE" | "ISCHILDNODE" | "ISSAMENODE") => self.place(),
            Some("CONTAINS") => self.contains(),
            Some("SIMILAR") => self.similar(),
            Some(function @ ("SPELLCHECK" | "SUGGEST")) => {
                let is_spellcheck = function == "SPELLCHECK";
                self.words(is_spellcheck)
            }
            Some("NATIVE") => {
                self.expected("a condition; `NATIVE` is not supported, use `CONTAINS`")
            }
            _ => self.comparison(),
        }
    }

    fn place(&mut self) -> Parsed<Constraint> {
        let function = self.function().unwrap_or_default();
        self.advance();
        self.need_symbol("(")?;
        let has_selector = *self.ahead(1) == TokenKind::Symbol(",");
        let selector = if has_selector {
            let selector = self.known_selector()?;
            self.need_symbol(",")?;
            selector
        } else {
            self.only_selector()?
        };
        let path = self.path()?;
        self.need_symbol(")")?;
        Ok(match &*function {
            "ISCHILDNODE" => Constraint::Child { selector, path },
            "ISDESCENDANTNODE" => Constraint::Descendant { selector, path },
            _ => Constraint::Same { selector, path },
        })
    }

    fn path(&mut self) -> Parsed<NodePath> {
        let column = self.column();
        let text = match self.kind() {
            TokenKind::Text(text) | TokenKind::Name(text) | TokenKind::Word(text) => text.clone(),
            _ => return self.expected("an absolute path in quotes"),
        };
        self.advance();
        absolute_path(&text, column)
    }

    /// Reads `selector.*`, `selector.[p]`, `[p]`, `.` or `*`.
    fn text_scope(&mut self) -> Parsed<(String, Option<String>)> {
        if self.take_symbol("*") || self.take_symbol(".") {
            return Ok((self.only_selector()?, None));
        }
        let column = self.column();
        let name = self.name("a property, or `*`")?;
        if self.take_symbol(".") {
            if !self.is_selector(&name) {
                return Err(SyntaxError::new(column, format!("there is no selector `{name}`")));
            }
            if self.take_symbol("*") {
                return Ok((name, None));
            }
            return Ok((name, Some(self.name("the name of a property, or `*`")?)));
        }
        if self.is_selector(&name) {
            return Ok((name, None));
        }
        Ok((self.only_selector()?, Some(name)))
    }

    fn contains(&mut self) -> Parsed<Constraint> {
        self.advance();
        self.need_symbol("(")?;
        let (selector, property) = self.text_scope()?;
        self.need_symbol(",")?;
        let column = self.column();
        let text = self.literal()?;
        if let Literal::Value(value) = &text {
            super::TextExpression::parse(&value.to_text()).map_err(|error| {
                // Of a text without quotes in it, the columns of both add up.
                SyntaxError::new(column + error.column, error.message)
            })?;
        }
        self.need_symbol(")")?;
        Ok(Constraint::Contains { selector, property, text })
    }

    fn similar(&mut self) -> Parsed<Constraint> {
        self.advance();
        self.need_symbol("(")?;
        let (selector, _) = self.text_scope()?;
        self.need_symbol(",")?;
        let path = self.literal()?;
        self.need_symbol(")")?;
        Ok(Constraint::Similar { selector, path })
    }

    fn words(&mut self, is_spellcheck: bool) -> Parsed<Constraint> {
        self.advance();
        self.need_symbol("(")?;
        let has_selector = *self.ahead(1) == TokenKind::Symbol(",");
        let selector = if has_selector {
            let selector = self.known_selector()?;
            self.need_symbol(",")?;
            selector
        } else {
            self.only_selector()?
        };
        let text = self.literal()?;
        self.need_symbol(")")?;
        Ok(if is_spellcheck {
            Constraint::Spellcheck { selector, text }
        } else {
            Constraint::Suggest { selector, text }
        })
    }

    fn comparison(&mut self) -> Parsed<Constraint> {
        let operand = self.operand()?;
        if self.take_word("IS") {
            let is_denied = self.take_word("NOT");
            self.need_word("NULL")?;
            let Operand::Property { selector, name: property } = operand else {
                return self.expected("a property before `IS NULL`");
            };
            let exists = Constraint::Exists { selector, property };
            return Ok(if is_denied { exists } else { Constraint::Not(Box::new(exists)) });
        }
        let is_denied = self.take_word("NOT");
        let found = if self.take_word("IN") {
            self.need_symbol("(")?;
            let mut values = vec![self.literal()?];
            while self.take_symbol(",") {
                values.push(self.literal()?);
            }
            self.need_symbol(")")?;
            Constraint::In { operand, values }
        } else if self.take_word("LIKE") {
            Constraint::Compare { operand, operator: Operator::Like, value: self.literal()? }
        } else if is_denied {
            return self.expected("`IN` or `LIKE` behind `NOT`");
        } else {
            let operator = self.operator()?;
            Constraint::Compare { operand, operator, value: self.literal()? }
        };
        Ok(if is_denied { Constraint::Not(Box::new(found)) } else { found })
    }

    fn operator(&mut self) -> Parsed<Operator> {
        let operators = [
            ("=", Operator::Equal),
            ("<>", Operator::NotEqual),
            ("!=", Operator::NotEqual),
            ("<", Operator::Less),
            ("<=", Operator::LessOrEqual),
            (">", Operator::Greater),
            (">=", Operator::GreaterOrEqual),
        ];
        for (symbol, operator) in operators {
            if self.take_symbol(symbol) {
                return Ok(operator);
            }
        }
        self.expected("a comparison: `=`, `<>`, `<`, `<=`, `>`, `>=`, `LIKE`, `IN` or `IS NULL`")
    }

    pub(crate) fn operand(&mut self) -> Parsed<Operand> {
        self.enter()?;
        let operand = match self.function() {
            Some(function) => self.function_operand(&function)?,
            None => self.property_operand()?,
        };
        self.leave();
        Ok(operand)
    }

    fn function_operand(&mut self, function: &str) -> Parsed<Operand> {
        let is_known = matches!(
            function,
            "LENGTH" | "UPPER" | "LOWER" | "COALESCE" | "NAME" | "LOCALNAME" | "PATH" | "SCORE"
        );
        if !is_known {
            return self.expected("a property or one of the functions `LENGTH`, `UPPER`, `LOWER`, `COALESCE`, `NAME`, `LOCALNAME`, `SCORE`");
        }
        self.advance();
        self.need_symbol("(")?;
        let operand = match function {
            "LENGTH" => Operand::Length(Box::new(self.operand()?)),
            "UPPER" => Operand::Upper(Box::new(self.operand()?)),
            "LOWER" => Operand::Lower(Box::new(self.operand()?)),
            "COALESCE" => {
                let first = self.operand()?;
                self.need_symbol(",")?;
                Operand::Coalesce(Box::new(first), Box::new(self.operand()?))
            }
            _ => {
                let selector = if *self.kind() == TokenKind::Symbol(")") {
                    self.only_selector()?
                } else {
                    self.known_selector()?
                };
                match function {
                    "NAME" => Operand::Name(selector),
                    "LOCALNAME" => Operand::LocalName(selector),
                    "PATH" => Operand::Path(selector),
                    _ => Operand::Score(selector),
                }
            }
        };
        self.need_symbol(")")?;
        Ok(operand)
    }

    fn property_operand(&mut self) -> Parsed<Operand> {
        let column = self.column();
        let mut name = self.name("a property or a function")?;
        let selector = if self.take_symbol(".") {
            if !self.is_selector(&name) {
                return Err(SyntaxError::new(column, format!("there is no selector `{name}`")));
            }
            std::mem::replace(
                &mut name,
                self.name("the name of a property, such as `[jcr:title]`")?,
            )
        } else {
            self.only_selector()?
        };
        Ok(operand_of(selector, name))
    }

    fn literal(&mut self) -> Parsed<Literal> {
        let column = self.column();
        let is_negative = self.take_symbol("-");
        match self.kind().clone() {
            TokenKind::Number(digits) => {
                self.advance();
                let sign = if is_negative { "-" } else { "" };
                number(&format!("{sign}{digits}"), column)
            }
            _ if is_negative => self.expected("a number behind `-`"),
            TokenKind::Text(text) => {
                self.advance();
                Ok(Literal::text(text))
            }
            TokenKind::Variable(name) => {
                self.advance();
                Ok(Literal::Variable(name))
            }
            TokenKind::Word(word) if word.eq_ignore_ascii_case("CAST") => self.cast(),
            TokenKind::Word(word) if ["true", "false"].contains(&&*word.to_ascii_lowercase()) => {
                self.advance();
                Ok(Literal::Value(Value::Boolean(word.eq_ignore_ascii_case("true"))))
            }
            _ => {
                self.expected("a value: `'text'`, a number, `true`, `CAST('…' AS DATE)` or `$name`")
            }
        }
    }

    fn cast(&mut self) -> Parsed<Literal> {
        self.advance();
        self.need_symbol("(")?;
        let column = self.column();
        let (TokenKind::Text(text) | TokenKind::Number(text)) = self.kind().clone() else {
            return self.expected("a value in quotes");
        };
        self.advance();
        self.need_word("AS")?;
        let kind_column = self.column();
        let kind = self.name("a type, such as `DATE`")?;
        let Some(kind) = ValueType::find(&kind).filter(|kind| *kind != ValueType::Binary) else {
            let message = format!(
                "there is no type `{kind}`; use `DATE`, `LONG`, `DOUBLE`, `DECIMAL`, `BOOLEAN`, `STRING`, `NAME`, `PATH`, `REFERENCE`, `WEAKREFERENCE` or `URI`"
            );
            return Err(SyntaxError::new(kind_column, message));
        };
        self.need_symbol(")")?;
        let value = Value::parse(kind, &text)
            .map_err(|error| SyntaxError::new(column, error.to_string()))?;
        Ok(Literal::Value(value))
    }
}

/// Reads a number: a long where it has no fraction.
pub(crate) fn number(digits: &str, column: usize) -> Parsed<Literal> {
    let value = if digits.contains('.') {
        Value::parse(ValueType::Double, digits)
    } else {
        Value::parse(ValueType::Long, digits)
    };
    let wrong = |_| SyntaxError::new(column, format!("`{digits}` is no number of 64 bits"));
    value.map(Literal::Value).map_err(wrong)
}

/// Reads an absolute path; a final slash is forgiven.
pub(crate) fn absolute_path(text: &str, column: usize) -> Parsed<NodePath> {
    let trimmed = if text.len() > 1 { text.trim_end_matches('/') } else { text };
    NodePath::new(trimmed).map_err(|error| SyntaxError::new(column, error.to_string()))
}

/// Returns what a name of a property stands for; some stand for facts about the node.
pub(crate) fn operand_of(selector: String, name: String) -> Operand {
    match &*name {
        "jcr:path" => Operand::Path(selector),
        "jcr:score" => Operand::Score(selector),
        _ => Operand::Property { selector, name },
    }
}

fn joined(mut parts: Vec<Constraint>, join: fn(Vec<Constraint>) -> Constraint) -> Constraint {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            join(parts)
        }
    }
}
