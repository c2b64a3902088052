//! `tympan jobs`: lists and manages topics, queues and jobs of a running instance.

use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use serde_json::Value;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use crate::args::{JobsCommand, RemoteInstanceArgs};
use crate::command::remote_instance::{
    encode_form, json_list, json_member, json_text, print_response, send_form,
};

/// The polling interval of a queue that is being paused.
const QUEUE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run_jobs_command(jobs: &JobsCommand) -> CommandOutcome {
    match jobs {
        JobsCommand::Topics(remote) => list_topics(remote),
        JobsCommand::Queues(remote) => list_queues(remote),
        JobsCommand::Models(remote) => list_workflow_models(remote),
        JobsCommand::List { queue, topic, state, limit, remote } => {
            let limit = limit.to_string();
            let fields = [
                ("queue", queue.as_deref()),
                ("topic", topic.as_deref()),
                ("state", state.as_deref()),
                ("limit", Some(limit.as_str())),
            ];
            let query_fields =
                fields.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
            list_jobs(&encode_form(query_fields), remote)
        }
        JobsCommand::AddQueue { name, topics, set, remote } => {
            let mut fields = vec![("name", name.as_str())];
            fields.extend(topics.iter().map(|topic| ("topic", topic.as_str())));
            fields.extend(set.iter().map(|setting| ("set", setting.as_str())));
            let response =
                send_form(remote, Method::POST, "/api/v1/jobs/queues", &encode_form(fields))?;
            print_response(remote.json, &response, || {
                say!("the queue `{name}` is configured as {}", json_text(&response, "pid"))
            })
        }
        JobsCommand::Set { queue, properties, remote } => {
            let mut fields = vec![("queue", queue.as_str())];
            fields.extend(properties.iter().map(|setting| ("set", setting.as_str())));
            let response =
                send_form(remote, Method::POST, "/api/v1/jobs/queues/set", &encode_form(fields))?;
            print_response(remote.json, &response, || {
                say!(
                    "the queue `{queue}` runs {} jobs at once on this instance, configured by {}",
                    json_member(&response, "parallelHere"),
                    json_text(&response, "pid")
                )
            })
        }
        JobsCommand::Pause { queue, wait, remote } => pause_queue(queue, *wait, remote),
        JobsCommand::Resume { queue, remote } => {
            let fields = encode_form([("queue", queue.as_str())]);
            let response = send_form(remote, Method::POST, "/api/v1/jobs/queues/resume", &fields)?;
            if *json_member(&response, "changed") != Value::Bool(true) {
                return Err(CommandFault::usage(format!("the queue `{queue}` is not paused")));
            }
            print_response(remote.json, &response, || say!("the queue `{queue}` is resumed"))
        }
        JobsCommand::Schedules(remote) => list_schedules(remote),
        JobsCommand::Run { schedule, remote } => {
            let fields = encode_form([("name", schedule.as_str())]);
            let path = format!("/api/v1/schedules/run?{fields}");
            let response = send_form(remote, Method::POST, &path, "")?;
            print_response(remote.json, &response, || {
                say!("started as job {}", json_member(&response, "job"))
            })
        }
        JobsCommand::Retry { id, queue, remote } => retry_jobs(*id, queue.as_deref(), remote),
    }
}

fn list_topics(remote: &RemoteInstanceArgs) -> CommandOutcome {
    let response = send_form(remote, Method::GET, "/api/v1/jobs/topics", "")?;
    print_response(remote.json, &response, || {
        for topic in json_list(&response, "topics") {
            say!("{}", json_text(topic, "topic"));
            for name in json_list(topic, "alsoCalled").filter_map(Value::as_str) {
                say!("  AEM name: {name}");
            }
            say!("  queue `{}`, {}", json_text(topic, "queue"), job_counts_text(topic));
            if *json_member(topic, "handled") == Value::Bool(false)
                && json_member(topic, "queued").as_u64() > Some(0)
            {
                say!("  no handler on this instance");
            }
        }
    })
}

/// Returns the number of jobs and their durations as text.
fn job_counts_text(of: &Value) -> String {
    format!(
        "{} waiting, {} running, {} done, {} failed, {} given up; {} ms waiting and {} ms running on average",
        json_member(of, "queued"),
        json_member(of, "active"),
        json_member(of, "finished"),
        json_member(of, "failed"),
        json_member(of, "givenUp"),
        json_member(of, "averageWaitMs"),
        json_member(of, "averageRunMs"),
    )
}

fn list_queues(remote: &RemoteInstanceArgs) -> CommandOutcome {
    let response = send_form(remote, Method::GET, "/api/v1/jobs/queues", "")?;
    print_response(remote.json, &response, || {
        for queue in json_list(&response, "queues") {
            let paused =
                if *json_member(queue, "paused") == Value::Bool(true) { ", paused" } else { "" };
            say!("{}{paused}", json_text(queue, "name"));
            say!(
                "  {}, {} at once on this instance ({}), {} retries, ranking {}",
                json_text(queue, "type"),
                json_member(queue, "parallelHere"),
                json_member(queue, "maxParallel"),
                json_member(queue, "retries"),
                json_member(queue, "ranking")
            );
            let topics: Vec<&str> = json_list(queue, "topics").filter_map(Value::as_str).collect();
            if !topics.is_empty() {
                say!("  takes {}", topics.join(", "));
            }
            say!("  PID {}", json_text(queue, "pid"));
            say!("  {}", job_counts_text(queue));
        }
        for worker in json_list(&response, "workers") {
            say!("process {} ({})", json_text(worker, "name"), json_text(worker, "role"));
        }
    })
}

/// Lists the workflow models with their faults.
fn list_workflow_models(remote: &RemoteInstanceArgs) -> CommandOutcome {
    let response = send_form(remote, Method::GET, "/api/v1/workflows/models", "")?;
    let faults = json_list(&response, "models")
        .filter(|model| !json_text(model, "fault").is_empty())
        .count();
    if remote.json {
        say!("{response}");
    } else {
        for model in json_list(&response, "models") {
            say!("{} {}", json_text(model, "path"), json_text(model, "title"));
            match json_text(model, "fault") {
                "" => {}
                fault => say!("  cannot be started: {fault}"),
            }
        }
    }
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

fn list_jobs(fields: &str, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let response = send_form(remote, Method::GET, &format!("/api/v1/jobs?{fields}"), "")?;
    print_response(remote.json, &response, || {
        for job in json_list(&response, "jobs") {
            say!(
                "{} {} {} by {}, attempt {}",
                json_member(job, "id"),
                json_text(job, "state"),
                json_text(job, "topic"),
                json_text(job, "user"),
                json_member(job, "attempt")
            );
            let progress = json_member(job, "progress");
            if !progress.is_null() {
                let (done, total) = (json_member(progress, "done"), json_member(progress, "total"));
                say!("  {done} of {total}: {}", json_text(progress, "message"));
            }
            if let Some(error) = json_member(job, "lastError").as_str() {
                say!("  {error}");
            }
        }
    })
}

fn list_schedules(remote: &RemoteInstanceArgs) -> CommandOutcome {
    let response = send_form(remote, Method::GET, "/api/v1/jobs/schedules", "")?;
    print_response(remote.json, &response, || {
        for schedule in json_list(&response, "schedules") {
            say!("{}", json_text(schedule, "name"));
            let next = json_member(schedule, "nextRun").as_str().unwrap_or("never");
            say!("  `{}`, next at {next}", json_text(schedule, "rule"));
            say!("  topic {}", json_text(schedule, "topic"));
        }
    })
}

/// Pauses a queue, and waits for running jobs if requested.
fn pause_queue(queue: &str, is_waiting: bool, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let fields = encode_form([("queue", queue)]);
    let response = send_form(remote, Method::POST, "/api/v1/jobs/queues/pause", &fields)?;
    if is_waiting {
        wait_until_queue_idle(queue, remote)?;
    }
    print_response(remote.json, &response, || say!("the queue `{queue}` is paused"))
}

/// Waits until no job of a queue is running.
fn wait_until_queue_idle(queue: &str, remote: &RemoteInstanceArgs) -> Result<(), CommandFault> {
    loop {
        let queues = send_form(remote, Method::GET, "/api/v1/jobs/queues", "")?;
        let queue_entry =
            json_list(&queues, "queues").find(|entry| json_text(entry, "name") == queue);
        if queue_entry.is_none_or(|entry| json_member(entry, "active").as_u64() == Some(0)) {
            return Ok(());
        }
        std::thread::sleep(QUEUE_POLL_INTERVAL);
    }
}

fn retry_jobs(id: Option<i64>, queue: Option<&str>, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let id = id.map(|id| id.to_string());
    let fields = match (&id, queue) {
        (Some(id), _) => encode_form([("id", id.as_str())]),
        (None, queue) => encode_form([("queue", queue.unwrap_or_default())]),
    };
    let response = send_form(remote, Method::POST, "/api/v1/jobs/retry", &fields)?;
    if *json_member(&response, "changed") != Value::Bool(true) {
        return Err(CommandFault::usage(match (id, queue) {
            (Some(id), _) => format!("there is no job {id} that can be retried"),
            (None, queue) => {
                format!("no job of the queue `{}` was given up", queue.unwrap_or_default())
            }
        }));
    }
    print_response(remote.json, &response, || {
        say!("retrying {} jobs", json_member(&response, "jobs"))
    })
}
