//! The numbers of flushes: noticing that one was lost, came twice, or that its publisher went back in time.
//!
//! In: who sent a flush and the how many-th of its sender it is. Out: whether pages of the cache may be older than their
//! publisher says.
//!
//! What was heard is kept in the document root itself (`.tympan-flushes`, see `docs/formats/cache-docroot.md`), so that it
//! is as old as the files that it speaks of, also where somebody restores the folder from a backup.
//!
//! Invariants
//! * A number counts as heard only after its flush was carried out.
//! * Whatever cannot be told apart errs to freshness.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use tympan_web::flush_message::Numbering;

/// How a flush follows those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The first one of a sender that was never heard.
    First,
    /// The next one.
    Next,
    /// The last one once more, as its answer was lost.
    Repeated,
    /// One that was overtaken on its way.
    Late,
    /// The first one of a sender that began anew.
    Restarted,
    /// Some before it did not come.
    Gap,
    /// The first one that this cache hears of a sender, and not the first that it sent.
    Joined,
    /// Its publisher is at an earlier state than before: it was restored.
    Back,
}

/// All orders with their names, in the order of declaration.
pub(crate) const ORDERS: [(Order, &str); 8] = [
    (Order::First, "first"),
    (Order::Next, "next"),
    (Order::Repeated, "repeated"),
    (Order::Late, "late"),
    (Order::Restarted, "restarted"),
    (Order::Gap, "gap"),
    (Order::Joined, "joined"),
    (Order::Back, "back"),
];

impl Order {
    /// Tells whether changes may have been missed.
    pub(crate) fn is_doubtful(self) -> bool {
        matches!(self, Self::Gap | Self::Joined | Self::Back)
    }

    pub(crate) fn name(self) -> &'static str {
        ORDERS.get(self as usize).map_or("?", |(_, name)| name)
    }
}

/// How often flushes came in which order.
#[derive(Debug, Default)]
pub(crate) struct OrderTally([AtomicU64; ORDERS.len()]);

impl OrderTally {
    pub(crate) fn count(&self, order: Order) {
        if let Some(count) = self.0.get(order as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the orders by name, and how often each was.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        ORDERS.iter().map(|(_, name)| *name).zip(counts).collect()
    }
}

/// Senders that are remembered.
const MAX_SOURCES: usize = 256;
/// Runs of a sender that are remembered: processes that share its queue, and late messages of earlier ones.
const MAX_RUNS: usize = 8;
/// The first line of the file.
const VERSION: &str = "tympan-flushes 1";

/// What was heard of all senders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Numbers {
    sources: BTreeMap<String, Source>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Source {
    /// The highest number of a change.
    sequence: u64,
    /// Runs and their last counts, the newest run last.
    runs: Vec<(String, u64)>,
}

impl Numbers {
    /// Notes a flush and tells how it follows those before it.
    pub(crate) fn note(&mut self, numbering: &Numbering, sequence: Option<u64>) -> Order {
        let Numbering { source: name, run, count } = numbering;
        let sequence = sequence.unwrap_or(0);
        let Some(source) = self.sources.get_mut(name) else {
            // Whoever is forgotten for want of room is heard of anew, which is doubtful and so safe.
            while self.sources.len() >= MAX_SOURCES {
                self.sources.pop_first();
            }
            let source = Source { sequence, runs: vec![(run.clone(), *count)] };
            self.sources.insert(name.clone(), source);
            return if *count == 1 { Order::First } else { Order::Joined };
        };
        if let Some((_, last)) = source.runs.iter_mut().find(|(own, _)| own == run) {
            let order = match *count {
                count if count == *last => Order::Repeated,
                count if count < *last => Order::Late,
                count if count == last.saturating_add(1) => Order::Next,
                _ => Order::Gap,
            };
            *last = (*last).max(*count);
            source.sequence = source.sequence.max(sequence);
            return order;
        }
        if source.runs.len() >= MAX_RUNS {
            source.runs.remove(0);
        }
        source.runs.push((run.clone(), *count));
        if sequence < source.sequence {
            source.sequence = sequence;
            return Order::Back;
        }
        source.sequence = sequence;
        if *count == 1 { Order::Restarted } else { Order::Gap }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{VERSION}\n");
        for (name, source) in &self.sources {
            // Writing to a string cannot fail.
            write!(text, "{name} {}", source.sequence).ok();
            for (run, count) in &source.runs {
                write!(text, " {run} {count}").ok();
            }
            text.push('\n');
        }
        text
    }

    /// Reads what [`Numbers::to_text`] wrote; nothing if it is anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        lines.next().filter(|first| *first == VERSION)?;
        let mut numbers = Self::default();
        for line in lines {
            let mut words = line.split(' ');
            let (name, sequence) = (words.next()?, words.next()?.parse().ok()?);
            let mut runs = Vec::new();
            while let Some(run) = words.next() {
                runs.push((run.to_owned(), words.next()?.parse().ok()?));
            }
            numbers.sources.insert(name.to_owned(), Source { sequence, runs });
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_SOURCES, Numbers, ORDERS, Order};
    use proptest::prelude::*;
    use tympan_web::flush_message::Numbering;

    fn hear(numbers: &mut Numbers, run: &str, count: u64, sequence: u64) -> Order {
        let numbering = Numbering { source: "p/flush".to_owned(), run: run.to_owned(), count };
        numbers.note(&numbering, Some(sequence))
    }

    #[test]
    fn orders_are_told_apart() {
        let mut numbers = Numbers::default();
        for (run, count, sequence, expected) in [
            ("a", 1, 10, Order::First),
            ("a", 2, 13, Order::Next),
            ("a", 2, 13, Order::Repeated),
            ("a", 5, 20, Order::Gap),
            ("a", 6, 21, Order::Next),
            ("a", 4, 18, Order::Late),
            ("a", 7, 22, Order::Next),
            // The flush under way at a restart is sent again.
            ("b", 1, 22, Order::Restarted),
            ("b", 2, 23, Order::Next),
            ("a", 3, 15, Order::Late),
            // Another process on the same queue.
            ("c", 1, 24, Order::Restarted),
            ("b", 3, 25, Order::Next),
            // A run that begins with a gap gave something up before.
            ("d", 2, 30, Order::Gap),
            // Restored from a backup.
            ("e", 1, 12, Order::Back),
            ("e", 2, 13, Order::Next),
        ] {
            assert_eq!(hear(&mut numbers, run, count, sequence), expected, "{run} {count}");
        }
        let mut joined = Numbers::default();
        assert_eq!(hear(&mut joined, "a", 9, 50), Order::Joined);
        assert_eq!(hear(&mut joined, "a", 10, 51), Order::Next);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut numbers = Numbers::default();
        for number in 0..2 * MAX_SOURCES as u64 {
            let numbering =
                Numbering { source: format!("p{number:05}/x"), run: "r".to_owned(), count: 1 };
            numbers.note(&numbering, None);
            hear(&mut numbers, &format!("r{number}"), 1, number);
        }
        assert!(numbers.sources.len() <= MAX_SOURCES);
        assert!(numbers.to_text().len() < 100 * MAX_SOURCES);
    }

    #[test]
    fn every_order_stands_at_its_own_place() {
        for (index, (order, name)) in ORDERS.iter().enumerate() {
            assert_eq!(*order as usize, index, "{name}");
        }
    }

    #[test]
    fn a_file_that_is_cut_or_of_another_kind_is_none() {
        let mut numbers = Numbers::default();
        hear(&mut numbers, "a", 1, 7);
        let text = numbers.to_text();
        assert_eq!(Numbers::parse(&text), Some(numbers));
        for broken in
            ["", "x\n", "tympan-flushes 2\n", &text[..text.len() - 1], "tympan-flushes 1\nx\n"]
        {
            assert_eq!(Numbers::parse(broken), None, "{broken}");
        }
    }

    proptest! {
        /// Whatever is lost of flushes that come in order, the next one that arrives is doubtful, and no other.
        #[test]
        fn each_loss_is_noticed_once(arrives in prop::collection::vec(any::<bool>(), 1..40)) {
            let mut numbers = Numbers::default();
            let mut has_lost = false;
            for (index, arrives) in arrives.into_iter().enumerate() {
                let count = index as u64 + 1;
                if !arrives {
                    has_lost = true;
                    continue;
                }
                let text = numbers.to_text();
                numbers = Numbers::parse(&text).unwrap();
                let order = hear(&mut numbers, "a", count, count);
                prop_assert_eq!(order.is_doubtful(), std::mem::take(&mut has_lost));
            }
        }
    }
}
