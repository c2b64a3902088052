//! Encodes the measurements of a second as bytes. Every count is exact, so that sums over agents lose nothing.
//!
//! Numbers are LEB128. Times are encoded as the non-empty buckets of their histogram, each as the distance to the
//! previous one and its count. The decoder rejects unknown data and never allocates more memory than the message is
//! long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{CacheWarmup, SampleStats, TimingHistogram, WorkerInterval};

/// Appends a number as a varint.
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_wide_varint(out: &mut Vec<u8>, number: u128) {
    put_varint(out, (number >> 64) as u64);
    put_varint(out, number as u64);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_timing(out: &mut Vec<u8>, timing: &TimingHistogram) {
    let (sum, min, max) = timing.exact_parts();
    put_wide_varint(out, sum);
    put_varint(out, min);
    put_varint(out, max);
    let buckets: Vec<(u64, u64)> = timing.buckets().collect();
    put_varint(out, buckets.len() as u64);
    let mut before = 0;
    for (value, count) in buckets {
        put_varint(out, value - before);
        put_varint(out, count);
        before = value;
    }
}

fn put_stats(out: &mut Vec<u8>, stats: &SampleStats) {
    for timing in
        [&stats.response_times, &stats.service_times, &stats.latency_times, &stats.connect_times]
    {
        put_timing(out, timing);
    }
    for number in [stats.error_count, stats.received_bytes, stats.body_bytes, stats.sent_bytes] {
        put_varint(out, number);
    }
    put_varint(out, u64::from(stats.failed_response_times.is_some()));
    if let Some(failed) = &stats.failed_response_times {
        put_timing(out, failed);
    }
    put_varint(out, stats.status_counts.len() as u64);
    for (&status, &count) in &stats.status_counts {
        put_varint(out, status.into());
        put_varint(out, count);
    }
    put_varint(out, stats.failure_reason_counts.len() as u64);
    for (reason, &count) in &stats.failure_reason_counts {
        put_text(out, reason);
        put_varint(out, count);
    }
    put_varint(out, stats.server_phases.len() as u64);
    for (phase, timing) in &stats.server_phases {
        put_text(out, phase);
        put_timing(out, timing);
    }
    let (lows, hit, tells) = stats.cache_warmup.to_parts();
    put_varint(out, lows.len() as u64);
    for &(end, took) in lows {
        put_varint(out, end);
        put_varint(out, took);
    }
    put_varint(out, u64::from(tells));
    put_varint(out, hit.map_or(0, |hit| hit.saturating_add(1)));
}

/// Returns the encoded measurements of a worker in one second.
pub fn encode_interval(interval: &WorkerInterval) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    put_varint(&mut out, interval.worker as u64);
    put_varint(&mut out, interval.second.into());
    put_timing(&mut out, &interval.lag);
    let counts = [
        interval.late_arrivals,
        interval.unsent_arrivals,
        interval.repeated_requests,
        interval.active_users,
        duration_us(interval.cpu_time),
    ];
    for number in counts {
        put_varint(&mut out, number);
    }
    put_varint(&mut out, interval.labels.len() as u64);
    for (name, stats, is_transaction) in &interval.labels {
        put_text(&mut out, name);
        put_varint(&mut out, u64::from(*is_transaction));
        put_stats(&mut out, stats);
    }
    put_varint(&mut out, interval.traces.len() as u64);
    for trace in &interval.traces {
        put_text(&mut out, &serde_json::to_string(trace).unwrap_or_default());
    }
    out
}

fn duration_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Reads numbers from bytes.
#[derive(Debug)]
pub struct IntervalDecoder<'a>(pub &'a [u8]);

impl IntervalDecoder<'_> {
    /// Reads a number; `None` at the end or if it is not well-formed.
    pub fn read_number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7F).checked_shl(shift)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn read_wide_number(&mut self) -> Option<u128> {
        Some((u128::from(self.read_number()?) << 64) | u128::from(self.read_number()?))
    }

    fn read_text(&mut self) -> Option<String> {
        let length = usize::try_from(self.read_number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn read_timing(&mut self) -> Option<TimingHistogram> {
        let (sum_us, min_us, max_us) =
            (self.read_wide_number()?, self.read_number()?, self.read_number()?);
        let mut buckets = Vec::new();
        let mut value = 0u64;
        for _ in 0..self.read_number()? {
            value = value.checked_add(self.read_number()?)?;
            buckets.push((value, self.read_number()?));
        }
        Some(TimingHistogram::from_parts(sum_us, min_us, max_us, buckets.into_iter()))
    }

    fn read_stats(&mut self) -> Option<SampleStats> {
        let mut stats = SampleStats {
            response_times: self.read_timing()?,
            service_times: self.read_timing()?,
            latency_times: self.read_timing()?,
            connect_times: self.read_timing()?,
            error_count: self.read_number()?,
            received_bytes: self.read_number()?,
            body_bytes: self.read_number()?,
            sent_bytes: self.read_number()?,
            failed_response_times: match self.read_number()? {
                0 => None,
                1 => Some(Box::new(self.read_timing()?)),
                _ => return None,
            },
            status_counts: BTreeMap::new(),
            failure_reason_counts: BTreeMap::new(),
            server_phases: BTreeMap::new(),
            cache_warmup: CacheWarmup::default(),
        };
        for _ in 0..self.read_number()? {
            let status = u16::try_from(self.read_number()?).ok()?;
            stats.status_counts.insert(status, self.read_number()?);
        }
        for _ in 0..self.read_number()? {
            let reason = self.read_text()?;
            stats.failure_reason_counts.insert(reason, self.read_number()?);
        }
        for _ in 0..self.read_number()? {
            let phase = self.read_text()?;
            stats.server_phases.insert(phase, self.read_timing()?);
        }
        let mut lows = Vec::new();
        for _ in 0..self.read_number()? {
            lows.push((self.read_number()?, self.read_number()?));
        }
        let tells = self.read_number()? != 0;
        stats.cache_warmup =
            CacheWarmup::from_parts(&lows, self.read_number()?.checked_sub(1), tells);
        Some(stats)
    }
}

/// Decodes the output of [`encode_interval`]; `None` if it is invalid.
pub fn decode_interval(bytes: &[u8]) -> Option<WorkerInterval> {
    let mut cursor = IntervalDecoder(bytes);
    let mut interval = WorkerInterval {
        worker: usize::try_from(cursor.read_number()?).ok()?,
        second: u32::try_from(cursor.read_number()?).ok()?,
        labels: Vec::new(),
        lag: cursor.read_timing()?,
        late_arrivals: cursor.read_number()?,
        unsent_arrivals: cursor.read_number()?,
        repeated_requests: cursor.read_number()?,
        active_users: cursor.read_number()?,
        cpu_time: Duration::from_micros(cursor.read_number()?),
        traces: Vec::new(),
        slow_samples: Vec::new(),
    };
    for _ in 0..cursor.read_number()? {
        let name: Arc<str> = cursor.read_text()?.into();
        let is_transaction = cursor.read_number()? != 0;
        interval.labels.push((name, cursor.read_stats()?, is_transaction));
    }
    for _ in 0..cursor.read_number()? {
        interval.traces.push(serde_json::from_str(&cursor.read_text()?).ok()?);
    }
    cursor.0.is_empty().then_some(interval)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Instant, SystemTime};

    use proptest::prelude::*;

    use super::*;
    use crate::measurement::{RecordedSample, RunResults, SampleRecorder};
    use tympan_lab_plan::LoadPortion;

    /// One request of a schedule: label, delay of sending, duration, and success.
    type ScheduledSample = (u8, u64, u64, bool);

    fn measure(
        schedule: &[ScheduledSample],
        portion: LoadPortion,
        worker: usize,
    ) -> Vec<WorkerInterval> {
        let (sender, receiver) = channel();
        let started = Instant::now();
        let mut recorder = SampleRecorder::new(worker, started, sender, None);
        for (number, &(label, late, took, is_ok)) in schedule.iter().enumerate() {
            if !portion.contains(number as u64) {
                continue;
            }
            let label = recorder.label_id_of_kind(&format!("label {label}"), label == 3);
            let intended = started + Duration::from_millis(number as u64 * 25);
            let sent = intended + Duration::from_micros(late);
            let sample = RecordedSample {
                label,
                due: intended,
                start: sent,
                first_byte: sent + Duration::from_micros(took / 2),
                end: sent + Duration::from_micros(took),
                connect_time: Duration::from_micros(took % 7),
                status: if is_ok { 200 } else { 503 },
                failure: (!is_ok).then_some("status"),
                is_hit: is_ok.then_some(took % 3 == 0),
                received_bytes: took,
                body_bytes: took / 3,
                sent_bytes: late,
            };
            recorder.flush_finished_second(intended, 1, || Duration::ZERO);
            recorder.record_lag(Duration::from_micros(late));
            recorder.record_sample(&sample);
            recorder.record_server_timing(
                label,
                &format!("render;dur={}, db;dur=0.5", took as f64 / 2000.0),
            );
        }
        recorder.flush_interval(1, Duration::from_millis(1));
        drop(recorder);
        receiver.into_iter().collect()
    }

    fn counts(results: &RunResults) -> String {
        let mut out = String::new();
        for (kind, labels) in [("label", &results.labels), ("sum", &results.transactions)] {
            for (name, series) in labels {
                let total = &series.total;
                let timings = [
                    &total.response_times,
                    &total.service_times,
                    &total.latency_times,
                    &total.connect_times,
                ];
                for timing in timings
                    .into_iter()
                    .chain(total.server_phases.values())
                    .chain(total.failed_response_times.as_deref())
                {
                    let buckets: Vec<_> = timing.buckets().collect();
                    out += &format!("{kind} {name} {:?} {buckets:?}\n", timing.exact_parts());
                }
                out += &format!(
                    "{} {} {}\n",
                    total.error_count, total.received_bytes, total.sent_bytes
                );
                out += &format!("{:?} {:?}\n", total.status_counts, total.failure_reason_counts);
                for (second, values) in &series.seconds {
                    let mut times = BTreeMap::<u64, u64>::new();
                    values.time_buckets.iter().for_each(|&(time, count)| {
                        *times.entry(time).or_default() += count;
                    });
                    out += &format!(
                        "{second} {} {} {times:?}\n",
                        values.sample_count, values.error_count
                    );
                }
            }
        }
        out + &format!("{:?}", results.generator.lag.buckets().collect::<Vec<_>>())
    }

    proptest! {
        // Each case fills several hundred histograms, which is slow without optimization.
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn four_agents_add_up_to_one_process_with_the_same_schedule(
            schedule in prop::collection::vec((0u8..4, 0u64..40_000, 1u64..9_000_000, any::<bool>()), 0..150),
        ) {
            let mut one = RunResults::new(SystemTime::UNIX_EPOCH);
            for interval in measure(&schedule, LoadPortion::default(), 0) {
                one.add_interval(&interval);
            }
            let mut merged = RunResults::new(SystemTime::UNIX_EPOCH);
            for index in 0..4 {
                for interval in measure(&schedule, LoadPortion { index, count: 4 }, 0) {
                    let bytes = encode_interval(&interval);
                    merged.add_interval(&decode_interval(&bytes).unwrap());
                }
            }
            prop_assert_eq!(counts(&merged), counts(&one));
        }
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode_interval(&bytes);
        }

        #[test]
        fn a_message_that_is_cut_is_refused(cut in 0usize..400) {
            let interval = measure(&[(1, 5, 900, true), (3, 0, 70, false)], LoadPortion::default(), 2).remove(0);
            let bytes = encode_interval(&interval);
            let cut = cut % bytes.len();
            prop_assert!(decode_interval(&bytes[..cut]).is_none());
        }
    }
}
