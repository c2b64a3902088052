//! Tests of the models' behavior.
