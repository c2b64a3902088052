//! What waits for the visitors: the agents' queues, and activating.

use serde::Deserialize;
use serde_json::{Value, json};
use tympan_content::{Date, Depth, NodePath, Snapshot};
use tympan_jobs::{Job, JobId};
use tympan_replicate::{Action, Wish, agents, require_replicate, topic_of};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::failure::{Failure, Result};
use crate::metrics::count;
use crate::wishes::{AccompaniedWishes, with_companions, with_wishes};

/// The most jobs that are shown for an agent.
pub(crate) const MAX_JOBS: u32 = 500;
/// What those who do not look after agents are told of the reason why one cannot send.
const FAILED: &str = "it cannot send";
/// The most paths of one wish.
pub(crate) const MAX_PATHS: usize = 1000;

const JOB: &[Parameter] =
    &[Parameter::required("id", Kind::Integer(0, i64::MAX as u64), "The job's number.")];

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/queue",
        id: "readQueue",
        about: "Lists the agents with the jobs that wait for them, at most 500 each.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Queue", "The agents.")],
        handler: Handler::Task(queue),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/queue/retry",
        id: "retryJob",
        about: "Lets a job that failed or waits run again now.",
        parameters: JOB,
        body: Body::None,
        answers: &[Answer::json("Changed", "Whether there was such a job.")],
        handler: Handler::Task(retry),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/queue/cancel",
        id: "cancelJob",
        about: "Removes a job that does not run.",
        parameters: JOB,
        body: Body::None,
        answers: &[Answer::json("Changed", "Whether there was such a job.")],
        handler: Handler::Task(cancel),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/replication",
        id: "replicate",
        about: "Activates or deactivates documents: what was stored first is sent first. With `companions`, what visitors lack of that \
                which the documents refer to goes along, before them; `left` lists what the user may not activate of it.",
        parameters: &[],
        body: Body::Json("Replication"),
        answers: &[Answer::json("Replicated", "What is on its way.")],
        handler: Handler::Task(replicate),
    },
];

/// Lists the agents with what waits for them.
fn queue(call: Call) -> Pending {
    Box::pin(async move {
        let seen = call.snapshot()?;
        let is_administrator = call.instance.is_administrator(&call.viewer)?;
        let instance = call.instance;
        let role = instance.role.name();
        let mut described = Vec::new();
        for agent in agents(&instance.repository.snapshot()?, role)? {
            let topic = topic_of(role, &agent.name);
            let jobs = instance.queues.list_topic(&topic, MAX_JOBS).await?;
            let shown = jobs.iter().filter(|job| is_seen(job, &seen));
            let items: Vec<Value> = shown.map(|job| job_item(job, is_administrator)).collect();
            let blocked = instance.replicator.blocked(&agent.name);
            // Where an agent sends to, why it cannot, and how much waits in all is for those who look after it.
            let (target, blocked, queued) = if is_administrator {
                let queued = instance.queues.count(&topic).await?;
                (Some(&agent.target), blocked, json!(queued))
            } else {
                (None, blocked.map(|_| FAILED.to_owned()), json!(items.len()))
            };
            described.push(json!({
                "name": agent.name,
                "title": agent.title,
                "target": target,
                "enabled": agent.is_enabled,
                "blocked": blocked,
                "queued": queued,
                "items": items,
            }));
        }
        Ok(Reply::json(json!({ "agents": described })))
    })
}

/// Tells whether the asker may see the node that a job is about, whether or not it is still there.
fn is_seen(job: &Job, seen: &Snapshot) -> bool {
    path_of(job).is_some_and(|path| seen.would_see(&path, "cq:Page"))
}

fn path_of(job: &Job) -> Option<NodePath> {
    NodePath::new(job.properties.get("path")?.as_str()?).ok()
}

/// Returns the wish that a job carries out.
fn wish_of(job: &Job) -> Wish {
    let word = |name: &str| job.properties.get(name);
    let is_deep = word("deep").and_then(Value::as_bool) == Some(true);
    let action = word("action").and_then(Value::as_str).and_then(Action::find);
    Wish {
        // What is not known to show one document only is taken for more.
        action: action.unwrap_or(Action::Deactivate),
        path: path_of(job).unwrap_or_else(NodePath::root),
        depth: if is_deep { Depth::Subtree } else { Depth::Document },
        user: job.user.clone(),
    }
}

/// Tells whether there is a job whose node the asker may see.
///
/// # Errors
/// If the asker may not replicate that node.
async fn is_there(call: &Call, id: JobId) -> Result<bool> {
    let (instance, seen) = (&call.instance, call.snapshot()?);
    let role = instance.role.name();
    for agent in agents(&instance.repository.snapshot()?, role)? {
        let jobs = instance.queues.list_topic(&topic_of(role, &agent.name), MAX_JOBS).await?;
        if let Some(job) = jobs.iter().find(|job| job.id == id && is_seen(job, &seen)) {
            require_replicate(&seen, &wish_of(job))?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn job_item(job: &Job, is_administrator: bool) -> Value {
    // The reason names addresses and what they answered.
    let reason = job.last_error.as_deref();
    let reason = reason.map(|reason| if is_administrator { reason } else { FAILED });
    json!({
        "id": job.id.0,
        "action": job.properties.get("action"),
        "path": job.properties.get("path"),
        "user": job.user,
        "created": Date::from_system_time(job.created).to_string(),
        "attempt": job.attempt,
        "lastError": reason,
        "state": job.state.name(),
    })
}

/// Lets a job run again now.
fn retry(call: Call) -> Pending {
    Box::pin(async move {
        let id = job_of(&call)?;
        let is_there = is_there(&call, id).await?;
        let is_done = is_there && call.instance.queues.retry(id, call.now).await?;
        call.instance.replicator.ring();
        Ok(Reply::json(json!({ "changed": is_done })))
    })
}

/// Removes a job that does not run.
fn cancel(call: Call) -> Pending {
    Box::pin(async move {
        let id = job_of(&call)?;
        let is_there = is_there(&call, id).await?;
        let is_done = is_there && call.instance.queues.cancel(id).await?;
        call.instance.replicator.ring();
        Ok(Reply::json(json!({ "changed": is_done })))
    })
}

fn job_of(call: &Call) -> Result<JobId> {
    let id = call.text("id").and_then(|id| id.parse().ok());
    id.map(JobId).ok_or_else(|| Failure::bad_request("say which job: `id`"))
}

/// What is to become of documents.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replication {
    action: Verdict,
    paths: Vec<String>,
    #[serde(default)]
    deep: bool,
    #[serde(default)]
    companions: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Activate,
    Deactivate,
}

/// Activates or deactivates.
fn replicate(call: Call) -> Pending {
    Box::pin(async move {
        let Replication { action, paths, deep, companions } = call.body()?;
        if paths.is_empty() || paths.len() > MAX_PATHS {
            return Err(Failure::bad_request(format!("say 1 to {MAX_PATHS} paths")));
        }
        let action = match action {
            Verdict::Activate => Action::Activate,
            Verdict::Deactivate => Action::Deactivate,
        };
        let depth = if deep { Depth::Subtree } else { Depth::Document };
        let instance = call.instance.clone();
        let user = call.user().to_owned();
        let wishes = instance.work(move |_| {
            let snapshot = call.snapshot()?;
            let mut wishes = Vec::new();
            for path in paths {
                let path = NodePath::new(&path)?;
                // What is gone here can still be taken away there.
                if action == Action::Activate && snapshot.node(&path)?.is_none() {
                    return Err(Failure::not_found(path.as_str()));
                }
                let wish = Wish { action, path, depth, user: user.clone() };
                require_replicate(&snapshot, &wish)?;
                wishes.push(wish);
            }
            match companions {
                true => with_companions(&snapshot, wishes),
                false => Ok(AccompaniedWishes::alone(wishes)),
            }
        });
        let AccompaniedWishes { wishes, left, .. } = wishes.await?;
        let paths: Vec<String> = wishes.iter().map(|wish| wish.path.to_string()).collect();
        let work =
            move |instance: &Instance, wishes: &[Wish], now| Ok(((), instance.mark(wishes, now)?));
        with_wishes(&instance, wishes, work).await?;
        count(&instance.metrics.activations);
        let left: Vec<&str> = left.iter().map(NodePath::as_str).collect();
        Ok(Reply::json(json!({ "paths": paths, "left": left })))
    })
}
