//! What administrators are told of drawing, and what they ask of kept fragments: nobody else is told or heard.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::program::{Answer, Demo, ask, basic, get};

const PAGE: &str = "/content/wayfare/en/journal.html";
const FOOTER: &str = "/apps/wayfare/components/footer";

/// Asks an instance as its first user.
fn by_admin(address: SocketAddr, password: &str, path: &str) -> Answer {
    ask(address, "GET", path, &[("Authorization", basic("admin", password))], b"").unwrap()
}

/// Returns how the fragments of a page were looked up: found, not found, never to be kept.
fn counts(answer: &Answer) -> (u64, u64, u64) {
    assert_eq!(answer.status, 200, "{}", answer.head);
    let counts = answer.header("x-tympan-fragments").unwrap_or_else(|| panic!("{}", answer.head));
    let count = |name: &str| -> u64 {
        let word = counts.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap().parse().unwrap()
    };
    (count("hit"), count("miss"), count("never"))
}

#[test]
fn administrators_look_past_kept_fragments_renew_and_drop_them() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let password = std::fs::read_to_string(demo.home.join("publish/initial-password")).unwrap();
    let look = |flex: &str| {
        by_admin(demo.publish, password.trim(), &format!("{PAGE}?tympan-profile=1{flex}"))
    };
    assert_eq!(demo.post(FOOTER, "cache=always").status, 200);
    assert_eq!(demo.post(FOOTER, ":operation=activate").status, 200);
    let began = Instant::now();
    while counts(&look("")).0 == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the footer is never kept");
        std::thread::yield_now();
    }
    let (hits, misses, never) = counts(&look(""));
    assert_eq!((hits, misses), (1, 0), "the footer is kept, and nothing else");

    assert_eq!(counts(&look("&_flex=nocache")), (0, 0, never + 1), "it is drawn past the cache");
    assert_eq!(counts(&look("")), (1, 0, never), "which is as it was");
    assert_eq!(counts(&look("&_flex=recompile")), (0, 1, never), "it is drawn anew and kept");
    assert_eq!(counts(&look("")), (1, 0, never));
    for clearing in ["clearvariations", "clearcache", "purge"] {
        assert_eq!(
            counts(&look(&format!("&_flex=online,{clearing}"))),
            (0, 1, never),
            "{clearing}"
        );
        assert_eq!(counts(&look("")), (1, 0, never), "after {clearing}");
    }

    // Nobody else is heard: what a visitor asks for drops nothing, and he is told nothing.
    let visitor = get(demo.publish, &format!("{PAGE}?_flex=clearcache&tympan-profile=1"));
    assert_eq!((visitor.status, visitor.header("x-tympan-fragments")), (200, None));
    assert_eq!(visitor.header("server-timing"), None, "{}", visitor.head);
    assert_eq!(counts(&look("")), (1, 0, never), "what a visitor wishes means nothing");
}

#[test]
fn what_requests_took_is_drawn_for_administrators_alone() {
    const HTML: &str = "/system/timing.html";
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(&dir.path().join("demo"));
    let password = std::fs::read_to_string(demo.home.join("publish/initial-password")).unwrap();
    assert_eq!(get(demo.publish, PAGE).status, 200);
    for (address, password, role) in
        [(demo.publish, password.trim(), "publish"), (demo.author, demo.password(), "author")]
    {
        assert_eq!(get(address, HTML).status, 401, "{role}");
        assert_eq!(by_admin(address, "wrong", HTML).status, 401, "{role}");
        assert_eq!(by_admin(address, password, PAGE).status, 200, "{role}");
        let page = by_admin(address, password, HTML);
        assert_eq!(page.status, 200, "{role}: {}", page.head);
        assert_eq!(page.header("cache-control"), Some("private, no-store"), "{}", page.head);
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.contains("default-src 'none'"), "{policy}");
        let text = page.text().replace("&#x2f;", "/");
        assert!(text.contains(&format!("What requests took: {role}")), "{text}");
        // The page, its flames, and the same components in the table.
        assert!(text.contains(PAGE) && text.contains("<rect"), "{role}: {text}");
        let script = "/apps/wayfare/components/footer/footer.html";
        let (flames, table) = text.split_once("<h2>Components</h2>").unwrap();
        assert!(flames.contains(script) && table.contains(script), "{role}: {text}");
    }
}
