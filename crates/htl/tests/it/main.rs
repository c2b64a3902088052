//! Tests of the language, one file per subject.
