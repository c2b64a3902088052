//! Which chunk store a home has.

use std::path::Path;
use std::sync::Arc;

use tympan_store::disk::FileDisk;
use tympan_store::{ByteSize, ChunkStore, LocalOptions, LocalStore};

use crate::base::Overlaid;
use crate::command::Fault;
use crate::config::Config;
use crate::home::chain;

/// The chunk store of a home, opened.
pub(crate) struct Backend {
    /// What the repository lies in.
    pub(crate) chunks: Arc<dyn ChunkStore>,
    /// The packs of this home, if the repository lies in them.
    pub(crate) local: Option<Arc<LocalStore>>,
    /// What the packs lie over, and its large blobs, if the home is a clone.
    pub(crate) base: Option<Overlaid>,
}

impl Backend {
    /// Opens what the configuration of a home names: the packs in its folder `store`.
    ///
    /// # Errors
    /// A [`Fault`] that says which process holds it, or what is damaged.
    pub(crate) fn open(dir: &Path, config: &Config) -> Result<Self, Fault> {
        let failed = |error: &dyn std::error::Error| {
            Fault::cannot_run(format!("cannot open the home `{}`: {}", dir.display(), chain(error)))
        };
        let disk = FileDisk::open(dir.join("store")).map_err(|error| failed(&error))?;
        let mut options = LocalOptions::default();
        if let Some(cache) = config.store.cache {
            options.cache = ByteSize::bytes(cache.0);
        }
        let store = LocalStore::open(Arc::new(disk), options).map_err(|error| failed(&error))?;
        let store = Arc::new(store);
        let base = crate::base::lay_over(dir, &store)?;
        let chunks: Arc<dyn ChunkStore> = match &base {
            Some((composite, _)) => composite.clone(),
            None => store.clone(),
        };
        Ok(Self { chunks, local: Some(store), base })
    }
}
