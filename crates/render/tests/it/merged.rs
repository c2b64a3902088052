//! Merged resources: `/mnt/overlay` and `/mnt/override`.

use serde_json::{Value as Json, json};
use tympan_content::{NodePath, Property, Subtree, Value};
use tympan_render::{RenderLimits, RenderMode, RenderOutcome, find_merged_node, is_merged_path};

use crate::site::{Site, body_text, texts};

fn author() -> Site {
    Site::with_limits(RenderMode::Author, RenderLimits::default())
}

fn node(text: &str) -> Subtree {
    let node = Subtree::new("", "nt:unstructured");
    if text.is_empty() { node } else { node.with_property("text", text) }
}

fn named(name: &str, text: &str) -> Subtree {
    Subtree { name: name.to_owned(), ..node(text) }
}

fn merged(site: &Site, path: &str) -> Json {
    let response = site.get(&format!("{path}.infinity.json"));
    if response.outcome == RenderOutcome::NotFound {
        return Json::Null;
    }
    let mut json = serde_json::from_str(&body_text(&response)).unwrap();
    remove_types(&mut json);
    json
}

fn remove_types(json: &mut Json) {
    if let Some(object) = json.as_object_mut() {
        object.remove("jcr:primaryType");
        object.values_mut().for_each(remove_types);
    }
}

/// The example of Sling's documentation.
fn overlaid(site: &Site) {
    let hide = Property::Single(Value::Boolean(true));
    site.put(
        "/libs/sling/example",
        node("")
            .with_property("sling:resourceType", "some/resource/type")
            .with_child(named("child1", "libs"))
            .with_child(named("child2", "libs"))
            .with_child(named("child3", "libs")),
    );
    site.put(
        "/apps/sling/example",
        node("apps")
            .with_child(named("child1", "").with_property("sling:hideResource", hide))
            .with_child(named("child2", "apps"))
            .with_child(named("child3", "").with_property("more", "apps")),
    );
}

#[test]
fn an_overlay_merges_the_search_paths() {
    let site = author();
    overlaid(&site);
    assert_eq!(
        merged(&site, "/mnt/overlay/sling/example"),
        json!({
            "sling:resourceType": "some/resource/type",
            "text": "apps",
            "child2": { "text": "apps" },
            "child3": { "text": "libs", "more": "apps" },
        })
    );
    assert_eq!(merged(&site, "/mnt/overlay/sling/example/child3")["text"], "libs");
    for absent in ["sling/example/child1", "sling/none", "", "../content"] {
        let url = format!("/mnt/overlay/{absent}.json");
        assert_ne!(site.get(&url).outcome, RenderOutcome::Ok, "{url}");
    }
    let visitors = Site::empty();
    overlaid(&visitors);
    assert_eq!(visitors.get("/mnt/overlay/sling/example.json").outcome, RenderOutcome::NotFound);
}

#[test]
fn what_an_ancestor_hides_is_hidden_below_it() {
    let site = author();
    site.put("/libs/a/b", node("").with_child(named("c", "libs")).with_child(named("d", "libs")));
    site.put(
        "/apps/a/b",
        node("")
            .with_property("sling:hideChildren", texts(&["!d", "*"]))
            .with_child(named("c", "")),
    );
    assert_eq!(merged(&site, "/mnt/overlay/a/b/d"), json!({ "text": "libs" }));
    assert_eq!(merged(&site, "/mnt/overlay/a/b/c"), json!({}));
    site.put("/apps/a/b", node("").with_property("sling:hideChildren", "d"));
    assert_eq!(merged(&site, "/mnt/overlay/a/b/d"), Json::Null);
    assert_eq!(merged(&site, "/mnt/overlay/a/b"), json!({ "c": { "text": "libs" } }));
}

#[test]
fn an_override_merges_along_the_super_types() {
    let site = author();
    let with_super_type = |super_type: &str, dialog: Subtree| {
        let component = Subtree::new("", "cq:Component");
        let component = component.with_property("sling:resourceSuperType", super_type);
        component.with_child(Subtree { name: "cq:dialog".to_owned(), ..dialog })
    };
    let base = node("libs").with_child(named("one", "libs")).with_child(named("two", "libs"));
    site.put("/libs/core/text", with_super_type("", base));
    let middle = node("").with_property("sling:hideChildren", "one").with_child(named("three", ""));
    site.put("/apps/site/text", with_super_type("core/text", middle));
    site.put("/apps/site/quote", with_super_type("/apps/site/text", node("own")));
    let expected = json!({ "text": "own", "two": { "text": "libs" }, "three": {} });
    assert_eq!(merged(&site, "/mnt/override/apps/site/quote/cq:dialog"), expected);
    assert_eq!(merged(&site, "/mnt/override/apps/site/quote/_cq_dialog"), expected);
    assert_eq!(merged(&site, "/mnt/override/apps/site/quote/cq:dialog/one"), Json::Null);
    // A component that has no part of its own shows that of its super type.
    let proxy = Subtree::new("", "cq:Component");
    site.put("/apps/site/proxy", proxy.with_property("sling:resourceSuperType", "site/text"));
    assert_eq!(merged(&site, "/mnt/override/apps/site/proxy/cq:dialog")["text"], "libs");
    // Super types that lead back to the component are followed once.
    site.put("/apps/loop/a", with_super_type("loop/b", named("", "a")));
    site.put("/apps/loop/b", with_super_type("loop/a", node("").with_property("more", "b")));
    assert_eq!(
        merged(&site, "/mnt/override/apps/loop/a/cq:dialog"),
        json!({ "text": "a", "more": "b" })
    );
}

#[test]
fn a_component_draws_a_merged_resource() {
    let site = author();
    overlaid(&site);
    site.script("/apps/some/resource/type/type.html", "<b>${properties.text}</b>");
    site.script(
        "/apps/test/holder/holder.html",
        "<sly data-sly-resource=\"/mnt/overlay/sling/example\"></sly>",
    );
    site.put("/content/holder", node("").with_property("sling:resourceType", "test/holder"));
    assert!(site.text("/content/holder.html").contains("<b>apps</b>"));
    assert!(site.text("/mnt/overlay/sling/example.html").contains("<b>apps</b>"));
}

#[test]
fn a_merge_has_limits() {
    let site = author();
    let large = (0..6000).fold(node(""), |mut large, number| {
        large.children.push(named(&format!("n{number}"), ""));
        large
    });
    site.put("/libs/large", large);
    let snapshot = site.repository.snapshot().unwrap();
    let path = NodePath::new("/mnt/overlay/large").unwrap();
    let error = find_merged_node(&snapshot, &path).unwrap_err().to_string();
    assert_eq!(error, "cannot merge `/libs/large`: it has more than 5,000 nodes or 8 MiB");
    assert_eq!(site.get("/mnt/overlay/large.json").outcome, RenderOutcome::NotFound);
    let long_chain = |number: usize| {
        let next = format!("/apps/chain/c{}", number + 1);
        node("").with_property("sling:resourceSuperType", next.as_str())
    };
    (0..100).for_each(|number| site.put(&format!("/apps/chain/c{number}"), long_chain(number)));
    assert!(merged(&site, "/mnt/override/apps/chain/c0").is_object());
}

#[test]
fn only_paths_below_the_two_roots_are_merged() {
    for (path, expected) in [
        ("/mnt/overlay/a", true),
        ("/mnt/override/apps/a", true),
        ("/mnt/overlay", false),
        ("/mnt/overlays/a", false),
        ("/mnt/a", false),
    ] {
        assert_eq!(is_merged_path(path), expected, "{path}");
    }
}
