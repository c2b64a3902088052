//! Dialogs of components that extend others, as the editor reads them.

use http::{Method, StatusCode};
use serde_json::{Value as Json, json};
use tympan_content::{Property, Subtree, Value, ValueType};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::support::{TestInstance, path};

const FORM: &str = "granite/ui/components/coral/foundation/form";

fn node(name: &str) -> Subtree {
    Subtree::new(name, "nt:unstructured")
}

fn items(fields: Vec<Subtree>) -> Subtree {
    fields.into_iter().fold(node("items"), Subtree::with_child)
}

fn field(name: &str) -> Subtree {
    node(name)
        .with_property("sling:resourceType", format!("{FORM}/textfield").as_str())
        .with_property("name", format!("./{name}").as_str())
        .with_property("fieldLabel", name)
}

fn tab(name: &str, fields: Vec<Subtree>) -> Subtree {
    node(name).with_property("jcr:title", name).with_child(items(fields))
}

fn dialog(tabs: Subtree) -> Subtree {
    let tabs = Subtree { name: "tabs".to_owned(), ..tabs };
    let tabs =
        tabs.with_property("sling:resourceType", "granite/ui/components/coral/foundation/tabs");
    node("cq:dialog").with_child(node("content").with_child(items(vec![tabs])))
}

fn component(super_type: &str) -> Subtree {
    Subtree::new("", "cq:Component").with_property("sling:resourceSuperType", super_type)
}

fn texts(texts: &[&str]) -> Property {
    Property::List(
        ValueType::String,
        texts.iter().map(|text| Value::String((*text).to_owned())).collect(),
    )
}

/// Starts an author with a component, one that extends it, and a resource of each.
async fn author_with(parent: Subtree, child: Subtree) -> TestInstance {
    let author = TestInstance::author().await;
    author.edit(|session| {
        for folder in ["/apps", "/apps/kit"] {
            session.put_node(&path(folder), Subtree::new("", "sling:Folder")).unwrap();
        }
        session.put_node(&path("/apps/kit/parent"), parent).unwrap();
        session.put_node(&path("/apps/kit/child"), child).unwrap();
        let resources = ["parent", "child"].map(|name| {
            node(name).with_property("sling:resourceType", format!("kit/{name}").as_str())
        });
        let folder = Subtree::new("", "sling:Folder");
        session.put_node(&path("/content/kit"), folder).unwrap();
        for resource in resources {
            let at = path(&format!("/content/kit/{}", resource.name));
            session.put_node(&at, resource).unwrap();
        }
    });
    author
}

/// Returns the tabs of a dialog as `tab: field, field`.
fn outline(dialog: &Json) -> Vec<String> {
    let tabs = dialog["tabs"].as_array().unwrap().iter();
    tabs.map(|tab| {
        let fields = tab["fields"].as_array().unwrap().iter();
        let fields: Vec<&str> = fields.map(|field| field["label"].as_str().unwrap()).collect();
        format!("{}: {}", tab["title"].as_str().unwrap(), fields.join(", "))
    })
    .collect()
}

async fn outline_of(author: &TestInstance, resource: &str) -> Vec<String> {
    outline(&author.get(&format!("/api/v1/dialog?path={resource}")).await.json())
}

#[tokio::test]
async fn a_component_opens_the_dialog_of_its_parent_with_its_own_changes() {
    let parent = component("").with_child(dialog(node("").with_child(items(vec![
        tab("basic", vec![field("title"), field("text"), field("id")]),
        tab("expert", vec![field("code")]),
    ]))));
    let own_basic = tab("basic", vec![field("text").with_property("fieldLabel", "Words")]);
    let mut own_items = own_basic.child("items").unwrap().clone();
    own_items = own_items.with_property("sling:hideChildren", texts(&["id"]));
    let own_basic = own_basic.with_child(own_items);
    let first = tab("first", vec![field("more")]).with_property("sling:orderBefore", "basic");
    let own_tabs = items(vec![own_basic, first]).with_property("sling:hideChildren", "expert");
    let child = component("kit/parent").with_child(dialog(node("").with_child(own_tabs)));
    let author = author_with(parent, child).await;
    assert_eq!(
        outline_of(&author, "/content/kit/parent").await,
        ["basic: title, text, id", "expert: code"]
    );
    assert_eq!(
        outline_of(&author, "/content/kit/child").await,
        ["first: more", "basic: title, Words"]
    );
}

#[tokio::test]
async fn what_a_dialog_includes_and_hides_depends_on_the_resource_and_the_user() {
    let hidden =
        |name: &str, expression: &str| field(name).with_property("granite:hide", expression);
    let on_condition = |name: &str, condition: Subtree| {
        field(name).with_child(Subtree { name: "granite:rendercondition".to_owned(), ..condition })
    };
    let condition = |kind: &str| {
        let folder = "granite/ui/components/coral/foundation/renderconditions";
        node(kind).with_property("sling:resourceType", format!("{folder}/{kind}").as_str())
    };
    let simple = |expression: &str| condition("simple").with_property("expression", expression);
    let may_write = condition("privilege")
        .with_property("path", "${requestPathInfo.suffix}")
        .with_property("privileges", texts(&["jcr:removeNode"]));
    let negated = Subtree { name: "operand".to_owned(), ..may_write.clone() };
    let include = |name: &str, path: &str| {
        node(name)
            .with_property("sling:resourceType", "granite/ui/components/coral/foundation/include")
            .with_property("path", path)
    };
    let fields = vec![
        hidden("never", "${true}"),
        hidden("unstyled", "${!cqDesign.colors}"),
        hidden("agent", "${header['User-Agent'] == 'x'}"),
        on_condition("yes", simple("${1 < 2}")),
        on_condition("no", simple("${1 > 2}")),
        on_condition("writers", may_write.clone()),
        on_condition("readers", condition("not").with_child(negated)),
        on_condition("either", condition("or").with_child(simple("false")).with_child(may_write)),
        on_condition("unknown", node("").with_property("sling:resourceType", "kit/condition")),
        include("first", "/apps/kit/shared"),
        include("second", "/mnt/overlay/kit/overlaid"),
        include("third", "kit/relative"),
        include("lost", "/apps/kit/lost"),
        include("endless", "/apps/kit/endless"),
    ];
    let parent =
        component("").with_child(dialog(node("").with_child(items(vec![tab("all", fields)]))));
    let author = author_with(parent, component("kit/parent")).await;
    author.edit(|session| {
        for name in ["shared", "overlaid", "relative"] {
            session.put_node(&path(&format!("/apps/kit/{name}")), field(name)).unwrap();
        }
        let endless = include("", "/apps/kit/endless");
        session.put_node(&path("/apps/kit/endless"), endless).unwrap();
    });
    let all = |who: &str| format!("all: agent, yes, {who}, unknown, shared, overlaid, relative");
    assert_eq!(outline_of(&author, "/content/kit/child").await, [all("writers, either")]);

    let token = author.user("reader", &["content-authors"]).await;
    let deny = json!({ "allow": false, "principal": "reader", "privileges": ["jcr:removeNode"] });
    let request = author.as_admin(Method::POST, "/api/v1/permissions?path=/content/kit");
    assert!(request.json(&deny).send().await.status.is_success());
    let request = author.request(Method::GET, "/api/v1/dialog?path=/content/kit/child");
    let reply = request.bearer(&token).send().await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    assert_eq!(outline(&reply.json()), [all("readers")]);
}

#[tokio::test]
async fn a_merged_resource_shows_only_what_its_reader_may_read_and_takes_no_changes() {
    let parent = component("").with_child(dialog(
        node("").with_child(items(vec![tab("basic", vec![field("open"), field("secret")])])),
    ));
    let author = author_with(parent, component("kit/parent")).await;
    let token = author.user("reader", &["content-authors"]).await;
    let deny = json!({
        "allow": false, "principal": "reader", "privileges": ["jcr:read"],
        "restrictions": { "rep:itemNames": ["secret"] },
    });
    let request = author.as_admin(Method::POST, "/api/v1/permissions?path=/apps/kit");
    assert!(request.json(&deny).send().await.status.is_success());
    let fields = "content/items/tabs/items/basic/items";
    let merged = format!("/mnt/override/apps/kit/child/cq:dialog/{fields}");
    for (name, for_admin, for_reader) in [("open", 200, 200), ("secret", 200, 404)] {
        for target in
            [format!("{merged}/{name}.json"), format!("/api/v1/nodes?path={merged}/{name}")]
        {
            assert_eq!(author.get(&target).await.status, for_admin, "{target}");
            let request = author.request(Method::GET, &target).bearer(&token);
            assert_eq!(request.send().await.status, for_reader, "{target}");
        }
    }
    let whole = format!("/api/v1/nodes?path={merged}&depth=2");
    let request = author.request(Method::GET, &whole).bearer(&token);
    assert!(!request.send().await.text().contains("secret"));
    let request = author.request(Method::GET, "/api/v1/dialog?path=/content/kit/child");
    assert_eq!(outline(&request.bearer(&token).send().await.json()), ["basic: open"]);

    let before = author.snapshot().root_id();
    let reply = author.try_post(&merged, &[("text", "changed")]).await;
    assert_eq!(reply.status, StatusCode::NOT_FOUND);
    let put = author.as_admin(Method::PUT, &merged).json(&json!({}));
    assert_eq!(put.send().await.status, StatusCode::NOT_FOUND);
    assert_eq!(author.snapshot().root_id(), before);
}

#[tokio::test]
async fn pages_of_the_core_components_have_the_page_properties_that_they_include() {
    let Some(folder) = fixture_folder("packages") else { return };
    let author = TestInstance::author().await;
    let package = std::fs::read(folder.join("core.wcm.components.content-2.29.0.zip")).unwrap();
    let request = author.as_admin(Method::POST, "/api/v1/packages?install=true");
    assert!(
        request
            .header("content-type", "application/zip")
            .body(package)
            .send()
            .await
            .status
            .is_success()
    );
    author.edit(|session| {
        session.put_node(&path("/apps/kit"), Subtree::new("", "sling:Folder")).unwrap();
        for (name, super_type) in [
            ("page", "core/wcm/components/page/v3/page"),
            ("text", "core/wcm/components/text/v2/text"),
        ] {
            session.put_node(&path(&format!("/apps/kit/{name}")), component(super_type)).unwrap();
        }
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("sling:resourceType", "kit/page")
            .with_child(node("text").with_property("sling:resourceType", "kit/text"));
        let page = Subtree::new("", "cq:Page").with_child(content);
        session.put_node(&path("/content/kit"), page).unwrap();
    });
    let page = outline_of(&author, "/content/kit/jcr:content").await.join("\n");
    for part in
        ["Basic: Title, Tags", "Page title", "On time", "Vanity URL", "ID", "Advanced: Language"]
    {
        assert!(page.contains(part), "no `{part}` in\n{page}");
    }
    let text = outline_of(&author, "/content/kit/jcr:content/text").await;
    assert!(text.iter().any(|tab| tab.contains("ID")), "{text:?}");
}
