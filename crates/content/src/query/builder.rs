//! QueryBuilder: maps of predicates, as AEM's HTTP interface takes them, read into the same algebra.
//!
//! In: parameters such as `path`, `type`, `1_property`, `1_property.value`, `group.p.or`, `orderby`, `p.limit`.
//! Out: a [`Query`] and what to show of its result.
//!
//! Not here: `hasPermission`, `similar`, `excludepaths` and predicates of single products, which are refused by name.

use std::collections::BTreeMap;

use super::algebra::{
    Column, ColumnContent, Constraint, Literal, Operand, Operator, Options, Ordering, Query,
    Select, Selector,
};
use super::builder_tree::{Group, Predicate};
use super::syntax_error::SyntaxError;
use crate::{Date, NodePath, Value};

type Built<T> = Result<T, SyntaxError>;

/// The name of the only selector.
const SELECTOR: &str = "a";
/// How many hits are shown where no limit is given, as in AEM.
const DEFAULT_LIMIT: u64 = 10;

/// A query made of a map of predicates.
#[derive(Debug, Clone, PartialEq)]
pub struct BuilderQuery {
    /// The query, without limit and offset.
    pub query: Query,
    /// The most hits to show; none for all.
    pub limit: Option<u64>,
    /// Hits to skip.
    pub offset: u64,
    /// How far to count, if counting all is not wanted: `p.guessTotal`.
    pub guess_total: Option<u64>,
    /// What to show of each hit: `simple`, `full` or `selective`.
    pub hits: String,
    /// The properties that `selective` shows.
    pub properties: Vec<String>,
    /// How deep `full` goes: 0 for the node alone.
    pub node_depth: u32,
    /// Whether to count values.
    pub facets: bool,
}

impl BuilderQuery {
    /// Reads a map of predicates; dates that are relative count from `now`.
    ///
    /// # Errors
    /// [`SyntaxError`] that names the parameter; its column is always 1.
    pub fn parse(parameters: &BTreeMap<String, String>, now: Date) -> Built<Self> {
        let root = Group::read(parameters)?;
        let node_type = root.only_type();
        let reader = Reader { now, skips_type: node_type.is_some() };
        let constraint = reader.group(&root)?;
        let mut columns = vec![column(ColumnContent::All)];
        let facets = is_true(parameters.get("p.facets"));
        if facets {
            columns.extend(root.facet_properties().map(|name| column(ColumnContent::Facet(name))));
        }
        if is_true(parameters.get("p.excerpt")) {
            columns.push(column(ColumnContent::Excerpt(None)));
        }
        let node_type = node_type.unwrap_or("nt:base").to_owned();
        let selector = Selector { node_type, name: SELECTOR.to_owned() };
        let part = Select { columns, selector, joins: Vec::new(), constraint };
        let orderings = orderings(&root)?;
        let query =
            Query { parts: vec![part], union_all: false, orderings, options: Options::default() };
        let number = |name: &str| parameters.get(name).map(|text| whole(name, text)).transpose();
        let guess_total = match parameters.get("p.guessTotal").map(String::as_str) {
            None | Some("false" | "") => None,
            Some("true") => Some(0),
            Some(text) => Some(whole("p.guessTotal", text)?.max(0).unsigned_abs()),
        };
        let list = |text: &String| text.split_whitespace().map(str::to_owned).collect();
        Ok(Self {
            query,
            limit: match number("p.limit")? {
                None => Some(DEFAULT_LIMIT),
                Some(limit) => u64::try_from(limit).ok(),
            },
            offset: number("p.offset")?.unwrap_or(0).max(0).unsigned_abs(),
            guess_total,
            hits: parameters.get("p.hits").cloned().unwrap_or_else(|| "simple".to_owned()),
            properties: parameters.get("p.properties").map(list).unwrap_or_default(),
            node_depth: match number("p.nodedepth")? {
                None => 0,
                // In AEM this asks for everything below.
                Some(0) => u32::MAX,
                Some(depth) => u32::try_from(depth).unwrap_or(0),
            },
            facets,
        })
    }
}

struct Reader {
    now: Date,
    /// Whether the only `type` became the selector's type.
    skips_type: bool,
}

impl Reader {
    fn group(&self, group: &Group) -> Built<Option<Constraint>> {
        let mut parts = Vec::new();
        for predicate in &group.predicates {
            parts.extend(self.predicate(predicate)?);
        }
        for inner in &group.groups {
            parts.extend(self.group(inner)?);
        }
        let joined = match parts.len() {
            0 => return Ok(None),
            1 => parts.remove(0),
            _ if group.is_or => Constraint::Or(parts),
            _ => Constraint::And(parts),
        };
        Ok(Some(if group.is_not { Constraint::Not(Box::new(joined)) } else { joined }))
    }

    fn predicate(&self, predicate: &Predicate) -> Built<Option<Constraint>> {
        let value = predicate.value("");
        Ok(Some(match &*predicate.kind {
            "path" => match path(predicate)? {
                Some(constraint) => constraint,
                None => return Ok(None),
            },
            "type" if self.skips_type => return Ok(None),
            "type" => of_type(&value),
            "nodename" => {
                let operand = Operand::Name(SELECTOR.to_owned());
                Constraint::Compare {
                    operand,
                    operator: Operator::Like,
                    value: Literal::text(like_of(&value)),
                }
            }
            "property" => property(predicate)?,
            "fulltext" => full_text(predicate, &value)?,
            "daterange" => range(predicate, &|text| date(predicate, text))?,
            "relativedaterange" => {
                range(predicate, &|text| relative_date(predicate, text, self.now))?
            }
            "rangeproperty" => {
                let is_decimal = is_true(predicate.parameters.get("decimal"));
                range(predicate, &|text| number(predicate, text, is_decimal))?
            }
            "boolproperty" => bool_property(predicate, &value)?,
            "tagid" => tags(predicate)?,
            other => {
                let known = "path, type, nodename, property, fulltext, daterange, relativedaterange, rangeproperty, boolproperty, tagid, group";
                return Err(wrong(&format!("there is no predicate `{other}`; there are {known}")));
            }
        }))
    }
}

fn column(content: ColumnContent) -> Column {
    Column { selector: SELECTOR.to_owned(), content, alias: None }
}

fn wrong(message: &str) -> SyntaxError {
    SyntaxError::new(1, message)
}

fn is_true(text: Option<&String>) -> bool {
    text.is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

fn whole(name: &str, text: &str) -> Built<i64> {
    text.trim()
        .parse()
        .map_err(|_| wrong(&format!("`{name}` must be a whole number, not `{text}`")))
}

fn operand(name: &str) -> Operand {
    // `jcr:content/@jcr:title` and `@jcr:title` are spellings of the same.
    super::sql2_constraint::operand_of(SELECTOR.to_owned(), name.replace('@', ""))
}

fn path(predicate: &Predicate) -> Built<Option<Constraint>> {
    let text = predicate.value("");
    let trimmed = if text.len() > 1 { text.trim_end_matches('/') } else { &*text };
    if trimmed.is_empty() {
        return Ok(None);
    }
    let path =
        NodePath::new(trimmed).map_err(|error| wrong(&format!("`{}`: {error}", predicate.name)))?;
    let selector = SELECTOR.to_owned();
    if is_true(predicate.parameters.get("exact")) {
        return Ok(Some(Constraint::Same { selector, path }));
    }
    let below = if is_true(predicate.parameters.get("flat")) {
        Constraint::Child { selector: selector.clone(), path: path.clone() }
    } else if path.is_root() {
        return Ok(None);
    } else {
        Constraint::Descendant { selector: selector.clone(), path: path.clone() }
    };
    if is_true(predicate.parameters.get("self")) {
        return Ok(Some(Constraint::Or(vec![Constraint::Same { selector, path }, below])));
    }
    Ok(Some(below))
}

/// A type inside a group: its own name, without the types derived from it.
fn of_type(value: &str) -> Constraint {
    let compare = |name: &str| Constraint::Compare {
        operand: operand(name),
        operator: Operator::Equal,
        value: Literal::text(value),
    };
    Constraint::Or(vec![compare("jcr:primaryType"), compare("jcr:mixinTypes")])
}

/// Turns `*` and `?` into the wildcards of `LIKE`.
fn like_of(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len());
    for character in pattern.chars() {
        match character {
            '*' => like.push('%'),
            '?' => like.push('_'),
            '%' | '_' | '\\' => like.extend(['\\', character]),
            other => like.push(other),
        }
    }
    like
}

/// Returns the name of a property as SQL-2 has it.
fn property_name(predicate: &Predicate, name: &str) -> Built<String> {
    let name = name.replace('@', "");
    if name.is_empty() {
        return Err(wrong(&format!("`{}` needs the name of a property", predicate.name)));
    }
    Ok(name)
}

fn property(predicate: &Predicate) -> Built<Constraint> {
    let name = property_name(predicate, &predicate.value(""))?;
    let depth = match predicate.parameters.get("depth") {
        Some(text) => whole(&format!("{}.depth", predicate.name), text)?.clamp(0, 10),
        None => 0,
    };
    let names =
        (0..=depth).map(|level| format!("{}{name}", "*/".repeat(level.unsigned_abs() as usize)));
    let mut levels = names.map(|name| one_property(predicate, &name)).collect::<Built<Vec<_>>>()?;
    if levels.len() == 1 { Ok(levels.remove(0)) } else { Ok(Constraint::Or(levels)) }
}

fn one_property(predicate: &Predicate, name: &str) -> Built<Constraint> {
    let exists = || Constraint::Exists { selector: SELECTOR.to_owned(), property: name.to_owned() };
    let operation = predicate.parameters.get("operation").map_or("equals", String::as_str);
    let (operator, is_denied) = match operation {
        "equals" => (Operator::Equal, false),
        "unequals" => (Operator::NotEqual, false),
        "like" => (Operator::Like, false),
        "exists" | "not" => {
            let is_wanted = (operation == "exists") != (predicate.value("value") == "false");
            return Ok(if is_wanted { exists() } else { Constraint::Not(Box::new(exists())) });
        }
        other => {
            let message = format!(
                "`{}.operation` cannot be `{other}`; use equals, unequals, like, not or exists",
                predicate.name
            );
            return Err(wrong(&message));
        }
    };
    let values = predicate.values("value");
    if values.is_empty() {
        return Ok(exists());
    }
    let compare = |value: &String| Constraint::Compare {
        operand: operand(name),
        operator,
        value: Literal::text(value.clone()),
    };
    let mut parts: Vec<Constraint> = values.iter().map(compare).collect();
    let joined = match parts.len() {
        1 => parts.remove(0),
        _ if is_true(predicate.parameters.get("and")) => Constraint::And(parts),
        _ => Constraint::Or(parts),
    };
    Ok(if is_denied { Constraint::Not(Box::new(joined)) } else { joined })
}

fn full_text(predicate: &Predicate, value: &str) -> Built<Constraint> {
    super::TextExpression::parse(value)
        .map_err(|error| wrong(&format!("`{}`: {error}", predicate.name)))?;
    let property = predicate.parameters.get("relPath").map(|path| path.replace('@', ""));
    let property = property.filter(|path| !path.is_empty() && path != ".");
    Ok(Constraint::Contains { selector: SELECTOR.to_owned(), property, text: Literal::text(value) })
}

fn range(predicate: &Predicate, read: &dyn Fn(&str) -> Built<Value>) -> Built<Constraint> {
    let name = predicate.value("property");
    if name.is_empty() {
        return Err(wrong(&format!("`{}.property` is missing", predicate.name)));
    }
    let name = property_name(predicate, &name)?;
    let mut parts = Vec::new();
    // Both bounds are open unless they say otherwise, as in AEM.
    let bounds = [("lowerBound", "lowerOperation", ">"), ("upperBound", "upperOperation", "<")];
    for (bound, operation, default) in bounds {
        let Some(text) = predicate.parameters.get(bound).filter(|text| !text.is_empty()) else {
            continue;
        };
        let operation = predicate.parameters.get(operation).map_or(default, String::as_str);
        let operator = match operation {
            ">" => Operator::Greater,
            ">=" => Operator::GreaterOrEqual,
            "<" => Operator::Less,
            "<=" => Operator::LessOrEqual,
            other => {
                let message =
                    format!("`{}`: `{other}` is no bound; use >, >=, < or <=", predicate.name);
                return Err(wrong(&message));
            }
        };
        let value = Literal::Value(read(text)?);
        parts.push(Constraint::Compare { operand: operand(&name), operator, value });
    }
    let exists = Constraint::Exists { selector: SELECTOR.to_owned(), property: name };
    Ok(Constraint::all(parts).unwrap_or(exists))
}

fn date(predicate: &Predicate, text: &str) -> Built<Value> {
    // AEM also takes milliseconds since 1970.
    if let Ok(millis) = text.parse() {
        return Ok(Value::Date(Date { millis, offset_minutes: 0 }));
    }
    let date = Date::parse_lenient(text)
        .map_err(|_| wrong(&format!("`{}`: `{text}` is no date", predicate.name)))?;
    Ok(Value::Date(date))
}

/// Reads `-1y 2M -3w 4d -5h 6m -7s` or milliseconds, counted from now.
fn relative_date(predicate: &Predicate, text: &str, now: Date) -> Built<Value> {
    let bad =
        || wrong(&format!("`{}`: `{text}` is no distance such as `-1w` or `2d`", predicate.name));
    let mut millis = now.millis;
    for part in text.split_whitespace() {
        let unit_at = part.find(|one: char| one.is_ascii_alphabetic()).unwrap_or(part.len());
        let (number, unit) = part.split_at(unit_at);
        let number: i64 = number.parse().map_err(|_| bad())?;
        let scale: i64 = match unit {
            "" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return Err(bad()),
        };
        millis = millis.saturating_add(number.saturating_mul(scale));
    }
    Ok(Value::Date(Date { millis, offset_minutes: now.offset_minutes }))
}

fn number(predicate: &Predicate, text: &str, is_decimal: bool) -> Built<Value> {
    let bad = || wrong(&format!("`{}`: `{text}` is no number", predicate.name));
    match text.trim().parse() {
        Ok(number) if !is_decimal => Ok(Value::Long(number)),
        _ => Ok(Value::Double(text.trim().parse().map_err(|_| bad())?)),
    }
}

fn bool_property(predicate: &Predicate, name: &str) -> Built<Constraint> {
    let name = property_name(predicate, name)?;
    let is_wanted = predicate.parameters.get("value").is_none_or(|value| value != "false");
    let truth = Constraint::Compare {
        operand: operand(&name),
        operator: Operator::Equal,
        value: Literal::Value(Value::Boolean(true)),
    };
    Ok(if is_wanted { truth } else { Constraint::Not(Box::new(truth)) })
}

fn tags(predicate: &Predicate) -> Built<Constraint> {
    let mut tags = predicate.values("");
    tags.extend(predicate.values("tagid"));
    let name = match predicate.value("property") {
        name if name.is_empty() => "cq:tags".to_owned(),
        name => property_name(predicate, &name)?,
    };
    let compare = |tag: &String| Constraint::Compare {
        operand: operand(&name),
        operator: Operator::Equal,
        value: Literal::text(tag.clone()),
    };
    let mut parts: Vec<Constraint> = tags.iter().map(compare).collect();
    match parts.len() {
        0 => Err(wrong(&format!("`{}` needs a tag", predicate.name))),
        1 => Ok(parts.remove(0)),
        _ if is_true(predicate.parameters.get("and")) => Ok(Constraint::And(parts)),
        _ => Ok(Constraint::Or(parts)),
    }
}

fn orderings(root: &Group) -> Built<Vec<Ordering>> {
    let mut orderings = Vec::new();
    for predicate in root.predicates_of("orderby") {
        let by = predicate.value("");
        let named = root.predicates.iter().find(|other| other.name == by);
        let operand = match (&*by, named) {
            ("", _) => continue,
            ("path", _) => Operand::Path(SELECTOR.to_owned()),
            ("nodename", _) => Operand::Name(SELECTOR.to_owned()),
            (_, Some(named)) => operand(&property_name(named, &named.value(""))?),
            (name, None) => operand(&property_name(predicate, name)?),
        };
        let ignores_case = predicate.value("case") == "ignore";
        let operand = if ignores_case { Operand::Lower(Box::new(operand)) } else { operand };
        let descending = predicate.value("sort").eq_ignore_ascii_case("desc");
        orderings.push(Ordering { operand, descending });
    }
    Ok(orderings)
}
