//! A real Prometheus scrapes each role, and the dashboards and alert rules of `monitoring` find what they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tympan_testkit::condition_wait::{wait_for, wait_until};

use crate::program::{Demo, ask, free_address, get};

const PAGE: &str = "/content/wayfare/en/about.html";
/// Metrics that the demo does not have, and why.
const ABSENT_METRICS: [(&str, &str); 3] = [
    ("tympan_certificate_not_after_timestamp_seconds", "the demo has no certificate"),
    ("tympan_backup_last_success_timestamp_seconds", "the demo has no vault"),
    ("tympan_backup_failing", "the demo has no vault"),
];

fn monitoring_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("monitoring")
}

/// Runs promtool; nothing where it is not installed.
fn promtool(arguments: &[&str], input: Stdio) -> Option<Output> {
    let run = Command::new("promtool")
        .current_dir(monitoring_folder())
        .args(arguments)
        .stdin(input)
        .output();
    match run {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!("skipped: `promtool` is not installed");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn each_alert_is_raised_by_its_cause_and_not_before() {
    let Some(output) = promtool(&["test", "rules", "alerts.test.yml"], Stdio::null()) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    let read = |name| std::fs::read_to_string(monitoring_folder().join(name)).unwrap();
    let tests = read("alerts.test.yml");
    let rules = read("alerts.yml");
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10);
    for alert in alerts {
        assert!(tests.contains(&format!("name: \"{alert}\"")), "{alert} has no test");
    }
    for line in rules.lines().filter_map(|line| line.trim_start().strip_prefix("runbook: ")) {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(line);
        assert!(page.is_file(), "{line} is missing");
    }
}

/// A running Prometheus; dropping it stops it.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// Starts it with the alert rules, scraping these addresses as the guide says.
    fn start(folder: &Path, targets: &[String]) -> Self {
        let address = free_address();
        let rules = monitoring_folder().join("alerts.yml");
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
             rule_files: [\"{}\"]\n\
             scrape_configs:\n  - job_name: tympan\n    static_configs: [{{ targets: {targets:?} }}]\n",
            rules.display()
        );
        let file = folder.join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let log = std::fs::File::create(folder.join("prometheus.log")).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("series").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut prometheus = Self { child, address };
        wait_until("Prometheus is ready", || {
            let log = || std::fs::read_to_string(folder.join("prometheus.log")).unwrap();
            assert!(prometheus.child.try_wait().unwrap().is_none(), "{}", log());
            ask(address, "GET", "/-/ready", &[], b"").is_ok_and(|answer| answer.status == 200)
        });
        prometheus
    }

    /// Returns the series of an expression, one per line.
    fn query(&self, expression: &str) -> Result<String, String> {
        let server = format!("http://{}", self.address);
        let output = promtool(&["query", "instant", &server, expression], Stdio::null()).unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Returns the expressions of the alert rules by their names, once all have been evaluated without an error.
    fn alert_expressions(&self) -> BTreeMap<String, String> {
        wait_for(|| {
            let answer = get(self.address, "/api/v1/rules");
            let rules: Value = serde_json::from_str(&answer.text()).unwrap();
            let groups = rules["data"]["groups"].as_array().unwrap();
            let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
            let mut alerts = BTreeMap::new();
            for rule in rules {
                if rule["health"] != "ok" {
                    return Err(format!("not evaluated: {rule}"));
                }
                let text = |name: &str| rule[name].as_str().unwrap().to_owned();
                alerts.insert(text("name"), text("query"));
            }
            Ok(alerts)
        })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Returns the names of Tympan's metrics and those of processes in an expression.
fn metric_names(expression: &str) -> BTreeSet<&str> {
    expression
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("tympan_") || word.starts_with("process_"))
        .collect()
}

fn is_absent_in_demo(expression: &str) -> bool {
    metric_names(expression)
        .iter()
        .any(|metric| ABSENT_METRICS.iter().any(|(absent, _)| metric == absent))
}

/// Returns the expressions of all dashboards, with their variables filled in.
fn dashboard_expressions() -> Vec<(String, String)> {
    let mut expressions = Vec::new();
    for role in ["author", "publish", "dispatcher"] {
        let file = monitoring_folder().join(format!("grafana/{role}.json"));
        let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().unwrap();
                let expression =
                    expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
                assert!(!expression.contains('$'), "{expression}");
                expressions.push((format!("{role}: {title}"), expression));
            }
        }
    }
    expressions
}

#[test]
fn dashboards_and_alerts_find_their_metrics() {
    if promtool(&["--version"], Stdio::null()).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("demo");
    let [author, publish, dispatcher] = Demo::prepare(&home);
    let dispatcher_admin = free_address();
    let settings = format!("[dispatcher.admin]\naddress = \"{dispatcher_admin}\"\n");
    std::fs::create_dir_all(home.join("dispatcher")).unwrap();
    std::fs::write(home.join("dispatcher/tympan.toml"), settings).unwrap();
    let demo = Demo::start_at(&home, author, publish, dispatcher);
    let mut targets: Vec<String> =
        ["author", "publish"].map(|role| demo.admin_address(role)).into();
    targets.push(dispatcher_admin.to_string());
    let use_site = || {
        // A hit or a miss, and what is never stored.
        get(dispatcher, PAGE);
        get(dispatcher, &format!("{PAGE}?q=1"));
        get(publish, PAGE);
        demo.get_as_admin(PAGE);
    };
    use_site();

    for target in &targets {
        let text = get(target.parse().unwrap(), "/metrics").text();
        let file = dir.path().join("metrics");
        std::fs::write(&file, &text).unwrap();
        let checked =
            promtool(&["check", "metrics"], std::fs::File::open(&file).unwrap().into()).unwrap();
        assert!(
            checked.status.success() && checked.stderr.is_empty() && checked.stdout.is_empty(),
            "{target}: {checked:?}"
        );
        assert!(text.contains("\ntympan_build_info{version="), "{target}");
    }

    let prometheus = Prometheus::start(dir.path(), &targets);
    let up = || prometheus.query("count(up == 1) >= 3").unwrap();
    wait_until("all roles are scraped", || !up().is_empty());
    let mut missing = dashboard_expressions();
    assert!(missing.len() > 50);
    missing.extend(prometheus.alert_expressions().into_iter().flat_map(|(alert, expression)| {
        // A healthy site raises nothing, but each metric is there.
        let metrics: Vec<String> =
            metric_names(&expression).into_iter().map(str::to_owned).collect();
        metrics.into_iter().map(move |metric| (alert.clone(), metric))
    }));
    // Rates need a second sample that differs.
    wait_for(|| {
        use_site();
        missing.retain(|(place, expression)| {
            let series = prometheus.query(expression);
            let series = series.unwrap_or_else(|error| panic!("{place}: {expression}: {error}"));
            series.is_empty() && !is_absent_in_demo(expression)
        });
        if missing.is_empty() { Ok(()) } else { Err(format!("without series: {missing:#?}")) }
    });
    let sources =
        ["src/command/certificate_metrics.rs", "crates/home-backup/src/scheduled_save.rs"];
    let sources = sources.map(|file| {
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
    });
    for (metric, _) in ABSENT_METRICS {
        assert!(sources.iter().any(|source| source.contains(&format!("\"{metric}\""))), "{metric}");
    }
}
