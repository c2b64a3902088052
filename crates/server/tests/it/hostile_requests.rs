//! Requests that are made to break things, at every endpoint: values, bodies, headers and credentials that no client
//! sends, and content whose names and values are markup.

use std::collections::BTreeSet;

use http::Method;
use serde_json::Value as Json;
use tympan_content::{CheckInOptions, CheckOutState, Property, Subtree, Value, ValueType};
use tympan_replicate::{HomePair, HomePairs, PairKeyPurpose};
use tympan_server::{InstanceRole, LoginTokenScope, Logins, TokenOwner, TokenTerms};

use crate::access_matrix::{READINGS, Row, Scene, rows, with_body};
use crate::support::{PASSWORD, Reply, TestInstance, path};

/// Values of parameters, as they are written in an address.
const HOSTILE_VALUES: &[&str] = &[
    "",
    "%00",
    "%ff",
    "%",
    "-1",
    "0",
    "18446744073709551616",
    "9223372036854775808",
    "1e309",
    "NaN",
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2f..",
    "%2f%2f",
    "%2f%2e%2e%2f",
    "%2fcontent%2f.%2fsite",
    "%2fcontent%2fsite%2fpage%5b2%5d",
    "%0d%0aX-Injected:%20yes",
    "'%20OR%20'1'='1",
    "%22%3e%3cscript%3ealert(1)%3c/script%3e",
    "%f0%9f%92%a9",
    "%e2%80%ae",
    "null",
    "%5b%5d",
    "**%2f**%2f**%2f**%2f**%2f**%2fx",
    "((((((((((((((((((((a*)*)*)*",
    "%7b%7b7*7%7d%7d",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999%2b14:00",
    "-292275055-05-16T16:47:04Z",
];

/// The beginning of JSON and other bodies that are not what an endpoint takes.
fn hostile_bodies() -> Vec<Vec<u8>> {
    let mut bodies: Vec<Vec<u8>> = [
        "",
        "null",
        "[]",
        "\"x\"",
        "1e999",
        "{",
        "{\"a\":}",
        "{\"path\":\"\\ud800\"}",
        "{\"path\":\"/content/../x\"}",
        "{\"path\":\"\\u0000\"}",
        "{\"name\":\"\",\"name\":\"x\"}",
        "{\"__proto__\":{\"admin\":true}}",
        "\u{feff}{}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    bodies.push("[".repeat(100_000).into_bytes());
    bodies.push("{\"children\":{\"a\":".repeat(20_000).into_bytes());
    bodies.push(vec![0xff, 0xfe, b'{', 0, b'}', 0]);
    bodies.push([b"{\"path\":\"".as_slice(), &[b'a'; 100_000], b"\"}"].concat());
    bodies
}

/// Returns a value that a required parameter takes.
fn plain_value(name: &str) -> &'static str {
    match name {
        "path" | "target" => "/content/site/page",
        "payload" => "/content/site/page",
        "statement" => "SELECT%20*%20FROM%20%5Bcq:Page%5D",
        "command" => "test",
        "enabled" => "false",
        "id" | "item" => "999999",
        "days" => "1",
        "version" | "from" => "1.0",
        _ => "unheard-of",
    }
}

/// An endpoint of the description.
struct DescribedEndpoint {
    method: Method,
    address: String,
    /// The names of the parameters, and whether they are required.
    parameters: Vec<(String, bool)>,
    /// The media type of the body; empty without a body.
    media_type: String,
}

fn described_endpoints(description: &Json) -> Vec<DescribedEndpoint> {
    let mut endpoints = Vec::new();
    for (address, operations) in description["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes()).unwrap();
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let parameters = parameters.filter(|parameter| parameter["in"] == "query");
            let parameters = parameters.map(|parameter| {
                let name = parameter["name"].as_str().unwrap().to_owned();
                (name, parameter["required"] == true)
            });
            let content = operation["requestBody"]["content"].as_object();
            let media_type = content.and_then(|content| content.keys().next().cloned());
            endpoints.push(DescribedEndpoint {
                method,
                address: address.clone(),
                parameters: parameters.collect(),
                media_type: media_type.unwrap_or_default(),
            });
        }
    }
    endpoints
}

/// Returns what is wrong with an answer to a hostile request, if anything is.
fn fault_of(reply: &Reply) -> Option<String> {
    if reply.status.as_u16() == 500 {
        return Some(format!("500: {}", reply.text()));
    }
    if reply.headers.contains_key("x-injected") {
        return Some("a header of the request".to_owned());
    }
    let is_page = reply.header("content-type").starts_with("text/html");
    (is_page && reply.text().contains("<script>alert(1)")).then(|| "a script".to_owned())
}

#[tokio::test]
async fn no_value_of_a_parameter_breaks_an_endpoint() {
    let scene = Scene::set().await;
    let description = scene.instance.get("/api/v1/openapi.json").await.json();
    let (mut faults, mut asked) = (Vec::new(), 0);
    for endpoint in described_endpoints(&description) {
        let DescribedEndpoint { method, address, parameters, media_type } = endpoint;
        for (tested, _) in &parameters {
            for value in HOSTILE_VALUES {
                let pairs =
                    parameters.iter().filter(|(name, is_required)| *is_required || name == tested);
                let query: Vec<String> = pairs
                    .map(|(name, _)| match name == tested {
                        true => format!("{name}={value}"),
                        false => format!("{name}={}", plain_value(name)),
                    })
                    .collect();
                let target = format!("{address}?{}", query.join("&"));
                let request = scene.instance.as_admin(method.clone(), &target);
                let request = match media_type.as_str() {
                    "" => request,
                    media_type => request.header("content-type", media_type).body("{}"),
                };
                let reply = request.send().await;
                asked += 1;
                if let Some(fault) = fault_of(&reply) {
                    faults.push(format!("{method} {target}: {fault}"));
                }
            }
        }
    }
    assert!(asked > 3_000, "{asked}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn no_body_breaks_an_endpoint() {
    let scene = Scene::set().await;
    let description = scene.instance.get("/api/v1/openapi.json").await.json();
    let bodies = hostile_bodies();
    let (mut faults, mut asked) = (Vec::new(), 0);
    for endpoint in described_endpoints(&description) {
        let DescribedEndpoint { method, address, parameters, media_type } = endpoint;
        if media_type.is_empty() {
            continue;
        }
        let query: Vec<String> = parameters
            .iter()
            .filter(|(_, is_required)| *is_required)
            .map(|(name, _)| format!("{name}={}", plain_value(name)))
            .collect();
        let target = format!("{address}?{}", query.join("&"));
        for body in &bodies {
            let request = scene.instance.as_admin(method.clone(), &target);
            let request = request.header("content-type", &media_type).body(body.clone());
            let reply = request.send().await;
            asked += 1;
            // A reader of a node may send back the path that came with it.
            let is_ignored = address == "/api/v1/nodes" && body.starts_with(b"{\"path\":");
            let takes_any = media_type != "application/json" || is_ignored;
            let fault = fault_of(&reply).or_else(|| {
                let is_refused = reply.status.is_client_error();
                (!takes_any && !is_refused).then(|| format!("{} for a bad body", reply.status))
            });
            if let Some(fault) = fault {
                let begin: String = String::from_utf8_lossy(body).chars().take(40).collect();
                faults.push(format!("{method} {target} {begin}: {fault}"));
            }
        }
    }
    assert!(asked > 400, "{asked}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Returns what the headers of an answer of an author lack.
fn header_faults(reply: &Reply) -> Vec<&'static str> {
    let mut faults = Vec::new();
    if reply.headers.keys().any(|name| name.as_str().starts_with("access-control-")) {
        faults.push("is open to other sites");
    }
    let control = reply.header("cache-control");
    if !control.contains("no-store")
        && !control.contains("private")
        && !control.contains("immutable")
    {
        faults.push("may be cached");
    }
    if !reply.body.is_empty() && reply.header("x-content-type-options") != "nosniff" {
        faults.push("may be read as another type");
    }
    if !reply.body.is_empty() && reply.header("content-type").is_empty() {
        faults.push("has no type");
    }
    let may_run = ["text/html", "text/xml", "application/xml", "application/xhtml", "image/svg"];
    let runs = may_run.iter().any(|kind| reply.header("content-type").starts_with(kind));
    let policy = reply.header("content-security-policy");
    if runs && !policy.contains("frame-ancestors") && !policy.contains("sandbox") {
        faults.push("may be framed by other sites");
    }
    faults
}

#[tokio::test]
async fn every_answer_of_an_author_says_how_it_may_be_used() {
    let scene = Scene::set().await;
    let mut faults = BTreeSet::new();
    for row in &rows() {
        for (asker, expected) in row.expected.iter().enumerate() {
            if expected.is_none() {
                continue;
            }
            let reply = scene.send(row, asker, "/content/hidden").await;
            for fault in header_faults(&reply) {
                let place = row.address.split('?').next().unwrap_or_default();
                let kind = reply.header("content-type");
                faults.insert(format!("{} {} {place}: {fault} ({kind})", reply.status, row.method));
            }
        }
    }
    let faults: Vec<String> = faults.into_iter().collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// A name and a value that would run if a page showed them as they are.
const MARKUP: &str = "a\"'><img src=x onerror=alert(1)>";
/// The same as part of an address.
const MARKUP_IN_ADDRESS: &str = "a%22%27%3E%3Cimg%20src=x%20onerror=alert(1)%3E";

/// Puts content whose names and values are markup.
fn put_markup(scene: &Scene) {
    scene.instance.edit(|session| {
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("jcr:title", MARKUP)
            .with_property("jcr:description", MARKUP)
            .with_property("sling:resourceType", MARKUP)
            .with_property("cq:template", MARKUP)
            .with_property("cq:lastModifiedBy", MARKUP)
            .with_property("cq:tags", Property::parse_list(ValueType::String, [MARKUP]).unwrap())
            .with_property("text", MARKUP)
            .with_child(Subtree::new(MARKUP, "nt:unstructured").with_property("text", MARKUP));
        let page = Subtree::new("", "cq:Page").with_child(content);
        session.put_node(&path("/content/site").child(MARKUP).unwrap(), page.clone()).unwrap();
        session.put_node(&path("/content").child(MARKUP).unwrap(), page).unwrap();
        let how = CheckInOptions {
            comment: MARKUP,
            created_at: std::time::SystemTime::now(),
            check_out_state: CheckOutState::CheckedOut,
        };
        let page = path("/content/site").child(MARKUP).unwrap();
        session.versions().check_in(&page, &how).unwrap();
        let blob = session.put_blob(&mut std::io::Cursor::new(MARKUP.as_bytes())).unwrap();
        let resource = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Value::Binary(blob))
            .with_property("jcr:mimeType", MARKUP);
        let file = Subtree::new("", "nt:file").with_child(resource);
        session.put_node(&page.child("a.txt").unwrap(), file).unwrap();
    });
    scene.instance.until_indexed();
}

#[tokio::test]
async fn nothing_stored_runs_in_an_answer() {
    let scene = Scene::set().await;
    put_markup(&scene);
    let page = format!("/content/site/{MARKUP_IN_ADDRESS}");
    let (mut faults, mut shown) = (Vec::new(), 0);
    for row in &rows() {
        let place = row.address.split('?').next().unwrap_or_default();
        let is_reading = matches!(&*row.method, "GET") || READINGS.contains(&place);
        if !is_reading {
            continue;
        }
        // The text of a body is not an address.
        let page = if row.method == "GET" { page.clone() } else { page.replace("%22", "\\\"") };
        for accept in ["text/html", "*/*"] {
            let request = scene.request(row, 4, &page).header("accept", accept);
            let reply = request.send().await;
            let text = reply.text();
            shown += usize::from(text.contains("onerror"));
            let kind = reply.header("content-type");
            let runs = ["html", "xml", "svg"].iter().any(|name| kind.contains(name));
            let is_isolated = reply.header("content-security-policy").contains("sandbox");
            if runs && !is_isolated && text.contains("<img src=x onerror") {
                faults.push(format!("{row} ({kind})"));
            }
            let headers = format!("{:?}", reply.headers);
            if headers.contains("<img") {
                faults.push(format!("{row}: {headers}"));
            }
        }
    }
    assert!(shown > 60, "only {shown} answers show it");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// What everybody may ask, whatever the login.
pub(crate) fn is_for_everybody(row: &Row) -> bool {
    let place = row.address.split('?').next().unwrap_or_default();
    row.expected[0] != Some(401) || place.starts_with("/login") || place == "/logout"
}

#[tokio::test]
async fn a_token_for_monitoring_opens_no_other_endpoint() {
    let scene = Scene::set().await;
    let owner = TokenOwner { user: "admin", account: None };
    let terms = TokenTerms { lifetime: None, scope: LoginTokenScope::Monitor };
    let (pool, now) = (scene.instance.state.pool(), std::time::SystemTime::now());
    let token = Logins::issue_token(pool, owner, now, terms).await.unwrap();
    let before = scene.instance.repository.head_root().unwrap();
    let (mut faults, mut asked) = (Vec::new(), 0);
    for row in rows().iter().filter(|row| !is_for_everybody(row)) {
        let fill = |text: &str| scene.filled(text, "admin", "/content/hidden");
        let method = Method::from_bytes(row.method.as_bytes()).unwrap();
        let request = scene.instance.request(method, &fill(&row.address)).bearer(&token);
        let reply = with_body(request, &row.body, fill).send().await;
        asked += 1;
        let place = row.address.split('?').next().unwrap_or_default();
        let is_open = matches!(place, "/metrics" | "/manager/status");
        if is_open != reply.status.is_success() {
            faults.push(format!("{row}: {}", reply.status));
        }
    }
    assert!(asked > 500, "{asked}");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(scene.instance.repository.head_root().unwrap(), before, "something was written");
}

#[tokio::test]
async fn a_session_that_ended_opens_nothing() {
    let scene = Scene::set().await;
    let log_in = async |name: &str| {
        let login = scene.instance.request(Method::POST, "/login");
        let login = login.form(&[("user", name), ("password", PASSWORD)]).send().await;
        assert_eq!(login.status, 200, "{login:?}");
        let csrf = login.json()["csrf"].as_str().unwrap().to_owned();
        (login.header("set-cookie").split(';').next().unwrap().to_owned(), csrf)
    };
    let (left, left_csrf) = log_in("admin").await;
    let (closed, closed_csrf) = log_in("editor").await;
    let logout = scene.instance.request(Method::POST, "/logout").header("cookie", &left);
    assert_eq!(logout.send().await.status, 200);
    let disabled = scene.instance.as_admin(Method::PATCH, "/api/v1/user?name=editor");
    let disabled = disabled.json(&serde_json::json!({ "disabled": "left" })).send().await;
    assert!(disabled.status.is_success(), "{disabled:?}");
    let before = scene.instance.repository.head_root().unwrap();
    let mut faults = Vec::new();
    for row in rows().iter().filter(|row| !is_for_everybody(row)) {
        for (cookie, csrf) in [(&left, &left_csrf), (&closed, &closed_csrf)] {
            let fill = |text: &str| scene.filled(text, "admin", "/content/hidden");
            let method = Method::from_bytes(row.method.as_bytes()).unwrap();
            let request = scene.instance.request(method, &fill(&row.address));
            let request = request.header("cookie", cookie).header("x-csrf-token", csrf);
            let reply = with_body(request, &row.body, fill).send().await;
            if reply.status != 401 {
                faults.push(format!("{row}: {}", reply.status));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(scene.instance.repository.head_root().unwrap(), before, "something was written");
}

/// The endpoints that keys of other instances open: method, address, and whether a key to receive, to clone, to send,
/// to flush, and the key of the whole farm open it where there is a pair for each purpose.
const KEY_ROWS: &[(&str, &str, [bool; 5])] = &[
    ("POST", "/bin/receive", [true, false, false, false, false]),
    ("POST", "/bin/receive/chunks", [true, false, false, false, false]),
    ("POST", "/bin/receive/blobs", [true, false, false, false, false]),
    ("PUT", "/bin/receive/blob/00/0", [true, false, false, false, false]),
    ("GET", "/bin/store/refs", [false, true, false, false, false]),
    ("GET", "/bin/store/history?ref=main&limit=1", [false, true, false, false, false]),
    ("POST", "/bin/store/chunks/lacking", [false, true, false, false, false]),
    ("POST", "/bin/store/chunks/read", [false, true, false, false, false]),
    ("POST", "/bin/store/blobs/read", [false, true, false, false, false]),
    ("GET", "/bin/store/blob/00/0", [false, true, false, false, false]),
    ("GET", "/bin/store/lease?holder=x", [false, true, false, false, false]),
    ("PUT", "/bin/store/lease?holder=x", [false, true, false, false, false]),
    ("DELETE", "/bin/store/lease?holder=x", [false, true, false, false, false]),
    ("GET", "/bin/store/notes?prefix=x", [false, true, false, false, false]),
    ("GET", "/bin/store/note/x", [false, true, false, false, false]),
    ("PUT", "/bin/store/note/x", [false, true, false, false, false]),
    ("DELETE", "/bin/store/note/x", [false, true, false, false, false]),
];

#[tokio::test]
async fn a_key_opens_what_its_pair_is_for_and_nothing_else() {
    let purposes = [
        PairKeyPurpose::Receive,
        PairKeyPurpose::Clone,
        PairKeyPurpose::Send,
        PairKeyPurpose::Flush,
    ];
    for role in [InstanceRole::Author, InstanceRole::Publish] {
        let folder = tempfile::tempdir().unwrap();
        let pairs = HomePairs::in_dir(folder.path().to_owned());
        let mut keys = Vec::new();
        for purpose in purposes {
            let key = format!("a key of {} that is long", purpose.name());
            let name = purpose.name().to_owned();
            pairs.store(&HomePair { name, purposes: [purpose].into(), key: key.clone() }).unwrap();
            keys.push(key);
        }
        keys.push("a key of replication".to_owned());
        let instance = TestInstance::start(role, |options| options.home_pairs = pairs).await;
        instance.instance.set_received_paths(vec![path("/content")]);
        let mut faults = Vec::new();
        for (method, address, expected) in KEY_ROWS {
            for (key, is_open) in keys.iter().zip(expected) {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                let request = instance.request(method.clone(), address);
                let reply = request.header("x-tympan-replication-key", key).send().await;
                // What it opens may still lack a proper body.
                if (reply.status != 403) != *is_open || reply.status == 401 {
                    faults.push(format!("{role:?} {method} {address} {key}: {}", reply.status));
                }
            }
        }
        // A key is no login.
        let others = rows();
        let others = others.iter().filter(|row| row.expected[0] == Some(401));
        for row in others
            .filter(|row| role == InstanceRole::Author && !row.address.starts_with("/bin/store"))
        {
            for key in &keys {
                let method = Method::from_bytes(row.method.as_bytes()).unwrap();
                let target = row.address.replace("{me}", "x").replace("{before}", "x");
                let request = instance.request(method, &target.replace("{hidden}", "/content"));
                let request = request.header("x-tympan-replication-key", key);
                let reply = with_body(request, &row.body, str::to_owned).send().await;
                if reply.status != 401 {
                    faults.push(format!("{row} {key}: {}", reply.status));
                }
            }
        }
        assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    }
}

#[tokio::test]
async fn a_damaged_pair_tells_strangers_nothing_of_the_machine() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("broken.json"), "rubbish").unwrap();
    let pairs = HomePairs::in_dir(folder.path().to_owned());
    let instance =
        TestInstance::start(InstanceRole::Publish, |options| options.home_pairs = pairs).await;
    for (method, address) in [(Method::POST, "/bin/receive"), (Method::GET, "/bin/store/refs")] {
        let request = instance.request(method, address);
        let reply = request.header("x-tympan-replication-key", "guessed").send().await;
        assert_eq!(reply.status, 500, "{reply:?}");
        let told = reply.text();
        assert!(
            !told.contains("broken") && !told.contains(folder.path().to_str().unwrap()),
            "{told}"
        );
    }
}

/// Headers by which caches, proxies and frameworks are told other things about a request than its line does.
const UNKEYED_HEADERS: &[(&str, &str)] = &[
    ("x-forwarded-host", "evil.example"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-port", "1"),
    ("x-forwarded-prefix", "/evil"),
    ("x-forwarded-server", "evil.example"),
    ("forwarded", "host=evil.example;proto=https"),
    ("x-host", "evil.example"),
    ("x-original-url", "/content/hidden.json"),
    ("x-rewrite-url", "/content/hidden.json"),
    ("x-http-method-override", "POST"),
    ("x-http-method", "DELETE"),
    ("x-method-override", "PUT"),
    ("x-real-ip", "127.0.0.1"),
    ("x-client-ip", "127.0.0.1"),
    ("accept", "application/json"),
    ("accept-language", "de-x-evil"),
    ("accept-charset", "utf-7"),
    ("accept-encoding", "gzip, br, zstd"),
    ("user-agent", "<script>alert(1)</script>"),
    ("referer", "https://evil.example/"),
    ("origin", "https://evil.example"),
    ("cookie", "lang=evil; tympan-branch=draft"),
    ("tympan-branch", "draft"),
    ("te", "trailers"),
    ("pragma", "no-cache"),
    ("cache-control", "no-cache"),
];

#[tokio::test]
async fn headers_that_no_cache_knows_change_no_page_of_a_publisher() {
    let instance = TestInstance::publish().await;
    instance.edit(|session| {
        let content =
            Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", "Open");
        let page = Subtree::new("", "cq:Page").with_child(content);
        session.put_node(&path("/content/site"), page).unwrap();
    });
    let mut faults = Vec::new();
    for target in [
        "/content/site.html",
        "/content/site.json",
        "/content/site",
        "/content/site.xml",
        "/content.1.json",
        "/content/absent.html",
        "/content/site;x=y.json",
        "/handle404?exporturi=/x",
        "/login/link?token=x",
    ] {
        let plain = instance.visit(target).await;
        for (name, value) in UNKEYED_HEADERS {
            let reply = instance.request(Method::GET, target).header(name, value).send().await;
            if (reply.status, &reply.headers, &reply.body)
                != (plain.status, &plain.headers, &plain.body)
            {
                faults.push(format!("{target} with {name}: {reply:?} instead of {plain:?}"));
            }
        }
        let other = instance.request(Method::GET, target);
        let reply = other.header("x-tympan-refused-readings", "0").send().await;
        assert!(reply.status == plain.status || reply.status == 404, "{target}: {reply:?}");
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn a_listing_tells_by_no_position_whether_something_hidden_is_there() {
    let scene = Scene::set().await;
    let mut faults = Vec::new();
    for list in ["/api/v1/children", "/api/v1/pages"] {
        for sort in ["order", "name", "title", "-title", "modified", "-modified"] {
            for value in ["", "63", "ff"] {
                let ask = async |name: &str| {
                    let after = format!("{}.{value}", hex::encode(name));
                    let target = format!("{list}?path=/content&sort={sort}&after={after}");
                    let editor = scene.tokens[3].as_ref().unwrap();
                    let reply =
                        scene.instance.request(Method::GET, &target).bearer(editor).send().await;
                    assert_eq!(reply.status, 200, "{reply:?}");
                    reply.text()
                };
                // Nothing visible is between these names.
                let (hidden, absent) = (ask("hidden").await, ask("hiddeo").await);
                if hidden != absent {
                    faults.push(format!("{list} {sort} {value}: {hidden} but {absent}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn a_search_for_too_many_words_is_the_fault_of_who_asks() {
    let instance = TestInstance::author().await;
    instance.until_indexed();
    let text = "a%20".repeat(1_300);
    let reply = instance.get(&format!("/api/v1/search?text={text}")).await;
    assert_eq!(reply.status, 422, "{reply:?}");
    assert!(reply.text().contains("too many words"), "{reply:?}");
}
