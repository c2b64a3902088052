//! The rows: each measures one subject and gives its figures.

mod access;
mod admin;
mod asset;
mod binary;
mod branch;
mod changes;
mod children;
mod collect;
mod commit;
mod composite;
mod crowd;
mod diary;
mod diff;
mod disk;
mod dispatcher;
mod editors;
mod fragment;
mod fresh;
mod htl;
mod http_cache;
mod install;
mod jobs;
mod lab;
mod lab_jmeter;
mod lab_open;
mod ledger;
mod oak;
mod open;
mod pages;
mod peak;
mod plain_index;
mod query;
mod read;
mod record;
mod render;
mod search;
mod start;
mod storm;
mod sweep;
mod timing;
mod tls;
mod upload;
mod vault;
mod vault_goals;
mod vault_repository;
mod visible;
mod writers;
mod written;

use crate::Outcome;
use crate::context::Context;
use crate::figure::Figure;

/// A row of the benchmarks.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name that `ROWS` takes.
    pub(crate) name: &'static str,
    /// One sentence that says what it compares; the page `docs/benchmarks.md` prints it.
    pub(crate) about: &'static str,
    /// Measures it; the message of a failure says why there are no figures.
    pub(crate) measure: fn(&mut Context) -> Outcome<Vec<Figure>>,
}

/// All rows, in the order of the table.
pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "S1",
        about: "Save of one page among 1,000,000 nodes: chunks, bytes, syncs, time against a bare append with fdatasync",
        measure: commit::measure,
    },
    Row {
        name: "S2",
        about: "Bytes written for that save, against SQLite, redb and LMDB",
        measure: written::measure,
    },
    Row {
        name: "S3",
        about: "Durable saves by 64 threads against one thread",
        measure: writers::measure,
    },
    Row {
        name: "S4",
        about: "CPU of warm reads of a page's 25 nodes and of one node, against SQLite, redb and LMDB",
        measure: read::measure,
    },
    Row {
        name: "S5",
        about: "Chunks that the difference of two states loads",
        measure: diff::measure,
    },
    Row {
        name: "S6",
        about: "Listing and adding children in folders of 100,000 and more, against a folder of 10",
        measure: children::measure,
    },
    Row {
        name: "S7",
        about: "Size of the store after loading 1,000,000 nodes, and after 10,000 saves",
        measure: disk::measure,
    },
    Row {
        name: "S8",
        about: "Bytes and time of a branch and of a staging clone",
        measure: branch::measure,
    },
    Row {
        name: "S9",
        about: "Saves during a garbage collection; opening after a stop and a crash; units of work against Oak",
        measure: collect::measure,
    },
    Row {
        name: "C1",
        about: "Installing a package of 2,730 nodes and 40 assets, against Sling",
        measure: install::measure,
    },
    Row {
        name: "C2",
        about: "Queries for 20 of 1,000,000 nodes, with and without an index",
        measure: query::measure,
    },
    Row {
        name: "C3",
        about: "Full text of 100,000 pages: first results, delay after a commit, building the index",
        measure: search::measure,
    },
    Row {
        name: "C4",
        about: "Access decisions with 1,000 policies, alone and in deep listings",
        measure: access::measure,
    },
    Row {
        name: "C5",
        about: "Start and memory of a publisher, and start of a staging clone",
        measure: start::measure,
    },
    Row {
        name: "C6",
        about: "10,000 changes read from the change feed through kills of the author",
        measure: changes::measure,
    },
    Row {
        name: "C7",
        about: "20 editors who save and list among 100,000 pages",
        measure: editors::measure,
    },
    Row {
        name: "R1",
        about: "Uncached pages and their JSON, against Sling and files in nginx",
        measure: render::measure,
    },
    Row {
        name: "R2",
        about: "Every page of the sample site, uncached, by the server's own clock",
        measure: pages::measure,
    },
    Row {
        name: "R3",
        about: "CPU of a page of 30 cached components, against rendering it",
        measure: fragment::measure,
    },
    Row {
        name: "R4",
        about: "CPU of recording dependencies, as a part of a render",
        measure: record::measure,
    },
    Row {
        name: "R4/timing",
        about: "CPU of timing components, as a part of a render; escaped outputs",
        measure: timing::measure,
    },
    Row {
        name: "R5",
        about: "Time from an activation until the dispatcher serves the page",
        measure: visible::measure,
    },
    Row {
        name: "R6",
        about: "11,000 users at a publisher, 1,000 of them on a page with a back end of 50 ms",
        measure: crowd::measure,
    },
    Row {
        name: "CROWD",
        about: "10,000 requests of 200 and 2,000 clients for uncached pages",
        measure: crowd::measure_at_once,
    },
    Row {
        name: "DIARY",
        about: "Source 004's tuning diary, and the fragment cache beside Wagtail's",
        measure: diary::measure,
    },
    Row {
        name: "R7",
        about: "Pages rendered again among 10,000 after one change",
        measure: fresh::measure,
    },
    Row {
        name: "R7/sweep",
        about: "Time until the dispatcher serves no old page after a change of 10,000 pages",
        measure: sweep::measure,
    },
    Row {
        name: "T1",
        about: "CPU of a page in HTL, against MiniJinja in this process and against Sling with the same scripts",
        measure: htl::measure,
    },
    Row {
        name: "RISK1",
        about: "CPU of writing 50 dependencies per render to SQLite",
        measure: ledger::measure,
    },
    Row {
        name: "B1",
        about: "Source 003: downloads of 100 KB pictures with and without a composite blob store",
        measure: composite::measure,
    },
    Row {
        name: "B2",
        about: "CPU of a file of 100 KB from publish, against nginx and Sling",
        measure: binary::measure,
    },
    Row {
        name: "A1",
        about: "CPU and memory of four renditions of a 24-megapixel JPEG, against vipsthumbnail, sharp and ImageMagick",
        measure: asset::measure,
    },
    Row {
        name: "A2",
        about: "Uploads until all renditions are ready, against vipsthumbnail",
        measure: upload::measure,
    },
    Row {
        name: "A3",
        about: "Save times of ten editors during uploads of 12 MB assets",
        measure: peak::measure,
    },
    Row { name: "A4", about: "Empty durable jobs of 256 callers", measure: jobs::measure },
    Row {
        name: "D1",
        about: "CPU of a cached 6 KB page, against nginx, Varnish and Apache",
        measure: dispatcher::measure_page,
    },
    Row {
        name: "D2",
        about: "CPU of a cached 100 KB picture, against nginx and Varnish",
        measure: dispatcher::measure_picture,
    },
    Row {
        name: "D3",
        about: "CPU of the same over TLS 1.3 by HTTP/1.1 and HTTP/2, and of handshakes",
        measure: tls::measure,
    },
    Row {
        name: "D4",
        about: "CPU of a cached page behind 60 filter rules, against one rule",
        measure: storm::measure_rules,
    },
    Row {
        name: "D6",
        about: "1,000 flushes in 10 s beside requests for an unrelated page",
        measure: storm::measure_storm,
    },
    Row {
        name: "D8",
        about: "Start and memory of a dispatcher with 1,000,000 cached files",
        measure: storm::measure_start,
    },
    Row {
        name: "D9",
        about: "Public HTTP cache tests that a farm with `/x-http` passes",
        measure: http_cache::measure,
    },
    Row {
        name: "L1",
        about: "Requests per CPU second of the load generator, against wrk, oha and k6",
        measure: lab::plain,
    },
    Row {
        name: "L2",
        about: "The same for a plan with CSV, cookie, headers, assertion and transaction",
        measure: lab::plan,
    },
    Row {
        name: "L5",
        about: "Open arrivals at half of the server's rate: lag, arrivals not sent",
        measure: lab_open::fidelity,
    },
    Row {
        name: "L6",
        about: "A server frozen for 1 s of 10: the reported 95th percentile against the true one",
        measure: lab_open::stall,
    },
    Row {
        name: "L3",
        about: "Source 001's plan in the lab and in JMeter: CPU and peak memory",
        measure: lab_jmeter::plan,
    },
    Row {
        name: "L7",
        about: "The HTML report from 1,000,000 result rows, against jmeter -g",
        measure: lab_jmeter::report,
    },
    Row {
        name: "L8",
        about: "Samples reported by four agents against one process",
        measure: lab::agents,
    },
    Row {
        name: "K1",
        about: "First save of a folder, against restic, and against tar with zstd; K8 is its memory and vault size",
        measure: vault::measure_full,
    },
    Row {
        name: "K2",
        about: "Save of an unchanged folder, against restic, borg and a walk with fd",
        measure: vault::measure_unchanged,
    },
    Row {
        name: "K3",
        about: "Save of a repository of 1,000,000 nodes with key and index in memory",
        measure: vault_repository::measure,
    },
    Row {
        name: "K4",
        about: "Save of a folder after 1 % of its files changed, against restic",
        measure: vault::measure_changed,
    },
    Row {
        name: "K4/repository",
        about: "Save of a repository after 1 % of its pages changed, against restic, and against a tenth of the content",
        measure: vault_repository::measure_changed,
    },
    Row {
        name: "K5",
        about: "Restore of a folder, against restic and against zstd with tar",
        measure: vault::measure_restore,
    },
    Row {
        name: "K6",
        about: "Saves over SFTP: 20 ms, 3 MB/s, queues of 1 to 64 MiB",
        measure: vault_goals::measure_far,
    },
    Row {
        name: "K7",
        about: "Saves during 80 % of an author's peak load, with `--beside` and without",
        measure: vault_goals::measure_load,
    },
    Row {
        name: "ADMIN",
        about: "Responses of the admin listener while the main one is saturated",
        measure: admin::measure,
    },
];

/// Returns the names asked for by the arguments and by `ROWS`; those of all rows without either.
pub(crate) fn names(arguments: &[String], variable: Option<&str>) -> Vec<String> {
    let asked = arguments.iter().map(String::as_str).chain(variable.unwrap_or_default().split(','));
    let asked: Vec<&str> = asked.map(str::trim).filter(|name| !name.is_empty()).collect();
    let all = || ROWS.iter().map(|row| row.name).collect();
    let names: Vec<&str> = if asked.is_empty() { all() } else { asked };
    names.into_iter().map(str::to_owned).collect()
}

/// Finds a row by its name.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name))
}

/// Says which rows there are.
pub(crate) fn known() -> String {
    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
    format!("there are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_name() {
        assert_eq!(names(&[], None).len(), ROWS.len());
        assert_eq!(names(&["D1".to_owned()], Some("s5, S1,")), ["D1", "s5", "S1"]);
        assert_eq!(find("s5").map(|row| row.name), Some("S5"));
        assert!(find("S99").is_none());
    }
}
