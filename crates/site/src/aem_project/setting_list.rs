//! The configurations of a project: those that apply here, and the ones that are left out.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value as Json;
use tympan_jobs::{OsgiConfig, OsgiConfigs, choose_configs};

use super::package_contents::{PackageContents, ProjectConfig};
use super::project_options::AemProjectOptions;

/// The factory of configurations with repository initialization, and its former name.
const REPOINIT_FACTORIES: [&str; 2] = [
    "org.apache.sling.jcr.repoinit.RepositoryInitializer",
    "org.apache.sling.jcr.repoinit.impl.RepositoryInitializer",
];

/// The configurations of a project.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SettingList {
    /// The configurations that apply here.
    pub applied: Vec<SettingFile>,
    /// The configurations without an effect here, and single properties without one.
    pub skipped: Vec<SettingFile>,
}

/// A configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SettingFile {
    /// The PID.
    pub pid: String,
    /// The node or file.
    pub path: String,
    /// The names of its properties.
    pub properties: Vec<String>,
    /// The reason why it is skipped.
    pub reason: Option<String>,
}

impl SettingFile {
    fn new(config: &OsgiConfig, reason: Option<&str>) -> Self {
        Self {
            pid: config.pid.clone(),
            path: config.path.clone(),
            properties: config.properties.keys().cloned().collect(),
            reason: reason.map(str::to_owned),
        }
    }
}

/// A script of repository initialization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepoinitScript {
    /// The configuration or file that contains it.
    pub origin: String,
    /// The statements.
    pub text: String,
}

/// The configurations of a project by what becomes of them.
pub(super) struct ChosenSettings {
    pub(super) list: SettingList,
    pub(super) repoinit_scripts: Vec<RepoinitScript>,
}

/// Chooses the configuration of each PID that applies with the run modes, and takes the scripts of repository
/// initialization from them.
pub(super) fn choose_settings(
    contents: &mut PackageContents,
    options: &AemProjectOptions<'_>,
) -> ChosenSettings {
    let mut candidates = Vec::new();
    for ProjectConfig { run_modes, config } in std::mem::take(&mut contents.configs) {
        let missing =
            run_modes.iter().find(|mode| !options.run_modes.iter().any(|active| active == *mode));
        match (config, missing) {
            (Err(file), _) => contents.left_out.push(file),
            (Ok(config), Some(mode)) => {
                contents.leave_out(&config.path, format!("it is for the run mode `{mode}`"));
            }
            (Ok(config), None) => candidates.push(config),
        }
    }
    let mut chosen = candidates.clone();
    choose_configs(&mut chosen);
    let paths: BTreeSet<&str> = chosen.iter().map(|config| config.path.as_str()).collect();
    for config in candidates.iter().filter(|config| !paths.contains(config.path.as_str())) {
        contents.leave_out(&config.path, "another configuration of this PID takes precedence");
    }
    let mut settings =
        ChosenSettings { list: SettingList::default(), repoinit_scripts: Vec::new() };
    let mut supported = OsgiConfigs::default();
    for config in chosen {
        if REPOINIT_FACTORIES.iter().any(|factory| config.has_factory(factory)) {
            settings.add_repoinit(&config);
        } else if options.supported_pids.iter().any(|factory| config.has_factory(factory)) {
            settings.list.applied.push(SettingFile::new(&config, None));
            supported.configs.push(config);
        } else {
            let reason = "there is no such setting here";
            settings.list.skipped.push(SettingFile::new(&config, Some(reason)));
        }
    }
    // The properties that queues do not have here.
    drop(supported.take_queue_configs());
    for fault in supported.faults {
        let pid = supported.configs.iter().find(|config| config.path == fault.path);
        settings.list.skipped.push(SettingFile {
            pid: pid.map(|config| config.pid.clone()).unwrap_or_default(),
            path: fault.path,
            properties: Vec::new(),
            reason: Some(fault.message),
        });
    }
    settings
}

impl ChosenSettings {
    fn add_repoinit(&mut self, config: &OsgiConfig) {
        for script in texts(config.properties.get("scripts")) {
            self.repoinit_scripts
                .push(RepoinitScript { origin: config.path.clone(), text: script.to_owned() });
        }
        for reference in texts(config.properties.get("references")) {
            let reason =
                format!("the reference `{reference}` is not read; give its text as a file");
            let mut file = SettingFile::new(config, Some(&reason));
            file.properties = vec!["references".to_owned()];
            self.list.skipped.push(file);
        }
    }
}

fn texts(value: Option<&Json>) -> Vec<&str> {
    let values = match value {
        Some(Json::Array(values)) => values.iter().collect(),
        Some(value) => vec![value],
        None => Vec::new(),
    };
    let texts = values.into_iter().filter_map(Json::as_str);
    texts.filter(|text| !text.trim().is_empty()).collect()
}
