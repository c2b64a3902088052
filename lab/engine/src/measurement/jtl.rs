//! JMeter's result files: writes rows as JMeter does, and parses all of its formats.
//!
//! Written: CSV with JMeter's default header. Parsed: CSV by the names of its header, or without one in the default
//! order, and XML; times in milliseconds and formatted dates are both recognized.

use std::borrow::Cow;
use std::io::{BufRead, Write as _};

use serde::{Deserialize, Serialize};

use tympan_lab_plan::csv_record::{read_csv_record, split_csv_record};

use crate::{Error, Result};

/// The header line of a file.
pub const JTL_HEADER: &str = "timeStamp,elapsed,label,responseCode,responseMessage,threadName,dataType,success,failureMessage,bytes,sentBytes,grpThreads,allThreads,URL,Latency,IdleTime,Connect";

/// Duration of the sample in microseconds: a column that the lab adds.
const ELAPSED_US_COLUMN: &str = "elapsedUs";
/// The mark by which servers identify the sample: another column that the lab adds.
const SAMPLE_MARK_COLUMN: &str = "sampleMark";

/// Columns in addition to JMeter's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JtlExtraColumns {
    /// Duration of a sample, in microseconds.
    pub microseconds: bool,
    /// The mark that was sent with the sample.
    pub mark: bool,
}

impl JtlExtraColumns {
    /// Returns the header line of a file.
    #[must_use]
    pub fn header_line(self) -> String {
        let mut header = JTL_HEADER.to_owned();
        for name in self.column_names() {
            header.push(',');
            header.push_str(name);
        }
        header
    }

    /// Returns the names of the columns.
    pub(crate) fn column_names(self) -> impl Iterator<Item = &'static str> {
        let named = [(self.microseconds, ELAPSED_US_COLUMN), (self.mark, SAMPLE_MARK_COLUMN)];
        named.into_iter().filter_map(|(is_wanted, name)| is_wanted.then_some(name))
    }
}

/// One sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JtlRow<'a> {
    /// Start time, in milliseconds since the epoch.
    pub start_ms: u64,
    /// Duration in milliseconds.
    pub elapsed_ms: u64,
    /// The sampler's name.
    pub label: Cow<'a, str>,
    /// The status, or `Non HTTP response code: ...`.
    pub response_code: Cow<'a, str>,
    /// The reason phrase.
    pub response_message: Cow<'a, str>,
    /// `<group> <group number>-<thread number>`.
    pub thread_name: Cow<'a, str>,
    /// `text`, `bin` or empty.
    pub data_type: Cow<'a, str>,
    /// True if it succeeded, assertions included.
    pub is_ok: bool,
    /// The first failed assertion's message.
    pub failure: Cow<'a, str>,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Number of running threads of the group.
    pub group_threads: u64,
    /// Number of running threads.
    pub all_threads: u64,
    /// The URL; `null` for transactions.
    pub url: Cow<'a, str>,
    /// Milliseconds until the first byte.
    pub latency_ms: u64,
    /// Milliseconds that are excluded, such as timers inside a transaction.
    pub idle_ms: u64,
    /// Connect time in milliseconds.
    pub connect_ms: u64,
    /// Duration in microseconds; 0 if only milliseconds are known.
    pub elapsed_us: u64,
    /// The mark by which servers identify the sample; empty if none was sent.
    pub mark: Cow<'a, str>,
}

impl JtlRow<'_> {
    /// Appends the row as a line.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_with_columns(JtlExtraColumns::default(), out);
    }

    /// Appends the row as a line with the columns of its file.
    pub fn write_with_columns(&self, added: JtlExtraColumns, out: &mut Vec<u8>) {
        // Writing to a vector cannot fail.
        write!(out, "{},{},", self.start_ms, self.elapsed_ms).ok();
        for field in [
            &self.label,
            &self.response_code,
            &self.response_message,
            &self.thread_name,
            &self.data_type,
        ] {
            write_csv_field(out, field);
            out.push(b',');
        }
        write!(out, "{},", self.is_ok).ok();
        write_csv_field(out, &self.failure);
        write!(
            out,
            ",{},{},{},{},",
            self.received_bytes, self.sent_bytes, self.group_threads, self.all_threads
        )
        .ok();
        write_csv_field(out, &self.url);
        write!(out, ",{},{},{}", self.latency_ms, self.idle_ms, self.connect_ms).ok();
        if added.microseconds {
            write!(out, ",{}", self.elapsed_us).ok();
        }
        if added.mark {
            out.push(b',');
            write_csv_field(out, &self.mark);
        }
        out.push(b'\n');
    }

    /// Returns the row with owned strings.
    #[must_use]
    pub fn into_owned(self) -> JtlRow<'static> {
        let own = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        JtlRow {
            label: own(self.label),
            response_code: own(self.response_code),
            response_message: own(self.response_message),
            thread_name: own(self.thread_name),
            data_type: own(self.data_type),
            failure: own(self.failure),
            url: own(self.url),
            start_ms: self.start_ms,
            elapsed_ms: self.elapsed_ms,
            is_ok: self.is_ok,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            group_threads: self.group_threads,
            all_threads: self.all_threads,
            latency_ms: self.latency_ms,
            idle_ms: self.idle_ms,
            connect_ms: self.connect_ms,
            elapsed_us: self.elapsed_us,
            mark: own(self.mark),
        }
    }

    /// Returns true if this is the sum of a transaction, which counts its samples a second time.
    #[must_use]
    pub fn is_transaction(&self) -> bool {
        self.response_message.starts_with("Number of samples in transaction")
    }
}

fn write_csv_field(out: &mut Vec<u8>, field: &str) {
    if !field.contains([',', '"', '\r', '\n']) {
        out.extend_from_slice(field.as_bytes());
        return;
    }
    out.push(b'"');
    for &byte in field.as_bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Calls `each` with every row of a file.
///
/// # Errors
/// [`Error::UnusableInput`] with the line if the input is not a result file; [`Error::Engine`] never.
pub fn read_jtl(
    input: &mut dyn BufRead,
    name: &str,
    each: &mut dyn FnMut(&JtlRow<'_>),
) -> Result<u64> {
    let lost = |source| Error::read_failed(std::path::Path::new(name), source);
    let start = input.fill_buf().map_err(lost)?;
    if start.trim_ascii_start().starts_with(b"<") {
        return read_xml_jtl(input, name, each);
    }
    let mut text = Vec::new();
    if !read_csv_record(input, &mut text).map_err(lost)? {
        return Ok(0);
    }
    let first = String::from_utf8_lossy(&text).into_owned();
    let delimiter = if first.contains(',') {
        ','
    } else if first.contains('\t') {
        '\t'
    } else {
        ';'
    };
    let has_header = !first.starts_with(|c: char| c.is_ascii_digit());
    let header = if has_header { first.as_str() } else { DEFAULT_JTL_HEADER };
    let columns = JtlColumns::from_header(header, if has_header { delimiter } else { ',' });
    if columns.elapsed_index.is_none() {
        return Err(Error::UnusableInput(format!(
            "{name}:1: not a JMeter result file: the first line has no column `elapsed`"
        )));
    }
    let mut line = 1 + count_line_breaks(&text);
    let mut rows = 0;
    if !has_header {
        each(
            &columns
                .parse_row(&split_csv_record(&first, delimiter))
                .ok_or_else(|| malformed_row_error(name, 1))?,
        );
        rows += 1;
    }
    loop {
        line += 1;
        let is_row = read_csv_record(input, &mut text).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => {
                Error::UnusableInput(format!("{name}:{line}: {error}"))
            }
            _ => lost(error),
        })?;
        if !is_row {
            return Ok(rows);
        }
        if text.is_empty() {
            continue;
        }
        let record = String::from_utf8_lossy(&text);
        let fields = split_csv_record(&record, delimiter);
        each(&columns.parse_row(&fields).ok_or_else(|| malformed_row_error(name, line))?);
        rows += 1;
        line += count_line_breaks(&text);
    }
}

/// Counts the line breaks inside a record.
fn count_line_breaks(record: &[u8]) -> u64 {
    record.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// The columns of files without a header, as JMeter wrote them by default.
const DEFAULT_JTL_HEADER: &str = JTL_HEADER;

fn malformed_row_error(name: &str, line: u64) -> Error {
    Error::UnusableInput(format!("{name}:{line}: this record has no timestamp or no elapsed time"))
}

#[derive(Debug, Default)]
struct JtlColumns {
    indexes: [Option<usize>; 17],
    elapsed_index: Option<usize>,
    elapsed_us_index: Option<usize>,
    mark_index: Option<usize>,
}

impl JtlColumns {
    fn from_header(header: &str, delimiter: char) -> Self {
        let names = split_csv_record(header.trim(), delimiter);
        let mut columns = Self::default();
        for (index, column) in columns.indexes.iter_mut().zip(JTL_HEADER.split(',')) {
            *index = names.iter().position(|name| name.trim() == column);
        }
        columns.elapsed_index = columns.indexes.get(1).copied().flatten();
        columns.elapsed_us_index = names.iter().position(|name| name.trim() == ELAPSED_US_COLUMN);
        columns.mark_index = names.iter().position(|name| name.trim() == SAMPLE_MARK_COLUMN);
        columns
    }

    fn parse_row<'a>(&self, fields: &'a [Cow<'a, str>]) -> Option<JtlRow<'a>> {
        let text = |column: usize| -> &'a str {
            let index = self.indexes.get(column).copied().flatten();
            index.and_then(|index| fields.get(index)).map_or("", |field| field)
        };
        let number = |column: usize| text(column).trim().parse::<u64>().unwrap_or(0);
        Some(JtlRow {
            start_ms: parse_epoch_ms(text(0))?,
            elapsed_ms: text(1).trim().parse().ok()?,
            label: text(2).into(),
            response_code: text(3).into(),
            response_message: text(4).into(),
            thread_name: text(5).into(),
            data_type: text(6).into(),
            is_ok: if self.indexes.get(7).is_some_and(Option::is_some) {
                text(7).eq_ignore_ascii_case("true")
            } else {
                // A file without this column may still contain statuses.
                let code = text(3).trim();
                code.is_empty() || code.parse().is_ok_and(|code: u16| code < 400)
            },
            failure: text(8).into(),
            received_bytes: number(9),
            sent_bytes: number(10),
            group_threads: number(11),
            all_threads: number(12),
            url: text(13).into(),
            latency_ms: number(14),
            idle_ms: number(15),
            connect_ms: number(16),
            elapsed_us: self
                .elapsed_us_index
                .and_then(|index| fields.get(index)?.trim().parse().ok())
                .unwrap_or(0),
            mark: self
                .mark_index
                .and_then(|index| fields.get(index))
                .map_or("", |field| field)
                .into(),
        })
    }
}

/// Parses milliseconds since the epoch, or `2026/11/21 18:43:54[.123]` with either separator, taken as UTC.
fn parse_epoch_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let iso = text.replace('/', "-").replacen(' ', "T", 1);
    let time: jiff::civil::DateTime = iso.parse().ok()?;
    let zoned = time.to_zoned(jiff::tz::TimeZone::UTC).ok()?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok()
}

fn read_xml_jtl(
    input: &mut dyn BufRead,
    name: &str,
    each: &mut dyn FnMut(&JtlRow<'_>),
) -> Result<u64> {
    let mut text = String::new();
    input
        .read_to_string(&mut text)
        .map_err(|source| Error::read_failed(std::path::Path::new(name), source))?;
    let document = roxmltree::Document::parse(&text)
        .map_err(|error| Error::UnusableInput(format!("{name}: not well-formed XML: {error}")))?;
    let mut rows = 0;
    for node in document.root_element().children().filter(roxmltree::Node::is_element) {
        let text = |key: &str| node.attribute(key).unwrap_or_default();
        let number = |key: &str| text(key).parse::<u64>().unwrap_or(0);
        let failure = node
            .descendants()
            .find(|inner| inner.has_tag_name("failureMessage"))
            .and_then(|inner| inner.text())
            .unwrap_or_default();
        let url = node.children().find(|inner| inner.has_tag_name("java.net.URL"));
        each(&JtlRow {
            start_ms: number("ts"),
            elapsed_ms: number("t"),
            label: text("lb").into(),
            response_code: text("rc").into(),
            response_message: text("rm").into(),
            thread_name: text("tn").into(),
            data_type: text("dt").into(),
            is_ok: text("s") == "true",
            failure: failure.into(),
            received_bytes: number("by"),
            sent_bytes: number("sby"),
            group_threads: number("ng"),
            all_threads: number("na"),
            url: url.and_then(|url| url.text()).unwrap_or_default().into(),
            latency_ms: number("lt"),
            idle_ms: number("it"),
            connect_ms: number("ct"),
            elapsed_us: 0,
            mark: "".into(),
        });
        rows += 1;
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(text: &str) -> Vec<JtlRow<'static>> {
        let mut out = Vec::new();
        read_jtl(&mut text.as_bytes(), "t.jtl", &mut |row| out.push(owned(row))).unwrap();
        out
    }

    fn owned(row: &JtlRow<'_>) -> JtlRow<'static> {
        let own = |text: &Cow<'_, str>| Cow::Owned(text.clone().into_owned());
        JtlRow {
            label: own(&row.label),
            response_code: own(&row.response_code),
            response_message: own(&row.response_message),
            thread_name: own(&row.thread_name),
            data_type: own(&row.data_type),
            failure: own(&row.failure),
            url: own(&row.url),
            mark: own(&row.mark),
            ..*row
        }
    }

    #[test]
    fn every_form_of_result_file_reads() {
        let csv = format!(
            "{JTL_HEADER}\n1370726934000,12,GET /,200,OK,G 1-1,text,true,,5986,120,1,1,http://h/,11,0,1\n"
        );
        let row = &rows(&csv)[0];
        assert_eq!(
            (row.elapsed_ms, &*row.label, row.received_bytes, row.connect_ms),
            (12, "GET /", 5986, 1)
        );
        let reordered =
            rows("label,elapsed,timeStamp,success\n\"a,b\",7,2013/06/08 21:28:54.5,true\n");
        assert_eq!((&*reordered[0].label, reordered[0].start_ms), ("a,b", 1_370_726_934_500));
        let bare = rows("1370726934000,12,x,200,OK,G 1-1,text,false,broke,5,1,1,1,u,1,0,0");
        assert_eq!((bare[0].is_ok, &*bare[0].failure), (false, "broke"));
        let xml = rows(
            "<?xml version=\"1.0\"?><testResults><httpSample t=\"3\" lt=\"2\" ts=\"5\" s=\"true\" lb=\"x\" rc=\"200\" rm=\"OK\" tn=\"g\" by=\"9\"/></testResults>",
        );
        assert_eq!((xml[0].elapsed_ms, xml[0].received_bytes, xml[0].is_ok), (3, 9, true));
    }

    #[test]
    fn what_is_no_result_file_is_refused() {
        assert!(read_jtl(&mut "a,b\n1,2\n".as_bytes(), "x", &mut |_| ()).is_err());
        assert!(
            read_jtl(&mut format!("{JTL_HEADER}\nx,y\n").as_bytes(), "x", &mut |_| ()).is_err()
        );
    }

    proptest! {
        #[test]
        fn rows_read_back_as_they_were_written(
            label in "[a-z,\"\n\r ]{0,12}",
            failure in "\\PC{0,12}",
            numbers in prop::array::uniform4(0u64..1_000_000_000),
            is_ok in any::<bool>(),
        ) {
            // A line break at the very end of a record cannot be distinguished from the record's own; labels never end
            // with one.
            let row = JtlRow {
                start_ms: numbers[0],
                elapsed_ms: numbers[1],
                label: label.into(),
                failure: failure.into(),
                received_bytes: numbers[2],
                connect_ms: numbers[3],
                is_ok,
                ..JtlRow::default()
            };
            let mut text = format!("{JTL_HEADER}\n").into_bytes();
            row.write(&mut text);
            row.write(&mut text);
            let read = rows(std::str::from_utf8(&text).unwrap());
            prop_assert_eq!(read, vec![row.clone(), row]);
        }
    }

    #[test]
    fn what_the_lab_adds_stands_in_columns_of_its_own_and_is_read_where_it_is() {
        let mark = "1a2b-7".into();
        let row =
            JtlRow { start_ms: 7, elapsed_ms: 1, elapsed_us: 1234, mark, ..JtlRow::default() };
        let text = |microseconds: bool, mark: bool| {
            let added = JtlExtraColumns { microseconds, mark };
            let mut text = format!("{}\n", added.header_line()).into_bytes();
            row.write_with_columns(added, &mut text);
            String::from_utf8(text).unwrap()
        };
        let exact = text(true, false);
        assert!(exact.lines().all(|line| line.split(',').count() == 18), "{exact}");
        assert_eq!(rows(&exact)[0].elapsed_us, 1234);
        let plain = text(false, false);
        assert_eq!(plain.lines().next(), Some(JTL_HEADER));
        assert_eq!((rows(&plain)[0].elapsed_ms, rows(&plain)[0].elapsed_us), (1, 0));
        for exact in [false, true] {
            let marked = text(exact, true);
            assert_eq!(rows(&marked)[0].mark, "1a2b-7");
            assert_eq!(rows(&marked)[0].elapsed_us, if exact { 1234 } else { 0 });
        }
    }
}
