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

/// A row of the table of goals.
#[derive(Debug)]
pub(crate) struct Row {
    /// The name that `ROWS` takes.
    pub(crate) name: &'static str,
    /// What it measures.
    pub(crate) about: &'static str,
    /// Measures it; the message of a failure says why there are no figures.
    pub(crate) measure: fn(&mut Context) -> Outcome<Vec<Figure>>,
}

/// All rows, in the order of the table.
pub(crate) const ROWS: &[Row] = &[
    Row { name: "S1", about: "page save: chunks, bytes, syncs, time", measure: commit::measure },
    Row { name: "S2", about: "bytes written for a page save", measure: written::measure },
    Row { name: "S3", about: "64 writers against one", measure: writers::measure },
    Row { name: "S4", about: "warm reads of pages and nodes", measure: read::measure },
    Row { name: "S5", about: "chunks loaded by a difference", measure: diff::measure },
    Row { name: "S6", about: "folders of many children", measure: children::measure },
    Row { name: "S7", about: "disk after load and after many saves", measure: disk::measure },
    Row { name: "S8", about: "bytes and time of a branch", measure: branch::measure },
    Row {
        name: "S9",
        about: "saves while garbage is collected; opening; units of work beside Oak's",
        measure: collect::measure,
    },
    Row { name: "C1", about: "install of a content package", measure: install::measure },
    Row { name: "C2", about: "indexed query and scan", measure: query::measure },
    Row {
        name: "C3",
        about: "full text: searching, catching up, building",
        measure: search::measure,
    },
    Row { name: "C4", about: "access checks with 1,000 policies", measure: access::measure },
    Row { name: "C5", about: "start and memory of a publisher", measure: start::measure },
    Row {
        name: "C6",
        about: "changes told through kills of the author",
        measure: changes::measure,
    },
    Row {
        name: "C7",
        about: "editors who save and list among 100,000 pages",
        measure: editors::measure,
    },
    Row { name: "R1", about: "uncached page and its JSON at publish", measure: render::measure },
    Row { name: "R2", about: "all pages of the sample site, uncached", measure: pages::measure },
    Row { name: "R3", about: "a page of 30 kept components", measure: fragment::measure },
    Row { name: "R4", about: "dependency record against a render", measure: record::measure },
    Row {
        name: "R4/timing",
        about: "taking times and escaping against a render",
        measure: timing::measure,
    },
    Row {
        name: "R5",
        about: "published until visible through the dispatcher",
        measure: visible::measure,
    },
    Row {
        name: "R6",
        about: "11,000 users, a page over a slow back end among them",
        measure: crowd::measure,
    },
    Row {
        name: "CROWD",
        about: "200 and 2,000 at once on uncached pages",
        measure: crowd::measure_at_once,
    },
    Row { name: "DIARY", about: "a tuning diary, step by step", measure: diary::measure },
    Row {
        name: "R7",
        about: "pages drawn anew for a change among 10,000",
        measure: fresh::measure,
    },
    Row {
        name: "R7/sweep",
        about: "a title on 10,000 pages, until the dispatcher holds no old one",
        measure: sweep::measure,
    },
    Row {
        name: "RISK1",
        about: "50 ledger rows for each render, in SQLite",
        measure: ledger::measure,
    },
    Row {
        name: "B1",
        about: "downloads with and without a composite store",
        measure: composite::measure,
    },
    Row { name: "B2", about: "100 KB binary at publish", measure: binary::measure },
    Row { name: "A1", about: "four renditions of a 24-megapixel JPEG", measure: asset::measure },
    Row { name: "A2", about: "uploads until their renditions are done", measure: upload::measure },
    Row { name: "A3", about: "editors who save while assets are uploaded", measure: peak::measure },
    Row { name: "A4", about: "empty durable jobs", measure: jobs::measure },
    Row {
        name: "D1",
        about: "cached page through the dispatcher",
        measure: dispatcher::measure_page,
    },
    Row {
        name: "D2",
        about: "cached 100 KB picture through the dispatcher",
        measure: dispatcher::measure_picture,
    },
    Row {
        name: "D3",
        about: "cached page and picture over TLS, HTTP/1.1 and HTTP/2, and handshakes",
        measure: tls::measure,
    },
    Row { name: "D4", about: "rules of a farm in the cloud", measure: storm::measure_rules },
    Row { name: "D6", about: "a storm of flushes beside visitors", measure: storm::measure_storm },
    Row { name: "D8", about: "start and memory before many files", measure: storm::measure_start },
    Row { name: "L1", about: "lab: a plain page beside wrk, oha and k6", measure: lab::plain },
    Row { name: "L2", about: "lab: a plan with data beside plain wrk", measure: lab::plan },
    Row {
        name: "L5",
        about: "lab: arrivals at half of what the server gives",
        measure: lab_open::fidelity,
    },
    Row { name: "L6", about: "lab: a server frozen for a second", measure: lab_open::stall },
    Row { name: "L3", about: "lab: source 001's plan beside JMeter", measure: lab_jmeter::plan },
    Row {
        name: "L7",
        about: "lab: a report from 1,000,000 rows beside jmeter -g",
        measure: lab_jmeter::report,
    },
    Row { name: "L8", about: "lab: four agents beside one process", measure: lab::agents },
    Row {
        name: "K1",
        about: "first save of folders; memory and size (K8)",
        measure: vault::measure_full,
    },
    Row {
        name: "K2",
        about: "save of folders where nothing changed",
        measure: vault::measure_unchanged,
    },
    Row {
        name: "K3",
        about: "save of a repository: nothing changed, and one edit",
        measure: vault_repository::measure,
    },
    Row { name: "K4", about: "save of folders, 1 % changed", measure: vault::measure_changed },
    Row {
        name: "K4/repository",
        about: "save of a repository, 1 % changed, beside its files in restic",
        measure: vault_repository::measure_changed,
    },
    Row { name: "K5", about: "restore of folders", measure: vault::measure_restore },
    Row { name: "K6", about: "vaults over a line", measure: vault_goals::measure_far },
    Row { name: "K7", about: "saves beside a load", measure: vault_goals::measure_load },
    Row {
        name: "ADMIN",
        about: "second listener while the main one is saturated",
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
