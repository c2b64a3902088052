//! The settings that a process uses: of each key the value, and where it comes from.

use serde::Serialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config_reference::{ConfigKeyInfo, ConfigReference};

/// The source of a setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "origin", rename_all = "lowercase")]
pub enum SettingOrigin {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File {
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment {
        /// The name of the variable.
        variable: String,
    },
    /// An option of the command line.
    Option {
        /// The option, with its hyphens.
        option: String,
    },
}

/// The value of one key, and its source.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConfigSetting {
    /// The path of the key, with the chosen names and the numbers of list elements.
    pub key: String,
    /// The value as TOML; of a default, in words. A secret is replaced by `***`.
    pub value: String,
    /// The source.
    #[serde(flatten)]
    pub origin: SettingOrigin,
    /// The first sentence of the key's description.
    pub summary: String,
}

/// A value that takes precedence over the one of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigOverride {
    /// The path of the key.
    pub key: &'static str,
    /// The value as TOML.
    pub value: String,
    /// The source.
    pub origin: SettingOrigin,
}

/// Returns the settings of a valid file with these overrides: every key of the reference once with its default or its
/// value, and the keys in lists and in tables with chosen names once for each element that sets them.
///
/// # Errors
/// If the text is not TOML.
pub fn list_settings(
    reference: &ConfigReference,
    text: &str,
    overrides: &[ConfigOverride],
) -> Result<Vec<ConfigSetting>, String> {
    let table = DeTable::parse(text).map_err(|error| error.to_string())?;
    let mut values = Vec::new();
    collect_values(table.get_ref(), "", text, &mut values);
    let mut settings = Vec::new();
    for key in reference.keys() {
        let own: Vec<_> = values
            .iter()
            .filter(|value| {
                reference.find_key(&value.path).is_some_and(|found| found.path == key.path)
            })
            .collect();
        if let Some(given) = overrides.iter().find(|given| given.key == key.path) {
            settings.push(setting(key, key.path.clone(), &given.value, given.origin.clone()));
        } else if own.is_empty() {
            settings.push(setting(key, key.path.clone(), &key.default, SettingOrigin::Default));
        } else {
            settings.extend(own.into_iter().map(|value| {
                let origin = SettingOrigin::File { line: value.line };
                setting(key, value.path.clone(), &value.text, origin)
            }));
        }
    }
    // A valid file with a key that the reference does not have has it by an earlier name.
    let earlier = values.iter().filter(|value| reference.find_key(&value.path).is_none());
    settings.extend(earlier.map(|value| ConfigSetting {
        key: value.path.clone(),
        value: mask_password(&value.text),
        origin: SettingOrigin::File { line: value.line },
        summary: "An earlier name of a key".to_owned(),
    }));
    Ok(settings)
}

fn setting(key: &ConfigKeyInfo, path: String, value: &str, origin: SettingOrigin) -> ConfigSetting {
    let is_shown = !key.is_secret || origin == SettingOrigin::Default;
    ConfigSetting {
        key: path,
        value: if is_shown { mask_password(value) } else { "***".to_owned() },
        origin,
        summary: key.summary().to_owned(),
    }
}

/// Replaces the password of a URL, and the values of all parameters of its query: drivers read passwords and tokens from
/// there, by names of their own.
fn mask_password(value: &str) -> String {
    let Some((scheme, rest)) = value.split_once("://") else { return value.to_owned() };
    let authority = rest.split(['/', '?', '"', '#']).next().unwrap_or(rest);
    let behind = rest.get(authority.len()..).unwrap_or_default();
    let credentials = authority.rsplit_once('@');
    let masked = credentials.and_then(|(credentials, host)| {
        let (user, _) = credentials.split_once(':')?;
        Some(format!("{user}:***@{host}"))
    });
    let authority = masked.unwrap_or_else(|| authority.to_owned());
    format!("{scheme}://{authority}{}", mask_query(behind))
}

/// Replaces the values in the query of the part of a URL behind its authority.
fn mask_query(behind: &str) -> String {
    let Some((path, query)) = behind.split_once('?') else { return behind.to_owned() };
    let end = query.find(['"', '#']).unwrap_or(query.len());
    let (query, rest) = query.split_at(end);
    let masked = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) => format!("{name}=***"),
        None => parameter.to_owned(),
    });
    format!("{path}?{}{rest}", masked.collect::<Vec<_>>().join("&"))
}

/// A value of a file.
struct FileValue {
    path: String,
    text: String,
    line: usize,
}

fn collect_values(table: &DeTable<'_>, parent: &str, text: &str, values: &mut Vec<FileValue>) {
    for (name, value) in table {
        let name = name.get_ref();
        let path = if parent.is_empty() { name.to_string() } else { format!("{parent}.{name}") };
        collect_value(value, path, text, values);
    }
}

fn collect_value(
    value: &Spanned<DeValue<'_>>,
    path: String,
    text: &str,
    values: &mut Vec<FileValue>,
) {
    match value.get_ref() {
        DeValue::Table(table) => collect_values(table, &path, text, values),
        DeValue::Array(list)
            if !list.is_empty()
                && list.iter().all(|element| matches!(element.get_ref(), DeValue::Table(_))) =>
        {
            for (index, element) in list.iter().enumerate() {
                collect_value(element, format!("{path}[{index}]"), text, values);
            }
        }
        _ => {
            let span = value.span();
            let before = text.get(..span.start).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            // A list over several lines is shown on one.
            let written = text.get(span).unwrap_or_default();
            let text = written.split_whitespace().collect::<Vec<_>>().join(" ");
            values.push(FileValue { path, text, line });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use schemars::JsonSchema;

    use super::*;

    /// A file.
    #[derive(JsonSchema)]
    #[serde(default)]
    struct SampleFile {
        listen: SampleListen,
        back_ends: BTreeMap<String, SampleBackEnd>,
        mount: Vec<SampleBackEnd>,
    }

    /// The listener.
    #[derive(Default, JsonSchema)]
    #[serde(default)]
    struct SampleListen {
        /// The number of connections; default 10,000.
        connections: Option<usize>,
        /// The hosts.
        hosts: Vec<String>,
        /// The key.
        #[schemars(extend("x-secret" = true))]
        key: Option<String>,
    }

    /// A system.
    #[derive(JsonSchema)]
    #[expect(dead_code, reason = "only its schema is read")]
    struct SampleBackEnd {
        /// The address.
        url: String,
    }

    impl Default for SampleFile {
        fn default() -> Self {
            let (back_ends, mount) = (BTreeMap::new(), Vec::new());
            Self { listen: SampleListen::default(), back_ends, mount }
        }
    }

    fn lines(text: &str, overrides: &[ConfigOverride]) -> Vec<String> {
        let reference = ConfigReference::of::<SampleFile>();
        let line = |setting: ConfigSetting| {
            let origin = match setting.origin {
                SettingOrigin::Default => "default".to_owned(),
                SettingOrigin::File { line } => format!("line {line}"),
                SettingOrigin::Environment { variable } => variable,
                SettingOrigin::Option { option } => option,
            };
            format!("{} = {} ({origin})", setting.key, setting.value)
        };
        list_settings(&reference, text, overrides).unwrap().into_iter().map(line).collect()
    }

    #[test]
    fn every_key_has_a_value_and_a_source() {
        assert_eq!(
            lines("", &[]),
            [
                "listen.connections = 10,000 (default)",
                "listen.hosts = none (default)",
                "listen.key = none (default)",
                "back_ends.NAME.url = required (default)",
                "mount[].url = required (default)",
            ]
        );
        let text = "[listen]\nhosts = [\n  \"a\",\n  \"b\",\n]\nkey = \"secret\"\n\n[back_ends.crm]\n\
                    url = \"http://ann:secret@h:1/x@y\"\n[[mount]]\nurl = \"/a\"\n[[mount]]\nurl = \"/b\"\n";
        assert_eq!(
            lines(text, &[]),
            [
                "listen.connections = 10,000 (default)",
                "listen.hosts = [ \"a\", \"b\", ] (line 2)",
                "listen.key = *** (line 6)",
                "back_ends.crm.url = \"http://ann:***@h:1/x@y\" (line 9)",
                "mount[0].url = \"/a\" (line 11)",
                "mount[1].url = \"/b\" (line 13)",
            ]
        );
    }

    #[test]
    fn passwords_in_urls_are_hidden() {
        for (value, shown) in [
            ("postgres://u:a@h/db?password=b&x", "postgres://u:***@h/db?password=***&x"),
            (
                "\"postgres://h/db?sslmode=require&sslpassword=b\"",
                "\"postgres://h/db?sslmode=***&sslpassword=***\"",
            ),
            ("http://h/a?token=b#c", "http://h/a?token=***#c"),
            ("http://u@h:1/a", "http://u@h:1/a"),
            ("a?b=c", "a?b=c"),
        ] {
            assert_eq!(mask_password(value), shown);
        }
    }

    #[test]
    fn an_option_takes_precedence_over_the_file() {
        let given = ConfigOverride {
            key: "listen.connections",
            value: "7".to_owned(),
            origin: SettingOrigin::Option { option: "--connections".to_owned() },
        };
        let lines = lines("listen.connections = 5\n", &[given]);
        assert_eq!(lines[0], "listen.connections = 7 (--connections)");
    }

    #[test]
    fn a_key_by_an_earlier_name_is_listed() {
        let lines = lines("[listen]\nmax = 5\n", &[]);
        assert_eq!(lines.last().unwrap(), "listen.max = 5 (line 2)");
    }
}
