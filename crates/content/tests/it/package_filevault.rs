//! The test packages of Apache Jackrabbit FileVault: each installs, or is refused for the reason named here.

use std::collections::BTreeSet;
use std::fs;

use tympan_content::package::{Limits, Package};

use crate::package_target::{FilePackage, Memory, fixtures, install};

enum Outcome {
    /// Nodes created, elements and files skipped (nested packages apart), and nodes with their types.
    Installs(usize, usize, &'static [(&'static str, &'static str)]),
    /// How the message begins.
    Refused(&'static str),
}
use Outcome::{Installs, Refused};

/// Into an empty repository, whose root exists: that is why most packages skip one element.
const OUTCOMES: [(&str, Outcome); 43] = [
    ("atomic-counter-test.zip", Installs(2, 1, &[("/tmp/testroot", "nt:unstructured")])),
    // Its filter is empty and it has no content: a container whose parts are missing.
    ("container-pkg.zip", Installs(0, 0, &[])),
    (
        "cug-test-1.zip",
        Installs(4, 1, &[("/testroot/node_with_cug/rep:cugPolicy", "rep:CugPolicy")]),
    ),
    ("fullcoverage.zip", Installs(5, 1, &[("/tmp/fullcoverage/a/aa", "nt:unstructured")])),
    (
        "group_with_a.zip",
        Installs(
            7,
            0,
            &[
                ("/home", "rep:AuthorizableFolder"),
                ("/home/groups/t/test-group", "rep:Group"),
                ("/home/users/t/test-user-a", "rep:User"),
            ],
        ),
    ),
    ("group_with_bc.zip", Installs(8, 0, &[("/home/users/t/test-user-c", "rep:User")])),
    // The hook is not run; the empty folder in the package is created.
    ("invalid_hook.zip", Installs(3, 1, &[("/testroot/testfolder", "nt:unstructured")])),
    (
        "mixed_package.zip",
        Installs(4, 1, &[("/libs/foo", "nt:folder"), ("/tmp/foo", "nt:unstructured")]),
    ),
    // The nested package is installed by its own properties, which merge access control.
    (
        "mode_ac_subpackage.zip",
        Installs(
            4,
            1,
            &[
                ("/etc/packages/mode_ac_test_b_merge.zip/jcr:content", "nt:resource"),
                ("/testroot/secured/rep:policy/allow", "rep:GrantACE"),
            ],
        ),
    ),
    (
        "mode_ac_test_a_uuid.zip",
        Installs(5, 1, &[("/testroot/secured/rep:policy/deny", "rep:DenyACE")]),
    ),
    (
        "multipackage-a-1.0.zip",
        Installs(
            10,
            1,
            &[
                (
                    "/etc/packages/my_packages/subpackage-a-1.0.zip/jcr:content/vlt:definition",
                    "vlt:PackageDefinition",
                ),
                ("/apps/test", "nt:unstructured"),
                ("/tmp/testroot/sub", "nt:unstructured"),
            ],
        ),
    ),
    ("multipackage-a-2.0.zip", Installs(10, 1, &[("/tmp/testroot/sub", "nt:unstructured")])),
    // Two Maven files only.
    (
        "non-valid-package.zip",
        Refused(
            "non-valid-package.zip: is not a content package: it has neither `jcr_root` nor `META-INF/vault`",
        ),
    ),
    // `jcr_root` is empty, and what its filters cover would be removed.
    ("notype-pkg.zip", Installs(0, 0, &[])),
    // It names `/tmp` for its order only.
    ("package_1.0.zip", Installs(0, 1, &[])),
    // No `jcr_root`.
    ("pkg-with-filter-and-manifest.zip", Installs(0, 0, &[])),
    ("pkg-with-no-manifest.zip", Installs(0, 0, &[])),
    // `.DS_Store` and `__MACOSX` are left out.
    (
        "simple-snapshot-version.zip",
        Installs(4, 1, &[("/tmp/foo/bar/tobi", "sling:OrderedFolder")]),
    ),
    (
        "subtest.zip",
        Installs(10, 1, &[("/tmp/a", "sling:Folder"), ("/tmp/b", "sling:OrderedFolder")]),
    ),
    // Its properties say to store `sub_a` without installing it.
    ("subtest_add_a.zip", Installs(13, 1, &[("/tmp/b", "sling:OrderedFolder")])),
    ("subtest_extract_a.zip", Installs(13, 1, &[("/tmp/a", "sling:Folder")])),
    // The file is empty.
    (
        "test-package-truncated.zip",
        Refused("test-package-truncated.zip: cannot be read as a ZIP file; is it complete?"),
    ),
    ("test-package.zip", Installs(6, 1, &[("/etc/clientlibs/granite/test/test.js", "nt:file")])),
    ("test_c-2.0.zip", Installs(2, 1, &[("/tmp/c", "nt:unstructured")])),
    // Dependencies are not enforced: the two depend on each other.
    ("test_d-1.0.zip", Installs(2, 1, &[("/tmp/d", "nt:unstructured")])),
    ("test_e-1.0.zip", Installs(2, 1, &[("/tmp/e", "nt:unstructured")])),
    (
        "test_filter_binary.zip",
        Installs(4, 1, &[("/tmp/test-project/test-text.txt/jcr:content", "nt:resource")]),
    ),
    // Siblings of the same name, `foo` and `foo[2]`, which Oak does not have, either.
    ("test_sns.zip", Refused("jcr_root/tmp/testroot/.content.xml:7: `foo[2]` is not a valid name")),
    ("test_two_moved_users.zip", Installs(11, 0, &[("/home/rep:policy/allow0", "rep:GrantACE")])),
    (
        "test_user_a.zip",
        Installs(5, 0, &[("/home/users/test/test-user-a/profile", "nt:unstructured")]),
    ),
    // It does not say what to do with access control, so that its policy is left out.
    ("test_user_a_policy.zip", Installs(4, 2, &[("/home/users/test/test-user-a", "rep:User")])),
    // Two policies and a cache are left out.
    (
        "test_user_with_rep_cache.zip",
        Installs(
            10,
            7,
            &[(
                "/home/users/community/b/jlpYt3VI7sfDUlUSiuRt/profile/photos/primary/image",
                "nt:file",
            )],
        ),
    ),
    ("tmp_binary.zip", Installs(3, 1, &[("/tmp/binary/test", "nt:unstructured")])),
    (
        "tmp_foo_bar_test.zip",
        Installs(5, 1, &[("/tmp/foo/bar/test.txt/jcr:content", "nt:resource")]),
    ),
    // Without a filter what is missing is created.
    (
        "tmp_foo_bar_test_nofilter.zip",
        Installs(5, 1, &[("/tmp/foo/bar/test.txt/jcr:content", "nt:resource")]),
    ),
    ("tmp_less.zip", Installs(3, 1, &[("/tmp/foo/bar", "sling:OrderedFolder")])),
    ("tmp_mode_merge.zip", Installs(4, 1, &[("/tmp/foo/new", "sling:OrderedFolder")])),
    ("tmp_mode_replace.zip", Installs(3, 1, &[("/tmp/foo/bar", "sling:OrderedFolder")])),
    ("tmp_nt_folder.zip", Installs(4, 1, &[("/tmp", "nt:folder")])),
    (
        "tmp_test_deep.zip",
        Installs(
            15,
            1,
            &[
                ("/tmp/test", "sling:OrderedFolder"),
                ("/tmp/test/content/foo/jcr:content/a/b/foo.jsp/jcr:content", "nt:resource"),
                ("/tmp/test/content/foo/jcr:content/a/c/resource", "nt:resource"),
                ("/tmp/test/content/foo/jcr:content/a/folder/file.txt", "nt:file"),
            ],
        ),
    ),
    (
        "tmp_testpage_jcr_content.zip",
        Installs(4, 1, &[("/tmp/testpage/jcr:content/foo", "nt:unstructured")]),
    ),
    ("tmp_with_thumbnail.zip", Installs(4, 1, &[("/tmp/foo/bar/tobi", "sling:OrderedFolder")])),
    ("unfiltered_package.zip", Installs(5, 1, &[("/tmp/foo/bar/tom", "sling:OrderedFolder")])),
];

#[test]
fn each_package_has_its_outcome() {
    let Some(folder) = fixtures("filevault") else {
        return;
    };
    for (name, outcome) in &OUTCOMES {
        let mut target = Memory::new();
        let report = Package::open(&folder.join(name), &Limits::default())
            .and_then(|mut package: FilePackage| install(&mut package, &mut target));
        match (outcome, report) {
            (Installs(created, skipped, nodes), Ok(report)) => {
                assert_eq!(
                    (report.nodes_created, report.skipped.len()),
                    (*created, *skipped),
                    "{name}"
                );
                for (path, primary_type) in *nodes {
                    let node = target.find(path).unwrap_or_else(|| panic!("{name}: {path}"));
                    assert_eq!(node.primary_type(), *primary_type, "{name}: {path}");
                }
            }
            (Refused(message), Err(error)) => {
                assert!(error.to_string().starts_with(message), "{name}: {error}");
                assert_eq!(target, Memory::new(), "{name}: nothing is imported");
            }
            (_, Ok(_)) => panic!("{name}: installed"),
            (_, Err(error)) => panic!("{name}: {error}"),
        }
    }
}

#[test]
fn every_package_is_in_the_table() {
    let Some(folder) = fixtures("filevault") else {
        return;
    };
    let listed: BTreeSet<String> = OUTCOMES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let found: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, listed);
}

/// What FileVault's own tests check of these packages.
#[test]
fn packages_do_to_what_is_there_as_filevault_does() {
    let Some(folder) = fixtures("filevault") else {
        return;
    };
    let run = |target: &mut Memory, name: &str| {
        let mut package = Package::open(&folder.join(name), &Limits::default()).unwrap();
        install(&mut package, target).unwrap()
    };
    // Replace removes what the second package lacks.
    let mut target = Memory::new();
    run(&mut target, "tmp_with_thumbnail.zip");
    assert!(target.find("/tmp/foo/bar/tobi").is_some());
    run(&mut target, "tmp_less.zip");
    assert!(target.find("/tmp/foo/bar").is_some());
    assert_eq!(target.find("/tmp/foo/bar/tobi"), None);
    // Merge adds.
    run(&mut target, "tmp_mode_merge.zip");
    assert!(target.find("/tmp/foo/new").is_some());
    // Groups keep their members and get new ones.
    let mut target = Memory::new();
    let members = |target: &Memory| {
        let group = target.find("/home/groups/t/test-group").unwrap();
        group.properties["rep:members"].values().len()
    };
    run(&mut target, "group_with_a.zip");
    assert_eq!(members(&target), 1);
    run(&mut target, "group_with_bc.zip");
    assert_eq!(members(&target), 3);
    // A filter for a page's content leaves the page alone.
    let mut target = Memory::new();
    run(&mut target, "tmp_testpage_jcr_content.zip");
    let page = target.root.find_mut("/tmp/testpage").unwrap();
    page.properties.insert("mine".into(), "kept".into());
    page.child_mut("jcr:content").unwrap().properties.insert("mine".into(), "lost".into());
    run(&mut target, "tmp_testpage_jcr_content.zip");
    let page = target.find("/tmp/testpage").unwrap();
    assert_eq!(page.text("mine"), Some("kept"));
    assert_eq!(page.child("jcr:content").unwrap().text("mine"), None);
    // Bytes of a property that is no file's.
    let mut target = Memory::new();
    run(&mut target, "tmp_binary.zip");
    let data = &target.find("/tmp/binary/test").unwrap().properties["jcr:data"];
    assert_eq!(target.blobs[&*data.first().unwrap().to_text()].len(), 8192);
}
