//! Scripts of repository initialization: each statement, and what is skipped.

use std::time::SystemTime;

use tympan_content::{NodePath, Property, Repository, Session, Viewer};
use tympan_content_package::{RepoinitResult, run_repoinit};

fn session() -> Session {
    let repository = Repository::in_memory().unwrap();
    repository.install_initial_policies(SystemTime::UNIX_EPOCH).unwrap();
    repository.session("system").unwrap()
}

/// Runs a script and describes the outcomes: `line result note`.
fn run(session: &mut Session, text: &str) -> Vec<String> {
    let outcomes = run_repoinit(session, text).unwrap();
    let describe = |result| match result {
        RepoinitResult::Changed => "changed",
        RepoinitResult::Unchanged => "unchanged",
        RepoinitResult::Skipped => "skipped",
    };
    let lines = outcomes.into_iter().map(|outcome| {
        let note = outcome.note.map(|note| format!(" {note}")).unwrap_or_default();
        format!("{} {}{note}", outcome.line, describe(outcome.result))
    });
    lines.collect()
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn texts(session: &mut Session, at: &str, name: &str) -> Vec<String> {
    let property = session.read_property(&path(at), name).unwrap();
    let values = property.as_ref().map(Property::values).unwrap_or_default();
    values.iter().map(|value| value.to_text().into_owned()).collect()
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(run(&mut session(), text), expected, "{text}");
}

const SCRIPT: &str = r#"
# The folders of the shop.
create path (sling:Folder) /content/shop/import(nt:unstructured mixin mix:title)/files
create service user shop-import, shop-export with path system/shop
create group shop-editors with path /home/groups/shop
create user ann with password {sha1} "secret"
add shop-import,ann to group shop-editors

set ACL on /content/shop,/content/shop/import   # two nodes
    allow jcr:read,rep:write for shop-import, shop-editors
    deny jcr:all for everyone restriction(rep:glob,*/drafts/*)
end
set ACL for shop-export
    allow jcr:read on /content/shop nodetypes nt:unstructured,sling:Folder restriction(rep:itemNames,a,b)
    allow jcr:read on home(ann)
end
set repository ACL for shop-import
    allow jcr:namespaceManagement
end
set principal ACL for shop-export
    allow jcr:read on /content/shop
end
set properties on /content/shop/import, authorizable(ann)
    set jcr:title to "The \"import\""
    default count{Long} to 42
    set tags to a, "b c"
end
register namespace (shop) http://shop.example/1.0
register nodetypes
<<===
<< [shop:Order] > nt:unstructured
<<  - shop:number (long)
===>>
disable service user shop-import : "Not used"
"#;

#[test]
fn every_statement_is_carried_out_once() {
    let mut session = session();
    let outcomes = run(&mut session, SCRIPT);
    let password = "6 changed the password is not taken over; set one with `tympan user passwd`";
    let others: Vec<_> = outcomes.iter().filter(|outcome| *outcome != password).collect();
    assert_eq!(others.len() + 1, outcomes.len(), "{outcomes:#?}");
    assert!(others.iter().all(|outcome| outcome.ends_with(" changed")), "{outcomes:#?}");
    session.commit("initialize", SystemTime::UNIX_EPOCH).unwrap();

    let repository = session.repository().clone();
    let mut session = repository.session("system").unwrap();
    let kind = |session: &mut Session, at: &str| {
        session.node(&path(at)).unwrap().unwrap().primary_type().to_owned()
    };
    assert_eq!(kind(&mut session, "/content/shop"), "sling:Folder");
    assert_eq!(kind(&mut session, "/content/shop/import"), "nt:unstructured");
    assert_eq!(kind(&mut session, "/content/shop/import/files"), "sling:Folder");
    assert_eq!(kind(&mut session, "/home/users/system/shop/shop-import"), "rep:SystemUser");
    assert_eq!(kind(&mut session, "/home/groups/shop/shop-editors"), "rep:Group");
    let members = texts(&mut session, "/home/groups/shop/shop-editors", "rep:members");
    assert_eq!(members.len(), 2);
    assert_eq!(texts(&mut session, "/content/shop/import", "jcr:title"), ["The \"import\""]);
    assert_eq!(texts(&mut session, "/content/shop/import", "tags"), ["a", "b c"]);
    assert_eq!(texts(&mut session, "/home/users/ann", "count"), ["42"]);
    assert_eq!(
        texts(&mut session, "/home/users/system/shop/shop-import", "rep:disabled"),
        ["Not used"]
    );
    let entries = session.node(&path("/content/shop/rep:policy")).unwrap().unwrap();
    assert_eq!(entries.children().unwrap().len(), 4);

    // The second run finds everything in place.
    let outcomes = run(&mut session, SCRIPT);
    assert!(outcomes.iter().all(|outcome| outcome.ends_with(" unchanged")), "{outcomes:#?}");
    assert!(!session.has_changes().unwrap());
}

#[test]
fn entries_decide_as_the_script_says() {
    let mut session = session();
    let script = "create path (sling:Folder) /var/shop\ncreate user ann\n\
        set ACL on /var/shop\n allow jcr:read,rep:write for ann\n deny rep:write for ann\nend";
    run(&mut session, script);
    session.commit("initialize", SystemTime::UNIX_EPOCH).unwrap();
    let repository = session.repository().clone();
    let may = |path: &str, change: bool| {
        let mut session = repository.session_as(&Viewer::of_user(Some("ann"))).unwrap();
        let path = NodePath::new(path).unwrap();
        if session.node(&path).unwrap().is_none() {
            return false;
        }
        !change
            || (session.set_property(&path, "a", Property::text("b")).is_ok()
                && session.commit("change", SystemTime::UNIX_EPOCH).is_ok())
    };
    assert!(may("/var/shop", false));
    assert!(!may("/var/shop", true));
    let mut session = repository.session("system").unwrap();
    assert_eq!(run(&mut session, "set ACL for ann\n remove * on /var/shop\nend"), ["2 changed"]);
    session.commit("remove", SystemTime::UNIX_EPOCH).unwrap();
    assert!(!may("/var/shop", false));
}

#[test]
fn what_cannot_be_expressed_is_named() {
    check(
        "create path /a\nset ACL on /a,/missing\nallow jcr:read,shop:sell for everyone,nobody\nend",
        &[
            "1 changed",
            "3 changed there is no privilege `shop:sell`; there is no node `/missing`; there is no user or group `nobody`",
        ],
    );
    check(
        "create path /a\nset ACL on /a\nallow jcr:read for everyone restriction(shop:days,1)\nend",
        &["1 changed", "3 skipped there is no restriction `shop:days`"],
    );
    check(
        "create user a\nset principal ACL for a\nallow jcr:read on /\ndeny jcr:read on /\nend",
        &[
            "1 changed",
            "3 skipped `a` is not a service user",
            "4 skipped a policy of a service user only allows",
        ],
    );
    check("delete user a", &["1 skipped nothing is removed; remove it by hand"]);
    check("register privilege a:b", &["1 skipped there are no custom privileges"]);
    check("add a to group b", &["1 skipped there is no group `b`"]);
    check(
        "create path /a\nset properties on /a\nset jcr:primaryType to b\nset c{Long} to x\nend",
        &[
            "1 changed",
            "3 skipped `jcr:primaryType` cannot be set",
            "4 skipped `x` cannot be read as Long",
        ],
    );
}

#[test]
fn lines_that_are_not_understood_are_skipped() {
    for (text, fault) in [
        ("make path /a", "there is no such statement"),
        ("create path a", "`a` is not an absolute path"),
        ("create user \"a", "a quote is not closed"),
        ("create group a b", "`b` is not expected here"),
        ("add a group b", "`to group` is missing"),
        ("register nodetypes\n[a] > b", "`<<===` is missing"),
        ("set ACL on /\nallow jcr:read\nend", "`for` is missing"),
        ("set ACL on /\npermit jcr:read\nend", "a line begins with `allow`, `deny` or `remove`"),
        ("set ACL on /", "the block has no `end`"),
        ("set properties on /\nset a\nend", "`to` is missing"),
    ] {
        let outcomes = run(&mut session(), text);
        let expected = format!("skipped the statement is not understood: {fault}");
        assert!(outcomes[0].contains(&expected), "{text}: {outcomes:?}");
    }
    let outcomes = run(&mut session(), "set ACL on a\nallow jcr:read for b\nend\ncreate path /c");
    assert_eq!(outcomes.len(), 3, "{outcomes:?}");
    assert_eq!(outcomes[2], "4 changed");
}
