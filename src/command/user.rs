//! `tympan user`: users of a home and their tokens.

use std::io::BufRead;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_content::NodePath;
use tympan_server::{Logins, create_user, set_password};

use crate::args::User;
use crate::command::instance::close;
use crate::command::{Fault, Outcome, runtime};
use crate::home::{Home, chain, open_state};
use crate::say;

/// The shortest password that is taken.
const MIN_PASSWORD: usize = 8;

/// Runs the command.
pub(crate) fn run(user: &User) -> Outcome {
    match user {
        User::Add { name, home } => {
            change(home, |session, password| create_user(session, name, password))
        }
        User::Passwd { name, home } => {
            change(home, |session, password| set_password(session, name, password))?;
            revoke(name, home)
        }
        User::Token { name, home } => token(name, home),
        User::List { home, json } => list(home, *json),
    }
}

/// Changes users with the password that standard input holds.
fn change(
    home: &Path,
    edit: impl FnOnce(&mut tympan_content::Session, &str) -> tympan_content::Result<()>,
) -> Outcome {
    let home = Home::open_existing(home)?;
    let mut password = String::new();
    let read = std::io::stdin().lock().read_line(&mut password);
    read.map_err(|error| {
        Fault::cannot_run(format!("cannot read the password from standard input: {error}"))
    })?;
    let password = password.trim_end_matches(['\r', '\n']);
    if password.chars().count() < MIN_PASSWORD {
        return Err(Fault::usage(format!(
            "the password on standard input has fewer than {MIN_PASSWORD} characters"
        )));
    }
    let failed = |error: tympan_content::Error| Fault::usage(chain(&error));
    let mut session = home.repository.session("admin").map_err(failed)?;
    edit(&mut session, password).map_err(failed)?;
    session.commit("change users", SystemTime::now()).map_err(failed)?;
    close(&home)?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the sessions and tokens of a user whose password changed.
fn revoke(name: &str, home: &Path) -> Outcome {
    runtime(8)?.block_on(async {
        let state = open_state(home).await?;
        let failed =
            |error: std::io::Error| Fault::cannot_run(format!("cannot revoke tokens: {error}"));
        let count = Logins::revoke(state.pool(), name).await.map_err(failed)?;
        say!("{count} sessions and tokens of `{name}` ended");
        state.close().await;
        Ok(ExitCode::SUCCESS)
    })
}

/// Makes a token. Only the state database is written, so the instance may run.
fn token(name: &str, home: &Path) -> Outcome {
    if !home.join("state.db").exists() {
        return Err(Fault::usage(format!(
            "`{}` is no home of an instance that ran",
            home.display()
        )));
    }
    runtime(8)?.block_on(async {
        let state = open_state(home).await?;
        let failed =
            |error: std::io::Error| Fault::cannot_run(format!("cannot make the token: {error}"));
        let token =
            Logins::issue_token(state.pool(), name, SystemTime::now()).await.map_err(failed)?;
        say!("{token}");
        state.close().await;
        Ok(ExitCode::SUCCESS)
    })
}

fn list(home: &Path, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let failed = |error: tympan_content::Error| Fault::cannot_run(chain(&error));
    let snapshot = home.repository.snapshot().map_err(failed)?;
    let folder = snapshot.node(&NodePath::new("/home/users").map_err(failed)?).map_err(failed)?;
    let users = folder
        .map(|folder| folder.listed_children())
        .transpose()
        .map_err(failed)?
        .unwrap_or_default();
    let names: Vec<&str> = users.iter().map(tympan_content::Node::name).collect();
    if json {
        say!("{}", serde_json::json!(names));
    } else {
        names.iter().for_each(|name| say!("{name}"));
    }
    Ok(ExitCode::SUCCESS)
}
