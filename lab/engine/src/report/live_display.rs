//! Displays the progress of a run: a board that is redrawn every second on a terminal, a line every ten seconds
//! elsewhere.
//!
//! In: the measurements of the workers per second. Out: text for a terminal, or lines.
//!
//! Invariants
//! * The board is erased before anything else is written, and at the end, so that the output of a run stays intact.
//! * Percentiles come from merged histograms, as in reports.
//!
//! On failure: output that cannot be written is dropped; the run continues.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_plan::goal::LoadGoal;

use crate::load::{LoadObserver, processor_count};
use crate::measurement::{RunResults, TimingHistogram, WorkerInterval, counted_label};
use crate::report::goal;

/// Seconds between lines without a terminal.
const LINE_INTERVAL_SECONDS: u64 = 10;
/// Seconds in the rate chart.
const CURVE_SECONDS: usize = 60;
/// Maximum number of labels on the board.
const MAX_BOARD_LABELS: usize = 8;
/// Maximum length of a label on the board, in characters.
const MAX_LABEL_CHARS: usize = 40;

/// The live display of a run.
pub struct LiveDisplay {
    output: Box<dyn Write + Send>,
    mode: LiveDisplayMode,
    title: String,
    /// Duration of the run, if known.
    run_duration: Option<Duration>,
    started_at: Instant,
    elapsed_seconds: u64,
    last_line_second: u64,
    /// Number of board lines on the terminal.
    board_lines: usize,
    /// True if lines have colors and bold type.
    is_colored: bool,
    recent_window: LiveWindow,
    total_window: LiveWindow,
    label_windows: BTreeMap<Arc<str>, LiveWindow>,
    /// Goals whose miss ends the run.
    abort_goals: Vec<LoadGoal>,
    rate_curve: VecDeque<u64>,
    cpu_by_worker: HashMap<usize, Duration>,
}

/// The kind of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveDisplayMode {
    /// A terminal: a board that is redrawn.
    Board,
    /// Anything else: a line at intervals.
    Lines,
}

/// The measurements of a time span.
#[derive(Debug, Clone, Default)]
struct LiveWindow {
    response_times: TimingHistogram,
    errors: u64,
    received_bytes: u64,
    schedule_lag: TimingHistogram,
    cpu_time: Duration,
    active_users: u64,
    late_arrivals: u64,
}

impl LiveWindow {
    fn sample_count(&self) -> u64 {
        self.response_times.count()
    }

    fn format_percentiles(&self) -> String {
        let ms = |share: f64| format_duration(self.response_times.quantile(share));
        format!("p50 {:>8}  p95 {:>8}  p99 {:>8}  max {:>8}", ms(0.5), ms(0.95), ms(0.99), ms(1.0))
    }

    fn error_rate(&self) -> f64 {
        if self.sample_count() == 0 {
            0.0
        } else {
            self.errors as f64 / self.sample_count() as f64 * 100.0
        }
    }
}

impl std::fmt::Debug for LiveDisplay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveDisplay")
            .field("form", &self.mode)
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

fn format_duration(time: Duration) -> String {
    let ms = time.as_secs_f64() * 1000.0;
    if ms >= 10_000.0 {
        format!("{:.1} s", ms / 1000.0)
    } else if ms >= 100.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{ms:.2} ms")
    }
}

fn format_clock(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 3600 {
        0 => format!("{:02}:{:02}", seconds / 60, seconds % 60),
        hours => format!("{hours}:{:02}:{:02}", seconds / 60 % 60, seconds % 60),
    }
}

/// Returns a bar chart of the numbers in block characters.
fn format_bars(numbers: &VecDeque<u64>) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = numbers.iter().copied().max().unwrap_or(0).max(1);
    let block = |number: &u64| {
        let height = usize::try_from(number * 7 / most).unwrap_or(0);
        BLOCKS.get(height).copied().unwrap_or('█')
    };
    numbers.iter().map(block).collect()
}

impl LiveDisplay {
    /// Creates a display of a run called `title` that writes to `out`.
    #[must_use]
    pub fn new(
        out: Box<dyn Write + Send>,
        form: LiveDisplayMode,
        title: &str,
        duration: Option<Duration>,
    ) -> Self {
        Self {
            output: out,
            mode: form,
            // Text from a plan or a URL must not control the terminal.
            title: title.chars().filter(|letter| !letter.is_control()).collect(),
            run_duration: duration,
            started_at: Instant::now(),
            elapsed_seconds: 0,
            last_line_second: 0,
            board_lines: 0,
            is_colored: true,
            recent_window: LiveWindow::default(),
            total_window: LiveWindow::default(),
            label_windows: BTreeMap::new(),
            rate_curve: VecDeque::new(),
            cpu_by_worker: HashMap::new(),
            abort_goals: Vec::new(),
        }
    }

    /// Draws without colors and bold type.
    pub fn disable_color(&mut self) {
        self.is_colored = false;
    }

    /// Returns text in a style, an SGR parameter, unless the display has no colors.
    fn styled(&self, style: &str, text: &str) -> String {
        if self.is_colored { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Sets the duration of the run if it is known only at the start.
    pub fn set_run_duration(&mut self, duration: Duration) {
        self.run_duration = Some(duration);
    }

    /// Sets the goals; a run that misses a goal with [`LoadGoal::abort_after`] is ended.
    pub fn set_abort_goals(&mut self, goals: &[LoadGoal]) {
        self.abort_goals = goals.to_vec();
    }

    /// Erases the board, so that other output can be written.
    pub fn clear_board(&mut self) {
        if self.board_lines > 0 {
            let text = format!("\x1b[{}A\x1b[J", self.board_lines);
            self.board_lines = 0;
            self.write_text(&text);
        }
    }

    fn write_text(&mut self, text: &str) {
        // A closed terminal must not end the run.
        self.output.write_all(text.as_bytes()).and_then(|()| self.output.flush()).ok();
    }

    fn add_interval(&mut self, interval: &WorkerInterval) {
        let before =
            self.cpu_by_worker.insert(interval.worker, interval.cpu_time).unwrap_or_default();
        let cpu = interval.cpu_time.saturating_sub(before);
        for window in [&mut self.recent_window, &mut self.total_window] {
            window.schedule_lag.merge(&interval.lag);
            window.cpu_time += cpu;
            window.late_arrivals += interval.late_arrivals;
            window.active_users = interval.active_users;
        }
        for (name, stats, is_transaction) in &interval.labels {
            // Transactions are sums of samples that are already counted.
            if *is_transaction {
                continue;
            }
            let windows = &self.label_windows;
            let name = counted_label(name, |name| windows.contains_key(name), windows.len());
            if !self.label_windows.contains_key(name) {
                self.label_windows.insert(name.into(), LiveWindow::default());
            }
            let label = self.label_windows.get_mut(name);
            for window in label.into_iter().chain([&mut self.recent_window, &mut self.total_window])
            {
                window.response_times.merge(&stats.response_times);
                window.errors += stats.error_count;
                window.received_bytes += stats.received_bytes;
            }
        }
    }

    fn refresh(&mut self) {
        self.elapsed_seconds += 1;
        self.rate_curve.push_back(self.recent_window.sample_count());
        if self.rate_curve.len() > CURVE_SECONDS {
            self.rate_curve.pop_front();
        }
        match self.mode {
            LiveDisplayMode::Board => {
                let board = self.format_board();
                self.clear_board();
                // The terminal truncates long lines; otherwise the board would occupy more lines than recorded.
                let text = format!("\x1b[?7l{}\n\x1b[?7h", board.join("\n"));
                self.board_lines = board.len();
                self.write_text(&text);
                self.recent_window = LiveWindow::default();
            }
            LiveDisplayMode::Lines
                if self.elapsed_seconds.is_multiple_of(LINE_INTERVAL_SECONDS) =>
            {
                let line = self.format_line();
                self.write_text(&format!("{line}\n"));
                self.last_line_second = self.elapsed_seconds;
                self.recent_window = LiveWindow::default();
            }
            LiveDisplayMode::Lines => {}
        }
    }

    fn cpu_share(window: &LiveWindow, seconds: f64) -> f64 {
        window.cpu_time.as_secs_f64() / seconds.max(0.001) / processor_count() as f64 * 100.0
    }

    fn format_line(&self) -> String {
        let span = (self.elapsed_seconds - self.last_line_second).max(1) as f64;
        let recent = &self.recent_window;
        format!(
            "{} {:.1}/s, {}, {} errors ({:.2} %), {} users, own CPU {:.0} %, own lag p99 {}",
            format_clock(self.started_at.elapsed()),
            recent.sample_count() as f64 / span,
            recent.format_percentiles().split_whitespace().collect::<Vec<_>>().join(" "),
            recent.errors,
            recent.error_rate(),
            recent.active_users,
            Self::cpu_share(recent, span),
            format_duration(recent.schedule_lag.quantile(0.99)),
        )
    }

    /// Returns the lines of the board.
    fn format_board(&self) -> Vec<String> {
        let (recent, whole) = (&self.recent_window, &self.total_window);
        let elapsed = self.started_at.elapsed();
        let of = self
            .run_duration
            .map_or_else(String::new, |duration| format!(" of {}", format_clock(duration)));
        let mean = whole.sample_count() as f64 / elapsed.as_secs_f64().max(0.001);
        let mut lines = vec![
            format!("{}  {}{of}", self.styled("1", &self.title), format_clock(elapsed)),
            format!("rate      {:>9}/s  {}", recent.sample_count(), format_bars(&self.rate_curve)),
            format!("now       {}", recent.format_percentiles()),
            format!(
                "all       {}  {} requests, {mean:.1}/s",
                whole.format_percentiles(),
                whole.sample_count()
            ),
            format!(
                "errors    {:>9}    {:.2} % of all, {} in this second",
                whole.errors,
                whole.error_rate(),
                recent.errors
            ),
            format!(
                "users     {:>9}    received {:.2} MB/s",
                recent.active_users,
                recent.received_bytes as f64 / 1e6
            ),
            format!(
                "lab       CPU {:>4.0} %    lag p99 {}, {} arrivals late{}",
                Self::cpu_share(recent, 1.0),
                format_duration(recent.schedule_lag.quantile(0.99)),
                whole.late_arrivals,
                self.generator_warning()
            ),
        ];
        if self.label_windows.len() > 1 {
            lines.extend(self.format_label_lines());
        }
        lines
    }

    /// Returns a warning if the generator is at its limits, by the thresholds of [`crate::report::result_validity`].
    fn generator_warning(&self) -> String {
        let is_late = self.recent_window.schedule_lag.quantile(0.99) > Duration::from_millis(10);
        let is_busy = Self::cpu_share(&self.recent_window, 1.0) > 85.0;
        if is_late || is_busy {
            format!("  {}", self.styled("33", "near its limits"))
        } else {
            String::new()
        }
    }

    fn format_label_lines(&self) -> Vec<String> {
        let mut most: Vec<(&Arc<str>, &LiveWindow)> = self.label_windows.iter().collect();
        most.sort_by_key(|(_, window)| std::cmp::Reverse(window.sample_count()));
        let left = most.len().saturating_sub(MAX_BOARD_LABELS);
        let mut lines: Vec<String> = most
            .iter()
            .take(MAX_BOARD_LABELS)
            .map(|(label, window)| {
                let label: String = label
                    .chars()
                    .filter(|letter| !letter.is_control())
                    .take(MAX_LABEL_CHARS)
                    .collect();
                format!(
                    "  {label:<MAX_LABEL_CHARS$} {:>9}  p50 {:>8}  p95 {:>8}  {:>6} errors",
                    window.sample_count(),
                    format_duration(window.response_times.quantile(0.5)),
                    format_duration(window.response_times.quantile(0.95)),
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

impl Drop for LiveDisplay {
    fn drop(&mut self) {
        self.clear_board();
    }
}

impl LoadObserver for LiveDisplay {
    fn on_second(&mut self) {
        self.refresh();
    }

    fn on_interval(&mut self, interval: &WorkerInterval) {
        self.add_interval(interval);
    }

    fn on_load_end(&mut self, _: &RunResults, _: bool) {
        self.clear_board();
        // The next part of a plan has new workers, whose CPU time starts at zero.
        self.cpu_by_worker.clear();
    }

    fn find_breach(&self, results: &RunResults) -> Option<String> {
        goal::aborting_breach(&self.abort_goals, results)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::measurement::SampleStats;

    #[derive(Clone, Default)]
    struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for CapturedOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl CapturedOutput {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    /// Returns the screen content after a terminal received `text`.
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

    fn interval(label: &str, ms: u64, cpu: u64) -> WorkerInterval {
        let mut stats = SampleStats::default();
        stats.response_times.record_us(ms * 1000, 10);
        stats.error_count = 1;
        WorkerInterval {
            worker: 0,
            second: 0,
            labels: vec![(label.into(), stats, false)],
            lag: TimingHistogram::new(),
            late_arrivals: 2,
            unsent_arrivals: 0,
            repeated_requests: 0,
            active_users: 4,
            cpu_time: Duration::from_millis(cpu),
            traces: Vec::new(),
            slow_samples: Vec::new(),
        }
    }

    #[test]
    fn the_board_is_drawn_in_its_place_and_taken_away() {
        let paper = CapturedOutput::default();
        let title = "GET \x1b]0;title\x07/";
        let mut live = LiveDisplay::new(
            Box::new(paper.clone()),
            LiveDisplayMode::Board,
            title,
            Some(Duration::from_secs(90)),
        );
        for round in 1..=3 {
            live.on_interval(&interval("one", 20, round * 100));
            live.on_interval(&interval("two", 40, round * 100));
            live.on_second();
        }
        let screen_text = screen(&paper.text());
        assert!(screen_text[0].starts_with("GET ]0;title/  00:00 of 01:30"), "{screen_text:?}");
        assert!(screen_text[1].starts_with("rate             20/s  ███"), "{screen_text:?}");
        assert!(
            screen_text[2].contains("p50 20.0") && screen_text[2].contains("p95 40.0"),
            "{screen_text:?}"
        );
        assert!(screen_text[3].contains("60 requests"), "{screen_text:?}");
        assert!(
            screen_text[4].contains("6    10.00 % of all, 2 in this second"),
            "{screen_text:?}"
        );
        assert!(screen_text[5].starts_with("users             4"), "{screen_text:?}");
        assert!(screen_text[7].starts_with("  one"), "{screen_text:?}");
        assert_eq!(screen_text.len(), 10, "{screen_text:?}");
        live.clear_board();
        live.clear_board();
        paper.clone().write_all(b"a line\n").unwrap();
        live.on_second();
        drop(live);
        assert_eq!(screen(&paper.text())[0], "a line");
        assert_eq!(screen(&paper.text()).concat(), "a line");
    }

    #[test]
    fn a_board_without_colors_has_no_styles() {
        let paper = CapturedOutput::default();
        let mut live = LiveDisplay::new(Box::new(paper.clone()), LiveDisplayMode::Board, "x", None);
        live.disable_color();
        // The processor time of the interval is far above what one second has.
        live.on_interval(&interval("one", 20, 1_000_000));
        live.on_second();
        drop(live);
        let text = paper.text();
        assert!(text.contains("near its limits"), "{text:?}");
        let styles = text.split("\x1b[").skip(1).filter(|code| {
            code.trim_start_matches(|letter: char| letter.is_ascii_digit()).starts_with('m')
        });
        assert_eq!(styles.count(), 0, "{text:?}");
    }

    #[test]
    fn without_a_terminal_lines_are_reported_now_and_then() {
        let paper = CapturedOutput::default();
        let mut live = LiveDisplay::new(Box::new(paper.clone()), LiveDisplayMode::Lines, "x", None);
        for _ in 0..25 {
            live.on_interval(&interval("one", 2, 0));
            live.on_second();
        }
        drop(live);
        let text = paper.text();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.starts_with("00:00 10.0/s, p50 2.00 ms p95 2.00 ms"), "{text}");
        assert!(text.contains("10 errors (10.00 %), 4 users"), "{text}");
    }
}
