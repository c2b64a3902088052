//! What a text can refer to while a user runs: variables, properties, who and when.

use std::collections::HashMap as StdHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use hashbrown::HashMap;

use super::data::Cursor;
use super::files::Files;
use super::model::NodeId;
use super::template::Template;
use super::turns::Turns;
use crate::load::{Portion, random};

/// A file by the name that the plan calls it, and whether only its rows are kept.
type LinesOf = (String, bool);

/// What all users of a run share.
#[derive(Debug, Default)]
pub(crate) struct World {
    properties: Mutex<StdHashMap<String, String>>,
    counters: Mutex<StdHashMap<String, u64>>,
    seed: u64,
    sequence: AtomicU64,
    /// Where the plan's files are.
    pub(crate) files: Files,
    /// Critical sections.
    pub(super) sections: super::section::Sections,
    /// Where data sets stand in their files.
    cursors: Mutex<StdHashMap<String, Arc<Mutex<Cursor>>>>,
    /// Lines of files that functions read.
    lines: Mutex<StdHashMap<LinesOf, Arc<Vec<String>>>>,
    /// What of the run falls to this process.
    pub(crate) portion: Portion,
    /// Whose turn it is to take a row of a data set, by the name of its cursor; nobody else's until it is set.
    pub(crate) turns: OnceLock<StdHashMap<String, Turns>>,
}

impl World {
    pub(crate) fn new(properties: StdHashMap<String, String>, seed: u64, files: Files) -> Self {
        Self { properties: Mutex::new(properties), seed, files, ..Self::default() }
    }

    /// Returns what the run's random numbers derive from.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
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

    /// Returns the cursor of a name, which is `new` if there was none: all data sets that draw from it share it.
    pub(super) fn cursor(&self, name: &str, new: Cursor) -> Arc<Mutex<Cursor>> {
        let mut known = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = known.entry(name.to_owned()).or_insert_with(|| Arc::new(Mutex::new(new)));
        Arc::clone(cursor)
    }

    /// Returns this process's turns at the rows of a cursor.
    pub(crate) fn turns(&self, cursor: &str) -> Turns {
        match self.turns.get() {
            None => Turns::alone(),
            // A name that is known only while the plan runs.
            Some(known) => known.get(cursor).cloned().unwrap_or_else(|| Turns::even(self.portion)),
        }
    }

    /// Returns the lines of a file of the plan, which is read once; of rows without empty ones and remarks.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn lines(&self, name: &str, are_rows: bool) -> Result<Arc<Vec<String>>, String> {
        let mut known = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), are_rows);
        if let Some(lines) = known.get(&key) {
            return Ok(Arc::clone(lines));
        }
        let text = self.text(name)?;
        let is_wanted =
            |line: &&str| !are_rows || !(line.trim().is_empty() || line.starts_with('#'));
        let lines: Arc<Vec<String>> =
            Arc::new(text.lines().filter(is_wanted).map(str::to_owned).collect());
        known.insert(key, Arc::clone(&lines));
        Ok(lines)
    }

    /// Returns the text of a file of the plan.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn text(&self, name: &str) -> Result<String, String> {
        let at = self.files.locate(name)?;
        let bytes = std::fs::read(&at)
            .map_err(|error| format!("cannot read `{}`: {error}", at.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_start_matches('\u{feff}').to_owned())
    }

    /// Passes over the random numbers of a user whom another process runs.
    pub(crate) fn pass_over(&self) {
        self.sequence.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sampler's name.
#[derive(Debug)]
enum Name {
    Fixed(Arc<str>),
    Drawn(Box<Template>),
}

/// What one user sees.
#[derive(Debug)]
pub(crate) struct Scope {
    pub(crate) world: Arc<World>,
    variables: HashMap<Arc<str>, Arc<str>>,
    counters: StdHashMap<String, u64>,
    /// The row that this user has of each file that functions read.
    pub(crate) rows: StdHashMap<String, usize>,
    /// Counted from 1 in its group.
    pub(crate) thread: usize,
    /// The group's name.
    pub(crate) group: Arc<str>,
    /// Milliseconds that scripts want the thread to sleep; it does before its next sample.
    pub(crate) sleep_ms: u64,
    /// Tells groups of one name apart.
    pub(super) group_root: NodeId,
    /// `<group> <group number>-<thread number>`.
    pub(crate) thread_name: Arc<str>,
    /// The label of the sample that runs, or ran last.
    pub(crate) sampler: Arc<str>,
    /// The name of the sampler that runs.
    name: Name,
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
            rows: StdHashMap::new(),
            thread: 1,
            group: "".into(),
            sleep_ms: 0,
            group_root: 0,
            thread_name: "".into(),
            sampler: "".into(),
            name: Name::Fixed("".into()),
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
            Some(known) if **known == *value => {}
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

    /// Notes which sampler runs.
    pub(crate) fn enter_sampler(&mut self, name: &Template) {
        self.name = match name.as_literal() {
            Some(_) => Name::Fixed(name.share(self)),
            None => Name::Drawn(Box::new(name.clone())),
        };
    }

    /// Returns the name of the sampler that runs. As in JMeter each look at it evaluates it anew.
    pub(crate) fn draw_name(&mut self) -> Arc<str> {
        let template = match &mut self.name {
            Name::Fixed(name) => return Arc::clone(name),
            // A name that asks for itself finds nothing.
            Name::Drawn(template) => std::mem::take(template),
        };
        let drawn = template.draw(self).as_ref().into();
        self.name = Name::Drawn(template);
        drawn
    }

    /// Gives the sample that runs the sampler's name as it reads now.
    pub(crate) fn label_sample(&mut self) {
        self.sampler = self.draw_name();
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
