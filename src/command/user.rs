//! `tympan user`: users and groups of a home, their tokens, and why they may do what they may.

use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tympan_content::{Cause, Date, NodePath, Privileges, Reason, Session};
use tympan_server::{
    AccountMark, Logins, Owner, TokenScope, TokenTerms, check_new_password, create_user,
    set_password,
};

use crate::args::{self, Group, User};
use crate::command::instance::close;
use crate::command::{Fault, Outcome, runtime};
use crate::home::{Home, chain, open_state};
use crate::say;

/// What `why` tells about unless asked for something else.
const ASKED: [&str; 10] = [
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
pub(crate) fn run(user: &User) -> Outcome {
    match user {
        User::Add { name, group, home } => {
            let password = read_password(name)?;
            change(home, |session| {
                create_user(session, name, &password)?;
                group.iter().try_for_each(|group| session.add_member(group, name))
            })?;
            // A user of this name that is gone may have left some.
            end_all(name, home).map(|_| ExitCode::SUCCESS)
        }
        User::Passwd { name, home } => {
            let password = read_password(name)?;
            change(home, |session| set_password(session, name, &password))?;
            revoke_all(name, home)
        }
        User::Disable { name, reason, home } => {
            change(home, |session| session.set_disabled(name, Some(reason)))?;
            revoke_all(name, home)
        }
        User::Enable { name, home } => change(home, |session| session.set_disabled(name, None)),
        User::Delete { name, home } => {
            change(home, |session| session.remove_account(name))?;
            revoke_all(name, home)
        }
        User::Token { name, expires, scope, home } => token(name, terms(expires, *scope)?, home),
        User::Tokens { name, home, json } => tokens(name.as_deref(), home, *json),
        User::Revoke { id, home } => revoke(id, home),
        User::List { home, json } => list(home, *json),
        User::Group(group) => run_group(group),
        User::Why { name, path, privilege, home, json } => why(home, name, path, privilege, *json),
    }
}

fn run_group(group: &Group) -> Outcome {
    match group {
        Group::Create { group, home } => change(home, |session| session.add_group(group)),
        Group::Delete { group, home } => change(home, |session| session.remove_account(group)),
        Group::Add { group, member, home } => {
            change(home, |session| session.add_member(group, member))
        }
        Group::Remove { group, member, home } => {
            change(home, |session| session.remove_member(group, member))
        }
        Group::List { home, json } => {
            let home = Home::open_existing(home)?;
            let groups = home.repository.groups();
            let groups = groups.map_err(|error| Fault::cannot_run(chain(&error)))?;
            print_names(&groups, *json);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reads the password from standard input.
fn read_password(user: &str) -> Result<String, Fault> {
    let mut password = String::new();
    let read = std::io::stdin().lock().read_line(&mut password);
    read.map_err(|error| {
        Fault::cannot_run(format!("cannot read the password from standard input: {error}"))
    })?;
    let password = password.trim_end_matches(['\r', '\n']);
    check_new_password(user, password)
        .map_err(|reason| Fault::usage(format!("the password on standard input {reason}")))?;
    Ok(password.to_owned())
}

/// Changes users and groups of a home, which has its initial ones from then on.
fn change(home: &Path, edit: impl FnOnce(&mut Session) -> tympan_content::Result<()>) -> Outcome {
    let home = Home::open_existing(home)?;
    let failed = |error: tympan_content::Error| match error {
        tympan_content::Error::NodeMissing(path) if path.as_str().starts_with("/home/") => {
            Fault::usage(format!("there is no user or group `{}`", path.name()))
        }
        error => Fault::usage(chain(&error)),
    };
    let now = SystemTime::now();
    home.repository.install_initial_policies(now).map_err(failed)?;
    let mut session = home.repository.session("admin").map_err(failed)?;
    edit(&mut session).map_err(failed)?;
    session.commit("change users", now).map_err(failed)?;
    close(&home)?;
    Ok(ExitCode::SUCCESS)
}

/// Does something with the state database, which a running instance shares.
fn with_state<T>(
    home: &Path,
    work: impl AsyncFnOnce(&tympan_store::State) -> std::io::Result<T>,
) -> Result<T, Fault> {
    let is_shared = crate::backend::state_database(&crate::config::read(home)?).is_some();
    if !is_shared && !home.join("state.db").exists() {
        return Err(Fault::usage(format!(
            "`{}` is no home of an instance that ran",
            home.display()
        )));
    }
    runtime(8)?.block_on(async {
        let state = open_state(home).await?;
        let done = work(&state).await;
        state.close().await;
        done.map_err(|error| Fault::cannot_run(format!("the state database fails: {error}")))
    })
}

/// Ends the sessions and tokens of a user, and says how many.
fn revoke_all(name: &str, home: &Path) -> Outcome {
    let count = end_all(name, home)?;
    say!("{count} sessions and tokens of `{name}` ended");
    Ok(ExitCode::SUCCESS)
}

/// Ends the sessions and tokens of a user.
fn end_all(name: &str, home: &Path) -> Result<u64, Fault> {
    runtime(8)?.block_on(async {
        let state = open_state(home).await?;
        let failed =
            |error: std::io::Error| Fault::cannot_run(format!("cannot revoke tokens: {error}"));
        let count = Logins::revoke(state.pool(), name).await.map_err(failed)?;
        state.close().await;
        Ok(count)
    })
}

/// Reads the end and the scope of a new token.
fn terms(expires: &str, scope: args::TokenScope) -> Result<TokenTerms, Fault> {
    let life = (expires != "never").then(|| read_life(expires)).transpose()?;
    let scope = match scope {
        args::TokenScope::All => TokenScope::All,
        args::TokenScope::Read => TokenScope::Read,
        args::TokenScope::Monitor => TokenScope::Monitor,
    };
    Ok(TokenTerms { life, scope })
}

/// Makes a token.
fn token(name: &str, terms: TokenTerms, home: &Path) -> Outcome {
    // Of a home that an instance has open, only the logins can be read: the token is bound when it is first used.
    let account = match Home::open_existing(home) {
        Ok(home) => Some(account_of(&home, name)?),
        Err(_) => None,
    };
    let token = with_state(home, async |state| {
        let owner = Owner { user: name, account: account.as_ref() };
        Logins::issue_token(state.pool(), owner, SystemTime::now(), terms).await
    })?;
    say!("{token}");
    Ok(ExitCode::SUCCESS)
}

/// Returns what tells the account of a user who may log in, which gets an identifier if it has none.
fn account_of(home: &Home, name: &str) -> Result<AccountMark, Fault> {
    let failed = |error: tympan_content::Error| Fault::cannot_run(chain(&error));
    let repository = &home.repository;
    let nobody = || {
        let message = format!(
            "there is no user `{name}` who may log in; `tympan user list` shows who there is"
        );
        Fault::usage(message)
    };
    let mark = AccountMark::of_user(repository, name, SystemTime::now()).map_err(failed)?;
    let mark = mark.ok_or_else(nobody)?;
    close(home)?;
    Ok(mark)
}

/// Reads `90d`, `12h`, `30m` or `45s`.
fn read_life(text: &str) -> Result<Duration, Fault> {
    let wrong = || Fault::usage(format!("`{text}` is no time; say it like `12h` or `90d`"));
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(wrong()),
    };
    let count: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    // A century is as good as forever, and later sums stay small.
    let total = count.checked_mul(seconds).filter(|total| (1..=3_153_600_000).contains(total));
    Ok(Duration::from_secs(total.ok_or_else(wrong)?))
}

fn tokens(name: Option<&str>, home: &Path, json: bool) -> Outcome {
    let tokens = with_state(home, async |state| {
        Logins::tokens(state.pool(), name, SystemTime::now()).await
    })?;
    let date = |seconds: i64| {
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        Date::from_system_time(SystemTime::UNIX_EPOCH + since).to_string()
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
        say!("{}  {}  {}  made {created}  ends {expires}{scope}", token.id, token.kind, token.user);
    }
    Ok(ExitCode::SUCCESS)
}

fn revoke(id: &str, home: &Path) -> Outcome {
    let is_done = with_state(home, async |state| Logins::revoke_token(state.pool(), id).await)?;
    if is_done {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Fault::usage(format!("there is no token `{id}`; `tympan user tokens` lists them")))
}

fn list(home: &Path, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let users = home.repository.users().map_err(|error| Fault::cannot_run(chain(&error)))?;
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

/// Tells what a user may do at a path, and why.
fn why(home: &Path, name: &str, path: &str, asked: &[String], json: bool) -> Outcome {
    let failed = |error: tympan_content::Error| Fault::usage(chain(&error));
    let path = NodePath::new(path).map_err(failed)?;
    let home = Home::open_existing(home)?;
    let repository = &home.repository;
    let is_known = name == "anonymous"
        || repository.users().map_err(failed)?.iter().any(|(user, _)| user == name);
    if !is_known {
        return Err(Fault::usage(format!("there is no user `{name}`")));
    }
    let viewer = repository.viewer(Some(name)).map_err(failed)?;
    let names: Vec<&str> =
        if asked.is_empty() { ASKED.to_vec() } else { asked.iter().map(String::as_str).collect() };
    let mut wanted = Privileges::NONE;
    for name in names {
        let unknown = || Fault::usage(format!("there is no privilege `{name}`"));
        wanted = wanted | Privileges::find(name).ok_or_else(unknown)?;
    }
    let reasons = repository.explain(&viewer, &path, wanted).map_err(failed)?;
    let groups = repository.groups_of(&viewer).map_err(failed)?;
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

fn reason_text(reason: &Reason) -> String {
    let word = if reason.is_granted { "yes" } else { "no " };
    let cause = match &reason.cause {
        Cause::Administrator => "no policy binds administrators".to_owned(),
        Cause::Nothing => "no entry grants it".to_owned(),
        Cause::ClosedGroup(node) => {
            let node = node.as_ref().map_or("/", |node| node.as_str());
            format!("the closed user group at {node} leaves the user out")
        }
        Cause::Entry(entry) => {
            let verb = if reason.is_granted { "grants it to" } else { "denies it to" };
            let through = if entry.through.is_empty() {
                String::new()
            } else {
                format!(" (through {})", entry.through.join(", "))
            };
            let restrictions = if entry.restrictions.is_empty() {
                String::new()
            } else {
                format!(", restricted to {}", entry.restrictions.join(" and "))
            };
            format!(
                "{} entry {} (`{}`) {verb} {}{through}{restrictions}",
                entry.policy, entry.number, entry.name, entry.principal
            )
        }
    };
    format!("{word} {:<32} {cause}", reason.privilege)
}

fn reason_json(reason: &Reason) -> Value {
    let cause = match &reason.cause {
        Cause::Administrator => json!({ "kind": "administrator" }),
        Cause::Nothing => json!({ "kind": "nothing" }),
        Cause::ClosedGroup(node) => {
            json!({ "kind": "closedGroup", "node": node.as_ref().map(NodePath::as_str) })
        }
        Cause::Entry(entry) => json!({
            "kind": "entry",
            "policy": entry.policy.as_str(),
            "number": entry.number,
            "name": entry.name,
            "principal": entry.principal,
            "through": entry.through,
            "restrictions": entry.restrictions,
        }),
    };
    json!({ "privilege": reason.privilege, "granted": reason.is_granted, "cause": cause })
}
