//! `tympan repo check`: what is damaged, what that affects, and what a repair would do or has done.
//!
//! The stores are opened by themselves: a home whose content cannot be read any more is what this is for.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_blobs::BlobStore;
use tympan_content::{Date, IndexFault, IndexMaps};
use tympan_store::{
    BlobId, ChunkStore, Fate, Inspection, LocalStore, Repaired, RepairedPart, Report, inspect, key,
    plan, repair,
};

use crate::backend::Backend;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::home::{chain, require_home};
use crate::{config, say};

/// Lines of one list that are printed; the others are counted.
const SHOWN: usize = 100;

/// What is done about damage.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// It is named, with what a repair would do.
    Look,
    /// It is repaired.
    Repair,
}

/// The stores of a home.
struct Stores {
    local: Arc<LocalStore>,
    /// The packs with what they lie over, if the home is a clone.
    chunks: Arc<dyn ChunkStore>,
    blobs: Arc<dyn BlobStore>,
}

/// Re-hashes every record, walks every ref, lease and kept revision, looks for every blob that content names, and
/// repairs what is damaged if that is wanted.
pub(super) fn run(home: &Path, mode: Mode, json: bool) -> Outcome {
    require_home(home)?;
    let stores = Stores::open(home)?;
    let mut found = stores.inspect()?;
    let first = found.report.clone();
    let mut repaired = None;
    if !json {
        print_findings(&first);
    }
    let stores = if first.is_clean() {
        stores
    } else {
        let done = stores.repair(&found, mode)?;
        if !json {
            print_repaired(&done, mode);
        }
        repaired = Some(done);
        match mode {
            Mode::Look => stores,
            Mode::Repair => {
                // What is left is judged by what the next start sees.
                drop(stores);
                let stores = Stores::open(home)?;
                found = stores.inspect()?;
                stores
            }
        }
    };
    let mut missing = stores.check_blobs(&found.report);
    // Indexes can be compared with content that can be read.
    let indexes = if found.report.is_clean() { stores.check_indexes()? } else { Vec::new() };
    let wrong: Vec<String> = indexes.iter().map(ToString::to_string).collect();
    match mode {
        Mode::Look => {
            missing.extend(wrong.iter().map(|line| format!("{line}; `--repair` makes it again")))
        }
        Mode::Repair => {
            stores.remake_indexes(&indexes)?;
            missing.extend(stores.left_of(&indexes)?);
        }
    }
    let is_clean = found.report.is_clean() && missing.is_empty();
    if json {
        let mut body = report_json(&found.report, &missing);
        if let (Some(body), Some(repaired)) = (body.as_object_mut(), &repaired) {
            let damage = report_json(&first, &[]);
            body.insert("damage".to_owned(), damage);
            body.insert("repair".to_owned(), repaired_json(repaired, mode));
        }
        if let Some(body) = body.as_object_mut() {
            body.insert("indexes".to_owned(), indexes_json(&indexes));
        }
        say!("{body}");
    } else {
        if repaired.is_some() && mode == Mode::Repair {
            print_findings(&found.report);
        }
        if mode == Mode::Repair && !wrong.is_empty() {
            say!("indexes made again:");
            print_list(&wrong);
        }
        print_list(&missing);
        print_summary(&found.report, missing.len());
    }
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

impl Stores {
    fn open(home: &Path) -> Result<Self, Fault> {
        let config = config::read(home)?;
        let backend = Backend::open(home, &config)?;
        let blobs = backend.open_blobs(home, &config)?.store;
        let chunks = backend.chunks;
        let local = backend.local.ok_or_else(|| {
            Fault::usage("the repository of this home lies in a database, which checks itself")
        })?;
        Ok(Self { local, chunks, blobs })
    }

    fn inspect(&self) -> Result<Inspection, Fault> {
        inspect(&self.local, SystemTime::now()).map_err(|error| Fault::cannot_run(chain(&error)))
    }

    fn repair(&self, found: &Inspection, mode: Mode) -> Result<Repaired, Fault> {
        let maps = IndexMaps::new(&*self.local);
        let done = match mode {
            Mode::Look => plan(&self.local, found, &maps),
            Mode::Repair => repair(&self.local, found, &maps, SystemTime::now()),
        };
        done.map_err(|error| Fault::cannot_run(format!("the repair stopped: {}", chain(&error))))
    }

    /// Compares the index maps of all refs with those that their content makes.
    fn check_indexes(&self) -> Result<Vec<IndexFault>, Fault> {
        let compared = IndexMaps::new(&*self.chunks).compare();
        compared.map_err(|error| Fault::cannot_run(chain(&error)))
    }

    /// Makes the index maps of the refs anew that have a wrong one.
    fn remake_indexes(&self, faults: &[IndexFault]) -> Result<(), Fault> {
        let maps = IndexMaps::new(&*self.chunks);
        let names: BTreeSet<&str> = faults.iter().map(|fault| &*fault.name).collect();
        for name in names {
            let made = maps.remake(name, SystemTime::now());
            made.map_err(|error| Fault::cannot_run(chain(&error)))?;
        }
        Ok(())
    }

    /// Returns what is still wrong after indexes were made anew.
    fn left_of(&self, faults: &[IndexFault]) -> Result<Vec<String>, Fault> {
        if faults.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.check_indexes()?.iter().map(ToString::to_string).collect())
    }

    /// Returns what is wrong with the blobs that the packs do not hold.
    fn check_blobs(&self, report: &Report) -> Vec<String> {
        let check = |blob: &BlobId| match self.blobs.open(blob) {
            Ok(Some(content)) => blob_damage(blob, content),
            Ok(None) => Some(format!("the blob {blob} is missing; restore it from a backup")),
            Err(error) => Some(chain(&error)),
        };
        report.blobs_elsewhere.iter().filter_map(check).collect()
    }
}

/// Re-hashes a large blob; nothing if it is what its id says.
fn blob_damage(expected: &BlobId, content: tympan_content::BlobContent) -> Option<String> {
    match tympan_blobs::id_of(&mut content.into_reader()) {
        Ok(actual) if actual == *expected => None,
        Ok(actual) => Some(format!(
            "the blob {expected} is damaged: its bytes are {actual}; restore it from a backup"
        )),
        Err(error) => Some(format!("the blob {expected} cannot be read: {}", chain(&error))),
    }
}

/// Returns a key as the path that it stands for.
fn path_of(key: &[u8]) -> String {
    match key::parse(key) {
        Ok(names) => format!("/{}", names.join("/")),
        Err(_) => String::from_utf8_lossy(key).escape_debug().to_string(),
    }
}

fn time_of(at: SystemTime) -> String {
    Date::from_system_time(at).to_string()
}

/// Returns every finding of a check as a line.
fn findings(report: &Report) -> Vec<String> {
    let mut lines = report.faults.clone();
    lines.extend(report.affected.iter().map(|one| {
        let path = path_of(&one.key);
        format!("{}, {}: `{path}` cannot be read: {}", one.origin, one.map, one.fault)
    }));
    if report.unlisted > 0 {
        lines.push(format!("{} more places are damaged", report.unlisted));
    }
    lines.extend(report.damaged_revisions.iter().map(|(name, count)| {
        format!("{count} of the kept revisions of `{name}` cannot be read in full")
    }));
    lines
}

fn print_list(lines: &[String]) {
    lines.iter().take(SHOWN).for_each(|line| say!("{line}"));
    if let Some(more) = lines.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        say!("… and {more} more; `--json` lists them");
    }
}

fn print_findings(report: &Report) {
    print_list(&report.notes);
    print_list(&findings(report));
}

fn print_summary(report: &Report, missing_blobs: usize) {
    let faults = findings(report).len() + missing_blobs;
    say!(
        "{} packs, {} commits, {} refs, {} leases, {} revisions, {} chunks ({} reachable), {} blobs, {} bytes: {}",
        report.packs,
        report.commits,
        report.refs,
        report.leases,
        report.revisions,
        report.chunks,
        report.reachable,
        report.blobs as usize + report.blobs_elsewhere.len(),
        report.bytes,
        if faults == 0 { "clean".to_owned() } else { format!("{faults} faults") }
    );
}

fn part_line(part: &RepairedPart) -> String {
    let RepairedPart { name, map, key, fate } = part;
    let place = format!("{name} {map}: `{}`", path_of(key));
    match fate {
        Fate::Restored { sequence } => format!("{place} as in revision {sequence}"),
        Fate::Lost => format!("{place} is lost: no kept revision has it whole"),
        Fate::Span { to, records } => {
            let to = to.as_ref().map_or_else(|| "the end".to_owned(), |to| path_of(to));
            let records =
                if *records == 0 { String::new() } else { format!(", {records} records,") };
            format!("{place} up to `{to}`{records} cannot be read")
        }
    }
}

fn print_repaired(done: &Repaired, mode: Mode) {
    match mode {
        Mode::Look => say!("`--repair` would do this:"),
        Mode::Repair => say!("repaired:"),
    }
    let mut lines = Vec::new();
    lines.extend(done.set_aside.iter().map(|file| format!("damaged file set aside: {file}")));
    lines.extend(done.remade.iter().map(|file| format!("index file made again: {file}")));
    if done.moved > 0 {
        lines.push(format!("{} chunks and blobs moved out of damaged packs", done.moved));
    }
    for one in &done.refs {
        let good = one.good.map_or_else(
            || "no kept revision is whole".to_owned(),
            |(sequence, at)| format!("the newest whole revision is {sequence} of {}", time_of(at)),
        );
        let now = match (one.root, one.is_restorable) {
            (Some(root), _) => format!("is `{root}` now"),
            (None, true) => "gets a new state".to_owned(),
            (None, false) => {
                "stays: nothing of it can be read; restore it from a backup".to_owned()
            }
        };
        lines.push(format!("ref `{}`, damaged at `{}`, {now}; {good}", one.name, one.damaged));
    }
    lines.extend(done.parts.iter().map(part_line));
    for one in &done.revisions {
        let update = &one.revision.update;
        let state = match (one.root, mode) {
            (Some(root), _) => format!("is `{root}` now"),
            (None, Mode::Look) => "is mended or left out".to_owned(),
            (None, Mode::Repair) => "has left the list: nothing of it can be read".to_owned(),
        };
        lines.push(format!(
            "revision {} of `{}`, {} by {}: {state}",
            one.revision.sequence,
            update.name,
            time_of(update.at),
            update.author
        ));
    }
    lines.extend(done.leases.iter().map(|lease| {
        format!("lease of `{}` ends: `{}` cannot be read in full", lease.holder, lease.root)
    }));
    lines.extend(done.history.iter().cloned());
    print_list(&lines);
    say!("{} records restored, {} lost", done.restored, done.lost);
    if done.unlisted > 0 {
        say!("{} more parts and revisions are not listed", done.unlisted);
    }
}

fn report_json(report: &Report, missing_blobs: &[String]) -> Value {
    let mut faults = findings(report);
    faults.extend_from_slice(missing_blobs);
    json!({
        "clean": faults.is_empty(),
        "packs": report.packs,
        "chunks": report.chunks,
        "blobs": report.blobs as usize + report.blobs_elsewhere.len(),
        "commits": report.commits,
        "bytes": report.bytes,
        "refs": report.refs,
        "leases": report.leases,
        "revisions": report.revisions,
        "reachable": report.reachable,
        "notes": report.notes,
        "faults": faults,
        "unlisted": report.unlisted,
    })
}

fn indexes_json(faults: &[IndexFault]) -> Value {
    let fault = |fault: &IndexFault| {
        json!({
            "ref": fault.name,
            "index": fault.index,
            "path": fault.path.as_str(),
            "missing": fault.missing,
            "surplus": fault.surplus,
        })
    };
    faults.iter().map(fault).collect()
}

fn repaired_json(done: &Repaired, mode: Mode) -> Value {
    let refs = done.refs.iter().map(|one| {
        json!({
            "name": one.name,
            "damaged": one.damaged.to_string(),
            "root": one.root.map(|root| root.to_string()),
            "good": one.good.map(|(sequence, _)| sequence),
            "restorable": one.is_restorable,
        })
    });
    let parts = done.parts.iter().map(|part| {
        let (fate, revision, to, records) = match &part.fate {
            Fate::Restored { sequence } => ("restored", Some(*sequence), None, 1),
            Fate::Lost => ("lost", None, None, 1),
            Fate::Span { to, records } => {
                ("unreadable", None, to.as_ref().map(|to| path_of(to)), *records)
            }
        };
        json!({
            "ref": part.name,
            "map": part.map,
            "path": path_of(&part.key),
            "to": to,
            "fate": fate,
            "revision": revision,
            "records": records,
        })
    });
    let revisions = done.revisions.iter().map(|one| {
        json!({
            "ref": one.revision.update.name,
            "revision": one.revision.sequence,
            "at": time_of(one.revision.update.at),
            "author": one.revision.update.author,
            "root": one.root.map(|root| root.to_string()),
        })
    });
    json!({
        "done": mode == Mode::Repair,
        "set_aside": done.set_aside,
        "remade": done.remade,
        "moved": done.moved,
        "refs": refs.collect::<Vec<_>>(),
        "parts": parts.collect::<Vec<_>>(),
        "restored": done.restored,
        "lost": done.lost,
        "revisions": revisions.collect::<Vec<_>>(),
        "leases": done.leases.iter().map(|one| one.holder.as_str()).collect::<Vec<_>>(),
        "history": done.history,
        "unlisted": done.unlisted,
    })
}
