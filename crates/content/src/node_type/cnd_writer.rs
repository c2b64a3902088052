//! The writer of CND: one property or child per line, defaults omitted.
//!
//! Invariant: the written text parses to the same definitions.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::cnd_lexer::is_unquoted_name;
use super::type_definition::{
    AvailableQueryOperator, ChildDefinition, ItemFlags, NodeTypeDefinition, OnParentVersion,
    PropertyDefinition, RESIDUAL_NAME,
};

/// Writes definitions as CND, with the namespaces that they use.
#[must_use]
pub fn write_cnd(types: &[NodeTypeDefinition], namespaces: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    for (prefix, uri) in namespaces {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "<{} = {}>", format_quoted(prefix), format_quoted(uri));
    }
    for definition in types {
        if !out.is_empty() {
            out.push('\n');
        }
        write_type(&mut out, definition);
    }
    out
}

fn write_type(out: &mut String, definition: &NodeTypeDefinition) {
    let _ = write!(out, "[{}]", format_name(&definition.name));
    write_list(out, " > ", &definition.supertypes, format_name);
    out.push('\n');
    let mut words = Vec::new();
    let flags = definition.flags;
    words.extend(flags.is_abstract.then_some("abstract".to_owned()));
    words.extend(flags.is_mixin.then_some("mixin".to_owned()));
    words.extend(flags.has_orderable_children.then_some("orderable".to_owned()));
    words.extend((!flags.is_queryable).then_some("noquery".to_owned()));
    words.extend(
        definition.primary_item.as_ref().map(|item| format!("primaryitem {}", format_name(item))),
    );
    if !words.is_empty() {
        let _ = writeln!(out, "  {}", words.join(" "));
    }
    for property in &definition.properties {
        write_property(out, property);
    }
    for child in &definition.children {
        write_child(out, child);
    }
}

fn write_property(out: &mut String, property: &PropertyDefinition) {
    let value_type = property.value_type.map_or("undefined", crate::ValueType::name);
    let _ = write!(out, "  - {} ({})", format_name(&property.name), value_type.to_lowercase());
    write_list(out, " = ", &property.default_values, format_quoted);
    if property.is_multiple {
        out.push_str(" multiple");
    }
    write_flags(out, property.flags);
    let query = &property.query_use;
    if query.operators != AvailableQueryOperator::ALL {
        let signs: Vec<&str> = query.operators.iter().map(|operator| operator.sign()).collect();
        let _ = write!(out, " queryops '{}'", signs.join(", "));
    }
    if !query.is_full_text_searchable {
        out.push_str(" nofulltext");
    }
    if !query.is_orderable {
        out.push_str(" noqueryorder");
    }
    write_list(out, " < ", &property.constraints, format_quoted);
    out.push('\n');
}

fn write_child(out: &mut String, child: &ChildDefinition) {
    let _ = write!(out, "  + {}", format_name(&child.name));
    if !child.required_types.is_empty() {
        let types: Vec<String> =
            child.required_types.iter().map(|type_name| format_name(type_name)).collect();
        let _ = write!(out, " ({})", types.join(", "));
    }
    if let Some(default) = &child.default_type {
        let _ = write!(out, " = {}", format_name(default));
    }
    write_flags(out, child.flags);
    if child.allows_same_names {
        out.push_str(" sns");
    }
    out.push('\n');
}

fn write_flags(out: &mut String, flags: ItemFlags) {
    if flags.is_autocreated {
        out.push_str(" autocreated");
    }
    if flags.is_mandatory {
        out.push_str(" mandatory");
    }
    if flags.is_protected {
        out.push_str(" protected");
    }
    if flags.on_parent_version != OnParentVersion::default() {
        let _ = write!(out, " {}", flags.on_parent_version.name().to_lowercase());
    }
}

fn write_list(out: &mut String, sign: &str, texts: &[String], write: impl Fn(&str) -> String) {
    if !texts.is_empty() {
        let texts: Vec<String> = texts.iter().map(|text| write(text)).collect();
        let _ = write!(out, "{sign}{}", texts.join(", "));
    }
}

fn format_name(name: &str) -> String {
    if name == RESIDUAL_NAME || is_unquoted_name(name) {
        name.to_owned()
    } else {
        format_quoted(name)
    }
}

fn format_quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n");
    format!("'{text}'")
}
