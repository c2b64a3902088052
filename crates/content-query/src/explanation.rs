//! Explanations of query execution, as text and as data.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tympan_content::KeySpan;

use crate::access_plan::AccessPlan;
use crate::algebra::ContentQuery;
use crate::node_source::{IndexKeyLayout, NodeSource};
use crate::query_plan::QueryPlan;

/// Explains the execution of a query.
#[derive(Debug, Clone, Serialize)]
pub struct QueryExplanation {
    /// The query, as JCR-SQL2.
    pub statement: String,
    /// One step for each part of a union.
    pub steps: Vec<SelectorExplanation>,
    /// The source of the row order.
    pub order: String,
    /// The measurements of a run.
    pub measured: Option<QueryMeasurement>,
}

/// Explains the search for the nodes of one selector.
#[derive(Debug, Clone, Serialize)]
pub struct SelectorExplanation {
    /// The selector.
    pub selector: String,
    /// The index.
    pub index: String,
    /// The key ranges to read.
    pub bounds: Vec<String>,
    /// The estimated number of nodes.
    pub estimate: u64,
    /// The estimated cost.
    pub cost: u64,
    /// The conditions for each node.
    pub filter: Vec<String>,
    /// The joined selectors, with their conditions.
    pub joins: Vec<String>,
}

/// The measurements of a query run.
#[derive(Debug, Clone, Serialize)]
pub struct QueryMeasurement {
    /// Number of rows in the result.
    pub rows: u64,
    /// Number of nodes and index entries read.
    pub rows_read: u64,
    /// Number of chunks of indexes and scanned content read.
    pub chunks_read: u64,
    /// Time until the plan was complete.
    #[serde(serialize_with = "serialize_micros", rename = "planned_us")]
    pub planned: Duration,
    /// Time until the first row.
    #[serde(serialize_with = "serialize_micros", rename = "first_row_us")]
    pub first_row: Duration,
    /// Total time.
    #[serde(serialize_with = "serialize_micros", rename = "elapsed_us")]
    pub elapsed: Duration,
}

fn serialize_micros<S: serde::Serializer>(
    time: &Duration,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Describes a plan.
pub(crate) fn describe_plan(query: &ContentQuery, plan: &QueryPlan<'_>) -> QueryExplanation {
    let steps = plan.parts.iter().map(|part| SelectorExplanation {
        selector: part.access_plan.selector.clone(),
        index: part.access_plan.index_name.clone(),
        bounds: describe_bounds(&part.access_plan.source),
        estimate: part.access_plan.estimated_nodes,
        cost: part.access_plan.cost,
        filter: part.access_plan.constraint_texts.clone(),
        joins: part
            .select
            .joins
            .iter()
            .map(|join| {
                format!(
                    "[{}] AS {} ON {}",
                    join.selector.node_type, join.selector.name, join.condition
                )
            })
            .collect(),
    });
    let is_ordered = plan.parts.iter().all(|part| part.access_plan.is_ordered);
    let order = match (plan.is_sorted, is_ordered) {
        (false, _) => "as found",
        (true, true) => "index",
        (true, false) => "sort",
    };
    QueryExplanation {
        statement: query.to_string(),
        steps: steps.collect(),
        order: order.to_owned(),
        measured: None,
    }
}

impl QueryPlan<'_> {
    /// Returns true if an index or a path serves every part.
    pub(crate) fn is_indexed(&self) -> bool {
        self.parts.iter().all(|part| is_access_indexed(&part.access_plan))
    }

    /// Returns the indexes of all parts.
    pub(crate) fn index_names(&self) -> String {
        let names: Vec<&str> =
            self.parts.iter().map(|part| &*part.access_plan.index_name).collect();
        names.join("; ")
    }
}

fn is_access_indexed(access: &AccessPlan) -> bool {
    !matches!(access.source, NodeSource::Scan { is_children_only: false, .. })
}

fn describe_bounds(source: &NodeSource) -> Vec<String> {
    match source {
        NodeSource::Nodes(paths) => paths.iter().take(20).map(ToString::to_string).collect(),
        NodeSource::Scan { root_path, is_children_only: true } => {
            vec![format!("children of {root_path}")]
        }
        NodeSource::Scan { root_path, is_children_only: false } => {
            vec![format!("everything below {root_path}")]
        }
        NodeSource::Spans(spans) => {
            spans.spans.iter().take(20).map(|span| describe_span(span, spans.key_layout)).collect()
        }
        NodeSource::Union(parts) => parts.iter().flat_map(describe_bounds).collect(),
        NodeSource::FullText(search) => vec![search.condition.expression.to_string()],
    }
}

/// Formats a range of keys for display: texts as they are, other bytes in hexadecimal.
fn describe_span((start, end): &KeySpan, shape: IndexKeyLayout) -> String {
    let key = |bytes: &[u8]| -> String {
        let bytes = if shape == IndexKeyLayout::Property {
            bytes.get(1..).unwrap_or_default()
        } else {
            bytes
        };
        let mut text = String::new();
        for character in String::from_utf8_lossy(bytes).chars() {
            match character {
                '\0' | '\u{1}' => text.push(' '),
                character if character.is_control() || character == '\u{fffd}' => {
                    text.extend(character.escape_unicode())
                }
                character => text.push(character),
            }
        }
        text.trim().to_owned()
    };
    format!("`{}` to `{}`", key(start), key(end))
}

impl fmt::Display for QueryExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.statement)?;
        for step in &self.steps {
            let SelectorExplanation { selector, index, estimate, cost, .. } = step;
            writeln!(f, "{selector}: {index}, about {estimate} nodes, cost {cost}")?;
            step.bounds.iter().try_for_each(|bound| writeln!(f, "  range {bound}"))?;
            step.filter.iter().try_for_each(|filter| writeln!(f, "  filter {filter}"))?;
            step.joins.iter().try_for_each(|join| writeln!(f, "  join {join}"))?;
        }
        writeln!(f, "order: {}", self.order)?;
        if let Some(measured) = &self.measured {
            let QueryMeasurement { rows, rows_read, chunks_read, planned, first_row, elapsed } =
                measured;
            writeln!(
                f,
                "rows {rows}, read {rows_read}, chunks {chunks_read}, planned in {planned:?}, first row after {first_row:?}, all after {elapsed:?}"
            )?;
        }
        Ok(())
    }
}
