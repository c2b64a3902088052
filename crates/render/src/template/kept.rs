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

use super::failure::Failure;
use super::frame::fill;
use super::scope::Scope;
use crate::dependency::{Dependencies, hash};
use crate::fragment::{
    Asker, Directives, Drawing, Found, Fragment, FragmentCache, Hole, Piece, Seeker, Uncached,
};
use crate::reads::Facts;
use crate::request::Flex;
use crate::resource::Resource;

/// The fragments, as one request uses them.
#[derive(Debug)]
pub(crate) struct Fragments {
    pub cache: Arc<FragmentCache>,
    pub root: ChunkId,
    pub now: SystemTime,
    /// Who asks; empty for visitors.
    pub user: String,
    /// What who asks may see: those who see alike share what does not use who they are.
    pub sight: String,
    pub visitor: Visitor,
    pub flex: Flex,
    /// What tells the request from others.
    pub seeker: u64,
}

/// What variations may hold of a request.
#[derive(Debug, Default)]
pub(crate) struct Visitor {
    pub site: String,
    pub scheme: String,
    pub port: u16,
    pub ip: String,
    pub device: String,
    pub locale: String,
}

/// What is included while a component is drawn to be kept.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// Each place with the text that stood there.
    holes: Vec<(Hole, Box<str>)>,
    /// Whether the template does more with what it includes than to put it out, so that nothing may be marked.
    is_opaque: bool,
    /// Whether something was included without a mark.
    is_lost: bool,
}

/// How often fragments were looked up in a request, and with which success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// Answered from the cache.
    pub hits: u32,
    /// Drawn and, mostly, kept.
    pub misses: u32,
    /// Drawn, and never kept.
    pub never: u32,
}

/// A component that is about to be drawn: its resource and what it says about keeping.
pub(super) struct Ready {
    pub resource: Resource,
    pub directives: Arc<Directives>,
}

impl Scope {
    /// Draws a component, or takes what was kept of it. `find` reads the resource; `draw` draws it.
    pub(crate) fn draw_kept(
        self: &Arc<Self>,
        hole: &Hole,
        find: impl FnOnce() -> Result<Resource, Failure>,
        draw: impl FnOnce(&Resource) -> Result<String, Failure>,
    ) -> Result<String, Failure> {
        let Some(fragments) = &self.fragments else {
            return draw(&find()?);
        };
        let place = self.place_of(hole);
        if fragments.flex == Flex::None
            && !self.is_captured()
            && let Some(refusing) = fragments.cache.pass(&place)
        {
            return self.draw_past(fragments, &place, &refusing, (find, draw));
        }
        let place: Arc<str> = place.into();
        let mark = self.reader.begin();
        let drawn = self.draw_at(fragments, &place, (find, draw));
        if self.is_captured() {
            // It is looked up for itself whenever what is kept around it is used.
            self.reader.end_aside(mark);
        } else {
            self.reader.end(mark);
        }
        drawn
    }

    /// Draws a component that is known not to be kept, and in which nobody looks at what it reads for itself.
    fn draw_past(
        self: &Arc<Self>,
        fragments: &Fragments,
        place: &str,
        refusing: &Arc<Directives>,
        (find, draw): (
            impl FnOnce() -> Result<Resource, Failure>,
            impl FnOnce(&Resource) -> Result<String, Failure>,
        ),
    ) -> Result<String, Failure> {
        let ready = self.ready(find()?);
        if ready.directives != *refusing {
            // Another type is there now. It is drawn to be kept the next time: what was read to find it counts, too.
            fragments.cache.note_unit(&place.into(), &ready.directives, Facts::default());
        }
        self.count(|counts| counts.never += 1);
        draw(&ready.resource)
    }

    fn draw_at(
        self: &Arc<Self>,
        fragments: &Fragments,
        place: &Arc<str>,
        (find, draw): (
            impl FnOnce() -> Result<Resource, Failure>,
            impl FnOnce(&Resource) -> Result<String, Failure>,
        ),
    ) -> Result<String, Failure> {
        let cache = &fragments.cache;
        let known = match fragments.flex {
            Flex::None => cache.unit(place),
            Flex::Nocache | Flex::Recompile => None,
        };
        let (mut find, mut found) = (Some(find), None);
        let (directives, facts) = match known {
            Some(unit) => (unit.directives, unit.facts),
            None => {
                let ready = self.ready(find.take().ok_or(Failure::NoTarget)?()?);
                let directives = Arc::clone(&ready.directives);
                cache.note_unit(place, &directives, Facts::default());
                found = Some(ready);
                let facts = cache.unit(place).map_or(Facts::default(), |unit| unit.facts);
                (directives, facts)
            }
        };
        let variation = match fragments.flex {
            Flex::Nocache => Err(Uncached::Asked),
            Flex::None | Flex::Recompile => self.variation(fragments, &directives, facts),
        };
        let looked = match &variation {
            Ok(variation) => {
                let renews = fragments.flex == Flex::Recompile;
                let seeker = Seeker { id: fragments.seeker, now: fragments.now, renews };
                cache.look_up(place, variation, fragments.root, seeker)
            }
            Err(_) => Found::Miss(None),
        };
        let drawing = match looked {
            Found::Hit(fragment) => {
                self.count(|counts| counts.hits += 1);
                self.reader.add_read(&fragment.read, fragment.facts);
                return Ok(self.replay(&fragment));
            }
            Found::Miss(drawing) => drawing,
        };
        let ready = match found {
            Some(ready) => ready,
            None => self.ready(find.take().ok_or(Failure::NoTarget)?()?),
        };
        if let Err(reason) = variation {
            cache.note_uncached(place, reason);
        }
        // What was known of the place was about another type.
        let is_same = ready.directives == directives;
        if !is_same {
            cache.note_unit(place, &ready.directives, facts);
        }
        match drawing.filter(|_| is_same) {
            Some(drawing) => {
                self.count(|counts| counts.misses += 1);
                self.draw_and_keep(fragments, place, drawing, (&ready, draw))
            }
            None => {
                self.count(|counts| counts.never += 1);
                self.begin_capture(None);
                let drawn = draw(&ready.resource);
                self.end_capture();
                drawn
            }
        }
    }

    /// Finds out what the component of a resource says.
    fn ready(&self, resource: Resource) -> Ready {
        let (resource_type, super_type) = (resource.resource_type(), resource.super_type());
        let directives = self.scripts.directives(resource_type, super_type);
        Ready { resource, directives }
    }

    /// Draws a component and keeps it if nothing speaks against it.
    fn draw_and_keep(
        self: &Arc<Self>,
        fragments: &Fragments,
        place: &Arc<str>,
        mut drawing: Drawing,
        (ready, draw): (&Ready, impl FnOnce(&Resource) -> Result<String, Failure>),
    ) -> Result<String, Failure> {
        let (began, failed) = (Instant::now(), self.failures());
        self.begin_capture(Some(Capture::default()));
        let drawn = draw(&ready.resource);
        let capture = self.end_capture().unwrap_or_default();
        let text = match drawn {
            Ok(text) => text,
            Err(failure) => {
                fragments.cache.note_uncached(place, Uncached::Failed);
                return Err(failure);
            }
        };
        let cut = cut(&text, &capture);
        let clean = strip(text, &capture);
        let (read, facts) = self.reader.read_since();
        // Which components are kept, and how, is said in any folder above their scripts.
        let read = read.union(&Dependencies::any_script());
        let kept = if self.failures() > failed {
            Err(Uncached::Failed)
        } else if facts.has(Facts::TIME) || self.has_handover() {
            Err(Uncached::Special)
        } else {
            cut.ok_or(Uncached::Changed).and_then(|pieces| {
                fragments.cache.note_unit(place, &ready.directives, facts);
                let all = fragments.cache.unit(place).map_or(facts, |unit| unit.facts);
                drawing.rename(self.variation(fragments, &ready.directives, all)?);
                let spread = hash(place) ^ hash(drawing.variation());
                let expires = ready.directives.expires(fragments.now, spread);
                let took = began.elapsed();
                drawing.keep(Fragment { pieces, read: Arc::new(read), facts, took }, expires)
            })
        };
        if let Err(reason) = kept {
            fragments.cache.note_uncached(place, reason);
        }
        Ok(clean)
    }

    /// Puts a kept drawing together.
    fn replay(self: &Arc<Self>, fragment: &Fragment) -> String {
        let mut text = String::new();
        for piece in &fragment.pieces {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Hole(hole) => {
                    // The place is not a part of a new drawing.
                    self.begin_capture(None);
                    text.push_str(&fill(self, hole));
                    self.end_capture();
                }
            }
        }
        text
    }

    /// Names the place of a component: nothing of it is read for that.
    fn place_of(&self, hole: &Hole) -> String {
        format!(
            "{}\0{}\0{}\0{}{}{}",
            hole.path,
            hole.forced.as_deref().unwrap_or_default(),
            hole.selectors.join("."),
            self.request.extension,
            if hole.is_itself { " itself" } else { "" },
            self.scripts.mark()
        )
    }

    /// Returns what tells the drawings of a place apart.
    fn variation(
        &self,
        fragments: &Fragments,
        directives: &Directives,
        facts: Facts,
    ) -> Result<String, Uncached> {
        let (request, visitor) = (&self.request, &fragments.visitor);
        let url = request.raw.split('?').next().unwrap_or_default();
        let asker = Asker {
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
            (Facts::PAGE, self.path.as_str()),
            (Facts::HOST, &host),
            (Facts::FAULT, fault),
            (Facts::USER, &fragments.user),
            (Facts::URL, url),
            (Facts::PARAMETERS, request.raw.get(url.len()..).unwrap_or_default()),
        ] {
            if facts.has(fact) {
                text.push_str(&format!("\0{}:{value}", value.len()));
            }
        }
        text.push('\0');
        text.push_str(&fragments.sight);
        Ok(text)
    }
}

/// Characters of marks: no HTML may hold them, and no filter of templates makes others of them.
const MARKS: std::ops::RangeInclusive<char> = '\u{1}'..='\u{7}';

/// Returns the marks around what was included as number `n`.
fn marks(mut number: usize) -> (String, String) {
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

impl Capture {
    /// Lets nothing be marked.
    pub(super) fn hide_marks(&mut self) {
        self.is_opaque = true;
    }

    /// Marks a text that was included.
    pub(super) fn mark(&mut self, hole: Hole, text: &str) -> String {
        if self.is_opaque {
            self.is_lost = true;
            return text.to_owned();
        }
        let (before, after) = marks(self.holes.len());
        self.holes.push((hole, text.into()));
        format!("{before}{text}{after}")
    }
}

/// Cuts a text at its marks; nothing if one is missing, doubled or out of order.
fn cut(text: &str, capture: &Capture) -> Option<Box<[Piece]>> {
    if capture.is_lost {
        return None;
    }
    let mut rest = text;
    let mut places = Vec::new();
    for (number, (hole, inner)) in capture.holes.iter().enumerate() {
        let (before, after) = marks(number);
        let (piece, behind) = rest.split_once(&before)?;
        rest = behind.strip_prefix(&**inner)?.strip_prefix(&*after)?;
        places.push((piece, hole));
    }
    let is_clean = |piece: &str| !piece.contains(|one| MARKS.contains(&one));
    if !is_clean(rest) || !places.iter().all(|(piece, _)| is_clean(piece)) {
        return None;
    }
    let mut all = Vec::with_capacity(2 * places.len() + 1);
    for (piece, hole) in places {
        if !piece.is_empty() {
            all.push(Piece::Text(piece.into()));
        }
        all.push(Piece::Hole(hole.clone()));
    }
    if !rest.is_empty() {
        all.push(Piece::Text(rest.into()));
    }
    Some(all.into())
}

/// Takes all marks out of a text, also those of which a template left a part.
fn strip(text: String, capture: &Capture) -> String {
    if capture.holes.is_empty() {
        return text;
    }
    text.split(|one| MARKS.contains(&one)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hole(path: &str) -> Hole {
        let path = tympan_content::NodePath::new(path).unwrap();
        Hole { path, forced: None, selectors: Arc::default(), is_itself: false, around: None }
    }

    fn shown(text: &str, capture: &Capture) -> String {
        match cut(text, capture) {
            None => "changed".to_owned(),
            Some(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => text.to_string(),
                    Piece::Hole(hole) => format!("[{}]", hole.path),
                })
                .collect(),
        }
    }

    #[test]
    fn a_text_is_cut_at_what_was_included() {
        let mut capture = Capture::default();
        let one = capture.mark(hole("/a"), "first");
        let other = capture.mark(hole("/b"), "");
        let text = format!("<p>{one}</p>{other}end");
        assert_eq!(shown(&text, &capture), "<p>[/a]</p>[/b]end");
        assert_eq!(strip(text, &capture), "<p>first</p>end");
        for changed in [
            format!("{other}{one}"),
            format!("{one}{one}{other}"),
            one.clone(),
            format!("{one}{other}").replace("first", "FIRST"),
            format!("{one}{}", other.replace('\u{7}', "")),
        ] {
            assert_eq!(shown(&changed, &capture), "changed", "{changed:?}");
        }
        assert_eq!(strip(one.to_uppercase(), &capture), "FIRST");
        assert_eq!(strip(one.chars().skip(2).collect(), &capture), "first");
        assert_eq!(shown("plain", &Capture::default()), "plain");
    }

    #[test]
    fn marks_differ() {
        let all: std::collections::HashSet<String> =
            (0..300).map(|number| marks(number).0).collect();
        assert_eq!(all.len(), 300);
    }
}
