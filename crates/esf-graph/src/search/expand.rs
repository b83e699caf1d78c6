//! Actions of a position become edges: known ones are recognised, new ones are put at the end.
//! Invariant: an action is one edge of its position, however often it is proposed; ordinals are dense.

use std::collections::HashSet;
use std::sync::mpsc::sync_channel;

use esf_core::ops::search::{Expand, Expanded, reject};
use esf_core::ops::{Decision, Meta, Reject, Request, Transition};
use esf_core::record::EventKind;
use esf_core::search::{
    Candidate, Candidates, Expansion, Rollout, RolloutStatus, Stage, Start, StopReason, Ticket,
};
use esf_core::{Digest, RolloutId, canonical};
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::rows::{self, MOST_EDGES, PositionRow, RolloutRow};
use super::select::{Way, asks, complete_ticket, ticket};
use super::session::Session;
use crate::error::{Error, Result};
use crate::row::{Bytes, change, count, every, first};
use crate::{Graph, statements};

/// What is remembered of an expansion.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Added {
    added: u32,
    known: u32,
}

impl Graph {
    /// Says what actions there are at the leaf of a rollout in stage `expand`. The same rollout goes on, to
    /// one of them; it is void when none may be chosen now.
    ///
    /// # Errors
    /// `NotFound`; `Rejected` with `RolloutEnded`, `RolloutVoid`, `WrongStage`, `SearchStopped`, `BadValue`,
    /// `BadArgument`; `IdempotencyConflict`.
    pub fn expand(&self, meta: &Meta, command: Expand) -> Result<Expanded> {
        let rollout = command.rollout;
        let (saw, seen) = sync_channel(1);
        let answer = self.mutate(meta, "expand", &command.clone(), move |db, request| {
            let (decision, ticket) = expand(db, request, &command)?;
            saw.try_send(ticket).ok();
            Ok(decision)
        })?;
        let ticket = match seen.try_recv() {
            Ok(ticket) if answer.fresh => ticket,
            Ok(_) | Err(_) => self.read(|db| ticket(db, load(db, rollout)?))?,
        };
        Ok(Expanded { ticket, added: answer.reply.added, known: answer.reply.known })
    }
}

/// The rollout `id`.
pub(super) fn load(db: &Connection, id: RolloutId) -> Result<RolloutRow> {
    first(db, statements::ROLLOUT_BY_ID, [id.bytes()], rows::rollout)?
        .ok_or_else(|| Error::not_found("rollout", id))
}

/// Refuses when a rollout is not held any more.
pub(super) fn held(rollout: &Rollout) -> Result<(), reject::Reject> {
    match (rollout.status, &rollout.void) {
        (RolloutStatus::Selected, _) => Ok(()),
        (RolloutStatus::Void, Some(void)) => Err(reject::Reject::RolloutVoid {
            rollout: rollout.rollout_id,
            reason: void.reason.clone(),
            lapsed: void.reason == super::end::LAPSED,
        }),
        (RolloutStatus::Accepted | RolloutStatus::Void, _) => {
            Err(reject::Reject::RolloutEnded { rollout: rollout.rollout_id })
        }
    }
}

fn expand(db: &Connection, request: &Request<'_>, command: &Expand) -> Result<(Decision<Added>, Ticket)> {
    let row = load(db, command.rollout)?;
    held(&row.rollout)?;
    if row.rollout.stage != Stage::Expand {
        let (rollout, stage) = (command.rollout, row.rollout.stage);
        return Err(
            reject::Reject::WrongStage { rollout, stage, asked: "a rollout that asks for actions" }.into()
        );
    }
    let mut session = Session::of_number(db, request.meta, row.search)?;
    if session.search().stopped == Some(StopReason::User) {
        let search = session.search().search_id;
        return Err(reject::Reject::SearchStopped { search, reason: StopReason::User }.into());
    }
    check(&session, &command.candidates, command.to_move)?;
    let mut leaf = session.own_position(row.rollout.leaf)?;
    let mover = command.to_move.unwrap_or(leaf.stats.to_move);
    if leaf.entry.is_none() && mover != leaf.stats.to_move {
        session.judge(mover)?;
    }
    leaf.stats.to_move = mover;
    fits(&command.candidates, leaf.edge_count)?;
    let new = session.new_edges(&mut leaf, &command.candidates)?;
    let added = u32::try_from(new.len()).expect("they fit");
    session.insert_edges(&leaf, &new)?;
    session.write_position(&leaf)?;
    let detail = json!({ "position": leaf.stats.number, "added": added, "known": leaf.edge_count });
    let expanded =
        Transition { rollout_id: Some(command.rollout), ..Transition::new(EventKind::PositionExpanded) };
    session.log(expanded.detail(detail));
    session.refresh(&row.rollout)?;
    let known = leaf.edge_count;
    let ticket = session.go_on(row, leaf)?;
    let (_, transitions) = session.finish()?;
    Ok((Decision { reply: Added { added, known }, changes: Vec::new(), transitions }, ticket))
}

/// Checks what a proposer says.
pub(super) fn check(session: &Session<'_>, candidates: &Candidates, to_move: Option<u8>) -> Result<()> {
    let (most, many) = (Expand::MAX_ACTIONS, candidates.actions.len());
    if many > most {
        let (expected, found) = (format!("at most {most} actions at once"), many.to_string());
        return Err(Reject::BadArgument { argument: "actions", expected, found }.into());
    }
    for candidate in &candidates.actions {
        if !(candidate.prior.is_finite() && candidate.prior >= 0.0) {
            let (expected, found) = ("a finite number of 0 or more".to_owned(), candidate.prior.to_string());
            return Err(reject::Reject::BadValue { what: "prior", expected, found }.into());
        }
    }
    match to_move {
        Some(index) if index >= session.config().values => {
            let (expected, found) = (format!("less than {}", session.config().values), index.to_string());
            Err(Reject::BadArgument { argument: "to_move", expected, found }.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// Refuses more actions than a position may have.
pub(super) fn fits(candidates: &Candidates, known: u32) -> Result<(), Reject> {
    let all = candidates.actions.len() as u64 + u64::from(known);
    if all <= MOST_EDGES {
        return Ok(());
    }
    let (expected, found) = (format!("at most {MOST_EDGES} actions at a position"), all.to_string());
    Err(Reject::BadArgument { argument: "actions", expected, found })
}

/// What makes an action equal to another: the key that its proposer gave, or else itself.
fn digest(candidate: &Candidate) -> Digest {
    match &candidate.key {
        Some(key) => canonical::digest("esf action key v1", key),
        None => canonical::digest("esf action v1", &candidate.action),
    }
}

impl Session<'_> {
    /// The actions that `position` does not have yet; says in it what is known of them now. They are stored by
    /// `insert_edges`, and the position by the caller.
    pub(super) fn new_edges<'c>(
        &mut self,
        position: &mut PositionRow,
        candidates: &'c Candidates,
    ) -> Result<Vec<(&'c Candidate, Digest)>> {
        let mut known: HashSet<Digest> = match rows::edge_range(position.stats.number) {
            Some(range) if position.edge_count > 0 => {
                every(self.db, statements::DIGESTS_OF_EDGES, range, |columns| columns.id())?
                    .into_iter()
                    .collect()
            }
            Some(_) | None => HashSet::new(),
        };
        let new: Vec<(&Candidate, Digest)> = candidates
            .actions
            .iter()
            .map(|candidate| (candidate, digest(candidate)))
            .filter(|(_, digest)| known.insert(*digest))
            .collect();
        let added = u32::try_from(new.len()).map_err(|_| Error::damaged("too many actions"))?;
        if position.edge_count == 0 && added > 0 {
            position.place = Some(count(self.row.expanded)?);
            self.row.expanded += 1;
        }
        position.edge_count += added;
        self.row.search.edges += u64::from(added);
        // A proposer that has nothing new is not asked again.
        if candidates.exhausted || added == 0 {
            position.stats.expansion = Expansion::Exhausted;
        } else if position.stats.expansion == Expansion::Unasked {
            position.stats.expansion = Expansion::Open;
        }
        Ok(new)
    }

    /// Stores the last edges of `position`.
    pub(super) fn insert_edges(&self, position: &PositionRow, new: &[(&Candidate, Digest)]) -> Result<()> {
        let number = position.stats.number;
        rows::edge_range(number).ok_or_else(|| Error::damaged("too many positions"))?;
        self.forget(number);
        let discount = self.config().discount;
        let first = position.edge_count - u32::try_from(new.len()).expect("they were counted");
        for (ordinal, (candidate, digest)) in (first..).zip(new) {
            let edge = count(rows::edge_number(number, ordinal).0)?;
            change(self.db, statements::INSERT_EDGE, params![edge, candidate.prior, discount], "edge")?;
            let action = candidate.action.to_string();
            let values = params![edge, action, digest.bytes(), candidate.name];
            change(self.db, statements::INSERT_ACTION, values, "action")?;
        }
        Ok(())
    }

    /// Takes a rollout on from its leaf, whose actions are known now.
    fn go_on(&mut self, mut row: RolloutRow, leaf: PositionRow) -> Result<Ticket> {
        let rollout = &mut row.rollout;
        let start = Start { path: rollout.path.clone(), at: rollout.leaf, edge: None, asked: true };
        let Way::Found(found, next) = self.find(&start, rollout.ordinal)? else {
            let rollout = self.void(row, None, "no action at its leaf may be chosen now", false)?;
            return complete_ticket(self.db, rollout, None, &leaf);
        };
        self.ask(rollout.leaf, -1)?;
        self.hold(&found.path[rollout.path.len()..], 1)?;
        rollout.path = found.path;
        rollout.leaf = found.leaf;
        rollout.stage = found.stage;
        if asks(rollout) {
            self.ask(rollout.leaf, 1)?;
        }
        let values = params![
            rows::steps(&rollout.path),
            count(rollout.leaf.0)?,
            rollout.stage.as_str(),
            found.want,
            row.number,
        ];
        change(self.db, statements::MOVE_ROLLOUT, values, "rollout")?;
        complete_ticket(self.db, row.rollout, found.want, &next)
    }
}
