//! Loads that several agents share: nothing twice, nothing left out, and losses told.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::plan_run::{RunOptions, run_plan};
use tympan_lab_engine::result_validity;
use tympan_lab_tools::fleet::{
    AgentFleet, AgentPlacement, AgentTransport, FleetOutcome, FleetToken, serve_agent,
};
use tympan_lab_tools::{Error, Result};
use tympan_testkit::jmeter_plan::{defaults, element, plan, sampler};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

const PATIENCE: Duration = Duration::from_secs(60);

fn token() -> FleetToken {
    FleetToken::new([9; 32])
}

/// Returns a fleet whose agents dial in, and where.
fn fleet(agents: usize) -> (AgentFleet, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let door = Some((listener, token(), agents));
    (
        AgentFleet {
            placements: Vec::new(),
            dial_in: door,
            copies_data_rows: false,
            copies_load: false,
            start_timeout: PATIENCE,
        },
        address,
    )
}

fn agent(address: SocketAddr, index: usize) -> JoinHandle<Result<()>> {
    std::thread::spawn(move || {
        serve_agent(AgentTransport::Dial {
            controller: address.to_string(),
            fleet_token: token(),
            portion_index: Some(index),
            connect_timeout: PATIENCE,
        })
    })
}

fn play(agents: usize, path: &Path, run: &RunOptions, copies_rows: bool) -> Result<FleetOutcome> {
    let (mut fleet, address) = fleet(agents);
    fleet.copies_data_rows = copies_rows;
    let agents: Vec<_> = (0..agents).map(|index| agent(address, index)).collect();
    let outcome = fleet.run_plan(path, run, &mut |_| ());
    for agent in agents {
        let ended = agent.join().unwrap();
        if outcome.is_ok() {
            ended.unwrap();
        }
    }
    outcome
}

fn rows(file: &str) -> String {
    element(
        "CSVDataSet",
        "rows",
        &[
            ("filename", file),
            ("variableNames", "user,secret"),
            ("delimiter", ","),
            ("recycle", "false"),
            ("stopThread", "true"),
            ("shareMode", "shareMode.all"),
        ],
        "",
    )
}

fn written(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn seen(origin: &OriginServer) -> Vec<String> {
    let mut seen: Vec<String> = origin.requests().iter().map(|seen| seen.target.clone()).collect();
    seen.sort();
    seen
}

#[test]
fn four_agents_use_each_row_of_the_data_once() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    let users: String = (0..103).map(|user| format!("user{user:03},s{user}\n")).collect();
    written(folder.path(), "users.csv", &users);
    let inside = format!(
        "{}{}{}",
        defaults(&origin),
        rows("${__P(where,users)}.csv"),
        sampler("/login?user=${user}&amp;secret=${secret}", "")
    );
    let path = written(folder.path(), "plan.jmx", &plan("-1", "10", &inside));
    let run =
        RunOptions { result_file: Some(folder.path().join("rows.jtl")), ..RunOptions::default() };
    let outcome = play(4, &path, &run, false).unwrap();
    let wanted: Vec<String> =
        (0..103).map(|user| format!("/login?user=user{user:03}&secret=s{user}")).collect();
    assert_eq!(seen(&origin), wanted);
    assert_eq!(outcome.results.total_stats().count(), 103);
    assert_eq!(outcome.final_tally.count, 103);
    assert_eq!(outcome.results.processes.len(), 4);
    let told: u64 = outcome.results.processes.iter().map(|member| member.sample_count).sum();
    assert_eq!(told, 103);
    assert!(result_validity::agent_losses(&outcome.results).is_empty());
    let text = std::fs::read_to_string(folder.path().join("rows.jtl")).unwrap();
    assert_eq!(text.lines().count(), 104, "a header, and a row per sample");
    // Threads have the numbers that they have in one process.
    let threads: std::collections::BTreeSet<&str> =
        text.lines().skip(1).filter_map(|row| row.split(',').nth(5)).collect();
    assert!(threads.iter().all(|thread| thread.starts_with("g 1-")), "{threads:?}");
    assert!(threads.len() <= 10);
}

/// As JMeter's remote engines do with `-R`.
#[test]
fn agents_that_divide_nothing_run_all_threads_each() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), "users.csv", "a,1\nb,2\n");
    let target = "/x?thread=${__threadNum}&amp;row=${user}&amp;random=${__Random(1,1000000000)}";
    let inside = format!("{}{}{}", defaults(&origin), rows("users.csv"), sampler(target, ""));
    let path = written(folder.path(), "plan.jmx", &plan("1", "2", &inside));
    let (mut fleet, address) = fleet(3);
    (fleet.copies_data_rows, fleet.copies_load) = (true, true);
    let agents: Vec<_> = (0..3).map(|index| agent(address, index)).collect();
    let outcome = fleet.run_plan(&path, &RunOptions::default(), &mut |_| ()).unwrap();
    agents.into_iter().for_each(|agent| agent.join().unwrap().unwrap());
    assert_eq!(outcome.results.total_stats().count(), 6);
    let seen = seen(&origin);
    for row in ["row=a", "row=b"] {
        assert_eq!(seen.iter().filter(|target| target.contains(row)).count(), 3, "{seen:?}");
    }
    let randoms: std::collections::BTreeSet<&str> =
        seen.iter().filter_map(|target| target.split("random=").nth(1)).collect();
    assert_eq!(randoms.len(), 6, "{seen:?}");
}

#[test]
fn agents_do_together_what_one_process_does() {
    let numbers = element(
        "CounterConfig",
        "c",
        &[
            ("CounterConfig.start", "5"),
            ("CounterConfig.end", "11"),
            ("CounterConfig.incr", "1"),
            ("CounterConfig.name", "n"),
        ],
        "",
    );
    let random = element(
        "RandomVariableConfig",
        "r",
        &[
            ("minimumValue", "1"),
            ("maximumValue", "1000000"),
            ("variableName", "r"),
            ("perThread", "true"),
        ],
        "",
    );
    let target = "/x?thread=${__threadNum}&amp;n=${n}&amp;r=${r}&amp;row=${user}";
    let run_with = |agents: Option<usize>| {
        let origin = OriginServer::start(|_| OriginResponse::html("hello"));
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), "users.csv", "a,1\nb,2\nc,3\n");
        let recycled = rows("users.csv")
            .replace("<boolProp name=\"recycle\">false", "<boolProp name=\"recycle\">true");
        let inside =
            format!("{}{recycled}{numbers}{random}{}", defaults(&origin), sampler(target, ""));
        let path = written(folder.path(), "plan.jmx", &plan("2", "8", &inside));
        let run = RunOptions { seed: 7, worker_count: 1, ..RunOptions::default() };
        let count = match agents {
            Some(agents) => play(agents, &path, &run, false).unwrap().results.total_stats().count(),
            None => {
                let plan = tympan_lab_plan::TestPlan::load(&path).unwrap();
                run_plan(&plan, &run, &mut |_| ()).unwrap().results.total_stats().count()
            }
        };
        assert_eq!(count, 16);
        let part = |target: &str, from: &str| {
            let value = target.split(from).nth(1).unwrap_or_default();
            value.split('&').next().unwrap_or_default().to_owned()
        };
        let sorted = |mut all: Vec<String>| {
            all.sort();
            all
        };
        let seen = seen(&origin);
        // Which thread draws which shared row or count is chance; who draws what random number is not.
        (
            sorted(seen.iter().map(|it| part(it, "thread=") + " " + &part(it, "r=")).collect()),
            sorted(seen.iter().map(|it| part(it, "n=")).collect()),
            sorted(seen.iter().map(|it| part(it, "row=")).collect()),
        )
    };
    let one = run_with(None);
    assert_eq!(run_with(Some(4)), one);
    assert_eq!(run_with(Some(1)), one);
}

#[test]
fn every_agent_has_all_rows_where_that_is_asked_for() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), "users.csv", "a,1\nb,2\nc,3\n");
    let inside = format!("{}{}{}", defaults(&origin), rows("users.csv"), sampler("/${user}", ""));
    let path = written(folder.path(), "plan.jmx", &plan("-1", "2", &inside));
    play(2, &path, &RunOptions::default(), true).unwrap();
    assert_eq!(seen(&origin), ["/a", "/a", "/b", "/b", "/c", "/c"]);
}

#[test]
fn agents_without_threads_have_no_rows() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), "users.csv", "a,1\nb,2\nc,3\n");
    let inside = format!("{}{}{}", defaults(&origin), rows("users.csv"), sampler("/${user}", ""));
    let path = written(folder.path(), "plan.jmx", &plan("-1", "2", &inside));
    play(3, &path, &RunOptions::default(), false).unwrap();
    assert_eq!(seen(&origin), ["/a", "/b", "/c"]);
}

#[test]
fn unequal_portions_of_users_use_each_row_once() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    let users: String = (0..70).map(|user| format!("user{user:03},s\n")).collect();
    written(folder.path(), "users.csv", &users);
    let inside = format!("{}{}{}", defaults(&origin), rows("users.csv"), sampler("/${user}", ""));
    // Ten threads with seven visits each are 21, 21, 14 and 14 visits for four agents.
    let path = written(folder.path(), "plan.jmx", &plan("7", "10", &inside));
    play(4, &path, &RunOptions::default(), false).unwrap();
    let wanted: Vec<String> = (0..70).map(|user| format!("/user{user:03}")).collect();
    assert_eq!(seen(&origin), wanted);
}

#[test]
fn files_that_a_plan_includes_go_with_it_to_the_agents() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    let include = |file: &str| {
        element("IncludeController", "i", &[("IncludeController.includepath", file)], "")
    };
    let fragment = |inside: &str| {
        format!(
            "<jmeterTestPlan version=\"1.2\"><hashTree><TestPlan testclass=\"TestPlan\" testname=\"f\"/><hashTree>{}\
             </hashTree></hashTree></jmeterTestPlan>",
            element("TestFragmentController", "f", &[], inside)
        )
    };
    written(folder.path(), "users.csv", "a,1\nb,2\nc,3\n");
    std::fs::create_dir(folder.path().join("parts")).unwrap();
    let outer = format!("{}{}", sampler("/outer/${user}", ""), include("parts/inner.jmx"));
    written(folder.path(), "parts/outer.jmx", &fragment(&outer));
    written(folder.path(), "parts/inner.jmx", &fragment(&sampler("/inner/${user}", "")));
    let inside =
        format!("{}{}{}", defaults(&origin), rows("users.csv"), include("parts/outer.jmx"));
    let path = written(folder.path(), "plan.jmx", &plan("-1", "2", &inside));
    play(2, &path, &RunOptions::default(), false).unwrap();
    let wanted = ["/inner/a", "/inner/b", "/inner/c", "/outer/a", "/outer/b", "/outer/c"];
    assert_eq!(seen(&origin), wanted);
}

#[test]
fn set_up_ends_on_all_agents_before_the_load_begins() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let folder = tempfile::tempdir().unwrap();
    let text = plan("3", "4", &format!("{}{}", defaults(&origin), sampler("/main", "")));
    let set_up = |class: &str, name: &str, target: &str| {
        let start = text.find("<ThreadGroup ").unwrap();
        let end = text.rfind("</hashTree></hashTree></jmeterTestPlan>").unwrap();
        text[start..end]
            .replace("ThreadGroupGui", class)
            .replace("<ThreadGroup ", &format!("<{class} "))
            .replace("</ThreadGroup>", &format!("</{class}>"))
            .replace("testclass=\"ThreadGroup\"", &format!("testclass=\"{class}\""))
            .replace("testname=\"g\"", &format!("testname=\"{name}\""))
            .replace("/main", target)
    };
    let start = text.find("<ThreadGroup ").unwrap();
    let whole = format!(
        "{}{}{}{}",
        &text[..start],
        set_up("SetupThreadGroup", "s", "/before"),
        set_up("PostThreadGroup", "t", "/after"),
        &text[start..]
    );
    let path = written(folder.path(), "plan.jmx", &whole);
    let outcome = play(2, &path, &RunOptions::default(), false).unwrap();
    let order: Vec<String> = origin.requests().iter().map(|seen| seen.target.clone()).collect();
    let wanted: Vec<&str> = [["/before"; 12], ["/main"; 12], ["/after"; 12]].concat();
    assert_eq!(order, wanted);
    assert_eq!(outcome.results.total_stats().count(), 36);
}

#[test]
fn a_schedule_is_divided_and_sent_once() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let (fleet, address) = fleet(3);
    let agents: Vec<_> = (0..3).map(|index| agent(address, index)).collect();
    let get = GetLoad {
        urls: vec![format!("http://{}/a", origin.addr()), format!("http://{}/b", origin.addr())],
        rate: Some(500.0),
        requests: Some(200),
        workers: 2,
        ..GetLoad::default()
    };
    let outcome = fleet.run_get(&get, &mut |_| ()).unwrap();
    for agent in agents {
        agent.join().unwrap().unwrap();
    }
    assert_eq!(origin.request_count(), 200);
    assert_eq!(outcome.results.total_stats().count(), 200);
    // Arrivals take the pages in turn, however they are divided, as one process does.
    let one = get.run().unwrap();
    for results in [&outcome.results, &one] {
        let counts: Vec<u64> = results.labels.values().map(|series| series.total.count()).collect();
        assert_eq!(counts, [100, 100]);
    }
    assert_eq!(outcome.results.generator.offered_rate, Some(500.0));
    let mut told: Vec<u64> = outcome.results.processes.iter().map(|it| it.sample_count).collect();
    told.sort_unstable();
    assert_eq!(told, [66, 67, 67]);
}

#[test]
fn users_and_requests_of_the_closed_model_are_divided() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let (fleet, address) = fleet(2);
    let agents: Vec<_> = (0..2).map(|index| agent(address, index)).collect();
    let get = GetLoad {
        urls: vec![format!("http://{}/", origin.addr())],
        users: 3,
        requests: Some(101),
        ..GetLoad::default()
    };
    let outcome = fleet.run_get(&get, &mut |_| ()).unwrap();
    for agent in agents {
        agent.join().unwrap().unwrap();
    }
    assert_eq!((origin.request_count(), outcome.results.total_stats().count()), (101, 101));
}

#[test]
fn who_does_not_know_the_token_is_sent_away() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let (fleet, address) = fleet(1);
    let url = format!("http://{}/", origin.addr());
    let controller = std::thread::spawn(move || {
        let get = GetLoad { urls: vec![url], requests: Some(5), ..GetLoad::default() };
        fleet.run_get(&get, &mut |_| ())
    });
    let stranger = serve_agent(AgentTransport::Dial {
        controller: address.to_string(),
        fleet_token: FleetToken::new([8; 32]),
        portion_index: None,
        connect_timeout: Duration::ZERO,
    });
    assert!(matches!(stranger, Err(Error::FleetConnection(_))), "{stranger:?}");
    // One who speaks no TLS is no more welcome.
    TcpStream::connect(address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    agent(address, 0).join().unwrap().unwrap();
    assert_eq!(controller.join().unwrap().unwrap().results.total_stats().count(), 5);
}

#[test]
fn a_load_without_all_its_agents_does_not_begin() {
    let origin = OriginServer::start(|_| OriginResponse::html("hello"));
    let (mut fleet, address) = fleet(2);
    fleet.start_timeout = Duration::from_secs(2);
    let present = agent(address, 1);
    let get = GetLoad {
        urls: vec![format!("http://{}/", origin.addr())],
        users: 2,
        requests: Some(5),
        ..GetLoad::default()
    };
    let error = fleet.run_get(&get, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("of 2 agents were ready"), "{error}");
    assert!(!error.is_usage());
    assert!(present.join().unwrap().is_err(), "an agent whose controller is gone says so");
    assert_eq!(origin.request_count(), 0);
}

#[test]
fn a_program_that_is_no_agent_is_reported() {
    let place = AgentPlacement::Local { program: "true".into() };
    let fleet = AgentFleet {
        placements: vec![place],
        dial_in: None,
        copies_data_rows: false,
        copies_load: false,
        start_timeout: PATIENCE,
    };
    let get = GetLoad { urls: vec!["http://127.0.0.1:1/".to_owned()], ..GetLoad::default() };
    let error = fleet.run_get(&get, &mut |_| ()).unwrap_err().to_string();
    assert!(
        error.contains("agent 1 (this machine): it disconnected before it identified itself"),
        "{error}"
    );
    let place = AgentPlacement::Ssh {
        ssh_program: "ssh".into(),
        host: "-oProxyCommand=x".into(),
        program: "t".into(),
    };
    let fleet = AgentFleet {
        placements: vec![place],
        dial_in: None,
        copies_data_rows: false,
        copies_load: false,
        start_timeout: PATIENCE,
    };
    assert!(fleet.run_get(&get, &mut |_| ()).unwrap_err().is_usage());
}
