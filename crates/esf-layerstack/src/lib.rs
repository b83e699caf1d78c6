//! The state plane of Ephemeral Sandbox Fabric: objects in packs, carriers on disk, the journaled
//! seal, projections, squash, pins, GC and accounting (design section 3).
//! `docs/on-disk-format.md` describes every byte. Worker-local types (anything with a path, a
//! descriptor or a carrier id) never implement serde, so durable state cannot hold one.

pub mod disk;
pub mod object_store;
