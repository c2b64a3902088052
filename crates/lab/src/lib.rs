//! The performance lab: plans, load engine, recording, goals, ramps, analysis, reports.
//!
//! It sees a system only as HTTP and log files and imports no room that it may be asked to judge, so that the same
//! plan measures Tympan, AEM or OpenCms.
