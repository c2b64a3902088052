//! Access control: permissions to read and change content, by Oak's rules.
//!
//! In: a [`Viewer`], and the policies, users and groups in the content. Out: snapshots that show what the viewer may
//! read, sessions whose commits are refused where a privilege is missing, and the reasons for each decision.
//!
//! Invariants
//! * Nothing is granted unless an entry of a policy grants it. An item that may not be read looks absent.
//! * Password hashes are visible only to [`Viewer::system`].

mod access_gate;
mod access_mask;
mod access_policies;
pub(crate) mod account;
mod administrator;
mod error_redaction;
mod explanation;
mod former_policy;
mod gate_opening;
mod guarded_name;
mod initial_policy;
mod permission_check;
mod policy;
mod policy_cache;
mod policy_reader;
mod principal;
mod privilege;
mod restriction;
mod viewer;
mod viewer_access;
mod viewer_permissions;
mod visible_listing;

pub use access_gate::AccessFingerprint;
pub(crate) use access_gate::{AccessGate, RecordExtent};
pub(crate) use access_mask::AccessMask;
pub(crate) use error_redaction::ErrorRedactor;
pub use explanation::{DecidingEntry, PrivilegeCause, PrivilegeExplanation};
pub(crate) use former_policy::{FORMER_POLICIES_MAP, FormerPolicyEdits};
pub(crate) use guarded_name::{is_guarded_child, is_guarded_name};
pub(crate) use permission_check::{CommitPermission, SessionChanges, can_alter_property};
pub use policy::{AccountKind, is_policy_name};
pub(crate) use policy::{POLICY_NAMES, is_policy_path};
pub(crate) use policy_cache::AccessPolicyCache;
pub use principal::ADMIN_USER;
pub use privilege::Privileges;
pub(crate) use restriction::AccessedItem;
pub use restriction::is_restriction_property;
pub use viewer::Viewer;
pub(crate) use viewer_permissions::ChildVisibility;
