//! What a text can refer to while a user runs: variables, properties, who and when.

use std::collections::HashMap as StdHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use hashbrown::HashMap;

use crate::load::{Portion, random};

/// What all users of a run share.
#[derive(Debug, Default)]
pub(crate) struct World {
    properties: Mutex<StdHashMap<String, String>>,
    counters: Mutex<StdHashMap<String, u64>>,
    seed: u64,
    sequence: AtomicU64,
    /// The folder that relative file names start from.
    pub(crate) folder: std::path::PathBuf,
    /// What of the run falls to this process.
    pub(crate) portion: Portion,
    /// What of the rows of data sets does.
    pub(crate) rows: Portion,
    /// Where the plan's files are if they came from another machine; no other file is read then.
    pub(crate) files: Option<StdHashMap<String, std::path::PathBuf>>,
}

impl World {
    pub(crate) fn new(
        properties: StdHashMap<String, String>,
        seed: u64,
        folder: std::path::PathBuf,
    ) -> Self {
        Self { properties: Mutex::new(properties), seed, folder, ..Self::default() }
    }

    pub(crate) fn property(&self, name: &str) -> Option<String> {
        self.properties.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn set_property(&self, name: &str, value: &str) -> Option<String> {
        let mut known = self.properties.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(name.to_owned(), value.to_owned())
    }

    pub(crate) fn remove_property(&self, name: &str) {
        self.properties.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Returns the next count of a counter that all users share, from 1.
    pub(crate) fn count(&self, counter: &str) -> u64 {
        let mut known = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = known.entry(counter.to_owned()).or_default();
        *count += 1;
        self.portion.place(*count - 1) + 1
    }

    /// Returns where the file that a plan calls `name` is.
    ///
    /// # Errors
    /// What to say if it is none that this process may read.
    pub(crate) fn locate(&self, name: &str) -> Result<std::path::PathBuf, String> {
        match &self.files {
            None => Ok(self.folder.join(name)),
            Some(files) => files.get(name.trim()).cloned().ok_or_else(|| {
                format!("`{name}` was not sent to this agent: its name is known only while the plan runs")
            }),
        }
    }

    /// Passes over the random numbers of a user whom another process runs.
    pub(crate) fn pass_over(&self) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
    }
}

/// What one user sees.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) world: Arc<World>,
    variables: HashMap<Arc<str>, Arc<str>>,
    counters: StdHashMap<String, u64>,
    /// Counted from 1 in its group.
    pub(crate) thread: usize,
    /// The group's name.
    pub(crate) group: Arc<str>,
    /// `<group> <group number>-<thread number>`.
    pub(crate) thread_name: Arc<str>,
    /// The name of the sampler that runs.
    pub(crate) sampler: Arc<str>,
    /// Iterations of the group begun.
    pub(crate) iteration: u64,
    random: (u64, u64),
    /// Evaluations of texts by texts under way.
    pub(crate) depth: u32,
}

impl Scope {
    pub(crate) fn new(world: Arc<World>) -> Self {
        let stream = world.sequence.fetch_add(1, Ordering::Relaxed);
        let seed = random(world.seed, stream);
        Self {
            world,
            variables: HashMap::new(),
            counters: StdHashMap::new(),
            thread: 1,
            group: "".into(),
            thread_name: "".into(),
            sampler: "".into(),
            iteration: 0,
            random: (seed, 0),
            depth: 0,
        }
    }

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| &**value)
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        match self.variables.get_mut(name) {
            Some(known) => *known = value.into(),
            None => drop(self.variables.insert(name.into(), value.into())),
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Returns all variables, in the order of their names.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut all: Vec<_> = self
            .variables
            .iter()
            .map(|(name, value)| (Arc::clone(name), Arc::clone(value)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Starts with the variables that another scope holds.
    pub(crate) fn copy_variables(&mut self, from: &Self) {
        self.variables.clone_from(&from.variables);
    }

    /// Returns the next count of a counter of this user, from 1.
    pub(crate) fn count(&mut self, counter: &str) -> u64 {
        let count = self.counters.entry(counter.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Returns the next random number of this user.
    pub(crate) fn random(&mut self) -> u64 {
        self.random.1 += 1;
        random(self.random.0, self.random.1)
    }

    /// Returns a random number between `low` and `high`, both included.
    pub(crate) fn random_between(&mut self, low: i64, high: i64) -> i64 {
        if high <= low {
            return low;
        }
        let span = high.wrapping_sub(low) as u64;
        let offset = if span == u64::MAX { self.random() } else { self.random() % (span + 1) };
        low.wrapping_add(offset as i64)
    }

    /// Returns a random number above 0 and up to 1.
    pub(crate) fn random_unit(&mut self) -> f64 {
        ((self.random() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Returns milliseconds of the epoch.
    pub(crate) fn now_ms() -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
