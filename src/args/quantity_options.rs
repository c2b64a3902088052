//! Checks that all options take the same forms of durations and sizes.

use super::TympanArgs;

/// Parses a line in which each `{}` stands for a text.
fn line_fault(line: &str, text: &str) -> Option<String> {
    let words: Vec<_> = line.split(' ').map(|word| word.replace("{}", text).into()).collect();
    TympanArgs::parse_line(&words).err().map(|error| error.to_string())
}

fn check(lines: &[&str], accepted: &[&str], refused: &[&str]) {
    for line in lines {
        for text in accepted {
            assert_eq!(line_fault(line, text), None, "{line}: {text}");
        }
        for text in refused {
            let fault = line_fault(line, text).unwrap_or_default();
            assert!(fault.contains(&format!("`{text}` is not a ")), "{line}: {text}: {fault}");
        }
    }
}

const DURATIONS: [&str; 9] =
    ["0", "0s", "250ms", "90s", "30m", "30min", "1h30m", "1.5h", "1d 12 h"];
const SIZES: [&str; 6] = ["0", "512 B", "64 MiB", "64MiB", "1.5 GB", "2 TiB"];

#[test]
fn durations_are_taken_in_every_form() {
    check(
        &[
            "tympan backup save -r V --beside H --finish-within {} D",
            "tympan backup prune -r V --grace {}",
            "tympan blobs gc --home H --grace {}",
            "tympan blobs gc --home H --window {}",
        ],
        &DURATIONS,
        &["", "30", "1 week", "h"],
    );
    let counted =
        ["tympan backup save -r V --retry-lock {} D", "tympan backup save -r V --delay-ms {} D"];
    check(&counted, &DURATIONS, &["", "1 week", "1.5"]);
    check(&counted, &["60"], &[]);
}

#[test]
fn sizes_are_taken_in_every_form() {
    let lines = [
        "tympan backup save -r V --upload-queue {} D",
        "tympan backup save -r V --tree-cache {} D",
    ];
    check(&lines, &SIZES, &["", "64", "64 mb", "1 KiB/s"]);
    // restic's form is taken, too: there a number alone is one of bytes.
    let restic = ["tympan backup save -r V --exclude-larger-than {} D"];
    check(&restic, &SIZES, &["", "64 mb"]);
    check(&restic, &["64", "20M"], &[]);
    let rates = [
        "tympan backup save -r V --limit-upload {} D",
        "tympan backup save -r V --limit-download {} D",
        "tympan backup save -r V --limit-read {} D",
    ];
    check(&rates, &["100", "2 MiB", "2 MiB/s", "1.5 GB/s"], &["0", "", "fast"]);
}
