//! The test packages of Apache Jackrabbit FileVault: each installs with exactly this content, or is refused for this
//! reason. Beside it stands what FileVault's own tests check of them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use tympan_content::{NodePath, Property, Repository, Subtree, ValueType};
use tympan_content_package::{
    AuditStamp, ContentPackage, DependencyRule, InstallOptions, InstallReport, PackageId,
    PackageInstallation, PackageLimits, PackageSession, Result, StoredPackages, docview,
};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_modes::tree;
use crate::package_session::{assert_same, stored};
use crate::package_target::{FilePackage, Memory, install};

/// For each package, what it leaves in an empty repository, read off its documents by hand; what is not stored and why;
/// what it warns of; or why it is refused. The root exists: that is why most packages skip one element.
const OUTCOMES: &str = include_str!("package_filevault.txt");

fn outcomes() -> impl Iterator<Item = (&'static str, &'static str)> {
    OUTCOMES.split("=== ").skip(1).map(|one| one.split_once('\n').unwrap())
}

/// Shows a property as a docview does; of bytes, as many as can be read.
fn shown(property: &Property, target: &Memory) -> String {
    if property.value_type() != ValueType::Binary {
        return docview::write_literal(property, ValueType::String);
    }
    let bytes = property.values().iter().map(|value| {
        let bytes = &target.blobs[&*value.to_text()];
        match std::str::from_utf8(bytes) {
            Ok(text) if bytes.len() < 40 => format!("{text:?}"),
            _ => format!("{} bytes", bytes.len()),
        }
    });
    format!("{{Binary}}{}", bytes.collect::<Vec<_>>().join(","))
}

fn push_lines(node: &Subtree, path: &str, target: &Memory, out: &mut String) {
    for child in &node.children {
        let path = format!("{path}/{}", child.name);
        let _ = write!(out, "{path} {}", child.primary_type());
        for (name, property) in &child.properties {
            if name != "jcr:primaryType" {
                let _ = write!(out, " {name}={}", shown(property, target));
            }
        }
        out.push('\n');
        push_lines(child, &path, target, out);
    }
}

fn push_report(report: &InstallReport, out: &mut String) {
    for skipped in &report.skipped {
        let _ = writeln!(out, "skipped {}: {}", skipped.path, skipped.reason);
    }
    for warning in &report.warnings {
        let _ = writeln!(out, "warning: {warning}");
    }
    for nested in &report.nested {
        let _ = writeln!(out, "within it {}", nested.package);
        push_report(nested, out);
    }
}

fn outcome(file: &Path) -> String {
    let mut target = Memory::new();
    let report = ContentPackage::open(file, &PackageLimits::default())
        .and_then(|mut package: FilePackage| install(&mut package, &mut target));
    let mut out = String::new();
    match report {
        Ok(report) => {
            push_lines(&target.root, "", &target, &mut out);
            push_report(&report, &mut out);
        }
        Err(error) => {
            assert_eq!(target, Memory::new(), "nothing is imported");
            let _ = writeln!(out, "refused: {error}");
        }
    }
    out
}

#[test]
fn each_package_has_its_outcome() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    for (name, expected) in outcomes() {
        assert_eq!(outcome(&folder.join(name)).trim(), expected.trim(), "{name}");
    }
}

#[test]
fn every_package_is_in_the_table() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let listed: BTreeSet<String> = outcomes().map(|(name, _)| name.to_owned()).collect();
    let found: BTreeSet<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, listed);
    assert_eq!(outcomes().count(), listed.len(), "each once");
}

/// Content that many of the packages meet.
const THERE: &str = "/tmp jcr:primaryType=sling:Folder own=1\n/tmp/foo/bar/mine p=1\n/tmp/a own=1\n/etc jcr:primaryType=sling:Folder\n/etc/clientlibs/mine p=1\n/testroot/mine p=1\n/testroot/secured own=1\n/apps/test/mine p=1";

fn stamp() -> AuditStamp {
    AuditStamp { user: "ann".into(), time: SystemTime::UNIX_EPOCH }
}

fn install_file(repository: &Repository, file: &Path) -> Result<PackageId> {
    let mut package = ContentPackage::open(file, &PackageLimits::default())?;
    let options = InstallOptions::default();
    let how = PackageInstallation { options: &options, stamp: &stamp(), on_progress: &mut |_| {} };
    let mut bytes = fs::File::open(file).unwrap();
    PackageSession::new(&mut repository.session("ann")?).install_file(
        &mut package,
        &mut bytes,
        how,
    )?;
    Ok(package.id().clone())
}

/// Uninstalls a package and removes its file.
fn uninstall(repository: &Repository, id: &PackageId) {
    let at = StoredPackages::new(&repository.snapshot().unwrap()).find(id).unwrap().unwrap().path;
    let mut session = repository.session("ann").unwrap();
    let done =
        PackageSession::new(&mut session).uninstall(&at, DependencyRule::Ignore, &stamp()).unwrap();
    assert_eq!(done.kept, [], "{id}");
    PackageSession::new(&mut session).remove(&at, &stamp()).unwrap();
}

/// All content, but for the folders in which no package is stored any more.
fn content(repository: &Repository) -> Vec<Subtree> {
    fn prune(node: &mut Subtree) -> bool {
        node.children.retain_mut(|child| child.primary_type() == "nt:file" || prune(child));
        !node.children.is_empty()
    }
    let mut nodes = stored(repository);
    for etc in nodes.iter_mut().filter(|node| node.name == "etc") {
        if etc.child_mut("packages").is_some_and(|packages| !prune(packages)) {
            etc.remove_child("packages");
        }
    }
    nodes
}

/// Over content of its own, each package alone and with each of two others: a second installation changes nothing,
/// and uninstalling brings back exactly what was there.
#[test]
fn packages_go_in_twice_and_out_again() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let installing = outcomes().filter(|(_, outcome)| !outcome.starts_with("refused"));
    let files: Vec<_> = installing.map(|(name, _)| folder.join(name)).collect();
    for (number, file) in files.iter().enumerate() {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("ann").unwrap();
        for child in tree(THERE).children {
            session.put_node(&NodePath::root().child(&child.name).unwrap(), child).unwrap();
        }
        session.commit("there", SystemTime::UNIX_EPOCH).unwrap();
        let before = content(&repository);
        let id = install_file(&repository, file).unwrap();
        let root = repository.head_root().unwrap();
        install_file(&repository, file).unwrap();
        assert_eq!(repository.head_root().unwrap(), root, "{}", file.display());
        let with_it = content(&repository);
        for other in files.iter().cycle().skip(number + 1).take(2) {
            let other_id =
                ContentPackage::open(other, &PackageLimits::default()).unwrap().id().clone();
            // Another state of the same package.
            if other_id == id {
                continue;
            }
            install_file(&repository, other).unwrap();
            uninstall(&repository, &other_id);
            assert_same(&content(&repository), &with_it, &other.display().to_string());
        }
        uninstall(&repository, &id);
        assert_same(&content(&repository), &before, &file.display().to_string());
    }
}

/// What FileVault's own tests check of these packages.
#[test]
fn packages_do_to_what_is_there_as_filevault_does() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let run = |target: &mut Memory, name: &str| {
        let mut package =
            ContentPackage::open(&folder.join(name), &PackageLimits::default()).unwrap();
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
    let page = target.root.find_descendant_mut("/tmp/testpage").unwrap();
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
