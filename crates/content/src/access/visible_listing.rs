//! Lists the children that a viewer sees.
//!
//! In: a folder or page and the visibility of its children. Out: the visible children, a page of them, or their number.
//!
//! Where all children have the same visibility except a few, the few are looked up by name. A folder of 100,000
//! children is then paged and counted as fast for a viewer as for the program itself.

use std::collections::BTreeMap;

use tympan_store::key::KeyRange;

use crate::access::guarded_name::{GUARDED_CHILD_NAMES, is_guarded_child};
use crate::access::viewer_permissions::ChildVisibility;
use crate::document::boundary::has_ordered_children;
use crate::{Node, Result, document::record_key};

impl Node {
    /// Returns the visible children that have records of their own, in any order.
    pub(crate) fn visible_listed_children(
        &self,
        visibility: &ChildVisibility,
    ) -> Result<Vec<Self>> {
        match visibility {
            ChildVisibility::Uniform { is_visible: true, exceptions } => self
                .filter_listed_children(|child| match exceptions.get(child.name()) {
                    Some(is_visible) => *is_visible && child.is_visible(),
                    None => !is_guarded_child(child.name()) || child.is_visible(),
                }),
            ChildVisibility::Uniform { is_visible: false, exceptions } => {
                self.exceptional_children(exceptions, true)
            }
            ChildVisibility::Individual => self.filter_listed_children(Self::is_visible),
        }
    }

    /// Returns a page of the visible children.
    pub(crate) fn visible_listed_page(
        &self,
        visibility: &ChildVisibility,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<Self>> {
        if let ChildVisibility::Uniform { is_visible: true, exceptions } = visibility
            && !self.has_pending_children()?
        {
            let hidden = self.exceptional_children(exceptions, false)?;
            if hidden.is_empty() {
                return self.unfiltered_listed_page(offset, limit);
            }
            if let Some(ranks) = self.sibling_ranks(&hidden)? {
                let from =
                    ranks.iter().fold(offset, |from, rank| from + usize::from(*rank <= from));
                let page = self.unfiltered_listed_page(from, limit + hidden.len())?;
                let is_shown = |child: &Self| {
                    hidden.iter().all(|hidden_child| hidden_child.name() != child.name())
                };
                return Ok(page.into_iter().filter(is_shown).take(limit).collect());
            }
        }
        Ok(self.listed_children()?.into_iter().skip(offset).take(limit).collect())
    }

    /// Counts the visible children.
    pub(crate) fn count_visible_listed_children(
        &self,
        visibility: &ChildVisibility,
    ) -> Result<usize> {
        match visibility {
            ChildVisibility::Uniform { is_visible: true, exceptions } => {
                let hidden = self.exceptional_children(exceptions, false)?.len();
                Ok(self.count_unfiltered_children()?.saturating_sub(hidden))
            }
            ChildVisibility::Uniform { is_visible: false, exceptions } => {
                Ok(self.exceptional_children(exceptions, true)?.len())
            }
            ChildVisibility::Individual => Ok(self.filter_listed_children(Self::is_visible)?.len()),
        }
    }

    /// Returns true if any child is visible.
    pub(crate) fn has_visible_listed_children(&self, visibility: &ChildVisibility) -> Result<bool> {
        if let ChildVisibility::Uniform { is_visible: false, exceptions } = visibility {
            return Ok(!self.exceptional_children(exceptions, true)?.is_empty());
        }
        let range = record_key::child_key_range(self.path())?;
        for entry in self.snapshot().view.range_records(&range) {
            let (key, record) = entry?;
            let path = self.path().child_unchecked(record_key::record_name(&key)?);
            if self.node_from_record(path, record.into_record(&key)?).is_visible() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the existing children whose visibility equals `is_seen`, among those whose visibility is decided
    /// individually.
    fn exceptional_children(
        &self,
        others: &BTreeMap<String, bool>,
        is_seen: bool,
    ) -> Result<Vec<Self>> {
        let guarded = GUARDED_CHILD_NAMES.iter().copied();
        let mut names: Vec<&str> = others.keys().map(String::as_str).chain(guarded).collect();
        names.sort_unstable();
        let mut children = Vec::new();
        for name in names {
            let path = self.path().child_unchecked(name);
            let Some(record) = self.snapshot().view.find_record(&record_key::record_key(&path)?)?
            else {
                continue;
            };
            let child = self.node_from_record(path, record);
            if child.is_visible() == is_seen {
                children.push(child);
            }
        }
        Ok(children)
    }

    fn filter_listed_children(&self, shows: impl Fn(&Self) -> bool) -> Result<Vec<Self>> {
        let locations = self.child_locations()?;
        Ok(locations
            .iter()
            .map(|location| self.child_at_location(location))
            .filter(shows)
            .collect())
    }

    fn has_pending_children(&self) -> Result<bool> {
        let range = record_key::child_key_range(self.path())?;
        Ok(self.snapshot().view.record_edits.range::<[u8], _>(range.bounds()).next().is_some())
    }

    /// Returns the sorted positions of some children among all of them; `None` if the state stores no order of
    /// children.
    fn sibling_ranks(&self, children: &[Self]) -> Result<Option<Vec<usize>>> {
        let view = &self.snapshot().view;
        let range = record_key::child_key_range(self.path())?;
        let siblings = if has_ordered_children(self.primary_type()) {
            match view.ordered_siblings(self.path())? {
                Some(siblings) => Some(siblings),
                None => return Ok(None),
            }
        } else {
            None
        };
        let mut ranks = Vec::new();
        for child in children {
            let key = record_key::record_key(child.path())?;
            let rank = match &siblings {
                Some(siblings) => siblings
                    .stored_rank(&record_key::order_map_key(&key, &child.record().order_key))?,
                None => {
                    let before = KeyRange { start: range.start.clone(), end: Some(key) };
                    view.content_map
                        .count_records_in(view.repository_state.chunk_reader(), &before)?
                }
            };
            ranks.push(usize::try_from(rank).unwrap_or(usize::MAX));
        }
        ranks.sort_unstable();
        Ok(Some(ranks))
    }
}
