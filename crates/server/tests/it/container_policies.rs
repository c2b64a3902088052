//! What may lie in a container holds for every program that writes: one line for each way of putting a component somewhere.

use serde_json::{Value, json};

use crate::blocking_instance::BlockingInstance;

const PAGE: &str = "/content/shop/jcr:content";
const ROOT: &str = "/content/shop/jcr:content/root";
const BOX: &str = "/content/shop/jcr:content/root/box";

fn node(kind: &str, properties: Value, children: Value) -> Value {
    Value::from_iter([("type", kind.into()), ("properties", properties), ("children", children)])
}

fn component(kind: &str) -> Value {
    node("nt:unstructured", json!({ "sling:resourceType": kind }), json!({}))
}

fn put(author: &BlockingInstance, path: &str, node: &Value) {
    author.done("PUT", &format!("/api/v1/nodes?path={path}"), node);
}

/// A page whose template allows boxes and texts at its root; boxes allow texts and the group of pictures.
fn shop() -> BlockingInstance {
    let author = BlockingInstance::author();
    let made = author.post("/apps", "./jcr:primaryType=sling:Folder");
    assert!(made.status < 300, "{}", made.text());
    let holds = |allowed: &[&str]| {
        let about = json!({ "cq:isContainer": true, "allowedChildren": allowed });
        node("cq:Component", about, json!({}))
    };
    let of_group =
        |group: &str| node("cq:Component", json!({ "componentGroup": group }), json!({}));
    let apps = json!({
        "box": holds(&["shop/text", "group:Pictures"]),
        "free": node("cq:Component", json!({ "cq:isContainer": true }), json!({})),
        // It says what may lie in it, and holds nothing.
        "card": node("cq:Component", json!({ "allowedChildren": ["shop/text"] }), json!({})),
        "text": of_group("Texts"),
        "form": of_group("Forms"),
        "photo": of_group("Pictures"),
        "page": of_group(".hidden"),
    });
    put(&author, "/apps/shop", &node("nt:unstructured", json!({}), apps));
    let allowed =
        json!(["shop/box", "shop/free", "shop/card", "shop/text", "/apps/shop/templates/.*"]);
    let template = node("cq:Template", json!({ "allowedChildren": allowed }), json!({}));
    put(
        &author,
        "/apps/shop/templates",
        &node("nt:unstructured", json!({}), json!({ "home": template })),
    );
    let boxed = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/box" }),
        json!({ "a": component("shop/text") }),
    );
    let free = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/free" }),
        json!({ "f": component("shop/form") }),
    );
    let root = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/free" }),
        json!({ "box": boxed, "free": free }),
    );
    let about = json!({ "cq:template": "/apps/shop/templates/home", "sling:resourceType": "shop/page", "jcr:title": "Shop" });
    let content = node("cq:PageContent", about, json!({ "root": root }));
    put(&author, "/content/shop", &node("cq:Page", json!({}), json!({ "jcr:content": content })));
    author
}

#[test]
fn forms_put_components_only_where_they_may_lie() {
    let author = shop();
    let check = |path: &str, form: &str, status: u16| {
        let form = form.split_whitespace().collect::<Vec<_>>().join("&");
        let answer = author.post(path, &form);
        assert_eq!(answer.status, status, "{path} {form}: {}", answer.text());
        answer.text()
    };
    let told = check(&format!("{BOX}/new"), "./sling:resourceType=shop/form", 422);
    for part in [
        "root/box/new",
        "`shop/form`",
        "root/box` (`shop/box`)",
        "/apps/shop/box/allowedChildren",
        "shop/text",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(
        author.status("admin", "GET", &format!("/api/v1/nodes?path={BOX}/new"), &Value::Null),
        404
    );
    check(&format!("{BOX}/"), ":name=b ./sling:resourceType=/apps/shop/text", 201);
    check(&format!("{BOX}/"), ":name=c ./sling:resourceType=shop/photo", 201);
    // Below the page's content its template decides, and what it says of templates is about other things.
    check(&format!("{ROOT}/"), ":name=d ./sling:resourceType=shop/form", 422);
    check(&format!("{ROOT}/"), ":name=d ./sling:resourceType=shop/text", 201);
    // What holds nothing decides nothing, nor does a page.
    check(
        &format!("{ROOT}/"),
        ":name=card ./sling:resourceType=shop/card ./x/sling:resourceType=shop/form",
        201,
    );
    check(PAGE, "./aside/sling:resourceType=shop/form", 200);
    // Another kind where one lay is another component.
    check(&format!("{BOX}/a"), "./sling:resourceType=shop/form", 422);
    check(&format!("{BOX}/a"), "./jcr:title=x ./sling:resourceType=shop/text", 200);
    // A container of another kind judges what lies in it.
    check(&format!("{ROOT}/free"), "./sling:resourceType=shop/box", 422);
    for operation in ["copy", "move"] {
        let from = format!("{ROOT}/free/f");
        check(&from, &format!(":operation={operation} :dest={BOX}/"), 422);
        check(&from, &format!(":operation={operation} :dest={ROOT}/f"), 422);
        let hint = if operation == "move" { "MoveFrom" } else { "CopyFrom" };
        check(BOX, &format!("./f@{hint}=../free/f"), 422);
        check(&format!("{ROOT}/free"), &format!("./{operation}@{hint}=../box/b"), 200);
    }
    let json = r#"{"sling:resourceType":"shop/form"}"#;
    let import = format!(":operation=import :contentType=json :name=i :content={json}");
    check(BOX, &import, 422);
    check(&format!("{ROOT}/free"), &import, 201);
}

#[test]
fn a_batch_is_judged_by_where_things_lie_in_the_end() {
    let author = shop();
    let batch = |operations: Value, status: u16| {
        let body = json!({ "operations": operations });
        let answer = author.ask("admin", "POST", "/api/v1/batch", &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        answer
    };
    let put =
        |path: &str, kind: &str| json!({ "op": "put", "path": path, "node": component(kind) });
    let relocate = |op: &str, from: &str, to: &str| json!({ "op": op, "from": from, "to": to });
    let (there, here) = (format!("{ROOT}/free/n"), format!("{BOX}/n"));
    let told = batch(json!([put(&there, "shop/text"), put(&here, "shop/form")]), 422);
    let problem: Value = told.json();
    assert_eq!(problem["operation"], 1, "{problem}");
    assert_eq!(problem["component"], "shop/form");
    assert_eq!(problem["container"], BOX);
    assert_eq!(problem["rule"], "/apps/shop/box/allowedChildren");
    assert!(told.detail().contains("is not allowed in"), "{problem}");
    // It may lie there and is moved or copied where it may not.
    for op in ["move", "copy"] {
        let told = batch(json!([put(&there, "shop/form"), relocate(op, &there, &here)]), 422);
        let problem: Value = told.json();
        assert_eq!(problem["operation"], 1, "{problem}");
    }
    // It may not lie there, and does not stay.
    batch(json!([put(&here, "shop/form"), relocate("move", &here, &there)]), 200);
    let gone = json!({ "op": "delete", "path": there });
    batch(json!([gone, put(&here, "shop/form"), { "op": "delete", "path": here }]), 200);
    batch(json!([put(&here, "shop/form"), relocate("copy", &here, &there)]), 422);
    // Its container moves along, to where what lies in it is judged by others.
    let inner = format!("{ROOT}/free/inner");
    let of_free = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/free" }),
        json!({ "x": component("shop/form") }),
    );
    let free = json!({ "op": "put", "path": inner, "node": of_free });
    let beside = format!("{PAGE}/beside");
    batch(json!([free, relocate("move", &inner, &beside)]), 422);
    let kinds = json!({ "op": "patch", "path": format!("{beside}/x"), "patch": { "properties": { "sling:resourceType": "shop/text" } } });
    batch(json!([free, relocate("move", &inner, &beside), kinds]), 200);
    // Another name is no other place.
    batch(json!([relocate("move", &format!("{BOX}/a"), &format!("{BOX}/z"))]), 200);
}

#[test]
fn what_lay_somewhere_before_stays_editable() {
    let author = shop();
    let strict = json!({ "properties": { "allowedChildren": ["shop/photo"] } });
    author.done("PATCH", "/api/v1/nodes?path=/apps/shop/box", &strict);
    let text = format!("{BOX}/a");
    let form = "./sling:resourceType=shop/text&./text=still";
    let answer = author.post(&text, form);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let same = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/box", "a": "b" }),
        json!({ "a": component("shop/text") }),
    );
    put(&author, BOX, &same);
    let renamed = format!(":operation=move&:dest={BOX}/renamed");
    assert_eq!(author.post(&text, &renamed).status, 200);
    let answer = author.post(&format!("{BOX}/b"), form);
    assert_eq!(answer.status, 422, "{}", answer.text());
    // A page is copied whole, as it is.
    let copied = author.post("/content/shop", ":operation=copy&:dest=/content/shop2");
    assert!(copied.status < 300, "{}", copied.text());
}

#[test]
fn policies_of_editable_templates_hold_for_the_editor_and_every_writer() {
    let author = shop();
    let plain = |children: Value| node("nt:unstructured", json!({}), children);
    let mapping = |policy: &str, children: Value| {
        let about = json!({
            "sling:resourceType": "wcm/core/components/policies/mapping",
            "cq:policy": policy,
        });
        node("nt:unstructured", about, children)
    };
    let policy =
        |components: Value| node("nt:unstructured", json!({ "components": components }), json!({}));
    // Boxes that authors add to the root have a policy of their own; other containers have none.
    let of_type = plain(json!({ "box": mapping("shop/box/narrow", json!({})) }));
    let root = mapping("shop/free/wide", json!({ "shop": of_type }));
    let mappings = node("nt:unstructured", json!({}), json!({ "root": root }));
    let policies = node("cq:Page", json!({}), json!({ "jcr:content": mappings }));
    let allowed = json!({ "allowedPaths": ["/content/.*"] });
    let template = node("cq:Template", allowed, json!({ "policies": policies }));
    let wide = policy(json!(["group:Pictures", "/apps/shop/box", "/apps/shop/free"]));
    let lists = json!({
        "free": plain(json!({ "wide": wide })),
        "box": plain(json!({ "narrow": policy(json!("/apps/shop/form")) })),
    });
    let settings = json!({ "wcm": plain(json!({
        "templates": plain(json!({ "menu": template })),
        "policies": plain(json!({ "shop": plain(lists) })),
    })) });
    let conf = plain(json!({ "shop": plain(json!({ "settings": plain(settings) })) }));
    put(&author, "/conf", &conf);
    let root = node(
        "nt:unstructured",
        json!({ "sling:resourceType": "shop/free" }),
        json!({ "box": component("shop/box"), "free": component("shop/free") }),
    );
    let about = json!({ "cq:template": "/conf/shop/settings/wcm/templates/menu" });
    let content = node("cq:PageContent", about, json!({ "root": root }));
    put(&author, "/content/menu", &node("cq:Page", json!({}), json!({ "jcr:content": content })));
    let root = "/content/menu/jcr:content/root";
    let rules = "/conf/shop/settings/wcm/policies/shop";
    for (place, kind, refused_by) in [
        ("", "shop/photo", None),
        ("", "shop/text", Some(format!("`{rules}/free/wide/components`"))),
        // The policy goes before what the component says.
        ("/box", "shop/form", None),
        (
            "/box",
            "shop/text",
            Some(format!("`{rules}/box/narrow/components` allows /apps/shop/form")),
        ),
        (
            "/free",
            "shop/photo",
            Some("/menu/policies/jcr:content/cq:policy` allows nothing".to_owned()),
        ),
    ] {
        let form = format!("./sling:resourceType={kind}");
        let answer = author.post(&format!("{root}{place}/new"), &form);
        match refused_by {
            None => assert_eq!(answer.status, 201, "{place} {kind}: {}", answer.text()),
            Some(rule) => {
                assert_eq!(answer.status, 422, "{place} {kind}: {}", answer.text());
                assert!(answer.text().contains(&rule), "{}", answer.text());
            }
        }
    }
    let page = author.ask("admin", "GET", "/api/v1/page?path=/content/menu", &Value::Null);
    let page: Value = page.json();
    let mut shown: Vec<(String, Value)> = Vec::new();
    collect_allowed(&page, &mut shown);
    for (place, allowed) in [
        ("", json!(["shop/box", "shop/free", "shop/photo"])),
        ("/box", json!(["shop/form"])),
        ("/free", json!([])),
    ] {
        let place = format!("{root}{place}");
        let found = shown.iter().find(|(path, _)| *path == place);
        let mut found = found.unwrap_or_else(|| panic!("no {place} in {page}")).1.clone();
        if let Some(list) = found.as_array_mut() {
            list.sort_by_key(ToString::to_string);
        }
        assert_eq!(found, allowed, "{place}");
    }
}

/// Collects what the editor is told about each component of a page.
fn collect_allowed(value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(members) => {
            if let (Some(Value::String(path)), Some(allowed)) =
                (members.get("path"), members.get("allowed"))
            {
                found.push((path.clone(), allowed.clone()));
            }
            members.values().for_each(|inner| collect_allowed(inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| collect_allowed(inner, found)),
        _ => {}
    }
}
