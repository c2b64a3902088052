//! `/manager/status`: activity and resource use of an instance, in the format of Tomcat's manager, which monitoring
//! tools read.
//!
//! With `XML=true` it has the elements and attributes of Tomcat's status page, with `JSON=true` the same as JSON,
//! otherwise an HTML table. All counts are since the start, times are in milliseconds. Values without a counterpart are
//! left out: there is no heap, so the memory in use is that of the process, and the maximum is that of the machine.
//!
//! Not here: all other metrics (`/metrics`), and faults (`/health`).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Query, State};
use axum::response::{Html, IntoResponse, Response};
use http::header;
use serde_json::json;

use crate::observe::pool::PoolState;
use crate::{Instance, api};

/// The contents of the status page.
#[derive(Debug)]
struct ManagerStatus {
    memory_bytes: u64,
    max_memory_bytes: u64,
    role: &'static str,
    work_pool: PoolState,
    longest_ms: u64,
    processing_ms: u64,
    requests: u64,
    errors: u64,
    bytes_sent: u64,
}

impl ManagerStatus {
    fn read_from(instance: &Instance) -> Self {
        let sums = &instance.request_totals;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let kilobytes = |file: &str, name: &str| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            crate::observe::process_metrics::parse_field(&text, name)
                .map_or(0, |value| value as u64 * 1024)
        };
        Self {
            memory_bytes: kilobytes("/proc/self/status", "VmRSS:"),
            max_memory_bytes: kilobytes("/proc/meminfo", "MemTotal:"),
            role: instance.role.name(),
            work_pool: crate::observe::pool_report::work_pool_state(instance),
            longest_ms: sums.longest_millis(),
            processing_ms: sums.total_millis(),
            requests: read(&instance.metrics.requests),
            errors: read(&instance.metrics.server_errors),
            bytes_sent: sums.bytes_sent(),
        }
    }

    /// Returns the values by Tomcat's element and attribute names.
    fn status_attributes(&self) -> [(&'static str, Vec<(&'static str, u64)>); 3] {
        let memory = vec![
            ("free", 0),
            ("total", self.memory_bytes),
            ("max", self.max_memory_bytes.max(self.memory_bytes)),
        ];
        let threads = vec![
            ("maxThreads", self.work_pool.limit),
            ("currentThreadCount", self.work_pool.in_use + self.work_pool.idle),
            ("currentThreadsBusy", self.work_pool.in_use),
        ];
        let requests = vec![
            ("maxTime", self.longest_ms),
            ("processingTime", self.processing_ms),
            ("requestCount", self.requests),
            ("errorCount", self.errors),
            ("bytesSent", self.bytes_sent),
        ];
        [("memory", memory), ("threadInfo", threads), ("requestInfo", requests)]
    }

    fn to_xml(&self) -> String {
        let [memory, threads, requests] = self.status_attributes().map(|(name, figures)| {
            let attributes: String =
                figures.iter().map(|(name, value)| format!(" {name}=\"{value}\"")).collect();
            format!("<{name}{attributes}/>")
        });
        format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<status><jvm>{memory}</jvm>\
             <connector name=\"{}\">{threads}{requests}<workers></workers></connector></status>\n",
            self.role
        )
    }

    fn to_json(&self) -> serde_json::Value {
        let [memory, threads, requests] = self.status_attributes().map(|(_, figures)| {
            let figures = figures.into_iter().map(|(name, value)| (name.to_owned(), value.into()));
            serde_json::Value::Object(figures.collect())
        });
        json!({
            "tomcat": {
                "jvm": { "memory": memory },
                "connector": [{ "name": self.role, "threadInfo": threads, "requestInfo": requests }],
            }
        })
    }

    fn to_html(&self) -> String {
        let figures = self.status_attributes();
        let rows: String = figures
            .iter()
            .flat_map(|(element, figures)| {
                figures.iter().map(move |(name, value)| {
                    format!("<tr><td>{element}</td><td>{name}</td><td>{value}</td></tr>\n")
                })
            })
            .collect();
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Status</title></head><body>\
             <h1>{}</h1>\n<table>\n{rows}</table>\n\
             <p><a href=\"?XML=true\">XML</a> <a href=\"?JSON=true\">JSON</a></p></body></html>\n",
            self.role
        )
    }
}

/// Serves the page on a listener with restricted access.
pub(crate) async fn serve_status(
    State(instance): State<Arc<Instance>>,
    Query(parameters): Query<HashMap<String, String>>,
) -> Response {
    let has = |name: &str| parameters.get(name).is_some_and(|value| value == "true");
    let status = ManagerStatus::read_from(&instance);
    if has("XML") {
        ([(header::CONTENT_TYPE, "text/xml; charset=utf-8")], status.to_xml()).into_response()
    } else if has("JSON") {
        axum::Json(status.to_json()).into_response()
    } else {
        Html(status.to_html()).into_response()
    }
}

/// Serves the page to users with monitoring permission.
pub(crate) async fn serve_status_for_monitoring(
    state: State<Arc<Instance>>,
    parameters: Query<HashMap<String, String>>,
    _: api::MonitoringIdentity,
) -> Response {
    serve_status(state, parameters).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::request_totals::RequestTotals;

    #[test]
    fn monitors_of_tomcat_find_their_figures() {
        let sums = RequestTotals::default();
        sums.record_request(Duration::from_millis(30), 1000);
        sums.record_request(Duration::from_millis(12), 24);
        let status = ManagerStatus {
            memory_bytes: 200,
            max_memory_bytes: 1000,
            role: "publish",
            work_pool: PoolState { in_use: 2, idle: 6, limit: 8, ..PoolState::default() },
            longest_ms: sums.longest_millis(),
            processing_ms: sums.total_millis(),
            requests: 2,
            errors: 1,
            bytes_sent: sums.bytes_sent(),
        };
        assert_eq!(
            status.to_xml(),
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<status><jvm>\
             <memory free=\"0\" total=\"200\" max=\"1000\"/></jvm><connector name=\"publish\">\
             <threadInfo maxThreads=\"8\" currentThreadCount=\"8\" currentThreadsBusy=\"2\"/>\
             <requestInfo maxTime=\"30\" processingTime=\"42\" requestCount=\"2\" errorCount=\"1\" bytesSent=\"1024\"/>\
             <workers></workers></connector></status>\n"
        );
        let json = status.to_json();
        let connector = &json["tomcat"]["connector"][0];
        assert_eq!(connector["threadInfo"]["currentThreadsBusy"], 2);
        assert_eq!(connector["requestInfo"]["processingTime"], 42);
        assert!(status.to_html().contains("<td>requestCount</td><td>2</td>"));
    }
}
