//! Conversion of an httpd vhost file to the section `[dispatcher]` of `tympan.toml`.
//!
//! Input: the text of one or more files, variable files (`Define`) first; included files are read in place. Output:
//! TOML, and a diagnostic with its line for every directive that has no counterpart. Only directives that concern the
//! operation of httpd itself (`ErrorLog`, `ServerAdmin` and the like), and those that grant access to everyone, are
//! dropped silently.
//!
//! Order of a host's rules, as in httpd: `RewriteRule`, `ProxyPass`, `Redirect`, and then access to what is served
//! or proxied.
//!
//! Not here: the effect of the rules (`host_routing`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::any_syntax::{ConfigDiagnostic, DiagnosticCollector, SourcePosition};
use crate::config::setting_text::parse_log_level;

mod access;
mod argument;
mod environment;
mod expression;
mod host;
mod include;
mod rewrite;
#[cfg(test)]
mod tests;

use access::HttpdSection;
use argument::split_words;
use environment::HttpdEnvironment;
use host::{HttpdHost, RewriteInheritance};
use include::{DEFAULT_SERVER_ROOT, IncludeMatch, IncludeSearch};

/// A converted configuration.
#[derive(Debug, Clone)]
pub struct ConvertedConfig {
    /// The TOML text for `tympan.toml`.
    pub toml: String,
    /// The directives that could not be converted, with reasons.
    pub diagnostics: Vec<ConfigDiagnostic>,
}

/// Converts the files `(name, text)` in order.
///
/// Included files are taken from the list, or else from the disk: from `root`, a copy of httpd's own folder, or without
/// it from the folders above the including file.
#[must_use]
pub fn convert_httpd_config(files: &[(&Path, &str)], root: Option<&Path>) -> ConvertedConfig {
    let read = |environment| {
        let mut reader = HttpdConfigReader {
            supplied_files: files,
            root,
            known_environment: environment,
            ..HttpdConfigReader::default()
        };
        for (file, text) in files {
            reader.read_text(file, text);
        }
        reader
    };
    // A directive that sets a variable may come after one that uses it.
    let environment = read(HttpdEnvironment::default()).recorded_environment;
    read(environment).finish()
}

/// A directive with its position.
struct HttpdDirective<'a> {
    position: &'a SourcePosition,
    name: String,
    arguments: Vec<String>,
}

#[derive(Debug, Default)]
struct HttpdConfigReader<'a> {
    supplied_files: &'a [(&'a Path, &'a str)],
    root: Option<&'a Path>,
    server_root: Option<String>,
    diagnostics: DiagnosticCollector,
    variables: BTreeMap<String, String>,
    /// The variables that rules set for later rules.
    rule_variables: BTreeSet<String>,
    /// The environment variables of all files, as collected in the previous pass.
    known_environment: HttpdEnvironment,
    /// The environment variables of the files read so far.
    recorded_environment: HttpdEnvironment,
    switches: BTreeMap<&'static str, String>,
    error_documents: BTreeMap<String, String>,
    dispatcher_config: Option<String>,
    /// The directives outside every host.
    global: HttpdHost,
    hosts: Vec<HttpdHost>,
    containers: Vec<HttpdContainer>,
    /// The number of containers that were open at the start of the current file.
    file_container_base: usize,
    /// The open sections: `<Location>` and similar.
    sections: Vec<HttpdSection>,
    /// The number of sections opened so far.
    section_count: usize,
    /// The files being read, each included by the previous one.
    open_files: Vec<PathBuf>,
    /// The files that were included.
    included_files: BTreeSet<PathBuf>,
    include_count: usize,
}

/// The maximum number of includes; more than any server has, so that cyclic includes end.
const MAX_INCLUDES: usize = 2000;

/// An open container.
#[derive(Debug)]
struct HttpdContainer {
    name: String,
    kind: HttpdContainerKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HttpdContainerKind {
    /// `<VirtualHost>`.
    Host,
    /// Its content is treated as if it were outside.
    Transparent,
    /// Not in effect: its content is ignored.
    Inactive,
    /// Applies to some requests only; its access rules are read.
    Section,
    /// `<RequireAny>` and similar groups.
    Group,
    /// No counterpart: its content is reported.
    Unconvertible,
}

/// Directives that concern only the operation of httpd, or that are expressed by other means.
const HTTPD_ONLY_DIRECTIVES: [&str; 20] = [
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

impl HttpdConfigReader<'_> {
    fn read_text(&mut self, file: &Path, text: &str) {
        let base = std::mem::replace(&mut self.file_container_base, self.containers.len());
        self.open_files.push(file.to_path_buf());
        match include::link_target(file, text) {
            Some(target) => {
                let at = SourcePosition { file: Arc::from(file), line: 1, column: 1 };
                self.read_file(&at, &target);
            }
            None => self.read_lines(file, text),
        }
        self.open_files.pop();
        self.file_container_base = base;
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
            let at = SourcePosition { file: Arc::clone(&file), line: number, column };
            self.read_line(&at, line.trim());
        }
        let mut unclosed = None;
        while self.containers.len() > self.file_container_base {
            let Some(container) = self.containers.pop() else { break };
            self.finish_container(&container);
            unclosed.get_or_insert(container.name);
        }
        if let Some(name) = unclosed {
            let at = SourcePosition { file, line: 1, column: 1 };
            self.diagnostics.add_error(&at, format!("`<{name}>` is never closed"));
        }
    }

    fn read_line(&mut self, at: &SourcePosition, line: &str) {
        if line.is_empty() || line.starts_with('#') {
            return;
        }
        let is_off = self.is_within(HttpdContainerKind::Inactive);
        let line = if is_off { line.to_owned() } else { self.expand_variables(at, line) };
        if let Some(inner) = line.strip_prefix('<') {
            return self.open_container(at, inner.trim_end_matches('>'), is_off);
        }
        let mut words = split_words(&line);
        if is_off || words.is_empty() {
            return;
        }
        let name = words.remove(0);
        let line = HttpdDirective { position: at, name, arguments: words };
        let mut around = self.containers.iter().rev();
        let around = around.find(|around| {
            !matches!(around.kind, HttpdContainerKind::Host | HttpdContainerKind::Transparent)
        });
        let around = around.map(|around| around.name.clone());
        match (line.name.to_ascii_lowercase().as_str(), around) {
            ("include" | "includeoptional", _) => self.read_include(&line),
            (name, _) if access::is_access_directive(name) => self.read_access_directive(&line),
            (_, Some(container)) => self.read_enclosed_directive(&line, &container),
            (_, None) => self.read_directive(&line),
        }
    }

    fn is_within(&self, kind: HttpdContainerKind) -> bool {
        self.containers.iter().any(|container| container.kind == kind)
    }

    /// Replaces `${NAME}`; an undefined variable stays unchanged.
    fn expand_variables(&mut self, at: &SourcePosition, line: &str) -> String {
        let mut filled = String::with_capacity(line.len());
        let mut rest = line;
        while let Some((before, tail)) = rest.split_once("${") {
            filled.push_str(before);
            match tail.split_once('}') {
                Some((name, tail)) => {
                    match self.variables.get(name) {
                        Some(value) => filled.push_str(value),
                        None => {
                            // A name with a colon is a look-up in a `RewriteMap`.
                            if !name.contains(':') {
                                let message = format!("the variable `{name}` is not set");
                                self.diagnostics.add_warning(at, message);
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

    fn open_container(&mut self, at: &SourcePosition, inner: &str, is_off: bool) {
        if let Some(name) = inner.strip_prefix('/') {
            return self.close_container(at, name.trim());
        }
        let name = inner.split_whitespace().next().unwrap_or_default().to_owned();
        let argument = inner.get(name.len()..).unwrap_or_default().trim();
        let kind = if is_off {
            HttpdContainerKind::Inactive
        } else {
            self.container_kind(at, &name, argument)
        };
        self.containers.push(HttpdContainer { name, kind });
    }

    fn container_kind(
        &mut self,
        at: &SourcePosition,
        name: &str,
        argument: &str,
    ) -> HttpdContainerKind {
        let in_force = |holds| {
            if holds { HttpdContainerKind::Transparent } else { HttpdContainerKind::Inactive }
        };
        match name.to_ascii_lowercase().as_str() {
            "virtualhost" => {
                self.hosts.push(HttpdHost::new(at, argument));
                HttpdContainerKind::Host
            }
            "ifmodule" => in_force(!argument.starts_with('!')),
            "ifversion" => in_force(argument::matches_httpd_version(argument)),
            "ifdefine" => match argument.strip_prefix('!') {
                Some(name) => in_force(!self.variables.contains_key(name)),
                None if self.variables.contains_key(argument) => HttpdContainerKind::Transparent,
                None => {
                    let message = format!(
                        "`{argument}` is not defined, so the content of `<IfDefine>` is left out"
                    );
                    self.diagnostics.add_warning(at, message);
                    HttpdContainerKind::Inactive
                }
            },
            "if" if argument::evaluate_static_condition(argument).is_some() => {
                in_force(argument::evaluate_static_condition(argument) == Some(true))
            }
            "requireany" | "requireall" | "requirenone" => {
                if let Some(section) = self.sections.last_mut() {
                    section.open_group(name);
                }
                HttpdContainerKind::Group
            }
            "directory" | "directorymatch" | "location" | "locationmatch" | "files"
            | "filesmatch" | "proxy" | "proxymatch" | "limit" | "limitexcept" => {
                self.section_count += 1;
                let opening = (at, self.section_count);
                let section = HttpdSection::open(opening, name, argument, self.sections.last());
                self.sections.push(section);
                HttpdContainerKind::Section
            }
            _ => {
                self.warn_of_unsupported(at, &format!("<{name}>"), "its content is left out");
                HttpdContainerKind::Unconvertible
            }
        }
    }

    fn close_container(&mut self, at: &SourcePosition, name: &str) {
        let is_open = self.containers.len() > self.file_container_base;
        let closed = if is_open { self.containers.pop() } else { None };
        if closed.as_ref().is_none_or(|closed| !closed.name.eq_ignore_ascii_case(name)) {
            self.diagnostics.add_error(at, format!("`</{name}>` has no opening tag"));
        }
        if let Some(closed) = closed {
            self.finish_container(&closed);
        }
    }

    fn finish_container(&mut self, container: &HttpdContainer) {
        match container.kind {
            HttpdContainerKind::Section => {
                if let Some(section) = self.sections.pop().filter(HttpdSection::has_requirements) {
                    self.current_host().sections.push(section);
                }
            }
            HttpdContainerKind::Group => {
                if let Some(section) = self.sections.last_mut() {
                    section.close_group();
                }
            }
            HttpdContainerKind::Host
            | HttpdContainerKind::Transparent
            | HttpdContainerKind::Inactive
            | HttpdContainerKind::Unconvertible => {}
        }
    }

    /// Reads the files that a line includes, in place.
    fn read_include(&mut self, line: &HttpdDirective<'_>) {
        let (pattern, supplied_files) = (line.argument(0), self.supplied_files);
        let search = IncludeSearch {
            supplied_files,
            root: self.root,
            server_root: self.server_root.as_deref().unwrap_or(DEFAULT_SERVER_ROOT),
        };
        match search.find_included(&line.position.file, pattern) {
            Some(IncludeMatch::Supplied(files)) => {
                for (file, text) in files.iter().filter_map(|index| supplied_files.get(*index)) {
                    if self.begin_file(line.position, file) {
                        self.read_text(file, text);
                    }
                }
            }
            Some(IncludeMatch::OnDisk(files)) => {
                files.iter().for_each(|file| self.read_file(line.position, file));
            }
            None => {
                let message = format!(
                    "`{}` is not followed: `{pattern}` does not exist; specify httpd's own folder with \
                     `--root`, or pass the file too",
                    line.name
                );
                if line.name.eq_ignore_ascii_case("Include") {
                    self.diagnostics.add_error(line.position, message);
                } else {
                    self.diagnostics.add_warning(line.position, message);
                }
            }
        }
    }

    /// Records that a file is included; returns false if it must not be read.
    fn begin_file(&mut self, at: &SourcePosition, file: &Path) -> bool {
        if self.open_files.iter().any(|open| open == file) {
            self.diagnostics.add_error(at, format!("`{}` includes itself", file.display()));
            return false;
        }
        self.include_count += 1;
        if self.include_count == MAX_INCLUDES {
            self.diagnostics.add_error(at, format!("more than {MAX_INCLUDES} files are included"));
        }
        self.included_files.insert(file.to_path_buf());
        self.include_count < MAX_INCLUDES
    }

    fn read_file(&mut self, at: &SourcePosition, file: &Path) {
        if !self.begin_file(at, file) {
            return;
        }
        match std::fs::read(file) {
            Ok(bytes) => self.read_text(file, &String::from_utf8_lossy(&bytes)),
            Err(error) => {
                self.diagnostics
                    .add_error(at, format!("cannot read `{}`: {error}", file.display()));
            }
        }
    }

    /// Reads an access directive.
    fn read_access_directive(&mut self, line: &HttpdDirective<'_>) {
        access::environment_variables_of(&line.name, &line.arguments)
            .for_each(|name| self.recorded_environment.record_query(name));
        let is_lost = self.is_within(HttpdContainerKind::Unconvertible);
        let result = match self.sections.last_mut() {
            Some(section) if !is_lost => section
                .read_directive(&line.name, &line.arguments, &self.known_environment)
                .map_err(|why| {
                    format!("{why}; requests for the section are refused until you add a rule")
                }),
            _ if access::is_unrestricted(&line.name, &line.arguments) => Ok(()),
            _ => Err("the pages to which it applies are unknown".to_owned()),
        };
        if let Err(why) = result {
            self.diagnostics
                .add_error(line.position, format!("`{}` is not converted: {why}", line.name));
        }
    }

    /// Reads a directive in a container without a counterpart.
    fn read_enclosed_directive(&mut self, line: &HttpdDirective<'_>, container: &str) {
        let name = line.name.to_ascii_lowercase();
        if name == "directoryslash" {
            return self.read_directive(line);
        }
        if environment::is_environment_directive(&name) {
            self.record_unconverted_variables(line);
        }
        let location = self.sections.last().and_then(HttpdSection::location);
        let is_proxy = matches!(name.as_str(), "proxypass" | "proxypassmatch");
        if let (true, false, Some((path, is_pattern))) =
            (is_proxy, self.is_within(HttpdContainerKind::Unconvertible), location)
        {
            let path = path.to_owned();
            return self.read_location_proxy(line, &path, is_pattern);
        }
        let is_rule =
            is_proxy || matches!(name.as_str(), "rewritecond" | "rewriterule" | "rewritemap");
        if is_rule || name.starts_with("redirect") {
            let message = format!("`{}` is not converted: it is inside `<{container}>`", line.name);
            self.diagnostics.add_error(line.position, message);
        } else if !is_httpd_only(&name) {
            self.warn_of_unsupported(
                line.position,
                &line.name,
                &format!("it is inside `<{container}>`"),
            );
        }
    }

    fn warn_of_unsupported(&mut self, at: &SourcePosition, name: &str, why: &str) {
        self.diagnostics.add_warning(at, format!("`{name}` is not converted: {why}"));
    }

    fn current_host(&mut self) -> &mut HttpdHost {
        let in_host = self.is_within(HttpdContainerKind::Host);
        match self.hosts.last_mut() {
            Some(host) if in_host => host,
            _ => &mut self.global,
        }
    }

    fn read_directive(&mut self, line: &HttpdDirective<'_>) {
        let name = line.name.to_ascii_lowercase();
        match name.as_str() {
            "define" => self.read_define(line),
            "undefine" => drop(self.variables.remove(line.argument(0))),
            "serverroot" => {
                self.server_root = Some(line.argument(0).trim_end_matches('/').to_owned())
            }
            "servername" => {
                let name = bare_host_name(line.argument(0));
                self.current_host().names.push(name);
            }
            "serveralias" => {
                let names = line.arguments.iter().map(|name| bare_host_name(name));
                self.current_host().names.extend(names);
            }
            "documentroot" => self.current_host().document_root = Some(line.argument(0).to_owned()),
            "rewriteengine" => {
                let is_on = line.argument(0).eq_ignore_ascii_case("on");
                self.current_host().is_rewrite_enabled = Some(is_on);
            }
            "rewriteoptions" => self.read_rewrite_options(line),
            "rewritemap" => self.diagnostics.add_error(
                line.position,
                format!("`{}` is not converted: rewrite maps are not supported", line.name),
            ),
            "rewritecond" => self.read_rewrite_condition(line),
            "rewriterule" => self.handle_rewrite_rule(line),
            "redirect" | "redirectmatch" | "redirectpermanent" | "redirecttemp" => {
                self.read_redirect(line);
            }
            "proxypass" | "proxypassmatch" => self.read_proxy_pass(line),
            // Proxy rules rewrite redirects themselves.
            "proxypassreverse" | "proxyrequests" => {}
            "proxypreservehost" => {
                self.current_host().keeps_host = Some(line.argument(0).eq_ignore_ascii_case("on"));
            }
            "errordocument" => self.read_error_document(line),
            "allowencodedslashes" => self.read_encoded_slashes(line),
            "header" => self.read_header(line),
            "directoryslash" => {
                if !line.argument(0).eq_ignore_ascii_case("off") {
                    self.warn_of_unsupported(
                        line.position,
                        &line.name,
                        "folders are never redirected",
                    );
                }
            }
            name if environment::is_environment_directive(name) => {
                self.read_environment_directive(line)
            }
            name if name.starts_with("dispatcher") => self.read_dispatcher_switch(line),
            name if is_httpd_only(name) => {}
            _ => self.warn_of_unsupported(line.position, &line.name, "it has no counterpart"),
        }
    }

    /// Reads `RewriteOptions Inherit…`.
    fn read_rewrite_options(&mut self, line: &HttpdDirective<'_>) {
        let in_host = self.is_within(HttpdContainerKind::Host);
        for option in &line.arguments {
            let inherits = match (in_host, option.to_ascii_lowercase().as_str()) {
                (true, "inherit") | (false, "inheritdown") => RewriteInheritance::After,
                (true, "inheritbefore") | (false, "inheritdownbefore") => {
                    RewriteInheritance::Before
                }
                _ => {
                    let why = format!("`{option}` has no counterpart");
                    self.warn_of_unsupported(line.position, &line.name, &why);
                    continue;
                }
            };
            self.current_host().inheritance = inherits;
        }
    }

    fn read_define(&mut self, line: &HttpdDirective<'_>) {
        let value = line.arguments.get(1..).unwrap_or_default().join(" ");
        self.variables.insert(line.argument(0).to_owned(), value);
    }

    /// Reads a `Dispatcher…` directive.
    fn read_dispatcher_switch(&mut self, line: &HttpdDirective<'_>) {
        let value = line.argument(0);
        let on = || match value.to_ascii_lowercase().as_str() {
            "1" | "on" => Some("true".to_owned()),
            "0" | "off" => Some("false".to_owned()),
            _ => None,
        };
        let (key, text) = match line.name.to_ascii_lowercase().as_str() {
            "dispatcherconfig" => {
                self.dispatcher_config = Some(value.to_owned());
                return;
            }
            "dispatcherdeclineroot" => ("decline_root", on()),
            "dispatcheruseprocessedurl" => ("use_processed_url", on()),
            "dispatchernocanonurl" => ("no_canon_url", on()),
            "dispatcheruseforwardedhost" if value.contains(['/', '.']) => {
                return self.diagnostics.add_error(
                    line.position,
                    format!(
                        "`{}` is not converted: the key in `{value}` cannot be checked; write \
                         `use_forwarded_host = true` if every visitor comes through the proxy that sends it",
                        line.name
                    ),
                );
            }
            "dispatcheruseforwardedhost" => ("use_forwarded_host", on()),
            "dispatcherloglevel" => {
                ("log_level", parse_log_level(value).is_ok().then(|| quote_toml(value)))
            }
            "dispatcherrestrictuncacheablecontent" => ("restrict_uncacheable_content", on()),
            "dispatcherpasserror" => ("pass_error", Some(quote_toml(value))),
            "dispatcherkeepalivetimeout" => (
                "keep_alive_timeout",
                value.parse::<u32>().ok().map(|seconds| quote_toml(&format!("{seconds}s"))),
            ),
            name if is_httpd_only(name) => return,
            _ => {
                return self.warn_of_unsupported(
                    line.position,
                    &line.name,
                    "it has no counterpart",
                );
            }
        };
        match text {
            Some(text) => drop(self.switches.insert(key, text)),
            None => {
                self.warn_of_unsupported(
                    line.position,
                    &line.name,
                    &format!("`{value}` is not recognized"),
                );
            }
        }
    }

    /// Reads `AllowEncodedSlashes`, which is a setting of all hosts here.
    fn read_encoded_slashes(&mut self, line: &HttpdDirective<'_>) {
        let keyword = match line.argument(0).to_ascii_lowercase().as_str() {
            "off" => "off",
            "on" => "on",
            "nodecode" => "no_decode",
            other => {
                let why = format!("`{other}` is not recognized");
                return self.warn_of_unsupported(line.position, &line.name, &why);
            }
        };
        let text = quote_toml(keyword);
        let previous = self.switches.insert("encoded_slashes", text.clone());
        if previous.is_some_and(|previous| previous != text) {
            let why = "it applies to all hosts, and another host has a different value";
            self.warn_of_unsupported(line.position, &line.name, why);
        }
    }

    fn read_error_document(&mut self, line: &HttpdDirective<'_>) {
        let (status, document) = (line.argument(0).to_owned(), line.argument(1).to_owned());
        if self.is_within(HttpdContainerKind::Host) {
            self.current_host().error_documents.insert(status, document);
        } else {
            self.error_documents.insert(status, document);
        }
    }

    /// Reads `Header [always] set NAME VALUE`.
    fn read_header(&mut self, line: &HttpdDirective<'_>) {
        let words: Vec<&str> = line.arguments.iter().map(String::as_str).collect();
        let words = match words.as_slice() {
            ["always" | "onsuccess", rest @ ..] => rest,
            rest => rest,
        };
        let (words, is_sent) = match words {
            [words @ .., condition] if condition.starts_with("env=") => {
                (words, self.is_header_always_sent(condition))
            }
            words => (words, Some(true)),
        };
        match words {
            ["set", _, value] if is_sent == Some(false) && !value.contains('%') => {}
            ["set", name, value] if is_sent == Some(true) && !value.contains('%') => {
                let (name, value) = ((*name).to_owned(), (*value).to_owned());
                self.current_host().headers.insert(name, value);
            }
            _ => self.warn_of_unsupported(
                line.position,
                &line.name,
                "only `Header set NAME VALUE` without variables is, optionally with `env=` of a variable that \
                 `SetEnv` sets",
            ),
        }
    }

    fn finish(mut self) -> ConvertedConfig {
        let mut toml = String::from("[dispatcher]\n");
        if let Some(config) = &self.dispatcher_config {
            writeln!(toml, "# Farms: --config {config}").unwrap_or_default();
        }
        // A vhost without the directive passes the URL as sent; a file that holds only rules does not decide that.
        if !self.hosts.is_empty() {
            self.switches.entry("use_processed_url").or_insert_with(|| "false".to_owned());
        }
        for (key, value) in &self.switches {
            writeln!(toml, "{key} = {value}").unwrap_or_default();
        }
        write_toml_table(&mut toml, "error_documents", &self.error_documents);
        self.warn_of_rules_without_host();
        host::write_hosts(&mut toml, &self.hosts, &self.global, &mut self.diagnostics);
        ConvertedConfig { toml, diagnostics: self.diagnostics.0 }
    }

    /// Warns of rewrite rules outside every host, which httpd does not apply to requests for a host unless they are
    /// inherited.
    fn warn_of_rules_without_host(&mut self) {
        let hosts = self.hosts.iter().map(|host| host.inheritance);
        let is_inherited =
            hosts.chain([self.global.inheritance]).any(|own| own != RewriteInheritance::Nothing);
        if self.hosts.is_empty() || is_inherited {
            return;
        }
        for rule in &self.global.rewrite_rules {
            // The file was given so that it can be found, and is read where it is included.
            if !self.included_files.contains(&*rule.position.file) {
                self.diagnostics.add_warning(
                    &rule.position,
                    "this rewrite rule is outside every `<VirtualHost>`, where httpd applies it to no host; \
                     it is left out",
                );
            }
        }
    }
}

impl HttpdDirective<'_> {
    fn argument(&self, index: usize) -> &str {
        self.arguments.get(index).map_or("", String::as_str)
    }
}

fn is_httpd_only(name: &str) -> bool {
    HTTPD_ONLY_DIRECTIVES.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns a server name without scheme and port.
fn bare_host_name(name: &str) -> String {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    crate::config::parse_host(name).0
}

/// Formats a condition.
fn format_condition(test: &str, pattern: &str, is_negated: bool) -> String {
    let negated = if is_negated { ", negate = true" } else { "" };
    format!("{{ test = {}, match = {}{negated} }}", quote_toml(test), quote_toml(pattern))
}

/// Writes the conditions of an entry.
fn write_conditions(toml: &mut String, guard: &[String], when: &[String]) {
    let when: Vec<&str> = guard.iter().chain(when).map(String::as_str).collect();
    if !when.is_empty() {
        writeln!(toml, "when = [{}]", when.join(", ")).unwrap_or_default();
    }
}

/// Returns a condition with the `or` flag, which makes it an alternative to the next one.
fn with_or_flag(condition: &str) -> String {
    format!("{}, or = true }}", condition.trim_end_matches(" }"))
}

fn write_toml_table(toml: &mut String, name: &str, values: &BTreeMap<String, String>) {
    if values.is_empty() {
        return;
    }
    let pairs: Vec<String> = values
        .iter()
        .map(|(key, value)| format!("{} = {}", quote_toml(key), quote_toml(value)))
        .collect();
    writeln!(toml, "{name} = {{ {} }}", pairs.join(", ")).unwrap_or_default();
}

/// Formats a TOML string, as a literal string where that is more readable.
fn quote_toml(text: &str) -> String {
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
