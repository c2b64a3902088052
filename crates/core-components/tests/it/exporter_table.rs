//! The JSON of models for the test content of the Core Components, row by row of the index that comes with it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tympan_core_components::{
    AuthoringMode, ComponentResource, ContentValue, DynamicMediaAsset, ModelRequest,
    RemoteMediaSettings, export_resource, find_model,
};

use crate::memory_context::{MemoryContext, shared};

/// Expected files of rows that the models do not reproduce; docs/compat/core-components.md has the reasons.
const DIFFERENT: &[&str] = &[];

/// One row of the index.
struct IndexRow<'a> {
    expected: &'a str,
    model: &'a str,
    content: &'a str,
    resource: &'a str,
    current_page: &'a str,
    policies: &'a str,
    request: &'a str,
    note: &'a str,
}

#[test]
fn models_give_the_json_of_the_index() {
    let Some(fixtures) = std::env::var_os("TYMPAN_FIXTURES") else {
        eprintln!("skipped: TYMPAN_FIXTURES names no folder");
        return;
    };
    let folder = PathBuf::from(fixtures).join("core-components");
    let index = std::fs::read_to_string(folder.join("INDEX.tsv")).unwrap();
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    let mut files = BTreeMap::new();
    for line in index.lines().skip(1).filter(|line| !line.is_empty()) {
        let row = index_row(line);
        let expected = read_json(&folder.join(row.expected));
        let actual = actual_json(&folder, &row, &mut files);
        let mut differences = String::new();
        compare("", &expected, &actual, &mut differences);
        if differences.is_empty() {
            passed.push(row.expected);
        } else {
            failed.push((row.expected, differences));
        }
    }
    for (name, differences) in &failed {
        eprintln!("FAILED {name}\n{differences}");
    }
    eprintln!("{} rows passed, {} failed", passed.len(), failed.len());
    let unexpected: Vec<&str> =
        failed.iter().map(|(name, _)| *name).filter(|name| !DIFFERENT.contains(name)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    let reproduced: Vec<&&str> = passed.iter().filter(|name| DIFFERENT.contains(name)).collect();
    assert!(reproduced.is_empty(), "no longer different: {reproduced:?}");
    assert!(passed.len() > 200, "only {} rows were read", passed.len());
}

fn index_row(line: &str) -> IndexRow<'_> {
    let cells: Vec<&str> = line.split('\t').collect();
    let [expected, model, content, resource, current_page, policies, request, note] =
        cells.as_slice()
    else {
        panic!("a row has other columns: {line}")
    };
    IndexRow { expected, model, content, resource, current_page, policies, request, note }
}

/// Exports the resource of a row.
fn actual_json(folder: &Path, row: &IndexRow<'_>, files: &mut BTreeMap<String, Value>) -> Value {
    let mut context = MemoryContext::default();
    context.uses_vanity_paths = true;
    for file in row.content.split(' ') {
        let (name, path) = file.split_once('=').unwrap();
        let tree = files.entry(name.to_owned()).or_insert_with(|| read_json(&folder.join(name)));
        context.load(path, tree);
    }
    if !row.current_page.is_empty() {
        context.current_page = Some(row.current_page.to_owned());
    }
    load_policies(&mut context, row.policies);
    load_request(&mut context, row.request);
    load_services(&mut context, row);
    let context = shared(context);
    let resource = ComponentResource::new(row.resource);
    let exported = export_resource(&context, &resource).unwrap().unwrap_or_else(|| {
        let class = class_name(row.model);
        let factory = find_model(&class).unwrap_or_else(|| panic!("no model `{class}`"));
        factory(&ModelRequest::new(context.clone(), resource))
    });
    let json = exported.to_json();
    match row.note.split("JSON of the data layer object of ").nth(1) {
        None => json,
        Some("the model") => json["dataLayer"].clone(),
        Some(child) => child_data(&context, row, child.trim_start_matches("child ")),
    }
}

/// Returns the data of one item of a panel container.
fn child_data(
    context: &std::sync::Arc<dyn tympan_core_components::ComponentContext>,
    row: &IndexRow<'_>,
    name: &str,
) -> Value {
    let factory = find_model(&class_name(row.model)).unwrap();
    let resource = ComponentResource::new(row.resource);
    let model = factory(&ModelRequest::new(context.clone(), resource));
    let Some(tympan_core_components::ModelValue::List(items)) = model.property("children") else {
        panic!("the model has no children")
    };
    let item = items
        .iter()
        .find(|item| item.property("name").is_some_and(|value| value.as_text() == Some(name)))
        .unwrap();
    item.property("data").unwrap().to_json()
}

/// Returns the class of `Title v3` or `form Button v1`.
fn class_name(model: &str) -> String {
    let (name, _) = model.rsplit_once(' ').unwrap();
    let package = "com.adobe.cq.wcm.core.components.models";
    match name.strip_prefix("form ") {
        Some(name) => format!("{package}.form.{name}"),
        None if name.starts_with("ContentFragment") => format!("{package}.contentfragment.{name}"),
        None => format!("{package}.{name}"),
    }
}

/// Loads `type: name=value, name=[value,value]`, several separated by `; `.
fn load_policies(context: &mut MemoryContext, policies: &str) {
    for (number, policy) in policies.split("; ").filter(|policy| !policy.is_empty()).enumerate() {
        let (resource_type, values) = policy.split_once(": ").unwrap();
        let path = format!("/conf/test-policies/policy-{number}");
        context.create(&path);
        context.policies.insert(resource_type.to_owned(), path.clone());
        if values == "(no properties)" {
            continue;
        }
        for value in values.split(", ") {
            let (name, value) = value.split_once('=').unwrap();
            let separator = if value.contains(" | ") { " | " } else { "," };
            let value = match value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
                Some(list) => ContentValue::List(list.split(separator).map(policy_value).collect()),
                None => policy_value(value),
            };
            context.set(&path, name, value);
        }
    }
}

fn policy_value(text: &str) -> ContentValue {
    match (text, text.parse::<i64>()) {
        ("true", _) => ContentValue::Boolean(true),
        ("false", _) => ContentValue::Boolean(false),
        (_, Ok(number)) => ContentValue::Long(number),
        _ => ContentValue::text(text),
    }
}

fn load_request(context: &mut MemoryContext, request: &str) {
    for part in request.split("; ").filter(|part| !part.is_empty()) {
        if let Some(parameter) = part.strip_prefix("parameter ") {
            let (name, value) = parameter.split_once('=').unwrap();
            context.request.parameters.push((name.to_owned(), value.to_owned()));
        } else if part.starts_with("wcmmode EDIT") {
            context.request.wcm_mode = AuthoringMode::Edit;
        } else if part == "context path is the empty string" {
            context.request.context_path = String::new();
        } else if let Some(path) = part.strip_prefix("context path ") {
            context.request.context_path = path.to_owned();
        } else {
            panic!("an unknown request: {part}");
        }
    }
}

/// Sets what the notes of a row say about services.
fn load_services(context: &mut MemoryContext, row: &IndexRow<'_>) {
    let note = row.note;
    if note.contains("data layer enabled") {
        context.enable_data_layer();
    }
    if let Some((_, rest)) = note.split_once("component binding mocked with resource type ") {
        let resource_type = rest.split(';').next().unwrap();
        context.create(&format!("/apps/{resource_type}"));
    }
    if note.contains("has the live copy") {
        let copies = vec!["/content/navigation-livecopy".to_owned()];
        context.live_copies.insert("/content/navigation-blueprint".to_owned(), copies);
    }
    if let Some((_, rest)) = note.split_once("SimpleSearch mocked: result is ") {
        let path = rest.split(';').next().unwrap();
        context.found_pages.push(path.trim_end_matches("/jcr:content").to_owned());
    }
    if let Some((_, rest)) = note.split_once("query result mocked: one hit, ") {
        context.found_fragments.push(rest.split(';').next().unwrap().to_owned());
    }
    if note.contains("design mocked with path /etc/designs/mysite") {
        context.design_path = Some("/etc/designs/mysite".to_owned());
    }
    if note.contains("static.css binary") {
        context.create("/etc/designs/mysite/static.css");
    }
    if let Some((_, rest)) = note.split_once("css class names of the component context mocked: ") {
        let classes = rest.split(';').next().unwrap().replace(", ", " ");
        context.request.attributes.insert("cssClassNames".to_owned(), classes.into());
    }
    if note.contains("HtmlLibraryManager mock") {
        context.client_library =
            Some("/etc.clientlibs/wcm/core/page/clientlibs/favicon".to_owned());
    }
    if note.contains("PublishUtils mock") {
        let name = dynamic_media_name(context, row.resource);
        context.dynamic_media =
            Some(DynamicMediaAsset { server: "https://s7d9.scene7.com".to_owned(), name });
    }
    if note.contains("NextGenDynamicMediaConfig mock: enabled=true") {
        context.remote_media = Some(RemoteMediaSettings {
            repository: "testrepo".to_owned(),
            delivery_path: "/adobe/dynamicmedia/deliver/{asset-id}/{seo-name}.{format}".to_owned(),
            metadata_path: "/adobe/assets/{asset-id}/metadata".to_owned(),
        });
    }
    if note.contains("metadata answer has smart crops Large (800x1200) and Medium (600x800)") {
        context.remote_metadata = Some(
            r#"{"repositoryMetadata":{"smartcrops":{"Large":{"width":800,"height":1200},"Medium":{"width":600,"height":800}}}}"#
                .to_owned(),
        );
    }
    if note.contains("request values are [local-item2-value]") {
        let name = "local-name".to_owned();
        context.request.parameters.push((name, "local-item2-value".to_owned()));
    }
    if note.contains("puts a DataSource over the children of") {
        let resource_type = "/content/options/dataDatasource/datasource";
        let folder = format!("{resource_type}/items");
        context.data_sources.insert(resource_type.to_owned(), folder);
    }
}

/// The name under which the mock delivers the asset of an image: that of the asset's metadata.
fn dynamic_media_name(context: &MemoryContext, resource: &str) -> String {
    use tympan_core_components::ComponentContext;
    let reference = context.property(resource, "fileReference").and_then(|value| value.to_text());
    let metadata = format!("{}/jcr:content/metadata", reference.unwrap_or_default());
    context.property(&metadata, "dam:scene7File").and_then(|value| value.to_text()).map_or_else(
        || "dmtestcompany/Adobe_Systems_logo_and_wordmark_DM".to_owned(),
        |name| name.to_string(),
    )
}

/// Reads JSON with comments and trailing commas.
fn read_json(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let strict = strict_json(&text);
    serde_json::from_str(&strict).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

/// Removes comments and trailing commas outside of texts.
fn strict_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, rest)| rest);
            continue;
        }
        let length = if letter == '"' { text_length(rest) } else { letter.len_utf8() };
        let (token, after) = rest.split_at(length);
        if matches!(letter, '}' | ']') {
            let trimmed = out.trim_end().len();
            if out[..trimmed].ends_with(',') {
                out.truncate(trimmed - 1);
            }
        }
        // A line break in a text is written as it is.
        if letter == '"' {
            out.push_str(&token.replace('\n', "\\n").replace('\t', "\\t"))
        } else {
            out.push_str(token)
        }
        rest = after;
    }
    out
}

fn text_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut end = 1;
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    end + 1
}

/// Writes each difference with its path. The order of members has no meaning; that of arrays has, except where the
/// original comes from a set.
fn compare(path: &str, expected: &Value, actual: &Value, out: &mut String) {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => {
            for (name, value) in expected {
                match actual.get(name) {
                    Some(found) => compare(&format!("{path}/{name}"), value, found, out),
                    None => writeln!(out, "  {path}/{name}: missing, expected {value}").unwrap(),
                }
            }
            for (name, value) in actual {
                if !expected.contains_key(name) {
                    writeln!(out, "  {path}/{name}: additional {value}").unwrap();
                }
            }
        }
        (Value::Array(expected), Value::Array(actual)) if expected.len() == actual.len() => {
            let is_set = path.ends_with("/xdm:tags");
            let sorted = |values: &[Value]| {
                let mut values = values.to_vec();
                if is_set {
                    values.sort_by_key(Value::to_string);
                }
                values
            };
            let pairs = sorted(expected).into_iter().zip(sorted(actual));
            for (number, (expected, actual)) in pairs.enumerate() {
                compare(&format!("{path}/{number}"), &expected, &actual, out);
            }
        }
        _ if expected == actual => {}
        _ => writeln!(out, "  {path}:\n    expected {expected}\n    actual   {actual}").unwrap(),
    }
}
