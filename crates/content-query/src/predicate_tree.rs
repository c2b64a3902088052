//! A QueryBuilder map as the tree that its keys describe: groups, predicates, parameters.

use std::collections::BTreeMap;

use crate::syntax_error::QuerySyntaxError;

/// The maximum number of keys of one map, and the maximum nesting depth of groups.
const MAX_PREDICATE_KEYS: usize = 1_000;
const MAX_GROUP_DEPTH: usize = 20;

/// A group of predicates.
#[derive(Debug, Default)]
pub(crate) struct PredicateGroup {
    pub(crate) is_disjunction: bool,
    pub(crate) is_negated: bool,
    pub(crate) predicates: Vec<BuilderPredicate>,
    pub(crate) groups: Vec<PredicateGroup>,
    orderings: Vec<BuilderPredicate>,
    name: String,
}

/// One predicate with its parameters; the parameter with the empty name is the predicate's own value.
#[derive(Debug)]
pub(crate) struct BuilderPredicate {
    /// The name with its number, as in the map.
    pub(crate) name: String,
    /// The name without its number.
    pub(crate) kind: String,
    pub(crate) parameters: BTreeMap<String, String>,
}

impl PredicateGroup {
    pub(crate) fn from_parameters(
        parameters: &BTreeMap<String, String>,
    ) -> Result<Self, QuerySyntaxError> {
        if parameters.len() > MAX_PREDICATE_KEYS {
            return Err(QuerySyntaxError::new(1, "there are more than 1,000 parameters"));
        }
        let mut root = Self::default();
        // Numbers order predicates: `2_orderby` comes before `10_orderby`.
        let mut keys: Vec<(&String, &String)> = parameters.iter().collect();
        keys.sort_by_key(|(key, _)| (predicate_number(key), (*key).clone()));
        for (key, value) in keys {
            root.insert_parameter(key, value, 0)?;
        }
        Ok(root)
    }

    fn insert_parameter(
        &mut self,
        key: &str,
        value: &str,
        depth: usize,
    ) -> Result<(), QuerySyntaxError> {
        if depth > MAX_GROUP_DEPTH {
            return Err(QuerySyntaxError::new(1, "groups are nested deeper than 20 levels"));
        }
        let (name, rest) = key.split_once('.').unwrap_or((key, ""));
        let kind = predicate_kind(name);
        if kind == "p" {
            match rest {
                "or" => self.is_disjunction = value.eq_ignore_ascii_case("true"),
                "not" => self.is_negated = value.eq_ignore_ascii_case("true"),
                _ => {}
            }
            return Ok(());
        }
        if kind == "group" && !rest.is_empty() {
            let at = self.groups.iter().position(|group| group.name == name);
            let at = at.unwrap_or_else(|| {
                self.groups.push(Self { name: name.to_owned(), ..Self::default() });
                self.groups.len() - 1
            });
            let group = self.groups.get_mut(at);
            return group.map_or(Ok(()), |group| group.insert_parameter(rest, value, depth + 1));
        }
        // These parameters occur in every request and are not predicates.
        if matches!(kind, "_charset_" | ":cq_csrf_token" | "_dc" | "savedSearches@Delete") {
            return Ok(());
        }
        let list = if kind == "orderby" { &mut self.orderings } else { &mut self.predicates };
        let at = list.iter().position(|predicate| predicate.name == name);
        let at = at.unwrap_or_else(|| {
            let parameters = BTreeMap::new();
            list.push(BuilderPredicate {
                name: name.to_owned(),
                kind: kind.to_owned(),
                parameters,
            });
            list.len() - 1
        });
        if let Some(predicate) = list.get_mut(at) {
            predicate.parameters.insert(rest.to_owned(), value.to_owned());
        }
        Ok(())
    }

    /// Returns the required type of all rows, if there is exactly one.
    pub(crate) fn single_type(&self) -> Option<&str> {
        let mut types = self.predicates.iter().filter(|predicate| predicate.kind == "type");
        let only = types.next().filter(|_| !self.is_disjunction && !self.is_negated)?;
        match types.next() {
            Some(_) => None,
            None => only.parameters.get("").map(String::as_str).filter(|name| !name.is_empty()),
        }
    }

    /// Returns the properties named by predicates, for which facets are counted.
    pub(crate) fn facet_properties(&self) -> impl Iterator<Item = String> {
        let named = self.predicates.iter().filter(|predicate| predicate.kind == "property");
        named.map(|predicate| predicate.value("").replace('@', ""))
    }

    pub(crate) fn predicates_of_kind(&self, kind: &str) -> impl Iterator<Item = &BuilderPredicate> {
        self.orderings.iter().filter(move |predicate| predicate.kind == kind)
    }
}

impl BuilderPredicate {
    /// Returns the value of a parameter; empty if it is absent.
    pub(crate) fn value(&self, name: &str) -> String {
        self.parameters.get(name).cloned().unwrap_or_default()
    }

    /// Returns the values of `name`, `1_name`, `2_name`, and so on.
    pub(crate) fn values(&self, name: &str) -> Vec<String> {
        let is_one = |key: &str| key == name || (!name.is_empty() && predicate_kind(key) == name);
        let mut numbered_values: Vec<(u64, &String)> = self
            .parameters
            .iter()
            .filter(|(key, _)| is_one(key))
            .map(|(key, value)| (predicate_number(key), value))
            .collect();
        numbered_values.sort_by_key(|(number, _)| *number);
        numbered_values.into_iter().map(|(_, value)| value.clone()).collect()
    }
}

/// Returns a name without its number prefix: `1_property` is a `property`.
fn predicate_kind(name: &str) -> &str {
    match name.split_once('_') {
        Some((number, kind))
            if !number.is_empty() && number.bytes().all(|character| character.is_ascii_digit()) =>
        {
            kind
        }
        _ => name,
    }
}

fn predicate_number(name: &str) -> u64 {
    name.split_once('_').and_then(|(number, _)| number.parse().ok()).unwrap_or(0)
}
