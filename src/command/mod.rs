//! The implementation of each command. Only here are errors mapped to exit codes: 0 done, 1 a goal or check failed, 2
//! invalid usage, 3 could not run.

mod activation;
mod assets;
mod backup;
mod blobs;
mod certificate_metrics;
mod config;
mod demo;
mod demo_portal;
mod dispatcher;
mod doctor;
mod export;
mod index;
mod instance;
mod jobs;
pub(crate) mod lab_program;
mod package;
mod package_remote;
pub(crate) mod pair;
mod process_signals;
mod remote_instance;
mod renderer;
pub(crate) mod rendition_process;
mod repo;
mod runtime;
mod service;
mod service_manager;
mod site;
mod site_fault;
mod site_import;
mod support_bundle;
mod user;

pub(crate) use backup::{user_config_dir, vault_access, vault_cache_dir};

use std::process::ExitCode;

use clap::CommandFactory as _;
use tympan_terminal::{CommandFault, CommandOutcome};

use crate::args::{TympanArgs, TympanCommand};
use crate::home;

/// Runs a command to its end.
///
/// # Errors
/// The [`CommandFault`] to print.
pub(crate) fn run_command(arguments: TympanArgs) -> CommandOutcome {
    match arguments.command {
        TympanCommand::Demo(demo) => demo::run_demo(&demo),
        TympanCommand::Author(instance) => {
            instance::run_instance(tympan_server::InstanceRole::Author, &instance)
        }
        TympanCommand::Publish(instance) => {
            instance::run_instance(tympan_server::InstanceRole::Publish, &instance)
        }
        TympanCommand::Dispatcher(arguments) => dispatcher::run_dispatcher_command(arguments),
        TympanCommand::Site(site) => site::run_site_command(&site),
        TympanCommand::Package(package) => {
            home::set_database_from_environment();
            package::run_package_command(&package)
        }
        TympanCommand::Index(index) => {
            home::set_database_from_environment();
            index::run_index_command(&index)
        }
        TympanCommand::Export(arguments) => {
            home::set_database_from_environment();
            export::run_export(&arguments)
        }
        TympanCommand::Repo(repo) => repo::run_repo_command(&repo),
        TympanCommand::Blobs(arguments) => blobs::run_blobs_command(&arguments),
        TympanCommand::Backup(arguments) => backup::run_backup_command(&arguments.command),
        TympanCommand::Pair(arguments) => pair::run_pair_command(&arguments),
        TympanCommand::User(user) => {
            home::set_database_from_environment();
            user::run_user_command(&user)
        }
        TympanCommand::Jobs(jobs) => jobs::run_jobs_command(&jobs),
        TympanCommand::Activate(activate_args) => activation::run_activate(&activate_args),
        TympanCommand::Deactivate(deactivate_args) => activation::run_deactivate(&deactivate_args),
        TympanCommand::Assets(assets) => assets::run_assets_command(&assets),
        TympanCommand::Lab(lab) => lab_program::run_lab_program(lab.arguments),
        TympanCommand::Config(command) => config::run_config_command(&command),
        TympanCommand::Doctor(arguments) => doctor::run_doctor(&arguments),
        TympanCommand::Service(command) => service::run_service_command(&command),
        TympanCommand::Completions(arguments) => {
            tympan_terminal::print_completions(TympanArgs::command(), arguments.shell)
        }
        TympanCommand::ManPages { dir } => {
            tympan_terminal::write_man_pages(TympanArgs::command(), &dir)
        }
        TympanCommand::Status(status) => match &status.bundle {
            Some(bundle) => support_bundle::write_support_bundle(&status, bundle),
            None => remote_instance::print_instance_status(&status.remote),
        },
        TympanCommand::RenderImages => rendition_process::run_rendition_process(),
        TympanCommand::RunTool(tool) => rendition_process::run_bounded_tool(&tool),
        TympanCommand::RenderFile(arguments) => rendition_process::render_file(&arguments),
        TympanCommand::ReadPdf => match tympan_search::read_pdf() {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(CommandFault::cannot_run(format!("cannot read PDF: {error}"))),
        },
    }
}
