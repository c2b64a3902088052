//! No way in shows what a user may not read.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use crate::program::{Demo, Running, ask, basic, free_address, get, run, run_ok, tympan};

/// A word that stands in content which its reader may not see, and nowhere else.
const SECRET: &str = "quokka-7f3a";
const PASSWORD: &str = "a long password";

/// Everything that answers GET on an author, asked so that the answer could hold the secret. `{home}` is the folder of
/// the secret page. A route that is in the program's tables and neither here nor in [`NO_CONTENT`] fails the test.
const GETS: &[&str] = &[
    "/",
    "/.json",
    "/.infinity.json",
    "/.3.json",
    "/rep:policy.json",
    "/rep:policy.infinity.json",
    "/content.infinity.json",
    "/content.json",
    "/content.4.json",
    "/content.harray.3.json",
    "/content/{home}.1.json",
    "/content/{home}.infinity.json",
    "/content/{home}.tidy.infinity.json",
    "/content/{home}.txt",
    "/content/{home}.xml",
    "/content/{home}.html",
    "/content/{home}/secret",
    "/content/{home}/secret.html",
    "/system/timing.json",
    "/system/timing.html",
    "/handle404?exporturi=/content/{home}/secret.html",
    "/content/{home}/secret.json",
    "/content/{home}/secret.infinity.json",
    "/content/{home}/secret.txt",
    "/content/{home}/secret.xml",
    "/content/{home}/secret.res",
    "/content/{home}/secret/jcr:content.json",
    "/content/{home}/secret/_jcr_content.infinity.json",
    "/content/{home}/secret/jcr:content/text.html",
    "/content/{home}/secret/jcr:content/text/text",
    "/content/{home}/secret/rep:policy.infinity.json",
    "/content/{home}/secret/file.txt",
    "/content/{home}/secret/file.txt/jcr:content/jcr:data",
    "/content/{home}/half/jcr:content.infinity.json",
    "/content/{home}/half.infinity.json",
    "/content/{home}/half.html",
    "/home.infinity.json",
    "/home/users.infinity.json",
    "/home/users/admin.json",
    "/api/v1/pages?path=/content/{home}",
    "/api/v1/pages?path=/content/{home}/secret",
    "/api/v1/page?path=/content/{home}/secret",
    "/api/v1/page?path=/content/{home}/half",
    "/api/v1/dialog?path=/content/{home}/secret/jcr:content",
    "/api/v1/dialog?path=/content/{home}/half/jcr:content/text",
    "/api/v1/queue",
    "/api/v1/jobs",
    "/api/v1/jobs/topics",
    "/api/v1/jobs/queues",
    "/api/v1/jobs/schedules",
    "/api/v1/jobs/configurations",
    "/api/v1/backup/runs",
    "/api/v1/operations/jobs",
    "/api/v1/operations/workflows",
    "/api/v1/operations/replication",
    "/api/v1/operations/health",
    "/api/v1/operations/configuration",
    "/api/v1/operations/caches",
    "/api/v1/operations/caches/explain?dispatcher=dispatcher&url=/content/{home}/secret.html",
    "/api/v1/operations/performance",
    "/api/v1/operations/logs",
    "/api/v1/operations/maintenance",
    "/api/v1/operations/backup",
    "/api/v1/operations/backup/states",
    "/api/v1/operations/backup/pages?state=a&path=/content/{home}",
    "/api/v1/workflows",
    "/api/v1/workflows/models",
    "/api/v1/workflows/inbox",
    "/api/v1/workflows/instance?id=1",
    "/api/v1/me",
    "/graphql/persist.json/wayfare/secret",
    "/graphql/list.json",
    "/graphql/list.json/wayfare",
    "/content/_cq_graphql/wayfare/endpoint.json?query=%7B__typename%7D",
    "/content/cq:graphql/wayfare/endpoint.json?query=%7B__typename%7D",
    "/bin/querybuilder.json?path=/content&fulltext=quokka&p.hits=full",
    "/bin/querybuilder.json?path=/content&property=text&property.operation=exists&p.hits=full&p.limit=-1",
    "/api/v1/query?language=sql2&statement=SELECT%20*%20FROM%20%5Bnt:base%5D",
    "/api/v1/query?language=xpath&statement=//*",
    "/api/v1/query/slow",
    "/api/v1/indexes",
    "/api/v1/suggest?prefix=quokka",
    "/api/v1/spellcheck?text=quokkas",
    "/changes?since=oldest",
    "/api/v1/changes?since=oldest&limit=10000",
    "/api/v1/nodes?path=/content/{home}&depth=1",
    "/api/v1/nodes?path=/content/{home}/secret&depth=9",
    "/api/v1/nodes?path=/content/{home}/half&depth=9",
    "/api/v1/nodes?path=/home/users/admin",
    "/api/v1/children?path=/content/{home}",
    "/api/v1/children?path=/content/{home}&sort=name",
    "/api/v1/children?path=/content/{home}&sort=-title",
    "/api/v1/children?path=/content/{home}/secret",
    "/api/v1/blob?path=/content/{home}/secret/file.txt/jcr:content",
    "/api/v1/versions?path=/content/{home}/secret",
    "/content/{home}/half.xml",
    "/api/v1/packages",
    "/api/v1/packages/zip?group=my&name=all",
    "/crx/packmgr/list.jsp",
    "/crx/packmgr/installstatus.jsp",
    "/crx/packmgr/download.jsp?path=/etc/packages/my/all.zip",
    "/crx/packmgr/service.jsp?cmd=ls",
    "/content/{home}/en/search.html/quokka",
    "/content/{home}/en/search.html?q=quokka",
    "/api/assets",
    "/api/assets.json?limit=1000",
    "/api/assets/../wayfare/secret.json",
    "/api/assets/wayfare.json",
    "/libs/granite/security/currentuser.json",
    "/libs/replication/treeactivation.html",
    "/etc/replication/treeactivation.html",
    "/system/console/slingevent",
    "/system/console/slingevent.json",
    "/system/console/configMgr",
    "/system/console/configMgr/org.apache.sling.event.impl.jobs.jcr.MainQueue.json",
    "/system/console/unheard-of",
    "/etc/workflow/instances.json",
    "/etc/workflow/models.json",
    "/etc/workflow/instances/1.json",
    "/bin/workflow/inbox",
    "/bin/workflow/inbox.json",
    "/bin/store/refs",
    "/bin/store/lease?holder=x",
    "/bin/store/notes?prefix=marks-x.",
    "/bin/store/note/marks-x",
];

/// Routes whose answers hold no content, or that take no GET.
const NO_CONTENT: &[&str] = &[
    "/health",
    "/health/ready",
    "/manager/status",
    "/metrics",
    "/login",
    "/login/link",
    "/login.html",
    "/logout",
    "/assets.html",
    "/assets.html/{*path}",
    "/sites.html",
    "/sites.html/{*path}",
    "/editor.html/{*path}",
    "/queue.html",
    "/launches.html",
    "/launches.html/{*name}",
    "/packages.html",
    "/mounts.html",
    "/workflows.html",
    "/operations.html",
    "/operations.html/{*page}",
    "/bin/receive/blobs",
    "/permissions.html/{*path}",
    "/search.html",
    "/users.html",
    "/users.html/{*id}",
    "/versions.html/{*path}",
    "/ui/{*file}",
    "/bin/replicate",
    "/bin/replicate.json",
    "/bin/wcmcommand",
    "/api.json",
    "/libs/granite/csrf/token.json",
    "/system/console",
    "/libs/cq/workflow/content/console.html",
    "/libs/cq/workflow/content/inbox.html",
    "/libs/cq/workflow/admin/console/content/{page}",
    "/bin/receive",
    "/bin/receive/chunks",
    "/bin/receive/blob/{digest}/{length}",
    "/bin/store/history",
    "/bin/store/chunks/lacking",
    "/bin/store/chunks/read",
    "/bin/store/blobs/read",
    "/bin/store/blob/{digest}/{length}",
];

/// Adds a user with a password.
fn add_user(name: &str, groups: &[&str], home: &str) {
    use std::io::Write as _;
    let mut arguments = vec!["user", "add", name, "--home", home];
    groups.iter().for_each(|group| arguments.extend(["--group", group]));
    let mut child = tympan().args(arguments).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(PASSWORD.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

/// Denies a privilege to everyone at a path.
fn close(demo: &Demo, path: &str, privilege: &str) {
    let headers = [
        ("Authorization", basic("admin", demo.password())),
        ("Content-Type", "application/json".to_owned()),
    ];
    let entry =
        format!("{{\"allow\":false,\"principal\":\"everyone\",\"privileges\":[\"{privilege}\"]}}");
    let path = format!("/api/v1/permissions?path={path}");
    let answer = ask(demo.author, "POST", &path, &headers, entry.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// A demo with a page that only administrators see, one of which a part is hidden, and the user `bob` without groups and
/// `ann` of the authors.
fn demo_with_secrets(dir: &Path) -> Demo {
    let demo = Demo::start(dir);
    let page = |name: &str, title: &str| {
        let form = format!(
            "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=nt:unstructured&./jcr:content/jcr:title={title}\
             &./jcr:content/sling:resourceType=wayfare/components/page\
             &./jcr:content/text/jcr:primaryType=nt:unstructured\
             &./jcr:content/text/sling:resourceType=wayfare/components/text&./jcr:content/text/text={SECRET}"
        );
        let answer = demo.post(&format!("/content/wayfare/{name}"), &form);
        assert!(answer.status < 300, "{}", answer.text());
    };
    page("secret", SECRET);
    page("half", "Half");
    // Below the root of the site's search.
    page("en/secret", SECRET);
    page("en/half", "Half");
    close(&demo, "/content/wayfare/secret", "jcr:read");
    close(&demo, "/content/wayfare/en/secret", "jcr:read");
    close(&demo, "/content/wayfare/en/half/jcr:content/text", "rep:readProperties");
    close(&demo, "/content/wayfare/half/jcr:content/text", "rep:readProperties");
    let (author, publish, dispatcher) = (demo.author, demo.publish, demo.dispatcher);
    assert!(demo.running.stop());
    let home = dir.join("author");
    add_user("bob", &[], home.to_str().unwrap());
    add_user("ann", &["content-authors"], home.to_str().unwrap());
    Demo::start_at(dir, author, publish, dispatcher)
}

/// Returns the paths of the program's routes.
fn routes() -> Vec<String> {
    let mut routes = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for (at, _) in text.match_indices(".route(") {
                let rest = text[at + ".route(".len()..].trim_start();
                let name = rest.strip_prefix('"').and_then(|rest| rest.split('"').next());
                routes.extend(name.map(str::to_owned));
            }
        }
    }
    routes
}

#[test]
fn no_get_shows_what_may_not_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let demo = demo_with_secrets(dir.path());
    let gets: Vec<String> = GETS.iter().map(|get| get.replace("{home}", "wayfare")).collect();
    let known = |route: &String| {
        let (stem, _) = route.split_once('{').unwrap_or((route, ""));
        let is_asked = |get: &String| {
            let path = get.split('?').next().unwrap();
            if stem.len() == route.len() { path == stem } else { path.starts_with(stem) }
        };
        NO_CONTENT.contains(&&**route) || gets.iter().any(is_asked)
    };
    let unknown: Vec<String> = routes().into_iter().filter(|route| !known(route)).collect();
    assert_eq!(unknown, Vec::<String>::new(), "list these routes in this test");

    // The administrator sees the secret, or the test would prove nothing.
    let mut shown = 0;
    for get in &gets {
        shown += usize::from(demo.get_as_admin(get).text().contains(SECRET));
    }
    assert!(shown >= 12, "{shown}");
    for user in ["bob", "ann"] {
        let headers = [("Authorization", basic(user, PASSWORD))];
        for path in &gets {
            let answer = ask(demo.author, "GET", path, &headers, b"").unwrap();
            assert!(!answer.text().contains(SECRET), "{user} {path}: {}", answer.text());
            assert!(!answer.text().contains("argon2"), "{user} {path}");
            assert!(answer.status < 500, "{user} {path}: {}", answer.text());
        }
        let answer =
            ask(demo.author, "GET", "/content/wayfare/secret.json", &headers, b"").unwrap();
        assert_eq!(answer.status, 404);
        // What may be seen is still there.
        let answer = ask(demo.author, "GET", "/content/wayfare/half.infinity.json", &headers, b"");
        assert!(answer.unwrap().text().contains("Half"));
    }
    assert!(!demo.get_as_admin("/home.infinity.json").text().contains("argon2"));
}

#[test]
fn writes_need_privileges_and_publishing_one_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let demo = demo_with_secrets(dir.path());
    let post = |user: &str, path: &str, form: &str| {
        let headers = [
            ("Authorization", basic(user, PASSWORD)),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
        ];
        ask(demo.author, "POST", path, &headers, form.as_bytes()).unwrap()
    };
    let page = "/content/wayfare/en";
    for (user, path, form, status) in [
        ("bob", page, "./jcr:content/jcr:title=x", 403),
        ("bob", page, ":operation=activate", 403),
        ("bob", page, ":operation=delete", 403),
        ("ann", page, "./jcr:content/jcr:title=x", 200),
        ("ann", page, ":operation=activate", 200),
        ("ann", "/content/wayfare/secret", ":operation=delete", 404),
        ("ann", "/content/wayfare/secret", ":operation=copy&:dest=/content/out", 404),
        ("ann", "/apps/wayfare", "./x=1", 403),
        ("ann", "/home/users/ann", "./rep:disabled=no", 403),
        ("ann", "/rep:policy", "./x=1", 403),
    ] {
        let answer = post(user, path, form);
        assert_eq!(answer.status, status, "{user} {path} {form}: {}", answer.text());
    }
    let refused = post("bob", page, "./jcr:content/jcr:title=y").text();
    assert!(
        refused.contains("OakAccess0000") && refused.contains("rep:alterProperties"),
        "{refused}"
    );
    // A publisher shows everybody what everyone may read, and nothing else.
    for (path, status) in [("/apps/wayfare.json", 404), ("/home.json", 404), ("/conf.json", 404)] {
        assert_eq!(get(demo.publish, path).status, status, "{path}");
    }
    assert_eq!(get(demo.publish, "/content/wayfare/en.html").status, 200);
}

/// Adds everything below a folder that somebody else than its owner may read or change.
fn add_open(folder: &Path, open: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.path().symlink_metadata().unwrap();
        let mode = metadata.permissions().mode() & 0o777;
        // The library of the full-text index makes its locks by itself: empty files in a folder that is closed.
        let is_lock = metadata.len() == 0 && entry.path().extension() == Some("lock".as_ref());
        if !metadata.is_symlink() && mode & 0o077 != 0 && !is_lock {
            open.push(format!("{} {mode:o}", entry.path().display()));
        }
        if metadata.is_dir() {
            add_open(&entry.path(), open);
        }
    }
}

#[test]
fn nothing_in_a_home_is_open_to_others_whatever_the_mask_of_modes() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("demo");
    let addresses = [(); 3].map(|()| free_address().to_string());
    let [author, publish, dispatcher] = &addresses;
    let home_text = home.to_str().unwrap();
    let demo = Running::start_unmasked(&[
        "demo",
        "--home",
        home_text,
        "--author",
        author,
        "--publish",
        publish,
        "--dispatcher",
        dispatcher,
    ]);
    assert_eq!(get(dispatcher.parse().unwrap(), "/content/wayfare/en.html").status, 200);
    assert_eq!(get(author.parse().unwrap(), "/content/wayfare/en.html").status, 401);
    let mut open = Vec::new();
    for folder in ["author", "publish", "dispatcher/logs"] {
        let mode = home.join(folder).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode & 0o077, 0, "{folder} {mode:o}");
        add_open(&home.join(folder), &mut open);
    }
    assert!(demo.stop());
    add_open(&home.join("author"), &mut open);
    assert!(open.is_empty(), "{open:#?}");
}

#[test]
fn users_and_tokens_from_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let demo = demo_with_secrets(dir.path());
    let home = dir.path().join("author");
    let home = home.to_str().unwrap();
    let token = run_ok(&["user", "token", "bob", "--expires", "1h", "--home", home]);
    let ask_as = |token: &str| {
        let headers = [("Authorization", format!("Bearer {}", token.trim()))];
        ask(demo.author, "GET", "/api/v1/me", &headers, b"").unwrap().status
    };
    assert_eq!(ask_as(&token), 200);
    let listed = run_ok(&["user", "tokens", "bob", "--json", "--home", home]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let id = listed[0]["id"].as_str().unwrap();
    assert!(listed[0]["expires"].is_i64() && listed.as_array().unwrap().len() == 1);
    run_ok(&["user", "revoke", id, "--home", home]);
    assert_eq!(ask_as(&token), 401);
    assert_eq!(run(&["user", "revoke", id, "--home", home]).status.code(), Some(2));
    assert!(demo.running.stop());
    let why = run_ok(&[
        "user",
        "why",
        "ann",
        "/content/wayfare/secret",
        "--privilege",
        "rep:write",
        "--home",
        home,
    ]);
    assert!(why.contains("/rep:policy entry 4 (`allow2`) grants it to content-authors"), "{why}");
    let why = run_ok(&["user", "why", "ann", "/content/wayfare/secret", "--json", "--home", home]);
    let why: serde_json::Value = serde_json::from_str(&why).unwrap();
    let read = &why["privileges"][0];
    assert_eq!((&read["privilege"], &read["granted"]), (&"rep:readNodes".into(), &false.into()));
    assert_eq!(read["cause"]["policy"], "/content/wayfare/secret/rep:policy");
    run_ok(&["user", "disable", "bob", "--home", home]);
    assert!(run_ok(&["user", "list", "--home", home]).contains("bob (disabled)"));
    run_ok(&["user", "enable", "bob", "--home", home]);
    run_ok(&["user", "group", "create", "editors", "--home", home]);
    run_ok(&["user", "group", "add", "content-authors", "editors", "--home", home]);
    run_ok(&["user", "group", "add", "editors", "bob", "--home", home]);
    let why = run_ok(&["user", "why", "bob", "/content/wayfare/en", "--home", home]);
    assert!(why.contains("(through editors)"), "{why}");
    run_ok(&["user", "delete", "bob", "--home", home]);
    assert_eq!(run(&["user", "why", "bob", "/", "--home", home]).status.code(), Some(2));
}
