//! A repository that is open to be saved, with the files of its home.

use std::path::Path;

use tympan_backup::{
    BackupRepositorySource, DocumentView, HomeFile, SaveOptions, SaveSession, SaveSummary,
    save_repository,
};
use tympan_home::{HomeAccess, MAIN_BRANCH};
use tympan_store::RevisionRetention;

use crate::document_view::ContentDocumentView;
use crate::error::Result;
use crate::home_file::{StateDatabaseInclusion, read_home_files};
use crate::repository_source::{
    BaseCoverage, InstanceAccess, OpenRepositorySource, SeparatelySavedBase, open_source,
};

/// What is saved of a repository and its home.
#[derive(Debug, Clone, Copy)]
pub struct RepositorySaveOptions {
    /// The party that saves the data that a clone reads from its base.
    pub base_coverage: BaseCoverage,
    /// True if the snapshot gets the human-readable view of the documents.
    pub has_view: bool,
    /// Whether jobs and logins are saved.
    pub state: StateDatabaseInclusion,
    /// True if earlier revisions are saved, as far as the configuration of the home keeps them.
    pub includes_history: bool,
}

/// A repository that is open to be saved.
#[derive(Debug)]
pub struct RepositorySave {
    source: OpenRepositorySource,
    view: Option<ContentDocumentView>,
    files: Vec<HomeFile>,
    /// The earlier revisions to save.
    history: Option<RevisionRetention>,
}

impl RepositorySave {
    /// Opens the home of `repo:HOME`, or the running instance at a URL.
    ///
    /// # Errors
    /// If it is no repository, or cannot be read.
    pub fn open(
        access: &HomeAccess,
        source: &str,
        instance: &InstanceAccess,
        options: RepositorySaveOptions,
    ) -> Result<Self> {
        let source = open_source(access, source, instance, options.base_coverage)?;
        let view = if options.has_view { source.document_view() } else { None };
        let home = source.home.as_deref();
        let files = home.map(|home| read_home_files(home, options.state)).transpose()?;
        let history = match (options.includes_history, home) {
            (false, _) => None,
            (true, Some(home)) => Some(access.read_config(home)?.history.retention()),
            (true, None) => Some(RevisionRetention::default()),
        };
        Ok(Self { view, files: files.unwrap_or_default(), history, source })
    }

    /// Returns the home, if it is on this machine.
    pub fn home(&self) -> Option<&Path> {
        self.source.home.as_deref()
    }

    /// Returns the path that snapshots of the repository have.
    pub fn snapshot_path(&self) -> &str {
        &self.source.snapshot_path
    }

    /// Saves the repository, even while its instance writes it; returns `None` if nothing has changed.
    ///
    /// # Errors
    /// As [`save_repository`].
    pub fn save(
        &self,
        session: &SaveSession<'_>,
        options: &SaveOptions,
    ) -> tympan_backup::Result<Option<SaveSummary>> {
        let options = &SaveOptions { revision_retention: self.history, ..options.clone() };
        let separate_base = self.source.separate_base.as_ref();
        let source = BackupRepositorySource {
            base: &*self.source.base,
            blobs: &*self.source.blobs,
            reference: MAIN_BRANCH,
            path: &self.source.snapshot_path,
            view: self.view.as_ref().map(|view| view as &dyn DocumentView),
            base_owner: separate_base.map(SeparatelySavedBase::as_separate_base),
            files: &self.files,
        };
        save_repository(session, source, options)
    }
}
