//! The sub-samples of a sample with more than one exchange: hops of redirects, and embedded resources with their own.
//!
//! In: exchanges as they end. Out: their rows, as JMeter 5 writes them below the row of the sample: the name of the
//! sample with a number appended, hops before resources, and the sub-samples of a resource directly below it.

use std::time::{Duration, Instant};

use crate::measurement::jtl::JtlRow;

/// One exchange.
#[derive(Debug, Clone)]
pub(super) struct SubSampleExchange {
    pub(super) url: String,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) is_ok: bool,
    pub(super) data_type: &'static str,
    pub(super) start: Instant,
    pub(super) first_byte: Instant,
    pub(super) end: Instant,
    pub(super) connect_time: Duration,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
}

/// A sample, or a part of one.
#[derive(Debug, Default)]
pub(super) struct SubSampleNode {
    /// The request, and those that followed redirects.
    exchanges: Vec<SubSampleExchange>,
    /// The resources that the last response refers to, in order.
    embedded_parts: Vec<SubSampleNode>,
}

/// The owner of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct SampleOwner<'a> {
    pub(super) sample_name: &'a str,
    pub(super) thread_name: &'a str,
    pub(super) group_threads: u64,
    pub(super) all_threads: u64,
}

/// Maximum depth that JMeter writes.
const MAX_SUB_SAMPLE_DEPTH: usize = 10;

impl SubSampleNode {
    /// Adds an exchange.
    pub(super) fn add_exchange(&mut self, hop: SubSampleExchange) {
        self.exchanges.push(hop);
    }

    /// Merges an exchange into the previous one: a redirect that is not reported.
    pub(super) fn extend_last_exchange(&mut self, hop: SubSampleExchange) {
        let Some(first) = self.exchanges.pop() else { return self.exchanges.push(hop) };
        self.exchanges.push(SubSampleExchange {
            start: first.start,
            first_byte: first.first_byte,
            connect_time: first.connect_time,
            sent_bytes: first.sent_bytes + hop.sent_bytes,
            received_bytes: first.received_bytes + hop.received_bytes,
            ..hop
        });
    }

    /// Adds a copy of the last exchange that reports a subsequent failure.
    pub(super) fn add_failure(&mut self, code: &str, message: &str) {
        let Some(last) = self.exchanges.last().cloned() else { return };
        let (code, message) = (code.to_owned(), message.to_owned());
        self.exchanges.push(SubSampleExchange { code, message, is_ok: false, ..last });
    }

    /// Returns the part at a path of indexes.
    pub(super) fn part_at(&mut self, path: &[usize]) -> Option<&mut Self> {
        path.iter().try_fold(self, |node, index| node.embedded_parts.get_mut(*index))
    }

    /// Adds a part to the one at `path`; returns the new one's path.
    pub(super) fn open_part(&mut self, path: &[usize]) -> Vec<usize> {
        let Some(node) = self.part_at(path) else { return path.to_vec() };
        node.embedded_parts.push(Self::default());
        let index = node.embedded_parts.len() - 1;
        path.iter().copied().chain([index]).collect()
    }

    /// Returns true if there is more than one exchange.
    pub(super) fn has_sub_samples(&self) -> bool {
        self.exchanges.len() > 1 || !self.embedded_parts.is_empty()
    }

    /// Returns the sum of all exchanges; `None` if none ended.
    fn total_exchange(&self) -> Option<SubSampleExchange> {
        let (first, last) = (self.exchanges.first()?, self.exchanges.last()?);
        let mut whole = SubSampleExchange {
            start: first.start,
            first_byte: first.first_byte,
            connect_time: first.connect_time,
            sent_bytes: self.exchanges.iter().map(|hop| hop.sent_bytes).sum(),
            received_bytes: self.exchanges.iter().map(|hop| hop.received_bytes).sum(),
            ..last.clone()
        };
        for part in self.embedded_parts.iter().filter_map(Self::total_exchange) {
            whole.end = whole.end.max(part.end);
            whole.sent_bytes += part.sent_bytes;
            whole.received_bytes += part.received_bytes;
            if !part.is_ok && whole.is_ok {
                whole.is_ok = false;
                whole.message = FAILED_PART_MESSAGE.to_owned();
            }
            if !part.is_ok {
                whole.message.push_str(&failed_part_message(&part.url, &part.code, &part.message));
            }
        }
        Some(whole)
    }

    /// Calls `each` with the rows below that of the whole, and their start times.
    pub(super) fn for_each_row(
        &self,
        owner: SampleOwner<'_>,
        each: &mut dyn FnMut(Instant, JtlRow<'_>),
    ) {
        self.for_each_row_at(0, owner, each);
    }

    fn for_each_row_at(
        &self,
        depth: usize,
        owner: SampleOwner<'_>,
        each: &mut dyn FnMut(Instant, JtlRow<'_>),
    ) {
        if depth > MAX_SUB_SAMPLE_DEPTH || !self.has_sub_samples() {
            return;
        }
        for (number, hop) in self.exchanges.iter().enumerate() {
            each(hop.start, hop.to_row(number, (depth, owner)));
        }
        let mut number = self.exchanges.len();
        for part in &self.embedded_parts {
            // A request without a response at the end of the run is no sample.
            let Some(whole) = part.total_exchange() else { continue };
            each(whole.start, whole.to_row(number, (depth, owner)));
            part.for_each_row_at(depth + 1, owner, each);
            number += 1;
        }
    }
}

impl SubSampleExchange {
    fn to_row<'a>(&'a self, number: usize, (depth, owner): (usize, SampleOwner<'a>)) -> JtlRow<'a> {
        let millis = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
        };
        // JMeter sets thread data on direct sub-samples, and gives the first deeper one no name.
        let is_near = depth == 0;
        let has_name = is_near || number > 0;
        JtlRow {
            elapsed_ms: millis(self.start, self.end),
            label: format!("{}-{number}", owner.sample_name).into(),
            response_code: self.code.as_str().into(),
            response_message: self.message.as_str().into(),
            thread_name: if has_name { owner.thread_name } else { "" }.into(),
            data_type: self.data_type.into(),
            is_ok: self.is_ok,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            group_threads: if is_near { owner.group_threads } else { 0 },
            all_threads: if is_near { owner.all_threads } else { 0 },
            url: self.url.as_str().into(),
            latency_ms: millis(self.start, self.first_byte),
            connect_ms: u64::try_from(self.connect_time.as_millis()).unwrap_or(u64::MAX),
            elapsed_us: {
                let elapsed = self.end.saturating_duration_since(self.start);
                u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
            },
            ..JtlRow::default()
        }
    }
}

/// The prefix of the message of a page with a failed resource.
pub(super) const FAILED_PART_MESSAGE: &str = "Embedded resource download error:";

/// Returns the text for one resource in such a message.
pub(super) fn failed_part_message(url: &str, code: &str, message: &str) -> String {
    format!("{url} code:{code} message:{message}, ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(start: Instant, url: &str, code: &str) -> SubSampleExchange {
        SubSampleExchange {
            url: url.to_owned(),
            code: code.to_owned(),
            message: "m".to_owned(),
            is_ok: code < "4",
            data_type: "text",
            start,
            first_byte: start + Duration::from_millis(1),
            end: start + Duration::from_millis(3),
            connect_time: Duration::ZERO,
            sent_bytes: 10,
            received_bytes: 100,
        }
    }

    fn told(node: &SubSampleNode) -> Vec<String> {
        let owner = SampleOwner {
            sample_name: "s",
            thread_name: "g 1-1",
            group_threads: 1,
            all_threads: 2,
        };
        let mut rows = Vec::new();
        node.for_each_row(owner, &mut |_, row| {
            rows.push(format!(
                "{} {} {} {} [{}] {}/{} {}",
                row.label,
                row.response_code,
                row.url,
                row.received_bytes,
                row.thread_name,
                row.group_threads,
                row.all_threads,
                row.elapsed_ms
            ));
        });
        rows
    }

    #[test]
    fn what_is_one_exchange_has_no_rows_below_it() {
        let mut node = SubSampleNode::default();
        assert_eq!(told(&node), Vec::<String>::new());
        node.add_exchange(leaf(Instant::now(), "u", "200"));
        assert_eq!(told(&node), Vec::<String>::new());
    }

    #[test]
    fn hops_come_before_parts_and_what_a_part_consists_of_below_it() {
        let now = Instant::now();
        let later = now + Duration::from_millis(10);
        let mut node = SubSampleNode::default();
        node.add_exchange(leaf(now, "a", "302"));
        node.add_exchange(leaf(now, "b", "200"));
        let (first, second) = (node.open_part(&[]), node.open_part(&[]));
        let third = node.open_part(&[]);
        assert_eq!((first.as_slice(), second.as_slice()), (&[0][..], &[1][..]));
        // The second one ends first, redirects, and refers to one of its own; the third has no response.
        node.part_at(&second).unwrap().add_exchange(leaf(now, "style", "302"));
        node.part_at(&second).unwrap().add_exchange(leaf(now, "style2", "200"));
        let inner = node.open_part(&second);
        node.part_at(&first).unwrap().add_exchange(leaf(now, "image", "200"));
        node.part_at(&inner).unwrap().add_exchange(leaf(later, "import", "404"));
        assert!(node.part_at(&third).is_some() && node.part_at(&[7]).is_none());
        assert_eq!(
            told(&node),
            [
                "s-0 302 a 100 [g 1-1] 1/2 3",
                "s-1 200 b 100 [g 1-1] 1/2 3",
                "s-2 200 image 100 [g 1-1] 1/2 3",
                "s-3 200 style2 300 [g 1-1] 1/2 13",
                "s-0 302 style 100 [] 0/0 3",
                "s-1 200 style2 100 [g 1-1] 0/0 3",
                "s-2 404 import 100 [g 1-1] 0/0 3",
            ]
        );
        let whole = node.part_at(&second).unwrap().total_exchange().unwrap();
        assert!(!whole.is_ok);
        assert_eq!(whole.message, format!("{FAILED_PART_MESSAGE}import code:404 message:m, "));
    }

    #[test]
    fn an_unreported_redirect_is_one_exchange() {
        let now = Instant::now();
        let mut node = SubSampleNode::default();
        node.extend_last_exchange(leaf(now, "a", "302"));
        node.extend_last_exchange(leaf(now + Duration::from_millis(5), "b", "200"));
        assert!(!node.has_sub_samples());
        let whole = node.total_exchange().unwrap();
        assert_eq!(
            (whole.url.as_str(), whole.code.as_str(), whole.received_bytes),
            ("b", "200", 200)
        );
        assert_eq!(whole.end - whole.start, Duration::from_millis(8));
    }

    #[test]
    fn too_many_redirects_are_a_row_of_their_own() {
        let mut node = SubSampleNode::default();
        node.add_exchange(leaf(Instant::now(), "a", "302"));
        node.add_failure("Non HTTP response code: x", "too many");
        assert_eq!(told(&node)[1], "s-1 Non HTTP response code: x a 100 [g 1-1] 1/2 3");
    }
}
