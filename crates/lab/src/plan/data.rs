//! CSV data sets: rows shared by all threads, a group, or one thread, in the order of the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::charset::Charset;
use super::scope::Scope;
use super::template::Template;
use super::turns::Turns;
use crate::load::random;
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
    pub(super) charset: Charset,
    /// What a short row lacks is empty; else it stays as it was, as in JMeter.
    pub(super) fills_up: bool,
    /// Rows come in random order, each once before any comes again.
    pub(super) is_random: bool,
    pub(super) skips_first: bool,
    pub(super) recycles: bool,
    pub(super) stops_thread: bool,
    pub(super) share: Share,
    columns: Mutex<HashMap<String, Arc<Columns>>>,
    /// The only ones, where the name of the file is fixed and all threads share it.
    only: Mutex<Option<Arc<Columns>>>,
}

/// A data set's view of a cursor: data sets that draw from one file share its rows, whatever they call its columns.
#[derive(Debug)]
struct Columns {
    names: Vec<String>,
    delimiter: char,
    cursor: Arc<Mutex<Cursor>>,
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

/// The place in a file from which rows are drawn.
#[derive(Debug)]
pub(super) struct Cursor {
    path: PathBuf,
    is_quoted: bool,
    charset: Charset,
    skips: bool,
    /// The rows in the order in which they come, if that is not the file's.
    deck: Option<Deck>,
    input: Option<BufReader<File>>,
    /// The row that was read last.
    text: Vec<u8>,
    rows: u64,
    /// Which rows this process takes.
    turns: Turns,
}

/// Rows in random order.
#[derive(Debug, Default)]
struct Deck {
    seed: u64,
    /// Random numbers drawn.
    drawn: u64,
    rows: Vec<Vec<u8>>,
    at: usize,
}

impl DataSet {
    /// Returns a data set with the defaults of JMeter.
    pub(super) fn new(file: Template, names: Template, delimiter: Template) -> Self {
        Self {
            file,
            names,
            delimiter,
            is_quoted: false,
            charset: Charset::default(),
            fills_up: false,
            is_random: false,
            skips_first: false,
            recycles: true,
            stops_thread: false,
            share: Share::All,
            columns: Mutex::default(),
            only: Mutex::default(),
        }
    }

    /// Forgets the cursors of an earlier run.
    pub(super) fn rewind(&self) {
        self.columns.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.only.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Gives the next row to a user.
    pub(super) fn draw(&self, scope: &mut Scope) -> Drawn {
        let is_only = self.share == Share::All && self.file.as_literal().is_some();
        let columns = if is_only { self.only_columns(scope) } else { self.columns(scope) };
        let columns = match columns {
            Ok(columns) => columns,
            Err(fault) => return Drawn::Broken(fault),
        };
        let mut cursor = columns.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        match cursor.next(self.recycles) {
            Ok(true) => {
                columns.set(&cursor, self.fills_up, scope);
                Drawn::Row
            }
            Ok(false) if self.stops_thread => Drawn::Stop,
            Ok(false) => {
                for name in &columns.names {
                    scope.set(name, "<EOF>");
                }
                Drawn::Row
            }
            Err(fault) => Drawn::Broken(fault),
        }
    }

    fn only_columns(&self, scope: &mut Scope) -> Result<Arc<Columns>, String> {
        let mut only = self.only.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(columns) = &*only {
            return Ok(Arc::clone(columns));
        }
        let columns = self.columns(scope)?;
        *only = Some(Arc::clone(&columns));
        Ok(columns)
    }

    /// Returns the file's name, and the name of the cursor that the user draws from.
    pub(super) fn key(&self, scope: &mut Scope) -> (String, String) {
        let file = self.file.draw(scope).trim().to_owned();
        let key = match &self.share {
            Share::All => file.clone(),
            Share::Group => format!("{file}@{} {}", scope.group_root, scope.group),
            Share::Thread => format!("{file}@{}", scope.thread_name),
            Share::Named(word) => format!("{file}@={word}"),
        };
        // Rows in random order are not those of the file.
        let key = if self.is_random { format!("{key}@random") } else { key };
        (file, key)
    }

    fn columns(&self, scope: &mut Scope) -> Result<Arc<Columns>, String> {
        let (file, key) = self.key(scope);
        let mut known = self.columns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(columns) = known.get(&key) {
            return Ok(Arc::clone(columns));
        }
        let delimiter = match self.delimiter.draw(scope).as_ref() {
            "" => ',',
            "\\t" => '\t',
            text => text.chars().next().unwrap_or(','),
        };
        let names = self.names.draw(scope).trim().to_owned();
        let mut cursor = Cursor {
            path: scope.world.files.locate(&file)?,
            is_quoted: self.is_quoted,
            charset: self.charset,
            skips: self.skips_first || names.is_empty(),
            deck: None,
            input: None,
            text: Vec::new(),
            rows: 0,
            // A thread's own rows are all its own, wherever it runs.
            turns: match self.share {
                Share::Thread => Turns::alone(),
                Share::All | Share::Group | Share::Named(_) => scope.world.turns(&key),
            },
        };
        let trimmed = |name: &str| name.trim().to_owned();
        let names: Vec<String> = if names.is_empty() {
            cursor.open()?;
            let first = if cursor.read()? { cursor.values(delimiter) } else { Vec::new() };
            cursor.input = None;
            first.iter().map(|name| trimmed(name)).collect()
        } else {
            names.split(',').map(trimmed).collect()
        };
        if self.is_random {
            // All processes that share the rows have them in the same order.
            cursor.deck = Some(Deck { seed: scope.world.seed(), ..Deck::default() });
        }
        let cursor = scope.world.cursor(&key, cursor);
        let columns = Arc::new(Columns { names, delimiter, cursor });
        known.insert(key, Arc::clone(&columns));
        Ok(columns)
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

    /// Reads the next row that falls to this process, the rows between are for others; false if there is none.
    fn next(&mut self, recycles: bool) -> Result<bool, String> {
        let Some(between) = self.turns.next() else { return Ok(false) };
        for _ in 0..between {
            if !self.step(recycles)? {
                return Ok(false);
            }
        }
        self.step(recycles)
    }

    /// Goes to the first row.
    fn begin(&mut self) -> Result<(), String> {
        // While the file is read, rows come from it.
        let deck = self.deck.take();
        self.open()?;
        if self.skips {
            self.read()?;
        }
        let Some(mut deck) = deck else { return Ok(()) };
        deck.rows.clear();
        while self.read()? {
            deck.rows.push(self.text.clone());
        }
        deck.shuffle();
        self.deck = Some(deck);
        Ok(())
    }

    fn step(&mut self, recycles: bool) -> Result<bool, String> {
        if self.input.is_none() {
            self.begin()?;
        }
        if self.read()? {
            self.rows += 1;
            return Ok(true);
        }
        // An empty file would be read again without end.
        if !recycles || self.rows == 0 {
            return Ok(false);
        }
        self.begin()?;
        let is_row = self.read()?;
        self.rows += u64::from(is_row);
        Ok(is_row)
    }

    /// Reads a row that is not empty; false at the end of the file.
    fn read(&mut self) -> Result<bool, String> {
        if let Some(deck) = &mut self.deck {
            let Some(row) = deck.rows.get(deck.at) else { return Ok(false) };
            self.text.clone_from(row);
            deck.at += 1;
            return Ok(true);
        }
        let Some(input) = &mut self.input else { return Ok(false) };
        loop {
            let found = if self.is_quoted {
                read_record(input, &mut self.text)
            } else {
                read_line(input, &mut self.text)
            };
            match found {
                Ok(true) if self.text.is_empty() => {}
                Ok(is_row) => return Ok(is_row),
                Err(error) => {
                    return Err(format!("cannot read `{}`: {error}", self.path.display()));
                }
            }
        }
    }

    /// Returns the last row as text; files may begin with a mark of their coding.
    fn line(&self) -> Cow<'_, str> {
        let text = self.text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&self.text);
        self.charset.decode(text)
    }

    /// Returns the values of the last row.
    fn values(&self, delimiter: char) -> Vec<String> {
        let line = self.line();
        if self.is_quoted {
            let values = split_record(&line, delimiter).into_iter();
            values.map(Cow::into_owned).collect()
        } else {
            line.split(delimiter).map(str::to_owned).collect()
        }
    }
}

impl Columns {
    /// Gives the values of a cursor's last row to a user.
    fn set(&self, cursor: &Cursor, fills_up: bool, scope: &mut Scope) {
        let default = fills_up.then_some("");
        if cursor.is_quoted {
            let values = cursor.values(self.delimiter);
            for (place, name) in self.names.iter().enumerate() {
                let Some(value) = values.get(place).map(String::as_str).or(default) else { return };
                scope.set(name, value);
            }
            return;
        }
        let line = cursor.line();
        let mut values = line.split(self.delimiter);
        for name in &self.names {
            let Some(value) = values.next().or(default) else { return };
            scope.set(name, value);
        }
    }
}

impl Deck {
    fn shuffle(&mut self) {
        self.at = 0;
        for at in (1..self.rows.len()).rev() {
            let other = random(self.seed, self.drawn) % (at as u64 + 1);
            self.drawn += 1;
            self.rows.swap(at, usize::try_from(other).unwrap_or(0));
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
