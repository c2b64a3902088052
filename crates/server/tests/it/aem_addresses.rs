//! AEM's own addresses: what they do, and that they take and refuse what AEM does.

use std::time::{Duration, SystemTime};

use http::Method;
use serde_json::{Value, json};
use tympan_content::{JcrDate, Property, Subtree, ValueType};
use tympan_jobs::NewJob;

use crate::blocking_instance::{Answer, BlockingInstance, basic, first_cookie, form_type};
use crate::support::{FormPart, PASSWORD, Reply, TestInstance, path};

const QUEUE_FACTORY: &str = "org.apache.sling.event.jobs.QueueConfiguration";
const UPLOAD_TOPIC: &str =
    "com/adobe/granite/workflow/job/etc/workflow/models/dam/update_asset/jcr_content/model";
const TEMPLATE: &str = "/conf/site/templates/article";

fn page(title: &str) -> Subtree {
    let content = Subtree::new("jcr:content", "cq:PageContent").with_property("jcr:title", title);
    Subtree::new("", "cq:Page").with_child(content)
}

fn folder() -> Subtree {
    Subtree::new("", "sling:Folder")
}

/// An author with an agent, pages, templates and a folder of assets; `editor` may change and activate pages.
async fn author() -> (TestInstance, String) {
    let instance = TestInstance::author().await;
    instance.edit(|session| {
        let mut put = |at: &str, tree: Subtree| session.put_node(&path(at), tree).unwrap();
        for at in ["/etc", "/etc/replication", "/etc/replication/agents.author", "/content/dam"] {
            put(at, folder());
        }
        for at in ["/apps", "/conf", "/conf/site", "/conf/site/templates", "/content/dam/press"] {
            put(at, folder());
        }
        let agent = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("enabled", "true")
            .with_property("serializationType", "tympan")
            .with_property("transportUri", "http://10.1.2.3:4503");
        let agent = Subtree::new("", "cq:Page").with_child(agent);
        put("/etc/replication/agents.author/publish", agent);
        for at in ["site", "site/a", "site/b", "site/b/child", "site/c"] {
            put(&format!("/content/{at}"), page(at));
        }
        let allowed = ["/conf/site/templates/.*", "/apps/static"];
        let allowed = Property::parse_list(ValueType::String, allowed).unwrap();
        session
            .set_property(&path("/content/site/jcr:content"), "cq:allowedTemplates", allowed)
            .unwrap();
        let mut put = |at: &str, tree: Subtree| session.put_node(&path(at), tree).unwrap();
        let text = Subtree::new("text", "nt:unstructured")
            .with_property("link", "/content/site/b/child")
            .with_property("sling:resourceType", "site/text");
        put("/content/site/a/jcr:content/text", text);
        let initial = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("sling:resourceType", "site/article")
            .with_child(Subtree::new("root", "nt:unstructured").with_property("first", "words"));
        let initial = Subtree::new("initial", "cq:Page").with_child(initial);
        let about =
            Subtree::new("jcr:content", "cq:PageContent").with_property("status", "enabled");
        let template = Subtree::new("", "cq:Template").with_child(about).with_child(initial);
        put(TEMPLATE, template);
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("sling:resourceType", "site/old");
        put("/apps/static", Subtree::new("", "cq:Template").with_child(content));
    });
    let editor = instance.user("editor", &["content-authors"]).await;
    (instance, editor)
}

async fn post(instance: &TestInstance, token: &str, at: &str, form: &[(&str, &str)]) -> Reply {
    instance.request(Method::POST, at).bearer(token).form(form).send().await
}

/// Returns the paths in the queue of the agent, with their actions.
async fn queued(instance: &TestInstance) -> Vec<String> {
    let queue = instance.get("/api/v1/queue").await.json();
    let items = queue["agents"][0]["items"].as_array().unwrap().iter();
    let mut items: Vec<String> = items
        .map(|item| {
            format!("{} {}", item["action"].as_str().unwrap(), item["path"].as_str().unwrap())
        })
        .collect();
    items.sort();
    items
}

#[tokio::test]
async fn a_script_activates_and_deactivates_paths() {
    let (instance, editor) = author().await;
    let form = [
        ("cmd", "activate"),
        ("_charset_", "utf-8"),
        ("path", "/content/site/a"),
        ("path", "/content/site/c"),
    ];
    let reply = post(&instance, &editor, "/bin/replicate.json", &form).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let told = reply.json();
    assert_eq!(told["status.code"], 200);
    assert_eq!(told["status.message"], "Replication started for /content/site/a");
    assert_eq!(told["path"], "/content/site/a");
    assert_eq!(queued(&instance).await, ["Activate /content/site/a", "Activate /content/site/c"]);
    let form = [("cmd", "Delete"), ("path", "/content/site/c")];
    let reply = post(&instance, &editor, "/bin/replicate?cmd=Delete", &form).await;
    assert!(reply.text().contains("<div id=\"Status\">200</div>"), "{reply:?}");
    assert!(queued(&instance).await.contains(&"Deactivate /content/site/c".to_owned()));
    assert!(instance.snapshot().node(&path("/content/site/c")).unwrap().is_some());
}

#[tokio::test]
async fn a_tree_is_activated_without_what_its_switches_leave_out() {
    let (instance, editor) = author().await;
    let activate = async |address: &str, switches: &[(&str, &str)]| {
        let form = [&[("cmd", "activate"), ("path", "/content/site")][..], switches].concat();
        let reply = post(&instance, &editor, address, &form).await;
        assert_eq!(reply.status, 200, "{switches:?} {reply:?}");
        let changes = reply.text().matches("activated(").count();
        (changes, reply.text().contains("nothing to replicate"))
    };
    let [tree, one] = ["/etc/replication/treeactivation.html", "/bin/replicate"];
    assert_eq!(activate(one, &[("onlyActivated", "true"), ("deep", "true")]).await, (0, true));
    assert_eq!(activate(one, &[]).await, (1, false));
    // All but the first page were never activated.
    assert_eq!(activate(tree, &[("onlymodified", "true")]).await, (4, false));
    assert_eq!(activate(tree, &[("onlymodified", "true")]).await, (0, true));
    instance.edit(|session| {
        let later = JcrDate::from_system_time(SystemTime::now() + Duration::from_secs(3600));
        let later = Property::Single(tympan_content::Value::Date(later));
        session
            .set_property(&path("/content/site/b/jcr:content"), "cq:lastModified", later)
            .unwrap();
    });
    let form = [("cmd", "Deactivate"), ("path", "/content/site/c")];
    assert_eq!(post(&instance, &editor, "/bin/replicate.json", &form).await.status, 200);
    let switches = [("onlyModified", "true"), ("ignoredeactivated", "true")];
    assert_eq!(activate(tree, &switches).await, (1, false));
}

#[tokio::test]
async fn a_request_for_one_agent_is_taken_if_there_is_no_other() {
    let (instance, editor) = author().await;
    let form = |agent: &'static str| {
        [("cmd", "Activate"), ("path", "/content/site/a"), ("agentId", agent)]
    };
    let address = "/bin/replicate.json";
    assert_eq!(post(&instance, &editor, address, &form("publish")).await.status, 200);
    assert_eq!(post(&instance, &editor, address, &form("other")).await.status, 501);
    for (form, status) in [
        (&[("path", "/content/site/a")][..], 400),
        (&[("cmd", "Activate")], 400),
        (&[("cmd", "Activate"), ("path", "content")], 400),
        (&[("cmd", "Activate"), ("path", "/content/none")], 404),
        (&[("cmd", "Activate"), ("path", "/content/site"), ("path", "/content/none")], 404),
        (&[("cmd", "Test"), ("path", "/content/site/a")], 501),
    ] {
        let reply = post(&instance, &editor, address, form).await;
        assert_eq!(reply.status, status, "{form:?} {reply:?}");
        assert_eq!(reply.json()["status.code"], status, "{form:?}");
    }
    assert_eq!(queued(&instance).await, ["Activate /content/site/a"]);
}

/// Runs a command for pages.
async fn command(instance: &TestInstance, token: &str, form: &[(&str, &str)]) -> (u16, Value) {
    let request = instance.request(Method::POST, "/bin/wcmcommand").bearer(token);
    let reply = request.header("accept", "application/json").form(form).send().await;
    (reply.status.as_u16(), reply.json())
}

#[tokio::test]
async fn a_page_is_created_with_the_content_of_its_template() {
    let (instance, editor) = author().await;
    let create = async |label: &str, title: &str, template: &str| {
        let form = [
            ("cmd", "createPage"),
            ("parentPath", "/content/site"),
            ("label", label),
            ("title", title),
            ("template", template),
        ];
        let (status, told) = command(&instance, &editor, &form).await;
        (status, told["path"].as_str().unwrap_or_default().to_owned())
    };
    let first = create("news", "News & More", TEMPLATE).await;
    assert_eq!(first, (200, "/content/site/news".to_owned()));
    let content = "/content/site/news/jcr:content";
    assert_eq!(instance.property(content, "jcr:title"), "String News & More");
    assert_eq!(instance.property(content, "cq:template"), format!("String {TEMPLATE}"));
    assert_eq!(instance.property(content, "sling:resourceType"), "String site/article");
    assert_eq!(instance.property(content, "status"), "-");
    assert_eq!(instance.property(&format!("{content}/root"), "first"), "String words");
    // A taken name gets a number, and a title makes a name.
    assert_eq!(create("news", "News", TEMPLATE).await, (200, "/content/site/news0".to_owned()));
    assert_eq!(create("", "About Us!", "").await, (200, "/content/site/about-us".to_owned()));
    assert_eq!(create("old", "Old", "/apps/static").await.0, 200);
    let old = "/content/site/old/jcr:content";
    assert_eq!(instance.property(old, "sling:resourceType"), "String site/old");
    let powerless = instance.user("powerless", &[]).await;
    let before = instance.repository.head_root().unwrap();
    assert_eq!(create("", "", TEMPLATE).await.0, 400);
    assert_eq!(create("x", "X", "/conf/site/templates/none").await.0, 404);
    assert_eq!(create("x", "X", "/content/site").await.0, 404);
    assert_eq!(create("a/b", "X", TEMPLATE).await.0, 400);
    let form = [("cmd", "createPage"), ("parentPath", "/content/none"), ("label", "x")];
    assert_eq!(command(&instance, &editor, &form).await.0, 404);
    let form = [("cmd", "createPage"), ("parentPath", "/content/site"), ("label", "x")];
    assert_eq!(command(&instance, &powerless, &form).await.0, 403);
    assert_eq!(instance.repository.head_root().unwrap(), before, "something was written");
}

#[tokio::test]
async fn the_charset_of_a_form_is_the_one_that_it_names() {
    let (instance, editor) = author().await;
    let body = "cmd=createPage&parentPath=/content/site&label=u&title=%FC&_charset_=iso-8859-1";
    let request = instance.request(Method::POST, "/bin/wcmcommand").bearer(&editor);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(request.body(body).send().await.status, 200);
    assert_eq!(instance.property("/content/site/u/jcr:content", "jcr:title"), "String ü");
}

fn child_names(instance: &TestInstance, at: &str) -> Vec<String> {
    let node = instance.snapshot().node(&path(at)).unwrap().unwrap();
    node.listed_children().unwrap().iter().map(|child| child.name().to_owned()).collect()
}

#[tokio::test]
async fn pages_are_copied_to_a_place_among_their_siblings() {
    let (instance, editor) = author().await;
    let copy = |more: &[(&'static str, &'static str)]| {
        [&[("cmd", "copyPage"), ("destParentPath", "/content/site")][..], more].concat()
    };
    let form = copy(&[("srcPath", "/content/site/b"), ("before", "b")]);
    let (status, told) = command(&instance, &editor, &form).await;
    assert_eq!((status, &told["path"]), (200, &json!("/content/site/b0")));
    assert_eq!(child_names(&instance, "/content/site"), ["a", "b0", "b", "c"]);
    assert_eq!(child_names(&instance, "/content/site/b0"), ["child"]);
    let form = copy(&[("srcPath", "/content/site/b"), ("destName", "alone"), ("shallow", "true")]);
    assert_eq!(command(&instance, &editor, &form).await.0, 200);
    assert!(child_names(&instance, "/content/site/alone").is_empty());
    assert_eq!(instance.property("/content/site/alone/jcr:content", "jcr:title"), "String site/b");
    let form =
        copy(&[("srcPath", "/content/site/a"), ("srcPath", "/content/site/b"), ("destName", "x")]);
    assert_eq!(command(&instance, &editor, &form).await.0, 400);
    let form = copy(&[("srcPath", "/content/site/a"), ("srcPath", "/content/site/none")]);
    assert_eq!(command(&instance, &editor, &form).await.0, 404);
    assert_eq!(child_names(&instance, "/content/site"), ["a", "b0", "b", "c", "alone"]);
}

#[tokio::test]
async fn a_move_adjusts_references_as_it_is_asked() {
    let (instance, editor) = author().await;
    let link = || instance.property("/content/site/a/jcr:content/text", "link");
    let move_to = |name: &'static str, more: &[(&'static str, &'static str)]| {
        [&[("cmd", "movePage"), ("destParentPath", "/content/site"), ("destName", name)][..], more]
            .concat()
    };
    let form = move_to("moved", &[("srcPath", "/content/site/b"), ("before", "a")]);
    let (status, told) = command(&instance, &editor, &form).await;
    assert_eq!((status, &told["path"]), (200, &json!("/content/site/moved")), "{told}");
    assert_eq!(link(), "String /content/site/moved/child");
    assert_eq!(child_names(&instance, "/content/site"), ["moved", "a", "c"]);
    let modified =
        json!({ "type": "modified", "argument": "/content/site/a/jcr:content/text/link" });
    assert!(told["changes"].as_array().unwrap().contains(&modified), "{told}");
    // With `integrity`, references stay unless pages to adjust are named.
    let from = ("srcPath", "/content/site/moved");
    let form = move_to("again", &[from, ("integrity", "true")]);
    assert_eq!(command(&instance, &editor, &form).await.0, 200);
    assert_eq!(link(), "String /content/site/moved/child");
    let back = ("srcPath", "/content/site/again");
    assert_eq!(command(&instance, &editor, &move_to("moved", &[back])).await.0, 200);
    let adjust = ("adjust", "[\"/content/site/a\"]");
    let publish = ("publish", "/content/site/a");
    let form = move_to("again", &[from, ("integrity", "true"), adjust, publish]);
    assert_eq!(command(&instance, &editor, &form).await.0, 200);
    assert_eq!(link(), "String /content/site/again/child");
    assert_eq!(queued(&instance).await, ["Activate /content/site/a"]);
    // The same path only changes the order; another page is not replaced.
    let form = move_to("again", &[back, ("before", "c")]);
    assert_eq!(command(&instance, &editor, &form).await.0, 200);
    assert_eq!(child_names(&instance, "/content/site"), ["a", "again", "c"]);
    assert_eq!(command(&instance, &editor, &move_to("c", &[back])).await.0, 412);
    assert_eq!(
        command(&instance, &editor, &move_to("x", &[back, ("shallow", "true")])).await.0,
        501
    );
}

#[tokio::test]
async fn a_referenced_page_is_deleted_by_force_only() {
    let (instance, editor) = author().await;
    let delete =
        |more: &[(&'static str, &'static str)]| [&[("cmd", "deletePage")][..], more].concat();
    let b = ("path", "/content/site/b");
    let (status, told) = command(&instance, &editor, &delete(&[b])).await;
    assert_eq!(status, 412, "{told}");
    assert!(told["error"].as_str().unwrap().contains("/content/site/a/jcr:content/text/link"));
    // The page that refers goes along.
    let both = delete(&[b, ("path", "/content/site/a")]);
    let children = delete(&[("path", "/content/site/c"), ("checkChildren", "true")]);
    assert_eq!(command(&instance, &editor, &children).await.0, 200);
    let children = delete(&[("path", "/content/site"), ("checkChildren", "true")]);
    assert_eq!(command(&instance, &editor, &children).await.0, 412);
    let powerless = instance.user("powerless", &[]).await;
    let force = ("force", "true");
    assert_eq!(command(&instance, &powerless, &delete(&[b, force])).await.0, 403);
    let shallow = delete(&[b, force, ("shallow", "true")]);
    assert_eq!(command(&instance, &editor, &shallow).await.0, 200);
    assert_eq!(child_names(&instance, "/content/site/b"), ["child"]);
    assert_eq!(command(&instance, &editor, &both).await.0, 200);
    assert!(child_names(&instance, "/content/site").is_empty());
    assert_eq!(command(&instance, &editor, &delete(&[b])).await.0, 404);
    assert_eq!(command(&instance, &editor, &delete(&[])).await.0, 400);
}

#[tokio::test]
async fn a_session_gets_its_token_and_uses_it_as_aem_names_it() {
    let (instance, editor) = author().await;
    let login = instance.request(Method::POST, "/login");
    let login = login.form(&[("user", "editor"), ("password", PASSWORD)]).send().await;
    let cookie = login.header("set-cookie").split(';').next().unwrap().to_owned();
    let ask = |address| instance.request(Method::GET, address).header("cookie", &cookie);
    let reply = ask("/libs/granite/csrf/token.json").send().await;
    let token = reply.json()["token"].as_str().unwrap().to_owned();
    assert_eq!(login.json()["csrf"], token.as_str());
    assert_eq!(reply.header("cache-control"), "private, no-store");
    assert_eq!(reply.header("dispatcher"), "no-cache");
    let create = || {
        let request = instance.request(Method::POST, "/bin/wcmcommand").header("cookie", &cookie);
        request.form(&[("cmd", "createPage"), ("parentPath", "/content/site"), ("label", "x")])
    };
    assert_eq!(create().send().await.status, 403);
    assert_eq!(create().header("csrf-token", "wrong").send().await.status, 403);
    assert_eq!(create().header("CSRF-Token", &token).send().await.status, 200);
    let user = ask("/libs/granite/security/currentuser.json").send().await.json();
    assert_eq!((&user["authorizableId"], &user["type"]), (&json!("editor"), &json!("user")));
    assert_eq!(user["home"], "/home/users/editor");
    // Other credentials need none, and visitors have none.
    let address = "/libs/granite/csrf/token.json";
    let reply = instance.request(Method::GET, address).bearer(&editor).send().await;
    assert_eq!(reply.json(), json!({}));
    assert_eq!(instance.visit(address).await.json(), json!({}));
    let publish = TestInstance::publish().await;
    let user = publish.visit("/libs/granite/security/currentuser.json").await.json();
    assert_eq!((&user["authorizableId"], &user["home"]), (&json!("anonymous"), &Value::Null));
}

/// Sends a request to the Assets HTTP API.
async fn assets(
    instance: &TestInstance,
    token: &str,
    (method, address): (&str, &str),
    headers: &[(&str, &str)],
    body: &'static str,
) -> Reply {
    let address = format!("/api/assets{address}");
    let mut request = instance.request(method.parse().unwrap(), &address).bearer(token);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    request.body(body).send().await
}

const JSON: &[(&str, &str)] = &[("content-type", "application/json")];
const FORM: &[(&str, &str)] = &[("content-type", "application/x-www-form-urlencoded")];
const PNG: &[(&str, &str)] = &[("content-type", "image/png")];

#[tokio::test]
async fn folders_and_assets_are_created_read_and_changed() {
    let (instance, editor) = author().await;
    let ask = async |line: (&str, &str), headers: &[(&str, &str)], body: &'static str| {
        assets(&instance, &editor, line, headers, body).await
    };
    let entity = "{\"class\":\"assetFolder\",\"properties\":{\"title\":\"My Folder\"}}";
    let made = ask(("POST", "/mine"), JSON, entity).await;
    assert_eq!((made.status.as_u16(), made.header("location")), (201, "/api/assets/mine"));
    assert_eq!(made.json()["properties"]["path"], "/content/dam/mine");
    assert_eq!(ask(("POST", "/mine"), JSON, entity).await.status, 409);
    assert_eq!(ask(("POST", "/none/mine"), JSON, entity).await.status, 412);
    assert_eq!(ask(("POST", "/other"), JSON, "{\"class\":\"asset\"}").await.status, 400);
    assert_eq!(ask(("POST", "/other"), JSON, "{").await.status, 400);
    assert_eq!(ask(("POST", "/*"), FORM, "name=two&title=Two").await.status, 201);
    assert_eq!(ask(("POST", "/*"), FORM, "title=Two").await.status, 400);

    let file: FormPart<'_> = ("file", Some(("any.png", "image/png")), b"first");
    let name: FormPart<'_> = ("name", None, b"pic.png");
    let upload = |address: &str| {
        instance.request(Method::POST, &format!("/api/assets{address}")).bearer(&editor)
    };
    assert_eq!(upload("/mine/*").multipart(&[name, file]).send().await.status, 201);
    assert_eq!(upload("/mine/pic.png").multipart(&[file]).send().await.status, 409);
    assert_eq!(upload("/none/pic.png").multipart(&[file]).send().await.status, 412);
    let original = "/content/dam/mine/pic.png/jcr:content/renditions/original";
    let read = async |at: &str| instance.get(at).await.text();
    assert_eq!(read(original).await, "first");

    assert_eq!(ask(("PUT", "/mine/pic.png"), PNG, "second").await.status, 200);
    assert_eq!(read(original).await, "second");
    let metadata =
        "{\"class\":\"asset\",\"properties\":{\"dc:title\":\"A picture\",\"note\":null}}";
    assert_eq!(ask(("PUT", "/mine/pic.png"), JSON, metadata).await.status, 200);
    let rendition = "/mine/pic.png/renditions/web.png";
    assert_eq!(ask(("PUT", rendition), PNG, "web").await.status, 404);
    assert_eq!(ask(("POST", rendition), PNG, "web").await.status, 201);
    assert_eq!(ask(("POST", rendition), PNG, "web").await.status, 409);
    assert_eq!(ask(("PUT", rendition), PNG, "small").await.status, 200);
    let stored = "/content/dam/mine/pic.png/jcr:content/renditions/web.png";
    assert_eq!(read(stored).await, "small");

    let asset = ask(("GET", "/mine/pic.png.json"), &[], "").await.json();
    assert_eq!(asset["class"], json!(["assets/asset"]));
    assert_eq!(asset["properties"]["name"], "pic.png");
    assert_eq!(asset["properties"]["metadata"]["dc:title"], "A picture");
    assert_eq!(asset["properties"]["metadata"]["dc:format"], "image/png");
    let names: Vec<_> = asset["entities"].as_array().unwrap().iter().collect();
    assert_eq!(names.len(), 2, "{asset}");
    let folder = ask(("GET", "/mine.json"), &[], "").await.json();
    assert_eq!(folder["properties"]["dc:title"], "My Folder");
    let links = |entity: &Value| entity["links"].as_array().unwrap().clone();
    let parent = json!({ "rel": ["parent"], "href": "/api/assets.json" });
    assert!(links(&folder).contains(&parent), "{folder}");
    let children: Vec<_> = folder["entities"].as_array().unwrap().iter().collect();
    assert_eq!(children.len(), 1, "{folder}");
    assert_eq!(children[0]["links"][0]["href"], "/api/assets/mine/pic.png.json");

    let page = ask(("GET", ".json?limit=1&offset=1"), &[], "").await.json();
    assert_eq!(page["properties"]["srn:paging"], json!({ "total": 3, "offset": 1, "limit": 1 }));
    assert_eq!(page["entities"].as_array().unwrap().len(), 1);
    let next = json!({ "rel": ["next"], "href": "/api/assets.json?offset=2&limit=1" });
    assert!(links(&page).contains(&next), "{page}");
    assert_eq!(ask(("GET", ".json?limit=many"), &[], "").await.status, 400);
    assert_eq!(ask(("GET", "/none.json"), &[], "").await.status, 404);
    assert_eq!(ask(("DELETE", rendition), &[], "").await.status, 200);
    assert_eq!(ask(("DELETE", "/mine"), &[], "").await.status, 200);
    assert_eq!(ask(("GET", "/mine.json"), &[], "").await.status, 404);
    assert_eq!(ask(("DELETE", "/mine"), &[], "").await.status, 404);
}

#[tokio::test]
async fn folders_are_copied_and_moved_as_the_headers_say() {
    let (instance, editor) = author().await;
    let ask = async |method: &str, address: &str, headers: &[(&str, &str)]| {
        assets(&instance, &editor, (method, address), headers, "").await.status.as_u16()
    };
    instance.post("/content/dam/press/deep", &[("jcr:primaryType", "sling:Folder")]).await;
    let to = |target: &'static str| ("x-destination", target);
    assert_eq!(ask("COPY", "/press", &[to("/api/assets/copy")]).await, 201);
    assert_eq!(child_names(&instance, "/content/dam/copy"), ["deep"]);
    assert_eq!(ask("COPY", "/press", &[to("/api/assets/copy")]).await, 204);
    let kept = [to("/api/assets/copy"), ("x-overwrite", "F")];
    assert_eq!(ask("COPY", "/press", &kept).await, 412);
    let shallow = [to("http://localhost:4502/api/assets/shallow"), ("x-depth", "0")];
    assert_eq!(ask("COPY", "/press", &shallow).await, 201);
    assert!(child_names(&instance, "/content/dam/shallow").is_empty());
    assert_eq!(ask("MOVE", "/copy", &[to("/api/assets/moved")]).await, 201);
    assert_eq!(ask("MOVE", "/copy", &[to("/api/assets/moved")]).await, 404);
    assert_eq!(ask("MOVE", "/moved", &[]).await, 412);
    assert_eq!(ask("MOVE", "/moved", &[to("/api/assets/none/moved")]).await, 412);
    assert_eq!(ask("MOVE", "/moved", &[to("/content/site/moved")]).await, 400);
    assert_eq!(ask("MOVE", "/moved", &[to("/api/assets/../site/moved")]).await, 400);
}

#[tokio::test]
async fn hidden_assets_look_as_if_they_were_not_there() {
    let (instance, _) = author().await;
    instance.edit(|session| {
        let privileges = Property::parse_list(ValueType::Name, ["jcr:all"]).unwrap();
        let entry = Subtree::new("deny", "rep:DenyACE")
            .with_property("rep:principalName", "everyone")
            .with_property("rep:privileges", privileges);
        let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
        let secret = Subtree::new("", "sling:Folder").with_child(policy);
        session.put_node(&path("/content/dam/secret"), secret).unwrap();
    });
    let user = instance.user("writer", &["dam-users"]).await;
    let listed = assets(&instance, &user, ("GET", ".json"), &[], "").await;
    assert!(!listed.text().contains("secret"), "{listed:?}");
    for (line, headers) in [
        (("GET", "/secret.json"), &[][..]),
        (("DELETE", "/secret"), &[]),
        (("PUT", "/secret"), PNG),
        (("PUT", "/secret"), JSON),
        (("COPY", "/secret"), &[("x-destination", "/api/assets/press/x")]),
        (("COPY", "/press"), &[("x-destination", "/api/assets/secret/x")]),
        (("POST", "/secret/x.png/renditions/web"), PNG),
    ] {
        let hidden = assets(&instance, &user, line, headers, "{}").await;
        let address = line.1.replace("secret", "absent");
        let headers: Vec<(&str, String)> = headers
            .iter()
            .map(|(name, value)| (*name, value.replace("secret", "absent")))
            .collect();
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let absent = assets(&instance, &user, (line.0, &address), &headers, "{}").await;
        assert!(hidden.status.is_client_error(), "{line:?} {hidden:?}");
        assert_eq!(hidden.status, absent.status, "{line:?}");
        assert_eq!(hidden.text().replace("secret", "absent"), absent.text(), "{line:?}");
    }
}

fn console(author: &BlockingInstance, method: &str, at: &str, form: &str) -> Answer {
    let headers = [("authorization", basic("admin", PASSWORD)), form_type()];
    author.send(method, &format!("/system/console{at}"), &headers, form.as_bytes())
}

/// An author that has processed one upload, so that its topic has statistics.
fn author_after_an_upload() -> BlockingInstance {
    let author = BlockingInstance::author();
    author.run_jobs();
    let job = NewJob::new("dam/update_asset", json!({ "path": "/content/dam/x.png" }));
    let queues = author.queues();
    author.runtime().block_on(queues.add_job(job, SystemTime::now())).unwrap();
    author
}

/// The queue that takes the work for uploads.
fn queue_of_uploads(author: &BlockingInstance) -> String {
    let topics = author.get("/api/v1/jobs/topics");
    let topics = topics["topics"].as_array().unwrap();
    let topic = topics.iter().find(|topic| topic["topic"] == "dam/update_asset").unwrap();
    topic["queue"].as_str().unwrap().to_owned()
}

/// The recipe of Adobe's guide: find the topic in the console, and create a queue for it.
#[test]
fn the_console_gives_a_workflow_model_a_queue_of_its_own() {
    let author = author_after_an_upload();
    assert_eq!(queue_of_uploads(&author), "Granite Workflow Queue");
    let page = console(&author, "GET", "/slingevent", "");
    assert_eq!(page.status, 200);
    assert!(page.text().contains(UPLOAD_TOPIC), "{}", page.text());
    let topics = console(&author, "GET", "/slingevent.json", "").json();
    let topics = topics["topics"].as_array().unwrap();
    assert!(topics.iter().any(|topic| topic["topic"] == UPLOAD_TOPIC), "{topics:?}");

    let pid = "/configMgr/%5BTemporary%20PID%20replaced%20by%20real%20PID%20upon%20save%5D";
    let form = format!(
        "apply=true&action=ajaxConfigManager&factoryPid={QUEUE_FACTORY}&queue.name=DAM+Update+Asset\
         &queue.topics={UPLOAD_TOPIC}&queue.maxparallel=0.5&queue.threadPoolSize=0\
         &queue.preferRunOnCreationInstance=false\
         &propertylist=queue.name,queue.topics,queue.maxparallel,queue.threadPoolSize,queue.preferRunOnCreationInstance"
    );
    let made = console(&author, "POST", pid, &form);
    assert_eq!(made.status, 302, "{}", made.text());
    let location = made.header("location").unwrap().to_owned();
    assert!(location.starts_with(&format!("/system/console/configMgr/{QUEUE_FACTORY}-")));
    assert_eq!(queue_of_uploads(&author), "DAM Update Asset");
    let address = location.strip_prefix("/system/console").unwrap();
    assert_eq!(console(&author, "GET", address, "").status, 200);
    let shown = console(&author, "GET", &format!("{address}.json"), "").json();
    assert_eq!(shown[0]["properties"]["queue.maxparallel"]["value"], "0.5");
    assert_eq!(shown[0]["properties"]["queue.topics"]["values"], json!([UPLOAD_TOPIC]));
    // Felix's clients read with a POST, and take the location of a bundle as the sign of a configuration.
    let read = console(&author, "POST", address, "").json();
    assert_eq!(read, shown[0]);
    assert!(read.get("bundle_location").is_some());

    let changed = console(&author, "POST", address, "apply=true&queue.maxparallel=3");
    assert_eq!(changed.status, 302, "{}", changed.text());
    let queues = author.get("/api/v1/jobs/queues");
    let queue = queues["queues"].as_array().unwrap().iter();
    let queue = queue.clone().find(|queue| queue["name"] == "DAM Update Asset").unwrap();
    assert_eq!((&queue["maxParallel"], &queue["topics"]), (&json!(3.0), &json!([UPLOAD_TOPIC])));
    let removed = console(&author, "POST", address, "apply=1&delete=1");
    assert_eq!(removed.json(), json!({ "status": true }), "{}", removed.text());
    assert_eq!(queue_of_uploads(&author), "Granite Workflow Queue");
}

#[test]
fn a_node_gives_a_workflow_model_a_queue_of_its_own() {
    let author = author_after_an_upload();
    let form = format!(
        "jcr:primaryType=sling:OsgiConfig&queue.name=Uploads&queue.topics={UPLOAD_TOPIC}\
         &queue.maxparallel=0.5&queue.maxparallel@TypeHint=Double"
    );
    author.instance().edit(|session| {
        for at in ["/apps", "/apps/site", "/apps/site/config"] {
            session.put_node(&path(at), folder()).unwrap();
        }
    });
    // The path of a form ends at its first dot, so that the name is a command.
    let form = format!("{form}&:name={QUEUE_FACTORY}-uploads");
    let made = author.post("/apps/site/config/", &form);
    assert_eq!(made.status, 201, "{}", made.text());
    while queue_of_uploads(&author) != "Uploads" {
        std::thread::yield_now();
    }
    let shown = console(&author, "GET", "/configMgr", "").text();
    assert!(shown.contains(&format!("{QUEUE_FACTORY}-uploads")), "{shown}");
}

#[test]
fn the_console_has_the_shipped_queues_under_their_pids() {
    let author = BlockingInstance::author();
    author.run_jobs();
    let shipped = format!("{QUEUE_FACTORY}.370aad73-d01b-4a0b-abe4-20198d85f705");
    let address = format!("/configMgr/{shipped}");
    let page = console(&author, "GET", "/configMgr", "");
    assert!(page.text().contains(&shipped) && page.text().contains("Maximum Parallel Jobs"));
    // Clients cut the list out of the page.
    let text = page.text();
    let line = text.lines().find_map(|line| line.split_once("configData = ")).unwrap().1;
    let data: Value = serde_json::from_str(line.trim_end_matches(';')).unwrap();
    assert!(data["pids"].as_array().unwrap().iter().any(|pid| pid["id"] == shipped.as_str()));
    assert_eq!(console(&author, "POST", &address, "apply=true&queue.maxparallel=2").status, 302);
    let read = console(&author, "POST", &address, "").json();
    assert_eq!(read["properties"]["queue.maxparallel"]["value"], "2");
    assert_eq!(read["properties"]["queue.maxparallel"]["is_set"], true);
    assert_eq!(read["properties"]["queue.retries"]["is_set"], false);
    let period = "/configMgr/com.day.cq.dam.jcrconnector.impl.AssetSynchronizationService";
    let set = console(&author, "POST", period, "apply=true&scheduler.period=31536000");
    assert_eq!(set.status, 302, "{}", set.text());
    let read = console(&author, "POST", period, "").json();
    assert_eq!(read["properties"]["scheduler.period"]["value"], "31536000");
    for (at, form, status) in [
        ("/configMgr/com.example.Other", "apply=true&a=b", 404),
        ("/configMgr/com.example.Other", "", 404),
        (pid_of_new(), "apply=true&factoryPid=com.example.Other&a=b", 404),
        (pid_of_new(), &format!("apply=true&factoryPid={QUEUE_FACTORY}&queue.name=x"), 400),
        (&address, "apply=true&queue.maxparallel=many", 422),
        (&address, "apply=true&unheard=1", 422),
        (period, "apply=true&scheduler.period=never", 422),
        (period, "apply=true&other=1", 422),
        ("/slingevent", "action=test&queue=x", 501),
        ("/slingevent", "action=suspend&queue=x", 404),
        ("/slingevent", "", 400),
    ] {
        let answer = console(&author, "POST", at, form);
        assert_eq!(answer.status, status, "{at} {form}: {}", answer.text());
    }
    author.add_user("ann", &json!([]));
    for at in ["/slingevent", "/configMgr", "/configMgr/com.example.Other"] {
        let at = format!("/system/console{at}");
        assert_eq!(author.status("ann", "GET", &at, &Value::Null), 403, "{at}");
        assert_eq!(author.post_as("ann", &at, "apply=true&action=suspend&queue=x").status, 403);
    }
}

fn pid_of_new() -> &'static str {
    "/configMgr/%5BTemporary%20PID%20replaced%20by%20real%20PID%20upon%20save%5D"
}

#[test]
fn the_console_pauses_and_resumes_a_queue_for_a_browser() {
    let author = BlockingInstance::author();
    author.run_jobs();
    let cookie = first_cookie(&author.log_in("admin", PASSWORD));
    let ask = |method: &str, form: &str| {
        let headers = [form_type(), ("cookie", cookie.clone())];
        author.send(method, "/system/console/slingevent", &headers, form.as_bytes())
    };
    let page = ask("GET", "").text();
    let marker = "name=\":cq_csrf_token\" value=\"";
    let token = page.split_once(marker).unwrap().1.split('"').next().unwrap();
    let is_paused = || {
        let queues = author.get("/api/v1/jobs/queues");
        let queue = queues["queues"].as_array().unwrap().iter();
        queue.clone().find(|queue| queue["name"] == "Granite Workflow Queue").unwrap()["paused"]
            == true
    };
    let form = "action=suspend&queue=Granite+Workflow+Queue";
    assert_eq!(ask("POST", form).status, 403);
    assert_eq!(ask("POST", &format!("{form}&:cq_csrf_token={token}")).status, 303);
    assert!(is_paused());
    let form = form.replace("suspend", "resume");
    assert_eq!(ask("POST", &format!("{form}&:cq_csrf_token={token}")).status, 303);
    assert!(!is_paused());
}

#[test]
fn workflows_are_started_and_ended_by_scripts() {
    let author = BlockingInstance::author();
    author.run_jobs();
    let mut form = String::from("jcr:primaryType=cq:WorkflowModel&title=Review");
    for (name, kind) in [("s", "START"), ("p", "PARTICIPANT"), ("e", "END")] {
        form.push_str(&format!("&nodes/{name}/type={kind}&nodes/{name}/title={name}"));
    }
    form.push_str("&nodes/p/metaData/PARTICIPANT=admin");
    for (name, from, to) in [("a", "s", "p"), ("b", "p", "e")] {
        form.push_str(&format!("&transitions/{name}/from={from}&transitions/{name}/to={to}"));
    }
    assert_eq!(author.post("/var/workflow/models/review", &form).status, 201);
    let models = author.get("/etc/workflow/models.json?format=id");
    assert_eq!(models[0]["value"], "/var/workflow/models/review");
    let start = "model=/var/workflow/models/review&payloadType=JCR_PATH&workflowTitle=Look";
    let started = author.post("/etc/workflow/instances", &format!("{start}&payload=/content/dam"));
    assert_eq!(started.status, 201, "{}", started.text());
    let address = started.header("location").unwrap().to_owned();
    let shown = author.get(&format!("{address}.json"));
    assert_eq!((&shown["state"], &shown["payload"]), (&json!("RUNNING"), &json!("/content/dam")));
    assert_eq!(shown["metaData"]["workflowTitle"], "Look");
    assert_eq!(author.get("/etc/workflow/instances.RUNNING.json"), json!([{ "uri": address }]));
    assert_eq!(author.post(&address, "state=SUSPENDED").status, 200);
    assert_eq!(author.get(&format!("{address}.json"))["state"], "SUSPENDED");
    assert_eq!(author.post(&address, "state=RUNNING").status, 200);
    let item = loop {
        let inbox = author.get("/bin/workflow/inbox");
        if let Some(item) = inbox.as_array().unwrap().first() {
            break item.clone();
        }
        std::thread::yield_now();
    };
    assert!(item["uri"].as_str().unwrap().starts_with(&format!("{address}/workItems/")));
    let form = format!("item={}&route={}", item["id"].as_str().unwrap(), "e");
    let done = author.post("/bin/workflow/inbox", &form);
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(author.get("/bin/workflow/inbox"), json!([]));
    let second = author.post("/etc/workflow/instances", &format!("{start}&payload=/content/dam"));
    let second = second.header("location").unwrap().to_owned();
    assert_eq!(author.post(&second, "state=ABORTED&terminateComment=no").status, 200);
    assert_eq!(author.get(&format!("{second}.json"))["state"], "ABORTED");
    for (form, status) in [
        ("model=/var/workflow/models/review", 400),
        ("model=/var/workflow/models/none&payload=/content", 409),
        ("model=/var/workflow/models/review&payload=/content/none", 404),
        ("model=/var/workflow/models/review&payload=/content&payloadType=URL", 501),
    ] {
        let answer = author.post("/etc/workflow/instances", form);
        assert_eq!(answer.status, status, "{form}: {}", answer.text());
    }
    // What is stored below the folder stays content.
    author.instance().edit(|session| {
        for at in ["/etc", "/etc/workflow", "/etc/workflow/models", "/etc/workflow/models/x"] {
            session.put_node(&path(at), folder()).unwrap();
        }
    });
    assert_eq!(author.get("/etc/workflow/models/x.json")["jcr:primaryType"], "sling:Folder");
}

#[tokio::test]
async fn no_form_and_no_upload_creates_a_node_where_services_are() {
    let (instance, _) = author().await;
    instance.edit(|session| {
        for at in ["/libs", "/libs/own", "/mnt"] {
            session.put_node(&path(at), folder()).unwrap();
        }
    });
    let before = instance.repository.head_root().unwrap();
    let (site, source) = ("/content/site/a", "/content/site/b/jcr:content");
    for top in ["/bin", "/libs", "/libs/own", "/system", "/mnt", "/crx"] {
        let at = format!("{top}/made");
        let (copy, moved) = (format!("{at}@CopyFrom"), format!("{at}@MoveFrom"));
        let (property, into) = (format!("{at}/a"), format!("{top}/"));
        let import = [
            (":operation", "import"),
            (":contentType", "json"),
            (":content", "{\"a\":1}"),
            (":name", "made"),
        ];
        let forms: Vec<(&str, Vec<(&str, &str)>)> = vec![
            (&at, vec![("a", "b")]),
            (&into, vec![("a", "b")]),
            (&at, import.to_vec()),
            (&into, import.to_vec()),
            (top, import.to_vec()),
            (site, vec![(&property, "b")]),
            (site, vec![(&copy, source)]),
            (site, vec![(&moved, source)]),
            (site, vec![(":operation", "copy"), (":dest", &at)]),
            (site, vec![(":operation", "move"), (":dest", &at)]),
            (site, vec![(":operation", "copy"), (":dest", &into)]),
            ("/content", vec![(":operation", "copy"), (":applyTo", site), (":dest", &into)]),
        ];
        for (address, form) in forms {
            let reply = instance.try_post(address, &form).await;
            assert_eq!(reply.status, 404, "{address} {form:?} {reply:?}");
        }
        let file: FormPart<'_> = ("./f", Some(("f.txt", "text/plain")), b"x");
        let target = format!("{at}/f");
        let absolute: FormPart<'_> = (&target, Some(("f.txt", "text/plain")), b"x");
        let part: FormPart<'_> = ("./f@Offset", None, b"0");
        let asset: FormPart<'_> = (":operation", None, b"createasset");
        for (address, parts) in [
            (at.as_str(), &[file][..]),
            (top, &[file]),
            (top, &[file, part]),
            (site, &[absolute]),
            (top, &[asset, file]),
        ] {
            let upload = instance.as_admin(Method::POST, address).multipart(parts).send().await;
            assert_eq!(upload.status, 404, "{address} {parts:?} {upload:?}");
        }
        assert_eq!(instance.as_admin(Method::PUT, &at).body("x").send().await.status, 404, "{at}");
    }
    assert_eq!(instance.repository.head_root().unwrap(), before, "something was written");
    // What exists can be changed and removed, and the JSON API creates what it names.
    instance.post("/libs/own", &[("a", "b")]).await;
    assert_eq!(instance.property("/libs/own", "a"), "String b");
    let put = instance.as_admin(Method::PUT, "/api/v1/nodes?path=/libs/own/made");
    assert_eq!(put.json(&json!({ "type": "nt:unstructured" })).send().await.status, 201);
    instance.post("/libs/own", &[(":operation", "delete")]).await;
}
