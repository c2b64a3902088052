//! The constraints that a join puts on the next selector, given the nodes that a row has so far.

use tympan_content::{Node, NodePath, Value};

use crate::Result;
use crate::algebra::{
    ComparisonOperator, JoinCondition, QueryConstraint, QueryLiteral, QueryOperand,
};

/// Returns the constraints that tie a new selector to the nodes of a row; `None` if a node of the row is missing.
pub(crate) fn join_constraints<'a>(
    on: &JoinCondition,
    new: &str,
    node: &dyn Fn(&str) -> Option<&'a Node>,
) -> Result<Option<Vec<QueryConstraint>>> {
    let selector = || new.to_owned();
    Ok(match on {
        JoinCondition::Child { child, parent } if child == new => node(parent).map(|parent| {
            vec![QueryConstraint::Child { selector: selector(), path: parent.path().clone() }]
        }),
        JoinCondition::Child { child, .. } => node(child)
            .and_then(|child| child.path().parent())
            .map(|path| vec![QueryConstraint::Same { selector: selector(), path }]),
        JoinCondition::Descendant { descendant, ancestor } if descendant == new => node(ancestor)
            .map(|ancestor| {
                vec![QueryConstraint::Descendant {
                    selector: selector(),
                    path: ancestor.path().clone(),
                }]
            }),
        JoinCondition::Descendant { descendant, .. } => node(descendant).map(|below| {
            let above = std::iter::successors(below.path().parent(), NodePath::parent);
            vec![QueryConstraint::Or(
                above.map(|path| QueryConstraint::Same { selector: selector(), path }).collect(),
            )]
        }),
        JoinCondition::Same { left, right, path } => {
            same_node_constraint(new, [left, right], path.as_deref(), node)?
        }
        JoinCondition::Equal { left, right } => {
            let own = if left.0 == new { left } else { right };
            let Some(values) = outer_values(on, new, node)? else { return Ok(None) };
            let values: Vec<QueryLiteral> = values.into_iter().map(QueryLiteral::Value).collect();
            let operand = QueryOperand::Property { selector: selector(), name: own.1.clone() };
            let constraint = match <[QueryLiteral; 1]>::try_from(values) {
                Ok([value]) => {
                    QueryConstraint::Compare { operand, operator: ComparisonOperator::Equal, value }
                }
                Err(values) => QueryConstraint::In { operand, values },
            };
            Some(vec![constraint])
        }
    })
}

/// Returns the property of the new selector that an equality compares; `None` for any other condition.
pub(crate) fn joined_property<'q>(on: &'q JoinCondition, new: &str) -> Option<&'q str> {
    match on {
        JoinCondition::Equal { left, right } => {
            Some(if left.0 == new { &left.1 } else { &right.1 })
        }
        _ => None,
    }
}

/// Returns the values of which a partner must have at least one; `None` if the row has none, or for any other
/// condition.
pub(crate) fn outer_values<'a>(
    on: &JoinCondition,
    new: &str,
    node: &dyn Fn(&str) -> Option<&'a Node>,
) -> Result<Option<Vec<Value>>> {
    let JoinCondition::Equal { left, right } = on else { return Ok(None) };
    let outer = if left.0 == new { right } else { left };
    let Some(node) = node(&outer.0) else { return Ok(None) };
    let (parents, name) = outer.1.rsplit_once('/').unwrap_or(("", &outer.1));
    let property = node.find_descendant(parents)?.and_then(|node| node.property(name));
    let values = property.map(|property| property.values().to_vec()).unwrap_or_default();
    Ok((!values.is_empty()).then_some(values))
}

fn same_node_constraint<'a>(
    new: &str,
    [left, right]: [&String; 2],
    path: Option<&str>,
    node: &dyn Fn(&str) -> Option<&'a Node>,
) -> Result<Option<Vec<QueryConstraint>>> {
    let path = path.filter(|path| !path.is_empty() && *path != ".");
    let sides = if left == new {
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
    let constraint = |path| vec![QueryConstraint::Same { selector: new.to_owned(), path }];
    Ok(sides.map(constraint))
}
