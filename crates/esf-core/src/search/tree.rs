//! What the rules of a search look at: a tree, or an acyclic graph where equal states are one position,
//! read one position at a time. The database and [`super::memory::MemoryTree`] implement it.
//! Invariant: statistics do not change while one descent reads them.

use super::{EdgeStats, PositionNumber, PositionStats, Step};

/// The positions and edges of one search, as selection reads them.
pub trait Tree {
    /// Why a read fails.
    type Error;

    /// The statistics of a position.
    ///
    /// # Errors
    /// When it cannot be read, or there is none of this number.
    fn position(&self, number: PositionNumber) -> Result<PositionStats, Self::Error>;

    /// Every edge of a position, by ascending ordinal, with what is known of its child.
    ///
    /// # Errors
    /// When they cannot be read.
    fn edges(&self, number: PositionNumber) -> Result<Vec<EdgeStats>, Self::Error>;

    /// Some position that has edges, each as likely over all draws; none while there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    fn inner(&self, draw: u64) -> Result<Option<PositionNumber>, Self::Error>;

    /// The steps from the root by which a position was first reached; none for the root.
    ///
    /// # Errors
    /// When they cannot be read.
    fn line(&self, number: PositionNumber) -> Result<Vec<Step>, Self::Error>;
}
