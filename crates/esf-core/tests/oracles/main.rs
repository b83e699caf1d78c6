//! Searches in memory against what is known of them: the visits of mctx and OpenSpiel on the same trees,
//! the best moves of games that can be solved, and the laws that hold for every search.

mod fan;
mod fixtures;
mod games;
mod laws;
mod play;
mod rules;
mod selection;
mod shared;
mod world;
