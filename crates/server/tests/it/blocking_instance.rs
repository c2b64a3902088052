//! An instance in this process that is asked by blocking calls, for tests that send many requests in a row or from
//! several threads.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tympan_content::{Repository, Subtree};
use tympan_jobs::workflow::{StepRegistry, WorkflowEngine, WorkflowHandler};
use tympan_jobs::{JobQueues, OsgiConfigWatcher};
use tympan_server::{InstanceOptions, InstanceRole};

use crate::support::{PASSWORD, TestInstance, path};

/// An instance with a runtime of its own. All its users have the same [`PASSWORD`].
pub(crate) struct BlockingInstance {
    // Closed before its runtime.
    instance: TestInstance,
    configurator: OsgiConfigWatcher,
    stop: watch::Sender<bool>,
    runtime: Runtime,
}

/// A response, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Parses the body; `null` if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Returns the message of a problem.
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap_or_default().to_owned()
    }
}

impl BlockingInstance {
    /// Starts an author with the folders that the program creates at its first start.
    pub(crate) fn author() -> Self {
        Self::author_with(|_| {})
    }

    /// Starts an author whose options a test changes.
    pub(crate) fn author_with(change: impl FnOnce(&mut InstanceOptions)) -> Self {
        let repository = Repository::in_memory().unwrap();
        let author = Self::start_on(repository, InstanceRole::Author, change);
        author.instance.edit(|session| {
            let assets = Subtree::new("dam", "sling:Folder");
            let content = Subtree::new("content", "sling:OrderedFolder").with_child(assets);
            session.put_node(&path("/content"), content).unwrap();
        });
        author
    }

    /// Starts an instance on a repository, which another instance may have filled.
    pub(crate) fn start_on(
        repository: Repository,
        role: InstanceRole,
        change: impl FnOnce(&mut InstanceOptions),
    ) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let mut configurator = None;
        let starting = TestInstance::start_on(repository, role, |options| {
            change(options);
            configurator = Some(options.configurator.clone());
        });
        let instance = runtime.block_on(starting);
        let (stop, _) = watch::channel(false);
        Self { instance, configurator: configurator.unwrap(), stop, runtime }
    }

    /// Returns the instance, for what no request tells.
    pub(crate) fn instance(&self) -> &TestInstance {
        &self.instance
    }

    /// Returns the runtime on which the instance works.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Returns the queues of jobs.
    pub(crate) fn queues(&self) -> JobQueues {
        self.configurator.worker().queues().clone()
    }

    /// Lets jobs run, among them the steps of workflows.
    pub(crate) fn run_jobs(&self) {
        self.configurator.refresh_configs().unwrap();
        let worker = self.configurator.worker();
        let workflows = WorkflowEngine::new(worker.queues().clone());
        let steps = StepRegistry::standard(&self.instance.repository);
        for handler in WorkflowHandler::for_registry(&workflows, self.runtime.handle(), steps) {
            worker.register_handler(handler);
        }
        self.runtime.spawn(worker.clone().run(self.stop.subscribe()));
        self.runtime.spawn(self.configurator.clone().run(self.stop.subscribe()));
    }

    /// Sends a request as a client on this machine does.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Answer {
        let mut request = self.instance.request(method.parse().unwrap(), target);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request = request.header("content-length", &body.len().to_string());
        let reply = self.runtime.block_on(request.body(body.to_vec()).send());
        Answer { status: reply.status.as_u16(), headers: reply.headers, body: reply.body }
    }

    /// Sends JSON, or no body for `null`, as a user.
    pub(crate) fn ask(&self, user: &str, method: &str, target: &str, body: &Value) -> Answer {
        self.ask_with(&basic(user, PASSWORD), method, target, body)
    }

    pub(crate) fn ask_with(
        &self,
        credentials: &str,
        method: &str,
        target: &str,
        body: &Value,
    ) -> Answer {
        let headers = [
            ("authorization", credentials.to_owned()),
            ("content-type", "application/json".to_owned()),
        ];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, target, &headers, body.as_bytes())
    }

    pub(crate) fn status(&self, user: &str, method: &str, target: &str, body: &Value) -> u16 {
        self.ask(user, method, target, body).status
    }

    /// Sends JSON as the administrator, and requires that it is taken.
    pub(crate) fn done(&self, method: &str, target: &str, body: &Value) -> Value {
        let answer = self.ask("admin", method, target, body);
        assert!(answer.status < 300, "{method} {target}: {answer:?}");
        answer.json()
    }

    /// Reads JSON as the administrator, who must be allowed to.
    pub(crate) fn get(&self, target: &str) -> Value {
        self.done("GET", target, &Value::Null)
    }

    /// Sends a body of any media type as a user.
    pub(crate) fn send_as(
        &self,
        user: &str,
        method: &str,
        target: &str,
        (media_type, body): (&str, &[u8]),
    ) -> Answer {
        let headers =
            [("authorization", basic(user, PASSWORD)), ("content-type", media_type.to_owned())];
        self.send(method, target, &headers, body)
    }

    /// Sends an encoded form as a user.
    pub(crate) fn post_as(&self, user: &str, target: &str, form: &str) -> Answer {
        let headers = [
            ("authorization", basic(user, PASSWORD)),
            ("accept", "application/json".to_owned()),
            form_type(),
        ];
        self.send("POST", target, &headers, form.as_bytes())
    }

    /// Sends an encoded form as the administrator.
    pub(crate) fn post(&self, target: &str, form: &str) -> Answer {
        self.post_as("admin", target, form)
    }

    /// Issues a token for a user, as the command line does.
    pub(crate) fn token(&self, user: &str) -> String {
        self.runtime.block_on(self.instance.token_of(user))
    }

    pub(crate) fn add_user(&self, name: &str, groups: &Value) {
        let user = json!({ "name": name, "password": PASSWORD, "groups": groups });
        self.done("POST", "/api/v1/users", &user);
    }

    /// Logs in with a form, and returns the response.
    pub(crate) fn log_in(&self, user: &str, password: &str) -> Answer {
        let form = format!("user={user}&password={password}");
        self.send("POST", "/login", &[form_type()], form.as_bytes())
    }
}

impl Drop for BlockingInstance {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Returns the header of an encoded form.
pub(crate) fn form_type() -> (&'static str, String) {
    ("content-type", "application/x-www-form-urlencoded".to_owned())
}

/// Returns the value of the header `Authorization` with a password.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

/// Returns the cookie that an answer sets first, as a browser sends it back.
pub(crate) fn first_cookie(answer: &Answer) -> String {
    answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned()
}

/// Returns the names of listed things.
pub(crate) fn names(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect()
}
