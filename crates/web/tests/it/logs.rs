//! `request.log` and `access.log`: writing, reading, the writer's thread.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use tympan_web::log_file::LogFile;
use tympan_web::log_time::LogTime;
use tympan_web::request_log::{RequestLogEvent, RequestLogLine, RequestNumberSequence};
use tympan_web::{access_log, request_log};

#[track_caller]
fn reads(text: &str, number: u64, event: &RequestLogEvent) {
    let line = request_log::parse_request_log_line(text).unwrap();
    assert_eq!((line.request_number, &line.event), (number, event), "{text}");
    assert_eq!(line.logged_at.unix_seconds(), 1_795_222_216);
    assert_eq!(line.to_string(), text);
}

#[test]
fn real_request_lines_read_and_write_back() {
    let entry = RequestLogEvent::Entry {
        method: "POST".into(),
        target: "/content/bench/p1?a=b".into(),
        version: "HTTP/1.1".into(),
    };
    reads("21/Nov/2026:00:50:16 +0000 [2] -> POST /content/bench/p1?a=b HTTP/1.1", 2, &entry);
    reads("21/Nov/2026:01:50:16 +0100 [2] -> POST /content/bench/p1?a=b HTTP/1.1", 2, &entry);
    reads("20/Nov/2026:19:20:16 -0530 [2] -> POST /content/bench/p1?a=b HTTP/1.1", 2, &entry);
    let exit = |media_type: Option<&str>| RequestLogEvent::Exit {
        status: 201,
        media_type: media_type.map(str::to_owned),
        elapsed: Duration::from_millis(98),
        sample: None,
    };
    reads(
        "21/Nov/2026:00:50:16 +0000 [41246] <- 201 text/html 98ms",
        41246,
        &exit(Some("text/html")),
    );
    reads("21/Nov/2026:00:50:16 +0000 [7] <- 201 - 98ms", 7, &exit(None));
    reads(
        "21/Nov/2026:00:50:16 +0000 [7] <- 201 text/html; charset=utf-8 98ms",
        7,
        &exit(Some("text/html; charset=utf-8")),
    );
}

#[test]
fn the_mark_of_a_sample_stands_as_a_parameter_of_the_type() {
    let exit = |media_type: Option<&str>, sample: Option<&str>| RequestLogEvent::Exit {
        status: 200,
        media_type: media_type.map(str::to_owned),
        elapsed: Duration::from_millis(98),
        sample: sample.map(str::to_owned),
    };
    let line = |kind: &str| format!("21/Nov/2026:00:50:16 +0000 [7] <- 200 {kind} 98ms");
    reads(&line("text/html; lab=1a2b-17"), 7, &exit(Some("text/html"), Some("1a2b-17")));
    reads(&line("-; lab=1a2b-17"), 7, &exit(None, Some("1a2b-17")));
    // What is no mark is a parameter as any other, and a type that looks like one is written otherwise.
    let parsed = |kind: &str| request_log::parse_request_log_line(&line(kind)).unwrap();
    for other in ["a/b; lab=", "a/b; lab=x", "a/b; lab=a-1 ", "a/b; lab=\u{e4}-1"] {
        assert_eq!(parsed(other).event, exit(Some(other), None), "{other}");
    }
    let mut like = parsed("a/b");
    like.event = exit(Some("a/b; lab=r-1"), None);
    assert_eq!(like.to_string(), line("a/b\\x3b lab=r-1"));
    assert_eq!(request_log::parse_request_log_line(&like.to_string()), Ok(like));
}

#[test]
fn cut_and_foreign_lines_are_malformed() {
    let whole = "21/Nov/2026:00:50:16 +0000 [2] <- 200 text/html 98ms";
    for length in 0..whole.len() {
        assert!(
            request_log::parse_request_log_line(&whole[..length]).is_err(),
            "{}",
            &whole[..length]
        );
    }
    for text in [
        "21/Foo/2026:00:50:16 +0000 [2] <- 200 text/html 98ms",
        "21/Nov/2026:00:50:16 +0000 [x] <- 200 text/html 98ms",
        "21/Nov/2026:00:50:16 +0000 [2] ?? 200 text/html 98ms",
        "\u{e4}\u{e4}\u{e4}",
    ] {
        assert!(request_log::parse_request_log_line(text).is_err(), "{text}");
    }
}

#[test]
fn access_lines_read_with_and_without_brackets() {
    let sling = "127.0.0.1 - admin 21/Nov/2026:00:50:16 +0000 \"POST /a HTTP/1.1\" 201 1285 \"-\" \"curl/7.88.1\"";
    let line = access_log::parse_access_log_line(sling).unwrap();
    assert_eq!(line.to_string(), sling);
    assert_eq!(line.user.as_deref(), Some("admin"));
    assert_eq!((line.status, line.body_bytes), (201, Some(1285)));
    assert_eq!((line.referer.as_deref(), line.user_agent.as_deref()), (None, Some("curl/7.88.1")));
    let apache = sling.replace("21/Nov", "[21/Nov").replace("+0000", "+0000]");
    assert_eq!(access_log::parse_access_log_line(&apache), Ok(line));
    let common = "10.0.0.1 - - [21/Nov/2026:00:50:16 +0000] \"GET / HTTP/1.1\" 304 -";
    let line = access_log::parse_access_log_line(common).unwrap();
    assert_eq!((line.body_bytes, line.user_agent, line.user), (None, None, None));
}

#[test]
fn a_line_break_in_a_value_starts_no_line() {
    let line = RequestLogLine {
        logged_at: LogTime::from_system(SystemTime::UNIX_EPOCH),
        request_number: 1,
        event: RequestLogEvent::Entry {
            method: "GET".into(),
            target: "/x\r\n01/Jan/1970:00:00:00 +0000 [2] <- 200 - 1ms".into(),
            version: "HTTP/1.1".into(),
        },
    };
    assert_eq!(line.to_string().lines().count(), 1);
}

fn any_time() -> impl Strategy<Value = LogTime> {
    (0_u64..4_000_000_000)
        .prop_map(|at| LogTime::from_system(SystemTime::UNIX_EPOCH + Duration::from_secs(at)))
}

fn any_event() -> impl Strategy<Value = RequestLogEvent> {
    prop_oneof![
        ("[A-Z]{1,7}", any::<String>(), "HTTP/1.[01]").prop_filter_map(
            "a target is not empty",
            |(method, target, version)| {
                (!target.is_empty()).then_some(RequestLogEvent::Entry { method, target, version })
            }
        ),
        (
            100_u16..600,
            prop::option::of("[ -~]{1,30}|-|\\PC{1,8}|a(; lab=r-1){0,2}(; lab=)?"),
            0_u64..10_000_000,
            prop::option::of("[0-9a-zA-Z]{1,24}-[0-9]{1,16}"),
        )
            .prop_map(|(status, media_type, elapsed, sample)| RequestLogEvent::Exit {
                status,
                media_type,
                elapsed: Duration::from_millis(elapsed),
                sample,
            }),
    ]
}

proptest! {
    #[test]
    fn request_lines_survive_any_value(at in any_time(), request in any::<u64>(), event in any_event()) {
        let line = RequestLogLine { logged_at: at, request_number: request, event };
        let text = line.to_string();
        prop_assert!(!text.chars().any(char::is_control));
        prop_assert_eq!(request_log::parse_request_log_line(&text), Ok(line));
    }

    #[test]
    fn access_lines_survive_any_value(
        at in any_time(),
        words in ("\\PC{1,12}|-", prop::option::of("\\PC{1,12}|-"), any::<String>()),
        status in 100_u16..600,
        bytes in prop::option::of(any::<u64>()),
        quoted in (prop::option::of(any::<String>()), prop::option::of(any::<String>())),
    ) {
        let line = access_log::AccessLogLine {
            client: words.0, user: words.1, completed_at: at, request: words.2, status, body_bytes: bytes,
            referer: quoted.0, user_agent: quoted.1,
        };
        let text = line.to_string();
        prop_assert!(!text.chars().any(char::is_control));
        prop_assert_eq!(access_log::parse_access_log_line(&text), Ok(line));
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in any::<String>()) {
        let _ = request_log::parse_request_log_line(&text).is_ok();
        let _ = access_log::parse_access_log_line(&text).is_ok();
    }
}

#[test]
fn lines_of_several_threads_arrive_whole_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("request.log");
    let log = LogFile::open(&file).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let log = log.clone();
            scope.spawn(move || (0..500).for_each(|line| log.write(format!("{thread} {line}"))));
        }
    });
    log.flush();
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len() as u64 + log.dropped_lines(), 2000);
    for thread in 0..4 {
        let numbers: Vec<usize> = lines
            .iter()
            .filter_map(|line| line.strip_prefix(&format!("{thread} "))?.parse().ok())
            .collect();
        assert!(numbers.is_sorted(), "thread {thread}");
    }
}

#[test]
fn a_rotated_log_goes_on_in_a_new_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("request.log");
    let log = LogFile::open(&file).unwrap();
    log.write("before");
    log.flush();
    std::fs::rename(&file, folder.path().join("request.log.1")).unwrap();
    log.reopen();
    log.write("after");
    drop(log);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "after\n");
    assert_eq!(std::fs::read_to_string(folder.path().join("request.log.1")).unwrap(), "before\n");
}

#[test]
fn numbers_count_from_one() {
    let numbers = RequestNumberSequence::default();
    assert_eq!([numbers.take_next(), numbers.take_next()], [1, 2]);
}

#[test]
fn a_log_in_a_missing_folder_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("absent/request.log");
    let error = LogFile::<String>::open(&file).unwrap_err();
    assert!(error.to_string().contains("absent/request.log"), "{error}");
}

/// The time that the next test's log reads.
static SECONDS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);

fn clock() -> std::time::SystemTime {
    let seconds = SECONDS.load(std::sync::atomic::Ordering::SeqCst);
    std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds)
}

#[test]
fn each_day_has_a_file_and_old_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("request.log");
    std::fs::write(folder.path().join("request.log.gz"), "not ours").unwrap();
    let rotation =
        tympan_web::log_file::LogRotation { max_rotated_files: 2, max_bytes: None, clock };
    SECONDS.store(20_777 * 86_400, std::sync::atomic::Ordering::SeqCst);
    let log = LogFile::open_daily(&file, rotation).unwrap();
    for day in 0..5_u64 {
        SECONDS.store((20_777 + day) * 86_400 + 86_399, std::sync::atomic::Ordering::SeqCst);
        log.write(format!("line of day {day}"));
        log.flush();
    }
    drop(log);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
    // 20 November 2026 is day 20777.
    assert_eq!(read("request.log").as_deref(), Some("line of day 4\n"));
    assert_eq!(read("request.log.2026-11-23").as_deref(), Some("line of day 3\n"));
    assert_eq!(read("request.log.2026-11-22").as_deref(), Some("line of day 2\n"));
    assert_eq!(read("request.log.2026-11-21"), None);
    assert!(read("request.log.gz").is_some());
}

#[test]
fn a_large_file_is_put_aside_on_its_day_and_the_oldest_go() {
    fn noon() -> std::time::SystemTime {
        // 20 November 2026.
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(20_777 * 86_400 + 43_200)
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("request.log");
    let rotation = tympan_web::log_file::LogRotation {
        max_rotated_files: 3,
        max_bytes: Some(16),
        clock: noon,
    };
    for number in 0..14 {
        // A new process goes on where the last one was.
        let log = LogFile::open_daily(&file, rotation).unwrap();
        log.write(format!("line {number:02}"));
        log.write(format!("more {number:02}"));
        drop(log);
    }
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).ok();
    assert_eq!(read("request.log").as_deref(), Some("line 13\nmore 13\n"));
    // The file that stood at the start has the day of its own last change, so only the order of the rest is fixed.
    let mut names: Vec<String> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 4, "{names:?}");
    let kept: Vec<String> = names.iter().filter_map(|name| read(name)).collect();
    for number in 10..14 {
        let text = format!("line {number}\nmore {number}\n");
        assert!(kept.contains(&text), "{names:?} {kept:?}");
    }
}
