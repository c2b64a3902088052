//! Writes the figures of each label in the format of `statistics.json` of JMeter's dashboard.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::measurement::{RunResults, SampleStats, TimingHistogram};

/// Returns the text of JMeter's `statistics.json`: an object per label and transaction, and one of all samples as `Total`.
/// Times are milliseconds, sizes KiB.
#[must_use]
pub fn render_jmeter_statistics(results: &RunResults) -> String {
    let mut all = Map::new();
    for (label, series) in results.transactions.iter().chain(&results.labels) {
        all.insert(label.to_string(), statistics_entry(label, &series.total, results));
    }
    all.insert("Total".to_owned(), statistics_entry("Total", &results.total_stats(), results));
    format!("{:#}", Value::Object(all))
}

fn statistics_entry(label: &str, stats: &SampleStats, results: &RunResults) -> Value {
    // JMeter counts from the time a request was sent. For rows of a file no other time is known.
    let times: &TimingHistogram =
        if stats.service_times.count() > 0 { &stats.service_times } else { &stats.response_times };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let kib = |bytes: u64| results.rate_of(bytes) / 1024.0;
    json!({
        "transaction": label,
        "sampleCount": stats.count(),
        "errorCount": stats.error_count,
        "errorPct": stats.error_rate() * 100.0,
        "meanResTime": ms(times.mean()),
        "medianResTime": ms(times.quantile(0.5)),
        "minResTime": ms(times.min()),
        "maxResTime": ms(times.max()),
        "pct1ResTime": ms(times.quantile(0.9)),
        "pct2ResTime": ms(times.quantile(0.95)),
        "pct3ResTime": ms(times.quantile(0.99)),
        "throughput": results.rate_of(stats.count()),
        "receivedKBytesPerSec": kib(stats.received_bytes),
        "sentKBytesPerSec": kib(stats.sent_bytes),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::measurement::LabelSeries;

    #[test]
    fn each_label_and_all_together_have_jmeters_numbers() {
        let mut results = RunResults::new(SystemTime::UNIX_EPOCH);
        results.elapsed = Duration::from_secs(2);
        let mut series = LabelSeries::default();
        for ms in [10, 20, 30, 40] {
            series.total.response_times.record(Duration::from_millis(ms));
        }
        series.total.record_failed_us(40_000);
        series.total.received_bytes = 4096;
        results.labels.insert("GET /".into(), series);
        let statistics: Value = serde_json::from_str(&render_jmeter_statistics(&results)).unwrap();
        for label in ["GET /", "Total"] {
            let entry = &statistics[label];
            assert_eq!(entry["transaction"], label);
            assert_eq!((&entry["sampleCount"], &entry["errorCount"]), (&json!(4), &json!(1)));
            assert_eq!((&entry["errorPct"], &entry["throughput"]), (&json!(25.0), &json!(2.0)));
            assert_eq!((&entry["minResTime"], &entry["maxResTime"]), (&json!(10.0), &json!(40.0)));
            assert_eq!(entry["receivedKBytesPerSec"], json!(2.0));
        }
    }
}
