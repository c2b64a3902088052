//! API endpoints for users.

use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};
use tympan_content::Node;

use super::{
    ADMIN_USER, GroupMemberships, IF_MATCH_PARAMETER, NAME_PARAMETER, PAGE_PARAMETERS, account_tag,
    find_account, guard_account_change, guard_administrator_change, paginate,
    require_user_management,
};
use crate::Instance;
use crate::api::endpoint::{
    ApiRequest, ApiResponse, Endpoint, EndpointHandler, EndpointMethod, PendingApiResponse,
    RequestBodySpec, ResponseSpec,
};
use crate::failure::{RequestFailure, Result};
use crate::login::password_policy::check_new_password;
use crate::login::{PasswordAttempt, create_user_in, set_password};
use crate::observe::metrics::increment;

/// The API endpoints that this module defines.
pub(crate) const USER_ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/users",
        id: "listUsers",
        description: "Lists the users that the caller may read, page by page, sorted by name.",
        parameters: PAGE_PARAMETERS,
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("Users", "A page of the users.")],
        handler: EndpointHandler::Blocking(list_users),
    },
    Endpoint {
        method: EndpointMethod::Post,
        path: "/api/v1/users",
        id: "createUser",
        description: "Creates a user who logs in with a password. Requires `rep:userManagement` below \
            `/home`.",
        parameters: &[],
        body: RequestBodySpec::Json("NewUser"),
        responses: &[ResponseSpec::created_json("Account", "The user was created.")],
        handler: EndpointHandler::Blocking(create_user),
    },
    Endpoint {
        method: EndpointMethod::Get,
        path: "/api/v1/user",
        id: "readUser",
        description: "Returns a user and the groups that contain it, directly and through other groups.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("User", "The user.")],
        handler: EndpointHandler::Blocking(read_user),
    },
    Endpoint {
        method: EndpointMethod::Patch,
        path: "/api/v1/user",
        id: "changeUser",
        description: "Disables a user with a reason, which ends all of its logins, or enables it again with \
            null.",
        parameters: &[NAME_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::Patch("UserPatch"),
        responses: &[ResponseSpec::json("EndedLogins", "The number of ended sessions and tokens.")],
        handler: EndpointHandler::Async(change_user),
    },
    Endpoint {
        method: EndpointMethod::Delete,
        path: "/api/v1/user",
        id: "deleteUser",
        description: "Removes a user, which ends all of its logins.",
        parameters: &[NAME_PARAMETER, IF_MATCH_PARAMETER],
        body: RequestBodySpec::None,
        responses: &[ResponseSpec::json("EndedLogins", "The number of ended sessions and tokens.")],
        handler: EndpointHandler::Async(delete_user),
    },
    Endpoint {
        method: EndpointMethod::Put,
        path: "/api/v1/user/password",
        id: "setPassword",
        description: "Changes the password of a user, which ends the other logins of that user. All users may \
            change their own with the current one; changing that of others requires `rep:userManagement`.",
        parameters: &[NAME_PARAMETER],
        body: RequestBodySpec::Json("NewPassword"),
        responses: &[ResponseSpec::json("EndedLogins", "The number of ended sessions and tokens.")],
        handler: EndpointHandler::Async(change_password),
    },
];

fn list_users(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let snapshot = call.pin_snapshot()?;
    let mut visible_users = Vec::new();
    for (name, _) in instance.repository.users()? {
        let Some(path) = instance.repository.account_path(&name)? else { continue };
        if let Some(node) = snapshot.node(&path)? {
            visible_users.push((name, node));
        }
    }
    let (users, next) = paginate(call, visible_users);
    let users: Vec<Json> = users.iter().map(|(name, node)| user_json(name, node)).collect();
    Ok(ApiResponse::json(json!({ "users": users, "next": next })))
}

fn user_json(name: &str, node: &Node) -> Json {
    json!({
        "name": name,
        "path": node.path().as_str(),
        "disabled": node.text("rep:disabled"),
        "isService": node.primary_type() == "rep:SystemUser",
    })
}

fn read_user(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let (snapshot, name) = (call.pin_snapshot()?, call.parameter("name").unwrap_or_default());
    let node = find_account(call, &snapshot, name, "user")?;
    let members = GroupMemberships::read_from(&instance.repository, &snapshot)?;
    let mut described = user_json(name, &node);
    if let Some(described) = described.as_object_mut() {
        described.insert("groups".to_owned(), members.groups_of(name).into());
        described.insert("allGroups".to_owned(), members.all_groups_of(name).into());
    }
    Ok(ApiResponse::tagged(described, account_tag(call, &node)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewUser {
    name: String,
    password: String,
    #[serde(default)]
    groups: Vec<String>,
    /// Folder below `/home/users`; created if it does not exist.
    #[serde(default)]
    folder: String,
}

fn create_user(instance: &Instance, call: &ApiRequest) -> Result<ApiResponse> {
    let NewUser { name, password, groups, folder } = call.parse_body()?;
    check_password(&name, &password)?;
    let snapshot = call.pin_snapshot()?;
    require_user_management(&snapshot, "/home/users")?;
    let mut session = call.begin_session()?;
    let path = create_user_in(&mut session, &folder, &name, &password)?;
    for group in &groups {
        find_account(call, &snapshot, group, "group")?;
        guard_administrator_change(call, group)?;
        session.accounts().add_member_path(group, &path)?;
    }
    session.commit(&format!("add user {name}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(ApiResponse::created(json!({ "name": name, "path": path.as_str() })))
}

fn check_password(user: &str, password: &str) -> Result<()> {
    check_new_password(user, password)
        .map_err(|reason| RequestFailure::unprocessable(format!("the password {reason}")))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserPatch {
    #[serde(deserialize_with = "deserialize_nullable")]
    disabled: Option<String>,
}

/// Deserializes a member that is required and may be null.
fn deserialize_nullable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

/// Refuses a change that would lock out the last administrator.
fn refuse_admin_lockout(call: &ApiRequest, name: &str) -> Result<()> {
    let reason = match name {
        ADMIN_USER => "the user `admin` cannot be removed or disabled",
        name if name == call.user_name() => "you cannot remove or disable your own account",
        _ => return Ok(()),
    };
    Err(RequestFailure::new(http::StatusCode::UNPROCESSABLE_ENTITY, reason))
}

fn change_user(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let UserPatch { disabled } = call.parse_body()?;
        let name = call.parameter("name").unwrap_or_default().to_owned();
        let (instance, headers, user) = (call.instance.clone(), call.headers.clone(), name.clone());
        let is_disabled = disabled.is_some();
        let work = move |instance: &Instance| {
            if is_disabled {
                refuse_admin_lockout(&call, &name)?;
            }
            let message = if is_disabled { "disable" } else { "enable" };
            edit_account(instance, &call, message, |session| {
                Ok(session.accounts().set_disabled(&name, disabled.as_deref())?)
            })
        };
        instance.run_work(work).await?;
        let ended = if is_disabled {
            instance.logins.revoke_other_tokens(&user, &headers).await?
        } else {
            0
        };
        Ok(ApiResponse::json(json!({ "ended": ended })))
    })
}

fn delete_user(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let name = call.parameter("name").unwrap_or_default().to_owned();
        let (instance, headers, user) = (call.instance.clone(), call.headers.clone(), name.clone());
        let work = move |instance: &Instance| {
            refuse_admin_lockout(&call, &name)?;
            edit_account(instance, &call, "remove", |session| {
                Ok(session.accounts().remove_account(&name)?)
            })
        };
        instance.run_work(work).await?;
        let ended = instance.logins.revoke_other_tokens(&user, &headers).await?;
        Ok(ApiResponse::json(json!({ "ended": ended })))
    })
}

/// Changes an account that the requesting user can read.
fn edit_account(
    instance: &Instance,
    call: &ApiRequest,
    verb: &str,
    edit: impl FnOnce(&mut tympan_content::Session) -> Result<()>,
) -> Result<()> {
    let name = call.parameter("name").unwrap_or_default();
    let node = find_account(call, &call.pin_snapshot()?, name, "user")?;
    guard_administrator_change(call, name)?;
    let mut session = call.begin_session()?;
    guard_account_change(call, &mut session, &node)?;
    edit(&mut session)?;
    session.commit(&format!("{verb} user {name}"), call.now)?;
    increment(&instance.metrics.commits);
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserPasswordChange {
    password: String,
    #[serde(default, deserialize_with = "crate::api::node::deserialize_present")]
    current: Option<String>,
}

fn change_password(call: ApiRequest) -> PendingApiResponse {
    Box::pin(async move {
        let UserPasswordChange { password, current } = call.parse_body()?;
        let name = call.parameter("name").unwrap_or_default().to_owned();
        check_password(&name, &password)?;
        let (instance, headers, user) = (call.instance.clone(), call.headers.clone(), name.clone());
        let is_own = name == call.user_name();
        if is_own {
            let current = current.ok_or_else(|| {
                RequestFailure::bad_request(
                    "send the current password as `current` to change your own",
                )
            })?;
            let attempt = PasswordAttempt {
                user: &name,
                password: &current,
                headers: &call.headers,
                peer: call.peer,
            };
            if !instance.logins.check_password(attempt, call.now).await? {
                let message = "the current password is wrong";
                return Err(RequestFailure::new(http::StatusCode::FORBIDDEN, message));
            }
        }
        let work = move |instance: &Instance| {
            if !is_own {
                return edit_account(instance, &call, "set the password of", |session| {
                    Ok(set_password(session, &name, &password)?)
                });
            }
            // A user who proves the present password needs no privilege.
            let mut session = instance.repository.session(&name)?;
            set_password(&mut session, &name, &password)?;
            session.commit(&format!("set the password of user {name}"), call.now)?;
            increment(&instance.metrics.commits);
            Ok(())
        };
        instance.run_work(work).await?;
        let ended = instance.logins.revoke_other_tokens(&user, &headers).await?;
        Ok(ApiResponse::json(json!({ "ended": ended })))
    })
}
