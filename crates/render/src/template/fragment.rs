//! Cached components: looked up before any of their content is read, and split into pieces when they are new.
//!
//! While a cacheable component is rendered, its includes are marked in its text. Afterwards the text is split at the
//! marks: the text between a pair is a hole, which is looked up separately each time the piece is used. A text with a
//! missing or duplicated mark is not cached. Reads and request facts in a hole belong to the hole alone.
//!
//! A template that compares, filters or captures its includes, or outputs them where they are escaped, must not see
//! marks, as they would change its output. It is not cached if it includes something.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tympan_content::ChunkId;

use super::failure::ComponentFailure;
use super::frame::render_hole;
use super::scope::RenderScope;
use crate::dependency::DependencySet;
use crate::dependency::content_reader::RequestFacts;
use crate::dependency::path_dependency::hash_bytes;
use crate::fragment::{
    CachedFragment, FragmentCache, FragmentDirectives, FragmentHole, FragmentLookup, FragmentPiece,
    FragmentRenderPermit, FragmentRequester, UncachedReason, VariationInput,
};
use crate::request::FragmentCacheOverride;
use crate::resource::ContentResource;

/// The fragment access of one request.
#[derive(Debug)]
pub(crate) struct RequestFragments {
    pub cache: Arc<FragmentCache>,
    pub root: ChunkId,
    pub now: SystemTime,
    /// The user; empty for visitors.
    pub user: String,
    /// A fingerprint of what the user may see: users with equal access share fragments that do not depend on their
    /// identity.
    pub access_fingerprint: String,
    pub variation: VariationContext,
    pub cache_override: FragmentCacheOverride,
    /// The identifier of the request.
    pub requester_id: u64,
}

/// The parts of a request that variations may contain.
#[derive(Debug, Default)]
pub(crate) struct VariationContext {
    pub site: String,
    pub scheme: String,
    pub port: u16,
    pub ip: String,
    pub device: String,
    pub locale: String,
}

/// The includes of a component that is rendered for the cache.
#[derive(Debug, Default)]
pub(crate) struct IncludeCapture {
    /// Each hole with its text.
    marked_holes: Vec<(FragmentHole, Box<str>)>,
    /// True if the template does more with its includes than output them, so that nothing may be marked.
    is_opaque: bool,
    /// True if something was included without a mark.
    has_unmarked_include: bool,
}

/// A component that is about to be rendered: its resource and its cache directives.
pub(super) struct PreparedComponent {
    pub resource: ContentResource,
    pub directives: Arc<FragmentDirectives>,
}

impl RenderScope {
    /// Renders a component, or uses its cached fragment. `find` reads the resource; `render` renders it.
    pub(crate) fn render_cached(
        self: &Arc<Self>,
        hole: &FragmentHole,
        find: impl FnOnce() -> Result<ContentResource, ComponentFailure>,
        render: impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
    ) -> Result<String, ComponentFailure> {
        let Some(fragments) = &self.fragments else {
            return render(&find()?);
        };
        let component_key = self.hole_location(hole);
        if fragments.cache_override == FragmentCacheOverride::None
            && !self.is_capturing()
            && let Some(refusing) = fragments.cache.record_if_uncached(&component_key)
        {
            return self.render_uncached(fragments, &component_key, &refusing, (find, render));
        }
        let component_key: Arc<str> = component_key.into();
        let mark = self.reader.begin_component();
        let result = self.lookup_or_render(fragments, &component_key, (find, render));
        if self.is_capturing() {
            // It is looked up separately whenever the enclosing fragment is used.
            self.reader.end_component_detached(mark);
        } else {
            self.reader.end_component(mark);
        }
        result
    }

    /// Renders a component that is known not to be cached, without recording its reads separately.
    fn render_uncached(
        self: &Arc<Self>,
        fragments: &RequestFragments,
        component_key: &str,
        refusing: &Arc<FragmentDirectives>,
        (find, render): (
            impl FnOnce() -> Result<ContentResource, ComponentFailure>,
            impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
        ),
    ) -> Result<String, ComponentFailure> {
        let component = self.prepare_component(find()?);
        if component.directives != *refusing {
            // The component's type changed. It is rendered for the cache the next time: the reads that found it count,
            // too.
            fragments.cache.record_component_traits(
                &component_key.into(),
                &component.directives,
                RequestFacts::default(),
            );
        }
        self.count_fragment_lookup(|counts| counts.uncacheable += 1);
        render(&component.resource)
    }

    fn lookup_or_render(
        self: &Arc<Self>,
        fragments: &RequestFragments,
        component_key: &Arc<str>,
        (find, render): (
            impl FnOnce() -> Result<ContentResource, ComponentFailure>,
            impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
        ),
    ) -> Result<String, ComponentFailure> {
        let cache = &fragments.cache;
        let known_traits = match fragments.cache_override {
            FragmentCacheOverride::None => cache.component_traits(component_key),
            FragmentCacheOverride::NoCache | FragmentCacheOverride::Recompile => None,
        };
        let (mut find, mut prepared) = (Some(find), None);
        let (directives, facts) = match known_traits {
            Some(unit) => (unit.directives, unit.request_facts),
            None => {
                let component =
                    self.prepare_component(find.take().ok_or(ComponentFailure::NoTarget)?()?);
                let directives = Arc::clone(&component.directives);
                cache.record_component_traits(component_key, &directives, RequestFacts::default());
                prepared = Some(component);
                let facts = cache
                    .component_traits(component_key)
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
                let requester = FragmentRequester {
                    id: fragments.requester_id,
                    now: fragments.now,
                    bypasses_cached: renews,
                };
                cache.look_up(component_key, variation, fragments.root, requester)
            }
            Err(_) => FragmentLookup::Miss(None),
        };
        let permit = match looked {
            FragmentLookup::Hit(fragment) => {
                self.count_fragment_lookup(|counts| counts.hits += 1);
                self.reader.record_fragment(&fragment.dependencies, fragment.request_facts);
                return self.assemble_fragment(&fragment);
            }
            FragmentLookup::Miss(permit) => permit,
        };
        let component = match prepared {
            Some(component) => component,
            None => self.prepare_component(find.take().ok_or(ComponentFailure::NoTarget)?()?),
        };
        if let Err(reason) = variation {
            cache.record_uncached(component_key, reason);
        }
        // The known traits belong to another type.
        let is_same = component.directives == directives;
        if !is_same {
            cache.record_component_traits(component_key, &component.directives, facts);
        }
        match permit.filter(|_| is_same) {
            Some(permit) => {
                self.count_fragment_lookup(|counts| counts.misses += 1);
                self.render_and_cache(fragments, component_key, permit, (&component, render))
            }
            None => {
                self.count_fragment_lookup(|counts| counts.uncacheable += 1);
                self.begin_capture(None);
                let result = render(&component.resource);
                self.end_capture();
                result
            }
        }
    }

    /// Reads the cache directives of a resource's component.
    fn prepare_component(&self, resource: ContentResource) -> PreparedComponent {
        let (resource_type, super_type) = (resource.resource_type(), resource.super_type());
        let directives = self.scripts.directives_of(resource_type, super_type);
        PreparedComponent { resource, directives }
    }

    /// Renders a component and caches it if possible.
    fn render_and_cache(
        self: &Arc<Self>,
        fragments: &RequestFragments,
        component_key: &Arc<str>,
        mut permit: FragmentRenderPermit,
        (component, render): (
            &PreparedComponent,
            impl FnOnce(&ContentResource) -> Result<String, ComponentFailure>,
        ),
    ) -> Result<String, ComponentFailure> {
        let (began, failed) = (Instant::now(), self.failure_count());
        self.begin_capture(Some(IncludeCapture::default()));
        let result = render(&component.resource);
        let capture = self.end_capture().unwrap_or_default();
        let text = match result {
            Ok(text) => text,
            Err(failure) => {
                fragments.cache.record_uncached(component_key, UncachedReason::Failed);
                return Err(failure);
            }
        };
        let cut = cut_at_marks(&text, &capture);
        let clean = strip_marks(text, &capture);
        let (read, facts) = self.reader.component_reads();
        // Any folder above the scripts may contain cache directives.
        let read = read.union(&DependencySet::on_any_script());
        let cache_result = if self.failure_count() > failed {
            Err(UncachedReason::Failed)
        } else if facts.intersects(RequestFacts::TIME) || self.has_response_override() {
            Err(UncachedReason::Uncacheable)
        } else {
            cut.ok_or(UncachedReason::Transformed).and_then(|pieces| {
                fragments.cache.record_component_traits(
                    component_key,
                    &component.directives,
                    facts,
                );
                let all = fragments
                    .cache
                    .component_traits(component_key)
                    .map_or(facts, |unit| unit.request_facts);
                permit.change_variation(self.variation_key(
                    fragments,
                    &component.directives,
                    all,
                )?);
                let spread = hash_bytes(component_key) ^ hash_bytes(permit.variation());
                let expires = component.directives.expiry_time(fragments.now, spread);
                let took = began.elapsed();
                permit.store(
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
        if let Err(reason) = cache_result {
            fragments.cache.record_uncached(component_key, reason);
        }
        Ok(clean)
    }

    /// Assembles the output of a cached fragment.
    fn assemble_fragment(
        self: &Arc<Self>,
        fragment: &CachedFragment,
    ) -> Result<String, ComponentFailure> {
        let mut pieces = fragment.pieces.iter();
        self.assemble_component(|text| {
            match pieces.next() {
                Some(FragmentPiece::Text(piece)) => text.push_str(piece),
                Some(FragmentPiece::Hole(hole)) => {
                    // The hole is not a part of a new rendering.
                    self.begin_capture(None);
                    text.push_str(&render_hole(self, hole));
                    self.end_capture();
                }
                None => return false,
            }
            true
        })
    }

    /// Returns the cache key of a component, without reading its content.
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

    /// Returns the variation, which distinguishes the renderings of a component.
    fn variation_key(
        &self,
        fragments: &RequestFragments,
        directives: &FragmentDirectives,
        facts: RequestFacts,
    ) -> Result<String, UncachedReason> {
        let (request, visitor) = (&self.request, &fragments.variation);
        let url = request.raw_url.split('?').next().unwrap_or_default();
        let input = VariationInput {
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
        let mut text = directives.variation(&input)?;
        // The facts that renderings use count, regardless of the directives.
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

/// The characters of marks: HTML must not contain them, and no template filter converts them.
const MARK_CHARACTERS: std::ops::RangeInclusive<char> = '\u{1}'..='\u{7}';

/// Returns the marks around include number `n`.
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
    /// Disables marks.
    pub(super) fn make_opaque(&mut self) {
        self.is_opaque = true;
    }

    /// Puts marks around an included text.
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

/// Splits a text at its marks; `None` if one is missing, duplicated or out of order.
fn cut_at_marks(text: &str, capture: &IncludeCapture) -> Option<Box<[FragmentPiece]>> {
    if capture.has_unmarked_include {
        return None;
    }
    let mut rest = text;
    let mut holes = Vec::new();
    for (number, (hole, inner)) in capture.marked_holes.iter().enumerate() {
        let (before, after) = mark_pair(number);
        let (piece, behind) = rest.split_once(&before)?;
        rest = behind.strip_prefix(&**inner)?.strip_prefix(&*after)?;
        holes.push((piece, hole));
    }
    let is_clean = |piece: &str| !piece.contains(|character| MARK_CHARACTERS.contains(&character));
    if !is_clean(rest) || !holes.iter().all(|(piece, _)| is_clean(piece)) {
        return None;
    }
    let mut all = Vec::with_capacity(2 * holes.len() + 1);
    for (piece, hole) in holes {
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

/// Removes all marks from a text, including partial ones.
fn strip_marks(text: String, capture: &IncludeCapture) -> String {
    if capture.marked_holes.is_empty() {
        return text;
    }
    text.split(|character| MARK_CHARACTERS.contains(&character)).collect()
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
        let first = capture.mark_include(hole("/a"), "first");
        let second = capture.mark_include(hole("/b"), "");
        let text = format!("<p>{first}</p>{second}end");
        assert_eq!(shown(&text, &capture), "<p>[/a]</p>[/b]end");
        assert_eq!(strip_marks(text, &capture), "<p>first</p>end");
        for changed in [
            format!("{second}{first}"),
            format!("{first}{first}{second}"),
            first.clone(),
            format!("{first}{second}").replace("first", "FIRST"),
            format!("{first}{}", second.replace('\u{7}', "")),
        ] {
            assert_eq!(shown(&changed, &capture), "changed", "{changed:?}");
        }
        assert_eq!(strip_marks(first.to_uppercase(), &capture), "FIRST");
        assert_eq!(strip_marks(first.chars().skip(2).collect(), &capture), "first");
        assert_eq!(shown("plain", &IncludeCapture::default()), "plain");
    }

    #[test]
    fn marks_differ() {
        let all: std::collections::HashSet<String> =
            (0..300).map(|number| mark_pair(number).0).collect();
        assert_eq!(all.len(), 300);
    }
}
