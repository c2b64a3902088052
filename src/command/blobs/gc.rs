//! `tympan blobs gc`: marks and sweeps.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::{Value, json};
use tympan_blobs::collect::{SweepMode, SweepOptions, Swept, Tally};

use super::time;
use crate::blobs::Sharing;
use crate::clock::trusted_now;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::config::parse_span;
use crate::home::Home;
use crate::say;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing; what would be is said.
    DryRun,
    /// This repository says what it needs.
    Mark,
    /// And what nobody needs goes to the trash.
    Sweep,
}

/// Marks and sweeps. `spans` are the grace and the window.
pub(super) fn run(home: &Path, mode: Mode, spans: [&str; 2], json: bool) -> Outcome {
    let [grace, window] = spans.map(|text| {
        parse_span(text).ok_or_else(|| {
            Fault::usage(format!("`{text}` is no duration; write \"24h\" or \"7d\""))
        })
    });
    let (grace, window) = (grace?, window?);
    let home = Home::open_existing(home)?;
    let sharing = Sharing::of(&home);
    let chunks = &**home.repository.chunks();
    let now = trusted_now(&home.dir, chunks, SystemTime::now());
    let mut marked = None;
    if mode != Mode::DryRun {
        marked = sharing.mark(chunks, &mut |_| ControlFlow::Continue(()))?;
    }
    let mut swept = Vec::new();
    if mode != Mode::Mark {
        let kind = if mode == Mode::DryRun { SweepMode::DryRun } else { SweepMode::Remove };
        let options = SweepOptions { grace, window, ..sharing.sweep_options(kind, now)? };
        swept = sharing.sweep(&options, &mut || ControlFlow::Continue(()))?;
    }
    if json {
        let places: Vec<Value> = swept.iter().map(|(role, swept)| to_json(role, swept)).collect();
        let count = marked.as_ref().map(|marked| marked.count);
        let untold = marked.as_ref().map(|marked| &*marked.untold).unwrap_or_default();
        say!("{}", json!({ "needs": count, "places": places, "untold": untold }));
    } else {
        if let Some(marked) = &marked {
            say!("this repository needs {} blobs", marked.count);
            marked.untold.iter().for_each(|reason| say!("not told: {reason}"));
        }
        swept.iter().for_each(|(role, swept)| print(role, swept, mode));
    }
    let is_told = marked.is_none_or(|marked| marked.untold.is_empty());
    Ok(if is_told { ExitCode::SUCCESS } else { ExitCode::from(CHECK_FAILED) })
}

fn print(role: &str, swept: &Swept, mode: Mode) {
    let would = if mode == Mode::DryRun { "would " } else { "" };
    if let Some(until) = swept.others_until {
        say!("{role}: another process sweeps, at most until {}; come again then", time(until));
        return;
    }
    let Swept { live, young, discarded, restored, purged, in_trash, .. } = swept;
    say!("{role}: {} blobs, {} bytes are needed", live.blobs, live.bytes);
    say!("  {} blobs, {} bytes {would}go to the trash", discarded.blobs, discarded.bytes);
    say!("  {} blobs, {} bytes {would}go for good", purged.blobs, purged.bytes);
    say!("  {} blobs, {} bytes stay in the trash", in_trash.blobs, in_trash.bytes);
    if restored.blobs > 0 {
        say!(
            "  {} blobs, {} bytes {would}come back, as they are needed",
            restored.blobs,
            restored.bytes
        );
    }
    if young.blobs > 0 {
        say!("  {} blobs, {} bytes are too young to tell", young.blobs, young.bytes);
    }
    if let Some((name, begun)) = &swept.oldest {
        say!("  the oldest marks are those of {name}, of {}", time(*begun));
    }
    for name in &swept.waits_for {
        say!("  nothing goes before {name} has said what it needs");
    }
}

fn to_json(role: &str, swept: &Swept) -> Value {
    let tally = |tally: Tally| json!({ "blobs": tally.blobs, "bytes": tally.bytes });
    json!({
        "role": role,
        "live": tally(swept.live),
        "young": tally(swept.young),
        "discarded": tally(swept.discarded),
        "restored": tally(swept.restored),
        "purged": tally(swept.purged),
        "inTrash": tally(swept.in_trash),
        "waitsFor": swept.waits_for,
        "othersUntil": swept.others_until.map(time),
        "oldest": swept.oldest.as_ref().map(|(name, begun)| json!({ "name": name, "begun": time(*begun) })),
    })
}
