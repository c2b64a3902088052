//! Records of CSV files: data sets of plans and result files.

use std::borrow::Cow;
use std::io::BufRead;

/// Splits one record into its fields; quotes are doubled inside quotes.
pub fn split_csv_record(line: &str, delimiter: char) -> Vec<Cow<'_, str>> {
    let mut fields = Vec::with_capacity(17);
    let mut rest = line;
    loop {
        if let Some(quoted) = rest.strip_prefix('"') {
            let mut text = String::new();
            let mut tail = quoted;
            loop {
                let Some((part, after)) = tail.split_once('"') else {
                    text.push_str(tail);
                    tail = "";
                    break;
                };
                text.push_str(part);
                tail = after;
                match tail.strip_prefix('"') {
                    Some(more) => {
                        text.push('"');
                        tail = more;
                    }
                    None => break,
                }
            }
            let (extra, next) = match tail.split_once(delimiter) {
                Some((extra, next)) => (extra, Some(next)),
                None => (tail, None),
            };
            text.push_str(extra);
            fields.push(Cow::Owned(text));
            match next {
                Some(next) => rest = next,
                None => return fields,
            }
        } else {
            match rest.split_once(delimiter) {
                Some((field, next)) => {
                    fields.push(Cow::Borrowed(field));
                    rest = next;
                }
                None => {
                    fields.push(Cow::Borrowed(rest));
                    return fields;
                }
            }
        }
    }
}

/// Maximum size of a record in bytes; assertion messages may quote whole responses.
const MAX_CSV_RECORD_LEN: usize = 16 << 20;

/// Reads one record, whose quoted line breaks may span several lines; returns false at the end.
///
/// # Errors
/// `InvalidData` if a quote is not closed within 16 MiB or the file: all following data would be lost in one field.
pub fn read_csv_record(input: &mut dyn BufRead, text: &mut Vec<u8>) -> std::io::Result<bool> {
    text.clear();
    let mut quotes = 0;
    loop {
        let from = text.len();
        let is_end = input.read_until(b'\n', text)? == 0;
        if is_end && text.is_empty() {
            return Ok(false);
        }
        let read = text.get(from..).unwrap_or_default();
        quotes += read.iter().filter(|&&byte| byte == b'"').count();
        if quotes % 2 != 0 && (is_end || from > MAX_CSV_RECORD_LEN) {
            let words = "unterminated quote";
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, words));
        }
        if quotes % 2 == 0 {
            while matches!(text.last(), Some(b'\n' | b'\r')) {
                text.pop();
            }
            return Ok(true);
        }
    }
}
