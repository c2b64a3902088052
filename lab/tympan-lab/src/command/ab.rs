//! `tympan lab ab`: converts ab's options to a load, and prints ab's output.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use tympan_lab_engine::measurement::log_watch_result::LogWatchResult;
use tympan_lab_engine::{goal, result_validity};
use tympan_lab_tools::ab;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::load_run::{parse_headers, read_bytes};
use super::log_watch::WatchedLogs;
use super::{lab_fault, write_text};
use crate::args::ab::LabAbArgs;

/// Prints a message of ab during a run: progress goes to standard error, which may be closed.
fn print_ab_message(message: ab::AbMessage<'_>) {
    match message {
        ab::AbMessage::Progress(text) => drop(writeln!(std::io::stderr(), "{text}")),
        ab::AbMessage::Log(text) => say!("{text}"),
    }
}

/// Returns the attributes of ab's table, if any of the options requests one.
fn table_attributes(arguments: &LabAbArgs) -> Option<ab::AbTableAttributes> {
    let attribute_groups = [&arguments.table, &arguments.row, &arguments.cell];
    let is_wanted =
        arguments.is_markup || attribute_groups.iter().any(|attributes| attributes.is_some());
    let [table, row, cell] =
        attribute_groups.map(|attributes| attributes.clone().unwrap_or_default());
    is_wanted.then_some(ab::AbTableAttributes {
        table_attributes: table,
        row_attributes: row,
        cell_attributes: cell,
    })
}

/// Returns the load that the options specify.
fn ab_options(arguments: &LabAbArgs) -> Result<ab::AbOptions, CommandFault> {
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD;
    let mut all = parse_headers(&arguments.headers)?;
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
    Ok(ab::AbOptions {
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
        source_address: arguments.source,
        socket_buffer_size: arguments.window,
        protocol: arguments.protocol.clone(),
        ciphers: arguments.ciphers.clone(),
        certificate: arguments.certificate.clone(),
        hides_server_name: arguments.hides_name,
        verbosity: arguments.verbosity.unwrap_or(0),
        is_quiet: arguments.quiet,
        html_table: table_attributes(arguments),
        is_strict: arguments.strict_ab,
        allows_any_length: arguments.any_length,
        omits_deviation: arguments.without_deviation,
        omits_percentiles: arguments.without_percentiles,
        csv_path: arguments.csv.clone(),
        gnuplot_path: arguments.gnuplot.clone(),
        worker_count: arguments.workers,
    })
}

pub(super) fn run_ab(arguments: &LabAbArgs) -> CommandOutcome {
    if arguments.is_version {
        say!("{}", ab::AbOptions::default().banner().trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    let load = ab_options(arguments)?;
    let logs = WatchedLogs::start(&arguments.logs)?;
    let (line, end) = load.opening_line().map_err(lab_fault)?;
    say!("{}", load.banner());
    // A run that prints progress or responses prints the first part of its line at the start; otherwise the line is
    // printed as a whole.
    let is_told_before = end.is_empty() || load.verbosity >= 2;
    if is_told_before {
        say!("{line}");
    }
    let run = load.run_with_listener(Arc::new(print_ab_message)).map_err(lab_fault)?;
    let logged = logs.log_results();
    match is_told_before {
        true => say!("{}\n", end.trim_start_matches("...")),
        false => say!("{line}{end}\n"),
    }
    say!("\n{}", run.to_report().trim_end());
    if let Some(path) = &arguments.csv {
        write_text(path, &run.to_csv())?;
    }
    if let Some(path) = &arguments.gnuplot {
        write_text(path, &run.to_gnuplot())?;
    }
    // An HTML table must remain one.
    if load.html_table.is_none() {
        print_ab_details(&run, arguments);
    }
    for line in logged.iter().flat_map(LogWatchResult::describe_lines) {
        say!("{line}");
    }
    conclude_ab(&run, &logged)
}

/// Prints details that ab's output has no line for.
fn print_ab_details(run: &ab::AbRun, arguments: &LabAbArgs) {
    if run.length_mismatch_count() > 0 && !arguments.strict_ab {
        say!(
            "\nLength varies: {} responses; ab would call them failed (--strict-ab)",
            run.length_mismatch_count()
        );
    }
    let response = run.results.total_stats().response_times;
    say!(
        "\nWith three digits: p50 {}, p95 {}, p99 {}, p99.9 {}, max {}",
        goal::format_response_time(response.quantile(0.5)),
        goal::format_response_time(response.quantile(0.95)),
        goal::format_response_time(response.quantile(0.99)),
        goal::format_response_time(response.quantile(0.999)),
        goal::format_response_time(response.max())
    );
    let generator = &run.results.generator;
    say!(
        "Generator: {:.0} % of its processors, lag p99 {}",
        generator.cpu_share(run.results.elapsed) * 100.0,
        goal::format_response_time(generator.lag.quantile(0.99))
    );
}

fn conclude_ab(run: &ab::AbRun, logged: &[LogWatchResult]) -> CommandOutcome {
    let is_unread = logged.iter().any(|log| log.read_failure.is_some());
    match result_validity::validity_warning(&run.results) {
        Some(warning) => {
            say!("{warning}");
            Ok(ExitCode::from(3))
        }
        None if run.is_unreachable() || is_unread => Ok(ExitCode::from(3)),
        None if logged.iter().any(|log| log.errors.error_count > 0) => {
            Ok(ExitCode::from(CHECK_FAILED_EXIT_CODE))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}
