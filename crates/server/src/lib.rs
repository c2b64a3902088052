//! Author and publish instances: one code path, two sets of permissions and routes.
//!
//! In: HTTP requests. Out: pages, the JSON API, Sling's POST protocol, replication messages.
//!
//! Invariants
//! * Only this room (and `dispatcher`) turns errors into HTTP statuses.
//! * A write needs a login; with a cookie it also needs the CSRF token.
//! * A request reads one root from its first byte to its last.
//! * Rendering and content work run on a bounded pool of blocking threads, so health answers whatever the load.
//!
//! Not here: which chunk or blob store is in use; an opened `Repository` comes in.

mod api;
mod arrived;
mod author_headers;
mod dialog;
mod export;
mod failure;
mod follow;
mod form;
mod health;
mod hot;
mod image;
mod instance;
mod interface;
mod login;
mod manager_status;
mod metrics;
mod observe;
mod own_agent;
mod package;
mod page;
mod page_headers;
mod password;
mod placed;
mod pool;
mod post;
mod process;
mod put;
mod query;
mod query_budget;
mod readiness;
mod receive;
mod route;
mod search;
mod secret;
mod settable;
mod shortcut;
mod store;
mod surrogate;
mod throttle;
mod timing;
mod touch;
mod visitor;
mod watched;
mod wishes;

pub use api::backup::BackupRun;
pub use image::{ExportPictures, ImageOptions};
pub use instance::{Instance, InstanceOptions, Role, Telling, Told};
pub use login::{
    AccountMark, Logins, Owner, TokenInfo, TokenScope, TokenTerms, create_user, set_password,
};
pub use page_headers::{PageHeaderError, PageHeaders};
pub use password::check_new_password;
pub use pool::PoolState;
pub use query_budget::QueryBudgets;
pub use route::{admin_router, router};
pub use secret::shared_secret;
pub use shortcut::InstanceShortcut;

/// The steps that bring a state database to this room's newest tables; `store::state` runs each once.
pub const MIGRATIONS: &[&str] = &[
    "CREATE TABLE login (
        token_hash TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        user_name TEXT NOT NULL,
        created BIGINT NOT NULL,
        expires BIGINT
    )",
    "ALTER TABLE login ADD COLUMN account TEXT",
    // The column `created` counts seconds, in which an account can go and come again.
    "ALTER TABLE login ADD COLUMN created_ms BIGINT",
    // Nobody knows of which accounts the sessions were.
    "DELETE FROM login WHERE kind <> 'token'",
    // What all instances on one database have to know alike.
    "CREATE TABLE instance_secret (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "ALTER TABLE login ADD COLUMN scope TEXT",
    // When a session was last used.
    "ALTER TABLE login ADD COLUMN seen BIGINT",
    // Which password the account had.
    "ALTER TABLE login ADD COLUMN password_mark TEXT",
];
