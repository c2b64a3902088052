//! What agents send about a second, as bytes: every count exactly, so that sums over agents lose nothing.
//!
//! Numbers are LEB128; times are the buckets of their histogram that hold something, as distance to the one before and
//! count. A reader refuses what it does not understand, and never takes more memory than the message is long.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::record::{Interval, Opening, Stats, Timing};

/// Appends a number.
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7F) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_wide(out: &mut Vec<u8>, number: u128) {
    put(out, (number >> 64) as u64);
    put(out, number as u64);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_timing(out: &mut Vec<u8>, timing: &Timing) {
    let (sum, min, max) = timing.exact();
    put_wide(out, sum);
    put(out, min);
    put(out, max);
    let buckets: Vec<(u64, u64)> = timing.buckets().collect();
    put(out, buckets.len() as u64);
    let mut before = 0;
    for (value, count) in buckets {
        put(out, value - before);
        put(out, count);
        before = value;
    }
}

fn put_stats(out: &mut Vec<u8>, stats: &Stats) {
    for timing in [&stats.response, &stats.service, &stats.latency, &stats.connect] {
        put_timing(out, timing);
    }
    for number in [stats.errors, stats.received, stats.body, stats.sent] {
        put(out, number);
    }
    put(out, u64::from(stats.failed.is_some()));
    if let Some(failed) = &stats.failed {
        put_timing(out, failed);
    }
    put(out, stats.statuses.len() as u64);
    for (&status, &count) in &stats.statuses {
        put(out, status.into());
        put(out, count);
    }
    put(out, stats.reasons.len() as u64);
    for (reason, &count) in &stats.reasons {
        put_text(out, reason);
        put(out, count);
    }
    put(out, stats.phases.len() as u64);
    for (phase, timing) in &stats.phases {
        put_text(out, phase);
        put_timing(out, timing);
    }
    let (lows, hit, tells) = stats.opening.parts();
    put(out, lows.len() as u64);
    for &(end, took) in lows {
        put(out, end);
        put(out, took);
    }
    put(out, u64::from(tells));
    put(out, hit.map_or(0, |hit| hit.saturating_add(1)));
}

/// Returns what a worker measured in a second as bytes.
pub(super) fn encode(interval: &Interval) -> Vec<u8> {
    let mut out = Vec::with_capacity(1024);
    put(&mut out, interval.worker as u64);
    put(&mut out, interval.second.into());
    put_timing(&mut out, &interval.lag);
    let counts =
        [interval.late, interval.unsent, interval.repeated, interval.active, micros(interval.cpu)];
    for number in counts {
        put(&mut out, number);
    }
    put(&mut out, interval.labels.len() as u64);
    for (name, stats, is_transaction) in &interval.labels {
        put_text(&mut out, name);
        put(&mut out, u64::from(*is_transaction));
        put_stats(&mut out, stats);
    }
    put(&mut out, interval.traces.len() as u64);
    for trace in &interval.traces {
        put_text(&mut out, &serde_json::to_string(trace).unwrap_or_default());
    }
    out
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Reads numbers from bytes.
#[derive(Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl Cursor<'_> {
    pub(super) fn number(&mut self) -> Option<u64> {
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

    fn wide(&mut self) -> Option<u128> {
        Some((u128::from(self.number()?) << 64) | u128::from(self.number()?))
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok().map(str::to_owned)
    }

    fn timing(&mut self) -> Option<Timing> {
        let exact = (self.wide()?, self.number()?, self.number()?);
        let mut buckets = Vec::new();
        let mut value = 0u64;
        for _ in 0..self.number()? {
            value = value.checked_add(self.number()?)?;
            buckets.push((value, self.number()?));
        }
        Some(Timing::from_parts(exact, buckets.into_iter()))
    }

    fn stats(&mut self) -> Option<Stats> {
        let mut stats = Stats {
            response: self.timing()?,
            service: self.timing()?,
            latency: self.timing()?,
            connect: self.timing()?,
            errors: self.number()?,
            received: self.number()?,
            body: self.number()?,
            sent: self.number()?,
            failed: match self.number()? {
                0 => None,
                1 => Some(Box::new(self.timing()?)),
                _ => return None,
            },
            statuses: BTreeMap::new(),
            reasons: BTreeMap::new(),
            phases: BTreeMap::new(),
            opening: Opening::default(),
        };
        for _ in 0..self.number()? {
            let status = u16::try_from(self.number()?).ok()?;
            stats.statuses.insert(status, self.number()?);
        }
        for _ in 0..self.number()? {
            let reason = self.text()?;
            stats.reasons.insert(reason, self.number()?);
        }
        for _ in 0..self.number()? {
            let phase = self.text()?;
            stats.phases.insert(phase, self.timing()?);
        }
        let mut lows = Vec::new();
        for _ in 0..self.number()? {
            lows.push((self.number()?, self.number()?));
        }
        let tells = self.number()? != 0;
        stats.opening = Opening::from_parts(&lows, self.number()?.checked_sub(1), tells);
        Some(stats)
    }
}

/// Reads what [`encode`] wrote; `None` if it is something else.
pub(super) fn decode(bytes: &[u8]) -> Option<Interval> {
    let mut cursor = Cursor(bytes);
    let mut interval = Interval {
        worker: usize::try_from(cursor.number()?).ok()?,
        second: u32::try_from(cursor.number()?).ok()?,
        labels: Vec::new(),
        lag: cursor.timing()?,
        late: cursor.number()?,
        unsent: cursor.number()?,
        repeated: cursor.number()?,
        active: cursor.number()?,
        cpu: Duration::from_micros(cursor.number()?),
        traces: Vec::new(),
        slowest: Vec::new(),
    };
    for _ in 0..cursor.number()? {
        let name: Arc<str> = cursor.text()?.into();
        let is_transaction = cursor.number()? != 0;
        interval.labels.push((name, cursor.stats()?, is_transaction));
    }
    for _ in 0..cursor.number()? {
        interval.traces.push(serde_json::from_str(&cursor.text()?).ok()?);
    }
    cursor.0.is_empty().then_some(interval)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Instant, SystemTime};

    use proptest::prelude::*;

    use super::*;
    use crate::load::Portion;
    use crate::record::{Recorder, Results, Sample};

    /// One request of a schedule: label, how late it was sent, how long it took, and its status.
    type Planned = (u8, u64, u64, bool);

    fn measure(schedule: &[Planned], portion: Portion, worker: usize) -> Vec<Interval> {
        let (sender, receiver) = channel();
        let started = Instant::now();
        let mut recorder = Recorder::new(worker, started, sender, None);
        for (number, &(label, late, took, is_ok)) in schedule.iter().enumerate() {
            if !portion.has(number as u64) {
                continue;
            }
            let label = recorder.label_of(&format!("label {label}"), label == 3);
            let intended = started + Duration::from_millis(number as u64 * 25);
            let sent = intended + Duration::from_micros(late);
            let sample = Sample {
                label,
                intended,
                started: sent,
                first_byte: sent + Duration::from_micros(took / 2),
                ended: sent + Duration::from_micros(took),
                connect: Duration::from_micros(took % 7),
                status: if is_ok { 200 } else { 503 },
                failure: (!is_ok).then_some("status"),
                is_hit: is_ok.then_some(took % 3 == 0),
                received: took,
                body: took / 3,
                sent: late,
            };
            recorder.tick(intended, 1, || Duration::ZERO);
            recorder.lag(Duration::from_micros(late));
            recorder.sample(&sample);
            recorder.phases(label, &format!("render;dur={}, db;dur=0.5", took as f64 / 2000.0));
        }
        recorder.flush(1, Duration::from_millis(1));
        drop(recorder);
        receiver.into_iter().collect()
    }

    fn counts(results: &Results) -> String {
        let mut out = String::new();
        for (kind, labels) in [("label", &results.labels), ("sum", &results.transactions)] {
            for (name, series) in labels {
                let total = &series.total;
                let timings = [&total.response, &total.service, &total.latency, &total.connect];
                for timing in
                    timings.into_iter().chain(total.phases.values()).chain(total.failed.as_deref())
                {
                    let buckets: Vec<_> = timing.buckets().collect();
                    out += &format!("{kind} {name} {:?} {buckets:?}\n", timing.exact());
                }
                out += &format!("{} {} {}\n", total.errors, total.received, total.sent);
                out += &format!("{:?} {:?}\n", total.statuses, total.reasons);
                for (second, values) in &series.seconds {
                    let mut times = BTreeMap::<u64, u64>::new();
                    values.times.iter().for_each(|&(time, count)| {
                        *times.entry(time).or_default() += count;
                    });
                    out += &format!("{second} {} {} {times:?}\n", values.count, values.errors);
                }
            }
        }
        out + &format!("{:?}", results.generator.lag.buckets().collect::<Vec<_>>())
    }

    proptest! {
        // Each case fills some hundred histograms, which is slow without optimization.
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn four_agents_add_up_to_one_process_with_the_same_schedule(
            schedule in prop::collection::vec((0u8..4, 0u64..40_000, 1u64..9_000_000, any::<bool>()), 0..150),
        ) {
            let mut one = Results::new(SystemTime::UNIX_EPOCH);
            for interval in measure(&schedule, Portion::default(), 0) {
                one.add(&interval);
            }
            let mut merged = Results::new(SystemTime::UNIX_EPOCH);
            for index in 0..4 {
                for interval in measure(&schedule, Portion { index, count: 4 }, 0) {
                    let bytes = encode(&interval);
                    merged.add(&decode(&bytes).unwrap());
                }
            }
            prop_assert_eq!(counts(&merged), counts(&one));
        }
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }

        #[test]
        fn a_message_that_is_cut_is_refused(cut in 0usize..400) {
            let interval = measure(&[(1, 5, 900, true), (3, 0, 70, false)], Portion::default(), 2).remove(0);
            let bytes = encode(&interval);
            let cut = cut % bytes.len();
            prop_assert!(decode(&bytes[..cut]).is_none());
        }
    }
}
