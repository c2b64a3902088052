//! Content packages over the API.
//!
//! Everything is done in the asker's name, as `crate::package` says.

use serde_json::{Map, Value as Json, json};
use tympan_content::package::{
    DependencyRule, IdentifierRule, IfExists, InstallOptions, PackageId,
};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Content, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::node_type::read_text;
use crate::api::schema::{array, count, named, object, reference, text, text_or_null};
use crate::failure::{Failure, Result};
use crate::package::{build, find, install_stored, receive, remove_stored, send, uninstall_stored};

const ID: Parameter = Parameter::required("id", Kind::Text, "The package: `group:name:version`.");
const IDENTIFIERS: Parameter = Parameter::new(
    "identifiers",
    Kind::Words(&["refuse", "new", "replace"]),
    "What becomes of nodes whose identifier is taken. Default `refuse`.",
);
const DEPENDENCIES: Parameter = Parameter::new(
    "dependencies",
    Kind::Words(&["best_effort", "required", "strict", "ignore"]),
    "What becomes of packages that it needs. Default `required`.",
);

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/packages",
        id: "listPackages",
        about: "Lists the stored packages that the asker may read.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Packages", "The packages, by group, name and version.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/packages",
        id: "storePackage",
        about: "Stores the package in the body, or in the first file of a form; with `install` installs it in the same \
                commit.",
        parameters: &[
            Parameter::new("install", Kind::Flag, "Whether to install it, too. Default false."),
            Parameter::new(
                "replace",
                Kind::Flag,
                "Whether it takes the place of one that is stored. Default false.",
            ),
            IDENTIFIERS,
            DEPENDENCIES,
        ],
        body: Body::Bytes,
        answers: &[Answer::created("StoredPackage", "It is stored.")],
        handler: Handler::Task(upload),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/packages",
        id: "removePackage",
        about: "Removes the file of a stored package; its content stays.",
        parameters: &[ID],
        body: Body::None,
        answers: &[Answer::json("RemovedPackage", "It is gone.")],
        handler: Handler::Work(remove),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/packages/zip",
        id: "readPackage",
        about: "Sends the file of a stored package.",
        parameters: &[ID],
        body: Body::None,
        answers: &[Answer { status: 200, about: "The file.", content: Content::Bytes }],
        handler: Handler::Work(download),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/packages/diff",
        id: "comparePackage",
        about: "Tells what installing the package in the body would change, as far as the asker may read.",
        parameters: &[],
        body: Body::Bytes,
        answers: &[Answer::json("PackageReport", "The changes.")],
        handler: Handler::Task(diff),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/packages/install",
        id: "installPackage",
        about: "Installs a stored package as one commit, which needs every privilege that its changes need.",
        parameters: &[ID, IDENTIFIERS, DEPENDENCIES],
        body: Body::None,
        answers: &[Answer::json("PackageReport", "What was done.")],
        handler: Handler::Work(install),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/packages/uninstall",
        id: "uninstallPackage",
        about: "Takes back what installing a package did.",
        parameters: &[
            ID,
            Parameter::new(
                "force",
                Kind::Flag,
                "Whether to do so although others need it. Default false.",
            ),
        ],
        body: Body::None,
        answers: &[Answer::json("PackageReport", "What was done.")],
        handler: Handler::Work(uninstall),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/packages/build",
        id: "buildPackage",
        about: "Builds a package of what the filter in the body (a `filter.xml`) names, as far as the asker may read, \
                and sends it.",
        parameters: &[ID],
        body: Body::Text,
        answers: &[Answer { status: 200, about: "The package.", content: Content::Bytes }],
        handler: Handler::Task(build_and_send),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let any = || json!({ "type": "object" });
    let id = object(&[("group", text()), ("name", text()), ("version", text())]);
    let package = object(&[
        ("path", text()),
        ("id", id),
        ("size", count()),
        ("data", text()),
        ("dependencies", array(text())),
        ("created", text_or_null()),
        ("created_by", text_or_null()),
        ("last_unpacked", text_or_null()),
        ("last_unpacked_by", text_or_null()),
    ]);
    named([
        ("Package", package),
        ("Packages", object(&[("packages", array(reference("Package")))])),
        (
            "StoredPackage",
            object(&[
                ("package", reference("Package")),
                ("report", json!({ "type": ["object", "null"] })),
                ("text", text_or_null()),
            ]),
        ),
        ("RemovedPackage", object(&[("package", reference("Package"))])),
        ("PackageReport", object(&[("report", any()), ("text", text())])),
    ])
}

fn id_of(call: &Call) -> Result<PackageId> {
    let id = PackageId::parse(call.text("id").unwrap_or_default());
    if id.name.is_empty() {
        let message = "name the package with `id=group:name:version`";
        return Err(Failure::new(http::StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    Ok(id)
}

fn options_of(call: &Call) -> InstallOptions {
    let mut options = InstallOptions::default();
    if let Some(rule) = call.text("identifiers").and_then(IdentifierRule::find) {
        options.identifiers = rule;
    }
    if let Some(rule) = call.text("dependencies").and_then(DependencyRule::find) {
        options.dependencies = rule;
    }
    options
}

fn list(_: &Instance, call: &Call) -> Result<Reply> {
    Ok(Reply::json(json!({ "packages": call.snapshot()?.packages()? })))
}

fn upload(call: Call) -> Pending {
    Box::pin(async move {
        let received = received(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            if call.flag("install") {
                let report = received.install(instance, &call.viewer, &options_of(&call))?;
                let stored = find(instance, &call.viewer, &report.package)?;
                let text = report.to_string();
                return Ok(Reply::created(
                    json!({ "package": stored, "report": report, "text": text }),
                ));
            }
            let if_exists = if call.flag("replace") { IfExists::Replace } else { IfExists::Refuse };
            let stored = received.store(instance, &call.viewer, if_exists)?;
            Ok(Reply::created(json!({ "package": stored, "report": null, "text": null })))
        };
        instance.work(work).await
    })
}

async fn received(call: &Call) -> Result<crate::package::Received> {
    let body = call.stream.lock().take();
    let body = body.ok_or_else(|| Failure::bad_request("there is no body"))?;
    receive(&call.instance, &call.headers, body).await
}

fn diff(call: Call) -> Pending {
    Box::pin(async move {
        let received = received(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            let difference = received.difference(instance, &call.viewer)?;
            let text = difference.to_string();
            Ok(Reply::json(json!({ "report": difference, "text": text })))
        };
        instance.work(work).await
    })
}

fn install(instance: &Instance, call: &Call) -> Result<Reply> {
    let stored = find(instance, &call.viewer, &id_of(call)?)?;
    let report = install_stored(instance, &call.viewer, &stored, &options_of(call))?;
    let text = report.to_string();
    Ok(Reply::json(json!({ "report": report, "text": text })))
}

fn uninstall(instance: &Instance, call: &Call) -> Result<Reply> {
    let stored = find(instance, &call.viewer, &id_of(call)?)?;
    let done = uninstall_stored(instance, &call.viewer, &stored, call.flag("force"))?;
    let text = done.to_string();
    Ok(Reply::json(json!({ "report": done, "text": text })))
}

fn remove(instance: &Instance, call: &Call) -> Result<Reply> {
    let stored = find(instance, &call.viewer, &id_of(call)?)?;
    remove_stored(instance, &call.viewer, &stored)?;
    Ok(Reply::json(json!({ "package": stored })))
}

fn download(instance: &Instance, call: &Call) -> Result<Reply> {
    let stored = find(instance, &call.viewer, &id_of(call)?)?;
    Ok(Reply::Http(send(instance, &stored, false)?))
}

fn build_and_send(call: Call) -> Pending {
    Box::pin(async move {
        let id = id_of(&call)?;
        let filter = read_text(&call).await?;
        let instance = call.instance.clone();
        let viewer = call.viewer.clone();
        let work = move |instance: &Instance| {
            build(instance, &viewer, id, filter.as_bytes()).map(Reply::Http)
        };
        instance.work(work).await
    })
}
