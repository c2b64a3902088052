//! The effective type of a node: its primary type and its mixins together.

use std::fmt;
use std::sync::Arc;

use super::type_definition::{ChildDefinition, PropertyDefinition};
use super::type_registry::{NodeType, NodeTypes, PropertyRule};
use crate::ValueType;

/// The combined rules for a node.
#[derive(Debug, Clone, Default)]
pub struct EffectiveNodeType {
    /// The primary type, then the mixins.
    types: Vec<Arc<NodeType>>,
}

impl NodeTypes {
    /// Returns the effective type of a node with these types; unknown types, and types of the wrong kind, are left out.
    #[must_use]
    pub fn effective_type<'a>(
        &self,
        primary: &str,
        mixins: impl IntoIterator<Item = &'a str>,
    ) -> EffectiveNodeType {
        let of_kind = |name: &str, is_mixin: bool| {
            self.find(name)
                .filter(|node_type| node_type.definition.flags.is_mixin == is_mixin)
                .cloned()
        };
        let primary = of_kind(primary, false);
        let mixins = mixins.into_iter().filter_map(|name| of_kind(name, true));
        EffectiveNodeType::new(primary.into_iter().chain(mixins).collect())
    }
}

impl EffectiveNodeType {
    fn new(types: Vec<Arc<NodeType>>) -> Self {
        Self { types }
    }

    /// Returns true if the node is of a type, by its own types or their supertypes.
    #[must_use]
    pub fn is_of_type(&self, name: &str) -> bool {
        self.types.iter().any(|node_type| node_type.is_of_type(name))
    }

    /// Finds the definition of a property by its name, type and multiplicity.
    #[must_use]
    pub fn property_definition(
        &self,
        name: &str,
        value_type: ValueType,
        is_list: bool,
    ) -> Option<&PropertyDefinition> {
        self.property_rule(name, value_type, is_list).map(|rule| &rule.definition)
    }

    /// Named definitions precede residual ones, and a mandatory definition applies whatever its type.
    pub(super) fn property_rule(
        &self,
        name: &str,
        value_type: ValueType,
        is_list: bool,
    ) -> Option<&PropertyRule> {
        let exact = |rule: &&PropertyRule| {
            rule.definition.value_type == Some(value_type) && rule.definition.is_multiple == is_list
        };
        let open = |rule: &&PropertyRule| {
            rule.definition.value_type.is_none() && rule.definition.is_multiple == is_list
        };
        let named = self.types.iter().find_map(|node_type| {
            let rules = node_type.properties.by_name.get(name)?;
            let rules = || rules.iter().map(|rule| &**rule);
            rules()
                .find(exact)
                .or_else(|| rules().find(open))
                .or_else(|| rules().find(|rule| rule.definition.flags.is_mandatory))
        });
        named.or_else(|| {
            self.types.iter().find_map(|node_type| {
                let rules = || node_type.properties.residual.iter().map(|rule| &**rule);
                rules().find(exact).or_else(|| rules().find(open))
            })
        })
    }

    /// Finds the named definition to whose type a value would have to be converted.
    pub(super) fn named_property_rule(&self, name: &str, is_list: bool) -> Option<&PropertyRule> {
        let rules = self
            .types
            .iter()
            .filter_map(|node_type| node_type.properties.by_name.get(name))
            .flatten();
        rules.map(|rule| &**rule).find(|rule| rule.definition.is_multiple == is_list)
    }

    /// Returns the property definitions of the type.
    pub fn property_definitions(&self) -> impl Iterator<Item = &PropertyDefinition> {
        let rules =
            self.types.iter().flat_map(|node_type| node_type.properties.by_name.values().flatten());
        rules.map(|rule| &rule.definition)
    }

    /// Returns the child definitions of the type.
    pub fn child_definitions(&self) -> impl Iterator<Item = &ChildDefinition> {
        self.types
            .iter()
            .flat_map(|node_type| node_type.children.by_name.values().flatten())
            .map(|definition| &**definition)
    }

    /// Returns true if a property is mandatory.
    #[must_use]
    pub fn is_mandatory_property(&self, name: &str) -> bool {
        let rules = self
            .types
            .iter()
            .filter_map(|node_type| node_type.properties.by_name.get(name))
            .flatten();
        rules.into_iter().any(|rule| rule.definition.flags.is_mandatory)
    }

    /// Returns true if a child is mandatory.
    #[must_use]
    pub fn is_mandatory_child(&self, name: &str) -> bool {
        let children = self
            .types
            .iter()
            .filter_map(|node_type| node_type.children.by_name.get(name))
            .flatten();
        children.into_iter().any(|child| child.flags.is_mandatory)
    }

    /// Returns true if only the repository may set the property.
    #[must_use]
    pub fn is_protected(&self, name: &str, value_type: ValueType, is_list: bool) -> bool {
        let definition = self.property_definition(name, value_type, is_list);
        let definition = definition
            .or_else(|| self.named_property_rule(name, is_list).map(|rule| &rule.definition));
        definition.is_some_and(|definition| definition.flags.is_protected)
    }

    /// Returns true if a child with this name and these types is allowed.
    #[must_use]
    pub fn admits_child(&self, name: &str, child: &Self) -> bool {
        let fits = |definition: &Arc<ChildDefinition>| {
            definition.effective_required_types().all(|required| child.is_of_type(required))
        };
        for node_type in &self.types {
            let Some(definitions) = node_type.children.by_name.get(name) else { continue };
            if definitions.iter().any(fits) {
                return true;
            }
            if definitions.iter().any(|definition| definition.flags.is_mandatory) {
                return false;
            }
        }
        self.types.iter().any(|node_type| node_type.children.residual.iter().any(fits))
    }

    /// Returns true if children may have any name and type.
    #[must_use]
    pub fn admits_all_children(&self) -> bool {
        let is_open = |definition: &Arc<ChildDefinition>| {
            definition
                .effective_required_types()
                .all(|required| required == super::type_definition::BASE_TYPE)
        };
        self.types.iter().any(|node_type| node_type.children.residual.iter().any(is_open))
            && !self.child_definitions().any(|child| child.flags.is_mandatory)
    }

    /// Returns the default primary type of a child.
    #[must_use]
    pub fn default_child_type(&self, name: &str) -> Option<&str> {
        self.types.iter().find_map(|node_type| {
            let named = node_type.children.by_name.get(name).into_iter().flatten();
            named
                .chain(&node_type.children.residual)
                .find_map(|definition| definition.default_type.as_deref())
        })
    }

    /// Returns true if the order of children is content.
    #[must_use]
    pub fn has_orderable_children(&self) -> bool {
        self.types.iter().any(|node_type| node_type.definition.flags.has_orderable_children)
    }
}

impl fmt::Display for EffectiveNodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.types.iter().map(|node_type| node_type.definition.name.as_str()).collect();
        f.write_str(&names.join(", "))
    }
}
