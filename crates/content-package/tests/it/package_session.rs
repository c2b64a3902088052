//! Packages in sessions: what is stored is what the same installation leaves in memory.

use std::time::SystemTime;

use proptest::prelude::*;
use tympan_content::{JCR_CONTENT, NodePath, Repository, Session, Subtree, Value};
use tympan_content_package::{ContentPackage, PackageLimits};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_modes::{document, filter, random_tree};
use crate::package_target::{Memory, install, package};

const PACKAGES: [&str; 4] = [
    "core.wcm.components.content-2.29.0.zip",
    "core.wcm.components.examples.ui.content-2.26.0.zip",
    "wknd.ui.content.sample.zip",
    "wknd.ui.content.zip",
];

/// Types whose children have no order of their own.
const UNORDERED: [&str; 7] = [
    "rep:root",
    "nt:folder",
    "sling:Folder",
    "oak:Unstructured",
    "rep:AuthorizableFolder",
    "nt:file",
    "nt:resource",
];

fn commit(session: &mut Session) {
    session.commit("package", SystemTime::UNIX_EPOCH).unwrap();
}

/// Sorts the children of nodes that give them no order. A page's content, which is stored with it, comes first.
pub(crate) fn sorted(mut node: Subtree) -> Subtree {
    node.children = node.children.into_iter().map(sorted).collect();
    if UNORDERED.contains(&node.primary_type()) {
        node.children.sort_by(|left, right| left.name.cmp(&right.name));
    }
    if node.primary_type() == "cq:Page" {
        node.children.sort_by_key(|child| child.name != JCR_CONTENT);
    }
    node
}

/// Returns the tree below the root, as a later reader of the repository sees it; without what the system keeps of node
/// types and namespaces, which memory does not know.
pub(crate) fn stored(repository: &Repository) -> Vec<Subtree> {
    let mut root = repository.snapshot().unwrap().read_subtree(&NodePath::root()).unwrap().unwrap();
    root.remove_child("jcr:system");
    sorted(Subtree { name: "root".into(), ..root }).children.into_iter().collect()
}

/// Fails at the first difference, with its path.
pub(crate) fn assert_same(left: &[Subtree], right: &[Subtree], path: &str) {
    let names = |nodes: &[Subtree]| nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(left), names(right), "below {path}/");
    for (left, right) in left.iter().zip(right) {
        let path = format!("{path}/{}", left.name);
        assert_eq!(left.properties, right.properties, "{path}");
        assert_same(&left.children, &right.children, &path);
    }
}

#[test]
fn sessions_store_real_packages_as_memory_does() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("admin").unwrap();
    let mut memory = Memory::new();
    for name in PACKAGES {
        let open = || ContentPackage::open(&folder.join(name), &PackageLimits::default()).unwrap();
        let report = open().install(&mut session, &mut |_| {}).unwrap();
        commit(&mut session);
        assert_eq!(report, install(&mut open(), &mut memory).unwrap(), "{name}");
        let wanted = sorted(memory.root.clone());
        assert_same(&stored(&repository), &wanted.children, "");
    }
    for (id, bytes) in &memory.blobs {
        let node = find_blob(&memory.root, id).unwrap_or_else(|| panic!("{id} is used"));
        let blob = repository.blobs().open(&node).unwrap().unwrap();
        assert_eq!(blob.length(), bytes.len() as u64);
    }
}

fn find_blob(node: &Subtree, id: &str) -> Option<tympan_content::BlobId> {
    let own = node.properties.values().flat_map(|property| property.values());
    let found = own.into_iter().find_map(|value| match value {
        Value::Binary(blob) if blob.to_string() == id => Some(*blob),
        _ => None,
    });
    found.or_else(|| node.children.iter().find_map(|child| find_blob(child, id)))
}

#[test]
fn a_second_installation_leaves_nothing_to_commit() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    let repository = Repository::in_memory().unwrap();
    for name in PACKAGES {
        let mut session = repository.session("admin").unwrap();
        let open = || ContentPackage::open(&folder.join(name), &PackageLimits::default()).unwrap();
        open().install(&mut session, &mut |_| {}).unwrap();
        commit(&mut session);
        open().install(&mut session, &mut |_| {}).unwrap();
        assert!(!session.has_changes().unwrap(), "{name}");
    }
}

/// Gives nodes at odd depths another type, so that trees are cut into documents at many places.
fn varied(mut node: Subtree, depth: usize, primary_type: &str) -> Subtree {
    if depth % 2 == 1 {
        let name = Value::Name(primary_type.to_owned());
        node.properties.insert("jcr:primaryType".into(), name.into());
    }
    let children = node.children.into_iter();
    node.children = children.map(|child| varied(child, depth + 1, primary_type)).collect();
    node
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// The two targets of packages, one with all methods of its own and one with four, end up with the same content.
    #[test]
    fn sessions_and_memory_agree(
        there in random_tree(),
        brought in random_tree(),
        mode in prop::sample::select(vec!["replace", "merge", "update", "merge_properties", "update_properties"]),
        root in prop::sample::select(vec!["/a", "/a/b", "/c"]),
        rule in prop::sample::select(vec!["", "<exclude pattern=\".*/b\"/>", "<include pattern=\".*/a(/.*)?\"/>"]),
        types in prop::sample::select(vec![("cq:Page", "cq:Page"), ("sling:Folder", "nt:unstructured"), ("nt:unstructured", "cq:Page")]),
    ) {
        let (there, brought) = (sorted(varied(there, 0, types.0)), varied(brought, 0, types.1));
        let filter = filter(&format!("<filter root=\"{root}\" mode=\"{mode}\">{rule}</filter>"));
        let document = document(&brought);
        let entries = [("META-INF/vault/filter.xml", &*filter), ("jcr_root/.content.xml", &*document)];
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("admin").unwrap();
        for child in &there.children {
            let path = NodePath::root().child(&child.name).unwrap();
            session.put_node(&path, child.clone()).unwrap();
        }
        let mut memory = Memory::with(there);
        package(&entries).unwrap().install(&mut session, &mut |_| {}).unwrap();
        install(&mut package(&entries).unwrap(), &mut memory).unwrap();
        // The trees follow no node types.
        session.mark_as_received();
        commit(&mut session);
        assert_same(&stored(&repository), &sorted(memory.root).children, "");
    }
}

/// The node types of packages and the namespaces of their documents are known afterwards; those that were, stay.
#[test]
fn node_types_and_namespaces_of_packages_are_registered() {
    const CND: &str = "<'acme'='http://acme.example/1.0'>\n[acme:Thing] > nt:base\n  - acme:size (long)\n  + * (nt:base)\n[sling:Folder] > nt:folder\n";
    const DOCUMENT: &str = "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:other=\"http://other.example\" \
        jcr:primaryType=\"nt:unstructured\" other:p=\"1\"/>";
    let filter = filter("<filter root=\"/x\"/>");
    let entries = |cnd: &'static str| {
        [
            ("META-INF/vault/filter.xml", filter.clone()),
            ("META-INF/vault/nodetypes.cnd", cnd.to_owned()),
            ("jcr_root/x/.content.xml", DOCUMENT.to_owned()),
        ]
    };
    let install = |repository: &Repository, cnd: &'static str| {
        let entries = entries(cnd);
        let entries = entries.each_ref().map(|(name, text)| (*name, text.as_str()));
        let mut session = repository.session("admin").unwrap();
        let report = package(&entries).unwrap().install(&mut session, &mut |_| {}).unwrap();
        commit(&mut session);
        report
    };
    let repository = Repository::in_memory().unwrap();
    assert_eq!(install(&repository, CND).warnings, [""; 0]);
    let snapshot = repository.snapshot().unwrap();
    let types = snapshot.node_types().unwrap();
    assert!(types.find("acme:Thing").is_some());
    assert!(types.custom_definitions().all(|one| one.name != "sling:Folder"), "known ones stay");
    let namespaces = snapshot.namespaces().unwrap();
    assert_eq!(namespaces.uri("acme"), Some("http://acme.example/1.0"));
    assert_eq!(namespaces.uri("other"), Some("http://other.example"));
    // A package that is built brings both along.
    let filter = tympan_content_package::PackageFilter::parse("f", filter.as_bytes()).unwrap();
    let manifest = tympan_content_package::build::PackageManifest::from_snapshot(
        &snapshot,
        tympan_content_package::PackageId::parse("g:n"),
        filter,
    )
    .unwrap();
    let mut out = std::io::Cursor::new(Vec::new());
    let limits = PackageLimits::default();
    tympan_content_package::build::write_package(&mut out, &manifest, &snapshot, &limits).unwrap();
    let mut built = ContentPackage::read(out, "built.zip", &PackageLimits::default()).unwrap();
    let other = Repository::in_memory().unwrap();
    let mut session = other.session("admin").unwrap();
    assert_eq!(built.install(&mut session, &mut |_| {}).unwrap().warnings, [""; 0]);
    commit(&mut session);
    assert!(other.snapshot().unwrap().node_types().unwrap().find("acme:Thing").is_some());
    // What makes no sense is a warning, and the content is there.
    let broken = Repository::in_memory().unwrap();
    let report = install(&broken, "[acme:Thing > nt:base");
    assert_eq!(report.warnings.len(), 1);
    assert!(
        report.warnings[0]
            .starts_with("cannot register the node types in `META-INF/vault/nodetypes.cnd`: "),
        "{report}"
    );
    assert!(broken.snapshot().unwrap().node(&NodePath::new("/x").unwrap()).unwrap().is_some());
}
