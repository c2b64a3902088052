//! Promises of the whole program, and the guards of its structure.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test fails by panicking, and says aloud what it skips"
)]

mod access;
mod accounts;
mod asset_farm;
mod asset_kills;
mod backup;
mod backup_clone;
mod backup_combinations;
mod backup_damage;
mod backup_memory;
mod backup_remote;
mod backup_site;
mod bad_input;
mod beginnings;
mod blob_kills;
mod blob_places;
mod blob_sharing;
mod browser;
mod changes;
mod clone;
mod code_map;
mod crash;
mod crowd;
mod database;
mod delivery;
mod demo_homes;
mod dispatcher;
mod export;
mod far;
mod farm;
mod floors;
mod history;
mod import_cycles;
mod index_commands;
mod job_models;
mod lab_author;
mod lab_portal;
mod lab_program;
mod launches;
mod ledger_kills;
mod lost_flush;
mod maintenance;
mod manual;
mod members;
mod monitoring;
mod mounts;
mod offload;
mod openapi;
mod package;
mod package_manager;
mod pairs;
mod pictures;
mod plans;
mod portal;
mod program;
mod publish_crowd;
mod publishers;
mod publishing;
mod readback;
mod repair;
mod search;
mod secrets;
mod service;
mod site;
mod soak;
mod sources;
mod staging;
mod stalled;
mod stored_samples;
mod support_bundle;
mod timing;
mod type_names;
mod unlogged;
mod varnish;

tympan_testkit::every_test_file_is_listed!();
