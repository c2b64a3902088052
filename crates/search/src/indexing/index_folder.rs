//! The folder of the index: the builds, and a file that names the current one.
//!
//! Everything in it can be deleted while no instance runs; the index is then rebuilt (`docs/formats/search.md`).
//!
//! Invariants
//! * The file `current` is replaced atomically, after the build that it names is complete.
//! * A mark exists while builds are written (`unsynced_directory`).
//! * A build that `current` does not name is left over from a crash, and is removed.

use std::fs::{self, DirBuilder, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tantivy::directory::Directory;
use tantivy::indexer::IndexWriterOptions;
use tantivy::{IndexReader, IndexSettings, IndexSortByField, IndexWriter, Order, ReloadPolicy};
use tympan_content::ChunkId;

use crate::analyzer::build_analyzers;
use crate::error::{Error, Result};
use crate::indexing::memory_budget::BudgetedDocument;
use crate::indexing::merge_policy::SizeTieredMergePolicy;
use crate::indexing::schema::{
    PATH_FIELD, build_schema, encode_commit_payload, parse_commit_payload,
};

/// The first line of `current`.
const CURRENT_FILE_MAGIC: &str = "tympan-search 1";
const CURRENT_FILE: &str = "current";
const BUILD_PREFIX: &str = "build-";
/// The memory of one indexing thread, in bytes.
const FOLLOWER_MEMORY_BYTES: usize = 32 << 20;
const REBUILD_MEMORY_BYTES: usize = 96 << 20;

/// Opens the files of a build; tests substitute a failing disk.
pub(crate) type OpenDirectoryFn = fn(&Path) -> tantivy::Result<Box<dyn Directory>>;

/// The folder of the index.
#[derive(Debug, Clone)]
pub(crate) struct SearchIndexFolder {
    pub(crate) dir: PathBuf,
    open_directory: OpenDirectoryFn,
}

/// The content of `current`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CurrentBuild {
    /// The name of the current build.
    pub(crate) build_name: String,
    /// The name of the lease holder that protects the root of the follower from collection.
    pub(crate) lease_holder: String,
}

/// An open build.
pub(crate) struct SearchIndexBuild {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) index: tantivy::Index,
    pub(crate) reader: IndexReader,
}

/// The writer of a build.
pub(crate) type SearchIndexWriter = IndexWriter<BudgetedDocument>;

/// Creates a folder that only its owner may access, regardless of the process's umask.
fn create_private_dir(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl SearchIndexFolder {
    /// Opens the folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn new(dir: &Path, open: OpenDirectoryFn) -> Result<Self> {
        create_private_dir(dir).map_err(|error| Error::file_access("make", dir, error))?;
        // An earlier version created the folder with access for all users. It holds words of pages that not every user
        // may read.
        fs::set_permissions(dir, Permissions::from_mode(0o700))
            .map_err(|error| Error::file_access("close", dir, error))?;
        Ok(Self { dir: dir.to_owned(), open_directory: open })
    }

    /// Reads the name of the current build; `None` if there is none.
    pub(crate) fn read_current(&self) -> Option<CurrentBuild> {
        let text = fs::read_to_string(self.dir.join(CURRENT_FILE)).ok()?;
        let mut lines = text.lines();
        let (magic, build, holder) = (lines.next()?, lines.next()?, lines.next()?);
        let is_build =
            build.strip_prefix(BUILD_PREFIX).is_some_and(|number| number.parse::<u64>().is_ok());
        (magic == CURRENT_FILE_MAGIC && is_build && !holder.is_empty())
            .then(|| CurrentBuild { build_name: build.to_owned(), lease_holder: holder.to_owned() })
    }

    /// Makes a complete build the current one.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn switch_current(&self, current: &CurrentBuild) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
            writeln!(
                file,
                "{CURRENT_FILE_MAGIC}\n{}\n{}",
                current.build_name, current.lease_holder
            )?;
            file.as_file().sync_all()?;
            file.persist(self.dir.join(CURRENT_FILE))?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| Error::file_access("write", &self.dir, error))
    }

    /// Opens a build; also returns the root for which it was built.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is incomplete or of another format.
    pub(crate) fn open_build(&self, name: &str) -> Result<(SearchIndexBuild, ChunkId)> {
        let dir = self.dir.join(name);
        let damaged = |reason: String| Error::Damaged(reason);
        let directory = (self.open_directory)(&dir).map_err(|error| damaged(error.to_string()))?;
        let index = tantivy::Index::open(directory).map_err(|error| damaged(error.to_string()))?;
        if index.schema() != build_schema().0 {
            return Err(damaged("its fields differ".to_owned()));
        }
        let metas = index.load_metas().map_err(|error| damaged(error.to_string()))?;
        let root = metas.payload.as_deref().and_then(parse_commit_payload);
        let root = root.ok_or_else(|| damaged("it has a different format".to_owned()))?;
        Ok((SearchIndexBuild::new(name, dir, index)?, root))
    }

    /// Creates an empty build.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn create_build(&self) -> Result<SearchIndexBuild> {
        let number =
            self.list_builds().iter().filter_map(|name| build_number(name)).max().unwrap_or(0) + 1;
        let name = format!("{BUILD_PREFIX}{number}");
        let dir = self.dir.join(&name);
        create_private_dir(&dir).map_err(|error| Error::file_access("make", &dir, error))?;
        let create = || {
            let directory = (self.open_directory)(&dir)?;
            tantivy::Index::create(directory, build_schema().0, index_settings())
        };
        let index = create().map_err(|error| Error::index_access("make", &dir, error))?;
        SearchIndexBuild::new(&name, dir.clone(), index)
    }

    /// Removes a build. If that fails, the rest is removed at the next start.
    pub(crate) fn remove_build(&self, name: &str) {
        if let Err(error) = fs::remove_dir_all(self.dir.join(name)) {
            tracing::debug!(file = %name, %error, "cannot remove a build of the full-text index");
        }
    }

    /// Removes builds left over from crashes: all except the current one.
    pub(crate) fn remove_stale_builds(&self) {
        let current = self.read_current().map(|current| current.build_name);
        for name in self.list_builds() {
            if Some(&name) != current.as_ref() {
                self.remove_build(&name);
            }
        }
    }

    fn list_builds(&self) -> Vec<String> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        names.filter(|name| build_number(name).is_some()).collect()
    }
}

/// Returns the settings of the index: documents are sorted by path, so that among equal hits the first ones are found
/// first, and a limited search can stop early.
fn index_settings() -> IndexSettings {
    IndexSettings {
        sort_by_field: Some(IndexSortByField { field: PATH_FIELD.to_owned(), order: Order::Asc }),
        docstore_compress_dedicated_thread: false,
        ..IndexSettings::default()
    }
}

fn build_number(name: &str) -> Option<u64> {
    name.strip_prefix(BUILD_PREFIX)?.parse().ok()
}

impl SearchIndexBuild {
    fn new(name: &str, dir: PathBuf, mut index: tantivy::Index) -> Result<Self> {
        index.set_tokenizers(build_analyzers());
        index.set_fast_field_tokenizers(build_analyzers());
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into();
        let reader = reader.map_err(|error| Error::index_access("open", &dir, error))?;
        Ok(Self { name: name.to_owned(), dir, index, reader })
    }

    /// Returns true if the files still exist. After they are deleted, open files stay readable, but writing fails.
    pub(crate) fn exists(&self) -> bool {
        self.dir.join("meta.json").exists()
    }

    /// Opens a writer: with one thread for following, with several for building.
    ///
    /// # Errors
    /// If another process has a writer, or the disk fails.
    pub(crate) fn open_writer(&self, threads: usize) -> Result<SearchIndexWriter> {
        let memory = if threads == 1 { FOLLOWER_MEMORY_BYTES } else { REBUILD_MEMORY_BYTES };
        let options = IndexWriterOptions::builder()
            .num_worker_threads(threads)
            .memory_budget_per_thread(memory)
            .num_merge_threads(threads.min(2))
            .build();
        let writer: tantivy::Result<SearchIndexWriter> = self.index.writer_with_options(options);
        let writer = writer.map_err(|error| Error::index_access("write", &self.dir, error))?;
        writer.set_merge_policy(Box::new(SizeTieredMergePolicy));
        Ok(writer)
    }

    /// Commits the written documents together with the root for which they were written, and makes them visible to
    /// searches.
    ///
    /// # Errors
    /// If the disk fails; nothing is committed then.
    pub(crate) fn commit(&self, writer: &mut SearchIndexWriter, root: ChunkId) -> Result<()> {
        let mut commit = || {
            let mut prepared = writer.prepare_commit()?;
            prepared.set_payload(&encode_commit_payload(root));
            prepared.commit()?;
            self.reader.reload()
        };
        commit().map_err(|error| Error::index_access("write", &self.dir, error))
    }
}

impl std::fmt::Debug for SearchIndexBuild {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Build({})", self.name)
    }
}
