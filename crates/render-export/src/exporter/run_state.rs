//! The work of one run: threads render the due addresses in parallel, and store the files one at a time.
//!
//! Invariant: a file's record and its bytes are on disk before its name.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};

use super::run::{ExportProgressFn, ExportWriteMode};
use super::{ExportTree, StaticExporter, is_disk_full};
use crate::address_resolver::{ExportAddress, NotExportedReason, ResolvedExportAddress};
use crate::error::{ExportError, ExportResult};
use crate::folder::StagedExportFile;
use crate::manifest::ExportManifestEntry;
use crate::rendering::{ExportContext, ExportOutcome, RenderedExportFile};
use crate::report::{ExportFinding, ExportReport};

/// Maximum number of render threads.
const MAX_RENDER_THREADS: usize = 8;
/// The stack size of each thread, in bytes: the limit of templates, and more than the rest needs.
const THREAD_STACK_BYTES: usize = 4 << 20;
/// Number of files of the served tree whose records are synced together.
const MANIFEST_BATCH_SIZE: usize = 64;
/// Maximum number of linked addresses per resource that become files, with a query and in total. A calendar links to
/// the next month without end.
const MAX_QUERY_ADDRESSES: usize = 1000;
const MAX_RESOURCE_ADDRESSES: usize = 100_000;

/// The state of a run.
pub(super) struct ExportRun<'a> {
    exporter: &'a StaticExporter,
    context: &'a ExportContext<'a>,
    state: Mutex<ExportRunState>,
    work_available: Condvar,
    pub(super) write_mode: ExportWriteMode,
    /// True if visitors see the tree while it changes.
    pub(super) is_served: bool,
}

/// A rendering whose file has no name yet.
struct StagedRendering {
    address: ExportAddress,
    target: ResolvedExportAddress,
    entry: ExportManifestEntry,
    staged_file: StagedExportFile,
}

struct ExportRunState {
    tree: Option<ExportTree>,
    queue: VecDeque<ExportAddress>,
    seen_addresses: BTreeSet<ExportAddress>,
    /// Addresses that an earlier run completed.
    resumed_addresses: BTreeSet<String>,
    /// Renderings that are not stored yet.
    staged: Vec<StagedRendering>,
    /// Renderings whose names belong to addresses that this run renders, too, and may rename.
    name_conflicts: Vec<StagedRendering>,
    /// Number of addresses of each resource that has addresses other than its own: with a query, and in total.
    addresses_per_resource: Option<HashMap<String, (usize, usize)>>,
    /// File names, keyed without regard to case.
    case_folded_names: HashMap<String, String>,
    /// Addresses that the next run has to render again.
    pending: BTreeSet<String>,
    active_workers: usize,
    finished_addresses: usize,
    report: ExportReport,
    first_error: Option<ExportError>,
}

impl<'a> ExportRun<'a> {
    pub(super) fn new(
        exporter: &'a StaticExporter,
        context: &'a ExportContext<'a>,
        tree: Option<ExportTree>,
        done: BTreeSet<String>,
    ) -> Self {
        let effect =
            if tree.is_some() { ExportWriteMode::WriteFiles } else { ExportWriteMode::DryRun };
        let state = ExportRunState {
            tree,
            queue: VecDeque::new(),
            seen_addresses: BTreeSet::new(),
            resumed_addresses: done,
            staged: Vec::new(),
            name_conflicts: Vec::new(),
            addresses_per_resource: None,
            case_folded_names: HashMap::new(),
            pending: BTreeSet::new(),
            active_workers: 0,
            finished_addresses: 0,
            report: ExportReport::default(),
            first_error: None,
        };
        let state = Mutex::new(state);
        Self {
            exporter,
            context,
            state,
            work_available: Condvar::new(),
            write_mode: effect,
            is_served: false,
        }
    }

    /// Adds an address.
    pub(super) fn add_address(&mut self, address: ExportAddress) {
        self.state.get_mut().add_address(address);
    }

    /// Adds the addresses that an unfinished run recorded and did not render.
    pub(super) fn add_unrendered_addresses(&mut self) {
        let state = self.state.get_mut();
        let all = state.tree.iter().flat_map(|tree| tree.manifest.iter());
        let exported_addresses: Vec<ExportAddress> =
            all.map(|(address, _)| ExportAddress::parse(address)).collect();
        exported_addresses.into_iter().for_each(|address| state.add_address(address));
    }

    /// Renders and stores everything; returns the tree, and the addresses that have to be rendered again.
    pub(super) fn run_to_completion(
        self,
        report: &mut ExportReport,
        progress: ExportProgressFn<'_>,
    ) -> ExportResult<(Option<ExportTree>, BTreeSet<String>)> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            for _ in 0..cores.min(MAX_RENDER_THREADS) {
                let worker = std::thread::Builder::new().stack_size(THREAD_STACK_BYTES);
                let spawned = worker.spawn_scoped(scope, || self.render_until_done(progress));
                if let Err(error) = spawned {
                    self.state.lock().first_error = Some(self.exporter.folder_error(error));
                }
            }
        });
        let mut state = self.state.into_inner();
        if state.first_error.is_none()
            && let Err(error) = state.publish_staged(self.exporter, self.is_served)
        {
            state.first_error = Some(error);
        }
        if state.first_error.is_none()
            && let Err(error) = state.publish_contested(self.exporter, self.is_served)
        {
            state.first_error = Some(error);
        }
        if let Some(fault) = state.first_error {
            return Err(fault);
        }
        let resumed = report.resumed;
        *report = state.report;
        report.resumed = resumed;
        report.sort_findings();
        Ok((state.tree, state.pending))
    }

    fn render_until_done(&self, progress: ExportProgressFn<'_>) {
        loop {
            let mut state = self.state.lock();
            let address = loop {
                if state.first_error.is_some() {
                    return;
                }
                if let Some(address) = state.queue.pop_front() {
                    break address;
                }
                if state.active_workers == 0 {
                    self.work_available.notify_all();
                    return;
                }
                self.work_available.wait(&mut state);
            };
            state.active_workers += 1;
            drop(state);
            let result = self.render_and_stage(&address);
            let mut state = self.state.lock();
            state.active_workers -= 1;
            state.finished_addresses += 1;
            if let Err(error) =
                result.and_then(|outcome| self.accept_outcome(&mut state, &address, outcome))
            {
                state.first_error.get_or_insert(error);
            }
            let (done, total) = (state.finished_addresses, state.seen_addresses.len());
            drop(state);
            self.work_available.notify_all();
            progress(done, total);
        }
    }

    /// Renders an address and writes its bytes to a staged file.
    fn render_and_stage(
        &self,
        address: &ExportAddress,
    ) -> ExportResult<(ExportOutcome, Option<StagedExportFile>)> {
        // Otherwise other threads would wait forever for a thread that panicked.
        let result = catch_unwind(AssertUnwindSafe(|| self.context.render_address(address)));
        let Ok(outcome) = result else {
            let reason = "it cannot be rendered, because of a bug in the program; see the log";
            return Ok((ExportOutcome::Failed(reason.to_owned()), None));
        };
        let ExportOutcome::File(rendered) = &outcome else { return Ok((outcome, None)) };
        if self.write_mode == ExportWriteMode::DryRun {
            return Ok((outcome, None));
        }
        let opened = rendered.content.open(self.context.environment.repository);
        let staged = match opened {
            Ok(mut content) => self.exporter.folder.stage(&mut *content),
            Err(error) => return Ok((ExportOutcome::Failed(error.to_string()), None)),
        };
        let mut staged_file = staged.map_err(|error| self.exporter.folder_error(error))?;
        // Sync here, as other threads need not wait for it. Unchanged files are not written again.
        if self.is_served && !self.state.lock().is_file_current(address, &staged_file.hash) {
            staged_file.sync().map_err(|error| self.exporter.folder_error(error))?;
        }
        Ok((outcome, Some(staged_file)))
    }

    /// Processes the outcome of an address.
    fn accept_outcome(
        &self,
        state: &mut ExportRunState,
        address: &ExportAddress,
        (outcome, staged_file): (ExportOutcome, Option<StagedExportFile>),
    ) -> ExportResult<()> {
        match outcome {
            ExportOutcome::NotExported(reason) => {
                state.report.not_exported += 1;
                state.report_invalid_name(address, &reason);
                state.remove_address(self.exporter, address, self.write_mode)
            }
            ExportOutcome::Personalized(entry) => {
                state.report.not_exported += 1;
                state.exclude_personalized(self.exporter, address, *entry, self.write_mode)
            }
            ExportOutcome::Failed(reason) => {
                state.record_failure(address, reason);
                Ok(())
            }
            ExportOutcome::File(rendered) => {
                state.report.rendered += 1;
                let RenderedExportFile { target, dependencies, linked_targets, findings, .. } =
                    *rendered;
                findings.into_iter().for_each(|finding| state.report.add_finding(finding));
                for link in linked_targets {
                    if !state.is_link_accepted(&link) {
                        continue;
                    }
                    // The links of a page that an unfinished run rendered are not processed again.
                    if !self.is_served
                        && let Some(tree) = &mut state.tree
                    {
                        let record_result = tree.record_name(&link);
                        record_result.map_err(|error| self.exporter.folder_error(error))?;
                    }
                    state.add_address(link.address);
                }
                let Ok(file) = target.file.clone() else { return Ok(()) };
                state.check_case_conflict(&file);
                let Some(staged_file) = staged_file else { return Ok(()) };
                let hash = Some(staged_file.hash.clone());
                let entry =
                    ExportManifestEntry { file, source: target.source.clone(), hash, dependencies };
                state.staged.push(StagedRendering {
                    address: address.clone(),
                    target,
                    entry,
                    staged_file,
                });
                // Files that visitors do not see yet need not be on disk at once.
                match !self.is_served || state.staged.len() >= MANIFEST_BATCH_SIZE {
                    true => state.publish_staged(self.exporter, self.is_served),
                    false => Ok(()),
                }
            }
        }
    }
}

impl ExportRunState {
    fn add_address(&mut self, address: ExportAddress) {
        if self.seen_addresses.insert(address.clone())
            && !self.resumed_addresses.contains(&address.to_string())
        {
            self.queue.push_back(address);
        }
    }

    fn record_failure(&mut self, address: &ExportAddress, reason: String) {
        self.pending.insert(address.to_string());
        self.report
            .add_finding(ExportFinding::Failed { address: address.to_string(), message: reason });
    }

    /// Reports an exported resource whose name is no valid file name.
    fn report_invalid_name(&mut self, address: &ExportAddress, reason: &NotExportedReason) {
        if let NotExportedReason::InvalidName(reason) = reason {
            let (address, reason) = (address.to_string(), reason.clone());
            self.report.add_finding(ExportFinding::Failed { address, message: reason });
        }
    }

    /// Removes the file of a personalized address, and records the dependencies of that decision.
    fn exclude_personalized(
        &mut self,
        exporter: &StaticExporter,
        address: &ExportAddress,
        entry: ExportManifestEntry,
        effect: ExportWriteMode,
    ) -> ExportResult<()> {
        let text = address.to_string();
        self.report.add_finding(ExportFinding::Personalized { address: text.clone() });
        let tree = self.tree.as_ref();
        let owner = tree.and_then(|tree| tree.manifest.address_of_file(&entry.file));
        let is_others = owner.is_some_and(|owner| *owner != text);
        self.remove_address(exporter, address, effect)?;
        match &mut self.tree {
            Some(tree) if effect == ExportWriteMode::WriteFiles && !is_others => tree
                .manifest
                .record_entry(&text, entry)
                .map_err(|error| exporter.folder_error(error)),
            _ => Ok(()),
        }
    }

    /// Returns true if a file has this hash according to the manifest.
    fn is_file_current(&self, address: &ExportAddress, hash: &str) -> bool {
        let entry = self.tree.as_ref().and_then(|tree| tree.manifest.get(&address.to_string()));
        entry.is_some_and(|entry| entry.hash.as_deref() == Some(hash))
    }

    /// Returns true if a link's target is rendered, which it is unless its resource has too many addresses.
    fn is_link_accepted(&mut self, link: &ResolvedExportAddress) -> bool {
        let text = link.address.to_string();
        let tree = self.tree.as_ref();
        if link.is_canonical
            || self.seen_addresses.contains(&link.address)
            || tree.is_some_and(|tree| tree.manifest.get(&text).is_some())
        {
            return true;
        }
        let address_counts = self.addresses_per_resource.get_or_insert_with(|| {
            let mut address_counts: HashMap<String, (usize, usize)> = HashMap::new();
            for (address, entry) in tree.iter().flat_map(|tree| tree.manifest.iter()) {
                let (queries, all) = address_counts.entry(entry.source.clone()).or_default();
                *queries += usize::from(address.contains('?'));
                *all += 1;
            }
            address_counts
        });
        let (queries, all) = address_counts.entry(link.source.clone()).or_default();
        let has_query = !link.address.query.is_empty();
        if *all >= MAX_RESOURCE_ADDRESSES || (has_query && *queries >= MAX_QUERY_ADDRESSES) {
            let most = if has_query { MAX_QUERY_ADDRESSES } else { MAX_RESOURCE_ADDRESSES };
            self.report.add_finding_once(ExportFinding::TooManyAddresses {
                source: link.source.clone(),
                limit: most,
            });
            return false;
        }
        *queries += usize::from(has_query);
        *all += 1;
        true
    }

    fn check_case_conflict(&mut self, file: &str) {
        let first_spelling =
            self.case_folded_names.entry(file.to_lowercase()).or_insert_with(|| file.to_owned());
        if *first_spelling != file {
            let (file, other_file) = (file.to_owned(), first_spelling.clone());
            self.report.add_finding(ExportFinding::CaseConflict { file, other_file });
        }
    }

    /// Removes the file of an address.
    fn remove_address(
        &mut self,
        exporter: &StaticExporter,
        address: &ExportAddress,
        effect: ExportWriteMode,
    ) -> ExportResult<()> {
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let text = address.to_string();
        let Some(entry) = tree.manifest.get(&text) else { return Ok(()) };
        let has_file = entry.hash.is_some();
        self.report.removed += usize::from(has_file);
        if effect == ExportWriteMode::DryRun {
            return Ok(());
        }
        let removed = match has_file {
            true => exporter.folder.remove_file(tree.number, &entry.file),
            false => Ok(()),
        };
        let forgotten = removed.and_then(|()| tree.manifest.record_removal(&text));
        forgotten.map_err(|error| exporter.folder_error(error))
    }

    /// Records the staged renderings, then gives the files their names.
    fn publish_staged(&mut self, exporter: &StaticExporter, is_served: bool) -> ExportResult<()> {
        let failed = |error| exporter.folder_error(error);
        let staged_files = std::mem::take(&mut self.staged);
        let mut named = Vec::with_capacity(staged_files.len());
        let mut names = BTreeSet::new();
        for drawing in staged_files {
            let Some(tree) = &mut self.tree else { return Ok(()) };
            let text = drawing.address.to_string();
            if names.contains(&drawing.entry.file) {
                self.name_conflicts.push(drawing);
                continue;
            }
            let owner = tree.manifest.address_of_file(&drawing.entry.file);
            if let Some(owner) = owner.filter(|owner| **owner != text).map(str::to_owned) {
                // The address may get another name before this run ends.
                if self.seen_addresses.contains(&ExportAddress::parse(&owner)) {
                    self.name_conflicts.push(drawing);
                    continue;
                }
                // A resource's own address takes precedence.
                if !drawing.target.is_canonical {
                    self.report_name_conflict(&drawing, &owner);
                    continue;
                }
                tree.manifest.record_removal(&owner).map_err(failed)?;
            }
            names.insert(drawing.entry.file.clone());
            named.push(drawing);
        }
        self.record_and_publish(exporter, named, is_served)
    }

    /// Publishes the renderings whose names belonged to others when these were rendered. A name is free if its owner
    /// has another name now, or is about to exchange names.
    fn publish_contested(
        &mut self,
        exporter: &StaticExporter,
        is_served: bool,
    ) -> ExportResult<()> {
        let mut contested = std::mem::take(&mut self.name_conflicts);
        loop {
            let moving: BTreeSet<String> =
                contested.iter().map(|drawing| drawing.address.to_string()).collect();
            let mut names = BTreeSet::new();
            let mut refused = Vec::new();
            contested = contested
                .into_iter()
                .filter_map(|drawing| {
                    let owner = self.tree.as_ref().and_then(|tree| {
                        tree.manifest.address_of_file(&drawing.entry.file).map(str::to_owned)
                    });
                    let conflicting_owner =
                        owner.filter(|conflicting_owner| !moving.contains(conflicting_owner));
                    let is_first =
                        conflicting_owner.is_none() && names.insert(drawing.entry.file.clone());
                    match (is_first, conflicting_owner) {
                        (true, _) => Some(drawing),
                        (false, conflicting_owner) => {
                            refused.push((drawing, conflicting_owner.unwrap_or_default()));
                            None
                        }
                    }
                })
                .collect();
            if refused.is_empty() {
                return self.record_and_publish(exporter, contested, is_served);
            }
            // An address that keeps its name may conflict with another one.
            for (drawing, other_address) in refused {
                self.report_name_conflict(&drawing, &other_address);
            }
        }
    }

    fn report_name_conflict(&mut self, drawing: &StagedRendering, other_address: &str) {
        let file = &drawing.entry.file;
        let reason = match other_address {
            "" => format!("another address uses the same file `{file}`"),
            owner => format!("`{owner}` uses the same file `{file}`"),
        };
        self.record_failure(&drawing.address, reason);
    }

    /// Records renderings whose names are free, then gives the files these names.
    fn record_and_publish(
        &mut self,
        exporter: &StaticExporter,
        drawings: Vec<StagedRendering>,
        is_served: bool,
    ) -> ExportResult<()> {
        let failed = |error| exporter.folder_error(error);
        let Some(tree) = &mut self.tree else { return Ok(()) };
        let mut old = BTreeMap::new();
        for StagedRendering { address, .. } in &drawings {
            let text = address.to_string();
            let entry_before = tree.manifest.get(&text);
            if let Some(entry_before) =
                entry_before.filter(|entry_before| entry_before.hash.is_some())
            {
                old.insert(text, entry_before.clone());
            }
        }
        for StagedRendering { address, entry, .. } in &drawings {
            tree.manifest.record_entry(&address.to_string(), entry.clone()).map_err(failed)?;
        }
        if is_served {
            tree.manifest.sync().map_err(failed)?;
        }
        let number = tree.number;
        // An interrupted run may have left partial files, and so may an earlier version of this program after a power
        // failure.
        let is_suspect = !is_served || exporter.followed_changes.load(Ordering::Relaxed) == 0;
        for StagedRendering { address, entry, staged_file: mut waiting, .. } in drawings {
            let text = address.to_string();
            let old_entry = old.get(&text);
            let is_there = || match entry.hash.as_deref() {
                Some(hash) if is_suspect => {
                    exporter.folder.is_file_unchanged(number, &entry.file, hash)
                }
                _ => exporter.folder.has_file(number, &entry.file),
            };
            let is_same = old_entry.is_some_and(|old_entry| {
                old_entry.hash == entry.hash && old_entry.file == entry.file
            }) && is_there();
            if is_same {
                self.report.unchanged += 1;
                continue;
            }
            if is_served {
                waiting.sync().map_err(failed)?;
            }
            let bytes = waiting.bytes;
            match exporter.folder.link_into_tree(number, &waiting, &entry.file) {
                Ok(()) => {
                    self.report.written += 1;
                    self.report.bytes += bytes;
                }
                Err(error) if is_disk_full(&error) => return Err(failed(error)),
                Err(error) => {
                    let reason = format!("cannot create the file `{}`: {error}", entry.file);
                    self.record_failure(&address, reason);
                    let Some(tree) = &mut self.tree else { return Ok(()) };
                    tree.manifest.record_removal(&text).map_err(failed)?;
                    continue;
                }
            }
            // A renamed resource releases its old name.
            let left =
                old_entry.map(|old_entry| &old_entry.file).filter(|left| **left != entry.file);
            let is_free = |name: &str| {
                self.tree.as_ref().is_some_and(|tree| tree.manifest.address_of_file(name).is_none())
            };
            if let Some(left) = left.filter(|left| is_free(left)) {
                exporter.folder.remove_file(number, left).map_err(failed)?;
            }
        }
        Ok(())
    }
}
