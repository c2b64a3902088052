//! Users and groups, closed user groups, identifiers, and sysviews in packages.

use std::io::Cursor;
use std::time::SystemTime;

use tympan_content::{NodePath, Property, Repository, Subtree, Value, Viewer};
use tympan_content_package::{
    AccessControlHandling, ContentPackage, IdentifierRule, ImportMode, InstallOptions,
    InstallReport, PackageLimits, Result, SkipReason,
};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_modes::{document, filter, tree};
use crate::package_target::zipped;

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// Puts trees into a new repository.
fn repository(lines: &str) -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("ann").unwrap();
    for child in tree(lines).children {
        session.put_node(&NodePath::root().child(&child.name).unwrap(), child).unwrap();
    }
    session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
    repository
}

fn install(
    repository: &Repository,
    bytes: &[u8],
    options: &InstallOptions,
) -> Result<InstallReport> {
    let mut package =
        ContentPackage::read(Cursor::new(bytes), "test.zip", &PackageLimits::default())?;
    let mut session = repository.session("ann")?;
    let report = package.install_with_options(&mut session, options, &mut |_| {})?;
    session.commit("install", SystemTime::UNIX_EPOCH)?;
    Ok(report)
}

fn text(repository: &Repository, node: &str, property: &str) -> Option<String> {
    repository.snapshot().unwrap().node(&path(node)).unwrap()?.text(property)
}

fn values(repository: &Repository, node: &str, property: &str) -> Vec<String> {
    let node = repository.snapshot().unwrap().node(&path(node)).unwrap();
    let property = node.and_then(|node| node.property(property));
    let values = property.iter().flat_map(Property::values);
    values.map(|value| value.to_text().into_owned()).collect()
}

fn has(repository: &Repository, node: &str) -> bool {
    repository.snapshot().unwrap().node(&path(node)).unwrap().is_some()
}

fn made(filters: &str, content: &Subtree) -> Vec<u8> {
    zipped(&[
        ("META-INF/vault/filter.xml", &filter(filters)),
        ("jcr_root/.content.xml", &document(content)),
    ])
}

const USER: &str = "jcr:primaryType=rep:User rep:authorizableId=bob rep:principalName=bob";
const FOLDER: &str = "jcr:primaryType=rep:AuthorizableFolder";

/// What becomes of a user that the package has at `/home/users/p/bob` and the repository at `/home/users/x1`.
fn moved_user(filters: &str, options: &InstallOptions) -> Repository {
    let repository = repository(&format!(
        "/home {FOLDER}\n/home/users {FOLDER}\n/home/users/x1 {USER} own=1 p=old\n/home/users/x1/profile name=old\n/home/users/other {FOLDER}"
    ));
    let brought = tree(&format!(
        "/home {FOLDER}\n/home/users {FOLDER}\n/home/users/p {FOLDER}\n/home/users/p/bob {USER} p=new\n/home/users/p/bob/profile name=new\n/home/users/p/bob/extra e=1"
    ));
    install(&repository, &made(filters, &brought), options).unwrap();
    assert!(!has(&repository, "/home/users/p/bob"), "{filters}: there is one account of a name");
    repository
}

#[test]
fn users_keep_their_path() {
    let check = |filters: &str, expected: [Option<&str>; 4]| {
        let repository = moved_user(filters, &InstallOptions::default());
        let of = |node: &str, name: &str| text(&repository, node, name);
        let found = [
            of("/home/users/x1", "own"),
            of("/home/users/x1", "p"),
            of("/home/users/x1/profile", "name"),
            of("/home/users/x1/extra", "e"),
        ];
        assert_eq!(found.each_ref().map(Option::as_deref), expected, "{filters}");
    };
    let user = "root=\"/home/users/p/bob\"";
    check(&format!("<filter {user}/>"), [None, Some("new"), Some("new"), Some("1")]);
    check(
        &format!("<filter {user} mode=\"merge\"/>"),
        [Some("1"), Some("old"), Some("old"), Some("1")],
    );
    check(
        &format!("<filter {user} mode=\"update\"/>"),
        [Some("1"), Some("new"), Some("new"), Some("1")],
    );
    // A filter that covers both places removes what the package lacks, but not the account itself.
    check("<filter root=\"/home/users\"/>", [None, Some("new"), Some("new"), Some("1")]);
}

/// A package for everything that lacks them takes neither the administrator nor the stored packages away.
#[test]
fn the_administrator_and_stored_packages_stay() {
    for root in ["/", "/home", "/home/users", "/etc", "/etc/packages"] {
        let repository = repository(
            "/home jcr:primaryType=rep:AuthorizableFolder\n/home/users jcr:primaryType=rep:AuthorizableFolder\n\
             /home/users/a jcr:primaryType=rep:User rep:authorizableId=admin rep:principalName=admin jcr:uuid=a\n\
             /home/users/b jcr:primaryType=rep:User rep:authorizableId=bob rep:principalName=bob jcr:uuid=b\n\
             /etc jcr:primaryType=sling:Folder\n/etc/packages/g/other.zip p=1\n/etc/own p=1",
        );
        let brought = tree("/x p=1");
        let bytes = made(&format!("<filter root=\"{root}\"/>"), &brought);
        install(&repository, &bytes, &InstallOptions::default()).unwrap();
        assert!(has(&repository, "/home/users/a"), "{root}");
        assert_eq!(has(&repository, "/home/users/b"), root.starts_with("/etc"), "{root}");
        assert!(has(&repository, "/etc/packages/g/other.zip"), "{root}");
        assert_eq!(has(&repository, "/etc/own"), !matches!(root, "/" | "/etc"), "{root}");
    }
}

/// A package does in a user's session what the user may do, and nothing is committed otherwise.
#[test]
fn a_package_does_no_more_than_its_user_may() {
    let names = |names: &[&str]| {
        let names = names.iter().map(|name| Value::Name((*name).into())).collect();
        Property::List(tympan_content::ValueType::Name, names)
    };
    let policy = |principal: &str, privilege: &str| {
        let entry = Subtree::new("allow", "rep:GrantACE")
            .with_property("rep:principalName", principal)
            .with_property("rep:privileges", names(&[privilege]));
        Subtree::new("rep:policy", "rep:ACL").with_child(entry)
    };
    let repository = repository(
        "/home jcr:primaryType=rep:AuthorizableFolder\n/home/users jcr:primaryType=rep:AuthorizableFolder\n\
         /home/users/ann jcr:primaryType=rep:User rep:authorizableId=ann rep:principalName=ann jcr:uuid=a",
    );
    let mut session = repository.session("admin").unwrap();
    let content = Subtree::new("content", "sling:Folder")
        .with_property("jcr:mixinTypes", names(&["rep:AccessControllable"]))
        .with_child(policy("ann", "jcr:all"));
    session.put_node(&path("/content"), content).unwrap();
    session.put_node(&path("/rep:policy"), policy("everyone", "jcr:read")).unwrap();
    session.commit("before", SystemTime::UNIX_EPOCH).unwrap();
    let try_as_ann = |filters: &str, brought: &Subtree| {
        let mut package = ContentPackage::read(
            Cursor::new(made(filters, brought)),
            "p.zip",
            &PackageLimits::default(),
        )
        .unwrap();
        let viewer = Viewer::of_user(Some("ann"));
        let mut session = repository.session_as(&viewer).unwrap();
        let before = repository.head_root().unwrap();
        let options = InstallOptions {
            access_control: Some(AccessControlHandling::Overwrite),
            ..InstallOptions::default()
        };
        let installed = package.install_with_options(&mut session, &options, &mut |_| {});
        let done = installed.and_then(|_| Ok(session.commit("install", SystemTime::UNIX_EPOCH)?));
        assert!(done.is_ok() || repository.head_root().unwrap() == before);
        done
    };
    try_as_ann("<filter root=\"/content/x\"/>", &tree("/content/x p=1")).unwrap();
    let beyond = [
        ("/apps/x", tree("/apps/x p=1")),
        ("/", tree("/content/x p=2")),
        (
            "/home/users/evil",
            tree("/home/users/evil jcr:primaryType=rep:User rep:principalName=evil"),
        ),
        (
            "/home/users/ann",
            tree("/home/users/ann jcr:primaryType=rep:User rep:principalName=admin"),
        ),
        ("/rep:policy", Subtree::new("", "rep:root").with_child(policy("ann", "jcr:all"))),
    ];
    for (root, brought) in beyond {
        // What is allowed does not go in without the rest.
        let filters = format!("<filter root=\"/content/y\"/><filter root=\"{root}\"/>");
        let mut both = brought.clone();
        let y = tree("/content/y p=1").children.remove(0);
        match both.child_mut("content") {
            Some(content) => content.children.push(y.children[0].clone()),
            None => both.children.push(y),
        }
        let done = try_as_ann(&filters, &both);
        assert!(done.is_err(), "{root}: {done:?}");
        assert!(!has(&repository, "/content/y"), "{root}");
    }
}

/// What the system keeps below `/jcr:system` is neither changed nor removed, and that is told.
#[test]
fn the_systems_own_nodes_stay() {
    let repository = repository("/content p=1");
    let system = |repository: &Repository| {
        repository.snapshot().unwrap().read_subtree(&path("/jcr:system")).unwrap()
    };
    let before = system(&repository);
    for root in ["/", "/jcr:system", "/jcr:system/own"] {
        let brought = tree("/jcr:system evil=1\n/jcr:system/own p=1");
        let bytes = made(&format!("<filter root=\"{root}\"/>"), &brought);
        let report = install(&repository, &bytes, &InstallOptions::default()).unwrap();
        assert_eq!(system(&repository), before, "{root}");
        let skipped = report.skipped_by_reason();
        assert_eq!(skipped.get(&SkipReason::System), Some(&2), "{root}: {report}");
    }
}

#[test]
fn a_mode_of_the_caller_goes_before_the_filters() {
    let options = InstallOptions { mode: Some(ImportMode::Merge), ..InstallOptions::default() };
    let repository = moved_user("<filter root=\"/home/users/p/bob\"/>", &options);
    assert_eq!(text(&repository, "/home/users/x1", "p").as_deref(), Some("old"));
}

/// What FileVault's own tests check of packages with users that exist at another path.
#[test]
fn moved_users_of_the_fixtures_stay_and_get_their_policies() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let options = InstallOptions {
        mode: Some(ImportMode::Merge),
        access_control: Some(AccessControlHandling::MergePreserve),
        ..InstallOptions::default()
    };
    let run = |file: &str, accounts: &str| {
        let repository = repository(&format!("/home {FOLDER}\n/home/users {FOLDER}\n{accounts}"));
        let bytes = std::fs::read(folder.join(file)).unwrap();
        install(&repository, &bytes, &options).unwrap();
        repository
    };
    let user = |at: &str| {
        let (folder, name) = at.rsplit_once('/').unwrap();
        format!("{folder} {FOLDER}\n{at} jcr:primaryType=rep:User rep:principalName={name} own=1\n")
    };
    let moved = run("test_user_a_policy.zip", &user("/home/users/x/test-user-a"));
    assert!(!has(&moved, "/home/users/test/test-user-a"));
    assert_eq!(text(&moved, "/home/users/x/test-user-a", "own").as_deref(), Some("1"));
    let policy = "/home/users/x/test-user-a/rep:policy/deny";
    assert_eq!(values(&moved, policy, "rep:privileges"), ["jcr:all"]);
    assert_eq!(
        values(&moved, "/home/users/x/test-user-a", "jcr:mixinTypes"),
        ["rep:AccessControllable"]
    );
    // Two of them beside each other.
    let two = user("/home/users/p/admin") + &user("/home/users/q/anonymous");
    let moved = run("test_two_moved_users.zip", &two);
    assert!(!has(&moved, "/home/users/a/admin") && !has(&moved, "/home/users/a/anonymous"));
    assert_eq!(text(&moved, "/home/users/q/anonymous", "own").as_deref(), Some("1"));
    assert!(has(&moved, "/home/users/p/admin/rep:policy/deny"));
}

#[test]
fn members_of_large_groups_are_joined() {
    let group = "jcr:primaryType=rep:Group rep:authorizableId=g rep:principalName=g";
    let repository = repository(&format!("/home {FOLDER}\n/home/g {group}"));
    let mut session = repository.session("ann").unwrap();
    let list = |names: &[&str]| {
        Property::parse_list(tympan_content::ValueType::WeakReference, names.iter().copied())
            .unwrap()
    };
    session.set_property(&path("/home/g"), "rep:members", list(&["a"])).unwrap();
    let members = Subtree::new("rep:membersList", "rep:MemberReferencesList").with_child(
        Subtree::new("0", "rep:MemberReferences").with_property("rep:members", list(&["b"])),
    );
    session.put_node(&path("/home/g/rep:membersList"), members).unwrap();
    session.commit("members", SystemTime::UNIX_EPOCH).unwrap();
    let mut brought = tree(&format!("/home {FOLDER}\n/home/g {group}"));
    let incoming = brought.find_descendant_mut("home/g").unwrap();
    incoming.properties.insert("rep:members".into(), list(&["b", "c"]));
    incoming.put_child(Subtree::new("rep:membersList", "rep:MemberReferencesList").with_child(
        Subtree::new("0", "rep:MemberReferences").with_property("rep:members", list(&["a", "d"])),
    ));
    let package = made("<filter root=\"/home/g\" mode=\"merge\"/>", &brought);
    install(&repository, &package, &InstallOptions::default()).unwrap();
    assert_eq!(values(&repository, "/home/g", "rep:members"), ["a", "c", "d"]);
    assert_eq!(values(&repository, "/home/g/rep:membersList/0", "rep:members"), ["b"]);
}

/// `cug-test-1.zip` brings principal-1 and principal-2; the tests of FileVault say what each rule does.
#[test]
fn closed_user_groups_follow_their_own_rule() {
    let Some(folder) = fixture_folder("filevault") else {
        return;
    };
    let bytes = std::fs::read(folder.join("cug-test-1.zip")).unwrap();
    let check = |there: &[&str], access, groups, expected: &[&str]| {
        let repository = repository("/testroot\n/testroot/node_with_cug");
        if !there.is_empty() {
            let mut session = repository.session("ann").unwrap();
            let names =
                Property::parse_list(tympan_content::ValueType::String, there.iter().copied())
                    .unwrap();
            let policy = Subtree::new("rep:cugPolicy", "rep:CugPolicy")
                .with_property("rep:principalNames", names);
            session.put_node(&path("/testroot/node_with_cug/rep:cugPolicy"), policy).unwrap();
            session.commit("policy", SystemTime::UNIX_EPOCH).unwrap();
        }
        let options = InstallOptions {
            access_control: access,
            closed_user_groups: groups,
            ..InstallOptions::default()
        };
        install(&repository, &bytes, &options).unwrap();
        let node = "/testroot/node_with_cug";
        assert_eq!(values(&repository, node, "jcr:mixinTypes"), ["rep:CugMixin"], "{groups:?}");
        let policy = "/testroot/node_with_cug/rep:cugPolicy";
        assert_eq!(values(&repository, policy, "rep:principalNames"), expected, "{groups:?}");
    };
    use AccessControlHandling::{Clear, Ignore, Merge, MergePreserve, Overwrite};
    let second = ["principal-2", "principal-3"];
    check(&[], None, Some(Ignore), &[]);
    check(&second, None, Some(Ignore), &second);
    check(&second, None, Some(Merge), &["principal-2", "principal-3", "principal-1"]);
    check(&second, None, Some(MergePreserve), &["principal-2", "principal-3", "principal-1"]);
    check(&second, None, Some(Overwrite), &["principal-1", "principal-2"]);
    check(&second, None, Some(Clear), &[]);
    // Where nothing is said of them, they follow access control.
    check(&second, Some(Overwrite), None, &["principal-1", "principal-2"]);
    check(&second, Some(Ignore), None, &second);
    check(&second, None, None, &["principal-2", "principal-3", "principal-1"]);
}

#[test]
fn identifiers_of_nodes_elsewhere_follow_the_rule() {
    let there = "/x\n/x/old jcr:uuid=1-2 p=1\n/y";
    let bytes = made("<filter root=\"/y\"/>", &tree("/y\n/y/new jcr:uuid=1-2"));
    let run = |rule| {
        let repository = repository(there);
        let options = InstallOptions { identifier_rule: rule, ..InstallOptions::default() };
        (install(&repository, &bytes, &options), repository)
    };
    let (refused, repository) = run(IdentifierRule::Refuse);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "jcr_root/.content.xml:6: `/y/new` has the identifier `1-2`, which `/x/old` already has; \
         change one of them, or install with another identifier rule"
    );
    assert!(!has(&repository, "/y/new"));
    let (done, repository) = run(IdentifierRule::Regenerate);
    assert_eq!(
        done.unwrap().warnings,
        ["`/y/new` gets a new identifier, as `/x/old` already has the one in the package"]
    );
    assert_eq!(text(&repository, "/x/old", "jcr:uuid").as_deref(), Some("1-2"));
    assert_eq!(text(&repository, "/y/new", "jcr:uuid").unwrap().len(), 36);
    let (done, repository) = run(IdentifierRule::RemoveExisting);
    assert_eq!(done.unwrap().subtrees_removed, 1);
    assert!(!has(&repository, "/x/old"));
    assert_eq!(text(&repository, "/y/new", "jcr:uuid").as_deref(), Some("1-2"));
}

#[test]
fn a_node_that_moves_within_the_filter_keeps_its_identifier() {
    let repository = repository("/x\n/x/old jcr:uuid=1-2");
    let bytes = made("<filter root=\"/x\"/>", &tree("/x\n/x/new jcr:uuid=1-2"));
    install(&repository, &bytes, &InstallOptions::default()).unwrap();
    assert_eq!(text(&repository, "/x/new", "jcr:uuid").as_deref(), Some("1-2"));
    assert!(!has(&repository, "/x/old"));
    // The same identifier twice in one package is nobody else's: both nodes come.
    let twice = made("<filter root=\"/x\"/>", &tree("/x\n/x/a jcr:uuid=3-4\n/x/b jcr:uuid=3-4"));
    install(&repository, &twice, &InstallOptions::default()).unwrap();
    assert_eq!(text(&repository, "/x/a", "jcr:uuid").as_deref(), Some("3-4"));
    assert_eq!(text(&repository, "/x/b", "jcr:uuid").unwrap().len(), 36);
}

const SYSVIEW: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<s:node xmlns:s="http://www.jcp.org/jcr/sv/1.0" xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:xs="http://www.w3.org/2001/XMLSchema"
        xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:mix="http://www.jcp.org/jcr/mix/1.0" s:name="page">
  <s:property s:name="jcr:primaryType" s:type="Name"><s:value>nt:unstructured</s:value></s:property>
  <s:property s:name="jcr:mixinTypes" s:type="Name" s:multiple="true"><s:value>mix:title</s:value></s:property>
  <s:property s:name="count" s:type="Long"><s:value>42</s:value></s:property>
  <s:property s:name="list" s:type="String"><s:value>a,b</s:value><s:value>&lt;c&gt;</s:value></s:property>
  <s:property s:name="none" s:type="String" s:multiple="true"/>
  <s:property s:name="odd" s:type="String"><s:value xsi:type="xs:base64Binary">aGkHdGhlcmU=</s:value></s:property>
  <s:property s:name="data" s:type="Binary"><s:value>aGVs
    bG8=</s:value></s:property>
  <s:node s:name="child one"><s:property s:name="jcr:primaryType" s:type="Name"><s:value>nt:unstructured</s:value></s:property></s:node>
</s:node>"#;

fn sysview(text: &str) -> Result<Repository> {
    let repository = Repository::in_memory().unwrap();
    let bytes = zipped(&[
        ("META-INF/vault/filter.xml", &filter("<filter root=\"/x\"/>")),
        ("jcr_root/x/.content.xml", &document(&Subtree::new("", "nt:unstructured"))),
        ("jcr_root/x/page.xml", text),
        ("jcr_root/x/plain.xml", "<svg/>"),
    ]);
    install(&repository, &bytes, &InstallOptions::default()).map(|_| repository)
}

#[test]
fn sysviews_describe_nodes() {
    let repository = sysview(SYSVIEW).unwrap();
    let node = repository.snapshot().unwrap().read_subtree(&path("/x/page")).unwrap().unwrap();
    assert_eq!(node.properties["jcr:mixinTypes"].values(), [Value::Name("mix:title".into())]);
    assert_eq!(node.properties["count"], Property::Single(Value::Long(42)));
    assert_eq!(values(&repository, "/x/page", "list"), ["a,b", "<c>"]);
    assert!(node.properties["none"].is_list() && node.properties["none"].values().is_empty());
    assert_eq!(node.text("odd"), Some("hi\u{7}there"));
    assert_eq!(
        node.properties["data"],
        Property::Single(Value::Binary(tympan_content::BlobId::hash_of(b"hello")))
    );
    assert!(node.child("child one").is_some());
    assert_eq!(text(&repository, "/x/plain.xml", "jcr:primaryType").as_deref(), Some("nt:file"));
}

#[test]
fn malformed_sysviews_are_refused_with_their_line() {
    let check = |from: &str, to: &str, expected: &str| {
        let refused = sysview(&SYSVIEW.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(
            refused.starts_with("jcr_root/x/page.xml:") && refused.contains(expected),
            "{refused}"
        );
    };
    check("\"Long\"", "\"Longer\"", "6: `Longer` is not a property type");
    check(">42<", ">x<", "6: `count`: `x` cannot be read as");
    check("aGVs", "a%Vs", "10: `data`: the value is not valid base64");
    check("s:name=\"child one\"", "s:name=\"a/b\"", "12: `a/b` is not a valid name");
    check(
        "s:name=\"child one\"",
        "s:name=\"zz:b\"",
        "12: the prefix `zz` of `zz:b` is not declared",
    );
    check("s:name=\"list\"", "s:name=\"count\"", "7: the property `count` occurs twice");
    check(
        "<s:node s:name=\"child one\">",
        "<s:node s:name=\"c\"><other/>",
        "12: the element `other` is not allowed here in a sysview",
    );
    check("aGkHdGhlcmU=", "/w==", "9: a base64-encoded text is not UTF-8");
}
