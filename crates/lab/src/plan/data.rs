//! CSV data sets: rows shared by all threads, a group, or one thread, in the order of the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

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

/// What the bytes of a file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Coding {
    #[default]
    Utf8,
    Latin1,
    Windows1252,
}

impl Coding {
    /// Reads Java's name of it.
    pub(super) fn find(name: &str) -> Option<Self> {
        Some(match name.trim().to_ascii_lowercase().as_str() {
            "" | "utf-8" | "utf8" | "us-ascii" => Self::Utf8,
            "iso-8859-1" | "iso8859-1" | "iso8859_1" | "latin1" => Self::Latin1,
            "windows-1252" | "cp1252" => Self::Windows1252,
            _ => return None,
        })
    }

    fn decode(self, text: &[u8]) -> Cow<'_, str> {
        /// What Windows has where ISO 8859-1 has control letters; itself where it has nothing.
        const OTHERS: [char; 32] = [
            '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž',
            '\u{8f}', '\u{90}', '‘', '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ',
            '\u{9d}', 'ž', 'Ÿ',
        ];
        let of_windows = |byte: u8| {
            let other = byte.checked_sub(0x80).and_then(|at| OTHERS.get(usize::from(at)));
            other.copied().unwrap_or(char::from(byte))
        };
        match self {
            Self::Utf8 => String::from_utf8_lossy(text),
            Self::Latin1 => text.iter().map(|&byte| char::from(byte)).collect(),
            Self::Windows1252 => text.iter().map(|&byte| of_windows(byte)).collect(),
        }
    }
}

/// A data set of a plan.
#[derive(Debug)]
pub(super) struct DataSet {
    pub(super) file: Template,
    /// Empty: the first line names them.
    pub(super) names: Template,
    pub(super) delimiter: Template,
    pub(super) is_quoted: bool,
    pub(super) coding: Coding,
    /// What a short row lacks is empty; else it stays as it was, as in JMeter.
    pub(super) fills_up: bool,
    /// Rows come in random order, each once before any comes again.
    pub(super) is_random: bool,
    pub(super) skips_first: bool,
    pub(super) recycles: bool,
    pub(super) stops_thread: bool,
    pub(super) share: Share,
    cursors: Mutex<HashMap<String, Arc<Mutex<Cursor>>>>,
    /// The only cursor, where the name of the file is fixed and all threads share it.
    only: Mutex<Option<Arc<Mutex<Cursor>>>>,
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
    coding: Coding,
    fills_up: bool,
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
            coding: Coding::default(),
            fills_up: false,
            is_random: false,
            skips_first: false,
            recycles: true,
            stops_thread: false,
            share: Share::All,
            cursors: Mutex::default(),
            only: Mutex::default(),
        }
    }

    /// Forgets which rows were given.
    pub(super) fn rewind(&self) {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.only.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Gives the next row to a user.
    pub(super) fn draw(&self, scope: &mut Scope) -> Drawn {
        let is_only = self.share == Share::All && self.file.as_literal().is_some();
        let cursor = if is_only { self.only_cursor(scope) } else { self.cursor(scope) };
        let cursor = match cursor {
            Ok(cursor) => cursor,
            Err(fault) => return Drawn::Broken(fault),
        };
        let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
        match cursor.next(self.recycles) {
            Ok(true) => {
                cursor.set(scope);
                Drawn::Row
            }
            Ok(false) if self.stops_thread => Drawn::Stop,
            Ok(false) => {
                for name in &cursor.names {
                    scope.set(name, "<EOF>");
                }
                Drawn::Row
            }
            Err(fault) => Drawn::Broken(fault),
        }
    }

    fn only_cursor(&self, scope: &mut Scope) -> Result<Arc<Mutex<Cursor>>, String> {
        let mut only = self.only.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cursor) = &*only {
            return Ok(Arc::clone(cursor));
        }
        let cursor = self.cursor(scope)?;
        *only = Some(Arc::clone(&cursor));
        Ok(cursor)
    }

    /// Returns the file's name, and the name of the cursor that the user draws from.
    pub(super) fn key(&self, scope: &mut Scope) -> (String, String) {
        let file = self.file.draw(scope).trim().to_owned();
        let key = match &self.share {
            Share::All => file.clone(),
            Share::Group => format!("{file}@{}", scope.group),
            Share::Thread => format!("{file}@{}", scope.thread_name),
            Share::Named(word) => format!("{file}@={word}"),
        };
        (file, key)
    }

    fn cursor(&self, scope: &mut Scope) -> Result<Arc<Mutex<Cursor>>, String> {
        let (file, key) = self.key(scope);
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
            path: scope.world.files.locate(&file)?,
            names: names.split(',').map(|name| name.trim().to_owned()).collect(),
            delimiter,
            is_quoted: self.is_quoted,
            coding: self.coding,
            fills_up: self.fills_up,
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
        if names.is_empty() {
            cursor.open()?;
            let first = if cursor.read()? { cursor.values() } else { Vec::new() };
            cursor.names = first.iter().map(|name| name.trim().to_owned()).collect();
            cursor.input = None;
        }
        if self.is_random {
            // All processes that share the rows have them in the same order.
            cursor.deck = Some(Deck { seed: scope.world.seed(), ..Deck::default() });
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

    /// Gives the values of the last row to a user.
    fn set(&self, scope: &mut Scope) {
        let default = self.fills_up.then_some("");
        if self.is_quoted {
            let values = self.values();
            for (place, name) in self.names.iter().enumerate() {
                let Some(value) = values.get(place).map(String::as_str).or(default) else { return };
                scope.set(name, value);
            }
            return;
        }
        let line = self.line();
        let mut values = line.split(self.delimiter);
        for name in &self.names {
            let Some(value) = values.next().or(default) else { return };
            scope.set(name, value);
        }
    }

    /// Returns the last row as text; files may begin with a mark of their coding.
    fn line(&self) -> Cow<'_, str> {
        let text = self.text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&self.text);
        self.coding.decode(text)
    }

    /// Returns the values of the last row.
    fn values(&self) -> Vec<String> {
        let line = self.line();
        if self.is_quoted {
            let values = split_record(&line, self.delimiter).into_iter();
            values.map(Cow::into_owned).collect()
        } else {
            line.split(self.delimiter).map(str::to_owned).collect()
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
