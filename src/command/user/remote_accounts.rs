//! The accounts of a running instance, through its JSON API.

use http::Method;
use serde_json::{Value, from_value, json};
use tympan_server::TokenInfo;
use tympan_terminal::CommandFault;

use super::account_store::{AccountStore, NewTokenTerms, UserStatus};
use crate::args::RemoteInstanceArgs;
use crate::command::remote_instance::{
    encode_form, json_list, json_member, json_text, percent_encode, send_form, send_json,
};

const TOKENS_PATH: &str = "/api/v1/user/tokens";

/// The accounts of an instance.
pub(super) struct RemoteAccounts {
    pub(super) remote: RemoteInstanceArgs,
}

impl RemoteAccounts {
    fn send(&self, method: Method, path: &str, body: &Value) -> Result<Value, CommandFault> {
        send_json(&self.remote, method, path, body)
    }

    /// Returns all entries of a list that the API returns page by page.
    fn list(
        &self,
        path: &str,
        filter: Option<(&str, &str)>,
        member: &str,
    ) -> Result<Vec<Value>, CommandFault> {
        let mut entries = Vec::new();
        let mut after = String::new();
        loop {
            let page = [("limit", "1000"), ("after", &after)].into_iter().chain(filter);
            let page = format!("{path}?{}", encode_form(page));
            let page = send_form(&self.remote, Method::GET, &page, "")?;
            entries.extend(json_list(&page, member).cloned());
            match json_member(&page, "next").as_str() {
                Some(next) => next.clone_into(&mut after),
                None => return Ok(entries),
            }
        }
    }

    /// Returns the password of the login, if its user is `name`.
    fn own_password(&self, name: &str) -> Option<&str> {
        let (user, password) = self.remote.credentials.login.as_deref()?.split_once(':')?;
        let is_login =
            self.remote.credentials.token_file.is_none() && self.remote.credentials.token.is_none();
        (is_login && user == name).then_some(password)
    }
}

fn user_path(name: &str) -> String {
    format!("/api/v1/user?name={}", percent_encode(name))
}

fn ended_logins(response: &Value) -> u64 {
    json_member(response, "ended").as_u64().unwrap_or_default()
}

impl AccountStore for RemoteAccounts {
    fn add_user(&self, name: &str, password: &str, groups: &[String]) -> Result<(), CommandFault> {
        let user = json!({ "name": name, "password": password, "groups": groups });
        self.send(Method::POST, "/api/v1/users", &user).map(drop)
    }

    fn set_password(&self, name: &str, password: &str) -> Result<u64, CommandFault> {
        let mut change = json!({ "password": password });
        if let (Some(current), Some(change)) = (self.own_password(name), change.as_object_mut()) {
            change.insert("current".to_owned(), current.into());
        }
        let path = format!("/api/v1/user/password?name={}", percent_encode(name));
        self.send(Method::PUT, &path, &change).map(|response| ended_logins(&response))
    }

    fn disable_user(&self, name: &str, reason: &str) -> Result<u64, CommandFault> {
        let response =
            self.send(Method::PATCH, &user_path(name), &json!({ "disabled": reason }))?;
        Ok(ended_logins(&response))
    }

    fn enable_user(&self, name: &str) -> Result<(), CommandFault> {
        self.send(Method::PATCH, &user_path(name), &json!({ "disabled": null })).map(drop)
    }

    fn remove_user(&self, name: &str) -> Result<u64, CommandFault> {
        let response = send_form(&self.remote, Method::DELETE, &user_path(name), "")?;
        Ok(ended_logins(&response))
    }

    fn create_token(&self, name: &str, terms: &NewTokenTerms<'_>) -> Result<String, CommandFault> {
        let body = json!({ "expires": terms.expires, "scope": terms.scope.name() });
        let path = format!("{TOKENS_PATH}?name={}", percent_encode(name));
        let response = self.send(Method::POST, &path, &body)?;
        Ok(json_text(&response, "token").to_owned())
    }

    fn tokens(&self, name: Option<&str>) -> Result<Vec<TokenInfo>, CommandFault> {
        let user = name.map(|name| ("name", name));
        let tokens = self.list(TOKENS_PATH, user, "tokens")?.into_iter().map(from_value);
        let mut tokens: Vec<TokenInfo> = tokens.collect::<Result<_, _>>().map_err(|error| {
            CommandFault::cannot_run(format!("cannot read the list of tokens: {error}"))
        })?;
        tokens.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(tokens)
    }

    fn revoke_token(&self, id: &str) -> Result<(), CommandFault> {
        let path = format!("{TOKENS_PATH}?id={}", percent_encode(id));
        send_form(&self.remote, Method::DELETE, &path, "").map(drop)
    }

    fn users(&self) -> Result<Vec<UserStatus>, CommandFault> {
        let status = |user: &Value| UserStatus {
            name: json_text(user, "name").to_owned(),
            is_disabled: !json_member(user, "disabled").is_null(),
        };
        Ok(self.list("/api/v1/users", None, "users")?.iter().map(status).collect())
    }

    fn create_group(&self, group: &str) -> Result<(), CommandFault> {
        self.send(Method::POST, "/api/v1/groups", &json!({ "name": group })).map(drop)
    }

    fn remove_group(&self, group: &str) -> Result<(), CommandFault> {
        let path = format!("/api/v1/group?name={}", percent_encode(group));
        send_form(&self.remote, Method::DELETE, &path, "").map(drop)
    }

    fn add_member(&self, group: &str, member: &str) -> Result<(), CommandFault> {
        let membership = json!({ "group": group, "member": member });
        self.send(Method::POST, "/api/v1/group/members", &membership).map(drop)
    }

    fn remove_member(&self, group: &str, member: &str) -> Result<(), CommandFault> {
        let path = format!(
            "/api/v1/group/members?group={}&member={}",
            percent_encode(group),
            percent_encode(member)
        );
        send_form(&self.remote, Method::DELETE, &path, "").map(drop)
    }

    fn groups(&self) -> Result<Vec<String>, CommandFault> {
        let groups = self.list("/api/v1/groups", None, "groups")?;
        Ok(groups.iter().map(|group| json_text(group, "name").to_owned()).collect())
    }

    fn explain_privileges(
        &self,
        name: &str,
        path: &str,
        privileges: &[&str],
    ) -> Result<Value, CommandFault> {
        let mut query = format!(
            "/api/v1/permissions/why?path={}&user={}",
            percent_encode(path),
            percent_encode(name)
        );
        for privilege in privileges {
            query.push_str(&format!("&privilege={}", percent_encode(privilege)));
        }
        send_form(&self.remote, Method::GET, &query, "")
    }
}
