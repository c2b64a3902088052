//! Facets: the number of hits for each value of a property. If facets are requested, every hit is visited; its score is
//! not needed.

use std::collections::BTreeMap;

use tantivy::collector::{Collector, SegmentCollector};
use tantivy::columnar::StrColumn;
use tantivy::{DocId, Score, SegmentOrdinal, SegmentReader};

/// The maximum number of values returned per property; the most frequent ones are returned.
const MAX_FACET_VALUES: usize = 1000;

/// Counts the values of properties.
#[derive(Debug)]
pub(crate) struct FacetCollector<'a> {
    /// The properties, relative to the document.
    pub(crate) properties: &'a [String],
}

/// The counts of one segment, by the ordinal of the value in the column.
pub(crate) struct SegmentFacets {
    columns: Vec<Option<(StrColumn, Vec<u64>)>>,
}

type FacetValueCounts = Vec<BTreeMap<String, u64>>;

impl SegmentCollector for SegmentFacets {
    type Fruit = FacetValueCounts;

    fn collect(&mut self, document: DocId, _: Score) {
        for (column, counts) in self.columns.iter_mut().flatten() {
            for ord in column.ords().values_for_doc(document) {
                let count = usize::try_from(ord).ok().and_then(|ord| counts.get_mut(ord));
                if let Some(count) = count {
                    *count += 1;
                }
            }
        }
    }

    fn harvest(self) -> FacetValueCounts {
        let named = |column: Option<(StrColumn, Vec<u64>)>| {
            let mut values = BTreeMap::new();
            let Some((column, counts)) = column else { return values };
            for (ord, count) in (0_u64..).zip(counts).filter(|(_, count)| *count > 0) {
                let mut value = String::new();
                if column.ord_to_str(ord, &mut value).unwrap_or(false) {
                    values.insert(value, count);
                }
            }
            values
        };
        self.columns.into_iter().map(named).collect()
    }
}

impl Collector for FacetCollector<'_> {
    type Fruit = Vec<Vec<(String, u64)>>;
    type Child = SegmentFacets;

    fn for_segment(
        &self,
        _: SegmentOrdinal,
        reader: &SegmentReader,
    ) -> tantivy::Result<SegmentFacets> {
        let mut columns = Vec::new();
        for property in self.properties {
            let name = format!("facets.{}", property.replace('.', "\\."));
            let column = reader.fast_fields().str(&name)?;
            columns.push(column.map(|column| {
                let counts = vec![0; column.dictionary().num_terms()];
                (column, counts)
            }));
        }
        Ok(SegmentFacets { columns })
    }

    fn requires_scoring(&self) -> bool {
        false
    }

    fn merge_fruits(&self, segments: Vec<FacetValueCounts>) -> tantivy::Result<Self::Fruit> {
        let mut all: FacetValueCounts = self.properties.iter().map(|_| BTreeMap::new()).collect();
        for counts in segments {
            for (all, counts) in all.iter_mut().zip(counts) {
                for (value, count) in counts {
                    *all.entry(value).or_default() += count;
                }
            }
        }
        let sorted = |counts: BTreeMap<String, u64>| {
            let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
            // The sort is stable, so values with equal counts stay sorted by name.
            counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            counts.truncate(MAX_FACET_VALUES);
            counts
        };
        Ok(all.into_iter().map(sorted).collect())
    }
}
