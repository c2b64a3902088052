//! Components whose drawings are kept: looked up before anything of them is read, and cut into pieces when they are new.
//!
//! While a component is drawn to be kept, what it includes is marked in its text. Afterwards the text is cut at the
//! marks: what lies between them is a hole, which is looked up for itself each time the piece is used. A text in which a
//! mark is missing or doubled is not kept. What was read in a hole, and used of the request, is that of the hole alone.
//!
//! A template that compares, filters or captures what it includes, or puts it out where it is escaped, must not see marks,
//! as it would draw something else. It is not kept when it includes something.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tympan_content::ChunkId;

use super::failure::ComponentFailure;
use super::frame::render_hole;
use super::scope::RenderScope;
use crate::content_reader::RequestFacts;
use crate::dependency::{DependencySet, hash_bytes};
use crate::fragment::{
    CachedFragment, FragmentCache, FragmentDirectives, FragmentHole, FragmentLookup, FragmentPiece,
    FragmentRenderPermit, FragmentRequester, UncachedReason, VariationInput,
};
use crate::request::FragmentCacheOverride;
use crate::resource::ContentResource;

/// The fragments, as one request uses them.
#[derive(Debug)]
pub(crate) struct RequestFragments {
    pub cache: Arc<FragmentCache>,
    pub root: ChunkId,
    pub now: SystemTime,
    /// Who asks; empty for visitors.
    pub user: String,
    /// What who asks may see: those who see alike share what does not use who they are.
    pub access_fingerprint: String,
    pub variation: VariationContext,
    pub cache_override: FragmentCacheOverride,
    /// What tells the request from others.
    pub requester_id: u64,
}

/// What variations may hold of a request.
#[derive(Debug, Default)]
pub(crate) struct VariationContext {
    pub site: String,
    pub scheme: String,
    pub port: u16,
    pub ip: String,
    pub device: String,
    pub locale: String,
}

/// What is included while a component is drawn to be kept.
#[derive(Debug, Default)]
pub(crate) struct IncludeCapture {
    /// Each place with the text that stood there.
    marked_holes: Vec<(FragmentHole, Box<str>)>,
    /// Whether the template does more with what it includes than to put it out, so that nothing may be marked.
    is_opaque: bool,
    /// Whether something was included without a mark.
    has_unmarked_include: bool,
}

/// How often fragments were looked up in a request, and with which success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FragmentLookupCounts {
    /// Answered from the cache.
    pub hits: u32,
    /// Drawn and, mostly, kept.
    pub misses: u32,
    /// Drawn, and never kept.
    pub uncacheable: u32,
}

/// A component that is about to be drawn: its resource and what it says about keeping.
pub(super) struct PreparedComponent {
    pub resource: ContentResource,
    pub directives: Arc<FragmentDirectives>,
}

impl RenderScope {
    /// Draws a component, or takes what was kept of it. `find` reads the resource; `draw` draws it.
    pub(crate) fn render_cached(
        self: &Arc<Self>,
        hole: &FragmentHole,
        find: impl FnOnce() -> Result<ContentResource, ComponentFailure>,
        draw: impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
    ) -> Result<String, ComponentFailure> {
        let Some(fragments) = &self.fragments else {
            return draw(&find()?);
        };
        let place = self.hole_location(hole);
        if fragments.cache_override == FragmentCacheOverride::None
            && !self.is_capturing()
            && let Some(refusing) = fragments.cache.record_if_uncached(&place)
        {
            return self.render_uncached(fragments, &place, &refusing, (find, draw));
        }
        let place: Arc<str> = place.into();
        let mark = self.reader.begin_component();
        let drawn = self.lookup_or_render(fragments, &place, (find, draw));
        if self.is_capturing() {
            // It is looked up for itself whenever what is kept around it is used.
            self.reader.end_component_detached(mark);
        } else {
            self.reader.end_component(mark);
        }
        drawn
    }

    /// Draws a component that is known not to be kept, and in which nobody looks at what it reads for itself.
    fn render_uncached(
        self: &Arc<Self>,
        fragments: &RequestFragments,
        place: &str,
        refusing: &Arc<FragmentDirectives>,
        (find, draw): (
            impl FnOnce() -> Result<ContentResource, ComponentFailure>,
            impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
        ),
    ) -> Result<String, ComponentFailure> {
        let ready = self.prepare_component(find()?);
        if ready.directives != *refusing {
            // Another type is there now. It is drawn to be kept the next time: what was read to find it counts, too.
            fragments.cache.record_component_traits(
                &place.into(),
                &ready.directives,
                RequestFacts::default(),
            );
        }
        self.count_fragment_lookup(|counts| counts.uncacheable += 1);
        draw(&ready.resource)
    }

    fn lookup_or_render(
        self: &Arc<Self>,
        fragments: &RequestFragments,
        place: &Arc<str>,
        (find, draw): (
            impl FnOnce() -> Result<ContentResource, ComponentFailure>,
            impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
        ),
    ) -> Result<String, ComponentFailure> {
        let cache = &fragments.cache;
        let known = match fragments.cache_override {
            FragmentCacheOverride::None => cache.component_traits(place),
            FragmentCacheOverride::NoCache | FragmentCacheOverride::Recompile => None,
        };
        let (mut find, mut found) = (Some(find), None);
        let (directives, facts) = match known {
            Some(unit) => (unit.directives, unit.request_facts),
            None => {
                let ready =
                    self.prepare_component(find.take().ok_or(ComponentFailure::NoTarget)?()?);
                let directives = Arc::clone(&ready.directives);
                cache.record_component_traits(place, &directives, RequestFacts::default());
                found = Some(ready);
                let facts = cache
                    .component_traits(place)
                    .map_or(RequestFacts::default(), |unit| unit.request_facts);
                (directives, facts)
            }
        };
        let variation = match fragments.cache_override {
            FragmentCacheOverride::NoCache => Err(UncachedReason::Bypassed),
            FragmentCacheOverride::None | FragmentCacheOverride::Recompile => {
                self.variation_key(fragments, &directives, facts)
            }
        };
        let looked = match &variation {
            Ok(variation) => {
                let renews = fragments.cache_override == FragmentCacheOverride::Recompile;
                let seeker = FragmentRequester {
                    id: fragments.requester_id,
                    now: fragments.now,
                    bypasses_cached: renews,
                };
                cache.look_up(place, variation, fragments.root, seeker)
            }
            Err(_) => FragmentLookup::Miss(None),
        };
        let drawing = match looked {
            FragmentLookup::Hit(fragment) => {
                self.count_fragment_lookup(|counts| counts.hits += 1);
                self.reader.record_fragment(&fragment.dependencies, fragment.request_facts);
                return Ok(self.assemble_fragment(&fragment));
            }
            FragmentLookup::Miss(drawing) => drawing,
        };
        let ready = match found {
            Some(ready) => ready,
            None => self.prepare_component(find.take().ok_or(ComponentFailure::NoTarget)?()?),
        };
        if let Err(reason) = variation {
            cache.record_uncached(place, reason);
        }
        // What was known of the place was about another type.
        let is_same = ready.directives == directives;
        if !is_same {
            cache.record_component_traits(place, &ready.directives, facts);
        }
        match drawing.filter(|_| is_same) {
            Some(drawing) => {
                self.count_fragment_lookup(|counts| counts.misses += 1);
                self.render_and_cache(fragments, place, drawing, (&ready, draw))
            }
            None => {
                self.count_fragment_lookup(|counts| counts.uncacheable += 1);
                self.begin_capture(None);
                let drawn = draw(&ready.resource);
                self.end_capture();
                drawn
            }
        }
    }

    /// Finds out what the component of a resource says.
    fn prepare_component(&self, resource: ContentResource) -> PreparedComponent {
        let (resource_type, super_type) = (resource.resource_type(), resource.super_type());
        let directives = self.scripts.directives_of(resource_type, super_type);
        PreparedComponent { resource, directives }
    }

    /// Draws a component and keeps it if nothing speaks against it.
    fn render_and_cache(
        self: &Arc<Self>,
        fragments: &RequestFragments,
        place: &Arc<str>,
        mut drawing: FragmentRenderPermit,
        (ready, draw): (
            &PreparedComponent,
            impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
        ),
    ) -> Result<String, ComponentFailure> {
        let (began, failed) = (Instant::now(), self.failure_count());
        self.begin_capture(Some(IncludeCapture::default()));
        let drawn = draw(&ready.resource);
        let capture = self.end_capture().unwrap_or_default();
        let text = match drawn {
            Ok(text) => text,
            Err(failure) => {
                fragments.cache.record_uncached(place, UncachedReason::Failed);
                return Err(failure);
            }
        };
        let cut = cut_at_marks(&text, &capture);
        let clean = strip_marks(text, &capture);
        let (read, facts) = self.reader.component_reads();
        // Which components are kept, and how, is said in any folder above their scripts.
        let read = read.union(&DependencySet::on_any_script());
        let kept = if self.failure_count() > failed {
            Err(UncachedReason::Failed)
        } else if facts.intersects(RequestFacts::TIME) || self.has_response_override() {
            Err(UncachedReason::Uncacheable)
        } else {
            cut.ok_or(UncachedReason::Transformed).and_then(|pieces| {
                fragments.cache.record_component_traits(place, &ready.directives, facts);
                let all = fragments
                    .cache
                    .component_traits(place)
                    .map_or(facts, |unit| unit.request_facts);
                drawing.change_variation(self.variation_key(fragments, &ready.directives, all)?);
                let spread = hash_bytes(place) ^ hash_bytes(drawing.variation());
                let expires = ready.directives.expiry_time(fragments.now, spread);
                let took = began.elapsed();
                drawing.store(
                    CachedFragment {
                        pieces,
                        dependencies: Arc::new(read),
                        request_facts: facts,
                        render_time: took,
                    },
                    expires,
                )
            })
        };
        if let Err(reason) = kept {
            fragments.cache.record_uncached(place, reason);
        }
        Ok(clean)
    }

    /// Puts a kept drawing together.
    fn assemble_fragment(self: &Arc<Self>, fragment: &CachedFragment) -> String {
        let mut text = String::new();
        for piece in &fragment.pieces {
            match piece {
                FragmentPiece::Text(piece) => text.push_str(piece),
                FragmentPiece::Hole(hole) => {
                    // The place is not a part of a new drawing.
                    self.begin_capture(None);
                    text.push_str(&render_hole(self, hole));
                    self.end_capture();
                }
            }
        }
        text
    }

    /// Names the place of a component: nothing of it is read for that.
    fn hole_location(&self, hole: &FragmentHole) -> String {
        format!(
            "{}\0{}\0{}\0{}{}{}",
            hole.path,
            hole.forced_type.as_deref().unwrap_or_default(),
            hole.selectors.join("."),
            self.request.extension,
            if hole.renders_node_itself { " itself" } else { "" },
            self.scripts.cache_key_mark()
        )
    }

    /// Returns what tells the drawings of a place apart.
    fn variation_key(
        &self,
        fragments: &RequestFragments,
        directives: &FragmentDirectives,
        facts: RequestFacts,
    ) -> Result<String, UncachedReason> {
        let (request, visitor) = (&self.request, &fragments.variation);
        let url = request.raw_url.split('?').next().unwrap_or_default();
        let asker = VariationInput {
            uri: url,
            site: &visitor.site,
            scheme: &visitor.scheme,
            port: visitor.port,
            user: &fragments.user,
            ip: &visitor.ip,
            device: &visitor.device,
            locale: &visitor.locale,
            parameters: &request.parameters,
        };
        let mut text = directives.variation(&asker)?;
        // What drawings use counts, whatever the component says.
        let host = format!("{}://{}", request.scheme, request.host);
        let fault = request.error.as_ref().map_or("", |(name, _)| name);
        for (fact, value) in [
            (RequestFacts::PAGE, self.path.as_str()),
            (RequestFacts::HOST, &host),
            (RequestFacts::FAULT, fault),
            (RequestFacts::USER, &fragments.user),
            (RequestFacts::URL, url),
            (RequestFacts::PARAMETERS, request.raw_url.get(url.len()..).unwrap_or_default()),
        ] {
            if facts.intersects(fact) {
                text.push_str(&format!("\0{}:{value}", value.len()));
            }
        }
        text.push('\0');
        text.push_str(&fragments.access_fingerprint);
        Ok(text)
    }
}

/// Characters of marks: no HTML may hold them, and no filter of templates makes others of them.
const MARK_CHARACTERS: std::ops::RangeInclusive<char> = '\u{1}'..='\u{7}';

/// Returns the marks around what was included as number `n`.
fn mark_pair(mut number: usize) -> (String, String) {
    let mut digits = String::new();
    loop {
        digits.push(match number % 4 {
            0 => '\u{3}',
            1 => '\u{4}',
            2 => '\u{5}',
            _ => '\u{6}',
        });
        number /= 4;
        if number == 0 {
            break;
        }
    }
    (format!("\u{1}{digits}\u{2}"), format!("\u{7}{digits}\u{2}"))
}

impl IncludeCapture {
    /// Lets nothing be marked.
    pub(super) fn make_opaque(&mut self) {
        self.is_opaque = true;
    }

    /// Marks a text that was included.
    pub(super) fn mark_include(&mut self, hole: FragmentHole, text: &str) -> String {
        if self.is_opaque {
            self.has_unmarked_include = true;
            return text.to_owned();
        }
        let (before, after) = mark_pair(self.marked_holes.len());
        self.marked_holes.push((hole, text.into()));
        format!("{before}{text}{after}")
    }
}

/// Cuts a text at its marks; nothing if one is missing, doubled or out of order.
fn cut_at_marks(text: &str, capture: &IncludeCapture) -> Option<Box<[FragmentPiece]>> {
    if capture.has_unmarked_include {
        return None;
    }
    let mut rest = text;
    let mut places = Vec::new();
    for (number, (hole, inner)) in capture.marked_holes.iter().enumerate() {
        let (before, after) = mark_pair(number);
        let (piece, behind) = rest.split_once(&before)?;
        rest = behind.strip_prefix(&**inner)?.strip_prefix(&*after)?;
        places.push((piece, hole));
    }
    let is_clean = |piece: &str| !piece.contains(|one| MARK_CHARACTERS.contains(&one));
    if !is_clean(rest) || !places.iter().all(|(piece, _)| is_clean(piece)) {
        return None;
    }
    let mut all = Vec::with_capacity(2 * places.len() + 1);
    for (piece, hole) in places {
        if !piece.is_empty() {
            all.push(FragmentPiece::Text(piece.into()));
        }
        all.push(FragmentPiece::Hole(hole.clone()));
    }
    if !rest.is_empty() {
        all.push(FragmentPiece::Text(rest.into()));
    }
    Some(all.into())
}

/// Takes all marks out of a text, also those of which a template left a part.
fn strip_marks(text: String, capture: &IncludeCapture) -> String {
    if capture.marked_holes.is_empty() {
        return text;
    }
    text.split(|one| MARK_CHARACTERS.contains(&one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hole(path: &str) -> FragmentHole {
        let path = tympan_content::NodePath::new(path).unwrap();
        FragmentHole {
            path,
            forced_type: None,
            selectors: Arc::default(),
            renders_node_itself: false,
            child_inclusions: None,
        }
    }

    fn shown(text: &str, capture: &IncludeCapture) -> String {
        match cut_at_marks(text, capture) {
            None => "changed".to_owned(),
            Some(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    FragmentPiece::Text(text) => text.to_string(),
                    FragmentPiece::Hole(hole) => format!("[{}]", hole.path),
                })
                .collect(),
        }
    }

    #[test]
    fn a_text_is_cut_at_what_was_included() {
        let mut capture = IncludeCapture::default();
        let one = capture.mark_include(hole("/a"), "first");
        let other = capture.mark_include(hole("/b"), "");
        let text = format!("<p>{one}</p>{other}end");
        assert_eq!(shown(&text, &capture), "<p>[/a]</p>[/b]end");
        assert_eq!(strip_marks(text, &capture), "<p>first</p>end");
        for changed in [
            format!("{other}{one}"),
            format!("{one}{one}{other}"),
            one.clone(),
            format!("{one}{other}").replace("first", "FIRST"),
            format!("{one}{}", other.replace('\u{7}', "")),
        ] {
            assert_eq!(shown(&changed, &capture), "changed", "{changed:?}");
        }
        assert_eq!(strip_marks(one.to_uppercase(), &capture), "FIRST");
        assert_eq!(strip_marks(one.chars().skip(2).collect(), &capture), "first");
        assert_eq!(shown("plain", &IncludeCapture::default()), "plain");
    }

    #[test]
    fn marks_differ() {
        let all: std::collections::HashSet<String> =
            (0..300).map(|number| mark_pair(number).0).collect();
        assert_eq!(all.len(), 300);
    }
}
