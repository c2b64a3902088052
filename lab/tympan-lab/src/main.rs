//! The `tympan-lab` command: puts a site under load and evaluates its responses.

fn main() -> std::process::ExitCode {
    tympan_lab::run_program()
}
