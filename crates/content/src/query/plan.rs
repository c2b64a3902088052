//! Choosing one source of nodes for each selector, by what each would read.
//!
//! In: the constraints that a selector must meet. Out: an [`Access`]. Estimates come from the counts that maps keep, so
//! that they are exact for a range of keys; only how many nodes a document holds is an average.

use std::collections::BTreeSet;

use tympan_store::key::KeyRange;

use super::access::{Ground, Mark, Shape, Source, Spans};
use super::algebra::{Constraint, Options, Ordering, Selector, Traversal};
use super::condition::{Condition, Wish, read};
use super::filter::{Filter, bound};
use super::full_text::{TextExpression, TextRequest};
use super::hits::{Lag, TextCondition, TextSearch, lag};
use crate::boundary::is_container;
use crate::index::MAX_VALUE_BYTES;
use crate::property_index::{PropertyIndex, Reading};
use crate::subtree::JCR_CONTENT;
use crate::value_key::{Comparand, Span, several_span, successor, valued_span};
use crate::{Error, NodePath, Result, Value, keys};

/// What reading a node by an index costs, compared with passing one in a scan.
const LOOK_UP_COST: u64 = 10;
/// What reading the document of a hit costs, and deciding which of its nodes are wanted.
const HIT_COST: u64 = 30;
/// What asking the full-text index about one document costs.
const ASK_COST: u64 = 150;
/// The most paths that are gathered from an index to be sorted.
const MAX_GATHERED: u64 = 50_000;
/// Hits that are asked of the full-text index at once.
pub(crate) const HITS: usize = 100;

/// How the nodes of one selector are read.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) selector: String,
    pub(crate) source: Source,
    /// The index, as plans name it.
    pub(crate) index: String,
    /// The nodes that the source gives, about.
    pub(crate) estimate: u64,
    pub(crate) cost: u64,
    /// What each node must be; none for any.
    pub(crate) types: Option<BTreeSet<String>>,
    pub(crate) filter: Filter,
    /// The parts of the filter that paths alone decide.
    pub(crate) path_filter: Filter,
    /// What the full-text index is asked about each node, where it is not the source.
    pub(crate) text: Option<Box<TextSearch>>,
    /// The constraints, as plans show them.
    pub(crate) conditions: Vec<String>,
    /// Whether the source gives nodes in the order of the first ordering.
    pub(crate) is_ordered: bool,
    /// Whether nodes without a value of the first ordering are missing, and have to follow.
    pub(crate) lacks_empty: bool,
}

/// What a selector's nodes are wanted for.
pub(crate) struct Wanted<'a> {
    pub(crate) selector: &'a str,
    pub(crate) node_type: &'a str,
    pub(crate) constraints: Vec<Constraint>,
    pub(crate) orderings: &'a [Ordering],
    /// How many rows are wanted, if that is known.
    pub(crate) limit: Option<u64>,
    pub(crate) options: &'a Options,
    /// The columns that want an excerpt or counts.
    pub(crate) excerpt: bool,
    pub(crate) facets: Vec<String>,
    /// Where to go on.
    pub(crate) mark: Option<&'a Mark>,
}

impl<'a> Wanted<'a> {
    /// Asks for all nodes of a selector that meet constraints, in any order.
    pub(crate) fn all(selector: &'a Selector, constraints: Vec<Constraint>) -> Self {
        Self {
            selector: &selector.name,
            node_type: &selector.node_type,
            constraints,
            orderings: &[],
            limit: None,
            options: &Options::NONE,
            excerpt: false,
            facets: Vec::new(),
            mark: None,
        }
    }
}

/// A source that would do.
struct Choice {
    source: Source,
    index: String,
    estimate: u64,
    cost: u64,
}

/// Where the wanted nodes lie.
struct Region {
    same: Option<NodePath>,
    child: Option<NodePath>,
    below: Option<NodePath>,
}

impl Region {
    fn of(constraints: &[Constraint]) -> Self {
        let mut region = Self { same: None, child: None, below: None };
        for constraint in constraints {
            match constraint {
                Constraint::Same { path, .. } => region.same = Some(path.clone()),
                Constraint::Child { path, .. } => region.child = Some(path.clone()),
                Constraint::Descendant { path, .. } => {
                    // The deeper of two is the narrower, if they meet at all.
                    let is_deeper = region.below.as_ref().is_none_or(|below| path.is_within(below));
                    if is_deeper {
                        region.below = Some(path.clone());
                    }
                }
                _ => {}
            }
        }
        region
    }

    /// Returns the node above all wanted ones.
    fn above(&self) -> Option<&NodePath> {
        self.same.as_ref().or(self.child.as_ref()).or(self.below.as_ref())
    }

    /// Narrows the entries of one value to the paths in the region.
    fn narrow(&self, value: &Span) -> Span {
        let (prefix, end) = value;
        let with = |rest: &[u8]| [prefix, rest].concat();
        if let Some(same) = &self.same {
            return (
                with(same.as_str().as_bytes()),
                with(&[same.as_str().as_bytes(), &[1]].concat()),
            );
        }
        match self.child.as_ref().or(self.below.as_ref()) {
            Some(above) if !above.is_root() => {
                let below = format!("{above}/");
                let start = with(below.as_bytes());
                let end = successor(&start);
                (start, end)
            }
            _ => (prefix.clone(), end.clone()),
        }
    }
}

/// Chooses the source of a selector's nodes.
///
/// # Errors
/// [`Error::QueryRefused`] if only a traversal would do and the query forbids it; errors of the store.
pub(crate) fn plan(ground: &Ground<'_>, wanted: &Wanted<'_>) -> Result<Access> {
    let types = accepted_types(ground, wanted.node_type);
    let constraints: Vec<Constraint> =
        wanted.constraints.iter().flat_map(|one| one.conjuncts().into_iter().cloned()).collect();
    let planner = Planner {
        ground,
        wanted,
        types: &types,
        region: Region::of(&constraints),
        constraints: &constraints,
    };
    let (choice, text_at, text) = match planner.full_text()? {
        Some((choice, at)) => match planner.rival(&choice)? {
            Some((rival, search)) => (rival, Some(at), Some(search)),
            None => (choice, Some(at), None),
        },
        None => (planner.cheapest()?, None, None),
    };
    let choice = planner.with_lag(choice);
    let ordered = match (text_at, wanted.mark) {
        (None, None) => planner.ordered(&choice)?,
        _ => None,
    };
    let (choice, is_ordered, lacks_empty) = match ordered {
        Some((choice, lacks_empty)) => (choice, true, lacks_empty),
        None => (choice, false, false),
    };
    if matches!(choice.source, Source::Scan { is_flat: false, .. }) {
        planner.check_traversal()?;
    }
    // What the full-text index has decided is not decided again.
    let rest: Vec<Constraint> = constraints
        .iter()
        .enumerate()
        .filter(|(at, _)| text_at != Some(*at))
        .map(|(_, constraint)| constraint.clone())
        .collect();
    let filters = rest.iter().map(|one| Filter::new(one, &|_| 0)).collect::<Result<Vec<_>>>()?;
    let (about_paths, others): (Vec<_>, Vec<_>) =
        filters.into_iter().partition(Filter::is_about_paths);
    Ok(Access {
        selector: wanted.selector.to_owned(),
        source: choice.source,
        index: choice.index,
        estimate: choice.estimate,
        cost: choice.cost,
        types,
        filter: Filter::And(others),
        path_filter: Filter::And(about_paths),
        text,
        conditions: rest.iter().map(Constraint::to_string).collect(),
        is_ordered,
        lacks_empty,
    })
}

fn stale_cursor() -> Error {
    let reason = "its cursor belongs to an index that is gone; begin again without one";
    Error::QueryRefused { reason: reason.to_owned() }
}

/// Returns the types of which a node must have one; nothing if any will do.
fn accepted_types(ground: &Ground<'_>, node_type: &str) -> Option<BTreeSet<String>> {
    let subtypes =
        || ground.types.subtypes(node_type).chain([node_type]).map(str::to_owned).collect();
    (node_type != "nt:base").then(subtypes)
}

struct Planner<'a> {
    ground: &'a Ground<'a>,
    wanted: &'a Wanted<'a>,
    types: &'a Option<BTreeSet<String>>,
    region: Region,
    constraints: &'a [Constraint],
}

impl Planner<'_> {
    /// Refuses or logs a query that no index serves, as it asks.
    fn check_traversal(&self) -> Result<()> {
        match self.wanted.options.traversal {
            Some(Traversal::Fail) => Err(Error::QueryRefused {
                reason: "no index serves it, and it says `TRAVERSAL FAIL`".to_owned(),
            }),
            Some(Traversal::Warn) => {
                tracing::warn!(reason = "no index serves it", "query traverses");
                Ok(())
            }
            Some(Traversal::Ok) | None => Ok(()),
        }
    }

    /// Returns the full-text index as the source, if it gives all nodes that the words admit; and which constraint
    /// it serves.
    fn full_text(&self) -> Result<Option<(Choice, usize)>> {
        let Some(index) = self.ground.full_text else { return Ok(None) };
        let found = self.constraints.iter().enumerate().find_map(|(at, one)| match one {
            Constraint::Contains { property, text, .. } => {
                Some((at, property.clone(), text, false))
            }
            Constraint::Similar { path, .. } => Some((at, None, path, true)),
            _ => None,
        });
        let Some((at, property, text, is_similar)) = found else { return Ok(None) };
        // A node that is known is looked at by itself.
        let is_known = self.region.same.is_some() && !is_similar;
        let is_outside = self.region.above().is_some_and(|above| !index.covers(above));
        let is_left = matches!(self.wanted.mark, Some(Mark::Scan { .. }));
        if is_known || is_outside || is_left || self.may_lead_out(property.as_deref()) {
            return Ok(None);
        }
        let Lag::Changed(changed) = lag(self.ground)? else { return Ok(None) };
        let text = bound(text)?.to_text();
        let expression = if is_similar {
            let path = NodePath::new(&text)?;
            // What is like a node tells what is in it.
            if !self.ground.snapshot.node(&path)?.is_some_and(|node| node.is_whole()) {
                return Ok(None);
            }
            TextExpression::Similar(path)
        } else {
            TextExpression::parse(&text)?
        };
        let condition = TextCondition { property, expression };
        let Some(request) = condition.request(index)? else { return Ok(None) };
        // The index counts documents, of which it knows the words alone, and not always in which property they are.
        let is_counted = changed.is_empty()
            && condition.property.is_none()
            && request.expression == condition.expression
            && self.constraints.len() == 1
            && self.wanted.node_type == "cq:Page";
        let request = TextRequest {
            node_types: self.types.iter().flatten().cloned().collect(),
            below: self.region.above().cloned(),
            facets: if is_counted { self.wanted.facets.clone() } else { Vec::new() },
            excerpt: self.wanted.excerpt,
            ..request
        };
        let index = match changed.len() {
            0 => "full text".to_owned(),
            count => format!("full text, and {count} documents that it does not have yet"),
        };
        let search =
            TextSearch { request, condition, types: self.types.clone(), changed: changed.clone() };
        let source = Source::FullText(Box::new(search));
        Ok(Some((Choice { source, index, estimate: 0, cost: 0 }, at)))
    }

    /// Returns another source, whose nodes the full-text index is asked about one by one, if that is cheaper than
    /// looking at its hits; nothing if the hits are wanted for more than their nodes.
    fn rival(&self, text: &Choice) -> Result<Option<(Choice, Box<TextSearch>)>> {
        let (Some(index), Source::FullText(search)) = (self.ground.full_text, &text.source) else {
            return Ok(None);
        };
        let named = |best: Choice| {
            let index = format!("{}, each looked up in the {}", best.index, text.index);
            Some((Choice { index, ..best }, search.clone()))
        };
        match self.wanted.mark {
            Some(Mark::Score { .. }) => return Ok(None),
            // The page before came from such a source.
            Some(_) => return Ok(named(self.cheapest()?)),
            None => {}
        }
        let is_needed = matches!(search.condition.expression, TextExpression::Similar(_))
            || !self.wanted.facets.is_empty();
        if is_needed || self.constraints.len() < 2 {
            return Ok(None);
        }
        let best = self.cheapest()?;
        if matches!(best.source, Source::Scan { is_flat: false, .. }) {
            return Ok(None);
        }
        let asking = best.cost.saturating_add(best.estimate.saturating_mul(ASK_COST));
        // At most as many hits are wanted as the other source has nodes; all may have to be looked at for them.
        let request = TextRequest { limit: 1, facets: Vec::new(), ..search.request.clone() };
        let hits = index.search(&request)?.estimate.saturating_add(search.changed.len() as u64);
        let limit = self.wanted.limit.unwrap_or(u64::MAX).max(1);
        let share = best.estimate.max(1).div_ceil(limit).max(1);
        if asking >= hits.div_ceil(share).saturating_mul(HIT_COST) {
            return Ok(None);
        }
        Ok(named(best))
    }

    /// Says of a source if it stands in for the full-text index, which is too far from the snapshot.
    fn with_lag(&self, choice: Choice) -> Choice {
        if !matches!(self.ground.lag.get(), Some(Lag::Far)) {
            return choice;
        }
        let index = format!("{}, as the full-text index is too far from this state", choice.index);
        Choice { index, ..choice }
    }

    /// Tells whether a path of a property may lead from one document to another one, so that the words are not in the
    /// document of the node that is wanted.
    fn may_lead_out(&self, property: Option<&str>) -> bool {
        let Some((parents, _)) = property.and_then(|property| property.split_once('/')) else {
            return property == Some("*");
        };
        let is_closed = |name: &String| {
            let is_primary =
                self.ground.types.find(name).is_some_and(|one| !one.definition.flags.is_mixin);
            is_primary && (!is_container("", name) || (name == "cq:Page" && parents == JCR_CONTENT))
        };
        !self.types.as_ref().is_some_and(|types| types.iter().all(is_closed))
    }

    /// Returns the source that reads least, of those that can go on where the query has to.
    fn cheapest(&self) -> Result<Choice> {
        let mut choices = self.by_place()?;
        choices.extend(self.by_type()?);
        for constraint in self.constraints {
            choices.extend(self.by_constraint(constraint)?);
        }
        let options = self.wanted.options;
        let is_named = options.index_name.is_some() || options.index_tag.is_some();
        if is_named && choices.iter().any(|choice| self.is_asked_for(choice)) {
            choices.retain(|choice| self.is_asked_for(choice));
        }
        if let Some(mark) = self.wanted.mark {
            choices.retain(|choice| choice.source.takes(mark));
        }
        let best = choices.into_iter().min_by_key(|choice| choice.cost).ok_or_else(stale_cursor)?;
        match &best.source {
            Source::Spans(spans) if spans.has_several => self.gathered(best),
            _ => Ok(best),
        }
    }

    fn is_asked_for(&self, choice: &Choice) -> bool {
        let Source::Spans(spans) = &choice.source else { return false };
        let index = self.ground.definitions.0.iter().find(|one| one.map == spans.map_name);
        let options = self.wanted.options;
        index.is_some_and(|index| {
            options.index_name.as_ref().is_none_or(|name| index.name == *name)
                && options.index_tag.as_ref().is_none_or(|tag| index.tags.contains(tag))
        })
    }

    /// Returns the sources that follow from where the nodes lie.
    fn by_place(&self) -> Result<Vec<Choice>> {
        if let Some(same) = &self.region.same {
            let source = Source::Nodes(vec![same.clone()]);
            return Ok(vec![Choice {
                source,
                index: "path".to_owned(),
                estimate: 1,
                cost: LOOK_UP_COST,
            }]);
        }
        let content = self.ground.maps.get("content").copied().unwrap_or_default();
        let total = content.count(&self.ground.reads)?;
        if let Some(parent) = &self.region.child {
            let range = keys::children_of(parent)?;
            // Those in the parent's own document are not counted; they are few.
            let estimate = content.count_in(&self.ground.reads, &range)?.saturating_add(1);
            let source = Source::Scan { above: parent.clone(), is_flat: true };
            return Ok(vec![Choice {
                source,
                index: "children".to_owned(),
                estimate,
                cost: estimate,
            }]);
        }
        let above = self.region.below.clone().unwrap_or_else(NodePath::root);
        let documents = content.count_in(&self.ground.reads, &keys::below(&above)?)?;
        let types = self.ground.maps.get("type").copied().unwrap_or_default();
        let nodes = types.count(&self.ground.reads)?;
        // The average document decides how many nodes there are.
        let estimate = documents.saturating_mul(nodes.max(total)) / total.max(1) + 1;
        let index =
            if above.is_root() { "traverse".to_owned() } else { format!("traverse below {above}") };
        let source = Source::Scan { above, is_flat: false };
        Ok(vec![Choice { source, index, estimate, cost: estimate }])
    }

    fn by_type(&self) -> Result<Option<Choice>> {
        let Some(types) = self.types else { return Ok(None) };
        let names = types.iter().map(String::as_str);
        let found = self.text_map("type", "node type", &names.collect::<Vec<_>>())?;
        // The root of the content has no entry.
        let takes_root = types.contains("rep:root") && self.region.above().is_none();
        Ok(found.map(|choice| {
            if !takes_root {
                return choice;
            }
            let root = Source::Nodes(vec![NodePath::root()]);
            Choice { source: Source::Union(vec![root, choice.source]), ..choice }
        }))
    }

    /// Returns the entries of some texts in one of the fixed index maps.
    fn text_map(&self, map_name: &str, index: &str, values: &[&str]) -> Result<Option<Choice>> {
        let is_whole = |value: &&str| value.len() <= MAX_VALUE_BYTES && !value.contains('\0');
        if !values.iter().all(is_whole) {
            return Ok(None);
        }
        let map = self.ground.maps.get(map_name).copied().unwrap_or_default();
        let spans = values.iter().map(|value| {
            let prefix = [value.as_bytes(), &[0]].concat();
            let end = [value.as_bytes(), &[1]].concat();
            self.region.narrow(&(prefix, end))
        });
        let spans = Spans {
            map_name: map_name.to_owned(),
            map,
            spans: spans.collect(),
            is_merged: true,
            is_backward: false,
            has_several: false,
            shape: Shape::Text,
            suffix: String::new(),
        };
        let name = format!("{index} {}", values.join(", "));
        self.choice(spans, name).map(Some)
    }

    fn choice(&self, mut spans: Spans, index: String) -> Result<Choice> {
        let mut estimate = 0_u64;
        let mut kept = Vec::new();
        for (start, end) in std::mem::take(&mut spans.spans) {
            let range = KeyRange { start: start.clone(), end: Some(end.clone()) };
            let count = spans.map.count_in(&self.ground.reads, &range)?;
            if count > 0 {
                estimate = estimate.saturating_add(count);
                kept.push((start, end));
            }
        }
        spans.spans = kept;
        let cost = estimate.saturating_mul(LOOK_UP_COST).saturating_add(1);
        Ok(Choice { source: Source::Spans(spans), index, estimate, cost })
    }

    /// Returns the cheapest source that one constraint leads to.
    fn by_constraint(&self, constraint: &Constraint) -> Result<Option<Choice>> {
        if let Constraint::Or(parts) = constraint {
            return self.by_alternatives(parts);
        }
        let Some(condition) = Condition::of(constraint)? else { return Ok(None) };
        let mut choices: Vec<Choice> = self.by_fixed_map(&condition)?.into_iter().collect();
        for index in &self.ground.definitions.0 {
            choices.extend(self.by_property(index, &condition)?);
        }
        Ok(choices.into_iter().min_by_key(|choice| choice.cost))
    }

    /// Reads the sources of all alternatives together, if each has one in the order of paths.
    fn by_alternatives(&self, parts: &[Constraint]) -> Result<Option<Choice>> {
        let (mut sources, mut names) = (Vec::new(), Vec::new());
        let (mut estimate, mut cost) = (0_u64, 0_u64);
        for part in parts {
            let mut best: Option<Choice> = None;
            for conjunct in part.conjuncts() {
                if let Some(choice) = self.by_constraint(conjunct)?
                    && choice.source.takes(&Mark::Path(NodePath::root()))
                    && best.as_ref().is_none_or(|best| choice.cost < best.cost)
                {
                    best = Some(choice);
                }
            }
            let Some(mut choice) = best else { return Ok(None) };
            if matches!(&choice.source, Source::Spans(spans) if spans.has_several) {
                choice = self.gathered(choice)?;
            }
            estimate = estimate.saturating_add(choice.estimate);
            cost = cost.saturating_add(choice.cost);
            names.push(choice.index);
            sources.push(choice.source);
        }
        let index = format!("union of {}", names.join(" and "));
        Ok(Some(Choice { source: Source::Union(sources), index, estimate, cost }))
    }

    /// Looks up types, resource types and identifiers.
    fn by_fixed_map(&self, condition: &Condition<'_>) -> Result<Option<Choice>> {
        let wish = condition.wish(Reading::Value).filter(|_| condition.reading == Reading::Value);
        let Some(Wish::Equal(values)) = wish else { return Ok(None) };
        let (map, index) = match condition.property {
            "sling:resourceType" => ("resource", "resource type"),
            "jcr:uuid" => ("uuid", "identifier"),
            "jcr:primaryType" | "jcr:mixinTypes"
                if !values.iter().any(|value| *value.to_text() == *"rep:root") =>
            {
                ("type", "node type")
            }
            _ => return Ok(None),
        };
        // Only texts are in these maps.
        if values.iter().any(|value| Comparand::new(value).keys().len() > 1) {
            return Ok(None);
        }
        let texts: Vec<_> = values.iter().map(|value| value.to_text()).collect();
        self.text_map(map, index, &texts.iter().map(AsRef::as_ref).collect::<Vec<_>>())
    }

    /// Tells whether an index has all nodes that this selector may have with a property; gives what is to be cut from its
    /// paths.
    fn suffix<'p>(&self, index: &PropertyIndex, property: &'p str) -> Option<&'p str> {
        let (parents, name) = property.rsplit_once('/').unwrap_or(("", property));
        if name != index.property
            || parents.contains('*')
            || !self.ground.maps.contains_key(&index.map)
        {
            return None;
        }
        if parents != index.parents {
            // Entries of an index of the bare property lead to the nodes that have it, wherever they are.
            let is_free = index.parents.is_empty()
                && index.included.is_empty()
                && index.excluded.is_empty()
                && index.node_types.is_empty();
            return is_free.then_some(parents);
        }
        let has_types = index.node_types.is_empty()
            || self.types.as_ref().is_some_and(|types| {
                types.iter().all(|name| index.takes_type(std::iter::once(&**name)))
            });
        (has_types && index.covers(self.region.above())).then_some("")
    }

    fn by_property(
        &self,
        index: &PropertyIndex,
        condition: &Condition<'_>,
    ) -> Result<Option<Choice>> {
        let Some(wish) = condition.wish(index.reading) else { return Ok(None) };
        let Some(suffix) = self.suffix(index, condition.property) else { return Ok(None) };
        let is_in_pattern = |value: &Value| {
            index.pattern.as_ref().is_none_or(|pattern| pattern.is_match(&value.to_text()))
        };
        let has_values = match wish {
            Wish::Equal(values) => values.iter().all(is_in_pattern),
            _ => index.pattern.is_none(),
        };
        if !has_values {
            return Ok(None);
        }
        let Some(map) = self.ground.maps.get(&index.map).copied() else { return Ok(None) };
        let is_merged = matches!(wish, Wish::Equal(_));
        let mut spans = Spans {
            map_name: index.map.clone(),
            map,
            spans: wish.spans(),
            is_merged,
            is_backward: false,
            has_several: false,
            shape: Shape::Property,
            suffix: suffix.to_owned(),
        };
        if is_merged && suffix.is_empty() {
            spans.spans = spans.spans.iter().map(|span| self.region.narrow(span)).collect();
        }
        spans.has_several = !is_merged && self.has_several(map)?;
        let has_several = spans.has_several;
        let what = index.reading.of(condition.property);
        let choice = self.choice(spans, format!("property {} [{what}]", index.name))?;
        Ok(Some(choice).filter(|choice| !has_several || choice.estimate <= MAX_GATHERED))
    }

    /// Tells whether an index holds properties with several values.
    fn has_several(&self, map: tympan_store::Map) -> Result<bool> {
        let (start, end) = several_span();
        let range = KeyRange { start, end: Some(end) };
        Ok(map.count_in(&self.ground.reads, &range)? > 0)
    }

    /// Gathers the nodes of a range of which some have several values in it, so that each comes once.
    fn gathered(&self, choice: Choice) -> Result<Choice> {
        let paths = super::access::candidates(self.ground, &choice.source, None)
            .map(|candidate| Ok(candidate?.path))
            .collect::<Result<Vec<_>>>()?;
        Ok(Choice { source: Source::Nodes(super::access::sorted(paths)), ..choice })
    }

    /// Returns an index that gives nodes in the wanted order, if that reads less than sorting those of `choice`; and
    /// whether nodes without a value have to follow.
    fn ordered(&self, choice: &Choice) -> Result<Option<(Choice, bool)>> {
        let Some(Ordering { operand, descending }) = self.wanted.orderings.first() else {
            return Ok(None);
        };
        let Some((name, reading)) = read(operand) else { return Ok(None) };
        let conditions = self.constraints.iter().map(Condition::of).collect::<Result<Vec<_>>>()?;
        let mut about = conditions.into_iter().flatten();
        let same = about.find(|one| one.property == name && one.wish(reading).is_some());
        let same = same.as_ref().and_then(|condition| condition.wish(reading));
        let lacks_empty = same.is_none();
        // Nodes without a value come first in rising order; only falling order can leave them for the end.
        if lacks_empty && !descending {
            return Ok(None);
        }
        for index in self.ground.definitions.0.iter().filter(|index| index.reading == reading) {
            let Some(suffix) = self.suffix(index, name) else { continue };
            let Some(map) = self.ground.maps.get(&index.map).copied() else { continue };
            if index.pattern.is_some() || self.has_several(map)? {
                continue;
            }
            let spans = Spans {
                map_name: index.map.clone(),
                map,
                spans: same.map_or_else(|| vec![valued_span()], Wish::spans),
                is_merged: false,
                is_backward: *descending,
                has_several: false,
                shape: Shape::Property,
                suffix: suffix.to_owned(),
            };
            let what = reading.of(name);
            let mut found =
                self.choice(spans, format!("property {} [{what}], in its order", index.name))?;
            // Of the entries, those that pass the other constraints are about as many as the other source gives.
            let limit = self.wanted.limit.unwrap_or(u64::MAX).max(1);
            let share = found.estimate.max(1).div_ceil(choice.estimate.max(1));
            let reads = found.estimate.min(limit.saturating_mul(share));
            found.cost = reads.saturating_mul(LOOK_UP_COST).saturating_add(1);
            if found.cost < choice.cost {
                return Ok(Some((found, lacks_empty)));
            }
        }
        Ok(None)
    }
}
