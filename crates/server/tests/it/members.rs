//! What members of a site get from a publisher: drawn once where everybody gets the same, and never what another one may
//! not see, whoever asked before.

use axum::body::Body;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;
use tympan_content::Repository;
use tympan_render::{FragmentCache, FragmentCacheOptions, RenderMode, RenderOptions, Renderer};
use tympan_server::{InstanceRole, admin_router};

use crate::blocking_instance::{Answer, BlockingInstance, basic};
use crate::support::PASSWORD;

const SITE: &str = "/content/club";
/// Who asks, and which of the closed pages it may see: none, that of the members, that of the board, or both.
const ASKERS: [(&str, bool, bool); 6] = [
    ("", false, false),
    ("guest", false, false),
    ("ann", true, false),
    ("ben", true, false),
    ("cem", false, true),
    ("dora", true, true),
];

/// A publisher that serves what an author wrote.
struct Publisher(BlockingInstance);

impl Publisher {
    fn start() -> Self {
        let repository = write_site();
        let options = RenderOptions { mode: RenderMode::Publish, ..RenderOptions::default() };
        let renderer = Renderer::new(&repository, options)
            .with_fragments(FragmentCache::new(FragmentCacheOptions::default()));
        let publisher = BlockingInstance::start_on(repository, InstanceRole::Publish, |options| {
            options.renderer = renderer;
        });
        Self(publisher)
    }

    fn get(&self, user: &str, path: &str) -> Answer {
        let headers = [("authorization", basic(user, PASSWORD))];
        self.0.send("GET", path, if user.is_empty() { &[] } else { &headers }, b"")
    }

    fn counter(&self, name: &str) -> u64 {
        let request = Request::builder().uri("/metrics").header("host", "localhost");
        let router = admin_router(self.0.instance().instance.clone());
        let answering = router.oneshot(request.body(Body::empty()).unwrap());
        let metrics = self.0.runtime().block_on(async {
            let body = answering.await.unwrap().into_body();
            String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
        });
        let line = metrics.lines().find(|line| line.starts_with(&format!("tympan_{name}_total{{")));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap()
    }

    /// Asks, and tells how many drawings it took.
    fn drawings(&self, user: &str, path: &str) -> (Answer, u64) {
        let before = self.counter("renders");
        let answer = self.get(user, path);
        (answer, self.counter("renders") - before)
    }
}

fn node(kind: &str, properties: Value, children: Value) -> Value {
    Value::from_iter([("type", kind.into()), ("properties", properties), ("children", children)])
}

fn page(component: &str, title: &str) -> Value {
    let about = json!({ "sling:resourceType": component, "jcr:title": title });
    let list = node("nt:unstructured", json!({ "sling:resourceType": "club/list" }), json!({}));
    let content = node("cq:PageContent", about, json!({ "list": list }));
    node("cq:Page", json!({}), json!({ "jcr:content": content }))
}

/// Writes a site with a page for everybody, one for members and one for the board, and pages that show or list them.
fn write_site() -> Repository {
    let author = BlockingInstance::author();
    let made = author.post("/apps", "./jcr:primaryType=sling:Folder");
    assert!(made.status < 300, "{}", made.text());
    let put =
        |path: &str, node: &Value| author.done("PUT", &format!("/api/v1/nodes?path={path}"), node);
    let component = |about: Value| node("cq:Component", about, json!({}));
    // The list is kept: what one user drew is at hand for the next one.
    let apps = json!({
        "page": component(json!({})),
        "list": component(json!({ "cache": "always" })),
        "greeting": component(json!({ "cache": "always" })),
    });
    put("/apps/club", &node("nt:unstructured", json!({}), apps));
    let list = "{% for p in nav('/content/club') %}<li>{{ p.title }}</li>{% endfor %}";
    let teased = "{% set p = page_at('/content/club/members') %}[{{ p.title if p else 'closed' }}]";
    let greeting = "<p>Hello {{ request.user or 'you' }}</p>";
    let as_admin = [("authorization", basic("admin", PASSWORD))];
    for (name, script) in [
        ("page/page.html.j2", "<h1>{{ page.title }}</h1>".to_owned()),
        ("page/list.html.j2", "{{ include('list') }}".to_owned()),
        ("page/tease.html.j2", teased.to_owned()),
        ("page/greet.html.j2", "<i>{{ include('list', type='club/greeting') }}</i>".to_owned()),
        ("list/list.html.j2", list.to_owned()),
        ("greeting/greeting.html.j2", greeting.to_owned()),
    ] {
        let path = format!("/apps/club/{name}");
        let put = author.send("PUT", &path, &as_admin, script.as_bytes());
        assert_eq!(put.status, 201, "{name}: {}", put.text());
    }
    let pages = json!({
        "open": page("club/page", "Open"),
        "members": page("club/page", "Members only"),
        "board": page("club/page", "Board only"),
    });
    let mut site = page("club/page", "Club");
    for (name, page) in pages.as_object().unwrap() {
        site["children"][name] = page.clone();
    }
    put(SITE, &site);
    for group in ["members", "board"] {
        author.done("POST", "/api/v1/groups", &json!({ "name": group }));
    }
    for (user, is_member, is_board) in ASKERS.into_iter().skip(1) {
        let groups = [("members", is_member), ("board", is_board)];
        let groups: Vec<_> =
            groups.into_iter().filter(|(_, is_in)| *is_in).map(|(name, _)| name).collect();
        author.add_user(user, &json!(groups));
    }
    for group in ["members", "board"] {
        let path = format!("/api/v1/permissions?path={SITE}/{group}");
        let entry = |allow: bool, principal: &str| json!({ "allow": allow, "principal": principal, "privileges": ["jcr:read"] });
        author.done(
            "PUT",
            &path,
            &json!({ "entries": [entry(false, "everyone"), entry(true, group)] }),
        );
    }
    author.instance().repository.clone()
}

/// Checks what one of them sees of each page.
fn check(publish: &Publisher, (user, is_member, is_board): (&str, bool, bool)) {
    let listed = publish.get(user, &format!("{SITE}/open.list.html")).text();
    assert!(listed.contains("Open"), "{user}: {listed}");
    assert_eq!(listed.contains("Members only"), is_member, "{user}: {listed}");
    assert_eq!(listed.contains("Board only"), is_board, "{user}: {listed}");
    let teased = publish.get(user, &format!("{SITE}/open.tease.html")).text();
    assert_eq!(teased, if is_member { "[Members only]" } else { "[closed]" }, "{user}");
    for (name, may) in [("open", true), ("members", is_member), ("board", is_board)] {
        for ending in [".html", "/jcr:content.json", ".infinity.json"] {
            let answer = publish.get(user, &format!("{SITE}/{name}{ending}"));
            assert_eq!(answer.status == 200, may, "{user} {name}{ending}: {}", answer.status);
            let is_kept = answer
                .header("cache-control")
                .is_none_or(|how| !how.contains("private") && !how.contains("no-store"));
            let is_everyones = name == "open";
            assert!(!is_kept || is_everyones || !may, "{user} {name}{ending} is kept");
        }
    }
    let greeted = publish.get(user, &format!("{SITE}/open.greet.html"));
    let name = if user.is_empty() { "you" } else { user };
    assert_eq!(greeted.text(), format!("<i><p>Hello {name}</p></i>"));
    assert_eq!(greeted.header("cache-control"), Some("private, no-cache"));
}

#[test]
fn nobody_gets_what_another_one_may_see() {
    let publish = Publisher::start();
    // Each of them right after each of the others, so that everything may be at hand that another one drew.
    for first in ASKERS {
        for second in ASKERS {
            check(&publish, first);
            check(&publish, second);
        }
    }
    // What differs is nobody else's to keep.
    for (user, is_member, is_board) in ASKERS {
        let listed = publish.get(user, &format!("{SITE}/open.list.html"));
        let how = listed.header("cache-control");
        assert_eq!(how == Some("private, no-cache"), is_member || is_board, "{user}: {how:?}");
    }
}

#[test]
fn what_everybody_gets_is_rendered_once_for_members() {
    let publish = Publisher::start();
    let open = format!("{SITE}/open.html");
    let plain = publish.get("", &open);
    for (user, ..) in ASKERS {
        // Members may see more, and this page has nothing of it.
        let (answer, drawings) = publish.drawings(user, &open);
        assert_eq!((drawings, &answer.body), (1, &plain.body), "{user}");
        assert_eq!(answer.header("cache-control"), plain.header("cache-control"), "{user}");
    }
}

/// Where it differs it is drawn once more, to see whether it shows.
#[test]
fn what_differs_for_members_is_rendered_once_more() {
    let publish = Publisher::start();
    let teased = format!("{SITE}/open.tease.html");
    assert_eq!(publish.drawings("guest", &teased).1, 1);
    assert_eq!(publish.drawings("ann", &teased).1, 2);
    assert_eq!(publish.drawings("ann", &format!("{SITE}/members.html")).1, 2);
}

/// Also of what not everybody sees.
#[test]
fn members_who_may_see_the_same_share_fragments() {
    let publish = Publisher::start();
    let listed = format!("{SITE}/open.list.html");
    publish.get("ann", &listed);
    let (hits, misses) = (publish.counter("fragment_hits"), publish.counter("fragment_misses"));
    publish.get("ben", &listed);
    assert!(publish.counter("fragment_hits") > hits);
    assert_eq!(publish.counter("fragment_misses"), misses);
}
