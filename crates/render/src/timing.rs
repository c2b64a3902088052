//! Times and reads of each component of a request: always on, a tree of calls with total and self time.
//!
//! Calls of the same script below the same caller share a row, so a page of a thousand teasers has one row for them.
//! The cost is two clock readings per component.

pub mod profile;

use std::sync::Arc;
use std::time::{Duration, Instant};

/// One row of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimingRow {
    /// The script's path, or the name of the work if it has no script.
    pub script: Arc<str>,
    /// The path of the first node rendered in this row.
    pub path: Arc<str>,
    /// The call depth of the row; the request itself is 0.
    pub depth: usize,
    /// Number of calls of the script here.
    pub call_count: u64,
    /// Time from start to end, including calls.
    pub total_time: Duration,
    /// Time excluding the components called from here.
    pub self_time: Duration,
    /// Lookups of nodes and listings, including those of components called from here.
    pub read_count: u64,
    /// Queries, including those of components called from here.
    pub query_count: u64,
}

/// Counters at a point in a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadCounts {
    pub read_count: u64,
    pub query_count: u64,
}

/// The finished times of one request, each row before the rows it called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderTiming {
    /// The rows, in the order of their first call.
    pub rows: Vec<TimingRow>,
}

impl RenderTiming {
    /// Returns the time of the whole request.
    #[must_use]
    pub fn total_time(&self) -> Duration {
        self.rows.iter().filter(|row| row.depth == 0).map(|row| row.total_time).sum()
    }

    /// Writes one line per row: total and self microseconds, calls, lookups, queries, script.
    #[must_use]
    pub fn to_text(&self) -> String {
        let line = |row: &TimingRow| {
            let (total, own) = (row.total_time.as_micros(), row.self_time.as_micros());
            let indent = "  ".repeat(row.depth);
            let TimingRow { call_count, read_count, query_count, script, path, .. } = row;
            format!(
                "{total:>8} {own:>8} {call_count:>5} {read_count:>5} {query_count:>3}  {indent}{script} {path}\n"
            )
        };
        self.rows.iter().map(line).collect()
    }
}

/// A row while the request runs.
#[derive(Debug)]
struct OpenTimingRow {
    row: TimingRow,
    parent: Option<usize>,
    /// Time of the rows called from this one.
    child_time: Duration,
}

impl OpenTimingRow {
    /// Returns the row with its self time.
    fn to_row(&self) -> TimingRow {
        TimingRow {
            self_time: self.row.total_time.saturating_sub(self.child_time),
            ..self.row.clone()
        }
    }

    /// Returns the row with its self time, reusing its memory.
    fn into_row(self) -> TimingRow {
        TimingRow { self_time: self.row.total_time.saturating_sub(self.child_time), ..self.row }
    }
}

/// Measures the times of a running request.
#[derive(Debug, Default)]
pub(crate) struct RenderStopwatch {
    /// True to measure nothing, so that the cost of timing itself can be measured.
    is_disabled: bool,
    rows: Vec<OpenTimingRow>,
    /// The running rows with their start times.
    running_calls: Vec<(usize, Instant, ReadCounts)>,
}

impl RenderStopwatch {
    /// Creates a disabled stopwatch.
    pub(crate) fn disabled() -> Self {
        Self { is_disabled: true, ..Self::default() }
    }

    /// Begins a call; [`RenderStopwatch::end_call`] must follow.
    pub(crate) fn begin_call(
        &mut self,
        script: &Arc<str>,
        path: &str,
        read_clock: impl FnOnce() -> (Instant, ReadCounts),
    ) {
        if self.is_disabled {
            return;
        }
        let parent = self.running_calls.last().map(|(at, ..)| *at);
        // The same script usually is the same text in memory.
        let is_script = |own: &Arc<str>| Arc::ptr_eq(own, script) || *own == *script;
        let is_same_call =
            |open: &OpenTimingRow| open.parent == parent && is_script(&open.row.script);
        let at = self.rows.iter().rposition(is_same_call).unwrap_or_else(|| {
            self.rows.push(OpenTimingRow {
                row: self.new_row(script, path),
                parent,
                child_time: Duration::ZERO,
            });
            self.rows.len() - 1
        });
        // The clock is read last here and first in `end`, so that the overhead counts for the caller.
        let (now, counted) = read_clock();
        self.running_calls.push((at, now, counted));
    }

    /// Creates a row below the running one.
    fn new_row(&self, script: &Arc<str>, path: &str) -> TimingRow {
        TimingRow {
            script: Arc::clone(script),
            path: path.into(),
            depth: self.running_calls.len(),
            call_count: 0,
            total_time: Duration::ZERO,
            self_time: Duration::ZERO,
            read_count: 0,
            query_count: 0,
        }
    }

    /// Ends the call that began last.
    pub(crate) fn end_call(&mut self, read_clock: impl FnOnce() -> (Instant, ReadCounts)) {
        if self.is_disabled {
            return;
        }
        let (now, counted) = read_clock();
        let Some((at, began, before)) = self.running_calls.pop() else {
            return;
        };
        let elapsed = now.saturating_duration_since(began);
        let Some(open) = self.rows.get_mut(at) else {
            return;
        };
        open.row.call_count += 1;
        open.row.total_time += elapsed;
        open.row.read_count += counted.read_count.saturating_sub(before.read_count);
        open.row.query_count += counted.query_count.saturating_sub(before.query_count);
        let parent = open.parent;
        if let Some(caller) = parent.and_then(|at| self.rows.get_mut(at)) {
            caller.child_time += elapsed;
        }
    }

    /// Returns the tree, depth first.
    pub(crate) fn finish(self) -> RenderTiming {
        // Most requests already have this order.
        if self.is_depth_first() {
            return RenderTiming {
                rows: self.rows.into_iter().map(OpenTimingRow::into_row).collect(),
            };
        }
        let mut rows = Vec::with_capacity(self.rows.len());
        let mut pending: Vec<usize> = self.child_rows(None);
        while let Some(at) = pending.pop() {
            rows.extend(self.rows.get(at).map(OpenTimingRow::to_row));
            pending.extend(self.child_rows(Some(at)));
        }
        RenderTiming { rows }
    }

    /// Returns true if each row was called first from the row before it, or from an ancestor of that row.
    fn is_depth_first(&self) -> bool {
        let parent_of = |at: usize| self.rows.get(at).and_then(|open| open.parent);
        self.rows.iter().enumerate().all(|(at, open)| {
            let mut above = std::iter::successors(at.checked_sub(1), |at| parent_of(*at));
            open.parent.is_none() || above.any(|at| Some(at) == open.parent)
        })
    }

    /// Returns the rows called from a row, last first.
    fn child_rows(&self, parent: Option<usize>) -> Vec<usize> {
        let rows = self.rows.iter().enumerate().rev();
        rows.filter(|(_, open)| open.parent == parent).map(|(at, _)| at).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_called_for_the_first_time_later_comes_behind_its_caller() {
        let read_clock = || (Instant::now(), ReadCounts::default());
        let [page, par, text, list] = ["page", "par", "text", "list"].map(Arc::<str>::from);
        let mut watch = RenderStopwatch::default();
        watch.begin_call(&page, "/p", read_clock);
        for calls in [&[&text][..], &[&list, &text]] {
            watch.begin_call(&par, "/p/par", read_clock);
            for script in calls {
                watch.begin_call(script, "/p/x", read_clock);
                watch.end_call(read_clock);
            }
            watch.end_call(read_clock);
            watch.begin_call(&text, "/p/text", read_clock);
            watch.end_call(read_clock);
        }
        watch.end_call(read_clock);
        let rows = watch.finish().rows;
        let descriptions: Vec<String> = rows
            .iter()
            .map(|row| format!("{} {} {}x", row.depth, row.script, row.call_count))
            .collect();
        assert_eq!(descriptions, ["0 page 1x", "1 par 2x", "2 text 2x", "2 list 1x", "1 text 2x"]);
    }

    #[test]
    fn shares_rows_and_splits_self_from_total() {
        let start = Instant::now();
        let at = |ms| {
            let counted = ReadCounts { read_count: 2 * ms, query_count: ms / 5 };
            move || (start + Duration::from_millis(ms), counted)
        };
        let [page, par, text] = ["page", "par", "text"].map(Arc::<str>::from);
        let mut watch = RenderStopwatch::default();
        watch.begin_call(&page, "/p", at(0));
        watch.begin_call(&par, "/p/par", at(1));
        for n in 0..3 {
            watch.begin_call(&text, &format!("/p/par/t{n}"), at(2 + 2 * n));
            watch.end_call(at(3 + 2 * n));
        }
        watch.end_call(at(9));
        watch.begin_call(&text, "/p/footer", at(9));
        watch.end_call(at(10));
        watch.end_call(at(12));
        let timing = watch.finish();
        let rows: Vec<String> = timing
            .rows
            .iter()
            .map(|row| {
                let (total, own) = (row.total_time.as_millis(), row.self_time.as_millis());
                let TimingRow { depth, script, path, call_count, read_count, query_count, .. } =
                    row;
                format!(
                    "{depth} {script} {path} {call_count}x {total} {own} {read_count} {query_count}"
                )
            })
            .collect();
        let expected = [
            "0 page /p 1x 12 3 24 2",
            "1 par /p/par 1x 8 5 16 1",
            "2 text /p/par/t0 3x 3 3 6 1",
            "1 text /p/footer 1x 1 1 2 1",
        ];
        assert_eq!(rows, expected);
        assert_eq!(timing.total_time(), Duration::from_millis(12));
        assert_eq!(timing.to_text().lines().count(), 4);
    }
}
