//! How rollouts and searches end without an outcome: given back, failed, lapsed, stopped. And how leases are
//! held on. Invariant: a rollout that comes to nothing leaves no visit behind, in flight or counted.

use esf_core::failure::FailureClass;
use esf_core::id::{RolloutId, SearchId};
use esf_core::ops::search::{BudgetSearch, Renewal, VoidRollout, reject};
use esf_core::ops::{Decision, Meta, Transition, start};
use esf_core::record::EventKind;
use esf_core::search::{
    EdgeStatus, Rollout, RolloutStatus, Search, SearchStatus, Stage, StopReason, Tree, Void, rules,
};
use rusqlite::params;
use serde_json::json;

use super::expand::load;
use super::rows::{self, RolloutRow};
use super::select::asks;
use super::session::Session;
use crate::error::Result;
use crate::row::{Bytes, change, count, every, json as text, optional};
use crate::{Graph, apply, load, statements};

/// Why a rollout is void whose lease was over.
pub(super) const LAPSED: &str = "its lease lapsed";

impl Graph {
    /// Ends a rollout that came to nothing: no visit is counted. A class of failure counts against its last
    /// edge, which is closed by `rules::closes`. One that is void already is left as it is.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `RolloutEnded` when it was accepted; with `NotSealed`, `Pruned` or `NotChild`
    /// for a node that it cannot have made.
    pub fn void_rollout(&self, meta: &Meta, command: VoidRollout) -> Result<Rollout> {
        meta.check()?;
        let meta = meta.clone();
        self.inner.writer.run(move |transaction| {
            let row = load(transaction.db, command.rollout)?;
            match row.rollout.status {
                RolloutStatus::Void => return Ok(row.rollout),
                RolloutStatus::Accepted => {
                    return Err(reject::Reject::RolloutEnded { rollout: command.rollout }.into());
                }
                RolloutStatus::Selected => {}
            }
            let mut session = Session::of_number(transaction.db, &meta, row.search)?;
            let mut row = row;
            if let Some(id) = command.node {
                let leaf = session.own_position(row.rollout.leaf)?;
                session.check_made(&row.rollout, &leaf, &load::node(transaction.db, id)?)?;
                row.rollout.node_id = Some(id);
            }
            let counts = rules::blames(command.class);
            let rollout = session.void(row, command.class, &command.reason, counts)?;
            let (_, transitions) = session.finish()?;
            apply::commit(transaction, &meta, &[], &transitions)?;
            Ok(rollout)
        })
    }

    /// Holds rollouts on: a heartbeat, which needs no key. One whose lease merely ran out is held on as well,
    /// since nobody took it.
    ///
    /// # Errors
    /// Failures of the database.
    pub fn extend_rollouts(&self, meta: &Meta, rollouts: &[RolloutId], lease_ms: u64) -> Result<Renewal> {
        let (boot, rollouts) = (meta.boot.clone(), rollouts.to_vec());
        self.inner.writer.run(move |transaction| {
            let mut renewal = Renewal::default();
            for id in rollouts {
                let row = crate::row::first(
                    transaction.db,
                    statements::ROLLOUT_BY_ID,
                    [id.bytes()],
                    rows::rollout,
                )?;
                let held = row.filter(|row| {
                    row.rollout.status == RolloutStatus::Selected && row.rollout.boot_id == boot.boot_id
                });
                let Some(row) = held else {
                    renewal.lost.push(id);
                    continue;
                };
                let values = params![start::expiry(boot.millis, lease_ms).0, row.number];
                change(transaction.db, statements::EXTEND_ROLLOUT, values, "rollout")?;
                renewal.held.push(id);
            }
            Ok(renewal)
        })
    }

    /// Stops a search. What is in flight may be completed; nothing new begins. One that has stopped already
    /// is left as it is.
    ///
    /// # Errors
    /// `NotFound`; `IdempotencyConflict`.
    pub fn stop_search(&self, meta: &Meta, search: SearchId) -> Result<Search> {
        let answer = self.mutate(meta, "stop_search", &search, move |db, request| {
            let mut session = Session::begin(db, request.meta, search)?;
            session.stop(StopReason::User);
            let (row, transitions) = session.finish()?;
            Ok(Decision { reply: row.search, changes: Vec::new(), transitions })
        })?;
        Ok(answer.reply)
    }

    /// Changes what a search may spend. One that has stopped goes on, unless its rules stop it again: so a
    /// search that somebody stopped is opened by giving it the budget it has.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `BadConfig`; `IdempotencyConflict`.
    pub fn budget_search(&self, meta: &Meta, command: BudgetSearch) -> Result<Search> {
        let answer = self.mutate(meta, "budget_search", &command, move |db, request| {
            let mut session = Session::begin(db, request.meta, command.search)?;
            let search = &mut session.row.search;
            search.config.budget = command.budget;
            search.config.check().map_err(|error| reject::Reject::BadConfig { found: error.to_string() })?;
            search.config_digest = search.config.digest();
            search.status = SearchStatus::Open;
            search.stopped = None;
            let values = params![text(&search.config)?, search.config_digest.bytes(), session.row.number];
            change(db, statements::CONFIGURE_SEARCH, values, "search")?;
            let detail = json!({ "budget": command.budget });
            session.log(Transition::new(EventKind::SearchBudgeted).detail(detail));
            let root = session.search().root;
            let (stats, edges) = (session.position(root)?, session.edges(root)?);
            session.stop_if_enough(&stats, &edges);
            let (row, transitions) = session.finish()?;
            Ok(Decision { reply: row.search, changes: Vec::new(), transitions })
        })?;
        Ok(answer.reply)
    }
}

impl Session<'_> {
    /// Ends what is held under leases that are over.
    pub(super) fn lapse(&mut self) -> Result<()> {
        let boot = &self.meta.boot;
        let values = params![self.row.number, boot.boot_id, boot.millis.0];
        let over = every(self.db, statements::LAPSED_ROLLOUTS, values, rows::rollout)?;
        for row in over {
            // Who held it is gone, which says nothing of its action.
            self.void(row, Some(FailureClass::InfraLost), LAPSED, false)?;
        }
        Ok(())
    }

    /// Ends a rollout without a visit. `counts` says whether that is a failure of its last edge.
    pub(super) fn void(
        &mut self,
        row: RolloutRow,
        class: Option<FailureClass>,
        reason: &str,
        counts: bool,
    ) -> Result<Rollout> {
        let RolloutRow { number, mut rollout, .. } = row;
        self.hold(&rollout.path, -1)?;
        if asks(&rollout) {
            self.ask(rollout.leaf, -1)?;
        }
        if counts {
            self.fail_edge(&rollout, class, reason)?;
        }
        self.refresh(&rollout)?;
        let ended = self.row.search.accepted + self.row.search.void;
        let values = params![
            class.map(FailureClass::as_str),
            reason,
            self.meta.now.0,
            count(ended)?,
            optional(rollout.node_id.as_ref()),
            number
        ];
        change(self.db, statements::VOID_ROLLOUT, values, "rollout")?;
        self.row.search.void += 1;
        rollout.status = RolloutStatus::Void;
        rollout.void = Some(Void { class, reason: reason.to_owned() });
        rollout.ended_at = Some(self.meta.now);
        let detail = json!({ "class": class, "reason": reason });
        let void = Transition {
            rollout_id: Some(rollout.rollout_id),
            node_id: rollout.node_id,
            ..Transition::new(EventKind::RolloutVoid)
        };
        self.log(void.detail(detail));
        Ok(rollout)
    }

    fn fail_edge(&self, rollout: &Rollout, class: Option<FailureClass>, reason: &str) -> Result<()> {
        // Only in stage `visit` was the last edge tried.
        let Some(step) = rollout.path.last().filter(|_| rollout.stage == Stage::Visit) else { return Ok(()) };
        let edges = self.edges(step.position)?;
        let Some(edge) = edges.into_iter().find(|edge| edge.number == step.edge) else { return Ok(()) };
        let (status, because) = match rules::closes(self.config(), edge.failures + 1, class) {
            Some(status) if edge.status == EdgeStatus::Open => (status, Some(reason)),
            Some(_) | None => (edge.status, None),
        };
        self.forget(step.position);
        let values = params![status.as_str(), because, count(edge.number.0)?];
        change(self.db, statements::FAIL_EDGE, values, "edge")
    }
}
