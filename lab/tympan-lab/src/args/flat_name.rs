//! The names that commands of the lab had before they were grouped: `lab slo` is `lab page slo` now.
//!
//! Pure. Command lines with these names are rewritten before they are parsed, so that they have the same arguments, and
//! help and errors name the command by its group.
//!
//! `page` and `tune` were commands and are groups now. They are read as the group if one of its commands or a request
//! for help follows, or nothing; otherwise as the earlier command, whose arguments are URLs and options.

/// An earlier name of a command.
struct FlatName {
    name: &'static str,
    group: &'static str,
    command: &'static str,
}

const fn flat(group: &'static str, name: &'static str) -> FlatName {
    FlatName { name, group, command: name }
}

const fn renamed(name: &'static str, group: &'static str, command: &'static str) -> FlatName {
    FlatName { name, group, command }
}

/// All earlier names, except those that are commands of the lab without a group as well.
static FLAT_NAMES: [FlatName; 34] = [
    flat("load", "run"),
    flat("load", "replay"),
    flat("load", "agent"),
    flat("plan", "check"),
    flat("plan", "convert"),
    flat("plan", "export"),
    flat("plan", "record"),
    flat("plan", "profile"),
    flat("limit", "breakpoint"),
    flat("limit", "endure"),
    flat("limit", "golive"),
    flat("limit", "errors"),
    flat("limit", "component"),
    flat("page", "page"),
    flat("page", "components"),
    flat("page", "slo"),
    flat("page", "cacheability"),
    flat("page", "verify"),
    flat("read", "log"),
    renamed("rlog", "read", "log"),
    flat("read", "cache-ratio"),
    flat("read", "compare"),
    flat("read", "map"),
    flat("tune", "sweep"),
    renamed("tune", "tune", "settings"),
    renamed("autotune", "tune", "settings"),
    flat("tune", "journal"),
    flat("tune", "experiment"),
    flat("author", "tough"),
    flat("author", "upload"),
    flat("author", "content"),
    flat("author", "backup-impact"),
    flat("estimate", "users"),
    flat("estimate", "upload-goal"),
];

/// Replaces an earlier name at the beginning of a command line, which is given without the program; `help` may precede
/// it.
pub(crate) fn expand_flat_name<T: AsRef<std::ffi::OsStr> + From<&'static str>>(
    mut words: Vec<T>,
) -> Vec<T> {
    let word_at = |index: usize| words.get(index).and_then(|word| word.as_ref().to_str());
    let is_help = word_at(0) == Some("help");
    let at = usize::from(is_help);
    let Some(flat) = word_at(at).and_then(|word| FLAT_NAMES.iter().find(|flat| flat.name == word))
    else {
        return words;
    };
    let is_group = flat.name == flat.group
        && (is_help || word_at(at + 1).is_none_or(|next| follows_group(flat.group, next)));
    if !is_group {
        words.splice(at..=at, [flat.group.into(), flat.command.into()]);
    }
    words
}

/// Returns true if a word after the name of a group is one of its commands or asks for help.
fn follows_group(group: &str, word: &str) -> bool {
    matches!(word, "help" | "--help" | "-h")
        || FLAT_NAMES.iter().any(|flat| flat.group == group && flat.command == word)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::LabArgs;

    fn expanded(line: &str) -> String {
        expand_flat_name(line.split(' ').map(str::to_owned).collect::<Vec<String>>()).join(" ")
    }

    fn parsed(line: &str) -> String {
        let words = expand_flat_name(line.split(' ').map(str::to_owned).collect::<Vec<String>>());
        let words = std::iter::once("tympan lab".to_owned()).chain(words);
        let arguments = LabArgs::try_parse_from(words);
        format!("{:?}", arguments.unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    #[test]
    fn every_flat_name_is_the_same_command_as_the_grouped_one() {
        let lines = [
            ("get http://h/ -c 2", "load get http://h/ -c 2"),
            ("ab -n 1 http://h/", "load ab -n 1 http://h/"),
            ("jmeter -n -t p.jmx", "load jmeter -n -t p.jmx"),
            ("run p.toml --users 2 --for 5s", "load run p.toml --users 2 --duration 5s"),
            ("replay a.log --target http://h", "load replay a.log --target http://h"),
            ("agent h:1", "load agent h:1"),
            ("check p.jmx", "plan check p.jmx"),
            ("convert p.jmx", "plan convert p.jmx"),
            ("export --jmx p.toml", "plan export --jmx p.toml"),
            ("record -o p.toml --for 1m", "plan record -o p.toml --duration 1m"),
            ("profile a.log --most 3", "plan profile a.log --limit 3"),
            ("breakpoint p.toml --step +5", "limit breakpoint p.toml --step +5"),
            ("endure p.toml --for 1h --rate 2/s", "limit endure p.toml --duration 1h --rate 2/s"),
            (
                "golive p.toml --avg 1/s --peak 2/s --hold 1m",
                "limit golive p.toml --avg 1/s --peak 2/s --duration 1m",
            ),
            ("errors p.toml --for 1m --users 1", "limit errors p.toml --duration 1m --users 1"),
            (
                "component http://h/ --all --samples 2",
                "limit component http://h/ --all --requests 2",
            ),
            ("page http://h/ --visits 2", "page page http://h/ --visits 2"),
            ("components http://h/ --samples 2", "page components http://h/ --requests 2"),
            ("slo http://h/ --samples 2", "page slo http://h/ --requests 2"),
            ("cacheability http://h/ --most 3", "page cacheability http://h/ --limit 3"),
            (
                "verify p.txt --before http://a --after http://b",
                "page verify p.txt --before http://a --after http://b",
            ),
            ("report r.jtl", "read report r.jtl"),
            ("log request.log", "read log request.log"),
            ("rlog request.log", "read log request.log"),
            (
                "cache-ratio --access a.log --request b.log",
                "read cache-ratio --access-log a.log --request-log b.log",
            ),
            ("compare a b", "read compare a b"),
            ("map", "read map"),
            ("sweep --set a=1 -- x", "tune sweep --set a=1 -- x"),
            ("tune --set a=1 -- x", "tune settings --set a=1 -- x"),
            ("autotune --set a=1 -- x", "tune settings --set a=1 -- x"),
            ("journal show", "tune journal show"),
            ("experiment e.toml", "tune experiment e.toml"),
            ("tough --concurrency 2 --wait 1s", "author tough --users 2 --think 1s"),
            (
                "upload http://h/f --assets 5 --size 1 --for 1m --patience 2m",
                "author upload http://h/f --assets 5 --size 1 --duration 1m --rendition-timeout 2m",
            ),
            ("content --dry-run", "author content --dry-run"),
            (
                "backup-impact --threads 2 --span 5s -- x",
                "author backup-impact --users 2 --duration 5s -- x",
            ),
            (
                "users --users 5 --every 2s --resp 1s",
                "estimate users --users 5 --interval 2s --response-time 1s",
            ),
            ("upload-goal --assets 5 --size 1", "estimate upload-goal --assets 5 --size 1"),
        ];
        for (flat, grouped) in lines {
            // The name and the fields of the innermost arguments: `get`, `ab`, `jmeter` and `report` have no group around
            // them.
            let command = |line: &str| {
                let text = parsed(line);
                let mut parts = text.splitn(3, "Args {").skip(1);
                let name = parts.next().and_then(|part| part.rsplit('(').next().map(str::to_owned));
                let fields = parts.next().unwrap_or_default().trim_end_matches([')', '}', ' ']);
                (name, fields.to_owned())
            };
            assert_eq!(command(flat), command(grouped), "{flat}");
        }
        // Every entry of the table is in the list.
        for FlatName { name, .. } in &FLAT_NAMES {
            let is_listed = lines.iter().any(|(flat, _)| flat.split(' ').next() == Some(*name));
            assert!(is_listed, "{name}");
        }
    }

    #[test]
    fn names_that_are_groups_now_are_read_by_what_follows() {
        for (line, expected) in [
            ("page", "page"),
            ("page --help", "page --help"),
            ("page help slo", "page help slo"),
            ("page slo http://h/", "page slo http://h/"),
            ("page http://h/", "page page http://h/"),
            ("page --visits 2 http://h/", "page page --visits 2 http://h/"),
            ("tune journal show", "tune journal show"),
            ("tune --set a=1,2 -- ./x {a}", "tune settings --set a=1,2 -- ./x {a}"),
            ("help page", "help page"),
            ("help slo", "help page slo"),
            ("slo --help", "page slo --help"),
            ("get slo", "get slo"),
            ("no-such-command", "no-such-command"),
        ] {
            assert_eq!(expanded(line), expected, "{line}");
        }
        assert!(expand_flat_name(Vec::<String>::new()).is_empty());
    }
}
