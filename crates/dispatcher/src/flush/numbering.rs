//! Flush numbering: detection of lost and repeated flushes, and of publishers that were reset to an earlier state.
//!
//! Input: the sender of a flush and its sequence number. Output: an indication if pages of the cache may be older than
//! their publisher's content.
//!
//! The received numbers are stored in the document root itself (`.tympan-flushes`, see
//! `docs/formats/cache-docroot.md`), so that they are as old as the files they describe, even if the folder is restored
//! from a backup.
//!
//! Invariants
//! * A number counts as received only after its flush was carried out.
//! * Ambiguous cases err on the side of freshness.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use tympan_web::flush_message::FlushNumbering;

/// The order of a flush relative to earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlushOrder {
    /// The first flush of a new sender.
    First,
    /// The next flush in sequence.
    Next,
    /// The last flush again, because its response was lost.
    Repeated,
    /// A flush that a later one overtook.
    Late,
    /// The first flush of a sender that restarted.
    Restarted,
    /// Some flushes before it are missing.
    Gap,
    /// The first flush of a sender seen by this cache, but not the first one that it sent.
    FirstSeen,
    /// The publisher is at an earlier state than before, because it was restored.
    Restored,
}

/// All variants with their names, in the order of declaration.
const ORDER_NAMES: [(FlushOrder, &str); 8] = [
    (FlushOrder::First, "first"),
    (FlushOrder::Next, "next"),
    (FlushOrder::Repeated, "repeated"),
    (FlushOrder::Late, "late"),
    (FlushOrder::Restarted, "restarted"),
    (FlushOrder::Gap, "gap"),
    (FlushOrder::FirstSeen, "first_seen"),
    (FlushOrder::Restored, "restored"),
];

impl FlushOrder {
    /// Returns true if changes may have been missed.
    pub(crate) fn is_doubtful(self) -> bool {
        matches!(self, Self::Gap | Self::FirstSeen | Self::Restored)
    }

    pub(crate) fn name(self) -> &'static str {
        ORDER_NAMES.get(self as usize).map_or("?", |(_, name)| name)
    }
}

/// The number of flushes by order.
#[derive(Debug, Default)]
pub(crate) struct FlushOrderCounts([AtomicU64; ORDER_NAMES.len()]);

impl FlushOrderCounts {
    pub(crate) fn count(&self, order: FlushOrder) {
        if let Some(count) = self.0.get(order as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the names of the orders with their counts.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        ORDER_NAMES.iter().map(|(_, name)| *name).zip(counts).collect()
    }
}

/// The maximum number of senders remembered.
const MAX_SENDERS: usize = 256;
/// The maximum number of runs remembered per sender: processes that share its queue, and late messages of earlier ones.
const MAX_RUNS_PER_SENDER: usize = 8;
/// The first line of the file.
const NUMBERS_FILE_VERSION: &str = "tympan-flushes 1";

/// The received flush numbers of all senders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FlushNumbers {
    senders: BTreeMap<String, SenderNumbers>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SenderNumbers {
    /// The highest sequence number of a change.
    last_sequence: u64,
    /// The runs with their last counts, the newest run last.
    runs: Vec<(String, u64)>,
}

impl FlushNumbers {
    /// Records a flush and returns its order relative to earlier ones.
    pub(crate) fn record_number(
        &mut self,
        numbering: &FlushNumbering,
        sequence: Option<u64>,
    ) -> FlushOrder {
        let FlushNumbering { source: name, run, count } = numbering;
        let sequence = sequence.unwrap_or(0);
        let Some(source) = self.senders.get_mut(name) else {
            // A forgotten sender later counts as first seen, which is doubtful and therefore safe.
            while self.senders.len() >= MAX_SENDERS {
                self.senders.pop_first();
            }
            let source =
                SenderNumbers { last_sequence: sequence, runs: vec![(run.clone(), *count)] };
            self.senders.insert(name.clone(), source);
            return if *count == 1 { FlushOrder::First } else { FlushOrder::FirstSeen };
        };
        if let Some((_, last)) = source.runs.iter_mut().find(|(own, _)| own == run) {
            let order = match *count {
                count if count == *last => FlushOrder::Repeated,
                count if count < *last => FlushOrder::Late,
                count if count == last.saturating_add(1) => FlushOrder::Next,
                _ => FlushOrder::Gap,
            };
            *last = (*last).max(*count);
            source.last_sequence = source.last_sequence.max(sequence);
            return order;
        }
        if source.runs.len() >= MAX_RUNS_PER_SENDER {
            source.runs.remove(0);
        }
        source.runs.push((run.clone(), *count));
        if sequence < source.last_sequence {
            source.last_sequence = sequence;
            return FlushOrder::Restored;
        }
        source.last_sequence = sequence;
        if *count == 1 { FlushOrder::Restarted } else { FlushOrder::Gap }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{NUMBERS_FILE_VERSION}\n");
        for (name, source) in &self.senders {
            // Writing to a string cannot fail.
            write!(text, "{name} {}", source.last_sequence).ok();
            for (run, count) in &source.runs {
                write!(text, " {run} {count}").ok();
            }
            text.push('\n');
        }
        text
    }

    /// Parses the output of [`FlushNumbers::to_text`]; `None` if the text is malformed.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        lines.next().filter(|first| *first == NUMBERS_FILE_VERSION)?;
        let mut numbers = Self::default();
        for line in lines {
            let mut words = line.split(' ');
            let (name, sequence) = (words.next()?, words.next()?.parse().ok()?);
            let mut runs = Vec::new();
            while let Some(run) = words.next() {
                runs.push((run.to_owned(), words.next()?.parse().ok()?));
            }
            numbers
                .senders
                .insert(name.to_owned(), SenderNumbers { last_sequence: sequence, runs });
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::{FlushNumbers, FlushOrder, MAX_SENDERS, ORDER_NAMES};
    use proptest::prelude::*;
    use tympan_web::flush_message::FlushNumbering;

    fn hear(numbers: &mut FlushNumbers, run: &str, count: u64, sequence: u64) -> FlushOrder {
        let numbering = FlushNumbering { source: "p/flush".to_owned(), run: run.to_owned(), count };
        numbers.record_number(&numbering, Some(sequence))
    }

    #[test]
    fn orders_are_distinguished() {
        let mut numbers = FlushNumbers::default();
        for (run, count, sequence, expected) in [
            ("a", 1, 10, FlushOrder::First),
            ("a", 2, 13, FlushOrder::Next),
            ("a", 2, 13, FlushOrder::Repeated),
            ("a", 5, 20, FlushOrder::Gap),
            ("a", 6, 21, FlushOrder::Next),
            ("a", 4, 18, FlushOrder::Late),
            ("a", 7, 22, FlushOrder::Next),
            // The flush in progress at a restart is sent again.
            ("b", 1, 22, FlushOrder::Restarted),
            ("b", 2, 23, FlushOrder::Next),
            ("a", 3, 15, FlushOrder::Late),
            // Another process on the same queue.
            ("c", 1, 24, FlushOrder::Restarted),
            ("b", 3, 25, FlushOrder::Next),
            // A run that begins with a gap lost something before.
            ("d", 2, 30, FlushOrder::Gap),
            // Restored from a backup.
            ("e", 1, 12, FlushOrder::Restored),
            ("e", 2, 13, FlushOrder::Next),
        ] {
            assert_eq!(hear(&mut numbers, run, count, sequence), expected, "{run} {count}");
        }
        let mut joined = FlushNumbers::default();
        assert_eq!(hear(&mut joined, "a", 9, 50), FlushOrder::FirstSeen);
        assert_eq!(hear(&mut joined, "a", 10, 51), FlushOrder::Next);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut numbers = FlushNumbers::default();
        for number in 0..2 * MAX_SENDERS as u64 {
            let numbering =
                FlushNumbering { source: format!("p{number:05}/x"), run: "r".to_owned(), count: 1 };
            numbers.record_number(&numbering, None);
            hear(&mut numbers, &format!("r{number}"), 1, number);
        }
        assert!(numbers.senders.len() <= MAX_SENDERS);
        assert!(numbers.to_text().len() < 100 * MAX_SENDERS);
    }

    #[test]
    fn every_order_stands_at_its_own_place() {
        for (index, (order, name)) in ORDER_NAMES.iter().enumerate() {
            assert_eq!(*order as usize, index, "{name}");
        }
    }

    #[test]
    fn a_file_that_is_cut_or_of_another_kind_is_none() {
        let mut numbers = FlushNumbers::default();
        hear(&mut numbers, "a", 1, 7);
        let text = numbers.to_text();
        assert_eq!(FlushNumbers::parse(&text), Some(numbers));
        for broken in
            ["", "x\n", "tympan-flushes 2\n", &text[..text.len() - 1], "tympan-flushes 1\nx\n"]
        {
            assert_eq!(FlushNumbers::parse(broken), None, "{broken}");
        }
    }

    proptest! {
        /// After any loss in an ordered sequence of flushes, only the next one that arrives is doubtful.
        #[test]
        fn each_loss_is_noticed_once(arrives in prop::collection::vec(any::<bool>(), 1..40)) {
            let mut numbers = FlushNumbers::default();
            let mut has_lost = false;
            for (index, arrives) in arrives.into_iter().enumerate() {
                let count = index as u64 + 1;
                if !arrives {
                    has_lost = true;
                    continue;
                }
                let text = numbers.to_text();
                numbers = FlushNumbers::parse(&text).unwrap();
                let order = hear(&mut numbers, "a", count, count);
                prop_assert_eq!(order.is_doubtful(), std::mem::take(&mut has_lost));
            }
        }
    }
}
