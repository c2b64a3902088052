//! Listing the children that a viewer sees.
//!
//! In: a folder or page and how its children are seen. Out: these children, a page of them, or their number.
//!
//! Where all children are seen alike but for a few, the few are looked up by name: a folder of 100,000 is paged and
//! counted as fast for a viewer as for the program itself.

use std::collections::BTreeMap;

use tympan_store::key::KeyRange;

use crate::access::gate::GUARDED_CHILDREN;
use crate::access::lens::Children;
use crate::boundary::has_ordered_children;
use crate::{Node, Result, keys};

impl Node {
    /// Returns the seen children that have records of their own, in any order.
    pub(crate) fn seen_listed_children(&self, seen: &Children) -> Result<Vec<Self>> {
        match seen {
            Children::Alike { is_visible: true, others } => {
                self.filtered(|child| match others.get(child.name()) {
                    Some(is_visible) => *is_visible && child.is_seen(),
                    None => !is_guarded_child(child.name()) || child.is_seen(),
                })
            }
            Children::Alike { is_visible: false, others } => self.singled_out(others, true),
            Children::Each => self.filtered(Self::is_seen),
        }
    }

    /// Returns a page of the seen children.
    pub(crate) fn seen_listed_page(
        &self,
        seen: &Children,
        offset: usize,
        limit: usize,
    ) -> Result<Vec<Self>> {
        if let Children::Alike { is_visible: true, others } = seen
            && !self.has_pending_children()?
        {
            let hidden = self.singled_out(others, false)?;
            if hidden.is_empty() {
                return self.any_listed_page(offset, limit);
            }
            if let Some(ranks) = self.ranks(&hidden)? {
                let from =
                    ranks.iter().fold(offset, |from, rank| from + usize::from(*rank <= from));
                let page = self.any_listed_page(from, limit + hidden.len())?;
                let is_shown = |child: &Self| hidden.iter().all(|one| one.name() != child.name());
                return Ok(page.into_iter().filter(is_shown).take(limit).collect());
            }
        }
        Ok(self.listed_children()?.into_iter().skip(offset).take(limit).collect())
    }

    /// Counts the seen children.
    pub(crate) fn count_seen_listed_children(&self, seen: &Children) -> Result<usize> {
        match seen {
            Children::Alike { is_visible: true, others } => {
                let hidden = self.singled_out(others, false)?.len();
                Ok(self.count_any_listed_children()?.saturating_sub(hidden))
            }
            Children::Alike { is_visible: false, others } => {
                Ok(self.singled_out(others, true)?.len())
            }
            Children::Each => Ok(self.filtered(Self::is_seen)?.len()),
        }
    }

    /// Tells whether a child is seen.
    pub(crate) fn has_seen_listed_children(&self, seen: &Children) -> Result<bool> {
        if let Children::Alike { is_visible: false, others } = seen {
            return Ok(!self.singled_out(others, true)?.is_empty());
        }
        let range = keys::children_of(self.path())?;
        for entry in self.snapshot().0.entries(&range) {
            let (key, found) = entry?;
            let path = self.path().child_unchecked(keys::name_of(&key)?);
            if self.listed(path, found.record(&key)?).is_seen() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the children that exist and are seen, or not, among those that are decided by themselves.
    fn singled_out(&self, others: &BTreeMap<String, bool>, is_seen: bool) -> Result<Vec<Self>> {
        let guarded = GUARDED_CHILDREN.iter().copied();
        let mut names: Vec<&str> = others.keys().map(String::as_str).chain(guarded).collect();
        names.sort_unstable();
        let mut found = Vec::new();
        for name in names {
            let path = self.path().child_unchecked(name);
            let Some(record) = self.snapshot().0.find(&keys::key_of(&path)?)? else { continue };
            let child = self.listed(path, record);
            if child.is_seen() == is_seen {
                found.push(child);
            }
        }
        Ok(found)
    }

    fn filtered(&self, shows: impl Fn(&Self) -> bool) -> Result<Vec<Self>> {
        let places = self.places_of_children()?;
        Ok(places.iter().map(|place| self.child_at(place)).filter(shows).collect())
    }

    fn has_pending_children(&self) -> Result<bool> {
        let range = keys::children_of(self.path())?;
        Ok(self.snapshot().0.overlay.range::<[u8], _>(range.bounds()).next().is_some())
    }

    /// Returns the places of some children among all of them, sorted; nothing in a state that has no order of children.
    fn ranks(&self, children: &[Self]) -> Result<Option<Vec<usize>>> {
        let view = &self.snapshot().0;
        let range = keys::children_of(self.path())?;
        let siblings = if has_ordered_children(self.primary_type()) {
            match view.siblings(self.path())? {
                Some(siblings) => Some(siblings),
                None => return Ok(None),
            }
        } else {
            None
        };
        let mut ranks = Vec::new();
        for child in children {
            let key = keys::key_of(child.path())?;
            let rank = match &siblings {
                Some(siblings) => siblings.rank(&keys::order_entry(&key, &child.record().order))?,
                None => {
                    let before = KeyRange { start: range.start.clone(), end: Some(key) };
                    view.content.count_in(view.shared.reads(), &before)?
                }
            };
            ranks.push(usize::try_from(rank).unwrap_or(usize::MAX));
        }
        ranks.sort_unstable();
        Ok(Some(ranks))
    }
}

/// Tells whether access control decides about a child by its name, whatever counts for its siblings.
pub(crate) fn is_guarded_child(name: &str) -> bool {
    name.starts_with("rep:") && GUARDED_CHILDREN.contains(&name)
}
