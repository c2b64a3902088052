//! `Require`, `Order`, `Allow` and `Deny` in the sections of a host, as `[[dispatcher.host.access]]`.
//!
//! Invariants
//! * A section whose requirements cannot be written is refused as a whole and told as an error: what was closed never
//!   opens by being converted.
//! * As in httpd, the last section that a request is in decides: folders from short to long, then files, then locations
//!   in their order. `Require` and the older `Order` are judged apart.
//! * As in httpd, locations are about the URL's path, which `[PT]` alone changes, and folders and files about the path that
//!   all rewrites led to; the latter say nothing about what is proxied, for which no file is looked up.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use regex::Regex;

use super::environment::Environment;
use super::{condition, or_next, quote, write_conditions};
use crate::any::{Findings, Position};

/// `<Location>`, `<Directory>`, `<Files>`, `<Limit>` or a relative: a part of the requests.
#[derive(Debug, Clone)]
pub(super) struct Section {
    at: Position,
    /// Folders, files and locations, in the order in which httpd merges them.
    rank: u8,
    /// The how many-th section it is.
    number: usize,
    folder: Option<String>,
    paths: Vec<Place>,
    method: Option<Method>,
    /// Why nothing tells which pages these are.
    unknown: Option<&'static str>,
    /// The argument of a `<Location>` and whether it is a pattern.
    location: Option<(String, bool)>,
    groups: Vec<Grouping>,
    any: Vec<Requirement>,
    all: Vec<Requirement>,
    order: Option<Order>,
    allowed: Vec<Who>,
    denied: Vec<Who>,
    is_require_lost: bool,
    is_order_lost: bool,
}

/// What a request's path must hold.
#[derive(Debug, Clone)]
enum Place {
    /// The path of the URL.
    Url(String),
    /// The path that is looked up.
    File(String),
}

impl Place {
    fn condition(&self, is_negated: bool) -> String {
        match self {
            Self::Url(pattern) => condition("%{REQUEST_URI}", pattern, is_negated),
            Self::File(pattern) => condition("%{REQUEST_FILENAME}", pattern, is_negated),
        }
    }
}

#[derive(Debug, Clone)]
struct Method {
    pattern: String,
    is_except: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grouping {
    Any,
    All,
    None,
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    DenyAllow,
    AllowDeny,
}

#[derive(Debug, Clone)]
struct Requirement {
    what: What,
    is_negated: bool,
}

#[derive(Debug, Clone)]
enum What {
    Granted,
    Denied,
    Address(String),
    Method(String),
    /// One of these variables of the environment is set.
    Environment(Vec<String>),
}

#[derive(Debug, Clone)]
enum Who {
    All,
    Address(String),
    /// Whoever has this variable of the environment set, or not.
    Environment {
        name: String,
        is_set: bool,
    },
}

impl Who {
    /// Reads `env=NAME` and `env=!NAME`.
    fn of_environment(text: &str) -> Option<Self> {
        let text =
            text.get(..4).filter(|start| start.eq_ignore_ascii_case("env=")).and(text.get(4..))?;
        let (name, is_set) = match text.strip_prefix('!') {
            Some(name) => (name, false),
            None => (text, true),
        };
        Some(Self::Environment { name: name.to_owned(), is_set })
    }
}

/// Returns the condition that a variable of the environment is set, or is not. What may be empty although it is set is not
/// asked for.
fn environment_condition(name: &str, is_set: bool) -> String {
    condition(&format!("%{{ENV:{name}}}"), "^$", is_set)
}

/// Returns the variables of the environment that an access rule asks for.
pub(super) fn variables<'a>(name: &str, words: &'a [String]) -> impl Iterator<Item = &'a str> {
    let is_require = name.eq_ignore_ascii_case("require");
    let mut words = words.iter().map(String::as_str).peekable();
    if is_require && words.peek().is_some_and(|word| word.eq_ignore_ascii_case("not")) {
        words.next();
    }
    let is_by_name =
        is_require && words.peek().is_some_and(|word| word.eq_ignore_ascii_case("env"));
    if is_by_name {
        words.next();
    }
    words.filter_map(move |word| match word.split_once('=') {
        _ if is_by_name => Some(word),
        Some((env, name)) if env.eq_ignore_ascii_case("env") => {
            Some(name.strip_prefix('!').unwrap_or(name))
        }
        _ => None,
    })
}

/// Two modules of httpd that both must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Require,
    Order,
}

/// When a requirement is not met.
enum Fails {
    Never,
    Always,
    /// When all of these conditions hold.
    When(Vec<String>),
}

/// Which pages of a host a section is about.
enum Reach {
    /// Those that are in all places.
    Paths(Vec<Place>),
    /// None that are served.
    Nothing,
    Unknown(&'static str),
}

/// Requests that are refused: an entry of `[[dispatcher.host.access]]`.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The path that the pattern is about.
    of: &'static str,
    pattern: Option<String>,
    when: Vec<String>,
}

impl Refusal {
    /// Returns the same about what is looked up, for one about URLs.
    pub(super) fn of_files(&self) -> Option<Self> {
        let by_file = |when: &String| when.replace("%{REQUEST_URI}", "%{REQUEST_FILENAME}");
        (self.of == "url").then(|| Self {
            of: "file",
            pattern: self.pattern.clone(),
            when: self.when.iter().map(by_file).collect(),
        })
    }

    /// Returns the same about the path that was sent, whatever rules made of it.
    pub(super) fn of_sent(&self) -> Self {
        Self { of: "sent", pattern: self.pattern.clone(), when: self.when.clone() }
    }

    pub(super) fn write(&self, toml: &mut String, guard: &[String]) {
        writeln!(toml, "\n[[dispatcher.host.access]]\nof = \"{}\"", self.of).unwrap_or_default();
        if let Some(pattern) = &self.pattern {
            writeln!(toml, "match = {}", quote(pattern)).unwrap_or_default();
        }
        write_conditions(toml, guard, &self.when);
    }
}

/// The rank of `<Location>`, which is merged last.
const LOCATION: u8 = 2;

/// Why nothing tells which pages a folder with wildcards holds.
const FOLDER_PATTERN: &str = "patterns for folders are not known here";

/// Tells whether a directive is about who may see something.
pub(super) fn is_access(name: &str) -> bool {
    const NAMES: [&str; 6] = ["require", "order", "allow", "deny", "satisfy", "authmerging"];
    NAMES.contains(&name.to_ascii_lowercase().as_str())
}

/// Tells whether a directive restricts nothing.
pub(super) fn grants(name: &str, words: &[String]) -> bool {
    let words: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match name.to_ascii_lowercase().as_str() {
        "require" => words == ["all", "granted"],
        "allow" => words == ["from", "all"],
        "order" => true,
        "satisfy" => words == ["all"],
        _ => false,
    }
}

impl Section {
    /// Opens a section, within `outer` if it stands in one.
    pub(super) fn open(
        (at, number): (&Position, usize),
        name: &str,
        argument: &str,
        outer: Option<&Self>,
    ) -> Self {
        let mut section = match outer {
            Some(outer) => outer.scope(),
            None => Self::everything(at),
        };
        section.at = at.clone();
        section.number = number;
        let name = name.to_ascii_lowercase();
        let plain = argument.trim().trim_matches(['"', '\'']);
        let (is_pattern, text) = match plain.strip_prefix('~') {
            Some(pattern) => (true, pattern.trim().trim_matches(['"', '\''])),
            None => (name.ends_with("match"), plain),
        };
        match name.trim_end_matches("match") {
            "location" => section.enter_location(text, is_pattern),
            "directory" if is_pattern || text.contains(['*', '?', '[']) => {
                section.unknown = Some(FOLDER_PATTERN);
            }
            "directory" => {
                let folder = text.trim_end_matches('/');
                section.folder = Some(if folder.is_empty() { "/" } else { folder }.to_owned());
            }
            "files" => {
                section.rank = section.rank.max(1);
                match if is_pattern { name_pattern(text) } else { name_glob(text) } {
                    Some(pattern) => section.paths.push(Place::File(pattern)),
                    None => section.unknown = Some("its pattern is not known here"),
                }
            }
            "limit" | "limitexcept" if section.method.is_some() => {
                section.unknown = Some("it stands in another `<Limit>`");
            }
            limit @ ("limit" | "limitexcept") => {
                let methods = method_pattern(text.split_whitespace());
                section.method = Some(Method { pattern: methods, is_except: limit != "limit" });
            }
            _ => section.unknown = Some("it is not about pages"),
        }
        section
    }

    fn everything(at: &Position) -> Self {
        Self {
            at: at.clone(),
            rank: 0,
            number: 0,
            folder: None,
            paths: Vec::new(),
            method: None,
            unknown: None,
            location: None,
            groups: Vec::new(),
            any: Vec::new(),
            all: Vec::new(),
            order: None,
            allowed: Vec::new(),
            denied: Vec::new(),
            is_require_lost: false,
            is_order_lost: false,
        }
    }

    /// Returns a section about the same requests, without requirements.
    fn scope(&self) -> Self {
        Self {
            rank: self.rank,
            folder: self.folder.clone(),
            paths: self.paths.clone(),
            method: self.method.clone(),
            unknown: self.unknown,
            location: self.location.clone(),
            ..Self::everything(&self.at)
        }
    }

    fn enter_location(&mut self, text: &str, is_pattern: bool) {
        self.rank = LOCATION;
        self.location = Some((text.to_owned(), is_pattern));
        if is_pattern && Regex::new(text).is_err() {
            self.unknown = Some("its pattern is not known here");
        } else if is_pattern {
            self.paths.push(Place::Url(text.to_owned()));
        } else if !text.starts_with('/') {
            self.unknown = Some("it is not about a path of this server");
        } else if text.contains(['*', '?', '[']) {
            match glob_pattern(text) {
                Some(pattern) => self.paths.push(Place::Url(format!("^{pattern}$"))),
                None => self.unknown = Some("its pattern is not known here"),
            }
        } else if text != "/" {
            self.paths.push(Place::Url(prefix_pattern(text)));
        }
    }

    /// Returns the argument of a `<Location>` and whether it is a pattern.
    pub(super) fn location(&self) -> Option<(&str, bool)> {
        self.location.as_ref().map(|(text, is_pattern)| (text.as_str(), *is_pattern))
    }

    /// Tells whether it says who may see something.
    pub(super) fn has_requirements(&self) -> bool {
        self.has(Family::Require) || self.has(Family::Order)
    }

    fn has(&self, family: Family) -> bool {
        match family {
            Family::Require => self.is_require_lost || !self.any.is_empty() || !self.all.is_empty(),
            Family::Order => {
                let has_lists = !self.allowed.is_empty() || !self.denied.is_empty();
                self.is_order_lost || self.order.is_some() || has_lists
            }
        }
    }

    /// Opens `<RequireAny>` or a relative.
    pub(super) fn open_group(&mut self, name: &str) {
        let group = match (self.groups.as_slice(), name.to_ascii_lowercase().as_str()) {
            ([], "requireany") => Grouping::Any,
            ([], "requireall") => Grouping::All,
            ([Grouping::All], "requirenone") => Grouping::None,
            _ => Grouping::Lost,
        };
        self.groups.push(group);
    }

    pub(super) fn close_group(&mut self) {
        self.groups.pop();
    }

    /// Reads a directive for which [`is_access`] holds.
    ///
    /// # Errors
    /// Why it cannot be converted; the section is refused as a whole then.
    pub(super) fn read(
        &mut self,
        name: &str,
        words: &[String],
        environment: &Environment,
    ) -> Result<(), String> {
        let is_require = name.eq_ignore_ascii_case("require");
        let unknown = variables(name, words).find(|variable| !environment.is_askable(variable));
        let read = match unknown {
            Some(variable) if is_require => Err(format!(
                "nothing that is converted tells when the variable `{variable}` is set"
            )),
            Some(variable) => Err(format!(
                "`env={variable}` is no address, and nothing that is converted tells when the variable is set"
            )),
            None if is_require => self.read_require(words),
            None => self.read_order(name, words),
        };
        if read.is_err() && is_require {
            self.is_require_lost = true;
        } else if read.is_err() {
            self.is_order_lost = true;
        }
        read
    }

    fn read_require(&mut self, words: &[String]) -> Result<(), String> {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut is_negated = words.first().is_some_and(|word| word.eq_ignore_ascii_case("not"));
        if is_negated {
            words.remove(0);
        }
        let (kind, words) = words.split_first().ok_or_else(|| "it says nothing".to_owned())?;
        let what = match (kind.to_ascii_lowercase().as_str(), words) {
            ("all", [word]) if word.eq_ignore_ascii_case("granted") => What::Granted,
            ("all", [word]) if word.eq_ignore_ascii_case("denied") => What::Denied,
            ("ip", [_, ..]) => What::Address(addresses_pattern(words)?),
            ("local", []) => What::Address(addresses_pattern(&["127.0.0.0/8", "::1"])?),
            ("env", [_, ..]) => {
                What::Environment(words.iter().map(|&name| name.to_owned()).collect())
            }
            ("method", [_, ..]) => What::Method(method_pattern(words.iter().copied())),
            _ => return Err(format!("`{kind}` cannot be asked here")),
        };
        let into = match self.groups.as_slice() {
            [] | [Grouping::Any] if self.all.is_empty() && !is_negated => &mut self.any,
            [Grouping::All] if self.any.is_empty() => &mut self.all,
            [Grouping::All, Grouping::None] if self.any.is_empty() && !is_negated => {
                is_negated = true;
                &mut self.all
            }
            _ => return Err("requirements within each other are not known here".to_owned()),
        };
        into.push(Requirement { what, is_negated });
        Ok(())
    }

    fn read_order(&mut self, name: &str, words: &[String]) -> Result<(), String> {
        let (variables, words): (Vec<_>, Vec<_>) =
            words.iter().cloned().partition(|word| Who::of_environment(word).is_some());
        let variables: Vec<Who> =
            variables.iter().filter_map(|word| Who::of_environment(word)).collect();
        let words: Vec<String> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match (name.to_ascii_lowercase().as_str(), words.as_slice()) {
            ("order", ["deny,allow"]) => self.order = Some(Order::DenyAllow),
            ("order", ["allow,deny" | "mutual-failure"]) => self.order = Some(Order::AllowDeny),
            ("satisfy", ["all"]) => {}
            (list @ ("allow" | "deny"), ["from", "all"]) => self.list(list).push(Who::All),
            (list @ ("allow" | "deny"), ["from", from @ ..])
                if !from.is_empty() || !variables.is_empty() =>
            {
                if !from.is_empty() {
                    let addresses = Who::Address(addresses_pattern(from)?);
                    self.list(list).push(addresses);
                }
                self.list(list).extend(variables);
            }
            _ => return Err(format!("`{}` is not known here", words.join(" "))),
        }
        Ok(())
    }

    fn list(&mut self, name: &str) -> &mut Vec<Who> {
        if name == "allow" { &mut self.allowed } else { &mut self.denied }
    }

    /// Returns the conditions under each of which a request is refused.
    fn denials(&self, family: Family) -> Vec<Vec<String>> {
        match family {
            Family::Require if self.is_require_lost => vec![Vec::new()],
            Family::Order if self.is_order_lost => vec![Vec::new()],
            Family::Require if !self.all.is_empty() => {
                let failing = self.all.iter().map(Requirement::fails);
                failing
                    .filter_map(|fails| match fails {
                        Fails::Never => None,
                        Fails::Always => Some(Vec::new()),
                        Fails::When(conditions) => Some(conditions),
                    })
                    .collect()
            }
            Family::Require if !self.any.is_empty() => {
                let mut when = Vec::new();
                for requirement in &self.any {
                    match requirement.fails() {
                        Fails::Never => return Vec::new(),
                        Fails::Always => {}
                        Fails::When(conditions) => when.extend(conditions),
                    }
                }
                vec![when]
            }
            Family::Require => Vec::new(),
            Family::Order if !self.has(Family::Order) => Vec::new(),
            Family::Order => self.order_denials(),
        }
    }

    fn order_denials(&self) -> Vec<Vec<String>> {
        let allowed = listed(&self.allowed, true);
        let denied = listed(&self.denied, false);
        match (self.order.unwrap_or(Order::DenyAllow), allowed, denied) {
            // Who is denied and not allowed.
            (Order::DenyAllow, Fails::Never, _) | (Order::DenyAllow, _, Fails::Never) => Vec::new(),
            (Order::DenyAllow, allowed, denied) => {
                let parts = [denied, allowed].into_iter();
                vec![
                    parts
                        .flat_map(|part| match part {
                            Fails::When(conditions) => conditions,
                            Fails::Always | Fails::Never => Vec::new(),
                        })
                        .collect(),
                ]
            }
            // Who is not allowed, and who is denied.
            (Order::AllowDeny, allowed, denied) => [allowed, denied]
                .into_iter()
                .filter_map(|part| match part {
                    Fails::Never => None,
                    Fails::Always => Some(Vec::new()),
                    Fails::When(conditions) => Some(conditions),
                })
                .collect(),
        }
    }

    fn reach(&self, root: Option<&str>) -> Reach {
        if let Some(why) = self.unknown {
            return Reach::Unknown(why);
        }
        let mut paths = self.paths.clone();
        let root = root.map(|root| root.trim_end_matches('/'));
        match (self.folder.as_deref(), root) {
            (None, _) | (Some("/"), Some(_)) => {}
            (Some(_), None) => {
                return Reach::Unknown("no `DocumentRoot` tells which pages its folder holds");
            }
            (Some(folder), Some(root)) => {
                if below(root, folder).is_none() {
                    let Some(path) = below(folder, root) else { return Reach::Nothing };
                    paths.insert(0, Place::File(prefix_pattern(path)));
                }
            }
        }
        Reach::Paths(paths)
    }

    /// Returns the refusal of what is in all `places`, and not `elsewhere`, where `denial` holds.
    fn refusal(&self, places: &[Place], elsewhere: &[String], denial: Vec<String>) -> Refusal {
        let of = if self.rank == LOCATION { "url" } else { "file" };
        let (mut pattern, mut when) = (None, Vec::new());
        for place in places {
            match (place, of) {
                (Place::Url(own), "url") | (Place::File(own), "file") if pattern.is_none() => {
                    pattern = Some(own.clone());
                }
                (place, _) => when.push(place.condition(false)),
            }
        }
        when.extend(self.method.iter().map(|method| method.condition(true)));
        when.extend(elsewhere.iter().cloned());
        when.extend(denial);
        Refusal { of, pattern, when }
    }
}

/// Returns what stands behind `outer` in a path within it.
fn below<'a>(inner: &'a str, outer: &str) -> Option<&'a str> {
    inner.strip_prefix(outer).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns when somebody is not on the list, or, with `is_negated` false, when somebody is.
fn listed(list: &[Who], is_negated: bool) -> Fails {
    let mut patterns = Vec::new();
    let mut conditions = Vec::new();
    for from in list {
        match from {
            Who::All => return if is_negated { Fails::Never } else { Fails::Always },
            Who::Address(pattern) => patterns.push(pattern.as_str()),
            Who::Environment { name, is_set } => {
                conditions.push(environment_condition(name, *is_set != is_negated));
            }
        }
    }
    if !patterns.is_empty() {
        conditions.push(condition("%{REMOTE_ADDR}", &patterns.join("|"), is_negated));
    }
    match conditions.is_empty() {
        true if is_negated => Fails::Always,
        true => Fails::Never,
        false if is_negated => Fails::When(conditions),
        false => Fails::When(any_of(conditions)),
    }
}

/// Returns conditions of which one is enough.
fn any_of(mut conditions: Vec<String>) -> Vec<String> {
    let last = conditions.pop();
    conditions.iter().map(|condition| or_next(condition)).chain(last).collect()
}

impl Requirement {
    fn fails(&self) -> Fails {
        match (&self.what, self.is_negated) {
            (What::Granted, false) | (What::Denied, true) => Fails::Never,
            (What::Granted, true) | (What::Denied, false) => Fails::Always,
            (What::Address(pattern), is_negated) => {
                Fails::When(vec![condition("%{REMOTE_ADDR}", pattern, !is_negated)])
            }
            (What::Method(pattern), is_negated) => {
                Fails::When(vec![condition("%{REQUEST_METHOD}", pattern, !is_negated)])
            }
            (What::Environment(names), is_negated) => {
                let conditions =
                    names.iter().map(|name| environment_condition(name, is_negated)).collect();
                Fails::When(if is_negated { any_of(conditions) } else { conditions })
            }
        }
    }
}

/// Returns what the sections refuse of a host with this document root.
pub(super) fn refusals(
    sections: &[&Section],
    root: Option<&str>,
    findings: &mut Findings,
) -> Vec<Refusal> {
    let mut sorted = sections.to_vec();
    sorted.sort_by_key(|section| {
        // As in httpd, patterns come behind folders that are written out.
        let is_pattern = section.unknown == Some(FOLDER_PATTERN);
        let length = section.folder.as_ref().map_or(0, String::len);
        let length = if is_pattern { usize::MAX } else { length };
        (section.rank, if section.rank == LOCATION { 0 } else { length }, section.number)
    });
    let mut refusals = Vec::new();
    for (index, section) in sorted.iter().enumerate() {
        let later = sorted.get(index + 1..).unwrap_or_default();
        for family in [Family::Require, Family::Order] {
            let denials = section.denials(family);
            let Some(elsewhere) = outside(later, family, root) else { continue };
            if denials.is_empty() {
                continue;
            }
            let paths = match section.reach(root) {
                Reach::Paths(paths) => paths,
                Reach::Nothing => continue,
                Reach::Unknown(why) => {
                    tell(section, why, findings);
                    continue;
                }
            };
            // What may let visitors in again, nobody knows where.
            for later in later.iter().filter(|later| later.has(family)) {
                if let Reach::Unknown(why) = later.reach(root) {
                    tell(later, why, findings);
                }
            }
            for denial in denials {
                refusals.push(section.refusal(&paths, &elsewhere, denial));
            }
        }
    }
    refusals
}

/// Tells once that a section is not converted.
fn tell(section: &Section, why: &str, findings: &mut Findings) {
    let message = format!("the access rules of this section are not converted: {why}");
    let mut told = findings.0.iter();
    if !told.any(|found| found.message == message && found.at == section.at) {
        findings.error(&section.at, message);
    }
}

/// Returns the conditions under which none of the later sections decides; nothing if one of them always does.
fn outside(later: &[&Section], family: Family, root: Option<&str>) -> Option<Vec<String>> {
    let mut outside = Vec::new();
    for section in later.iter().filter(|section| section.has(family)) {
        let Reach::Paths(paths) = section.reach(root) else { continue };
        let mut parts: Vec<String> = paths.iter().map(|place| place.condition(true)).collect();
        parts.extend(section.method.iter().map(|method| method.condition(false)));
        let last = parts.pop()?;
        outside.extend(parts.iter().map(|part| or_next(part)));
        outside.push(last);
    }
    Some(outside)
}

impl Method {
    /// Returns the condition that a request's method is one of these, or is not.
    fn condition(&self, is_wanted: bool) -> String {
        condition("%{REQUEST_METHOD}", &self.pattern, is_wanted == self.is_except)
    }
}

fn method_pattern<'a>(methods: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = methods.map(regex::escape).collect();
    if names.iter().any(|name| name == "GET") {
        names.push("HEAD".to_owned());
    }
    format!("^(?:{})$", names.join("|"))
}

/// A path and what is below it, in whole segments.
fn prefix_pattern(path: &str) -> String {
    let rest = if path.ends_with('/') { "" } else { "(?:/|$)" };
    format!("^{}{rest}", regex::escape(path))
}

/// A glob in which wildcards stand for no slash.
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

/// A glob for a file's name.
fn name_glob(glob: &str) -> Option<String> {
    glob_pattern(glob).map(|pattern| format!("(?:^|/){pattern}$"))
}

/// A pattern that is searched in a file's name, which is the last part of a path.
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
        address_pattern(text).ok_or_else(|| format!("`{text}` is no address that can be asked for"))
    };
    let patterns: Vec<String> = list.iter().map(read).collect::<Result<_, _>>()?;
    Ok(format!("^(?:{})$", patterns.join("|")))
}

/// Reads an address, its beginning (`10.1`), a network (`10.0.0.0/8`) or one with a mask.
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
            let found = Regex::new(&name_pattern(pattern).unwrap()).unwrap();
            for path in inside {
                assert!(found.is_match(path), "{pattern} {path}");
            }
            for path in outside {
                assert!(!found.is_match(path), "{pattern} {path}");
            }
        };
        check(r"\.(bak|config)$", &["/a.bak", "/b/a.config"], &["/a.bak.html", "/a.bak/b.html"]);
        check(r"\.bak|\.old", &["/a.bak.html", "/b/a.old"], &["/a.bak/b.html", "/a.old/b.html"]);
        check(r"^\.ht", &["/.htaccess", "/b/.ht"], &["/a.ht", "/.ht/b.html"]);
        assert_eq!(name_pattern("^a|^b"), None);
        assert_eq!(name_pattern("a|^b"), None);
    }
}
