//! The dialogs of components, as the editor opens them.
//!
//! Input: a resource of content. Output: the tree of its component's dialog: merged with those of the super types, with
//! what it includes, and without what is hidden from the user for this resource.
//!
//! `component_definition` finds and merges the parts of a component that the editor reads, `dialog_tree` expands
//! includes and removes hidden parts, `render_condition` and `expression` evaluate conditions, and `finding` lists
//! conditions that are not evaluated.
//!
//! Not here: the form fields of a dialog (`server`).

mod component_definition;
mod dialog_tree;
mod expression;
mod finding;
mod render_condition;

pub use self::component_definition::{ComponentPart, find_component_node, read_component_part};
pub use self::dialog_tree::{DialogPart, read_dialog};
pub use self::finding::{DialogFinding, check_dialogs};
