//! What is done to a level, in the order of keys: entries put, entries removed, whole ranges removed.

use std::cmp::Ordering;

use crate::error::Result;

/// One step of a script.
#[derive(Debug)]
pub(super) enum Op<T> {
    /// Puts an entry, in place of one with the same key.
    Put(T),
    /// Removes the entry with this key, if there is one.
    Remove,
    /// Removes the old entries from this key up to another; `None` is the end of the map. Entries can be put into the
    /// range by the steps that follow.
    RemoveTo(Option<Vec<u8>>),
}

/// How far the old entries are removed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Up to a key, which is kept. Empty before the first removal.
    Key(Vec<u8>),
    /// To the end of the map.
    End,
}

impl Reach {
    fn of(end: Option<Vec<u8>>) -> Self {
        end.map_or(Self::End, Self::Key)
    }

    /// Tells whether an old entry with this key, not before the start of the removal, is removed.
    pub(super) fn covers(&self, key: &[u8]) -> bool {
        match self {
            Self::Key(end) => key < end.as_slice(),
            Self::End => true,
        }
    }

    fn extend(&mut self, other: Self) {
        let is_further = match (&other, &*self) {
            (_, Self::End) => false,
            (Self::End, Self::Key(_)) => true,
            (Self::Key(other), Self::Key(this)) => other > this,
        };
        if is_further {
            *self = other;
        }
    }
}

/// Where the steps of a script come from.
pub(super) trait Steps<T>: Iterator<Item = Result<(Vec<u8>, Op<T>)>> {}

impl<T, I: Iterator<Item = Result<(Vec<u8>, Op<T>)>>> Steps<T> for I {}

/// Steps in ascending order of keys, taken one after the other.
pub(super) struct Script<I, T> {
    steps: I,
    next: Option<(Vec<u8>, Op<T>)>,
    removed: Reach,
}

/// What a script says about an entry.
pub(super) enum Verdict {
    Keep,
    Drop,
}

impl<T, I: Steps<T>> Script<I, T> {
    pub(super) fn new(mut steps: I) -> Result<Self> {
        let next = steps.next().transpose()?;
        Ok(Self { steps, next, removed: Reach::Key(Vec::new()) })
    }

    /// Returns the key of the next step.
    pub(super) fn next_key(&self) -> Option<&[u8]> {
        self.next.as_ref().map(|(key, _)| key.as_slice())
    }

    /// Returns how far the steps taken so far remove old entries.
    pub(super) fn removed(&self) -> &Reach {
        &self.removed
    }

    /// Takes the steps before an old entry and those with its key; tells whether the entry stays.
    pub(super) fn pass(&mut self, key: &[u8], mut put: impl FnMut(&[u8], &T)) -> Result<Verdict> {
        let mut verdict = Verdict::Keep;
        while let Some(at) = &self.next {
            let order = at.0.as_slice().cmp(key);
            if order == Ordering::Greater {
                break;
            }
            let is_range = matches!(at.1, Op::RemoveTo(_));
            self.take(&mut put)?;
            if order == Ordering::Equal && !is_range {
                verdict = Verdict::Drop;
            }
        }
        if self.removed.covers(key) {
            verdict = Verdict::Drop;
        }
        Ok(verdict)
    }

    /// Takes the steps below a key; `None` takes all.
    pub(super) fn take_below(
        &mut self,
        end: Option<&[u8]>,
        mut put: impl FnMut(&[u8], &T),
    ) -> Result<()> {
        while self.next_key().is_some_and(|key| end.is_none_or(|end| key < end)) {
            self.take(&mut put)?;
        }
        Ok(())
    }

    /// Takes the steps within what is removed.
    pub(super) fn take_removed(&mut self, mut put: impl FnMut(&[u8], &T)) -> Result<()> {
        while self.next_key().is_some_and(|key| self.removed.covers(key)) {
            self.take(&mut put)?;
        }
        Ok(())
    }

    fn take(&mut self, put: &mut impl FnMut(&[u8], &T)) -> Result<()> {
        let following = self.steps.next().transpose()?;
        match std::mem::replace(&mut self.next, following) {
            Some((key, Op::Put(item))) => put(&key, &item),
            Some((_, Op::RemoveTo(end))) => self.removed.extend(Reach::of(end)),
            Some((_, Op::Remove)) | None => {}
        }
        Ok(())
    }
}
