//! What the commands that read sites share: the fault of a site as that of a command, and the check of page headers.

use std::collections::BTreeMap;

use tympan_server::PublishSection;
use tympan_terminal::{CommandFault, error_chain_text};

/// Checks that the headers of a site's pages can be sent.
pub(crate) fn check_page_headers(headers: &BTreeMap<String, String>) -> Result<(), String> {
    PublishSection { headers: headers.clone() }.page_headers().map(drop)
}

/// Converts an error of a site to the fault of a command.
pub(crate) fn site_fault(error: tympan_site::Error) -> CommandFault {
    match error {
        tympan_site::Error::Refused(reason) => CommandFault::usage(reason),
        tympan_site::Error::Package(error) => CommandFault::usage(error_chain_text(&error)),
        error => CommandFault::cannot_run(error_chain_text(&error)),
    }
}
