//! What packages brought comes back through `.1.json`: every node of the four real packages, value by value.

use serde_json::{Map, Value as Json, json};
use std::time::SystemTime;
use tympan_content::{Node, NodePath, Property, Repository, Value};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_render::{
    RenderMode, RenderOptions, RenderOutcome, RenderRequest, RenderResponseBody, Renderer,
};
use tympan_testkit::fixture_folder::fixture_folder;

/// Writes a value as Sling's JSON does, independently of the renderer.
fn expected_value(value: &Value) -> Json {
    match value {
        Value::Long(number) => json!(number),
        Value::Double(number) => json!(number),
        Value::Boolean(truth) => json!(truth),
        Value::Date(date) => {
            let zoned = date.to_zoned().unwrap();
            json!(zoned.strftime("%a %b %d %Y %H:%M:%S GMT%z").to_string())
        }
        value => json!(value.to_text()),
    }
}

/// Compares the JSON object of a node with what is stored, leaving children aside.
fn compare(node: &Node, object: &Map<String, Json>, faults: &mut Vec<String>) {
    // The one property that is shown to nobody.
    for (name, property) in node.properties().into_iter().filter(|(name, _)| name != "rep:password")
    {
        let (name, expected) = match &property {
            Property::Single(Value::Binary(blob)) => (format!(":{name}"), json!(blob.length())),
            Property::Single(value) => (name, expected_value(value)),
            Property::List(_, values) if matches!(values.first(), Some(Value::Binary(_))) => {
                continue;
            }
            Property::List(_, values) => (name, values.iter().map(expected_value).collect()),
        };
        if object.get(&name) != Some(&expected) {
            faults.push(format!(
                "{} {name}: {:?} instead of {expected}",
                node.path(),
                object.get(&name)
            ));
        }
    }
}

#[test]
fn every_node_of_the_real_packages_reads_back_as_json() {
    let Some(packages) = fixture_folder("packages") else { return };
    let repository = Repository::in_memory().unwrap();
    for name in [
        "core.wcm.components.examples.ui.content-2.26.0.zip",
        "core.wcm.components.content-2.29.0.zip",
        "wknd.ui.content.sample.zip",
        "wknd.ui.content.zip",
    ] {
        let mut package =
            ContentPackage::open(&packages.join(name), &PackageLimits::default()).unwrap();
        let mut session = repository.session("admin").unwrap();
        package.install(&mut session, &mut |_| {}).unwrap();
        session.commit(name, SystemTime::UNIX_EPOCH).unwrap();
    }
    let snapshot = repository.snapshot().unwrap();
    let renderer = Renderer::new(
        &repository,
        RenderOptions { mode: RenderMode::Author, ..RenderOptions::default() },
    );
    let mut waiting = vec![NodePath::root()];
    let (mut nodes, mut values, mut faults) = (0, 0, Vec::new());
    while let Some(path) = waiting.pop() {
        let node = snapshot.node(&path).unwrap().unwrap();
        let children = node.children().unwrap();
        waiting.extend(children.iter().map(|child| child.path().clone()));
        if path.is_root() {
            continue;
        }
        let encoded = percent_encoding::utf8_percent_encode(path.as_str(), PATH).to_string();
        let drawn = renderer.render(&snapshot, &RenderRequest::get(&format!("{encoded}.1.json")));
        let RenderResponseBody::Bytes(bytes) = &drawn.body else {
            panic!("{path}: {:?}", drawn.outcome)
        };
        if drawn.outcome != RenderOutcome::Ok {
            faults.push(format!("{path}: {:?}", drawn.outcome));
            continue;
        }
        let object: Map<String, Json> = serde_json::from_slice(bytes).unwrap();
        compare(&node, &object, &mut faults);
        for child in &children {
            match object.get(child.name()).and_then(Json::as_object) {
                Some(object) => compare(child, object, &mut faults),
                None => faults.push(format!("{path} does not show its child {}", child.name())),
            }
        }
        nodes += 1;
        values += node.properties().len();
    }
    assert!(nodes > 12_000, "only {nodes} nodes");
    eprintln!("{nodes} nodes with {values} properties read back");
    let few: Vec<&String> = faults.iter().take(10).collect();
    assert!(faults.is_empty(), "{} faults, such as {few:#?}", faults.len());
}

/// Everything but what a path may hold as it is.
const PATH: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':')
    .remove(b'~');
