//! Users and groups: who there is and in which groups; made, changed and removed.
//!
//! Invariants
//! * An account that the asker may not read looks as if it were not there.
//! * Whoever is no administrator cannot make one: neither the accounts of administrators nor the groups that lead to
//!   `administrators` can be changed by others, whatever privilege they have.
//! * A password that changes, and an account that is disabled or removed, end all sessions and tokens of the user.

mod group;
mod member;
mod user;

use serde_json::{Map, Value as Json, json};
use tympan_content::{Error, Node, NodePath, Privileges, Session, Snapshot};

pub(crate) use self::group::ENDPOINTS as GROUPS;
pub(crate) use self::member::Members;
pub(crate) use self::user::ENDPOINTS as USERS;
use crate::api::endpoint::{Call, Kind, Parameter};
use crate::api::schema::{
    array, folders_schema, name_schema, named, object, sent, text, text_or_null,
};
use crate::api::tag::{self, Condition};
use crate::failure::{Failure, Result};
use crate::password::{MAX_PASSWORD, MIN_PASSWORD};

/// The group whose members no policy binds.
const ADMINISTRATORS: &str = "administrators";
/// The user whom no policy binds.
const ADMIN: &str = "admin";
/// The most entries of a page.
const MAX_LIMIT: u64 = 1000;

const NAME: Parameter = Parameter::required("name", Kind::Name, "The user or group.");
const IF_MATCH: Parameter = Parameter::new(
    "If-Match",
    Kind::Header,
    "The tag of what was read of the account; the change is refused (412) if it was changed since.",
);
const PAGE: &[Parameter] = &[
    Parameter::new("search", Kind::Text, "Only names that hold this text."),
    Parameter::new("after", Kind::Text, "Where the page begins: `next` of the page before."),
    Parameter::new("limit", Kind::Integer(1, MAX_LIMIT), "The length of the page. Default 100."),
];

/// The schemas of this part.
pub(crate) fn schemas() -> Map<String, Json> {
    let names = || array(text());
    let new_name = name_schema();
    let password =
        json!({ "type": "string", "minLength": MIN_PASSWORD, "maxLength": MAX_PASSWORD });
    let account = || [("name", text()), ("path", text())];
    let user = [
        &account()[..],
        &[("disabled", text_or_null()), ("isService", json!({ "type": "boolean" }))],
    ]
    .concat();
    let member = object(&[("name", text()), ("kind", json!({ "enum": ["user", "group"] }))]);
    named([
        ("User", object(&[&user[..], &[("groups", names()), ("allGroups", names())]].concat())),
        ("Users", object(&[("users", array(object(&user))), ("next", text_or_null())])),
        (
            "NewUser",
            sent(
                &["name", "password"],
                &[
                    ("name", new_name.clone()),
                    ("password", password.clone()),
                    ("groups", array(name_schema())),
                    ("folder", folders_schema()),
                ],
            ),
        ),
        (
            "UserPatch",
            sent(
                &["disabled"],
                &[("disabled", json!({ "type": ["string", "null"], "maxLength": 1000 }))],
            ),
        ),
        ("NewPassword", sent(&["password"], &[("password", password), ("current", text())])),
        ("EndedLogins", object(&[("ended", crate::api::schema::count())])),
        (
            "Group",
            object(
                &[
                    &account()[..],
                    &[("members", array(member)), ("allUsers", names()), ("groups", names())],
                ]
                .concat(),
            ),
        ),
        ("Groups", object(&[("groups", array(object(&account()))), ("next", text_or_null())])),
        ("NewGroup", object(&[("name", new_name.clone())])),
        ("Membership", object(&[("group", new_name.clone()), ("member", new_name)])),
        ("Account", object(&account())),
    ])
}

/// Finds an account that the asker may read.
fn find(call: &Call, snapshot: &Snapshot, name: &str, what: &str) -> Result<Node> {
    let missing =
        || Failure::new(http::StatusCode::NOT_FOUND, format!("there is no {what} `{name}`"));
    let path = call.instance.repository.account_path(name)?.ok_or_else(missing)?;
    let node = snapshot.node(&path)?.ok_or_else(missing)?;
    let is_group = node.primary_type() == "rep:Group";
    let fits = match what {
        "user" => !is_group,
        "group" => is_group,
        _ => true,
    };
    if fits { Ok(node) } else { Err(missing()) }
}

/// Refuses whoever may not make accounts, before anything tells which names are taken.
fn need_management(snapshot: &Snapshot, folder: &str) -> Result<()> {
    let path = NodePath::new(folder)?;
    if snapshot.allows(&path, Privileges::USER_MANAGEMENT)? {
        return Ok(());
    }
    Err(Error::AccessDenied { path, privilege: "rep:userManagement" }.into())
}

/// Checks the condition of a change of an account, now and at the commit.
fn guard(call: &Call, session: &mut Session, node: &Node) -> Result<()> {
    let condition = Condition::of(&call.headers);
    // As the session has it: the commit is refused if it is changed after that.
    condition.check(&call.instance, session.node(node.path())?.as_ref())?;
    if condition != Condition::None {
        session.expect_unchanged(node.path())?;
    }
    Ok(())
}

/// Refuses changes of administrators, and of the groups that lead there, for whoever is none.
fn guard_administrators(call: &Call, name: &str) -> Result<()> {
    if call.instance.is_administrator(&call.viewer)? {
        return Ok(());
    }
    let members = Members::of(&call.instance.repository, &call.instance.repository.snapshot()?)?;
    if name == ADMIN || name == ADMINISTRATORS || members.is_within(name, ADMINISTRATORS) {
        return call.require_administrator(&format!("change `{name}`, which leads to all rights"));
    }
    Ok(())
}

/// Takes a page out of sorted names.
fn page<T>(call: &Call, mut found: Vec<(String, T)>) -> (Vec<(String, T)>, Option<String>) {
    let search = call.text("search").unwrap_or_default().to_lowercase();
    let after = call.text("after").unwrap_or_default();
    found.retain(|(name, _)| name.as_str() > after && name.to_lowercase().contains(&search));
    let limit = call.number("limit", 100);
    let has_more = found.len() > limit;
    found.truncate(limit);
    let next = found.last().filter(|_| has_more).map(|(name, _)| name.clone());
    (found, next)
}

fn tag_of(call: &Call, node: &Node) -> Option<String> {
    tag::of_document(&call.instance, node)
}

fn named_json(name: &str, node: &Node) -> Json {
    json!({ "name": name, "path": node.path().as_str() })
}
