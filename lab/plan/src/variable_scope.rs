//! The values that a text can refer to while a user runs: variables, properties, the user's identity and the time.

use std::collections::HashMap as StdHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use hashbrown::HashMap;

use super::plan_file::PlanFiles;
use super::plan_node_id::PlanNodeId;
use super::process_rotation::ProcessRotation;
use super::row_cursor::RowCursor;
use super::template::TextTemplate;
use crate::arrival_schedule::random_number;
use crate::load_portion::LoadPortion;

/// A file by its name in the plan, and true if only its rows are kept.
type FileLinesKey = (String, bool);

/// State shared by all users of a run.
#[derive(Debug, Default)]
pub struct RunContext {
    properties: Mutex<StdHashMap<String, String>>,
    counters: Mutex<StdHashMap<String, u64>>,
    seed: u64,
    user_sequence: AtomicU64,
    /// Locations of the plan's files.
    pub(crate) files: PlanFiles,
    /// Critical sections.
    pub critical_sections: super::critical_section::CriticalSections,
    /// Positions of the data sets in their files.
    cursors: Mutex<StdHashMap<String, Arc<Mutex<RowCursor>>>>,
    /// Lines of the files that functions read.
    file_lines: Mutex<StdHashMap<FileLinesKey, Arc<Vec<String>>>>,
    /// The part of the run that this process executes.
    pub portion: LoadPortion,
    /// The rotation of each data set's rows among processes, by the name of its cursor. Until it is set, this process
    /// takes every row.
    pub row_rotations: OnceLock<StdHashMap<String, ProcessRotation>>,
}

impl RunContext {
    pub(crate) fn new(properties: StdHashMap<String, String>, seed: u64, files: PlanFiles) -> Self {
        Self { properties: Mutex::new(properties), seed, files, ..Self::default() }
    }

    /// Returns the seed from which the run's random numbers derive.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn property(&self, name: &str) -> Option<String> {
        self.properties.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub(crate) fn set_property(&self, name: &str, value: &str) -> Option<String> {
        let mut properties = self.properties.lock().unwrap_or_else(PoisonError::into_inner);
        properties.insert(name.to_owned(), value.to_owned())
    }

    pub(crate) fn remove_property(&self, name: &str) {
        self.properties.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Returns the next value of a counter that all users share, starting at 1.
    pub(crate) fn next_count(&self, counter: &str) -> u64 {
        let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counters.entry(counter.to_owned()).or_default();
        *count += 1;
        self.portion.global_index(*count - 1) + 1
    }

    /// Returns the cursor of the given name, or stores `new` under that name if there is none. All data sets that read
    /// from the cursor share it.
    pub(super) fn shared_cursor(&self, name: &str, new: RowCursor) -> Arc<Mutex<RowCursor>> {
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = cursors.entry(name.to_owned()).or_insert_with(|| Arc::new(Mutex::new(new)));
        Arc::clone(cursor)
    }

    /// Returns this process's turns in the rotation of a cursor's rows.
    pub(crate) fn row_rotation(&self, cursor: &str) -> ProcessRotation {
        match self.row_rotations.get() {
            None => ProcessRotation::single_process(),
            // The name is known only while the plan runs.
            Some(rotations) => rotations
                .get(cursor)
                .cloned()
                .unwrap_or_else(|| ProcessRotation::one_row_each(self.portion)),
        }
    }

    /// Returns the lines of a file of the plan. The file is read once. If only rows are requested, empty lines and
    /// comments are left out.
    ///
    /// # Errors
    /// A message if the file cannot be read.
    pub(crate) fn file_lines(
        &self,
        name: &str,
        are_rows: bool,
    ) -> Result<Arc<Vec<String>>, String> {
        let mut cache = self.file_lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), are_rows);
        if let Some(lines) = cache.get(&key) {
            return Ok(Arc::clone(lines));
        }
        let text = self.file_text(name)?;
        let is_wanted =
            |line: &&str| !are_rows || !(line.trim().is_empty() || line.starts_with('#'));
        let lines: Arc<Vec<String>> =
            Arc::new(text.lines().filter(is_wanted).map(str::to_owned).collect());
        cache.insert(key, Arc::clone(&lines));
        Ok(lines)
    }

    /// Returns the text of a file of the plan.
    ///
    /// # Errors
    /// A message if the file cannot be read.
    pub(crate) fn file_text(&self, name: &str) -> Result<String, String> {
        let at = self.files.locate(name)?;
        let bytes = std::fs::read(&at)
            .map_err(|error| format!("cannot read `{}`: {error}", at.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_start_matches('\u{feff}').to_owned())
    }

    /// Skips the random numbers of a user that another process runs.
    pub fn skip_user_seed(&self) {
        self.user_sequence.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sampler's name.
#[derive(Debug)]
pub(super) enum SamplerName {
    Fixed(Arc<str>),
    Templated(Box<TextTemplate>),
}

/// The values that one user sees.
#[derive(Debug)]
pub struct VariableScope {
    /// The state that all users of the run share.
    pub run_context: Arc<RunContext>,
    variables: HashMap<Arc<str>, Arc<str>>,
    counters: StdHashMap<String, u64>,
    /// This user's row in each file that functions read.
    pub(crate) file_rows: StdHashMap<String, usize>,
    /// The thread's number in its group, starting at 1.
    pub thread_number: usize,
    /// The group's name.
    pub group_name: Arc<str>,
    /// Milliseconds that scripts ask the thread to sleep. The thread sleeps before its next sample.
    pub sleep_ms: u64,
    /// Distinguishes groups of the same name.
    pub group_root: PlanNodeId,
    /// `<group> <group number>-<thread number>`.
    pub thread_name: Arc<str>,
    /// Label of the sample that is running or ran last.
    pub sample_label: Arc<str>,
    /// Name of the sampler that is running.
    pub(super) sampler_name: SamplerName,
    /// Number of iterations that the group has begun.
    pub iteration: u64,
    random_state: (u64, u64),
    /// Current depth of nested text evaluations.
    pub(crate) evaluation_depth: u32,
}

impl VariableScope {
    /// Creates the scope of the next user of a run.
    pub fn new(world: Arc<RunContext>) -> Self {
        let stream = world.user_sequence.fetch_add(1, Ordering::Relaxed);
        let seed = random_number(world.seed, stream);
        Self {
            run_context: world,
            variables: HashMap::new(),
            counters: StdHashMap::new(),
            file_rows: StdHashMap::new(),
            thread_number: 1,
            group_name: "".into(),
            sleep_ms: 0,
            group_root: 0,
            thread_name: "".into(),
            sample_label: "".into(),
            sampler_name: SamplerName::Fixed("".into()),
            iteration: 0,
            random_state: (seed, 0),
            evaluation_depth: 0,
        }
    }

    /// Returns the value of a variable.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| &**value)
    }

    /// Sets a variable.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        match self.variables.get_mut(name) {
            Some(current_value) if **current_value == *value => {}
            Some(current_value) => *current_value = value.into(),
            None => drop(self.variables.insert(name.into(), value.into())),
        }
    }

    pub(crate) fn remove_variable(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Returns all variables, sorted by name.
    pub fn sorted_variables(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut all: Vec<_> = self
            .variables
            .iter()
            .map(|(name, value)| (Arc::clone(name), Arc::clone(value)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Copies the variables of another scope into this one.
    pub fn copy_variables(&mut self, from: &Self) {
        self.variables.clone_from(&from.variables);
    }

    /// Returns the next value of a counter of this user, starting at 1.
    pub(crate) fn next_count(&mut self, counter: &str) -> u64 {
        let count = self.counters.entry(counter.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Returns the next random number of this user.
    pub fn next_random(&mut self) -> u64 {
        self.random_state.1 += 1;
        random_number(self.random_state.0, self.random_state.1)
    }

    /// Returns a random number between `low` and `high`, inclusive.
    pub fn random_between(&mut self, low: i64, high: i64) -> i64 {
        if high <= low {
            return low;
        }
        let span = high.wrapping_sub(low) as u64;
        let offset =
            if span == u64::MAX { self.next_random() } else { self.next_random() % (span + 1) };
        low.wrapping_add(offset as i64)
    }

    /// Returns a random number in the range (0, 1].
    pub fn random_unit(&mut self) -> f64 {
        ((self.next_random() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Returns the current time in milliseconds since the Unix epoch.
    pub fn now_ms() -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
