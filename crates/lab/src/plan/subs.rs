//! What a sample consists of where it is more than one exchange: hops of redirects, and parts of a page with theirs.
//!
//! In: exchanges as they end. Out: their rows, as JMeter 5 writes them below the row of the sample: named by the sample with
//! a number behind it, hops before parts, and what a part consists of directly below it.

use std::time::{Duration, Instant};

use crate::record::jtl::Row;

/// One exchange.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) url: String,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) is_ok: bool,
    pub(super) data_type: &'static str,
    pub(super) started: Instant,
    pub(super) first_byte: Instant,
    pub(super) ended: Instant,
    pub(super) connect: Duration,
    pub(super) sent: u64,
    pub(super) received: u64,
}

/// A sample, or a part of one.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// The request, and those that redirects led to.
    hops: Vec<Leaf>,
    /// What the last answer refers to, in its order.
    parts: Vec<Node>,
}

/// Whose sample it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Who<'a> {
    pub(super) sample: &'a str,
    pub(super) thread: &'a str,
    pub(super) group_threads: u64,
    pub(super) all_threads: u64,
}

/// Deepest level that JMeter writes.
const DEEPEST: usize = 10;

impl Node {
    /// Adds an exchange.
    pub(super) fn add(&mut self, hop: Leaf) {
        self.hops.push(hop);
    }

    /// Adds an exchange to the one before it: a redirect that nobody is told of.
    pub(super) fn extend(&mut self, hop: Leaf) {
        let Some(first) = self.hops.pop() else { return self.hops.push(hop) };
        self.hops.push(Leaf {
            started: first.started,
            first_byte: first.first_byte,
            connect: first.connect,
            sent: first.sent + hop.sent,
            received: first.received + hop.received,
            ..hop
        });
    }

    /// Adds a copy of the last exchange that tells of a failure beyond it.
    pub(super) fn fail(&mut self, code: &str, message: &str) {
        let Some(last) = self.hops.last().cloned() else { return };
        let (code, message) = (code.to_owned(), message.to_owned());
        self.hops.push(Leaf { code, message, is_ok: false, ..last });
    }

    /// Returns the part at a path of numbers.
    pub(super) fn at(&mut self, path: &[usize]) -> Option<&mut Self> {
        path.iter().try_fold(self, |node, place| node.parts.get_mut(*place))
    }

    /// Makes room for a part of the one at `path`; returns the new one's path.
    pub(super) fn open(&mut self, path: &[usize]) -> Vec<usize> {
        let Some(node) = self.at(path) else { return path.to_vec() };
        node.parts.push(Self::default());
        let place = node.parts.len() - 1;
        path.iter().copied().chain([place]).collect()
    }

    /// Reports whether it is more than one exchange.
    pub(super) fn is_several(&self) -> bool {
        self.hops.len() > 1 || !self.parts.is_empty()
    }

    /// Returns what all of it amounts to; nothing if nothing of it ended.
    fn whole(&self) -> Option<Leaf> {
        let (first, last) = (self.hops.first()?, self.hops.last()?);
        let mut whole = Leaf {
            started: first.started,
            first_byte: first.first_byte,
            connect: first.connect,
            sent: self.hops.iter().map(|hop| hop.sent).sum(),
            received: self.hops.iter().map(|hop| hop.received).sum(),
            ..last.clone()
        };
        for part in self.parts.iter().filter_map(Self::whole) {
            whole.ended = whole.ended.max(part.ended);
            whole.sent += part.sent;
            whole.received += part.received;
            if !part.is_ok && whole.is_ok {
                whole.is_ok = false;
                whole.message = LOST_PART.to_owned();
            }
            if !part.is_ok {
                whole.message.push_str(&lost(&part.url, &part.code, &part.message));
            }
        }
        Some(whole)
    }

    /// Calls `each` with the rows below that of the whole, and when each began.
    pub(super) fn rows(&self, who: Who<'_>, each: &mut dyn FnMut(Instant, Row<'_>)) {
        self.rows_at(0, who, each);
    }

    fn rows_at(&self, depth: usize, who: Who<'_>, each: &mut dyn FnMut(Instant, Row<'_>)) {
        if depth > DEEPEST || !self.is_several() {
            return;
        }
        for (number, hop) in self.hops.iter().enumerate() {
            each(hop.started, hop.row(number, (depth, who)));
        }
        let mut number = self.hops.len();
        for part in &self.parts {
            // What was never answered because the run ended is no sample.
            let Some(whole) = part.whole() else { continue };
            each(whole.started, whole.row(number, (depth, who)));
            part.rows_at(depth + 1, who, each);
            number += 1;
        }
    }
}

impl Leaf {
    fn row<'a>(&'a self, number: usize, (depth, who): (usize, Who<'a>)) -> Row<'a> {
        let millis = |from: Instant, to: Instant| {
            u64::try_from(to.saturating_duration_since(from).as_millis()).unwrap_or(u64::MAX)
        };
        // JMeter fills in threads for what stands directly below a sample, and gives the first one farther down no name.
        let is_near = depth == 0;
        let has_name = is_near || number > 0;
        Row {
            elapsed: millis(self.started, self.ended),
            label: format!("{}-{number}", who.sample).into(),
            code: self.code.as_str().into(),
            message: self.message.as_str().into(),
            thread: if has_name { who.thread } else { "" }.into(),
            data_type: self.data_type.into(),
            is_ok: self.is_ok,
            bytes: self.received,
            sent: self.sent,
            group_threads: if is_near { who.group_threads } else { 0 },
            all_threads: if is_near { who.all_threads } else { 0 },
            url: self.url.as_str().into(),
            latency: millis(self.started, self.first_byte),
            connect: u64::try_from(self.connect.as_millis()).unwrap_or(u64::MAX),
            elapsed_us: {
                let elapsed = self.ended.saturating_duration_since(self.started);
                u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
            },
            ..Row::default()
        }
    }
}

/// How the message of a page begins of which a part failed.
pub(super) const LOST_PART: &str = "Embedded resource download error:";

/// Returns what such a message says of one part.
pub(super) fn lost(url: &str, code: &str, message: &str) -> String {
    format!("{url} code:{code} message:{message}, ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(start: Instant, url: &str, code: &str) -> Leaf {
        Leaf {
            url: url.to_owned(),
            code: code.to_owned(),
            message: "m".to_owned(),
            is_ok: code < "4",
            data_type: "text",
            started: start,
            first_byte: start + Duration::from_millis(1),
            ended: start + Duration::from_millis(3),
            connect: Duration::ZERO,
            sent: 10,
            received: 100,
        }
    }

    fn told(node: &Node) -> Vec<String> {
        let who = Who { sample: "s", thread: "g 1-1", group_threads: 1, all_threads: 2 };
        let mut rows = Vec::new();
        node.rows(who, &mut |_, row| {
            rows.push(format!(
                "{} {} {} {} [{}] {}/{} {}",
                row.label,
                row.code,
                row.url,
                row.bytes,
                row.thread,
                row.group_threads,
                row.all_threads,
                row.elapsed
            ));
        });
        rows
    }

    #[test]
    fn what_is_one_exchange_has_no_rows_below_it() {
        let mut node = Node::default();
        assert_eq!(told(&node), Vec::<String>::new());
        node.add(leaf(Instant::now(), "u", "200"));
        assert_eq!(told(&node), Vec::<String>::new());
    }

    #[test]
    fn hops_come_before_parts_and_what_a_part_consists_of_below_it() {
        let now = Instant::now();
        let later = now + Duration::from_millis(10);
        let mut node = Node::default();
        node.add(leaf(now, "a", "302"));
        node.add(leaf(now, "b", "200"));
        let (first, second) = (node.open(&[]), node.open(&[]));
        let third = node.open(&[]);
        assert_eq!((first.as_slice(), second.as_slice()), (&[0][..], &[1][..]));
        // The second one ends first, leads on, and refers to one of its own; of the third nothing came.
        node.at(&second).unwrap().add(leaf(now, "style", "302"));
        node.at(&second).unwrap().add(leaf(now, "style2", "200"));
        let inner = node.open(&second);
        node.at(&first).unwrap().add(leaf(now, "image", "200"));
        node.at(&inner).unwrap().add(leaf(later, "import", "404"));
        assert!(node.at(&third).is_some() && node.at(&[7]).is_none());
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
        let whole = node.at(&second).unwrap().whole().unwrap();
        assert!(!whole.is_ok);
        assert_eq!(whole.message, format!("{LOST_PART}import code:404 message:m, "));
    }

    #[test]
    fn a_redirect_that_nobody_is_told_of_is_one_exchange() {
        let now = Instant::now();
        let mut node = Node::default();
        node.extend(leaf(now, "a", "302"));
        node.extend(leaf(now + Duration::from_millis(5), "b", "200"));
        assert!(!node.is_several());
        let whole = node.whole().unwrap();
        assert_eq!((whole.url.as_str(), whole.code.as_str(), whole.received), ("b", "200", 200));
        assert_eq!(whole.ended - whole.started, Duration::from_millis(8));
    }

    #[test]
    fn too_many_redirects_are_a_row_of_their_own() {
        let mut node = Node::default();
        node.add(leaf(Instant::now(), "a", "302"));
        node.fail("Non HTTP response code: x", "too many");
        assert_eq!(told(&node)[1], "s-1 Non HTTP response code: x a 100 [g 1-1] 1/2 3");
    }
}
