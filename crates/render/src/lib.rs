//! From URL to bytes: decomposition, resolution, components, templates.
