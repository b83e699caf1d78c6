//! Tests of the search in the graph.

mod check;
mod crash;
mod game;
mod leases;
mod once;
mod oracle;
mod prune;
mod refusals;
mod rollouts;
mod shared;

use esf_core::failure::FailureClass;
use esf_core::id::{NodeId, RolloutId, SearchId};
use esf_core::ops::search::{Complete, CreateSearch, Expand, Expanded, Select, Selection, VoidRollout};
use esf_core::search::config::{FirstPlay, Normalize, Policy};
use esf_core::search::{Candidate, Candidates, Config, Search, Ticket};
use serde_json::json;

use super::{Fixture, meta};
use crate::Graph;

/// UCB1 with values as they are.
pub(crate) fn plain() -> Config {
    Config {
        policy: Policy::Ucb1 { c: 1.0 },
        first_play: FirstPlay::First,
        normalize: Normalize::None,
        ..Config::default()
    }
}

/// Actions `names`, all there are.
pub(crate) fn actions(names: &[&str]) -> Candidates {
    let of = |name: &&str| Candidate { action: json!(name), name: None, prior: 1.0, key: None };
    Candidates { actions: names.iter().map(of).collect(), exhausted: true }
}

pub(crate) struct Searching {
    pub(crate) fixture: Fixture,
    pub(crate) search: Search,
    pub(crate) root: NodeId,
}

impl Searching {
    pub(crate) fn new(config: Config) -> Self {
        Self::with_policy(config, "")
    }

    /// A search in a group that trusts the evaluations of this test.
    pub(crate) fn trusting(config: Config) -> Self {
        Self::with_policy(config, "trusted_actors = ['tester']")
    }

    fn with_policy(config: Config, policy: &str) -> Self {
        let fixture = Fixture::new();
        let root = fixture.group_with("project", policy).node.node_id;
        let search = fixture.graph.create_search(&meta(), CreateSearch { root, config }).expect("search");
        Self { fixture, search, root }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.fixture.graph
    }

    pub(crate) fn id(&self) -> SearchId {
        self.search.search_id
    }

    pub(crate) fn now(&self) -> Search {
        self.graph().search(self.id()).expect("search")
    }

    pub(crate) fn ask(&self, count: u32) -> Select {
        Select { search: self.id(), count, lease_ms: 10_000, at: None, edge: None }
    }

    pub(crate) fn select(&self, count: u32) -> Selection {
        self.graph().select(&meta(), self.ask(count)).expect("select")
    }

    pub(crate) fn one(&self) -> Ticket {
        let mut tickets = self.select(1).tickets;
        assert_eq!(tickets.len(), 1);
        tickets.remove(0)
    }

    pub(crate) fn expand(&self, rollout: RolloutId, names: &[&str]) -> Expanded {
        let command = Expand { rollout, candidates: actions(names), to_move: None };
        self.graph().expand(&meta(), command).expect("expand")
    }

    pub(crate) fn value(
        &self,
        rollout: RolloutId,
        value: f64,
    ) -> crate::Result<esf_core::ops::search::Completed> {
        self.graph().complete(&meta(), valued(rollout, value))
    }

    pub(crate) fn void(&self, rollout: RolloutId, class: Option<FailureClass>) -> esf_core::search::Rollout {
        let command = VoidRollout { rollout, class, reason: "no reason".to_owned(), node: None };
        self.graph().void_rollout(&meta(), command).expect("void")
    }

    /// The root has value 0 and the actions a, b, c; one rollout is held on the first.
    pub(crate) fn begun(config: Config) -> (Self, Ticket) {
        let searching = Self::new(config);
        let first = searching.one();
        searching.value(first.rollout.rollout_id, 0.0).expect("root");
        let ticket = searching.one();
        let ticket = searching.expand(ticket.rollout.rollout_id, &["a", "b", "c"]).ticket;
        (searching, ticket)
    }

    pub(crate) fn sound(&self) {
        assert_eq!(self.graph().check().expect("check"), Vec::<String>::new());
    }
}

pub(crate) fn valued(rollout: RolloutId, value: f64) -> Complete {
    Complete { value: Some(vec![value]), ..Complete::of(rollout) }
}
