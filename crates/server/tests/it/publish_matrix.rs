//! Who may ask what of a publisher: visitors, members, and administrators as the control.

use http::Method;
use tympan_content::{Property, Subtree, ValueType};

use crate::support::{PASSWORD, TestInstance, path};

/// Method, address, and the status that a visitor, a member and an administrator get.
type Row = (&'static str, &'static str, [u16; 3]);

const HIDDEN: [u16; 3] = [404, 404, 200];
const ABSENT: [u16; 3] = [404; 3];
const MALFORMED: [u16; 3] = [400; 3];
const NO_METHOD: [u16; 3] = [405; 3];
const ADMINISTRATION: [u16; 3] = [401, 403, 200];
const MEMBERS: [u16; 3] = [403, 200, 200];

const ROWS: &[Row] = &[
    ("GET", "/content/site.json", [200; 3]),
    ("GET", "/content/hidden.html", ABSENT),
    ("HEAD", "/content/hidden.json", HIDDEN),
    ("GET", "/content/hidden.json", HIDDEN),
    ("GET", "/content/hidden.infinity.json", HIDDEN),
    ("GET", "/content/hidden.xml", HIDDEN),
    ("GET", "/content/hidden.txt", HIDDEN),
    ("GET", "/content/hidden/jcr:content.json", HIDDEN),
    ("GET", "/content/hidden.json;v=1.0", ABSENT),
    ("GET", "/content/hidden.json?tympan-branch=main", HIDDEN),
    ("GET", "/content/site/../hidden.json", MALFORMED),
    ("GET", "/content/site/%2e%2e/hidden.json", MALFORMED),
    ("GET", "/content//hidden.json", ABSENT),
    ("GET", "/content.infinity.json", [200; 3]),
    ("GET", "/home.infinity.json", HIDDEN),
    ("GET", "/home/users/member.json", HIDDEN),
    ("GET", "/rep:policy.json", HIDDEN),
    ("GET", "/etc/replication.json", HIDDEN),
    ("GET", "/apps/site.json", HIDDEN),
    ("GET", "/content/hidden/rep:policy.json", HIDDEN),
    ("GET", "/content/cq:graphql/none/endpoint.json?query=%7Ba%7D", ABSENT),
    ("POST", "/content/_cq_graphql/none/endpoint.json", MALFORMED),
    ("GET", "/graphql/execute.json/none/all", ABSENT),
    ("GET", "/graphql/list.json", ABSENT),
    // Content comes by replication only.
    ("POST", "/content/site", NO_METHOD),
    ("POST", "/content/made", ABSENT),
    ("POST", "/content/hidden", [404, 404, 405]),
    ("POST", "/bin/made", ABSENT),
    ("PUT", "/content/made.txt", NO_METHOD),
    ("PUT", "/content/site", NO_METHOD),
    ("DELETE", "/content/site", NO_METHOD),
    ("PATCH", "/content/site", NO_METHOD),
    ("OPTIONS", "/content/site", NO_METHOD),
    ("TRACE", "/content/site", NO_METHOD),
    ("POST", "/crx/packmgr/service/.json", ABSENT),
    ("POST", "/crx/packmgr/service.jsp", ABSENT),
    // The author's services are not here.
    ("GET", "/api/v1/nodes?path=/content/site", ABSENT),
    ("GET", "/api/v1/users", ABSENT),
    ("GET", "/api/v1/permissions?path=/", ABSENT),
    ("GET", "/api/v1/me", ABSENT),
    ("GET", "/api/v1/changes?since=oldest", ABSENT),
    ("GET", "/api/v1/openapi.json", ABSENT),
    ("GET", "/changes?since=oldest", ABSENT),
    ("PUT", "/api/v1/nodes?path=/content/x", NO_METHOD),
    ("POST", "/api/v1/batch", ABSENT),
    ("POST", "/api/v1/packages", ABSENT),
    ("DELETE", "/api/v1/nodes?path=/content/site", NO_METHOD),
    ("GET", "/crx/packmgr/list.jsp", ABSENT),
    ("GET", "/sites.html", ABSENT),
    ("GET", "/login.html", ABSENT),
    ("GET", "/metrics", ABSENT),
    ("GET", "/libs/granite/csrf/token.json", [200; 3]),
    ("GET", "/libs/granite/security/currentuser.json", [200; 3]),
    ("POST", "/bin/replicate.json", ABSENT),
    ("GET", "/api/assets.json", ABSENT),
    ("GET", "/system/console/configMgr", ABSENT),
    ("GET", "/ui/index.html", ABSENT),
    // Queries are for members, jobs and times for administrators.
    ("GET", "/api/v1/query?statement=SELECT%20*%20FROM%20%5Bnt:base%5D", MEMBERS),
    (
        "GET",
        "/api/v1/query?explain=plan&statement=SELECT%20*%20FROM%20%5Bnt:base%5D",
        [403, 403, 200],
    ),
    ("GET", "/api/v1/search?text=classified", MEMBERS),
    ("GET", "/api/v1/suggest?prefix=class", MEMBERS),
    ("GET", "/api/v1/spellcheck?text=classifiet", MEMBERS),
    ("GET", "/api/v1/query/slow", [403, 403, 200]),
    ("GET", "/api/v1/indexes", [403, 403, 200]),
    ("POST", "/api/v1/indexes/rebuild?name=unheard-of", [403, 403, 404]),
    ("GET", "/bin/querybuilder.json?path=/content&p.limit=-1&p.hits=full", MEMBERS),
    ("GET", "/api/v1/jobs", ADMINISTRATION),
    ("GET", "/api/v1/jobs/topics", ADMINISTRATION),
    ("GET", "/api/v1/jobs/schedules", ADMINISTRATION),
    ("GET", "/api/v1/jobs/queues", ADMINISTRATION),
    ("GET", "/api/v1/jobs/configurations", ADMINISTRATION),
    ("POST", "/api/v1/jobs/retry", [415; 3]),
    ("GET", "/system/timing.json", ADMINISTRATION),
    ("GET", "/system/timing.html", ADMINISTRATION),
    ("POST", "/bin/receive", [403; 3]),
    ("POST", "/bin/receive/chunks", [403; 3]),
    ("POST", "/bin/receive/blobs", [403; 3]),
    ("PUT", "/bin/receive/blob/00/0", [403; 3]),
    ("GET", "/bin/store/refs", ADMINISTRATION),
    ("GET", "/bin/store/history?ref=main&limit=1", ADMINISTRATION),
    ("POST", "/bin/store/chunks/read", ADMINISTRATION),
    ("GET", "/bin/store/notes?prefix=x", [401, 403, 409]),
    ("DELETE", "/bin/store/lease?holder=x", [401, 403, 204]),
    ("GET", "/handle404?exporturi=/content/hidden.html", ABSENT),
    ("GET", "/login/link?token=guessed", [303; 3]),
    ("POST", "/logout", [200; 3]),
];

/// A publisher with a page that everybody reads and one that nobody reads but administrators.
async fn publisher() -> TestInstance {
    let instance = TestInstance::publish().await;
    instance.edit(|session| {
        let page = |title: &str| {
            let content =
                Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
            Subtree::new("", "cq:Page").with_child(content)
        };
        session.put_node(&path("/content/site"), page("Site")).unwrap();
        session.put_node(&path("/content/hidden"), page("classified")).unwrap();
        for at in ["/apps", "/apps/site", "/etc", "/etc/replication"] {
            session.put_node(&path(at), Subtree::new("", "sling:Folder")).unwrap();
        }
        let privileges = Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap();
        let entry = Subtree::new("deny", "rep:DenyACE")
            .with_property("rep:principalName", "everyone")
            .with_property("rep:privileges", privileges);
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
        session.put_node(&path("/content/hidden/rep:policy"), policy).unwrap();
    });
    instance
}

#[tokio::test]
async fn a_publisher_answers_every_viewer_as_it_should() {
    let instance = publisher().await;
    let member = instance.user("member", &[]).await;
    let admin = instance.token_of("admin").await;
    let mut faults = Vec::new();
    for (method, address, expected) in ROWS {
        for (token, wanted) in [None, Some(&member), Some(&admin)].into_iter().zip(expected) {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let request = instance.request(method.clone(), address);
            let request = match token {
                Some(token) => request.bearer(token),
                None => request,
            };
            let reply = request.send().await;
            let is_told = reply.text().contains("classified") && !address.contains("classified");
            if reply.status.as_u16() != *wanted || (is_told && token != Some(&admin)) {
                faults.push(format!("{method} {address}, expected {wanted}: {reply:?}"));
            }
            if reply.text().contains("$argon2") {
                faults.push(format!("{method} {address} tells the hash of a password"));
            }
            // What one member sees is nobody else's.
            let is_shared = !reply.header("cache-control").contains("private")
                && !reply.header("cache-control").contains("no-store");
            if *expected == HIDDEN && token == Some(&admin) && is_shared {
                faults.push(format!("{method} {address} may be kept: {:?}", reply.headers));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

#[tokio::test]
async fn a_member_with_a_session_gets_what_its_token_gets_and_writes_nothing() {
    let instance = publisher().await;
    instance.user("member", &[]).await;
    let log_in = instance.request(Method::POST, "/login");
    let log_in = log_in.form(&[("user", "member"), ("password", PASSWORD)]).send().await;
    assert_eq!(log_in.status, 200, "{log_in:?}");
    let cookie = log_in.header("set-cookie").split(';').next().unwrap().to_owned();
    let csrf = log_in.json()["csrf"].as_str().unwrap().to_owned();
    let before = instance.repository.head_root().unwrap();
    let mut faults = Vec::new();
    for (method, address, [_, wanted, _]) in ROWS {
        // These end the session, or begin another one.
        if matches!(*address, "/logout" | "/login/link?token=guessed") {
            continue;
        }
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let ask = || instance.request(method.clone(), address).header("cookie", &cookie);
        let own = ask().header("x-csrf-token", &csrf).send().await;
        // The store takes no sessions at all.
        let wanted = if address.starts_with("/bin/store") { 401 } else { *wanted };
        if own.status.as_u16() != wanted {
            faults.push(format!("{method} {address}, expected {wanted}: {own:?}"));
        }
        for reply in [
            // A page of another site made the browser send it.
            ask().header("origin", "https://attacker.example").send().await,
            ask().header("sec-fetch-site", "cross-site").send().await,
            ask().header("x-csrf-token", "guessed").send().await,
        ] {
            if !method.is_safe() && !reply.status.is_client_error() {
                faults.push(format!("{method} {address} from elsewhere: {reply:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(instance.repository.head_root().unwrap(), before, "something was written");
}
