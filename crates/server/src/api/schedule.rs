//! Running what is scheduled at once.

use serde_json::{Map, Value as Json, json};

use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{count, named, object};
use crate::failure::{Failure, Result};

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[Endpoint {
    verb: Verb::Post,
    path: "/api/v1/schedules/run",
    id: "runSchedule",
    about: "Adds the job of a schedule now, unless one waits or runs; its next time stays. For the administrator.",
    parameters: &[Parameter::required(
        "name",
        Kind::Text,
        "The schedule's name, as `/api/v1/jobs/schedules` lists it.",
    )],
    body: Body::None,
    answers: &[Answer::json("ScheduleRun", "The job.")],
    handler: Handler::Task(run),
}];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    named([("ScheduleRun", object(&[("job", count())]))])
}

fn run(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("run what is scheduled")?;
        let name = call.text("name").unwrap_or_default().to_owned();
        let job = call.instance.queues.run_schedule(&name, call.user(), call.now).await?;
        let missing = || {
            let message =
                format!("there is no schedule `{name}`; `/api/v1/jobs/schedules` lists them");
            Failure::new(http::StatusCode::NOT_FOUND, message)
        };
        let job = job.ok_or_else(missing)?;
        Result::Ok(Reply::json(json!({ "job": job.0 })))
    })
}
