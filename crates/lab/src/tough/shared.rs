//! What all users share: whose turn it is, how far trees have grown, and what tests hand on to each other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::act::Act;
use super::suite::{Look, Test};
use crate::net::{Target, Url};

/// Most pages or assets that wait to be used; the oldest are forgotten.
const MOST_WAITING: usize = 100_000;

/// Where requests go.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) url: Url,
    pub(super) target: Arc<Target>,
    pub(super) headers: Vec<(String, String)>,
}

/// Which tree: what it is of, and how many children its nodes get.
pub(super) type Root = (&'static str, u64);

/// A tree that is filled level by level: a node gets its children when it is there itself.
#[derive(Debug, Default)]
struct Tree {
    next: u64,
    /// Numbers below this are done; above it, those in the set.
    done: u64,
    done_later: BTreeSet<u64>,
}

/// What all users share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) author: Place,
    pub(super) publish: Option<Place>,
    /// The name below which everything is made.
    pub(super) run: String,
    pub(super) tests: Vec<Test>,
    /// The tests' places, in the order in which they take turns.
    pub(super) order: Vec<usize>,
    pub(super) picture: Vec<u8>,
    pub(super) homepage: [String; 2],
    /// How pages look whose test does not say it.
    pub(super) look: Look,
    /// How passwords of users begin that tests make.
    pub(super) password: String,
    pub(super) wait: Duration,
    turns: AtomicU64,
    executions: Vec<AtomicU64>,
    skipped: Vec<AtomicU64>,
    /// Executions that have begun and are not over.
    under_way: AtomicU64,
    /// Skips since an execution last found what it needs.
    skips_in_row: AtomicU64,
    /// What was still waited for when the run ended, by its label: how often, and the longest.
    waiting: Mutex<BTreeMap<String, (u64, Duration)>>,
    numbers: AtomicU64,
    pages: Mutex<VecDeque<String>>,
    /// Pages of trees: they stay, since others stand below them.
    tree_pages: Mutex<VecDeque<String>>,
    assets: Mutex<VecDeque<String>>,
    tags: Mutex<VecDeque<String>>,
    trees: Mutex<BTreeMap<Root, Tree>>,
}

/// What a test needs of the machine that it runs against.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) author: Place,
    pub(super) publish: Option<Place>,
    pub(super) run: String,
    pub(super) picture: Vec<u8>,
    /// Of author and publish, where redirects end.
    pub(super) homepage: [String; 2],
    /// How pages look whose test does not say it.
    pub(super) look: Look,
    /// How passwords of users begin that tests make.
    pub(super) password: String,
}

/// What earlier phases made, for those that follow.
#[derive(Debug, Default)]
pub(super) struct Left {
    numbers: u64,
    pages: VecDeque<String>,
    tree_pages: VecDeque<String>,
    assets: VecDeque<String>,
    tags: VecDeque<String>,
    trees: BTreeMap<Root, Tree>,
}

impl Shared {
    pub(super) fn new(
        setting: Setting,
        tests: Vec<Test>,
        order: Vec<usize>,
        wait: Duration,
        left: Left,
    ) -> Self {
        let counters = || tests.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            executions: counters(),
            skipped: counters(),
            author: setting.author,
            publish: setting.publish,
            run: setting.run,
            picture: setting.picture,
            homepage: setting.homepage,
            look: setting.look,
            password: setting.password,
            tests,
            order,
            wait,
            turns: AtomicU64::new(0),
            under_way: AtomicU64::new(0),
            skips_in_row: AtomicU64::new(0),
            waiting: Mutex::default(),
            numbers: AtomicU64::new(left.numbers),
            pages: Mutex::new(left.pages),
            tree_pages: Mutex::new(left.tree_pages),
            assets: Mutex::new(left.assets),
            tags: Mutex::new(left.tags),
            trees: Mutex::new(left.trees),
        }
    }

    /// Returns executions that began, and those that lacked what they need, per test.
    pub(super) fn counts(&self) -> Vec<(u64, u64)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.executions.iter().map(read).zip(self.skipped.iter().map(read)).collect()
    }

    /// Gives back what it was given, and what was made.
    pub(super) fn take_apart(self) -> (Setting, Left) {
        let mut trees = self.trees.into_inner().unwrap_or_else(PoisonError::into_inner);
        // What was not answered when a phase ended counts as done, or its children would wait for ever.
        for tree in trees.values_mut() {
            tree.done = tree.next;
            tree.done_later.clear();
        }
        let left = Left {
            numbers: self.numbers.into_inner(),
            pages: self.pages.into_inner().unwrap_or_else(PoisonError::into_inner),
            tree_pages: self.tree_pages.into_inner().unwrap_or_else(PoisonError::into_inner),
            assets: self.assets.into_inner().unwrap_or_else(PoisonError::into_inner),
            tags: self.tags.into_inner().unwrap_or_else(PoisonError::into_inner),
            trees,
        };
        let setting = Setting {
            author: self.author,
            publish: self.publish,
            run: self.run,
            picture: self.picture,
            homepage: self.homepage,
            look: self.look,
            password: self.password,
        };
        (setting, left)
    }

    /// Returns the next test that is due and not used up.
    pub(super) fn next_test(&self) -> Option<usize> {
        let length = u64::try_from(self.order.len()).ok().filter(|length| *length > 0)?;
        for _ in 0..length {
            let turn = self.turns.fetch_add(1, Ordering::Relaxed) % length;
            let place = *self.order.get(usize::try_from(turn).ok()?)?;
            let test = self.tests.get(place)?;
            let counter = self.executions.get(place)?;
            let most = test.count.unwrap_or(u64::MAX);
            let taken = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < most).then_some(count + 1)
            });
            if taken.is_ok() {
                return Some(place);
            }
        }
        None
    }

    /// Counts an execution that lacked what it needs, and gives its turn back: `count` is of executions.
    pub(super) fn skip(&self, test: usize) {
        if let (Some(executed), Some(skipped)) = (self.executions.get(test), self.skipped.get(test))
        {
            executed.fetch_sub(1, Ordering::Relaxed);
            skipped.fetch_add(1, Ordering::Relaxed);
        }
        self.skips_in_row.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins an execution of a test; nothing if what it needs is not there yet.
    pub(super) fn begin(&self, test: &Test) -> Option<VecDeque<Act>> {
        // Before the look: what others wait for may come of it.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let acts = self.plan(test);
        match &acts {
            Some(_) => self.skips_in_row.store(0, Ordering::SeqCst),
            None => self.end(),
        }
        acts
    }

    /// Ends an execution that had begun.
    pub(super) fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Reports whether what tests lack never comes: nothing is under way that could make it, and every test that is left
    /// was tried since.
    pub(super) fn is_stuck(&self) -> bool {
        let skips = self.skips_in_row.load(Ordering::SeqCst);
        self.under_way.load(Ordering::SeqCst) == 0
            && usize::try_from(skips).is_ok_and(|skips| skips > self.order.len())
    }

    /// Notes what the end of the run left unanswered.
    pub(super) fn leave(&self, label: &str, waited: Duration) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, longest) = waiting.entry(label.to_owned()).or_default();
        *count += 1;
        *longest = (*longest).max(waited);
    }

    /// Returns what was still waited for when the run ended, how often, and the longest.
    pub(super) fn left_waiting(&self) -> BTreeMap<String, (u64, Duration)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the next number of a tree whose parent is there; number 0 is the root, which is made before.
    pub(super) fn grow(&self, tree: &'static str, base: u64) -> Option<u64> {
        let base = base.max(1);
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = trees.entry((tree, base)).or_default();
        let number = tree.next + 1;
        let parent = (number - 1) / base;
        if parent > tree.done && !tree.done_later.contains(&parent) {
            return None;
        }
        tree.next = number;
        Some(number)
    }

    pub(super) fn grown(&self, tree: Root, number: u64) {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = trees.entry(tree).or_default();
        tree.done_later.insert(number);
        while tree.done_later.remove(&(tree.done + 1)) {
            tree.done += 1;
        }
    }

    fn queue(&self, what: Made) -> &Mutex<VecDeque<String>> {
        match what {
            Made::Page => &self.pages,
            Made::TreePage => &self.tree_pages,
            Made::Asset => &self.assets,
            Made::Tag => &self.tags,
        }
    }

    pub(super) fn hand_on(&self, what: Made, path: String) {
        let mut queue = self.queue(what).lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= MOST_WAITING {
            queue.pop_front();
        }
        queue.push_back(path);
    }

    pub(super) fn take(&self, what: Made) -> Option<String> {
        self.queue(what).lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Returns the roots of what tests make, with their types.
    pub(super) fn roots(run: &str) -> [(String, &'static str); 8] {
        [
            (format!("/content/{run}"), "cq:Page"),
            (format!("/content/{run}/flat"), "cq:Page"),
            (format!("/content/{run}/tree"), "cq:Page"),
            (format!("/content/{run}/folders"), "sling:OrderedFolder"),
            (format!("/content/dam/{run}"), "sling:OrderedFolder"),
            (format!("/content/dam/{run}/flat"), "sling:OrderedFolder"),
            (format!("/content/dam/{run}/tree"), "sling:OrderedFolder"),
            (format!("/content/cq:tags/{run}"), "cq:Tag"),
        ]
    }
}

/// Returns the path of a number in a tree.
pub(super) fn tree_path(root: &str, letter: char, base: u64, number: u64) -> String {
    let base = base.max(1);
    let (mut names, mut at) = (Vec::new(), number);
    while at > 0 {
        // Trees of different widths stand side by side.
        names.push(format!("{letter}{base}-{at}"));
        at = (at - 1) / base;
    }
    names.push(root.to_owned());
    names.reverse();
    names.join("/")
}

/// What tests hand on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Made {
    Page,
    TreePage,
    Asset,
    Tag,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_filled_level_by_level() {
        assert_eq!(tree_path("/r", 'p', 3, 1), "/r/p3-1");
        assert_eq!(tree_path("/r", 'p', 3, 4), "/r/p3-1/p3-4");
        assert_eq!(tree_path("/r", 'p', 3, 13), "/r/p3-1/p3-4/p3-13");
        assert_eq!(tree_path("/r", 'p', 1, 2), "/r/p1-1/p1-2");
    }
}
