//! Who may depend on whom: the table of ARCHITECTURE.md, held against `cargo metadata`.
//! A dependency for tests counts like any other: a test that needs a higher crate belongs there.

use serde_json::Value;

use crate::{Failure, source};

/// Every crate of ours and all it may depend on. A crate that is not listed may not exist.
const ALLOWED: &[(&str, &[&str])] = &[
    ("esf-core", &[]),
    ("esf-jail", &[]),
    ("esf-layerstack", &["esf-core"]),
    ("esf-graph", &["esf-core", "esf-layerstack"]),
    ("esf-exchange", &["esf-core", "esf-layerstack"]),
    ("esf-control", &["esf-core", "esf-graph"]),
    ("esf-store", &["esf-core", "esf-layerstack", "esf-graph", "esf-exchange"]),
    ("esf-worker", &["esf-core", "esf-layerstack", "esf-graph", "esf-control", "esf-store"]),
    ("esf-oci", &["esf-core", "esf-layerstack", "esf-graph", "esf-store", "esf-worker", "esf-jail"]),
    ("esf-wasi", &["esf-core", "esf-layerstack", "esf-graph", "esf-store", "esf-worker"]),
    (
        "esf-server",
        &[
            "esf-core",
            "esf-layerstack",
            "esf-graph",
            "esf-exchange",
            "esf-control",
            "esf-store",
            "esf-worker",
            "esf-jail",
            "esf-oci",
            "esf-wasi",
        ],
    ),
    (
        "esf",
        &[
            "esf-core",
            "esf-layerstack",
            "esf-graph",
            "esf-exchange",
            "esf-control",
            "esf-store",
            "esf-worker",
            "esf-jail",
            "esf-oci",
            "esf-wasi",
            "esf-server",
        ],
    ),
    ("xtask", &[]),
];

/// All that the graph may name of layerstack: the proof that a root was sealed.
const GRAPH_MAY_NAME: &[&str] = &["SealedRoot"];

/// The dependencies among the workspace's own packages, as (from, to); every package gives (name, "") too.
pub(crate) fn edges(metadata: &Value) -> Result<Vec<(String, String)>, Failure> {
    let mut edges = Vec::new();
    for package in metadata["packages"].as_array().ok_or("metadata without packages")? {
        let name = package["name"].as_str().ok_or("package without name")?;
        edges.push((name.to_owned(), String::new()));
        for dependency in package["dependencies"].as_array().ok_or("package without dependencies")? {
            if !dependency["path"].is_null() {
                let to = dependency["name"].as_str().ok_or("dependency without name")?;
                edges.push((name.to_owned(), to.to_owned()));
            }
        }
    }
    Ok(edges)
}

/// Findings: packages without a row, and dependencies against the direction.
pub(crate) fn check_edges(edges: &[(String, String)]) -> Vec<String> {
    let finding = |(from, to): &(String, String)| {
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| name == from) else {
            return Some(format!("{from} has no row in xtask/src/direction.rs and ARCHITECTURE.md"));
        };
        if to.is_empty() || allowed.contains(&to.as_str()) {
            return None;
        }
        Some(format!("{from} may depend on {allowed:?}, found {to}: see the direction in ARCHITECTURE.md"))
    };
    edges.iter().filter_map(finding).collect()
}

/// Findings: what the graph's code, its tests aside, names of layerstack beyond the proof type.
pub(crate) fn check_graph_names(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("crates/esf-graph/src/") {
        return Vec::new();
    }
    let code = source::code_only(text);
    let mut findings = Vec::new();
    for (at, _) in source::before_tests(&code).match_indices("esf_layerstack::") {
        let named = &code[at + "esf_layerstack::".len()..];
        let end = named.find(';').unwrap_or(named.len());
        let names = match named.strip_prefix('{') {
            Some(_) => &named[..end],
            None => &named[..named.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(end)],
        };
        for name in names.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty()) {
            if !GRAPH_MAY_NAME.contains(&name) {
                findings.push(format!(
                    "{path}: the graph may name {GRAPH_MAY_NAME:?} of layerstack, found {name}"
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: &str, to: &str) -> Vec<(String, String)> {
        vec![(from.to_owned(), to.to_owned())]
    }

    #[test]
    fn the_direction_holds() {
        for (from, to, findings) in [
            ("esf-core", "", 0),
            ("esf-store", "esf-graph", 0),
            ("esf-oci", "esf-jail", 0),
            ("esf-core", "esf-graph", 1),
            ("esf-control", "esf-layerstack", 1),
            ("esf-control", "esf-worker", 1),
            ("esf-worker", "esf-oci", 1),
            ("esf-jail", "esf-core", 1),
            ("esf-unheard-of", "", 1),
        ] {
            assert_eq!(check_edges(&edge(from, to)).len(), findings, "{from} -> {to}");
        }
    }

    #[test]
    fn no_row_allows_a_cycle() {
        for (from, allowed) in ALLOWED {
            for to in *allowed {
                let (_, back) = ALLOWED.iter().find(|(name, _)| name == to).expect("a row for each crate");
                assert!(!back.contains(from), "{from} <-> {to}");
            }
        }
    }

    #[test]
    fn edges_are_read_from_metadata() {
        let metadata = serde_json::json!({"packages": [{"name": "esf-graph", "dependencies": [
            {"name": "esf-core", "path": "/x", "kind": null},
            {"name": "esf-store", "path": "/y", "kind": "dev"},
            {"name": "serde", "kind": null},
        ]}]});
        let edges = edges(&metadata).unwrap();
        assert_eq!(edges.len(), 3);
        assert_eq!(check_edges(&edges).len(), 1);
    }

    #[test]
    fn the_graph_names_only_the_proof() {
        let path = "crates/esf-graph/src/lib.rs";
        for (text, findings) in [
            ("use esf_layerstack::SealedRoot;", 0),
            ("use esf_layerstack::{SealedRoot};", 0),
            ("use esf_layerstack::{LayerStack, SealedRoot};", 1),
            ("fn f(stack: &esf_layerstack::LayerStack) {}", 1),
            ("// esf_layerstack::LayerStack\n", 0),
            ("#[cfg(test)]\nuse esf_layerstack::LayerStack;", 0),
        ] {
            assert_eq!(check_graph_names(path, text).len(), findings, "{text}");
        }
        assert!(
            check_graph_names("crates/esf-store/src/lib.rs", "use esf_layerstack::LayerStack;").is_empty()
        );
    }
}
