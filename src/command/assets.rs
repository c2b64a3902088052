//! `tympan assets`: mounts, imports, duplicates, references and write-back of a running author.

use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::args::{Assets, Mount, Remote, Switch};
use crate::command::remote::{ask, list, part, text};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

/// How often an import is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run(assets: &Assets) -> Outcome {
    match assets {
        Assets::Mount { mount } => run_mount(mount),
        Assets::Import { source, target, dry_run, no_wait, remote } => {
            let dry = if *dry_run { "true" } else { "false" };
            let query =
                query(&[("source", source.as_str()), ("target", target.as_str()), ("dryRun", dry)]);
            let begun = ask(remote, Method::POST, &format!("/api/v1/assets/imports?{query}"), "")?;
            import(&begun, *no_wait, remote)
        }
        Assets::Duplicates { path, limit, remote } => {
            let limit = limit.to_string();
            let query = query(&[("path", path.as_str()), ("limit", limit.as_str())]);
            duplicates(
                &ask(remote, Method::GET, &format!("/api/v1/assets/duplicates?{query}"), "")?,
                remote,
            )
        }
        Assets::References { path, remote } => {
            let query = query(&[("path", path.as_str())]);
            let answer = ask(remote, Method::GET, &format!("/api/v1/references?{query}"), "")?;
            show(remote, &answer, || {
                for user in list(&answer, "usedBy") {
                    say!("{} {}", text(user, "path"), text(user, "property"));
                }
            })
        }
        Assets::WriteBack { switch, remote } => {
            let enabled = if *switch == Switch::On { "true" } else { "false" };
            let path = format!("/api/v1/assets/write-back?enabled={enabled}");
            let answer = ask(remote, Method::POST, &path, "")?;
            show(remote, &answer, || match switch {
                Switch::On => say!("edited metadata is written into files"),
                Switch::Off => say!("files stay as they are"),
            })
        }
    }
}

fn query(fields: &[(&str, &str)]) -> String {
    let pair = |(name, value): &(&str, &str)| {
        format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC))
    };
    fields.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Shows an answer as it is, or in words.
fn show(remote: &Remote, answer: &Value, words: impl FnOnce()) -> Outcome {
    if remote.json {
        say!("{answer}");
    } else {
        words();
    }
    Ok(ExitCode::SUCCESS)
}

fn run_mount(mount: &Mount) -> Outcome {
    let post = |action: &str, fields: &[(&str, &str)], remote: &Remote| {
        let path = format!("/api/v1/assets/mounts/{action}?{}", query(fields));
        ask(remote, Method::POST, &path, "")
    };
    match mount {
        Mount::List(remote) => mounts(None, remote),
        Mount::Status { name, remote } => mounts(Some(name.as_str()), remote),
        Mount::Run { name, accept_removals, remote } => {
            let accepts = if *accept_removals { "true" } else { "false" };
            let answer =
                post("run", &[("name", name.as_str()), ("acceptRemovals", accepts)], remote)?;
            show(remote, &answer, || say!("a pass of the mount `{name}` begins"))
        }
        Mount::Pause { name, remote } => {
            let answer = post("pause", &[("name", name.as_str())], remote)?;
            show(remote, &answer, || say!("the mount `{name}` is paused"))
        }
        Mount::Resume { name, remote } => {
            let answer = post("resume", &[("name", name.as_str())], remote)?;
            show(remote, &answer, || say!("the mount `{name}` goes on"))
        }
    }
}

fn mounts(name: Option<&str>, remote: &Remote) -> Outcome {
    let answer = ask(remote, Method::GET, "/api/v1/assets/mounts", "")?;
    let is_meant = |mount: &&Value| name.is_none_or(|name| text(mount, "name") == name);
    if let Some(name) = name
        && !list(&answer, "mounts").any(|mount| text(mount, "name") == name)
    {
        return Err(Fault::usage(format!("there is no mount `{name}`")));
    }
    show(remote, &answer, || {
        for mount in list(&answer, "mounts").filter(is_meant) {
            let is_paused = *part(mount, "paused") == Value::Bool(true);
            say!(
                "{}: {} as {}, every {} s{}",
                text(mount, "name"),
                text(mount, "source"),
                text(mount, "target"),
                part(mount, "period"),
                if is_paused { ", paused" } else { "" }
            );
            say!("  {} files", part(mount, "files"));
            say_job(part(mount, "job"));
            say_last(part(mount, "last"), name.is_some());
        }
        for fault in list(&answer, "faults") {
            say!("{}: {}", text(fault, "path"), text(fault, "message"));
        }
    })
}

fn say_job(job: &Value) {
    match text(job, "state") {
        "" => {}
        "ACTIVE" => {
            say!("  {}: {} of {}", text(job, "message"), part(job, "done"), part(job, "total"))
        }
        _ => say!("  a pass waits for its turn"),
    }
}

/// Says what a pass did; with the files that it left out, if asked to.
fn say_last(last: &Value, is_whole: bool) {
    if last.is_null() {
        return;
    }
    say!(
        "  {}: {} added, {} changed, {} moved, {} removed, {} unchanged, {} left out",
        text(last, "ended"),
        part(last, "added"),
        part(last, "changed"),
        part(last, "moved"),
        part(last, "removed"),
        part(last, "unchanged"),
        part(last, "skipped")
    );
    if let Some(failure) = part(last, "failure").as_str() {
        say!("  {failure}");
    }
    if part(last, "settling").as_u64() > Some(0) {
        say!(
            "  {} files were just being written; the next pass takes them",
            part(last, "settling")
        );
    }
    if part(last, "heldBack").as_u64() > Some(0) {
        say!(
            "  {} files are gone and their assets stay: if that is right, run the mount with `--accept-removals`",
            part(last, "heldBack")
        );
    }
    for file in list(last, "skippedFiles").filter(|_| is_whole) {
        say!("  {}: {}", text(file, "path"), text(file, "reason"));
    }
}

/// Shows an import until it ends.
fn import(begun: &Value, is_leaving: bool, remote: &Remote) -> Outcome {
    let name = text(begun, "name").to_owned();
    if is_leaving {
        return show(remote, begun, || say!("{name} begins"));
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {per_sec}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let status = loop {
        let path = format!("/api/v1/assets/imports?{}", query(&[("name", name.as_str())]));
        let status = ask(remote, Method::GET, &path, "")?;
        let job = part(&status, "job");
        let state = text(job, "state");
        if !matches!(state, "QUEUED" | "ACTIVE" | "DELAYED" | "HELD") {
            break status;
        }
        bar.set_length(part(job, "total").as_u64().unwrap_or_default());
        bar.set_position(part(job, "done").as_u64().unwrap_or_default());
        bar.set_message(text(job, "message").to_owned());
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    if let Some(error) = part(part(&status, "job"), "lastError").as_str() {
        return Err(Fault::cannot_run(format!("{name}: {error}")));
    }
    let last = part(&status, "last");
    let is_dry = *part(last, "dryRun") == Value::Bool(true);
    show(remote, &status, || {
        let verb = if is_dry { "would be imported" } else { "imported" };
        say!(
            "{} files {verb}, {} were there, {} left out, {} bytes read",
            part(last, "added"),
            part(last, "unchanged"),
            part(last, "skipped"),
            part(last, "bytes")
        );
        for file in list(last, "skippedFiles") {
            say!("{}: {}", text(file, "path"), text(file, "reason"));
        }
    })?;
    Ok(match part(last, "skipped").as_u64() {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::from(CHECK_FAILED),
    })
}

fn duplicates(answer: &Value, remote: &Remote) -> Outcome {
    show(remote, answer, || {
        for group in list(answer, "groups") {
            say!("{} bytes each:", part(group, "bytes"));
            for path in list(group, "paths").filter_map(Value::as_str) {
                say!("  {path}");
            }
        }
        if *part(answer, "more") == Value::Bool(true) {
            say!("there are more; raise `--limit`");
        }
    })
}
