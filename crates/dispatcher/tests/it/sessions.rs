//! `/sessionmanagement`: who has logged in gets pages from the cache, nobody else does.

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Reply, Setup, load};

/// A render that lets `Basic good…` in, and draws a page to log in for everyone.
fn render() -> OriginServer {
    OriginServer::start(|seen| {
        let given = seen.header("authorization").or(seen.header("cookie")).unwrap_or("");
        match (seen.target.as_str(), given.contains("good")) {
            ("/login" | "/public.html", _) => OriginResponse::html("please log in"),
            (_, true) => OriginResponse::html("members only"),
            (_, false) => OriginResponse::with_status(401),
        }
    })
}

struct Club {
    origin: OriginServer,
    front: Front,
    folder: tempfile::TempDir,
}

impl Club {
    fn open(more: &str) -> Self {
        let origin = render();
        let folder = tempfile::tempdir().unwrap();
        let farm = format!(
            "/sessionmanagement {{ /directory \"{}\" /timeout 800 {more} }}",
            folder.path().join("sessions").display()
        );
        let front = Front::start(&Setup {
            farm: farm.leak(),
            renders: vec![origin.addr()],
            ..Setup::default()
        });
        Self { origin, front, folder }
    }

    fn ask(&self, target: &str, credentials: &str) -> Reply {
        self.front.send("GET", target, &[("Authorization", credentials)], "")
    }

    fn sessions(&self) -> Vec<String> {
        let folder = self.folder.path().join("sessions");
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn ca67_pages_are_cached_for_those_whom_the_render_let_in() {
    let club = Club::open("");
    let reply = club.front.get("/a.html");
    let required = "not cacheable: session manager needs to authenticate";
    assert_eq!((reply.status, reply.info()), (401, required));
    assert!(club.sessions().is_empty());
    let reply = club.ask("/a.html", "Basic good");
    assert_eq!((reply.status, reply.info()), (200, required));
    assert_eq!(club.ask("/a.html", "Basic good").info(), "caching");
    assert!(club.ask("/a.html", "Basic good").is_hit());
    let asked = club.origin.request_count();
    assert_eq!(club.ask("/a.html", "Basic bad").status, 401, "the render is asked about others");
    assert_eq!(club.front.get("/a.html").status, 401);
    assert_eq!(club.origin.request_count(), asked + 2);
    let name = club.sessions().remove(0);
    assert!(name.len() == 64 && !name.contains("good"), "{name}");
}

#[test]
fn ca67_idle_sessions_end_and_used_ones_go_on() {
    let club = Club::open("");
    club.ask("/a.html", "Basic good");
    club.ask("/a.html", "Basic good");
    for _ in 0..5 {
        club.front.advance(700);
        assert!(club.ask("/a.html", "Basic good").is_hit(), "use keeps a session");
    }
    club.front.advance(801);
    let reply = club.ask("/a.html", "Basic good");
    assert_eq!((reply.status, reply.info()), (200, "not cacheable: session is invalid"));
    assert!(club.ask("/a.html", "Basic good").is_hit(), "the render let it in again");
}

#[test]
fn a_page_that_everyone_gets_opens_nothing() {
    let club = Club::open("");
    // No extension, so it is no page of the cache.
    assert_eq!(club.ask("/login", "Basic bad").body, "please log in");
    assert!(club.sessions().is_empty());
    club.ask("/a.html", "Basic good");
    club.ask("/a.html", "Basic good");
    assert_eq!(club.ask("/a.html", "Basic bad").status, 401);
}

#[test]
fn a_cacheable_page_that_everyone_gets_proves_nothing_about_credentials() {
    let club = Club::open("");
    club.ask("/a.html", "Basic good");
    club.ask("/a.html", "Basic good");
    let sessions = club.sessions();
    for credentials in ["Basic bad", "Basic worse"] {
        assert_eq!(club.ask("/public.html", credentials).body, "please log in");
        assert_eq!(club.ask("/a.html", credentials).status, 401);
    }
    assert_eq!(club.sessions(), sessions, "no other session has begun");
    assert!(club.ask("/a.html", "Basic good").is_hit());
}

#[test]
fn credentials_may_be_a_cookie() {
    let club = Club::open("/header \"Cookie:login-token\" /encode \"hex\"");
    let ask = |value: &str| {
        club.front.send("GET", "/a.html", &[("Cookie", &format!("x=1; login-token={value}"))], "")
    };
    assert_eq!(ask("good").status, 200);
    ask("good");
    assert!(ask("good").is_hit());
    assert_eq!(ask("bad").status, 401);
    // Another cookie of theirs is no text.
    let cookie = [("Cookie", "name=\u{e9}; login-token=good")];
    assert!(club.front.send("GET", "/a.html", &cookie, "").is_hit());
    assert!(!club.ask("/a.html", "Basic good").is_hit(), "another header is none");
}

#[test]
fn a_folder_that_is_missing_or_the_root_is_refused() {
    for broken in ["", "/directory \"/\""] {
        let text = format!("/farms {{ /a {{ /sessionmanagement {{ {broken} }} }} }}");
        assert!(load(&text).has_errors(), "{broken}");
    }
}
