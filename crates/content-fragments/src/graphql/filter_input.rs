//! The input types of filters, with AEM's names.

use async_graphql::dynamic::{Enum, InputObject, InputValue, Scalar, SchemaBuilder, TypeRef};

use crate::fragment_model::{FieldType, FragmentModel, ModelField, SiteModels};

/// A type of values with a filter.
struct ValueFilter {
    /// The beginning of the names of its filters.
    name: &'static str,
    value_type: &'static str,
    /// A further option of its expressions, and the type of its value.
    option: Option<(&'static str, &'static str)>,
}

const IGNORE_CASE: Option<(&str, &str)> = Some(("_ignoreCase", TypeRef::BOOLEAN));
const MARGIN: Option<(&str, &str)> = Some(("_sensitiveness", TypeRef::FLOAT));

const VALUE_FILTERS: [ValueFilter; 8] = [
    ValueFilter { name: "String", value_type: TypeRef::STRING, option: IGNORE_CASE },
    ValueFilter { name: "ID", value_type: TypeRef::ID, option: IGNORE_CASE },
    ValueFilter { name: "Int", value_type: TypeRef::INT, option: None },
    ValueFilter { name: "Float", value_type: TypeRef::FLOAT, option: MARGIN },
    ValueFilter { name: "Boolean", value_type: TypeRef::BOOLEAN, option: None },
    ValueFilter { name: "Calendar", value_type: "Calendar", option: None },
    ValueFilter { name: "Date", value_type: "Date", option: None },
    ValueFilter { name: "Time", value_type: "Time", option: None },
];

const TEXT_OPERATORS: [&str; 5] =
    ["EQUALS", "EQUALS_NOT", "CONTAINS", "CONTAINS_NOT", "STARTS_WITH"];
const NUMBER_OPERATORS: [&str; 6] =
    ["EQUAL", "UNEQUAL", "GREATER", "GREATER_EQUAL", "LOWER", "LOWER_EQUAL"];
const DATE_OPERATORS: [&str; 6] =
    ["AT", "NOT_AT", "BEFORE", "AT_OR_BEFORE", "AFTER", "AT_OR_AFTER"];

fn enum_of(name: &str, items: &[&str]) -> Enum {
    Enum::new(name).items(items.iter().copied())
}

/// Registers the filters of values, which all schemas have.
pub(super) fn register_value_filters(mut builder: SchemaBuilder) -> SchemaBuilder {
    builder = builder
        .register(enum_of("LogOp", &["AND", "OR"]))
        .register(enum_of("ArrayMode", &["ALL", "ALL_OR_EMPTY", "AT_LEAST_ONCE", "INSTANCES"]))
        .register(enum_of("StringOperator", &TEXT_OPERATORS))
        .register(enum_of("IDOperator", &TEXT_OPERATORS))
        .register(enum_of("IntOperator", &NUMBER_OPERATORS))
        .register(enum_of("FloatOperator", &NUMBER_OPERATORS))
        .register(enum_of("BooleanOperator", &["EQUALS", "EQUALS_NOT"]));
    for name in ["Calendar", "Date", "Time"] {
        builder = builder
            .register(enum_of(&format!("{name}Operator"), &DATE_OPERATORS))
            .register(Scalar::new(name).description("A text in the form of ISO 8601."));
    }
    for ValueFilter { name, value_type: value, option } in VALUE_FILTERS {
        let operator = format!("{name}Operator");
        let mut single = InputObject::new(format!("{name}FilterExpression"))
            .field(InputValue::new("value", TypeRef::named(value)))
            .field(InputValue::new("_operator", TypeRef::named(&operator)));
        let mut list = InputObject::new(format!("{name}ArrayFilterExpression"))
            .field(InputValue::new("value", TypeRef::named(value)))
            .field(InputValue::new("values", TypeRef::named_list(value)))
            .field(InputValue::new("_operator", TypeRef::named(&operator)))
            .field(InputValue::new("_apply", TypeRef::named("ArrayMode")))
            .field(InputValue::new("_instances", TypeRef::named(TypeRef::INT)));
        if let Some((option, kind)) = option {
            single = single.field(InputValue::new(option, TypeRef::named(kind)));
            list = list.field(InputValue::new(option, TypeRef::named(kind)));
        }
        for (suffix, expression) in [("Filter", single), ("ArrayFilter", list)] {
            let filter = InputObject::new(format!("{name}{suffix}"))
                .field(InputValue::new("_logOp", TypeRef::named("LogOp")))
                .field(InputValue::new(
                    "_expressions",
                    TypeRef::named_nn_list(expression.type_name()),
                ));
            builder = builder.register(expression).register(filter);
        }
    }
    builder
}

/// Registers the filter of a model, and that of fields with several of its fragments.
pub(super) fn register_model_filter(
    builder: SchemaBuilder,
    models: &SiteModels,
    model: &FragmentModel,
) -> SchemaBuilder {
    let name = filter_name(model);
    let mut filter = InputObject::new(&name)
        .field(InputValue::new("_logOp", TypeRef::named("LogOp")))
        .field(InputValue::new("_path", TypeRef::named("IDFilter")))
        .field(InputValue::new("_id", TypeRef::named("IDFilter")))
        .field(InputValue::new("_variation", TypeRef::named("StringFilter")))
        .field(InputValue::new("_locale", TypeRef::named("StringFilter")))
        .field(InputValue::new("_tags", TypeRef::named("StringArrayFilter")));
    for field in &model.fields {
        if let Some(field_filter) = field_filter_name(models, field)
            && !field.name.starts_with('_')
        {
            filter = filter.field(InputValue::new(&field.name, TypeRef::named(field_filter)));
        }
    }
    let list = InputObject::new(format!("{}ArrayFilter", model.type_name))
        .field(InputValue::new("_apply", TypeRef::named("ArrayMode")))
        .field(InputValue::new("_instances", TypeRef::named(TypeRef::INT)))
        .field(InputValue::new("_match", TypeRef::named(&name)));
    builder.register(filter).register(list)
}

/// Returns the name of the filter of a model.
pub(super) fn filter_name(model: &FragmentModel) -> String {
    format!("{}Filter", model.type_name)
}

/// Returns the name of the filter of a field; `None` if it cannot be filtered.
fn field_filter_name(models: &SiteModels, field: &ModelField) -> Option<String> {
    let suffix = if field.is_list { "ArrayFilter" } else { "Filter" };
    let value = match &field.field_type {
        FieldType::Text
        | FieldType::MultiLineText { .. }
        | FieldType::Enumeration { .. }
        | FieldType::Tags => "String",
        FieldType::Integer => "Int",
        FieldType::Float => "Float",
        FieldType::Boolean => "Boolean",
        FieldType::Date => "Date",
        FieldType::Time => "Time",
        FieldType::DateTime => "Calendar",
        FieldType::ContentReference => "ID",
        FieldType::FragmentReference { models: targets } => match &**targets {
            [only] => &models.model_at(only)?.type_name,
            _ => "ID",
        },
        FieldType::Json => return None,
    };
    Some(format!("{value}{suffix}"))
}
