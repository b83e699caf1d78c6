//! Outcomes of rollouts: checked, then counted along their path, once.
//! Invariants: an outcome that is refused leaves nothing behind, alone or among others; the rollout is what an
//! outcome is known by, so a repetition changes nothing; N and Q are recomputed by `esf_core::search::visit`,
//! from the leaf up, in the transaction that accepts the rollout.

use esf_core::digest::{RootId, StateId};
use esf_core::id::{EvaluationId, RolloutId};
use esf_core::ops::search::{Complete, Completed, reject};
use esf_core::ops::{Meta, Reject, Transition};
use esf_core::record::{Evaluation, EventKind, Node};
use esf_core::search::config::{Solve, Transpositions};
use esf_core::search::{
    Candidates, Config, EdgeStats, PositionStats, Rollout, RolloutStatus, Stage, Step, Tree, rules, visit,
};
use esf_core::state::NodeStatus;
use esf_core::{Digest, canonical};
use rusqlite::{Connection, params};

use super::expand::{check, fits, held, load};
use super::link::{Order, Same};
use super::rows::{PositionRow, RolloutRow, Values};
use super::select::{asks, insert_position, next_position};
use super::session::{self, Session};
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, first, optional};
use crate::{Graph, apply, load, records, statements};

impl Graph {
    /// Counts the outcome of a rollout: its value, and one visit of each edge of its path. The same outcome
    /// again is answered as before and changes nothing, under whatever key.
    ///
    /// # Errors
    /// `NotFound` for what it names; `Rejected` with `RolloutEnded` for another outcome, `RolloutVoid`,
    /// `WrongStage`, `NotSealed`, `Pruned`, `NotChild`, `EvaluationMismatch`, `ValueMissing`, `BadValue`,
    /// `BadArgument`.
    pub fn complete(&self, meta: &Meta, command: Complete) -> Result<Completed> {
        let mut answers = self.complete_all(meta, vec![command])?;
        answers.pop().ok_or_else(|| Error::damaged("an outcome without an answer"))?
    }

    /// Counts many outcomes in one commit. One that is refused disturbs no other.
    ///
    /// # Errors
    /// Those of the whole; what is refused is in the answers, as for `complete`.
    pub fn complete_all(&self, meta: &Meta, commands: Vec<Complete>) -> Result<Vec<Result<Completed>>> {
        meta.check()?;
        let meta = meta.clone();
        self.inner.writer.run(move |transaction| {
            let db = transaction.db;
            let (mut open, mut transitions) = (None, Vec::new());
            let mut answers = Vec::with_capacity(commands.len());
            for command in &commands {
                match complete(db, &meta, command, &mut open, &mut transitions) {
                    answer @ (Ok(_) | Err(Error::Rejected(_) | Error::NotFound { .. })) => {
                        answers.push(answer)
                    }
                    Err(failed) => return Err(failed),
                }
            }
            close(&mut open, &mut transitions)?;
            apply::commit(transaction, &meta, &[], &transitions)?;
            Ok(answers)
        })
    }
}

/// Finishes the search that is worked on.
fn close(open: &mut Option<Session<'_>>, transitions: &mut Vec<Transition>) -> Result<()> {
    if let Some(session) = open.take() {
        transitions.extend(session.finish()?.1);
    }
    Ok(())
}

/// Counts one outcome, in the search that is `open` if it is of the same.
fn complete<'a>(
    db: &'a Connection,
    meta: &'a Meta,
    command: &Complete,
    open: &mut Option<Session<'a>>,
    transitions: &mut Vec<Transition>,
) -> Result<Completed> {
    let row = load(db, command.rollout)?;
    if row.rollout.status == RolloutStatus::Accepted {
        return again(db, row, command);
    }
    held(&row.rollout)?;
    if open.as_ref().is_none_or(|session| session.row.number != row.search) {
        close(open, transitions)?;
        *open = Some(Session::of_number(db, meta, row.search)?);
    }
    let session = open.as_mut().expect("it was opened");
    let (rollout, position) = session.whole_or_not(|session| {
        let leaf = session.own_position(row.rollout.leaf)?;
        let arrival = session.check(&row.rollout, &leaf, command)?;
        session.accept(row, leaf, command, arrival)
    })?;
    Ok(Completed { position: position.record(rollout.search_id), rollout, fresh: true })
}

/// The answer to an outcome that was counted before.
fn again(db: &Connection, row: RolloutRow, command: &Complete) -> Result<Completed> {
    if row.outcome != Some(command.digest()) {
        return Err(reject::Reject::RolloutEnded { rollout: command.rollout }.into());
    }
    let reached = row.rollout.reached.ok_or_else(|| Error::damaged("an accepted rollout reached nothing"))?;
    let position = session::position(db, reached)?.record(row.rollout.search_id);
    Ok(Completed { rollout: row.rollout, position, fresh: false })
}

/// What an outcome comes to, checked.
struct Arrival {
    /// The position that it reaches, if there is one already.
    known: Option<PositionRow>,
    node: Option<Node>,
    key: Option<Digest>,
    value: Option<Vec<f64>>,
    evaluation: Option<EvaluationId>,
    terminal: bool,
    /// Levels and depths of positions that a new edge to a known position changes.
    order: Vec<Order>,
}

/// The key of a state, where equal states are one position: by its node, its caller's key, or both.
pub(super) fn position_key(config: &Config, node: Option<&Node>, key: Option<&str>) -> Option<Digest> {
    let root = node.and_then(|node| node.root_id);
    let of = |root: Option<RootId>, state: Option<StateId>, key: Option<&str>| {
        let known = root.is_some() || key.is_some();
        known.then(|| canonical::digest("esf position key v1", &(root, state, key)))
    };
    match config.transpositions {
        Transpositions::Off => None,
        Transpositions::Root => of(root, None, None),
        Transpositions::State => of(root, root.and(node).map(|node| node.state_id), key),
    }
}

fn bad(what: &'static str, expected: impl Into<String>, found: impl ToString) -> Error {
    reject::Reject::BadValue { what, expected: expected.into(), found: found.to_string() }.into()
}

impl Session<'_> {
    /// Checks an outcome. Reads only.
    fn check(&self, rollout: &Rollout, leaf: &PositionRow, command: &Complete) -> Result<Arrival> {
        self.check_numbers(command)?;
        let none = Candidates::default();
        let candidates = command.candidates.as_ref().unwrap_or(&none);
        check(self, candidates, command.to_move)?;
        if command.terminal && command.candidates.is_some() {
            let (expected, found) = ("no actions at a terminal position".to_owned(), "some".to_owned());
            return Err(Reject::BadArgument { argument: "candidates", expected, found }.into());
        }
        let node = command.node.map(|id| load::node(self.db, id)).transpose()?;
        let (value, evaluation) = self.value(rollout, leaf, command)?;
        let terminal =
            command.terminal || node.as_ref().is_some_and(|node| node.status == NodeStatus::Terminal);
        let (key, known, order) = match rollout.stage {
            Stage::Expand => {
                let (rollout, stage) = (rollout.rollout_id, rollout.stage);
                return Err(reject::Reject::WrongStage {
                    rollout,
                    stage,
                    asked: "a rollout with an outcome",
                }
                .into());
            }
            Stage::Visit => {
                self.check_child(rollout, leaf, node.as_ref())?;
                let key = position_key(self.config(), node.as_ref(), command.key.as_deref());
                match self.same_state(leaf, key)? {
                    Same::None => (key, None, Vec::new()),
                    Same::Cycle => (None, None, Vec::new()),
                    Same::Position(known, order) => (key, Some(*known), order),
                }
            }
            Stage::Revisit => {
                if command.node.is_some() && command.node != leaf.node_id {
                    return Err(not_child(rollout, leaf, command));
                }
                (None, Some(leaf.clone()), Vec::new())
            }
        };
        fits(candidates, known.as_ref().map_or(0, |known| known.edge_count))?;
        self.check_uncounted(rollout, known.as_ref(), evaluation)?;
        if value.is_none() && known.as_ref().is_none_or(|known| known.stats.values == 0) {
            return Err(reject::Reject::ValueMissing { rollout: rollout.rollout_id }.into());
        }
        Ok(Arrival { known, node, key, value, evaluation, terminal, order })
    }

    /// Refuses an evaluation that gave a value to the same position before: it is one measurement.
    fn check_uncounted(
        &self,
        rollout: &Rollout,
        known: Option<&PositionRow>,
        evaluation: Option<EvaluationId>,
    ) -> Result<()> {
        let (Some(known), Some(id)) = (known, evaluation) else { return Ok(()) };
        let values = params![id.bytes(), count(known.stats.number.0)?];
        let by: Option<RolloutId> =
            first(self.db, statements::ROLLOUT_OF_EVALUATION, values, |columns| columns.id())?;
        match by {
            Some(by) => Err(self.mismatch(rollout, evaluation, format!("{id} was counted before by {by}"))),
            None => Ok(()),
        }
    }

    fn check_numbers(&self, command: &Complete) -> Result<()> {
        let config = self.config();
        let check = |what, value: &[f64]| {
            visit::check_value(config, value)
                .map_err(|error| bad(what, error.to_string(), format!("{value:?}")))
        };
        if let Some(value) = &command.value {
            check("value", value)?;
        }
        if !command.reward.is_empty() {
            check("reward", &command.reward)?;
        }
        if let Some(discount) = command.discount.filter(|discount| !(0.0..=1.0).contains(discount)) {
            return Err(bad("discount", "0 to 1", discount));
        }
        if !(command.cost.is_finite() && command.cost >= 0.0) {
            return Err(bad("cost", "a finite number of 0 or more", command.cost));
        }
        Ok(())
    }

    /// Checks that a node is what a rollout's action can have made.
    pub(super) fn check_child(
        &self,
        rollout: &Rollout,
        leaf: &PositionRow,
        node: Option<&Node>,
    ) -> Result<()> {
        let Some(node) = node else { return Ok(()) };
        match node.status {
            NodeStatus::Draft => {
                return Err(Reject::NotSealed { node: node.node_id, last_sealed: leaf.node_id }.into());
            }
            NodeStatus::Pruned => return Err(Reject::Pruned { node: node.node_id }.into()),
            NodeStatus::Sealed | NodeStatus::Terminal => {}
        }
        let child = node.parents.first().copied() == leaf.node_id;
        let unchanged = node.root_id == leaf.root_id && node.group_id == self.search().group_id;
        if leaf.node_id.is_some() && (child || unchanged) {
            return Ok(());
        }
        let (node, leaf) = (node.node_id, leaf.node_id);
        Err(reject::Reject::NotChild { rollout: rollout.rollout_id, node, leaf }.into())
    }

    /// Checks that a node is one that the action of a rollout in stage `visit` made, although nothing came of it.
    pub(super) fn check_made(&self, rollout: &Rollout, leaf: &PositionRow, node: &Node) -> Result<()> {
        if rollout.stage == Stage::Visit {
            return self.check_child(rollout, leaf, Some(node));
        }
        let (rollout, node, leaf) = (rollout.rollout_id, node.node_id, leaf.node_id);
        Err(reject::Reject::NotChild { rollout, node, leaf }.into())
    }

    /// The value of an outcome, and the evaluation it is from.
    fn value(
        &self,
        rollout: &Rollout,
        leaf: &PositionRow,
        command: &Complete,
    ) -> Result<(Option<Vec<f64>>, Option<EvaluationId>)> {
        self.check_own_numbers(rollout, command)?;
        let Some(id) = command.evaluation else {
            if command.value.is_some() && self.config().evaluator.is_some() {
                return Err(self.mismatch(rollout, None, "a value without an evaluation"));
            }
            return Ok((command.value.clone(), None));
        };
        let evaluation = first(self.db, statements::EVALUATION_BY_ID, [id.bytes()], records::evaluation)?
            .ok_or_else(|| Error::not_found("evaluation", id))?;
        let node = if rollout.stage == Stage::Revisit { leaf.node_id } else { command.node };
        if node != Some(evaluation.node_id) {
            let found = format!("{id} is of {}", evaluation.node_id);
            return Err(self.mismatch(rollout, Some(id), found));
        }
        let value = self.value_of(rollout, &evaluation)?;
        match &command.value {
            Some(given) if *given != value => Err(self.mismatch(
                rollout,
                Some(id),
                format!("the value {given:?}, but the evaluation has {value:?}"),
            )),
            Some(_) | None => Ok((Some(value), Some(id))),
        }
    }

    /// Where an evaluator is named, nothing but its values decides: the caller has no reward or discount of its own.
    fn check_own_numbers(&self, rollout: &Rollout, command: &Complete) -> Result<()> {
        let config = self.config();
        if config.evaluator.is_none() {
            return Ok(());
        }
        if command.reward.iter().any(|reward| *reward != 0.0) {
            return Err(self.mismatch(rollout, command.evaluation, "a reward of the caller's own"));
        }
        match command.discount {
            Some(discount) if discount != config.discount => {
                Err(self.mismatch(rollout, command.evaluation, "a discount of the caller's own"))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The value that an evaluation gives: its reward, or its metric `values` in a search of several.
    fn value_of(&self, rollout: &Rollout, evaluation: &Evaluation) -> Result<Vec<f64>> {
        let config = self.config();
        let id = Some(evaluation.evaluation_id);
        if evaluation.verdict.is_error() {
            return Err(self.mismatch(rollout, id, "an evaluation that failed"));
        }
        if let Some(digest) = config.evaluator {
            match evaluation.evaluator_digest {
                Some(found) if found == digest => {}
                Some(found) => return Err(self.mismatch(rollout, id, format!("an evaluator {found}"))),
                None => return Err(self.mismatch(rollout, id, "an evaluation that was attached by hand")),
            }
        }
        if !evaluation.counts {
            return Err(self.mismatch(rollout, id, "an evaluation that does not count"));
        }
        let value = match config.values {
            1 => evaluation.reward.map(|reward| vec![reward]),
            _ => serde_json::from_value(evaluation.metrics["values"].clone()).ok(),
        };
        let value = value.ok_or_else(|| self.mismatch(rollout, id, "an evaluation without a value"))?;
        match visit::check_value(config, &value) {
            Ok(()) => Ok(value),
            Err(error) => Err(self.mismatch(rollout, id, error.to_string())),
        }
    }

    fn mismatch(
        &self,
        rollout: &Rollout,
        evaluation: Option<EvaluationId>,
        found: impl Into<String>,
    ) -> Error {
        let by =
            self.config().evaluator.map_or_else(String::new, |digest| format!(" by the evaluator {digest}"));
        let expected = match self.config().values {
            1 => format!("an evaluation{by} of the node that was reached, with a reward"),
            several => {
                format!("an evaluation{by} of the node that was reached, with {several} metrics.values")
            }
        };
        let (rollout, found) = (rollout.rollout_id, found.into());
        reject::Reject::EvaluationMismatch { rollout, evaluation, expected, found }.into()
    }
}

fn not_child(rollout: &Rollout, leaf: &PositionRow, command: &Complete) -> Error {
    let node = command.node.expect("asked only when one was given");
    reject::Reject::NotChild { rollout: rollout.rollout_id, node, leaf: leaf.node_id }.into()
}

impl Session<'_> {
    /// Counts an outcome; gives the rollout as it is now, and the position it reached.
    fn accept(
        &mut self,
        row: RolloutRow,
        leaf: PositionRow,
        command: &Complete,
        arrival: Arrival,
    ) -> Result<(Rollout, PositionRow)> {
        let mut rollout = row.rollout;
        if asks(&rollout) {
            self.ask(rollout.leaf, -1)?;
        }
        rollout.status = RolloutStatus::Accepted;
        rollout.value = arrival.value.clone().unwrap_or_default();
        (rollout.node_id, rollout.evaluation_id) = (command.node, arrival.evaluation);
        rollout.cost = command.cost;
        rollout.ended_at = Some(self.meta.now);
        let last = rollout.path.last().copied().filter(|_| rollout.stage == Stage::Visit);
        let reached = match last {
            Some(last) => self.arrive(leaf, last, command, arrival)?,
            None => self.return_to(leaf, command, arrival)?,
        };
        rollout.reached = Some(reached.stats.number);
        let ended = self.row.search.accepted + self.row.search.void;
        let outcome = command.digest();
        let values = params![
            outcome.bytes(),
            Values(&rollout.value),
            count(reached.stats.number.0)?,
            optional(rollout.node_id.as_ref()),
            optional(rollout.evaluation_id.as_ref()),
            rollout.cost,
            self.meta.now.0,
            count(ended)?,
            row.number,
        ];
        change(self.db, statements::ACCEPT_ROLLOUT, values, "rollout")?;
        self.row.search.accepted += 1;
        self.row.search.cost += command.cost;
        self.log(Transition {
            rollout_id: Some(rollout.rollout_id),
            node_id: rollout.node_id,
            evaluation_id: rollout.evaluation_id,
            ..Transition::new(EventKind::RolloutAccepted)
        });
        self.visit(&rollout, &reached.stats)?;
        Ok((rollout, reached))
    }

    /// The position to which an edge leads that was taken for the first time.
    fn arrive(
        &mut self,
        leaf: PositionRow,
        last: Step,
        command: &Complete,
        mut arrival: Arrival,
    ) -> Result<PositionRow> {
        let reached = match arrival.known.take() {
            Some(known) => {
                let known = self.join(known.stats.number, last.edge, &arrival.order)?;
                self.value_known(known, command, &arrival)?
            }
            None => self.make(&leaf, last, command, &arrival)?,
        };
        let discount = command.discount.unwrap_or(self.config().discount);
        let values =
            params![count(reached.stats.number.0)?, Values(&command.reward), discount, count(last.edge.0)?];
        change(self.db, statements::LINK_EDGE, values, "edge")?;
        self.forget(last.position);
        Ok(reached)
    }

    /// Stores a new position.
    fn make(
        &mut self,
        leaf: &PositionRow,
        last: Step,
        command: &Complete,
        arrival: &Arrival,
    ) -> Result<PositionRow> {
        let mut row = PositionRow::unseen(self.row.number, Some(last.edge), leaf.stats.depth + 1);
        row.level = leaf.level + 1;
        row.stats.to_move = command.to_move.unwrap_or(0);
        row.stats.terminal = arrival.terminal;
        row.evaluation_id = arrival.evaluation;
        row.key = arrival.key;
        if let Some(node) = &arrival.node {
            (row.node_id, row.root_id, row.node_status) =
                (Some(node.node_id), node.root_id, Some(node.status));
        }
        if let Some(value) = &arrival.value {
            visit::accept_value(self.config(), &mut row.stats, value);
        }
        let new = match &command.candidates {
            Some(candidates) => self.new_edges(&mut row, candidates)?,
            None => Vec::new(),
        };
        let edges: Vec<EdgeStats> =
            new.iter().map(|(candidate, _)| EdgeStats::untried(candidate.prior, 1.0)).collect();
        visit::recompute(self.config(), &mut row.stats, &edges);
        row.stats.number = next_position(self.db)?;
        insert_position(self.db, &row)?;
        self.insert_edges(&row, &new)?;
        self.row.search.positions += 1;
        Ok(row)
    }

    /// A position that is visited again.
    fn return_to(
        &mut self,
        mut leaf: PositionRow,
        command: &Complete,
        arrival: Arrival,
    ) -> Result<PositionRow> {
        // `check` read it before the rollout was taken from those that ask there.
        leaf.stats.asking = Tree::position(self, leaf.stats.number)?.asking;
        if leaf.entry.is_none() {
            // Of the root nobody could say it before.
            let mover = command.to_move.unwrap_or(leaf.stats.to_move);
            if mover != leaf.stats.to_move {
                self.judge(mover)?;
            }
            leaf.stats.to_move = mover;
            leaf.stats.terminal |= arrival.terminal;
        }
        self.value_known(leaf, command, &arrival)
    }

    /// Takes a value and actions of a position that is there.
    fn value_known(
        &mut self,
        mut row: PositionRow,
        command: &Complete,
        arrival: &Arrival,
    ) -> Result<PositionRow> {
        let before = row.stats.clone();
        if let Some(value) = &arrival.value {
            visit::accept_value(self.config(), &mut row.stats, value);
            row.evaluation_id = arrival.evaluation.or(row.evaluation_id);
        }
        if let Some(candidates) = &command.candidates {
            let new = self.new_edges(&mut row, candidates)?;
            self.insert_edges(&row, &new)?;
        }
        self.with_edges(row.stats.number, |edges| visit::recompute(self.config(), &mut row.stats, edges))?;
        self.note_lost(&before, &row.stats);
        self.write_position(&row)?;
        Ok(row)
    }

    /// Counts one visit of each edge of a rollout's path, from the position `reached` up.
    fn visit(&mut self, rollout: &Rollout, reached: &PositionStats) -> Result<()> {
        let shared = self.config().transpositions != Transpositions::Off;
        let mut child = reached.clone();
        for step in rollout.path.iter().rev() {
            if shared {
                self.tell_entries(&child)?;
            }
            self.visit_edge(step.edge, &child)?;
            child = self.recompute(step.position)?.0;
        }
        if shared {
            self.spread_lost()?;
            child = Tree::position(self, child.number)?;
        }
        if !rollout.value.is_empty() {
            let worth = rules::worth(self.config(), child.to_move, &rollout.value);
            self.row.best = Some(self.row.best.map_or(worth, |best| best.max(worth)));
        }
        let edges = Tree::edges(self, child.number)?;
        self.stop_if_enough(&child, &edges);
        Ok(())
    }

    /// Derives anew what is known along the path of a rollout that was not counted: an expansion or a closed
    /// edge may prove a value, and where positions are shared, others may have changed what is below.
    pub(super) fn refresh(&self, rollout: &Rollout) -> Result<()> {
        let config = self.config();
        if config.solve != Solve::Full && config.transpositions == Transpositions::Off {
            return Ok(());
        }
        let above = rollout.path.iter().rev().map(|step| step.position).filter(|at| *at != rollout.leaf);
        for number in std::iter::once(rollout.leaf).chain(above) {
            let (position, changed) = self.recompute(number)?;
            if changed {
                self.tell_entries(&position)?;
            }
        }
        self.spread_lost()
    }
}
