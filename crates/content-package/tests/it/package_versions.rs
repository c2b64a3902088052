//! Packages over checked-in nodes: what an installation changes is checked in again, as a version.

use std::io::Cursor;
use std::time::SystemTime;

use tympan_content::{
    CheckInOptions, CheckOutState, NodePath, Property, Repository, Session, Subtree, Value,
    ValueType,
};
use tympan_content_package::{
    AuditStamp, ContentPackage, DependencyRule, InstallOptions, PackageInstallation, PackageLimits,
    PackageSession,
};

use crate::package_modes::{document, filter};
use crate::package_target::zipped;

const CONTENT: &str = "/content/page/jcr:content";

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn stamp() -> AuditStamp {
    AuditStamp { user: "ann".into(), time: SystemTime::UNIX_EPOCH }
}

/// A page whose content is versionable; `is_out` is what it says of being checked out.
fn page(title: &str, is_out: Option<bool>) -> Subtree {
    let mixins = Property::List(ValueType::Name, vec![Value::Name("mix:versionable".into())]);
    let mut content = Subtree::new("jcr:content", "nt:unstructured")
        .with_property("jcr:title", title)
        .with_property("jcr:mixinTypes", mixins)
        .with_child(Subtree::new("text", "nt:unstructured").with_property("text", title));
    if let Some(is_out) = is_out {
        content.properties.insert("jcr:isCheckedOut".into(), Value::Boolean(is_out).into());
    }
    Subtree::new("page", "cq:Page").with_child(content)
}

fn commit(session: &mut Session) {
    session.commit("edit", SystemTime::UNIX_EPOCH).unwrap();
}

/// A repository in which the content of the page is checked in as version 1.0.
fn repository() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    let content = Subtree::new("content", "sling:OrderedFolder").with_child(page("old", None));
    session.put_node(&path("/content"), content).unwrap();
    commit(&mut session);
    let close = CheckInOptions {
        comment: "",
        created_at: SystemTime::UNIX_EPOCH,
        check_out_state: CheckOutState::CheckedIn,
    };
    session.versions().check_in(&path(CONTENT), &close).unwrap();
    commit(&mut session);
    repository
}

fn install(repository: &Repository, page: Subtree, filters: &str) -> NodePath {
    let content = Subtree::new("content", "sling:OrderedFolder").with_child(page);
    let root = Subtree::new("", "rep:root").with_child(content);
    let properties =
        "<properties><entry key=\"group\">g</entry><entry key=\"name\">n</entry></properties>";
    let bytes = zipped(&[
        ("META-INF/vault/properties.xml", properties),
        ("META-INF/vault/filter.xml", &filter(filters)),
        ("jcr_root/.content.xml", &document(&root)),
    ]);
    let mut package =
        ContentPackage::read(Cursor::new(&bytes), "n.zip", &PackageLimits::default()).unwrap();
    let options = InstallOptions::default();
    let how = PackageInstallation { options: &options, stamp: &stamp(), on_progress: &mut |_| {} };
    let mut session = repository.session("ann").unwrap();
    PackageSession::new(&mut session).install_file(&mut package, &mut &*bytes, how).unwrap();
    path("/etc/packages/g/n.zip")
}

const REPLACE: &str = "<filter root=\"/content/page\"/>";

/// The state of the page's content: its title, whether it is checked out, and its versions with their titles.
fn state(repository: &Repository) -> String {
    let snapshot = repository.snapshot().unwrap();
    let node = snapshot.node(&path(CONTENT)).unwrap().unwrap();
    let is_out =
        node.property("jcr:isCheckedOut").and_then(|one| Some(one.first()?.to_text().into_owned()));
    let is_out = is_out.unwrap_or_else(|| "-".into());
    let mut out = format!("{} {is_out}", node.text("jcr:title").unwrap());
    for version in snapshot.versions(&path(CONTENT)).unwrap() {
        let kept = snapshot.read_version(&version).unwrap();
        let base = if version.is_base { "*" } else { "" };
        let title = kept.text("jcr:title").unwrap();
        out.push_str(&format!(", {}{base} {title} {:?}", version.name, version.comment));
    }
    out
}

#[test]
fn a_checked_in_node_is_changed_and_checked_in_again() {
    let repository = repository();
    let installed = "new false, 1.0 old \"\", 1.1* new \"install package g:n\"";
    let at = install(&repository, page("new", None), REPLACE);
    assert_eq!(state(&repository), installed);
    // Nothing changes now, so there is no other version.
    let root = repository.head_root().unwrap();
    install(&repository, page("new", None), REPLACE);
    assert_eq!((state(&repository).as_str(), repository.head_root().unwrap()), (installed, root));
    // It is read-only as it was.
    let mut session = repository.session("ann").unwrap();
    session.set_property(&path(CONTENT), "x", "1".into()).unwrap();
    assert!(session.commit("edit", SystemTime::UNIX_EPOCH).is_err());
    let mut session = repository.session("ann").unwrap();
    let done = PackageSession::new(&mut session)
        .uninstall(&at, DependencyRule::Required, &stamp())
        .unwrap();
    assert_eq!(done.kept, []);
    let undone = format!("{}, 1.2* old \"uninstall package g:n\"", installed.replace('*', ""));
    assert_eq!(state(&repository), undone.replacen("new", "old", 1));
}

#[test]
fn a_package_does_not_check_out() {
    for filters in [REPLACE, "<filter root=\"/content/page\" mode=\"update_properties\"/>"] {
        let repository = repository();
        // The same content: not even a version.
        install(&repository, page("old", Some(true)), filters);
        assert_eq!(state(&repository), "old false, 1.0* old \"\"");
        install(&repository, page("new", Some(true)), filters);
        assert_eq!(state(&repository), "new false, 1.0 old \"\", 1.1* new \"install package g:n\"");
    }
}

#[test]
fn what_a_package_says_is_checked_in_becomes_a_version() {
    let repository = Repository::in_memory().unwrap();
    install(&repository, page("new", Some(false)), REPLACE);
    let version = "1.0* new \"install package g:n\"";
    assert_eq!(state(&repository), format!("new false, {version}"));
    // One that was open is closed.
    let mut session = repository.session("ann").unwrap();
    session.versions().check_out(&path(CONTENT)).unwrap();
    commit(&mut session);
    assert_eq!(state(&repository), format!("new true, {version}"));
    install(&repository, page("newer", Some(false)), REPLACE);
    assert!(state(&repository).ends_with("1.1* newer \"install package g:n\""));
    assert!(state(&repository).starts_with("newer false"));
    // What is open stays open, and needs no version.
    session.refresh().unwrap();
    session.versions().check_out(&path(CONTENT)).unwrap();
    commit(&mut session);
    install(&repository, page("newest", None), REPLACE);
    assert!(state(&repository).starts_with("newest true"), "{}", state(&repository));
    assert!(state(&repository).ends_with("1.1* newer \"install package g:n\""));
}

/// What the repository notes about changes is what it was, too.
#[test]
fn uninstalling_brings_back_when_nodes_were_changed() {
    let repository = Repository::in_memory().unwrap();
    let at = |seconds| SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    let mixins = Property::List(ValueType::Name, vec![Value::Name("mix:lastModified".into())]);
    let mut session = repository.session("bob").unwrap();
    let page = Subtree::new("page", "nt:unstructured").with_property("jcr:mixinTypes", mixins);
    let content = Subtree::new("content", "sling:OrderedFolder").with_child(page);
    session.put_node(&path("/content"), content).unwrap();
    session.commit("edit", at(5)).unwrap();
    let before = session.snapshot().unwrap().read_subtree(&path("/content")).unwrap().unwrap();
    assert_eq!(before.children[0].text("jcr:lastModifiedBy"), Some("bob"));
    let mut brought = before.children[0].clone();
    brought.properties.insert("p".into(), "new".into());
    let package = install(&repository, brought, REPLACE);
    let mut session = repository.session("ann").unwrap();
    let later = AuditStamp { user: "ann".into(), time: at(9) };
    PackageSession::new(&mut session)
        .uninstall(&package, DependencyRule::Required, &later)
        .unwrap();
    let after = repository.snapshot().unwrap().read_subtree(&path("/content")).unwrap().unwrap();
    assert_eq!(after, before);
}
