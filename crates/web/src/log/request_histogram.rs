//! Request durations by method and status class, as histograms in Prometheus' text format.
//!
//! In: a method, a status and a duration for each request. Out: the lines of one metric of type `histogram`.
//!
//! Methods that HTTP does not define share the label `other`, so that clients cannot create further series. Empty
//! series are left out.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::{Method, StatusCode};

/// Upper bounds of the buckets, in seconds; longer durations are counted in one more bucket.
const BUCKET_BOUNDS_SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];
/// Labels of methods; the last one stands for all other methods.
const METHOD_LABELS: [&str; 8] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "other"];
/// Labels of status classes, by the first digit minus one.
const STATUS_CLASS_LABELS: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Durations of requests of one method and one status class.
#[derive(Debug, Default)]
struct DurationHistogram {
    bucket_counts: [AtomicU64; BUCKET_BOUNDS_SECONDS.len() + 1],
    total_microseconds: AtomicU64,
}

impl DurationHistogram {
    fn record_duration(&self, elapsed: Duration) {
        let seconds = elapsed.as_secs_f64();
        let index = BUCKET_BOUNDS_SECONDS.partition_point(|end| *end < seconds);
        if let Some(count) = self.bucket_counts.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        let microseconds = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        if microseconds > 0 {
            self.total_microseconds.fetch_add(microseconds, Ordering::Relaxed);
        }
    }

    fn is_empty(&self) -> bool {
        self.bucket_counts.iter().all(|count| count.load(Ordering::Relaxed) == 0)
    }

    fn write_metric(&self, text: &mut String, name: &str, labels: &str) {
        let mut sum = 0;
        let ends = BUCKET_BOUNDS_SECONDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        for (end, count) in ends.zip(&self.bucket_counts) {
            sum += count.load(Ordering::Relaxed);
            // Writing to a string cannot fail.
            writeln!(text, "{name}_bucket{{{labels},le=\"{end}\"}} {sum}").ok();
        }
        #[expect(clippy::cast_precision_loss, reason = "a sum of times needs no more than 52 bits")]
        let seconds = self.total_microseconds.load(Ordering::Relaxed) as f64 / 1e6;
        writeln!(text, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {sum}").ok();
    }
}

/// Durations of requests by method and status class.
#[derive(Debug, Default)]
pub struct RequestHistogram([[DurationHistogram; STATUS_CLASS_LABELS.len()]; METHOD_LABELS.len()]);

impl RequestHistogram {
    /// Counts a request.
    pub fn record_request(&self, method: &Method, status: StatusCode, elapsed: Duration) {
        self.record_request_by_name(method.as_str(), status, elapsed);
    }

    /// Counts a request whose method is given by name.
    pub fn record_request_by_name(&self, method: &str, status: StatusCode, elapsed: Duration) {
        let last = METHOD_LABELS.len() - 1;
        let row = METHOD_LABELS.iter().position(|label| *label == method).unwrap_or(last);
        let class = usize::from(status.as_u16() / 100).clamp(1, STATUS_CLASS_LABELS.len()) - 1;
        if let Some(histogram) = self.0.get(row).and_then(|row| row.get(class)) {
            histogram.record_duration(elapsed);
        }
    }

    /// Writes the `HELP` and `TYPE` lines of the metric `name`.
    pub fn write_metric_head(text: &mut String, name: &str, help: &str) {
        // Writing to a string cannot fail.
        write!(text, "# HELP {name} {help}\n# TYPE {name} histogram\n").ok();
    }

    /// Writes the metric `name` without its head; each line has `labels`, such as `role="author"`, the method and the
    /// status class.
    pub fn write_metric(&self, text: &mut String, name: &str, labels: &str) {
        for (method, row) in METHOD_LABELS.iter().zip(&self.0) {
            for (class, histogram) in STATUS_CLASS_LABELS.iter().zip(row) {
                if !histogram.is_empty() {
                    let labels = format!("{labels},method=\"{method}\",status=\"{class}\"");
                    histogram.write_metric(text, name, &labels);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_method_and_class_of_status() {
        let times = RequestHistogram::default();
        for milliseconds in [0, 1, 1, 30, 100_000] {
            times.record_request(&Method::GET, StatusCode::OK, Duration::from_millis(milliseconds));
        }
        times.record_request(&Method::GET, StatusCode::NOT_FOUND, Duration::ZERO);
        times.record_request(
            &Method::POST,
            StatusCode::SERVICE_UNAVAILABLE,
            Duration::from_secs(3),
        );
        for name in ["BREW", "get", "other"] {
            times.record_request_by_name(name, StatusCode::from_u16(999).unwrap(), Duration::ZERO);
        }
        let mut text = String::new();
        times.write_metric(&mut text, "t", "farm=\"x\"");
        let get = "farm=\"x\",method=\"GET\",status=\"2xx\"";
        for line in [
            format!("t_bucket{{{get},le=\"0.0005\"}} 1\n"),
            format!("t_bucket{{{get},le=\"0.001\"}} 3\n"),
            format!("t_bucket{{{get},le=\"0.05\"}} 4\n"),
            format!("t_bucket{{{get},le=\"60\"}} 4\n"),
            format!("t_bucket{{{get},le=\"+Inf\"}} 5\n"),
            format!("t_sum{{{get}}} 100.032\n"),
            format!("t_count{{{get}}} 5\n"),
            "t_count{farm=\"x\",method=\"GET\",status=\"4xx\"} 1\n".to_owned(),
            "t_count{farm=\"x\",method=\"POST\",status=\"5xx\"} 1\n".to_owned(),
            "t_count{farm=\"x\",method=\"other\",status=\"5xx\"} 3\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} in {text}");
        }
        assert_eq!(text.matches("_count").count(), 4, "{text}");
    }
}
