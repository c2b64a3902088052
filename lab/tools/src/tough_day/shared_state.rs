//! State shared by all users: the turns of the tests, the growth of trees, and content handed from test to test.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tympan_lab_engine::net::LoadTarget;
use tympan_lab_plan::AbsoluteUrl;

use super::suite::{PageAppearance, ToughTest};

/// Maximum number of pages or assets available to other tests; the oldest are dropped.
const MAX_OFFERED_ITEMS: usize = 100_000;

/// The server that receives requests.
#[derive(Debug)]
pub(super) struct ToughServer {
    pub(super) base_url: AbsoluteUrl,
    pub(super) target: Arc<LoadTarget>,
    pub(super) headers: Vec<(String, String)>,
}

/// Key of a tree: its content type, and the number of children per node.
pub(super) type ToughTreeKey = (&'static str, u64);

/// A tree that is filled level by level: a node gets its children after it exists.
#[derive(Debug, Default)]
struct ToughTree {
    next_number: u64,
    /// Numbers below this are finished, and so are the numbers in the set.
    finished_below: u64,
    finished_later: BTreeSet<u64>,
}

/// State shared by all users.
#[derive(Debug)]
pub(super) struct ToughSharedState {
    pub(super) author: ToughServer,
    pub(super) publish: Option<ToughServer>,
    /// The name below which all content is created.
    pub(super) run_name: String,
    pub(super) tests: Vec<ToughTest>,
    /// Indexes of the tests, in the order of their turns.
    pub(super) test_order: Vec<usize>,
    pub(super) picture: Vec<u8>,
    pub(super) homepages: [String; 2],
    /// Default appearance of created pages.
    pub(super) default_appearance: PageAppearance,
    /// Prefix of the passwords of users that tests create.
    pub(super) password_prefix: String,
    pub(super) pause: Duration,
    turn_count: AtomicU64,
    execution_counts: Vec<AtomicU64>,
    skip_counts: Vec<AtomicU64>,
    /// Executions in progress.
    executing: AtomicU64,
    /// Skips since an execution last found its prerequisites.
    consecutive_skips: AtomicU64,
    /// Waits that were pending when the run ended, by label: number and longest duration.
    pending_waits: Mutex<BTreeMap<String, (u64, Duration)>>,
    next_number: AtomicU64,
    pages: Mutex<VecDeque<String>>,
    /// Pages of trees. They are never deleted, because other pages are below them.
    tree_pages: Mutex<VecDeque<String>>,
    assets: Mutex<VecDeque<String>>,
    tags: Mutex<VecDeque<String>>,
    trees: Mutex<BTreeMap<ToughTreeKey, ToughTree>>,
}

/// The environment that tests run against.
#[derive(Debug)]
pub(super) struct ToughEnvironment {
    pub(super) author: ToughServer,
    pub(super) publish: Option<ToughServer>,
    pub(super) run_name: String,
    pub(super) picture: Vec<u8>,
    /// Homepages of author and publish, where redirects end.
    pub(super) homepages: [String; 2],
    /// Default appearance of created pages.
    pub(super) default_appearance: PageAppearance,
    /// Prefix of the passwords of users that tests create.
    pub(super) password_prefix: String,
}

/// Content that earlier phases created, for later phases.
#[derive(Debug, Default)]
pub(super) struct CreatedContent {
    next_number: u64,
    pages: VecDeque<String>,
    tree_pages: VecDeque<String>,
    assets: VecDeque<String>,
    tags: VecDeque<String>,
    trees: BTreeMap<ToughTreeKey, ToughTree>,
}

impl ToughSharedState {
    pub(super) fn new(
        setting: ToughEnvironment,
        tests: Vec<ToughTest>,
        order: Vec<usize>,
        wait: Duration,
        left: CreatedContent,
    ) -> Self {
        let counters = || tests.iter().map(|_| AtomicU64::new(0)).collect();
        Self {
            execution_counts: counters(),
            skip_counts: counters(),
            author: setting.author,
            publish: setting.publish,
            run_name: setting.run_name,
            picture: setting.picture,
            homepages: setting.homepages,
            default_appearance: setting.default_appearance,
            password_prefix: setting.password_prefix,
            tests,
            test_order: order,
            pause: wait,
            turn_count: AtomicU64::new(0),
            executing: AtomicU64::new(0),
            consecutive_skips: AtomicU64::new(0),
            pending_waits: Mutex::default(),
            next_number: AtomicU64::new(left.next_number),
            pages: Mutex::new(left.pages),
            tree_pages: Mutex::new(left.tree_pages),
            assets: Mutex::new(left.assets),
            tags: Mutex::new(left.tags),
            trees: Mutex::new(left.trees),
        }
    }

    /// Returns the number of executions that began, and of those that lacked their prerequisites, per test.
    pub(super) fn execution_and_skip_counts(&self) -> Vec<(u64, u64)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        self.execution_counts.iter().map(read).zip(self.skip_counts.iter().map(read)).collect()
    }

    /// Returns the environment, and the created content.
    pub(super) fn into_parts(self) -> (ToughEnvironment, CreatedContent) {
        let mut trees = self.trees.into_inner().unwrap_or_else(PoisonError::into_inner);
        // Nodes without a response at the end of a phase count as finished; otherwise their children would wait
        // forever.
        for tree in trees.values_mut() {
            tree.finished_below = tree.next_number;
            tree.finished_later.clear();
        }
        let left = CreatedContent {
            next_number: self.next_number.into_inner(),
            pages: self.pages.into_inner().unwrap_or_else(PoisonError::into_inner),
            tree_pages: self.tree_pages.into_inner().unwrap_or_else(PoisonError::into_inner),
            assets: self.assets.into_inner().unwrap_or_else(PoisonError::into_inner),
            tags: self.tags.into_inner().unwrap_or_else(PoisonError::into_inner),
            trees,
        };
        let setting = ToughEnvironment {
            author: self.author,
            publish: self.publish,
            run_name: self.run_name,
            picture: self.picture,
            homepages: self.homepages,
            default_appearance: self.default_appearance,
            password_prefix: self.password_prefix,
        };
        (setting, left)
    }

    /// Returns the next test that is due and not exhausted.
    pub(super) fn next_test(&self) -> Option<usize> {
        let length = u64::try_from(self.test_order.len()).ok().filter(|length| *length > 0)?;
        for _ in 0..length {
            let turn = self.turn_count.fetch_add(1, Ordering::Relaxed) % length;
            let test_index = *self.test_order.get(usize::try_from(turn).ok()?)?;
            let test = self.tests.get(test_index)?;
            let counter = self.execution_counts.get(test_index)?;
            let most = test.max_executions.unwrap_or(u64::MAX);
            let update = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < most).then_some(count + 1)
            });
            if update.is_ok() {
                return Some(test_index);
            }
        }
        None
    }

    /// Counts an execution that lacked its prerequisites, and gives back its turn, because `count` applies to
    /// executions.
    pub(super) fn record_skip(&self, test: usize) {
        if let (Some(executed), Some(skipped)) =
            (self.execution_counts.get(test), self.skip_counts.get(test))
        {
            executed.fetch_sub(1, Ordering::Relaxed);
            skipped.fetch_add(1, Ordering::Relaxed);
        }
        self.consecutive_skips.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins an execution.
    pub(super) fn start_execution(&self) {
        self.executing.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that an execution found its prerequisites.
    pub(super) fn reset_skips(&self) {
        self.consecutive_skips.store(0, Ordering::SeqCst);
    }

    /// Ends an execution.
    pub(super) fn end_execution(&self) {
        self.executing.fetch_sub(1, Ordering::SeqCst);
    }

    /// Returns true if the missing prerequisites can never appear: no execution is in progress that could create them,
    /// and every remaining test was tried since.
    pub(super) fn is_stuck(&self) -> bool {
        let skips = self.consecutive_skips.load(Ordering::SeqCst);
        self.executing.load(Ordering::SeqCst) == 0
            && usize::try_from(skips).is_ok_and(|skips| skips > self.test_order.len())
    }

    /// Records a wait that was pending at the end of the run.
    pub(super) fn record_pending_wait(&self, label: &str, waited: Duration) {
        let mut waiting = self.pending_waits.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, longest) = waiting.entry(label.to_owned()).or_default();
        *count += 1;
        *longest = (*longest).max(waited);
    }

    /// Returns the waits that were pending at the end of the run: number and longest duration.
    pub(super) fn pending_waits(&self) -> BTreeMap<String, (u64, Duration)> {
        self.pending_waits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn take_number(&self) -> u64 {
        self.next_number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Reserves the next number of a tree whose parent exists. Number 0 is the root, which is created beforehand.
    pub(super) fn reserve_tree_node(&self, tree: &'static str, base: u64) -> Option<u64> {
        let base = base.max(1);
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = trees.entry((tree, base)).or_default();
        let number = tree.next_number + 1;
        let parent = (number - 1) / base;
        if parent > tree.finished_below && !tree.finished_later.contains(&parent) {
            return None;
        }
        tree.next_number = number;
        Some(number)
    }

    pub(super) fn finish_tree_node(&self, tree: ToughTreeKey, number: u64) {
        let mut trees = self.trees.lock().unwrap_or_else(PoisonError::into_inner);
        let tree = trees.entry(tree).or_default();
        tree.finished_later.insert(number);
        while tree.finished_later.remove(&(tree.finished_below + 1)) {
            tree.finished_below += 1;
        }
    }

    fn queue_of(&self, kind: CreatedContentKind) -> &Mutex<VecDeque<String>> {
        match kind {
            CreatedContentKind::Page => &self.pages,
            CreatedContentKind::TreePage => &self.tree_pages,
            CreatedContentKind::Asset => &self.assets,
            CreatedContentKind::Tag => &self.tags,
        }
    }

    pub(super) fn offer_content(&self, kind: CreatedContentKind, path: String) {
        let mut queue = self.queue_of(kind).lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= MAX_OFFERED_ITEMS {
            queue.pop_front();
        }
        queue.push_back(path);
    }

    pub(super) fn take_content(&self, kind: CreatedContentKind) -> Option<String> {
        self.queue_of(kind).lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// Returns the roots of test content, with their types.
    pub(super) fn content_roots(run: &str) -> [(String, &'static str); 8] {
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

/// Returns the path of a node in a tree, by its number.
pub(super) fn tree_node_path(root: &str, letter: char, base: u64, number: u64) -> String {
    let base = base.max(1);
    let (mut names, mut at) = (Vec::new(), number);
    while at > 0 {
        // The names allow trees of different widths side by side.
        names.push(format!("{letter}{base}-{at}"));
        at = (at - 1) / base;
    }
    names.push(root.to_owned());
    names.reverse();
    names.join("/")
}

/// A kind of content that one test creates for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CreatedContentKind {
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
        assert_eq!(tree_node_path("/r", 'p', 3, 1), "/r/p3-1");
        assert_eq!(tree_node_path("/r", 'p', 3, 4), "/r/p3-1/p3-4");
        assert_eq!(tree_node_path("/r", 'p', 3, 13), "/r/p3-1/p3-4/p3-13");
        assert_eq!(tree_node_path("/r", 'p', 1, 2), "/r/p1-1/p1-2");
    }
}
