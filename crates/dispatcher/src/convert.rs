//! From a vhost file of httpd to the section `[dispatcher]` of `tympan.toml`.
//!
//! In: the text of one or more files, variable files (`Define`) first. Out: TOML, and a finding with its line for every
//! directive that has no counterpart. Nothing is dropped in silence but what says only how httpd itself runs
//! (`ErrorLog`, `ServerAdmin` and the like).
//!
//! Order of a host's rules: `RewriteRule` first, then `ProxyPass`, then `Redirect`, as httpd tries them.
//!
//! Not here: what the rules do (`route`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::any::{Diagnostic, Findings, Position};

mod rewrite;
mod words;

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
#[must_use]
pub fn convert(files: &[(&Path, &str)]) -> Converted {
    let mut reader = Reader::default();
    for (file, text) in files {
        reader.read(file, text);
    }
    reader.finish()
}

/// One host's part of the output.
#[derive(Debug, Default)]
struct HostPart {
    names: Vec<String>,
    document_root: Option<String>,
    headers: BTreeMap<String, String>,
    error_documents: BTreeMap<String, String>,
    rewrites: Vec<String>,
    proxies: Vec<String>,
    redirects: Vec<String>,
    conditions: Vec<String>,
    is_condition_lost: bool,
    is_rewriting: bool,
    keeps_host: Option<bool>,
}

/// A directive with its place.
struct Line<'a> {
    at: &'a Position,
    name: String,
    words: Vec<String>,
}

#[derive(Debug, Default)]
struct Reader {
    findings: Findings,
    variables: BTreeMap<String, String>,
    switches: BTreeMap<&'static str, String>,
    error_documents: BTreeMap<String, String>,
    config: Option<String>,
    /// What stands outside every host.
    global: HostPart,
    hosts: Vec<HostPart>,
    in_host: bool,
    /// Containers that are open: their names, and whether what they hold is read.
    containers: Vec<(String, bool)>,
}

/// Says only how httpd itself runs.
const OF_HTTPD: [&str; 24] = [
    "serveradmin",
    "errorlog",
    "customlog",
    "loglevel",
    "options",
    "order",
    "allow",
    "deny",
    "require",
    "satisfy",
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
    "dispatcherloglevel",
    "dispatchernoserverheader",
    "directoryindex",
    "rewritelog",
];

impl Reader {
    fn read(&mut self, file: &Path, text: &str) {
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
        let open: Vec<String> = self.containers.drain(..).map(|(name, _)| name).collect();
        if let Some(name) = open.last() {
            let at = Position { file, line: 1, column: 1 };
            self.findings.error(&at, format!("`<{name}>` is never closed"));
        }
        self.in_host = false;
    }

    fn line(&mut self, at: &Position, line: &str) {
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        let line = self.fill(at, line);
        if let Some(inner) = line.strip_prefix('<') {
            return self.container(at, inner.trim_end_matches('>'));
        }
        let mut words = split_words(&line);
        if words.is_empty() {
            return;
        }
        let name = words.remove(0);
        if self.containers.iter().any(|(_, is_read)| !is_read) {
            let (container, _) = self.containers.last().cloned().unwrap_or_default();
            if !is_of_httpd(&name) {
                self.unsupported(at, &name, &format!("it stands in `<{container}>`"));
            }
            return;
        }
        self.directive(&Line { at, name, words });
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
                            self.findings.warn(at, format!("the variable `{name}` is not set"));
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

    fn container(&mut self, at: &Position, inner: &str) {
        if let Some(name) = inner.strip_prefix('/') {
            let closed = self.containers.pop();
            if closed.is_none_or(|(open, _)| !open.eq_ignore_ascii_case(name.trim())) {
                self.findings.error(at, format!("`</{name}>` closes nothing"));
            }
            if name.trim().eq_ignore_ascii_case("VirtualHost") {
                self.in_host = false;
            }
            return;
        }
        let name = inner.split_whitespace().next().unwrap_or_default().to_owned();
        let argument = inner.get(name.len()..).unwrap_or_default().trim().to_owned();
        let is_read = match name.to_ascii_lowercase().as_str() {
            "virtualhost" => {
                self.in_host = true;
                self.hosts.push(HostPart::default());
                true
            }
            "ifmodule" | "ifversion" => !argument.starts_with('!'),
            "ifdefine" => self.is_defined(&argument),
            "directory" | "location" | "locationmatch" | "directorymatch" | "files"
            | "filesmatch" | "proxy" | "limit" | "limitexcept" => false,
            _ => {
                self.unsupported(at, &format!("<{name}>"), "what it holds is left out");
                false
            }
        };
        self.containers.push((name, is_read));
    }

    fn is_defined(&self, argument: &str) -> bool {
        match argument.strip_prefix('!') {
            Some(name) => !self.variables.contains_key(name),
            None => self.variables.contains_key(argument),
        }
    }

    fn unsupported(&mut self, at: &Position, name: &str, why: &str) {
        self.findings.warn(at, format!("`{name}` is not converted: {why}"));
    }

    fn host(&mut self) -> &mut HostPart {
        match self.hosts.last_mut() {
            Some(host) if self.in_host => host,
            _ => &mut self.global,
        }
    }

    fn directive(&mut self, line: &Line<'_>) {
        let name = line.name.to_ascii_lowercase();
        match name.as_str() {
            "define" => self.define(line),
            "undefine" => drop(self.variables.remove(line.word(0))),
            "servername" | "serveralias" => {
                let names = line.words.iter().map(|name| host_name(name));
                self.host().names.extend(names);
            }
            "documentroot" => self.host().document_root = Some(line.word(0).to_owned()),
            "rewriteengine" => {
                self.host().is_rewriting = line.word(0).eq_ignore_ascii_case("on");
            }
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
            name if name.starts_with("dispatcher") => self.switch(line),
            name if is_of_httpd(name) => {}
            _ => self.unsupported(line.at, &line.name, "it has no counterpart"),
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
            "dispatcheruseforwardedhost" => ("use_forwarded_host", on()),
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
        if self.in_host {
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
        match words {
            ["set", name, value] if !value.contains('%') => {
                let (name, value) = ((*name).to_owned(), (*value).to_owned());
                self.host().headers.insert(name, value);
            }
            _ => self.unsupported(
                line.at,
                &line.name,
                "only `Header set NAME VALUE` without conditions and variables is",
            ),
        }
    }

    fn finish(mut self) -> Converted {
        let mut toml = String::from("[dispatcher]\n");
        if let Some(config) = &self.config {
            writeln!(toml, "# Farms: --config {config}").unwrap_or_default();
        }
        // A vhost without the directive passes the URL as it was sent.
        self.switches.entry("use_processed_url").or_insert_with(|| "false".to_owned());
        for (key, value) in &self.switches {
            writeln!(toml, "{key} = {value}").unwrap_or_default();
        }
        write_table(&mut toml, "error_documents", &self.error_documents);
        for host in &self.hosts {
            host.write(&mut toml, &self.global);
        }
        if self.hosts.is_empty() {
            HostPart::default().write(&mut toml, &self.global);
        }
        Converted { toml, diagnostics: self.findings.0 }
    }
}

impl HostPart {
    fn write(&self, toml: &mut String, global: &Self) {
        toml.push_str("\n[[dispatcher.host]]\n");
        if !self.names.is_empty() {
            let names: Vec<String> = self.names.iter().map(|name| quote(name)).collect();
            writeln!(toml, "names = [{}]", names.join(", ")).unwrap_or_default();
        }
        if let Some(root) = self.document_root.as_ref().or(global.document_root.as_ref()) {
            writeln!(toml, "document_root = {}", quote(root)).unwrap_or_default();
        }
        let mut headers = global.headers.clone();
        headers.extend(self.headers.clone());
        write_table(toml, "headers", &headers);
        write_table(toml, "error_documents", &self.error_documents);
        let rewrites = if self.is_rewriting { self.rewrites.as_slice() } else { &[] };
        for rule in
            rewrites.iter().chain(&self.proxies).chain(&self.redirects).chain(&global.redirects)
        {
            toml.push_str("\n[[dispatcher.host.rule]]\n");
            toml.push_str(rule);
            let keeps_host = self.keeps_host.or(global.keeps_host).unwrap_or(false);
            if keeps_host && rule.contains("\nproxy = ") {
                toml.push_str("keep_host = true\n");
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
    crate::config::split_port(name).0.to_ascii_lowercase()
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
