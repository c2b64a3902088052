//! No answer shows what its asker may not read, or tells it from what is not there.
//!
//! A world with secrets is asked through every GET of the API's own description and through every rendering of Sling's,
//! as users who may not read the secrets. An endpoint with a parameter that this test does not know fails it.

use serde_json::{Value, json};
use tympan_testkit::condition_wait::wait_until;

use crate::program::{Answer, Demo, ask, basic};

/// Words that stand in what is hidden, and nowhere else.
const MARKERS: [&str; 3] = ["quokka7f3a", "numbat5c1d", "argon2"];
const PASSWORD: &str = "a long password";
/// A folder that everybody sees.
const HOME: &str = "/content/wayfare";
/// What is there and hidden, and what is not there: names of one length.
const HIDDEN: &str = "numbat5c1d";
const ABSENT: &str = "nobody5c1d";

/// Somebody who asks the author.
struct Asker<'a> {
    demo: &'a Demo,
    credentials: String,
}

impl Asker<'_> {
    fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let headers = [
            ("Authorization", self.credentials.clone()),
            ("Content-Type", "application/json".to_owned()),
        ];
        ask(self.demo.author, method, path, &headers, body.as_bytes()).unwrap()
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "")
    }

    /// Sends what must succeed.
    fn done(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.send(method, path, &body.to_string());
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text());
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Builds the world as its administrator.
fn build(admin: &Asker<'_>) {
    let [word, name, _] = MARKERS;
    let page = |title: &str, text: &str, more: Value| {
        let mut properties = json!({
            "jcr:title": title,
            "sling:resourceType": "wayfare/components/page",
            "cq:tags": [title],
        });
        properties.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        json!({ "type": "cq:Page", "children": { "jcr:content": {
            "type": "nt:unstructured",
            "properties": properties,
            "children": { "text": { "properties": { "text": text, "sling:resourceType": "wayfare/components/text" } } },
        } } })
    };
    let node = |name: &str| format!("/api/v1/nodes?path={HOME}/{name}");
    admin.done("PUT", &node("shown"), &page("Shown", "plain", json!({})));
    admin.done(
        "PATCH",
        &node("shown/jcr:content"),
        &json!({ "properties": { "jcr:mixinTypes": ["mix:referenceable"] } }),
    );
    let shown = admin.done("GET", &node("shown/jcr:content"), &json!({}));
    let identifier = shown["properties"]["jcr:uuid"]["value"].as_str().unwrap();
    let refers = json!({
        "seeAlso": format!("{HOME}/shown"),
        "strong": { "type": "Reference", "value": identifier },
        "secret": word,
    });
    admin.done("PUT", &node(HIDDEN), &page(word, word, refers));
    admin.done("PUT", &node("half"), &page("Half", word, json!({})));
    let keep = |path: &str| {
        let path = format!("{HOME}/{path}");
        admin.done("POST", "/api/v1/versions", &json!({ "path": path, "comment": word }));
        let label = json!({ "path": path, "version": "1.0", "label": word });
        let answer = admin.send("POST", "/api/v1/versions/label", &label.to_string());
        assert_eq!(answer.status, 204, "{}", answer.text());
    };
    keep(HIDDEN);
    keep("half");
    // Nodes that are gone, but for their versions: one below the hidden page.
    admin.done("PUT", &node(&format!("{HIDDEN}/gone-{name}")), &page(word, word, json!({})));
    keep(&format!("{HIDDEN}/gone-{name}"));
    let gone = admin.send("DELETE", &node(&format!("{HIDDEN}/gone-{name}")), "");
    assert_eq!(gone.status, 204, "{}", gone.text());
    for (path, privilege) in [(HIDDEN, "jcr:read"), ("half/jcr:content/text", "rep:readProperties")]
    {
        let path = format!("/api/v1/permissions?path={HOME}/{path}");
        let entry = json!({ "allow": false, "principal": "everyone", "privileges": [privilege] });
        admin.done("POST", &path, &entry);
    }
    // A label and a comment are the version's, which whoever sees the node sees; only the hidden page has the word there.
    let path = format!("{HOME}/half");
    let unlabel = format!("/api/v1/versions/label?path={path}&label={word}");
    assert_eq!(admin.send("DELETE", &unlabel, "").status, 204);
    admin.done("POST", "/api/v1/versions", &json!({ "path": path }));
    let old = format!("/api/v1/versions?path={path}&version=1.0");
    assert_eq!(admin.send("DELETE", &old, "").status, 204);

    for (user, groups) in
        [("bob", json!([])), ("ann", json!(["content-authors"])), (name, json!([]))]
    {
        let user = json!({ "name": user, "password": PASSWORD, "groups": groups });
        admin.done("POST", "/api/v1/users", &user);
    }
    admin.done("POST", "/api/v1/groups", &json!({ "name": format!("group-{name}") }));
    let member = json!({ "group": format!("group-{name}"), "member": "bob" });
    assert_eq!(admin.send("POST", "/api/v1/group/members", &member.to_string()).status, 204);

    admin.done("POST", "/api/v1/branches", &json!({ "name": "launch" }));
    for path in [HIDDEN, "half"] {
        let path = format!("{}/jcr:content/text&branch=launch", node(path));
        admin.done("PATCH", &path, &json!({ "properties": { "text": format!("{word} again") } }));
    }
    admin.done(
        "POST",
        "/api/v1/replication",
        &json!({ "action": "activate", "paths": [format!("{HOME}/{HIDDEN}")] }),
    );
    let stored = format!("/api/v1/packages/build?id=my:{name}:1");
    let filter =
        format!("<workspaceFilter version=\"1.0\"><filter root=\"{HOME}\"/></workspaceFilter>");
    let package = admin.send("POST", &stored, &filter);
    assert_eq!(package.status, 200, "{}", package.text());
    let headers = [
        ("Authorization", admin.credentials.clone()),
        ("Content-Type", "application/zip".to_owned()),
    ];
    let answer = ask(admin.demo.author, "POST", "/api/v1/packages", &headers, &package.body);
    assert_eq!(answer.unwrap().status, 201);
    // The full-text index follows; once it knows the last word, it knows all before it.
    let found = |answer: &Answer| answer.text().contains(HIDDEN);
    wait_until("the word is indexed", || found(&admin.get(&format!("/api/v1/search?text={word}"))));
}

/// Returns what a parameter of an endpoint is asked with. `name` is that of a node that is hidden, absent or seen.
fn values(endpoint: &str, parameter: &str, name: &str) -> Vec<String> {
    let word = MARKERS[0];
    let text = |values: &[&str]| values.iter().map(|value| encoded(value)).collect::<Vec<_>>();
    match (endpoint, parameter) {
        ("/api/v1/changes" | "/changes", "path") => text(&["/**", &format!("{HOME}/{name}")]),
        (_, "path") => [
            String::new(),
            "/jcr:content".to_owned(),
            "/jcr:content/text".to_owned(),
            format!("/gone-{HIDDEN}"),
        ]
        .iter()
        .map(|below| encoded(&format!("{HOME}/{name}{below}")))
        .collect(),
        ("/api/v1/blob", "property") => text(&["secret", "jcr:data"]),
        ("/api/v1/user" | "/api/v1/user/tokens", "name") => text(&[name, "admin"]),
        ("/api/v1/group", "name") => text(&[&format!("group-{name}"), "administrators"]),
        (_, "user") => text(&[name, "admin"]),
        ("/api/v1/types/cnd", "name") => text(&["nt:file"]),
        ("/api/v1/branches/diff", "name") => text(&["launch"]),
        (_, "depth") => text(&["5"]),
        (_, "details" | "deep") => text(&["true"]),
        (_, "branch") => text(&["launch"]),
        (_, "version" | "from") => text(&["1.0", "1.1", word]),
        (_, "sort") => text(&["name", "-title", "modified"]),
        ("/api/v1/operations/logs", "file") => text(&["request.log", "../state.db"]),
        ("/api/v1/operations/logs", "contains") => text(&[word]),
        ("/api/v1/operations/caches/explain", "dispatcher") => text(&["dispatcher"]),
        ("/api/v1/operations/caches/explain", "url") => text(&[&format!("{HOME}/{name}.html")]),
        ("/api/v1/operations/backup/pages", "state") => text(&["a"]),
        ("/api/v1/backup/runs", "since") => text(&["2026-01-01T00:00:00Z"]),
        (_, "since") => text(&["oldest"]),
        (_, "text" | "prefix") => text(&[word, &word[..5], "quokka7f3b"]),
        (_, "language") => text(&["sql2"]),
        (_, "statement") => text(&[
            "SELECT * FROM [nt:base]",
            "SELECT * FROM [nt:base] ORDER BY [secret]",
            &format!(
                "SELECT [jcr:path], [rep:excerpt(.)] FROM [nt:base] WHERE CONTAINS(*, '{word}')"
            ),
            &format!("SELECT [jcr:path] FROM [nt:base] WHERE [secret] = '{word}'"),
            "SELECT [rep:facet(secret)] FROM [nt:base]",
            "SELECT [rep:facet(text)] FROM [nt:base] WHERE [text] IS NOT NULL",
            &format!("SELECT [jcr:path] FROM [nt:base] WHERE ISDESCENDANTNODE([{HOME}/{name}])"),
            &format!("SELECT [jcr:path] FROM [nt:base] WHERE ISSAMENODE([{HOME}/{name}])"),
        ]),
        ("/api/v1/workflows", "payload") => text(&[&format!("{HOME}/{name}")]),
        ("/api/v1/workflows", "model") => text(&["/var/workflow/models/review"]),
        ("/api/v1/workflows/instance", "id") => text(&["1"]),
        ("/api/v1/workflows/back", "item") => text(&["1"]),
        ("/api/v1/assets/imports", "name") => text(&["import-1"]),
        ("/api/v1/jobs", "topic") => text(&["com/day/cq/replication/job/author/publish"]),
        ("/api/v1/jobs", "queue") => text(&["<main queue>"]),
        ("/api/v1/jobs", "state") => text(&["QUEUED"]),
        ("/api/v1/workflows", "state") => text(&["RUNNING"]),
        ("/api/v1/reads", "read") => text(&[
            &format!("nodes?path={HOME}/{name}"),
            &format!("children?path={HOME}/{name}"),
            &format!("page?path={HOME}/{name}"),
        ]),
        ("/api/v1/packages/zip", "id") => text(&[&format!("my:{name}:1")]),
        (_, "explain") => text(&["plan"]),
        (_, "privilege") => text(&["jcr:read"]),
        (
            _,
            "limit" | "offset" | "after" | "at" | "search" | "cursor" | "before" | "type" | "kind"
            | "wait" | "index" | "to" | "label" | "property",
        ) => Vec::new(),
        other => panic!("say what {other:?} is to be asked with"),
    }
}

/// Returns the URLs that ask all GET endpoints about a node.
fn urls(description: &Value, name: &str) -> Vec<String> {
    let mut urls = Vec::new();
    for (path, operations) in description["paths"].as_object().unwrap() {
        let Some(operation) = operations.get("get") else { continue };
        let parameters = operation["parameters"].as_array().unwrap();
        let mut required = vec![String::new()];
        let mut optional = Vec::new();
        for parameter in parameters.iter().filter(|one| one["in"] == "query") {
            let key = parameter["name"].as_str().unwrap();
            let pairs: Vec<String> =
                values(path, key, name).iter().map(|value| format!("&{key}={value}")).collect();
            if parameter["required"] == true {
                let product = |left: &String| {
                    pairs.iter().map(move |right| format!("{left}{right}")).collect::<Vec<_>>()
                };
                required = required.iter().flat_map(product).collect();
            } else {
                optional.extend(pairs);
            }
        }
        for given in &required {
            urls.push(format!("{path}?{given}"));
            urls.extend(optional.iter().map(|pair| format!("{path}?{given}{pair}")));
        }
    }
    urls.iter().map(|url| url.replacen("?&", "?", 1)).collect()
}

/// Returns the URLs that draw a node in all of Sling's ways.
fn renderings(name: &str) -> Vec<String> {
    let node = format!("{HOME}/{name}");
    let mut urls = vec![
        "/.infinity.json".to_owned(),
        "/content.infinity.json".to_owned(),
        format!("{HOME}.infinity.json"),
        format!("{HOME}.tidy.2.json"),
        format!("{HOME}.harray.1.json"),
        format!("{HOME}.xml"),
        format!("{HOME}.html"),
        format!("{HOME}.txt"),
        "/home.infinity.json".to_owned(),
        "/home/users.infinity.json".to_owned(),
        format!("/home/users/{name}.json"),
        "/etc/packages.infinity.json".to_owned(),
        "/jcr:system.infinity.json".to_owned(),
        "/rep:policy.infinity.json".to_owned(),
        format!("/bin/querybuilder.json?path={node}&p.hits=full"),
        "/bin/querybuilder.json?path=/content&fulltext=quokka7f3a&p.hits=full&p.facets=true&1_property=text".to_owned(),
        "/crx/packmgr/list.jsp".to_owned(),
        "/crx/packmgr/service.jsp?cmd=ls".to_owned(),
        format!("/crx/packmgr/download.jsp?path=/etc/packages/my/{name}-1.zip"),
    ];
    let ways = [
        "",
        ".json",
        ".1.json",
        ".-1.json",
        ".infinity.json",
        ".tidy.infinity.json",
        ".harray.infinity.json",
        ".txt",
        ".xml",
        ".html",
        ".print.html",
        ".res",
        ".html;v=1.0",
        ".json;v=1.0",
        ".html?wcmmode=edit",
        "/jcr:content.json",
        "/_jcr_content.infinity.json",
        "/jcr:content/text.html",
        "/jcr:content/text/text",
        "/jcr:content/secret.json",
        "/rep:policy.infinity.json",
        "/gone-numbat5c1d.json",
        ".html/suffix",
    ];
    urls.extend(ways.iter().map(|way| format!("{node}{way}")));
    urls
}

/// Leaves of an answer what does not depend on the name that was asked for.
fn outline(answer: &Answer, name: &str) -> (u16, String) {
    let text = answer.text().replace(name, "NAME").replace(HIDDEN, "NAME");
    (answer.status, text.replace(&encoded(name), "NAME").replace(&encoded(HIDDEN), "NAME"))
}

#[test]
fn what_is_hidden_looks_as_if_it_were_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let asker =
        |user: &str, password: &str| Asker { demo: &demo, credentials: basic(user, password) };
    let admin = asker("admin", demo.password());
    build(&admin);
    let description: Value =
        serde_json::from_slice(&admin.get("/api/v1/openapi.json").body).unwrap();
    let of = |name: &str| [urls(&description, name), renderings(name)].concat();
    let (hidden, absent) = (of(HIDDEN), of(ABSENT));
    let shown = [of("half"), of("shown")].concat();

    // The administrator sees the secrets, or the test would prove nothing.
    let sees = |url: &&String| {
        let text = admin.get(url).text();
        MARKERS.iter().any(|marker| text.contains(marker))
    };
    let seen = hidden.iter().filter(sees).count();
    assert!(seen > hidden.len() / 3, "the administrator sees {seen} of {}", hidden.len());

    for user in ["bob", "ann"] {
        let asker = asker(user, PASSWORD);
        for url in hidden.iter().chain(&shown) {
            let answer = asker.get(url);
            // What was asked for is repeated in messages.
            let text = [HIDDEN, &encoded(HIDDEN)]
                .iter()
                .filter(|name| url.contains(**name))
                .fold(answer.text(), |text, _| text.replace(HIDDEN, ""));
            let text = if url.contains(&encoded(MARKERS[0])) {
                text.replace(&format!("`{}`", MARKERS[0]), "")
            } else {
                text
            };
            assert!(answer.status < 500, "{user} {url}: {text}");
            for marker in MARKERS {
                assert!(!text.contains(marker), "{user} {url}: {text}");
                assert!(
                    !answer.head.contains(marker) || url.contains(marker),
                    "{user} {url}: {}",
                    answer.head
                );
            }
        }
        for (hidden, absent) in hidden.iter().zip(&absent) {
            if hidden != absent {
                let answers = [(hidden, HIDDEN), (absent, ABSENT)]
                    .map(|(url, name)| outline(&asker.get(url), name));
                assert_eq!(answers[0], answers[1], "{user} {hidden}");
            }
        }
    }
    writes_tell_nothing(&asker("ann", PASSWORD));
}

/// Writes to what is hidden are answered like writes to nothing, and failures name nothing that is hidden.
fn writes_tell_nothing(ann: &Asker<'_>) {
    let transfer =
        |name: &str| json!({ "from": format!("{HOME}/{name}"), "to": format!("{HOME}/other") });
    for (method, path, body) in [
        ("PATCH", "/api/v1/nodes?path={}", json!({ "properties": { "a": 1 } })),
        ("DELETE", "/api/v1/nodes?path={}", json!({})),
        ("POST", "/api/v1/nodes/move", json!({})),
        ("POST", "/api/v1/nodes/copy", json!({})),
        ("POST", "/api/v1/nodes/order", json!({ "place": "first" })),
        ("POST", "/api/v1/versions", json!({})),
        ("POST", "/api/v1/versions/restore", json!({ "version": "1.0" })),
        ("POST", "/api/v1/versions/label", json!({ "version": "1.0", "label": "x" })),
        ("DELETE", "/api/v1/versions?path={}&version=1.0", json!({})),
        ("PUT", "/api/v1/permissions?path={}", json!({ "entries": [] })),
        ("POST", "/api/v1/replication", json!({ "action": "activate" })),
    ] {
        let answers = [HIDDEN, ABSENT].map(|name| {
            let node = format!("{HOME}/{name}");
            let body = match (path, body.clone()) {
                ("/api/v1/nodes/move" | "/api/v1/nodes/copy", _) => transfer(name),
                ("/api/v1/replication", mut body) => {
                    body["paths"] = json!([node]);
                    body
                }
                (path, mut body) if !path.contains("{}") => {
                    body["path"] = json!(node);
                    body
                }
                (_, body) => body,
            };
            let answer = ann.send(method, &path.replace("{}", &node), &body.to_string());
            outline(&answer, name)
        });
        assert_eq!(answers[0], answers[1], "{method} {path}");
        assert!(answers[0].0 >= 400, "{method} {path}: {answers:?}");
    }
    // A hidden node refers to this one: it cannot go, and the answer does not say to whom.
    let held = ann.send("DELETE", &format!("/api/v1/nodes?path={HOME}/shown/jcr:content"), "");
    assert_eq!(held.status, 409, "{}", held.text());
    assert!(MARKERS.iter().all(|marker| !held.text().contains(marker)), "{}", held.text());
}
