//! Steps of workflows that people do: the inbox, completing a step, giving it to somebody else.

use http::StatusCode;
use serde_json::{Map, Value, json};
use tympan_content::Snapshot;
use tympan_jobs::workflow::WorkItem;

use super::{COMMENT, DATA, MAX_LISTED, NUMBER, data_of, filled, iso, number, payload, workflows};
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::schema::{array, count, named, object, reference, text, text_or_null};
use crate::failure::{Failure, Result};

const ITEM: Parameter = Parameter::required("item", NUMBER, "The number of the step.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/workflows/inbox",
        id: "readInbox",
        about: "Lists the steps that the asker, or a group of theirs, is to do; all of them for administrators.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Inbox", "The steps.")],
        handler: Handler::Task(inbox),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/complete",
        id: "completeStep",
        about: "Completes a step of the asker's inbox.",
        parameters: &[],
        body: Body::Form(&[
            ITEM,
            Parameter::new("route", Kind::Text, "The step to go on with, where there is a choice."),
            COMMENT,
            DATA,
        ]),
        answers: &[Answer::json("StepCompleted", "It is done.")],
        handler: Handler::Task(complete),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/workflows/delegate",
        id: "delegateStep",
        about: "Gives a step of the asker's inbox to another user or group.",
        parameters: &[],
        body: Body::Form(&[ITEM, Parameter::required("to", Kind::Filled, "The user or group.")]),
        answers: &[Answer::json("StepDelegated", "It is theirs.")],
        handler: Handler::Task(delegate),
    },
];

/// The schemas of this part.
pub(super) fn schemas() -> Map<String, Value> {
    let item = object(&[
        ("id", count()),
        ("workflow", count()),
        ("model", text()),
        ("step", text()),
        ("title", text()),
        ("type", text()),
        ("assignee", text_or_null()),
        ("started", text()),
        ("payload", text_or_null()),
        ("routes", array(text())),
    ]);
    named([
        ("WorkItem", item),
        ("Inbox", object(&[("items", array(reference("WorkItem")))])),
        ("StepCompleted", object(&[("completed", count())])),
        ("StepDelegated", object(&[("delegated", count()), ("to", text())])),
    ])
}

pub(super) fn described(item: &WorkItem, seen: &Snapshot) -> Value {
    json!({
        "id": item.id,
        "workflow": item.workflow,
        "model": item.model,
        "step": item.step,
        "title": item.title,
        "type": item.kind,
        "assignee": item.assignee,
        "started": iso(item.started),
        "payload": payload(seen, &item.payload),
        "routes": item.routes,
    })
}

/// Returns the names under which the asker is asked to do a step; none for administrators, who may do all.
pub(crate) fn names_of(call: &Call) -> Result<Vec<String>> {
    if super::is_administrator(call)? {
        return Ok(Vec::new());
    }
    let mut names = call.instance.repository.groups_of(&call.viewer)?;
    names.push(call.user().to_owned());
    Ok(names)
}

/// Refuses to speak of a step that is not in the asker's inbox.
pub(crate) async fn require_open(call: &Call, names: &[String], item: i64) -> Result<()> {
    let open = workflows(&call.instance).inbox(names, u32::MAX).await?;
    if open.iter().any(|one| one.id == item) { Ok(()) } else { Err(missing(item)) }
}

fn missing(item: i64) -> Failure {
    Failure::new(StatusCode::NOT_FOUND, format!("the step {item} is not open"))
}

fn inbox(call: Call) -> Pending {
    Box::pin(async move {
        let items = workflows(&call.instance).inbox(&names_of(&call)?, MAX_LISTED).await?;
        let seen = call.snapshot()?;
        let items: Vec<Value> = items.iter().map(|item| described(item, &seen)).collect();
        Ok(Reply::json(json!({ "items": items })))
    })
}

fn complete(call: Call) -> Pending {
    Box::pin(async move {
        let (item, names) = (number(&call, "item")?, names_of(&call)?);
        require_open(&call, &names, item).await?;
        let who = (call.user(), filled(&call, "comment"));
        let what = (filled(&call, "route"), data_of(&call));
        workflows(&call.instance).complete(item, &names, who, what, call.now).await?;
        Ok(Reply::json(json!({ "completed": item })))
    })
}

fn delegate(call: Call) -> Pending {
    Box::pin(async move {
        let (item, names) = (number(&call, "item")?, names_of(&call)?);
        // Asked first, so that nobody finds out who there is without having a step to give away.
        require_open(&call, &names, item).await?;
        let to = call.text("to").unwrap_or_default();
        if call.instance.repository.account_path(to)?.is_none() {
            let to: String = to.chars().take(100).collect();
            return Err(Failure::unfit(format!("there is no user or group `{to}`")));
        }
        if !workflows(&call.instance).delegate(item, to).await? {
            return Err(missing(item));
        }
        Ok(Reply::json(json!({ "delegated": item, "to": to })))
    })
}
