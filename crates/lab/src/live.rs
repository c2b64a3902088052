//! Shows a run while it goes on: a board that is drawn anew every second on a terminal, a line every ten seconds elsewhere.
//!
//! In: what the workers measured in a second. Out: text for a terminal, or lines.
//!
//! Invariants
//! * The board is taken away before anything else is written, and at the end: what a run prints stays whole.
//! * Percentiles are of histograms that were added, as in reports.
//!
//! On failure: what cannot be written is not shown; the run goes on.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::goal::{self, Goal};
use crate::load::{Observer, processors};
use crate::record::{Interval, Results, Timing, told};

/// Seconds between lines where there is no terminal.
const PAUSE: u64 = 10;
/// Seconds that the curve of rates shows.
const CURVE: usize = 60;
/// Most labels on the board.
const MOST_LABELS: usize = 8;
/// Longest label on the board, in letters.
const LONGEST_LABEL: usize = 40;

/// Where a run is shown.
pub struct Live {
    out: Box<dyn Write + Send>,
    form: Form,
    title: String,
    /// How long the run lasts, if that is known.
    lasts: Option<Duration>,
    started: Instant,
    seconds: u64,
    told: u64,
    /// Lines of the board that stand on the terminal.
    drawn: usize,
    recent: Window,
    whole: Window,
    labels: BTreeMap<Arc<str>, Window>,
    /// Goals whose miss ends the run.
    goals: Vec<Goal>,
    curve: VecDeque<u64>,
    cpu: HashMap<usize, Duration>,
}

/// What the place takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A terminal: a board that is drawn anew.
    Board,
    /// Anything else: a line now and then.
    Lines,
}

/// What was measured in some span of time.
#[derive(Debug, Clone, Default)]
struct Window {
    times: Timing,
    errors: u64,
    received: u64,
    lag: Timing,
    cpu: Duration,
    active: u64,
    late: u64,
}

impl Window {
    fn count(&self) -> u64 {
        self.times.count()
    }

    fn percentiles(&self) -> String {
        let ms = |share: f64| shown(self.times.quantile(share));
        format!("p50 {:>8}  p95 {:>8}  p99 {:>8}  max {:>8}", ms(0.5), ms(0.95), ms(0.99), ms(1.0))
    }

    fn error_rate(&self) -> f64 {
        if self.count() == 0 { 0.0 } else { self.errors as f64 / self.count() as f64 * 100.0 }
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live")
            .field("form", &self.form)
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

fn shown(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms >= 10_000.0 {
        format!("{:.1} s", ms / 1000.0)
    } else if ms >= 100.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.2} ms")
    }
}

fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3600 {
        0 => format!("{:02}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// Returns a row of blocks as high as the numbers.
fn bars(numbers: &VecDeque<u64>) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let block = |number: &u64| {
        let height = usize::try_from(number * 7 / most).unwrap_or(0);
        BLOCKS.get(height).copied().unwrap_or('█')
    };
    numbers.iter().map(block).collect()
}

impl Live {
    /// Shows a run called `title` at `out`.
    #[must_use]
    pub fn new(
        out: Box<dyn Write + Send>,
        form: Form,
        title: &str,
        lasts: Option<Duration>,
    ) -> Self {
        Self {
            out,
            form,
            // What a plan or an address holds must not steer the terminal.
            title: title.chars().filter(|letter| !letter.is_control()).collect(),
            lasts,
            started: Instant::now(),
            seconds: 0,
            told: 0,
            drawn: 0,
            recent: Window::default(),
            whole: Window::default(),
            labels: BTreeMap::new(),
            curve: VecDeque::new(),
            cpu: HashMap::new(),
            goals: Vec::new(),
        }
    }

    /// Says how long the run lasts, where that is known only when it begins.
    pub(crate) fn set_length(&mut self, lasts: Duration) {
        self.lasts = Some(lasts);
    }

    /// Ends a run that misses a goal with [`Goal::abort_after`].
    pub fn guard(&mut self, goals: &[Goal]) {
        self.goals = goals.to_vec();
    }

    /// Takes the board away, so that something else can be written.
    pub fn clear(&mut self) {
        if self.drawn > 0 {
            let text = format!("\x1b[{}A\x1b[J", self.drawn);
            self.drawn = 0;
            self.write(&text);
        }
    }

    fn write(&mut self, text: &str) {
        // A terminal that is gone is no reason to end a run.
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).ok();
    }

    fn take(&mut self, interval: &Interval) {
        let before = self.cpu.insert(interval.worker, interval.cpu).unwrap_or_default();
        let cpu = interval.cpu.saturating_sub(before);
        for window in [&mut self.recent, &mut self.whole] {
            window.lag.add(&interval.lag);
            window.cpu += cpu;
            window.late += interval.late;
            window.active = interval.active;
        }
        for (name, stats, is_transaction) in &interval.labels {
            // Sums of transactions count samples again that are there by themselves.
            if *is_transaction {
                continue;
            }
            let known = &self.labels;
            let name = told(name, |name| known.contains_key(name), known.len());
            if !self.labels.contains_key(name) {
                self.labels.insert(name.into(), Window::default());
            }
            let label = self.labels.get_mut(name);
            for window in label.into_iter().chain([&mut self.recent, &mut self.whole]) {
                window.times.add(&stats.response);
                window.errors += stats.errors;
                window.received += stats.received;
            }
        }
    }

    fn tick(&mut self) {
        self.seconds += 1;
        self.curve.push_back(self.recent.count());
        if self.curve.len() > CURVE {
            self.curve.pop_front();
        }
        match self.form {
            Form::Board => {
                let board = self.board();
                self.clear();
                // Long lines are cut by the terminal, or the board would have more lines than it knows.
                let text = format!("\x1b[?7l{}\n\x1b[?7h", board.join("\n"));
                self.drawn = board.len();
                self.write(&text);
                self.recent = Window::default();
            }
            Form::Lines if self.seconds.is_multiple_of(PAUSE) => {
                let line = self.line();
                self.write(&format!("{line}\n"));
                self.told = self.seconds;
                self.recent = Window::default();
            }
            Form::Lines => {}
        }
    }

    fn cpu_share(window: &Window, seconds: f64) -> f64 {
        window.cpu.as_secs_f64() / seconds.max(0.001) / processors() as f64 * 100.0
    }

    fn line(&self) -> String {
        let span = (self.seconds - self.told).max(1) as f64;
        let recent = &self.recent;
        format!(
            "{} {:.1}/s, {}, {} errors ({:.2} %), {} users, own CPU {:.0} %, own lag p99 {}",
            clock(self.started.elapsed()),
            recent.count() as f64 / span,
            recent.percentiles().split_whitespace().collect::<Vec<_>>().join(" "),
            recent.errors,
            recent.error_rate(),
            recent.active,
            Self::cpu_share(recent, span),
            shown(recent.lag.quantile(0.99)),
        )
    }

    /// Returns the lines of the board.
    fn board(&self) -> Vec<String> {
        let (recent, whole) = (&self.recent, &self.whole);
        let elapsed = self.started.elapsed();
        let of = self.lasts.map_or_else(String::new, |lasts| format!(" of {}", clock(lasts)));
        let mean = whole.count() as f64 / elapsed.as_secs_f64().max(0.001);
        let mut lines = vec![
            format!("\x1b[1m{}\x1b[0m  {}{of}", self.title, clock(elapsed)),
            format!("rate      {:>9}/s  {}", recent.count(), bars(&self.curve)),
            format!("now       {}", recent.percentiles()),
            format!("all       {}  {} requests, {mean:.1}/s", whole.percentiles(), whole.count()),
            format!(
                "errors    {:>9}    {:.2} % of all, {} in this second",
                whole.errors,
                whole.error_rate(),
                recent.errors
            ),
            format!(
                "users     {:>9}    received {:.2} MB/s",
                recent.active,
                recent.received as f64 / 1e6
            ),
            format!(
                "lab       CPU {:>4.0} %    lag p99 {}, {} arrivals late{}",
                Self::cpu_share(recent, 1.0),
                shown(recent.lag.quantile(0.99)),
                whole.late,
                self.warning()
            ),
        ];
        if self.labels.len() > 1 {
            lines.extend(self.label_lines());
        }
        lines
    }

    /// Returns a warning if the generator is at its limits, by the marks of [`crate::honesty`].
    fn warning(&self) -> &'static str {
        let is_late = self.recent.lag.quantile(0.99) > Duration::from_millis(10);
        let is_busy = Self::cpu_share(&self.recent, 1.0) > 85.0;
        if is_late || is_busy { "  \x1b[33mnear its limits\x1b[0m" } else { "" }
    }

    fn label_lines(&self) -> Vec<String> {
        let mut most: Vec<(&Arc<str>, &Window)> = self.labels.iter().collect();
        most.sort_by_key(|(_, window)| std::cmp::Reverse(window.count()));
        let left = most.len().saturating_sub(MOST_LABELS);
        let mut lines: Vec<String> = most
            .iter()
            .take(MOST_LABELS)
            .map(|(label, window)| {
                let label: String = label
                    .chars()
                    .filter(|letter| !letter.is_control())
                    .take(LONGEST_LABEL)
                    .collect();
                format!(
                    "  {label:<LONGEST_LABEL$} {:>9}  p50 {:>8}  p95 {:>8}  {:>6} errors",
                    window.count(),
                    shown(window.times.quantile(0.5)),
                    shown(window.times.quantile(0.95)),
                    window.errors
                )
            })
            .collect();
        if left > 0 {
            lines.push(format!("  and {left} more"));
        }
        lines
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Observer for Live {
    fn second(&mut self) {
        self.tick();
    }

    fn interval(&mut self, interval: &Interval) {
        self.take(interval);
    }

    fn end(&mut self, _: &Results, _: bool) {
        self.clear();
        // The next part of a plan has workers of its own, whose processor time begins anew.
        self.cpu.clear();
    }

    fn breach(&self, results: &Results) -> Option<String> {
        goal::breach(&self.goals, results)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::record::Stats;

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    /// Returns what a terminal shows after it was sent `text`.
    fn screen(text: &str) -> Vec<String> {
        let (mut lines, mut at) = (vec![String::new()], 0usize);
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            if let Some(code) = rest.strip_prefix("\x1b[") {
                let end = code.find(|c: char| c.is_ascii_alphabetic()).unwrap();
                match &code[end..=end] {
                    "A" => at -= code[..end].parse::<usize>().unwrap(),
                    "J" => {
                        lines.truncate(at);
                        lines.push(String::new());
                    }
                    _ => {}
                }
                rest = &code[end + 1..];
                continue;
            }
            if letter == '\n' {
                at += 1;
                lines.resize(lines.len().max(at + 1), String::new());
            } else {
                lines[at].push(letter);
            }
            rest = &rest[letter.len_utf8()..];
        }
        lines
    }

    fn interval(label: &str, ms: u64, cpu: u64) -> Interval {
        let mut stats = Stats::default();
        stats.response.record_us(ms * 1000, 10);
        stats.errors = 1;
        Interval {
            worker: 0,
            second: 0,
            labels: vec![(label.into(), stats, false)],
            lag: Timing::new(),
            late: 2,
            unsent: 0,
            repeated: 0,
            active: 4,
            cpu: Duration::from_millis(cpu),
            traces: Vec::new(),
            slowest: Vec::new(),
        }
    }

    #[test]
    fn the_board_is_drawn_in_its_place_and_taken_away() {
        let paper = Paper::default();
        let title = "GET \x1b]0;title\x07/";
        let mut live =
            Live::new(Box::new(paper.clone()), Form::Board, title, Some(Duration::from_secs(90)));
        for round in 1..=3 {
            live.interval(&interval("one", 20, round * 100));
            live.interval(&interval("two", 40, round * 100));
            live.second();
        }
        let seen = screen(&paper.text());
        assert!(seen[0].starts_with("GET ]0;title/  00:00 of 01:30"), "{seen:?}");
        assert!(seen[1].starts_with("rate             20/s  ███"), "{seen:?}");
        assert!(seen[2].contains("p50 20.0") && seen[2].contains("p95 40.0"), "{seen:?}");
        assert!(seen[3].contains("60 requests"), "{seen:?}");
        assert!(seen[4].contains("6    10.00 % of all, 2 in this second"), "{seen:?}");
        assert!(seen[5].starts_with("users             4"), "{seen:?}");
        assert!(seen[7].starts_with("  one"), "{seen:?}");
        assert_eq!(seen.len(), 10, "{seen:?}");
        live.clear();
        live.clear();
        paper.clone().write_all(b"a line\n").unwrap();
        live.second();
        drop(live);
        assert_eq!(screen(&paper.text())[0], "a line");
        assert_eq!(screen(&paper.text()).concat(), "a line");
    }

    #[test]
    fn without_a_terminal_lines_are_told_now_and_then() {
        let paper = Paper::default();
        let mut live = Live::new(Box::new(paper.clone()), Form::Lines, "x", None);
        for _ in 0..25 {
            live.interval(&interval("one", 2, 0));
            live.second();
        }
        drop(live);
        let text = paper.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("00:00 10.0/s, p50 2.00 ms p95 2.00 ms"), "{text}");
        assert!(text.contains("10 errors (10.00 %), 4 users"), "{text}");
    }
}
