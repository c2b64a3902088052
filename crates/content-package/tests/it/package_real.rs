//! Four real packages: what they describe is stored, by the witness of a second, naive reading of their docviews.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use tympan_content::{Property, Subtree, ValueType};
use tympan_content_package::{ContentPackage, InstallReport, PackageLimits, SkipReason};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_naive::{Element, naive_xml};
use crate::package_target::{FilePackage, Memory, install};

/// Elements, attributes, pages, assets.
const EXPECTED: [(&str, [usize; 4]); 4] = [
    ("core.wcm.components.examples.ui.content-2.26.0.zip", [2730, 9109, 68, 40]),
    ("core.wcm.components.content-2.29.0.zip", [3591, 11_400, 0, 0]),
    ("wknd.ui.content.sample.zip", [4980, 31_703, 208, 5]),
    ("wknd.ui.content.zip", [907, 3166, 44, 5]),
];

fn open(file: &Path) -> FilePackage {
    ContentPackage::open(file, &PackageLimits::default()).unwrap()
}

#[test]
fn real_packages_are_stored_as_their_docviews_say() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    for (name, expected) in EXPECTED {
        let file = folder.join(name);
        let mut target = Memory::new();
        let report = install(&mut open(&file), &mut target).unwrap();
        let counts = [report.elements, report.attributes, report.pages, report.assets];
        assert_eq!(counts, expected, "{name}");
        let skipped = report.skipped.iter().filter(|skipped| skipped.is_element).count();
        assert_eq!(report.elements, report.elements_stored + skipped, "{name}: each has a place");
        assert_eq!(report.files, report.blobs, "{name}: each file has its bytes");
        let seen = compare(&file, &target, &report);
        assert_eq!(seen, [report.elements_stored, report.files], "{name}: the second reading");
    }
}

#[test]
fn only_named_reasons_keep_elements_of_real_packages_out() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    let reasons: Vec<_> = EXPECTED
        .iter()
        .map(|(name, _)| {
            let report = install(&mut open(&folder.join(name)), &mut Memory::new()).unwrap();
            assert_eq!(report.warnings, Vec::<String>::new());
            report.skipped_by_reason()
        })
        .collect();
    assert_eq!(
        reasons,
        [
            BTreeMap::from([(SkipReason::Superseded, 14)]),
            BTreeMap::new(),
            BTreeMap::from([(SkipReason::AccessControl, 18)]),
            BTreeMap::from([(SkipReason::AccessControl, 17)]),
        ]
    );
}

#[test]
fn a_second_installation_writes_nothing() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    for (name, _) in EXPECTED {
        let mut target = Memory::new();
        let first = install(&mut open(&folder.join(name)), &mut target).unwrap();
        let before = target.clone();
        let second = install(&mut open(&folder.join(name)), &mut target).unwrap();
        assert_eq!(target.edits[before.edits.len()..], [""; 0], "{name}");
        assert_eq!(target, before, "{name}");
        assert_eq!(second.nodes_created + second.nodes_changed + second.subtrees_removed, 0);
        assert_eq!(second.elements, first.elements);
    }
}

/// Compares the target with a second reading of the package; returns how many elements and files it saw.
fn compare(file: &Path, target: &Memory, report: &InstallReport) -> [usize; 2] {
    let mut zip = zip::ZipArchive::new(File::open(file).unwrap()).unwrap();
    let mut seen = [0, 0];
    for index in 0..zip.len() {
        let mut entry = zip.by_index(index).unwrap();
        let name = entry.name().unwrap().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let Some(inner) = name.strip_prefix("jcr_root/").filter(|_| !name.ends_with('/')) else {
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        if name.ends_with(".xml") && text.contains("<jcr:root") {
            let folder = inner
                .strip_suffix(".content.xml")
                .unwrap_or_else(|| inner.strip_suffix(".xml").unwrap());
            let path = node_path(folder.trim_end_matches('/'));
            let skipped: Vec<_> =
                report.skipped.iter().filter(|skipped| skipped.file == name).collect();
            let is_skipped =
                |line: usize| skipped.iter().any(|skipped| skipped.line as usize == line);
            seen[0] += compare_element(&naive_xml(&text), &path, target, &is_skipped);
        } else {
            let node = target.find(&node_path(inner)).unwrap_or_else(|| panic!("{name} is stored"));
            let data =
                node.child("jcr:content").unwrap_or(node).properties.get("jcr:data").unwrap();
            assert_eq!(target.blobs[&*data.first().unwrap().to_text()], bytes, "{name}");
            seen[1] += 1;
        }
    }
    seen
}

fn compare_element(
    element: &Element,
    path: &str,
    target: &Memory,
    is_skipped: &dyn Fn(usize) -> bool,
) -> usize {
    let is_stored = !element.attributes.is_empty() && !is_skipped(element.line);
    let mut seen = usize::from(is_stored);
    if is_stored {
        let node = target.find(path).unwrap_or_else(|| panic!("{path} of line {}", element.line));
        for (name, text) in &element.attributes {
            // Where the package was built, visitors had it; here nobody has it yet.
            if name.starts_with("cq:lastReplicat") {
                assert!(!node.properties.contains_key(name), "{path}/{name}");
                continue;
            }
            let property = node.properties.get(name).unwrap_or_else(|| panic!("{path}/{name}"));
            assert_eq!(shown(property), naive_value(name, text), "{path}/{name}");
        }
        check_order(element, node, path);
    }
    for child in &element.children {
        seen += compare_element(child, &format!("{path}/{}", child.name), target, is_skipped);
    }
    seen
}

/// Checks that the children that the element names stand in its order.
fn check_order(element: &Element, node: &Subtree, path: &str) {
    let stored: Vec<&str> = node.children.iter().map(|child| child.name.as_str()).collect();
    let mut wanted: Vec<&str> = Vec::new();
    for child in &element.children {
        if stored.contains(&child.name.as_str()) && !wanted.contains(&child.name.as_str()) {
            wanted.push(&child.name);
        }
    }
    let found: Vec<&str> = stored.into_iter().filter(|name| wanted.contains(name)).collect();
    assert_eq!(found, wanted, "order below {path}");
}

/// Shows a stored property as type, values and whether it is a list.
fn shown(property: &Property) -> (String, Vec<String>) {
    let list = if property.is_list() { "[]" } else { "" };
    let values = property.values().iter().map(|value| value.to_text().into_owned()).collect();
    (format!("{}{list}", property.value_type().name()), values)
}

/// The same, from the text of an attribute, by rules that are written down a second time.
fn naive_value(name: &str, text: &str) -> (String, Vec<String>) {
    let (value_type, rest) = match text.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        Some((value_type, rest)) => (value_type, rest),
        None if name == "jcr:primaryType" || name == "jcr:mixinTypes" => ("Name", text),
        None => ("String", text),
    };
    assert!(ValueType::find(value_type).is_some());
    // JCR's conversion to Boolean: what is not `true` is false. One of the packages holds `{Boolean}false}`.
    if value_type == "Boolean" {
        return (value_type.to_owned(), vec![rest.eq_ignore_ascii_case("true").to_string()]);
    }
    let Some(list) = rest.strip_prefix('[').and_then(|list| list.strip_suffix(']')) else {
        return (value_type.to_owned(), vec![naive_unescape(rest)]);
    };
    let marked = list.replace("\\\\", "\u{1}").replace("\\,", "\u{2}");
    let split = marked
        .split(',')
        .map(|part| naive_unescape(&part.replace('\u{1}', "\\\\").replace('\u{2}', "\\,")));
    let values = if list.is_empty() { Vec::new() } else { split.collect() };
    (format!("{value_type}[]"), values)
}

fn naive_unescape(text: &str) -> String {
    let doubled = text.replace("\\\\", "\u{1}");
    assert!(!doubled.contains("\\u") && !doubled.contains("\\0"), "not in these packages");
    doubled.replace('\\', "").replace('\u{1}', "\\")
}

/// Returns the node path for a path of the file system.
fn node_path(path: &str) -> String {
    let names = path.split('/').filter(|name| !name.is_empty()).map(|name| {
        let name = name.strip_suffix(".dir").unwrap_or(name);
        for prefix in ["jcr", "cq", "rep", "sling", "dam", "granite"] {
            if let Some(local) = name.strip_prefix(&format!("_{prefix}_")) {
                return format!("{prefix}:{local}");
            }
        }
        name.to_owned()
    });
    names.fold(String::new(), |path, name| format!("{path}/{name}"))
}
