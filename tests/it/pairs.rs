//! Pairs of instances: a dispatcher that takes flushes from publishers by their keys alone.

use std::net::SocketAddr;

use tympan_testkit::condition_wait::wait_until;

use crate::program::{Running, ask, free_address, post, run, run_ok};

const PAGE: &str = "/content/paired";

fn shows(address: SocketAddr, text: &str) -> bool {
    let answer = ask(address, "GET", &format!("{PAGE}.1.json"), &[], b"");
    answer.is_ok_and(|answer| answer.text().contains(text))
}

#[test]
fn a_publisher_flushes_a_dispatcher_with_the_key_of_their_pair() {
    let dir = tempfile::tempdir().unwrap();
    let [author_at, publish_at, dispatcher_at] = [(); 3].map(|()| free_address());
    let [author_home, publish_home, dispatcher_home] =
        ["author", "publish", "dispatcher"].map(|name| dir.path().join(name));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    for home in [&author_home, &publish_home, &dispatcher_home] {
        std::fs::create_dir_all(home).unwrap();
        std::fs::write(home.join("replication.key"), "the key of this farm").unwrap();
    }
    // No address may flush.
    let config = format!(
        "/farms {{ /site {{ /clientheaders {{ \"*\" }} /virtualhosts {{ \"*\" }}\n\
         /renders {{ /r {{ /hostname \"127.0.0.1\" /port \"{}\" }} }}\n\
         /filter {{ /0001 {{ /type \"allow\" /url \"*\" }} }}\n\
         /cache {{ /docroot \"{}\" /rules {{ /0000 {{ /glob \"*\" /type \"allow\" }} }}\n\
         /invalidate {{ /0000 {{ /glob \"*\" /type \"allow\" }} }}\n\
         /allowedClients {{ /0000 {{ /glob \"*\" /type \"deny\" }} }} }} }} }}\n",
        publish_at.port(),
        dispatcher_home.join("cache").display()
    );
    std::fs::create_dir_all(dispatcher_home.join("cache")).unwrap();
    std::fs::write(dispatcher_home.join("dispatcher.any"), config).unwrap();
    let start = |role: &str, home: &std::path::Path, address: SocketAddr| {
        Running::start(&[role, "--home", &text(home), "--listen", &address.to_string()])
    };
    let author = start("author", &author_home, author_at);
    let publish = start("publish", &publish_home, publish_at);
    let dispatcher = start("dispatcher", &dispatcher_home, dispatcher_at);
    let file = dir.path().join("cache.pair");
    let make = ["pair", "cache", "--home", &text(&publish_home), "--purpose", "flush", "--out"];
    run_ok(&[&make[..], &[&text(&file)]].concat());
    run_ok(&["pair", "--accept", &text(&file), "--home", &text(&dispatcher_home)]);
    assert_eq!(run_ok(&["pair", "--home", &text(&dispatcher_home)]), "cache: flush\n");
    let again = run(&[&make[..], &[&text(&dir.path().join("again.pair"))]].concat());
    assert_eq!(again.status.code(), Some(2), "the name is taken");
    let password = std::fs::read_to_string(author_home.join("initial-password")).unwrap();
    let post_ok = |path: &str, form: &str| {
        let answer = post(author_at, password.trim(), path, form);
        assert!((200..300).contains(&answer.status), "{path}: {}", answer.text());
    };
    let agent = |path: &str, more: &str| {
        let form = format!(
            "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=nt:unstructured\
             &./jcr:content/enabled=true&{more}"
        );
        post_ok(path, &form);
    };
    let target = format!("./jcr:content/transportUri=http://{publish_at}/bin/receive");
    agent("/etc/replication/agents.author/publish", &target);
    let target = format!(
        "./jcr:content/serializationType=flush\
         &./jcr:content/transportUri=http://{dispatcher_at}/dispatcher/invalidate.cache"
    );
    agent("/etc/replication/agents.publish/cache", &target);
    post_ok("/etc/replication/agents.publish/cache", ":operation=activate");
    let publish_title = |title: &str| {
        let form = format!(
            "./jcr:primaryType=cq:Page&./jcr:content/jcr:primaryType=cq:PageContent\
             &./jcr:content/jcr:title={title}"
        );
        post_ok(PAGE, &form);
        post_ok(PAGE, ":operation=activate");
    };
    publish_title("First");
    wait_until("the page is there", || shows(dispatcher_at, "First"));
    publish_title("Second");
    wait_until("the page is flushed", || shows(dispatcher_at, "Second"));
    // Nobody else flushes, whatever the address.
    let flush = [("CQ-Action", "Activate".to_owned()), ("CQ-Handle", PAGE.to_owned())];
    let flush = ask(dispatcher_at, "POST", "/dispatcher/invalidate.cache", &flush, b"");
    assert_eq!(flush.unwrap().status, 403);
    assert!(author.stop() && publish.stop() && dispatcher.stop());
}
