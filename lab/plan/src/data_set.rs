//! CSV data sets: rows shared by all threads, a group, or one thread, in the order of the file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::charset::JavaCharset;
use super::process_rotation::ProcessRotation;
use super::row_cursor::RowCursor;
use super::template::TextTemplate;
use super::variable_scope::VariableScope;

/// The threads that share one cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowSharing {
    /// All threads of the run.
    All,
    /// The threads of a group.
    Group,
    /// Each thread has its own.
    Thread,
    /// All data sets with the same sharing name.
    Named(String),
}

/// A data set of a plan.
#[derive(Debug)]
pub struct DataSet {
    pub(super) file_name: TextTemplate,
    /// If empty, the first line contains the names.
    pub(super) column_names: TextTemplate,
    pub(super) delimiter: TextTemplate,
    pub(super) is_quoted: bool,
    pub(super) charset: JavaCharset,
    /// Sets missing columns of a short row to empty; otherwise they keep their values, as in JMeter.
    pub(super) clears_missing: bool,
    /// Returns rows in random order, each once before any repeats.
    pub(super) is_random: bool,
    pub(super) skips_header: bool,
    pub(super) recycles: bool,
    pub(super) stops_thread: bool,
    pub(super) sharing: RowSharing,
    columns_by_key: Mutex<HashMap<String, Arc<DataSetColumns>>>,
    /// The only columns, if the file name is constant and all threads share it.
    shared_columns: Mutex<Option<Arc<DataSetColumns>>>,
}

/// A data set's view of a cursor: data sets that read one file share its rows, regardless of their column names.
#[derive(Debug)]
struct DataSetColumns {
    names: Vec<String>,
    delimiter: char,
    cursor: Arc<Mutex<RowCursor>>,
}

/// The result of fetching a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowFetch {
    /// The variables are set.
    Row,
    /// The data is exhausted, so the thread ends.
    Exhausted,
    /// The file cannot be read.
    Failed(String),
}

impl DataSet {
    /// Returns a data set with JMeter's defaults.
    pub(super) fn new(file: TextTemplate, names: TextTemplate, delimiter: TextTemplate) -> Self {
        Self {
            file_name: file,
            column_names: names,
            delimiter,
            is_quoted: false,
            charset: JavaCharset::default(),
            clears_missing: false,
            is_random: false,
            skips_header: false,
            recycles: true,
            stops_thread: false,
            sharing: RowSharing::All,
            columns_by_key: Mutex::default(),
            shared_columns: Mutex::default(),
        }
    }

    /// Discards the cursors of an earlier run.
    pub(super) fn rewind(&self) {
        self.columns_by_key.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.shared_columns.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Fetches the next row for a user.
    pub fn fetch_row(&self, scope: &mut VariableScope) -> RowFetch {
        let is_only = self.sharing == RowSharing::All && self.file_name.as_literal().is_some();
        let columns =
            if is_only { self.resolve_shared_columns(scope) } else { self.resolve_columns(scope) };
        let columns = match columns {
            Ok(columns) => columns,
            Err(fault) => return RowFetch::Failed(fault),
        };
        let mut cursor = columns.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        match cursor.next_assigned_row(self.recycles) {
            Ok(true) => {
                columns.set_variables(&cursor, self.clears_missing, scope);
                RowFetch::Row
            }
            Ok(false) if self.stops_thread => RowFetch::Exhausted,
            Ok(false) => {
                for name in &columns.names {
                    scope.set_variable(name, "<EOF>");
                }
                RowFetch::Row
            }
            Err(fault) => RowFetch::Failed(fault),
        }
    }

    fn resolve_shared_columns(
        &self,
        scope: &mut VariableScope,
    ) -> Result<Arc<DataSetColumns>, String> {
        let mut only = self.shared_columns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(columns) = &*only {
            return Ok(Arc::clone(columns));
        }
        let columns = self.resolve_columns(scope)?;
        *only = Some(Arc::clone(&columns));
        Ok(columns)
    }

    /// Returns the file name, and the key of the user's cursor.
    pub fn cursor_key(&self, scope: &mut VariableScope) -> (String, String) {
        let file = self.file_name.evaluate(scope).trim().to_owned();
        let key = match &self.sharing {
            RowSharing::All => file.clone(),
            RowSharing::Group => format!("{file}@{} {}", scope.group_root, scope.group_name),
            RowSharing::Thread => format!("{file}@{}", scope.thread_name),
            RowSharing::Named(group_name) => format!("{file}@={group_name}"),
        };
        // Cursors in random order are separate from those in file order.
        let key = if self.is_random { format!("{key}@random") } else { key };
        (file, key)
    }

    fn resolve_columns(&self, scope: &mut VariableScope) -> Result<Arc<DataSetColumns>, String> {
        let (file, key) = self.cursor_key(scope);
        let mut columns_by_key = self.columns_by_key.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(columns) = columns_by_key.get(&key) {
            return Ok(Arc::clone(columns));
        }
        let delimiter = match self.delimiter.evaluate(scope).as_ref() {
            "" => ',',
            "\\t" => '\t',
            text => text.chars().next().unwrap_or(','),
        };
        let names = self.column_names.evaluate(scope).trim().to_owned();
        let path = scope.run_context.files.locate(&file)?;
        // A thread's own rows are not divided between processes.
        let rotation = match self.sharing {
            RowSharing::Thread => ProcessRotation::single_process(),
            RowSharing::All | RowSharing::Group | RowSharing::Named(_) => {
                scope.run_context.row_rotation(&key)
            }
        };
        let mut cursor = RowCursor::new(
            path,
            (self.is_quoted, self.charset),
            self.skips_header || names.is_empty(),
            rotation,
        );
        let trimmed = |name: &str| name.trim().to_owned();
        let names: Vec<String> = if names.is_empty() {
            let first = cursor.read_header(delimiter)?;
            first.iter().map(|name| trimmed(name)).collect()
        } else {
            names.split(',').map(trimmed).collect()
        };
        if self.is_random {
            // All processes that share the rows have them in the same order.
            cursor.shuffle_rows(scope.run_context.seed());
        }
        let cursor = scope.run_context.shared_cursor(&key, cursor);
        let columns = Arc::new(DataSetColumns { names, delimiter, cursor });
        columns_by_key.insert(key, Arc::clone(&columns));
        Ok(columns)
    }
}

impl DataSetColumns {
    /// Sets a user's variables from a cursor's last row.
    fn set_variables(&self, cursor: &RowCursor, fills_up: bool, scope: &mut VariableScope) {
        let default = fills_up.then_some("");
        if cursor.is_quoted() {
            let values = cursor.row_values(self.delimiter);
            for (column, name) in self.names.iter().enumerate() {
                let Some(value) = values.get(column).map(String::as_str).or(default) else {
                    return;
                };
                scope.set_variable(name, value);
            }
            return;
        }
        let line = cursor.row_text();
        let mut values = line.split(self.delimiter);
        for name in &self.names {
            let Some(value) = values.next().or(default) else { return };
            scope.set_variable(name, value);
        }
    }
}
