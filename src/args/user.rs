//! Arguments of `tympan user`: users and groups.

use clap::{Subcommand, ValueEnum};

use super::instance_location::{HomeOrInstanceArgs, HomeOrUrlArgs};

/// The description of `--home` where it does not matter whether the instance runs.
const ANY_HOME_HELP: &str = "The home; its instance may be running";

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Adds a user; the password is read from standard input.
    #[command(
        after_help = "Example: echo \"$PASSWORD\" | tympan user add ann --group content-authors --home /srv/author"
    )]
    Add {
        /// The user's name.
        name: String,
        /// A group to add the user to; may be repeated.
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Changes a password, which is read from standard input; on a running instance, a user changes its own with --login.
    #[command(
        after_help = "Example: echo \"$PASSWORD\" | tympan user passwd ann --home /srv/author"
    )]
    Passwd {
        /// The user's name.
        name: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Prevents a user from logging in and ends its sessions and tokens.
    #[command(
        after_help = "Example: tympan user disable ann --reason 'left in May' --home /srv/author"
    )]
    Disable {
        /// The user's name.
        name: String,
        /// The reason.
        #[arg(long, default_value = "disabled")]
        reason: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Lets a disabled user log in again.
    #[command(after_help = "Example: tympan user enable ann --home /srv/author")]
    Enable {
        /// The user's name.
        name: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Removes a user and ends its sessions and tokens.
    #[command(after_help = "Example: tympan user delete ann --home /srv/author")]
    Delete {
        /// The user's name.
        name: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Creates a token for a program and prints it.
    #[command(
        after_help = "Example: tympan user token admin --expires 90d --home /srv/author",
        mut_arg("home", |home| home.help(ANY_HOME_HELP))
    )]
    Token {
        /// The user's name.
        name: String,
        /// The lifetime, such as `12h` or `90d`; with `never` the token is valid until it is revoked.
        #[arg(long, value_name = "TIME", default_value = "90d")]
        expires: String,
        /// The permissions of the token.
        #[arg(long, value_enum, value_name = "SCOPE", default_value = "all")]
        scope: TokenScope,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Lists the valid tokens and sessions, of one user or of all.
    #[command(
        after_help = "Example: tympan user tokens admin --home /srv/author",
        mut_arg("home", |home| home.help(ANY_HOME_HELP))
    )]
    Tokens {
        /// The user's name.
        name: Option<String>,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Revokes a token or ends a session.
    #[command(
        after_help = "Example: tympan user revoke 4f5c0a1b2c3d --home /srv/author",
        mut_arg("home", |home| home.help(ANY_HOME_HELP))
    )]
    Revoke {
        /// The id as printed by `tympan user tokens`.
        id: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Lists the users.
    #[command(after_help = "Example: tympan user list --home /srv/author")]
    List {
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
    /// Creates, changes and lists groups.
    #[command(subcommand)]
    Group(UserGroupCommand),
    /// Shows what a user may do at a path, and which entry of which policy decides it.
    #[command(
        after_help = "Example: tympan user why ann /content/site/en --privilege jcr:write --home /srv/author"
    )]
    Why {
        /// The user's name; `anonymous` for a visitor without a login.
        name: String,
        /// The path of a node, which need not exist.
        path: String,
        /// The privilege to check; may be repeated. Without this, the privileges for reading, writing and activating.
        #[arg(long, value_name = "NAME")]
        privilege: Vec<String>,
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserGroupCommand {
    /// Creates a group.
    #[command(after_help = "Example: tympan user group create translators --home /srv/author")]
    Create {
        /// The group's name.
        group: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Removes a group; its members stay.
    #[command(after_help = "Example: tympan user group delete translators --home /srv/author")]
    Delete {
        /// The group's name.
        group: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Adds a user or group to a group.
    #[command(after_help = "Example: tympan user group add content-authors ann --home /srv/author")]
    Add {
        /// The group's name.
        group: String,
        /// The user or group.
        member: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Removes a user or group from a group.
    #[command(
        after_help = "Example: tympan user group remove content-authors ann --home /srv/author"
    )]
    Remove {
        /// The group's name.
        group: String,
        /// The user or group.
        member: String,
        #[command(flatten)]
        place: HomeOrUrlArgs,
    },
    /// Lists the groups.
    #[command(after_help = "Example: tympan user group list --home /srv/author")]
    List {
        #[command(flatten)]
        place: HomeOrInstanceArgs,
    },
}

/// The permissions of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenScope {
    /// Everything that the user may do.
    All,
    /// Reading everything that the user may read.
    Read,
    /// Reading `/health`, `/metrics` and `/manager/status`, and no content.
    Monitor,
}
