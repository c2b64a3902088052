//! Configurations in content, and how a worker follows them.

use std::time::SystemTime;

use serde_json::json;
use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_jobs::{
    JobWorker, JobWorkerOptions, MaxParallel, OSGI_CONFIG_NODE_TYPE, OsgiConfigWatcher,
    OsgiConfigs, QUEUE_FACTORY, QueueKind,
};

use crate::place::Place;

fn put(repository: &Repository, path: &str, tree: Subtree) {
    let mut session = repository.session("ann").unwrap();
    let path = NodePath::new(path).unwrap();
    let mut missing = Vec::new();
    let mut at = path.parent();
    while let Some(folder) = at.filter(|folder| !folder.is_root()) {
        if session.node(&folder).unwrap().is_some() {
            break;
        }
        at = folder.parent();
        missing.push(folder);
    }
    for folder in missing.iter().rev() {
        session.add_node(folder, "sling:Folder").unwrap();
    }
    session.put_node(&path, tree).unwrap();
    session.commit("put", SystemTime::now()).unwrap();
}

fn file(repository: &Repository, path: &str, text: &str) {
    let blob = repository.blobs().put(&mut text.as_bytes()).unwrap();
    let content = Subtree::new("jcr:content", "nt:resource")
        .with_property("jcr:data", Property::Single(Value::Binary(blob)));
    let name = path.rsplit('/').next().unwrap();
    put(repository, path, Subtree::new(name, "nt:file").with_child(content));
}

fn node(name: &str, topic: &str, parallel: f64) -> Subtree {
    Subtree::new(format!("{QUEUE_FACTORY}-{name}"), OSGI_CONFIG_NODE_TYPE)
        .with_property("queue.name", Property::text(name))
        .with_property("queue.topics", Property::text(topic))
        .with_property("queue.maxparallel", Property::Single(Value::Double(parallel)))
}

fn read(repository: &Repository, modes: &[&str]) -> OsgiConfigs {
    OsgiConfigs::read_snapshot(repository, &repository.snapshot().unwrap(), modes).unwrap()
}

#[test]
fn nodes_and_files_of_active_run_modes_are_read() {
    let repository = Repository::in_memory().unwrap();
    let of = |folder: &str, name: &str| format!("/apps/site/{folder}/{QUEUE_FACTORY}-{name}");
    put(&repository, &of("config", "node"), node("node", "a/*", 0.5));
    file(
        &repository,
        &(of("config.author", "json") + ".cfg.json"),
        "{ \"queue.name\": \"json\", \"queue.topics\": [\"b/c\", \"b/d\"], \"queue.type\": \"ORDERED\", // why\n\
         \"queue.retries:Integer\": -1 }",
    );
    file(
        &repository,
        &(of("config.author", "felix") + ".config"),
        "queue.name=\"felix\"\nqueue.topics=[\"c/.\"]\nqueue.maxparallel=I\"-1\"\n",
    );
    put(&repository, &of("config.publish", "other"), node("other", "d/*", 1.0));
    put(&repository, "/apps/site/config/com.example.Unknown", {
        Subtree::new("com.example.Unknown", OSGI_CONFIG_NODE_TYPE)
            .with_property("x", Property::text("y"))
    });
    file(&repository, &(of("config", "broken") + ".cfg.json"), "{ \"queue.name\": ");
    put(&repository, &of("config", "nameless"), {
        Subtree::new(format!("{QUEUE_FACTORY}-nameless"), OSGI_CONFIG_NODE_TYPE)
            .with_property("queue.topics", Property::text("x"))
    });
    let mut configs = read(&repository, &["author"]);
    let queues = configs.take_queue_configs();
    let names: Vec<_> = queues.iter().map(|queue| queue.name.as_str()).collect();
    assert_eq!(names, ["felix", "json", "node"]);
    assert_eq!(queues[0].max_parallel, MaxParallel::Cores);
    assert_eq!((queues[1].kind, queues[1].retries), (QueueKind::Ordered, None));
    assert_eq!(queues[2].max_parallel, MaxParallel::Share(0.5));
    let ignored: Vec<_> =
        configs.iter_unknown(&[QUEUE_FACTORY]).map(|config| config.pid.as_str()).collect();
    assert_eq!(ignored, ["com.example.Unknown"]);
    let faults: Vec<_> = configs.faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(faults, [of("config", "broken") + ".cfg.json", of("config", "nameless")]);
    assert!(configs.faults[0].message.contains("line 1"), "{:?}", configs.faults);
}

#[test]
fn the_most_particular_configuration_of_a_pid_wins() {
    let repository = Repository::in_memory().unwrap();
    let put_in = |folder: &str, parallel: f64| {
        let path = format!("{folder}/{QUEUE_FACTORY}-q");
        put(&repository, &path, node("q", "a/*", parallel));
    };
    let wins =
        |modes: &[&str]| read(&repository, modes).take_queue_configs()[0].max_parallel.to_number();
    put_in("/libs/x/config", 1.0);
    assert_eq!(wins(&["author"]), 1.0);
    put_in("/apps/x/config", 2.0);
    assert_eq!(wins(&["author"]), 2.0);
    put_in("/libs/x/config.author", 3.0);
    assert_eq!(wins(&["author"]), 3.0);
    put_in("/apps/x/config.author.prod", 4.0);
    assert_eq!((wins(&["author"]), wins(&["author", "prod"])), (3.0, 4.0));
}

/// Source 000: the shipped queue's PID with the one property that is to change.
#[tokio::test]
async fn changes_in_content_apply_without_a_restart() {
    let place = Place::sqlite();
    let repository = Repository::in_memory().unwrap();
    let options = JobWorkerOptions::new("author", "w".to_owned());
    let worker = JobWorker::new(place.open().await, options);
    let configurator = OsgiConfigWatcher::new(worker.clone(), repository.clone(), &["author"]);
    configurator.refresh_configs().unwrap();
    let parallel =
        || worker.queue_set().find_config("Granite Workflow Queue").unwrap().max_parallel;
    assert_eq!(parallel(), MaxParallel::Share(0.5));
    let pid = format!("{QUEUE_FACTORY}.370aad73-d01b-4a0b-abe4-20198d85f705");
    let path = format!("/apps/system/config/{pid}");
    let tree = Subtree::new(pid.as_str(), OSGI_CONFIG_NODE_TYPE)
        .with_property("queue.maxparallel", Property::Single(Value::Long(3)));
    put(&repository, &path, tree);
    assert!(configurator.refresh_configs().unwrap());
    assert_eq!(parallel(), MaxParallel::Count(3));
    let topic = "com/adobe/granite/workflow/job/x";
    assert_eq!(worker.queue_set().queue_for_topic(topic).name, "Granite Workflow Queue");
    put(&repository, "/content/page", Subtree::new("page", "nt:unstructured"));
    assert!(!configurator.refresh_configs().unwrap(), "other content changes nothing");
    let mut session = repository.session("ann").unwrap();
    session.remove_node(&NodePath::new(&path).unwrap()).unwrap();
    session.commit("remove", SystemTime::now()).unwrap();
    assert!(configurator.refresh_configs().unwrap());
    assert_eq!(parallel(), MaxParallel::Share(0.5));
    assert_eq!(json!(configurator.configs().configs.len()), json!(0));
}
