//! Users over the API.

use serde::{Deserialize, Deserializer};
use serde_json::{Value as Json, json};
use tympan_content::Node;

use super::{
    ADMIN, IF_MATCH, Members, NAME, PAGE, find, guard, guard_administrators, need_management, page,
    tag_of,
};
use crate::Instance;
use crate::api::endpoint::{Answer, Body, Call, Endpoint, Handler, Pending, Reply, Verb};
use crate::failure::{Failure, Result};
use crate::login::{PasswordAttempt, create_user_in, set_password};
use crate::metrics::count;
use crate::password::check_new_password;

/// The endpoints of this part.
pub(crate) const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/users",
        id: "listUsers",
        about: "Lists the users that the asker may read, page by page, by name.",
        parameters: PAGE,
        body: Body::None,
        answers: &[Answer::json("Users", "A page of the users.")],
        handler: Handler::Work(list),
    },
    Endpoint {
        verb: Verb::Post,
        path: "/api/v1/users",
        id: "createUser",
        about: "Makes a user who logs in with a password. It takes `rep:userManagement` below `/home`.",
        parameters: &[],
        body: Body::Json("NewUser"),
        answers: &[Answer::created("Account", "It is there now.")],
        handler: Handler::Work(create),
    },
    Endpoint {
        verb: Verb::Get,
        path: "/api/v1/user",
        id: "readUser",
        about: "Tells about a user, and in which groups it is, directly and through others.",
        parameters: &[NAME],
        body: Body::None,
        answers: &[Answer::json("User", "The user.")],
        handler: Handler::Work(read),
    },
    Endpoint {
        verb: Verb::Patch,
        path: "/api/v1/user",
        id: "changeUser",
        about: "Disables a user for a reason, which ends all its logins, or enables it again with null.",
        parameters: &[NAME, IF_MATCH],
        body: Body::Patch("UserPatch"),
        answers: &[Answer::json("EndedLogins", "How many sessions and tokens it ended.")],
        handler: Handler::Task(change),
    },
    Endpoint {
        verb: Verb::Delete,
        path: "/api/v1/user",
        id: "deleteUser",
        about: "Removes a user, which ends all its logins.",
        parameters: &[NAME, IF_MATCH],
        body: Body::None,
        answers: &[Answer::nothing(204, "It is gone.")],
        handler: Handler::Task(delete),
    },
    Endpoint {
        verb: Verb::Put,
        path: "/api/v1/user/password",
        id: "setPassword",
        about: "Gives a user another password, which ends its other logins. Everybody may change their own with the \
                current one; that of others takes `rep:userManagement`.",
        parameters: &[NAME],
        body: Body::Json("NewPassword"),
        answers: &[Answer::json("EndedLogins", "How many sessions and tokens it ended.")],
        handler: Handler::Task(password),
    },
];

fn list(instance: &Instance, call: &Call) -> Result<Reply> {
    let snapshot = call.snapshot()?;
    let mut seen = Vec::new();
    for (name, _) in instance.repository.users()? {
        let Some(path) = instance.repository.account_path(&name)? else { continue };
        if let Some(node) = snapshot.node(&path)? {
            seen.push((name, node));
        }
    }
    let (users, next) = page(call, seen);
    let users: Vec<Json> = users.iter().map(|(name, node)| user_json(name, node)).collect();
    Ok(Reply::json(json!({ "users": users, "next": next })))
}

fn user_json(name: &str, node: &Node) -> Json {
    json!({
        "name": name,
        "path": node.path().as_str(),
        "disabled": node.text("rep:disabled"),
        "isService": node.primary_type() == "rep:SystemUser",
    })
}

fn read(instance: &Instance, call: &Call) -> Result<Reply> {
    let (snapshot, name) = (call.snapshot()?, call.text("name").unwrap_or_default());
    let node = find(call, &snapshot, name, "user")?;
    let members = Members::of(&instance.repository, &snapshot)?;
    let mut described = user_json(name, &node);
    if let Some(described) = described.as_object_mut() {
        described.insert("groups".to_owned(), members.groups_of(name).into());
        described.insert("allGroups".to_owned(), members.all_groups_of(name).into());
    }
    Ok(Reply::tagged(described, tag_of(call, &node)))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewUser {
    name: String,
    password: String,
    #[serde(default)]
    groups: Vec<String>,
    /// Below `/home/users`, made where it is missing.
    #[serde(default)]
    folder: String,
}

fn create(instance: &Instance, call: &Call) -> Result<Reply> {
    let NewUser { name, password, groups, folder } = call.body()?;
    check_password(&name, &password)?;
    let snapshot = call.snapshot()?;
    need_management(&snapshot, "/home/users")?;
    let mut session = call.session()?;
    let path = create_user_in(&mut session, &folder, &name, &password)?;
    for group in &groups {
        find(call, &snapshot, group, "group")?;
        guard_administrators(call, group)?;
        session.add_member_at(group, &path)?;
    }
    session.commit(&format!("add user {name}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(Reply::created(json!({ "name": name, "path": path.as_str() })))
}

fn check_password(user: &str, password: &str) -> Result<()> {
    check_new_password(user, password)
        .map_err(|reason| Failure::unfit(format!("the password {reason}")))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserPatch {
    #[serde(deserialize_with = "some_or_null")]
    disabled: Option<String>,
}

/// Reads a member that must be there, and may be null.
fn some_or_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

/// Refuses to lock out the last one who can help.
fn keep_admin(call: &Call, name: &str) -> Result<()> {
    let reason = match name {
        ADMIN => "the user `admin` is always there",
        name if name == call.user() => "nobody can lock out themselves",
        _ => return Ok(()),
    };
    Err(Failure::new(http::StatusCode::UNPROCESSABLE_ENTITY, reason))
}

fn change(call: Call) -> Pending {
    Box::pin(async move {
        let UserPatch { disabled } = call.body()?;
        let name = call.text("name").unwrap_or_default().to_owned();
        let (instance, headers, user) = (call.instance.clone(), call.headers.clone(), name.clone());
        let is_disabled = disabled.is_some();
        let work = move |instance: &Instance| {
            if is_disabled {
                keep_admin(&call, &name)?;
            }
            let message = if is_disabled { "disable" } else { "enable" };
            alter(instance, &call, message, |session| {
                Ok(session.set_disabled(&name, disabled.as_deref())?)
            })
        };
        instance.work(work).await?;
        let ended =
            if is_disabled { instance.logins.revoke_others(&user, &headers).await? } else { 0 };
        Ok(Reply::json(json!({ "ended": ended })))
    })
}

fn delete(call: Call) -> Pending {
    Box::pin(async move {
        let name = call.text("name").unwrap_or_default().to_owned();
        let (instance, headers, user) = (call.instance.clone(), call.headers.clone(), name.clone());
        let work = move |instance: &Instance| {
            keep_admin(&call, &name)?;
            alter(instance, &call, "remove", |session| Ok(session.remove_account(&name)?))
        };
        instance.work(work).await?;
        instance.logins.revoke_others(&user, &headers).await?;
        Ok(Reply::nothing())
    })
}

/// Changes an account that the asker sees.
fn alter(
    instance: &Instance,
    call: &Call,
    verb: &str,
    edit: impl FnOnce(&mut tympan_content::Session) -> Result<()>,
) -> Result<()> {
    let name = call.text("name").unwrap_or_default();
    let node = find(call, &call.snapshot()?, name, "user")?;
    guard_administrators(call, name)?;
    let mut session = call.session()?;
    guard(call, &mut session, &node)?;
    edit(&mut session)?;
    session.commit(&format!("{verb} user {name}"), call.now)?;
    count(&instance.metrics.commits);
    Ok(())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NewPassword {
    password: String,
    #[serde(default, deserialize_with = "crate::api::node::given")]
    current: Option<String>,
}

fn password(call: Call) -> Pending {
    Box::pin(async move {
        let NewPassword { password, current } = call.body()?;
        let name = call.text("name").unwrap_or_default().to_owned();
        check_password(&name, &password)?;
        let (instance, headers, user) = (call.instance.clone(), call.headers.clone(), name.clone());
        let is_own = name == call.user();
        if is_own {
            let current = current.ok_or_else(|| {
                Failure::bad_request("send the present password as `current` to change your own")
            })?;
            let attempt = PasswordAttempt {
                user: &name,
                password: &current,
                headers: &call.headers,
                peer: call.peer,
            };
            if !instance.logins.check_password(attempt, call.now).await? {
                let message = "the present password is another one";
                return Err(Failure::new(http::StatusCode::FORBIDDEN, message));
            }
        }
        let work = move |instance: &Instance| {
            if !is_own {
                return alter(instance, &call, "set the password of", |session| {
                    Ok(set_password(session, &name, &password)?)
                });
            }
            // Who knows the present password needs no privilege.
            let mut session = instance.repository.session(&name)?;
            set_password(&mut session, &name, &password)?;
            session.commit(&format!("set the password of user {name}"), call.now)?;
            count(&instance.metrics.commits);
            Ok(())
        };
        instance.work(work).await?;
        let ended = instance.logins.revoke_others(&user, &headers).await?;
        Ok(Reply::json(json!({ "ended": ended })))
    })
}
