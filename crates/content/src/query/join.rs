//! What a join asks of the next selector, given the nodes that a row has so far.

use super::algebra::{Constraint, JoinCondition, Literal, Operand, Operator};
use crate::{Node, NodePath, Result};

/// Returns what ties a new selector to the nodes of a row; nothing if a node of the row is missing.
pub(crate) fn tie<'a>(
    on: &JoinCondition,
    new: &str,
    node: &dyn Fn(&str) -> Option<&'a Node>,
) -> Result<Option<Vec<Constraint>>> {
    let selector = || new.to_owned();
    Ok(match on {
        JoinCondition::Child { child, parent } if child == new => node(parent).map(|parent| {
            vec![Constraint::Child { selector: selector(), path: parent.path().clone() }]
        }),
        JoinCondition::Child { child, .. } => node(child)
            .and_then(|child| child.path().parent())
            .map(|path| vec![Constraint::Same { selector: selector(), path }]),
        JoinCondition::Descendant { descendant, ancestor } if descendant == new => node(ancestor)
            .map(|ancestor| {
                vec![Constraint::Descendant { selector: selector(), path: ancestor.path().clone() }]
            }),
        JoinCondition::Descendant { descendant, .. } => node(descendant).map(|below| {
            let above = std::iter::successors(below.path().parent(), NodePath::parent);
            vec![Constraint::Or(
                above.map(|path| Constraint::Same { selector: selector(), path }).collect(),
            )]
        }),
        JoinCondition::Same { left, right, path } => {
            same(new, [left, right], path.as_deref(), node)?
        }
        JoinCondition::Equal { left, right } => {
            let (own, other) = if left.0 == new { (left, right) } else { (right, left) };
            let Some(node) = node(&other.0) else { return Ok(None) };
            let (parents, name) = other.1.rsplit_once('/').unwrap_or(("", &other.1));
            let property = node.find(parents)?.and_then(|node| node.property(name));
            let Some(property) = property else { return Ok(None) };
            let values = property.values().iter().cloned().map(Literal::Value).collect::<Vec<_>>();
            if values.is_empty() {
                return Ok(None);
            }
            let operand = Operand::Property { selector: selector(), name: own.1.clone() };
            let constraint = match <[Literal; 1]>::try_from(values) {
                Ok([value]) => Constraint::Compare { operand, operator: Operator::Equal, value },
                Err(values) => Constraint::In { operand, values },
            };
            Some(vec![constraint])
        }
    })
}

fn same<'a>(
    new: &str,
    [left, right]: [&String; 2],
    path: Option<&str>,
    node: &dyn Fn(&str) -> Option<&'a Node>,
) -> Result<Option<Vec<Constraint>>> {
    let path = path.filter(|path| !path.is_empty() && *path != ".");
    let place = if left == new {
        let Some(right) = node(right) else { return Ok(None) };
        Some(right.path().resolve(path.unwrap_or("."))?)
    } else {
        let Some(left) = node(left) else { return Ok(None) };
        match path {
            None => Some(left.path().clone()),
            Some(path) => {
                let above =
                    left.path().as_str().strip_suffix(path).and_then(|text| text.strip_suffix('/'));
                above
                    .map(|text| NodePath::new(if text.is_empty() { "/" } else { text }))
                    .transpose()?
            }
        }
    };
    let constraint = |path| vec![Constraint::Same { selector: new.to_owned(), path }];
    Ok(place.map(constraint))
}
