//! Workflows: starting them, what became of them, ending them.
//!
//! Who started an instance and administrators see it whole; who is asked to do a step sees the step (`step`). To
//! everybody else it is not there. A workflow is started about what the asker may read, and nobody is told of a node that
//! they may not read by what a workflow is about.

mod step;

use std::time::{Duration, SystemTime};

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::{Date, NodePath, Snapshot};
use tympan_jobs::workflow::{StartWorkflow, Workflow, WorkflowFilter, WorkflowState, Workflows};

pub(crate) use self::step::{ENDPOINTS as STEPS, names_of, require_open};
use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, reference, sent, text, text_or_null};
use crate::failure::{Failure, Result};

/// The most instances or steps of one answer.
const MAX_LISTED: u32 = 500;
/// The most days that a purge looks back: a century.
const MAX_DAYS: u64 = 36_500;

const NUMBER: Kind = Kind::Integer(0, i64::MAX as u64);
const ID: Parameter = Parameter::required("id", NUMBER, "The instance's number.");
const COMMENT: Parameter = Parameter::new("comment", Kind::Text, "What the history says about it.");
const DATA: Parameter = Parameter::new(
    "data",
    Kind::Pairs,
    "What is added to the data of the instance: `name=value`. May be repeated.",
);

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/workflows",
        id: "listWorkflows",
        about: "Lists instances, the newest first: those that the asker started; all of them for administrators.",
        parameters: &[
            Parameter::new("model", Kind::Text, "Only those of the model at this path."),
            Parameter::new("payload", Kind::Text, "Only those about this path."),
            Parameter::new(
                "state",
                Kind::Text,
                "Only those in this state: RUNNING, SUSPENDED, COMPLETED, ABORTED or STALE, in letters of any case.",
            ),
            Parameter::new("before", NUMBER, "Only those with smaller numbers."),
            Parameter::new(
                "limit",
                Kind::Integer(1, MAX_LISTED as u64),
                "The length of the page. Default 100.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("Workflows", "The instances.")],
        handler: Handler::Task(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows",
        id: "startWorkflow",
        about: "Starts an instance about a node that the asker may read.",
        parameters: &[],
        body: Body::Form(&[
            Parameter::required("model", Kind::Path, "The path of the model."),
            Parameter::required("payload", Kind::Path, "The node that it is about."),
            DATA,
        ]),
        answers: &[Answer::created("WorkflowStarted", "It runs.")],
        handler: Handler::Task(start),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/workflows/models",
        id: "listWorkflowModels",
        about: "Lists the models that the asker may read, with what is wrong with those that start nothing: unknown processes, too.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("WorkflowModels", "The models.")],
        handler: Handler::Work(models),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/workflows/instance",
        id: "readWorkflow",
        about: "Shows an instance that the asker started, with its open steps and its history; any for administrators.",
        parameters: &[ID],
        body: Body::None,
        answers: &[Answer::json("WorkflowDetails", "The instance.")],
        handler: Handler::Task(read),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/terminate",
        id: "terminateWorkflow",
        about: "Ends an instance that the asker started; any for administrators.",
        parameters: &[],
        body: Body::Form(&[ID, COMMENT]),
        answers: &[Answer::json("WorkflowTerminated", "It has ended.")],
        handler: Handler::Task(terminate),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/suspend",
        id: "suspendWorkflow",
        about: "Keeps an instance that the asker started from going on; any for administrators.",
        parameters: &[],
        body: Body::Form(&[ID]),
        answers: &[Answer::json("Changed", "Whether it went on before.")],
        handler: Handler::Task(suspend),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/resume",
        id: "resumeWorkflow",
        about: "Lets an instance that the asker started go on; any for administrators.",
        parameters: &[],
        body: Body::Form(&[ID]),
        answers: &[Answer::json("Changed", "Whether it was suspended before.")],
        handler: Handler::Task(resume),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/purge",
        id: "purgeWorkflows",
        about: "Removes instances that ended before so many days. For administrators.",
        parameters: &[],
        body: Body::Form(&[
            Parameter::required("days", Kind::Integer(0, MAX_DAYS), "How many days are kept."),
            Parameter::new("model", Kind::Text, "Only those of the model at this path."),
        ]),
        answers: &[Answer::json("WorkflowsPurged", "How many there were.")],
        handler: Handler::Task(purge),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Value> {
    let members = || {
        vec![
            ("id", count()),
            ("model", text()),
            ("title", text()),
            ("payload", text_or_null()),
            ("state", json!({ "enum": WorkflowState::ALL.map(WorkflowState::name) })),
            ("data", json!({ "type": "object" })),
            ("initiator", text()),
            ("started", text()),
            ("ended", text_or_null()),
        ]
    };
    let entry = object(&[
        ("step", text()),
        ("title", text()),
        ("action", text()),
        ("user", text()),
        ("at", text()),
        ("comment", text_or_null()),
    ]);
    let mut details = members();
    details.extend([("steps", array(reference("WorkItem"))), ("history", array(entry))]);
    let model = sent(
        &["path"],
        &[
            ("path", text()),
            ("title", text()),
            ("transient", json!({ "type": "boolean" })),
            ("topic", text()),
            ("fault", text()),
        ],
    );
    let mut all = named([
        ("Workflow", object(&members())),
        ("Workflows", object(&[("workflows", array(reference("Workflow")))])),
        ("WorkflowDetails", object(&details)),
        ("WorkflowModels", object(&[("models", array(model))])),
        ("WorkflowStarted", object(&[("id", count())])),
        ("WorkflowTerminated", object(&[("terminated", count())])),
        ("WorkflowsPurged", object(&[("removed", count())])),
    ]);
    all.extend(step::schemas());
    all
}

fn workflows(instance: &Instance) -> Workflows {
    Workflows::new(instance.queues.clone())
}

fn iso(time: SystemTime) -> String {
    Date::from_system_time(time).to_string()
}

/// Returns what is to be added to the data of an instance.
fn data_of(call: &Call) -> Map<String, Value> {
    let data = call.texts("data").filter_map(|text| text.split_once('='));
    data.map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
}

/// Returns the number in a field that must be there.
fn number(call: &Call, name: &str) -> Result<i64> {
    call.whole(name).ok_or_else(|| Failure::bad_request(format!("say `{name}`")))
}

/// Returns a field that is not empty.
fn filled<'a>(call: &'a Call, name: &str) -> Option<&'a str> {
    call.text(name).filter(|text| !text.is_empty())
}

/// Tells whether the asker may look after everybody's instances.
fn is_administrator(call: &Call) -> Result<bool> {
    call.instance.is_administrator(&call.viewer)
}

/// Returns what an instance is about, if the asker may read it, or might if it were still there.
fn payload<'a>(seen: &Snapshot, payload: &'a str) -> Option<&'a str> {
    let path = NodePath::new(payload).ok()?;
    seen.would_see(&path, "cq:Page").then_some(payload)
}

fn described(workflow: &Workflow, seen: &Snapshot) -> Value {
    json!({
        "id": workflow.id,
        "model": workflow.model,
        "title": workflow.title,
        "payload": payload(seen, &workflow.payload),
        "state": workflow.state.name(),
        "data": workflow.data,
        "initiator": workflow.initiator,
        "started": iso(workflow.started),
        "ended": workflow.ended.map(iso),
    })
}

fn list(call: Call) -> Pending {
    Box::pin(async move {
        let initiator = (!is_administrator(&call)?).then(|| call.user().to_owned());
        let mut filter = WorkflowFilter {
            model: filled(&call, "model").map(str::to_owned),
            payload: filled(&call, "payload").map(str::to_owned),
            before: call.whole("before"),
            initiator,
            state: None,
        };
        if let Some(state) = call.text("state") {
            let unknown = || {
                let names = WorkflowState::ALL.map(WorkflowState::name).join(", ");
                Failure::unfit(format!("`state` is one of {names}"))
            };
            filter.state = Some(WorkflowState::find(state).ok_or_else(unknown)?);
        }
        let limit = u32::try_from(call.number("limit", 100)).unwrap_or(MAX_LISTED);
        let found = workflows(&call.instance).list(&filter, limit).await?;
        let seen = call.snapshot()?;
        let listed: Vec<Value> = found.iter().map(|one| described(one, &seen)).collect();
        Ok(Reply::json(json!({ "workflows": listed })))
    })
}

fn models(instance: &Instance, call: &Call) -> Result<Reply> {
    let workflows = workflows(instance);
    let found = workflows.models().find(&call.snapshot()?)?;
    let listed = found.iter().map(|(path, model)| match model {
        Ok(model) => {
            let mut shown = json!({
                "path": model.path, "title": model.title, "transient": model.is_transient,
                "topic": format!("{}/{}", tympan_jobs::WORKFLOW_TOPIC, model.suffix),
            });
            if let (Err(error), Some(members)) =
                (workflows.check_model(model), shown.as_object_mut())
            {
                members.insert("fault".to_owned(), error.to_string().into());
            }
            shown
        }
        Err(error) => json!({ "path": path, "fault": error.to_string() }),
    });
    Ok(Reply::json(json!({ "models": listed.collect::<Vec<_>>() })))
}

fn start(call: Call) -> Pending {
    Box::pin(async move {
        let (instance, now) = (call.instance.clone(), call.now);
        let start = instance
            .work(move |instance| {
                let (model, payload) =
                    (call.text("model").unwrap_or_default(), call.path("payload")?);
                let seen = call.snapshot()?;
                if seen.node(&payload)?.is_none() {
                    return Err(Failure::not_found(payload.as_str()));
                }
                let (payload, initiator) = (payload.to_string(), call.user().to_owned());
                let model = workflows(instance).models().read(&seen, model)?;
                Ok(StartWorkflow { model, payload, initiator, data: data_of(&call) })
            })
            .await?;
        let id = workflows(&instance).start(&start, now).await?;
        Ok(Reply::created(json!({ "id": id })))
    })
}

/// Finds an instance. To whoever neither started it nor is an administrator it is not there.
async fn seen_instance(call: &Call, id: i64) -> Result<Workflow> {
    let missing = || Failure::new(StatusCode::NOT_FOUND, format!("there is no instance {id}"));
    let found = workflows(&call.instance).find(id).await?.ok_or_else(missing)?;
    if found.initiator == call.user() || is_administrator(call)? {
        Ok(found)
    } else {
        Err(missing())
    }
}

fn read(call: Call) -> Pending {
    Box::pin(async move {
        let id = number(&call, "id")?;
        let workflow = seen_instance(&call, id).await?;
        let seen = call.snapshot()?;
        let mut shown = described(&workflow, &seen);
        let workflows = workflows(&call.instance);
        let steps = workflows.open_steps(id).await?;
        let steps: Vec<Value> = steps.iter().map(|item| step::described(item, &seen)).collect();
        let history = workflows.history(id).await?;
        let history = history.iter().map(|entry| {
            json!({
                "step": entry.step, "title": entry.title, "action": entry.action, "user": entry.user,
                "at": iso(entry.at), "comment": entry.comment,
            })
        });
        if let Some(members) = shown.as_object_mut() {
            members.insert("steps".to_owned(), steps.into());
            members.insert("history".to_owned(), history.collect());
        }
        Ok(Reply::json(shown))
    })
}

fn terminate(call: Call) -> Pending {
    Box::pin(async move {
        let id = number(&call, "id")?;
        seen_instance(&call, id).await?;
        let comment = filled(&call, "comment");
        workflows(&call.instance).terminate(id, call.user(), comment, call.now).await?;
        Ok(Reply::json(json!({ "terminated": id })))
    })
}

fn suspend(call: Call) -> Pending {
    Box::pin(switch(call, WorkflowState::Suspended))
}

fn resume(call: Call) -> Pending {
    Box::pin(switch(call, WorkflowState::Running))
}

async fn switch(call: Call, to: WorkflowState) -> Result<Reply> {
    let id = number(&call, "id")?;
    seen_instance(&call, id).await?;
    let is_changed = workflows(&call.instance).suspend(id, to, call.user(), call.now).await?;
    Ok(Reply::json(json!({ "changed": is_changed })))
}

fn purge(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("purge workflows")?;
        let days = call.number("days", 0) as u64;
        let age = Duration::from_secs(days.saturating_mul(24 * 3600));
        let before = call.now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
        let removed = workflows(&call.instance).purge(before, filled(&call, "model")).await?;
        Ok(Reply::json(json!({ "removed": removed })))
    })
}
