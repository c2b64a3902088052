//! The read position in a data file, whose rows may be in random order.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use super::charset::JavaCharset;
use super::process_rotation::ProcessRotation;
use crate::arrival_schedule::random_number;
use crate::csv_record::{read_csv_record, split_csv_record};

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

impl RowCursor {
    /// Returns a cursor before the first row.
    pub(super) fn new(
        path: PathBuf,
        (is_quoted, charset): (bool, JavaCharset),
        skips_header: bool,
        rotation: ProcessRotation,
    ) -> Self {
        Self {
            path,
            is_quoted,
            charset,
            skips_header,
            shuffled_rows: None,
            reader: None,
            current_row: Vec::new(),
            rows_read: 0,
            rotation,
        }
    }

    /// Returns true if values may be quoted.
    pub(super) fn is_quoted(&self) -> bool {
        self.is_quoted
    }

    /// Returns the values of the first row, and closes the file again.
    ///
    /// # Errors
    /// A message if the file cannot be read.
    pub(super) fn read_header(&mut self, delimiter: char) -> Result<Vec<String>, String> {
        self.open_file()?;
        let values = if self.read_row()? { self.row_values(delimiter) } else { Vec::new() };
        self.reader = None;
        Ok(values)
    }

    /// Returns rows in random order from now on.
    pub(super) fn shuffle_rows(&mut self, seed: u64) {
        self.shuffled_rows = Some(ShuffledRows { seed, ..ShuffledRows::default() });
    }

    fn open_file(&mut self) -> Result<(), String> {
        let file = File::open(&self.path)
            .map_err(|error| format!("cannot read `{}`: {error}", self.path.display()))?;
        self.reader = Some(BufReader::new(file));
        self.rows_read = 0;
        Ok(())
    }

    /// Reads the next row assigned to this process and skips those of others; returns false if there is none.
    pub(super) fn next_assigned_row(&mut self, recycles: bool) -> Result<bool, String> {
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
    pub(super) fn row_text(&self) -> Cow<'_, str> {
        let text =
            self.current_row.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&self.current_row);
        self.charset.decode(text)
    }

    /// Returns the values of the last row.
    pub(super) fn row_values(&self, delimiter: char) -> Vec<String> {
        let line = self.row_text();
        if self.is_quoted {
            let values = split_csv_record(&line, delimiter).into_iter();
            values.map(Cow::into_owned).collect()
        } else {
            line.split(delimiter).map(str::to_owned).collect()
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
