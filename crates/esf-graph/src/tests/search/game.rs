//! Tic-tac-toe through the database: eight rollouts in flight, outcomes in any order and some twice; the move
//! that is found is one that minimax would take.

use esf_core::ops::search::Complete;
use esf_core::search::config::{Budget, FirstPlay, Normalize, Policy, Solve, Transpositions};
use esf_core::search::{BestKind, Candidate, Candidates, Config, Stage, Ticket};
use serde_json::json;

use super::Searching;
use crate::tests::meta;

type Board = [u8; 9];

const LINES: [[usize; 3]; 8] =
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]];

fn mover(board: &Board) -> u8 {
    1 + (board.iter().filter(|cell| **cell > 0).count() % 2) as u8
}

fn winner(board: &Board) -> Option<u8> {
    LINES
        .iter()
        .find(|[a, b, c]| board[*a] > 0 && board[*a] == board[*b] && board[*a] == board[*c])
        .map(|line| board[line[0]])
}

fn free(board: &Board) -> Vec<usize> {
    (0..9).filter(|cell| board[*cell] == 0).collect()
}

fn play(board: &Board, cell: usize) -> Board {
    let mut next = *board;
    next[cell] = mover(board);
    next
}

/// The outcome for the first player, when both play their best.
fn minimax(board: &Board) -> i8 {
    if let Some(winner) = winner(board) {
        return if winner == 1 { 1 } else { -1 };
    }
    let outcomes = free(board).into_iter().map(|cell| minimax(&play(board, cell)));
    let best = if mover(board) == 1 { outcomes.max() } else { outcomes.min() };
    best.unwrap_or(0)
}

/// A guess: by a playout that the board decides.
fn guess(board: &Board) -> f64 {
    let (mut board, mut seed) = (*board, board.iter().fold(7_usize, |seed, cell| seed * 31 + *cell as usize));
    loop {
        let free = free(&board);
        if winner(&board).is_some() || free.is_empty() {
            return winner(&board).map_or(0.0, |winner| if winner == 1 { 1.0 } else { -1.0 });
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        board = play(&board, free[(seed >> 33) % free.len()]);
    }
}

fn outcome(start: &Board, ticket: &Ticket) -> Complete {
    let moves =
        ticket.actions.iter().chain(&ticket.action).map(|cell| cell.as_u64().expect("a cell") as usize);
    let board = moves.fold(*start, |board, cell| play(&board, cell));
    let terminal = winner(&board).is_some() || free(&board).is_empty();
    let value = guess(&board);
    let of = |cell: usize| Candidate { action: json!(cell), name: None, prior: 1.0, key: None };
    Complete {
        value: Some(vec![value, -value]),
        terminal,
        to_move: Some(mover(&board) - 1),
        key: Some(format!("{board:?}")),
        candidates: (!terminal)
            .then(|| Candidates { actions: free(&board).into_iter().map(of).collect(), exhausted: true }),
        ..Complete::of(ticket.rollout.rollout_id)
    }
}

fn search(start: &Board, transpositions: Transpositions, rollouts: u64) -> usize {
    let searching = Searching::new(Config {
        policy: Policy::Ucb1 { c: 1.4 },
        values: 2,
        first_play: FirstPlay::First,
        normalize: Normalize::None,
        transpositions,
        solve: Solve::Terminal,
        budget: Budget { rollouts: Some(rollouts), ..Budget::default() },
        ..Config::default()
    });
    let (mut held, mut done, mut seed): (Vec<Ticket>, Vec<Complete>, usize) = (Vec::new(), Vec::new(), 1);
    loop {
        let selection = searching.select((8 - held.len()) as u32);
        held.extend(selection.tickets);
        if held.is_empty() {
            assert!(selection.stopped.is_some());
            break;
        }
        // Half of what is in flight comes back, in another order; a third of it twice.
        let mut commands = Vec::new();
        for _ in 0..held.len().div_ceil(2) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ticket = held.swap_remove((seed >> 40) % held.len());
            assert_ne!(ticket.rollout.stage, Stage::Expand, "actions are known at once");
            let command = outcome(start, &ticket);
            commands.extend(done.get((seed >> 20) % done.len().max(3)).cloned());
            done.push(command.clone());
            commands.push(command);
        }
        for answer in searching.graph().complete_all(&meta(), commands).expect("all") {
            answer.expect("accepted, or was");
        }
    }
    searching.sound();
    let search = searching.now();
    let root = searching.graph().position(search.root).expect("root");
    assert_eq!(root.stats.visits, search.accepted, "visits are accepted rollouts");
    let best = searching.graph().best(search.search_id, BestKind::Robust).expect("best").expect("a move");
    best.edge.action.as_u64().expect("a cell") as usize
}

#[test]
fn eight_in_flight_find_a_move_that_minimax_would_take() {
    let boards: [Board; 5] = [
        [1, 1, 0, 2, 2, 0, 0, 0, 0], // win at once
        [1, 1, 0, 2, 0, 0, 0, 0, 0], // stop the other's line
        [1, 0, 0, 0, 2, 0, 0, 0, 1], // an edge, not a corner
        [0, 0, 2, 0, 1, 0, 0, 0, 0],
        [2, 0, 1, 0, 1, 0, 0, 0, 2],
    ];
    for (index, board) in boards.iter().enumerate() {
        let transpositions = if index % 2 == 0 { Transpositions::State } else { Transpositions::Off };
        let found = search(board, transpositions, 400);
        assert_eq!(minimax(&play(board, found)), minimax(board), "{board:?}: {found}");
    }
}
