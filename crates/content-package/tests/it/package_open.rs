//! Packages of real projects: types of the products that they come from, empty bytes, repeated identifiers, restrictions
//! of old, and all faults at once.

use std::fs;
use std::io::Cursor;
use std::time::{Duration, SystemTime};

use tympan_content::{Error as ContentError, Node, NodePath, Property, Repository, Subtree, Value};
use tympan_content_package::{
    AuditStamp, ContentPackage, Error, IdentifierRule, ImportMode, InstallOptions, InstallReport,
    PackageInstallation, PackageLimits, PackageSession, Result, SkipReason,
};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_modes::filter;
use crate::package_target::{package, zipped};

const NAMES: &str = r#"xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:nt="http://www.jcp.org/jcr/nt/1.0"
    xmlns:mix="http://www.jcp.org/jcr/mix/1.0" xmlns:rep="internal" xmlns:dam="http://www.day.com/dam/1.0"
    xmlns:cq="http://www.day.com/jcr/cq/1.0" xmlns:wcm="http://www.day.com/jcr/wcm/1.0"
    xmlns:own="http://example.com/own""#;

fn stamp() -> AuditStamp {
    AuditStamp { user: "ann".to_owned(), time: SystemTime::UNIX_EPOCH + Duration::from_secs(1) }
}

fn made(roots: &[&str], documents: &[(&str, &str)]) -> Vec<u8> {
    let roots: String = roots.iter().map(|root| format!("<filter root=\"{root}\"/>")).collect();
    let mut entries = vec![("META-INF/vault/filter.xml".to_owned(), filter(&roots))];
    for (file, inside) in documents {
        entries.push(((*file).to_owned(), format!("<jcr:root {NAMES}\n{inside}</jcr:root>")));
    }
    let entries: Vec<(&str, &str)> =
        entries.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    zipped(&entries)
}

fn install_with(
    repository: &Repository,
    bytes: &[u8],
    options: &InstallOptions,
) -> Result<InstallReport> {
    let mut package =
        ContentPackage::read(Cursor::new(bytes.to_vec()), "test.zip", &PackageLimits::default())?;
    let how = PackageInstallation { options, stamp: &stamp(), on_progress: &mut |_| {} };
    PackageSession::new(&mut repository.session("ann")?).install_file(
        &mut package,
        &mut &*bytes,
        how,
    )
}

fn install(repository: &Repository, bytes: &[u8]) -> Result<InstallReport> {
    install_with(repository, bytes, &InstallOptions::default())
}

fn node(repository: &Repository, at: &str) -> Node {
    repository.snapshot().unwrap().node(&NodePath::new(at).unwrap()).unwrap().unwrap()
}

#[test]
fn types_of_products_that_nobody_describes_hold_anything() {
    let repository = Repository::in_memory().unwrap();
    let bytes = made(
        &["/content/a"],
        &[(
            "jcr_root/content/a/.content.xml",
            r#"jcr:primaryType="nt:unstructured" jcr:mixinTypes="[dam:color,cq:notHeardOf]" rgb="{Long}[1,2,3]">
               <b jcr:primaryType="wcm:Something" x="y"><c jcr:primaryType="nt:unstructured"/></b>"#,
        )],
    );
    let report = install(&repository, &bytes).unwrap();
    let warned = |name: &str| {
        report.warnings.iter().filter(|text| text.contains(&format!("`{name}`"))).count()
    };
    assert_eq!((warned("cq:notHeardOf"), warned("wcm:Something"), warned("dam:color")), (1, 1, 0));
    assert_eq!(node(&repository, "/content/a/b").primary_type(), "wcm:Something");
    // What was installed can be edited, and installed again.
    let mut session = repository.session("ann").unwrap();
    let at = NodePath::new("/content/a/b").unwrap();
    session.set_property(&at, "z", "new".into()).unwrap();
    session.commit("edit", SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(install(&repository, &bytes).unwrap().warnings, [""; 0]);

    // A project brings its own types.
    let own = made(
        &["/content/c"],
        &[("jcr_root/content/c/.content.xml", r#"jcr:primaryType="own:Thing">"#)],
    );
    let refused = install(&repository, &own).unwrap_err();
    assert!(matches!(refused, Error::Content(ContentError::ConstraintViolations(_))), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("own:Thing") && text.contains("content/c/.content.xml:"), "{text}");
}

#[test]
fn empty_bytes_are_bytes() {
    let repository = Repository::in_memory().unwrap();
    let document = r#"jcr:primaryType="nt:unstructured" x="{Binary}\0" y="{Binary}[\0]" z="{Binary}[]" t="kept">"#;
    let bytes = made(&["/content/a"], &[("jcr_root/content/a/.content.xml", document)]);
    install(&repository, &bytes).unwrap();
    let node = node(&repository, "/content/a");
    let Some(Property::Single(Value::Binary(blob))) = node.property("x") else { panic!() };
    assert_eq!(blob.length(), 0);
    assert_eq!(node.property("y").unwrap().values().len(), 1);
    assert_eq!(node.property("z").unwrap().values().len(), 0);
    assert_eq!(node.text("t").as_deref(), Some("kept"));
}

#[test]
fn a_repeated_identifier_loses_no_node() {
    let inside = r#"jcr:primaryType="nt:unstructured"><b jcr:primaryType="nt:unstructured"
        jcr:mixinTypes="[mix:referenceable]" jcr:uuid="79995388-8a07-41de-aa5c-17b262989be0"/>"#;
    let files =
        [("jcr_root/content/a/.content.xml", inside), ("jcr_root/content/c/.content.xml", inside)];
    let bytes = made(&["/content/a", "/content/c"], &files);
    let id = |repository: &Repository, at: &str| node(repository, at).text("jcr:uuid").unwrap();
    let repository = Repository::in_memory().unwrap();
    let report = install(&repository, &bytes).unwrap();
    assert!(report.warnings.iter().any(|text| text.contains("gets a new identifier")));
    let (one, other) = (id(&repository, "/content/a/b"), id(&repository, "/content/c/b"));
    assert!(
        one != other
            && [&one, &other].contains(&&"79995388-8a07-41de-aa5c-17b262989be0".to_owned())
    );

    // A node that is not the package's is still in question.
    let first = made(&["/content/a"], &files[..1]);
    let second = made(&["/content/c"], &files[1..]);
    let repository = Repository::in_memory().unwrap();
    install(&repository, &first).unwrap();
    let options =
        InstallOptions { identifier_rule: IdentifierRule::Refuse, ..InstallOptions::default() };
    let refused = install_with(&repository, &second, &options).unwrap_err();
    assert!(refused.to_string().contains("which `/content/a/b` already has"), "{refused}");
}

#[test]
fn restrictions_beside_privileges_are_put_where_they_belong() {
    let repository = Repository::in_memory().unwrap();
    let user = r#"jcr:primaryType="rep:SystemUser" jcr:mixinTypes="[rep:PrincipalBasedMixin]" jcr:uuid="9df0bd28-29ff-3a5c-9dd9-8e4bd4b1a2c1"
        rep:authorizableId="indexer" rep:principalName="indexer">
        <rep:principalPolicy jcr:primaryType="rep:PrincipalPolicy" rep:principalName="indexer">
          <entry0 jcr:primaryType="rep:PrincipalEntry" rep:effectivePath="/content"
            rep:privileges="{Name}[jcr:read]" rep:glob="*/jcr:content"/>
        </rep:principalPolicy>"#;
    let bytes = made(
        &["/home/users/system/indexer"],
        &[("jcr_root/home/users/system/indexer/.content.xml", user)],
    );
    let options = InstallOptions {
        access_control: Some(tympan_content_package::AccessControlHandling::Overwrite),
        ..InstallOptions::default()
    };
    install_with(&repository, &bytes, &options).unwrap();
    let entry = node(&repository, "/home/users/system/indexer/rep:principalPolicy/entry0");
    assert_eq!(entry.property("rep:glob"), None);
    let restrictions = entry.child("rep:restrictions").unwrap().unwrap();
    assert_eq!(restrictions.text("rep:glob").as_deref(), Some("*/jcr:content"));
}

#[test]
fn all_faults_of_a_package_are_reported_at_once() {
    let fault =
        |file: &str, inside: &str| (file.to_owned(), format!("<jcr:root {NAMES}\n{inside}"));
    let files = [
        fault(
            "jcr_root/content/a/.content.xml",
            "jcr:primaryType=\"nt:unstructured\"\nx=\"{Long}one\"\ny=\"{Nothing}\"/>",
        ),
        fault("jcr_root/content/b/.content.xml", "jcr:primaryType=\"nt:unstructured\">"),
        fault(
            "jcr_root/content/c/.content.xml",
            "jcr:primaryType=\"nt:unstructured\"\nx=\"{Binary}abc\"/>",
        ),
    ];
    let entries: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let Err(Error::PackageFaults(faults)) = package(&entries).map(|_| ()) else { panic!() };
    let told: Vec<(String, bool)> = faults
        .iter()
        .map(|fault| match fault {
            Error::InvalidPackage { file, line, .. } => (file.clone(), *line > 0),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(told.len(), 4, "{told:?}");
    for (name, count) in [("a/.content.xml", 2), ("b/.content.xml", 1), ("c/.content.xml", 1)] {
        assert_eq!(told.iter().filter(|(file, _)| file.contains(name)).count(), count, "{name}");
    }
    assert!(told.iter().all(|(_, has_line)| *has_line), "{told:?}");
}

#[test]
fn a_package_of_a_real_project_has_no_unknown_types() {
    let Some(folder) = fixture_folder("packages") else { return };
    let repository = Repository::in_memory().unwrap();
    let bytes = fs::read(folder.join("wknd-shared.fragments.zip")).unwrap();
    // The bytes of pictures are left out of it: these files are listed, and everything else is stored.
    let report = install(&repository, &bytes).unwrap();
    assert!(report.assets > 100, "{report}");
    let (files, other): (Vec<_>, Vec<_>) =
        report.skipped.iter().partition(|item| item.reason == SkipReason::NoBytes);
    let renditions = files.iter().filter(|item| item.path.as_str().contains("/renditions/"));
    assert!(renditions.count() > 500 && other.is_empty(), "{other:?}");
    let asset = "/content/dam/wknd-shared/en/magazine/la-skateparks/stacey-roswells.jpg";
    let renditions = node(&repository, &format!("{asset}/jcr:content/renditions"));
    let names: Vec<String> =
        renditions.children().unwrap().iter().map(|child| child.name().to_owned()).collect();
    assert_eq!(names, ["cqdam.metadata.xml"], "a rendition whose bytes are there is stored");
}

#[test]
fn a_file_without_bytes_keeps_those_that_are_stored() {
    let repository = Repository::in_memory().unwrap();
    let inside = |title: &str| {
        format!(
            "jcr:primaryType=\"nt:folder\"><a.bin jcr:primaryType=\"nt:file\"><jcr:content \
             jcr:primaryType=\"oak:Resource\" jcr:mimeType=\"{title}\"/></a.bin>"
        )
    };
    let folder = "jcr_root/content/files/.content.xml";
    let document = |text: &str| made(&["/content/files"], &[(folder, text)]);
    let report = install(&repository, &document(&inside("text/a"))).unwrap();
    assert!(report.skipped.iter().any(|item| item.reason == SkipReason::NoBytes), "{report}");
    let snapshot = repository.snapshot().unwrap();
    assert!(snapshot.node(&NodePath::new("/content/files/a.bin").unwrap()).unwrap().is_none());
    let mut session = repository.session("ann").unwrap();
    let blob = session.put_blob(&mut &b"bytes"[..]).unwrap();
    let resource = Subtree::new("jcr:content", "oak:Resource")
        .with_property("jcr:data", Property::Single(Value::Binary(blob)));
    let file = Subtree::new("a.bin", "nt:file").with_child(resource);
    session.put_node(&NodePath::new("/content/files/a.bin").unwrap(), file).unwrap();
    session.commit("upload", SystemTime::UNIX_EPOCH).unwrap();
    let document = document(&inside("text/b")).clone();
    let update = InstallOptions { mode: Some(ImportMode::Update), ..InstallOptions::default() };
    install_with(&repository, &document, &update).unwrap();
    let content = node(&repository, "/content/files/a.bin/jcr:content");
    assert_eq!(content.text("jcr:mimeType").as_deref(), Some("text/b"));
    assert!(content.property("jcr:data").is_some());
}
