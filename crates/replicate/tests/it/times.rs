//! On and off times: what happens at them, in whose name, and after changes of mind.

use std::time::{Duration, SystemTime};

use tokio::runtime::Handle;
use tympan_content::{
    JcrDate, Property, Repository, Subtree, SubtreeScope, Value, ValueType, Viewer,
};
use tympan_jobs::{JobContext, JobFilter, JobHandler, JobOutcome, JobQueues};
use tympan_replicate::{
    OnOffTimeFollower, OnOffTimeHandler, ReplicationAction, ReplicationRequest, Replicator,
    agent_topic,
};

use crate::agent::{page, path, put, put_agent, queues, replicator};

const TOPIC: &str = "com/day/cq/replication/times";

fn set_time(repository: &Repository, user: &str, name: &str, at: SystemTime, made: SystemTime) {
    let mut session = repository.session(user).unwrap();
    let date = Property::Single(Value::Date(JcrDate::from_system_time(at)));
    session.set_property(&path("/content/a/jcr:content"), name, date).unwrap();
    session.commit("set a time", made).unwrap();
}

struct Author {
    repository: Repository,
    queues: JobQueues,
    replicator: Replicator,
    times: OnOffTimeFollower,
    handler: OnOffTimeHandler,
}

impl Author {
    async fn start(dir: &tempfile::TempDir) -> Self {
        let repository = Repository::in_memory().unwrap();
        let queues = queues(dir).await;
        let target = Property::text("http://127.0.0.1:9/");
        put_agent(&repository, "author", "publish", &[("transportUri", target)]);
        put(&repository, "/content/a", page("a", "x"));
        let replicator = replicator("author", &repository, &queues);
        let times = OnOffTimeFollower::new(replicator.clone());
        let handler = OnOffTimeHandler::new(replicator.clone(), Handle::current());
        times.process_next_changes(SystemTime::now()).await.unwrap();
        Self { repository, queues, replicator, times, handler }
    }

    async fn activate(&self) {
        self.activate_at("/content/a").await;
    }

    async fn activate_at(&self, at: &str) {
        let (action, user) = (ReplicationAction::Activate, "system".to_owned());
        let wish =
            ReplicationRequest { action, path: path(at), depth: SubtreeScope::Document, user };
        let now = SystemTime::now();
        self.replicator.replicate(Viewer::system(), vec![wish], now).await.unwrap();
    }

    /// Returns how many jobs the publisher's agent has.
    async fn sent(&self) -> u64 {
        self.queues.statistics().count_jobs(&agent_topic("author", "publish")).await.unwrap()
    }

    /// Carries out everything that waits for a time, as if all times had come.
    async fn all_times_come(&self) -> usize {
        while !self.times.process_next_changes(SystemTime::now()).await.unwrap() {}
        let filter = JobFilter { topics: vec![TOPIC.to_owned()], ..JobFilter::default() };
        let jobs = self.queues.list_jobs(&filter, 100).await.unwrap();
        let count = jobs.len();
        tokio::task::block_in_place(|| {
            for job in &jobs {
                assert_eq!(self.handler.run(job, &JobContext::detached()), JobOutcome::Done);
            }
        });
        for job in &jobs {
            self.queues.cancel_job(job.id).await.unwrap();
        }
        count
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn an_activated_page_appears_at_its_time_and_vanishes() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let now = SystemTime::now();
    set_time(&author.repository, "system", "onTime", now + HOUR, now);
    assert_eq!(author.all_times_come().await, 1);
    assert_eq!(author.sent().await, 0, "nobody activated it");
    author.activate().await;
    assert_eq!(author.sent().await, 1);
    assert_eq!(author.all_times_come().await, 1, "the activation met the time again");
    assert_eq!(author.sent().await, 2, "it is sent again at its time");
    set_time(&author.repository, "system", "offTime", now + 2 * HOUR, now);
    assert_eq!(author.all_times_come().await, 2);
    let jobs = author.queues.list_topic(&agent_topic("author", "publish"), 10).await.unwrap();
    assert_eq!(jobs.last().unwrap().properties["action"], "Deactivate");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_that_were_changed_or_passed_do_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    author.activate().await;
    let now = SystemTime::now();
    set_time(&author.repository, "system", "offTime", now + HOUR, now);
    set_time(&author.repository, "system", "offTime", now - HOUR, now);
    let before = author.sent().await;
    assert_eq!(author.all_times_come().await, 1, "the first change of both");
    assert_eq!(author.sent().await, before, "the page has another time by now");
}

#[tokio::test(flavor = "multi_thread")]
async fn times_need_the_right_to_replicate() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    author.repository.install_initial_policies(SystemTime::now()).unwrap();
    author.activate().await;
    author.all_times_come().await;
    let (now, before) = (SystemTime::now(), author.sent().await);
    set_time(&author.repository, "eve", "offTime", now + HOUR, now);
    assert_eq!(author.all_times_come().await, 1);
    assert_eq!(author.sent().await, before, "eve may not take pages away");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_takes_no_page_along_that_may_not_be_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let author = Author::start(&dir).await;
    let repository = &author.repository;
    repository.install_initial_policies(SystemTime::now()).unwrap();
    let mut session = repository.session("system").unwrap();
    session.accounts().add_user("eve", "x").unwrap();
    session.accounts().add_member("content-authors", "eve").unwrap();
    session.commit("let eve edit", SystemTime::now()).unwrap();
    put(repository, "/content/a/legal", page("legal", "x"));
    author.activate_at("/content/a").await;
    author.activate_at("/content/a/legal").await;
    author.all_times_come().await;
    let (now, before) = (SystemTime::now(), author.sent().await);
    let privileges = Property::parse_list(ValueType::Name, ["crx:replicate"]).unwrap();
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", "eve")
        .with_property("rep:privileges", privileges);
    let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
    put(repository, "/content/a/legal/rep:policy", policy);
    set_time(repository, "eve", "offTime", now + HOUR, now);
    author.all_times_come().await;
    assert_eq!(author.sent().await, before, "eve may take away the page, and not that below it");
    let mut session = repository.session("system").unwrap();
    session.remove_node(&path("/content/a/legal/rep:policy")).unwrap();
    session.commit("open", now).unwrap();
    set_time(repository, "eve", "offTime", now + 2 * HOUR, now);
    author.all_times_come().await;
    assert_eq!(author.sent().await, before + 1);
}
