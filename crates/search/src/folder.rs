//! The folder of the index: builds beside each other, and a file that says which one counts.
//!
//! Everything in it can be deleted while no instance runs: it is built anew (`docs/formats/search.md`).
//!
//! Invariants
//! * The file `current` is replaced whole, after the build that it names is complete.
//! * While builds are written, the mark says so (`files`).
//! * A build that `current` does not name is left over from a crash, and removed.

use std::fs::{self, DirBuilder, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tantivy::directory::Directory;
use tantivy::indexer::IndexWriterOptions;
use tantivy::{IndexReader, IndexSettings, IndexSortByField, IndexWriter, Order, ReloadPolicy};
use tympan_content::ChunkId;

use crate::analyzer::analyzers;
use crate::budget::Weighed;
use crate::error::{Error, Result};
use crate::merge::BySize;
use crate::schema::{PATH, payload, root_of, schema};

/// The first line of `current`.
const MAGIC: &str = "tympan-search 1";
const CURRENT: &str = "current";
const PREFIX: &str = "build-";
/// Memory of one indexing thread.
const FOLLOWING_BYTES: usize = 32 << 20;
const BUILDING_BYTES: usize = 96 << 20;

/// How the files of a build are reached; tests put a failing disk in between.
pub(crate) type OpenDirectory = fn(&Path) -> tantivy::Result<Box<dyn Directory>>;

/// The folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    pub(crate) dir: PathBuf,
    pub(crate) open: OpenDirectory,
}

/// What `current` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Current {
    /// The build that counts.
    pub(crate) build: String,
    /// Under which name the follower keeps its root from being collected.
    pub(crate) holder: String,
}

/// One build, open.
pub(crate) struct Build {
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    pub(crate) index: tantivy::Index,
    pub(crate) reader: IndexReader,
}

/// What writes to a build.
pub(crate) type Writer = IndexWriter<Weighed>;

/// Makes a folder that its owner alone may look into, whatever the process's mask of modes.
fn create_closed(dir: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

impl Folder {
    /// Makes the folder if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new(dir: &Path, open: OpenDirectory) -> Result<Self> {
        create_closed(dir).map_err(|error| Error::of_file("make", dir, error))?;
        // An earlier version let everybody look in. It holds the words of pages that not everybody may read.
        fs::set_permissions(dir, Permissions::from_mode(0o700))
            .map_err(|error| Error::of_file("close", dir, error))?;
        Ok(Self { dir: dir.to_owned(), open })
    }

    /// Reads which build counts; nothing if there is none.
    pub(crate) fn current(&self) -> Option<Current> {
        let text = fs::read_to_string(self.dir.join(CURRENT)).ok()?;
        let mut lines = text.lines();
        let (magic, build, holder) = (lines.next()?, lines.next()?, lines.next()?);
        let is_build =
            build.strip_prefix(PREFIX).is_some_and(|number| number.parse::<u64>().is_ok());
        (magic == MAGIC && is_build && !holder.is_empty())
            .then(|| Current { build: build.to_owned(), holder: holder.to_owned() })
    }

    /// Makes a complete build the one that counts.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn switch(&self, current: &Current) -> Result<()> {
        let write = || -> std::io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.dir)?;
            writeln!(file, "{MAGIC}\n{}\n{}", current.build, current.holder)?;
            file.as_file().sync_all()?;
            file.persist(self.dir.join(CURRENT))?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| Error::of_file("write", &self.dir, error))
    }

    /// Opens a build, with the root that it answers for.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is incomplete or of another format.
    pub(crate) fn open_build(&self, name: &str) -> Result<(Build, ChunkId)> {
        let dir = self.dir.join(name);
        let damaged = |reason: String| Error::Damaged(reason);
        let directory = (self.open)(&dir).map_err(|error| damaged(error.to_string()))?;
        let index = tantivy::Index::open(directory).map_err(|error| damaged(error.to_string()))?;
        if index.schema() != schema().0 {
            return Err(damaged("it has other fields".to_owned()));
        }
        let metas = index.load_metas().map_err(|error| damaged(error.to_string()))?;
        let root = metas.payload.as_deref().and_then(root_of);
        let root = root.ok_or_else(|| damaged("it is of another format".to_owned()))?;
        Ok((Build::new(name, dir, index)?, root))
    }

    /// Makes an empty build.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn create_build(&self) -> Result<Build> {
        let number = self.builds().iter().filter_map(|name| number_of(name)).max().unwrap_or(0) + 1;
        let name = format!("{PREFIX}{number}");
        let dir = self.dir.join(&name);
        create_closed(&dir).map_err(|error| Error::of_file("make", &dir, error))?;
        let create = || {
            let directory = (self.open)(&dir)?;
            tantivy::Index::create(directory, schema().0, settings())
        };
        let index = create().map_err(|error| Error::of_index("make", &dir, error))?;
        Build::new(&name, dir.clone(), index)
    }

    /// Removes a build. What is left of it, if that fails, is removed at the next start.
    pub(crate) fn remove(&self, name: &str) {
        if let Err(error) = fs::remove_dir_all(self.dir.join(name)) {
            tracing::debug!(file = %name, %error, "build of the full-text index not removed");
        }
    }

    /// Removes what crashes left: every build but the one that counts.
    pub(crate) fn clean(&self) {
        let current = self.current().map(|current| current.build);
        for name in self.builds() {
            if Some(&name) != current.as_ref() {
                self.remove(&name);
            }
        }
    }

    fn builds(&self) -> Vec<String> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        names.filter(|name| number_of(name).is_some()).collect()
    }
}

/// Returns how documents are kept: sorted by path, so that of equal hits the first ones are found first, and whoever
/// wants no more looks no further.
fn settings() -> IndexSettings {
    IndexSettings {
        sort_by_field: Some(IndexSortByField { field: PATH.to_owned(), order: Order::Asc }),
        docstore_compress_dedicated_thread: false,
        ..IndexSettings::default()
    }
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.parse().ok()
}

impl Build {
    fn new(name: &str, dir: PathBuf, mut index: tantivy::Index) -> Result<Self> {
        index.set_tokenizers(analyzers());
        index.set_fast_field_tokenizers(analyzers());
        let reader = index.reader_builder().reload_policy(ReloadPolicy::Manual).try_into();
        let reader = reader.map_err(|error| Error::of_index("open", &dir, error))?;
        Ok(Self { name: name.to_owned(), dir, index, reader })
    }

    /// Tells whether the files are still there: whoever has them open reads on, but cannot write.
    pub(crate) fn is_there(&self) -> bool {
        self.dir.join("meta.json").exists()
    }

    /// Begins to write: with one thread to follow, with several to build.
    ///
    /// # Errors
    /// If another process writes, or the disk does not let it.
    pub(crate) fn writer(&self, threads: usize) -> Result<Writer> {
        let memory = if threads == 1 { FOLLOWING_BYTES } else { BUILDING_BYTES };
        let options = IndexWriterOptions::builder()
            .num_worker_threads(threads)
            .memory_budget_per_thread(memory)
            .num_merge_threads(threads.min(2))
            .build();
        let writer: tantivy::Result<Writer> = self.index.writer_with_options(options);
        let writer = writer.map_err(|error| Error::of_index("write", &self.dir, error))?;
        writer.set_merge_policy(Box::new(BySize));
        Ok(writer)
    }

    /// Commits what was written, together with the root that it answers for, and shows it to searches.
    ///
    /// # Errors
    /// If the disk does not let it; nothing is committed then.
    pub(crate) fn commit(&self, writer: &mut Writer, root: ChunkId) -> Result<()> {
        let mut commit = || {
            let mut prepared = writer.prepare_commit()?;
            prepared.set_payload(&payload(root));
            prepared.commit()?;
            self.reader.reload()
        };
        commit().map_err(|error| Error::of_index("write", &self.dir, error))
    }
}

impl std::fmt::Debug for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Build({})", self.name)
    }
}
