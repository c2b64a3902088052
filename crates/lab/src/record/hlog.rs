//! Histograms in HdrHistogram's log format 1.3, which other tools open: one line per label and second.
//!
//! Values are response times in microseconds with three digits, as the run recorded them; nothing is estimated. A line is
//! `Tag=LABEL,START,LENGTH,MAX,HISTOGRAM`: seconds since the start of the run, seconds, milliseconds, and the histogram in
//! the compressed encoding V2, as base64. In tags, what the format cannot hold (blanks, commas, line breaks) is `_`.

use std::io::Write as _;
use std::time::SystemTime;

use base64::Engine as _;

use super::Results;

/// Longest time of a histogram, in microseconds: an hour.
const HIGHEST: u64 = 3_600_000_000;
/// Buckets of a histogram with three digits are halves of that many sub-buckets.
const SUB_BUCKETS: u64 = 2048;
const COOKIE: u32 = 0x1c84_9313;
const COMPRESSED_COOKIE: u32 = 0x1c84_9314;

/// Returns the log of a run.
#[must_use]
pub fn text(results: &Results) -> String {
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
            let max = values.times.iter().map(|(us, _)| *us).max().unwrap_or(0);
            let line = format!(
                "Tag={tag},{second}.000,1.000,{:.3},{}\n",
                max as f64 / 1000.0,
                encode(&values.times)
            );
            lines.push((*second, line));
        }
    }
    // In the order of time, as readers expect it.
    lines.sort_by_key(|(second, _)| *second);
    out.extend(lines.into_iter().map(|(_, line)| line));
    out
}

/// Returns the place of a value among the counts of a histogram.
fn place(us: u64) -> usize {
    let us = us.min(HIGHEST);
    let bucket = 64 - SUB_BUCKETS.trailing_zeros() - (us | (SUB_BUCKETS - 1)).leading_zeros();
    let sub = us >> bucket;
    let half = SUB_BUCKETS / 2;
    // With one bucket's lower half for the smallest values, others have their upper halves only.
    usize::try_from((u64::from(bucket) + 1) * half + sub - half).unwrap_or(0)
}

fn encode(times: &[(u64, u64)]) -> String {
    let mut counts = Vec::new();
    for (us, count) in times {
        let place = place(*us);
        if counts.len() <= place {
            counts.resize(place + 1, 0u64);
        }
        if let Some(known) = counts.get_mut(place) {
            *known += count;
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
            put(&mut payload, -zeros);
            zeros = 0;
        }
        put(&mut payload, i64::try_from(count).unwrap_or(i64::MAX));
    }
    let mut plain = Vec::new();
    plain.extend_from_slice(&COOKIE.to_be_bytes());
    plain.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    plain.extend_from_slice(&0u32.to_be_bytes());
    plain.extend_from_slice(&3u32.to_be_bytes());
    plain.extend_from_slice(&1u64.to_be_bytes());
    plain.extend_from_slice(&HIGHEST.to_be_bytes());
    plain.extend_from_slice(&1f64.to_be_bytes());
    plain.extend_from_slice(&payload);
    let mut packer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    // Writing to memory cannot fail.
    packer.write_all(&plain).ok();
    let packed = packer.finish().unwrap_or_default();
    let mut whole = COMPRESSED_COOKIE.to_be_bytes().to_vec();
    whole.extend_from_slice(&u32::try_from(packed.len()).unwrap_or(u32::MAX).to_be_bytes());
    whole.extend_from_slice(&packed);
    base64::engine::general_purpose::STANDARD.encode(whole)
}

/// Appends a number in the ZigZag LEB128 of at most 9 bytes that the encoding uses.
fn put(out: &mut Vec<u8>, number: i64) {
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

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    /// Undoes [`encode`] by the description of the format; values are the upper ends of buckets.
    fn decode(text: &str) -> Vec<(u64, u64)> {
        let whole = base64::engine::general_purpose::STANDARD.decode(text).unwrap();
        assert_eq!(whole[..4], COMPRESSED_COOKIE.to_be_bytes());
        let mut plain = Vec::new();
        flate2::read::ZlibDecoder::new(&whole[8..]).read_to_end(&mut plain).unwrap();
        assert_eq!(plain[..4], COOKIE.to_be_bytes());
        let length = u32::from_be_bytes(plain[4..8].try_into().unwrap()) as usize;
        let mut rest = &plain[40..];
        assert_eq!(rest.len(), length);
        let (mut at, mut found) = (0u64, Vec::new());
        while !rest.is_empty() {
            let (mut number, mut shift) = (0u64, 0);
            loop {
                let byte = rest[0];
                rest = &rest[1..];
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
            let number = (number >> 1) as i64 ^ -((number & 1) as i64);
            if number < 0 {
                at += number.unsigned_abs();
                continue;
            }
            let half = SUB_BUCKETS / 2;
            let bucket = (at / half).saturating_sub(1);
            let sub = if at < SUB_BUCKETS { at } else { at % half + half };
            found.push((((sub + 1) << bucket) - 1, number as u64));
            at += 1;
        }
        found
    }

    proptest! {
        #[test]
        fn histograms_read_back_as_they_were(times in prop::collection::vec(1u64..HIGHEST, 1..60)) {
            let mut timing = crate::record::Timing::new();
            for time in times {
                timing.record_us(time, 3);
            }
            let recorded: Vec<(u64, u64)> = timing.buckets().collect();
            prop_assert_eq!(decode(&encode(&recorded)), recorded);
        }
    }

    #[test]
    fn a_line_names_label_second_and_histogram() {
        let mut results = Results::new(SystemTime::UNIX_EPOCH);
        let series = results.labels.entry("GET /a, b".into()).or_default();
        series.seconds.entry(7).or_default().times = vec![(1500, 2)];
        let text = text(&results);
        assert!(text.starts_with("#[Histogram log format version 1.3]\n"));
        // What HdrHistogram for Java 2.2.2 writes begins with the same letters: they are the encoding's name.
        assert!(text.contains("\nTag=GET_/a__b,7.000,1.000,1.500,HISTFA"), "{text}");
    }
}
