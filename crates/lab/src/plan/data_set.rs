//! CSV data sets: rows shared by all threads, a group, or one thread, in the order of the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::charset::JavaCharset;
use super::process_rotation::ProcessRotation;
use super::template::TextTemplate;
use super::variable_scope::VariableScope;
use crate::load::random_number;
use crate::measurement::jtl::{read_csv_record, split_csv_record};

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
pub(super) struct DataSet {
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
pub(super) enum RowFetch {
    /// The variables are set.
    Row,
    /// The data is exhausted, so the thread ends.
    Exhausted,
    /// The file cannot be read.
    Failed(String),
}

/// The read position in a file.
#[derive(Debug)]
pub(super) struct RowCursor {
    path: PathBuf,
    is_quoted: bool,
    charset: JavaCharset,
    skips_header: bool,
    /// The order of the rows, if it is not that of the file.
    shuffled_rows: Option<ShuffledRows>,
    reader: Option<BufReader<File>>,
    /// The last row read.
    current_row: Vec<u8>,
    rows_read: u64,
    /// The selection of rows for this process.
    rotation: ProcessRotation,
}

/// Rows in random order.
#[derive(Debug, Default)]
struct ShuffledRows {
    seed: u64,
    /// Number of random numbers used.
    random_count: u64,
    rows: Vec<Vec<u8>>,
    next_index: usize,
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
    pub(super) fn fetch_row(&self, scope: &mut VariableScope) -> RowFetch {
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
    pub(super) fn cursor_key(&self, scope: &mut VariableScope) -> (String, String) {
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
        let mut cursor = RowCursor {
            path: scope.run_context.files.locate(&file)?,
            is_quoted: self.is_quoted,
            charset: self.charset,
            skips_header: self.skips_header || names.is_empty(),
            shuffled_rows: None,
            reader: None,
            current_row: Vec::new(),
            rows_read: 0,
            // A thread's own rows are not divided between processes.
            rotation: match self.sharing {
                RowSharing::Thread => ProcessRotation::single_process(),
                RowSharing::All | RowSharing::Group | RowSharing::Named(_) => {
                    scope.run_context.row_rotation(&key)
                }
            },
        };
        let trimmed = |name: &str| name.trim().to_owned();
        let names: Vec<String> = if names.is_empty() {
            cursor.open_file()?;
            let first = if cursor.read_row()? { cursor.row_values(delimiter) } else { Vec::new() };
            cursor.reader = None;
            first.iter().map(|name| trimmed(name)).collect()
        } else {
            names.split(',').map(trimmed).collect()
        };
        if self.is_random {
            // All processes that share the rows have them in the same order.
            cursor.shuffled_rows =
                Some(ShuffledRows { seed: scope.run_context.seed(), ..ShuffledRows::default() });
        }
        let cursor = scope.run_context.shared_cursor(&key, cursor);
        let columns = Arc::new(DataSetColumns { names, delimiter, cursor });
        columns_by_key.insert(key, Arc::clone(&columns));
        Ok(columns)
    }
}

impl RowCursor {
    fn open_file(&mut self) -> Result<(), String> {
        let file = File::open(&self.path)
            .map_err(|error| format!("cannot read `{}`: {error}", self.path.display()))?;
        self.reader = Some(BufReader::new(file));
        self.rows_read = 0;
        Ok(())
    }

    /// Reads the next row assigned to this process and skips those of others; returns false if there is none.
    fn next_assigned_row(&mut self, recycles: bool) -> Result<bool, String> {
        let Some(between) = self.rotation.rows_before_next() else { return Ok(false) };
        for _ in 0..between {
            if !self.next_row(recycles)? {
                return Ok(false);
            }
        }
        self.next_row(recycles)
    }

    /// Seeks to the first row.
    fn seek_first_row(&mut self) -> Result<(), String> {
        // While the file is read, rows come from the file.
        let deck = self.shuffled_rows.take();
        self.open_file()?;
        if self.skips_header {
            self.read_row()?;
        }
        let Some(mut deck) = deck else { return Ok(()) };
        deck.rows.clear();
        while self.read_row()? {
            deck.rows.push(self.current_row.clone());
        }
        deck.shuffle();
        self.shuffled_rows = Some(deck);
        Ok(())
    }

    fn next_row(&mut self, recycles: bool) -> Result<bool, String> {
        if self.reader.is_none() {
            self.seek_first_row()?;
        }
        if self.read_row()? {
            self.rows_read += 1;
            return Ok(true);
        }
        // An empty file would be reread without end.
        if !recycles || self.rows_read == 0 {
            return Ok(false);
        }
        self.seek_first_row()?;
        let is_row = self.read_row()?;
        self.rows_read += u64::from(is_row);
        Ok(is_row)
    }

    /// Reads the next row that is not empty; returns false at the end of the file.
    fn read_row(&mut self) -> Result<bool, String> {
        if let Some(deck) = &mut self.shuffled_rows {
            let Some(row) = deck.rows.get(deck.next_index) else { return Ok(false) };
            self.current_row.clone_from(row);
            deck.next_index += 1;
            return Ok(true);
        }
        let Some(input) = &mut self.reader else { return Ok(false) };
        loop {
            let outcome = if self.is_quoted {
                read_csv_record(input, &mut self.current_row)
            } else {
                read_line(input, &mut self.current_row)
            };
            match outcome {
                Ok(true) if self.current_row.is_empty() => {}
                Ok(is_row) => return Ok(is_row),
                Err(error) => {
                    return Err(format!("cannot read `{}`: {error}", self.path.display()));
                }
            }
        }
    }

    /// Returns the last row as text; files may begin with a byte order mark.
    fn row_text(&self) -> Cow<'_, str> {
        let text =
            self.current_row.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&self.current_row);
        self.charset.decode(text)
    }

    /// Returns the values of the last row.
    fn row_values(&self, delimiter: char) -> Vec<String> {
        let line = self.row_text();
        if self.is_quoted {
            let values = split_csv_record(&line, delimiter).into_iter();
            values.map(Cow::into_owned).collect()
        } else {
            line.split(delimiter).map(str::to_owned).collect()
        }
    }
}

impl DataSetColumns {
    /// Sets a user's variables from a cursor's last row.
    fn set_variables(&self, cursor: &RowCursor, fills_up: bool, scope: &mut VariableScope) {
        let default = fills_up.then_some("");
        if cursor.is_quoted {
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

impl ShuffledRows {
    fn shuffle(&mut self) {
        self.next_index = 0;
        for at in (1..self.rows.len()).rev() {
            let swap_index = random_number(self.seed, self.random_count) % (at as u64 + 1);
            self.random_count += 1;
            self.rows.swap(at, usize::try_from(swap_index).unwrap_or(0));
        }
    }
}

fn read_line(input: &mut BufReader<File>, text: &mut Vec<u8>) -> std::io::Result<bool> {
    use std::io::BufRead as _;
    text.clear();
    let length = input.read_until(b'\n', text)?;
    while matches!(text.last(), Some(b'\n' | b'\r')) {
        text.pop();
    }
    Ok(length > 0)
}
