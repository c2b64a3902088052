//! Node types and namespaces: listed, written and read as CND. Everybody may read them.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};
use tympan_content::types::{TypeDefinition, write_cnd};
use tympan_content::{Error, NodePath, Privileges};

use crate::Instance;
use crate::api::endpoint::{
    Answer, Body, Call, Content, Endpoint, Handler, Kind, Parameter, Pending, Reply, Verb,
};
use crate::api::guard::broken;
use crate::api::schema::{array, name_schema, named, object, text, text_or_null};
use crate::failure::{Failure, Result};
use crate::metrics::count;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/types",
        id: "listTypes",
        about: "Lists the node types.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("NodeTypes", "The types, by name.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/types",
        id: "removeType",
        about: "Removes a node type that this repository defines; one of the standard set goes back to what it is there. \
                It takes `jcr:nodeTypeDefinitionManagement`.",
        parameters: &[Parameter::required("name", Kind::Name, "The type.")],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is gone.")],
        handler: Handler::Work(remove),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/types/cnd",
        id: "readTypes",
        about: "Writes node types as CND.",
        parameters: &[Parameter::new(
            "name",
            Kind::Texts,
            "A type. May be repeated. Default: those that this repository defines.",
        )],
        body: Body::None,
        answers: &[Answer { status: 200, about: "The types as CND.", content: Content::Bytes }],
        handler: Handler::Work(read),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/types/cnd",
        id: "defineTypes",
        about: "Defines the node types and namespaces of a CND text; types that exist are changed. It takes \
                `jcr:nodeTypeDefinitionManagement`.",
        parameters: &[],
        body: Body::Text,
        answers: &[Answer::nothing(204, "They are defined.")],
        handler: Handler::Task(define),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/namespaces",
        id: "listNamespaces",
        about: "Lists the namespaces by prefix.",
        parameters: &[],
        body: Body::None,
        answers: &[Answer::json("Namespaces", "The namespaces.")],
        handler: Handler::Work(namespaces),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/namespaces",
        id: "registerNamespace",
        about: "Registers a prefix for a namespace. It takes `jcr:namespaceManagement`.",
        parameters: &[],
        body: Body::Json("Namespace"),
        answers: &[Answer::nothing(204, "The prefix stands for the namespace.")],
        handler: Handler::Work(register),
    },
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let flag = || json!({ "type": "boolean" });
    let namespace = object(&[("prefix", text()), ("uri", text())]);
    let uri = json!({ "type": "string", "minLength": 1, "maxLength": 1000 });
    named([
        (
            "NodeTypes",
            object(&[(
                "types",
                array(object(&[
                    ("name", text()),
                    ("supertypes", array(text())),
                    ("isMixin", flag()),
                    ("isAbstract", flag()),
                    ("hasOrderableChildren", flag()),
                    ("primaryItem", text_or_null()),
                    ("isOwn", flag()),
                ])),
            )]),
        ),
        ("Namespaces", object(&[("namespaces", array(namespace))])),
        ("Namespace", object(&[("prefix", name_schema()), ("uri", uri)])),
    ])
}

/// The privileges that changes take.
const TYPES: &str = "jcr:nodeTypeDefinitionManagement";
const NAMESPACES: &str = "jcr:namespaceManagement";

/// Refuses whoever lacks a privilege of the repository, whether or not anything would change.
fn require(call: &Call, privilege: &'static str) -> Result<()> {
    let wanted = Privileges::find(privilege).unwrap_or(Privileges::ALL);
    if call.snapshot()?.allows_in_repository(wanted) {
        return Ok(());
    }
    Err(Error::AccessDenied { path: NodePath::root(), privilege }.into())
}

/// Names the privilege to whoever does not even see where types are kept.
fn told(error: Error, privilege: &'static str) -> Error {
    match error {
        Error::NodeMissing(path) | Error::NodeExists(path) => {
            Error::AccessDenied { path, privilege }
        }
        error => error,
    }
}

fn list(_: &Instance, call: &Call) -> Result<Reply> {
    let types = call.snapshot()?.node_types()?;
    let own: Vec<&str> = types.own().map(|one| one.name.as_str()).collect();
    let types = types.all().map(|one| {
        let definition = &one.definition;
        json!({
            "name": definition.name,
            "supertypes": definition.supertypes,
            "isMixin": definition.flags.is_mixin,
            "isAbstract": definition.flags.is_abstract,
            "hasOrderableChildren": definition.flags.has_orderable_children,
            "primaryItem": definition.primary_item,
            "isOwn": own.contains(&definition.name.as_str()),
        })
    });
    Ok(Reply::json(json!({ "types": types.collect::<Vec<_>>() })))
}

fn remove(instance: &Instance, call: &Call) -> Result<Reply> {
    require(call, TYPES)?;
    let name = call.text("name").unwrap_or_default();
    if call.snapshot()?.node_types()?.find(name).is_none() {
        let message = format!("there is no node type `{name}`");
        return Err(Failure::new(StatusCode::NOT_FOUND, message));
    }
    let mut session = call.session()?;
    session.remove_types(&[name]).map_err(|error| told(error, TYPES))?;
    session.commit(&format!("remove the node type {name}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}

fn read(_: &Instance, call: &Call) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let types = snapshot.node_types()?;
    let mut wanted: Vec<TypeDefinition> = Vec::new();
    for name in call.texts("name") {
        let missing =
            || Failure::new(StatusCode::NOT_FOUND, format!("there is no node type `{name}`"));
        wanted.push(types.find(name).ok_or_else(missing)?.definition.clone());
    }
    if wanted.is_empty() {
        wanted = types.own().cloned().collect();
    }
    let known = snapshot.namespaces()?;
    let without_types = write_cnd(&wanted, &BTreeMap::new());
    let is_used =
        |prefix: &str| !prefix.is_empty() && without_types.contains(&format!("{prefix}:"));
    let used = known.all().filter(|(prefix, _)| is_used(prefix));
    let used = used.map(|(prefix, uri)| (prefix.to_owned(), uri.to_owned())).collect();
    let text = write_cnd(&wanted, &used);
    let media_type = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
    Ok(Reply::Http(axum::response::IntoResponse::into_response((media_type, text))))
}

fn define(call: Call) -> Pending {
    Box::pin(async move {
        let text = read_text(&call).await?;
        let instance = call.instance.clone();
        let work = move |instance: &Instance| {
            require(&call, TYPES)?;
            let mut session = call.session()?;
            session.register_types(&text).map_err(|error| told(error, TYPES))?;
            if session.has_changes()? {
                session.commit("define node types", call.now)?;
                count(&instance.metrics.commits);
            }
            Ok(Reply::nothing())
        };
        instance.work(work).await
    })
}

/// Reads a body of text.
pub(crate) async fn read_text(call: &Call) -> Result<String> {
    let body = call.stream.lock().take();
    let body = body.unwrap_or_default();
    let limited = tympan_web::limit::limited(body, crate::api::endpoint::MAX_JSON_BYTES);
    let bytes: Bytes =
        axum::body::Body::new(limited).collect().await.map_err(|error| broken(&error))?.to_bytes();
    if bytes.is_empty() {
        return Err(Failure::bad_request("there is no body"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| Failure::bad_request("the body is not UTF-8"))
}

fn namespaces(_: &Instance, call: &Call) -> Result<Reply> {
    let known = call.snapshot()?.namespaces()?;
    let known = known.all().map(|(prefix, uri)| json!({ "prefix": prefix, "uri": uri }));
    Ok(Reply::json(json!({ "namespaces": known.collect::<Vec<_>>() })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Namespace {
    prefix: String,
    uri: String,
}

fn register(instance: &Instance, call: &Call) -> Result<Reply> {
    let Namespace { prefix, uri } = call.body()?;
    tympan_content::check_name(&prefix)?;
    if uri.is_empty() || uri.chars().count() > 1000 {
        return Err(Failure::bad_request("`uri` must be a text of 1 to 1000 characters"));
    }
    require(call, NAMESPACES)?;
    let mut session = call.session()?;
    session.register_namespace(&prefix, &uri).map_err(|error| told(error, NAMESPACES))?;
    if session.has_changes()? {
        session.commit(&format!("register the prefix {prefix}"), call.now)?;
        count(&instance.metrics.commits);
    }
    Ok(Reply::nothing())
}
