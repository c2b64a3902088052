//! Access control: who may read and change what, by Oak's rules.
//!
//! In: a [`Viewer`], and the policies, users and groups that content holds. Out: snapshots that show what the viewer may
//! read, sessions whose commits are refused where a privilege is missing, and the reasons for each decision.
//!
//! Invariants
//! * Nothing is granted unless an entry of a policy grants it; what may not be read looks as if it were not there.
//! * Password hashes are shown to nobody but [`Viewer::system`].

mod account;
mod administrators;
mod check;
mod explain;
mod gate;
mod initial;
mod lens;
mod listing;
mod policies;
mod policy;
mod principals;
mod privilege;
mod refusal;
mod restriction;
mod viewer;

pub(crate) use check::{Changed, check, may_alter};
pub use explain::{Cause, Deciding, Reason};
pub use gate::Sight;
pub(crate) use gate::{Gate, Inner, Mask, Rulings, is_guarded_name};
pub(crate) use lens::Children;
pub(crate) use listing::is_guarded_child;
pub(crate) use policies::AccessCache;
pub(crate) use policy::{is_policy_name, is_policy_path};
pub(crate) use principals::ADMIN;
pub use privilege::Privileges;
pub(crate) use refusal::Seen;
pub(crate) use restriction::Item;
pub use viewer::Viewer;
