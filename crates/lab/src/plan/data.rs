//! CSV data sets: rows shared by all threads, a group, or one thread, in the order of the file.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::scope::Scope;
use super::template::Template;
use crate::load::Portion;
use crate::record::jtl::{read_record, split_record};

/// Who draws from one cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Share {
    /// All threads of the run.
    All,
    /// The threads of a group.
    Group,
    /// Each thread for itself.
    Thread,
    /// All data sets that give the same word.
    Named(String),
}

/// A data set of a plan.
#[derive(Debug)]
pub(super) struct DataSet {
    pub(super) file: Template,
    /// Empty: the first line names them.
    pub(super) names: Template,
    pub(super) delimiter: Template,
    pub(super) is_quoted: bool,
    pub(super) skips_first: bool,
    pub(super) recycles: bool,
    pub(super) stops_thread: bool,
    pub(super) share: Share,
    cursors: Mutex<HashMap<String, Arc<Mutex<Cursor>>>>,
}

/// What a thread got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Drawn {
    /// Variables are set.
    Row,
    /// The data is used up, and so is the thread.
    Stop,
    /// The file cannot be read.
    Broken(String),
}

#[derive(Debug)]
struct Cursor {
    path: PathBuf,
    names: Vec<String>,
    delimiter: char,
    is_quoted: bool,
    skips: bool,
    input: Option<BufReader<File>>,
    rows: u64,
    /// The rows that this process takes.
    portion: Portion,
    is_begun: bool,
}

impl DataSet {
    /// Returns a data set with the defaults of JMeter.
    pub(super) fn new(file: Template, names: Template, delimiter: Template) -> Self {
        Self {
            file,
            names,
            delimiter,
            is_quoted: false,
            skips_first: false,
            recycles: true,
            stops_thread: false,
            share: Share::All,
            cursors: Mutex::default(),
        }
    }

    /// Gives the next row to a user.
    pub(super) fn draw(&self, scope: &mut Scope) -> Drawn {
        let cursor = match self.cursor(scope) {
            Ok(cursor) => cursor,
            Err(fault) => return Drawn::Broken(fault),
        };
        let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
        match cursor.next(self.recycles) {
            Ok(Some(values)) => {
                for (place, name) in cursor.names.iter().enumerate() {
                    scope.set(name, values.get(place).map_or("", String::as_str));
                }
                Drawn::Row
            }
            Ok(None) if self.stops_thread => Drawn::Stop,
            Ok(None) => {
                for name in &cursor.names {
                    scope.set(name, "<EOF>");
                }
                Drawn::Row
            }
            Err(fault) => Drawn::Broken(fault),
        }
    }

    fn cursor(&self, scope: &mut Scope) -> Result<Arc<Mutex<Cursor>>, String> {
        let file = self.file.draw(scope).trim().to_owned();
        let key = match &self.share {
            Share::All => file.clone(),
            Share::Group => format!("{file}@{}", scope.group),
            Share::Thread => format!("{file}@{}", scope.thread_name),
            Share::Named(word) => format!("{file}@={word}"),
        };
        let mut cursors = self.cursors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cursor) = cursors.get(&key) {
            return Ok(Arc::clone(cursor));
        }
        let delimiter = match self.delimiter.draw(scope).as_ref() {
            "" => ',',
            "\\t" => '\t',
            text => text.chars().next().unwrap_or(','),
        };
        let names = self.names.draw(scope).trim().to_owned();
        let mut cursor = Cursor {
            path: scope.world.locate(&file)?,
            names: names.split(',').map(|name| name.trim().to_owned()).collect(),
            delimiter,
            is_quoted: self.is_quoted,
            skips: self.skips_first || names.is_empty(),
            input: None,
            rows: 0,
            // A thread's own rows are all its own, wherever it runs.
            portion: match self.share {
                Share::Thread => Portion::default(),
                Share::All | Share::Group | Share::Named(_) => scope.world.rows,
            },
            is_begun: false,
        };
        if names.is_empty() {
            cursor.open()?;
            let first = cursor.read()?.unwrap_or_default();
            cursor.names = first.iter().map(|name| name.trim().to_owned()).collect();
            cursor.input = None;
        }
        let cursor = Arc::new(Mutex::new(cursor));
        cursors.insert(key, Arc::clone(&cursor));
        Ok(cursor)
    }
}

impl Cursor {
    fn open(&mut self) -> Result<(), String> {
        let file = File::open(&self.path)
            .map_err(|error| format!("cannot read `{}`: {error}", self.path.display()))?;
        self.input = Some(BufReader::new(file));
        self.rows = 0;
        Ok(())
    }

    /// Returns the next row that falls to this process; the rows between are for others.
    fn next(&mut self, recycles: bool) -> Result<Option<Vec<String>>, String> {
        let between =
            if self.is_begun { self.portion.count.saturating_sub(1) } else { self.portion.index };
        self.is_begun = true;
        for _ in 0..between {
            if self.step(recycles)?.is_none() {
                return Ok(None);
            }
        }
        self.step(recycles)
    }

    fn step(&mut self, recycles: bool) -> Result<Option<Vec<String>>, String> {
        if self.input.is_none() {
            self.open()?;
            if self.skips {
                self.read()?;
            }
        }
        if let Some(row) = self.read()? {
            self.rows += 1;
            return Ok(Some(row));
        }
        // An empty file would be read again without end.
        if !recycles || self.rows == 0 {
            return Ok(None);
        }
        self.open()?;
        if self.skips {
            self.read()?;
        }
        let row = self.read()?;
        self.rows += u64::from(row.is_some());
        Ok(row)
    }

    fn read(&mut self) -> Result<Option<Vec<String>>, String> {
        let Some(input) = &mut self.input else { return Ok(None) };
        let mut text = Vec::new();
        loop {
            let found = if self.is_quoted {
                read_record(input, &mut text)
            } else {
                read_line(input, &mut text)
            };
            match found {
                Ok(true) if text.is_empty() => {}
                Ok(true) => break,
                Ok(false) => return Ok(None),
                Err(error) => {
                    return Err(format!("cannot read `{}`: {error}", self.path.display()));
                }
            }
        }
        let line = String::from_utf8_lossy(&text);
        let line = line.strip_prefix('\u{feff}').unwrap_or(&line);
        let values = if self.is_quoted {
            split_record(line, self.delimiter)
                .into_iter()
                .map(std::borrow::Cow::into_owned)
                .collect()
        } else {
            line.split(self.delimiter).map(str::to_owned).collect()
        };
        Ok(Some(values))
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
