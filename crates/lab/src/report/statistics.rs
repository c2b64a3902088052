//! The numbers of each label as JMeter's dashboard writes them beside its page, in `statistics.json`.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::record::{Results, Stats, Timing};

/// Returns the text of JMeter's `statistics.json`: an object per label and transaction, and one of all samples as `Total`.
/// Times are milliseconds, sizes KiB.
#[must_use]
pub fn statistics(results: &Results) -> String {
    let mut all = Map::new();
    for (label, series) in results.transactions.iter().chain(&results.labels) {
        all.insert(label.to_string(), entry(label, &series.total, results));
    }
    all.insert("Total".to_owned(), entry("Total", &results.total(), results));
    format!("{:#}", Value::Object(all))
}

fn entry(label: &str, stats: &Stats, results: &Results) -> Value {
    // JMeter counts from when a request was sent; of rows of a file nothing else is known.
    let times: &Timing = if stats.service.count() > 0 { &stats.service } else { &stats.response };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let kib = |bytes: u64| results.rate(bytes) / 1024.0;
    json!({
        "transaction": label,
        "sampleCount": stats.count(),
        "errorCount": stats.errors,
        "errorPct": stats.error_rate() * 100.0,
        "meanResTime": ms(times.mean()),
        "medianResTime": ms(times.quantile(0.5)),
        "minResTime": ms(times.min()),
        "maxResTime": ms(times.max()),
        "pct1ResTime": ms(times.quantile(0.9)),
        "pct2ResTime": ms(times.quantile(0.95)),
        "pct3ResTime": ms(times.quantile(0.99)),
        "throughput": results.rate(stats.count()),
        "receivedKBytesPerSec": kib(stats.received),
        "sentKBytesPerSec": kib(stats.sent),
    })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::record::Series;

    #[test]
    fn each_label_and_all_together_have_jmeters_numbers() {
        let mut results = Results::new(SystemTime::UNIX_EPOCH);
        results.elapsed = Duration::from_secs(2);
        let mut series = Series::default();
        for ms in [10, 20, 30, 40] {
            series.total.response.record(Duration::from_millis(ms));
        }
        series.total.fail_us(40_000);
        series.total.received = 4096;
        results.labels.insert("GET /".into(), series);
        let told: Value = serde_json::from_str(&statistics(&results)).unwrap();
        for label in ["GET /", "Total"] {
            let entry = &told[label];
            assert_eq!(entry["transaction"], label);
            assert_eq!((&entry["sampleCount"], &entry["errorCount"]), (&json!(4), &json!(1)));
            assert_eq!((&entry["errorPct"], &entry["throughput"]), (&json!(25.0), &json!(2.0)));
            assert_eq!((&entry["minResTime"], &entry["maxResTime"]), (&json!(10.0), &json!(40.0)));
            assert_eq!(entry["receivedKBytesPerSec"], json!(2.0));
        }
    }
}
