//! The one form that every query language is read into.
//!
//! In: what the parsers build. Out: what the planner reads; and, printed, JCR-SQL2 that reads back as the same query.
//!
//! Invariants
//! * Every name of a selector in a query is one that its source defines.

use std::collections::BTreeMap;

use super::syntax_error::QuerySyntaxError;
use crate::{NodePath, Value};

/// A query: one selection, or the union of several.
#[derive(Debug, Clone, PartialEq)]
pub struct ContentQuery {
    /// The selections.
    pub selects: Vec<SelectStatement>,
    /// Whether rows of several parts stay in the result more than once.
    pub union_all: bool,
    /// The order of the rows.
    pub orderings: Vec<QueryOrdering>,
    /// What else was asked for.
    pub options: QueryOptions,
}

/// One selection.
#[derive(Debug, Clone, PartialEq)]
pub struct SelectStatement {
    /// What to show of each row.
    pub columns: Vec<QueryColumn>,
    /// The first selector.
    pub selector: QuerySelector,
    /// What is joined to it, from left to right.
    pub joins: Vec<QueryJoin>,
    /// What must hold for each row.
    pub constraint: Option<QueryConstraint>,
}

/// A node of each row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerySelector {
    /// Its type.
    pub node_type: String,
    /// What the query calls it.
    pub name: String,
}

/// A further selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryJoin {
    /// Which rows stay without a partner.
    pub kind: JoinKind,
    /// The selector.
    pub selector: QuerySelector,
    /// What ties it to those before it.
    pub condition: JoinCondition,
}

/// Which rows of a join stay without a partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKind {
    /// None.
    Inner,
    /// Those of the left side.
    LeftOuter,
}

/// What ties two nodes of a row together.
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
    /// They are the same, or the first is at a relative path of the second.
    Same {
        /// The first.
        left: String,
        /// The second.
        right: String,
        /// From the second to the first.
        path: Option<String>,
    },
}

/// A column of the result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryColumn {
    /// Whose.
    pub selector: String,
    /// What.
    pub content: QueryColumnContent,
    /// Its name, if the query gives one.
    pub alias: Option<String>,
}

/// What a column shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryColumnContent {
    /// All properties of the type.
    All,
    /// A property, perhaps of a node below.
    Property(String),
    /// A part of the text with the words marked; of a property, or of the node.
    Excerpt(Option<String>),
    /// How often each value of a property occurs among the rows.
    Facet(String),
    /// Completions.
    Suggest,
    /// Nearby words.
    Spellcheck,
}

/// What must hold for a row.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryConstraint {
    /// All of these.
    And(Vec<Self>),
    /// At least one of these.
    Or(Vec<Self>),
    /// Not this.
    Not(Box<Self>),
    /// A value compares so with a fixed one.
    Compare {
        /// The value.
        operand: QueryOperand,
        /// How.
        operator: ComparisonOperator,
        /// The fixed value.
        value: QueryLiteral,
    },
    /// A value is one of these.
    In {
        /// The value.
        operand: QueryOperand,
        /// These.
        values: Vec<QueryLiteral>,
    },
    /// There is such a property.
    Exists {
        /// Whose.
        selector: String,
        /// Its name.
        property: String,
    },
    /// The text holds words.
    Contains {
        /// Whose.
        selector: String,
        /// In which property; none for any.
        property: Option<String>,
        /// The words, in the syntax of [`FullTextExpression`](super::FullTextExpression).
        text: QueryLiteral,
    },
    /// The node is the one at a path.
    Same {
        /// The node.
        selector: String,
        /// The path.
        path: NodePath,
    },
    /// The node is a child of the one at a path.
    Child {
        /// The node.
        selector: String,
        /// The path.
        path: NodePath,
    },
    /// The node lies below the one at a path.
    Descendant {
        /// The node.
        selector: String,
        /// The path.
        path: NodePath,
    },
    /// The text is like that of another node.
    Similar {
        /// Whose.
        selector: String,
        /// The path of the other.
        path: QueryLiteral,
    },
    /// The row stands for words near a misspelled text.
    Spellcheck {
        /// Whose.
        selector: String,
        /// The text.
        text: QueryLiteral,
    },
    /// The row stands for completions of a text.
    Suggest {
        /// Whose.
        selector: String,
        /// The text.
        text: QueryLiteral,
    },
}

/// How values are compared.
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
    /// Returns how the languages write it.
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
    /// The values of a property, perhaps of a node below.
    Property {
        /// Whose.
        selector: String,
        /// Its name, or a relative path that ends with it.
        name: String,
    },
    /// How long a value is.
    Length(Box<Self>),
    /// In capitals.
    Upper(Box<Self>),
    /// In small letters.
    Lower(Box<Self>),
    /// The first that there is.
    Coalesce(Box<Self>, Box<Self>),
    /// The name of the node.
    Name(String),
    /// Its name without prefix.
    LocalName(String),
    /// Its path.
    Path(String),
    /// How well its text matches.
    Score(String),
}

/// A fixed value.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryLiteral {
    /// Given in the query.
    Value(Value),
    /// Given beside it.
    Variable(String),
}

/// A part of the order of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueryOrdering {
    /// By this.
    pub operand: QueryOperand,
    /// Whether the largest comes first.
    pub is_descending: bool,
}

/// What else a query asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueryOptions {
    /// What to do if no index serves the query.
    pub traversal: Option<TraversalPolicy>,
    /// The index to use.
    pub index_name: Option<String>,
    /// Use only indexes with this tag.
    pub index_tag: Option<String>,
    /// The most rows.
    pub limit: Option<u64>,
    /// Rows to skip.
    pub offset: Option<u64>,
}

impl QueryOptions {
    /// Asks for nothing.
    pub(crate) const NONE: Self =
        Self { traversal: None, index_name: None, index_tag: None, limit: None, offset: None };
}

/// What to do with a query that no index serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraversalPolicy {
    /// Run it.
    Ok,
    /// Run it and say so in the log.
    Warn,
    /// Refuse it.
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
    /// Returns the value of a literal that is bound.
    #[must_use]
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Variable(_) => None,
        }
    }

    /// Makes a text.
    #[must_use]
    pub fn from_text(text: impl Into<String>) -> Self {
        Self::Value(Value::String(text.into()))
    }
}

impl QueryConstraint {
    /// Joins constraints that must all hold.
    #[must_use]
    pub fn conjunction(mut parts: Vec<Self>) -> Option<Self> {
        if parts.len() > 1 { Some(Self::And(parts)) } else { parts.pop() }
    }

    /// Returns the constraints that must all hold.
    #[must_use]
    pub fn conjuncts(&self) -> Vec<&Self> {
        match self {
            Self::And(parts) => parts.iter().flat_map(Self::conjuncts).collect(),
            other => vec![other],
        }
    }

    /// Tells whether words decide about it, in any part.
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

    /// Collects the selectors that it depends on.
    pub(crate) fn collect_selectors<'a>(&'a self, found: &mut Vec<&'a str>) {
        match self {
            Self::And(parts) | Self::Or(parts) => {
                parts.iter().for_each(|part| part.collect_selectors(found));
            }
            Self::Not(inner) => inner.collect_selectors(found),
            Self::Compare { operand, .. } | Self::In { operand, .. } => {
                found.push(operand.selector());
                if let QueryOperand::Coalesce(_, other) = operand {
                    found.push(other.selector());
                }
            }
            Self::Exists { selector, .. }
            | Self::Contains { selector, .. }
            | Self::Same { selector, .. }
            | Self::Child { selector, .. }
            | Self::Descendant { selector, .. }
            | Self::Similar { selector, .. }
            | Self::Spellcheck { selector, .. }
            | Self::Suggest { selector, .. } => found.push(selector),
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
    /// Puts values in the place of the variables.
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

    /// Tells whether words decide about rows, so that the full-text index may be asked.
    pub(crate) fn is_full_text(&self) -> bool {
        let mut constraints = self.selects.iter().filter_map(|part| part.constraint.as_ref());
        constraints.any(QueryConstraint::is_full_text)
    }

    /// Returns the query with every fixed value left out: what equal statements of a log have in common.
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
