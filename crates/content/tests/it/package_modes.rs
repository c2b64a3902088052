//! How a package meets content that is there: modes, filters, order, access control.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tympan_content::package::{PackageFilter, SkipReason, docview};
use tympan_content::{NodePath, Property, Subtree, Value, ValueType};

use crate::package_target::{Memory, install, package};

/// Makes a tree from lines such as `/a/b x=1 y=2`; nodes on the way are made, too.
pub(crate) fn tree(lines: &str) -> Subtree {
    let mut root = Subtree::new("", "rep:root");
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let mut node = &mut root;
        for name in words.next().unwrap().split('/').filter(|name| !name.is_empty()) {
            if node.child(name).is_none() {
                node.children.push(Subtree::new(name, "nt:unstructured"));
            }
            node = node.child_mut(name).unwrap();
        }
        for word in words {
            let (name, value) = word.split_once('=').unwrap();
            let value =
                if name == "jcr:primaryType" { Property::name(value) } else { value.into() };
            node.properties.insert(name.to_owned(), value);
        }
    }
    root
}

/// Shows a tree as such lines, without the nodes' types where they are `nt:unstructured`.
fn lines(node: &Subtree, path: &str, out: &mut Vec<String>) {
    for child in &node.children {
        let path = format!("{path}/{}", child.name);
        let mut line = path.clone();
        for (name, property) in &child.properties {
            let text: Vec<_> = property.values().iter().map(Value::to_text).collect();
            if text != ["nt:unstructured"] {
                line.push_str(&format!(" {name}={}", text.join(",")));
            }
        }
        out.push(line);
        lines(child, &path, out);
    }
}

fn shown(root: &Subtree) -> String {
    let mut out = Vec::new();
    lines(root, "", &mut out);
    out.join("\n")
}

pub(crate) fn filter(inside: &str) -> String {
    format!("<workspaceFilter version=\"1.0\">{inside}</workspaceFilter>")
}

pub(crate) fn document(root: &Subtree) -> String {
    docview::write_docview(root, &docview::DocviewNamespaces::default())
}

const JCR: &str = "xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:rep=\"internal\"";

/// Installs the package over the existing content and compares.
fn check(filters: &str, existing: &str, brought: &str, expected: &str) {
    let mut target = Memory::with(tree(existing));
    let text = document(&tree(brought));
    let entries = [("META-INF/vault/filter.xml", filter(filters)), ("jcr_root/.content.xml", text)];
    let entries = entries.each_ref().map(|(name, text)| (*name, text.as_str()));
    install(&mut package(&entries).unwrap(), &mut target).unwrap();
    let expected: Vec<&str> =
        expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(shown(&target.root), expected.join("\n"), "{filters}");
}

const THERE: &str = "/x/a p=old own=old\n/x/a/extra e=1\n/x/gone g=1\n/x/gone/below\n/y q=old";
const BROUGHT: &str = "/x/new n=1\n/x/a p=new more=new\n/x/a/added d=1\n/y q=new";

#[test]
fn modes_do_as_documented() {
    let with = |mode: &str, expected: &str| {
        check(&format!("<filter root=\"/x\" mode=\"{mode}\"/>"), THERE, BROUGHT, expected);
    };
    with("replace", "/x\n/x/new n=1\n/x/a more=new p=new\n/x/a/added d=1\n/y q=old");
    with(
        "merge",
        "/x\n/x/a own=old p=old\n/x/a/extra e=1\n/x/a/added d=1\n/x/gone g=1\n/x/gone/below\n/x/new n=1\n/y q=old",
    );
    with(
        "merge_properties",
        "/x\n/x/a more=new own=old p=old\n/x/a/extra e=1\n/x/a/added d=1\n/x/gone g=1\n/x/gone/below\n/x/new n=1\n/y q=old",
    );
    // The order of the package holds for the children that it knows; others come first.
    let updated = "/x\n/x/gone g=1\n/x/gone/below\n/x/new n=1\n/x/a more=new own=old p=new\n/x/a/extra e=1\n/x/a/added d=1\n/y q=old";
    with("update", updated);
    with("update_properties", updated);
}

#[test]
fn types_and_mixins_follow_the_mode() {
    let with = |mode: &str, expected: &str| {
        let mut there = tree("/x jcr:primaryType=nt:folder");
        let mut brought = tree("/x jcr:primaryType=sling:Folder");
        let mixins =
            |names: &[&str]| Property::parse_list(ValueType::Name, names.iter().copied()).unwrap();
        there.children[0].properties.insert("jcr:mixinTypes".into(), mixins(&["mix:a", "mix:b"]));
        brought.children[0].properties.insert("jcr:mixinTypes".into(), mixins(&["mix:b", "mix:c"]));
        let mut target = Memory::with(there);
        let filter = filter(&format!("<filter root=\"/x\" mode=\"{mode}\"/>"));
        let text = document(&brought);
        let entries = [("META-INF/vault/filter.xml", &*filter), ("jcr_root/.content.xml", &*text)];
        install(&mut package(&entries).unwrap(), &mut target).unwrap();
        assert_eq!(shown(&target.root), expected, "{mode}");
    };
    with("replace", "/x jcr:mixinTypes=mix:b,mix:c jcr:primaryType=sling:Folder");
    with("merge", "/x jcr:mixinTypes=mix:a,mix:b jcr:primaryType=nt:folder");
    with("merge_properties", "/x jcr:mixinTypes=mix:a,mix:b,mix:c jcr:primaryType=nt:folder");
    with("update", "/x jcr:mixinTypes=mix:a,mix:b,mix:c jcr:primaryType=nt:folder");
    with("update_properties", "/x jcr:mixinTypes=mix:a,mix:b,mix:c jcr:primaryType=sling:Folder");
}

#[test]
fn what_the_filter_leaves_out_stays() {
    // Patterns: the last match decides, and the first element's kind is the default.
    check(
        "<filter root=\"/x\"><exclude pattern=\".*/keep(/.*)?\"/><include pattern=\".*/keep/not\"/></filter>",
        "/x/a/keep k=1\n/x/a/keep/not n=1\n/x/b",
        "/x/a/keep k=2\n/x/c/keep k=2",
        "/x\n/x/a\n/x/a/keep k=1\n/x/a/keep/not n=1\n/x/c",
    );
    check(
        "<filter root=\"/x\"><include pattern=\"/x/a(/.*)?\"/></filter>",
        "/x p=old\n/x/a/old\n/x/b b=old",
        "/x p=new\n/x/a/new\n/x/b b=new\n/x/c",
        "/x p=old\n/x/a\n/x/a/new\n/x/b b=old",
    );
    // Quoted patterns of Java.
    check(
        "<filter root=\"/x\"><include pattern=\"/x/\\Qa.b\\E\"/></filter>",
        "/x/a.b o=1\n/x/aXb o=1",
        "/x/a.b n=1\n/x/aXb n=1",
        "/x\n/x/a.b n=1\n/x/aXb o=1",
    );
    // Single properties.
    check(
        "<filter root=\"/x\"><exclude pattern=\"/x/a/p\" matchProperties=\"true\"/></filter>",
        "/x/a p=old q=old r=old\n/x/b p=old",
        "/x/a p=new q=new\n/x/c p=new",
        "/x\n/x/a p=old q=new\n/x/c p=new",
    );
}

#[test]
fn the_first_filter_that_covers_a_path_decides() {
    let filters = "<filter root=\"/x/inner\" mode=\"merge\"/><filter root=\"/x\"/>";
    check(
        filters,
        "/x/inner i=old\n/x/inner/own\n/x/gone",
        "/x/inner i=new\n/x/inner/added\n/x/b",
        "/x\n/x/inner i=old\n/x/inner/own\n/x/inner/added\n/x/b",
    );
    // What an inner filter keeps is kept although the package lacks the outer one's root.
    check(filters, "/x/inner i=old\n/x/gone\n/z", "/y", "/x\n/x/inner i=old\n/z");
    check(
        "<filter root=\"/x\"/><filter root=\"/x/inner\" mode=\"merge\"/>",
        "/x/inner i=old",
        "/x/b",
        "/x\n/x/b",
    );
}

#[test]
fn roots_that_the_package_lacks_are_removed() {
    check("<filter root=\"/x/old\" type=\"cleanup\"/>", "/x/old/below\n/x/b", "/x/b", "/x\n/x/b");
    check(
        "<filter root=\"/x/old\" mode=\"merge\"/>",
        "/x/old/below\n/x/b",
        "/x/b",
        "/x\n/x/old\n/x/old/below\n/x/b",
    );
    check(
        "<filter root=\"/\"/>",
        "/x/old\n/jcr:system/s\n/y",
        "/x p=1",
        "/x p=1\n/jcr:system\n/jcr:system/s",
    );
}

#[test]
fn ancestors_are_created_and_never_changed() {
    let filters = "<filter root=\"/a/b/c\"/>";
    check(
        filters,
        "/z",
        "/a p=1\n/a/b q=1\n/a/b/c r=1\n/a/other s=1",
        "/z\n/a p=1\n/a/b q=1\n/a/b/c r=1",
    );
    check(filters, "/a p=0", "/a p=1\n/a/b q=1\n/a/b/c r=1", "/a p=0\n/a/b q=1\n/a/b/c r=1");
}

#[test]
fn without_a_filter_nothing_there_changes() {
    check("", "/a p=old\n/a/b", "/a p=new\n/a/c q=1\n/d", "/a p=old\n/a/b\n/a/c q=1\n/d");
}

#[test]
fn everything_in_the_package_is_stored_or_skipped_for_a_reason() {
    let brought = tree("/x/a\n/x/out/in\n/y/z\n/x/cache jcr:primaryType=rep:Cache");
    let filter = filter("<filter root=\"/x\"><exclude pattern=\"/x/out(/.*)?\"/></filter>");
    let text = document(&brought);
    let entries = [("META-INF/vault/filter.xml", &*filter), ("jcr_root/.content.xml", &*text)];
    let report = install(&mut package(&entries).unwrap(), &mut Memory::new()).unwrap();
    assert_eq!((report.elements, report.elements_stored), (8, 2));
    let reasons: Vec<_> =
        report.skipped.iter().map(|one| (one.path.as_str(), one.reason)).collect();
    let expected = [
        ("/", SkipReason::AncestorExists),
        ("/x/out/in", SkipReason::ExcludedByPattern),
        ("/x/out", SkipReason::ExcludedByPattern),
        ("/x/cache", SkipReason::Cache),
        ("/y/z", SkipReason::OutsideEveryFilter),
        ("/y", SkipReason::OutsideEveryFilter),
    ];
    assert_eq!(reasons, expected);
    assert_eq!(report.skipped[1].file, "jcr_root/.content.xml");
    assert!(report.skipped[1].line > 1);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["skipped"][1]["reason"], "excluded_by_pattern");
    assert!(report.to_string().contains("skipped            2  outside every filter"), "{report}");
}

#[test]
fn identifiers_and_bytes_that_the_package_does_not_give_stay() {
    let mut target = Memory::with(tree("/x jcr:uuid=1-2 jcr:created=then p=old"));
    let kept: &mut Subtree = target.root.child_mut("x").unwrap();
    kept.properties.insert("data".into(), Value::Boolean(true).into());
    let text = format!(
        "<jcr:root {JCR}><x jcr:primaryType=\"nt:file\" data=\"{{Binary}}\" none=\"{{Binary}}\"/></jcr:root>"
    );
    let filter = filter("<filter root=\"/x\"/>");
    let entries = [("META-INF/vault/filter.xml", &*filter), ("jcr_root/.content.xml", &*text)];
    let report = install(&mut package(&entries).unwrap(), &mut target).unwrap();
    assert_eq!(
        shown(&target.root),
        "/x data=true jcr:created=then jcr:primaryType=nt:file jcr:uuid=1-2"
    );
    assert_eq!(report.warnings, ["`/x/none` has no data in the package and is not set"]);
}

#[test]
fn elements_without_attributes_give_the_order_only() {
    let text =
        format!("<jcr:root {JCR}><x a=\"1\"><three/><one/><missing/><two b=\"1\"/></x></jcr:root>");
    let filter = filter("<filter root=\"/x\"/>");
    let entries = [("META-INF/vault/filter.xml", &*filter), ("jcr_root/.content.xml", &*text)];
    let mut target = Memory::with(tree("/x/one o=1\n/x/one/below\n/x/two\n/x/three"));
    install(&mut package(&entries).unwrap(), &mut target).unwrap();
    assert_eq!(shown(&target.root), "/x a=1\n/x/three\n/x/one o=1\n/x/one/below\n/x/two b=1");
}

#[test]
fn implied_folders_get_the_type_of_their_parent() {
    let folder = format!("<jcr:root {JCR} jcr:primaryType=\"sling:OrderedFolder\"/>");
    let entries = [
        ("META-INF/vault/filter.xml", &*filter("<filter root=\"/a\"/><filter root=\"/b\"/>")),
        ("jcr_root/a/.content.xml", &*folder),
        ("jcr_root/a/one/two/x.txt", "x"),
        ("jcr_root/b/one/x.txt", "x"),
    ];
    let mut target = Memory::with(tree("/b/one jcr:primaryType=cq:Page t=1\n/b/one/other"));
    install(&mut package(&entries).unwrap(), &mut target).unwrap();
    let of = |path: &str| target.find(path).unwrap().primary_type().to_owned();
    assert_eq!([of("/a/one"), of("/a/one/two")], ["sling:OrderedFolder", "sling:OrderedFolder"]);
    // One that is there stays as it is, and holds then what the package holds.
    assert_eq!(of("/b/one"), "cq:Page");
    assert_eq!(target.find("/b/one").unwrap().text("t"), Some("1"));
    assert_eq!(target.find("/b/one/other"), None);
}

#[test]
fn access_control_follows_its_own_rule() {
    let with = |handling: &str, expected: &str| {
        let properties =
            format!("<properties><entry key=\"acHandling\">{handling}</entry></properties>");
        let entries = [
            (
                "META-INF/vault/filter.xml",
                &*filter(
                    "<filter root=\"/x\" mode=\"merge\"/><filter root=\"/y\"/>\
                     <filter root=\"/z\" mode=\"update_properties\"><exclude pattern=\"/z/out(/.*)?\"/></filter>",
                ),
            ),
            ("META-INF/vault/properties.xml", &*properties),
            ("jcr_root/x/.content.xml", &*format!("<jcr:root {JCR} new=\"1\"/>")),
            (
                "jcr_root/x/_rep_policy.xml",
                &*format!(
                    "<jcr:root {JCR} jcr:primaryType=\"rep:ACL\"><b rep:principalName=\"bob\" n=\"1\"/></jcr:root>"
                ),
            ),
            ("jcr_root/y/.content.xml", &*format!("<jcr:root {JCR} new=\"1\"/>")),
            (
                "jcr_root/z/.content.xml",
                &*format!("<jcr:root {JCR} new=\"1\"><out new=\"1\"/><order/></jcr:root>"),
            ),
        ];
        let mut target = Memory::with(tree(
            "/x/rep:policy/a rep:principalName=ann\n/x/rep:policy/b rep:principalName=bob\n/y/rep:policy/c\n\
             /z/rep:policy/d\n/z/out/rep:policy/e\n/z/order/rep:policy/f\n/z/unnamed/rep:policy/g",
        ));
        install(&mut package(&entries).unwrap(), &mut target).unwrap();
        for path in ["/z/out", "/z/order", "/z/unnamed"] {
            assert!(target.find(path).unwrap().child("rep:policy").is_some(), "{handling} {path}");
        }
        let shown: Vec<String> = ["/x", "/y", "/z"]
            .iter()
            .map(|path| {
                let policy = target.find(path).unwrap().child("rep:policy");
                policy.map_or("none".into(), |policy| {
                    policy
                        .children
                        .iter()
                        .map(|entry| format!("{}{}", entry.name, entry.text("n").unwrap_or("")))
                        .collect::<Vec<_>>()
                        .join(" ")
                })
            })
            .collect();
        assert_eq!(shown.join(", "), expected, "{handling}");
    };
    with("ignore", "a b, c, d");
    with("merge", "a b1, c, d");
    with("merge_preserve", "a b, c, d");
    // Whatever the mode, no policy stays that the package does not bring.
    with("overwrite", "b1, none, none");
    with("clear", "none, none, none");
}

#[test]
fn later_documents_for_a_node_win_and_are_reported() {
    let entries = [
        ("META-INF/vault/filter.xml", &*filter("<filter root=\"/x\"/>")),
        ("jcr_root/x/a/.content.xml", &*format!("<jcr:root {JCR} near=\"1\"/>")),
        (
            "jcr_root/x/.content.xml",
            &*format!("<jcr:root {JCR} p=\"1\"><a far=\"1\"><b c=\"1\"/></a></jcr:root>"),
        ),
    ];
    let mut target = Memory::new();
    let report = install(&mut package(&entries).unwrap(), &mut target).unwrap();
    assert_eq!(shown(&target.root), "/x p=1\n/x/a near=1\n/x/a/b c=1");
    let skipped: Vec<_> =
        report.skipped.iter().map(|one| (one.path.as_str(), one.reason)).collect();
    assert_eq!(skipped, [("/x/a", SkipReason::Superseded)]);
    assert_eq!(report.elements, 4);
    assert_eq!(report.elements_stored, 3);
}

#[test]
fn foreign_prefixes_become_the_usual_ones() {
    let text = "<j:root xmlns:j=\"http://www.jcp.org/jcr/1.0\" xmlns:s=\"http://sling.apache.org/jcr/sling/1.0\" \
                xmlns:acme=\"http://acme\" j:primaryType=\"nt:unstructured\" s:resourceType=\"x\" acme:p=\"1\"/>";
    let entries = [
        ("META-INF/vault/filter.xml", &*filter("<filter root=\"/x\"/>")),
        ("jcr_root/x/.content.xml", text),
    ];
    let mut read = package(&entries).unwrap();
    assert_eq!(read.namespaces()["acme"], "http://acme");
    let mut target = Memory::new();
    install(&mut read, &mut target).unwrap();
    assert_eq!(shown(&target.root), "/x acme:p=1 sling:resourceType=x");
}

#[test]
fn progress_reaches_the_number_of_nodes() {
    let text = document(&tree("/x/a/b\n/x/c"));
    let entries = [
        ("META-INF/vault/filter.xml", &*filter("<filter root=\"/x\"/>")),
        ("jcr_root/.content.xml", &*text),
    ];
    let mut seen = Vec::new();
    let mut read = package(&entries).unwrap();
    read.install(&mut Memory::new(), &mut |progress| {
        seen.push((progress.done_nodes, progress.total_nodes))
    })
    .unwrap();
    assert_eq!(seen, [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]);
}

/// A tree's nodes by path.
fn nodes(node: &Subtree, path: &str, out: &mut BTreeMap<String, BTreeMap<String, Property>>) {
    for child in &node.children {
        let path = format!("{path}/{}", child.name);
        out.insert(path.clone(), child.properties.clone());
        nodes(child, &path, out);
    }
}

fn by_path(root: &Subtree) -> BTreeMap<String, BTreeMap<String, Property>> {
    let mut out = BTreeMap::new();
    nodes(root, "", &mut out);
    out
}

/// Tells whether mode replace removes a path: the package lacks it, and the filter contains it with all that lies
/// between it and the nearest node of the package above, that included. Below what the filter leaves out, nothing is
/// removed.
fn is_removed(
    path: &str,
    root: &str,
    wanted: &BTreeMap<String, BTreeMap<String, Property>>,
    contains: &dyn Fn(&str) -> bool,
) -> bool {
    if wanted.contains_key(path) || !contains(path) {
        return false;
    }
    if path == root {
        return true;
    }
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let parent = if parent.is_empty() { "/" } else { parent };
    contains(parent)
        && (parent == "/"
            || wanted.contains_key(parent)
            || is_removed(parent, root, wanted, contains))
}

pub(crate) fn random_tree() -> impl Strategy<Value = Subtree> {
    prop::collection::vec(("(/[abc]){1,4}", "[pq]=[123]"), 0..12).prop_map(|lines| {
        let text: Vec<String> =
            lines.into_iter().map(|(path, property)| format!("{path} {property}")).collect();
        tree(&text.join("\n"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The documented table of modes, path by path, over random trees and filters.
    #[test]
    fn installations_keep_the_documented_table(
        there in random_tree(),
        brought in random_tree(),
        mode in prop::sample::select(vec!["replace", "merge", "update", "merge_properties", "update_properties"]),
        root in prop::sample::select(vec!["/", "/a", "/a/b", "/c"]),
        rule in prop::sample::select(vec!["", "<exclude pattern=\".*/b\"/>", "<include pattern=\".*/a(/.*)?\"/>"]),
    ) {
        let text = filter(&format!("<filter root=\"{root}\" mode=\"{mode}\">{rule}</filter>"));
        let document = document(&brought);
        let entries = [("META-INF/vault/filter.xml", &*text), ("jcr_root/.content.xml", &*document)];
        let mut target = Memory::with(there.clone());
        install(&mut package(&entries).unwrap(), &mut target).unwrap();
        let parsed = PackageFilter::parse("f", text.as_bytes()).unwrap();
        let contains = |path: &str| {
            matches!(parsed.coverage(&NodePath::new(path).unwrap()), tympan_content::package::FilterCoverage::Contained(_))
        };
        let (before, wanted, after) = (by_path(&there), by_path(&brought), by_path(&target.root));
        for (path, properties) in &before {
            let is_extra = mode == "replace" && is_removed(path, root, &wanted, &contains);
            if !contains(path) || (mode == "merge") {
                prop_assert_eq!(after.get(path), Some(properties), "{} stays", path);
            }
            let has_survivors = after.keys().any(|other| other.starts_with(&format!("{path}/")));
            prop_assert!(is_extra != after.contains_key(path) || has_survivors, "{path} is removed if extra\nBEFORE\n{}\nBROUGHT\n{}\nAFTER\n{}", shown(&there), shown(&brought), shown(&target.root));
        }
        for (path, properties) in wanted.iter().filter(|(path, _)| contains(path)) {
            let stored = after.get(path);
            prop_assert!(stored.is_some(), "{path} is brought");
            let expected = match (mode, before.get(path)) {
                (_, None) | ("replace", _) => properties.clone(),
                ("merge", Some(old)) => old.clone(),
                ("merge_properties", Some(old)) => {
                    let mut both = properties.clone();
                    both.extend(old.clone());
                    both
                }
                (_, Some(old)) => {
                    let mut both = old.clone();
                    both.extend(properties.clone());
                    both
                }
            };
            prop_assert_eq!(stored, Some(&expected), "{}", path);
        }
        for path in after.keys().filter(|path| !before.contains_key(*path)) {
            prop_assert!(wanted.contains_key(path), "{path} comes from the package");
        }
    }
}
