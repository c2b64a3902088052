//! The names whose visibility access control decides individually.

use crate::access::policy::is_policy_name;

/// The property that holds the hash of a password.
pub(super) const PASSWORD_PROPERTY: &str = "rep:password";
/// The node that holds the hashes of former passwords.
pub(super) const PASSWORD_HISTORY_NODE: &str = "rep:pwd";
/// The names of children whose visibility is decided individually, independent of their siblings.
pub(super) const GUARDED_CHILD_NAMES: [&str; 5] =
    ["rep:policy", "rep:repoPolicy", "rep:cugPolicy", "rep:principalPolicy", PASSWORD_HISTORY_NODE];

/// Returns true if a body that contains this name may hold items that are hidden from nearly all viewers.
pub(crate) fn is_guarded_name(name: &str) -> bool {
    name == PASSWORD_PROPERTY || name == PASSWORD_HISTORY_NODE || is_policy_name(name)
}

/// Returns true if access control decides about a child by its name, independent of its siblings.
pub(crate) fn is_guarded_child(name: &str) -> bool {
    name.starts_with("rep:") && GUARDED_CHILD_NAMES.contains(&name)
}
