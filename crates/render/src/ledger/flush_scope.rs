//! Folders whose URLs have no individually known dependencies: they are flushed as a whole.
//!
//! Invariants
//! * No folder lies below another one of them.
//! * A folder stays until a flush is stored that was issued after the folder was last added.

use std::collections::{BTreeMap, BTreeSet};

use tympan_content::is_path_within;

/// Maximum number of folders; more are replaced by their parents.
const MAX_SCOPES: usize = 64;

/// The folders, and their unsaved changes.
#[derive(Debug, Default)]
pub(super) struct FlushScopes {
    /// The time since which each has to be flushed.
    added_at: BTreeMap<String, u64>,
    /// Folders to be flushed without a further change.
    pending: BTreeSet<String>,
    /// Folders whose rows have to be stored or deleted.
    unsaved: BTreeSet<String>,
}

/// The rows of folders to store.
#[derive(Debug)]
pub(super) struct FlushScopeRows {
    /// Folders, and whether each is to be flushed without a further change.
    pub(super) upserts: Vec<(bool, String)>,
    pub(super) deletions: Vec<String>,
}

impl FlushScopes {
    /// Loads a stored folder.
    pub(super) fn load_scope(&mut self, scope: String, is_due: bool, now: u64) {
        if is_due {
            self.pending.insert(scope.clone());
        }
        self.added_at.insert(scope, now);
    }

    /// Records that anything below a path may depend on anything.
    pub(super) fn add_scope(&mut self, scope: &str, now: u64) {
        let is_within = |outer: &String| is_path_within(scope, outer);
        if let Some((_, since)) = self.added_at.iter_mut().find(|(outer, _)| is_within(outer)) {
            *since = now;
            return;
        }
        self.added_at.insert(scope.to_owned(), now);
        self.unsaved.insert(scope.to_owned());
        while self.added_at.len() > MAX_SCOPES {
            let longest = self.added_at.keys().max_by_key(|scope| scope.matches('/').count());
            let Some(outer) = longest.map(|longest| url_folder(longest).to_owned()) else { return };
            self.replace_scopes_below(&outer, now);
        }
    }

    /// Replaces all folders below a folder by that one.
    fn replace_scopes_below(&mut self, outer: &str, now: u64) {
        let within: Vec<String> =
            self.added_at.keys().filter(|scope| is_path_within(scope, outer)).cloned().collect();
        for scope in within {
            self.added_at.remove(&scope);
            if self.pending.remove(&scope) {
                self.pending.insert(outer.to_owned());
            }
            self.unsaved.insert(scope);
        }
        self.added_at.insert(outer.to_owned(), now);
        self.unsaved.insert(outer.to_owned());
    }

    /// Records that anything below a path may have depended on an earlier change.
    pub(super) fn add_pending_scope(&mut self, scope: &str, now: u64) {
        self.add_scope(scope, now);
        for outer in self.added_at.keys().filter(|outer| is_path_within(scope, outer)) {
            self.pending.insert(outer.clone());
            self.unsaved.insert(outer.clone());
        }
    }

    /// Returns all folders.
    pub(super) fn to_vec(&self) -> Vec<String> {
        self.added_at.keys().cloned().collect()
    }

    /// Returns those of the given folders that are flushed without a change.
    pub(super) fn filter_pending(&self, scopes: Vec<String>) -> Vec<String> {
        scopes.into_iter().filter(|scope| self.pending.contains(scope)).collect()
    }

    /// Returns true if a folder is flushed without a further change.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Records that the flushes of an answer are stored.
    pub(super) fn acknowledge(&mut self, scopes: &[String], answered: u64) {
        for scope in scopes {
            if self.added_at.get(scope).is_some_and(|since| *since <= answered) {
                self.added_at.remove(scope);
                self.pending.remove(scope);
                self.unsaved.insert(scope.clone());
            }
        }
    }

    /// Marks all rows to be stored.
    pub(super) fn mark_all_dirty(&mut self) {
        self.unsaved.extend(self.added_at.keys().cloned());
    }

    /// Returns true if there are unsaved rows.
    pub(super) fn has_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// Takes the unsaved rows.
    pub(super) fn take_rows(&mut self) -> FlushScopeRows {
        let changed = std::mem::take(&mut self.unsaved);
        let (stored_scopes, dropped): (Vec<String>, Vec<String>) =
            changed.into_iter().partition(|scope| self.added_at.contains_key(scope));
        let stored_scopes =
            stored_scopes.into_iter().map(|scope| (self.pending.contains(&scope), scope)).collect();
        FlushScopeRows { upserts: stored_scopes, deletions: dropped }
    }

    /// Restores rows that could not be stored.
    pub(super) fn restore_rows(&mut self, rows: &FlushScopeRows) {
        let upserted_scopes = rows.upserts.iter().map(|(_, scope)| scope);
        self.unsaved.extend(upserted_scopes.chain(&rows.deletions).cloned());
    }
}

/// Returns the folder that contains a URL or folder.
pub(super) fn url_folder(url: &str) -> &str {
    match url.trim_end_matches('/').rfind('/') {
        None | Some(0) => "/",
        Some(at) => url.get(..at).unwrap_or("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_folders_become_those_above_them() {
        let mut scopes = FlushScopes::default();
        for number in 0..=MAX_SCOPES {
            scopes.add_scope(&format!("/a/b/{number}"), 1);
        }
        assert_eq!(scopes.to_vec(), ["/a/b"]);
        scopes.add_scope("/a/b/deeper/still", 2);
        scopes.acknowledge(&scopes.to_vec(), 1);
        assert_eq!(scopes.to_vec(), ["/a/b"], "it was added again after the answer");
        let rows = scopes.take_rows();
        assert_eq!((rows.upserts, rows.deletions.len()), (vec![(false, "/a/b".to_owned())], 65));
        scopes.acknowledge(&scopes.to_vec(), 2);
        assert!(scopes.to_vec().is_empty() && scopes.has_unsaved());
    }

    #[test]
    fn what_is_due_stays_so_in_the_folder_above() {
        let mut scopes = FlushScopes::default();
        scopes.add_scope("/x", 1);
        assert!(!scopes.has_pending());
        scopes.add_pending_scope("/a/b/first", 1);
        for number in 0..MAX_SCOPES {
            scopes.add_scope(&format!("/a/b/{number}"), 2);
        }
        assert_eq!(scopes.filter_pending(scopes.to_vec()), ["/a/b"]);
        // An enclosing folder is pending in its place.
        scopes.add_pending_scope("/x/y", 3);
        assert_eq!(scopes.filter_pending(scopes.to_vec()), ["/a/b", "/x"]);
        let rows = scopes.take_rows();
        assert!(rows.upserts.iter().all(|(is_due, _)| *is_due), "{rows:?}");
        assert!(!scopes.has_unsaved());
        scopes.restore_rows(&rows);
        assert_eq!(scopes.take_rows().upserts, rows.upserts);
        scopes.acknowledge(&scopes.to_vec(), 3);
        assert!(!scopes.has_pending());
    }
}
