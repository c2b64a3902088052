//! Looking after agents, what goes along with an activation, and what is live.

use serde_json::{Map, Value as Json, json};
use tympan_content::{Date, Depth, NodePath, Privileges};
use tympan_replicate::{Companion, Live, Orphan, companions, live, orphans};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::node::find;
use crate::api::schema::{array, named, object, text, text_or_null};
use crate::failure::Result;

/// The most documents of one answer.
const MAX_LISTED: u64 = 1000;

const COMMANDS: &[&str] = &["test", "pause", "resume", "clear", "retry"];

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/agents",
        id: "commandAgent",
        about: "Asks the other side of an agent whether it hears, pauses or resumes its jobs, removes those that are not \
                being sent, or lets all run again now; for the administrator.",
        parameters: &[
            Parameter::required(
                "name",
                Kind::Text,
                "The agent's name, as `/api/v1/queue` lists it.",
            ),
            Parameter::required("command", Kind::Words(COMMANDS), "What to do."),
        ],
        body: Body::None,
        answers: &[Answer::json("AgentDone", "What came of it.")],
        handler: Handler::Task(carry_out),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/replication/companions",
        id: "listCompanions",
        about: "Lists what activated documents refer to, with what visitors have of it and whether it is to go along.",
        parameters: &[
            Parameter::required("path", Kind::Path, "The document."),
            Parameter::new("deep", Kind::Flag, "Whether all below is activated, too."),
        ],
        body: Body::None,
        answers: &[Answer::json("Companions", "What is referred to, at most 1,000.")],
        handler: Handler::Work(list_companions),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/replication/live",
        id: "listLive",
        about: "Lists pages and assets at and below a node that visitors have: since when, from whom, and whether they \
                changed since; and what visitors still have that was removed or moved here.",
        parameters: &[
            Parameter::required("path", Kind::Path, "The node."),
            Parameter::new("after", Kind::Path, "The last document of the page before."),
            Parameter::new("limit", Kind::Integer(1, MAX_LISTED), "At most so many; default 100."),
        ],
        body: Body::None,
        answers: &[Answer::json("LiveList", "The documents, in the order of content.")],
        handler: Handler::Work(list_live),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let document = [
        ("path", text()),
        ("title", text_or_null()),
        ("status", json!({ "enum": ["never", "live", "outdated", "taken-away"] })),
        ("at", text_or_null()),
        ("by", text_or_null()),
    ];
    let orphan = [
        ("path", text()),
        ("movedTo", text_or_null()),
        ("at", text()),
        ("by", text()),
        ("waits", flag()),
    ];
    let kind = json!({ "enum": ["asset", "tag", "template", "fragment", "page", "other"] });
    let more = [("kind", kind), ("ticked", flag()), ("referrer", text())];
    let companion = [&document[..], &more].concat();
    named([
        (
            "AgentDone",
            object(&[
                ("done", flag()),
                ("reason", text_or_null()),
                ("jobs", json!({ "type": "integer", "minimum": 0 })),
            ]),
        ),
        ("Companions", object(&[("companions", array(object(&companion)))])),
        (
            "LiveList",
            object(&[("documents", array(object(&document))), ("orphans", array(object(&orphan)))]),
        ),
    ])
}

/// Tests, pauses, resumes, clears or retries.
fn carry_out(call: Call) -> Pending {
    Box::pin(async move {
        call.require_administrator("look after agents")?;
        let name = call.text("name").unwrap_or_default().to_owned();
        let replicator = &call.instance.replicator;
        let agent = match replicator.agent(&name).await {
            Ok(agent) => agent.name,
            Err(error @ tympan_replicate::Error::Agent { .. }) => {
                return Err(crate::failure::Failure::new(
                    http::StatusCode::NOT_FOUND,
                    error.to_string(),
                ));
            }
            Err(error) => return Err(error.into()),
        };
        let mut jobs = 0;
        let mut is_done = true;
        match call.text("command").unwrap_or_default() {
            "test" => {
                if let Err(error) = replicator.test(&agent).await {
                    let reason = tympan_jobs::chain(&error);
                    return Ok(Reply::json(json!({ "done": false, "reason": reason, "jobs": 0 })));
                }
            }
            "pause" => replicator.pause(&agent, call.user(), call.now).await?,
            "resume" => is_done = replicator.resume(&agent).await?,
            "clear" => jobs = replicator.clear(&agent).await?,
            _ => jobs = replicator.retry(&agent, call.now).await?,
        }
        Ok(Reply::json(json!({ "done": is_done, "reason": null, "jobs": jobs })))
    })
}

fn list_companions(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    find(&snapshot, &path)?;
    let depth = if call.flag("deep") { Depth::Subtree } else { Depth::Document };
    let limit = usize::try_from(MAX_LISTED).unwrap_or(usize::MAX);
    let found = companions(&snapshot, &path, depth, limit)?;
    crate::page::check_failure(&snapshot)?;
    let found: Vec<Json> = found.iter().map(companion_json).collect();
    Ok(Reply::json(json!({ "companions": found })))
}

fn companion_json(companion: &Companion) -> Json {
    let mut members = live_json(&companion.document);
    if let Some(members) = members.as_object_mut() {
        members.insert("kind".to_owned(), companion.kind.name().into());
        members.insert("ticked".to_owned(), companion.is_ticked.into());
        members.insert("referrer".to_owned(), companion.referrer.as_str().into());
    }
    members
}

fn list_live(_: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, path) = (call.snapshot()?, call.path("path")?);
    find(&snapshot, &path)?;
    let after = call.text("after").map(|_| call.path("after")).transpose()?;
    let found = live(&snapshot, &path, after.as_ref(), call.number("limit", 100))?;
    crate::page::check_failure(&snapshot)?;
    let found: Vec<Json> = found.iter().map(live_json).collect();
    let mut left = orphans(&snapshot, &path)?;
    left.retain(|orphan| snapshot.allows(&orphan.path, Privileges::READ).unwrap_or(false));
    let left: Vec<Json> = left.iter().map(orphan_json).collect();
    Ok(Reply::json(json!({ "documents": found, "orphans": left })))
}

fn orphan_json(orphan: &Orphan) -> Json {
    json!({
        "path": orphan.path.as_str(),
        "movedTo": orphan.moved_to.as_ref().map(NodePath::as_str),
        "at": Date::from_system_time(orphan.at).to_string(),
        "by": orphan.by,
        "waits": orphan.is_waiting,
    })
}

fn live_json(live: &Live) -> Json {
    json!({
        "path": live.path.as_str(),
        "title": live.title,
        "status": live.status.name(),
        "at": live.at.map(|at| Date::from_system_time(at).to_string()),
        "by": live.by,
    })
}
