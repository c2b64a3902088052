//! The common representation of all query languages.
//!
//! In: the output of the parsers. Out: the input of the planner; and, printed, JCR-SQL2 that parses to the same query.
//!
//! Invariants
//! * Every selector name in a query is defined by its source.

use std::collections::BTreeMap;

use tympan_content::{NodePath, Value};

use crate::syntax_error::QuerySyntaxError;

/// A query: one selection, or the union of several.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentQuery {
    /// The selections.
    pub selects: Vec<SelectStatement>,
    /// True if duplicate rows of several parts stay in the result.
    pub union_all: bool,
    /// The order of the rows.
    pub orderings: Vec<QueryOrdering>,
    /// Further options.
    pub options: QueryOptions,
}

/// One selection.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectStatement {
    /// The columns of the result.
    pub columns: Vec<QueryColumn>,
    /// The first selector.
    pub selector: QuerySelector,
    /// The joins, from left to right.
    pub joins: Vec<QueryJoin>,
    /// The condition for each row.
    pub constraint: Option<QueryConstraint>,
}

/// A selector: one node of each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerySelector {
    /// Its node type.
    pub node_type: String,
    /// Its name in the query.
    pub name: String,
}

/// A join with a further selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryJoin {
    /// The kind of join.
    pub kind: JoinKind,
    /// The selector.
    pub selector: QuerySelector,
    /// The condition that relates it to the preceding selectors.
    pub condition: JoinCondition,
}

/// The kind of a join: determines the rows that stay without a match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// No row stays without a match.
    Inner,
    /// Rows of the left side stay without a match.
    LeftOuter,
}

/// A condition that relates two nodes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinCondition {
    /// Two properties have a value in common.
    Equal {
        /// Selector and property.
        left: (String, String),
        /// Selector and property.
        right: (String, String),
    },
    /// One is a child of the other.
    Child {
        /// The child.
        child: String,
        /// Its parent.
        parent: String,
    },
    /// One lies below the other.
    Descendant {
        /// The one below.
        descendant: String,
        /// The one above.
        ancestor: String,
    },
    /// They are the same, or the first is at a relative path below the second.
    Same {
        /// The first.
        left: String,
        /// The second.
        right: String,
        /// The path from the second to the first.
        path: Option<String>,
    },
}

/// A column of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryColumn {
    /// The selector.
    pub selector: String,
    /// The content.
    pub content: QueryColumnContent,
    /// The alias, if the query gives one.
    pub alias: Option<String>,
}

/// The content of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryColumnContent {
    /// All properties of the type.
    All,
    /// A property of the node, or of a descendant.
    Property(String),
    /// An excerpt of a property or of the node, with the matching words marked.
    Excerpt(Option<String>),
    /// The number of rows for each value of a property.
    Facet(String),
    /// Completions.
    Suggest,
    /// Spelling corrections.
    Spellcheck,
}

/// A condition on a row.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryConstraint {
    /// All of these conditions hold.
    And(Vec<Self>),
    /// At least one of these conditions holds.
    Or(Vec<Self>),
    /// The condition does not hold.
    Not(Box<Self>),
    /// A value is compared with a fixed one.
    Compare {
        /// The value.
        operand: QueryOperand,
        /// The operator.
        operator: ComparisonOperator,
        /// The fixed value.
        value: QueryLiteral,
    },
    /// A value equals one of these.
    In {
        /// The value.
        operand: QueryOperand,
        /// The accepted values.
        values: Vec<QueryLiteral>,
    },
    /// The property exists.
    Exists {
        /// The selector.
        selector: String,
        /// Its name.
        property: String,
    },
    /// The text contains words.
    Contains {
        /// The selector.
        selector: String,
        /// The property; `None` for any.
        property: Option<String>,
        /// The words, in the syntax of [`FullTextExpression`](crate::FullTextExpression).
        text: QueryLiteral,
    },
    /// The node is at a path.
    Same {
        /// The selector.
        selector: String,
        /// The path.
        path: NodePath,
    },
    /// The node is a child of the node at a path.
    Child {
        /// The selector.
        selector: String,
        /// The path.
        path: NodePath,
    },
    /// The node is a descendant of the node at a path.
    Descendant {
        /// The selector.
        selector: String,
        /// The path.
        path: NodePath,
    },
    /// The text is similar to that of another node.
    Similar {
        /// The selector.
        selector: String,
        /// The path of the other node.
        path: QueryLiteral,
    },
    /// The result is spelling corrections for a text.
    Spellcheck {
        /// The selector.
        selector: String,
        /// The text.
        text: QueryLiteral,
    },
    /// The result is completions of a text.
    Suggest {
        /// The selector.
        selector: String,
        /// The text.
        text: QueryLiteral,
    },
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum ComparisonOperator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Like,
}

impl ComparisonOperator {
    /// Returns the operator's symbol in the query languages.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Like => "LIKE",
        }
    }
}

/// A value that depends on the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryOperand {
    /// The values of a property of the node, or of a descendant.
    Property {
        /// The selector.
        selector: String,
        /// The name, or a relative path that ends with it.
        name: String,
    },
    /// The length of a value.
    Length(Box<Self>),
    /// The value in upper case.
    Upper(Box<Self>),
    /// The value in lower case.
    Lower(Box<Self>),
    /// The first of the two that exists.
    Coalesce(Box<Self>, Box<Self>),
    /// The name of the node.
    Name(String),
    /// The name of the node without its prefix.
    LocalName(String),
    /// The path of the node.
    Path(String),
    /// The score of the text match.
    Score(String),
}

/// A fixed value.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryLiteral {
    /// A value in the query.
    Value(Value),
    /// A bind variable.
    Variable(String),
}

/// One ordering of the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryOrdering {
    /// The value to sort by.
    pub operand: QueryOperand,
    /// True for descending order.
    pub is_descending: bool,
}

/// The options of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryOptions {
    /// The treatment of a query that no index serves.
    pub traversal: Option<TraversalPolicy>,
    /// The index to use.
    pub index_name: Option<String>,
    /// The tag of the indexes to use.
    pub index_tag: Option<String>,
    /// Maximum number of rows.
    pub limit: Option<u64>,
    /// Number of rows to skip.
    pub offset: Option<u64>,
}

impl QueryOptions {
    /// No options.
    pub(crate) const NONE: Self =
        Self { traversal: None, index_name: None, index_tag: None, limit: None, offset: None };
}

/// The treatment of a query that no index serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraversalPolicy {
    /// Run the query.
    Ok,
    /// Run the query and log a warning.
    Warn,
    /// Refuse the query.
    Fail,
}

impl QueryOperand {
    /// Returns the selector that the value depends on.
    #[must_use]
    pub fn selector(&self) -> &str {
        match self {
            Self::Property { selector, .. }
            | Self::Name(selector)
            | Self::LocalName(selector)
            | Self::Path(selector)
            | Self::Score(selector) => selector,
            Self::Length(inner)
            | Self::Upper(inner)
            | Self::Lower(inner)
            | Self::Coalesce(inner, _) => inner.selector(),
        }
    }
}

impl QueryLiteral {
    /// Returns the value of a literal; `None` for an unbound variable.
    #[must_use]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Variable(_) => None,
        }
    }

    /// Creates a text literal.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::Value(Value::String(text.into()))
    }
}

impl QueryConstraint {
    /// Combines constraints that must all hold; `None` if there are none.
    #[must_use]
    pub fn conjunction(mut parts: Vec<Self>) -> Option<Self> {
        if parts.len() > 1 { Some(Self::And(parts)) } else { parts.pop() }
    }

    /// Returns the constraints that must all hold.
    #[must_use]
    pub fn conjuncts(&self) -> Vec<&Self> {
        match self {
            Self::And(parts) => parts.iter().flat_map(Self::conjuncts).collect(),
            constraint => vec![constraint],
        }
    }

    /// Returns true if any part of the constraint is a full-text condition.
    fn is_full_text(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().any(Self::is_full_text),
            Self::Not(inner) => inner.is_full_text(),
            Self::Contains { .. }
            | Self::Similar { .. }
            | Self::Spellcheck { .. }
            | Self::Suggest { .. } => true,
            Self::Compare { .. }
            | Self::In { .. }
            | Self::Exists { .. }
            | Self::Same { .. }
            | Self::Child { .. }
            | Self::Descendant { .. } => false,
        }
    }

    /// Collects the selectors that the constraint depends on.
    pub(crate) fn collect_selectors<'a>(&'a self, selectors: &mut Vec<&'a str>) {
        match self {
            Self::And(parts) | Self::Or(parts) => {
                parts.iter().for_each(|part| part.collect_selectors(selectors));
            }
            Self::Not(inner) => inner.collect_selectors(selectors),
            Self::Compare { operand, .. } | Self::In { operand, .. } => {
                selectors.push(operand.selector());
                if let QueryOperand::Coalesce(_, fallback) = operand {
                    selectors.push(fallback.selector());
                }
            }
            Self::Exists { selector, .. }
            | Self::Contains { selector, .. }
            | Self::Same { selector, .. }
            | Self::Child { selector, .. }
            | Self::Descendant { selector, .. }
            | Self::Similar { selector, .. }
            | Self::Spellcheck { selector, .. }
            | Self::Suggest { selector, .. } => selectors.push(selector),
        }
    }

    fn visit_literals(&mut self, visit: &mut dyn FnMut(&mut QueryLiteral)) {
        match self {
            Self::And(parts) | Self::Or(parts) => {
                parts.iter_mut().for_each(|part| part.visit_literals(visit));
            }
            Self::Not(inner) => inner.visit_literals(visit),
            Self::Compare { value, .. } => visit(value),
            Self::In { values, .. } => values.iter_mut().for_each(visit),
            Self::Contains { text, .. }
            | Self::Spellcheck { text, .. }
            | Self::Suggest { text, .. } => visit(text),
            Self::Similar { path, .. } => visit(path),
            Self::Exists { .. }
            | Self::Same { .. }
            | Self::Child { .. }
            | Self::Descendant { .. } => {}
        }
    }
}

impl SelectStatement {
    /// Returns all selectors, from left to right.
    pub fn selectors(&self) -> impl Iterator<Item = &QuerySelector> {
        std::iter::once(&self.selector).chain(self.joins.iter().map(|join| &join.selector))
    }
}

impl ContentQuery {
    /// Replaces the variables by values.
    ///
    /// # Errors
    /// If a variable has no value.
    pub fn bind(mut self, values: &BTreeMap<String, Value>) -> Result<Self, QuerySyntaxError> {
        let mut missing = None;
        self.visit_literals(&mut |literal| {
            if let QueryLiteral::Variable(name) = literal {
                match values.get(name) {
                    Some(value) => *literal = QueryLiteral::Value(value.clone()),
                    None => missing = Some(name.clone()),
                }
            }
        });
        match missing {
            Some(name) => Err(QuerySyntaxError::new(
                1,
                format!("the variable `${name}` has no value; give one"),
            )),
            None => Ok(self),
        }
    }

    /// Returns true if the query has full-text conditions, so that the full-text index may be queried.
    pub(crate) fn is_full_text(&self) -> bool {
        let mut constraints = self.selects.iter().filter_map(|part| part.constraint.as_ref());
        constraints.any(QueryConstraint::is_full_text)
    }

    /// Returns the query without its fixed values, to group equal statements in a log.
    #[must_use]
    pub fn normalized(&self) -> String {
        let mut query = self.clone();
        query.visit_literals(&mut |literal| *literal = QueryLiteral::Variable("v".to_owned()));
        query.options.limit = None;
        query.options.offset = None;
        query.to_string()
    }

    fn visit_literals(&mut self, visit: &mut dyn FnMut(&mut QueryLiteral)) {
        for constraint in self.selects.iter_mut().filter_map(|part| part.constraint.as_mut()) {
            constraint.visit_literals(visit);
        }
    }
}
