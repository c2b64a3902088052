//! `tympan user`: users, groups and tokens of a home or a running instance, and the explanation of privileges.

mod account_store;
mod home_accounts;
mod remote_accounts;

use std::io::BufRead;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tympan_content::JcrDate;
use tympan_server::{LoginTokenScope, TokenInfo, check_new_password};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use self::account_store::{AccountStore, NewTokenTerms};
use self::home_accounts::HomeAccounts;
use self::remote_accounts::RemoteAccounts;
use crate::args::{HomeOrUrlArgs, TokenScope, UserCommand, UserGroupCommand};
use crate::command::remote_instance::{json_list, json_member, json_text};

/// The privileges that `why` reports by default.
const DEFAULT_PRIVILEGES: [&str; 10] = [
    "rep:readNodes",
    "rep:readProperties",
    "rep:addProperties",
    "rep:alterProperties",
    "rep:removeProperties",
    "jcr:addChildNodes",
    "jcr:removeChildNodes",
    "jcr:removeNode",
    "jcr:modifyAccessControl",
    "crx:replicate",
];

/// Runs the command.
pub(crate) fn run_user_command(user: &UserCommand) -> CommandOutcome {
    match user {
        UserCommand::Add { name, group, place } => {
            let password = read_password(name)?;
            account_store(place).add_user(name, &password, group)?;
        }
        UserCommand::Passwd { name, place } => {
            let password = read_password(name)?;
            print_ended_logins(name, account_store(place).set_password(name, &password)?);
        }
        UserCommand::Disable { name, reason, place } => {
            print_ended_logins(name, account_store(place).disable_user(name, reason)?);
        }
        UserCommand::Enable { name, place } => account_store(place).enable_user(name)?,
        UserCommand::Delete { name, place } => {
            print_ended_logins(name, account_store(place).remove_user(name)?);
        }
        UserCommand::Token { name, expires, scope, place } => {
            let terms = NewTokenTerms { expires, scope: login_token_scope(*scope) };
            say!("{}", account_store(place).create_token(name, &terms)?);
        }
        UserCommand::Tokens { name, place } => {
            let tokens = account_store(&place.location).tokens(name.as_deref())?;
            print_tokens(&tokens, place.json);
        }
        UserCommand::Revoke { id, place } => account_store(place).revoke_token(id)?,
        UserCommand::List { place } => {
            print_users(&*account_store(&place.location), place.json)?;
        }
        UserCommand::Group(group) => run_group_command(group)?,
        UserCommand::Why { name, path, privilege, place } => {
            let mut privileges: Vec<&str> = privilege.iter().map(String::as_str).collect();
            if privileges.is_empty() {
                privileges = DEFAULT_PRIVILEGES.to_vec();
            }
            let accounts = account_store(&place.location);
            let explanation = accounts.explain_privileges(name, path, &privileges)?;
            if place.json {
                say!("{explanation}");
            } else {
                print_explanation(&explanation);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_group_command(group: &UserGroupCommand) -> Result<(), CommandFault> {
    match group {
        UserGroupCommand::Create { group, place } => account_store(place).create_group(group),
        UserGroupCommand::Delete { group, place } => account_store(place).remove_group(group),
        UserGroupCommand::Add { group, member, place } => {
            account_store(place).add_member(group, member)
        }
        UserGroupCommand::Remove { group, member, place } => {
            account_store(place).remove_member(group, member)
        }
        UserGroupCommand::List { place } => {
            let groups = account_store(&place.location).groups()?;
            if place.json {
                say!("{}", json!(groups));
            } else {
                groups.iter().for_each(|name| say!("{name}"));
            }
            Ok(())
        }
    }
}

/// Returns the accounts of the home or the instance that the arguments name.
fn account_store(location: &HomeOrUrlArgs) -> Box<dyn AccountStore + '_> {
    match location.remote() {
        Some(remote) => Box::new(RemoteAccounts { remote }),
        None => Box::new(HomeAccounts { location }),
    }
}

fn login_token_scope(scope: TokenScope) -> LoginTokenScope {
    match scope {
        TokenScope::All => LoginTokenScope::All,
        TokenScope::Read => LoginTokenScope::Read,
        TokenScope::Monitor => LoginTokenScope::Monitor,
    }
}

fn print_ended_logins(name: &str, count: u64) {
    say!("ended {count} sessions and tokens of `{name}`");
}

fn print_users(accounts: &dyn AccountStore, json: bool) -> Result<(), CommandFault> {
    let users = accounts.users()?;
    if json {
        let names: Vec<&str> = users.iter().map(|user| user.name.as_str()).collect();
        say!("{}", json!(names));
        return Ok(());
    }
    for user in users {
        say!("{}{}", user.name, if user.is_disabled { " (disabled)" } else { "" });
    }
    Ok(())
}

/// Reads the password from standard input.
fn read_password(user: &str) -> Result<String, CommandFault> {
    let mut password = String::new();
    let read = std::io::stdin().lock().read_line(&mut password);
    read.map_err(|error| {
        CommandFault::cannot_run(format!("cannot read the password from standard input: {error}"))
    })?;
    let password = password.trim_end_matches(['\r', '\n']);
    check_new_password(user, password).map_err(|reason| {
        CommandFault::usage(format!("the password on standard input {reason}"))
    })?;
    Ok(password.to_owned())
}

fn print_tokens(tokens: &[TokenInfo], json: bool) {
    let date = |seconds: i64| {
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        JcrDate::from_system_time(SystemTime::UNIX_EPOCH + since).to_string()
    };
    if json {
        say!("{}", json!(tokens));
        return;
    }
    for token in tokens {
        let expires = token.expires.map_or_else(|| "never".to_owned(), date);
        let created = date(token.created);
        let scope = match &*token.scope {
            "all" => "",
            "monitor" => "  for monitoring",
            _ => "  for reading",
        };
        say!(
            "{}  {}  {}  created {created}  expires {expires}{scope}",
            token.id,
            token.kind,
            token.user
        );
    }
}

/// Prints what a user may do at a path, and the reasons.
fn print_explanation(explanation: &Value) {
    let groups: Vec<&str> = json_list(explanation, "groups").filter_map(Value::as_str).collect();
    let (user, path) = (json_text(explanation, "user"), json_text(explanation, "path"));
    say!("{user} at {path}, in the groups {}", groups.join(", "));
    for reason in json_list(explanation, "privileges") {
        say!("{}", reason_text(reason));
    }
}

fn reason_text(reason: &Value) -> String {
    let is_granted = json_member(reason, "granted").as_bool().unwrap_or_default();
    let label = if is_granted { "yes" } else { "no " };
    format!("{label} {:<32} {}", json_text(reason, "privilege"), cause_text(reason, is_granted))
}

fn cause_text(reason: &Value, is_granted: bool) -> String {
    let cause = json_member(reason, "cause");
    match json_text(cause, "kind") {
        "administrator" => "administrators are not subject to policies".to_owned(),
        "nothing" => "no entry grants it".to_owned(),
        "closedGroup" => {
            let node = json_member(cause, "node").as_str().unwrap_or("/");
            format!("the closed user group at {node} does not include the user")
        }
        "entry" => {
            let verb = if is_granted { "grants it to" } else { "denies it to" };
            let texts = |name| json_list(cause, name).filter_map(Value::as_str).collect::<Vec<_>>();
            let through = match texts("through") {
                chain if chain.is_empty() => String::new(),
                chain => format!(" (through {})", chain.join(", ")),
            };
            let restrictions = match texts("restrictions") {
                restrictions if restrictions.is_empty() => String::new(),
                restrictions => format!(", restricted to {}", restrictions.join(" and ")),
            };
            format!(
                "{} entry {} (`{}`) {verb} {}{through}{restrictions}",
                json_text(cause, "policy"),
                json_member(cause, "number"),
                json_text(cause, "name"),
                json_text(cause, "principal")
            )
        }
        _ => "a policy that you may not read decides".to_owned(),
    }
}
