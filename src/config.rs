//! `tympan.toml`: the configuration of a home.
//!
//! Every section configures one component. Unknown keys are refused with their position and the nearest known key;
//! durations and sizes are strings with units, never bare numbers.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tympan_assets::AssetsSection;
use tympan_home::{
    BlobsSection, CollectSection, DatabaseSection, HistorySection, HomeConfig, MaintenanceSection,
    StoreSection, VersionsSection,
};
use tympan_jobs::{JobsSection, WorkflowsSection};
use tympan_mounts::MountsSection;
use tympan_render::{BackendSection, FragmentsSection, LedgerSection};
use tympan_render_export::ExportSection;
use tympan_search::SearchSection;
use tympan_server::{
    LoginSection, PublishSection, QuerySection, ReceiveSection, Timing, WorkSection,
};
use tympan_terminal::CommandFault;
use tympan_web::config::{AdminSection, ListenSection, LogsSection, OutgoingSection};

pub(crate) use tympan_home::parse_toml;

use crate::home_fault::home_fault;

/// The whole file. A missing file counts as empty.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TympanConfig {
    pub(crate) listen: ListenSection,
    pub(crate) admin: AdminSection,
    pub(crate) login: LoginSection,
    pub(crate) work: WorkSection,
    pub(crate) store: StoreSection,
    pub(crate) database: DatabaseSection,
    pub(crate) blobs: BlobsSection,
    pub(crate) history: HistorySection,
    pub(crate) collect: CollectSection,
    pub(crate) versions: VersionsSection,
    pub(crate) query: QuerySection,
    pub(crate) search: SearchSection,
    pub(crate) jobs: JobsSection,
    pub(crate) maintenance: MaintenanceSection,
    pub(crate) backup: tympan_home_backup::BackupSection,
    pub(crate) assets: AssetsSection,
    pub(crate) dispatcher: tympan_dispatcher::DispatcherSettings,
    pub(crate) back_ends: BTreeMap<String, BackendSection>,
    pub(crate) mounts: MountsSection,
    pub(crate) publish: PublishSection,
    pub(crate) ledger: LedgerSection,
    pub(crate) fragments: FragmentsSection,
    pub(crate) timing: Timing,
    pub(crate) logs: LogsSection,
    pub(crate) export: ExportSection,
    pub(crate) receive: ReceiveSection,
    pub(crate) outgoing: OutgoingSection,
    pub(crate) workflows: WorkflowsSection,
}

impl TympanConfig {
    /// Returns the sections about the stores of the home.
    pub(crate) fn home_config(&self) -> HomeConfig {
        HomeConfig {
            store: self.store.clone(),
            database: self.database.clone(),
            blobs: self.blobs.clone(),
            history: self.history.clone(),
            collect: self.collect.clone(),
            versions: self.versions.clone(),
            maintenance: self.maintenance.clone(),
        }
    }
}

/// Reads `tympan.toml` of a home.
///
/// # Errors
/// [`CommandFault::usage`] with `file:line:column` and, for an unknown key, the nearest known one.
pub(crate) fn read_home_config(home: &Path) -> Result<TympanConfig, CommandFault> {
    let config = tympan_home::read_home_toml(home).map_err(home_fault)?;
    warn_of_renamed_keys(&home.join("tympan.toml"));
    Ok(config)
}

/// Reads a file with the sections of `tympan.toml`.
///
/// # Errors
/// As [`read_home_config`], and if there is no such file.
pub(crate) fn read_config_file(file: &Path) -> Result<TympanConfig, CommandFault> {
    let config = tympan_home::read_toml_file(file).map_err(home_fault)?;
    warn_of_renamed_keys(file);
    Ok(config)
}

/// Logs a warning for each key of a file that was accepted by its earlier name.
fn warn_of_renamed_keys(file: &Path) {
    // A home without the file has the default configuration.
    let text = std::fs::read_to_string(file).unwrap_or_default();
    for (line, key) in find_renamed_keys(&text) {
        tracing::warn!(
            file = %file.display(),
            line,
            earlier = key.earlier,
            current = key.current,
            "a key was renamed; the next release refuses the earlier name"
        );
    }
}

/// A key whose earlier name is accepted until the next release.
#[derive(Debug, PartialEq, Eq)]
struct RenamedKey {
    section: &'static str,
    earlier: &'static str,
    current: &'static str,
}

/// The keys whose earlier names are accepted, each by an alias of its field.
static RENAMED_KEYS: [RenamedKey; 8] = [
    RenamedKey { section: "back_ends", earlier: "max_answer", current: "max_response" },
    RenamedKey { section: "backup", earlier: "give_way", current: "throttle" },
    RenamedKey { section: "collect", earlier: "every", current: "interval" },
    RenamedKey { section: "database", earlier: "idle", current: "idle_timeout" },
    RenamedKey { section: "database", earlier: "wait", current: "wait_timeout" },
    RenamedKey { section: "login", earlier: "idle", current: "idle_timeout" },
    RenamedKey { section: "mounts", earlier: "place", current: "location" },
    RenamedKey { section: "query", earlier: "slow", current: "slow_threshold" },
];

/// Returns the lines that set keys by their earlier names, counted from 1.
fn find_renamed_keys(text: &str) -> Vec<(usize, &'static RenamedKey)> {
    let find = |section: &str, name: &str| {
        RENAMED_KEYS.iter().find(|key| key.section == section && key.earlier == name.trim())
    };
    let (mut lines, mut section) = (Vec::new(), "");
    for (number, line) in (1..).zip(text.lines()) {
        let name = match line.trim().strip_prefix('[') {
            Some(header) => {
                let header = header.trim_matches(['[', ']']);
                let (first, rest) = header.split_once('.').unwrap_or((header, ""));
                section = first;
                rest
            }
            None => line.split_once('=').map_or("", |(name, _)| name),
        };
        lines.extend(find(section, name).map(|key| (number, key)));
    }
    lines
}

/// Parses the text of a `tympan.toml`.
///
/// # Errors
/// If the text is invalid, with the position.
pub(crate) fn parse_config_text(file: &str, text: &str) -> Result<TympanConfig, String> {
    parse_toml(file, text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tympan_notation::{ByteSize, DurationText};
    use tympan_replicate::ActivationVersioning;

    use super::*;

    fn fault(text: &str) -> String {
        parse_config_text("tympan.toml", text).unwrap_err()
    }

    #[test]
    fn earlier_names_of_keys_are_accepted_and_found() {
        let text = "[back_ends.crm]\nurl = \"http://h/\"\nmax_answer = \"2 MiB\"\n";
        let config = parse_config_text("tympan.toml", text).unwrap();
        assert_eq!(config.back_ends["crm"].to_backend_config().max_response_bytes, 2 << 20);
        assert_eq!(find_renamed_keys(text), [(3, &RENAMED_KEYS[0])]);
        let all = "[backup]\ngive_way = false\n[collect]\nevery = \"1h\"\n[database]\nidle = \"1m\"\n\
                   wait = \"1s\"\n[login]\nidle = \"2h\"\n[mounts]\n[[mounts.place]]\nurl = \"/srv\"\n\
                   [query]\nslow = \"1s\"\n";
        assert!(parse_config_text("tympan.toml", all).is_ok());
        let earlier: Vec<_> = find_renamed_keys(all).iter().map(|(_, key)| key.earlier).collect();
        assert_eq!(earlier, ["give_way", "every", "idle", "wait", "idle", "place", "slow"]);
        let current = text.replace("max_answer", "max_response");
        assert!(parse_config_text("tympan.toml", &current).is_ok());
        assert!(find_renamed_keys(&current).is_empty());
    }

    #[test]
    fn faults_say_where_and_what_else() {
        assert!(
            fault("[listen]\nmax_headers = \"1 KiB\"\n")
                .starts_with("tympan.toml:2:1: unknown field `max_headers`")
        );
        assert!(
            fault("[listen]\nmax_headers = \"1 KiB\"\n").ends_with("did you mean `max_header`?")
        );
        assert!(fault("[lisen]\n").ends_with("did you mean `listen`?"));
        assert!(fault("[listen]\nmax_body = 7\n").starts_with("tympan.toml:2:12: "));
        assert!(fault("[listen]\nmax_body = \"7\"\n").contains("is not a size"));
        assert!(fault("[listen\n").starts_with("tympan.toml:1:"));
    }

    #[test]
    fn durations_and_sizes_are_those_of_all_options() {
        let text =
            "[listen]\nbody_timeout = \"1h30m\"\nmax_body = \"1.5 GB\"\nmax_header = \"64 MiB\"\n";
        let listen = parse_config_text("tympan.toml", text).unwrap().listen;
        assert_eq!(listen.body_timeout, Some(DurationText(Duration::from_secs(5400))));
        assert_eq!(listen.max_body, Some(ByteSize::from_bytes(1_500_000_000)));
        assert_eq!(listen.max_header, Some(ByteSize::from_mib(64)));
        assert!(
            fault("[listen]\nbody_timeout = \"30\"\n").contains("`30` is not a duration; write")
        );
    }

    #[test]
    fn versions_of_activated_content_can_be_turned_off() {
        for (text, expected) in [
            ("", ActivationVersioning::CreateVersion),
            ("[versions]\non_activation = true\n", ActivationVersioning::CreateVersion),
            ("[versions]\non_activation = false\n", ActivationVersioning::NoVersion),
        ] {
            let config = parse_config_text("tympan.toml", text).unwrap();
            assert_eq!(config.versions.version_keeping(), expected, "{text}");
        }
    }
}
