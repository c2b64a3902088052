//! Steps of workflows that do not go their usual way: what failed, and what is sent back.

use serde_json::{Map, Value as Json, json};
use tympan_content::Date;
use tympan_jobs::workflow::{FailedStep, Workflows};

use super::workflow::{names_of, require_open};
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, text, text_or_null};
use crate::failure::Result;

/// The most steps of one answer.
const MAX_LISTED: u32 = 500;

const ITEM: Parameter =
    Parameter::required("item", Kind::Integer(0, i64::MAX as u64), "The step's number.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/workflows/failures",
        id: "listFailedSteps",
        about: "Lists steps that were given up, at most 500, oldest first; for the administrator.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("FailedSteps", "The steps, with the reasons.")],
        handler: Handler::Task(failures),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/restart",
        id: "restartStep",
        about: "Carries a failed step out again, with all its attempts; for the administrator.",
        parameters: &[ITEM],
        body: Body::None,
        answers: &[Answer::json("StepDone", "The step.")],
        handler: Handler::Task(restart),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/workflows/back",
        id: "listBackRoutes",
        about: "Lists the steps to which an open step can be sent back, newest first.",
        parameters: &[ITEM],
        body: Body::None,
        answers: &[Answer::json("BackRoutes", "Names of steps.")],
        handler: Handler::Task(back_routes),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/back",
        id: "sendStepBack",
        about: "Sends a step of the asker's inbox back to one that was completed before.",
        parameters: &[
            ITEM,
            Parameter::new("to", Kind::Name, "Which step; the last one without it."),
            Parameter::new("comment", Kind::Text, "Why."),
        ],
        body: Body::None,
        answers: &[Answer::json("StepDone", "The step.")],
        handler: Handler::Task(send_back),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let failed = object(&[
        ("item", count()),
        ("workflow", count()),
        ("title", text()),
        ("payload", text()),
        ("job", count()),
        ("reason", text()),
        ("ended", text_or_null()),
    ]);
    named([
        ("FailedSteps", object(&[("steps", array(failed))])),
        ("StepDone", object(&[("item", count())])),
        ("BackRoutes", object(&[("routes", array(text()))])),
    ])
}

fn workflows(call: &Call) -> Workflows {
    Workflows::new(call.instance.queues.clone())
}

fn item_of(call: &Call) -> i64 {
    call.text("item").and_then(|item| item.parse().ok()).unwrap_or_default()
}

fn failures(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("see what failed")?;
        let failed = workflows(&call).failures(MAX_LISTED).await?;
        let failed: Vec<Json> = failed.iter().map(failed_json).collect();
        Result::Ok(Reply::json(json!({ "steps": failed })))
    })
}

fn failed_json(step: &FailedStep) -> Json {
    json!({
        "item": step.item,
        "workflow": step.workflow,
        "title": step.title,
        "payload": step.payload,
        "job": step.job,
        "reason": step.reason,
        "ended": step.ended.map(|at| Date::from_system_time(at).to_string()),
    })
}

fn restart(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("restart steps")?;
        let item = item_of(&call);
        workflows(&call).restart(item, call.user(), call.now).await?;
        Result::Ok(Reply::json(json!({ "item": item })))
    })
}

fn back_routes(call: Call) -> Pending {
    Box::pin(async move {
        let (names, item) = (names_of(&call)?, item_of(&call));
        require_open(&call, &names, item).await?;
        let routes = workflows(&call).back_routes_for(item, &names).await?;
        Result::Ok(Reply::json(json!({ "routes": routes })))
    })
}

fn send_back(call: Call) -> Pending {
    Box::pin(async move {
        let (names, item) = (names_of(&call)?, item_of(&call));
        require_open(&call, &names, item).await?;
        let who = (call.user(), call.text("comment"));
        workflows(&call).step_back((item, call.text("to")), &names, who, call.now).await?;
        Result::Ok(Reply::json(json!({ "item": item })))
    })
}
