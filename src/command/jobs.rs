//! `tympan jobs`: topics, queues and jobs of a running instance, and what to do about them.

use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::args::{Jobs, Remote};
use crate::command::remote::{ask, list, part, text};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

/// How often a queue is looked at that is to come to rest.
const LOOK: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(jobs: &Jobs) -> Outcome {
    match jobs {
        Jobs::Topics(remote) => topics(remote),
        Jobs::Queues(remote) => queues(remote),
        Jobs::Models(remote) => models(remote),
        Jobs::List { queue, topic, state, limit, remote } => {
            let limit = limit.to_string();
            let fields = [
                ("queue", queue.as_deref()),
                ("topic", topic.as_deref()),
                ("state", state.as_deref()),
                ("limit", Some(limit.as_str())),
            ];
            let given = fields.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
            list_jobs(&form(given), remote)
        }
        Jobs::AddQueue { name, topics, set, remote } => {
            let mut fields = vec![("name", name.as_str())];
            fields.extend(topics.iter().map(|topic| ("topic", topic.as_str())));
            fields.extend(set.iter().map(|setting| ("set", setting.as_str())));
            let answer = ask(remote, Method::POST, "/api/v1/jobs/queues", &form(fields))?;
            show(remote, &answer, || {
                format!("the queue `{name}` is configured as {}", text(&answer, "pid"))
            })
        }
        Jobs::Set { queue, properties, remote } => {
            let mut fields = vec![("queue", queue.as_str())];
            fields.extend(properties.iter().map(|setting| ("set", setting.as_str())));
            let answer = ask(remote, Method::POST, "/api/v1/jobs/queues/set", &form(fields))?;
            show(remote, &answer, || {
                format!(
                    "the queue `{queue}` runs {} jobs at once here, of {}",
                    part(&answer, "parallelHere"),
                    text(&answer, "pid")
                )
            })
        }
        Jobs::Pause { queue, wait, remote } => pause(queue, *wait, remote),
        Jobs::Resume { queue, remote } => {
            let fields = form([("queue", queue.as_str())]);
            let answer = ask(remote, Method::POST, "/api/v1/jobs/queues/resume", &fields)?;
            if *part(&answer, "changed") != Value::Bool(true) {
                return Err(Fault::usage(format!("the queue `{queue}` is not paused")));
            }
            show(remote, &answer, || format!("the queue `{queue}` goes on"))
        }
        Jobs::Schedules(remote) => schedules(remote),
        Jobs::Run { schedule, remote } => {
            let fields = form([("name", schedule.as_str())]);
            let path = format!("/api/v1/schedules/run?{fields}");
            let answer = ask(remote, Method::POST, &path, "")?;
            show(remote, &answer, || format!("it runs as job {}", part(&answer, "job")))
        }
        Jobs::Retry { id, queue, remote } => retry(*id, queue.as_deref(), remote),
    }
}

/// Writes fields as a form.
fn form<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let pairs = fields
        .into_iter()
        .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Shows an answer as it is, or in words.
fn show(remote: &Remote, answer: &Value, words: impl Fn() -> String) -> Outcome {
    if remote.json {
        say!("{answer}");
    } else {
        say!("{}", words());
    }
    Ok(ExitCode::SUCCESS)
}

fn topics(remote: &Remote) -> Outcome {
    let answer = ask(remote, Method::GET, "/api/v1/jobs/topics", "")?;
    if remote.json {
        say!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    for topic in list(&answer, "topics") {
        say!("{}", text(topic, "topic"));
        for name in list(topic, "alsoCalled").filter_map(Value::as_str) {
            say!("  in AEM {name}");
        }
        say!("  queue `{}`, {}", text(topic, "queue"), counts(topic));
        if *part(topic, "handled") == Value::Bool(false) && part(topic, "queued").as_u64() > Some(0)
        {
            say!("  no handler here takes it");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says how many jobs there are and how long they take.
fn counts(of: &Value) -> String {
    format!(
        "{} waiting, {} running, {} done, {} failed, {} given up; {} ms of waiting and {} ms of work on average",
        part(of, "queued"),
        part(of, "active"),
        part(of, "finished"),
        part(of, "failed"),
        part(of, "givenUp"),
        part(of, "averageWaitMs"),
        part(of, "averageRunMs"),
    )
}

fn queues(remote: &Remote) -> Outcome {
    let answer = ask(remote, Method::GET, "/api/v1/jobs/queues", "")?;
    if remote.json {
        say!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    for queue in list(&answer, "queues") {
        let paused = if *part(queue, "paused") == Value::Bool(true) { ", paused" } else { "" };
        say!("{}{paused}", text(queue, "name"));
        say!(
            "  {}, {} at once here ({}), {} retries, ranking {}",
            text(queue, "type"),
            part(queue, "parallelHere"),
            part(queue, "maxParallel"),
            part(queue, "retries"),
            part(queue, "ranking")
        );
        let topics: Vec<&str> = list(queue, "topics").filter_map(Value::as_str).collect();
        if !topics.is_empty() {
            say!("  takes {}", topics.join(", "));
        }
        say!("  PID {}", text(queue, "pid"));
        say!("  {}", counts(queue));
    }
    for worker in list(&answer, "workers") {
        say!("process {} ({})", text(worker, "name"), text(worker, "role"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the models of workflows with what is wrong with them.
fn models(remote: &Remote) -> Outcome {
    let answer = ask(remote, Method::GET, "/api/v1/workflows/models", "")?;
    let faults = list(&answer, "models").filter(|model| !text(model, "fault").is_empty()).count();
    if remote.json {
        say!("{answer}");
    } else {
        for model in list(&answer, "models") {
            say!("{} {}", text(model, "path"), text(model, "title"));
            match text(model, "fault") {
                "" => {}
                fault => say!("  starts nothing: {fault}"),
            }
        }
    }
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

fn list_jobs(fields: &str, remote: &Remote) -> Outcome {
    let answer = ask(remote, Method::GET, &format!("/api/v1/jobs?{fields}"), "")?;
    if remote.json {
        say!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    for job in list(&answer, "jobs") {
        say!(
            "{} {} {} by {}, attempt {}",
            part(job, "id"),
            text(job, "state"),
            text(job, "topic"),
            text(job, "user"),
            part(job, "attempt")
        );
        let progress = part(job, "progress");
        if !progress.is_null() {
            let (done, total) = (part(progress, "done"), part(progress, "total"));
            say!("  {done} of {total}: {}", text(progress, "message"));
        }
        if let Some(error) = part(job, "lastError").as_str() {
            say!("  {error}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn schedules(remote: &Remote) -> Outcome {
    let answer = ask(remote, Method::GET, "/api/v1/jobs/schedules", "")?;
    if remote.json {
        say!("{answer}");
        return Ok(ExitCode::SUCCESS);
    }
    for schedule in list(&answer, "schedules") {
        say!("{}", text(schedule, "name"));
        let next = part(schedule, "nextRun").as_str().unwrap_or("never");
        say!("  `{}`, next at {next}", text(schedule, "rule"));
        say!("  topic {}", text(schedule, "topic"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Pauses a queue, and waits for what runs if asked to.
fn pause(queue: &str, is_waiting: bool, remote: &Remote) -> Outcome {
    let fields = form([("queue", queue)]);
    let answer = ask(remote, Method::POST, "/api/v1/jobs/queues/pause", &fields)?;
    if is_waiting {
        wait_for_rest(queue, remote)?;
    }
    show(remote, &answer, || format!("the queue `{queue}` is paused"))
}

/// Waits until no job of a queue runs.
fn wait_for_rest(queue: &str, remote: &Remote) -> Result<(), Fault> {
    loop {
        let queues = ask(remote, Method::GET, "/api/v1/jobs/queues", "")?;
        let found = list(&queues, "queues").find(|found| text(found, "name") == queue);
        if found.is_none_or(|found| part(found, "active").as_u64() == Some(0)) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

fn retry(id: Option<i64>, queue: Option<&str>, remote: &Remote) -> Outcome {
    let id = id.map(|id| id.to_string());
    let fields = match (&id, queue) {
        (Some(id), _) => form([("id", id.as_str())]),
        (None, queue) => form([("queue", queue.unwrap_or_default())]),
    };
    let answer = ask(remote, Method::POST, "/api/v1/jobs/retry", &fields)?;
    if *part(&answer, "changed") != Value::Bool(true) {
        return Err(Fault::usage(match (id, queue) {
            (Some(id), _) => format!("there is no job {id} that waits"),
            (None, queue) => {
                format!("no job of the queue `{}` was given up", queue.unwrap_or_default())
            }
        }));
    }
    show(remote, &answer, || format!("{} jobs run again", part(&answer, "jobs")))
}
