//! The reference of a configuration file: all its keys, derived from the structs that parse it.
//!
//! In: the JSON schema of the struct of the whole file, which `schemars` derives from fields, types and doc comments.
//! Out: a list of keys, each with its type, default and description; and the list as a page of the manual.
//!
//! Invariants
//! * A key that a struct parses is in the reference, and no other: there is no second list.
//! * The default is the one that the doc comment of the field states after the word "default".

use std::fmt::Write as _;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// Stands for the name that a person chooses, in the path of a key: `back_ends.NAME.url`.
pub(crate) const CHOSEN_NAME: &str = "NAME";

/// The columns of the page, as in the rest of the manual.
const PAGE_COLUMNS: usize = 120;

/// One key of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigKeyInfo {
    /// The section and the name: `listen.max_body`. `[]` follows the name of a list of tables: `mounts.mount[].name`.
    pub path: String,
    /// The type of the value, in words: `size`, `duration`, `text`, `number`, `true or false`, `list of text`.
    pub value_type: String,
    /// The default in words, or `required`.
    pub default: String,
    /// The description, one paragraph.
    pub description: String,
    /// True if the value must not be shown.
    pub is_secret: bool,
}

impl ConfigKeyInfo {
    /// Returns the first sentence of the description.
    pub fn summary(&self) -> &str {
        let text = self.description.as_str();
        let end = sentence_end(text);
        let without_default = default_phrase_start(text).filter(|start| *start < end);
        text.get(..without_default.unwrap_or(end)).unwrap_or(text).trim_end_matches([';', '.', ' '])
    }
}

/// One section of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSectionInfo {
    /// The path of the section: `listen`, `mounts.mount[]`, `back_ends.NAME`.
    pub path: String,
    /// The description.
    pub description: String,
    /// The keys directly in the section, in the order of the struct.
    pub keys: Vec<ConfigKeyInfo>,
}

/// All sections and keys of a configuration file, in the order of its struct.
#[derive(Debug, Clone, Default)]
pub struct ConfigReference {
    sections: Vec<ConfigSectionInfo>,
}

impl ConfigReference {
    /// Returns the reference of the file that this type parses.
    pub fn of<T: JsonSchema>() -> Self {
        let settings = SchemaSettings::default().for_deserialize().with(|settings| {
            settings.inline_subschemas = true;
        });
        let schema = settings.into_generator().into_root_schema_for::<T>();
        let mut reference = Self::default();
        reference.add_section("", schema.as_value());
        reference
    }

    /// Returns the sections, parents first.
    pub fn sections(&self) -> &[ConfigSectionInfo] {
        &self.sections
    }

    /// Returns all keys.
    pub fn keys(&self) -> impl Iterator<Item = &ConfigKeyInfo> {
        self.sections.iter().flat_map(|section| &section.keys)
    }

    /// Finds a key by its path, in which names that a person chose and numbers of list elements may stand:
    /// `back_ends.crm.url`, `mounts.mount[0].name`.
    pub fn find_key(&self, path: &str) -> Option<&ConfigKeyInfo> {
        self.keys().find(|key| is_path_of(&key.path, path))
    }

    /// Finds a section by its path.
    pub fn find_section(&self, path: &str) -> Option<&ConfigSectionInfo> {
        self.sections.iter().find(|section| !path.is_empty() && is_path_of(&section.path, path))
    }

    /// Returns the path of the key that is nearest to a misspelled one.
    pub fn nearest_path(&self, path: &str) -> Option<&str> {
        let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
        // The name of a key is remembered, and its section forgotten.
        let distance = |key: &&ConfigKeyInfo| {
            let whole = strsim::levenshtein(&key.path, path);
            if last(&key.path) == last(path) { whole.min(1) } else { whole }
        };
        self.keys().min_by_key(distance).map(|key| key.path.as_str())
    }

    fn add_section(&mut self, path: &str, schema: &Value) {
        let at = self.sections.len();
        self.sections.push(ConfigSectionInfo {
            path: path.to_owned(),
            description: description_of(schema),
            keys: Vec::new(),
        });
        let required: Vec<&str> = (schema.get("required").and_then(Value::as_array))
            .map(|names| names.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let mut keys = Vec::new();
        for (name, field) in
            schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match sub_table(field) {
                Some(SubTable::One(table)) => self.add_section(&path, table),
                Some(SubTable::List(table)) => self.add_section(&format!("{path}[]"), table),
                Some(SubTable::Named(table)) => {
                    self.add_section(&format!("{path}.{CHOSEN_NAME}"), table);
                }
                None => keys.push(config_key(path, field, required.contains(&name.as_str()))),
            }
        }
        if let Some(section) = self.sections.get_mut(at) {
            section.keys = keys;
        }
    }

    /// Returns the page of the manual that lists all keys, below this introduction.
    pub fn to_markdown(&self, introduction: &str) -> String {
        let mut page = format!("{}\n", introduction.trim_end());
        for section in self.sections.iter().filter(|section| !section.keys.is_empty()) {
            let header = match section.path.strip_suffix("[]") {
                Some(list) => format!("[[{list}]]"),
                None => format!("[{}]", section.path),
            };
            write!(page, "\n## `{header}`\n\n").unwrap_or_default();
            if !section.description.is_empty() {
                push_wrapped(&mut page, &section.description, "", "");
                page.push('\n');
            }
            for key in &section.keys {
                let name = key.path.rsplit('.').next().unwrap_or(&key.path);
                let text = format!("`{name}` ({}): {}", key.value_type, key.description);
                push_wrapped(&mut page, &text, "* ", "  ");
            }
        }
        page
    }
}

/// A table within a table.
enum SubTable<'a> {
    One(&'a Value),
    /// `[[name]]`.
    List(&'a Value),
    /// `[name.CHOSEN]`.
    Named(&'a Value),
}

fn sub_table(schema: &Value) -> Option<SubTable<'_>> {
    let schema = without_null(schema);
    if schema.get("properties").is_some() {
        return Some(SubTable::One(schema));
    }
    let has_fields = |table: &&Value| table.get("properties").is_some();
    let list = schema.get("items").map(without_null).filter(has_fields).map(SubTable::List);
    list.or_else(|| {
        let values = schema.get("additionalProperties").map(without_null);
        values.filter(has_fields).map(SubTable::Named)
    })
}

/// Returns the schema of the value, without the alternative that it is absent.
fn without_null(schema: &Value) -> &Value {
    let is_null = |schema: &&Value| schema.get("type").and_then(Value::as_str) == Some("null");
    (schema.get("anyOf").and_then(Value::as_array))
        .and_then(|choices| choices.iter().find(|choice| !is_null(choice)))
        .unwrap_or(schema)
}

fn config_key(path: String, field: &Value, is_required: bool) -> ConfigKeyInfo {
    let description = description_of(field);
    let value_type = value_type(field);
    let default = match default_phrase(&description) {
        Some(phrase) => phrase.to_owned(),
        None if is_required => "required".to_owned(),
        None if value_type == "true or false" => "false".to_owned(),
        None => "none".to_owned(),
    };
    let is_secret = field.get("x-secret").and_then(Value::as_bool).unwrap_or(false);
    ConfigKeyInfo { path, value_type, default, description, is_secret }
}

fn description_of(schema: &Value) -> String {
    let own = schema.get("description").or_else(|| without_null(schema).get("description"));
    let text = own.and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the type of a value in words.
fn value_type(schema: &Value) -> String {
    let schema = without_null(schema);
    if let Some(format) = schema.get("format").and_then(Value::as_str)
        && matches!(format, "size" | "duration")
    {
        return format.to_owned();
    }
    let words: Vec<&str> = (schema.get("enum").into_iter())
        .chain(schema.get("oneOf"))
        .filter_map(Value::as_array)
        .flatten()
        .filter_map(|choice| choice.get("const").unwrap_or(choice).as_str())
        .collect();
    if !words.is_empty() {
        return words.join(" | ");
    }
    let name = match schema.get("type") {
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default()
        }
        Some(name) => name.as_str().unwrap_or_default(),
        None => "",
    };
    match name {
        "string" => "text".to_owned(),
        "integer" | "number" => "number".to_owned(),
        "boolean" => "true or false".to_owned(),
        "array" => {
            format!("list of {}", schema.get("items").map_or_else(String::new, value_type))
        }
        "object" => {
            let values = schema.get("additionalProperties").map_or_else(String::new, value_type);
            format!("table of {values}")
        }
        other => other.to_owned(),
    }
}

/// Returns the offset behind the first sentence: at a period that a space or the end follows.
fn sentence_end(text: &str) -> usize {
    text.find(". ").map_or(text.len(), |period| period + 1)
}

/// Returns the offset of `default …`, where it begins a sentence or follows a semicolon.
fn default_phrase_start(text: &str) -> Option<usize> {
    let starts = ["; default ", "; default: ", ". Default ", ". Default: "];
    let inner = starts.iter().filter_map(|start| text.find(start).map(|at| at + 2)).min();
    let is_first = text.starts_with("Default ") || text.starts_with("Default: ");
    if is_first { Some(0) } else { inner }
}

/// Returns the default as a description states it.
fn default_phrase(description: &str) -> Option<&str> {
    let start = default_phrase_start(description)?;
    let phrase = description.get(start + "default".len()..)?.trim_start_matches([':', ' ']);
    // Within backticks is a value, whose semicolons and periods end nothing.
    let mut is_code = false;
    let mut end = phrase.len();
    for (at, letter) in phrase.char_indices() {
        is_code ^= letter == '`';
        let is_end = matches!(letter, ';' | '.')
            && phrase.get(at + 1..).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
        if is_end && !is_code {
            end = at;
            break;
        }
    }
    phrase.get(..end)
}

/// Returns true if `path` is an instance of the path of a key, or that path itself.
fn is_path_of(key_path: &str, path: &str) -> bool {
    let (mut keys, mut parts) = (key_path.split('.'), path.split('.'));
    loop {
        match (keys.next(), parts.next()) {
            (None, None) => return true,
            (Some(key), Some(part)) if key == part || key == CHOSEN_NAME => {}
            (Some(key), Some(part)) => {
                let is_element = key.strip_suffix("[]").is_some_and(|list| {
                    part.strip_prefix(list).is_some_and(|rest| {
                        rest.is_empty() || (rest.starts_with('[') && rest.ends_with(']'))
                    })
                });
                if !is_element {
                    return false;
                }
            }
            (Some(_), None) | (None, Some(_)) => return false,
        }
    }
}

/// Appends a paragraph, broken at spaces.
fn push_wrapped(page: &mut String, text: &str, first: &str, next: &str) {
    let mut line = first.to_owned();
    let mut is_empty = true;
    for word in text.split(' ') {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > PAGE_COLUMNS {
            page.push_str(&line);
            page.push('\n');
            next.clone_into(&mut line);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    page.push_str(&line);
    page.push('\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;
    use tympan_notation::{ByteSize, DurationText};

    use super::*;

    /// A file.
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is read")]
    struct ReferenceSample {
        first: FirstSample,
        named: BTreeMap<String, NamedSample>,
        rule: Vec<NamedSample>,
    }

    /// The first
    /// section.
    #[derive(Default, Deserialize, JsonSchema)]
    #[serde(default)]
    struct FirstSample {
        /// The size; default 1.5 MiB, which is enough. Raise it.
        #[serde(rename = "max")]
        size: Option<ByteSize>,
        /// The time. Default: no limit.
        time: Option<DurationText>,
        /// If true, it is on.
        on: bool,
        /// Widths; default `"a; b"`, in pixels; 0 for none.
        widths: Vec<u32>,
        /// The mode, fast or slow.
        mode: Option<ModeSample>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    enum ModeSample {
        /// Fast.
        Fast,
        /// Slow.
        Slow,
    }

    /// One of many.
    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only its schema is read")]
    struct NamedSample {
        /// The address, such as `http://h/`. It is `http`.
        base_url: String,
        /// Headers.
        #[serde(default)]
        headers: BTreeMap<String, String>,
    }

    #[test]
    fn keys_have_the_types_and_defaults_of_their_fields() {
        let reference = ConfigReference::of::<ReferenceSample>();
        let keys: Vec<String> = reference
            .keys()
            .map(|key| {
                format!("{} | {} | {} | {}", key.path, key.value_type, key.default, key.summary())
            })
            .collect();
        assert_eq!(
            keys,
            [
                "first.max | size | 1.5 MiB, which is enough | The size",
                "first.time | duration | no limit | The time",
                "first.on | true or false | false | If true, it is on",
                "first.widths | list of number | `\"a; b\"`, in pixels | Widths",
                "first.mode | fast | slow | none | The mode, fast or slow",
                "named.NAME.baseUrl | text | required | The address, such as `http://h/`",
                "named.NAME.headers | table of text | none | Headers",
                "rule[].baseUrl | text | required | The address, such as `http://h/`",
                "rule[].headers | table of text | none | Headers",
            ]
        );
        assert_eq!(reference.find_section("first").unwrap().description, "The first section.");
    }

    #[test]
    fn keys_are_found_by_the_names_that_people_choose() {
        let reference = ConfigReference::of::<ReferenceSample>();
        let find = |path| reference.find_key(path).map(|key| key.path.as_str());
        assert_eq!(find("named.crm.baseUrl"), Some("named.NAME.baseUrl"));
        for path in ["rule[3].headers", "rule.headers", "rule[].headers"] {
            assert_eq!(find(path), Some("rule[].headers"), "{path}");
        }
        assert_eq!(find("rules.headers"), None);
        assert_eq!(find("first"), None);
        assert!(reference.find_section("named.crm").is_some());
        assert!(reference.find_section("").is_none());
        assert_eq!(reference.nearest_path("first.tme"), Some("first.time"));
        assert_eq!(reference.nearest_path("widths"), Some("first.widths"));
    }

    #[test]
    fn the_page_lists_all_keys_below_their_sections() {
        let page = ConfigReference::of::<ReferenceSample>().to_markdown("# Sample\n");
        let start = "# Sample\n\n## `[first]`\n\nThe first section.\n\n\
                     * `max` (size): The size; default 1.5 MiB, which is enough. Raise it.\n";
        assert!(page.starts_with(start), "{page}");
        assert!(page.contains("\n## `[named.NAME]`\n"), "{page}");
        assert!(page.contains("\n## `[[rule]]`\n\nOne of many.\n"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= PAGE_COLUMNS));
    }
}
