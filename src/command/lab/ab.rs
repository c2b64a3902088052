//! `tympan lab ab`: from ab's options to a load, and its text on the way.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use tympan_lab::watch_log::Logged;
use tympan_lab::{ab, goal, honesty};

use super::logs::WatchedLogs;
use super::send::{headers, read_bytes};
use super::{fault, write};
use crate::args::lab::Ab;
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

/// Prints what ab says while it runs: how far it has come at standard error, where nobody need listen.
fn hear(word: ab::Word<'_>) {
    match word {
        ab::Word::Progress(text) => drop(writeln!(std::io::stderr(), "{text}")),
        ab::Word::Log(text) => say!("{text}"),
    }
}

/// Returns the attributes of ab's table, if one is wanted: each of them asks for it.
fn markup(arguments: &Ab) -> Option<ab::Markup> {
    let given = [&arguments.table, &arguments.row, &arguments.cell];
    let is_wanted = arguments.is_markup || given.iter().any(|attributes| attributes.is_some());
    let [table, row, cell] = given.map(|attributes| attributes.clone().unwrap_or_default());
    is_wanted.then_some(ab::Markup { table, row, cell })
}

/// Returns the load that the options ask for.
fn load(arguments: &Ab) -> Result<ab::Ab, Fault> {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD;
    let mut all = headers(&arguments.headers)?;
    if !arguments.cookies.is_empty() {
        all.push(("Cookie".to_owned(), arguments.cookies.join("; ")));
    }
    if let Some(login) = &arguments.login {
        all.push(("Authorization".to_owned(), format!("Basic {}", base64.encode(login))));
    }
    if let Some(login) = &arguments.proxy_login {
        all.push(("Proxy-Authorization".to_owned(), format!("Basic {}", base64.encode(login))));
    }
    let body = arguments.post.as_deref().or(arguments.put.as_deref());
    let method = match &arguments.method {
        Some(method) => method.as_str(),
        None if arguments.post.is_some() => "POST",
        None if arguments.put.is_some() => "PUT",
        None if arguments.head => "HEAD",
        None => "GET",
    };
    let default = if arguments.seconds.is_some() { 50_000 } else { 1 };
    Ok(ab::Ab {
        url: arguments.url.clone().unwrap_or_default(),
        requests: arguments.requests.unwrap_or(default),
        concurrency: arguments.concurrency,
        time_limit: arguments.seconds.map(std::time::Duration::from_secs),
        timeout: std::time::Duration::from_secs(arguments.timeout),
        keep_alive: arguments.keep_alive,
        method: method.to_owned(),
        body: body.map(read_bytes).transpose()?.unwrap_or_default(),
        content_type: arguments.content_type.clone(),
        headers: all,
        proxy: arguments.proxy.clone(),
        source: arguments.source,
        window: arguments.window,
        protocol: arguments.protocol.clone(),
        ciphers: arguments.ciphers.clone(),
        certificate: arguments.certificate.clone(),
        hides_name: arguments.hides_name,
        verbosity: arguments.verbosity.unwrap_or(0),
        quiet: arguments.quiet,
        markup: markup(arguments),
        strict: arguments.strict_ab,
        any_length: arguments.any_length,
        without_deviation: arguments.without_deviation,
        without_percentiles: arguments.without_percentiles,
        csv: arguments.csv.clone(),
        gnuplot: arguments.gnuplot.clone(),
        workers: arguments.workers,
    })
}

pub(super) fn ab(arguments: &Ab) -> Outcome {
    if arguments.is_version {
        say!("{}", ab::Ab::default().banner().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let load = load(arguments)?;
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let (line, end) = load.opening().map_err(|error| fault(&error))?;
    say!("{}", load.banner());
    // A run that tells meanwhile how far it has come, or what comes back, begins with its line; else that is told whole.
    let is_told_before = end.is_empty() || load.verbosity >= 2;
    if is_told_before {
        say!("{line}");
    }
    let run = load.run_heard(Arc::new(hear)).map_err(|error| fault(&error))?;
    let logged = logs.end();
    match is_told_before {
        true => say!("{}\n", end.trim_start_matches("...")),
        false => say!("{line}{end}\n"),
    }
    say!("\n{}", run.figures().trim_end());
    if let Some(path) = &arguments.csv {
        write(path, &run.csv())?;
    }
    if let Some(path) = &arguments.gnuplot {
        write(path, &run.gnuplot())?;
    }
    // A table in HTML is to stay one.
    if load.markup.is_none() {
        tell_more(&run, arguments);
    }
    for line in logged.iter().flat_map(Logged::told) {
        say!("{line}");
    }
    conclude(&run, &logged)
}

/// Tells what ab's text has no line for.
fn tell_more(run: &ab::AbRun, arguments: &Ab) {
    if run.varying_lengths() > 0 && !arguments.strict_ab {
        say!(
            "\nLength varies: {} answers; ab would call them failed (--strict-ab)",
            run.varying_lengths()
        );
    }
    let response = run.results.total().response;
    say!(
        "\nWith three digits: p50 {}, p95 {}, p99 {}, p99.9 {}, max {}",
        goal::show(response.quantile(0.5)),
        goal::show(response.quantile(0.95)),
        goal::show(response.quantile(0.99)),
        goal::show(response.quantile(0.999)),
        goal::show(response.max())
    );
    let generator = &run.results.generator;
    say!(
        "Generator: {:.0} % of its processors, lag p99 {}",
        generator.cpu_share(run.results.elapsed) * 100.0,
        goal::show(generator.lag.quantile(0.99))
    );
}

fn conclude(run: &ab::AbRun, logged: &[Logged]) -> Outcome {
    let is_unread = logged.iter().any(|log| log.unread.is_some());
    match honesty::warning(&run.results) {
        Some(warning) => {
            say!("{warning}");
            Ok(ExitCode::from(3))
        }
        None if run.is_unreachable() || is_unread => Ok(ExitCode::from(3)),
        None if logged.iter().any(|log| log.errors.count > 0) => Ok(ExitCode::from(CHECK_FAILED)),
        None => Ok(ExitCode::SUCCESS),
    }
}
