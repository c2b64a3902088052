//! The bytes of a property: streamed out with ranges, streamed in with one commit.

use std::io::Write as _;

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::BodyExt;
use tempfile::NamedTempFile;
use tympan_content::{Date, NodePath, Property, Value};
use tympan_render::{Blob, FileDelivery};

use crate::Instance;
use crate::api::endpoint::{
    AT, Answer, BRANCH, Body, Call, Content, Endpoint, Handler, Kind, Parameter, Pending, Reply,
    Verb,
};
use crate::api::guard::broken;
use crate::api::node::find;
use crate::api::tag::{self, Condition};
use crate::api::write::written;
use crate::arrived::require_write;
use crate::failure::{Failure, Result};
use crate::page::{add_delivery, send_blob};
use crate::settable::SetProperties;
use crate::touch::touch_pages;

const PATH: Parameter = Parameter::required("path", Kind::Path, "The node.");
const PROPERTY: Parameter =
    Parameter::new("property", Kind::Name, "The property. Default `jcr:data`.");

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/blob",
        id: "readBlob",
        about: "Reads the bytes of a property, or a range of them.",
        parameters: &[
            PATH,
            PROPERTY,
            Parameter::new(
                "index",
                Kind::Integer(0, 1_000_000),
                "Which value of a list. Default 0.",
            ),
            BRANCH,
            AT,
            Parameter::new("Range", Kind::Header, "The wanted bytes, such as `bytes=0-99`."),
        ],
        body: Body::None,
        answers: &[
            Answer { status: 200, about: "The bytes.", content: Content::Bytes },
            Answer { status: 206, about: "The wanted bytes.", content: Content::Bytes },
            Answer::nothing(416, "There are no such bytes."),
        ],
        handler: Handler::Work(read),
    },
    Endpoint {
        verb: Verb::Put,
        path: "/api/v1/blob",
        id: "writeBlob",
        about: "Stores the body as the bytes of a property; for `jcr:data` its type and time beside it.",
        parameters: &[
            PATH,
            PROPERTY,
            Parameter::new("If-Match", Kind::Header, "The tag of what was read of the document."),
        ],
        body: Body::Bytes,
        answers: &[Answer::json("Written", "They are stored.")],
        handler: Handler::Task(write),
    },
];

/// Answers with the bytes of a property.
fn read(instance: &Instance, call: &Call) -> Result<Reply> {
    let node = find(&call.snapshot()?, &call.path("path")?)?;
    let name = call.text("property").unwrap_or("jcr:data");
    let absent = || Failure::not_found(&format!("{}/{name}", node.path()));
    let property = node.property(name).ok_or_else(absent)?;
    let Some(Value::Binary(id)) = property.values().get(call.number("index", 0)) else {
        return Err(absent());
    };
    let modified = match node.property("jcr:lastModified").as_ref().and_then(Property::first) {
        Some(Value::Date(date)) => Some(date.to_system_time()),
        _ => None,
    };
    let digits: String = id.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    let blob = Blob { id: *id, etag: format!("\"{digits}\""), last_modified: modified };
    let mut response = send_blob(&instance.repository, &blob, &call.headers, false)?;
    let headers = response.headers_mut();
    let declared = node.text("jcr:mimeType").unwrap_or_default();
    let delivery = FileDelivery::of(&declared, "");
    add_delivery(headers, &delivery);
    // Whatever it is, it must not run as this site.
    let sandbox = http::HeaderValue::from_static("sandbox");
    headers.insert(header::CONTENT_SECURITY_POLICY, sandbox);
    Ok(Reply::Http(response))
}

/// Stores the body.
fn write(call: Call) -> Pending {
    Box::pin(async move {
        let Some(mut body) = call.stream.lock().take() else {
            return Err(Failure::bad_request("there is no body"));
        };
        let mut file = NamedTempFile::new_in(&call.instance.spool)?;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| broken(&error))?;
            if let Ok(piece) = frame.into_data() {
                file = append(file, piece).await?;
            }
        }
        let instance = call.instance.clone();
        instance.work(move |instance| store(instance, &call, &file)).await
    })
}

async fn append(mut file: NamedTempFile, piece: Bytes) -> Result<NamedTempFile> {
    let written =
        tokio::task::spawn_blocking(move || file.write_all(&piece).map(|()| file)).await?;
    Ok(written?)
}

fn store(instance: &Instance, call: &Call, file: &NamedTempFile) -> Result<Reply> {
    let (path, name) = (call.path("path")?, call.text("property").unwrap_or("jcr:data"));
    let mut session = instance.repository.session_of(&call.viewer)?;
    let begun = session.snapshot()?;
    let node = session.node(&path)?.ok_or_else(|| Failure::not_found(path.as_str()))?;
    let condition = Condition::of(&call.headers);
    condition.check(instance, Some(&node))?;
    drop(node);
    if condition != Condition::None {
        session.expect_unchanged(&path)?;
    }
    require_write(&begun, &path)?;
    let blob = session.put_blob(&mut std::io::BufReader::new(file.reopen()?))?;
    let bytes = Property::Single(Value::Binary(blob));
    session.set_property(&path, name, bytes.clone())?;
    if name == "jcr:data" {
        let date = Property::Single(Value::Date(Date::from_system_time(call.now)));
        session.set_property(&path, "jcr:lastModified", date)?;
        if let Some(media_type) = call.header(&header::CONTENT_TYPE) {
            session.set_property(&path, "jcr:mimeType", Property::text(media_type))?;
        }
    }
    let mut set = SetProperties::default();
    set.add(&path, name, Some(bytes), 0);
    set.check(&begun, &mut session)?;
    touch_pages(&mut session, [path.to_string()], call.user(), call.now)?;
    let root = session.commit(&format!("write bytes of {path}"), call.now)?;
    let tag = tag_at(instance, root, call, &path)?;
    Ok(written(&path, tag, StatusCode::OK))
}

fn tag_at(
    instance: &Instance,
    root: tympan_content::ChunkId,
    call: &Call,
    path: &NodePath,
) -> Result<Option<String>> {
    let snapshot = instance.repository.snapshot_at(root)?.seen_by(&call.viewer);
    Ok(snapshot.node(path)?.as_ref().and_then(|node| tag::of_document(instance, node)))
}
