//! `tympan assets`: mounts, imports, duplicates, references and write-back of a running author.

use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use crate::args::{AssetMountCommand, AssetsCommand, OnOffSwitch, RemoteInstanceArgs};
use crate::command::remote_instance::{
    encode_form, json_list, json_member, json_text, print_response, send_form,
};

/// The polling interval of an import.
const IMPORT_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs the command.
pub(crate) fn run_assets_command(assets: &AssetsCommand) -> CommandOutcome {
    match assets {
        AssetsCommand::Mount { mount } => run_asset_mount_command(mount),
        AssetsCommand::Import { source, target, dry_run, no_wait, remote } => {
            let dry = if *dry_run { "true" } else { "false" };
            let query = encode_form([
                ("source", source.as_str()),
                ("target", target.as_str()),
                ("dryRun", dry),
            ]);
            let import =
                send_form(remote, Method::POST, &format!("/api/v1/assets/imports?{query}"), "")?;
            follow_import(&import, *no_wait, remote)
        }
        AssetsCommand::Duplicates { path, limit, remote } => {
            let limit = limit.to_string();
            let query = encode_form([("path", path.as_str()), ("limit", limit.as_str())]);
            print_duplicates(
                &send_form(remote, Method::GET, &format!("/api/v1/assets/duplicates?{query}"), "")?,
                remote,
            )
        }
        AssetsCommand::References { path, remote } => {
            let query = encode_form([("path", path.as_str())]);
            let response =
                send_form(remote, Method::GET, &format!("/api/v1/references?{query}"), "")?;
            print_response(remote.json, &response, || {
                for user in json_list(&response, "usedBy") {
                    say!("{} {}", json_text(user, "path"), json_text(user, "property"));
                }
            })
        }
        AssetsCommand::WriteBack { switch, remote } => {
            let enabled = if *switch == OnOffSwitch::On { "true" } else { "false" };
            let path = format!("/api/v1/assets/write-back?enabled={enabled}");
            let response = send_form(remote, Method::POST, &path, "")?;
            print_response(remote.json, &response, || match switch {
                OnOffSwitch::On => say!("metadata edits are written back to the files"),
                OnOffSwitch::Off => say!("metadata edits are not written back to the files"),
            })
        }
    }
}

fn run_asset_mount_command(mount: &AssetMountCommand) -> CommandOutcome {
    let post = |action: &str, fields: &[(&str, &str)], remote: &RemoteInstanceArgs| {
        let path =
            format!("/api/v1/assets/mounts/{action}?{}", encode_form(fields.iter().copied()));
        send_form(remote, Method::POST, &path, "")
    };
    match mount {
        AssetMountCommand::List(remote) => list_mounts(None, remote),
        AssetMountCommand::Status { name, remote } => list_mounts(Some(name.as_str()), remote),
        AssetMountCommand::Run { name, accept_removals, remote } => {
            let accepts = if *accept_removals { "true" } else { "false" };
            let response =
                post("run", &[("name", name.as_str()), ("acceptRemovals", accepts)], remote)?;
            print_response(remote.json, &response, || say!("started a pass of the mount `{name}`"))
        }
        AssetMountCommand::Pause { name, remote } => {
            let response = post("pause", &[("name", name.as_str())], remote)?;
            print_response(remote.json, &response, || say!("the mount `{name}` is paused"))
        }
        AssetMountCommand::Resume { name, remote } => {
            let response = post("resume", &[("name", name.as_str())], remote)?;
            print_response(remote.json, &response, || say!("the mount `{name}` is resumed"))
        }
    }
}

fn list_mounts(name: Option<&str>, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let response = send_form(remote, Method::GET, "/api/v1/assets/mounts", "")?;
    let is_meant = |mount: &&Value| name.is_none_or(|name| json_text(mount, "name") == name);
    if let Some(name) = name
        && !json_list(&response, "mounts").any(|mount| json_text(mount, "name") == name)
    {
        return Err(CommandFault::usage(format!("there is no mount `{name}`")));
    }
    print_response(remote.json, &response, || {
        for mount in json_list(&response, "mounts").filter(is_meant) {
            let is_paused = *json_member(mount, "paused") == Value::Bool(true);
            say!(
                "{}: {} as {}, every {} s{}",
                json_text(mount, "name"),
                json_text(mount, "source"),
                json_text(mount, "target"),
                json_member(mount, "period"),
                if is_paused { ", paused" } else { "" }
            );
            say!("  {} files", json_member(mount, "files"));
            print_job(json_member(mount, "job"));
            print_last_pass(json_member(mount, "last"), name.is_some());
        }
        for fault in json_list(&response, "faults") {
            say!("{}: {}", json_text(fault, "path"), json_text(fault, "message"));
        }
    })
}

fn print_job(job: &Value) {
    match json_text(job, "state") {
        "" => {}
        "ACTIVE" => {
            say!(
                "  {}: {} of {}",
                json_text(job, "message"),
                json_member(job, "done"),
                json_member(job, "total")
            )
        }
        _ => say!("  a pass is queued"),
    }
}

/// Prints the result of a pass; with the files that it skipped, if requested.
fn print_last_pass(last: &Value, is_whole: bool) {
    if last.is_null() {
        return;
    }
    say!(
        "  {}: {} added, {} changed, {} moved, {} removed, {} unchanged, {} skipped",
        json_text(last, "ended"),
        json_member(last, "added"),
        json_member(last, "changed"),
        json_member(last, "moved"),
        json_member(last, "removed"),
        json_member(last, "unchanged"),
        json_member(last, "skipped")
    );
    if let Some(failure) = json_member(last, "failure").as_str() {
        say!("  {failure}");
    }
    if json_member(last, "settling").as_u64() > Some(0) {
        say!(
            "  {} files were still being written; the next pass includes them",
            json_member(last, "settling")
        );
    }
    if json_member(last, "heldBack").as_u64() > Some(0) {
        say!(
            "  {} files are gone, but their assets were kept: if the removal is intended, run the mount with \
             `--accept-removals`",
            json_member(last, "heldBack")
        );
    }
    for file in json_list(last, "skippedFiles").filter(|_| is_whole) {
        say!("  {}: {}", json_text(file, "path"), json_text(file, "reason"));
    }
}

/// Prints the progress of an import until it ends.
fn follow_import(import: &Value, is_leaving: bool, remote: &RemoteInstanceArgs) -> CommandOutcome {
    let name = json_text(import, "name").to_owned();
    if is_leaving {
        return print_response(remote.json, import, || say!("started {name}"));
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} {per_sec}, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let status = loop {
        let path = format!("/api/v1/assets/imports?{}", encode_form([("name", name.as_str())]));
        let status = send_form(remote, Method::GET, &path, "")?;
        let job = json_member(&status, "job");
        let state = json_text(job, "state");
        if !matches!(state, "QUEUED" | "ACTIVE" | "DELAYED" | "HELD") {
            break status;
        }
        bar.set_length(json_member(job, "total").as_u64().unwrap_or_default());
        bar.set_position(json_member(job, "done").as_u64().unwrap_or_default());
        bar.set_message(json_text(job, "message").to_owned());
        std::thread::sleep(IMPORT_POLL_INTERVAL);
    };
    bar.finish_and_clear();
    if let Some(error) = json_member(json_member(&status, "job"), "lastError").as_str() {
        return Err(CommandFault::cannot_run(format!("{name}: {error}")));
    }
    let last = json_member(&status, "last");
    let is_dry = *json_member(last, "dryRun") == Value::Bool(true);
    print_response(remote.json, &status, || {
        let verb = if is_dry { "would be imported" } else { "imported" };
        say!(
            "{} files {verb}, {} already present, {} skipped, {} bytes read",
            json_member(last, "added"),
            json_member(last, "unchanged"),
            json_member(last, "skipped"),
            json_member(last, "bytes")
        );
        for file in json_list(last, "skippedFiles") {
            say!("{}: {}", json_text(file, "path"), json_text(file, "reason"));
        }
    })?;
    Ok(match json_member(last, "skipped").as_u64() {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::from(CHECK_FAILED_EXIT_CODE),
    })
}

fn print_duplicates(response: &Value, remote: &RemoteInstanceArgs) -> CommandOutcome {
    print_response(remote.json, response, || {
        for group in json_list(response, "groups") {
            say!("{} bytes each:", json_member(group, "bytes"));
            for path in json_list(group, "paths").filter_map(Value::as_str) {
                say!("  {path}");
            }
        }
        if *json_member(response, "more") == Value::Bool(true) {
            say!("more results exist; raise `--limit`");
        }
    })
}
