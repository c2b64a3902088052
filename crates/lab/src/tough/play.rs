//! Executions of tests: what each sends, one request after the other, and what it hands on to others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::suite::{Kind, Look, QUERY, Test};
use crate::asset::{self, Ask, MOST_ANSWER, Processed, processed};
use crate::load::{Step, Turn, User};
use crate::net::{Keep, Reply, Request, Target, Url};
use crate::record::Sample;

/// Most pages or assets that wait to be used; the oldest are forgotten.
const MOST_WAITING: usize = 100_000;
/// Users that `CreateGroupWithUsers` makes at a time, as Tough Day does.
const USERS: usize = 5;
/// Where folders of users are made.
pub(super) const USERS_ROOT: &str = "/home/users";
/// How often an asset or a page of publish is asked for until it is there.
const LOOK: Duration = Duration::from_millis(200);
/// Longest wait for renditions and publication.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a user waits where every test lacks what it needs.
const NOTHING_TO_DO: Duration = Duration::from_millis(100);

/// Where requests go.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) url: Url,
    pub(super) target: Arc<Target>,
    pub(super) headers: Vec<(String, String)>,
}

/// Which tree: what it is of, and how many children its nodes get.
type Root = (&'static str, u64);

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
    fn next_test(&self) -> Option<usize> {
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
    fn skip(&self, test: usize) {
        if let (Some(executed), Some(skipped)) = (self.executions.get(test), self.skipped.get(test))
        {
            executed.fetch_sub(1, Ordering::Relaxed);
            skipped.fetch_add(1, Ordering::Relaxed);
        }
        self.skips_in_row.fetch_add(1, Ordering::SeqCst);
    }

    /// Begins an execution of a test; nothing if what it needs is not there yet.
    fn begin(&self, test: &Test) -> Option<VecDeque<Act>> {
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
    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Reports whether what tests lack never comes: nothing is under way that could make it, and every test that is left
    /// was tried since.
    fn is_stuck(&self) -> bool {
        let skips = self.skips_in_row.load(Ordering::SeqCst);
        self.under_way.load(Ordering::SeqCst) == 0
            && usize::try_from(skips).is_ok_and(|skips| skips > self.order.len())
    }

    /// Notes what the end of the run left unanswered.
    fn leave(&self, label: &str, waited: Duration) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, longest) = waiting.entry(label.to_owned()).or_default();
        *count += 1;
        *longest = (*longest).max(waited);
    }

    /// Returns what was still waited for when the run ended, how often, and the longest.
    pub(super) fn left_waiting(&self) -> BTreeMap<String, (u64, Duration)> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the next number of a tree whose parent is there; number 0 is the root, which is made before.
    fn grow(&self, tree: &'static str, base: u64) -> Option<u64> {
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

    fn grown(&self, tree: Root, number: u64) {
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

    fn hand_on(&self, what: Made, path: String) {
        let mut queue = self.queue(what).lock().unwrap_or_else(PoisonError::into_inner);
        if queue.len() >= MOST_WAITING {
            queue.pop_front();
        }
        queue.push_back(path);
    }

    fn take(&self, what: Made) -> Option<String> {
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
fn tree_path(root: &str, letter: char, base: u64, number: u64) -> String {
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
enum Made {
    Page,
    TreePage,
    Asset,
    Tag,
}

/// What a poll waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The asset was processed.
    Processed,
    /// The page is there.
    There,
}

/// One thing that an execution does.
#[derive(Debug)]
enum Act {
    Send {
        label: String,
        request: Request,
    },
    Await {
        label: String,
        request: Request,
        until: Until,
    },
    /// The node of a tree is there, or never will be.
    Grown {
        tree: Root,
        number: u64,
    },
    /// What was made can be used by others; not reached where making it failed.
    HandOn(Made, String),
}

/// A user who executes tests.
#[derive(Debug)]
pub(super) struct Tester {
    shared: Arc<Shared>,
    acts: VecDeque<Act>,
    current: Option<Act>,
    /// When the execution was due; its first request counts from then.
    due: Option<Instant>,
    /// When the request before the poll was answered.
    since: Instant,
    /// How long the user stays, from its first turn.
    lives: Option<Duration>,
    ends_at: Option<Instant>,
    is_open: bool,
    is_under_way: bool,
}

impl Tester {
    pub(super) fn new(shared: Arc<Shared>, lives: Option<Duration>, is_open: bool) -> Self {
        Self {
            shared,
            acts: VecDeque::new(),
            current: None,
            due: None,
            since: Instant::now(),
            lives,
            ends_at: None,
            is_open,
            is_under_way: false,
        }
    }

    /// Chooses a test and prepares what it does.
    fn begin(&mut self, turn: &Turn<'_>) -> Step {
        let ends_at = self.lives.map(|lives| turn.now + lives);
        if self.ends_at.is_none() {
            self.ends_at = ends_at;
        }
        if turn.is_stopping || self.ends_at.is_some_and(|end| turn.now >= end) {
            return Step::End;
        }
        let Some(place) = self.shared.next_test() else {
            // Everything is used up: a user of the open model waits for nothing more.
            return if self.is_open { Step::Rest } else { Step::End };
        };
        let Some(test) = self.shared.tests.get(place) else { return Step::End };
        let Some(acts) = self.shared.begin(test) else {
            self.shared.skip(place);
            return match self.is_open {
                true => Step::Rest,
                false if self.shared.is_stuck() => Step::End,
                false => Step::Wait(turn.now + NOTHING_TO_DO),
            };
        };
        self.acts = acts;
        self.is_under_way = true;
        self.due = Some(if self.is_open { turn.due } else { turn.now });
        self.go_on(turn.now)
    }

    /// Takes the next act; at the end of an execution, pauses.
    fn go_on(&mut self, now: Instant) -> Step {
        loop {
            match self.acts.pop_front() {
                Some(Act::Grown { tree, number }) => self.shared.grown(tree, number),
                Some(Act::HandOn(what, path)) => self.shared.hand_on(what, path),
                Some(Act::Send { label, request }) => {
                    self.current = Some(Act::Send { label, request: request.clone() });
                    return Step::Fetch(request);
                }
                Some(act @ Act::Await { .. }) => {
                    self.current = Some(act);
                    return Step::Wait(now + LOOK);
                }
                None => {
                    if std::mem::take(&mut self.is_under_way) {
                        self.shared.end();
                    }
                    return if self.is_open {
                        Step::Rest
                    } else {
                        Step::Wait(now + self.shared.wait)
                    };
                }
            }
        }
    }

    /// Gives the rest of an execution up; what it was to grow counts as grown.
    fn give_up(&mut self) {
        for act in std::mem::take(&mut self.acts) {
            if let Act::Grown { tree, number } = act {
                self.shared.grown(tree, number);
            }
        }
    }

    fn sent(&mut self, turn: &mut Turn<'_>, label: &str, reply: &Reply) -> Step {
        let id = turn.recorder.label(label);
        let due = self.due.take().unwrap_or(reply.started);
        turn.recorder.sample(&Sample::of(id, due, reply));
        self.since = reply.ended;
        let is_ok = reply.result.as_ref().is_ok_and(|response| response.status < 400);
        if !is_ok {
            self.give_up();
        }
        self.go_on(turn.now)
    }

    fn looked(&mut self, turn: &mut Turn<'_>, act: Act, reply: &Reply) -> Step {
        let Act::Await { label, until, .. } = &act else { return self.go_on(turn.now) };
        let state = match until {
            Until::There => {
                let is_there = reply.result.as_ref().is_ok_and(|response| response.status < 400);
                is_there.then_some(Ok(()))
            }
            Until::Processed => processed(reply).map(|state| match state {
                Processed::Done => Ok(()),
                Processed::Failed => Err("the asset could not be processed"),
            }),
        };
        let is_late = turn.now.saturating_duration_since(self.since) > PATIENCE;
        if state.is_none() && !is_late && !turn.is_stopping {
            self.current = Some(act);
            return Step::Wait(turn.now + LOOK);
        }
        let failure = match state {
            Some(Ok(())) => None,
            Some(Err(fault)) => Some(fault),
            None if is_late => Some("it was not there in time"),
            None => {
                // The run ended meanwhile: that is no failure of the author's, and no time that could be told.
                self.shared.leave(label, turn.now.saturating_duration_since(self.since));
                self.give_up();
                return self.go_on(turn.now);
            }
        };
        let id = turn.recorder.label(label);
        // From the end of the request before, whatever the last look took.
        turn.recorder.sample(&Sample {
            started: self.since,
            failure,
            ..Sample::of(id, self.since, reply)
        });
        if failure.is_some() {
            self.give_up();
        }
        self.go_on(turn.now)
    }
}

impl User for Tester {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        let reply = std::mem::take(&mut turn.replies).into_iter().next();
        match (self.current.take(), reply) {
            (Some(Act::Send { label, .. }), Some(reply)) => self.sent(turn, &label, &reply),
            (Some(act @ Act::Await { .. }), Some(reply)) => self.looked(turn, act, &reply),
            (Some(Act::Await { label, request, until }), None) => {
                let next = request.clone();
                self.current = Some(Act::Await { label, request, until });
                Step::Fetch(next)
            }
            _ => self.begin(turn),
        }
    }
}

impl Shared {
    /// Returns what an execution of a test does; nothing if what it needs is not there yet.
    fn plan(&self, test: &Test) -> Option<VecDeque<Act>> {
        let mut acts = VecDeque::new();
        self.add(test, test.kind, &test.name, &mut acts)?;
        Some(acts)
    }

    #[expect(clippy::too_many_lines, reason = "a flat list of what each test does")]
    fn add(&self, test: &Test, kind: Kind, label: &str, acts: &mut VecDeque<Act>) -> Option<()> {
        let run = &self.run;
        let silence = test.timeout;
        match kind {
            Kind::CreatePage => {
                let path = format!("/content/{run}/flat/p{}", self.number());
                acts.push_back(self.page(test, label, &path, None));
                acts.push_back(Act::HandOn(Made::Page, path));
            }
            Kind::CreatePageTree | Kind::CreateTaggedPagesTree | Kind::ActivatePagesTree => {
                let tag = if kind == Kind::CreateTaggedPagesTree {
                    Some(self.take(Made::Tag)?)
                } else {
                    None
                };
                if let Some(tag) = &tag {
                    self.hand_on(Made::Tag, tag.clone());
                }
                let number = self.grow("pages", test.base)?;
                let path = tree_path(&format!("/content/{run}/tree"), 'p', test.base, number);
                let is_activated = kind == Kind::ActivatePagesTree;
                acts.push_back(self.page(test, label, &path, tag.as_deref()));
                acts.push_back(Act::Grown { tree: ("pages", test.base.max(1)), number });
                if is_activated {
                    self.activate(label, &path, silence, acts);
                } else {
                    acts.push_back(Act::HandOn(Made::TreePage, path));
                }
            }
            Kind::CreateFolderTree => {
                let number = self.grow("folders", test.base)?;
                let path = tree_path(&format!("/content/{run}/folders"), 'f', test.base, number);
                let fields = [("./jcr:primaryType", "sling:OrderedFolder")];
                acts.push_back(self.form(label, &path, &fields, silence));
                acts.push_back(Act::Grown { tree: ("folders", test.base.max(1)), number });
            }
            Kind::CreateTagTree => {
                let number = self.grow("tags", test.base)?;
                let path = tree_path(&format!("/content/cq:tags/{run}"), 't', test.base, number);
                let title = format!("Tag {number}");
                let fields = [("./jcr:primaryType", "cq:Tag"), ("./jcr:title", title.as_str())];
                acts.push_back(self.form(label, &path, &fields, silence));
                acts.push_back(Act::Grown { tree: ("tags", test.base.max(1)), number });
                acts.push_back(Act::HandOn(Made::Tag, path));
            }
            Kind::AddTagToResource => {
                let page = self.take(Made::TreePage)?;
                self.hand_on(Made::TreePage, page.clone());
                let tag = self.take(Made::Tag)?;
                self.hand_on(Made::Tag, tag.clone());
                let fields = [
                    ("./jcr:content/cq:tags@TypeHint", "String[]"),
                    ("./jcr:content/cq:tags", tag.as_str()),
                ];
                acts.push_back(self.form(label, &page, &fields, silence));
            }
            Kind::DeletePage => {
                acts.push_back(self.delete(label, &self.take(Made::Page)?, silence))
            }
            Kind::DeleteImage => {
                acts.push_back(self.delete(label, &self.take(Made::Asset)?, silence))
            }
            Kind::UploadImage | Kind::UploadPdf => {
                let folder = format!("/content/dam/{run}/flat");
                self.upload((label, &folder), (kind == Kind::UploadPdf, true), silence, acts);
            }
            Kind::CreateAssetTree | Kind::CreatePdfTree => {
                let number = self.grow("assets", test.base)?;
                let folder = tree_path(&format!("/content/dam/{run}/tree"), 'd', test.base, number);
                let fields = [("./jcr:primaryType", "sling:OrderedFolder")];
                let name = format!("{label}: folder");
                acts.push_back(self.form(&name, &folder, &fields, silence));
                acts.push_back(Act::Grown { tree: ("assets", test.base.max(1)), number });
                self.upload((label, &folder), (kind == Kind::CreatePdfTree, true), silence, acts);
            }
            Kind::CreateUser => {
                let name = format!("{run}-u{}", self.number());
                acts.push_back(self.account(label, "users", &name, silence));
            }
            Kind::CreateUserTree => {
                let part = |name: &str| format!("{label}: {name}");
                let number = self.grow("users", test.base)?;
                let folder = tree_path(run, 'f', test.base, number);
                let path = format!("{USERS_ROOT}/{folder}");
                let fields = [("./jcr:primaryType", "rep:AuthorizableFolder")];
                acts.push_back(self.form(&part("create folder"), &path, &fields, silence));
                acts.push_back(Act::Grown { tree: ("users", test.base.max(1)), number });
                let user = format!("{run}-u{}", self.number());
                let mut body = self.new_user(&user);
                if let Some(body) = body.as_object_mut() {
                    body.insert("folder".to_owned(), Value::from(folder));
                }
                let place = "/api/v1/users";
                acts.push_back(self.json(&part("create user"), place, &body, silence));
            }
            Kind::CreateUserGroup => {
                let name = format!("{run}-g{}", self.number());
                acts.push_back(self.account(label, "groups", &name, silence));
            }
            Kind::CreateGroupWithUsers => {
                let part = |name: &str| format!("{label}: {name}");
                let group = format!("{run}-g{}", self.number());
                acts.push_back(self.account(&part("create group"), "groups", &group, silence));
                for _ in 0..USERS {
                    let user = format!("{run}-u{}", self.number());
                    acts.push_back(self.account(&part("create user"), "users", &user, silence));
                    for group in [&group, &Self::everybody(run)] {
                        let member = json!({ "group": group, "member": user });
                        let place = "/api/v1/group/members";
                        acts.push_back(self.json(&part("add to group"), place, &member, silence));
                    }
                }
            }
            Kind::PublishPage => {
                let page = self.take(Made::Page).or_else(|| self.take(Made::TreePage))?;
                self.activate(label, &page, silence, acts);
            }
            Kind::QueryBuilder => {
                let query = self.in_turn(&test.queries).unwrap_or_else(|| QUERY.to_owned());
                let path = format!("/bin/querybuilder.json?{}", fit(&query));
                acts.push_back(self.get(label, &path, test.on_publish, silence)?);
            }
            Kind::GetHomepage => {
                let path = self.homepage.get(usize::from(test.on_publish))?;
                acts.push_back(self.get(label, path, test.on_publish, silence)?);
            }
            Kind::Get => {
                let path = self.in_turn(&test.queries).unwrap_or_else(|| "/".to_owned());
                acts.push_back(self.get(label, &fit(&path), test.on_publish, silence)?);
            }
            Kind::Authoring | Kind::AuthoringTree => {
                let is_tree = kind == Kind::AuthoringTree;
                let part = |name: &str| format!("{label}: {name}");
                if is_tree {
                    self.add(test, Kind::CreatePageTree, &part("create page"), acts)?;
                } else {
                    let page = format!("/content/{run}/flat/p{}", self.number());
                    acts.push_back(self.page(test, &part("create page"), &page, None));
                    let folder = format!("/content/dam/{run}/flat");
                    let asset = self.upload(
                        (&part("upload asset"), &folder),
                        (false, false),
                        silence,
                        acts,
                    );
                    acts.push_back(self.delete(&part("delete page"), &page, silence));
                    acts.push_back(self.delete(&part("delete asset"), &asset, silence));
                    return Some(());
                }
                let folder = format!("/content/dam/{run}/flat");
                self.upload((&part("upload asset"), &folder), (false, true), silence, acts);
            }
        }
        Some(())
    }

    /// Returns the group that all users of `CreateGroupWithUsers` are in.
    pub(super) fn everybody(run: &str) -> String {
        format!("{run}-everybody")
    }

    /// Makes a user or a group.
    fn account(&self, label: &str, kind: &str, name: &str, silence: Duration) -> Act {
        let body = match kind {
            "users" => self.new_user(name),
            _ => json!({ "name": name }),
        };
        self.json(label, &format!("/api/v1/{kind}"), &body, silence)
    }

    fn new_user(&self, name: &str) -> Value {
        json!({ "name": name, "password": format!("{}-{name}", self.password) })
    }

    fn json(&self, label: &str, path: &str, body: &Value, silence: Duration) -> Act {
        let body = body.to_string();
        let body = ("application/json", body.as_bytes());
        let request = self.author.request("POST", path, body, (silence, Keep::Head));
        Act::Send { label: label.to_owned(), request }
    }

    fn in_turn(&self, list: &[String]) -> Option<String> {
        let length = u64::try_from(list.len()).ok().filter(|length| *length > 0)?;
        let turn = usize::try_from(self.number() % length).unwrap_or(0);
        list.get(turn).cloned()
    }

    /// Makes a page that visitors get: without a component that draws it, publish would never show it.
    fn page(&self, test: &Test, label: &str, path: &str, tag: Option<&str>) -> Act {
        let title = path.rsplit('/').next().unwrap_or_default();
        let mut fields = vec![
            ("./jcr:primaryType", "cq:Page"),
            ("./jcr:content/jcr:primaryType", "cq:PageContent"),
            ("./jcr:content/jcr:title", title),
        ];
        let (own, usual) = (&test.look, &self.look);
        // A template belongs to its own component: those of the test are not mixed with those of the author's page.
        let look = if *own == Look::default() { usual } else { own };
        if let Some(resource_type) = &look.resource_type {
            fields.push(("./jcr:content/sling:resourceType", resource_type));
        }
        if let Some(template) = &look.template {
            fields.push(("./jcr:content/cq:template", template));
        }
        if let Some(tag) = tag {
            fields.push(("./jcr:content/cq:tags@TypeHint", "String[]"));
            fields.push(("./jcr:content/cq:tags", tag));
        }
        self.form(label, path, &fields, test.timeout)
    }

    fn delete(&self, label: &str, path: &str, silence: Duration) -> Act {
        self.form(label, path, &[(":operation", "delete")], silence)
    }

    /// Publishes a page and waits until visitors get it, where publish is known.
    fn activate(&self, label: &str, page: &str, silence: Duration, acts: &mut VecDeque<Act>) {
        acts.push_back(self.form(label, page, &[(":operation", "activate")], silence));
        if let Some(place) = &self.publish {
            let request =
                place.request("GET", &format!("{page}.html"), ("", &[]), (silence, Keep::Head));
            acts.push_back(Act::Await {
                label: format!("{label}: visible"),
                request,
                until: Until::There,
            });
        }
    }

    /// Uploads a file of its own and waits for its renditions; returns the asset's path.
    fn upload(
        &self,
        (label, folder): (&str, &str),
        (is_pdf, is_kept): (bool, bool),
        silence: Duration,
        acts: &mut VecDeque<Act>,
    ) -> String {
        let number = self.number();
        let name = if is_pdf { format!("d{number}.pdf") } else { format!("i{number}.png") };
        let path = format!("{folder}/{name}");
        let file =
            if is_pdf { pdf(&format!("{} {number}", self.run)) } else { self.picture_of(number) };
        let boundary = format!("tympan-lab-{number:016x}");
        let kind = if is_pdf { "application/pdf" } else { "image/png" };
        let (media_type, body) = asset::upload((&name, kind), &boundary, &[&file]);
        let request =
            self.author.request("POST", folder, (&media_type, &body), (silence, Keep::Head));
        acts.push_back(Act::Send { label: label.to_owned(), request });
        let look = format!("{path}/jcr:content.json");
        let request =
            self.author.request("GET", &look, ("", &[]), (silence, Keep::Body(MOST_ANSWER)));
        acts.push_back(Act::Await {
            label: format!("{label}: renditions"),
            request,
            until: Until::Processed,
        });
        if is_kept {
            // Handed on when its renditions are there: what is deleted while they are made fails for a reason of its own.
            acts.push_back(Act::HandOn(Made::Asset, path.clone()));
        }
        path
    }

    /// Returns a picture whose bytes no other upload has.
    fn picture_of(&self, number: u64) -> Vec<u8> {
        let mut file = self.picture.clone();
        // Bytes behind a picture's end change nothing that is seen.
        file.extend_from_slice(self.run.as_bytes());
        file.extend_from_slice(&number.to_le_bytes());
        file
    }

    fn get(&self, label: &str, path: &str, on_publish: bool, silence: Duration) -> Option<Act> {
        let place = if on_publish { self.publish.as_ref()? } else { &self.author };
        let request = place.request("GET", path, ("", &[]), (silence, Keep::Head));
        Some(Act::Send { label: label.to_owned(), request })
    }

    fn form(&self, label: &str, path: &str, fields: &[(&str, &str)], silence: Duration) -> Act {
        let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        let pairs: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        let body = pairs.join("&");
        let media_type = "application/x-www-form-urlencoded";
        let request =
            self.author.request("POST", path, (media_type, body.as_bytes()), (silence, Keep::Head));
        Act::Send { label: label.to_owned(), request }
    }
}

impl Place {
    fn request(
        &self,
        method: &'static str,
        path: &str,
        body: (&str, &[u8]),
        (silence, keep): (Duration, Keep),
    ) -> Request {
        let prefix = self.url.target.trim_end_matches('/');
        let path = format!("{prefix}{}", path.replace(':', "%3A"));
        asset::request(
            &self.target,
            &self.headers,
            Ask { method, path: &path, body, keep, silence },
        )
    }
}

/// Writes what no request line may hold with `%`.
fn fit(path: &str) -> String {
    path.chars()
        .map(|letter| match letter.is_ascii_graphic() && !"\"<>\\^`{|}#".contains(letter) {
            true => letter.to_string(),
            false => utf8_percent_encode(&letter.to_string(), NON_ALPHANUMERIC).to_string(),
        })
        .collect()
}

/// Returns a document of one page that shows a text.
pub(super) fn pdf(text: &str) -> Vec<u8> {
    let stream = format!("BT /F1 24 Tf 72 700 Td ({}) Tj ET", text.replace(['(', ')', '\\'], " "));
    let objects = [
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>".to_owned(),
    ];
    let mut file = "%PDF-1.4\n".to_owned();
    let mut places = Vec::new();
    for (number, object) in objects.iter().enumerate() {
        places.push(file.len());
        file.push_str(&format!("{} 0 obj\n{object}\nendobj\n", number + 1));
    }
    let table = file.len();
    file.push_str(&format!("xref\n0 {}\n0000000000 65535 f \n", places.len() + 1));
    for place in &places {
        file.push_str(&format!("{place:010} 00000 n \n"));
    }
    file.push_str(&format!(
        "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n",
        places.len() + 1
    ));
    file.into_bytes()
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

    #[test]
    fn a_document_s_table_leads_to_its_objects() {
        let file = String::from_utf8(pdf("a (b)")).unwrap();
        let table: usize =
            file.split("startxref\n").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        assert!(file[table..].starts_with("xref"));
        for (number, line) in file[table..].lines().skip(3).take(5).enumerate() {
            let at: usize = line[..10].parse().unwrap();
            assert!(file[at..].starts_with(&format!("{} 0 obj", number + 1)));
        }
    }
}
