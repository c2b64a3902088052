//! Runs: full exports, exports of changes, and listings.
//!
//! Not here: the set of addresses (`seed_address`), rendering and storing (`run_state`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tympan_content::{NodePath, Repository, Snapshot, Viewer};
use tympan_render::ChangedAspects;

use super::run_state::ExportRun;
use super::{ExportTree, StaticExporter, parent_folder};
use crate::address_resolver::{ExportAddress, ResolvedExportAddress};
use crate::environment::{EXPORT_USER, ExportEnvironment};
use crate::error::{ExportError, ExportResult};
use crate::manifest::{ExportManifest, ExportManifestEntry};
use crate::options::StaticExportHandler;
use crate::rendering::ExportContext;
use crate::report::{ExportListEntry, ExportReport};

/// The start of a full run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FullExportStart {
    /// Start with an empty tree.
    #[default]
    FromScratch,
    /// Resume an unfinished run if there is one.
    Resume,
}

/// The write mode of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExportWriteMode {
    /// Write files.
    #[default]
    WriteFiles,
    /// Render everything and write nothing.
    DryRun,
}

/// Receives the progress of a run: the number of addresses done, and the number known so far.
pub type ExportProgressFn<'a> = &'a (dyn Fn(usize, usize) + Sync);

impl StaticExporter {
    /// Returns a state as the export's user sees it.
    pub(super) fn export_view(
        &self,
        repository: &Repository,
        snapshot: &Snapshot,
    ) -> ExportResult<Snapshot> {
        let user = repository.account_identifier(EXPORT_USER)?.map(|_| EXPORT_USER);
        Ok(snapshot.as_viewer(&Viewer::of_user(user)))
    }

    pub(super) fn new_context<'a>(
        &'a self,
        environment: ExportEnvironment<'a>,
        snapshot: &Snapshot,
    ) -> ExportResult<ExportContext<'a>> {
        ExportContext::new(
            environment,
            &self.options,
            self.export_view(environment.repository, snapshot)?,
        )
    }

    /// Lists the addresses that would be exported, and why the others would not. Addresses that only links name are not
    /// listed.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn list_addresses(
        &self,
        environment: ExportEnvironment<'_>,
        hear: &mut dyn FnMut(ExportListEntry),
    ) -> ExportResult<()> {
        let context = self.new_context(environment, &environment.repository.snapshot()?)?;
        self.for_each_seed(&context.snapshot, |address| {
            let ResolvedExportAddress { address, file, .. } = context.resolve(&address);
            hear(ExportListEntry { address, file });
        })
    }

    /// Exports everything into a new tree and serves it.
    ///
    /// # Errors
    /// If content cannot be read or the disk fails; the served tree stays, and the run can be resumed.
    pub fn export_all(
        &self,
        environment: ExportEnvironment<'_>,
        (begin, effect): (FullExportStart, ExportWriteMode),
        progress: ExportProgressFn<'_>,
    ) -> ExportResult<ExportReport> {
        let _turn = self.run_lock.lock();
        let snapshot = environment.repository.snapshot()?;
        let context = self.new_context(environment, &snapshot)?;
        let mut report = ExportReport::default();
        let (tree, done) = match effect {
            ExportWriteMode::DryRun => (None, BTreeSet::new()),
            ExportWriteMode::WriteFiles => {
                let (tree, done) = self.begin_tree(environment.repository, &snapshot, begin)?;
                (Some(tree), done)
            }
        };
        report.resumed = done.len();
        let number = tree.as_ref().map(|tree| tree.number);
        let mut run = ExportRun::new(self, &context, tree, done);
        self.for_each_seed(&context.snapshot, |address| run.add_address(address))?;
        run.add_unrendered_addresses();
        let (tree, due) = run.run_to_completion(&mut report, progress)?;
        let (Some(mut tree), Some(number)) = (tree, number) else { return Ok(report) };
        self.remove_unrequested_names(&mut tree, &mut report)?;
        self.folder.sync().map_err(|error| self.folder_error(error))?;
        let settled = tree.manifest.record_exported_root(&snapshot.root_id().to_string(), &due);
        settled.map_err(|error| self.folder_error(error))?;
        {
            // Requests must not store files in the old tree while this one becomes the served tree.
            let mut served = self.tree.lock();
            let switched = self.folder.switch_current(number);
            // The switch may have happened although the disk failed afterwards.
            if self.folder.current_tree() == Some(number) {
                *served = Some(tree);
                self.followed_changes.fetch_add(1, Ordering::Relaxed);
            }
            switched.map_err(|error| self.folder_error(error))?;
        }
        self.folder
            .prune_trees(self.options.max_backup_trees)
            .map_err(|error| self.folder_error(error))?;
        Ok(report)
    }

    /// Begins a tree, or finds the unfinished one and its reusable files.
    fn begin_tree(
        &self,
        repository: &Repository,
        snapshot: &Snapshot,
        begin: FullExportStart,
    ) -> ExportResult<(ExportTree, BTreeSet<String>)> {
        let failed = |error| self.folder_error(error);
        let trees = self.folder.tree_numbers().map_err(failed)?;
        let served = self.folder.current_tree().unwrap_or(0);
        let unfinished: Vec<u64> = trees.iter().copied().filter(|tree| *tree > served).collect();
        if begin == FullExportStart::Resume
            && let Some(newest) = unfinished.last()
            && let Some(tree) = self.open_tree(*newest)?
            && let Some(done) = self.reusable_addresses(&tree, repository, snapshot)?
        {
            return Ok((tree, done));
        }
        unfinished.iter().try_for_each(|tree| self.folder.discard_tree(*tree)).map_err(failed)?;
        let number = served.max(trees.last().copied().unwrap_or(0)) + 1;
        // A crash may have left a tree without a manifest.
        self.folder.discard_tree(number).map_err(failed)?;
        std::fs::create_dir_all(self.folder.tree_path(number)).map_err(failed)?;
        let path = self.folder.manifest_path(number);
        let mut manifest =
            ExportManifest::create(&path, &self.options.fingerprint()).map_err(failed)?;
        manifest
            .record_exported_root(&snapshot.root_id().to_string(), &BTreeSet::new())
            .map_err(failed)?;
        Ok((ExportTree { number, manifest }, BTreeSet::new()))
    }

    /// Returns the addresses of an unfinished tree whose files are intact and show the present state.
    fn reusable_addresses(
        &self,
        tree: &ExportTree,
        repository: &Repository,
        snapshot: &Snapshot,
    ) -> ExportResult<Option<BTreeSet<String>>> {
        let Some(before) = self.exported_snapshot(tree, repository) else { return Ok(None) };
        let touched = compare_snapshots(&before, snapshot)?;
        let concerned = tree.manifest.affected_addresses(&touched);
        let whole = tree.manifest.iter().filter(|(address, entry)| {
            let hash = entry.hash.as_deref();
            !concerned.contains(*address)
                && hash.is_some_and(|hash| {
                    self.folder.is_file_unchanged(tree.number, &entry.file, hash)
                })
        });
        Ok(Some(whole.map(|(address, _)| address.to_owned()).collect()))
    }

    /// Returns the state that a tree shows; `None` if it no longer exists.
    pub(super) fn exported_snapshot(
        &self,
        tree: &ExportTree,
        repository: &Repository,
    ) -> Option<Snapshot> {
        repository.snapshot_at(tree.manifest.exported_root()?.parse().ok()?).ok()
    }

    /// Removes names without files that earlier pages of an unfinished run linked to.
    fn remove_unrequested_names(
        &self,
        tree: &mut ExportTree,
        report: &mut ExportReport,
    ) -> ExportResult<()> {
        let stale: Vec<String> = tree
            .manifest
            .iter()
            // Personalized pages have no file either, and were rendered.
            .filter(|(_, entry)| entry.hash.is_none() && entry.dependencies.is_empty())
            .map(|(address, _)| address.to_owned())
            .collect();
        report.removed += stale.len();
        stale
            .iter()
            .try_for_each(|address| tree.manifest.record_removal(address))
            .map_err(|error| self.folder_error(error))
    }

    /// Exports the changes since the last run according to the handler in the options. Without a change it does
    /// nothing.
    ///
    /// # Errors
    /// [`ExportError::NoUnfinishedRun`] if nothing is exported yet; others as [`StaticExporter::export_all`]. The next
    /// run retries.
    pub fn export_pending_changes(
        &self,
        environment: ExportEnvironment<'_>,
        progress: ExportProgressFn<'_>,
    ) -> ExportResult<ExportReport> {
        let _turn = self.run_lock.lock();
        let snapshot = environment.repository.snapshot()?;
        match self.options.handler {
            StaticExportHandler::AfterPublish => self.export_changes_to(
                environment,
                &snapshot,
                ExportWriteMode::WriteFiles,
                progress,
            ),
            StaticExportHandler::OnDemand | StaticExportHandler::OnDemandSubtree => {
                self.remove_changed_files(environment, &snapshot)
            }
        }
    }

    /// Exports the changes since the last run, regardless of the handler.
    ///
    /// # Errors
    /// As [`StaticExporter::export_pending_changes`].
    pub fn export_changes(
        &self,
        environment: ExportEnvironment<'_>,
        effect: ExportWriteMode,
        progress: ExportProgressFn<'_>,
    ) -> ExportResult<ExportReport> {
        let _turn = self.run_lock.lock();
        let snapshot = environment.repository.snapshot()?;
        self.export_changes_to(environment, &snapshot, effect, progress)
    }

    fn export_changes_to(
        &self,
        environment: ExportEnvironment<'_>,
        snapshot: &Snapshot,
        effect: ExportWriteMode,
        progress: ExportProgressFn<'_>,
    ) -> ExportResult<ExportReport> {
        let not_begun = || ExportError::NoUnfinishedRun { dir: self.options.dir.clone() };
        let root = snapshot.root_id().to_string();
        // The tree is taken out for the run, so that its manifest has one writer.
        let served_tree = self.tree.lock().take();
        // An earlier run may have failed to reopen the tree.
        let tree = served_tree.map_or_else(|| self.open_served_tree(), |tree| Ok(Some(tree)))?;
        let tree = tree.ok_or_else(not_begun)?;
        if tree.manifest.exported_root() == Some(&*root) && tree.manifest.pending().next().is_none()
        {
            *self.tree.lock() = Some(tree);
            return Ok(ExportReport::default());
        }
        let number = tree.number;
        let done = self.export_changes_into(environment, snapshot, tree, effect, progress);
        let mut tree_slot = self.tree.lock();
        self.followed_changes.fetch_add(1, Ordering::Relaxed);
        match done {
            Ok((tree, report)) => {
                *tree_slot = Some(tree);
                Ok(report)
            }
            Err(error) => {
                // The recorded entries are in the file.
                *tree_slot = self.open_tree(number)?;
                Err(error)
            }
        }
    }

    fn export_changes_into(
        &self,
        environment: ExportEnvironment<'_>,
        snapshot: &Snapshot,
        tree: ExportTree,
        effect: ExportWriteMode,
        progress: ExportProgressFn<'_>,
    ) -> ExportResult<(ExportTree, ExportReport)> {
        let context = self.new_context(environment, snapshot)?;
        let mut report = ExportReport::default();
        let mut addresses: BTreeSet<ExportAddress> =
            tree.manifest.pending().map(ExportAddress::parse).collect();
        match self.exported_snapshot(&tree, environment.repository) {
            Some(before) => {
                let touched = compare_snapshots(&before, snapshot)?;
                let concerned = tree.manifest.affected_addresses(&touched);
                addresses.extend(concerned.iter().map(|address| ExportAddress::parse(address)));
                let before = self.export_view(environment.repository, &before)?;
                addresses.extend(self.new_seed_addresses(&before, &context.snapshot, &touched)?);
            }
            // The changes are unknown.
            None => {
                addresses
                    .extend(tree.manifest.iter().map(|(address, _)| ExportAddress::parse(address)));
                self.for_each_seed(&context.snapshot, |address| {
                    addresses.insert(address);
                })?;
            }
        }
        let mut run = ExportRun::new(self, &context, Some(tree), BTreeSet::new());
        run.write_mode = effect;
        run.is_served = true;
        addresses.into_iter().for_each(|address| run.add_address(address));
        let (tree, due) = run.run_to_completion(&mut report, progress)?;
        let Some(mut tree) = tree else {
            return Err(ExportError::NoUnfinishedRun { dir: self.options.dir.clone() });
        };
        if effect == ExportWriteMode::WriteFiles {
            self.folder.sync().map_err(|error| self.folder_error(error))?;
            let settled = tree.manifest.record_exported_root(&snapshot.root_id().to_string(), &due);
            settled.map_err(|error| self.folder_error(error))?;
        }
        Ok((tree, report))
    }

    /// Removes the files that a change affects; requests of visitors re-create them.
    fn remove_changed_files(
        &self,
        environment: ExportEnvironment<'_>,
        snapshot: &Snapshot,
    ) -> ExportResult<ExportReport> {
        let mut tree_slot = self.tree.lock();
        let root = snapshot.root_id().to_string();
        let failed = |error| self.folder_error(error);
        if tree_slot.is_none() {
            *tree_slot = self.open_served_tree()?;
        }
        if tree_slot.is_none() {
            let (tree, _) =
                self.begin_tree(environment.repository, snapshot, FullExportStart::FromScratch)?;
            self.folder.switch_current(tree.number).map_err(failed)?;
            *tree_slot = Some(tree);
        }
        let Some(tree) = tree_slot.as_mut() else { return Ok(ExportReport::default()) };
        if tree.manifest.exported_root() == Some(&*root)
            && self.followed_changes.load(Ordering::Relaxed) > 0
        {
            return Ok(ExportReport::default());
        }
        let due = || tree.manifest.pending().map(Arc::<str>::from).collect::<BTreeSet<_>>();
        let mut due_addresses = due();
        match self.exported_snapshot(tree, environment.repository) {
            Some(before) => {
                let touched = compare_snapshots(&before, snapshot)?;
                due_addresses.extend(tree.manifest.affected_addresses(&touched));
                if self.may_rename_files(&before, snapshot, &touched)? {
                    self.folder_names.lock().invalidate();
                }
                if self.options.handler == StaticExportHandler::OnDemandSubtree {
                    due_addresses.extend(folder_neighbors(&tree.manifest, &touched));
                }
            }
            None => {
                due_addresses.extend(tree.manifest.iter().map(|(address, _)| Arc::from(address)));
                self.folder_names.lock().invalidate();
            }
        }
        let mut report = ExportReport::default();
        for address in &due_addresses {
            let Some(entry) = tree.manifest.get(address).cloned() else { continue };
            if entry.hash.is_some() {
                self.folder.remove_file(tree.number, &entry.file).map_err(failed)?;
                report.removed += 1;
            }
            // The name of a variant stays, as the pages that link to it do.
            let removed_entry = ExportManifestEntry { hash: None, ..entry };
            tree.manifest.record_entry(address, removed_entry).map_err(failed)?;
        }
        self.folder.sync().map_err(failed)?;
        tree.manifest.record_exported_root(&root, &BTreeSet::new()).map_err(failed)?;
        self.followed_changes.fetch_add(1, Ordering::Relaxed);
        Ok(report)
    }
}

pub(super) fn compare_snapshots(
    before: &Snapshot,
    after: &Snapshot,
) -> ExportResult<ChangedAspects> {
    ChangedAspects::between_snapshots(before, after)
        .map_err(|error| ExportError::Comparison(Box::new(error)))
}

/// Returns the pages in the folders of the changed resources.
fn folder_neighbors(manifest: &ExportManifest, touched: &ChangedAspects) -> BTreeSet<Arc<str>> {
    let changed: BTreeSet<&str> = touched.changed_documents().map(NodePath::as_str).collect();
    let files = manifest.iter().filter(|(_, entry)| {
        let content = format!("{}/jcr:content", entry.source);
        changed.contains(&*entry.source) || changed.contains(&*content)
    });
    let folders: BTreeSet<_> = files.map(|(_, entry)| parent_folder(&entry.file)).collect();
    let pages = manifest.iter().filter(|(_, entry)| {
        let mut above = parent_folder(&entry.file).ancestors();
        entry.file.ends_with(".html") && above.any(|folder| folders.contains(folder))
    });
    pages.map(|(address, _)| Arc::from(address)).collect()
}
