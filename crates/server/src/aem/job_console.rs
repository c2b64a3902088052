//! `/system/console/slingevent`: queues and topics of jobs with their statistics; pauses and resumes queues.
//!
//! For administrators, as the endpoints that it calls. A topic is listed under its name in AEM, too.

use axum::Json;
use axum::response::{IntoResponse, Redirect, Response};
use serde_json::{Value, json};
use tympan_notation::escape_html;

use super::aem_request::{AemRequest, PendingAemResponse};
use super::console_page::{html_form, html_page, html_table};
use super::refusal::{method_not_allowed, not_implemented};
use crate::failure::Result;

const ADDRESS: &str = "/system/console/slingevent";
/// The statistics of a queue or a topic, with their names on the page.
const STATISTICS: [(&str, &str); 8] = [
    ("queued", "Queued"),
    ("active", "Active"),
    ("finished", "Finished"),
    ("failed", "Failed"),
    ("cancelled", "Cancelled"),
    ("givenUp", "Given up"),
    ("averageWaitMs", "Average wait (ms)"),
    ("averageRunMs", "Average run (ms)"),
];

/// Shows the console, or runs a command of it.
pub(super) fn serve_jobs(request: AemRequest) -> PendingAemResponse {
    Box::pin(async move {
        if request.is_read() {
            return show_jobs(&request).await;
        }
        if request.parts.method != http::Method::POST {
            return method_not_allowed("GET, HEAD and POST");
        }
        let queue = request.value("queue").unwrap_or_default();
        let endpoint = match request.required("action")? {
            "suspend" => "pauseJobQueue",
            "resume" => "resumeJobQueue",
            other => {
                let other: String = other.chars().take(40).collect();
                return not_implemented(format!(
                    "`action={other}` is not supported; use suspend or resume with `queue`"
                ));
            }
        };
        request.call(endpoint, &[("queue", queue)], &Value::Null).await?;
        Ok(Redirect::to(ADDRESS).into_response())
    })
}

async fn show_jobs(request: &AemRequest) -> Result<Response> {
    let queues = &request.call("listJobQueues", &[], &Value::Null).await?;
    let topics = &request.call("listJobTopics", &[], &Value::Null).await?;
    if request.path().ends_with(".json") {
        let body = json!({
            "overall": overall_statistics(topics),
            "queues": queues["queues"],
            "topics": named_topics(topics),
        });
        return Ok(Json(body).into_response());
    }
    let csrf = request.identity.csrf_token.as_deref();
    let statistics = |of: &Value| {
        let cells = STATISTICS.iter().map(|(name, _)| escape_html(&of[*name].to_string()));
        cells.collect::<Vec<_>>()
    };
    let names = STATISTICS.map(|(_, title)| title);
    let overall = overall_statistics(topics);
    let mut body = format!("<h2>Overall</h2>\n{}", html_table(&names, &[statistics(&overall)]));
    let queue_rows = queues["queues"].as_array().into_iter().flatten().map(|queue| {
        let text = |name: &str| queue[name].as_str().unwrap_or_default();
        let (action, title) = match queue["paused"].as_bool() {
            Some(true) => ("resume", "Resume"),
            _ => ("suspend", "Suspend"),
        };
        let button = format!("<button>{title}</button>");
        let hidden = [("action", action), ("queue", text("name"))];
        let patterns = queue["topics"].as_array().into_iter().flatten();
        let patterns: Vec<_> = patterns.filter_map(Value::as_str).map(escape_html).collect();
        let mut row = vec![
            escape_html(text("name")),
            patterns.join("<br>"),
            escape_html(text("type")),
            escape_html(&queue["maxParallel"].to_string()),
        ];
        row.extend(statistics(queue));
        row.push(html_form(ADDRESS, csrf, &hidden, &button));
        row
    });
    let head = [&["Queue", "Topics", "Type", "Maximum parallel jobs"][..], &names, &[""]].concat();
    body.push_str(&format!(
        "<h2>Queues</h2>\n{}",
        html_table(&head, &queue_rows.collect::<Vec<_>>())
    ));
    let topics = named_topics(topics);
    let topic_rows = topics.iter().map(|topic| {
        let text = |name: &str| escape_html(topic[name].as_str().unwrap_or_default());
        let mut row: Vec<String> = vec![text("topic"), text("queue")];
        row.extend(statistics(topic));
        row
    });
    let head = [&["Topic", "Queue"][..], &names].concat();
    body.push_str(&format!(
        "<h2>Topics</h2>\n{}<p>To give a topic a queue of its own, create one in \
         <a href=\"/system/console/configMgr\">Configuration</a>.</p>\n",
        html_table(&head, &topic_rows.collect::<Vec<_>>())
    ));
    Ok(html_page("Sling jobs", &body))
}

/// Returns the topics, each also under its names in AEM.
fn named_topics(topics: &Value) -> Vec<Value> {
    let mut named = Vec::new();
    for topic in topics["topics"].as_array().into_iter().flatten() {
        named.push(topic.clone());
        for name in topic["alsoCalled"].as_array().into_iter().flatten() {
            let mut other = topic.clone();
            if let Some(members) = other.as_object_mut() {
                members.insert("topic".to_owned(), name.clone());
                members.insert("runsAs".to_owned(), topic["topic"].clone());
            }
            named.push(other);
        }
    }
    named
}

/// Sums the counts of all topics, and averages their times over the finished jobs.
fn overall_statistics(topics: &Value) -> Value {
    let topics: Vec<&Value> = topics["topics"].as_array().into_iter().flatten().collect();
    let count = |topic: &Value, name: &str| topic[name].as_u64().unwrap_or(0);
    let finished: u64 = topics.iter().map(|topic| count(topic, "finished")).sum();
    let mut overall = serde_json::Map::new();
    for (name, _) in STATISTICS {
        let sum: u64 = match name {
            "averageWaitMs" | "averageRunMs" => {
                let total: u64 = topics
                    .iter()
                    .map(|topic| count(topic, name).saturating_mul(count(topic, "finished")))
                    .sum();
                total.checked_div(finished).unwrap_or(0)
            }
            name => topics.iter().map(|topic| count(topic, name)).sum(),
        };
        overall.insert(name.to_owned(), sum.into());
    }
    overall.into()
}
