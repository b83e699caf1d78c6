//! The best moves of tic-tac-toe and connect-four, found with 1, 8 and 32 rollouts in flight, in a tree and where
//! equal boards are one position, and the counters rebuilt of the facts, shuffled and repeated.

use std::collections::HashMap;

use esf_core::search::config::{FirstPlay, Normalize, Policy, Solve, Transpositions};
use esf_core::search::memory::MemoryTree;
use esf_core::search::rules::best;
use esf_core::search::{BestKind, Config};

use crate::laws::rebuilt;
use crate::play::{Chance, Flow, World, search};

/// So many in a row, on a board of these sides; in `gravity` a move is a column.
#[derive(Clone, Copy, Debug)]
struct Board {
    width: u32,
    height: u32,
    row: u32,
    gravity: bool,
    /// The cells of each player, by bit.
    cells: [u64; 2],
}

impl Board {
    const fn tic_tac_toe() -> Self {
        Self { width: 3, height: 3, row: 3, gravity: false, cells: [0; 2] }
    }

    const fn connect_four(width: u32, height: u32) -> Self {
        Self { width, height, row: 4, gravity: true, cells: [0; 2] }
    }

    fn after(mut self, actions: impl IntoIterator<Item = u64>) -> Self {
        actions.into_iter().for_each(|action| self.act(action));
        self
    }

    /// Bits from one row of cells to the next: the bit between them is never set, so no row wraps round.
    fn stride(&self) -> u32 {
        self.width + 1
    }

    fn free(&self) -> u32 {
        self.width * self.height - (self.cells[0] | self.cells[1]).count_ones()
    }

    /// Whether a player has a row.
    fn won(&self, player: usize) -> bool {
        let cells = self.cells[player];
        let ways = [1, self.stride(), self.stride() + 1, self.stride() - 1];
        ways.iter().any(|way| (1..self.row).fold(cells, |rows, step| rows & cells >> (way * step)) != 0)
    }

    /// What a random game from here on brings the first player.
    fn random_game(mut self, chance: &mut Chance) -> f64 {
        loop {
            if let Some(outcome) = self.outcome() {
                return outcome[0];
            }
            let moves = self.actions();
            self.act(moves[chance.below(moves.len())].0);
        }
    }

    fn open(&self, action: u32) -> bool {
        let cell = if self.gravity { self.stride() * (self.height - 1) + action } else { action };
        (self.cells[0] | self.cells[1]) >> cell & 1 == 0 && cell % self.stride() < self.width
    }
}

impl World for Board {
    fn to_move(&self) -> u8 {
        (self.cells[0].count_ones() > self.cells[1].count_ones()).into()
    }

    fn actions(&self) -> Vec<(u64, f64)> {
        let moves = if self.gravity { 0..self.width } else { 0..self.stride() * self.height };
        moves.filter(|action| self.open(*action)).map(|action| (action.into(), 1.0)).collect()
    }

    fn act(&mut self, action: u64) {
        let player = usize::from(self.to_move());
        let taken = self.cells[0] | self.cells[1];
        let mut cell = action;
        while self.gravity && taken >> cell & 1 == 1 {
            cell += u64::from(self.stride());
        }
        self.cells[player] |= 1 << cell;
    }

    fn outcome(&self) -> Option<Vec<f64>> {
        match (self.won(0), self.won(1)) {
            (true, _) => Some(vec![1.0, -1.0]),
            (_, true) => Some(vec![-1.0, 1.0]),
            _ if self.free() == 0 => Some(vec![0.0, 0.0]),
            _ => None,
        }
    }

    /// The mean of four random games from here on.
    fn guess(&self) -> Vec<f64> {
        const GAMES: u64 = 4;
        let total: f64 = (0..GAMES).map(|game| self.random_game(&mut Chance(self.key() ^ game << 60))).sum();
        vec![total / GAMES as f64, -total / GAMES as f64]
    }

    fn key(&self) -> u64 {
        assert!(self.stride() * self.height <= 32);
        self.cells[0] << 32 | self.cells[1]
    }
}

/// The exact value of a board for the first player.
fn solve(board: &Board, known: &mut HashMap<u64, i8>) -> i8 {
    if let Some(value) = known.get(&board.key()) {
        return *value;
    }
    let value = match board.outcome() {
        Some(outcome) => outcome[0] as i8,
        None => {
            let values = board.actions().into_iter().map(|(action, _)| solve(&board.after([action]), known));
            let values: Vec<i8> = values.collect();
            let best = if board.to_move() == 0 { values.iter().max() } else { values.iter().min() };
            *best.expect("a board that is not over has moves")
        }
    };
    known.insert(board.key(), value);
    value
}

/// The moves that lose nothing.
fn optimal(board: &Board, known: &mut HashMap<u64, i8>) -> Vec<u64> {
    let value = solve(board, known);
    let moves = board.actions().into_iter().map(|(action, _)| action);
    moves.filter(|action| solve(&board.after([*action]), known) == value).collect()
}

/// Boards on which some move is a mistake, reached by random play.
fn positions(
    empty: Board,
    count: usize,
    free: std::ops::RangeInclusive<u32>,
    seed: u64,
) -> Vec<(Board, Vec<u64>)> {
    let mut chance = Chance(seed);
    let mut known = HashMap::new();
    let mut found: Vec<(Board, Vec<u64>)> = Vec::new();
    while found.len() < count {
        let least = *free.start() + chance.below((free.end() - free.start() + 1) as usize) as u32;
        let mut board = empty;
        while board.outcome().is_none() && board.free() > least {
            let moves = board.actions();
            board.act(moves[chance.below(moves.len())].0);
        }
        if board.outcome().is_none() && found.iter().all(|(other, _)| other.key() != board.key()) {
            let optimal = optimal(&board, &mut known);
            if optimal.len() < board.actions().len() {
                found.push((board, optimal));
            }
        }
    }
    found
}

const UCB1: Policy = Policy::Ucb1 { c: std::f64::consts::SQRT_2 };
const PUCT: Policy = Policy::Puct { c: 2.0, own_visit: true };

fn config(policy: Policy, transpositions: Transpositions, solve: Solve) -> Config {
    let first_play = FirstPlay::Parent { reduction: 0.0 };
    let best_value = Some(1.0);
    Config {
        policy,
        values: 2,
        first_play,
        normalize: Normalize::None,
        solve,
        best_value,
        transpositions,
        ..Config::default()
    }
}

/// Searches a board; answers the move that was visited most.
fn searched(board: &Board, config: &Config, flow: Flow, seed: u64) -> u64 {
    let mut tree = MemoryTree::new(config.clone(), board.to_move());
    search(&mut tree, board, flow, &mut Chance(seed));
    if seed.is_multiple_of(4) {
        rebuilt(&tree, board.to_move(), &mut Chance(!seed));
    }
    let (root, edges) = (tree.stats(MemoryTree::ROOT), tree.edges_of(MemoryTree::ROOT));
    tree.action(best(config, BestKind::Robust, root, &edges).expect("it was searched"))
}

fn moves_are_optimal(boards: &[(Board, Vec<u64>)], config: &Config, rollouts: u64, in_flight: usize) {
    for (number, (board, optimal)) in boards.iter().enumerate() {
        let flow = Flow { rollouts, in_flight, again: 30 };
        let chosen = searched(board, config, flow, number as u64);
        assert!(optimal.contains(&chosen), "board {number}, {board:?}: chose {chosen}, best {optimal:?}");
    }
}

/// With one rollout in flight, with eight, and with 32.
fn each_way(boards: &[(Board, Vec<u64>)], config: &Config, rollouts: u64) {
    [1, 8, 32].into_iter().for_each(|in_flight| moves_are_optimal(boards, config, rollouts, in_flight));
}

/// Equal boards as one position, at so many rollouts in flight.
fn tic_tac_toe_with(in_flight: usize) {
    let boards = positions(Board::tic_tac_toe(), 60, 3..=7, 1);
    moves_are_optimal(&boards, &config(UCB1, Transpositions::State, Solve::Terminal), 1500, in_flight);
}

#[test]
fn tic_tac_toe_with_one_worker() {
    tic_tac_toe_with(1);
}

#[test]
fn tic_tac_toe_with_eight_workers() {
    tic_tac_toe_with(8);
}

#[test]
fn tic_tac_toe_with_32_workers() {
    tic_tac_toe_with(32);
}

#[test]
fn tic_tac_toe_as_a_tree() {
    let boards = positions(Board::tic_tac_toe(), 12, 3..=7, 2);
    each_way(&boards, &config(PUCT, Transpositions::Off, Solve::Terminal), 1500);
}

#[test]
fn tic_tac_toe_solved() {
    let boards = positions(Board::tic_tac_toe(), 60, 3..=7, 3);
    each_way(&boards, &config(UCB1, Transpositions::State, Solve::Full), 1500);
    each_way(&boards[..20], &config(PUCT, Transpositions::Off, Solve::Full), 1500);
}

#[test]
fn connect_four() {
    let boards = positions(Board::connect_four(6, 4), 8, 6..=10, 4);
    each_way(&boards, &config(UCB1, Transpositions::State, Solve::Full), 1500);
    each_way(&boards, &config(PUCT, Transpositions::State, Solve::Terminal), 1500);
    each_way(&boards[..4], &config(UCB1, Transpositions::Off, Solve::Full), 1500);
}

/// A win at once, a loss to be warded off, and a threat that makes two, on boards with much room.
#[test]
fn connect_four_by_tactics() {
    let empty = Board::connect_four(6, 4);
    for (played, best) in
        [(vec![0, 5, 0, 5, 0, 4], vec![0]), (vec![0, 5, 0, 5, 1, 5], vec![5]), (vec![2, 0, 3, 0], vec![1, 4])]
    {
        let board = empty.after(played);
        for solve in [Solve::Terminal, Solve::Full] {
            each_way(&[(board, best.clone())], &config(UCB1, Transpositions::State, solve), 800);
        }
    }
}
