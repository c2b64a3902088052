//! Templates: MiniJinja over lazy node objects.
//!
//! Input: a script and a resource. Output: text. Templates use `resource`, `properties`, `page`, `request` and `edit`,
//! the functions of `function` and the filters of `filter`; no data of a node is copied before it is used.
//!
//! Invariant: an output of a template is escaped for its position (`autoescape`), or the template is refused.
//!
//! On failure: a failed template leaves a placeholder (`failure`); the rest of the page is rendered.

mod asset;
mod autoescape;
mod breakpoint;
mod date;
mod engine;
mod escape;
mod failure;
mod filter;
mod fragment;
mod frame;
mod function;
mod lint;
mod markup_text;
mod mini_jinja_engine;
mod output_filter;
mod page_object;
mod resource_object;
mod scope;
mod template_name;
mod value;

use minijinja::{Environment, UndefinedBehavior};

pub(crate) use autoescape::{RewrittenTemplate, analyze_templates};
pub(crate) use engine::{EngineRun, ScriptEngine, ScriptEngines};
pub(crate) use failure::ComponentFailure;
pub(crate) use fragment::{RequestFragments, VariationContext};
pub(crate) use frame::ComponentFrame;
pub(crate) use lint::lint_template;
pub(crate) use mini_jinja_engine::MiniJinjaEngine;
pub(crate) use scope::{RenderProgress, RenderScope, ResponseOverride, TemplateRequest};

use self::template_name::resolve_template_name;
use crate::render_options::{RenderLimits, RenderMode};

/// Maximum nesting depth of macros and blocks; deeper nesting is an error. Their stack use must stay below the 512 KiB
/// that [`RenderLimits::max_stack_bytes`] reserves.
const RECURSION_LIMIT: usize = 80;

/// Creates the environment in which all scripts are compiled.
pub(crate) fn new_environment(mode: RenderMode, limits: &RenderLimits) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(escape::auto_escape_for);
    environment.set_formatter(escape::write_value);
    environment.set_undefined_behavior(UndefinedBehavior::Chainable);
    environment.set_fuel(Some(limits.max_component_steps.min(limits.max_steps)));
    environment.set_recursion_limit(RECURSION_LIMIT);
    // Attaches the source to errors, for the excerpts shown to authors.
    environment.set_debug(mode == RenderMode::Author);
    environment.set_path_join_callback(|name, parent| resolve_template_name(name, parent).into());
    function::add_functions(&mut environment);
    filter::add_filters(&mut environment);
    output_filter::add_output_filters(&mut environment);
    environment
}
