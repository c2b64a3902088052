//! Plans: JMeter's `.jmx` files and our own in TOML, parsed, validated as a whole, and run by one engine.
//!
//! In: a file and properties. Out: a [`PlanInventory`] and findings, or a run with JMeter's summary lines and rows.
//!
//! Invariants
//! * Nothing is sent before the whole plan is validated; unsupported elements are reported with their lines.
//! * One thread of a plan is one user of the load engine; it makes the same requests in the same order as in JMeter.
//!
//! Not here: sending (`load`), counting (`measurement`).

mod assertion;
mod charset;
pub(crate) mod client_cache;
mod compiler;
mod controller_walk;
mod cookie_jar;
mod critical_section;
mod data_set;
mod digest_auth;
mod element_subset;
pub(crate) mod embedded_resource;
mod expression;
mod extractor;
mod form_encoding;
mod function;
mod function_name;
mod html_entity;
mod http_sample;
mod http_spec;
mod interleave;
mod java_date;
mod jmx_element;
mod jmx_export;
mod json_path;
mod markup;
mod model;
mod pacer;
pub(crate) mod plan_file;
mod plan_node_id;
mod plan_source;
mod plan_thread;
pub(crate) mod process_rotation;
mod regex_pattern;
mod regex_translation;
mod request_builder;
mod row_cursor;
mod run;
mod sample;
pub(crate) mod sample_response;
mod script;
mod script_hook;
mod sub_sample;
mod template;
mod template_evaluation;
mod template_parser;
mod test_plan;
mod thread_lifetime;
mod toml_export;
mod toml_plan;
mod variable_scope;
mod weighted_order;

pub use compiler::PlanInventory;
pub use element_subset::{HIGHEST_SUBSET, subset_of};
pub use jmx_export::JmxExport;
pub(crate) use plan_source::parse_xml;
pub use run::{LoadAmount, LoadOffer, PlanRunOutcome, RunOptions};
pub(crate) use run::{RunMembership, SummaryLinePrinter, time_of_day_text};
pub use test_plan::{PlanCheck, TestPlan, check_plan, check_plan_without};
pub(crate) use toml_plan::closest_word;
pub use toml_plan::parse_rate;
pub(crate) use weighted_order::weighted_order;
