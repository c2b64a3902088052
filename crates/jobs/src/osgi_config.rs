//! Reads configurations as Sling stores them in content: `sling:OsgiConfig` nodes, and `.cfg.json` and `.config` files,
//! in folders named `config` below `/apps` and `/libs`.
//!
//! In: a snapshot and the run modes of the instance. Out: one configuration for each PID, and the configurations that
//! could not be read.
//!
//! A folder `config.author.dev` applies if all these run modes are active. Of several configurations for a PID the one
//! with the most run modes applies, then the one below `/apps`, then the first by path.

pub(crate) mod watcher;

use std::io::Read;

use serde_json::{Map, Number, Value as Json};
use tympan_content::{
    JCR_CONTENT, Node, NodePath, PRIMARY_TYPE, Property, Repository, Snapshot, Value,
};

use crate::job::JobPriority;
use crate::queue::queue_config::{
    MAIN_QUEUE_PID, QUEUE_FACTORY, QueueConfig, QueueKind, default_queues,
};
use crate::queue::topic::TopicPattern;
use crate::{MaxParallel, Result};

/// The node type of configurations.
pub const OSGI_CONFIG_NODE_TYPE: &str = "sling:OsgiConfig";
/// Maximum size of a configuration file, in bytes.
const MAX_CONFIG_FILE_BYTES: u64 = 1 << 20;
/// Maximum depth of the folder search.
const MAX_SEARCH_DEPTH: usize = 32;

/// A configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct OsgiConfig {
    /// The PID: the name of the node or file.
    pub pid: String,
    /// The configuration's path.
    pub path: String,
    /// Its properties: strings, numbers, booleans and lists of them.
    pub properties: Map<String, Json>,
    /// Number of run modes in the folder's name.
    run_mode_count: usize,
}

impl OsgiConfig {
    /// Creates a configuration from a folder whose name has so many run modes.
    #[must_use]
    pub fn new(
        pid: impl Into<String>,
        path: impl Into<String>,
        properties: Map<String, Json>,
        run_mode_count: usize,
    ) -> Self {
        Self { pid: pid.into(), path: path.into(), properties, run_mode_count }
    }

    /// Returns true if the configuration belongs to this factory: its PID is the factory's PID, optionally followed by
    /// `-`, `~` or `.` and a name.
    #[must_use]
    pub fn has_factory(&self, factory: &str) -> bool {
        let rest = self.pid.strip_prefix(factory);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '~', '.']))
    }
}

/// A fault of a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// The path of the configuration.
    pub path: String,
    /// The fault, and its remedy.
    pub message: String,
}

/// All configurations of an instance.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OsgiConfigs {
    /// One configuration for each PID, sorted by PID.
    pub configs: Vec<OsgiConfig>,
    /// Faults of configurations that could not be read.
    pub faults: Vec<ConfigFault>,
}

impl OsgiConfigs {
    /// Reads the configurations of a snapshot.
    ///
    /// # Errors
    /// If content cannot be read; an invalid configuration is a fault in the result.
    pub fn read_snapshot(
        repository: &Repository,
        snapshot: &Snapshot,
        run_modes: &[&str],
    ) -> Result<Self> {
        let mut reading =
            OsgiConfigReader { repository, run_modes, configs: Vec::new(), faults: Vec::new() };
        for root in ["/apps", "/libs"] {
            if let Some(node) = snapshot.node(&NodePath::new(root)?)? {
                reading.search_config_folders(&node, 0)?;
            }
        }
        let OsgiConfigReader { mut configs, faults, .. } = reading;
        choose_configs(&mut configs);
        Ok(Self { configs, faults })
    }

    /// Returns the configured queues, and adds faults of invalid ones.
    #[must_use]
    pub fn take_queue_configs(&mut self) -> Vec<QueueConfig> {
        let mut queues = Vec::new();
        let is_queue = |config: &&OsgiConfig| {
            config.has_factory(QUEUE_FACTORY) || config.pid == MAIN_QUEUE_PID
        };
        for config in self.configs.iter().filter(is_queue) {
            match parse_queue_config(config) {
                Ok(queue) => {
                    let (path, notes) = (&config.path, list_ignored_properties(config));
                    let fault = |message| ConfigFault { path: path.clone(), message };
                    self.faults.extend(notes.map(fault));
                    queues.push(queue);
                }
                Err(message) => {
                    self.faults.push(ConfigFault { path: config.path.clone(), message });
                }
            }
        }
        queues
    }

    /// Returns the configurations that nothing here supports.
    pub fn iter_unknown<'a>(
        &'a self,
        known_factories: &'a [&'a str],
    ) -> impl Iterator<Item = &'a OsgiConfig> {
        self.configs.iter().filter(move |config| {
            !known_factories.iter().any(|factory| config.has_factory(factory))
        })
    }
}

/// Keeps the configuration of each PID that applies, sorted by PID.
pub fn choose_configs(configs: &mut Vec<OsgiConfig>) {
    let rank = |config: &OsgiConfig| {
        (
            std::cmp::Reverse(config.run_mode_count),
            !config.path.starts_with("/apps/"),
            config.path.clone(),
        )
    };
    configs.sort_by_cached_key(|config| (config.pid.clone(), rank(config)));
    configs.dedup_by(|later, first| later.pid == first.pid);
}

/// Ignored properties of Sling's queues, with the reasons.
const IGNORED_QUEUE_PROPERTIES: &[(&str, &str)] = &[
    (
        "queue.threadPoolSize",
        "queues share the threads of `[jobs] threads`; `queue.maxparallel` limits a queue",
    ),
    (
        "queue.preferRunOnCreationInstance",
        "every process on the database takes the next job; `--role assets` keeps work off a machine",
    ),
];

/// Returns messages about the ignored properties that a queue sets.
fn list_ignored_properties(config: &OsgiConfig) -> impl Iterator<Item = String> {
    let is_set = |name: &str| match config.properties.get(name) {
        None | Some(Json::Null | Json::Bool(false)) => false,
        Some(Json::Number(number)) => number.as_f64() != Some(0.0),
        Some(Json::String(text)) => !matches!(text.trim(), "" | "0" | "false"),
        Some(_) => true,
    };
    let set = IGNORED_QUEUE_PROPERTIES.iter().filter(move |(name, _)| is_set(name));
    set.map(|(name, reason)| format!("`{name}` is ignored: {reason}"))
}

/// Returns true if a change of a node can change configurations.
#[must_use]
pub fn can_change_configs(path: &NodePath) -> bool {
    let mut names = path.names();
    let is_below = matches!(names.next(), Some("apps" | "libs"));
    // A whole application may be added or removed at once, with the folders in it.
    is_below
        && (path.depth() <= 2
            || names.any(|name| config_folder_run_modes(name).is_some())
            || path.depth() <= 4)
}

/// Returns the run modes that a folder's name requires; `None` if it is not a configuration folder.
#[must_use]
pub fn config_folder_run_modes(name: &str) -> Option<Vec<&str>> {
    let rest = name.strip_prefix("config")?;
    if rest.is_empty() {
        Some(Vec::new())
    } else {
        Some(rest.strip_prefix('.')?.split('.').collect())
    }
}

struct OsgiConfigReader<'a> {
    repository: &'a Repository,
    run_modes: &'a [&'a str],
    configs: Vec<OsgiConfig>,
    faults: Vec<ConfigFault>,
}

impl OsgiConfigReader<'_> {
    fn search_config_folders(&mut self, folder: &Node, depth: usize) -> Result<()> {
        for child in folder.children()? {
            match config_folder_run_modes(child.name()) {
                Some(modes) if modes.iter().all(|mode| self.run_modes.contains(mode)) => {
                    self.read_config_folder(&child, modes.len(), depth)?;
                }
                Some(_) => {}
                None if depth < MAX_SEARCH_DEPTH => {
                    self.search_config_folders(&child, depth + 1)?
                }
                None => {}
            }
        }
        Ok(())
    }

    fn read_config_folder(&mut self, folder: &Node, modes: usize, depth: usize) -> Result<()> {
        for child in folder.children()? {
            let path = child.path().to_string();
            let name = child.name();
            if child.primary_type() == OSGI_CONFIG_NODE_TYPE {
                let properties = node_properties_as_json(&child);
                self.configs.push(OsgiConfig::new(name, path, properties, modes));
                continue;
            }
            let Some((pid, parse)) = config_file_parser(name) else {
                if depth < MAX_SEARCH_DEPTH && child.primary_type().contains("older") {
                    self.read_config_folder(&child, modes, depth + 1)?;
                }
                continue;
            };
            let Some(text) = self.read_file_text(&child)? else {
                let message = format!(
                    "the file does not contain text of at most {MAX_CONFIG_FILE_BYTES} bytes"
                );
                self.faults.push(ConfigFault { path, message });
                continue;
            };
            match parse(&text) {
                Ok(properties) => {
                    self.configs.push(OsgiConfig::new(pid, path, properties, modes));
                }
                Err(message) => self.faults.push(ConfigFault { path, message }),
            }
        }
        Ok(())
    }

    fn read_file_text(&self, file: &Node) -> Result<Option<String>> {
        let data = file.child(JCR_CONTENT)?.and_then(|content| content.property("jcr:data"));
        match data.as_ref().and_then(Property::first) {
            Some(Value::Binary(id)) if id.length() <= MAX_CONFIG_FILE_BYTES => {
                let blob = self.repository.blobs().open(id)?;
                let mut text = String::new();
                let read = blob.map(|blob| blob.into_reader().read_to_string(&mut text));
                Ok(matches!(read, Some(Ok(_))).then_some(text))
            }
            Some(Value::String(text)) => Ok(Some(text.clone())),
            _ => Ok(None),
        }
    }
}

/// Parses the text of a configuration file; the error describes the fault.
pub type OsgiConfigParser = fn(&str) -> Result<Map<String, Json>, String>;

/// Returns the PID in the name of a configuration file, and the parser of its format; `None` for other files.
#[must_use]
pub fn config_file_parser(name: &str) -> Option<(&str, OsgiConfigParser)> {
    if let Some(pid) = name.strip_suffix(".cfg.json") {
        Some((pid, parse_cfg_json))
    } else {
        Some((name.strip_suffix(".config")?, parse_felix_config))
    }
}

/// Returns a node's properties as JSON, without JCR properties.
pub(crate) fn node_properties_as_json(node: &Node) -> Map<String, Json> {
    let own = node.properties().into_iter().filter(|(name, _)| {
        name != PRIMARY_TYPE && !name.starts_with("jcr:") && !name.starts_with("sling:")
    });
    own.map(|(name, property)| (name, property_to_json(&property))).collect()
}

/// Returns a property of a configuration as JSON.
#[must_use]
pub fn property_to_json(property: &Property) -> Json {
    let values: Vec<Json> = property.values().iter().map(value_to_json).collect();
    if property.is_list() {
        Json::Array(values)
    } else {
        values.into_iter().next().unwrap_or(Json::Null)
    }
}

fn value_to_json(value: &Value) -> Json {
    match value {
        Value::Long(number) => Json::from(*number),
        Value::Double(number) => Number::from_f64(*number).map_or(Json::Null, Json::Number),
        Value::Boolean(truth) => Json::from(*truth),
        other => Json::from(other.to_text().into_owned()),
    }
}

/// Parses `.cfg.json`: JSON with comments, whose keys may include a type, as in `"queue.maxparallel:Double"`.
fn parse_cfg_json(text: &str) -> Result<Map<String, Json>, String> {
    let parsed: Json =
        serde_json::from_str(&blank_comments(text)).map_err(|error| error.to_string())?;
    let Json::Object(members) = parsed else {
        return Err("the file does not contain an object".to_owned());
    };
    let named = members.into_iter().map(|(key, value)| {
        let name = key.split_once(':').map_or(key.as_str(), |(name, _)| name);
        (name.to_owned(), value)
    });
    Ok(named.collect())
}

/// Replaces comments with blanks, so that positions in messages stay correct.
fn blank_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    let mut is_text = false;
    while let Some(letter) = letters.next() {
        match (is_text, letter, letters.peek()) {
            (true, '\\', Some(_)) => {
                out.push(letter);
                out.extend(letters.next());
            }
            (_, '"', _) => {
                is_text = !is_text;
                out.push(letter);
            }
            (false, '/', Some('/')) => while letters.next_if(|letter| *letter != '\n').is_some() {},
            (false, '/', Some('*')) => {
                letters.next();
                let mut before = ' ';
                for inner in letters.by_ref() {
                    if inner == '\n' {
                        out.push('\n');
                    }
                    if before == '*' && inner == '/' {
                        break;
                    }
                    before = inner;
                }
            }
            _ => out.push(letter),
        }
    }
    out
}

/// Parses `.config`, the format of Felix: `name=T"value"`, lists in brackets, lines continued by `\`.
fn parse_felix_config(text: &str) -> Result<Map<String, Json>, String> {
    let mut properties = Map::new();
    let joined = text.replace("\\\r\n", "").replace("\\\n", "");
    let mut rest = joined.trim_start_matches('\u{feff}');
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return Ok(properties);
        }
        if rest.starts_with(['#', '!']) {
            rest = rest.split_once('\n').map_or("", |(_, after)| after);
            continue;
        }
        let (name, after) = rest
            .split_once('=')
            .ok_or_else(|| format!("`{}` has no `=`", rest.lines().next().unwrap_or_default()))?;
        let name = name.trim();
        let (value, left) =
            parse_felix_value(after.trim_start()).map_err(|fault| format!("`{name}`: {fault}"))?;
        properties.insert(name.replace('\\', ""), value);
        rest = left;
    }
}

fn parse_felix_value(text: &str) -> Result<(Json, &str), String> {
    let (kind, text) = match text.chars().next() {
        Some(kind) if kind.is_ascii_alphabetic() => (Some(kind), text.get(1..).unwrap_or_default()),
        _ => (None, text),
    };
    if let Some(text) = text.strip_prefix('"') {
        let (raw, rest) = parse_quoted(text)?;
        return Ok((parse_typed_value(kind, &raw)?, rest));
    }
    if let Some(mut text) = text.strip_prefix(['[', '(']) {
        let mut values = Vec::new();
        loop {
            text = text.trim_start().trim_start_matches(',').trim_start();
            if let Some(rest) = text.strip_prefix([']', ')']) {
                return Ok((Json::Array(values), rest));
            }
            let inner = text.strip_prefix('"').ok_or("the values of a list must be quoted")?;
            let (raw, rest) = parse_quoted(inner)?;
            values.push(parse_typed_value(kind, &raw)?);
            text = rest;
        }
    }
    Err("a value must be in quotes, and a list in brackets".to_owned())
}

/// Parses a text up to the closing quote. Returns it and the rest.
fn parse_quoted(text: &str) -> Result<(String, &str), String> {
    let mut raw = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Ok((raw, text.get(at + 1..).unwrap_or_default())),
            '\\' => match letters.next() {
                Some((_, 'n')) => raw.push('\n'),
                Some((_, 't')) => raw.push('\t'),
                Some((_, character)) => raw.push(character),
                None => break,
            },
            character => raw.push(character),
        }
    }
    Err("a quote is not closed".to_owned())
}

fn parse_typed_value(kind: Option<char>, raw: &str) -> Result<Json, String> {
    let wrong = || format!("`{raw}` does not match its type");
    match kind.map(|kind| kind.to_ascii_uppercase()) {
        Some('B') => Ok(Json::from(raw.trim() == "true")),
        Some('I' | 'L' | 'S' | 'X') => {
            raw.trim().parse::<i64>().map(Json::from).map_err(|_| wrong())
        }
        // Felix writes the bits of a floating-point number as an integer.
        Some('D') => {
            let bits = raw.trim().parse::<i64>().ok().filter(|bits| bits.unsigned_abs() > 1 << 32);
            let number = match bits {
                Some(bits) => f64::from_bits(bits.cast_unsigned()),
                None => raw.trim().parse().map_err(|_| wrong())?,
            };
            Ok(Number::from_f64(number).map_or(Json::Null, Json::Number))
        }
        Some('F') => {
            let bits = raw.trim().parse::<i32>().ok().filter(|bits| bits.unsigned_abs() > 1 << 20);
            let number = match bits {
                Some(bits) => f32::from_bits(bits.cast_unsigned()),
                None => raw.trim().parse().map_err(|_| wrong())?,
            };
            Ok(Number::from_f64(f64::from(number)).map_or(Json::Null, Json::Number))
        }
        Some('T' | 'C') | None => Ok(Json::from(raw)),
        Some(other) => Err(format!("`{other}` is not a value type")),
    }
}

/// Parses a queue configuration. For a built-in PID, missing properties have the built-in values.
fn parse_queue_config(config: &OsgiConfig) -> Result<QueueConfig, String> {
    let shipped = default_queues().into_iter().find(|queue| queue.pid == config.pid);
    let is_shipped = shipped.is_some();
    let mut queue = shipped.unwrap_or_else(|| QueueConfig::new("", &[]));
    queue.pid.clone_from(&config.pid);
    queue.path = Some(config.path.clone());
    for (name, value) in &config.properties {
        set_queue_property(&mut queue, name, value)?;
    }
    if queue.name.is_empty() {
        return Err("the queue has no `queue.name`".to_owned());
    }
    if queue.topics.is_empty() && !is_shipped {
        return Err("the queue has no `queue.topics`".to_owned());
    }
    Ok(queue)
}

/// Sets one property of a queue by Sling's name; unknown properties are ignored.
///
/// # Errors
/// A message that describes the expected value.
pub fn set_queue_property(queue: &mut QueueConfig, name: &str, value: &Json) -> Result<(), String> {
    let number = || {
        let text = value.as_str().and_then(|text| text.trim().parse().ok());
        value.as_f64().or(text).ok_or_else(|| format!("`{name}` must be a number, not {value}"))
    };
    let text = || {
        value.as_str().map(str::trim).ok_or_else(|| format!("`{name}` must be a text, not {value}"))
    };
    match name {
        "queue.name" => text()?.clone_into(&mut queue.name),
        "queue.topics" => {
            let single_value = std::slice::from_ref(value);
            let values = value.as_array().map_or(single_value, Vec::as_slice);
            let texts = values.iter().filter_map(Json::as_str).map(str::trim);
            let texts = texts.filter(|text| !text.is_empty());
            queue.topics = texts.map(TopicPattern::parse_queue_pattern).collect();
        }
        "queue.type" => {
            let expected = "`queue.type` must be UNORDERED, ORDERED or TOPIC_ROUND_ROBIN";
            queue.kind = QueueKind::from_name(text()?).ok_or(expected)?;
        }
        "queue.maxparallel" => queue.max_parallel = MaxParallel::from_number(number()?),
        "queue.retries" => {
            let number = number()?;
            queue.retries = (number >= 0.0).then_some(number as u32);
        }
        "queue.retrydelay" => {
            queue.retry_delay = std::time::Duration::from_millis(number()?.max(0.0) as u64);
        }
        "queue.priority" => {
            queue.priority = match text()?.to_ascii_uppercase().as_str() {
                "MIN" => JobPriority::Low,
                "NORM" => JobPriority::Normal,
                "MAX" => JobPriority::High,
                _ => return Err("`queue.priority` must be MIN, NORM or MAX".to_owned()),
            };
        }
        "queue.keepJobs" => {
            queue.keeps_finished_jobs = value.as_bool().unwrap_or(value.as_str() == Some("true"));
        }
        "service.ranking" => queue.ranking = number()? as i64,
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Json {
        parse_felix_config(text).map_or_else(Json::String, Json::Object)
    }

    #[test]
    fn reads_felix_files() {
        let text = "# a comment\n:org.apache.felix.configadmin.revision:=L\"1\"\n\
                    queue.name=\"Mine\"\nqueue.topics=[ \\\n  \"a/b\", \\\n  \"c\\=d/*\", \\\n  ]\n\
                    queue.maxparallel=D\"4602678819172646912\"\nqueue.retries=I\"3\"\nqueue.keepJobs=B\"true\"\n";
        assert_eq!(
            config(text),
            serde_json::json!({
                ":org.apache.felix.configadmin.revision:": 1, "queue.name": "Mine", "queue.topics": ["a/b", "c=d/*"],
                "queue.maxparallel": 0.5, "queue.retries": 3, "queue.keepJobs": true,
            })
        );
        assert_eq!(config("a=D\"0.5\""), serde_json::json!({ "a": 0.5 }));
        for bad in ["a", "a=b", "a=\"b", "a=I\"x\"", "a=[\"b\"", "a=[b]", "a=Q\"b\""] {
            assert!(config(bad).is_string(), "{bad}");
        }
    }

    #[test]
    fn reads_json_with_comments_and_types() {
        let text = "// one\n{ /* two */ \"queue.maxparallel:Double\": 0.5, \"a\": \"b//c\" }";
        let parsed = parse_cfg_json(text).unwrap();
        assert_eq!(
            Json::Object(parsed),
            serde_json::json!({ "queue.maxparallel": 0.5, "a": "b//c" })
        );
        for bad in ["[]", "{", "{ \"a\": }", "/* x"] {
            parse_cfg_json(bad).unwrap_err();
        }
    }

    #[test]
    fn factories_own_what_is_named_after_them() {
        let is_of = |pid: &str| OsgiConfig::new(pid, "", Map::new(), 0).has_factory(QUEUE_FACTORY);
        assert!(is_of("org.apache.sling.event.jobs.QueueConfiguration-mine"));
        assert!(is_of("org.apache.sling.event.jobs.QueueConfiguration~mine"));
        assert!(is_of(
            "org.apache.sling.event.jobs.QueueConfiguration.370aad73-d01b-4a0b-abe4-20198d85f705"
        ));
        assert!(!is_of("org.apache.sling.event.jobs.QueueConfigurations-mine"));
    }

    #[test]
    fn folders_name_run_modes() {
        assert_eq!(config_folder_run_modes("config"), Some(vec![]));
        assert_eq!(config_folder_run_modes("config.author.dev"), Some(vec!["author", "dev"]));
        assert_eq!(config_folder_run_modes("configuration"), None);
        let is_config = |path: &str| can_change_configs(&NodePath::new(path).unwrap());
        assert!(is_config("/apps/site/config.author/x"));
        assert!(is_config("/apps/site"));
        assert!(!is_config("/content/config/x"));
    }
}
