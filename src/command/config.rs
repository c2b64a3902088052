//! `tympan config`: shows, checks and explains the keys of `tympan.toml`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;
use tympan_home::{
    ConfigKeyInfo, ConfigOverride, ConfigReference, ConfigSetting, SettingOrigin, list_settings,
};
use tympan_server::EffectiveSetting;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use crate::args::{ConfigCommand, ConfigShowArgs, ConfigSourceArgs, ServiceRole};
use crate::config::{TympanConfig, check_config_text, list_renamed_keys, parse_config_text};

/// The environment variable that names the database.
const DATABASE_VARIABLE: &str = "TYMPAN_DATABASE";

/// Runs the command.
pub(crate) fn run_config_command(command: &ConfigCommand) -> CommandOutcome {
    match command {
        ConfigCommand::Show(arguments) => show_settings(arguments),
        ConfigCommand::Check { source, json } => check_file(source, *json),
        ConfigCommand::Explain { key, json } => explain_key(key, *json),
    }
}

/// A configuration file, which may not exist: then all settings have their defaults.
struct ConfigFile {
    name: String,
    text: String,
    home: Option<PathBuf>,
}

fn read_source(source: &ConfigSourceArgs) -> Result<ConfigFile, CommandFault> {
    let (file, is_required) = match (&source.settings, &source.home) {
        (Some(file), _) => (file.clone(), true),
        (None, Some(home)) if home.is_dir() => (home.join(tympan_home::CONFIG_FILE), false),
        (None, Some(home)) => {
            return Err(CommandFault::usage(format!("there is no folder `{}`", home.display())));
        }
        (None, None) => {
            return Ok(ConfigFile { name: String::new(), text: String::new(), home: None });
        }
    };
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_required => String::new(),
        Err(error) => {
            return Err(CommandFault::usage(format!("cannot read `{}`: {error}", file.display())));
        }
    };
    Ok(ConfigFile { name: file.display().to_string(), text, home: source.home.clone() })
}

fn show_settings(arguments: &ConfigShowArgs) -> CommandOutcome {
    let file = read_source(&arguments.source)?;
    // A file with faults would be shown as an instance never uses it.
    parse_config_text(&file.name, &file.text).map_err(CommandFault::usage)?;
    let reference = ConfigReference::of::<TympanConfig>();
    let mut settings = list_settings(&reference, &file.text, &setting_overrides(arguments))
        .map_err(CommandFault::usage)?;
    if arguments.changed {
        settings.retain(|setting| setting.origin != SettingOrigin::Default);
    }
    if arguments.json {
        return print_json(&settings);
    }
    for setting in &settings {
        say!("{}", setting_line(setting, &file.name));
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the settings of a home, as `tympan config show` prints them: without secrets.
///
/// # Errors
/// If the file has faults or cannot be read.
pub(crate) fn shown_settings_text(home: &Path) -> Result<String, CommandFault> {
    let source = ConfigSourceArgs { home: Some(home.to_owned()), settings: None };
    let file = read_source(&source)?;
    parse_config_text(&file.name, &file.text).map_err(CommandFault::usage)?;
    let settings = list_settings(&ConfigReference::of::<TympanConfig>(), &file.text, &[])
        .map_err(CommandFault::usage)?;
    Ok(settings.iter().map(|setting| setting_line(setting, &file.name) + "\n").collect())
}

fn setting_line(setting: &ConfigSetting, file: &str) -> String {
    let origin = origin_text(setting, file);
    format!("{} = {}  # {origin}; {}", setting.key, setting.value, setting.summary)
}

fn origin_text(setting: &ConfigSetting, file: &str) -> String {
    match &setting.origin {
        SettingOrigin::Default => "default".to_owned(),
        SettingOrigin::File { line } => format!("{file}:{line}"),
        SettingOrigin::Environment { variable } => format!("environment {variable}"),
        SettingOrigin::Option { option } => format!("option {option}"),
    }
}

/// Returns the settings that options of the command line and the environment determine, as for an instance.
fn setting_overrides(arguments: &ConfigShowArgs) -> Vec<ConfigOverride> {
    let option = |key, option: &str, value: Option<String>| {
        let origin = SettingOrigin::Option { option: option.to_owned() };
        value.map(|value| ConfigOverride { key, value: format!("{value:?}"), origin })
    };
    let address =
        |address: Option<std::net::SocketAddr>| address.map(|address| address.to_string());
    let database = database_override(arguments.database.as_deref());
    [
        option("listen.address", "--listen", address(arguments.listen)),
        option("admin.address", "--admin-listen", address(arguments.admin_listen)),
        option("blobs.url", "--blobs", arguments.blobs.clone()),
        database,
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the settings that an instance on a home uses, without secrets: those of its file, unless an option or the
/// environment determines them. A file that cannot be read or is invalid yields none, as no instance starts with it.
pub(crate) fn effective_settings(home: &Path, listen: SocketAddr) -> Vec<EffectiveSetting> {
    let text = std::fs::read_to_string(home.join(tympan_home::CONFIG_FILE)).unwrap_or_default();
    let reference = ConfigReference::of::<TympanConfig>();
    let configured = parse_config_text("", &text).unwrap_or_default().listen.address;
    let variable = std::env::var(DATABASE_VARIABLE).ok();
    let given = crate::home::database_url_override().filter(|url| variable.as_deref() != Some(url));
    let mut overrides: Vec<ConfigOverride> = database_override(given).into_iter().collect();
    let usual = [ServiceRole::Author, ServiceRole::Publish].map(ServiceRole::default_address);
    let is_default = configured.is_none() && usual.contains(&listen);
    if configured != Some(listen) && !is_default {
        let origin = SettingOrigin::Option { option: "--listen".to_owned() };
        overrides.push(ConfigOverride {
            key: "listen.address",
            value: format!("{:?}", listen.to_string()),
            origin,
        });
    }
    let settings = list_settings(&reference, &text, &overrides).unwrap_or_default();
    settings
        .into_iter()
        .map(|setting| EffectiveSetting {
            source: (setting.origin != SettingOrigin::Default)
                .then(|| origin_text(&setting, tympan_home::CONFIG_FILE)),
            key: setting.key,
            value: setting.value,
            summary: setting.summary,
        })
        .collect()
}

/// Returns the database that an option or the environment determines.
fn database_override(given: Option<&str>) -> Option<ConfigOverride> {
    let (value, origin) = match given {
        Some(value) => {
            (value.to_owned(), SettingOrigin::Option { option: "--database".to_owned() })
        }
        None => {
            let variable = DATABASE_VARIABLE.to_owned();
            (std::env::var(DATABASE_VARIABLE).ok()?, SettingOrigin::Environment { variable })
        }
    };
    Some(ConfigOverride { key: "database.url", value: format!("{value:?}"), origin })
}

/// The result of a check.
#[derive(Serialize)]
struct ConfigCheck {
    errors: Vec<String>,
    warnings: Vec<String>,
}

fn check_file(source: &ConfigSourceArgs, is_json: bool) -> CommandOutcome {
    if source.home.is_none() && source.settings.is_none() {
        return Err(CommandFault::usage(
            "name what is checked: --home DIR or --settings FILE.toml",
        ));
    }
    let file = read_source(source)?;
    let home = file.home.as_deref().unwrap_or(Path::new("."));
    let check = ConfigCheck {
        errors: check_config_text(&file.name, &file.text, home),
        warnings: list_renamed_keys(&file.name, &file.text),
    };
    if is_json {
        print_json(&check)?;
    } else {
        check.errors.iter().for_each(|error| say!("{error}"));
        check.warnings.iter().for_each(|warning| say!("warning: {warning}"));
        say!("{} errors, {} warnings", check.errors.len(), check.warnings.len());
    }
    let is_sound = check.errors.is_empty();
    Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED_EXIT_CODE) })
}

/// A key as it is explained.
#[derive(Serialize)]
struct ConfigKeyExplanation<'a> {
    key: &'a str,
    #[serde(rename = "type")]
    value_type: &'a str,
    default: &'a str,
    description: &'a str,
}

impl<'a> ConfigKeyExplanation<'a> {
    fn of(key: &'a ConfigKeyInfo) -> Self {
        Self {
            key: &key.path,
            value_type: &key.value_type,
            default: &key.default,
            description: &key.description,
        }
    }
}

fn explain_key(path: &str, is_json: bool) -> CommandOutcome {
    let reference = ConfigReference::of::<TympanConfig>();
    if let Some(key) = reference.find_key(path) {
        let explanation = ConfigKeyExplanation::of(key);
        if is_json {
            return print_json(&explanation);
        }
        say!("{}\n  type:    {}\n  default: {}\n", key.path, key.value_type, key.default);
        say!("{}", key.description);
        return Ok(ExitCode::SUCCESS);
    }
    // A section, with all below it.
    let below = format!("{path}.");
    let keys: Vec<&ConfigKeyInfo> = (reference.keys())
        .filter(|key| key.path.replace("[]", "").starts_with(&below.replace("[]", "")))
        .collect();
    if keys.is_empty() {
        let nearest = reference.nearest_path(path);
        let hint = nearest.map(|key| format!("; did you mean `{key}`?")).unwrap_or_default();
        return Err(CommandFault::usage(format!("there is no key `{path}`{hint}")));
    }
    if is_json {
        return print_json(
            &keys.iter().map(|key| ConfigKeyExplanation::of(key)).collect::<Vec<_>>(),
        );
    }
    if let Some(section) = reference.find_section(path) {
        say!("{}\n", section.description);
    }
    for key in keys {
        say!("{} ({}, default {}): {}", key.path, key.value_type, key.default, key.summary());
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json(value: &impl Serialize) -> CommandOutcome {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| CommandFault::cannot_run(format!("cannot write JSON: {error}")))?;
    say!("{text}");
    Ok(ExitCode::SUCCESS)
}
