//! Histograms in HdrHistogram's log format 1.3, which other tools can open: one line per label and second.
//!
//! Values are response times in microseconds with three digits, as the run recorded them; nothing is estimated. A line
//! is `Tag=LABEL,START,LENGTH,MAX,HISTOGRAM`: seconds since the start of the run, seconds, milliseconds, and the
//! histogram in the compressed encoding V2, as base64. In tags, characters that the format does not allow (blanks,
//! commas, line breaks) become `_`.

use std::io::{Read as _, Write as _};
use std::time::SystemTime;

use base64::Engine as _;

use super::RunResults;
use crate::{Error, Result};

/// Maximum time of a histogram, in microseconds: an hour.
const MAX_HISTOGRAM_US: u64 = 3_600_000_000;
/// Number of sub-buckets of a histogram with three digits; each bucket holds half of them.
const SUB_BUCKETS: u64 = 2048;
const HISTOGRAM_COOKIE: u32 = 0x1c84_9313;
const COMPRESSED_HISTOGRAM_COOKIE: u32 = 0x1c84_9314;

/// Returns the log of a run.
#[must_use]
pub fn format_histogram_log(results: &RunResults) -> String {
    let since = results.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let start = since.as_secs_f64();
    let mut out = format!(
        "#[Histogram log format version 1.3]\n#[Values are response times in microseconds; Interval_Max is in milliseconds]\n\
         #[BaseTime: {start:.3} (seconds since epoch)]\n#[StartTime: {start:.3} (seconds since epoch)]\n\
         \"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"\n"
    );
    let mut lines = Vec::new();
    for (label, series) in &results.labels {
        let tag: String =
            label.chars().map(|c| if c.is_whitespace() || c == ',' { '_' } else { c }).collect();
        for (second, values) in &series.seconds {
            let max = values.time_buckets.iter().map(|(us, _)| *us).max().unwrap_or(0);
            let line = format!(
                "Tag={tag},{second}.000,1.000,{:.3},{}\n",
                max as f64 / 1000.0,
                encode_histogram(&values.time_buckets)
            );
            lines.push((*second, line));
        }
    }
    // In chronological order, as readers expect.
    lines.sort_by_key(|(second, _)| *second);
    out.extend(lines.into_iter().map(|(_, line)| line));
    out
}

/// Returns the index of a value among the counts of a histogram.
fn bucket_index(us: u64) -> usize {
    let us = us.min(MAX_HISTOGRAM_US);
    let bucket = 64 - SUB_BUCKETS.trailing_zeros() - (us | (SUB_BUCKETS - 1)).leading_zeros();
    let sub = us >> bucket;
    let half = SUB_BUCKETS / 2;
    // The first bucket also has its lower half, for the smallest values; the others have only their upper halves.
    usize::try_from((u64::from(bucket) + 1) * half + sub - half).unwrap_or(0)
}

fn encode_histogram(times: &[(u64, u64)]) -> String {
    let mut counts = Vec::new();
    for (us, count) in times {
        let index = bucket_index(*us);
        if counts.len() <= index {
            counts.resize(index + 1, 0u64);
        }
        if let Some(bucket) = counts.get_mut(index) {
            *bucket += count;
        }
    }
    let mut payload = Vec::new();
    let mut zeros = 0i64;
    for count in counts {
        if count == 0 {
            zeros += 1;
            continue;
        }
        if zeros > 0 {
            put_zigzag(&mut payload, -zeros);
            zeros = 0;
        }
        put_zigzag(&mut payload, i64::try_from(count).unwrap_or(i64::MAX));
    }
    let mut plain = Vec::new();
    plain.extend_from_slice(&HISTOGRAM_COOKIE.to_be_bytes());
    plain.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    plain.extend_from_slice(&0u32.to_be_bytes());
    plain.extend_from_slice(&3u32.to_be_bytes());
    plain.extend_from_slice(&1u64.to_be_bytes());
    plain.extend_from_slice(&MAX_HISTOGRAM_US.to_be_bytes());
    plain.extend_from_slice(&1f64.to_be_bytes());
    plain.extend_from_slice(&payload);
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    // Writing to memory cannot fail.
    packer.write_all(&plain).ok();
    let packed = packer.finish().unwrap_or_default();
    let mut whole = COMPRESSED_HISTOGRAM_COOKIE.to_be_bytes().to_vec();
    whole.extend_from_slice(&u32::try_from(packed.len()).unwrap_or(u32::MAX).to_be_bytes());
    whole.extend_from_slice(&packed);
    base64::engine::general_purpose::STANDARD.encode(whole)
}

/// Appends a number in the ZigZag LEB128 encoding of at most 9 bytes that the format uses.
fn put_zigzag(out: &mut Vec<u8>, number: i64) {
    let mut left = ((number << 1) ^ (number >> 63)) as u64;
    for _ in 0..8 {
        if left < 0x80 {
            out.push(left as u8);
            return;
        }
        out.push((left & 0x7F) as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// One line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistogramLogLine {
    /// The label in the format's character set; empty if the line has none.
    pub label: String,
    /// The second of the run.
    pub second: u32,
    /// Upper bounds of buckets in microseconds, and their counts.
    pub buckets: Vec<(u64, u64)>,
}

/// Parses a log that [`format_histogram_log`] wrote, or another program with histograms of three digits.
///
/// # Errors
/// [`Error::UnusableInput`] with the number of the invalid line.
pub fn read_histogram_log(text: &str, name: &str) -> Result<Vec<HistogramLogLine>> {
    let lines = text.lines().enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(['#', '"']));
    let read = |(number, line): (usize, &str)| {
        parse_histogram_line(line).ok_or_else(|| {
            let line_number = number + 1;
            Error::UnusableInput(format!(
                "{name}:{line_number}: not a line with a histogram of three digits"
            ))
        })
    };
    lines.map(read).collect()
}

fn parse_histogram_line(line: &str) -> Option<HistogramLogLine> {
    let mut fields = line.split(',');
    let mut start = fields.next()?;
    let label = start.strip_prefix("Tag=").map(str::to_owned);
    if label.is_some() {
        start = fields.next()?;
    }
    let second: f64 = start.parse().ok().filter(|second: &f64| second.is_finite())?;
    let times = decode_histogram(fields.nth(2)?)?;
    // A number that is too large is clamped to the maximum.
    Some(HistogramLogLine {
        label: label.unwrap_or_default(),
        second: second.max(0.0) as u32,
        buckets: times,
    })
}

/// Maximum size of a histogram in bytes: many times what its buckets need.
const MAX_HISTOGRAM_BYTES: u64 = 1 << 20;

/// Decodes the output of [`encode_histogram`]; values are the upper bounds of buckets.
fn decode_histogram(text: &str) -> Option<Vec<(u64, u64)>> {
    let number = |bytes: &[u8], from: usize| -> Option<u32> {
        bytes.get(from..from + 4)?.try_into().ok().map(u32::from_be_bytes)
    };
    let whole = base64::engine::general_purpose::STANDARD.decode(text.trim_end()).ok()?;
    if number(&whole, 0)? != COMPRESSED_HISTOGRAM_COOKIE {
        return None;
    }
    let mut plain = Vec::new();
    let packed = flate2::read::ZlibDecoder::new(whole.get(8..)?);
    packed.take(MAX_HISTOGRAM_BYTES).read_to_end(&mut plain).ok()?;
    // Cookie, length, offset, digits, lowest, highest and ratio precede the counts.
    let length = usize::try_from(number(&plain, 4)?).ok()?;
    if number(&plain, 0)? != HISTOGRAM_COOKIE || number(&plain, 8)? != 0 || number(&plain, 12)? != 3
    {
        return None;
    }
    let mut rest = plain.get(40..)?;
    if rest.len() != length {
        return None;
    }
    let (mut at, mut buckets) = (0u64, Vec::new());
    let last = bucket_index(MAX_HISTOGRAM_US) as u64;
    while !rest.is_empty() {
        let number = take_zigzag(&mut rest)?;
        if number < 0 {
            at = at.checked_add(number.unsigned_abs())?;
            continue;
        }
        if at > last {
            return None;
        }
        if number > 0 {
            let half = SUB_BUCKETS / 2;
            let bucket = (at / half).saturating_sub(1);
            let sub = if at < SUB_BUCKETS { at } else { at % half + half };
            buckets.push((((sub + 1) << bucket) - 1, number.unsigned_abs()));
        }
        at += 1;
    }
    Some(buckets)
}

/// Decodes a number that [`put_zigzag`] wrote.
fn take_zigzag(rest: &mut &[u8]) -> Option<i64> {
    let (mut number, mut shift) = (0u64, 0);
    loop {
        let (&byte, left) = rest.split_first()?;
        *rest = left;
        if shift == 56 {
            number |= u64::from(byte) << shift;
            break;
        }
        number |= u64::from(byte & 0x7F) << shift;
        shift += 7;
        if byte < 0x80 {
            break;
        }
    }
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn histograms_read_back_as_they_were(times in prop::collection::vec(1u64..MAX_HISTOGRAM_US, 1..60)) {
            let mut timing = crate::measurement::TimingHistogram::new();
            for time in times {
                timing.record_us(time, 3);
            }
            let recorded: Vec<(u64, u64)> = timing.buckets().collect();
            prop_assert_eq!(decode_histogram(&encode_histogram(&recorded)), Some(recorded));
        }

        #[test]
        fn no_line_ends_the_program(line in "(Tag=[a-z]{0,3},)?[0-9.e]{0,9},1,1,[A-Za-z0-9+/=]{0,80}", cut in 0usize..200) {
            read_histogram_log(&line, "x").ok();
            let whole = encode_histogram(&[(1, 1), (70_000, 3), (MAX_HISTOGRAM_US, 1)]);
            let mut bytes = base64::engine::general_purpose::STANDARD.decode(whole).unwrap();
            bytes.truncate(cut);
            decode_histogram(&base64::engine::general_purpose::STANDARD.encode(bytes));
        }
    }

    #[test]
    fn a_line_names_label_second_and_histogram() {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        let series = results.labels.entry("GET /a, b".into()).or_default();
        series.seconds.entry(7).or_default().time_buckets = vec![(1500, 2)];
        let text = format_histogram_log(&results);
        assert!(text.starts_with("#[Histogram log format version 1.3]\n"));
        // The output of HdrHistogram for Java 2.2.2 begins with the same characters: they are the name of the encoding.
        assert!(text.contains("\nTag=GET_/a__b,7.000,1.000,1.500,HISTFA"), "{text}");
        let times = vec![(1500, 2)];
        let line = HistogramLogLine { label: "GET_/a__b".to_owned(), second: 7, buckets: times };
        assert_eq!(read_histogram_log(&text, "x").unwrap(), [line]);
        let torn = read_histogram_log(&text[..text.len() - 9], "hist.hlog").unwrap_err();
        assert_eq!(torn.to_string(), "hist.hlog:6: not a line with a histogram of three digits");
    }
}
