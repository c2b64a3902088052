//! The work of one run: threads draw what is due, and one after another places the files.
//!
//! Invariant: a file's record and its bytes go to the disk before its name.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};

use super::draw::{Desk, Drawn, Fate};
use super::folder::Waiting;
use super::manifest::Entry;
use super::place::{Address, Place, Unexported};
use super::report::{Finding, Report};
use super::run::{Effect, Progress};
use super::{Error, Exporter, Result, Tree, is_full};

/// Threads that draw at most.
const MOST_THREADS: usize = 8;
/// The stack of each: what templates may take, and more than the rest needs.
const STACK_BYTES: usize = 4 << 20;
/// Files of the served tree whose records go to the disk together.
const TOGETHER: usize = 64;
/// Addresses of one resource that links name and that become files, with a query and in all. A calendar links to the next
/// month for ever.
const MOST_QUERIES: usize = 1000;
const MOST_ADDRESSES: usize = 100_000;

/// What a run has to do, and has done.
pub(super) struct Run<'a> {
    exporter: &'a Exporter,
    desk: &'a Desk<'a>,
    state: Mutex<State>,
    ready: Condvar,
    pub(super) effect: Effect,
    /// Whether visitors see the tree while it changes.
    pub(super) is_served: bool,
}

/// A drawing whose bytes have no name yet.
struct Drawing {
    address: Address,
    place: Place,
    entry: Entry,
    waiting: Waiting,
}

struct State {
    tree: Option<Tree>,
    queue: VecDeque<Address>,
    seen: BTreeSet<Address>,
    /// What an earlier run has done.
    done: BTreeSet<String>,
    /// Drawings that are not placed yet.
    waiting: Vec<Drawing>,
    /// Drawings whose names belong to addresses that this run draws, too, and may name otherwise.
    contested: Vec<Drawing>,
    /// How many addresses there are of each resource, once links name one that is not its own: with a query, and in all.
    addresses: Option<HashMap<String, (usize, usize)>>,
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
            contested: Vec::new(),
            addresses: None,
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

    /// Adds an address.
    pub(super) fn add(&mut self, address: Address) {
        self.state.get_mut().add(address);
    }

    /// Adds what an unfinished run has recorded and not drawn.
    pub(super) fn add_links_of_done(&mut self) {
        let state = self.state.get_mut();
        let all = state.tree.iter().flat_map(|tree| tree.manifest.all());
        let known: Vec<Address> = all.map(|(address, _)| Address::of(address)).collect();
        known.into_iter().for_each(|address| state.add(address));
    }

    /// Draws and places everything; gives the tree back, and what has to be drawn again.
    pub(super) fn work(
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
        if state.fault.is_none()
            && let Err(error) = state.place_contested(self.exporter, self.is_served)
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
        // Others would wait for ever for a thread that is gone.
        let drawn = catch_unwind(AssertUnwindSafe(|| self.desk.draw(address)));
        let Ok(fate) = drawn else {
            let reason = "it cannot be drawn: the program has a fault; the log says where";
            return Ok((Fate::Failed(reason.to_owned()), None));
        };
        let Fate::File(drawn) = &fate else { return Ok((fate, None)) };
        if self.effect == Effect::Nothing {
            return Ok((fate, None));
        }
        let opened = drawn.content.open(self.desk.press.repository);
        let staged = match opened {
            Ok(mut content) => self.exporter.folder.stage(&mut *content),
            Err(error) => return Ok((Fate::Failed(error.to_string()), None)),
        };
        let mut waiting = staged.map_err(|error| self.exporter.failed(error))?;
        // Here, as others need not wait for it. What is there already is not written again.
        if self.is_served && !self.state.lock().knows(address, &waiting.hash) {
            waiting.sync().map_err(|error| self.exporter.failed(error))?;
        }
        Ok((fate, Some(waiting)))
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
            Fate::Personal(entry) => {
                state.report.left_out += 1;
                state.leave_out(self.exporter, (address, *entry), self.effect)
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
                    if !state.may_add(&link) {
                        continue;
                    }
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
                state.waiting.push(Drawing { address: address.clone(), place, entry, waiting });
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

    /// Takes the file of an address away that shows who asks, and records what decides about that.
    fn leave_out(
        &mut self,
        exporter: &Exporter,
        (address, entry): (&Address, Entry),
        effect: Effect,
    ) -> Result<()> {
        let text = address.to_string();
        self.report.find(Finding::Personal { address: text.clone() });
        let tree = self.tree.as_ref();
        let owner = tree.and_then(|tree| tree.manifest.address_of(&entry.file));
        let is_others = owner.is_some_and(|owner| *owner != text);
        self.remove(exporter, address, effect)?;
        match &mut self.tree {
            Some(tree) if effect == Effect::Write && !is_others => {
                tree.manifest.record(&text, entry).map_err(|error| exporter.failed(error))
            }
            _ => Ok(()),
        }
    }

    /// Tells whether a file holds these bytes, as far as is known.
    fn knows(&self, address: &Address, hash: &str) -> bool {
        let entry = self.tree.as_ref().and_then(|tree| tree.manifest.get(&address.to_string()));
        entry.is_some_and(|entry| entry.hash.as_deref() == Some(hash))
    }

    /// Tells whether what a link leads to is drawn: unless there are too many addresses of its resource.
    fn may_add(&mut self, link: &Place) -> bool {
        let text = link.address.to_string();
        let tree = self.tree.as_ref();
        if link.is_plain
            || self.seen.contains(&link.address)
            || tree.is_some_and(|tree| tree.manifest.get(&text).is_some())
        {
            return true;
        }
        let known = self.addresses.get_or_insert_with(|| {
            let mut known: HashMap<String, (usize, usize)> = HashMap::new();
            for (address, entry) in tree.iter().flat_map(|tree| tree.manifest.all()) {
                let (queries, all) = known.entry(entry.source.clone()).or_default();
                *queries += usize::from(address.contains('?'));
                *all += 1;
            }
            known
        });
        let (queries, all) = known.entry(link.source.clone()).or_default();
        let has_query = !link.address.query.is_empty();
        if *all >= MOST_ADDRESSES || (has_query && *queries >= MOST_QUERIES) {
            let most = if has_query { MOST_QUERIES } else { MOST_ADDRESSES };
            self.report.find_once(Finding::Endless { source: link.source.clone(), most });
            return false;
        }
        *queries += usize::from(has_query);
        *all += 1;
        true
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
        let mut names = BTreeSet::new();
        for drawing in waiting {
            let Some(tree) = &mut self.tree else { return Ok(()) };
            let text = drawing.address.to_string();
            if names.contains(&drawing.entry.file) {
                self.contested.push(drawing);
                continue;
            }
            let other = tree.manifest.address_of(&drawing.entry.file);
            if let Some(other) = other.filter(|other| **other != text).map(str::to_owned) {
                // It may be given another name before this run ends.
                if self.seen.contains(&Address::of(&other)) {
                    self.contested.push(drawing);
                    continue;
                }
                // A resource's own address has a better claim to a name than others.
                if !drawing.place.is_plain {
                    self.refuse_name(&drawing, &other);
                    continue;
                }
                tree.manifest.forget(&other).map_err(failed)?;
            }
            names.insert(drawing.entry.file.clone());
            named.push(drawing);
        }
        self.record_and_place(exporter, named, is_served)
    }

    /// Does the same for drawings whose names belonged to others while these were drawn: where these have other names now,
    /// or are about to exchange them, the names are free.
    fn place_contested(&mut self, exporter: &Exporter, is_served: bool) -> Result<()> {
        let mut contested = std::mem::take(&mut self.contested);
        loop {
            let moving: BTreeSet<String> =
                contested.iter().map(|drawing| drawing.address.to_string()).collect();
            let mut names = BTreeSet::new();
            let mut refused = Vec::new();
            contested = contested
                .into_iter()
                .filter_map(|drawing| {
                    let owner = self.tree.as_ref().and_then(|tree| {
                        tree.manifest.address_of(&drawing.entry.file).map(str::to_owned)
                    });
                    let other = owner.filter(|other| !moving.contains(other));
                    let is_first = other.is_none() && names.insert(drawing.entry.file.clone());
                    match (is_first, other) {
                        (true, _) => Some(drawing),
                        (false, other) => {
                            refused.push((drawing, other.unwrap_or_default()));
                            None
                        }
                    }
                })
                .collect();
            if refused.is_empty() {
                return self.record_and_place(exporter, contested, is_served);
            }
            // Who keeps its name may be in the way of another one.
            for (drawing, other) in refused {
                self.refuse_name(&drawing, &other);
            }
        }
    }

    fn refuse_name(&mut self, drawing: &Drawing, other: &str) {
        let file = &drawing.entry.file;
        let reason = match other {
            "" => format!("another address has the same file `{file}`"),
            other => format!("`{other}` has the same file `{file}`"),
        };
        self.fail(&drawing.address, reason);
    }

    /// Records drawings whose names are free, then gives the files these names.
    fn record_and_place(
        &mut self,
        exporter: &Exporter,
        drawings: Vec<Drawing>,
        is_served: bool,
    ) -> Result<()> {
        let failed = |error| exporter.failed(error);
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let mut old = BTreeMap::new();
        for Drawing { address, .. } in &drawings {
            let text = address.to_string();
            let known = tree.manifest.get(&text);
            if let Some(known) = known.filter(|known| known.hash.is_some()) {
                old.insert(text, known.clone());
            }
        }
        for Drawing { address, entry, .. } in &drawings {
            tree.manifest.record(&address.to_string(), entry.clone()).map_err(failed)?;
        }
        if is_served {
            tree.manifest.sync().map_err(failed)?;
        }
        let number = tree.number;
        // What a run that was broken off left may be half of a file, and so may what an earlier version of this program did
        // before a power failure.
        let is_suspect = !is_served || exporter.followed.load(Ordering::Relaxed) == 0;
        for Drawing { address, entry, mut waiting, .. } in drawings {
            let text = address.to_string();
            let known = old.get(&text);
            let is_there = || match entry.hash.as_deref() {
                Some(hash) if is_suspect => exporter.folder.holds(number, &entry.file, hash),
                _ => exporter.folder.has(number, &entry.file),
            };
            let is_same = known
                .is_some_and(|known| known.hash == entry.hash && known.file == entry.file)
                && is_there();
            if is_same {
                self.report.unchanged += 1;
                continue;
            }
            if is_served {
                waiting.sync().map_err(failed)?;
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
