//! Users and groups.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

#[derive(Debug, Subcommand)]
pub(crate) enum UserCommand {
    /// Adds a user; the password comes from standard input.
    #[command(
        after_help = "Example: echo \"$PASSWORD\" | tympan user add ann --group content-authors --home /srv/author"
    )]
    Add {
        /// The user's name.
        name: String,
        /// A group that the user shall be in; may be repeated.
        #[arg(long, value_name = "GROUP")]
        group: Vec<String>,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Changes a password; it comes from standard input.
    #[command(
        after_help = "Example: echo \"$PASSWORD\" | tympan user passwd ann --home /srv/author"
    )]
    Passwd {
        /// The user's name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Keeps a user from logging in and ends its sessions and tokens.
    #[command(
        after_help = "Example: tympan user disable ann --reason 'left in May' --home /srv/author"
    )]
    Disable {
        /// The user's name.
        name: String,
        /// Why.
        #[arg(long, default_value = "disabled")]
        reason: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lets a disabled user log in again.
    #[command(after_help = "Example: tympan user enable ann --home /srv/author")]
    Enable {
        /// The user's name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a user and ends its sessions and tokens.
    #[command(after_help = "Example: tympan user delete ann --home /srv/author")]
    Delete {
        /// The user's name.
        name: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Makes a token for a program and prints it.
    #[command(after_help = "Example: tympan user token admin --expires 90d --home /srv/author")]
    Token {
        /// The user's name.
        name: String,
        /// For how long it works, such as `12h` or `90d`; `never` lets it work until it is revoked.
        #[arg(long, value_name = "TIME", default_value = "90d")]
        expires: String,
        /// What may be done with it.
        #[arg(long, value_enum, value_name = "SCOPE", default_value = "all")]
        scope: TokenScope,
        /// The home; its instance may run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the tokens and sessions that work, of one user or of all.
    #[command(after_help = "Example: tympan user tokens admin --home /srv/author")]
    Tokens {
        /// The user's name.
        name: Option<String>,
        /// The home; its instance may run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Takes back a token or ends a session.
    #[command(after_help = "Example: tympan user revoke 4f5c0a1b2c3d --home /srv/author")]
    Revoke {
        /// What `tympan user tokens` calls it.
        id: String,
        /// The home; its instance may run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the users.
    #[command(after_help = "Example: tympan user list --home /srv/author")]
    List {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes, changes and lists groups.
    #[command(subcommand)]
    Group(UserGroupCommand),
    /// Tells what a user may do at a path, and which entry of which policy says so.
    #[command(
        after_help = "Example: tympan user why ann /content/site/en --privilege jcr:write --home /srv/author"
    )]
    Why {
        /// The user's name; `anonymous` for someone without a login.
        name: String,
        /// The path of a node, whether it is there or not.
        path: String,
        /// The privilege to ask about; may be repeated. Without this, what reading, writing and activating need.
        #[arg(long, value_name = "NAME")]
        privilege: Vec<String>,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum UserGroupCommand {
    /// Makes a group.
    #[command(after_help = "Example: tympan user group create translators --home /srv/author")]
    Create {
        /// The group's name.
        group: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Removes a group; its members stay.
    #[command(after_help = "Example: tympan user group delete translators --home /srv/author")]
    Delete {
        /// The group's name.
        group: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Puts a user or group into a group.
    #[command(after_help = "Example: tympan user group add content-authors ann --home /srv/author")]
    Add {
        /// The group's name.
        group: String,
        /// The user or group.
        member: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Takes a user or group out of a group.
    #[command(
        after_help = "Example: tympan user group remove content-authors ann --home /srv/author"
    )]
    Remove {
        /// The group's name.
        group: String,
        /// The user or group.
        member: String,
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
    },
    /// Lists the groups.
    #[command(after_help = "Example: tympan user group list --home /srv/author")]
    List {
        /// The home; its instance must not run.
        #[arg(long, value_name = "DIR")]
        home: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What may be done with a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TokenScope {
    /// All that the user may do.
    All,
    /// Reading what the user may read.
    Read,
    /// Reading `/health`, `/metrics` and `/manager/status`, and no content.
    Monitor,
}
