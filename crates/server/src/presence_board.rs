//! The editors that have a page open, in memory.
//!
//! In: reports of open editors. Out: the other editors of a page.
//!
//! Invariants
//! * Presence is advice: it is kept in memory of this process, locks nothing, and may be dropped at any time.
//! * An editor that stops reporting is forgotten after [`PRESENCE_LIFETIME`].
//! * The numbers of pages, and of editors of a page, are limited; the editors silent for longest are forgotten first.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tympan_content::NodePath;

/// The time after which an editor that does not report any more is forgotten.
const PRESENCE_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of pages with known editors.
const MAX_PAGES: usize = 10_000;
/// Maximum number of known editors of a page.
const MAX_EDITORS_PER_PAGE: usize = 50;

/// An editor that has a page open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageEditor {
    pub(crate) user: String,
    /// The identity of the browser tab; a user may have several.
    tab: String,
    pub(crate) since: SystemTime,
    reported_at: SystemTime,
}

/// The editors of all pages.
#[derive(Debug, Default)]
pub(crate) struct PresenceBoard {
    pages: Mutex<BTreeMap<NodePath, Vec<PageEditor>>>,
}

impl PresenceBoard {
    /// Notes a report and returns the other editors of the page, the longest open first.
    pub(crate) fn report(
        &self,
        path: &NodePath,
        user: &str,
        tab: &str,
        now: SystemTime,
    ) -> Vec<PageEditor> {
        let mut pages = self.pages.lock();
        if pages.len() >= MAX_PAGES && !pages.contains_key(path) {
            forget_silent(&mut pages, now);
        }
        if pages.len() >= MAX_PAGES && !pages.contains_key(path) {
            return Vec::new();
        }
        let editors = pages.entry(path.clone()).or_default();
        editors.retain(|editor| !is_silent(editor, now));
        match editors.iter_mut().find(|editor| editor.user == user && editor.tab == tab) {
            Some(editor) => editor.reported_at = now,
            None => {
                let reports = editors.iter().enumerate();
                let silent = reports.min_by_key(|(_, editor)| editor.reported_at).map(|(at, _)| at);
                if editors.len() >= MAX_EDITORS_PER_PAGE
                    && let Some(silent) = silent
                {
                    editors.remove(silent);
                }
                let (user, tab) = (user.to_owned(), tab.to_owned());
                editors.push(PageEditor { user, tab, since: now, reported_at: now });
            }
        }
        let others = editors.iter().filter(|editor| editor.user != user || editor.tab != tab);
        others.cloned().collect()
    }

    /// Forgets an editor.
    pub(crate) fn leave(&self, path: &NodePath, user: &str, tab: &str) {
        let mut pages = self.pages.lock();
        let Some(editors) = pages.get_mut(path) else { return };
        editors.retain(|editor| editor.user != user || editor.tab != tab);
        if editors.is_empty() {
            pages.remove(path);
        }
    }
}

fn is_silent(editor: &PageEditor, now: SystemTime) -> bool {
    // A clock that was set back must not keep an editor for ever.
    now.duration_since(editor.reported_at).unwrap_or(PRESENCE_LIFETIME) >= PRESENCE_LIFETIME
}

fn forget_silent(pages: &mut BTreeMap<NodePath, Vec<PageEditor>>, now: SystemTime) {
    for editors in pages.values_mut() {
        editors.retain(|editor| !is_silent(editor, now));
    }
    pages.retain(|_, editors| !editors.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> NodePath {
        NodePath::new(&format!("/content/{name}")).unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn names(editors: &[PageEditor]) -> Vec<&str> {
        editors.iter().map(|editor| editor.user.as_str()).collect()
    }

    #[test]
    fn an_editor_sees_the_others_of_its_page_until_they_leave_or_fall_silent() {
        let board = PresenceBoard::default();
        assert_eq!(names(&board.report(&page("a"), "ada", "1", at(0))), Vec::<&str>::new());
        assert_eq!(names(&board.report(&page("a"), "bea", "2", at(10))), ["ada"]);
        assert_eq!(names(&board.report(&page("b"), "bea", "2", at(10))), Vec::<&str>::new());
        let seen = board.report(&page("a"), "ada", "1", at(50));
        assert_eq!((names(&seen), seen[0].since), (vec!["bea"], at(10)));
        assert_eq!(names(&board.report(&page("a"), "ada", "1", at(70))), Vec::<&str>::new());
        board.report(&page("a"), "bea", "2", at(71));
        board.leave(&page("a"), "bea", "2");
        assert_eq!(names(&board.report(&page("a"), "ada", "1", at(72))), Vec::<&str>::new());
    }

    #[test]
    fn two_tabs_of_one_user_are_two_editors() {
        let board = PresenceBoard::default();
        board.report(&page("a"), "ada", "1", at(0));
        assert_eq!(names(&board.report(&page("a"), "ada", "2", at(1))), ["ada"]);
    }

    #[test]
    fn pages_and_editors_are_limited() {
        let board = PresenceBoard::default();
        for number in 0..MAX_EDITORS_PER_PAGE + 5 {
            board.report(&page("a"), &format!("user{number}"), "1", at(0));
        }
        assert_eq!(board.pages.lock()[&page("a")].len(), MAX_EDITORS_PER_PAGE);
        for number in 0..MAX_PAGES + 5 {
            board.report(&page(&format!("p{number}")), "ada", "1", at(0));
        }
        assert_eq!(board.pages.lock().len(), MAX_PAGES);
        board.report(&page("later"), "ada", "1", at(61));
        assert_eq!(board.pages.lock().len(), 1, "silent editors made room");
    }
}
