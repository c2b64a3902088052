//! A request while it is rendered: the shared state of its components, and the budgets that stop runaway components.
//!
//! Input: a resource and its script. Output: the rendered text, or the [`ComponentFailure`] that replaces it.
//!
//! Invariants
//! * A failing component never fails the one that includes it.
//! * Depth, number of includes, steps and bytes are bounded per request, so that every rendering ends.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use minijinja::State;
use parking_lot::Mutex;
use tympan_content::{Node, NodePath};
use tympan_content_query::QueryEngine;

use super::engine::{EngineRun, OutputBudget, ScriptEngines};
use super::failure::ComponentFailure;
use super::fragment::{IncludeCapture, RequestFragments};
use crate::backend::BackendRegistry;
use crate::dependency::content_reader::{ContentReader, RequestFacts};
use crate::fragment::{FragmentHole, FragmentLookupCounts};
use crate::image_address::ImageSigningKey;
use crate::page;
use crate::render_options::{RenderLimits, RenderMode};
use crate::request::RequestParameters;
use crate::resource::{ContentResource, ResourceTypes};
use crate::response::RedirectKind;
use crate::script::{CompiledScripts, ScriptCache, ScriptCriteria, ScriptInfo, ScriptResolution};
use crate::text_picture::TextPicture;
use crate::timing::{ReadCounts, RenderStopwatch, RenderTiming};
use crate::url::SlingUrl;
use crate::url_route::UrlRoutes;

/// Initial output capacity of a page, and of a component: growing the buffer would copy more bytes than the text has.
const PAGE_OUTPUT_CAPACITY: usize = 8 * 1024;
const COMPONENT_OUTPUT_CAPACITY: usize = 1000;

/// Number of recent scripts that are found without a lookup in the full table; they are searched linearly.
const MAX_RECENT_SCRIPTS: usize = 8;

/// Maximum number of warnings per page.
const MAX_WARNINGS: usize = 10;

/// The state shared by the components of one request.
#[derive(Debug)]
pub(crate) struct RenderScope {
    pub scripts: Arc<CompiledScripts>,
    pub reader: Arc<ContentReader>,
    pub routes: Arc<UrlRoutes>,
    pub query_engine: Arc<QueryEngine>,
    /// The key that signs image addresses.
    pub image_key: Option<ImageSigningKey>,
    pub backends: Option<Arc<BackendRegistry>>,
    pub request: TemplateRequest,
    /// The requested path.
    pub path: NodePath,
    pub mode: RenderMode,
    pub limits: RenderLimits,
    /// The source of scripts, which also knows live client libraries.
    pub script_cache: Arc<ScriptCache>,
    /// The engines that run the scripts.
    pub engines: ScriptEngines,
    /// The cached fragments, if the request may use them.
    pub fragments: Option<RequestFragments>,
    pub progress: RenderProgress,
}

/// State and counters of a request in progress.
#[derive(Debug, Default)]
pub(crate) struct RenderProgress {
    /// The requested page, looked up on first use.
    page: OnceLock<Option<Node>>,
    state: Mutex<RenderState>,
}

/// The request, as templates see it.
#[derive(Debug)]
pub(crate) struct TemplateRequest {
    pub method: String,
    /// `http` or `https`, and the host, if the caller knows them.
    pub scheme: String,
    pub host: String,
    /// The URL as it was requested, with its query.
    pub raw_url: String,
    pub url: SlingUrl,
    /// The extension for looking up components: that of the URL, except on error pages.
    pub extension: String,
    pub parameters: RequestParameters,
    pub is_edit_mode: bool,
    /// On error pages, the status and message of the error.
    pub error: Option<(String, String)>,
    /// The user; empty for anonymous visitors.
    pub user: String,
    /// The fields of a submitted form.
    pub form: RequestParameters,
    /// True if the client fills in includes.
    pub supports_includes: bool,
    /// True if the response becomes a file.
    pub is_static_export: bool,
    /// True to request no other system.
    pub is_offline: bool,
}

/// A response that a script requests in place of its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponseOverride {
    /// Respond with the binary at this path.
    File(NodePath),
    /// Respond with an image of a text.
    TextPicture(TextPicture),
    /// Respond with a redirect.
    Redirect { location: String, kind: RedirectKind },
    /// Respond that the resource was not found.
    NotFound,
}

/// The mutable state of running components.
#[derive(Debug, Default)]
struct RenderState {
    stopwatch: RenderStopwatch,
    /// The stack address at the beginning of the first component.
    stack_base_address: Option<usize>,
    /// For each running component, the steps counted so far.
    counted_steps: Vec<u64>,
    component_count: usize,
    /// Steps of the finished components, and of the running ones up to their latest include.
    step_count: u64,
    output_bytes: usize,
    failure_count: u32,
    response_override: Option<ResponseOverride>,
    /// For each running component, its includes if it is rendered for the cache.
    captures: Vec<Option<IncludeCapture>>,
    fragment_counts: FragmentLookupCounts,
    /// The addresses that the page leaves as includes, without duplicates.
    included_urls: Vec<String>,
    /// True if the output depends on whether the client fills in includes.
    varies_by_include_support: bool,
    /// True if the page contains the script that fetches parts.
    has_fetch_script: bool,
    /// Problems that authors should fix.
    warnings: Vec<String>,
    /// Recently resolved scripts: a page renders many components of few types.
    recent_scripts: Vec<RecentScript>,
}

/// A resolved script with the types and selectors that it was resolved for.
#[derive(Debug)]
struct RecentScript {
    resource_type: Box<str>,
    super_type: Option<Box<str>>,
    selectors: Box<[String]>,
    resolution: ScriptResolution,
}

impl RenderProgress {
    /// Creates the progress of a new request, with or without timing of its components.
    pub(crate) fn new(is_timed: bool) -> Self {
        let progress = Self::default();
        if !is_timed {
            progress.state.lock().stopwatch = RenderStopwatch::disabled();
        }
        progress
    }
}

impl RenderState {
    /// Returns the recently resolved script for types and selectors.
    fn recent_script(
        &self,
        (resource_type, super_type): ResourceTypes<'_>,
        selectors: &[String],
    ) -> Option<ScriptResolution> {
        let is_known = |recent_script: &&RecentScript| {
            *recent_script.resource_type == *resource_type
                && recent_script.super_type.as_deref() == super_type
                && *recent_script.selectors == *selectors
        };
        self.recent_scripts
            .iter()
            .find(is_known)
            .map(|recent_script| recent_script.resolution.clone())
    }

    /// Stores the resolved script for types and selectors.
    fn remember_script(
        &mut self,
        (resource_type, super_type): ResourceTypes<'_>,
        selectors: &[String],
        resolution: &ScriptResolution,
    ) {
        if self.recent_scripts.len() < MAX_RECENT_SCRIPTS {
            self.recent_scripts.push(RecentScript {
                resource_type: resource_type.into(),
                super_type: super_type.map(Box::from),
                selectors: selectors.into(),
                resolution: resolution.clone(),
            });
        }
    }

    /// Counts a component that begins, unless a budget is exhausted.
    fn count_component(&mut self, limits: &RenderLimits) -> Result<(), ComponentFailure> {
        let here = stack_address();
        let base = *self.stack_base_address.get_or_insert(here);
        if here.abs_diff(base) > limits.max_stack_bytes {
            return Err(ComponentFailure::StackTooDeep(limits.max_stack_bytes));
        }
        if self.counted_steps.len() >= limits.max_include_depth {
            return Err(ComponentFailure::IncludesTooDeep(limits.max_include_depth));
        }
        if self.component_count >= limits.max_components {
            return Err(ComponentFailure::TooManyComponents(limits.max_components));
        }
        if self.step_count >= limits.max_steps {
            return Err(ComponentFailure::TooManySteps(limits.max_steps));
        }
        self.counted_steps.push(0);
        self.component_count += 1;
        Ok(())
    }

    /// Raises the step count of the running component to a number, and the total with it.
    fn raise_step_count(&mut self, steps: u64) {
        let Some(counted) = self.counted_steps.last_mut() else {
            return;
        };
        self.step_count += steps.saturating_sub(*counted);
        *counted = steps.max(*counted);
    }
}

impl RenderScope {
    /// Returns the requested page, or the nearest page above the path.
    pub(crate) fn requested_page(&self) -> Option<&Node> {
        self.reader.record_fact(RequestFacts::PAGE);
        let find = || page::containing_page(&self.reader, &self.path);
        let page = self.progress.page.get_or_init(find).as_ref();
        // The first caller recorded the reads; a cached component needs them in its own records.
        if self.fragments.is_some() && self.reader.is_in_component() {
            self.reader.record_path_range(&self.path, page.map(Node::path));
        }
        page
    }

    /// Returns the external address of a content address for visitors of this host.
    pub(crate) fn external_url(&self, address: String) -> String {
        // Without mappings all hosts get the same output, and adding a first mapping changes everything.
        if self.routes.has_mappings() {
            self.reader.record_fact(RequestFacts::HOST);
        }
        self.routes.external_url(&self.request.scheme, &self.request.host, address)
    }

    /// Resolves the script for types and selectors. The caller records its use with [`RenderScope::record_resolution`].
    pub(crate) fn resolve_script(
        &self,
        types: ResourceTypes<'_>,
        selectors: &[String],
    ) -> ScriptResolution {
        let recent_resolution = self.state().lock().recent_script(types, selectors);
        recent_resolution.unwrap_or_else(|| {
            let extension = Some(self.request.extension.as_str());
            let criteria = ScriptCriteria { method: "GET", selectors, extension };
            let resolution = self.scripts.resolve_script(types, &criteria);
            self.state().lock().remember_script(types, selectors, &resolution);
            resolution
        })
    }

    /// Records the search for a resource's script, and returns the script.
    pub(crate) fn record_resolution(
        &self,
        resource: &ContentResource,
        resolution: ScriptResolution,
    ) -> Option<Arc<ScriptInfo>> {
        if let Some(node) = resource.node() {
            self.reader.record_type(node);
        }
        self.reader.record_script_folders(resolution.searched_folders);
        resolution.script
    }

    /// Renders a resource with a script.
    ///
    /// # Errors
    /// [`ComponentFailure`], already counted; the caller decides what replaces the text.
    pub(crate) fn render_resource(
        self: &Arc<Self>,
        resource: &ContentResource,
        script: &ScriptInfo,
        selectors: Arc<[String]>,
    ) -> Result<String, ComponentFailure> {
        let output_budget = self.enter_component(script, resource)?;
        let result = self.run_script((resource, script), selectors, output_budget);
        let mut running = self.state().lock();
        running.stopwatch.end_call(|| (Instant::now(), self.read_counts()));
        running.counted_steps.pop();
        drop(running);
        result
    }

    /// Counts a component, unless a budget is exhausted; returns its output budget.
    fn enter_component(
        &self,
        script: &ScriptInfo,
        resource: &ContentResource,
    ) -> Result<OutputBudget, ComponentFailure> {
        let mut running = self.state().lock();
        running.count_component(&self.limits)?;
        let read_clock = || (Instant::now(), self.read_counts());
        running.stopwatch.begin_call(script.path(), resource.path().as_str(), read_clock);
        if !script.has_only_plain_includes()
            && let Some(Some(capture)) = running.captures.last_mut()
        {
            capture.make_opaque();
        }
        let expected = if running.counted_steps.len() == 1 {
            PAGE_OUTPUT_CAPACITY
        } else {
            COMPONENT_OUTPUT_CAPACITY
        };
        Ok(OutputBudget {
            expected_bytes: expected,
            remaining_bytes: self.limits.max_output_bytes.saturating_sub(running.output_bytes),
        })
    }

    /// Assembles a component from its cached fragment. It counts as a rendered one: a page has the same limits with and
    /// without a cache. `append` writes the next piece to a text; nothing follows if it returns false.
    ///
    /// # Errors
    /// [`ComponentFailure`] if a budget is exhausted.
    pub(super) fn assemble_component(
        &self,
        mut append: impl FnMut(&mut String) -> bool,
    ) -> Result<String, ComponentFailure> {
        let mut running = self.state().lock();
        running.count_component(&self.limits)?;
        let remaining_bytes = self.limits.max_output_bytes.saturating_sub(running.output_bytes);
        drop(running);
        let mut text = String::new();
        while text.len() <= remaining_bytes && append(&mut text) {}
        let mut running = self.state().lock();
        running.counted_steps.pop();
        if text.len() > remaining_bytes {
            return Err(ComponentFailure::OutputTooLarge(self.limits.max_output_bytes));
        }
        running.output_bytes += text.len();
        Ok(text)
    }

    /// Returns the current counters.
    fn read_counts(&self) -> ReadCounts {
        ReadCounts { read_count: self.reader.read_count(), query_count: self.reader.query_count() }
    }

    /// Runs the script with the engine of its language.
    fn run_script(
        self: &Arc<Self>,
        (resource, script): (&ContentResource, &ScriptInfo),
        selectors: Arc<[String]>,
        output: OutputBudget,
    ) -> Result<String, ComponentFailure> {
        self.scripts.record_script_use(&self.reader, script);
        let run = EngineRun { scope: self, resource, script, selectors, output };
        self.engines.engine(script.language()).run_script(run)
    }

    /// Raises the step count of the running component.
    pub(crate) fn raise_step_count(&self, steps: u64) {
        self.state().lock().raise_step_count(steps);
    }

    /// Counts the output of a component that ended without failure: the output of a failed one is discarded.
    pub(crate) fn count_output(&self, bytes: usize) {
        self.state().lock().output_bytes += bytes;
    }

    /// Returns the number of steps that are left to the page.
    pub(crate) fn steps_left(&self) -> u64 {
        self.limits.max_steps.saturating_sub(self.state().lock().step_count)
    }

    /// Returns the number of steps that a component may take which begins now.
    pub(crate) fn component_steps_left(&self) -> u64 {
        self.limits.max_component_steps.min(self.steps_left())
    }

    /// Returns the maximum number of steps of one component.
    pub(crate) fn max_component_steps(&self) -> u64 {
        self.limits.max_component_steps.min(self.limits.max_steps)
    }

    fn state(&self) -> &Mutex<RenderState> {
        &self.progress.state
    }

    /// Counts the steps of the running component so far.
    pub(crate) fn count_steps(&self, state: &State<'_, '_>) {
        if let Some((consumed, _)) = state.fuel_levels() {
            self.state().lock().raise_step_count(consumed);
        }
    }

    /// Counts a failure and logs it.
    pub(crate) fn record_failure(&self, failure: &ComponentFailure, path: &str) {
        self.state().lock().failure_count += 1;
        tracing::warn!(path, reason = failure.reason(), error = %failure, "component failed");
    }

    /// Records the response that a script requests in place of its text; the first request wins.
    pub(crate) fn override_response(&self, handover: ResponseOverride) {
        self.state().lock().response_override.get_or_insert(handover);
    }

    /// Takes the response that the script requested.
    pub(crate) fn take_response_override(&self) -> Option<ResponseOverride> {
        self.state().lock().response_override.take()
    }

    /// Records that the page includes an address.
    pub(super) fn record_included_url(&self, address: &str) {
        let included = &mut self.state().lock().included_urls;
        if !included.iter().any(|included_url| included_url == address) {
            included.push(address.to_owned());
        }
    }

    /// Records that the output depends on whether the client fills in includes.
    pub(super) fn record_include_support_use(&self) {
        self.state().lock().varies_by_include_support = true;
    }

    /// Returns true if the output depends on whether the client fills in includes.
    pub(crate) fn varies_by_include_support(&self) -> bool {
        self.state().lock().varies_by_include_support
    }

    /// Takes the addresses that the page includes, as a header value.
    pub(crate) fn take_included_urls(&self) -> Option<String> {
        let included = std::mem::take(&mut self.state().lock().included_urls);
        (!included.is_empty()).then(|| included.join(" "))
    }

    /// Adds a warning for authors, unless it was added before.
    pub(crate) fn add_warning(&self, warning: &str) {
        let warnings = &mut self.state().lock().warnings;
        if warnings.len() < MAX_WARNINGS
            && !warnings.iter().any(|known_warning| known_warning == warning)
        {
            warnings.push(warning.to_owned());
        }
    }

    /// Takes the warnings for authors.
    pub(crate) fn take_warnings(&self) -> Option<String> {
        let warnings = std::mem::take(&mut self.state().lock().warnings);
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Returns true on the first call: the page then gets the script that fetches parts.
    pub(super) fn claim_fetch_script(&self) -> bool {
        !std::mem::replace(&mut self.state().lock().has_fetch_script, true)
    }

    /// Returns true if a script requested another response.
    pub(super) fn has_response_override(&self) -> bool {
        self.state().lock().response_override.is_some()
    }

    /// Begins a component; with a capture it is rendered for the cache.
    pub(super) fn begin_capture(&self, capture: Option<IncludeCapture>) {
        self.state().lock().captures.push(capture);
    }

    /// Ends the component that began last.
    pub(super) fn end_capture(&self) -> Option<IncludeCapture> {
        self.state().lock().captures.pop().flatten()
    }

    /// Marks an include of a component that is rendered for the cache.
    pub(crate) fn mark_include(&self, hole: FragmentHole, text: String) -> String {
        match self.state().lock().captures.last_mut() {
            Some(Some(capture)) => capture.mark_include(hole, &text),
            _ => text,
        }
    }

    /// Returns true if the running component is rendered for the cache, so that its includes become holes.
    pub(super) fn is_capturing(&self) -> bool {
        self.state().lock().captures.last().is_some_and(Option::is_some)
    }

    /// Counts a lookup of a fragment.
    pub(super) fn count_fragment_lookup(&self, change: impl FnOnce(&mut FragmentLookupCounts)) {
        change(&mut self.state().lock().fragment_counts);
    }

    /// Returns the counters of fragment lookups.
    pub(crate) fn fragment_counts(&self) -> FragmentLookupCounts {
        self.state().lock().fragment_counts
    }

    /// Returns the number of failed components.
    pub(crate) fn failure_count(&self) -> u32 {
        self.state().lock().failure_count
    }

    /// Ends the timing and returns the times.
    pub(crate) fn take_timing(&self) -> RenderTiming {
        std::mem::take(&mut self.state().lock().stopwatch).finish()
    }
}

/// Returns the approximate current stack address.
///
/// Macros and loops around an include also use the stack, so counting includes alone cannot prevent an overflow.
#[inline(never)]
fn stack_address() -> usize {
    let marker = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&marker)).addr()
}
