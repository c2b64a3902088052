//! Looks for reasons why an instance cannot start or will fail: addresses, limits of the system, disk, clock,
//! certificates, the versions of the home, the database.
//!
//! In: what is examined. Out: findings, each with what to do.
//!
//! Invariants
//! * Nothing in a home is created or changed, whether its instance runs, was stopped or crashed. A bound address is
//!   released at once.
//! * A check that cannot run is a finding, never an error that hides the others.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tympan_notation::{ByteSize, error_chain_text};
use tympan_store::{StateFileUse, read_applied_steps};
use tympan_web::certificate_validity::read_certificate_validity;
use tympan_web::listen::ListenerLimits;

use crate::error::{Error, Result};
use crate::home_format::{HOME_FORMAT_VERSION, check_home_format, read_home_format};
use crate::opened_home::is_home_locked;
use crate::state::{STATE_FILE, StateTableGroup};
use crate::trusted_clock::recorded_trusted_now;

/// Free space of a disk below which an instance may soon refuse writes.
const LITTLE_SPACE_BYTES: u64 = 5 << 30;
/// Free space of a disk below which it must not be started.
const NO_SPACE_BYTES: u64 = 256 << 20;
/// A certificate that ends earlier should have been renewed.
const RENEWAL_TIME: Duration = Duration::from_hours(14 * 24);
/// A difference of clocks beyond which jobs and leases of several machines go wrong.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(30);
/// A clock before this time, the beginning of 2025, was never set.
const EARLIEST_CLOCK_SECONDS: u64 = 1_735_689_600;

/// The weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosisLevel {
    /// All is well.
    Ok,
    /// It works, and may fail later.
    Warning,
    /// An instance does not start, or fails.
    Error,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiagnosisFinding {
    /// The subject: `port`, `open files`, `disk`, `clock`, `certificate`, `format`, `database`.
    pub check: &'static str,
    /// The weight.
    pub level: DiagnosisLevel,
    /// The fact.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl DiagnosisFinding {
    fn ok(check: &'static str, message: String) -> Self {
        Self { check, level: DiagnosisLevel::Ok, message, advice: None }
    }

    fn warning(check: &'static str, message: String, advice: impl Into<String>) -> Self {
        Self { check, level: DiagnosisLevel::Warning, message, advice: Some(advice.into()) }
    }

    fn error(check: &'static str, message: String, advice: impl Into<String>) -> Self {
        Self { check, level: DiagnosisLevel::Error, message, advice: Some(advice.into()) }
    }
}

/// Checks that an address can be listened on, or is used by the running instance of this home.
pub fn diagnose_address(name: &str, address: SocketAddr, is_running: bool) -> DiagnosisFinding {
    let port = address.port();
    match TcpListener::bind(address) {
        Ok(_released) => DiagnosisFinding::ok("port", format!("{name}: {address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_running => DiagnosisFinding::ok(
            "port",
            format!("{name}: {address} is used, and the instance of this home runs"),
        ),
        Err(error) if error.kind() == ErrorKind::AddrInUse => DiagnosisFinding::error(
            "port",
            format!("{name}: {address} is used by another program"),
            format!(
                "`ss -ltnp 'sport = :{port}'` names it as root; stop it, or set another address with `--listen` or in tympan.toml"
            ),
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => DiagnosisFinding::error(
            "port",
            format!("{name}: only root may listen on {address}"),
            "run it as a service, whose unit has the right (`tympan service print`), or choose a port above 1023",
        ),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => DiagnosisFinding::error(
            "port",
            format!("{name}: {address} is no address of this machine"),
            "`ip address` lists the addresses; 0.0.0.0 and [::] stand for all",
        ),
        Err(error) => DiagnosisFinding::error(
            "port",
            format!("{name}: cannot listen on {address}: {error}"),
            "choose another address",
        ),
    }
}

/// Checks that the limit of open files of a new process suffices for this number of connections.
pub fn diagnose_open_files(max_connections: usize) -> DiagnosisFinding {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    let Some(files) = limit else {
        return DiagnosisFinding::ok("open files", "no limit".to_owned());
    };
    let possible = ListenerLimits::max_connections_for_files(files);
    if possible >= max_connections {
        return DiagnosisFinding::ok(
            "open files",
            format!("{files}, enough for {max_connections} connections"),
        );
    }
    DiagnosisFinding::warning(
        "open files",
        format!("{files}, enough for {possible} connections of {max_connections}"),
        "raise the hard limit of `nofile` in /etc/security/limits.conf, or run it as a service, whose unit sets `LimitNOFILE`",
    )
}

/// Checks the free space of the disk that holds a folder, which need not exist yet.
pub fn diagnose_disk(dir: &Path) -> DiagnosisFinding {
    let existing = dir.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let name = dir.display();
    let disk = match rustix::fs::statvfs(existing) {
        Ok(disk) => disk,
        Err(error) => {
            return DiagnosisFinding::error(
                "disk",
                format!("cannot read the free space of `{}`: {error}", existing.display()),
                "check that its disk is mounted",
            );
        }
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let free_text = format_space(free);
    let advice = "free space, or move the home to a larger disk; `tympan repo gc` and `tympan blobs gc` remove garbage";
    if free < NO_SPACE_BYTES {
        return DiagnosisFinding::error("disk", format!("`{name}`: {free_text} free"), advice);
    }
    // A file system without a limit of files counts none.
    if disk.f_files > 0 && disk.f_favail < 10_000 {
        let message = format!("`{name}`: only {} more files fit", disk.f_favail);
        return DiagnosisFinding::warning(
            "disk",
            message,
            "remove small files, or use a file system with more inodes",
        );
    }
    if free < LITTLE_SPACE_BYTES {
        return DiagnosisFinding::warning("disk", format!("`{name}`: {free_text} free"), advice);
    }
    DiagnosisFinding::ok("disk", format!("`{name}`: {free_text} free"))
}

/// Returns a size in the unit that people compare disks in.
fn format_space(bytes: u64) -> String {
    let whole = if bytes >= 10 << 30 { bytes >> 30 << 30 } else { bytes >> 20 << 20 };
    ByteSize::from_bytes(whole).to_string()
}

/// Checks the clock against what is certain: the year, and the time that a home has seen.
pub fn diagnose_clock(home: Option<&Path>, now: SystemTime) -> DiagnosisFinding {
    let advice = "set the clock, and keep it right with chrony or systemd-timesyncd";
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if since_1970.as_secs() < EARLIEST_CLOCK_SECONDS {
        return DiagnosisFinding::error(
            "clock",
            "the clock shows a time before 2025".to_owned(),
            advice,
        );
    }
    let seen = home.map(|home| (recorded_trusted_now(home, now), newest_change(home)));
    let Some((trusted, newest)) = seen else {
        return DiagnosisFinding::ok("clock", "plausible".to_owned());
    };
    if let Some(ahead) = newest.and_then(|newest| newest.duration_since(now).ok())
        && ahead > MAX_CLOCK_DIFFERENCE
    {
        let message =
            format!("the clock is {} behind the last write of this home", format_span(ahead));
        return DiagnosisFinding::error("clock", message, advice);
    }
    match now.duration_since(trusted) {
        // An instance that was stopped for long is followed as soon as it has run for a day.
        Ok(step) if trusted > UNIX_EPOCH && step > Duration::from_hours(24 * 30) => {
            DiagnosisFinding::warning(
                "clock",
                format!(
                    "the clock is {} ahead of the time that this home has seen",
                    format_span(step)
                ),
                "if the instance was not stopped for that long, the clock is wrong: set it before the next start",
            )
        }
        _ => DiagnosisFinding::ok("clock", "plausible".to_owned()),
    }
}

/// Returns the time of the last change of a file that a running instance writes.
fn newest_change(home: &Path) -> Option<SystemTime> {
    let modified = |name: &str| fs::metadata(home.join(name)).and_then(|file| file.modified()).ok();
    ["clock", STATE_FILE, "store"].into_iter().filter_map(modified).max()
}

fn format_span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Checks that a certificate chain is valid now and for some time.
pub fn diagnose_certificate(file: &Path, now: SystemTime) -> DiagnosisFinding {
    let name = file.display();
    let advice = "renew it; a running instance reads the new file by itself";
    let validity = match fs::read(file) {
        Err(error) => {
            return DiagnosisFinding::error(
                "certificate",
                format!("cannot read `{name}`: {error}"),
                "correct the path in tympan.toml, or let the user of the instance read the file",
            );
        }
        Ok(pem) => read_certificate_validity(&pem),
    };
    let validity = match validity {
        Ok(validity) => validity,
        Err(error) => {
            let message = format!("`{name}`: {}", error_chain_text(&error));
            return DiagnosisFinding::error("certificate", message, "replace it by a chain in PEM");
        }
    };
    if validity.not_before > now {
        let message = format!("`{name}` is not valid yet");
        return DiagnosisFinding::error(
            "certificate",
            message,
            "check the clock, or use the earlier one until then",
        );
    }
    match validity.not_after.duration_since(now) {
        Err(over) => {
            let message = format!("`{name}` ended {} ago", format_span(over.duration()));
            DiagnosisFinding::error("certificate", message, advice)
        }
        Ok(left) if left < RENEWAL_TIME => {
            let message = format!("`{name}` ends in {}", format_span(left));
            DiagnosisFinding::warning("certificate", message, advice)
        }
        Ok(left) => DiagnosisFinding::ok(
            "certificate",
            format!("`{name}` is valid for {}", format_span(left)),
        ),
    }
}

/// Checks that this program can open a home, and tells what it will migrate.
pub async fn diagnose_format(dir: &Path, tables: &[StateTableGroup]) -> Vec<DiagnosisFinding> {
    let start_newer = "start the release that wrote it or a newer one, or restore a backup from before the upgrade";
    let mut findings = Vec::new();
    match (check_home_format(dir), read_home_format(dir)) {
        (Err(error), _) | (_, Err(error)) => {
            findings.push(DiagnosisFinding::error("format", error_chain_text(&error), start_newer));
        }
        (Ok(()), Ok(Some(format))) => findings.push(DiagnosisFinding::ok(
            "format",
            format!("home format {} of release {}", format.version, format.program),
        )),
        (Ok(()), Ok(None)) => findings.push(DiagnosisFinding::ok(
            "format",
            format!("home without a recorded format; the next start records {HOME_FORMAT_VERSION}"),
        )),
    }
    let file = dir.join(STATE_FILE);
    if !file.is_file() {
        return findings;
    }
    match state_table_steps(&file, is_home_in_use(dir), tables).await {
        Err(error) => findings.push(DiagnosisFinding::error(
            "format",
            error_chain_text(&error),
            "restore it from a backup; `tympan backup restore` does",
        )),
        Ok(groups) => {
            let newer: Vec<&str> =
                groups.iter().filter(|group| group.is_newer).map(|group| group.name).collect();
            let older: Vec<&str> =
                groups.iter().filter(|group| group.is_older).map(|group| group.name).collect();
            findings.push(if !newer.is_empty() {
                let message = format!("the tables of {} are of a newer program", newer.join(", "));
                DiagnosisFinding::error("format", message, start_newer)
            } else if !older.is_empty() {
                DiagnosisFinding::warning(
                    "format",
                    format!("the next start changes the tables of {}", older.join(", ")),
                    "make a backup first; `state.db` itself is copied to `state.db.before-upgrade`",
                )
            } else {
                DiagnosisFinding::ok("format", format!("`{}` is up to date", file.display()))
            });
        }
    }
    findings
}

/// The state of the tables of one component.
struct TableGroupState {
    name: &'static str,
    is_newer: bool,
    is_older: bool,
}

async fn state_table_steps(
    file: &Path,
    is_running: bool,
    tables: &[StateTableGroup],
) -> Result<Vec<TableGroupState>> {
    let names: Vec<&str> = tables.iter().map(|group| group.name).collect();
    let failed = |error| Error::failed(format!("cannot examine `{}`", file.display()), error);
    let applied = match (is_running, has_write_ahead_log(file)) {
        (false, false) => read_applied_steps(file, StateFileUse::AtRest, &names).await,
        (true, _) => read_applied_steps(file, StateFileUse::Open, &names).await,
        // Reading the log of an instance that crashed would write its index beside it.
        (false, true) => {
            let copy = copy_with_log(file).map_err(|error| {
                Error::failed(
                    format!("cannot copy `{}` in order to read it", file.display()),
                    error,
                )
            })?;
            read_applied_steps(&copy.path().join(STATE_FILE), StateFileUse::Open, &names).await
        }
    };
    let applied = applied.map_err(failed)?;
    Ok(tables
        .iter()
        .zip(applied)
        .map(|(group, applied)| TableGroupState {
            name: group.name,
            is_newer: applied > group.migrations.len(),
            is_older: applied < group.migrations.len(),
        })
        .collect())
}

/// Returns the path of the write-ahead log of a SQLite file.
fn write_ahead_log(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn has_write_ahead_log(file: &Path) -> bool {
    fs::metadata(write_ahead_log(file)).is_ok_and(|log| log.len() > 0)
}

/// Copies a state database and its write-ahead log, which no process has open, into a temporary folder.
fn copy_with_log(file: &Path) -> std::io::Result<tempfile::TempDir> {
    // Only its owner may enter it: the database has login data.
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join(STATE_FILE);
    fs::copy(file, &copy)?;
    fs::copy(write_ahead_log(file), write_ahead_log(&copy))?;
    Ok(folder)
}

/// Checks that a database server answers, and that its clock agrees.
pub async fn diagnose_database(url: &str, now: SystemTime) -> DiagnosisFinding {
    match tympan_store::probe_database_server(url).await {
        Err(error) => DiagnosisFinding::error(
            "database",
            error_chain_text(&error),
            "check that the server runs and is reachable from here, and the URL with `psql`",
        ),
        Ok(server) => {
            let difference = match server.clock.duration_since(now) {
                Ok(ahead) => ahead,
                Err(behind) => behind.duration(),
            };
            if difference > MAX_CLOCK_DIFFERENCE {
                let message = format!("its clock differs by {}", format_span(difference));
                return DiagnosisFinding::warning(
                    "database",
                    message,
                    "set both clocks by one time server",
                );
            }
            DiagnosisFinding::ok("database", format!("reachable, {}", server.version))
        }
    }
}

/// Checks that the user of this process may use a home.
pub fn diagnose_access(dir: &Path) -> DiagnosisFinding {
    let name = dir.display();
    if !dir.exists() {
        return DiagnosisFinding::ok(
            "access",
            format!("`{name}` does not exist; the first start creates it"),
        );
    }
    let allowed =
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    match rustix::fs::access(dir, allowed) {
        Ok(()) => DiagnosisFinding::ok("access", format!("`{name}` can be read and written")),
        Err(error) => DiagnosisFinding::error(
            "access",
            format!("`{name}` cannot be read and written by this user: {error}"),
            "run this as the user of the instance, or give it the folder with `chown -R`",
        ),
    }
}

/// Returns true if an instance of this home runs.
pub fn is_home_in_use(dir: &Path) -> bool {
    dir.join("store").is_dir() && is_home_locked(dir).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_port_is_an_error_unless_the_instance_runs() {
        let socket = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = socket.local_addr().unwrap();
        let finding = diagnose_address("author", address, false);
        assert_eq!(finding.level, DiagnosisLevel::Error);
        let port = address.port();
        assert!(finding.advice.unwrap().contains(&format!("sport = :{port}")));
        assert_eq!(diagnose_address("author", address, true).level, DiagnosisLevel::Ok);
        let elsewhere = diagnose_address("author", "192.0.2.1:4502".parse().unwrap(), false);
        assert!(elsewhere.message.contains("no address of this machine"), "{}", elsewhere.message);
    }

    #[test]
    fn a_clock_that_was_never_set_or_set_back_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let (now, hour) = (SystemTime::now(), Duration::from_hours(1));
        assert_eq!(diagnose_clock(None, UNIX_EPOCH).level, DiagnosisLevel::Error);
        assert_eq!(diagnose_clock(Some(home.path()), now).level, DiagnosisLevel::Ok);
        fs::write(home.path().join(STATE_FILE), "").unwrap();
        let behind = diagnose_clock(Some(home.path()), now - hour);
        assert!(behind.message.contains("behind the last write"), "{}", behind.message);
    }

    #[test]
    fn a_certificate_is_renewed_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cert.pem");
        assert!(diagnose_certificate(&file, SystemTime::now()).message.starts_with("cannot read"));
        fs::write(&file, "nothing").unwrap();
        let finding = diagnose_certificate(&file, SystemTime::now());
        assert!(finding.message.ends_with("the file contains none"), "{}", finding.message);
    }

    #[test]
    fn a_limit_of_files_bounds_connections() {
        assert_eq!(diagnose_open_files(1).level, DiagnosisLevel::Ok);
        let finding = diagnose_open_files(usize::MAX);
        assert_ne!(finding.message, "");
    }

    #[test]
    fn spans_have_the_unit_that_people_use() {
        for (seconds, text) in [(5, "5 s"), (600, "10 min"), (9_000, "2 h"), (900_000, "10 days")] {
            assert_eq!(format_span(Duration::from_secs(seconds)), text);
        }
    }
}
