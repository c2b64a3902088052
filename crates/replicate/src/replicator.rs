//! The replicator: one worker per agent that takes jobs from the agent's queue in order.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use tympan_content::{ChunkId, Repository};
use tympan_jobs::{
    Claim, Job, JobFilter, JobState, QueueSet, Queues, Rounds, Worker, chain, topic_part,
};
use tympan_web::client::{Client, Options};

use crate::activation::{Keeping, Wish, hold, mark_keeping};
use crate::affected::{Affected, OwnPages};
use crate::agent::{AgentKind, agents};
use crate::flush::{Following, SHARED_FOLLOWER, follow, follower_of, send_flush, test_flush};
use crate::numbers::Numbers;
use crate::overtaken::{given_up_before, note};
use crate::pair::Pairs;
use crate::send::{Sender, blocking, is_withdrawal};
use crate::tree::is_part_of_tree;
use crate::{Agent, Error, Result};

/// How long others wait for this process before its job is sent again; it is renewed while the job is on its way.
pub(crate) const LEASE: Duration = Duration::from_secs(60);
/// How long one request to the other side may take, its body included.
const MAX_DELIVERY: Duration = Duration::from_secs(3600);
/// How often agents are read anew and queues looked at, if nobody calls.
pub(crate) const IDLE: Duration = Duration::from_secs(5);
/// How often the newest state is looked at; where a look costs a round trip, less often.
const LOOK: Duration = Duration::from_millis(100);
const COSTLY_LOOK: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Works off the queues of one role's agents. Clones share the same workers.
#[derive(Debug, Clone)]
pub struct Replicator {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    role: &'static str,
    /// A name that no other process on the same database has.
    name: String,
    sender: Sender,
    /// Dispatchers answer at once, so these requests end early.
    flusher: Client,
    /// The numbers that flushes go under.
    numbers: Numbers,
    queues: Queues,
    /// Wakes all workers: there may be something to do.
    bell: Notify,
    /// Why each blocked agent waits.
    blocked: Mutex<BTreeMap<String, String>>,
    /// Held by whoever notes wishes in content and stores their jobs, so that both have one order.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Who knows how queues are configured.
    worker: Mutex<Option<Worker>>,
    /// Who knows which URLs a change reaches.
    affected: Mutex<Arc<dyn Affected>>,
    /// Held by whoever follows content: the flushes that are stored are those of the last answer. Up to where this process
    /// followed.
    following: tokio::sync::Mutex<Option<ChunkId>>,
    /// Whether what is activated in parts is kept as versions.
    keeping: Mutex<Keeping>,
}

/// Returns the topic of an agent's jobs, which an ordered queue of its own takes.
#[must_use]
pub fn topic_of(role: &str, agent: &str) -> String {
    format!("com/day/cq/replication/job/{role}/{}", topic_part(agent))
}

impl Replicator {
    /// Makes the replicator of a role, `author` or `publish`; `key` is what both sides share where they have no pair of
    /// their own.
    #[must_use]
    pub fn new(
        role: &'static str,
        repository: Repository,
        queues: Queues,
        key: String,
        pairs: Pairs,
    ) -> Self {
        // Large assets take their time to arrive, and the answer comes after the last byte.
        let options = Options { response_timeout: Some(MAX_DELIVERY), ..Options::default() };
        let sender = Sender { repository, client: Client::new(options), key, pairs };
        let inner = Inner {
            role,
            name: process_name(role),
            sender,
            flusher: Client::default(),
            numbers: Numbers::new(),
            queues,
            bell: Notify::new(),
            blocked: Mutex::default(),
            turn: Arc::default(),
            worker: Mutex::default(),
            affected: Mutex::new(Arc::new(OwnPages)),
            following: tokio::sync::Mutex::default(),
            keeping: Mutex::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Tells the workers that jobs were added.
    pub fn ring(&self) {
        self.inner.bell.notify_waiters();
    }

    /// Waits for the turn to note wishes and store their jobs.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        Arc::clone(&self.inner.turn).lock_owned().await
    }

    /// Carries out wishes: stores their jobs, notes them in content, and lets the agents send. Nothing is left half-done
    /// when the process ends. Returns the root that is sent from.
    ///
    /// # Errors
    /// As [`hold`] and [`mark_keeping`].
    pub async fn wish(
        &self,
        wishes: Vec<Wish>,
        keeping: Keeping,
        now: SystemTime,
    ) -> Result<ChunkId> {
        let turn = self.turn().await;
        let (repository, queues) = (self.repository().clone(), self.queues());
        let held = hold(&repository, queues, &wishes, now).await?;
        let noted = held.noted_at_once(wishes);
        let marked = blocking(move || mark_keeping(&repository, &noted, keeping, now)).await;
        let root = match marked.and_then(|marked| marked) {
            Ok(root) => root,
            Err(error) => {
                held.discard(queues).await?;
                return Err(error);
            }
        };
        held.release(queues, root, now).await?;
        drop(turn);
        self.ring();
        Ok(root)
    }

    /// Says under which name this publisher's flushes go, the same over restarts; dispatchers count them by it, and the
    /// state of content up to which they are stored is kept under it.
    pub fn set_publisher(&self, name: &str) {
        self.inner.numbers.set_publisher(name);
    }

    /// Has each publisher on the database go on where all stood under one name, if they did.
    ///
    /// # Errors
    /// If the queues fail.
    pub async fn divide_place(&self, publishers: &[String]) -> Result<()> {
        let names: Vec<String> = publishers.iter().map(|name| follower_of(name)).collect();
        if self.inner.queues.divide(SHARED_FOLLOWER, &names).await? {
            info!(publishers = publishers.len(), "each publisher keeps its own place from now on");
        }
        Ok(())
    }

    /// Says whether what is activated in parts is kept as versions; by default it is.
    pub fn set_keeping(&self, keeping: Keeping) {
        *self.inner.keeping.lock() = keeping;
    }

    pub(crate) fn keeping(&self) -> Keeping {
        *self.inner.keeping.lock()
    }

    /// Returns the name under which this process claims jobs.
    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the role of the instance.
    pub(crate) fn role(&self) -> &'static str {
        self.inner.role
    }

    /// Returns what tells that there may be something to do.
    pub(crate) fn bell(&self) -> &Notify {
        &self.inner.bell
    }

    /// Returns the repository that is sent from.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.inner.sender.repository
    }

    /// Has queues configured as those of a worker are, so that pausing one holds under the name that its configuration
    /// gives it.
    pub fn configure_as(&self, worker: Worker) {
        *self.inner.worker.lock() = Some(worker);
    }

    /// Returns the name of the queue of an agent, as it is configured now.
    #[must_use]
    pub fn queue_of(&self, agent: &str) -> String {
        let topic = topic_of(self.inner.role, agent);
        match &*self.inner.worker.lock() {
            Some(worker) => worker.queue_set().queue_of(&topic).name,
            None => QueueSet::default().queue_of(&topic).name,
        }
    }

    /// Returns the queues.
    #[must_use]
    pub fn queues(&self) -> &Queues {
        &self.inner.queues
    }

    /// Returns why an agent's queue is blocked, if it is.
    #[must_use]
    pub fn blocked(&self, agent: &str) -> Option<String> {
        self.inner.blocked.lock().get(agent).cloned()
    }

    /// Works until `stop` turns true. Agents that are added meanwhile get a worker too.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut workers: BTreeMap<String, ()> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        if self.inner.role == "author" {
            tasks.spawn(self.clone().carry_out_trees(stop.clone()));
        }
        while !*stop.borrow() {
            for agent in self.agents().await {
                if workers.insert(agent.name.clone(), ()).is_none() {
                    tasks.spawn(self.clone().work(agent.name, stop.clone()));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(IDLE) => {}
                () = self.inner.bell.notified() => {}
                _ = stop.changed() => {}
            }
        }
        while tasks.join_next().await.is_some() {}
        // The worker's handlers hold this replicator.
        *self.inner.worker.lock() = None;
    }

    /// Takes the jobs of one agent in order.
    async fn work(self, name: String, mut stop: watch::Receiver<bool>) {
        while !*stop.borrow() {
            // Registered before looking, so that a bell between looking and waiting is heard.
            let bell = self.inner.bell.notified();
            let pause = match self.step(&name).await {
                Ok(Some(pause)) => pause,
                Ok(None) => continue,
                Err(error) => {
                    warn!(agent = name, reason = %error, "replication queue cannot be worked off");
                    IDLE
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = bell => {}
                _ = stop.changed() => {}
            }
        }
    }

    /// Carries out the next job, or tells how long to wait for one.
    async fn step(&self, name: &str) -> Result<Option<Duration>> {
        let Some(agent) = self.agents().await.into_iter().find(|agent| agent.name == name) else {
            return Ok(Some(IDLE));
        };
        if !agent.is_enabled {
            return Ok(Some(IDLE));
        }
        if let Some(fault) = &agent.fault {
            self.block(name, fault);
            return Ok(Some(IDLE));
        }
        let topic = topic_of(self.inner.role, name);
        let paused = self.inner.queues.paused().await?;
        if paused.contains(&self.queue_of(name)) {
            return Ok(Some(IDLE));
        }
        if agent.kind != AgentKind::Publish && self.inner.numbers.is_new(name) {
            self.miss_given_up(name, &topic).await?;
        }
        let claim = Claim { worker: &self.inner.name, lease: LEASE };
        let now = SystemTime::now();
        let Some(job) = self.inner.queues.claim_in_order(&[&topic], claim, now).await? else {
            let next = self.inner.queues.next_in_order(&topic).await?;
            let wait = next.and_then(|next| next.duration_since(now).ok()).unwrap_or(IDLE);
            return Ok(Some(wait.clamp(Duration::from_millis(1), IDLE)));
        };
        if is_part_of_tree(&job) {
            // The next part is made while this one is being sent.
            self.ring();
        }
        self.carry_out(&agent, &job).await?;
        Ok(None)
    }

    /// Begins an agent's numbers with a gap if an earlier run gave flushes up: their dispatcher may not know of it.
    async fn miss_given_up(&self, name: &str, topic: &str) -> Result<()> {
        let given_up = JobFilter {
            state: Some(JobState::GivenUp),
            topics: vec![topic.to_owned()],
            ..JobFilter::default()
        };
        if !self.inner.queues.list(&given_up, 1).await?.is_empty() {
            self.inner.numbers.skip(name);
        }
        Ok(())
    }

    /// Sends one job and notes how it went.
    async fn carry_out(&self, agent: &Agent, job: &Job) -> Result<()> {
        let started = SystemTime::now();
        let queues = &self.inner.queues;
        let earlier = match agent.kind {
            AgentKind::Publish if !is_withdrawal(job) => given_up_before(queues, job).await?,
            // A withdrawal leaves what is live, and a flush of what was flushed since does no harm.
            _ => Vec::new(),
        };
        let sending = async {
            match agent.kind {
                AgentKind::Publish => self.inner.sender.deliver(agent, job).await,
                _ => {
                    let way = (&self.inner.flusher, &self.inner.sender.pairs);
                    send_flush(way, &self.inner.numbers, agent, job).await
                }
            }
        };
        let mut sending = std::pin::pin!(sending);
        let outcome = loop {
            tokio::select! {
                outcome = &mut sending => break outcome,
                // A job that is someone else's by now is not sent any further.
                () = tokio::time::sleep(LEASE / 3) => {
                    queues.renew(job.id, &self.inner.name, LEASE, SystemTime::now()).await?;
                }
            }
        };
        match outcome {
            Ok(()) => {
                let elapsed_ms = started.elapsed().unwrap_or_default().as_millis() as u64;
                debug!(
                    agent = agent.name,
                    job = job.id.0,
                    attempt = job.attempt,
                    elapsed_ms,
                    "job delivered"
                );
                if self.inner.blocked.lock().remove(&agent.name).is_some() {
                    info!(agent = agent.name, "replication goes on");
                }
                note(queues, &earlier, job).await?;
                queues.finish(job.id, &self.inner.name).await?;
                if is_part_of_tree(job) {
                    self.ring();
                }
            }
            Err(error) => {
                let reason = chain(&error);
                let retry_at =
                    error.is_transient().then(|| SystemTime::now() + pause_after(job.attempt));
                if retry_at.is_some() {
                    self.block(&agent.name, &reason);
                } else {
                    warn!(agent = agent.name, job = job.id.0, reason, "replication job given up");
                }
                queues
                    .fail(job.id, &self.inner.name, &reason, (retry_at, SystemTime::now()))
                    .await?;
            }
        }
        Ok(())
    }

    /// Notes why an agent's queue waits, and says so once.
    fn block(&self, agent: &str, reason: &str) {
        let was = self.inner.blocked.lock().insert(agent.to_owned(), reason.to_owned());
        if was.is_none() {
            warn!(agent, reason, "replication is blocked");
        }
    }

    /// Finds an agent of this role.
    ///
    /// # Errors
    /// [`Error::Agent`] if there is none; content's.
    pub async fn agent(&self, name: &str) -> Result<Agent> {
        let (repository, role) = (self.repository().clone(), self.inner.role);
        let all = blocking(move || agents(&repository.snapshot()?, role)).await??;
        let missing = || Error::Agent {
            agent: name.to_owned(),
            reason: format!("there is none below `/etc/replication/agents.{role}`"),
        };
        all.into_iter().find(|agent| agent.name == name).ok_or_else(missing)
    }

    /// Asks the other side of an agent whether it hears, without any effect there.
    ///
    /// # Errors
    /// With the reason why it does not.
    pub async fn test(&self, name: &str) -> Result<()> {
        let agent = self.agent(name).await?;
        if let Some(reason) = agent.fault.clone() {
            return Err(Error::Agent { agent: agent.name, reason });
        }
        match agent.kind {
            AgentKind::Publish => self.inner.sender.test(&agent).await,
            _ => test_flush(&self.inner.flusher, &self.inner.sender.pairs, &agent).await,
        }
    }

    /// Keeps an agent's jobs from being sent; they wait, and more may come.
    ///
    /// # Errors
    /// If there is no such agent or the queues fail.
    pub async fn pause(&self, name: &str, user: &str, now: SystemTime) -> Result<()> {
        let agent = self.agent(name).await?;
        Ok(self.inner.queues.pause(&self.queue_of(&agent.name), user, now).await?)
    }

    /// Lets an agent's jobs be sent again. Tells whether they were paused.
    ///
    /// # Errors
    /// If there is no such agent or the queues fail.
    pub async fn resume(&self, name: &str) -> Result<bool> {
        let agent = self.agent(name).await?;
        let is_changed = self.inner.queues.resume(&self.queue_of(&agent.name)).await?;
        self.ring();
        Ok(is_changed)
    }

    /// Removes all jobs of an agent but the one that is being sent. Returns how many.
    ///
    /// # Errors
    /// If there is no such agent or the queues fail.
    pub async fn clear(&self, name: &str) -> Result<u64> {
        let agent = self.agent(name).await?;
        let removed = self.inner.queues.clear(&topic_of(self.inner.role, &agent.name)).await?;
        self.inner.blocked.lock().remove(&agent.name);
        if removed > 0 {
            // Its dispatcher must not take what comes next for all there is.
            self.inner.numbers.skip(&agent.name);
        }
        self.ring();
        Ok(removed)
    }

    /// Lets all jobs of an agent run again now: what failed, and what waits for its next attempt. Returns how many.
    ///
    /// # Errors
    /// If there is no such agent or the queues fail.
    pub async fn retry(&self, name: &str, now: SystemTime) -> Result<u64> {
        let agent = self.agent(name).await?;
        let topic = topic_of(self.inner.role, &agent.name);
        let count = self.inner.queues.retry_topic(&topic, now).await?;
        self.ring();
        Ok(count)
    }

    /// Has a ledger tell which URLs a change reaches.
    pub fn ask(&self, affected: Arc<dyn Affected>) {
        *self.inner.affected.lock() = affected;
    }

    /// Stores the flushes of what changed since this publisher's last call, for each enabled agent towards a cache; returns
    /// how many. None is lost or doubled, whenever the process ends. The first call of all only notes where to begin.
    ///
    /// # Errors
    /// If content or the queues fail, or the URLs cannot be found out.
    pub async fn follow(&self, now: SystemTime) -> Result<usize> {
        let affected = Arc::clone(&self.inner.affected.lock());
        let publisher = self.inner.numbers.publisher();
        let mut last = self.inner.following.lock().await;
        let following = Following {
            repository: self.repository(),
            queues: &self.inner.queues,
            publisher: &publisher,
            affected: &affected,
        };
        let count = follow(following, &mut last, now).await?;
        drop(last);
        self.ring();
        Ok(count)
    }

    /// Follows content until `stop` turns true: what other processes and other ways than replication change is flushed, too.
    pub async fn keep_following(self, stop: watch::Receiver<bool>) {
        let look = look_of(self.repository());
        let mut rounds = Rounds::new("flushes", stop, IDLE);
        let mut asked: Option<Instant> = None;
        while !rounds.is_over() {
            // What is owed stays so while there is no agent to tell.
            let is_asked = asked.is_some_and(|asked| asked.elapsed() < IDLE);
            let is_owing = !is_asked && self.inner.affected.lock().is_owing();
            if is_owing {
                asked = Some(Instant::now());
            }
            let round = self.catch_up(is_owing).await.map(|()| look);
            rounds.end(round.map_err(|error| chain(&error))).await;
        }
    }

    /// Follows if something changed or is owed.
    async fn catch_up(&self, is_owing: bool) -> Result<()> {
        let repository = self.repository().clone();
        let head = match repository.chunks().has_costly_round_trips() {
            true => blocking(move || repository.head()).await??,
            false => repository.head()?,
        };
        let is_new = *self.inner.following.lock().await != Some(head);
        if is_new || is_owing {
            self.follow(SystemTime::now()).await?;
        }
        Ok(())
    }

    async fn agents(&self) -> Vec<Agent> {
        let (repository, role) = (self.inner.sender.repository.clone(), self.inner.role);
        let read =
            blocking(move || -> Result<Vec<Agent>> { agents(&repository.snapshot()?, role) }).await;
        read.and_then(|agents| agents).unwrap_or_else(|error| {
            warn!(reason = %error, "replication agents cannot be read");
            Vec::new()
        })
    }
}

/// Returns how often the newest state is looked at.
pub(crate) fn look_of(repository: &Repository) -> Duration {
    if repository.chunks().has_costly_round_trips() { COSTLY_LOOK } else { LOOK }
}

/// Makes a name from what differs between processes that share a database.
fn process_name(role: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("replicator-{role}-{}-{}", std::process::id(), since.as_nanos())
}

/// Returns the pause before the next attempt: doubling from a quarter of a second.
fn pause_after(attempt: u32) -> Duration {
    let doubled = Duration::from_millis(250).saturating_mul(1 << attempt.saturating_sub(1).min(16));
    doubled.min(MAX_PAUSE)
}
