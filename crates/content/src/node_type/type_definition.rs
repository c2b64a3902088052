//! Definitions of node types, following JCR 2.0.

use crate::ValueType;

/// The residual name, which covers all names without a definition of their own.
pub const RESIDUAL_NAME: &str = "*";

/// The rules for nodes of one type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeTypeDefinition {
    /// The name, such as `cq:Page`.
    pub name: String,
    /// The declared supertypes. A primary type without any inherits from `nt:base`.
    pub supertypes: Vec<String>,
    /// The kind of type and its attributes.
    pub flags: NodeTypeFlags,
    /// The name of the primary item of a node of this type, such as `jcr:content`.
    pub primary_item: Option<String>,
    /// The declared properties.
    pub properties: Vec<PropertyDefinition>,
    /// The declared children.
    pub children: Vec<ChildDefinition>,
}

/// The attributes of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTypeFlags {
    /// True if no node can have this type itself.
    pub is_abstract: bool,
    /// True if the type is a mixin, which extends primary types.
    pub is_mixin: bool,
    /// True if the order of children is content.
    pub has_orderable_children: bool,
    /// True if queries can find nodes by this type.
    pub is_queryable: bool,
}

impl Default for NodeTypeFlags {
    fn default() -> Self {
        Self {
            is_abstract: false,
            is_mixin: false,
            has_orderable_children: false,
            is_queryable: true,
        }
    }
}

/// The attributes that properties and children share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemFlags {
    /// True if a node without the item is refused.
    pub is_mandatory: bool,
    /// True if the repository adds the item to a new node.
    pub is_autocreated: bool,
    /// True if only the repository may set the item.
    pub is_protected: bool,
    /// The treatment of the item in a version of its node.
    pub on_parent_version: OnParentVersion,
}

/// The rules for a property.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PropertyDefinition {
    /// The name, or [`RESIDUAL_NAME`].
    pub name: String,
    /// The type of its values; `None` for any type.
    pub value_type: Option<ValueType>,
    /// True if the property holds a list.
    pub is_multiple: bool,
    /// The attributes shared with children.
    pub flags: ItemFlags,
    /// The default values.
    pub default_values: Vec<String>,
    /// Each value must satisfy one of these; an empty list allows all values.
    pub constraints: Vec<String>,
    /// The use of the property in queries.
    pub query_use: PropertyQueryUse,
}

/// The use of a property in queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyQueryUse {
    /// The operators that may compare it.
    pub operators: Vec<AvailableQueryOperator>,
    /// True if full-text search covers it.
    pub is_full_text_searchable: bool,
    /// True if results can be sorted by it.
    pub is_orderable: bool,
}

impl Default for PropertyQueryUse {
    fn default() -> Self {
        Self {
            operators: AvailableQueryOperator::ALL.to_vec(),
            is_full_text_searchable: true,
            is_orderable: true,
        }
    }
}

/// The rules for a child.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChildDefinition {
    /// The name, or [`RESIDUAL_NAME`].
    pub name: String,
    /// The types that the child must have, all of them; an empty list means `nt:base`.
    pub required_types: Vec<String>,
    /// The primary type if none is given.
    pub default_type: Option<String>,
    /// True if several children may have the name. Stored only for interoperability; names are unique in this
    /// repository.
    pub allows_same_names: bool,
    /// The attributes shared with properties.
    pub flags: ItemFlags,
}

/// The treatment of an item when its node is versioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnParentVersion {
    /// The item is copied, with everything below it.
    #[default]
    Copy,
    /// The version refers to the item's own version.
    Version,
    /// The item is initialized anew.
    Initialize,
    /// The item is computed anew.
    Compute,
    /// The item is left out.
    Ignore,
    /// The node cannot be versioned.
    Abort,
}

impl OnParentVersion {
    /// All values.
    pub const ALL: [Self; 6] =
        [Self::Copy, Self::Version, Self::Initialize, Self::Compute, Self::Ignore, Self::Abort];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "COPY",
            Self::Version => "VERSION",
            Self::Initialize => "INITIALIZE",
            Self::Compute => "COMPUTE",
            Self::Ignore => "IGNORE",
            Self::Abort => "ABORT",
        }
    }

    /// Finds a value by name, ignoring case.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|version_action| version_action.name().eq_ignore_ascii_case(name))
    }
}

/// A comparison operator in queries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AvailableQueryOperator {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `LIKE`
    Like,
}

impl AvailableQueryOperator {
    /// All operators.
    pub const ALL: [Self; 7] = [
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
        Self::Like,
    ];

    /// Returns the operator's sign in CND.
    #[must_use]
    pub fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::NotEqual => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Like => "LIKE",
        }
    }

    /// Returns the operator's name in a stored definition.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Equal => "jcr.operator.equal.to",
            Self::NotEqual => "jcr.operator.not.equal.to",
            Self::Less => "jcr.operator.less.than",
            Self::LessOrEqual => "jcr.operator.less.than.or.equal.to",
            Self::Greater => "jcr.operator.greater.than",
            Self::GreaterOrEqual => "jcr.operator.greater.than.or.equal.to",
            Self::Like => "jcr.operator.like",
        }
    }

    /// Finds an operator by its sign, ignoring case.
    #[must_use]
    pub fn find_sign(sign: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.sign().eq_ignore_ascii_case(sign))
    }

    /// Finds an operator by its name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operator| operator.name() == name)
    }
}

impl NodeTypeDefinition {
    /// Creates a primary type without further attributes.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Returns the supertypes, with `nt:base` added if a primary type declares no primary supertype.
    pub(crate) fn all_supertypes(
        &self,
        is_mixin: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &str> {
        let has_primary = self.supertypes.iter().any(|name| !is_mixin(name));
        let implied =
            (!self.flags.is_mixin && !has_primary && self.name != BASE_TYPE).then_some(BASE_TYPE);
        self.supertypes.iter().map(String::as_str).chain(implied)
    }
}

/// The base of all primary types.
pub const BASE_TYPE: &str = "nt:base";

impl ChildDefinition {
    /// Returns the types that a child must have, all of them.
    pub fn effective_required_types(&self) -> impl Iterator<Item = &str> {
        let implied = self.required_types.is_empty().then_some(BASE_TYPE);
        self.required_types.iter().map(String::as_str).chain(implied)
    }
}
