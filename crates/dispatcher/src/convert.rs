//! From a vhost file of httpd to the section `[dispatcher]` of `tympan.toml`.
//!
//! In: the text of one or more files, variable files (`Define`) first; what they include is read where it stands. Out:
//! TOML, and a finding with its line for every directive that has no counterpart. Nothing is dropped in silence but what
//! says only how httpd itself runs (`ErrorLog`, `ServerAdmin` and the like), and what grants access to everyone.
//!
//! Order of a host's rules, as in httpd: `RewriteRule`, `ProxyPass`, `Redirect`, and then who may see what is served or
//! proxied.
//!
//! Not here: what the rules do (`route`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::any::{Diagnostic, Findings, Position};
use crate::settings::read_level;

mod access;
mod environment;
mod expression;
mod host;
mod include;
mod rewrite;
#[cfg(test)]
mod tests;
mod words;

use access::Section;
use environment::Environment;
use host::{HostPart, Inherits};
use include::{Found, Places, SERVER_ROOT};
use words::split_words;

/// A converted configuration.
#[derive(Debug, Clone)]
pub struct Converted {
    /// The text for `tympan.toml`.
    pub toml: String,
    /// What could not be converted, and why.
    pub diagnostics: Vec<Diagnostic>,
}

/// Reads the files `(name, text)` in order and writes their counterpart.
///
/// Files that they include are taken from the list, or else from the disk: from `root`, a copy of httpd's own folder, or
/// without it from the folders above the file that includes them.
#[must_use]
pub fn convert(files: &[(&Path, &str)], root: Option<&Path>) -> Converted {
    let read = |known| {
        let mut reader = Reader { given: files, root, known, ..Reader::default() };
        for (file, text) in files {
            reader.read(file, text);
        }
        reader
    };
    // What sets a variable may stand behind what asks for it.
    let known = read(Environment::default()).noted;
    read(known).finish()
}

/// A directive with its place.
struct Line<'a> {
    at: &'a Position,
    name: String,
    words: Vec<String>,
}

#[derive(Debug, Default)]
struct Reader<'a> {
    given: &'a [(&'a Path, &'a str)],
    root: Option<&'a Path>,
    server_root: Option<String>,
    findings: Findings,
    variables: BTreeMap<String, String>,
    /// Variables that rules set for the rules behind them.
    environment: BTreeSet<String>,
    /// The variables of all files, as they were read the time before.
    known: Environment,
    /// The variables of the files that were read.
    noted: Environment,
    switches: BTreeMap<&'static str, String>,
    error_documents: BTreeMap<String, String>,
    config: Option<String>,
    /// What stands outside every host.
    global: HostPart,
    hosts: Vec<HostPart>,
    containers: Vec<Container>,
    /// How many containers were open where the current file began.
    base: usize,
    /// `<Location>` and its relatives that are open.
    sections: Vec<Section>,
    /// How many were opened.
    section_count: usize,
    /// Files that are being read, each included by the one before it.
    open: Vec<PathBuf>,
    /// Files that were included.
    included: BTreeSet<PathBuf>,
    include_count: usize,
}

/// More files than any server has, which include each other.
const MAX_INCLUDES: usize = 2000;

/// A container that is open.
#[derive(Debug)]
struct Container {
    name: String,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `<VirtualHost>`.
    Host,
    /// What it holds counts as if it stood outside.
    Open,
    /// Not in force: what it holds does not count.
    Off,
    /// Some requests only; the access rules that it holds are read.
    Section,
    /// `<RequireAny>` and its relatives.
    Group,
    /// No counterpart: what it holds is reported.
    Lost,
}

/// Says only how httpd itself runs, or is said by other means.
const OF_HTTPD: [&str; 20] = [
    "serveradmin",
    "errorlog",
    "customlog",
    "loglevel",
    "options",
    "allowoverride",
    "sethandler",
    "modmimeusepathinfo",
    "loadmodule",
    "rewriteengine",
    "servertokens",
    "serversignature",
    "usecanonicalname",
    "logformat",
    "dispatcherlog",
    "dispatchernoserverheader",
    "directoryindex",
    "rewritelog",
    "proxypassreverse",
    "proxyrequests",
];

impl Reader<'_> {
    fn read(&mut self, file: &Path, text: &str) {
        let base = std::mem::replace(&mut self.base, self.containers.len());
        self.open.push(file.to_path_buf());
        match include::link(file, text) {
            Some(target) => {
                let at = Position { file: Arc::from(file), line: 1, column: 1 };
                self.read_file(&at, &target);
            }
            None => self.read_lines(file, text),
        }
        self.open.pop();
        self.base = base;
    }

    fn read_lines(&mut self, file: &Path, text: &str) {
        let file: Arc<Path> = Arc::from(file);
        let mut lines = text.lines().zip(1_u32..);
        while let Some((first, number)) = lines.next() {
            let mut line = first.to_owned();
            while line.ends_with('\\') {
                line.pop();
                let Some((next, _)) = lines.next() else { break };
                line.push_str(next);
            }
            let indent = line.chars().take_while(|char| char.is_whitespace()).count();
            let column = u32::try_from(indent + 1).unwrap_or(u32::MAX);
            let at = Position { file: Arc::clone(&file), line: number, column };
            self.line(&at, line.trim());
        }
        let mut unclosed = None;
        while self.containers.len() > self.base {
            let Some(container) = self.containers.pop() else { break };
            self.leave(&container);
            unclosed.get_or_insert(container.name);
        }
        if let Some(name) = unclosed {
            let at = Position { file, line: 1, column: 1 };
            self.findings.error(&at, format!("`<{name}>` is never closed"));
        }
    }

    fn line(&mut self, at: &Position, line: &str) {
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        let is_off = self.is_within(Kind::Off);
        let line = if is_off { line.to_owned() } else { self.fill(at, line) };
        if let Some(inner) = line.strip_prefix('<') {
            return self.container(at, inner.trim_end_matches('>'), is_off);
        }
        let mut words = split_words(&line);
        if is_off || words.is_empty() {
            return;
        }
        let name = words.remove(0);
        let line = Line { at, name, words };
        let mut around = self.containers.iter().rev();
        let around = around.find(|around| !matches!(around.kind, Kind::Host | Kind::Open));
        let around = around.map(|around| around.name.clone());
        match (line.name.to_ascii_lowercase().as_str(), around) {
            ("include" | "includeoptional", _) => self.include(&line),
            (name, _) if access::is_access(name) => self.access(&line),
            (_, Some(container)) => self.enclosed(&line, &container),
            (_, None) => self.directive(&line),
        }
    }

    fn is_within(&self, kind: Kind) -> bool {
        self.containers.iter().any(|container| container.kind == kind)
    }

    /// Replaces `${NAME}`; an unknown variable stays.
    fn fill(&mut self, at: &Position, line: &str) -> String {
        let mut filled = String::with_capacity(line.len());
        let mut rest = line;
        while let Some((before, tail)) = rest.split_once("${") {
            filled.push_str(before);
            match tail.split_once('}') {
                Some((name, tail)) => {
                    match self.variables.get(name) {
                        Some(value) => filled.push_str(value),
                        None => {
                            // With a colon it is a look-up in a `RewriteMap`.
                            if !name.contains(':') {
                                let message = format!("the variable `{name}` is not set");
                                self.findings.warn(at, message);
                            }
                            write!(filled, "${{{name}}}").unwrap_or_default();
                        }
                    }
                    rest = tail;
                }
                None => {
                    filled.push_str("${");
                    rest = tail;
                }
            }
        }
        filled.push_str(rest);
        filled
    }

    fn container(&mut self, at: &Position, inner: &str, is_off: bool) {
        if let Some(name) = inner.strip_prefix('/') {
            return self.close(at, name.trim());
        }
        let name = inner.split_whitespace().next().unwrap_or_default().to_owned();
        let argument = inner.get(name.len()..).unwrap_or_default().trim();
        let kind = if is_off { Kind::Off } else { self.kind(at, &name, argument) };
        self.containers.push(Container { name, kind });
    }

    fn kind(&mut self, at: &Position, name: &str, argument: &str) -> Kind {
        let in_force = |holds| if holds { Kind::Open } else { Kind::Off };
        match name.to_ascii_lowercase().as_str() {
            "virtualhost" => {
                self.hosts.push(HostPart::new(at, argument));
                Kind::Host
            }
            "ifmodule" => in_force(!argument.starts_with('!')),
            "ifversion" => in_force(words::is_version(argument)),
            "ifdefine" => match argument.strip_prefix('!') {
                Some(name) => in_force(!self.variables.contains_key(name)),
                None if self.variables.contains_key(argument) => Kind::Open,
                None => {
                    let message = format!(
                        "`{argument}` is not defined, so what `<IfDefine>` holds is left out"
                    );
                    self.findings.warn(at, message);
                    Kind::Off
                }
            },
            "if" if words::is_true(argument).is_some() => {
                in_force(words::is_true(argument) == Some(true))
            }
            "requireany" | "requireall" | "requirenone" => {
                if let Some(section) = self.sections.last_mut() {
                    section.open_group(name);
                }
                Kind::Group
            }
            "directory" | "directorymatch" | "location" | "locationmatch" | "files"
            | "filesmatch" | "proxy" | "proxymatch" | "limit" | "limitexcept" => {
                self.section_count += 1;
                let place = (at, self.section_count);
                let section = Section::open(place, name, argument, self.sections.last());
                self.sections.push(section);
                Kind::Section
            }
            _ => {
                self.unsupported(at, &format!("<{name}>"), "what it holds is left out");
                Kind::Lost
            }
        }
    }

    fn close(&mut self, at: &Position, name: &str) {
        let is_open = self.containers.len() > self.base;
        let closed = if is_open { self.containers.pop() } else { None };
        if closed.as_ref().is_none_or(|closed| !closed.name.eq_ignore_ascii_case(name)) {
            self.findings.error(at, format!("`</{name}>` closes nothing"));
        }
        if let Some(closed) = closed {
            self.leave(&closed);
        }
    }

    fn leave(&mut self, container: &Container) {
        match container.kind {
            Kind::Section => {
                if let Some(section) = self.sections.pop().filter(Section::has_requirements) {
                    self.host().sections.push(section);
                }
            }
            Kind::Group => {
                if let Some(section) = self.sections.last_mut() {
                    section.close_group();
                }
            }
            Kind::Host | Kind::Open | Kind::Off | Kind::Lost => {}
        }
    }

    /// Reads the files that a line includes, as if they stood there.
    fn include(&mut self, line: &Line<'_>) {
        let (wanted, given) = (line.word(0), self.given);
        let places = Places {
            given,
            root: self.root,
            server_root: self.server_root.as_deref().unwrap_or(SERVER_ROOT),
        };
        match places.find(&line.at.file, wanted) {
            Some(Found::Given(files)) => {
                for (file, text) in files.iter().filter_map(|index| given.get(*index)) {
                    if self.enter(line.at, file) {
                        self.read(file, text);
                    }
                }
            }
            Some(Found::Files(files)) => {
                files.iter().for_each(|file| self.read_file(line.at, file));
            }
            None => {
                let message = format!(
                    "`{}` is not followed: there is no `{wanted}`; name httpd's own folder with `--root`, or give the \
                     file too",
                    line.name
                );
                if line.name.eq_ignore_ascii_case("Include") {
                    self.findings.error(line.at, message);
                } else {
                    self.findings.warn(line.at, message);
                }
            }
        }
    }

    /// Notes that a file is included; false if it must not be read.
    fn enter(&mut self, at: &Position, file: &Path) -> bool {
        if self.open.iter().any(|open| open == file) {
            self.findings.error(at, format!("`{}` includes itself", file.display()));
            return false;
        }
        self.include_count += 1;
        if self.include_count == MAX_INCLUDES {
            self.findings.error(at, format!("more than {MAX_INCLUDES} files are included"));
        }
        self.included.insert(file.to_path_buf());
        self.include_count < MAX_INCLUDES
    }

    fn read_file(&mut self, at: &Position, file: &Path) {
        if !self.enter(at, file) {
            return;
        }
        match std::fs::read(file) {
            Ok(bytes) => self.read(file, &String::from_utf8_lossy(&bytes)),
            Err(error) => {
                self.findings.error(at, format!("cannot read `{}`: {error}", file.display()));
            }
        }
    }

    /// Reads who may see something.
    fn access(&mut self, line: &Line<'_>) {
        access::variables(&line.name, &line.words).for_each(|name| self.noted.note_asked(name));
        let is_lost = self.is_within(Kind::Lost);
        let result = match self.sections.last_mut() {
            Some(section) if !is_lost => section.read(&line.name, &line.words, &self.known).map_err(|why| {
                format!(
                    "{why}; what the section holds is refused until a rule of yours stands there"
                )
            }),
            _ if access::grants(&line.name, &line.words) => Ok(()),
            _ => Err("nothing tells which pages it is about".to_owned()),
        };
        if let Err(why) = result {
            self.findings.error(line.at, format!("`{}` is not converted: {why}", line.name));
        }
    }

    /// Reads what stands in a container without a counterpart.
    fn enclosed(&mut self, line: &Line<'_>, container: &str) {
        let name = line.name.to_ascii_lowercase();
        if name == "directoryslash" {
            return self.directive(line);
        }
        if environment::is_environment(&name) {
            self.lose_environment(line);
        }
        let location = self.sections.last().and_then(Section::location);
        let is_proxy = matches!(name.as_str(), "proxypass" | "proxypassmatch");
        if let (true, false, Some((path, is_pattern))) =
            (is_proxy, self.is_within(Kind::Lost), location)
        {
            let path = path.to_owned();
            return self.proxy_of_location(line, &path, is_pattern);
        }
        let is_rule =
            is_proxy || matches!(name.as_str(), "rewritecond" | "rewriterule" | "rewritemap");
        if is_rule || name.starts_with("redirect") {
            let message = format!("`{}` is not converted: it stands in `<{container}>`", line.name);
            self.findings.error(line.at, message);
        } else if !is_of_httpd(&name) {
            self.unsupported(line.at, &line.name, &format!("it stands in `<{container}>`"));
        }
    }

    fn unsupported(&mut self, at: &Position, name: &str, why: &str) {
        self.findings.warn(at, format!("`{name}` is not converted: {why}"));
    }

    fn host(&mut self) -> &mut HostPart {
        let in_host = self.is_within(Kind::Host);
        match self.hosts.last_mut() {
            Some(host) if in_host => host,
            _ => &mut self.global,
        }
    }

    fn directive(&mut self, line: &Line<'_>) {
        let name = line.name.to_ascii_lowercase();
        match name.as_str() {
            "define" => self.define(line),
            "undefine" => drop(self.variables.remove(line.word(0))),
            "serverroot" => self.server_root = Some(line.word(0).trim_end_matches('/').to_owned()),
            "servername" => {
                let name = host_name(line.word(0));
                self.host().names.push(name);
            }
            "serveralias" => {
                let names = line.words.iter().map(|name| host_name(name));
                self.host().names.extend(names);
            }
            "documentroot" => self.host().document_root = Some(line.word(0).to_owned()),
            "rewriteengine" => {
                let is_on = line.word(0).eq_ignore_ascii_case("on");
                self.host().is_rewriting = Some(is_on);
            }
            "rewriteoptions" => self.rewrite_options(line),
            "rewritemap" => self.findings.error(
                line.at,
                format!("`{}` is not converted: rules do not look up tables", line.name),
            ),
            "rewritecond" => self.rewrite_condition(line),
            "rewriterule" => self.rewrite_rule(line),
            "redirect" | "redirectmatch" | "redirectpermanent" | "redirecttemp" => {
                self.redirect(line);
            }
            "proxypass" | "proxypassmatch" => self.proxy_pass(line),
            // Proxy rules turn redirects around by themselves.
            "proxypassreverse" | "proxyrequests" => {}
            "proxypreservehost" => {
                self.host().keeps_host = Some(line.word(0).eq_ignore_ascii_case("on"));
            }
            "errordocument" => self.error_document(line),
            "header" => self.header(line),
            "directoryslash" => {
                if !line.word(0).eq_ignore_ascii_case("off") {
                    self.unsupported(line.at, &line.name, "folders are never redirected");
                }
            }
            name if environment::is_environment(name) => self.environment_directive(line),
            name if name.starts_with("dispatcher") => self.switch(line),
            name if is_of_httpd(name) => {}
            _ => self.unsupported(line.at, &line.name, "it has no counterpart"),
        }
    }

    /// Reads `RewriteOptions Inherit…`.
    fn rewrite_options(&mut self, line: &Line<'_>) {
        let in_host = self.is_within(Kind::Host);
        for option in &line.words {
            let inherits = match (in_host, option.to_ascii_lowercase().as_str()) {
                (true, "inherit") | (false, "inheritdown") => Inherits::After,
                (true, "inheritbefore") | (false, "inheritdownbefore") => Inherits::Before,
                _ => {
                    let why = format!("`{option}` has no counterpart");
                    self.unsupported(line.at, &line.name, &why);
                    continue;
                }
            };
            self.host().inherits = inherits;
        }
    }

    fn define(&mut self, line: &Line<'_>) {
        let value = line.words.get(1..).unwrap_or_default().join(" ");
        self.variables.insert(line.word(0).to_owned(), value);
    }

    /// Reads `Dispatcher…`.
    fn switch(&mut self, line: &Line<'_>) {
        let value = line.word(0);
        let on = || match value.to_ascii_lowercase().as_str() {
            "1" | "on" => Some("true".to_owned()),
            "0" | "off" => Some("false".to_owned()),
            _ => None,
        };
        let (key, text) = match line.name.to_ascii_lowercase().as_str() {
            "dispatcherconfig" => {
                self.config = Some(value.to_owned());
                return;
            }
            "dispatcherdeclineroot" => ("decline_root", on()),
            "dispatcheruseprocessedurl" => ("use_processed_url", on()),
            "dispatchernocanonurl" => ("no_canon_url", on()),
            "dispatcheruseforwardedhost" if value.contains(['/', '.']) => {
                return self.findings.error(
                    line.at,
                    format!(
                        "`{}` is not converted: the key in `{value}` cannot be asked for; write `use_forwarded_host = \
                         true` where every visitor comes through the proxy that sends it",
                        line.name
                    ),
                );
            }
            "dispatcheruseforwardedhost" => ("use_forwarded_host", on()),
            "dispatcherloglevel" => ("log_level", read_level(value).is_ok().then(|| quote(value))),
            "dispatcherrestrictuncacheablecontent" => ("restrict_uncacheable_content", on()),
            "dispatcherpasserror" => ("pass_error", Some(quote(value))),
            "dispatcherkeepalivetimeout" => (
                "keep_alive_timeout",
                value.parse::<u32>().ok().map(|seconds| quote(&format!("{seconds}s"))),
            ),
            name if is_of_httpd(name) => return,
            _ => return self.unsupported(line.at, &line.name, "it has no counterpart"),
        };
        match text {
            Some(text) => drop(self.switches.insert(key, text)),
            None => {
                self.unsupported(line.at, &line.name, &format!("`{value}` is not understood"));
            }
        }
    }

    fn error_document(&mut self, line: &Line<'_>) {
        let (status, document) = (line.word(0).to_owned(), line.word(1).to_owned());
        if self.is_within(Kind::Host) {
            self.host().error_documents.insert(status, document);
        } else {
            self.error_documents.insert(status, document);
        }
    }

    /// Reads `Header [always] set NAME VALUE`.
    fn header(&mut self, line: &Line<'_>) {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        let words = match words.as_slice() {
            ["always" | "onsuccess", rest @ ..] => rest,
            rest => rest,
        };
        let (words, is_sent) = match words {
            [words @ .., condition] if condition.starts_with("env=") => {
                (words, self.is_header_sent(condition))
            }
            words => (words, Some(true)),
        };
        match words {
            ["set", _, value] if is_sent == Some(false) && !value.contains('%') => {}
            ["set", name, value] if is_sent == Some(true) && !value.contains('%') => {
                let (name, value) = ((*name).to_owned(), (*value).to_owned());
                self.host().headers.insert(name, value);
            }
            _ => self.unsupported(
                line.at,
                &line.name,
                "only `Header set NAME VALUE` without variables is, with no condition but `env=` of what `SetEnv` sets",
            ),
        }
    }

    fn finish(mut self) -> Converted {
        let mut toml = String::from("[dispatcher]\n");
        if let Some(config) = &self.config {
            writeln!(toml, "# Farms: --config {config}").unwrap_or_default();
        }
        // A vhost without the directive passes the URL as it was sent; a file of rules alone does not decide that.
        if !self.hosts.is_empty() {
            self.switches.entry("use_processed_url").or_insert_with(|| "false".to_owned());
        }
        for (key, value) in &self.switches {
            writeln!(toml, "{key} = {value}").unwrap_or_default();
        }
        write_table(&mut toml, "error_documents", &self.error_documents);
        self.tell_of_rules_without_host();
        host::write_hosts(&mut toml, &self.hosts, &self.global, &mut self.findings);
        Converted { toml, diagnostics: self.findings.0 }
    }

    /// httpd applies rewrite rules outside every host to no request for one, unless told so.
    fn tell_of_rules_without_host(&mut self) {
        let hosts = self.hosts.iter().map(|host| host.inherits);
        let is_inherited = hosts.chain([self.global.inherits]).any(|own| own != Inherits::Nothing);
        if self.hosts.is_empty() || is_inherited {
            return;
        }
        for rule in &self.global.rewrites {
            // Given on its own, so that it is found, and read where it is included.
            if !self.included.contains(&*rule.at.file) {
                self.findings.warn(
                    &rule.at,
                    "this rewrite rule stands outside every `<VirtualHost>`, where httpd applies it to none; it is \
                     left out",
                );
            }
        }
    }
}

impl Line<'_> {
    fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }
}

fn is_of_httpd(name: &str) -> bool {
    OF_HTTPD.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns a server's name without scheme and port.
fn host_name(name: &str) -> String {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    crate::config::read_host(name).0
}

/// Writes a condition.
fn condition(test: &str, pattern: &str, is_negated: bool) -> String {
    let negated = if is_negated { ", negate = true" } else { "" };
    format!("{{ test = {}, match = {}{negated} }}", quote(test), quote(pattern))
}

/// Writes the conditions of an entry.
fn write_conditions(toml: &mut String, guard: &[String], when: &[String]) {
    let when: Vec<&str> = guard.iter().chain(when).map(String::as_str).collect();
    if !when.is_empty() {
        writeln!(toml, "when = [{}]", when.join(", ")).unwrap_or_default();
    }
}

/// Returns a condition beside which it is enough that the next one holds.
fn or_next(condition: &str) -> String {
    format!("{}, or = true }}", condition.trim_end_matches(" }"))
}

fn write_table(toml: &mut String, name: &str, values: &BTreeMap<String, String>) {
    if values.is_empty() {
        return;
    }
    let pairs: Vec<String> =
        values.iter().map(|(key, value)| format!("{} = {}", quote(key), quote(value))).collect();
    writeln!(toml, "{name} = {{ {} }}", pairs.join(", ")).unwrap_or_default();
}

/// Writes a TOML string, a literal one where that reads better.
fn quote(text: &str) -> String {
    let is_plain = !text.contains('\'') && !text.chars().any(char::is_control);
    if is_plain && text.contains(['\\', '"']) {
        return format!("'{text}'");
    }
    let mut quoted = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => quoted.extend(['\\', char]),
            char if char.is_control() => {
                write!(quoted, "\\u{:04x}", u32::from(char)).unwrap_or_default();
            }
            char => quoted.push(char),
        }
    }
    quoted.push('"');
    quoted
}
