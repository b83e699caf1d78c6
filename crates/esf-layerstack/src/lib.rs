//! The state plane of Ephemeral Sandbox Fabric: objects in packs, carriers on disk, the journaled
//! seal, projections, squash, pins, GC and accounting (design section 3).
//! `docs/on-disk-format.md` describes every byte. Worker-local types (anything with a path, a
//! descriptor or a carrier id) never implement serde, so durable state cannot hold one.
//!
//! ```compile_fail,E0277
//! fn durable<T: serde::Serialize>() {}
//! durable::<esf_layerstack::Workspace>();
//! ```
//! ```compile_fail,E0277
//! fn durable<T: serde::Serialize>() {}
//! durable::<esf_layerstack::CarrierId>();
//! ```
//! ```compile_fail,E0277
//! fn durable<T: serde::Serialize>() {}
//! durable::<esf_layerstack::SealedRoot>();
//! ```
//! A proof cannot be made outside of this crate:
//! ```compile_fail,E0451
//! # fn forge(pin: esf_core::manifest::RootPin, other: esf_layerstack::SealedRoot) {
//! esf_layerstack::SealedRoot { pin, ..other };
//! # }
//! ```

pub mod disk;
pub mod object_store;

mod artifact;
mod assemble;
mod attributes;
mod compare;
mod convert;
mod derive;
mod error;
mod export;
mod form;
mod gc;
mod handle;
mod header;
mod import;
mod intake;
mod journal;
mod ledger;
mod links;
mod local;
mod lock;
mod projection;
mod recover;
mod seal;
mod sealed;
mod settle;
mod squash;
mod stack;
mod staging;
mod sync;
mod trash;
pub mod union;
mod upper;
mod verify;
mod workspace;

pub use artifact::{MAX_ARTIFACT, StoredArtifact};
pub use compare::is_told;
pub use error::Error;
pub use export::ExportOptions;
pub use form::{Form, Records};
pub use gc::GcPlan;
pub use header::{FORMAT_VERSION, NAME as HEADER_FILE};
pub use import::{ImportOptions, Imported};
pub use ledger::{RootUsage, Usage};
pub use local::{CarrierId, TxnId};
pub use lock::StoreLock;
pub use object_store::{ArtifactReader, ObjectStore};
pub use seal::{PreparedSeal, SealRequest};
pub use sealed::{Changes, Progress, SealedRoot, Skipped};
pub use settle::{SealState, UnsettledSeal};
pub use squash::{HARD_DEPTH, SquashReport};
pub use stack::LayerStack;
pub use staging::Scratch;
pub use trash::remove_tree;
pub use verify::{FsckReport, VerifyReport};
pub use workspace::{SOFT_DEPTH, Workspace};
