//! The options of a renderer: its role and the limits of a request.

/// The role of the renderer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RenderMode {
    /// For authors: failures show their cause, nodes without scripts show their properties.
    Author,
    /// For visitors: failures only write a log line.
    #[default]
    Publish,
}

/// The limits of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Maximum include depth of components.
    pub max_include_depth: usize,
    /// Maximum stack of the components, in bytes; the thread needs 512 KiB more.
    pub max_stack_bytes: usize,
    /// Maximum number of components.
    pub max_components: usize,
    /// Maximum number of template steps in total.
    pub max_steps: u64,
    /// Maximum number of steps of one component, so that a runaway component leaves enough for the rest of the page.
    pub max_component_steps: u64,
    /// Maximum output of the components in bytes; output of included components counts at each level.
    pub max_output_bytes: usize,
}

impl Default for RenderLimits {
    /// Depth and number of components as in Sling; steps for about a hundred times a large page.
    fn default() -> Self {
        Self {
            max_include_depth: 50,
            max_stack_bytes: 1536 * 1024,
            max_components: 1000,
            max_steps: 5_000_000,
            max_component_steps: 1_000_000,
            max_output_bytes: 64 * 1024 * 1024,
        }
    }
}

/// Options of a renderer.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderOptions {
    /// The role of the renderer.
    pub mode: RenderMode,
    /// The limits of one request.
    pub limits: RenderLimits,
}
