//! Runs: everything anew, what a change concerns, or only a list.
//!
//! Threads draw, one after another places files: a file's record goes to the disk before its name.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};
use tympan_content::{Node, NodePath, Repository, Snapshot, Viewer};

use super::draw::{Desk, Drawn, Fate};
use super::folder::Waiting;
use super::manifest::{Entry, Manifest};
use super::place::{Address, DECIDING, Place, Unexported};
use super::report::{Finding, Listed, Report};
use super::{Error, Exporter, Handler, Press, Result, Tree, USER, folder_of, is_below, is_full};
use crate::link::encode_path;
use crate::touched::Touched;

/// Threads that draw at most.
const MOST_THREADS: usize = 8;
/// The stack of each: what templates may take, and more than the rest needs.
const STACK_BYTES: usize = 4 << 20;
/// Files of the served tree whose records go to the disk together.
const TOGETHER: usize = 64;

/// How a full run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Begin {
    /// From nothing.
    #[default]
    Anew,
    /// With what an unfinished run left, where there is one.
    Resume,
}

/// Whether a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effect {
    /// It writes files.
    #[default]
    Write,
    /// It draws everything and writes nothing.
    Nothing,
}

/// Hears how far a run is: addresses done, and known so far.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

impl Exporter {
    /// Returns a state as the export's user sees it.
    pub(super) fn view(&self, repository: &Repository, snapshot: &Snapshot) -> Result<Snapshot> {
        let user = repository.account_identifier(USER)?.map(|_| USER);
        Ok(snapshot.seen_by(&repository.viewer(user)?))
    }

    pub(super) fn desk<'a>(&'a self, press: Press<'a>, snapshot: &Snapshot) -> Result<Desk<'a>> {
        Desk::new(press, &self.options, self.view(press.repository, snapshot)?)
    }

    /// Lists what would be exported, and why the rest would not. What only links lead to is not in the list.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn list(&self, press: Press<'_>, hear: &mut dyn FnMut(Listed)) -> Result<()> {
        let desk = self.desk(press, &press.repository.snapshot()?)?;
        self.seeds(&desk.snapshot, |address| {
            let Place { address, file, .. } = desk.find(&address);
            hear(Listed { address, file });
        })
    }

    /// Exports everything into a new tree and makes it the served one.
    ///
    /// # Errors
    /// If content cannot be read or the disk refuses; what is served stays, and the run can be gone on with.
    pub fn full(
        &self,
        press: Press<'_>,
        (begin, effect): (Begin, Effect),
        progress: Progress<'_>,
    ) -> Result<Report> {
        let _turn = self.running.lock();
        let snapshot = press.repository.snapshot()?;
        let desk = self.desk(press, &snapshot)?;
        let mut report = Report::default();
        let (tree, done) = match effect {
            Effect::Nothing => (None, BTreeSet::new()),
            Effect::Write => {
                let (tree, done) = self.begin(press.repository, &snapshot, begin)?;
                (Some(tree), done)
            }
        };
        report.resumed = done.len();
        let number = tree.as_ref().map(|tree| tree.number);
        let mut run = Run::new(self, &desk, tree, done);
        self.seeds(&desk.snapshot, |address| run.add(address))?;
        run.add_links_of_done();
        let (tree, due) = run.work(&mut report, progress)?;
        let (Some(mut tree), Some(number)) = (tree, number) else { return Ok(report) };
        self.remove_unlisted(&mut tree, &mut report)?;
        self.folder.sync().map_err(|error| self.failed(error))?;
        let settled = tree.manifest.settle(&snapshot.root_id().to_string(), &due);
        settled.map_err(|error| self.failed(error))?;
        {
            // Requests must not place files in the old tree while this becomes the served one.
            let mut served = self.tree.lock();
            self.folder.switch(number).map_err(|error| self.failed(error))?;
            *served = Some(tree);
            self.followed.fetch_add(1, Ordering::Relaxed);
        }
        self.folder.prune(self.options.backups).map_err(|error| self.failed(error))?;
        Ok(report)
    }

    /// Begins a tree, or finds the unfinished one and what of it can be kept.
    fn begin(
        &self,
        repository: &Repository,
        snapshot: &Snapshot,
        begin: Begin,
    ) -> Result<(Tree, BTreeSet<String>)> {
        let failed = |error| self.failed(error);
        let trees = self.folder.trees().map_err(failed)?;
        let served = self.folder.current().unwrap_or(0);
        let unfinished: Vec<u64> = trees.iter().copied().filter(|tree| *tree > served).collect();
        if begin == Begin::Resume
            && let Some(newest) = unfinished.last()
            && let Some(tree) = self.open_tree(*newest)?
            && let Some(done) = self.usable(&tree, repository, snapshot)?
        {
            return Ok((tree, done));
        }
        unfinished.iter().try_for_each(|tree| self.folder.discard(*tree)).map_err(failed)?;
        let number = served.max(trees.last().copied().unwrap_or(0)) + 1;
        // A crash may have left a tree that has no manifest any more.
        self.folder.discard(number).map_err(failed)?;
        std::fs::create_dir_all(self.folder.tree(number)).map_err(failed)?;
        let path = self.folder.manifest(number);
        let mut manifest = Manifest::create(&path, &self.options.fingerprint()).map_err(failed)?;
        manifest.settle(&snapshot.root_id().to_string(), &BTreeSet::new()).map_err(failed)?;
        Ok((Tree { number, manifest }, BTreeSet::new()))
    }

    /// Returns the addresses of an unfinished tree whose files are whole and show the present state.
    fn usable(
        &self,
        tree: &Tree,
        repository: &Repository,
        snapshot: &Snapshot,
    ) -> Result<Option<BTreeSet<String>>> {
        let Some(before) = self.settled(tree, repository) else { return Ok(None) };
        let touched = between(&before, snapshot)?;
        let concerned = tree.manifest.concerned(&touched);
        let whole = tree.manifest.all().filter(|(address, entry)| {
            let hash = entry.hash.as_deref();
            !concerned.contains(*address)
                && hash.is_some_and(|hash| self.folder.holds(tree.number, &entry.file, hash))
        });
        Ok(Some(whole.map(|(address, _)| address.to_owned()).collect()))
    }

    /// Returns the state that a tree shows, if it still exists.
    pub(super) fn settled(&self, tree: &Tree, repository: &Repository) -> Option<Snapshot> {
        repository.snapshot_at(tree.manifest.settled()?.parse().ok()?).ok()
    }

    /// Forgets names without files, which earlier pages of an unfinished run asked for.
    fn remove_unlisted(&self, tree: &mut Tree, report: &mut Report) -> Result<()> {
        let stale: Vec<String> = tree
            .manifest
            .all()
            .filter(|(_, entry)| entry.hash.is_none())
            .map(|(address, _)| address.to_owned())
            .collect();
        report.removed += stale.len();
        stale
            .iter()
            .try_for_each(|address| tree.manifest.forget(address))
            .map_err(|error| self.failed(error))
    }

    /// Exports what changed since the last run, as the handler of the options says. Without a change it does nothing.
    ///
    /// # Errors
    /// [`Error::NotBegun`] if nothing is exported yet; others as [`Exporter::full`]. The next run tries again.
    pub fn catch_up(&self, press: Press<'_>, progress: Progress<'_>) -> Result<Report> {
        let _turn = self.running.lock();
        let snapshot = press.repository.snapshot()?;
        match self.options.handler {
            Handler::AfterPublish => self.export_changed(press, &snapshot, Effect::Write, progress),
            Handler::OnDemand | Handler::OnDemandSubtree => self.drop_changed(press, &snapshot),
        }
    }

    /// Exports what changed since the last run, whatever the handler.
    ///
    /// # Errors
    /// As [`Exporter::catch_up`].
    pub fn changed(
        &self,
        press: Press<'_>,
        effect: Effect,
        progress: Progress<'_>,
    ) -> Result<Report> {
        let _turn = self.running.lock();
        let snapshot = press.repository.snapshot()?;
        self.export_changed(press, &snapshot, effect, progress)
    }

    fn export_changed(
        &self,
        press: Press<'_>,
        snapshot: &Snapshot,
        effect: Effect,
        progress: Progress<'_>,
    ) -> Result<Report> {
        let not_begun = || Error::NotBegun { dir: self.options.dir.clone() };
        let root = snapshot.root_id().to_string();
        // The tree is taken out for the run, so that its manifest has one writer.
        let tree = self.tree.lock().take().ok_or_else(not_begun)?;
        if tree.manifest.settled() == Some(&*root) && tree.manifest.due().next().is_none() {
            *self.tree.lock() = Some(tree);
            return Ok(Report::default());
        }
        let number = tree.number;
        let done = self.export_changed_of(press, snapshot, (tree, effect), progress);
        let mut place = self.tree.lock();
        self.followed.fetch_add(1, Ordering::Relaxed);
        match done {
            Ok((tree, report)) => {
                *place = Some(tree);
                Ok(report)
            }
            Err(error) => {
                // What was recorded stands in the file.
                *place = self.open_tree(number)?;
                Err(error)
            }
        }
    }

    fn export_changed_of(
        &self,
        press: Press<'_>,
        snapshot: &Snapshot,
        (tree, effect): (Tree, Effect),
        progress: Progress<'_>,
    ) -> Result<(Tree, Report)> {
        let desk = self.desk(press, snapshot)?;
        let mut report = Report::default();
        let mut addresses: BTreeSet<Address> = tree.manifest.due().map(Address::of).collect();
        match self.settled(&tree, press.repository) {
            Some(before) => {
                let touched = between(&before, snapshot)?;
                let concerned = tree.manifest.concerned(&touched);
                addresses.extend(concerned.iter().map(|address| Address::of(address)));
                let before = self.view(press.repository, &before)?;
                addresses.extend(self.new_seeds(&before, &desk.snapshot, &touched)?);
            }
            // Nobody knows what changed.
            None => {
                addresses.extend(tree.manifest.all().map(|(address, _)| Address::of(address)));
                self.seeds(&desk.snapshot, |address| {
                    addresses.insert(address);
                })?;
            }
        }
        let mut run = Run::new(self, &desk, Some(tree), BTreeSet::new());
        run.effect = effect;
        run.is_served = true;
        addresses.into_iter().for_each(|address| run.add(address));
        let (tree, due) = run.work(&mut report, progress)?;
        let Some(mut tree) = tree else {
            return Err(Error::NotBegun { dir: self.options.dir.clone() });
        };
        if effect == Effect::Write {
            self.folder.sync().map_err(|error| self.failed(error))?;
            let settled = tree.manifest.settle(&snapshot.root_id().to_string(), &due);
            settled.map_err(|error| self.failed(error))?;
        }
        Ok((tree, report))
    }

    /// Takes the files away that a change concerns; visitors who ask for them have them made.
    fn drop_changed(&self, press: Press<'_>, snapshot: &Snapshot) -> Result<Report> {
        let mut place = self.tree.lock();
        let root = snapshot.root_id().to_string();
        let failed = |error| self.failed(error);
        if place.is_none() {
            let (tree, _) = self.begin(press.repository, snapshot, Begin::Anew)?;
            self.folder.switch(tree.number).map_err(failed)?;
            *place = Some(tree);
        }
        let Some(tree) = place.as_mut() else { return Ok(Report::default()) };
        if tree.manifest.settled() == Some(&*root) && self.followed.load(Ordering::Relaxed) > 0 {
            return Ok(Report::default());
        }
        let due = || tree.manifest.due().map(Arc::<str>::from).collect::<BTreeSet<_>>();
        let mut gone = due();
        match self.settled(tree, press.repository) {
            Some(before) => {
                let touched = between(&before, snapshot)?;
                gone.extend(tree.manifest.concerned(&touched));
                if self.are_named_otherwise(&before, snapshot, &touched)? {
                    self.names.lock().forget();
                }
                if self.options.handler == Handler::OnDemandSubtree {
                    gone.extend(neighbors(&tree.manifest, &touched));
                }
            }
            None => {
                gone.extend(tree.manifest.all().map(|(address, _)| Arc::from(address)));
                self.names.lock().forget();
            }
        }
        let mut report = Report::default();
        for address in &gone {
            let Some(entry) = tree.manifest.get(address).cloned() else { continue };
            if entry.hash.is_some() {
                self.folder.remove(tree.number, &entry.file).map_err(failed)?;
                report.removed += 1;
            }
            // A name of a variant is kept, as pages that link to it stay.
            let kept = Entry { hash: None, ..entry };
            tree.manifest.record(address, kept).map_err(failed)?;
        }
        self.folder.sync().map_err(failed)?;
        tree.manifest.settle(&root, &BTreeSet::new()).map_err(failed)?;
        self.followed.fetch_add(1, Ordering::Relaxed);
        Ok(report)
    }

    /// Tells whether a change may give files other names.
    fn are_named_otherwise(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        touched: &Touched,
    ) -> Result<bool> {
        let (before, after) = (before.seen_by(&Viewer::system()), after.seen_by(&Viewer::system()));
        for path in touched.changed() {
            if said(&before, path)? != said(&after, path)? {
                return Ok(true);
            }
        }
        Ok(touched.is_everything())
    }

    /// Walks the addresses of all pages, files and assets.
    fn seeds(&self, snapshot: &Snapshot, mut hear: impl FnMut(Address)) -> Result<()> {
        let root = snapshot.node(&NodePath::root())?;
        if root.is_some_and(|root| root.resource_type().is_some()) {
            hear(Address::of("/"));
        }
        for path in &self.options.roots {
            self.seeds_below(snapshot, path, &mut hear)?;
        }
        Ok(())
    }

    fn seeds_below(
        &self,
        snapshot: &Snapshot,
        path: &str,
        hear: &mut dyn FnMut(Address),
    ) -> Result<()> {
        let Ok(path) = NodePath::new(path) else { return Ok(()) };
        let mut pending: Vec<Node> = snapshot.node(&path)?.into_iter().collect();
        while let Some(node) = pending.pop() {
            if let Some(address) = seed_of(&node) {
                hear(address);
            }
            pending.extend(node.listed_children()?.into_iter().rev());
        }
        match snapshot.failure() {
            Some(error) => Err(Error::Compare(Box::new(crate::Error::Blob {
                path: path.to_string(),
                source: std::io::Error::other(error.to_string()),
            }))),
            None => Ok(()),
        }
    }

    /// Returns the addresses that a change may have made new.
    fn new_seeds(
        &self,
        before: &Snapshot,
        after: &Snapshot,
        touched: &Touched,
    ) -> Result<BTreeSet<Address>> {
        let mut found = BTreeSet::new();
        if touched.is_everything() {
            self.seeds(after, |address| {
                found.insert(address);
            })?;
            return Ok(found);
        }
        for path in touched.changed() {
            let is_root = path.depth() == 0;
            let is_within =
                self.options.roots.iter().any(|root| is_below(path.as_str(), root)) || is_root;
            let decides_below = said(before, path)? != said(after, path)?;
            if decides_below {
                // What is below is decided anew, up to the roots.
                for root in &self.options.roots {
                    let begin = if is_below(root, path.as_str()) { root } else { path.as_str() };
                    if is_below(begin, root) {
                        self.seeds_below(after, begin, &mut |address| {
                            found.insert(address);
                        })?;
                    }
                }
            }
            if let Some(node) = after.node(path)?.filter(|_| is_within) {
                found.extend(seed_of(&node));
            }
            if is_root {
                found.insert(Address::of("/"));
            }
        }
        Ok(found)
    }
}

/// Returns the address of a page, file or asset.
fn seed_of(node: &Node) -> Option<Address> {
    let path = encode_path(node.path().as_str());
    let path = match node.primary_type() {
        "nt:file" | "dam:Asset" => path,
        _ if node.is_page() => format!("{path}.html"),
        _ => return None,
    };
    Some(Address { path, query: String::new() })
}

/// Returns what a node says about everything below it.
fn said(snapshot: &Snapshot, path: &NodePath) -> Result<Vec<Option<String>>> {
    let Some(node) = snapshot.node(path)? else { return Ok(Vec::new()) };
    let content = node.content()?;
    let both = [Some(&node), content.as_ref()];
    let texts = both
        .into_iter()
        .flat_map(|node| DECIDING.iter().map(move |name| node.and_then(|node| node.text(name))));
    Ok(texts.collect())
}

pub(super) fn between(before: &Snapshot, after: &Snapshot) -> Result<Touched> {
    Touched::between(before, after).map_err(|error| Error::Compare(Box::new(error)))
}

/// Returns the pages in the folders of what changed.
fn neighbors(manifest: &Manifest, touched: &Touched) -> BTreeSet<Arc<str>> {
    let changed: BTreeSet<&str> = touched.changed().map(NodePath::as_str).collect();
    let files = manifest.all().filter(|(_, entry)| {
        changed.iter().any(|path| {
            *path == entry.source || path.strip_suffix("/jcr:content") == Some(&*entry.source)
        })
    });
    let folders: BTreeSet<_> = files.map(|(_, entry)| folder_of(&entry.file)).collect();
    let pages = manifest.all().filter(|(_, entry)| {
        entry.file.ends_with(".html")
            && folders.iter().any(|folder| folder_of(&entry.file).starts_with(folder))
    });
    pages.map(|(address, _)| Arc::from(address)).collect()
}

/// What a run has to do, and has done.
pub(super) struct Run<'a> {
    exporter: &'a Exporter,
    desk: &'a Desk<'a>,
    state: Mutex<State>,
    ready: Condvar,
    effect: Effect,
    /// Whether visitors see the tree while it changes.
    is_served: bool,
}

struct State {
    tree: Option<Tree>,
    queue: VecDeque<Address>,
    seen: BTreeSet<Address>,
    /// What an earlier run has done.
    done: BTreeSet<String>,
    /// Drawings that are not placed yet.
    waiting: Vec<(Address, Place, Entry, Waiting)>,
    /// Names of files, where the case of letters does not count.
    folded: HashMap<String, String>,
    /// What has to be drawn again with the next run.
    due: BTreeSet<String>,
    active: usize,
    finished: usize,
    report: Report,
    fault: Option<Error>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        exporter: &'a Exporter,
        desk: &'a Desk<'a>,
        tree: Option<Tree>,
        done: BTreeSet<String>,
    ) -> Self {
        let effect = if tree.is_some() { Effect::Write } else { Effect::Nothing };
        let state = State {
            tree,
            queue: VecDeque::new(),
            seen: BTreeSet::new(),
            done,
            waiting: Vec::new(),
            folded: HashMap::new(),
            due: BTreeSet::new(),
            active: 0,
            finished: 0,
            report: Report::default(),
            fault: None,
        };
        let state = Mutex::new(state);
        Self { exporter, desk, state, ready: Condvar::new(), effect, is_served: false }
    }

    fn add(&mut self, address: Address) {
        self.state.get_mut().add(address);
    }

    /// Adds what an unfinished run has recorded and not drawn.
    fn add_links_of_done(&mut self) {
        let state = self.state.get_mut();
        let all = state.tree.iter().flat_map(|tree| tree.manifest.all());
        let known: Vec<Address> = all.map(|(address, _)| Address::of(address)).collect();
        known.into_iter().for_each(|address| state.add(address));
    }

    /// Draws and places everything; gives the tree back, and what has to be drawn again.
    fn work(
        self,
        report: &mut Report,
        progress: Progress<'_>,
    ) -> Result<(Option<Tree>, BTreeSet<String>)> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores.min(MOST_THREADS) {
                let worker = std::thread::Builder::new().stack_size(STACK_BYTES);
                let spawned = worker.spawn_scoped(scope, || self.draw_until_done(progress));
                if let Err(error) = spawned {
                    self.state.lock().fault = Some(self.exporter.failed(error));
                }
            }
        });
        let mut state = self.state.into_inner();
        if state.fault.is_none()
            && let Err(error) = state.place_waiting(self.exporter, self.is_served)
        {
            state.fault = Some(error);
        }
        if let Some(fault) = state.fault {
            return Err(fault);
        }
        let resumed = report.resumed;
        *report = state.report;
        report.resumed = resumed;
        report.sort();
        Ok((state.tree, state.due))
    }

    fn draw_until_done(&self, progress: Progress<'_>) {
        loop {
            let mut state = self.state.lock();
            let address = loop {
                if state.fault.is_some() {
                    return;
                }
                if let Some(address) = state.queue.pop_front() {
                    break address;
                }
                if state.active == 0 {
                    self.ready.notify_all();
                    return;
                }
                self.ready.wait(&mut state);
            };
            state.active += 1;
            drop(state);
            let drawn = self.draw(&address);
            let mut state = self.state.lock();
            state.active -= 1;
            state.finished += 1;
            if let Err(error) = drawn.and_then(|drawn| self.keep(&mut state, &address, drawn)) {
                state.fault.get_or_insert(error);
            }
            let (done, known) = (state.finished, state.seen.len());
            drop(state);
            self.ready.notify_all();
            progress(done, known);
        }
    }

    /// Draws an address and writes its bytes under no name.
    fn draw(&self, address: &Address) -> Result<(Fate, Option<Waiting>)> {
        let fate = self.desk.draw(address);
        let Fate::File(drawn) = &fate else { return Ok((fate, None)) };
        if self.effect == Effect::Nothing {
            return Ok((fate, None));
        }
        let opened = drawn.content.open(self.desk.press.repository);
        let staged = match opened {
            Ok(mut content) => self.exporter.folder.stage(&mut *content),
            Err(error) => return Ok((Fate::Failed(error.to_string()), None)),
        };
        match staged {
            Ok(waiting) => Ok((fate, Some(waiting))),
            Err(error) => Err(self.exporter.failed(error)),
        }
    }

    /// Takes up what an address has become.
    fn keep(
        &self,
        state: &mut State,
        address: &Address,
        (fate, waiting): (Fate, Option<Waiting>),
    ) -> Result<()> {
        match fate {
            Fate::Unexported(reason) => {
                state.report.left_out += 1;
                state.note_name(address, &reason);
                state.remove(self.exporter, address, self.effect)
            }
            Fate::Failed(reason) => {
                state.fail(address, reason);
                Ok(())
            }
            Fate::File(drawn) => {
                state.report.drawn += 1;
                let Drawn { place, reads, links, findings, .. } = *drawn;
                findings.into_iter().for_each(|finding| state.report.find(finding));
                for link in links {
                    // A page that an unfinished run has drawn is not looked at again for what it links to.
                    if !self.is_served
                        && let Some(tree) = &mut state.tree
                    {
                        let noted = tree.note_name(&link);
                        noted.map_err(|error| self.exporter.failed(error))?;
                    }
                    state.add(link.address);
                }
                let Ok(file) = place.file.clone() else { return Ok(()) };
                state.note_case(&file);
                let Some(waiting) = waiting else { return Ok(()) };
                let hash = Some(waiting.hash.clone());
                let entry = Entry { file, source: place.source.clone(), hash, reads };
                state.waiting.push((address.clone(), place, entry, waiting));
                // What visitors do not see yet need not be on the disk at once.
                match !self.is_served || state.waiting.len() >= TOGETHER {
                    true => state.place_waiting(self.exporter, self.is_served),
                    false => Ok(()),
                }
            }
        }
    }
}

impl State {
    fn add(&mut self, address: Address) {
        if self.seen.insert(address.clone()) && !self.done.contains(&address.to_string()) {
            self.queue.push_back(address);
        }
    }

    fn fail(&mut self, address: &Address, reason: String) {
        self.due.insert(address.to_string());
        self.report.find(Finding::Failed { address: address.to_string(), reason });
    }

    /// Tells of an exported resource whose name cannot be a file's.
    fn note_name(&mut self, address: &Address, reason: &Unexported) {
        if let Unexported::Name(reason) = reason {
            let (address, reason) = (address.to_string(), reason.clone());
            self.report.find(Finding::Failed { address, reason });
        }
    }

    fn note_case(&mut self, file: &str) {
        let known = self.folded.entry(file.to_lowercase()).or_insert_with(|| file.to_owned());
        if *known != file {
            let (file, other) = (file.to_owned(), known.clone());
            self.report.find(Finding::SameButForCase { file, other });
        }
    }

    /// Takes the file of an address away.
    fn remove(&mut self, exporter: &Exporter, address: &Address, effect: Effect) -> Result<()> {
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let text = address.to_string();
        let Some(entry) = tree.manifest.get(&text) else { return Ok(()) };
        let has_file = entry.hash.is_some();
        self.report.removed += usize::from(has_file);
        if effect == Effect::Nothing {
            return Ok(());
        }
        let removed = match has_file {
            true => exporter.folder.remove(tree.number, &entry.file),
            false => Ok(()),
        };
        let forgotten = removed.and_then(|()| tree.manifest.forget(&text));
        forgotten.map_err(|error| exporter.failed(error))
    }

    /// Records what is drawn, then gives the files their names.
    fn place_waiting(&mut self, exporter: &Exporter, is_served: bool) -> Result<()> {
        let failed = |error| exporter.failed(error);
        let waiting = std::mem::take(&mut self.waiting);
        let mut named = Vec::with_capacity(waiting.len());
        let mut old = BTreeMap::new();
        for (address, place, entry, waiting) in waiting {
            let Some(tree) = &mut self.tree else { return Ok(()) };
            let text = address.to_string();
            let other = tree.manifest.address_of(&entry.file).filter(|other| **other != text);
            if let Some(other) = other.map(str::to_owned) {
                // A resource's own address has a better claim to a name than others.
                if !place.is_plain || self.seen.contains(&Address::of(&other)) {
                    let reason = format!("`{other}` has the same file `{}`", entry.file);
                    self.fail(&address, reason);
                    continue;
                }
                tree.manifest.forget(&other).map_err(failed)?;
            }
            let known = tree.manifest.get(&text);
            if let Some(known) = known.filter(|known| known.hash.is_some()) {
                old.insert(text.clone(), known.clone());
            }
            tree.manifest.record(&text, entry.clone()).map_err(failed)?;
            named.push((address, entry, waiting));
        }
        let Some(tree) = &mut self.tree else { return Ok(()) };
        if is_served {
            tree.manifest.sync().map_err(failed)?;
        }
        let number = tree.number;
        for (address, entry, waiting) in named {
            let text = address.to_string();
            let known = old.get(&text);
            // What a run that was broken off left may be half of a file.
            let is_there = || match entry.hash.as_deref() {
                Some(hash) if !is_served => exporter.folder.holds(number, &entry.file, hash),
                _ => exporter.folder.has(number, &entry.file),
            };
            let is_same = known
                .is_some_and(|known| known.hash == entry.hash && known.file == entry.file)
                && is_there();
            if is_same {
                self.report.unchanged += 1;
                continue;
            }
            let bytes = waiting.bytes;
            match exporter.folder.place(number, &waiting, &entry.file) {
                Ok(()) => {
                    self.report.written += 1;
                    self.report.bytes += bytes;
                }
                Err(error) if is_full(&error) => return Err(failed(error)),
                Err(error) => {
                    let reason = format!("the file `{}` cannot be made: {error}", entry.file);
                    self.fail(&address, reason);
                    let Some(tree) = &mut self.tree else { return Ok(()) };
                    tree.manifest.forget(&text).map_err(failed)?;
                    continue;
                }
            }
            // A resource that was given another name leaves its old one.
            let left = known.map(|known| &known.file).filter(|left| **left != entry.file);
            let is_free = |name: &str| {
                self.tree.as_ref().is_some_and(|tree| tree.manifest.address_of(name).is_none())
            };
            if let Some(left) = left.filter(|left| is_free(left)) {
                exporter.folder.remove(number, left).map_err(failed)?;
            }
        }
        Ok(())
    }
}
