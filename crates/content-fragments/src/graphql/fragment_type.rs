//! The types of fragments: one for each model, with its fields and those that begin with `_`.

use async_graphql::dynamic::{Field, FieldValue, Object, Scalar, SchemaBuilder, TypeRef, Union};
use async_graphql::{Result, Value};
use tympan_content::{JcrDate, NodePath, Property, Value as ContentValue, ValueType};

use super::answer_context::{AnswerContext, resolve_now, text_value};
use super::reference_type::{REFERENCE, SelectedFragment, find_fragment, reference_value};
use crate::fragment_model::{FieldType, FragmentModel, ModelField, SiteModels};
use crate::rich_text::RichText;

/// Maximum number of values of a field in an answer.
const MAX_VALUES: usize = 1000;

/// The types of metadata: the beginning of their names, the type of the value, the stored types.
const METADATA_TYPES: [(&str, &str, &[ValueType]); 5] = [
    (
        "String",
        TypeRef::STRING,
        &[
            ValueType::String,
            ValueType::Name,
            ValueType::Path,
            ValueType::Uri,
            ValueType::Reference,
            ValueType::WeakReference,
        ],
    ),
    ("Int", TypeRef::INT, &[ValueType::Long]),
    ("Float", TypeRef::FLOAT, &[ValueType::Double, ValueType::Decimal]),
    ("Boolean", TypeRef::BOOLEAN, &[ValueType::Boolean]),
    ("Calendar", "Calendar", &[ValueType::Date]),
];

/// Metadata of a fragment: names and properties.
struct FragmentMetadata(Vec<(String, Property)>);

/// One property of the metadata.
struct MetadataEntry {
    name: String,
    value: Property,
}

/// Registers what the types of all models use.
pub(super) fn register_shared_types(mut builder: SchemaBuilder) -> SchemaBuilder {
    let text_field = |name: &str, convert: fn(&RichText) -> String| {
        Field::new(name, TypeRef::named(TypeRef::STRING), move |context| {
            resolve_now(&context, |answer, context| {
                text_value(answer, convert(context.parent_value.try_downcast_ref::<RichText>()?))
            })
        })
    };
    let text = Object::new("MultiFormatString")
        .field(text_field("html", RichText::to_html))
        .field(text_field("markdown", RichText::to_markdown))
        .field(text_field("plaintext", RichText::to_plain_text))
        .field(Field::new("json", TypeRef::named("JSON"), |context| {
            resolve_now(&context, |answer, context| {
                let text = context.parent_value.try_downcast_ref::<RichText>()?;
                answer.take_text(&text.source)?;
                Ok(Some(FieldValue::value(Value::from_json(text.to_json())?)))
            })
        }))
        .field(Field::new("_references", TypeRef::named_list(REFERENCE), |context| {
            resolve_now(&context, |answer, context| {
                let text = context.parent_value.try_downcast_ref::<RichText>()?;
                references_value(answer, &text.references(), None)
            })
        }));
    let model = Object::new("ModelInfo")
        .field(Field::new("_path", TypeRef::named(TypeRef::ID), |context| {
            resolve_now(&context, |answer, context| {
                let (path, _) = context.parent_value.try_downcast_ref::<(String, String)>()?;
                text_value(answer, path)
            })
        }))
        .field(Field::new("title", TypeRef::named(TypeRef::STRING), |context| {
            resolve_now(&context, |answer, context| {
                let (_, title) = context.parent_value.try_downcast_ref::<(String, String)>()?;
                text_value(answer, title)
            })
        }));
    let mut metadata = Object::new("TypedMetaData");
    for (name, kind, value_types) in METADATA_TYPES {
        for is_list in [false, true] {
            let suffix = if is_list { "Array" } else { "" };
            let entry_type = format!("{name}{suffix}Metadata");
            let value_type = if is_list { TypeRef::named_list(kind) } else { TypeRef::named(kind) };
            let entry = Object::new(&entry_type)
                .field(Field::new("name", TypeRef::named(TypeRef::STRING), |context| {
                    resolve_now(&context, |answer, context| {
                        let entry = context.parent_value.try_downcast_ref::<MetadataEntry>()?;
                        text_value(answer, &entry.name)
                    })
                }))
                .field(Field::new("value", value_type, move |context| {
                    resolve_now(&context, |answer, context| {
                        let entry = context.parent_value.try_downcast_ref::<MetadataEntry>()?;
                        plain_values(answer, &entry.value, is_list, metadata_value)
                    })
                }));
            let field_name = format!("{}{suffix}Metadata", name.to_ascii_lowercase());
            metadata = metadata.field(Field::new(
                field_name,
                TypeRef::named_nn_list_nn(&entry_type),
                move |context| {
                    resolve_now(&context, |_, context| {
                        let metadata =
                            context.parent_value.try_downcast_ref::<FragmentMetadata>()?;
                        let entries = metadata.0.iter().filter(|(_, value)| {
                            value.is_list() == is_list && value_types.contains(&value.value_type())
                        });
                        Ok(Some(FieldValue::list(entries.map(|(name, value)| {
                            let (name, value) = (name.clone(), value.clone());
                            FieldValue::owned_any(MetadataEntry { name, value })
                        }))))
                    })
                },
            ));
            builder = builder.register(entry);
        }
    }
    builder
        .register(Scalar::new("JSON").description("Any JSON."))
        .register(text)
        .register(model)
        .register(metadata)
}

/// Registers the type of a model.
pub(super) fn register_model_type(
    mut builder: SchemaBuilder,
    models: &SiteModels,
    model: &FragmentModel,
) -> SchemaBuilder {
    let mut object = Object::new(&model.type_name)
        .description(format!("Fragments of the model `{}`.", model.title))
        .field(fragment_field("_path", TypeRef::named(TypeRef::ID), |answer, selected| {
            text_value(answer, selected.fragment.path().as_str())
        }))
        .field(fragment_field("_id", TypeRef::named(TypeRef::ID), |answer, selected| {
            text_value(answer, selected.fragment.identifier(&*answer.content))
        }))
        .field(fragment_field("_variation", TypeRef::named(TypeRef::STRING), |answer, selected| {
            text_value(answer, selected.fragment.variation_name())
        }))
        .field(fragment_field(
            "_variations",
            TypeRef::named_list(TypeRef::STRING),
            |answer, selected| {
                let names = selected.fragment.variation_names(&*answer.content);
                Ok(Some(FieldValue::list(names.into_iter().map(Value::String))))
            },
        ))
        .field(fragment_field("_tags", TypeRef::named_list(TypeRef::STRING), |answer, selected| {
            let tags = selected.fragment.tags(&*answer.content);
            Ok(Some(FieldValue::list(tags.into_iter().map(Value::String))))
        }))
        .field(fragment_field("_metadata", TypeRef::named("TypedMetaData"), |answer, selected| {
            let metadata = selected.fragment.metadata(&*answer.content);
            Ok(Some(FieldValue::owned_any(FragmentMetadata(metadata))))
        }))
        .field(fragment_field("_model", TypeRef::named("ModelInfo"), |answer, selected| {
            let model = answer.models.model_at(selected.fragment.model());
            Ok(model
                .map(|model| FieldValue::owned_any((model.path.to_string(), model.title.clone()))))
        }));
    let reference_fields = model.fields.clone();
    object = object.field(fragment_field(
        "_references",
        TypeRef::named_list(REFERENCE),
        move |answer, selected| {
            let paths = fragment_references(answer, selected, &reference_fields);
            references_value(answer, &paths, selected.requested_variation.as_deref())
        },
    ));
    for field in &model.fields {
        if field.name.starts_with('_') {
            continue;
        }
        let (type_name, union) = output_type(models, model, field);
        if let Some(union) = union {
            builder = builder.register(union);
        }
        let output = match field.is_list {
            true => TypeRef::named_list(type_name.as_str()),
            false => TypeRef::named(type_name.as_str()),
        };
        let field = field.clone();
        let name = field.name.clone();
        object = object.field(fragment_field(&name, output, move |answer, selected| {
            field_value(answer, selected, &field)
        }));
    }
    builder.register(object)
}

fn fragment_field(
    name: &str,
    output: TypeRef,
    resolve: impl Fn(&AnswerContext, &SelectedFragment) -> Result<Option<FieldValue<'static>>>
    + Send
    + Sync
    + 'static,
) -> Field {
    Field::new(name, output, move |context| {
        resolve_now(&context, |answer, context| {
            resolve(answer, context.parent_value.try_downcast_ref::<SelectedFragment>()?)
        })
    })
}

/// Returns the name of a field's type, and the union that it needs: fields that take fragments of several models have
/// one of their own.
fn output_type(
    models: &SiteModels,
    model: &FragmentModel,
    field: &ModelField,
) -> (String, Option<Union>) {
    let name = match &field.field_type {
        FieldType::Text | FieldType::Enumeration { .. } | FieldType::Tags => TypeRef::STRING,
        FieldType::MultiLineText { .. } => "MultiFormatString",
        FieldType::Integer => TypeRef::INT,
        FieldType::Float => TypeRef::FLOAT,
        FieldType::Boolean => TypeRef::BOOLEAN,
        FieldType::Date => "Date",
        FieldType::Time => "Time",
        FieldType::DateTime => "Calendar",
        FieldType::ContentReference => REFERENCE,
        FieldType::Json => "JSON",
        FieldType::FragmentReference { models: targets } => {
            let types: Vec<&str> = targets
                .iter()
                .filter_map(|target| Some(&*models.model_at(target)?.type_name))
                .collect();
            return match &*types {
                [] => (REFERENCE.to_owned(), None),
                [only] => ((*only).to_owned(), None),
                several => {
                    let name = format!("{}_{}", model.type_name, field.name);
                    let union = several
                        .iter()
                        .fold(Union::new(&name), |union, own| union.possible_type(*own));
                    (name, Some(union))
                }
            };
        }
    };
    (name.to_owned(), None)
}

fn field_value<'a>(
    answer: &AnswerContext,
    selected: &SelectedFragment,
    field: &ModelField,
) -> Result<Option<FieldValue<'a>>> {
    let reader = &*answer.content;
    let fragment = &selected.fragment;
    let Some(property) = fragment.value(reader, &field.name) else { return Ok(None) };
    let variation = selected.requested_variation.as_deref();
    match &field.field_type {
        FieldType::MultiLineText { default_type } => {
            let media_type =
                fragment.text_type(reader, &field.name).unwrap_or_else(|| default_type.clone());
            let text = |value: &ContentValue| {
                Ok(Some(FieldValue::owned_any(RichText {
                    source: value.to_text().into_owned(),
                    media_type: media_type.clone(),
                })))
            };
            object_values(&property, field.is_list, text)
        }
        FieldType::ContentReference => object_values(&property, field.is_list, |value| {
            reference_value(answer, &value.to_text(), variation)
        }),
        FieldType::FragmentReference { models } => {
            let models: Vec<_> =
                models.iter().filter_map(|path| answer.models.model_at(path)).collect();
            object_values(&property, field.is_list, |value| {
                let Ok(path) = NodePath::new(&value.to_text()) else { return Ok(None) };
                answer.take_reference()?;
                let Some((target, type_name)) = find_fragment(answer, &path, variation) else {
                    return Ok(None);
                };
                // A fragment of a model that the field does not take is left out.
                let is_taken =
                    models.is_empty() || models.iter().any(|model| model.type_name == type_name);
                let value = FieldValue::owned_any(target);
                let value = if models.len() == 1 { value } else { value.with_type(type_name) };
                Ok(is_taken.then_some(value))
            })
        }
        FieldType::Json => {
            let text = property.first().map(|value| value.to_text().into_owned());
            let Some(text) = text else { return Ok(None) };
            answer.take_text(&text)?;
            let json = serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
            Ok(Some(FieldValue::value(Value::from_json(json)?)))
        }
        FieldType::Integer => plain_values(answer, &property, field.is_list, |value| {
            Some(Value::from(value.to_text().parse::<i64>().ok()?))
        }),
        FieldType::Float => plain_values(answer, &property, field.is_list, |value| {
            Some(Value::from(value.to_text().parse::<f64>().ok()?))
        }),
        FieldType::Boolean => plain_values(answer, &property, field.is_list, |value| {
            Some(Value::Boolean(&*value.to_text() == "true"))
        }),
        FieldType::Date => plain_values(answer, &property, field.is_list, |value| {
            Some(Value::String(dated_text(value, "%Y-%m-%d")))
        }),
        FieldType::Time => plain_values(answer, &property, field.is_list, |value| {
            Some(Value::String(dated_text(value, "%H:%M:%S")))
        }),
        FieldType::Text | FieldType::Enumeration { .. } | FieldType::Tags | FieldType::DateTime => {
            plain_values(answer, &property, field.is_list, |value| {
                Some(Value::String(value.to_text().into_owned()))
            })
        }
    }
}

/// Writes a date in a form; other values as they are.
fn dated_text(value: &ContentValue, form: &str) -> String {
    let date = match value {
        ContentValue::Date(date) => JcrDate::to_zoned(*date),
        _ => None,
    };
    date.map_or_else(|| value.to_text().into_owned(), |date| date.strftime(form).to_string())
}

fn metadata_value(value: &ContentValue) -> Option<Value> {
    Some(match value {
        ContentValue::Long(number) => Value::from(*number),
        ContentValue::Double(number) => Value::from(*number),
        ContentValue::Decimal(text) => Value::from(text.parse::<f64>().ok()?),
        ContentValue::Boolean(truth) => Value::Boolean(*truth),
        value => Value::String(value.to_text().into_owned()),
    })
}

/// Returns the values of a field without fields of their own.
fn plain_values<'a>(
    answer: &AnswerContext,
    property: &Property,
    is_list: bool,
    convert: impl Fn(&ContentValue) -> Option<Value>,
) -> Result<Option<FieldValue<'a>>> {
    let values = property.values().iter().take(if is_list { MAX_VALUES } else { 1 });
    let mut converted = Vec::new();
    for value in values {
        answer.take_text(&value.to_text())?;
        converted.extend(convert(value));
    }
    Ok(match is_list {
        true => Some(FieldValue::value(Value::List(converted))),
        false => converted.into_iter().next().map(FieldValue::value),
    })
}

/// Returns the values of a field with fields of their own; those that lead nowhere are left out.
fn object_values<'a>(
    property: &Property,
    is_list: bool,
    convert: impl Fn(&ContentValue) -> Result<Option<FieldValue<'a>>>,
) -> Result<Option<FieldValue<'a>>> {
    if !is_list {
        return property.first().map_or(Ok(None), convert);
    }
    let mut objects = Vec::new();
    for value in property.values().iter().take(MAX_VALUES) {
        objects.extend(convert(value)?);
    }
    Ok(Some(FieldValue::list(objects)))
}

/// Returns the paths that the fields of a fragment refer to, each once.
fn fragment_references(
    answer: &AnswerContext,
    selected: &SelectedFragment,
    fields: &[ModelField],
) -> Vec<String> {
    let reader = &*answer.content;
    let mut paths: Vec<String> = Vec::new();
    for field in fields {
        let is_text = match &field.field_type {
            FieldType::MultiLineText { .. } => true,
            FieldType::ContentReference | FieldType::FragmentReference { .. } => false,
            _ => continue,
        };
        let Some(property) = selected.fragment.value(reader, &field.name) else { continue };
        for value in property.values().iter().take(MAX_VALUES) {
            let source = value.to_text().into_owned();
            let found = if is_text {
                let media_type = selected.fragment.text_type(reader, &field.name);
                RichText { source, media_type: media_type.unwrap_or_default() }.references()
            } else {
                vec![source]
            };
            for path in found {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
    }
    paths
}

fn references_value<'a>(
    answer: &AnswerContext,
    paths: &[String],
    variation: Option<&str>,
) -> Result<Option<FieldValue<'a>>> {
    let mut references = Vec::new();
    for path in paths.iter().take(MAX_VALUES) {
        references.extend(reference_value(answer, path, variation)?);
    }
    Ok(Some(FieldValue::list(references)))
}
