//! Partners of an equality join, collected once and looked up by value.
//!
//! In: the nodes of the inner selector, and the property that the join compares. Out: for values of an outer row, the
//! nodes that have one of them, each once.
//!
//! Invariants
//! * Values are compared as in conditions: a value of the outer row is converted to the type family of the inner one.
//! * Memory holds paths and headers, no bodies, up to the limit of rows.

use std::collections::{BTreeSet, HashMap};

use tympan_content::{Comparand, Node, Value, ValueKey};

use crate::access_plan::AccessPlan;
use crate::node_source::QueryContext;
use crate::query_plan::MatchedRowIterator;
use crate::row_filter::FilteredNode;
use crate::{Error, Result};

/// The nodes of an inner selector, keyed by the values of the property that a join compares.
pub(crate) struct JoinPartners {
    nodes: Vec<Node>,
    nodes_by_value: HashMap<Vec<u8>, Vec<usize>>,
}

/// The state of one join during execution.
#[derive(Default)]
pub(crate) struct JoinState {
    /// The accumulated cost of looking up partners row by row.
    pub(crate) lookup_cost: u64,
    /// The access plan for reading all partners, once it was computed.
    pub(crate) full_access_plan: Option<AccessPlan>,
    /// All partners, once collecting them was cheaper than further lookups.
    pub(crate) partners: Option<JoinPartners>,
}

impl JoinPartners {
    /// Collects the nodes among the rows of one selector that have the property.
    ///
    /// # Errors
    /// [`Error::QueryLimit`] if there are too many; errors of the store.
    pub(crate) fn gather_from_rows(
        context: &QueryContext<'_>,
        rows: MatchedRowIterator<'_>,
        selector: &str,
        property: &str,
    ) -> Result<Self> {
        let (mut nodes, mut by_value) = (Vec::new(), HashMap::<_, Vec<usize>>::new());
        let limit = context.limits.max_rows_in_memory;
        for row in rows {
            let Some(mut node) = row?.nodes.into_iter().flatten().next() else { continue };
            let mut values = BTreeSet::new();
            if let Some(subject) = FilteredNode::from_node(&node, 1.0, context.snapshot) {
                subject.any_property(property, &mut |property_values| {
                    values.extend(
                        property_values
                            .values()
                            .filter_map(ValueKey::from_value)
                            .map(|key| key.to_bytes()),
                    );
                    false
                })?;
            }
            if values.is_empty() {
                continue;
            }
            if nodes.len() >= limit {
                return Err(Error::QueryLimit {
                    limit: format!(
                        "it needs more than {limit} nodes in memory to join `{selector}` by `{property}` \
                         (`query.max_rows_in_memory`); add a condition on `{selector}`, or an index on \
                         `{property}`"
                    ),
                });
            }
            for value in values {
                by_value.entry(value).or_default().push(nodes.len());
            }
            node.release_body();
            nodes.push(node);
        }
        Ok(Self { nodes, nodes_by_value: by_value })
    }

    /// Returns the nodes that have at least one of the given values.
    pub(crate) fn nodes_with_values(&self, values: &[Value]) -> impl Iterator<Item = &Node> {
        let mut positions = BTreeSet::new();
        for value in values {
            let comparand = Comparand::new(value);
            let matching_positions =
                comparand.keys().iter().filter_map(|key| self.nodes_by_value.get(&key.to_bytes()));
            positions.extend(matching_positions.flatten().copied());
        }
        positions.into_iter().filter_map(|at| self.nodes.get(at))
    }
}
