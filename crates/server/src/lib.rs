//! Author and publish instances: one code path, two sets of permissions and routes.
//!
//! In: HTTP requests. Out: pages, the JSON API, Sling's POST protocol, replication messages.
//!
//! Invariants
//! * Only this crate (and `dispatcher`) converts errors to HTTP statuses.
//! * A write needs a login; with a cookie it also needs the CSRF token.
//! * A request reads one root from its first byte to its last.
//! * Rendering and content work run on a bounded pool of blocking threads, so health requests are answered under any
//!   load.
//!
//! Not here: the choice of chunk and blob store; an opened `Repository` is passed in.

mod aem;
mod api;
mod backup_log;
mod change_follower;
mod config;
mod effective_settings;
mod export;
mod failure;
mod instance;
mod known_dispatcher;
mod login;
mod observe;
mod package;
mod page;
mod presence_board;
mod query;
mod replication;
mod resource_request;
mod route;
mod saved_content;
mod write;

pub use api::job::queue::SUPPORTED_CONFIG_PIDS;
pub use backup_log::BackupRun;
pub use config::{
    DispatcherAdminSection, LoginSection, OperationsSection, PublishSection, QuerySection,
    ReceiveSection, Timing, TimingAudienceName, UserQuerySection, VisitorQuerySection, WorkSection,
};
pub use effective_settings::EffectiveSetting;
pub use instance::{Instance, InstanceOptions, InstanceRole, TimingAudience, TimingDisclosure};
pub use known_dispatcher::DispatcherAdmin;
pub use login::password_policy::check_new_password;
pub use login::secret::ensure_shared_secret;
pub use login::{
    AccountMark, AccountPasswordError, LoginTokenScope, Logins, PasswordHashError, TokenInfo,
    TokenOwner, TokenTerms, create_user, set_password,
};
pub use observe::connection_metrics::connection_metrics_source;
pub use observe::pool::PoolState;
pub use observe::process_metrics::process_metrics;
pub use page::headers::{PageHeaderError, PageHeaders};
pub use page::image_render::ExportImageRenderer;
pub use page::image_service::ImageOptions;
pub use page::shortcut::InstanceShortcut;
pub use query::budget::QueryBudgets;
pub use replication::ledger_url_resolver::{LedgerUrlResolver, shorten_ledger_name};
pub use route::{admin_router, main_router};
pub use saved_content::{SavedContent, SavedPage, SavedState};

/// The migrations that bring a state database to the current tables of this crate;
/// `StateDatabase::migrate_tables` runs each once.
pub const SERVER_MIGRATIONS: &[&str] = &[
    "CREATE TABLE login (
        token_hash TEXT PRIMARY KEY,
        kind TEXT NOT NULL,
        user_name TEXT NOT NULL,
        created BIGINT NOT NULL,
        expires BIGINT
    )",
    "ALTER TABLE login ADD COLUMN account TEXT",
    // The column `created` counts seconds, within which an account can be removed and created again.
    "ALTER TABLE login ADD COLUMN created_ms BIGINT",
    // The existing sessions cannot be assigned to accounts.
    "DELETE FROM login WHERE kind <> 'token'",
    // Secrets that all instances on one database share.
    "CREATE TABLE instance_secret (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "ALTER TABLE login ADD COLUMN scope TEXT",
    // Time of the last use of a session.
    "ALTER TABLE login ADD COLUMN seen BIGINT",
    // Identifies the password of the account at that time.
    "ALTER TABLE login ADD COLUMN password_mark TEXT",
];
