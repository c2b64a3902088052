//! The node types that are known, each with what it inherits worked out.
//!
//! In: definitions. Out: look-ups by name, and the effective type of a node.
//!
//! Invariants
//! * Every supertype and every type that a definition names is known, and no type is its own supertype.
//! * What a type declares comes before what it inherits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use super::cnd::parse_cnd;
use super::constraint::Constraint;
use super::definition::{ChildDefinition, PropertyDefinition, RESIDUAL, TypeDefinition};
use super::effective::EffectiveType;
use super::lexer::Diagnostic;
use crate::{Value, ValueType};

/// Longer lines of supertypes are refused, so that following one cannot exhaust a thread's stack.
const MAX_LEVELS: usize = 100;

/// The standard set.
const STANDARD: &str = include_str!("standard.cnd");

/// All node types of one state of the content.
#[derive(Debug, Clone)]
pub struct NodeTypes {
    types: BTreeMap<String, Arc<NodeType>>,
    /// The names of those that are not of the standard set, or differ from it.
    own: BTreeSet<String>,
}

/// A node type with all that it inherits.
#[derive(Debug)]
pub struct NodeType {
    /// Its own definition.
    pub definition: TypeDefinition,
    /// Its own name and those of all its supertypes.
    pub(super) names: HashSet<String>,
    pub(super) properties: Definitions<PropertyRule>,
    pub(super) children: Definitions<ChildDefinition>,
}

/// A property's definition with its constraints read.
#[derive(Debug, Clone)]
pub(super) struct PropertyRule {
    pub(super) definition: PropertyDefinition,
    pub(super) constraints: Vec<Constraint>,
}

/// The definitions of one sort of items, declared and inherited.
#[derive(Debug)]
pub(super) struct Definitions<T> {
    pub(super) named: HashMap<String, Vec<Arc<T>>>,
    pub(super) residual: Vec<Arc<T>>,
}

impl<T> Default for Definitions<T> {
    fn default() -> Self {
        Self { named: HashMap::new(), residual: Vec::new() }
    }
}

impl<T> Definitions<T> {
    fn of(&self, name: &str) -> &[Arc<T>] {
        match name {
            RESIDUAL => &self.residual,
            name => self.named.get(name).map_or(&[], Vec::as_slice),
        }
    }

    /// Adds a definition unless one that says the same is there.
    fn add(&mut self, name: &str, definition: &Arc<T>, is_same: impl Fn(&T, &T) -> bool) {
        if self.of(name).iter().any(|one| is_same(one, definition)) {
            return;
        }
        match name {
            RESIDUAL => self.residual.push(definition.clone()),
            name => self.named.entry(name.to_owned()).or_default().push(definition.clone()),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<T>> {
        self.named.values().flatten().chain(&self.residual)
    }
}

impl NodeType {
    /// Tells whether the type is the named one or comes from it.
    #[must_use]
    pub fn is(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

impl NodeTypes {
    /// Returns the standard set, which every repository has.
    #[must_use]
    pub fn standard() -> Arc<Self> {
        static TYPES: LazyLock<Arc<NodeTypes>> = LazyLock::new(|| {
            let cnd = parse_cnd(STANDARD);
            let definitions = cnd.types.into_iter().map(|one| (one.name.clone(), one)).collect();
            // A test reads the standard set and finds nothing wrong with it.
            let (types, _) = resolve(&definitions);
            Arc::new(NodeTypes { types, own: BTreeSet::new() })
        });
        TYPES.clone()
    }

    /// Adds definitions to these, or puts them in the place of those with the same names.
    ///
    /// # Errors
    /// Everything that is wrong with them: supertypes that are not known, circles, constraints that cannot be read.
    pub fn with(&self, definitions: &[TypeDefinition]) -> Result<Self, Vec<Diagnostic>> {
        let mut all: BTreeMap<String, TypeDefinition> =
            self.types.iter().map(|(name, one)| (name.clone(), one.definition.clone())).collect();
        let mut own = self.own.clone();
        for definition in definitions {
            let standard = Self::standard();
            let is_standard = standard
                .types
                .get(&definition.name)
                .is_some_and(|standard| standard.definition == *definition);
            if is_standard {
                own.remove(&definition.name);
            } else {
                own.insert(definition.name.clone());
            }
            all.insert(definition.name.clone(), definition.clone());
        }
        Self::of(&all, own)
    }

    /// Removes types. Those of the standard set go back to what they are there.
    ///
    /// # Errors
    /// If other types need one of them.
    pub fn without(&self, names: &[&str]) -> Result<Self, Vec<Diagnostic>> {
        let mut all: BTreeMap<String, TypeDefinition> =
            self.types.iter().map(|(name, one)| (name.clone(), one.definition.clone())).collect();
        let mut own = self.own.clone();
        for name in names {
            own.remove(*name);
            match Self::standard().types.get(*name) {
                Some(standard) => all.insert((*name).to_owned(), standard.definition.clone()),
                None => all.remove(*name),
            };
        }
        Self::of(&all, own)
    }

    fn of(
        all: &BTreeMap<String, TypeDefinition>,
        own: BTreeSet<String>,
    ) -> Result<Self, Vec<Diagnostic>> {
        let (types, diagnostics) = resolve(all);
        if diagnostics.is_empty() { Ok(Self { types, own }) } else { Err(diagnostics) }
    }

    /// Finds a type.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<NodeType>> {
        self.types.get(name)
    }

    /// Returns all types, sorted by name.
    pub fn all(&self) -> impl Iterator<Item = &NodeType> {
        self.types.values().map(|one| &**one)
    }

    /// Returns the definitions that were registered here, sorted by name.
    pub fn own(&self) -> impl Iterator<Item = &TypeDefinition> {
        self.own.iter().filter_map(|name| self.types.get(name)).map(|one| &one.definition)
    }

    /// Tells whether a type is another one or comes from it.
    #[must_use]
    pub fn is_type(&self, name: &str, of: &str) -> bool {
        name == of || self.find(name).is_some_and(|one| one.is(of))
    }

    /// Returns the names of a type and of all that come from it, sorted.
    pub fn subtypes<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.types.iter().filter(move |(_, one)| one.is(of));
        names.map(|(name, _)| name.as_str())
    }

    /// Returns what a node with these types must obey; types that are not known, or not of the right kind, are left
    /// out.
    #[must_use]
    pub fn effective<'a>(
        &self,
        primary: &str,
        mixins: impl IntoIterator<Item = &'a str>,
    ) -> EffectiveType {
        let of_kind = |name: &str, is_mixin: bool| {
            self.find(name).filter(|one| one.definition.flags.is_mixin == is_mixin).cloned()
        };
        let primary = of_kind(primary, false);
        let mixins = mixins.into_iter().filter_map(|name| of_kind(name, true));
        EffectiveType::new(primary.into_iter().chain(mixins).collect())
    }
}

/// Works out what every type inherits; with everything that is wrong. Types that are wrong are left out.
fn resolve(
    all: &BTreeMap<String, TypeDefinition>,
) -> (BTreeMap<String, Arc<NodeType>>, Vec<Diagnostic>) {
    let mut resolver = Resolver { all, done: BTreeMap::new(), diagnostics: Vec::new() };
    for name in all.keys() {
        resolver.resolve(name, &mut Vec::new());
    }
    (resolver.done, resolver.diagnostics)
}

struct Resolver<'a> {
    all: &'a BTreeMap<String, TypeDefinition>,
    done: BTreeMap<String, Arc<NodeType>>,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Resolver<'a> {
    fn refuse(&mut self, message: String) {
        let diagnostic = Diagnostic { line: 0, column: 0, message };
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    fn resolve(&mut self, name: &'a str, above: &mut Vec<&'a str>) -> Option<Arc<NodeType>> {
        if let Some(done) = self.done.get(name) {
            return Some(done.clone());
        }
        if above.contains(&name) {
            self.refuse(format!("`{name}` is its own supertype: {}", above.join(" > ")));
            return None;
        }
        if above.len() >= MAX_LEVELS {
            self.refuse(format!("`{name}` is more than {MAX_LEVELS} levels above another type"));
            return None;
        }
        let definition = self.all.get(name)?;
        above.push(name);
        let resolved = self.inherit(definition, above);
        above.pop();
        let resolved = Arc::new(resolved?);
        self.done.insert(name.to_owned(), resolved.clone());
        Some(resolved)
    }

    fn inherit(
        &mut self,
        definition: &'a TypeDefinition,
        above: &mut Vec<&'a str>,
    ) -> Option<NodeType> {
        let name = &definition.name;
        let mut resolved = NodeType {
            definition: definition.clone(),
            names: HashSet::from([name.clone()]),
            properties: Definitions::default(),
            children: Definitions::default(),
        };
        for property in &definition.properties {
            let rule = Arc::new(self.rule(name, property)?);
            resolved.properties.add(&property.name, &rule, |one, other| {
                one.definition.value_type == other.definition.value_type
                    && one.definition.is_multiple == other.definition.is_multiple
            });
        }
        for child in &definition.children {
            self.check_child(name, child);
            let child = Arc::new(child.clone());
            resolved.children.add(&child.name, &child, has_same_types);
        }
        let all = self.all;
        let is_mixin = |name: &str| all.get(name).is_some_and(|one| one.flags.is_mixin);
        for supertype in definition.all_supertypes(is_mixin) {
            if !all.contains_key(supertype) {
                self.refuse(format!("the supertype `{supertype}` of `{name}` is not known"));
                return None;
            }
            if definition.flags.is_mixin && !is_mixin(supertype) {
                self.refuse(format!(
                    "the mixin `{name}` cannot come from `{supertype}`, a primary type"
                ));
                return None;
            }
            let supertype = self.resolve(supertype, above)?;
            resolved.names.extend(supertype.names.iter().cloned());
            for rule in supertype.properties.all() {
                resolved.properties.add(&rule.definition.name, rule, |one, other| {
                    one.definition.value_type == other.definition.value_type
                        && one.definition.is_multiple == other.definition.is_multiple
                });
            }
            for child in supertype.children.all() {
                resolved.children.add(&child.name, child, has_same_types);
            }
        }
        Some(resolved)
    }

    fn rule(&mut self, owner: &str, property: &PropertyDefinition) -> Option<PropertyRule> {
        let name = &property.name;
        let mut constraints = Vec::new();
        for text in &property.constraints {
            match Constraint::parse(property.value_type, text) {
                Ok(constraint) => constraints.push(constraint),
                Err(reason) => {
                    self.refuse(format!("the constraint of `{name}` of `{owner}`: {reason}"));
                    return None;
                }
            }
        }
        let value_type = property.value_type.unwrap_or(ValueType::String);
        for text in &property.default_values {
            if Value::parse(value_type, text).is_err() {
                let wanted = value_type.name();
                self.refuse(format!(
                    "the default `{text}` of `{name}` of `{owner}` is no {wanted}"
                ));
                return None;
            }
        }
        if property.flags.is_autocreated && name == RESIDUAL {
            self.refuse(format!("`{owner}` creates properties without a name; name them"));
            return None;
        }
        Some(PropertyRule { definition: property.clone(), constraints })
    }

    fn check_child(&mut self, owner: &str, child: &ChildDefinition) {
        for name in child.required_types.iter().chain(&child.default_type) {
            if !self.all.contains_key(name) {
                let child = &child.name;
                self.refuse(format!(
                    "the type `{name}` of the child `{child}` of `{owner}` is not known"
                ));
            }
        }
        let flags = child.flags;
        if flags.is_autocreated && (child.name == RESIDUAL || child.default_type.is_none()) {
            let child = &child.name;
            self.refuse(format!("the child `{child}` of `{owner}` cannot be created: it needs a name and a default type"));
        }
    }
}

fn has_same_types(one: &ChildDefinition, other: &ChildDefinition) -> bool {
    one.required().eq(other.required())
}

impl NodeTypes {
    /// Tells whether a type with this name is a mixin.
    #[must_use]
    pub fn is_mixin(&self, name: &str) -> bool {
        self.find(name).is_some_and(|one| one.definition.flags.is_mixin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_set_is_sound() {
        let cnd = parse_cnd(STANDARD);
        assert_eq!(cnd.diagnostics, []);
        let count = cnd.types.len();
        let definitions = cnd.types.into_iter().map(|one| (one.name.clone(), one)).collect();
        let (types, diagnostics) = resolve(&definitions);
        assert_eq!(diagnostics, []);
        assert_eq!(types.len(), count);
        let namespaces = super::super::Namespaces::default();
        for (prefix, uri) in &cnd.namespaces {
            assert_eq!(namespaces.uri(prefix), Some(uri.as_str()));
        }
    }
}
