//! Lists of fragments: those of a model that match a filter, in an order, one page of them.
//!
//! In: a [`FragmentListQuery`] and an index. Out: the rows of one page.
//!
//! Invariants
//! * A query has a text form, from which an equal one is read: its result can be computed again for another state.
//! * The order is total: fragments with equal keys are ordered by path, or by identifier for pages with cursors.
//! * A cursor continues after its fragment, also if that fragment is gone.
//!
//! Not here: the values that an answer shows ([`crate::graphql`]).

use std::cell::RefCell;
use std::cmp::Ordering;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use tympan_content::{NodePath, Property, Value};

use crate::fragment_filter::{FilterRow, matches_filter, path_locale};
use crate::fragment_index::FragmentIndex;
use crate::fragment_record::{FragmentRecord, MASTER, VariationRecord};

/// Maximum number of rows of a page with a cursor, and the number if none is requested: AEM's.
pub(crate) const MAX_PAGE_ROWS: usize = 100;
/// Number of rows of a page with a cursor if none is requested.
pub(crate) const DEFAULT_PAGE_ROWS: usize = 50;
/// Maximum number of fields in an order.
const MAX_SORT_FIELDS: usize = 8;
/// Maximum number of references from a fragment to the field that orders it.
const MAX_SORT_DEPTH: usize = 4;

/// A query for fragments of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FragmentListQuery {
    /// The path of the model.
    pub model: String,
    /// The variation whose values count; `master` where it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation: Option<String>,
    /// True if every variation is a row of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub includes_variations: bool,
    /// The language of the fragments' folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// The filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<Json>,
    /// The order: names of fields, each with `ASC` or `DESC`, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sort: Option<String>,
    /// The page.
    pub page: FragmentListPage,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FragmentListPage {
    /// Rows from a position on.
    Offset {
        /// Number of rows before the first one.
        offset: usize,
        /// Maximum number of rows; all if there is none.
        limit: Option<usize>,
    },
    /// Rows after a cursor.
    Cursor {
        /// The cursor of the row before the first one.
        after: Option<String>,
        /// Maximum number of rows.
        first: usize,
    },
}

/// The rows of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FragmentPage {
    /// The rows.
    pub rows: Vec<FragmentRow>,
    /// True if rows follow.
    pub has_next: bool,
    /// True if rows precede.
    pub has_previous: bool,
}

/// A row of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FragmentRow {
    /// The path of the fragment.
    pub path: NodePath,
    /// The name of the variation.
    pub variation: String,
    /// The cursor after this row; empty in pages without cursors.
    pub cursor: String,
}

/// A field of an order.
struct SortField<'a> {
    path: Vec<&'a str>,
    is_descending: bool,
}

/// A row with the values that order it.
struct SortedRow<'a> {
    row: FilterRow<'a>,
    keys: Vec<SortKey>,
}

/// A value in an order. Fragments without a value come first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum SortKey {
    Missing,
    Number(f64),
    Text(String),
}

/// The position after a row.
#[derive(Serialize, Deserialize)]
struct FragmentRowCursor {
    identifier: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<SortKey>,
}

impl FragmentListQuery {
    /// Returns the text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the text form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Returns the page of the query in a state.
    ///
    /// # Errors
    /// If the store fails.
    pub fn evaluate(&self, index: &FragmentIndex) -> tympan_content::Result<FragmentPage> {
        let failure = RefCell::new(None);
        let page = self.find_page(index, &failure);
        failure.into_inner().map_or(Ok(page), Err)
    }

    fn find_page(
        &self,
        index: &FragmentIndex,
        failure: &RefCell<Option<tympan_content::Error>>,
    ) -> FragmentPage {
        let fields = self.sort_fields();
        let mut rows: Vec<SortedRow<'_>> = Vec::new();
        let fragments = index.fragments_of(&self.model);
        // Without an order, a page of a list ends the search.
        let enough = match (&self.page, fields.is_empty()) {
            (FragmentListPage::Offset { offset, limit: Some(limit) }, true) => {
                offset.saturating_add(*limit).saturating_add(1)
            }
            _ => usize::MAX,
        };
        for fragment in fragments {
            if rows.len() >= enough {
                break;
            }
            for row in self.rows_of(fragment, failure) {
                let matches =
                    self.filter.as_ref().is_none_or(|filter| matches_filter(index, row, filter, 0));
                if matches {
                    let keys = fields.iter().map(|field| field.key(index, row)).collect();
                    rows.push(SortedRow { row, keys });
                }
            }
        }
        let by_identifier = matches!(self.page, FragmentListPage::Cursor { .. });
        if by_identifier || !fields.is_empty() {
            rows.sort_by(|left, right| {
                let ties = |row: &SortedRow<'_>| {
                    (row.row.variation.name != MASTER, row.row.variation.name.clone())
                };
                compare_keys(&fields, &left.keys, &right.keys)
                    .then_with(|| match by_identifier {
                        true => left.row.fragment.identifier.cmp(&right.row.fragment.identifier),
                        false => left.row.fragment.path.cmp(&right.row.fragment.path),
                    })
                    .then_with(|| ties(left).cmp(&ties(right)))
            });
        }
        match &self.page {
            FragmentListPage::Offset { offset, limit } => {
                let limit = limit.unwrap_or(usize::MAX);
                let is_after = rows.len() > offset.saturating_add(limit);
                let page = rows.into_iter().skip(*offset).take(limit);
                let rows = page.map(|row| row.to_row(String::new())).collect();
                FragmentPage { rows, has_next: is_after, has_previous: *offset > 0 }
            }
            FragmentListPage::Cursor { after, first } => {
                let position = after.as_deref().and_then(FragmentRowCursor::decode);
                let is_before = |row: &SortedRow<'_>| {
                    position.as_ref().is_some_and(|position| {
                        compare_keys(&fields, &row.keys, &position.keys)
                            .then_with(|| row.row.cursor_identifier().cmp(&position.identifier))
                            .is_le()
                    })
                };
                let start = rows.partition_point(is_before);
                let first = (*first).min(MAX_PAGE_ROWS);
                let has_next = rows.len() > start.saturating_add(first);
                let page = rows.into_iter().skip(start).take(first);
                let rows = page
                    .map(|row| {
                        let cursor = FragmentRowCursor {
                            identifier: row.row.cursor_identifier(),
                            keys: row.keys.clone(),
                        };
                        row.to_row(cursor.encode())
                    })
                    .collect();
                FragmentPage { rows, has_next, has_previous: start > 0 }
            }
        }
    }

    /// Returns the rows that a fragment may have.
    fn rows_of<'a>(
        &'a self,
        fragment: &'a Arc<FragmentRecord>,
        failure: &'a RefCell<Option<tympan_content::Error>>,
    ) -> Vec<FilterRow<'a>> {
        let locale = self.locale.as_deref().map(normalize_locale);
        if let Some(locale) = locale
            && path_locale(fragment.path.as_str()).map(normalize_locale) != Some(locale)
        {
            return Vec::new();
        }
        let requested_variation = self.variation.as_deref();
        let row = |variation: &'a VariationRecord| FilterRow {
            fragment,
            variation,
            requested_variation,
            failure,
        };
        if self.includes_variations {
            fragment.variations.iter().map(row).collect()
        } else {
            fragment.variation_or_master(requested_variation).map(row).into_iter().collect()
        }
    }

    fn sort_fields(&self) -> Vec<SortField<'_>> {
        let fields = self.sort.as_deref().unwrap_or_default().split(',');
        fields
            .filter_map(|field| {
                let mut words = field.split_whitespace();
                let path = words.next()?.split('.').take(MAX_SORT_DEPTH + 1).collect();
                let is_descending =
                    words.next().is_some_and(|order| order.eq_ignore_ascii_case("desc"));
                Some(SortField { path, is_descending })
            })
            .take(MAX_SORT_FIELDS)
            .collect()
    }
}

fn normalize_locale(locale: &str) -> String {
    locale.replace('-', "_").to_ascii_lowercase()
}

impl FilterRow<'_> {
    /// Returns what identifies the row among those of its model.
    fn cursor_identifier(&self) -> String {
        match &*self.variation.name {
            MASTER => self.fragment.identifier.clone(),
            name => format!("{} {name}", self.fragment.identifier),
        }
    }
}

impl SortedRow<'_> {
    fn to_row(&self, cursor: String) -> FragmentRow {
        FragmentRow {
            path: self.row.fragment.path.clone(),
            variation: self.row.variation.name.clone(),
            cursor,
        }
    }
}

impl SortField<'_> {
    /// Returns the value of a row, following references.
    fn key<'a>(&self, index: &'a FragmentIndex, row: FilterRow<'a>) -> SortKey {
        let mut row = row;
        let Some((last, references)) = self.path.split_last() else { return SortKey::Missing };
        for name in references {
            let value = row.value(index, name);
            let target = value.as_deref().and_then(Property::first);
            let target = target.and_then(|target| index.fragment_at(&target.to_text()));
            let Some(target) = target else { return SortKey::Missing };
            let Some(variation) = target.variation_or_master(row.requested_variation) else {
                return SortKey::Missing;
            };
            row = FilterRow { fragment: target, variation, ..row };
        }
        match *last {
            "_path" => SortKey::Text(row.fragment.path.to_string()),
            "_variation" => SortKey::Text(row.variation.name.clone()),
            name => match row.value(index, name).as_deref().and_then(Property::first) {
                None => SortKey::Missing,
                Some(Value::Long(number)) => SortKey::Number(*number as f64),
                Some(Value::Double(number)) => SortKey::Number(*number),
                Some(Value::Date(date)) => SortKey::Number(date.millis as f64),
                Some(value) => SortKey::Text(value.to_text().into_owned()),
            },
        }
    }
}

fn compare_keys(fields: &[SortField<'_>], left: &[SortKey], right: &[SortKey]) -> Ordering {
    let orders = fields.iter().zip(left.iter().zip(right)).map(|(field, (left, right))| {
        let order = left.compare(right);
        if field.is_descending { order.reverse() } else { order }
    });
    orders.fold(Ordering::Equal, Ordering::then)
}

impl SortKey {
    fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Number(left), Self::Number(right)) => left.total_cmp(right),
            (Self::Text(left), Self::Text(right)) => left.cmp(right),
            _ => self.family().cmp(&other.family()),
        }
    }

    fn family(&self) -> u8 {
        match self {
            Self::Missing => 0,
            Self::Number(_) => 1,
            Self::Text(_) => 2,
        }
    }
}

impl FragmentRowCursor {
    /// The identifier alone without an order, as in AEM.
    fn encode(&self) -> String {
        if self.keys.is_empty() {
            return STANDARD.encode(&self.identifier);
        }
        STANDARD.encode(serde_json::to_string(self).unwrap_or_default())
    }

    fn decode(text: &str) -> Option<Self> {
        let text = String::from_utf8(STANDARD.decode(text).ok()?).ok()?;
        if text.starts_with('{') {
            return serde_json::from_str(&text).ok();
        }
        Some(Self { identifier: text, keys: Vec::new() })
    }
}
