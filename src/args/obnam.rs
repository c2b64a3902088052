//! Command lines in Obnam's order: `tympan backup -r VAULT --client-name=X backup DIR`, with the options before the
//! subcommand; and Obnam's subcommands in any order.
//!
//! Pure. Only a line of `tympan backup` that the parser refuses is rewritten: the options are moved behind the
//! subcommand, and Obnam's subcommands are replaced by those of `tympan backup`. Before Obnam's subcommand `backup`,
//! `--exclude` is a regular expression, as in Obnam. `--pretend` becomes `--dry-run`; it is dropped for subcommands that
//! change nothing, and `--client-name` is dropped where all clients are meant.

use std::ffi::{OsStr, OsString};

use clap::CommandFactory;

/// Obnam's subcommands and their equivalents.
const OBNAM_COMMANDS: [(&str, &[&str]); 6] = [
    ("backup", &["save"]),
    ("generations", &["list"]),
    ("genids", &["list"]),
    ("fsck", &["check"]),
    ("force-lock", &["unlock", "--remove-all"]),
    ("list-keys", &["key", "list"]),
];

/// Rewrites a line of Obnam into the order that the parser expects; `None` for any other line.
pub(super) fn reorder_obnam_line<A: CommandFactory>(line: &[OsString]) -> Option<Vec<OsString>> {
    let is_ours = line.get(1).is_some_and(|argument| argument == "backup");
    let begins_otherwise =
        line.get(2).and_then(|argument| argument.to_str()).is_some_and(|argument| {
            let is_of_obnam = OBNAM_COMMANDS.iter().any(|(obnam_name, _)| argument == *obnam_name);
            is_of_obnam || (is_option_word(argument) && !is_help_word(argument))
        });
    if !is_ours || !begins_otherwise {
        return None;
    }
    let valued = valued_options::<A>();
    let mut words = line.iter().skip(2);
    let mut options: Vec<OsString> = Vec::new();
    while let Some(argument) = words.next() {
        let text = argument.to_string_lossy();
        if !is_option_word(&text) {
            let mut ordered: Vec<OsString> = line.iter().take(2).cloned().collect();
            ordered.extend(translate_obnam_command(argument));
            if text == "backup" {
                options.iter_mut().for_each(|option| *option = rename_regex_option(option));
            }
            ordered.extend(fit_options_to_command(&text, options));
            ordered.extend(fit_options_to_command(&text, words.cloned().collect()));
            return Some(ordered);
        }
        options.push(argument.clone());
        if valued.iter().any(|option| OsStr::new(option) == argument) {
            options.extend(words.next().cloned());
        }
    }
    // There is no subcommand, which the parser has reported.
    None
}

/// Obnam's option that names a client.
const OBNAM_CLIENT_OPTION: &str = "--client-name";
/// Obnam's options for a dry run.
const OBNAM_DRY_RUN_OPTIONS: [&str; 3] = ["--pretend", "--no-act", "--dry-run"];

/// Adapts options to a subcommand: options that Obnam accepts everywhere are dropped where they have no effect.
fn fit_options_to_command(command: &str, options: Vec<OsString>) -> Vec<OsString> {
    let is_of_all = matches!(command, "fsck" | "force-lock" | "list-keys");
    let mut left = Vec::with_capacity(options.len());
    let mut options = options.into_iter();
    while let Some(option) = options.next() {
        let text = option.to_string_lossy();
        if text == "--" {
            // The remaining arguments are names.
            left.push(option);
            left.extend(options);
            break;
        } else if is_of_all && text == OBNAM_CLIENT_OPTION {
            options.next();
        } else if is_of_all
            && text.strip_prefix(OBNAM_CLIENT_OPTION).is_some_and(|rest| rest.starts_with('='))
        {
            // The command applies to the whole vault.
        } else if OBNAM_DRY_RUN_OPTIONS.contains(&&*text) {
            // A check never changes anything.
            left.extend((command != "fsck").then(|| OsString::from("--dry-run")));
        } else {
            left.push(option);
        }
    }
    left
}

/// Replaces the name of Obnam's option for regular expressions.
fn rename_regex_option(option: &OsStr) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    match option.as_bytes().strip_prefix(b"--exclude") {
        Some(rest) if rest.is_empty() || rest.starts_with(b"=") => {
            OsString::from_vec([b"--exclude-regex", rest].concat())
        }
        _ => option.to_owned(),
    }
}

fn is_option_word(argument: &str) -> bool {
    argument.len() > 1 && argument.starts_with('-') && argument != "--"
}

fn is_help_word(argument: &str) -> bool {
    matches!(argument, "-h" | "--help")
}

fn translate_obnam_command(command: &OsStr) -> Vec<OsString> {
    let translation = OBNAM_COMMANDS.iter().find(|(obnam_name, _)| command == *obnam_name);
    translation.map_or_else(
        || vec![command.to_owned()],
        |(_, words)| words.iter().map(OsString::from).collect(),
    )
}

/// Returns the options of `tympan backup` that take a value as a separate argument.
fn valued_options<A: CommandFactory>() -> Vec<String> {
    let command = A::command();
    let Some(backup) = command.find_subcommand("backup") else { return Vec::new() };
    let arguments = backup.get_subcommands().flat_map(clap::Command::get_arguments);
    let arguments = arguments.chain(backup.get_arguments());
    let valued = arguments.filter(|argument| argument.get_action().takes_values());
    valued
        .flat_map(|argument| {
            let short = argument.get_short().map(|letter| format!("-{letter}"));
            let aliases = argument.get_all_aliases().unwrap_or_default();
            let long = argument.get_long().into_iter().chain(aliases);
            short.into_iter().chain(long.map(|name| format!("--{name}"))).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::TympanArgs;

    fn normalize_line(line: Vec<OsString>) -> Vec<OsString> {
        reorder_obnam_line::<TympanArgs>(&line).unwrap_or(line)
    }

    fn check(input: &str, expected: &str) {
        let ordered: Vec<String> = normalize_line(input.split(' ').map(OsString::from).collect())
            .iter()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect();
        assert_eq!(ordered.join(" "), expected, "{input}");
    }

    #[test]
    fn obnams_order_becomes_ours() {
        check(
            "tympan backup -r sftp://obnam@SERVER/~/repo --compress-with=deflate --client-name=CLIENT backup DIR",
            "tympan backup save -r sftp://obnam@SERVER/~/repo --compress-with=deflate --client-name=CLIENT DIR",
        );
        check(
            "tympan backup --lru-size 1024 --upload-queue-size 512 --quiet -r V backup A B",
            "tympan backup save --lru-size 1024 --upload-queue-size 512 --quiet -r V A B",
        );
        check(
            "tympan backup --repository=V --keep 7d forget",
            "tympan backup forget --repository=V --keep 7d",
        );
        // Only the patterns of Obnam's subcommand are regular expressions.
        check(
            r"tympan backup -r V --exclude \.tmp$ --exclude=/cache/ --exclude-caches backup D",
            r"tympan backup save -r V --exclude-regex \.tmp$ --exclude-regex=/cache/ --exclude-caches D",
        );
        check(
            "tympan backup -r V --exclude *.tmp save D",
            "tympan backup save -r V --exclude *.tmp D",
        );
        check("tympan backup -r V force-lock", "tympan backup unlock --remove-all -r V");
        // Options that Obnam accepts everywhere are dropped where they have no effect.
        check(
            "tympan backup -r V --client-name=X --pretend --log obnam.log fsck",
            "tympan backup check -r V --log obnam.log",
        );
        check(
            "tympan backup fsck -r V --client-name X --pretend --log=obnam.log",
            "tympan backup check -r V --log=obnam.log",
        );
        check("tympan backup -r V --pretend backup D", "tympan backup save -r V --dry-run D");
        check(
            "tympan backup forget -r V --keep 7d --pretend",
            "tympan backup forget -r V --keep 7d --pretend",
        );
        check(
            "tympan backup --log l --no-act -r V forget --keep 7d",
            "tympan backup forget --log l --dry-run -r V --keep 7d",
        );
        check(
            "tympan backup --client-name backup -r V backup D",
            "tympan backup save --client-name backup -r V D",
        );
    }

    /// With any arguments in any order, including invalid UTF-8, no argument is lost or duplicated, and a second pass
    /// changes nothing.
    #[test]
    fn whatever_the_words_are_none_is_lost() {
        use std::os::unix::ffi::OsStringExt;
        let samples = [
            "-r",
            "V",
            "--tag",
            "--tag=x",
            "backup",
            "save",
            "forget",
            "--keep",
            "--",
            "-",
            "--no-such",
            "force-lock",
            "--help",
            "--quiet",
            "",
            "-rV",
            "--=",
            "ü",
        ];
        let mut seed = 0x0b4a_5eed_u64;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(seed >> 33).unwrap() % below
        };
        let mut moved = 0;
        for _ in 0..300 {
            let mut line: Vec<OsString> = vec!["tympan".into(), "backup".into()];
            for _ in 0..next(8) {
                line.push(match next(samples.len() + 1) {
                    at if at < samples.len() => samples[at].into(),
                    _ => OsString::from_vec(vec![b'-', 0xff, 0x80]),
                });
            }
            let ordered = normalize_line(line.clone());
            moved += usize::from(ordered != line);
            assert_eq!(normalize_line(ordered.clone()), ordered, "{line:?}");
            // Only the subcommand may have been replaced, by one or two arguments.
            let mut left = ordered;
            let renamed: Vec<&OsString> = line
                .iter()
                .filter(|argument| match left.iter().position(|candidate| candidate == *argument) {
                    Some(at) => {
                        left.remove(at);
                        false
                    }
                    None => true,
                })
                .collect();
            assert!(renamed.len() <= 1, "{line:?} loses {renamed:?}");
            let expected =
                renamed.first().map_or_else(Vec::new, |command| translate_obnam_command(command));
            assert_eq!(left, expected, "{line:?}");
        }
        assert!(moved > 20, "{moved} lines were put into order");
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in [
            "tympan backup save -r V backup",
            "tympan backup --help",
            "tympan backup -r V",
            "tympan lab run -r backup",
            "tympan",
        ] {
            check(line, line);
        }
    }
}
