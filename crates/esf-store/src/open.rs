//! Opening a store: the directory with its header, the worker's own facts, and the graph.
//! A crash while one is created leaves a directory that the next creation takes over, or a header
//! without a graph, which the next opening completes as long as no bytes are there.

use std::path::Path;

use esf_graph::Graph;
use esf_layerstack::LayerStack;

use crate::Error;
use crate::boundary::{Boundary, reach};

/// The graph's file in the store's directory.
const GRAPH: &str = "graph.db";

/// A store: both planes, open. Cheap to clone, shared by threads; several processes may have one open.
#[derive(Clone, Debug)]
pub struct Store {
    stack: LayerStack,
    graph: Graph,
}

impl Store {
    /// Opens the store at `dir`. Recovery that needs a clock is `recover_if_idle`, right after.
    ///
    /// # Errors
    /// `no_store`, `store_newer`, `store_damaged` and what else either plane refuses.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let stack = LayerStack::open(dir)?;
        let path = stack.directory().join(GRAPH);
        let graph = match Graph::open(&path) {
            Ok(graph) => graph,
            // A creation that another process is at, or that was interrupted; without bytes nothing is lost.
            Err(error) if may_be_unfinished(&error) && stack.usage()?.hot == 0 => {
                reach(Boundary::OpenGraph)?;
                Graph::create(&path, stack.store_id())?
            }
            Err(esf_graph::Error::NotFound { .. }) => return Err(Error::GraphMissing { path }),
            Err(error) => return Err(error.into()),
        };
        if graph.store_id() != stack.store_id() {
            let (expected, found) = (stack.store_id(), graph.store_id());
            return Err(esf_graph::Error::OtherStore { expected, found }.into());
        }
        Ok(Self { stack, graph })
    }

    /// Opens the store at `dir`, making it first if nothing is there.
    ///
    /// # Errors
    /// As `open`; `store_exists` when something else is there.
    pub fn open_or_create(dir: &Path) -> Result<Self, Error> {
        if !LayerStack::exists(dir) {
            match LayerStack::create(dir) {
                Ok(_) => {}
                // Another process was faster.
                Err(esf_layerstack::Error::StoreExists(_)) if LayerStack::exists(dir) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Self::open(dir)
    }

    /// The bytes.
    pub fn stack(&self) -> &LayerStack {
        &self.stack
    }

    /// The facts.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The store's directory.
    pub fn directory(&self) -> &Path {
        self.stack.directory()
    }
}

fn may_be_unfinished(error: &esf_graph::Error) -> bool {
    matches!(error, esf_graph::Error::NotFound { .. } | esf_graph::Error::Damaged { .. })
}
