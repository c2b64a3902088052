//! The accounts of a home whose instance is not running, and its tokens, also while it runs.

use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_content::{
    NodePath, PrivilegeCause, PrivilegeExplanation, Privileges, Repository, Session, Viewer,
};
use tympan_home::{Home, STATE_FILE};
use tympan_server::{
    AccountMark, AccountPasswordError, Logins, TokenInfo, TokenOwner, TokenTerms, create_user,
    set_password,
};
use tympan_store::StateDatabase;
use tympan_terminal::{CommandFault, error_chain_text};

use super::account_store::{AccountStore, NewTokenTerms, UserStatus};
use crate::args::HomeOrUrlArgs;
use crate::command::remote_instance::{home_dir, open_stopped_home};
use crate::command::runtime::create_runtime;
use crate::home::{close_home, home_access, open_existing_home, open_state};
use crate::home_fault::home_fault;

/// The accounts of a home.
pub(super) struct HomeAccounts<'a> {
    pub(super) location: &'a HomeOrUrlArgs,
}

impl HomeAccounts<'_> {
    /// Changes accounts in one commit; creates the initial ones first.
    fn edit<E: Into<AccountPasswordError>>(
        &self,
        edit: impl FnOnce(&mut Session) -> Result<(), E>,
    ) -> Result<(), CommandFault> {
        let home = open_stopped_home(self.location)?;
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
            error @ AccountPasswordError::Hash(_) => {
                CommandFault::cannot_run(error_chain_text(&error))
            }
        })?;
        session.commit("change users", now).map_err(failed)?;
        close_home(&home)
    }

    /// Ends the sessions and tokens of a user; returns their number.
    fn end_logins(&self, name: &str) -> Result<u64, CommandFault> {
        let dir = home_dir(self.location)?;
        create_runtime(8)?.block_on(async {
            let state = open_state(dir).await?;
            let failed = |error: std::io::Error| {
                CommandFault::cannot_run(format!("cannot revoke tokens: {error}"))
            };
            let count = Logins::revoke_user_tokens(state.pool(), name).await.map_err(failed)?;
            state.close().await;
            Ok(count)
        })
    }

    /// Runs a function on the state database, which a running instance shares.
    fn with_state_database<T>(
        &self,
        work: impl AsyncFnOnce(&StateDatabase) -> std::io::Result<T>,
    ) -> Result<T, CommandFault> {
        let dir = home_dir(self.location)?;
        let is_shared = home_access().has_database_configured(dir).map_err(home_fault)?;
        if !is_shared && !dir.join(STATE_FILE).exists() {
            return Err(CommandFault::usage(format!(
                "`{}` is not the home of an instance that was started",
                dir.display()
            )));
        }
        create_runtime(8)?.block_on(async {
            let state = open_state(dir).await?;
            let done = work(&state).await;
            state.close().await;
            done.map_err(|error| {
                CommandFault::cannot_run(format!("the state database failed: {error}"))
            })
        })
    }

    /// Reads from the repository of the home.
    fn read<T>(
        &self,
        read: impl FnOnce(&Repository) -> Result<T, CommandFault>,
    ) -> Result<T, CommandFault> {
        let home = open_stopped_home(self.location)?;
        read(&home.repository)
    }
}

impl AccountStore for HomeAccounts<'_> {
    fn add_user(&self, name: &str, password: &str, groups: &[String]) -> Result<(), CommandFault> {
        self.edit(|session| {
            create_user(session, name, password)?;
            groups.iter().try_for_each(|group| session.accounts().add_member(group, name))?;
            Ok::<_, AccountPasswordError>(())
        })?;
        // A deleted user of this name may have left some.
        self.end_logins(name).map(drop)
    }

    fn set_password(&self, name: &str, password: &str) -> Result<u64, CommandFault> {
        self.edit(|session| set_password(session, name, password))?;
        self.end_logins(name)
    }

    fn disable_user(&self, name: &str, reason: &str) -> Result<u64, CommandFault> {
        self.edit(|session| session.accounts().set_disabled(name, Some(reason)))?;
        self.end_logins(name)
    }

    fn enable_user(&self, name: &str) -> Result<(), CommandFault> {
        self.edit(|session| session.accounts().set_disabled(name, None))
    }

    fn remove_user(&self, name: &str) -> Result<u64, CommandFault> {
        self.edit(|session| session.accounts().remove_account(name))?;
        self.end_logins(name)
    }

    fn create_token(&self, name: &str, terms: &NewTokenTerms<'_>) -> Result<String, CommandFault> {
        let terms = TokenTerms::parse(terms.expires, terms.scope).map_err(CommandFault::usage)?;
        // While an instance has the home open, only the logins can be read: the token is bound to the account at its
        // first use.
        let account = match open_existing_home(home_dir(self.location)?) {
            Ok(home) => Some(account_mark(&home, name)?),
            Err(_) => None,
        };
        self.with_state_database(async |state| {
            let owner = TokenOwner { user: name, account: account.as_ref() };
            Logins::issue_token(state.pool(), owner, SystemTime::now(), terms).await
        })
    }

    fn tokens(&self, name: Option<&str>) -> Result<Vec<TokenInfo>, CommandFault> {
        self.with_state_database(async |state| {
            Logins::list_tokens(state.pool(), name, SystemTime::now()).await
        })
    }

    fn revoke_token(&self, id: &str) -> Result<(), CommandFault> {
        let is_done =
            self.with_state_database(async |state| Logins::revoke_token(state.pool(), id).await)?;
        if is_done {
            return Ok(());
        }
        Err(CommandFault::usage(format!(
            "there is no token `{id}`; `tympan user tokens` lists them"
        )))
    }

    fn users(&self) -> Result<Vec<UserStatus>, CommandFault> {
        self.read(|repository| {
            let users = repository.users().map_err(|error| content_fault(&error))?.into_iter();
            Ok(users.map(|(name, is_disabled)| UserStatus { name, is_disabled }).collect())
        })
    }

    fn create_group(&self, group: &str) -> Result<(), CommandFault> {
        self.edit(|session| session.accounts().add_group(group))
    }

    fn remove_group(&self, group: &str) -> Result<(), CommandFault> {
        self.edit(|session| session.accounts().remove_account(group))
    }

    fn add_member(&self, group: &str, member: &str) -> Result<(), CommandFault> {
        self.edit(|session| session.accounts().add_member(group, member))
    }

    fn remove_member(&self, group: &str, member: &str) -> Result<(), CommandFault> {
        self.edit(|session| session.accounts().remove_member(group, member))
    }

    fn groups(&self) -> Result<Vec<String>, CommandFault> {
        self.read(|repository| repository.groups().map_err(|error| content_fault(&error)))
    }

    fn explain_privileges(
        &self,
        name: &str,
        path: &str,
        privileges: &[&str],
    ) -> Result<Value, CommandFault> {
        let failed = |error: tympan_content::Error| CommandFault::usage(error_chain_text(&error));
        let path = NodePath::new(path).map_err(failed)?;
        self.read(|repository| {
            let is_known = name == "anonymous"
                || repository.users().map_err(failed)?.iter().any(|(user, _)| user == name);
            if !is_known {
                return Err(CommandFault::usage(format!("there is no user `{name}`")));
            }
            let viewer = Viewer::of_user(Some(name));
            let mut selected = Privileges::NONE;
            for name in privileges {
                let unknown = || CommandFault::usage(format!("there is no privilege `{name}`"));
                selected = selected | Privileges::find(name).ok_or_else(unknown)?;
            }
            let reasons =
                repository.explain_privileges(&viewer, &path, selected).map_err(failed)?;
            let groups = repository.groups_of_viewer(&viewer).map_err(failed)?;
            let reasons: Vec<Value> = reasons.iter().map(reason_json).collect();
            Ok(json!({
                "user": name, "path": path.as_str(), "groups": groups, "privileges": reasons
            }))
        })
    }
}

/// Returns the mark of the account of a user who may log in; assigns an identifier to the account if it has none.
fn account_mark(home: &Home, name: &str) -> Result<AccountMark, CommandFault> {
    let failed = |error: tympan_content::Error| content_fault(&error);
    let nobody = || {
        let message =
            format!("there is no user `{name}` who may log in; `tympan user list` lists the users");
        CommandFault::usage(message)
    };
    let mark = AccountMark::of_user(&home.repository, name, SystemTime::now()).map_err(failed)?;
    let mark = mark.ok_or_else(nobody)?;
    close_home(home)?;
    Ok(mark)
}

fn content_fault(error: &tympan_content::Error) -> CommandFault {
    CommandFault::cannot_run(error_chain_text(error))
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
