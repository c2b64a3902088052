//! Conditions prepared for evaluation node by node.
//!
//! In: a [`QueryConstraint`] with all its values bound. Out: a [`RowFilter`], which reads nodes in place and copies
//! only what it must.
//!
//! Invariants
//! * A multi-value property meets a comparison if one of its values does.
//! * A fixed value is converted to the type of the property's value. If it cannot be converted, the comparison is
//!   false.

use tympan_content::{
    BorrowedNode, BorrowedProperty, BorrowedValue, Comparand, Node, NodePath, Snapshot, Value,
    ValueKey, local_name,
};
use tympan_notation::{WildcardToken, matches_wildcards};

use crate::algebra::{ComparisonOperator, QueryConstraint, QueryLiteral, QueryOperand};
use crate::full_text::FullTextExpression;
use crate::text_match::TextWords;
use crate::{QuerySyntaxError, Result};

/// A node that a filter evaluates.
#[derive(Clone, Copy)]
pub(crate) struct FilteredNode<'a> {
    pub(crate) path: &'a str,
    pub(crate) node: BorrowedNode<'a>,
    /// True if children of the node have records of their own.
    pub(crate) is_container: bool,
    pub(crate) score: f32,
    /// The snapshot in which nodes of other documents are found.
    pub(crate) snapshot: &'a Snapshot,
}

/// A condition on the nodes of a row; each selector is identified by its index.
#[derive(Debug, Clone)]
pub(crate) enum RowFilter {
    And(Vec<Self>),
    Or(Vec<Self>),
    Not(Box<Self>),
    Compare(RowExpression, ComparisonOperator, Vec<Comparand>),
    Like(RowExpression, Vec<WildcardToken>),
    Exists(usize, String),
    Contains(usize, Option<String>, FullTextExpression),
    Same(usize, NodePath),
    Child(usize, NodePath),
    Descendant(usize, NodePath),
    /// A condition that only an index can evaluate; it never matches here.
    Never,
}

/// An expression whose value depends on the row.
#[derive(Debug, Clone)]
pub(crate) enum RowExpression {
    Property(usize, String),
    Length(Box<Self>),
    Upper(Box<Self>),
    Lower(Box<Self>),
    Coalesce(Box<Self>, Box<Self>),
    Name(usize),
    LocalName(usize),
    Path(usize),
    Score(usize),
}

/// Returns the index of a selector by its name.
pub(crate) type SelectorIndexLookup<'a> = &'a dyn Fn(&str) -> usize;

impl RowFilter {
    pub(crate) fn new(
        constraint: &QueryConstraint,
        selector_index: SelectorIndexLookup<'_>,
    ) -> Result<Self> {
        let all = |parts: &[QueryConstraint]| {
            parts.iter().map(|part| Self::new(part, selector_index)).collect::<Result<Vec<_>>>()
        };
        Ok(match constraint {
            QueryConstraint::And(parts) => Self::And(all(parts)?),
            QueryConstraint::Or(parts) => Self::Or(all(parts)?),
            QueryConstraint::Not(inner) => Self::Not(Box::new(Self::new(inner, selector_index)?)),
            QueryConstraint::Compare { operand, operator: ComparisonOperator::Like, value } => {
                let pattern = like_pattern(&bound_value(value)?.to_text());
                Self::Like(RowExpression::new(operand, selector_index), pattern)
            }
            QueryConstraint::Compare { operand, operator, value } => {
                let values = vec![Comparand::new(bound_value(value)?)];
                Self::Compare(RowExpression::new(operand, selector_index), *operator, values)
            }
            QueryConstraint::In { operand, values } => {
                let values = values.iter().map(|value| Ok(Comparand::new(bound_value(value)?)));
                let values = values.collect::<Result<Vec<_>>>()?;
                Self::Compare(
                    RowExpression::new(operand, selector_index),
                    ComparisonOperator::Equal,
                    values,
                )
            }
            QueryConstraint::Exists { selector, property } => {
                Self::Exists(selector_index(selector), property.clone())
            }
            QueryConstraint::Contains { selector, property, text } => {
                let expression = FullTextExpression::parse(&bound_value(text)?.to_text())?;
                Self::Contains(selector_index(selector), property.clone(), expression)
            }
            QueryConstraint::Same { selector, path } => {
                Self::Same(selector_index(selector), path.clone())
            }
            QueryConstraint::Child { selector, path } => {
                Self::Child(selector_index(selector), path.clone())
            }
            QueryConstraint::Descendant { selector, path } => {
                Self::Descendant(selector_index(selector), path.clone())
            }
            QueryConstraint::Similar { .. }
            | QueryConstraint::Spellcheck { .. }
            | QueryConstraint::Suggest { .. } => Self::Never,
        })
    }

    /// Returns true if more properties on a node can never turn the condition from true to false.
    pub(crate) fn is_monotone(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().all(Self::is_monotone),
            Self::Not(inner) => inner.is_path_only(),
            Self::Compare(expression, ..) | Self::Like(expression, _) => expression.is_monotone(),
            Self::Contains(..) => false,
            Self::Exists(..)
            | Self::Same(..)
            | Self::Child(..)
            | Self::Descendant(..)
            | Self::Never => true,
        }
    }

    /// Returns true if the condition depends on paths alone.
    pub(crate) fn is_path_only(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().all(Self::is_path_only),
            Self::Not(inner) => inner.is_path_only(),
            Self::Same(..) | Self::Child(..) | Self::Descendant(..) => true,
            _ => false,
        }
    }

    /// Evaluates a condition that depends on paths alone.
    pub(crate) fn matches_path(&self, path: &str) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.matches_path(path)),
            Self::Or(parts) => parts.iter().any(|part| part.matches_path(path)),
            Self::Not(inner) => !inner.matches_path(path),
            Self::Same(_, expected_path) => path == expected_path.as_str(),
            Self::Child(_, parent) => parent_of_path(path) == Some(parent.as_str()),
            Self::Descendant(_, above) => is_path_below(path, above),
            _ => true,
        }
    }

    /// Evaluates the condition for a row. A selector without a node meets only negated conditions.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn matches(&self, row: &[Option<FilteredNode<'_>>]) -> Result<bool> {
        let at = |selector_index: &usize| row.get(*selector_index).copied().flatten();
        Ok(match self {
            Self::And(parts) => {
                for part in parts {
                    if !part.matches(row)? {
                        return Ok(false);
                    }
                }
                true
            }
            Self::Or(parts) => {
                for part in parts {
                    if part.matches(row)? {
                        return Ok(true);
                    }
                }
                false
            }
            Self::Not(inner) => !inner.matches(row)?,
            Self::Compare(expression, operator, values) => expression
                .any_value(row, &mut |key| {
                    values.iter().any(|value| matches_comparison(&key, *operator, value))
                })?,
            Self::Like(expression, pattern) => expression.any_value(row, &mut |key| {
                matches_wildcards(pattern.iter().copied(), &key.display_text())
            })?,
            Self::Exists(selector_index, name) => match at(selector_index) {
                Some(subject) => subject.any_property(name, &mut |_| true)?,
                None => false,
            },
            Self::Contains(selector_index, property, expression) => match at(selector_index) {
                Some(subject) => subject.text_words(property.as_deref())?.matches(expression),
                None => false,
            },
            Self::Same(selector_index, _)
            | Self::Child(selector_index, _)
            | Self::Descendant(selector_index, _) => {
                at(selector_index).is_some_and(|subject| self.matches_path(subject.path))
            }
            Self::Never => false,
        })
    }
}

/// Compares a stored value with a fixed one.
fn matches_comparison(key: &ValueKey<'_>, operator: ComparisonOperator, value: &Comparand) -> bool {
    let Some(comparand) = value.for_family(key) else { return false };
    let order = key.cmp(comparand);
    match operator {
        ComparisonOperator::Equal => order.is_eq(),
        ComparisonOperator::NotEqual => order.is_ne(),
        ComparisonOperator::Less => order.is_lt(),
        ComparisonOperator::LessOrEqual => order.is_le(),
        ComparisonOperator::Greater => order.is_gt(),
        ComparisonOperator::GreaterOrEqual => order.is_ge(),
        ComparisonOperator::Like => false,
    }
}

impl RowExpression {
    pub(crate) fn new(operand: &QueryOperand, selector_index: SelectorIndexLookup<'_>) -> Self {
        let inner = |operand: &QueryOperand| Box::new(Self::new(operand, selector_index));
        match operand {
            QueryOperand::Property { selector, name } => {
                Self::Property(selector_index(selector), name.clone())
            }
            QueryOperand::Length(of) => Self::Length(inner(of)),
            QueryOperand::Upper(of) => Self::Upper(inner(of)),
            QueryOperand::Lower(of) => Self::Lower(inner(of)),
            QueryOperand::Coalesce(first, second) => Self::Coalesce(inner(first), inner(second)),
            QueryOperand::Name(selector) => Self::Name(selector_index(selector)),
            QueryOperand::LocalName(selector) => Self::LocalName(selector_index(selector)),
            QueryOperand::Path(selector) => Self::Path(selector_index(selector)),
            QueryOperand::Score(selector) => Self::Score(selector_index(selector)),
        }
    }

    fn is_monotone(&self) -> bool {
        match self {
            Self::Coalesce(..) => false,
            Self::Length(inner) | Self::Upper(inner) | Self::Lower(inner) => inner.is_monotone(),
            _ => true,
        }
    }

    /// Returns the sort key of a row: the first value.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn sort_key(&self, row: &[Option<FilteredNode<'_>>]) -> Result<Option<Vec<u8>>> {
        let mut first = None;
        self.any_value(row, &mut |key| {
            first = Some(key.to_bytes());
            true
        })?;
        Ok(first)
    }

    /// Calls the callback with each value until it accepts one; returns true if it accepted one.
    fn any_value(
        &self,
        row: &[Option<FilteredNode<'_>>],
        takes: &mut dyn FnMut(ValueKey<'_>) -> bool,
    ) -> Result<bool> {
        let at = |selector_index: &usize| row.get(*selector_index).copied().flatten();
        Ok(match self {
            Self::Property(selector_index, name) => match at(selector_index) {
                Some(subject) => subject.any_property(name, &mut |property| {
                    property.values().filter_map(ValueKey::from_value).any(&mut *takes)
                })?,
                None => false,
            },
            Self::Length(inner) => return inner.any_value_length(row, takes),
            Self::Upper(inner) => inner.any_value(row, &mut |key| {
                takes(ValueKey::owned_text(key.display_text().to_uppercase()))
            })?,
            Self::Lower(inner) => inner.any_value(row, &mut |key| {
                takes(ValueKey::owned_text(key.display_text().to_lowercase()))
            })?,
            Self::Coalesce(first, second) => {
                let mut has_any = false;
                let is_accepted = first.any_value(row, &mut |key| {
                    has_any = true;
                    takes(key)
                })?;
                if has_any { is_accepted } else { second.any_value(row, takes)? }
            }
            Self::Name(selector_index) => at(selector_index)
                .is_some_and(|subject| takes(ValueKey::text(name_of_path(subject.path)))),
            Self::LocalName(selector_index) => at(selector_index).is_some_and(|subject| {
                let name = name_of_path(subject.path);
                takes(ValueKey::text(local_name(name)))
            }),
            Self::Path(selector_index) => {
                at(selector_index).is_some_and(|subject| takes(ValueKey::text(subject.path)))
            }
            Self::Score(selector_index) => at(selector_index)
                .is_some_and(|subject| takes(ValueKey::double(f64::from(subject.score)))),
        })
    }

    /// Calls the callback with the length of each value: in bytes for a blob, otherwise in characters.
    fn any_value_length(
        &self,
        row: &[Option<FilteredNode<'_>>],
        takes: &mut dyn FnMut(ValueKey<'_>) -> bool,
    ) -> Result<bool> {
        let long = |length: u64| ValueKey::long(i64::try_from(length).unwrap_or(i64::MAX));
        if let Self::Property(selector_index, name) = self {
            let Some(subject) = row.get(*selector_index).copied().flatten() else {
                return Ok(false);
            };
            return subject.any_property(name, &mut |property| {
                property.values().any(|value| match value {
                    BorrowedValue::Binary(blob) => takes(long(blob.length())),
                    single_value => ValueKey::from_value(single_value)
                        .is_some_and(|key| takes(long(key.display_text().chars().count() as u64))),
                })
            });
        }
        self.any_value(row, &mut |key| takes(long(key.display_text().chars().count() as u64)))
    }
}

impl<'a> FilteredNode<'a> {
    /// Prepares a node for filters; `None` if its document cannot be read.
    pub(crate) fn from_node(node: &'a Node, score: f32, snapshot: &'a Snapshot) -> Option<Self> {
        Some(Self {
            path: node.path().as_str(),
            node: node.as_borrowed()?,
            is_container: node.is_folder(),
            score,
            snapshot,
        })
    }

    /// Calls the callback with the properties at a relative path, in which `*` matches any node name, until it accepts
    /// one.
    pub(crate) fn any_property(
        &self,
        path: &str,
        takes: &mut dyn FnMut(BorrowedProperty<'_>) -> bool,
    ) -> Result<bool> {
        let Some((parents, name)) = path.rsplit_once('/') else {
            return Ok(self.node.property(path).is_some_and(takes));
        };
        self.any_node(parents, &mut |node| node.property(name).is_some_and(&mut *takes))
    }

    /// Calls the callback with the nodes at a relative path until it accepts one.
    fn any_node(
        &self,
        path: &str,
        takes: &mut dyn FnMut(BorrowedNode<'_>) -> bool,
    ) -> Result<bool> {
        if any_inner_node(self.node, path, takes) {
            return Ok(true);
        }
        if !self.is_container {
            return Ok(false);
        }
        let Some(node) = self.snapshot.node(&NodePath::new(self.path)?)? else {
            return Ok(false);
        };
        let (first, rest) = path.split_once('/').unwrap_or((path, ""));
        let children = if first == "*" {
            node.listed_children()?
        } else {
            node.child(first)?.into_iter().collect()
        };
        for child in children {
            // The children in the node's own document were visited before.
            let Some(borrowed) = child.as_borrowed().filter(|_| child.summary().is_some()) else {
                continue;
            };
            let subject = FilteredNode {
                path: child.path().as_str(),
                node: borrowed,
                is_container: child.is_folder(),
                ..*self
            };
            let is_taken =
                if rest.is_empty() { takes(borrowed) } else { subject.any_node(rest, takes)? };
            if is_taken {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn text_words(&self, property: Option<&str>) -> Result<TextWords> {
        let mut words = TextWords::default();
        let Some(path) = property else {
            words.add_node(self.node);
            return Ok(words);
        };
        self.any_property(path, &mut |property| {
            property
                .values()
                .filter_map(|value| value.as_str())
                .for_each(|text| words.add_text(text));
            false
        })?;
        // The path may also lead to a node.
        self.any_node(path, &mut |node| {
            words.add_node(node);
            false
        })?;
        Ok(words)
    }
}

/// Visits the nodes of the same document at a relative path.
fn any_inner_node(
    node: BorrowedNode<'_>,
    path: &str,
    takes: &mut dyn FnMut(BorrowedNode<'_>) -> bool,
) -> bool {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let mut show = |child: BorrowedNode<'_>| {
        if rest.is_empty() { takes(child) } else { any_inner_node(child, rest, takes) }
    };
    if first == "*" { node.children().any(show) } else { node.child(first).is_some_and(&mut show) }
}

pub(crate) fn bound_value(literal: &QueryLiteral) -> Result<&Value> {
    literal.value().ok_or_else(|| {
        QuerySyntaxError::new(1, format!("the variable `{literal}` has no value; give one")).into()
    })
}

/// Parses a pattern of `LIKE`: `%`, `_`, and a backslash as the escape character.
pub(crate) fn like_pattern(pattern: &str) -> Vec<WildcardToken> {
    let mut characters = pattern.chars();
    std::iter::from_fn(|| {
        Some(match characters.next()? {
            '%' => WildcardToken::AnyText,
            '_' => WildcardToken::AnyCharacter,
            '\\' => WildcardToken::Literal(characters.next().unwrap_or('\\')),
            character => WildcardToken::Literal(character),
        })
    })
    .collect()
}

/// Returns the literal prefix that every matching text has.
pub(crate) fn like_prefix(pattern: &[WildcardToken]) -> String {
    let literal = |token: &WildcardToken| match token {
        WildcardToken::Literal(character) => Some(*character),
        WildcardToken::AnyCharacter | WildcardToken::AnyText => None,
    };
    pattern.iter().map_while(literal).collect()
}

fn name_of_path(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

fn parent_of_path(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    }
}

fn is_path_below(path: &str, above: &NodePath) -> bool {
    if above.is_root() {
        return path != "/";
    }
    path.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
}
