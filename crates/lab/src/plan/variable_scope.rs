//! What a text can refer to while a user runs: variables, properties, who and when.

use std::collections::HashMap as StdHashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use hashbrown::HashMap;

use super::data_set::RowCursor;
use super::model::PlanNodeId;
use super::plan_file::PlanFiles;
use super::process_rotation::ProcessRotation;
use super::template::TextTemplate;
use crate::load::{LoadPortion, random_number};

/// A file by the name that the plan calls it, and whether only its rows are kept.
type FileLinesKey = (String, bool);

/// What all users of a run share.
#[derive(Debug, Default)]
pub(crate) struct RunContext {
    properties: Mutex<StdHashMap<String, String>>,
    counters: Mutex<StdHashMap<String, u64>>,
    seed: u64,
    user_sequence: AtomicU64,
    /// Where the plan's files are.
    pub(crate) files: PlanFiles,
    /// Critical sections.
    pub(super) critical_sections: super::critical_section::CriticalSections,
    /// Where data sets stand in their files.
    cursors: Mutex<StdHashMap<String, Arc<Mutex<RowCursor>>>>,
    /// Lines of files that functions read.
    file_lines: Mutex<StdHashMap<FileLinesKey, Arc<Vec<String>>>>,
    /// What of the run falls to this process.
    pub(crate) portion: LoadPortion,
    /// Whose turn it is to take a row of a data set, by the name of its cursor; nobody else's until it is set.
    pub(crate) row_rotations: OnceLock<StdHashMap<String, ProcessRotation>>,
}

impl RunContext {
    pub(crate) fn new(properties: StdHashMap<String, String>, seed: u64, files: PlanFiles) -> Self {
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
    pub(crate) fn next_count(&self, counter: &str) -> u64 {
        let mut known = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
        let count = known.entry(counter.to_owned()).or_default();
        *count += 1;
        self.portion.global_index(*count - 1) + 1
    }

    /// Returns the cursor of a name, which is `new` if there was none: all data sets that draw from it share it.
    pub(super) fn shared_cursor(&self, name: &str, new: RowCursor) -> Arc<Mutex<RowCursor>> {
        let mut known = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = known.entry(name.to_owned()).or_insert_with(|| Arc::new(Mutex::new(new)));
        Arc::clone(cursor)
    }

    /// Returns this process's turns at the rows of a cursor.
    pub(crate) fn row_rotation(&self, cursor: &str) -> ProcessRotation {
        match self.row_rotations.get() {
            None => ProcessRotation::single_process(),
            // A name that is known only while the plan runs.
            Some(known) => known
                .get(cursor)
                .cloned()
                .unwrap_or_else(|| ProcessRotation::one_row_each(self.portion)),
        }
    }

    /// Returns the lines of a file of the plan, which is read once; of rows without empty ones and remarks.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(crate) fn file_lines(
        &self,
        name: &str,
        are_rows: bool,
    ) -> Result<Arc<Vec<String>>, String> {
        let mut known = self.file_lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), are_rows);
        if let Some(lines) = known.get(&key) {
            return Ok(Arc::clone(lines));
        }
        let text = self.file_text(name)?;
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
    pub(crate) fn file_text(&self, name: &str) -> Result<String, String> {
        let at = self.files.locate(name)?;
        let bytes = std::fs::read(&at)
            .map_err(|error| format!("cannot read `{}`: {error}", at.display()))?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_start_matches('\u{feff}').to_owned())
    }

    /// Passes over the random numbers of a user whom another process runs.
    pub(crate) fn skip_user_seed(&self) {
        self.user_sequence.fetch_add(1, Ordering::Relaxed);
    }
}

/// A sampler's name.
#[derive(Debug)]
enum SamplerName {
    Fixed(Arc<str>),
    Templated(Box<TextTemplate>),
}

/// What one user sees.
#[derive(Debug)]
pub(crate) struct VariableScope {
    pub(crate) run_context: Arc<RunContext>,
    variables: HashMap<Arc<str>, Arc<str>>,
    counters: StdHashMap<String, u64>,
    /// The row that this user has of each file that functions read.
    pub(crate) file_rows: StdHashMap<String, usize>,
    /// Counted from 1 in its group.
    pub(crate) thread_number: usize,
    /// The group's name.
    pub(crate) group_name: Arc<str>,
    /// Milliseconds that scripts want the thread to sleep; it does before its next sample.
    pub(crate) sleep_ms: u64,
    /// Tells groups of one name apart.
    pub(super) group_root: PlanNodeId,
    /// `<group> <group number>-<thread number>`.
    pub(crate) thread_name: Arc<str>,
    /// The label of the sample that runs, or ran last.
    pub(crate) sample_label: Arc<str>,
    /// The name of the sampler that runs.
    sampler_name: SamplerName,
    /// Iterations of the group begun.
    pub(crate) iteration: u64,
    random_state: (u64, u64),
    /// Evaluations of texts by texts under way.
    pub(crate) evaluation_depth: u32,
}

impl VariableScope {
    pub(crate) fn new(world: Arc<RunContext>) -> Self {
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

    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| &**value)
    }

    pub(crate) fn set_variable(&mut self, name: &str, value: &str) {
        match self.variables.get_mut(name) {
            Some(known) if **known == *value => {}
            Some(known) => *known = value.into(),
            None => drop(self.variables.insert(name.into(), value.into())),
        }
    }

    pub(crate) fn remove_variable(&mut self, name: &str) {
        self.variables.remove(name);
    }

    /// Returns all variables, in the order of their names.
    pub(crate) fn sorted_variables(&self) -> Vec<(Arc<str>, Arc<str>)> {
        let mut all: Vec<_> = self
            .variables
            .iter()
            .map(|(name, value)| (Arc::clone(name), Arc::clone(value)))
            .collect();
        all.sort_unstable();
        all
    }

    /// Notes which sampler runs.
    pub(crate) fn enter_sampler(&mut self, name: &TextTemplate) {
        self.sampler_name = match name.as_literal() {
            Some(_) => SamplerName::Fixed(name.evaluate_shared(self)),
            None => SamplerName::Templated(Box::new(name.clone())),
        };
    }

    /// Returns the name of the sampler that runs. As in JMeter each look at it evaluates it anew.
    pub(crate) fn evaluate_sampler_name(&mut self) -> Arc<str> {
        let template = match &mut self.sampler_name {
            SamplerName::Fixed(name) => return Arc::clone(name),
            // A name that asks for itself finds nothing.
            SamplerName::Templated(template) => std::mem::take(template),
        };
        let drawn = template.evaluate(self).as_ref().into();
        self.sampler_name = SamplerName::Templated(template);
        drawn
    }

    /// Gives the sample that runs the sampler's name as it reads now.
    pub(crate) fn label_sample(&mut self) {
        self.sample_label = self.evaluate_sampler_name();
    }

    /// Starts with the variables that another scope holds.
    pub(crate) fn copy_variables(&mut self, from: &Self) {
        self.variables.clone_from(&from.variables);
    }

    /// Returns the next count of a counter of this user, from 1.
    pub(crate) fn next_count(&mut self, counter: &str) -> u64 {
        let count = self.counters.entry(counter.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// Returns the next random number of this user.
    pub(crate) fn next_random(&mut self) -> u64 {
        self.random_state.1 += 1;
        random_number(self.random_state.0, self.random_state.1)
    }

    /// Returns a random number between `low` and `high`, both included.
    pub(crate) fn random_between(&mut self, low: i64, high: i64) -> i64 {
        if high <= low {
            return low;
        }
        let span = high.wrapping_sub(low) as u64;
        let offset =
            if span == u64::MAX { self.next_random() } else { self.next_random() % (span + 1) };
        low.wrapping_add(offset as i64)
    }

    /// Returns a random number above 0 and up to 1.
    pub(crate) fn random_unit(&mut self) -> f64 {
        ((self.next_random() >> 11) as f64 + 1.0) / (1u64 << 53) as f64
    }

    /// Returns milliseconds of the epoch.
    pub(crate) fn now_ms() -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}
