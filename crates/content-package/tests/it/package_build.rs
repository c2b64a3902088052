//! Building packages: what is built installs as the same content, and gives the same bytes again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Cursor, Read};

use proptest::prelude::*;
use tympan_content::{BlobId, JcrDate, NodePath, Property, Subtree, Value, ValueType};
use tympan_content_package::build::{PackageManifest, write_package};
use tympan_content_package::{
    ContentPackage, FilterRoot, ImportMode, PackageFilter, PackageId, PackageLimits, docview,
};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_naive::{Element, naive_xml};
use crate::package_target::{Memory, install};

fn manifest(filter: PackageFilter) -> PackageManifest {
    let id = PackageId { group: "g".into(), name: "n".into(), version: "1".into() };
    let properties = BTreeMap::from([("acHandling".to_owned(), "overwrite".to_owned())]);
    PackageManifest { id, filter, properties, ..PackageManifest::default() }
}

fn filter_of(roots: &[&str]) -> PackageFilter {
    let roots =
        roots.iter().map(|root| FilterRoot::new(NodePath::new(root).unwrap(), ImportMode::Replace));
    PackageFilter::new(roots.collect())
}

fn build(source: &Memory, filter: &PackageFilter) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    write_package(&mut out, &manifest(filter.clone()), source, &PackageLimits::default()).unwrap();
    out.into_inner()
}

fn installed(bytes: Vec<u8>) -> Memory {
    let mut package =
        ContentPackage::read(Cursor::new(bytes), "built.zip", &PackageLimits::default()).unwrap();
    let mut target = Memory::new();
    let report = install(&mut package, &mut target).unwrap();
    assert_eq!(report.warnings, Vec::<String>::new());
    target
}

fn check_round_trip(source: &Memory, filter: &PackageFilter) {
    let bytes = build(source, filter);
    let again = installed(bytes.clone());
    assert_same(&again.root, &source.root, "");
    assert!(build(&again, filter) == bytes, "the second build differs");
}

/// Fails at the first difference, with its path.
fn assert_same(left: &Subtree, right: &Subtree, path: &str) {
    assert_eq!(left.properties, right.properties, "{path}");
    let names =
        |node: &Subtree| node.children.iter().map(|child| child.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "{path}");
    for (left, right) in left.children.iter().zip(&right.children) {
        assert_same(left, right, &format!("{path}/{}", left.name));
    }
}

#[test]
fn real_packages_come_back() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    for name in ["wknd.ui.content.sample.zip", "wknd.ui.content.zip"] {
        let mut package =
            ContentPackage::open(&folder.join(name), &PackageLimits::default()).unwrap();
        let mut target = Memory::new();
        install(&mut package, &mut target).unwrap();
        // One filter over everything, so that the policies of the package do not matter.
        check_round_trip(&target, &filter_of(&["/conf", "/content", "/home"]));
    }
}

#[test]
fn docviews_of_real_sites_are_written_with_the_same_attributes() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    for name in ["wknd.ui.content.sample.zip", "wknd.ui.content.zip"] {
        let mut zip = zip::ZipArchive::new(File::open(folder.join(name)).unwrap()).unwrap();
        for index in 0..zip.len() {
            let mut entry = zip.by_index(index).unwrap();
            let name = entry.name().unwrap().into_owned();
            let mut text = String::new();
            if !name.starts_with("jcr_root")
                || !name.ends_with(".xml")
                || entry.read_to_string(&mut text).is_err()
            {
                continue;
            }
            let node =
                docview::read_docview(&name, text.as_bytes(), &PackageLimits::default()).unwrap();
            let written = docview::write_docview(&node, &docview::DocviewNamespaces::default());
            assert_eq!(attributes(&naive_xml(&written)), attributes(&naive_xml(&text)), "{name}");
            assert_eq!(
                docview::read_docview(&name, written.as_bytes(), &PackageLimits::default())
                    .unwrap(),
                node,
                "{name}"
            );
        }
    }
}

/// Returns the attributes below an element with how often they occur.
fn attributes(element: &Element) -> BTreeMap<(String, String), usize> {
    let mut counts = BTreeMap::new();
    for attribute in &element.attributes {
        *counts.entry(attribute.clone()).or_insert(0) += 1;
    }
    for child in &element.children {
        for (attribute, count) in attributes(child) {
            *counts.entry(attribute).or_insert(0) += count;
        }
    }
    counts
}

/// Stores bytes and returns the property that holds them.
fn blob(target: &mut Memory, text: &str) -> Property {
    let id = BlobId::hash_of(text.as_bytes());
    target.blobs.insert(id.to_string(), text.as_bytes().to_vec());
    Property::Single(Value::Binary(id))
}

fn file(target: &mut Memory, name: &str, text: &str) -> Subtree {
    let date = Value::Date(JcrDate::parse("2020-02-03T04:05:06.789+02:00").unwrap());
    let content = Subtree::new("jcr:content", "nt:resource")
        .with_property("jcr:data", blob(target, text))
        .with_property("jcr:mimeType", "text/plain")
        .with_property("jcr:lastModified", date);
    Subtree::new(name, "nt:file").with_child(content)
}

/// A page with values that need escapes, and nodes with names that do.
fn awkward_page(target: &mut Memory) -> Subtree {
    let list =
        |values: &[&str]| Property::parse_list(ValueType::String, values.iter().copied()).unwrap();
    let mut content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("title", "a \"quoted\" <title> & more\n\ttab")
        .with_property("bracket", "[not a list]")
        .with_property("brace", "{not a type}")
        .with_property("slash", "a\\b, c")
        .with_property("empty", "")
        .with_property("none", list(&[]))
        .with_property("one empty", list(&[""]))
        .with_property("two", list(&["a,b", "]"]))
        .with_property("control", "a\u{1}b\u{fffe}")
        .with_property("n", Value::Long(-7))
        .with_property("d", Value::Double(0.1))
        .with_property("b", Value::Boolean(true))
        .with_property("dec", Value::Decimal("1.50".into()))
        .with_property("ref", Value::WeakReference("x".into()))
        .with_property("name", Value::Name("cq:Page".into()))
        .with_property("1st", "digit first")
        .with_property("a_x0020_b", "looks escaped");
    content.children.push(Subtree::new("2019", "nt:unstructured").with_property("x", "y"));
    content.children.push(file(target, "inner.txt", "inside of a page"));
    content.children.push(Subtree::new("z_first", "nt:unstructured"));
    content.children.push(Subtree::new("a_last", "nt:unstructured"));
    Subtree::new("page one", "cq:Page")
        .with_child(content)
        .with_child(Subtree::new("sub", "cq:Page"))
}

/// A folder with files of all forms, and with names that mean something else to a package.
fn awkward_folder(target: &mut Memory) -> Subtree {
    let bare =
        Subtree::new("jcr:content", "nt:resource").with_property("jcr:data", blob(target, "x"));
    let thumbs = Subtree::new("dam:thumbs", "nt:folder").with_child(file(target, "t.png", "png"));
    let bytes = [blob(target, "first"), blob(target, "second")];
    let values = bytes.iter().map(|one| one.first().unwrap().clone()).collect();
    let document = "<jcr:root xmlns:jcr='http://www.jcp.org/jcr/1.0'/>";
    Subtree::new("_my_folder", "sling:Folder")
        .with_child(file(target, "plain.txt", "plain"))
        .with_child(file(target, "looks-like.xml", document))
        .with_child(file(target, "data.binary", "bytes"))
        .with_child(Subtree::new("no-media-type", "nt:file").with_child(bare))
        .with_child(file(target, "photo.jpg", "jpeg").with_child(thumbs))
        .with_child(
            Subtree::new("bytes", "nt:unstructured")
                .with_property("both", Property::List(ValueType::Binary, values))
                .with_property("acme:one", blob(target, "one")),
        )
        .with_child(
            Subtree::new("empty.dir", "sling:Folder")
                .with_child(Subtree::new("in", "sling:Folder")),
        )
        .with_child(Subtree::new("._hidden", "sling:Folder"))
}

/// Everything that has a form of its own in a package, in one tree.
#[test]
fn awkward_content_comes_back() {
    let mut target = Memory::new();
    let entry =
        Subtree::new("allow", "rep:GrantACE").with_property("rep:principalName", "everyone");
    let mixins = Property::parse_list(ValueType::Name, ["rep:AccessControllable"]).unwrap();
    let site = Subtree::new("site", "sling:OrderedFolder")
        .with_property("jcr:mixinTypes", mixins)
        .with_child(Subtree::new("rep:policy", "rep:ACL").with_child(entry))
        .with_child(awkward_page(&mut target))
        .with_child(awkward_folder(&mut target));
    target.root.children.push(Subtree::new("content", "sling:Folder").with_child(site));
    check_round_trip(&target, &filter_of(&["/content/site"]));
    check_round_trip(&target, &filter_of(&["/content/site/page one", "/content", "/content/site"]));
}

#[test]
fn names_that_no_package_can_carry_are_refused() {
    let mut target = Memory::new();
    let child = file(&mut target, "x.txt", "x");
    target.root.children.push(Subtree::new("trap.dir", "sling:Folder").with_child(child));
    let mut out = Cursor::new(Vec::new());
    let manifest = manifest(filter_of(&["/trap.dir"]));
    let error = write_package(&mut out, &manifest, &target, &PackageLimits::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "/trap.dir/x.txt: the name of this node or of an ancestor cannot be used in a package; rename it"
    );
}

#[test]
fn what_is_built_keeps_to_the_limits() {
    let mut target = Memory::new();
    let files = [file(&mut target, "a.txt", "12345"), file(&mut target, "b.txt", "67890")];
    let folder = files.into_iter().fold(Subtree::new("x", "sling:Folder"), Subtree::with_child);
    let nodes = folder.node_count();
    target.root.children.push(folder);
    let manifest = manifest(filter_of(&["/x"]));
    let build = |limits: &PackageLimits| {
        let mut out = Cursor::new(Vec::new());
        let built = write_package(&mut out, &manifest, &target, limits);
        built.map(|_| ()).map_err(|error| (error.to_string(), out.into_inner().len()))
    };
    let within =
        PackageLimits { max_nodes: nodes, max_total_bytes: 10, ..PackageLimits::default() };
    assert_eq!(build(&within), Ok(()));
    let entries = PackageLimits { max_entries: 8, ..within.clone() };
    for (limits, limit) in [
        (PackageLimits { max_nodes: nodes - 1, ..within.clone() }, "4 nodes, or 536870912 bytes"),
        (PackageLimits { max_total_bytes: 9, ..within.clone() }, "9 bytes of files"),
        (entries, "8 files and folders"),
    ] {
        let (message, written) = build(&limits).unwrap_err();
        assert!(message.contains(&format!("selects more than {limit}")), "{message}");
        assert_eq!(written, 0, "{message}");
    }
}

#[test]
fn the_filter_decides_what_is_built() {
    let mut target = Memory::new();
    let leaf = |name: &str| {
        Subtree::new(name, "nt:unstructured").with_property("p", "1").with_property("q", "2")
    };
    let a = leaf("a").with_child(leaf("in")).with_child(leaf("out").with_child(leaf("in")));
    target
        .root
        .children
        .push(Subtree::new("x", "sling:Folder").with_child(a).with_child(leaf("b")));
    let filter = PackageFilter::parse(
        "filter.xml",
        br#"<workspaceFilter version="1.0"><filter root="/x/a"><exclude pattern=".*/out"/>
            <exclude pattern="/x/a/q" matchProperties="true"/></filter></workspaceFilter>"#,
    )
    .unwrap();
    let again = installed(build(&target, &filter));
    let mut wanted = target.root.clone();
    let x = wanted.child_mut("x").unwrap();
    x.remove_child("b");
    x.child_mut("a").unwrap().properties.remove("q");
    assert_same(&again.root, &wanted, "");
    assert_eq!(
        PackageFilter::parse("f", filter.to_xml().as_bytes()).unwrap().to_xml(),
        filter.to_xml()
    );
}

fn names() -> impl Strategy<Value = String> {
    "([a-z]{1,3}:)?[a-zA-Z_0-9 .äß@%?-]{1,8}"
        .prop_filter("a name that JCR allows", |name| tympan_content::check_item_name(name).is_ok())
}

fn properties() -> impl Strategy<Value = Property> {
    prop_oneof![
        any::<String>().prop_map(Property::text),
        "[\\[\\]{},\\\\a0u]{0,6}".prop_map(Property::text),
        any::<i64>().prop_map(|number| Property::Single(Value::Long(number))),
        any::<bool>().prop_map(|truth| Property::Single(Value::Boolean(truth))),
        (-1_000_000_000_000_i64..4_000_000_000_000, -700..700_i16).prop_map(
            |(millis, offset_minutes)| {
                Property::Single(Value::Date(JcrDate { millis, offset_minutes }))
            }
        ),
        prop::collection::vec("[\\[\\]{},\\\\a0u]{0,4}", 0..4).prop_map(|texts| {
            Property::parse_list(ValueType::String, texts.iter().map(String::as_str)).unwrap()
        }),
    ]
}

fn trees() -> impl Strategy<Value = Subtree> {
    let types = || {
        prop::sample::select(vec![
            "nt:unstructured",
            "sling:Folder",
            "cq:Page",
            "nt:folder",
            "nt:file",
        ])
    };
    let own = move || (names(), types(), prop::collection::btree_map(names(), properties(), 0..4));
    let node = |(name, primary_type, properties): (String, &str, BTreeMap<String, Property>)| {
        let mut node = Subtree::new(name, primary_type);
        node.properties.extend(properties);
        node
    };
    own().prop_map(node).prop_recursive(4, 24, 4, move |inner| {
        (own().prop_map(node), prop::collection::vec(inner, 0..4)).prop_map(
            |(mut node, children)| {
                children.into_iter().for_each(|child| node.put_child(child));
                node
            },
        )
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_tree_comes_back_from_a_docview(tree in trees()) {
        let text = docview::write_docview(&tree, &docview::DocviewNamespaces::default());
        let again = docview::read_docview("d.xml", text.as_bytes(), &PackageLimits::default());
        let mut again = again.unwrap_or_else(|error| panic!("{error}\n{text}"));
        again.name.clone_from(&tree.name);
        prop_assert_eq!(again, tree);
    }

    #[test]
    fn any_tree_comes_back_from_a_package(tree in trees()) {
        let mut source = Memory::new();
        source.root.children.push(Subtree::new("top", "sling:OrderedFolder").with_child(tree));
        check_round_trip(&source, &filter_of(&["/top"]));
    }

    #[test]
    fn any_property_comes_back_from_its_text(property in properties()) {
        let text = docview::write_literal(&property, ValueType::String);
        let again = docview::parse_literal(&text, ValueType::String);
        prop_assert_eq!(again, Ok(docview::DocviewLiteral::Property(property)));
    }
}

#[test]
fn policies_come_back_without_being_asked_for() {
    let build = |source: &Memory| {
        let mut out = Cursor::new(Vec::new());
        let manifest =
            PackageManifest { properties: BTreeMap::new(), ..manifest(filter_of(&["/site"])) };
        write_package(&mut out, &manifest, source, &PackageLimits::default()).unwrap();
        out.into_inner()
    };
    let text_of = |bytes: &[u8]| {
        let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).unwrap();
        let mut text = String::new();
        zip.by_name("META-INF/vault/properties.xml").unwrap().read_to_string(&mut text).unwrap();
        text
    };
    let mut target = Memory::new();
    target.root.children.push(Subtree::new("site", "sling:OrderedFolder"));
    assert!(!text_of(&build(&target)).contains("acHandling"), "there is nothing to handle");
    let entry =
        Subtree::new("allow", "rep:GrantACE").with_property("rep:principalName", "everyone");
    let mixins = Property::parse_list(ValueType::Name, ["rep:AccessControllable"]).unwrap();
    let site = target.root.child_mut("site").unwrap();
    site.properties.insert("jcr:mixinTypes".to_owned(), mixins);
    site.put_child(Subtree::new("rep:policy", "rep:ACL").with_child(entry));
    let bytes = build(&target);
    assert!(text_of(&bytes).contains("merge_preserve"), "{}", text_of(&bytes));
    assert_same(&installed(bytes).root, &target.root, "");
}
