//! Who may ask what of an author: each door with each kind of asker. The rows stand in `access_matrix.txt`.
//!
//! A row is a request and the status that each asker gets. `{me}` stands for the name of the asker, so that what one of
//! them makes is in nobody's way, `{before}` for a time before the policies were made. `{hidden}` stands for a node that
//! administrators alone may read; for all others the same request is made about a node that does not exist, and both
//! answers must be the same.
//!
//! No answer holds the hash of a password, and none but those of administrators a word of what is hidden.

use std::collections::BTreeSet;
use std::fmt;
use std::fmt::Write as _;
use std::io::{Cursor, Read};
use std::path::Path;
use std::time::{Duration, SystemTime};

use http::Method;
use tympan_content::{
    BlobId, CheckInOptions, CheckOutState, JcrDate, Property, RevisionDetails, Subtree, Value,
    ValueType,
};
use tympan_server::{LoginTokenScope, Logins, TokenOwner, TokenTerms};

use crate::support::{FormPart, PASSWORD, Reply, TestInstance, TestRequest, path, zipped};

/// Who asks: somebody without a login, a user without any right, a writer of assets, an author of pages, and an administrator
/// as the control.
const ASKERS: [&str; 5] = ["nobody", "powerless", "assets", "editor", "admin"];

/// Every text that is hidden holds this word.
const SECRET: &str = "classified";

/// A request, and what each of [`ASKERS`] gets.
#[derive(Clone)]
pub(crate) struct Row {
    /// Where it stands in the file.
    line: usize,
    door: String,
    pub(crate) method: String,
    pub(crate) address: String,
    pub(crate) body: SentBody,
    /// The statuses; nothing for one that does not ask.
    pub(crate) expected: Vec<Option<u16>>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, door, method, address, body, .. } = self;
        write!(f, "line {line} [{door}] {method} {address} {body:?}")
    }
}

/// What a request sends.
#[derive(Debug, Clone)]
pub(crate) enum SentBody {
    Nothing,
    /// An urlencoded form.
    Form(String),
    Json(String),
    /// A media type, and bytes.
    Bytes(String, String),
    /// The fields of a form, the field of a file, and its name.
    File(String, String, String),
    /// The fields of a form with a content package.
    PackageForm(String, String),
    /// A content package as it is.
    Package(String),
}

impl SentBody {
    fn parse(text: &str) -> Self {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut parts = rest.split('|').map(str::to_owned);
        let mut next = || parts.next().unwrap_or_default();
        match kind {
            "" => Self::Nothing,
            "form" => Self::Form(rest.to_owned()),
            "json" => Self::Json(rest.to_owned()),
            "bytes" => {
                let (media_type, bytes) = rest.split_once('|').unwrap();
                let bytes = bytes.replace("{all}", FILTER_OF_ALL).replace("{crlf}", "\r\n");
                Self::Bytes(media_type.to_owned(), bytes)
            }
            "file" => Self::File(next(), next(), next()),
            "package-form" => Self::PackageForm(next(), next()),
            "package" => Self::Package(next()),
            other => panic!("`{other}` is no kind of body"),
        }
    }
}

/// Reads the rows: `METHOD address  kind:body  => status of each asker`, with two spaces between the parts.
pub(crate) fn rows() -> Vec<Row> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/access_matrix.txt");
    let text = std::fs::read_to_string(file).unwrap();
    let mut door = String::new();
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut door);
        }
        let Some((asked, expected)) = line.split_once(" => ") else { continue };
        let (method, rest) = asked.split_once(' ').unwrap();
        let (address, body) = rest.trim().split_once("  ").unwrap_or((rest.trim(), ""));
        let expected = expected.split_whitespace().map(|status| status.parse().ok());
        let row = Row {
            line: number + 1,
            door: door.clone(),
            method: method.to_owned(),
            address: address.to_owned(),
            body: SentBody::parse(body.trim()),
            expected: expected.collect(),
        };
        assert_eq!(row.expected.len(), ASKERS.len(), "{row}");
        rows.push(row);
    }
    rows
}

/// Returns the entries of a package by its name.
fn package(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        "evil" => EVIL,
        "replaces-hidden" => REPLACES_HIDDEN,
        "climbs" => CLIMBS,
        "absolute" => ABSOLUTE,
        "entities" => ENTITIES,
        "external-entity" => EXTERNAL_ENTITY,
        other => panic!("there is no package `{other}`"),
    }
}

const PROPERTIES: (&str, &str) = (
    "META-INF/vault/properties.xml",
    "<?xml version=\"1.0\"?><properties><entry key=\"group\">evil</entry><entry key=\"name\">evil</entry>\
     <entry key=\"version\">1</entry></properties>",
);
/// A package that makes an administrator, a policy and a script.
const EVIL: &[(&str, &str)] = &[
    PROPERTIES,
    (
        "META-INF/vault/filter.xml",
        "<workspaceFilter version=\"1.0\"><filter root=\"/content/dam/evil\"/><filter root=\"/apps/evil\"/></workspaceFilter>",
    ),
    (
        "jcr_root/content/dam/evil/.content.xml",
        "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\"/>",
    ),
    (
        "jcr_root/apps/evil/.content.xml",
        "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\"/>",
    ),
];
/// A package of which the answer must not tell what it replaces.
const REPLACES_HIDDEN: &[(&str, &str)] = &[
    PROPERTIES,
    (
        "META-INF/vault/filter.xml",
        "<workspaceFilter version=\"1.0\"><filter root=\"/content/hidden\"/></workspaceFilter>",
    ),
    (
        "jcr_root/content/hidden/.content.xml",
        "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\"/>",
    ),
];
const DAM_FILTER: (&str, &str) = (
    "META-INF/vault/filter.xml",
    "<workspaceFilter version=\"1.0\"><filter root=\"/content/dam/evil\"/></workspaceFilter>",
);
/// A package with a file above its root.
const CLIMBS: &[(&str, &str)] =
    &[PROPERTIES, DAM_FILTER, ("jcr_root/content/dam/evil/../../../../etc/passwd", "x")];
/// A package with a file that begins at the root of a disk.
const ABSOLUTE: &[(&str, &str)] = &[PROPERTIES, DAM_FILTER, ("/etc/passwd", "x")];
/// A package whose entities multiply.
const ENTITIES: &[(&str, &str)] = &[
    PROPERTIES,
    DAM_FILTER,
    (
        "jcr_root/content/dam/evil/.content.xml",
        "<!DOCTYPE r [<!ENTITY a \"xxxxxxxxxx\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;&a;&a;\">]>\
         <jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\" t=\"&b;\"/>",
    ),
];
/// A package with an entity in a file of the machine.
const EXTERNAL_ENTITY: &[(&str, &str)] = &[
    PROPERTIES,
    DAM_FILTER,
    (
        "jcr_root/content/dam/evil/.content.xml",
        "<!DOCTYPE r [<!ENTITY a SYSTEM \"file:///etc/passwd\">]>\
         <jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\" t=\"&a;\"/>",
    ),
];
const FILTER_OF_ALL: &str = "<workspaceFilter version=\"1.0\"><filter root=\"/content\"/><filter root=\"/home\"/>\
     <filter root=\"/apps\"/></workspaceFilter>";

/// An author with content of all kinds, and the tokens of [`ASKERS`].
pub(crate) struct Scene {
    pub(crate) instance: TestInstance,
    pub(crate) tokens: Vec<Option<String>>,
    /// A time before which nothing was hidden.
    before_policies: String,
}

impl Scene {
    pub(crate) async fn set() -> Self {
        let instance = TestInstance::author().await;
        let powerless = instance.user("powerless", &[]).await;
        let assets = instance.user("assets", &["dam-users"]).await;
        let editor = instance.user("editor", &["content-authors"]).await;
        instance.user("spare", &[]).await;
        let admin = instance.token_of("admin").await;
        instance.edit(|session| {
            let page = |title: &str| {
                let content =
                    Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
                Subtree::new("", "cq:Page").with_child(content)
            };
            let folder = || Subtree::new("", "sling:Folder");
            let mut put = |at: &str, tree: Subtree| session.put_node(&path(at), tree).unwrap();
            for at in ["/apps", "/libs", "/conf", "/etc", "/etc/packages", "/var", "/oak:index"] {
                let kind = if at == "/oak:index" { "nt:unstructured" } else { "sling:Folder" };
                put(at, Subtree::new("", kind));
            }
            for at in
                ["/apps/site", "/conf/site", "/etc/replication", "/etc/replication/agents.author"]
            {
                put(at, folder());
            }
            for at in [
                "/var/workflow",
                "/var/workflow/models",
                "/conf/global",
                "/conf/global/settings",
                "/conf/global/settings/workflow",
                "/conf/global/settings/workflow/launcher",
            ] {
                put(at, folder());
            }
            put("/content/site", page("Site"));
            put("/content/site/page", page("Page"));
            put("/content/dam", folder());
            put("/content/dam/press", folder());
            for asker in ASKERS {
                for name in ["doomed", "doomed-2", "doomed-3", "doomed-4", "moving", "moving-2"] {
                    put(&format!("/content/site/{name}-{asker}"), page("Own"));
                }
                for name in ["versioned", "closed"] {
                    put(&format!("/content/site/{name}-{asker}"), versionable());
                }
                for name in ["own", "own-2", "own-3"] {
                    put(&format!("/content/dam/{name}-{asker}"), folder());
                }
            }
            put("/content/site/open", versionable());
            put("/content/site/closed-sibling", page("classified sibling"));
            put("/content/buried", page("Buried"));
            put("/content/hidden", page("classified title"));
            for number in 1..=9 {
                put(&format!("/content/hidden/child-{number}"), page("classified child"));
            }
            put("/content/hidden/classified-name", page("classified"));
            put("/var/workflow/models/review", workflow());
            put("/content/dam/model", workflow());
        });
        instance.edit(|session| {
            for at in ["/content/dam/press/a.txt", "/content/hidden/a.txt"] {
                let blob = session
                    .put_blob(&mut Cursor::new(at.replace("hidden", SECRET).into_bytes()))
                    .unwrap();
                let content = Subtree::new("jcr:content", "nt:resource")
                    .with_property("jcr:data", Value::Binary(blob));
                let content = content.with_property("jcr:mimeType", "text/plain");
                session
                    .put_node(&path(at), Subtree::new("", "nt:file").with_child(content))
                    .unwrap();
            }
            let bytes = format!("{SECRET} picture").into_bytes();
            let blob = session.put_blob(&mut Cursor::new(bytes)).unwrap();
            session.put_node(&path("/content/hidden/pic.png"), asset(blob)).unwrap();
            for at in ["/content/hidden", "/content/site/page", "/content/buried"] {
                let how = CheckInOptions {
                    comment: "",
                    created_at: SystemTime::now(),
                    check_out_state: CheckOutState::CheckedOut,
                };
                session.versions().check_in(&path(at), &how).unwrap();
            }
            for asker in ASKERS {
                let how = CheckInOptions {
                    comment: "",
                    created_at: SystemTime::now(),
                    check_out_state: CheckOutState::CheckedIn,
                };
                for name in ["versioned", "closed"] {
                    let at = path(&format!("/content/site/{name}-{asker}"));
                    session.versions().check_in(&at, &how).unwrap();
                }
            }
        });
        // Before the policies there are a branch, and states of the past.
        instance.repository.create_branch("early", revising("create a branch")).unwrap();
        let before_policies = SystemTime::now();
        while SystemTime::now() < before_policies + Duration::from_millis(2) {
            std::thread::yield_now();
        }
        instance.edit(|session| {
            for at in ["/content/hidden", "/content/site/closed-sibling", "/content/buried"] {
                session.put_node(&path(at).child("rep:policy").unwrap(), closed()).unwrap();
            }
            // Of these, one property is hidden.
            let names = Property::parse_list(ValueType::Name, ["rating"]).unwrap();
            let restrictions = Subtree::new("rep:restrictions", "rep:Restrictions")
                .with_property("rep:itemNames", names);
            let mut policy = closed();
            policy.children[0].put_child(restrictions);
            let person = |name: &str, rating: &str| {
                Subtree::new(name, "nt:unstructured").with_property("rating", rating)
            };
            let people = Subtree::new("", "sling:Folder")
                .with_child(person("ann", "classified 1"))
                .with_child(person("bob", "classified 2"))
                .with_child(policy);
            session.put_node(&path("/content/dam/people"), people).unwrap();
        });
        instance.edit(|session| session.remove_node(&path("/content/buried")).unwrap());
        // A package, a branch, and a message of the history that name what is hidden.
        let stored =
            instance.as_admin(Method::POST, "/api/v1/packages").body(zipped(HIDDEN_PACKAGE));
        let stored = stored.header("content-type", "application/zip").send().await;
        assert_eq!(stored.status, 201, "{stored:?}");
        instance.repository.create_branch("draft", revising("create a branch")).unwrap();
        instance.repository.create_branch("spare", revising("create a branch")).unwrap();
        let draft = instance.repository.open_branch("draft").unwrap();
        let mut session = draft.session("system").unwrap();
        for (at, text) in [("hidden", "classified"), ("site/page", "drafted")] {
            let at = path(&format!("/content/{at}/jcr:content"));
            session.set_property(&at, "onBranch", Property::text(text)).unwrap();
        }
        session.commit("change what is classified", SystemTime::now()).unwrap();
        instance.until_indexed();
        let tokens = vec![None, Some(powerless), Some(assets), Some(editor), Some(admin)];
        let before_policies = JcrDate::from_system_time(before_policies).to_string();
        let before_policies = before_policies.replace('+', "%2B");
        Self { instance, tokens, before_policies }
    }

    /// Fills in the placeholders of a row.
    pub(crate) fn filled(&self, text: &str, me: &str, hidden: &str) -> String {
        let text = text.replace("{me}", me).replace("{hidden}", hidden);
        text.replace("{before}", &self.before_policies)
    }

    /// Sends the request of a row as one of the askers, about the hidden node or another one.
    pub(crate) async fn send(&self, row: &Row, asker: usize, hidden: &str) -> Reply {
        self.request(row, asker, hidden).send().await
    }

    pub(crate) fn request(&self, row: &Row, asker: usize, hidden: &str) -> TestRequest<'_> {
        let fill = |text: &str| self.filled(text, ASKERS[asker], hidden);
        let method = Method::from_bytes(row.method.as_bytes()).unwrap();
        let request = self.instance.request(method, &fill(&row.address));
        let request = match &self.tokens[asker] {
            Some(token) => request.bearer(token),
            None => request,
        };
        with_body(request, &row.body, fill)
    }
}

pub(crate) fn with_body<'a>(
    request: TestRequest<'a>,
    body: &SentBody,
    fill: impl Fn(&str) -> String,
) -> TestRequest<'a> {
    let form = "application/x-www-form-urlencoded";
    match body {
        SentBody::Nothing => request,
        SentBody::Form(text) => request.header("content-type", form).body(fill(text)),
        SentBody::Json(text) => request.header("content-type", "application/json").body(fill(text)),
        SentBody::Bytes(media_type, bytes) => {
            request.header("content-type", media_type).body(bytes.clone())
        }
        SentBody::Package(name) => {
            request.header("content-type", "application/zip").body(zipped(package(name)))
        }
        SentBody::File(fields, field, name) => {
            let (name, field) = (fill(name), fill(field));
            let mut parts = parts_of(fields);
            parts.push((&field, Some((&name, "image/png")), b"<script>"));
            request.multipart(&parts)
        }
        SentBody::PackageForm(fields, name) => {
            let package = zipped(package(name));
            let mut parts = parts_of(fields);
            parts.push(("file", Some(("evil.zip", "application/zip")), &package));
            request.multipart(&parts)
        }
    }
}

/// Reads the fields of a form, which are written as in an address.
fn parts_of(fields: &str) -> Vec<FormPart<'_>> {
    let pairs = fields.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name, None, value.as_bytes())).collect()
}

/// A package whose name is hidden.
const HIDDEN_PACKAGE: &[(&str, &str)] = &[
    (
        "META-INF/vault/properties.xml",
        "<?xml version=\"1.0\"?><properties><entry key=\"group\">classified</entry>\
         <entry key=\"name\">pack</entry><entry key=\"version\">1</entry></properties>",
    ),
    (
        "META-INF/vault/filter.xml",
        "<workspaceFilter version=\"1.0\"><filter root=\"/content/dam/packed\"/></workspaceFilter>",
    ),
    (
        "jcr_root/content/dam/packed/.content.xml",
        "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" jcr:primaryType=\"nt:unstructured\"/>",
    ),
];

/// An asset whose original and one other rendition have these bytes.
fn asset(blob: BlobId) -> Subtree {
    let rendition = |name: &str| {
        let resource = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Value::Binary(blob))
            .with_property("jcr:mimeType", "image/png");
        Subtree::new(name, "nt:file").with_child(resource)
    };
    let renditions = Subtree::new("renditions", "nt:folder")
        .with_child(rendition("original"))
        .with_child(rendition("cq5dam.web.1280.1280.png"));
    let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(renditions);
    Subtree::new("", "dam:Asset").with_child(content)
}

/// A node that is checked in and out.
fn versionable() -> Subtree {
    let mixins = Property::parse_list(ValueType::Name, ["mix:versionable"]).unwrap();
    Subtree::new("", "nt:unstructured").with_property("jcr:mixinTypes", mixins)
}

/// A policy that lets nobody do anything.
fn closed() -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap();
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", "everyone")
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

/// A model with one step, for administrators.
fn workflow() -> Subtree {
    let step = |name: &str, kind: &str| {
        let data =
            Subtree::new("metaData", "nt:unstructured").with_property("PARTICIPANT", "admin");
        Subtree::new(name, "cq:WorkflowNode")
            .with_property("type", kind)
            .with_property("title", name)
            .with_child(data)
    };
    let nodes = Subtree::new("nodes", "nt:unstructured")
        .with_child(step("begin", "START"))
        .with_child(step("look", "PARTICIPANT"))
        .with_child(step("end", "END"));
    let transition = |name: &str, from: &str, to: &str| {
        Subtree::new(name, "cq:WorkflowTransition")
            .with_property("from", from)
            .with_property("to", to)
    };
    let transitions = Subtree::new("transitions", "nt:unstructured")
        .with_child(transition("a", "begin", "look"))
        .with_child(transition("b", "look", "end"));
    Subtree::new("", "cq:WorkflowModel")
        .with_property("title", "Review")
        .with_child(nodes)
        .with_child(transitions)
}

fn revising(message: &str) -> RevisionDetails<'_> {
    RevisionDetails { user: "system", message, time: SystemTime::now() }
}

/// Returns what an answer tells, unpacked if it is a package.
fn told(reply: &Reply) -> String {
    let mut text = format!("{:?}\n{}", reply.headers, reply.text());
    if let Ok(mut archive) = zip::ZipArchive::new(Cursor::new(reply.body.clone())) {
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).unwrap();
            write!(text, "\n{}\n", entry.name().unwrap()).unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    text
}

/// Returns what is the same in two answers to the same request: neither times nor tags of what was answered, nor how far
/// the full-text index has come in between.
fn compared(reply: &Reply, hidden: &str) -> (u16, String) {
    let text = reply.text().replace(hidden, "/content/…");
    (reply.status.as_u16(), text.replace("\"full_text\":\"behind\"", "\"full_text\":\"ready\""))
}

#[tokio::test]
async fn every_endpoint_answers_every_viewer_as_it_should() {
    let scene = Scene::set().await;
    let mut faults = Vec::new();
    for row in &rows() {
        for (asker, wanted) in row.expected.iter().enumerate() {
            let Some(wanted) = wanted else { continue };
            let reply = scene.send(row, asker, "/content/hidden").await;
            let who = ASKERS[asker];
            let mut fault = |what: String| faults.push(format!("{who}: {row}: {what}"));
            if reply.status.as_u16() != *wanted {
                let text: String = reply.text().chars().take(200).collect();
                fault(format!("{} instead of {wanted}: {text}", reply.status));
            }
            let text = told(&reply);
            if text.contains("$argon2") {
                fault("the hash of a password".to_owned());
            }
            let location = reply.header("location");
            let is_own = location.is_empty() || location.starts_with('/');
            if !is_own || location.starts_with("//") || location.contains('\\') {
                fault(format!("leads to `{location}`"));
            }
            if who == "admin" {
                continue;
            }
            let asked = row.to_string();
            if !asked.contains(SECRET)
                && let Some(at) = text.find(SECRET)
            {
                let around = String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(80)..]);
                let around: String = around.chars().take(200).collect();
                fault(format!("tells what is hidden: {around}"));
            }
            if asked.contains("{hidden}") {
                let other = scene.send(row, asker, "/content/absent").await;
                let hidden = compared(&reply, "/content/hidden");
                let absent = compared(&other, "/content/absent");
                if hidden != absent {
                    fault(format!(
                        "{hidden:?} for what is hidden, {absent:?} for what is not there"
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn a_head_a_range_and_a_condition_are_refused_as_the_whole_is() {
    let scene = Scene::set().await;
    let headers = [
        ("range", "bytes=0-3"),
        ("if-none-match", "*"),
        ("if-match", "*"),
        ("if-modified-since", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("if-range", "Fri, 01 Jan 2100 00:00:00 GMT"),
    ];
    let mut faults = Vec::new();
    let (mut rows, mut compared) = (rows(), 0);
    rows.retain(|row| row.method == "GET" && row.address.contains("hidden"));
    for row in &rows {
        let head = Row { method: "HEAD".to_owned(), ..row.clone() };
        for (asker, name) in ASKERS.iter().enumerate().take(4) {
            let whole = scene.send(row, asker, "/content/hidden").await;
            let reply = scene.send(&head, asker, "/content/hidden").await;
            if reply.status != whole.status || !reply.body.is_empty() {
                faults.push(format!("{name}: HEAD of {row}: {reply:?}"));
            }
            if whole.status.is_success() {
                continue;
            }
            for (header, value) in headers {
                let request = scene.request(row, asker, "/content/hidden");
                let reply = request.header(header, value).send().await;
                compared += 1;
                if (reply.status, reply.body) != (whole.status, whole.body.clone()) {
                    faults.push(format!("{name}: {row} with {header}: {}", reply.status));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(compared > 1_000, "{compared}");
    // The same file is sent in part where it is open.
    let editor = scene.tokens[3].as_ref().unwrap();
    for target in
        ["/content/dam/press/a.txt", "/api/v1/blob?path=/content/dam/press/a.txt/jcr:content"]
    {
        let request = scene.instance.request(Method::GET, target).bearer(editor);
        let reply = request.header("range", "bytes=0-3").send().await;
        assert_eq!((reply.status.as_u16(), &*reply.body), (206, &b"/con"[..]), "{target}");
    }
}

#[tokio::test]
async fn the_whole_store_is_for_administrators_whatever_ids_somebody_knows() {
    let scene = Scene::set().await;
    let snapshot = scene.instance.snapshot();
    let resource = path("/content/hidden/a.txt/jcr:content");
    let data = snapshot.node(&resource).unwrap().unwrap().property("jcr:data").unwrap();
    let Some(Value::Binary(blob)) = data.first() else { panic!("{data:?}") };
    let (digest, length) = blob
        .to_string()
        .split_once('#')
        .map(|(digest, length)| (digest.to_owned(), length.to_owned()))
        .unwrap();
    let root = scene.instance.repository.head_root().unwrap();
    let requests = [
        (Method::GET, format!("/bin/store/blob/{digest}/{length}"), Vec::new()),
        (Method::HEAD, format!("/bin/store/blob/{digest}/{length}"), Vec::new()),
        (Method::POST, "/bin/store/chunks/read".to_owned(), root.as_bytes().to_vec()),
        (Method::POST, "/bin/store/chunks/lacking".to_owned(), root.as_bytes().to_vec()),
    ];
    for (method, target, body) in requests {
        for (token, expected) in scene.tokens.iter().zip([401, 403, 403, 403, 200]) {
            let request = scene.instance.request(method.clone(), &target).body(body.clone());
            let request = match token {
                Some(token) => request.bearer(token),
                None => request,
            };
            let reply = request.send().await;
            assert_eq!(reply.status.as_u16(), expected, "{method} {target} {reply:?}");
            assert!(expected == 200 || !reply.text().contains(SECRET), "{reply:?}");
        }
    }
}

/// What follows the state as a whole, which a change of what is hidden changes, too.
const OF_THE_WHOLE: &[&str] =
    &["/api/v1/changes", "/changes", "/api/v1/branches", "/api/v1/versions/deleted", "/bin/store"];

#[tokio::test]
async fn what_is_hidden_leaves_no_trace_in_what_is_seen() {
    let scene = Scene::set().await;
    let mut overviews = rows();
    overviews.retain(|row| {
        let is_of_the_whole = OF_THE_WHOLE.iter().any(|one| row.address.starts_with(one));
        row.method == "GET" && !is_of_the_whole && !row.address.contains("hidden")
    });
    assert!(overviews.len() > 60);
    let answers = async || {
        let mut answers = Vec::new();
        for row in &overviews {
            for (asker, name) in ASKERS.iter().enumerate().skip(1).take(3) {
                let reply = scene.send(row, asker, "").await;
                let status = reply.status.as_u16();
                answers.push((*name, row.address.clone(), status, reply.text()));
            }
        }
        answers
    };
    let before = answers().await;
    scene.instance.edit(|session| {
        session.remove_node(&path("/content/hidden")).unwrap();
        session.remove_node(&path("/etc/packages/classified")).unwrap();
        session.accounts().remove_account("spare").unwrap();
        for (name, rating) in [("ann", "classified 2"), ("bob", "classified 1")] {
            let at = path(&format!("/content/dam/people/{name}"));
            session.set_property(&at, "rating", Property::text(rating)).unwrap();
        }
    });
    scene.instance.until_indexed();
    for (before, after) in before.into_iter().zip(answers().await) {
        assert_eq!(before, after);
    }
}

/// What is sent by other methods than those of reading, and changes nothing.
pub(crate) const READINGS: &[&str] = &[
    "/api/v1/query",
    "/bin/querybuilder.json",
    "/api/v1/packages/diff",
    "/api/v1/packages/build",
    "/login",
    "/logout",
];

#[tokio::test]
async fn a_token_for_reading_reads_as_its_user_and_writes_nothing() {
    let scene = Scene::set().await;
    let (editor, admin) = (3, 4);
    let mut faults = Vec::new();
    let before = scene.instance.repository.head_root().unwrap();
    for (asker, user) in [(editor, "editor"), (admin, "admin")] {
        let owner = TokenOwner { user, account: None };
        let terms = TokenTerms { lifetime: None, scope: LoginTokenScope::Read };
        let (pool, now) = (scene.instance.state.pool(), SystemTime::now());
        let reading = Logins::issue_token(pool, owner, now, terms).await.unwrap();
        for row in &rows() {
            let fill = |text: &str| scene.filled(text, user, "/content/hidden");
            let method = Method::from_bytes(row.method.as_bytes()).unwrap();
            let address = fill(&row.address);
            let request = scene.instance.request(method.clone(), &address).bearer(&reading);
            let reply = with_body(request, &row.body, fill).send().await;
            let place = address.split('?').next().unwrap_or_default();
            if method.is_safe() && !address.starts_with("/login/link") {
                let own = scene.send(row, asker, "/content/hidden").await;
                if reply.status != own.status {
                    faults
                        .push(format!("{user}: {row}: {} instead of {}", reply.status, own.status));
                }
            } else if reply.status.is_success() && !READINGS.contains(&place) {
                faults.push(format!("{user}: {row}: {}", reply.status));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(scene.instance.repository.head_root().unwrap(), before, "something was written");
}

/// What is closed inside a page that is open: a child with a policy of its own, and one property.
fn put_partly_closed_page(scene: &Scene) {
    scene.instance.edit(|session| {
        let names = Property::parse_list(ValueType::Name, ["rating"]).unwrap();
        let restrictions = Subtree::new("rep:restrictions", "rep:Restrictions")
            .with_property("rep:itemNames", names);
        let mut policy = closed();
        policy.children[0].put_child(restrictions);
        let private = Subtree::new("private", "nt:unstructured")
            .with_property("text", "classified text")
            .with_child(Subtree::new("classified-part", "nt:unstructured"))
            .with_child(closed());
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("jcr:title", "Open")
            .with_property("rating", "classified rating")
            .with_child(private)
            .with_child(policy);
        let page = Subtree::new("", "cq:Page").with_child(content);
        session.put_node(&path("/content/site/partly"), page).unwrap();
        let how = CheckInOptions {
            comment: "",
            created_at: SystemTime::now(),
            check_out_state: CheckOutState::CheckedOut,
        };
        session.versions().check_in(&path("/content/site/partly"), &how).unwrap();
    });
    scene.instance.until_indexed();
}

#[tokio::test]
async fn closed_parts_of_an_open_page_are_shown_by_no_endpoint() {
    let scene = Scene::set().await;
    put_partly_closed_page(&scene);
    let page = "/content/site/partly";
    let mut faults = Vec::new();
    let mut answered = 0;
    for row in &rows() {
        let place = row.address.split('?').next().unwrap_or_default();
        let is_reading = matches!(&*row.method, "GET" | "HEAD") || READINGS.contains(&place);
        if !is_reading || row.address.contains(SECRET) {
            continue;
        }
        for (asker, name) in ASKERS.iter().enumerate().skip(1).take(3) {
            let reply = scene.send(row, asker, page).await;
            answered +=
                usize::from(row.to_string().contains("{hidden}") && reply.status.is_success());
            let text = told(&reply);
            // A query may be quoted by its answer.
            if !row.to_string().contains(SECRET)
                && let Some(at) = text.find(SECRET)
            {
                let around = String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(80)..]);
                let around: String = around.chars().take(200).collect();
                faults.push(format!("{name}: {row}: {around}"));
            }
        }
    }
    assert!(answered > 60, "only {answered} requests about the page succeed");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    // A copy, an export and a restored version by an author of pages bring nothing of it elsewhere.
    let editor = scene.tokens[3].as_ref().unwrap();
    let copy = scene.instance.request(Method::POST, page).bearer(editor);
    let copy = copy.form(&[(":operation", "copy"), (":dest", "/content/site/copied")]).send().await;
    assert!(copy.status.is_success(), "{copy:?}");
    let snapshot = scene.instance.snapshot();
    let copied = snapshot.node(&path("/content/site/copied")).unwrap().unwrap();
    let copied = format!("{:?}", copied.read_subtree().unwrap());
    assert!(copied.contains("Open") && !copied.contains(SECRET), "{copied}");
}

#[tokio::test]
async fn a_session_cookie_reads_as_a_token_and_writes_only_with_its_own_secret() {
    let scene = Scene::set().await;
    let mut faults = Vec::new();
    for (asker, name) in ASKERS.iter().enumerate().skip(1).take(3) {
        let login = scene.instance.request(Method::POST, "/login");
        let login = login.form(&[("user", name), ("password", PASSWORD)]).send().await;
        assert_eq!(login.status, 200, "{login:?}");
        let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
        let before = scene.instance.repository.head_root().unwrap();
        for row in &rows() {
            let fill = |text: &str| scene.filled(text, name, "/content/hidden");
            let method = Method::from_bytes(row.method.as_bytes()).unwrap();
            let address = fill(&row.address);
            let place = address.split('?').next().unwrap_or_default().to_owned();
            if place.starts_with("/login") || place == "/logout" {
                continue;
            }
            let request =
                scene.instance.request(method.clone(), &address).header("cookie", &cookie);
            // A page of another site made the browser send it.
            let request = if method.is_safe() {
                request
            } else {
                request.header("origin", "https://attacker.example")
            };
            let reply = with_body(request, &row.body, fill).send().await;
            if method.is_safe() {
                let own = scene.send(row, asker, "/content/hidden").await;
                if reply.status != own.status && !place.starts_with("/bin/store") {
                    faults
                        .push(format!("{name}: {row}: {} instead of {}", reply.status, own.status));
                }
            } else if reply.status.is_success() && !READINGS.contains(&&*place) {
                faults.push(format!("{name}: {row}: {}", reply.status));
            }
        }
        assert_eq!(scene.instance.repository.head_root().unwrap(), before, "something was written");
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Returns whether an address is one of a route, whose parameters stand in braces.
fn is_of(address: &str, route: &str) -> bool {
    let address = address.split('?').next().unwrap_or_default();
    let Some((before, rest)) = route.split_once('{') else { return address == route };
    let after = rest.split_once('}').map_or("", |(_, after)| after);
    let Some(left) = address.strip_prefix(before) else { return false };
    match rest.starts_with('*') {
        true => !left.is_empty(),
        false => left.find('/').map_or(after.is_empty(), |at| is_of(&left[at..], after)),
    }
}

#[tokio::test]
async fn every_endpoint_of_the_api_is_in_the_matrix() {
    let instance = TestInstance::author().await;
    let described = instance.get("/api/v1/openapi.json").await.json();
    let (rows, mut missing) = (rows(), BTreeSet::new());
    for (route, operations) in described["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let is_there = rows
                .iter()
                .any(|row| row.method.eq_ignore_ascii_case(method) && is_of(&row.address, route));
            if !is_there {
                missing.insert(format!("{method} {route}"));
            }
        }
    }
    assert!(missing.is_empty(), "the matrix lacks {missing:?}");
}

/// Finds the routes that the sources name.
fn routes_of_sources(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            routes_of_sources(&entry.path(), found);
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap();
        for piece in text.split(".route(").skip(1) {
            let literal =
                piece.trim_start().strip_prefix('"').and_then(|piece| piece.split('"').next());
            found.extend(literal.map(str::to_owned));
        }
    }
}

#[test]
fn every_other_route_is_in_the_matrix() {
    let (rows, mut routes) = (rows(), BTreeSet::new());
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    routes_of_sources(&sources, &mut routes);
    // What these tell is for `health` and its own tests.
    let elsewhere = ["/health", "/health/ready"];
    let is_missing = |route: &&String| {
        !elsewhere.contains(&route.as_str()) && !rows.iter().any(|row| is_of(&row.address, route))
    };
    let missing: Vec<_> = routes.iter().filter(is_missing).collect();
    assert!(routes.len() > 40 && missing.is_empty(), "the matrix lacks {missing:?}");
}

#[test]
fn the_matrix_is_large_enough() {
    let rows = rows();
    let requests = rows.iter().flat_map(|row| row.expected.iter().flatten()).count();
    assert!(requests >= 2_000, "{requests} requests");
    let doors: BTreeSet<_> = rows.iter().map(|row| &row.door).collect();
    assert_eq!(doors.len(), 19);
}
