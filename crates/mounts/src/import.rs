//! Bulk import: files of a source become assets, once.
//!
//! In: a source and a folder. Out: assets like uploaded ones, and a report that lists the skipped files.
//!
//! An import is a job, and its progress is stored in the ledger under its source and folder. An import that was killed
//! or is requested again continues from there, and a file that became an asset is not read again. Files that failed are
//! retried.

use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tympan_content::NodePath;
use tympan_jobs::{Job, JobContext, JobHandler, JobId, JobOutcome, NewJob, check_topic};
use tympan_notation::error_chain_text;

use crate::Result;
use crate::asset_mount::{AssetMount, MountPurpose};
use crate::mount_config::parse_target_folder;
use crate::mount_ledger::LastMountPass;
use crate::mount_pass::{MountPassError, MountPassOptions, run_mount_pass};
use crate::mount_service::MountService;
use crate::mount_source::MountSourceError;
use crate::pass_report::MountPassReport;
use crate::source_opening;

/// Prefix of the topics of imports, which end in the import's name.
pub const IMPORT_TOPIC: &str = "dam/import";

/// A request for an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The source of the files.
    pub source: String,
    /// The folder for the assets.
    pub target: String,
    /// If true, nothing is written, and the report describes what would be.
    pub is_dry_run: bool,
    /// The user who requested it.
    pub user: String,
}

/// The status of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportStatus {
    /// The import's name, derived from its source and folder.
    pub name: String,
    /// Its job, if it waits, runs or failed.
    pub job: Option<Job>,
    /// Its last pass, if there was one.
    pub last_pass: Option<LastMountPass>,
}

impl ImportRequest {
    /// Returns the import's name.
    #[must_use]
    pub fn import_name(&self) -> String {
        let hash = Sha256::digest(format!("{}\n{}", self.source, self.target));
        format!("import-{:.16}", hex::encode(hash))
    }
}

impl MountService {
    /// Starts an import; if one of this source and folder waits or runs, returns that one. Returns its name and job, or
    /// the reason why it is rejected.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn start_import(
        &self,
        request: &ImportRequest,
        now: SystemTime,
    ) -> Result<Result<(String, JobId), String>> {
        let inner = &self.state;
        if let Err(reason) = parse_target_folder(&request.target) {
            return Ok(Err(reason));
        }
        if !inner
            .settings
            .locations
            .iter()
            .any(|location| location.contains_source(&request.source))
        {
            return Ok(Err(format!(
                "`{}` is not in any location that `tympan.toml` allows; add a `[[mounts.location]]` with its `url`",
                request.source
            )));
        }
        if let Err(reason) = source_opening::open_mount_source(
            &request.source,
            &inner.settings.locations,
            &inner.network,
        ) {
            return Ok(Err(reason));
        }
        let name = request.import_name();
        let properties = json!({
            "import": name,
            "source": request.source,
            "target": request.target,
            "dryRun": request.is_dry_run,
        });
        let job = NewJob::new(format!("{IMPORT_TOPIC}/{name}"), properties)
            .with_key(format!("{name} {}", request.is_dry_run))
            .with_user(request.user.clone());
        let id = inner.queues.add_job(job, now).await?;
        Ok(Ok((name, id)))
    }

    /// Returns the status of an import.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn import_status(&self, name: &str) -> Result<ImportStatus> {
        let topic = format!("{IMPORT_TOPIC}/{name}");
        let (mut job, mut last) = (None, None);
        if check_topic(&topic).is_ok() {
            job = self.state.queues.list_topic(&topic, 1).await?.into_iter().next();
            last = self.state.ledger.last_pass(name).await?;
        }
        Ok(ImportStatus { name: name.to_owned(), job, last_pass: last })
    }

    fn run_import_pass(&self, job: &Job, context: &JobContext) -> JobOutcome {
        let inner = &self.state;
        let failed = |reason: String| JobOutcome::Failed { reason };
        let text = |name: &str| job.properties.get(name).and_then(Json::as_str).unwrap_or_default();
        let (name, source, target) = (text("import"), text("source"), text("target"));
        let is_dry = job.properties.get("dryRun") == Some(&Json::Bool(true));
        let Ok(folder) = NodePath::new(target) else {
            return failed(format!("`{target}` is not a valid folder path"));
        };
        let opened = match source_opening::open_mount_source(
            source,
            &inner.settings.locations,
            &inner.network,
        ) {
            Ok(source) => source,
            Err(reason) => return failed(reason),
        };
        let before = match inner.ledger.last_pass_blocking(name) {
            Ok(before) => before,
            Err(failure) => {
                return JobOutcome::Retry { after: None, reason: error_chain_text(&failure) };
            }
        };
        let mount = AssetMount {
            name: name.to_owned(),
            target: folder,
            source: opened,
            purpose: MountPurpose::Import,
            min_file_age: Duration::ZERO,
        };
        let options = MountPassOptions {
            now: SystemTime::now(),
            accepts_removals: false,
            is_dry_run: is_dry,
        };
        let mut on_progress = |done, total| {
            context.report_progress(done, total, if total == 0 { "listing" } else { "reading" });
            !context.is_cancelled()
        };
        let made =
            run_mount_pass(&inner.repository, &inner.ledger, &mount, options, &mut on_progress);
        let mut report = match made {
            Ok(report) => report,
            Err(MountPassError::Source { source: MountSourceError::Stopped, .. }) => {
                return JobOutcome::Cancelled;
            }
            Err(failure) if failure.is_transient() => {
                return JobOutcome::Retry { after: None, reason: error_chain_text(&failure) };
            }
            Err(failure) => return failed(error_chain_text(&failure)),
        };
        let goes_on = report.waiting > 0 && report.change_count() > 0 && !is_dry;
        report.is_dry = is_dry;
        if let Err(failure) = self.record_import(name, before, report, source, target) {
            return JobOutcome::Retry { after: None, reason: error_chain_text(&failure) };
        }
        match (context.is_cancelled(), goes_on) {
            (true, _) => JobOutcome::Cancelled,
            (false, true) => JobOutcome::Wait { after: Duration::ZERO },
            (false, false) => JobOutcome::Done,
        }
    }

    /// Records the result of an import pass, combined with that of its earlier passes.
    fn record_import(
        &self,
        name: &str,
        before: Option<LastMountPass>,
        mut report: MountPassReport,
        source: &str,
        target: &str,
    ) -> Result<()> {
        if let Some(before) = before.filter(|before| before.report.waiting > 0 && !report.is_dry) {
            report.added += before.report.added;
            report.bytes += before.report.bytes;
        }
        report.of = Some((source.to_owned(), target.to_owned()));
        let root = self.state.repository.head_root()?.to_string();
        let last =
            LastMountPass { start_root: root, ended_at: SystemTime::now(), report, failure: None };
        self.state.ledger.record_last_pass(name, &last)
    }
}

/// Carries out imports.
pub(crate) struct ImportHandler {
    service: MountService,
    topic: String,
}

impl ImportHandler {
    pub(crate) fn new(mounts: MountService) -> Self {
        Self { service: mounts, topic: format!("{IMPORT_TOPIC}/*") }
    }
}

impl JobHandler for ImportHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> JobOutcome {
        self.service.run_import_pass(job, context)
    }
}
