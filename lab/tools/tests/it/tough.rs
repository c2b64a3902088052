//! Tough Day's tests against a scripted author: what they send, in which shares, and what they clean up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tympan_lab_engine::live_display::{LiveDisplay, LiveDisplayMode};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::report::report_sheet::ReportSheet;
use tympan_lab_tools::program::{MeasuredProgram, OutputMetric};
use tympan_lab_tools::tough_day::backup_impact::BackupImpactTest;
use tympan_lab_tools::tough_day::{
    LoadRamp, ToughConfig, ToughDayRun, ToughLoadMode, config_of_suites, config_of_yaml,
};
use tympan_testkit::origin_server::{OriginRequest, OriginResponse, OriginServer};

/// An author that remembers which nodes there are, and answers as Sling's POST protocol does.
fn author() -> (OriginServer, Arc<Mutex<BTreeSet<String>>>) {
    let nodes: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let known = Arc::clone(&nodes);
    let drawn: Mutex<BTreeSet<String>> = Mutex::default();
    let origin = OriginServer::start(move |seen| {
        let mut nodes = known.lock().unwrap();
        let path = seen.target.split('?').next().unwrap_or_default().replace("%3A", ":");
        if seen.method == "GET" {
            return match path.as_str() {
                "/" => OriginResponse::with_status(302).with_header("Location", "/sites.html"),
                "/bin/querybuilder.json" if seen.target.contains("cq%3APageContent") => {
                    OriginResponse::html(
                        "{\"hits\":[{\"sling:resourceType\":\"shop/page\",\"cq:template\":\"/apps/shop/page\"}]}",
                    )
                }
                // As a publisher does: a page that no component draws is none.
                _ if path.ends_with(".html") && path.starts_with("/content/") => {
                    let page = path.trim_end_matches(".html");
                    OriginResponse::with_status(if drawn.lock().unwrap().contains(page) {
                        200
                    } else {
                        404
                    })
                }
                _ if path.ends_with("/jcr:content.json") => {
                    OriginResponse::html("{\"dam:assetState\":\"processed\"}")
                }
                _ => OriginResponse::html("ok"),
            };
        }
        let body = String::from_utf8_lossy(&seen.body).replace("%3A", ":").replace("%2F", "/");
        if body.contains(":operation=delete") {
            let below = format!("{path}/");
            let is_there = nodes.iter().any(|node| *node == path || node.starts_with(&below));
            nodes.retain(|node| *node != path && !node.starts_with(&below));
            return if is_there {
                OriginResponse::html("deleted")
            } else {
                OriginResponse::with_status(404)
            };
        }
        if body.contains("sling:resourceType=") {
            drawn.lock().unwrap().insert(path.clone());
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        let is_root = ["/content", "/content/dam", "/content/cq:tags"].contains(&parent.as_str());
        if !is_root && !nodes.contains(&parent) {
            return OriginResponse::with_status(409);
        }
        if let Some(name) = body.split("filename=\"").nth(1).and_then(|rest| rest.split('"').next())
        {
            if !nodes.contains(&path) {
                return OriginResponse::with_status(404);
            }
            nodes.insert(format!("{path}/{name}"));
        } else {
            nodes.insert(path);
        }
        OriginResponse::html("done")
    });
    (origin, nodes)
}

fn tough(origin: &OriginServer, config: ToughConfig) -> ToughDayRun<'static> {
    ToughDayRun {
        config,
        author_url: format!("http://{}", origin.addr()),
        publish_url: Some(format!("http://{}", origin.addr())),
        authorization: RequestAuthorization::basic("admin:admin"),
        run_name: "run-1".to_owned(),
        keeps_content: false,
        upload_picture: Some(b"\x89PNG picture".to_vec()),
        picture_seed: 1,
        user_password_prefix: "s3cret".to_owned(),
        goals: &[],
    }
}

fn quiet() -> LiveDisplay {
    LiveDisplay::new(Box::new(std::io::sink()), LiveDisplayMode::Lines, "x", None)
}

/// Returns passed, failed and skipped per test.
fn metrics(sheet: &ReportSheet, phase: usize) -> BTreeMap<String, [u64; 3]> {
    let tests = sheet.json_result["phases"][phase]["tests"].as_array().unwrap();
    tests
        .iter()
        .map(|test| {
            let number = |key: &str| test[key].as_u64().unwrap();
            let name = test["test"].as_str().unwrap().to_owned();
            (name, [number("passed"), number("failed"), number("skipped")])
        })
        .collect()
}

fn targets(origin: &OriginServer, fits: impl Fn(&OriginRequest) -> bool) -> usize {
    origin.requests().iter().filter(|seen| fits(seen)).count()
}

#[test]
fn tests_take_turns_by_their_weights_and_leave_nothing() {
    let (origin, nodes) = author();
    let mut config = config_of_suites("toughday").unwrap();
    config.phases[0].duration = Duration::from_secs(4);
    config.phases[0].load_mode = ToughLoadMode::ConstantLoad { rate: LoadRamp::constant(100.0) };
    let sheet = tough(&origin, config).run(&mut quiet()).unwrap();
    let found = metrics(&sheet, 0);
    let [passed, failed, _] = found["GetHomepage"];
    // 400 executions take turns in exactly the shares of 5, 5, 5, 10 and 75.
    assert!(failed == 0 && passed.abs_diff(300) <= 3, "{found:?}");
    assert!(found["QueryBuilder"][0].abs_diff(40) <= 2, "{found:?}");
    assert!(
        found["CreatePageTree"][0].abs_diff(20) <= 2 && found["CreatePageTree"][1] == 0,
        "{found:?}"
    );
    assert!(found["CreateAssetTree"][0].abs_diff(20) <= 2, "{found:?}");
    // What waits for renditions at the end is no sample.
    let renditions = found["CreateAssetTree: renditions"];
    assert!(renditions[1] == 0 && renditions[0] + 4 >= found["CreateAssetTree"][0], "{found:?}");
    let deletes = found["DeleteImage"];
    assert!(deletes[0] > 0 && deletes[1] == 0 && deletes[0] + deletes[2] <= 22, "{found:?}");
    assert!(
        targets(&origin, |seen| seen.target == "/sites.html") >= 297,
        "redirects are followed once"
    );
    assert_eq!(*nodes.lock().unwrap(), BTreeSet::new(), "everything is deleted at the end");
    assert!(sheet.to_plain_text().contains("real throughput"), "{}", sheet.to_plain_text());
}

#[test]
fn what_one_test_makes_another_uses() {
    let (origin, nodes) = author();
    let text = "globals:\n  duration: 3\nrunmode:\n  concurrency: 4\n  waittime: 5\ntests:\n\
        \x20 - add: CreatePageTest\n  - add: DeletePageTest\n  - add: CreateTagTreeTest\n    properties:\n      count: 7\n\
        \x20 - add: CreateTaggedPagesTreeTest\n    properties:\n      base: 2\n      count: 9\n  - add: AddTagToResourceTest\n\
        \x20 - add: PublishPageTest\n  - add: UploadPDFTest\n    properties:\n      count: 3\n  - add: CreateFolderTreeTest\n\
        \x20 - add: AuthoringTest\n  - add: AuthoringTreeTest\n    properties:\n      count: 2\n  - add: ActivatePagesTreeTest\n    properties:\n      count: 3\n";
    let config = config_of_yaml(text, "x.yaml").unwrap();
    let mut run = tough(&origin, config);
    run.keeps_content = true;
    let sheet = run.run(&mut quiet()).unwrap();
    let found = metrics(&sheet, 0);
    assert!(found.values().all(|[_, failed, _]| *failed == 0), "{found:?}");
    assert_eq!(found["CreateTagTree"][0], 7, "{found:?}");
    assert_eq!(found["CreateTaggedPagesTree"][0], 9, "{found:?}");
    assert_eq!(found["UploadPDF"][0], 3, "{found:?}");
    for name in [
        "DeletePage",
        "AddTagToResource",
        "PublishPage",
        "PublishPage: visible",
        "CreateFolderTree",
    ] {
        assert!(found[name][0] > 0, "{name}: {found:?}");
    }
    for part in
        ["create page", "upload asset", "upload asset: renditions", "delete page", "delete asset"]
    {
        assert!(found[&format!("Authoring: {part}")][0] > 0, "{part}: {found:?}");
    }
    let nodes = nodes.lock().unwrap();
    assert!(
        nodes.iter().any(|node| node.starts_with("/content/cq:tags/run-1/t3-1/t3-4")),
        "{nodes:?}"
    );
    assert!(nodes.contains("/content/run-1/tree/p2-1/p2-3"), "a tree of two per node");
    let activated = targets(&origin, |seen| {
        String::from_utf8_lossy(&seen.body).contains("%3Aoperation=activate")
    });
    assert!(activated as u64 >= found["PublishPage"][0] + 3);
}

/// Accounts by name, each with its members: groups have some, users none.
type Accounts = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

/// An author that remembers accounts as the API has them.
fn office() -> (OriginServer, Accounts) {
    let accounts = Accounts::default();
    let known = Arc::clone(&accounts);
    let origin = OriginServer::start(move |seen| {
        let mut known = known.lock().unwrap();
        let (path, query) = seen.target.split_once('?').unwrap_or((&seen.target, ""));
        let value = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")));
            pair.unwrap_or_default().to_owned()
        };
        let body: serde_json::Value = serde_json::from_slice(&seen.body).unwrap_or_default();
        let field = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        match (seen.method.as_str(), path) {
            ("POST", "/api/v1/users") if field("password").len() < 8 => {
                OriginResponse::with_status(422)
            }
            ("POST", "/api/v1/users") if !field("folder").is_empty() => {
                // A user in a folder: the folder was made before.
                let folder = format!("f:/home/users/{}", field("folder"));
                let is_there = known.contains_key(&folder);
                known.insert(format!("u:{}", field("name")), BTreeSet::from([folder]));
                OriginResponse::with_status(if is_there { 201 } else { 409 })
            }
            ("POST", path) if path.starts_with("/home/users/") => {
                let folder = format!("f:{path}");
                if seen.body.ends_with(b"delete") {
                    let has_users = known.keys().any(|name| name.starts_with("u:run-1-"));
                    known.retain(|name, _| !name.starts_with(&folder));
                    return OriginResponse::with_status(if has_users { 409 } else { 200 });
                }
                let parent = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
                let is_there = parent == "f:/home/users" || known.contains_key(parent);
                known.insert(folder.clone(), BTreeSet::new());
                OriginResponse::with_status(if is_there { 201 } else { 409 })
            }
            ("POST", "/api/v1/users" | "/api/v1/groups") => {
                let mark = if path.ends_with("users") { "u:" } else { "g:" };
                let is_new = known.insert(format!("{mark}{}", field("name")), BTreeSet::new());
                OriginResponse::with_status(if is_new.is_none() { 201 } else { 409 })
            }
            ("POST", "/api/v1/group/members") => {
                let is_user = known.contains_key(&format!("u:{}", field("member")));
                match known.get_mut(&format!("g:{}", field("group"))) {
                    Some(members) if is_user => {
                        members.insert(field("member"));
                        OriginResponse::with_status(204)
                    }
                    _ => OriginResponse::with_status(404),
                }
            }
            ("GET", "/api/v1/users" | "/api/v1/groups") => {
                let kind = path.rsplit('/').next().unwrap();
                let (after, search) = (value("after"), value("search"));
                let names = known.keys().filter_map(|name| name.strip_prefix(&kind[..1]));
                let mut names: Vec<String> = names
                    .map(|name| name[1..].to_owned())
                    .filter(|name| *name > after && name.contains(&search))
                    .collect();
                // Pages of three, whatever was asked for.
                let has_more = names.len() > 3;
                names.truncate(3);
                let next = names.last().filter(|_| has_more).cloned();
                let list: Vec<_> =
                    names.iter().map(|name| serde_json::json!({ "name": name })).collect();
                OriginResponse::html(serde_json::json!({ kind: list, "next": next }).to_string())
            }
            ("DELETE", "/api/v1/user" | "/api/v1/group") => {
                let mark = if path.ends_with("user") { "u:" } else { "g:" };
                let is_there = known.remove(&format!("{mark}{}", value("name"))).is_some();
                OriginResponse::with_status(if is_there { 204 } else { 404 })
            }
            _ => OriginResponse::html("ok"),
        }
    });
    (origin, accounts)
}

#[test]
fn users_and_groups_are_made_and_removed() {
    let (origin, accounts) = office();
    // Somebody who was there before, with a name like one of the run's.
    accounts.lock().unwrap().insert("u:ann-run-1-x".to_owned(), BTreeSet::new());
    let text = "globals:\n  duration: 60\nrunmode:\n  concurrency: 2\n  waittime: 0\ntests:\n\
        \x20 - add: CreateUserTest\n    properties:\n      count: 7\n  - add: CreateUserGroupTest\n    properties:\n\
        \x20     count: 3\n  - add: CreateGroupWithUsers\n    properties:\n      count: 2\n";
    let run = |keeps_content| {
        let mut run = tough(&origin, config_of_yaml(text, "x.yaml").unwrap());
        run.keeps_content = keeps_content;
        run.run(&mut quiet()).unwrap()
    };
    let sheet = run(true);
    let found = metrics(&sheet, 0);
    assert!(found.values().all(|[_, failed, _]| *failed == 0), "{found:?}");
    assert_eq!((found["CreateUser"][0], found["CreateUserGroup"][0]), (7, 3), "{found:?}");
    assert_eq!(found["CreateGroupWithUsers: create group"][0], 2);
    assert_eq!(found["CreateGroupWithUsers: create user"][0], 10);
    assert_eq!(found["CreateGroupWithUsers: add to group"][0], 20);
    {
        let accounts = accounts.lock().unwrap();
        let users = accounts.keys().filter(|name| name.starts_with("u:run-1-")).count();
        let groups: Vec<usize> = accounts
            .iter()
            .filter(|(name, _)| name.starts_with("g:run-1-"))
            .map(|(_, members)| members.len())
            .collect();
        assert_eq!((users, groups.len()), (17, 6));
        assert_eq!(accounts["g:run-1-everybody"].len(), 10);
        assert_eq!(groups.iter().filter(|members| **members == 5).count(), 2);
    }
    accounts.lock().unwrap().retain(|name, _| !name[2..].starts_with("run-1-"));
    run(false);
    let left: Vec<String> = accounts.lock().unwrap().keys().cloned().collect();
    assert_eq!(left, ["u:ann-run-1-x"], "only accounts of the run are removed");
}

#[test]
fn users_in_folders_are_made_in_a_tree() {
    let (origin, accounts) = office();
    let text = "globals:\n  duration: 60\nrunmode:\n  concurrency: 3\n  waittime: 0\ntests:\n\
        \x20 - add: CreateUserTreeTest\n    properties:\n      count: 14\n      base: 2\n      name: Tree\n";
    let run = |keeps_content| {
        let mut run = tough(&origin, config_of_yaml(text, "x.yaml").unwrap());
        run.keeps_content = keeps_content;
        run.run(&mut quiet()).unwrap()
    };
    let found = metrics(&run(true), 0);
    assert_eq!(
        (found["Tree: create folder"][0], found["Tree: create user"][0]),
        (14, 14),
        "{found:?}"
    );
    assert!(found.values().all(|[_, failed, _]| *failed == 0), "{found:?}");
    {
        let accounts = accounts.lock().unwrap();
        let folders: Vec<&String> = accounts.keys().filter(|name| name.starts_with("f:")).collect();
        // The run's own folder, and three levels of two, four and eight.
        assert_eq!(folders.len(), 15, "{folders:?}");
        assert!(accounts.contains_key("f:/home/users/run-1/f2-2/f2-6/f2-14"), "{folders:?}");
    }
    accounts.lock().unwrap().clear();
    run(false);
    assert!(accounts.lock().unwrap().is_empty(), "{:?}", accounts.lock().unwrap());
}

#[test]
fn phases_follow_each_other_and_only_some_count() {
    let (origin, _) = author();
    let text = "runmode:\n  type: constantload\n  load: 20\ntests:\n  - add: GetHomepageTest\nphases:\n  - name: warm\n    duration: 1\n    \
                measurable: false\n  - name: load\n    useconfig: warm\n    duration: 1\n    measurable: true\n";
    let mut config = config_of_yaml(text, "x.yaml").unwrap();
    config.phases[1].is_measured = true;
    let sheet = tough(&origin, config).run(&mut quiet()).unwrap();
    assert_eq!(metrics(&sheet, 0)["GetHomepage"][0], 20);
    assert_eq!(metrics(&sheet, 1)["GetHomepage"][0], 20);
    let text = sheet.to_plain_text();
    assert!(text.contains("20 requests in") && text.contains("warm (not measured)"), "{text}");
}

#[test]
fn a_dry_run_tells_what_would_be_made() {
    let (origin, _) = author();
    let mut config = config_of_suites("toughday").unwrap();
    config.phases[0].duration = Duration::from_secs(100);
    config.phases[0].load_mode = ToughLoadMode::ConstantLoad { rate: LoadRamp::constant(10.0) };
    let plan = tough(&origin, config).describe_plan();
    assert!(plan.contains("constantload: 10 executions/s"), "{plan}");
    assert!(plan.contains("75.0 %  GetHomepage"), "{plan}");
    assert!(plan.contains("5.0 %  CreatePageTree, at most 80000 times"), "{plan}");
    // 1,000 executions: 50 pages of 2 nodes and 50 assets of 5.
    assert!(plan.contains("about 350 nodes at most"), "{plan}");
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn a_backup_s_price_is_what_came_less_meanwhile() {
    let (origin, nodes) = author();
    let impact = BackupImpactTest {
        work_mix: [75, 24, 1],
        thread_count: 4,
        load_share: 0.5,
        measure_duration: Duration::from_secs(2),
        delays: vec!["0".to_owned(), "7".to_owned()],
        runs_per_backup: 1,
        backup_program: MeasuredProgram {
            words: ["sh", "-c", "sleep 1; echo \"delay {delay}\"; echo '\"data_added\":2500000'"]
                .map(str::to_owned)
                .to_vec(),
            metric: Some(OutputMetric::parse("\"data_added\":([0-9]+)").unwrap()),
        },
        before_program: None,
        traversal_paths: vec!["/content.2.json".to_owned()],
    };
    impact.validate().unwrap();
    let run = tough(&origin, config_of_suites("toughday").unwrap());
    let sheet = impact.run(&run, &mut |_| ()).unwrap();
    let backups = sheet.json_result["backups"].as_array().unwrap();
    let states: Vec<(&str, bool)> = backups
        .iter()
        .map(|row| (row["delay"].as_str().unwrap(), row["under_load"].as_bool().unwrap()))
        .collect();
    assert_eq!(states, [("0", false), ("0", true), ("7", false), ("7", true)]);
    for row in backups {
        assert_eq!(row["megabytes"].as_f64(), Some(2.5));
        // Sleeping takes no processor time.
        assert!(row["cpu_seconds"].as_f64() < row["seconds"].as_f64(), "{row}");
        let is_loaded = row["under_load"].as_bool().unwrap();
        assert_eq!(row["lost_share"].is_number(), is_loaded, "{row}");
    }
    let all = origin.requests();
    let count =
        |fits: &dyn Fn(&OriginRequest) -> bool| all.iter().filter(|seen| fits(seen)).count() as f64;
    let traversals = count(&|seen| seen.target == "/content.2.json");
    let queries = count(&|seen| seen.target.starts_with("/bin/querybuilder.json"));
    assert!((traversals / queries / (75.0 / 24.0) - 1.0).abs() < 0.05, "{traversals} {queries}");
    assert_eq!(*nodes.lock().unwrap(), BTreeSet::new());
    let several = BackupImpactTest {
        backup_program: MeasuredProgram { words: vec!["true".to_owned()], metric: None },
        ..impact
    };
    assert!(several.validate().unwrap_err().to_string().contains("{delay}"));
}

#[test]
fn pages_look_like_those_of_the_author_or_as_the_file_says() {
    let (origin, _) = author();
    let text = "globals:\n  duration: 60\nrunmode:\n  concurrency: 1\n  waittime: 0\ntests:\n\
        \x20 - add: CreatePageTest\n    properties:\n      count: 1\n  - add: CreatePageTreeTest\n    properties:\n\
        \x20     count: 1\n      resourcetype: other/page\n";
    tough(&origin, config_of_yaml(text, "x.yaml").unwrap()).run(&mut quiet()).unwrap();
    let made = |path: &str| {
        let all = origin.requests();
        let page = all.iter().find(|seen| seen.method == "POST" && seen.target == path).unwrap();
        String::from_utf8(page.body.clone()).unwrap()
    };
    let flat = made("/content/run-1/flat/p1");
    assert!(flat.contains("sling%3AresourceType=shop%2Fpage"), "{flat}");
    assert!(flat.contains("cq%3Atemplate=%2Fapps%2Fshop%2Fpage"), "{flat}");
    let tree = made("/content/run-1/tree/p3-1");
    assert!(tree.contains("sling%3AresourceType=other%2Fpage"), "{tree}");
    assert!(!tree.contains("template"), "a template belongs to its own component: {tree}");
}

#[test]
fn what_was_never_there_is_reported() {
    let (origin, _) = author();
    // A publisher that shows nothing.
    let publish = OriginServer::start(|_| OriginResponse::with_status(404));
    let text = "globals:\n  duration: 2\nrunmode:\n  concurrency: 2\n  waittime: 0\ntests:\n\
        \x20 - add: CreatePageTest\n    properties:\n      count: 2\n  - add: PublishPageTest\n    properties:\n      count: 2\n";
    let mut run = tough(&origin, config_of_yaml(text, "x.yaml").unwrap());
    run.publish_url = Some(format!("http://{}", publish.addr()));
    let sheet = run.run(&mut quiet()).unwrap();
    let [passed, failed, _] = metrics(&sheet, 0)["PublishPage"];
    assert_eq!((passed, failed), (2, 0), "{}", sheet.to_plain_text());
    assert!(sheet.has_bad_result(), "{}", sheet.to_plain_text());
    assert!(
        sheet.to_plain_text().contains("PublishPage: visible: 2 still waited"),
        "{}",
        sheet.to_plain_text()
    );
}

#[test]
fn a_skipped_execution_gives_its_turn_back_and_one_without_hope_ends() {
    let (origin, _) = author();
    // Deletions come first, so that they have nothing at the beginning; the fourth and fifth never get anything.
    let text = "globals:\n  duration: 300\nrunmode:\n  concurrency: 1\n  waittime: 0\ntests:\n\
        \x20 - add: DeletePageTest\n    properties:\n      count: 5\n  - add: CreatePageTest\n    properties:\n      count: 3\n";
    let sheet = tough(&origin, config_of_yaml(text, "x.yaml").unwrap()).run(&mut quiet()).unwrap();
    let found = metrics(&sheet, 0);
    assert_eq!((found["CreatePage"][0], found["DeletePage"][0]), (3, 3), "{found:?}");
    assert!(found["DeletePage"][2] >= 2, "{found:?}");
}

#[test]
fn transactions_that_the_author_refuses_are_lost() {
    // While a backup runs, an author that answers at once that it has no time.
    let busy = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("backup");
    let (state, marked) = (Arc::clone(&busy), mark.clone());
    let origin = OriginServer::start(move |seen| {
        let refuses = seen.method == "GET" && marked.exists();
        state.fetch_or(refuses, std::sync::atomic::Ordering::Relaxed);
        if refuses { OriginResponse::with_status(503) } else { OriginResponse::html("{}") }
    });
    let impact = BackupImpactTest {
        work_mix: [75, 24, 1],
        thread_count: 2,
        load_share: 0.5,
        measure_duration: Duration::from_secs(1),
        delays: vec!["0".to_owned()],
        runs_per_backup: 1,
        backup_program: MeasuredProgram {
            words: vec![
                "sh".to_owned(),
                "-c".to_owned(),
                format!("touch {0}; sleep 1; rm {0}", mark.display()),
            ],
            metric: None,
        },
        before_program: None,
        traversal_paths: vec!["/content.2.json".to_owned()],
    };
    let run = tough(&origin, config_of_suites("toughday").unwrap());
    let sheet = impact.run(&run, &mut |_| ()).unwrap();
    assert!(busy.load(std::sync::atomic::Ordering::Relaxed));
    let lost = sheet.json_result["backups"][1]["lost_share"].as_f64().unwrap();
    assert!(lost > 0.5, "{}", sheet.json_result);
}
