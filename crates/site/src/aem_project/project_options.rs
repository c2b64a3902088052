//! The choices of an import.

/// The choices of an import.
#[derive(Debug, Clone, Copy)]
pub struct AemProjectOptions<'a> {
    /// The run modes of the instance, which select folders such as `config.author.prod`.
    pub run_modes: &'a [String],
    /// The PIDs of the configurations that have an effect here.
    pub supported_pids: &'a [&'a str],
}
