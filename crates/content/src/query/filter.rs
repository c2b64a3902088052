//! Conditions made ready to be decided node by node.
//!
//! In: a [`Constraint`] with all its values bound. Out: a [`Filter`], which reads nodes in place and copies nothing that
//! it does not have to.
//!
//! Invariants
//! * A property that is a list meets a comparison if one of its values does.
//! * A fixed value is converted to the type of the property's; where it cannot be, the comparison does not hold.

use super::algebra::{Constraint, Literal, Operand, Operator};
use super::full_text::TextExpression;
use super::text_match::{Words, wildcard_match};
use crate::borrowed::{BorrowedNode, BorrowedProperty, BorrowedValue};
use crate::property_index::local_name;
use crate::value_key::{Comparand, ValueKey};
use crate::{Node, NodePath, Result, Snapshot, SyntaxError, Value};

/// A node that a filter looks at.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) path: &'a str,
    pub(crate) node: BorrowedNode<'a>,
    /// Whether children of the node have records of their own.
    pub(crate) is_container: bool,
    pub(crate) score: f32,
    /// Where nodes of other documents are found.
    pub(crate) snapshot: &'a Snapshot,
}

/// A condition on the nodes of a row; each selector is known by its place.
#[derive(Debug, Clone)]
pub(crate) enum Filter {
    And(Vec<Self>),
    Or(Vec<Self>),
    Not(Box<Self>),
    Compare(Expression, Operator, Vec<Comparand>),
    Like(Expression, Vec<Option<Option<char>>>),
    Exists(usize, String),
    Contains(usize, Option<String>, TextExpression),
    Same(usize, NodePath),
    Child(usize, NodePath),
    Descendant(usize, NodePath),
    /// What only an index can tell.
    Never,
}

/// A value that depends on the row.
#[derive(Debug, Clone)]
pub(crate) enum Expression {
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

/// Finds the place of a selector.
pub(crate) type Places<'a> = &'a dyn Fn(&str) -> usize;

impl Filter {
    pub(crate) fn new(constraint: &Constraint, place: Places<'_>) -> Result<Self> {
        let all = |parts: &[Constraint]| {
            parts.iter().map(|part| Self::new(part, place)).collect::<Result<Vec<_>>>()
        };
        Ok(match constraint {
            Constraint::And(parts) => Self::And(all(parts)?),
            Constraint::Or(parts) => Self::Or(all(parts)?),
            Constraint::Not(inner) => Self::Not(Box::new(Self::new(inner, place)?)),
            Constraint::Compare { operand, operator: Operator::Like, value } => {
                let pattern = like_pattern(&bound(value)?.to_text());
                Self::Like(Expression::new(operand, place), pattern)
            }
            Constraint::Compare { operand, operator, value } => {
                let values = vec![Comparand::new(bound(value)?)];
                Self::Compare(Expression::new(operand, place), *operator, values)
            }
            Constraint::In { operand, values } => {
                let values = values.iter().map(|value| Ok(Comparand::new(bound(value)?)));
                let values = values.collect::<Result<Vec<_>>>()?;
                Self::Compare(Expression::new(operand, place), Operator::Equal, values)
            }
            Constraint::Exists { selector, property } => {
                Self::Exists(place(selector), property.clone())
            }
            Constraint::Contains { selector, property, text } => {
                let expression = TextExpression::parse(&bound(text)?.to_text())?;
                Self::Contains(place(selector), property.clone(), expression)
            }
            Constraint::Same { selector, path } => Self::Same(place(selector), path.clone()),
            Constraint::Child { selector, path } => Self::Child(place(selector), path.clone()),
            Constraint::Descendant { selector, path } => {
                Self::Descendant(place(selector), path.clone())
            }
            Constraint::Similar { .. }
            | Constraint::Spellcheck { .. }
            | Constraint::Suggest { .. } => Self::Never,
        })
    }

    /// Tells whether it holds for no node for which it did not hold if the node had more properties.
    pub(crate) fn is_monotone(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().all(Self::is_monotone),
            Self::Not(inner) => inner.is_about_paths(),
            Self::Compare(expression, ..) | Self::Like(expression, _) => expression.is_monotone(),
            Self::Contains(..) => false,
            Self::Exists(..)
            | Self::Same(..)
            | Self::Child(..)
            | Self::Descendant(..)
            | Self::Never => true,
        }
    }

    /// Tells whether paths alone decide it.
    pub(crate) fn is_about_paths(&self) -> bool {
        match self {
            Self::And(parts) | Self::Or(parts) => parts.iter().all(Self::is_about_paths),
            Self::Not(inner) => inner.is_about_paths(),
            Self::Same(..) | Self::Child(..) | Self::Descendant(..) => true,
            _ => false,
        }
    }

    /// Decides a condition that is about paths alone.
    pub(crate) fn admits_path(&self, path: &str) -> bool {
        match self {
            Self::And(parts) => parts.iter().all(|part| part.admits_path(path)),
            Self::Or(parts) => parts.iter().any(|part| part.admits_path(path)),
            Self::Not(inner) => !inner.admits_path(path),
            Self::Same(_, wanted) => path == wanted.as_str(),
            Self::Child(_, parent) => parent_of(path) == Some(parent.as_str()),
            Self::Descendant(_, above) => is_below(path, above),
            _ => true,
        }
    }

    /// Decides the condition for a row; a selector without a node meets none but a denied one.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn holds(&self, row: &[Option<Subject<'_>>]) -> Result<bool> {
        let at = |place: &usize| row.get(*place).copied().flatten();
        Ok(match self {
            Self::And(parts) => {
                for part in parts {
                    if !part.holds(row)? {
                        return Ok(false);
                    }
                }
                true
            }
            Self::Or(parts) => {
                for part in parts {
                    if part.holds(row)? {
                        return Ok(true);
                    }
                }
                false
            }
            Self::Not(inner) => !inner.holds(row)?,
            Self::Compare(expression, operator, values) => expression
                .any(row, &mut |key| values.iter().any(|value| compares(&key, *operator, value)))?,
            Self::Like(expression, pattern) => {
                expression.any(row, &mut |key| wildcard_match(pattern, &key.display()))?
            }
            Self::Exists(place, name) => match at(place) {
                Some(subject) => subject.properties(name, &mut |_| true)?,
                None => false,
            },
            Self::Contains(place, property, expression) => match at(place) {
                Some(subject) => subject.words(property.as_deref())?.matches(expression),
                None => false,
            },
            Self::Same(place, _) | Self::Child(place, _) | Self::Descendant(place, _) => {
                at(place).is_some_and(|subject| self.admits_path(subject.path))
            }
            Self::Never => false,
        })
    }
}

/// Compares a stored value with a fixed one.
fn compares(key: &ValueKey<'_>, operator: Operator, value: &Comparand) -> bool {
    let Some(other) = value.for_family(key) else { return false };
    let order = key.cmp(other);
    match operator {
        Operator::Equal => order.is_eq(),
        Operator::NotEqual => order.is_ne(),
        Operator::Less => order.is_lt(),
        Operator::LessOrEqual => order.is_le(),
        Operator::Greater => order.is_gt(),
        Operator::GreaterOrEqual => order.is_ge(),
        Operator::Like => false,
    }
}

impl Expression {
    pub(crate) fn new(operand: &Operand, place: Places<'_>) -> Self {
        let inner = |operand: &Operand| Box::new(Self::new(operand, place));
        match operand {
            Operand::Property { selector, name } => Self::Property(place(selector), name.clone()),
            Operand::Length(of) => Self::Length(inner(of)),
            Operand::Upper(of) => Self::Upper(inner(of)),
            Operand::Lower(of) => Self::Lower(inner(of)),
            Operand::Coalesce(first, second) => Self::Coalesce(inner(first), inner(second)),
            Operand::Name(selector) => Self::Name(place(selector)),
            Operand::LocalName(selector) => Self::LocalName(place(selector)),
            Operand::Path(selector) => Self::Path(place(selector)),
            Operand::Score(selector) => Self::Score(place(selector)),
        }
    }

    fn is_monotone(&self) -> bool {
        match self {
            Self::Coalesce(..) => false,
            Self::Length(inner) | Self::Upper(inner) | Self::Lower(inner) => inner.is_monotone(),
            _ => true,
        }
    }

    /// Returns what rows are sorted by: the first value.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn sort_key(&self, row: &[Option<Subject<'_>>]) -> Result<Option<Vec<u8>>> {
        let mut first = None;
        self.any(row, &mut |key| {
            first = Some(key.to_bytes());
            true
        })?;
        Ok(first)
    }

    /// Shows the values one after the other until one is taken; tells whether one was.
    fn any(
        &self,
        row: &[Option<Subject<'_>>],
        takes: &mut dyn FnMut(ValueKey<'_>) -> bool,
    ) -> Result<bool> {
        let at = |place: &usize| row.get(*place).copied().flatten();
        Ok(match self {
            Self::Property(place, name) => match at(place) {
                Some(subject) => subject.properties(name, &mut |property| {
                    property.values().filter_map(ValueKey::of).any(&mut *takes)
                })?,
                None => false,
            },
            Self::Length(inner) => return inner.any_length(row, takes),
            Self::Upper(inner) => inner
                .any(row, &mut |key| takes(ValueKey::owned_text(key.display().to_uppercase())))?,
            Self::Lower(inner) => inner
                .any(row, &mut |key| takes(ValueKey::owned_text(key.display().to_lowercase())))?,
            Self::Coalesce(first, second) => {
                let mut has_any = false;
                let taken = first.any(row, &mut |key| {
                    has_any = true;
                    takes(key)
                })?;
                if has_any { taken } else { second.any(row, takes)? }
            }
            Self::Name(place) => {
                at(place).is_some_and(|subject| takes(ValueKey::text(name_of(subject.path))))
            }
            Self::LocalName(place) => at(place).is_some_and(|subject| {
                let name = name_of(subject.path);
                takes(ValueKey::text(local_name(name)))
            }),
            Self::Path(place) => {
                at(place).is_some_and(|subject| takes(ValueKey::text(subject.path)))
            }
            Self::Score(place) => {
                at(place).is_some_and(|subject| takes(ValueKey::double(f64::from(subject.score))))
            }
        })
    }

    /// Shows how long each value is: in bytes for a blob, else in characters.
    fn any_length(
        &self,
        row: &[Option<Subject<'_>>],
        takes: &mut dyn FnMut(ValueKey<'_>) -> bool,
    ) -> Result<bool> {
        let long = |length: u64| ValueKey::long(i64::try_from(length).unwrap_or(i64::MAX));
        if let Self::Property(place, name) = self {
            let Some(subject) = row.get(*place).copied().flatten() else { return Ok(false) };
            return subject.properties(name, &mut |property| {
                property.values().any(|value| match value {
                    BorrowedValue::Binary(blob) => takes(long(blob.length())),
                    other => ValueKey::of(other)
                        .is_some_and(|key| takes(long(key.display().chars().count() as u64))),
                })
            });
        }
        self.any(row, &mut |key| takes(long(key.display().chars().count() as u64)))
    }
}

impl<'a> Subject<'a> {
    /// Makes a node ready for filters; nothing if its document cannot be read.
    pub(crate) fn of(node: &'a Node, score: f32, snapshot: &'a Snapshot) -> Option<Self> {
        Some(Self {
            path: node.path().as_str(),
            node: node.borrowed()?,
            is_container: node.is_folder(),
            score,
            snapshot,
        })
    }

    /// Shows the properties that a relative path leads to, of which `*` may name any node, until one is taken.
    pub(crate) fn properties(
        &self,
        path: &str,
        takes: &mut dyn FnMut(BorrowedProperty<'_>) -> bool,
    ) -> Result<bool> {
        let Some((parents, name)) = path.rsplit_once('/') else {
            return Ok(self.node.property(path).is_some_and(takes));
        };
        self.nodes(parents, &mut |node| node.property(name).is_some_and(&mut *takes))
    }

    /// Shows the nodes that a relative path leads to until one is taken.
    fn nodes(&self, path: &str, takes: &mut dyn FnMut(BorrowedNode<'_>) -> bool) -> Result<bool> {
        if inner_nodes(self.node, path, takes) {
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
            // Those in the node's own document were shown before.
            let Some(borrowed) = child.borrowed().filter(|_| child.summary().is_some()) else {
                continue;
            };
            let subject = Subject {
                path: child.path().as_str(),
                node: borrowed,
                is_container: child.is_folder(),
                ..*self
            };
            let is_taken =
                if rest.is_empty() { takes(borrowed) } else { subject.nodes(rest, takes)? };
            if is_taken {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn words(&self, property: Option<&str>) -> Result<Words> {
        let mut words = Words::default();
        let Some(path) = property else {
            words.add_node(self.node);
            return Ok(words);
        };
        self.properties(path, &mut |property| {
            property.values().filter_map(|value| value.as_str()).for_each(|text| words.add(text));
            false
        })?;
        // The path may as well lead to a node.
        self.nodes(path, &mut |node| {
            words.add_node(node);
            false
        })?;
        Ok(words)
    }
}

/// Shows the nodes of the same document that a relative path leads to.
fn inner_nodes(
    node: BorrowedNode<'_>,
    path: &str,
    takes: &mut dyn FnMut(BorrowedNode<'_>) -> bool,
) -> bool {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let mut show = |child: BorrowedNode<'_>| {
        if rest.is_empty() { takes(child) } else { inner_nodes(child, rest, takes) }
    };
    if first == "*" { node.children().any(show) } else { node.child(first).is_some_and(&mut show) }
}

pub(crate) fn bound(literal: &Literal) -> Result<&Value> {
    literal.value().ok_or_else(|| {
        SyntaxError::new(1, format!("the variable `{literal}` has no value; give one")).into()
    })
}

/// Reads a pattern of `LIKE`: `%`, `_`, and a backslash that takes their meaning.
pub(crate) fn like_pattern(pattern: &str) -> Vec<Option<Option<char>>> {
    let mut characters = pattern.chars();
    std::iter::from_fn(|| {
        Some(match characters.next()? {
            '%' => None,
            '_' => Some(None),
            '\\' => Some(Some(characters.next().unwrap_or('\\'))),
            other => Some(Some(other)),
        })
    })
    .collect()
}

/// Returns what every text that matches begins with.
pub(crate) fn like_prefix(pattern: &[Option<Option<char>>]) -> String {
    pattern.iter().map_while(|token| token.flatten()).collect()
}

pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(_, name)| name)
}

pub(crate) fn parent_of(path: &str) -> Option<&str> {
    match path.rsplit_once('/')? {
        ("", "") => None,
        ("", _) => Some("/"),
        (parent, _) => Some(parent),
    }
}

pub(crate) fn is_below(path: &str, above: &NodePath) -> bool {
    if above.is_root() {
        return path != "/";
    }
    path.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('/'))
}
