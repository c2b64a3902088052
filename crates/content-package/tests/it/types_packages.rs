//! Packages in sessions: what they bring obeys the node types, or a commit says what does not.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tympan_content::{Error as ContentError, Repository};
use tympan_content_package::{ContentPackage, Error, PackageLimits};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_target::package;

const DOCVIEW: &str = "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" \
    xmlns:nt=\"http://www.jcp.org/jcr/nt/1.0\" xmlns:shop=\"http://example.org/shop\" \
    jcr:primaryType=\"shop:product\" shop:price=\"{Long}7\"/>";
const FILTER: &str =
    "<workspaceFilter version=\"1.0\"><filter root=\"/product\"/></workspaceFilter>";

/// Installs a package with these node types; gives what the commit says.
fn install(repository: &Repository, cnd: &str) -> Result<(), Error> {
    let entries = [
        ("META-INF/vault/filter.xml", FILTER),
        ("META-INF/vault/nodetypes.cnd", cnd),
        ("jcr_root/product/.content.xml", DOCVIEW),
    ];
    let mut session = repository.session("admin")?;
    package(&entries).unwrap().install(&mut session, &mut |_| {})?;
    session.commit("install", SystemTime::UNIX_EPOCH)?;
    Ok(())
}

fn codes(result: Result<(), Error>) -> Vec<&'static str> {
    match result {
        Ok(()) => Vec::new(),
        Err(Error::Content(ContentError::ConstraintViolations(violations))) => {
            violations.iter().map(|one| one.kind.code()).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn types_of_a_package_come_with_its_content() {
    let good = "[shop:product] > nt:base - shop:price (long)";
    let repository = Repository::in_memory().unwrap();
    assert_eq!(codes(install(&repository, good)), [""; 0]);
    assert!(repository.snapshot().unwrap().node_types().unwrap().find("shop:product").is_some());
    let root = repository.head_root().unwrap();
    assert_eq!(codes(install(&repository, good)), [""; 0]);
    assert_eq!(repository.head_root().unwrap(), root, "a second installation changes nothing");
    let fresh = || Repository::in_memory().unwrap();
    assert_eq!(codes(install(&fresh(), "")), ["OakConstraint0001"]);
    assert_eq!(codes(install(&fresh(), "[shop:product]")), ["OakConstraint0004"]);
    // A text with faults is a warning of the installation; what needs its types is refused with the commit.
    assert_eq!(codes(install(&fresh(), "[shop:product")), ["OakConstraint0001"]);
}

#[test]
fn copies_of_standard_types_change_nothing() {
    let repository = Repository::in_memory().unwrap();
    let cnd = "[sling:Folder] > nt:folder [shop:product] - shop:price (long)";
    assert_eq!(codes(install(&repository, cnd)), [""; 0]);
    let types = repository.snapshot().unwrap().node_types().unwrap();
    assert_eq!(
        types.custom_definitions().map(|one| one.name.as_str()).collect::<Vec<_>>(),
        ["shop:product"]
    );
}

/// Installs every package of a folder into a repository of its own; gives those whose commit is refused.
fn refused(folder: &str) -> Option<BTreeMap<String, Vec<String>>> {
    let mut refused = BTreeMap::new();
    for entry in std::fs::read_dir(fixture_folder(folder)?).unwrap() {
        let file = entry.unwrap().path();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        // What is no package is another test's subject.
        let Ok(mut package) = ContentPackage::open(&file, &PackageLimits::default()) else {
            continue;
        };
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("admin").unwrap();
        let done = package
            .install(&mut session, &mut |_| {})
            .and_then(|_| Ok(session.commit("install", SystemTime::UNIX_EPOCH)?));
        let reasons = match done {
            Ok(_) => continue,
            Err(Error::Content(ContentError::ConstraintViolations(violations))) => {
                violations.iter().map(ToString::to_string).collect()
            }
            Err(error) => vec![error.to_string()],
        };
        refused.insert(name, reasons);
    }
    Some(refused)
}

#[test]
fn real_packages_obey_the_standard_types() {
    if let Some(refused) = refused("packages") {
        assert_eq!(refused, BTreeMap::new());
    }
}

#[test]
fn packages_of_the_conformance_suite_obey_the_standard_types() {
    if let Some(refused) = refused("filevault") {
        assert_eq!(refused, BTreeMap::new());
    }
}
