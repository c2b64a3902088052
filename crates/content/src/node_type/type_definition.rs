//! Definitions of node types, as JCR 2.0 has them.

use crate::ValueType;

/// The name that stands for all names without a definition of their own.
pub const RESIDUAL_NAME: &str = "*";

/// The rules for nodes of one type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeTypeDefinition {
    /// The name, such as `cq:Page`.
    pub name: String,
    /// The declared supertypes. A primary type without one comes from `nt:base` all the same.
    pub supertypes: Vec<String>,
    /// The kind of type, and whether nodes can be of it.
    pub flags: NodeTypeFlags,
    /// The name of the item that a node of this type is about, such as `jcr:content`.
    pub primary_item: Option<String>,
    /// The declared properties.
    pub properties: Vec<PropertyDefinition>,
    /// The declared children.
    pub children: Vec<ChildDefinition>,
}

/// What a type says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeTypeFlags {
    /// No node is of this type itself.
    pub is_abstract: bool,
    /// It adds to primary types.
    pub is_mixin: bool,
    /// The order of children is content.
    pub has_orderable_children: bool,
    /// Queries find nodes by it.
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

/// What properties and children have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ItemFlags {
    /// A node without it is refused.
    pub is_mandatory: bool,
    /// The repository adds it to a new node.
    pub is_autocreated: bool,
    /// The repository alone sets it.
    pub is_protected: bool,
    /// What becomes of it in a version of its node.
    pub on_parent_version: OnParentVersion,
}

/// The rules for a property.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PropertyDefinition {
    /// The name, or [`RESIDUAL_NAME`].
    pub name: String,
    /// The type of its values; nothing where any will do.
    pub value_type: Option<ValueType>,
    /// It holds a list.
    pub is_multiple: bool,
    /// What it has in common with children.
    pub flags: ItemFlags,
    /// The values that it is created with.
    pub default_values: Vec<String>,
    /// Each value must meet one of these; none stands for no rule.
    pub constraints: Vec<String>,
    /// How queries may use it.
    pub query_use: PropertyQueryUse,
}

/// How queries may use a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropertyQueryUse {
    /// The operators that compare it.
    pub operators: Vec<AvailableQueryOperator>,
    /// Full text finds it.
    pub is_full_text_searchable: bool,
    /// Results can be sorted by it.
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
    /// The types that it must all be of; none stands for `nt:base`.
    pub required_types: Vec<String>,
    /// Its primary type where none is given.
    pub default_type: Option<String>,
    /// Several children may have the name. Kept for others; a name has one node here.
    pub allows_same_names: bool,
    /// What it has in common with properties.
    pub flags: ItemFlags,
}

/// What becomes of an item when its node is versioned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnParentVersion {
    /// It is copied, with everything below.
    #[default]
    Copy,
    /// Its own version is referred to.
    Version,
    /// It is made anew.
    Initialize,
    /// It is worked out anew.
    Compute,
    /// It is left out.
    Ignore,
    /// No version can be made.
    Abort,
}

impl OnParentVersion {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Copy, Self::Version, Self::Initialize, Self::Compute, Self::Ignore, Self::Abort];

    /// Returns its name.
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

    /// Finds it by its name, ignoring case.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name().eq_ignore_ascii_case(name))
    }
}

/// A comparison in queries.
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
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Equal,
        Self::NotEqual,
        Self::Less,
        Self::LessOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
        Self::Like,
    ];

    /// Returns its sign in CND.
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

    /// Returns its name in a stored definition.
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

    /// Finds it by its sign, ignoring case.
    #[must_use]
    pub fn find_sign(sign: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.sign().eq_ignore_ascii_case(sign))
    }

    /// Finds it by its name.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl NodeTypeDefinition {
    /// Makes a primary type that says nothing yet.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Returns the supertypes, `nt:base` where a primary type declares none that is primary.
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

/// The type that all primary types come from.
pub const BASE_TYPE: &str = "nt:base";

impl ChildDefinition {
    /// Returns the types that a child must all be of.
    pub fn effective_required_types(&self) -> impl Iterator<Item = &str> {
        let implied = self.required_types.is_empty().then_some(BASE_TYPE);
        self.required_types.iter().map(String::as_str).chain(implied)
    }
}
