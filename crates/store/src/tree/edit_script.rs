//! The script of a level, in the order of keys: entries put, entries removed, whole ranges removed.

use std::cmp::Ordering;

use crate::error::Result;

/// One step of a script.
#[derive(Debug)]
pub(super) enum EditOp<T> {
    /// Puts an entry, replacing one with the same key.
    Put(T),
    /// Removes the entry with this key, if it exists.
    Remove,
    /// Removes the old entries from this key up to another; `None` is the end of the map. Later steps can put entries
    /// into the range.
    RemoveRange(Option<Vec<u8>>),
}

/// The end of the current removal of old entries.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RemovalReach {
    /// Up to a key, which is not removed. Empty before the first removal.
    UntilKey(Vec<u8>),
    /// To the end of the map.
    UntilEnd,
}

impl RemovalReach {
    fn from_end(end: Option<Vec<u8>>) -> Self {
        end.map_or(Self::UntilEnd, Self::UntilKey)
    }

    /// Returns true if an old entry with this key, not before the start of the removal, is removed.
    pub(super) fn covers_key(&self, key: &[u8]) -> bool {
        match self {
            Self::UntilKey(end) => key < end.as_slice(),
            Self::UntilEnd => true,
        }
    }

    fn extend_to(&mut self, other: Self) {
        let is_further = match (&other, &*self) {
            (_, Self::UntilEnd) => false,
            (Self::UntilEnd, Self::UntilKey(_)) => true,
            (Self::UntilKey(other_key), Self::UntilKey(this)) => other_key > this,
        };
        if is_further {
            *self = other;
        }
    }
}

/// The source of the steps of a script.
pub(super) trait EditSteps<T>: Iterator<Item = Result<(Vec<u8>, EditOp<T>)>> {}

impl<T, I: Iterator<Item = Result<(Vec<u8>, EditOp<T>)>>> EditSteps<T> for I {}

/// Steps in ascending order of keys, consumed one after the other.
pub(super) struct EditScript<I, T> {
    steps: I,
    next_step: Option<(Vec<u8>, EditOp<T>)>,
    removal_reach: RemovalReach,
}

/// The action of a script on an old entry.
pub(super) enum OldEntryAction {
    Keep,
    Drop,
}

impl<T, I: EditSteps<T>> EditScript<I, T> {
    pub(super) fn new(mut steps: I) -> Result<Self> {
        let next = steps.next().transpose()?;
        Ok(Self { steps, next_step: next, removal_reach: RemovalReach::UntilKey(Vec::new()) })
    }

    /// Returns the key of the next step.
    pub(super) fn next_key(&self) -> Option<&[u8]> {
        self.next_step.as_ref().map(|(key, _)| key.as_slice())
    }

    /// Returns the end of the removal of old entries by the steps consumed so far.
    pub(super) fn removal_reach(&self) -> &RemovalReach {
        &self.removal_reach
    }

    /// Consumes the steps before an old entry and those with its key; returns whether the entry remains.
    pub(super) fn apply_to_entry(
        &mut self,
        key: &[u8],
        mut put: impl FnMut(&[u8], &T),
    ) -> Result<OldEntryAction> {
        let mut verdict = OldEntryAction::Keep;
        while let Some(at) = &self.next_step {
            let order = at.0.as_slice().cmp(key);
            if order == Ordering::Greater {
                break;
            }
            let is_range = matches!(at.1, EditOp::RemoveRange(_));
            self.take_step(&mut put)?;
            if order == Ordering::Equal && !is_range {
                verdict = OldEntryAction::Drop;
            }
        }
        if self.removal_reach.covers_key(key) {
            verdict = OldEntryAction::Drop;
        }
        Ok(verdict)
    }

    /// Consumes the steps below a key; `None` consumes all.
    pub(super) fn take_steps_below(
        &mut self,
        end: Option<&[u8]>,
        mut put: impl FnMut(&[u8], &T),
    ) -> Result<()> {
        while self.next_key().is_some_and(|key| end.is_none_or(|end| key < end)) {
            self.take_step(&mut put)?;
        }
        Ok(())
    }

    /// Consumes the steps within the removed range.
    pub(super) fn take_steps_in_removal(&mut self, mut put: impl FnMut(&[u8], &T)) -> Result<()> {
        while self.next_key().is_some_and(|key| self.removal_reach.covers_key(key)) {
            self.take_step(&mut put)?;
        }
        Ok(())
    }

    fn take_step(&mut self, put: &mut impl FnMut(&[u8], &T)) -> Result<()> {
        let following = self.steps.next().transpose()?;
        match std::mem::replace(&mut self.next_step, following) {
            Some((key, EditOp::Put(item))) => put(&key, &item),
            Some((_, EditOp::RemoveRange(end))) => {
                self.removal_reach.extend_to(RemovalReach::from_end(end))
            }
            Some((_, EditOp::Remove)) | None => {}
        }
        Ok(())
    }
}
