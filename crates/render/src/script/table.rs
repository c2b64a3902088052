//! The compiled scripts of one state of `/apps` and `/libs`.

use std::collections::HashMap;
use std::sync::Arc;

use minijinja::{Environment, Template};
use parking_lot::RwLock;
use quick_cache::sync::Cache;
use tympan_content::{ChunkId, Snapshot};

use super::index::ScriptIndex;
use super::name::Wanted;
use super::source::{ScriptSet, ScriptSource};
use crate::Result;

/// How many resolutions are remembered; selectors come from visitors, so there is no end of them.
const MAX_RESOLUTIONS: usize = 4096;

/// All scripts, compiled, with the resolutions found so far.
#[derive(Debug)]
pub(crate) struct Scripts {
    index: ScriptIndex,
    environment: Environment<'static>,
    broken: HashMap<String, Arc<minijinja::Error>>,
    resolutions: Cache<String, Option<Arc<str>>>,
}

impl Scripts {
    /// Compiles a set; a script that does not compile is kept with its error.
    pub(crate) fn compile(set: ScriptSet, mut environment: Environment<'static>) -> Self {
        let mut index = ScriptIndex::default();
        let mut broken = HashMap::new();
        for (folder, super_type) in &set.super_types {
            index.set_super_type(folder, super_type);
        }
        for (path, text) in set.scripts {
            index.add(&path);
            if let Err(error) = environment.add_template_owned(path.clone(), text) {
                broken.insert(path, Arc::new(error));
            }
        }
        Self { index, environment, broken, resolutions: Cache::new(MAX_RESOLUTIONS) }
    }

    /// Finds the script for a resource type.
    pub(crate) fn find(
        &self,
        resource_type: &str,
        super_type: Option<&str>,
        wanted: &Wanted<'_>,
    ) -> Option<Arc<str>> {
        let key = key_of(resource_type, super_type, wanted);
        if let Some(known) = self.resolutions.get(&key) {
            return known;
        }
        let found = self.index.find(resource_type, super_type, wanted).map(Arc::from);
        self.resolutions.insert(key, Option::clone(&found));
        found
    }

    /// Finds the script that draws an error.
    pub(crate) fn find_error_handler(&self, name: &str, wanted: &Wanted<'_>) -> Option<Arc<str>> {
        self.index.find_error_handler(name, wanted).map(Arc::from)
    }

    /// Returns a compiled script.
    ///
    /// # Errors
    /// The error of a script that does not compile.
    pub(crate) fn template(&self, path: &str) -> Result<Template<'_, '_>, Arc<minijinja::Error>> {
        match self.broken.get(path) {
            Some(error) => Err(Arc::clone(error)),
            None => self.environment.get_template(path).map_err(Arc::new),
        }
    }
}

/// Joins what a resolution depends on, with a separator that none of it holds.
fn key_of(resource_type: &str, super_type: Option<&str>, wanted: &Wanted<'_>) -> String {
    let mut key = String::with_capacity(resource_type.len() + 48);
    key.push_str(resource_type);
    let rest =
        [super_type.unwrap_or_default(), wanted.method, wanted.extension.unwrap_or_default()];
    for part in rest.into_iter().chain(wanted.selectors.iter().map(String::as_str)) {
        key.push('\0');
        key.push_str(part);
    }
    key
}

/// Keeps the compiled scripts until their source changes.
#[derive(Debug)]
pub(crate) struct ScriptTable {
    source: Box<dyn ScriptSource>,
    environment: Environment<'static>,
    newest: RwLock<Option<Compiled>>,
}

#[derive(Debug)]
struct Compiled {
    /// The root at which the state was last compared; nothing for sources that change without a commit.
    root: Option<ChunkId>,
    state: u64,
    scripts: Arc<Scripts>,
}

impl ScriptTable {
    pub(crate) fn new(source: Box<dyn ScriptSource>, environment: Environment<'static>) -> Self {
        Self { source, environment, newest: RwLock::new(None) }
    }

    /// Returns the source.
    pub(crate) fn source(&self) -> &dyn ScriptSource {
        &*self.source
    }

    /// Returns the scripts that belong to a snapshot, compiling them if they changed.
    pub(crate) fn at(&self, snapshot: &Snapshot) -> Result<Arc<Scripts>> {
        let root = (!self.source.is_live()).then(|| snapshot.root_id());
        if let Some(newest) = &*self.newest.read()
            && root.is_some()
            && newest.root == root
        {
            return Ok(Arc::clone(&newest.scripts));
        }
        let state = self.source.state(snapshot)?;
        let mut newest = self.newest.write();
        let scripts = match newest.as_ref().filter(|newest| newest.state == state) {
            Some(known) => Arc::clone(&known.scripts),
            None => {
                Arc::new(Scripts::compile(self.source.load(snapshot)?, self.environment.clone()))
            }
        };
        *newest = Some(Compiled { root, state, scripts: Arc::clone(&scripts) });
        Ok(scripts)
    }
}
