//! Conversion of `Require`, `Order`, `Allow` and `Deny` in the sections of a host to
//! `[[dispatcher.host.access]]`.
//!
//! Invariants
//! * A section whose requirements cannot be expressed is refused as a whole and reported as an error: conversion never
//!   opens what was closed.
//! * As in httpd, the last section that contains a request decides: folders from short to long, then files, then
//!   locations in their order. `Require` and the older `Order` are evaluated separately.
//! * As in httpd, locations match the URL's path, which only `[PT]` changes, and folders and files match the path that
//!   results from all rewrites. The latter do not apply to proxied requests, for which no file is looked up.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use regex::Regex;

use super::environment::HttpdEnvironment;
use super::{format_condition, quote_toml, with_or_flag, write_conditions};
use crate::config::any_syntax::{DiagnosticCollector, SourcePosition};

/// `<Location>`, `<Directory>`, `<Files>`, `<Limit>` or a similar section, which applies to a part of the requests.
#[derive(Debug, Clone)]
pub(super) struct HttpdSection {
    position: SourcePosition,
    /// The rank of folders, files and locations in the order in which httpd merges them.
    merge_rank: u8,
    /// The ordinal number of the section.
    section_index: usize,
    folder: Option<String>,
    path_patterns: Vec<SectionPathPattern>,
    method: Option<MethodRestriction>,
    /// The reason why the section's pages cannot be determined.
    unknown_scope_reason: Option<&'static str>,
    /// The argument of a `<Location>`, and true if it is a pattern.
    location: Option<(String, bool)>,
    open_groups: Vec<RequireGroup>,
    any_requirements: Vec<RequireDirective>,
    all_requirements: Vec<RequireDirective>,
    allow_deny_order: Option<AllowDenyOrder>,
    allowed_sources: Vec<AllowDenySource>,
    denied_sources: Vec<AllowDenySource>,
    is_require_unconvertible: bool,
    is_order_unconvertible: bool,
}

/// The pattern that a request's path must match.
#[derive(Debug, Clone)]
enum SectionPathPattern {
    /// The path of the URL.
    Url(String),
    /// The path of the file that is looked up.
    File(String),
}

impl SectionPathPattern {
    fn to_condition(&self, is_negated: bool) -> String {
        match self {
            Self::Url(pattern) => format_condition("%{REQUEST_URI}", pattern, is_negated),
            Self::File(pattern) => format_condition("%{REQUEST_FILENAME}", pattern, is_negated),
        }
    }
}

#[derive(Debug, Clone)]
struct MethodRestriction {
    pattern: String,
    is_excluding: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequireGroup {
    Any,
    All,
    None,
    Unconvertible,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AllowDenyOrder {
    DenyAllow,
    AllowDeny,
}

#[derive(Debug, Clone)]
struct RequireDirective {
    test: RequireTest,
    is_negated: bool,
}

#[derive(Debug, Clone)]
enum RequireTest {
    Granted,
    Denied,
    Address(String),
    Method(String),
    /// One of these environment variables is set.
    Environment(Vec<String>),
}

#[derive(Debug, Clone)]
enum AllowDenySource {
    All,
    Address(String),
    /// Clients for which this environment variable is set, or is not set.
    Environment {
        name: String,
        is_set: bool,
    },
}

impl AllowDenySource {
    /// Parses `env=NAME` and `env=!NAME`.
    fn parse_environment(text: &str) -> Option<Self> {
        let text =
            text.get(..4).filter(|start| start.eq_ignore_ascii_case("env=")).and(text.get(4..))?;
        let (name, is_set) = match text.strip_prefix('!') {
            Some(name) => (name, false),
            None => (text, true),
        };
        Some(Self::Environment { name: name.to_owned(), is_set })
    }
}

/// Returns the condition that an environment variable is set, or is not set. The condition cannot tell an empty
/// variable from an unset one.
fn environment_condition(name: &str, is_set: bool) -> String {
    format_condition(&format!("%{{ENV:{name}}}"), "^$", is_set)
}

/// Returns the environment variables that an access rule uses.
pub(super) fn environment_variables_of<'a>(
    name: &str,
    words: &'a [String],
) -> impl Iterator<Item = &'a str> {
    let is_require = name.eq_ignore_ascii_case("require");
    let mut words = words.iter().map(String::as_str).peekable();
    if is_require && words.peek().is_some_and(|argument| argument.eq_ignore_ascii_case("not")) {
        words.next();
    }
    let is_by_name =
        is_require && words.peek().is_some_and(|argument| argument.eq_ignore_ascii_case("env"));
    if is_by_name {
        words.next();
    }
    words.filter_map(move |argument| match argument.split_once('=') {
        _ if is_by_name => Some(argument),
        Some((env, name)) if env.eq_ignore_ascii_case("env") => {
            Some(name.strip_prefix('!').unwrap_or(name))
        }
        _ => None,
    })
}

/// The two modules of httpd that must both grant access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessModule {
    Require,
    Order,
}

/// The cases in which a requirement is not met.
enum RequirementFailure {
    Never,
    Always,
    /// If all of these conditions hold.
    When(Vec<String>),
}

/// The pages of a host to which a section applies.
enum SectionReach {
    /// Pages that match all of these patterns.
    Paths(Vec<SectionPathPattern>),
    /// No served pages.
    Nothing,
    Unknown(&'static str),
}

/// A refusal of requests: an entry of `[[dispatcher.host.access]]`.
#[derive(Debug)]
pub(super) struct AccessRefusal {
    /// The path that the pattern applies to.
    path_kind: &'static str,
    pattern: Option<String>,
    conditions: Vec<String>,
}

impl AccessRefusal {
    /// Returns the equivalent refusal for the looked-up path, if this one applies to URLs.
    pub(super) fn for_file_path(&self) -> Option<Self> {
        let by_file = |when: &String| when.replace("%{REQUEST_URI}", "%{REQUEST_FILENAME}");
        (self.path_kind == "url").then(|| Self {
            path_kind: "file",
            pattern: self.pattern.clone(),
            conditions: self.conditions.iter().map(by_file).collect(),
        })
    }

    /// Returns the equivalent refusal for the path as sent, regardless of rewrites.
    pub(super) fn for_sent_path(&self) -> Self {
        Self {
            path_kind: "sent",
            pattern: self.pattern.clone(),
            conditions: self.conditions.clone(),
        }
    }

    pub(super) fn write_toml(&self, toml: &mut String, guard: &[String]) {
        writeln!(toml, "\n[[dispatcher.host.access]]\nof = \"{}\"", self.path_kind)
            .unwrap_or_default();
        if let Some(pattern) = &self.pattern {
            writeln!(toml, "match = {}", quote_toml(pattern)).unwrap_or_default();
        }
        write_conditions(toml, guard, &self.conditions);
    }
}

/// The merge rank of `<Location>`, which is merged last.
const LOCATION_MERGE_RANK: u8 = 2;

/// The message for a folder with wildcards, whose pages cannot be determined.
const FOLDER_PATTERN_MESSAGE: &str = "patterns for folders are not supported";

/// Returns true if a directive controls access.
pub(super) fn is_access_directive(name: &str) -> bool {
    const NAMES: [&str; 6] = ["require", "order", "allow", "deny", "satisfy", "authmerging"];
    NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns true if a directive restricts nothing.
pub(super) fn is_unrestricted(name: &str, words: &[String]) -> bool {
    let words: Vec<String> = words.iter().map(|argument| argument.to_ascii_lowercase()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match name.to_ascii_lowercase().as_str() {
        "require" => words == ["all", "granted"],
        "allow" => words == ["from", "all"],
        "order" => true,
        "satisfy" => words == ["all"],
        _ => false,
    }
}

impl HttpdSection {
    /// Opens a section, nested in `outer` if present.
    pub(super) fn open(
        (at, number): (&SourcePosition, usize),
        name: &str,
        argument: &str,
        outer: Option<&Self>,
    ) -> Self {
        let mut section = match outer {
            Some(outer) => outer.same_scope(),
            None => Self::for_all_requests(at),
        };
        section.position = at.clone();
        section.section_index = number;
        let name = name.to_ascii_lowercase();
        let plain = argument.trim().trim_matches(['"', '\'']);
        let (is_pattern, text) = match plain.strip_prefix('~') {
            Some(pattern) => (true, pattern.trim().trim_matches(['"', '\''])),
            None => (name.ends_with("match"), plain),
        };
        match name.trim_end_matches("match") {
            "location" => section.restrict_to_location(text, is_pattern),
            "directory" if is_pattern || text.contains(['*', '?', '[']) => {
                section.unknown_scope_reason = Some(FOLDER_PATTERN_MESSAGE);
            }
            "directory" => {
                let folder = text.trim_end_matches('/');
                section.folder = Some(if folder.is_empty() { "/" } else { folder }.to_owned());
            }
            "files" => {
                section.merge_rank = section.merge_rank.max(1);
                match if is_pattern { name_pattern(text) } else { name_glob(text) } {
                    Some(pattern) => section.path_patterns.push(SectionPathPattern::File(pattern)),
                    None => section.unknown_scope_reason = Some("its pattern is not supported"),
                }
            }
            "limit" | "limitexcept" if section.method.is_some() => {
                section.unknown_scope_reason = Some("it is nested in another `<Limit>`");
            }
            limit @ ("limit" | "limitexcept") => {
                let methods = method_pattern(text.split_whitespace());
                section.method =
                    Some(MethodRestriction { pattern: methods, is_excluding: limit != "limit" });
            }
            _ => section.unknown_scope_reason = Some("it does not apply to pages"),
        }
        section
    }

    fn for_all_requests(at: &SourcePosition) -> Self {
        Self {
            position: at.clone(),
            merge_rank: 0,
            section_index: 0,
            folder: None,
            path_patterns: Vec::new(),
            method: None,
            unknown_scope_reason: None,
            location: None,
            open_groups: Vec::new(),
            any_requirements: Vec::new(),
            all_requirements: Vec::new(),
            allow_deny_order: None,
            allowed_sources: Vec::new(),
            denied_sources: Vec::new(),
            is_require_unconvertible: false,
            is_order_unconvertible: false,
        }
    }

    /// Returns a section for the same requests without requirements.
    fn same_scope(&self) -> Self {
        Self {
            merge_rank: self.merge_rank,
            folder: self.folder.clone(),
            path_patterns: self.path_patterns.clone(),
            method: self.method.clone(),
            unknown_scope_reason: self.unknown_scope_reason,
            location: self.location.clone(),
            ..Self::for_all_requests(&self.position)
        }
    }

    fn restrict_to_location(&mut self, text: &str, is_pattern: bool) {
        self.merge_rank = LOCATION_MERGE_RANK;
        self.location = Some((text.to_owned(), is_pattern));
        if is_pattern && Regex::new(text).is_err() {
            self.unknown_scope_reason = Some("its pattern is not supported");
        } else if is_pattern {
            self.path_patterns.push(SectionPathPattern::Url(text.to_owned()));
        } else if !text.starts_with('/') {
            self.unknown_scope_reason = Some("it does not apply to a path of this server");
        } else if text.contains(['*', '?', '[']) {
            match glob_pattern(text) {
                Some(pattern) => {
                    self.path_patterns.push(SectionPathPattern::Url(format!("^{pattern}$")))
                }
                None => self.unknown_scope_reason = Some("its pattern is not supported"),
            }
        } else if text != "/" {
            self.path_patterns.push(SectionPathPattern::Url(prefix_pattern(text)));
        }
    }

    /// Returns the argument of a `<Location>`, and true if it is a pattern.
    pub(super) fn location(&self) -> Option<(&str, bool)> {
        self.location.as_ref().map(|(text, is_pattern)| (text.as_str(), *is_pattern))
    }

    /// Returns true if it has access requirements.
    pub(super) fn has_requirements(&self) -> bool {
        self.has_rules_of(AccessModule::Require) || self.has_rules_of(AccessModule::Order)
    }

    fn has_rules_of(&self, family: AccessModule) -> bool {
        match family {
            AccessModule::Require => {
                self.is_require_unconvertible
                    || !self.any_requirements.is_empty()
                    || !self.all_requirements.is_empty()
            }
            AccessModule::Order => {
                let has_lists = !self.allowed_sources.is_empty() || !self.denied_sources.is_empty();
                self.is_order_unconvertible || self.allow_deny_order.is_some() || has_lists
            }
        }
    }

    /// Opens `<RequireAny>` or a similar group.
    pub(super) fn open_group(&mut self, name: &str) {
        let group = match (self.open_groups.as_slice(), name.to_ascii_lowercase().as_str()) {
            ([], "requireany") => RequireGroup::Any,
            ([], "requireall") => RequireGroup::All,
            ([RequireGroup::All], "requirenone") => RequireGroup::None,
            _ => RequireGroup::Unconvertible,
        };
        self.open_groups.push(group);
    }

    pub(super) fn close_group(&mut self) {
        self.open_groups.pop();
    }

    /// Reads a directive for which [`is_access_directive`] holds.
    ///
    /// # Errors
    /// Returns the reason why it cannot be converted; the section is then refused as a whole.
    pub(super) fn read_directive(
        &mut self,
        name: &str,
        words: &[String],
        environment: &HttpdEnvironment,
    ) -> Result<(), String> {
        let is_require = name.eq_ignore_ascii_case("require");
        let unknown = environment_variables_of(name, words)
            .find(|variable| !environment.is_testable(variable));
        let read = match unknown {
            Some(variable) if is_require => {
                Err(format!("no converted directive sets the variable `{variable}`"))
            }
            Some(variable) => Err(format!(
                "`env={variable}` is not an address, and no converted directive sets the variable"
            )),
            None if is_require => self.read_require(words),
            None => self.read_order(name, words),
        };
        if read.is_err() && is_require {
            self.is_require_unconvertible = true;
        } else if read.is_err() {
            self.is_order_unconvertible = true;
        }
        read
    }

    fn read_require(&mut self, words: &[String]) -> Result<(), String> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut is_negated =
            words.first().is_some_and(|argument| argument.eq_ignore_ascii_case("not"));
        if is_negated {
            words.remove(0);
        }
        let (kind, words) = words.split_first().ok_or_else(|| "it has no arguments".to_owned())?;
        let test = match (kind.to_ascii_lowercase().as_str(), words) {
            ("all", [argument]) if argument.eq_ignore_ascii_case("granted") => RequireTest::Granted,
            ("all", [argument]) if argument.eq_ignore_ascii_case("denied") => RequireTest::Denied,
            ("ip", [_, ..]) => RequireTest::Address(addresses_pattern(words)?),
            ("local", []) => RequireTest::Address(addresses_pattern(&["127.0.0.0/8", "::1"])?),
            ("env", [_, ..]) => {
                RequireTest::Environment(words.iter().map(|&name| name.to_owned()).collect())
            }
            ("method", [_, ..]) => RequireTest::Method(method_pattern(words.iter().copied())),
            _ => return Err(format!("`{kind}` is not supported")),
        };
        let into = match self.open_groups.as_slice() {
            [] | [RequireGroup::Any] if self.all_requirements.is_empty() && !is_negated => {
                &mut self.any_requirements
            }
            [RequireGroup::All] if self.any_requirements.is_empty() => &mut self.all_requirements,
            [RequireGroup::All, RequireGroup::None]
                if self.any_requirements.is_empty() && !is_negated =>
            {
                is_negated = true;
                &mut self.all_requirements
            }
            _ => return Err("this nesting of requirements is not supported".to_owned()),
        };
        into.push(RequireDirective { test, is_negated });
        Ok(())
    }

    fn read_order(&mut self, name: &str, words: &[String]) -> Result<(), String> {
        let (variables, words): (Vec<_>, Vec<_>) = words
            .iter()
            .cloned()
            .partition(|argument| AllowDenySource::parse_environment(argument).is_some());
        let variables: Vec<AllowDenySource> = variables
            .iter()
            .filter_map(|argument| AllowDenySource::parse_environment(argument))
            .collect();
        let words: Vec<String> =
            words.iter().map(|argument| argument.to_ascii_lowercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (name.to_ascii_lowercase().as_str(), words.as_slice()) {
            ("order", ["deny,allow"]) => self.allow_deny_order = Some(AllowDenyOrder::DenyAllow),
            ("order", ["allow,deny" | "mutual-failure"]) => {
                self.allow_deny_order = Some(AllowDenyOrder::AllowDeny)
            }
            ("satisfy", ["all"]) => {}
            (list @ ("allow" | "deny"), ["from", "all"]) => {
                self.sources_mut(list).push(AllowDenySource::All)
            }
            (list @ ("allow" | "deny"), ["from", from @ ..])
                if !from.is_empty() || !variables.is_empty() =>
            {
                if !from.is_empty() {
                    let addresses = AllowDenySource::Address(addresses_pattern(from)?);
                    self.sources_mut(list).push(addresses);
                }
                self.sources_mut(list).extend(variables);
            }
            _ => return Err(format!("`{}` is not supported", words.join(" "))),
        }
        Ok(())
    }

    fn sources_mut(&mut self, name: &str) -> &mut Vec<AllowDenySource> {
        if name == "allow" { &mut self.allowed_sources } else { &mut self.denied_sources }
    }

    /// Returns the alternative lists of conditions under which a request is refused.
    fn denial_conditions(&self, family: AccessModule) -> Vec<Vec<String>> {
        match family {
            AccessModule::Require if self.is_require_unconvertible => vec![Vec::new()],
            AccessModule::Order if self.is_order_unconvertible => vec![Vec::new()],
            AccessModule::Require if !self.all_requirements.is_empty() => {
                let failing = self.all_requirements.iter().map(RequireDirective::failure_condition);
                failing
                    .filter_map(|fails| match fails {
                        RequirementFailure::Never => None,
                        RequirementFailure::Always => Some(Vec::new()),
                        RequirementFailure::When(conditions) => Some(conditions),
                    })
                    .collect()
            }
            AccessModule::Require if !self.any_requirements.is_empty() => {
                let mut when = Vec::new();
                for requirement in &self.any_requirements {
                    match requirement.failure_condition() {
                        RequirementFailure::Never => return Vec::new(),
                        RequirementFailure::Always => {}
                        RequirementFailure::When(conditions) => when.extend(conditions),
                    }
                }
                vec![when]
            }
            AccessModule::Require => Vec::new(),
            AccessModule::Order if !self.has_rules_of(AccessModule::Order) => Vec::new(),
            AccessModule::Order => self.order_denial_conditions(),
        }
    }

    fn order_denial_conditions(&self) -> Vec<Vec<String>> {
        let allowed = source_list_failure(&self.allowed_sources, true);
        let denied = source_list_failure(&self.denied_sources, false);
        match (self.allow_deny_order.unwrap_or(AllowDenyOrder::DenyAllow), allowed, denied) {
            // Denied and not allowed.
            (AllowDenyOrder::DenyAllow, RequirementFailure::Never, _)
            | (AllowDenyOrder::DenyAllow, _, RequirementFailure::Never) => Vec::new(),
            (AllowDenyOrder::DenyAllow, allowed, denied) => {
                let parts = [denied, allowed].into_iter();
                vec![
                    parts
                        .flat_map(|part| match part {
                            RequirementFailure::When(conditions) => conditions,
                            RequirementFailure::Always | RequirementFailure::Never => Vec::new(),
                        })
                        .collect(),
                ]
            }
            // Not allowed, or denied.
            (AllowDenyOrder::AllowDeny, allowed, denied) => [allowed, denied]
                .into_iter()
                .filter_map(|part| match part {
                    RequirementFailure::Never => None,
                    RequirementFailure::Always => Some(Vec::new()),
                    RequirementFailure::When(conditions) => Some(conditions),
                })
                .collect(),
        }
    }

    fn covered_paths(&self, root: Option<&str>) -> SectionReach {
        if let Some(why) = self.unknown_scope_reason {
            return SectionReach::Unknown(why);
        }
        let mut paths = self.path_patterns.clone();
        let root = root.map(|root| root.trim_end_matches('/'));
        match (self.folder.as_deref(), root) {
            (None, _) | (Some("/"), Some(_)) => {}
            (Some(_), None) => {
                return SectionReach::Unknown(
                    "without a `DocumentRoot`, the pages in its folder are unknown",
                );
            }
            (Some(folder), Some(root)) => {
                if path_below(root, folder).is_none() {
                    let Some(path) = path_below(folder, root) else { return SectionReach::Nothing };
                    paths.insert(0, SectionPathPattern::File(prefix_pattern(path)));
                }
            }
        }
        SectionReach::Paths(paths)
    }

    /// Returns the refusal of paths in all `path_patterns` but not in `elsewhere`, where `denial` holds.
    fn to_refusal(
        &self,
        path_patterns: &[SectionPathPattern],
        elsewhere: &[String],
        denial: Vec<String>,
    ) -> AccessRefusal {
        let of = if self.merge_rank == LOCATION_MERGE_RANK { "url" } else { "file" };
        let (mut pattern, mut when) = (None, Vec::new());
        for path_pattern in path_patterns {
            match (path_pattern, of) {
                (SectionPathPattern::Url(own), "url") | (SectionPathPattern::File(own), "file")
                    if pattern.is_none() =>
                {
                    pattern = Some(own.clone());
                }
                (path_pattern, _) => when.push(path_pattern.to_condition(false)),
            }
        }
        when.extend(self.method.iter().map(|method| method.to_condition(true)));
        when.extend(elsewhere.iter().cloned());
        when.extend(denial);
        AccessRefusal { path_kind: of, pattern, conditions: when }
    }
}

/// Returns the part of the path `inner` after `outer`; `None` if it is not within `outer`.
fn path_below<'a>(inner: &'a str, outer: &str) -> Option<&'a str> {
    inner.strip_prefix(outer).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the failure for a client that is not on the list, or, with `is_negated` false, for one that is.
fn source_list_failure(list: &[AllowDenySource], is_negated: bool) -> RequirementFailure {
    let mut patterns = Vec::new();
    let mut conditions = Vec::new();
    for from in list {
        match from {
            AllowDenySource::All => {
                return if is_negated {
                    RequirementFailure::Never
                } else {
                    RequirementFailure::Always
                };
            }
            AllowDenySource::Address(pattern) => patterns.push(pattern.as_str()),
            AllowDenySource::Environment { name, is_set } => {
                conditions.push(environment_condition(name, *is_set != is_negated));
            }
        }
    }
    if !patterns.is_empty() {
        conditions.push(format_condition("%{REMOTE_ADDR}", &patterns.join("|"), is_negated));
    }
    match conditions.is_empty() {
        true if is_negated => RequirementFailure::Always,
        true => RequirementFailure::Never,
        false if is_negated => RequirementFailure::When(conditions),
        false => RequirementFailure::When(join_alternatives(conditions)),
    }
}

/// Joins conditions as alternatives.
fn join_alternatives(mut conditions: Vec<String>) -> Vec<String> {
    let last = conditions.pop();
    conditions.iter().map(|condition| with_or_flag(condition)).chain(last).collect()
}

impl RequireDirective {
    fn failure_condition(&self) -> RequirementFailure {
        match (&self.test, self.is_negated) {
            (RequireTest::Granted, false) | (RequireTest::Denied, true) => {
                RequirementFailure::Never
            }
            (RequireTest::Granted, true) | (RequireTest::Denied, false) => {
                RequirementFailure::Always
            }
            (RequireTest::Address(pattern), is_negated) => {
                RequirementFailure::When(vec![format_condition(
                    "%{REMOTE_ADDR}",
                    pattern,
                    !is_negated,
                )])
            }
            (RequireTest::Method(pattern), is_negated) => {
                RequirementFailure::When(vec![format_condition(
                    "%{REQUEST_METHOD}",
                    pattern,
                    !is_negated,
                )])
            }
            (RequireTest::Environment(names), is_negated) => {
                let conditions =
                    names.iter().map(|name| environment_condition(name, is_negated)).collect();
                RequirementFailure::When(if is_negated {
                    join_alternatives(conditions)
                } else {
                    conditions
                })
            }
        }
    }
}

/// Returns the refusals of the sections of a host with this document root.
pub(super) fn collect_refusals(
    sections: &[&HttpdSection],
    root: Option<&str>,
    findings: &mut DiagnosticCollector,
) -> Vec<AccessRefusal> {
    let mut sorted = sections.to_vec();
    sorted.sort_by_key(|section| {
        // As in httpd, patterns are merged after literal folders.
        let is_pattern = section.unknown_scope_reason == Some(FOLDER_PATTERN_MESSAGE);
        let length = section.folder.as_ref().map_or(0, String::len);
        let length = if is_pattern { usize::MAX } else { length };
        (
            section.merge_rank,
            if section.merge_rank == LOCATION_MERGE_RANK { 0 } else { length },
            section.section_index,
        )
    });
    let mut refusals = Vec::new();
    for (index, section) in sorted.iter().enumerate() {
        let later = sorted.get(index + 1..).unwrap_or_default();
        for family in [AccessModule::Require, AccessModule::Order] {
            let denials = section.denial_conditions(family);
            let Some(elsewhere) = undecided_conditions(later, family, root) else { continue };
            if denials.is_empty() {
                continue;
            }
            let paths = match section.covered_paths(root) {
                SectionReach::Paths(paths) => paths,
                SectionReach::Nothing => continue,
                SectionReach::Unknown(why) => {
                    report_unconverted_section(section, why, findings);
                    continue;
                }
            };
            // It is unknown where these sections may grant access again.
            for later in later.iter().filter(|later| later.has_rules_of(family)) {
                if let SectionReach::Unknown(why) = later.covered_paths(root) {
                    report_unconverted_section(later, why, findings);
                }
            }
            for denial in denials {
                refusals.push(section.to_refusal(&paths, &elsewhere, denial));
            }
        }
    }
    refusals
}

/// Reports once that a section is not converted.
fn report_unconverted_section(
    section: &HttpdSection,
    why: &str,
    findings: &mut DiagnosticCollector,
) {
    let message = format!("the access rules of this section are not converted: {why}");
    let mut messages = findings.0.iter();
    if !messages.any(|finding| finding.message == message && finding.position == section.position) {
        findings.add_error(&section.position, message);
    }
}

/// Returns the conditions under which none of the later sections decides; `None` if one of them always does.
fn undecided_conditions(
    later: &[&HttpdSection],
    family: AccessModule,
    root: Option<&str>,
) -> Option<Vec<String>> {
    let mut outside = Vec::new();
    for section in later.iter().filter(|section| section.has_rules_of(family)) {
        let SectionReach::Paths(paths) = section.covered_paths(root) else { continue };
        let mut parts: Vec<String> =
            paths.iter().map(|pattern| pattern.to_condition(true)).collect();
        parts.extend(section.method.iter().map(|method| method.to_condition(false)));
        let last = parts.pop()?;
        outside.extend(parts.iter().map(|part| with_or_flag(part)));
        outside.push(last);
    }
    Some(outside)
}

impl MethodRestriction {
    /// Returns the condition that a request's method is one of these, or is not.
    fn to_condition(&self, is_wanted: bool) -> String {
        format_condition("%{REQUEST_METHOD}", &self.pattern, is_wanted == self.is_excluding)
    }
}

fn method_pattern<'a>(methods: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = methods.map(regex::escape).collect();
    if names.iter().any(|name| name == "GET") {
        names.push("HEAD".to_owned());
    }
    format!("^(?:{})$", names.join("|"))
}

/// Returns a pattern for a path and everything below it, in whole segments.
fn prefix_pattern(path: &str) -> String {
    let rest = if path.ends_with('/') { "" } else { "(?:/|$)" };
    format!("^{}{rest}", regex::escape(path))
}

/// Returns a pattern for a glob whose wildcards do not match slashes.
fn glob_pattern(glob: &str) -> Option<String> {
    let mut pattern = String::new();
    for char in glob.chars() {
        match char {
            '*' => pattern.push_str("[^/]*"),
            '?' => pattern.push_str("[^/]"),
            '[' | ']' | '\\' => return None,
            char => pattern.push_str(&regex::escape(char.encode_utf8(&mut [0; 4]))),
        }
    }
    Some(pattern)
}

/// Returns a pattern for a glob on a file name.
fn name_glob(glob: &str) -> Option<String> {
    glob_pattern(glob).map(|pattern| format!("(?:^|/){pattern}$"))
}

/// Returns a pattern for one that is searched in a file name, the last part of a path.
fn name_pattern(pattern: &str) -> Option<String> {
    Regex::new(pattern).ok()?;
    match pattern.strip_prefix('^') {
        None if !pattern.contains('^') => Some(format!("(?:^|/)[^/]*(?:{pattern})[^/]*$")),
        Some(rest) if !rest.contains(['^', '|']) => Some(format!("(?:^|/)(?:{rest})[^/]*$")),
        _ => None,
    }
}

/// Returns the pattern for a list of addresses.
fn addresses_pattern(list: &[&str]) -> Result<String, String> {
    let read = |text: &&str| {
        address_pattern(text).ok_or_else(|| format!("`{text}` is not a supported address"))
    };
    let patterns: Vec<String> = list.iter().map(read).collect::<Result<_, _>>()?;
    Ok(format!("^(?:{})$", patterns.join("|")))
}

/// Parses an address, an address prefix (`10.1`), a network (`10.0.0.0/8`) or one with a mask.
fn address_pattern(text: &str) -> Option<String> {
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Some(regex::escape(&address.to_canonical().to_string()));
    }
    let (address, mask) = match text.split_once('/') {
        Some((address, mask)) => (address, Some(mask)),
        None => (text, None),
    };
    let written: Vec<u8> = address
        .trim_end_matches('.')
        .split('.')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let mut octets = [0_u8; 4];
    octets.get_mut(..written.len())?.copy_from_slice(&written);
    let bits = match mask {
        None => u32::try_from(written.len()).ok()? * 8,
        Some(mask) => match mask.parse::<u32>() {
            Ok(bits) => bits,
            Err(_no_number) => {
                let mask = u32::from(mask.parse::<Ipv4Addr>().ok()?);
                (mask.leading_ones() + mask.trailing_zeros() == 32).then(|| mask.leading_ones())?
            }
        },
    };
    (bits <= 32).then(|| network_pattern(octets, bits))
}

fn network_pattern(octets: [u8; 4], bits: u32) -> String {
    let part = |(index, octet): (u32, u8)| match bits.saturating_sub(index * 8) {
        0 => "[0-9]+".to_owned(),
        fixed if fixed >= 8 => octet.to_string(),
        fixed => {
            let first = octet & !(u8::MAX >> fixed);
            let numbers = first..=first | (u8::MAX >> fixed);
            let numbers: Vec<String> = numbers.map(|number| number.to_string()).collect();
            format!("(?:{})", numbers.join("|"))
        }
    };
    let parts: Vec<String> = (0_u32..).zip(octets).map(part).collect();
    parts.join(r"\.")
}

#[cfg(test)]
mod tests {
    use super::{address_pattern, name_pattern};
    use regex::Regex;

    #[test]
    fn networks_hold_their_addresses() {
        let check = |network: &str, inside: &[&str], outside: &[&str]| {
            let pattern = format!("^(?:{})$", address_pattern(network).unwrap());
            let pattern = Regex::new(&pattern).unwrap();
            for address in inside {
                assert!(pattern.is_match(address), "{network} {address}");
            }
            for address in outside {
                assert!(!pattern.is_match(address), "{network} {address}");
            }
        };
        check("10.1.2.3", &["10.1.2.3"], &["10.1.2.30", "110.1.2.3", "10.1.293"]);
        check("10.1", &["10.1.0.0", "10.1.255.7"], &["10.10.0.0", "10.2.0.0"]);
        check("10.1.", &["10.1.4.4"], &["10.11.4.4"]);
        check("10.0.0.0/8", &["10.200.1.1"], &["11.0.0.0", "::1"]);
        check(
            "192.150.16.0/23",
            &["192.150.16.9", "192.150.17.9"],
            &["192.150.18.1", "192.150.15.1"],
        );
        check(
            "172.16.0.0/255.240.0.0",
            &["172.16.0.1", "172.31.9.9"],
            &["172.32.0.1", "172.15.0.1"],
        );
        check("0.0.0.0/0", &["1.2.3.4"], &["::1"]);
        check("1.2.3.4/32", &["1.2.3.4"], &["1.2.3.5"]);
        check("0:0::1", &["::1"], &["::2"]);
        for unreadable in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/255.0.255.0",
            "2001:db8::/32",
            "a.b",
            "1.2.3.4.5",
            "300.1",
        ] {
            assert_eq!(address_pattern(unreadable), None, "{unreadable}");
        }
    }

    #[test]
    fn names_of_files_are_the_last_part_of_a_path() {
        let check = |pattern: &str, inside: &[&str], outside: &[&str]| {
            let regex = Regex::new(&name_pattern(pattern).unwrap()).unwrap();
            for path in inside {
                assert!(regex.is_match(path), "{pattern} {path}");
            }
            for path in outside {
                assert!(!regex.is_match(path), "{pattern} {path}");
            }
        };
        check(r"\.(bak|config)$", &["/a.bak", "/b/a.config"], &["/a.bak.html", "/a.bak/b.html"]);
        check(r"\.bak|\.old", &["/a.bak.html", "/b/a.old"], &["/a.bak/b.html", "/a.old/b.html"]);
        check(r"^\.ht", &["/.htaccess", "/b/.ht"], &["/a.ht", "/.ht/b.html"]);
        assert_eq!(name_pattern("^a|^b"), None);
        assert_eq!(name_pattern("a|^b"), None);
    }
}
