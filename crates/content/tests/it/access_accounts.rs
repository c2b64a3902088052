//! Accounts that lead to all rights, nodes that become accounts, and what a conflict tells of the history.

use std::time::{Duration, SystemTime};

use tympan_content::{
    Error, NodePath, PRIMARY_TYPE, Property, Repository, Session, Subtree, Value, ValueType, Viewer,
};

fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

fn policy(principal: &str, kind: &str, privileges: &[&str]) -> Subtree {
    let privileges = Property::parse_list(ValueType::Name, privileges.iter().copied()).unwrap();
    let entry = Subtree::new("entry", kind)
        .with_property("rep:principalName", principal)
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

fn references(identifiers: &[&str]) -> Property {
    Property::parse_list(ValueType::WeakReference, identifiers.iter().copied()).unwrap()
}

/// The identifier of a member of `administrators` whose account is gone.
const GONE: &str = "0e4c1c6b-1f5f-4a3c-9f25-3d2e0e2f3a10";

/// Accounts that `ann` looks after, who is no administrator: `bob` is one by the group `chiefs`, `eve` is in `team`.
fn accounts() -> Repository {
    let repository = Repository::in_memory().unwrap();
    let mut session = repository.session("system").unwrap();
    for user in ["admin", "ann", "bob", "eve"] {
        session.accounts().add_user(user, "the hash of a password").unwrap();
    }
    for group in ["administrators", "chiefs", "team"] {
        session.accounts().add_group(group).unwrap();
    }
    session.accounts().add_member("chiefs", "bob").unwrap();
    session.accounts().add_member("administrators", "chiefs").unwrap();
    session.accounts().add_member("team", "eve").unwrap();
    session.put_node(&path("/rep:policy"), policy("ann", "rep:GrantACE", &["jcr:all"])).unwrap();
    session.commit("begin", at()).unwrap();
    let administrators = repository.account_path("administrators").unwrap().unwrap();
    let mut members = references(&[GONE]).values().to_vec();
    let known = repository.snapshot().unwrap().node(&administrators).unwrap().unwrap();
    members.extend(known.property("rep:members").unwrap().values().to_vec());
    let members = Property::List(ValueType::WeakReference, members);
    session.set_property(&administrators, "rep:members", members).unwrap();
    session.commit("remember who is gone", at()).unwrap();
    repository
}

/// Lets somebody edit and commit.
fn edit(
    repository: &Repository,
    user: &str,
    deed: impl FnOnce(&mut Session) -> tympan_content::Result<()>,
) -> tympan_content::Result<()> {
    let viewer = Viewer::of_user(Some(user));
    let mut session = repository.session_as(&viewer)?;
    deed(&mut session)?;
    session.commit("edit", at()).map(drop)
}

fn identifier(repository: &Repository, account: &str) -> String {
    let at = repository.account_path(account).unwrap().unwrap();
    repository.snapshot().unwrap().node(&at).unwrap().unwrap().text("jcr:uuid").unwrap()
}

type Deed = fn(&mut Session) -> tympan_content::Result<()>;

fn account(id: &str, kind: &str, principal: &str) -> Subtree {
    Subtree::new("", kind)
        .with_property("rep:authorizableId", id)
        .with_property("rep:principalName", principal)
}

/// What nobody but administrators may do, whatever privilege they have.
const REFUSED: &[(&str, Deed)] = &[
    ("remove admin", |session| session.remove_node(&path("/home/users/admin"))),
    ("remove a member", |session| session.accounts().remove_account("bob")),
    ("remove the group", |session| session.remove_node(&path("/home/groups/administrators"))),
    ("remove a group in it", |session| session.remove_node(&path("/home/groups/chiefs"))),
    ("remove all", |session| session.remove_node(&path("/home/users"))),
    ("move admin", |session| session.move_node(&path("/home/users/admin"), &path("/home/users/x"))),
    ("move all", |session| session.move_node(&path("/home/users"), &path("/home/others"))),
    ("set a password", |session| {
        session.set_property(&path("/home/users/bob"), "rep:password", "mine".into())
    }),
    ("disable", |session| session.accounts().set_disabled("bob", Some("x"))),
    ("join", |session| session.accounts().add_member("administrators", "eve")),
    ("join a group in it", |session| session.accounts().add_member("chiefs", "eve")),
    ("bring a group in", |session| session.accounts().add_member("administrators", "team")),
    ("bring oneself in", |session| session.accounts().add_member("chiefs", "ann")),
    ("take out", |session| session.accounts().remove_member("administrators", "chiefs")),
    ("a group of that principal", |session| {
        let members = references(&[&session
            .snapshot()?
            .node(&path("/home/users/eve"))?
            .unwrap()
            .text("jcr:uuid")
            .unwrap()]);
        let group =
            account("other", "rep:Group", "administrators").with_property("rep:members", members);
        session.put_node(&path("/home/groups/other"), group)
    }),
    ("another user of that name", |session| {
        session.put_node(&path("/home/users/other"), account("admin", "rep:User", "other"))
    }),
    ("the program's own name", |session| {
        session.put_node(&path("/home/users/system"), Subtree::new("", "rep:User"))
    }),
    ("the identifier of one who is gone", |session| {
        let user = account("other", "rep:User", "other").with_property("jcr:uuid", GONE);
        session.put_node(&path("/home/users/other"), user)
    }),
    ("a plain node that becomes the group", |session| {
        session.put_node(&path("/home/groups/other"), Subtree::new("", "nt:unstructured"))?;
        let group = account("administrators", "rep:Group", "administrators");
        session.put_node(&path("/home/groups/other/administrators"), group)
    }),
];

/// What whoever looks after accounts may do.
const DONE: &[(&str, Deed)] = &[
    ("make a user", |session| session.accounts().add_user("new", "x")),
    ("make a group", |session| session.accounts().add_group("new")),
    ("join another group", |session| session.accounts().add_member("team", "ann")),
    ("leave another group", |session| session.accounts().remove_member("team", "eve")),
    ("set a password", |session| {
        session.set_property(&path("/home/users/eve"), "rep:password", "new".into())
    }),
    ("remove a user", |session| session.accounts().remove_account("eve")),
    ("move a user", |session| session.move_node(&path("/home/users/eve"), &path("/home/users/x"))),
    ("a profile of an administrator", |session| {
        session.put_node(&path("/home/users/bob/profile"), Subtree::new("", "nt:unstructured"))
    }),
];

#[test]
fn whoever_is_no_administrator_makes_and_changes_none() {
    for (name, deed) in REFUSED {
        let repository = accounts();
        let refused = edit(&repository, "ann", deed).expect_err(name);
        let is_refusal = matches!(refused, Error::AccessDenied { privilege: "jcr:all", .. });
        assert!(is_refusal, "{name}: {refused}");
        // Administrators may, as far as the content lets anybody.
        match edit(&repository, "bob", deed) {
            Ok(()) | Err(Error::ConstraintViolations(_) | Error::NotUnique { .. }) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    for (name, deed) in DONE {
        let repository = accounts();
        edit(&repository, "ann", deed).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn what_becomes_an_account_takes_user_management() {
    let repository = accounts();
    let mut session = repository.session("system").unwrap();
    let own = policy("eve", "rep:GrantACE", &["jcr:read", "rep:write"]);
    session.put_node(&path("/home/users/eve/rep:policy"), own).unwrap();
    session.put_node(&path("/home/users/eve/notes"), Subtree::new("", "nt:unstructured")).unwrap();
    session.commit("let eve write her own notes", at()).unwrap();
    let turned = |kind: &'static str| {
        move |session: &mut Session| {
            session.set_property(&path("/home/users/eve/notes"), PRIMARY_TYPE, Property::name(kind))
        }
    };
    for kind in ["rep:User", "rep:SystemUser", "rep:Group", "rep:AuthorizableFolder"] {
        let refused = edit(&repository, "eve", turned(kind)).unwrap_err();
        let is_refusal =
            matches!(refused, Error::AccessDenied { privilege: "rep:userManagement", .. });
        assert!(is_refusal, "{kind}: {refused}");
    }
    edit(&repository, "eve", turned("sling:Folder")).unwrap();
    // Nor is an account made plain.
    let plain = edit(&repository, "eve", |session| {
        let own = path("/home/users/eve");
        session.set_property(&own, PRIMARY_TYPE, Property::name("nt:unstructured"))
    });
    assert!(matches!(plain, Err(Error::AccessDenied { .. })), "{plain:?}");
    assert_eq!(identifier(&repository, "eve").len(), 36);
}

#[test]
fn a_conflict_tells_no_message_that_names_what_is_hidden() {
    let repository = accounts();
    let mut session = repository.session("system").unwrap();
    session.put_node(&path("/content"), Subtree::new("", "sling:Folder")).unwrap();
    for name in ["open", "hidden"] {
        session
            .put_node(&path(&format!("/content/{name}")), Subtree::new("", "nt:unstructured"))
            .unwrap();
    }
    let open = policy("eve", "rep:GrantACE", &["jcr:read", "rep:write"]);
    session.put_node(&path("/content/open/rep:policy"), open).unwrap();
    session.commit("begin", at()).unwrap();
    for (places, expected) in
        [(&["open"][..], Some("change open")), (&["open", "hidden"][..], None)]
    {
        let viewer = Viewer::of_user(Some("eve"));
        let mut late = repository.session_as(&viewer).unwrap();
        late.set_property(&path("/content/open"), "x", "late".into()).unwrap();
        let mut first = repository.session("bob").unwrap();
        for place in places {
            let value = Value::String(format!("first {}", places.len())).into();
            first.set_property(&path(&format!("/content/{place}")), "x", value).unwrap();
        }
        first.commit(&format!("change {}", places.join(" and ")), at()).unwrap();
        let Err(Error::Conflicts(conflicts)) = late.commit("late", at()) else {
            panic!("both changed the same property");
        };
        let changed = conflicts[0].last_change.as_ref().unwrap();
        assert_eq!(changed.user, "bob");
        assert_eq!(changed.message.as_deref(), expected);
    }
}
