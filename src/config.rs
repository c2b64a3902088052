//! `tympan.toml`: the configuration of a home.
//!
//! Every section configures one component. Unknown keys are refused with their position and the nearest known key;
//! durations and sizes are strings with units, never bare numbers.

use std::collections::BTreeMap;
use std::path::Path;

use schemars::JsonSchema;
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
    LoginSection, OperationsSection, PublishSection, QuerySection, ReceiveSection, Timing,
    WorkSection,
};
use tympan_terminal::{CommandFault, error_chain_text};
use tympan_web::config::{AdminSection, ListenSection, LogsSection, OutgoingSection};
use tympan_web::listen::ListenerOptions;

pub(crate) use tympan_home::parse_toml;

use crate::home_fault::home_fault;

/// The whole file. A missing file counts as empty.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
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
    pub(crate) operations: OperationsSection,
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

/// Returns a message for each key of a file that is accepted by its earlier name.
pub(crate) fn list_renamed_keys(file: &str, text: &str) -> Vec<String> {
    let message = |(line, key): (usize, &RenamedKey)| {
        let RenamedKey { section, earlier, current } = key;
        format!(
            "{file}:{line}: `{earlier}` of `[{section}]` is named `{current}` now; the next release refuses the \
             earlier name"
        )
    };
    find_renamed_keys(text).into_iter().map(message).collect()
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

/// Checks the text of a `tympan.toml` of a home as a start of an instance does, except for what other machines answer:
/// keys, values, and the files that they name. Returns all faults.
pub(crate) fn check_config_text(file: &str, text: &str, home: &Path) -> Vec<String> {
    let config = match parse_config_text(file, text) {
        Ok(config) => config,
        Err(fault) => return vec![fault],
    };
    let outgoing = config.outgoing.to_outgoing();
    let mounts = outgoing.clone().ok().map(|policy| config.mounts.mount_settings(home, policy));
    let front = &config.dispatcher.front;
    let checks = [
        config.listen.read_certificate().map(drop),
        config.login.trusted_proxies().map(drop),
        config.publish.page_headers().map(drop),
        config.receive.received_paths().map(drop),
        config.workflows.model_roots().map(drop),
        config.ledger.surrogate_key().map(drop),
        front.apply_to(ListenerOptions::default()).map(drop).map_err(|e| error_chain_text(&e)),
        outgoing.map(drop),
        mounts.map_or(Ok(()), |settings| settings.map(drop)),
    ];
    checks.into_iter().filter_map(Result::err).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tympan_home::ConfigReference;
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
    fn the_reference_page_lists_the_keys_that_are_parsed() {
        let page = ConfigReference::of::<TympanConfig>().to_markdown(REFERENCE_INTRODUCTION);
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/configuration.md");
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(&file, &page).unwrap();
        }
        let stored = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(
            stored == page,
            "`{}` does not list the keys of the program; run `UPDATE_REFERENCE=1 cargo test --bin tympan \
             reference_page`",
            file.display()
        );
    }

    /// The text before the list.
    const REFERENCE_INTRODUCTION: &str = "\
# Configuration

Every key of `tympan.toml`, in the home of an author, publisher or dispatcher. A missing file or key means the default.
This page is generated from the definitions that parse the file. `tympan config show --home DIR` prints the settings of
a home and where each comes from, `tympan config check --home DIR` finds faults, and `tympan config explain KEY` prints
what is said here.

Unknown keys are refused. Durations (`\"30s\"`, `\"1h30m\"`) and sizes (`\"64 MiB\"`, `\"1.5 GB\"`) are text with units.
`[[name]]` stands once for each element of a list, and `NAME` for a name of your choice. The options `--listen`,
`--admin-listen`, `--database` and `--blobs` of the roles and the variable `TYMPAN_DATABASE` take precedence over the
keys that name them. `TYMPAN_LOG` sets the level of the log on standard error: `info` unless set, `debug`, or
`tympan_dispatcher=trace` for one part.";

    #[test]
    fn every_key_of_the_file_is_described() {
        let reference = ConfigReference::of::<TympanConfig>();
        let undescribed: Vec<_> = (reference.keys())
            .filter(|key| key.description.is_empty() || key.value_type.is_empty())
            .map(|key| &key.path)
            .collect();
        assert!(undescribed.is_empty(), "{undescribed:?}");
        for (key, value_type, default) in [
            ("listen.max_header", "size", "64 KiB"),
            ("login.idle_timeout", "duration", "2 h"),
            ("mounts.location[].url", "text", "required"),
            ("blobs.delegates[].readOnly", "true or false", "false"),
            ("export.rule[].source", "text", "required"),
            ("back_ends.NAME.max_response", "size", "1 MiB"),
            ("dispatcher.host[].rule[].match", "text", "any path"),
            ("timing.header", "nobody | users | everybody", "`\"users\"`"),
        ] {
            let key = reference.find_key(key).expect(key);
            assert_eq!((&*key.value_type, &*key.default), (value_type, default), "{}", key.path);
        }
    }

    #[test]
    fn a_check_finds_all_faults() {
        let home = Path::new("/");
        assert_eq!(check_config_text("tympan.toml", "", home), Vec::<String>::new());
        let text = "[listen]\ntls_certificate = \"/none.pem\"\n[login]\ntrusted_proxies = [\"x\"]\n\
                    [outgoing]\nnetworks = [\"y\"]\n";
        let faults = check_config_text("tympan.toml", text, home);
        assert_eq!(faults.len(), 3, "{faults:?}");
        let renamed = list_renamed_keys("tympan.toml", "[login]\nidle = \"1h\"\n");
        assert!(
            renamed[0].starts_with("tympan.toml:2: `idle` of `[login]` is named `idle_timeout`")
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
