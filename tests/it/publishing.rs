//! The main job: an edit on the author, activated, is what visitors see.

use std::time::Instant;

use tympan_testkit::condition_wait::{wait_for, wait_until};
use tympan_testkit::origin_server::{OriginResponse, OriginServer};

use crate::program::{Demo, get};

const PAGE: &str = "/content/wayfare/en/journal/night-train-to-lisbon";
/// Polls until the page behind the dispatcher holds the text, and returns how often it was asked for.
fn poll_until(demo: &Demo, path: &str, text: &str) -> usize {
    let mut polls = 0;
    wait_until(format_args!("`{text}` is seen at {path}"), || {
        polls += 1;
        let answer = get(demo.dispatcher, path);
        assert_eq!(answer.status, 200, "a visitor got {}", answer.status);
        answer.text().contains(text)
    });
    polls
}

#[test]
fn an_edit_reaches_visitors_with_exactly_one_render() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let url = format!("{PAGE}.html");
    poll_until(&demo, &url, "</html>");
    assert_eq!(get(demo.dispatcher, &url).status, 200);
    let before = demo.renders_of(&url);
    assert_eq!(before, 1, "the second visitor is served from the cache");
    for number in 0..3 {
        let title = format!("A title that was changed {number} times");
        let saved = demo.post(
            &format!("{PAGE}/jcr:content"),
            &format!("./jcr:title={}", title.replace(' ', "+")),
        );
        assert_eq!(saved.status, 200, "{}", saved.text());
        assert!(!get(demo.dispatcher, &url).text().contains(&title), "not published yet");
        let published_at = Instant::now();
        let activated = demo.post(PAGE, ":operation=activate");
        assert_eq!(activated.status, 200, "{}", activated.text());
        let polls = poll_until(&demo, &url, &title);
        eprintln!(
            "published at 0 ms, visible at {} ms, after {polls} polls",
            published_at.elapsed().as_millis()
        );
        poll_until(&demo, &url, &title);
        assert_eq!(demo.renders_of(&url), before + number + 1, "one render for each activation");
    }
}

#[test]
fn deactivated_pages_vanish_and_subtrees_travel_whole() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let create = "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent&\
        ./jcr:content/sling:resourceType=wayfare/components/page&./jcr:content/jcr:title=";
    for (parent, name) in [
        ("/content/wayfare/en", "walks"),
        ("/content/wayfare/en/walks", "one"),
        ("/content/wayfare/en/walks", "two"),
    ] {
        let made = demo.post(&format!("{parent}/*"), &format!(":name={name}&{create}{name}"));
        assert_eq!(made.status, 201, "{}", made.text());
    }
    let url = "/content/wayfare/en/walks/two.html";
    assert_eq!(get(demo.publish, url).status, 404, "nothing is published by being made");
    assert_eq!(
        demo.post("/content/wayfare/en/walks", ":operation=activate&:deep=true").status,
        200
    );
    let wait_for_status = |status: u16| {
        wait_until(format_args!("{url} answers {status}"), || {
            get(demo.publish, url).status == status
        });
    };
    wait_for_status(200);
    assert_eq!(
        get(demo.publish, "/content/wayfare/en/walks/one.html").status,
        200,
        "applied in one commit"
    );
    assert_eq!(demo.post("/content/wayfare/en/walks", ":operation=deactivate").status, 200);
    wait_for_status(404);
    assert_eq!(demo.get_as_admin(url).status, 200, "the author keeps it");
}

#[test]
fn jobs_wait_for_a_publisher_that_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let (author, publish, dispatcher) = (demo.author, demo.publish, demo.dispatcher);
    let agent = "/etc/replication/agents.author/publish/jcr:content";
    let elsewhere = crate::program::free_address();
    assert_eq!(
        demo.post(agent, &format!("./transportUri=http://{elsewhere}/bin/receive")).status,
        200
    );
    assert_eq!(demo.post(&format!("{PAGE}/jcr:content"), "./jcr:title=Late+but+safe").status, 200);
    assert_eq!(demo.post(PAGE, ":operation=activate").status, 200);
    wait_until("the queue says why it is blocked", || {
        demo.get_as_admin("/api/v1/queue").text().contains("cannot be reached")
    });
    let health = get(author, "/health").text();
    assert!(health.contains("agent `publish` is blocked"), "{health}");
    // A crash loses nothing that was acknowledged.
    let home = demo.home.clone();
    demo.running.kill();
    let demo = Demo::start_at(&home, author, publish, dispatcher);
    assert!(demo.get_as_admin("/api/v1/queue").text().contains(PAGE));
    assert_eq!(
        demo.post(agent, &format!("./transportUri=http://{publish}/bin/receive")).status,
        200
    );
    // The job may have gone already; otherwise it need not wait for its next attempt.
    let queue = demo.get_as_admin("/api/v1/queue").text();
    let id = queue.split("\"id\":").nth(1).and_then(|rest| rest.split(',').next());
    if let Some(id) = id {
        demo.post(&format!("/api/v1/queue/retry?id={id}"), "");
    }
    poll_until(&demo, &format!("{PAGE}.html"), "Late but safe");
}

#[test]
fn everything_is_still_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    assert_eq!(demo.post(&format!("{PAGE}/jcr:content"), "./jcr:title=Kept").status, 200);
    let (author, publish, dispatcher, home) =
        (demo.author, demo.publish, demo.dispatcher, demo.home.clone());
    assert!(demo.running.stop(), "Ctrl-C ends it well");
    let demo = Demo::start_at(&home, author, publish, dispatcher);
    assert!(
        !demo.running.greeting.contains("imported"),
        "later starts import nothing: {}",
        demo.running.greeting
    );
    assert!(demo.get_as_admin(&format!("{PAGE}.html")).text().contains("Kept"));
    let link = demo.login_link();
    let path = link.strip_prefix(&format!("http://{author}")).unwrap().to_owned();
    let first = get(author, &path);
    assert!(
        first.header("set-cookie").is_some_and(|cookie| cookie.contains("HttpOnly")),
        "{}",
        first.head
    );
    assert!(get(author, &path).header("set-cookie").is_none(), "a login link works once");
}

#[test]
fn binaries_answer_ranges_and_conditions() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    for address in [demo.publish, demo.dispatcher] {
        let url = "/content/bench/bin100k.bin";
        let whole = get(address, url);
        assert_eq!((whole.status, whole.body.len()), (200, 102_400), "{}", whole.head);
        let range = [("Range", "bytes=100-199".to_owned())];
        let part = crate::program::ask(address, "GET", url, &range, b"").unwrap();
        assert_eq!(
            (part.status, part.body.as_slice()),
            (206, &whole.body[100..200]),
            "{}",
            part.head
        );
        let past = [("Range", "bytes=999999-".to_owned())];
        assert_eq!(crate::program::ask(address, "GET", url, &past, b"").unwrap().status, 416);
        let tag = whole.header("etag").expect("an entity tag").to_owned();
        let same =
            crate::program::ask(address, "GET", url, &[("If-None-Match", tag)], b"").unwrap();
        assert_eq!((same.status, same.body.len()), (304, 0));
        let head = crate::program::ask(address, "HEAD", url, &[], b"").unwrap();
        assert_eq!(
            (head.status, head.body.len(), head.header("content-length")),
            (200, 0, Some("102400"))
        );
    }
}

#[test]
fn what_visitors_see_can_always_be_taken_away() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let wait_for_status = |path: &str, status: u16| {
        wait_until(format_args!("{path} answers {status}"), || {
            get(demo.dispatcher, path).status == status
        });
    };
    // A page that is deleted goes from visitors too.
    let journal = "/content/wayfare/en/journal";
    wait_for_status(&format!("{PAGE}.html"), 200);
    assert_eq!(demo.post(PAGE, ":operation=delete").status, 200);
    wait_for_status(&format!("{PAGE}.html"), 404);
    let names = demo.get_as_admin(&format!("/api/v1/pages?path={journal}")).text();
    let names: serde_json::Value = serde_json::from_str(&names).unwrap();
    let other = names["items"][0]["path"].as_str().unwrap().to_owned();
    wait_for_status(&format!("{other}.html"), 200);
    // One that was moved stays at its old address until it is live at the new one.
    let moved = "/content/wayfare/en/moved";
    assert_eq!(demo.post(&other, &format!(":operation=move&:dest={moved}")).status, 200);
    assert_eq!(get(demo.dispatcher, &format!("{other}.html")).status, 200);
    assert_eq!(demo.post(moved, ":operation=activate").status, 200);
    wait_for_status(&format!("{moved}.html"), 200);
    wait_for_status(&format!("{other}.html"), 404);
    // Without an agent an activation is refused and notes nothing.
    let agent = "/etc/replication/agents.author/publish/jcr:content";
    assert_eq!(demo.post(agent, "./enabled=false").status, 200);
    let before = demo.get_as_admin(&format!("{moved}/jcr:content.json")).text();
    assert_eq!(demo.post(moved, ":operation=activate").status, 422);
    assert_eq!(demo.get_as_admin(&format!("{moved}/jcr:content.json")).text(), before);
}

#[test]
fn the_last_of_two_replication_requests_counts() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    for round in 0..4 {
        std::thread::scope(|scope| {
            for operation in ["activate", "deactivate"] {
                let demo = &demo;
                scope.spawn(move || {
                    assert_eq!(demo.post(PAGE, &format!(":operation={operation}")).status, 200)
                });
            }
        });
        wait_until("the queue is empty", || {
            !demo.get_as_admin("/api/v1/queue").text().contains(PAGE)
        });
        let content = demo.get_as_admin(&format!("{PAGE}/jcr:content.json")).text();
        let is_active = content.contains("\"cq:lastReplicationAction\":\"Activate\"");
        let status = get(demo.publish, &format!("{PAGE}.html")).status;
        assert_eq!(status, if is_active { 200 } else { 404 }, "round {round}: {content}");
    }
}

#[test]
fn a_precise_agent_names_every_url_that_shows_a_change_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let cache = OriginServer::start_constant(OriginResponse::with_status(200));
    let agent = "/etc/replication/agents.publish/flush";
    let settings =
        format!("./serializationType=precise&./transportUri=http://{}/flush", cache.addr());
    assert_eq!(demo.post(&format!("{agent}/jcr:content"), &settings).status, 200);
    assert_eq!(demo.post(agent, ":operation=activate").status, 200);
    let flush_of = |path: &str, after: usize| {
        wait_for(|| {
            let seen = cache.requests();
            let found = seen.iter().skip(after).find(|one| one.header("cq-handle") == Some(path));
            found.cloned().ok_or_else(|| format!("no flush of {path} came: {seen:?}"))
        })
    };
    // What a ledger does not know from its start on goes with the first change.
    assert_eq!(flush_of("/", 0).header("cq-action"), Some("Delete"));
    let activate = |title: &str| {
        let content = format!("{PAGE}/jcr:content");
        assert_eq!(demo.post(&content, &format!("./jcr:title={title}")).status, 200);
        assert_eq!(demo.post(PAGE, ":operation=activate").status, 200);
    };
    // None of the pages below was drawn since, so that the next flush of the page is about the next title.
    activate("One");
    wait_until("the publisher shows the first title", || {
        get(demo.publish, &format!("{PAGE}/jcr:content.json")).text().contains("\"One\"")
    });
    let urls = ["", "/journal", "/journal/night-train-to-lisbon", "/contact", "/about"]
        .map(|name| format!("/content/wayfare/en{name}.html"));
    let draw = || urls.clone().map(|url| get(demo.publish, &url).text());
    let before = draw();
    let after = cache.request_count();
    activate("Another-title");
    let flush = flush_of(PAGE, after);
    let after = draw();
    assert_eq!(flush.header("cq-action-scope"), Some("ResourceOnly"));
    let body = String::from_utf8(flush.body.clone()).unwrap();
    let named: Vec<&str> = body.lines().filter(|line| urls.iter().any(|url| url == line)).collect();
    let differ = (0..urls.len()).filter(|at| before[*at] != after[*at]);
    let differ: Vec<&str> = differ.map(|at| urls[at].as_str()).collect();
    assert!(differ.contains(&&*format!("{PAGE}.html")), "{differ:?}");
    assert!(differ.iter().all(|url| named.contains(url)), "{differ:?} of {named:?}");
    assert!(named.len() < urls.len(), "{named:?}");
}
