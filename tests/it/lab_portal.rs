//! The portal's flow of the sample site under load: many users of one file, each exactly once, whoever sends.
//!
//! JMeter as one process, the lab as one, and the lab as four agents run the same plan. What the publisher's
//! `access.log` says of who saw the page behind the login is what counts, and not what a generator says of itself.
//!
//! `TYMPAN_PORTAL_USERS` is their number, 40 unless given and 10,000 in `make torture`. JMeter is found through
//! `TYMPAN_JMETER`, a folder with its `bin` and `lib`; without it, or without Java, its part is skipped, and says so.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tympan_testkit::condition_wait::wait_for;

use crate::program::{Demo, free_address, get, lab_command, run_ok};

const STATUS: &str = "/portal/status.html";

fn users() -> usize {
    std::env::var("TYMPAN_PORTAL_USERS").map_or(40, |users| users.parse().unwrap())
}

fn name_of(user: usize) -> String {
    format!("user{user:05}")
}

/// Returns the password of one of the demo's customers, and what the publisher keeps of it: all users get both, so that
/// they are made at once.
fn password(home: &Path, folder: &Path) -> (String, String) {
    let rows = std::fs::read_to_string(home.join("portal-users.csv")).unwrap();
    let (name, password) = rows.lines().next().unwrap().split_once(',').unwrap();
    let (filter, file) = (folder.join("filter.xml"), folder.join("accounts.zip"));
    std::fs::write(
        &filter,
        "<workspaceFilter version=\"1.0\"><filter root=\"/home/users\"/></workspaceFilter>",
    )
    .unwrap();
    let publish = home.join("publish");
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    run_ok(&[
        "package",
        "build",
        "-f",
        &text(&filter),
        "-o",
        &text(&file),
        "--home",
        &text(&publish),
    ]);
    let mut zip = zip::ZipArchive::new(std::fs::File::open(&file).unwrap()).unwrap();
    let mut accounts = String::new();
    let mut entry = zip.by_name("jcr_root/home/users/.content.xml").unwrap();
    entry.read_to_string(&mut accounts).unwrap();
    let account = accounts.split(&format!("<{name}")).nth(1).unwrap();
    let hash = account.split("rep:password=\"").nth(1).unwrap().split('"').next().unwrap();
    (password.to_owned(), hash.to_owned())
}

/// Installs accounts on a publisher that does not run, and writes the file that a plan reads them from.
fn create_users(home: &Path, folder: &Path, users: usize) {
    let (password, hash) = password(home, folder);
    let home = &home.join("publish");
    let file = folder.join("users.zip");
    let mut zip = zip::ZipWriter::new(std::fs::File::create(&file).unwrap());
    let accounts: String = (0..users)
        .map(|user| {
            let name = name_of(user);
            format!(
                "<{name} jcr:primaryType=\"rep:User\" rep:authorizableId=\"{name}\" rep:principalName=\"{name}\" rep:password=\"{hash}\"/>"
            )
        })
        .collect();
    for (name, content) in [
        (
            "META-INF/vault/filter.xml",
            "<workspaceFilter version=\"1.0\"><filter root=\"/home/users/load\"/></workspaceFilter>"
                .to_owned(),
        ),
        (
            "META-INF/vault/properties.xml",
            "<properties><entry key=\"name\">users</entry><entry key=\"group\">load</entry><entry key=\"version\">1</entry></properties>"
                .to_owned(),
        ),
        (
            "jcr_root/home/users/load/.content.xml",
            format!(
                "<jcr:root xmlns:jcr=\"http://www.jcp.org/jcr/1.0\" xmlns:rep=\"internal\" jcr:primaryType=\"rep:AuthorizableFolder\">{accounts}</jcr:root>"
            ),
        ),
    ] {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content.as_bytes()).unwrap();
    }
    zip.finish().unwrap();
    run_ok(&["package", "install", file.to_str().unwrap(), "--home", home.to_str().unwrap()]);
    let rows: String = (0..users).map(|user| format!("{},{password}\n", name_of(user))).collect();
    std::fs::write(folder.join("users.csv"), rows).unwrap();
}

/// A sampler with one assertion: the code, or a text of the body.
fn sampler(
    name: &str,
    (method, path): (&str, &str),
    form: &[(&str, &str)],
    (field, text): (&str, &str),
) -> String {
    let arguments: String = form
        .iter()
        .map(|(name, value)| {
            format!("<elementProp name=\"{name}\" elementType=\"HTTPArgument\"><boolProp name=\"HTTPArgument.always_encode\">true</boolProp><stringProp name=\"Argument.name\">{name}</stringProp><stringProp name=\"Argument.value\">{value}</stringProp><stringProp name=\"Argument.metadata\">=</stringProp></elementProp>")
        })
        .collect();
    // 8: equals; 16: holds the text.
    let way = if field == "response_code" { 8 } else { 16 };
    format!(
        r#"<HTTPSamplerProxy guiclass="HttpTestSampleGui" testclass="HTTPSamplerProxy" testname="{name}" enabled="true">
<elementProp name="HTTPsampler.Arguments" elementType="Arguments"><collectionProp name="Arguments.arguments">{arguments}</collectionProp></elementProp>
<stringProp name="HTTPSampler.domain">127.0.0.1</stringProp><stringProp name="HTTPSampler.port">${{__P(port)}}</stringProp><stringProp name="HTTPSampler.protocol">http</stringProp>
<stringProp name="HTTPSampler.path">{path}</stringProp><stringProp name="HTTPSampler.method">{method}</stringProp>
<boolProp name="HTTPSampler.follow_redirects">false</boolProp><boolProp name="HTTPSampler.auto_redirects">false</boolProp><boolProp name="HTTPSampler.use_keepalive">true</boolProp>
</HTTPSamplerProxy><hashTree>
<ResponseAssertion guiclass="AssertionGui" testclass="ResponseAssertion" testname="right" enabled="true"><collectionProp name="Asserion.test_strings"><stringProp name="1">{text}</stringProp></collectionProp><stringProp name="Assertion.test_field">Assertion.{field}</stringProp><boolProp name="Assertion.assume_success">true</boolProp><intProp name="Assertion.test_type">{way}</intProp></ResponseAssertion><hashTree/>
</hashTree>"#
    )
}

/// Writes the plan: threads whose visits are each one user of the file, from the login to the logout.
fn write_plan(folder: &Path) -> PathBuf {
    let login =
        "/login?resource=%2Fportal%2Fstatus.html&amp;failed=%2Fportal.html%3Flogin%3Dfailed";
    let steps = [
        sampler(
            "portal",
            ("GET", "/portal.html"),
            &[],
            ("response_data", "name=&quot;password&quot;"),
        ),
        sampler(
            "log in",
            ("POST", login),
            &[("user", "${USER}"), ("password", "${PASS}")],
            ("response_code", "303"),
        ),
        sampler("status", ("GET", STATUS), &[], ("response_data", "customer since")),
        sampler(
            "log out",
            ("POST", "/logout?resource=%2Fportal.html"),
            &[],
            ("response_code", "303"),
        ),
    ]
    .concat();
    let text = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<jmeterTestPlan version="1.2" properties="5.0" jmeter="5.6.3"><hashTree>
<TestPlan guiclass="TestPlanGui" testclass="TestPlan" testname="portal" enabled="true"/><hashTree>
<ThreadGroup guiclass="ThreadGroupGui" testclass="ThreadGroup" testname="customers" enabled="true">
<stringProp name="ThreadGroup.on_sample_error">continue</stringProp>
<elementProp name="ThreadGroup.main_controller" elementType="LoopController"><stringProp name="LoopController.loops">-1</stringProp></elementProp>
<stringProp name="ThreadGroup.num_threads">22</stringProp><stringProp name="ThreadGroup.ramp_time">0</stringProp>
</ThreadGroup><hashTree>
<CookieManager guiclass="CookiePanel" testclass="CookieManager" testname="cookies" enabled="true"><collectionProp name="CookieManager.cookies"/><boolProp name="CookieManager.clearEachIteration">true</boolProp></CookieManager><hashTree/>
<CSVDataSet guiclass="TestBeanGUI" testclass="CSVDataSet" testname="users" enabled="true"><stringProp name="filename">users.csv</stringProp><stringProp name="fileEncoding">UTF-8</stringProp><stringProp name="variableNames">USER,PASS</stringProp><stringProp name="delimiter">,</stringProp><boolProp name="ignoreFirstLine">false</boolProp><boolProp name="quotedData">false</boolProp><boolProp name="recycle">false</boolProp><boolProp name="stopThread">true</boolProp><stringProp name="shareMode">shareMode.all</stringProp></CSVDataSet><hashTree/>
{steps}
</hashTree></hashTree></hashTree></jmeterTestPlan>"#
    );
    let path = folder.join("portal.jmx");
    std::fs::write(&path, text).unwrap();
    path
}

/// Returns how often each user has seen the page behind the login until now, and how many requests were refused.
fn seen(demo: &Demo, mark: &str) -> (BTreeMap<String, usize>, usize) {
    get(demo.publish, mark);
    let log = demo.home.join("publish/logs/access.log");
    // Lines reach the log in order: once the mark is there, so is all that came before.
    let before = wait_for(|| {
        let text = std::fs::read_to_string(&log).unwrap();
        let before =
            text.split_once(&format!("\"GET {mark} ")).map(|(before, _)| before.to_owned());
        before.ok_or_else(|| format!("the log does not show {mark}"))
    });
    let mut users = BTreeMap::new();
    let mut refused = 0;
    for line in before.lines().filter(|line| line.contains(&format!("\"GET {STATUS} "))) {
        let user = line.split_whitespace().nth(2).unwrap_or_default();
        match line.contains("\" 200 ") && user.starts_with("user") {
            true => *users.entry(user.to_owned()).or_default() += 1,
            false => refused += 1,
        }
    }
    (users, refused)
}

fn jmeter(plan: &Path, folder: &Path, port: &str) -> Option<Command> {
    let Some(home) = std::env::var_os("TYMPAN_JMETER").map(PathBuf::from) else {
        eprintln!("skipped: the portal under real JMeter needs TYMPAN_JMETER");
        return None;
    };
    if Command::new("java").arg("-version").output().is_err() {
        eprintln!("skipped: the portal under real JMeter needs Java");
        return None;
    }
    let home = home.display();
    let mut command = Command::new("java");
    command
        .args(["-Xmx512m", "-Djava.awt.headless=true", "-cp"])
        .arg(format!("{home}/bin/ApacheJMeter.jar:{home}/lib/*:{home}/lib/ext/*"))
        .arg(format!("-Djmeter.home={home}"))
        .args(["org.apache.jmeter.NewDriver", "-n", "-Jjmeterengine.force.system.exit=true"])
        .arg(port)
        .arg("-t")
        .arg(plan)
        .arg("-j")
        .arg(folder.join("jmeter.log"));
    Some(command)
}

#[test]
fn each_user_of_a_file_goes_through_the_portal_once_whoever_sends() {
    let dir = tempfile::tempdir().unwrap();
    let folder = tempfile::tempdir().unwrap();
    // The first start makes the homes, which know their addresses.
    let at = [free_address(), free_address(), free_address()];
    assert!(Demo::start_at(dir.path(), at[0], at[1], at[2]).running.stop());
    let users = users();
    create_users(dir.path(), folder.path(), users);
    let plan = write_plan(folder.path());
    let demo = Demo::start_at(dir.path(), at[0], at[1], at[2]);
    let port = format!("-Jport={}", demo.dispatcher.port());
    let lab = |more: &[&str]| {
        let mut command = lab_command();
        command.arg("run").arg(&plan).arg(&port).args(more);
        command
    };
    let mut ways = vec![("one process", lab(&[])), ("four agents", lab(&["--agents", "4"]))];
    ways.extend(jmeter(&plan, folder.path(), &port).map(|command| ("JMeter", command)));
    for (round, (name, mut command)) in ways.into_iter().enumerate() {
        let started = Instant::now();
        let output = command.current_dir(folder.path()).output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        // On a busy machine the generator may say of itself that it was saturated; nothing may be lost.
        assert!(matches!(output.status.code(), Some(0 | 3)), "{name}: {output:?}");
        assert!(!told.contains("INCOMPLETE"), "{name}: {told}");
        let (found, refused) = seen(&demo, &format!("/mark-portal-{round}"));
        let wanted: BTreeMap<String, usize> =
            (0..users).map(|user| (name_of(user), round + 1)).collect();
        assert!(found == wanted, "{name}: not each user came once: {told}");
        assert_eq!(refused, 0, "{name}: {told}");
        let line = told.lines().rev().find(|line| line.starts_with("summary ="));
        let line = line.unwrap_or_else(|| panic!("{name}: {told}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words.get(2), Some(&(users * 4).to_string().as_str()), "{name}: {line}");
        assert!(line.ends_with("Err:     0 (0.00%)"), "{name}: {line}");
        eprintln!(
            "{name}: {users} users once each, {:.1} s, {line}",
            started.elapsed().as_secs_f64()
        );
    }
}
