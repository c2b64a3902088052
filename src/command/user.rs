//! `tympan user`: users and groups of a home, their tokens, and the explanation of their privileges.

use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tympan_content::{
    JcrDate, NodePath, PrivilegeCause, PrivilegeExplanation, Privileges, Session,
};
use tympan_server::{
    AccountMark, AccountPasswordError, LoginTokenScope, Logins, TokenOwner, TokenTerms,
    check_new_password, create_user, set_password,
};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::args::{self, UserCommand, UserGroupCommand};
use crate::command::create_runtime;
use crate::command::instance::close_home;
use crate::home::{Home, open_state};

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
        UserCommand::Add { name, group, home } => {
            let password = read_password(name)?;
            edit_accounts(home, |session| {
                create_user(session, name, &password)?;
                group.iter().try_for_each(|group| session.add_member(group, name))?;
                Ok::<_, AccountPasswordError>(())
            })?;
            // A deleted user of this name may have left some.
            revoke_sessions_and_tokens(name, home).map(|_| ExitCode::SUCCESS)
        }
        UserCommand::Passwd { name, home } => {
            let password = read_password(name)?;
            edit_accounts(home, |session| set_password(session, name, &password))?;
            run_revoke_all(name, home)
        }
        UserCommand::Disable { name, reason, home } => {
            edit_accounts(home, |session| session.set_disabled(name, Some(reason)))?;
            run_revoke_all(name, home)
        }
        UserCommand::Enable { name, home } => {
            edit_accounts(home, |session| session.set_disabled(name, None))
        }
        UserCommand::Delete { name, home } => {
            edit_accounts(home, |session| session.remove_account(name))?;
            run_revoke_all(name, home)
        }
        UserCommand::Token { name, expires, scope, home } => {
            create_token(name, token_terms(expires, *scope)?, home)
        }
        UserCommand::Tokens { name, home, json } => list_tokens(name.as_deref(), home, *json),
        UserCommand::Revoke { id, home } => revoke_token(id, home),
        UserCommand::List { home, json } => list_users(home, *json),
        UserCommand::Group(group) => run_group_command(group),
        UserCommand::Why { name, path, privilege, home, json } => {
            explain_privileges(home, name, path, privilege, *json)
        }
    }
}

fn run_group_command(group: &UserGroupCommand) -> CommandOutcome {
    match group {
        UserGroupCommand::Create { group, home } => {
            edit_accounts(home, |session| session.add_group(group))
        }
        UserGroupCommand::Delete { group, home } => {
            edit_accounts(home, |session| session.remove_account(group))
        }
        UserGroupCommand::Add { group, member, home } => {
            edit_accounts(home, |session| session.add_member(group, member))
        }
        UserGroupCommand::Remove { group, member, home } => {
            edit_accounts(home, |session| session.remove_member(group, member))
        }
        UserGroupCommand::List { home, json } => {
            let home = Home::open_existing(home)?;
            let groups = home.repository.groups();
            let groups =
                groups.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
            print_names(&groups, *json);
            Ok(ExitCode::SUCCESS)
        }
    }
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

/// Changes users and groups of a home; creates the initial ones first.
fn edit_accounts<E: Into<AccountPasswordError>>(
    home: &Path,
    edit: impl FnOnce(&mut Session) -> Result<(), E>,
) -> CommandOutcome {
    let home = Home::open_existing(home)?;
    let failed = |error: tympan_content::Error| match error {
        tympan_content::Error::NodeMissing(path) if path.as_str().starts_with("/home/") => {
            CommandFault::usage(format!("there is no user or group `{}`", path.name()))
        }
        error => CommandFault::usage(error_chain_text(&error)),
    };
    let now = SystemTime::now();
    home.repository.install_initial_policies(now).map_err(failed)?;
    let mut session = home.repository.session("admin").map_err(failed)?;
    edit(&mut session).map_err(|error| match error.into() {
        AccountPasswordError::Content(error) => failed(error),
        error @ AccountPasswordError::Hash(_) => CommandFault::cannot_run(error_chain_text(&error)),
    })?;
    session.commit("change users", now).map_err(failed)?;
    close_home(&home)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs a function on the state database, which a running instance shares.
fn with_state_database<T>(
    home: &Path,
    work: impl AsyncFnOnce(&tympan_store::StateDatabase) -> std::io::Result<T>,
) -> Result<T, CommandFault> {
    let is_shared =
        crate::home_chunk_store::state_database_location(&crate::config::read_home_config(home)?)
            .is_some();
    if !is_shared && !home.join("state.db").exists() {
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

/// Ends the sessions and tokens of a user, and prints their number.
fn run_revoke_all(name: &str, home: &Path) -> CommandOutcome {
    let count = revoke_sessions_and_tokens(name, home)?;
    say!("ended {count} sessions and tokens of `{name}`");
    Ok(ExitCode::SUCCESS)
}

/// Ends the sessions and tokens of a user.
fn revoke_sessions_and_tokens(name: &str, home: &Path) -> Result<u64, CommandFault> {
    create_runtime(8)?.block_on(async {
        let state = open_state(home).await?;
        let failed = |error: std::io::Error| {
            CommandFault::cannot_run(format!("cannot revoke tokens: {error}"))
        };
        let count = Logins::revoke_user_tokens(state.pool(), name).await.map_err(failed)?;
        state.close().await;
        Ok(count)
    })
}

/// Parses the expiry and the scope of a new token.
fn token_terms(expires: &str, scope: args::TokenScope) -> Result<TokenTerms, CommandFault> {
    let life = (expires != "never").then(|| parse_token_duration(expires)).transpose()?;
    let scope = match scope {
        args::TokenScope::All => LoginTokenScope::All,
        args::TokenScope::Read => LoginTokenScope::Read,
        args::TokenScope::Monitor => LoginTokenScope::Monitor,
    };
    Ok(TokenTerms { lifetime: life, scope })
}

/// Creates a token.
fn create_token(name: &str, terms: TokenTerms, home: &Path) -> CommandOutcome {
    // While an instance has the home open, only the logins can be read: the token is bound to the account at its first
    // use.
    let account = match Home::open_existing(home) {
        Ok(home) => Some(account_mark(&home, name)?),
        Err(_) => None,
    };
    let token = with_state_database(home, async |state| {
        let owner = TokenOwner { user: name, account: account.as_ref() };
        Logins::issue_token(state.pool(), owner, SystemTime::now(), terms).await
    })?;
    say!("{token}");
    Ok(ExitCode::SUCCESS)
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

/// Parses `90d`, `12h`, `30m` or `45s`.
fn parse_token_duration(text: &str) -> Result<Duration, CommandFault> {
    let wrong = || CommandFault::usage(format!("`{text}` is not a duration; write `12h` or `90d`"));
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    // A century is effectively unlimited, and avoids overflows later.
    let total = count.checked_mul(seconds).filter(|total| (1..=3_153_600_000).contains(total));
    Ok(Duration::from_secs(total.ok_or_else(wrong)?))
}

fn list_tokens(name: Option<&str>, home: &Path, json: bool) -> CommandOutcome {
    let tokens = with_state_database(home, async |state| {
        Logins::list_tokens(state.pool(), name, SystemTime::now()).await
    })?;
    let date = |seconds: i64| {
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        JcrDate::from_system_time(SystemTime::UNIX_EPOCH + since).to_string()
    };
    if json {
        say!("{}", json!(tokens));
        return Ok(ExitCode::SUCCESS);
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
    Ok(ExitCode::SUCCESS)
}

fn revoke_token(id: &str, home: &Path) -> CommandOutcome {
    let is_done =
        with_state_database(home, async |state| Logins::revoke_token(state.pool(), id).await)?;
    if is_done {
        return Ok(ExitCode::SUCCESS);
    }
    Err(CommandFault::usage(format!("there is no token `{id}`; `tympan user tokens` lists them")))
}

fn list_users(home: &Path, json: bool) -> CommandOutcome {
    let home = Home::open_existing(home)?;
    let users = home
        .repository
        .users()
        .map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
    if json {
        let names: Vec<&str> = users.iter().map(|(name, _)| &**name).collect();
        say!("{}", json!(names));
        return Ok(ExitCode::SUCCESS);
    }
    for (name, is_disabled) in users {
        say!("{name}{}", if is_disabled { " (disabled)" } else { "" });
    }
    Ok(ExitCode::SUCCESS)
}

fn print_names(names: &[String], json: bool) {
    if json {
        say!("{}", json!(names));
    } else {
        names.iter().for_each(|name| say!("{name}"));
    }
}

/// Prints what a user may do at a path, and the reasons.
fn explain_privileges(
    home: &Path,
    name: &str,
    path: &str,
    privilege_names: &[String],
    json: bool,
) -> CommandOutcome {
    let failed = |error: tympan_content::Error| CommandFault::usage(error_chain_text(&error));
    let path = NodePath::new(path).map_err(failed)?;
    let home = Home::open_existing(home)?;
    let repository = &home.repository;
    let is_known = name == "anonymous"
        || repository.users().map_err(failed)?.iter().any(|(user, _)| user == name);
    if !is_known {
        return Err(CommandFault::usage(format!("there is no user `{name}`")));
    }
    let viewer = repository.viewer(Some(name)).map_err(failed)?;
    let names: Vec<&str> = if privilege_names.is_empty() {
        DEFAULT_PRIVILEGES.to_vec()
    } else {
        privilege_names.iter().map(String::as_str).collect()
    };
    let mut privileges = Privileges::NONE;
    for name in names {
        let unknown = || CommandFault::usage(format!("there is no privilege `{name}`"));
        privileges = privileges | Privileges::find(name).ok_or_else(unknown)?;
    }
    let reasons = repository.explain_privileges(&viewer, &path, privileges).map_err(failed)?;
    let groups = repository.groups_of_viewer(&viewer).map_err(failed)?;
    if json {
        let reasons: Vec<Value> = reasons.iter().map(reason_json).collect();
        say!(
            "{}",
            json!({ "user": name, "path": path.as_str(), "groups": groups, "privileges": reasons })
        );
        return Ok(ExitCode::SUCCESS);
    }
    say!("{name} at {path}, in the groups {}", groups.join(", "));
    reasons.iter().for_each(|reason| say!("{}", reason_text(reason)));
    Ok(ExitCode::SUCCESS)
}

fn reason_text(reason: &PrivilegeExplanation) -> String {
    let label = if reason.is_granted { "yes" } else { "no " };
    let cause = match &reason.cause {
        PrivilegeCause::Administrator => "administrators are not subject to policies".to_owned(),
        PrivilegeCause::Default => "no entry grants it".to_owned(),
        PrivilegeCause::ClosedGroup(node) => {
            let node = node.as_ref().map_or("/", |node| node.as_str());
            format!("the closed user group at {node} does not include the user")
        }
        PrivilegeCause::Entry(entry) => {
            let verb = if reason.is_granted { "grants it to" } else { "denies it to" };
            let through = if entry.group_chain.is_empty() {
                String::new()
            } else {
                format!(" (through {})", entry.group_chain.join(", "))
            };
            let restrictions = if entry.restrictions.is_empty() {
                String::new()
            } else {
                format!(", restricted to {}", entry.restrictions.join(" and "))
            };
            format!(
                "{} entry {} (`{}`) {verb} {}{through}{restrictions}",
                entry.policy_path, entry.entry_number, entry.entry_name, entry.principal
            )
        }
    };
    format!("{label} {:<32} {cause}", reason.privilege)
}

fn reason_json(reason: &PrivilegeExplanation) -> Value {
    let cause = match &reason.cause {
        PrivilegeCause::Administrator => json!({ "kind": "administrator" }),
        PrivilegeCause::Default => json!({ "kind": "nothing" }),
        PrivilegeCause::ClosedGroup(node) => {
            json!({ "kind": "closedGroup", "node": node.as_ref().map(NodePath::as_str) })
        }
        PrivilegeCause::Entry(entry) => json!({
            "kind": "entry",
            "policy": entry.policy_path.as_str(),
            "number": entry.entry_number,
            "name": entry.entry_name,
            "principal": entry.principal,
            "through": entry.group_chain,
            "restrictions": entry.restrictions,
        }),
    };
    json!({ "privilege": reason.privilege, "granted": reason.is_granted, "cause": cause })
}
