//! Partners of an equality join, gathered once and found by value.
//!
//! In: the nodes of the inner selector, and the property that the join compares. Out: for values of an outer row, the
//! nodes that have one of them, each once.
//!
//! Invariants
//! * Values are compared as conditions compare them: a value of the outer row is converted to the family of the inner one.
//! * Memory holds paths and headers, no bodies, up to the limit of rows.

use std::collections::{BTreeSet, HashMap};

use super::access::Ground;
use super::filter::Subject;
use super::plan::Access;
use super::rows::FoundRows;
use crate::value_key::{Comparand, ValueKey};
use crate::{Error, Node, Result, Value};

/// The nodes of an inner selector by the values of the property that a join compares.
pub(crate) struct Partners {
    nodes: Vec<Node>,
    by_value: HashMap<Vec<u8>, Vec<usize>>,
}

/// How one join finds partners.
#[derive(Default)]
pub(crate) struct JoinState {
    /// What looking partners up row by row has cost so far.
    pub(crate) spent: u64,
    /// How all partners would be read, once that was asked for.
    pub(crate) all: Option<Access>,
    /// The partners, once gathering them was cheaper than going on so.
    pub(crate) gathered: Option<Partners>,
}

impl Partners {
    /// Gathers the nodes among rows of one selector that have the property.
    ///
    /// # Errors
    /// [`Error::QueryLimit`] if they are too many; errors of the store.
    pub(crate) fn gather(
        ground: &Ground<'_>,
        rows: FoundRows<'_>,
        (selector, property): (&str, &str),
    ) -> Result<Self> {
        let (mut nodes, mut by_value) = (Vec::new(), HashMap::<_, Vec<usize>>::new());
        let limit = ground.limits.max_rows_in_memory;
        for row in rows {
            let Some(mut node) = row?.nodes.into_iter().flatten().next() else { continue };
            let mut values = BTreeSet::new();
            if let Some(subject) = Subject::of(&node, 1.0, ground.snapshot) {
                subject.properties(property, &mut |found| {
                    values
                        .extend(found.values().filter_map(ValueKey::of).map(|key| key.to_bytes()));
                    false
                })?;
            }
            if values.is_empty() {
                continue;
            }
            if nodes.len() >= limit {
                return Err(Error::QueryLimit {
                    what: format!(
                        "it has to hold more than {limit} nodes to join `{selector}` by `{property}` (`query.max_rows_in_memory`); give `{selector}` a condition, or `{property}` an index"
                    ),
                });
            }
            for value in values {
                by_value.entry(value).or_default().push(nodes.len());
            }
            node.release_body();
            nodes.push(node);
        }
        Ok(Self { nodes, by_value })
    }

    /// Returns the nodes that have one of these values.
    pub(crate) fn of(&self, values: &[Value]) -> impl Iterator<Item = &Node> {
        let mut found = BTreeSet::new();
        for value in values {
            let comparand = Comparand::new(value);
            let places =
                comparand.keys().iter().filter_map(|key| self.by_value.get(&key.to_bytes()));
            found.extend(places.flatten().copied());
        }
        found.into_iter().filter_map(|at| self.nodes.get(at))
    }
}
