//! Standard output.

/// Writes a line to standard output; ignores a closed pipe.
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        writeln!(out, $($arguments)*).and_then(|()| out.flush()).ok();
    }};
}
