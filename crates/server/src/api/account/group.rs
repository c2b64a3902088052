//! API endpoints for groups. The members of a group are users and other groups.

use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::{
    ADMINISTRATORS_GROUP, GroupMemberships, IF_MATCH_PARAMETER, NAME_PARAMETER, PAGE_PARAMETERS,
    account_tag, find_account, guard_account_change, guard_administrator_change, named_node_json,
    paginate, require_user_management,
};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, EndpointParameter,
    ParameterKind, RequestBodySpec, ResponseSpec,
};
use crate::failure::{RequestFailure, Result};
use crate::observe::metrics::increment;

/// The API endpoints that this module defines.
pub(crate) const GROUP_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/groups",
        id: "listGroups",
        description: "Lists the groups that the caller may read, page by page, sorted by name.",
        parameters: PAGE_PARAMETERS,
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Groups", "A page of the groups.")],
        handler: EndpointHandler::Blocking(list_groups),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/groups",
        id: "createGroup",
        description: "Creates a group without members. Requires `rep:userManagement` below `/home`.",
        parameters: &[],
        body: RequestBodySpec::Json("NewGroup"),
        responses: &[ResponseSpec::created_json("Account", "The group was created.")],
        handler: EndpointHandler::Blocking(create_group),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/group",
        id: "readGroup",
        description: "Returns a group: its direct members, all users in it directly or through other groups, \
            and the groups that contain it.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Group", "The group.")],
        handler: EndpointHandler::Blocking(read_group),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/group",
        id: "deleteGroup",
        description: "Removes a group; its members stay.",
        parameters: &[NAME_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The group was removed.")],
        handler: EndpointHandler::Blocking(delete_group),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/group/members",
        id: "addMember",
        description: "Adds a user or group to a group.",
        parameters: &[IF_MATCH_PARAMETER],
        body: RequestBodySpec::Json("Membership"),
        responses: &[ResponseSpec::empty(204, "The member was added.")],
        handler: EndpointHandler::Blocking(add_member),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/group/members",
        id: "removeMember",
        description: "Removes a user or group from a group.",
        parameters: &[
            EndpointParameter::required("group", ParameterKind::Name, "The group."),
            EndpointParameter::required("member", ParameterKind::Name, "The user or group."),
            IF_MATCH_PARAMETER,
        ],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::empty(204, "The account is not a direct member of the group.")],
        handler: EndpointHandler::Blocking(remove_member),
    },
];

fn list_groups(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let mut visible_groups = Vec::new();
    for name in instance.repository.groups()? {
        let Some(path) = instance.repository.account_path(&name)? else { continue };
        if let Some(node) = snapshot.node(&path)? {
            visible_groups.push((name, node));
        }
    }
    let (groups, next) = paginate(call, visible_groups);
    let groups: Vec<Json> = groups.iter().map(|(name, node)| named_node_json(name, node)).collect();
    Ok(ApiResponse::json(json!({ "groups": groups, "next": next })))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewGroup {
    name: String,
}

fn create_group(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NewGroup { name } = call.parse_body()?;
    require_user_management(&call.pin_snapshot()?, "/home/groups")?;
    let mut session = call.begin_session()?;
    session.accounts().add_group(&name)?;
    let path = session.accounts().account_path(&name)?;
    session.commit(&format!("add group {name}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::created(json!({ "name": name, "path": path.as_str() })))
}

fn read_group(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, name) = (call.pin_snapshot()?, call.parameter("name").unwrap_or_default());
    let node = find_account(call, &snapshot, name, "group")?;
    let members = GroupMemberships::read_from(&instance.repository, &snapshot)?;
    let kind = |is_group| if is_group { "group" } else { "user" };
    let direct = members.direct_members(name).into_iter();
    let direct: Vec<Json> =
        direct.map(|(name, is_group)| json!({ "name": name, "kind": kind(is_group) })).collect();
    let all = members.all_members(name).into_iter();
    let users: Vec<&str> = all.filter(|(_, is_group)| !is_group).map(|(name, _)| name).collect();
    let mut described = named_node_json(name, &node);
    if let Some(described) = described.as_object_mut() {
        described.insert("members".to_owned(), direct.into());
        described.insert("allUsers".to_owned(), users.into());
        described.insert("groups".to_owned(), members.groups_of(name).into());
    }
    Ok(ApiResponse::tagged(described, account_tag(call, &node)))
}

fn delete_group(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let name = call.parameter("name").unwrap_or_default();
    let node = find_account(call, &call.pin_snapshot()?, name, "group")?;
    guard_administrator_change(call, name)?;
    if name == ADMINISTRATORS_GROUP {
        let reason = "the group `administrators` cannot be removed";
        return Err(RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, reason));
    }
    let mut session = call.begin_session()?;
    guard_account_change(call, &mut session, &node)?;
    session.accounts().remove_account(name)?;
    session.commit(&format!("remove group {name}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MembershipChange {
    group: String,
    member: String,
}

fn add_member(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let MembershipChange { group, member } = call.parse_body()?;
    let snapshot = call.pin_snapshot()?;
    find_account(call, &snapshot, &group, "group")?;
    find_account(call, &snapshot, &member, "user or group")?;
    let members =
        GroupMemberships::read_from(&instance.repository, &instance.repository.snapshot()?)?;
    if group == member || members.is_within(&group, &member) {
        let message = format!("`{group}` is already in `{member}`; a group cannot contain itself");
        return Err(RequestFailure::new(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let message = format!("add {member} to group {group}");
    change_membership(instance, call, [&group, &member], &message, |session| {
        session.accounts().add_member(&group, &member)
    })
}

fn remove_member(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let text = |name| call.parameter(name).unwrap_or_default();
    let (group, member) = (text("group"), text("member"));
    let message = format!("remove {member} from group {group}");
    change_membership(instance, call, [group, member], &message, |session| {
        session.accounts().remove_member(group, member)
    })
}

/// Changes the members of a group. The requesting user must be able to read both the group and the member.
fn change_membership(
    instance: &Instance,
    call: &ApiRequest,
    [group, member]: [&str; 2],
    message: &str,
    edit: impl FnOnce(&mut tympan_content::Session) -> tympan_content::Result<()>,
) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let node = find_account(call, &snapshot, group, "group")?;
    find_account(call, &snapshot, member, "user or group")?;
    guard_administrator_change(call, group)?;
    let mut session = call.begin_session()?;
    guard_account_change(call, &mut session, &node)?;
    edit(&mut session)?;
    session.commit(message, call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::empty())
}
