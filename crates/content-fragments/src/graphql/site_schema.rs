//! The schema of a site: its queries, and running them.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use async_graphql::dynamic::{
    Field, FieldFuture, FieldValue, InputObject, InputValue, Object, ResolverContext, Schema,
    SchemaBuilder, TypeRef,
};
use async_graphql::parser::types::{BaseType, OperationDefinition};
use async_graphql::{Error as GraphqlError, Request, Value, Variables};
use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};
use tympan_content::{ChunkId, NodePath, Snapshot};

use super::answer_context::{AnswerContext, resolve_now, text_value};
use super::filter_input::{filter_name, register_model_filter, register_value_filters};
use super::fragment_type::{register_model_type, register_shared_types};
use super::query_limits::{GraphqlLimits, QueryMeasure, find_operation, parse_bounded};
use super::reference_type::{find_fragment, register_references};
use crate::fragment_content::FragmentContent;
use crate::fragment_list::{
    DEFAULT_PAGE_ROWS, FragmentListPage, FragmentListQuery, FragmentPage, FragmentRow,
    MAX_PAGE_ROWS,
};
use crate::fragment_model::{FragmentModel, SiteModels, models_fingerprint};
use crate::{Error, Result};

/// Number of schemas that are held.
const MAX_SCHEMAS: usize = 16;
/// The name of the type of queries: AEM's.
const QUERY_TYPE: &str = "QueryType";

/// A request to run a query.
#[derive(Debug, Clone, Default)]
pub struct GraphqlRequest {
    /// The text of the query.
    pub query: String,
    /// The operation, if the query has several.
    pub operation_name: Option<String>,
    /// The variables.
    pub variables: Map<String, Json>,
    /// Variables as texts, which become values of their declared types.
    pub text_variables: Vec<(String, String)>,
    /// True if the schema may be asked for.
    pub allows_introspection: bool,
}

/// The answer to a query.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphqlAnswer {
    /// The response: `data`, `errors`, or both.
    pub body: Json,
    /// True if the query was run, and so the answer has data.
    pub has_data: bool,
    /// True if the request has a variable that the query does not declare: any number of such addresses have the same
    /// answer.
    pub has_unknown_variables: bool,
}

impl GraphqlAnswer {
    /// Creates the answer to a query that is not run.
    #[must_use]
    pub fn refused(message: &str) -> Self {
        Self {
            body: json!({ "errors": [{ "message": message }] }),
            has_data: false,
            has_unknown_variables: false,
        }
    }
}

/// The schema of a site.
#[derive(Debug)]
pub struct SiteSchema {
    schema: Schema,
    models: Arc<SiteModels>,
    limits: GraphqlLimits,
}

impl SiteSchema {
    /// Builds the schema of a site's models.
    ///
    /// # Errors
    /// [`Error::Schema`] if the names of the models or their fields collide.
    pub fn build(site: &str, models: SiteModels, limits: GraphqlLimits) -> Result<Self> {
        let mut query = Object::new(QUERY_TYPE);
        let mut builder = Schema::build(QUERY_TYPE, None, None).disable_suggestions();
        builder = register_value_filters(builder);
        builder = register_shared_types(builder);
        builder = register_references(builder, &models);
        builder = register_asset_transform(builder).register(
            Object::new("PageInfo")
                .field(page_field("hasNextPage", TypeRef::BOOLEAN, |page| page.has_next.into()))
                .field(page_field("hasPreviousPage", TypeRef::BOOLEAN, |page| {
                    page.has_previous.into()
                }))
                .field(page_field("startCursor", TypeRef::STRING, |page| {
                    page.rows.first().map_or(Value::Null, |row| row.cursor.as_str().into())
                }))
                .field(page_field("endCursor", TypeRef::STRING, |page| {
                    page.rows.last().map_or(Value::Null, |row| row.cursor.as_str().into())
                })),
        );
        for model in &models.models {
            builder = register_model_filter(builder, &models, model);
            builder = register_model_type(builder, &models, model);
            builder = register_result_types(builder, model);
            query = add_queries(query, model);
        }
        let schema = builder
            .register(query)
            .finish()
            .map_err(|error| Error::Schema { site: site.to_owned(), reason: error.to_string() })?;
        Ok(Self { schema, models: Arc::new(models), limits })
    }

    /// Returns the models.
    #[must_use]
    pub fn models(&self) -> &SiteModels {
        &self.models
    }

    /// Returns the schema in the language of schemas.
    #[must_use]
    pub fn to_sdl(&self) -> String {
        self.schema.sdl()
    }

    /// Runs a query. What is wrong with it is in the answer.
    #[must_use]
    pub fn execute(
        &self,
        request: &GraphqlRequest,
        content: Arc<dyn FragmentContent>,
    ) -> GraphqlAnswer {
        match self.execute_checked(request, content) {
            Ok(answer) => answer,
            Err(reason) => GraphqlAnswer::refused(&reason),
        }
    }

    fn execute_checked(
        &self,
        request: &GraphqlRequest,
        content: Arc<dyn FragmentContent>,
    ) -> Result<GraphqlAnswer, String> {
        let document = parse_bounded(&request.query)?;
        let operation = find_operation(&document, request.operation_name.as_deref())?;
        let mut variables = request.variables.clone();
        let mut has_unknown_variables = false;
        for (name, text) in &request.text_variables {
            match typed_variable(operation, name, text)? {
                Some(value) => drop(variables.insert(name.clone(), value)),
                None => has_unknown_variables = true,
            }
        }
        let measure = QueryMeasure {
            document: &document,
            operation,
            variables: &variables,
            models: &self.models,
            count_fragments: &|model: &str| content.count_fragments(model),
            allows_introspection: request.allows_introspection,
        };
        measure.check(&self.limits)?;
        let context = Arc::new(AnswerContext::new(content, Arc::clone(&self.models), self.limits));
        let mut query = Request::new(request.query.as_str())
            .variables(Variables::from_json(Json::Object(variables)))
            .data(Arc::clone(&context));
        if let Some(name) = &request.operation_name {
            query = query.operation_name(name);
        }
        query.set_parsed_query(document);
        let response = run_to_end(self.schema.execute(query));
        let has_data = response.data != Value::Null && !context.is_exceeded();
        let body = serde_json::to_value(&response).map_err(|error| error.to_string())?;
        let body = match (has_data, body) {
            (true, body) => body,
            (false, body) => json!({ "errors": body.get("errors").cloned().unwrap_or_default() }),
        };
        Ok(GraphqlAnswer { body, has_data, has_unknown_variables })
    }
}

/// Polls a future whose parts never wait. The combinators that join its parts may ask to be polled again.
fn run_to_end<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
    }
}

/// Converts the text of a variable to its declared type; `None` if the query declares no such variable.
fn typed_variable(
    operation: &OperationDefinition,
    name: &str,
    text: &str,
) -> Result<Option<Json>, String> {
    let mut definitions = operation.variable_definitions.iter();
    let Some(definition) =
        definitions.find(|definition| definition.node.name.node.as_str() == name)
    else {
        return Ok(None);
    };
    let invalid = |kind: &str| format!("the variable `{name}` takes {kind}, not `{text}`");
    let value = match &definition.node.var_type.node.base {
        BaseType::Named(kind) => match kind.as_str() {
            "Int" => text.parse::<i64>().map(Json::from).map_err(|_| invalid("a whole number"))?,
            "Float" => {
                let number = text.parse::<f64>().ok().and_then(serde_json::Number::from_f64);
                Json::Number(number.ok_or_else(|| invalid("a number"))?)
            }
            "Boolean" => match text {
                "true" => true.into(),
                "false" => false.into(),
                _ => return Err(invalid("`true` or `false`")),
            },
            "String" | "ID" => text.into(),
            // Objects are JSON; names of enumerations and texts of scalars are not.
            _ => serde_json::from_str(text).unwrap_or_else(|_| text.into()),
        },
        BaseType::List(_) => serde_json::from_str(text).map_err(|_| invalid("a list in JSON"))?,
    };
    Ok(Some(value))
}

fn page_field(name: &str, kind: &str, value: fn(&FragmentPage) -> Value) -> Field {
    Field::new(name, TypeRef::named(kind), move |context| {
        resolve_now(&context, |_, context| {
            let page = context.parent_value.try_downcast_ref::<Arc<FragmentPage>>()?;
            Ok(Some(FieldValue::value(value(page))))
        })
    })
}

/// Registers the argument by which AEM transforms images; it is checked and has no effect.
fn register_asset_transform(builder: SchemaBuilder) -> SchemaBuilder {
    use async_graphql::dynamic::Enum;
    let enumeration = |name: &str, items: &[&str]| Enum::new(name).items(items.iter().copied());
    let number = |name: &str| InputValue::new(name, TypeRef::named(TypeRef::INT));
    let needed = |name: &str| InputValue::new(name, TypeRef::named_nn(TypeRef::INT));
    builder
        .register(enumeration(
            "AssetTransformFormat",
            &["GIF", "PNG", "PNG8", "JPG", "PJPG", "BJPG", "WEBP", "WEBPLL", "WEBPLY"],
        ))
        .register(enumeration("AssetTransformRotation", &["R90", "R180", "R270"]))
        .register(enumeration(
            "AssetTransformFlip",
            &["HORIZONTAL", "VERTICAL", "HORIZONTAL_AND_VERTICAL"],
        ))
        .register(
            InputObject::new("AssetTransformCrop")
                .field(needed("xOrigin"))
                .field(needed("yOrigin"))
                .field(number("width"))
                .field(number("height")),
        )
        .register(
            InputObject::new("AssetTransformSize").field(number("width")).field(number("height")),
        )
        .register(
            InputObject::new("AssetTransform")
                .field(InputValue::new("format", TypeRef::named("AssetTransformFormat")))
                .field(InputValue::new("seoName", TypeRef::named(TypeRef::STRING)))
                .field(InputValue::new("crop", TypeRef::named("AssetTransformCrop")))
                .field(InputValue::new("size", TypeRef::named("AssetTransformSize")))
                .field(InputValue::new("rotation", TypeRef::named("AssetTransformRotation")))
                .field(InputValue::new("flip", TypeRef::named("AssetTransformFlip")))
                .field(number("quality"))
                .field(number("width"))
                .field(InputValue::new("preferWebp", TypeRef::named(TypeRef::BOOLEAN))),
        )
}

/// A row of a page with cursors.
struct PageEdge {
    row: FragmentRow,
    requested_variation: Option<String>,
}

/// A page with the variation that its query requested.
struct RequestedPage {
    page: Arc<FragmentPage>,
    requested_variation: Option<String>,
}

/// A fragment that a query requested by its path.
struct RequestedFragment {
    path: String,
    variation: Option<String>,
}

fn register_result_types(builder: SchemaBuilder, model: &FragmentModel) -> SchemaBuilder {
    let type_name = &model.type_name;
    let item_type = type_name.clone();
    let result = Object::new(format!("{type_name}Result")).field(Field::new(
        "item",
        TypeRef::named(type_name),
        move |context| {
            let item_type = item_type.clone();
            resolve_now(&context, move |answer, context| {
                let requested = context.parent_value.try_downcast_ref::<RequestedFragment>()?;
                let Ok(path) = NodePath::new(&requested.path) else { return Ok(None) };
                answer.take_reference()?;
                let found = find_fragment(answer, &path, requested.variation.as_deref());
                let found = found.filter(|(_, own)| *own == item_type);
                Ok(found.map(|(fragment, _)| FieldValue::owned_any(fragment)))
            })
        },
    ));
    let results = Object::new(format!("{type_name}Results")).field(Field::new(
        "items",
        TypeRef::named_nn_list_nn(type_name),
        |context| {
            resolve_now(&context, |answer, context| {
                let requested = context.parent_value.try_downcast_ref::<RequestedPage>()?;
                let mut items = Vec::new();
                for row in &requested.page.rows {
                    let variation = requested.requested_variation.as_deref();
                    items.extend(row_value(answer, row, variation)?);
                }
                Ok(Some(FieldValue::list(items)))
            })
        },
    ));
    let edge = Object::new(format!("{type_name}Edge"))
        .field(Field::new("cursor", TypeRef::named_nn(TypeRef::STRING), |context| {
            resolve_now(&context, |answer, context| {
                let edge = context.parent_value.try_downcast_ref::<PageEdge>()?;
                text_value(answer, &edge.row.cursor)
            })
        }))
        .field(Field::new("node", TypeRef::named(type_name), |context| {
            resolve_now(&context, |answer, context| {
                let edge = context.parent_value.try_downcast_ref::<PageEdge>()?;
                row_value(answer, &edge.row, edge.requested_variation.as_deref())
            })
        }));
    let connection = Object::new(format!("{type_name}Connection"))
        .field(Field::new("edges", TypeRef::named_list(edge.type_name()), |context| {
            resolve_now(&context, |_, context| {
                let requested = context.parent_value.try_downcast_ref::<RequestedPage>()?;
                let edges = requested.page.rows.iter().map(|row| {
                    FieldValue::owned_any(PageEdge {
                        row: row.clone(),
                        requested_variation: requested.requested_variation.clone(),
                    })
                });
                Ok(Some(FieldValue::list(edges)))
            })
        }))
        .field(Field::new("pageInfo", TypeRef::named_nn("PageInfo"), |context| {
            resolve_now(&context, |_, context| {
                let requested = context.parent_value.try_downcast_ref::<RequestedPage>()?;
                Ok(Some(FieldValue::owned_any(Arc::clone(&requested.page))))
            })
        }));
    builder.register(result).register(results).register(edge).register(connection)
}

/// Returns the fragment of a row: in the variation of the row, with references in the requested one.
fn row_value<'a>(
    answer: &AnswerContext,
    row: &FragmentRow,
    requested_variation: Option<&str>,
) -> async_graphql::Result<Option<FieldValue<'a>>> {
    answer.take_reference()?;
    let found = find_fragment(answer, &row.path, Some(&row.variation));
    Ok(found.map(|(mut fragment, _)| {
        fragment.requested_variation = requested_variation.map(Arc::from);
        FieldValue::owned_any(fragment)
    }))
}

/// Adds the queries of a model.
fn add_queries(query: Object, model: &FragmentModel) -> Object {
    let (name, type_name) = (&model.query_name, &model.type_name);
    let optional = |name: &str, kind: &str| InputValue::new(name, TypeRef::named(kind));
    let common = |field: Field| {
        field
            .argument(optional("variation", TypeRef::STRING))
            .argument(optional("_assetTransform", "AssetTransform"))
    };
    let list_arguments = |field: Field| {
        common(field)
            .argument(optional("includeVariations", TypeRef::BOOLEAN))
            .argument(optional("_locale", TypeRef::STRING))
            .argument(optional("filter", &filter_name(model)))
            .argument(optional("sort", TypeRef::STRING))
    };
    let path = model.path.clone();
    let list = Field::new(
        format!("{name}List"),
        TypeRef::named_nn(format!("{type_name}Results")),
        move |context| {
            resolve_list(&context, &path, |context| {
                let offset = row_number(context, "offset")?.unwrap_or(0);
                Ok(FragmentListPage::Offset { offset, limit: row_number(context, "limit")? })
            })
        },
    );
    let list = list_arguments(list)
        .argument(optional("offset", TypeRef::INT))
        .argument(optional("limit", TypeRef::INT));
    let path = model.path.clone();
    let page = Field::new(
        format!("{name}Paginated"),
        TypeRef::named_nn(format!("{type_name}Connection")),
        move |context| {
            resolve_list(&context, &path, |context| {
                let first = row_number(context, "first")?.unwrap_or(DEFAULT_PAGE_ROWS);
                let after = text_argument(context, "after");
                Ok(FragmentListPage::Cursor { after, first: first.min(MAX_PAGE_ROWS) })
            })
        },
    );
    let page = list_arguments(page)
        .argument(optional("first", TypeRef::INT))
        .argument(optional("after", TypeRef::STRING));
    let by_path = Field::new(
        format!("{name}ByPath"),
        TypeRef::named_nn(format!("{type_name}Result")),
        move |context| {
            resolve_now(&context, |_, context| {
                let path = text_argument(context, "_path").unwrap_or_default();
                let variation = text_argument(context, "variation");
                Ok(Some(FieldValue::owned_any(RequestedFragment { path, variation })))
            })
        },
    );
    let by_path =
        common(by_path).argument(InputValue::new("_path", TypeRef::named_nn(TypeRef::ID)));
    query.field(list).field(page).field(by_path)
}

fn resolve_list<'a>(
    context: &ResolverContext<'a>,
    model: &NodePath,
    page: impl FnOnce(&ResolverContext<'a>) -> async_graphql::Result<FragmentListPage>,
) -> FieldFuture<'a> {
    resolve_now(context, |answer, context| {
        let variation = text_argument(context, "variation");
        let argument = |name: &str| context.args.get(name).map(|value| value.as_value().clone());
        let filter = argument("filter").filter(|filter| *filter != Value::Null);
        let query = FragmentListQuery {
            model: model.to_string(),
            variation: variation.clone(),
            includes_variations: argument("includeVariations") == Some(Value::Boolean(true)),
            locale: text_argument(context, "_locale"),
            filter: filter.map(Value::into_json).transpose()?,
            sort: text_argument(context, "sort"),
            page: page(context)?,
        };
        let page = Arc::new(answer.content.select_fragments(&query));
        Ok(Some(FieldValue::owned_any(RequestedPage { page, requested_variation: variation })))
    })
}

fn text_argument(context: &ResolverContext<'_>, name: &str) -> Option<String> {
    let value = context.args.get(name)?;
    value.string().ok().map(str::to_owned)
}

fn row_number(context: &ResolverContext<'_>, name: &str) -> async_graphql::Result<Option<usize>> {
    let Some(value) = context.args.get(name).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let number = value.i64()?;
    let number = usize::try_from(number);
    number.map(Some).map_err(|_| GraphqlError::new(format!("`{name}` takes no negative number")))
}

/// What identifies the models of a site in a state.
type ModelsFingerprint = Vec<(NodePath, Option<ChunkId>)>;

/// The schemas of sites, built when they are needed and kept while the models are the same.
#[derive(Debug, Default)]
pub struct SiteSchemaCache {
    schemas: Mutex<Vec<(String, ModelsFingerprint, Arc<SiteSchema>)>>,
}

impl SiteSchemaCache {
    /// Returns the schema of a site in a state. The snapshot must see the models: visitors need not.
    ///
    /// # Errors
    /// [`Error::NoModels`], [`Error::Schema`]; errors of the store.
    pub fn schema_at(&self, snapshot: &Snapshot, site: &str) -> Result<Arc<SiteSchema>> {
        let fingerprint = models_fingerprint(snapshot, site)?;
        let is_same = |entry: &(String, ModelsFingerprint, Arc<SiteSchema>)| {
            entry.0 == site && entry.1 == fingerprint
        };
        if let Some(entry) = self.schemas.lock().iter().find(|entry| is_same(entry)) {
            return Ok(Arc::clone(&entry.2));
        }
        let models = SiteModels::read(snapshot, site)?;
        let schema = Arc::new(SiteSchema::build(site, models, GraphqlLimits::default())?);
        // A model with pending edits has no hash.
        if fingerprint.iter().all(|(_, hash)| hash.is_some()) {
            let mut schemas = self.schemas.lock();
            schemas.insert(0, (site.to_owned(), fingerprint, Arc::clone(&schema)));
            schemas.truncate(MAX_SCHEMAS);
        }
        Ok(schema)
    }
}
