//! The engine of HTL scripts: the objects, models and inclusions that components written for AEM expect.
//!
//! In: a resource and the HTL script of its component. Out: markup. Scripts read content through the same reader as
//! templates, so that every read is recorded; they include components of either language.
//!
//! On failure: a class or script that does not exist leaves a message for authors at the end of the component's output,
//! and nothing for visitors. A script that fails leaves a placeholder, as a template does.
//!
//! Not here: the language (`tympan_htl`), the models of the Core Components (`tympan_core_components`), the selection
//! of scripts (`script`).

mod authoring_finding;
mod component_globals;
mod component_host;
mod component_servlet;
mod content_conversion;
mod decoration;
mod engine;
mod host_interface;
mod model_context;
mod model_export;
mod model_object;
mod page_object;
mod platform_object;
mod property_map;
mod request_object;
mod resource_inclusion;
mod responsive_grid;
mod site_access;
mod site_object;
mod use_script_host;

pub(crate) use component_servlet::{component_picture, component_search_hits};
pub(crate) use engine::HtlEngine;
pub(crate) use model_export::model_json;
pub use platform_object::is_native_class;
