//! `tympan service print`: writes the unit files with which systemd runs a role.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use tympan_terminal::{CommandFault, CommandOutcome, say};

use crate::args::{ServiceArgs, ServiceCommand, ServiceRole};

const INSTANCE_TEMPLATE: &str = include_str!("service/instance.unit");
const DISPATCHER_TEMPLATE: &str = include_str!("service/dispatcher.unit");
const SOCKET_TEMPLATE: &str = include_str!("service/socket.unit");
const SANDBOX_TEMPLATE: &str = include_str!("service/sandbox.unit");

/// The folder in which systemd creates the state folders of services.
const STATE_DIR: &str = "/var/lib";

/// Runs the command.
pub(crate) fn run_service_command(command: &ServiceCommand) -> CommandOutcome {
    let ServiceCommand::Print(arguments) = command;
    say!("{}", write_unit(arguments)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Returns the text of the unit file.
///
/// # Errors
/// If a value cannot be written into a unit file as it is.
fn write_unit(arguments: &ServiceArgs) -> Result<String, CommandFault> {
    let role = arguments.role.name();
    if arguments.socket {
        let addresses = match arguments.listen.as_slice() {
            [] => arguments.role.default_socket_addresses(),
            addresses => addresses.to_vec(),
        };
        let lines: Vec<String> =
            addresses.iter().map(|address| format!("ListenStream={address}")).collect();
        return Ok(fill_template(
            SOCKET_TEMPLATE,
            &[("role", role), ("listen", &lines.join("\n"))],
        ));
    }
    let program = match &arguments.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(|error| {
            CommandFault::cannot_run(format!("cannot find the path of this program: {error}"))
        })?,
    };
    let program = unit_path("--program", &program)?;
    let (home, folders) = match &arguments.home {
        Some(home) => {
            let home = unit_path("--home", home)?;
            (home.to_owned(), format!("ReadWritePaths={home}"))
        }
        None => {
            let state = format!("tympan/{role}-%i");
            let folders = format!("StateDirectory={state}\nStateDirectoryMode=0700");
            (format!("{STATE_DIR}/{state}"), folders)
        }
    };
    let listen = listen_option(&arguments.listen)?;
    let template = match arguments.role {
        ServiceRole::Author | ServiceRole::Publish => INSTANCE_TEMPLATE,
        ServiceRole::Dispatcher => DISPATCHER_TEMPLATE,
    };
    let values = [
        ("role", role),
        ("program", program),
        ("home", &home),
        ("folders", &folders),
        ("user", unit_user(&arguments.user)?),
        ("listen", &listen),
        ("sandbox", SANDBOX_TEMPLATE),
    ];
    Ok(fill_template(template, &values))
}

fn fill_template(template: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(template.to_owned(), |text, (name, value)| {
        text.replace(&format!("{{{name}}}"), value)
    })
}

/// Returns the option that names the listen address, with a space before it.
fn listen_option(addresses: &[SocketAddr]) -> Result<String, CommandFault> {
    let mut option = String::new();
    match addresses {
        [] => {}
        [address] => write!(option, " --listen {address}").unwrap_or_default(),
        _ => {
            return Err(CommandFault::usage(
                "a role has one listen address; several are for `--socket`",
            ));
        }
    }
    Ok(option)
}

/// Checks that a path means the same in a unit file: systemd gives spaces, quotes, `$` and `\` a meaning. `%i` and other
/// specifiers are allowed.
fn unit_path<'a>(option: &str, path: &'a Path) -> Result<&'a str, CommandFault> {
    let is_plain =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+@:%".contains(c));
    path.to_str().filter(|text| text.starts_with('/') && is_plain(text)).ok_or_else(|| {
        CommandFault::usage(format!(
            "`{option} {}` cannot be written into a unit file; name an absolute path of letters, digits and `/._-+@:%`",
            path.display()
        ))
    })
}

/// Checks that a name can be that of a user.
fn unit_user(name: &str) -> Result<&str, CommandFault> {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    (is_plain && starts_well)
        .then_some(name)
        .ok_or_else(|| CommandFault::usage(format!("`{name}` cannot be the name of a user")))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn arguments(role: ServiceRole) -> ServiceArgs {
        ServiceArgs {
            role,
            socket: false,
            home: None,
            user: "tympan".to_owned(),
            program: Some(PathBuf::from("/usr/bin/tympan")),
            listen: Vec::new(),
        }
    }

    fn lines(arguments: &ServiceArgs) -> Vec<String> {
        let unit = write_unit(arguments).unwrap();
        assert!(!unit.contains('{') && !unit.contains('}'), "{unit}");
        unit.lines().map(str::to_owned).collect()
    }

    #[test]
    fn each_role_has_its_state_folder_and_the_same_sandbox() {
        for (role, name) in [
            (ServiceRole::Author, "author"),
            (ServiceRole::Publish, "publish"),
            (ServiceRole::Dispatcher, "dispatcher"),
        ] {
            let lines = lines(&arguments(role));
            for line in [
                "Type=notify".to_owned(),
                format!("StateDirectory=tympan/{name}-%i"),
                format!("ExecStart=/usr/bin/tympan {name} --home /var/lib/tympan/{name}-%i"),
                "ProtectSystem=strict".to_owned(),
                "NoNewPrivileges=yes".to_owned(),
                "LimitNOFILE=524288".to_owned(),
            ] {
                assert!(lines.contains(&line), "{name}: `{line}` is missing");
            }
            let may_bind = lines.iter().any(|line| line.starts_with("AmbientCapabilities="));
            assert_eq!(may_bind, role == ServiceRole::Dispatcher, "{name}");
        }
    }

    #[test]
    fn a_home_elsewhere_is_writable_and_nothing_else_is() {
        let home = Some(PathBuf::from("/srv/%i"));
        let listen = vec!["127.0.0.1:4600".parse().unwrap()];
        let lines = lines(&ServiceArgs { home, listen, ..arguments(ServiceRole::Publish) });
        assert!(lines.contains(&"ReadWritePaths=/srv/%i".to_owned()));
        assert!(!lines.iter().any(|line| line.starts_with("StateDirectory=")));
        let start = "ExecStart=/usr/bin/tympan publish --home /srv/%i --listen 127.0.0.1:4600";
        assert!(lines.contains(&start.to_owned()));
    }

    #[test]
    fn the_sockets_of_a_dispatcher_are_those_of_the_web() {
        let socket = ServiceArgs { socket: true, ..arguments(ServiceRole::Dispatcher) };
        let own = lines(&socket);
        assert!(own.contains(&"ListenStream=[::]:80".to_owned()), "{own:?}");
        assert!(own.contains(&"ListenStream=[::]:443".to_owned()), "{own:?}");
        let other = lines(&ServiceArgs { listen: vec!["10.0.0.1:80".parse().unwrap()], ..socket });
        let listening = other.iter().filter(|line| line.starts_with("ListenStream="));
        assert_eq!(listening.collect::<Vec<_>>(), ["ListenStream=10.0.0.1:80"]);
    }

    #[test]
    fn values_that_mean_something_else_in_a_unit_file_are_refused() {
        let refused = |arguments: ServiceArgs| write_unit(&arguments).unwrap_err();
        let author = || arguments(ServiceRole::Author);
        for home in ["srv/author", "/srv/a b", "/srv/$HOME", "/srv/a\nUser=root", "/srv/\"a"] {
            let fault = refused(ServiceArgs { home: Some(PathBuf::from(home)), ..author() });
            assert!(fault.message().contains("--home"), "{home}: {}", fault.message());
            assert_eq!(fault.code(), 2);
        }
        for user in ["", "-root", "a b", "a\nUser=root"] {
            refused(ServiceArgs { user: user.to_owned(), ..author() });
        }
        let two = vec!["127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap()];
        refused(ServiceArgs { listen: two, ..author() });
    }
}
