//! Dialogs of the Core Components: every type of field is known, options come without AEM's servlets, and fields are
//! shown as the scripts of AEM's editor show them.

use std::collections::BTreeMap;

use http::Method;
use serde_json::{Value as Json, json};
use tympan_content::{LookupIndex, Node, Subtree};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::support::{TestInstance, path};

/// The packages with dialogs, in the order of installation.
const PACKAGES: [&str; 3] = [
    "core.wcm.components.content-2.29.0.zip",
    "core.wcm.components.examples.ui.apps-2.26.0.zip",
    "core.wcm.components.examples.ui.content-2.26.0.zip",
];
/// The resource types of the dialogs with the number of their uses.
const DIALOG_TYPES: &str = include_str!("aem_dialog_types.txt");
/// The page that the tests add components to; its template has the policies of the example library.
const PAGE: &str = "/content/core-components-examples/library/core-content/title";

async fn author() -> Option<TestInstance> {
    let folder = fixture_folder("packages")?;
    let author = TestInstance::author().await;
    for package in PACKAGES {
        let request = author.as_admin(Method::POST, "/api/v1/packages?install=true");
        let body = std::fs::read(folder.join(package)).unwrap();
        let reply = request.header("content-type", "application/zip").body(body).send().await;
        assert!(reply.status.is_success(), "{reply:?}");
    }
    Some(author)
}

/// Adds a component to the content of the page and describes its dialog.
async fn dialog(author: &TestInstance, resource_type: &str, node: Subtree) -> Json {
    let at = format!("{PAGE}/jcr:content/dialog-test");
    author.edit(|session| {
        let node = node.with_property("sling:resourceType", resource_type);
        session.put_node(&path(&at), node).unwrap();
    });
    let reply = author.get(&format!("/api/v1/dialog?path={at}")).await;
    assert!(reply.status.is_success(), "{resource_type}: {reply:?}");
    reply.json()
}

/// Stores a tree, with folders above it.
fn put_tree(author: &TestInstance, at: &str, tree: Subtree) {
    author.edit(|session| {
        let mut names = at.split('/').skip(1).collect::<Vec<_>>();
        names.pop();
        let mut above = String::new();
        for name in names {
            above = format!("{above}/{name}");
            if session.node(&path(&above)).unwrap().is_none() {
                let folder = Subtree::new(name, "nt:unstructured");
                session.put_node(&path(&above), folder).unwrap();
            }
        }
        session.put_node(&path(at), tree).unwrap();
    });
}

/// Makes a policy that of the component which the tests add.
fn set_policy(author: &TestInstance, name: &str, policy: Subtree) {
    let settings = "/conf/core-components-examples/settings/wcm";
    put_tree(author, &format!("{settings}/policies/test/{name}"), policy);
    let mapping = Subtree::new("dialog-test", "nt:unstructured")
        .with_property("sling:resourceType", "wcm/core/components/policies/mapping")
        .with_property("cq:policy", format!("test/{name}").as_str());
    let mappings = format!("{settings}/templates/content-page/policies/jcr:content");
    put_tree(author, &format!("{mappings}/dialog-test"), mapping);
}

fn node() -> Subtree {
    Subtree::new("dialog-test", "nt:unstructured")
}

fn fields(dialog: &Json) -> Vec<&Json> {
    let tabs = dialog["tabs"].as_array().unwrap();
    tabs.iter().flat_map(|tab| tab["fields"].as_array().unwrap()).collect()
}

fn field<'a>(dialog: &'a Json, name: &str) -> &'a Json {
    let found = fields(dialog).into_iter().find(|field| field["name"] == name);
    found.unwrap_or_else(|| panic!("no field `{name}` in {dialog:#}"))
}

/// Counts the resource types below a node.
fn count_types(node: &Node, counts: &mut BTreeMap<String, usize>) {
    if let Some(kind) = node.text("sling:resourceType") {
        *counts.entry(kind).or_default() += 1;
    }
    for child in node.children().unwrap() {
        count_types(&child, counts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_type_in_a_dialog_of_the_packages_is_counted_and_known() {
    let Some(author) = author().await else { return };
    let snapshot = author.repository.snapshot().unwrap();
    let mut counts = BTreeMap::new();
    let mut components = Vec::new();
    for component in snapshot.look_up_paths(LookupIndex::Type, "cq:Component").unwrap() {
        let node = snapshot.node(&component).unwrap().unwrap();
        for name in ["cq:dialog", "cq:design_dialog"] {
            if let Some(dialog) = node.child(name).unwrap() {
                count_types(&dialog, &mut counts);
                components.push((component.as_str().trim_start_matches("/apps/").to_owned(), name));
            }
        }
    }
    let listed: String =
        counts.iter().map(|(kind, count)| format!("{count:>4} {kind}\n")).collect();
    assert_eq!(listed, DIALOG_TYPES, "the list of `aem_dialog_types.txt` changed");

    for (component, name) in components {
        let described = match name {
            "cq:dialog" => dialog(&author, &component, node()).await,
            _ => {
                let at = format!("/conf/test/settings/wcm/policies/{component}/policy");
                let policy = Subtree::new("policy", "nt:unstructured")
                    .with_property("sling:resourceType", "wcm/core/components/policy/policy");
                put_tree(&author, &at, policy);
                author.get(&format!("/api/v1/dialog?path={at}")).await.json()
            }
        };
        assert_eq!(described["hasDialog"], true, "{component} {name}");
        assert_eq!(described["unknown"], json!([]), "{component} {name}");
        // Every field has a place in the layout of its tab.
        for tab in described["tabs"].as_array().unwrap() {
            let layout = tab["items"].to_string();
            for field in tab["fields"].as_array().unwrap() {
                let place = format!("\"name\":{}", field["name"]);
                assert!(layout.contains(&place), "{component} {name}: {place} in {layout}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_say_what_aem_stores() {
    let Some(author) = author().await else { return };
    let teaser = dialog(&author, "core/wcm/components/teaser/v2/teaser", node()).await;
    let title = field(&teaser, "titleFromPage");
    let stored =
        (&title["checkedValue"], &title["uncheckedValue"], &title["typeHint"], &title["value"]);
    assert_eq!(stored, (&json!("true"), &json!("false"), &json!("String"), &json!("true")));
    let target = field(&teaser, "linkTarget");
    assert_eq!(
        (&target["checkedValue"], &target["uncheckedValue"]),
        (&json!("_blank"), &json!("_self"))
    );
    let actions = field(&teaser, "actions");
    assert_eq!(actions["kind"], "multi");
    let names: Vec<&str> = actions["field"]["fields"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|field| field["name"].as_str())
        .collect();
    assert_eq!(names, ["link", "linkTarget", "text"]);
    assert_eq!(field(&teaser, "linkURL")["root"], "/content");
    let file = field(&teaser, "fileReference");
    assert_eq!(
        (&file["picks"], &file["file"], &file["fileName"]),
        (&json!("asset"), &json!("file"), &json!("fileName"))
    );
    assert_eq!(field(&teaser, "jcr:description")["features"]["format"], json!(["bold", "italic"]));
    // A component that a dialog has saved does not take over marks of boxes.
    let saved = node().with_property("jcr:lastModified", "2026-01-01T00:00:00.000Z");
    let teaser = dialog(&author, "core/wcm/components/teaser/v2/teaser", saved).await;
    assert_eq!(field(&teaser, "titleFromPage").get("value"), Some(&Json::Null));

    let list = dialog(&author, "core/wcm/components/list/v4/list", node()).await;
    // A select without an empty option stores its first one.
    assert_eq!(
        (&field(&list, "listFrom")["value"], &field(&list, "listFrom")["hasEmptyOption"]),
        (&json!("children"), &json!(false))
    );
    assert_eq!(field(&list, "orderBy")["hasEmptyOption"], true);
    let tags = field(&list, "tags");
    assert_eq!(
        (&tags["kind"], &tags["field"]["picks"], &tags["typeHint"]),
        (&json!("multi"), &json!("tag"), &json!("String[]"))
    );
    let depth = field(&list, "childDepth");
    assert_eq!(
        (&depth["min"], &depth["max"], &depth["step"], &depth["value"], &depth["typeHint"]),
        (&json!("1"), &json!("100"), &json!("1"), &json!("1"), &json!("String"))
    );

    let page = dialog(&author, "core/wcm/components/page/v3/page", node()).await;
    assert_eq!(field(&page, "cq:tags")["kind"], "multi");
    assert_eq!(field(&page, "onTime")["typeHint"], "Date");
    assert_eq!(
        field(&page, "brandSlug")["enabled"],
        json!({ "field": "brandSlug_override", "in": ["true"] })
    );
    assert_eq!(
        field(&page, "cq:featuredimage/fileReference")["fileName"],
        "cq:featuredimage/fileName"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn data_sources_have_their_options() {
    let Some(author) = author().await else { return };
    let policy = |name: &str, properties: &[(&str, &[&str])]| {
        let mut policy = Subtree::new("policy", "nt:unstructured")
            .with_property("sling:resourceType", "wcm/core/components/policy/policy");
        for (name, texts) in properties {
            let list = tympan_content::Property::parse_list(
                tympan_content::ValueType::String,
                texts.iter().copied(),
            );
            policy = policy.with_property(*name, list.unwrap());
        }
        set_policy(&author, name, policy);
    };
    let options = |dialog: &Json, name: &str| -> Vec<String> {
        let field = field(dialog, name);
        let list =
            field.get("options").or(field.get("suggestions")).and_then(Json::as_array).unwrap();
        list.iter().map(|option| option["value"].as_str().unwrap().to_owned()).collect()
    };

    policy("headings", &[("allowedHeadingElements", &["h2", "h3"])]);
    let accordion = dialog(&author, "core/wcm/components/accordion/v1/accordion", node()).await;
    assert_eq!(options(&accordion, "headingElement"), ["h2", "h3"]);

    policy("types", &[("allowedTypes", &["h4", "h5"])]);
    let title = dialog(&author, "core/wcm/components/title/v3/title", node()).await;
    assert_eq!(options(&title, "type"), ["h4", "h5"]);
    // Without a policy all headings, with one heading no choice.
    policy("types", &[]);
    let title = dialog(&author, "core/wcm/components/title/v3/title", node()).await;
    assert_eq!(options(&title, "type").len(), 6);
    policy("types", &[("allowedTypes", &["h4"])]);
    let title = dialog(&author, "core/wcm/components/title/v3/title", node()).await;
    assert!(fields(&title).iter().all(|field| field["name"] != "type"), "{title:#}");

    let youtube = "core/wcm/components/embed/v1/embed/embeddable/youtube";
    policy("embed", &[("allowedEmbeddables", &[youtube])]);
    let embed = dialog(&author, "core/wcm/components/embed/v2/embed", node()).await;
    assert_eq!(options(&embed, "embeddableResourceType"), [youtube]);
    let video = field(&embed, "youtubeVideoId")["visible"].to_string();
    assert!(video.contains(r#"{"field":"type","in":["embeddable"]}"#), "{video}");
    assert!(
        video.contains(&format!(r#"{{"field":"embeddableResourceType","in":["{youtube}"]}}"#)),
        "{video}"
    );

    let form = dialog(&author, "core/wcm/components/form/container/v2/container", node()).await;
    let action = "core/wcm/components/form/actions/rpc";
    assert_eq!(options(&form, "actionType"), [action]);
    for name in ["externalServiceEndPointUrl", "redirect"] {
        assert_eq!(field(&form, name)["visible"]["in"], json!([action]), "{name}");
    }

    let model = "/conf/test/settings/dam/cfm/models/article";
    {
        let element = |name: &str, title: &str| {
            Subtree::new(name, "nt:unstructured")
                .with_property("name", name)
                .with_property("fieldLabel", title)
        };
        let items = Subtree::new("items", "nt:unstructured")
            .with_child(element("headline", "Headline"))
            .with_child(element("body", "Body"));
        let below = ["content", "cq:dialog", "model"]
            .iter()
            .fold(items, |inner, name| Subtree::new(*name, "nt:unstructured").with_child(inner));
        let content = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("jcr:title", "Article")
            .with_child(below);
        put_tree(&author, model, Subtree::new("article", "cq:Template").with_child(content));
        let data = Subtree::new("data", "nt:unstructured")
            .with_property("cq:model", model)
            .with_child(Subtree::new("master", "nt:unstructured"))
            .with_child(
                Subtree::new("short", "nt:unstructured").with_property("jcr:title", "Short"),
            );
        let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(data);
        put_tree(
            &author,
            "/content/dam/story",
            Subtree::new("story", "dam:Asset").with_child(content),
        );
    }
    let stored = node().with_property("fragmentPath", "/content/dam/story");
    let fragment =
        dialog(&author, "core/wcm/components/contentfragment/v1/contentfragment", stored).await;
    let elements = &field(&fragment, "elementNames")["field"]["options"];
    assert_eq!(elements[0], json!({ "value": "headline", "text": "Headline" }));
    assert_eq!(options(&fragment, "variationName"), ["master", "short"]);
    let stored = node().with_property("modelPath", model);
    let list =
        dialog(&author, "core/wcm/components/contentfragmentlist/v2/contentfragmentlist", stored)
            .await;
    assert!(options(&list, "modelPath").contains(&model.to_owned()), "{list:#}");
    assert!(options(&list, "orderBy").iter().any(|order| order.contains("headline")), "{list:#}");

    policy(
        "colors",
        &[("allowedColorSwatches", &["#ff0000"]), ("backgroundColorEnabled", &["true"])],
    );
    let container = dialog(&author, "core/wcm/components/container/v1/container", node()).await;
    assert_eq!(options(&container, "backgroundColor"), ["#ff0000"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn panels_of_a_container_are_chosen_and_titled() {
    let Some(author) = author().await else { return };
    let panel = |name: &str, title: &str| {
        Subtree::new(name, "nt:unstructured")
            .with_property("sling:resourceType", "core/wcm/components/text/v2/text")
            .with_property("cq:panelTitle", title)
    };
    let tabs = node().with_child(panel("one", "First")).with_child(panel("two", "Second"));
    let tabs = dialog(&author, "core/wcm/components/tabs/v1/tabs", tabs).await;
    let expected =
        json!([{ "value": "one", "text": "First" }, { "value": "two", "text": "Second" }]);
    assert_eq!(field(&tabs, "activeItem")["options"], expected);
    let panels = node().with_child(panel("one", "First")).with_child(panel("two", "Second"));
    let panels =
        dialog(&author, "core/wcm/components/panelcontainer/v1/panelcontainer", panels).await;
    assert_eq!(panels["values"]["two/cq:panelTitle"], "Second");
    assert_eq!(field(&panels, "two/cq:panelTitle")["kind"], "text");
}

#[tokio::test(flavor = "multi_thread")]
async fn styles_of_the_policy_are_offered() {
    let Some(author) = author().await else { return };
    let unstructured = |name: &str| Subtree::new(name, "nt:unstructured");
    let style = unstructured("item0")
        .with_property("cq:styleId", "1")
        .with_property("cq:styleLabel", "Main");
    let group = unstructured("item0")
        .with_property("cq:styleGroupLabel", "Area")
        .with_child(unstructured("cq:styles").with_child(style));
    let groups = unstructured("cq:styleGroups").with_child(group);
    set_policy(&author, "styles", unstructured("styles").with_child(groups));
    let dialog = dialog(&author, "core/wcm/components/text/v2/text", node()).await;
    let expected = json!([{
        "label": "Area", "multiple": false, "options": [{ "value": "1", "text": "Main" }],
    }]);
    assert_eq!(field(&dialog, "cq:styleIds")["groups"], expected);
    assert_eq!(dialog["tabs"].as_array().unwrap().last().unwrap()["title"], "Styles");
}
