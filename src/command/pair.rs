//! `tympan pair`: creates, accepts, lists and removes credentials of single instances.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_home::{random_text, write_secret_file};
use tympan_replicate::{HomePair, HomePairs, PairKeyPurpose};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use crate::args::{PairArgs, PairPurpose};
use crate::home_fault::home_fault;

/// The folder of a home with its pairs.
pub(crate) const PAIRS_FOLDER: &str = "pairs";

/// Creates, accepts, lists or removes a pair.
pub(crate) fn run_pair_command(arguments: &PairArgs) -> CommandOutcome {
    let home = &arguments.home;
    if !home.is_dir() {
        return Err(CommandFault::usage(format!("there is no home `{}`", home.display())));
    }
    let pairs = HomePairs::in_dir(home.join(PAIRS_FOLDER));
    match (&arguments.name, &arguments.accept) {
        (Some(name), _) if arguments.remove => remove_pair(&pairs, name),
        (Some(name), _) => create_pair(&pairs, name, arguments),
        (None, Some(file)) => accept_pair(&pairs, file),
        (None, None) => list_pairs(&pairs, arguments.json),
    }
}

fn create_pair(pairs: &HomePairs, name: &str, arguments: &PairArgs) -> CommandOutcome {
    let (Some(purpose), Some(out)) = (arguments.purpose, &arguments.out) else {
        return Err(CommandFault::usage(
            "give the purpose of the key: `--purpose send`, `clone` or `flush`, with `--out FILE`",
        ));
    };
    let existing_pairs =
        pairs.list().map_err(|error| CommandFault::cannot_run(error.to_string()))?;
    if existing_pairs.iter().any(|pair| pair.name == name) {
        return Err(CommandFault::usage(format!(
            "the pair `{name}` already exists; remove it first, or use another name"
        )));
    }
    if out.exists() {
        return Err(CommandFault::usage(format!("`{}` already exists", out.display())));
    }
    let (own, others) = match purpose {
        PairPurpose::Send => (PairKeyPurpose::Send, Some(PairKeyPurpose::Receive)),
        PairPurpose::Clone => (PairKeyPurpose::Clone, None),
        PairPurpose::Flush => (PairKeyPurpose::Flush, Some(PairKeyPurpose::Flush)),
    };
    let pair = |purpose| HomePair {
        name: name.to_owned(),
        purposes: [purpose].into(),
        key: String::new(),
    };
    let key = random_text().map_err(home_fault)?;
    let own = HomePair { key: key.clone(), ..pair(own) };
    // Write the other side's half first: without it the own one would be useless.
    match others {
        Some(others) => {
            let half = HomePair { key, ..pair(others) };
            half.write_new(out).map_err(|error| {
                CommandFault::cannot_run(format!("cannot write `{}`: {error}", out.display()))
            })?;
        }
        None => write_secret_file(out, &key).map_err(home_fault)?,
    }
    pairs.store(&own).map_err(|error| CommandFault::usage(error.to_string()))?;
    say!("created the pair `{name}`; `{}` is for the other side", out.display());
    Ok(ExitCode::SUCCESS)
}

fn accept_pair(pairs: &HomePairs, file: &Path) -> CommandOutcome {
    let pair = HomePair::read(file).map_err(|error| CommandFault::usage(error.to_string()))?;
    pairs.store(&pair).map_err(|error| CommandFault::usage(error.to_string()))?;
    say!("accepted `{}`; delete `{}`", pair.name, file.display());
    Ok(ExitCode::SUCCESS)
}

fn remove_pair(pairs: &HomePairs, name: &str) -> CommandOutcome {
    match pairs.remove(name) {
        Ok(true) => {
            say!("removed `{name}`");
            Ok(ExitCode::SUCCESS)
        }
        Ok(false) => Err(CommandFault::usage(format!("there is no pair `{name}`"))),
        Err(error) => Err(CommandFault::usage(error.to_string())),
    }
}

fn list_pairs(pairs: &HomePairs, is_json: bool) -> CommandOutcome {
    let all = pairs.list().map_err(|error| CommandFault::cannot_run(error.to_string()))?;
    for pair in all {
        let purposes: Vec<&str> = pair.purposes.iter().map(|purpose| purpose.name()).collect();
        if is_json {
            say!("{}", json!({ "name": pair.name, "purposes": purposes }));
        } else {
            say!("{}: {}", pair.name, purposes.join(", "));
        }
    }
    Ok(ExitCode::SUCCESS)
}
