//! `tympan user`: users and groups of a home or a running instance, the tokens of a home, and the explanation of
//! privileges.

mod account_store;
mod home_accounts;
mod remote_accounts;

use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tympan_content::JcrDate;
use tympan_home::{Home, STATE_FILE};
use tympan_notation::parse_duration;
use tympan_server::{
    AccountMark, LoginTokenScope, Logins, TokenOwner, TokenTerms, check_new_password,
};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use self::account_store::AccountStore;
use self::home_accounts::HomeAccounts;
use self::remote_accounts::RemoteAccounts;
use crate::args::{self, HomeOrUrlArgs, UserCommand, UserGroupCommand};
use crate::command::remote_instance::{json_list, json_member, json_text};
use crate::command::runtime::create_runtime;
use crate::home::{close_home, home_access, open_existing_home, open_state};
use crate::home_fault::home_fault;

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
        UserCommand::Token { name, expires, scope, home } => {
            create_token(name, token_terms(expires, *scope)?, home)?;
        }
        UserCommand::Tokens { name, home, json } => list_tokens(name.as_deref(), home, *json)?,
        UserCommand::Revoke { id, home } => revoke_token(id, home)?,
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

/// Runs a function on the state database, which a running instance shares.
fn with_state_database<T>(
    home: &Path,
    work: impl AsyncFnOnce(&tympan_store::StateDatabase) -> std::io::Result<T>,
) -> Result<T, CommandFault> {
    let is_shared = home_access().has_database_configured(home).map_err(home_fault)?;
    if !is_shared && !home.join(STATE_FILE).exists() {
        return Err(CommandFault::usage(format!(
            "`{}` is not the home of an instance that was started",
            home.display()
        )));
    }
    create_runtime(8)?.block_on(async {
        let state = open_state(home).await?;
        let done = work(&state).await;
        state.close().await;
        done.map_err(|error| {
            CommandFault::cannot_run(format!("the state database failed: {error}"))
        })
    })
}

/// Parses the expiry and the scope of a new token.
fn token_terms(expires: &str, scope: args::TokenScope) -> Result<TokenTerms, CommandFault> {
    let life = (expires != "never").then(|| parse_token_lifetime(expires)).transpose()?;
    let scope = match scope {
        args::TokenScope::All => LoginTokenScope::All,
        args::TokenScope::Read => LoginTokenScope::Read,
        args::TokenScope::Monitor => LoginTokenScope::Monitor,
    };
    Ok(TokenTerms { lifetime: life, scope })
}

/// Creates a token.
fn create_token(name: &str, terms: TokenTerms, home: &Path) -> Result<(), CommandFault> {
    // While an instance has the home open, only the logins can be read: the token is bound to the account at its first
    // use.
    let account = match open_existing_home(home) {
        Ok(home) => Some(account_mark(&home, name)?),
        Err(_) => None,
    };
    let token = with_state_database(home, async |state| {
        let owner = TokenOwner { user: name, account: account.as_ref() };
        Logins::issue_token(state.pool(), owner, SystemTime::now(), terms).await
    })?;
    say!("{token}");
    Ok(())
}

/// Returns the mark of the account of a user who may log in; assigns an identifier to the account if it has none.
fn account_mark(home: &Home, name: &str) -> Result<AccountMark, CommandFault> {
    let failed = |error: tympan_content::Error| CommandFault::cannot_run(error_chain_text(&error));
    let repository = &home.repository;
    let nobody = || {
        let message =
            format!("there is no user `{name}` who may log in; `tympan user list` lists the users");
        CommandFault::usage(message)
    };
    let mark = AccountMark::of_user(repository, name, SystemTime::now()).map_err(failed)?;
    let mark = mark.ok_or_else(nobody)?;
    close_home(home)?;
    Ok(mark)
}

/// Parses the lifetime of a token: from a second to a century, which is effectively unlimited and avoids overflows later.
fn parse_token_lifetime(text: &str) -> Result<Duration, CommandFault> {
    const MAX_TOKEN_LIFETIME: Duration = Duration::from_hours(100 * 365 * 24);
    let lifetime = parse_duration(text).map_err(|error| CommandFault::usage(error.to_string()))?;
    if (Duration::from_secs(1)..=MAX_TOKEN_LIFETIME).contains(&lifetime) {
        Ok(lifetime)
    } else {
        Err(CommandFault::usage(format!("`{text}` is not between `1s` and `36500d`, or `never`")))
    }
}

fn list_tokens(name: Option<&str>, home: &Path, json: bool) -> Result<(), CommandFault> {
    let tokens = with_state_database(home, async |state| {
        Logins::list_tokens(state.pool(), name, SystemTime::now()).await
    })?;
    let date = |seconds: i64| {
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        JcrDate::from_system_time(SystemTime::UNIX_EPOCH + since).to_string()
    };
    if json {
        say!("{}", json!(tokens));
        return Ok(());
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
    Ok(())
}

fn revoke_token(id: &str, home: &Path) -> Result<(), CommandFault> {
    let is_done =
        with_state_database(home, async |state| Logins::revoke_token(state.pool(), id).await)?;
    if is_done {
        return Ok(());
    }
    Err(CommandFault::usage(format!("there is no token `{id}`; `tympan user tokens` lists them")))
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
