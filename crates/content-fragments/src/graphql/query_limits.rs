//! Measures a query before it runs.
//!
//! In: the text of a query, the models, and the number of fragments of each. Out: the parsed query, or why it is
//! refused.
//!
//! Invariants
//! * The cost is the number of fields that the answer is expected to have. A list counts its fields for each row: the
//!   rows that it requests, or all fragments of the model. A field with several references counts for ten.
//! * A named fragment is measured once, so the cost of measuring is proportional to the text.

use std::collections::HashMap;

use async_graphql::parser::parse_query;
use async_graphql::parser::types::{
    ExecutableDocument, Field, OperationDefinition, OperationType, Selection, SelectionSet,
};
use async_graphql::{Name, Value};
use serde_json::{Map, Value as Json};

use crate::fragment_list::{DEFAULT_PAGE_ROWS, MAX_PAGE_ROWS};
use crate::fragment_model::{FieldType, FragmentModel, SiteModels};

/// Maximum length of a query.
pub const MAX_QUERY_BYTES: usize = 64 * 1024;
/// Maximum nesting of brackets in the text of a query: the parser's.
const MAX_NESTING: usize = 60;
/// Maximum number of named fragments.
const MAX_FRAGMENTS: usize = 100;
/// Maximum depth of named fragments in each other, with the fields between them.
const MAX_LEVEL: usize = 200;
/// Maximum number of directives at one place.
const MAX_DIRECTIVES: usize = 10;
/// The expected number of values of a field with several ones.
const EXPECTED_LIST_LENGTH: u64 = 10;
/// A list of fragments costs as much as a field for each so many fragments of the model.
const FRAGMENTS_PER_COST: u64 = 10;

/// The limits of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GraphqlLimits {
    /// Maximum depth of fields.
    pub max_depth: u64,
    /// Maximum expected number of fields.
    pub max_cost: u64,
    /// Maximum number of fragments and references that an answer has.
    pub max_references: usize,
    /// Maximum number of bytes of texts that an answer has.
    pub max_text_bytes: usize,
}

impl Default for GraphqlLimits {
    /// A list of 1000 fragments with 50 fields each, nested eight levels of references deep.
    fn default() -> Self {
        Self {
            max_depth: 20,
            max_cost: 50_000,
            max_references: 10_000,
            max_text_bytes: 16 * 1024 * 1024,
        }
    }
}

/// Parses the text of a query.
///
/// # Errors
/// The reason, for the one who wrote the query.
pub(crate) fn parse_bounded(query: &str) -> Result<ExecutableDocument, String> {
    if query.len() > MAX_QUERY_BYTES {
        return Err(format!("the query is longer than {MAX_QUERY_BYTES} bytes"));
    }
    if nesting_depth(query) > MAX_NESTING {
        return Err(format!("the query has more than {MAX_NESTING} nested brackets"));
    }
    let document = parse_query(query).map_err(|error| error.to_string())?;
    if document.fragments.len() > MAX_FRAGMENTS {
        return Err(format!("the query has more than {MAX_FRAGMENTS} fragments"));
    }
    Ok(document)
}

/// Returns the depth of brackets outside of texts and comments.
fn nesting_depth(query: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = query.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' | b'(' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' | b')' => depth = depth.saturating_sub(1),
            b'#' => while bytes.next_if(|byte| *byte != b'\n').is_some() {},
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            bytes.next();
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

/// Selects the operation of a request.
///
/// # Errors
/// The reason, if there is none.
pub(crate) fn find_operation<'d>(
    document: &'d ExecutableDocument,
    name: Option<&str>,
) -> Result<&'d OperationDefinition, String> {
    let mut operations = document.operations.iter();
    let operation = match name {
        Some(name) => operations.find(|(own, _)| own.is_some_and(|own| own.as_str() == name)),
        None => operations.next().filter(|_| operations.next().is_none()),
    };
    let operation = operation.map(|(_, operation)| &operation.node);
    operation.ok_or_else(|| match name {
        Some(name) => format!("the query has no operation `{name}`"),
        None => "the query has several operations; name one of them".to_owned(),
    })
}

/// What a query is measured with.
pub(crate) struct QueryMeasure<'a> {
    pub document: &'a ExecutableDocument,
    pub operation: &'a OperationDefinition,
    pub variables: &'a Map<String, Json>,
    pub models: &'a SiteModels,
    pub count_fragments: &'a dyn Fn(&str) -> usize,
    pub allows_introspection: bool,
}

/// The size of a selection.
#[derive(Debug, Clone, Copy, Default)]
struct SelectionSize {
    cost: u64,
    depth: u64,
}

/// The sizes of named fragments; `None` while one is being measured.
type FragmentSizes<'a> = HashMap<&'a Name, Option<SelectionSize>>;

impl<'a> QueryMeasure<'a> {
    /// Checks a query against its limits.
    ///
    /// # Errors
    /// The reason, for the one who wrote the query.
    pub(crate) fn check(&self, limits: &GraphqlLimits) -> Result<(), String> {
        if self.operation.ty != OperationType::Query {
            return Err("only queries can be run".to_owned());
        }
        let selection = &self.operation.selection_set.node;
        let mut sizes = FragmentSizes::new();
        let size = self.selection_size(selection, None, 0, &mut sizes)?;
        if size.depth > limits.max_depth {
            return Err(format!(
                "the query is {} fields deep, and at most {} are allowed",
                size.depth, limits.max_depth
            ));
        }
        if size.cost > limits.max_cost {
            return Err(format!(
                "the query costs {} fields, and at most {} are allowed; request fewer rows with `limit` or `first`, \
                 or fewer fields",
                size.cost, limits.max_cost
            ));
        }
        Ok(())
    }

    fn selection_size(
        &self,
        selection: &'a SelectionSet,
        model: Option<&'a FragmentModel>,
        level: usize,
        sizes: &mut FragmentSizes<'a>,
    ) -> Result<SelectionSize, String> {
        if level > MAX_LEVEL {
            return Err(format!("the query is more than {MAX_LEVEL} levels deep"));
        }
        let mut total = SelectionSize::default();
        for item in &selection.items {
            if item.node.directives().len() > MAX_DIRECTIVES {
                return Err(format!(
                    "the query has more than {MAX_DIRECTIVES} directives at one place"
                ));
            }
            let size = match &item.node {
                Selection::Field(field) => self.field_size(&field.node, model, level, sizes)?,
                Selection::InlineFragment(fragment) => {
                    let condition = fragment.node.type_condition.as_ref();
                    let model = condition
                        .and_then(|condition| self.models.model_of_type(&condition.node.on.node))
                        .or(model);
                    self.selection_size(&fragment.node.selection_set.node, model, level + 1, sizes)?
                }
                Selection::FragmentSpread(spread) => {
                    self.fragment_size(&spread.node.fragment_name.node, level, sizes)?
                }
            };
            total.cost = total.cost.saturating_add(size.cost).saturating_add(1);
            total.depth = total.depth.max(size.depth);
        }
        Ok(total)
    }

    fn fragment_size(
        &self,
        name: &'a Name,
        level: usize,
        sizes: &mut FragmentSizes<'a>,
    ) -> Result<SelectionSize, String> {
        match sizes.get(name) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err(format!("the fragment `{name}` contains itself")),
            None => {}
        }
        let Some(fragment) = self.document.fragments.get(name) else {
            return Err(format!("the query has no fragment `{name}`"));
        };
        sizes.insert(name, None);
        let model = self.models.model_of_type(&fragment.node.type_condition.node.on.node);
        let selection = &fragment.node.selection_set.node;
        let size = self.selection_size(selection, model, level + 1, sizes)?;
        sizes.insert(name, Some(size));
        Ok(size)
    }

    fn field_size(
        &self,
        field: &'a Field,
        model: Option<&'a FragmentModel>,
        level: usize,
        sizes: &mut FragmentSizes<'a>,
    ) -> Result<SelectionSize, String> {
        let name = field.name.node.as_str();
        if matches!(name, "__schema" | "__type") {
            if !self.allows_introspection {
                return Err("the schema is shown to authors only".to_owned());
            }
            // Types are nested in each other deeply, and their number is that of the models.
            return Ok(SelectionSize { cost: 1000, depth: 1 });
        }
        let query = if model.is_none() { self.find_query(name) } else { None };
        let (own_cost, rows, inner_model) = match (query, model.and_then(|model| model.field(name)))
        {
            (Some((model, kind)), _) => {
                let count = (self.count_fragments)(model.path.as_str()) as u64;
                let rows = match kind {
                    QueryKind::One => 1,
                    QueryKind::List => self.number(field, "limit").unwrap_or(u64::MAX).min(count),
                    QueryKind::Page => self
                        .number(field, "first")
                        .unwrap_or(DEFAULT_PAGE_ROWS as u64)
                        .min(MAX_PAGE_ROWS as u64)
                        .min(count),
                };
                (count / FRAGMENTS_PER_COST, rows, Some(model))
            }
            (None, Some(field)) => {
                let rows = if field.is_list { EXPECTED_LIST_LENGTH } else { 1 };
                let inner = match &field.field_type {
                    FieldType::FragmentReference { models } => match &**models {
                        [only] => self.models.model_at(only),
                        _ => None,
                    },
                    _ => None,
                };
                (0, rows, inner)
            }
            (None, None) if name == "_references" => (0, EXPECTED_LIST_LENGTH, None),
            (None, None) => (0, 1, model),
        };
        let inner =
            self.selection_size(&field.selection_set.node, inner_model, level + 1, sizes)?;
        Ok(SelectionSize {
            cost: own_cost.saturating_add(rows.max(1).saturating_mul(inner.cost)),
            depth: inner.depth.saturating_add(1),
        })
    }

    /// Returns the model and the kind of a query by its name.
    fn find_query(&self, name: &str) -> Option<(&'a FragmentModel, QueryKind)> {
        let kinds = [
            ("List", QueryKind::List),
            ("Paginated", QueryKind::Page),
            ("ByPath", QueryKind::One),
            ("ById", QueryKind::One),
        ];
        kinds.iter().find_map(|(suffix, kind)| {
            let own = name.strip_suffix(suffix)?;
            let model = self.models.models.iter().find(|model| model.query_name == own)?;
            Some((model, *kind))
        })
    }

    /// Returns the number that an argument has, by itself or by a variable.
    fn number(&self, field: &Field, name: &str) -> Option<u64> {
        let (_, value) = field.arguments.iter().find(|(own, _)| own.node.as_str() == name)?;
        let value = value.node.clone().into_const_with(|variable| {
            if let Some(value) = self.variables.get(variable.as_str()) {
                return Value::from_json(value.clone()).map_err(|_| ());
            }
            let mut definitions = self.operation.variable_definitions.iter();
            let own = definitions.find(|definition| definition.node.name.node == variable);
            own.and_then(|own| own.node.default_value().cloned()).ok_or(())
        });
        match value {
            Ok(Value::Number(number)) => number.as_u64(),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum QueryKind {
    One,
    List,
    Page,
}
