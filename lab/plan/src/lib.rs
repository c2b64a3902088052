//! Load plans: JMeter's `.jmx` files and our own in TOML, parsed, validated as a whole, compiled to one model, and
//! evaluated while a user runs.
//!
//! In: a file ([`TestPlan`], [`check_plan`]). Out: findings with their lines; a [`model::PlanModel`], which the engine
//! walks; the same plan in the other format or without its secrets.
//!
//! * The model: [`model`], with the texts, assertions, extractors, data sets and scripts that its elements consist of.
//! * Evaluation: [`TextTemplate`] and [`script`] over the variables of a user ([`VariableScope`]) and the state that all
//!   users of a run share ([`RunContext`]).
//! * Load over time: [`ArrivalSchedule`], and [`LoadPortion`] for each of several processes.
//! * Requirements: [`goal`].
//! * Secrets: [`redaction`] (names and texts), [`plan_redaction`] (copies of plans).
//!
//! Invariants
//! * Nothing is sent before the whole plan is validated; unsupported elements are reported with their lines.
//! * A plan and a seed determine all values: a run can be repeated.
//!
//! Not here: sending, and the measurement of responses (`tympan-lab-engine`).

mod absolute_url;
mod arrival_schedule;
mod assertion;
mod charset;
mod compiler;
mod critical_section;
pub mod csv_record;
mod data_set;
mod element_subset;
mod embedded_resource;
mod error;
mod expression;
mod extractor;
mod finding;
mod form_encoding;
mod function;
mod function_name;
pub mod goal;
mod html_entity;
mod http_spec;
mod java_date;
mod jmx_element;
mod jmx_export;
mod json_path;
mod load_portion;
mod markup;
pub mod model;
mod pacer;
pub mod plan_draft;
mod plan_file;
mod plan_node_id;
pub mod plan_redaction;
mod plan_source;
mod process_rotation;
pub mod property_file;
pub mod redaction;
mod regex_pattern;
mod regex_translation;
mod row_cursor;
mod sample_response;
pub mod script;
mod template;
mod template_evaluation;
mod template_parser;
mod test_plan;
mod thread_lifetime;
mod toml_export;
mod toml_plan;
mod variable_scope;
mod weighted_order;

pub use absolute_url::{AbsoluteUrl, parse_user_info};
pub use arrival_schedule::{ArrivalProcess, ArrivalSchedule, RateInterval, random_number};
pub use assertion::{AssertionResult, SampleAssertion};
pub use compiler::PlanInventory;
pub use critical_section::EnteredSections;
pub use data_set::RowFetch;
pub use element_subset::{HIGHEST_SUBSET, subset_of};
pub use embedded_resource::{embedded_resource_urls, raw_text_mode, stylesheet_imports};
pub use error::Error;
pub use expression::{NumberSemantics, evaluate_expression};
pub use finding::FileFinding;
pub use http_spec::{HttpSamplerSpec, ResolvedHttpRequest, format_url};
pub use jmx_export::JmxExport;
pub use load_portion::LoadPortion;
pub use pacer::SamplePacer;
pub use plan_file::PlanFiles;
pub use plan_node_id::PlanNodeId;
pub use process_rotation::ProcessRotation;
pub use regex_pattern::{RegexPattern, RegexPatternCache};
pub use sample_response::{SampleResponse, decode_content, decode_text};
pub use template::TextTemplate;
pub use test_plan::{PlanCheck, TestPlan, check_plan, check_plan_without};
pub use thread_lifetime::rate_intervals;
pub use toml_plan::{closest_word, parse_rate};
pub use variable_scope::{RunContext, VariableScope};
pub use weighted_order::weighted_order;

/// The result of loading and checking plans.
pub type Result<T, E = Error> = std::result::Result<T, E>;
