//! The hosts of the output: one for each set of names that httpd treats alike, regardless of the port.
//!
//! httpd first selects by port and then by name, and uses the first host of a port if no name matches. Hosts of
//! `tympan.toml` have names only, so those that share a name are merged, and each rule tests its port.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::access::{self, HttpdSection};
use super::{format_condition, quote_toml, write_conditions, write_toml_table};
use crate::config::any_syntax::{DiagnosticCollector, SourcePosition};
use crate::config::glob::DispatcherGlob;

/// A rule of a host.
#[derive(Debug, Clone)]
pub(super) struct HttpdHostRule {
    pub(super) position: SourcePosition,
    /// The pattern for the path; `None` for any path.
    pub(super) pattern: Option<String>,
    pub(super) ignores_case: bool,
    /// The conditions in their textual form.
    pub(super) conditions: Vec<String>,
    /// The other keys, one per line.
    pub(super) action_toml: String,
    /// True if httpd processes the resulting path as an internal redirect.
    pub(super) is_lookup_repeated: bool,
}

impl HttpdHostRule {
    fn write_toml(&self, toml: &mut String, guard: &[String], keeps_host: bool) {
        toml.push_str("\n[[dispatcher.host.rule]]\n");
        if let Some(pattern) = &self.pattern {
            writeln!(toml, "match = {}", quote_toml(pattern)).unwrap_or_default();
        }
        if self.ignores_case {
            toml.push_str("ignore_case = true\n");
        }
        // The conditions on the port come first, as `%1` refers to a group of the last one.
        write_conditions(toml, guard, &self.conditions);
        toml.push_str(&self.action_toml);
        if keeps_host && self.action_toml.lines().any(|line| line.starts_with("proxy = ")) {
            toml.push_str("keep_host = true\n");
        }
    }
}

/// The hosts that inherit the rewrite rules outside every host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RewriteInheritance {
    #[default]
    Nothing,
    Before,
    After,
}

/// A `<VirtualHost>`, or the directives outside every one.
#[derive(Debug, Default)]
pub(super) struct HttpdHost {
    pub(super) position: Option<SourcePosition>,
    /// Addresses and ports, as in `<VirtualHost *:80>`.
    addresses: Vec<(String, Option<String>)>,
    pub(super) names: Vec<String>,
    pub(super) document_root: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) error_documents: BTreeMap<String, String>,
    pub(super) sections: Vec<HttpdSection>,
    /// Rules that set variables before all others, even if rewriting is off.
    pub(super) environment_rules: Vec<HttpdHostRule>,
    pub(super) rewrite_rules: Vec<HttpdHostRule>,
    pub(super) proxy_rules: Vec<HttpdHostRule>,
    pub(super) redirect_rules: Vec<HttpdHostRule>,
    pub(super) pending_conditions: Vec<String>,
    pub(super) is_condition_unconvertible: bool,
    pub(super) is_rewrite_enabled: Option<bool>,
    /// True if proxied servers get the host that the visitor requested.
    pub(super) keeps_host: Option<bool>,
    /// The inheritance of this host, or of all hosts if this holds the directives outside them.
    pub(super) inheritance: RewriteInheritance,
}

impl HttpdHost {
    pub(super) fn new(at: &SourcePosition, argument: &str) -> Self {
        let addresses = argument.split_whitespace().map(|address_text| {
            let (address, port) = crate::config::split_port(address_text.trim_matches('"'));
            (address.to_owned(), port.filter(|port| *port != "*").map(str::to_owned))
        });
        Self { position: Some(at.clone()), addresses: addresses.collect(), ..Self::default() }
    }

    /// Returns the ports; `None` stands for ports that no other host has.
    fn ports(&self) -> Vec<Option<&str>> {
        match self.addresses.as_slice() {
            [] => vec![None],
            addresses => addresses.iter().map(|(_, port)| port.as_deref()).collect(),
        }
    }

    fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name || DispatcherGlob::new(own).matches(name))
    }

    /// Returns the effective rewrite rules.
    fn effective_rewrite_rules<'a>(
        &'a self,
        global: &'a Self,
        findings: &mut DiagnosticCollector,
    ) -> Vec<&'a HttpdHostRule> {
        let is_rewriting = self.is_rewrite_enabled.or(global.is_rewrite_enabled).unwrap_or(false);
        if !is_rewriting {
            if let Some(rule) = self.rewrite_rules.first() {
                add_warning_once(
                    findings,
                    &rule.position,
                    "this `<VirtualHost>` has no `RewriteEngine On`, so its rewrite rules are left out, as in \
                     httpd",
                );
            }
            return Vec::new();
        }
        let inherits = match self.inheritance {
            RewriteInheritance::Nothing => global.inheritance,
            own => own,
        };
        match inherits {
            RewriteInheritance::Nothing => self.rewrite_rules.iter().collect(),
            RewriteInheritance::Before => {
                global.rewrite_rules.iter().chain(&self.rewrite_rules).collect()
            }
            RewriteInheritance::After => {
                self.rewrite_rules.iter().chain(&global.rewrite_rules).collect()
            }
        }
    }
}

/// Adds a warning once, even if several hosts cause it.
fn add_warning_once(findings: &mut DiagnosticCollector, at: &SourcePosition, message: &str) {
    if !findings.0.iter().any(|finding| finding.position == *at && finding.message == message) {
        findings.add_warning(at, message);
    }
}

/// Warns of rules for which only the rewritten path is checked, where httpd also checks the path as sent.
fn warn_of_path_rules(rewrites: &[&HttpdHostRule], findings: &mut DiagnosticCollector) {
    for rule in rewrites.iter().filter(|rule| rule.is_lookup_repeated) {
        add_warning_once(
            findings,
            &rule.position,
            "for requests that this rule proxies to this server, `<Location>` restricts the rewritten path, \
             not the path that was sent; if the sent path is restricted, refuse it with `[F]` before this \
             rule",
        );
    }
}

/// Warns of rules that refuse requests at one port, because the visitor chooses the port in the request.
fn warn_of_port_rules(host: &HttpdHost, global: &HttpdHost, findings: &mut DiagnosticCollector) {
    let own =
        host.effective_rewrite_rules(global, findings).into_iter().chain(&host.redirect_rules);
    let refusing: Vec<&HttpdHostRule> =
        own.filter(|rule| rule.action_toml.starts_with("answer = 4")).collect();
    for rule in refusing {
        add_warning_once(
            findings,
            &rule.position,
            "this rule refuses requests to one of several ports, and the visitor chooses the port in the \
             request; if it protects something, write `Require all denied` in a `<Location>`, which applies \
             to all ports",
        );
    }
}

/// Writes the hosts; `global` holds the directives outside them.
pub(super) fn write_hosts(
    toml: &mut String,
    hosts: &[HttpdHost],
    global: &HttpdHost,
    findings: &mut DiagnosticCollector,
) {
    if hosts.is_empty() {
        // A file of rules for an `Include` does not enable rewriting itself.
        let is_rewriting = Some(global.is_rewrite_enabled.unwrap_or(true));
        let only = HttpdHost {
            is_rewrite_enabled: is_rewriting,
            inheritance: RewriteInheritance::After,
            ..HttpdHost::default()
        };
        let group = HttpdHostGroup { names: Vec::new(), hosts: vec![(None, &only)] };
        return group.write_toml(toml, &[None], global, findings);
    }
    let ports = listening_ports(hosts);
    warn_of_unreachable_hosts(hosts, &ports, findings);
    for group in group_hosts(hosts, &ports) {
        group.write_toml(toml, &ports, global, findings);
    }
}

/// Returns the ports of the hosts in the order of their appearance.
fn listening_ports(hosts: &[HttpdHost]) -> Vec<Option<&str>> {
    let mut ports = Vec::new();
    for port in hosts.iter().flat_map(HttpdHost::ports) {
        if !ports.contains(&port) {
            ports.push(port);
        }
    }
    ports
}

/// Returns the host that httpd selects at a port: the first one of this name, or else the first one.
fn select_host<'a>(
    hosts: &'a [HttpdHost],
    port: Option<&str>,
    name: Option<&str>,
) -> Option<&'a HttpdHost> {
    let mut at_door = hosts.iter().filter(|host| host.ports().contains(&port));
    let first = at_door.clone().next();
    name.and_then(|name| at_door.find(|host| host.has_name(name))).or(first)
}

/// Names for which httpd selects the same hosts.
struct HttpdHostGroup<'a> {
    names: Vec<String>,
    hosts: Vec<(Option<&'a str>, &'a HttpdHost)>,
}

fn group_hosts<'a>(hosts: &'a [HttpdHost], ports: &[Option<&'a str>]) -> Vec<HttpdHostGroup<'a>> {
    let chosen_for = |name: Option<&str>| -> Vec<(Option<&'a str>, &'a HttpdHost)> {
        let choose =
            |port: &Option<&'a str>| select_host(hosts, *port, name).map(|host| (*port, host));
        ports.iter().filter_map(choose).collect()
    };
    let is_same = |left: &[(Option<&str>, &HttpdHost)], right: &[(Option<&str>, &HttpdHost)]| {
        let mut pairs = left.iter().zip(right);
        left.len() == right.len() && pairs.all(|(left, right)| std::ptr::eq(left.1, right.1))
    };
    let mut groups: Vec<HttpdHostGroup<'a>> = Vec::new();
    for name in hosts.iter().flat_map(|host| &host.names) {
        let hosts = chosen_for(Some(name.as_str()));
        match groups.iter_mut().find(|group| is_same(&group.hosts, &hosts)) {
            Some(group) if group.names.iter().any(|own| DispatcherGlob::new(own).matches(name)) => {
            }
            Some(group) => group.names.push(name.clone()),
            None => groups.push(HttpdHostGroup { names: vec![name.clone()], hosts }),
        }
    }
    // Any other name gets the first host of its port.
    let rest = chosen_for(None);
    let mut last = match groups.iter().position(|group| is_same(&group.hosts, &rest)) {
        Some(at) => groups.remove(at),
        None => HttpdHostGroup { names: Vec::new(), hosts: rest },
    };
    // A literal name must never be matched by a pattern of another group.
    groups.sort_by_key(|group| group.names.iter().any(|name| name.contains(['*', '?'])));
    // Without names the group is for all hosts.
    if !last.names.is_empty() && !last.names.iter().any(|name| name == "*") {
        last.names.push("*".to_owned());
    }
    groups.push(last);
    groups
}

fn warn_of_unreachable_hosts(
    hosts: &[HttpdHost],
    ports: &[Option<&str>],
    findings: &mut DiagnosticCollector,
) {
    let reached_hosts: Vec<&HttpdHost> = group_hosts(hosts, ports)
        .iter()
        .flat_map(|group| group.hosts.iter().map(|(_, host)| *host))
        .collect();
    for host in hosts {
        let Some(at) = &host.position else { continue };
        let own = host.addresses.iter().map(|(address, _)| address.as_str());
        let mut own = own.filter(|address| !matches!(*address, "" | "*" | "_default_"));
        let is_reached = reached_hosts.iter().any(|reached| std::ptr::eq(*reached, host));
        match (own.next(), is_reached) {
            (Some(address), false) => findings.add_error(
                at,
                format!(
                    "this `<VirtualHost>` is not converted: only the address `{address}` distinguishes it \
                     from an earlier one; hosts are distinguished by name and port"
                ),
            ),
            (Some(address), true) => findings.add_warning(
                at,
                format!("the address `{address}` is left out; this host applies to every address"),
            ),
            (None, false) => findings.add_warning(
                at,
                "this `<VirtualHost>` is unreachable, as all its names belong to an earlier one; it is left \
                 out",
            ),
            (None, true) => {}
        }
    }
}

/// Returns the conditions for visitors of a port. Exactly one port matches each request: a proxy in front may have
/// received it at another port, and then the request shows only if it used TLS.
fn port_guard_conditions(host_port: Option<&str>, ports: &[Option<&str>]) -> Vec<String> {
    if ports.len() < 2 {
        return Vec::new();
    }
    let rest = [None, Some("80")].into_iter().find(|port| ports.contains(port));
    let rest = rest.or_else(|| ports.iter().copied().find(|port| *port != Some("443")));
    let rest = rest.unwrap_or(None);
    let asks = |port: &str, is_negated: bool| match port {
        "443" => format_condition("%{HTTPS}", "^on$", is_negated),
        port => {
            format_condition("%{SERVER_PORT}", &format!("^{}$", regex::escape(port)), is_negated)
        }
    };
    let others = ports
        .iter()
        .copied()
        .filter(|other_door| *other_door != rest && *other_door != host_port)
        .flatten();
    match host_port {
        host_port if host_port == rest => others.map(|port| asks(port, true)).collect(),
        // An explicit port takes precedence over the scheme.
        Some("443") => {
            let own = asks("443", false);
            others.map(|port| asks(port, true)).chain([own]).collect()
        }
        Some(port) => vec![asks(port, false)],
        None => Vec::new(),
    }
}

impl<'a> HttpdHostGroup<'a> {
    /// Returns the distinct hosts.
    fn distinct_hosts(&self) -> Vec<&'a HttpdHost> {
        let mut parts: Vec<&'a HttpdHost> = Vec::new();
        for (_, host) in &self.hosts {
            if !parts.iter().any(|part| std::ptr::eq(*part, *host)) {
                parts.push(*host);
            }
        }
        parts
    }

    fn write_toml(
        &self,
        toml: &mut String,
        ports: &[Option<&str>],
        global: &HttpdHost,
        findings: &mut DiagnosticCollector,
    ) {
        let parts = self.distinct_hosts();
        toml.push_str("\n[[dispatcher.host]]\n");
        if !self.names.is_empty() {
            let names: Vec<String> = self.names.iter().map(|name| quote_toml(name)).collect();
            writeln!(toml, "names = [{}]", names.join(", ")).unwrap_or_default();
        }
        let mut roots = parts.iter().filter_map(|part| part.document_root.as_ref());
        let own_root = roots.next();
        if let Some(root) = own_root.or(global.document_root.as_ref()) {
            writeln!(toml, "document_root = {}", quote_toml(root)).unwrap_or_default();
        }
        if roots.any(|root| Some(root) != own_root) {
            self.warn_of_difference("DocumentRoot", findings);
        }
        let headers =
            self.merge_settings("Header", &global.headers, |part| &part.headers, findings);
        write_toml_table(toml, "headers", &headers);
        let none = BTreeMap::new();
        let documents =
            self.merge_settings("ErrorDocument", &none, |part| &part.error_documents, findings);
        write_toml_table(toml, "error_documents", &documents);
        self.write_rules(toml, ports, global, findings);
    }

    fn write_rules(
        &self,
        toml: &mut String,
        ports: &[Option<&str>],
        global: &HttpdHost,
        findings: &mut DiagnosticCollector,
    ) {
        // If one host has all ports, its rules need no test of the port.
        let is_one = self.distinct_hosts().len() < 2;
        let guarded: Vec<(Vec<String>, &HttpdHost)> = match self.hosts.first() {
            Some((_, host)) if is_one => vec![(Vec::new(), *host)],
            _ => self
                .hosts
                .iter()
                .map(|(port, host)| (port_guard_conditions(*port, ports), *host))
                .collect(),
        };
        let keeps_host = |host: &HttpdHost| host.keeps_host.or(global.keeps_host).unwrap_or(false);
        global.environment_rules.iter().for_each(|rule| rule.write_toml(toml, &[], false));
        for (guard, host) in &guarded {
            host.environment_rules.iter().for_each(|rule| rule.write_toml(toml, guard, false));
        }
        for (guard, host) in &guarded {
            let keeps_host = keeps_host(host);
            let rewrites = host.effective_rewrite_rules(global, findings);
            rewrites.iter().for_each(|rule| rule.write_toml(toml, guard, keeps_host));
        }
        global.proxy_rules.iter().for_each(|rule| rule.write_toml(toml, &[], keeps_host(global)));
        for (guard, host) in &guarded {
            host.proxy_rules.iter().for_each(|rule| rule.write_toml(toml, guard, keeps_host(host)));
        }
        for (guard, host) in &guarded {
            host.redirect_rules.iter().for_each(|rule| rule.write_toml(toml, guard, false));
        }
        global.redirect_rules.iter().for_each(|rule| rule.write_toml(toml, &[], false));
        self.write_access(toml, &guarded, is_one, ports, global, findings);
    }

    /// Writes the access rules.
    fn write_access(
        &self,
        toml: &mut String,
        guarded: &[(Vec<String>, &HttpdHost)],
        is_one: bool,
        ports: &[Option<&str>],
        global: &HttpdHost,
        findings: &mut DiagnosticCollector,
    ) {
        // The port is chosen by the visitor, unless only TLS distinguishes the ports: what is closed at one of them is
        // closed at all.
        let is_written = ports.iter().filter(|port| **port != Some("443")).count() > 1;
        let is_unguarded = !is_one && is_written;
        let rewrites = guarded
            .iter()
            .any(|(_, host)| !host.effective_rewrite_rules(global, findings).is_empty());
        if is_unguarded {
            guarded.iter().for_each(|(_, host)| warn_of_port_rules(host, global, findings));
        }
        let mut has_access_rules = false;
        for (guard, host) in guarded {
            let root = host.document_root.as_deref().or(global.document_root.as_deref());
            let sections: Vec<&HttpdSection> =
                global.sections.iter().chain(&host.sections).collect();
            if sections.iter().any(|section| section.location().is_some()) {
                warn_of_path_rules(&host.effective_rewrite_rules(global, findings), findings);
            }
            for refusal in access::collect_refusals(&sections, root, findings) {
                has_access_rules = true;
                let guard = if is_unguarded { &[] } else { guard.as_slice() };
                refusal.write_toml(toml, guard);
                // A visitor may name the port of a host whose rewrites lead to a path that is closed by its URL at this
                // one.
                if let Some(refusal) = refusal.for_file_path().filter(|_| is_unguarded && rewrites)
                {
                    refusal.write_toml(toml, guard);
                }
                // Likewise for a host whose rewrites lead away from it, where farms look up the path as sent.
                if is_unguarded && rewrites {
                    refusal.for_sent_path().write_toml(toml, guard);
                }
            }
        }
        let last = self.hosts.last().and_then(|(_, host)| host.position.as_ref());
        if let (true, true, Some(at)) = (is_unguarded, has_access_rules, last) {
            add_warning_once(
                findings,
                at,
                "access that hosts of one name deny for one port is denied for all their ports, as the \
                 visitor chooses the port in the request",
            );
        }
    }

    /// Merges the response settings of hosts; the last one wins.
    fn merge_settings(
        &self,
        name: &str,
        global: &BTreeMap<String, String>,
        of: impl Fn(&HttpdHost) -> &BTreeMap<String, String>,
        findings: &mut DiagnosticCollector,
    ) -> BTreeMap<String, String> {
        let mut merged = BTreeMap::new();
        let mut differs = false;
        for part in self.distinct_hosts() {
            for (key, value) in of(part) {
                let before = merged.insert(key.clone(), value.clone());
                differs |= before.is_some_and(|before: String| before != *value);
            }
        }
        if differs {
            self.warn_of_difference(name, findings);
        }
        let mut all = global.clone();
        all.extend(merged);
        all
    }

    fn warn_of_difference(&self, name: &str, findings: &mut DiagnosticCollector) {
        let last = self.hosts.last().and_then(|(_, host)| host.position.as_ref());
        if let Some(at) = last {
            let message = format!(
                "hosts of one name set `{name}` differently for their ports; rules can distinguish ports, \
                 this setting cannot"
            );
            add_warning_once(findings, at, &message);
        }
    }
}
