//! The work of one run: threads draw what is due, and one after another places the files.
//!
//! Invariant: a file's record goes to the disk before its name.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

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
