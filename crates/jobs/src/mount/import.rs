//! Bulk import: the files of a place become assets, once.
//!
//! In: a source and a folder. Out: assets like uploaded ones, and a report with what was left out.
//!
//! An import is a job, and what it has done stands in the ledger under its source and folder: killed, or asked for
//! again, it goes on where it was, and a file that became an asset is not read again. Files that failed are tried anew.

use std::time::{Duration, SystemTime};

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use tympan_content::NodePath;

use super::config::target_folder;
use super::ledger::LastPass;
use super::pass::{Mount, Order, PassError, Purpose, synchronize};
use super::place;
use super::report::Report;
use super::service::Mounts;
use super::source::SourceError;
use crate::error::chain;
use crate::{Handler, Job, JobContext, JobId, NewJob, Outcome, Result};

/// The topics of imports end in their name.
pub const IMPORT_TOPIC: &str = "dam/import";

/// What is to be imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportWish {
    /// Where the files are.
    pub source: String,
    /// The folder that gets them.
    pub target: String,
    /// Whether nothing is written: the report says what would be.
    pub is_dry: bool,
    /// Who wishes it.
    pub user: String,
}

/// What is known of an import.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportStatus {
    /// Its name, made of its source and folder.
    pub name: String,
    /// Its job, if it waits or runs, or failed.
    pub job: Option<Job>,
    /// What it has done, if it got that far.
    pub last: Option<LastPass>,
}

impl ImportWish {
    /// Returns the import's name.
    #[must_use]
    pub fn name(&self) -> String {
        let hash = Sha256::digest(format!("{}\n{}", self.source, self.target));
        let hash: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("import-{hash}")
    }
}

impl Mounts {
    /// Begins an import; one of this source and folder that waits or runs is the same one. Returns its name and job, or
    /// why it is refused.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn import(
        &self,
        wish: &ImportWish,
        now: SystemTime,
    ) -> Result<Result<(String, JobId), String>> {
        let inner = &self.inner;
        if let Err(reason) = target_folder(&wish.target) {
            return Ok(Err(reason));
        }
        if !inner.settings.places.iter().any(|place| place.covers(&wish.source)) {
            return Ok(Err(format!(
                "`{}` lies in no place that `tympan.toml` allows; add a `[[mounts.place]]` with its `url`",
                wish.source
            )));
        }
        if let Err(reason) = place::open(&wish.source, &inner.settings.places, &inner.way) {
            return Ok(Err(reason));
        }
        let name = wish.name();
        let properties = json!({
            "import": name,
            "source": wish.source,
            "target": wish.target,
            "dryRun": wish.is_dry,
        });
        let job = NewJob::new(format!("{IMPORT_TOPIC}/{name}"), properties)
            .key(format!("{name} {}", wish.is_dry))
            .user(wish.user.clone());
        let id = inner.queues.add(job, now).await?;
        Ok(Ok((name, id)))
    }

    /// Returns what is known of an import.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn import_status(&self, name: &str) -> Result<ImportStatus> {
        let topic = format!("{IMPORT_TOPIC}/{name}");
        let (mut job, mut last) = (None, None);
        if crate::check_topic(&topic).is_ok() {
            job = self.inner.queues.list_topic(&topic, 1).await?.into_iter().next();
            last = self.inner.ledger.last(name).await?;
        }
        Ok(ImportStatus { name: name.to_owned(), job, last })
    }

    fn import_pass(&self, job: &Job, context: &JobContext) -> Outcome {
        let inner = &self.inner;
        let failed = |reason: String| Outcome::Failed { reason };
        let text = |name: &str| job.properties.get(name).and_then(Json::as_str).unwrap_or_default();
        let (name, source, target) = (text("import"), text("source"), text("target"));
        let is_dry = job.properties.get("dryRun") == Some(&Json::Bool(true));
        let Ok(folder) = NodePath::new(target) else {
            return failed(format!("`{target}` is no folder"));
        };
        let opened = match place::open(source, &inner.settings.places, &inner.way) {
            Ok(source) => source,
            Err(reason) => return failed(reason),
        };
        let before = match inner.ledger.last_blocking(name) {
            Ok(before) => before,
            Err(failure) => return Outcome::Retry { after: None, reason: chain(&failure) },
        };
        let mount = Mount {
            name: name.to_owned(),
            target: folder,
            source: opened,
            purpose: Purpose::Import,
            settle: Duration::ZERO,
        };
        let order = Order { now: SystemTime::now(), accepts_removals: false, is_dry };
        let mut going = |done, total| {
            context.progress(done, total, if total == 0 { "listing" } else { "reading" });
            !context.cancelled()
        };
        let made = synchronize(&inner.repository, &inner.ledger, &mount, order, &mut going);
        let mut report = match made {
            Ok(report) => report,
            Err(PassError::Source { source: SourceError::Stopped, .. }) => {
                return Outcome::Cancelled;
            }
            Err(failure) if failure.is_transient() => {
                return Outcome::Retry { after: None, reason: chain(&failure) };
            }
            Err(failure) => return failed(chain(&failure)),
        };
        let goes_on = report.waiting > 0 && report.changes() > 0 && !is_dry;
        report.is_dry = is_dry;
        if let Err(failure) = self.note_import(name, before, report, (source, target)) {
            return Outcome::Retry { after: None, reason: chain(&failure) };
        }
        match (context.cancelled(), goes_on) {
            (true, _) => Outcome::Cancelled,
            (false, true) => Outcome::Wait { after: Duration::ZERO },
            (false, false) => Outcome::Done,
        }
    }

    /// Notes what an import has done, together with what its earlier passes did.
    fn note_import(
        &self,
        name: &str,
        before: Option<LastPass>,
        mut report: Report,
        (source, target): (&str, &str),
    ) -> Result<()> {
        if let Some(before) = before.filter(|before| before.report.waiting > 0 && !report.is_dry) {
            report.added += before.report.added;
            report.bytes += before.report.bytes;
        }
        report.of = Some((source.to_owned(), target.to_owned()));
        let root = self.inner.repository.head()?.to_string();
        let last = LastPass { root, ended: SystemTime::now(), report, failure: None };
        self.inner.ledger.end(name, &last)
    }
}

/// Carries out imports.
pub(crate) struct ImportHandler {
    mounts: Mounts,
    topic: String,
}

impl ImportHandler {
    pub(crate) fn new(mounts: Mounts) -> Self {
        Self { mounts, topic: format!("{IMPORT_TOPIC}/*") }
    }
}

impl Handler for ImportHandler {
    fn topic(&self) -> &str {
        &self.topic
    }

    fn run(&self, job: &Job, context: &JobContext) -> Outcome {
        self.mounts.import_pass(job, context)
    }
}
