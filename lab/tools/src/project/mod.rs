//! Describes a performance project on one page: architecture, application map, use cases, phases, and report sections.
//!
//! In: `project.toml`, and the reports of runs that it names. Out: a [`PerformanceProject`], its map as SVG, and its
//! page as HTML.
//!
//! Invariants
//! * The whole file is read before errors are reported; every error is reported with its line.
//! * Colors show the measurements: green if all targets are met, amber if only the average targets are met, red if not
//!   even those are met, grey if nothing was measured.
//!
//! Not here: runs, and goals of single runs ([`tympan_lab_engine::goal`]).

mod architecture_map;
mod html_page;
mod performance_project;
mod project_file;

pub use architecture_map::render_map_svg;
pub use html_page::render_html_page;
pub use performance_project::{
    Kpi, MapEdge, MapElement, PROJECT_PHASES, PerformanceProject, ProjectPhaseState,
    REPORT_SECTIONS, TargetColor, UseCase,
};
pub use project_file::read_project;
