//! Conversion of `RewriteCond`, `RewriteRule`, `Redirect…` and `ProxyPass…` to rules of a host.

use std::fmt::Write;

use percent_encoding::{percent_decode_str, utf8_percent_encode};
use regex::Regex;

use super::host::HttpdHostRule;
use super::{
    HttpdConfigReader, HttpdDirective, expression, format_condition, quote_toml, with_or_flag,
};
use crate::request::host_routing::{URL_PATH_ESCAPE_SET, is_supported_variable};

/// The flags of a `RewriteRule`.
#[derive(Debug, Default)]
struct RewriteFlags {
    redirect_status: Option<u16>,
    response_status: Option<u16>,
    is_proxy: bool,
    is_last: bool,
    passes_through: bool,
    ignores_case: bool,
    appends_query: bool,
    discards_query: bool,
    no_escape: bool,
    /// The variables it sets, with their value templates.
    variables: Vec<(String, String)>,
    restarts_rules: bool,
    escapes_groups: bool,
    /// The characters to escape in groups, if not all except letters, digits and `_`.
    escaped_characters: Option<String>,
    /// True if a space in a group becomes `%20` instead of `+`.
    escapes_space_as_percent: bool,
    unknown_flags: Vec<String>,
}

impl RewriteFlags {
    fn parse(text: &str) -> Self {
        let mut flags = Self::default();
        let inner = text.trim_start_matches('[').trim_end_matches(']');
        for flag in inner.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            match name.to_ascii_uppercase().as_str() {
                "R" | "REDIRECT" => match parse_redirect_status(value) {
                    Some(status) if (300..400).contains(&status) => {
                        flags.redirect_status = Some(status)
                    }
                    Some(status) => flags.response_status = Some(status),
                    None => flags.unknown_flags.push(flag.to_owned()),
                },
                "F" | "FORBIDDEN" => flags.response_status = Some(403),
                "G" | "GONE" => flags.response_status = Some(410),
                "P" | "PROXY" => flags.is_proxy = true,
                "L" | "LAST" | "END" => flags.is_last = true,
                "NC" | "NOCASE" => flags.ignores_case = true,
                "QSA" | "QSAPPEND" => flags.appends_query = true,
                "QSD" | "QSDISCARD" => flags.discards_query = true,
                "NE" | "NOESCAPE" => flags.no_escape = true,
                "PT" | "PASSTHROUGH" => flags.passes_through = true,
                "E" | "ENV" => match value.strip_prefix('!') {
                    Some(name) => flags.variables.push((name.to_owned(), String::new())),
                    None => {
                        let (name, value) = value.split_once(':').unwrap_or((value, ""));
                        flags.variables.push((name.to_owned(), value.to_owned()));
                    }
                },
                "N" | "NEXT" => flags.restarts_rules = true,
                "B" => {
                    flags.escapes_groups = true;
                    flags.escaped_characters =
                        Some(value.to_owned()).filter(|chars| !chars.is_empty());
                }
                "BNP" | "BACKREFNOPLUS" => flags.escapes_space_as_percent = true,
                "DPI" | "NS" | "NOSUBREQ" => {}
                _ => flags.unknown_flags.push(flag.to_owned()),
            }
        }
        flags
    }
}

fn parse_redirect_status(text: &str) -> Option<u16> {
    match text.to_ascii_lowercase().as_str() {
        "" | "temp" => Some(302),
        "permanent" => Some(301),
        "seeother" => Some(303),
        "gone" => Some(410),
        number => number.parse().ok().filter(|status| (300..600).contains(status)),
    }
}

impl HttpdConfigReader<'_> {
    pub(super) fn read_rewrite_condition(&mut self, line: &HttpdDirective<'_>) {
        let (test, pattern) = (line.argument(0), line.argument(1));
        let flags = line.argument(2).to_ascii_uppercase();
        let flags: Vec<&str> = flags.trim_matches(['[', ']']).split(',').map(str::trim).collect();
        if let Some(map) = rewrite_map_name(test) {
            self.report_unconverted_rule(line, &rewrite_map_message(map));
            return self.current_host().is_condition_unconvertible = true;
        }
        let is_alternative = flags.contains(&"OR") || flags.contains(&"ORNEXT");
        if test.eq_ignore_ascii_case("expr") {
            return self.read_expression_condition(line, pattern, is_alternative);
        }
        for name in variable_names(test) {
            let is_known = match name.strip_prefix("ENV:") {
                Some(variable) => self.is_known_variable(line, variable),
                None => is_supported_variable(name),
            };
            if !is_known {
                let why = format!("the variable `%{{{name}}}` is not known, so it would be empty");
                self.report_unconverted_rule(line, &why);
                return self.current_host().is_condition_unconvertible = true;
            }
        }
        let (is_negated, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        let check = match pattern {
            "-f" => "is = \"file\"".to_owned(),
            "-d" => "is = \"directory\"".to_owned(),
            pattern if pattern.starts_with(['<', '>']) || is_file_or_number_test(pattern) => {
                self.report_unconverted_rule(line, &format!("the test `{pattern}` is not known"));
                return self.current_host().is_condition_unconvertible = true;
            }
            pattern => {
                let pattern = exact_pattern(pattern);
                if !self.can_use_pattern(line, &pattern) {
                    return self.current_host().is_condition_unconvertible = true;
                }
                format!("match = {}", quote_toml(&pattern))
            }
        };
        let mut text = format!("test = {}, {check}", quote_toml(test));
        for (name, is_set) in [
            ("negate", is_negated),
            ("ignore_case", flags.contains(&"NC") || flags.contains(&"NOCASE")),
            ("or", is_alternative),
        ] {
            if is_set {
                write!(text, ", {name} = true").unwrap_or_default();
            }
        }
        self.current_host().pending_conditions.push(format!("{{ {text} }}"));
    }

    /// Reads `RewriteCond expr EXPRESSION`.
    fn read_expression_condition(
        &mut self,
        line: &HttpdDirective<'_>,
        text: &str,
        is_alternative: bool,
    ) {
        let conditions = expression::expression_to_conditions(text).and_then(|clauses| {
            let names = clauses.iter().flatten().flat_map(|condition| variable_names(condition));
            for name in names.filter_map(|name| name.strip_prefix("ENV:")) {
                if !self.is_known_variable(line, name) {
                    return Err(format!(
                        "the variable `%{{ENV:{name}}}` is not known, so it would be empty"
                    ));
                }
            }
            Ok(clauses)
        });
        let clauses = match conditions {
            // Among alternatives, an expression of more than one clause has no counterpart.
            Ok(clauses) if is_alternative && clauses.len() != 1 => {
                self.report_unconverted_rule(
                    line,
                    "an expression with `[OR]` must be one alternative, not several conditions",
                );
                return self.current_host().is_condition_unconvertible = true;
            }
            Ok(clauses) => clauses,
            Err(why) => {
                self.report_unconverted_rule(line, &why);
                return self.current_host().is_condition_unconvertible = true;
            }
        };
        for mut clause in clauses {
            let Some(last) = clause.pop() else {
                // This condition never holds.
                self.current_host().pending_conditions.push(format_condition("", ".", false));
                continue;
            };
            let alternatives = clause.iter().map(|test| with_or_flag(test));
            let last = if is_alternative { with_or_flag(&last) } else { last };
            let all: Vec<String> = alternatives.chain([last]).collect();
            self.current_host().pending_conditions.extend(all);
        }
    }

    /// Returns true if `SetEnvIf` or an earlier rule sets an environment variable. The variables that httpd itself sets
    /// for internal redirects do not exist here.
    fn is_known_variable(&mut self, line: &HttpdDirective<'_>, name: &str) -> bool {
        self.recorded_environment.record_query(name);
        if self.known_environment.is_set_only_after_rules(name) {
            let message = format!(
                "`%{{ENV:{name}}}` is empty here, as in httpd: `SetEnv` sets it after all rules, `SetEnvIf` \
                 before them"
            );
            self.diagnostics.add_warning(line.position, message);
            return true;
        }
        name == "REDIRECT_STATUS"
            || self.rule_variables.contains(name)
            || self.known_environment.is_set_before_rules(name)
    }

    pub(super) fn handle_rewrite_rule(&mut self, line: &HttpdDirective<'_>) {
        let count = self.current_host().rewrite_rules.len();
        self.read_rewrite_rule(line);
        let is_converted = self.current_host().rewrite_rules.len() > count;
        let flags = RewriteFlags::parse(line.argument(2));
        self.recorded_environment.record_rule(&flags.variables, is_converted);
    }

    fn read_rewrite_rule(&mut self, line: &HttpdDirective<'_>) {
        let conditions = std::mem::take(&mut self.current_host().pending_conditions);
        // A rule without its condition would apply too often, so it is left out; its condition was reported.
        if std::mem::take(&mut self.current_host().is_condition_unconvertible) {
            return;
        }
        let (pattern, target) = (line.argument(0), line.argument(1));
        let flags = RewriteFlags::parse(line.argument(2));
        if !flags.unknown_flags.is_empty() {
            let unknown = flags.unknown_flags.join("`, `");
            return self
                .report_unconverted_rule(line, &format!("the flags `{unknown}` are not known"));
        }
        if pattern.starts_with('!') {
            return self.report_unconverted_rule(line, "write the negated pattern as a condition");
        }
        if let Some(map) = rewrite_map_name(target) {
            return self.report_unconverted_rule(line, &rewrite_map_message(map));
        }
        if !self.can_use_pattern(line, pattern) {
            return;
        }
        let values = flags.variables.iter().map(|(_, value)| value.as_str());
        for name in std::iter::once(target).chain(values).flat_map(variable_names) {
            if let Some(variable) = name.strip_prefix("ENV:")
                && !self.is_known_variable(line, variable)
            {
                let why = format!("the variable `%{{{name}}}` is not known, so it would be empty");
                return self.report_unconverted_rule(line, &why);
            }
        }
        self.rule_variables.extend(flags.variables.iter().map(|(name, _)| name.clone()));
        let is_url = target.contains("://");
        if flags.is_proxy && is_url && server_of_url(target).is_none() {
            return self.report_unconverted_rule(
                line,
                &format!("`{target}` does not begin with `http://` or `ws://`"),
            );
        }
        let mut rule = String::new();
        let mut add = |text: String| writeln!(rule, "{text}").unwrap_or_default();
        if let Some(status) = flags.response_status {
            add(format!("answer = {status}"));
        } else if flags.redirect_status.is_some() || (is_url && !flags.is_proxy) {
            add(format!("redirect = {}", quote_toml(target)));
            add(format!("status = {}", flags.redirect_status.unwrap_or(302)));
        } else if flags.is_proxy && is_url {
            add(format!("proxy = {}", quote_toml(target)));
        } else {
            add(format!("rewrite = {}", quote_toml(target)));
            // A proxied path of this host is requested anew, so that it meets the `ProxyPass` rules that follow.
            if flags.passes_through || flags.is_proxy {
                add("pass_through = true".to_owned());
            } else if flags.is_last {
                add("last = true".to_owned());
            }
        }
        if flags.appends_query || flags.discards_query {
            add(format!("query = \"{}\"", if flags.discards_query { "drop" } else { "append" }));
        }
        if flags.no_escape && (flags.redirect_status.is_some() || is_url) {
            add("no_escape = true".to_owned());
        }
        if !flags.variables.is_empty() {
            let pairs = flags.variables.iter();
            let pairs =
                pairs.map(|(name, value)| format!("{} = {}", quote_toml(name), quote_toml(value)));
            add(format!("set = {{ {} }}", pairs.collect::<Vec<_>>().join(", ")));
        }
        if flags.restarts_rules {
            add("again = true".to_owned());
        }
        if flags.escapes_groups {
            let escape = if flags.escapes_space_as_percent { "path" } else { "query" };
            add(format!("escape_groups = \"{escape}\""));
            if let Some(chars) = &flags.escaped_characters {
                add(format!("escape_only = {}", quote_toml(chars)));
            }
        }
        self.current_host().rewrite_rules.push(HttpdHostRule {
            position: line.position.clone(),
            pattern: Some(pattern.to_owned()),
            ignores_case: flags.ignores_case,
            conditions,
            action_toml: rule,
            is_lookup_repeated: flags.is_proxy && !is_url,
        });
    }

    fn report_unconverted_rule(&mut self, line: &HttpdDirective<'_>, why: &str) {
        self.diagnostics
            .add_error(line.position, format!("`{}` is not converted: {why}", line.name));
    }

    /// Returns true if rules can use a pattern; otherwise reports it.
    fn can_use_pattern(&mut self, line: &HttpdDirective<'_>, pattern: &str) -> bool {
        let is_readable = Regex::new(pattern).is_ok();
        if !is_readable {
            let why = format!(
                "the pattern `{pattern}` is malformed, or uses lookaround or backreferences, which are not \
                 supported"
            );
            self.report_unconverted_rule(line, &why);
        }
        is_readable
    }

    /// Returns a rule for URL paths, without conditions. Such a rule sees the result of `[PT]`; another rewrite has
    /// determined the file already.
    fn new_url_rule(line: &HttpdDirective<'_>, pattern: &str, action: &str) -> HttpdHostRule {
        HttpdHostRule {
            position: line.position.clone(),
            pattern: Some(pattern.to_owned()),
            ignores_case: false,
            conditions: Vec::new(),
            action_toml: format!("{action}of_url = true\n"),
            is_lookup_repeated: false,
        }
    }

    /// Reads `Redirect [status] PATH URL` and similar directives.
    pub(super) fn read_redirect(&mut self, line: &HttpdDirective<'_>) {
        let name = line.name.to_ascii_lowercase();
        let words: Vec<&str> = line.arguments.iter().map(String::as_str).collect();
        let (status, path, target) = match words.as_slice() {
            [status, path, target] => (parse_redirect_status(status), *path, *target),
            [status @ ("gone" | "410"), path] => (parse_redirect_status(status), *path, ""),
            [path, target] if name == "redirectpermanent" => (Some(301), *path, *target),
            [path, target] => (Some(302), *path, *target),
            _ => (None, "", ""),
        };
        let Some(status) = status else {
            return self.report_unconverted_rule(line, "its arguments are not recognized");
        };
        let (pattern, target, escapes) = if name == "redirectmatch" {
            // Only `$` is special there.
            (path.to_owned(), target.replace('%', r"\%"), true)
        } else {
            let rest = if path.ends_with('/') { "(.*)$" } else { "(/.*)?$" };
            let (target, escapes) = match url_template(target) {
                Some(template) => (template, true),
                None => (literal_template(target), false),
            };
            (format!("^{}{rest}", regex::escape(path)), format!("{target}$1"), escapes)
        };
        if !self.can_use_pattern(line, &pattern) {
            return;
        }
        let mut action = if (300..400).contains(&status) {
            format!("redirect = {}\nstatus = {status}\n", quote_toml(&target))
        } else {
            format!("answer = {status}\n")
        };
        if !escapes {
            action.push_str("no_escape = true\n");
        }
        self.current_host().redirect_rules.push(Self::new_url_rule(line, &pattern, &action));
    }

    /// Reads `ProxyPass PATH URL` and `ProxyPassMatch PATTERN URL`.
    pub(super) fn read_proxy_pass(&mut self, line: &HttpdDirective<'_>) {
        let is_pattern = line.name.eq_ignore_ascii_case("ProxyPassMatch");
        let rest = line.arguments.get(1..).unwrap_or_default();
        if let Some(rule) = self.new_proxy_rule(line, line.argument(0), is_pattern, rest) {
            self.current_host().proxy_rules.push(rule);
        }
    }

    /// Reads `ProxyPass URL` in a `<Location>`; its rules come before those of the host, the last one first.
    pub(super) fn read_location_proxy(
        &mut self,
        line: &HttpdDirective<'_>,
        path: &str,
        is_pattern: bool,
    ) {
        if let Some(rule) = self.new_proxy_rule(line, path, is_pattern, &line.arguments) {
            self.current_host().proxy_rules.insert(0, rule);
        }
    }

    /// Returns the rule for a path or pattern; `words` begin with the target.
    fn new_proxy_rule(
        &mut self,
        line: &HttpdDirective<'_>,
        path: &str,
        is_pattern: bool,
        words: &[String],
    ) -> Option<HttpdHostRule> {
        let target = words.first().map_or("", String::as_str);
        let parameters = words.get(1..).unwrap_or_default();
        let is_websocket = |parameter: &String| {
            parameter.eq_ignore_ascii_case("upgrade=websocket")
                || parameter.eq_ignore_ascii_case("upgrade=any")
        };
        // httpd passes WebSockets on for either form.
        let target = match target.strip_prefix("http://") {
            Some(server) if parameters.iter().any(is_websocket) => &*format!("ws://{server}"),
            _ => target,
        };
        if !parameters.iter().all(is_websocket) {
            self.warn_of_unsupported(
                line.position,
                &line.name,
                "its parameters are left out, the rule is kept",
            );
        }
        if is_pattern && !self.can_use_pattern(line, path) {
            return None;
        }
        let is_folder = path.ends_with('/');
        let escaped = regex::escape(path);
        if target == "!" {
            let rest = if is_folder { "" } else { "(?:/|$)" };
            let pattern = if is_pattern { path.to_owned() } else { format!("^{escaped}{rest}") };
            return Some(Self::new_url_rule(line, &pattern, "pass = true\n"));
        }
        let Some(server) = server_of_url(target) else {
            self.report_unconverted_rule(
                line,
                &format!("`{target}` does not begin with `http://` or `ws://`"),
            );
            return None;
        };
        if target.contains("${") {
            self.report_unconverted_rule(line, "a variable in its target is not set");
            return None;
        }
        let proxy = |target: String| format!("proxy = {}\n", quote_toml(&target));
        let has_group = target
            .as_bytes()
            .windows(2)
            .any(|pair| matches!(pair, [b'$', digit] if digit.is_ascii_digit()));
        if is_pattern && has_group {
            return Some(Self::new_url_rule(line, path, &proxy(target.replace('%', r"\%"))));
        }
        let Some(mut template) = url_template(target) else {
            self.report_unconverted_rule(
                line,
                &format!("the escapes in `{target}` cannot be preserved"),
            );
            return None;
        };
        if is_pattern {
            // A target without a group gets the whole path appended.
            let mut rule = Self::new_url_rule(line, "^(/.*)$", &proxy(format!("{template}$1")));
            rule.conditions.push(format_condition("%{REQUEST_URI}", path, false));
            return Some(rule);
        }
        // `ProxyPass / http://server` needs the slash that both omit.
        if is_folder && !server.contains('/') {
            template.push('/');
        }
        let rest = if is_folder { "(.*)$" } else { "(/.*)?$" };
        Some(Self::new_url_rule(
            line,
            &format!("^{escaped}{rest}"),
            &proxy(format!("{template}$1")),
        ))
    }
}

/// Returns the part of a URL behind a scheme that rules can proxy to.
fn server_of_url(url: &str) -> Option<&str> {
    url.strip_prefix("http://").or_else(|| url.strip_prefix("ws://"))
}

/// Converts a literal URL to a template whose path is escaped when it is expanded; `None` if the result would be a
/// different URL.
fn url_template(url: &str) -> Option<String> {
    let (path, query) = match url.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (url, None),
    };
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    let again = utf8_percent_encode(&decoded, URL_PATH_ESCAPE_SET).to_string();
    again.eq_ignore_ascii_case(path).then(|| match query {
        Some(query) => format!("{}?{}", literal_template(&decoded), literal_template(query)),
        None => literal_template(&decoded),
    })
}

/// Returns a template that expands to exactly this text.
fn literal_template(text: &str) -> String {
    let mut template = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '$' | '%' | '\\') {
            template.push('\\');
        }
        template.push(char);
    }
    template
}

/// Returns the name of the `RewriteMap` used in a text; `None` if it uses none.
fn rewrite_map_name(text: &str) -> Option<&str> {
    let mut names = text.split("${").skip(1).filter_map(|rest| rest.split_once('}'));
    names.find_map(|(inside, _)| inside.split_once(':')).map(|(name, _)| name)
}

fn rewrite_map_message(map: &str) -> String {
    format!("it uses the rewrite map `{map}`, and rewrite maps are not supported")
}

/// Returns true for tests of files and numbers such as `-s` and `-eq`.
fn is_file_or_number_test(pattern: &str) -> bool {
    let Some(rest) = pattern.strip_prefix('-') else { return false };
    let name = rest.chars().take_while(char::is_ascii_alphabetic).count();
    (1..=2).contains(&name) && rest.len() <= name + 8
}

/// Converts the comparison `=text` to a pattern for exactly this text.
fn exact_pattern(pattern: &str) -> String {
    match pattern.strip_prefix('=') {
        Some(text) => format!("^{}$", regex::escape(text.trim_matches('"'))),
        None => pattern.to_owned(),
    }
}

/// Returns the names in `%{NAME}`.
fn variable_names(text: &str) -> impl Iterator<Item = &str> {
    text.split("%{").skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}
