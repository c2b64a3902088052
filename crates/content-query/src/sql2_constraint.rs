//! The conditions and values of JCR-SQL2.

use tympan_content::{NodePath, Value, ValueType};

use crate::algebra::{ComparisonOperator, QueryConstraint, QueryLiteral, QueryOperand};
use crate::sql2_parser::{QueryParseResult, Sql2Parser};
use crate::sql2_token::Sql2TokenKind;
use crate::syntax_error::QuerySyntaxError;

impl Sql2Parser<'_> {
    pub(crate) fn parse_constraint(&mut self) -> QueryParseResult<QueryConstraint> {
        self.enter_nesting()?;
        let mut parts = vec![self.parse_conjunction()?];
        while self.take_keyword("OR") {
            parts.push(self.parse_conjunction()?);
        }
        self.leave_nesting();
        Ok(join_constraints(parts, QueryConstraint::Or))
    }

    fn parse_conjunction(&mut self) -> QueryParseResult<QueryConstraint> {
        let mut parts = vec![self.parse_negation()?];
        while self.take_keyword("AND") {
            parts.push(self.parse_negation()?);
        }
        Ok(join_constraints(parts, QueryConstraint::And))
    }

    fn parse_negation(&mut self) -> QueryParseResult<QueryConstraint> {
        if self.take_keyword("NOT") {
            self.enter_nesting()?;
            let inner = self.parse_negation()?;
            self.leave_nesting();
            return Ok(QueryConstraint::Not(Box::new(inner)));
        }
        if self.take_symbol("(") {
            let inner = self.parse_constraint()?;
            self.expect_symbol(")")?;
            return Ok(inner);
        }
        self.parse_condition()
    }

    /// Returns the name of the function called at this position, in upper case.
    fn peek_function(&self) -> Option<String> {
        match self.current_kind() {
            Sql2TokenKind::Word(name) if *self.peek_kind(1) == Sql2TokenKind::Symbol("(") => {
                Some(name.to_ascii_uppercase())
            }
            _ => None,
        }
    }

    fn parse_condition(&mut self) -> QueryParseResult<QueryConstraint> {
        match self.peek_function().as_deref() {
            Some("ISDESCENDANTNODE" | "ISCHILDNODE" | "ISSAMENODE") => self.parse_path_constraint(),
            Some("CONTAINS") => self.parse_contains(),
            Some("SIMILAR") => self.parse_similar(),
            Some(function @ ("SPELLCHECK" | "SUGGEST")) => {
                let is_spellcheck = function == "SPELLCHECK";
                self.parse_suggestion(is_spellcheck)
            }
            Some("NATIVE") => {
                self.expected_error("a condition; `NATIVE` is not supported, use `CONTAINS`")
            }
            _ => self.parse_comparison(),
        }
    }

    fn parse_path_constraint(&mut self) -> QueryParseResult<QueryConstraint> {
        let function = self.peek_function().unwrap_or_default();
        self.advance();
        self.expect_symbol("(")?;
        let selector = self.parse_leading_selector()?;
        let path = self.parse_path()?;
        self.expect_symbol(")")?;
        Ok(match &*function {
            "ISCHILDNODE" => QueryConstraint::Child { selector, path },
            "ISDESCENDANTNODE" => QueryConstraint::Descendant { selector, path },
            _ => QueryConstraint::Same { selector, path },
        })
    }

    fn parse_path(&mut self) -> QueryParseResult<NodePath> {
        let column = self.current_column();
        let text = match self.current_kind() {
            Sql2TokenKind::Text(text) | Sql2TokenKind::Name(text) | Sql2TokenKind::Word(text) => {
                text.clone()
            }
            _ => return self.expected_error("an absolute path in quotes"),
        };
        self.advance();
        parse_absolute_path(&text, column)
    }

    /// Reads `selector.*`, `selector.[p]`, `[p]`, `.` or `*`.
    fn parse_text_scope(&mut self) -> QueryParseResult<(String, Option<String>)> {
        if self.take_symbol("*") || self.take_symbol(".") {
            return Ok((self.only_selector()?, None));
        }
        let column = self.current_column();
        let name = self.parse_name("a property, or `*`")?;
        if self.take_symbol(".") {
            if !self.is_selector(&name) {
                return Err(QuerySyntaxError::new(
                    column,
                    format!("there is no selector `{name}`"),
                ));
            }
            if self.take_symbol("*") {
                return Ok((name, None));
            }
            return Ok((name, Some(self.parse_name("the name of a property, or `*`")?)));
        }
        if self.is_selector(&name) {
            return Ok((name, None));
        }
        Ok((self.only_selector()?, Some(name)))
    }

    fn parse_contains(&mut self) -> QueryParseResult<QueryConstraint> {
        self.advance();
        self.expect_symbol("(")?;
        let (selector, property) = self.parse_text_scope()?;
        self.expect_symbol(",")?;
        let column = self.current_column();
        let text = self.parse_literal()?;
        if let QueryLiteral::Value(value) = &text {
            crate::FullTextExpression::parse(&value.to_text()).map_err(|error| {
                // A text without quotes in it has the same columns as the expression, so both columns add up.
                QuerySyntaxError::new(column + error.column, error.message)
            })?;
        }
        self.expect_symbol(")")?;
        Ok(QueryConstraint::Contains { selector, property, text })
    }

    /// Parses the selector that precedes the first argument of a function; without one, the query must have one only.
    fn parse_leading_selector(&mut self) -> QueryParseResult<String> {
        if *self.peek_kind(1) != Sql2TokenKind::Symbol(",") {
            return self.only_selector();
        }
        let selector = self.parse_known_selector()?;
        self.expect_symbol(",")?;
        Ok(selector)
    }

    fn parse_similar(&mut self) -> QueryParseResult<QueryConstraint> {
        self.advance();
        self.expect_symbol("(")?;
        let (selector, _) = self.parse_text_scope()?;
        self.expect_symbol(",")?;
        let path = self.parse_literal()?;
        self.expect_symbol(")")?;
        Ok(QueryConstraint::Similar { selector, path })
    }

    fn parse_suggestion(&mut self, is_spellcheck: bool) -> QueryParseResult<QueryConstraint> {
        self.advance();
        self.expect_symbol("(")?;
        let selector = self.parse_leading_selector()?;
        let text = self.parse_literal()?;
        self.expect_symbol(")")?;
        Ok(if is_spellcheck {
            QueryConstraint::Spellcheck { selector, text }
        } else {
            QueryConstraint::Suggest { selector, text }
        })
    }

    fn parse_comparison(&mut self) -> QueryParseResult<QueryConstraint> {
        let operand = self.parse_operand()?;
        if self.take_keyword("IS") {
            let is_denied = self.take_keyword("NOT");
            self.expect_keyword("NULL")?;
            let QueryOperand::Property { selector, name } = operand else {
                return self.expected_error("a property before `IS NULL`");
            };
            let exists = QueryConstraint::Exists { selector, property: name };
            return Ok(if is_denied { exists } else { QueryConstraint::Not(Box::new(exists)) });
        }
        let is_denied = self.take_keyword("NOT");
        let constraint = if self.take_keyword("IN") {
            self.expect_symbol("(")?;
            let mut values = vec![self.parse_literal()?];
            while self.take_symbol(",") {
                values.push(self.parse_literal()?);
            }
            self.expect_symbol(")")?;
            QueryConstraint::In { operand, values }
        } else if self.take_keyword("LIKE") {
            QueryConstraint::Compare {
                operand,
                operator: ComparisonOperator::Like,
                value: self.parse_literal()?,
            }
        } else if is_denied {
            return self.expected_error("`IN` or `LIKE` after `NOT`");
        } else {
            let operator = self.parse_operator()?;
            QueryConstraint::Compare { operand, operator, value: self.parse_literal()? }
        };
        Ok(if is_denied { QueryConstraint::Not(Box::new(constraint)) } else { constraint })
    }

    fn parse_operator(&mut self) -> QueryParseResult<ComparisonOperator> {
        let operators = [
            ("=", ComparisonOperator::Equal),
            ("<>", ComparisonOperator::NotEqual),
            ("!=", ComparisonOperator::NotEqual),
            ("<", ComparisonOperator::Less),
            ("<=", ComparisonOperator::LessOrEqual),
            (">", ComparisonOperator::Greater),
            (">=", ComparisonOperator::GreaterOrEqual),
        ];
        for (symbol, operator) in operators {
            if self.take_symbol(symbol) {
                return Ok(operator);
            }
        }
        self.expected_error(
            "a comparison: `=`, `<>`, `<`, `<=`, `>`, `>=`, `LIKE`, `IN` or `IS NULL`",
        )
    }

    pub(crate) fn parse_operand(&mut self) -> QueryParseResult<QueryOperand> {
        self.enter_nesting()?;
        let operand = match self.peek_function() {
            Some(function) => self.parse_function_operand(&function)?,
            None => self.parse_property_operand()?,
        };
        self.leave_nesting();
        Ok(operand)
    }

    fn parse_function_operand(&mut self, function: &str) -> QueryParseResult<QueryOperand> {
        let is_known = matches!(
            function,
            "LENGTH" | "UPPER" | "LOWER" | "COALESCE" | "NAME" | "LOCALNAME" | "PATH" | "SCORE"
        );
        if !is_known {
            return self.expected_error("a property or one of the functions `LENGTH`, `UPPER`, `LOWER`, `COALESCE`, `NAME`, `LOCALNAME`, `SCORE`");
        }
        self.advance();
        self.expect_symbol("(")?;
        let operand = match function {
            "LENGTH" => QueryOperand::Length(Box::new(self.parse_operand()?)),
            "UPPER" => QueryOperand::Upper(Box::new(self.parse_operand()?)),
            "LOWER" => QueryOperand::Lower(Box::new(self.parse_operand()?)),
            "COALESCE" => {
                let first = self.parse_operand()?;
                self.expect_symbol(",")?;
                QueryOperand::Coalesce(Box::new(first), Box::new(self.parse_operand()?))
            }
            _ => {
                let selector = if *self.current_kind() == Sql2TokenKind::Symbol(")") {
                    self.only_selector()?
                } else {
                    self.parse_known_selector()?
                };
                match function {
                    "NAME" => QueryOperand::Name(selector),
                    "LOCALNAME" => QueryOperand::LocalName(selector),
                    "PATH" => QueryOperand::Path(selector),
                    _ => QueryOperand::Score(selector),
                }
            }
        };
        self.expect_symbol(")")?;
        Ok(operand)
    }

    fn parse_property_operand(&mut self) -> QueryParseResult<QueryOperand> {
        let column = self.current_column();
        let mut name = self.parse_name("a property or a function")?;
        let selector = if self.take_symbol(".") {
            if !self.is_selector(&name) {
                return Err(QuerySyntaxError::new(
                    column,
                    format!("there is no selector `{name}`"),
                ));
            }
            std::mem::replace(
                &mut name,
                self.parse_name("the name of a property, such as `[jcr:title]`")?,
            )
        } else {
            self.only_selector()?
        };
        Ok(operand_for_name(selector, name))
    }

    fn parse_literal(&mut self) -> QueryParseResult<QueryLiteral> {
        let column = self.current_column();
        let is_negative = self.take_symbol("-");
        match self.current_kind().clone() {
            Sql2TokenKind::Number(digits) => {
                self.advance();
                let sign = if is_negative { "-" } else { "" };
                parse_number_literal(&format!("{sign}{digits}"), column)
            }
            _ if is_negative => self.expected_error("a number after `-`"),
            Sql2TokenKind::Text(text) => {
                self.advance();
                Ok(QueryLiteral::from_text(text))
            }
            Sql2TokenKind::Variable(name) => {
                self.advance();
                Ok(QueryLiteral::Variable(name))
            }
            Sql2TokenKind::Word(keyword) if keyword.eq_ignore_ascii_case("CAST") => {
                self.parse_cast()
            }
            Sql2TokenKind::Word(keyword)
                if ["true", "false"].contains(&&*keyword.to_ascii_lowercase()) =>
            {
                self.advance();
                Ok(QueryLiteral::Value(Value::Boolean(keyword.eq_ignore_ascii_case("true"))))
            }
            _ => self.expected_error(
                "a value: `'text'`, a number, `true`, `CAST('…' AS DATE)` or `$name`",
            ),
        }
    }

    fn parse_cast(&mut self) -> QueryParseResult<QueryLiteral> {
        self.advance();
        self.expect_symbol("(")?;
        let column = self.current_column();
        let (Sql2TokenKind::Text(text) | Sql2TokenKind::Number(text)) = self.current_kind().clone()
        else {
            return self.expected_error("a value in quotes");
        };
        self.advance();
        self.expect_keyword("AS")?;
        let kind_column = self.current_column();
        let kind = self.parse_name("a type, such as `DATE`")?;
        let Some(kind) = ValueType::find(&kind).filter(|kind| *kind != ValueType::Binary) else {
            let message = format!(
                "there is no type `{kind}`; use `DATE`, `LONG`, `DOUBLE`, `DECIMAL`, `BOOLEAN`, `STRING`, `NAME`, `PATH`, `REFERENCE`, `WEAKREFERENCE` or `URI`"
            );
            return Err(QuerySyntaxError::new(kind_column, message));
        };
        self.expect_symbol(")")?;
        let value = Value::parse(kind, &text)
            .map_err(|error| QuerySyntaxError::new(column, error.to_string()))?;
        Ok(QueryLiteral::Value(value))
    }
}

/// Parses a number; one without a fraction is a long.
pub(crate) fn parse_number_literal(digits: &str, column: usize) -> QueryParseResult<QueryLiteral> {
    let value = if digits.contains('.') {
        Value::parse(ValueType::Double, digits)
    } else {
        Value::parse(ValueType::Long, digits)
    };
    let wrong = |_| QuerySyntaxError::new(column, format!("`{digits}` is not a 64-bit number"));
    value.map(QueryLiteral::Value).map_err(wrong)
}

/// Parses an absolute path; a trailing slash is accepted.
pub(crate) fn parse_absolute_path(text: &str, column: usize) -> QueryParseResult<NodePath> {
    let trimmed = if text.len() > 1 { text.trim_end_matches('/') } else { text };
    NodePath::new(trimmed).map_err(|error| QuerySyntaxError::new(column, error.to_string()))
}

/// Returns the operand for a property name; some names denote facts about the node.
pub(crate) fn operand_for_name(selector: String, name: String) -> QueryOperand {
    match &*name {
        "jcr:path" => QueryOperand::Path(selector),
        "jcr:score" => QueryOperand::Score(selector),
        _ => QueryOperand::Property { selector, name },
    }
}

fn join_constraints(
    mut parts: Vec<QueryConstraint>,
    join: fn(Vec<QueryConstraint>) -> QueryConstraint,
) -> QueryConstraint {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            join(parts)
        }
    }
}
