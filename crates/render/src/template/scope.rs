//! One request while it is drawn: what all its components share, and the budgets that end a runaway.
//!
//! In: a resource and the script for it. Out: the drawn text, or the [`ComponentFailure`] that stands in its place.
//!
//! Invariants
//! * A failing component never fails the one that includes it.
//! * Depth, number of includes, steps and bytes are bounded for each request, so that every drawing ends.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use minijinja::{ErrorKind, State, Value};
use parking_lot::Mutex;
use tympan_content::query::QueryEngine;
use tympan_content::{Node, NodePath};

use super::failure::{ComponentFailure, innermost_error};
use super::fragment::{FragmentLookupCounts, IncludeCapture, RequestFragments};
use super::frame::ComponentFrame;
use crate::backend::BackendRegistry;
use crate::content_reader::{ContentReader, RequestFacts};
use crate::fragment::FragmentHole;
use crate::image_address::ImageSigningKey;
use crate::page;
use crate::renderer::{RenderLimits, RenderMode};
use crate::request::RequestParameters;
use crate::resource::{ContentResource, ResourceTypes};
use crate::response::RedirectKind;
use crate::script::{CompiledScripts, ScriptCache, ScriptCriteria, ScriptInfo, ScriptResolution};
use crate::text_picture::TextPicture;
use crate::timing::{ReadCounts, RenderStopwatch, RenderTiming};
use crate::url::SlingUrl;
use crate::url_route::UrlRoutes;

/// Room for what a page, and for what a part of one, writes mostly; to grow into it would cost more copies than text.
const PAGE_OUTPUT_CAPACITY: usize = 8 * 1024;
const COMPONENT_OUTPUT_CAPACITY: usize = 1000;

/// So many scripts are found again without asking the table of all; they are looked through one by one.
const MAX_RECENT_SCRIPTS: usize = 8;

/// So many warnings are told of one page.
const MAX_WARNINGS: usize = 10;

/// What the components of one request share.
#[derive(Debug)]
pub(crate) struct RenderScope {
    pub scripts: Arc<CompiledScripts>,
    pub reader: Arc<ContentReader>,
    pub routes: Arc<UrlRoutes>,
    pub query_engine: Arc<QueryEngine>,
    /// What signs addresses of pictures.
    pub image_key: Option<ImageSigningKey>,
    pub backends: Option<Arc<BackendRegistry>>,
    pub request: TemplateRequest,
    /// The path that was asked for.
    pub path: NodePath,
    pub mode: RenderMode,
    pub limits: RenderLimits,
    /// The scripts' source, which also knows live client libraries.
    pub script_cache: Arc<ScriptCache>,
    /// What components that were drawn before left, for requests that may use it.
    pub fragments: Option<RequestFragments>,
    pub progress: RenderProgress,
}

/// What is found out and counted while a request is drawn.
#[derive(Debug, Default)]
pub(crate) struct RenderProgress {
    /// The page that was asked for, looked for when a component asks.
    page: OnceLock<Option<Node>>,
    state: Mutex<RenderState>,
}

/// What was asked for, as templates see it.
#[derive(Debug)]
pub(crate) struct TemplateRequest {
    pub method: String,
    /// `http` or `https`, and the host, as far as the caller knows them.
    pub scheme: String,
    pub host: String,
    /// The URL as it was sent, with its query.
    pub raw_url: String,
    pub url: SlingUrl,
    /// The extension that components are looked up with; that of the URL, but for error pages.
    pub extension: String,
    pub parameters: RequestParameters,
    pub is_edit_mode: bool,
    /// The status and message of the error that is drawn, on error pages.
    pub error: Option<(String, String)>,
    /// Who asks; empty without a login.
    pub user: String,
    /// The fields of a form that was sent.
    pub form: RequestParameters,
    /// Whether who asks fills in includes.
    pub supports_includes: bool,
    /// Whether the answer becomes a file.
    pub is_static_export: bool,
    /// Whether no other system is asked.
    pub is_offline: bool,
}

/// Something that a script asked for instead of its own text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ResponseOverride {
    /// Answer with the binary at this path.
    File(NodePath),
    /// Answer with a picture of a text.
    TextPicture(TextPicture),
    /// Answer with a redirect.
    Redirect { location: String, kind: RedirectKind },
    /// Answer that nothing is there.
    NotFound,
}

/// What changes while components run.
#[derive(Debug, Default)]
struct RenderState {
    stopwatch: RenderStopwatch,
    /// Where the stack was when the first component began.
    stack_base_address: Option<usize>,
    /// For each running component, the steps counted so far.
    counted_steps: Vec<u64>,
    component_count: usize,
    /// Steps of the components that ended, and of the running ones up to their latest include.
    step_count: u64,
    output_bytes: usize,
    failure_count: u32,
    response_override: Option<ResponseOverride>,
    /// For each component that is included now, what it includes, if it is drawn to be kept.
    captures: Vec<Option<IncludeCapture>>,
    fragment_counts: FragmentLookupCounts,
    /// The addresses that the page leaves to be included, each once.
    included_urls: Vec<String>,
    /// Whether somebody who fills in includes, or does not, would get something else.
    varies_by_include_support: bool,
    /// Whether the script that fetches parts is on the page.
    has_fetch_script: bool,
    /// What authors should mend.
    warnings: Vec<String>,
    /// Scripts that were found lately: a page draws many components of few types.
    recent_scripts: Vec<RecentScript>,
}

/// A script that was found, and for what.
#[derive(Debug)]
struct RecentScript {
    resource_type: Box<str>,
    super_type: Option<Box<str>>,
    selectors: Box<[String]>,
    resolution: ScriptResolution,
}

impl RenderProgress {
    /// Makes the progress of a request that begins; its components are timed or not.
    pub(crate) fn new(is_timed: bool) -> Self {
        let progress = Self::default();
        if !is_timed {
            progress.state.lock().stopwatch = RenderStopwatch::disabled();
        }
        progress
    }
}

impl RenderState {
    /// Returns the script that was found for types and selectors.
    fn recent_script(
        &self,
        (resource_type, super_type): ResourceTypes<'_>,
        selectors: &[String],
    ) -> Option<ScriptResolution> {
        let is_known = |one: &&RecentScript| {
            *one.resource_type == *resource_type
                && one.super_type.as_deref() == super_type
                && *one.selectors == *selectors
        };
        self.recent_scripts.iter().find(is_known).map(|one| one.resolution.clone())
    }

    /// Remembers the script that was found for types and selectors.
    fn remember_script(
        &mut self,
        (resource_type, super_type): ResourceTypes<'_>,
        selectors: &[String],
        found: &ScriptResolution,
    ) {
        if self.recent_scripts.len() < MAX_RECENT_SCRIPTS {
            self.recent_scripts.push(RecentScript {
                resource_type: resource_type.into(),
                super_type: super_type.map(Box::from),
                selectors: selectors.into(),
                resolution: found.clone(),
            });
        }
    }

    /// Raises the counted steps of the running component to a number, and the sum with them.
    fn raise_step_count(&mut self, steps: u64) {
        let Some(counted) = self.counted_steps.last_mut() else {
            return;
        };
        self.step_count += steps.saturating_sub(*counted);
        *counted = steps.max(*counted);
    }
}

impl RenderScope {
    /// Returns the page that was asked for, or the nearest one above the path.
    pub(crate) fn requested_page(&self) -> Option<&Node> {
        self.reader.record_fact(RequestFacts::PAGE);
        let find = || page::containing_page(&self.reader, &self.path);
        let page = self.progress.page.get_or_init(find).as_ref();
        // Whoever asks first has noted it; a component that is kept needs it among its own notes.
        if self.fragments.is_some() && self.reader.is_in_component() {
            self.reader.record_path_range(&self.path, page.map(Node::path));
        }
        page
    }

    /// Returns the address that visitors of this host use for an address of content.
    pub(super) fn external_url(&self, address: String) -> String {
        // Without mappings all hosts get the same, and a first mapping is a change that concerns everything.
        if self.routes.has_mappings() {
            self.reader.record_fact(RequestFacts::HOST);
        }
        self.routes.external_url(&self.request.scheme, &self.request.host, address)
    }

    /// Finds the script for types and selectors. Whoever uses it notes that by [`RenderScope::record_resolution`].
    pub(super) fn resolve_script(
        &self,
        types: ResourceTypes<'_>,
        selectors: &[String],
    ) -> ScriptResolution {
        let known = self.state().lock().recent_script(types, selectors);
        known.unwrap_or_else(|| {
            let extension = Some(self.request.extension.as_str());
            let wanted = ScriptCriteria { method: "GET", selectors, extension };
            let found = self.scripts.resolve_script(types, &wanted);
            self.state().lock().remember_script(types, selectors, &found);
            found
        })
    }

    /// Notes that the script for a resource was looked for, and returns it.
    pub(super) fn record_resolution(
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

    /// Draws a resource with a script.
    ///
    /// # Errors
    /// [`ComponentFailure`], already counted; the caller decides what stands in the place of the text.
    pub(crate) fn render_resource(
        self: &Arc<Self>,
        resource: &ContentResource,
        script: &ScriptInfo,
        selectors: Arc<[String]>,
    ) -> Result<String, ComponentFailure> {
        let room = self.enter_component(script, resource)?;
        let drawn = self.run_script((resource, script), selectors, room);
        let mut running = self.state().lock();
        running.stopwatch.end_call(|| (Instant::now(), self.read_counts()));
        running.counted_steps.pop();
        drop(running);
        drawn
    }

    /// Counts a component in, unless a budget is used up; returns what it may write.
    fn enter_component(
        &self,
        script: &ScriptInfo,
        resource: &ContentResource,
    ) -> Result<OutputBudget, ComponentFailure> {
        let mut running = self.state().lock();
        let here = stack_address();
        let base = *running.stack_base_address.get_or_insert(here);
        if here.abs_diff(base) > self.limits.max_stack_bytes {
            return Err(ComponentFailure::StackTooDeep(self.limits.max_stack_bytes));
        }
        if running.counted_steps.len() >= self.limits.max_include_depth {
            return Err(ComponentFailure::IncludesTooDeep(self.limits.max_include_depth));
        }
        if running.component_count >= self.limits.max_components {
            return Err(ComponentFailure::TooManyComponents(self.limits.max_components));
        }
        if running.step_count >= self.limits.max_steps {
            return Err(ComponentFailure::TooManySteps(self.limits.max_steps));
        }
        running.counted_steps.push(0);
        running.component_count += 1;
        let moment = || (Instant::now(), self.read_counts());
        running.stopwatch.begin_call(script.path(), resource.path().as_str(), moment);
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

    /// Returns what was counted so far.
    fn read_counts(&self) -> ReadCounts {
        ReadCounts { read_count: self.reader.read_count(), query_count: self.reader.query_count() }
    }

    /// Runs the script.
    fn run_script(
        self: &Arc<Self>,
        (resource, script): (&ContentResource, &ScriptInfo),
        selectors: Arc<[String]>,
        OutputBudget { expected_bytes: expected, remaining_bytes: left }: OutputBudget,
    ) -> Result<String, ComponentFailure> {
        self.scripts.record_script_use(&self.reader, script);
        let template = self.scripts.template(script)?;
        let frame = ComponentFrame::new(Arc::clone(self), resource.clone(), selectors);
        let mut out = BoundedOutput { buffer: Vec::with_capacity(expected), remaining_bytes: left };
        let captured = template.render_captured_to(Value::from_object(frame), &mut out);
        match &captured {
            Ok(captured) => {
                let mut running = self.state().lock();
                if let Some((consumed, _)) = captured.state().fuel_levels() {
                    running.raise_step_count(consumed);
                }
                // What a component wrote before it failed is not kept, and so not counted.
                running.output_bytes += out.buffer.len();
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                self.state().lock().raise_step_count(self.max_component_steps());
            }
            Err(_) => {}
        }
        match captured {
            Ok(_) => Ok(String::from_utf8(out.buffer).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(match self.max_component_steps() == self.limits.max_steps {
                    true => ComponentFailure::TooManySteps(self.limits.max_steps),
                    false => ComponentFailure::TooManyOwnSteps(self.limits.max_component_steps),
                })
            }
            Err(_) if out.remaining_bytes == 0 => {
                Err(ComponentFailure::OutputTooLarge(self.limits.max_output_bytes))
            }
            Err(error) => {
                let origin = innermost_error(&error)
                    .name()
                    .and_then(|name| self.scripts.original_text(name));
                Err(ComponentFailure::TemplateError(Arc::new(error), origin))
            }
        }
    }

    /// Returns how many steps one component may take.
    fn max_component_steps(&self) -> u64 {
        self.limits.max_component_steps.min(self.limits.max_steps)
    }

    fn state(&self) -> &Mutex<RenderState> {
        &self.progress.state
    }

    /// Counts the steps that the running component has taken so far.
    pub(super) fn count_steps(&self, state: &State<'_, '_>) {
        if let Some((consumed, _)) = state.fuel_levels() {
            self.state().lock().raise_step_count(consumed);
        }
    }

    /// Counts a failure and says so in the log.
    pub(crate) fn record_failure(&self, failure: &ComponentFailure, path: &str) {
        self.state().lock().failure_count += 1;
        tracing::warn!(path, reason = failure.reason(), error = %failure, "component failed");
    }

    /// Takes note of what a script wants to be answered instead of its text; the first wish counts.
    pub(crate) fn override_response(&self, handover: ResponseOverride) {
        self.state().lock().response_override.get_or_insert(handover);
    }

    /// Takes what the script wanted to be answered.
    pub(crate) fn take_response_override(&self) -> Option<ResponseOverride> {
        self.state().lock().response_override.take()
    }

    /// Notes that the page includes what stands at an address.
    pub(super) fn record_included_url(&self, address: &str) {
        let included = &mut self.state().lock().included_urls;
        if !included.iter().any(|one| one == address) {
            included.push(address.to_owned());
        }
    }

    /// Notes that it decides about the page whether who asks fills in includes.
    pub(super) fn record_include_support_use(&self) {
        self.state().lock().varies_by_include_support = true;
    }

    /// Tells whether it decides about the page who fills in includes.
    pub(crate) fn varies_by_include_support(&self) -> bool {
        self.state().lock().varies_by_include_support
    }

    /// Takes the addresses that the page includes, as a header holds them.
    pub(crate) fn take_included_urls(&self) -> Option<String> {
        let included = std::mem::take(&mut self.state().lock().included_urls);
        (!included.is_empty()).then(|| included.join(" "))
    }

    /// Notes something that authors should mend, once.
    pub(super) fn add_warning(&self, warning: &str) {
        let warnings = &mut self.state().lock().warnings;
        if warnings.len() < MAX_WARNINGS && !warnings.iter().any(|one| one == warning) {
            warnings.push(warning.to_owned());
        }
    }

    /// Takes what authors should mend.
    pub(crate) fn take_warnings(&self) -> Option<String> {
        let warnings = std::mem::take(&mut self.state().lock().warnings);
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Tells whether the script that fetches parts is to be put on the page: the first time that it is asked.
    pub(super) fn claim_fetch_script(&self) -> bool {
        !std::mem::replace(&mut self.state().lock().has_fetch_script, true)
    }

    /// Tells whether a script wants something else to be answered.
    pub(super) fn has_response_override(&self) -> bool {
        self.state().lock().response_override.is_some()
    }

    /// Begins a component, which is drawn to be kept if it has a capture.
    pub(super) fn begin_capture(&self, capture: Option<IncludeCapture>) {
        self.state().lock().captures.push(capture);
    }

    /// Ends the component that began last.
    pub(super) fn end_capture(&self) -> Option<IncludeCapture> {
        self.state().lock().captures.pop().flatten()
    }

    /// Marks what a component includes that is drawn to be kept.
    pub(super) fn mark_include(&self, hole: FragmentHole, text: String) -> String {
        match self.state().lock().captures.last_mut() {
            Some(Some(capture)) => capture.mark_include(hole, &text),
            _ => text,
        }
    }

    /// Tells whether the component that runs is drawn to be kept, so that what it includes stands in holes.
    pub(super) fn is_capturing(&self) -> bool {
        self.state().lock().captures.last().is_some_and(Option::is_some)
    }

    /// Counts a look-up of a fragment.
    pub(super) fn count_fragment_lookup(&self, change: impl FnOnce(&mut FragmentLookupCounts)) {
        change(&mut self.state().lock().fragment_counts);
    }

    /// Returns how fragments were looked up.
    pub(crate) fn fragment_counts(&self) -> FragmentLookupCounts {
        self.state().lock().fragment_counts
    }

    /// Returns how many components failed.
    pub(crate) fn failure_count(&self) -> u32 {
        self.state().lock().failure_count
    }

    /// Ends the taking of times.
    pub(crate) fn take_timing(&self) -> RenderTiming {
        std::mem::take(&mut self.state().lock().stopwatch).finish()
    }
}

/// Returns roughly where the stack ends now.
///
/// Macros and loops around an include nest on the stack too, so counting includes alone cannot keep it from
/// overflowing.
#[inline(never)]
fn stack_address() -> usize {
    let marker = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&marker)).addr()
}

/// What a component may write.
struct OutputBudget {
    /// What it writes mostly.
    expected_bytes: usize,
    remaining_bytes: usize,
}

/// A buffer that refuses to grow beyond its limit.
struct BoundedOutput {
    buffer: Vec<u8>,
    remaining_bytes: usize,
}

impl io::Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.remaining_bytes.checked_sub(bytes.len()) {
            Some(left) => {
                self.remaining_bytes = left;
                self.buffer.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            None => {
                self.remaining_bytes = 0;
                Err(io::Error::other("the output is too large"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
