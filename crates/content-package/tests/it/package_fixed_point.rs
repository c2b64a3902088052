//! Import, export, import: every package of the fixtures comes back as it was, with the same attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Cursor;

use tympan_content::{NodePath, Property, Subtree, ValueType};
use tympan_content_package::build::{PackageManifest, write_package};
use tympan_content_package::{
    ContentPackage, FilterRoot, ImportMode, ImportNode, ImportNodeKind, ImportProperty,
    PackageFilter, PackageLimits, docview,
};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_target::{BytePackage, Memory, install};

/// Those that are refused, each for the reason that `package_filevault` states.
const REFUSED: [&str; 2] = ["non-valid-package.zip", "test-package-truncated.zip"];

fn opened(bytes: &[u8]) -> BytePackage {
    ContentPackage::read(Cursor::new(bytes.to_vec()), "fixture.zip", &PackageLimits::default())
        .unwrap()
}

fn imported(bytes: &[u8]) -> Memory {
    let mut target = Memory::new();
    install(&mut opened(bytes), &mut target).unwrap();
    target
}

/// The package's own filter; without one, all that it brought.
fn filter_of(package: &BytePackage, target: &Memory) -> PackageFilter {
    if !package.filter().roots().is_empty() {
        return package.filter().clone();
    }
    let roots = target.root.children.iter().map(|child| {
        FilterRoot::new(NodePath::root().child(&child.name).unwrap(), ImportMode::Replace)
    });
    PackageFilter::new(roots.collect())
}

fn exported(target: &Memory, package: &BytePackage, filter: &PackageFilter) -> Vec<u8> {
    let mut namespaces = docview::DocviewNamespaces::default();
    namespaces.extend(package.namespaces().clone());
    // What is there is all that the package brought, so all of it is to come back.
    let mut properties = BTreeMap::from([("acHandling".to_owned(), "overwrite".to_owned())]);
    let handling = package.properties().get("subPackageHandling");
    properties.extend(handling.map(|value| ("subPackageHandling".to_owned(), value.to_owned())));
    let manifest = PackageManifest {
        id: package.id().clone(),
        filter: filter.clone(),
        namespaces,
        properties,
        ..PackageManifest::default()
    };
    let mut out = Cursor::new(Vec::new());
    write_package(&mut out, &manifest, target, &PackageLimits::default()).unwrap();
    out.into_inner()
}

/// Fails at the first difference, with its path.
fn assert_same(left: &Subtree, right: &Subtree, path: &str, file: &str) {
    assert_eq!(left.properties, right.properties, "{file}: {path}");
    let names =
        |node: &Subtree| node.children.iter().map(|child| child.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "{file}: {path}");
    for (left, right) in left.children.iter().zip(&right.children) {
        assert_same(left, right, &format!("{path}/{}", left.name), file);
    }
}

type Attributes = BTreeMap<(String, String), String>;

/// What the docviews of a package say, path by path: names and values, bytes apart.
fn attributes(
    node: &ImportNode,
    path: &str,
    out: &mut Attributes,
    elements: &mut BTreeSet<String>,
) {
    if node.is_element() && node.kind() == ImportNodeKind::Content {
        elements.insert(path.to_owned());
    }
    for (name, property) in node.properties() {
        if let ImportProperty::Value(property) = property {
            out.insert((path.to_owned(), name.clone()), shown(property));
        }
    }
    for child in node.children() {
        attributes(child, &format!("{path}/{}", child.name()), out, elements);
    }
}

fn shown(property: &Property) -> String {
    docview::write_literal(property, ValueType::String)
}

fn check(file: &str, bytes: &[u8]) {
    let original = opened(bytes);
    let first = imported(bytes);
    let filter = filter_of(&original, &first);
    let package = exported(&first, &original, &filter);
    let second = imported(&package);
    assert_same(&second.root, &first.root, "", file);
    let again = exported(&second, &original, &filter);
    assert!(again == package, "{file}: the second export differs from the first");
    // What was stored says again what the package said.
    let (mut said, mut says) = (Attributes::new(), Attributes::new());
    let (mut elements, mut ignored) = (BTreeSet::new(), BTreeSet::new());
    attributes(original.root(), "", &mut said, &mut elements);
    attributes(opened(&package).root(), "", &mut says, &mut ignored);
    for ((path, name), value) in &said {
        // What the package has and did not bring: above its filters, or left out by its own rules.
        let Some(stored) = first.find(path).filter(|_| !path.is_empty()) else { continue };
        let is_contained = matches!(
            filter.coverage(&NodePath::new(path).unwrap()),
            tympan_content_package::FilterCoverage::Contained(_)
        );
        if is_contained && stored.properties.contains_key(name) {
            let key = (path.clone(), name.clone());
            assert_eq!(says.get(&key), Some(value), "{file}: {path}/{name}");
        }
    }
    for ((path, name), value) in &says {
        let is_said = said.contains_key(&(path.clone(), name.clone()));
        // What an import adds: the types of folders and files that no element describes, and the mixins of policies.
        let is_implied = !elements.contains(path) || name == "jcr:mixinTypes";
        assert!(is_said || is_implied, "{file}: {path}/{name} = {value} comes from nowhere");
    }
}

#[test]
fn every_fixture_comes_back_with_its_attributes() {
    let mut count = 0;
    for folder in ["filevault", "packages"] {
        let Some(folder) = fixture_folder(folder) else {
            return;
        };
        let mut files: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|one| one.unwrap()).collect();
        files.sort_by_key(std::fs::DirEntry::file_name);
        for file in files {
            let name = file.file_name().into_string().unwrap();
            if !REFUSED.contains(&name.as_str()) {
                check(&name, &std::fs::read(file.path()).unwrap());
                count += 1;
            }
        }
    }
    assert_eq!(count, 47);
}
