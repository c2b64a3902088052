//! The default JSON output.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use serde_json::{Value as Json, json};
use tympan_content::{Property, Subtree, Value, ValueType};
use tympan_render::{RenderMode, RenderOutcome};

use crate::site::{Site, body_text, date};

fn get(site: &Site, url: &str) -> Json {
    let response = site.get(url);
    assert_eq!(response.outcome, RenderOutcome::Ok, "{url}");
    assert_eq!(response.content_type, "application/json; charset=utf-8");
    serde_json::from_str(&body_text(&response)).unwrap()
}

/// Makes a node with every type of value, and two levels below it.
fn typed() -> Site {
    let site = Site::empty();
    let blob = site.repository.blobs().put(&mut std::io::Cursor::new(b"12345")).unwrap();
    let leaf = Subtree::new("leaf", "nt:unstructured").with_property("text", "deep");
    let child = Subtree::new("child", "nt:unstructured").with_child(leaf);
    let single = |value| Property::Single(value);
    let node = Subtree::new("node", "nt:unstructured")
        .with_property("text", "a \"quoted\" <b> \u{2028}")
        .with_property("long", single(Value::Long(i64::MIN)))
        .with_property("double", single(Value::Double(1.5)))
        .with_property("huge", single(Value::Double(1e300)))
        .with_property("nan", single(Value::Double(f64::NAN)))
        .with_property("yes", single(Value::Boolean(true)))
        .with_property("date", date("2026-11-21T00:50:16.000Z"))
        .with_property("decimal", single(Value::Decimal("3.14".into())))
        .with_property(
            "list",
            Property::List(ValueType::Long, vec![Value::Long(1), Value::Long(2)]),
        )
        .with_property("none", Property::List(ValueType::String, Vec::new()))
        .with_property("data", single(Value::Binary(blob)))
        .with_child(child)
        .with_child(Subtree::new("second", "nt:unstructured"));
    site.put("/content/node", node);
    site
}

#[test]
fn writes_typed_values() {
    let expected = json!({
        "jcr:primaryType": "nt:unstructured",
        "text": "a \"quoted\" <b> \u{2028}",
        "long": i64::MIN,
        "double": 1.5,
        "huge": 1e300,
        "nan": "NaN",
        "yes": true,
        "date": "Sat Nov 21 2026 00:50:16 GMT+0000",
        "decimal": "3.14",
        "list": [1, 2],
        "none": [],
        ":data": 5,
    });
    assert_eq!(get(&typed(), "/content/node.json"), expected);
    assert_eq!(get(&typed(), "/content/node.0.json"), expected);
}

#[test]
fn depth_counts_levels_of_children() {
    let site = typed();
    let one = get(&site, "/content/node.1.json");
    assert_eq!(one["child"], json!({"jcr:primaryType": "nt:unstructured"}));
    let keys: Vec<&String> = one.as_object().unwrap().keys().rev().take(2).collect();
    assert_eq!(keys, ["second", "child"], "children keep their order");
    assert_eq!(get(&site, "/content/node.2.json")["child"]["leaf"]["text"], "deep");
    assert_eq!(get(&site, "/content/node.infinity.json"), get(&site, "/content/node.2.json"));
    assert_eq!(get(&site, "/content/node.tidy.infinity.json"), get(&site, "/content/node.2.json"));
    assert_eq!(site.get("/content/node.x.json").outcome, RenderOutcome::BadRequest);
}

#[test]
fn harray_lists_children_in_order() {
    let children = &get(&typed(), "/content/node.harray.2.json")["__children__"];
    assert_eq!(children[0]["__name__"], "child");
    assert_eq!(children[0]["__children__"][0]["text"], "deep");
    assert_eq!(children[1], json!({"__name__": "second", "jcr:primaryType": "nt:unstructured"}));
}

#[test]
fn tidy_is_indented() {
    let site = Site::empty();
    let child = Subtree::new("b", "nt:unstructured");
    let list = Property::List(ValueType::Long, vec![Value::Long(1)]);
    site.put(
        "/content/a",
        Subtree::new("a", "nt:unstructured").with_property("list", list).with_child(child),
    );
    let expected = "{\n  \"jcr:primaryType\": \"nt:unstructured\",\n  \"list\": [\n    1\n  ],\n  \
                    \"b\": {\n    \"jcr:primaryType\": \"nt:unstructured\"\n  }\n}\n";
    assert_eq!(site.text("/content/a.tidy.1.json"), expected);
}

/// Makes a folder with `children` pages of one content node, which has `leaves` children.
fn wide(children: usize, leaves: usize) -> Site {
    let site = Site::empty();
    let folder = (0..children).fold(Subtree::new("wide", "nt:unstructured"), |folder, n| {
        let par = (0..leaves).fold(Subtree::new("par", "nt:unstructured"), |par, n| {
            par.with_child(Subtree::new(format!("t{n}"), "nt:unstructured"))
        });
        folder.with_child(Subtree::new(format!("p{n}"), "nt:unstructured").with_child(par))
    });
    site.put("/content/wide", folder);
    site
}

#[track_caller]
fn check_choices(site: &Site, url: &str, expected: Option<&str>) {
    let response = site.get(url);
    match expected {
        None => assert_eq!(response.outcome, RenderOutcome::Ok, "{url}"),
        Some(urls) => {
            assert_eq!(response.outcome, RenderOutcome::MultipleChoices, "{url}");
            assert_eq!(body_text(&response), urls);
        }
    }
}

#[test]
fn too_many_nodes_give_the_depths_that_can_be_asked() {
    let site = wide(100, 8);
    let choices = "[\"/content/wide.2.json\",\"/content/wide.1.json\",\"/content/wide.0.json\"]";
    check_choices(&site, "/content/wide.infinity.json", Some(choices));
    check_choices(&site, "/content/wide.3.json", Some(choices));
    check_choices(&site, "/content/wide.2.json", None);
    let site = wide(201, 0);
    check_choices(&site, "/content/wide.1.json", None);
    let choices = "[\"/content/wide.1.json\",\"/content/wide.0.json\"]";
    check_choices(&site, "/content/wide.2.json", Some(choices));
}

/// A node of a random tree: properties and children by name.
#[derive(Debug, Clone)]
struct RandomNode {
    texts: Vec<(String, String)>,
    children: Vec<(String, RandomNode)>,
}

fn random_node() -> impl Strategy<Value = RandomNode> {
    let texts = || btree_map("[a-c]{1,2}", "\\PC{0,8}", 0..4);
    let leaf = texts()
        .prop_map(|texts| RandomNode { texts: texts.into_iter().collect(), children: vec![] });
    leaf.prop_recursive(3, 40, 4, move |inner| {
        (texts(), btree_map("[x-z]{1,3}", inner, 0..4)).prop_map(|(texts, children)| RandomNode {
            texts: texts.into_iter().collect(),
            children: children.into_iter().rev().collect(),
        })
    })
}

impl RandomNode {
    fn to_tree(&self, name: &str) -> Subtree {
        let mut tree = Subtree::new(name, "nt:unstructured");
        for (name, text) in &self.texts {
            tree = tree.with_property(name.as_str(), text.as_str());
        }
        self.children.iter().fold(tree, |tree, (name, child)| tree.with_child(child.to_tree(name)))
    }

    fn to_json(&self) -> Json {
        let mut json = json!({"jcr:primaryType": "nt:unstructured"});
        for (name, text) in &self.texts {
            json[name] = json!(text);
        }
        for (name, child) in &self.children {
            json[name] = child.to_json();
        }
        json
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_tree_reads_back(nodes in vec(random_node(), 1..3)) {
        let site = Site::with_limits(RenderMode::Publish, tympan_render::RenderLimits::default());
        for (number, node) in nodes.iter().enumerate() {
            site.put(&format!("/content/n{number}"), node.to_tree(""));
            prop_assert_eq!(get(&site, &format!("/content/n{number}.infinity.json")), node.to_json());
            prop_assert_eq!(get(&site, &format!("/content/n{number}.tidy.infinity.json")), node.to_json());
        }
    }
}

#[test]
fn a_document_view_holds_what_is_below_and_no_hash_of_a_password() {
    let site = Site::empty();
    let child = Subtree::new("child", "nt:unstructured").with_property("text", "deep <b>");
    let node = Subtree::new("node", "nt:unstructured")
        .with_property("long", Property::Single(Value::Long(7)))
        .with_property("rep:password", "secret")
        .with_child(child);
    site.put("/content/node", node);
    let response = site.get("/content/node.xml");
    assert_eq!(response.outcome, RenderOutcome::Ok);
    assert_eq!(response.content_type, "text/xml; charset=utf-8");
    let text = body_text(&response);
    assert!(
        text.contains("long=\"{Long}7\"") && text.contains("text=\"deep &lt;b&gt;\""),
        "{text}"
    );
    assert!(text.contains("<child") && !text.contains("secret"), "{text}");
}
