//! The registry of node types, each with its inherited definitions resolved.
//!
//! In: definitions. Out: look-ups by name.
//!
//! Invariants
//! * Every supertype and every type that a definition names exists, and no type is its own supertype.
//! * Declared definitions precede inherited ones.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use super::cnd_lexer::CndDiagnostic;
use super::cnd_parser::parse_cnd;
use super::type_definition::{
    ChildDefinition, NodeTypeDefinition, PropertyDefinition, RESIDUAL_NAME,
};
use super::value_constraint::ValueConstraint;
use crate::{Value, ValueType};

/// Longer chains of supertypes are refused, so that recursion cannot exhaust a thread's stack.
const MAX_SUPERTYPE_DEPTH: usize = 100;

/// The standard set.
const STANDARD_CND: &str = include_str!("standard.cnd");

/// All node types of one state of the content.
#[derive(Debug, Clone)]
pub struct NodeTypes {
    types: BTreeMap<String, Arc<NodeType>>,
    /// The names of the types that are not in the standard set or differ from it.
    custom_names: BTreeSet<String>,
}

/// A node type with everything it inherits.
#[derive(Debug)]
pub struct NodeType {
    /// Its own definition.
    pub definition: NodeTypeDefinition,
    /// Its own name and the names of all its supertypes.
    type_names: HashSet<String>,
    pub(super) properties: ItemDefinitions<PropertyRule>,
    pub(super) children: ItemDefinitions<ChildDefinition>,
}

/// A property definition with its parsed constraints.
#[derive(Debug, Clone)]
pub(super) struct PropertyRule {
    pub(super) definition: PropertyDefinition,
    pub(super) constraints: Vec<ValueConstraint>,
}

/// The definitions of one kind of item, declared and inherited.
#[derive(Debug)]
pub(super) struct ItemDefinitions<T> {
    pub(super) by_name: HashMap<String, Vec<Arc<T>>>,
    pub(super) residual: Vec<Arc<T>>,
}

impl<T> Default for ItemDefinitions<T> {
    fn default() -> Self {
        Self { by_name: HashMap::new(), residual: Vec::new() }
    }
}

impl<T> ItemDefinitions<T> {
    fn for_name(&self, name: &str) -> &[Arc<T>] {
        match name {
            RESIDUAL_NAME => &self.residual,
            name => self.by_name.get(name).map_or(&[], Vec::as_slice),
        }
    }

    /// Adds a definition unless an equal one exists.
    fn add(&mut self, name: &str, definition: &Arc<T>, is_same: impl Fn(&T, &T) -> bool) {
        if self.for_name(name).iter().any(|namesake| is_same(namesake, definition)) {
            return;
        }
        match name {
            RESIDUAL_NAME => self.residual.push(definition.clone()),
            name => self.by_name.entry(name.to_owned()).or_default().push(definition.clone()),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.by_name.values().flatten().chain(&self.residual)
    }
}

impl NodeType {
    /// Returns true if the type is the named one or inherits from it.
    #[must_use]
    pub fn is_of_type(&self, name: &str) -> bool {
        self.type_names.contains(name)
    }
}

impl NodeTypes {
    /// Returns the standard set of every repository.
    #[must_use]
    pub fn standard() -> Arc<Self> {
        static TYPES: LazyLock<Arc<NodeTypes>> = LazyLock::new(|| {
            let cnd = parse_cnd(STANDARD_CND);
            let definitions = cnd
                .types
                .into_iter()
                .map(|definition| (definition.name.clone(), definition))
                .collect();
            // A test ensures that the standard set has no faults.
            let (types, _) = resolve_types(&definitions);
            Arc::new(NodeTypes { types, custom_names: BTreeSet::new() })
        });
        TYPES.clone()
    }

    /// Adds definitions, or replaces those with the same names.
    ///
    /// # Errors
    /// All faults: unknown supertypes, cycles, invalid constraints.
    pub fn with_definitions(
        &self,
        definitions: &[NodeTypeDefinition],
    ) -> Result<Self, Vec<CndDiagnostic>> {
        let mut all: BTreeMap<String, NodeTypeDefinition> = self
            .types
            .iter()
            .map(|(name, node_type)| (name.clone(), node_type.definition.clone()))
            .collect();
        let mut own = self.custom_names.clone();
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
        Self::from_definitions(&all, own)
    }

    /// Removes types. Those of the standard set are reset to their standard definition.
    ///
    /// # Errors
    /// If other types depend on one of them.
    pub fn without_types(&self, names: &[&str]) -> Result<Self, Vec<CndDiagnostic>> {
        let mut all: BTreeMap<String, NodeTypeDefinition> = self
            .types
            .iter()
            .map(|(name, node_type)| (name.clone(), node_type.definition.clone()))
            .collect();
        let mut own = self.custom_names.clone();
        for name in names {
            own.remove(*name);
            match Self::standard().types.get(*name) {
                Some(standard) => all.insert((*name).to_owned(), standard.definition.clone()),
                None => all.remove(*name),
            };
        }
        Self::from_definitions(&all, own)
    }

    fn from_definitions(
        all: &BTreeMap<String, NodeTypeDefinition>,
        own: BTreeSet<String>,
    ) -> Result<Self, Vec<CndDiagnostic>> {
        let (types, diagnostics) = resolve_types(all);
        if diagnostics.is_empty() {
            Ok(Self { types, custom_names: own })
        } else {
            Err(diagnostics)
        }
    }

    /// Finds a type.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Arc<NodeType>> {
        self.types.get(name)
    }

    /// Returns all types, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &NodeType> {
        self.types.values().map(|node_type| &**node_type)
    }

    /// Returns the registered definitions, sorted by name.
    pub fn custom_definitions(&self) -> impl Iterator<Item = &NodeTypeDefinition> {
        self.custom_names
            .iter()
            .filter_map(|name| self.types.get(name))
            .map(|node_type| &node_type.definition)
    }

    /// Returns true if a type is another one or inherits from it.
    #[must_use]
    pub fn is_type(&self, name: &str, of: &str) -> bool {
        name == of || self.find(name).is_some_and(|node_type| node_type.is_of_type(of))
    }

    /// Returns the names of a type and of all types that inherit from it, sorted.
    pub fn subtypes<'a>(&'a self, of: &'a str) -> impl Iterator<Item = &'a str> {
        let names = self.types.iter().filter(move |(_, node_type)| node_type.is_of_type(of));
        names.map(|(name, _)| name.as_str())
    }
}

/// Resolves the inheritance of every type, and returns all faults with it. Faulty types are left out.
fn resolve_types(
    all: &BTreeMap<String, NodeTypeDefinition>,
) -> (BTreeMap<String, Arc<NodeType>>, Vec<CndDiagnostic>) {
    let mut resolver = NodeTypeResolver {
        definitions: all,
        resolved_types: BTreeMap::new(),
        diagnostics: Vec::new(),
    };
    for name in all.keys() {
        resolver.resolve_type(name, &mut Vec::new());
    }
    (resolver.resolved_types, resolver.diagnostics)
}

struct NodeTypeResolver<'a> {
    definitions: &'a BTreeMap<String, NodeTypeDefinition>,
    resolved_types: BTreeMap<String, Arc<NodeType>>,
    diagnostics: Vec<CndDiagnostic>,
}

impl<'a> NodeTypeResolver<'a> {
    fn report_error(&mut self, message: String) {
        let diagnostic = CndDiagnostic { line: 0, column: 0, message };
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    fn resolve_type(&mut self, name: &'a str, above: &mut Vec<&'a str>) -> Option<Arc<NodeType>> {
        if let Some(done) = self.resolved_types.get(name) {
            return Some(done.clone());
        }
        if above.contains(&name) {
            self.report_error(format!("`{name}` is its own supertype: {}", above.join(" > ")));
            return None;
        }
        if above.len() >= MAX_SUPERTYPE_DEPTH {
            self.report_error(format!(
                "`{name}` is more than {MAX_SUPERTYPE_DEPTH} levels above another type"
            ));
            return None;
        }
        let definition = self.definitions.get(name)?;
        above.push(name);
        let resolved = self.inherit_supertypes(definition, above);
        above.pop();
        let resolved = Arc::new(resolved?);
        self.resolved_types.insert(name.to_owned(), resolved.clone());
        Some(resolved)
    }

    fn inherit_supertypes(
        &mut self,
        definition: &'a NodeTypeDefinition,
        above: &mut Vec<&'a str>,
    ) -> Option<NodeType> {
        let name = &definition.name;
        let mut resolved = NodeType {
            definition: definition.clone(),
            type_names: HashSet::from([name.clone()]),
            properties: ItemDefinitions::default(),
            children: ItemDefinitions::default(),
        };
        for property in &definition.properties {
            let rule = Arc::new(self.property_rule(name, property)?);
            resolved.properties.add(&property.name, &rule, |left, right| {
                left.definition.value_type == right.definition.value_type
                    && left.definition.is_multiple == right.definition.is_multiple
            });
        }
        for child in &definition.children {
            self.check_child(name, child);
            let child = Arc::new(child.clone());
            resolved.children.add(&child.name, &child, has_same_types);
        }
        let all = self.definitions;
        let is_mixin =
            |name: &str| all.get(name).is_some_and(|named_type| named_type.flags.is_mixin);
        for supertype in definition.all_supertypes(is_mixin) {
            if !all.contains_key(supertype) {
                self.report_error(format!("the supertype `{supertype}` of `{name}` is not known"));
                return None;
            }
            if definition.flags.is_mixin && !is_mixin(supertype) {
                self.report_error(format!(
                    "the mixin `{name}` cannot extend `{supertype}`, a primary type"
                ));
                return None;
            }
            let supertype = self.resolve_type(supertype, above)?;
            resolved.type_names.extend(supertype.type_names.iter().cloned());
            for rule in supertype.properties.iter() {
                resolved.properties.add(&rule.definition.name, rule, |left, right| {
                    left.definition.value_type == right.definition.value_type
                        && left.definition.is_multiple == right.definition.is_multiple
                });
            }
            for child in supertype.children.iter() {
                resolved.children.add(&child.name, child, has_same_types);
            }
        }
        Some(resolved)
    }

    fn property_rule(
        &mut self,
        owner: &str,
        property: &PropertyDefinition,
    ) -> Option<PropertyRule> {
        let name = &property.name;
        let mut constraints = Vec::new();
        for text in &property.constraints {
            match ValueConstraint::parse(property.value_type, text) {
                Ok(constraint) => constraints.push(constraint),
                Err(reason) => {
                    self.report_error(format!("the constraint of `{name}` of `{owner}`: {reason}"));
                    return None;
                }
            }
        }
        let value_type = property.value_type.unwrap_or(ValueType::String);
        for text in &property.default_values {
            if Value::parse(value_type, text).is_err() {
                let type_name = value_type.name();
                self.report_error(format!(
                    "the default `{text}` of `{name}` of `{owner}` is not a valid {type_name}"
                ));
                return None;
            }
        }
        if property.flags.is_autocreated && name == RESIDUAL_NAME {
            self.report_error(format!(
                "`{owner}` has an autocreated property without a name; give it a name"
            ));
            return None;
        }
        Some(PropertyRule { definition: property.clone(), constraints })
    }

    fn check_child(&mut self, owner: &str, child: &ChildDefinition) {
        for name in child.required_types.iter().chain(&child.default_type) {
            if !self.definitions.contains_key(name) {
                let child = &child.name;
                self.report_error(format!(
                    "the type `{name}` of the child `{child}` of `{owner}` is not known"
                ));
            }
        }
        let flags = child.flags;
        if flags.is_autocreated && (child.name == RESIDUAL_NAME || child.default_type.is_none()) {
            let child = &child.name;
            self.report_error(format!(
                "the child `{child}` of `{owner}` cannot be autocreated: it needs a \
                name and a default type"
            ));
        }
    }
}

fn has_same_types(left: &ChildDefinition, right: &ChildDefinition) -> bool {
    left.effective_required_types().eq(right.effective_required_types())
}

impl NodeTypes {
    /// Returns true if a type with this name is a mixin.
    #[must_use]
    pub fn is_mixin(&self, name: &str) -> bool {
        self.find(name).is_some_and(|node_type| node_type.definition.flags.is_mixin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_set_is_sound() {
        let cnd = parse_cnd(STANDARD_CND);
        assert_eq!(cnd.diagnostics, []);
        let count = cnd.types.len();
        let definitions =
            cnd.types.into_iter().map(|definition| (definition.name.clone(), definition)).collect();
        let (types, diagnostics) = resolve_types(&definitions);
        assert_eq!(diagnostics, []);
        assert_eq!(types.len(), count);
        let namespaces = super::super::NamespaceRegistry::default();
        for (prefix, uri) in &cnd.namespaces {
            assert_eq!(namespaces.uri(prefix), Some(uri.as_str()));
        }
    }
}
