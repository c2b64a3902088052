//! ab's text: printed as ab prints, and read from ab's own pages, old and new.

use tympan_lab::ab::{Ab, parse, parse_all};
use tympan_testkit::origin::{Answer, Gate, Origin};

/// The runs of source 004, as its page gives them.
const DIARY: &str = include_str!("../data/opencms-tuning.txt");

#[test]
fn the_runs_of_a_tuning_diary_are_compared_only_where_they_may_be() {
    let runs = parse_all(DIARY);
    let rates: Vec<f64> = runs.iter().map(|run| run.rate).collect();
    assert_eq!(rates, [10.48, 18.52, 65.44, 79.92, 108.49]);
    let told: Vec<String> =
        runs.windows(2).map(|pair| pair[1].compare(&pair[0]).to_string()).collect();
    assert_eq!(told[0], "1.77x");
    assert_eq!(
        told[1],
        "not comparable: document path `/portal/index.html` -> `/portal/opportunity/become_a_consultant/new_car/`, document length 5986 -> 7595"
    );
    assert_eq!(told[2], "1.22x");
    assert!(told[3].contains("concurrency 10 -> 200"), "{}", told[3]);
}

#[test]
fn every_line_of_an_old_text_reads() {
    let run = parse(DIARY).unwrap();
    assert_eq!(
        (run.software.as_str(), run.host.as_str(), run.port),
        ("Apache-Coyote/1.1", "dev1.local", 80)
    );
    assert_eq!((run.length, run.concurrency, run.complete, run.failed), (Some(5986), 10, 1000, 0));
    assert_eq!((run.seconds, run.per_request, run.across), (95.435_580, 954.356, 95.436));
    assert_eq!((run.transferred, run.html, run.transfer_rate), (6_260_000, 5_986_000, 64.05));
    let names: Vec<&str> = run.times.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Connect", "Processing", "Waiting", "Total"]);
    assert_eq!(run.times[3].1, [96.0, 952.0, 2084.1, 676.0, 36504.0]);
    let percents: Vec<u32> = run.percentiles.iter().map(|(percent, _)| *percent).collect();
    assert_eq!(percents, [50, 66, 75, 80, 90, 95, 98, 99, 100]);
    assert_eq!(
        (run.percentile(50), run.percentile(99), run.percentile(100)),
        (Some(676), Some(8735), Some(36504))
    );
}

#[test]
fn a_run_prints_a_text_that_reads_back() {
    let origin = Origin::start(|_| Answer::html("0123456789").header("Server", "test/1"));
    let ab = Ab {
        url: format!("http://{}/page.html?q=1", origin.addr()),
        requests: 40,
        concurrency: 4,
        ..Ab::default()
    };
    let run = ab.run().unwrap();
    let text = run.to_string();
    let read = parse(&text).unwrap();
    assert_eq!(
        (read.path.as_str(), read.length, read.port),
        ("/page.html?q=1", Some(10), origin.addr().port())
    );
    assert_eq!((read.complete, read.failed, read.html, read.concurrency), (40, 0, 400, 4));
    assert_eq!(read.software, "test/1");
    assert_eq!((read.times.len(), read.percentiles.len()), (4, 9));
    let order = [
        "Server Software:",
        "Server Hostname:",
        "Server Port:",
        "Document Path:",
        "Document Length:",
        "Concurrency Level:",
        "Time taken for tests:",
        "Complete requests:",
        "Failed requests:",
        "Total transferred:",
        "HTML transferred:",
        "Requests per second:",
        "Time per request:",
        "Transfer rate:",
        "Connection Times (ms)",
        "Percentage of the requests served",
    ];
    let places: Vec<usize> = order.iter().map(|line| text.find(line).expect(line)).collect();
    assert!(places.is_sorted(), "{text}");
    let seen = origin.seen();
    assert_eq!(seen.len(), 40);
    assert_eq!(seen[0].header("user-agent"), Some("ApacheBench/2.3"));
    assert_eq!(run.csv().lines().count(), 101);
    assert_eq!(run.gnuplot().lines().count(), 41);
}

#[test]
fn answers_of_another_length_are_failures_only_where_that_is_asked() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let origin = Origin::start(move |_| {
        let turn = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Answer::html("x".repeat(5 + turn % 2))
    });
    let url = format!("http://{}/", origin.addr());
    let plain = Ab { url: url.clone(), requests: 10, ..Ab::default() }.run().unwrap();
    assert_eq!((plain.failed(), plain.varying_lengths()), (0, 5));
    let strict = Ab { url, requests: 10, strict: true, ..Ab::default() }.run().unwrap();
    assert_eq!(strict.failed(), 5);
    assert!(strict.to_string().contains("   (Connect: 0, Receive: 0, Length: 5, Exceptions: 0)"));
}

/// Two connections, each with a first answer of its own length; all but the very first answer differ from it.
#[test]
fn lengths_are_held_against_the_first_answer_of_the_run() {
    let count = std::sync::atomic::AtomicUsize::new(0);
    let (first_is_received, both_go_on) = (Gate::default(), Gate::default());
    let origin = Origin::start(move |_| {
        let turn = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        match turn {
            // The other connection's: it waits until the first has its answer, and asks again.
            1 => first_is_received.pass(),
            2 => {
                first_is_received.open();
                both_go_on.pass();
            }
            3 => both_go_on.open(),
            _ => {}
        }
        Answer::html("x".repeat(5 + turn.min(2)))
    });
    let url = format!("http://{}/", origin.addr());
    let ab = Ab { url, requests: 9, concurrency: 2, strict: true, ..Ab::default() };
    let run = ab.run().unwrap();
    let text = run.to_string();
    assert!(text.contains("Document Length:        5 bytes"), "{text}");
    assert!(text.contains("   (Connect: 0, Receive: 0, Length: 8, Exceptions: 0)"), "{text}");
}

#[test]
fn keep_alive_works_with_chunked_answers() {
    let origin = Origin::start(|_| Answer::status(404).body("no"));
    let ab =
        Ab { url: format!("{}/x", origin.addr()), requests: 12, keep_alive: true, ..Ab::default() };
    let text = ab.run().unwrap().to_string();
    assert!(text.contains("Keep-Alive requests:    12"), "{text}");
    assert!(text.contains("Non-2xx responses:      12"), "{text}");
}
