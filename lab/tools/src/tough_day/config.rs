//! Converts a Tough Day configuration in YAML to phases.

use std::time::Duration;

use tympan_lab_plan::Error as PlanError;
use tympan_lab_plan::{FileFinding, closest_word};
use tympan_notation::parse_duration_or_count;

use super::suite::{
    LoadRamp, SUITE_NAMES, ToughLoadMode, ToughPhase, ToughTest, ToughTestKind, find_suite,
};
use super::yaml::{self, YamlNode, YamlValue};
use crate::{Error, Result};

/// A configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ToughConfig {
    /// The phases of the run, in order.
    pub phases: Vec<ToughPhase>,
    /// The author, if the file names one.
    pub author_url: Option<String>,
    /// `user:password`, if the file names them.
    pub login: Option<String>,
    /// If true, the run only prints what it would do.
    pub is_dry_run: bool,
}

/// Keys that are ignored: the tests create the content, and arguments select the reports.
const IGNORED_KEYS: [&str; 13] = [
    "installsamplecontent",
    "samplecontent",
    "hostvalidation",
    "hostvalidationenabled",
    "showsteps",
    "loglevel",
    "logpath",
    "saveconfig",
    "authmethod",
    "contextpath",
    "help",
    "suite",
    "generatereport",
];

/// Ignored properties: texts and locations of created content. They do not affect the measurements, because everything
/// is created below the run's name. Passwords of users are random.
const IGNORED_PROPERTIES: [&str; 27] = [
    "title",
    "description",
    "parentpath",
    "foldertitle",
    "folderparentpath",
    "assettitle",
    "assetparentpath",
    "pagetitle",
    "sourcepagetitle",
    "firstname",
    "lastname",
    "password",
    "emailaddress",
    "phonenumber",
    "mobile",
    "jobtitle",
    "street",
    "city",
    "postalcode",
    "country",
    "state",
    "gender",
    "aboutme",
    "increment",
    "pathtoaddusers",
    "groupname",
    "groupdescription",
];

/// Returns the configuration of predefined suites, given as comma-separated names.
///
/// # Errors
/// [`Error::UnusableInput`] if a suite does not exist.
pub fn config_of_suites(names: &str) -> Result<ToughConfig> {
    let tests = tests_of_suites(names).map_err(Error::UnusableInput)?;
    Ok(ToughConfig {
        phases: vec![default_phase(tests)],
        author_url: None,
        login: None,
        is_dry_run: false,
    })
}

/// Reads a Tough Day configuration file.
///
/// # Errors
/// `Error::InvalidFile` with everything that is not understood or not supported.
pub fn config_of_yaml(text: &str, file: &str) -> Result<ToughConfig> {
    let root =
        yaml::parse_yaml(text, file).map_err(|finding| PlanError::InvalidFile(vec![finding]))?;
    let mut reader = ToughConfigReader { file, findings: Vec::new() };
    let config = reader.read_config(&root);
    if reader.findings.is_empty() {
        Ok(config)
    } else {
        Err(PlanError::InvalidFile(reader.findings).into())
    }
}

fn tests_of_suites(names: &str) -> Result<Vec<ToughTest>, String> {
    let mut tests = Vec::new();
    for name in names.split(',').map(str::trim) {
        let suite_tests = find_suite(name).ok_or_else(|| {
            format!("unknown suite `{name}`; expected one of {}", SUITE_NAMES.join(", "))
        })?;
        tests.extend(suite_tests);
    }
    Ok(tests)
}

fn default_phase(tests: Vec<ToughTest>) -> ToughPhase {
    ToughPhase {
        name: "all".to_owned(),
        duration: Duration::from_secs(86_400),
        load_mode: ToughLoadMode::Normal {
            users: LoadRamp::constant(200.0),
            pause: Duration::from_millis(300),
        },
        tests,
        is_measured: true,
    }
}

fn has_test_name(test: &ToughTest, name: &str) -> bool {
    test.name == name || ToughTestKind::find(name).is_ok_and(|kind| kind == test.kind)
}

struct ToughConfigReader<'f> {
    file: &'f str,
    findings: Vec<FileFinding>,
}

impl ToughConfigReader<'_> {
    fn add_finding(&mut self, line: u32, message: impl Into<String>) {
        self.findings.push(FileFinding {
            file: self.file.to_owned(),
            line,
            column: 1,
            message: message.into(),
        });
    }

    fn add_unknown_key(&mut self, line: u32, key: &str, location: &str, candidates: &[&str]) {
        let near = closest_word(key, candidates)
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        self.add_finding(line, format!("unknown key `{key}` in {location}{near}"));
    }

    fn expect_map<'n>(&mut self, node: &'n YamlNode, location: &str) -> &'n [(String, YamlNode)] {
        match &node.value {
            YamlValue::Map(entries) => entries,
            YamlValue::Text(text) if text.is_empty() => &[],
            _ => {
                self.add_finding(node.line, format!("{location} is not a map"));
                &[]
            }
        }
    }

    fn expect_list<'n>(&mut self, node: &'n YamlNode, location: &str) -> &'n [YamlNode] {
        match &node.value {
            YamlValue::List(items) => items,
            YamlValue::Text(text) if text.is_empty() => &[],
            _ => {
                self.add_finding(node.line, format!("{location} is not a list"));
                &[]
            }
        }
    }

    fn expect_text<'n>(&mut self, node: &'n YamlNode, key: &str) -> &'n str {
        match &node.value {
            YamlValue::Text(text) => text,
            _ => {
                self.add_finding(node.line, format!("`{key}` is not a string"));
                ""
            }
        }
    }

    fn expect_number(&mut self, node: &YamlNode, key: &str) -> f64 {
        let text = self.expect_text(node, key);
        match text.trim_end_matches("/s").parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => number,
            _ => {
                self.add_finding(
                    node.line,
                    format!("`{key}` must be a number of at least 0, not `{text}`"),
                );
                0.0
            }
        }
    }

    /// Parses a duration: with a unit, or as a number of `unit`s.
    fn expect_duration(&mut self, node: &YamlNode, key: &str, unit: Duration) -> Duration {
        let text = self.expect_text(node, key);
        parse_duration_or_count(text, unit).unwrap_or_else(|_| {
            self.add_finding(
                node.line,
                format!("`{key}` must be a time such as 30s or 1d, not `{text}`"),
            );
            Duration::ZERO
        })
    }

    fn read_config(&mut self, root: &YamlNode) -> ToughConfig {
        const KEYS: [&str; 9] = [
            "globals",
            "runmode",
            "publishmode",
            "tests",
            "publishers",
            "metrics",
            "feeders",
            "phases",
            "distributedconfig",
        ];
        let entries = self.expect_map(root, "the file");
        let find = |key: &str| {
            entries.iter().find(|(entry_key, _)| entry_key == key).map(|(_, node)| node)
        };
        for (key, node) in entries {
            match key.as_str() {
                "globals" | "runmode" | "tests" | "phases" | "publishmode" | "publishers" | "metrics" => {}
                "feeders" => self.add_finding(
                    node.line,
                    "feeders are not supported: pages and assets created by tests are passed on to the tests \
                     that use them",
                ),
                "distributedconfig" => {
                    self.add_finding(node.line, "one process runs the tests; a distributed run is not supported");
                }
                _ => self.add_unknown_key(node.line, key, "the file", &KEYS),
            }
        }
        let mut config =
            ToughConfig { phases: Vec::new(), author_url: None, login: None, is_dry_run: false };
        let mut base = default_phase(Vec::new());
        let mut timeout = None;
        if let Some(globals) = find("globals") {
            timeout = self.read_globals(globals, &mut config, &mut base);
        }
        if let Some(mode) = find("runmode") {
            base.load_mode = self.read_mode(mode, &base.load_mode);
        }
        if let Some(tests) = find("tests") {
            self.read_tests(tests, &mut base.tests);
        }
        if let Some(timeout) = timeout {
            base.tests.iter_mut().for_each(|test| test.idle_timeout = timeout);
        }
        let is_silent = find("tests").is_none();
        match find("phases") {
            None => config.phases.push(base),
            Some(phases) => self.read_phases(phases, &base, &mut config.phases),
        }
        for phase in config.phases.iter_mut().filter(|phase| is_silent && phase.tests.is_empty()) {
            phase.tests = find_suite("toughday").unwrap_or_default();
            if let Some(timeout) = timeout {
                phase.tests.iter_mut().for_each(|test| test.idle_timeout = timeout);
            }
        }
        for phase in &config.phases {
            if phase.tests.is_empty() {
                self.findings.push(FileFinding {
                    file: self.file.to_owned(),
                    line: root.line,
                    column: 1,
                    message: format!("phase `{}` has no test", phase.name),
                });
            }
        }
        config
    }

    fn read_globals(
        &mut self,
        node: &YamlNode,
        config: &mut ToughConfig,
        base: &mut ToughPhase,
    ) -> Option<Duration> {
        const KEYS: [&str; 9] = [
            "host", "port", "protocol", "user", "password", "duration", "timeout", "dryrun",
            "suite",
        ];
        let (mut host, mut port, mut protocol) = (None, "4502".to_owned(), "http".to_owned());
        let (mut user, mut password) = (None, "admin".to_owned());
        let mut timeout = None;
        for (key, value) in self.expect_map(node, "`globals`") {
            match key.as_str() {
                "host" => host = Some(self.expect_text(value, key).to_owned()),
                "port" => self.expect_text(value, key).clone_into(&mut port),
                "protocol" => self.expect_text(value, key).clone_into(&mut protocol),
                "user" => user = Some(self.expect_text(value, key).to_owned()),
                "password" => self.expect_text(value, key).clone_into(&mut password),
                "duration" => {
                    base.duration = self.expect_duration(value, key, Duration::from_secs(1))
                }
                "timeout" => {
                    timeout = Some(self.expect_duration(value, key, Duration::from_secs(1)))
                }
                "dryrun" => config.is_dry_run = self.expect_text(value, key) == "true",
                "suite" => match tests_of_suites(self.expect_text(value, key)) {
                    Ok(tests) => base.tests.extend(tests),
                    Err(fault) => self.add_finding(value.line, fault),
                },
                _ if IGNORED_KEYS.contains(&key.as_str()) => {}
                _ => self.add_unknown_key(value.line, key, "`globals`", &KEYS),
            }
        }
        config.author_url = host.map(|host| format!("{protocol}://{host}:{port}"));
        config.login = user.map(|user| format!("{user}:{password}"));
        timeout
    }

    fn read_mode(&mut self, node: &YamlNode, inherited: &ToughLoadMode) -> ToughLoadMode {
        const KEYS: [&str; 8] =
            ["type", "concurrency", "waittime", "load", "start", "end", "rate", "interval"];
        let entries = self.expect_map(node, "`runmode`");
        let find = |key: &str| {
            entries.iter().find(|(entry_key, _)| entry_key == key).map(|(_, node)| node)
        };
        let mut kind = if matches!(inherited, ToughLoadMode::Normal { .. }) {
            "normal"
        } else {
            "constantload"
        };
        if let Some(mode_type) = find("type") {
            kind = self.expect_text(mode_type, "type");
            if !matches!(kind, "normal" | "constantload") {
                self.add_finding(
                    mode_type.line,
                    format!("unknown mode `{kind}`; expected normal or constantload"),
                );
            }
        }
        let is_normal = kind != "constantload";
        let (mut number, mut wait) = match inherited {
            ToughLoadMode::Normal { users, pause: wait } if is_normal => (*users, *wait),
            ToughLoadMode::ConstantLoad { rate } if !is_normal => (*rate, Duration::ZERO),
            _ if is_normal => (LoadRamp::constant(200.0), Duration::from_millis(300)),
            _ => (LoadRamp::constant(50.0), Duration::ZERO),
        };
        for (key, value) in entries {
            match (key.as_str(), is_normal) {
                ("type", _) => {}
                ("concurrency", true) | ("load", false) => {
                    number = LoadRamp::constant(self.expect_number(value, key))
                }
                ("waittime", true) => {
                    wait = self.expect_duration(value, key, Duration::from_millis(1))
                }
                ("start" | "end" | "rate" | "interval", _) => {}
                ("concurrency" | "waittime", false) | ("load", true) => {
                    self.add_finding(
                        value.line,
                        format!("`{key}` does not apply to the mode `{kind}`"),
                    );
                }
                _ => self.add_unknown_key(value.line, key, "`runmode`", &KEYS),
            }
        }
        for (key, field) in [
            ("start", &mut number.start_level),
            ("end", &mut number.end_level),
            ("rate", &mut number.step_size),
        ] {
            if let Some(value) = find(key) {
                *field = self.expect_number(value, key);
            }
        }
        if let Some(value) = find("interval") {
            number.step_interval = self.expect_duration(value, "interval", Duration::from_secs(1));
        }
        if is_normal {
            ToughLoadMode::Normal { users: number, pause: wait }
        } else {
            ToughLoadMode::ConstantLoad { rate: number }
        }
    }

    fn read_tests(&mut self, node: &YamlNode, tests: &mut Vec<ToughTest>) {
        for item in self.expect_list(node, "`tests`") {
            let entries = self.expect_map(item, "a test");
            let Some((verb, name)) = entries
                .iter()
                .find(|(key, _)| matches!(key.as_str(), "add" | "config" | "exclude"))
            else {
                self.add_finding(item.line, "a test must begin with `add`, `config` or `exclude`");
                continue;
            };
            let line = name.line;
            let name = self.expect_text(name, verb);
            let properties =
                entries.iter().find(|(key, _)| key == "properties").map(|(_, node)| node);
            for (key, value) in entries {
                if !matches!(key.as_str(), "add" | "config" | "exclude" | "properties") {
                    self.add_unknown_key(value.line, key, "a test", &["properties"]);
                }
            }
            let at = tests.iter().position(|test| has_test_name(test, name));
            // As in Tough Day, the default suite applies if no test was added.
            let at = match (verb.as_str(), at) {
                ("config" | "exclude", None) if tests.is_empty() => {
                    tests.extend(find_suite("toughday").unwrap_or_default());
                    tests.iter().position(|test| has_test_name(test, name))
                }
                (_, at) => at,
            };
            match (verb.as_str(), at) {
                ("add", _) => match ToughTestKind::find(name) {
                    Ok(kind) => {
                        let mut test = ToughTest::new(kind, 1);
                        self.read_properties(properties, &mut test);
                        tests.push(test);
                    }
                    Err(fault) => self.add_finding(line, fault),
                },
                ("exclude", Some(at)) => drop(tests.remove(at)),
                (_, Some(at)) => {
                    if let Some(mut test) = tests.get(at).cloned() {
                        self.read_properties(properties, &mut test);
                        if let Some(slot) = tests.get_mut(at) {
                            *slot = test;
                        }
                    }
                }
                (_, None) => self.add_finding(line, format!("no test called `{name}` was added")),
            }
        }
    }

    fn read_properties(&mut self, node: Option<&YamlNode>, test: &mut ToughTest) {
        const KEYS: [&str; 9] =
            ["name", "weight", "timeout", "count", "base", "path", "query", "queries", "title"];
        let Some(node) = node else { return };
        for (key, value) in self.expect_map(node, "`properties`") {
            match key.as_str() {
                "name" => self.expect_text(value, key).clone_into(&mut test.name),
                "weight" => test.weight = self.expect_number(value, key) as u64,
                // In milliseconds, as in Tough Day; global timeouts are in seconds.
                "timeout" => {
                    test.idle_timeout = self.expect_duration(value, key, Duration::from_millis(1))
                }
                "count" => test.max_executions = Some(self.expect_number(value, key) as u64),
                "base" => test.tree_fanout = (self.expect_number(value, key) as u64).max(1),
                "path" | "query" => test.queries = vec![self.expect_text(value, key).to_owned()],
                "queries" => {
                    let list = self.expect_list(value, key);
                    test.queries =
                        list.iter().map(|item| self.expect_text(item, key).to_owned()).collect();
                }
                "publish" => test.is_on_publish = self.expect_text(value, key) == "true",
                "resourcetype" | "resourceType" => {
                    test.appearance.resource_type = Some(self.expect_text(value, key).to_owned());
                }
                "template" => {
                    test.appearance.template = Some(self.expect_text(value, key).to_owned())
                }
                _ if IGNORED_PROPERTIES.contains(&key.as_str()) => {}
                _ => self.add_unknown_key(value.line, key, "`properties`", &KEYS),
            }
        }
    }

    fn read_phases(&mut self, node: &YamlNode, base: &ToughPhase, phases: &mut Vec<ToughPhase>) {
        const KEYS: [&str; 7] =
            ["name", "duration", "measurable", "useconfig", "tests", "runmode", "publishmode"];
        for item in self.expect_list(node, "`phases`") {
            let entries = self.expect_map(item, "a phase");
            let find = |key: &str| {
                entries.iter().find(|(entry_key, _)| entry_key == key).map(|(_, node)| node)
            };
            let mut phase = base.clone();
            if let Some(node) = find("useconfig") {
                let name = self.expect_text(node, "useconfig");
                match phases.iter().find(|phase: &&ToughPhase| phase.name == name) {
                    Some(base_phase) => phase = base_phase.clone(),
                    None => self.add_finding(node.line, format!("no phase named `{name}` above")),
                }
            }
            phase.name = format!("phase {}", phases.len() + 1);
            for (key, value) in entries {
                match key.as_str() {
                    "name" => self.expect_text(value, key).clone_into(&mut phase.name),
                    "duration" => {
                        phase.duration = self.expect_duration(value, key, Duration::from_secs(1))
                    }
                    "measurable" => phase.is_measured = self.expect_text(value, key) != "false",
                    "runmode" => phase.load_mode = self.read_mode(value, &phase.load_mode),
                    "tests" => self.read_tests(value, &mut phase.tests),
                    "useconfig" | "publishmode" | "publishers" | "metrics" => {}
                    _ => self.add_unknown_key(value.line, key, "a phase", &KEYS),
                }
            }
            phases.push(phase);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "globals:\n  host: localhost\n  port: 4502\n  user: admin\n  password: secret\n  duration: 30s\n  timeout: 5\n\
        runmode:\n  type: normal\n  concurrency: 20\n  waittime: 100\ntests:\n  - add: CreatePageTreeTest\n    properties:\n      \
        weight: 15\n      base: 7\n      count: 100\n      name: Trees\n  - add: GetHomepageTest\n  - config: GetHomepageTest\n    \
        properties:\n      weight: 85\nphases:\n  - name: warm up\n    duration: 10\n    measurable: false\n  - name: load\n    \
        useconfig: warm up\n    runmode:\n      type: constantload\n      start: 1\n      end: 10\n      rate: 2\n      interval: 5s\n    \
        tests:\n      - exclude: Trees\n";

    #[test]
    fn a_configuration_becomes_phases() {
        let config = config_of_yaml(FILE, "x.yaml").unwrap();
        assert_eq!(config.author_url.as_deref(), Some("http://localhost:4502"));
        assert_eq!(config.login.as_deref(), Some("admin:secret"));
        let [first, second] = config.phases.as_slice() else { panic!("{config:?}") };
        assert_eq!((first.duration, first.is_measured), (Duration::from_secs(10), false));
        let wait = Duration::from_millis(100);
        assert_eq!(
            first.load_mode,
            ToughLoadMode::Normal { users: LoadRamp::constant(20.0), pause: wait }
        );
        let tree = &first.tests[0];
        assert_eq!(
            (tree.name.as_str(), tree.weight, tree.tree_fanout, tree.max_executions),
            ("Trees", 15, 7, Some(100))
        );
        assert_eq!((first.tests[1].weight, tree.idle_timeout), (85, Duration::from_secs(5)));
        let rate = LoadRamp {
            start_level: 1.0,
            end_level: 10.0,
            step_size: 2.0,
            step_interval: Duration::from_secs(5),
        };
        assert_eq!(
            (second.name.as_str(), &second.load_mode),
            ("load", &ToughLoadMode::ConstantLoad { rate })
        );
        assert_eq!(second.tests.len(), 1);
    }

    #[test]
    fn a_file_without_tests_means_the_default_suite() {
        let tests = |text: &str| {
            let config = config_of_yaml(text, "x.yaml").unwrap();
            let test_text = |test: &ToughTest| format!("{} {}", test.name, test.weight);
            config.phases[0].tests.iter().map(test_text).collect::<Vec<_>>()
        };
        assert_eq!(tests("globals:\n  port: 4502\n").len(), 5);
        let changed = tests(
            "phases:\n- tests:\n  - config: GetHomepage\n    properties:\n      weight: 1\n  - exclude: DeleteImageTest\n",
        );
        assert_eq!(changed.len(), 4);
        assert!(changed.contains(&"GetHomepage 1".to_owned()), "{changed:?}");
        let named = "tests:\n  - add: CreateUserTreeTest\n    properties:\n      base: 4\n      folderparentpath: /home/users\n      \
                     firstname: Ann\n";
        assert_eq!(tests(named), ["CreateUserTree 1"]);
    }

    #[test]
    fn every_fault_is_reported_with_its_line() {
        let text = "globals:\n  hots: x\nrunmode:\n  type: fast\n  load: 3\ntests:\n  - add: CreateLiveCopyTest\n  - remove: X\n  - config: \
                    GetTest\nfeeders:\n  - x: 1\nphases:\n  - useconfig: none\n";
        let Err(Error::Plan(PlanError::InvalidFile(findings))) = config_of_yaml(text, "x.yaml")
        else {
            panic!()
        };
        let messages: Vec<String> = findings
            .iter()
            .map(|finding| format!("{}: {}", finding.line, finding.message))
            .collect();
        for expected in [
            "2: unknown key `hots` in `globals`",
            "4: unknown mode `fast`",
            "5: `load` does not apply",
            "7: `CreateLiveCopyTest` is not supported",
            "8: a test must begin with",
            "9: no test called `GetTest` was added",
            "11: feeders are not supported",
            "13: no phase named `none` above",
        ] {
            assert!(
                messages.iter().any(|one| one.starts_with(expected)),
                "{expected}: {messages:?}"
            );
        }
    }

    #[test]
    fn suites_are_known_by_name() {
        assert_eq!(config_of_suites("toughday").unwrap().phases[0].tests.len(), 5);
        assert_eq!(config_of_suites("get_tests, authoring").unwrap().phases[0].tests.len(), 4);
        assert!(config_of_suites("all").unwrap_err().to_string().contains("toughday"));
    }
}
