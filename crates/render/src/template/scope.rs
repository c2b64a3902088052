//! One request while it is drawn: what all its components share, and the budgets that end a runaway.
//!
//! In: a resource and the script for it. Out: the drawn text, or the [`Failure`] that stands in its place.
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

use super::failure::{Failure, innermost};
use super::frame::Frame;
use super::kept::{Capture, FragmentCounts, Fragments};
use crate::backend::BackEnds;
use crate::engine::{Limits, Mode};
use crate::fragment::Hole;
use crate::image::ImageKey;
use crate::page;
use crate::reads::{Facts, Reader};
use crate::request::Parameters;
use crate::resolve::Routes;
use crate::resource::{Resource, Types};
use crate::response::Redirect;
use crate::script::{Resolution, Script, ScriptTable, Scripts, Wanted};
use crate::text_picture::TextPicture;
use crate::timing::{Counted, Stopwatch, Timing};
use crate::url::Url;

/// Room for what a page, and for what a part of one, writes mostly; to grow into it would cost more copies than text.
const PAGE_BYTES: usize = 8 * 1024;
const PART_BYTES: usize = 1000;

/// So many scripts are found again without asking the table of all; they are looked through one by one.
const MAX_KNOWN_SCRIPTS: usize = 8;

/// So many warnings are told of one page.
const MAX_WARNINGS: usize = 10;

/// What the components of one request share.
#[derive(Debug)]
pub(crate) struct Scope {
    pub scripts: Arc<Scripts>,
    pub reader: Arc<Reader>,
    pub routes: Arc<Routes>,
    pub queries: Arc<QueryEngine>,
    /// What signs addresses of pictures.
    pub image_key: Option<ImageKey>,
    pub back_ends: Option<Arc<BackEnds>>,
    pub request: Asked,
    /// The path that was asked for.
    pub path: NodePath,
    pub mode: Mode,
    pub limits: Limits,
    /// The scripts' source, which also knows live client libraries.
    pub table: Arc<ScriptTable>,
    /// What components that were drawn before left, for requests that may use it.
    pub fragments: Option<Fragments>,
    pub progress: Progress,
}

/// What is found out and counted while a request is drawn.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The page that was asked for, looked for when a component asks.
    page: OnceLock<Option<Node>>,
    running: Mutex<Running>,
}

/// What was asked for, as templates see it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub method: String,
    /// `http` or `https`, and the host, as far as the caller knows them.
    pub scheme: String,
    pub host: String,
    /// The URL as it was sent, with its query.
    pub raw: String,
    pub url: Url,
    /// The extension that components are looked up with; that of the URL, but for error pages.
    pub extension: String,
    pub parameters: Parameters,
    pub edit: bool,
    /// The status and message of the error that is drawn, on error pages.
    pub error: Option<(String, String)>,
    /// Who asks; empty without a login.
    pub user: String,
    /// The fields of a form that was sent.
    pub form: Parameters,
    /// Whether who asks fills in includes.
    pub fills_includes: bool,
    /// Whether the answer becomes a file.
    pub becomes_file: bool,
    /// Whether no other system is asked.
    pub is_offline: bool,
}

/// Something that a script asked for instead of its own text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Handover {
    /// Answer with the binary at this path.
    File(NodePath),
    /// Answer with a picture of a text.
    Picture(TextPicture),
    /// Answer with a redirect.
    Redirect { location: String, kind: Redirect },
    /// Answer that nothing is there.
    Missing,
}

/// What changes while components run.
#[derive(Debug, Default)]
struct Running {
    stopwatch: Stopwatch,
    /// Where the stack was when the first component began.
    stack_base: Option<usize>,
    /// For each running component, the steps counted so far.
    counted: Vec<u64>,
    drawn: usize,
    /// Steps of the components that ended, and of the running ones up to their latest include.
    steps: u64,
    bytes: usize,
    failures: u32,
    handover: Option<Handover>,
    /// For each component that is included now, what it includes, if it is drawn to be kept.
    captures: Vec<Option<Capture>>,
    fragments: FragmentCounts,
    /// The addresses that the page leaves to be included, each once.
    included: Vec<String>,
    /// Whether somebody who fills in includes, or does not, would get something else.
    varies_by_capability: bool,
    /// Whether the script that fetches parts is on the page.
    has_fetcher: bool,
    /// What authors should mend.
    warnings: Vec<String>,
    /// Scripts that were found lately: a page draws many components of few types.
    known_scripts: Vec<KnownScript>,
}

/// A script that was found, and for what.
#[derive(Debug)]
struct KnownScript {
    resource_type: Box<str>,
    super_type: Option<Box<str>>,
    selectors: Box<[String]>,
    found: Resolution,
}

impl Progress {
    /// Makes the progress of a request that begins; its components are timed or not.
    pub(crate) fn new(is_timed: bool) -> Self {
        let progress = Self::default();
        if !is_timed {
            progress.running.lock().stopwatch = Stopwatch::off();
        }
        progress
    }
}

impl Running {
    /// Returns the script that was found for types and selectors.
    fn known_script(
        &self,
        (resource_type, super_type): Types<'_>,
        selectors: &[String],
    ) -> Option<Resolution> {
        let is_known = |one: &&KnownScript| {
            *one.resource_type == *resource_type
                && one.super_type.as_deref() == super_type
                && *one.selectors == *selectors
        };
        self.known_scripts.iter().find(is_known).map(|one| one.found.clone())
    }

    /// Remembers the script that was found for types and selectors.
    fn know_script(
        &mut self,
        (resource_type, super_type): Types<'_>,
        selectors: &[String],
        found: &Resolution,
    ) {
        if self.known_scripts.len() < MAX_KNOWN_SCRIPTS {
            self.known_scripts.push(KnownScript {
                resource_type: resource_type.into(),
                super_type: super_type.map(Box::from),
                selectors: selectors.into(),
                found: found.clone(),
            });
        }
    }

    /// Raises the counted steps of the running component to a number, and the sum with them.
    fn count_to(&mut self, steps: u64) {
        let Some(counted) = self.counted.last_mut() else {
            return;
        };
        self.steps += steps.saturating_sub(*counted);
        *counted = steps.max(*counted);
    }
}

impl Scope {
    /// Returns the page that was asked for, or the nearest one above the path.
    pub(crate) fn page(&self) -> Option<&Node> {
        self.reader.note_fact(Facts::PAGE);
        let find = || page::containing(&self.reader, &self.path);
        let page = self.progress.page.get_or_init(find).as_ref();
        // Whoever asks first has noted it; a component that is kept needs it among its own notes.
        if self.fragments.is_some() && self.reader.is_inside() {
            self.reader.note_trail(&self.path, page.map(Node::path));
        }
        page
    }

    /// Returns the address that visitors of this host use for an address of content.
    pub(super) fn outward(&self, address: String) -> String {
        // Without mappings all hosts get the same, and a first mapping is a change that concerns everything.
        if self.routes.has_mappings() {
            self.reader.note_fact(Facts::HOST);
        }
        self.routes.outward(&self.request.scheme, &self.request.host, address)
    }

    /// Finds the script for types and selectors. Whoever uses it notes that by [`Scope::note_resolved`].
    pub(super) fn resolve(&self, types: Types<'_>, selectors: &[String]) -> Resolution {
        let known = self.running().lock().known_script(types, selectors);
        known.unwrap_or_else(|| {
            let extension = Some(self.request.extension.as_str());
            let wanted = Wanted { method: "GET", selectors, extension };
            let found = self.scripts.resolve(types, &wanted);
            self.running().lock().know_script(types, selectors, &found);
            found
        })
    }

    /// Notes that the script for a resource was looked for, and returns it.
    pub(super) fn note_resolved(
        &self,
        resource: &Resource,
        resolution: Resolution,
    ) -> Option<Arc<Script>> {
        if let Some(node) = resource.node() {
            self.reader.note_type(node);
        }
        self.reader.note_scripts(resolution.places);
        resolution.script
    }

    /// Draws a resource with a script.
    ///
    /// # Errors
    /// [`Failure`], already counted; the caller decides what stands in the place of the text.
    pub(crate) fn draw(
        self: &Arc<Self>,
        resource: &Resource,
        script: &Script,
        selectors: Arc<[String]>,
    ) -> Result<String, Failure> {
        let room = self.enter(script, resource)?;
        let drawn = self.run((resource, script), selectors, room);
        let mut running = self.running().lock();
        running.stopwatch.end(|| (Instant::now(), self.counted()));
        running.counted.pop();
        drop(running);
        drawn
    }

    /// Counts a component in, unless a budget is used up; returns what it may write.
    fn enter(&self, script: &Script, resource: &Resource) -> Result<Room, Failure> {
        let mut running = self.running().lock();
        let here = stack_position();
        let base = *running.stack_base.get_or_insert(here);
        if here.abs_diff(base) > self.limits.stack {
            return Err(Failure::TooNested(self.limits.stack));
        }
        if running.counted.len() >= self.limits.depth {
            return Err(Failure::TooDeep(self.limits.depth));
        }
        if running.drawn >= self.limits.components {
            return Err(Failure::TooMany(self.limits.components));
        }
        if running.steps >= self.limits.steps {
            return Err(Failure::TooLong(self.limits.steps));
        }
        running.counted.push(0);
        running.drawn += 1;
        let moment = || (Instant::now(), self.counted());
        running.stopwatch.begin(script.path(), resource.path().as_str(), moment);
        if !script.includes_plainly()
            && let Some(Some(capture)) = running.captures.last_mut()
        {
            capture.hide_marks();
        }
        let expected = if running.counted.len() == 1 { PAGE_BYTES } else { PART_BYTES };
        Ok(Room { expected, left: self.limits.bytes.saturating_sub(running.bytes) })
    }

    /// Returns what was counted so far.
    fn counted(&self) -> Counted {
        Counted { reads: self.reader.count(), queries: self.reader.queries() }
    }

    /// Runs the script.
    fn run(
        self: &Arc<Self>,
        (resource, script): (&Resource, &Script),
        selectors: Arc<[String]>,
        Room { expected, left }: Room,
    ) -> Result<String, Failure> {
        self.scripts.note_taken(&self.reader, script);
        let template = self.scripts.template(script)?;
        let frame = Frame::new(Arc::clone(self), resource.clone(), selectors);
        let mut out = Bounded { text: Vec::with_capacity(expected), left };
        let captured = template.render_captured_to(Value::from_object(frame), &mut out);
        match &captured {
            Ok(captured) => {
                let mut running = self.running().lock();
                if let Some((consumed, _)) = captured.state().fuel_levels() {
                    running.count_to(consumed);
                }
                // What a component wrote before it failed is not kept, and so not counted.
                running.bytes += out.text.len();
            }
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                self.running().lock().count_to(self.component_steps());
            }
            Err(_) => {}
        }
        match captured {
            Ok(_) => Ok(String::from_utf8(out.text).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::OutOfFuel => {
                Err(match self.component_steps() == self.limits.steps {
                    true => Failure::TooLong(self.limits.steps),
                    false => Failure::TooLongAlone(self.limits.component_steps),
                })
            }
            Err(_) if out.left == 0 => Err(Failure::TooLarge(self.limits.bytes)),
            Err(error) => {
                let origin = innermost(&error).name().and_then(|name| self.scripts.origin(name));
                Err(Failure::Template(Arc::new(error), origin))
            }
        }
    }

    /// Returns how many steps one component may take.
    fn component_steps(&self) -> u64 {
        self.limits.component_steps.min(self.limits.steps)
    }

    fn running(&self) -> &Mutex<Running> {
        &self.progress.running
    }

    /// Counts the steps that the running component has taken so far.
    pub(super) fn count_steps(&self, state: &State<'_, '_>) {
        if let Some((consumed, _)) = state.fuel_levels() {
            self.running().lock().count_to(consumed);
        }
    }

    /// Counts a failure and says so in the log.
    pub(crate) fn note_failure(&self, failure: &Failure, path: &str) {
        self.running().lock().failures += 1;
        tracing::warn!(path, reason = failure.reason(), error = %failure, "component failed");
    }

    /// Takes note of what a script wants to be answered instead of its text; the first wish counts.
    pub(crate) fn hand_over(&self, handover: Handover) {
        self.running().lock().handover.get_or_insert(handover);
    }

    /// Takes what the script wanted to be answered.
    pub(crate) fn take_handover(&self) -> Option<Handover> {
        self.running().lock().handover.take()
    }

    /// Notes that the page includes what stands at an address.
    pub(super) fn note_included(&self, address: &str) {
        let included = &mut self.running().lock().included;
        if !included.iter().any(|one| one == address) {
            included.push(address.to_owned());
        }
    }

    /// Notes that it decides about the page whether who asks fills in includes.
    pub(super) fn note_capability(&self) {
        self.running().lock().varies_by_capability = true;
    }

    /// Tells whether it decides about the page who fills in includes.
    pub(crate) fn varies_by_capability(&self) -> bool {
        self.running().lock().varies_by_capability
    }

    /// Takes the addresses that the page includes, as a header holds them.
    pub(crate) fn take_included(&self) -> Option<String> {
        let included = std::mem::take(&mut self.running().lock().included);
        (!included.is_empty()).then(|| included.join(" "))
    }

    /// Notes something that authors should mend, once.
    pub(super) fn warn(&self, warning: &str) {
        let warnings = &mut self.running().lock().warnings;
        if warnings.len() < MAX_WARNINGS && !warnings.iter().any(|one| one == warning) {
            warnings.push(warning.to_owned());
        }
    }

    /// Takes what authors should mend.
    pub(crate) fn take_warnings(&self) -> Option<String> {
        let warnings = std::mem::take(&mut self.running().lock().warnings);
        (!warnings.is_empty()).then(|| warnings.join("; "))
    }

    /// Tells whether the script that fetches parts is to be put on the page: the first time that it is asked.
    pub(super) fn wants_fetcher(&self) -> bool {
        !std::mem::replace(&mut self.running().lock().has_fetcher, true)
    }

    /// Tells whether a script wants something else to be answered.
    pub(super) fn has_handover(&self) -> bool {
        self.running().lock().handover.is_some()
    }

    /// Begins a component, which is drawn to be kept if it has a capture.
    pub(super) fn begin_capture(&self, capture: Option<Capture>) {
        self.running().lock().captures.push(capture);
    }

    /// Ends the component that began last.
    pub(super) fn end_capture(&self) -> Option<Capture> {
        self.running().lock().captures.pop().flatten()
    }

    /// Marks what a component includes that is drawn to be kept.
    pub(super) fn mark(&self, hole: Hole, text: String) -> String {
        match self.running().lock().captures.last_mut() {
            Some(Some(capture)) => capture.mark(hole, &text),
            _ => text,
        }
    }

    /// Tells whether the component that runs is drawn to be kept, so that what it includes stands in holes.
    pub(super) fn is_captured(&self) -> bool {
        self.running().lock().captures.last().is_some_and(Option::is_some)
    }

    /// Counts a look-up of a fragment.
    pub(super) fn count(&self, change: impl FnOnce(&mut FragmentCounts)) {
        change(&mut self.running().lock().fragments);
    }

    /// Returns how fragments were looked up.
    pub(crate) fn fragment_counts(&self) -> FragmentCounts {
        self.running().lock().fragments
    }

    /// Returns how many components failed.
    pub(crate) fn failures(&self) -> u32 {
        self.running().lock().failures
    }

    /// Ends the taking of times.
    pub(crate) fn take_timing(&self) -> Timing {
        std::mem::take(&mut self.running().lock().stopwatch).finish()
    }
}

/// Returns roughly where the stack ends now.
///
/// Macros and loops around an include nest on the stack too, so counting includes alone cannot keep it from
/// overflowing.
#[inline(never)]
fn stack_position() -> usize {
    let marker = 0_u8;
    std::ptr::from_ref(std::hint::black_box(&marker)).addr()
}

/// What a component may write.
struct Room {
    /// What it writes mostly.
    expected: usize,
    left: usize,
}

/// A buffer that refuses to grow beyond its limit.
struct Bounded {
    text: Vec<u8>,
    left: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(bytes.len()) {
            Some(left) => {
                self.left = left;
                self.text.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            None => {
                self.left = 0;
                Err(io::Error::other("the output is too large"))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
