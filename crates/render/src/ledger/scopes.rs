//! Folders below which nobody knows one by one what was drawn from what: they are flushed as a whole.
//!
//! Invariants
//! * No folder lies below another one of them.
//! * A folder stays until a flush for it is stored that was told after it was last added.

use std::collections::{BTreeMap, BTreeSet};

/// More folders than this are replaced by those above them.
const MAX_SCOPES: usize = 64;

/// The folders, with what of them has to be stored.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Since when each has to be flushed.
    since: BTreeMap<String, u64>,
    /// Those that wait for no further change.
    due: BTreeSet<String>,
    /// Those whose rows have to be stored or deleted.
    changed: BTreeSet<String>,
}

/// What has to be stored of them.
#[derive(Debug)]
pub(super) struct ScopeRows {
    /// Folders, and whether each waits for no further change.
    pub(super) kept: Vec<(bool, String)>,
    pub(super) dropped: Vec<String>,
}

impl Scopes {
    /// Takes up a stored one.
    pub(super) fn load(&mut self, scope: String, is_due: bool, now: u64) {
        if is_due {
            self.due.insert(scope.clone());
        }
        self.since.insert(scope, now);
    }

    /// Notes that anything below a path may depend on anything.
    pub(super) fn add(&mut self, scope: &str, now: u64) {
        let is_within = |outer: &String| is_below(scope, outer);
        if let Some((_, since)) = self.since.iter_mut().find(|(outer, _)| is_within(outer)) {
            *since = now;
            return;
        }
        self.since.insert(scope.to_owned(), now);
        self.changed.insert(scope.to_owned());
        while self.since.len() > MAX_SCOPES {
            let longest = self.since.keys().max_by_key(|scope| scope.matches('/').count());
            let Some(outer) = longest.map(|longest| folder_of(longest).to_owned()) else { return };
            self.replace_below(&outer, now);
        }
    }

    /// Puts one in place of all below it.
    fn replace_below(&mut self, outer: &str, now: u64) {
        let within: Vec<String> =
            self.since.keys().filter(|one| is_below(one, outer)).cloned().collect();
        for one in within {
            self.since.remove(&one);
            if self.due.remove(&one) {
                self.due.insert(outer.to_owned());
            }
            self.changed.insert(one);
        }
        self.since.insert(outer.to_owned(), now);
        self.changed.insert(outer.to_owned());
    }

    /// Notes that anything below a path may have depended on what changed already.
    pub(super) fn add_due(&mut self, scope: &str, now: u64) {
        self.add(scope, now);
        for outer in self.since.keys().filter(|outer| is_below(scope, outer)) {
            self.due.insert(outer.clone());
            self.changed.insert(outer.clone());
        }
    }

    /// Returns all.
    pub(super) fn all(&self) -> Vec<String> {
        self.since.keys().cloned().collect()
    }

    /// Returns those of some that are flushed although nothing changed.
    pub(super) fn due(&self, scopes: Vec<String>) -> Vec<String> {
        scopes.into_iter().filter(|scope| self.due.contains(scope)).collect()
    }

    /// Tells whether one waits for no further change.
    pub(super) fn is_owing(&self) -> bool {
        !self.due.is_empty()
    }

    /// Notes that flushes for an answer are stored.
    pub(super) fn settle(&mut self, scopes: &[String], answered: u64) {
        for scope in scopes {
            if self.since.get(scope).is_some_and(|since| *since <= answered) {
                self.since.remove(scope);
                self.due.remove(scope);
                self.changed.insert(scope.clone());
            }
        }
    }

    /// Notes that all rows have to be stored.
    pub(super) fn mark_all(&mut self) {
        self.changed.extend(self.since.keys().cloned());
    }

    /// Tells whether there is something to store.
    pub(super) fn is_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Takes what has to be stored.
    pub(super) fn take_rows(&mut self) -> ScopeRows {
        let changed = std::mem::take(&mut self.changed);
        let (kept, dropped): (Vec<String>, Vec<String>) =
            changed.into_iter().partition(|scope| self.since.contains_key(scope));
        let kept = kept.into_iter().map(|scope| (self.due.contains(&scope), scope)).collect();
        ScopeRows { kept, dropped }
    }

    /// Takes back what was not stored.
    pub(super) fn put_back(&mut self, rows: &ScopeRows) {
        let kept = rows.kept.iter().map(|(_, scope)| scope);
        self.changed.extend(kept.chain(&rows.dropped).cloned());
    }
}

/// Returns the folder of a URL or of a folder.
pub(super) fn folder_of(url: &str) -> &str {
    match url.trim_end_matches('/').rfind('/') {
        None | Some(0) => "/",
        Some(at) => url.get(..at).unwrap_or("/"),
    }
}

/// Tells whether a path is at or below another one.
fn is_below(path: &str, outer: &str) -> bool {
    outer == "/"
        || path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_folders_become_those_above_them() {
        let mut scopes = Scopes::default();
        for number in 0..=MAX_SCOPES {
            scopes.add(&format!("/a/b/{number}"), 1);
        }
        assert_eq!(scopes.all(), ["/a/b"]);
        scopes.add("/a/b/deeper/still", 2);
        scopes.settle(&scopes.all(), 1);
        assert_eq!(scopes.all(), ["/a/b"], "it was added again after the answer");
        let rows = scopes.take_rows();
        assert_eq!((rows.kept, rows.dropped.len()), (vec![(false, "/a/b".to_owned())], 65));
        scopes.settle(&scopes.all(), 2);
        assert!(scopes.all().is_empty() && scopes.is_changed());
    }

    #[test]
    fn what_is_due_stays_so_in_the_folder_above() {
        let mut scopes = Scopes::default();
        scopes.add("/x", 1);
        assert!(!scopes.is_owing());
        scopes.add_due("/a/b/first", 1);
        for number in 0..MAX_SCOPES {
            scopes.add(&format!("/a/b/{number}"), 2);
        }
        assert_eq!(scopes.due(scopes.all()), ["/a/b"]);
        // One that holds it is due in its stead.
        scopes.add_due("/x/y", 3);
        assert_eq!(scopes.due(scopes.all()), ["/a/b", "/x"]);
        let rows = scopes.take_rows();
        assert!(rows.kept.iter().all(|(is_due, _)| *is_due), "{rows:?}");
        assert!(!scopes.is_changed());
        scopes.put_back(&rows);
        assert_eq!(scopes.take_rows().kept, rows.kept);
        scopes.settle(&scopes.all(), 3);
        assert!(!scopes.is_owing());
    }
}
