//! From a configuration of Tough Day in YAML to phases.

use std::time::Duration;

use super::suite::{Kind, Mode, Phase, Ramp, SUITES, Test, suite};
use super::yaml::{self, Node, Value};
use crate::calculate::parse_duration;
use crate::plan::nearest;
use crate::{Error, Finding, Result};

/// A configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The parts of the run, one after the other.
    pub phases: Vec<Phase>,
    /// The author, if the file names one.
    pub author: Option<String>,
    /// `user:password`, if the file names them.
    pub login: Option<String>,
    /// Only tells what would be done.
    pub is_dry: bool,
}

/// Keys that change nothing here: content is made by the tests, and reports are asked for by arguments.
const IDLE: [&str; 13] = [
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

/// Texts of what is made, and where: they change nothing that is measured, and everything is made below the run's name.
/// Passwords of users are random.
const IDLE_PROPERTIES: [&str; 27] = [
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

/// Returns the configuration of predefined suites, whose names stand with commas between them.
///
/// # Errors
/// [`Error::Input`] if there is no such suite.
pub fn of_suites(names: &str) -> Result<Config> {
    let tests = suites(names).map_err(Error::Input)?;
    Ok(Config { phases: vec![phase(tests)], author: None, login: None, is_dry: false })
}

/// Reads a file of Tough Day.
///
/// # Errors
/// [`Error::Refused`] with everything that is not understood or not supported.
pub fn of_yaml(text: &str, file: &str) -> Result<Config> {
    let root = yaml::read(text, file).map_err(|finding| Error::Refused(vec![finding]))?;
    let mut reader = Reader { file, findings: Vec::new() };
    let config = reader.config(&root);
    if reader.findings.is_empty() { Ok(config) } else { Err(Error::Refused(reader.findings)) }
}

fn suites(names: &str) -> Result<Vec<Test>, String> {
    let mut tests = Vec::new();
    for name in names.split(',').map(str::trim) {
        let found = suite(name).ok_or_else(|| {
            format!("no suite is called `{name}`; there are: {}", SUITES.join(", "))
        })?;
        tests.extend(found);
    }
    Ok(tests)
}

fn phase(tests: Vec<Test>) -> Phase {
    Phase {
        name: "all".to_owned(),
        lasts: Duration::from_secs(86_400),
        mode: Mode::Normal { users: Ramp::steady(200.0), wait: Duration::from_millis(300) },
        tests,
        is_measured: true,
    }
}

fn is_called(test: &Test, name: &str) -> bool {
    test.name == name || Kind::find(name).is_ok_and(|kind| kind == test.kind)
}

struct Reader<'f> {
    file: &'f str,
    findings: Vec<Finding>,
}

impl Reader<'_> {
    fn note(&mut self, line: u32, message: impl Into<String>) {
        self.findings.push(Finding {
            file: self.file.to_owned(),
            line,
            column: 1,
            message: message.into(),
        });
    }

    fn unknown(&mut self, line: u32, key: &str, place: &str, known: &[&str]) {
        let near = nearest(key, known)
            .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
        self.note(line, format!("unknown key `{key}` in {place}{near}"));
    }

    fn map<'n>(&mut self, node: &'n Node, place: &str) -> &'n [(String, Node)] {
        match &node.value {
            Value::Map(entries) => entries,
            Value::Text(text) if text.is_empty() => &[],
            _ => {
                self.note(node.line, format!("{place} is no map"));
                &[]
            }
        }
    }

    fn list<'n>(&mut self, node: &'n Node, place: &str) -> &'n [Node] {
        match &node.value {
            Value::List(items) => items,
            Value::Text(text) if text.is_empty() => &[],
            _ => {
                self.note(node.line, format!("{place} is no list"));
                &[]
            }
        }
    }

    fn text<'n>(&mut self, node: &'n Node, key: &str) -> &'n str {
        match &node.value {
            Value::Text(text) => text,
            _ => {
                self.note(node.line, format!("`{key}` is no text"));
                ""
            }
        }
    }

    fn number(&mut self, node: &Node, key: &str) -> f64 {
        let text = self.text(node, key);
        match text.trim_end_matches("/s").parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 0.0 => number,
            _ => {
                self.note(node.line, format!("`{key}` is a number from 0 on, not `{text}`"));
                0.0
            }
        }
    }

    /// Reads a time: with a unit, or a number of `unit`s.
    fn time(&mut self, node: &Node, key: &str, unit: Duration) -> Duration {
        let text = self.text(node, key);
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
        let found = match text.parse::<u32>() {
            Ok(number) => Some(unit * number),
            Err(_) => {
                days.map(|days| Duration::from_secs(86_400) * days).or_else(|| parse_duration(text))
            }
        };
        found.unwrap_or_else(|| {
            self.note(node.line, format!("`{key}` is a time such as 30s or 1d, not `{text}`"));
            Duration::ZERO
        })
    }

    fn config(&mut self, root: &Node) -> Config {
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
        let entries = self.map(root, "the file");
        let find = |key: &str| entries.iter().find(|(known, _)| known == key).map(|(_, node)| node);
        for (key, node) in entries {
            match key.as_str() {
                "globals" | "runmode" | "tests" | "phases" | "publishmode" | "publishers" | "metrics" => {}
                "feeders" => self.note(
                    node.line,
                    "feeders are not supported: pages and assets that tests make are passed on to those that use them",
                ),
                "distributedconfig" => {
                    self.note(node.line, "one process runs the tests; a distributed run is not supported");
                }
                _ => self.unknown(node.line, key, "the file", &KEYS),
            }
        }
        let mut config = Config { phases: Vec::new(), author: None, login: None, is_dry: false };
        let mut base = phase(Vec::new());
        let mut timeout = None;
        if let Some(globals) = find("globals") {
            timeout = self.globals(globals, &mut config, &mut base);
        }
        if let Some(mode) = find("runmode") {
            base.mode = self.mode(mode, &base.mode);
        }
        if let Some(tests) = find("tests") {
            self.tests(tests, &mut base.tests);
        }
        if let Some(timeout) = timeout {
            base.tests.iter_mut().for_each(|test| test.timeout = timeout);
        }
        let is_silent = find("tests").is_none();
        match find("phases") {
            None => config.phases.push(base),
            Some(phases) => self.phases(phases, &base, &mut config.phases),
        }
        for phase in config.phases.iter_mut().filter(|phase| is_silent && phase.tests.is_empty()) {
            phase.tests = suite("toughday").unwrap_or_default();
            if let Some(timeout) = timeout {
                phase.tests.iter_mut().for_each(|test| test.timeout = timeout);
            }
        }
        for phase in &config.phases {
            if phase.tests.is_empty() {
                self.findings.push(Finding {
                    file: self.file.to_owned(),
                    line: root.line,
                    column: 1,
                    message: format!("phase `{}` has no test", phase.name),
                });
            }
        }
        config
    }

    fn globals(&mut self, node: &Node, config: &mut Config, base: &mut Phase) -> Option<Duration> {
        const KEYS: [&str; 9] = [
            "host", "port", "protocol", "user", "password", "duration", "timeout", "dryrun",
            "suite",
        ];
        let (mut host, mut port, mut protocol) = (None, "4502".to_owned(), "http".to_owned());
        let (mut user, mut password) = (None, "admin".to_owned());
        let mut timeout = None;
        for (key, value) in self.map(node, "`globals`") {
            match key.as_str() {
                "host" => host = Some(self.text(value, key).to_owned()),
                "port" => self.text(value, key).clone_into(&mut port),
                "protocol" => self.text(value, key).clone_into(&mut protocol),
                "user" => user = Some(self.text(value, key).to_owned()),
                "password" => self.text(value, key).clone_into(&mut password),
                "duration" => base.lasts = self.time(value, key, Duration::from_secs(1)),
                "timeout" => timeout = Some(self.time(value, key, Duration::from_secs(1))),
                "dryrun" => config.is_dry = self.text(value, key) == "true",
                "suite" => match suites(self.text(value, key)) {
                    Ok(tests) => base.tests.extend(tests),
                    Err(fault) => self.note(value.line, fault),
                },
                _ if IDLE.contains(&key.as_str()) => {}
                _ => self.unknown(value.line, key, "`globals`", &KEYS),
            }
        }
        config.author = host.map(|host| format!("{protocol}://{host}:{port}"));
        config.login = user.map(|user| format!("{user}:{password}"));
        timeout
    }

    fn mode(&mut self, node: &Node, inherited: &Mode) -> Mode {
        const KEYS: [&str; 8] =
            ["type", "concurrency", "waittime", "load", "start", "end", "rate", "interval"];
        let entries = self.map(node, "`runmode`");
        let find = |key: &str| entries.iter().find(|(known, _)| known == key).map(|(_, node)| node);
        let mut kind =
            if matches!(inherited, Mode::Normal { .. }) { "normal" } else { "constantload" };
        if let Some(found) = find("type") {
            kind = self.text(found, "type");
            if !matches!(kind, "normal" | "constantload") {
                self.note(
                    found.line,
                    format!("no mode is called `{kind}`; there are: normal, constantload"),
                );
            }
        }
        let is_normal = kind != "constantload";
        let (mut number, mut wait) = match inherited {
            Mode::Normal { users, wait } if is_normal => (*users, *wait),
            Mode::ConstantLoad { rate } if !is_normal => (*rate, Duration::ZERO),
            _ if is_normal => (Ramp::steady(200.0), Duration::from_millis(300)),
            _ => (Ramp::steady(50.0), Duration::ZERO),
        };
        for (key, value) in entries {
            match (key.as_str(), is_normal) {
                ("type", _) => {}
                ("concurrency", true) | ("load", false) => {
                    number = Ramp::steady(self.number(value, key))
                }
                ("waittime", true) => wait = self.time(value, key, Duration::from_millis(1)),
                ("start" | "end" | "rate" | "interval", _) => {}
                ("concurrency" | "waittime", false) | ("load", true) => {
                    self.note(value.line, format!("`{key}` does not belong to the mode `{kind}`"));
                }
                _ => self.unknown(value.line, key, "`runmode`", &KEYS),
            }
        }
        for (key, place) in
            [("start", &mut number.start), ("end", &mut number.end), ("rate", &mut number.step)]
        {
            if let Some(value) = find(key) {
                *place = self.number(value, key);
            }
        }
        if let Some(value) = find("interval") {
            number.interval = self.time(value, "interval", Duration::from_secs(1));
        }
        if is_normal {
            Mode::Normal { users: number, wait }
        } else {
            Mode::ConstantLoad { rate: number }
        }
    }

    fn tests(&mut self, node: &Node, tests: &mut Vec<Test>) {
        for item in self.list(node, "`tests`") {
            let entries = self.map(item, "a test");
            let Some((verb, name)) = entries
                .iter()
                .find(|(key, _)| matches!(key.as_str(), "add" | "config" | "exclude"))
            else {
                self.note(item.line, "a test begins with `add`, `config` or `exclude`");
                continue;
            };
            let line = name.line;
            let name = self.text(name, verb);
            let properties =
                entries.iter().find(|(key, _)| key == "properties").map(|(_, node)| node);
            for (key, value) in entries {
                if !matches!(key.as_str(), "add" | "config" | "exclude" | "properties") {
                    self.unknown(value.line, key, "a test", &["properties"]);
                }
            }
            let at = tests.iter().position(|test| is_called(test, name));
            // As in Tough Day: where no test was added, the default suite is meant.
            let at = match (verb.as_str(), at) {
                ("config" | "exclude", None) if tests.is_empty() => {
                    tests.extend(suite("toughday").unwrap_or_default());
                    tests.iter().position(|test| is_called(test, name))
                }
                (_, at) => at,
            };
            match (verb.as_str(), at) {
                ("add", _) => match Kind::find(name) {
                    Ok(kind) => {
                        let mut test = Test::new(kind, 1);
                        self.properties(properties, &mut test);
                        tests.push(test);
                    }
                    Err(fault) => self.note(line, fault),
                },
                ("exclude", Some(at)) => drop(tests.remove(at)),
                (_, Some(at)) => {
                    if let Some(mut test) = tests.get(at).cloned() {
                        self.properties(properties, &mut test);
                        if let Some(place) = tests.get_mut(at) {
                            *place = test;
                        }
                    }
                }
                (_, None) => self.note(line, format!("no test called `{name}` was added")),
            }
        }
    }

    fn properties(&mut self, node: Option<&Node>, test: &mut Test) {
        const KEYS: [&str; 9] =
            ["name", "weight", "timeout", "count", "base", "path", "query", "queries", "title"];
        let Some(node) = node else { return };
        for (key, value) in self.map(node, "`properties`") {
            match key.as_str() {
                "name" => self.text(value, key).clone_into(&mut test.name),
                "weight" => test.weight = self.number(value, key) as u64,
                // In milliseconds, as in Tough Day; globals count in seconds.
                "timeout" => test.timeout = self.time(value, key, Duration::from_millis(1)),
                "count" => test.count = Some(self.number(value, key) as u64),
                "base" => test.base = (self.number(value, key) as u64).max(1),
                "path" | "query" => test.queries = vec![self.text(value, key).to_owned()],
                "queries" => {
                    let list = self.list(value, key);
                    test.queries = list.iter().map(|one| self.text(one, key).to_owned()).collect();
                }
                "publish" => test.on_publish = self.text(value, key) == "true",
                "resourcetype" | "resourceType" => {
                    test.look.resource_type = Some(self.text(value, key).to_owned());
                }
                "template" => test.look.template = Some(self.text(value, key).to_owned()),
                _ if IDLE_PROPERTIES.contains(&key.as_str()) => {}
                _ => self.unknown(value.line, key, "`properties`", &KEYS),
            }
        }
    }

    fn phases(&mut self, node: &Node, base: &Phase, phases: &mut Vec<Phase>) {
        const KEYS: [&str; 7] =
            ["name", "duration", "measurable", "useconfig", "tests", "runmode", "publishmode"];
        for item in self.list(node, "`phases`") {
            let entries = self.map(item, "a phase");
            let find =
                |key: &str| entries.iter().find(|(known, _)| known == key).map(|(_, node)| node);
            let mut phase = base.clone();
            if let Some(node) = find("useconfig") {
                let name = self.text(node, "useconfig");
                match phases.iter().find(|phase: &&Phase| phase.name == name) {
                    Some(found) => phase = found.clone(),
                    None => self.note(node.line, format!("no phase above is called `{name}`")),
                }
            }
            phase.name = format!("phase {}", phases.len() + 1);
            for (key, value) in entries {
                match key.as_str() {
                    "name" => self.text(value, key).clone_into(&mut phase.name),
                    "duration" => phase.lasts = self.time(value, key, Duration::from_secs(1)),
                    "measurable" => phase.is_measured = self.text(value, key) != "false",
                    "runmode" => phase.mode = self.mode(value, &phase.mode),
                    "tests" => self.tests(value, &mut phase.tests),
                    "useconfig" | "publishmode" | "publishers" | "metrics" => {}
                    _ => self.unknown(value.line, key, "a phase", &KEYS),
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
        let config = of_yaml(FILE, "x.yaml").unwrap();
        assert_eq!(config.author.as_deref(), Some("http://localhost:4502"));
        assert_eq!(config.login.as_deref(), Some("admin:secret"));
        let [first, second] = config.phases.as_slice() else { panic!("{config:?}") };
        assert_eq!((first.lasts, first.is_measured), (Duration::from_secs(10), false));
        let wait = Duration::from_millis(100);
        assert_eq!(first.mode, Mode::Normal { users: Ramp::steady(20.0), wait });
        let tree = &first.tests[0];
        assert_eq!(
            (tree.name.as_str(), tree.weight, tree.base, tree.count),
            ("Trees", 15, 7, Some(100))
        );
        assert_eq!((first.tests[1].weight, tree.timeout), (85, Duration::from_secs(5)));
        let rate = Ramp { start: 1.0, end: 10.0, step: 2.0, interval: Duration::from_secs(5) };
        assert_eq!((second.name.as_str(), &second.mode), ("load", &Mode::ConstantLoad { rate }));
        assert_eq!(second.tests.len(), 1);
    }

    #[test]
    fn a_file_without_tests_means_the_default_suite() {
        let tests = |text: &str| {
            let config = of_yaml(text, "x.yaml").unwrap();
            let shown = |test: &Test| format!("{} {}", test.name, test.weight);
            config.phases[0].tests.iter().map(shown).collect::<Vec<_>>()
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
    fn every_fault_is_told_with_its_line() {
        let text = "globals:\n  hots: x\nrunmode:\n  type: fast\n  load: 3\ntests:\n  - add: CreateLiveCopyTest\n  - remove: X\n  - config: \
                    GetTest\nfeeders:\n  - x: 1\nphases:\n  - useconfig: none\n";
        let Err(Error::Refused(findings)) = of_yaml(text, "x.yaml") else { panic!() };
        let told: Vec<String> =
            findings.iter().map(|one| format!("{}: {}", one.line, one.message)).collect();
        for expected in [
            "2: unknown key `hots` in `globals`",
            "4: no mode is called `fast`",
            "5: `load` does not belong",
            "7: `CreateLiveCopyTest` is not supported",
            "8: a test begins with",
            "9: no test called `GetTest` was added",
            "11: feeders are not supported",
            "13: no phase above is called `none`",
        ] {
            assert!(told.iter().any(|one| one.starts_with(expected)), "{expected}: {told:?}");
        }
    }

    #[test]
    fn suites_are_known_by_name() {
        assert_eq!(of_suites("toughday").unwrap().phases[0].tests.len(), 5);
        assert_eq!(of_suites("get_tests, authoring").unwrap().phases[0].tests.len(), 4);
        assert!(of_suites("all").unwrap_err().to_string().contains("toughday"));
    }
}
