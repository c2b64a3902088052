//! `RewriteCond`, `RewriteRule`, `Redirect…` and `ProxyPass…` as rules of a host.

use std::fmt::Write;

use super::{Line, Reader, quote};
use crate::route::is_variable;

/// What the flags of a `RewriteRule` say.
#[derive(Debug, Default)]
struct Flags {
    redirect: Option<u16>,
    answer: Option<u16>,
    is_proxy: bool,
    is_last: bool,
    ignores_case: bool,
    appends_query: bool,
    drops_query: bool,
    no_escape: bool,
    unknown: Vec<String>,
}

impl Flags {
    fn parse(text: &str) -> Self {
        let mut flags = Self::default();
        let inner = text.trim_start_matches('[').trim_end_matches(']');
        for flag in inner.split(',').map(str::trim).filter(|flag| !flag.is_empty()) {
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            match name.to_ascii_uppercase().as_str() {
                "R" | "REDIRECT" => match redirect_status(value) {
                    Some(status) if (300..400).contains(&status) => flags.redirect = Some(status),
                    Some(status) => flags.answer = Some(status),
                    None => flags.unknown.push(flag.to_owned()),
                },
                "F" | "FORBIDDEN" => flags.answer = Some(403),
                "G" | "GONE" => flags.answer = Some(410),
                "P" | "PROXY" => flags.is_proxy = true,
                "L" | "LAST" | "END" => flags.is_last = true,
                "NC" | "NOCASE" => flags.ignores_case = true,
                "QSA" | "QSAPPEND" => flags.appends_query = true,
                "QSD" | "QSDISCARD" => flags.drops_query = true,
                "NE" | "NOESCAPE" => flags.no_escape = true,
                // The farm sees a rewritten path in any case.
                "PT" | "PASSTHROUGH" | "DPI" | "NS" | "NOSUBREQ" => {}
                _ => flags.unknown.push(flag.to_owned()),
            }
        }
        flags
    }
}

fn redirect_status(text: &str) -> Option<u16> {
    match text.to_ascii_lowercase().as_str() {
        "" | "temp" => Some(302),
        "permanent" => Some(301),
        "seeother" => Some(303),
        "gone" => Some(410),
        number => number.parse().ok().filter(|status| (300..600).contains(status)),
    }
}

impl Reader {
    pub(super) fn rewrite_condition(&mut self, line: &Line<'_>) {
        let (test, pattern) = (line.word(0), line.word(1));
        let flags = line.word(2).to_ascii_uppercase();
        let flags: Vec<&str> = flags.trim_matches(['[', ']']).split(',').map(str::trim).collect();
        for name in variables(test) {
            if !is_variable(name) {
                let why = format!("the variable `%{{{name}}}` is not known, so it would be empty");
                self.findings.error(line.at, format!("`{}` is not converted: {why}", line.name));
                return self.host().is_condition_lost = true;
            }
        }
        let (is_negated, pattern) = match pattern.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, pattern),
        };
        let what = match pattern {
            "-f" => "is = \"file\"".to_owned(),
            "-d" => "is = \"directory\"".to_owned(),
            pattern if pattern.starts_with(['<', '>']) || is_test(pattern) => {
                self.findings.error(
                    line.at,
                    format!("`{}` is not converted: the test `{pattern}` is not known", line.name),
                );
                return self.host().is_condition_lost = true;
            }
            pattern => format!("match = {}", quote(&exact(pattern))),
        };
        let mut text = format!("test = {}, {what}", quote(test));
        for (name, is_set) in [
            ("negate", is_negated),
            ("ignore_case", flags.contains(&"NC") || flags.contains(&"NOCASE")),
            ("or", flags.contains(&"OR") || flags.contains(&"ORNEXT")),
        ] {
            if is_set {
                write!(text, ", {name} = true").unwrap_or_default();
            }
        }
        self.host().conditions.push(format!("{{ {text} }}"));
    }

    pub(super) fn rewrite_rule(&mut self, line: &Line<'_>) {
        let conditions = std::mem::take(&mut self.host().conditions);
        // A rule that lost a condition would do too much, so it is left out; its condition was reported.
        if std::mem::take(&mut self.host().is_condition_lost) {
            return;
        }
        let (pattern, target) = (line.word(0), line.word(1));
        let flags = Flags::parse(line.word(2));
        if !flags.unknown.is_empty() {
            let unknown = flags.unknown.join("`, `");
            return self.findings.error(
                line.at,
                format!("`{}` is not converted: the flags `{unknown}` are not known", line.name),
            );
        }
        if pattern.starts_with('!') {
            return self.findings.error(
                line.at,
                format!(
                    "`{}` is not converted: write the negated pattern as a condition",
                    line.name
                ),
            );
        }
        let is_url = target.contains("://");
        let mut rule = String::new();
        let mut add = |text: String| writeln!(rule, "{text}").unwrap_or_default();
        add(format!("match = {}", quote(pattern)));
        if flags.ignores_case {
            add("ignore_case = true".to_owned());
        }
        if !conditions.is_empty() {
            add(format!("when = [{}]", conditions.join(", ")));
        }
        if let Some(status) = flags.answer {
            add(format!("answer = {status}"));
        } else if flags.redirect.is_some() || (is_url && !flags.is_proxy) {
            add(format!("redirect = {}", quote(target)));
            add(format!("status = {}", flags.redirect.unwrap_or(302)));
        } else if flags.is_proxy && is_url {
            add(format!("proxy = {}", quote(target)));
        } else {
            // A proxied path of this host meets the `ProxyPass` rules that follow.
            add(format!("rewrite = {}", quote(target)));
            if flags.is_last && !flags.is_proxy {
                add("last = true".to_owned());
            }
        }
        if flags.appends_query || flags.drops_query {
            add(format!("query = \"{}\"", if flags.drops_query { "drop" } else { "append" }));
        }
        if flags.no_escape && (flags.redirect.is_some() || is_url) {
            add("no_escape = true".to_owned());
        }
        self.host().rewrites.push(rule);
    }

    /// Reads `Redirect [status] PATH URL` and its relatives.
    pub(super) fn redirect(&mut self, line: &Line<'_>) {
        let name = line.name.to_ascii_lowercase();
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        let (status, path, target) = match words.as_slice() {
            [status, path, target] => (redirect_status(status), *path, *target),
            [status @ ("gone" | "410"), path] => (redirect_status(status), *path, ""),
            [path, target] if name == "redirectpermanent" => (Some(301), *path, *target),
            [path, target] => (Some(302), *path, *target),
            _ => (None, "", ""),
        };
        let Some(status) = status else {
            return self.unsupported(line.at, &line.name, "its arguments are not understood");
        };
        let (pattern, target) = if name == "redirectmatch" {
            (path.to_owned(), target.to_owned())
        } else {
            let rest = if path.ends_with('/') { "(.*)$" } else { "(/.*)?$" };
            (format!("^{}{rest}", regex::escape(path)), format!("{target}$1"))
        };
        let action = if (300..400).contains(&status) {
            format!("redirect = {}\nstatus = {status}", quote(&target))
        } else {
            format!("answer = {status}")
        };
        self.host().redirects.push(format!("match = {}\n{action}\n", quote(&pattern)));
    }

    pub(super) fn proxy_pass(&mut self, line: &Line<'_>) {
        let (path, target) = (line.word(0), line.word(1));
        let is_pattern = line.name.eq_ignore_ascii_case("ProxyPassMatch");
        if line.words.len() > 2 {
            self.unsupported(line.at, &line.name, "its parameters are left out, the rule stays");
        }
        let pattern = match (is_pattern, target) {
            (true, _) => path.to_owned(),
            (false, "!") => format!("^{}", regex::escape(path)),
            (false, _) => format!("^{}(.*)$", regex::escape(path)),
        };
        let action = if target == "!" {
            "pass = true".to_owned()
        } else if target.starts_with("http://") {
            let rest = if is_pattern { "" } else { "$1" };
            format!("proxy = {}", quote(&format!("{target}{rest}")))
        } else {
            return self.findings.error(
                line.at,
                format!(
                    "`{}` is not converted: `{target}` does not begin with `http://`",
                    line.name
                ),
            );
        };
        self.host().proxies.push(format!("match = {}\n{action}\n", quote(&pattern)));
    }
}

/// Tests on files and numbers such as `-s` and `-eq`.
fn is_test(pattern: &str) -> bool {
    let Some(rest) = pattern.strip_prefix('-') else { return false };
    let name = rest.chars().take_while(char::is_ascii_alphabetic).count();
    (1..=2).contains(&name) && rest.len() <= name + 8
}

/// Turns the comparison `=text` into a pattern for exactly this text.
fn exact(pattern: &str) -> String {
    match pattern.strip_prefix('=') {
        Some(text) => format!("^{}$", regex::escape(text.trim_matches('"'))),
        None => pattern.to_owned(),
    }
}

/// Returns the names in `%{NAME}`.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.split("%{").skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name))
}
