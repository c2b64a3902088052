//! Building the index from nothing, beside the one that answers.
//!
//! On failure: what was written is removed; whoever asked tries again later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use tympan_content::Snapshot;

use crate::error::{Error, Result};
use crate::folder::Build;
use crate::index::Shared;
use crate::status::Progress;
use crate::write::{Sink, Source};

/// A build that runs in a thread of its own.
pub(crate) struct Rebuild {
    thread: JoinHandle<Result<Option<Built>>>,
    pub(crate) watched: Arc<Watched>,
}

/// A complete build and the state that it was made of.
pub(crate) struct Built {
    pub(crate) build: Build,
    pub(crate) snapshot: Snapshot,
}

/// How far a build is.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Watched {
    pub(crate) fn progress(&self) -> Progress {
        Progress {
            done: self.done.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
        }
    }
}

impl Rebuild {
    /// Starts to build from the newest state.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<Self> {
        let watched = Arc::new(Watched::default());
        let (worker, watch) = (shared.clone(), watched.clone());
        let run = move || {
            let built = build(&worker, &watch);
            worker.wake();
            built
        };
        let thread = std::thread::Builder::new().name("search-rebuild".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Error::of_file("build", &shared.folder.dir, error))?;
        Ok(Self { thread, watched })
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets the build end early.
    pub(crate) fn cancel(&self) {
        self.watched.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits for the build; nothing if it was cancelled.
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) fn join(self) -> Result<Option<Built>> {
        let panicked = || Err(Error::Damaged("the thread that builds it panicked".to_owned()));
        self.thread.join().unwrap_or_else(|_| panicked())
    }
}

fn build(shared: &Shared, watched: &Watched) -> Result<Option<Built>> {
    let snapshot = shared.repository().snapshot()?;
    watched.total.store(snapshot.count_documents()?, Ordering::Relaxed);
    let build = shared.folder.create_build()?;
    let written = write(shared, watched, &snapshot, &build);
    let is_cancelled = watched.is_cancelled.load(Ordering::Relaxed);
    if written.is_err() || is_cancelled {
        let name = build.name.clone();
        drop(build);
        shared.folder.remove(&name);
    } else {
        return Ok(Some(Built { build, snapshot }));
    }
    written.map(|()| None)
}

fn write(shared: &Shared, watched: &Watched, snapshot: &Snapshot, build: &Build) -> Result<()> {
    let threads = shared.options.threads.max(2);
    let mut writer = build.writer(threads)?;
    let sink = Sink {
        digest: &shared.digest,
        writer: &writer,
        dir: &build.dir,
        counters: &shared.counters,
        done: Some(&watched.done),
        is_cancelled: &watched.is_cancelled,
    };
    let sources = snapshot.document_nodes().map(Source::of).filter(|source| match source {
        Ok(source) if !source.is_indexed() => {
            watched.done.fetch_add(1, Ordering::Relaxed);
            false
        }
        _ => true,
    });
    sink.write_all(sources, threads)?;
    if watched.is_cancelled.load(Ordering::Relaxed) {
        return Ok(());
    }
    build.commit(&mut writer, snapshot.root_id())?;
    writer.wait_merging_threads().map_err(|error| Error::of_index("write", &build.dir, error))
}
