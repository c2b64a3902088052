//! Formatting of queries as JCR-SQL2.

use std::fmt;

use tympan_content::Value;

use crate::algebra::{
    ContentQuery, JoinCondition, JoinKind, QueryColumn, QueryColumnContent, QueryConstraint,
    QueryLiteral, QueryOperand, QuerySelector, SelectStatement, TraversalPolicy,
};

impl fmt::Display for ContentQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, part) in self.selects.iter().enumerate() {
            if number > 0 {
                f.write_str(if self.union_all { " UNION ALL " } else { " UNION " })?;
            }
            write!(f, "{part}")?;
        }
        for (number, ordering) in self.orderings.iter().enumerate() {
            f.write_str(if number == 0 { " ORDER BY " } else { ", " })?;
            write!(f, "{}", ordering.operand)?;
            f.write_str(if ordering.is_descending { " DESC" } else { " ASC" })?;
        }
        self.write_options(f)
    }
}

impl ContentQuery {
    fn write_options(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = &self.options;
        let traversal = options.traversal.map(|mode| match mode {
            TraversalPolicy::Ok => "TRAVERSAL OK".to_owned(),
            TraversalPolicy::Warn => "TRAVERSAL WARN".to_owned(),
            TraversalPolicy::Fail => "TRAVERSAL FAIL".to_owned(),
        });
        let parts = [
            traversal,
            options.index_name.as_ref().map(|name| format!("INDEX NAME [{}]", bracketed(name))),
            options.index_tag.as_ref().map(|tag| format!("INDEX TAG [{}]", bracketed(tag))),
            options.limit.map(|limit| format!("LIMIT {limit}")),
            options.offset.map(|offset| format!("OFFSET {offset}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { Ok(()) } else { write!(f, " OPTION({})", parts.join(", ")) }
    }
}

impl fmt::Display for SelectStatement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SELECT ")?;
        for (number, column) in self.columns.iter().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{column}")?;
        }
        let Self { selector: name, joins, constraint, .. } = self;
        write!(
            f,
            " FROM [{}] AS {}",
            bracketed(&name.node_type),
            format_selector_name(&name.name)
        )?;
        for join in joins {
            let kind = match join.kind {
                JoinKind::Inner => "INNER",
                JoinKind::LeftOuter => "LEFT OUTER",
            };
            let QuerySelector { node_type, name } = &join.selector;
            write!(f, " {kind} JOIN [{}] AS {}", bracketed(node_type), format_selector_name(name))?;
            write!(f, " ON {}", join.condition)?;
        }
        constraint.as_ref().map_or(Ok(()), |constraint| write!(f, " WHERE {constraint}"))
    }
}

impl fmt::Display for QueryColumn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let selector = format_selector_name(&self.selector);
        match &self.content {
            QueryColumnContent::All => write!(f, "{selector}.*")?,
            QueryColumnContent::Property(property) => {
                write!(f, "{selector}.[{}]", bracketed(property))?;
            }
            QueryColumnContent::Excerpt(None) => write!(f, "{selector}.[rep:excerpt()]")?,
            QueryColumnContent::Excerpt(Some(property)) => {
                write!(f, "{selector}.[rep:excerpt({})]", bracketed(property))?;
            }
            QueryColumnContent::Facet(property) => {
                write!(f, "{selector}.[rep:facet({})]", bracketed(property))?;
            }
            QueryColumnContent::Suggest => write!(f, "{selector}.[rep:suggest()]")?,
            QueryColumnContent::Spellcheck => write!(f, "{selector}.[rep:spellcheck()]")?,
        }
        self.alias.as_ref().map_or(Ok(()), |alias| write!(f, " AS [{}]", bracketed(alias)))
    }
}

impl fmt::Display for JoinCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal { left, right } => {
                let (left_name, right_name) =
                    (format_selector_name(&left.0), format_selector_name(&right.0));
                let (left, right) = (bracketed(&left.1), bracketed(&right.1));
                write!(f, "{left_name}.[{left}] = {right_name}.[{right}]")
            }
            Self::Child { child, parent } => {
                write!(
                    f,
                    "ISCHILDNODE({}, {})",
                    format_selector_name(child),
                    format_selector_name(parent)
                )
            }
            Self::Descendant { descendant, ancestor } => {
                write!(
                    f,
                    "ISDESCENDANTNODE({}, {})",
                    format_selector_name(descendant),
                    format_selector_name(ancestor)
                )
            }
            Self::Same { left, right, path: None } => {
                write!(
                    f,
                    "ISSAMENODE({}, {})",
                    format_selector_name(left),
                    format_selector_name(right)
                )
            }
            Self::Same { left, right, path: Some(path) } => {
                write!(
                    f,
                    "ISSAMENODE({}, {}, {})",
                    format_selector_name(left),
                    format_selector_name(right),
                    quoted(path)
                )
            }
        }
    }
}

impl fmt::Display for QueryConstraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::And(parts) => write_constraints(f, parts, " AND "),
            Self::Or(parts) => write_constraints(f, parts, " OR "),
            Self::Not(inner) => write!(f, "NOT ({inner})"),
            Self::Compare { operand, operator, value } => {
                write!(f, "{operand} {} {value}", operator.symbol())
            }
            Self::In { operand, values } => {
                let values: Vec<String> = values.iter().map(QueryLiteral::to_string).collect();
                write!(f, "{operand} IN ({})", values.join(", "))
            }
            Self::Exists { selector, property } => {
                write!(
                    f,
                    "{}.[{}] IS NOT NULL",
                    format_selector_name(selector),
                    bracketed(property)
                )
            }
            Self::Contains { selector, property: None, text } => {
                write!(f, "CONTAINS({}.*, {text})", format_selector_name(selector))
            }
            Self::Contains { selector, property: Some(property), text } => {
                write!(
                    f,
                    "CONTAINS({}.[{}], {text})",
                    format_selector_name(selector),
                    bracketed(property)
                )
            }
            Self::Same { selector, path } => {
                write!(
                    f,
                    "ISSAMENODE({}, {})",
                    format_selector_name(selector),
                    quoted(path.as_str())
                )
            }
            Self::Child { selector, path } => {
                write!(
                    f,
                    "ISCHILDNODE({}, {})",
                    format_selector_name(selector),
                    quoted(path.as_str())
                )
            }
            Self::Descendant { selector, path } => {
                write!(
                    f,
                    "ISDESCENDANTNODE({}, {})",
                    format_selector_name(selector),
                    quoted(path.as_str())
                )
            }
            Self::Similar { selector, path } => {
                write!(f, "SIMILAR({}.*, {path})", format_selector_name(selector))
            }
            Self::Spellcheck { selector, text } => {
                write!(f, "SPELLCHECK({}, {text})", format_selector_name(selector))
            }
            Self::Suggest { selector, text } => {
                write!(f, "SUGGEST({}, {text})", format_selector_name(selector))
            }
        }
    }
}

impl fmt::Display for QueryOperand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Property { selector, name } => {
                write!(f, "{}.[{}]", format_selector_name(selector), bracketed(name))
            }
            Self::Length(inner) => write!(f, "LENGTH({inner})"),
            Self::Upper(inner) => write!(f, "UPPER({inner})"),
            Self::Lower(inner) => write!(f, "LOWER({inner})"),
            Self::Coalesce(first, second) => write!(f, "COALESCE({first}, {second})"),
            Self::Name(selector) => write!(f, "NAME({})", format_selector_name(selector)),
            Self::LocalName(selector) => write!(f, "LOCALNAME({})", format_selector_name(selector)),
            Self::Path(selector) => write!(f, "{}.[jcr:path]", format_selector_name(selector)),
            Self::Score(selector) => write!(f, "SCORE({})", format_selector_name(selector)),
        }
    }
}

impl fmt::Display for QueryLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Self::Variable(name) => return write!(f, "${name}"),
            Self::Value(value) => value,
        };
        match value {
            Value::String(text) => f.write_str(&quoted(text)),
            Value::Long(number) if *number >= 0 => write!(f, "{number}"),
            Value::Boolean(truth) => write!(f, "{truth}"),
            typed_value => {
                let (text, kind) = (quoted(&typed_value.to_text()), typed_value.value_type());
                write!(f, "CAST({text} AS {})", kind.name().to_uppercase())
            }
        }
    }
}

fn write_constraints(
    f: &mut fmt::Formatter<'_>,
    parts: &[QueryConstraint],
    between: &str,
) -> fmt::Result {
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            f.write_str(between)?;
        }
        match part {
            QueryConstraint::And(_) | QueryConstraint::Or(_) => write!(f, "({part})")?,
            part => write!(f, "{part}")?,
        }
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn bracketed(text: &str) -> String {
    text.replace(']', "]]")
}

/// Writes the name of a selector, in brackets unless it is a plain word.
fn format_selector_name(text: &str) -> String {
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    if is_plain { text.to_owned() } else { format!("[{}]", bracketed(text)) }
}
