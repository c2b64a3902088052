//! Runs: everything anew, what a change concerns, or only a list.
//!
//! Not here: which addresses there are ([`super::seed`]), drawing and placing ([`super::work`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tympan_content::{NodePath, Repository, Snapshot};

use super::draw::Desk;
use super::manifest::{Entry, Manifest};
use super::place::{Address, Place};
use super::report::{Listed, Report};
use super::work::Run;
use super::{Error, Exporter, Handler, Press, Result, Tree, USER, folder_of};
use crate::touched::Touched;

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
            let switched = self.folder.switch(number);
            // It may have become the served one although the disk failed afterwards.
            if self.folder.current() == Some(number) {
                *served = Some(tree);
                self.followed.fetch_add(1, Ordering::Relaxed);
            }
            switched.map_err(|error| self.failed(error))?;
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
            // What shows who asks has no file either, and was drawn.
            .filter(|(_, entry)| entry.hash.is_none() && entry.reads.is_empty())
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
        let known = self.tree.lock().take();
        // An earlier run may have failed to open it again.
        let tree = known.map_or_else(|| self.open_served(), |tree| Ok(Some(tree)))?;
        let tree = tree.ok_or_else(not_begun)?;
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
            *place = self.open_served()?;
        }
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
}

pub(super) fn between(before: &Snapshot, after: &Snapshot) -> Result<Touched> {
    Touched::between(before, after).map_err(|error| Error::Compare(Box::new(error)))
}

/// Returns the pages in the folders of what changed.
fn neighbors(manifest: &Manifest, touched: &Touched) -> BTreeSet<Arc<str>> {
    let changed: BTreeSet<&str> = touched.changed().map(NodePath::as_str).collect();
    let files = manifest.all().filter(|(_, entry)| {
        let content = format!("{}/jcr:content", entry.source);
        changed.contains(&*entry.source) || changed.contains(&*content)
    });
    let folders: BTreeSet<_> = files.map(|(_, entry)| folder_of(&entry.file)).collect();
    let pages = manifest.all().filter(|(_, entry)| {
        let mut above = folder_of(&entry.file).ancestors();
        entry.file.ends_with(".html") && above.any(|folder| folders.contains(folder))
    });
    pages.map(|(address, _)| Arc::from(address)).collect()
}
