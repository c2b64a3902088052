//! Two authors and a process for assets on one PostgreSQL: a step is never carried out by two of them at once, whoever is
//! killed, and its end is recorded once.
//!
//! `TYMPAN_KILLS` sets how often; `make torture` asks for the full count.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tympan_testkit::condition_wait::{wait_for, wait_until};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::asset_kills::{Instance, kills, next, three_on_one_database};
use crate::program::{ask, basic, post};

/// What the first of these asks for is work on assets; the second is anybody's.
const MODELS: [&str; 2] = ["/etc/workflow/models/dam/ask", "/etc/workflow/models/ask"];
/// Workflows that are started between two kills.
const WORKFLOWS: usize = 8;
/// How long the other system works on each step; far below the lease.
const WORK: Duration = Duration::from_millis(40);

/// What the other system saw of each step: how many ask for it now, at most at once, and in all.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    now: u32,
    most: u32,
    all: u32,
}

type Seen = Arc<Mutex<BTreeMap<String, Asked>>>;

/// Starts the other system.
fn elsewhere() -> (OriginServer, Seen) {
    let seen = Seen::default();
    let counted = seen.clone();
    let origin = OriginServer::start(move |request| {
        let key = request.header("idempotency-key").unwrap_or_default().to_owned();
        let count = |act: &dyn Fn(&mut Asked)| {
            act(counted.lock().unwrap().entry(key.clone()).or_default());
        };
        count(&|one| {
            one.all += 1;
            one.now += 1;
            one.most = one.most.max(one.now);
        });
        // The work itself.
        std::thread::sleep(WORK);
        count(&|one| one.now -= 1);
        OriginResponse::with_status(204)
    });
    (origin, seen)
}

struct Farm {
    instances: [Instance; 3],
    password: String,
}

impl Farm {
    fn address(&self, turn: usize) -> SocketAddr {
        self.instances[turn % 2].address
    }

    fn post(&self, turn: usize, path: &str, form: &str) -> Value {
        let headers = [
            ("Authorization", basic("admin", &self.password)),
            ("Accept", "application/json".to_owned()),
            ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
        ];
        let answer = ask(self.address(turn), "POST", path, &headers, form.as_bytes()).unwrap();
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn get(&self, path: &str) -> Value {
        let headers = [("Authorization", basic("admin", &self.password))];
        let answer = ask(self.address(0), "GET", path, &headers, b"").unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    fn make_models(&self, other: &OriginServer) {
        let mut form = String::from("jcr:content/model/title=ask");
        for (name, kind) in [("s", "START"), ("p", "EXTERNAL_PROCESS"), ("e", "END")] {
            let node = format!("jcr:content/model/nodes/{name}");
            form.push_str(&format!("&{node}/type={kind}&{node}/title={name}"));
        }
        let data = "jcr:content/model/nodes/p/metaData";
        form.push_str(&format!("&{data}/PROCESS=HttpExternalProcess"));
        form.push_str(&format!("&{data}/start=http://{}/work", other.addr()));
        for (name, from, to) in [("a", "s", "p"), ("b", "p", "e")] {
            let way = format!("jcr:content/model/transitions/{name}");
            form.push_str(&format!("&{way}/from={from}&{way}/to={to}"));
        }
        for model in MODELS {
            let made = post(self.address(0), &self.password, model, &form);
            assert!((200..300).contains(&made.status), "{model}: {}", made.text());
        }
    }
}

#[test]
fn a_step_is_carried_out_by_one_process_at_a_time_whoever_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (other, seen) = elsewhere();
    let instances = three_on_one_database(dir.path(), "asset_farm_steps");
    let password = std::fs::read_to_string(instances[0].home.join("initial-password")).unwrap();
    let mut farm = Farm { instances, password: password.trim().to_owned() };
    assert_eq!(post(farm.address(0), &farm.password, "/content", "a=b").status, 200);
    farm.make_models(&other);
    let mut seed = 0x5eed_fa24_u64;
    let mut started = Vec::new();
    let kills = kills(4);
    for _ in 0..kills {
        let before = seen.lock().unwrap().len();
        for turn in 0..WORKFLOWS {
            let form = format!("model={}&payload=/content", MODELS[turn / 2 % 2]);
            let id = farm.post(turn, "/api/v1/workflows", &form)["id"].as_i64().unwrap();
            started.push(id);
        }
        // The point is a number of steps that were asked for, so that it lies in the middle of work.
        let wanted = before + usize::try_from(next(&mut seed)).unwrap() % WORKFLOWS;
        wait_until("steps are asked for", || seen.lock().unwrap().len() >= wanted);
        let place = usize::try_from(next(&mut seed)).unwrap() % farm.instances.len();
        farm.instances[place].kill();
        farm.instances[place].restart();
    }
    for id in &started {
        let instance = wait_for(|| {
            let instance = farm.get(&format!("/api/v1/workflows/instance?id={id}"));
            if instance["state"] == "COMPLETED" { Ok(instance) } else { Err(instance.to_string()) }
        });
        let history = instance["history"].as_array().unwrap();
        let is_end = |one: &&Value| one["step"] == "p" && one["action"] == "completed";
        assert_eq!(history.iter().filter(is_end).count(), 1, "{instance}");
    }
    let seen = seen.lock().unwrap();
    let at_once: Vec<_> = seen.iter().filter(|(_, asked)| asked.most > 1).collect();
    assert!(at_once.is_empty(), "twice at once: {at_once:?}");
    assert_eq!(seen.len(), started.len(), "{seen:?}");
    let again = seen.values().filter(|asked| asked.all > 1).count();
    eprintln!(
        "{kills} kills, {} steps, {again} of them done again, none twice at once",
        started.len()
    );
}
