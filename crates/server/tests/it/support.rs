//! An instance in this process, and the requests that tests send to its router.

use std::io::{Cursor, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tower::ServiceExt;
use tympan_content::{NodePath, Property, Repository, Session, Snapshot, Subtree, Value};
use tympan_jobs::{JobQueues, JobWorker, JobWorkerOptions, OsgiConfigWatcher};
use tympan_render::{RenderMode, RenderOptions, Renderer};
use tympan_replicate::{ActivationVersioning, HomePairs, Replicator};
use tympan_search::SearchIndex;
use tympan_server::{
    Instance, InstanceOptions, InstanceRole, Logins, PageHeaders, QueryBudgets, TimingDisclosure,
    TokenOwner, TokenTerms, create_user, main_router,
};
use tympan_testkit::StateDatabase;
use tympan_web::listen::ConnectionPeer;
use tympan_web::log_file::LogRotation;
use zip::write::SimpleFileOptions;

/// The password of every user that a test makes.
pub(crate) const PASSWORD: &str = "violet-harbor-lantern";

/// A running instance without sockets. Its content and its state database are in memory.
pub(crate) struct TestInstance {
    pub(crate) repository: Repository,
    pub(crate) state: StateDatabase,
    pub(crate) instance: Arc<Instance>,
    search: Arc<SearchIndex>,
    router: Router,
    /// The proof that requests are from `admin`.
    admin_token: String,
    dir: tempfile::TempDir,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }
}

impl TestInstance {
    pub(crate) async fn author() -> Self {
        Self::start(InstanceRole::Author, |_| {}).await
    }

    pub(crate) async fn publish() -> Self {
        Self::start(InstanceRole::Publish, |_| {}).await
    }

    /// Starts an instance whose options a test changes.
    pub(crate) async fn start(
        role: InstanceRole,
        change: impl FnOnce(&mut InstanceOptions),
    ) -> Self {
        Self::start_on(Repository::in_memory().unwrap(), role, change).await
    }

    /// Starts an instance on a repository, which gets its first user and the folder `/content` unless it has users.
    pub(crate) async fn start_on(
        repository: Repository,
        role: InstanceRole,
        change: impl FnOnce(&mut InstanceOptions),
    ) -> Self {
        let state = StateDatabase::open_in_memory().await.unwrap();
        Self::start_with_state(repository, state, role, change).await
    }

    /// Starts an instance on a repository and a state database, which other instances may share.
    pub(crate) async fn start_with_state(
        repository: Repository,
        state: StateDatabase,
        role: InstanceRole,
        change: impl FnOnce(&mut InstanceOptions),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        state.migrate_tables("jobs", tympan_jobs::JOB_MIGRATIONS).await.unwrap();
        state.migrate_tables("server", tympan_server::SERVER_MIGRATIONS).await.unwrap();
        let queues = JobQueues::new(state.pool().clone());
        let options = JobWorkerOptions::new(role.name(), "test".to_owned());
        let worker = JobWorker::new(queues.clone(), options);
        let configurator = OsgiConfigWatcher::new(worker, repository.clone(), &[role.name()]);
        let key = "a key of replication".to_owned();
        let replicator = Replicator::new(
            role.name(),
            repository.clone(),
            queues.clone(),
            key.clone(),
            HomePairs::default(),
        );
        let search =
            SearchIndex::open(repository.clone(), &dir.path().join("search"), Default::default());
        let search = Arc::new(search.unwrap());
        let mode =
            if role == InstanceRole::Author { RenderMode::Author } else { RenderMode::Publish };
        let logins = Logins::new(state.pool().clone(), repository.clone());
        let mut options = InstanceOptions {
            role,
            repository: repository.clone(),
            query_budgets: QueryBudgets::default(),
            activation_versioning: ActivationVersioning::default(),
            renderer: Renderer::new(
                &repository,
                RenderOptions { mode, ..RenderOptions::default() },
            ),
            dependency_ledger: None,
            surrogate_key: None,
            page_headers: PageHeaders::default(),
            queues,
            configurator,
            replicator,
            search: search.clone(),
            logins,
            replication_key: key,
            home_pairs: HomePairs::default(),
            spool_folder: dir.path().join("spool"),
            log_folder: dir.path().join("logs"),
            rotation: LogRotation::default(),
            work_permits: 4,
            max_waiting_work: 100,
            timing_disclosure: TimingDisclosure::default(),
            body_timeout: Duration::from_secs(60),
        };
        change(&mut options);
        if repository.account_path("admin").unwrap().is_none() {
            let mut session = repository.session("system").unwrap();
            create_user(&mut session, "admin", PASSWORD).unwrap();
            session.put_node(&path("/content"), Subtree::new("content", "sling:Folder")).unwrap();
            session.commit("begin", SystemTime::now()).unwrap();
        }
        let instance = Instance::open(options, SystemTime::now()).unwrap();
        let router = main_router(instance.clone());
        let owner = TokenOwner { user: "admin", account: None };
        let now = SystemTime::now();
        let terms = TokenTerms::default();
        let admin_token = Logins::issue_token(state.pool(), owner, now, terms).await.unwrap();
        Self { repository, state, instance, search, router, admin_token, dir }
    }

    /// Returns what answers requests, to serve it on a socket.
    pub(crate) fn router(&self) -> Router {
        self.router.clone()
    }

    /// Begins a request from this machine.
    pub(crate) fn request(&self, method: Method, target: &str) -> TestRequest<'_> {
        let mut request = Request::new(Body::empty());
        *request.method_mut() = method;
        *request.uri_mut() = target.parse().unwrap();
        request.headers_mut().insert(header::HOST, "localhost".parse().unwrap());
        TestRequest { router: &self.router, request }.with_address([127, 0, 0, 1].into())
    }

    /// Sends a GET as `admin`.
    pub(crate) async fn get(&self, target: &str) -> Reply {
        self.request(Method::GET, target).bearer(&self.admin_token).send().await
    }

    /// Sends a GET as a visitor.
    pub(crate) async fn visit(&self, target: &str) -> Reply {
        self.request(Method::GET, target).send().await
    }

    /// Sends a form as `admin`, and requires that it is taken.
    pub(crate) async fn post(&self, target: &str, form: &[(&str, &str)]) -> Reply {
        let reply = self.try_post(target, form).await;
        assert!(reply.status.is_success(), "{target} {form:?}: {reply:?}");
        reply
    }

    /// Sends a form as `admin`.
    pub(crate) async fn try_post(&self, target: &str, form: &[(&str, &str)]) -> Reply {
        let request = self.request(Method::POST, target).bearer(&self.admin_token);
        request.form(form).send().await
    }

    /// Begins a request as `admin`.
    pub(crate) fn as_admin(&self, method: Method, target: &str) -> TestRequest<'_> {
        self.request(method, target).bearer(&self.admin_token)
    }

    /// Lets the full-text index take in the newest state.
    pub(crate) fn until_indexed(&self) {
        let begun = Instant::now();
        loop {
            self.search.wake_follower();
            let status = self.search.status(SystemTime::now()).unwrap();
            if status.indexed_root.is_some() && status.lag_revisions == 0 {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(300), "{status:?}");
            std::thread::yield_now();
        }
    }

    /// Returns the newest state as nobody in particular sees it.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.repository.snapshot().unwrap()
    }

    /// Returns a property as a text that shows its type and values; `-` if it is not there.
    pub(crate) fn property(&self, node: &str, name: &str) -> String {
        let node = self.snapshot().node(&path(node)).unwrap();
        let Some(property) = node.and_then(|node| node.property(name)) else {
            return "-".to_owned();
        };
        let texts: Vec<_> = property.values().iter().map(Value::to_text).collect();
        let type_name = property.value_type().name();
        match property {
            Property::Single(_) => format!("{type_name} {}", texts[0]),
            Property::List(..) => format!("{type_name} [{}]", texts.join(", ")),
        }
    }

    /// Changes content in nobody's name.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut Session)) {
        let mut session = self.repository.session("system").unwrap();
        change(&mut session);
        session.commit("edit", SystemTime::now()).unwrap();
    }

    /// Makes a user, who is a member of groups, and returns a token.
    pub(crate) async fn user(&self, name: &str, groups: &[&str]) -> String {
        self.edit(|session| {
            create_user(session, name, PASSWORD).unwrap();
            groups.iter().for_each(|group| session.accounts().add_member(group, name).unwrap());
        });
        self.token_of(name).await
    }

    /// Returns a token of a user who is there.
    pub(crate) async fn token_of(&self, name: &str) -> String {
        let owner = TokenOwner { user: name, account: None };
        let (pool, now) = (self.state.pool(), SystemTime::now());
        Logins::issue_token(pool, owner, now, TokenTerms::default()).await.unwrap()
    }

    /// Returns the folder of its files.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for TestInstance {
    fn drop(&mut self) {
        self.search.close();
    }
}

/// A part of a form: its name, its file name and media type if it is a file, and its bytes.
pub(crate) type FormPart<'a> = (&'a str, Option<(&'a str, &'a str)>, &'a [u8]);

/// The body of a request that waits for the test.
pub(crate) struct HeldBody {
    /// Resolves when the instance begins to read the body.
    pub(crate) requested: oneshot::Receiver<()>,
    pub(crate) release: oneshot::Sender<()>,
}

/// A request that is being made.
pub(crate) struct TestRequest<'a> {
    router: &'a Router,
    request: Request,
}

impl TestRequest<'_> {
    pub(crate) fn with_address(mut self, address: IpAddr) -> Self {
        let peer = ConnectionPeer::new(SocketAddr::new(address, 50_000), true);
        self.request.extensions_mut().insert(peer);
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap();
        self.request.headers_mut().append(name, value.parse().unwrap());
        self
    }

    /// Names the host that the request is for.
    pub(crate) fn with_host(mut self, host: &str) -> Self {
        self.request.headers_mut().insert(header::HOST, host.parse().unwrap());
        self
    }

    /// Lets the request come from another machine, without TLS.
    pub(crate) fn with_foreign_address(mut self) -> Self {
        let address = SocketAddr::new([192, 0, 2, 1].into(), 50_000);
        self.request.extensions_mut().insert(ConnectionPeer::new(address, false));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn form(mut self, form: &[(&str, &str)]) -> Self {
        let encode = |text| {
            percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
                .to_string()
        };
        let pairs: Vec<_> = form
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name), encode(value)))
            .collect();
        *self.request.body_mut() = Body::from(pairs.join("&"));
        self.header("content-type", "application/x-www-form-urlencoded")
    }

    pub(crate) fn json(mut self, value: &serde_json::Value) -> Self {
        *self.request.body_mut() = Body::from(value.to_string());
        self.header("content-type", "application/json")
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        *self.request.body_mut() = body.into();
        self
    }

    /// Sends texts and files as browsers do.
    pub(crate) fn multipart(self, parts: &[FormPart<'_>]) -> Self {
        let mut body = Vec::new();
        for (name, file, bytes) in parts {
            body.extend_from_slice(b"--bound\r\nContent-Disposition: form-data; name=\"");
            body.extend_from_slice(name.as_bytes());
            if let Some((file_name, media_type)) = file {
                body.extend_from_slice(format!("\"; filename=\"{file_name}").as_bytes());
                body.extend_from_slice(format!("\"\r\nContent-Type: {media_type}").as_bytes());
            } else {
                body.extend_from_slice(b"\"");
            }
            body.extend_from_slice(b"\r\n\r\n");
            body.extend_from_slice(bytes);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"--bound--\r\n");
        self.header("content-type", "multipart/form-data; boundary=bound").body(body)
    }

    /// Lets the body of the request arrive only when the test releases it.
    pub(crate) fn hold_body(mut self) -> (Self, HeldBody) {
        let (requested_sender, requested) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        let body = std::mem::take(self.request.body_mut());
        let held = futures_util::stream::once(async move {
            requested_sender.send(()).ok();
            released.await.ok();
            body.collect().await.map(http_body_util::Collected::to_bytes)
        });
        *self.request.body_mut() = Body::from_stream(held);
        (self, HeldBody { requested, release })
    }

    /// Sends the request; the body of the response is still to be read.
    pub(crate) async fn open(self) -> Response {
        self.router.clone().oneshot(self.request).await.unwrap()
    }

    pub(crate) async fn send(self) -> Reply {
        let (parts, body) = self.open().await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: parts.status, headers: parts.headers, body }
    }
}

/// Makes an archive of files with these texts, such as a content package.
pub(crate) fn zipped(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in entries {
        archive.start_file(*name, SimpleFileOptions::default()).unwrap();
        archive.write_all(text.as_bytes()).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}
