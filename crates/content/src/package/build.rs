//! Building packages.
