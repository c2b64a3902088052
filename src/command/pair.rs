//! `tympan pair`: credentials of single instances, made, accepted, listed and removed.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_replicate::{Pair, Pairs, Purpose};

use crate::args::{PairArguments, PairPurpose};
use crate::command::{Fault, Outcome};
use crate::home::{random_text, write_secret};
use crate::say;

/// The folder of a home with its pairs.
pub(crate) const FOLDER: &str = "pairs";

/// Makes, accepts, lists or removes.
pub(crate) fn run(arguments: &PairArguments) -> Outcome {
    let home = &arguments.home;
    if !home.is_dir() {
        return Err(Fault::usage(format!("there is no home `{}`", home.display())));
    }
    let pairs = Pairs::at(home.join(FOLDER));
    match (&arguments.name, &arguments.accept) {
        (Some(name), _) if arguments.remove => remove(&pairs, name),
        (Some(name), _) => make(&pairs, name, arguments),
        (None, Some(file)) => accept(&pairs, file),
        (None, None) => list(&pairs, arguments.json),
    }
}

fn make(pairs: &Pairs, name: &str, arguments: &PairArguments) -> Outcome {
    let (Some(purpose), Some(out)) = (arguments.purpose, &arguments.out) else {
        return Err(Fault::usage(
            "say what the key is for: `--purpose send`, `clone` or `flush`, with `--out FILE`",
        ));
    };
    let known = pairs.all().map_err(|error| Fault::cannot_run(error.to_string()))?;
    if known.iter().any(|pair| pair.name == name) {
        return Err(Fault::usage(format!(
            "there is a pair `{name}` already; remove it first, or use another name"
        )));
    }
    if out.exists() {
        return Err(Fault::usage(format!("`{}` exists already", out.display())));
    }
    let (own, others) = match purpose {
        PairPurpose::Send => (Purpose::Send, Some(Purpose::Receive)),
        PairPurpose::Clone => (Purpose::Clone, None),
        PairPurpose::Flush => (Purpose::Flush, Some(Purpose::Flush)),
    };
    let pair =
        |purpose| Pair { name: name.to_owned(), purposes: [purpose].into(), key: String::new() };
    let key = random_text()?;
    let own = Pair { key: key.clone(), ..pair(own) };
    // The other side's half first: without it the own one would be of no use.
    match others {
        Some(others) => {
            let half = Pair { key, ..pair(others) };
            half.write_new(out).map_err(|error| {
                Fault::cannot_run(format!("cannot write `{}`: {error}", out.display()))
            })?;
        }
        None => write_secret(out, &key)?,
    }
    pairs.store(&own).map_err(|error| Fault::usage(error.to_string()))?;
    say!("`{name}` is paired; `{}` is for the other side", out.display());
    Ok(ExitCode::SUCCESS)
}

fn accept(pairs: &Pairs, file: &Path) -> Outcome {
    let pair = Pair::read(file).map_err(|error| Fault::usage(error.to_string()))?;
    pairs.store(&pair).map_err(|error| Fault::usage(error.to_string()))?;
    say!("`{}` is accepted; delete `{}`", pair.name, file.display());
    Ok(ExitCode::SUCCESS)
}

fn remove(pairs: &Pairs, name: &str) -> Outcome {
    match pairs.remove(name) {
        Ok(true) => {
            say!("`{name}` is removed");
            Ok(ExitCode::SUCCESS)
        }
        Ok(false) => Err(Fault::usage(format!("there is no pair `{name}`"))),
        Err(error) => Err(Fault::usage(error.to_string())),
    }
}

fn list(pairs: &Pairs, is_json: bool) -> Outcome {
    let all = pairs.all().map_err(|error| Fault::cannot_run(error.to_string()))?;
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
