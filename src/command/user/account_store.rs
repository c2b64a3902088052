//! The accounts and tokens that `tympan user` manages: those of a home, or those of a running instance.

use serde_json::Value;
use tympan_server::{LoginTokenScope, TokenInfo};
use tympan_terminal::CommandFault;

/// The users, groups and tokens of a repository.
pub(super) trait AccountStore {
    /// Creates a user with a password, as a member of groups.
    fn add_user(&self, name: &str, password: &str, groups: &[String]) -> Result<(), CommandFault>;

    /// Changes a user's password; returns the number of sessions and tokens that ended.
    fn set_password(&self, name: &str, password: &str) -> Result<u64, CommandFault>;

    /// Disables a user for a reason; returns the number of sessions and tokens that ended.
    fn disable_user(&self, name: &str, reason: &str) -> Result<u64, CommandFault>;

    /// Lets a disabled user log in again.
    fn enable_user(&self, name: &str) -> Result<(), CommandFault>;

    /// Removes a user; returns the number of sessions and tokens that ended.
    fn remove_user(&self, name: &str) -> Result<u64, CommandFault>;

    /// Creates a token of a user for a program and returns it.
    fn create_token(&self, name: &str, terms: &NewTokenTerms<'_>) -> Result<String, CommandFault>;

    /// Returns the valid tokens and sessions of a user or of all users, sorted by creation time.
    fn tokens(&self, name: Option<&str>) -> Result<Vec<TokenInfo>, CommandFault>;

    /// Revokes the token or ends the session with an ID.
    fn revoke_token(&self, id: &str) -> Result<(), CommandFault>;

    /// Returns the users, sorted by name.
    fn users(&self) -> Result<Vec<UserStatus>, CommandFault>;

    /// Creates a group without members.
    fn create_group(&self, group: &str) -> Result<(), CommandFault>;

    /// Removes a group; its members stay.
    fn remove_group(&self, group: &str) -> Result<(), CommandFault>;

    /// Adds a user or a group to a group.
    fn add_member(&self, group: &str, member: &str) -> Result<(), CommandFault>;

    /// Removes a user or a group from a group.
    fn remove_member(&self, group: &str, member: &str) -> Result<(), CommandFault>;

    /// Returns the names of the groups, sorted.
    fn groups(&self) -> Result<Vec<String>, CommandFault>;

    /// Returns the reasons for privileges of a user at a path, as `GET /api/v1/permissions/why` returns them.
    fn explain_privileges(
        &self,
        name: &str,
        path: &str,
        privileges: &[&str],
    ) -> Result<Value, CommandFault>;
}

/// The lifetime and scope of a new token.
#[derive(Debug)]
pub(super) struct NewTokenTerms<'a> {
    /// Such as `90d`, or `never`.
    pub(super) expires: &'a str,
    pub(super) scope: LoginTokenScope,
}

/// A user, and whether it may log in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UserStatus {
    pub(super) name: String,
    pub(super) is_disabled: bool,
}
