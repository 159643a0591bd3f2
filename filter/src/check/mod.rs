//! `warmpath check`: the filter's own validation of a configuration, for people and their CI, and a look at the Envoy
//! configuration around it. Native only.
//!
//! A file is a bare plugin configuration (JSON or YAML), an Envoy configuration (YAML or JSON, or a dump by Envoy's admin) or a
//! file of Kubernetes manifests. In an Envoy configuration every Wasm filter that is ours is found and checked, with paths inside
//! the file; and settings of Envoy that will hurt LLM traffic are warned of. In manifests the plugin configurations are checked.

mod built_in;
mod cli;
mod clusters;
mod document;
mod envoy;
mod events;
mod manifests;
mod placement;
mod plugins;
mod report;
mod routes;
mod workflows;

pub use cli::run;
pub use document::parse;
pub use envoy::check;
pub use report::Report;
