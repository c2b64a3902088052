//! Pages that are cached for everyone but shown to some (`/auth_checker`).

use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::front::{Front, Setup};

/// Says yes to whoever has the cookie `may=1`.
fn guarded() -> (OriginServer, Front) {
    let origin = OriginServer::start(|seen| {
        let may = seen.header("cookie") == Some("may=1");
        match (seen.method.as_str(), may) {
            ("HEAD", true) => OriginResponse::with_status(200)
                .with_header("Set-Cookie", "seen=1")
                .with_header("X-Private", "1"),
            ("HEAD", false) => OriginResponse::with_status(403),
            (_, true) => OriginResponse::html("secret"),
            (_, false) => OriginResponse::with_status(403).with_body("go away"),
        }
    });
    let front = Front::start(&Setup {
        farm: "/auth_checker {
            /url \"/bin/check\"
            /filter { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" /glob \"/secure/*.html\" } }
            /headers { /0 { /type \"deny\" /glob \"*\" } /1 { /type \"allow\" /glob \"Set-Cookie:*\" } }
        }",
        renders: vec![origin.addr()],
        ..Setup::default()
    });
    (origin, front)
}

const MAY: (&str, &str) = ("Cookie", "may=1");

#[test]
fn a_cached_page_is_shown_after_asking() {
    let (origin, front) = guarded();
    let miss = front.send("GET", "/secure/a%20b.html", &[MAY], "");
    assert_eq!(miss.body, "secret");
    let hit = front.send("GET", "/secure/a%20b.html", &[MAY], "");
    assert!(hit.is_hit());
    assert_eq!(hit.body, "secret");
    assert_eq!(hit.header("set-cookie"), Some("seen=1"));
    assert_eq!(hit.header("x-private"), None);
    let asked = &origin.requests()[1];
    assert_eq!(
        (asked.method.as_str(), asked.target.as_str()),
        ("HEAD", "/bin/check?uri=/secure/a%20b.html")
    );
}

#[test]
fn whoever_may_not_gets_the_renders_own_answer() {
    let (_origin, front) = guarded();
    front.send("GET", "/secure/a.html", &[MAY], "");
    let refused = front.get("/secure/a.html");
    assert_eq!((refused.status, refused.body.as_str()), (403, "go away"));
    assert_eq!(refused.info(), "not cacheable: authorization checker denied access");
    front.flush("Activate", "/x", &[]);
    let stale = front.get("/secure/a.html");
    assert_eq!((stale.status, stale.body.as_str()), (403, "go away"));
}
