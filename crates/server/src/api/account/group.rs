//! Groups over the API: their members are users and other groups.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    ADMINISTRATORS, IF_MATCH, Members, NAME, PAGE, find, guard, guard_administrators, named_json,
    need_management, page, tag_of,
};
use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Kind, Parameter, Reply, Verb};
use crate::failure::{Failure, Result};
use crate::metrics::count;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/groups",
        id: "listGroups",
        about: "Lists the groups that the asker may read, page by page, by name.",
        parameters: PAGE,
        body: Body::None,
        answers: &[Answer::json("Groups", "A page of the groups.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/groups",
        id: "createGroup",
        about: "Makes a group without members. It takes `rep:userManagement` below `/home`.",
        parameters: &[],
        body: Body::Json("NewGroup"),
        answers: &[Answer::created("Account", "It is there now.")],
        handler: Handler::Work(create),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/group",
        id: "readGroup",
        about: "Tells about a group: its members, all users in it and in the groups in it, and the groups that it is in.",
        parameters: &[NAME],
        body: Body::None,
        answers: &[Answer::json("Group", "The group.")],
        handler: Handler::Work(read),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/group",
        id: "deleteGroup",
        about: "Removes a group; its members stay.",
        parameters: &[NAME, IF_MATCH],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is gone.")],
        handler: Handler::Work(delete),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/group/members",
        id: "addMember",
        about: "Makes a user or group a member of a group.",
        parameters: &[IF_MATCH],
        body: Body::Json("Membership"),
        answers: &[Answer::nothing(204, "It is a member.")],
        handler: Handler::Work(add),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/group/members",
        id: "removeMember",
        about: "Takes a user or group out of a group.",
        parameters: &[
            Parameter::required("group", Kind::Name, "The group."),
            Parameter::required("member", Kind::Name, "The user or group."),
            IF_MATCH,
        ],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is no direct member.")],
        handler: Handler::Work(remove),
    },
];

fn list(instance: &Instance, call: &Call) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let mut seen = Vec::new();
    for name in instance.repository.groups()? {
        let Some(path) = instance.repository.account_path(&name)? else { continue };
        if let Some(node) = snapshot.node(&path)? {
            seen.push((name, node));
        }
    }
    let (groups, next) = page(call, seen);
    let groups: Vec<Json> = groups.iter().map(|(name, node)| named_json(name, node)).collect();
    Ok(Reply::json(json!({ "groups": groups, "next": next })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewGroup {
    name: String,
}

fn create(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewGroup { name } = call.body()?;
    need_management(&call.snapshot()?, "/home/groups")?;
    let mut session = call.session()?;
    session.add_group(&name)?;
    let path = session.account(&name)?;
    session.commit(&format!("add group {name}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::created(json!({ "name": name, "path": path.as_str() })))
}

fn read(instance: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, name) = (call.snapshot()?, call.text("name").unwrap_or_default());
    let node = find(call, &snapshot, name, "group")?;
    let members = Members::of(&instance.repository, &snapshot)?;
    let kind = |is_group| if is_group { "group" } else { "user" };
    let direct = members.direct(name).into_iter();
    let direct: Vec<Json> =
        direct.map(|(name, is_group)| json!({ "name": name, "kind": kind(is_group) })).collect();
    let all = members.all(name).into_iter();
    let users: Vec<&str> = all.filter(|(_, is_group)| !is_group).map(|(name, _)| name).collect();
    let mut described = named_json(name, &node);
    if let Some(described) = described.as_object_mut() {
        described.insert("members".to_owned(), direct.into());
        described.insert("allUsers".to_owned(), users.into());
        described.insert("groups".to_owned(), members.groups_of(name).into());
    }
    Ok(Reply::tagged(described, tag_of(call, &node)))
}

fn delete(instance: &Instance, call: &Call) -> Result<Reply> {
    let name = call.text("name").unwrap_or_default();
    let node = find(call, &call.snapshot()?, name, "group")?;
    guard_administrators(call, name)?;
    if name == ADMINISTRATORS {
        let reason = "the group `administrators` is always there";
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, reason));
    }
    let mut session = call.session()?;
    guard(call, &mut session, &node)?;
    session.remove_account(name)?;
    session.commit(&format!("remove group {name}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Membership {
    group: String,
    member: String,
}

fn add(instance: &Instance, call: &Call) -> Result<Reply> {
    let Membership { group, member } = call.body()?;
    let snapshot = call.snapshot()?;
    find(call, &snapshot, &group, "group")?;
    find(call, &snapshot, &member, "user or group")?;
    let members = Members::of(&instance.repository, &instance.repository.snapshot()?)?;
    if group == member || members.is_within(&group, &member) {
        let message = format!("`{group}` is in `{member}` already: a group cannot be in itself");
        return Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let message = format!("add {member} to group {group}");
    change(instance, call, [&group, &member], &message, |session| {
        session.add_member(&group, &member)
    })
}

fn remove(instance: &Instance, call: &Call) -> Result<Reply> {
    let text = |name| call.text(name).unwrap_or_default();
    let (group, member) = (text("group"), text("member"));
    let message = format!("take {member} out of group {group}");
    change(instance, call, [group, member], &message, |session| {
        session.remove_member(group, member)
    })
}

/// Changes the members of a group; both must be seen.
fn change(
    instance: &Instance,
    call: &Call,
    [group, member]: [&str; 2],
    message: &str,
    edit: impl FnOnce(&mut tympan_content::Session) -> tympan_content::Result<()>,
) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let node = find(call, &snapshot, group, "group")?;
    find(call, &snapshot, member, "user or group")?;
    guard_administrators(call, group)?;
    let mut session = call.session()?;
    guard(call, &mut session, &node)?;
    edit(&mut session)?;
    session.commit(message, call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::nothing())
}
