//! Packages that are stored in content: listed, installed with what they need, uninstalled, tried.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tympan_content::{BlobId, Error as ContentError, NodePath, Property, Repository, Subtree};
use tympan_content_package::{
    AuditStamp, ContentPackage, DependencyRule, Error, IfPackageExists, InstallOptions,
    InstallReport, NestedPackageRule, NodeChangeKind, PackageId, PackageInstallation,
    PackageLimits, PackageSession, Result, StoredPackages,
};
use tympan_testkit::blobs::{BlobStore, MemoryBlobStore};
use tympan_testkit::fixture_folder::fixture_folder;
use tympan_testkit::store::{ChunkStore, GarbageCollectionOptions, LocalStore, RevisionRetention};

use crate::package_modes::{document, filter, random_tree, tree};
use crate::package_target::zipped;

fn stamp() -> AuditStamp {
    AuditStamp { user: "ann".into(), time: SystemTime::UNIX_EPOCH }
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// Makes a package of a tree; `id` is `group:name:version`.
fn made(id: &str, properties: &[(&str, &str)], filters: &str, content: &Subtree) -> Vec<u8> {
    let id = PackageId::parse(id);
    let own = [("group", &*id.group), ("name", &id.name), ("version", &id.version)];
    let entries: String = own
        .iter()
        .chain(properties)
        .map(|(key, value)| format!("<entry key=\"{key}\">{value}</entry>"))
        .collect();
    zipped(&[
        ("META-INF/vault/properties.xml", &format!("<properties>{entries}</properties>")),
        ("META-INF/vault/filter.xml", &filter(filters)),
        ("jcr_root/.content.xml", &document(content)),
    ])
}

fn simple(id: &str, needs: &str) -> Vec<u8> {
    let parsed = PackageId::parse(id);
    let root = format!("/tmp/{}", parsed.name);
    let content = tree(&format!("{root} version={}", parsed.version));
    made(id, &[("dependencies", needs)], &format!("<filter root=\"{root}\"/>"), &content)
}

fn store(repository: &Repository, bytes: &[u8]) -> NodePath {
    let mut session = repository.session("ann").unwrap();
    let stored = PackageSession::new(&mut session)
        .store(&mut Cursor::new(bytes), "test.zip", IfPackageExists::Replace, &stamp())
        .unwrap();
    session.commit("store", SystemTime::UNIX_EPOCH).unwrap();
    stored.path
}

fn install_with(
    repository: &Repository,
    at: &NodePath,
    options: &InstallOptions,
) -> Result<InstallReport> {
    let how = PackageInstallation { options, stamp: &stamp(), on_progress: &mut |_| {} };
    PackageSession::new(&mut repository.session("ann")?).install(at, how)
}

fn install(repository: &Repository, at: &NodePath) -> InstallReport {
    install_with(repository, at, &InstallOptions::default()).unwrap()
}

fn uninstall(repository: &Repository, at: &NodePath) -> tympan_content_package::UninstallReport {
    let mut session = repository.session("ann").unwrap();
    PackageSession::new(&mut session).uninstall(at, DependencyRule::Required, &stamp()).unwrap()
}

fn text(repository: &Repository, node: &str, property: &str) -> Option<String> {
    repository.snapshot().unwrap().node(&path(node)).unwrap()?.text(property)
}

fn has(repository: &Repository, node: &str) -> bool {
    repository.snapshot().unwrap().node(&path(node)).unwrap().is_some()
}

fn listed(repository: &Repository) -> Vec<String> {
    let packages = StoredPackages::new(&repository.snapshot().unwrap()).list().unwrap();
    let mark = |installed| if installed { " installed" } else { "" };
    packages.iter().map(|one| format!("{}{}", one.id, mark(one.is_installed()))).collect()
}

#[test]
fn packages_are_stored_listed_and_found() {
    let repository = Repository::in_memory().unwrap();
    for id in ["g:n:2.10", "g:n:2.9", "g/deep:m", "a:z:1-SNAPSHOT"] {
        store(&repository, &simple(id, ""));
    }
    assert_eq!(listed(&repository), ["a:z:1-SNAPSHOT", "g:n:2.9", "g:n:2.10", "g/deep:m"]);
    let snapshot = repository.snapshot().unwrap();
    let newest = StoredPackages::new(&snapshot).find(&PackageId::parse("g:n")).unwrap().unwrap();
    assert_eq!(newest.path.as_str(), "/etc/packages/g/n-2.10.zip");
    assert_eq!((newest.created_by.as_deref(), newest.last_unpacked), (Some("ann"), None));
    assert!(!has(&repository, "/tmp"), "nothing is installed");
    let content = snapshot.node(&newest.path).unwrap().unwrap().content_node().unwrap().unwrap();
    assert_eq!(content.text("jcr:mimeType").as_deref(), Some("application/zip"));
    let root = content.find_descendant("vlt:definition/filter/f0").unwrap().unwrap();
    assert_eq!(root.text("root").as_deref(), Some("/tmp/n"));
}

#[test]
fn a_stored_package_is_replaced_only_if_asked() {
    let repository = Repository::in_memory().unwrap();
    let at = store(&repository, &simple("g:n:1", ""));
    install(&repository, &at);
    let mut session = repository.session("ann").unwrap();
    let again = PackageSession::new(&mut session).store(
        &mut Cursor::new(simple("g:n:1", "")),
        "x",
        IfPackageExists::Refuse,
        &stamp(),
    );
    assert!(matches!(again, Err(Error::Content(ContentError::NodeExists(there))) if there == at));
    store(&repository, &simple("g:n:1", "g:other"));
    assert_eq!(listed(&repository), ["g:n:1 installed"], "its content is still there");
}

#[test]
fn an_installation_is_one_commit() {
    let repository = Repository::in_memory().unwrap();
    store(&repository, &simple("g:c:1", ""));
    let at = store(&repository, &simple("g:b:1", "g:c"));
    let before = repository.revisions(None, 100).unwrap().len();
    let report = install(&repository, &at);
    assert_eq!(repository.revisions(None, 100).unwrap().len(), before + 1);
    assert_eq!(report.required.len(), 1);
    assert_eq!(text(&repository, "/tmp/c", "version").as_deref(), Some("1"));
    assert_eq!(listed(&repository), ["g:b:1 installed", "g:c:1 installed"]);
    let names: Vec<_> = repository.branches().unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["main"], "what it replaced is no branch");
}

/// Packages a to e as FileVault's tests have them; what is stored, whether it is installed first, the rule, the result.
#[test]
fn dependencies_follow_the_rule() {
    const NEEDS: [(&str, &str); 8] = [
        ("p:a:1.0", "p:b,p:c:[1.0,2.0)"),
        ("p:a:2.0", "p:b,p:c:[2.0,3.0)"),
        ("p:b:1.0", "p:c"),
        ("p:c:1.0", ""),
        ("p:c:1.1", ""),
        ("p:c:2.0", ""),
        ("p:d:1.0", "p:b,p:e"),
        ("p:e:1.0", "p:d"),
    ];
    let needs: BTreeMap<&str, &str> = NEEDS.into();
    let check = |stored: &[&str], asked: &str, rule: DependencyRule, expected: &str| {
        let repository = Repository::in_memory().unwrap();
        for name in stored {
            let (id, is_installed) = name.strip_prefix('*').map_or((*name, false), |id| (id, true));
            let at = store(&repository, &simple(id, needs[id]));
            if is_installed {
                let options = InstallOptions {
                    dependency_rule: DependencyRule::Ignore,
                    ..Default::default()
                };
                install_with(&repository, &at, &options).unwrap();
            }
        }
        let at = store(&repository, &simple(asked, needs[asked]));
        let before = repository.head_root().unwrap();
        let options = InstallOptions { dependency_rule: rule, ..InstallOptions::default() };
        let shown = match install_with(&repository, &at, &options) {
            Ok(_) => listed(&repository)
                .iter()
                .filter_map(|line| line.strip_suffix(" installed"))
                .map(|id| id.trim_start_matches("p:").to_owned())
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => {
                assert_eq!(repository.head_root().unwrap(), before, "nothing is committed");
                format!("refused: {error}")
            }
        };
        assert_eq!(shown, expected, "{asked} over {stored:?} with {rule:?}");
    };
    use DependencyRule::{BestEffort, Ignore, Required, Strict};
    check(
        &[],
        "p:b:1.0",
        Strict,
        "refused: p:b:1.0: it needs `p:c`, which is not stored here; store that package first",
    );
    check(
        &["p:b:1.0"],
        "p:a:1.0",
        Required,
        "refused: p:b:1.0: it needs `p:c`, which is not stored here; store that package first",
    );
    check(
        &["p:c:1.0"],
        "p:b:1.0",
        Strict,
        "refused: p:b:1.0: it needs `p:c`, and `p:c:1.0` is stored but not installed",
    );
    check(&["p:c:1.0"], "p:b:1.0", Required, "b:1.0 c:1.0");
    check(&["*p:c:1.0"], "p:b:1.0", Strict, "b:1.0 c:1.0");
    check(
        &["*p:c:1.0"],
        "p:a:2.0",
        Strict,
        "refused: p:a:2.0: it needs `p:b`, which is not stored here; store that package first",
    );
    check(&["p:c:1.0", "p:c:1.1", "p:c:2.0", "p:b:1.0"], "p:a:1.0", Ignore, "a:1.0");
    // The newest that fits; `b` takes the newest of all.
    check(&["*p:c:1.1", "p:c:2.0", "p:b:1.0"], "p:a:1.0", Required, "a:1.0 b:1.0 c:1.1");
    check(&["p:c:1.0", "p:c:1.1", "p:c:2.0", "p:b:1.0"], "p:a:2.0", Required, "a:2.0 b:1.0 c:2.0");
    check(&["p:c:1.0"], "p:a:1.0", BestEffort, "a:1.0 c:1.0");
    check(
        &["p:b:1.0", "p:c:1.0", "p:e:1.0"],
        "p:d:1.0",
        Required,
        "refused: p:e:1.0: `p:d:1.0` and `p:e:1.0` depend on each other",
    );
    check(&["p:b:1.0", "p:c:1.0", "p:e:1.0"], "p:d:1.0", BestEffort, "b:1.0 c:1.0 d:1.0 e:1.0");
}

#[test]
fn an_installed_package_that_is_needed_is_not_uninstalled() {
    let repository = Repository::in_memory().unwrap();
    let needed = store(&repository, &simple("p:c:1.0", ""));
    let at = store(&repository, &simple("p:b:1.0", "p:c"));
    install(&repository, &at);
    let mut session = repository.session("ann").unwrap();
    let refused =
        PackageSession::new(&mut session).uninstall(&needed, DependencyRule::Required, &stamp());
    assert_eq!(
        refused.unwrap_err().to_string(),
        "p:c:1.0: the installed package `p:b:1.0` needs it"
    );
    let mut session = repository.session("ann").unwrap();
    let done = PackageSession::new(&mut session)
        .uninstall(&needed, DependencyRule::Ignore, &stamp())
        .unwrap();
    assert_eq!(done.warnings, ["the installed package `p:b:1.0` needs it"]);
    assert!(!has(&repository, "/tmp/c"));
    assert_eq!(listed(&repository), ["p:b:1.0 installed", "p:c:1.0"]);
}

/// Packages of FileVault's tests with others within: what is stored and installed, and what uninstalling leaves.
#[test]
fn packages_within_go_with_the_outer_one() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let run = |file: &str, options: &InstallOptions, expected: &[&str], nodes: [bool; 2]| {
        let repository = Repository::in_memory().unwrap();
        let at = store(&repository, &std::fs::read(folder.join(file)).unwrap());
        install_with(&repository, &at, options).unwrap();
        assert_eq!(listed(&repository), expected, "{file}");
        assert_eq!(["/tmp/a", "/tmp/b"].map(|node| has(&repository, node)), nodes, "{file}");
        let snapshot = repository.snapshot().unwrap();
        for one in StoredPackages::new(&snapshot)
            .list()
            .unwrap()
            .iter()
            .filter(|one| one.id.name.starts_with("sub_"))
        {
            let needs: Vec<_> = one.dependencies.iter().map(ToString::to_string).collect();
            assert_eq!(needs, ["my_packages:subtest"], "they need the one they came with");
        }
        drop(snapshot);
        let done = uninstall(&repository, &at);
        assert_eq!((done.kept.len(), done.warnings.len()), (0, 0), "{file}: {done:?}");
        assert_eq!(listed(&repository), ["my_packages:subtest"]);
        assert!(!has(&repository, "/tmp"), "{file}");
    };
    let all = [
        "my_packages:sub_a installed",
        "my_packages:sub_b installed",
        "my_packages:subtest installed",
    ];
    let one = ["my_packages:sub_a", "my_packages:sub_b installed", "my_packages:subtest installed"];
    let none = ["my_packages:sub_a", "my_packages:sub_b", "my_packages:subtest installed"];
    let said = InstallOptions::default();
    run("subtest.zip", &said, &all, [true, true]);
    run("subtest_add_a.zip", &said, &one, [false, true]);
    run("subtest_extract_a.zip", &said, &all, [true, true]);
    let stored =
        InstallOptions { nested_rule: NestedPackageRule::Store, ..InstallOptions::default() };
    run("subtest.zip", &stored, &none, [false, false]);
}

fn outer(version: &str, handling: &str, inner: &str) -> Vec<u8> {
    let inner_file = format!("jcr_root/etc/packages/g/inner-{inner}.zip");
    let root = format!("/etc/packages/g/inner-{inner}.zip");
    let properties = format!(
        "<properties><entry key=\"group\">g</entry><entry key=\"name\">outer</entry>\
         <entry key=\"version\">{version}</entry><entry key=\"subPackageHandling\">{handling}</entry></properties>"
    );
    let filters = filter(&format!("<filter root=\"{root}\"/>"));
    let bytes = simple(&format!("g:inner:{inner}"), "");
    let entries: [(&str, &[u8]); 3] = [
        ("META-INF/vault/properties.xml", properties.as_bytes()),
        ("META-INF/vault/filter.xml", filters.as_bytes()),
        (&inner_file, &bytes),
    ];
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut zip, bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn older_packages_within_wait_behind_newer_ones() {
    let check = |first: &str, handling: &str, second: &str, expected: &str| {
        let repository = Repository::in_memory().unwrap();
        let at = store(&repository, &outer("1", "*;install", first));
        install(&repository, &at);
        let at = store(&repository, &outer("2", handling, second));
        let report = install(&repository, &at);
        assert_eq!(text(&repository, "/tmp/inner", "version").as_deref(), Some(expected));
        assert_eq!(report.nested.len() == 1, expected == second, "{report}");
    };
    check("1.0.1", "", "1.0", "1.0.1");
    check("1.0", "", "1.0.1", "1.0.1");
    check("1.0.1", "g:inner;force_install", "1.0", "1.0");
    check("1.0.1", "*;force_extract", "1.0", "1.0");
    check("1.0-SNAPSHOT", "", "1.0", "1.0");
    check("1.0", "", "1.0-SNAPSHOT", "1.0");
}

#[test]
fn uninstalling_leaves_what_others_changed() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    for child in tree("/x/a p=old own=1\n/x/b q=old\n/x/gone g=1\n/y z=1").children {
        let at = NodePath::root().child(&child.name).unwrap();
        session.put_node(&at, child).unwrap();
    }
    session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
    let brought = tree("/x/a p=new own=2\n/x/b q=new\n/x/fresh f=1\n/x/other o=1");
    let at = store(&repository, &made("g:n:1", &[], "<filter root=\"/x\"/>", &brought));
    install(&repository, &at);
    assert!(!has(&repository, "/x/gone"));
    let mut session = repository.session("bob").unwrap();
    session.set_property(&path("/x/a"), "own", "bob".into()).unwrap();
    session.set_property(&path("/x/a"), "more", "bob".into()).unwrap();
    session.set_property(&path("/x/fresh"), "f", "bob".into()).unwrap();
    session.set_property(&path("/y"), "z", "bob".into()).unwrap();
    session.commit("meanwhile", SystemTime::UNIX_EPOCH).unwrap();
    let done = uninstall(&repository, &at);
    let kept: Vec<String> = done
        .kept
        .iter()
        .map(|one| {
            format!("{} {} {}", one.path, one.property.as_deref().unwrap_or("-"), one.kind.name())
        })
        .collect();
    assert_eq!(kept, ["/x/a own changeChangedProperty", "/x/fresh - removeChangedNode"]);
    let of = |node: &str, property: &str| text(&repository, node, property);
    assert_eq!(of("/x/a", "own").as_deref(), Some("bob"));
    assert_eq!(of("/x/a", "more").as_deref(), Some("bob"));
    assert_eq!(of("/x/a", "p").as_deref(), Some("old"));
    assert_eq!(of("/x/b", "q").as_deref(), Some("old"));
    assert_eq!(of("/x/gone", "g").as_deref(), Some("1"));
    assert!(!has(&repository, "/x/other"));
    assert_eq!(text(&repository, "/y", "z").as_deref(), Some("bob"));
    assert_eq!(listed(&repository), ["g:n:1"]);
}

#[test]
fn what_others_put_below_a_new_folder_stays_with_it() {
    let repository = Repository::in_memory().unwrap();
    let folder = "jcr:primaryType=sling:Folder";
    let brought = tree(&format!("/x {folder}\n/x/in {folder}\n/x/in/mine m=1\n/x/out {folder}"));
    let at = store(&repository, &made("g:n:1", &[], "<filter root=\"/x\"/>", &brought));
    install(&repository, &at);
    let mut session = repository.session("bob").unwrap();
    session.add_node(&path("/x/in/theirs"), "nt:unstructured").unwrap();
    session.commit("meanwhile", SystemTime::UNIX_EPOCH).unwrap();
    let done = uninstall(&repository, &at);
    let kept: Vec<_> = done.kept.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(kept, ["/x/in", "/x"]);
    assert!(has(&repository, "/x/in/theirs"));
    assert!(!has(&repository, "/x/in/mine") && !has(&repository, "/x/out"));
}

/// Where one document holds `/etc` with the stored packages, the rest of it goes back all the same.
#[test]
fn what_lies_beside_a_stored_package_goes_back() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/etc"), tree("/etc/mine p=1").children.remove(0)).unwrap();
    session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
    let filters = "<filter root=\"/etc/mine\"/><filter root=\"/etc/new\"/>";
    let at = store(&repository, &made("g:n:1", &[], filters, &tree("/etc/mine p=2\n/etc/new")));
    install(&repository, &at);
    assert_eq!(text(&repository, "/etc/mine", "p").as_deref(), Some("2"));
    assert_eq!(uninstall(&repository, &at).kept, []);
    assert_eq!(text(&repository, "/etc/mine", "p").as_deref(), Some("1"));
    assert!(!has(&repository, "/etc/new"));
    assert_eq!(listed(&repository), ["g:n:1"]);
}

#[test]
fn two_installations_are_undone_to_before_the_first() {
    let repository = Repository::in_memory().unwrap();
    let made_of = |text: &str| made("g:n:1", &[], "<filter root=\"/x\"/>", &tree(text));
    let at = store(&repository, &made_of("/x/a p=1"));
    install(&repository, &at);
    store(&repository, &made_of("/x/b p=2"));
    install(&repository, &at);
    assert!(has(&repository, "/x/b") && !has(&repository, "/x/a"));
    assert_eq!(uninstall(&repository, &at).kept, []);
    assert!(!has(&repository, "/x"));
}

#[test]
fn what_a_package_replaced_outlives_the_garbage() {
    let chunks = Arc::new(LocalStore::open_in_memory().unwrap());
    let repository =
        Repository::open(chunks.clone(), Arc::new(MemoryBlobStore::default())).unwrap();
    let long = "long ".repeat(500);
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/x"), Subtree::new("x", "sling:Folder")).unwrap();
    let old = Subtree::new("old", "nt:unstructured").with_property("text", long.as_str());
    session.put_node(&path("/x/old"), old).unwrap();
    session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
    let brought = tree("/x jcr:primaryType=sling:Folder\n/x/new n=1");
    let at = store(&repository, &made("g:n:1", &[], "<filter root=\"/x\"/>", &brought));
    install(&repository, &at);
    assert!(!has(&repository, "/x/old"));
    // Years later, with no history kept.
    let retention = RevisionRetention {
        full_period: Duration::ZERO,
        hourly_count: 0,
        daily_count: 0,
        weekly_count: 0,
    };
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 32);
    let options = GarbageCollectionOptions { retention, ..GarbageCollectionOptions::at_time(now) };
    let head = repository.snapshot().unwrap().root_id();
    chunks.collect_garbage(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(repository.head_root().unwrap(), head);
    assert_eq!(uninstall(&repository, &at).kept, []);
    assert_eq!(text(&repository, "/x/old", "text"), Some(long));
    assert!(!has(&repository, "/x/new"));
}

/// Blobs on a disk that has room for so many more.
#[derive(Debug)]
struct Filling {
    blobs: MemoryBlobStore,
    left: AtomicUsize,
}

impl BlobStore for Filling {
    fn put(&self, source: &mut dyn std::io::Read) -> tympan_testkit::blobs::Result<BlobId> {
        let took = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, took).is_err() {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(tympan_testkit::blobs::Error::Disk {
                action: "write",
                path: "blob".into(),
                source,
            });
        }
        self.blobs.put(source)
    }

    fn open(
        &self,
        id: &BlobId,
    ) -> tympan_testkit::blobs::Result<Option<tympan_content::BlobContent>> {
        self.blobs.open(id)
    }

    fn contains(&self, id: &BlobId) -> tympan_testkit::blobs::Result<bool> {
        self.blobs.contains(id)
    }
}

#[test]
fn a_full_disk_leaves_nothing_half_installed() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let bytes = std::fs::read(folder.join("tmp_test_deep.zip")).unwrap();
    let mut finished = false;
    for room in 0..20 {
        let blobs = Arc::new(Filling { blobs: MemoryBlobStore::default(), left: room.into() });
        let chunks = Arc::new(LocalStore::open_in_memory().unwrap());
        let repository = Repository::open(chunks, blobs.clone()).unwrap();
        let before = repository.head_root().unwrap();
        let mut package =
            ContentPackage::read(Cursor::new(&bytes), "deep.zip", &PackageLimits::default())
                .unwrap();
        let install = |package: &mut ContentPackage<_>| {
            let options = InstallOptions::default();
            let how = PackageInstallation {
                options: &options,
                stamp: &stamp(),
                on_progress: &mut |_| {},
            };
            let mut session = repository.session("ann").unwrap();
            PackageSession::new(&mut session).install_file(package, &mut &*bytes, how)
        };
        if install(&mut package).is_err() {
            assert_eq!(repository.head_root().unwrap(), before, "room for {room}");
            assert_eq!(repository.branches().unwrap().len(), 1);
            // With room again, the same call does it.
            blobs.left.store(100, Ordering::SeqCst);
            install(&mut package).unwrap();
            assert!(has(&repository, "/tmp/test/content/foo"), "room for {room}");
        } else {
            finished = true;
        }
    }
    assert!(finished);
}

#[test]
fn a_new_package_is_built_from_its_filter() {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    session.put_node(&path("/x"), tree("/x/a p=1\n/x/b q=1").children.remove(0)).unwrap();
    let filters = filter("<filter root=\"/x\"><exclude pattern=\"/x/b\"/></filter>");
    let filters = tympan_content_package::PackageFilter::parse("f", filters.as_bytes()).unwrap();
    let id = PackageId::parse("g:mine:1");
    let stored = PackageSession::new(&mut session).create(&id, &filters, &stamp()).unwrap();
    let report = PackageSession::new(&mut session)
        .build(&stored.path, &mut Cursor::new(Vec::new()), &stamp(), &PackageLimits::default())
        .unwrap();
    session.commit("built", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(report.nodes, 3);
    let snapshot = repository.snapshot().unwrap();
    let stored = StoredPackages::new(&snapshot).find(&id).unwrap().unwrap();
    let package = StoredPackages::new(&snapshot).open(&stored, &PackageLimits::default()).unwrap();
    assert_eq!(package.id(), &id);
    let paths = [path("/x/a"), path("/x/b")];
    assert_eq!(paths.map(|at| package.root().find_descendant(&at).is_some()), [true, false]);
    let mut session = repository.session("ann").unwrap();
    PackageSession::new(&mut session).remove(&stored.path, &stamp()).unwrap();
    assert_eq!(listed(&repository), [""; 0]);
}

fn nodes(root: &Subtree) -> BTreeMap<String, BTreeMap<String, Property>> {
    fn add(node: &Subtree, at: &str, out: &mut BTreeMap<String, BTreeMap<String, Property>>) {
        for child in &node.children {
            let at = format!("{at}/{}", child.name);
            out.insert(at.clone(), child.properties.clone());
            add(child, &at, out);
        }
    }
    let mut out = BTreeMap::new();
    add(root, "", &mut out);
    out
}

fn content(repository: &Repository) -> Subtree {
    let mut root = repository.snapshot().unwrap().read_subtree(&NodePath::root()).unwrap().unwrap();
    root.remove_child("etc");
    root
}

fn varied(mut node: Subtree, depth: usize, primary_type: &str) -> Subtree {
    if depth % 2 == 1 {
        node.properties.insert("jcr:primaryType".into(), Property::name(primary_type));
    }
    node.children =
        node.children.into_iter().map(|child| varied(child, depth + 1, primary_type)).collect();
    node
}

/// An update of each node of a document decodes and encodes that document a bounded number of times: this test takes
/// minutes where it does so for each node.
#[test]
fn documents_with_many_nodes_are_updated_and_emptied() {
    let repository = Repository::in_memory().unwrap();
    let filters = "<filter root=\"/tmp/many\"/>";
    let install_values = |id: &str, value: &str, count: usize| {
        let mut many = Subtree::new("many", "nt:unstructured");
        for number in 0..count {
            let mut child = Subtree::new(format!("n{number}"), "nt:unstructured");
            child.properties.insert("value".to_owned(), format!("{value}{number}").as_str().into());
            many.children.push(child);
        }
        let mut root = Subtree::new("", "rep:root");
        let mut tmp = Subtree::new("tmp", "sling:Folder");
        tmp.children.push(many);
        root.children.push(tmp);
        let bytes = made(id, &[], filters, &root);
        let mut trial = repository.session("ann").unwrap();
        let mut package =
            ContentPackage::read(Cursor::new(&bytes), "x", &PackageLimits::default()).unwrap();
        let options = InstallOptions::default();
        let mut installer = PackageSession::new(&mut trial);
        let (difference, _) = installer.preview(&mut package, &options, usize::MAX).unwrap();
        let report = install(&repository, &store(&repository, &bytes));
        (difference, report)
    };
    const COUNT: usize = 4_000;
    assert_eq!(install_values("g:n:1", "a", COUNT).1.nodes_created, COUNT + 2);
    let (difference, report) = install_values("g:n:2", "b", COUNT);
    assert_eq!(report.nodes_changed, COUNT);
    assert_eq!(difference.count_changes(NodeChangeKind::Changed), COUNT);
    let many = repository.snapshot().unwrap().node(&path("/tmp/many")).unwrap().unwrap();
    let values: Vec<_> =
        many.children().unwrap().iter().map(|child| child.text("value").unwrap()).collect();
    assert_eq!(values, (0..COUNT).map(|number| format!("b{number}")).collect::<Vec<_>>());
    let (difference, _) = install_values("g:n:3", "b", 0);
    assert_eq!(difference.count_changes(NodeChangeKind::Removed), COUNT);
    let many = repository.snapshot().unwrap().node(&path("/tmp/many")).unwrap().unwrap();
    assert_eq!(many.children().unwrap().len(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A trial says exactly what the installation does, and undoing gives what was before, wherever documents are cut.
    #[test]
    fn trials_are_exact_and_installations_can_be_undone(
        there in random_tree(),
        brought in random_tree(),
        mode in prop::sample::select(vec!["replace", "merge", "update", "merge_properties", "update_properties"]),
        root in prop::sample::select(vec!["/a", "/a/b", "/c"]),
        types in prop::sample::select(vec![("sling:OrderedFolder", "sling:OrderedFolder"), ("sling:Folder", "nt:unstructured"), ("nt:unstructured", "sling:OrderedFolder")]),
    ) {
        let (there, brought) = (varied(there, 0, types.0), varied(brought, 0, types.1));
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        for child in there.children {
            session.put_node(&NodePath::root().child(&child.name).unwrap(), child).unwrap();
        }
        session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
        let bytes = made("g:n:1", &[], &format!("<filter root=\"{root}\" mode=\"{mode}\"/>"), &brought);
        let at = store(&repository, &bytes);
        let before = content(&repository);
        let mut trial = repository.session("ann").unwrap();
        let mut package = ContentPackage::read(Cursor::new(bytes), "x", &PackageLimits::default()).unwrap();
        let (difference, _) = PackageSession::new(&mut trial).preview(&mut package, &InstallOptions::default(), usize::MAX).unwrap();
        install(&repository, &at);
        let after = content(&repository);
        let (old, new) = (nodes(&before), nodes(&after));
        let expected: BTreeMap<String, NodeChangeKind> = old.keys().chain(new.keys()).filter_map(|path| {
            let change = match (old.get(path), new.get(path)) {
                (None, _) => NodeChangeKind::Added,
                (_, None) => NodeChangeKind::Removed,
                (left, right) if left == right => return None,
                _ => NodeChangeKind::Changed,
            };
            Some((path.clone(), change))
        }).collect();
        let told: BTreeMap<String, NodeChangeKind> = difference.nodes.iter()
            .filter(|node| node.change != NodeChangeKind::Changed || !node.properties.is_empty())
            .map(|node| (node.path.to_string(), node.change)).collect();
        prop_assert_eq!(told, expected);
        let is_nothing = difference.nodes.is_empty();
        prop_assert_eq!(is_nothing, before == after, "{}", difference);
        let done = uninstall(&repository, &at);
        prop_assert_eq!(done.kept, []);
        prop_assert_eq!(content(&repository), before);
    }
}
