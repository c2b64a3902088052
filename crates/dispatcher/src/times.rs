//! How long answers took, as a histogram in Prometheus' form.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper ends of the buckets, in seconds; what took longer stands in one more.
const ENDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Answers by what they took until their head.
#[derive(Debug, Default)]
pub(crate) struct Times {
    counts: [AtomicU64; ENDS.len() + 1],
    microseconds: AtomicU64,
}

impl Times {
    pub(crate) fn note(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let index = ENDS.partition_point(|end| *end < seconds);
        if let Some(count) = self.counts.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        if microseconds > 0 {
            self.microseconds.fetch_add(microseconds, Ordering::Relaxed);
        }
    }

    /// Writes the histogram `name` with `labels`, without its head.
    pub(crate) fn write(&self, text: &mut String, name: &str, labels: &str) {
        let mut sum = 0;
        let ends = ENDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (end, count) in ends.zip(&self.counts) {
            sum += count.load(Ordering::Relaxed);
            // Writing to a string cannot fail.
            writeln!(text, "{name}_bucket{{{labels},le=\"{end}\"}} {sum}").ok();
        }
        #[expect(clippy::cast_precision_loss, reason = "a sum of times needs no more than 52 bits")]
        let seconds = self.microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        writeln!(text, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}").ok();
    }
}

#[cfg(test)]
mod tests {
    use super::Times;
    use std::time::Duration;

    #[test]
    fn buckets_add_up() {
        let times = Times::default();
        for milliseconds in [0, 1, 1, 30, 100_000] {
            times.note(Duration::from_millis(milliseconds));
        }
        let mut text = String::new();
        times.write(&mut text, "t", "farm=\"x\"");
        for line in [
            "t_bucket{farm=\"x\",le=\"0.0005\"} 1\n",
            "t_bucket{farm=\"x\",le=\"0.001\"} 3\n",
            "t_bucket{farm=\"x\",le=\"0.05\"} 4\n",
            "t_bucket{farm=\"x\",le=\"60\"} 4\n",
            "t_bucket{farm=\"x\",le=\"+Inf\"} 5\n",
            "t_sum{farm=\"x\"} 100.032\n",
            "t_count{farm=\"x\"} 5\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
