//! QueryBuilder: maps of predicates, as AEM's HTTP interface takes them, parsed into the same algebra.
//!
//! In: parameters such as `path`, `type`, `1_property`, `1_property.value`, `group.p.or`, `orderby`, `p.limit`. Out: a
//! [`ContentQuery`] and the options for presenting its result.
//!
//! Not here: `hasPermission`, `similar`, `excludepaths` and product-specific predicates, which are rejected by name.

use std::collections::BTreeMap;

use tympan_content::{JcrDate, NodePath, Value};

use crate::algebra::{
    ComparisonOperator, ContentQuery, QueryColumn, QueryColumnContent, QueryConstraint,
    QueryLiteral, QueryOperand, QueryOptions, QueryOrdering, QuerySelector, SelectStatement,
};
use crate::predicate_tree::{BuilderPredicate, PredicateGroup};
use crate::syntax_error::QuerySyntaxError;

type BuilderResult<T> = Result<T, QuerySyntaxError>;

/// The name of the only selector.
const SELECTOR_NAME: &str = "a";
/// The number of hits returned if no limit is given, as in AEM.
const DEFAULT_LIMIT: u64 = 10;

/// A query parsed from a map of predicates.
#[derive(Debug, Clone, PartialEq)]
pub struct BuilderQuery {
    /// The query, without limit and offset.
    pub query: ContentQuery,
    /// The maximum number of hits to return; `None` for all.
    pub limit: Option<u64>,
    /// The number of hits to skip.
    pub offset: u64,
    /// The number of hits up to which the total is counted, if a full count is not wanted: `p.guessTotal`.
    pub guess_total: Option<u64>,
    /// The format of each hit: `simple`, `full` or `selective`.
    pub hit_format: String,
    /// The properties that the `selective` format returns.
    pub hit_properties: Vec<String>,
    /// The depth of the `full` format: 0 for the node alone.
    pub node_depth: u32,
    /// True if facet values are counted.
    pub count_facets: bool,
}

impl BuilderQuery {
    /// Parses a map of predicates. Relative dates are resolved against `now`.
    ///
    /// # Errors
    /// [`QuerySyntaxError`] that names the parameter; its column is always 1.
    pub fn parse(parameters: &BTreeMap<String, String>, now: JcrDate) -> BuilderResult<Self> {
        let root = PredicateGroup::from_parameters(parameters)?;
        let node_type = root.single_type();
        let reader = PredicateTranslator { now, skips_type: node_type.is_some() };
        let constraint = reader.translate_group(&root)?;
        let mut columns = vec![selector_column(QueryColumnContent::All)];
        let facets = is_true_text(parameters.get("p.facets"));
        if facets {
            columns.extend(
                root.facet_properties()
                    .map(|name| selector_column(QueryColumnContent::Facet(name))),
            );
        }
        if is_true_text(parameters.get("p.excerpt")) {
            columns.push(selector_column(QueryColumnContent::Excerpt(None)));
        }
        let node_type = node_type.unwrap_or("nt:base").to_owned();
        let selector = QuerySelector { node_type, name: SELECTOR_NAME.to_owned() };
        let part = SelectStatement { columns, selector, joins: Vec::new(), constraint };
        let orderings = read_orderings(&root)?;
        let query = ContentQuery {
            selects: vec![part],
            union_all: false,
            orderings,
            options: QueryOptions::default(),
        };
        let number =
            |name: &str| parameters.get(name).map(|text| parse_integer(name, text)).transpose();
        let guess_total = match parameters.get("p.guessTotal").map(String::as_str) {
            None | Some("false" | "") => None,
            Some("true") => Some(0),
            Some(text) => Some(parse_integer("p.guessTotal", text)?.max(0).unsigned_abs()),
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
            hit_format: parameters.get("p.hits").cloned().unwrap_or_else(|| "simple".to_owned()),
            hit_properties: parameters.get("p.properties").map(list).unwrap_or_default(),
            node_depth: match number("p.nodedepth")? {
                None => 0,
                // In AEM, 0 requests all descendants.
                Some(0) => u32::MAX,
                Some(depth) => u32::try_from(depth).unwrap_or(0),
            },
            count_facets: facets,
        })
    }
}

struct PredicateTranslator {
    now: JcrDate,
    /// True if the only `type` predicate became the selector's type.
    skips_type: bool,
}

impl PredicateTranslator {
    fn translate_group(&self, group: &PredicateGroup) -> BuilderResult<Option<QueryConstraint>> {
        let mut parts = Vec::new();
        for predicate in &group.predicates {
            parts.extend(self.translate_predicate(predicate)?);
        }
        for inner in &group.groups {
            parts.extend(self.translate_group(inner)?);
        }
        let joined = match parts.len() {
            0 => return Ok(None),
            1 => parts.remove(0),
            _ if group.is_disjunction => QueryConstraint::Or(parts),
            _ => QueryConstraint::And(parts),
        };
        Ok(Some(if group.is_negated { QueryConstraint::Not(Box::new(joined)) } else { joined }))
    }

    fn translate_predicate(
        &self,
        predicate: &BuilderPredicate,
    ) -> BuilderResult<Option<QueryConstraint>> {
        let value = predicate.value("");
        Ok(Some(match &*predicate.kind {
            "path" => match path_constraint(predicate)? {
                Some(constraint) => constraint,
                None => return Ok(None),
            },
            "type" if self.skips_type => return Ok(None),
            "type" => exact_type_constraint(&value),
            "nodename" => {
                let operand = QueryOperand::Name(SELECTOR_NAME.to_owned());
                QueryConstraint::Compare {
                    operand,
                    operator: ComparisonOperator::Like,
                    value: QueryLiteral::from_text(glob_to_like(&value)),
                }
            }
            "property" => property_constraint(predicate)?,
            "fulltext" => full_text_constraint(predicate, &value)?,
            "daterange" => range_constraint(predicate, &|text| parse_date(predicate, text))?,
            "relativedaterange" => {
                range_constraint(predicate, &|text| parse_relative_date(predicate, text, self.now))?
            }
            "rangeproperty" => {
                let is_decimal = is_true_text(predicate.parameters.get("decimal"));
                range_constraint(predicate, &|text| parse_number(predicate, text, is_decimal))?
            }
            "boolproperty" => bool_property_constraint(predicate, &value)?,
            "tagid" => tag_constraint(predicate)?,
            predicate_name => {
                let predicate_names = "path, type, nodename, property, fulltext, daterange, relativedaterange, rangeproperty, boolproperty, tagid, group";
                return Err(builder_error(&format!(
                    "there is no predicate `{predicate_name}`; use one of {predicate_names}"
                )));
            }
        }))
    }
}

fn selector_column(content: QueryColumnContent) -> QueryColumn {
    QueryColumn { selector: SELECTOR_NAME.to_owned(), content, alias: None }
}

fn builder_error(message: &str) -> QuerySyntaxError {
    QuerySyntaxError::new(1, message)
}

fn is_true_text(text: Option<&String>) -> bool {
    text.is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

fn parse_integer(name: &str, text: &str) -> BuilderResult<i64> {
    text.trim()
        .parse()
        .map_err(|_| builder_error(&format!("`{name}` must be a whole number, not `{text}`")))
}

fn property_operand(name: &str) -> QueryOperand {
    // `jcr:content/@jcr:title` and `@jcr:title` are equivalent spellings.
    crate::sql2_constraint::operand_for_name(SELECTOR_NAME.to_owned(), name.replace('@', ""))
}

fn path_constraint(predicate: &BuilderPredicate) -> BuilderResult<Option<QueryConstraint>> {
    let text = predicate.value("");
    let trimmed = if text.len() > 1 { text.trim_end_matches('/') } else { &*text };
    if trimmed.is_empty() {
        return Ok(None);
    }
    let path = NodePath::new(trimmed)
        .map_err(|error| builder_error(&format!("`{}`: {error}", predicate.name)))?;
    let selector = SELECTOR_NAME.to_owned();
    if is_true_text(predicate.parameters.get("exact")) {
        return Ok(Some(QueryConstraint::Same { selector, path }));
    }
    let below = if is_true_text(predicate.parameters.get("flat")) {
        QueryConstraint::Child { selector: selector.clone(), path: path.clone() }
    } else if path.is_root() {
        return Ok(None);
    } else {
        QueryConstraint::Descendant { selector: selector.clone(), path: path.clone() }
    };
    if is_true_text(predicate.parameters.get("self")) {
        return Ok(Some(QueryConstraint::Or(vec![
            QueryConstraint::Same { selector, path },
            below,
        ])));
    }
    Ok(Some(below))
}

/// Returns the constraint for a type inside a group: the exact type, without the types derived from it.
fn exact_type_constraint(value: &str) -> QueryConstraint {
    let compare = |name: &str| QueryConstraint::Compare {
        operand: property_operand(name),
        operator: ComparisonOperator::Equal,
        value: QueryLiteral::from_text(value),
    };
    QueryConstraint::Or(vec![compare("jcr:primaryType"), compare("jcr:mixinTypes")])
}

/// Converts `*` and `?` to the wildcards of `LIKE`.
fn glob_to_like(pattern: &str) -> String {
    let mut like = String::with_capacity(pattern.len());
    for character in pattern.chars() {
        match character {
            '*' => like.push('%'),
            '?' => like.push('_'),
            '%' | '_' | '\\' => like.extend(['\\', character]),
            code_point => like.push(code_point),
        }
    }
    like
}

/// Returns the name of a property in the notation of SQL-2.
fn property_name(predicate: &BuilderPredicate, name: &str) -> BuilderResult<String> {
    let name = name.replace('@', "");
    if name.is_empty() {
        return Err(builder_error(&format!("`{}` needs the name of a property", predicate.name)));
    }
    Ok(name)
}

fn property_constraint(predicate: &BuilderPredicate) -> BuilderResult<QueryConstraint> {
    let name = property_name(predicate, &predicate.value(""))?;
    let depth = match predicate.parameters.get("depth") {
        Some(text) => parse_integer(&format!("{}.depth", predicate.name), text)?.clamp(0, 10),
        None => 0,
    };
    let names =
        (0..=depth).map(|level| format!("{}{name}", "*/".repeat(level.unsigned_abs() as usize)));
    let mut levels = names
        .map(|name| single_property_constraint(predicate, &name))
        .collect::<BuilderResult<Vec<_>>>()?;
    if levels.len() == 1 { Ok(levels.remove(0)) } else { Ok(QueryConstraint::Or(levels)) }
}

fn single_property_constraint(
    predicate: &BuilderPredicate,
    name: &str,
) -> BuilderResult<QueryConstraint> {
    let exists = || QueryConstraint::Exists {
        selector: SELECTOR_NAME.to_owned(),
        property: name.to_owned(),
    };
    let operation = predicate.parameters.get("operation").map_or("equals", String::as_str);
    let (operator, is_denied) = match operation {
        "equals" => (ComparisonOperator::Equal, false),
        "unequals" => (ComparisonOperator::NotEqual, false),
        "like" => (ComparisonOperator::Like, false),
        "exists" | "not" => {
            let is_wanted = (operation == "exists") != (predicate.value("value") == "false");
            return Ok(if is_wanted { exists() } else { QueryConstraint::Not(Box::new(exists())) });
        }
        unknown_operation => {
            let message = format!(
                "`{}.operation` cannot be `{unknown_operation}`; use equals, unequals, like, not or exists",
                predicate.name
            );
            return Err(builder_error(&message));
        }
    };
    let values = predicate.values("value");
    if values.is_empty() {
        return Ok(exists());
    }
    let compare = |value: &String| QueryConstraint::Compare {
        operand: property_operand(name),
        operator,
        value: QueryLiteral::from_text(value.clone()),
    };
    let mut parts: Vec<QueryConstraint> = values.iter().map(compare).collect();
    let joined = match parts.len() {
        1 => parts.remove(0),
        _ if is_true_text(predicate.parameters.get("and")) => QueryConstraint::And(parts),
        _ => QueryConstraint::Or(parts),
    };
    Ok(if is_denied { QueryConstraint::Not(Box::new(joined)) } else { joined })
}

fn full_text_constraint(
    predicate: &BuilderPredicate,
    value: &str,
) -> BuilderResult<QueryConstraint> {
    crate::FullTextExpression::parse(value)
        .map_err(|error| builder_error(&format!("`{}`: {error}", predicate.name)))?;
    let property = predicate.parameters.get("relPath").map(|path| path.replace('@', ""));
    let property = property.filter(|path| !path.is_empty() && path != ".");
    Ok(QueryConstraint::Contains {
        selector: SELECTOR_NAME.to_owned(),
        property,
        text: QueryLiteral::from_text(value),
    })
}

fn range_constraint(
    predicate: &BuilderPredicate,
    read: &dyn Fn(&str) -> BuilderResult<Value>,
) -> BuilderResult<QueryConstraint> {
    let name = predicate.value("property");
    if name.is_empty() {
        return Err(builder_error(&format!("`{}.property` is missing", predicate.name)));
    }
    let name = property_name(predicate, &name)?;
    let mut parts = Vec::new();
    // Both bounds are exclusive unless given otherwise, as in AEM.
    let bounds = [("lowerBound", "lowerOperation", ">"), ("upperBound", "upperOperation", "<")];
    for (bound, operation, default) in bounds {
        let Some(text) = predicate.parameters.get(bound).filter(|text| !text.is_empty()) else {
            continue;
        };
        let operation = predicate.parameters.get(operation).map_or(default, String::as_str);
        let operator = match operation {
            ">" => ComparisonOperator::Greater,
            ">=" => ComparisonOperator::GreaterOrEqual,
            "<" => ComparisonOperator::Less,
            "<=" => ComparisonOperator::LessOrEqual,
            bound_text => {
                let message = format!(
                    "`{}`: `{bound_text}` is not a comparison operator; use >, >=, < or <=",
                    predicate.name
                );
                return Err(builder_error(&message));
            }
        };
        let value = QueryLiteral::Value(read(text)?);
        parts.push(QueryConstraint::Compare { operand: property_operand(&name), operator, value });
    }
    let exists = QueryConstraint::Exists { selector: SELECTOR_NAME.to_owned(), property: name };
    Ok(QueryConstraint::conjunction(parts).unwrap_or(exists))
}

fn parse_date(predicate: &BuilderPredicate, text: &str) -> BuilderResult<Value> {
    // AEM also accepts milliseconds since 1970.
    if let Ok(millis) = text.parse() {
        return Ok(Value::Date(JcrDate { millis, offset_minutes: 0 }));
    }
    let date = JcrDate::parse_lenient(text)
        .map_err(|_| builder_error(&format!("`{}`: `{text}` is not a date", predicate.name)))?;
    Ok(Value::Date(date))
}

/// Parses `-1y 2M -3w 4d -5h 6m -7s` or milliseconds, relative to now.
fn parse_relative_date(
    predicate: &BuilderPredicate,
    text: &str,
    now: JcrDate,
) -> BuilderResult<Value> {
    let bad = || {
        builder_error(&format!(
            "`{}`: `{text}` is not a relative date such as `-1w` or `2d`",
            predicate.name
        ))
    };
    let mut millis = now.millis;
    for part in text.split_whitespace() {
        let unit_at =
            part.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(part.len());
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
    Ok(Value::Date(JcrDate { millis, offset_minutes: now.offset_minutes }))
}

fn parse_number(
    predicate: &BuilderPredicate,
    text: &str,
    is_decimal: bool,
) -> BuilderResult<Value> {
    let bad = || builder_error(&format!("`{}`: `{text}` is not a number", predicate.name));
    match text.trim().parse() {
        Ok(number) if !is_decimal => Ok(Value::Long(number)),
        _ => Ok(Value::Double(text.trim().parse().map_err(|_| bad())?)),
    }
}

fn bool_property_constraint(
    predicate: &BuilderPredicate,
    name: &str,
) -> BuilderResult<QueryConstraint> {
    let name = property_name(predicate, name)?;
    let is_wanted = predicate.parameters.get("value").is_none_or(|value| value != "false");
    let truth = QueryConstraint::Compare {
        operand: property_operand(&name),
        operator: ComparisonOperator::Equal,
        value: QueryLiteral::Value(Value::Boolean(true)),
    };
    Ok(if is_wanted { truth } else { QueryConstraint::Not(Box::new(truth)) })
}

fn tag_constraint(predicate: &BuilderPredicate) -> BuilderResult<QueryConstraint> {
    let mut tags = predicate.values("");
    tags.extend(predicate.values("tagid"));
    let name = match predicate.value("property") {
        name if name.is_empty() => "cq:tags".to_owned(),
        name => property_name(predicate, &name)?,
    };
    let compare = |tag: &String| QueryConstraint::Compare {
        operand: property_operand(&name),
        operator: ComparisonOperator::Equal,
        value: QueryLiteral::from_text(tag.clone()),
    };
    let mut parts: Vec<QueryConstraint> = tags.iter().map(compare).collect();
    match parts.len() {
        0 => Err(builder_error(&format!("`{}` needs a tag", predicate.name))),
        1 => Ok(parts.remove(0)),
        _ if is_true_text(predicate.parameters.get("and")) => Ok(QueryConstraint::And(parts)),
        _ => Ok(QueryConstraint::Or(parts)),
    }
}

fn read_orderings(root: &PredicateGroup) -> BuilderResult<Vec<QueryOrdering>> {
    let mut orderings = Vec::new();
    for predicate in root.predicates_of_kind("orderby") {
        let by = predicate.value("");
        let named = root.predicates.iter().find(|candidate| candidate.name == by);
        let operand = match (&*by, named) {
            ("", _) => continue,
            ("path", _) => QueryOperand::Path(SELECTOR_NAME.to_owned()),
            ("nodename", _) => QueryOperand::Name(SELECTOR_NAME.to_owned()),
            (_, Some(named)) => property_operand(&property_name(named, &named.value(""))?),
            (name, None) => property_operand(&property_name(predicate, name)?),
        };
        let ignores_case = predicate.value("case") == "ignore";
        let operand = if ignores_case { QueryOperand::Lower(Box::new(operand)) } else { operand };
        let descending = predicate.value("sort").eq_ignore_ascii_case("desc");
        orderings.push(QueryOrdering { operand, is_descending: descending });
    }
    Ok(orderings)
}
