//! Searches, rollouts, positions and edges as people read them, beside their JSON.

use esf_control::picture::edge_name;
use esf_core::ops::search::BestLine;
use esf_core::search::{Rollout, Search, Ticket};
use serde_json::json;

use super::lines::{self, BestPosition};
use crate::commands::show::{optional, short};
use crate::output::{Reply, Table};

pub(super) fn searches(searches: &[Search]) -> Reply {
    let mut table =
        Table::new(&["SEARCH", "ROOT NODE", "STATUS", "ROLLOUTS", "VOID", "IN FLIGHT", "POSITIONS", "EDGES"]);
    for search in searches {
        let status = match search.stopped {
            Some(reason) => format!("{} ({})", search.status.as_str(), reason.as_str()),
            None => search.status.as_str().to_owned(),
        };
        let budget = search.config.budget.rollouts.map_or(String::new(), |budget| format!("/{budget}"));
        table.row([
            short(&search.search_id),
            short(&search.root_node_id),
            status,
            format!("{}{budget}", search.accepted),
            search.void.to_string(),
            search.in_flight().to_string(),
            search.positions.to_string(),
            search.edges.to_string(),
        ]);
    }
    let ids = searches.iter().map(|search| search.search_id.to_string()).collect();
    Reply { value: json!({ "searches": searches }), table, ids }
}

/// One search, under the name `search`.
pub(super) fn search(search: &Search) -> Reply {
    Reply { value: json!({ "search": search }), ..searches(std::slice::from_ref(search)) }
}

/// One search and the best position that was found in it.
pub(super) fn search_and_best(search: &Search, best: Option<&BestPosition>) -> Reply {
    let mut reply = self::search(search);
    reply.value["best"] = json!(best.map(BestPosition::json));
    if let Some(best) = best {
        let mut table = Table::new(&["BEST NODE", "REWARD", "N", "ACTIONS"]);
        table.row([
            optional(&best.position.node_id),
            lines::number(best.reward),
            best.position.stats.visits.to_string(),
            best.names.join(" → "),
        ]);
        reply.table =
            Table::lines(reply.table.render().lines().chain(table.render().lines()).map(str::to_owned));
    }
    reply
}

pub(super) fn tickets(tickets: &[Ticket]) -> Table {
    let mut table = Table::new(&["ROLLOUT", "STAGE", "LEAF", "NODE", "WANT", "KNOWN", "ACTION"]);
    for ticket in tickets {
        let action = match (&ticket.action_name, &ticket.action) {
            (Some(name), _) => name.clone(),
            (None, Some(action)) => action.to_string().chars().take(60).collect(),
            (None, None) => "-".to_owned(),
        };
        table.row([
            short(&ticket.rollout.rollout_id),
            ticket.rollout.stage.as_str().to_owned(),
            ticket.rollout.leaf.0.to_string(),
            ticket.leaf_node_id.as_ref().map_or("-".to_owned(), short),
            optional(&ticket.want),
            ticket.known.to_string(),
            action,
        ]);
    }
    table
}

pub(super) fn rollout(rollout: &Rollout) -> Table {
    let mut table = Table::new(&["ROLLOUT", "STATUS", "STAGE", "VALUE", "NODE", "WHY"]);
    table.row([
        short(&rollout.rollout_id),
        rollout.status.as_str().to_owned(),
        rollout.stage.as_str().to_owned(),
        lines::values(&rollout.value),
        rollout.node_id.as_ref().map_or("-".to_owned(), short),
        rollout.void.as_ref().map_or("-".to_owned(), |void| void.reason.clone()),
    ]);
    table
}

/// Edges, each with where it leads.
pub(super) fn line(line: &[BestLine]) -> Table {
    let mut table = Table::new(&["EDGE", "N", "Q", "POSITION", "NODE", "ACTION"]);
    for BestLine { edge, position } in line {
        table.row([
            edge.stats.number.0.to_string(),
            edge.stats.visits.to_string(),
            lines::values(&position.stats.mean),
            position.stats.number.0.to_string(),
            position.node_id.as_ref().map_or("-".to_owned(), short),
            edge_name(edge),
        ]);
    }
    table
}
