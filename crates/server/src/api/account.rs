//! Users and groups: reading, creating, changing and removing accounts, memberships and tokens.
//!
//! Invariants
//! * An account that the requesting user may not read is reported as missing.
//! * A user who is not an administrator cannot create one: such a user cannot change the accounts of administrators or
//!   the groups that lead to `administrators`, whatever their privileges.
//! * Changing a password, or disabling or removing an account, ends all sessions and tokens of the user.

pub(super) mod group;
mod member;
pub(super) mod token;
pub(super) mod user;

use serde_json::{Map, Value as Json, json};
use tympan_content::{Error, Node, NodePath, Privileges, Session, Snapshot};

pub(crate) use self::member::GroupMemberships;
use crate::api::endpoint::{ApiRequest, EndpointParameter, ParameterKind};
use crate::api::entity_tag::{self, WriteCondition};
use crate::api::schema::{
    array_schema, count_schema, folders_schema, name_schema, object_schema, partial_object_schema,
    schemas_by_name, text_or_null_schema, text_schema,
};
use crate::failure::{RequestFailure, Result};
use crate::login::password_policy::{MAX_PASSWORD_CHARS, MIN_PASSWORD_CHARS};

/// The group whose members bypass all access control policies.
const ADMINISTRATORS_GROUP: &str = "administrators";
/// The user who bypasses all access control policies.
const ADMIN_USER: &str = "admin";
/// Maximum number of entries in a page.
const MAX_PAGE_SIZE: u64 = 1000;

const NAME_PARAMETER: EndpointParameter =
    EndpointParameter::required("name", ParameterKind::Name, "The user or group.");
const IF_MATCH_PARAMETER: EndpointParameter = EndpointParameter::new(
    "If-Match",
    ParameterKind::Header,
    "The `ETag` of the account as it was read; the change is refused (412) if the account has changed since.",
);
const AFTER_PARAMETER: EndpointParameter = EndpointParameter::new(
    "after",
    ParameterKind::Text,
    "Where the page begins: `next` of the previous page.",
);
const LIMIT_PARAMETER: EndpointParameter = EndpointParameter::new(
    "limit",
    ParameterKind::Integer(1, MAX_PAGE_SIZE),
    "Page size. Default 100.",
);
const PAGE_PARAMETERS: &[EndpointParameter] = &[
    EndpointParameter::new("search", ParameterKind::Text, "Only names that contain this text."),
    AFTER_PARAMETER,
    LIMIT_PARAMETER,
];

/// Returns the JSON schemas that this module defines.
pub(crate) fn account_schemas() -> Map<String, Json> {
    let names = || array_schema(text_schema());
    let new_name = name_schema();
    let password = json!({ "type": "string", "minLength": MIN_PASSWORD_CHARS, "maxLength": MAX_PASSWORD_CHARS });
    let account = || [("name", text_schema()), ("path", text_schema())];
    let user = [
        &account()[..],
        &[("disabled", text_or_null_schema()), ("isService", json!({ "type": "boolean" }))],
    ]
    .concat();
    let member =
        object_schema(&[("name", text_schema()), ("kind", json!({ "enum": ["user", "group"] }))]);
    let scope = || json!({ "enum": ["all", "read", "monitor"] });
    let token = object_schema(&[
        ("id", text_schema()),
        ("user", text_schema()),
        ("kind", json!({ "enum": ["session", "token", "link"] })),
        ("created", json!({ "type": "integer" })),
        ("expires", json!({ "type": ["integer", "null"] })),
        ("scope", scope()),
    ]);
    schemas_by_name([
        (
            "User",
            object_schema(&[&user[..], &[("groups", names()), ("allGroups", names())]].concat()),
        ),
        (
            "Users",
            object_schema(&[
                ("users", array_schema(object_schema(&user))),
                ("next", text_or_null_schema()),
            ]),
        ),
        (
            "NewUser",
            partial_object_schema(
                &["name", "password"],
                &[
                    ("name", new_name.clone()),
                    ("password", password.clone()),
                    ("groups", array_schema(name_schema())),
                    ("folder", folders_schema()),
                ],
            ),
        ),
        (
            "UserPatch",
            partial_object_schema(
                &["disabled"],
                &[("disabled", json!({ "type": ["string", "null"], "maxLength": 1000 }))],
            ),
        ),
        (
            "NewPassword",
            partial_object_schema(
                &["password"],
                &[("password", password), ("current", text_schema())],
            ),
        ),
        ("EndedLogins", object_schema(&[("ended", count_schema())])),
        (
            "LoginTokens",
            object_schema(&[("tokens", array_schema(token)), ("next", text_or_null_schema())]),
        ),
        (
            "NewLoginToken",
            partial_object_schema(&[], &[("expires", text_schema()), ("scope", scope())]),
        ),
        ("CreatedLoginToken", object_schema(&[("token", text_schema())])),
        (
            "Group",
            object_schema(
                &[
                    &account()[..],
                    &[
                        ("members", array_schema(member)),
                        ("allUsers", names()),
                        ("groups", names()),
                    ],
                ]
                .concat(),
            ),
        ),
        (
            "Groups",
            object_schema(&[
                ("groups", array_schema(object_schema(&account()))),
                ("next", text_or_null_schema()),
            ]),
        ),
        ("NewGroup", object_schema(&[("name", new_name.clone())])),
        ("Membership", object_schema(&[("group", new_name.clone()), ("member", new_name)])),
        ("Account", object_schema(&account())),
    ])
}

/// Returns an account that the requesting user may read.
fn find_account(
    call: &ApiRequest,
    snapshot: &Snapshot,
    name: &str,
    account_kind: &str,
) -> Result<Node> {
    let missing = || {
        RequestFailure::new(
            http::StatusCode::NOT_FOUND,
            format!("there is no {account_kind} `{name}`"),
        )
    };
    let path = call.instance.repository.account_path(name)?.ok_or_else(missing)?;
    let node = snapshot.node(&path)?.ok_or_else(missing)?;
    let is_group = node.primary_type() == "rep:Group";
    let fits = match account_kind {
        "user" => !is_group,
        "group" => is_group,
        _ => true,
    };
    if fits { Ok(node) } else { Err(missing()) }
}

/// Refuses users who may not create accounts, before any response reveals which names are in use.
fn require_user_management(snapshot: &Snapshot, folder: &str) -> Result<()> {
    let path = NodePath::new(folder)?;
    if snapshot.has_privileges(&path, Privileges::USER_MANAGEMENT)? {
        return Ok(());
    }
    Err(Error::AccessDenied { path, privilege: "rep:userManagement" }.into())
}

/// Checks the precondition of an account change now, and again at the commit.
fn guard_account_change(call: &ApiRequest, session: &mut Session, node: &Node) -> Result<()> {
    let condition = WriteCondition::of_headers(&call.headers);
    // Checks the node as the session sees it; the commit is refused if the node changes after that.
    condition.check_document(&call.instance, session.node(node.path())?.as_ref())?;
    if condition != WriteCondition::None {
        session.expect_unchanged(node.path())?;
    }
    Ok(())
}

/// Refuses changes of administrators, and of the groups that lead to them, to users who are not administrators.
fn guard_administrator_change(call: &ApiRequest, name: &str) -> Result<()> {
    if call.instance.is_administrator(&call.viewer)? {
        return Ok(());
    }
    let members = GroupMemberships::read_from(
        &call.instance.repository,
        &call.instance.repository.snapshot()?,
    )?;
    if name == ADMIN_USER
        || name == ADMINISTRATORS_GROUP
        || members.is_within(name, ADMINISTRATORS_GROUP)
    {
        return call
            .require_administrator(&format!("change `{name}`, which grants administrator rights"));
    }
    Ok(())
}

/// Returns one page of a list of sorted names.
fn paginate<T>(
    call: &ApiRequest,
    mut entries: Vec<(String, T)>,
) -> (Vec<(String, T)>, Option<String>) {
    let search = call.parameter("search").unwrap_or_default().to_lowercase();
    let after = call.parameter("after").unwrap_or_default();
    entries.retain(|(name, _)| name.as_str() > after && name.to_lowercase().contains(&search));
    let limit = call.number_parameter("limit", 100);
    let has_more = entries.len() > limit;
    entries.truncate(limit);
    let next = entries.last().filter(|_| has_more).map(|(name, _)| name.clone());
    (entries, next)
}

fn account_tag(call: &ApiRequest, node: &Node) -> Option<String> {
    entity_tag::document_tag(&call.instance, node)
}

fn named_node_json(name: &str, node: &Node) -> Json {
    json!({ "name": name, "path": node.path().as_str() })
}
